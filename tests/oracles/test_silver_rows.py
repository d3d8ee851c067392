"""The rows of a silver file, written and read back the same; what they come to, worked out by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter import read_silver
from blendfilter.errors import BadData
from blendfilter.files import JsonRow
from blendfilter.lm.tokenisers import TokenCounter
from blendfilter.oracles.candidates import sentences_of
from blendfilter.oracles.silver_rows import Figures, SilverRow, SilverSentence, line_of, row_of, summarise
from blendfilter.records import Passage

MILL = Passage("p4", "Tide Mill", "It grinds rye. Ane Lindqvist runs it. It is red.", 9.1)
QUAY = Passage("p5", "", "A quay of stone.")
ROW = SilverRow(
    "m-17", "Who runs the mill?", ("Ane Lindqvist", "A. Lindqvist"), "Ane Lindqvist", (MILL, QUAY),
    (SilverSentence(0, 0, 14, 0.0), SilverSentence(0, 15, 37, 1.0), SilverSentence(0, 38, 48, 0.0),
     SilverSentence(1, 0, 16, 1.0)),
    (1, 3), "Ane Lindqvist runs it. A quay of stone.", True,
)  # fmt: skip
LINE = (
    b'{"id": "m-17", "question": "Who runs the mill?", "golden_answers": ["Ane Lindqvist", "A. Lindqvist"], '
    b'"output": "Ane Lindqvist", "passages": [{"id": "p4", "title": "Tide Mill", '
    b'"text": "It grinds rye. Ane Lindqvist runs it. It is red.", "score": 9.1}, '
    b'{"id": "p5", "title": "", "text": "A quay of stone.", "score": null}], '
    b'"sentences": [{"passage": 0, "start": 0, "end": 14, "score": 0.0}, '
    b'{"passage": 0, "start": 15, "end": 37, "score": 1.0}, {"passage": 0, "start": 38, "end": 48, "score": 0.0}, '
    b'{"passage": 1, "start": 0, "end": 16, "score": 1.0}], "chosen": [1, 3], '
    b'"target": "Ane Lindqvist runs it. A quay of stone.", "positive": true}\n'
)


def test_a_row_as_it_stands_in_the_file() -> None:
    assert line_of(ROW) == LINE


texts = st.text(max_size=60)
passages = st.lists(st.builds(Passage, id=st.text(min_size=1), title=texts, text=texts, score=st.none() | st.floats(
    allow_nan=False, allow_infinity=False)), max_size=3)  # fmt: skip


@given(passages, texts, st.lists(st.text(), min_size=1), st.none() | st.booleans(), st.data())
def test_any_row_comes_back(
    found: list[Passage], question: str, answers: list[str], positive: bool | None, data: st.DataObject
) -> None:
    candidates = sentences_of(found)
    score = st.none() | st.floats(allow_nan=False, allow_infinity=False)
    sentences = tuple(SilverSentence(each.position, each.start, each.end, data.draw(score)) for each in candidates)
    chosen = tuple(sorted(data.draw(st.sets(st.sampled_from(range(len(sentences))))))) if sentences else ()
    target = " ".join(candidates[at].text for at in chosen)
    row = SilverRow("id", question, tuple(answers), answers[0], tuple(found), sentences, chosen, target, positive)
    line = line_of(row)
    assert line.count(b"\n") == 1
    again = row_of(JsonRow("line", 0, json.loads(line)))
    assert again == row
    assert again.candidates() == candidates


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda row: row.pop("passages"), "field 'passages' is missing"),
        (lambda row: row.update(golden_answers=[]), "field 'golden_answers' is wrong"),
        (lambda row: row.update(chosen=[4]), "chosen names a sentence that is not there"),
        (lambda row: row.update(chosen=[-1]), "field 'chosen.0' is wrong"),
        (lambda row: row["sentences"][1].update(passage=2), "sentence 1 lies outside of the passages"),
        (lambda row: row["sentences"][3].update(end=17), "sentence 3 lies outside"),
        (lambda row: row["sentences"][0].update(end=0), "sentence 0 lies outside"),
        (lambda row: row["sentences"][0].update(score=float("nan")), "field 'sentences.0.score' is wrong"),
    ],
)
def test_what_is_no_row_is_refused_by_its_line(change: Change, error: str, tmp_path: Path) -> None:
    row = json.loads(LINE)
    change(row)
    path = tmp_path / "silver.jsonl"
    path.write_bytes(LINE + json.dumps(row).encode())
    found = read_silver(path)
    assert next(found) == ROW
    with pytest.raises(BadData) as refused:
        next(found)
    assert str(refused.value).startswith(f"{path}, line 2: {error}")
    assert "\n" not in str(refused.value)


# --- what they come to ------------------------------------------------------------------------------------------------

WORDS = TokenCounter("words", lambda text: float(len(text.split())))
TIDE = Passage("1", "Tide Mill", "The rye mill. Ane Lindqvist runs it.")  # 6 words without "The": rye … it
SHED = Passage("2", "Shed", "Ane was here.")
GREY = Passage("3", "Quay", "Grey stone lies here.")


def row(
    found: list[Passage], scores: list[tuple[int, int, int, float | None]], chosen: tuple[int, ...], good: bool | None
) -> SilverRow:
    sentences = tuple(SilverSentence(*each) for each in scores)
    return SilverRow(
        "a", "Who runs it now?", ("Ane Lindqvist",), "Ane Lindqvist", tuple(found), sentences, chosen, "", good
    )


FOUND = row([TIDE, SHED, GREY], [(0, 0, 13, 0.0), (0, 14, 36, 1.0), (1, 0, 13, 0.6), (2, 0, 21, 0.5)], (1,), True)
NOT_FOUND = row([GREY], [(0, 0, 21, 0.0)], (), False)
NOTHING = row([], [], (), False)


def test_one_question_by_hand() -> None:
    """The context of FULL has 6 + 3 + 4 = 13 words, two of which are the output's; "Ane" stands there twice, and the
    output has it once. PSG holds the passages of the scores above 0.5: 9 words. SILVER is one sentence of 4 words.

    Tokens are words here, with the question's 4: FULL reads `Tide Mill | The rye mill. Ane Lindqvist runs it.` (10),
    `Shed | Ane was here.` (5), `Quay | Grey stone lies here.` (6).
    """
    summary = summarise([FOUND], threshold=0.5, tokeniser=WORDS)
    one = summary.groups["all"]
    assert [each.precision for each in (one.full, one.psg, one.silver)] == pytest.approx([2 / 13, 2 / 9, 2 / 4])
    assert [each.tokens for each in (one.full, one.psg, one.silver)] == [25.0, 19.0, 4 + 3 + 4]
    assert (summary.n, summary.empty, summary.positive, summary.no_passages) == (1, 0.0, 1.0, 0)
    # "ane lindqvist" has 13 characters, of which "ane lindqvist runs it" (21) holds all
    assert one.silver.characters == pytest.approx(13 / 21)


def test_empty_contexts_count_as_nothing_and_are_counted_apart() -> None:
    summary = summarise([FOUND, NOT_FOUND, NOTHING], threshold=0.5, tokeniser=WORDS)
    assert summary.groups.keys() == {"all", "positive", "negative"}
    whole, negative = summary.groups["all"], summary.groups["negative"]
    assert (summary.n, summary.no_passages) == (3, 1)
    assert summary.positive == pytest.approx(1 / 3)
    assert [each.empty for each in (whole.full, whole.psg, whole.silver)] == pytest.approx([1 / 3, 2 / 3, 2 / 3])
    assert whole.silver.precision == pytest.approx(0.5 / 3)
    assert whole.silver.not_empty == pytest.approx(0.5)
    assert whole.full.not_empty == pytest.approx((2 / 13 + 0) / 2)
    assert negative.silver == Figures(empty=1.0, precision=0.0, not_empty=0.0, characters=0.0, tokens=4.0)


def test_the_unknown_are_neither_positive_nor_negative() -> None:
    unknown = row([GREY], [(0, 0, 21, None)], (), None)
    summary = summarise([unknown], threshold=0.0, tokeniser=WORDS)
    assert (summary.positive, summary.unknown, summary.unscored, list(summary.groups)) == (None, 1, 1, ["all"])
    beside = summarise([FOUND, NOT_FOUND, unknown], threshold=0.0, tokeniser=WORDS)
    assert (beside.positive, beside.unknown, beside.n) == (0.5, 1, 3), "a share of those where it is known"

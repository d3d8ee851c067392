"""The rows of a silver file: written and read back the same, and what is no row refused by its line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter import read_silver
from blendfilter.errors import BadData, MissingFile
from blendfilter.files import JsonRow
from blendfilter.oracles.candidates import sentences_of
from blendfilter.oracles.silver_rows import SilverRow, SilverSentence, line_of, row_of
from blendfilter.records import Passage

MILL = Passage("p4", "Tide Mill", "It grinds rye. Ane Lindqvist runs it. It is red.", 9.1)
QUAY = Passage("p5", "", "A quay of stone.")
ROW = SilverRow(
    "m-17", "Who runs the mill?", ("Ane Lindqvist", "A. Lindqvist"), "Ane Lindqvist", (MILL, QUAY),
    (SilverSentence(0, 0, 14, 0.0), SilverSentence(0, 15, 37, 1.0), SilverSentence(0, 38, 48, 0.0),
     SilverSentence(1, 0, 16, 1.0)),
    (1, 3), "Ane Lindqvist runs it. A quay of stone.", True,
)  # fmt: skip


def written(folder: Path, *rows: object) -> Path:
    path = folder / "silver.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def as_json() -> dict[str, Any]:
    value: dict[str, Any] = json.loads(line_of(ROW))
    return value


def test_a_row_as_it_stands_in_the_file() -> None:
    assert as_json() == {
        "id": "m-17",
        "question": "Who runs the mill?",
        "golden_answers": ["Ane Lindqvist", "A. Lindqvist"],
        "output": "Ane Lindqvist",
        "passages": [
            {"id": "p4", "title": "Tide Mill", "text": MILL.text, "score": 9.1},
            {"id": "p5", "title": "", "text": "A quay of stone.", "score": None},
        ],
        "sentences": [
            {"passage": 0, "start": 0, "end": 14, "score": 0.0},
            {"passage": 0, "start": 15, "end": 37, "score": 1.0},
            {"passage": 0, "start": 38, "end": 48, "score": 0.0},
            {"passage": 1, "start": 0, "end": 16, "score": 1.0},
        ],
        "chosen": [1, 3],
        "target": "Ane Lindqvist runs it. A quay of stone.",
        "positive": True,
    }


def test_what_silver_shows_lies_verbatim_in_its_passages() -> None:
    one, other = ROW.excerpts()
    assert [each.line for each in (one, other)] == ["Tide Mill | Ane Lindqvist runs it.", "A quay of stone."]
    assert (one.id, one.score, one.source) == ("p4", 9.1, MILL)  # type: ignore[attr-defined]
    assert ROW.candidates() == sentences_of(ROW.passages)


texts = st.text(max_size=60)
passages = st.lists(st.builds(Passage, id=st.text(min_size=1), title=texts, text=texts, score=st.none() | st.floats(
    allow_nan=False, allow_infinity=False)), max_size=3)  # fmt: skip


@given(passages, texts, st.lists(st.text(), min_size=1), st.none() | st.booleans(), st.data())
def test_any_row_comes_back(
    found: list[Passage], question: str, answers: list[str], positive: bool | None, data: st.DataObject
) -> None:
    candidates = sentences_of(found)
    score = st.floats(allow_nan=False, allow_infinity=False)
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
    ("change", "said"),
    [
        (lambda row: row.pop("passages"), "field 'passages' is missing"),
        (lambda row: row.update(golden_answers=[]), "field 'golden_answers' is wrong"),
        (lambda row: row.update(chosen=[4]), "chosen names sentence 4, of 4 sentences"),
        (lambda row: row.update(chosen=[-1]), "field 'chosen.0' is wrong"),
        (lambda row: row["sentences"][1].update(passage=2), "sentence 1 names passage 2, of 2 passages"),
        (lambda row: row["sentences"][3].update(end=17), "sentence 3 lies at 0:17, of 16 characters"),
        (lambda row: row["sentences"][0].update(end=0), "sentence 0 lies at 0:0"),
        (lambda row: row["sentences"][0].update(score=float("nan")), "field 'sentences.0.score' is wrong"),
    ],
)
def test_what_is_no_row_is_refused_by_its_line(change: Change, said: str, tmp_path: Path) -> None:
    row = as_json()
    change(row)
    path = written(tmp_path, as_json(), row)
    found = read_silver(path)
    assert next(found) == ROW
    with pytest.raises(BadData) as refused:
        next(found)
    assert str(refused.value).startswith(f"{path}, line 2: {said}")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_or_no_silver_file(tmp_path: Path) -> None:
    with pytest.raises(MissingFile):
        next(read_silver(tmp_path / "none.jsonl"))
    with pytest.raises(BadData, match="item 1: expected an object"):
        next(read_silver(written(tmp_path, ["no", "row"])))

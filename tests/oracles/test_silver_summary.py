"""What silver contexts come to, worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from blendfilter.lm.tokenisers import TokenCounter
from blendfilter.oracles.silver_rows import SilverRow, SilverSentence
from blendfilter.oracles.silver_summary import Figures, contexts_of, summarise
from blendfilter.records import Passage

WORDS = TokenCounter("words", lambda text: float(len(text.split())))
MILL = Passage("1", "Tide Mill", "The rye mill. Ane Lindqvist runs it.")  # 6 words without "The": rye … it
SHED = Passage("2", "Shed", "Ane was here.")
QUAY = Passage("3", "Quay", "Grey stone lies here.")


def row(name: str, passages: list[Passage], scores: Sequence[tuple[int, int, int, float | None]],
        chosen: tuple[int, ...], positive: bool | None) -> SilverRow:  # fmt: skip
    sentences = tuple(SilverSentence(*each) for each in scores)
    target = " ".join(passages[each.passage].text[each.start : each.end] for each in (sentences[at] for at in chosen))
    return SilverRow(name, "Who runs it now?", ("Ane Lindqvist",), "Ane Lindqvist", tuple(passages), sentences, chosen,
                     target, positive)  # fmt: skip


FOUND = row("a", [MILL, SHED, QUAY], [(0, 0, 13, 0.0), (0, 14, 36, 1.0), (1, 0, 13, 0.6), (2, 0, 21, 0.5)], (1,), True)
NOT_FOUND = row("b", [QUAY], [(0, 0, 21, 0.0)], (), False)
NOTHING = row("c", [], [], (), False)


def test_one_question_by_hand() -> None:
    """The context of FULL has 6 + 3 + 4 = 13 words, two of which are the output's; "Ane" stands there twice, and the
    output has it once. PSG holds the passages of the scores above 0.5: 9 words. SILVER is one sentence of 4 words.

    Tokens are words here, with the question's 4: FULL reads `Tide Mill | The rye mill. Ane Lindqvist runs it.` (10),
    `Shed | Ane was here.` (5), `Quay | Grey stone lies here.` (6).
    """
    summary = summarise([FOUND], threshold=0.5, tokeniser=WORDS)
    assert [each.id for each in contexts_of(FOUND, 0.5)[1]] == ["1", "2"]
    assert summary.precision == pytest.approx({"FULL": 2 / 13, "PSG": 2 / 9, "SILVER": 2 / 4})
    assert summary.tokens == {"FULL": 25.0, "PSG": 19.0, "SILVER": 4 + 3 + 4}
    assert (summary.n, summary.empty, summary.positive, summary.no_passages) == (1, 0.0, 1.0, 0)
    # "ane lindqvist" has 13 characters, of which "ane lindqvist runs it" (21) holds all
    assert summary.groups["all"].silver.characters == pytest.approx(13 / 21)


def test_empty_contexts_count_as_nothing_and_are_told_apart() -> None:
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
    assert summary.groups["positive"].n == 1


def test_what_nobody_knows_is_neither_positive_nor_negative() -> None:
    summary = summarise([row("d", [QUAY], [], (), None)], threshold=0.0, tokeniser=WORDS)
    assert (summary.positive, summary.unknown, list(summary.groups)) == (None, 1, ["all"])
    assert "for want of gold titles: 1 question\n" in summary.text()
    beside = summarise([FOUND, NOT_FOUND, row("d", [QUAY], [], (), None)], threshold=0.0, tokeniser=WORDS)
    assert (beside.positive, beside.unknown, beside.n) == (0.5, 1, 3), "a share of those where it is known"
    assert "positive: 50.0 % of 2 questions" in beside.text()


def test_the_table() -> None:
    text = summarise([FOUND, NOT_FOUND, NOTHING], threshold=0.5, tokeniser=WORDS).text()
    assert (
        text
        == """\
questions     context  empty  precision  not empty  by characters  tokens  of FULL
----------------------------------------------------------------------------------
all (3)       FULL      33.3        5.1        7.7           18.4    13.0    100 %
              PSG       66.7        7.4       22.2           10.1     9.0     69 %
              SILVER    66.7       16.7       50.0           20.6     6.3     49 %
positive (1)  FULL       0.0       15.4       15.4           20.3    25.0    100 %
              PSG        0.0       22.2       22.2           30.2    19.0     76 %
              SILVER     0.0       50.0       50.0           61.9    11.0     44 %
negative (2)  FULL      50.0        0.0        0.0           17.5     7.0    100 %
              PSG      100.0        0.0        0.0            0.0     4.0     57 %
              SILVER   100.0        0.0        0.0            0.0     4.0     57 %

positive: 33.3 % of 3 questions, where the passages support the output
without any passage, their contexts empty: 1 question
precision: words of the context that are the output's, in %; an empty context has 0
by characters: the same of characters, as the paper's released code counts
tokens: question and context, mean; words
PSG and SILVER read the answer: upper bounds
"""
    )

"""Extractive filters: which sentences or passages stay, in which order, with which places, and what is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isle import PASSAGES, QUESTION

from blendfilter.errors import BadArgument
from blendfilter.filters.extractive import FullFilter, PassageFilter, SentenceFilter
from blendfilter.records import Passage
from blendfilter.text import sentences

FIVE = list(PASSAGES)


def filtered(filter: Any, passages: Sequence[Any] = FIVE, question: str = QUESTION) -> dspy.Prediction:
    """No model is connected: an extractive filter asks none."""
    return asyncio.run(filter.acall(question=question, passages=list(passages)))


class TestWorkedExample:
    """BM25 (k1 = 0.9, b = 0.4) over three sentences without titles, by hand.

    Question "red boat". After stop words and stemming the sentences are red boat sail, red hous stood, boat boat:
    of 3, 3 and 2 terms, 8/3 on average. Both words stand in two of three: idf = ln(1 + 1.5 / 2.5) = ln 1.6 = 0.470004.
    A term once in 3: 1 / (1 + 0.9 (0.6 + 0.4 * 9/8)) = 1 / 1.945.
    A term twice in 2: 2 / (2 + 0.9 (0.6 + 0.4 * 6/8)) = 2 / 2.81.

    ====================  =====================  ========
    The red boat sailed.  ln 1.6 (2 / 1.945)     0.4833
    A red house stood.    ln 1.6 (1 / 1.945)     0.2416
    The boat, the boat!   ln 1.6 (2 / 2.81)      0.3345
    ====================  =====================  ========
    """

    PASSAGES = (
        Passage("a", "", "The red boat sailed. A red house stood.", 2.0),
        Passage("b", "", "The boat, the boat!", 1.0),
    )

    def test_the_scores(self) -> None:
        said = filtered(SentenceFilter(n=3), self.PASSAGES, "red boat")
        assert said.reason.splitlines() == [
            "0.4833 in knowledge 0: The red boat sailed.",
            "0.2416 in knowledge 0: A red house stood.",
            "0.3345 in knowledge 1: The boat, the boat!",
        ]

    @pytest.mark.parametrize(
        ("n", "kept"),
        [
            (1, [("a", "The red boat sailed.")]),
            (2, [("a", "The red boat sailed."), ("b", "The boat, the boat!")]),
            (3, [("a", "The red boat sailed. A red house stood."), ("b", "The boat, the boat!")]),
            (9, [("a", "The red boat sailed. A red house stood."), ("b", "The boat, the boat!")]),
        ],
    )
    def test_the_best_stay(self, n: int, kept: list[tuple[str, str]]) -> None:
        said = filtered(SentenceFilter(n=n), self.PASSAGES, "red boat")
        assert [(passage.id, passage.text) for passage in said.kept] == kept
        assert said.status == f"kept {min(n, 3)} of 3"
        assert said.flags == {}

    def test_the_passages_as_wholes(self) -> None:
        """Of 6 and 2 terms, 4 on average: red stands in one passage, idf ln 2; boat in both, idf ln 1.2.

        The first: ln 2 * 2 / (2 + 0.9 (0.6 + 0.4 * 6/4)) + ln 1.2 * 1 / (1 + 1.08) = 0.450096 + 0.087655.
        The second: ln 1.2 * 2 / (2 + 0.9 (0.6 + 0.4 * 2/4)) = 0.134060.
        """
        said = filtered(PassageFilter(n=1), self.PASSAGES, "red boat")
        assert said.kept == [self.PASSAGES[0]]
        assert said.reason.splitlines() == ["knowledge 0: 0.5378", "knowledge 1: 0.1341"]
        assert said.status == "kept 1 of 2"


class TestSentences:
    def test_the_title_is_shown_and_never_kept(self) -> None:
        seen: list[tuple[str, list[str]]] = []

        def remember(question: str, texts: Sequence[str]) -> list[float]:
            seen.append((question, list(texts)))
            return [0.0] * len(texts)

        said = filtered(SentenceFilter(n=9, by=remember), [FIVE[0], Passage("x", " ", "No\ntitle.")])
        assert seen == [
            (
                QUESTION,
                [
                    "Tolm Harbour | Tolm Harbour is the only port of Quillmere.",
                    "Tolm Harbour | Skerry Light stands beside it.",
                    "No title.",
                ],
            )
        ]
        assert [passage.text for passage in said.kept] == [FIVE[0].text, "No\ntitle."]

    def test_ties_go_to_the_earlier(self) -> None:
        said = filtered(SentenceFilter(n=3, by=lambda question, texts: [1.0] * len(texts)))
        assert [[span.text for span in kept.spans] for kept in said.kept] == [
            ["Tolm Harbour is the only port of Quillmere.", "Skerry Light stands beside it."],
            ["Skerry Light is a lighthouse of 1884."],
        ]

    @pytest.mark.parametrize(
        ("passages", "status"),
        [([], "empty"), ([Passage("a", "Title", "")], "kept 0 of 0"), ([Passage("a", "", " \n ")], "kept 0 of 0")],
    )
    def test_nothing_to_keep(self, passages: list[Passage], status: str) -> None:
        said = filtered(SentenceFilter(), passages)
        assert (said.kept, said.status, said.reason, said.flags) == ([], status, "", {})

    @given(
        texts=st.lists(st.text(st.sampled_from("ab .!?\n’é🙂"), max_size=60), max_size=4),
        n=st.integers(1, 5),
        question=st.text(max_size=20),
    )
    def test_what_is_kept_is_verbatim_and_at_most_n(self, texts: list[str], n: int, question: str) -> None:
        passages = [Passage(str(i), "T", text) for i, text in enumerate(texts)]
        said = filtered(SentenceFilter(n=n), passages, question)
        spans = [(kept.source, span) for kept in said.kept for span in kept.spans]
        assert len(spans) == min(n, sum(len(sentences(text)) for text in texts))
        assert all(source.text[span.start : span.end] == span.text for source, span in spans)
        assert all(source in passages for source, _ in spans)
        assert [kept.id for kept in said.kept] == sorted(kept.id for kept in said.kept)


class TestPassages:
    def test_whole_and_in_rank_order(self) -> None:
        said = filtered(PassageFilter(n=2), question="Ada Brennock kept the lighthouse Skerry Light")
        assert said.kept == [FIVE[1], FIVE[3]]
        assert said.status == "kept 2 of 5"
        assert [line.partition(": ")[0] for line in said.reason.splitlines()] == [f"knowledge {i}" for i in range(5)]


def test_full_keeps_all() -> None:
    said = filtered(FullFilter())
    assert (said.kept, said.status, said.reason, said.flags) == (FIVE, "kept 5 of 5", "", {})
    assert filtered(FullFilter(), []).status == "empty"
    assert FullFilter().arguments() == {}


@pytest.mark.parametrize("kind", [PassageFilter, SentenceFilter])
class TestSettings:
    @pytest.mark.parametrize("n", [0, -1])
    def test_at_least_one(self, kind: Any, n: int) -> None:
        with pytest.raises(BadArgument, match=f"n must be at least 1, got {n}"):
            kind(n=n)

    @pytest.mark.parametrize("n", ["2", 1.5, True, None])
    def test_a_whole_number(self, kind: Any, n: Any) -> None:
        with pytest.raises(BadArgument, match="n must be a whole number"):
            kind(n=n)

    def test_arguments(self, kind: Any) -> None:
        assert kind(n=4).arguments() == {"n": 4, "by": "bm25", "model": None}
        assert kind(n=4, by=max).arguments() == {"n": 4, "by": "builtins.max", "model": None}

"""What every method shares: the cleaned question, its record of calls and flags, and the union of passages."""

from __future__ import annotations

import inspect
from typing import Any

import dspy
import pytest
from isle import PASSAGES

from blendfilter.context import note
from blendfilter.filters.extractive import SentenceFilter
from blendfilter.modules.base import FLAGS, Method, union
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.records import Excerpt, Passage


class Echo(Method):
    """Answers with the question, and notes two calls."""

    async def answer(self, question: str) -> dspy.Prediction:
        note("k1", "empty_reply", stage="one")
        note("k2", "cut_reply", stage="two")
        note("k3", "", stage="two")
        return dspy.Prediction(answer=question, flags={"empty_knowledge": 1})


class TestMethod:
    def test_calls_are_told_in_order_and_flags_counted(self) -> None:
        prediction = Echo()(question="why?")
        assert prediction.calls == [("one", "k1"), ("two", "k2"), ("two", "k3")]
        expected = dict.fromkeys(FLAGS, 0)
        assert prediction.flags == {**expected, "empty_reply": 1, "cut_reply": 1, "empty_knowledge": 1}

    def test_a_method_inside_another_tells_it_what_it_did(self) -> None:
        class Twice(Method):
            async def answer(self, question: str) -> dspy.Prediction:
                note("k0", stage="outer")
                inner = await Echo().acall(question=question)
                return dspy.Prediction(answer=inner.answer)

        assert [key for _, key in Twice()(question="why?").calls] == ["k0", "k1", "k2", "k3"]


A, B, C = PASSAGES[:3]
CAFE = Passage("c", "Caf\u00e9 Noir", "A bar.")


@pytest.mark.parametrize(
    ("lists", "merged"),
    [
        ([], []),
        ([[], []], []),
        ([[A, B], [B, C], [A]], [A, B, C]),
        ([[C], [A, B]], [C, A, B]),
        # by id, though the text differs
        ([[A], [Passage("p0", "Other", "words")]], [A]),
        # by title and text, though the id differs: case and spaces do not matter
        ([[A], [Passage("x", A.title.upper(), f" {A.text}  ")]], [A]),
        # nor does the form of their letters
        ([[CAFE], [Passage("x", "Cafe\u0301 Noir", "A bar.")]], [CAFE]),
        # one title, two texts: both
        ([[A], [Passage("x", A.title, "Another part.")]], [A, Passage("x", A.title, "Another part.")]),
        # within one list too
        ([[A, A, B]], [A, B]),
        # by the second id that a merged passage had, in another list's words
        ([[Passage("1", "T", "x")], [Passage("2", "T", "x")], [Passage("2", "T", "y")]], [Passage("1", "T", "x")]),
    ],
)
def test_union_keeps_the_first_of_each_in_order(lists: list[list[Passage]], merged: list[Passage]) -> None:
    assert union(lists) == merged


class TestUnionOfExcerpts:
    TOWN = Passage("1", "Ormskerry", "A town. It has a pier. It rains.")
    FIRST = Excerpt.of(TOWN, [(0, 7)])
    LAST = Excerpt.of(TOWN, [(23, 32)])

    def test_pieces_of_one_passage_are_joined_at_its_first_place(self) -> None:
        merged = union([[self.LAST, PASSAGES[0]], [self.FIRST]])
        assert [each.id for each in merged] == ["1", PASSAGES[0].id]
        assert merged[0].text == "A town. It rains."

    @pytest.mark.parametrize("order", [0, 1])
    def test_the_whole_passage_stands_for_its_pieces(self, order: int) -> None:
        lists = [[self.FIRST], [self.TOWN]]
        assert union(lists[order:] + lists[:order]) == [self.TOWN]

    def test_equal_lists_are_one_list_that_keeps_its_pieces_apart(self) -> None:
        """Two branches with the same passages share a filter, so that its result comes twice."""
        pieces = [self.LAST, PASSAGES[0], self.FIRST]
        assert union([pieces, list(pieces)]) == pieces

    def test_pieces_of_another_text_under_the_same_id_are_left_out(self) -> None:
        """Their places would lie elsewhere in the first one's text."""
        other = Excerpt.of(Passage("1", "Ormskerry", "Rain. Then a storm came up."), [(6, 27)])
        assert union([[self.FIRST], [other]]) == [self.FIRST]


class TestSignature:
    def test_classes_show_their_arguments(self) -> None:
        assert list(inspect.signature(BlendFilter).parameters)[:4] == ["retriever", "k", "task", "without"]
        assert str(inspect.signature(SentenceFilter)).startswith("(n: 'int | None' = None, *, by: ")

        class Mine(BlendFilter):
            pass

        class Other(BlendFilter):
            def __init__(self, index: Any, *, mine: int = 3) -> None:
                super().__init__(index)

        assert inspect.signature(Mine) == inspect.signature(BlendFilter)
        assert list(inspect.signature(Other).parameters) == ["index", "mine"]

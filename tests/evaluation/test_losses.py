"""Each question falls in exactly one of five places, worked out by hand for every cell of the table."""

from __future__ import annotations

import pytest

from blendfilter.evaluation.rows import loss

GOLD = [("Ormskerry", "Tavenby")]
BOTH = ["Ormskerry", "Tavenby"]


@pytest.mark.parametrize(
    ("correct", "retrieved", "knowledge", "expected"),
    [
        (True, [*BOTH, "Other"], BOTH, "right"),
        (True, BOTH, ["Tavenby"], "right_without_gold"),
        (True, ["Other"], ["Other"], "right_without_gold"),
        (False, BOTH, BOTH, "answered_wrong"),
        (False, BOTH, ["Ormskerry"], "filtered_away"),
        (False, BOTH, [], "filtered_away"),
        (False, ["Tavenby"], ["Ormskerry"], "filtered_away"),  # a method that does not report all its searches
        (False, ["Ormskerry"], ["Ormskerry"], "not_retrieved"),  # one of two hops is not enough
        (True, [], [], "right_without_gold"),  # a method that retrieves nothing
        (False, [], [], "not_retrieved"),
        (False, [], BOTH, "answered_wrong"),  # a method that reports only its knowledge
    ],
)
def test_every_cell(correct: bool, retrieved: list[str], knowledge: list[str], expected: str) -> None:
    assert loss(correct, retrieved, knowledge, GOLD) == expected


def test_one_annotator_in_full_is_enough_but_halves_of_two_are_not() -> None:
    evidence = [("A", "B"), ("C",)]
    assert loss(False, ["C"], ["C"], evidence) == "answered_wrong"
    assert loss(False, ["A", "C"], ["A"], evidence) == "filtered_away"
    assert loss(False, ["A"], ["A"], [("A", "B"), ("C", "D")]) == "not_retrieved"
    assert loss(False, [], [], [(), ("A",)]) == "not_retrieved", "one without titles does not satisfy for the others"


@pytest.mark.parametrize("evidence", [[], [()], [(), ()]])
def test_unknown_gold_cannot_be_missing(evidence: list[tuple[str, ...]]) -> None:
    assert loss(True, [], [], evidence) == "right"
    assert loss(False, ["A"], [], evidence) == "answered_wrong"


def test_titles_are_compared_after_unicode_and_white_space_folding() -> None:
    composed, decomposed = "Caf\u00e9 Merrow", "Cafe\u0301  Merrow "
    assert loss(True, [], [decomposed], [(composed,)]) == "right"

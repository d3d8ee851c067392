"""Each question falls in exactly one of five places, worked out by hand for every cell of the table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.evaluation.rows import LOSSES, loss

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
    ],
)
def test_every_cell(correct: bool, retrieved: list[str], knowledge: list[str], expected: str) -> None:
    assert loss(LossCase(correct, retrieved, knowledge, GOLD)) == expected


def test_one_annotator_in_full_is_enough_but_halves_of_two_are_not() -> None:
    evidence = [("A", "B"), ("C",)]
    assert loss(LossCase(False, ["C"], ["C"], evidence)) == "answered_wrong"
    assert loss(LossCase(False, ["A", "C"], ["A"], evidence)) == "filtered_away"
    assert loss(LossCase(False, ["A"], ["A"], [("A", "B"), ("C", "D")])) == "not_retrieved"


@pytest.mark.parametrize("evidence", [[], [()], [(), ()]])
def test_unknown_gold_cannot_be_missing(evidence: list[tuple[str, ...]]) -> None:
    assert loss(LossCase(True, [], [], evidence)) == "right"
    assert loss(LossCase(False, ["A"], [], evidence)) == "answered_wrong"


def test_an_annotator_without_titles_does_not_satisfy_for_the_others() -> None:
    assert loss(LossCase(False, [], [], [(), ("A",)])) == "not_retrieved"


def test_a_method_that_retrieves_nothing() -> None:
    assert loss(LossCase(True, [], [], GOLD)) == "right_without_gold"
    assert loss(LossCase(False, [], [], GOLD)) == "not_retrieved"


def test_a_method_that_reports_only_its_knowledge() -> None:
    assert loss(LossCase(False, [], BOTH, GOLD)) == "answered_wrong"


def test_titles_are_compared_after_unicode_and_white_space_folding() -> None:
    composed, decomposed = "Caf\u00e9 Merrow", "Cafe\u0301  Merrow "
    assert loss(LossCase(True, [], [decomposed], [(composed,)])) == "right"


def test_tally_names_all_five_in_pipeline_order() -> None:
    cases = [LossCase(True, BOTH, BOTH, GOLD)] * 2 + [LossCase(False, [], [], GOLD)]
    counted = tally(cases)
    assert list(counted) == ["not_retrieved", "filtered_away", "answered_wrong", "right", "right_without_gold"]
    assert list(counted.values()) == [1, 0, 0, 2, 0]
    assert tally([]) == dict.fromkeys(LOSSES, 0)


titles = st.lists(st.sampled_from("ABCD"))
cases = st.builds(LossCase, st.booleans(), titles, titles, st.lists(titles, max_size=3))


@given(st.lists(cases))
def test_each_question_is_counted_once(drawn: list[LossCase]) -> None:
    counted = tally(drawn)
    assert sum(counted.values()) == len(drawn)
    assert counted["right"] + counted["right_without_gold"] == sum(case.correct for case in drawn)

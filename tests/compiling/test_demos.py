"""Demonstrations of a program: each predictor's own fields, and no more tokens together than allowed."""

from __future__ import annotations

import dspy
import pytest

from blendfilter.compiling.demos import DemoCount, hold_to, keep_own_fields, reduced


class Words:
    """A tokeniser whose tokens are words."""

    name = "words"

    def count(self, text: str) -> float:
        return len(text.split())


def asking(*questions: str) -> dspy.Predict:
    """A predictor with a demonstration of each question, whose answer is one word."""
    predictor = dspy.Predict("question -> answer")
    predictor.demos = [dspy.Example(question=each, answer="x") for each in questions]
    return predictor


@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        (None, ["a b", "c", "d e", "f g"]),
        (11, ["a b", "c", "d e", "f g"]),
        (10, ["a b", "c", "d e"]),  # of equals the last one goes
        (7, ["a b", "c"]),
        (4, ["c"]),
        (1, []),
    ],
)
def test_the_longest_goes_first_and_of_equals_the_last(limit: int | None, kept: list[str]) -> None:
    predictor = asking("a b", "c", "d e", "f g")
    assert hold_to(predictor, limit, Words()) == DemoCount(4 - len(kept), len(kept))
    assert [demo.question for demo in predictor.demos] == kept


def test_what_a_model_filled_stays_marked_and_marks_cost_nothing() -> None:
    (filled,) = asking("a b").demos
    kept = reduced({**filled, "augmented": True, "gold": "y"}, asking())
    assert dict(kept) == {"augmented": True, "question": "a b", "answer": "x"}
    predictor = asking()
    predictor.demos = [kept]
    assert hold_to(predictor, 3, Words()).dropped == 0


@pytest.mark.parametrize(
    "lacking", [{"question": "a"}, {"question": "a", "answer": None}, {"question": [], "answer": "x"}]
)
def test_what_fills_no_field_is_left_out(lacking: dict[str, object]) -> None:
    predictor = asking("a b")
    predictor.demos = [*predictor.demos, dspy.Example(**lacking)]
    keep_own_fields(predictor)
    assert [demo.question for demo in predictor.demos] == ["a b"]

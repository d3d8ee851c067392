"""Training and held-back questions out of one set: by a seed, and never the same question in both."""

from __future__ import annotations

import dspy
import pytest

from blendfilter.compiling.examples import drawn, split
from blendfilter.compiling.programs import asked_in, fingerprint, question_digest
from blendfilter.errors import BadArgument, EmptyData
from blendfilter.records import Passage


def asked(*questions: str) -> list[dspy.Example]:
    return [dspy.Example(question=each, answer=str(at)).with_inputs("question") for at, each in enumerate(questions)]


def test_a_question_that_comes_twice_is_taken_once() -> None:
    rows = asked("Who kept it?", "who kept  IT", "Where?", "When?")
    train, valid = split(rows, 2, 1, seed=5)
    assert len({question_digest(asked_in(each)) for each in [*train, *valid]}) == 3
    assert "1" not in {each.answer for each in [*train, *valid]}  # the first spelling stays
    with pytest.raises(EmptyData, match="there are 3 different questions, too few to train on 2 and hold 2 back"):
        split(rows, 2, 2, seed=5)


def test_the_seed_decides() -> None:
    rows = asked(*(f"Question {at}?" for at in range(20)))
    assert split(rows, 5, 5, seed=1) == split(rows, 5, 5, seed=1)
    assert split(rows, 5, 5, seed=1) != split(rows, 5, 5, seed=2)
    assert drawn(rows, 4, 1, "valid") == drawn(rows, 4, 1, "valid")


@pytest.mark.parametrize(("train", "valid", "said"), [(0, 1, "--train is 0"), (1, 0, "--valid is 0")])
def test_sizes_that_are_none(train: int, valid: int, said: str) -> None:
    with pytest.raises(BadArgument, match=said):
        split(asked("a?", "b?"), train, valid, seed=0)


def test_too_few_in_a_file_of_their_own() -> None:
    with pytest.raises(EmptyData, match="there are 2 questions, fewer than --valid 3"):
        drawn(asked("a?", "b?"), 3, 0, "valid")


def test_a_fingerprint_is_of_what_the_rows_hold() -> None:
    def row(text: str) -> list[dspy.Example]:
        return [dspy.Example(question="a?", passages=[Passage("1", "T", text)]).with_inputs("question")]

    assert fingerprint(row("x")) == fingerprint(row("x"))
    assert fingerprint(row("x")) != fingerprint(row("y"))

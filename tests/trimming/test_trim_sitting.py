"""One sitting of a trim: what ends all of it, and what is one question's error."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import dspy
import pytest
from judged import PIER, WHO_OFF, WHO_ON, Village, village

from blendfilter import aio
from blendfilter.errors import BadData, BudgetSpent, CannotWrite, ModelError, ServerRefused
from blendfilter.filters.cdit.judge import Judge
from blendfilter.lm.budget import Budget
from blendfilter.lm.model import connect
from blendfilter.lm.module_lms import with_lms_connected
from blendfilter.records import Passage
from blendfilter.retrieval.bm25 import BM25
from blendfilter.trimming.folder import TrimFolder
from blendfilter.trimming.gathering import trim
from blendfilter.trimming.judging import by_of
from blendfilter.trimming.witnesses import Writer

QUESTIONS = [WHO_OFF, WHO_ON, PIER]


@pytest.fixture
def index() -> BM25:
    return village()


@pytest.fixture
def folder(index: BM25, tmp_path: Path) -> TrimFolder:
    return TrimFolder.create(index, tmp_path / "village.trimmed", k=5, threshold=1)


def test_a_full_disk_ends_it_and_the_same_call_goes_on(
    index: BM25, folder: TrimFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What every question would meet alike is no error of one question: no more calls are paid for."""
    judge, write = Village(), Writer.verdict

    def full(writer: Writer, question: str, passage_id: str, *said: Any) -> None:
        if question == WHO_OFF:
            raise CannotWrite("no room")
        write(writer, question, passage_id, *said)

    monkeypatch.setattr(Writer, "verdict", full)
    with pytest.raises(CannotWrite, match="no room"):
        trim(index, QUESTIONS, Judge(), folder, lm=judge.lm())
    monkeypatch.undo()
    again = Village()
    assert trim(index, QUESTIONS, Judge(), folder, lm=again.lm()).errors == ()
    assert not set(again.asked).intersection(judge.asked)


class Hiding(Judge):
    """A judge of somebody's own that says something else where a call was refused."""

    async def aforward(self, question: str, passage: Passage) -> dspy.Prediction:
        try:
            return await super().aforward(question, passage)
        except BudgetSpent:
            raise ModelError("the model did not answer", kind="bad_request") from None


def test_a_spent_budget_ends_it_though_the_judge_hides_it(index: BM25, folder: TrimFolder) -> None:
    judge = Village()
    with pytest.raises(BudgetSpent, match="4 of 4 calls"):
        trim(index, QUESTIONS, Hiding(), folder, lm=judge.lm(), budget=Budget(calls=4))
    assert judge.calls == 4


def test_of_several_errors_of_a_question_the_one_that_ends_it_all_is_told(index: BM25, folder: TrimFolder) -> None:
    class Failing(Village):
        def reply(self, stage: str, prompt: str) -> Any:
            super().reply(stage, prompt)
            found = [passage.id for passage in index(WHO_ON, 5)]
            last = self.asked[-1][1] == found[-1]
            return ServerRefused("nobody there") if last else ModelError("no", kind="bad_request")

    with pytest.raises(ServerRefused):
        trim(index, [WHO_ON], Judge(), folder, lm=Failing().lm())


def test_who_judges_is_the_model_by_name_and_label_the_judges_own_before_the_callers() -> None:
    callers, own = connect("offline", label="theirs"), connect("offline", label="own")
    assert by_of(Judge(), callers).model == "offline (theirs)"
    assert by_of(Judge(), connect("offline")).model == "offline"
    judge = Judge()
    judge.set_lm(own)
    assert by_of(with_lms_connected(judge), callers).model == "offline (own)"


def test_the_measure_is_the_folders_own(index: BM25, tmp_path: Path) -> None:
    """An overlay gathered by vector is not gone on with by words, which nothing would show later."""
    folder = TrimFolder.create(index, tmp_path / "vectors.trimmed", k=5, similarity="vectors")
    judge = Village()
    with pytest.raises(BadData, match="'vectors' does not go with this index"):
        trim(index, QUESTIONS, Judge(), folder, lm=judge.lm())
    assert judge.calls == 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("raised", [StopIteration, SystemExit, GeneratorExit, asyncio.CancelledError])
@pytest.mark.parametrize("place", ["judge", "index"])
def test_what_code_of_ones_own_raises_is_one_questions_error(
    place: str, raised: type[BaseException], index: BM25, folder: TrimFolder
) -> None:
    class Leaving(Judge):
        async def aforward(self, question: str, passage: Passage) -> dspy.Prediction:
            if place == "judge" and question == WHO_OFF:
                if raised is StopIteration:  # in a coroutine Python makes another error of it
                    return await aio.in_thread(next, iter(()))  # type: ignore[arg-type]
                raise raised
            return await super().aforward(question, passage)

    class Failing(BM25):
        def find(self, queries: Any, k: int) -> Any:
            if place == "index" and WHO_OFF in queries:
                raise raised
            return super().find(queries, k)

    index.__class__ = Failing
    done = trim(index, QUESTIONS, Leaving(), folder, lm=Village().lm())
    assert [each.question for each in done.errors] == [WHO_OFF]
    assert raised.__name__ in done.errors[0].why
    assert done.judged == 2

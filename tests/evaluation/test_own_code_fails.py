"""Whatever code of a user's own raises is that question's error: no run hangs, and no other question is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy35 import OF_34
from small_world import Command, CountingEngine, here, sample_cache  # noqa: F401 - fixtures

from blendfilter import BM25, Direct, Run, aio, evaluate
from blendfilter.tasks import Questions

pytestmark = pytest.mark.timeout(120)
"""What these guard against is waiting for ever."""
BAD = 1
"""The place of the question that the code fails on."""


class Abort(BaseException):
    """An error of the user's own that is no Exception."""


class Unreadable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


RAISED: dict[str, tuple[Callable[[], BaseException], str, str]] = {
    "StopIteration": (StopIteration, "StopIteration", "give next(…) a default"),
    "sys.exit": (lambda: SystemExit(3), "SystemExit", "SystemExit: 3; raise an ordinary error"),
    "GeneratorExit": (GeneratorExit, "GeneratorExit", "the code raised GeneratorExit"),
    "cancelled": (asyncio.CancelledError, "CancelledError", "the code raised CancelledError"),
    "no words": (Unreadable, "Unreadable", "(its message cannot be read: ValueError)"),
    "long": (lambda: ValueError("x" * 10_000_000), "ValueError", "x… (10,000,000 characters)"),
    "no Exception": (lambda: Abort("enough"), "Abort", "enough"),
}
"""What is raised, the kind of the row's error, and what its message has."""


def failing(raised: Callable[[], BaseException], questions: Questions) -> Callable[[Any], None]:
    """Raises where the bad question is in what it is given."""
    bad = questions[BAD].question

    def check(text: Any) -> None:
        if bad in str(text):
            raise raised()

    return check


class Waiting(dspy.Module):
    def __init__(self, check: Callable[[str], None]) -> None:
        super().__init__()
        self.check = check

    def forward(self, question: str) -> dspy.Prediction:
        self.check(question)
        return dspy.Prediction(answer="yes")


class InATask(Waiting):
    """Its error comes out of a task of its own, past the code that awaits it."""

    async def aforward(self, question: str) -> dspy.Prediction:
        async def check() -> None:
            self.check(question)

        await asyncio.ensure_future(check())
        return dspy.Prediction(answer="yes")


class Answering(Waiting):
    """Its answer fails when it is read."""

    def forward(self, question: str) -> dspy.Prediction:
        class Answer:
            def __str__(answer) -> str:  # noqa: N805
                self.check(question)
                return "yes"

        return dspy.Prediction(answer=Answer())


def evaluated(method: dspy.Module, questions: Questions, run: Path, lm: Any = "offline") -> Run:
    return evaluate(method, questions, lm=lm, run=run, progress=False)


def error_of(run: Run) -> dict[str, Any]:
    """The bad question's error; no other question has one."""
    assert [row["error"] is not None for row in run.rows] == [at == BAD for at in range(len(run.rows))]
    error: dict[str, Any] = run.rows[BAD]["error"]
    return error


@pytest.mark.parametrize("form", [Waiting, InATask, Answering])
@pytest.mark.parametrize("raised", RAISED)
def test_what_a_method_raises_is_its_questions_error(
    raised: str, form: type[Waiting], questions: Questions, tmp_path: Path
) -> None:
    make, kind, message = RAISED[raised]
    if raised == "StopIteration" and form is not Waiting:
        kind, message = "RuntimeError", "coroutine raised StopIteration"  # Python's own words for it
    error = error_of(evaluated(form(failing(make, questions)), questions[:3], tmp_path / "run"))
    assert error["kind"] == kind
    assert message in error["message"]
    assert len(error["message"]) < 3_000


class Model(dspy.BaseLM):
    def __init__(self, check: Callable[[Any], None]) -> None:
        super().__init__(model="own")
        self.check = check

    def forward(self, prompt: Any = None, messages: Any = None, **_: Any) -> Any:
        from openai.types.chat import ChatCompletion

        self.check(messages or prompt)
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}
        head = {"id": "x", "object": "chat.completion", "created": 0, "model": "own"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return ChatCompletion.model_validate({**head, "choices": [choice], "usage": usage})


@OF_34
@pytest.mark.parametrize("raised", ["StopIteration", "sys.exit", "cancelled", "no words", "no Exception"])
def test_what_a_model_of_ones_own_raises_is_its_questions_error(
    raised: str, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    lm = Model(failing(RAISED[raised][0], questions))
    assert error_of(evaluated(Direct(index), questions[:3], tmp_path / "run", lm))["message"]


@pytest.mark.parametrize("form", [Waiting, InATask])
def test_a_keyboard_interrupt_in_a_method_ends_the_run_as_ctrl_c_does(
    form: type[Waiting], questions: Questions, tmp_path: Path
) -> None:
    method = form(failing(KeyboardInterrupt, questions))
    with pytest.raises(KeyboardInterrupt):
        evaluated(method, questions, tmp_path / "run")
    method.check = lambda question: None
    again = evaluated(method, questions, tmp_path / "run")
    assert again.errors == 0
    assert aio.loop().is_running()

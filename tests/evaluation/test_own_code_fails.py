"""Whatever code of a user's own raises is that question's error: no run hangs, and no other question is lost."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest
from small_world import Command, CountingEngine, here, sample_cache  # noqa: F401 - fixtures

from blendfilter import BM25, BlendFilter, Direct, Run, aio, evaluate
from blendfilter.filters.extractive import PassageFilter
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


class NoText(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307


class Unmade(Exception):
    """Cannot be made again from its arguments."""

    def __init__(self, town: str, number: int) -> None:
        super().__init__(f"{town} has no number {number}")


def of_itself() -> Exception:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__ = first.__context__ = second
    second.__cause__ = second.__context__ = first
    return first


RAISED: dict[str, tuple[Callable[[], BaseException], str, str]] = {
    "StopIteration": (StopIteration, "StopIteration", "give next(…) a default"),
    "StopAsyncIteration": (lambda: StopAsyncIteration("over"), "StopAsyncIteration", "over"),
    "GeneratorExit": (GeneratorExit, "GeneratorExit", "the code raised GeneratorExit"),
    "sys.exit": (lambda: SystemExit(3), "SystemExit", "SystemExit: 3; raise an ordinary error"),
    "cancelled": (asyncio.CancelledError, "CancelledError", "the code raised CancelledError"),
    "a cancelled future": (concurrent.futures.CancelledError, "CancelledError", "CancelledError"),
    "timeout": (lambda: TimeoutError("too slow"), "TimeoutError", "too slow"),
    "no words": (Unreadable, "Unreadable", "(its message cannot be read: ValueError)"),
    "no text": (NoText, "NoText", "(its message cannot be read: TypeError)"),
    "long": (lambda: ValueError("x" * 10_000_000), "ValueError", "x… (10,000,000 characters)"),
    "of itself": (of_itself, "ValueError", "first"),
    "several": (lambda: ExceptionGroup("several", [ValueError("1")]), "ExceptionGroup", "several"),
    "several exits": (lambda: BaseExceptionGroup("exits", [SystemExit(1)]), "BaseExceptionGroup", "exits"),
    "recursion": (lambda: RecursionError("too deep"), "RecursionError", "too deep"),
    "memory": (lambda: MemoryError("full"), "MemoryError", "full"),
    "unmade": (lambda: Unmade("Fell", 3), "Unmade", "Fell has no number 3"),
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


class Awaited(Waiting):
    async def aforward(self, question: str) -> dspy.Prediction:
        await asyncio.sleep(0)
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


@pytest.mark.parametrize("form", [Waiting, Awaited, InATask, Answering])
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


class Filtering(dspy.Module):
    def __init__(self, check: Callable[[str], None]) -> None:
        super().__init__()
        self.check = check

    def forward(self, question: str, passages: Any) -> Any:
        self.check(question)
        return passages


class FilteringAwaited(Filtering):
    async def aforward(self, question: str, passages: Any) -> Any:
        self.check(question)
        return passages


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


class ModelAwaited(Model):
    async def aforward(self, prompt: Any = None, messages: Any = None, **more: Any) -> Any:
        return self.forward(prompt, messages, **more)


class Inside(dspy.Module):
    """A synchronous method around one of ours."""

    def __init__(self, inner: dspy.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, question: str) -> dspy.Prediction:
        return self.inner(question=question)


class Parallel(dspy.Module):
    """DSPy's own threads inside a method."""

    def __init__(self, check: Callable[[str], None]) -> None:
        super().__init__()
        self.part = Waiting(check)

    def forward(self, question: str) -> dspy.Prediction:
        parts = [(self.part, {"question": question}), (self.part, {"question": "another"})]
        first, _ = dspy.Parallel(num_threads=2, disable_progress_bar=True)(parts)
        return first


def searching(check: Callable[[str], None]) -> Callable[[str, int], list[str]]:
    def search(query: str, k: int) -> list[str]:
        check(query)
        return ["Fell | A hill."]

    return search


def scoring(check: Callable[[str], None]) -> Callable[[str, Any], list[float]]:
    def score(question: str, texts: Any) -> list[float]:
        check(question)
        return [1.0] * len(texts)

    return score


PLACES: dict[str, Callable[[BM25, Callable[[Any], None]], dspy.Module]] = {
    "retriever": lambda index, check: BlendFilter(searching(check)),
    "retriever of a synchronous method": lambda index, check: Inside(Direct(searching(check))),
    "filter": lambda index, check: Direct(index, filter=Filtering(check)),
    "awaited filter": lambda index, check: Direct(index, filter=FilteringAwaited(check)),
    "scorer": lambda index, check: Direct(index, filter=PassageFilter(1, by=scoring(check))),
    "dspy.Parallel": lambda index, check: Parallel(check),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("raised", ["sys.exit", "cancelled", "no Exception"])
def test_what_a_part_of_a_method_raises_is_its_questions_error(
    raised: str, place: str, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    make, kind, message = RAISED[raised]
    method = PLACES[place](index, failing(make, questions))
    error = error_of(evaluated(method, questions[:3], tmp_path / "run"))
    assert error["kind"] == kind
    assert message in error["message"]


@pytest.mark.parametrize("place", [place for place in PLACES if place not in ("awaited filter", "dspy.Parallel")])
def test_a_next_without_a_match_in_a_part_of_a_method_is_no_hang(
    place: str, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    method = PLACES[place](index, failing(StopIteration, questions))
    assert error_of(evaluated(method, questions[:3], tmp_path / "run"))["kind"] == "StopIteration"


@pytest.mark.parametrize("form", [Model, ModelAwaited])
@pytest.mark.parametrize("raised", ["StopIteration", "sys.exit", "cancelled", "no words", "of itself", "no Exception"])
def test_what_a_model_of_ones_own_raises_is_its_questions_error(
    raised: str, form: type[Model], index: BM25, questions: Questions, tmp_path: Path
) -> None:
    lm = form(failing(RAISED[raised][0], questions))
    assert error_of(evaluated(Direct(index), questions[:3], tmp_path / "run", lm))["message"]


@pytest.mark.parametrize("form", [Waiting, Awaited, InATask])
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


def test_a_question_that_failed_so_is_asked_again(index: BM25, questions: Questions, tmp_path: Path) -> None:
    engine = CountingEngine()
    keeping = Filtering(failing(StopIteration, questions))
    method = Direct(index, filter=keeping)
    error_of(evaluate(method, questions[:3], lm=engine.lm(), run=tmp_path / "run", progress=False))
    keeping.check = lambda question: None
    again = evaluate(method, questions[:3], lm=engine.lm(), run=tmp_path / "run", progress=False)
    assert (again.errors, engine.calls) == (0, 3)


OWN = """
import sys
import dspy

class Leaving(dspy.Module):
    def forward(self, question):
        sys.exit("no town")

class Stopping(dspy.Module):
    def forward(self, question):
        raise KeyboardInterrupt
"""


def test_the_command_line_ends_with_one_line_for_both(
    here: Path,  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "leaves_early.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(here))
    words = ("eval", "hotpotqa", "--data", "sample", "--lm", "offline", "--limit", 2)
    result = Command(monkeypatch, capsys)(*words, "--method", "leaves_early:Leaving", "--run", "left")
    assert (result.code, "2 of 2 questions ended in an error" in result.error) == (1, True)
    assert "SystemExit: the code raised SystemExit: no town" in " ".join(result.out.split())
    result = Command(monkeypatch, capsys)(*words, "--method", "leaves_early:Stopping", "--run", "stopped")
    assert (result.code, result.error) == (130, "blendfilter: stopped; the same command goes on where it was")


def test_a_module_that_exits_when_it_is_imported_is_one_line(
    here: Path,  # noqa: F811 - the fixture
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (here / "leaves_at_once.py").write_text("import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(str(here))
    words = ("eval", "hotpotqa", "--data", "sample", "--lm", "offline", "--method", "leaves_at_once:Own")
    result = Command(monkeypatch, capsys)(*words)
    assert result.code == 2
    assert "module 'leaves_at_once' cannot be imported (SystemExit: 0)" in result.error

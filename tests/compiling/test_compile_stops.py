"""What ends a compilation, though DSPy's optimisers swallow every exception; and what scores 0."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any

import dspy
import pytest
from compiled import OPTIMIZERS, anything, compile_small, sample_questions, saved, silver_rows
from dspy import lm15
from scripted import ScriptedLM
from small_world import CountingEngine, comes_of_itself, journaled

from blendfilter.compiling.compile import compile_program
from blendfilter.compiling.silver import silver_examples
from blendfilter.compiling.stopping import Stopped, Watch
from blendfilter.errors import BadArgument, BudgetSpent, CodeFailed, IndexChanged, ModelError, WorkFailed
from blendfilter.filters.filco import FilCoFilter
from blendfilter.lm.budget import Budget


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_fault_that_may_pass_ends_it_and_the_same_again_goes_on(optimizer: str, tmp_path: Path) -> None:
    whole = CountingEngine()
    expected = saved(compile_small("filco", optimizer, whole.lm(), tmp_path / "whole"), tmp_path / "a.json")
    engine = CountingEngine()

    async def fail(_stage: str, _prompt: str) -> None:
        if engine.calls >= whole.calls - 1:
            raise lm15.ServerError("gone")

    engine.before = fail
    with pytest.raises(ModelError, match="gone"):
        compile_small("filco", optimizer, engine.lm(), tmp_path / "run", concurrency=1)
    assert engine.calls == whole.calls - 1  # nobody was asked after it
    rest = CountingEngine()
    again = saved(compile_small("filco", optimizer, rest.lm(), tmp_path / "run"), tmp_path / "b.json")
    assert rest.calls == 2
    assert again == expected


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_spent_budget_ends_it_and_more_goes_on(optimizer: str, tmp_path: Path) -> None:
    whole = CountingEngine()
    expected = saved(compile_small("filco", optimizer, whole.lm(), tmp_path / "whole"), tmp_path / "a.json")
    first = CountingEngine()
    with pytest.raises(BudgetSpent):
        compile_small("filco", optimizer, first.lm(), tmp_path / "run", budget=Budget(calls=whole.calls - 2))
    assert first.calls == whole.calls - 2
    rest = CountingEngine()
    done = compile_small("filco", optimizer, rest.lm(), tmp_path / "run", budget=Budget(calls=500))
    assert saved(done, tmp_path / "b.json") == expected
    assert first.calls + rest.calls == whole.calls


def test_a_prompt_too_long_for_the_model_scores_nothing_and_the_rest_goes_on(tmp_path: Path) -> None:
    rows = silver_examples(silver_rows())
    long = rows[4].question

    def reply(stage: str, prompt: str) -> Any:
        return lm15.ContextLengthError("too long") if long in prompt and stage == "helpful" else "0"

    done = compile_program(
        FilCoFilter(), rows[:4], valset=rows[4:6], metric=lambda example, prediction, trace=None: True,
        lm=ScriptedLM(reply), run=tmp_path,
    )  # fmt: skip
    assert (done.recipe.before.value, done.recipe.before.failed) == (0.5, 1)


def test_a_metric_that_fails_is_told_as_that(tmp_path: Path) -> None:
    def broken(example: Any, prediction: Any, trace: Any = None) -> float:
        return float(example.no_such_field)

    with pytest.raises(BadArgument, match=r"the metric failed \(AttributeError: .*no_such_field"):
        compile_small("filco", "bootstrap", CountingEngine().lm(), tmp_path, metric=broken)


class Broken(dspy.Module):
    """A user's module whose code, or whose index, fails."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.reply = dspy.Predict("question -> answer")
        self.error = error

    def forward(self, question: str) -> dspy.Prediction:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (IndexChanged("the index is another one"), IndexChanged, "the index is another one"),
        (ConnectionResetError("gone"), ConnectionResetError, "gone"),
        (KeyError("title"), BadArgument, r"Broken fails on every question \(KeyError: 'title'\): mend it first"),
    ],
)
def test_a_module_that_fails(error: Exception, kind: type[Exception], said: str, tmp_path: Path) -> None:
    rows, engine = sample_questions(), CountingEngine()
    with pytest.raises(kind, match=said):
        compile_program(Broken(error), rows[:3], valset=rows[3:], metric=anything, lm=engine.lm(), run=tmp_path)
    assert engine.calls == 0


@pytest.mark.timeout(120)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("raised", [SystemExit("no town"), asyncio.CancelledError("no town")])
def test_a_module_that_would_end_the_process_ends_the_work_in_one_line(
    raised: BaseException, threads: int, tmp_path: Path
) -> None:
    rows = sample_questions()
    with pytest.raises(CodeFailed, match=f"the code raised {type(raised).__name__}: no town"):
        compile_program(
            Broken(raised), rows[:3], valset=rows[3:], metric=anything, lm="offline", run=tmp_path, concurrency=threads
        )


@pytest.mark.timeout(120)
@pytest.mark.parametrize("raised", [SystemExit("no town"), StopIteration("no town"), asyncio.CancelledError("no town")])
def test_a_metric_that_would_end_the_process_is_told_as_one_that_fails(raised: BaseException, tmp_path: Path) -> None:
    def leaving(example: Any, prediction: Any, trace: Any = None) -> float:
        raise raised

    with pytest.raises(BadArgument, match=rf"the metric failed \({type(raised).__name__}: no town\)"):
        compile_small("filco", "bootstrap", CountingEngine().lm(), tmp_path, metric=leaving)


def test_what_ended_it_does_not_come_of_itself(tmp_path: Path) -> None:
    rows, engine = sample_questions(), CountingEngine()

    async def fail(_stage: str, _prompt: str) -> None:
        raise lm15.ServerError("gone")

    engine.before = fail
    for program in (Broken(IndexChanged("another one")), dspy.Predict("question -> answer")):
        run = tmp_path / type(program).__name__
        with pytest.raises((IndexChanged, ModelError)) as ended:
            compile_program(program, rows[:3], valset=rows[3:], metric=anything, lm=engine.lm(), run=run)
        assert not comes_of_itself(ended.value)


def test_what_a_part_fails_in_the_whole_may_have_an_answer_to(tmp_path: Path) -> None:
    class Careful(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.reply = Broken(IndexChanged("another one")), dspy.Predict("question -> answer")

        def forward(self, question: str) -> dspy.Prediction:
            try:
                return self.first(question=question)
            except IndexChanged:
                return self.reply(question=question)

    rows = sample_questions()
    done = compile_program(Careful(), rows[:3], valset=rows[3:], metric=anything, lm="offline", run=tmp_path)
    assert (done.recipe.before.n, done.recipe.before.failed) == (3, 0)


def test_the_first_error_is_what_is_told() -> None:
    watch = Watch(dspy.Module)
    watch.stop(ModelError("first"))
    assert str(watch.stop(ModelError("second"))) == "first"
    with pytest.raises(Stopped, match="first"):
        watch.check()


def test_a_proposer_that_does_not_write_the_form(tmp_path: Path) -> None:
    def reply(prompt: str) -> str:
        return "just so" if "Respond with" in prompt else "0"

    with pytest.raises(WorkFailed, match=r"counting proposes nothing: .* asks it for proposed_instruction, cannot be"):
        compile_small("filco", "mipro", CountingEngine(reply=reply).lm(), tmp_path)


def test_nothing_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for optimizer in OPTIMIZERS:
        compile_small("filco", optimizer, "offline", tmp_path / optimizer)
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", "")
    assert all(journaled(tmp_path / optimizer) for optimizer in OPTIMIZERS)


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[str, int, int | None]] = []
    compile_small("filco", "bootstrap", "offline", tmp_path, progress=lambda *each: told.append(each))
    assert told[0] == ("score before", 0, 2)
    assert ("score before", 2, 2) in told
    assert told[-1] == ("score after", 2, 2)
    assert any(phase == "optimising" and done for phase, done, _ in told)


@pytest.mark.parametrize("optimizer", ["mipro", "gepa"])
def test_a_proposer_that_cannot_be_asked_ends_it_too(optimizer: str, tmp_path: Path) -> None:
    """MIPROv2 would go on without what it wanted to know, and find another program than the next sitting."""
    whole = CountingEngine()
    expected = saved(compile_small("filco", optimizer, whole.lm(), tmp_path / "whole"), tmp_path / "a.json")
    engine = CountingEngine()

    async def fail(_stage: str, prompt: str) -> None:
        if "Respond with" in prompt:
            raise lm15.ServerError("gone")

    engine.before = fail
    with pytest.raises(ModelError, match="gone"):
        compile_small("filco", optimizer, engine.lm(), tmp_path / "run", concurrency=1)
    assert engine.calls <= whole.calls
    rest = CountingEngine()
    assert saved(compile_small("filco", optimizer, rest.lm(), tmp_path / "run"), tmp_path / "b.json") == expected
    assert engine.calls - 1 + rest.calls == whole.calls


def test_calls_that_are_out_when_it_ends_are_kept(tmp_path: Path) -> None:
    engine = CountingEngine()

    async def one_fails(_stage: str, _prompt: str) -> None:
        if engine.calls == 2:
            raise lm15.ServerError("gone")
        await asyncio.sleep(0.2)

    engine.before = one_fails
    with pytest.raises(ModelError, match="gone"):
        compile_small("filco", "bootstrap", engine.lm(), tmp_path, concurrency=2)
    assert engine.calls == 2
    assert len([record for record in journaled(tmp_path) if not record["error"]]) == 1


@pytest.mark.timeout(120)
def test_ctrl_c_waits_for_no_reply(tmp_path: Path) -> None:
    """Threads of DSPy's wait for the model, and the process would wait for them."""
    engine, cancelled = CountingEngine(), threading.Event()

    async def never(_stage: str, _prompt: str) -> None:
        if engine.calls == 2:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    engine.before = never
    before = {*threading.enumerate()}
    with pytest.raises(KeyboardInterrupt):
        compile_small("filco", "bootstrap", engine.lm(), tmp_path, concurrency=2)
    assert cancelled.wait(60)
    for thread in {*threading.enumerate()} - before:
        if not thread.daemon:
            thread.join(60)
            assert not thread.is_alive()

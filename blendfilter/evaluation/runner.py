"""The runner: a method over a question set, many questions at once, every call journaled; resumable and replayable.

A question's calls go out oldest question first through one gate, so that `concurrency` bounds the calls in flight in
the whole run. With `repeats` every question is answered so many times, because servers are not deterministic even at
temperature 0. The first answer's calls are those of a run without repeats; searches are made once. A run may be given
more repeats later, never fewer.

A failed run is no low score: `evaluate` warns of questions that ended in an error, and raises where all of them ended
in the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import warnings
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ParamSpec

import dspy

from blendfilter import aio
from blendfilter.context import asker
from blendfilter.errors import (
    BadArgument,
    EmptyData,
    RunFailed,
    check_count,
    interruptible,
)
from blendfilter.evaluation.checks import (
    check_gold_titles,
    check_leak,
    check_prompts,
    check_reader,
)
from blendfilter.evaluation.control import steered
from blendfilter.evaluation.ledger import measured, own_prices
from blendfilter.evaluation.own_program import ANSWER, Inputs, ProgramCall, as_program
from blendfilter.evaluation.rows import Json, failures, shared_failure, slim
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_folder import (
    PREDICTIONS,
    ROW_FIELDS,
    RUN,
    RunFolder,
    iterate_rows,
    write_json,
)
from blendfilter.evaluation.run_loop import RunLoop, RunProgress
from blendfilter.evaluation.run_settings import (
    retrievers_of,
    settings_of,
    versions,
    without_none,
)
from blendfilter.files import AnyPath
from blendfilter.filters.base import with_filter_lm
from blendfilter.lm.batches import Batch, Batches
from blendfilter.lm.budget import Budget
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.retrieval.reranked import Reranked
from blendfilter.run_context import CONCURRENCY, AnyLM, RunContext
from blendfilter.tasks.base import MetricFunction, Questions, check_functions

logger = logging.getLogger(__name__)
MOST_THREADS = 1000
"""Synchronous methods under work at once, where a run's calls go out in batches."""
OFFLINE_NOTE = (
    "no model was named: the offline reader answers, which shows the pipeline, not its quality"
)
STOPPED = "stopped; with a folder (run='DIR') it would go on where it was"

P = ParamSpec("P")


def _waiting(work: Callable[P, Coroutine[Any, Any, Run]]) -> Callable[P, Run]:
    """The coroutine function as one that waits for its run to be done, inside a notebook too."""

    @functools.wraps(work)
    def evaluate(*args: P.args, **options: P.kwargs) -> Run:
        resumes = options.get("run") is not None
        with interruptible() if resumes else interruptible(STOPPED):
            done = aio.run(work(*args, **options), "evaluate", "await aevaluate(…)")
        return _concluded(done)

    return evaluate


def _concluded(run: Run) -> Run:
    """`run`, as `evaluate` returns it. Warns of errors, with the place that called `evaluate`. Raises: RunFailed."""
    if run.errors:
        rows = [*map(slim, iterate_rows(run.folder / PREDICTIONS))]
        move = f"kept in {run.folder}, where the same evaluation asks them again"
        if (failure := shared_failure(rows, run.repeats)) is not None:
            kind, words = failure
            raise RunFailed(f"{words}; {move}", kind=kind, folder=str(run.folder))
        warnings.warn(f"{failures(rows, run.repeats)}; {move}", stacklevel=3)
    return run


@_waiting
async def evaluate(
    method: dspy.Module,
    questions: Questions | Sequence[Any],
    *,
    lm: AnyLM | None = None,
    filter_lm: AnyLM | None = None,
    run: AnyPath | None = None,
    concurrency: int = CONCURRENCY,
    reuse: AnyPath | Iterable[AnyPath] = (),
    replay: bool = False,
    repeats: int = 1,
    budget: Budget | None = None,
    max_retries: int | None = None,
    batch: Batch | None = None,
    seed: int = 0,
    progress: RunProgress | bool = True,
    name: str | None = None,
    metrics: Sequence[str | MetricFunction] | None = None,
    inputs: Inputs | None = None,
    answer: str = ANSWER,
) -> Run:
    """Evaluate `method` on `questions`. Waits for the run to be done; inside a notebook too.

    Args:
        method: any `dspy.Module` that takes `question` and returns a prediction with `answer` (and `knowledge`,
            `queries`, `branches` if it has some), or a plain function from a question to an answer.
        questions: what `load` gives, or rows `load("qa", rows)` would take: dictionaries, `dspy.Example`s, a frame.
        lm: a model (`connect`, any `dspy.LM`, or a name); DSPy's configured one by default, else the offline reader.
        filter_lm: another model that answers the calls of the method's filter (its topic, checks and ids; FilCo's
            sentences; CDIT's verdicts), within the same limits. None: `lm`.
        run: the run's folder; a temporary one by default. The same folder and settings again go on where it stopped.
        concurrency: model calls in flight in the whole run.
        reuse: other runs or their folders (or one) whose journaled calls may be used.
        replay: answer from the run's journal alone; a call that it lacks is an error.
        repeats: how many times each question is answered; a finished run may be given more.
        budget: what the run may take in all its sessions (`Budget(tokens=2_000_000)`); it is no setting of the run, so
            the next session may be given more.
        max_retries: attempts beyond the first that this session's calls may make together; by default a hundred, four
            for each call in flight, and one for each call that succeeds (`blendfilter.lm.attempts.RetryBudget`).
        batch: the calls are gathered and answered in batches, by the provider or through files (`Batch`); then every
            question is under work at once, `concurrency` and limits a minute do not count, and a call costs what the
            provider asks in a batch. It is no setting of the run: it may begin in one way and go on in the other.
        seed: of the bootstrap intervals.
        progress: a `RunProgress`, or False for none.
        name: what the run's record calls the method.
        metrics: in place of the task's own, the leading one first: names, or functions (example, prediction,
            trace=None) as DSPy has them, each recorded under its name. Another function is another run. Where all are
            functions, rows may lack a right answer.
        inputs: what the method is called with in place of `question`: the field of a row for each of its inputs,
            ``{"claim": "question"}``, or a list of fields that are called alike. None: what `dspy.Example`s say.
        answer: the field of its predictions that is the answer; of rows too, where they have no answer otherwise.

    Returns:
        The finished `Run`. One `UserWarning` says how many of its questions ended in an error, if any did.

    Raises:
        RunFailed: all questions ended in an error of one kind; the run's folder is kept, to be resumed.
        RunMismatch: the folder has a run with other settings. RunLocked: another process writes there. Leak: a question
        is also a demonstration. BudgetSpent: the limit is reached. BatchWritten: calls wait in
        batch files for their answers. ServerRefused, ReplayMiss: see `blendfilter.errors`.
    """
    method = as_program(method)
    call = ProgramCall.of(inputs, answer, questions)
    questions = as_questions(questions, call, metrics)
    # else it would only fail after calls were paid for
    repeats = check_count("repeats", repeats)
    seed = check_count("seed", seed, 0)
    concurrency = check_count("concurrency", concurrency)
    _check(method, questions, call)
    if lm is None and dspy.settings.lm is None:
        logger.warning(OFFLINE_NOTE)
    judge = None if filter_lm is None else connect(filter_lm)
    context = RunContext(
        lm,
        method if judge is None else with_filter_lm(method, judge),
        concurrency=concurrency,
        budget=budget,
        max_retries=max_retries,
        replay=replay,
    )
    assert context.module is not None
    method, model = context.module, context.model
    check_leak(method, questions, [model])
    check_reader(method, model)
    settings = settings_of(
        method, questions, model, filter_lm=judge, seed=seed, name=name, repeats=repeats
    )
    settings["method"] |= call.settings()
    folder = RunFolder(run, settings, replay=replay)
    folder.check()
    if isinstance(progress, bool):
        progress = RunProgress(questions.task.metrics, context.gate, progress)
    notes = _notes(method, model, judge, questions, concurrency, budget)
    loop = RunLoop(method, questions, context, progress, repeats, call)
    return await _made(folder, loop, reuse, batch, notes)


def _check(method: dspy.Module, questions: Questions, call: ProgramCall) -> None:
    """What can be wrong before there is a model."""
    if taken := ROW_FIELDS & questions.task.functions.keys():
        raise BadArgument(
            f"a row of a run has a field '{min(taken)}': call that metric something else"
        )
    check_functions(questions)
    call.check(method, questions)
    check_prompts(method)
    check_gold_titles(method, questions)


async def _made(
    folder: RunFolder,
    loop: RunLoop,
    reuse: AnyPath | Iterable[AnyPath],
    batch: Batch | None,
    notes: Json,
) -> Run:
    """The run in `folder`, with every question of `loop` answered."""
    context, path, replay = loop.context, folder.path, folder.replay
    gathered = None
    window = 2 * context.gate.limit
    if batch is not None and not replay:
        gathered = Batches(batch, context.model, path, loop.progress.tell)
        window = len(loop.slots)
    threads = aio.Threads(min(window, MOST_THREADS), "blendfilter-method")
    async with contextlib.AsyncExitStack() as stack:
        journal = stack.enter_context(folder.opened(reuse))
        if gathered is not None:
            await stack.enter_async_context(gathered.opened(journal))
        stack.enter_context(context.opened(journal, gathered))
        pool = stack.enter_context(threads)
        if not replay:
            record = {"settings": folder.settings, "versions": versions(), "notes": notes}
            write_json(path / RUN, record)
        with folder.stopping(journal, context.purse, len(loop.slots)):
            async with (
                contextlib.nullcontext()
                if replay
                else steered(path, context.gate, context.purse)
            ):
                lines = await loop.lines(path, pool, replay=replay, window=window)
        folder.write_predictions(lines)
        # a long run's rows, which are read back one by one
        del lines
        loop.done.clear()
        folder.write_metrics(measured(path, folder.settings, journal, own_prices(context)))
    return Run(path)


evaluated: Callable[..., Coroutine[Any, Any, Run]] = evaluate.__wrapped__  # type: ignore[attr-defined]
"""The run whatever became of its questions, to be awaited: for callers that state its errors themselves."""


def _awaited(work: Callable[P, Run]) -> Callable[[Any], Callable[P, Coroutine[Any, Any, Run]]]:
    """A decorator: the function has the arguments of `work`."""

    def decorated(function: Any) -> Any:
        function.__signature__ = inspect.signature(work)
        return function

    return decorated


@_awaited(evaluate)
async def aevaluate(*args: Any, **options: Any) -> Run:
    """Evaluate `method` on `questions`, to be awaited on any loop: arguments, result and errors are `evaluate`'s."""
    return _concluded(await asyncio.wrap_future(aio.submit(evaluated(*args, **options))))


def _notes(
    method: dspy.Module,
    lm: ConnectedLM,
    judge: ConnectedLM | None,
    questions: Questions,
    concurrency: int,
    budget: Budget | None,
) -> dict[str, Any]:
    """What `run.json` says of a session that is no setting."""
    reranked = [index for index in retrievers_of(method) if isinstance(index, Reranked)]
    notes = {
        "address": lm.address,
        "concurrency": concurrency,
        "questions": [question.id for question in questions],
        "filter_address": None if judge is None else judge.address,
        "budget": None if budget is None else budget.given(),
        "reranked": [index.info()["settings"] for index in reranked] or None,
        "options": asker().options,
    }
    return without_none(notes)


def as_questions(
    given: Questions | Sequence[Any],
    call: ProgramCall = ProgramCall(),
    metrics: Sequence[str | MetricFunction] | None = None,
) -> Questions:
    """Questions as they are, or of rows as `load("qa", rows)` reads them, scored by `metrics` where they are given.

    Rows of other signatures have the question, and the answer, where `call` says. Raises: BadArgument, EmptyData.
    """
    from blendfilter.tasks.loading import TASKS, load, rows_of

    if isinstance(given, str | Path):
        raise BadArgument(
            f"evaluate wants questions, not a name: pass bf.load(task, '{given}'), task any of {', '.join(TASKS)}"
        )
    if isinstance(given, Questions):
        task = given.task if metrics is None else given.task.with_metrics(metrics)
        questions = replace(given, task=task)
    else:
        questions = load("qa", call.rows(rows_of(given)), metrics=metrics)
    if not len(questions):
        raise EmptyData("no questions to evaluate on")
    return questions

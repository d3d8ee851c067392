"""The runner: a method over a question set, many questions at once, every call journaled; resumable and replayable.

A question's calls go out oldest question first through one gate, so that `concurrency` bounds the calls in flight in
the whole run. A question that fails is a row with its error; the run goes on. What makes every question fail alike (a
server that is not there, a refused key, a replay miss) stops the run at once, with everything answered so far kept.

With `repeats` every question is answered so many times, for servers vary even at temperature 0. The first answer's
calls are those of a run without repeats; searches are made once. A run may be given more repeats later, never fewer.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dspy

from blendfilter import aio
from blendfilter.errors import BadArgument, EmptyData
from blendfilter.evaluation.folder import RunFolder
from blendfilter.evaluation.progress import Progress, progress_for
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.settings import check_leak, check_prompts, settings_of
from blendfilter.evaluation.sitting import Sitting
from blendfilter.lm.attempts import FREE_RETRIES, RetryBudget
from blendfilter.lm.budget import Budget, check_priced
from blendfilter.lm.call_policy import Traffic
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.lm.module_lms import connected_lms, journal_lms, with_lms_connected
from blendfilter.lm.prices import Price
from blendfilter.lm.rate_limit import Gate
from blendfilter.tasks.base import Questions

logger = logging.getLogger(__name__)
CONCURRENCY = 16
OFFLINE_NOTE = "no model was named: the offline reader answers, which shows the pipeline, not its quality"


async def _evaluate(
    method: dspy.Module,
    questions: Questions | Sequence[Any],
    *,
    lm: dspy.BaseLM | str | None = None,
    run: str | Path | None = None,
    concurrency: int = CONCURRENCY,
    reuse: Iterable[str | Path] = (),
    replay: bool = False,
    repeats: int = 1,
    budget: Budget | None = None,
    max_retries: int | None = None,
    seed: int = 0,
    progress: Progress | bool = True,
    name: str | None = None,
) -> Run:
    """Evaluate `method` on `questions`.

    Args:
        method: any `dspy.Module` that takes `question` and returns a prediction with `answer` (and `knowledge`,
            `queries`, `branches` if it has some).
        questions: what `load` gives, or rows `load("qa", rows)` would take.
        lm: a model (`connect`, any `dspy.LM`, or a name); DSPy's configured one by default, else the offline reader.
        run: the run's folder; a temporary one by default. The same folder and settings again go on where it stopped.
        concurrency: model calls in flight in the whole run.
        reuse: other run folders whose journaled calls may be used.
        replay: answer from the run's journal alone; a call it does not hold is an error.
        repeats: how many times each question is answered; a finished run may be given more.
        budget: what the run may take in all its sittings (`Budget(tokens=2_000_000)`); it is no setting of the run, so
            the next sitting may be given more.
        max_retries: attempts beyond the first that this sitting's calls may make together; by default a hundred, four
            for each call in flight, and one for each call that succeeds (`blendfilter.lm.attempts.RetryBudget`).
        seed: of the bootstrap intervals.
        progress: a `Progress`, or False for none.
        name: what the run's record calls the method.

    Returns:
        The finished `Run`.

    Raises:
        RunMismatch: the folder holds a run with other settings. RunLocked: somebody else writes there. Leak: a question
        is also a demonstration. BudgetSpent: the limit is reached. ServerRefused, ReplayMiss: see `blendfilter.errors`.
    """
    questions = _questions(questions)
    if budget is not None and not isinstance(budget, Budget):
        raise BadArgument(f"budget is {budget!r:.40}: say what it limits, bf.Budget(calls=…, tokens=…, dollars=…)")
    model = _model(lm)
    _check_numbers(repeats, seed)
    check_leak(method, questions)
    check_prompts(method)
    method = with_lms_connected(method)
    settings = settings_of(method, questions, model, seed=seed, name=name, repeats=repeats)
    folder = RunFolder(run, settings, replay=replay)
    gate, prices = Gate(concurrency), {} if replay else _prices(method, model)
    retries = RetryBudget(max_retries, free=FREE_RETRIES + 4 * concurrency)
    check_priced(budget, prices)
    folder.check()
    with folder.opened(reuse, budget, prices) as opened, _threads(2 * concurrency) as pool:
        journal, purse, _ = opened
        traffic = Traffic(gate=gate, purse=purse, retries=retries)
        if not replay:
            folder.write_record(model, concurrency, [question.id for question in questions], budget)
        journal_lms(method, journal, traffic)
        sitting = Sitting(method, questions, model.with_journal(journal, traffic), journal, pool, repeats, purse)
        shown = progress_for([*questions.task.metrics], progress, gate) if isinstance(progress, bool) else progress
        with folder.stopping(opened, len(sitting.turns)):
            lines = await sitting.lines(folder.path, replay=replay, window=2 * concurrency, progress=shown)
        folder.write_lines(lines)
        del lines  # read back row by row: a long run's rows are not held whole
        folder.write_metrics(journal, model.terms.prices)
    return Run(folder.path)


@contextmanager
def _threads(count: int) -> Iterator[aio.Threads]:
    """A pool that is not waited for at its end, which would stop the loop that its work needs."""
    pool = aio.Threads(count, "blendfilter-method")
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _check_numbers(repeats: object, seed: int) -> None:
    """Raise `BadArgument` for what would only fail after calls were paid for."""
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise BadArgument(f"repeats is {repeats!r}: every question is answered once or more, give 1 or a larger number")
    if seed < 0:
        raise BadArgument(f"seed is {seed}: give 0 or a positive whole number")


evaluate = aio.waited_for(
    _evaluate, "evaluate", "await aevaluate(…)", " Waits for the run to be done; inside a notebook too."
)
aevaluate = aio.awaited(_evaluate, "aevaluate", " `evaluate`, to be awaited.")


def _prices(method: dspy.Module, model: ConnectedLM) -> dict[str, Price | None]:
    """What the models that will be asked cost, by name."""
    models = [model, *connected_lms(method).values()]
    return {lm.name: lm.terms.price for lm in models}


def _questions(given: Questions | Sequence[Any]) -> Questions:
    from blendfilter.tasks import TASKS, load

    if isinstance(given, str | Path):
        raise BadArgument(
            f"evaluate wants questions, not a name: pass bf.load(task, '{given}'), task any of {', '.join(TASKS)}"
        )
    questions = given if isinstance(given, Questions) else load("qa", list(given))
    if not len(questions):
        raise EmptyData("no questions to evaluate on")
    return questions


def _model(lm: dspy.BaseLM | str | None) -> ConnectedLM:
    chosen = lm if lm is not None else dspy.settings.lm
    if chosen is None:
        logger.warning(OFFLINE_NOTE)
        chosen = "offline"
    return connect(chosen)

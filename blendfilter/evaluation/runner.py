"""The runner: a method over a question set, many questions at once, every call journaled; resumable and replayable.

A question's calls go out oldest question first through one gate, so that `concurrency` bounds the calls in flight in
the whole run. A question that fails is a row with its error; the run goes on. What makes every question fail alike (a
server that is not there, a refused key, a replay miss) stops the run at once, with everything answered so far kept.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import logging
import tempfile
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import dspy

from blendfilter.context import CARRIED, JOURNAL, NOTES, ORDER, QUESTION, Asker, CallNote, setting
from blendfilter.errors import AskedWrong, BadArgument, EmptyData, ServerRefused
from blendfilter.evaluation.files import (
    METRICS,
    PREDICTIONS,
    RUN,
    Appender,
    line_of,
    read_json,
    read_rows,
    stale,
    write_json,
    write_rows,
)
from blendfilter.evaluation.ledger import ledger
from blendfilter.evaluation.progress import Progress, progress_for
from blendfilter.evaluation.rows import Row, answered, failed
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.settings import check_leak, check_prompts, check_same, settings_of, versions
from blendfilter.evaluation.summary import summarise
from blendfilter.journal import FILE, Journal, Mode
from blendfilter.lm import bridge
from blendfilter.lm.connect import connect
from blendfilter.lm.gate import Gate
from blendfilter.lm.model import ConnectedLM
from blendfilter.modules.base import Method
from blendfilter.records import Question
from blendfilter.tasks.base import Questions

logger = logging.getLogger(__name__)
CONCURRENCY = 16
OFFLINE_NOTE = "no model was named: the offline reader answers, which shows the pipeline, not its quality"


def evaluate(method: dspy.Module, questions: Questions | Sequence[Any], **options: Any) -> Run:
    """`aevaluate`, waited for; works inside a notebook too."""
    return bridge.run(_evaluate(method, questions, **options), "evaluate", "await aevaluate(…)")


async def aevaluate(method: dspy.Module, questions: Questions | Sequence[Any], **options: Any) -> Run:
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
        seed: of the bootstrap intervals.
        progress: a `Progress`, or False for none.
        name: what the run's record calls the method.

    Returns:
        The finished `Run`.

    Raises:
        RunMismatch: the folder holds a run with other settings. RunLocked: somebody else writes there. Leak: a question
        is also a demonstration. ServerRefused, ReplayMiss: see `blendfilter.errors`.
    """
    return await asyncio.wrap_future(bridge.submit(_evaluate(method, questions, **options)))


async def _evaluate(
    method: dspy.Module,
    questions: Questions | Sequence[Any],
    *,
    lm: dspy.BaseLM | str | None = None,
    run: str | Path | None = None,
    concurrency: int = CONCURRENCY,
    reuse: Iterable[str | Path] = (),
    replay: bool = False,
    seed: int = 0,
    progress: Progress | bool = True,
    name: str | None = None,
) -> Run:
    questions = _questions(questions)
    model = _model(lm)
    check_leak(method, questions)
    check_prompts(method)
    method = _with_own_models(method)
    settings = settings_of(method, questions, model, seed=seed, name=name)
    if run is None and replay:
        raise BadArgument("a replay needs the run's folder: run=…")
    if replay:
        read_json(Path(run or "") / RUN, "settings")  # nothing to replay is said before anything is done
    if seed < 0:  # said before any call is paid for
        raise BadArgument(f"seed is {seed}: give 0 or a positive whole number")
    folder = Path(run) if run is not None else Path(tempfile.mkdtemp(prefix="blendfilter-run-"))
    gate = Gate(concurrency)
    _check_folder(folder, settings)
    with ExitStack() as stack:
        mode: Mode = "replay" if replay else "auto"
        journal = stack.enter_context(Journal(folder / FILE, mode, reuse, exclusive=True))
        _check_folder(folder, settings)  # once more, now that nobody else can write
        fresh = not (folder / RUN).is_file()
        for left in stale(folder):
            left.unlink(missing_ok=True)
        if not replay:
            _write_record(folder, settings, model, concurrency)
        for predictor in method.predictors():
            predictor.lm = predictor.lm and predictor.lm.with_journal(journal, gate)
        window = 2 * concurrency
        pool = ThreadPoolExecutor(window, thread_name_prefix="blendfilter-method")
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)  # waiting here would stop the loop it needs
        sitting = _Sitting(method, questions, model.with_journal(journal, gate), journal, pool)
        shown = progress_for(list(questions.task.metrics), bool(progress)) if isinstance(progress, bool) else progress
        try:
            rows = await sitting.rows(folder, replay=replay, window=window, progress=shown)
        except AskedWrong as error:
            if fresh and not replay:
                _forget(folder, journal)
            if isinstance(error, ServerRefused) and (done := len(read_rows(folder / PREDICTIONS))):
                raise ServerRefused(
                    f"{error} ({done} of {len(questions)} questions are answered; the same command goes on there)"
                ) from error
            raise
        write_rows(folder / PREDICTIONS, rows)
        metrics = summarise(rows, settings=settings, entries=ledger(rows, journal.read), seed=seed)
        write_json(folder / METRICS, metrics)
    return Run(folder)


class _Sitting:
    """One sitting of a run: what is still to be answered, answered."""

    def __init__(
        self, method: dspy.Module, questions: Questions, lm: ConnectedLM, journal: Journal, pool: Executor
    ) -> None:
        self.method, self.questions, self.lm, self.journal = method, questions, lm, journal
        # Synchronous methods wait in threads of their own: searches and models must find theirs free.
        self.pool = pool

    async def rows(self, folder: Path, *, replay: bool, window: int, progress: Progress) -> list[Row]:
        """Every question's row in question order, at most `window` questions under work at a time."""
        done = {} if replay else self._kept(folder)
        if not replay and len(done) < len(self.questions):
            (folder / METRICS).unlink(missing_ok=True)  # an earlier sitting's: it would not fit the rows
        appender = None if replay else Appender(folder / PREDICTIONS, done.values())
        progress.start(len(self.questions), len(done))
        places = asyncio.Semaphore(window)
        # Oldest question first; but the last ones share a rank, so that they go through their stages side by side and
        # the end of a run keeps its calls in flight.
        last_rank = len(self.questions) - window // 2

        def finished(row: Row) -> None:
            if appender is not None:
                appender.add(row)
            done[row["id"]] = row
            progress.advance(row, self._tokens(row))

        try:
            async with asyncio.TaskGroup() as group:
                for order, question in enumerate(self.questions):
                    if question.id not in done:
                        await places.acquire()
                        group.create_task(self._one(min(order, last_rank), question, finished, places))
        except BaseExceptionGroup as several:
            raise _first(several) from None
        finally:
            progress.stop()
            if appender is not None:
                appender.close()
        return [done[question.id] for question in self.questions]

    def _kept(self, folder: Path) -> dict[str, Row]:
        """The rows of earlier sittings; a question that ended in an error is asked again."""
        ids = {question.id for question in self.questions}
        rows = {row["id"]: row for row in read_rows(folder / PREDICTIONS) if row["error"] is None and row["id"] in ids}
        # A row whose calls the journal does not hold (it was cut or exchanged) would leave the ledger wrong.
        return {name: row for name, row in rows.items() if all(key in self.journal for _, key in row["calls"])}

    async def _one(
        self, order: int, question: Question, finished: Callable[[Row], None], places: asyncio.Semaphore
    ) -> None:
        notes: list[CallNote] = []
        task = self.questions.task
        try:
            with (
                setting(QUESTION, question.id),
                setting(ORDER, order),
                setting(NOTES, notes),
                setting(JOURNAL, self.journal),
                # A fresh trace and no history: what DSPy remembers of a call would grow with the run.
                dspy.context(
                    lm=self.lm,
                    trace=[],
                    disable_history=True,
                    **{CARRIED: Asker(question.id, order, notes, self.journal)},
                ),
            ):
                prediction = await self._asked(question.question)
                row = answered(task, question, prediction, self._told(notes))
                line_of(row)  # what JSON cannot hold is this question's error, not the run's
        except AskedWrong:
            raise
        except Exception as error:  # whatever a method raises is that question's error, and is shown
            logger.debug("question %s failed", question.id, exc_info=True)
            row = failed(task, question, error, self._told(notes))
        finally:
            places.release()
        finished(row)

    async def _asked(self, question: str) -> Any:
        """The method's prediction: awaited where it can be, in a worker thread where it is synchronous."""
        if hasattr(self.method, "aforward"):
            return await self.method.acall(question=question)
        call = functools.partial(contextvars.copy_context().run, self.method, question=question)
        return await asyncio.get_running_loop().run_in_executor(self.pool, call)

    def _told(self, notes: list[CallNote]) -> list[CallNote]:
        """The calls in plan order; a module that is not ours has no plan, and may call side by side: sorted."""
        return notes if isinstance(self.method, Method) else sorted(notes)

    def _tokens(self, row: Row) -> int:
        records = (self.journal.read(key) for _, key in row["calls"])
        return sum((each.get("tokens_in") or 0) + (each.get("tokens_out") or 0) for each in records if each)


def _with_own_models(method: dspy.Module) -> dspy.Module:
    """`method`, or a copy where predictors have models of their own: their calls are journaled and counted too."""
    if not any(predictor.lm for predictor in method.predictors()):
        return method
    copied: dspy.Module = method.deepcopy()
    for predictor in copied.predictors():
        predictor.lm = predictor.lm and connect(predictor.lm)
    return copied


def _questions(given: Questions | Sequence[Any]) -> Questions:
    from blendfilter.tasks import load

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


def _check_folder(folder: Path, settings: dict[str, Any]) -> None:
    path = folder / RUN
    if path.is_file():
        check_same(read_json(path, "settings")["settings"], settings, str(folder))
    elif folder.exists() and not folder.is_dir():
        raise BadArgument(f"{folder} is a file, not a folder: name a folder for this run")
    elif folder.is_dir() and {item for item in folder.iterdir() if item.name != FILE} - set(stale(folder)):
        raise BadArgument(f"{folder} is not empty and holds no run: name a new folder for this one")


def _write_record(folder: Path, settings: dict[str, Any], lm: ConnectedLM, concurrency: int) -> None:
    """`run.json`: settings stay as first asked; notes are those of the last sitting."""
    notes = {"address": lm.address, "concurrency": concurrency}
    write_json(folder / RUN, {"settings": settings, "notes": notes, "versions": versions()})


def _forget(folder: Path, journal: Journal) -> None:
    """Take away what a first sitting left that got no call and no row done, or its settings would stand in the way."""
    if not read_rows(folder / PREDICTIONS) and not any(record["kind"] == "call" for record in journal.records()):
        for name in (RUN, PREDICTIONS, FILE):
            (folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            folder.rmdir()


def _first(several: BaseExceptionGroup[Any]) -> BaseException:
    first = several.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first

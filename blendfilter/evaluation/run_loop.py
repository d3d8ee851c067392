"""The run loop: answers what is still to be answered in one session, many questions at once, and shows how far it is.

A question that fails is a row with its error; what makes every question fail alike stops the session at once, with
everything answered so far kept.

Under a budget a question is begun only where the rest is likely to finish it: questions that advance side by side would
spend a small budget together, and none of them be answered. Only when a question begins depends on this, never its
answer.

Of a method that has several queries, one of them the question itself (`q`), the question alone is searched for once
more, with as many passages as all queries bring (`q@15` for three queries of five): what blending queries must beat. It
is journaled like any other search and calls no model. Where the index fails, the row names the search (`unsearched`),
and the next session makes that row again, from the journal.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import json
import logging
import math
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy

from blendfilter import aio
from blendfilter.context import CARRIED, CallNote, calls_of, setting
from blendfilter.errors import AskedWrong, BadData, BudgetSpent, CannotWrite, words_of
from blendfilter.evaluation.ledger import taken
from blendfilter.evaluation.own_program import ProgramCall
from blendfilter.evaluation.provenance import Found, Provenance, called, provenance, traced
from blendfilter.evaluation.rows import (
    QUESTION_ALONE,
    PredictionRow,
    Record,
    answered,
    as_prediction,
    failed,
    is_whole,
    mapping_in,
    repeat_of,
)
from blendfilter.evaluation.run_folder import (
    METRICS,
    PREDICTIONS,
    appended,
    check_row,
    iterate_rows,
)
from blendfilter.evaluation.run_settings import retrievers_of
from blendfilter.files import AppendOnly, json_line
from blendfilter.lm.attempts import Gate
from blendfilter.lm.budget import NOTHING, Amount, BudgetAccount
from blendfilter.lm.journaled import is_answer
from blendfilter.modules.base import Method
from blendfilter.records import Passage, Question, one_line
from blendfilter.run_context import RunContext
from blendfilter.tasks.base import Questions
from blendfilter.terminal import EVERY, console, is_terminal, note
from blendfilter.text import visible

logger = logging.getLogger(__name__)
QUERY = "q"
"""What methods call the question itself among their queries."""
AT_FIRST = 4
"""Questions under work while it is unknown what one takes."""

KNOWN_ENOUGH = 50
"""Answers of earlier sessions that tell what a question takes."""

AnswerKey = tuple[int, str]
"""Repeat and question id: what sets an answer's row apart from the others."""


@dataclass(eq=False)
class RunLoop:
    """One session of a run.

    Attributes:
        method: the method, its own models journaled once `context` is open.
        questions: what it answers, `repeats` times.
        progress: what each row is reported to.
        call: what the method is called with, and which of its outputs is the answer.
    """

    method: dspy.Module
    questions: Questions
    context: RunContext
    progress: RunProgress
    repeats: int
    call: ProgramCall

    def __post_init__(self) -> None:
        self.task = self.questions.task
        self.freed = asyncio.Event()
        self.slots = {
            (n, question.id): question
            for n in range(1, self.repeats + 1)
            for question in self.questions
        }
        self.done: dict[AnswerKey, bytes] = {}
        self.file: AppendOnly | None = None
        indexes = retrievers_of(self.method)
        self.index = indexes[0] if len(indexes) == 1 else None
        # with the settings of DSPy's that `evaluate` was called under
        self.around = contextvars.copy_context()
        self.unsearched: list[str] = []  # why, for each search for a question alone that failed

    async def lines(
        self, folder: Path, pool: Executor, *, replay: bool, window: int
    ) -> list[bytes]:
        """Every answer's row in order, as its line in the file, at most `window` questions under work at a time.

        Lines, because a row takes three times the room, and a long run has thousands. `pool`: threads for synchronous
        methods; searches and models must find theirs free.
        """
        self.pool, self.lm = pool, self.context.lm
        self.journal, self.purse = self.context.journal, self.context.purse
        self.admission = Admission(self.purse, self.journal.read_call)
        if not replay:
            self.done = self._kept(folder)
            if len(self.done) < len(self.slots):
                # an earlier session's: it would not fit the rows
                (folder / METRICS).unlink(missing_ok=True)
            for line in [*self.done.values()][-KNOWN_ENOUGH:]:
                self.admission.answered(json.loads(line))
            self.file = appended(folder / PREDICTIONS, self.done.values())
        self.progress.start(len(self.slots), len(self.done))
        places = asyncio.Semaphore(window)
        # Oldest question first; but the last ones share a rank, so that they go through their stages side by side and
        # the end of a run keeps its calls in flight.
        last_rank = len(self.slots) - window // 2
        try:
            async with aio.together() as group:
                for order, key in enumerate(self.slots):
                    if key not in self.done:
                        await places.acquire()
                        # until the budget is likely to finish one more question
                        while not self.admission.may_begin():
                            self.freed.clear()
                            await self.freed.wait()
                        self.admission.under_work += 1
                        group.create_task(self._answer(min(order, last_rank), key, places))
        finally:
            self.progress.stop()
            if self.unsearched:
                warnings.warn(
                    f"searches for a question alone that failed: {len(self.unsearched)} ({self.unsearched[0]}); "
                    "run the same command again once the index answers",
                    stacklevel=2,
                )
            if self.file is not None:
                self.file.close()
        return [self.done[key] for key in self.slots]

    def _kept(self, folder: Path) -> dict[AnswerKey, bytes]:
        """The rows of earlier sessions, of fewer repeats too, but for those with an error or without a search."""
        kept: dict[AnswerKey, bytes] = {}
        damaged = [*self.journal.damages()] if (folder / PREDICTIONS).is_file() else []
        for _, damage in damaged:
            logger.warning("%s", damage)
        if any(kind != "call" for kind, _ in damaged):
            return kept  # rows do not name their searches: all are made anew, and what is gone is searched for again
        for row in iterate_rows(folder / PREDICTIONS, self.task.metrics):
            key = (repeat_of(row), row["id"])
            # A row whose calls the journal does not have (it was cut or exchanged) would leave the ledger wrong.
            if (
                key in self.slots
                and is_whole(row, self.task.metrics)
                and all(self._is_kept(call) for _, call in row["calls"])
            ):
                kept[key] = self._line(row, key)
        return kept

    def _is_kept(self, call: str) -> bool:
        """Whether the journal serves a call again: it has it undamaged, with a whole reply."""
        try:
            record = self.journal.read_call(call)
        except BadData:  # of which there was a warning
            return False
        return record is not None and is_answer(record)

    async def _answer(self, order: int, key: AnswerKey, places: asyncio.Semaphore) -> None:
        notes: list[CallNote] = []
        repeat, question = key[0], self.slots[key]
        trace, found = list[Any](), dict[tuple[str, int, str], Sequence[Passage]]()
        try:
            with (
                setting(
                    question=question.id,
                    repeat=repeat,
                    order=order,
                    notes=notes,
                    found=found,
                    journal=self.journal,
                    questions=self.questions,
                ) as here,
                # A fresh trace and no history: what DSPy remembers of a call would grow with the run.
                dspy.context(lm=self.lm, trace=trace, disable_history=True, **{CARRIED: here}),
            ):
                row = await aio.awaiting(self._row(question, notes, trace, found))
        # the next question would too, and its calls be paid for in vain
        except (AskedWrong, BudgetSpent, CannotWrite):
            if self.purse is not None:
                self.purse.check()  # it may be what came of a call that was refused
            raise
        except aio.ENDING:
            raise
        # whatever a method raises is that question's error, and stands in its row
        except BaseException as error:
            logger.debug("question %s failed", question.id, exc_info=True)
            row = failed(self.task, question, error, self._in_order(notes))
        finally:
            places.release()
            self.admission.under_work -= 1
            self.freed.set()
        if self.purse is not None:
            self.purse.check()  # a method may have taken the refusal of its call for a reply
        line = self.done[key] = self._line(row, key)
        if self.file is not None:
            self.file.append(line)
        records = [self.journal.read_call(call) or {} for _, call in row["calls"]]
        counts = [
            record.get(side) for record in records for side in ("tokens_in", "tokens_out")
        ]
        self.progress.advance(row, sum(filter(None, counts)))
        self.admission.answered(row)

    async def _row(
        self, question: Question, notes: list[CallNote], trace: list[Any], found: Found
    ) -> PredictionRow:
        """The row of what the method answers. Whatever reads its prediction may run code of the user's own."""
        inputs = self.call.arguments(question)
        if hasattr(self.method, "aforward"):
            prediction = await self.method.acall(**inputs)
        else:
            call = functools.partial(self.method, **inputs)
            prediction = await aio.in_thread(call, executor=self.pool)
        field = self.call.answer
        prediction = as_prediction(prediction, field)
        calls = self._in_order(notes)

        def observed() -> Provenance:
            # as they came: what one reads of another is there before it
            records = (self.journal.read_call(note.key) for note in calls_of(notes))
            steps = traced(trace), called(filter(None, records))
            return provenance(question.question, getattr(prediction, field), found, *steps)

        alone = await self._alone(question, prediction)
        own = dict[str, float]()
        if self.task.functions:  # in a thread, because one may ask a model
            scored = functools.partial(self._score_own, question, prediction)
            own = await aio.in_thread(self.around.copy().run, scored, executor=self.pool)
        row = answered(
            self.task, question, prediction, calls, alone, own, observed=observed, field=field
        )
        # what the file cannot store is this question's error, not the run's
        check_row(json.loads(json_line(row)))
        return row

    def _score_own(self, question: Question, prediction: Any) -> dict[str, float]:
        """The scores by the user's own metrics, which run outside of the run: no model under test judges itself."""
        with dspy.context(trace=[]):  # else it would grow with the run
            return self.task.score_own(question, prediction)

    async def _alone(
        self, question: Question, prediction: Any
    ) -> dict[str, Sequence[Passage] | None]:
        """What the question alone retrieves, by the search's name; None in its place where the index fails."""
        branches, queries = (
            mapping_in(prediction, "branches"),
            mapping_in(prediction, "queries"),
        )
        query = one_line(question.question)
        several = len(branches) > 1 and QUERY in branches
        if self.index is None or not several or queries.get(QUERY) != query:
            return {}
        k = self.method.arguments().get("k") if isinstance(self.method, Method) else None
        wanted = len(branches) * (k or len(branches[QUERY].retrieved))
        try:
            size = len(self.index)
        except TypeError:  # a function, a server
            size = wanted
        if not 0 < wanted <= size:  # fewer passages would be no fair comparison
            return {}
        name = f"{QUESTION_ALONE}{wanted}"
        try:
            # what this finds, and a query that is cut here, says nothing of what the method did
            with setting(notes=[], found=None):
                return {name: (await aio.in_thread(self.index.search, [query], wanted))[0]}
        except (BudgetSpent, CannotWrite, *aio.ENDING):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever an index raises
            self.unsearched.append(f"{type(error).__name__}: {words_of(error)}")
            return {name: None}

    def _in_order(self, notes: list[CallNote]) -> list[CallNote]:
        """The calls in plan order; a module that is not ours has no plan, and may call side by side: sorted."""
        return notes if isinstance(self.method, Method) else sorted(notes)

    def _line(self, row: PredictionRow, key: AnswerKey) -> bytes:
        """The row's line, the number of its repeat behind its id where there are several."""
        number = {"repeat": key[0]} if self.repeats > 1 else {}
        rest = {name: row[name] for name in row if name not in ("id", "repeat")}
        return json_line({"id": row["id"], **number, **rest})


class Admission:
    """How many questions a budget lets be under work.

    Args:
        purse: the budget account; None: no limit, every question may begin at once.
        read: a call's record by its key.
    """

    def __init__(
        self, purse: BudgetAccount | None, read: Callable[[str], Record | None]
    ) -> None:
        self._purse = purse if purse is not None and purse.budget.given() else None
        self._read = read
        self.under_work = self._known = 0
        self._took = NOTHING

    def may_begin(self) -> bool:
        """Whether one more question is likely to be finished, with those that are under work."""
        if self._purse is None or not self.under_work:
            return True  # with none under work the budget itself says when it is spent
        if not self._known:
            return self.under_work < AT_FIRST
        took, known = self._took, self._known
        mean = Amount(
            math.ceil(took.calls / known), math.ceil(took.tokens / known), took.dollars / known
        )
        # What is set aside counts for nothing here: it belongs to questions under work, which count in full.
        return (self._purse.spent + mean.times(self.under_work + 1)).within(self._purse.budget)

    def answered(self, row: Record) -> None:
        """Learn what this question took; one that cost nothing (another run's calls) is no measure."""
        if self._purse is None:
            return
        records = [self._read(key) for key in {key for _, key in row["calls"]}]
        own = (taken(record) for record in records if record and not record.get("reused"))
        took = sum(own, NOTHING)
        if took != NOTHING:
            self._known += 1
            self._took += took


# --- progress -------------------------------------------------------------------------------------------------------


class RunProgress:
    """How far a run is: rate, time left, and scores and tokens of this session.

    On a terminal it is one live line; elsewhere (a notebook, a log file) a plain line at the end, and at each tenth of
    the way that comes `EVERY` seconds after the last; nothing where `show` is off. `gate`: what the calls pass, which
    may allow fewer in flight than its limit. `clock`: for tests.
    """

    def __init__(
        self,
        metrics: Sequence[str],
        gate: Gate | None = None,
        show: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.gate, self.show, self.bar, self._clock = gate, show, None, clock
        self.sums = dict.fromkeys(metrics, 0.0)
        self.total = self.before = self.seen = self.errors = self.tokens = 0
        self.reported = 0
        self.tokens_known = True
        if show and is_terminal(sys.stderr):
            from rich import progress as rich

            self.bar = rich.Progress(
                rich.BarColumn(bar_width=24),
                rich.MofNCompleteColumn(),
                rich.TextColumn("{task.fields[rate]}", markup=False),
                rich.TimeElapsedColumn(),
                rich.TextColumn("left"),
                rich.TimeRemainingColumn(),
                rich.TextColumn("{task.fields[scores]}", markup=False),
                console=console(sys.stderr),
            )

    def start(self, total: int, done: int) -> None:
        """The run begins, `done` of `total` questions answered in earlier sessions."""
        self.total, self.before = total, done
        self.began = self.last_line = self._clock()
        if self.bar is not None:
            self.task = self.bar.add_task("", total=total, completed=done, rate="", scores="")
            self.bar.start()
        elif self.show and done:
            note(f"{done}/{total} questions were answered in an earlier session")

    def advance(self, row: Record, tokens: int | None) -> None:
        """One more question is over; `tokens` were read and written for it (journal hits included). None: unknown."""
        self.seen += 1
        self.tokens_known &= tokens is not None
        self.tokens += tokens or 0
        self.errors += row["error"] is not None
        for name in self.sums:
            self.sums[name] += row[name]
        done = self.before + self.seen
        if self.bar is not None:
            self.bar.update(self.task, advance=1, rate=self.rate, scores=self.text())
        elif done % max(1, self.total // 10) == 0 and self._clock() - self.last_line >= EVERY:
            self._line()

    def _line(self) -> None:
        self.reported, self.last_line = self.seen, self._clock()
        if self.show:
            done = self.before + self.seen
            note(f"{done}/{self.total} questions  {self.rate}  {self.text()}")

    def tell(self, line: str) -> None:
        """Say what becomes of a batch."""
        if self.bar is not None and self.bar.live.is_started:
            self.bar.console.print(line)
        elif self.show:
            note(line)

    def stop(self) -> None:
        """The run is over or was stopped."""
        if self.bar is not None:
            self.bar.stop()
        elif self.reported < self.seen:
            self._line()

    @property
    def rate(self) -> str:
        """Questions a second, or a minute where that says more: a run that waits for its pace is slow, not dead."""
        rate = self.seen / max(self._clock() - self.began, 1e-9)
        return f"{rate:.1f}/s" if rate >= 0.1 else f"{60 * rate:.1f}/min"

    def text(self) -> str:
        """`EM 41.2  F1 52.0  312k tokens  1 failed  8 of 16 in flight`; the last where the server wants fewer calls."""
        all_failed = 0 < self.errors == self.seen  # which is no score of 0
        parts = []
        for name, value in self.sums.items() if not all_failed else ():
            parts.append(f"{name.upper()} {100 * value / max(self.seen, 1):.1f}")
        if self.tokens_known:
            many = self.tokens >= 10_000
            parts.append(
                f"{self.tokens // 1000:,}k tokens" if many else f"{self.tokens} tokens"
            )
        if self.errors:
            parts.append(f"{'all ' * (all_failed and self.errors > 1)}{self.errors} failed")
        if self.gate is not None and self.gate.allowed < self.gate.limit:
            parts.append(f"{self.gate.allowed} of {self.gate.limit} in flight")
        return visible(("this session: " if self.before else "") + "  ".join(parts))

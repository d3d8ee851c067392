"""One sitting of a run: what is still to be answered, answered, many questions at once.

In: a method, its questions, how often each is answered, and the run's journal. Out: a line an answer, repeat by repeat
and in question order within. A question that fails is a row with its error; what makes every question fail alike stops
the sitting at once, with everything answered so far kept.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

import dspy

from blendfilter import aio
from blendfilter.context import CARRIED, JOURNAL, NOTES, ORDER, QUESTION, REPEAT, Asker, CallNote, setting
from blendfilter.errors import AskedWrong, BudgetSpent, CannotWrite
from blendfilter.evaluation.beside import Beside
from blendfilter.evaluation.files import METRICS, PREDICTIONS, Appender, check_row, iterate_rows, line_of
from blendfilter.evaluation.frugal import EARLIER, Frugal
from blendfilter.evaluation.progress import Progress
from blendfilter.evaluation.repeats import numbered, repeat_of
from blendfilter.evaluation.rows import Row, answered, failed, misscored, with_beside
from blendfilter.journal import Journal
from blendfilter.lm.budget import BudgetAccount
from blendfilter.lm.model import ConnectedLM
from blendfilter.modules.base import Method
from blendfilter.records import Question
from blendfilter.tasks.base import Questions

logger = logging.getLogger(__name__)


class Turn(NamedTuple):
    """One answer to be given: which repeat, of which question."""

    repeat: int
    question: Question

    @property
    def key(self) -> tuple[int, str]:
        """What tells its row from the others."""
        return self.repeat, self.question.id


class Sitting:
    """What is still to be answered, answered by `lines`."""

    def __init__(
        self,
        method: dspy.Module,
        questions: Questions,
        lm: ConnectedLM,
        journal: Journal,
        pool: Executor,
        repeats: int = 1,
        purse: BudgetAccount | None = None,
    ) -> None:
        self.method, self.questions, self.lm, self.journal = method, questions, lm, journal
        # Synchronous methods wait in threads of their own: searches and models must find theirs free.
        self.pool = pool
        self.repeats = repeats
        self.purse = purse
        self.frugal = Frugal(purse, journal.read_call)
        self.freed = asyncio.Event()
        self.beside = Beside(method)
        self.lacking: set[tuple[int, str]] = set()
        self.turns = [Turn(repeat, question) for repeat in range(1, repeats + 1) for question in questions]

    async def lines(self, folder: Path, *, replay: bool, window: int, progress: Progress) -> list[bytes]:
        """Every answer's row in order, as its line in the file, at most `window` questions under work at a time.

        Lines, because a row takes three times the room, and a long run has thousands.
        """
        done = {} if replay else self._kept(folder)
        if not replay and (self.lacking or len(done) < len(self.turns)):
            (folder / METRICS).unlink(missing_ok=True)  # an earlier sitting's: it would not fit the rows
        appender = None if replay else Appender(folder / PREDICTIONS, done.values())
        progress.start(len(self.turns), len(done))
        self.frugal.learn([*done.values()][-EARLIER:])
        places = asyncio.Semaphore(window)
        # Oldest question first; but the last ones share a rank, so that they go through their stages side by side and
        # the end of a run keeps its calls in flight.
        last_rank = len(self.turns) - window // 2

        def finished(turn: Turn, row: Row) -> None:
            line = done[turn.key] = line_of(row)
            if appender is not None:
                appender.add(line)
            progress.advance(row, self._tokens(row))
            self.frugal.answered(row)

        try:
            async with aio.together() as group:
                for order, turn in enumerate(self.turns):
                    if turn.key not in done:
                        await places.acquire()
                        await self._begin()
                        group.create_task(self._one(min(order, last_rank), turn, finished, places))
                    elif turn.key in self.lacking:
                        await places.acquire()
                        group.create_task(self._make_up(turn, done, places))
        finally:
            progress.stop()
            self.beside.warn()
            if appender is not None:
                appender.close()
        return [done[turn.key] for turn in self.turns]

    def _kept(self, folder: Path) -> dict[tuple[int, str], bytes]:
        """The rows of earlier sittings, of fewer repeats too; a question that ended in an error is asked again."""
        wanted = {turn.key: turn.question for turn in self.turns}
        kept: dict[tuple[int, str], bytes] = {}
        damaged = [*self.journal.damages()] if (folder / PREDICTIONS).is_file() else []
        for _, damage in damaged:
            logger.warning("%s", damage)
        if any(kind != "call" for kind, _ in damaged):
            return kept  # rows do not name their searches: all are made anew, and what is gone is searched for again
        is_there = self.journal.is_sound if damaged else self.journal.__contains__
        for row in iterate_rows(folder / PREDICTIONS, self.questions.task.metrics):
            key = (repeat_of(row), row["id"])
            # A row whose calls the journal does not hold (it was cut or exchanged) would leave the ledger wrong.
            right = row["error"] is None and not misscored(row, self.questions.task.metrics)
            if key in wanted and right and all(is_there(call) for _, call in row["calls"]):
                kept[key] = line_of(self._numbered(row, key[0]))
                if self.beside.lacks(wanted[key].question, row):
                    self.lacking.add(key)
        return kept

    async def _make_up(self, turn: Turn, done: dict[tuple[int, str], bytes], places: asyncio.Semaphore) -> None:
        """Search for what a row on file lacks; all else of it stays."""
        try:
            with setting(QUESTION, turn.question.id), setting(JOURNAL, self.journal):
                row = json.loads(done[turn.key])
                beside = await self.beside.made_up(turn.question.question, row)
                done[turn.key] = line_of(with_beside(row, turn.question, beside))
        finally:
            places.release()

    def _numbered(self, row: Row, repeat: int) -> Row:
        return numbered(row, repeat if self.repeats > 1 else None)

    async def _one(
        self, order: int, turn: Turn, finished: Callable[[Turn, Row], None], places: asyncio.Semaphore
    ) -> None:
        notes: list[CallNote] = []
        task, question = self.questions.task, turn.question
        try:
            with (
                setting(QUESTION, question.id),
                setting(REPEAT, turn.repeat),
                setting(ORDER, order),
                setting(NOTES, notes),
                setting(JOURNAL, self.journal),
                # A fresh trace and no history: what DSPy remembers of a call would grow with the run.
                dspy.context(
                    lm=self.lm,
                    trace=[],
                    disable_history=True,
                    **{CARRIED: Asker(question.id, order, notes, self.journal, turn.repeat)},
                ),
            ):
                row = await aio.awaiting(self._answered(question, notes))
        except (AskedWrong, BudgetSpent, CannotWrite):  # the next question would too, and its calls be paid for in vain
            self._stop_if_spent()  # it may be what came of a call that was refused
            raise
        except aio.ENDING:
            raise
        except BaseException as error:  # whatever a method raises is that question's error, and is shown
            logger.debug("question %s failed", question.id, exc_info=True)
            row = failed(task, question, error, self._told(notes))
        finally:
            places.release()
            self.frugal.over()
            self.freed.set()
        self._stop_if_spent()  # a method may have taken the refusal of its call for a reply
        finished(turn, self._numbered(row, turn.repeat))

    async def _begin(self) -> None:
        """Wait until the budget, where there is one, is likely to finish one more question."""
        while not self.frugal.may_begin():
            self.freed.clear()
            await self.freed.wait()
        self.frugal.begun()

    def _stop_if_spent(self) -> None:
        if self.purse is not None:
            self.purse.check()

    async def _answered(self, question: Question, notes: list[CallNote]) -> Row:
        """The row of what the method answers. Whatever reads its prediction may run code of the user's own."""
        prediction = await self._asked(question.question)
        row = answered(self.questions.task, question, prediction, self._told(notes))
        row = with_beside(row, question, await self.beside.found(question.question, prediction))
        check_row(json.loads(line_of(row)))  # what the file cannot hold is this question's error, not the run's
        return row

    async def _asked(self, question: str) -> Any:
        """The method's prediction: awaited where it can be, in a worker thread where it is synchronous."""
        if hasattr(self.method, "aforward"):
            return await self.method.acall(question=question)
        return await aio.in_thread(functools.partial(self.method, question=question), executor=self.pool)

    def _told(self, notes: list[CallNote]) -> list[CallNote]:
        """The calls in plan order; a module that is not ours has no plan, and may call side by side: sorted."""
        return notes if isinstance(self.method, Method) else sorted(notes)

    def _tokens(self, row: Row) -> int:
        records = (self.journal.read_call(key) for _, key in row["calls"])
        return sum((each.get("tokens_in") or 0) + (each.get("tokens_out") or 0) for each in records if each)

"""The run loop: answers what is still to be answered in one session, many questions at once.

A question that fails is a row with its error; what makes every question fail alike stops the session at once, with
everything answered so far kept.

Under a budget a question is begun only where the rest is likely to finish it: questions that advance side by side would
spend a small budget together, and none of them be answered. Only when a question begins depends on this, never its
answer.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, NamedTuple

import dspy

from blendfilter import aio
from blendfilter.context import CARRIED, JOURNAL, NOTES, ORDER, QUESTION, REPEAT, Asker, CallNote, setting
from blendfilter.errors import AskedWrong, BudgetSpent, CannotWrite
from blendfilter.evaluation.ledger import taken
from blendfilter.evaluation.question_alone import QuestionAlone
from blendfilter.evaluation.rows import PredictionRow, answered, failed, misscored, numbered, repeat_of
from blendfilter.evaluation.run_folder import METRICS, PREDICTIONS, RowAppender, check_row, iterate_rows, line_of
from blendfilter.evaluation.run_progress import RunProgress
from blendfilter.lm.budget import NOTHING, Amount, BudgetAccount
from blendfilter.modules.base import Method
from blendfilter.records import Question
from blendfilter.run_context import RunContext
from blendfilter.tasks.base import Questions

logger = logging.getLogger(__name__)
AT_FIRST = 4
"""Questions under work while it is unknown what one takes."""
EARLIER = 20
"""Questions of earlier sessions whose cost is read back."""

AnswerKey = tuple[int, str]
"""Repeat and question id: what sets an answer's row apart from the others."""


class AnswerSlot(NamedTuple):
    """One answer to be given: which repeat, of which question."""

    repeat: int
    question: Question

    @property
    def key(self) -> AnswerKey:
        """Its repeat and its question's id."""
        return self.repeat, self.question.id


class RunLoop:
    """One session of a run.

    Args:
        method: the method, its own models journaled.
        questions: what it answers, `repeats` times.
        context: the open run.
        pool: threads for synchronous methods; searches and models must find theirs free.
    """

    def __init__(
        self, method: dspy.Module, questions: Questions, context: RunContext, pool: Executor, repeats: int = 1
    ) -> None:
        self.method, self.questions, self.pool, self.repeats = method, questions, pool, repeats
        self.lm, self.journal, self.purse = context.lm, context.journal, context.purse
        self.admission = Admission(self.purse, self.journal.read_call)
        self.freed = asyncio.Event()
        self.alone = QuestionAlone(method)
        self.lacking: set[AnswerKey] = set()
        self.slots = [AnswerSlot(repeat, question) for repeat in range(1, repeats + 1) for question in questions]

    async def lines(self, folder: Path, *, replay: bool, window: int, progress: RunProgress) -> list[bytes]:
        """Every answer's row in order, as its line in the file, at most `window` questions under work at a time.

        Lines, because a row takes three times the room, and a long run has thousands.
        """
        done = {} if replay else self._kept(folder)
        if not replay and (self.lacking or len(done) < len(self.slots)):
            (folder / METRICS).unlink(missing_ok=True)  # an earlier session's: it would not fit the rows
        appender = None if replay else RowAppender(folder / PREDICTIONS, done.values())
        progress.start(len(self.slots), len(done))
        self.admission.learn([*done.values()][-EARLIER:])
        places = asyncio.Semaphore(window)
        # Oldest question first; but the last ones share a rank, so that they go through their stages side by side and
        # the end of a run keeps its calls in flight.
        last_rank = len(self.slots) - window // 2

        def finished(slot: AnswerSlot, row: PredictionRow) -> None:
            line = done[slot.key] = line_of(row)
            if appender is not None:
                appender.add(line)
            progress.advance(row, self._tokens(row))
            self.admission.answered(row)

        try:
            async with aio.together() as group:
                for order, slot in enumerate(self.slots):
                    if slot.key not in done:
                        await places.acquire()
                        await self._admitted()
                        group.create_task(self._answer(min(order, last_rank), slot, finished, places))
                    elif slot.key in self.lacking:
                        await places.acquire()
                        group.create_task(self._make_up(slot, done, places))
        finally:
            progress.stop()
            self.alone.warn()
            if appender is not None:
                appender.close()
        return [done[slot.key] for slot in self.slots]

    def _kept(self, folder: Path) -> dict[AnswerKey, bytes]:
        """The rows of earlier sessions, of fewer repeats too; a question that ended in an error is answered again."""
        wanted = {slot.key: slot.question for slot in self.slots}
        kept: dict[AnswerKey, bytes] = {}
        damaged = [*self.journal.damages()] if (folder / PREDICTIONS).is_file() else []
        for _, damage in damaged:
            logger.warning("%s", damage)
        if any(kind != "call" for kind, _ in damaged):
            return kept  # rows do not name their searches: all are made anew, and what is gone is searched for again
        is_there = self.journal.is_sound if damaged else self.journal.__contains__
        metrics = self.questions.task.metrics
        for row in iterate_rows(folder / PREDICTIONS, metrics):
            key = (repeat_of(row), row["id"])
            # A row whose calls the journal does not have (it was cut or exchanged) would leave the ledger wrong.
            right = row["error"] is None and not misscored(row, metrics)
            if key in wanted and right and all(is_there(call) for _, call in row["calls"]):
                kept[key] = line_of(self._numbered(row, key[0]))
                if self.alone.lacks(row, wanted[key]):
                    self.lacking.add(key)
        return kept

    async def _make_up(self, slot: AnswerSlot, done: dict[AnswerKey, bytes], places: asyncio.Semaphore) -> None:
        """Search for what a row on file lacks; all else of it stays."""
        try:
            with setting(QUESTION, slot.question.id), setting(JOURNAL, self.journal):
                row = await self.alone.made_up(json.loads(done[slot.key]), slot.question)
                done[slot.key] = line_of(row)
        finally:
            places.release()

    def _numbered(self, row: PredictionRow, repeat: int) -> PredictionRow:
        return numbered(row, repeat if self.repeats > 1 else None)

    async def _answer(
        self, order: int, slot: AnswerSlot, finished: Callable[[AnswerSlot, PredictionRow], None],
        places: asyncio.Semaphore,
    ) -> None:  # fmt: skip
        notes: list[CallNote] = []
        question = slot.question
        try:
            with (
                setting(QUESTION, question.id),
                setting(REPEAT, slot.repeat),
                setting(ORDER, order),
                setting(NOTES, notes),
                setting(JOURNAL, self.journal),
                # A fresh trace and no history: what DSPy remembers of a call would grow with the run.
                dspy.context(
                    lm=self.lm,
                    trace=[],
                    disable_history=True,
                    **{CARRIED: Asker(question.id, order, notes, self.journal, slot.repeat)},
                ),
            ):
                row = await aio.awaiting(self._row(question, notes))
        except (AskedWrong, BudgetSpent, CannotWrite):  # the next question would too, and its calls be paid for in vain
            self._stop_if_spent()  # it may be what came of a call that was refused
            raise
        except aio.ENDING:
            raise
        except BaseException as error:  # whatever a method raises is that question's error, and stands in its row
            logger.debug("question %s failed", question.id, exc_info=True)
            row = failed(self.questions.task, question, error, self._in_order(notes))
        finally:
            places.release()
            self.admission.over()
            self.freed.set()
        self._stop_if_spent()  # a method may have taken the refusal of its call for a reply
        finished(slot, self._numbered(row, slot.repeat))

    async def _row(self, question: Question, notes: list[CallNote]) -> PredictionRow:
        """The row of what the method answers. Whatever reads its prediction may run code of the user's own."""
        if hasattr(self.method, "aforward"):
            prediction = await self.method.acall(question=question.question)
        else:
            call = functools.partial(self.method, question=question.question)
            prediction = await aio.in_thread(call, executor=self.pool)
        row = answered(self.questions.task, question, prediction, self._in_order(notes))
        row = await self.alone.added(row, question, prediction)
        check_row(json.loads(line_of(row)))  # what the file cannot store is this question's error, not the run's
        return row

    async def _admitted(self) -> None:
        """Wait until the budget, where there is one, is likely to finish one more question."""
        while not self.admission.may_begin():
            self.freed.clear()
            await self.freed.wait()
        self.admission.begun()

    def _stop_if_spent(self) -> None:
        if self.purse is not None:
            self.purse.check()

    def _in_order(self, notes: list[CallNote]) -> list[CallNote]:
        """The calls in plan order; a module that is not ours has no plan, and may call side by side: sorted."""
        return notes if isinstance(self.method, Method) else sorted(notes)

    def _tokens(self, row: PredictionRow) -> int:
        records = (self.journal.read_call(key) for _, key in row["calls"])
        return sum((record.get("tokens_in") or 0) + (record.get("tokens_out") or 0) for record in records if record)


class Admission:
    """How many questions a budget lets be under work.

    Args:
        purse: the budget account; None: no limit, every question may begin at once.
        read: a call's record by its key.
    """

    def __init__(self, purse: BudgetAccount | None, read: Callable[[str], Mapping[str, Any] | None]) -> None:
        self._purse, self._read = purse, read
        self._limited = purse is not None and bool(purse.budget.given())
        self._under_work = self._known = 0
        self._took = NOTHING

    def may_begin(self) -> bool:
        """Whether one more question is likely to be finished, with those that are under work."""
        if self._purse is None or not self._limited or not self._under_work:
            return True  # with none under work the budget itself says when it is spent
        if not self._known:
            return self._under_work < AT_FIRST
        calls, tokens = (math.ceil(amount / self._known) for amount in (self._took.calls, self._took.tokens))
        mean = Amount(calls, tokens, self._took.dollars / self._known)
        # What is set aside counts for nothing here: it belongs to questions under work, which count in full.
        return (self._purse.spent + mean.times(self._under_work + 1)).within(self._purse.budget)

    def begun(self) -> None:
        """One more is under work."""
        self._under_work += 1

    def over(self) -> None:
        """One less is."""
        self._under_work -= 1

    def learn(self, lines: Iterable[bytes]) -> None:
        """From rows on file, in the lines of an earlier session."""
        if self._limited:
            for line in lines:
                self.answered(json.loads(line))

    def answered(self, row: Mapping[str, Any]) -> None:
        """Learn what this question took; one that cost nothing (another run's calls) is no measure."""
        if not self._limited:
            return
        records = [self._read(key) for key in dict.fromkeys(key for _, key in row["calls"])]
        took = sum((taken(record) for record in records if record and not record.get("reused")), NOTHING)
        if took != NOTHING:
            self._known += 1
            self._took += took

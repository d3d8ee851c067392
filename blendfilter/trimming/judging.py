"""One sitting of a trim: what is still open is searched for and judged, many questions at once.

In: the bare index, a judge, and where verdicts and calls are kept. Out: an `Outcome` for each question. A verdict is on
file as it comes; a question is closed once all of its passages have theirs. One whose call failed stays open; what
every question would meet alike (no server, a spent budget, a full disk) ends the sitting, with all of it kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import dspy

from blendfilter.context import JOURNAL, NOTES, ORDER, QUESTION, setting
from blendfilter.errors import AskedWrong, BudgetSpent, CannotWrite
from blendfilter.filters.cdit.judge import Judge
from blendfilter.journal import Journal
from blendfilter.lm import bridge
from blendfilter.lm.budget import Purse
from blendfilter.lm.held import connected
from blendfilter.lm.model import ConnectedLM
from blendfilter.records import Passage
from blendfilter.retrieval.base import ProgressCallback, Retriever, fingerprint_of
from blendfilter.trimming.planning import Turn
from blendfilter.trimming.witnesses import By, Judged, Witnesses, Writer

logger = logging.getLogger(__name__)
PHASE = "judging questions"


class Outcome(NamedTuple):
    """What became of one question: what was said of its passages, in rank order, or what went wrong."""

    turn: Turn
    verdicts: Mapping[str, bool | None]
    error: BaseException | None = None


class Sitting:
    """The questions that are still open, judged by `outcomes`."""

    def __init__(
        self,
        index: Retriever,
        k: int,
        judge: Judge,
        lm: ConnectedLM,
        journal: Journal,
        writer: Writer,
        before: Witnesses,
        purse: Purse | None,
    ) -> None:
        self.index, self.k, self.judge, self.lm = index, k, judge, lm
        self.journal, self.writer, self.before, self.purse = journal, writer, before, purse
        self.by = by_of(judge, lm)

    async def outcomes(self, turns: Sequence[Turn], concurrency: int, progress: ProgressCallback) -> list[Outcome]:
        """What became of each of `turns`, in their order."""
        places = asyncio.Semaphore(2 * concurrency)
        done = 0

        async def one(order: int, turn: Turn) -> Outcome:
            nonlocal done
            try:
                outcome = await self._one(order, turn)
            finally:
                places.release()
            done += 1
            progress(PHASE, done, len(turns))
            return outcome

        tasks = []
        async with bridge.together() as group:
            for order, turn in enumerate(turns):
                await places.acquire()
                tasks.append(group.create_task(one(order, turn)))
        return [task.result() for task in tasks]

    async def _one(self, order: int, turn: Turn) -> Outcome:
        with (
            setting(QUESTION, turn.id),
            setting(ORDER, order),
            setting(NOTES, []),
            setting(JOURNAL, self.journal),
            dspy.context(lm=self.lm, trace=[], disable_history=True),
        ):
            try:
                (found,) = await bridge.in_thread(self.index.search, [turn.question], self.k)
                if self.writer.witnesses.is_judged(turn.id):  # by another judge, without one verdict
                    self.writer.undo_question(turn.id)
                verdicts = await self._verdicts(turn, list({passage.id: passage for passage in found}.values()))
            except (AskedWrong, BudgetSpent, CannotWrite, *bridge.ENDING):
                raise
            except BaseException as error:  # whatever a call or an index raises is this question's error, and is shown
                if self.purse is not None:
                    self.purse.check()  # it may be what came of a call that was refused
                logger.debug("question %s failed", turn.id, exc_info=True)
                return Outcome(turn, {}, error)
        self.writer.close(turn.question, list(verdicts))
        return Outcome(turn, verdicts)

    async def _verdicts(self, turn: Turn, passages: Sequence[Passage]) -> dict[str, bool | None]:
        """What is said of each passage, in rank order; all are waited for, even after an error: they are paid for."""
        half = self.before.half(turn.id, self.by)

        async def one(passage: Passage) -> bool | None:
            if passage.id in half:
                return half[passage.id]
            judged = await bridge.awaiting(self.judge.acall(question=turn.question, passage=passage))
            verdict: bool | None = judged.verdict
            self.writer.verdict(turn.question, passage.id, verdict, self.by)
            return verdict

        said = await asyncio.gather(*(one(passage) for passage in passages), return_exceptions=True)
        verdicts: dict[str, bool | None] = {}
        for passage, each in sorted(zip(passages, said, strict=True), key=lambda pair: _rank(pair[1])):
            if isinstance(each, BaseException):
                raise each
            verdicts[passage.id] = each
        return verdicts


def by_of(judge: Judge, lm: ConnectedLM) -> By:
    """Who judges: a digest of all that shapes the judge's verdicts, and its parts that people know by name."""
    told = judge.identity()
    own = next(iter(connected(judge).values()), lm)  # a judge may hold a model of its own
    label = own.identity.get("label")
    return By(
        judge=fingerprint_of(told)[:12],
        mode=str(told["mode"]),
        rules=tuple(str(rule["name"]) for rule in told["rules"]),
        model=f"{own.name} ({label})" if label else own.name,
        program=str(told["program"]),
    )


def taught_nothing(judged: Judged, by: By) -> bool:
    """Whether another judge than `by` closed a question without one verdict: it may be judged anew as it is."""
    return bool(judged.silent) and not (judged.accepted or judged.rejected) and judged.by != by


def _rank(said: object) -> int:
    """What ends the whole sitting comes first, then what this question alone met, then verdicts."""
    if not isinstance(said, BaseException):
        return 2
    ends = isinstance(said, (AskedWrong, BudgetSpent, CannotWrite, *bridge.ENDING))
    return 0 if ends else 1

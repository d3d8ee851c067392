"""Short cases with a known outcome for what BlendFilter does not use: CDIT's judge in both modes, FilCo's numbers.

They stand in `doctor.toml`. Their calls are kept in a journal of their own in the run's folder, so that none is made
twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import dspy

from blendfilter import aio
from blendfilter.context import calls_of, noting, setting
from blendfilter.errors import ModelError
from blendfilter.evaluation.rows import Record
from blendfilter.filters.cdit import Judge
from blendfilter.filters.filco import FilCoFilter
from blendfilter.journal import FILE, Journal
from blendfilter.records import Passage
from blendfilter.run_context import RunContext

FOLDER = "cases"
WORD, COMPONENTS, SENTENCES = "cdit word", "cdit components", "filco sentences"
"""The names of their stages in tables."""


@dataclass(frozen=True)
class CaseOutcome:
    """One case that was asked: its stage, the keys and records of its calls, and what came of it.

    Attributes:
        events: what happened and what did not, by the names of `doctor.SHARES`; empty after an error.
        error: the error's kind.
    """

    stage: str
    calls: tuple[str, ...]
    records: tuple[Record, ...]
    events: Mapping[str, bool]
    error: str = ""

    @property
    def read_at_once(self) -> bool:
        """Whether the first reply could be read: there was no second request."""
        return not self.error and len(self.calls) == 1


def ask_cases(
    lm: dspy.BaseLM, folder: Path, concurrency: int, cases: Record
) -> Sequence[CaseOutcome]:
    """Ask `lm` all `cases`; `folder` is the run's. Raises: ServerRefused, BudgetSpent."""
    context = RunContext(lm, concurrency=concurrency)
    with Journal(folder / FOLDER / FILE) as journal, context.opened(journal):
        work = _ask_all(context.lm, journal, cases)
        return aio.run(work, "examine", "await asyncio.to_thread(examine, …)")


async def _ask_all(lm: dspy.BaseLM, journal: Journal, cases: Record) -> list[CaseOutcome]:
    judges = {WORD: Judge("word"), COMPONENTS: Judge("components")}
    work = [
        (stage, partial(_judged, judge, **case))
        for stage, judge in judges.items()
        for case in cases["judged"]
    ]
    select = FilCoFilter(offer_none=False)
    work += [(SENTENCES, partial(_chosen, select, **case)) for case in cases["chosen"]]
    async with aio.together() as group:
        tasks = [group.create_task(_ask(stage, events, lm, journal)) for stage, events in work]
    return [task.result() for task in tasks]


async def _ask(
    stage: str,
    events: Callable[[], Awaitable[Mapping[str, bool]]],
    lm: dspy.BaseLM,
    journal: Journal,
) -> CaseOutcome:
    with (
        setting(question=stage),
        noting() as notes,
        dspy.context(lm=lm, trace=None, disable_history=True),
    ):
        try:
            found, kind = await events(), ""
        except ModelError as error:
            found, kind = {}, error.kind
    keys = tuple(note.key for note in calls_of(notes))
    records = (journal.read_call(key) for key in keys)
    replies = tuple(record for record in records if record and "reply" in record)
    return CaseOutcome(stage, keys, replies, found, kind)


async def _judged(
    judge: Judge, *, question: str, passage: Record, consistent: bool
) -> Mapping[str, bool]:
    found = await judge.acall(question=question, passage=Passage(**passage))
    return {
        "no_verdict": found.verdict is None,
        "wrong_verdict": found.verdict is (not consistent),
    }


async def _chosen(
    select: FilCoFilter, *, question: str, passages: Sequence[Record], answers: int
) -> Mapping[str, bool]:
    shown = [Passage(**passage) for passage in passages]
    found = await select.acall(question=question, passages=shown)
    return {
        "unparseable_sentences": "unparseable_ids" in found.flags,
        "dropped_sentence": answers not in found.chosen,
    }

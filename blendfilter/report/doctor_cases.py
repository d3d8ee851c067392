"""Short cases with a known outcome for what BlendFilter does not use: CDIT's judge in both modes, FilCo's numbers.

Their calls are kept in a journal of their own in the run's folder, so that none is made twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import dspy

from blendfilter import aio
from blendfilter.context import calls_of, noting, setting
from blendfilter.errors import ModelError
from blendfilter.evaluation.ledger import LedgerEntry, ledger
from blendfilter.filters.cdit import Judge
from blendfilter.filters.filco import FilCoFilter
from blendfilter.journal import FILE, Journal
from blendfilter.records import Passage
from blendfilter.run_context import RunContext

FOLDER = "cases"
WORD, COMPONENTS, SENTENCES = "cdit word", "cdit components", "filco sentences"
"""The names of their stages in tables."""


class JudgeCase(NamedTuple):
    """A question, a passage, and the verdict that phi1 wants."""

    question: str
    passage: Passage
    consistent: bool


class SentenceCase(NamedTuple):
    """A question, passages of a few sentences, and the number of the sentence that answers it."""

    question: str
    passages: tuple[Passage, ...]
    answers: int


JUDGED = (
    JudgeCase(
        "Who turned on the lamp of Brask Pier?",
        Passage("on", "Brask Pier", "The lamp of Brask Pier was turned on by Edda Holm."),
        True,
    ),
    JudgeCase(
        "Who turned on the lamp of Brask Pier?",
        Passage("off", "Brask Pier", "Edda Holm turned off the lamp of Brask Pier."),
        False,
    ),
    JudgeCase(
        "When was Oddle Mill built?",
        Passage("mill", "Oddle Mill", "Two brothers built Oddle Mill in 1790."),
        True,
    ),
    JudgeCase(
        "Who won the boat race of Norrey?",
        Passage("race", "Norrey", "Ola Brandt lost the boat race of Norrey."),
        False,
    ),
)
CHOSEN = (
    SentenceCase(
        "In which year did the ferry to Norrey begin?",
        (
            Passage(
                "a",
                "Norrey",
                "Norrey is an island of two villages. The ferry to Norrey began in 1874.",
            ),
            Passage("b", "Brask", "Brask has a pier. Its market is held on Fridays."),
        ),
        1,
    ),
    SentenceCase(
        "Who painted the ceiling of Vell Chapel?",
        (
            Passage("a", "Vell Harbour", "Vell Harbour freezes in January."),
            Passage(
                "b",
                "Vell Chapel",
                "Its bell is cracked. The ceiling of Vell Chapel was painted by Ines Marrow.",
            ),
        ),
        2,
    ),
    SentenceCase(
        "On which river does Oddle Mill stand?",
        (
            Passage("a", "Oddle Mill", "Oddle Mill stands on the river Tane. It grinds oats."),
            Passage("b", "Lissen", "Lissen is a village. A potter works there."),
        ),
        0,
    ),
)


@dataclass(frozen=True)
class CaseOutcome:
    """One case that was asked: its stage, its calls as journaled, and what came of it.

    Attributes:
        events: what happened and what did not, by the names of `doctor.SHARES`; empty after an error.
        error: the error's kind.
    """

    stage: str
    calls: tuple[str, ...]
    events: Mapping[str, bool]
    error: str = ""

    @property
    def read_at_once(self) -> bool:
        """Whether the first reply could be read: there was no second request."""
        return not self.error and len(self.calls) == 1


class CaseReplies(NamedTuple):
    """All cases; by stage, the records of their calls, and what these took."""

    outcomes: Sequence[CaseOutcome]
    records: Mapping[str, Sequence[Mapping[str, Any]]]
    entries: Mapping[str, LedgerEntry]


def ask_cases(lm: dspy.BaseLM, folder: Path, concurrency: int) -> CaseReplies:
    """Ask `lm` all cases; `folder` is the run's. Raises: ServerRefused, BudgetSpent."""
    context = RunContext(lm, concurrency=concurrency)
    with Journal(folder / FOLDER / FILE) as journal, context.opened(journal):
        outcomes = aio.run(_ask_all(context), "examine", "await asyncio.to_thread(examine, …)")
        records: dict[str, list[Mapping[str, Any]]] = {}
        for outcome in outcomes:
            found = (journal.read_call(key) for key in outcome.calls)
            records.setdefault(outcome.stage, []).extend(
                record for record in found if record and "reply" in record
            )
        rows = ({"calls": [(outcome.stage, key) for key in outcome.calls]} for outcome in outcomes)
        entries = {
            stage: entry
            for stage, entry in ledger(rows, journal.read_call).items()
            if stage != "total"
        }
    return CaseReplies(outcomes, records, entries)


async def _ask_all(context: RunContext) -> list[CaseOutcome]:
    judges = {WORD: Judge("word"), COMPONENTS: Judge("components")}
    work = [
        (stage, partial(_judged, judge, case)) for stage, judge in judges.items() for case in JUDGED
    ]
    work += [(SENTENCES, partial(_chosen, FilCoFilter(offer_none=False), case)) for case in CHOSEN]
    async with aio.together() as group:
        tasks = [group.create_task(_ask(stage, events, context.lm)) for stage, events in work]
    return [task.result() for task in tasks]


async def _ask(
    stage: str, events: Callable[[], Awaitable[Mapping[str, bool]]], lm: dspy.BaseLM
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
    return CaseOutcome(stage, tuple(note.key for note in calls_of(notes)), found, kind)


async def _judged(judge: Judge, case: JudgeCase) -> Mapping[str, bool]:
    found = await judge.acall(question=case.question, passage=case.passage)
    return {
        "no_verdict": found.verdict is None,
        "wrong_verdict": found.verdict is (not case.consistent),
    }


async def _chosen(select: FilCoFilter, case: SentenceCase) -> Mapping[str, bool]:
    found = await select.acall(question=case.question, passages=case.passages)
    return {
        "unparseable_sentences": "unparseable_ids" in found.flags,
        "dropped_sentence": case.answers not in found.chosen,
    }

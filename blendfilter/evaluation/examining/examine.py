"""A model examined: sample questions through BlendFilter, its replies counted, its server probed, advice drawn.

In: a model. Out: an `Examination`. The questions are a run like any other, journaled and resumable; the probes are not
journaled, for they are about the server as it is now.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy

from blendfilter.errors import BadArgument
from blendfilter.evaluation.examining.advice import Connection, Finding, findings
from blendfilter.evaluation.examining.seen import Seen, seen
from blendfilter.evaluation.known import Known
from blendfilter.evaluation.progress import Progress, progress_for
from blendfilter.evaluation.replies import MAX_BAD_REPLIES, Share, check_share
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.runner import CONCURRENCY, evaluate
from blendfilter.evaluation.statistics import wilson_interval
from blendfilter.lm.budget import Budget
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.lm.probing import Probe, probe
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.records import Question
from blendfilter.resources import sample
from blendfilter.retrieval.bm25 import BM25
from blendfilter.tasks import load
from blendfilter.tasks.base import Questions

QUESTIONS = 20


@dataclass(frozen=True)
class Examination:
    """What was found out: the run, what was seen in it, what the server supports, what to change."""

    run: Run
    model: str
    seen: Seen
    probes: Sequence[Probe]
    findings: Sequence[Finding]

    @property
    def healthy(self) -> bool:
        """Whether nothing is bad: no errors, and no share that `eval` would warn of."""
        return not any(each.bad for each in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """All of it as JSON, in fractions of 1."""
        total = self.seen.entries["total"]
        return {
            "model": self.model,
            "run": str(self.run.folder),
            "healthy": self.healthy,
            "questions": self.seen.questions,
            "replies": {name: _share(share) for name, share in self.seen.shares.items()},
            "stages": {
                stage: {name: dataclasses.asdict(share) for name, share in shares.items()}
                for stage, shares in self.seen.stages.items()
            },
            "errors": dict(self.seen.errors),
            "ledger": {
                **total.stored(),
                "tokens_cached": total.tokens_cached if total.cached_of else None,
                "seconds": round(total.seconds, 3),
            },
            "server": [each._asdict() for each in self.probes],
            "findings": [each._asdict() for each in self.findings],
        }


def examine(
    lm: dspy.BaseLM | str,
    *,
    questions: int = QUESTIONS,
    run: str | Path | None = None,
    concurrency: int = CONCURRENCY,
    budget: Budget | None = None,
    max_bad_replies: float = MAX_BAD_REPLIES,
    progress: Progress | bool = True,
) -> Examination:
    """Ask `lm` some of the sample's questions through BlendFilter, and say whether it does what the pipeline asks.

    Args:
        lm: a model, as `evaluate` takes it.
        questions: how many of the sample's, spread over its kinds.
        run: the run's folder, where the same call goes on; a temporary one by default.
        concurrency: model calls in flight.
        budget: what the questions may take; the probes, some ten tiny calls, come on top.
        max_bad_replies: the share of unparseable, empty or cut replies above which it is not healthy.
        progress: as in `evaluate`.

    Raises:
        BadArgument: more questions than the sample has, or none. ServerRefused: the server is not there, or refuses us.
        BudgetSpent: the limit is reached; with `run`, the same call with a higher one goes on.
    """
    check_share(max_bad_replies, "max_bad_replies")
    asked = chosen(questions)
    model = connect(lm)
    index = BM25.for_corpus(sample("corpus.jsonl"))
    shown = progress_for([]) if progress is True else progress
    done = evaluate(
        BlendFilter(index), asked, lm=model, run=run, concurrency=concurrency, budget=budget, progress=shown
    )
    return examined(done, model, max_bad_replies)


def examined(run: Run, lm: ConnectedLM, max_bad_replies: float = MAX_BAD_REPLIES) -> Examination:
    """What a run of BlendFilter by `lm` shows, and what its server supports."""
    told = seen(Known(run))
    probes = probe(lm)
    return Examination(
        run=run,
        model=lm.name,
        seen=told,
        probes=probes,
        findings=findings(told, Connection.of(lm, probes, told), max_bad_replies),
    )


def chosen(n: int) -> Questions:
    """`n` questions of the sample, an equal number of each kind as far as there are so many, each kind spread evenly.

    >>> [question.type for question in chosen(3)]
    ['bridge', 'comparison', 'yes_no']
    """
    every = load("hotpotqa", sample("questions.jsonl"))
    if not 1 <= n <= len(every):
        raise BadArgument(f"questions is {n}: the sample has {len(every)}, give a number from 1 to that")
    kinds: dict[str, list[Question]] = {}
    for question in every:
        kinds.setdefault(str(question.type), []).append(question)
    sizes = dict.fromkeys(kinds, 0)
    while sum(sizes.values()) < n:
        for kind, rows in kinds.items():
            sizes[kind] += sum(sizes.values()) < n and sizes[kind] < len(rows)
    spread = {kind: _evenly(rows, sizes[kind]) for kind, rows in kinds.items()}
    places = range(max(sizes.values()))
    picked = [rows[place] for place in places for rows in spread.values() if place < len(rows)]
    return Questions(tuple(picked), every.task, "sample")


def _evenly(rows: Sequence[Question], n: int) -> list[Question]:
    return [rows[place * len(rows) // n] for place in range(n)]


def _share(share: Share) -> dict[str, Any]:
    if not share.of:
        return {"count": 0, "of": 0, "value": None}
    told = wilson_interval(share.count, share.of)._asdict()
    return {**dataclasses.asdict(share), **{name: round(value, 4) for name, value in told.items()}}

"""The cost of a table, before anything is spent.

The methods themselves are rehearsed over a few questions with the offline reader in the model's place
(`blendfilter.evaluation.plan`), in a temporary folder: no call leaves this machine. Replies are as long as the
model's were in earlier runs, else as the reader's; a model that thinks pays more.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from blendfilter.evaluation.ledger import money
from blendfilter.evaluation.plan import Estimator, added, left_of, rehearse, spread
from blendfilter.journal import FILE
from blendfilter.reproduce.inputs import journals_of
from blendfilter.reproduce.runs import TableRun, earlier, finished
from blendfilter.text import aligned

PILOT = 5
"""Questions a run, evenly spread, that the estimate answers."""
_HEADER = ("run", "a question", "calls", "new calls", "new tokens in", "out", "cost", "")
_COUNTED = ("calls", "new_calls", "new_tokens_in", "new_tokens_out")


@dataclass(frozen=True)
class RunCost:
    """The cost of one run: `calls` are all that it uses; those that no earlier run has made are new, and paid for.

    `errors` are answers of a finished run that the same command asks for again.
    """

    label: str
    task: str
    a_question: float
    calls: int
    new_calls: int
    new_tokens_in: int
    new_tokens_out: int
    new_cost: float | None
    finished: bool
    errors: int


@dataclass(frozen=True)
class TableCost:
    """The cost of a table, run by run, estimated from `pilot` questions a run."""

    runs: tuple[RunCost, ...]
    pilot: int
    tokenisers: Mapping[str, str]
    prices: Mapping[str, str]

    def total(self, name: str) -> Any:
        """The sum of one figure over all runs; None where it is unknown of any."""
        return added(self.runs, name)

    def text(self) -> str:
        """The plan as aligned text, with how to read it below."""
        rows = [
            [f"{run.task}: {run.label}", f"{run.a_question:.2f}", *(f"{getattr(run, name):,}" for name in _COUNTED),
             money(run.new_cost), "finished" * run.finished + f", {run.errors} failed" * bool(run.errors)]
            for run in self.runs
        ]  # fmt: skip
        total = ["total", "", *(f"{self.total(name):,}" for name in _COUNTED), money(self.total("new_cost")), ""]
        header, *lines, last = aligned([_HEADER, *rows, total])
        ruler = "-" * max(map(len, [header, *lines]))
        saved = sum(run.calls - run.new_calls for run in self.runs if not run.finished)
        notes = [
            f"estimated from {self.pilot} questions a run, answered by the offline reader: nothing was spent",
            *(f"tokens: {name}" for name in dict.fromkeys(self.tokenisers.values())),
            "replies: as long as the model's in earlier runs, else as the offline reader's; thinking comes on top",
            *(f"cost: {words}" for words in dict.fromkeys(self.prices.values())),
            f"new: no finished run and none above it has made these; reuse between the runs saves {saved:,} calls",
        ]
        return "\n".join([header, ruler, *lines, ruler, last, "", *notes])


def plan(wanted: Sequence[TableRun], *, repeats: int = 1, pilot: int = PILOT) -> TableCost:
    """The cost of all runs in `wanted`, each distinct one once, in their order."""
    distinct = {run.folder: run for run in wanted}
    journals = {
        folder for run in distinct.values() for folder in (run.folder, *earlier(run.folder, run.task))
        if (folder / FILE).is_file()
    }  # fmt: skip
    estimator = Estimator(sorted(journals))
    with tempfile.TemporaryDirectory(prefix="blendfilter-plan-") as scratch:
        costs = tuple(_cost(run, Path(scratch), pilot, estimator, repeats) for run in distinct.values())
    most = max(len(run.questions) for run in distinct.values())
    return TableCost(costs, min(pilot, most), estimator.tokenisers, estimator.prices)


def _cost(run: TableRun, scratch: Path, pilot: int, estimator: Estimator, repeats: int) -> RunCost:
    """Rehearse some questions of a run; what earlier runs hold, real ones and rehearsed ones, is taken over."""
    some = replace(run.questions, items=tuple(spread(run.questions, pilot)))
    reuse = [*earlier(run.folder, run.task), *journals_of(scratch, run.task)]
    tried = rehearse(run.method, some, run.lm, scratch / run.folder.name, reuse=reuse, name=run.row.method)
    answered = len(tried.run.rows)
    used = {key for row in tried.run.rows for _, key in row["calls"]}
    a_question = len(used) / answered
    there = finished(run.folder)
    missing = len(left_of(run.questions, repeats, run.folder)) / answered
    new = estimator.estimates(tried.calls)
    cost = added(new, "cost")
    return RunCost(
        run.label, run.task, a_question, round(a_question * len(run.questions) * repeats), round(missing * len(new)),
        round(missing * added(new, "tokens_in")), round(missing * added(new, "tokens_out")),
        None if cost is None else missing * cost, there is not None, 0 if there is None else there.errors,
    )  # fmt: skip

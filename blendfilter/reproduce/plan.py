"""The cost of a table, before anything is spent.

The methods themselves are rehearsed over a few questions with the offline reader in the model's place
(`blendfilter.evaluation.plan`), in a temporary folder: no call leaves this machine. Replies are as long as the
model's were in earlier runs, else as the reader's; a model that thinks pays more.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from blendfilter.asking import TaskWording
from blendfilter.evaluation.ledger import money
from blendfilter.evaluation.plan import Estimator, added, left_of, rehearse, spread
from blendfilter.journal import FILE
from blendfilter.reproduce.inputs import journals_of
from blendfilter.reproduce.printing import aligned
from blendfilter.reproduce.runs import TableRun, finished, reusable
from blendfilter.reproduce.tables import JUDGES

PILOT = 5
"""Questions a run, evenly spread, that the estimate answers."""
_COUNTED = ("calls", "new_calls", "new_tokens_in", "new_tokens_out")


@dataclass(frozen=True)
class RunCost:
    """The cost of one run: `calls` are all that it uses; those that no earlier run has made are new, and paid for.

    `design` is the number of calls a question that the method makes by design; `errors` are answers of a finished run
    that the same command asks for again.
    """

    label: str
    task: str
    design: str
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

    def total(self, name: str) -> int:
        """The sum of one figure over all runs."""
        return int(added(self.runs, name))

    @property
    def cost(self) -> float | None:
        """Dollars for all that is new; None where a price is unknown."""
        cost: float | None = added(self.runs, "new_cost")
        return cost

    def text(self) -> str:
        """The plan as aligned text, with how to read it below."""
        lines = aligned([
            ["run", "calls a question", "calls", "new calls", "new tokens in", "out", "cost", ""],
            *([f"{run.task}: {run.label}", run.design, *(f"{getattr(run, name):,}" for name in _COUNTED),
               money(run.new_cost), "finished" * run.finished + f", {run.errors} failed" * bool(run.errors)]
              for run in self.runs),
            ["total", "", *(f"{self.total(name):,}" for name in _COUNTED), money(self.cost), ""],
        ])  # fmt: skip
        ruler = "-" * max(map(len, lines))
        saved = sum(run.calls - run.new_calls for run in self.runs if not run.finished)
        notes = [
            f"estimated from {self.pilot} questions a run, answered by the offline reader: nothing was spent",
            *(f"tokens: {name}" for name in dict.fromkeys(self.tokenisers.values())),
            "replies: as long as the model's in earlier runs, else as the offline reader's; thinking comes on top",
            *(f"cost: {words}" for words in dict.fromkeys(self.prices.values())),
            "calls a question: by design; runs share a call where two prompts are the same, and a filter's reply that",
            "  cannot be read is asked for once more",
            f"new: no finished run and none above it has made these; reuse between the runs saves {saved:,} calls",
            "  (the offline reader repeats itself more than a model does: expect a little less)",
        ]
        return "\n".join([lines[0], ruler, *lines[1:-1], ruler, lines[-1], "", *notes]) + "\n"


def plan(wanted: Sequence[TableRun], *, repeats: int = 1, pilot: int = PILOT) -> TableCost:
    """The cost of all runs in `wanted`, each distinct one once, in their order."""
    distinct = {run.folder: run for run in wanted}
    earlier = {folder: reusable(folder, run.task, run.lm.name) for folder, run in distinct.items()}
    journals = {folder for folder in chain(distinct, *earlier.values()) if (folder / FILE).is_file()}
    estimator = Estimator(sorted(journals))
    with tempfile.TemporaryDirectory(prefix="blendfilter-plan-") as scratch:
        costs = [_cost(run, earlier[run.folder], Path(scratch), pilot, estimator, repeats) for run in distinct.values()]
    most = max(len(run.questions) for run in distinct.values())
    return TableCost(tuple(costs), min(pilot, most), estimator.tokenisers, estimator.prices)


def _cost(
    run: TableRun, earlier: Sequence[Path], scratch: Path, pilot: int, estimator: Estimator, repeats: int
) -> RunCost:  # fmt: skip
    """Rehearse some questions of a run; what earlier runs hold, real ones and rehearsed ones, is taken over."""
    some = replace(run.questions, items=tuple(spread(run.questions, pilot)))
    reuse = [*earlier, *journals_of(scratch, run.task)]
    tried = rehearse(run.method, some, run.lm, scratch / run.folder.name, reuse=reuse, name=run.row.method)
    n, answered = len(run.questions), len(tried.run.rows)
    used = {key for row in tried.run.rows for _, key in row["calls"]}
    there = finished(run.folder)
    missing = len(left_of(run.questions, repeats, run.folder)) / answered
    new = estimator.estimates(tried.calls)
    cost = added(new, "cost")
    return RunCost(
        run.label, run.task, calls_by_design(run), round(len(used) * n * repeats / answered),
        round(missing * len(new)), round(missing * added(new, "tokens_in")), round(missing * added(new, "tokens_out")),
        None if cost is None else missing * cost, there is not None, 0 if there is None else there.errors,
    )  # fmt: skip


def calls_by_design(run: TableRun) -> str:
    """The calls a question that the method is made of.

    Exact where nothing can be shared or repeated: one call of `direct`, two of `cot`, the samples and one more.
    """
    settings: dict[str, Any] = run.row.settings(run.task)
    method = run.row.method
    name = settings.get("filter", "knowledge" if method == "blendfilter" else "")
    topic = name == "knowledge" and TaskWording.of(run.questions.task.wording).ask_topic
    a_list = {
        **dict.fromkeys(JUDGES, run.point.k), "knowledge": 2, "one-call": 1, "filco": 1, "filco-passage": 1,
    }.get(name, 0)  # fmt: skip
    if method == "blendfilter":
        # external and internal answer, the topic, a filter a branch (or one for all), the answer, its short form
        dropped = settings.get("without", ())
        branches = 1 if settings.get("filter_union") else 3 - len(dropped)
        return f"{('q_ex' not in dropped) + ('q_in' not in dropped) + topic + branches * a_list + 2} at most"
    a_filter = a_list + topic
    if method == "iter-retgen":
        return f"{settings.get('iterations', 2) * (1 + a_filter) + 1} at most"
    exact = {"direct": 1, "direct-retrieval": 1, "ralm": 1, "cot": 2, "cot-retrieval": 2,
             "self-consistency": settings.get("samples", 10) + 1}  # fmt: skip
    return f"{exact[method] + a_filter}" + " at most" * bool(a_filter) if method in exact else "varies"

"""What a table will cost, before anything is spent.

In: the runs that are wanted. Out: a `Planned` for each: calls, tokens and dollars, how many of them no earlier run has
made and none above it in the table will have, and the number of calls that the method makes by design.

The estimate comes of rehearsing the very methods and indexes over a few questions with the offline reader in the
model's place (`blendfilter.evaluation.rehearsal`), in a temporary folder: no call leaves this machine. Replies are as
long as the model's were in earlier runs, else as the reader's; a model that thinks pays more.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from blendfilter.asking import TaskWording
from blendfilter.evaluation.estimates import Estimator, added
from blendfilter.evaluation.plan import left_of, spread
from blendfilter.evaluation.planned import money
from blendfilter.evaluation.rehearsal import Rehearsal, rehearse
from blendfilter.evaluation.reproducing.doing import finished, reusable
from blendfilter.evaluation.reproducing.papers import JUDGES
from blendfilter.evaluation.reproducing.runs import Wanted
from blendfilter.journal import FILE
from blendfilter.tasks import Questions

PILOT = 5
"""Questions a run, evenly spread, that the estimate answers."""
_FILTER_CALLS = {"knowledge": 2, "one-call": 1, "filco": 1, "filco-passage": 1}
"""Of one list of passages; a judge is asked of each passage."""


@dataclass(frozen=True)
class Planned:
    """One run's cost: `calls` are all that it uses; what is `new` has to be paid for.

    `errors`: answers of a finished run that the same command asks for again.
    """

    run: str
    label: str
    task: str
    n: int
    design: str
    calls: int
    new_calls: int
    new_tokens_in: int
    new_tokens_out: int
    new_cost: float | None
    finished: bool
    errors: int = 0

    @property
    def state(self) -> str:
        """How far the run is, in a word or two."""
        return "finished" * self.finished + f", {self.errors} failed" * bool(self.errors)


@dataclass(frozen=True)
class Plan:
    """The cost of a table, run by run."""

    runs: tuple[Planned, ...]
    pilot: int
    tokenisers: Mapping[str, str] = field(default_factory=dict)
    prices: Mapping[str, str] = field(default_factory=dict)

    def total(self, name: str) -> int:
        """The sum of one figure over all runs."""
        return sum(int(getattr(run, name)) for run in self.runs)

    @property
    def cost(self) -> float | None:
        """Dollars for all that is new; None where a price is unknown."""
        cost: float | None = added(self.runs, "new_cost")
        return cost

    def text(self) -> str:
        """The plan as aligned text, with how to read it below."""
        header = ["run", "calls a question", "calls", "new calls", "new tokens in", "out", "cost", ""]
        body = [
            [f"{each.task}: {each.label}", each.design, *_counts(each), money(each.new_cost), each.state]
            for each in self.runs
        ]
        total = ["total", "", *(f"{self.total(name):,}" for name in _COUNTED), money(self.cost), ""]
        first, *others = (max(map(len, column)) for column in zip(header, *body, total, strict=True))
        lines = [
            "  ".join([name.ljust(first), *map(str.rjust, cells, others)]).rstrip()
            for name, *cells in [header, *body, total]
        ]
        ruler = "-" * max(map(len, lines))
        return "\n".join([lines[0], ruler, *lines[1:-1], ruler, lines[-1], "", *self._notes()]) + "\n"

    def _notes(self) -> Iterator[str]:
        saved = sum(run.calls - run.new_calls for run in self.runs if not run.finished)
        yield f"estimated from {self.pilot} questions a run, answered by the offline reader: nothing was spent"
        yield from (f"tokens: {name}" for name in dict.fromkeys(self.tokenisers.values()))
        yield "replies: as long as the model's in earlier runs, else as the offline reader's; thinking comes on top"
        for words in dict.fromkeys(self.prices.values()):
            yield f"cost: {words}"
        yield "calls a question: by design; runs share a call where two prompts are the same, and a filter's reply that"
        yield "  cannot be read is asked for once more"
        yield f"new: no finished run and none above it has made these; reuse between the runs saves {saved:,} calls"
        yield "  (the offline reader repeats itself more than a model does: expect a little less)"


_COUNTED = ("calls", "new_calls", "new_tokens_in", "new_tokens_out")


def _counts(planned: Planned) -> list[str]:
    return [f"{getattr(planned, name):,}" for name in _COUNTED]


def plan(wanted: Sequence[Wanted], *, repeats: int = 1, pilot: int = PILOT) -> Plan:
    """The cost of all runs in `wanted`, each distinct one once, in their order."""
    distinct = {each.folder: each for each in wanted}
    earlier = {
        folder for each in distinct.values() for folder in [*_made(each), each.folder] if (folder / FILE).is_file()
    }
    estimator = Estimator(sorted(earlier))
    with tempfile.TemporaryDirectory(prefix="blendfilter-plan-") as folder:
        planned = [_planned(each, _tried(each, Path(folder), pilot), estimator, repeats) for each in distinct.values()]
    most = max(len(each.questions) for each in distinct.values())
    return Plan(tuple(planned), min(pilot, most), estimator.tokenisers, estimator.prices)


def _made(each: Wanted) -> list[Path]:
    """Runs that are there already and may hold some of its calls."""
    return reusable(each.folder, each.task, each.lm.name)


def _tried(each: Wanted, folder: Path, pilot: int) -> Rehearsal:
    """Some questions of a run, rehearsed; what earlier runs hold, real ones and rehearsed ones, is taken over."""
    rehearsed = [path.parent for path in sorted(folder.glob(f"{each.task}-*/{FILE}"))]
    some = Questions(tuple(spread(each.questions, pilot)), each.questions.task, each.questions.source)
    reuse = [*_made(each), *rehearsed]
    return rehearse(each.method, some, each.lm, folder / each.folder.name, reuse=reuse, name=each.row.method)


def _planned(each: Wanted, tried: Rehearsal, estimator: Estimator, repeats: int) -> Planned:
    n, answered = len(each.questions), len(tried.run.rows)
    used = {key for row in tried.run.rows for _, key in row["calls"]}
    there = finished(each.folder)
    missing = len(left_of(each.questions, repeats, each.folder)) / answered
    new = estimator.estimates(tried.calls)
    cost = added(new, "cost")
    return Planned(
        each.folder.name, _label(each), each.task, n, by_design(each), round(len(used) * n * repeats / answered),
        round(missing * len(new)), round(missing * added(new, "tokens_in")), round(missing * added(new, "tokens_out")),
        None if cost is None else missing * cost, there is not None, 0 if there is None else there.errors,
    )  # fmt: skip


def _label(each: Wanted) -> str:
    return ", ".join(part for part in (each.row.group, each.row.label, each.point.name) if part)


def by_design(each: Wanted) -> str:
    """The calls a question that the method is made of.

    Exact where nothing can be shared or asked again: one call of `direct`, two of `cot`, the samples and one more.
    """
    settings = each.row.settings(each.task)
    topic = TaskWording.of(each.questions.task.wording).ask_topic
    method, name = each.row.method, settings.get("filter")
    if method == "blendfilter":
        return f"{_blendfilter(settings, topic, each.point.k)} at most"
    a_filter = _filter_calls(name, each.point.k) + (name == "knowledge" and topic)
    exact = {"direct": 1, "direct-retrieval": 1, "ralm": 1, "cot": 2, "cot-retrieval": 2}
    if method in exact:
        return f"{exact[method] + a_filter}" + " at most" * bool(a_filter)
    if method == "self-consistency":
        return f"{settings.get('samples', 10) + 1 + a_filter}" + " at most" * bool(a_filter)
    if method == "iter-retgen":
        iterations = settings.get("iterations", 2)
        return f"{iterations * (1 + a_filter) + 1} at most"
    return "varies"


def _filter_calls(name: str | None, k: int) -> int:
    return k if name in JUDGES else _FILTER_CALLS.get(name or "", 0)


def _blendfilter(settings: Mapping[str, Any], topic: bool, k: int) -> int:
    """External and internal answer, the topic, a filter a branch (or one for all), the answer and its short form."""
    name, dropped = settings.get("filter", "knowledge"), settings.get("without", ())
    branches = 1 if settings.get("filter_union") else 3 - len(dropped)
    blending = ("q_ex" not in dropped) + ("q_in" not in dropped)
    return blending + (name == "knowledge" and topic) + branches * _filter_calls(name, k) + 2

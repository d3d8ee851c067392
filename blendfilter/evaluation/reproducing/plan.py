"""What a table will cost, before anything is spent.

In: the runs that are wanted. Out: a `Planned` for each: calls and tokens a question, how many of them no earlier run
of the table has made, and the number of calls that the method makes by design.

The estimate comes of answering the first questions with the very methods and indexes through the offline reader, in a
temporary folder: no call leaves this machine. Its replies are short, and its tokens are words; they are taken times
`TOKENS_A_WORD`. A model that writes more pays more, above all where it thinks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blendfilter.asking import Wording
from blendfilter.evaluation.reproducing.doing import finished
from blendfilter.evaluation.reproducing.runs import Wanted
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.runner import evaluate
from blendfilter.journal import FILE, Journal
from blendfilter.lm.connect import connect
from blendfilter.lm.model import ConnectedLM

PILOT = 5
"""Questions that the estimate answers."""
TOKENS_A_WORD = 1.4
"""Tokens for a word between white space. BERT's vocabulary makes 1.33 to 1.38 of the paragraphs of HotPotQA, 2Wiki and
StrategyQA; others are close."""
_FILTER_CALLS = {"knowledge": 2, "one-call": 1}


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

    def total(self, name: str) -> int:
        """The sum of one figure over all runs."""
        return sum(int(getattr(run, name)) for run in self.runs)

    def text(self) -> str:
        """The plan as aligned text, with how to read it below."""
        header = ["run", "calls a question", "calls", "new calls", "new tokens in", "out", ""]
        body = [[f"{each.task}: {each.label}", each.design, *_counts(each), each.state] for each in self.runs]
        total = ["total", "", *(f"{self.total(name):,}" for name in _COUNTED), ""]
        first, *others = (max(map(len, column)) for column in zip(header, *body, total, strict=True))
        lines = [
            "  ".join([name.ljust(first), *map(str.rjust, cells, others)]).rstrip()
            for name, *cells in [header, *body, total]
        ]
        ruler = "-" * max(map(len, lines))
        return "\n".join([lines[0], ruler, *lines[1:-1], ruler, lines[-1], "", *self._notes()]) + "\n"

    def _notes(self) -> Iterator[str]:
        saved = sum(run.calls - run.new_calls for run in self.runs if not run.finished)
        yield f"estimated from the first {self.pilot} questions, answered by the offline reader: nothing was spent"
        yield f"tokens: words times {TOKENS_A_WORD}; a model that writes more, or thinks, takes more"
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
    seen: dict[str, set[str]] = {}
    planned = []
    with tempfile.TemporaryDirectory(prefix="blendfilter-plan-") as folder:
        for each in distinct.values():
            run = _tried(each, Path(folder), pilot)
            planned.append(_planned(each, run, seen.setdefault(each.task, set()), repeats))
    return Plan(tuple(planned), min(pilot, *(len(each.questions) for each in distinct.values())))


def _tried(each: Wanted, folder: Path, pilot: int) -> Run:
    """The first questions of a run, answered offline; earlier runs' searches are taken over."""
    return evaluate(
        each.method, each.questions[:pilot], lm=_offline(each.lm), run=folder / each.folder.name, progress=False,
        reuse=[path.parent for path in sorted(folder.glob(f"*/{FILE}"))], name=each.row.method,
    )  # fmt: skip


def _offline(lm: ConnectedLM) -> ConnectedLM:
    sampling = {name: lm.kwargs.get(name) for name in ("temperature", "top_p")}
    return connect("offline", **sampling)


def _planned(each: Wanted, run: Run, seen: set[str], repeats: int) -> Planned:
    used = {key for row in run.rows for _, key in row["calls"]}
    with Journal(run.folder, "replay") as journal:
        new = [journal.read(key) or {} for key in sorted(used - seen)]
    seen |= used
    n, asked = len(each.questions), len(run.rows)
    there = finished(each.folder)
    missing = n * repeats if there is None else there.errors

    def scaled(count: float, answers: int = n * repeats) -> int:
        return round(count * answers / asked)

    paid = [scaled(value, missing) for value in (len(new), *_tokens(new))]
    return Planned(
        each.folder.name, _label(each), each.task, n, by_design(each), scaled(len(used)),
        paid[0], paid[1], paid[2], there is not None, 0 if there is None else there.errors,
    )  # fmt: skip


def _tokens(records: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    for name in ("tokens_in", "tokens_out"):
        yield TOKENS_A_WORD * sum(record.get(name) or 0 for record in records)


def _label(each: Wanted) -> str:
    return ", ".join(part for part in (each.row.group, each.row.label, each.point.name) if part)


def by_design(each: Wanted) -> str:
    """The calls a question that the method is made of.

    Exact where nothing can be shared or asked again: one call of `direct`, two of `cot`, the samples and one more.
    """
    settings = each.row.settings(each.task)
    topic = Wording.of(each.questions.task.wording).ask_topic
    method, name = each.row.method, settings.get("filter")
    if method == "blendfilter":
        return f"{_blendfilter(settings, topic)} at most"
    a_filter = _FILTER_CALLS.get(name or "", 0) + (name == "knowledge" and topic)
    exact = {"direct": 1, "direct-retrieval": 1, "cot": 2, "cot-retrieval": 2}
    if method in exact:
        return f"{exact[method] + a_filter}" + " at most" * bool(a_filter)
    if method == "self-consistency":
        return f"{settings.get('samples', 10) + 1 + a_filter}" + " at most" * bool(a_filter)
    if method == "iter-retgen":
        iterations = settings.get("iterations", 2)
        return f"{iterations * (1 + a_filter) + 1} at most"
    return "varies"


def _blendfilter(settings: Mapping[str, Any], topic: bool) -> int:
    """External and internal answer, the topic, a filter a branch (or one for all), the answer and its short form."""
    name, dropped = settings.get("filter", "knowledge"), settings.get("without", ())
    branches = 1 if settings.get("filter_union") else 3 - len(dropped)
    blending = ("q_ex" not in dropped) + ("q_in" not in dropped)
    return blending + (name == "knowledge" and topic) + branches * _FILTER_CALLS.get(name, 0) + 2

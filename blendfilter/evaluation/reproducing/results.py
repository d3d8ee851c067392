"""A table's runs beside what was published: value and interval, difference, a paired test, calls and tokens.

In: a table, its runs. Out: `Result`, a line for each row, task, point and measure. Every p is of a paired test against
the table's reference over the same questions (exact McNemar for right and wrong, the paired bootstrap for F1), and
Holm's correction goes over all that the table tests on a measure. No p is given where the offline reader answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from blendfilter.evaluation.comparison import ComparisonRow as Compared
from blendfilter.evaluation.comparison import compare
from blendfilter.evaluation.reproducing import filtered
from blendfilter.evaluation.reproducing.dropping import dropped
from blendfilter.evaluation.reproducing.lines import INCLUSION, RIGHT_OR_WRONG, Line, a_question, line_of, place_of
from blendfilter.evaluation.reproducing.papers import OF_CONTEXTS, Row, Table
from blendfilter.evaluation.reproducing.runs import Wanted
from blendfilter.evaluation.rows import repeats_in
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.statistics import holm, interval
from blendfilter.tasks import TASKS

RETRIEVAL = ("recall", "precision", "s_precision")
ONE, BEST = "one answer", "best of {}"


@dataclass(frozen=True)
class Spent:
    """What the runs of a table used, added up, and how many calls were really different ones."""

    runs: int
    used: int
    different: int

    @property
    def saved(self) -> int:
        """Calls that reuse between runs saved."""
        return self.used - self.different


@dataclass(frozen=True)
class Result:
    """A table as measured."""

    table: Table
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    spent: Spent
    reader: str
    repeats: int
    offline: bool
    errors: int


def result(
    table: Table, wanted: Sequence[Wanted], done: Mapping[Path, Run], *, notes: Sequence[str] = (), seed: int = 0
) -> Result:
    """The lines of `table` out of its finished runs."""
    each = [(one, done[one.folder]) for one in wanted]
    offline, said = any(run.offline for run in done.values()), list(notes)
    if table.kind in OF_CONTEXTS:
        lines, more = filtered.lines(table, each, seed, p_values=not offline)
        said += more
    elif table.kind == "retrieval":
        lines = [line for one, run in each for line in _retrieval(one, run, seed)]
    else:
        by_row = groupby(each, key=lambda pair: place_of(pair[0]))
        lines = [line for _, group in by_row for line in _lines(list(group), seed)]
    if table.kind in ("scores", "settings", "sweep") and not offline:
        lines = _tested(table, wanted, done, lines, seed)
    said += filtered.empty_bounds(each)
    said += dropped(table, each)
    if table.kind == "frontier":
        lines = filtered.on_the_front(lines, each)
    lines = lines if offline else corrected(lines)
    repeats = max(repeats_in(run.settings) for run in done.values())
    reader, errors = wanted[0].lm.name, sum(run.errors for run in done.values())
    return Result(table, tuple(lines), tuple(said), spent(done), reader, repeats, offline, errors)


def _lines(points: Sequence[tuple[Wanted, Run]], seed: int) -> Iterator[Line]:
    """The lines of one row on one task: of its run, of each K, or of one answer and the best of several."""
    if points[0][0].point.sampling is not None:
        yield from _best_of(points, seed)
        return
    for one, run in points:
        for measure, score in run.metrics["metrics"].items():
            yield line_of(one, run, measure, (score["value"], score["low"], score["high"]), one.point.name)


def _best_of(points: Sequence[tuple[Wanted, Run]], seed: int) -> Iterator[Line]:
    """The first answer alone, then for each measure the best of all answers to a question."""
    (first, run), number = points[0], len(points)
    tables = [_by_question(each) for _, each in points]
    for measure, score in run.metrics["metrics"].items():
        yield line_of(first, run, measure, (score["value"], score["low"], score["high"]), ONE)
    spent = [a_question(each) for _, each in points]
    calls, several = sum(one for one, _ in spent), [each for _, each in spent]
    tokens = None if None in several else sum(filter(None, several))
    for measure in run.metrics["metrics"]:
        best = [max(table[name][measure] for table in tables) for name in tables[0]]
        line = line_of(first, run, measure, interval(best, seed=seed), BEST.format(number))
        yield replace(line, calls=calls, tokens=tokens, published=None, difference=None)


def _by_question(run: Run) -> dict[str, dict[str, Any]]:
    """A run's rows by question; of several repeats, the first."""
    return {row["id"]: row for row in reversed(run.rows)}


def _retrieval(one: Wanted, run: Run, seed: int) -> Iterator[Line]:
    """Recall, precision and S-precision of what was kept for the answer, over the questions whose gold is known."""
    known = [row for row in run.rows if row["gold_titles"] or row["retrieval"]]
    for measure in RETRIEVAL:
        scores: dict[str, list[float]] = {}
        for row in known:
            scores.setdefault(row["id"], []).append(row["retrieval"].get("kept", {}).get(measure, 0.0))
        several = repeats_in(run.settings) > 1
        if scores:
            each = list(scores.values()) if several else [first for first, *_ in scores.values()]
            yield line_of(one, run, measure, interval(each, seed=seed), "")


def _tested(
    table: Table, wanted: Sequence[Wanted], done: Mapping[Path, Run], lines: Sequence[Line], seed: int
) -> list[Line]:
    """`lines` with what each is from the reference row's run at the same point and the p of that, if both were run."""
    runs = {(place_of(one), one.point.name): done[one.folder] for one in wanted}
    rows: dict[tuple[str, str], Row] = {(row.group, row.label): row for row in table.rows}
    found: dict[tuple[str, str], dict[str, Compared]] = {}

    def tested(line: Line) -> Line:
        reference = table.reference(rows[line.group, line.label])
        place = (line.task, reference.group, reference.label)
        against, run = runs.get((place, line.point)), done_by_name[line.run]
        if against is None or against.name == run.name:
            return line
        pair = (against.name, run.name)
        if pair not in found:
            compared = compare(against, run, seed=seed).rows
            found[pair] = {row.measure: row for row in compared if row.run == run.name}
        told = found[pair][line.measure]
        return replace(line, gain=told.difference, gain_low=told.low, gain_high=told.high, p=told.p)

    done_by_name = {run.name: run for run in done.values()}
    return list(map(tested, lines))


def corrected(lines: Sequence[Line]) -> list[Line]:
    """`lines` with Holm's correction over all tasks: one family for what leads and is right or wrong, one for another.

    What leads is the task's first measure, or inclusion where that is what was published.

    Two rows that are the same run (beside the figures of two readers) are one test.
    """
    changed = list(lines)
    rough = {line.task for line in lines if line.measure == INCLUSION and line.published is not None}
    families: dict[str, dict[Any, list[int]]] = {}
    for place, line in enumerate(lines):
        if line.p is not None:
            leading = INCLUSION if line.task in rough else TASKS[line.task].metrics[0]
            family = "right or wrong" if line.measure == leading in RIGHT_OR_WRONG else line.measure
            families.setdefault(family, {}).setdefault((line.run, line.measure, line.point, line.p), []).append(place)
    for tests in families.values():
        for places, p in zip(tests.values(), holm([test[-1] for test in tests]), strict=True):
            for place in places:
                changed[place] = replace(changed[place], p_holm=p)
    return changed


def spent(done: Mapping[Path, Run]) -> Spent:
    """Calls that the runs used, and how many of them are different calls."""
    used = sum(run.metrics["ledger"]["total"]["calls"] for run in done.values())
    # Runs of other tasks are not reused: a call that two tasks make alike is made for each.
    keys = {(run.settings["task"], key) for run in done.values() for row in run.rows for _, key in row["calls"]}
    return Spent(len(done), used, len(keys))

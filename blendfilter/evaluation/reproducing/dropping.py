"""What trimmed indexes left out of the passages that the bare one gives, told from the runs of a table.

In: a table's runs. Out: a line a task, for the question's own search: how many of the bare index's K passages a trimmed
one no longer gives, and for how many questions. Where the bare index was not run, nothing is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from blendfilter.evaluation.reproducing.papers import Role, Table
from blendfilter.evaluation.reproducing.runs import Wanted
from blendfilter.evaluation.run import Run

QUESTION = "q"
Place = tuple[str, Role, int]
"""A task, an index, and K."""


def dropped(table: Table, pairs: Sequence[tuple[Wanted, Run]]) -> Iterator[str]:
    """A line for each task with a trimmed index."""
    bare: dict[Place, Run] = {}
    for one, run in pairs:
        if not _trimmed(one) and one.row.retrieves:
            bare.setdefault(_place(table, one), run)
    told: dict[str, dict[str, str]] = {}
    for one, run in pairs:
        before = bare.get(_place(table, one)) if _trimmed(one) else None
        if before is not None:
            name = ", ".join(filter(None, (one.row.group, one.row.label, one.point.name)))
            told.setdefault(one.task, {}).setdefault(run.name, f"{name}: {_words(before, run)}")
    for task, lines in told.items():
        each = "; ".join(lines.values())
        yield f"{task}: passages of the bare index dropped for a question (and for how many questions any): {each}"


def _trimmed(one: Wanted) -> bool:
    return "trimmed" in one.row.settings(one.task)


def _place(table: Table, one: Wanted) -> Place:
    return one.task, table.role(one.row), one.point.k


def _words(before: Run, after: Run) -> str:
    found, left = _found(before), _found(after)
    gone = [len(found[name] - left[name]) for name in found if name in left]
    if not gone:
        return "unknown"
    return f"{fmean(gone):.2f} ({100 * fmean(map(bool, gone)):.0f} %)"


def _found(run: Run) -> dict[str, set[str]]:
    """What each question's own search gave."""
    return {
        row["id"]: set(row["branches"][QUESTION]["retrieved"]) for row in run.rows if QUESTION in row["branches"]
    }  # fmt: skip

"""Which runs a table needs, each in a folder named by what it is, so that all tables share their runs.

In: a table, its sources, a model. Out: a `Wanted` for each row, task and point of a figure; two that are the same run
have the same folder: the BlendFilter of Table 1 is that of Table 5.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import dspy

from blendfilter.asking import TaskWording
from blendfilter.compiling.programs import recipes_in
from blendfilter.evaluation.reproducing.papers import SILVER, Row, Sampling, Table
from blendfilter.evaluation.reproducing.programs import Programs
from blendfilter.evaluation.reproducing.silver import Silver
from blendfilter.evaluation.reproducing.sources import Sources
from blendfilter.evaluation.reproducing.trimmed import Overlays
from blendfilter.evaluation.settings import check_leak, settings_of
from blendfilter.filters.registry import make_filter
from blendfilter.journal import digest
from blendfilter.lm.model import ConnectedLM
from blendfilter.modules.methods import METHODS, make_method
from blendfilter.retrieval.base import Retriever
from blendfilter.tasks import Questions


class Point(NamedTuple):
    """Where in a table or figure a run belongs: its K, which of several samples it is, and what that is called."""

    k: int
    name: str = ""
    sampling: Sampling | None = None


@dataclass(frozen=True)
class Wanted:
    """One run that a table needs."""

    row: Row
    task: str
    point: Point
    folder: Path
    method: dspy.Module
    questions: Questions
    lm: ConnectedLM


def wanted(
    table: Table,
    sources: Sources,
    lm: ConnectedLM,
    folder: Path,
    *,
    methods: Iterable[str] | None = None,
    repeats: int = 1,
    seed: int = 0,
    silver: Silver | None = None,
    programs: Programs | None = None,
    overlays: Overlays | None = None,
) -> list[Wanted]:
    """Every run of `table`, task by task, in the order of its rows; `methods` leaves out the rows of all others.

    `silver` makes the contexts of the rows that read gold; those that it cannot make are left out, and its notes say
    so. `programs` are those that filters speak as. `overlays` trim the indexes of the rows that want them so.

    Raises:
        UnknownName: a method that the table does not have. Leak: a question that a program was compiled on.
    """
    rows = table.of(methods)
    found = []
    for task, questions in sources.questions.items():
        for row in rows:
            retriever = sources.indexes[task, table.role(row)] if row.retrieves else None
            if row.settings(task).get("trimmed") and retriever is not None:
                deepest = max(point.k for point in points(table, row, task))
                retriever = overlays.of(row, questions, retriever, deepest) if overlays is not None else None
                if retriever is None:
                    continue
            for point in points(table, row, task):
                bound: dspy.Module | None = None
                if row.reads_gold(task):
                    if silver is not None and retriever is not None:
                        bound = silver.of(row, questions, retriever, point.k)
                    if bound is None:
                        continue
                method = made(row, task, point.k, retriever, questions.task.wording, bound, programs)
                if recipes_in(method):
                    check_leak(method, questions)  # before any other row is paid for
                model = lm if point.sampling is None else sampled(lm, point.sampling)
                name = _name(method, questions, model, row, repeats, seed)
                found.append(Wanted(row, task, point, folder / name, method, questions, model))
    return found


def points(table: Table, row: Row, task: str) -> Iterator[Point]:
    """The points of one row: one, or one for each K or sample of a figure."""
    k = row.settings(task).get("k", table.k)
    if table.sweep:
        yield from (Point(each, f"K={each}") for each in table.sweep)
    elif table.samples:
        yield from (Point(k, f"answer {number}", each) for number, each in enumerate(table.samples, 1))
    else:
        yield Point(k)


def made(
    row: Row, task: str, k: int, retriever: Retriever | None, wording: str, silver: dspy.Module | None = None,
    programs: Programs | None = None,
) -> dspy.Module:  # fmt: skip
    """The method of a row on a task, with its filter; `silver` is the one of a row that reads gold."""
    settings = row.settings(task) | {"k": k}
    settings.pop("measure", None)
    settings.pop("trimmed", None)
    filter_settings = {name: settings.pop(f"filter_{name}", None) for name in ("n", "by")}
    filter_settings["rules"] = settings.pop("rules", None)
    if (name := settings.pop("filter", None)) == SILVER:
        settings["filter"] = silver
    elif name is not None:
        asked = {key: value for key, value in filter_settings.items() if value is not None}
        settings["filter"] = made_filter = make_filter(name, wording=TaskWording.of(wording), **asked)
        if programs is not None:
            programs.into(made_filter, row, task)
    return make_method(row.method, retriever, task=wording, **settings)


def sampled(lm: ConnectedLM, sampling: Sampling) -> ConnectedLM:
    """`lm`, sampled so; at temperature 0 it is `lm` itself where that is greedy, so that its calls are shared."""
    asked = sampling.model_dump()
    return lm if all(lm.kwargs.get(name) == value for name, value in asked.items()) else lm.copy(**asked)


def _name(method: dspy.Module, questions: Questions, lm: ConnectedLM, row: Row, repeats: int, seed: int) -> str:
    """`<task>-<method>-<what else>-<digest>`: the words are for people, the digest tells runs apart."""
    name, task = row.method, questions.task.name
    settings = settings_of(method, questions, lm, seed=seed, name=name)
    said = [task, name, *_said(settings["method"], METHODS[name].retrieves, row.settings(task).get("filter"))]
    said += [f"compiled_{recipe.optimizer}" for recipe in recipes_in(method)[:1]]
    said += [each["kind"] for each in settings["retrievers"]] + [lm.name.rpartition("/")[2], str(len(questions))]
    said += [
        f"{short}{value}" for short, long in (("t", "temperature"), ("p", "top_p")) if (value := lm.kwargs.get(long))
    ]
    said += [f"r{repeats}"] * (repeats > 1)
    words = [worded(word) if place > 1 else word for place, word in enumerate(said)]
    settings["data"].pop("source")  # the same questions under another file name are the same
    return "-".join([*words, digest(settings, repeats)[:8]])


def worded(name: str) -> str:
    """`name` as a part of a folder's name.

    >>> worded("gpt-4o-mini:latest")
    'gpt_4o_mini_latest'
    """
    return re.sub(r"[^\w.]+", "_", name)


def _said(method: dict[str, Any], retrieves: bool, filter_name: str | None) -> Iterator[str]:
    arguments = method["arguments"]
    if retrieves and "k" in arguments:
        yield f"k{arguments['k']}"
    if arguments.get("without"):
        yield f"without_{arguments['without']}"
    if arguments.get("filter_union"):
        yield "union"
    if arguments.get("rewrite"):
        yield "rewritten"
    if "filter" in arguments and (method["name"], arguments["filter"]) != ("blendfilter", "KnowledgeFilter"):
        yield filter_name or str(arguments["filter"])
    for name in ("iterations", "samples"):
        if name in arguments:
            yield f"{name}{arguments[name]}"

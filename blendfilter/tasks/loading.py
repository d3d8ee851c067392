"""`load`: questions of a task from a file, the hub, the sample world or memory, checked row by row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter import resources
from blendfilter.errors import BadArgument, EmptyData, UnknownName
from blendfilter.files import JsonRow, json_rows
from blendfilter.records import Question
from blendfilter.tasks import (
    arc,
    eli5,
    fever,
    generic,
    hotpotqa,
    hub,
    nq,
    popqa,
    pubhealth,
    strategyqa,
    triviaqa,
    twowiki,
    wow,
)
from blendfilter.tasks.base import Parser, Questions, Task, registry
from blendfilter.tasks.reading import acceptable, given

TASKS = registry(
    hotpotqa.TASK,
    twowiki.TASK,
    strategyqa.TASK,
    nq.TASK,
    triviaqa.TASK,
    fever.TASK,
    eli5.TASK,
    wow.TASK,
    popqa.TASK,
    arc.TASK,
    pubhealth.TASK,
    generic.TASK,
)
"""The tasks by name; `qa` reads anyone's own questions."""

Data = str | Path | Iterable[Any]


class _Source(NamedTuple):
    label: str
    rows: Iterator[JsonRow]
    parse: Parser
    drain: bool
    """Whether to read on behind the limit: a file that is cut off is not to be trusted, wherever we stop."""


def load(
    task: str | Path | Task | Iterable[Any],
    data: Data | None = None,
    *,
    limit: int | None = None,
    metrics: Sequence[str] | None = None,
    split: str | None = None,
) -> Questions:
    """The questions of `task` in `data`.

    `data` is a file (plain or gzipped), ``"hub"`` for the Hugging Face hub, ``"sample"`` for the package's own sample
    world, or rows or `Question` records in memory. With one argument, that is the data and the task is `qa`. `limit`
    takes the first questions only, `metrics` replaces the task's own, `split` names the hub's split, or keeps the rows
    of a file that are marked with it.

        load("hotpotqa", "hotpot_dev_distractor_v1.json", limit=500)
        load("mine.jsonl", metrics=["f1"])
        load("strategyqa", "hub", split="train")

    Raises:
        UnknownName: no such task or metric. BadArgument: limit below 1, or nothing said of where the data is.
        MissingFile: no such file. EmptyData: no questions in it. MissingExtra: `datasets` is not installed.
        BadData: a row that does not parse, misses a field, asks nothing or repeats an id (which line and why).
    """
    if limit is not None and limit < 1:
        raise BadArgument(f"limit is {limit}: it must be 1 or more")
    chosen, data = _task_and_data(task, data)
    if metrics is not None:
        if isinstance(metrics, str) or not metrics:
            raise BadArgument("metrics is a list of names, such as ['em', 'f1']")
        chosen = replace(chosen, metrics=tuple(metrics))
    source = _source(chosen, data, split)
    questions = _kept(_questions(source), source, split if data != "hub" else None, limit)
    return Questions(tuple(questions), chosen.asking(questions), source.label)


def _task_and_data(task: str | Path | Task | Iterable[Any], data: Data | None) -> tuple[Task, Data]:
    """Which of the two arguments is what."""
    if isinstance(task, Task):
        if data is None:
            raise BadArgument(f"where are the questions of '{task.name}'? Give a file or rows")
        return task, data
    if data is None:
        if isinstance(task, str) and task in TASKS:
            raise BadArgument(f"where are the questions of '{task}'? Give a file, 'hub' or 'sample'")
        if isinstance(task, str) and not _is_file(task):
            raise UnknownName.of("task", task, TASKS, "and no file of that name")
        return generic.TASK, task
    if not isinstance(task, str) or task not in TASKS:
        raise UnknownName.of("task", str(task), TASKS)
    return TASKS[task], data


def _is_file(name: str) -> bool:
    """Whether a lone argument means a file: one is there, or it looks like a path."""
    return Path(name).is_file() or bool(Path(name).suffix) or "/" in name or "\\" in name


def _source(task: Task, data: Data, split: str | None) -> _Source:
    if isinstance(data, str) and data == "hub":
        place = hub.place(task)
        return _Source(place.label(split), hub.rows(place, split), task.parser(), drain=False)
    if isinstance(data, str) and data == "sample":
        rows = json_rows(resources.sample(task.sample))
        return _Source("sample", filter(task.of_sample, rows) if task.of_sample else rows, task.parser(), drain=True)
    if isinstance(data, str | Path):
        path = Path(data)
        return _Source(path.name, task.rows(path), task.parser(path), drain=True)
    if isinstance(data, Questions):
        return _Source(data.source, given(data), task.parser(), drain=False)
    if not isinstance(data, Iterable):
        raise BadArgument(f"the data is a {type(data).__name__}: give a file, 'hub', 'sample' or a list of rows")
    return _Source("rows", given(data), task.parser(), drain=False)


def _questions(source: _Source) -> Iterator[Question]:
    seen: dict[str, str] = {}
    for row in source.rows:
        question = row.value if isinstance(row.value, Question) else source.parse(row)
        yield acceptable(question, row.where, seen)


def _kept(found: Iterator[Question], source: _Source, split: str | None, limit: int | None) -> list[Question]:
    """The questions of `split`, `limit` of them; what is behind the limit is still decoded, though not checked."""
    met: set[str] = set()

    def wanted(question: Question) -> bool:
        mark = str(question.metadata.get("split") or "(none)")
        met.add(mark)
        return split is None or mark == split

    questions = list(islice(filter(wanted, found), limit))
    if not questions and met:
        marks = ", ".join(sorted(met))
        raise EmptyData(f"{source.label} has no questions of split '{split}' (its rows say: {marks})")
    if not questions:
        raise EmptyData(f"{source.label} has no questions: is it the right file?")
    if source.drain:
        for _ in source.rows:
            pass
    return questions

"""`load`: questions of a task from a file, the hub, the sample world or memory, checked row by row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

from blendfilter import resources
from blendfilter.errors import (
    BadArgument,
    BadData,
    EmptyData,
    MissingExtra,
    MissingFile,
    UnknownName,
    check_count,
)
from blendfilter.extras import how_to_install
from blendfilter.files import JsonRow, json_rows, lines, path_of
from blendfilter.records import Question
from blendfilter.tasks import (
    arc,
    eli5,
    fever,
    popqa,
    pubhealth,
    strategyqa,
    triviaqa,
    twowiki,
    wow,
)
from blendfilter.tasks.base import Hub, MetricFunction, Parser, Questions, Task
from blendfilter.tasks.layouts import mapping, question

# HotPotQA (Yang et al. 2018; https://hotpotqa.github.io): two-hop questions over Wikipedia introductions; its official
# rows are those that `layouts` reads. The distractor files bring ten paragraphs with every question, the gold among
# them; the full-wiki files bring retrieved ones, often without the gold. Sentences keep upstream's leading spaces, so
# a paragraph is its sentences joined with nothing between them.
HOTPOTQA = Task(
    "hotpotqa",
    metrics=("em", "f1"),
    wording="hotpotqa",
    parse=partial(question, joiner=""),
    hub=Hub("hotpotqa/hotpot_qa", "distractor", "validation"),
)
# Natural Questions, open (Kwiatkowski et al. 2019; Lee et al. 2019): web searches with short answers. The official rows
# (https://github.com/google-research-datasets/natural-questions/tree/master/nq_open, `NQ-open.dev.jsonl`) have no ids:
# a row's place stands for one. With passages from DPR (`biencoder-nq-dev.json`) or KILT (`nq-dev-kilt.jsonl`).
NQ = Task(
    "nq",
    metrics=("em", "f1"),
    wording="nq",
    hub=Hub("google-research-datasets/nq_open", None, "validation"),
)
OWN = Task("qa", metrics=("em", "f1"), wording="hotpotqa")
_MODULES = (triviaqa, fever, eli5, wow, popqa, arc, pubhealth)
TASKS = {
    task.name: task
    for task in (
        HOTPOTQA,
        twowiki.TASK,
        strategyqa.TASK,
        NQ,
        *(module.TASK for module in _MODULES),
        OWN,
    )
}
"""The tasks by name; `qa` reads anyone's own questions."""

Data = str | Path | Iterable[Any]


class _Source(NamedTuple):
    label: str
    rows: Iterator[JsonRow]
    parse: Parser
    drain: bool = False  # read on behind the limit: a file that is cut off is not to be trusted, wherever we stop


def load(
    task: str | Path | Task | Iterable[Any],
    data: Data | None = None,
    *,
    limit: int | None = None,
    metrics: Sequence[str | MetricFunction] | None = None,
    split: str | None = None,
) -> Questions:
    """The questions of `task` in `data`.

    `data` is a file (plain or gzipped), ``"hub"`` for the Hugging Face hub, ``"sample"`` for the package's own sample
    world, or rows, `dspy.Example`s or `Question` records in memory. With one argument, that is the data and the task is
    `qa`. `limit` takes the first questions only, `metrics` replaces the task's own, `split` names the hub's split, or
    keeps the rows of a file that are marked with it: ``load("strategyqa", "hub", split="train")``,
    ``load("mine.jsonl", limit=500)``.

    Raises:
        UnknownName: no such task or metric. BadArgument: limit below 1, or no data named.
        MissingFile: no such file. EmptyData: no questions in it. MissingExtra: `datasets` is not installed.
        BadData: a row that does not parse, misses a field, asks nothing or repeats an id (which line and why).
    """
    limit = None if limit is None else check_count("limit", limit)
    chosen, data = _task_and_data(task, data)
    if metrics is not None:
        chosen = chosen.with_metrics(metrics)
    # a user's own metrics may need no right answer
    scored = any(name not in chosen.functions for name in chosen.metrics)
    if not scored and chosen.parse is question:
        chosen = replace(chosen, parse=partial(question, scored=False))

    source = _source(chosen, data, split)
    is_hub = isinstance(data, str) and data == "hub"
    questions, rows = _kept(source, None if is_hub else split, limit, scored=scored)
    return Questions(tuple(questions), chosen.asking(questions), source.label, rows=rows)


def _task_and_data(
    task: str | Path | Task | Iterable[Any], data: Data | None
) -> tuple[Task, Data]:
    """Which of the two arguments is what."""
    chosen = TASKS.get(task) if isinstance(task, str) else task
    if data is not None:
        if not isinstance(chosen, Task):
            raise UnknownName.of("task", str(task), TASKS)
        return chosen, data
    if isinstance(chosen, Task):
        raise BadArgument(
            f"where are the questions of '{chosen.name}'? Give a file, 'hub' or 'sample'"
        )
    if isinstance(task, str) and not (Path(task).suffix or "/" in task or Path(task).is_file()):
        raise UnknownName.of("task", task, TASKS, "and no file of that name")
    return OWN, cast(Data, task)


def _source(task: Task, data: Data, split: str | None) -> _Source:
    if isinstance(data, str) and data == "hub":
        if task.hub is None:
            raise BadArgument(f"task '{task.name}' has no data set on the hub: give a file")
        return _Source(task.hub.label(split), _hub_rows(task.hub, split), task.parse)
    if isinstance(data, str) and data == "sample":
        rows = json_rows(resources.sample(task.sample))
        rows = filter(task.of_sample, rows) if task.of_sample else rows
        return _Source("sample", rows, task.parse, drain=True)
    if isinstance(data, str | Path):
        path = path_of(data)
        if not path.exists():
            raise MissingFile.of(path, ("hub", "sample"))
        parse = task.beside(path) if task.beside else task.parse
        return _Source(path.name, task.rows(path), parse, drain=True)
    label = data.source if isinstance(data, Questions) else "rows"
    return _Source(label, _rows(data, "the given rows"), task.parse)


def _hub_rows(hub: Hub, split: str | None) -> Iterator[JsonRow]:
    """The rows of one split on the Hugging Face hub, downloaded once and kept by the package `datasets`.

    Raises:
        MissingExtra: `datasets` is not installed. MissingFile: the hub, the data set or the split cannot be reached.
    """
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise MissingExtra(
            f"data from the hub needs the package 'datasets': {how_to_install('data')}"
        ) from error
    import httpx  # comes with the model client; what the hub's own client raises when the network is away

    label = hub.label(split)
    try:
        found = load_dataset(hub.name, hub.config, split=split or hub.split)
    except (OSError, ValueError, httpx.HTTPError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise MissingFile(
            f"cannot load '{label}' from the Hugging Face hub ({reason}): or give a file"
        ) from error
    yield from _rows(found, label)


def _rows(values: Any, name: str) -> Iterator[JsonRow]:
    return (
        JsonRow(f"{name}, item {position + 1}", position, value)
        for position, value in enumerate(rows_of(values))
    )


def rows_of(data: Any) -> Iterator[Any]:
    """Rows in memory, a frame of pandas or polars or a data set of Hugging Face; a `dspy.Example` is its fields.

    Raises: BadArgument for what has no rows.
    """
    if hasattr(data, "iterrows"):  # their items are the names of their columns
        data = data.to_dict("records")
    elif hasattr(data, "iter_rows"):
        data = data.iter_rows(named=True)
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise BadArgument(
            f"questions are a file or a list of rows, [{{'question': …, 'answer': …}}]; got {data!r:.60}"
        )
    return (value.toDict() if hasattr(value, "toDict") else value for value in data)


def _kept(
    source: _Source, split: str | None, limit: int | None, *, scored: bool
) -> tuple[list[Question], int | None]:
    """The questions of `split`, `limit` of them, and the rows of a file; those behind the limit are only decoded.

    Raises:
        BadData: a question is empty, has no answer where it is `scored`, or an id that is used already. EmptyData:
            there is none.
    """
    kept, places, splits = list[Question](), dict[str, str](), set[str]()
    for row in source.rows:
        one = row.value if isinstance(row.value, Question) else source.parse(row)
        if not one.question.strip():
            raise BadData(
                f"{row.where}: question '{one.id}' is empty: fill it in or drop the row"
            )
        if scored and not one.golden_answers:
            raise BadData(
                f"{row.where}: question '{one.id}' has no golden answers, so nothing can be scored"
            )
        if one.id in places:
            raise BadData(
                f"{row.where}: question id '{one.id}' was used before, at {places[one.id]}: ids must differ"
            )
        places[one.id] = row.where
        mark = str(one.metadata.get("split") or "(none)")
        splits.add(mark)
        if split in (None, mark):
            kept.append(one)
            if len(kept) == limit:
                break
    if not kept:
        marks = ", ".join(sorted(splits))
        why = (
            f" of split '{split}' (its rows say: {marks})"
            if marks
            else ": is it the right file?"
        )
        raise EmptyData(f"{source.label} has no questions{why}")
    return kept, len(places) + sum(1 for _ in source.rows) if source.drain else None


def read_questions(path: str | Path, *, limit: int | None = None) -> list[str]:
    """The questions of a file that need no answer, `limit` of them at the most: those that an index is trimmed by.

    A text file (``.txt``) has a question a line; rows of JSON Lines are questions, or objects with a field `question`.

    Raises:
        MissingFile, EmptyData, BadData. BadArgument: a limit below 1.
    """
    limit = None if limit is None else check_count("limit", limit)
    plain = (line.text.strip() for line in lines(path) if line.text.strip())
    found = list(
        islice(plain if Path(path).suffix == ".txt" else map(_text, json_rows(path)), limit)
    )
    if not found:
        raise EmptyData(f"{path} holds no question: put one on a line")
    return found


def _text(row: JsonRow) -> str:
    value = row.value
    if not isinstance(value, str):
        fields = mapping(row)
        names = ("question", "question_text", "query", "input")
        value = next((fields[name] for name in names if fields.get(name) is not None), None)
    if not isinstance(value, str) or not value.strip():
        raise BadData(
            f"{row.where}: the question is {value!r:.60}: fill in 'question', or drop the row"
        )
    return value.strip()

"""The runs that a table needs: each in a folder named by what it is, done one after the other, sharing their calls.

Two rows that are the same run have the same folder, and all tables share theirs: the BlendFilter of Table 1 is that of
Table 5. To plan a table its methods are rehearsed over a few questions with the offline reader in the model's place
(`blendfilter.evaluation.plan`), in a temporary folder: no call leaves this machine.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import dspy

from blendfilter.asking import FEW_SHOT
from blendfilter.compiling.programs import recipes_in
from blendfilter.errors import RunFailed
from blendfilter.evaluation.checks import check_leak, check_reader, other_readers
from blendfilter.evaluation.ledger import money
from blendfilter.evaluation.plan import Estimator, added, left_of, of_models, rehearse, spread
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_folder import RUN
from blendfilter.evaluation.run_loop import RunProgress
from blendfilter.evaluation.run_settings import asked_by, settings_of
from blendfilter.evaluation.runner import evaluate
from blendfilter.filters.base import filter_predictors, own_filter_lm
from blendfilter.filters.written import GENERATOR, recipe_of
from blendfilter.journal import digest
from blendfilter.lm.model import ConnectedLM
from blendfilter.modules.methods import make_method
from blendfilter.prompting import OURS, Prompts
from blendfilter.reproduce.inputs import (
    OTHERS,
    TRIMMED_FOLDER,
    NotHere,
    RowInputs,
    Say,
    journals_of,
)
from blendfilter.reproduce.readers import RowReaders
from blendfilter.reproduce.sources import TableSources, grouped
from blendfilter.reproduce.tables import OF_ROWS, SILVER, PaperRow, PaperTable, Sampling
from blendfilter.run_context import CONCURRENCY
from blendfilter.table import Table
from blendfilter.tasks import Questions

_SWITCHES = {"filter_union": "union", "drop_conclusion": "unconcluded", "rewrite": "rewritten"}
"""Words in a run's name for arguments that are switched on."""


class PlannedPoint(NamedTuple):
    """Where in a table or figure a run belongs: its K, which of several samples it is, and what that is called."""

    k: int
    name: str = ""
    sampling: Sampling | None = None


@dataclass(frozen=True)
class TablePlace:
    """A place in a table: a row, a task with its questions, and a point."""

    row: PaperRow
    task: str
    point: PlannedPoint
    questions: Questions

    @property
    def place(self) -> tuple[str, str, str]:
        """Its task, group and label."""
        return self.task, self.row.group, self.row.label

    @property
    def label(self) -> str:
        """Its row and point in words."""
        return ", ".join(filter(None, (self.row.name, self.point.name)))

    @property
    def trimmed(self) -> bool:
        """Whether its row searches an index that was trimmed."""
        return "trimmed" in self.row.settings(self.task)


@dataclass(frozen=True)
class TableRun(TablePlace):
    """One run that a table needs; `filter_lm` is None, too, where no filter of the method asks a model."""

    folder: Path
    method: dspy.Module
    lm: ConnectedLM
    filter_lm: ConnectedLM | None

    @property
    def reader(self) -> str:
        """The model that answers."""
        return self.lm.name

    @property
    def filter_name(self) -> str:
        """The model that its filter asks; empty where it asks none."""
        predictors = filter_predictors(self.method).values()
        models = [ask.lm or self.filter_lm or self.lm for ask in predictors]
        return ", ".join(dict.fromkeys(getattr(lm, "name", lm.model) for lm in models))


@dataclass(frozen=True)
class LeftOut(TablePlace):
    """A run of a table that cannot be made here, and the reason."""

    reason: str


def not_run(left_out: Sequence[LeftOut]) -> list[str]:
    """The lines below a table: a line a reason, with the rows that it holds of and their tasks."""
    tasks = grouped(((one.reason, one.row.name), one.task) for one in left_out)
    rows = grouped(((", ".join(of), reason), row) for (reason, row), of in tasks.items())
    return [f"{of}: {'; '.join(row)}: not run: {reason}" for (of, reason), row in rows.items()]


def runs_of(
    table: PaperTable,
    sources: TableSources,
    readers: RowReaders,
    folder: Path,
    inputs: RowInputs,
    *,
    repeats: int = 1,
) -> tuple[list[TableRun], list[LeftOut]]:
    """Every run of `table`, task by task, in the order of its rows, and what is left out.

    That is for want of a model (one that is trained first, or a scorer), of a package or of a file.

    Raises: Leak, where a program or a model was made of the questions; what is wrong with a row's models. Both before
    any call is paid for.
    """
    places = [
        TablePlace(row, task, point, questions)
        for task, questions in sources.questions.items()
        for row in table.rows
        for point in _points(table, row, task)
    ]
    for place in places:
        models = [] if readers.filter_lm is None else [readers.filter_lm]
        with suppress(NotHere):
            models.insert(0, readers.reader(place.row, place.task))
        check_leak(dspy.Module(), place.questions, models, OTHERS)
    runs: dict[int, TableRun] = {}
    left_out: dict[int, LeftOut] = {}
    # last those whose silver contexts or trimmed indexes cost calls
    for at, place in sorted(enumerate(places), key=lambda each: _costs(each[1])):
        try:
            runs[at] = _run(table, place, sources, readers, folder, inputs, repeats)
        except NotHere as error:
            left_out[at] = LeftOut(**vars(place), reason=str(error))
    return [runs[at] for at in sorted(runs)], [left_out[at] for at in sorted(left_out)]


def notes_of(table: PaperTable, prompts: Prompts, runs: Sequence[TableRun]) -> list[str]:
    """How the rows are asked, and how the paper's prompts, demonstrations, readers and iterations differ."""
    lines = list[str]()
    demonstrations = list[tuple[int, str]]()
    ours = set[str]()
    for run in runs:
        for ask in asked_by(run.method).values():
            template = ask.template
            if template.of_set != prompts[template.name].of_set:
                by = template.of_set or OURS
                lines.append(
                    f"{run.row.name}: {template.name} is {by}, as its model was trained"
                )
            elif not template.of_set:
                ours.add(template.name)
            if template.name in FEW_SHOT:
                demonstrations.append((len(ask.task_demos), run.task))
        if iterations := getattr(run.method, "iterations", None):
            lines.append(
                f"{run.row.label}: T = {iterations} iterations; the paper does not print its T"
            )
        for line in other_readers(run.method, run.lm):
            lines.append(f"{run.task}: {run.row.name}: {line}")
    if prompts.set_name:
        where = f"; ours where a paper prints none ({', '.join(sorted(ours))})" if ours else ""
        spoken = (
            f"the papers' order and slots in our words (--prompts {prompts.set_name}){where}"
        )
    elif prompts.override:
        spoken = f"those in {prompts.override}, else ours"
    else:
        spoken = "ours; order and slots of the papers' differ (--prompts paper has these)"
    papers = "the paper does not say how many it shows"
    if table.shots is not None:
        papers = f"the paper shows {table.shots or 'none, for its models are fine-tuned'}"
    shots = grouped(demonstrations)
    counts = [
        f"{number or 'none'}" + f" ({', '.join(tasks)})" * (len(shots) > 1)
        for number, tasks in shots.items()
    ]
    demos = f"demonstrations, ours: {', '.join(counts) or 'none'}; {papers}"
    return [f"prompts: {spoken}", demos, *dict.fromkeys(lines)]


def _costs(place: TablePlace) -> bool:
    return place.trimmed or place.row.reads_gold(place.task)


def _points(table: PaperTable, row: PaperRow, task: str) -> list[PlannedPoint]:
    k = row.settings(task).get("k", table.k)
    points = [PlannedPoint(k, f"K={k}") for k in table.sweep]
    for number, sampling in enumerate(table.samples, 1):
        points.append(PlannedPoint(k, f"answer {number}", sampling))
    return points or [PlannedPoint(k)]


def _run(
    table: PaperTable,
    place: TablePlace,
    sources: TableSources,
    readers: RowReaders,
    folder: Path,
    inputs: RowInputs,
    repeats: int,
) -> TableRun:
    """The run of a place. Raises: NotHere; as `runs_of`."""
    row, task, point, questions = place.row, place.task, place.point, place.questions
    lm = readers.reader(row, task)
    retriever = sources.indexes[task, table.role(row)] if row.retrieves else None
    if place.trimmed and retriever is not None:
        deepest = max(table.sweep, default=point.k)
        retriever = inputs.trimmed(row, questions, retriever, deepest)
    # it was trained without demonstrations, and sees none unless some are given
    trained = recipe_of(lm).get("part") == GENERATOR
    wording = inputs.wording(questions.task.wording, task, trained=trained)
    settings = row.settings(task) | {"k": point.k}
    arguments = {key: value for key, value in settings.items() if key not in OF_ROWS}
    if settings.get("filter") == SILVER:
        assert retriever is not None  # silver contexts are of what was found
        arguments["filter"] = inputs.silver(row, questions, retriever, point.k)
    elif "filter" in settings:
        arguments["filter"] = inputs.filter(row, task, wording)
    method = make_method(
        row.method, retriever, task=wording, prompts=inputs.options.prompts, **arguments
    )
    other = readers.filter_of(row, task, method, lm)
    check_leak(method, questions, [other] if other is not None else (), OTHERS)
    check_reader(method, lm)
    if point.sampling is not None:
        sampled = point.sampling.model_dump()
        lm, other = _with(lm, sampled), other and _with(other, sampled)
    path = folder / _name(method, questions, lm, other, row, repeats)
    return TableRun(**vars(place), folder=path, method=method, lm=lm, filter_lm=other)


def read_by(runs: Sequence[TableRun]) -> list[str]:
    """A line a row: the models that answer and filter, where they are not one model throughout."""
    several = len({one.reader for one in runs}) > 1
    read = list[tuple[tuple[str, str], str]]()
    for one in runs:
        own = one.filter_name if one.filter_name != one.reader else ""
        if several or own:
            by = f", filtered by {own}" if own else ""
            read.append(((one.row.name, f"read by {one.reader}{by}"), one.task))
    found = grouped(read)
    names = Counter(name for name, _ in found)
    return [
        f"{', '.join(tasks)}: " * (names[name] > 1) + f"{name}: {words}"
        for (name, words), tasks in found.items()
    ]


def _with(lm: ConnectedLM, sampled: Mapping[str, Any]) -> ConnectedLM:
    """`lm` that samples so; itself where it does (at temperature 0 a greedy model), so that its calls are shared."""
    known = all(lm.kwargs.get(name) == value for name, value in sampled.items())
    return lm if known else lm.copy(**sampled)


def _name(
    method: dspy.Module,
    questions: Questions,
    lm: ConnectedLM,
    filter_lm: ConnectedLM | None,
    row: PaperRow,
    repeats: int,
) -> str:
    """`<task>-<method>-<what else>-<digest>`: the words are for people, the digest tells runs apart."""
    name, task = row.method, questions.task.name
    settings = settings_of(method, questions, lm, filter_lm=filter_lm, seed=0, name=name)
    arguments = settings["method"]["arguments"]
    words = []
    if row.retrieves and "k" in arguments:
        words.append(f"k{arguments['k']}")
    if arguments.get("without"):
        words.append(f"without_{arguments['without']}")
    words += [word for key, word in _SWITCHES.items() if arguments.get(key)]
    selects = arguments.get("filter")
    if selects and (name, selects) != ("blendfilter", "KnowledgeFilter"):
        words.append(row.settings(task).get("filter") or str(selects))
    words += [f"{key}{arguments[key]}" for key in ("iterations", "samples") if key in arguments]
    words += [f"compiled_{recipe.optimizer}" for recipe in recipes_in(method)[:1]]
    words += [retriever["kind"] for retriever in settings["retrievers"]]
    words.append(lm.name.rpartition("/")[2])
    other = filter_lm or own_filter_lm(method)
    if isinstance(other, ConnectedLM):
        words.append(other.name.rpartition("/")[2])
    words.append(str(len(questions)))
    for short, key in (("t", "temperature"), ("p", "top_p")):
        if lm.kwargs.get(key):
            words.append(f"{short}{lm.kwargs[key]}")
    if repeats > 1:
        words.append(f"r{repeats}")
    # the same questions, or passages, under another file name are the same
    settings["data"].pop("source")
    settings.pop("searched", None)
    settings.pop("seeds", None)  # other weights have another fingerprint
    return "-".join([task, name, *map(file_name, words), digest(settings, repeats)[:8]])


def file_name(words: str) -> str:
    """`words` as a part of a folder's name.

    >>> file_name("gpt-4o-mini:latest")
    'gpt_4o_mini_latest'
    """
    return re.sub(r"[^\w.]+", "_", words)


def do(
    runs: Sequence[TableRun],
    *,
    concurrency: int = CONCURRENCY,
    repeats: int = 1,
    say: Say = lambda line: None,
    progress: RunProgress | bool = True,
) -> dict[Path, Run]:
    """Every run of `runs`, finished, by its folder; each takes over the calls of earlier ones.

    The same call goes on where an earlier one was stopped; a run that is finished without an error is not touched. A
    run whose every question failed the same way does not stop those after it.

    Raises: RunFailed, where no run has an answer.
    """
    distinct = {each.folder: each for each in runs}
    done: dict[Path, Run] = {}
    failures = list[RunFailed]()
    for number, (folder, each) in enumerate(distinct.items(), 1):
        where = f"run {number} of {len(distinct)}: {folder.name}"
        there = finished(folder)
        if there is not None and not there.errors:
            say(f"{where} (finished before)")
            done[folder] = there
            continue
        say(where)
        overlays = journals_of(folder.parent / TRIMMED_FOLDER, each.task)
        try:
            done[folder] = evaluate(
                each.method,
                each.questions,
                lm=each.lm,
                filter_lm=each.filter_lm,
                run=folder,
                concurrency=concurrency,
                reuse=[*earlier(folder, each.task), *overlays],
                name=each.row.method,
                progress=progress,
                repeats=repeats,
            )
        except RunFailed as error:
            say(str(error))
            done[folder] = Run(folder)
            failures.append(error)
    if failures and all(run.failed for run in done.values()):
        raise failures[0]
    return done


def finished(folder: Path) -> Run | None:
    """The finished run in a folder, if there is one."""
    if not (folder / RUN).is_file():
        return None
    run = Run(folder)
    return run if run.finished else None


def earlier(folder: Path, task: str) -> list[Path]:
    """The runs beside `folder` that may hold calls of its own."""
    return [other for other in journals_of(folder.parent, task) if other != folder]


# --- what they cost, before anything is spent ------------------------------------------------------------------------

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
            [
                f"{run.task}: {run.label}",
                f"{run.a_question:.2f}",
                *(f"{getattr(run, name):,}" for name in _COUNTED),
                money(run.new_cost),
                "finished" * run.finished + f", {run.errors} failed" * bool(run.errors),
            ]
            for run in self.runs
        ]
        total = [
            "total",
            "",
            *(f"{self.total(name):,}" for name in _COUNTED),
            money(self.total("new_cost")),
            "",
        ]
        saved = sum(run.calls - run.new_calls for run in self.runs if not run.finished)
        notes = [
            f"estimated from {self.pilot} questions a run, answered by the offline reader: nothing was spent",
            *of_models("tokens", self.tokenisers),
            "replies: as long as the model's in earlier runs, else as the offline reader's; thinking comes on top",
            *of_models("cost", self.prices),
            f"new: no finished run and none above it has made these; reuse between the runs saves {saved:,} calls",
        ]
        return Table(_HEADER, [*rows, total], notes=notes, totals=1).text()


def plan(wanted: Sequence[TableRun], *, repeats: int = 1, pilot: int = PILOT) -> TableCost:
    """The cost of all runs in `wanted`, each distinct one once, in their order."""
    distinct = {run.folder: run for run in wanted}
    journals = {folder for run in wanted for folder in journals_of(run.folder.parent, run.task)}
    estimator = Estimator(sorted(journals))
    costs = []
    with tempfile.TemporaryDirectory(prefix="blendfilter-plan-") as scratch:
        for folder, run in distinct.items():
            rehearsed = Path(scratch) / folder.name
            # what earlier runs hold, real ones and rehearsed ones, is taken over
            reuse = [*earlier(folder, run.task), *journals_of(rehearsed.parent, run.task)]
            tried, made = rehearse(
                run.method,
                replace(run.questions, items=tuple(spread(run.questions, pilot))),
                run.lm,
                rehearsed,
                filter_lm=run.filter_lm,
                reuse=reuse,
                name=run.row.method,
            )
            answered = len(tried.rows)
            used = {key for row in tried.rows for _, key in row["calls"]}
            there = finished(folder)
            missing = len(left_of(run.questions, repeats, folder)) / answered
            new = estimator.estimates(made.calls)
            cost = added(new, "cost")
            costs.append(
                RunCost(
                    run.label,
                    run.task,
                    a_question=len(used) / answered,
                    calls=round(len(used) / answered * len(run.questions) * repeats),
                    new_calls=round(missing * len(new)),
                    new_tokens_in=round(missing * added(new, "tokens_in")),
                    new_tokens_out=round(missing * added(new, "tokens_out")),
                    new_cost=None if cost is None else missing * cost,
                    finished=there is not None,
                    errors=0 if there is None else there.errors,
                )
            )
    most = max(len(run.questions) for run in distinct.values())
    return TableCost(tuple(costs), min(pilot, most), estimator.tokenisers, estimator.prices)

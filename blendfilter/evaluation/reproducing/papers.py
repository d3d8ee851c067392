"""A paper's table or figure as a file: what was published, with which settings, and what to run.

In: a folder of TOML files, `<paper>/<table>.toml`. Out: a `Table`, checked: no key that is unknown, no method or filter
that does not exist, figures only for the tasks and measures of the table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blendfilter.errors import BadData, UnknownName
from blendfilter.filters.cdit.rules import RULES
from blendfilter.filters.registry import FILTERS, parameters_of
from blendfilter.modules.methods import METHODS
from blendfilter.oracles.measures import Measure
from blendfilter.tasks import TASKS

Role = Literal["colbert", "bm25", "dpr", "flat", "hnsw", "ivf"]
"""The papers' retrievers. A command says which index plays which; the last three are kinds of one dense index."""
SILVER = "silver"
"""The filter that keeps what an oracle chose: an upper bound, for it has read the answer. No command makes it alone."""
ASKING_THE_QUESTION = ("direct-retrieval", "cot-retrieval", "ralm")
"""Methods that search for the question alone."""
OUTPUT_PRECISION = "output_precision"
IN_ALL = "seconds_in_all"
OF_CONTEXTS = ("precision", "tokens", "sides", "judging")
"""Kinds of tables that measure what was left for the answer, or what choosing it took: not the answers alone."""
JUDGES = ("cdit", "cdit-components")
"""The filters that judge by rules."""

Share = Annotated[float, Field(ge=0, le=1)]
Words = Annotated[str, Field(min_length=1)]


_FILTERS_OWN = ("filter_n", "filter_by")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Arguments(_Strict):
    """What a row asks of its method; what is left out is the method's own default."""

    k: Annotated[int, Field(ge=1)] | None = None
    filter: str | None = None
    filter_n: Annotated[int, Field(ge=1)] | None = None
    filter_by: str | None = None
    filter_union: bool | None = None
    without: tuple[Literal["q", "q_ex", "q_in"], ...] = ()
    iterations: Annotated[int, Field(ge=1)] | None = None
    samples: Annotated[int, Field(ge=1)] | None = None
    measure: Measure | None = None
    rules: tuple[str, ...] = ()
    trimmed: Annotated[int, Field(ge=1)] | None = None
    """Searches an index that was trimmed by the same questions; so many of them must witness a separation."""
    rewrite: bool | None = None

    def given(self) -> dict[str, Any]:
        """Those that are set."""
        return {name: value for name, value in self.model_dump().items() if value not in (None, ())}


class Published(_Strict):
    """A row's printed figures on one task, as fractions of 1; `imp` is the printed improvement over it, in percent.

    `seconds_in_all` are seconds, of a table of kind `judging`.
    """

    em: Share | None = None
    f1: Share | None = None
    accuracy: Share | None = None
    inclusion: Share | None = None
    output_precision: Share | None = None
    seconds_in_all: Annotated[float, Field(gt=0)] | None = None
    imp: float | None = None

    def score(self, measure: str) -> float | None:
        """The figure for a measure of ours, None where the paper prints none."""
        return getattr(self, measure, None)


class Row(_Strict):
    """One line of a table, or one series of a figure. `ours`: it is not the paper's.

    `at` holds what was printed for the points of a sweep, by K and task.
    """

    label: Words
    group: str = ""
    method: str
    retriever: Role | None = None
    arguments: Arguments = Arguments()
    on: Mapping[str, Arguments] = {}
    published: Mapping[str, Published] = {}
    at: Mapping[int, Mapping[str, Published]] = {}
    ours: bool = False

    def settings(self, task: str) -> dict[str, Any]:
        """The arguments on one task: the row's own, and over them those for the task."""
        return {**self.arguments.given(), **(self.on[task].given() if task in self.on else {})}

    def printed(self, task: str, k: int) -> Published | None:
        """What was printed of it on a task, at that K where it is a series."""
        return self.at[k].get(task) if k in self.at else self.published.get(task)

    @property
    def retrieves(self) -> bool:
        """Whether its method searches."""
        return METHODS[self.method].retrieves

    def reads_gold(self, task: str) -> bool:
        """Whether its filter has read the answer, so that its scores are an upper bound."""
        return self.settings(task).get("filter") == SILVER


class Sampling(_Strict):
    """How a model is sampled."""

    temperature: Annotated[float, Field(ge=0)]
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None


class Table(_Strict):
    """A table or figure: its place in the paper, the paper's settings, and its rows.

    `kind`: `scores` (tables), `retrieval` (what is found and kept), `sweep` (over K), `samples` (the best of several
    answers); of the contexts that filters leave: `settings` (scores, drawn side by side), `precision`, `tokens`,
    `sides` (scores where the passages support the output, and where not), `frontier` (scores against tokens),
    `judging` (what a judge's verdicts take: calls, tokens, seconds, dollars).
    `n` is how many questions are asked, `published_n` the fewest that the paper asked, where that is not n. `against`
    is the label that the other rows are tested against. `reader` is empty where nothing was published. `serve`: the
    commands that serve the paper's own reader (or the one near it that `served` names), `ask`: how it is then named,
    `request`: what each request to it needs besides.
    """

    name: str
    title: Words
    paper: Words
    kind: Literal[
        "scores", "retrieval", "sweep", "samples", "settings", "precision", "tokens", "sides", "frontier", "judging"
    ]
    reader: str
    retriever: Role
    n: Annotated[int, Field(ge=1)]
    published_n: Annotated[int, Field(ge=1)] | None = None
    k: Annotated[int, Field(ge=1)]
    tasks: Annotated[tuple[str, ...], Field(min_length=1)]
    against: Words
    rows: Annotated[tuple[Row, ...], Field(min_length=1)]
    notes: tuple[Words, ...] = ()
    serve: tuple[Words, ...] = ()
    served: str = ""
    ask: str = ""
    request: Mapping[str, Any] = {}
    sweep: tuple[Annotated[int, Field(ge=1)], ...] = ()
    samples: tuple[Sampling, ...] = ()

    def of(self, methods: Iterable[str] | None) -> list[Row]:
        """The rows of some methods; of all where none are named. Raises: UnknownName."""
        if methods is None:
            return list(self.rows)
        known, asked = list(dict.fromkeys(row.method for row in self.rows)), list(methods)
        for name in asked:
            if name not in known:
                raise UnknownName.of("method", name, known, f"in {self.name}")
        return [row for row in self.rows if row.method in asked]

    def with_rows(self, labels: Iterable[str]) -> Table:
        """The rows of some labels, and those that they are tested against. Raises: UnknownName."""
        known, asked = list(dict.fromkeys(row.label for row in self.rows)), list(labels)
        for name in asked:
            if name not in known:
                raise UnknownName.of("row", name, known, f"in {self.name}")
        chosen = [row for row in self.rows if row.label in asked]
        kept = [row for row in self.rows if row in chosen or row in map(self.reference, chosen)]
        return self.model_copy(update={"rows": tuple(kept)})

    def role(self, row: Row) -> Role:
        """The retriever of a row."""
        return row.retriever or self.retriever

    def reference(self, row: Row) -> Row:
        """The row that `row` is tested against: the one over its own retriever, where there are several."""
        named = [each for each in self.rows if each.label == self.against]
        near = [each for each in named if self.role(each) == self.role(row)] or named
        return next((each for each in near if each.group == row.group), near[0])


def names(folder: Path) -> dict[str, Path]:
    """The tables and figures in a folder of papers, by name: that of their file, whichever paper it lies with.

    Raises:
        BadData: two files of one name; each would hide the other.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*/*.toml")):
        if (other := found.setdefault(path.stem, path)) != path:
            both = f"{other.parent.name}/{other.name} and {path.parent.name}/{path.name}"
            raise BadData(f"two tables are called '{path.stem}': {both}; put the paper in front of one")
    return found


def read(folder: Path, name: str) -> Table:
    """The table called `name`.

    Raises:
        UnknownName: no such table, or one of its methods, filters or tasks. BadData: its file is not a table.
    """
    known = names(folder)
    if name not in known:
        raise UnknownName.of("table", name, known)
    return table_of(known[name])


def table_of(path: Path) -> Table:
    """The table in a file. Raises as `read` does."""
    try:
        said = tomllib.loads(path.read_text(encoding="utf-8"))
        if "name" in said:
            raise BadData(f"{path.name}: unknown key 'name': take it out, a table is called as its file is")
        table = Table.model_validate({"name": path.stem, **said})
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadData(f"{path.name}: not TOML ({error})") from None
    except ValidationError as error:
        raise BadData(f"{path.name}: {_first(error)}") from None
    for problem in _problems(table):
        raise problem
    return table


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    place = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown key '{place}': take it out, or mend its name"
    if first["type"] == "missing":
        return f"'{place}' is missing"
    return f"'{place}' is wrong: {first['msg']}, found {str(first['input'])[:60]!r}"


def _problems(table: Table) -> Iterator[Exception]:
    """What no single field shows: names of methods, filters and tasks, figures that fit nothing."""
    where = f"in {table.name}.toml"
    labels = {row.label for row in table.rows}
    yield from _unknown("task", table.tasks, TASKS, where)
    yield from _unknown("method", [row.method for row in table.rows], METHODS, where)
    yield from _unknown("row", [table.against], labels, where)
    for row in table.rows:
        filters = [each.filter for each in (row.arguments, *row.on.values()) if each.filter is not None]
        yield from _unknown("filter", filters, (*FILTERS, SILVER), where)
        figures = [row.published, *row.at.values()]
        named = [*row.on, *(task for each in figures for task in each)]
        yield from _unknown("task", named, table.tasks, f"{where}, row '{row.label}'")
        yield from _unfit(table, row)
        yield from _misprinted(table, row)
    pairs = [(row.group, row.label) for row in table.rows]
    for pair in pairs:
        if pairs.count(pair) > 1:
            yield BadData(f"{table.name}.toml: two rows are called '{pair[1]}' in the group '{pair[0]}'")
    if (table.kind == "sweep") != bool(table.sweep) or (table.kind == "samples") != bool(table.samples):
        yield BadData(f"{table.name}.toml: kind '{table.kind}' does not fit its 'sweep' and 'samples'")


def _unknown(kind: str, used: Iterable[str], known: Iterable[str], where: str) -> Iterator[Exception]:
    there = set(known)
    return (UnknownName.of(kind, name, there, where) for name in used if name not in there)


def _unfit(table: Table, row: Row) -> Iterator[Exception]:
    """Arguments that the row's method does not take, and a filter's settings where no filter is named."""
    taken = {*parameters_of(METHODS[row.method].make), *_FILTERS_OWN, "measure", "rules"}
    taken |= {"trimmed"} if row.retrieves else set()
    for settings in (row.settings(task) for task in table.tasks):
        if "measure" in settings and settings.get("filter") != SILVER:
            yield BadData(f"{table.name}.toml: row '{row.label}' has a measure: it belongs to the filter '{SILVER}'")
        wrong = next((name for name in settings if name not in taken), None)
        if wrong is not None:
            yield BadData(f"{table.name}.toml: row '{row.label}': {row.method} takes no {wrong}: take it out")
        yield from _unknown("rule", settings.get("rules", ()), RULES, f"in {table.name}.toml, row '{row.label}'")
        if "rules" in settings and settings.get("filter") not in JUDGES and "trimmed" not in settings:
            yield BadData(f"{table.name}.toml: row '{row.label}' has rules and nothing that judges by them")
        lost = next((name for name in _FILTERS_OWN if name in settings and "filter" not in settings), None)
        if lost is not None:
            yield BadData(f"{table.name}.toml: row '{row.label}' has {lost} and no filter: name the filter too")


def _misprinted(table: Table, row: Row) -> Iterator[Exception]:
    """Figures of measures that a task does not have, or none at all, or of a K that the table does not sweep over."""
    if lost := [k for k in row.at if k not in table.sweep]:
        yield BadData(f"{table.name}.toml: row '{row.label}' has figures at K={lost[0]}, which is not in its 'sweep'")
    for task, figures in (pair for each in (row.published, *row.at.values()) for pair in each.items()):
        printed = figures.model_fields_set - {"imp"}
        measures = {"precision": (OUTPUT_PRECISION,), "judging": (IN_ALL,)}.get(table.kind, TASKS[task].metrics)
        if not printed or not printed <= set(measures):
            said = ", ".join(sorted(printed)) or "no figure"
            yield BadData(f"{table.name}.toml: row '{row.label}' has {said} for {task} ({', '.join(measures)})")

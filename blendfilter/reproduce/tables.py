"""A paper's table or figure as data: what was printed, with which settings, and what to run.

Each is a TOML file, `papers/<paper>/<table>.toml`, beside this module. It is checked as it is read: no unknown key, no
method or filter that does not exist, figures only for the tasks and measures of the table.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo

from blendfilter.errors import BadData, UnknownName
from blendfilter.filters.cdit import RULES
from blendfilter.filters.registry import FILTERS, parameters_of
from blendfilter.modules.methods import METHODS
from blendfilter.oracles.measures import Measure
from blendfilter.tasks import TASKS

PAPERS = Path(__file__).parent / "papers"
Role = Literal["colbert", "bm25", "dpr", "flat", "hnsw", "ivf"]
"""The papers' retrievers. A command says which index plays which; the last three are kinds of one dense index."""
SILVER = "silver"
"""The filter that keeps what an oracle chose: an upper bound, for it has read the answer. No command makes it alone."""
QUESTION_ONLY = ("direct-retrieval", "cot-retrieval", "ralm")
"""Methods that search for the question alone."""
JUDGES = ("cdit", "cdit-components")
"""The filters that judge by rules."""
OUTPUT_PRECISION = "output_precision"
SECONDS_IN_ALL = "seconds_in_all"
OF_CONTEXTS = ("precision", "tokens", "sides", "judging")
"""Kinds of tables that measure what was left for the answer, or what choosing it took: not the answers alone."""
_OF_A_FILTER = ("filter_n", "filter_by")


def _one_of(kind: str, known: Iterable[str]) -> AfterValidator:
    """A name out of `known`; the context of the validation is the file that it stands in."""

    def check(name: str, info: ValidationInfo) -> str:
        check_names(kind, [name], known, str(info.context))
        return name

    return AfterValidator(check)


Share = Annotated[float, Field(ge=0, le=1)]
Words = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RowArguments(_Strict):
    """The arguments of a row's method; what is left out is the method's own default.

    `trimmed`: it searches an index that was trimmed by the same questions, so many of which must witness a separation.
    """

    k: Count | None = None
    filter: Annotated[str, _one_of("filter", (*FILTERS, SILVER))] | None = None
    filter_n: Count | None = None
    filter_by: str | None = None
    filter_union: bool | None = None
    without: tuple[Literal["q", "q_ex", "q_in"], ...] = ()
    iterations: Count | None = None
    samples: Count | None = None
    measure: Measure | None = None
    rules: tuple[Annotated[str, _one_of("rule", RULES)], ...] = ()
    trimmed: Count | None = None
    rewrite: bool | None = None


class PrintedFigures(_Strict):
    """A row's printed figures on one task, as fractions of 1.

    `imp` is the printed improvement over it, in percent; `seconds_in_all` are seconds, in a table of kind `judging`.
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


class PaperRow(_Strict):
    """One line of a table, or one series of a figure, whose printed points are in `at`, by K and task.

    `ours`: the row is not the paper's.
    """

    label: Words
    group: str = ""
    method: Annotated[str, _one_of("method", METHODS)]
    retriever: Role | None = None
    arguments: RowArguments = RowArguments()
    on: Mapping[str, RowArguments] = {}
    published: Mapping[str, PrintedFigures] = {}
    at: Mapping[int, Mapping[str, PrintedFigures]] = {}
    ours: bool = False

    def settings(self, task: str) -> dict[str, Any]:
        """The arguments on one task: the row's own, and over them those for the task."""
        both = (self.arguments, self.on.get(task, RowArguments()))
        return {name: value for each in both for name, value in each.model_dump(exclude_defaults=True).items()}

    def printed(self, task: str, k: int) -> PrintedFigures | None:
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


class PaperTable(_Strict):
    """A table or figure: its place in the paper, the paper's settings, and its rows.

    `kind`: `scores` (tables), `retrieval` (what is found and kept), `sweep` (over K), `samples` (the best of several
    answers); of the contexts that filters leave: `settings` (scores, drawn side by side), `precision`, `tokens`,
    `sides` (scores where the passages support the output, and where not), `frontier` (scores against tokens),
    `judging` (what a judge's verdicts take: calls, tokens, seconds, dollars).
    `n` questions are run; `published_n` is the fewest that the paper ran, where that is not n. The other rows are
    tested against the label `against`. `reader` is empty where nothing was published. `serve`: the commands that serve
    the paper's own reader (or the one near it that `served` names; `{papers}` is the folder of these files), `ask`: how
    it is then named, `request`: what each request to it needs besides.
    """

    name: str
    title: Words
    paper: Words
    kind: Literal[
        "scores", "retrieval", "sweep", "samples", "settings", "precision", "tokens", "sides", "frontier", "judging"
    ]
    reader: str
    retriever: Role
    n: Count
    published_n: Count | None = None
    k: Count
    tasks: Annotated[tuple[Annotated[str, _one_of("task", TASKS)], ...], Field(min_length=1)]
    against: Words
    rows: Annotated[tuple[PaperRow, ...], Field(min_length=1)]
    notes: tuple[Words, ...] = ()
    serve: tuple[Words, ...] = ()
    served: str = ""
    ask: str = ""
    request: Mapping[str, Any] = {}
    sweep: tuple[Count, ...] = ()
    samples: tuple[Sampling, ...] = ()

    def of(self, methods: Iterable[str] | None) -> list[PaperRow]:
        """The rows of some methods; of all where none are named. Raises: UnknownName."""
        return list(self.rows) if methods is None else self._rows("method", methods)

    def with_rows(self, labels: Iterable[str]) -> PaperTable:
        """The rows of some labels, and those that they are tested against. Raises: UnknownName."""
        chosen = self._rows("label", labels)
        kept = [row for row in self.rows if row in chosen or row in map(self.reference, chosen)]
        return self.model_copy(update={"rows": tuple(kept)})

    def _rows(self, field: Literal["method", "label"], names: Iterable[str]) -> list[PaperRow]:
        wanted = list(names)
        check_names("row" if field == "label" else field, wanted, [getattr(row, field) for row in self.rows], self.name)
        return [row for row in self.rows if getattr(row, field) in wanted]

    def role(self, row: PaperRow) -> Role:
        """The retriever of a row."""
        return row.retriever or self.retriever

    def reference(self, row: PaperRow) -> PaperRow:
        """The row that `row` is tested against: the one over its own retriever, where there are several."""
        named = [each for each in self.rows if each.label == self.against]
        near = [each for each in named if self.role(each) == self.role(row)] or named
        return next((each for each in near if each.group == row.group), near[0])


def names(folder: Path = PAPERS) -> dict[str, Path]:
    """The tables and figures in a folder of papers, by the names of their files.

    Raises:
        BadData: two files of one name; each would hide the other.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*/*.toml")):
        if (other := found.setdefault(path.stem, path)) != path:
            both = f"{other.parent.name}/{other.name} and {path.parent.name}/{path.name}"
            raise BadData(f"two tables are called '{path.stem}': {both}; put the paper in front of one")
    return found


def read(name: str) -> PaperTable:
    """The table called `name`, or the one in the user's own file of that name (`mine.toml`).

    Raises:
        UnknownName: no such table, or one of its methods, filters or tasks. BadData: its file is not a table.
    """
    if Path(name).suffix == ".toml" and Path(name).is_file():
        return table_of(Path(name))
    known = names()
    if name not in known:
        raise UnknownName.of("table", name, known)
    return table_of(known[name])


def table_of(path: Path) -> PaperTable:
    """The table in a file. Raises as `read` does."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        if "name" in content:
            raise BadData(f"{path.name}: unknown key 'name': take it out, a table is called as its file is")
        table = PaperTable.model_validate({"name": path.stem, **content}, context=path.name)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadData(f"{path.name}: not TOML ({error})") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
        problem = {
            "extra_forbidden": f"unknown key '{place}': take it out, or mend its name",
            "missing": f"'{place}' is missing",
        }.get(first["type"], f"'{place}' is wrong: {first['msg']}, found {str(first['input'])[:60]!r}")
        raise BadData(f"{path.name}: {problem}") from None
    _check(table)
    return table


def check_names(kind: str, names: Iterable[str], known: Iterable[str], where: str) -> None:
    """Raise `UnknownName` unless all `names`, of a method, say, are `known` in a file or table."""
    there = dict.fromkeys(known)
    for name in names:
        if name not in there:
            raise UnknownName.of(kind, name, there, f"in {where}")


def _check(table: PaperTable) -> None:
    """Check what no single field shows: names that refer to others, arguments and figures that fit nothing.

    Raises: UnknownName, BadData.
    """
    file = f"{table.name}.toml"
    check_names("row", [table.against], [row.label for row in table.rows], file)
    if (table.kind == "sweep") != bool(table.sweep) or (table.kind == "samples") != bool(table.samples):
        raise BadData(f"{file}: kind '{table.kind}' does not fit its 'sweep' and 'samples'")
    places = [(row.group, row.label) for row in table.rows]
    for row in table.rows:
        if places.count((row.group, row.label)) > 1:
            raise BadData(f"{file}: two rows are called '{row.label}' in the group '{row.group}'")
        figures = [(task, each) for at in (row.published, *row.at.values()) for task, each in at.items()]
        check_names("task", [*row.on, *(task for task, _ in figures)], table.tasks, f"{file}, row '{row.label}'")
        problems = [*_misplaced(row, table.tasks), *_misprinted(table, row, figures)]
        if problems:
            raise BadData(f"{file}: row '{row.label}'{problems[0]}")


def _misplaced(row: PaperRow, tasks: Iterable[str]) -> Iterator[str]:
    """Arguments that the row's method does not take, and a filter's settings without their filter."""
    taken = {*parameters_of(METHODS[row.method].make), *_OF_A_FILTER, "measure", "rules", *["trimmed"] * row.retrieves}
    for settings in map(row.settings, tasks):
        chosen = settings.get("filter")
        if "measure" in settings and chosen != SILVER:
            yield f" has a measure: it belongs to the filter '{SILVER}'"
        if "rules" in settings and chosen not in JUDGES and "trimmed" not in settings:
            yield " has rules and nothing that judges by them"
        yield from (f": {row.method} takes no {name}: take it out" for name in settings if name not in taken)
        if chosen is None:
            yield from (f" has {name} and no filter: name the filter too" for name in _OF_A_FILTER if name in settings)


def _misprinted(table: PaperTable, row: PaperRow, printed: Iterable[tuple[str, PrintedFigures]]) -> Iterator[str]:
    """Figures of measures that a task does not have, or none at all, or of a K that the table does not sweep over."""
    yield from (f" has figures at K={k}, which is not in its 'sweep'" for k in row.at if k not in table.sweep)
    for task, figures in printed:
        given = figures.model_fields_set - {"imp"}
        measures = {"precision": (OUTPUT_PRECISION,), "judging": (SECONDS_IN_ALL,)}.get(table.kind)
        measures = measures or TASKS[task].metrics
        if not given or not given <= set(measures):
            yield f" has {', '.join(sorted(given)) or 'no figure'} for {task} ({', '.join(measures)})"

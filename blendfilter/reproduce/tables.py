"""A paper's table or figure as data: what was printed, with which settings, and what to run.

Each is a TOML file, `papers/<paper>/<table>.toml`, beside this module. It is checked as it is read: no unknown key, no
method, filter or task that does not exist.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    ValidationError,
    model_validator,
)

from blendfilter.errors import BadArgument, BadData, MissingFile, UnknownName
from blendfilter.files import path_of
from blendfilter.filters.cdit import RULES
from blendfilter.filters.registry import FILTERS, parameters_of
from blendfilter.modules.methods import METHODS
from blendfilter.oracles.measures import Measure
from blendfilter.oracles.silver_rows import Stage
from blendfilter.tasks import TASKS

_File = TypeVar("_File", bound=BaseModel)
PAPERS = Path(__file__).parent / "papers"
Role = Literal["colbert", "bm25", "reranked", "dpr", "flat", "hnsw", "ivf"]
"""The papers' retrievers. A command says which index plays which; the last three are kinds of one dense index."""
OF_FILTERS = ("filter_n", "filter_by", "filter_model", "filter_tokens", "rules")
"""Arguments of a row that are its filter's."""
OF_ROWS = (*OF_FILTERS, "measure", "stage", "trimmed")
"""Those that its method does not take as they are."""
SILVER = "silver"
"""The filter that keeps what an oracle chose: an upper bound, for it has read the answer. No command makes it alone."""
QUESTION_ONLY = ("direct-retrieval", "cot-retrieval", "ralm")
"""Methods that search for the question alone."""
OF_A_FILTER = ("filter_lm", "filter_model")
"""Fields of a row that name the model of its filter."""
PROMPTED = "prompted"
"""The default of a table's model that need not be there: without one named, the row's filter is a prompt."""


def _one_of(kind: str, known: Iterable[str]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in known:
            raise ValueError(UnknownName.of(kind, name, known))
        return name

    return AfterValidator(check)


Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Task = Annotated[str, _one_of("task", TASKS)]
ModelByTask = Annotated[
    Mapping[Annotated[str, _one_of("task", (*TASKS, ""))], str],
    BeforeValidator(lambda value: {"": value} if isinstance(value, str) else value),
]
"""A model's name by task; under "" that of all others, which a name alone is."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KindOfTable(_Strict):
    """What tables of one kind measure, and what is said of their figures (`kinds.toml`)."""

    unit: str = "percent"
    gain: str = "points"
    failed: str = "count as 0"
    scores: bool = False
    compared: bool = False
    leading: bool = False
    drawn: tuple[Literal["headline", "panels", "frontier"], ...] = ("panels",)


class FigureFormat(_Strict):
    """How one measure is written and tested (`kinds.toml`); without `digits` it is a share, written in percent."""

    words: str
    digits: int | None = None
    yes_no: bool = False
    alike: bool = False
    tested: bool = True
    share: bool = False


class _Kinds(_Strict):
    kinds: Mapping[str, KindOfTable]
    measures: Mapping[str, FigureFormat]


_DATA = _Kinds(**tomllib.loads(Path(__file__).with_name("kinds.toml").read_text("utf-8")))
_SIZES: Mapping[str, Any] = tomllib.loads((PAPERS / "sizes.toml").read_text("utf-8"))


def format_of(measure: str) -> FigureFormat:
    """How a measure is written; one that nothing is said of by its own name, in percent."""
    return _DATA.measures.get(measure, FigureFormat(words=measure))


class RowArguments(_Strict):
    """The arguments of a row's method; what is left out is the method's own default.

    `trimmed`: it searches an index that was trimmed by the same questions, and reads what is left of the first k, as
    the paper does, or k passages, filled up from further down (`refilled`). `filter_model`: which of the table's
    `models` its filter has. `stage`: what it keeps is of that stage of BIDER's synthesis, from a file that is given.
    """

    k: Count | None = None
    filter: Annotated[str, _one_of("filter", (*FILTERS, SILVER))] | None = None
    filter_n: Count | None = None
    filter_by: str | None = None
    filter_model: str | None = None
    filter_tokens: Count | None = None
    filter_union: bool | None = None
    drop_conclusion: bool | None = None
    without: tuple[Literal["q", "q_ex", "q_in"], ...] = ()
    iterations: Count | None = None
    samples: Count | None = None
    measure: Measure | None = None
    stage: Stage | None = None
    rules: tuple[Annotated[str, _one_of("rule", RULES)], ...] = ()
    trimmed: Literal["left", "refilled"] | None = None
    rewrite: bool | None = None
    max_input_tokens: Count | None = None


class PrintedFigures(_Strict):
    """A row's printed figures on one task, as fractions of 1; tokens, positions and seconds are what they are.

    `imp` is the printed improvement over it, in percent; `seconds_in_all` is of a table of kind `judging`; `gains` are
    printed differences from the table's reference row, by measure.
    """

    em: Share | None = None
    f1: Share | None = None
    accuracy: Share | None = None
    inclusion: Share | None = None
    output_precision: Share | None = None
    supported: Share | None = None
    positive_precision: Share | None = None
    refined_tokens: NonNegativeFloat | None = None
    gold_in_output: Share | None = None
    gold_position: Annotated[float, Field(ge=1)] | None = None
    refining_seconds: NonNegativeFloat | None = None
    answering_seconds: NonNegativeFloat | None = None
    total_seconds: NonNegativeFloat | None = None
    seconds_in_all: PositiveFloat | None = None
    imp: float | None = None
    gains: Mapping[str, float] | None = None


class PrintedBlock(_Strict):
    """A row's printed figures with another reader."""

    published: Mapping[Task, PrintedFigures]
    average_gain: float | None = None


class PrintedSizes(_Strict):
    """How many questions a paper's data set has (`papers/sizes.toml`), and which of its parts the paper reports on."""

    train: Count | None = None
    dev: Count | None = None
    test: Count | None = None
    evaluated: Literal["dev", "test"] = "test"


class PaperRow(_Strict):
    """One line of a table, or one series of a figure, whose printed points are in `at`, by K and task.

    `average_gain` is its printed difference from the reference, on average over tasks or points (Avg-Impro); `blocks`
    are what was printed with other readers. `ours`: the row is not the paper's. `reads`: the context that the paper's
    own reader of the row was trained on, as `blendfilter train filco --reads` has it. `lm` reads the row in place of
    the table's reader; its filter is prompted from `filter_lm`, or is the trained `filter_model` (a name, or names by
    task).
    """

    label: str
    group: str = ""
    method: Annotated[str, _one_of("method", METHODS)]
    retriever: Role | None = None
    arguments: RowArguments = RowArguments()
    on: Mapping[Task, RowArguments] = {}
    published: Mapping[Task, PrintedFigures] = {}
    at: Mapping[int, Mapping[Task, PrintedFigures]] = {}
    average_gain: float | None = None
    blocks: Mapping[str, PrintedBlock] = {}
    ours: bool = False
    reads: Literal["full", "psg", "silver"] | None = None
    lm: ModelByTask = {}
    filter_lm: ModelByTask = {}
    filter_model: ModelByTask = {}

    @model_validator(mode="after")
    def _check_models(self) -> PaperRow:
        return self._with_one_filter_model()

    def _with_one_filter_model(self) -> PaperRow:
        for task in ("", *self.filter_model, *self.filter_lm):
            name = self.settings(task).get("filter")
            prompts, trained = (self.model(field, task) for field in OF_A_FILTER)
            if (trained and name is None) or (name == SILVER and (prompts or trained)):
                raise ValueError(f"{self.label} has no filter: leave the model of one out")
            if prompts and trained:
                raise ValueError(
                    f"two models are named for {self.label}'s filter: leave one out"
                )
        return self

    @model_validator(mode="after")
    def _check_arguments(self) -> PaperRow:
        taken = {*parameters_of(METHODS[self.method].make), *OF_ROWS}
        for arguments in (self.arguments, *self.on.values()):
            if extra := arguments.model_fields_set - taken:
                raise ValueError(f"{self.method} takes no {', '.join(sorted(extra))}")
        return self

    def settings(self, task: str) -> dict[str, Any]:
        """The arguments on one task: the row's own, and over them those for the task."""
        own, of_task = (
            arguments.model_dump(exclude_defaults=True)
            for arguments in (self.arguments, self.on.get(task, RowArguments()))
        )
        return own | of_task

    def model(self, field: str, task: str) -> str | None:
        """The model that `lm`, `filter_lm` or `filter_model` names for a task."""
        named: Mapping[str, str] = getattr(self, field)
        return named.get(task, named.get(""))

    def naming(self, field: str, task: str, model: str) -> PaperRow:
        """The row with a model named for a task. Raises: BadArgument for one that it has no use for."""
        named = {**getattr(self, field), task: model}
        changed = self.model_copy(update={field: named})
        try:
            return changed._with_one_filter_model()
        except ValueError as error:
            raise BadArgument(str(error)) from None

    def printed(self, task: str, k: int) -> PrintedFigures | None:
        """What was printed of it on a task, at that K where it is a series."""
        return self.at[k].get(task) if k in self.at else self.published.get(task)

    def measures(self, task: str, k: int) -> list[str]:
        """The measures of what was printed of it on a task."""
        printed = self.printed(task, k) or PrintedFigures()
        scores = printed.model_dump(exclude={"imp", "gains"}, exclude_none=True)
        return list(scores | dict.fromkeys(printed.gains or {}))

    @property
    def name(self) -> str:
        """Its group and label."""
        return ", ".join(filter(None, (self.group, self.label)))

    @property
    def retrieves(self) -> bool:
        """Whether its method searches."""
        return METHODS[self.method].retrieves

    def reads_gold(self, task: str) -> bool:
        """Whether its filter has read the answer, so that its scores are an upper bound."""
        return self.settings(task).get("filter") == SILVER


class Sampling(_Strict):
    """How a model is sampled."""

    temperature: NonNegativeFloat
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None


def name_of_model(lm: str) -> str:
    """A model's name without its owner or provider, as names are compared."""
    return lm.rpartition("/")[2].casefold()


class PaperTable(_Strict):
    """A table or figure: its place in the paper, the paper's settings, and its rows.

    `kind`: `scores` (tables), `retrieval` (what is found and kept), `sweep` (over K), `samples` (the best of several
    answers); of the contexts that filters leave: `settings` (scores, drawn side by side), `precision`, `tokens`,
    `support` (whether the passages support the output), `sides` (scores where they do, and where not), `frontier`
    (scores against tokens), `judging` (what a judge's verdicts take: calls, tokens, seconds, dollars), `refined`
    (scores, and the tokens of what is left), `alignment` (scores, and whether and where the answer stands in what is
    left), `latency` (seconds).
    Verdicts compare runs with the paper's setting: `reader`, `retriever`, `corpus` of `passages`, and what filters or
    judges where that is not the reader (`filter_lm`).
    `n` questions are run; `published_n` is the fewest that the paper ran, where that is not n. The other rows are
    tested against the label `against`. `reader` is empty where nothing was published; `readers` are those of the rows'
    blocks, with the names that they are served under ("fine-tuned BASE": trained from BASE). `serve`: the commands that
    serve the paper's own reader (or the one near it that `served` names; `{papers}` is the folder of these files),
    `ask`: how it is then named, `request`: what each request to it needs besides. `prompts`: the set that its rows are
    asked by. `shots`: the demonstrations that the paper shows (None: it does not say).
    """

    name: str
    title: str
    paper: str
    kind: Annotated[str, _one_of("kind", _DATA.kinds)]
    reader: str
    retriever: Role
    corpus: str = ""
    passages: int = 0
    filter_lm: str = ""
    n: Count
    published_n: Count | None = None
    k: Count
    tasks: Annotated[tuple[Task, ...], Field(min_length=1)]
    against: str
    rows: Annotated[tuple[PaperRow, ...], Field(min_length=1)]
    notes: tuple[str, ...] = ()
    serve: tuple[str, ...] = ()
    served: str = ""
    ask: str = ""
    request: Mapping[str, Any] = {}
    sweep: tuple[Count, ...] = ()
    samples: tuple[Sampling, ...] = ()
    models: Mapping[str, str] = {}
    prompts: Literal["ours", "paper"] = "paper"
    shots: NonNegativeInt | None = None
    readers: Mapping[str, tuple[str, ...]] = {}
    sizes: Mapping[Task, PrintedSizes] = {}

    @property
    def about(self) -> KindOfTable:
        """What its kind measures."""
        return _DATA.kinds[self.kind]

    @model_validator(mode="after")
    def _check_rows(self) -> PaperTable:
        if (self.kind == "sweep") != bool(self.sweep) or (self.kind == "samples") != bool(
            self.samples
        ):
            raise ValueError(f"kind '{self.kind}' does not fit its 'sweep' and 'samples'")
        labels = [row.label for row in self.rows]
        if self.against not in labels:
            raise ValueError(UnknownName.of("row", self.against, labels))
        if len({(row.group, row.label) for row in self.rows}) < len(labels):
            raise ValueError("two rows of one group have the same label")
        for row in self.rows:
            for arguments in (row.arguments, *row.on.values()):
                if (model := arguments.filter_model) is not None and model not in self.models:
                    raise ValueError(UnknownName.of("model", model, self.models, "in models"))
        return self

    def cut(
        self, methods: Iterable[str] | None = None, labels: Iterable[str] | None = None
    ) -> PaperTable:
        """The table with the rows of some methods, or of some labels and what these are tested against.

        Raises:
            UnknownName: a method or label that no row has.
        """
        rows = list(self.rows)
        if labels is not None:
            wanted = self.named("row", labels, [row.label for row in rows])
            chosen = [row for row in rows if row.label in wanted]
            kept = [*chosen, *map(self.reference, chosen)]
            rows = [row for row in rows if row in kept]
        if methods is not None:
            wanted = self.named("method", methods, [row.method for row in rows])
            rows = [row for row in rows if row.method in wanted]
        return self.model_copy(update={"rows": tuple(rows)})

    def is_reader(self, lm: str, reader: str | None = None) -> bool:
        """Whether the model called `lm` is the table's reader, or another one of its blocks."""
        reader = self.reader if reader is None else reader
        names = (reader, *self.readers.get(reader, ()))
        return name_of_model(lm) in map(name_of_model, names)

    def read_by(self, lm: str) -> PaperTable:
        """The table with the block of the model called `lm`, where it has one; else its own."""
        reader = next((name for name in self.readers if self.is_reader(lm, name)), self.reader)
        rows = tuple(
            row.model_copy(update=dict(row.blocks[reader])) if reader in row.blocks else row
            for row in self.rows
        )
        return self.model_copy(update={"reader": reader, "rows": rows})

    def with_all_blocks(self) -> PaperTable:
        """The table with the blocks of all its readers, one after the other, beside the same runs.

        Raises: BadArgument, where the paper printed figures of one reader alone.
        """
        if not any(row.blocks for row in self.rows):
            raise BadArgument(f"{self.name} prints one model's figures: leave all_models= out")
        rows = [
            row.model_copy(update={"group": f"{reader}, {row.group}", "blocks": {}})
            for reader in self.readers
            for row in self.read_by(reader).rows
            if reader == self.reader or reader in row.blocks
        ]
        return self.model_copy(update={"reader": ", ".join(self.readers), "rows": tuple(rows)})

    def named(self, kind: str, names: Iterable[str], known: Iterable[str]) -> list[str]:
        """`names`, all of which are `known` in this table. Raises: UnknownName."""
        wanted, there = list(names), dict.fromkeys(known)
        for name in wanted:
            if name not in there:
                raise UnknownName.of(kind, name, there, f"in {self.name}")
        return wanted

    def role(self, row: PaperRow) -> Role:
        """The retriever of a row."""
        return row.retriever or self.retriever

    def reference(self, row: PaperRow) -> PaperRow | None:
        """The row that `row` is tested against: the one over its own retriever, in its own group, where there are."""
        named = [each for each in self.rows if each.label == self.against]
        return max(
            named,
            key=lambda each: (self.role(each) == self.role(row), each.group == row.group),
            default=None,
        )


def names() -> dict[str, Path]:
    """The files of the tables and figures by their names."""
    return {path.stem: path for path in sorted(PAPERS.glob("*/*.toml"))}


def read(name: str) -> PaperTable:
    """The table called `name`, or the one in the user's own file of that name (`mine.toml`).

    Raises:
        UnknownName: no such table. BadData: its file is not a table.
    """
    path, known = path_of(name), names()
    if path.suffix != ".toml" or not path.is_file():
        if name not in known:
            raise UnknownName.of("table", name, known)
        path = known[name]
    sizes = _SIZES.get(path.parent.name)
    return parsed(path, PaperTable, name=path.stem, **({"sizes": sizes} if sizes else {}))


def parsed(path: Path, shape: type[_File], **more: Any) -> _File:
    """A TOML file as `shape`. Raises: MissingFile, or BadData where it is another thing."""
    try:
        return shape.model_validate({**tomllib.loads(path.read_text(encoding="utf-8")), **more})
    except OSError as error:
        raise MissingFile(f"{path}: {error.strerror}; name a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadData(f"{path.name}: not TOML ({error})") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(
            str(part + 1 if isinstance(part, int) else part) for part in first["loc"]
        )
        raise BadData(
            f"{path.name}: {place or 'table'}: {first['msg'].removeprefix('Value error, ')}"
        ) from None

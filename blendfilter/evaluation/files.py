"""A run folder's files: rows appended as they come, files that appear whole or not at all, all checked on reading.

What is read is what was written, as plain dictionaries; a value of the wrong type is a `BadData` that names file, place
and the way to mend it, never an error further up.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from blendfilter.append_only import AppendOnly, check_regular, whole_lines
from blendfilter.errors import BadData, MissingFile
from blendfilter.evaluation.losses import LOSSES, Loss
from blendfilter.files import write_whole
from blendfilter.journal import Count, Key

RUN = "run.json"
PREDICTIONS = "predictions.jsonl"
METRICS = "metrics.json"
REPORT = "report.html"
_MEND = {
    RUN: "restore it, or give the run another folder",
    METRICS: "run the same command again, and it is made anew",
}
_ROW_BEGINS = b'{"id": "'
_REMAKE = "make it again (blendfilter rescore)"


def write_json(path: Path, value: Any) -> None:
    """`value` as JSON, by a temporary file and a rename."""
    write_whole(path, [dumped(value)])


def dumped(value: Any) -> bytes:
    """`value` as the bytes of a JSON file."""
    return json.dumps(value, ensure_ascii=False, indent=2).encode("utf-8", "backslashreplace") + b"\n"


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """`rows` as JSON lines, by a temporary file and a rename."""
    write_lines(path, map(line_of, rows))


def write_lines(path: Path, lines: Iterable[bytes]) -> None:
    """`lines` as they are, by a temporary file and a rename."""
    write_whole(path, lines)


def write_text(path: Path, text: str) -> None:
    """`text`, by a temporary file and a rename; half a character in it becomes an escape."""
    write_whole(path, [text.encode("utf-8", "backslashreplace")])


def line_of(row: Mapping[str, Any]) -> bytes:
    """One row as a line."""
    return json.dumps(row, ensure_ascii=False).encode("utf-8", "backslashreplace") + b"\n"


class Shape(BaseModel):
    """What a file of a run holds, as far as readers count on it."""

    model_config = ConfigDict(strict=True, extra="allow")


class _Measures(Shape):
    recall: FiniteFloat
    precision: FiniteFloat
    s_precision: FiniteFloat
    n: Count = 0


class _Branch(Shape):
    retrieved: list[str]
    kept: list[str]
    ids_read: str | None
    spans: dict[str, list[Annotated[tuple[Count, Count], Field(strict=False)]]] = {}


class _Error(Shape):
    kind: str
    stage: str
    message: str


class _Row(Shape):
    """A line of `predictions.jsonl`; the task's metrics stand beside these, each a number."""

    __pydantic_extra__: dict[str, FiniteFloat | dict[str, Any]] = Field(init=False)
    id: str
    repeat: Annotated[int, Field(ge=1)] = 1
    question: str
    answer: str | None
    golden_answers: list[str]
    gold_titles: list[str]
    correct: bool
    queries: dict[str, str]
    branches: dict[str, _Branch]
    knowledge: list[str]
    retrieval: dict[str, _Measures]
    loss: Loss
    calls: list[Annotated[tuple[str, Key], Field(strict=False)]]
    flags: dict[str, Count]
    error: _Error | None
    unsearched: list[str] = []


class _Score(Shape):
    value: FiniteFloat
    low: FiniteFloat
    high: FiniteFloat


class _Entry(Shape):
    calls: Count
    tokens_in: Count | None
    tokens_out: Count | None
    cost: FiniteFloat | None


class _Metrics(Shape):
    """`metrics.json`."""

    task: str
    method: str
    n: Count
    repeats: Annotated[int, Field(ge=1)] = 1
    metrics: Annotated[dict[str, _Score], Field(min_length=1)]
    retrieval: dict[str, _Measures]
    flags: dict[str, Count]
    losses: dict[str, Count]
    ledger: dict[str, _Entry]
    signature: str


class _Data(Shape):
    source: str
    fingerprint: str
    n: Count


class _Method(Shape):
    name: str
    arguments: dict[str, Any] = {}
    program: str


class _Model(Shape):
    name: str
    parameters: dict[str, Any] = {}
    of: dict[str, dict[str, Any]] = {}


class _Retriever(Shape):
    kind: str
    fingerprint: str


class _Settings(Shape):
    task: str
    metrics: Annotated[list[str], Field(min_length=1)]
    data: _Data
    method: _Method
    lm: _Model
    retrievers: list[_Retriever]
    seed: Count
    repeats: Annotated[int, Field(ge=1)] = 1


class _Notes(Shape):
    address: str = ""
    concurrency: int | None = None
    questions: list[str] = []
    budget: dict[str, FiniteFloat] = {}


class _Run(Shape):
    """`run.json`."""

    settings: _Settings
    versions: dict[str, str] = {}
    notes: _Notes = _Notes()


_SHAPES: Mapping[str, type[Shape]] = {RUN: _Run, METRICS: _Metrics}


def read_json(path: Path, shape: type[Any] | None = None) -> dict[str, Any]:
    """The JSON object in a run's file, checked against `shape` (by default that of the file of its name).

    Raises:
        MissingFile, BadData.
    """
    mend = _MEND.get(path.name, _REMAKE)
    try:
        check_regular(path)
        value = json.loads(path.read_bytes())
        TypeAdapter(shape or _SHAPES[path.name]).validate_python(value)
    except FileNotFoundError as error:
        raise MissingFile(f"no run there: {path} is missing; name a folder that an evaluation made") from error
    except ValidationError as error:
        raise BadData(f"{path}: {_first(error)}; {mend}") from None
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path}: not JSON ({error}); {mend}") from error
    if path.name == METRICS and not value["losses"].keys() >= set(LOSSES):
        raise BadData(f"{path}: losses lack {', '.join(sorted(set(LOSSES) - value['losses'].keys()))}; {mend}")
    return dict(value)


def check_row(row: Mapping[str, Any]) -> None:
    """Raise `TypeError` where a row could not be read again: a user's own method may give values of any type."""
    try:
        _Row.model_validate(row)
    except ValidationError as error:
        raise TypeError(f"the method's prediction has a value of the wrong type: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    """The first thing that is wrong, with its place."""
    wrong = error.errors(include_url=False)[0]
    place = ".".join(map(str, wrong["loc"]))
    return f"{place}: {wrong['msg']}" if place else f"not a run's ({wrong['msg']})"


def read_rows(path: Path, metrics: Collection[str] = ()) -> list[dict[str, Any]]:
    """The whole lines of a rows file; a torn last line is left out, an absent file has none.

    Raises:
        BadData: a line that is no row, or lacks one of the `metrics`.
    """
    return list(iterate_rows(path, metrics))


def iterate_rows(path: Path, metrics: Collection[str] = ()) -> Iterator[dict[str, Any]]:
    """The same, one at a time."""
    check_regular(path)
    if not path.is_file():
        return
    with path.open("rb") as file:
        lines = whole_lines(file.fileno(), _ROW_BEGINS, lambda number: _not_a_row(path, number))
        for number, (_, line) in enumerate(lines, 1):
            try:
                row = json.loads(line)
                _Row.model_validate(row)
            except ValidationError as error:
                raise _not_a_row(path, number, _first(error)) from None
            except (ValueError, RecursionError) as error:
                raise _not_a_row(path, number) from error
            for name in metrics:
                if not isinstance(row.get(name), int | float):
                    raise _not_a_row(path, number, f"{name}: not a number")
            yield row


def _not_a_row(path: Path, number: int, why: str = "") -> BadData:
    what = f"{path}, line {number}: not a row of predictions{f' ({why})' if why else ''}"
    return BadData(f"{what}; delete the file and run again, its rows are made again")


def stale(folder: Path) -> list[Path]:
    """Temporary files that a killed sitting left; no reader ever looks at them."""
    return [path for name in (RUN, PREDICTIONS, METRICS, REPORT) for path in folder.glob(f".{name}.*.tmp")]


class Appender:
    """Rows appended one by one, as `line_of` gives them; each is on file when `add` returns."""

    def __init__(self, path: Path, kept: Iterable[bytes]) -> None:
        # Rewritten first: a torn line, or rows that are to be made again, must not stay in the middle.
        write_lines(path, kept)
        # Whoever appends holds the lock of the journal beside it.
        self._log = AppendOnly(
            path, begins=_ROW_BEGINS, refuse=lambda number: _not_a_row(path, number), contents="rows", busy=""
        )

    def add(self, line: bytes) -> None:
        """Append one row's line. Raises: CannotWrite."""
        self._log.append(line)

    def close(self) -> None:
        """Release the file."""
        self._log.close()

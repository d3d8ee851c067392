"""A run's folder: its files, checked on reading, and what must hold before, during and after each session.

Rows are appended as they come; every other file appears whole or not at all. What is read is what was written, as plain
dictionaries: a value of the wrong type is a `BadData` that names file, place and the way to mend it. A first session
that got nothing done leaves no settings that would stand in the way of the next.
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)

from blendfilter.errors import (
    AskedWrong,
    BadArgument,
    BadData,
    BatchWritten,
    BudgetSpent,
    MissingFile,
    RunMismatch,
    ServerRefused,
)
from blendfilter.evaluation.rows import (
    ERROR,
    LOSSES,
    UNKNOWN,
    Json,
    Loss,
    PredictionRow,
    Record,
    filter_lm_of,
    how_far,
    is_whole,
    key_of,
    repeats_in,
)
from blendfilter.files import (
    AnyPath,
    AppendOnly,
    json_line,
    open_regular,
    path_of,
    whole_lines,
    write_whole,
)
from blendfilter.journal import FILE, CallKey, Count, Journal
from blendfilter.lm.budget import BudgetAccount
from blendfilter.retrieval.base import Trim
from blendfilter.settings_diff import different_settings

RUN = "run.json"
PREDICTIONS = "predictions.jsonl"
METRICS = "metrics.json"
REPORT = "report.html"
_MEND = {
    RUN: "restore it, or give the run another folder",
    METRICS: "run the same command again, and it is made anew",
}
_RESCORE = "make it again (blendfilter rescore)"
_ROW_BEGINS = b'{"id": "'


# --- what the files hold, as far as readers count on it -------------------------------------------------------------


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="allow")


class _RetrievalFigures(_Shape):
    recall: FiniteFloat
    precision: FiniteFloat
    s_precision: FiniteFloat
    ndcg: FiniteFloat = 0.0  # the oldest runs have neither this nor the next
    mrr: FiniteFloat = 0.0
    n: Count = 0


_Place = Annotated[tuple[Count, Count], Field(strict=False)]


class _StoredBranch(_Shape):
    retrieved: list[str]
    kept: list[str]
    ids_read: str | None
    spans: dict[str, list[_Place]] = {}
    trim: Annotated[Trim | None, Field(strict=False)] = None


class _StoredError(_Shape):
    kind: str
    stage: str
    message: str


class _StoredRow(_Shape):
    """A line of `predictions.jsonl`; the task's metrics stand beside these, each a number."""

    __pydantic_extra__: dict[str, FiniteFloat | Json] = Field(init=False)
    id: str
    repeat: PositiveInt = 1
    question: str
    answer: str | None
    golden_answers: list[str]
    gold_titles: list[str]
    correct: bool
    queries: dict[str, str]
    branches: dict[str, _StoredBranch]
    knowledge: list[str]
    retrieval: dict[str, _RetrievalFigures]
    loss: Loss
    calls: list[Annotated[tuple[str, CallKey], Field(strict=False)]]
    flags: dict[str, Count]
    error: _StoredError | None
    unsearched: list[str] = []
    written: list[str | Annotated[tuple[str, list[_Place]], Field(strict=False)]] = []


ROW_FIELDS = frozenset({*_StoredRow.model_fields, "spans"})
"""What no metric can be called."""


class _ScoreFigures(_Shape):
    value: FiniteFloat
    low: FiniteFloat
    high: FiniteFloat


class _LedgerFigures(_Shape):
    calls: Count
    tokens_in: Count | None
    tokens_out: Count | None
    cost: FiniteFloat | None


class _Flags(_Shape):
    __pydantic_extra__: dict[str, Count] = Field(init=False)
    errors: Count


class _MetricsFile(_Shape):
    task: str
    method: str
    n: Count
    repeats: PositiveInt = 1
    metrics: Annotated[dict[str, _ScoreFigures], Field(min_length=1)]
    retrieval: dict[str, _RetrievalFigures]
    flags: _Flags
    losses: dict[str, Count]
    ledger: dict[str, _LedgerFigures]
    signature: str


class _DataSettings(_Shape):
    source: str
    fingerprint: str
    n: Count


class _MethodSettings(_Shape):
    name: str
    arguments: Json = {}
    program: str


class _ModelSettings(_Shape):
    name: str
    parameters: Json = {}
    filter: Json | None = None
    of: dict[str, Json] = {}


class _RetrieverSettings(_Shape):
    kind: str
    fingerprint: str


class _SearchedSettings(_Shape):
    corpus: str = ""
    passages: Count = 0
    type: str = ""


class _RunSettings(_Shape):
    task: str
    metrics: Annotated[list[str], Field(min_length=1)]
    data: _DataSettings
    method: _MethodSettings
    lm: _ModelSettings
    retrievers: list[_RetrieverSettings]
    searched: list[_SearchedSettings] = []
    seed: Count
    repeats: PositiveInt = 1


class _RunNotes(_Shape):
    address: str = ""
    concurrency: int | None = None
    questions: list[str] = []
    budget: dict[str, FiniteFloat] = {}


class _RecordFile(_Shape):
    settings: _RunSettings
    versions: dict[str, str] = {}
    notes: _RunNotes = _RunNotes()


# --- writing --------------------------------------------------------------------------------------------------------


def write_json(path: Path, value: Any) -> None:
    """`value` as JSON, by a temporary file and a rename."""
    write_whole(path, [json_line(value, indent=2)])


def write_text(path: Path, text: str) -> None:
    """`text`, by a temporary file and a rename; half a character in it becomes an escape."""
    write_whole(path, [text.encode("utf-8", "backslashreplace")])


def appended(path: Path, kept: Iterable[bytes]) -> AppendOnly:
    """A file of rows, of which so many lines are kept; each that is appended is on file at once."""
    # Rewritten first: a torn line, or rows that are to be made again, must not stay in the middle.
    write_whole(path, kept)
    # The session has the lock of the journal beside it.
    refuse = functools.partial(_not_a_row, path)
    return AppendOnly(path, begins=_ROW_BEGINS, refuse=refuse, contents="rows", busy="")


# --- reading --------------------------------------------------------------------------------------------------------


def read_json(path: Path, shape: type[Any] | None = None) -> Json:
    """The JSON object in a run's file, checked against `shape` (by default that of the file of its name)."""
    mend = _MEND.get(path.name, _RESCORE)
    try:
        with open_regular(path) as file:
            value = json.loads(file.read())
        TypeAdapter(
            shape or (_RecordFile if path.name == RUN else _MetricsFile)
        ).validate_python(value)
    except FileNotFoundError as error:
        raise MissingFile(
            f"no run there: {path} is missing; name a folder that an evaluation made"
        ) from error
    except ValidationError as error:
        raise BadData(f"{path}: {_first(error)}; {mend}") from None
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path}: not JSON ({error}); {mend}") from error
    # Earlier versions had no loss of errors' own: `Run` counts those runs anew.
    if path.name == METRICS and (
        lacking := {*LOSSES} - {ERROR, UNKNOWN} - value["losses"].keys()
    ):
        raise BadData(f"{path}: losses lack {', '.join(sorted(lacking))}; {mend}")
    return dict(value)


def read_rows(path: Path, metrics: Collection[str] = ()) -> list[PredictionRow]:
    """The whole lines of a rows file; a torn last line is left out, an absent file has none.

    Raises `BadData` for a line that is no row, or lacks one of the `metrics`.
    """
    return list(iterate_rows(path, metrics))


def iterate_rows(
    path: Path, metrics: Collection[str] = (), *, checked: bool = False
) -> Iterator[PredictionRow]:
    """The same, one at a time; of rows that were `checked` before, fields are not looked at again."""
    try:
        file = open_regular(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return
    with file:
        lines = whole_lines(file.fileno(), _ROW_BEGINS, lambda number: _not_a_row(path, number))
        for number, (_, line) in enumerate(lines, 1):
            try:
                row = json.loads(line)
                if not checked:
                    _StoredRow.model_validate(row)
            except ValidationError as error:
                raise _not_a_row(path, number, _first(error)) from None
            except (ValueError, RecursionError) as error:
                raise _not_a_row(path, number) from error
            for name in metrics:
                if not isinstance(row.get(name), int | float):
                    raise _not_a_row(path, number, f"{name}: not a number")
            # earlier versions counted it as a question whose gold was not found
            if row["error"] is not None:
                row["loss"] = ERROR
            yield row


def check_row(row: Record) -> None:
    """Raise `TypeError` where a row could not be read again: a user's own method may give values of any type."""
    try:
        _StoredRow.model_validate(row)
    except ValidationError as error:
        raise TypeError(
            f"the method's prediction has a value of the wrong type: {_first(error)}"
        ) from None


def _first(error: ValidationError) -> str:
    wrong = error.errors(include_url=False)[0]
    place = ".".join(map(str, wrong["loc"]))
    return f"{place}: {wrong['msg']}" if place else f"not a run's ({wrong['msg']})"


def _not_a_row(path: Path, number: int, why: str = "") -> BadData:
    what = f"{path}, line {number}: not a row of predictions{f' ({why})' if why else ''}"
    return BadData(f"{what}; delete the file and run again, its rows are made again")


# --- a session ------------------------------------------------------------------------------------------------------


class RunFolder:
    """The folder `run`, or a temporary one, for a run with these settings; a replay wants one that holds a run."""

    def __init__(self, run: AnyPath | None, settings: Json, *, replay: bool) -> None:
        if run is None:
            # Named by the method in a temporary folder of its own: comparisons show a run by its folder's name.
            name = settings["method"]["name"].rpartition(":")[2].rpartition(".")[2]
            name = re.sub(r"[^\w.-]+", "-", name).strip(".-") or "run"
            run = Path(tempfile.mkdtemp(prefix="blendfilter-run-"), name)
        self.path = path_of(run)
        self.settings, self.replay = settings, replay
        self._first_session = False
        if replay:
            read_json(self.path / RUN)

    def check(self, journal: Journal | None = None) -> None:
        """Raise `RunMismatch` where it has answers by other settings, `BadArgument` where it can hold no run.

        One where every question failed, as by a mistake in a program, takes the mended program.
        """
        path = self.path / RUN
        if path.is_file():
            if self.replay or self._is_begun(journal):
                check_same(read_json(path)["settings"], self.settings, str(self.path))
        elif self.path.exists() and not self.path.is_dir():
            raise BadArgument(
                f"{self.path} is a file, not a folder: name a folder for this run"
            )
        elif self.path.is_dir() and {*self.path.iterdir()} - {*self._stale(), self.path / FILE}:
            raise BadArgument(
                f"{self.path} is not empty and holds no run: name a new folder for this one"
            )

    def _is_begun(self, journal: Journal | None) -> bool:
        """Whether there is an answer, or a batch is out; rows that were deleted, the journal makes again."""
        rows = self.path / PREDICTIONS
        if not rows.is_file() or any(row["error"] is None for row in iterate_rows(rows)):
            return True
        return journal is not None and next(journal.records("batch"), None) is not None

    @contextmanager
    def opened(self, reuse: AnyPath | Iterable[AnyPath]) -> Iterator[Journal]:
        """The journal, and the folder checked again now that no other writer can be there; a kill's leftovers go."""
        with Journal(
            self.path / FILE, "replay" if self.replay else "auto", reuse, exclusive=True
        ) as journal:
            self.check(journal)
            self._first_session = not self.replay and not (self.path / RUN).is_file()
            if not self.replay:
                # rows of errors have the metrics of their settings, which may be others now
                failed = [] if self._is_begun(journal) else [PREDICTIONS, METRICS, REPORT]
                for path in [*self._stale(), *(self.path / name for name in failed)]:
                    path.unlink(missing_ok=True)
            yield journal

    @contextmanager
    def stopping(
        self, journal: Journal, purse: BudgetAccount | None, answers: int
    ) -> Iterator[None]:
        """What stops a session at once leaves nothing in the way, and says how far the run is."""
        try:
            yield
        except AskedWrong as error:
            if self._first_session:
                self._forget(journal, purse)
            if isinstance(error, ServerRefused) and (
                rows := read_rows(self.path / PREDICTIONS)
            ):
                words = f"{error} ({how_far(rows, answers)}; the same command goes on there)"
                raise ServerRefused(words).quoting(error.quoted) from error
            raise
        except BudgetSpent as error:
            move = "the same command with a higher limit goes on"
            if isinstance(error, BatchWritten):
                move = "the same command goes on once they are answered"
            elif purse is not None:
                move += f"; paid in all, unfinished questions included: {purse.spent.words()}"
            done = how_far(iterate_rows(self.path / PREDICTIONS), answers)
            raise type(error)(f"{error}; {done}, and {move}") from error

    def write_predictions(self, lines: Sequence[bytes]) -> None:
        """`predictions.jsonl`, whole and in order.

        Raises `RunMismatch` where a replay would replace rows with others that say less, or something else.
        """
        path, metrics = self.path / PREDICTIONS, self.settings["metrics"]
        if not self.replay or not path.is_file():
            return write_whole(path, lines)
        if path.read_bytes() == b"".join(lines):
            return None  # it may be an archive that cannot be written to
        replayed = {key_of(row): row for row in map(json.loads, lines)}
        differing = [
            key_of(row)
            for row in iterate_rows(path, metrics)
            if is_whole(row, metrics)
            if (new := replayed.get(key_of(row))) and not _says_all(new, row)
        ]
        if differing:
            raise RunMismatch(
                f"a replay does not give the rows of {path} ({len(differing)} differ, first '{differing[0]}'), so "
                "nothing was replaced: the journal lacks records, or other code reads it; run it without replay=True, "
                f"or delete {PREDICTIONS} to have the rows that the journal gives"
            )
        return write_whole(path, lines)

    def write_metrics(self, metrics: Record) -> None:
        """`metrics.json`; a replay that gives the same touches nothing."""
        path, content = self.path / METRICS, json_line(metrics, indent=2)
        if not (self.replay and path.is_file() and path.read_bytes() == content):
            write_whole(path, [content])

    def _stale(self) -> list[Path]:
        """Temporary files that a killed session left; no reader ever looks at them."""
        return [
            path
            for name in (RUN, PREDICTIONS, METRICS, REPORT)
            for path in self.path.glob(f".{name}.*.tmp")
        ]

    def _forget(self, journal: Journal, purse: BudgetAccount | None) -> None:
        """Remove what a first session left that got no call and no row done, or its settings would stand in the way.

        Not the journal where it holds what counts in the run's limits: calls that were refused, or came to nothing; and
        nothing where a batch may be out.
        """
        if (
            not read_rows(self.path / PREDICTIONS)
            and next(journal.records("call", "batch"), None) is None
        ):
            for name in (RUN, PREDICTIONS):
                (self.path / name).unlink(missing_ok=True)
            if purse is None or not purse.touched:
                (self.path / FILE).unlink(missing_ok=True)
            with suppress(OSError):
                self.path.rmdir()


def check_same(stored: Record, new: Record, folder: str) -> None:
    """Raise `RunMismatch` where other settings made a run folder; more repeats are welcome, fewer are not."""
    # The same questions under another file name are the same questions: their fingerprint says so.
    was, now = filter_lm_of(stored), filter_lm_of(new)
    if was != now:  # another model's other settings are no news
        stored = {**stored, "lm": {**stored["lm"], "filter": was}}
        new = {**new, "lm": {**new["lm"], "filter": now}}
    none = "none of its own"
    own = {*(stored.get("metrics_code") or ())} & {*(new.get("metrics_code") or ())}
    # What came after `stored` was made and is off: that run was made without it.
    method, known = new["method"], stored["method"].get("arguments", {})
    given = method["arguments"].items()
    arguments = {name: value for name, value in given if value or name in known}
    differing = different_settings(
        stored,
        {**new, "method": {**method, "arguments": arguments}},
        ignored=("data.source", "repeats", "searched", "seeds"),
        words={
            "lm.filter": f"the filter's model (filter_lm=) was {was or none}, now {now or none}",
            "method.code": f"the code of {method['name']}, or what it holds, was changed",
            **{
                f"metrics_code.{each}": f"the code of the metric {each}, or what it holds, was changed"
                for each in own
            },
        },
    )
    if differing:
        raise RunMismatch(
            f"{folder} holds a run with other settings: {differing}. "
            "Give this run another folder (and reuse= that one, to pay only for what is new)"
        )
    known = repeats_in(stored)
    if repeats_in(new) < known:
        raise RunMismatch(
            f"{folder} is a run of {known} answers to every question, not {repeats_in(new)}: "
            f"ask for {known} repeats or more, or give this run another folder"
        )


def _says_all(new: Any, stored: Any) -> bool:
    """Whether `new` says all that `stored` does, or more.

    >>> _says_all({"retrieval": {"q": 1}}, {"retrieval": {"q": 1, "q@15": 1}})
    False
    """
    if not (isinstance(stored, Mapping) and isinstance(new, Mapping)):
        return bool(stored == new)
    return all(name in new and _says_all(new[name], value) for name, value in stored.items())

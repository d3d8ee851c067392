"""A run's folder: its files, checked on reading, and what must hold before, during and after each session.

Rows are appended as they come; every other file appears whole or not at all. What is read is what was written, as plain
dictionaries: a value of the wrong type is a `BadData` that names file, place and the way to mend it. A first session
that got nothing done leaves no settings that would stand in the way of the next.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError

from blendfilter.errors import AskedWrong, BadArgument, BadData, BudgetSpent, MissingFile, RunMismatch, ServerRefused
from blendfilter.evaluation.rows import LOSSES, Loss, how_far, key_of, misscored, repeat_of, repeats_in
from blendfilter.files import AppendOnly, check_regular, json_line, whole_lines, write_whole
from blendfilter.journal import FILE, Count, Journal, Key
from blendfilter.lm.budget import BudgetAccount
from blendfilter.settings_diff import different_settings

RUN = "run.json"
PREDICTIONS = "predictions.jsonl"
METRICS = "metrics.json"
REPORT = "report.html"
_MEND = {RUN: "restore it, or give the run another folder", METRICS: "run the same command again, and it is made anew"}
_RESCORE = "make it again (blendfilter rescore)"
_ROW_BEGINS = b'{"id": "'


# --- what the files hold, as far as readers count on it -------------------------------------------------------------

_Repeats = Annotated[int, Field(ge=1)]


class RunFile(BaseModel):
    """A file of a run, or a part of one."""

    model_config = ConfigDict(strict=True, extra="allow")


class _RetrievalFigures(RunFile):
    recall: FiniteFloat
    precision: FiniteFloat
    s_precision: FiniteFloat
    n: Count = 0


class _StoredBranch(RunFile):
    retrieved: list[str]
    kept: list[str]
    ids_read: str | None
    spans: dict[str, list[Annotated[tuple[Count, Count], Field(strict=False)]]] = {}


class _StoredError(RunFile):
    kind: str
    stage: str
    message: str


class _StoredRow(RunFile):
    """A line of `predictions.jsonl`; the task's metrics stand beside these, each a number."""

    __pydantic_extra__: dict[str, FiniteFloat | dict[str, Any]] = Field(init=False)
    id: str
    repeat: _Repeats = 1
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
    calls: list[Annotated[tuple[str, Key], Field(strict=False)]]
    flags: dict[str, Count]
    error: _StoredError | None
    unsearched: list[str] = []


class _ScoreFigures(RunFile):
    value: FiniteFloat
    low: FiniteFloat
    high: FiniteFloat


class _LedgerFigures(RunFile):
    calls: Count
    tokens_in: Count | None
    tokens_out: Count | None
    cost: FiniteFloat | None


class _MetricsFile(RunFile):
    task: str
    method: str
    n: Count
    repeats: _Repeats = 1
    metrics: Annotated[dict[str, _ScoreFigures], Field(min_length=1)]
    retrieval: dict[str, _RetrievalFigures]
    flags: dict[str, Count]
    losses: dict[str, Count]
    ledger: dict[str, _LedgerFigures]
    signature: str


class _DataSettings(RunFile):
    source: str
    fingerprint: str
    n: Count


class _MethodSettings(RunFile):
    name: str
    arguments: dict[str, Any] = {}
    program: str


class _ModelSettings(RunFile):
    name: str
    parameters: dict[str, Any] = {}
    of: dict[str, dict[str, Any]] = {}


class _RetrieverSettings(RunFile):
    kind: str
    fingerprint: str


class _RunSettings(RunFile):
    task: str
    metrics: Annotated[list[str], Field(min_length=1)]
    data: _DataSettings
    method: _MethodSettings
    lm: _ModelSettings
    retrievers: list[_RetrieverSettings]
    seed: Count
    repeats: _Repeats = 1


class _RunNotes(RunFile):
    address: str = ""
    concurrency: int | None = None
    questions: list[str] = []
    budget: dict[str, FiniteFloat] = {}


class _RecordFile(RunFile):
    settings: _RunSettings
    versions: dict[str, str] = {}
    notes: _RunNotes = _RunNotes()


# --- writing --------------------------------------------------------------------------------------------------------


def json_bytes(value: Any) -> bytes:
    """`value` as the bytes of a JSON file."""
    return json_line(value, indent=2)


def line_of(row: Mapping[str, Any]) -> bytes:
    """One row as a line."""
    return json_line(row)


def write_json(path: Path, value: Any) -> None:
    """`value` as JSON, by a temporary file and a rename."""
    write_whole(path, [json_bytes(value)])


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """`rows` as JSON lines, by a temporary file and a rename."""
    write_whole(path, map(line_of, rows))


def write_text(path: Path, text: str) -> None:
    """`text`, by a temporary file and a rename; half a character in it becomes an escape."""
    write_whole(path, [text.encode("utf-8", "backslashreplace")])


class RowAppender(AppendOnly):
    """Rows appended one by one, as `line_of` gives them; each is on file when `add` returns."""

    add = AppendOnly.append

    def __init__(self, path: Path, kept: Iterable[bytes]) -> None:
        # Rewritten first: a torn line, or rows that are to be made again, must not stay in the middle.
        write_whole(path, kept)
        # The session has the lock of the journal beside it.
        super().__init__(
            path, begins=_ROW_BEGINS, refuse=lambda number: _not_a_row(path, number), contents="rows", busy=""
        )


# --- reading --------------------------------------------------------------------------------------------------------


def read_json(path: Path, shape: type[Any] | None = None) -> dict[str, Any]:
    """The JSON object in a run's file, checked against `shape` (by default that of the file of its name).

    Raises:
        MissingFile, BadData.
    """
    mend = _MEND.get(path.name, _RESCORE)
    try:
        check_regular(path)
        value = json.loads(path.read_bytes())
        TypeAdapter(shape or (_RecordFile if path.name == RUN else _MetricsFile)).validate_python(value)
    except FileNotFoundError as error:
        raise MissingFile(f"no run there: {path} is missing; name a folder that an evaluation made") from error
    except ValidationError as error:
        raise BadData(f"{path}: {_first(error)}; {mend}") from None
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path}: not JSON ({error}); {mend}") from error
    if path.name == METRICS and not value["losses"].keys() >= set(LOSSES):
        raise BadData(f"{path}: losses lack {', '.join(sorted(set(LOSSES) - value['losses'].keys()))}; {mend}")
    return dict(value)


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
                _StoredRow.model_validate(row)
            except ValidationError as error:
                raise _not_a_row(path, number, _first(error)) from None
            except (ValueError, RecursionError) as error:
                raise _not_a_row(path, number) from error
            for name in metrics:
                if not isinstance(row.get(name), int | float):
                    raise _not_a_row(path, number, f"{name}: not a number")
            yield row


def check_row(row: Mapping[str, Any]) -> None:
    """Raise `TypeError` where a row could not be read again: a user's own method may give values of any type."""
    try:
        _StoredRow.model_validate(row)
    except ValidationError as error:
        raise TypeError(f"the method's prediction has a value of the wrong type: {_first(error)}") from None


def _first(error: ValidationError) -> str:
    wrong = error.errors(include_url=False)[0]
    place = ".".join(map(str, wrong["loc"]))
    return f"{place}: {wrong['msg']}" if place else f"not a run's ({wrong['msg']})"


def _not_a_row(path: Path, number: int, why: str = "") -> BadData:
    what = f"{path}, line {number}: not a row of predictions{f' ({why})' if why else ''}"
    return BadData(f"{what}; delete the file and run again, its rows are made again")


# --- a session ------------------------------------------------------------------------------------------------------


class RunFolder:
    """The folder `run`, or a temporary one, for a run with these settings.

    Raises:
        BadArgument: a replay without a folder. MissingFile, BadData: nothing there to replay.
    """

    def __init__(self, run: str | Path | None, settings: dict[str, Any], *, replay: bool) -> None:
        if run is None and replay:
            raise BadArgument("a replay needs the run's folder: run=…")
        self.path = Path(run) if run is not None else Path(tempfile.mkdtemp(prefix="blendfilter-run-"))
        self.settings, self.replay = settings, replay
        self._first_session = False
        if replay:
            read_json(self.path / RUN)

    def check(self) -> None:
        """Raise `RunMismatch` where it holds a run with other settings, `BadArgument` where it can hold none."""
        path = self.path / RUN
        if path.is_file():
            stored = read_json(path)["settings"]
            check_same(stored, self.settings, str(self.path), repeats=self._bound_repeats(stored))
        elif self.path.exists() and not self.path.is_dir():
            raise BadArgument(f"{self.path} is a file, not a folder: name a folder for this run")
        elif self.path.is_dir() and {item for item in self.path.iterdir() if item.name != FILE} - set(self._stale()):
            raise BadArgument(f"{self.path} is not empty and holds no run: name a new folder for this one")

    @contextmanager
    def opened(self, reuse: Iterable[str | Path]) -> Iterator[Journal]:
        """The journal, and the folder checked again now that no other writer can be there; a kill's leftovers go."""
        with Journal(self.path / FILE, "replay" if self.replay else "auto", reuse, exclusive=True) as journal:
            self.check()
            self._first_session = not self.replay and not (self.path / RUN).is_file()
            for path in self._stale() if not self.replay else ():
                path.unlink(missing_ok=True)
            yield journal

    def write_record(self, versions: Mapping[str, str], notes: Mapping[str, Any]) -> None:
        """`run.json`: settings are those of the first session (more repeats apart), notes those of the last."""
        write_json(self.path / RUN, {"settings": self.settings, "versions": versions, "notes": notes})

    @contextmanager
    def stopping(self, journal: Journal, purse: BudgetAccount | None, answers: int) -> Iterator[None]:
        """What stops a session at once leaves nothing in the way, and says how far the run is."""
        predictions = self.path / PREDICTIONS
        try:
            yield
        except AskedWrong as error:
            if self._first_session:
                self._forget(journal, purse)
            if isinstance(error, ServerRefused) and (rows := read_rows(predictions)):
                raise ServerRefused(f"{error} ({how_far(rows, answers)}; the same command goes on there)") from error
            raise
        except BudgetSpent as error:
            paid = "" if purse is None else f"; paid in all, unfinished questions included: {purse.spent.words()}"
            done = how_far(iterate_rows(predictions), answers)
            raise BudgetSpent(f"{error}; {done}, and the same command with a higher limit goes on{paid}") from error

    def write_predictions(self, lines: Sequence[bytes]) -> None:
        """`predictions.jsonl`, whole and in order. A replay touches nothing where the same is there already.

        Raises:
            RunMismatch: a replay would replace rows with others that say less, or something else.
        """
        if not (self.replay and self._is_there(lines)):
            write_whole(self.path / PREDICTIONS, lines)

    def write_metrics(self, metrics: Mapping[str, Any]) -> None:
        """`metrics.json`, as carefully."""
        path, content = self.path / METRICS, json_bytes(metrics)
        if not (self.replay and path.is_file() and path.read_bytes() == content):
            write_whole(path, [content])

    def _is_there(self, lines: Sequence[bytes]) -> bool:
        path, metrics = self.path / PREDICTIONS, self.settings["metrics"]
        replayed = {key_of(row): row for row in map(json.loads, lines)}
        same, count, differing = True, 0, []
        for stored in iterate_rows(path, metrics):
            count += 1
            new = replayed.get(key_of(stored), {})
            same = same and stored == new
            # An error, and a row whose scores are not its answer's, need not be kept.
            sound = new and stored["error"] is None and not misscored(stored, metrics)
            known = {name: value for name, value in stored.items() if name != "unsearched"}  # may be searched now
            if sound and (what := _lost(known, new)):
                differing.append(f"'{key_of(stored)}' in {what}")
        if differing:
            more = f", and {len(differing) - 1} more" if len(differing) > 1 else ""
            raise RunMismatch(
                f"a replay does not give the rows of {path} ({differing[0]}{more}), so nothing was "
                "replaced: the journal lacks records, or other code reads it; run it without --replay, or delete "
                f"{PREDICTIONS} to have the rows that the journal gives"
            )
        return same and count == len(lines)

    def _stale(self) -> list[Path]:
        """Temporary files that a killed session left; no reader ever looks at them."""
        return [path for name in (RUN, PREDICTIONS, METRICS, REPORT) for path in self.path.glob(f".{name}.*.tmp")]

    def _bound_repeats(self, stored: dict[str, Any]) -> int:
        """How many repeats it is bound to: those of its settings, or those answered where a session found no server."""
        known = repeats_in(stored)
        if self.replay or known <= repeats_in(self.settings):
            return known
        return max(map(repeat_of, read_rows(self.path / PREDICTIONS)), default=1)

    def _forget(self, journal: Journal, purse: BudgetAccount | None) -> None:
        """Remove what a first session left that got no call and no row done, or its settings would stand in the way.

        Not the journal where it holds what counts in the run's limits: calls that were refused, or came to nothing.
        """
        if not read_rows(self.path / PREDICTIONS) and next(journal.records("call"), None) is None:
            for name in (RUN, PREDICTIONS, *(() if purse is not None and purse.touched else (FILE,))):
                (self.path / name).unlink(missing_ok=True)
            with suppress(OSError):
                self.path.rmdir()


def check_same(stored: Mapping[str, Any], new: Mapping[str, Any], folder: str, *, repeats: int | None = None) -> None:
    """Refuse a run folder that other settings made; more repeats than it has (`repeats`) are welcome, fewer are not.

    Raises:
        RunMismatch: naming what differs.
    """
    # The same questions under another file name are the same questions: their fingerprint says so.
    differing = different_settings(stored, _without_new_arguments(stored, new), ignored=("data.source", "repeats"))
    if differing:
        raise RunMismatch(
            f"{folder} holds a run with other settings: {differing}. "
            "Give this run another folder (and --reuse that one, to pay only for what is new)"
        )
    known = repeats_in(stored) if repeats is None else repeats
    if repeats_in(new) < known:
        raise RunMismatch(
            f"{folder} is a run of {known} answers to every question, not {repeats_in(new)}: "
            f"ask for {known} repeats or more, or give this run another folder"
        )


def _without_new_arguments(stored: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    """`new` without the method's arguments that came after `stored` was made and are off: it ran without them."""
    method = new.get("method") or {}
    known = (stored.get("method") or {}).get("arguments") or {}
    arguments = {name: value for name, value in (method.get("arguments") or {}).items() if value or name in known}
    return {**new, "method": {**method, "arguments": arguments}} if "arguments" in method else new


def _lost(stored: Any, new: Any, path: str = "") -> str:
    """The path of the first thing that `stored` says and `new` does not; empty where `new` says all of it, or more.

    >>> _lost({"retrieval": {"q": 1, "q@15": 1}}, {"retrieval": {"q": 1}})
    'retrieval.q@15'
    """
    if not (isinstance(stored, Mapping) and isinstance(new, Mapping)):
        return "" if stored == new else path
    for name, value in stored.items():
        where = f"{path}.{name}" if path else str(name)
        if found := _lost(value, new[name], where) if name in new else where:
            return found
    return ""

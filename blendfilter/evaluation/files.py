"""A run folder's files: rows appended as they come, files that appear whole or not at all."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from blendfilter.errors import BadData, CannotWrite, MissingFile
from blendfilter.files import write_whole
from blendfilter.journal import write_all

RUN = "run.json"
PREDICTIONS = "predictions.jsonl"
METRICS = "metrics.json"
REPORT = "report.html"
_MEND = {
    RUN: "restore it, or give the run another folder",
    METRICS: "run the same command again, and it is made anew",
}
_REMAKE = "make it again (blendfilter rescore)"


def write_json(path: Path, value: Any) -> None:
    """`value` as JSON, by a temporary file and a rename."""
    write_whole(path, [json.dumps(value, ensure_ascii=False, indent=2).encode("utf-8", "backslashreplace"), b"\n"])


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


def read_json(path: Path, *needs: str) -> dict[str, Any]:
    """A JSON object that has the fields `needs`. Raises: MissingFile, BadData."""
    try:
        value = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise MissingFile(f"no run there: {path} is missing; name a folder that an evaluation made") from error
    except ValueError as error:
        raise BadData(f"{path}: not JSON ({error}); {_MEND.get(path.name, _REMAKE)}") from error
    if not isinstance(value, dict) or not value.keys() >= set(needs):
        raise BadData(f"{path}: not a run's (it should hold {', '.join(needs)}); {_MEND.get(path.name, _REMAKE)}")
    return value


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a rows file; a torn last line is left out, an absent file has none."""
    return list(iterate_rows(path))


def iterate_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The same, one at a time."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                row = json.loads(line)
                if not isinstance(row, dict) or not row.keys() >= {"id", "calls", "error"}:
                    raise ValueError("not a row")
            except ValueError as error:
                what = f"{path}, line {number}: not a row of predictions"
                raise BadData(f"{what}; delete the file and run again, its rows are made again") from error
            yield row


def stale(folder: Path) -> list[Path]:
    """Temporary files that a killed sitting left; no reader ever looks at them."""
    return [path for name in (RUN, PREDICTIONS, METRICS, REPORT) for path in folder.glob(f".{name}.*.tmp")]


class Appender:
    """Rows appended one by one, as `line_of` gives them; each is on file when `add` returns."""

    def __init__(self, path: Path, kept: Iterable[bytes]) -> None:
        # Rewritten first: a torn line, or rows that are to be made again, must not stay in the middle.
        write_lines(path, kept)
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def add(self, line: bytes) -> None:
        """Append one row's line."""
        end = os.fstat(self._fd).st_size
        try:
            write_all(self._fd, line)
        except OSError as error:  # a full disk: half a row must not stand in front of the next one
            os.ftruncate(self._fd, end)
            why = error.strerror or error
            raise CannotWrite(f"{self._path} takes no more rows ({why}): make room, then go on") from error

    def close(self) -> None:
        """Release the file."""
        os.close(self._fd)

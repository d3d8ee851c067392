"""The journal: every model call and every search, one record a line, appended before its result is used.

An append-only JSON-lines store addressed by key; it knows neither models nor indexes (`blendfilter.lm` and
`blendfilter.retrieval` wrap it). Caching, resuming, replaying and accounting are readings of this file.

A record is a JSON object whose first field is its `key` (32 hex digits) and whose second is its `kind`. The index in
memory is key -> offset, about 150 bytes a record; a record is read back from the file. A later record under a key
replaces an earlier one. A last line that was torn by a kill is dropped. One process writes at a time (`flock`).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from blendfilter.errors import BadArgument, BadData, CannotWrite, MissingFile, RunLocked

Mode = Literal["auto", "record", "replay"]
MODES: tuple[Mode, ...] = ("auto", "record", "replay")
FILE = "journal.jsonl"
_PREFIX = b'{"key":"'
_KEY_DIGITS = 32
_KIND = b'","kind":'
_KIND_AT = len(_PREFIX) + _KEY_DIGITS


def digest(*parts: Any) -> str:
    """A record's key: the first 128 bits of the SHA-256 of `parts` as canonical JSON.

    >>> digest("a", {"y": 1, "x": None}) == digest("a", {"x": None, "y": 1})
    True
    """
    text = json.dumps(parts, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_KEY_DIGITS]


class Journal:
    """An open journal.

    Args:
        path: the file, or a folder that holds (or will hold) `journal.jsonl`.
        mode: `auto` serves a hit, else lets the caller call and append; `record` never serves; `replay` serves only,
            and writes nothing.
        reuse: other journals (or run folders), read before a call is made; a hit is copied in, marked as
            `reused`, so that this journal stays whole by itself.
        exclusive: a replay that holds the writer's lock too (the runner rewrites files beside the journal).

    Raises:
        MissingFile: a replay or reuse without its file. RunLocked: another process writes here. BadData: a line
        that no torn write explains.
    """

    def __init__(
        self, path: str | Path, mode: Mode = "auto", reuse: Iterable[str | Path] = (), *, exclusive: bool = False
    ) -> None:
        if mode not in MODES:
            raise BadArgument(f"no journal mode '{mode}' (known: {', '.join(MODES)})")
        self.path = _file_of(Path(path))
        self.mode: Mode = mode
        self._lock = threading.Lock()
        self._index: dict[bytes, int] = {}
        self._write_fd = -1
        self._read_fd = -1
        self._pid = os.getpid()
        self._others: list[Journal] = []
        try:
            for other in reuse:  # first: where one is missing, nothing is made
                self._others.append(Journal(other, "replay"))
            if mode != "replay":
                self._write_fd = _open_for_writing(self.path)
            elif not self.path.is_file():
                raise MissingFile(f"no journal at {self.path}: to replay or reuse a run, name its folder")
            self._read_fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            if exclusive and mode == "replay":
                _lock_for_writing(self._read_fd, self.path)
            self._end = self._read_index()
            if self._write_fd >= 0:
                os.ftruncate(self._write_fd, self._end)
        except BaseException:
            self.close()
            raise

    def find(self, key: str, *needs: str) -> dict[str, Any] | None:
        """The record under `key` that this mode may serve, or None: the caller must call.

        Raises: BadData where it lacks a field that it `needs` (a failure needs none).
        """
        if self.mode == "record":
            return None
        record = self.read(key)
        if record is None or (record.get("error") and self.mode != "replay"):
            # A failure of our own gives way to another run's success.
            return self._borrow(key, needs) or record
        return self._whole(record, needs)

    def read(self, key: str) -> dict[str, Any] | None:
        """The newest record under `key` in this file, whatever the mode."""
        offset = self._index.get(bytes.fromhex(key))
        if offset is None:
            return None
        record = self._parse(self._line_at(offset), offset)
        if record.get("key") != key:
            raise self._damaged(offset)
        return record

    def damaged(self, key: str) -> BadData:
        """The error for the record under `key`, which is none of its kind: it names the line and the way to go on."""
        return self._damaged(self._index[bytes.fromhex(key)])

    def append(self, *records: Mapping[str, Any], new_only: bool = False) -> None:
        """Write `records` in one stroke, each with its `key` first; they are on file when this returns.

        `new_only` leaves out those whose key is there already (passages, which are stored once).

        Raises:
            CannotWrite: the system refuses (a full disk); nothing of `records` is kept.
        """
        lines = [(bytes.fromhex(record["key"]), _line(record)) for record in records]
        with self._lock:
            if self._pid != os.getpid():
                raise RunLocked(f"{self.path} was opened by the process that this one was forked from: open it anew")
            if self._write_fd < 0:
                state = "open for replay" if self.mode == "replay" else "closed"
                raise BadArgument(f"{self.path} is {state} and takes no records")
            if new_only:
                lines = [(key, line) for key, line in dict(lines).items() if key not in self._index]
            try:
                write_all(self._write_fd, b"".join(line for _, line in lines))
            except OSError as error:  # a full disk: half a record must not stand in front of the next one
                os.ftruncate(self._write_fd, self._end)
                why = error.strerror or error
                raise CannotWrite(f"{self.path} takes no more records ({why}): make room, then go on") from error
            for key, line in lines:
                self._index[key] = self._end
                self._end += len(line)

    def records(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """Every record in the order of the file, superseded ones included; of these `kinds` only, where any is named.

        A record of another kind is passed over unread.
        """
        begins = tuple(_KIND + json.dumps(kind).encode() for kind in kinds) or _KIND
        offset = 0
        while offset < self._end:
            line = self._line_at(offset)
            if line.startswith(begins, _KIND_AT):
                yield self._parse(line, offset)
            elif not line.startswith(_KIND, _KIND_AT):
                raise self._damaged(offset)
            offset += len(line)

    def __contains__(self, key: str) -> bool:
        return bytes.fromhex(key) in self._index

    def __len__(self) -> int:
        return len(self._index)

    def close(self) -> None:
        """Release the files (and the writer's lock)."""
        for fd in (self._write_fd, self._read_fd):
            if fd >= 0:
                os.close(fd)
        self._write_fd = self._read_fd = -1
        for other in self._others:
            other.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed: nothing can be kept any more."""
        return self._read_fd < 0

    def __del__(self) -> None:
        # A notebook's cell run again drops its journal: the lock must not outlive it.
        if getattr(self, "_pid", None) == os.getpid():
            self.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _whole(self, record: dict[str, Any], needs: Collection[str]) -> dict[str, Any]:
        if record.get("error") or record.keys() >= set(needs):
            return record
        raise self.damaged(record["key"])

    def _borrow(self, key: str, needs: Collection[str]) -> dict[str, Any] | None:
        for other in self._others:
            record = other.read(key)
            # Another run's failure is not worth keeping: here the call is made.
            if record is not None and not record.get("error"):
                other._whole(record, needs)
                if self._write_fd >= 0:
                    record = {**record, "reused": True}  # paid for by that run, not by this one
                    self.append(record, new_only=record["kind"] == "passage")
                return record
        return None

    def _line_at(self, offset: int) -> bytes:
        pieces: list[bytes] = []
        size = 16_384
        while True:
            piece = os.pread(self._read_fd, size, offset + sum(map(len, pieces)))
            cut = piece.find(b"\n")
            if cut >= 0 or not piece:
                pieces.append(piece[: cut + 1])
                return b"".join(pieces)
            pieces.append(piece)
            size *= 4

    def _parse(self, line: bytes, offset: int) -> dict[str, Any]:
        try:
            record: dict[str, Any] = json.loads(line)
        except ValueError as error:
            raise self._damaged(offset) from error
        return record

    def _damaged(self, offset: int) -> BadData:
        """The error for what lies at `offset`, by the number of its line."""
        number, at = 1, 0
        while at < offset:
            piece = os.pread(self._read_fd, min(1 << 20, offset - at), at)
            if not piece:
                break  # cut behind our back
            number += piece.count(b"\n")
            at += len(piece)
        return _damaged(self.path, f"line {number}")

    def _read_index(self) -> int:
        """Fill the index; the offset at which the next record goes (before a torn last line)."""
        end = 0
        with open(self._read_fd, "rb", closefd=False) as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                key = line[len(_PREFIX) : len(_PREFIX) + _KEY_DIGITS]
                try:
                    if not (line.startswith(_PREFIX) and line.endswith(b"}\n")):
                        raise ValueError("not a record")
                    self._index[bytes.fromhex(key.decode("ascii"))] = end
                except ValueError as error:
                    raise _damaged(self.path, f"line {number}") from error
                end += len(line)
        return end


def _file_of(path: Path) -> Path:
    return path if path.suffix == ".jsonl" else path / FILE


def _open_for_writing(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        _lock_for_writing(fd, path)
    except RunLocked:
        os.close(fd)
        raise
    return fd


def _lock_for_writing(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise RunLocked(
            f"{path} is being written to, by another process or by a journal still open in this one: "
            "wait for it or close it, or give this run a folder of its own"
        ) from error


def _line(record: Mapping[str, Any]) -> bytes:
    ordered = {"key": record["key"], "kind": record["kind"], **record}
    text = json.dumps(ordered, ensure_ascii=False, separators=(",", ":"), default=str)
    return text.encode("utf-8", "backslashreplace") + b"\n"


def write_all(fd: int, data: bytes) -> None:
    """All of `data`: one `os.write` may take only a part."""
    while data:
        data = data[os.write(fd, data) :]


def _damaged(path: Path, where: str) -> BadData:
    return BadData(
        f"{path}, {where}: not a journal record; cut the file before it (what follows is called again), "
        "or start a new run"
    )

"""The journal: every model call and every search, one record a line, appended before its result is used.

An append-only JSON-lines store addressed by key; it knows neither models nor indexes (`blendfilter.lm` and
`blendfilter.retrieval` wrap it). Caching, resuming, replaying and accounting are readings of this file.

A record is a JSON object whose first field is its `key` (32 hex digits), whose second is its `kind` and whose last is
its `check`, a CRC-32 of the line before it. The index in memory is key -> offset, about 150 bytes a record; a record is
read back from the file. A later record under a key replaces an earlier one. One process writes at a time (`flock`).

A last line that was torn by a kill is dropped. A record that was damaged or edited is never served: `auto` says which
line it is and has it called again, a replay refuses it by its line. A line that is no record at all means that the file
is not ours, or needs a person: it is refused, and nothing is cut.

`CallCache` keeps calls outside of runs in the same lines, for many writers at a time.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Literal, TypeVar

from pydantic import Field, StringConstraints

from blendfilter.errors import BadArgument, BadData, MissingFile, RunLocked
from blendfilter.files import (
    AnyPath,
    AppendOnly,
    check_regular,
    json_line,
    lock,
    path_of,
    paths_of,
    whole_lines,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")
Mode = Literal["auto", "record", "replay"]
MODES: tuple[Mode, ...] = ("auto", "record", "replay")
FILE = "journal.jsonl"
_KEY_DIGITS = 32
_BEGINS = b'{"key":"' + b"#" * _KEY_DIGITS + b'","kind":"'
_BEGINNING = re.compile(rb'^\{"key":"([0-9a-f]{32})(?=","kind":")', re.MULTILINE)
_CHECK = re.compile(rb',"check":"([0-9a-f]{8})"}\n')
_CHECK_LENGTH = len(b',"check":"01234567"}\n')
_BUSY = (
    "by another process or by a journal still open in this one: wait for it or close it, "
    "or give this run a folder of its own"
)


def digest(*parts: Any) -> str:
    """A record's key: the first 128 bits of the SHA-256 of `parts` as canonical JSON.

    >>> digest("a", {"y": 1, "x": None}) == digest("a", {"x": None, "y": 1})
    True
    """
    text = json.dumps(parts, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_KEY_DIGITS]


Count = Annotated[int, Field(ge=0)]
CallKey = Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]


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
        MissingFile: a replay or reuse without its file. RunLocked: another process writes here. BadData: the file is
        no journal, or has a line that is none of a journal.
    """

    def __init__(
        self,
        path: str | Path,
        mode: Mode = "auto",
        reuse: AnyPath | Iterable[AnyPath] = (),
        *,
        exclusive: bool = False,
    ) -> None:
        if mode not in MODES:
            raise BadArgument(f"no journal mode '{mode}' (known: {', '.join(MODES)})")
        named = path_of(path)
        self.path = named if named.suffix == ".jsonl" else named / FILE
        self.mode: Mode = mode
        self._lock = threading.Lock()
        self._index: dict[bytes, int] = {}
        self._damaged: dict[bytes, int] = {}  # key -> offset, where no later record replaces it
        self._warned: set[str] = set()
        self._log: AppendOnly | None = None
        self._read_fd = -1
        self._pid = os.getpid()
        self._others: list[Journal] = []
        self._beside: dict[str, tuple[Any, Callable[[Any], None]]] = {}
        try:
            for other in paths_of(reuse):  # first: where one is missing, nothing is made
                self._others.append(Journal(other, "replay"))
            if mode != "replay":
                self._log = AppendOnly(
                    self.path,
                    begins=_BEGINS,
                    refuse=partial(_not_a_line, self.path),
                    contents="records",
                    busy=_BUSY,
                )
            else:
                check_regular(self.path)
                if not self.path.is_file():
                    raise MissingFile(
                        f"no journal at {self.path}: to replay or reuse a run, name its folder"
                    )
            self._read_fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            if exclusive and mode == "replay":
                lock(self._read_fd, self.path, _BUSY)
            self._end = self._read_index()
        except BaseException:
            self.close()
            raise

    def __repr__(self) -> str:
        return f"Journal({str(self.path)!r}, {self.mode!r})"

    def find(self, key: str, kind: str | None = None) -> dict[str, Any] | None:
        """The record under `key` that this mode may serve, or None: the caller must call.

        Raises:
            BadData: in a replay, where the record is damaged, or not of this `kind`.
        """
        if self.mode == "record":
            return None
        try:
            record = self.read(key, kind)
        except BadData as damage:
            if self.mode == "replay":
                raise
            self._warn(damage)
            self._forget(key)
            record = None
        if record is None or (record.get("error") and self.mode != "replay"):
            # A failure of our own gives way to another run's success.
            return self._borrow(key, kind) or record
        return record

    def read(self, key: str, kind: str | None = None) -> dict[str, Any] | None:
        """The newest record under `key` in this file, whatever the mode. Raises: BadData where it is damaged."""
        packed = bytes.fromhex(key)
        if packed in self._damaged:
            raise self._damage(self._damaged[packed])
        offset = self._index.get(packed)
        if offset is None:
            return None
        record = self._parse(self._line_at(offset), offset)
        if record["key"] != key or kind not in (None, record["kind"]):
            raise self._damage(offset)
        return record

    def read_call(self, key: str) -> dict[str, Any] | None:
        """`read` for the record of a call."""
        return self.read(key, "call")

    def damages(self) -> Iterator[tuple[str, BadData]]:
        """The kind of each damaged record that no later one replaces, and the error that names its line."""
        for offset in sorted(self._damaged.values()):
            kind = self._line_at(offset)[len(_BEGINS) :].partition(b'"')[0]
            yield kind.decode("utf-8", "replace"), self._damage(offset)

    def append(self, *records: Mapping[str, Any], new_only: bool = False) -> None:
        """Write `records` in one stroke; they are on file when this returns.

        `new_only` leaves out those whose key is there already (passages, which are stored once).

        Raises:
            CannotWrite: the system refuses (a full disk); nothing of `records` is kept.
        """
        lines = [(bytes.fromhex(record["key"]), _line(record)) for record in records]
        with self._lock:
            if self._pid != os.getpid():
                raise RunLocked(
                    f"{self.path} was opened by the process that this one was forked from: open it anew"
                )
            if self._log is None or self._log.closed:
                state = "open for replay" if self.mode == "replay" else "closed"
                raise BadArgument(f"{self.path} is {state} and takes no records")
            if new_only:
                lines = [
                    (key, line) for key, line in dict(lines).items() if key not in self._index
                ]
            self._log.append(b"".join(line for _, line in lines))
            for key, line in lines:
                self._index[key] = self._end
                self._damaged.pop(key, None)
                self._end += len(line)

    def records(self, *kinds: str) -> Iterator[dict[str, Any]]:
        """Every record in the order of the file, superseded ones included; of these `kinds` only, where any is named.

        A record of another kind is passed over unread, and so is a damaged one, with a warning: it cannot even vouch
        for its key. `damages` names those, for an account that must not lack one.
        """
        begins = tuple(f'{kind}"'.encode() for kind in kinds) or b""
        offset = 0
        while offset < self._end:
            line = self._line_at(offset)
            if line.startswith(begins, len(_BEGINS)):
                try:
                    yield self._parse(line, offset)
                except BadData as damage:
                    if offset in self._damaged.values():  # no later one replaces it
                        self._warn(damage)
            offset += len(line)

    def __contains__(self, key: str) -> bool:
        return bytes.fromhex(key) in self._index

    def __len__(self) -> int:
        return len(self._index)

    def beside(self, name: str, opened: Callable[[Path], T], close: Callable[[T], None]) -> T:
        """What `opened` makes of the file of that name in the journal's folder: once, and closed with the journal."""
        with self._lock:
            if name not in self._beside:
                self._beside[name] = opened(self.path.parent / name), close
            writer: T = self._beside[name][0]
            return writer

    def close(self) -> None:
        """Release the files (and the writer's lock)."""
        try:
            for writer, close in self._beside.values():
                close(writer)
        finally:
            self._beside.clear()
            if self._log is not None:
                self._log.close()
            fd, self._read_fd = self._read_fd, -1
            if fd >= 0:
                os.close(fd)
            for other in self._others:
                other.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._read_fd < 0

    def __del__(self) -> None:
        # A notebook's cell run again drops its journal: the lock must not outlive it.
        if getattr(self, "_pid", None) == os.getpid():
            self.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _warn(self, damage: BadData) -> None:
        if str(damage) not in self._warned:
            self._warned.add(str(damage))
            logger.warning("%s", damage)

    def _forget(self, key: str) -> None:
        """A damaged record counts as none from here on, so that the next one replaces it."""
        packed = bytes.fromhex(key)
        with self._lock:
            self._damaged.pop(packed, None)
            self._index.pop(packed, None)

    def _borrow(self, key: str, kind: str | None) -> dict[str, Any] | None:
        for other in self._others:
            try:
                record = other.read(key, kind)
            except BadData as damage:
                self._warn(damage)
                other._forget(key)
                continue
            # Another run's failure is not worth keeping: here the call is made.
            if record is not None and not record.get("error"):
                if self._log is not None:
                    record = {**record, "reused": True}  # paid for by that run, not by this one
                    self.append(record, new_only=record["kind"] == "passage")
                return record
        return None

    def _line_at(self, offset: int) -> bytes:
        """The line at `offset`, with a line feed at its end."""
        size = 16_384
        while True:
            piece = os.pread(self._read_fd, size, offset)
            if (end := piece.find(b"\n")) >= 0 or len(piece) < size:
                return piece[: end if end >= 0 else None] + b"\n"
            size *= 4

    def _parse(self, line: bytes, offset: int) -> dict[str, Any]:
        try:
            if not _is_sound(line):
                raise ValueError("another check")
            record: dict[str, Any] = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise self._damage(offset) from error
        record.pop("check", None)
        return record

    def _damage(self, offset: int) -> BadData:
        number, step = 1, 1 << 20
        for at in range(0, offset, step):
            number += os.pread(self._read_fd, min(step, offset - at), at).count(b"\n")
        return BadData(
            f"{self.path}, line {number}: a damaged or edited record; restore the file, or run the command that made "
            "it without replay=True, calls=, tokens= and dollars=: it calls the model again"
        )

    def _read_index(self) -> int:
        """Fill the index; the offset at which the next record goes (before a torn last line)."""
        end = 0
        lines = (
            self._log.lines()
            if self._log
            else whole_lines(self._read_fd, _BEGINS, partial(_not_a_line, self.path))
        )
        for number, (offset, line) in enumerate(lines, 1):
            key = _key_of(line)
            if key is None:
                raise _not_a_line(self.path, number)
            if _is_sound(line):
                self._index[key] = offset
                self._damaged.pop(key, None)
            else:
                self._index.pop(key, None)
                self._damaged[key] = offset
            end = offset + len(line)
        return end


class CallCache:
    """The calls made outside of runs, kept for whichever process of the user makes them again.

    A folder with a file for each first two digits of a key, whose lines are those of a journal. It has no lock, so that
    no notebook waits for another: a record is one write to the end of a file, on a line of its own, and is served only
    where its check holds. A line that a kill tore, or that a file system mixed with another, costs a call, no more.

    Failed calls are not kept. A folder that cannot be read or written to is a warning, once.
    """

    mode: Mode = "auto"
    closed = False
    _unusable: ClassVar[set[Path]] = set()

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: dict[str, tuple[int, int, dict[bytes, int]]] = {}
        """Of each file its inode, how far it was read, and where the last line of each key begins."""

    def find(self, key: str, kind: str | None = None) -> dict[str, Any] | None:
        """The newest record under `key`, of any process, if it is sound; None: the caller must call."""
        try:
            with self._file(key).open("rb") as file:
                line = self._line(file, key)
        except FileNotFoundError:
            return None
        except OSError as error:
            self._warn(error)
            return None
        if not _is_sound(line):
            return None
        record: dict[str, Any] = json.loads(line)
        del record["check"]
        return record if kind in (None, record["kind"]) else None

    def _line(self, file: BinaryIO, key: str) -> bytes:
        """The last line under `key`; only what was added to the file since the last look is read for it."""
        status, place = os.fstat(file.fileno()), key[:2]
        inode, end, begins = self._seen.get(place, (0, 0, {}))
        if inode != status.st_ino or end > status.st_size:  # cleared meanwhile
            end, begins = 0, {}
        file.seek(end)
        added = file.read()
        for found in _BEGINNING.finditer(added):
            begins[found[1]] = end + found.start()
        # a line that is still being written is looked at again
        self._seen[place] = status.st_ino, end + added.rfind(b"\n") + 1, begins
        file.seek(begins.get(key.encode(), status.st_size))
        return file.readline()

    def append(self, record: Mapping[str, Any]) -> None:
        """Keep `record`, unless it is of a failed call."""
        if record.get("error"):
            return
        file, line = self._file(record["key"]), _line(record)
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(fd).st_size
                torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
                if os.write(fd, b"\n" * torn + line) < torn + len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            finally:
                os.close(fd)
        except OSError as error:
            self._warn(error)

    def _file(self, key: str) -> Path:
        return self.path / f"{key[:2]}.jsonl"

    def _warn(self, error: OSError) -> None:
        if self.path not in self._unusable:
            self._unusable.add(self.path)
            logger.warning(
                "the cache of calls in %s cannot be used (%s), and calls are made without it: name another folder in "
                "BLENDFILTER_CACHE, or connect with cache=False",
                self.path,
                error.strerror or error,
            )


def _not_a_line(path: Path, number: int) -> BadData:
    if number == 1:
        return BadData(
            f"{path}, line 1: not a journal record, so this is no journal: name another file"
        )
    cut = "cut the file before it (what follows is called again), or name another file"
    return BadData(f"{path}, line {number}: not a journal record; {cut}")


def _line(record: Mapping[str, Any]) -> bytes:
    ordered = {"key": record["key"], "kind": record["kind"], **record}
    body = json_line(ordered, separators=(",", ":"), default=str).removesuffix(b"}\n")
    return body + b',"check":"%08x"}\n' % zlib.crc32(body)


def _is_sound(line: bytes) -> bool:
    """Whether a line ends with its own check."""
    check = _CHECK.fullmatch(line[-_CHECK_LENGTH:])
    return check is not None and int(check[1], 16) == zlib.crc32(
        memoryview(line)[:-_CHECK_LENGTH]
    )


def _key_of(line: bytes) -> bytes | None:
    """The key of a record's line; None where it is no record's."""
    beginning = _BEGINNING.match(line)
    if beginning is None or not line.endswith(b"}\n"):
        return None
    return bytes.fromhex(beginning[1].decode())

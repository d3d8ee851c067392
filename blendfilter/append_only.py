"""Append-only files of JSON lines: one writer at a time, whole lines only, and nothing cut that is not ours.

A kill tears at most the last line. What is behind the last line feed counts as torn only where it is the beginning of a
line that this file could hold, or zero bytes (which a power cut leaves); it is cut off when the next line is appended.
Anything else there, or in any line, belongs to somebody else, and the file is refused by the number of that line.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from blendfilter.errors import BadData, CannotWrite, RunLocked

Refuse = Callable[[int], BadData]
"""The error for a line, by its number from 1."""
HEX = ord("#")
"""In the beginning that a log's lines share: any hexadecimal digit."""
_DIGITS = frozenset(b"0123456789abcdef")


def check_regular(path: Path) -> None:
    """Raise `BadData` where a named pipe or a device lies at `path`: it would be waited for without end."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # what is not there, or may not be looked at, is for whoever opens it to say
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise BadData(f"{path} is a named pipe or a device, not a file: remove it, or name another place")


def is_torn(tail: bytes, begins: bytes) -> bool:
    r"""Whether `tail` may be what a kill or a power cut left of a JSON line that `begins` so.

    >>> is_torn(b'{"key":"0a', b'{"key":"##","kind":"'), is_torn(b"my notes", b'{"key":"##","kind":"')
    (True, False)
    >>> is_torn(b'{"id": "a"}\r{"id": "b"', b'{"id": "'), is_torn(b"\0\0", b'{"id": "')
    (False, True)
    """
    written = tail.rstrip(b"\0")
    pairs = zip(written, begins, strict=False)
    return all(byte in _DIGITS if wanted == HEX else byte == wanted for byte, wanted in pairs) and _is_prefix(written)


def _is_prefix(data: bytes) -> bool:
    """Whether `data` is the beginning of one JSON value, or all of it."""
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data)  # half a character at the end is left out
        _, end = json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError as error:
        # What is missing is missed at the end. A string without an end is missed where it begins.
        return error.msg.startswith("Unterminated string") or error.pos >= len(text) - len("\\uD83D")
    except (ValueError, RecursionError):
        return False
    return end == len(text)


def whole_lines(fd: int, begins: bytes, refuse: Refuse, first: bytes = b"") -> Iterator[tuple[int, bytes]]:
    """The lines of an open file from its start, each with its offset, and with a line feed at its end.

    A last line that lacks nothing but its line feed is given too; one that is torn is left out. `first` is how the
    first line begins, where it is not like the others.

    Raises:
        BadData: what stands behind the last line feed is no torn line; `refuse` words it.
    """
    offset = 0
    # Not a duplicate: one that outlives an iteration given up half way would keep the writer's lock.
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                if not is_torn(line, first if first and number == 1 else begins):
                    raise refuse(number)
                if not _is_whole(line):
                    return
                line += b"\n"  # noqa: PLW2901
            yield offset, line
            offset += len(line)


def _is_whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


class AppendOnly:
    """A file open for its one writer; opening it changes nothing in it.

    Args:
        path: the file; made where it is missing, with its folders.
        begins: how each of its lines begins, as far as they are alike; `#` stands for a hexadecimal digit.
        first: how the first one begins, where it is not like the others.
        refuse: the error for a line that is not of this file.
        contents: what the file takes, for messages ("records", "rows").
        busy: what to do where another writer is at work, for the message; empty: no lock is taken, for the caller
            has one.

    Raises:
        BadData: it is no regular file. RunLocked: another writer is at work.
    """

    def __init__(
        self, path: Path, *, begins: bytes, refuse: Refuse, contents: str, busy: str, first: bytes = b""
    ) -> None:
        self.path, self._begins, self._first, self._refuse, self._contents = path, begins, first, refuse, contents
        path.parent.mkdir(parents=True, exist_ok=True)
        check_regular(path)
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            if busy:
                lock(self._fd, path, busy)
            self.end = os.fstat(self._fd).st_size
        except BaseException:
            self.close()
            raise

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Each line with its offset. Read to the end, the file is whole again: what was torn is cut off."""
        end = 0
        for offset, line in whole_lines(self._fd, self._begins, self._refuse, self._first):
            end = offset + len(line)
            yield offset, line
        with self._kept_to(end):
            self._settle(end)
        self.end = end

    def append(self, data: bytes, *, sync: bool = False) -> int:
        """Write whole lines in one stroke; the offset at which they begin. They are on file when this returns.

        Raises:
            CannotWrite: the system refuses (a full disk); nothing of `data` is kept.
        """
        begin = self.end
        with self._kept_to(begin):
            write_all(self._fd, data)
            if sync:
                os.fsync(self._fd)
        self.end = begin + len(data)
        return begin

    @contextmanager
    def _kept_to(self, end: int) -> Iterator[None]:
        """Where the system refuses inside the block, nothing stays behind `end`: half a line must not stand there."""
        try:
            yield
        except OSError as error:
            if os.fstat(self._fd).st_size > end:
                os.ftruncate(self._fd, end)
            why = error.strerror or error
            raise CannotWrite(f"{self.path} takes no more {self._contents} ({why}): make room, then go on") from error

    def _settle(self, end: int) -> None:
        """Cut a torn line off, or end a line that lacks only its line feed."""
        size = os.fstat(self._fd).st_size
        if size > end:
            os.ftruncate(self._fd, end)
        elif size < end:
            write_all(self._fd, b"\n")

    def sync(self) -> None:
        """Have the disk take what was written."""
        os.fsync(self._fd)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._fd < 0

    def close(self) -> None:
        """Release the file and its lock."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def lock(fd: int, path: Path, busy: str) -> None:
    """Take the writer's lock of an open file. Raises `RunLocked` where another has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise RunLocked(f"{path} is being written to, {busy}") from error


def write_all(fd: int, data: bytes) -> None:
    """All of `data`: one `os.write` may take only a part."""
    while data:
        data = data[os.write(fd, data) :]

"""Files: data as it comes, and files of our own, which appear whole or grow by whole lines.

Data is plain or gzipped, JSON Lines or one JSON list (packing and layout are read off the bytes, never the file's
name), and is streamed with every row's place known.

A file of our own appears whole or not at all (`write_whole`), or is a log with one writer (`AppendOnly`). A kill tears
at most a log's last line. What is behind the last line feed counts as torn only where it is the beginning of a line
that this file could hold, or zero bytes (which a power cut leaves); it is cut off when the log is read by its next
writer. Anything else there, or in any line, belongs to somebody else: the file is refused by that line's number.
"""

from __future__ import annotations

import codecs
import errno
import fcntl
import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase, BufferedReader
from pathlib import Path
from typing import Any, NamedTuple

import ijson
from ijson.common import ObjectBuilder

from blendfilter.errors import (
    BadArgument,
    BadData,
    BlendFilterError,
    CannotWrite,
    MissingFile,
    RunLocked,
)

GZIP = b"\x1f\x8b"
_FRAME = "python -c \"import pandas as pd; pd.{}('{{path}}').to_json('data.jsonl', orient='records', lines=True)\""
_DATASET = (
    "python -c \"import datasets; datasets.Dataset.from_file('{path}').to_json('data.jsonl')\""
)
_EXCEL = ("an Excel file", _FRAME.format("read_excel"))
_FOREIGN = {
    rb"PAR1(?![\t -~])": ("a Parquet file", _FRAME.format("read_parquet")),
    rb"ARROW1\0": ("an Arrow file", _FRAME.format("read_feather")),
    rb"\xff\xff\xff\xff": ("a data set of Arrow", _DATASET),
    rb"SQLite format 3\0": (
        "an SQLite database",
        "sqlite3 -json '{path}' 'SELECT … FROM …' > data.json",
    ),
    rb"\xd0\xcf\x11\xe0": _EXCEL,
    rb"%PDF-": ("a PDF", "pdftotext '{path}' data.txt"),
    rb"\xfd7zXZ\0": ("packed by xz", "unxz -k '{path}'"),
    rb"BZh[1-9]1AY&SY": ("packed by bzip2", "bunzip2 -k '{path}'"),
    rb"\x28\xb5\x2f\xfd": ("packed by Zstandard", "unzstd '{path}'"),
    rb"7z\xbc\xaf\x27\x1c": ("a 7-Zip archive", "7z x '{path}'"),
    rb"PK\x03\x04": ("a zip archive", "unzip '{path}'"),
    rb"(?s).{257}ustar": ("a tar archive", "tar xf '{path}'"),
}
"""How files begin that are not read: what they are, and the command that makes a file of them that is."""
BOM = b"\xef\xbb\xbf"
LONGEST = 64 << 20
"""Bytes of one item of a JSON list, one line or one document, once unpacked: a small file may unpack to gigabytes."""
_DEEPEST = 500
_OPENS = frozenset({"start_map", "start_array"})
_CLOSES = frozenset({"end_map", "end_array"})
Refuse = Callable[[int], BadData]
"""The error for a line that is not of a log, by its number from 1."""
HEX = ord("#")
"""In the beginning that a log's lines share: any hexadecimal digit."""


AnyPath = str | os.PathLike[str]
"""A path, or what names one (a `Run` its folder)."""


def path_of(given: AnyPath) -> Path:
    """A path as a user writes it: `~` is the home folder, as in a shell. Every path from outside passes here.

    Raises:
        MissingFile: `~`, where there is no home folder.
    """
    path = Path(os.path.expanduser(given))
    if path.parts[:1] == ("~",):
        raise MissingFile(f"there is no home folder for '{given}': write the whole path")
    return path


class TextLine(NamedTuple):
    """One line of a text file; `where` names file and line, `number` counts from 1, `text` has no line break."""

    where: str
    number: int
    text: str


class JsonRow(NamedTuple):
    """One JSON value of a file; `where` is for messages, `position` counts values from 0 (blank lines do not count)."""

    where: str
    position: int
    value: Any


@contextmanager
def opened(path: AnyPath, *, unpack: bool = True) -> Iterator[BufferedIOBase]:
    """The file's bytes, unpacked where it is gzip; faults of reading inside the block become our errors.

    A pipe of the shell's (`<(zcat …)`, `/dev/stdin`) may be opened again.

    Raises:
        MissingFile: there is no such file.
        BadData: it is a folder, a named pipe or of another kind, cannot be read, or its gzip data is damaged.
    """
    place = _rereadable(path_of(path))
    try:
        with open(place, "rb") as raw:
            packed = unpack and raw.peek(2)[:2] == GZIP
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            if unpack:
                _check_kind(stream.peek(512), path)
            yield stream
    except FileNotFoundError:
        raise MissingFile.of(path) from None
    except IsADirectoryError:
        raise BadData(f"'{path}' is a folder, not a file (an index goes with index=)") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadData(f"'{path}' is damaged gzip ({error}): fetch the file again") from None
    except OSError as error:
        raise BadData(f"'{path}' cannot be read: {error.strerror or error}") from None


def _check_kind(beginning: bytes, path: AnyPath) -> None:
    """Raise `BadData` for a file of a known kind that is not read."""
    for mark, named in _FOREIGN.items():
        if re.match(mark, beginning):
            is_excel = Path(path).suffix.lower() == ".xlsx"  # a zip archive too
            kind, command = _EXCEL if is_excel else named
            raise BadData(
                f"'{path}' is {kind}, which is not read: try {command.format(path=path)}"
            )


def read_whole(path: AnyPath) -> bytes:
    """All bytes of a small file. Raises: as `opened`."""
    with opened(path, unpack=False) as stream:
        return stream.read()


def sha256_of(path: AnyPath) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_PIPED: dict[tuple[int, int], Any] = {}
"""Temporary files of what came out of pipes, by the pipes' device and number; they go when the process ends."""


def _rereadable(path: Path) -> Path:
    """`path`, or a file with what comes out of the pipe there.

    A pipe gives its bytes once, and data is read more than once: for its hash, for its layout, and row by row.
    """
    try:
        status = path.stat()
    except OSError:
        return path  # for whoever opens it to say
    if not stat.S_ISFIFO(status.st_mode):
        return path
    # it may be filled again, and nothing says when
    if not str(path).startswith(("/dev/", "/proc/")):
        raise BadData(
            f"'{path}' is a named pipe, and data is read more than once: name a file, or write <(cat {path})"
        )
    pipe = (status.st_dev, status.st_ino)
    if pipe not in _PIPED:
        kept = tempfile.NamedTemporaryFile(prefix="blendfilter-")  # noqa: SIM115 - for the process
        with writing(Path(kept.name)), open(path, "rb") as stream:
            shutil.copyfileobj(stream, kept)
            kept.flush()
        _PIPED[pipe] = kept
    return Path(_PIPED[pipe].name)


def _check_free(path: Path) -> None:
    if os.path.lexists(path):
        raise BadArgument(
            f"there is a file at {path} already: name another, or overwrite it (overwrite=True)"
        )


def lines(path: str | Path, *, blank: bool = False) -> Iterator[TextLine]:
    """The lines that hold something, or all (`blank`), split at line feeds only (texts may hold other separators)."""
    with opened(path) as stream:
        for number, raw in raw_lines(stream, path):
            where = f"{path}, line {number}"
            data = raw.removeprefix(BOM) if number == 1 else raw
            try:
                text = data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise BadData(
                    f"{where}: not UTF-8 (byte {error.start + 1} of the line): save the file as UTF-8"
                ) from None
            if blank or text.strip():
                yield TextLine(where, number, text.rstrip("\r\n"))


def raw_lines(stream: BufferedIOBase, path: str | Path) -> Iterator[tuple[int, bytes]]:
    """The lines of `stream` with their line feeds, counted from 1; `path` is for messages.

    Raises:
        BadData: a line longer than `LONGEST`, as soon as so much of it is read: a small file may unpack to one without
            end.
    """
    for number, raw in enumerate(iter(lambda: stream.readline(LONGEST + 1), b""), start=1):
        if len(raw) > LONGEST:
            raise BadData(f"{path}, line {number}: {too_long('the line')}")
        yield number, raw


def first_character(path: str | Path) -> str:
    """The first character that is not white space, empty for an empty file; ``[`` begins a JSON list.

    Reads blocks, not lines: a JSON list on one line may be hundreds of megabytes long.
    """
    with opened(path) as stream:
        while block := stream.read(4096):
            text = block.removeprefix(BOM).decode("utf-8", "ignore").strip()
            if text:
                return text[0]
    return ""


def json_rows(path: str | Path) -> Iterator[JsonRow]:
    """Every value of a JSON Lines file or of a file that is one JSON list, as a stream.

    Raises:
        MissingFile: there is no such file.
        BadData: a line, or the list, does not parse (which line or item, and where it stops making sense).
    """
    if first_character(path) == "[":
        with opened(path) as stream:
            for position, value in enumerate(list_values(stream, str(path))):
                yield JsonRow(f"{path}, item {position + 1}", position, value)
        return
    for position, line in enumerate(lines(path)):
        yield JsonRow(line.where, position, parsed(line.text, line.where))


def hash_pieces(digest: Any, path: Path, starts: Iterable[int], length: int) -> None:
    """Add `length` bytes of a file from each of `starts` to a digest: a fingerprint of what is too large to read."""
    with path.open("rb") as file:
        for start in starts:
            file.seek(start)
            digest.update(file.read(length))


def write_whole(path: Path, pieces: Iterable[bytes], *, overwrite: bool = True) -> None:
    """`pieces` one after the other, in a file beside `path` that is synced and then takes its name.

    Raises `BadArgument` where something is at `path` and `overwrite` is not set.
    """
    if not overwrite:
        _check_free(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with writing(path), temporary.open("wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        if not overwrite:
            try:
                # in one step: what has come there meanwhile is not replaced
                os.link(temporary, path)
                return
            except OSError:  # it has, or this file system has no hard links
                _check_free(path)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def paths_of(given: AnyPath | Iterable[AnyPath]) -> list[Path]:
    """Paths of one or several; one by itself is no sequence of letters."""
    return [
        path_of(path) for path in ((given,) if isinstance(given, str | os.PathLike) else given)
    ]


@contextmanager
def writing(
    target: Path, move: str = "nothing of it is left: make room, or write it elsewhere"
) -> Iterator[None]:
    """Name the file in the error of a full disk, which the system leaves out, and `move`, the next step.

    NumPy, torch, safetensors and FAISS say in words of their own that the disk takes no more.
    """
    try:
        yield
    except Exception as error:
        if (number := _no_room(error)) is None:
            raise
        words = getattr(error, "strerror", None) or os.strerror(number)
        raise OSError(number, f"{words}; {move}", str(target)) from error


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CUT = re.compile(
    r"inline_container\.cc.*unexpected pos|\d+ requested and \d+ written", re.DOTALL
)
"""What torch and NumPy say of a file that took less than they wrote."""


def _no_room(error: Exception) -> int | None:
    """The number of a full disk's error that names no file."""
    if isinstance(error, BlendFilterError):
        return None
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno in _NO_ROOM and error.filename is None else None
    words = str(error)
    named = next((number for number in _NO_ROOM if os.strerror(number) in words), None)
    return errno.ENOSPC if named is None and _CUT.search(words) else named


def parsed(text: str, where: str) -> Any:
    """`text` as JSON. Raises `BadData`, naming the place, where it is none."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise BadData(f"{where}: nested too deeply to be data") from None
    except json.JSONDecodeError as error:
        hint = "expected one JSON object a line, or one JSON list in the whole file"
        raise BadData(
            f"{where}: does not parse as JSON ({error.msg} at character {error.pos + 1}): {hint}"
        ) from None
    except ValueError as error:
        raise BadData(f"{where}: does not parse as JSON ({error})") from None
    if "\\ud" in text or "\\uD" in text:
        try:
            json_line(value, errors="strict")
        except UnicodeEncodeError:
            raise BadData(
                f"{where}: holds half a character (a lone surrogate escape): fix or drop the row"
            ) from None
    return value


def too_long(what: str) -> str:
    """Why something larger than anything of its kind is refused."""
    return (
        f"{what} is longer than {LONGEST >> 20} MiB: is it the right file? If so, break it up"
    )


def list_values(stream: BufferedIOBase, name: str, *, inside: bool = False) -> Iterator[Any]:
    """The values of the JSON list in `stream`, or an object's pairs of key and value, with one in memory and one block.

    `name` is the file's, for messages. With `inside` the list is part of something larger, so more may follow it.
    Whole numbers beyond 64 bits and `NaN` are refused; half a character becomes a question mark.

    Raises:
        BadData: the list is cut off, does not parse (at which item), is followed by more, or is not UTF-8.
    """
    source, builder, depth, count = _Bounded(stream), ObjectBuilder(), 0, 0
    key = None
    try:
        for event, value in ijson.basic_parse(source, use_float=True):
            depth -= event in _CLOSES
            if depth == 1 and event == "map_key":
                key = value
            elif depth:
                builder.event(event, value)
                if depth == 1 and event not in _OPENS:
                    source.read_of_item, count = 0, count + 1
                    yield builder.value if key is None else (key, builder.value)
                    builder = ObjectBuilder()
            elif event in _CLOSES and inside:
                return
            depth += event in _OPENS
            if depth > _DEEPEST:
                raise BadData(f"{name}, item {count + 1}: nested too deeply to be data")
    except ijson.JSONError as error:
        fault = re.split(r"\n|\\n", str(error).removeprefix("b'"))[0]
        if source.read_of_item > LONGEST:
            raise BadData(f"{name}, item {count + 1}: {too_long('the item')}") from None
        if "premature EOF" in fault:
            raise BadData(
                f"{name}: the JSON list ends in item {count + 1}, cut off: fetch the file again"
            ) from None
        hint = ": write null for NaN" if "NaN" in str(error) else ""
        raise BadData(
            f"{name}, item {count + 1}: does not parse as JSON ({fault}){hint}"
        ) from None


class _Bounded:
    """What a parser reads `stream` by, without a byte order mark; it ends where an item has no end."""

    def __init__(self, stream: BufferedIOBase) -> None:
        self._stream, self._begun = stream, False
        self.read_of_item = 0

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size) if self.read_of_item <= LONGEST else b""
        self.read_of_item += len(data)
        begun, self._begun = self._begun, self._begun or bool(data)
        return data if begun else data.removeprefix(BOM)


def json_line(record: Any, *, errors: str = "backslashreplace", **layout: Any) -> bytes:
    """`record` as JSON in UTF-8, with a line feed; half a character becomes its escape.

    `layout` goes to `json.dumps`.
    """
    return json.dumps(record, ensure_ascii=False, **layout).encode("utf-8", errors) + b"\n"


def check_regular(path: Path) -> None:
    """Raise `BadData` where a named pipe or a device lies at `path`: it would be waited for without end."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return  # what is not there, or may not be looked at, is for whoever opens it to say
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise _not_regular(path)


def _not_regular(path: Path) -> BadData:
    return BadData(
        f"{path} is a named pipe or a device, not a file: remove it, or name another place"
    )


def open_regular(path: Path) -> BufferedReader:
    """A file that other processes write, open for reading, at once whatever lies there.

    Raises: BadData for a named pipe or a device; FileNotFoundError; IsADirectoryError.
    """
    check_regular(path)  # a device may act on being opened
    # What has come there meanwhile is not waited for either.
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise _not_regular(path)
    return file


def is_torn(tail: bytes, begins: bytes) -> bool:
    """Whether `tail` may be what a kill or a power cut left of a JSON line that `begins` so.

    >>> is_torn(b'{"key":"0a', b'{"key":"##","kind":"'), is_torn(b"my notes", b'{"key":"##","kind":"')
    (True, False)
    """
    written = tail.rstrip(b"\0")
    pairs = zip(written, begins, strict=False)
    return all(
        byte in b"0123456789abcdef" if wanted == HEX else byte == wanted
        for byte, wanted in pairs
    ) and _is_prefix(written)


def _is_prefix(data: bytes) -> bool:
    """Whether `data` is the beginning of one JSON value, or all of it."""
    try:
        # half a character at the end is left out
        text = codecs.getincrementaldecoder("utf-8")().decode(data)
        _, end = json.JSONDecoder().raw_decode(text)
    except json.JSONDecodeError as error:
        # What is missing is missed at the end. A string without an end is missed where it begins.
        return error.msg.startswith("Unterminated string") or error.pos >= len(text) - len(
            "\\uD83D"
        )
    except (ValueError, RecursionError):
        return False
    return end == len(text)


def whole_lines(
    fd: int, begins: bytes, refuse: Refuse, first: bytes = b""
) -> Iterator[tuple[int, bytes]]:
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
                try:
                    json.loads(line)
                except (ValueError, RecursionError):
                    return
                line += b"\n"  # noqa: PLW2901
            yield offset, line
            offset += len(line)


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
        self,
        path: Path,
        *,
        begins: bytes,
        refuse: Refuse,
        contents: str,
        busy: str,
        first: bytes = b"",
    ) -> None:
        self.path = path
        self._begins = begins
        self._first = first
        self._refuse = refuse
        self._contents = contents
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
        size = os.fstat(self._fd).st_size
        with self._kept_to(end):
            if size > end:  # a torn line
                os.ftruncate(self._fd, end)
            elif size < end:  # a line that lacks only its line feed
                write_all(self._fd, b"\n")
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
            raise CannotWrite(
                f"{self.path} takes no more {self._contents} ({why}): make room, then go on"
            ) from error

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

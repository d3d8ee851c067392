"""Data files as they come: plain or gzipped, JSON Lines or one JSON list, streamed with every row's place known.

In: a path. Out: lines or JSON values, one by one, each with the words that say where it stands. Packing and layout are
read off the bytes, never the file's name.

Files of our own appear whole or not at all (`write_whole`), and a disk that is full names the file (`writing`).
"""

from __future__ import annotations

import errno
import gzip
import json
import os
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.jsonlist import LONGEST, list_values, too_long, whole

GZIP = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"


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
def opened(path: str | Path, *, unpack: bool = True) -> Iterator[BufferedIOBase]:
    """The file's bytes, unpacked where it is gzip; faults of reading inside the block become our errors.

    Raises:
        MissingFile: there is no such file.
        BadData: it is a folder, cannot be read, or its gzip data is damaged.
    """
    try:
        with open(path, "rb") as raw:
            packed = unpack and raw.peek(2)[:2] == GZIP
            yield gzip.GzipFile(fileobj=raw) if packed else raw
    except FileNotFoundError:
        raise MissingFile(f"no file '{path}': check the path") from None
    except IsADirectoryError:
        raise BadData(f"'{path}' is a folder, not a file (an index goes with --index)") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadData(f"'{path}' is damaged gzip ({error}): fetch the file again") from None
    except OSError as error:
        raise BadData(f"'{path}' cannot be read: {error.strerror or error}") from None


def check_free(path: Path, *, overwrite: bool) -> None:
    """Raise `BadArgument` where something is at `path` already and must not be replaced."""
    if not overwrite and os.path.lexists(path):
        raise BadArgument(f"there is a file at {path} already: name another, or overwrite it (--overwrite)")


def put(temporary: Path, path: Path, *, overwrite: bool) -> None:
    """Give a finished file its name; without `overwrite` nothing is replaced, not even what has come there meanwhile.

    Raises `BadArgument` where something is there.
    """
    if not overwrite:
        try:
            os.link(temporary, path)  # in one step, where a check and a rename would be two
            return
        except FileExistsError:
            check_free(path, overwrite=False)
        except OSError:  # no hard links on this file system
            check_free(path, overwrite=False)
    os.replace(temporary, path)


def lines(path: str | Path) -> Iterator[TextLine]:
    """The lines that hold something, split at line feeds only (texts may hold other separators)."""
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
            if text.strip():
                yield TextLine(where, number, text.rstrip("\r\n"))


def raw_lines(stream: BufferedIOBase, path: str | Path) -> Iterator[tuple[int, bytes]]:
    """The lines of `stream` with their line feeds, counted from 1; `path` is for messages.

    Raises:
        BadData: a line longer than `LONGEST`, as soon as so much of it is read (a small file may unpack to one without
            end).
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


def write_whole(path: Path, pieces: Iterable[bytes], *, overwrite: bool = True) -> None:
    """`pieces` one after the other, in a file beside `path` that is synced and then takes its name.

    Raises `BadArgument` where something is at `path` and `overwrite` is not set.
    """
    check_free(path, overwrite=overwrite)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with writing(path), temporary.open("wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        put(temporary, path, overwrite=overwrite)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Name the file in the error of a full disk, which the system leaves out."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM or error.filename is not None:
            raise
        message = f"{error.strerror}; nothing of it is left: make room, or write it elsewhere"
        raise OSError(error.errno, message, str(target)) from error


_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def parsed(text: str, where: str) -> Any:
    """`text` as JSON. Raises `BadData`, naming the place, where it is none."""
    try:
        value = json.loads(text)
    except RecursionError:
        raise BadData(f"{where}: nested too deeply to be data") from None
    except json.JSONDecodeError as error:
        hint = "expected one JSON object a line, or one JSON list in the whole file"
        raise BadData(f"{where}: does not parse as JSON ({error.msg} at character {error.pos + 1}): {hint}") from None
    except ValueError as error:
        raise BadData(f"{where}: does not parse as JSON ({error})") from None
    return whole(value, text, where)

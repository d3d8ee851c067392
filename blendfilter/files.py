"""Data files as they come: plain or gzipped, JSON Lines or one JSON list, streamed with every row's place known.

In: a path. Out: lines or JSON values, one by one, each with the words that say where it stands. Packing and layout are
read off the bytes, never the file's name.

Files of our own appear whole or not at all (`write_whole`), and a disk that is full names the file (`writing`).
"""

from __future__ import annotations

import codecs
import errno
import gzip
import json
import os
import re
import threading
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any, NamedTuple

import ijson

from blendfilter.errors import BadArgument, BadData, MissingFile

GZIP = b"\x1f\x8b"
BOM = b"\xef\xbb\xbf"
LONGEST = 64 << 20
"""Characters of one value of a JSON list, and bytes of one line or document, once unpacked."""
_BLOCK = 1 << 16
_DEEPEST = 500
_ESCAPE = re.compile(
    r"\\u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<lone>\\u[dD][89a-fA-F]..(?!(?:\\(?:u.{0,3})?)?\Z))|\\.", re.DOTALL
)
"""Escapes of a JSON text; a lone surrogate at its end may be half of a pair that was cut off."""
_WHOLE_ESCAPES = re.compile(
    r"(?:[^\\]+|\\[^u]|\\u(?![dD][89abAB])....|\\u[dD][89abAB]..(?:\\u[dD][c-fC-F]..|(?=.{6})))*", re.DOTALL
)


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


def whole(value: Any, source: str, where: str) -> Any:
    """`value`, parsed from the JSON text `source`. Raises `BadData` where an escape in it is half a character."""
    if _half_character(source) is not None:
        raise BadData(f"{where}: holds half a character (a lone surrogate escape): fix or drop the row")
    return value


def _half_character(source: str) -> int | None:
    """Where a lone surrogate escape stands in a JSON text."""
    if "\\ud" not in source and "\\uD" not in source:
        return None
    return next((match.start() for match in _ESCAPE.finditer(source) if match["lone"]), None)


def too_long(what: str) -> str:
    """Why something larger than anything of its kind is refused: a small file may unpack to gigabytes."""
    return f"{what} is longer than {LONGEST >> 20} MiB: is it the right file? If so, break it up"


def list_values(stream: BufferedIOBase, name: str, *, inside: bool = False) -> Iterator[Any]:
    """The values of the JSON list in `stream`, with one value and one block in memory.

    `name` is the file's, for messages. With `inside` the list is part of something larger, so more may follow it.
    Whole numbers beyond 64 bits and `NaN` are refused.

    Raises:
        BadData: the list is cut off, does not parse (at which item), is followed by more, or is not UTF-8.
    """
    events = ijson.sendable_list()
    parser = ijson.basic_parse_coro(events, use_float=True)
    items, count, size, read = _ListItems(), 0, 0, 0
    for text in _blocks(stream, name):
        half, fault = _half_character(text), ""  # ijson's own parser reads half a character as a question mark
        try:
            if piece := text[:half].encode():  # nothing would mean the end
                parser.send(piece)
        except (ijson.JSONError, ValueError) as error:
            fault = str(error).partition("\n")[0]
        size, read = size + len(text), read + len(text)
        try:
            for value in items.of(events):
                count, size = count + 1, 0
                yield value
        except RecursionError:
            raise BadData(f"{name}, item {count + 1}: nested too deeply to be data") from None
        events.clear()
        if items.ended and inside:
            return
        if items.ended and fault:
            raise BadData(f"{name}: something follows the JSON list after item {count}: expected one list and no more")
        where = f"{name}, item {count + 1}" if items.open else f"{name}, after item {count}"
        if fault:
            raise BadData(f"{where}: does not parse as JSON ({fault})")
        if half is not None:
            whole(None, text[half:], f"{name}, item {count + 1}")
        if size > LONGEST:
            raise BadData(f"{where}: {too_long('the item')}")
    if not items.ended:
        raise BadData(
            f"{name}: the JSON list ends {'in' if items.open else 'after'} item {count + items.open}, after {read:,} "
            "characters, without being closed; the download looks cut off: fetch the file again"
        )


class _ListItems:
    """The items of a JSON list, put together from a parser's events."""

    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._keys: list[str] = []
        self.ended = False

    @property
    def open(self) -> bool:
        """Whether an item has begun and not ended."""
        return len(self._stack) > 1

    def of(self, events: list[tuple[str, Any]]) -> Iterator[Any]:
        """The items that `events` complete. Raises `RecursionError` for nesting that is too deep."""
        stack, keys = self._stack, self._keys
        for event, value in events:
            if event == "map_key":
                keys[-1] = value
                continue
            if event in ("start_map", "start_array"):
                if len(stack) == _DEEPEST:
                    raise RecursionError
                stack.append({} if event == "start_map" else [])
                keys.append("")
                continue
            if event in ("end_map", "end_array"):
                value = stack.pop()  # noqa: PLW2901
                keys.pop()
            if len(stack) > 1 and isinstance(stack[-1], dict):
                stack[-1][keys[-1]] = value
            elif len(stack) > 1:
                stack[-1].append(value)
            elif stack:
                yield value
            else:
                self.ended = True


def _blocks(stream: BufferedIOBase, name: str) -> Iterator[str]:
    """The text of `stream` in pieces that end in no escape, nor between the two of a pair of surrogates."""
    decoder, rest = codecs.getincrementaldecoder("utf-8-sig")(), ""
    read, data = 0, b" "
    while data:
        data = stream.read(_BLOCK)
        try:
            text = decoder.decode(data, final=not data)
        except UnicodeDecodeError:
            hint = "save the file as UTF-8, or fetch it again"
            raise BadData(f"{name}: not UTF-8 (somewhere after character {read:,}): {hint}") from None
        read, rest = read + len(text), rest + text
        whole_escapes = _WHOLE_ESCAPES.match(rest) if data and "\\" in rest[-12:] else None
        end = whole_escapes.end() if whole_escapes else len(rest)
        yield rest[:end]
        rest = rest[end:]

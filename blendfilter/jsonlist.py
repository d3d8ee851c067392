"""One JSON list read as a stream: the official data sets are single lists of up to hundreds of megabytes.

In: a stream of UTF-8 bytes that begins a list. Out: its values, one by one, with no more than one value and one block
in memory. A list that ends too soon is named as what it nearly always is: a download that was cut off.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from io import BufferedIOBase
from typing import Any, NoReturn

from blendfilter.errors import BadData

BLOCK = 1 << 20
"""Bytes read at a time, at the least."""
LONGEST = 64 << 20
"""Characters that one value of a list may have, and bytes of one line of a file, or of one document, once unpacked."""
_SPACE = re.compile(r"[ \t\n\r]*")
_REACH = 16
"""An error so near to the end of what was read (in characters) may be a number, `false` or an escape not yet whole."""

_SURROGATE = re.compile(r"\\u[dD]")


def too_long(what: str) -> str:
    """What is wrong with something that is larger than anything of its kind: a small file may unpack to gigabytes."""
    return f"{what} is longer than {LONGEST >> 20} MiB: is it the right file? If so, break it up"


def whole(value: Any, source: str, where: str) -> Any:
    """`value`, read from the JSON text `source`, unless an escape in it is half a character."""
    if _SURROGATE.search(source):
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise BadData(f"{where}: holds half a character (a lone surrogate escape): fix or drop the row") from None
    return value


def list_values(stream: BufferedIOBase, name: str, *, inside: bool = False) -> Iterator[Any]:
    """The values of the JSON list in `stream`; `name` is the file's, for messages.

    `inside`: the list is a part of something larger, so more may follow it.

    Raises:
        BadData: the list is cut off, does not parse (which item), is followed by more, or is not UTF-8.
    """
    window = _Window(stream, name)
    window.take("[")
    count = 0
    while not window.take("]"):
        if count and not window.take(","):
            window.fail(count, "a comma or the closing bracket is missing")
        count += 1
        yield window.value(count)
    if not inside and window.peek():
        raise BadData(f"{name}: something follows the JSON list after item {count}: expected one list and nothing else")


class _Window:
    """What has been read and not yet used of a stream of text."""

    def __init__(self, stream: BufferedIOBase, name: str) -> None:
        self._stream = stream
        self._name = name
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._json = json.JSONDecoder()
        self._text = ""
        self._at = 0
        self._used = 0  # characters dropped from the front so far
        self._ended = False

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            self._at = _SPACE.match(self._text, self._at).end()  # type: ignore[union-attr]  # it matches the empty string
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def take(self, character: str) -> bool:
        """Step over `character` if it comes next."""
        if self.peek() != character:
            return False
        self._at += 1
        return True

    def value(self, item: int) -> Any:
        """The next JSON value; reads on until it is whole."""
        self.peek()
        while True:
            try:
                value, end = self._json.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                open_string = error.msg.startswith("Unterminated string")
                if (open_string or error.pos >= len(self._text) - _REACH) and self._more(item):
                    continue
                cut = open_string or not set("]}") & set(self._text[error.pos :])
                self.fail(item, f"{error.msg} at character {self._used + error.pos + 1:,}", cut=cut)
            except RecursionError:
                raise BadData(f"{self._name}, item {item}: nested too deeply to be data") from None
            except ValueError as error:
                raise BadData(f"{self._name}, item {item}: does not parse as JSON ({error})") from None
            else:
                source, self._at = self._text[self._at : end], end
                return whole(value, source, f"{self._name}, item {item}")

    def fail(self, item: int, problem: str, *, cut: bool = False) -> NoReturn:
        """Raise `BadData` for `item`: cut off where the text ends there, ill-formed otherwise."""
        if cut or not self.peek():
            length = self._used + len(self._text)
            raise BadData(
                f"{self._name}: the JSON list ends in item {item}, after {length:,} characters, without being closed; "
                "the download looks cut off: fetch the file again"
            ) from None
        raise BadData(f"{self._name}, item {item}: does not parse as JSON ({problem})") from None

    def _more(self, item: int = 0) -> bool:
        """Read on, doubling what there is, so that one large value costs linear time; False at the end."""
        if self._ended:
            return False
        rest = self._text[self._at :]
        if len(rest) > LONGEST:
            raise BadData(f"{self._name}, item {item}: {too_long('the item')}")
        data = self._stream.read(min(max(BLOCK, len(rest)), LONGEST // 4))
        self._ended = not data
        try:
            new = self._decoder.decode(data, final=self._ended)
        except UnicodeDecodeError:
            read = self._used + len(self._text)
            hint = "save the file as UTF-8, or fetch it again"
            raise BadData(f"{self._name}: not UTF-8 (somewhere after character {read:,}): {hint}") from None
        if self._ended:
            return False
        self._used += self._at
        self._text, self._at = rest + new, 0
        return True

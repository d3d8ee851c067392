"""What a GGUF file says of itself at its start: that it is one, its architecture, the context it was trained on.

In: a path. Out: a `Header`, or one line that says what is wrong. Only the first entries are read, and every length in
them is checked against the file, since llama.cpp ends the process on some files that are not what they say.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from blendfilter.errors import BadData, MissingFile

MAGIC = b"GGUF"
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class Header(NamedTuple):
    """The start of a GGUF file; `context` is 0 where it does not say what context it was trained on."""

    architecture: str
    context: int


def read_header(path: Path) -> Header:
    """The header of the GGUF file at `path`.

    Raises:
        MissingFile: it is not there. BadData: a folder, empty, not a GGUF, cut off or damaged at its start.
    """
    if path.is_dir():
        raise BadData(f"{path} is a folder: name the GGUF file in it")
    try:
        with path.open("rb") as file:
            return _header(_Reader(file, path))
    except FileNotFoundError:
        raise MissingFile(f"no model file {path}: give the path of a GGUF file, or 'local' for SmolLM2-135M") from None
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror or error}") from None


def _header(start: _Reader) -> Header:
    if not start.size:
        raise BadData(f"{start.path} is empty: download it again")
    if start.take(min(4, start.size)) != MAGIC:
        raise BadData(f"{start.path} is no GGUF file (it does not start with 'GGUF'): convert the model to GGUF first")
    version = start.number("I")
    if version not in (2, 3):
        raise BadData(f"{start.path} is a GGUF of version {version & 0xFFFF or version >> 24}: 2 and 3 are read here")
    start.number("Q")  # how many tensors
    architecture, context = "", 0
    for _ in range(start.number("Q")):
        name, value = start.text(), start.value(start.number("I"))
        if name == "general.architecture" and isinstance(value, str):
            architecture = value
        elif name == f"{architecture}.context_length" and isinstance(value, int):
            context = value
        if architecture and context:
            break
    if not architecture:
        raise BadData(f"{start.path} is a GGUF file that names no architecture: it holds no language model")
    return Header(architecture, context)


class _Reader:
    """Numbers, texts and arrays off a file, never beyond its end."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.path = path
        self._file = file
        self.size = file.seek(0, 2)
        file.seek(0)

    def take(self, n: int) -> bytes:
        if n > self.size - self._file.tell():
            raise BadData(f"{self.path} is cut off or damaged: its header does not fit into the file")
        return self._file.read(n)

    def number(self, kind: str) -> Any:
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))[0]

    def text(self) -> str:
        return self.take(self.number("Q")).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """The next value; an array is only stepped over, and is None."""
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            inner, count = self.number("I"), self.number("Q")
            if inner in _NUMBERS:
                self.take(count * struct.calcsize(f"<{_NUMBERS[inner]}"))
            else:
                for _ in range(count):
                    self.value(inner)
            return None
        if kind not in _NUMBERS:
            raise BadData(f"{self.path} is damaged: its header holds a value of unknown type {kind}")
        return self.number(_NUMBERS[kind])

"""An index's passages on disk: JSON lines, and where each of them begins; read one by one, never all at once.

In: a stream of passages. Out: a folder's `passages.jsonl` and `offsets.npy`, read back as a sequence of `Passage`.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tokenize import TokenError
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from blendfilter.errors import BadArgument, BadData
from blendfilter.records import Passage

PASSAGES = "passages.jsonl"
OFFSETS = "offsets.npy"


def encode(passage: Passage) -> bytes:
    """One line of `passages.jsonl`. The score is left out: it belongs to a search, not to a corpus."""
    row: dict[str, Any] = {"id": passage.id, "title": passage.title, "text": passage.text}
    if passage.metadata:
        row["metadata"] = dict(passage.metadata)
    try:
        return json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
    except TypeError as error:
        raise BadData(f"passage '{passage.id}' has metadata that JSON cannot hold: {error}") from None


def check_array(path: Path) -> None:
    """Raise `ValueError` unless a file is a NumPy array of one dimension, of plain numbers, and as long as it says.

    To be called before `np.load`, which ends the process on an element type without a size, and for other damage
    raises what is no `ValueError`.
    """
    with open(path, "rb") as file:
        version = np.lib.format.read_magic(file)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{path.name} is an array of an unknown format")
        try:
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, kind = read(file)
        except (TokenError, SyntaxError) as error:
            raise ValueError(f"{path.name} has no head that can be read ({error})") from None
        begin = file.tell()
    if len(shape) != 1 or kind.kind not in "iuf" or path.stat().st_size - begin != shape[0] * kind.itemsize:
        raise ValueError(f"{path.name} is no list of numbers of the length that it states")


class Lines(Sequence[Passage]):
    """Passages that are the lines of a file, memory-mapped and read one by one; threads may share it.

    `offsets` say where each line begins, and at the end where the last one ends. Subclasses read a line.
    """

    def __init__(self, file: Path, offsets: NDArray[np.int64]) -> None:
        size = file.stat().st_size
        self._bytes = np.asarray(np.memmap(file, dtype=np.uint8, mode="r")) if size else np.empty(0, np.uint8)
        self.offsets = offsets

    @abstractmethod
    def read(self, at: int, line: bytes) -> Passage:
        """The passage at that position. Raises `BadData` where the line is none."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, position: int) -> Passage: ...
    @overload
    def __getitem__(self, position: slice) -> list[Passage]: ...
    def __getitem__(self, position: int | slice) -> Passage | list[Passage]:
        if isinstance(position, slice):
            return [self[i] for i in range(*position.indices(len(self)))]
        at = range(len(self))[position]  # negative positions and IndexError as of any sequence
        return self.read(at, self._bytes[self.offsets[at] : self.offsets[at + 1]].tobytes())


class StoredPassages(Lines):
    """The passages of an index folder by position."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        strange = BadData(f"{folder / OFFSETS} does not fit {PASSAGES}: build the index again")
        try:
            check_array(folder / OFFSETS)
        except ValueError:
            raise strange from None
        super().__init__(folder / PASSAGES, np.asarray(np.load(folder / OFFSETS, mmap_mode="r")))
        offsets = self.offsets
        sound = len(offsets) > 0 and np.issubdtype(offsets.dtype, np.integer)
        sound = sound and bool(offsets[0] == 0 and offsets[-1] == len(self._bytes))
        if not (sound and bool(np.all(offsets[1:] >= offsets[:-1]))):
            raise strange

    def read(self, at: int, line: bytes) -> Passage:
        """A line as `encode` writes it."""
        try:
            passage = Passage(**json.loads(line.decode("utf-8", "surrogatepass")))
            if not all(isinstance(text, str) for text in (passage.id, passage.title, passage.text)):
                raise TypeError("a text is none")
            return passage
        except (ValueError, TypeError, AttributeError, RecursionError):
            raise BadData(
                f"the index at {self._folder} is damaged: passage {at + 1:,} of {PASSAGES} is none; build it again"
            ) from None


class Ledger:
    """Keeps watch over a stream of passages: their number, a hash over all of them in order, and no id twice.

    Ids are remembered by an eight-byte hash each, so that millions of them fit.
    """

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._ids = array("q")

    def add(self, passage: Passage) -> bytes:
        """Take note of `passage`; returns its encoded line. Raises `BadArgument` where it is no `Passage`."""
        if not isinstance(passage, Passage):
            what = type(passage).__name__
            raise BadArgument(f"passage {len(self._ids) + 1} of the corpus is a {what}, not a Passage(id, title, text)")
        line = encode(passage)
        self._digest.update(line)
        self._ids.append(hash(passage.id))
        return line

    @property
    def sha256(self) -> str:
        """Over ids, titles, texts and metadata in corpus order, however the corpus was packed."""
        return self._digest.hexdigest()

    def check_ids(self, passages: Sequence[Passage]) -> None:
        """Raise `BadData` naming the first id that occurs twice, and where."""
        hashes, counts = np.unique(np.asarray(self._ids, dtype=np.int64), return_counts=True)
        suspects = set(hashes[counts > 1].tolist())
        first: dict[str, int] = {}
        for position in (at for at, value in enumerate(self._ids) if value in suspects) if suspects else ():
            name = passages[position].id
            if name in first:
                raise BadData(
                    f"passage id '{name}' occurs twice in the corpus: passages {first[name] + 1} and {position + 1}; "
                    "give every passage an id of its own"
                )
            first[name] = position

    def __len__(self) -> int:
        return len(self._ids)


def keep(passages: Iterable[Passage], ledger: Ledger, folder: Path | None) -> Iterator[Passage]:
    """Pass a stream through, noting each passage in `ledger` and, where there is a `folder`, writing it there."""
    if folder is None:
        for passage in passages:
            ledger.add(passage)
            yield passage
        return
    offsets = array("q", [0])
    with open(folder / PASSAGES, "wb") as file:
        for passage in passages:
            line = ledger.add(passage)
            file.write(line)
            offsets.append(offsets[-1] + len(line))
            yield passage
    np.save(folder / OFFSETS, np.asarray(offsets, dtype=np.int64))

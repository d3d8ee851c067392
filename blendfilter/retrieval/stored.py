"""Indexes that lie in a folder: their passages on disk, gathered from a corpus and read one by one, and their manifest.

`passages.jsonl` has a passage a line, `offsets.npy` where each line begins and the last one ends.
"""

from __future__ import annotations

import hashlib
import json
import os
from abc import abstractmethod
from array import array
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np

from blendfilter.errors import BadArgument, BadData, EmptyData
from blendfilter.records import Passage
from blendfilter.retrieval.base import ProgressCallback, Retriever, SearchWarnings, silent
from blendfilter.retrieval.corpus import Corpus, IdCheck, passages_of
from blendfilter.retrieval.manifest import (
    HASHED_WHOLE,
    MANIFEST,
    WHOLE,
    CorpusInfo,
    Manifest,
    check_content,
    opening,
    read_manifest,
)

PASSAGES = "passages.jsonl"
OFFSETS = "offsets.npy"
READING = "reading passages"
_OFTEN = 1000


class Stored(Retriever):
    """A retriever over the passages of a folder (or of memory, where `path` is None).

    `limit` says how long a query its engine reads, for the warning of those that were cut.
    """

    def __init__(self, manifest: Manifest, passages: Sequence[Passage], path: Path | None, limit: str = "") -> None:
        if path and len(passages) != manifest.passages:
            count = f"{len(passages):,} passages where its manifest says {manifest.passages:,}"
            raise BadData(f"the index at {path} is damaged: it holds {count}; build it again")
        self.manifest = manifest
        self.passages = passages
        self.path = path
        self.fingerprint = manifest.fingerprint
        self._warnings = SearchWarnings(len(passages), limit)

    def info(self) -> dict[str, Any]:
        """Kind, fingerprint, number of passages, corpus, settings, and the folder where there is one."""
        fields = self.manifest.model_dump(include={"kind", "fingerprint", "passages", "corpus", "settings"})
        return fields | ({"path": str(self.path)} if self.path else {})

    def __reduce_ex__(self, protocol: Any) -> Any:
        # In a saved program an index that lies in a folder is that folder; one in memory goes along whole.
        if self.path is not None and (self.path / MANIFEST).is_file():
            return _opened_again, (type(self), str(self.path.resolve()), self.fingerprint)
        if hasattr(self, "encoder"):
            raise BadArgument(
                f"{self!r} holds its encoder in memory and cannot be saved: build it into a folder (out='DIR'), which "
                "a saved program names"
            )
        return super().__reduce_ex__(protocol)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} passages, fingerprint {self.fingerprint}>"

    def __len__(self) -> int:
        return len(self.passages)


def _opened_again(kind: Any, path: str, fingerprint: str) -> Stored:
    """The index that a pickle names. Raises: as `open` does; BadData where another one lies there by now."""
    index: Stored = kind.open(path)
    if index.fingerprint != fingerprint:
        raise BadData(
            f"the index at {path} is another one ({index.fingerprint}) than when the program was saved ({fingerprint}):"
            " put that one back, or save the program again"
        )
    return index


def manifest_of(
    folder: str | os.PathLike[str], kind: str, made_of: Callable[[Manifest], str] | None = None
) -> Manifest:
    """The manifest of an index of that kind, its files as they were written (`file_hash`: a small one to the byte).

    `made_of` computes the fingerprint that belongs to a manifest. Raises as `read_manifest` does, and `BadData` for
    another kind, for a file or a manifest that was changed.
    """
    manifest = read_manifest(folder)
    if manifest.kind != kind:
        raise BadData(f"the index at {folder} is of kind '{manifest.kind}', not '{kind}': use open_index")
    if made_of is not None:
        with opening(folder):
            check_fingerprint(folder, manifest, made_of(manifest))
    missing = {PASSAGES, OFFSETS} - manifest.files.keys()
    if missing:
        raise BadData(f"the index at {folder} is damaged: its manifest does not list {min(missing)}; build it again")
    # a corpus' hash is over the very bytes of this file, so that it was there before manifests had hashes of files
    whole = manifest.files[PASSAGES] <= HASHED_WHOLE
    check_content(Path(folder), manifest, {PASSAGES: f"{WHOLE}:{manifest.corpus.sha256}"} if whole else {})
    return manifest


def check_fingerprint(folder: str | os.PathLike[str], manifest: Manifest, fingerprint: str) -> None:
    """Raise `BadData` where `fingerprint`, computed from what an index holds, is not the one that it states."""
    if fingerprint != manifest.fingerprint:
        raise BadData(
            f"the index at {folder} is damaged or was edited: it states the fingerprint {manifest.fingerprint}, and "
            f"what it holds has {fingerprint}; build it again"
        )


# --- passages on disk -----------------------------------------------------------------------------------------------


class PassageLines(Sequence[Passage]):
    """Passages that are the lines of a file, memory-mapped and read one by one; threads may share it.

    `offsets` say where each line begins, and at the end where the last one ends. Subclasses read a line.
    """

    def __init__(self, file: Path, offsets: np.typing.NDArray[np.int64]) -> None:
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


def line_offsets(file: Path) -> np.typing.NDArray[np.int64]:
    """Where each line of a file begins, and where the last one ends."""
    offsets = array("q", [0])
    with open(file, "rb") as stream:
        for line in stream:
            offsets.append(offsets[-1] + len(line))
    return np.frombuffer(offsets, dtype=np.int64)


class StoredPassages(PassageLines):
    """The passages of an index folder by position."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        offsets = np.asarray(np.load(folder / OFFSETS, mmap_mode="r"))
        super().__init__(folder / PASSAGES, offsets)
        if offsets[0] or offsets[-1] != len(self._bytes) or bool(np.any(offsets[1:] < offsets[:-1])):
            raise BadData(f"{folder / OFFSETS} does not fit {PASSAGES}: build the index again")

    def read(self, at: int, line: bytes) -> Passage:
        """A line as `_encoded` writes it."""
        try:
            return Passage(**json.loads(line.decode("utf-8", "surrogatepass")))
        except (ValueError, TypeError, RecursionError):
            raise BadData(
                f"the index at {self._folder} is damaged: passage {at + 1:,} of {PASSAGES} is none; build it again"
            ) from None


class GatheredCorpus(NamedTuple):
    passages: Sequence[Passage]
    corpus: CorpusInfo


def gather(
    corpus: Corpus,
    folder: Path | None,
    progress: ProgressCallback = silent,
    visit: Callable[[Passage], object] | None = None,
) -> GatheredCorpus:
    """Read `corpus` through: passages go to `folder` one by one (or stay in memory), and `visit` is called with each.

    The corpus' hash is over ids, titles, texts and metadata in order, however the corpus was packed. Raises as
    `passages_of`, `EmptyData` where there are none, `BadData` for an id that occurs twice or metadata that JSON cannot
    hold.
    """
    path = Path(corpus) if isinstance(corpus, (str, os.PathLike)) else None
    name = str(getattr(corpus, "name", "")) if path is None else path.name or path.absolute().name
    digest, ids, kept = hashlib.sha256(), IdCheck(), list[Passage]()
    offsets = array("q", [0])
    with open(folder / PASSAGES, "wb") if folder else nullcontext() as file:
        for passage in passages_of(corpus):
            line = _encoded(passage)
            digest.update(line)
            ids.add(passage.id)
            if file:
                file.write(line)
                offsets.append(offsets[-1] + len(line))
            else:
                kept.append(passage.scored(None))
            if visit:
                visit(passage)
            if len(ids) % _OFTEN == 0:
                progress(READING, len(ids))
    progress(READING, len(ids), len(ids))
    if not len(ids):
        raise EmptyData(f"{corpus_name(name)} has no passages: there is nothing to index")
    if folder:
        np.save(folder / OFFSETS, np.asarray(offsets, dtype=np.int64))
    passages = StoredPassages(folder) if folder else kept
    repeated = ids.repeated(lambda: ((number, passage.id) for number, passage in enumerate(passages, start=1)))
    if repeated:
        first, other, twice = repeated
        raise BadData(
            f"passage id '{twice}' occurs twice in the corpus: passages {first} and {other}; every id must differ"
        )
    return GatheredCorpus(passages, CorpusInfo(name=name, sha256=digest.hexdigest()))


def _encoded(passage: Passage) -> bytes:
    """One line of `passages.jsonl`. The score is left out: it belongs to a search, not to a corpus."""
    row: dict[str, Any] = {"id": passage.id, "title": passage.title, "text": passage.text}
    if passage.metadata:
        row["metadata"] = dict(passage.metadata)
    try:
        return json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
    except TypeError as error:
        raise BadData(f"passage '{passage.id}' has metadata that JSON cannot hold: {error}") from None


def corpus_name(name: str) -> str:
    """How messages call a corpus."""
    return f"the corpus {name}" if name else "the corpus"

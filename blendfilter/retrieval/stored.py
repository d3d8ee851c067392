"""Indexes that lie in a folder: their passages on disk, gathered from a corpus and read one by one, and their manifest.

`passages.jsonl` has a passage a line, `offsets.npy` where each line begins and the last one ends.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import warnings
from abc import abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self, TypeVar, overload

import numpy as np

from blendfilter.errors import BadArgument, BadData, BlendFilterError, EmptyData
from blendfilter.files import path_of
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
    stamp,
    updating,
    versions_of,
    write_manifest,
)

PASSAGES = "passages.jsonl"
OFFSETS = "offsets.npy"
READING = "reading passages"
_OFTEN = 1000
_TRIES = 20  # to open a folder in which one index takes the place of another meanwhile
_DRIFT = 2  # times as many passages as centroids were trained for: from there on an update says so

_ADDED = "added.jsonl"
_ID = b'{"id": "'  # how a line begins
_DECODER = json.JSONDecoder()
_COPIED = 2**22  # bytes at a time

S = TypeVar("S", bound="Stored")


class Stored(Retriever):
    """A retriever over the passages of a folder (or of memory, where `path` is None).

    `limit` says how long a query its engine reads, for the warning of those that were cut.
    """

    stamp: tuple[int, ...] = ()
    """Of the folder when it was opened."""

    def __init__(
        self, manifest: Manifest, passages: Sequence[Passage], path: Path | None, limit: str = ""
    ) -> None:
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
        fields = self.manifest.model_dump(
            include={"kind", "fingerprint", "passages", "corpus", "settings"}
        )
        return fields | ({"path": str(self.path)} if self.path else {})

    def outdated(self) -> bool:
        """As `Retriever.outdated`. Raises as `read_manifest` does."""
        now = stamp(self.path) if self.path else ()
        if self.path is None or not self.stamp or now == self.stamp:
            return False
        if read_manifest(self.path).fingerprint != self.manifest.fingerprint:
            return True
        self.stamp = now
        return False

    def fresh(self) -> Self:
        """As `Retriever.fresh`."""
        return self._open_again(self.path) if self.path and self.outdated() else self

    def _open_again(self, path: Path) -> Self:
        """The index that lies there by now, with this one's settings, encoder and all. By default it is this one."""
        return self

    def update(
        self,
        add: Corpus | None = None,
        delete: Iterable[str] = (),
        *,
        replace: bool = False,
        progress: ProgressCallback = silent,
    ) -> Self:
        """Delete passages by id, add those of a corpus behind the others, and return the index that lies in its folder
        then, which has another fingerprint. This one answers as before.

        The new index is made beside the old one and takes its place in one step. A passage that is there already, the
        same in all its fields, stays where it is; one with a known id and another content is refused, or takes the old
        one's id (`replace`).

        Raises:
            BadArgument: an id to delete is not there, nothing would be left, the index lies in no folder, or another
                process is changing it. IndexChanged: another one lies in the folder by now.
            BadData: an id twice, or one that is there with another content.
        """
        path = self.path
        passages = self.passages
        if (
            path is None
            or not isinstance(passages, StoredPassages)
            or not (path / MANIFEST).is_file()
        ):
            raise BadArgument(
                f"{self!r} cannot be updated: passages are added to indexes that lie in a folder and were built here; "
                "build it again from all passages (out='DIR')"
            )
        with suppress(_NothingChanges), updating(path, self.manifest.fingerprint) as folder:
            new = _updated_passages(self, passages, folder, add, delete, replace, progress)
            settings, packages = self._write_update(folder, new, progress)
            built = self.manifest.built_passages or self.manifest.passages
            manifest = self.manifest.model_copy(
                update={
                    "passages": len(new.passages),
                    "corpus": new.corpus,
                    "settings": settings,
                    "versions": versions_of(*packages),
                    "built_passages": built,
                }
            )
            fingerprint = self._fingerprint_of(manifest, folder)
            write_manifest(folder, manifest.model_copy(update={"fingerprint": fingerprint}))
            if self._trained() and len(new.passages) > _DRIFT * built:
                warnings.warn(
                    f"the index at {path} holds {len(new.passages):,} passages, and its centroids were trained for "
                    f"{built:,}: it finds less than one that is built from all of them",
                    stacklevel=2,
                )
        return self.fresh()

    def _trained(self) -> bool:
        """Whether it divides or compresses passages by centroids, which an update leaves as they are."""
        return False

    def _write_update(
        self, folder: Path, new: UpdatedPassages, progress: ProgressCallback
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Write all but the passages and the manifest of the index over `new` into `folder`.

        Returns its settings, and the packages whose versions count.
        """
        raise NotImplementedError

    def _fingerprint_of(self, manifest: Manifest, folder: Path) -> str:
        """The fingerprint that belongs to a manifest, and to an index in `folder` that lacks nothing else."""
        raise NotImplementedError

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


def opened_whole(folder: str | os.PathLike[str], read: Callable[[], S]) -> S:
    """The index that `read` opens in `folder`; read again where another one took its place while files were opened."""
    for left in reversed(range(_TRIES)):
        before = stamp(folder)
        try:
            index = read()
        except (BlendFilterError, OSError):
            if stamp(folder) == before or not left:
                raise
            continue
        if stamp(folder) == before:
            index.stamp = before
            return index
    raise BadData(
        f"the index at {folder} changes faster than it can be opened: try again when it is left alone"
    )


def manifest_of(
    folder: str | os.PathLike[str], kind: str, made_of: Callable[[Manifest], str] | None = None
) -> Manifest:
    """The manifest of an index of that kind, its files as they were written (`file_hash`: a small one to the byte).

    `made_of` computes the fingerprint that belongs to a manifest. Raises as `read_manifest` does, and `BadData` for
    another kind, for a file or a manifest that was changed.
    """
    manifest = read_manifest(folder)
    if manifest.kind != kind:
        raise BadData(
            f"the index at {folder} is of kind '{manifest.kind}', not '{kind}': use open_index"
        )
    if made_of is not None:
        with opening(folder):
            check_fingerprint(folder, manifest, made_of(manifest))
    missing = {PASSAGES, OFFSETS} - manifest.files.keys()
    if missing:
        raise BadData(
            f"the index at {folder} is damaged: its manifest does not list {min(missing)}; build it again"
        )
    # a corpus' hash is over the very bytes of this file, so that it was there before manifests had hashes of files
    whole = manifest.files[PASSAGES] <= HASHED_WHOLE
    check_content(
        path_of(folder), manifest, {PASSAGES: f"{WHOLE}:{manifest.corpus.sha256}"} if whole else {}
    )
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
        self._bytes = (
            np.asarray(np.memmap(file, dtype=np.uint8, mode="r")) if size else np.empty(0, np.uint8)
        )
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
        return self.read(at, self.line(at))

    def line(self, at: int) -> bytes:
        """The line at that position, as it lies in the file."""
        return self._bytes[self.offsets[at] : self.offsets[at + 1]].tobytes()


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
        if (
            offsets[0]
            or offsets[-1] != len(self._bytes)
            or bool(np.any(offsets[1:] < offsets[:-1]))
        ):
            raise BadData(f"{folder / OFFSETS} does not fit {PASSAGES}: build the index again")

    def ids(self) -> Iterator[str]:
        """Each passage's id, in order; quicker than reading whole passages."""
        for at in range(len(self)):
            line = self.line(at)
            if line.startswith(_ID):
                yield str(
                    _DECODER.raw_decode(line.decode("utf-8", "surrogatepass"), len(_ID) - 1)[0]
                )
            else:
                yield self.read(at, line).id

    def blocks(self, positions: np.typing.NDArray[np.int64]) -> Iterator[Any]:
        """The lines at ascending positions, as bytes of the file that lie side by side in it, a few megabytes each."""
        for run in np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1):
            if len(run):
                start, end = int(self.offsets[run[0]]), int(self.offsets[run[-1] + 1])
                yield from (
                    self._bytes[at : min(at + _COPIED, end)] for at in range(start, end, _COPIED)
                )

    def since(self, start: int) -> Self:
        """Those from that position on."""
        part = copy.copy(self)
        part.offsets = self.offsets[start:]
        return part

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
    path = path_of(corpus) if isinstance(corpus, (str, os.PathLike)) else None
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
    repeated = ids.repeated(
        lambda: ((number, passage.id) for number, passage in enumerate(passages, start=1))
    )
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
        raise BadData(
            f"passage '{passage.id}' has metadata that JSON cannot hold: {error}"
        ) from None


# --- updates ----------------------------------------------------------------------------------------------------------


class UpdatedPassages(NamedTuple):
    """The passages of an update: those of the old index at `kept` (ascending), then the `added` new ones."""

    passages: StoredPassages
    corpus: CorpusInfo
    kept: np.typing.NDArray[np.int64]
    added: int
    deleted: int
    """Old ones that are not kept, replaced ones among them."""

    @property
    def new(self) -> StoredPassages:
        """Those that were added."""
        return self.passages.since(len(self.kept))


class _NothingChanges(Exception):
    """Ends an update that would leave the index as it is."""


class _Positions:
    """Where in an index an id stands; eight bytes of hash an id, and eight for its place."""

    def __init__(self, passages: StoredPassages) -> None:
        self._passages = passages
        hashes = np.fromiter(map(hash, passages.ids()), dtype=np.int64, count=len(passages))
        self._order = np.argsort(hashes, kind="stable")
        self._hashes = hashes[self._order]

    def find(self, name: str) -> int | None:
        """The position of that id; None where it is not there."""
        wanted = hash(name)
        for at in range(int(np.searchsorted(self._hashes, wanted)), len(self._hashes)):
            if self._hashes[at] != wanted:
                return None
            if self._passages[position := int(self._order[at])].id == name:
                return position
        return None

    def of(self, names: Iterable[str], path: Path) -> set[int]:
        """The positions of those ids. Raises `BadArgument` for ids that are not there."""
        if isinstance(names, str):
            raise BadArgument("delete takes a list of ids, got one string: put it in a list")
        names = list(names) if isinstance(names, Iterable) else [names]
        if wrong := [name for name in names if not isinstance(name, str)]:
            raise BadArgument(
                f"delete takes a list of ids, which are strings, got {wrong[0]!r:.60}"
            )
        found = {name: self.find(name) for name in names}
        if missing := [name for name, at in found.items() if at is None]:
            more = f" and {len(missing) - 3:,} more" if len(missing) > 3 else ""
            ids = ", ".join(f"{name[:60]!r}" for name in missing[:3])
            raise BadArgument(
                f"no passage {ids}{more} in the index at {path}: nothing was deleted or added"
            )
        return {at for at in found.values() if at is not None}


def _updated_passages(
    index: Stored,
    old: StoredPassages,
    folder: Path,
    add: Corpus | None,
    delete: Iterable[str],
    replace: bool,
    progress: ProgressCallback,
) -> UpdatedPassages:
    """Write the passages of an update into `folder`. Raises as `Stored.update`, and `_NothingChanges`."""
    path = index.path or folder
    where = _Positions(old)
    gone = where.of(delete, path)
    with open(folder / _ADDED, "w+b") as file:
        lengths = array(
            "q",
            () if add is None else _write_new(add, file, old, where, gone, path, replace, progress),
        )
        if not lengths and not gone:
            raise _NothingChanges
        kept = np.delete(np.arange(len(old), dtype=np.int64), sorted(gone))
        if not len(kept) and not lengths:
            raise BadArgument(
                f"that would delete all {len(old):,} passages of {path}: remove the folder instead"
            )
        digest = hashlib.sha256()
        file.seek(0)
        with open(folder / PASSAGES, "wb") as out:
            for block in chain(old.blocks(kept), iter(lambda: file.read(_COPIED), b"")):
                out.write(block)
                digest.update(block)
    (folder / _ADDED).unlink()
    sizes = np.concatenate([np.diff(old.offsets)[kept], np.frombuffer(lengths, dtype=np.int64)])
    np.save(folder / OFFSETS, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
    corpus = index.manifest.corpus.model_copy(update={"sha256": digest.hexdigest()})
    return UpdatedPassages(StoredPassages(folder), corpus, kept, len(lengths), len(gone))


def _write_new(
    add: Corpus,
    file: BinaryIO,
    old: StoredPassages,
    where: _Positions,
    gone: set[int],
    path: Path,
    replace: bool,
    progress: ProgressCallback,
) -> Iterator[int]:
    """Write those of `add` that are not in the index as they are, and yield the bytes of each; `gone` takes in the
    positions of those that they replace."""
    ids, known = IdCheck(), 0
    for passage in passages_of(add):
        line, at = _encoded(passage), where.find(passage.id)
        ids.add(passage.id)
        if len(ids) % _OFTEN == 0:
            progress(READING, len(ids))
        if at is not None and at not in gone:
            if old.line(at) == line:
                known += 1
                continue
            if not replace:
                raise BadData(
                    f"passage id '{passage.id}' is in the index at {path} already, with another title, text or "
                    "metadata: give it an id of its own, or replace the old one (--replace)"
                )
            gone.add(at)
        file.write(line)
        yield len(line)
    progress(READING, len(ids), len(ids))
    if not len(ids):
        raise EmptyData("there are no passages to add: is it the right file?")
    if repeated := ids.repeated(lambda: enumerate(_ids_in(file), start=1)):
        raise BadData(
            f"passage id '{repeated[2]}' occurs twice among the passages to add: every id must differ"
        )
    if known:
        warnings.warn(
            f"{known:,} passages are in the index already and stay as they are", stacklevel=4
        )


def _ids_in(file: BinaryIO) -> Iterator[str]:
    file.seek(0)
    for line in file:
        yield json.loads(line.decode("utf-8", "surrogatepass"))["id"]


def corpus_name(name: str) -> str:
    """How messages call a corpus."""
    return f"the corpus {name}" if name else "the corpus"

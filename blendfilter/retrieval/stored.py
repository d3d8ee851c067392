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
from io import BytesIO
from itertools import accumulate, chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, overload

import numpy as np

from blendfilter.errors import BadArgument, BadData, EmptyData
from blendfilter.files import AnyPath, path_of
from blendfilter.records import Passage
from blendfilter.retrieval.base import ProgressCallback, Retriever, SearchWarnings, silent
from blendfilter.retrieval.corpus import Corpus, IdCheck, passages_of
from blendfilter.retrieval.manifest import (
    MANIFEST,
    CorpusInfo,
    Manifest,
    Settings,
    check_content,
    opening,
    read_manifest,
    settled,
    stamp,
    updating,
    versions_of,
    write_manifest,
)

PASSAGES = "passages.jsonl"
OFFSETS = "offsets.npy"
READING = "reading passages"
OFTEN = 1000
"""Passages between two reports of progress."""
_DRIFT = (
    2  # times as many passages as centroids were trained for: from there on an update says so
)

_ADDED = "added.jsonl"
_ID = '{"id": "'  # how a line begins
_DECODER = json.JSONDecoder()
Numbers = np.typing.NDArray[np.integer[Any]]


class Stored(Retriever):
    """A retriever over the passages of a folder (or of memory, where `path` is None).

    `limit` says how long a query its engine reads, for the warning about queries that were cut.
    """

    packages: ClassVar[tuple[str, ...]] = ()
    """Packages whose versions the manifest records."""
    stamp: tuple[int, ...] = ()
    """The folder's, when it was opened."""

    def __init__(
        self, manifest: Manifest, passages: PassageLines, path: Path | None, limit: str = ""
    ) -> None:
        if path and len(passages) != manifest.passages:
            count = f"{len(passages):,} passages where its manifest says {manifest.passages:,}"
            raise BadData(f"the index at {path} is damaged: it holds {count}; build it again")
        self.manifest = manifest
        self.passages = passages
        self.path = path
        self.fingerprint = manifest.fingerprint
        self._warnings = SearchWarnings(len(passages), limit)

    def info(self) -> Settings:
        """Kind, fingerprint, number of passages, corpus, settings, and the folder where there is one."""
        fields = self.manifest.model_dump(
            include={"kind", "fingerprint", "passages", "corpus", "settings"}
        )
        return fields | ({"path": str(self.path)} if self.path else {})

    # --- what each engine says of its own ---

    @classmethod
    def _read(cls, folder: Path, manifest: Manifest, **how: Any) -> Self:
        """The index in a folder whose manifest and files were checked."""
        raise NotImplementedError

    @classmethod
    def _fingerprint(cls, manifest: Manifest, folder: Path | None) -> str:
        """The fingerprint that belongs to a manifest, and to an index in `folder` that lacks nothing else."""
        raise NotImplementedError

    def _how(self) -> Settings:
        """What `_read` wants besides, to open the folder's next index as this one was opened."""
        return {}

    def _is_trained(self) -> bool:
        """Whether it divides or compresses passages by centroids, which an update leaves as they are."""
        return False

    def _write_update(
        self, folder: Path, new: UpdatedPassages, progress: ProgressCallback
    ) -> Settings:
        """Write all but the passages and the manifest of the index over `new` into `folder`. Returns its settings."""
        raise NotImplementedError

    # --- what all of them share ---

    @classmethod
    def _open(cls, folder: AnyPath, **how: Any) -> Self:
        """The index in `folder`, whole."""
        path = path_of(folder)
        index, seen = settled(path, lambda: cls._read(path, cls._checked_manifest(path), **how))
        index.stamp = seen
        return index

    @classmethod
    def _checked_manifest(cls, folder: Path) -> Manifest:
        """The manifest of an index of this kind, its files as they were written (`file_hash`: a small one to the byte).

        Raises as `read_manifest` does, and `BadData` for another kind, and for a file or a manifest that was changed.
        """
        manifest = read_manifest(folder)
        if manifest.kind != cls.kind:
            raise BadData(
                f"the index at {folder} is of kind '{manifest.kind}', not '{cls.kind}': use open_index"
            )
        if missing := {PASSAGES, OFFSETS} - manifest.files.keys():
            raise BadData(
                f"the index at {folder} is damaged: its manifest does not list {min(missing)}; build it again"
            )
        check_content(folder, manifest)
        with opening(folder):
            check_fingerprint(folder, manifest, cls._fingerprint(manifest, folder))
        return manifest

    @classmethod
    def _described(
        cls, gathered: GatheredCorpus, settings: Settings, folder: Path | None
    ) -> Manifest:
        """The manifest of a new index, written into its folder where there is one."""
        draft = Manifest(
            kind=cls.kind,
            fingerprint="0" * 16,
            passages=len(gathered.passages),
            corpus=gathered.corpus,
        )
        return cls._sealed(draft, settings, folder)

    @classmethod
    def _sealed(cls, draft: Manifest, settings: Settings, folder: Path | None) -> Manifest:
        more = {"settings": settings, "versions": versions_of(*cls.packages)}
        manifest = draft.model_copy(update=more)
        fingerprint = cls._fingerprint(manifest, folder)
        manifest = manifest.model_copy(update={"fingerprint": fingerprint})
        if folder:
            write_manifest(folder, manifest)
        return manifest

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
        return self._open(self.path, **self._how()) if self.path and self.outdated() else self

    def update(
        self,
        add: Corpus | None = None,
        delete: Iterable[str] = (),
        *,
        replace: bool = False,
        progress: ProgressCallback = silent,
    ) -> Self:
        """Delete passages by id, append those of a corpus, and return the index that lies in the folder then, which has
        another fingerprint. This one answers as before.

        The new index is made beside the old one and takes its place in one step. A passage that is there already, the
        same in all its fields, stays where it is; one with a known id and another content is refused, or takes the old
        one's id (`replace`).

        Raises:
            BadArgument: an id to delete is not there, nothing would be left, the index lies in no folder, or another
                process is changing it. IndexChanged: another one lies in the folder by now.
            BadData: an id twice, or one that is there with another content.
        """
        path, passages = self.path, self.passages
        built_here = path is not None and (path / MANIFEST).is_file()
        if path is None or not built_here or not isinstance(passages, StoredPassages):
            raise BadArgument(
                f"{self!r} cannot be updated: passages are added to indexes that lie in a folder and were built here; "
                "build it again from all passages (out='DIR')"
            )
        with suppress(_NothingChanges), updating(path, self.manifest.fingerprint) as folder:
            new = _updated_passages(passages, path, folder, add, delete, replace, progress)
            settings = self._write_update(folder, new, progress)
            built = self.manifest.built_passages or self.manifest.passages
            changes = {
                "passages": len(new.passages),
                "corpus": self.manifest.corpus.model_copy(update={"sha256": new.sha256}),
                "built_passages": built,
            }
            self._sealed(self.manifest.model_copy(update=changes), settings, folder)
            if self._is_trained() and len(new.passages) > _DRIFT * built:
                warnings.warn(
                    f"the index at {path} holds {len(new.passages):,} passages, and its centroids were trained for "
                    f"{built:,}: it finds less than one that is built from all of them",
                    stacklevel=2,
                )
        return self.fresh()

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
        return (
            f"<{type(self).__name__}: {len(self):,} passages, fingerprint {self.fingerprint}>"
        )

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


def check_fingerprint(folder: AnyPath, manifest: Manifest, fingerprint: str) -> None:
    """Raise `BadData` where `fingerprint`, computed from what an index holds, is not the one that it states."""
    if fingerprint != manifest.fingerprint:
        raise BadData(
            f"the index at {folder} is damaged or was edited: it states the fingerprint {manifest.fingerprint}, and "
            f"what it holds has {fingerprint}; build it again"
        )


# --- passages on disk -----------------------------------------------------------------------------------------------


class PassageLines(Sequence[Passage]):
    """Passages that are the lines of a file, read one by one; threads may share it. Subclasses read a line.

    `offsets` say where each line begins, and at the end where the last one ends.
    """

    def __init__(self, data: Numbers, offsets: Numbers) -> None:
        self._data, self.offsets = data, offsets

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
        return self._data[self.offsets[at] : self.offsets[at + 1]].tobytes()

    def ids(self) -> Iterator[str]:
        """Each passage's id, in order."""
        return (passage.id for passage in self)


def mapped(file: Path) -> Numbers:
    """A file's bytes, memory-mapped."""
    empty = not file.stat().st_size
    return np.empty(0, np.uint8) if empty else np.asarray(np.memmap(file, np.uint8, mode="r"))


def line_offsets(file: Path) -> Numbers:
    """Where each line of a file begins, and where the last one ends."""
    with open(file, "rb") as stream:
        return np.fromiter(accumulate(map(len, stream), initial=0), dtype=np.int64)


class JsonPassages(PassageLines):
    """Passages as lines of JSON, as `_encoded` writes them."""

    def ids(self) -> Iterator[str]:
        """Each passage's id, in order; quicker than reading whole passages."""
        for at in range(len(self)):
            line = self.line(at).decode("utf-8", "surrogatepass")
            if line.startswith(_ID):
                yield str(_DECODER.raw_decode(line, len(_ID) - 1)[0])
            else:
                yield self[at].id

    def since(self, start: int) -> Self:
        """Those from that position on."""
        part = copy.copy(self)
        part.offsets = self.offsets[start:]
        return part

    def read(self, at: int, line: bytes) -> Passage:
        """A line as `_encoded` writes it."""
        return Passage(**json.loads(line.decode("utf-8", "surrogatepass")))


class StoredPassages(JsonPassages):
    """The passages of an index folder by position."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        offsets = np.asarray(np.load(folder / OFFSETS, mmap_mode="r"))
        super().__init__(mapped(folder / PASSAGES), offsets)

    def read(self, at: int, line: bytes) -> Passage:
        """As of any passages; a damaged line is a `BadData`."""
        try:
            return super().read(at, line)
        except (ValueError, TypeError, RecursionError):
            raise BadData(
                f"the index at {self._folder} is damaged: passage {at + 1:,} of {PASSAGES} is none; build it again"
            ) from None


class GatheredCorpus(NamedTuple):
    passages: JsonPassages
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
    name = (
        str(getattr(corpus, "name", "")) if path is None else path.name or path.absolute().name
    )
    ids = IdCheck()

    def lines() -> Iterator[bytes]:
        for passage in passages_of(corpus):
            ids.add(passage.id)
            if visit:
                visit(passage)
            if len(ids) % OFTEN == 0:
                progress(READING, len(ids))
            yield _encoded(passage)

    passages, sha256 = _written(lines(), folder)
    progress(READING, len(ids), len(ids))
    if not len(ids):
        raise EmptyData(f"{corpus_name(name)} has no passages: there is nothing to index")
    if repeated := ids.repeated(lambda: enumerate(passages.ids(), start=1)):
        first, other, twice = repeated
        raise BadData(
            f"passage id '{twice}' occurs twice in the corpus: passages {first} and {other}; every id must differ"
        )
    return GatheredCorpus(passages, CorpusInfo(name=name, sha256=sha256))


def _written(lines: Iterable[bytes], folder: Path | None) -> tuple[JsonPassages, str]:
    """The lines as passages, in a folder or in memory, and the hash over them."""
    digest, offsets, memory = hashlib.sha256(), array("q", [0]), BytesIO()
    with open(folder / PASSAGES, "wb") if folder else nullcontext(memory) as file:
        for line in lines:
            file.write(line)
            digest.update(line)
            offsets.append(offsets[-1] + len(line))
    places = np.frombuffer(offsets, dtype=np.int64)
    if folder is None:
        data = np.frombuffer(memory.getbuffer(), dtype=np.uint8)
        return JsonPassages(data, places), digest.hexdigest()
    np.save(folder / OFFSETS, places)
    return StoredPassages(folder), digest.hexdigest()


def _encoded(passage: Passage) -> bytes:
    """One line of `passages.jsonl`. The score is left out: it belongs to a search, not to a corpus."""
    row: Settings = {"id": passage.id, "title": passage.title, "text": passage.text}
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

    passages: JsonPassages
    sha256: str
    kept: np.typing.NDArray[np.int64]
    added: int
    deleted: int
    """Old ones that are not kept, replaced ones among them."""

    @property
    def new(self) -> JsonPassages:
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
        bounds = (np.searchsorted(self._hashes, hash(name), side) for side in ("left", "right"))
        places = self._order[slice(*bounds)].tolist()
        return next((place for place in places if self._passages[place].id == name), None)

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
            ids = ", ".join(repr(name)[:60] for name in missing[:3])
            raise BadArgument(
                f"no passage {ids}{more} in the index at {path}: nothing was deleted or added"
            )
        return {at for at in found.values() if at is not None}


def _updated_passages(
    old: StoredPassages,
    path: Path,
    folder: Path,
    add: Corpus | None,
    delete: Iterable[str],
    replace: bool,
    progress: ProgressCallback,
) -> UpdatedPassages:
    """Write the passages of an update into `folder`. Raises as `Stored.update`, and `_NothingChanges`."""
    where = _Positions(old)
    gone = where.of(delete, path)
    ids, known, added = IdCheck(), 0, 0
    with open(folder / _ADDED, "w+b") as file:
        for passage in () if add is None else passages_of(add):
            line, at = _encoded(passage), where.find(passage.id)
            ids.add(passage.id)
            if len(ids) % OFTEN == 0:
                progress(READING, len(ids))
            if at is not None and at not in gone:
                if old.line(at) == line:
                    known += 1
                    continue
                if not replace:
                    raise BadData(
                        f"passage id '{passage.id}' is in the index at {path} already, with another title, text or "
                        "metadata: give it an id of its own, or replace the old one (replace=True)"
                    )
                gone.add(at)
            file.write(line)
            added += 1
        if add is not None and not len(ids):
            raise EmptyData("there are no passages to add: is it the right file?")
        if known:
            stay = "passages are in the index already and stay as they are"
            warnings.warn(f"{known:,} {stay}", stacklevel=4)
        if not added and not gone:
            raise _NothingChanges
        kept = np.delete(np.arange(len(old), dtype=np.int64), sorted(gone))
        if not len(kept) and not added:
            raise BadArgument(
                f"that would delete all {len(old):,} passages of {path}: remove the folder instead"
            )
        file.seek(0)
        passages, sha256 = _written(chain(map(old.line, kept.tolist()), file), folder)
    (folder / _ADDED).unlink()
    made = UpdatedPassages(passages, sha256, kept, added, len(gone))
    if repeated := ids.repeated(lambda: enumerate(made.new.ids())):
        raise BadData(
            f"passage id '{repeated[2]}' occurs twice among the passages to add: every id must differ"
        )
    return made


def corpus_name(name: str) -> str:
    """How messages call a corpus."""
    return f"the corpus {name}" if name else "the corpus"

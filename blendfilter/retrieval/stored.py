"""Indexes that lie in a folder: their passages on disk, gathered from a corpus and read one by one, and their manifest.

`passages.jsonl` has a passage a line, `offsets.npy` where each line begins and the last one ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from importlib.metadata import version
from io import BytesIO
from itertools import accumulate, chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self, overload

import numpy as np

from blendfilter import resources
from blendfilter.errors import BadArgument, BadData, EmptyData
from blendfilter.files import AnyPath, path_of
from blendfilter.records import Passage
from blendfilter.retrieval.base import ProgressCallback, Retriever, silent
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
    _how: Mapping[str, Any] = MappingProxyType({})
    """What it was opened with, and the encoder that was loaded then: for the folder's next index."""

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
        self._limit = limit

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
        """The index in `folder`, whole, its files as they were written (`file_hash`: a small one to the byte).

        Raises as `read_manifest` does, and `BadData` for another kind, and for a file or a manifest that was changed.
        """
        path = path_of(folder)

        def read() -> Any:
            manifest = read_manifest(path)
            if manifest.kind != cls.kind:
                raise BadData(
                    f"the index at {path} is of kind '{manifest.kind}', not '{cls.kind}': use open_index"
                )
            if missing := {PASSAGES, OFFSETS} - manifest.files.keys():
                raise BadData(
                    f"the index at {path} is damaged: its manifest does not list {min(missing)}; build it again"
                )
            check_content(path, manifest)
            with opening(path):
                check_fingerprint(path, manifest, cls._fingerprint(manifest, path))
            return cls._read(path, manifest, **how)

        index: Self
        index, index_stamp = settled(path, read)
        index.stamp = index_stamp
        index._how = {**how, "loaded": getattr(index, "encoder", None)}
        return index

    @classmethod
    def _described(
        cls,
        folder: Path | None,
        settings: Settings,
        corpus: CorpusInfo,
        passages: int,
        built: int | None = None,
    ) -> Manifest:
        """The manifest of a new index, written into its folder where there is one."""
        draft = Manifest(
            kind=cls.kind,
            fingerprint="0" * 16,
            passages=passages,
            built_passages=built,
            corpus=corpus,
            settings=settings,
            versions={name: version(name) for name in cls.packages},
        )
        manifest = draft.model_copy(update={"fingerprint": cls._fingerprint(draft, folder)})
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
        return self._open(self.path, **self._how) if self.path and self.outdated() else self

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
        path, manifest = self.path, self.manifest
        if path is None or not (path / MANIFEST).is_file():
            raise BadArgument(
                f"{self!r} cannot be updated: passages are added to indexes that lie in a folder and were built here; "
                "build it again from all passages (out='DIR')"
            )
        with suppress(_NothingChanges), updating(path, manifest.fingerprint) as folder:
            new = _updated_passages(self.passages, path, folder, add, delete, replace, progress)
            settings, count = self._write_update(folder, new, progress), len(new.passages)
            built = manifest.built_passages or manifest.passages
            corpus = CorpusInfo(name=manifest.corpus.name, sha256=new.sha256)
            self._described(folder, settings, corpus, count, built)
            if self._is_trained() and count > _DRIFT * built:
                warnings.warn(
                    f"the index at {path} holds {count:,} passages, and its centroids were trained for "
                    f"{built:,}: it finds less than one that is built from all of them",
                    stacklevel=2,
                )
        return self.fresh()

    def _warn_of_cut(self, query: str) -> None:
        """Every one of them is flagged besides (`Hits.cut`)."""
        words = f"a query of {len(query.split()):,} words was cut"
        self._warn("cut", f"{words}: {self._limit}; each one is flagged (query_cut)")

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
    """Passages that are the lines of a file, read one by one; threads may share it.

    `offsets` say where each line begins, and at the end where the last one ends; `read` makes a passage of a line and
    its position. By default lines are as `_encoded` writes them.
    """

    def __init__(
        self,
        data: Numbers,
        offsets: Numbers,
        read: Callable[[int, bytes], Passage] | None = None,
    ) -> None:
        self._data, self.offsets, self._read = data, offsets, read or _decoded

    def since(self, start: int) -> PassageLines:
        """Those from that position on."""
        return PassageLines(self._data, self.offsets[start:], self._read)

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
        return self._read(at, self.line(at))

    def line(self, at: int) -> bytes:
        """The line at that position, as it lies in the file."""
        return self._data[self.offsets[at] : self.offsets[at + 1]].tobytes()

    def ids(self) -> Iterator[str]:
        """Each passage's id, in order; quicker than reading whole passages."""
        for at in range(len(self)):
            line = self.line(at).decode("utf-8", "surrogatepass")
            if line.startswith(_ID):
                yield str(_DECODER.raw_decode(line, len(_ID) - 1)[0])
            else:
                yield self[at].id


def _decoded(_: int, line: bytes) -> Passage:
    return Passage(**json.loads(line.decode("utf-8", "surrogatepass")))


def _stored(folder: Path, at: int, line: bytes) -> Passage:
    try:
        return _decoded(at, line)
    except (ValueError, TypeError, RecursionError):
        raise BadData(
            f"the index at {folder} is damaged: passage {at + 1:,} of {PASSAGES} is none; build it again"
        ) from None


def stored_passages(folder: Path) -> PassageLines:
    """The passages of an index folder by position; a damaged line is a `BadData`."""
    offsets = np.asarray(np.load(folder / OFFSETS, mmap_mode="r"))
    return PassageLines(mapped(folder / PASSAGES), offsets, partial(_stored, folder))


def mapped(file: Path) -> Numbers:
    """A file's bytes, memory-mapped."""
    empty = not file.stat().st_size
    return np.empty(0, np.uint8) if empty else np.asarray(np.memmap(file, np.uint8, mode="r"))


def text_lines(file: Path, read: Callable[[int, bytes], Passage]) -> PassageLines:
    """The lines of somebody else's file; it is read once for where each begins."""
    with open(file, "rb") as stream:
        offsets = np.fromiter(accumulate(map(len, stream), initial=0), dtype=np.int64)
    return PassageLines(mapped(file), offsets, read)


def gather(
    corpus: Corpus,
    folder: Path | None,
    progress: ProgressCallback = silent,
    visit: Callable[[Passage], object] | None = None,
) -> tuple[PassageLines, CorpusInfo]:
    """Read `corpus` through: passages go to `folder` one by one (or stay in memory), and `visit` is called with each.

    The corpus' hash is over ids, titles, texts and metadata in order, however the corpus was packed. Raises as
    `passages_of`, `EmptyData` where there are none, `BadData` for an id that occurs twice or metadata that JSON cannot
    hold.
    """
    path = path_of(corpus) if isinstance(corpus, (str, os.PathLike)) else None
    if path is None:
        name = str(getattr(corpus, "name", ""))
    else:
        sample = path == resources.sample("corpus.jsonl")
        name = "sample" if sample else path.name or path.absolute().name
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
        raise EmptyData(
            f"the corpus {name or 'given'} has no passages: there is nothing to index"
        )
    if repeated := ids.repeated(lambda: enumerate(passages.ids(), start=1)):
        first, other, twice = repeated
        raise BadData(
            f"passage id '{twice}' occurs twice in the corpus: passages {first} and {other}; every id must differ"
        )
    return passages, CorpusInfo(name=name, sha256=sha256)


def _written(lines: Iterable[bytes], folder: Path | None) -> tuple[PassageLines, str]:
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
        return PassageLines(data, places), digest.hexdigest()
    np.save(folder / OFFSETS, places)
    return stored_passages(folder), digest.hexdigest()


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
    """The passages of an update: those of the old index at `kept` (ascending), then the `new` ones."""

    passages: PassageLines
    new: PassageLines
    sha256: str
    kept: np.typing.NDArray[np.int64]
    deleted: int
    """Old ones that are not kept, replaced ones among them."""


class _NothingChanges(Exception):
    """Ends an update that would leave the index as it is."""


def _finder(passages: PassageLines) -> Callable[[str], int | None]:
    """What finds where an id stands; None where it is not there. Eight bytes of hash an id, and eight for its place."""
    hashes = np.fromiter(map(hash, passages.ids()), dtype=np.int64, count=len(passages))
    order = np.argsort(hashes, kind="stable")
    hashes = hashes[order]

    def find(name: str) -> int | None:
        bounds = (np.searchsorted(hashes, hash(name), side) for side in ("left", "right"))
        places = order[slice(*bounds)].tolist()
        return next((place for place in places if passages[place].id == name), None)

    return find


def _updated_passages(
    old: PassageLines,
    path: Path,
    folder: Path,
    add: Corpus | None,
    delete: Iterable[str],
    replace: bool,
    progress: ProgressCallback,
) -> UpdatedPassages:
    """Write the passages of an update into `folder`. Raises as `Stored.update`, and `_NothingChanges`."""
    if isinstance(delete, str):
        raise BadArgument("delete takes a list of ids, got one string: put it in a list")
    find = _finder(old)
    found = {name: find(name) for name in delete}
    if missing := [name for name, at in found.items() if at is None]:
        more = f" and {len(missing) - 3:,} more" if len(missing) > 3 else ""
        named = ", ".join(repr(name)[:60] for name in missing[:3])
        raise BadArgument(
            f"no passage {named}{more} in the index at {path}: nothing was deleted or added"
        )
    gone = {at for at in found.values() if at is not None}
    ids, known = IdCheck(), 0
    with open(folder / _ADDED, "w+b") as file:
        for passage in () if add is None else passages_of(add):
            line, at = _encoded(passage), find(passage.id)
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
        if add is not None and not len(ids):
            raise EmptyData("there are no passages to add: is it the right file?")
        if known:
            stay = "passages are in the index already and stay as they are"
            warnings.warn(f"{known:,} {stay}", stacklevel=4)
        if not file.tell() and not gone:
            raise _NothingChanges
        kept = np.delete(np.arange(len(old), dtype=np.int64), [*gone])
        if not len(kept) and not file.tell():
            raise BadArgument(
                f"that would delete all {len(old):,} passages of {path}: remove the folder instead"
            )
        file.seek(0)
        passages, sha256 = _written(chain(map(old.line, kept.tolist()), file), folder)
    (folder / _ADDED).unlink()
    new = passages.since(len(kept))
    if repeated := ids.repeated(lambda: enumerate(new.ids())):
        raise BadData(
            f"passage id '{repeated[2]}' occurs twice among the passages to add: every id must differ"
        )
    return UpdatedPassages(passages, new, sha256, kept, len(gone))

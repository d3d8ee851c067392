"""What the indexes that lie in a folder share: a manifest, passages on disk read one by one, and how both are told.

In: a corpus, streamed. Out: its passages in the folder, checked; a `Stored` retriever over them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter.errors import BadData, EmptyData
from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever, ShortCorpus
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.retrieval.manifest import (
    HASHED_WHOLE,
    WHOLE,
    CorpusInfo,
    Manifest,
    check_content,
    opening,
    read_manifest,
)
from blendfilter.retrieval.passages import OFFSETS, PASSAGES, Ledger, StoredPassages, keep
from blendfilter.retrieval.progress import Progress, silent

Corpus = str | os.PathLike[str] | Iterable[Passage]
READING = "reading passages"
_OFTEN = 1000


class Gathered(NamedTuple):
    """A corpus that was read through: its passages where they now lie, and what identifies it."""

    passages: Sequence[Passage]
    corpus: CorpusInfo


class Stored(Retriever):
    """A retriever over the passages of a folder (or of memory, where `path` is None)."""

    def __init__(self, manifest: Manifest, passages: Sequence[Passage], path: Path | None) -> None:
        if path and len(passages) != manifest.passages:
            count = f"{len(passages):,} passages where its manifest says {manifest.passages:,}"
            raise BadData(f"the index at {path} is damaged: it holds {count}; build it again")
        self.manifest = manifest
        self.passages = passages
        self.path = path
        self.fingerprint = manifest.fingerprint
        self._short = ShortCorpus(len(passages))

    def info(self) -> dict[str, Any]:
        """Kind, fingerprint, number of passages, corpus, settings, and the folder where there is one."""
        fields = self.manifest.model_dump(include={"kind", "fingerprint", "passages", "corpus", "settings"})
        return fields | ({"path": str(self.path)} if self.path else {})

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {len(self):,} passages, fingerprint {self.fingerprint}>"

    def __len__(self) -> int:
        return len(self.passages)


def gather(
    corpus: Corpus, folder: Path | None, progress: Progress = silent, each: Callable[[Passage], object] | None = None
) -> Gathered:
    """Read `corpus` through: passages go to `folder` one by one (or stay in memory), `each` sees them on their way.

    Raises `EmptyData` where there are none, `BadData` for an id that occurs twice or a passage without text.
    """
    ledger, kept = Ledger(), list[Passage]()
    for passage in keep(stream(corpus), ledger, folder):
        if each:
            each(passage)
        if folder is None:
            kept.append(passage.scored(None))
        if len(ledger) % _OFTEN == 0:
            progress(READING, len(ledger))
    progress(READING, len(ledger), len(ledger))
    name = Path(corpus).name if isinstance(corpus, (str, os.PathLike)) else str(getattr(corpus, "name", ""))
    if not len(ledger):
        raise EmptyData(f"{corpus_name(name)} has no passages: there is nothing to index")
    passages = StoredPassages(folder) if folder else kept
    ledger.check_ids(passages)
    return Gathered(passages, CorpusInfo(name=name, sha256=ledger.sha256))


def corpus_name(name: str) -> str:
    """How messages call a corpus."""
    return f"the corpus {name}" if name else "the corpus"


def stream(corpus: Corpus) -> Iterable[Passage]:
    """The passages of a corpus file, or the passages themselves."""
    return read_corpus(Path(corpus)) if isinstance(corpus, (str, os.PathLike)) else corpus


def manifest_of(
    folder: str | os.PathLike[str], kind: str, made_of: Callable[[Manifest], str] | None = None
) -> Manifest:
    """The manifest of an index of that kind, and its files as they were written (`file_hash`: a small one to the byte).

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

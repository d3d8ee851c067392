"""The registries: engines that build an index, kinds that open one; `build` and `open_index` go by name.

In: an engine's name and a corpus, or an index's folder or address. Out: a `Retriever`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from blendfilter.errors import UnknownName
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.lexical import Corpus
from blendfilter.retrieval.manifest import read_manifest
from blendfilter.retrieval.rank_bm25 import RankBM25

Opener = Callable[[str], Retriever]


class Engine(Protocol):
    """What the registry of engines holds: classes that build an index of a corpus."""

    @classmethod
    def build(cls, corpus: Corpus, out: str | os.PathLike[str] | None = None, **settings: Any) -> Retriever:
        """Index `corpus` into the folder `out`."""


ENGINES: dict[str, type[Any]] = {"bm25": BM25, "rank-bm25": RankBM25}
"""Engine name to a class with `Engine`'s `build`."""

KINDS: dict[str, Opener] = {"bm25": BM25.open, "rank-bm25": RankBM25.open}
"""A manifest's kind, or an address's scheme, to what opens it."""


def build(engine: str, corpus: Corpus, out: str | os.PathLike[str] | None = None, **settings: Any) -> Retriever:
    """Index `corpus` with the engine of that name; `settings` are that engine's. Raises `UnknownName`.

    >>> from blendfilter.records import Passage
    >>> len(build("bm25", [Passage("1", "Fell", "A hill.")]))
    1
    """
    if engine not in ENGINES:
        raise UnknownName.of("engine", engine, ENGINES)
    index: Retriever = ENGINES[engine].build(corpus, out, **settings)
    return index


def register_kind(name: str, opener: Opener) -> None:
    """Let `open_index` open one more kind of folder (its manifest's `kind`) or address (its scheme, like `http`)."""
    KINDS[name] = opener


def open_index(location: str | os.PathLike[str]) -> Retriever:
    """The index in a folder or at an address (`http://…`), of whatever kind it is.

    Raises `MissingFile`, `BadData` (no index, damaged, too new) and `UnknownName` (a kind nobody registered).
    """
    address = os.fspath(location)
    scheme, mark, _ = address.partition("://")
    if mark:
        return _opener(scheme.lower(), "kind of address", address)(address)
    return _opener(read_manifest(Path(address)).kind, "kind of index", address)(address)


def _opener(kind: str, what: str, where: str) -> Opener:
    if kind not in KINDS:
        raise UnknownName.of(what, kind, KINDS, f"at {where}: register_kind adds one")
    return KINDS[kind]

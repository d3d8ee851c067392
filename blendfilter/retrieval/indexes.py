"""The registries: engines that build an index, kinds that open one; `build` and `open_index` go by name.

Engines and kinds whose packages come with an extra are named as `module:name` and imported at first use.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from blendfilter import http
from blendfilter.errors import BadData, MissingFile, UnknownName
from blendfilter.files import AnyPath, path_of
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.corpus import Corpus
from blendfilter.retrieval.manifest import MANIFEST, read_manifest

HERE = "blendfilter.retrieval"

Opener = Callable[..., Retriever]


ENGINES: dict[str, str | type[Any]] = {
    "bm25": f"{HERE}.bm25:BM25",
    "rank-bm25": f"{HERE}.bm25:RankBM25",
    "colbert": f"{HERE}.colbert:ColBERT",
    "dense": f"{HERE}.dense:Dense",
}
"""Engine name to a class with `build(corpus, out, **settings)`."""

KINDS: dict[str, str | Opener] = {
    "bm25": f"{HERE}.bm25:BM25.open",
    "rank-bm25": f"{HERE}.bm25:RankBM25.open",
    "colbert": f"{HERE}.colbert:ColBERT.open",
    "dense": f"{HERE}.dense:Dense.open",
    "sharded": f"{HERE}.sharded:open_sharded",
    "trimmed": "blendfilter.trimming.folder:open_trimmed",
    "http": f"{HERE}.remote:Remote",
    "https": f"{HERE}.remote:Remote",
}
"""A manifest's kind, or an address's scheme, to what opens it."""
OVER_ANOTHER = ("sharded", "trimmed")
"""Kinds of folder that name other indexes, which they lie over."""

FOREIGN: dict[tuple[str, ...], str] = {
    ("metadata.json", "centroids.pt"): f"{HERE}.colbert.index:open_plaid",
    ("params.index.json", "vocab.index.json"): f"{HERE}.bm25s_folder:open_bm25s",
}
"""Folders of colbert-ai and bm25s, by files that all such folders have, to what opens them."""

_LIKE_AN_ADDRESS = r"(?i)(?:https?|//|:).*@|[\w.-]+:[0-9]{1,5}/?$"


def build(
    engine: str, corpus: Corpus, out: AnyPath | None = None, **settings: Any
) -> Retriever:
    """Index `corpus` with the engine of that name; `settings` are that engine's. Raises `UnknownName`.

    >>> from blendfilter.records import Passage
    >>> len(build("bm25", [Passage("1", "Fell", "A hill.")]))
    1
    """
    if engine not in ENGINES:
        raise UnknownName.of("engine", engine, ENGINES)
    index: Retriever = _named(ENGINES[engine]).build(corpus, out, **settings)
    return index


def register_kind(name: str, opener: Opener) -> None:
    """Let `open_index` open one more kind of folder (its manifest's `kind`) or address (its scheme, like `http`)."""
    KINDS[name] = opener


def open_index(
    location: AnyPath,
    *,
    allow_hosts: Sequence[str] = (),
    partial: bool = False,
    within: tuple[str, ...] = (),
    **options: Any,
) -> Retriever:
    """The index in a folder or at an address (`http://…`), of whatever kind it is; `options` are that kind's.

    Folders that colbert-ai or bm25s made open as they are. A trimmed index may lie over one behind an address: that is
    called where `allow_hosts` name its host (HOST or HOST:PORT), and gets no token but one that is given (`token`).

    With `partial` a sharded index does without the shards that do not answer, and says so of each search. `within` is
    for kinds of folder that lie over others: those that are being opened.

    Raises `MissingFile`, `BadData` (no index, damaged, too new) and `UnknownName` (a kind that is not registered).
    """
    address = os.fspath(location)
    scheme, mark, _ = address.partition("://")
    if mark:
        return _opener(scheme.lower(), "kind of address", http.without_login(address))(
            address, **options
        )
    folder = path_of(address)
    if re.search(_LIKE_AN_ADDRESS, address) and not folder.exists():
        raise MissingFile(
            f"no index at {http.without_login(address)}: if a server is meant, write http://host:port"
        )
    # and False where looking is not permitted; a `Path` would raise
    if not os.path.exists(folder / MANIFEST):
        for marks, opener in FOREIGN.items():
            if all(os.path.isfile(folder / name) for name in marks):
                index: Retriever = _named(opener)(address, **options)
                return index
    kind = _kind_of(folder)
    open_kind = _opener(kind, "kind of index", address)
    if kind not in OVER_ANOTHER:
        return open_kind(address, **options)
    options |= {"allow_hosts": allow_hosts, **({"partial": True} if partial else {})}
    place = os.path.realpath(folder)
    if place in within:
        raise BadData(
            f"the index at {within[-1]} lies over itself (by way of {address:.200}): join or trim it again"
        )
    return open_kind(address, **options, within=(*within, place))


def _kind_of(folder: Path) -> str:
    """The manifest's kind. A trimmed index is known by its name too: even where its manifest is damaged, the index that
    it lies over can be searched."""
    named = folder.name.endswith(".trimmed") and folder.is_dir()
    try:
        kind = read_manifest(folder).kind
    except (BadData, OSError):
        if named:
            return "trimmed"
        raise
    return "trimmed" if named and kind not in KINDS else kind


def _opener(kind: str, what: str, where: str) -> Opener:
    if kind not in KINDS:
        raise UnknownName.of(what, kind, KINDS, f"at {where}: register_kind adds one")
    opener: Opener = _named(KINDS[kind])
    return opener


def _named(target: str | Any) -> Any:
    """What `module:name.name` names; anything that is no string is itself."""
    if not isinstance(target, str):
        return target
    module, _, path = target.partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found

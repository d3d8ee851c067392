"""CDIT's trimming as its paper draws it (Ma et al. 2024, https://arxiv.org/abs/2408.05524, section 4.3 and Figure 4):
the links between two separated passages are cut out of an HNSW graph. An experiment: the overlay is what trims here.

A cut link rarely hides a passage, since other links lead to it; `eval/bench/trimming.py` measures how rarely.

In: a FAISS graph in memory and pairs of positions. Out: the graph without their links, and a record that restores it.

Differs from the paper: it says neither on which levels a link is cut nor what becomes of its place. Here a link goes
on every level and in both directions, and its list closes up, because FAISS reads a list up to its first -1. The entry
point keeps one link out on every level on which it had any: a search that starts there would get nowhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blendfilter.errors import BadArgument
from blendfilter.extras import needed
from blendfilter.retrieval.base import fingerprint_of
from blendfilter.retrieval.dense import Dense, graph_digest

WHY = "cutting the links of a dense index"
_FITS = "build one with index='hnsw', or take the overlay (Trimmed), which trims any index"

Slots = NDArray[np.int32]


class Link(NamedTuple):
    """One direction of a link: `target` stands in the list of `source` on that level, 0 being the lowest."""

    source: int
    target: int
    level: int


@dataclass(frozen=True, eq=False)
class Cut:
    """What one `cut` changed: `before` stood at `at` in the graph's array of links, and `after` stands there now.

    `spared` are links that were to go and stayed, because the entry point has no other on that level; they lead out of
    it, and the way back is cut.
    """

    removed: tuple[Link, ...]
    spared: tuple[Link, ...]
    at: NDArray[np.int64]
    before: Slots
    after: Slots
    slots: int
    """How many places for links the graph had."""


class _Lists:
    """A graph's lists of neighbours: one for each node and level, all in one array that is written in place."""

    def __init__(self, index: Any) -> None:
        library, graph = needed("faiss", "dense", WHY), index.hnsw
        self.all: Slots = library.rev_swig_ptr(graph.neighbors.data(), graph.neighbors.size())
        self.entry: int = graph.entry_point
        self.levels = library.vector_to_array(graph.levels)
        self._begins = library.vector_to_array(graph.offsets)
        self._within = library.vector_to_array(graph.cum_nneighbor_per_level)

    def place(self, node: int, level: int) -> slice:
        """Where that list lies in `all`."""
        begin = int(self._begins[node])
        return slice(begin + int(self._within[level]), begin + int(self._within[level + 1]))


def graph_of(index: Any) -> Any:
    """A copy, in memory, of the HNSW index that `index` is: a `Dense`, or an index of FAISS's own.

    A `Dense` never changes once open, and FAISS maps its links from the disk: writing there would kill the process.
    Raises `BadArgument` where it has no links.
    """
    library = needed("faiss", "dense", WHY)
    return library.deserialize_index(library.serialize_index(_linked(index)))


def positions(dense: Dense, pairs: Iterable[tuple[str, str]]) -> list[tuple[int, int]]:
    """Pairs of passage ids as pairs of positions, in their order. Raises `BadArgument` for an id that is not there."""
    named = list(pairs)
    wanted = {each for pair in named for each in pair}
    at = {passage.id: position for position, passage in enumerate(dense.passages) if passage.id in wanted}
    for each in sorted(wanted - at.keys()):
        raise BadArgument(
            f"no passage '{each}' in the index {dense.fingerprint} ({len(dense):,} passages): "
            "was it built anew since the pair was found?"
        )
    return [(at[a], at[b]) for a, b in named]


def cut(index: Any, pairs: Iterable[tuple[int, int]], *, holes: bool = False) -> Cut:
    """Take the links between the two of each pair out of that graph, in place; a pair without links costs nothing.

    `holes` leaves a -1 where a link stood, so that FAISS no longer reads what follows: it is there to be measured. The
    entry point's lists close up all the same. `add` links anew: cut last. Raises `BadArgument`.
    """
    lists = _Lists(_writable(index))
    partners = _partners(pairs, len(lists.levels))
    removed, spared = list[Link](), list[Link]()
    changed: list[tuple[slice, Slots, Slots]] = []
    for node, apart in sorted(partners.items()):
        for level in range(int(lists.levels[node])):
            place = lists.place(node, level)
            old = lists.all[place].copy()
            gone = np.isin(old, apart)
            if node == lists.entry and gone.any() and not (~gone & (old >= 0)).any():
                first = int(np.argmax(gone))
                gone[first] = False
                spared.append(Link(node, int(old[first]), level))
            if gone.any():
                removed += [Link(node, int(target), level) for target in old[gone]]
                new = _with_holes(old, gone) if holes and node != lists.entry else _closed_up(old, gone)
                lists.all[place] = new
                changed.append((place, old, new))
    return _record(changed, removed, spared, lists)


def restore(index: Any, undone: Cut) -> None:
    """Put every link of a cut back where it was: the graph's array is what it was before, byte for byte.

    Later cuts are restored first. Raises `BadArgument` where the graph is not as this cut left it; nothing is written.
    """
    links = _Lists(_writable(index)).all
    if len(links) != undone.slots or not np.array_equal(links[undone.at], undone.after):
        raise BadArgument(
            "this graph is not as the cut left it (another index, passages added, a later cut, or restored before): "
            "restore later cuts first, or take the graph anew by graph_of(index)"
        )
    links[undone.at] = undone.before


def over(dense: Dense, graph: Any) -> Dense:
    """The same passages and encoder over that graph, with the old fingerprint where the links are the old ones.

    Raises `BadArgument` where either has no links, or the graph is of other passages.
    """
    if _linked(graph).ntotal != _linked(dense).ntotal:
        raise BadArgument(
            f"that graph has {graph.ntotal:,} nodes and the index {dense.fingerprint} {len(dense):,} passages: "
            "cut a copy of this index's own graph, edges.graph_of(index)"
        )
    digest, settings = graph_digest(graph), dense.manifest.settings
    if digest == settings["graph"]:
        fingerprint = dense.fingerprint
    else:
        fingerprint = fingerprint_of("edges", dense.fingerprint, digest)
    update = {"fingerprint": fingerprint, "settings": {**settings, "graph": digest}}
    return Dense(dense.manifest.model_copy(update=update), dense.passages, graph, dense.encoder, None)


def _linked(index: Any) -> Any:
    """FAISS's own index, which has links. Raises `BadArgument`."""
    found = index.faiss if isinstance(index, Dense) else index
    if hasattr(found, "hnsw"):
        return found
    if hasattr(found, "ntotal"):
        raise BadArgument(f"{type(found).__name__} is no graph, so there are no links to cut: {_FITS}")
    raise BadArgument(f"{type(index).__name__} holds no vectors, so there are no links to cut: {_FITS}")


def _writable(index: Any) -> Any:
    graph = _linked(index)
    if graph is not index:
        raise BadArgument("a Dense never changes once open: cut a copy of its graph, edges.graph_of(index)")
    if not graph.hnsw.neighbors.is_owned:
        raise BadArgument("this graph is memory-mapped and cannot be written: cut a copy, edges.graph_of(index)")
    return graph


def _partners(pairs: Iterable[tuple[int, int]], nodes: int) -> dict[int, list[int]]:
    """For each node those that it is separated from. Raises `BadArgument`."""
    partners: dict[int, set[int]] = defaultdict(set)
    for a, b in pairs:
        if a == b or not (0 <= a < nodes and 0 <= b < nodes):
            raise BadArgument(f"a pair is two positions from 0 to {nodes - 1}, and no position twice, got ({a}, {b})")
        partners[a].add(b)
        partners[b].add(a)
    return {node: sorted(apart) for node, apart in partners.items()}


def _closed_up(old: Slots, gone: NDArray[np.bool_]) -> Slots:
    kept = old[~gone & (old >= 0)]
    new = np.full_like(old, -1)
    new[: len(kept)] = kept
    return new


def _with_holes(old: Slots, gone: NDArray[np.bool_]) -> Slots:
    return np.where(gone, np.int32(-1), old)


def _record(changed: list[tuple[slice, Slots, Slots]], removed: list[Link], spared: list[Link], lists: _Lists) -> Cut:
    def joined(arrays: list[Any], kind: type[Any]) -> Any:
        return np.concatenate([np.empty(0, kind), *arrays]).astype(kind)

    at = joined([np.arange(place.start, place.stop) for place, _, _ in changed], np.int64)
    before = joined([old for _, old, _ in changed], np.int32)
    after = joined([new for _, _, new in changed], np.int32)
    return Cut(tuple(removed), tuple(spared), at, before, after, len(lists.all))

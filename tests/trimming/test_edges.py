"""Links cut out of an HNSW graph and put back: every level, both directions, lists closed up, the entry point safe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.records import Passage
from blendfilter.retrieval import dense as dense_faiss

sys.path.append(str(Path(__file__).parents[2] / "eval" / "bench"))
import edges

faiss = pytest.importorskip("faiss")

NODES, WIDTH = 300, 8
TOWNS = [Passage(f"town-{n}", f"Town {n}", f"A harbour and the mill of {n}.") for n in range(60)]
SMALL = {"m": 4, "ef_construction": 40, "ef_search": 32}
Lists = dict[tuple[int, int], list[int]]


@pytest.fixture(scope="module")
def built() -> Any:
    """A graph of several levels, built once; tests take a copy."""
    vectors = np.random.default_rng(7).normal(size=(NODES, WIDTH)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index = dense_faiss.build_index(vectors, {"index": "hnsw", **SMALL}, lambda *_: None)
    assert index.hnsw.max_level >= 2
    return index


@pytest.fixture
def graph(built: Any) -> Any:
    return edges.graph_of(built)


def slots(index: Any) -> bytes:
    return faiss.vector_to_array(index.hnsw.neighbors).tobytes()


def raw_lists(index: Any) -> Lists:
    """Every list as it lies there, -1 and all, read through FAISS's own arithmetic rather than through ours."""
    hnsw, begin, end = index.hnsw, np.zeros(1, np.uint64), np.zeros(1, np.uint64)
    everything, levels = faiss.vector_to_array(hnsw.neighbors), faiss.vector_to_array(hnsw.levels)
    found: Lists = {}
    for node in range(index.ntotal):
        for level in range(levels[node]):
            hnsw.neighbor_range(node, level, faiss.swig_ptr(begin), faiss.swig_ptr(end))
            found[node, level] = everything[int(begin[0]) : int(end[0])].tolist()
    return found


def read(lists: Lists) -> Lists:
    """What FAISS reads of them: up to the first -1."""
    return {at: row[: row.index(-1)] if -1 in row else row for at, row in lists.items()}


def linked(index: Any, *, least: int = 0) -> list[tuple[int, int]]:
    """Pairs that are linked on that level or above, without the entry point's."""
    found = {
        (min(node, other), max(node, other))
        for (node, level), row in read(raw_lists(index)).items()
        for other in row
        if level >= least and index.hnsw.entry_point not in (node, other)
    }
    return sorted(found)


def test_a_link_goes_in_both_directions_on_every_level_and_nothing_else_does(graph: Any) -> None:
    before = read(raw_lists(graph))
    pairs = [*linked(graph, least=1)[:5], *linked(graph)[:40:4]]
    done = edges.cut(graph, pairs)
    apart = {*pairs, *((b, a) for a, b in pairs)}
    expected = {(node, level): [n for n in row if (node, n) not in apart] for (node, level), row in before.items()}
    assert read(raw_lists(graph)) == expected
    gone = {(node, n, level) for (node, level), row in before.items() for n in row if (node, n) in apart}
    assert set(done.removed) == gone
    assert {link.level for link in done.removed} >= {0, 1}
    assert any((link.target, link.source, link.level) in gone for link in done.removed)
    assert done.spared == ()


@pytest.mark.parametrize("holes", [False, True])
def test_the_entry_point_keeps_a_link_on_every_level(graph: Any, holes: bool) -> None:
    entry, everyone = graph.hnsw.entry_point, range(NODES)
    done = edges.cut(graph, [(entry, other) for other in everyone if other != entry], holes=holes)
    left = {level: row for (node, level), row in read(raw_lists(graph)).items() if node == entry}
    assert [len(row) for row in left.values()] == [1] * len(left)
    assert {(link.source, link.target, link.level) for link in done.spared} == {
        (entry, row[0], level) for level, row in left.items()
    }
    assert not any(entry in row for (node, _), row in read(raw_lists(graph)).items() if node != entry)
    query = graph.reconstruct(17)[None]
    assert graph.search(query, 5)[1][0, 0] == 17


@given(pairs=st.sets(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=30), holes=st.booleans())
def test_whatever_was_cut_is_restored_byte_for_byte(built: Any, pairs: set[tuple[int, int]], holes: bool) -> None:
    graph = edges.graph_of(built)
    done = edges.cut(graph, [(a, b) for a, b in pairs if a != b], holes=holes)
    assert len(done.removed) == 0 or slots(graph) != slots(built)
    edges.restore(graph, done)
    assert slots(graph) == slots(built)

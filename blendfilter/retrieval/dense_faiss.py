"""The three ways in which FAISS keeps vectors (Douze et al. 2024, https://arxiv.org/abs/2401.08281), by inner product.

flat: every vector is compared, so it is exact. hnsw: a graph is walked (Malkov & Yashunin 2016,
https://arxiv.org/abs/1603.09320, algorithms 1 and 5), `m` links a node, `ef_search` candidates kept. ivf: the vectors
are clustered into `nlist` cells, and the `nprobe` cells nearest to the query are compared.

In: vectors by position. Out: a FAISS index, in memory or in a file, and the positions and scores it finds.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blendfilter.errors import BadArgument, BadData, UnknownName
from blendfilter.extras import needed
from blendfilter.retrieval.encoder_files import WHY
from blendfilter.retrieval.encoders import Vectors
from blendfilter.retrieval.progress import Progress

Kind = Literal["flat", "hnsw", "ivf"]
INDEX = "index.faiss"
KINDS: dict[str, tuple[str, ...]] = {
    "flat": (),
    "hnsw": ("m", "ef_construction", "ef_search"),
    "ivf": ("nlist", "nprobe"),
}
"""Which settings each of them has."""
LINKING, CLUSTERING, ADDING = "linking", "clustering", "adding vectors"
_BLOCK = 8192
_PER_CELL = 39
"""Vectors that k-means wants for each cell; with fewer FAISS warns that cells mean little."""
_GRAIN = 2.0**18
"""Scores within one part in 250,000 are one score: a text encoded beside longer ones differs from itself by less."""
_SPARE = 8
_AT_ONCE = 256
_WIDEST = 4096
"""Beyond so many passages level with the k-th, nobody looks which of them come first in the corpus."""


_reading = threading.Lock()
"""FAISS's limits are those of the whole process."""


class Found(NamedTuple):
    """One query's positions, best first, and their scores."""

    positions: list[int]
    scores: list[float]


class _Near(NamedTuple):
    """What FAISS found for one query."""

    vectors: Vectors
    positions: NDArray[np.int64]


def faiss() -> Any:
    """The package. Raises `MissingExtra`."""
    return needed("faiss", "dense", WHY)


def settings_of(kind: str, **given: int) -> dict[str, Any]:
    """The settings of that kind of index out of all `given`. Raises `UnknownName` or `BadArgument`.

    >>> settings_of("ivf", m=32, nlist=50, nprobe=5)
    {'index': 'ivf', 'nlist': 50, 'nprobe': 5}
    """
    if kind not in KINDS:
        raise UnknownName.of("dense index", str(kind), KINDS)
    for name in KINDS[kind]:
        lowest = 2 if name == "m" else 1
        value = given[name]
        if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
            raise BadArgument(f"{name} must be a whole number from {lowest} up, got {value!r}")
    return {"index": kind, **{name: given[name] for name in KINDS[kind]}}


def fitted(settings: dict[str, Any], passages: int) -> dict[str, Any]:
    """The same for that many passages: fewer cells where there are too few vectors to cluster, and what was asked.

    >>> fitted({"index": "ivf", "nlist": 50, "nprobe": 5}, 193)
    {'index': 'ivf', 'nlist': 4, 'nprobe': 4, 'nlist_requested': 50, 'nprobe_requested': 5}
    """
    if settings["index"] != "ivf":
        return settings
    cells = min(settings["nlist"], max(1, passages // _PER_CELL))
    used = {"nlist": cells, "nprobe": min(settings["nprobe"], cells)}
    return settings | used | {f"{name}_requested": settings[name] for name in used if used[name] != settings[name]}


def build_index(vectors: Vectors, settings: dict[str, Any], progress: Progress) -> Any:
    """A FAISS index over `vectors`, read block by block. The same vectors make the same cells every time."""
    index = _trained(vectors, settings, progress)
    phase = LINKING if settings["index"] == "hnsw" else ADDING
    for start in range(0, len(vectors), _BLOCK):
        index.add(np.ascontiguousarray(vectors[start : start + _BLOCK]))
        progress(phase, min(start + _BLOCK, len(vectors)), len(vectors))
    return index


def _trained(vectors: Vectors, settings: dict[str, Any], progress: Progress) -> Any:
    library, dimension = faiss(), vectors.shape[1]
    metric = library.METRIC_INNER_PRODUCT
    if settings["index"] == "flat":
        return library.IndexFlatIP(dimension)
    if settings["index"] == "hnsw":
        graph = library.IndexHNSWFlat(dimension, settings["m"], metric)
        graph.hnsw.efConstruction = settings["ef_construction"]
        graph.hnsw.efSearch = settings["ef_search"]
        return graph
    cells = library.index_factory(dimension, f"IVF{settings['nlist']},Flat", metric)
    cells.nprobe = settings["nprobe"]
    cells.cp.min_points_per_centroid = 1  # `fitted` has seen to it; FAISS would complain on stderr
    progress(CLUSTERING, 0, 1)
    most = settings["nlist"] * cells.cp.max_points_per_centroid
    some = np.random.default_rng(0).permutation(len(vectors))[:most]
    cells.train(np.ascontiguousarray(vectors[np.sort(some)]))
    progress(CLUSTERING, 1, 1)
    return cells


def graph_digest(index: Any) -> str:
    """16 hex digits of an HNSW graph's links: threads add nodes as they come, so two builds may differ."""
    links = index.hnsw.neighbors
    seen = faiss().rev_swig_ptr(links.data(), links.size())  # a view: millions of passages have gigabytes of links
    return hashlib.sha256(seen).hexdigest()[:16]


def write(index: Any, folder: Path) -> None:
    """Leave the index in the folder. Raises `OSError` where the disk is full."""
    try:
        faiss().write_index(index, str(folder / INDEX))
    except RuntimeError as error:
        raise OSError(f"cannot write {folder / INDEX} ({str(error).strip()[:200]}): is the disk full?") from None


def read(folder: Path, settings: dict[str, Any], shape: tuple[int, int]) -> Any:
    """The index of a folder, memory-mapped. Raises `BadData` where it is not what the manifest says."""
    library = faiss()
    try:
        with _nothing_larger_than(folder / INDEX):
            index = library.read_index(str(folder / INDEX), library.IO_FLAG_MMAP_IFC)
    except (RuntimeError, MemoryError) as error:
        raise BadData(
            f"the index at {folder} is damaged: {INDEX} cannot be read ({str(error).strip()[:120]}); build it again"
        ) from None
    if (index.ntotal, index.d) != shape:
        raise BadData(
            f"the index at {folder} is damaged: {INDEX} has {index.ntotal} vectors of {index.d} numbers "
            f"where {shape[0]} of {shape[1]} belong; build it again"
        )
    if settings["index"] == "hnsw":
        index.hnsw.efSearch = settings["ef_search"]
    if settings["index"] == "ivf":
        index.nprobe = settings["nprobe"]
    return index


@contextmanager
def _nothing_larger_than(file: Path) -> Iterator[None]:
    """Inside the block FAISS takes no memory for a list that would not fit into `file`.

    It believes what a damaged file says of its lists' lengths, and fills gigabytes with zeros before it notices.
    """
    library, size = faiss(), file.stat().st_size
    with _reading:
        before = library.get_deserialization_vector_byte_limit(), library.get_deserialization_loop_limit()
        library.set_deserialization_vector_byte_limit(size)
        library.set_deserialization_loop_limit(size)
        try:
            yield
        finally:
            library.set_deserialization_vector_byte_limit(before[0])
            library.set_deserialization_loop_limit(before[1])


def nearest(index: Any, queries: Vectors, k: int) -> list[Found]:
    """For each query at most `k` positions with the highest inner products; equal ones in corpus order.

    FAISS picks any of those tied at the k-th place, so more are asked for until the tie ends. It counts one query in
    another way than many, too: what it found is counted again here, so that a batch is its queries one by one.
    """
    most = min(k, index.ntotal)
    asked = min(index.ntotal, most + _SPARE)
    found: list[Found] = []
    for start in range(0, len(queries), _AT_ONCE):
        block = queries[start : start + _AT_ONCE]
        scores, positions, vectors = index.search_and_reconstruct(block, asked)
        for at, tied in enumerate(_tied_at_the_end(scores, positions, most)):
            near = _untied(index, block[at : at + 1], most, asked) if tied else _Near(vectors[at], positions[at])
            found.append(_ordered(block[at], near, most))
    return found


def _untied(index: Any, query: Vectors, k: int, asked: int) -> _Near:
    widest = min(index.ntotal, k + _WIDEST)
    while True:
        asked = min(widest, asked * 4)
        scores, positions, vectors = index.search_and_reconstruct(query, asked)
        if asked == widest or not _tied_at_the_end(scores, positions, k)[0]:
            return _Near(vectors[0], positions[0])


def coarse(scores: Any) -> NDArray[np.float64]:
    """Scores cut to 18 bits, as numbers that read well."""
    mantissa, exponent = np.frexp(np.asarray(scores, dtype=np.float64))
    cut: NDArray[np.float64] = np.ldexp(np.round(mantissa * _GRAIN) / _GRAIN, exponent)
    return cut


def _tied_at_the_end(scores: Any, positions: Any, k: int) -> NDArray[np.bool_]:
    """Of each row, whether all that was found beyond the k-th place is level with it, so that more may be."""
    level: NDArray[np.bool_] = (coarse(scores[:, -1]) == coarse(scores[:, k - 1])) & (positions[:, -1] >= 0)
    return level if scores.shape[1] > k else np.zeros_like(level)


def _ordered(query: Vectors, near: _Near, k: int) -> Found:
    real = near.positions >= 0  # FAISS fills up with -1 where it finds fewer
    positions = near.positions[real]
    scores = coarse(near.vectors[real].astype(np.float64) @ query.astype(np.float64))
    order = np.lexsort((positions, -scores))[:k]
    return Found(positions[order].tolist(), scores[order].tolist())


class Reconstructed:
    """An index's vectors by position. An IVF index needs a map for that, made when first asked."""

    def __init__(self, index: Any) -> None:
        self._index = index
        self._mapped = threading.Lock()

    def __getitem__(self, position: int) -> Vectors:
        index = self._index
        if hasattr(index, "make_direct_map"):
            with self._mapped:
                if index.direct_map.no():
                    index.make_direct_map()
        vector: Vectors = index.reconstruct(range(index.ntotal)[position])
        return vector

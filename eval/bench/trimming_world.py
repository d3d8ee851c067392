"""The simulated world of `trimming.py`: clusters of two facets, questions, an oracle, and an encoder that knows them.

In: how many passages and questions, and a seed. Out: a dense HNSW index over them, and what the oracle says.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from blendfilter.extras import needed
from blendfilter.records import Passage
from blendfilter.retrieval import dense
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.dense import Dense
from blendfilter.retrieval.encoders import Encoded, Encoder, EncodingOptions, Vectors
from blendfilter.retrieval.manifest import CorpusInfo, Manifest
from blendfilter.trimming import witnesses
from blendfilter.trimming.witnesses import NO_JUDGE, Witnesses

DIMENSION, SIZE = 64, 20
SETTINGS: dict[str, Any] = {"index": "hnsw", "ef_construction": 200, "ef_search": 64}
PASSAGE_NOISE, FACET, QUESTION_NOISE, WORDING = 0.5, 0.06, 0.5, 0.25
"""How far from its cluster's middle a passage lies, a facet, a question; how far from a question its other wording."""
Found = list[list[int]]
"""For each question the positions of what was found."""


class Asked(NamedTuple):
    """Questions: their words, where they lie, and what they ask for."""

    texts: list[str]
    vectors: Vectors
    cluster: Any
    facet: Any


class World(NamedTuple):
    """Passages by position, the judged questions, and the groups of others."""

    passages: Asked
    judged: Asked
    held: dict[str, Asked]

    def accepts(self, asked: Asked, at: int, passage: int) -> bool:
        """The oracle."""
        here, known = self.passages, asked
        return bool(here.cluster[passage] == known.cluster[at] and here.facet[passage] == known.facet[at])


class Words(Encoder):
    """The encoder: it knows the vector of every question that is asked."""

    def __init__(self, *known: Asked) -> None:
        self.name = self.identity = "simulated"
        self.dimension, self.reading = DIMENSION, EncodingOptions("", "", "cosine", None)
        self._vectors = {text: vector for each in known for text, vector in zip(each.texts, each.vectors, strict=True)}

    def encode_queries(self, queries: Any) -> Encoded:
        """Their vectors; none is ever cut."""
        return Encoded(np.stack([self._vectors[query] for query in queries]), [False] * len(queries))


class Deleted(Retriever):
    """The bare index without some passages."""

    fingerprint = "deleted"

    def __init__(self, base: Dense, gone: set[int]) -> None:
        library = needed("faiss", "dense", "this benchmark")
        self._base, self._not = base, library.IDSelectorBatch(np.array(sorted(gone), dtype=np.int64))
        self._kept = library.IDSelectorNot(self._not)
        self._how = library.SearchParametersHNSW(sel=self._kept, efSearch=SETTINGS["ef_search"])

    def find(self, queries: Any, k: int) -> list[list[Passage]]:
        """FAISS's own filtered search."""
        found = self._base.faiss.search(self._base.encoder.encode_queries(queries).vectors, k, params=self._how)[1]
        return [[self._base.passages[at] for at in row if at >= 0] for row in found]


def world_of(passages: int, held: int, seed: int) -> World:
    """Everything that is random, from one seed."""
    rng, clusters = np.random.default_rng(seed), passages // SIZE

    def units(*shape: int) -> Any:
        vectors = rng.normal(size=shape)
        return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)

    middle, axis = units(clusters, DIMENSION), units(clusters, DIMENSION)

    def asked(kind: str, cluster: Any, facet: Any, noise: float, around: Any = None) -> Asked:
        start = middle[cluster] if around is None else around
        push = FACET * (2 * facet - 1)[:, None] * axis[cluster] if around is None else 0
        vectors = start + push + noise * units(len(cluster), DIMENSION)
        vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        texts = [f"Who turned {'off' if f else 'on'} the radio {kind}{letters(n)}?" for n, f in enumerate(facet)]
        return Asked(texts, vectors.astype(np.float32), cluster, facet)

    places = rng.permutation(clusters * SIZE)
    here = asked("p", places // SIZE, places % 2, PASSAGE_NOISE)
    of = np.tile(np.arange(clusters), 4)
    judged = asked("j", of, (rng.random(len(of)) < 1 / 3).astype(int), QUESTION_NOISE)
    origin = rng.permutation(len(of))[:held]
    cluster, facet, around = judged.cluster[origin], judged.facet[origin], judged.vectors[origin]
    groups = {
        "near": asked("n", cluster, facet, WORDING, around),
        "new": asked("w", cluster, facet, QUESTION_NOISE),
        "turned": asked("t", cluster, 1 - facet, WORDING, around),
    }
    return World(here, judged, groups)


def letters(number: int) -> str:
    """A number as a word without digits: two questions with other numbers are two questions to the overlay's guard."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def bare_index(world: World, m: int) -> Dense:
    """A dense HNSW index over the passages; the encoder knows the questions."""
    settings = {**SETTINGS, "m": m}
    graph = dense.build_index(world.passages.vectors, settings, lambda *_: None)
    passages = [Passage(str(at), "", text) for at, text in enumerate(world.passages.texts)]
    settings |= {"graph": dense.graph_digest(graph)}
    corpus = CorpusInfo(name="simulated", sha256="0" * 64)
    manifest = Manifest(kind="dense", fingerprint="0" * 16, passages=len(passages), corpus=corpus, settings=settings)
    return Dense(manifest, passages, graph, Words(world.judged, *world.held.values()), None)


def judge(world: World, found: Found) -> Witnesses:
    """What the oracle says of the bare index's results, question by question."""
    state = Witnesses()
    for at, (text, row) in enumerate(zip(world.judged.texts, found, strict=True)):
        verdicts = {str(passage): world.accepts(world.judged, at, passage) for passage in row}
        for line in witnesses.judged_lines(text, verdicts, NO_JUDGE):
            state.apply(line)
    return state


def deleted(world: World, found: Found, threshold: int) -> set[int]:
    """Passages rejected that often, and more often than accepted."""
    rejected, accepted = Counter[int](), Counter[int]()
    for at, row in enumerate(found):
        for passage in row:
            (accepted if world.accepts(world.judged, at, passage) else rejected)[passage] += 1
    return {passage for passage, times in rejected.items() if times >= max(threshold, accepted[passage] + 1)}


def unreached(graph: Any) -> int:
    """Nodes that no walk reaches: down from the entry point, on each level from all that the level above reached."""
    library, hnsw = needed("faiss", "dense", "this benchmark"), graph.hnsw
    every, offsets = library.vector_to_array(hnsw.neighbors), library.vector_to_array(hnsw.offsets)
    within, seen = library.vector_to_array(hnsw.cum_nneighbor_per_level), {hnsw.entry_point}
    for level in range(hnsw.max_level, -1, -1):
        front = list(seen)
        while front:
            begin = int(offsets[front.pop()])
            for other in every[begin + within[level] : begin + within[level + 1]].tolist():
                if other < 0:
                    break
                if other not in seen:
                    seen.add(other)
                    front.append(other)
    return graph.ntotal - len(seen)

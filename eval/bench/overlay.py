"""What an overlay of 100,000 separations adds to a search: trimmed against bare, query by query, in turns.

    OMP_NUM_THREADS=1 python eval/bench/overlay.py [--separations 100000] [--queries 600] [--share 0.33] [--corpus FILE]
        [--encoder FOLDER|minilm] [--passages 20000]

Flat, hnsw and ivf over 20,000 clustered vectors of 384 numbers; a query's vector is looked up and not computed, so that
an encoder, which takes many times longer, hides nothing; with `--encoder` that one encodes each query besides, as a
search does, and only its time counts. BM25 over a corpus file, or over generated passages without
one, with queries of seven words of a passage. Each question judged keeps five of its ten passages; two questions judge
the same so that each pair has two witnesses (`--threshold 1`: one question, one witness). A share of the queries are
such questions in other words and are trimmed, the rest were never judged. Times are medians a query at k=10, of the
searching thread's processor time, so that a busy machine slows neither side; the ratio is of sums over all queries,
its spread that of ten blocks.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blendfilter.records import Passage
from blendfilter.retrieval import dense
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.retrieval.dense import Dense
from blendfilter.retrieval.encoders import Encoded, Vectors
from blendfilter.retrieval.manifest import CorpusInfo, Manifest
from blendfilter.trimming import witnesses as lines
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.similar import ByVector
from blendfilter.trimming.witnesses import JudgedBy, Witnesses, question_id

PASSAGES, DIMENSION, CLUSTERS, K, BLOCKS = 20_000, 384, 2_000, 10, 10
BY = JudgedBy("bench", "word", ("phi1",), "none", "")
KINDS = {
    "flat": {"index": "flat"},
    "hnsw": {"index": "hnsw", "m": 32, "ef_construction": 200, "ef_search": 64},
    "ivf": {"index": "ivf", "nlist": 50, "nprobe": 5},
}


class LookedUp:
    """An encoder that knows its queries: what is timed is the index and the overlay."""

    name, identity, dimension = "looked up", "looked up", DIMENSION
    reading = type("Reading", (), {"query_limit": None})()

    def __init__(self) -> None:
        self.known: dict[str, Vectors] = {}
        self.real: Any = None
        """Encodes too, where a search is to take as long as it does."""

    def encode_queries(self, queries: Sequence[str]) -> Encoded:
        """Their vectors."""
        if self.real is not None:
            self.real.encode_queries(queries)
        return Encoded(np.stack([self.known[query] for query in queries]), [False] * len(queries))


class World(NamedTuple):
    """An index, what makes a question that it answers, and what says a question in other words."""

    index: Retriever
    ask: Callable[[], str]
    again: Callable[[str], str]


def words(chance: random.Random, count: int) -> str:
    """Made-up words: no two questions share one by more than chance."""
    return " ".join("".join(chance.choices("abcdefghijklmnoprstuw", k=7)) for _ in range(count))


def clustered(kinds: Sequence[str]) -> dict[str, World]:
    """The dense indexes, over the same vectors."""
    chance, numbers = random.Random(5), np.random.default_rng(5)
    centres = numbers.standard_normal((CLUSTERS, DIMENSION))
    belongs = numbers.integers(0, CLUSTERS, PASSAGES)
    vectors = unit(centres[belongs] + 0.5 * numbers.standard_normal((PASSAGES, DIMENSION)))
    passages = [Passage(f"p{at}", f"Title {at}", words(chance, 12)) for at in range(PASSAGES)]
    encoder = LookedUp()

    def ask() -> str:
        text = f"who {words(chance, 5)}?"
        at = numbers.integers(0, CLUSTERS)
        encoder.known[text] = unit(centres[at : at + 1] + 0.5 * numbers.standard_normal((1, DIMENSION)))[0]
        return text

    def again(question: str) -> str:
        text = f"{question[:-1]} {words(chance, 1)}?"
        near = encoder.known[question] + 0.2 / DIMENSION**0.5 * numbers.standard_normal(DIMENSION)
        encoder.known[text] = unit(near[None])[0]
        return text

    made = {}
    for kind in kinds:
        settings: dict[str, Any] = KINDS[kind]
        faiss = dense.build_index(vectors, settings, lambda *_: None)
        corpus = CorpusInfo(name="", sha256="")
        manifest = Manifest(kind="dense", fingerprint="0" * 16, passages=PASSAGES, corpus=corpus, settings=settings)
        made[kind] = World(Dense(manifest, passages, faiss, encoder, None), ask, again)  # type: ignore[arg-type]
    return made


def unit(vectors: Any) -> Vectors:
    """Of length 1 each."""
    return np.ascontiguousarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def lexical(corpus: Path | None, count: int) -> World:
    """BM25: a question is seven words of a passage in disorder; in other words it is another disorder."""
    chance = random.Random(6)
    if corpus:
        passages = list(read_corpus(corpus))
    else:
        vocabulary = [words(chance, 1) for _ in range(30_000)]
        weights = [1 / rank for rank in range(20, 30_020)]
        passages = [Passage(f"p{at}", "", " ".join(chance.choices(vocabulary, weights, k=60))) for at in range(count)]

    def ask() -> str:
        while True:
            known = [word for word in chance.choice(passages).text.split() if word.isalpha()]
            if len(known) >= 12:
                return " ".join(["who", *(word.lower() for word in chance.sample(known, 7))])

    def again(question: str) -> str:
        known = question.split()
        return " ".join(chance.sample(known, len(known)))

    return World(BM25.build(passages), ask, again)


def judged(world: World, separations: int, threshold: int) -> tuple[Witnesses, list[str]]:
    """Witnesses until so many pairs have two each, and the questions that were judged."""
    witnesses, questions = Witnesses(), list[str]()
    while witnesses.separations() < separations:
        asked = [world.ask() for _ in range(64)]
        for question, found in zip(asked, world.index.find(asked, K), strict=True):
            for each in (question, *(world.again(question) for _ in range(threshold - 1))):
                judge(witnesses, each, found)
            questions.append(question)
    return witnesses, questions


def judge(witnesses: Witnesses, question: str, found: Sequence[Passage]) -> None:
    """Every other passage is rejected, the first one accepted."""
    name = question_id(question)
    witnesses.apply(lines.question_line(question, BY))
    for rank, passage in enumerate(found):
        witnesses.apply(lines.verdict_line(name, passage.id, rank % 2 == 0))
    witnesses.apply(lines.closed_line(name, [passage.id for passage in found]))


def timed(bare: Retriever, trimmed: Trimmed, queries: Sequence[str]) -> tuple[list[float], list[float]]:
    """Processor seconds a query of each, in turns, first one and then the other first."""
    times: dict[Retriever, list[float]] = {bare: [], trimmed: []}
    for at, query in enumerate(queries):
        for index in (bare, trimmed) if at % 2 else (trimmed, bare):
            started = time.thread_time()
            index.search([query], K)
            times[index].append(time.thread_time() - started)
    return times[bare], times[trimmed]


def measure(
    name: str, world: World, separations: int, count: int, share: float, threshold: int, real: Any = None
) -> None:
    """One line of the table; `real` encodes besides."""
    witnesses, questions = judged(world, separations, threshold)
    chance = random.Random(8)
    started = time.perf_counter()
    similar = ByVector(world.index.encoder) if isinstance(world.index, Dense) else None
    trimmed = Trimmed(world.index, witnesses, threshold=threshold, similar=similar)
    opened = time.perf_counter() - started
    queries = [
        world.again(chance.choice(questions)) if chance.random() < share else world.ask() for _ in range(count + 50)
    ]
    if isinstance(world.index, Dense):
        world.index.encoder.real = real  # type: ignore[attr-defined]
    timed(world.index, trimmed, queries[:50])
    queries = queries[50:]
    bare, over = timed(world.index, trimmed, queries)
    if isinstance(world.index, Dense):
        world.index.encoder.real = None  # type: ignore[attr-defined]
    applied = sum(a != b for a, b in zip(world.index.find(queries, K), trimmed.find(queries, K), strict=True))
    size = count // BLOCKS
    spread = [sum(over[at : at + size]) / sum(bare[at : at + size]) for at in range(0, size * BLOCKS, size)]
    print(
        f"{name:6}{len(witnesses.judged):8,}{witnesses.separations():10,}{opened:8.2f}{100 * applied / count:9.0f} %"
        f"{1e6 * statistics.median(bare):10.0f}{1e6 * statistics.median(over):10.0f}"
        f"{sum(over) / sum(bare):8.2f}   {min(spread):.2f} to {max(spread):.2f}"
    )


def encoder_of(name: str) -> Any:
    """The encoder in a folder, or the tests' own."""
    from blendfilter.retrieval.encoders import load_encoder

    if name == "minilm":
        sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
        from checkpoints import minilm

        return load_encoder(minilm())
    return load_encoder(name)


def main() -> None:
    """A line for each kind of index."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--separations", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=600)
    parser.add_argument("--share", type=float, default=0.33, help="of queries that are judged ones in other words")
    parser.add_argument("--threshold", type=int, default=2)
    parser.add_argument("--corpus", type=Path, help="for BM25; without one, passages are made up")
    parser.add_argument("--passages", type=int, default=PASSAGES, help="of BM25's made-up ones")
    parser.add_argument("--encoder", help="encodes each query of the dense indexes besides; minilm: the tests' own")
    parser.add_argument("--kinds", default="flat,hnsw,ivf,bm25")
    asked = parser.parse_args()
    kinds, real = asked.kinds.split(","), encoder_of(asked.encoder) if asked.encoder else None
    print("index   judged     pairs  open s  trimmed   bare us  with us   ratio   in ten blocks")
    settings = asked.separations, asked.queries, asked.share, asked.threshold
    for name, world in clustered([kind for kind in kinds if kind in KINDS]).items():
        measure(name, world, *settings, real)
    if "bm25" in kinds:
        measure("bm25", lexical(asked.corpus, asked.passages), *settings)


if __name__ == "__main__":
    main()

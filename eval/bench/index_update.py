"""Adding to an index and deleting from it, beside building it again: seconds, and whether the same is found.

    python eval/bench/index_update.py --corpus corpus/hotpotqa.jsonl.gz [--engine bm25 flat hnsw ivf] [--base 100000]
        [--add 1000 10000 100000] [--dimension 384]

A corpus that is too short begins again under other ids. Dense indexes are over random vectors, each near one of 1,000
topics, so that no encoder runs: an update encodes what is added, and building again encodes everything. Seconds are the
processor's, with the clock's behind them. What is found is held against every vector, or, for BM25, against the index
that was built again: the share of the ten best of 100 queries that the updated index has, and the one built again.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from blendfilter.records import Passage
from blendfilter.retrieval import dense
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.retrieval.encoders import Encoded, EncodingOptions
from blendfilter.retrieval.indexes import open_index
from blendfilter.retrieval.stored import Stored


class RandomEncoder:
    """A unit vector for each text, near those of the texts that begin alike (one of 1,000 topics)."""

    name, identity = "random", "0" * 64
    reading = EncodingOptions("", "", "cosine", 512)

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._topics = np.random.default_rng(0).standard_normal((1000, dimension), dtype=np.float32)

    def line(self, passage: Passage) -> str:
        return passage.line

    def is_the_one(self, identity: str) -> bool:
        return identity == self.identity

    def encode_passages(self, texts: Sequence[str], batch_size: int = 64) -> tuple[Any, list[bool]]:
        numbers = [zlib.crc32(text.encode()) for text in texts]
        noise = np.stack([np.random.default_rng(n).standard_normal(self.dimension, dtype=np.float32) for n in numbers])
        vectors = self._topics[[number % 1000 for number in numbers]] + noise
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True), [False] * len(texts)

    def encode_queries(self, texts: Sequence[str]) -> Encoded:
        return Encoded(*self.encode_passages(texts))


def timed(work: Callable[[], Any]) -> tuple[Any, str]:
    """What `work` gives, and its seconds."""
    clock, processor = time.perf_counter(), time.process_time()
    made = work()
    return made, f"{time.process_time() - processor:.1f} s ({time.perf_counter() - clock:.1f})"


def best(index: Any, queries: Sequence[str]) -> list[set[str]]:
    """The ids of the ten best passages for each query: of a dense index by comparing every vector."""
    if index.info()["kind"] != "dense":
        return [{p.id for p in hits} for hits in index.search(queries, 10)]
    scores = index.encoder.encode_queries(queries).vectors @ index.vectors(range(len(index))).T
    return [{index.passages[int(at)].id for at in np.argpartition(-row, 10)[:10]} for row in scores]


def share(index: Stored, wanted: list[set[str]], queries: Sequence[str]) -> float:
    """How much of `wanted` the index finds."""
    found = [{p.id for p in hits} for hits in index.search(queries, 10)]
    return sum(len(a & b) / len(b) for a, b in zip(found, wanted, strict=True)) / len(wanted)


def measure(engine: str, given: argparse.Namespace, read: list[Passage], folder: Path) -> None:
    """A line an update of one engine's index."""

    def passages(first: int, last: int) -> Iterator[Passage]:
        rounds = ((copy, passage) for copy in itertools.count() for passage in read)
        for copy, passage in itertools.islice(rounds, first, last):
            yield replace(passage, id=f"{passage.id}-{copy}", text=f"{passage.text} {copy}")

    def make(out: Path, last: int) -> Any:
        if engine == "bm25":
            return BM25.build(passages(0, last), out)
        return dense.Dense.build(passages(0, last), out, encoder="random", index=engine)

    def opened() -> Any:
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(base, place)
        return open_index(place)

    base, place, again = (folder / f"{engine}-{what}" for what in ("base", "updated", "again"))
    queries = [passage.line for passage in itertools.islice(passages(0, given.base), 0, None, given.base // 100)]
    _, seconds = timed(partial(make, base, given.base))
    print(f"{engine}: {given.base:,} passages built in {seconds}", flush=True)
    for count in given.add:
        new, seconds = timed(partial(opened().update, passages(given.base, given.base + count)))
        whole, rebuilt = timed(partial(make, again, given.base + count))
        wanted = best(whole, queries)
        shares = f"found {share(new, wanted, queries):.3f} and {share(whole, wanted, queries):.3f}"
        equal = "equal" if new.fingerprint == whole.fingerprint else "two"
        print(
            f"{engine}: + {count:,} in {seconds}, built again in {rebuilt}; {shares}; {equal} fingerprints", flush=True
        )
        shutil.rmtree(again)
    gone = [p.id for p in itertools.islice(passages(0, given.base), 0, None, given.base // given.delete)]
    _, seconds = timed(partial(opened().update, delete=gone))
    print(f"{engine}: - {len(gone):,} in {seconds}", flush=True)


def main() -> None:
    """A line an update."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="any corpus file that blendfilter reads")
    parser.add_argument("--engine", nargs="+", default=["bm25", "flat", "hnsw", "ivf"])
    parser.add_argument("--base", type=int, default=100_000)
    parser.add_argument("--add", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--delete", type=int, default=1000)
    parser.add_argument("--dimension", type=int, default=384)
    given = parser.parse_args()
    dense.load_encoder = lambda *_, **__: RandomEncoder(given.dimension)  # type: ignore[attr-defined]
    read = list(read_corpus(given.corpus))
    for engine in given.engine:
        with tempfile.TemporaryDirectory() as folder:
            measure(engine, given, read, Path(folder))


if __name__ == "__main__":
    main()

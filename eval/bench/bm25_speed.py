"""BM25 search at 200,000 passages: our class, the same in shards, bm25s called directly, and rank-bm25.

    python eval/bench/bm25_speed.py [--passages 200000] [--queries 200] [--shards 4]

Synthetic passages of 60 words, drawn by Zipf's law from 50,000; the 30 commonest are left out, as stop words are (with
`--commonest 0` they stay). Queries are eight words of one passage each. Ours and bm25s search the same folder in turns,
top 10; rank-bm25 gets a few queries, for each visits every passage. With --shards the same corpus in so many shards is
searched in turns with the one index, every hit and score is compared, and rank-bm25 is left out.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import bm25s
from rank_bm25 import BM25Okapi

from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.indexes import open_index
from blendfilter.retrieval.sharded import build_sharded

WORDS, LENGTH, K = 50_000, 60, 10


def made(passages: int, queries: int, commonest: int) -> tuple[list[Passage], list[str]]:
    """The corpus and the queries, the same on every run."""
    chance = random.Random(7)
    weights = list(accumulate(1 / (commonest + rank) for rank in range(1, WORDS + 1)))
    words = [f"w{number:05d}" for number in range(WORDS)]
    texts = [chance.choices(words, cum_weights=weights, k=LENGTH) for _ in range(passages)]
    asked = [" ".join(chance.sample(chance.choice(texts), 8)) for _ in range(queries)]
    return [Passage(str(at), "", " ".join(text)) for at, text in enumerate(texts)], asked


def timed(search: Callable[[str], Any], queries: list[str]) -> float:
    """Median seconds a query."""
    times = []
    for query in queries:
        started = time.perf_counter()
        search(query)
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def in_shards(whole: Retriever, corpus: list[Passage], queries: list[str], shards: int, folder: Path) -> None:
    """Compare hits, scores and time of the one index and of the same in shards, and print them."""
    began = time.perf_counter()
    sharded = build_sharded(lambda: corpus, folder, shards)
    built, same = time.perf_counter() - began, 0
    for query in queries:
        one, other = ([(p.id, p.score) for p in index(query, k=K)] for index in (whole, sharded))
        same += one == other
    times = [[timed(lambda q, index=index: index.search([q], K), [query]) for index in (whole, sharded)]
             for query in queries * 3]  # fmt: skip
    mine, theirs = (1000 * statistics.median(column) for column in zip(*times, strict=True))
    print(f"{len(corpus):,} passages, {shards} shards (built in {built:.0f} s): {same} of {len(queries)} queries have "
          f"the same ids and scores; ms a query, medians: one index {mine:.3f}, shards {theirs:.3f}, ratio "
          f"{theirs / mine:.2f}")  # fmt: skip


def main() -> None:
    """Build, search three ways, print ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=int, default=200_000)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--shards", type=int, help="compare with an index of so many shards")
    parser.add_argument("--commonest", type=int, default=30, help="words of the highest ranks left out")
    asked = parser.parse_args()
    corpus, queries = made(asked.passages, asked.queries, asked.commonest)
    with tempfile.TemporaryDirectory() as folder:
        BM25.build(corpus, Path(folder) / "index")
        started = time.perf_counter()
        ours = open_index(Path(folder) / "index")
        opened = time.perf_counter() - started
        if asked.shards:
            in_shards(ours, corpus, queries, asked.shards, Path(folder) / "sharded")
            return
        direct = bm25s.BM25.load(Path(folder) / "index", mmap=True, show_progress=False)
        vocabulary = direct.vocab_dict

        def theirs(query: str) -> Any:
            # the same words on both sides: none of these is a stop word, and the stemmer leaves them alone
            ids = [[vocabulary[word] for word in query.split() if word in vocabulary]]
            return direct.retrieve(ids, k=K, show_progress=False, n_threads=0)

        for query in queries[:20]:  # pages of the mapped files come in
            ours.search([query], K), theirs(query)
        pairs = [(timed(lambda q: ours.search([q], K), [query]), timed(theirs, [query])) for query in queries * 3]
        mine, direct_time = (statistics.median(column) for column in zip(*pairs, strict=True))
        batch = time.perf_counter()
        ours.search(queries, K)
        batch = (time.perf_counter() - batch) / len(queries)
    plain = BM25Okapi([passage.text.split() for passage in corpus])
    slow = timed(lambda q: plain.get_top_n(q.split(), range(len(corpus)), n=K), queries[:10])
    print(f"{asked.passages:,} passages; open {1000 * opened:.0f} ms; ms a query, medians: ours {1000 * mine:.3f} "
          f"(in a batch {1000 * batch:.3f}), bm25s {1000 * direct_time:.3f}, rank-bm25 {1000 * slow:.1f}")  # fmt: skip
    print(f"ours / bm25s {mine / direct_time:.2f}; rank-bm25 / ours {slow / mine:.0f}")


if __name__ == "__main__":
    main()

"""What every kind of index promises, asked of each of them: one list of passages a query, best first, whole searches
journaled under a fingerprint, refusals in one line, threads, copies, DSPy.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import bm25s
import dspy
import pytest
import Stemmer
from checkpoints import tiny_bert, tiny_colbert, tiny_cross_encoder
from index_server import served

from blendfilter.context import setting
from blendfilter.errors import BadArgument, ReplayMiss
from blendfilter.journal import Journal
from blendfilter.records import Passage
from blendfilter.resources import sample
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.callables import as_retriever
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.retrieval.hybrid import Hybrid
from blendfilter.retrieval.indexes import build, open_index
from blendfilter.retrieval.precomputed import Precomputed
from blendfilter.retrieval.reranked import Reranked
from blendfilter.retrieval.sharded import build_sharded

PASSAGES = list(islice(read_corpus(sample("corpus.jsonl")), 60))
QUERIES = ["Which town has a harbour?", "the king of the island", "old ship"]
BY_ID = {passage.id: passage for passage in PASSAGES}
Maker = Callable[[Path, ExitStack], Retriever]


def engine(name: str, **settings: Any) -> Maker:
    """An index built into a folder, and opened from it."""

    def make(folder: Path, _: ExitStack) -> Retriever:
        extra = {key: value() if callable(value) else value for key, value in settings.items()}
        build(name, PASSAGES, folder / "index", **extra)
        return open_index(folder / "index")

    return make


def remote(folder: Path, stack: ExitStack) -> Retriever:
    server = stack.enter_context(served(build("bm25", PASSAGES, folder / "index")))
    return open_index(server.url)


def hybrid(folder: Path, _: ExitStack) -> Retriever:
    return Hybrid([build("bm25", PASSAGES), build("rank-bm25", PASSAGES)])


def reranked(model: Callable[[], Path]) -> Maker:
    """BM25, its best passages in the order of a model."""
    return lambda folder, _: Reranked(build("bm25", PASSAGES), model(), depth=20)


def precomputed(folder: Path, _: ExitStack) -> Retriever:
    index = build("bm25", PASSAGES)
    with open(folder / "hits.jsonl", "w", encoding="utf-8") as file:
        for query in QUERIES:
            rows = [{"id": p.id, "title": p.title, "text": p.text, "score": p.score} for p in index(query, k=20)]
            file.write(json.dumps({"query": query, "passages": rows}) + "\n")
    return Precomputed(folder / "hits.jsonl")


def bm25s_folder(folder: Path, _: ExitStack) -> Retriever:
    theirs = bm25s.BM25()
    tokens = bm25s.tokenize([p.line for p in PASSAGES], stopwords="en", stemmer=Stemmer.Stemmer("english"),
                            show_progress=False)  # fmt: skip
    theirs.index(tokens, show_progress=False)
    rows = [{"id": p.id, "title": p.title, "text": p.text} for p in PASSAGES]
    theirs.save(folder / "index", corpus=rows)
    return open_index(folder / "index", stemmer="english", stopwords="english")


def function(folder: Path, _: ExitStack) -> Retriever:
    index = build("bm25", PASSAGES)
    return as_retriever(lambda query, k: index.find([query], k)[0], fingerprint="0123456789abcdef")


def sharded(folder: Path, _: ExitStack) -> Retriever:
    return build_sharded(lambda: PASSAGES, folder / "index", 3)


KINDS: dict[str, Maker] = {
    "bm25": engine("bm25"),
    "rank-bm25": engine("rank-bm25"),
    "colbert": engine("colbert", checkpoint=tiny_colbert),
    "dense-flat": engine("dense", encoder=tiny_bert),
    "dense-hnsw": engine("dense", encoder=tiny_bert, index="hnsw"),
    "dense-ivf": engine("dense", encoder=tiny_bert, index="ivf", nlist=4),
    "sharded": sharded,
    "hybrid": hybrid,
    "reranked-cross": reranked(tiny_cross_encoder),
    "reranked-late": reranked(tiny_colbert),
    "remote": remote,
    "precomputed": precomputed,
    "bm25s": bm25s_folder,
    "function": function,
}


@pytest.fixture(scope="module", params=KINDS)
def index(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Retriever]:
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield KINDS[request.param](tmp_path_factory.mktemp(request.param), stack)


def ids(found: list[list[Passage]]) -> list[list[str]]:
    return [[passage.id for passage in each] for each in found]


def test_a_search_gives_a_ranked_list_a_query(index: Retriever) -> None:
    found = index.search(QUERIES, 5)
    assert len(found) == len(QUERIES)
    for passages in found:
        assert 0 < len(passages) <= 5
        assert len({passage.id for passage in passages}) == len(passages)
        scores = [passage.score for passage in passages if passage.score is not None]
        assert scores == sorted(scores, reverse=True)
        for passage in passages:
            source = BY_ID[passage.id]
            assert (passage.title, passage.text) == (source.title, source.text)


def test_a_batch_finds_what_its_queries_find_alone(index: Retriever) -> None:
    together = index.search(QUERIES, 5)
    assert ids(together) == [ids(index.search([query], 5))[0] for query in QUERIES]
    assert ids(index.search(QUERIES[::-1], 5)) == ids(together)[::-1]
    assert index.search([], 5) == []


def test_a_smaller_k_is_the_head_of_a_larger_one(index: Retriever) -> None:
    assert [each[:2] for each in ids(index.search(QUERIES, 5))] == ids(index.search(QUERIES, 2))


@pytest.mark.parametrize(
    ("queries", "k", "stated"),
    [
        (["town"], 0, "k is 0: give a whole number of 1 or more"),
        (["town"], 2.5, "k is 2.5: give a whole number of 1 or more"),
        (["  "], 5, "the query is empty"),
        ("town", 5, "search takes a list of queries"),
    ],
)
def test_what_is_refused(index: Retriever, queries: Any, k: Any, stated: str) -> None:
    with pytest.raises(BadArgument, match=re.escape(stated)) as refused:
        index.search(queries, k)
    assert "\n" not in str(refused.value)


def test_it_says_what_it_is(index: Retriever) -> None:
    assert re.fullmatch("[0-9a-f]{16}", index.fingerprint)
    info = index.info()
    assert info["fingerprint"] == index.fingerprint
    assert info["kind"]
    assert json.loads(json.dumps(info)) == info  # it goes into run.json
    assert bool(index)


def test_a_journaled_search_is_replayed_as_it_was(index: Retriever, tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, setting(journal=journal):
        live = index.search(QUERIES, 5)
    with Journal(tmp_path, "replay") as journal, setting(journal=journal):
        replayed = index.search(QUERIES, 5)
        with pytest.raises(ReplayMiss):
            index.search(QUERIES, 4)
    assert ids(replayed) == ids(live)
    assert [[p.score for p in each] for each in replayed] == [[p.score for p in each] for each in live]


def test_threads_share_it(index: Retriever) -> None:
    expected = {query: ids(index.search([query], 5)) for query in QUERIES}
    with ThreadPoolExecutor(6) as pool:
        jobs = [(query, pool.submit(index.search, [query], 5)) for query in QUERIES * 8]
        assert all(ids(job.result()) == expected[query] for query, job in jobs)


def test_it_is_dspys_retrieval_model(index: Retriever, fresh_dspy: None) -> None:
    with dspy.context(rm=index):
        texts = dspy.Retrieve(k=3)(QUERIES[0]).passages
    assert texts == [passage.line for passage in index(QUERIES[0], k=3)]

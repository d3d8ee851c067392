"""Requests gathered into batches: few searches, one k each, everybody gets their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from blendfilter.errors import BadArgument, CodeFailed
from blendfilter.records import Passage
from blendfilter.server.batching import Batcher, ServedCounts


class Engine:
    """Answers each query with itself and k; the first search waits until `go` is set, so that others queue."""

    def __init__(self) -> None:
        self.batches: list[tuple[list[str], int]] = []
        self.threads: set[int] = set()
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.batches.append((list(queries), k))
        self.threads.add(threading.get_ident())
        self.begun.set()
        assert self.go.wait(10)
        if any("bad" in query for query in queries):
            raise BadArgument("no such query")
        if any("broken" in query for query in queries):
            raise RuntimeError(f"the engine broke over {len(queries)}")
        return [[Passage(query, "", f"{query} {k}")] for query in queries]


async def kept(batcher: Batcher, engine: Engine) -> asyncio.Task[object]:
    """A first request, at work by now."""
    first = asyncio.create_task(batcher.find(engine, ["first"], 1))
    while not engine.begun.is_set():
        await asyncio.sleep(0.001)
    return first


Found = list[Sequence[Passage]]


def ask(batcher: Batcher, engine: Engine, *wanted: tuple[list[str], int]) -> list[asyncio.Task[Found]]:
    return [asyncio.create_task(batcher.find(engine, queries, k)) for queries, k in wanted]


def texts(found: Sequence[Sequence[Passage]]) -> list[str]:
    return [hits[0].text for hits in found]


def test_what_arrives_during_a_search_goes_together_by_k_oldest_first() -> None:
    async def run() -> None:
        engine = Engine()
        batcher = Batcher()
        first = await kept(batcher, engine)
        rest = ask(batcher, engine, (["a"], 5), (["b", "c"], 5), (["d"], 10), (["e"], 5), (["f"], 10))
        await asyncio.sleep(0.01)
        engine.go.set()
        found = await asyncio.gather(*rest)
        await first
        assert [texts(each) for each in found] == [["a 5"], ["b 5", "c 5"], ["d 10"], ["e 5"], ["f 10"]]
        assert engine.batches == [(["first"], 1), (["a", "b", "c", "e"], 5), (["d", "f"], 10)]
        assert batcher.counts == ServedCounts(requests=6, queries=7, batches=3, largest_batch=4)
        assert len(engine.threads) == 1
        assert engine.threads != {threading.get_ident()}

    asyncio.run(run())


def test_a_batch_has_a_limit_and_equal_queries_count_once() -> None:
    async def run() -> None:
        engine = Engine()
        batcher = Batcher(max_batch=2)
        await kept(batcher, engine)
        rest = ask(batcher, engine, (["a"], 1), (["a"], 1), (["b"], 1), (["c"], 1), (["a", "a"], 1), (["c", "d"], 1))
        await asyncio.sleep(0.01)
        engine.go.set()
        found = await asyncio.gather(*rest)
        assert [texts(each) for each in found] == [["a 1"], ["a 1"], ["b 1"], ["c 1"], ["a 1", "a 1"], ["c 1", "d 1"]]
        assert [queries for queries, _ in engine.batches] == [["first"], ["a", "b"], ["c", "d"]]
        assert batcher.counts.largest_batch == 2

    asyncio.run(run())


def test_one_bad_query_does_not_fail_its_neighbours() -> None:
    async def run() -> None:
        engine = Engine()
        batcher = Batcher()
        await kept(batcher, engine)
        rest = ask(batcher, engine, (["a"], 1), (["bad"], 1), (["broken"], 1), (["b", "broken"], 1), (["c"], 1))
        await asyncio.sleep(0.01)
        engine.go.set()
        found = await asyncio.gather(*rest, return_exceptions=True)
        assert isinstance(found[1], BadArgument)
        assert [str(found[at]) for at in (2, 3)] == ["the engine broke over 1"] * 2
        assert [texts(found[at]) for at in (0, 4)] == [["a 1"], ["c 1"]]  # type: ignore[arg-type]
        assert texts(await batcher.find(engine, ["after"], 1)) == ["after 1"]

    asyncio.run(run())


@pytest.mark.timeout(60)
@pytest.mark.parametrize("raised", [StopIteration, SystemExit])
def test_what_a_future_refuses_is_its_querys_error_and_the_next_is_answered(raised: type[BaseException]) -> None:
    def search(queries: Sequence[str], k: int) -> list[list[Passage]]:
        if "bad" in queries:
            raise raised
        return [[Passage(query, "", query)] for query in queries]

    async def ask_both() -> list[Sequence[Passage]]:
        batcher = Batcher()
        try:
            with pytest.raises(CodeFailed, match=raised.__name__):
                await batcher.find(search, ["bad"], 1)
            return await batcher.find(search, ["good"], 1)
        finally:
            batcher.close()

    assert texts(asyncio.run(ask_both())) == ["good"]

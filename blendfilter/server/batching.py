"""Concurrent searches in batches: one thread searches, and queries that arrive meanwhile form the next batch.

No query waits on purpose. A batch holds queries of one index and one k, for k may change how an engine searches. The
oldest query goes first, and a query of several requests is searched once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blendfilter.aio import Threads, in_thread
from blendfilter.records import Passage

Search = Callable[[Sequence[str], int], Sequence[Sequence[Passage]]]


@dataclass(slots=True)
class ServedCounts:
    """Counters since the start. `largest_batch` counts the different queries searched at once."""

    requests: int = 0
    queries: int = 0
    batches: int = 0
    largest_batch: int = 0


@dataclass(slots=True, eq=False)
class _WaitingQuery:
    """One query of one request, and the future of its passages."""

    query: str
    k: int
    search: Search
    found: asyncio.Future[Sequence[Passage]]


class Batcher:
    """Searches for concurrent requests, at most `max_batch` different queries at once."""

    def __init__(self, *, max_batch: int = 64, max_waiting: int = 1024) -> None:
        self._max_batch, self._max_waiting = max_batch, max_waiting
        self._queue: deque[_WaitingQuery] = deque()
        # `Threads`, because the process must end even if a search hangs
        self._thread = Threads(1, "blendfilter-search")
        self._working: asyncio.Task[None] | None = None
        self.counts = ServedCounts()

    async def find(
        self, search: Search, queries: Sequence[str], k: int
    ) -> list[Sequence[Passage]]:
        """The passages of each query. Raises the error of `search` for one of them.

        Raises:
            asyncio.QueueFull: too many queries wait already.
        """
        if len(self._queue) + len(queries) > self._max_waiting:
            raise asyncio.QueueFull
        loop = asyncio.get_running_loop()
        mine = [_WaitingQuery(query, k, search, loop.create_future()) for query in queries]
        self._queue.extend(mine)
        self.counts.requests += 1
        self.counts.queries += len(mine)
        if self._working is None or self._working.done():
            self._working = loop.create_task(self._work())
        return await asyncio.gather(*(waiting.found for waiting in mine))

    def close(self) -> None:
        """Let the thread end once it is idle."""
        self._thread.shutdown()

    async def _work(self) -> None:
        while batch := self._next():
            self.counts.batches += 1
            self.counts.largest_batch = max(self.counts.largest_batch, len(batch))
            await self._answer(batch)

    def _next(self) -> dict[str, list[_WaitingQuery]]:
        """Take the oldest query, and all that may go with it, out of the queue.

        Queries whose client has gone are dropped: their futures are cancelled.
        """
        batch: dict[str, list[_WaitingQuery]] = {}
        queue = [waiting for waiting in self._queue if not waiting.found.done()]
        self._queue.clear()
        for waiting in queue:
            alike = (waiting.k, waiting.search) == (queue[0].k, queue[0].search)
            if alike and (waiting.query in batch or len(batch) < self._max_batch):
                batch.setdefault(waiting.query, []).append(waiting)
            else:
                self._queue.append(waiting)
        return batch

    async def _answer(self, batch: dict[str, list[_WaitingQuery]]) -> None:
        """Search for a batch; if that fails, for each of its queries alone, so that one cannot fail its neighbours."""
        first = next(iter(batch.values()))[0]
        try:
            found = await in_thread(first.search, list(batch), first.k, executor=self._thread)
            answered = list(zip(batch.values(), found, strict=True))
        except Exception as error:  # noqa: BLE001 - it belongs to the query, not to the server
            if len(batch) == 1:
                for waiting in batch.popitem()[1]:
                    if not waiting.found.done():
                        waiting.found.set_exception(error)
            for query in [*batch]:
                await self._answer({query: batch[query]})
            return
        for waiters, passages in answered:
            for waiting in waiters:
                if not waiting.found.done():
                    waiting.found.set_result(passages)

"""Concurrent requests gathered into batches: one thread searches, and what arrives meanwhile goes along next.

Nothing waits on purpose. Only queries of one k share a batch, for k may change how an engine searches, and only those
of one index; the oldest goes first, and a query of several requests is searched once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from blendfilter.aio import Threads
from blendfilter.errors import BadArgument, CodeFailed, copied
from blendfilter.records import Passage

Search = Callable[[Sequence[str], int], Sequence[Sequence[Passage]]]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class ServedCounts:
    """What has been done so far. `largest_batch` counts different queries searched at once."""

    requests: int = 0
    queries: int = 0
    batches: int = 0
    largest_batch: int = 0


@dataclass(slots=True, eq=False)
class _WaitingQuery:
    """One query of one request, and where its passages go."""

    query: str
    k: int
    search: Search
    found: asyncio.Future[Sequence[Passage]]


class Batcher:
    """`search`, called from one thread, with as many queries at once as happen to wait.

    `search` may be set to another one: a request is answered by the one that there was when it came.
    """

    def __init__(self, search: Search, *, max_batch: int = 64, max_waiting: int = 1024) -> None:
        self.search: Search = search
        self._max_batch, self._max_waiting = max_batch, max_waiting
        self._queue: deque[_WaitingQuery] = deque()
        # one thread, which the process does not wait for: it would not end before a search that hangs does
        self._thread = Threads(1, "blendfilter-search")
        self._working: asyncio.Task[None] | None = None
        self.counts = ServedCounts()

    async def find(
        self, queries: Sequence[str], k: int, search: Search | None = None
    ) -> list[Sequence[Passage]]:
        """The passages of each query, by `search` or the one that there is. Raises what it raises for one of them.

        Raises:
            asyncio.QueueFull: too many wait already.
        """
        if len(self._queue) + len(queries) > self._max_waiting:
            raise asyncio.QueueFull
        loop = asyncio.get_running_loop()
        mine = [
            _WaitingQuery(query, k, search or self.search, loop.create_future())
            for query in queries
        ]
        self._queue.extend(mine)
        self.counts.requests += 1
        self.counts.queries += len(mine)
        if self._working is None or self._working.done():
            self._working = loop.create_task(self._work())
        # all are awaited even where one fails: asyncio warns of errors that are not fetched
        outcomes = await asyncio.gather(
            *(waiting.found for waiting in mine), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]

    def close(self) -> None:
        """Let the thread go once it is idle."""
        self._thread.shutdown()

    async def _work(self) -> None:
        while batch := self._next():
            queries, first = list(batch), next(iter(batch.values()))[0]
            self.counts.batches += 1
            self.counts.largest_batch = max(self.counts.largest_batch, len(queries))
            outcomes = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._outcomes, first.search, queries, first.k
            )
            for query, outcome in zip(queries, outcomes, strict=True):
                for waiting in batch[query]:
                    if waiting.found.done():  # its client has gone
                        continue
                    if isinstance(outcome, Exception):
                        waiting.found.set_exception(copied(outcome))
                    else:
                        waiting.found.set_result(outcome)

    def _next(self) -> dict[str, list[_WaitingQuery]]:
        """The oldest query and all that may go with it, out of the queue, without those of clients that have gone."""
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

    def _outcomes(
        self, search: Search, queries: Sequence[str], k: int
    ) -> list[Sequence[Passage] | Exception]:
        """Passages or an error for each query; where a batch fails, each of its queries is tried alone."""
        try:
            found = search(queries, k)
            if len(found) != len(queries):
                raise RuntimeError(
                    f"the index answered {len(queries)} queries with {len(found)} lists"
                )
            return list(found)
        except BaseException as error:
            # whatever an engine raises belongs to its query, not to the server
            if len(queries) == 1:
                if not isinstance(error, BadArgument):
                    logger.error("a search failed", exc_info=error)
                if isinstance(error, Exception) and not isinstance(error, StopIteration):
                    return [error]
                return [CodeFailed.by(error)]  # a future refuses it, or it would end the server
        return [self._outcomes(search, [query], k)[0] for query in queries]

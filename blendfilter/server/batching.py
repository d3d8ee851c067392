"""Concurrent requests gathered into batches: one thread searches, and what arrives meanwhile goes along next.

In: queries with their k, from many requests at once. Out: each request's passages, in its own order.
Nothing waits on purpose. Only queries of one k share a batch, for k may change how an engine searches; the oldest goes
first, and a query that several ask is searched once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from blendfilter.context import landed
from blendfilter.errors import BadArgument
from blendfilter.records import Passage

Hits = Sequence[Passage]
Search = Callable[[Sequence[str], int], Sequence[Hits]]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Counts:
    """What has been done so far. `largest_batch` counts different queries searched at once."""

    requests: int = 0
    queries: int = 0
    batches: int = 0
    largest_batch: int = 0


@dataclass(slots=True, eq=False)
class _Waiting:
    """One query of one request, and where its passages go."""

    query: str
    k: int
    found: asyncio.Future[Hits]


class Batcher:
    """`search`, called from one thread, with as many queries at once as happen to wait."""

    def __init__(self, search: Search, *, max_batch: int = 64, max_waiting: int = 1024) -> None:
        self._search = search
        self._max_batch, self._max_waiting = max_batch, max_waiting
        self._queue: deque[_Waiting] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="blendfilter-search")
        self._working: asyncio.Task[None] | None = None
        self.counts = Counts()

    async def find(self, queries: Sequence[str], k: int) -> list[Hits]:
        """The passages of each query. Raises what the search raises for one of them.

        Raises:
            asyncio.QueueFull: too many wait already.
        """
        if len(self._queue) + len(queries) > self._max_waiting:
            raise asyncio.QueueFull
        loop = asyncio.get_running_loop()
        mine = [_Waiting(query, k, loop.create_future()) for query in queries]
        self._queue.extend(mine)
        self.counts.requests += 1
        self.counts.queries += len(mine)
        if self._working is None or self._working.done():
            self._working = loop.create_task(self._work())
        # all are awaited even where one fails: an error that nobody fetches is complained about
        outcomes = await asyncio.gather(*(each.found for each in mine), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return [outcome for outcome in outcomes if not isinstance(outcome, BaseException)]

    def close(self) -> None:
        """Let the thread go once it is idle."""
        self._thread.shutdown(wait=False)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while batch := self._next():
            queries, k = list(batch), next(iter(batch.values()))[0].k
            self.counts.batches += 1
            self.counts.largest_batch = max(self.counts.largest_batch, len(queries))
            outcomes = await loop.run_in_executor(self._thread, self._outcomes, queries, k)
            for query, outcome in zip(queries, outcomes, strict=True):
                for each in batch[query]:
                    _settle(each.found, outcome)

    def _next(self) -> dict[str, list[_Waiting]]:
        """The oldest query and all that may go with it, out of the queue; whoever has gone is dropped."""
        batch: dict[str, list[_Waiting]] = {}
        waiting = [each for each in self._queue if not each.found.done()]
        self._queue.clear()
        for each in waiting:
            if each.k == waiting[0].k and (each.query in batch or len(batch) < self._max_batch):
                batch.setdefault(each.query, []).append(each)
            else:
                self._queue.append(each)
        return batch

    def _outcomes(self, queries: Sequence[str], k: int) -> list[Hits | Exception]:
        """Passages or an error for each query; where a batch fails, each of its queries is tried alone."""
        try:
            found = landed(partial(self._search, queries, k))
            if len(found) != len(queries):
                raise RuntimeError(f"the index answered {len(queries)} queries with {len(found)} lists")
            return list(found)
        except Exception as error:
            # whatever an engine raises belongs to its query, not to the server
            if len(queries) == 1:
                if not isinstance(error, BadArgument):
                    logger.error("a search failed", exc_info=error)
                return [error]
        return [self._outcomes([query], k)[0] for query in queries]


def _settle(found: asyncio.Future[Hits], outcome: Hits | Exception) -> None:
    if found.done():  # whoever asked has gone
        return
    if isinstance(outcome, Exception):
        found.set_exception(outcome)
    else:
        found.set_result(outcome)

"""The gate: how many model calls may be in flight at once, and whose turn it is.

Served oldest question first (`context.ORDER`), then in the order of asking: a run finishes its questions one after the
other and keeps its tail short. Journal hits never pass here.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from types import TracebackType

from blendfilter.context import ORDER
from blendfilter.errors import BadArgument


class Gate:
    """An `async with` that lets at most `limit` through at a time; of one loop.

    Raises:
        BadArgument: a limit below 1.
    """

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise BadArgument(f"concurrency must be at least 1, got {limit}")
        self.limit = limit
        self.in_flight = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._ticket = itertools.count()

    async def __aenter__(self) -> None:
        if self.in_flight < self.limit:
            self.in_flight += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (ORDER.get(), next(self._ticket), turn))
        try:
            await turn
        except asyncio.CancelledError:
            # The place may have been handed over in the same instant: pass it on.
            if turn.done() and not turn.cancelled():
                self._release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def _release(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)  # the place goes over; the count stays
                return
        self.in_flight -= 1

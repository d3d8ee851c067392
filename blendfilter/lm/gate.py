"""The gate: how many model calls may be in flight at once, and whose turn it is.

Served oldest question first (`context.ORDER`), then in the order of asking: a run finishes its questions one after the
other and keeps its tail short. Journal hits never pass here.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from types import TracebackType

from dspy import lm15

from blendfilter.context import ORDER
from blendfilter.errors import BadArgument


class Gate:
    """A meter, and an `async with`, that lets at most `limit` through at a time, from whichever loops.

    Raises:
        BadArgument: a limit below 1.
    """

    def __init__(self, limit: int) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise BadArgument(f"concurrency must be a whole number of at least 1, got {limit!r}")
        self.limit = limit
        self.in_flight = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._ticket = itertools.count()
        self._lock = threading.Lock()

    async def before(self, request: lm15.Request) -> None:
        """Wait for a place."""
        await self.__aenter__()

    def after(self, ticket: None, response: lm15.Response | None, error: BaseException | None) -> None:
        """Give the place back."""
        self._release()

    async def __aenter__(self) -> None:
        with self._lock:
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
        """Hand the place to whoever waits longest at the lowest rank; the count goes down only where nobody does."""
        while True:
            with self._lock:
                if not self._waiting:
                    self.in_flight -= 1
                    return
                _, _, turn = heapq.heappop(self._waiting)
            try:
                turn.get_loop().call_soon_threadsafe(self._grant, turn)
            except RuntimeError:
                continue  # its loop is closed: nobody waits there any more
            return

    def _grant(self, turn: asyncio.Future[None]) -> None:
        if turn.done():  # cancelled while it was on its way
            self._release()
        else:
            turn.set_result(None)

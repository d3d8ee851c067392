"""The gate: how many model calls may be in flight at once, and whose turn it is.

In: attempts, from whichever loops. Out: at most `allowed` of them at a time, oldest question first (`context.ORDER`),
then in the order of asking: a run finishes its questions one after the other and keeps its tail short. Journal hits
never pass here.

`allowed` follows the server, by additive increase and multiplicative decrease (Chiu and Jain 1989): a reply raises it
by a part of one, so that a full round of replies makes one place more; a server that throttles (429, or a 503 that says
when to come back) halves it, once for all that were on their way at the time. It lies between 1 and `limit`.

Differs from the paper: the last step to the number that was too many is taken eight times slower. A server that takes
one call at a time would otherwise refuse every second attempt, and some calls would use all of theirs up.
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
from blendfilter.lm.faults import throttled

DECREASE = 0.5
"""What is left of the places once a server throttles."""
CAUTION = 8
"""How much slower the places grow one below the number at which it did."""


class Gate:
    """A meter, and an `async with`, that lets at most `allowed` of `limit` through at a time, from whichever loops.

    Raises:
        BadArgument: a limit below 1.
    """

    def __init__(self, limit: int) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
            raise BadArgument(f"concurrency must be a whole number of at least 1, got {limit!r}")
        self.limit = limit
        self.in_flight = 0
        self._share = float(limit)
        self._too_many = limit + 1
        self._decreases = 0
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._ticket = itertools.count()
        self._lock = threading.Lock()

    @property
    def allowed(self) -> int:
        """How many may be in flight by now."""
        return int(self._share)

    async def before(self, request: lm15.Request) -> int:
        """Wait for a place; told is how often the places had been cut by then."""
        await self.__aenter__()
        return self._decreases

    def after(self, ticket: int, response: lm15.Response | None, error: BaseException | None) -> None:
        """Give the place back, and learn from what came of it."""
        with self._lock:
            if response is not None:
                self._grow()
            elif throttled(error) and ticket == self._decreases:
                self._too_many = self.allowed
                self._share = max(1.0, self._share * DECREASE)
                self._decreases += 1
        self._leave()

    def _grow(self) -> None:
        near = self.allowed == self._too_many - 1
        step = 1 / self._share / (CAUTION if near else 1)
        self._share = min(float(self.limit), self._share + step)

    async def __aenter__(self) -> None:
        with self._lock:
            if self.in_flight < self.allowed:
                self.in_flight += 1
                return
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (ORDER.get(), next(self._ticket), turn))
        try:
            await turn
        except asyncio.CancelledError:
            # The place may have been handed over in the same instant: pass it on.
            if turn.done() and not turn.cancelled():
                self._leave()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        """Hand what is free to those who wait longest at the lowest rank, before a newcomer could take it."""
        turns = []
        with self._lock:
            self.in_flight -= 1
            while self._waiting and self.in_flight < self.allowed:
                turns.append(heapq.heappop(self._waiting)[2])
                self.in_flight += 1
        for turn in turns:
            try:
                turn.get_loop().call_soon_threadsafe(self._grant, turn)
            except RuntimeError:
                self._leave()  # its loop is closed: nobody waits there any more

    def _grant(self, turn: asyncio.Future[None]) -> None:
        if turn.done():  # cancelled while it was on its way
            self._leave()
        else:
            turn.set_result(None)

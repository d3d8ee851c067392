"""How fast calls go out: the gate (how many at once) and the pace (how many a minute), oldest question first.

The gate follows the server, by additive increase and multiplicative decrease (Chiu and Jain 1989): a reply raises
`allowed` by a part of one, so that a full round of replies makes one place more; a server that throttles (429, or a 503
with a Retry-After) halves it, once for all that were on their way at the time. It lies between 1 and `limit`.

Differs from the paper: the last step to the number that was too many is taken eight times slower. A server that takes
one call at a time would otherwise refuse every second attempt, and some calls would use all of theirs up.

The pace is a sliding window: what went out is remembered for a minute, and the next waits until it fits beside that. It
belongs to the server: copies of a model, its replicas, and runs side by side share it. Tokens are estimated before: at
their bound (`tokens.at_most` and the reply's cap), and once replies have come at the largest share of that bound that
any of them took, and a tenth more; the usage corrects the estimate. A call that is larger than the limit goes out when
nothing else is in the window.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from dspy import lm15

from blendfilter.aio import WaitingQueue
from blendfilter.errors import BadArgument
from blendfilter.lm import faults
from blendfilter.lm.tokens import at_most

DECREASE = 0.5
"""The share of the places that is left once a server throttles."""
CAUTION = 8
"""How much slower the places grow one below the number at which it did."""
SECONDS = 60.5
"""A minute, and a little for the way there: what is sent a minute apart need not arrive so."""
REPLY = 1024
"""Tokens that a reply without a cap is taken for until it is there."""
MARGIN = 1.1
"""By how much more than the largest share that was seen a call is estimated."""


class Gate:
    """A meter that lets at most `allowed` of `limit` attempts be in flight, from whichever loops.

    Raises:
        BadArgument: a limit below 1.
    """

    def __init__(self, limit: int) -> None:
        self.limit = _whole("concurrency", limit)
        self.in_flight = 0
        self._share = float(limit)
        self._too_many = limit + 1
        self._decreases = 0
        self._lock = threading.Lock()
        self._queue: WaitingQueue[None, bool] = WaitingQueue(self._grant, self._leave, self._lock)

    @property
    def allowed(self) -> int:
        """How many may be in flight by now."""
        return int(self._share)

    async def before(self, request: lm15.Request | None = None) -> int:
        """Wait for a place; returns how often the places had been cut by then."""
        await self._queue.turn(None)
        return self._decreases

    def after(self, ticket: int, response: lm15.Response | None = None, error: BaseException | None = None) -> None:
        """Give the place back, and learn from what came of it."""
        with self._lock:
            if response is not None:
                step = 1 / self._share / (CAUTION if self.allowed == self._too_many - 1 else 1)
                self._share = min(float(self.limit), self._share + step)
            elif faults.throttled(error) and ticket == self._decreases:
                self._too_many = self.allowed
                self._share = max(1.0, self._share * DECREASE)
                self._decreases += 1
        self._leave()

    def _grant(self, _: None) -> bool | None:
        if self.in_flight >= self.allowed:
            return None
        self.in_flight += 1
        return True

    def _leave(self, _: bool = True) -> None:
        with self._lock:
            self.in_flight -= 1
        self._queue.serve()


@dataclass(slots=True)
class WindowEntry:
    """What went out, and when."""

    at: float
    amount: float


class Window:
    """What went out in the last `seconds`: at most `limit` of it together, or one thing alone."""

    def __init__(self, limit: int, seconds: float = SECONDS) -> None:
        self.limit, self.seconds = limit, seconds
        self._entries: deque[WindowEntry] = deque()
        self._total = 0.0

    def wait(self, now: float, amount: float) -> float:
        """Seconds until `amount` more fits; 0: now."""
        while self._entries and self._entries[0].at + self.seconds <= now:
            self._total -= self._entries.popleft().amount
        if not self._entries:
            self._total = 0.0
        left, total = 0.0, self._total
        for entry in self._entries:
            if total + amount <= self.limit:
                break
            left, total = entry.at + self.seconds - now, total - entry.amount
        return left

    def add(self, now: float, amount: float) -> WindowEntry:
        """`amount` goes out."""
        self._entries.append(entry := WindowEntry(now, amount))
        self._total += amount
        return entry

    def correct(self, entry: WindowEntry, amount: float) -> None:
        """It was `amount` really."""
        if self._entries and entry.at >= self._entries[0].at:  # what has left the window is forgotten
            self._total += amount - entry.amount
            entry.amount = amount


class PaceTicket(NamedTuple):
    """An attempt that went out: its bound in tokens, and its place in their window."""

    bound: int
    entry: WindowEntry | None


class Pace:
    """A meter that lets at most so many requests and tokens out in a minute.

    Raises:
        BadArgument: a limit that is no whole number of 1 or more.
    """

    def __init__(
        self,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        *,
        seconds: float = SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.requests_per_minute, self.tokens_per_minute = requests_per_minute, tokens_per_minute
        self._requests = self._tokens = None
        if requests_per_minute is not None:
            self._requests = Window(_whole("requests_per_minute (--rpm)", requests_per_minute), seconds)
        if tokens_per_minute is not None:
            self._tokens = Window(_whole("tokens_per_minute (--tpm)", tokens_per_minute), seconds)
        self._share: float | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._queue = WaitingQueue[int, PaceTicket](self._grant, lambda ticket: None, self._lock, self._wait)

    async def before(self, request: lm15.Request) -> PaceTicket:
        """Wait until the request and its tokens fit."""
        bound = 0 if self._tokens is None else at_most(request) + (request.config.max_tokens or REPLY)
        return await self._queue.turn(bound)

    def after(self, ticket: PaceTicket, response: lm15.Response | None, error: BaseException | None) -> None:
        """Count what the attempt really took."""
        took = _tokens_of(response, error)
        if ticket.entry is None or self._tokens is None or took is None:
            return
        with self._lock:
            if response is not None:
                self._share = max(self._share or 0.0, took / ticket.bound)
            self._tokens.correct(ticket.entry, took)

    def _estimate(self, bound: int) -> float:
        return bound if self._share is None else bound * min(1.0, self._share * MARGIN)

    def _wait(self, bound: int) -> float:
        now = self._clock()
        requests = self._requests.wait(now, 1) if self._requests else 0.0
        return max(requests, self._tokens.wait(now, self._estimate(bound)) if self._tokens else 0.0)

    def _grant(self, bound: int) -> PaceTicket | None:
        if self._wait(bound) > 0:
            return None
        now = self._clock()
        if self._requests:
            self._requests.add(now, 1)
        return PaceTicket(bound, self._tokens.add(now, self._estimate(bound)) if self._tokens else None)


def _tokens_of(response: lm15.Response | None, error: BaseException | None) -> int | None:
    """Tokens of an attempt; None where they are unknown, so that its estimate stands."""
    if response is None:
        return 0 if getattr(error, "provider_code", None) == faults.NO_CONNECTION else None
    tokens_in, tokens_out = response.usage.input_tokens, response.usage.output_tokens
    return None if tokens_in is None or tokens_out is None else tokens_in + tokens_out


def _whole(name: str, limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise BadArgument(f"{name} must be a whole number of at least 1, got {limit!r}")
    return limit

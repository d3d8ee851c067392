"""The pace: how many requests and tokens a minute go out to one model's server.

In: attempts, from whichever loops. Out: the same, oldest question first, never more than the limit in any sixty
seconds. It is a sliding window: what went out is remembered for a minute, and the next waits until it fits beside that.
So the first calls of a run go out at once, and later ones as the first leave the window.

Tokens are estimated before, for what a call takes is told with its reply: at its bound (`tokens.at_most` and the
reply's cap), and once replies have come at the largest share of that bound that any of them took, and a tenth more. The
estimate is corrected by the usage. A call that is larger than the limit alone goes out when nothing else is in the
window.

A pace belongs to the server: copies of a model, and runs side by side, share it. Replicas under one model share it too.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from dspy import lm15

from blendfilter.context import ORDER
from blendfilter.errors import BadArgument
from blendfilter.lm import faults
from blendfilter.lm.tokens import at_most

SECONDS = 60.5
"""A minute, and a little for the way there: what is sent a minute apart need not arrive so."""
REPLY = 1024
"""Tokens that a reply without a cap is taken for until it is there."""
MARGIN = 1.1
"""By how much more than the largest share that was seen a call is estimated."""


@dataclass(slots=True)
class Sent:
    """What went out, and when: its place in the window."""

    at: float
    amount: float


class Window:
    """What went out in the last `seconds`: at most `limit` of it together, or one thing alone."""

    def __init__(self, limit: int, seconds: float = SECONDS) -> None:
        self.limit, self.seconds = limit, seconds
        self._sent: deque[Sent] = deque()
        self._total = 0.0

    def wait(self, now: float, amount: float) -> float:
        """Seconds until `amount` more fits; 0: now."""
        while self._sent and self._sent[0].at + self.seconds <= now:
            self._total -= self._sent.popleft().amount
        if not self._sent:
            self._total = 0.0
        left, total = 0.0, self._total
        for each in self._sent:
            if total + amount <= self.limit:
                break
            left, total = each.at + self.seconds - now, total - each.amount
        return left

    def add(self, now: float, amount: float) -> Sent:
        """`amount` goes out."""
        self._sent.append(sent := Sent(now, amount))
        self._total += amount
        return sent

    def correct(self, sent: Sent, amount: float) -> None:
        """It was `amount` really."""
        if self._sent and sent.at >= self._sent[0].at:  # what has left the window is forgotten
            self._total += amount - sent.amount
            sent.amount = amount


class Ticket(NamedTuple):
    """An attempt that went out: its bound in tokens, and its place among the tokens."""

    bound: int
    sent: Sent | None


@dataclass(order=True, slots=True)
class _Turn:
    """Who waits: the oldest question's first, then in the order of asking."""

    order: int
    number: int
    bound: int = field(compare=False)
    ticket: asyncio.Future[Ticket] = field(compare=False)


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
        self.requests_per_minute = _checked("requests_per_minute", "--rpm", requests_per_minute)
        self.tokens_per_minute = _checked("tokens_per_minute", "--tpm", tokens_per_minute)
        self._requests = Window(requests_per_minute, seconds) if requests_per_minute else None
        self._tokens = Window(tokens_per_minute, seconds) if tokens_per_minute else None
        self._share: float | None = None
        self._clock = clock
        self._waiting: list[_Turn] = []
        self._number = itertools.count()
        self._lock = threading.Lock()

    async def before(self, request: lm15.Request) -> Ticket:
        """Wait until the request and its tokens fit."""
        bound = 0 if self._tokens is None else at_most(request) + (request.config.max_tokens or REPLY)
        turn = _Turn(ORDER.get(), next(self._number), bound, asyncio.get_running_loop().create_future())
        with self._lock:
            heapq.heappush(self._waiting, turn)
        try:
            while not turn.ticket.done():
                # Whoever waits keeps time for all: the loop of the one whose turn it is may be another.
                await asyncio.wait([turn.ticket], timeout=self._let_go())
        finally:
            turn.ticket.cancel()  # where this wait was cancelled: nobody is to be given its turn
        return turn.ticket.result()

    def after(self, ticket: Ticket, response: lm15.Response | None, error: BaseException | None) -> None:
        """Count what the attempt really took."""
        took = _took(response, error)
        if ticket.sent is None or self._tokens is None or took is None:
            return
        with self._lock:
            if response is not None:
                self._share = max(self._share or 0.0, took / ticket.bound)
            self._tokens.correct(ticket.sent, took)

    def _let_go(self) -> float | None:
        """Give those their turn who fit; told is how long the next has to wait, None where there is none."""
        going: list[tuple[_Turn, Ticket]] = []
        wait = 0.0
        with self._lock:
            now = self._clock()
            while self._waiting:
                turn = self._waiting[0]
                if not turn.ticket.cancelled():
                    tokens = self._estimate(turn.bound)
                    wait = self._wait(now, tokens)
                    if wait > 0:
                        break
                    going.append((turn, self._send(now, turn.bound, tokens)))
                heapq.heappop(self._waiting)
            else:
                wait = 0.0
        for turn, ticket in going:
            with suppress(RuntimeError):  # its loop is closed: nobody waits there any more
                turn.ticket.get_loop().call_soon_threadsafe(_grant, turn.ticket, ticket)
        return wait or None

    def _estimate(self, bound: int) -> float:
        return bound if self._share is None else bound * min(1.0, self._share * MARGIN)

    def _wait(self, now: float, tokens: float) -> float:
        requests = self._requests.wait(now, 1) if self._requests else 0.0
        return max(requests, self._tokens.wait(now, tokens) if self._tokens else 0.0)

    def _send(self, now: float, bound: int, tokens: float) -> Ticket:
        if self._requests:
            self._requests.add(now, 1)
        return Ticket(bound, self._tokens.add(now, tokens) if self._tokens else None)


def _grant(waiting: asyncio.Future[Ticket], ticket: Ticket) -> None:
    if not waiting.done():
        waiting.set_result(ticket)


def _took(response: lm15.Response | None, error: BaseException | None) -> int | None:
    """Tokens of an attempt; None where nobody knows, so that its estimate stands."""
    if response is None:
        return 0 if getattr(error, "provider_code", None) == faults.NO_CONNECTION else None
    tokens_in, tokens_out = response.usage.input_tokens, response.usage.output_tokens
    return None if tokens_in is None or tokens_out is None else tokens_in + tokens_out


def _checked(name: str, option: str, limit: int | None) -> int | None:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise BadArgument(f"{name} ({option}) must be a whole number of at least 1, got {limit!r}")
    return limit

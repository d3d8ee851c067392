"""Trying again: an engine around an engine, on `tenacity`.

Only what may pass is tried again (`faults.retryable`). The wait grows exponentially with jitter, and a server's
``Retry-After`` is honoured; no attempt starts after the call's deadline or reaches beyond it, and a longer wait than
is left ends the call at once. What a call waits for its turn (at the gate, for the pace) is no part of its deadline.
A run's `Allowance` bounds the retries of all its calls together.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
import threading
import time
import warnings
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import tenacity
from dspy import lm15

from blendfilter.context import setting
from blendfilter.errors import BadArgument
from blendfilter.lm import faults
from blendfilter.lm.metered import Engine, tally

NEVER_REACHED = 3
"""Attempts at a server that has never been reached: a wrong address is told within about three seconds."""
FREE_RETRIES = 100
"""Retries that a run has at its start; every call that succeeds earns it one more."""

_LEFT: ContextVar[float] = ContextVar("blendfilter_seconds_left", default=math.inf)
"""Seconds that the attempt at hand may take before its call's deadline."""


@dataclass(frozen=True)
class Retry:
    """How a call is tried again, the same for every engine and run.

    Attributes:
        attempts: at most so many (`NEVER_REACHED` at most while no connection has ever come about).
        wait_first, wait_max: seconds; the wait doubles from the first to the longest, each with up to a quarter of
            jitter. A server's ``Retry-After`` takes its place where it is longer.
        deadline: seconds after which no attempt starts and none goes on.
        timeout: seconds that one attempt may take; None: as long as its engine lets it.

    Raises:
        BadArgument: no attempt at all, or a time that is none.
    """

    attempts: int = 6
    wait_first: float = 0.5
    wait_max: float = 30.0
    deadline: float = 600.0
    timeout: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            raise BadArgument(f"attempts must be a whole number of at least 1, got {self.attempts!r}")
        for name in ("deadline", "timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not (isinstance(seconds, int | float) and 0 < seconds < math.inf):
                raise BadArgument(f"{name} must be a number of seconds above 0, got {seconds!r}")

    def within(self, engine: Engine) -> Engine:
        """`engine`, whose attempts end at the timeout and at their call's deadline; it lies inside the meters."""
        return _Timed(engine, math.inf if self.timeout is None else self.timeout)

    def around(self, engine: Engine, retries: Allowance | None = None) -> RetryingEngine:
        """`engine`, tried again in this way, as far as `retries` go; it lies outside the meters."""
        return RetryingEngine(engine, self, retries)


class Allowance:
    """How many retries a run's calls have together, from whichever threads.

    A server that fails more than half of what it is asked costs more than it gives: by default the allowance is
    `FREE_RETRIES` and one for each call that succeeds, which a server failing 20 % never comes near.

    Args:
        limit: a fixed number instead; 0: nothing is tried again.
        free: the retries at the start where no limit is given.

    Raises:
        BadArgument: a limit below 0.
    """

    def __init__(self, limit: int | None = None, *, free: int = FREE_RETRIES) -> None:
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise BadArgument(f"max_retries (--max-retries) must be a whole number of 0 or more, got {limit!r}")
        self.limit, self.free = limit, free
        self.used = self.earned = 0
        self._told = False
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        """How many there are by now."""
        return self.free + self.earned if self.limit is None else self.limit

    def earn(self) -> None:
        """A call succeeded."""
        with self._lock:
            self.earned += 1

    def take(self) -> bool:
        """Use one, if there is one left; says so once where there is none."""
        with self._lock:
            if self.used < self.total:
                self.used += 1
                return True
            first, self._told = not self._told, True
        if first and self.limit != 0:
            warnings.warn(
                f"{self.spent}: from here on a fault of the server is its question's error; the same command asks "
                "these again",
                stacklevel=2,
            )
        return False

    @property
    def spent(self) -> str:
        """What is said of it once it is used up."""
        return f"the {self.used} retries that this run may make are used up"


class RetryingEngine:
    """`inner`, tried again on faults that pass.

    The response's ``provider_data["attempts"]`` and a final error's `attempts` attribute say how many it took.

    Args:
        inner: the engine that calls.
        retry: how often, and with which waits.
        retries: what the run allows; None: as much as `retry` asks for.
        sleep, clock: for tests.
    """

    def __init__(
        self,
        inner: Engine,
        retry: Retry | None = None,
        retries: Allowance | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner, self.retry, self.retries = inner, retry or Retry(), retries
        self._sleep, self._clock = sleep, clock
        self._reached = False

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The first response that comes. Raises: the last lm15 error, with its `attempts`."""
        started, tried, account = self._clock(), 0, tally()

        def left() -> float:
            return started + account.waited + self.retry.deadline - self._clock()

        def over(state: tenacity.RetryCallState) -> bool:
            limit = self.retry.attempts if self._reached else min(self.retry.attempts, NEVER_REACHED)
            if state.upcoming_sleep > left() or state.attempt_number >= limit:
                return True
            return not self._allowed(state)

        async def attempt() -> lm15.Response:
            nonlocal tried
            tried += 1
            with setting(_LEFT, left()):
                return await self._attempt(request)

        # A new one for each call: tenacity's own state is per thread, and calls interleave on one.
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(faults.retryable),
            wait=self._wait,
            stop=over,
            sleep=self._sleep,
            reraise=True,
        )
        try:
            response: lm15.Response = await retrying(attempt)
        except lm15.LM15Error as error:
            error.attempts = tried
            raise
        if self.retries is not None:
            self.retries.earn()
        data: dict[str, Any] = {**(response.provider_data or {}), "attempts": tried}
        return dataclasses.replace(response, provider_data=data)

    async def _attempt(self, request: lm15.Request) -> lm15.Response:
        try:
            response = await self.inner.complete(request)
        except lm15.LM15Error as error:
            self._reached = self._reached or getattr(error, "provider_code", None) != faults.NO_CONNECTION
            raise
        self._reached = True
        return response

    def _allowed(self, state: tenacity.RetryCallState) -> bool:
        if self.retries is None or self.retries.take():
            return True
        error = state.outcome.exception() if state.outcome else None
        if error is not None and self.retries.limit != 0:
            error.add_note(self.retries.spent)  # `faults.describe` passes it on to the question's error
        return False

    def _wait(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked: float = getattr(error, "retry_after", None) or 0.0
        backoff = min(self.retry.wait_max, self.retry.wait_first * 2.0 ** min(state.attempt_number - 1, 32))
        return max(asked, backoff) * random.uniform(1.0, 1.25)

    def __repr__(self) -> str:
        return f"RetryingEngine({self.inner!r})"


class _Timed:
    """`inner`, whose attempts end after `seconds`, or at the deadline of the call that they belong to."""

    def __init__(self, inner: Engine, seconds: float) -> None:
        self.inner, self.seconds = inner, seconds

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The response. Raises: what the engine raises, and lm15's `TimeoutError` once the time is over."""
        left = _LEFT.get()
        most = min(self.seconds, left)
        if most == math.inf:
            return await self.inner.complete(request)
        try:
            async with asyncio.timeout(most) as limit:
                return await self.inner.complete(request)
        except TimeoutError:
            if not limit.expired():
                raise
        what = "one attempt" if self.seconds <= left else "this call"
        raise lm15.TimeoutError(f"no reply within the time allowed for {what}")

    def __repr__(self) -> str:
        return repr(self.inner)

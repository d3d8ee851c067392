"""Trying again: an engine around an engine, on `tenacity`.

Only what may pass is tried again (`faults.retryable`). The wait grows exponentially with jitter, and a server's
``Retry-After`` is honoured; no attempt starts after the deadline, so a longer wait than that ends the call at once.
"""

from __future__ import annotations

import asyncio
import dataclasses
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import tenacity
from dspy import lm15

from blendfilter.errors import BadArgument
from blendfilter.lm import faults
from blendfilter.lm.metered import Engine

NEVER_REACHED = 3
"""Attempts at a server that has never been reached: a wrong address is told within about three seconds."""


@dataclass(frozen=True)
class Retry:
    """How a call is tried again: `RetryingEngine`'s numbers, to be put around any engine."""

    attempts: int = 6
    wait_first: float = 0.5
    wait_max: float = 30.0
    deadline: float = 600.0

    def around(self, engine: Engine) -> RetryingEngine:
        """`engine`, tried again in this way."""
        return RetryingEngine(
            engine,
            attempts=self.attempts,
            wait_first=self.wait_first,
            wait_max=self.wait_max,
            deadline=self.deadline,
        )


class RetryingEngine:
    """`inner`, tried again on faults that pass.

    The response's ``provider_data["attempts"]`` and a final error's `attempts` attribute say how many it took.

    Args:
        inner: the engine that calls.
        attempts: at most so many (`NEVER_REACHED` at most while no connection has ever come about).
        wait_first, wait_max: seconds; the wait doubles from the first to the longest, each with up to a quarter of
            jitter. A server's ``Retry-After`` takes its place where it is longer.
        deadline: seconds after which no attempt starts.
        sleep, clock: for tests.
    """

    def __init__(
        self,
        inner: Engine,
        *,
        attempts: int = 6,
        wait_first: float = 0.5,
        wait_max: float = 30.0,
        deadline: float = 600.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if attempts < 1:
            raise BadArgument(f"attempts must be 1 or more, not {attempts}")
        self.inner = inner
        self._attempts, self._first, self._max, self._deadline = attempts, wait_first, wait_max, deadline
        self._sleep, self._clock = sleep, clock
        self._reached = False

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The first response that comes. Raises: the last lm15 error, with its `attempts`."""
        started, tried = self._clock(), 0

        def over(state: tenacity.RetryCallState) -> bool:
            limit = self._attempts if self._reached else min(self._attempts, NEVER_REACHED)
            late = self._clock() - started + state.upcoming_sleep > self._deadline
            return late or state.attempt_number >= limit

        async def attempt() -> lm15.Response:
            nonlocal tried
            tried += 1
            try:
                response = await self.inner.complete(request)
            except lm15.LM15Error as error:
                self._reached = self._reached or getattr(error, "provider_code", None) != faults.NO_CONNECTION
                raise
            self._reached = True
            return response

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
        data: dict[str, Any] = {**(response.provider_data or {}), "attempts": tried}
        return dataclasses.replace(response, provider_data=data)

    def _wait(self, state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked: float = getattr(error, "retry_after", None) or 0.0
        backoff = min(self._max, self._first * 2.0 ** min(state.attempt_number - 1, 32))
        return max(asked, backoff) * random.uniform(1.0, 1.25)

    def __repr__(self) -> str:
        return f"RetryingEngine({self.inner!r})"

"""Attempts at one call: what each passes on its way out, how long it may take, and when it is tried again.

Every attempt passes the meters (the gate: how many in flight; the pace: how many a minute; the budget: how many in
all). Only what may pass is tried again (`faults.retryable`). The wait grows exponentially with jitter, and a server's
``Retry-After`` is honoured; no attempt starts after the call's deadline or reaches beyond it, and a longer wait than
is left ends the call at once. Between attempts a call holds no place, and what it waits for its turn at the meters is
no part of its deadline. A run's `RetryBudget` bounds the retries of all its calls together. Journal hits never come
here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from dspy import lm15

from blendfilter.context import setting
from blendfilter.errors import BadArgument, check_count
from blendfilter.lm import faults
from blendfilter.lm.tokens import believed

NEVER_REACHED = 3
"""Attempts at a server that has never been reached: a wrong address is reported within about three seconds."""
FREE_RETRIES = 100
"""Retries that a run has at its start; every call that succeeds earns it one more."""


class ModelEngine(Protocol):
    """What answers one request."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The model's response. Raises: lm15 errors."""


class Meter(Protocol):
    """What lets an attempt go, and learns what became of it."""

    async def before(self, request: lm15.Request) -> Any:
        """Wait until the attempt may go out; what is returned is handed back to `after`."""

    def after(self, ticket: Any, response: lm15.Response | None, error: BaseException | None) -> None:
        """The attempt came back: with a response, or with what it (or a later meter) raised."""


@dataclass
class Tally:
    """One call's account over all its attempts.

    Attributes:
        waited: seconds spent before the meters, and for a turn at a model in this process.
        went_out: when the first attempt went out, or its turn came (the clock's seconds).
        attempts: how many went out, those that an engine made by itself included.
        lost: tokens that attempts without a reply may have cost, as far as a budget reserved them.
        unheard: the bounds of those attempts, until a reply tells more.
        failed_at: addresses where an attempt failed: where there are several, the next goes elsewhere first.
    """

    waited: float = 0.0
    went_out: float = 0.0
    attempts: int = 0
    lost: int = 0
    unheard: list[Any] = field(default_factory=list)
    failed_at: set[str] = field(default_factory=set)

    def waits(self, seconds: float) -> None:
        """Count a wait behind the meters, for a turn at a model in this process."""
        self.waited += seconds
        if self.attempts <= 1:  # it is on its way when its turn comes
            self.went_out += seconds


_TALLY: ContextVar[Tally | None] = ContextVar("blendfilter_tally", default=None)
_AGAIN: ContextVar[Callable[[BaseException], Awaitable[None]] | None] = ContextVar("blendfilter_again", default=None)


@contextmanager
def tallied() -> Iterator[Tally]:
    """Inside the block, attempts are added to the tally that it gives."""
    with setting(_TALLY, Tally()) as tally:
        yield tally


def tally() -> Tally:
    """The account of the call at hand; outside of `tallied`, one that is not kept."""
    return _TALLY.get() or Tally()


async def another_attempt(fault: BaseException) -> None:
    """For an engine that asks its server again by itself, after `fault`: that one is an attempt too.

    Raises: what a meter raises that lets nothing go any more.
    """
    if (again := _AGAIN.get()) is not None:
        await again(fault)


@dataclass(frozen=True)
class Retry:
    """How a call is tried again.

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
        check_count("attempts", self.attempts)
        for name in ("deadline", "timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not (isinstance(seconds, int | float) and 0 < seconds < math.inf):
                raise BadArgument(f"{name} must be a number of seconds above 0, got {seconds!r}")

    def wait(self, error: BaseException, attempt: int) -> float:
        """Seconds between an attempt, the first being 1, that ended in `error` and the next."""
        backoff = min(self.wait_max, self.wait_first * 2.0 ** min(attempt - 1, 32))
        return max(getattr(error, "retry_after", None) or 0.0, backoff) * random.uniform(1.0, 1.25)


class RetryBudget:
    """How many retries a run's calls have together, from whichever threads.

    A server that fails more than half of the calls costs more than it gives: by default the budget is `FREE_RETRIES`
    and one for each call that succeeds, which a server failing 20 % never comes near.

    Args:
        limit: a fixed number instead; 0: nothing is tried again.
        free: the retries at the start where no limit is given.

    Raises:
        BadArgument: a limit below 0.
    """

    def __init__(self, limit: int | None = None, *, free: int = FREE_RETRIES) -> None:
        if limit is not None:
            check_count("max_retries (--max-retries)", limit, 0)
        self.limit, self.free = limit, free
        self.used = self.earned = 0
        self._warned = False
        self._lock = threading.Lock()

    @property
    def total(self) -> int:
        """How many there are by now."""
        return self.free + self.earned if self.limit is None else self.limit

    def earn(self) -> None:
        """Count a call that succeeded."""
        with self._lock:
            self.earned += 1

    def take(self) -> bool:
        """Use one, if there is one left; warns once where there is none."""
        with self._lock:
            if self.used < self.total:
                self.used += 1
                return True
            first, self._warned = not self._warned, True
        if first and self.limit != 0:
            warnings.warn(
                f"{self.spent}: from here on a fault of the server is its question's error; the same command asks "
                "these again",
                stacklevel=2,
            )
        return False

    @property
    def spent(self) -> str:
        """A used-up budget, in words."""
        return f"the {self.used} retries that this run may make are used up"


class AttemptingEngine:
    """`inner`, each attempt at which passes `meters` in their order, tried again on faults that pass.

    The response's ``provider_data["attempts"]`` and a final error's `attempts` attribute say how many it took.

    Args:
        inner: the engine that calls.
        meters: what every attempt passes.
        retry: how often an attempt is made, with which waits, how long it may take; None: once, as long as it takes.
        retries: what the run allows; None: as much as `retry` asks for.
        sleep, clock: for tests.
    """

    def __init__(
        self,
        inner: ModelEngine,
        meters: Sequence[Meter] = (),
        retry: Retry | None = None,
        retries: RetryBudget | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner, self.meters, self.retry, self.retries = inner, tuple(meters), retry, retries
        self._sleep, self._clock = sleep, clock
        self._reached = False

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The first response that comes. Raises: the last lm15 error, with its `attempts`; what a meter raises."""
        if self.retry is None:
            return await self._attempt(request)
        started, tried, account = self._clock(), 0, tally()
        while True:
            tried += 1
            left = started + account.waited + self.retry.deadline - self._clock()
            try:
                response = await self._attempt(request, left)
            except lm15.LM15Error as error:
                self._reached = self._reached or getattr(error, "provider_code", None) != faults.NO_CONNECTION
                error.attempts = tried
                wait = self.retry.wait(error, tried)
                over = wait > started + account.waited + self.retry.deadline - self._clock()
                limit = self.retry.attempts if self._reached else min(self.retry.attempts, NEVER_REACHED)
                if not faults.retryable(error) or over or tried >= limit or not self._may_retry(error):
                    raise
            else:
                self._reached = True
                if self.retries is not None:
                    self.retries.earn()
                data: dict[str, Any] = {**(response.provider_data or {}), "attempts": tried}
                return dataclasses.replace(response, provider_data=data)
            await self._sleep(wait)

    def _may_retry(self, error: BaseException) -> bool:
        if self.retries is None or self.retries.take():
            return True
        if self.retries.limit != 0:
            error.add_note(self.retries.spent)  # `faults.describe` passes it on to the question's error
        return False

    async def _attempt(self, request: lm15.Request, left: float = math.inf) -> lm15.Response:
        passed: list[tuple[Meter, Any]] = []

        async def again(fault: BaseException) -> None:
            _leave(passed, None, fault)
            await self._pass(request, passed)

        try:
            await self._pass(request, passed)
            with setting(_AGAIN, again):
                response = believed(request, await self._in_time(request, left))
        except BaseException as error:
            _leave(passed, None, error)
            raise
        _leave(passed, response, None)
        return response

    async def _pass(self, request: lm15.Request, passed: list[tuple[Meter, Any]]) -> None:
        came, account = time.perf_counter(), tally()
        try:
            for meter in self.meters:
                passed.append((meter, await meter.before(request)))
        finally:
            account.waited += time.perf_counter() - came
        account.attempts += 1
        account.went_out = account.went_out or time.time()

    async def _in_time(self, request: lm15.Request, left: float) -> lm15.Response:
        """The response, in the time of one attempt and before the call's deadline, which is in `left` seconds."""
        timeout = (self.retry.timeout if self.retry else None) or math.inf
        most = min(timeout, left)
        try:
            async with asyncio.timeout(most if most < math.inf else None) as limit:
                return await self.inner.complete(request)
        except TimeoutError:
            if not limit.expired():
                raise
        what = "one attempt" if timeout <= left else "this call"
        raise lm15.TimeoutError(f"no reply within the time allowed for {what}")

    def __repr__(self) -> str:
        return f"AttemptingEngine({self.inner!r})"


def _leave(passed: list[tuple[Meter, Any]], response: lm15.Response | None, error: BaseException | None) -> None:
    while passed:
        meter, ticket = passed.pop()
        meter.after(ticket, response, error)

"""Attempts at one call: what each passes on its way out, how long it may take, and when it is tried again.

Every attempt passes the meters: the gate (how many in flight), the pace (how many a minute), the budget (how many in
all), oldest question first. Only what may pass is tried again (`faults.retryable`). The wait grows exponentially with
jitter, and a server's ``Retry-After`` is honoured; no attempt starts after the call's deadline or reaches beyond it,
and a longer wait than is left ends the call at once. Between attempts a call has no place, and what it waits for its
turn at the meters is no part of its deadline. A run's `RetryBudget` bounds the retries of all its calls together.
Journal hits never come here.

The gate follows the server, by additive increase and multiplicative decrease (Chiu and Jain 1989): a reply raises
`allowed` by a part of one, so that a full round of replies makes one place more; a server that throttles (429, or a 503
with a Retry-After) halves it, once for all that were on their way at the time. It lies between 1 and `limit`.

Differs from the paper: the last step to the number that was too many is taken eight times slower. A server that takes
one call at a time would otherwise refuse every second attempt, and some calls would use all of theirs up.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tenacity

from blendfilter.aio import WaitingQueue
from blendfilter.context import asker
from blendfilter.dspy_surface import lm15
from blendfilter.errors import BadArgument, check_count, check_counts
from blendfilter.lm import faults
from blendfilter.lm.budget import BudgetAccount, BudgetMeter, reply_cap, tallied, tally
from blendfilter.lm.prices import Price, Prices
from blendfilter.lm.tokens import at_most, believed, tokens_of

NEVER_REACHED = 3
"""Attempts at a server that has never been reached: a wrong address is reported within about three seconds."""
FREE_RETRIES = 100
"""Retries that a run has at its start; every call that succeeds earns it one more."""
CAUTION = 8
"""How much slower the places grow one below the number at which it did."""
SECONDS = 60.5
"""A minute, and a little for the way there: what is sent a minute apart need not arrive so."""
REPLY = 1024
"""Tokens that a reply without a cap is taken for until it is there."""
MARGIN = 1.1
"""By how much more than the largest share that was seen a call is estimated."""


class ModelEngine(Protocol):
    """What answers one request."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The model's response. Raises: lm15 errors."""


class Meter(Protocol):
    """What lets an attempt go, and learns what became of it."""

    async def before(self, request: lm15.Request) -> Any:
        """Wait until the attempt may go out; what is returned is handed back to `after`."""

    def after(
        self, ticket: Any, response: lm15.Response | None, error: BaseException | None
    ) -> None:
        """The attempt came back: with a response, or with what it (or a later meter) raised."""


class Gate:
    """A meter that lets at most `allowed` of `limit` attempts be in flight, from whichever loops."""

    def __init__(self, limit: int) -> None:
        limit = check_count("concurrency", limit)
        self.limit = limit
        self.in_flight = 0
        self._share = float(limit)
        self._too_many = limit + 1
        self._decreases = 0
        self._paused = False
        self._lock = threading.Lock()
        self._queue: WaitingQueue[None, bool] = WaitingQueue(
            self._grant, self._leave, self._lock
        )

    @property
    def allowed(self) -> int:
        """How many may be in flight by now."""
        return 0 if self._paused else int(self._share)

    def limit_to(self, limit: int) -> None:
        """Another limit from now on; attempts in flight stay, and a server's wish for fewer holds on."""
        limit = check_count("concurrency", limit)
        with self._lock:
            if self._too_many > self.limit:  # no server has asked for fewer
                self._share, self._too_many = float(limit), limit + 1
            self.limit, self._share = limit, min(self._share, float(limit))
        self._queue.serve()

    def hold(self, paused: bool) -> None:
        """Let no further call out while it is paused."""
        with self._lock:
            self._paused = paused
        self._queue.serve()

    async def before(self, request: lm15.Request | None = None) -> int:
        """Wait for a place; returns how often the places had been cut by then."""
        await self._queue.turn(None)
        return self._decreases

    def after(
        self,
        ticket: int,
        response: lm15.Response | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Give the place back, and learn from what came of it."""
        with self._lock:
            if response is not None:
                step = (
                    1 / self._share / (CAUTION if int(self._share) == self._too_many - 1 else 1)
                )
                self._share = min(float(self.limit), self._share + step)
            elif faults.throttled(error) and ticket == self._decreases:
                self._too_many = int(self._share)
                self._share = max(1.0, self._share / 2)
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
    """A request that went out in the last minute, and the tokens that it counts."""

    at: float
    tokens: float
    bound: int = 0


class Pace:
    """A meter that lets at most so many requests and tokens out in a minute, or one request that is larger alone."""

    def __init__(
        self,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.requests_per_minute = requests_per_minute
        self.tokens_per_minute = tokens_per_minute
        check_counts(self, [name for name, limit in vars(self).items() if limit is not None])
        self._entries: deque[WindowEntry] = deque()
        self._tokens = 0.0
        self._share: float | None = None
        self._clock = clock
        self._lock = threading.Lock()
        self._queue = WaitingQueue[int, WindowEntry](
            self._grant, lambda entry: None, self._lock, self._wait
        )

    async def before(self, request: lm15.Request) -> WindowEntry:
        """Wait until the request and its tokens fit."""
        counted = self.tokens_per_minute is not None
        return await self.turn(
            at_most(request) + (request.config.max_tokens or REPLY) if counted else 0
        )

    async def turn(self, bound: int) -> WindowEntry:
        """Wait until a request of at most `bound` tokens fits; 0: they are not limited."""
        return await self._queue.turn(bound)

    def after(
        self, entry: WindowEntry, response: lm15.Response | None, error: BaseException | None
    ) -> None:
        """Count what the attempt really took; where that is unknown, its estimate stands."""
        if response is not None:
            counts = response.usage.input_tokens, response.usage.output_tokens
            took = None if None in counts else tokens_of(response)
        else:
            took = 0 if faults.is_unreached(error) else None
        if took is not None and entry.bound:
            self.settle(entry, took, answered=response is not None)

    def settle(self, entry: WindowEntry, took: int, *, answered: bool) -> None:
        """Count `took` tokens in place of the estimate; those of a request that was answered teach the next one."""
        with self._lock:
            if answered:
                self._share = max(self._share or 0.0, took / entry.bound)
            # what has left the window is forgotten
            if self._entries and entry.at >= self._entries[0].at:
                self._tokens += took - entry.tokens
                entry.tokens = took

    def _estimate(self, bound: int) -> float:
        return bound if self._share is None else bound * min(1.0, self._share * MARGIN)

    def _wait(self, bound: int) -> float:
        """Seconds until a request fits; 0: now."""
        now, wanted, left = self._clock(), self._estimate(bound), 0.0
        while self._entries and self._entries[0].at + SECONDS <= now:
            self._tokens -= self._entries.popleft().tokens
        if not self._entries:
            self._tokens = 0.0
        requests, tokens = len(self._entries), self._tokens
        for entry in self._entries:
            if requests < (self.requests_per_minute or math.inf) and tokens + wanted <= (
                self.tokens_per_minute or math.inf
            ):
                break
            left = entry.at + SECONDS - now
            requests -= 1
            tokens -= entry.tokens
        return left

    def _grant(self, bound: int) -> WindowEntry | None:
        if self._wait(bound) > 0:
            return None
        entry = WindowEntry(self._clock(), self._estimate(bound), bound)
        self._entries.append(entry)
        self._tokens += entry.tokens
        return entry


@dataclass(frozen=True)
class Retry:
    """How a call is tried again.

    Attributes:
        attempts: at most so many (`NEVER_REACHED` at most while no connection has ever come about).
        wait_first, wait_max: seconds; the wait doubles from the first to the longest, each with up to a quarter of
            jitter. A server's ``Retry-After`` takes its place where it is longer.
        deadline: seconds after which no attempt starts and none goes on.
        timeout: seconds that one attempt may take; None: as long as its engine lets it.
    """

    attempts: int = 6
    wait_first: float = 0.5
    wait_max: float = 30.0
    deadline: float = 600.0
    timeout: float | None = None

    def __post_init__(self) -> None:
        check_counts(self, ("attempts",))
        for name in ("deadline", "timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 < seconds < math.inf:
                raise BadArgument(
                    f"{name} must be a number of seconds above 0, got {seconds!r}"
                )

    def wait(self, error: BaseException, attempt: int) -> float:
        """Seconds between an attempt, the first being 1, that ended in `error` and the next."""
        backoff = min(self.wait_max, self.wait_first * 2.0 ** min(attempt - 1, 32))
        return max(getattr(error, "retry_after", None) or 0.0, backoff) * random.uniform(
            1.0, 1.25
        )


class RetryBudget:
    """How many retries a run's calls have together, from whichever threads.

    A server that fails more than half of the calls costs more than it gives: by default the budget is `FREE_RETRIES`
    and one for each call that succeeds, which a server failing 20 % never comes near.

    Args:
        limit: a fixed number instead; 0: nothing is tried again.
        free: the retries at the start where no limit is given.
    """

    def __init__(self, limit: int | None = None, *, free: int = FREE_RETRIES) -> None:
        if limit is not None:
            limit = check_count("max_retries", limit, 0)
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

    def take(self, error: BaseException) -> bool:
        """Use one after `error`, if there is one left; else the error gets a note, and the first one a warning."""
        with self._lock:
            if self.used < self.total:
                self.used += 1
                return True
            first, self._warned = not self._warned, True
        if self.limit != 0:
            spent = f"the {self.used} retries that this run may make are used up"
            error.add_note(spent)  # `faults.describe` passes it on to the question's error
            if first:
                then = "from here on a fault of the server is its question's error; the same command asks these again"
                warnings.warn(f"{spent}: {then}", stacklevel=2)
        return False


class AttemptingEngine:
    """`inner`, each attempt at which passes `meters` in their order, tried again on faults that pass.

    The response's ``provider_data["attempts"]`` and a final error's `attempts` attribute say how many it took.

    Args:
        inner: the engine that calls.
        meters: what every attempt passes.
        retry: how often an attempt is made, with which waits, how long it may take; None: once, as long as it takes.
        retries: what the run allows; None: as much as `retry` asks for.
        price: what tokens cost, which bounds what a server may state; None: unknown.
        clock: for tests.
    """

    def __init__(
        self,
        inner: ModelEngine,
        meters: Sequence[Meter] = (),
        retry: Retry | None = None,
        retries: RetryBudget | None = None,
        *,
        price: Price | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.inner = inner
        self.meters = tuple(meters)
        self.retry = retry
        self.retries = retries
        self._price = price
        self._clock = clock
        self._reached = False

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The first response that comes. Raises: the last lm15 error, with its `attempts`; what a meter raises."""
        if asker().tally is None:  # outside of a journal
            with tallied():
                return await self.complete(request)
        retry, account = self.retry, tally()
        if retry is None:
            return await self._attempt(request)

        if account.began is None:
            account.began = self._clock()
        due = account.began + retry.deadline

        def left() -> float:
            return due + account.waited - self._clock()

        async def attempt() -> lm15.Response:
            return await self._attempt(request, left())

        def error_of(state: tenacity.RetryCallState) -> Any:
            return state.outcome and state.outcome.exception()

        def may_pass(error: BaseException) -> bool:
            if isinstance(error, lm15.LM15Error):
                error.attempts = retrying.statistics["attempt_number"]
            self._reached = self._reached or not faults.is_unreached(error)
            return faults.retryable(error)

        def is_over(state: tenacity.RetryCallState) -> bool:
            most = retry.attempts if self._reached else min(retry.attempts, NEVER_REACHED)
            if state.upcoming_sleep > left() or state.attempt_number >= most:
                return True
            return self.retries is not None and not self.retries.take(error_of(state))

        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(may_pass),
            wait=lambda state: retry.wait(error_of(state), state.attempt_number),
            stop=is_over,
            reraise=True,
        )
        response: lm15.Response = await retrying(attempt)
        self._reached = True
        if self.retries is not None:
            self.retries.earn()
        tried = retrying.statistics["attempt_number"]
        data: dict[str, Any] = {**(response.provider_data or {}), "attempts": tried}
        return dataclasses.replace(response, provider_data=data)

    def reply_cap(self, request: lm15.Request) -> int | None:
        """Tokens that a reply to `request` has at the most; None: it is sent without a cap."""
        return reply_cap(self.inner, request)

    async def _attempt(self, request: lm15.Request, left: float = math.inf) -> lm15.Response:
        passed: list[tuple[Meter, Any]] = []
        account = tally()

        async def enter() -> None:
            came = time.perf_counter()
            try:
                for meter in self.meters:
                    passed.append((meter, await meter.before(request)))
            finally:
                account.waited += time.perf_counter() - came
            account.attempts += 1
            account.went_out = account.went_out or time.time()

        def leave(response: lm15.Response | None, error: BaseException | None) -> None:
            while passed:
                meter, ticket = passed.pop()
                meter.after(ticket, response, error)

        async def again(fault: BaseException) -> None:
            leave(None, fault)
            await enter()

        try:
            await enter()
            account.again = again
            response = await self._in_time(request, left)
            response = believed(request, response, self._price)
        except BaseException as error:
            leave(None, error)
            raise
        leave(response, None)
        return response

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


@dataclass(frozen=True)
class CallPolicy:
    """One model's own terms, the same in every run.

    Attributes:
        retry: how faults are tried again; None: never (a model in this process has none that pass).
        pace: how much may go out a minute, shared by all that call this model's server; None: no limit.
        price: what its tokens cost; None: unknown.
        prices: the user's own file, which prices calls of earlier sittings that were recorded without a cost.
    """

    retry: Retry | None = None
    pace: Pace | None = None
    price: Price | None = None
    prices: Prices | None = None


@dataclass(frozen=True)
class Traffic:
    """What one run allows its calls, of all its models together; None: no limit.

    Attributes:
        gate: how many may be in flight.
        purse: what all of them may take.
        retries: how many of them may be further attempts.
        batches: what gathers calls and answers them together (`blendfilter.lm.batches.Batches`).
        beside: of calls that are in no batch, while others are: what counts those under way.
    """

    gate: Gate | None = None
    purse: BudgetAccount | None = None
    retries: RetryBudget | None = None
    batches: Any = None
    beside: Meter | None = None


FREE = Traffic()
"""Outside a run there are no limits."""


def on_terms(engine: ModelEngine, terms: CallPolicy, traffic: Traffic) -> AttemptingEngine:
    """`engine`, called on `terms` and within `traffic`."""
    # An attempt's turn comes first, so that the oldest question goes on first. The budget comes last: money is reserved
    # only while the attempt is under way.
    meters: list[Meter | None] = [
        traffic.beside,
        traffic.gate,
        terms.pace,
        BudgetMeter(engine, traffic.purse, terms.price),
    ]
    passed = [meter for meter in meters if meter is not None]
    return AttemptingEngine(engine, passed, terms.retry, traffic.retries, price=terms.price)

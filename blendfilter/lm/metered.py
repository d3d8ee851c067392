"""What every attempt at a model passes on its way out: meters, in an engine around an engine.

In: a request. Out: the inner engine's response, once every meter has let the attempt go: the gate (how many in flight),
the pace (how many a minute), the budget (how many in all). Retries lie around this engine, so a call that waits to be
tried again holds no place, and each attempt is counted. Journal hits never come here.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol

from dspy import lm15

from blendfilter.context import setting
from blendfilter.lm.tokens import believed


class Engine(Protocol):
    """What answers one request."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The model's response. Raises: lm15 errors."""


class Meter(Protocol):
    """What lets an attempt go, and is told what became of it."""

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
        unheard: what was set aside for those attempts, until a reply tells more.
        failed_at: addresses where an attempt failed: where there are several, the next goes elsewhere first.
    """

    waited: float = 0.0
    went_out: float = 0.0
    attempts: int = 0
    lost: int = 0
    unheard: list[Any] = field(default_factory=list)
    failed_at: set[str] = field(default_factory=set)

    def waits(self, seconds: float) -> None:
        """The attempt at hand waited so long behind the meters, for its turn at a model in this process."""
        self.waited += seconds
        if self.attempts <= 1:  # it is on its way when its turn comes
            self.went_out += seconds


_TALLY: ContextVar[Tally | None] = ContextVar("blendfilter_tally", default=None)


@contextmanager
def tallied() -> Iterator[Tally]:
    """Inside the block, attempts are added to the tally that it gives."""
    with setting(_TALLY, Tally()) as tally:
        yield tally


def tally() -> Tally:
    """The account of the call at hand; one that nobody reads where there is none."""
    return _TALLY.get() or Tally()


_AGAIN: ContextVar[Callable[[BaseException], Awaitable[None]] | None] = ContextVar("blendfilter_again", default=None)


async def another_attempt(fault: BaseException) -> None:
    """For an engine that asks its server again by itself, after `fault`: that one is an attempt too.

    Raises: what a meter raises that lets nothing go any more.
    """
    if (again := _AGAIN.get()) is not None:
        await again(fault)


class MeteredEngine:
    """`inner`, each attempt at which passes `meters`, in their order."""

    def __init__(self, inner: Engine, meters: Sequence[Meter]) -> None:
        self.inner = inner
        self.meters = tuple(meters)

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The response. Raises: what the engine raises, or a meter that lets nothing go any more."""
        passed: list[tuple[Meter, Any]] = []
        response: lm15.Response | None = None
        error: BaseException | None = None

        async def again(fault: BaseException) -> None:
            _leave(passed, None, fault)
            await self._pass(request, passed)

        try:
            await self._pass(request, passed)
            with setting(_AGAIN, again):
                response = believed(request, await self.inner.complete(request))
        except BaseException as raised:
            error = raised
            raise
        else:
            return response
        finally:
            _leave(passed, response, error)
            error = None  # a frame that holds its own exception is a cycle

    async def _pass(self, request: lm15.Request, passed: list[tuple[Meter, Any]]) -> None:
        came, account = time.perf_counter(), tally()
        try:
            for meter in self.meters:
                passed.append((meter, await meter.before(request)))
        finally:
            account.waited += time.perf_counter() - came
        account.attempts += 1
        account.went_out = account.went_out or time.time()

    def __repr__(self) -> str:
        return f"MeteredEngine({self.inner!r})"


def _leave(
    passed: list[tuple[Meter, Any]], response: lm15.Response | None, error: BaseException | None
) -> None:  # fmt: skip
    while passed:
        meter, ticket = passed.pop()
        meter.after(ticket, response, error)

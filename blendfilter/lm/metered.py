"""What every attempt at a model passes on its way out: meters, in an engine around an engine.

In: a request. Out: the inner engine's response, once every meter has let the attempt go: the gate (how many in flight),
the pace (how many a minute), the budget (how many in all). Retries lie around this engine, so a call that waits to be
tried again holds no place, and each attempt is counted. Journal hits never come here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from dspy import lm15

from blendfilter.context import setting


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
        waited: seconds spent before the meters. went_out: when the first attempt went out (the clock's seconds).
        lost: tokens that attempts without a reply may have cost, as far as a budget reserved them.
    """

    waited: float = 0.0
    went_out: float = 0.0
    lost: int = 0


_TALLY: ContextVar[Tally | None] = ContextVar("blendfilter_tally", default=None)


@contextmanager
def tallied() -> Iterator[Tally]:
    """Inside the block, attempts are added to the tally that it gives."""
    with setting(_TALLY, Tally()) as tally:
        yield tally


def tally() -> Tally:
    """The account of the call at hand; one that nobody reads where there is none."""
    return _TALLY.get() or Tally()


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
        try:
            await self._pass(request, passed)
            response = await self.inner.complete(request)
        except BaseException as raised:
            error = raised
            raise
        else:
            return response
        finally:
            for meter, ticket in reversed(passed):
                meter.after(ticket, response, error)
            error = None  # a frame that holds its own exception is a cycle

    async def _pass(self, request: lm15.Request, passed: list[tuple[Meter, Any]]) -> None:
        came, account = time.perf_counter(), tally()
        try:
            for meter in self.meters:
                passed.append((meter, await meter.before(request)))
        finally:
            account.waited += time.perf_counter() - came
        account.went_out = account.went_out or time.time()

    def __repr__(self) -> str:
        return f"MeteredEngine({self.inner!r})"

"""Several servers of one model as one engine: calls are shared fairly, and go round a server that is down.

A call goes where the fewest are in flight, in rotation among equals; a retry goes to another server first. A server
that refuses the connection or throttles rests, longer each time, and so does one that fails three times on end: a
server that fails at once would otherwise seem the least busy of all. After its rest one call tries it; an answer brings
it back. What was on its way when the rest began neither ends it nor makes it longer.

A refused connection is no attempt, for no model was called: the call goes on to the next server. Only when all refuse
is it an error, which names them all.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from blendfilter.dspy_surface import lm15
from blendfilter.lm import faults
from blendfilter.lm.budget import tally

REST_FIRST, REST_MAX = 1.0, 30.0
"""Seconds that a server rests; each time on end twice as long."""
FAILURES = 3
"""Faults on end after which a server rests, whatever they are."""


@dataclass
class _Replica:
    engine: Any
    in_flight: int = 0
    failures: int = 0
    rests: int = 0
    rests_until: float = 0.0
    epoch: int = 0
    """How often it was sent to rest by now: the outcome of a call sent before is old."""

    def ready(self, now: float) -> bool:
        """Whether it takes calls; after a rest only one, until that is answered."""
        return now >= self.rests_until and (self.rests == 0 or self.in_flight == 0)


class ReplicatedEngine:
    """`engines`, which serve the same model, as one.

    Args:
        engines: one a server.
        clock: for tests.
    """

    def __init__(
        self, engines: Sequence[Any], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.servers = tuple(engines)
        self.model = str(self.servers[0].model)
        self.address = ", ".join(engine.address for engine in self.servers)
        self._replicas = [_Replica(engine) for engine in self.servers]
        self._clock = clock
        self._lock = threading.Lock()

    def reply_cap(self, request: lm15.Request) -> int | None:
        """Tokens that a reply can have at the most, whichever of them answers; None: one of them sends no cap."""
        caps = [engine.reply_cap(request) for engine in self.servers]
        return None if None in caps else max(caps)

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The response of one of them. Raises: its lm15 error; where none takes a connection, that."""
        failed_at, refused = tally().failed_at, set[str]()
        while True:
            replica, epoch = self._taken(failed_at, refused)
            address = replica.engine.address
            try:
                response: lm15.Response = await replica.engine.complete(request)
            except BaseException as error:
                unreached = faults.is_unreached(error)
                self._failed(replica, epoch, error, unreached)
                failed_at.add(address)
                if unreached and len(refused) + 1 < len(self._replicas):
                    refused.add(address)
                    continue
                if isinstance(error, lm15.LM15Error) and not unreached:
                    error.address = address
                    with self._lock:
                        # How long this server wants to be left alone is not how long the call must wait, where
                        # another is free.
                        now = self._clock()
                        if error.retry_after and any(
                            other.ready(now) for other in self._replicas
                        ):
                            error.retry_after = None
                raise
            with self._lock:
                replica.in_flight -= 1
                if epoch == replica.epoch:
                    replica.failures = replica.rests = 0
                    replica.rests_until = 0.0
            return response

    def _taken(self, failed_at: set[str], refused: set[str]) -> tuple[_Replica, int]:
        """The next replica, counted as in flight, and its epoch.

        One that rests, or failed this call before, only for want of better.
        """

        def rank(replica: _Replica) -> tuple[float, ...]:
            ready, address = replica.ready(now), replica.engine.address
            unrested = 0.0 if ready else replica.rests_until - now
            return (
                address in refused,
                not ready,
                address in failed_at,
                unrested,
                replica.in_flight,
            )

        with self._lock:
            now = self._clock()
            self._replicas.append(self._replicas.pop(0))  # equals take turns
            chosen = min(self._replicas, key=rank)
            chosen.in_flight += 1
            return chosen, chosen.epoch

    def _failed(
        self, replica: _Replica, epoch: int, error: BaseException, unreached: bool
    ) -> None:
        with self._lock:
            replica.in_flight -= 1
            # A call that is cancelled may have met its deadline here; of a refused request the server is not the cause.
            if epoch != replica.epoch or not (
                faults.retryable(error) or isinstance(error, asyncio.CancelledError)
            ):
                return
            replica.failures += 1
            busy = faults.throttled(error)
            if busy or unreached or replica.failures >= FAILURES:
                seconds = min(REST_MAX, REST_FIRST * 2.0**replica.rests)
                wanted = min(
                    (getattr(error, "retry_after", None) or 0.0) if busy else 0.0, REST_MAX
                )
                replica.rests_until = max(
                    replica.rests_until, self._clock() + max(seconds, wanted)
                )
                replica.rests = min(replica.rests + 1, 8)
                replica.epoch += 1

    def __repr__(self) -> str:
        return f"ReplicatedEngine({list(self.servers)!r})"

"""An event loop whose clock jumps to the next timer instead of waiting for it: minutes of traffic in milliseconds.

result, seconds = jumping.run(main())          # inside, asyncio.sleep, timeouts and loop.time() agree
AttemptingEngine(…, clock=jumping.now)          # and so does this clock
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class JumpingLoop(asyncio.SelectorEventLoop):
    """Time passes only where everybody waits."""

    def __init__(self) -> None:
        self.passed = 0.0
        jumping = selectors.SelectSelector()
        ask = jumping.select

        def select(timeout: float | None = None) -> Any:
            ready = ask(0)
            if not ready and timeout is not None:
                self.passed += timeout
            elif not ready:
                raise AssertionError("everybody waits, and no timer is set: for ever")
            return ready

        jumping.select = select  # type: ignore[method-assign]
        super().__init__(jumping)

    def time(self) -> float:
        return self.passed


def now() -> float:
    """The time of the loop that runs."""
    return asyncio.get_running_loop().time()


def run(main: Coroutine[Any, Any, T]) -> tuple[T, float]:
    """The result of `main`, and the seconds that it took by its loop's clock."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        result = runner.run(main)
        return result, runner.get_loop().time()

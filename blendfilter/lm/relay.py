"""`dspy.streamify` over methods that do much at once.

DSPy's stream holds sixteen messages, and a status message sent from a loop blocks that loop until it is taken, by a
reader on the same loop: a method with many steps in flight fills it and then both wait for ever. A relay takes any
number of messages without waiting and passes them on, in order, between the steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dspy

_OVER = object()


@asynccontextmanager
async def relayed() -> AsyncIterator[None]:
    """Inside the block DSPy's stream, where there is one, never waits; all that was sent has arrived after it."""
    stream = dspy.settings.send_stream
    if stream is None or isinstance(stream, _Relay):
        yield
        return
    relay = _Relay(stream)
    passing = asyncio.ensure_future(relay.pass_on())
    try:
        with dspy.context(send_stream=relay):
            yield
    except asyncio.CancelledError:
        passing.cancel()  # nobody reads any more
        raise
    finally:
        await relay.send(_OVER)
        await asyncio.wait([passing])
        if not passing.cancelled():
            passing.exception()  # a stream that was closed: nobody reads any more


class _Relay:
    """Takes messages from any thread, in the place of `stream`."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._messages: asyncio.Queue[Any] = asyncio.Queue()

    async def send(self, message: Any) -> None:
        self._loop.call_soon_threadsafe(self._messages.put_nowait, message)

    async def pass_on(self) -> None:
        while (message := await self._messages.get()) is not _OVER:
            await self._stream.send(message)

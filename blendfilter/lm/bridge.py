"""The bridge: one long-lived loop thread on which synchronous callers run the package's coroutines.

A `forward` that called `asyncio.run` each time would close the loop under its pooled clients ("Event loop is closed")
and could not work inside a notebook's running loop. Here every synchronous call hands its coroutine, with the caller's
context variables, to the same loop; whatever blocks (searches, local models, a user's synchronous code) runs in that
loop's thread pool, again with the context copied. A forked process starts a loop of its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from blendfilter.errors import UseAcall

T = TypeVar("T")
_WORKERS = 64
_lock = threading.Lock()
_state: tuple[int, asyncio.AbstractEventLoop, threading.Thread] | None = None


def loop() -> asyncio.AbstractEventLoop:
    """The process's loop, started on first use and again after a fork."""
    global _state  # noqa: PLW0603 - one loop a process is the point
    with _lock:
        if _state is None or _state[0] != os.getpid() or not _state[2].is_alive():
            fresh = asyncio.new_event_loop()
            fresh.set_default_executor(ThreadPoolExecutor(_WORKERS, thread_name_prefix="blendfilter-worker"))
            thread = threading.Thread(target=_serve, args=(fresh,), name="blendfilter-loop", daemon=True)
            thread.start()
            _state = (os.getpid(), fresh, thread)
        return _state[1]


def submit(coroutine: Coroutine[Any, Any, T]) -> Future[T]:
    """Start `coroutine` on the loop with a copy of the caller's context."""
    return asyncio.run_coroutine_threadsafe(coroutine, loop())


def run(coroutine: Coroutine[Any, Any, T], who: str = "this module") -> T:
    """The result of `coroutine`, waited for on the calling thread; Ctrl-C cancels it cleanly.

    Raises:
        UseAcall: called on the loop thread, which would wait for itself.
    """
    if on_loop_thread():
        coroutine.close()
        raise UseAcall(f"{who} was called synchronously on the loop thread: write `await {who}.acall(…)` there")
    future = submit(coroutine)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


def on_loop_thread() -> bool:
    """Whether the caller runs on the loop thread."""
    return _state is not None and _state[0] == os.getpid() and threading.current_thread() is _state[2]


def _serve(fresh: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(fresh)
    fresh.run_forever()

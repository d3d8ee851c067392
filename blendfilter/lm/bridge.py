"""The bridge: one long-lived loop thread on which synchronous callers run the package's coroutines.

A `forward` that called `asyncio.run` each time would close the loop under its pooled clients ("Event loop is closed")
and could not work inside a notebook's running loop. Here every synchronous call hands its coroutine, with the caller's
context variables, to the same loop; whatever blocks (searches, local models, a user's synchronous code) runs in that
loop's thread pool, again with the context copied. A forked process starts a loop of its own.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import anyio.from_thread
import dspy

from blendfilter.context import landed
from blendfilter.errors import UseAcall

T = TypeVar("T")
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
_WORKERS = 64
_LONGEST_STOP = 5.0
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


def run(coroutine: Coroutine[Any, Any, T], who: str = "this module", instead: str = "") -> T:
    """The result of `coroutine`, waited for on the calling thread; Ctrl-C cancels it and waits for its end.

    `instead` is what to write on the loop thread, `await {who}.acall(…)` by default.

    Raises:
        UseAcall: called on the loop thread, which would wait for itself.
    """
    if on_loop_thread():
        coroutine.close()
        written = instead or f"await {who}.acall(…)"
        raise UseAcall(f"{who} was called synchronously on the loop thread: write `{written}` there")
    if dspy.settings.send_stream is not None and _streams_from_here():
        # Status messages are sent to the loop that streams: a coroutine elsewhere would wait for it for ever.
        return anyio.from_thread.run(_awaited, coroutine)
    over = threading.Event()
    future = submit(_until_over(coroutine, over))
    try:
        return future.result()
    except BaseException:
        if future.cancel():
            over.wait(_LONGEST_STOP)
        raise


async def _until_over(coroutine: Coroutine[Any, Any, T], over: threading.Event) -> T:
    try:
        return await coroutine
    finally:
        over.set()


async def _awaited(coroutine: Coroutine[Any, Any, T]) -> T:
    return await coroutine


def _streams_from_here() -> bool:
    """Whether this is a worker thread that `dspy.streamify` started from its own loop."""
    try:
        anyio.from_thread.check_cancelled()
    except RuntimeError:
        return False
    return True


def on_loop_thread() -> bool:
    """Whether the caller runs on the loop thread."""
    return _state is not None and _state[0] == os.getpid() and threading.current_thread() is _state[2]


def _serve(fresh: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(fresh)
    fresh.run_forever()


async def in_thread(call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """The result of `call`, made in the loop's thread pool with the context copied; see `context.landed`."""
    return await asyncio.to_thread(landed, functools.partial(call, *args, **kwargs))


def waited_for(work: Callable[P, Coroutine[Any, Any, T]], name: str, instead: str, how: str) -> Callable[P, T]:
    """The function `name`, which waits for the coroutine of `work`; on the loop itself `instead` is to be called."""

    def waits(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(work(*args, **kwargs), name, instead)

    return _known_as(waits, work, name, how)


def awaited(work: Callable[P, Coroutine[Any, Any, T]], name: str, how: str) -> Callable[P, Coroutine[Any, Any, T]]:
    """The coroutine function `name`, which runs `work` on the loop and may be awaited on any other."""

    async def waits(*args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(submit(work(*args, **kwargs)))

    return _known_as(waits, work, name, how)


def _known_as(made: F, work: Callable[..., Any], name: str, how: str) -> F:
    """`made` with the arguments and the words of `work`, so that an editor and `help()` show them."""
    functools.update_wrapper(made, work)
    made.__name__ = made.__qualname__ = name
    first, blank, more = str(work.__doc__).partition("\n")
    made.__doc__ = f"{first}{how}{blank}{more}"
    return made

"""The bridge: one long-lived loop thread on which synchronous callers run the package's coroutines.

A `forward` that called `asyncio.run` each time would close the loop under its pooled clients ("Event loop is closed")
and could not work inside a notebook's running loop. Here every synchronous call hands its coroutine, with the caller's
context variables, to the same loop; whatever blocks (searches, local models, a user's synchronous code) runs in that
loop's thread pool, again with the context copied. A forked process starts a loop of its own.

Code of a user's own is called through `in_thread`, `carried` or `awaiting`, which let out only what a future and a loop
can carry: see `CodeFailed`. A KeyboardInterrupt comes through as it is, and ends what the user waits for.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

import anyio.from_thread
import dspy

from blendfilter.errors import CodeFailed, UseAcall

T = TypeVar("T")
P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])
_WORKERS = 64
_LONGEST_STOP = 5.0
_UNCARRIED = (
    StopIteration,
    SystemExit,
    GeneratorExit,
    asyncio.CancelledError,
    concurrent.futures.CancelledError,
)
ENDING = (KeyboardInterrupt, asyncio.CancelledError, GeneratorExit)
"""What ends the work at hand, past code that keeps everything else as an error of one question."""
_lock = threading.Lock()
_state: tuple[int, asyncio.AbstractEventLoop, threading.Thread] | None = None


def loop() -> asyncio.AbstractEventLoop:
    """The process's loop, started on first use and again after a fork."""
    global _state  # noqa: PLW0603 - one loop a process is the point
    with _lock:
        if _state is None or _state[0] != os.getpid() or not _state[2].is_alive():
            fresh = asyncio.new_event_loop()
            fresh.set_default_executor(Threads(_WORKERS, "blendfilter-worker"))
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
    while True:
        try:
            fresh.run_forever()
        except (SystemExit, KeyboardInterrupt):
            # A task hands these on to whoever awaits it, and then ends its loop: here all other work needs the loop.
            continue
        return


class Threads(ThreadPoolExecutor):
    """At most `count` worker threads, which the process does not wait for when it ends.

    Code of a user's own that blocks (a search, a method) would keep the process for as long after Ctrl-C. Of the base
    class, which waits, only the interface is left: an event loop takes no other as its default.
    """

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count, thread_name_prefix=name)
        self._count, self._name = count, name
        self._tasks: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._started = self._idle = 0
        self._over = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As `Executor.submit`. Raises: RuntimeError after `shutdown`."""
        future: Future[T] = Future()
        with self._changed:
            if self._over:
                raise RuntimeError("these threads take no more work: they were shut down")
            self._tasks.append((future, functools.partial(fn, *args, **kwargs)))
            if self._idle >= len(self._tasks):
                self._changed.notify()
            elif self._started < self._count:
                self._started += 1
                threading.Thread(target=self._work, name=f"{self._name}_{self._started}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Take no more work; what is at work ends by itself, and is not waited for."""
        with self._changed:
            self._over = True
            while cancel_futures and self._tasks:
                self._tasks.popleft()[0].cancel()
            self._changed.notify_all()

    def _next(self) -> tuple[Future[Any], Callable[[], Any]] | None:
        with self._changed:
            while not self._tasks:
                if self._over:
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            return self._tasks.popleft()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            future, call = task
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
                    future.set_exception(error)
            del task, future, call  # nothing of it is kept while the next one is waited for


async def in_thread(call: Callable[..., T], *args: Any, executor: Executor | None = None) -> T:
    """`call(*args)` in a worker thread, with a copy of the context. Raises what a future can carry."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(executor, context.run, carried(call), *args)


def carried(call: Callable[..., T]) -> Callable[..., T]:
    """`call`, with a `CodeFailed` in place of what a future or a loop cannot carry."""

    def calls(*args: Any, **kwargs: Any) -> T:
        try:
            return call(*args, **kwargs)
        except _UNCARRIED as error:
            raise CodeFailed.by(error) from error

    return calls


async def awaiting(work: Awaitable[T]) -> T:
    """The result of `work`, with a `CodeFailed` in place of what a loop cannot carry; a cancellation comes through."""
    task = asyncio.current_task()
    try:
        return await work
    except asyncio.CancelledError as error:
        if task is None or task.cancelling():
            raise
        raise CodeFailed.by(error) from error
    except GeneratorExit as error:
        if task is None or task is not _running_task():  # the coroutine is closed, from outside of its task
            raise
        raise CodeFailed.by(error) from error
    except _UNCARRIED as error:
        raise CodeFailed.by(error) from error


def _running_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs in this thread
        return None


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that raises the first error by itself, not in a group."""
    first: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as several:
        first = several.exceptions[0]
    if first is not None:  # outside of the block above: an error must not have the group that holds it for a context
        raise first


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

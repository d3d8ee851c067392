"""The loop thread, and what coroutines share: the bridge from synchronous code, side-by-side steps, queues, flights.

A `forward` that called `asyncio.run` each time would close the loop under its pooled clients, and could not work inside
a notebook's running loop. Here every synchronous call hands its coroutine, with the caller's context variables, to one
long-lived loop thread; whatever blocks (searches, local models, a user's synchronous code) runs in that loop's thread
pool, again with the context copied. A forked process starts a loop of its own.

A user's code is called through `in_thread`, `carried` or `awaiting`, which let out only what a future and a loop can
carry: see `CodeFailed`. A KeyboardInterrupt comes through as it is.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import heapq
import itertools
import os
import selectors
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any, Generic, TypeVar

import anyio.from_thread
import dspy

from blendfilter.context import CallNote, asker, rejoined, setting
from blendfilter.dspy_surface import is_short_step, open_stream, streaming_to
from blendfilter.errors import (
    BlendFilterError,
    CodeFailed,
    CompilationStopped,
    UseAcall,
    copied,
    interruptible,
)

T = TypeVar("T")
W = TypeVar("W")

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
            fresh = _Loop()
            fresh.set_default_executor(Threads(_WORKERS, "blendfilter-worker"))
            thread = threading.Thread(
                target=_serve, args=(fresh,), name="blendfilter-loop", daemon=True
            )
            thread.start()
            _state = (os.getpid(), fresh, thread)
        return _state[1]


class _Loop(asyncio.SelectorEventLoop):
    """The loop, which takes DSPy's own short steps of a model's call in place: two threads less to wake a call.

    `busy`: worker threads that are at work for it, less those that wait for it. `watchers`: see `until_quiet`.
    """

    def __init__(self) -> None:
        self.busy = 0
        self.watchers: list[asyncio.Future[None]] = []
        super().__init__(_Selector(self))

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        if executor is not None or args or not is_short_step(func):
            started = super().run_in_executor(executor, func, *args)
            self.busy += 1
            started.add_done_callback(self._came_back)
            return started
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it is whoever awaits the step that gets it, as from a thread
            done.set_exception(error)
        return done

    def _came_back(self, _: asyncio.Future[Any]) -> None:
        self.busy -= 1


class _Selector(selectors.DefaultSelector):
    """The loop's selector, which the loop asks to wait when nothing of its own is ready to run."""

    def __init__(self, loop: _Loop) -> None:
        super().__init__()
        self._loop, self._process = loop, os.getpid()

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        """As the base class; but a forked process, which closes its copies, shares what its parent waits for."""
        if self._process != os.getpid():
            return self.get_key(fileobj)
        return super().unregister(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        watchers = self._loop.watchers
        if timeout == 0 or not watchers or self._loop.busy > 0:
            return super().select(timeout)
        events = super().select(0)
        while watchers and not events:
            watcher = watchers.pop()
            if not watcher.done():
                watcher.set_result(None)
        return events


async def until_quiet(longest: float = 30.0) -> bool:
    """Wait until nothing else can move: the package's loop, which this runs on, has nothing to do, nor a worker thread.

    False where that was not so within `longest` seconds: one slow thread keeps nobody.
    """
    running = asyncio.get_running_loop()
    assert isinstance(running, _Loop)
    watcher = running.create_future()
    running.watchers.append(watcher)
    done, _ = await asyncio.wait([watcher], timeout=longest)
    watcher.cancel()
    return bool(done)


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
        raise UseAcall(
            f"{who} was called synchronously on the loop thread: write `{written}` there"
        )
    over = threading.Event()
    if open_stream() is not None and _streams_from_here():
        # Status messages are sent to the loop that streams: a coroutine elsewhere would wait for it for ever.
        return anyio.from_thread.run(_until_over, coroutine, over)
    waits = isinstance(threading.current_thread(), _WorkerThread)
    future = submit(_until_over(coroutine, over, waits))
    with interruptible(f"{who} was stopped"):
        try:
            return future.result()
        except BaseException:
            if future.cancel():
                over.wait(_LONGEST_STOP)
            raise


def _streams_from_here() -> bool:
    """Whether this is a worker thread that `dspy.streamify` started from its own loop."""
    try:
        anyio.from_thread.check_cancelled()
    except RuntimeError:
        return False
    return True


async def _until_over(
    coroutine: Coroutine[Any, Any, T], over: threading.Event, waits: bool = False
) -> T:
    running: Any = asyncio.get_running_loop()  # with `waits` it is the package's own
    try:
        if waits:
            running.busy -= 1
        return await coroutine
    finally:
        if waits:
            running.busy += 1
        over.set()


def on_loop_thread() -> bool:
    return (
        _state is not None
        and _state[0] == os.getpid()
        and threading.current_thread() is _state[2]
    )


def _serve(fresh: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(fresh)
    while True:
        try:
            fresh.run_forever()
        except (SystemExit, KeyboardInterrupt):
            # A task hands these on to whoever awaits it, and then ends its loop: here all other work needs the loop.
            continue
        return


class _WorkerThread(threading.Thread):
    """A thread that works for a loop."""


class Threads(ThreadPoolExecutor):
    """At most `count` worker threads, which the process does not wait for when it ends.

    Code that blocks would keep it for as long after Ctrl-C. Of the base class, which waits, only the interface is left:
    an event loop takes no other as its default.
    """

    def __init__(self, count: int, name: str) -> None:
        super().__init__(count, thread_name_prefix=name)
        self._count, self._name = count, name
        self._tasks: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._changed = threading.Condition()
        self._started = self._idle = 0
        self._over = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        future: Future[T] = Future()
        with self._changed:
            if self._over:
                raise RuntimeError("these threads take no more work: they were shut down")
            self._tasks.append((future, functools.partial(fn, *args, **kwargs)))
            if self._idle >= len(self._tasks):
                self._changed.notify()
            elif self._started < self._count:
                self._started += 1
                _WorkerThread(
                    target=self._work, name=f"{self._name}_{self._started}", daemon=True
                ).start()
        return future

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:
        """Take no more work; what is at work ends by itself, and is not waited for."""
        with self._changed:
            self._over = True
            while cancel_futures and self._tasks:
                self._tasks.popleft()[0].cancel()
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._tasks:
                    if self._over:
                        return
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                future, call = self._tasks.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
                    future.set_exception(error)
            del future, call  # nothing of it is kept while the next one is waited for


async def in_thread(call: Callable[..., T], *args: Any, executor: Executor | None = None) -> T:
    """`call(*args)` in a worker thread, with a copy of the context. Raises what a future can carry."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(
        executor, context.run, carried(call), *args
    )


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
        running = None
        with suppress(RuntimeError):  # no loop runs in this thread
            running = asyncio.current_task()
        # the coroutine is closed, from outside of its task
        if task is None or task is not running:
            raise
        raise CodeFailed.by(error) from error
    except _UNCARRIED as error:
        raise CodeFailed.by(error) from error


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that raises the first error by itself, not in a group."""
    first: BaseException | None = None
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as several:
        first = several.exceptions[0]
    # outside of the block above: an error must not have the group that holds it for a context
    if first is not None:
        raise first


class WaitingQueue(Generic[W, T]):
    """Coroutines of any loops that wait for a turn: the oldest question's first (`context.ORDER`), then as they came.

    Args:
        grant: what a waiter gets for what it wants, or None where it must wait (then so do all behind it). Called
            under the owner's lock; an error that it raises becomes the waiter's.
        undo: takes back what was granted to a waiter that is gone.
        lock: the owner's, which guards what `grant` reads.
        retry_in: seconds after which a refused waiter may fit without anybody's leaving; None: never by itself.
    """

    def __init__(
        self,
        grant: Callable[[W], T | None],
        undo: Callable[[T], None],
        lock: threading.Lock,
        retry_in: Callable[[W], float | None] = lambda _: None,
    ) -> None:
        self._grant, self._undo, self._retry_in, self._lock = grant, undo, retry_in, lock
        self._waiting: list[tuple[int, int, W, Future[T]]] = []
        self._number = itertools.count()

    async def turn(self, wanted: W) -> T:
        """What is granted for `wanted`, once it is this caller's turn."""
        with self._lock:
            if not self._waiting and (granted := self._grant(wanted)) is not None:
                return granted
            turn: Future[T] = Future()
            heapq.heappush(self._waiting, (asker().order, next(self._number), wanted, turn))
        waiting = asyncio.wrap_future(turn)
        try:
            # Whoever waits keeps time for all: the loop of the one whose turn it is may be another.
            while (seconds := self.serve()) is not None and not turn.done():
                await asyncio.wait([waiting], timeout=seconds)
            return await waiting
        except asyncio.CancelledError:
            if not turn.cancel() and turn.exception() is None:
                self._undo(turn.result())  # granted in the same instant
            raise

    def serve(self) -> float | None:
        """Grant what fits, in order; the seconds after which the first that is left may fit by itself."""
        seconds, missed = None, list[T]()
        with self._lock:
            while self._waiting:
                _, _, wanted, turn = self._waiting[0]
                if not turn.cancelled():
                    try:
                        granted = self._grant(wanted)
                    except BlendFilterError as error:  # a spent budget, a full disk
                        if turn.set_running_or_notify_cancel():
                            turn.set_exception(error)
                    else:
                        if granted is None:
                            seconds = self._retry_in(wanted)
                            break
                        if turn.set_running_or_notify_cancel():
                            turn.set_result(granted)
                        else:
                            missed.append(granted)
                heapq.heappop(self._waiting)
        for granted in missed:
            self._undo(granted)
        return seconds


class SingleFlight(Generic[T]):
    """Does equal work in flight, in whichever loops, once: all who want it get its result, or its error."""

    def __init__(self) -> None:
        self._flights: dict[str, Future[T]] = {}
        self._lock = threading.Lock()

    async def do(
        self, key: str, found: Callable[[], T | None], work: Callable[[], Awaitable[T]]
    ) -> T:
        """What `found` has, else the result of `work`, started here or under way for an equal `key`.

        `found` is called once, when no equal work is under way: what `work` leaves there is not missed in between.
        Where the one who works is cancelled, another takes over.
        """
        while True:
            with self._lock:
                flight = self._flights.get(key)
                if flight is None:
                    if (known := found()) is not None:
                        return known
                    mine = self._flights[key] = Future()
            if flight is None:
                try:
                    result = await work()
                except BaseException as error:
                    if isinstance(error, Exception):
                        mine.set_exception(error)
                        mine.exception()  # retrieved: there may be no follower
                    else:
                        mine.cancel()
                    raise
                else:
                    mine.set_result(result)
                    return result
                finally:
                    with self._lock:
                        self._flights.pop(key, None)
            try:
                return await asyncio.shield(asyncio.wrap_future(flight))
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not flight.cancelled() or (task is not None and task.cancelling()):
                    raise
            except Exception as error:  # noqa: BLE001 - whatever the one who works met
                failure = copied(error)
                break
        raise failure  # outside of the block: the leader's error is no context of it


class Step(Generic[T]):
    """One started step: await it for its result; `trace` and `notes` are what it did."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.trace: list[Any] = []
        self.notes: list[CallNote] = []
        self.task = asyncio.ensure_future(self._run(work))
        # Where a run is stopped its error may stay unretrieved; one line has reported it already.
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        traced = dspy.settings.trace is not None
        with setting(notes=self.notes), dspy.context(trace=self.trace if traced else None):
            return await work

    def __await__(self) -> Any:
        # Shielded: a waiter may be cancelled without taking the step from others that wait for it too.
        return asyncio.shield(self.task).__await__()


class Steps:
    """The steps of one question, side by side; an `async with` that leaves none running.

    Neither DSPy's trace nor a run's record may depend on which branch was quicker: each step collects its own trace and
    notes, and on leaving they are appended to the caller's in the order of the plan. A step may give another one as its
    result (work that branches share), which then follows it in the plan. Every step is waited for, even after an error,
    so that a replay makes exactly the same calls; the first error in plan order is raised.
    """

    def __init__(self) -> None:
        self.plan: list[Step[Any]] = []
        self._asker = ExitStack()

    def start(self, work: Coroutine[Any, Any, T]) -> Step[T]:
        """Run `work` beside the others; its place in the plan is after those started before it."""
        step = Step(work)
        self.plan.append(step)
        return step

    async def __aenter__(self) -> Steps:
        self._asker.enter_context(rejoined())
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        with self._asker:
            ended = await self._ended(
                # a fault's fellows are paid for
                cancel=not isinstance(error, Exception | CompilationStopped | None)
            )
            ambient, notes = dspy.settings.trace, asker().notes
            for step in ended:
                if ambient is not None:
                    ambient.extend(step.trace)
                if notes is not None:
                    notes.extend(step.notes)
            failed = [
                raised
                for step in ended
                if not step.task.cancelled() and (raised := step.task.exception())
            ]
            if (
                failed
                and failed[0] is not error
                and (error is None or isinstance(error, Exception))
            ):
                # `error` may have come of it, and must not become its context in turn.
                raise copied(failed[0]) if error is not None else failed[0]

    async def _ended(self, cancel: bool) -> list[Step[Any]]:
        """Every step, shared ones once and after the first that led to them, all of them over."""
        ended: list[Step[Any]] = []
        for planned in self.plan:
            step: Any = planned
            while isinstance(step, Step) and step not in ended:
                if cancel:
                    step.task.cancel()
                await asyncio.wait([step.task])
                ended.append(step)
                over = not step.task.cancelled() and step.task.exception() is None
                step = step.task.result() if over else None
        return ended


@asynccontextmanager
async def relayed() -> AsyncIterator[None]:
    """Inside the block DSPy's stream, where there is one, never blocks; all that was sent has arrived after it.

    DSPy's stream holds sixteen messages, and a status message sent from a loop blocks that loop until it is taken, by a
    reader on the same loop: a method with many steps in flight would fill it, and both would wait for ever. A relay
    takes any number of messages and passes them on, in order, between the steps.
    """
    stream = open_stream()
    if stream is None or isinstance(stream, _Relay):
        yield
        return
    relay = _Relay(stream)
    passing = asyncio.ensure_future(relay.pass_on())
    try:
        with streaming_to(relay):
            yield
    except asyncio.CancelledError:
        passing.cancel()  # nothing is read any more
        raise
    finally:
        await relay.send(None)
        await asyncio.wait([passing])
        if not passing.cancelled():
            passing.exception()  # of a stream that was closed


class _Relay:
    """Takes messages from any thread, in the place of `stream`; None ends it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._messages: asyncio.Queue[Any] = asyncio.Queue()

    async def send(self, message: Any) -> None:
        self._loop.call_soon_threadsafe(self._messages.put_nowait, message)

    async def pass_on(self) -> None:
        while (message := await self._messages.get()) is not None:
            await self._stream.send(message)

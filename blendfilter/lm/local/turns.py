"""Turns at one model: who waits, who is next, and the one thread that serves them.

In: tasks from any event loop. Out: each task's result, one at a time, while the loops go on. Next is the task for which
waiting would lose the most of what the model has read already; among equals the oldest question's. Nobody is overtaken
for ever: after `PATIENCE` turns given to those that came later, a task goes first.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from blendfilter import aio
from blendfilter.context import ORDER
from blendfilter.errors import BadArgument, WorkFailed
from blendfilter.lm.attempts import tally

T = TypeVar("T")
R = TypeVar("R")

PATIENCE = 16
"""How many turns may be given to later tasks before a waiting one."""
BLOCK = 32
"""Savings are compared in blocks of so many tokens: a word in common is no reason to overtake."""
_LONGEST_STOP = 10.0


@dataclass(eq=False)
class Waiting(Generic[T, R]):
    """A task in the queue: `place` is (the question's rank, the ticket), `overtaken` how many later ones went first.

    `came` and `begun` are when it was put there, and when its turn came.
    """

    task: T
    place: tuple[int, int]
    result: Future[R] = field(default_factory=Future)
    overtaken: int = 0
    came: float = field(default_factory=time.perf_counter)
    begun: float | None = None
    unwanted: threading.Event = field(default_factory=threading.Event)


def next_of(waiting: Sequence[Waiting[T, R]], saving: Callable[[T], int]) -> Waiting[T, R]:
    """Whose turn it is; `saving` says how many tokens less a task costs now than later."""
    patient = [each for each in waiting if each.overtaken < PATIENCE]
    if len(patient) < len(waiting):
        chosen = min((each for each in waiting if each.overtaken >= PATIENCE), key=lambda each: each.place)
    else:
        chosen = min(patient, key=lambda each: (-(saving(each.task) // BLOCK), each.place))
    for each in waiting:
        if each.place < chosen.place:
            each.overtaken += 1
    return chosen


class Turns(Generic[T, R]):
    """A queue, and a thread that serves it.

    Args:
        serve: does a task, asking the function it is given, now and then, whether anybody still waits.
        saving: see `next_of`; called by that thread alone, as `serve` is.
    """

    def __init__(self, serve: Callable[[T, Callable[[], bool]], R], saving: Callable[[T], int]) -> None:
        self._serve, self._saving = aio.carried(serve), saving
        self._waiting: list[Waiting[T, R]] = []
        self._changed = threading.Condition()
        self._ticket = itertools.count()
        self._current: Waiting[T, R] | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._process = os.getpid()

    async def take(self, task: T) -> R:
        """The result of `task`, when its turn has come. Cancelled, it leaves the queue, or stops where it is.

        Raises:
            BadArgument: in a process forked from the one that opened the model.
        """
        self.check_process()
        mine: Waiting[T, R] = Waiting(task, (ORDER.get(), next(self._ticket)))
        with self._changed:
            if self._closed:
                raise closed()
            self._waiting.append(mine)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="blendfilter-local-model", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            return await asyncio.wrap_future(mine.result)
        except asyncio.CancelledError:
            mine.unwanted.set()
            raise
        finally:
            if mine.begun is not None:  # what it waited here is no time of the model's
                tally().waits(mine.begun - mine.came)

    def check_process(self) -> None:
        """Raise `BadArgument` in a forked process, where the thread is missing and a lock may be held for ever."""
        if os.getpid() != self._process:
            raise BadArgument(
                "a model in this process does not survive a fork: connect() in the new process, or start it by 'spawn'"
            )

    def close(self) -> None:
        """End the thread: what runs stops at its next token, and who waits is told."""
        if os.getpid() != self._process:
            return
        with self._changed:
            self._closed = True
            for each in self._waiting:
                if each.result.set_running_or_notify_cancel():
                    each.result.set_exception(closed())
            self._waiting.clear()
            if self._current is not None:
                self._current.unwanted.set()
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LONGEST_STOP)

    def _work(self) -> None:
        while (mine := self._next()) is not None:
            if not mine.result.set_running_or_notify_cancel():
                continue
            mine.begun = time.perf_counter()
            try:
                result = self._serve(mine.task, mine.unwanted.is_set)
            except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
                mine.result.set_exception(error)
            else:
                mine.result.set_result(result)
            finally:
                self._current = None

    def _next(self) -> Waiting[T, R] | None:
        with self._changed:
            while True:
                self._waiting = [each for each in self._waiting if not each.result.cancelled()]
                if self._closed:
                    return None
                if self._waiting:
                    break
                self._changed.wait()
            mine = self._chosen()
            self._waiting.remove(mine)
            self._current = mine
            return mine

    def _chosen(self) -> Waiting[T, R]:
        try:
            return next_of(self._waiting, self._saving)
        except Exception:  # noqa: BLE001 - serving says what is wrong; if this thread ended, all would wait for ever
            return min(self._waiting, key=lambda each: each.place)


def closed() -> WorkFailed:
    """The error of a call that comes too late."""
    return WorkFailed("this model was closed while it was asked: connect() again")

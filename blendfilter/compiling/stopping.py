"""What ends a compilation at once, past optimisers that swallow every exception and call it a score of 0.

In: models and a module. Out: models whose faults stop the work. A server that is gone, a spent budget, a full disk and
a fault that may pass next time must not become a part of the program: the next sitting would find another one. They
rise as `Stopped`, which is no `Exception`. What a model refuses for good (a prompt too long for it) scores 0: it will
be refused again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dspy
from dspy.utils.callback import BaseCallback

from blendfilter.errors import BlendFilterError, ModelError, WorkFailed, words_of
from blendfilter.lm.model import ConnectedLM

FOR_GOOD = frozenset({"context_too_long", "bad_request"})
"""Kinds of model errors that the same call meets again."""


class Stopped(BaseException):
    """The work is over; `error` says why."""

    def __init__(self, error: Exception) -> None:
        super().__init__(words_of(error))
        self.error = error


class Watch(BaseCallback):
    """Remembers the first error that ends the work, and counts the answers that `kind` of module failed to give.

    A DSPy callback: an index that is gone is an error inside a module, which no model of ours sees.
    """

    def __init__(self, kind: type[dspy.Module]) -> None:
        self.kind = kind
        self.error: Exception | None = None
        self.failed: list[Exception] = []
        self._open: set[str] = set()
        self._calls: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise `Stopped` once something ended the work: no thread goes on paying."""
        if self.error is not None:
            raise Stopped(self.error)

    def stop(self, error: Exception) -> Stopped:
        """`error` ends the work; the first one is what is told."""
        with self._lock:
            self.error = self.error or error
            return Stopped(self.error)

    @contextmanager
    def calling(self) -> Iterator[None]:
        """Inside the block this task waits for a model: it is cancelled where the user stops the work."""
        call = asyncio.get_running_loop(), asyncio.current_task()
        with self._lock:
            self._calls.append(call)
        try:
            yield
        finally:
            with self._lock:
                self._calls.remove(call)

    def interrupt(self) -> None:
        """The user stops the work: threads that wait for a model, which nobody else can stop, wait no longer."""
        self.stop(WorkFailed("stopped by the user"))
        with self._lock:
            for loop, task in self._calls:
                if task is not None:
                    loop.call_soon_threadsafe(task.cancel)

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Note which calls are the whole module's."""
        if type(instance) is self.kind:
            with self._lock:
                self._open.add(call_id)

    def on_module_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:
        """Sort what a module raised: the end of the work, or a failed answer."""
        with self._lock:
            whole = call_id in self._open
            self._open.discard(call_id)
        if not whole or not isinstance(exception, Exception):
            return  # what a part raises, the whole may have an answer to
        if isinstance(exception, BlendFilterError | OSError) and not for_good(exception):
            self.stop(exception)  # of the system: a connection of the module's own, a file that is gone
        with self._lock:
            self.failed.append(exception)


def for_good(error: BaseException) -> bool:
    """Whether the same call would meet this error again."""
    return isinstance(error, ModelError) and error.kind in FOR_GOOD


class GuardedLM(ConnectedLM):
    """A model whose faults end the work, unless they are for good."""

    watch: Watch

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """As `ConnectedLM.acall`. Raises: Stopped, ModelError."""
        self.watch.check()
        try:
            with self.watch.calling():
                return await super().acall(prompt, messages=messages, **kwargs)
        except asyncio.CancelledError:
            self.watch.check()  # which DSPy passes on, where it would log a cancellation as a failed question
            raise
        except BlendFilterError as error:
            if for_good(error):
                raise
            raise self.watch.stop(error) from error


def guarded(lm: ConnectedLM, watch: Watch) -> GuardedLM:
    """The same model under `watch`, its journal and its traffic kept."""
    kept = GuardedLM(
        lm.name,
        lm.inner,
        profile=lm.profile,
        identity=lm.identity,
        address=lm.address,
        state=lm.state,
        journal=lm.journal,
        terms=lm.terms,
        traffic=lm.traffic,
        callbacks=lm.callbacks,
        **{name: value for name, value in lm.kwargs.items() if value is not None},
    )
    kept.watch = watch
    return kept

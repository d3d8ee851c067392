"""Steps that run side by side and are told in plan order.

DSPy's optimisers read the trace, and the run's record lists calls; both must not depend on which branch was quicker.
Each step collects its own trace and call notes; `join` appends them to the caller's in the order of the plan, so that
compiling from a live run and from its journal gives the same program.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import Any, Generic, TypeVar

import dspy

from blendfilter.context import NOTES, CallNote, rejoined, setting
from blendfilter.errors import copied

T = TypeVar("T")


class Step(Generic[T]):
    """One started step: await it for its result; `trace` and `notes` are what it did."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self.trace: list[Any] = []
        self.notes: list[CallNote] = []
        self.task = asyncio.ensure_future(self._run(work))
        # Where a run is stopped nobody may come for its error; one line has told it already.
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        traced = dspy.settings.trace is not None
        with setting(NOTES, self.notes), dspy.context(trace=self.trace if traced else None):
            return await work

    def __await__(self) -> Any:
        # Shielded: whoever waits may be cancelled without taking the step from others that wait for it too.
        return asyncio.shield(self.task).__await__()


class Steps:
    """The steps of one question; an `async with` that leaves none running.

    `start` runs a step at once; a step may give another one as its result (work that branches share), which then
    follows it in the plan. On leaving, every step is waited for, even after an error, so that a replay asks for exactly
    the calls that were made; traces and notes are joined in plan order, and the first error in that order is raised.
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
            await self._join(error)

    async def _join(self, error: BaseException | None) -> None:
        told = await self._settled(cancel=error is not None and not isinstance(error, Exception))
        ambient, notes = dspy.settings.trace, NOTES.get()
        for step in told:
            if ambient is not None:
                ambient.extend(step.trace)
            if notes is not None:
                notes.extend(step.notes)
        failed = [raised for step in told if not step.task.cancelled() and (raised := step.task.exception())]
        if failed and failed[0] is not error and (error is None or isinstance(error, Exception)):
            # `error` may have come of it, and must not become its context in turn.
            raise copied(failed[0]) if error is not None else failed[0]

    async def _settled(self, cancel: bool) -> list[Step[Any]]:
        """Every step, shared ones once and after the first that led to them, all of them over."""
        told: list[Step[Any]] = []
        for planned in self.plan:
            step: Any = planned
            while isinstance(step, Step) and step not in told:
                if cancel:
                    step.task.cancel()
                await asyncio.wait([step.task])
                told.append(step)
                over = not step.task.cancelled() and step.task.exception() is None
                step = step.task.result() if over else None
        return told

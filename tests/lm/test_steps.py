"""Steps run side by side and are told in plan order, however fast each was and whatever failed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import dspy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_world import comes_of_itself

from blendfilter.context import NOTES, CallNote, note, setting
from blendfilter.lm.steps import Step, Steps


async def work(name: str, seconds: float = 0.0, error: Exception | None = None) -> str:
    """A step that leaves a note and a trace entry before and after its wait."""
    note(name, stage="before")
    await asyncio.sleep(seconds)
    note(name, stage="after")
    if dspy.settings.trace is not None:
        dspy.settings.trace.append(name)
    if error is not None:
        raise error
    return name


def told(body: Coroutine[Any, Any, Any]) -> tuple[Any, list[str], list[Any]]:
    """What `body` gives, the keys of its notes, and its trace."""

    async def outer() -> Any:
        with setting(NOTES, []) as notes, dspy.context(trace=[]):
            result = await asyncio.gather(body, return_exceptions=True)
            return result[0], [each.key for each in notes if each.stage == "after"], list(dspy.settings.trace)

    return asyncio.run(outer())


@given(st.permutations([0.0, 0.002, 0.004, 0.006]))
@settings(max_examples=12, deadline=None)
def test_told_in_plan_order_whatever_the_speed(delays: list[float]) -> None:
    async def body() -> list[str]:
        async with Steps() as steps:
            started = [steps.start(work(f"s{i}", delay)) for i, delay in enumerate(delays)]
            return [await step for step in reversed(started)]

    result, notes, trace = told(body())
    assert result == ["s3", "s2", "s1", "s0"]
    assert notes == trace == ["s0", "s1", "s2", "s3"]


def test_they_really_overlap() -> None:
    running = most = 0

    async def counted() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1

    async def body() -> None:
        async with Steps() as steps:
            for _ in range(4):
                steps.start(counted())

    told(body())
    assert most == 4


def test_a_step_that_waits_for_others_comes_after_them_in_plan() -> None:
    async def body() -> str:
        async with Steps() as steps:
            slow = steps.start(work("slow", 0.01))
            fast = steps.start(work("fast"))

            async def last() -> str:
                return f"{await slow} {await fast} {await work('last')}"

            return await steps.start(last())

    assert told(body()) == ("slow fast last", ["slow", "fast", "last"], ["slow", "fast", "last"])


def test_a_shared_step_is_told_once_after_the_first_that_led_to_it() -> None:
    """Two branches give the same step as their result: the quicker one started it, the plan's first one tells it."""

    async def body() -> list[str]:
        shared: list[Step[str]] = []

        async def branch(name: str, seconds: float) -> Step[str]:
            await work(name, seconds)
            if not shared:
                shared.append(Step(work("shared")))
            return shared[0]

        async with Steps() as steps:
            slow, fast = steps.start(branch("slow", 0.01)), steps.start(branch("fast", 0.0))
            return [await (await slow), await (await fast)]

    result, notes, trace = told(body())
    assert result == ["shared", "shared"]
    assert notes == trace == ["slow", "shared", "fast"]


def test_the_first_error_of_the_plan_is_raised_after_everything_is_over() -> None:
    over: list[str] = []

    async def slow() -> None:
        await asyncio.sleep(0.02)
        over.append("slow")

    async def body() -> None:
        async with Steps() as steps:
            steps.start(work("a", 0.01, ValueError("first in plan, second in time")))
            failing = steps.start(work("b", 0.0, KeyError("second in plan, first in time")))
            steps.start(slow())
            await failing

    result, notes, trace = told(body())
    assert isinstance(result, ValueError)
    assert over == ["slow"]
    assert notes == trace == ["a", "b"]


def test_an_error_that_another_came_of_does_not_come_of_it_in_turn() -> None:
    async def body() -> None:
        async with Steps() as steps:
            first = steps.start(work("a", 0.0, ValueError("a step's")))
            try:
                await first
            except ValueError as error:
                raise LookupError("the body's") from error

    result, _, _ = told(body())
    assert isinstance(result, ValueError)
    assert not comes_of_itself(result)


def test_an_error_nobody_awaited_is_raised_too() -> None:
    async def body() -> str:
        async with Steps() as steps:
            steps.start(work("a", 0.0, ValueError("x")))
        return "reached"

    assert isinstance(told(body())[0], ValueError)


def test_an_error_inside_a_shared_step_is_raised() -> None:
    async def body() -> None:
        async def branch() -> Step[str]:
            return Step(work("shared", 0.0, ValueError("x")))

        async with Steps() as steps:
            await (await steps.start(branch()))

    result, notes, _ = told(body())
    assert isinstance(result, ValueError)
    assert notes == ["shared"]


def test_an_error_of_the_body_itself_comes_through_when_no_step_failed() -> None:
    async def body() -> None:
        async with Steps() as steps:
            steps.start(work("a"))
            raise LookupError("of the body")

    result, notes, _ = told(body())
    assert isinstance(result, LookupError)
    assert notes == ["a"]


def test_cancelling_cancels_every_step() -> None:
    ended: list[str] = []

    async def endless(name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(name)

    async def body() -> None:
        async with Steps() as steps:
            first = steps.start(endless("a"))
            steps.start(endless("b"))
            await first

    async def outer() -> None:
        task = asyncio.ensure_future(body())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(outer(), 5))
    assert sorted(ended) == ["a", "b"]


def test_cancelling_waits_for_what_a_step_cleans_up() -> None:
    ended: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)  # cleaning up takes a while
            ended.append("stubborn")

    async def body() -> None:
        async with Steps() as steps:
            await steps.start(stubborn())

    async def outer() -> None:
        task = asyncio.ensure_future(body())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(outer(), 5))
    assert ended == ["stubborn"]


def test_one_waiter_that_is_cancelled_does_not_take_the_step_from_others() -> None:
    async def body() -> str:
        async with Steps() as steps:
            shared = steps.start(work("shared", 0.02))

            async def wait() -> str:
                return await shared

            impatient = asyncio.ensure_future(wait())
            await asyncio.sleep(0)
            impatient.cancel()
            return await shared

    assert told(body())[0] == "shared"


def test_each_step_keeps_its_own_notes_and_trace() -> None:
    async def body() -> tuple[list[CallNote], list[Any]]:
        async with Steps() as steps:
            a, b = steps.start(work("a", 0.005)), steps.start(work("b"))
            await a, await b
        return b.notes, a.trace

    (notes, trace), _, _ = told(body())
    assert notes == [CallNote("before", "b"), CallNote("after", "b")]
    assert trace == ["a"]


def test_without_a_trace_none_is_kept() -> None:
    async def body() -> list[Any]:
        with dspy.context(trace=None):
            async with Steps() as steps:
                step = steps.start(work("a"))
            return step.trace

    assert told(body()) == ([], ["a"], [])


@pytest.mark.parametrize("seed", range(3))
def test_nested_steps_keep_the_plan(seed: int) -> None:
    rng = random.Random(seed)

    async def inner(name: str) -> None:
        async with Steps() as steps:
            for i in range(3):
                steps.start(work(f"{name}{i}", rng.random() / 200))

    async def body() -> None:
        async with Steps() as steps:
            for name in "ab":
                steps.start(inner(name))

    assert told(body())[1] == ["a0", "a1", "a2", "b0", "b1", "b2"]

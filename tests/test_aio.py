"""The loop thread: synchronous callers, a user's code, steps side by side, queues and flights."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import dspy
import pytest
from model_server import serve

from blendfilter import aio
from blendfilter.aio import Step, Steps
from blendfilter.context import asker, note, noting, setting
from blendfilter.errors import CodeFailed, UseAcall
from blendfilter.lm.model import connect

MINE: ContextVar[str] = ContextVar("mine", default="default")


async def double(number: int) -> int:
    await asyncio.sleep(0.001)
    return 2 * number


def test_context_variables_and_dspy_settings_cross_into_the_loop_and_its_worker_threads() -> None:
    async def seen() -> list[tuple[str, str, str]]:
        def here() -> tuple[str, str, str]:
            return MINE.get(), asker().stage, dspy.settings.lm.name

        return [here(), await asyncio.to_thread(here)]

    lm = connect("offline")
    token = MINE.set("mine")
    try:
        with setting(stage="ids"), dspy.context(lm=lm):
            assert aio.run(seen()) == [("mine", "ids", "offline")] * 2
    finally:
        MINE.reset(token)
    assert aio.run(asyncio.to_thread(MINE.get)) == "default"


def test_a_synchronous_call_on_the_loop_thread_names_the_module_and_leaves_no_coroutine_behind() -> None:
    async def inside() -> None:
        aio.run(double(1), "BlendFilter")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(UseAcall, match=r"BlendFilter was called .*: write `await BlendFilter\.acall\(…\)` there"):
            aio.run(inside())
        gc.collect()  # an un-awaited coroutine would warn now
    assert not [str(each.message) for each in caught if "never awaited" in str(each.message)]
    assert aio.run(double(1)) == 2


def test_ctrl_c_cancels_the_coroutine_and_the_loop_lives_on() -> None:
    started, ended = threading.Event(), threading.Event()

    async def long() -> None:
        try:
            started.set()
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.set()
            raise

    def press() -> None:
        started.wait(5)
        time.sleep(0.05)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    before = aio.loop()
    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        aio.run(long())
    assert ended.wait(5)
    assert aio.loop() is before
    assert aio.run(double(4)) == 8


@pytest.mark.timeout(60)
@pytest.mark.parametrize("stop", [SystemExit, KeyboardInterrupt])
def test_the_loop_outlives_a_task_that_ends_the_process(stop: type[BaseException]) -> None:
    """A task hands both to whoever awaits it and then ends its loop, on which everybody else waits."""

    async def leave() -> None:
        raise stop

    async def waiting() -> int:
        task = asyncio.ensure_future(leave())
        await asyncio.wait([task])
        return await double(3)

    other = aio.submit(double(5))
    with pytest.raises(stop):
        aio.run(leave())
    assert aio.run(waiting()) == 6
    assert other.result(30) == 10


@pytest.mark.timeout(60)
@pytest.mark.parametrize("raised", [StopIteration, SystemExit, asyncio.CancelledError])
def test_what_a_future_cannot_carry_comes_back_under_its_name(raised: type[BaseException]) -> None:
    def call(message: str) -> None:
        raise raised(message)

    with pytest.raises(CodeFailed, match=f"the code raised {raised.__name__}: enough") as failed:
        aio.run(aio.in_thread(call, "enough"))
    assert failed.value.kind == raised.__name__
    assert type(failed.value.__cause__) is raised


def test_a_cancellation_that_is_meant_is_no_error_of_the_code() -> None:
    async def cancelled() -> bool:
        task = asyncio.ensure_future(aio.awaiting(asyncio.sleep(60)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert aio.run(cancelled())


def test_of_several_errors_at_once_the_first_is_raised_by_itself() -> None:
    async def fail(message: str) -> None:
        raise KeyError(message)

    async def both() -> None:
        async with aio.together() as group:
            group.create_task(fail("the first"))
            group.create_task(fail("the second"))

    with pytest.raises(KeyError, match="the first") as raised:
        aio.run(both())
    assert raised.value.__context__ is None


@pytest.mark.timeout(60)
def test_threads_are_as_many_as_there_is_work_for_and_no_more() -> None:
    pool, together = aio.Threads(3, "few"), threading.Barrier(3)
    try:
        assert sorted(each.result(30) for each in [pool.submit(together.wait) for _ in range(3)]) == [0, 1, 2]
        names = {pool.submit(lambda: threading.current_thread().name).result(30) for _ in range(20)}
        assert names <= {"few_1", "few_2", "few_3"}
        begun, go = threading.Barrier(4), threading.Event()
        busy = [pool.submit(lambda: (begun.wait(30), go.wait(30))) for _ in range(3)]
        waiting = pool.submit(lambda: "never")
        begun.wait(30)
        pool.shutdown(cancel_futures=True)
        assert waiting.cancelled()
        go.set()
        assert all(each.result(30) for each in busy), "what is at work ends by itself"
        with pytest.raises(RuntimeError, match="shut down"):
            pool.submit(len, "")
    finally:
        pool.shutdown(cancel_futures=True)


BLOCKING = """
import sys, threading
from blendfilter import aio

begun = threading.Event()

def block():
    begun.set()
    threading.Event().wait()

async def wait():
    await aio.in_thread(block)

aio.submit(wait())
begun.wait()
print("over")
sys.exit(3)
"""


def test_a_process_ends_though_code_of_its_user_blocks() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKING], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (3, "over\n"), done.stderr


FORK = """
import asyncio, os, sys
from blendfilter import aio
from blendfilter.lm.model import connect

async def pid():
    await asyncio.sleep(0)
    return os.getpid()

lm = connect("offline")
assert aio.run(pid()) == os.getpid()
assert lm("Question: Where is Orm Pier?\\nTopic:") == ["Orm Pier"]
loop = aio.loop()
child = os.fork()
if child == 0:
    try:
        assert not aio.on_loop_thread()
        assert aio.run(pid()) == os.getpid()
        assert aio.loop() is not loop
        assert lm("Question: Where is Orm Pier?\\nTopic:") == ["Orm Pier"]
        print("child works", flush=True)
        os._exit(0)
    finally:
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert aio.loop() is loop
assert aio.run(pid()) == os.getpid()
print("parent works")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout) == (0, "child works\nparent works\n"), done.stderr


FORKED_CLIENT = """
import os, sys
import blendfilter as bf

lm = bf.connect("m", api_base=sys.argv[1], cache=False)
assert lm("one") == ["So the answer is 42."]
child = os.fork()
assert lm("two") == ["So the answer is 42."]
if child == 0:
    sys.exit(0)  # not os._exit: what is closed at the end must be this process's own
assert os.waitpid(child, 0)[1] == 0
assert lm("three") == ["So the answer is 42."]
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_opens_connections_of_its_own_and_leaves_its_parents_alone() -> None:
    with serve() as server:
        command = [sys.executable, "-c", FORKED_CLIENT, server.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        assert server.stats()["answered"] == 4


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


def outcome(body: Coroutine[Any, Any, Any]) -> tuple[Any, list[str], list[Any]]:
    """What `body` gives, the keys of its notes, and its trace."""

    async def outer() -> Any:
        with noting() as notes, dspy.context(trace=[]):
            result = await asyncio.gather(body, return_exceptions=True)
            return result[0], [each.key for each in notes if each.stage == "after"], list(dspy.settings.trace)

    return asyncio.run(outer())


def test_a_step_that_waits_for_others_comes_after_them_in_plan() -> None:
    async def body() -> str:
        async with Steps() as steps:
            slow = steps.start(work("slow", 0.01))
            fast = steps.start(work("fast"))

            async def last() -> str:
                return f"{await slow} {await fast} {await work('last')}"

            return await steps.start(last())

    assert outcome(body()) == ("slow fast last", ["slow", "fast", "last"], ["slow", "fast", "last"])


def test_a_shared_step_is_recorded_once_after_the_first_that_led_to_it() -> None:
    """Two branches give the same step as their result: the quicker one started it, the plan's first one lists it."""

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

    result, notes, trace = outcome(body())
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

    result, notes, trace = outcome(body())
    assert isinstance(result, ValueError)
    assert over == ["slow"]
    assert notes == trace == ["a", "b"]


def test_cancelling_ends_every_step_and_waits_for_its_cleaning_up() -> None:
    ended: list[str] = []

    async def stubborn(name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.01)  # cleaning up takes a while
            ended.append(name)

    async def body() -> None:
        async with Steps() as steps:
            first = steps.start(stubborn("a"))
            steps.start(stubborn("b"))
            await first

    async def outer() -> None:
        task = asyncio.ensure_future(body())
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(outer(), 5))
    assert ended == ["a", "b"]


# ---- the waiting queue


class Places:
    """A queue for one place, and who came to it in which order."""

    def __init__(self, seconds: float | None = None) -> None:
        self.free, self.came, self.lock = True, list[str](), threading.Lock()
        self.queue: aio.WaitingQueue[str, str] = aio.WaitingQueue(self.grant, self.leave, self.lock, lambda _: seconds)

    def grant(self, name: str) -> str | None:
        if not self.free:
            return None
        self.free = False
        return name

    def leave(self, name: str = "") -> None:
        with self.lock:
            self.free = True
        self.queue.serve()

    async def come(self, name: str, order: int = 0) -> None:
        with setting(order=order):
            await self.queue.turn(name)
        self.came.append(name)


def test_the_oldest_question_goes_first_then_the_order_of_arrival_and_no_newcomer_overtakes() -> None:
    async def main() -> list[str]:
        places = Places()
        wanted = [("first", 9), ("q5", 5), ("q2 a", 2), ("q7", 7), ("q2 b", 2), ("q1", 1)]
        tasks = [asyncio.create_task(places.come(name, order)) for name, order in wanted]
        await asyncio.sleep(0)
        for _ in wanted:
            places.leave()
            # The place is the next one's already, though that one has not run yet.
            tasks.append(asyncio.create_task(places.come("late", 9)))
            await asyncio.sleep(0.001)
        while len(places.came) < len(tasks):
            places.leave()
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        return places.came

    assert asyncio.run(main()) == ["first", "q1", "q2 a", "q2 b", "q5", "q7", *["late"] * 6]


@pytest.mark.parametrize("delivered", [False, True])
def test_what_is_granted_in_the_instant_of_a_cancellation_is_passed_on(delivered: bool) -> None:
    async def main() -> None:
        places = Places()
        await places.come("first")
        doomed, other = (asyncio.create_task(places.come(name)) for name in ("doomed", "other"))
        await asyncio.sleep(0)
        places.leave()
        if delivered:
            await asyncio.sleep(0)
        doomed.cancel()
        await asyncio.wait_for(other, 5)
        assert doomed.cancelled()
        assert places.came == ["first", "other"]

    asyncio.run(main())


@pytest.mark.parametrize("seconds", [None, 0.001])
def test_loops_of_several_threads_share_a_queue(seconds: float | None) -> None:
    """A turn must wake the loop where its waiter is; and where turns come by time, whoever waits keeps it for all."""
    places, inside, most = Places(seconds), 0, 0

    async def call() -> None:
        nonlocal inside, most
        await asyncio.wait_for(places.queue.turn(""), 20)
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.001)
        inside -= 1
        places.leave()

    async def several() -> None:
        await asyncio.gather(*(call() for _ in range(15)))

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: asyncio.run(several()), range(3)))
    assert (most, places.free) == (1, True)


# ---- single flight


def test_equal_work_from_several_loops_is_done_once_and_looked_up_once_by_each() -> None:
    flights: aio.SingleFlight[str] = aio.SingleFlight()
    done: dict[str, str] = {}
    looked, worked, entered, leave = 0, 0, threading.Event(), threading.Event()

    def found() -> str | None:
        nonlocal looked
        looked += 1
        return done.get("key")

    async def work() -> str:
        nonlocal worked
        worked += 1
        entered.set()
        await asyncio.to_thread(leave.wait, 5)
        done["key"] = "result"
        return "result"

    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(lambda: asyncio.run(flights.do("key", found, work)))
        assert entered.wait(5)
        others = [pool.submit(lambda: asyncio.run(flights.do("key", found, work))) for _ in range(5)]
        leave.set()
        assert [each.result(10) for each in (first, *others)] == ["result"] * 6
    assert worked == 1
    assert looked <= 6, "once by each that found no work under way"


def test_a_cancelled_follower_leaves_the_work_to_the_others() -> None:
    async def main() -> list[str]:
        flights: aio.SingleFlight[str] = aio.SingleFlight()
        go = asyncio.Event()

        async def work() -> str:
            await go.wait()
            return "result"

        leader, doomed, other = (asyncio.create_task(flights.do("key", lambda: None, work)) for _ in range(3))
        await asyncio.sleep(0.01)
        doomed.cancel()
        go.set()
        answers = await asyncio.gather(leader, other)
        assert doomed.cancelled()
        return answers

    assert asyncio.run(main()) == ["result"] * 2


def test_a_models_call_wakes_no_thread_for_dspys_own_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """DSPy hands both to `asyncio.to_thread`; a request with a picture, which may have to be read, still goes there."""
    from dspy import lm15

    from blendfilter import connect

    handed: list[Any] = []
    submit = aio.Threads.submit

    def counted(self: aio.Threads, fn: Any, /, *args: Any, **more: Any) -> Any:
        handed.append(fn)
        return submit(self, fn, *args, **more)

    monkeypatch.setattr(aio.Threads, "submit", counted)
    lm = connect("offline", cache=False)
    assert lm("Question: Who?\nAnswer:")
    assert handed == []
    words = lm15.Message.user("Question: Who?\nAnswer:")
    assert lm(lm15.Request(model=lm.model, messages=(words,))).text
    assert handed == []
    picture = lm15.Message("user", (lm15.ImagePart(url="https://example.org/a.png"),))
    lm(lm15.Request(model=lm.model, messages=(picture, words)))
    assert handed


def test_an_error_in_such_a_step_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    from blendfilter import connect

    def fails(*_: Any, **__: Any) -> Any:
        raise ValueError("cannot be taken apart")

    fails.__module__, fails.__name__ = "dspy.clients.execution", "prepare"
    monkeypatch.setattr("dspy.clients.execution.prepare", fails)
    with pytest.raises(ValueError, match="cannot be taken apart"):
        connect("offline", cache=False)("Question: Who?\nAnswer:")

"""The bridge: synchronous callers on one loop that lives on."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextvars import ContextVar

import dspy
import pytest
from model_server import serve

from blendfilter.context import STAGE, setting
from blendfilter.errors import CodeFailed, UseAcall
from blendfilter.lm import bridge
from blendfilter.lm.connect import connect

MINE: ContextVar[str] = ContextVar("mine", default="nobody's")


async def double(number: int) -> int:
    await asyncio.sleep(0.001)
    return 2 * number


def test_it_works_where_no_loop_runs() -> None:
    assert bridge.run(double(21)) == 42


def test_it_works_inside_a_running_loop_as_in_a_notebook() -> None:
    async def cell() -> int:
        return bridge.run(double(21))

    assert asyncio.run(cell()) == 42


def test_every_call_meets_the_same_loop() -> None:
    async def here() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    with ThreadPoolExecutor(4) as pool:
        loops = set(pool.map(lambda _: bridge.run(here()), range(20)))
    assert loops == {bridge.loop()}


def test_many_threads_call_at_once() -> None:
    async def wait() -> float:
        await asyncio.sleep(0.2)
        return time.monotonic()

    start = time.monotonic()
    with ThreadPoolExecutor(32) as pool:
        ends = list(pool.map(lambda _: bridge.run(wait()), range(32)))
    assert max(ends) - start < 32 * 0.2 / 4  # side by side, not one after the other


def test_an_error_comes_back_as_it_was_raised() -> None:
    async def fail() -> None:
        raise KeyError("the very one")

    with pytest.raises(KeyError, match="the very one"):
        bridge.run(fail())


def test_context_variables_and_dspy_settings_cross_into_the_loop_and_its_worker_threads() -> None:
    async def seen() -> list[tuple[str, str, str]]:
        def here() -> tuple[str, str, str]:
            return MINE.get(), STAGE.get(), dspy.settings.lm.name

        return [here(), await asyncio.to_thread(here)]

    lm = connect("offline")
    token = MINE.set("mine")
    try:
        with setting(STAGE, "ids"), dspy.context(lm=lm):
            assert bridge.run(seen()) == [("mine", "ids", "offline")] * 2
    finally:
        MINE.reset(token)
    assert bridge.run(asyncio.to_thread(MINE.get)) == "nobody's"


def test_a_synchronous_call_on_the_loop_thread_names_the_module_and_leaves_no_coroutine_behind() -> None:
    async def inside() -> None:
        bridge.run(double(1), "BlendFilter")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        told = r"BlendFilter was called synchronously on the loop thread: write `await BlendFilter\.acall\(…\)` there"
        with pytest.raises(UseAcall, match=told):
            bridge.run(inside())
        gc.collect()  # an un-awaited coroutine would warn now
    assert not [str(each.message) for each in caught if "never awaited" in str(each.message)]
    assert bridge.run(double(1)) == 2


def test_the_loop_thread_is_told_from_every_other() -> None:
    async def on() -> tuple[bool, bool]:
        return bridge.on_loop_thread(), await asyncio.to_thread(bridge.on_loop_thread)

    assert bridge.run(on()) == (True, False)
    assert not bridge.on_loop_thread()


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

    before = bridge.loop()
    threading.Thread(target=press).start()
    with pytest.raises(KeyboardInterrupt):
        bridge.run(long())
    assert ended.wait(5)
    assert bridge.loop() is before
    assert bridge.run(double(4)) == 8


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

    other = bridge.submit(double(5))
    with pytest.raises(stop):
        bridge.run(leave())
    assert bridge.run(waiting()) == 6
    assert other.result(30) == 10


@pytest.mark.timeout(60)
@pytest.mark.parametrize("raised", [StopIteration, SystemExit, GeneratorExit, asyncio.CancelledError, CancelledError])
def test_what_a_future_cannot_carry_comes_back_under_its_name(raised: type[BaseException]) -> None:
    def call(message: str) -> None:
        raise raised(message)

    with pytest.raises(CodeFailed, match=f"the code raised {raised.__name__}: enough") as failed:
        bridge.run(bridge.in_thread(call, "enough"))
    assert failed.value.kind == raised.__name__
    assert type(failed.value.__cause__) is raised


def test_a_cancellation_that_is_meant_is_no_error_of_the_code() -> None:
    async def cancelled() -> bool:
        task = asyncio.ensure_future(bridge.awaiting(asyncio.sleep(60)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert bridge.run(cancelled())


def test_a_coroutine_that_is_closed_raises_nothing() -> None:
    awaiting = bridge.awaiting(asyncio.sleep(60))

    async def begin() -> None:
        with contextlib.suppress(StopIteration):
            awaiting.send(None)

    bridge.run(begin())
    awaiting.close()


def test_of_several_errors_at_once_the_first_is_raised_by_itself() -> None:
    async def fail(message: str) -> None:
        raise KeyError(message)

    async def both() -> None:
        async with bridge.together() as group:
            group.create_task(fail("the first"))
            group.create_task(fail("the second"))

    with pytest.raises(KeyError, match="the first") as raised:
        bridge.run(both())
    assert raised.value.__context__ is None


@pytest.mark.timeout(60)
def test_threads_are_as_many_as_there_is_work_for_and_no_more() -> None:
    pool, together = bridge.Threads(3, "few"), threading.Barrier(3)
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
from blendfilter.lm import bridge

begun = threading.Event()

def block():
    begun.set()
    threading.Event().wait()

async def wait():
    await bridge.in_thread(block)

bridge.submit(wait())
begun.wait()
print("over")
sys.exit(3)
"""


def test_a_process_ends_though_code_of_its_user_blocks() -> None:
    done = subprocess.run([sys.executable, "-c", BLOCKING], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (3, "over\n"), done.stderr


FORK = """
import asyncio, os, sys
from blendfilter.lm import bridge
from blendfilter.lm.connect import connect

async def pid():
    await asyncio.sleep(0)
    return os.getpid()

lm = connect("offline")
assert bridge.run(pid()) == os.getpid()
assert lm("Question: Where is Orm Pier?\\nTopic:") == ["Orm Pier"]
loop = bridge.loop()
child = os.fork()
if child == 0:
    try:
        assert not bridge.on_loop_thread()
        assert bridge.run(pid()) == os.getpid()
        assert bridge.loop() is not loop
        assert lm("Question: Where is Orm Pier?\\nTopic:") == ["Orm Pier"]
        print("child works", flush=True)
        os._exit(0)
    finally:
        os._exit(1)
assert os.waitpid(child, 0)[1] == 0
assert bridge.loop() is loop
assert bridge.run(pid()) == os.getpid()
print("parent works")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "child works\nparent works\n"), done.stderr


def test_a_pooled_client_survives_from_call_to_call() -> None:
    with serve(reply="So the answer is 42.") as server:
        lm = connect("test-model", api_base=server.url)
        replies = [lm(f"call {number}") for number in range(3)]

        async def cell() -> list[str]:
            return list(lm("from a notebook"))

        replies.append(asyncio.run(cell()))  # a loop that opens and closes between two calls
        replies.append(lm("and after it"))
        assert replies == [["So the answer is 42."]] * 5
        assert server.stats()["requests"] == 5

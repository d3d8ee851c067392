"""The bridge: synchronous callers on one loop that lives on."""

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
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import dspy
import pytest
from model_server import serve

from blendfilter.context import STAGE, setting
from blendfilter.errors import UseAcall
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

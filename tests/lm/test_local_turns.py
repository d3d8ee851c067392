"""Turns at one model: one at a time, what shares most first, the oldest question among equals, nobody for ever last."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given

from blendfilter.context import ORDER, setting
from blendfilter.errors import BadArgument, CodeFailed, WorkFailed
from blendfilter.lm.attempts import Tally, tallied
from blendfilter.lm.local.turns import BLOCK, PATIENCE, Turns, Waiting, next_of


def none(task: object) -> int:
    return 0


def queue(*tasks: tuple[int, int]) -> list[Waiting[int, None]]:
    """Tasks as (rank, tokens saved), in the order of asking."""
    return [Waiting(saved, (rank, ticket)) for ticket, (rank, saved) in enumerate(tasks)]


def test_what_saves_most_goes_first_and_small_savings_do_not_count() -> None:
    waiting = queue((0, BLOCK - 1), (1, 10 * BLOCK), (0, 2 * BLOCK))
    assert next_of(waiting, lambda task: task) is waiting[1]
    waiting = queue((3, 0), (1, 0), (2, BLOCK - 1), (1, 0))
    assert next_of(waiting, lambda task: task) is waiting[1]


def test_who_was_overtaken_too_often_goes_first() -> None:
    patient, *_ = waiting = queue((0, 0), *[(1, 99 * BLOCK)] * (PATIENCE + 5))
    for _ in range(PATIENCE):
        waiting.remove(next_of(waiting, lambda task: task))
    assert next_of(waiting, lambda task: task) is patient


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20 * BLOCK)), min_size=1, max_size=60), st.integers(1, 9))
def test_each_is_served_once_and_none_is_overtaken_for_ever(tasks: list[tuple[int, int]], at_once: int) -> None:
    """However tasks come in, nobody is overtaken more than `PATIENCE` times by those who did not wait as long."""
    coming, waiting, served = queue(*tasks), [], []
    while coming or waiting:
        while coming and len(waiting) < at_once:
            waiting.append(coming.pop(0))
        chosen = next_of(waiting, lambda task: task)
        waiting.remove(chosen)
        served.append(chosen)
    assert sorted(each.place[1] for each in served) == list(range(len(tasks)))
    # Those who lost their patience at the same time still go one after the other.
    assert all(each.overtaken <= PATIENCE + at_once for each in served)


def test_one_at_a_time_oldest_question_first_and_the_loop_goes_on() -> None:
    inside, most, came, all_wait = [], [], [], threading.Event()

    def serve(task: str, stopped: Callable[[], bool]) -> str:
        all_wait.wait()
        inside.append(task)
        most.append(len(inside))
        time.sleep(0.01)
        came.append(inside.pop())
        return task.upper()

    async def main() -> tuple[list[str], int]:
        turns, beats = Turns(serve, none), 0

        async def one(task: str, rank: int) -> str:
            with setting(ORDER, rank):
                return await turns.take(task)

        asked = [asyncio.create_task(one("a", 5))]
        while turns._current is None:
            await asyncio.sleep(0.001)
        asked += [asyncio.create_task(one(*each)) for each in [("b", 3), ("c", 1), ("d", 3)]]
        await asyncio.sleep(0)
        all_wait.set()
        while not all(task.done() for task in asked):
            await asyncio.sleep(0.001)
            beats += 1
        turns.close()
        return [task.result() for task in asked], beats

    replies, beats = asyncio.run(main())
    assert (replies, max(most)) == (["A", "B", "C", "D"], 1)
    assert came == ["a", "c", "b", "d"]
    assert beats > 10


def test_an_error_is_that_tasks_and_the_next_is_served() -> None:
    def serve(task: int, stopped: Callable[[], bool]) -> int:
        if task == 0:
            raise RuntimeError("no")
        return task

    async def main() -> list[object]:
        turns = Turns(serve, none)
        try:
            return await asyncio.gather(*(turns.take(task) for task in range(3)), return_exceptions=True)
        finally:
            turns.close()

    first, *others = asyncio.run(main())
    assert isinstance(first, RuntimeError)
    assert others == [1, 2]


def test_a_cancelled_task_leaves_the_queue_and_a_running_one_is_told() -> None:
    running, told, served = threading.Event(), threading.Event(), []

    def serve(task: str, stopped: Callable[[], bool]) -> str:
        served.append(task)
        running.set()
        if task == "long":
            while not stopped():
                time.sleep(0.001)
            told.set()
        return task

    async def main() -> None:
        turns = Turns(serve, none)
        long, waits = asyncio.create_task(turns.take("long")), asyncio.create_task(turns.take("waits"))
        await asyncio.to_thread(running.wait)
        last = asyncio.create_task(turns.take("last"))
        await asyncio.sleep(0)
        waits.cancel()
        long.cancel()
        assert await last == "last"
        assert (long.cancelled(), waits.cancelled()) == (True, True)
        turns.close()

    asyncio.run(main())
    assert told.is_set()
    assert served == ["long", "last"]


def test_closed_it_tells_who_waits_and_takes_nobody_in() -> None:
    running = threading.Event()

    def serve(task: str, stopped: Callable[[], bool]) -> str:
        running.set()
        while not stopped():
            time.sleep(0.001)
        return task

    async def main() -> None:
        turns = Turns(serve, none)
        first, second = asyncio.create_task(turns.take("first")), asyncio.create_task(turns.take("second"))
        await asyncio.to_thread(running.wait)
        turns.close()
        assert await first == "first"
        with pytest.raises(WorkFailed, match="was closed"):
            await second
        with pytest.raises(WorkFailed, match="was closed"):
            await turns.take("third")

    asyncio.run(main())


def test_who_cancels_while_he_is_chosen_stops_nobody_else() -> None:
    turns: Turns[int, int]

    def saving(task: int) -> int:
        if task == 1:
            next(each for each in turns._waiting if each.task == 1).result.cancel()
            return 99 * BLOCK
        return 0

    async def main() -> list[object]:
        nonlocal turns
        turns = Turns(lambda task, stopped: task, saving)
        try:
            calls = asyncio.gather(*(turns.take(task) for task in (1, 2)), return_exceptions=True)
            return await asyncio.wait_for(calls, 5)
        finally:
            turns.close()

    first, second = asyncio.run(main())
    assert isinstance(first, asyncio.CancelledError)
    assert second == 2


def test_an_order_that_cannot_be_told_lets_nobody_wait() -> None:
    def unknown(task: object) -> int:
        raise RuntimeError("no")

    async def main() -> list[int]:
        turns = Turns(lambda task, stopped: task, unknown)
        try:
            return await asyncio.wait_for(asyncio.gather(*(turns.take(task) for task in range(3))), 5)
        finally:
            turns.close()

    assert asyncio.run(main()) == [0, 1, 2]


def test_calls_come_from_several_loops() -> None:
    turns = Turns(lambda task, stopped: task + 1, none)
    replies: list[int] = []
    threads = [threading.Thread(target=lambda n=n: replies.append(asyncio.run(turns.take(n)))) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    turns.close()
    assert sorted(replies) == list(range(1, 9))


def test_a_forked_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = Turns(lambda task, stopped: task, none)
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    with pytest.raises(BadArgument, match=r"does not survive a fork: connect\(\) in the new process"):
        asyncio.run(turns.take(1))


def test_what_a_task_waits_for_its_turn_is_no_time_of_the_models() -> None:
    def serve(task: float, stopped: Callable[[], bool]) -> float:
        time.sleep(task)
        return task

    async def main() -> tuple[Tally, Tally, float]:
        turns = Turns(serve, none)

        async def one(task: float) -> Tally:
            with tallied() as tally:
                tally.attempts, tally.went_out = 1, 100.0
                await turns.take(task)
            return tally

        began = time.perf_counter()
        first, second = await asyncio.gather(one(0.2), one(0.01))
        turns.close()
        return first, second, time.perf_counter() - began

    first, second, whole = asyncio.run(main())
    assert 0 <= first.waited <= whole - 0.2 - 0.01, "what it took itself is no wait"
    assert 0.15 < second.waited <= whole
    assert second.went_out == 100.0 + second.waited


def test_a_task_that_raises_stop_iteration_is_an_error_and_no_wait_without_end() -> None:
    """No future takes one, so whoever waits would wait for ever."""

    def serve(task: str, stopped: Callable[[], bool]) -> str:
        return next(letter for letter in task if letter == "z")

    async def main() -> None:
        turns = Turns(serve, none)
        with pytest.raises(CodeFailed, match="StopIteration"):
            await asyncio.wait_for(turns.take("a"), 60)
        turns.close()

    asyncio.run(main())

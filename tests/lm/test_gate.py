"""The gate: never more than its limit, oldest question first, no place lost or invented by a cancellation."""

from __future__ import annotations

import asyncio
import random
import threading

import pytest

from blendfilter.context import ORDER, setting
from blendfilter.errors import BadArgument
from blendfilter.lm.gate import Gate


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(BadArgument, match=f"of at least 1, got {limit}"):
        Gate(limit)


class Watch:
    """Counts who is inside a gate, and the order in which they came in."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.inside = self.most = 0
        self.came: list[str] = []

    async def call(self, name: str = "", order: int = 0, seconds: float = 0.0) -> None:
        with setting(ORDER, order):
            async with self.gate:
                self.came.append(name)
                self.inside += 1
                self.most = max(self.most, self.inside)
                try:
                    await asyncio.sleep(seconds)
                finally:
                    self.inside -= 1


def test_the_oldest_question_goes_first_then_the_order_of_asking() -> None:
    async def main() -> list[str]:
        watch = Watch(Gate(1))
        asked = [("first", 9), ("q5", 5), ("q2 a", 2), ("q7", 7), ("q2 b", 2), ("q1", 1)]
        await asyncio.gather(*(watch.call(name, order, 0.001) for name, order in asked))
        return watch.came

    # The first finds the gate empty; the others are served by the age of their question.
    assert asyncio.run(main()) == ["first", "q1", "q2 a", "q2 b", "q5", "q7"]


def test_a_newcomer_does_not_overtake_those_who_wait() -> None:
    async def main() -> list[str]:
        watch = Watch(Gate(1))
        tasks = [asyncio.create_task(watch.call(name, 1, 0.001)) for name in ("a", "b")]
        while watch.came != ["a"] or watch.inside:
            await asyncio.sleep(0)
        # `a` has just left and its place is `b`'s already, though `b` has not run yet.
        await asyncio.gather(watch.call("late", 1), *tasks)
        return watch.came

    assert asyncio.run(main()) == ["a", "b", "late"]


@pytest.mark.parametrize("seed", range(5))
def test_never_more_than_the_limit_under_random_sleeps_errors_and_cancellations(seed: int) -> None:
    rng = random.Random(seed)
    limit = rng.randint(1, 6)

    async def failing(watch: Watch) -> None:
        async with watch.gate:
            raise KeyError("inside")

    async def main() -> None:
        watch = Watch(Gate(limit))
        tasks = []
        for order in rng.sample(range(300), 300):
            if rng.random() < 0.1:
                tasks.append(asyncio.create_task(failing(watch)))
            tasks.append(asyncio.create_task(watch.call(str(order), order, rng.random() * 0.002)))
            if rng.random() < 0.3:
                await asyncio.sleep(0)
            if rng.random() < 0.3:
                rng.choice(tasks).cancel()
            assert watch.gate.in_flight <= limit
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert watch.most == limit
        assert watch.gate.in_flight == 0
        assert sum(isinstance(result, asyncio.CancelledError) for result in results) > 10
        # Whoever was not cancelled got in, and nobody is left behind.
        assert len(watch.came) >= sum(result is None for result in results)
        await asyncio.wait_for(asyncio.gather(*(watch.call() for _ in range(limit))), 1)

    asyncio.run(main())


@pytest.mark.parametrize("told", [False, True])
def test_a_place_handed_over_in_the_instant_of_a_cancellation_is_passed_on(told: bool) -> None:
    async def main() -> None:
        watch = Watch(Gate(1))
        await watch.gate.__aenter__()
        doomed, next_one = (asyncio.create_task(watch.call(name)) for name in ("doomed", "next"))
        await asyncio.sleep(0)
        await watch.gate.__aexit__(None, None, None)  # the place is doomed's now …
        if told:
            await asyncio.sleep(0)
        doomed.cancel()  # … which is cancelled before it wakes
        await asyncio.wait_for(next_one, 1)
        assert doomed.cancelled()
        assert watch.came == ["next"]
        assert watch.gate.in_flight == 0

    asyncio.run(main())


def test_one_gate_serves_the_loops_of_several_threads() -> None:
    """A place that is handed over must wake the loop where somebody waits for it."""
    gate, inside, most, done = Gate(1), 0, 0, []

    async def call() -> None:
        nonlocal inside, most
        async with gate:
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.001)
            inside -= 1

    async def several() -> None:
        await asyncio.gather(*(asyncio.wait_for(call(), 10) for _ in range(15)))

    def thread() -> None:
        asyncio.run(several())
        done.append(True)

    threads = [threading.Thread(target=thread, daemon=True) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(20)
    assert done == [True] * 3
    assert (most, gate.in_flight) == (1, 0)


def test_who_waited_on_a_loop_that_is_closed_is_passed_over() -> None:
    gate = Gate(1)

    async def hold_then_free() -> None:
        await gate.__aenter__()
        forgotten = asyncio.new_event_loop()
        waiting = forgotten.create_task(gate.__aenter__())
        await asyncio.to_thread(forgotten.run_until_complete, asyncio.sleep(0))
        forgotten.close()
        waiting._log_destroy_pending = False  # type: ignore[attr-defined]
        next_one = asyncio.create_task(gate.__aenter__())
        await asyncio.sleep(0)
        await gate.__aexit__(None, None, None)
        await asyncio.wait_for(next_one, 5)
        await gate.__aexit__(None, None, None)

    asyncio.run(hold_then_free())
    assert gate.in_flight == 0


@pytest.mark.parametrize("limit", [True, 2.5, "4", None])
def test_a_limit_that_is_no_whole_number_is_refused(limit: object) -> None:
    with pytest.raises(BadArgument, match="concurrency must be a whole number"):
        Gate(limit)  # type: ignore[arg-type]

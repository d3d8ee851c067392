"""How many the gate lets through follows the server: halved once a round, grown by one a round, near its capacity."""

from __future__ import annotations

import asyncio

import jumping
import pytest
from dspy import lm15
from hypothesis import given
from hypothesis import strategies as st
from model_server import serve

from blendfilter.lm.connect import connect
from blendfilter.lm.gate import CAUTION, Gate
from blendfilter.lm.metered import MeteredEngine
from blendfilter.lm.retrying import Allowance, Retry, RetryingEngine
from blendfilter.lm.terms import Traffic

REQUEST = lm15.Request(model="m", messages=(lm15.Message.user("q"),))
REPLY = lm15.Response(
    id=None, model="m", message=lm15.Message.assistant("a"), finish_reason="stop", usage=lm15.Usage()
)  # fmt: skip
SLOW = lm15.RateLimitError("slow down", status=429)


def entered(gate: Gate, count: int) -> list[int]:
    """The tickets of `count` calls that go out at once."""

    async def main() -> list[int]:
        return [await gate.before(REQUEST) for _ in range(count)]

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "allowed"),
    [
        (SLOW, 8),
        (lm15.ServerError("busy", status=503, retry_after=2.0), 8),
        (lm15.ServerError("busy", status=503), 16),
        (lm15.ServerError("broken", status=500, retry_after=2.0), 16),
        (lm15.BillingError("no credit", status=429), 16),
        (lm15.TimeoutError("late"), 16),
        (asyncio.CancelledError(), 16),
    ],
    ids=["429", "503 with Retry-After", "503", "500", "no credit", "timeout", "cancelled"],
)
def test_only_a_server_that_throttles_is_sent_less(error: BaseException, allowed: int) -> None:
    gate = Gate(16)
    (ticket,) = entered(gate, 1)
    gate.after(ticket, None, error)
    assert gate.allowed == allowed


def test_a_round_of_refusals_halves_the_places_once() -> None:
    gate = Gate(16)
    for ticket in entered(gate, 16):
        gate.after(ticket, None, SLOW)
    assert (gate.allowed, gate.in_flight) == (8, 0)
    for ticket in entered(gate, 8):
        gate.after(ticket, None, SLOW)
    assert gate.allowed == 4


def test_never_below_one() -> None:
    gate = Gate(5)
    for _ in range(10):
        (ticket,) = entered(gate, 1)
        gate.after(ticket, None, SLOW)
    assert gate.allowed == 1


def test_a_round_of_replies_makes_one_place_more_up_to_the_limit() -> None:
    gate = Gate(16)
    (ticket,) = entered(gate, 1)
    gate.after(ticket, None, SLOW)
    sizes = []
    for _ in range(30):
        for ticket in entered(gate, gate.allowed):
            gate.after(ticket, REPLY, None)
        sizes.append(gate.allowed)
    assert sizes[:7] == [8, 9, 10, 11, 12, 13, 14]  # just short of nine after the first round: the step shrinks in it
    assert sizes[-1] == 16


def test_the_last_step_is_taken_with_caution() -> None:
    gate = Gate(4)
    (ticket,) = entered(gate, 1)
    gate.after(ticket, None, SLOW)  # 4 were too many: 2 are left, and 3 are the last step before
    replies = []
    for _ in range(2):
        before, count = gate.allowed, 0
        while gate.allowed == before:
            for ticket in entered(gate, 1):
                gate.after(ticket, REPLY, None)
            count += 1
        replies.append(count)
    assert replies[0] <= 3
    assert replies[1] >= 3 * (CAUTION - 1)


def test_places_that_come_back_are_taken_by_those_who_wait() -> None:
    async def main() -> int:
        gate = Gate(8)
        tickets = [await gate.before(REQUEST) for _ in range(8)]
        gate.after(tickets[0], None, SLOW)
        gate.after(tickets[1], REPLY, None)
        waiting = [asyncio.create_task(gate.before(REQUEST)) for _ in range(4)]
        await asyncio.sleep(0)
        assert gate.in_flight == 6, "more are out than may be, and nobody joins them"
        for ticket in tickets[2:]:
            gate.after(ticket, REPLY, None)
        await asyncio.wait_for(asyncio.gather(*waiting), 5)
        return gate.in_flight

    assert asyncio.run(main()) == 4


@given(st.integers(1, 9), st.lists(st.sampled_from(["in", "reply", "slow", "fault"]), max_size=200))
def test_what_is_allowed_stays_between_one_and_the_limit(limit: int, steps: list[str]) -> None:
    gate, out = Gate(limit), []
    for step in steps:
        if step == "in" and gate.in_flight < gate.allowed:
            out += entered(gate, 1)
        elif step != "in" and out:
            error = {"slow": SLOW, "fault": lm15.ServerError("500")}.get(step)
            gate.after(out.pop(0), None if error else REPLY, error)
        assert 1 <= gate.allowed <= limit
        assert gate.in_flight == len(out)


class Capacity:
    """Refuses whatever is more than it can take at a time."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.inside, self.refused, self.most = capacity, 0, 0, 0

    async def complete(self, request: lm15.Request) -> lm15.Response:
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await asyncio.sleep(0.02)
            if self.inside > self.capacity:
                self.refused += 1
                raise lm15.RateLimitError("slow down", status=429)
            await asyncio.sleep(0.98)
        finally:
            self.inside -= 1
        return REPLY


@pytest.mark.parametrize(("capacity", "limit"), [(8, 32), (2, 64), (1, 16), (5, 8)])
def test_throughput_settles_near_what_a_server_can_take(capacity: int, limit: int) -> None:
    async def main() -> int:
        gate, retries = Gate(limit), Allowance(free=100 + 4 * limit)
        engine = RetryingEngine(MeteredEngine(server, [gate]), Retry(), retries, clock=jumping.now)
        await asyncio.gather(*(engine.complete(REQUEST) for _ in range(400)))
        return retries.used

    server = Capacity(capacity)
    retries, seconds = jumping.run(main())
    assert retries == server.refused
    assert 400 / seconds >= 0.85 * capacity, "calls a second, each of which takes one"
    assert server.refused < 200


def test_a_server_with_room_for_few_answers_all() -> None:
    with serve(capacity=3, delay=0.01) as server:
        lm = connect("m", api_base=server.url)
        gate = Gate(24)
        lm = lm.with_journal(None, Traffic(gate=gate))

        async def main() -> list[list[str]]:
            return await asyncio.gather(*(lm.acall(f"q{number}") for number in range(120)))

        assert asyncio.run(main()) == [["So the answer is 42."]] * 120
        stats = server.stats()
    assert stats["answered"] == 120
    assert gate.allowed < 12, "it has learned"
    assert stats["faults"]["rate-limit"] < 120

"""The gate and the pace: never more than the limit, and no faster than the server takes.

Order, cancellation and several loops are the waiting queue's: `test_aio`.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import jumping
import pytest
from dspy import lm15
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import BadArgument
from blendfilter.lm import faults
from blendfilter.lm.attempts import (
    MARGIN,
    REPLY,
    SECONDS,
    AttemptingEngine,
    Gate,
    Pace,
    Retry,
    RetryBudget,
)
from blendfilter.lm.model import connect
from blendfilter.lm.tokens import at_most

REQUEST = lm15.Request(
    model="m", messages=(lm15.Message.user("Which isle is the largest?"),), config=lm15.Config(max_tokens=40)
)
BOUND = at_most(REQUEST) + 40
HERE = "http://127.0.0.1:9/v1"
SLOW = lm15.RateLimitError("slow down", status=429)


def reply(tokens_in: int | None = 1, tokens_out: int | None = 0) -> lm15.Response:
    return lm15.Response(
        id=None, model="m", message=lm15.Message.assistant("a"), finish_reason="stop",
        usage=lm15.Usage(input_tokens=tokens_in, output_tokens=tokens_out),
    )  # fmt: skip


@pytest.mark.parametrize("limit", [0, 2.5, True])
def test_a_limit_that_is_none_is_refused(limit: object) -> None:
    with pytest.raises(BadArgument, match=f"concurrency is {limit!r}: give a whole number of 1 or more"):
        Gate(limit)  # type: ignore[arg-type]
    for name in ("requests_per_minute", "tokens_per_minute"):
        with pytest.raises(BadArgument, match=rf"{name} is {limit!r}: give a whole number"):
            connect("m", api_base=HERE, **{name: limit})  # type: ignore[arg-type]


# ---- the gate


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
        (lm15.BillingError("no credit", status=429), 16),
        (lm15.TimeoutError("late"), 16),
        (asyncio.CancelledError(), 16),
    ],
    ids=["429", "503 with Retry-After", "503", "no credit", "timeout", "cancelled"],
)
def test_only_a_server_that_throttles_is_sent_less(error: BaseException, allowed: int) -> None:
    gate = Gate(16)
    (ticket,) = entered(gate, 1)
    gate.after(ticket, None, error)
    assert gate.allowed == allowed


def test_a_round_of_refusals_halves_the_places_once_and_a_round_of_replies_makes_one_more() -> None:
    gate = Gate(16)
    for ticket in entered(gate, 16):
        gate.after(ticket, None, SLOW)
    assert (gate.allowed, gate.in_flight) == (8, 0)
    sizes = []
    for _ in range(30):
        for ticket in entered(gate, gate.allowed):
            gate.after(ticket, reply())
        sizes.append(gate.allowed)
    assert sizes[:7] == [8, 9, 10, 11, 12, 13, 14]  # just short of nine after the first round: the step shrinks in it
    assert sizes[-1] == 16


class Capacity:
    """Refuses whatever is more than it can take at a time."""

    def __init__(self, capacity: int) -> None:
        self.capacity, self.inside, self.refused = capacity, 0, 0

    async def complete(self, request: lm15.Request) -> lm15.Response:
        self.inside += 1
        try:
            await asyncio.sleep(0.02)
            if self.inside > self.capacity:
                self.refused += 1
                raise SLOW
            await asyncio.sleep(0.98)
        finally:
            self.inside -= 1
        return reply()


@pytest.mark.parametrize(("capacity", "limit"), [(8, 32), (2, 64), (1, 16), (5, 8)])
def test_throughput_settles_near_what_a_server_can_take(capacity: int, limit: int) -> None:
    async def main() -> int:
        gate, retries = Gate(limit), RetryBudget(free=100 + 4 * limit)
        engine = AttemptingEngine(server, [gate], Retry(), retries, clock=jumping.now)
        await asyncio.gather(*(engine.complete(REQUEST) for _ in range(400)))
        return retries.used

    server = Capacity(capacity)
    retries, seconds = jumping.run(main())
    assert retries == server.refused
    assert 400 / seconds >= 0.85 * capacity, "calls a second, each of which takes one"
    assert server.refused < 200


# ---- the pace


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.floats(0, 40), st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=60),
)
def test_no_window_holds_more_than_the_limit(limit: int, wanted: list[tuple[float, int, int]]) -> None:
    """Each thing waits for its turn after a pause, goes out at an estimate, and is corrected to what it really was."""
    pace, now, sent = Pace(None, limit, clock=lambda: now), 0.0, []
    for pause, estimate, less in wanted:
        now += pause
        wait = pace._wait(estimate)
        assert wait >= 0
        due, now = now + wait, now + wait / 2
        assert wait < 1e-9 or pace._wait(estimate) > 0, "it might have gone earlier"
        now = due
        while (entry := pace._grant(estimate)) is None:  # rounding
            now += max(pace._wait(estimate), 1e-9)
        real = max(0, estimate - less)
        pace.settle(entry, real, answered=False)
        sent.append((now, real))
    # A window that begins with something sent is the fullest.
    fullest = max(sum(n for at, n in sent if start <= at < start + SECONDS - 1e-6) for start, _ in sent)
    assert fullest <= max(limit, *(real for _, real in sent)), "or what is larger than the limit, alone"


def went(pace: Pace, count: int) -> list[float]:
    """When `count` calls that come at once, each of which takes no time, go out."""
    times: list[float] = []

    async def one() -> None:
        ticket = await pace.before(REQUEST)
        times.append(jumping.now())
        pace.after(ticket, reply(BOUND - 40, 40), None)

    async def main() -> None:
        await asyncio.gather(*(one() for _ in range(count)))

    jumping.run(main())
    return times


def test_requests_and_tokens_keep_to_their_limits_and_use_them_up() -> None:
    due = [0] * 3 + [SECONDS] * 3 + [2 * SECONDS] * 3
    for pace in (Pace(3, clock=jumping.now), Pace(None, 3 * BOUND, clock=jumping.now)):
        times = went(pace, 9)
        assert [time - times[0] for time in times] == pytest.approx(due, abs=0.1)


@pytest.mark.parametrize(
    ("response", "error", "counted"),
    [
        (reply(30, 12), None, 42),
        (reply(None, 12), None, BOUND),
        (None, lm15.ServerError("500"), BOUND),
        (None, lm15.TransportError("no connection", provider_code=faults.NO_CONNECTION), 0),
    ],
    ids=["stated", "not stated", "a fault", "never sent"],
)
def test_what_an_attempt_counts(response: lm15.Response | None, error: Exception | None, counted: int) -> None:
    async def main() -> float:
        pace = Pace(None, 10**6, clock=jumping.now)
        pace.after(await pace.before(REQUEST), response, error)
        return pace._tokens

    assert jumping.run(main())[0] == counted


def test_what_calls_took_at_most_is_what_the_next_is_taken_for() -> None:
    async def main() -> tuple[float, float]:
        pace = Pace(None, 10**6, clock=jumping.now)
        await pace.before(replace(REQUEST, config=lm15.Config()))
        uncapped = pace._tokens
        pace.after(await pace.before(REQUEST), reply(BOUND // 2), None)
        pace.after(await pace.before(REQUEST), reply(10), None)  # a short one, by chance
        await pace.before(REQUEST)
        return uncapped, pace._tokens - uncapped

    uncapped, total = jumping.run(main())[0]
    assert uncapped == at_most(REQUEST) + REPLY
    assert total == pytest.approx(BOUND // 2 + 10 + BOUND // 2 * MARGIN)


def test_copies_of_a_model_share_its_pace_and_it_survives_saving() -> None:
    lm = connect("m", api_base=HERE, requests_per_minute=60, tokens_per_minute=9000, attempts=2, deadline=9)
    pace = lm.terms.pace
    assert pace is not None
    assert lm.copy(temperature=1.0).terms.pace is pace
    assert lm.with_journal(None).terms.pace is pace
    again = type(lm).load_state(lm.dump_state()).terms
    assert again.pace is not None
    assert (again.pace.requests_per_minute, again.pace.tokens_per_minute) == (60, 9000)
    assert again.retry == lm.terms.retry
    assert connect("m", api_base=HERE).terms.pace is None

"""Retries against a scripted engine and a clock that only `sleep` moves."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import jumping
import pytest
from dspy import lm15

from blendfilter.errors import BadArgument
from blendfilter.lm import faults
from blendfilter.lm import metered as account
from blendfilter.lm.metered import MeteredEngine
from blendfilter.lm.retrying import NEVER_REACHED, Allowance, Retry, RetryingEngine

REQUEST = lm15.Request(model="m", messages=(lm15.Message.user("q"),))
RESPONSE = lm15.Response(
    id=None,
    model="m",
    message=lm15.Message.assistant("a"),
    finish_reason="stop",
    usage=lm15.Usage(),
    provider_data={"address": "here"},
)
NOBODY = lm15.TransportError("no connection", provider_code=faults.NO_CONNECTION)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds


class Scripted:
    """Raises or returns what its script says; fails where the script has run out."""

    def __init__(self, *script: lm15.Response | Exception) -> None:
        self.script = list(script)

    async def complete(self, request: lm15.Request) -> lm15.Response:
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step


def retrying(inner: Scripted, clock: Clock, **settings: float) -> RetryingEngine:
    return RetryingEngine(inner, Retry(**settings), sleep=clock.sleep, clock=clock)  # type: ignore[arg-type]


def test_the_first_success_counts_one_attempt() -> None:
    clock = Clock()
    response = asyncio.run(retrying(Scripted(RESPONSE), clock).complete(REQUEST))
    assert response.provider_data == {"address": "here", "attempts": 1}
    assert clock.waits == []


def test_faults_that_pass_are_waited_out_with_growing_waits() -> None:
    clock = Clock()
    faulty = [
        lm15.ServerError("500"),
        lm15.TransportError("not JSON"),
        lm15.TimeoutError("late"),
        lm15.RateLimitError("slow"),
    ]
    inner = Scripted(*faulty, RESPONSE)
    response = asyncio.run(retrying(inner, clock).complete(REQUEST))
    assert response.provider_data["attempts"] == 5
    for wait, least in zip(clock.waits, (0.5, 1.0, 2.0, 4.0), strict=True):
        assert least <= wait <= least * 1.25


def test_the_wait_is_bounded() -> None:
    clock = Clock()
    inner = Scripted(*[lm15.ServerError("500")] * 5, RESPONSE)
    asyncio.run(retrying(inner, clock, wait_max=1.0).complete(REQUEST))
    assert max(clock.waits) <= 1.25


def test_retry_after_takes_the_place_of_a_shorter_wait() -> None:
    clock = Clock()
    inner = Scripted(lm15.RateLimitError("slow", retry_after=20.0), RESPONSE)
    asyncio.run(retrying(inner, clock).complete(REQUEST))
    assert 20.0 <= clock.waits[0] <= 25.0


def test_a_longer_wait_is_not_cut_short_by_retry_after() -> None:
    clock = Clock()
    asyncio.run(retrying(Scripted(lm15.RateLimitError("slow", retry_after=0.01), RESPONSE), clock).complete(REQUEST))
    assert clock.waits[0] >= 0.5


def test_no_attempt_starts_after_the_deadline() -> None:
    clock = Clock()
    inner = Scripted(lm15.RateLimitError("slow", retry_after=3600.0), RESPONSE)
    with pytest.raises(lm15.RateLimitError) as caught:
        asyncio.run(retrying(inner, clock, deadline=600).complete(REQUEST))
    assert clock.waits == []
    assert caught.value.attempts == 1


@pytest.mark.parametrize(
    "fault",
    [lm15.AuthError("no"), lm15.InvalidRequestError("bad"), lm15.ContextLengthError("long"), lm15.BillingError("pay")],
)
def test_what_does_not_pass_is_not_tried_again(fault: lm15.LM15Error) -> None:
    clock = Clock()
    with pytest.raises(type(fault)) as caught:
        asyncio.run(retrying(Scripted(fault), clock).complete(REQUEST))
    assert caught.value is fault
    assert caught.value.attempts == 1


def test_it_gives_up_with_the_last_fault_and_the_count() -> None:
    clock = Clock()
    inner = Scripted(*[lm15.ServerError(str(i)) for i in range(6)])
    with pytest.raises(lm15.ServerError, match="5") as caught:
        asyncio.run(retrying(inner, clock).complete(REQUEST))
    assert caught.value.attempts == 6
    assert inner.script == []


def test_a_wrong_address_is_told_within_three_seconds() -> None:
    clock = Clock()
    with pytest.raises(lm15.TransportError) as caught:
        asyncio.run(retrying(Scripted(*[NOBODY] * NEVER_REACHED), clock).complete(REQUEST))
    assert caught.value.attempts == NEVER_REACHED
    assert clock.now < 3.0


def test_a_server_that_was_there_is_waited_for() -> None:
    clock = Clock()
    engine = retrying(Scripted(RESPONSE, *[NOBODY] * 5, RESPONSE), clock)
    asyncio.run(engine.complete(REQUEST))
    assert asyncio.run(engine.complete(REQUEST)).provider_data["attempts"] == 6


def test_errors_of_another_kind_pass_through() -> None:
    with pytest.raises(KeyError):
        asyncio.run(retrying(Scripted(KeyError("bug")), Clock()).complete(REQUEST))


def test_calls_side_by_side_keep_their_own_counts() -> None:
    class Flaky:
        """Call `i` fails i times, yielding to the others each time."""

        def __init__(self) -> None:
            self.left = {str(i): i for i in range(5)}

        async def complete(self, request: lm15.Request) -> lm15.Response:
            await asyncio.sleep(0)
            name = request.messages[0].text
            if self.left[name]:
                self.left[name] -= 1
                raise lm15.ServerError(name)
            return RESPONSE

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0)

    async def main() -> list[int]:
        engine = RetryingEngine(Flaky(), sleep=sleep)
        asked = [lm15.Request(model="m", messages=(lm15.Message.user(str(i)),)) for i in range(5)]
        return [r.provider_data["attempts"] for r in await asyncio.gather(*map(engine.complete, asked))]

    assert asyncio.run(main()) == [1, 2, 3, 4, 5]


def test_a_call_needs_an_attempt() -> None:
    with pytest.raises(BadArgument, match="attempts must be a whole number of at least 1, got 0"):
        Retry(attempts=0)


@pytest.mark.parametrize("name", ["deadline", "timeout"])
@pytest.mark.parametrize("seconds", [0, -1.0, math.inf, math.nan, "60"])
def test_a_time_that_is_none_is_refused(name: str, seconds: object) -> None:
    with pytest.raises(BadArgument, match=f"{name} must be a number of seconds above 0"):
        Retry(**{name: seconds})  # type: ignore[arg-type]


# ---- time


class Slow:
    """Takes so many seconds for each attempt, and counts those that were cut off."""

    def __init__(self, *seconds: float) -> None:
        self.seconds, self.cut = list(seconds), 0

    async def complete(self, request: lm15.Request) -> lm15.Response:
        try:
            await asyncio.sleep(self.seconds.pop(0))
        except asyncio.CancelledError:
            self.cut += 1
            raise
        return RESPONSE


def timed(retry: Retry, inner: Slow, *meters: Any) -> tuple[Any, float]:
    """What a call under `retry` came to, and how long it took, where nobody really waits."""

    async def main() -> Any:
        engine = RetryingEngine(MeteredEngine(retry.within(inner), meters), retry, clock=jumping.now)
        try:
            return (await engine.complete(REQUEST)).provider_data["attempts"]
        except lm15.LM15Error as error:
            return error

    return jumping.run(main())


def test_an_attempt_that_takes_too_long_is_cut_off_and_made_again() -> None:
    inner = Slow(1000, 3)
    attempts, seconds = timed(Retry(timeout=10), inner)
    assert (attempts, inner.cut) == (2, 1)
    assert 13.5 <= seconds <= 13.7


def test_no_attempt_reaches_beyond_the_deadline() -> None:
    inner = Slow(40, 40, 40)
    error, seconds = timed(Retry(timeout=30, deadline=50), inner)
    assert isinstance(error, lm15.TimeoutError)
    assert "time allowed for this call" in error.message
    assert seconds == pytest.approx(50)
    assert (error.attempts, inner.cut) == (2, 2)


def test_an_engine_that_raises_a_timeout_of_its_own_is_not_mistaken_for_ours() -> None:
    with pytest.raises(TimeoutError, match="mine"):
        asyncio.run(Retry(timeout=10).within(Scripted(TimeoutError("mine"))).complete(REQUEST))


class Queue:
    """A meter before which every attempt waits."""

    async def before(self, request: lm15.Request) -> None:
        await asyncio.sleep(500)
        account.tally().waited += 500 - 1e-9  # `MeteredEngine` counts by the real clock, which stands still here

    def after(self, ticket: None, response: lm15.Response | None, error: BaseException | None) -> None:
        pass


def test_what_a_call_waits_for_its_turn_is_no_part_of_its_deadline() -> None:
    inner = Slow(1000, 1000, 5)
    with account.tallied():
        attempts, seconds = timed(Retry(timeout=20, deadline=60), inner, Queue())
    assert attempts == 3
    assert seconds > 1500


# ---- what a run allows


def test_a_run_that_has_used_up_its_retries_takes_faults_as_they_come() -> None:
    clock, retries = Clock(), Allowance(3)
    inner = Scripted(*[lm15.ServerError("500", status=500)] * 3, RESPONSE, lm15.ServerError("broken", status=500))
    engine = RetryingEngine(inner, retries=retries, sleep=clock.sleep, clock=clock)
    assert asyncio.run(engine.complete(REQUEST)).provider_data["attempts"] == 4
    with (
        pytest.warns(UserWarning, match="the 3 retries that this run may make are used up: from here on a fault"),
        pytest.raises(lm15.ServerError) as caught,
    ):
        asyncio.run(engine.complete(REQUEST))
    assert caught.value.attempts == 1
    told = faults.final(caught.value, address="here", stage="ids")
    assert str(told) == "broken (HTTP 500); the 3 retries that this run may make are used up"
    assert str(faults.restore(faults.describe(told))) == str(told)


def test_it_is_said_once() -> None:
    retries = Allowance(1)
    assert retries.take()
    with pytest.warns(UserWarning, match="are used up") as told:
        assert [retries.take() for _ in range(5)] == [False] * 5
    assert len(told) == 1


@pytest.mark.filterwarnings("error")
def test_no_retries_at_all_are_no_surprise() -> None:
    engine = RetryingEngine(Scripted(lm15.ServerError("broken")), retries=Allowance(0))
    with pytest.raises(lm15.ServerError) as caught:
        asyncio.run(engine.complete(REQUEST))
    assert str(faults.final(caught.value, address="here")) == "broken"


def test_every_call_that_succeeds_earns_a_retry() -> None:
    retries = Allowance(free=2)
    engine = RetryingEngine(Scripted(*[RESPONSE] * 5), retries=retries)
    for _ in range(5):
        asyncio.run(engine.complete(REQUEST))
    assert retries.total == 7
    assert [retries.take() for _ in range(7)] == [True] * 7


def test_what_is_not_tried_again_uses_none_up() -> None:
    retries, clock = Allowance(5), Clock()
    for script in ([lm15.AuthError("no")], [NOBODY] * NEVER_REACHED):
        engine = RetryingEngine(Scripted(*script), retries=retries, sleep=clock.sleep, clock=clock)
        with pytest.raises(lm15.LM15Error):
            asyncio.run(engine.complete(REQUEST))
    assert retries.used == NEVER_REACHED - 1


def test_a_server_that_fails_a_fifth_never_comes_near_it() -> None:
    """Even at the start, with everything in flight failing at once now and then."""
    rng, retries = random.Random(4), Allowance()
    for _ in range(5000):
        while rng.random() < 0.2:
            assert retries.take()
        retries.earn()
    assert retries.used < retries.total / 3


@pytest.mark.parametrize("limit", [-1, 2.5, True, "3"])
def test_an_allowance_that_is_none_is_refused(limit: object) -> None:
    with pytest.raises(BadArgument, match=r"max_retries \(--max-retries\) must be a whole number of 0 or more"):
        Allowance(limit)  # type: ignore[arg-type]

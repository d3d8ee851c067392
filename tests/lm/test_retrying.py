"""Retries against a scripted engine and a clock that only `sleep` moves."""

from __future__ import annotations

import asyncio

import pytest
from dspy import lm15

from blendfilter.errors import BadArgument
from blendfilter.lm import faults
from blendfilter.lm.retrying import NEVER_REACHED, RetryingEngine

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
    return RetryingEngine(inner, sleep=clock.sleep, clock=clock, **settings)  # type: ignore[arg-type]


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
    with pytest.raises(BadArgument, match="attempts"):
        RetryingEngine(Scripted(), attempts=0)

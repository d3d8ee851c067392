"""What lies around an attempt: every meter passed in order, every ticket handed back, whatever became of it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from dspy import lm15

from blendfilter.lm.gate import Gate
from blendfilter.lm.metered import MeteredEngine, tallied, tally
from blendfilter.lm.pace import Pace
from blendfilter.lm.retrying import Retry, RetryingEngine
from blendfilter.lm.spending import Spending
from blendfilter.lm.terms import Terms, Traffic, on_terms

REQUEST = lm15.Request(model="m", messages=(lm15.Message.user("q"),))
REPLY = lm15.Response(
    id=None, model="m", message=lm15.Message.assistant("a"), finish_reason="stop", usage=lm15.Usage()
)  # fmt: skip


class Watched:
    """A meter and an engine that tell a list what they see."""

    def __init__(self, told: list[Any], name: str, *, raises: BaseException | None = None, seconds: float = 0) -> None:
        self.told, self.name, self.raises, self.seconds = told, name, raises, seconds

    async def before(self, request: lm15.Request) -> str:
        await asyncio.sleep(self.seconds)
        if self.raises:
            raise self.raises
        self.told.append(f"+{self.name}")
        return f"ticket of {self.name}"

    def after(self, ticket: str, response: lm15.Response | None, error: BaseException | None) -> None:
        assert ticket == f"ticket of {self.name}"
        self.told.append((f"-{self.name}", response, error))

    async def complete(self, request: lm15.Request) -> lm15.Response:
        await asyncio.sleep(self.seconds)
        self.told.append("call")
        if self.raises:
            raise self.raises
        return REPLY


def test_an_attempt_passes_its_meters_in_order_and_hands_their_tickets_back() -> None:
    told: list[Any] = []
    engine = MeteredEngine(Watched(told, "engine"), [Watched(told, "a"), Watched(told, "b")])
    assert asyncio.run(engine.complete(REQUEST)) is REPLY
    assert told == ["+a", "+b", "call", ("-b", REPLY, None), ("-a", REPLY, None)]


def test_every_meter_learns_what_an_attempt_ended_in() -> None:
    told: list[Any] = []
    fault = lm15.ServerError("500")
    engine = MeteredEngine(Watched(told, "engine", raises=fault), [Watched(told, "a"), Watched(told, "b")])
    with pytest.raises(lm15.ServerError) as caught:
        asyncio.run(engine.complete(REQUEST))
    assert caught.value is fault
    assert told == ["+a", "+b", "call", ("-b", None, fault), ("-a", None, fault)]


def test_a_meter_that_lets_nothing_go_gives_back_those_that_were_passed_and_no_others() -> None:
    told: list[Any] = []
    spent = KeyError("spent")
    meters = [Watched(told, "a"), Watched(told, "b", raises=spent), Watched(told, "c")]
    with pytest.raises(KeyError):
        asyncio.run(MeteredEngine(Watched(told, "engine"), meters).complete(REQUEST))
    assert told == ["+a", ("-a", None, spent)]


@pytest.mark.parametrize("where", ["waiting", "calling"])
def test_who_is_cancelled_gives_everything_back(where: str) -> None:
    told: list[Any] = []
    slow = 30.0
    meters = [Watched(told, "a"), Watched(told, "b", seconds=slow if where == "waiting" else 0)]

    async def main() -> None:
        engine = MeteredEngine(Watched(told, "engine", seconds=slow), meters)
        task = asyncio.create_task(engine.complete(REQUEST))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    back = [(each[0], type(each[2])) for each in told if isinstance(each, tuple)]
    passed = ["a"] if where == "waiting" else ["b", "a"]
    assert back == [(f"-{name}", asyncio.CancelledError) for name in passed]


def test_what_is_waited_for_is_told_apart_from_what_is_called() -> None:
    told: list[Any] = []

    async def main() -> None:
        engine = MeteredEngine(Watched(told, "engine", seconds=0.1), [Watched(told, "a", seconds=0.05)])
        began = time.perf_counter()
        with tallied() as account:
            await engine.complete(REQUEST)
            first = account.went_out
            await engine.complete(REQUEST)
            assert tally() is account
        assert 0.09 <= account.waited <= time.perf_counter() - began - 2 * 0.1, "the calls are no wait"
        assert account.went_out == first > 0

    asyncio.run(main())


def test_an_attempt_is_given_its_turn_before_it_is_paced_and_paid_for() -> None:
    told: list[Any] = []
    inner, gate, pace = Watched(told, "engine"), Gate(2), Pace(5)
    engine = on_terms(inner, Terms(retry=Retry(), pace=pace), Traffic(gate=gate))
    assert isinstance(engine, RetryingEngine)
    assert isinstance(engine.inner, MeteredEngine)
    first, second, third = engine.inner.meters
    assert first is gate
    assert second is pace
    assert isinstance(third, Spending)
    plain = on_terms(inner, Terms(), Traffic())
    assert isinstance(plain, MeteredEngine), "a model in this process is never asked twice"
    assert plain.inner is inner

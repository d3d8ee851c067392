"""What every attempt passes, how faults are tried again, and which faults of a real server are."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import jumping
import pytest
from dspy import lm15
from model_server import Server, serve

from blendfilter.journal import Journal
from blendfilter.lm import faults
from blendfilter.lm.attempts import (
    NEVER_REACHED,
    AttemptingEngine,
    CallPolicy,
    Retry,
    RetryBudget,
)
from blendfilter.lm.budget import tallied, tally
from blendfilter.lm.model import connect

REQUEST = lm15.Request(model="m", messages=(lm15.Message.user("q"),))
REPLY = lm15.Response(
    id=None, model="m", message=lm15.Message.assistant("a"), finish_reason="stop", usage=lm15.Usage(),
    provider_data={"address": "here"},
)  # fmt: skip
UNREACHED = lm15.TransportError("no connection", provider_code=faults.NO_CONNECTION)


# ---- meters


class Watched:
    """A meter and an engine that write down what they see."""

    def __init__(self, seen: list[Any], name: str, *, raises: BaseException | None = None, seconds: float = 0) -> None:
        self.seen, self.name, self.raises, self.seconds = seen, name, raises, seconds

    async def before(self, request: lm15.Request) -> str:
        await asyncio.sleep(self.seconds)
        if self.raises:
            raise self.raises
        self.seen.append(f"+{self.name}")
        return f"ticket of {self.name}"

    def after(self, ticket: str, response: lm15.Response | None, error: BaseException | None) -> None:
        assert ticket == f"ticket of {self.name}"
        self.seen.append((f"-{self.name}", response, error))

    async def complete(self, request: lm15.Request) -> lm15.Response:
        await asyncio.sleep(self.seconds)
        self.seen.append("call")
        if self.raises:
            raise self.raises
        return REPLY


async def ending(engine: AttemptingEngine) -> Any:
    """The response, or the error."""
    return (await asyncio.gather(engine.complete(REQUEST), return_exceptions=True))[0]


@pytest.mark.parametrize("fault", [None, lm15.ServerError("500")])
def test_an_attempt_passes_its_meters_in_order_and_each_learns_what_it_ended_in(fault: Exception | None) -> None:
    seen: list[Any] = []
    engine = AttemptingEngine(Watched(seen, "engine", raises=fault), [Watched(seen, "a"), Watched(seen, "b")])
    assert asyncio.run(ending(engine)) is (fault or REPLY)
    end = (None, fault) if fault else (REPLY, None)
    assert seen == ["+a", "+b", "call", ("-b", *end), ("-a", *end)]


@pytest.mark.parametrize("where", ["waiting", "calling"])
def test_a_cancelled_call_gives_everything_back(where: str) -> None:
    seen: list[Any] = []
    meters = [Watched(seen, "a"), Watched(seen, "b", seconds=30 if where == "waiting" else 0)]

    async def main() -> None:
        task = asyncio.create_task(AttemptingEngine(Watched(seen, "engine", seconds=30), meters).complete(REQUEST))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    back = [(each[0], type(each[2])) for each in seen if isinstance(each, tuple)]
    passed = ["a"] if where == "waiting" else ["b", "a"]
    assert back == [(f"-{name}", asyncio.CancelledError) for name in passed]


def test_waiting_for_a_turn_is_counted_apart_from_calling() -> None:
    async def main() -> None:
        engine = AttemptingEngine(Watched([], "engine", seconds=0.1), [Watched([], "a", seconds=0.05)])
        began = time.perf_counter()
        with tallied() as account:
            await engine.complete(REQUEST)
            first = account.went_out
            await engine.complete(REQUEST)
            assert tally() is account
        # waited: 2 x 0.05 s; the rest of what passed are the two calls, of at least 0.1 s but for the clock's grain
        assert 0.09 <= account.waited <= time.perf_counter() - began - 2 * 0.09
        assert account.went_out == first > 0

    asyncio.run(main())


# ---- retries, on a clock that only waiting moves


class Scripted:
    """Returns or raises what its script says, or takes so many seconds; fails where the script has run out."""

    def __init__(self, *script: lm15.Response | Exception | float) -> None:
        self.script, self.cut = list(script), 0

    async def complete(self, request: lm15.Request) -> lm15.Response:
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        if isinstance(step, lm15.Response):
            return step
        try:
            await asyncio.sleep(step)
        except asyncio.CancelledError:
            self.cut += 1
            raise
        return REPLY


def called(
    inner: Any, retry: Retry | None = None, retries: RetryBudget | None = None, meters: Any = ()
) -> tuple[Any, int, float]:
    """How a call ended, in how many attempts, and the seconds that it took."""

    async def main() -> Any:
        engine = AttemptingEngine(inner, meters, retry or Retry(), retries, clock=jumping.now)
        with tallied():
            return await ending(engine)

    ended, seconds = jumping.run(main())
    tried = ended.provider_data["attempts"] if isinstance(ended, lm15.Response) else getattr(ended, "attempts", 0)
    return ended, tried, seconds


@pytest.mark.parametrize(
    ("faulty", "retry", "least"),
    [
        ([], Retry(), 0),
        ([lm15.ServerError("500"), lm15.TransportError("cut"), lm15.TimeoutError("late")], Retry(), 0.5 + 1 + 2),
        ([lm15.ServerError("500")] * 5, Retry(wait_max=1.0), 0.5 + 4 * 1.0),
        ([lm15.RateLimitError("slow", retry_after=20.0)], Retry(), 20.0),
        ([lm15.RateLimitError("slow", retry_after=0.01)], Retry(), 0.5),
    ],
    ids=["at once", "growing", "bounded", "Retry-After", "a shorter Retry-After"],
)
def test_faults_that_pass_are_waited_out_with_up_to_a_quarter_of_jitter(
    faulty: list[Exception], retry: Retry, least: float
) -> None:
    response, tried, seconds = called(Scripted(*faulty, REPLY), retry)
    assert tried == len(faulty) + 1
    assert response.provider_data == {"address": "here", "attempts": tried}
    assert least <= seconds <= 1.25 * least


@pytest.mark.parametrize(
    ("script", "tried"),
    [
        ([lm15.RateLimitError("slow", retry_after=3600.0)], 1),
        ([lm15.AuthError("no")], 1),
        ([lm15.ContextLengthError("long")], 1),
        ([lm15.BillingError("pay")], 1),
        ([lm15.ServerError(str(i)) for i in range(6)], 6),
        ([UNREACHED] * NEVER_REACHED, NEVER_REACHED),
    ],
    ids=["a wait beyond the deadline", "key", "length", "credit", "used up", "wrong address"],
)
def test_it_gives_up_with_the_last_fault_and_the_count(script: list[Exception], tried: int) -> None:
    inner = Scripted(*script)
    error, attempts, seconds = called(inner)
    assert error is script[-1]
    assert (attempts, inner.script) == (tried, [])
    assert tried == 6 or seconds < 3


def test_an_attempt_that_takes_too_long_is_cut_off_and_made_again() -> None:
    inner = Scripted(1000.0, 3.0)
    _, attempts, seconds = called(inner, Retry(timeout=10))
    assert (attempts, inner.cut) == (2, 1)
    assert 13.5 <= seconds <= 13.7


def test_no_attempt_reaches_beyond_the_deadline() -> None:
    inner = Scripted(40.0, 40.0, 40.0)
    error, attempts, seconds = called(inner, Retry(timeout=30, deadline=50))
    assert isinstance(error, lm15.TimeoutError)
    assert "time allowed for this call" in error.message
    assert seconds == pytest.approx(50)
    assert (attempts, inner.cut) == (2, 2)


def test_what_a_call_waits_for_its_turn_is_no_part_of_its_deadline() -> None:
    class Queue:
        async def before(self, request: lm15.Request) -> None:
            await asyncio.sleep(500)
            tally().waited += 500 - 1e-9  # the engine counts by the real clock, which stands still here

        def after(self, ticket: None, response: lm15.Response | None, error: BaseException | None) -> None:
            pass

    _, attempts, seconds = called(Scripted(1000.0, 1000.0, 5.0), Retry(timeout=20, deadline=60), meters=[Queue()])
    assert attempts == 3
    assert seconds > 1500


# ---- the retry budget


def test_a_run_that_has_used_up_its_retries_takes_faults_as_they_come_and_warns_once() -> None:
    retries = RetryBudget(3)
    broken = [lm15.ServerError("broken", status=500) for _ in range(2)]
    inner = Scripted(*[lm15.ServerError("500", status=500)] * 3, REPLY, *broken)
    assert called(inner, retries=retries)[1] == 4
    with pytest.warns(UserWarning, match="the 3 retries that this run may make are used up: from here on a") as warned:
        ended = [called(inner, retries=retries) for _ in broken]
    assert ([attempts for _, attempts, _ in ended], len(warned)) == ([1, 1], 1)
    final = faults.final(broken[0], address="here", stage="ids")
    assert str(final) == "broken (HTTP 500); the 3 retries that this run may make are used up"
    assert str(faults.restore(faults.describe(final))) == str(final)
    with warnings.catch_warnings(action="error"):  # no retries at all are no surprise
        error, _, _ = called(Scripted(lm15.ServerError("broken")), retries=RetryBudget(0))
    assert str(faults.final(error, address="here")) == "broken"


def test_every_call_that_succeeds_earns_a_retry_and_what_is_not_tried_again_uses_none() -> None:
    retries = RetryBudget(free=2)
    inner = Scripted(*[REPLY] * 5, lm15.AuthError("no"), *[UNREACHED] * NEVER_REACHED)
    for _ in range(7):
        called(inner, retries=retries)
    assert (retries.total, retries.used) == (7, NEVER_REACHED - 1)


# ---- a real server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serve(behave="asked", retry_after="0") as running:
        yield running


@pytest.mark.parametrize("fault", ["408", "429", "500", "busy", "drop", "html", "truncated", "torn", "hang"])
def test_a_fault_that_passes_is_tried_again(fault: str, server: Server, tmp_path: Path) -> None:
    server.reset()
    with Journal(tmp_path) as journal:
        lm = connect("m", api_base=server.url)
        # A short time where the server hangs, and only there: a busy machine may take long to send a reply.
        lm.terms = CallPolicy(retry=Retry(wait_first=0.01, timeout=0.5 if fault == "hang" else None))
        assert lm.with_journal(journal)(f"[2 x {fault}] How many?") == ["So the answer is 42."]
        (record,) = journal.records()
    assert (record["attempts"], record["error"]) == (3, None)
    assert server.stats()["requests"] == 3


# ---- how they are given


def test_a_users_own_model_is_called_on_our_terms() -> None:
    lm = connect(dspy.LM("openai/x", api_key="sk-test-0123456789"), attempts=2, timeout=9, tokens_per_minute=1000)
    assert lm.terms.retry == Retry(attempts=2, timeout=9)
    assert lm.terms.pace is not None
    assert connect(dspy.LM("openai/x", api_key="sk-test-0123456789")).terms.retry == Retry(timeout=None)

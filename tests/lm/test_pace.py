"""The pace: never more than the limit in any window, oldest question first, tokens corrected by what calls told."""

from __future__ import annotations

import asyncio
import dataclasses
import threading

import jumping
import pytest
from dspy import lm15
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.context import ORDER, setting
from blendfilter.errors import BadArgument
from blendfilter.lm import faults
from blendfilter.lm.connect import connect
from blendfilter.lm.metered import MeteredEngine
from blendfilter.lm.pace import MARGIN, REPLY, SECONDS, Pace, Window
from blendfilter.lm.tokens import at_most

REQUEST = lm15.Request(
    model="m", messages=(lm15.Message.user("Which isle is the largest?"),), config=lm15.Config(max_tokens=40)
)
BOUND = at_most(REQUEST) + 40
HERE = "http://127.0.0.1:9/v1"


def reply(tokens_in: int | None, tokens_out: int | None = 0) -> lm15.Response:
    return lm15.Response(
        id=None, model="m", message=lm15.Message.assistant("a"), finish_reason="stop",
        usage=lm15.Usage(input_tokens=tokens_in, output_tokens=tokens_out),
    )  # fmt: skip


def most_in_a_window(sent: list[tuple[float, float]], seconds: float = 60.0) -> float:
    """The most that went out in any window: one that begins with something sent is the fullest."""
    return max(sum(amount for at, amount in sent if start <= at < start + seconds) for start, _ in sent)


# ---- the window


@given(
    st.integers(1, 6),
    st.lists(st.tuples(st.floats(0, 40), st.integers(1, 9), st.integers(0, 9)), min_size=1, max_size=60),
)
def test_no_window_holds_more_than_the_limit(limit: int, asked: list[tuple[float, int, int]]) -> None:
    """Each thing waits for its turn after a pause, goes out at an estimate, and is corrected to what it really was."""
    window, now, sent = Window(limit, 60.0), 0.0, []
    for pause, estimate, less in asked:
        now += pause
        wait = window.wait(now, estimate)
        assert wait >= 0
        assert wait < 1e-9 or window.wait(now + wait / 2, estimate) > 0, "it might have gone earlier"
        now += wait
        while (more := window.wait(now, estimate)) > 0:  # rounding
            now += max(more, 1e-9)
        real = max(0, estimate - less)
        window.correct(window.add(now, estimate), real)
        sent.append((now, real))
    alone = max(real for _, real in sent)
    assert most_in_a_window(sent, 60.0 - 1e-6) <= max(limit, alone)


def test_what_is_larger_than_the_limit_goes_out_alone() -> None:
    window = Window(10, 60.0)
    assert window.wait(0.0, 25) == 0.0
    window.add(0.0, 25)
    assert window.wait(1.0, 1) == 59.0
    window.add(60.0, 1)
    assert window.wait(61.0, 25) == 59.0


def test_a_correction_makes_room_at_once_and_none_for_what_is_gone() -> None:
    window = Window(10, 60.0)
    first = window.add(0.0, 9)
    assert window.wait(1.0, 5) > 0
    window.correct(first, 4)
    assert window.wait(1.0, 5) == 0.0
    assert window.wait(70.0, 10) == 0.0
    window.add(70.0, 1)
    window.correct(first, 100)  # a reply that took longer than the window
    assert window.wait(71.0, 9) == 0.0


# ---- the meter


async def passing(pace: Pace, count: int, seconds: float = 0.0, response: lm15.Response | None = None) -> list[float]:
    """When `count` attempts that came at once went out."""
    went: list[float] = []

    async def one() -> None:
        ticket = await pace.before(REQUEST)
        went.append(jumping.now())
        await asyncio.sleep(seconds)
        pace.after(ticket, response, None)

    await asyncio.gather(*(one() for _ in range(count)))
    return went


def test_requests_keep_to_their_limit_and_use_it_up() -> None:
    went, seconds = jumping.run(passing(Pace(10, clock=jumping.now), 95))
    assert most_in_a_window([(at, 1) for at in went]) == 10
    assert seconds == pytest.approx(9 * SECONDS, abs=0.01), "ten a window, and not a second lost"


def test_tokens_keep_to_their_limit() -> None:
    """What a call is estimated at holds until its reply tells more, and then the share that replies took does."""
    limit, took = 5 * BOUND, BOUND // 4
    went, seconds = jumping.run(passing(Pace(None, limit, clock=jumping.now), 120, 2.0, reply(took - 5, 5)))
    assert most_in_a_window([(at, took) for at in went]) <= limit
    assert most_in_a_window([(at, took) for at in went]) >= 0.85 * limit, "it is not wasteful either"
    assert went[4] == 0.0
    assert went[5] > 0.0, "five bounds fill the window until a reply is there"
    assert seconds < 120 * took / limit * SECONDS * 1.2


def test_the_next_is_estimated_by_what_replies_took() -> None:
    async def main() -> float:
        pace = Pace(None, 2 * BOUND, clock=jumping.now)
        pace.after(await pace.before(REQUEST), reply(BOUND // 2), None)
        pace.after(await pace.before(REQUEST), reply(10), None)  # a short one, by chance
        await pace.before(REQUEST)
        return pace._tokens._total if pace._tokens else 0.0

    total, _ = jumping.run(main())
    assert total == pytest.approx(BOUND // 2 + 10 + BOUND // 2 * MARGIN)


@pytest.mark.parametrize(
    ("response", "error", "counted"),
    [
        (reply(30, 12), None, 42),
        (reply(None, 12), None, BOUND),
        (None, lm15.ServerError("500"), BOUND),
        (None, lm15.TransportError("no connection", provider_code=faults.NO_CONNECTION), 0),
    ],
    ids=["told", "not told", "a fault", "never sent"],
)
def test_what_an_attempt_counts(response: lm15.Response | None, error: Exception | None, counted: int) -> None:
    async def main() -> float:
        pace = Pace(None, 10**6, clock=jumping.now)
        pace.after(await pace.before(REQUEST), response, error)
        return pace._tokens._total if pace._tokens else 0.0

    assert jumping.run(main())[0] == counted


def test_a_reply_without_a_cap_is_taken_for_a_long_one() -> None:
    async def main() -> float:
        pace = Pace(None, 10**6, clock=jumping.now)
        await pace.before(dataclasses.replace(REQUEST, config=lm15.Config()))
        return pace._tokens._total if pace._tokens else 0.0

    assert jumping.run(main())[0] == at_most(REQUEST) + REPLY


def test_the_oldest_question_goes_first() -> None:
    async def main() -> list[int]:
        pace, went = Pace(1, clock=jumping.now), []

        async def one(order: int) -> None:
            with setting(ORDER, order):
                await pace.before(REQUEST)
            went.append(order)

        await asyncio.gather(*(one(order) for order in (9, 5, 2, 7, 1)))
        return went

    assert jumping.run(main())[0] == [9, 1, 2, 5, 7]  # the first found the window empty


def test_who_is_cancelled_takes_nobodys_place() -> None:
    async def main() -> float:
        pace = Pace(1, clock=jumping.now)
        await pace.before(REQUEST)
        doomed = [asyncio.create_task(pace.before(REQUEST)) for _ in range(5)]
        last = asyncio.create_task(pace.before(REQUEST))
        await asyncio.sleep(1)
        for each in doomed:
            each.cancel()
        await last
        return jumping.now()

    assert jumping.run(main())[0] == pytest.approx(SECONDS, abs=0.01)


def test_loops_of_several_threads_share_it() -> None:
    """Whoever has no timer of its own running would sleep for ever."""
    pace, went = Pace(4, seconds=0.2), []
    began = threading.Barrier(3)

    async def one() -> None:
        await asyncio.wait_for(pace.before(REQUEST), 20)
        went.append(asyncio.get_running_loop())

    async def several() -> None:
        await asyncio.gather(*(one() for _ in range(6)))

    def thread() -> None:
        began.wait()
        asyncio.run(several())

    threads = [threading.Thread(target=thread) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(30)
    assert len(went) == 18
    assert len(set(map(id, went))) == 3


def test_an_attempt_waits_inside_its_call() -> None:
    class Engine:
        async def complete(self, request: lm15.Request) -> lm15.Response:
            return reply(1)

    async def main() -> None:
        engine = MeteredEngine(Engine(), [Pace(2, clock=jumping.now)])
        await asyncio.gather(*(engine.complete(REQUEST) for _ in range(5)))

    assert jumping.run(main())[1] == pytest.approx(2 * SECONDS, abs=0.01)


# ---- whose it is


def test_copies_of_a_model_share_its_pace() -> None:
    lm = connect("m", api_base=HERE, requests_per_minute=60, tokens_per_minute=9000)
    pace = lm.terms.pace
    assert pace is not None
    assert (pace.requests_per_minute, pace.tokens_per_minute) == (60, 9000)
    assert lm.copy(temperature=1.0).terms.pace is pace
    assert lm.with_journal(None).terms.pace is pace
    assert connect("m", api_base=HERE).terms.pace is None


def test_it_survives_saving() -> None:
    lm = connect("m", api_base=HERE, requests_per_minute=60, attempts=2, deadline=9)
    again = type(lm).load_state(lm.dump_state())
    assert again.terms.pace is not None
    assert again.terms.pace.requests_per_minute == 60
    assert again.terms.retry == lm.terms.retry


@pytest.mark.parametrize("limit", [0, -3, 2.5, True, "60"])
@pytest.mark.parametrize("name", ["requests_per_minute", "tokens_per_minute"])
def test_a_limit_that_is_none_is_refused(name: str, limit: object) -> None:
    with pytest.raises(BadArgument, match=rf"{name} \(--[rt]pm\) must be a whole number of at least 1, got {limit!r}"):
        connect("m", api_base=HERE, **{name: limit})  # type: ignore[arg-type]

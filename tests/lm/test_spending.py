"""What an attempt is reserved at, what it is charged for each way it can end, and what a journal says was spent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from calls import Live, request
from dspy import lm15
from model_server import serve
from scripted import response

from blendfilter.errors import BadData, BudgetSpent
from blendfilter.journal import Journal, digest
from blendfilter.lm.budget import MARK, Amount, Budget, Purse
from blendfilter.lm.faults import NO_CONNECTION
from blendfilter.lm.journaled import JournaledEngine
from blendfilter.lm.metered import tallied
from blendfilter.lm.openai import OpenAIEngine
from blendfilter.lm.prices import Price
from blendfilter.lm.profiles import profile_for
from blendfilter.lm.retrying import Retry
from blendfilter.lm.spending import Priced, Spending, purse_for, spent_in
from blendfilter.lm.terms import Terms, Traffic, on_terms
from blendfilter.lm.tokens import at_most

ASKED = request("Question: q", max_tokens=32)
BOUND = at_most(ASKED) + 32


def charged(ended: lm15.Response | BaseException, price: Priced | None = None) -> Amount:
    """What one attempt that ended so takes from a purse."""
    purse = Purse(Budget(calls=5))
    meter = Spending(Live(), purse, price)
    bound = asyncio.run(meter.before(ASKED))
    assert (purse.reserved.calls, purse.reserved.tokens) == (1, BOUND)
    if isinstance(ended, lm15.Response):
        meter.after(bound, ended, None)
    else:
        meter.after(bound, None, ended)
    assert purse.reserved.tokens == 0
    return purse.spent


def test_a_reply_is_charged_what_it_says_it_took() -> None:
    assert charged(response("two words", usage=(7, 2))) == Amount(1, 9)


@pytest.mark.parametrize(
    "refusal",
    [
        lm15.RateLimitError("slow down", status=429),
        lm15.InvalidRequestError("no", status=400),
        lm15.AuthError("who?", status=401),
        lm15.ContextLengthError("too long", status=413),
        lm15.ServerError("conflict", status=409),
        lm15.UnsupportedFeatureError("no tools", feature="tools"),
        BudgetSpent("of another meter"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_refusal_is_a_call_without_tokens(refusal: BaseException) -> None:
    assert charged(refusal) == Amount(1, 0)


def test_where_nobody_was_reached_nothing_was_taken() -> None:
    assert charged(lm15.TransportError("refused", provider_code=NO_CONNECTION)) == Amount()


@pytest.mark.parametrize(
    "unheard",
    [
        lm15.ServerError("broken", status=500),
        lm15.TimeoutError("too slow", status=408),
        lm15.TimeoutError("no reply"),
        lm15.TransportError("the connection broke off"),
        asyncio.CancelledError(),
        RuntimeError("an engine of one's own"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_may_have_been_answered_stays_spent(unheard: BaseException) -> None:
    assert charged(unheard) == Amount(1, BOUND)


def test_what_a_reply_does_not_tell_counts_at_its_bound() -> None:
    assert charged(response("a b c")) == Amount(1, at_most(ASKED) + 3)
    unknown = lm15.Response(
        id=None, model="m", message=lm15.Message.assistant("x"), finish_reason="stop", usage=lm15.Usage()
    )
    assert charged(unknown) == Amount(1, BOUND)


def test_dollars_are_reserved_at_the_bound_and_settled_at_the_price_or_at_what_the_server_says() -> None:
    price = Price(input=1.0, output=10.0, cached=0.5)
    assert charged(lm15.ServerError("broken", status=500), price).dollars == pytest.approx(
        (at_most(ASKED) + 320) / 1e6
    )  # fmt: skip
    assert charged(response("x", usage=(100, 10)), price).dollars == pytest.approx(200e-6)
    told = response("x", usage=(100, 10), provider_data={"cost": 0.25})
    assert charged(told, price).dollars == 0.25
    less = response("x", usage=(100, 10), provider_data={"cost": 0.0})
    assert charged(less, price).dollars == pytest.approx(200e-6)


def test_a_reply_beyond_its_cap_and_a_dearer_price_are_charged_and_expected_from_then_on() -> None:
    """A server that ignores max_tokens; one whose price is above ours."""
    price = Price(input=1.0, output=10.0)
    meter = Spending(Live(), Purse(Budget(calls=9)), price)

    def once(**took: Any) -> Amount:
        bound = asyncio.run(meter.before(ASKED))
        meter.after(bound, response("x", **took), None)
        return bound.whole

    first = once(usage=(7, 1032))
    assert once(usage=(7, 2)).tokens == first.tokens + 1000
    plain = once(usage=(7, 2), provider_data={"cost": 3.0}).dollars
    assert once(usage=(7, 2)).dollars == pytest.approx(3.0)
    assert once(usage=(7, 2)).dollars > plain


def test_usage_above_the_bound_is_charged_and_expected_from_then_on() -> None:
    """A chat template that adds a thousand tokens of its own."""
    purse = Purse(Budget(calls=9))
    meter = Spending(Live(), purse)

    def once(tokens_in: int) -> int:
        bound = asyncio.run(meter.before(ASKED))
        meter.after(bound, response("x", usage=(tokens_in, 1)), None)
        return bound.whole.tokens

    assert once(at_most(ASKED) + 1000) == BOUND
    assert once(5) == BOUND + 1000
    assert once(at_most(ASKED)) == BOUND + 1000
    assert purse.spent.tokens == at_most(ASKED) + 1001 + 6 + at_most(ASKED) + 1


def test_the_same_excess_in_many_calls_at_once_is_learned_once() -> None:
    meter = Spending(Live(), Purse(Budget(calls=9)))
    bounds = [asyncio.run(meter.before(ASKED)) for _ in range(3)]
    for bound in bounds:
        meter.after(bound, response("x", usage=(at_most(ASKED) + 1000, 1)), None)
    assert asyncio.run(meter.before(ASKED)).whole.tokens == BOUND + 1000


# ---- what a later attempt tells of those that were lost

LOST = lm15.ServerError("broken", status=500)


class Changing(Live):
    """An engine that leaves out of a request what it is told to."""

    unsent: frozenset[str] | None = frozenset()


def after_losses(
    ends: list[lm15.Response | BaseException],
    price: Priced | None = None,
    learns: Mapping[int, frozenset[str] | None] = MappingProxyType({}),
) -> tuple[Amount, int]:
    """What a call whose attempts end so takes, and what is lost; `learns`: before which attempt its engine what."""
    purse, engine = Purse(Budget(calls=50)), Changing()
    meter = Spending(engine, purse, price)
    with tallied() as account:
        for number, ended in enumerate(ends):
            engine.unsent = learns.get(number, engine.unsent)
            bound = asyncio.run(meter.before(ASKED))
            told = isinstance(ended, lm15.Response)
            meter.after(bound, *((ended, None) if told else (None, ended)))  # type: ignore[arg-type]
    assert purse.reserved == Amount()
    return purse.spent, account.lost


def test_a_reply_tells_how_long_the_prompts_of_lost_attempts_were() -> None:
    told = response("two words", usage=(7, 2))
    assert after_losses([LOST, lm15.TimeoutError("slow"), told]) == (Amount(3, 9 + 2 * (7 + 32)), 2 * (7 + 32))
    assert after_losses([LOST, lm15.RateLimitError("slow down", status=429), told])[1] == 7 + 32
    assert after_losses([LOST, LOST]) == (Amount(2, 2 * BOUND), 2 * BOUND)


def test_a_reply_that_tells_no_tokens_or_more_than_the_bound_gives_nothing_back() -> None:
    mute = lm15.Response(
        id=None, model="m", message=lm15.Message.assistant("x"), finish_reason="stop", usage=lm15.Usage()
    )
    assert after_losses([LOST, mute])[1] == 2 * BOUND
    assert after_losses([LOST, response("x", usage=(at_most(ASKED) + 500, 1))])[1] == BOUND


@pytest.mark.parametrize("later", [frozenset({"response_format"}), None])
def test_an_attempt_that_was_sent_otherwise_tells_nothing_of_those_before(later: frozenset[str] | None) -> None:
    """A schema that the server refuses from now on may have stood in the lost prompt."""
    told = response("x", usage=(7, 1))
    assert after_losses([LOST, told], learns={1: later})[1] == BOUND
    assert after_losses([LOST, LOST, told], learns={1: later})[1] == BOUND + (BOUND if later is None else 7 + 32)


def test_dollars_of_lost_prompts_come_back_with_their_tokens() -> None:
    price = Price(input=1.0, output=10.0, cached=0.5)
    spent, _ = after_losses([LOST, response("x", usage=(7, 2))], price)
    assert spent.dollars == pytest.approx((7 + 320 + 7 + 20) / 1e6)


def test_what_an_engine_learns_while_a_call_waits_for_its_turn_is_seen() -> None:
    async def main() -> None:
        purse, engine = Purse(Budget(tokens=BOUND)), Changing()
        meter = Spending(engine, purse)
        first = await meter.before(ASKED)
        second = asyncio.create_task(meter.before(ASKED))
        await asyncio.sleep(0)
        engine.unsent = frozenset({"stop"})
        meter.after(first, response("x", usage=(0, 0)), None)
        assert (await second).unsent == {"stop"}

    asyncio.run(main())


def test_a_model_that_thinks_is_reserved_with_its_thinking() -> None:
    def cap(model: str, asked: lm15.Request = ASKED, **more: Any) -> int | None:
        engine = OpenAIEngine("http://127.0.0.1:1/v1", "", model=model, profile=profile_for(model), **more)
        return engine.reply_cap(asked)

    assert cap("gpt-4o-mini") == 32
    assert cap("o3-mini") == 32 + 8192
    assert cap("Qwen/Qwen3-8B", thinking=False) == 32
    assert cap("plain", extra_body={"n": 3, "max_tokens": 50}) == 150
    assert cap("plain", request(max_tokens=None)) is None


# ---- in a call's record


def called(tmp_path: Path, url: str, **more: Any) -> dict[str, Any]:
    """The record of one call at a server."""
    engine = OpenAIEngine(url, "", model="m")
    terms = on_terms(engine, Terms(retry=Retry(wait_first=0.001, wait_max=0.01)), Traffic(**more))
    with Journal(tmp_path) as journal:
        asyncio.run(JournaledEngine(terms, model="m", journal=journal).complete(ASKED))
        (record,) = journal.records("call")
    return record


def test_a_record_tells_what_its_failed_attempts_may_have_cost_with_or_without_a_budget(tmp_path: Path) -> None:
    for name, more in (("free", {}), ("held", {"purse": Purse(Budget(calls=50))})):
        with serve(behave="flaky", share=1.0, seed=3) as server:
            record = called(tmp_path / name, server.url, **more)
            stats = server.stats()
        unheard = stats["faults"].get("rate-limit", 0)
        assert record["attempts"] == stats["requests"] == 4
        assert record["tokens_lost"] == (3 - unheard) * (record["tokens_in"] + 32) > 0
    with serve() as server:
        assert "tokens_lost" not in called(tmp_path / "calm", server.url)


# ---- read back


def record(number: int, **more: Any) -> dict[str, Any]:
    return {"key": digest(number), "kind": "call", "model": "m", "attempts": 1, "cost": None, **more}


@pytest.mark.parametrize(
    "wrong", [{"model": None}, {"tokens_in": "7"}, {"tokens_lost": 1.5}, {"attempts": "two"}, {"cost": "much"}]
)
def test_a_record_that_does_not_count_is_named_and_not_passed_over(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with Journal(tmp_path) as journal:
        journal.append(record(1, tokens_in=1), record(2, **wrong))
        with pytest.raises(BadData, match="line 2: a damaged or edited record"):
            spent_in(journal, {}, Budget(calls=1))


@pytest.mark.parametrize("cost", [0, -5.0, True, float("nan"), float("inf"), 10**400])
def test_what_an_earlier_sitting_believed_of_a_server_does_not_void_the_limit_of_this_one(
    tmp_path: Path, cost: float
) -> None:
    price = Price(input=1.0, output=10.0)
    with Journal(tmp_path) as journal:
        journal.append(record(1, tokens_in=100, tokens_out=10, cost=cost))
        assert spent_in(journal, {"m": price}, Budget(dollars=1)).dollars == pytest.approx(200e-6)
        journal.append(record(2, tokens_in=100, tokens_out=10, cost=0.5))
        assert spent_in(journal, {"m": price}, Budget(dollars=1)).dollars == pytest.approx(0.5002)


def test_what_was_spent_is_read_from_records_and_mark_whichever_is_more(tmp_path: Path) -> None:
    records = [
        record(1, tokens_in=100, tokens_out=10, attempts=3, tokens_lost=50),
        record(2, error={"kind": "timeout"}, tokens_lost=7),
        record(2, tokens_in=5, tokens_out=5),  # asked again: both count
        record(3, tokens_in=1000, tokens_out=1000, reused=True),
        {"key": digest("search"), "kind": "a user's own", "hits": []},
    ]
    with Journal(tmp_path) as journal:
        journal.append(*records)
        assert spent_in(journal, {}, Budget(calls=1)) == Amount(5, 177)
        price = Price(input=1.0, output=10.0)
        dollars = (100 + 100 + 5 + 50) / 1e6 + (50 + 7) * 10 / 1e6
        assert spent_in(journal, {"m": price}, Budget(dollars=1)).dollars == pytest.approx(dollars)
        assert purse_for(journal, None, {}) is None
        journal.append({"key": MARK, "kind": "budget", "calls": 99, "tokens": 99, "dollars": 9.0})
        journal.append({"key": MARK, "kind": "budget", "calls": 9, "tokens": 9, "dollars": 0.5})
        assert spent_in(journal, {}, Budget(calls=1)) == Amount(9, 177, 0.5)
        purse = purse_for(journal, None, {})
    assert purse is not None
    assert purse.spent.calls == 9

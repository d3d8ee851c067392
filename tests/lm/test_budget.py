"""The budget: what an attempt is reserved at and charged, what waits, and what a journal says was spent.

Order, cancellation and several loops are the waiting queue's: `test_aio`.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from calls import Live, request
from dspy import lm15
from hypothesis import given, settings
from hypothesis import strategies as st
from model_server import serve
from scripted import response

from blendfilter.errors import BadArgument, BudgetSpent
from blendfilter.journal import Journal, digest
from blendfilter.lm.attempts import CallPolicy, Retry, Traffic, on_terms
from blendfilter.lm.budget import (
    MARK,
    NOTHING,
    STEP,
    Amount,
    Budget,
    BudgetAccount,
    BudgetMeter,
    purse_for,
    spent_in,
    tallied,
)
from blendfilter.lm.faults import NO_CONNECTION
from blendfilter.lm.journaled import JournaledEngine
from blendfilter.lm.openai import OpenAIEngine
from blendfilter.lm.prices import Price
from blendfilter.lm.profiles import profile_for
from blendfilter.lm.tokens import A_MESSAGE, A_PICTURE, A_REQUEST, at_most, believed


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(test(**given))

    return run


def tokens(count: int) -> Amount:
    return Amount(calls=1, tokens=count)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"calls": 0}, "calls (calls=) is 0: give a whole number of 1 or more"),
        ({"tokens": 1.5}, "tokens (tokens=) is 1.5"),
        ({"dollars": 0}, "0 dollars (dollars=): give a number above 0"),
        ({"dollars": float("nan")}, "nan dollars"),
    ],
)
def test_a_limit_that_is_none_is_refused(limits: dict[str, float], message: str) -> None:
    with pytest.raises(BadArgument) as refused:
        Budget(**limits)  # type: ignore[arg-type]
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("budget", "spent", "wanted", "message"),
    [
        (Budget(calls=2), Amount(2), tokens(1), "^the budget is spent: 2 of 2 calls are gone$"),
        (
            Budget(calls=9, tokens=2_000, dollars=0.5), Amount(3, 1_500, 0.25), tokens(501),
            "^the budget is spent: 1,500 of 2,000 tokens are gone, and the next call may take 501$",
        ),
        (
            Budget(dollars=0.5), Amount(3, 0, 0.25), Amount(1, 0, 0.3),
            r"\$0\.2500 of \$0\.5 are gone, and the next call may cost \$0\.3000$",
        ),
    ],
    ids=["calls", "tokens", "dollars"],
)  # fmt: skip
@in_a_loop
async def test_what_cannot_fit_ends_the_run_and_names_the_limit(
    budget: Budget, spent: Amount, wanted: Amount, message: str
) -> None:
    with pytest.raises(BudgetSpent, match=message):
        await BudgetAccount(budget, spent=spent).reserve(wanted)


@in_a_loop
async def test_once_it_is_spent_all_that_wait_are_refused_and_nothing_smaller_slips_through() -> None:
    purse = BudgetAccount(Budget(tokens=100))
    await purse.reserve(tokens(60))
    waiting = [asyncio.create_task(purse.reserve(tokens(count))) for count in (90, 5)]
    await asyncio.sleep(0)
    purse.settle(tokens(60), tokens(20))
    for ended in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(ended, BudgetSpent)
    with pytest.raises(BudgetSpent):
        await purse.reserve(tokens(1))
    assert (purse.spent, purse.reserved) == (tokens(20), NOTHING)


@settings(deadline=None)
@given(
    limit=st.integers(1, 400),
    calls=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 100), st.integers(0, 3)), max_size=30),
)
def test_no_order_of_arrival_passes_a_limit(limit: int, calls: list[tuple[int, int, int]]) -> None:
    """Whatever is reserved, whatever it becomes (never more), and however long it takes."""
    purse, most = BudgetAccount(Budget(tokens=limit)), 0

    async def call(bound: int, share: int, turns: int) -> None:
        nonlocal most
        await purse.reserve(tokens(bound))
        most = max(most, purse.spent.tokens + purse.reserved.tokens)
        for _ in range(turns):
            await asyncio.sleep(0)
        purse.settle(tokens(bound), tokens(bound * share // 100))

    async def all_of_them() -> list[BaseException | None]:
        return await asyncio.wait_for(asyncio.gather(*(call(*each) for each in calls), return_exceptions=True), 10)

    ended = asyncio.run(all_of_them())
    assert most <= limit
    assert purse.reserved == NOTHING
    assert all(each is None or isinstance(each, BudgetSpent) for each in ended)


# ---- marks


def marks(folder: Path) -> list[Amount]:
    with Journal(folder, "replay") as journal:
        return [Amount(each["calls"], each["tokens"], each["dollars"]) for each in journal.records("budget")]


@in_a_loop
async def test_a_mark_runs_ahead_of_what_is_set_aside_and_is_true_at_the_end(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        purse = BudgetAccount(Budget(calls=1000), journal)
        for number in range(1, 41):
            await purse.reserve(tokens(10))
            assert marks(tmp_path)[-1].calls >= number
            purse.settle(tokens(10), tokens(3))
        assert len(marks(tmp_path)) <= 40 / STEP + 1
        purse.close()
        assert len(journal) == 1
    assert marks(tmp_path)[-1] == Amount(40, 120)


@in_a_loop
async def test_a_mark_never_passes_the_limit_and_what_is_out_at_the_end_counts_as_spent(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        BudgetAccount(Budget(calls=9), journal).close()
        assert MARK not in journal, "a sitting that made no call writes nothing"
        purse = BudgetAccount(Budget(calls=3, tokens=100), journal)
        await purse.reserve(tokens(40))
        assert marks(tmp_path) == [Amount(3, 100)]
        purse.close()
        with pytest.raises(BudgetSpent, match="the sitting is over"):
            await purse.reserve(tokens(1))
        purse.settle(tokens(40), tokens(1))  # a thread that came back late
    assert marks(tmp_path)[-1] == Amount(1, 40)


# ---- bounds


def test_a_prompt_is_bound_by_its_bytes_and_what_a_template_may_add() -> None:
    def bound(*parts: Any, **more: Any) -> int:
        return at_most(lm15.Request(model="m", messages=(lm15.Message("user", parts),), **more))

    text = lm15.TextPart
    assert at_most(request("abé")) == A_REQUEST + A_MESSAGE + 4
    assert at_most(request("abc", system="be brief")) == A_REQUEST + 2 * A_MESSAGE + 3 + 8
    assert bound(text("one"), text("two")) == A_REQUEST + A_MESSAGE + len("one\ntwo")
    assert bound(text("lone \ud800")) == A_REQUEST + A_MESSAGE + 8
    schema = {"type": "json_schema", "schema": {"type": "object", "properties": {"ids": {"type": "array"}}}}
    assert at_most(request("q", response_format=schema)) >= at_most(request("q")) + 2 * len(repr(schema))
    tool = lm15.FunctionTool(name="search", description="d" * 200)
    assert bound(text("q"), tools=(tool,)) >= bound(text("q")) + 2 * 200
    assert bound(text("?"), lm15.ImagePart(url="http://127.0.0.1/a.png", media_type="image/png")) > A_PICTURE


def test_a_reply_is_bound_by_its_cap_with_its_thinking() -> None:
    def cap(model: str, requested: lm15.Request = ASKED, effort: str | None = None, **more: Any) -> int | None:
        profile = replace(profile_for(model), effort=effort)
        engine = OpenAIEngine("http://127.0.0.1:1/v1", "", model=model, profile=profile, **more)
        return engine.reply_cap(requested)

    assert cap("gpt-4o-mini") == 32
    assert cap("o3-mini") == 32 + 8192
    assert cap("Qwen/Qwen3-8B", effort="off") == 32
    assert cap("plain", extra_body={"n": 3, "max_tokens": 50}) == 150
    assert cap("plain", request(max_tokens=None)) is None


# ---- what an attempt is charged

ASKED = request("Question: q", max_tokens=32)
BOUND = at_most(ASKED) + 32
LOST = lm15.ServerError("broken", status=500)
MUTE = lm15.Response(id=None, model="m", message=lm15.Message.assistant("x"), finish_reason="stop", usage=lm15.Usage())
PRICE = Price(input=1.0, output=10.0, cached=0.5)


def charged(*ends: lm15.Response | BaseException, price: Price | None = None) -> tuple[Amount, int]:
    """What a call whose attempts end so takes, and what is lost."""
    purse = BudgetAccount(Budget(calls=50))
    meter = BudgetMeter(Live(), purse, price)
    with tallied() as account:
        for end in ends:
            bound = asyncio.run(meter.before(ASKED))
            assert (purse.reserved.calls, purse.reserved.tokens) == (1, BOUND)
            meter.after(bound, *((end, None) if isinstance(end, lm15.Response) else (None, end)))
    assert purse.reserved == NOTHING
    return purse.spent, account.lost


@pytest.mark.parametrize(
    ("end", "took"),
    [
        (response("two words", usage=(7, 2)), Amount(1, 9)),
        (response("a b c"), Amount(1, at_most(ASKED) + 3)),
        (MUTE, Amount(1, BOUND)),
        (lm15.TransportError("refused", provider_code=NO_CONNECTION), NOTHING),
        (lm15.RateLimitError("slow down", status=429), Amount(1)),
        (lm15.AuthError("who?", status=401), Amount(1)),
        (lm15.ServerError("conflict", status=409), Amount(1)),
        (lm15.InvalidRequestError("filtered", status=200), Amount(1, BOUND)),
        (lm15.UnsupportedFeatureError("no tools", feature="tools"), Amount(1)),
        (BudgetSpent("of another meter"), Amount(1)),
        (LOST, Amount(1, BOUND)),
        (lm15.TimeoutError("too slow", status=408), Amount(1, BOUND)),
        (lm15.TimeoutError("no reply"), Amount(1, BOUND)),
        (lm15.TransportError("the connection broke off"), Amount(1, BOUND)),
        (asyncio.CancelledError(), Amount(1, BOUND)),
        (RuntimeError("a user's engine"), Amount(1, BOUND)),
    ],
    ids=["stated", "half stated", "not stated", "unreached", "429", "401", "409", "filtered", "feature", "meter", "500",
         "408", "timeout", "cut", "cancelled", "unknown"],
)  # fmt: skip
def test_a_refusal_takes_no_tokens_and_what_may_have_been_answered_all_that_was_reserved(
    end: lm15.Response | BaseException, took: Amount
) -> None:
    assert charged(end)[0] == took


@pytest.mark.parametrize(
    ("ends", "dollars"),
    [
        ([LOST], (at_most(ASKED) + 320) / 1e6),
        ([response("x", usage=(100, 10))], 200e-6),
        ([response("x", usage=(100, 10), provider_data={"cost": 0.25})], 0.25),
        ([response("x", usage=(100, 10), provider_data={"cost": 0.0})], 200e-6),
        ([LOST, response("x", usage=(7, 2))], (7 + 320 + 7 + 20) / 1e6),
    ],
    ids=["lost", "our price", "a dearer server", "a server that says 0", "a lost prompt comes back"],
)
def test_dollars_are_charged_at_our_price_or_the_servers_if_that_is_more(ends: list[Any], dollars: float) -> None:
    assert charged(*ends, price=PRICE)[0].dollars == pytest.approx(dollars)


def test_what_a_call_took_beyond_its_bound_is_expected_from_then_on() -> None:
    """A template that adds a thousand tokens, a server whose price is above ours."""
    meter = BudgetMeter(Live(), BudgetAccount(Budget(calls=20)), PRICE)

    def once(*took: dict[str, Any]) -> Amount:
        bounds = [asyncio.run(meter.before(ASKED)) for _ in took]
        for bound, each in zip(bounds, took, strict=True):
            meter.after(bound, response("x", **each), None)
        return bounds[-1].whole

    beyond = {"usage": (at_most(ASKED) + 1000, 1)}
    assert once({"usage": (5, 1)}).tokens == BOUND
    once(beyond, beyond, beyond)
    dearer = once({"usage": (7, 2), "provider_data": {"cost": 3.0}})
    assert dearer.tokens == BOUND + 1000 + 1 - 32, "learned once from three at once"
    assert once({"usage": (7, 2)}).dollars == pytest.approx(3.0)


def test_a_reply_states_how_long_the_prompts_of_lost_attempts_were() -> None:
    reply = response("two words", usage=(7, 2))
    assert charged(LOST, lm15.TimeoutError("slow"), reply) == (Amount(3, 9 + 2 * (7 + 32)), 2 * (7 + 32))
    assert charged(LOST, lm15.RateLimitError("slow down", status=429), reply)[1] == 7 + 32
    assert charged(LOST, LOST) == (Amount(2, 2 * BOUND), 2 * BOUND)
    assert charged(LOST, MUTE)[1] == 2 * BOUND
    assert charged(LOST, response("x", usage=(at_most(ASKED) + 500, 1)))[1] == BOUND


# ---- in records


def called(tmp_path: Path, url: str, **more: Any) -> dict[str, Any]:
    """The record of one call at a server."""
    engine = OpenAIEngine(url, "", model="m")
    terms = on_terms(engine, CallPolicy(retry=Retry(wait_first=0.001, wait_max=0.01)), Traffic(**more))
    with Journal(tmp_path) as journal:
        asyncio.run(JournaledEngine(terms, model="m", journal=journal).complete(ASKED))
        (record,) = journal.records("call")
    return record


def test_a_record_says_what_its_failed_attempts_may_have_cost_with_or_without_a_budget(tmp_path: Path) -> None:
    for name, more in (("free", {}), ("limited", {"purse": BudgetAccount(Budget(calls=50))})):
        with serve(behave="flaky", share=1.0, seed=3) as server:
            record = called(tmp_path / name, server.url, **more)
            stats = server.stats()
        refused = stats["faults"].get("rate-limit", 0)
        assert record["attempts"] == stats["requests"] == 4
        assert record["tokens_lost"] == (3 - refused) * (record["tokens_in"] + 32) > 0
    with serve() as server:
        assert "tokens_lost" not in called(tmp_path / "calm", server.url)


def record(number: int, **more: Any) -> dict[str, Any]:
    return {"key": digest(number), "kind": "call", "model": "m", "attempts": 1, "cost": None, **more}


@pytest.mark.parametrize("cost", [0, -5.0, True, float("nan"), 10**400, "much", 1e-7, 1e12, 1e308, 900.0])
def test_a_cost_that_an_earlier_sitting_believed_does_not_void_the_limit_of_this_one(tmp_path: Path, cost: Any) -> None:
    with Journal(tmp_path) as journal:
        journal.append(record(1, tokens_in=100, tokens_out=10, cost=cost))
        assert spent_in(journal, {"m": PRICE}, Budget(dollars=1)).dollars == pytest.approx(200e-6)
        journal.append(record(2, tokens_in=100, tokens_out=10, cost=0.5))
        assert spent_in(journal, {"m": PRICE}, Budget(dollars=1)).dollars == pytest.approx(0.5002)


def test_what_was_spent_is_read_from_records_and_mark_whichever_is_more(tmp_path: Path) -> None:
    records = [
        record(1, tokens_in=100, tokens_out=10, attempts=3, tokens_lost=50),
        record(2, error={"kind": "timeout"}, tokens_lost=7),
        record(2, tokens_in=5, tokens_out=5),  # called again: both count
        record(3, tokens_in=1000, tokens_out=1000, reused=True),
        {"key": digest("search"), "kind": "a user's own", "hits": []},
    ]
    with Journal(tmp_path) as journal:
        journal.append(*records)
        assert spent_in(journal, {}, Budget(calls=1)) == Amount(5, 177)
        dollars = (100 + 100 + 5 + 50) / 1e6 + (50 + 7) * 10 / 1e6
        assert spent_in(journal, {"m": PRICE}, Budget(dollars=1)).dollars == pytest.approx(dollars)
        assert purse_for(journal, None, {}) is None
        journal.append({"key": MARK, "kind": "budget", "calls": 99, "tokens": 99, "dollars": 9.0})
        journal.append({"key": MARK, "kind": "budget", "calls": 9, "tokens": 9, "dollars": 0.5})
        assert spent_in(journal, {}, Budget(calls=1)) == Amount(9, 177, 0.5)
        purse = purse_for(journal, None, {})
    assert purse is not None
    assert purse.spent.calls == 9


@pytest.mark.parametrize("dollars", [1e12, 1e308, float("inf"), float("nan")])
def test_a_mark_that_an_absurd_cost_left_ends_no_run_for_good(tmp_path: Path, dollars: float) -> None:
    with Journal(tmp_path) as journal:
        journal.append(record(1, tokens_in=100, tokens_out=10, cost=dollars))
        journal.append({"key": MARK, "kind": "budget", "calls": 9, "tokens": 120, "dollars": dollars})
        assert spent_in(journal, {"m": PRICE}, Budget(dollars=1)) == Amount(9, 120, pytest.approx(200e-6))


@pytest.mark.parametrize(
    ("stated", "price", "kept"),
    [
        (1e308, PRICE, None),
        (1e12, None, None),
        (900.0, PRICE, None),  # beside a price of ours of a tenth of a cent
        (900.0, None, 900.0),
        (5.0, PRICE, 5.0),
        (1e-7, PRICE, 1e-7),
    ],
)
def test_a_stated_cost_is_believed_within_our_price_or_what_any_call_costs(
    stated: float, price: Price | None, kept: float | None
) -> None:
    given = response("x", usage=(100, 10), provider_data={"cost": stated, "address": "a"})
    data = believed(ASKED, given, price).provider_data
    assert data.get("cost") == kept
    assert data.get("disbelieved") == (None if kept is not None else {"cost": str(stated)})


@pytest.mark.parametrize(("stated", "kept"), [(150_000, 150_000), (10**8, None), (10**30, None)])
def test_a_stated_count_is_believed_within_what_this_end_can_see(stated: int, kept: int | None) -> None:
    """A gateway may have a prompt of its own, and a model long thoughts; else one line would end a run for good."""
    given = believed(ASKED, replace(response("x"), usage=lm15.Usage(input_tokens=stated, output_tokens=stated)))
    assert (given.usage.input_tokens, given.usage.output_tokens) == (kept, kept)


LONG = request("word " * 1000)


@pytest.mark.parametrize(
    ("wanted", "usage", "cut"),
    [
        (LONG, lm15.Usage(input_tokens=400), True),
        (LONG, lm15.Usage(input_tokens=1000), False),
        (LONG, lm15.Usage(input_tokens=620), False),  # eight characters a token: no tokeniser's text
        (LONG, lm15.Usage(input_tokens=10, cache_read_tokens=990), False),  # as Anthropic counts
        (LONG, lm15.Usage(input_tokens=10, cache_read_tokens=100), True),
        (LONG, lm15.Usage(input_tokens=0), False),  # no count at all
        (LONG, lm15.Usage(), False),
        (request("x" + " " * 4000), lm15.Usage(input_tokens=9), False),  # a run of spaces may be one token
        (request("Who?"), lm15.Usage(input_tokens=1), False),
    ],
)
def test_fewer_tokens_than_a_prompt_must_have_say_that_its_server_cut_it(
    wanted: lm15.Request, usage: lm15.Usage, cut: bool
) -> None:
    data = believed(wanted, replace(response("x"), usage=usage)).provider_data or {}
    assert data.get("prompt_cut", False) is cut

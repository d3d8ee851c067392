"""The purse: what it lets go, who waits for what, and the marks it leaves in the journal."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blendfilter.context import ORDER, setting
from blendfilter.errors import BadArgument, BudgetSpent
from blendfilter.journal import Journal
from blendfilter.lm.budget import MARK, NOTHING, STEP, Amount, Budget, Purse


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(test(**given))

    return run


def tokens(count: int) -> Amount:
    return Amount(calls=1, tokens=count)


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"calls": 0}, "0 calls (--max-calls): give a whole number of 1 or more"),
        ({"calls": True}, "True calls"),
        ({"tokens": -5}, "-5 tokens (--max-tokens)"),
        ({"tokens": 1.5}, "1.5 tokens"),
        ({"dollars": 0}, "0 dollars (--max-cost): give a number above 0"),
        ({"dollars": float("nan")}, "nan dollars"),
        ({"dollars": float("inf")}, "inf dollars"),
        ({"dollars": "5"}, "'5' dollars"),
    ],
)
def test_a_limit_that_is_none_is_refused(limits: dict[str, float], said: str) -> None:
    with pytest.raises(BadArgument) as refused:
        Budget(**limits)  # type: ignore[arg-type]
    assert said in str(refused.value)


@in_a_loop
async def test_what_fits_goes_and_what_cannot_fit_ends_the_run() -> None:
    purse = Purse(Budget(calls=2))
    for _ in range(2):
        await purse.reserve(tokens(10))
        purse.settle(tokens(10), tokens(3))
    with pytest.raises(BudgetSpent, match="2 of 2 calls are gone"):
        await purse.reserve(tokens(10))
    assert purse.spent == Amount(2, 6)


@in_a_loop
async def test_the_message_names_the_limit_that_would_be_passed() -> None:
    purse = Purse(Budget(calls=9, tokens=2_000, dollars=0.5), spent=Amount(3, 1_500, 0.25))
    with pytest.raises(
        BudgetSpent, match=r"^the budget is spent: 1,500 of 2,000 tokens are gone, and the next call ma"
    ):
        await purse.reserve(Amount(1, 501, 0.0))
    again = Purse(Budget(dollars=0.5), spent=Amount(3, 0, 0.25))
    with pytest.raises(BudgetSpent, match=r"\$0\.2500 of \$0\.5 are gone, and the next call may cost \$0\.3000"):
        await again.reserve(Amount(1, 0, 0.3))


@in_a_loop
async def test_a_limit_below_one_call_says_what_would_do() -> None:
    for budget, wanted, said in (
        (Budget(tokens=2_000), tokens(3_635), r"0 of 2,000 tokens are gone, .* may take 3,635: give 3,635 or more$"),
        (Budget(dollars=0.01), Amount(1, 0, 0.03001), r"\$0\.0300: give \$0\.0301 or more$"),
    ):
        with pytest.raises(BudgetSpent, match="^the budget is too small for one call: .*" + said):
            await Purse(budget).reserve(wanted)


@in_a_loop
async def test_what_does_not_fit_waits_for_what_comes_back_oldest_question_first() -> None:
    purse, went = Purse(Budget(tokens=100)), []

    async def call(order: int, count: int) -> None:
        with setting(ORDER, order):
            await purse.reserve(tokens(count))
            went.append(order)

    await call(0, 90)
    waiting = [asyncio.create_task(call(order, 40)) for order in (3, 1, 2)]
    await asyncio.sleep(0)
    small = asyncio.create_task(call(9, 5))  # would fit, but an older question is waiting
    await asyncio.sleep(0)
    assert went == [0]
    purse.settle(tokens(90), tokens(10))
    await asyncio.sleep(0.01)
    assert went == [0, 1, 2]
    purse.settle(tokens(40), tokens(0))
    await asyncio.gather(*waiting, small)
    assert went == [0, 1, 2, 3, 9]


@in_a_loop
async def test_once_it_is_spent_all_that_wait_are_told_and_nothing_smaller_slips_through() -> None:
    purse = Purse(Budget(tokens=100))
    await purse.reserve(tokens(60))
    waiting = [asyncio.create_task(purse.reserve(tokens(count))) for count in (90, 5)]
    await asyncio.sleep(0)
    purse.settle(tokens(60), tokens(20))
    for told in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(told, BudgetSpent)
    with pytest.raises(BudgetSpent):
        await purse.reserve(tokens(1))
    assert purse.spent == tokens(20)
    assert purse.reserved == NOTHING


@pytest.mark.parametrize("told", [False, True])
@in_a_loop
async def test_who_is_cancelled_while_waiting_takes_nothing(told: bool) -> None:
    purse = Purse(Budget(tokens=100))
    await purse.reserve(tokens(80))
    waiting = asyncio.create_task(purse.reserve(tokens(50)))
    await asyncio.sleep(0)
    purse.settle(tokens(80), tokens(10))  # sets 50 aside for it …
    if told:
        await asyncio.sleep(0)
    waiting.cancel()  # … in the same instant
    await asyncio.wait([waiting])
    await asyncio.sleep(0.01)
    assert purse.reserved == NOTHING


@in_a_loop
async def test_who_waited_on_a_loop_that_is_closed_takes_nothing() -> None:
    purse = Purse(Budget(calls=2))
    for _ in range(2):
        await purse.reserve(tokens(1))
    forgotten = asyncio.new_event_loop()
    waiting = forgotten.create_task(purse.reserve(tokens(1)))
    await asyncio.to_thread(forgotten.run_until_complete, asyncio.sleep(0))
    forgotten.close()
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    later = asyncio.create_task(purse.reserve(tokens(1)))
    await asyncio.sleep(0)
    purse.settle(tokens(1), NOTHING)
    await asyncio.wait_for(later, 5)
    assert purse.reserved.calls == 2


def test_it_is_drawn_on_from_several_loops_at_once() -> None:
    purse, gone = Purse(Budget(calls=300)), []

    async def one() -> None:
        await purse.reserve(tokens(1))
        gone.append(1)
        await asyncio.sleep(0.0001)
        purse.settle(tokens(1), tokens(1))

    async def many() -> None:
        told = await asyncio.gather(*(one() for _ in range(200)), return_exceptions=True)
        assert {type(each) for each in told} <= {type(None), BudgetSpent}

    async def everywhere() -> None:
        await asyncio.gather(*(asyncio.to_thread(asyncio.run, many()) for _ in range(4)))

    asyncio.run(asyncio.wait_for(everywhere(), 20))
    assert len(gone) == 300
    assert purse.reserved.calls == 0


@settings(deadline=None)
@given(
    limit=st.integers(1, 400),
    calls=st.lists(st.tuples(st.integers(0, 120), st.integers(0, 100), st.integers(0, 3)), max_size=30),
)
def test_no_order_of_arrival_passes_a_limit(limit: int, calls: list[tuple[int, int, int]]) -> None:
    """Whatever is reserved, whatever it becomes (never more), and however long it takes."""
    purse, most = Purse(Budget(tokens=limit)), 0

    async def call(bound: int, share: int, turns: int) -> None:
        nonlocal most
        await purse.reserve(tokens(bound))
        most = max(most, purse.spent.tokens + purse.reserved.tokens)
        for _ in range(turns):
            await asyncio.sleep(0)
        purse.settle(tokens(bound), tokens(bound * share // 100))

    async def all_of_them() -> list[BaseException | None]:
        return await asyncio.wait_for(asyncio.gather(*(call(*each) for each in calls), return_exceptions=True), 10)

    told = asyncio.run(all_of_them())
    assert most <= limit
    assert purse.reserved == NOTHING
    assert all(each is None or isinstance(each, BudgetSpent) for each in told)


# ---- marks


def marks(folder: Path) -> list[Amount]:
    with Journal(folder, "replay") as journal:
        return [Amount(each["calls"], each["tokens"], each["dollars"]) for each in journal.records("budget")]


@in_a_loop
async def test_a_mark_runs_ahead_of_what_is_set_aside_and_is_true_at_the_end(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        purse = Purse(Budget(calls=1000), journal)
        for number in range(1, 41):
            await purse.reserve(tokens(10))
            assert marks(tmp_path)[-1].calls >= number
            purse.settle(tokens(10), tokens(3))
        assert len(marks(tmp_path)) <= 40 / STEP + 1
        purse.close()
        assert len(journal) == 1
    assert marks(tmp_path)[-1] == Amount(40, 120)


@in_a_loop
async def test_a_mark_never_passes_the_limit(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        purse = Purse(Budget(calls=3, tokens=100), journal)
        await purse.reserve(tokens(40))
        assert marks(tmp_path) == [Amount(3, 100)]


@in_a_loop
async def test_what_is_out_at_the_end_counts_as_spent(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        purse = Purse(Budget(calls=9), journal)
        await purse.reserve(tokens(40))
        purse.close()
        with pytest.raises(BudgetSpent, match="the sitting is over"):
            await purse.reserve(tokens(1))
        purse.settle(tokens(40), tokens(1))  # a thread that came back late
    assert marks(tmp_path)[-1] == Amount(1, 40)


def test_a_sitting_that_asked_nothing_writes_nothing(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        Purse(Budget(calls=9), journal).close()
        assert MARK not in journal

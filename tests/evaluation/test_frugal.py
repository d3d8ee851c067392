"""Which questions are begun under a limit: those that the rest of it is likely to finish."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_world import CountingEngine, done_by, slowly

from blendfilter import BM25, BlendFilter, load
from blendfilter.errors import BudgetSpent
from blendfilter.evaluation.files import read_rows
from blendfilter.evaluation.frugal import AT_FIRST, Frugal
from blendfilter.lm.budget import NOTHING, Amount, Budget, BudgetAccount

CALLS: dict[str, dict[str, Any]] = {
    "a": {"attempts": 3, "tokens_in": 60, "tokens_out": 30, "tokens_lost": 10, "cost": 0.5},
    "b": {"attempts": 1, "tokens_in": 90, "tokens_out": 10, "cost": 0.5},
    "copied": {"attempts": 9, "tokens_in": 900, "tokens_out": 0, "cost": 9.0, "reused": True},
}
ROW = {"calls": [["x", "a"], ["y", "b"], ["z", "a"], ["w", "copied"], ["v", "gone"]]}
"""Four attempts, 200 tokens, a dollar: a call of another run and the second use of one cost nothing."""


def frugal(budget: Budget | None, spent: Amount = NOTHING) -> tuple[Frugal, BudgetAccount | None]:
    purse = None if budget is None else BudgetAccount(budget, None, spent)
    return Frugal(purse, CALLS.get), purse


def begun(one: Frugal, most: int = 99) -> int:
    """How many begin now."""
    number = 0
    while number < most and one.may_begin():
        one.begun()
        number += 1
    return number


@pytest.mark.parametrize("budget", [None, Budget()])
def test_without_a_limit_everything_begins(budget: Budget | None) -> None:
    one, _ = frugal(budget)
    assert begun(one) == 99


def test_few_begin_while_nobody_knows_what_one_takes() -> None:
    one, _ = frugal(Budget(calls=10**9))
    assert begun(one) == AT_FIRST
    one.over()  # it ended, and took nothing that tells anything: another run's calls
    one.answered({"calls": [["w", "copied"]]})
    assert begun(one) == 1


@pytest.mark.parametrize("limit", [{"calls": 40}, {"tokens": 2_000}, {"dollars": 10.0}])
def test_as_many_as_the_rest_is_likely_to_finish(limit: dict[str, Any]) -> None:
    """A question takes a tenth of each limit; what is set aside belongs to those under work and counts once."""
    one, purse = frugal(Budget(**limit), spent=Amount(8, 400, 2.0))
    assert purse is not None
    begun(one, 1)
    one.over()
    one.answered(ROW)
    purse.reserved = Amount(8, 400, 2.0)
    assert begun(one) == 8


def test_the_nearest_limit_counts_and_one_at_a_time_always_begins() -> None:
    one, _ = frugal(Budget(calls=10**6, tokens=100))
    one.learn([json.dumps(ROW).encode()])
    assert begun(one) == 1  # the budget itself says that it is spent
    far, _ = frugal(Budget(calls=10**6, tokens=10**6))
    far.learn([json.dumps(ROW).encode()])
    assert begun(far) == 99


def test_a_small_budget_answers_as_many_side_by_side_as_one_by_one(index: BM25, tmp_path: Path) -> None:
    answered = {}
    for concurrency in (1, 16):
        run = tmp_path / str(concurrency)
        with pytest.raises(BudgetSpent, match=r"; paid in all, unfinished questions included: 100 calls, [\d,]+ tok"):
            done_by(
                BlendFilter(index), load("qa", "sample", limit=16), run, budget=Budget(calls=100),
                engine=CountingEngine(before=slowly(0.002)), concurrency=concurrency,
            )  # fmt: skip
        answered[concurrency] = len(read_rows(run / "predictions.jsonl"))
    assert answered[16] >= answered[1] - 1 > 5

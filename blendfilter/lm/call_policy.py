"""On what terms a model is called: its own retries, pace and price, and what a run allows all its calls."""

from __future__ import annotations

from dataclasses import dataclass

from blendfilter.lm.attempts import AttemptingEngine, Meter, ModelEngine, Retry, RetryBudget
from blendfilter.lm.budget import BudgetAccount, BudgetMeter
from blendfilter.lm.prices import Price, Prices
from blendfilter.lm.rate_limit import Gate, Pace


@dataclass(frozen=True)
class CallPolicy:
    """One model's own terms, the same in every run.

    Attributes:
        retry: how faults are tried again; None: never (a model in this process has none that pass).
        pace: how much may go out a minute, shared by all that call this model's server; None: no limit.
        price: what its tokens cost; None: unknown.
        prices: the user's own file, which prices calls of earlier sittings that were recorded without a cost.
    """

    retry: Retry | None = None
    pace: Pace | None = None
    price: Price | None = None
    prices: Prices | None = None


@dataclass(frozen=True)
class Traffic:
    """What one run allows its calls, of all its models together; None: no limit.

    Attributes:
        gate: how many may be in flight.
        purse: what all of them may take.
        retries: how many of them may be further attempts.
    """

    gate: Gate | None = None
    purse: BudgetAccount | None = None
    retries: RetryBudget | None = None


FREE = Traffic()
"""Outside a run there are no limits."""


def on_terms(engine: ModelEngine, terms: CallPolicy, traffic: Traffic) -> AttemptingEngine:
    """`engine`, called on `terms` and within `traffic`."""
    # An attempt's turn comes first, so that the oldest question's goes on first; the budget last, for what is set aside
    # for an attempt is set aside no longer than it is on its way.
    meters: list[Meter | None] = [traffic.gate, terms.pace, BudgetMeter(engine, traffic.purse, terms.price)]
    return AttemptingEngine(engine, [meter for meter in meters if meter is not None], terms.retry, traffic.retries)

"""On what terms a model is called: how faults are tried again (its own terms), and what a run allows all its calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from blendfilter.errors import BadArgument
from blendfilter.lm.budget import Purse
from blendfilter.lm.gate import Gate
from blendfilter.lm.metered import Engine, Meter, MeteredEngine
from blendfilter.lm.pace import Pace
from blendfilter.lm.prices import Price, Prices
from blendfilter.lm.retrying import Allowance, Retry
from blendfilter.lm.spending import Spending


@dataclass(frozen=True)
class Terms:
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


ATTEMPT = 120.0
"""Seconds that one attempt at a server may take, where nothing else is asked."""


@dataclass(frozen=True)
class Asked:
    """What a user asks of a model's terms; None: as it is. Raises: `BadArgument` for a number that is none."""

    timeout: float | None = None
    attempts: int | None = None
    deadline: float | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None

    def __post_init__(self) -> None:
        self.terms(None, None)  # refused before anything is made of it

    def given(self) -> dict[str, Any]:
        """What was asked for, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def terms(self, price: Price | None, prices: Prices | None, *, timeout: float | None = ATTEMPT) -> Terms:
        """The terms; `timeout` is what holds where none is asked for."""
        retry = replace(Retry(timeout=timeout), **{name: self.given()[name] for name in _RETRY if name in self.given()})
        limits = (self.requests_per_minute, self.tokens_per_minute)
        return Terms(retry, None if limits == (None, None) else Pace(*limits), price, prices)

    def refuse(self, name: str, but: str = "") -> None:
        """Raise `BadArgument` for a model in this process, which has no server; `but` holds there too."""
        for asked in (each for each in self.given() if each != but):
            raise BadArgument(f"{name} answers in this process: {asked} is for models behind a server")


_RETRY = ("timeout", "attempts", "deadline")


@dataclass(frozen=True)
class Traffic:
    """What one run allows its calls, of all its models together.

    Attributes:
        gate: how many may be in flight.
        purse: what all of them may take.
        retries: how many of them may be further attempts.
    """

    gate: Gate | None = None
    purse: Purse | None = None
    retries: Allowance | None = None


FREE = Traffic()
"""Outside a run nothing is held back."""


def on_terms(engine: Engine, terms: Terms, traffic: Traffic) -> Engine:
    """`engine`, called on `terms` and within `traffic`: retries around meters around the engine."""
    retry, meters = terms.retry, [*_meters(engine, terms, traffic)]
    if retry is None:
        return MeteredEngine(engine, meters)
    return retry.around(MeteredEngine(retry.within(engine), meters), traffic.retries)


def _meters(engine: Engine, terms: Terms, traffic: Traffic) -> Iterator[Meter]:
    """In the order that an attempt passes them: its turn first, so that the oldest question's goes on first."""
    if traffic.gate is not None:
        yield traffic.gate
    if terms.pace is not None:
        yield terms.pace
    # Last: what is set aside for an attempt is set aside no longer than it is on its way.
    yield Spending(engine, traffic.purse, terms.price)

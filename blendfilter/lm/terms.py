"""On what terms a model is called: how faults are tried again (its own terms), and what a run allows all its calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from blendfilter.lm.gate import Gate
from blendfilter.lm.metered import Engine, Meter, MeteredEngine
from blendfilter.lm.retrying import Retry


@dataclass(frozen=True)
class Terms:
    """One model's own terms, the same in every run.

    Attributes:
        retry: how faults are tried again; None: never (a model in this process has none that pass).
    """

    retry: Retry | None = None


@dataclass(frozen=True)
class Traffic:
    """What one run allows its calls, of all its models together.

    Attributes:
        gate: how many may be in flight.
    """

    gate: Gate | None = None


FREE = Traffic()
"""Outside a run nothing is held back."""


def on_terms(engine: Engine, terms: Terms, traffic: Traffic) -> Engine:
    """`engine`, called on `terms` and within `traffic`: retries around meters around the engine."""
    metered = MeteredEngine(engine, [*_meters(terms, traffic)])
    return metered if terms.retry is None else terms.retry.around(metered)


def _meters(terms: Terms, traffic: Traffic) -> Iterator[Meter]:
    """In the order that an attempt passes them: its turn first, so that the oldest question's goes on first."""
    if traffic.gate is not None:
        yield traffic.gate

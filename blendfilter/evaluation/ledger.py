"""What a run's calls took, read from its rows and its journal: the ledger stage by stage, and seconds a question.

A call counts once, under the stage that made it first, however many questions used it; the other uses are hits. What a
server does not state is unknown and not 0: tokens without usage, a cost without a price. Attempts, hits, cached tokens
and seconds appear in reports and are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from blendfilter.evaluation.rows import Json, Record, slim, summarise
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_folder import PREDICTIONS, iterate_rows
from blendfilter.files import AnyPath
from blendfilter.journal import Journal
from blendfilter.lm.budget import Amount
from blendfilter.lm.prices import Prices, cost_of, price_in, stated
from blendfilter.run_context import RunContext, connected_lms
from blendfilter.version import VERSION

ReadCall = Callable[[str], Record | None]


@dataclass
class LedgerEntry:
    """One stage's account, summed over the calls whose figure is known.

    Attributes:
        without_tokens, unpriced: how many calls state no tokens, or have no price.
        cached_of: prompt tokens of the calls that state how many of them were cached.
        hits: uses beyond the first, and calls copied from another run.
        cost_by: whose figure counts, where servers state a cost.
        disbelieved: calls whose stated figures cannot be true.
        models: the same, by model.
    """

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None
    tokens_cached: int = 0
    cached_of: int = 0
    seconds: float = 0.0
    attempts: int = 0
    unpriced: int = 0
    without_tokens: int = 0
    hits: int = 0
    disbelieved: int = 0
    cost_by: dict[str, int] = field(default_factory=dict)
    models: dict[str, LedgerEntry] = field(default_factory=dict, compare=False)

    def add(self, record: Record, cost: float | None) -> None:
        """Count one journaled call."""
        tokens_in, tokens_out, cached = (
            record.get(name) for name in ("tokens_in", "tokens_out", "tokens_cached")
        )
        self.calls += 1
        self.tokens_in += tokens_in or 0
        self.tokens_out += tokens_out or 0
        self.without_tokens += tokens_in is None or tokens_out is None
        if cached is not None:
            self.tokens_cached += cached
            self.cached_of += tokens_in or 0
        self.seconds += record.get("seconds") or 0.0
        self.attempts += record.get("attempts") or 1
        self.hits += bool(record.get("reused"))
        self.disbelieved += "disbelieved" in record
        if (by := record.get("cost_by")) is not None:
            self.cost_by[by] = self.cost_by.get(by, 0) + 1
        if cost is None:
            self.unpriced += 1
        else:
            self.cost = (self.cost or 0.0) + cost

    @property
    def retries(self) -> int:
        """Attempts beyond each call's first."""
        return self.attempts - self.calls

    @property
    def tokens(self) -> int | None:
        """Tokens in and out; None where any call's are unknown."""
        return None if self.without_tokens else self.tokens_in + self.tokens_out

    @property
    def cached_share(self) -> float | None:
        """The share of prompt tokens that servers had cached, of the calls where that is known; None where none is."""
        return self.tokens_cached / self.cached_of if self.cached_of else None

    @property
    def whole_cost(self) -> float | None:
        """Dollars; None where any call's price is unknown."""
        return None if self.unpriced else self.cost

    def stored(self, *, by_model: bool = False) -> Json:
        """What `metrics.json` keeps."""
        cost = self.whole_cost
        kept: Json = {
            "calls": self.calls,
            "tokens_in": None if self.without_tokens else self.tokens_in,
            "tokens_out": None if self.without_tokens else self.tokens_out,
            "cost": None if cost is None else round(cost, 6),
        }
        if self.cost_by:
            kept["cost_by"] = dict(sorted(self.cost_by.items()))
        if by_model:
            kept["models"] = {name: entry.stored() for name, entry in self.models.items()}
        return kept


OwnPrices = Prices | Mapping[str, Prices | None] | None
"""A user's own prices: of all models, or by a model's name."""


def ledger(
    rows: Iterable[Record], read: ReadCall, prices: OwnPrices = None
) -> dict[str, LedgerEntry]:
    """Entries by stage in the order of first use, then `total`.

    `prices` are for the calls whose record holds no cost: they were made before a price was given.
    """
    entries: dict[str, LedgerEntry] = {}
    total = LedgerEntry()
    counted: dict[bytes, list[LedgerEntry]] = {}  # the entries that have the call
    for row in rows:
        for stage, key in row["calls"]:
            packed = bytes.fromhex(key)
            if packed in counted:
                for entry in counted[packed]:
                    entry.hits += 1
                continue
            counted[packed], record = [], read(key)
            if record is not None and not record.get("error"):
                cost, model = _cost(record, prices), model_of(record)
                for whole in (entries.setdefault(stage or "call", LedgerEntry()), total):
                    counted[packed] += [whole, whole.models.setdefault(model, LedgerEntry())]
                for entry in counted[packed]:
                    entry.add(record, cost)
    return {**entries, "total": total}


def stored(entries: Mapping[str, LedgerEntry]) -> dict[str, Json]:
    """What `metrics.json` keeps of a ledger; model by model where there are several."""
    several = len(entries["total"].models) > 1
    return {stage: entry.stored(by_model=several) for stage, entry in entries.items()}


def measured(
    folder: Path,
    settings: Record,
    journal: Journal,
    prices: OwnPrices = None,
    made_by: Iterable[str] = (VERSION,),
) -> Json:
    """The content of `metrics.json` for the rows and the journal of a run's folder."""
    path = folder / PREDICTIONS
    # read row by row: a long run's whole rows would fill the memory
    entries = ledger(iterate_rows(path), journal.read_call, prices)
    rows = [*map(slim, iterate_rows(path))]
    return summarise(rows, settings, stored(entries), made_by=made_by)


def own_prices(context: RunContext) -> dict[str, Prices | None]:
    """A user's own prices, by the names of a run's models."""
    models = [context.model]
    if context.module is not None:
        models += connected_lms(context.module).values()
    return {model.name: model.terms.prices for model in models}


def model_of(record: Record) -> str:
    """The model of a journaled call, or of a run's settings, with its label where it has one.

    >>> model_of({"model": "qwen", "label": "b"}), model_of({"name": "offline"})
    ('qwen (b)', 'offline')
    """
    name = str(record.get("model") or record.get("name") or "")
    return f"{name} ({record['label']})" if record.get("label") else name


def taken(record: Record, prices: Prices | None = None) -> Amount:
    """What one journaled call took, with its attempts and what was lost on the way; what is unknown counts as 0."""
    tokens = sum(record.get(name) or 0 for name in ("tokens_in", "tokens_out", "tokens_lost"))
    return Amount(record.get("attempts") or 1, tokens, _cost(record, prices) or 0.0)


def _cost(record: Record, prices: OwnPrices) -> float | None:
    if isinstance(prices, Mapping):
        prices = prices.get(str(record.get("model")))
    # Earlier versions kept whatever a server stated.
    absurd = record.get("cost") is not None and stated(record["cost"]) is None
    return cost_of(record, price_in(record, prices) if prices is not None or absurd else None)


def tokens_of(stored: Record) -> int | None:
    """Tokens in and out of an entry of `metrics.json`; None where they are unknown."""
    known = stored["tokens_in"], stored["tokens_out"]
    return None if None in known else int(sum(known))


def per_question(run: Run) -> tuple[float, float | None]:
    """Calls and tokens that a run used for a question, on average; None where the tokens are unknown."""
    total, n = run.metrics["ledger"]["total"], len(run.rows)
    tokens = tokens_of(total)
    return total["calls"] / n, None if tokens is None else tokens / n


def money(dollars: float | None) -> str:
    """Dollars; fractions of a cent where there is less than one dollar.

    >>> money(12.345), money(0.01234), money(None)
    ('$12.35', '$0.0123', '-')
    """
    return "-" if dollars is None else f"${dollars:,.2f}" if dollars >= 1 else f"${dollars:.4f}"


class Latency(NamedTuple):
    """Busy seconds a question over `n` answers; all 0 where no model was called."""

    median: float
    mean: float
    p95: float
    n: int


def busy_seconds(calls: Iterable[Record]) -> float:
    """The length of the union of the calls' intervals [at, at + seconds].

    >>> busy_seconds([{"at": 10.0, "seconds": 2.0}, {"at": 11.0, "seconds": 2.0}, {"at": 20.0, "seconds": 1.0}])
    4.0
    """
    total, until = 0.0, float("-inf")
    for start, end in sorted(
        (at := call.get("at") or 0.0, at + (call.get("seconds") or 0.0)) for call in calls
    ):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return round(total, 6)


def calls_by_answer(
    run: Run, stages: Collection[str] | None = None
) -> Iterator[tuple[str, list[Record]]]:
    """Each answer's question with its different calls, of all stages or some.

    Answers that ended in an error are left out: they stopped early.
    """
    with run.journal() as journal:
        for row in run.rows:
            if row["error"] is None:
                keys = dict.fromkeys(
                    key for stage, key in row["calls"] if stages is None or stage in stages
                )
                found = map(journal.read_call, keys)
                yield str(row["id"]), [call for call in found if call is not None]


def latency(run: AnyPath) -> Latency:
    """Median, mean and 95th percentile of the answers' busy seconds: those with a model call in flight.

    Calls side by side count once; waiting for a place among the run's calls in flight does not count, nor do searches:
    compare runs made at the same concurrency. A call that several questions share, or that was copied from another run,
    counts in each. Answers that ended in an error are left out.
    """
    seconds = [busy_seconds(calls) for _, calls in calls_by_answer(Run.of(run))]
    if not seconds:
        return Latency(0.0, 0.0, 0.0, 0)
    median, late = (float(quantile) for quantile in np.quantile(seconds, [0.5, 0.95]))
    return Latency(median, fmean(seconds), late, len(seconds))

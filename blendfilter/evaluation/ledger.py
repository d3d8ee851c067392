"""The ledger: which stage made how many calls, tokens and dollars, read from the run's calls and its journal.

In: the rows of a run, and its journal's records. Out: an `Entry` a stage, and the total. A call counts once, under the
stage that asked first, however many questions used it; the other uses are hits. The journal is the one account: it is
right across threads, tasks and sittings, for a record is appended before its reply is used.

What nobody told is unknown and not 0: tokens of a server that tells no usage, a cost without a price. Attempts, hits,
cached tokens and seconds are the report's to show and are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from blendfilter.lm.budget import Amount
from blendfilter.lm.prices import Prices, cost_of, price_in

Read = Callable[[str], Mapping[str, Any] | None]


@dataclass
class Entry:
    """One stage's account. Sums are over the calls that told the figure; `untold` and `unpriced` count the others.

    Attributes:
        hits: uses of a call beyond its first, and calls copied from another run, which cost this one nothing.
        cached_of: prompt tokens of the calls that told how many of them their server had cached.
        cost_by: of the calls whose server stated a cost, how many count at whose figure: `server`, or `price` where
            ours is more (`dspy`: what DSPy reckons for a model of the user's own).
        disbelieved: calls of whose account something cannot be true, and counts as not told.
    """

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None
    tokens_cached: int = field(default=0, repr=False)
    seconds: float = field(default=0.0, repr=False)
    attempts: int = field(default=0, repr=False)
    unpriced: int = field(default=0, repr=False)
    untold: int = field(default=0, repr=False)
    cached_of: int = field(default=0, repr=False)
    hits: int = field(default=0, repr=False)
    cost_by: dict[str, int] = field(default_factory=dict, repr=False)
    disbelieved: int = field(default=0, repr=False)

    def add(self, record: Mapping[str, Any], cost: float | None) -> None:
        """Count one journaled call."""
        tokens_in, tokens_out, cached = (record.get(name) for name in ("tokens_in", "tokens_out", "tokens_cached"))
        self.calls += 1
        self.tokens_in += tokens_in or 0
        self.tokens_out += tokens_out or 0
        self.untold += tokens_in is None or tokens_out is None
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
        """Tokens in and out; None where a call told none."""
        return None if self.untold else self.tokens_in + self.tokens_out

    @property
    def cached_share(self) -> float | None:
        """The share of prompt tokens that servers had cached, over the calls that told; None where none did."""
        return self.tokens_cached / self.cached_of if self.cached_of else None

    @property
    def whole_cost(self) -> float | None:
        """Dollars; None where any call's price is unknown."""
        return None if self.unpriced else self.cost

    def stored(self) -> dict[str, Any]:
        """What `metrics.json` keeps."""
        cost = self.whole_cost
        return {
            "calls": self.calls,
            "tokens_in": None if self.untold else self.tokens_in,
            "tokens_out": None if self.untold else self.tokens_out,
            "cost": None if cost is None else round(cost, 6),
            **({"cost_by": dict(sorted(self.cost_by.items()))} if self.cost_by else {}),
        }


def ledger(rows: Iterable[Mapping[str, Any]], read: Read, prices: Prices | None = None) -> dict[str, Entry]:
    """Entries by stage in the order of first use, then `total`.

    `prices` are a user's own, for the calls whose record holds no cost: they were made before a price was given.
    """
    entries: dict[str, Entry] = {}
    total = Entry()
    counted: dict[bytes, Entry | None] = {}
    for row in rows:
        for stage, key in row["calls"]:
            packed = bytes.fromhex(key)
            if packed not in counted:
                record = read(key)
                if record is None or record.get("error"):
                    counted[packed] = None
                    continue
                cost = cost_of(record, price_in(record, prices) if prices is not None else None)
                entry = counted[packed] = entries.setdefault(_named(stage), Entry())
                for each in (entry, total):
                    each.add(record, cost)
            elif (first := counted[packed]) is not None:
                first.hits += 1
                total.hits += 1
    return {**entries, "total": total}


def taken(record: Mapping[str, Any], prices: Prices | None = None) -> Amount:
    """What one journaled call took, with its attempts and what was lost on the way; what nobody told counts as 0."""
    tokens = sum(record.get(name) or 0 for name in ("tokens_in", "tokens_out", "tokens_lost"))
    cost = cost_of(record, price_in(record, prices) if prices is not None else None)
    return Amount(record.get("attempts") or 1, tokens, cost or 0.0)


def tokens_of(stored: Mapping[str, Any]) -> int | None:
    """Tokens in and out of an entry of `metrics.json`; None where they are unknown."""
    tokens_in, tokens_out = stored["tokens_in"], stored["tokens_out"]
    return None if tokens_in is None or tokens_out is None else int(tokens_in + tokens_out)


def _named(stage: str) -> str:
    return {"": "call", "total": "total (stage)"}.get(stage, stage)

"""The ledger: which stage made how many calls and tokens, read from the run's calls and its journal.

A call counts once, under the stage that asked first, however many questions used it; attempts, retries and seconds are
the report's to show and are not stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Read = Callable[[str], Mapping[str, Any] | None]


@dataclass
class Entry:
    """One stage's account. `cost` is None where any call's price is unknown."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = None
    tokens_cached: int = field(default=0, repr=False)
    seconds: float = field(default=0.0, repr=False)
    attempts: int = field(default=0, repr=False)
    unpriced: int = field(default=0, repr=False)

    def add(self, record: Mapping[str, Any]) -> None:
        """Count one journaled call."""
        self.calls += 1
        self.tokens_in += record.get("tokens_in") or 0
        self.tokens_out += record.get("tokens_out") or 0
        self.tokens_cached += record.get("tokens_cached") or 0
        self.seconds += record.get("seconds") or 0.0
        self.attempts += record.get("attempts") or 1
        if record.get("cost") is None:
            self.unpriced += 1
        else:
            self.cost = (self.cost or 0.0) + record["cost"]

    def stored(self) -> dict[str, Any]:
        """What `metrics.json` keeps."""
        cost = None if self.unpriced or self.cost is None else round(self.cost, 6)
        return {"calls": self.calls, "tokens_in": self.tokens_in, "tokens_out": self.tokens_out, "cost": cost}


def ledger(rows: Iterable[Mapping[str, Any]], read: Read) -> dict[str, Entry]:
    """Entries by stage in the order of first use, then `total`."""
    entries: dict[str, Entry] = {}
    total = Entry()
    seen: set[bytes] = set()
    for row in rows:
        for stage, key in row["calls"]:
            packed = bytes.fromhex(key)
            record = read(key) if packed not in seen else None
            seen.add(packed)
            if record is not None and not record.get("error"):
                entries.setdefault(_named(stage), Entry()).add(record)
                total.add(record)
    return {**entries, "total": total}


def _named(stage: str) -> str:
    return {"": "call", "total": "total (stage)"}.get(stage, stage)

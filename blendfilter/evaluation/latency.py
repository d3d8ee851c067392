"""How long a question takes: the seconds in which at least one of its model calls was in flight.

In: a run, whose journal says of every call when it went out and how long it took. Out: a `Latency` over its answers.
Calls side by side count once; waiting for a place among the run's calls in flight does not count, nor do searches. So
it is what one question would take if nobody else asked, given how fast the server was under this run's load: compare
runs made at the same concurrency. Nothing of it is stored in `metrics.json`, which holds no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from blendfilter.evaluation.run import Run
from blendfilter.journal import FILE, Journal


class Latency(NamedTuple):
    """Busy seconds a question over `n` answers; all 0 where no model was asked."""

    median: float
    mean: float
    p95: float
    n: int


def busy_seconds(calls: Iterable[Mapping[str, Any]]) -> float:
    """The length of the union of the calls' intervals [at, at + seconds].

    A call of an older journal, which does not say when it went out, counts all its seconds.

    >>> busy_seconds([{"at": 10.0, "seconds": 2.0}, {"at": 11.0, "seconds": 2.0}, {"at": 20.0, "seconds": 1.0}])
    4.0
    """
    total, until = 0.0, float("-inf")
    timed = []
    for call in calls:
        seconds = float(call.get("seconds") or 0.0)
        if call.get("at") is None:
            total += seconds
        else:
            timed.append((float(call["at"]), float(call["at"]) + seconds))
    for start, end in sorted(timed):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return round(total, 6)


def latency(run: Run | str | Path) -> Latency:
    """Median, mean and 95th percentile of the answers' busy seconds.

    A call that several questions share, or that was taken over from another run, counts in each with its own times.
    Answers that ended in an error are left out: they stopped early.

    Raises:
        MissingFile: the run is not there or not finished.
    """
    opened = run if isinstance(run, Run) else Run(run)
    with Journal(opened.folder / FILE, "replay") as journal:
        seconds = [
            busy_seconds(record for key in dict(map(reversed, row["calls"])) if (record := journal.read_call(key)))
            for row in opened.rows
            if row["error"] is None
        ]
    if not seconds:
        return Latency(0.0, 0.0, 0.0, 0)
    median, late = (float(each) for each in np.quantile(seconds, [0.5, 0.95]))
    return Latency(median, fmean(seconds), late, len(seconds))

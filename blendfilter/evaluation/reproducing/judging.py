"""What a judge's verdicts take: calls, tokens, seconds and dollars of the stage `consistent`, and of no other.

Ma et al. 2024 (CDIT), section 5.4 and Table 4, which prints seconds alone. In: a run, whose journal says of every call
what it took. Out: each measure's values by question. An answer that failed is left out, for it stopped early; a call
that questions share counts in each, with its own figures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from blendfilter.evaluation.ledger import busy_seconds
from blendfilter.evaluation.reproducing.lines import OF_JUDGING
from blendfilter.evaluation.reproducing.papers import IN_ALL
from blendfilter.evaluation.run import Run
from blendfilter.journal import FILE, Journal
from blendfilter.lm.prices import cost_of

STAGE = "consistent"
CALLS, TOKENS, SECONDS, _, DOLLARS = OF_JUDGING
Record = Mapping[str, Any]


def values(run: Run) -> dict[str, dict[str, list[float]]]:
    """Each measure by question, one value an answer; without tokens or dollars where a call told none.

    `seconds_in_all` has one value, under no question: the seconds in which at least one such call was in flight.
    """
    with Journal(run.folder / FILE, "replay") as journal:
        judged = [
            (str(row["id"]), [record for key in _judging(row) if (record := journal.read_call(key)) is not None])
            for row in run.rows
            if row["error"] is None
        ]
    if not judged:
        return {}
    told = {
        measure: _by_question((name, figure(calls)) for name, calls in judged) for measure, figure in _FIGURES.items()
    }
    once = {record["key"]: record for _, calls in judged for record in calls}
    told[IN_ALL] = {"": [busy_seconds(once.values())]}
    return {measure: told[measure] for measure in OF_JUDGING if told[measure]}


def _judging(row: Mapping[str, Any]) -> Iterable[str]:
    """The keys of its judging calls, each once."""
    return dict.fromkeys(key for stage, key in row["calls"] if stage == STAGE)


def _by_question(figures: Iterable[tuple[str, float | None]]) -> dict[str, list[float]]:
    """Values by question; nothing where one of them is unknown."""
    found: dict[str, list[float]] = {}
    for name, value in figures:
        if value is None:
            return {}
        found.setdefault(name, []).append(value)
    return found


def _tokens(calls: Iterable[Record]) -> float | None:
    return _sum(call.get(name) for call in calls for name in ("tokens_in", "tokens_out"))


def _seconds(calls: Iterable[Record]) -> float:
    return float(sum(call.get("seconds") or 0.0 for call in calls))


def _dollars(calls: Iterable[Record]) -> float | None:
    """Of a thousand such questions."""
    cost = _sum(cost_of(call, None) for call in calls)
    return None if cost is None else 1000 * cost


def _sum(figures: Iterable[float | None]) -> float | None:
    each = list(figures)
    return None if None in each else float(sum(filter(None, each)))


_FIGURES: Mapping[str, Callable[[Sequence[Record]], float | None]] = {
    CALLS: len,
    TOKENS: _tokens,
    SECONDS: _seconds,
    DOLLARS: _dollars,
}

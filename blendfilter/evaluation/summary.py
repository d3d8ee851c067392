"""From the rows of a run to its `metrics.json`: scores with intervals, retrieval per query, flags, losses, ledger.

Where every question was answered several times, a score is the mean over questions of the mean over their answers, its
interval is drawn at both levels, and `between_repeats` says how far whole runs lie apart; flags, losses and the ledger
count every answer.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from statistics import fmean, stdev
from sys import intern
from typing import Any

import blendfilter
from blendfilter.evaluation.ledger import Entry
from blendfilter.evaluation.losses import LOSSES
from blendfilter.evaluation.repeats import repeat_of, repeats_in
from blendfilter.evaluation.rows import DIGITS, Row
from blendfilter.evaluation.statistics import interval
from blendfilter.modules.base import FLAGS

VARIANTS = ("q", "q_ex", "q_in", "union", "kept")
"""The queries of BlendFilter, all together, and what was kept: for these a question without one counts as 0."""
BESIDE = "q@"
"""How the name of a search for the question alone begins, at another number of passages (`q@15`)."""
_MEASURES = ("recall", "precision", "s_precision")


_NO_FIGURE = frozenset({"queries", "branches", "knowledge", "spans", "calls", "answer", "golden_answers", "question"})


def slim(row: Mapping[str, Any], without: Container[str] = _NO_FIGURE) -> Row:
    """A row less what no figure is made of, its names shared with every other row's: a long run has thousands."""
    return {intern(name): _shared(value) for name, value in row.items() if name not in without}


def _shared(value: Any) -> Any:
    if isinstance(value, dict):
        return {intern(name): _shared(each) for name, each in value.items()}
    return intern(value) if isinstance(value, str) and len(value) < _WORD else value


_WORD = 24
"""Characters of a name that may recur from row to row, such as a loss."""


def summarise(
    rows: Sequence[Row], *, settings: Mapping[str, Any], entries: Mapping[str, Entry], seed: int
) -> dict[str, Any]:
    """The whole of `metrics.json`."""
    repeats = repeats_in(settings)
    metrics = {name: score_of(rows, name, seed) for name in settings["metrics"]}
    counts = counted(rows, [])
    return {
        "task": settings["task"],
        "method": settings["method"]["name"],
        "n": counts["n"],
        **({"repeats": repeats} if repeats > 1 else {}),
        "metrics": metrics,
        "retrieval": counts["retrieval"],
        "flags": counts["flags"],
        "losses": counts["losses"],
        "ledger": {stage: entry.stored() for stage, entry in entries.items()},
        "signature": signature(settings, metrics, counts["n"]),
    }


def counted(rows: Sequence[Row], metrics: Iterable[str]) -> dict[str, Any]:
    """The figures of `metrics.json` that are counts and means over the rows: what takes no interval and no journal."""
    return {
        "n": len({row["id"] for row in rows}),
        "metrics": {
            name: {"value": round(fmean(map(fmean, _grouped(rows, name, lambda row: row["id"]))), DIGITS)}
            for name in metrics
        },
        "retrieval": _retrieval(rows),
        "flags": {name: sum(row["flags"].get(name, 0) for row in rows) for name in FLAGS}
        | {"errors": sum(row["error"] is not None for row in rows)},
        "losses": {name: sum(row["loss"] == name for row in rows) for name in LOSSES},
    }


_TOLD = ("k", "without", "filter", "filter_union", "hops", "style", "iterations", "samples", "temperature")
_IN_SIGNATURE = {name: name for name in _TOLD} | {"n": "filter_n", "by": "filter_by"}
"""Arguments of a method that its headline tells, where they are set, as the command line calls them; never a path."""


def signature(settings: Mapping[str, Any], metrics: Mapping[str, Any], n: int) -> str:
    """The headline with its recipe: what was measured, on what, with what."""
    name, score = next(iter(metrics.items()))
    half = (score["high"] - score["low"]) / 2
    retrievers = "+".join(f"{each['kind']}/{each['fingerprint']}" for each in settings["retrievers"]) or "none"
    recipe = [
        f"n:{n}",
        *([f"repeats:{repeats}"] if (repeats := repeats_in(settings)) > 1 else []),
        f"data:{settings['data']['source']}/{settings['data']['fingerprint']}",
        f"method:{settings['method']['name']}",
        f"lm:{settings['lm']['name']}",
        f"retriever:{retrievers}",
        *(
            f"{_IN_SIGNATURE[key]}:{value}"
            for key, value in settings["method"]["arguments"].items()
            if key in _IN_SIGNATURE and value
        ),
        f"program:{settings['method']['program']}",
        f"seed:{settings['seed']}",
        f"v{blendfilter.__version__}",
    ]
    return f"{settings['task']} {name.upper()} {100 * score['value']:.1f} ± {100 * half:.1f} | {'|'.join(recipe)}"


def score_of(rows: Sequence[Row], name: str, seed: int) -> dict[str, float]:
    """A metric's entry: value, low, high; with several answers a question how far whole repeats lie apart too."""
    by_question = _grouped(rows, name, lambda row: row["id"])
    answers = {len(scores) for scores in by_question}
    # In a run under way some questions have more answers than others: their means are all there is to draw from.
    scores = by_question if answers == {max(answers)} else [[fmean(each)] for each in by_question]
    told = interval(scores, seed=seed)._asdict()
    if max(answers) > 1:
        told["between_repeats"] = stdev(map(fmean, _grouped(rows, name, repeat_of)))
    return {key: round(value, DIGITS) for key, value in told.items()}


def _grouped(rows: Sequence[Row], name: str, of: Callable[[Row], Any]) -> list[list[float]]:
    groups: dict[Any, list[float]] = {}
    for row in rows:
        groups.setdefault(of(row), []).append(row[name])
    return list(groups.values())


def _retrieval(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Means over the questions whose gold is known; an error's question counts as 0, for it retrieved nothing.

    Beyond the five fixed names, a query that only some questions have (a third hop) is the mean over those, with `n`;
    `q@15`, which stands beside the union, counts an error as the union does.
    """
    known = [row for row in rows if row["gold_titles"] or row["retrieval"]]
    seen = sorted({name for row in rows for name in row["retrieval"]}, key=_place)
    told: dict[str, dict[str, float]] = {}
    for name in seen:
        beside = name.startswith(BESIDE)
        having = [row for row in known if name in row["retrieval"] or (beside and row["error"] is not None)]
        having = known if name in VARIANTS else having
        told[name] = {
            measure: round(fmean(row["retrieval"].get(name, {}).get(measure, 0.0) for row in having), DIGITS)
            for measure in _MEASURES
        }
        if name not in VARIANTS:
            told[name]["n"] = len(having)
    return told


def _place(name: str) -> tuple[float, str]:
    """In the order of the pipeline, the question alone beside the union, whatever else behind."""
    if name.startswith(BESIDE):
        return VARIANTS.index("union") + 0.5, name
    return (VARIANTS.index(name), "") if name in VARIANTS else (len(VARIANTS), name)

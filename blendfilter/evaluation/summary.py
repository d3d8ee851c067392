"""From the rows of a run to its `metrics.json`: scores with intervals, retrieval per query, flags, losses, ledger.

Where every question was answered several times, a score is the mean over questions of the mean over their answers, its
interval is drawn at both levels, and `between_repeats` says how far whole runs lie apart; flags, losses and the ledger
count every answer.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from operator import itemgetter
from statistics import fmean, stdev
from sys import intern
from typing import Any

import blendfilter
from blendfilter.evaluation.ledger import LedgerEntry
from blendfilter.evaluation.rows import DIGITS, LOSSES, PredictionRow, repeat_of, repeats_in
from blendfilter.evaluation.statistics import interval
from blendfilter.modules.base import FLAGS

VARIANTS = ("q", "q_ex", "q_in", "union", "kept")
"""The queries of BlendFilter, all together, and what was kept: for these a question without one counts as 0."""
QUESTION_ALONE = "q@"
"""How the name of a search for the question alone begins, at another number of passages (`q@15`)."""
MEASURES = ("recall", "precision", "s_precision")
_NO_FIGURE = frozenset({"queries", "branches", "knowledge", "spans", "calls", "answer", "golden_answers", "question"})
_RECURRING = 24
"""Characters of a text below which it may recur from row to row, such as a loss."""
_SAME_NAME = ("k", "without", "filter", "filter_union", "hops", "style", "iterations", "samples", "temperature")
_IN_SIGNATURE = {name: name for name in _SAME_NAME} | {"n": "filter_n", "by": "filter_by"}
"""Arguments of a method that are in its signature where they are set, as the command line calls them; never a path."""


def slim(row: Mapping[str, Any], without: Container[str] = _NO_FIGURE) -> PredictionRow:
    """A row without what no figure is made of, its names shared with every other row's: a long run has thousands."""
    return {intern(name): _shared(value) for name, value in row.items() if name not in without}


def _shared(value: Any) -> Any:
    if isinstance(value, dict):
        return {intern(name): _shared(part) for name, part in value.items()}
    return intern(value) if isinstance(value, str) and len(value) < _RECURRING else value


def summarise(
    rows: Sequence[PredictionRow], *, settings: Mapping[str, Any], entries: Mapping[str, LedgerEntry], seed: int
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


def counted(rows: Sequence[PredictionRow], metrics: Iterable[str]) -> dict[str, Any]:
    """The figures of `metrics.json` that are counts and means over the rows: those without interval and journal."""
    return {
        "n": len({row["id"] for row in rows}),
        "metrics": {name: {"value": round(fmean(map(fmean, _grouped(rows, name))), DIGITS)} for name in metrics},
        "retrieval": _retrieval(rows),
        "flags": {name: sum(row["flags"].get(name, 0) for row in rows) for name in FLAGS}
        | {"errors": sum(row["error"] is not None for row in rows)},
        "losses": {name: sum(row["loss"] == name for row in rows) for name in LOSSES},
    }


def signature(settings: Mapping[str, Any], metrics: Mapping[str, Any], n: int) -> str:
    """The headline with its recipe: what was measured, on what, with what."""
    name, score = next(iter(metrics.items()))
    half = (score["high"] - score["low"]) / 2
    method, data = settings["method"], settings["data"]
    repeats, arguments = repeats_in(settings), method["arguments"]
    retrievers = "+".join(f"{index['kind']}/{index['fingerprint']}" for index in settings["retrievers"]) or "none"
    recipe = [
        f"n:{n}",
        *[f"repeats:{repeats}"] * (repeats > 1),
        f"data:{data['source']}/{data['fingerprint']}",
        f"method:{method['name']}",
        f"lm:{settings['lm']['name']}",
        f"retriever:{retrievers}",
        *(f"{_IN_SIGNATURE[key]}:{value}" for key, value in arguments.items() if key in _IN_SIGNATURE and value),
        f"program:{method['program']}",
        f"seed:{settings['seed']}",
        f"v{blendfilter.__version__}",
    ]
    return f"{settings['task']} {name.upper()} {100 * score['value']:.1f} ± {100 * half:.1f} | {'|'.join(recipe)}"


def score_of(rows: Sequence[PredictionRow], name: str, seed: int) -> dict[str, float]:
    """A metric's entry: value, low, high; with several answers a question how far whole repeats lie apart too."""
    by_question = _grouped(rows, name)
    answers = {len(scores) for scores in by_question}
    # In a run under way some questions have more answers than others: their means are all there is to draw from.
    scores = by_question if len(answers) == 1 else [[fmean(scores)] for scores in by_question]
    entry = interval(scores, seed=seed)._asdict()
    if max(answers) > 1:
        entry["between_repeats"] = stdev(map(fmean, _grouped(rows, name, by=repeat_of)))
    return {key: round(value, DIGITS) for key, value in entry.items()}


def _grouped(
    rows: Sequence[PredictionRow], name: str, by: Callable[[PredictionRow], Any] = itemgetter("id")
) -> list[list[float]]:
    groups: dict[Any, list[float]] = {}
    for row in rows:
        groups.setdefault(by(row), []).append(row[name])
    return list(groups.values())


def _retrieval(rows: Sequence[PredictionRow]) -> dict[str, dict[str, float]]:
    """Means over the questions whose gold is known; an error's question counts as 0, for it retrieved nothing.

    Beyond the five fixed names, a query that only some questions have (a third hop) is the mean over those, with `n`;
    `q@15`, which stands beside the union, counts an error as the union does.
    """
    known = [row for row in rows if row["gold_titles"] or row["retrieval"]]
    found: dict[str, dict[str, float]] = {}
    for name in sorted({name for row in rows for name in row["retrieval"]}, key=_place):
        alone, fixed = name.startswith(QUESTION_ALONE), name in VARIANTS
        having = [row for row in known if fixed or name in row["retrieval"] or (alone and row["error"] is not None)]
        found[name] = {
            measure: round(fmean(row["retrieval"].get(name, {}).get(measure, 0.0) for row in having), DIGITS)
            for measure in MEASURES
        }
        if not fixed:
            found[name]["n"] = len(having)
    return found


def _place(name: str) -> tuple[float, str]:
    """In the order of the pipeline, the question alone beside the union, whatever else behind."""
    if name.startswith(QUESTION_ALONE):
        return VARIANTS.index("union") + 0.5, name
    return (VARIANTS.index(name), "") if name in VARIANTS else (len(VARIANTS), name)

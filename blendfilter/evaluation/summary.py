"""From the rows of a run to its `metrics.json`: scores with intervals, retrieval per query, flags, losses, ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import blendfilter
from blendfilter.evaluation.ledger import Entry
from blendfilter.evaluation.losses import LOSSES
from blendfilter.evaluation.rows import DIGITS, Row
from blendfilter.evaluation.statistics import bootstrap_interval
from blendfilter.modules.base import FLAGS

VARIANTS = ("q", "q_ex", "q_in", "union", "kept")
_MEASURES = ("recall", "precision", "s_precision")


def summarise(
    rows: Sequence[Row], *, settings: Mapping[str, Any], entries: Mapping[str, Entry], seed: int
) -> dict[str, Any]:
    """The whole of `metrics.json`."""
    metrics = {name: _interval(rows, name, seed) for name in settings["metrics"]}
    return {
        "task": settings["task"],
        "method": settings["method"]["name"],
        "n": len(rows),
        "metrics": metrics,
        "retrieval": _retrieval(rows),
        "flags": {name: sum(row["flags"].get(name, 0) for row in rows) for name in FLAGS}
        | {"errors": sum(row["error"] is not None for row in rows)},
        "losses": {name: sum(row["loss"] == name for row in rows) for name in LOSSES},
        "ledger": {stage: entry.stored() for stage, entry in entries.items()},
        "signature": signature(settings, metrics, len(rows)),
    }


def signature(settings: Mapping[str, Any], metrics: Mapping[str, Any], n: int) -> str:
    """The headline with its recipe: what was measured, on what, with what."""
    name, score = next(iter(metrics.items()))
    half = (score["high"] - score["low"]) / 2
    retrievers = "+".join(f"{each['kind']}/{each['fingerprint']}" for each in settings["retrievers"]) or "none"
    recipe = [
        f"n:{n}",
        f"data:{settings['data']['source']}/{settings['data']['fingerprint']}",
        f"method:{settings['method']['name']}",
        f"lm:{settings['lm']['name']}",
        f"retriever:{retrievers}",
        *(
            f"{key}:{value}"
            for key, value in settings["method"]["arguments"].items()
            if key in ("k", "without") and value
        ),
        f"program:{settings['method']['program']}",
        f"seed:{settings['seed']}",
        f"v{blendfilter.__version__}",
    ]
    return f"{settings['task']} {name.upper()} {100 * score['value']:.1f} ± {100 * half:.1f} | {'|'.join(recipe)}"


def _interval(rows: Sequence[Row], name: str, seed: int) -> dict[str, float]:
    interval = bootstrap_interval([row[name] for row in rows], seed=seed)
    return {key: round(value, DIGITS) for key, value in interval._asdict().items()}


def _retrieval(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Means over the questions whose gold is known; an error's question counts as 0, for it retrieved nothing."""
    known = [row for row in rows if row["gold_titles"] or row["retrieval"]]
    seen = {name for row in rows for name in row["retrieval"]}
    names = [*(name for name in VARIANTS if name in seen), *sorted(seen - set(VARIANTS))]
    return {
        name: {
            measure: round(sum(row["retrieval"].get(name, {}).get(measure, 0.0) for row in known) / len(known), DIGITS)
            for measure in _MEASURES
        }
        for name in names
    }

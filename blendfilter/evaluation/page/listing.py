"""The list of questions that a page shows at once: what to search, to filter by and to open.

In: the rows of a run, and of the runs beside it. Out: plain data for the page's script, a dictionary a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blendfilter.evaluation.rows import LOSSES, key_of

Rows = Sequence[Mapping[str, Any]]
UNREAD = ("unparseable_ids", "suspect_ids")


def listing(rows: Rows, others: Sequence[Mapping[str, Mapping[str, Any]]], metrics: Sequence[str]) -> list[Any]:
    """An entry a row; `others` hold the rows of the runs beside it, by `key_of`."""
    return [_entry(row, [other.get(key_of(row)) for other in others], metrics) for row in rows]


def _entry(row: Mapping[str, Any], others: Sequence[Mapping[str, Any] | None], metrics: Sequence[str]) -> Any:
    entry = {
        "id": row["id"],
        "question": row.get("question", ""),
        "answer": row.get("answer"),
        "golden": list(row.get("golden_answers") or []),
        "scores": [row.get(name, 0.0) for name in metrics],
        "right": bool(row.get("correct")),
        "loss": row["loss"] if row.get("loss") in LOSSES else "",
        "unread": sum((row.get("flags") or {}).get(name, 0) for name in UNREAD),
        "error": row["error"] is not None,
    }
    if "repeat" in row:
        entry["repeat"] = row["repeat"]
    if others:
        entry["others"] = [[other.get("answer"), bool(other.get("correct"))] if other else None for other in others]
    return entry

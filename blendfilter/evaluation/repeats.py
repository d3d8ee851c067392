"""Which of several answers to a question a row is, where a run answers every question more than once.

In a run without repeats neither its settings nor its rows say anything of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def repeats_in(settings: Mapping[str, Any]) -> int:
    """How many times each question is answered."""
    return int(settings.get("repeats", 1))


def repeat_of(row: Mapping[str, Any]) -> int:
    """Which of the answers to its question a row is; 1 where there is one."""
    return int(row.get("repeat", 1))


def numbered(row: Mapping[str, Any], repeat: int | None) -> dict[str, Any]:
    """The row with the number of its repeat behind its id, or without one.

    >>> numbered({"id": "q7", "answer": "yes"}, 2)
    {'id': 'q7', 'repeat': 2, 'answer': 'yes'}
    """
    rest = {name: value for name, value in row.items() if name not in ("id", "repeat")}
    return {"id": row["id"], **({} if repeat is None else {"repeat": repeat}), **rest}


def how_far(rows: Iterable[Mapping[str, Any]], asked: int, repeats: int = 1) -> str:
    """How many of `asked` questions `rows` answer; one that ended in an error is not answered.

    >>> how_far([{"error": None}, {"error": {"kind": "timeout"}}], 4)
    '1 of 4 questions are answered, 1 ended in an error'
    """
    errors = [row["error"] is not None for row in rows]
    times = f" ({repeats} times each)" if repeats > 1 else ""
    failed = f", {sum(errors)} ended in an error" if any(errors) else ""
    return f"{errors.count(False)} of {asked} questions are answered{times}{failed}"


def key_of(row: Mapping[str, Any]) -> str:
    """An answer's name: its question's id, and which repeat it is where there are several.

    >>> key_of({"id": "q7"}), key_of({"id": "q7", "repeat": 2})
    ('q7', 'q7#2')
    """
    return f"{row['id']}#{row['repeat']}" if "repeat" in row else str(row["id"])

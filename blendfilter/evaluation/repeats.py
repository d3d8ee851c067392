"""Which of several answers to a question a row is, where a run answers every question more than once.

In a run without repeats neither its settings nor its rows say anything of them.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def key_of(row: Mapping[str, Any]) -> str:
    """An answer's name: its question's id, and which repeat it is where there are several.

    >>> key_of({"id": "q7"}), key_of({"id": "q7", "repeat": 2})
    ('q7', 'q7#2')
    """
    return f"{row['id']}#{row['repeat']}" if "repeat" in row else str(row["id"])

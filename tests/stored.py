"""What the files of a run hold, as tests write them by hand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

ROW: dict[str, Any] = {
    "id": "one", "question": "Where?", "answer": "Ormskérry\n| — ✓", "golden_answers": ["Ormskerry"], "gold_titles": [],
    "em": 0.0, "correct": False, "queries": {"q": "Where?"}, "knowledge": ["p1"], "retrieval": {},
    "branches": {"q": {"retrieved": ["p1"], "kept": ["p1"], "ids_read": None}},
    "loss": "answered_wrong", "calls": [], "flags": {}, "error": None,
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "task": "qa", "metrics": ["em"], "data": {"source": "rows", "fingerprint": "0", "n": 2},
    "method": {"name": "direct", "arguments": {}, "program": "0"}, "lm": {"name": "m", "parameters": {}},
    "retrievers": [], "seed": 0,
}  # fmt: skip


def unchecked(journal: Path) -> str:
    """A journal's text as an older version wrote it, without a check on each line: a test may edit it."""
    return re.sub(r',"check":"[0-9a-f]{8}"\}$', "}", journal.read_text("utf-8"), flags=re.MULTILINE)

"""What the files of a run hold, as tests write them by hand."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from blendfilter.files import json_line

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


def edited(journal: Path, pattern: str, words: str, count: int = 0) -> None:
    """Replace what `pattern` finds in a journal's lines, whose checks are made anew."""
    text = re.sub(r',"check":"[0-9a-f]{8}"\}$', "", journal.read_text("utf-8"), flags=re.MULTILINE)
    bodies = (line.encode() for line in re.sub(pattern, words, text, count=count).rstrip("\n").split("\n"))
    journal.write_bytes(b"".join(b'%s,"check":"%08x"}\n' % (body, zlib.crc32(body)) for body in bodies))


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """`rows` as the lines of a file of predictions."""
    path.write_bytes(b"".join(map(json_line, rows)))

"""What the tests of bad input share: a small world to stand in, and what a refusal looks like."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from small_world import Outcome, tree

SECRET = "sk-proj-do-not-show-0123456789"
NOBODY = "http://127.0.0.1:9/v1"
"""An address where no server is (the discard port)."""
PASSAGES = [
    {"id": "a", "title": "Orm Pier", "text": "Orm Pier is a pier in Tavenby. Lise Harrow designed it in 1871."},
    {"id": "b", "title": "Lise Harrow", "text": "Lise Harrow was an engineer, born in Ormskerry."},
    {"id": "c", "title": "Tavenby", "text": "Tavenby is a harbour town with a fish market."},
    {"id": "d", "title": "Fell", "text": "Fell is a hill behind the harbour town."},
    {"id": "e", "title": "Tavenby Fair", "text": "The fair is held on the pier each year since 1902."},
    {"id": "f", "title": "Ormskerry", "text": "Ormskerry is an island where an engineer was born."},
]
ROWS = [
    {"id": "one", "question": "Where was the designer of Orm Pier born?", "answer": "Ormskerry"},
    {"id": "two", "question": "In which town does Orm Pier stand?", "answer": "Tavenby"},
    {"id": "three", "question": "When was Orm Pier designed?", "answer": "1871"},
]


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def world(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a corpus and questions, stood in; indexes are cached in a folder of its own inside it."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("BLENDFILTER_CACHE", str(folder / "cache"))
    lines(folder / "corpus.jsonl", PASSAGES)
    lines(folder / "questions.jsonl", ROWS)
    return folder


EVAL = ("eval", "hotpotqa", "--lm", "offline", "--run", "run", "--data", "questions.jsonl", "--corpus", "corpus.jsonl")


def evaluation(**other: object) -> list[object]:
    """`EVAL` with options changed (`lm="x"`), added, or left out (None); underscores stand for dashes."""
    words: dict[str, object] = dict(zip(EVAL[2::2], EVAL[3::2], strict=True))
    words |= {f"--{name.replace('_', '-')}": value for name, value in other.items()}
    return [
        "eval",
        other.pop("task", "hotpotqa"),
        *(w for o, v in words.items() if v is not None and o != "--task" for w in (o, v)),
    ]


def refused(outcome: Outcome, *expected: str, code: int = 2, notices: int = 0) -> None:
    """One line that says all of `said`, after so many notices; no traceback and no secret."""
    assert outcome.code == code, outcome
    result = [line for line in outcome.notices if not re.match(r"\d+/\d+ questions ", line)]  # a run's progress
    assert len(result) == notices + 1, outcome.err
    assert all(line.startswith("blendfilter: ") for line in result), outcome.err
    for words in expected:
        assert words in outcome.error, f"{words!r} is not in {outcome.error!r}"
    assert "Traceback" not in outcome.err + outcome.out
    assert SECRET not in outcome.err + outcome.out
    assert outcome.out == ""


def untouched(here: Path, before: dict[str, bytes], *, indexed: bool = False) -> None:
    """Nothing was written; `indexed`: but for the cached index of the corpus, which is whole."""
    after = tree(here)
    if indexed:
        made = {name for name in after if name.startswith("cache")}
        assert not [name for name in made if "building" in name or ".tmp" in name]
        assert any(name.endswith("manifest.json") for name in made)
        after = {name: data for name, data in after.items() if name not in made}
    assert after == before

"""The invented Ondrell Isles that ship with the package: passages and questions agree, and nothing real slips in."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import blendfilter

SAMPLE = Path(blendfilter.__file__).parent / "sample"
METADATA_KEYS = {"type", "level", "supporting_facts", "gold_titles", "context", "split", "source"}
KINDS = {"questions": "q", "claims": "c", "dialogues": "d", "long": "l", "health": "h", "science": "s"}


def rows(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (SAMPLE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


CORPUS = rows("corpus")
ASKED = {name: rows(name) for name in KINDS}
TEXTS = {row["title"]: row["text"] for row in CORPUS}


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])\s+", text)


def test_every_row_has_the_fields_of_the_schema_and_evidence_in_the_corpus() -> None:
    for name, kind in KINDS.items():
        assert [row["id"] for row in ASKED[name]] == [f"sw-{kind}-{at:03d}" for at in range(len(ASKED[name]))]
        for row in ASKED[name]:
            meta = row["metadata"]
            assert set(row) == {"id", "question", "golden_answers", "metadata"}
            assert set(meta) - {"choices", "answer_text"} == METADATA_KEYS
            assert (meta["context"], meta["split"], meta["source"]) == ([], "sample", "written for this package")
            assert len(set(row["golden_answers"])) == len(row["golden_answers"]) > 0
            assert meta["gold_titles"] == list(dict.fromkeys(title for title, _ in meta["supporting_facts"]))
            for title, at in meta["supporting_facts"]:
                assert 0 <= at < len(sentences(TEXTS[title])), title
    wordings = [row["question"].casefold() for name in KINDS for row in ASKED[name]]
    assert len(set(wordings)) == len(wordings)
    assert set(wordings).isdisjoint(row["question"].casefold() for row in rows("opposites"))
    assert {row["title"] for row in rows("opposites")} <= set(TEXTS)

"""Questions without answers, of text files and of rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blendfilter.errors import BadArgument, BadData, EmptyData, MissingFile
from blendfilter.tasks.loading import read_questions

WHO, WHEN = "Who kept Skerry Light?", "When did Orm Pier open?"


def written(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def test_a_question_a_line(tmp_path: Path) -> None:
    assert read_questions(written(tmp_path / "asked.txt", f"  {WHO} ", "", WHEN)) == [WHO, WHEN]


@pytest.mark.parametrize(
    "row", [{"question": WHO}, {"id": "1", "question": f" {WHO}", "answer": "Ada"}, {"query": WHO}]
)
def test_rows_need_nothing_but_the_question(tmp_path: Path, row: dict[str, str]) -> None:
    assert read_questions(written(tmp_path / "asked.jsonl", row, json.dumps(WHEN))) == [WHO, WHEN]


def test_a_json_list_and_a_limit(tmp_path: Path) -> None:
    path = written(tmp_path / "asked.json", json.dumps([{"question": WHO}, WHEN]))
    assert read_questions(path) == [WHO, WHEN]
    assert read_questions(path, limit=1) == [WHO]


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([{"question": WHO}, {"text": "no"}], r"line 2: field 'question' is missing \(.*text"),
        ([{"question": " "}], "line 1: the question is ' '"),
        ([{"question": ["a"]}], r"line 1: the question is \['a'\]"),
        ([7], "line 1"),
    ],
)
def test_what_is_no_question_is_named(tmp_path: Path, rows: list[Any], told: str) -> None:
    with pytest.raises(BadData, match=told):
        read_questions(written(tmp_path / "asked.jsonl", *map(json.dumps, rows)))


def test_nothing_to_ask(tmp_path: Path) -> None:
    with pytest.raises(EmptyData, match="holds no question"):
        read_questions(written(tmp_path / "asked.txt", ""))
    with pytest.raises(MissingFile):
        read_questions(tmp_path / "gone.jsonl")
    with pytest.raises(BadArgument, match="limit is 0"):
        read_questions(tmp_path / "gone.jsonl", limit=0)

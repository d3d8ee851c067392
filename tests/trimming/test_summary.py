"""Separations as rows: which question separates which passages, by which model and when."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from blendfilter.trimming.summary import WitnessRow, export, rows
from blendfilter.trimming.witnesses import JudgedBy, Witnesses, WitnessWriter, question_id

BY = JudgedBy("9f3a", "word", ("phi1", "phi2"), "some-model", "")
OTHER = JudgedBy("1c77", "components", ("phi1",), "another-model", "shipped")
STRANGE = 'a,"b"\r\nß'


@pytest.fixture
def witnesses(tmp_path: Path) -> Witnesses:
    with WitnessWriter(tmp_path / "witnesses.jsonl") as writer:
        for question, won, lost, by in (
            ("Who runs the mill?", STRANGE, "p2", BY),
            ("Who closed the mill?", "p2", STRANGE, OTHER),
            ("When?", "p2", "p3", BY),
        ):
            writer.judge(question, {won: True, lost: False, "undecided": None}, by)
    return Witnesses.read(tmp_path / "witnesses.jsonl")


def test_a_row_for_each_witness_of_each_separation(witnesses: Witnesses) -> None:
    found = list(rows(witnesses, 2, one_way=False))
    assert {(row.question, row.accepted, row.rejected, row.witnesses, row.reached) for row in found} == {
        ("Who runs the mill?", STRANGE, "p2", 2, True),
        ("Who closed the mill?", "p2", STRANGE, 2, True),
        ("When?", "p2", "p3", 1, False),
    }
    assert len(found) == 3
    by_question = {row.question: row for row in found}
    closed = by_question["Who closed the mill?"]
    assert (closed.judge, closed.mode, closed.rules) == ("1c77", "components", ("phi1",))
    assert (closed.model, closed.program) == ("another-model", "shipped")
    assert closed.question_id == question_id("Who closed the mill?")
    assert closed.at == witnesses.judged[closed.question_id].at
    assert all(row.reached for row in rows(witnesses, 1))


def test_jsonl_and_csv_say_the_same(witnesses: Witnesses, tmp_path: Path) -> None:
    found = list(rows(witnesses, 2))
    assert export(witnesses, tmp_path / "out.jsonl", threshold=2) == len(found)
    export(witnesses, str(tmp_path / "out.CSV"), threshold=2)
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    read = [json.loads(line) for line in lines]
    assert [WitnessRow(**{**row, "rules": tuple(row["rules"])}) for row in read] == found
    with (tmp_path / "out.CSV").open(encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(file))
    assert [cell["accepted"] for cell in cells] == [row.accepted for row in found]
    assert [cell["question"] for cell in cells] == [row.question for row in found]
    assert {cell["rules"] for cell in cells} == {"phi1 phi2", "phi1"}
    assert list(cells[0]) == list(WitnessRow._fields)


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    """Ids and questions are others' data, and a spreadsheet runs what begins so; JSON Lines has them as they are."""
    question = '=HYPERLINK("http://x.example","open")'
    with WitnessWriter(tmp_path / "witnesses.jsonl") as writer:
        writer.judge(question, {"+1": True, **dict.fromkeys(("-1", "@a", "\t=1", "a=b"), False)}, BY)
    witnesses = Witnesses.read(tmp_path / "witnesses.jsonl")
    for name in ("out.csv", "out.jsonl"):
        export(witnesses, tmp_path / name, threshold=1)
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as file:
        cells = list(csv.DictReader(file))
    assert {cell["accepted"] for cell in cells} == {"'+1"}
    assert {cell["rejected"] for cell in cells} == {"'-1", "'@a", "'\t=1", "a=b"}
    assert {cell["question"] for cell in cells} == {f"'{question}"}
    assert {json.loads(line)["question"] for line in (tmp_path / "out.jsonl").open()} == {question}


def test_half_a_character_is_no_trouble_on_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with WitnessWriter(tmp_path / "witnesses.jsonl") as writer:
        writer.judge("Who?", {"a\ud800": True, "é": False}, BY)
    witnesses = Witnesses.read(tmp_path / "witnesses.jsonl")
    export(witnesses, "-", threshold=1)
    export(witnesses, tmp_path / "out.jsonl", threshold=1)
    assert capsys.readouterr().out.encode() == (tmp_path / "out.jsonl").read_bytes()
    assert json.loads((tmp_path / "out.jsonl").read_text())["accepted"] == "a\ud800"

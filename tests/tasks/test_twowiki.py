"""2WikiMultihopQA: its own fields, aliases from three places, real layouts against each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blendfilter.errors import BadData
from blendfilter.tasks import load

ROW = {
    "_id": "8f1c",
    "type": "compositional",
    "question": "Where was the director born?",
    "answer": "Bremsund",
    "answer_id": "Q990017",
    "entity_ids": "Q1_Q2",
    "supporting_facts": [["The Salt Road", 0], ["Ane Lindqvist", 0]],
    "evidences": [["The Salt Road", "director", "Ane Lindqvist"]],
    "context": [["The Salt Road", ["A film.", "It opened in 1961."]]],
}


def test_sentences_join_with_a_space_and_paths_stay_in_the_metadata() -> None:
    (question,) = load("twowiki", [ROW])
    assert question.context[0].text == "A film. It opened in 1961."
    assert question.metadata["evidences"] == [["The Salt Road", "director", "Ane Lindqvist"]]
    assert question.golden_answers == ("Bremsund",)


def test_aliases_in_the_row_count_as_answers() -> None:
    (question,) = load("twowiki", [{**ROW, "aliases": ["Bremsund Town", "Bremsund"]}])
    assert question.golden_answers == ("Bremsund", "Bremsund Town")
    assert load("twowiki", [ROW]).task.score("bremsund town", question) == {"em": 1.0, "f1": 1.0}


def test_the_alias_file_beside_the_data_is_used(tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text(json.dumps([ROW, {**ROW, "_id": "2", "answer_id": None}]))
    entity = {"Q_id": "Q990017", "aliases": ["Port of Bremsund"], "demonyms": ["Bremsunder"]}
    (tmp_path / "id_aliases.json").write_text(json.dumps(entity) + "\n" + json.dumps({"Q_id": "Q1", "aliases": []}))
    first, second = load("twowiki", tmp_path / "dev.json")
    assert first.golden_answers == ("Bremsund", "Port of Bremsund", "Bremsunder")
    assert second.golden_answers == ("Bremsund",)


def test_a_broken_alias_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "dev.json").write_text(json.dumps([ROW]))
    (tmp_path / "id_aliases.json").write_text('{"aliases": []}\n')
    with pytest.raises(BadData, match=r"id_aliases.json, line 1: field 'Q_id' is missing"):
        load("twowiki", tmp_path / "dev.json")


def test_real_layouts_agree(shared_data: Path) -> None:
    normal = load("twowiki", shared_data / "2wikimultihopqa" / "dev.jsonl.gz")
    official = load("twowiki", shared_data / "raw" / "2wikimultihopqa" / "official_layout_sample.json")
    assert (len(normal), len(official)) == (280, 60)
    known = {question.id: question for question in normal}
    assert all(known[question.id] == question for question in official)
    assert all(known[one.id].metadata["evidences"] == one.metadata["evidences"] for one in official)

"""KILT's layout: outputs are aliases, each output's provenance a way to the answer of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import BadData
from blendfilter.metrics import Retrieval, retrieval
from blendfilter.tasks import TASKS, load


def row(**changed: Any) -> dict[str, Any]:
    light = {"title": "Skerry Light", "wikipedia_id": "417", "start_paragraph_id": 2, "start_character": 0}
    return {
        "id": "6d1c",
        "input": "who keeps the light on skerry rock ",
        "output": [
            {"answer": "Ada Brennock", "provenance": [light, {**light, "start_paragraph_id": 3}]},
            {"answer": "Brennock"},
            {"provenance": [{"title": "Ada Brennock", "wikipedia_id": "93"}, light]},
            {"answer": "", "provenance": [{"title": "Skerry Light"}]},
        ],
        "meta": {"left_context": ""},
        **changed,
    }


@pytest.mark.parametrize("task", ["nq", "triviaqa", "hotpotqa", "eli5"])
def test_answers_are_aliases_and_provenances_ways_to_them(task: str) -> None:
    (question,) = load(task, [row()])
    assert (question.id, question.question) == ("6d1c", "who keeps the light on skerry rock")
    assert question.golden_answers == ("Ada Brennock", "Brennock")
    assert question.evidence == (("Skerry Light",), ("Ada Brennock", "Skerry Light"))
    assert question.gold_titles == ("Skerry Light", "Ada Brennock")
    assert question.metadata["meta"] == {"left_context": ""}
    assert [place["title"] for place in question.metadata["provenance"]][:2] == ["Skerry Light", "Skerry Light"]
    assert question.metadata["provenance"][0]["start_paragraph_id"] == 2


def test_one_way_found_is_all_of_it_found() -> None:
    (question,) = load("nq", [row()])
    assert retrieval(["Skerry Light"], question) == Retrieval(1.0, 1.0, 1.0)
    assert retrieval(["Ada Brennock"], question) == Retrieval(0.5, 1.0, 0.0)


def test_the_hub_fills_what_is_missing_with_none() -> None:
    filled = [
        {"answer": "Tolm", "meta": {"score": 0}, "provenance": [{"title": None}]},
        {"answer": None, "provenance": None},
    ]
    (question,) = load("nq", [row(output=filled)])
    assert (question.golden_answers, question.evidence) == (("Tolm",), ())


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"output": []}, "item 1: has no answer"),
        ({"output": [{"provenance": [{"title": "Quay"}]}]}, "item 1: has no answer"),
        ({"output": "Tolm"}, r"item 1: field 'output' is wrong"),
        ({"output": [{"answer": ["Tolm"]}]}, r"item 1: field 'output\.0\.answer' is wrong"),
        ({"input": ""}, r"item 1: field 'input' is empty: .*get_triviaqa_input\.py"),
        ({"input": None}, r"item 1: field 'input' is empty"),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadData, match=problem):
        load("triviaqa", [row(**changed)])


def test_a_test_set_has_no_answers(tmp_path: Path) -> None:
    path = tmp_path / "nq-test_without_answers-kilt.jsonl"
    path.write_text(json.dumps(row()) + "\n" + json.dumps({"id": "2", "input": "who"}))
    with pytest.raises(BadData, match=r"kilt\.jsonl, line 2: field 'output' is missing \(it has: id, input\)"):
        load("nq", path)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["answer", "provenance", "title", "text", "label"]), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = ("id", "input", "output", "question", "answer", "answers", "claim", "label", "evidence", "title", "metadata",
          "golden_answers", "Question", "Answer", "dialog", "positive_ctxs", "docs")  # fmt: skip


@pytest.mark.parametrize("task", ["nq", "triviaqa", "fever", "eli5", "wow"])
@given(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=6))
def test_any_row_is_a_question_or_one_line_that_names_it(task: str, row: dict[str, Any]) -> None:
    said, asked = "the given rows, item 1", ["?"]
    try:
        asked = [part for one in load(TASKS[task], [row]) for part in (one.question, *one.golden_answers)]
    except BadData as error:
        said = str(error)
    assert said.startswith("the given rows, item 1")
    assert "\n" not in said
    assert all(part.strip() for part in asked)

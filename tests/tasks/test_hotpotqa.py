"""HotPotQA in every layout: made-up rows by hand, real files against each other."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from blendfilter.errors import BadData
from blendfilter.files import list_values
from blendfilter.records import Passage, Question
from blendfilter.tasks import load

FACTS = [["Mira Tolland", 0], ["Skerry Light", 1], ["Skerry Light", 0]]
CONTEXT = [
    ["Mira Tolland", ["Mira Tolland paints.", " She lives in Bremsund."]],
    ["Skerry Light", [" A light on Ulla.", " Karl Ostrander drew it."]],
]
BASE = {"question": " Who designed the light? ", "answer": "Karl Ostrander", "type": "bridge", "level": "hard"}
OFFICIAL = {"_id": "5a7f", **BASE, "supporting_facts": FACTS, "context": CONTEXT}
HUB = {
    "id": "5a7f",
    **BASE,
    "supporting_facts": {"title": [title for title, _ in FACTS], "sent_id": [number for _, number in FACTS]},
    "context": {"title": [title for title, _ in CONTEXT], "sentences": [texts for _, texts in CONTEXT]},
}
NORMALISED = {
    "id": "5a7f",
    "question": "Who designed the light?",
    "golden_answers": ["Karl Ostrander"],
    "metadata": {
        "type": "bridge",
        "level": "hard",
        "supporting_facts": FACTS,
        "gold_titles": ["Mira Tolland", "Skerry Light"],
        "context": [{"title": title, "sentences": texts} for title, texts in CONTEXT],
    },
}
EXPECTED = Question(
    id="5a7f",
    question="Who designed the light?",
    golden_answers=("Karl Ostrander",),
    gold_titles=("Mira Tolland", "Skerry Light"),
    evidence=(("Mira Tolland", "Skerry Light"),),
    supporting_facts=(("Mira Tolland", 0), ("Skerry Light", 1), ("Skerry Light", 0)),
    context=(
        Passage("5a7f:0", "Mira Tolland", "Mira Tolland paints. She lives in Bremsund."),
        Passage("5a7f:1", "Skerry Light", "A light on Ulla. Karl Ostrander drew it."),
    ),
    type="bridge",
)


@pytest.mark.parametrize("row", [OFFICIAL, HUB, NORMALISED], ids=["official", "hub", "normalised"])
def test_every_layout_gives_the_same_question(row: dict[str, object], tmp_path: Path) -> None:
    as_list, as_lines = tmp_path / "list.json", tmp_path / "lines.jsonl"
    as_list.write_text(json.dumps([row], indent=1))
    as_lines.write_text(json.dumps(row) + "\n")
    for data in (as_list, str(as_lines), [row]):
        (question,) = load("hotpotqa", data)
        assert question == EXPECTED
        assert question.metadata["level"] == "hard"
        assert question.context[1].metadata["sentences"] == (" A light on Ulla.", " Karl Ostrander drew it.")


def test_ircot_marks_gold_on_the_paragraphs() -> None:
    row = {
        "question_id": "i1",
        "question_text": "Who designed the light?",
        "answers_objects": [{"number": "", "spans": ["Karl Ostrander", "Ostrander"]}],
        "contexts": [
            {"id": "0", "title": "Quay", "paragraph_text": "A quay.", "is_supporting": False},
            {"id": "1", "title": "Skerry Light", "paragraph_text": "A light.", "is_supporting": True},
        ],
    }
    (question,) = load("hotpotqa", [row])
    assert question.golden_answers == ("Karl Ostrander", "Ostrander")
    assert question.gold_titles == ("Skerry Light",)
    assert question.context[1] == Passage("i1:1", "Skerry Light", "A light.")


def test_rows_without_ids_are_named_by_their_position() -> None:
    row = {key: value for key, value in OFFICIAL.items() if key != "_id"}
    assert [question.id for question in load("hotpotqa", [row, row])] == ["row-0", "row-1"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": None}, r"item 1: field 'answer' is wrong: .*string.*None"),
        ({"answer": " "}, "item 1: has no answer"),
        ({"supporting_facts": [["Quay", "first"]]}, "field 'supporting_facts.0.1' is wrong.*'first'"),
        ({"context": {"title": ["Quay"]}}, "field 'context' is wrong: .*columns 'title' and 'sentences'"),
        ({"context": {"title": ["Quay"], "sentences": []}}, "differ in length"),
        ({"context": [["Quay", "not a list"]]}, r"field 'context.0.1' is wrong.*list"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadData, match=message):
        load("hotpotqa", [{**OFFICIAL, **change}])


def test_a_test_file_without_answers_is_refused() -> None:
    with pytest.raises(BadData, match=r"item 1: field 'answer' is missing .it has: _id, question"):
        load("hotpotqa", [{"_id": "1", "question": "Who?", "context": []}])


def test_the_real_development_set(shared_data: Path) -> None:
    """1,125 questions in well under two seconds, gold always among their own paragraphs."""
    start = time.thread_time()
    questions = load("hotpotqa", shared_data / "hotpotqa" / "dev.jsonl.gz")
    assert time.thread_time() - start < 2
    assert len(questions) == 1125
    assert questions.source == "dev.jsonl.gz"
    assert sum(len(question.context) for question in questions) == 11171
    assert sum(len(question.supporting_facts) for question in questions) == 1917
    assert all(set(question.gold_titles) <= {one.title for one in question.context} for question in questions)


def test_real_layouts_agree_where_their_questions_overlap(shared_data: Path) -> None:
    known = {one.question: one for one in load("hotpotqa", shared_data / "hotpotqa" / "dev.jsonl.gz")}
    hub = load("hotpotqa", shared_data / "raw" / "hotpotqa" / "hf_format_dev_first100.json")
    train = load("hotpotqa", shared_data / "raw" / "hotpotqa" / "hipporag_hotpotqa_train.json")
    sample = load("hotpotqa", shared_data / "hotpotqa" / "train_sample.jsonl.gz")
    assert list(train) == list(sample)
    both = [(one, known[one.question]) for one in hub if one.question in known]
    assert len(both) == 100
    for raw, normal in both:
        assert (raw.golden_answers, raw.gold_titles) == (normal.golden_answers, normal.gold_titles)
        if normal.supporting_facts:
            assert raw.supporting_facts == normal.supporting_facts
            assert [one.line for one in raw.context] == [one.line for one in normal.context]


def test_real_official_rows_agree_with_the_hubs(shared_data: Path) -> None:
    """The official development file is only there cut off: what comes before the cut is read item by item."""
    raw = shared_data / "raw" / "hotpotqa"
    hub = {one.question: one for one in load("hotpotqa", raw / "hf_format_dev_first100.json")}
    with (raw / "truncated_official_dev.json").open("rb") as stream:
        rows = list(islice(list_values(stream, "cut"), 53))
    both = [(one, hub[one.question]) for one in load("hotpotqa", rows) if one.question in hub]
    assert len(both) > 40
    for official, other in both:
        assert replace(official, id=other.id, context=()) == replace(other, context=())
        assert [one.line for one in official.context] == [one.line for one in other.context]


def test_real_ircot_rows_agree_with_the_official_ones(shared_data: Path) -> None:
    known = {one.id: one for one in load("hotpotqa", shared_data / "hotpotqa" / "dev.jsonl.gz")}
    both = [
        (one, known[one.id])
        for one in load("hotpotqa", shared_data / "raw" / "ircot" / "hotpotqa_dev_subsampled.jsonl.gz")
        if one.id in known
    ]
    assert len(both) > 300
    for raw, normal in both:
        assert raw.golden_answers == normal.golden_answers
        assert set(raw.gold_titles) == set(normal.gold_titles)

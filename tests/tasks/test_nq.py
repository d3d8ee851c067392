"""Natural Questions: the official rows, DPR's, KILT's and the normalised ones give the same question."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blendfilter.errors import BadData
from blendfilter.retrieval.corpus import pooled
from blendfilter.tasks import load

ASKED, ANSWERS = "who keeps the light on skerry rock", ["Ada Brennock", "Brennock"]


def dpr(**changed: Any) -> dict[str, Any]:
    return {
        "dataset": "nq_dev_psgs_w100",
        "question": ASKED,
        "answers": ANSWERS,
        "positive_ctxs": [
            {
                "title": "Skerry Light",
                "text": "Ada Brennock keeps it.",
                "score": 1000,
                "title_score": 1,
                "passage_id": "417",
            },
            {"title": "Ada Brennock", "text": "A keeper.", "score": 12.5, "title_score": 0, "passage_id": 93},
            {"title": "Skerry Light", "text": "More of it.", "score": 3, "title_score": 0, "passage_id": "418"},
        ],
        "negative_ctxs": [{"title": "Quay", "text": "A quay.", "score": 0, "passage_id": "7"}],
        "hard_negative_ctxs": [{"title": "Skerry", "text": "A rock.", "score": 9, "passage_id": "8"}],
        **changed,
    }


def test_every_layout_asks_the_same() -> None:
    rows: list[dict[str, Any]] = [
        {"question": ASKED, "answer": ANSWERS},
        dpr(),
        {"id": "a", "input": ASKED, "output": [{"answer": each} for each in ANSWERS]},
        {"id": "b", "question": ASKED, "golden_answers": ANSWERS},
        {"id": "c", "question": ASKED, "golden_answers": ANSWERS, "metadata": {"gold_titles": ["Skerry Light"]}},
    ]
    questions = load("nq", rows)
    assert {one.question for one in questions} == {ASKED}
    assert {one.golden_answers for one in questions} == {tuple(ANSWERS)}
    assert [one.id for one in questions] == ["row-0", "row-1", "a", "b", "c"]


def test_dprs_positive_passages_are_gold_each_by_itself() -> None:
    (question,) = load("nq", [dpr()])
    assert question.gold_titles == ("Skerry Light", "Ada Brennock")
    assert question.evidence == (("Skerry Light",), ("Ada Brennock",))
    assert [(one.id, one.title) for one in question.context] == [
        ("417", "Skerry Light"), ("93", "Ada Brennock"), ("418", "Skerry Light"), ("8", "Skerry"), ("7", "Quay"),
    ]  # fmt: skip
    assert question.context[0].text == "Ada Brennock keeps it."
    assert question.metadata["dataset"] == "nq_dev_psgs_w100"


def test_what_dprs_retriever_found_is_context_and_no_gold() -> None:
    found = [{"id": "417", "title": "Skerry Light", "text": "x", "score": "81.2", "has_answer": True}]
    (question,) = load("nq", [{"question": ASKED, "answers": ANSWERS, "ctxs": found}])
    assert (question.gold_titles, question.evidence) == ((), ())
    assert question.context[0].metadata["has_answer"] is True


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"question": ASKED}, "field 'answer'.* is missing"),
        ({"question": ASKED, "answer": []}, "has no answer"),
        ({"question": ASKED, "answer": [""]}, "has no answer"),
        ({"answer": ANSWERS}, "field 'question' is missing"),
        ({"question": " ", "answer": ANSWERS}, "question 'row-0' is empty"),
        (dpr(answers=[]), "has no answer"),
        (dpr(positive_ctxs=[{"title": "Skerry"}]), r"field 'positive_ctxs\.0\.text' is missing"),
    ],
)
def test_what_is_wrong_is_named(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadData, match=f"the given rows, item 1: {problem}"):
        load("nq", [row])


@pytest.mark.parametrize(
    ("name", "many", "gold"),
    [
        ("nq/dev_gold.jsonl.gz", 2455, 2455),
        ("nq/dev_qa_only.jsonl.gz", 3410, 0),
        ("nq/test_retrieved.jsonl.gz", 954, 0),
        ("raw/nq_open/NQ-open.efficientqa.dev.1.1.jsonl", 1800, 0),
        ("raw/flashrag/nq_test.jsonl", 17, 0),
    ],
)
def test_real_rows(shared_data: Path, name: str, many: int, gold: int) -> None:
    questions = load("nq", shared_data / name)
    assert len(questions) == many
    assert sum(bool(one.gold_titles) for one in questions) == gold
    assert all(one.golden_answers and "\n" not in one.question for one in questions)
    if "retrieved" in name:
        assert sum(bool(one.context) for one in questions) == 919
        assert len(list(pooled(questions))) > 1000

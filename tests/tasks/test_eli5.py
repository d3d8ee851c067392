"""ELI5: the official rows, ALCE's, KILT's and the normalised ones; answers in the order of their votes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blendfilter.errors import BadData
from blendfilter.tasks import load

SHORT, LIKED = "To stand out.", "Each one flashes in its own rhythm.\n\nBy that a ship knows which it is."


def official(**changed: Any) -> dict[str, Any]:
    return {
        "q_id": "4c71ab", "title": "Why do lighthouses flash?", "selftext": "They could just stay on.",
        "subreddit": "explainlikeimfive",
        "answers": {"a_id": ["d1", "d2", "d3"], "text": [SHORT, LIKED, " "], "score": [3, 12, 5]}, **changed,
    }  # fmt: skip


def test_the_best_liked_answer_is_the_first() -> None:
    (question,) = load("eli5", [official()])
    assert (question.id, question.question) == ("4c71ab", "Why do lighthouses flash?")
    assert question.golden_answers == (LIKED, SHORT)
    assert question.metadata == {"selftext": "They could just stay on.", "subreddit": "explainlikeimfive"}


def test_without_votes_the_order_stays() -> None:
    for votes in ({}, {"score": [2, 2]}):
        (question,) = load("eli5", [official(answers={"text": [SHORT, LIKED], **votes})])
        assert question.golden_answers == (SHORT, LIKED)


def test_alces_rows_bring_passages() -> None:
    row = {"question": "Why do lighthouses flash?", "question_ctx": "", "answer": LIKED, "claims": ["a", "b"],
           "docs": [{"id": "17", "title": "Lighthouse", "text": "It flashes.", "url": "x"},
                    {"title": "", "text": "More."}]}  # fmt: skip
    (question,) = load("eli5", [row])
    assert question.golden_answers == (LIKED,)
    assert [(one.id, one.title, one.text) for one in question.context] == [
        ("17", "Lighthouse", "It flashes."), ("row-0:1", "", "More."),
    ]  # fmt: skip
    assert question.metadata["claims"] == ["a", "b"]
    assert question.gold_titles == ()


def test_the_normalised_layout_and_kilts() -> None:
    kilt = {"id": "k", "input": "Why?", "output": [{"answer": SHORT, "meta": {"score": 3}}, {"answer": LIKED},
            {"provenance": [{"title": "Lighthouse"}]}]}  # fmt: skip
    own = {"id": "n", "question": "Why so?", "golden_answers": [LIKED], "metadata": {"claims": ["a"]}}
    one, other = load("eli5", [kilt, own])
    assert (one.golden_answers, one.gold_titles) == ((SHORT, LIKED), ("Lighthouse",))
    assert (other.golden_answers, other.metadata["claims"]) == ((LIKED,), ["a"])


@pytest.mark.parametrize("task", ["eli5", "wow", "nq", "qa"])
@pytest.mark.parametrize("field", ["answers", "answer", "golden_answers"])
def test_rows_of_ones_own(task: str, field: str) -> None:
    """As `qa` reads them: answers under any of three names, paragraphs beside them."""
    free = {"question": "Why so?", field: [SHORT, LIKED], "context": [{"title": "Lamp", "text": "It turns."}]}
    meta = {"question": "Why not?", field: [SHORT, LIKED], "metadata": {"context": [{"sentences": ["It turns."]}]}}
    for row in [free] if task in ("nq", "qa") else [free, meta]:
        (question,) = load(task, [row])
        assert question.golden_answers == (SHORT, LIKED)
        assert [one.text for one in question.context] == ["It turns."]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (official(answers={"text": [], "score": []}), "has no answer"),
        (official(answers={"text": [SHORT], "score": [1, 2]}), "field 'answers' is wrong: 1 texts and 2 scores"),
        (official(answers={"score": [1]}), r"field 'answers\.text' is missing"),
        (official(title=""), "question '4c71ab' is empty"),
        ({"question": "Why?"}, "field 'answer' is missing"),
        ({"question": "Why?", "answer": " "}, "has no answer"),
    ],
)
def test_what_is_wrong_is_named(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadData, match=f"the given rows, item 1: {problem}"):
        load("eli5", [row])


def test_real_rows(shared_data: Path) -> None:
    questions = load("eli5", shared_data / "eli5" / "alce_eval.jsonl.gz")
    assert len(questions) == 1_000
    assert all(len(one.metadata["claims"]) == 3 for one in questions)

"""ELI5: the official rows, ALCE's, KILT's and the normalised ones; answers in the order of their votes."""

from __future__ import annotations

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
    assert question.metadata["selftext"] == "They could just stay on."


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


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (official(answers={"text": [], "score": []}), "has no answer"),
        (official(answers={"text": [SHORT], "score": [1, 2]}), "field 'answers' is wrong: 1 texts and 2 scores"),
        (official(answers={"score": [1]}), r"field 'answers\.text' is missing"),
    ],
)
def test_what_is_wrong_is_named(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadData, match=f"the given rows, item 1: {problem}"):
        load("eli5", [row])

"""ARC: options and letters in every layout, how they are shown, and how an answer is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blendfilter.errors import BadData
from blendfilter.tasks import load
from blendfilter.text import LETTERS, choices

STEM = "Which of these floats on the sea?"
TEXTS = ("slate", "ice", "lead")


def official(labels: str = "ABC", key: Any = "B", **changed: Any) -> dict[str, Any]:
    options = [{"text": text, "label": label} for text, label in zip(TEXTS, labels, strict=False)]
    return {"id": "Isle_417", "question": {"stem": STEM, "choices": options}, "answerKey": key, **changed}


def of_the_hub(labels: str = "ABC", key: str = "B") -> dict[str, Any]:
    return {"id": "Isle_417", "question": STEM, "choices": {"text": list(TEXTS), "label": list(labels)},
            "answerKey": key}  # fmt: skip


def normal(labels: str = "ABC", key: str = "B") -> dict[str, Any]:
    listed = [{"label": label, "text": text} for text, label in zip(TEXTS, labels, strict=False)]
    return {"id": "Isle_417", "question": STEM, "golden_answers": [key],
            "metadata": {"choices": listed, "answer_text": "ice"}}  # fmt: skip


SHOWN = f"{STEM}\n(A) slate\n(B) ice\n(C) lead"


def test_the_text_of_the_option_may_stand_beside_its_label() -> None:
    for row in (official(answer="ice"), {**normal(), "golden_answers": ["B", "ice"]}, official("123", 2.0, answer="2")):
        assert load("arc", [row])[0].golden_answers == ("B", "ice")


@pytest.mark.parametrize("layout", [official, of_the_hub, normal])
@pytest.mark.parametrize(("labels", "key"), [("ABC", "B"), ("123", "2"), ("XYZ", "Y")])
def test_options_stand_behind_the_question_lettered_from_a(layout: Any, labels: str, key: str) -> None:
    (question,) = load("arc", [layout(labels, key)])
    assert (question.id, question.question) == ("Isle_417", SHOWN)
    assert question.golden_answers == ("B", "ice")
    assert question.metadata["choices"] == {"A": "slate", "B": "ice", "C": "lead"}


@pytest.mark.parametrize(("name", "given"), [("golden_answers", [1]), ("answer", 1), ("golden_answers", ["B"])])
def test_options_without_labels_are_counted_from_0(name: str, given: Any) -> None:
    (question,) = load("arc", [{"question": STEM, "choices": ["10", "20"], name: given}])
    assert question.question == f"{STEM}\n(A) 10\n(B) 20"
    assert question.golden_answers == ("B", "20")


@pytest.mark.parametrize("text", [SHOWN, SHOWN.replace("\n", " ")])
def test_a_question_that_holds_its_options_already(text: str) -> None:
    for row in ({"question": text, "answer": "B"}, {"question": text, "golden_answers": ["B"], "metadata": {}}):
        (question,) = load("arc", [row])
        assert (question.question, question.golden_answers) == (SHOWN, ("B", "ice"))


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("B", 1.0), ("(B) ice", 1.0), ("the ice.", 1.0), ("A", 0.0), ("ice floats", 0.0), ("", 0.0), ("2", 0.0),
    ],
)  # fmt: skip
def test_accuracy_reads_the_letter_or_the_options_own_text(reply: str, right: float) -> None:
    questions = load("arc", [official("123", "2")])
    assert questions.task.score(reply, questions[0])["accuracy"] == right


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (official(key="D"), r"the label of one option \(A, B, C\), found 'D'"),
        (official("AAB"), "the label of one option"),
        (official(answer="C"), "the label of one option .*found 'B', 'C'"),
        (official(answer="lead"), "the label of one option .*found 'B', 'lead'"),
        ({"id": 1, "question": STEM, "answer": "B"}, "has 2 to 5 options .* task 'qa'"),
        (of_the_hub("AB"), "2 to 5 options in 'choices', each with a label"),
        ({**of_the_hub(), "choices": "ABC"}, "2 to 5 options in 'choices'"),
        ({"question": STEM, "choices": ["10", "20"], "golden_answers": [2]}, r"one option \(0, 1\), found '2'"),
        ({"id": 1, "question": {"stem": STEM, "choices": []}}, "field 'answer' is missing"),
    ],
)
def test_what_is_wrong_is_named(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadData, match=f"the given rows, item 1: .*{problem}"):
        load("arc", [row])


def test_the_real_file(shared_data: Path) -> None:
    questions = load("arc", shared_data / "arc_challenge" / "test.jsonl.gz")
    assert len(questions) == 1_172
    by_number = [one for one in questions if len(one.metadata["choices"]) == 5]
    assert len(by_number) == 3
    for one in questions:
        assert set(one.golden_answers[:1]) <= set(LETTERS)
        assert one.metadata["choices"][one.golden_answers[0]] == one.golden_answers[1]
        assert choices(one.question).options == tuple(one.metadata["choices"].items())
        assert questions.task.score(one.golden_answers[0], one) == {"accuracy": 1.0, "inclusion": 1.0}
        assert questions.task.score(one.golden_answers[1], one)["accuracy"] == 1.0

"""ARC: options and letters in every layout, how they are shown, and how an answer is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import BadData
from blendfilter.tasks import load
from blendfilter.text import LETTERS, choices

STEM = "Which of these floats on the sea?"
TEXTS = ("slate", "ice", "lead")


def official(labels: str = "ABC", key: str = "B", **changed: Any) -> dict[str, Any]:
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


@pytest.mark.parametrize("layout", [official, of_the_hub, normal])
@pytest.mark.parametrize(("labels", "key"), [("ABC", "B"), ("123", "2"), ("XYZ", "Y")])
def test_options_stand_behind_the_question_lettered_from_a(layout: Any, labels: str, key: str) -> None:
    (question,) = load("arc", [layout(labels, key)])
    assert (question.id, question.question) == ("Isle_417", SHOWN)
    assert question.golden_answers == ("B", "ice")
    assert question.metadata["choices"] == {"A": "slate", "B": "ice", "C": "lead"}


def test_an_option_stands_on_one_line_and_its_label_is_read_without_blanks() -> None:
    options = [{"text": "slate\n(C) or lead", "label": "1 "}, {"text": " ice", "label": "2"}]
    (question,) = load("arc", [{"question": STEM, "choices": options, "answerKey": "1"}])
    assert question.question == f"{STEM}\n(A) slate (C) or lead\n(B) ice"
    assert question.golden_answers == ("A", "slate (C) or lead")


def test_self_rags_copy_brings_its_passages() -> None:
    passage = {"id": "9", "title": "Ice", "text": "Ice floats.", "score": "1.7"}
    (question,) = load("arc", [of_the_hub() | {"ctxs": [passage]}])
    assert [(one.id, one.title, one.text) for one in question.context] == [("9", "Ice", "Ice floats.")]
    assert "ctxs" not in question.metadata


@pytest.mark.parametrize("text", [SHOWN, SHOWN.replace("\n", " ")])
def test_a_question_that_holds_its_options_already(text: str) -> None:
    for row in ({"question": text, "answer": "B"}, {"question": text, "golden_answers": ["B"], "metadata": {}}):
        (question,) = load("arc", [row])
        assert (question.question, question.golden_answers) == (SHOWN, ("B", "ice"))


@pytest.mark.parametrize(
    ("reply", "right"),
    [
        ("B", 1.0), ("b.", 1.0), ("(B) ice", 1.0), ("The answer is B.", 1.0), ("Ice.", 1.0), ("the ice", 1.0),
        ("A", 0.0), ("A or B", 0.0), ("(A) slate (B) ice", 0.0), ("ice floats", 0.0), ("A bear floats.", 0.0),
        ("", 0.0), ("2", 0.0), ("(C) ice", 0.0),
    ],
)  # fmt: skip
def test_accuracy_reads_the_letter_or_the_options_own_text(reply: str, right: float) -> None:
    questions = load("arc", [official("123", "2")])
    assert questions.task.score(reply, questions[0])["accuracy"] == right


def test_inclusion_stands_beside_it_and_knows_a_letter_from_a_word() -> None:
    """Normalised, the option A is an article and vanishes, and C is part of any word with a c in it."""
    first, third = load("arc", [official(key="A"), official(key="C", id=2)])
    score = load("arc", [official()]).task.score
    assert score("A", first)["inclusion"] == score("Option A, slate", first)["inclusion"] == 1.0
    assert score("A stone of any kind sinks, for it is dense.", first)["inclusion"] == 0.0
    assert score("I think ice because it can", third)["inclusion"] == 0.0
    assert score("either B or C", third)["inclusion"] == 1.0  # as forgiving as the paper's


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (official(key="D"), r"the answer of an arc question is the label of an option \(A, B, C\), found 'D'"),
        (official("AAB"), "two options have the label of one"),
        ({"id": 1, "question": STEM, "answer": "B"}, "has 2 to 5 options, found 0; .* task 'qa'"),
        (of_the_hub("AB"), "field 'choices' is wrong: 3 texts and 2 labels"),
        ({**of_the_hub(), "choices": "ABC"}, "field 'choices.* is wrong"),
        ({**normal(), "metadata": {"choices": 7}}, "field 'choices.* is wrong"),
        ({"id": 1, "question": {"stem": STEM}, "answerKey": "B"}, r"field 'question\.choices' is missing"),
        ({"id": 1, "question": {"stem": STEM, "choices": []}}, "field 'answerKey' is missing"),
        ({**official(), "question": {"stem": STEM, "choices": [{"text": "x", "label": str(n)} for n in range(6)]}},
         "has 2 to 5 options, found 6"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadData, match=f"the given rows, item 1: .*{problem}"):
        load("arc", [row])


WORDS = st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1, max_size=12).filter(
    lambda text: text.strip() and text == text.strip() and not choices(f"x (A) {text}").options and "(" not in text
)


@given(WORDS, st.lists(WORDS, min_size=2, max_size=5))
def test_what_is_shown_can_be_taken_apart_again_on_one_line_too(stem: str, texts: list[str]) -> None:
    row = {"id": "x", "question": {"stem": stem, "choices": [
        {"text": text, "label": str(at)} for at, text in enumerate(texts, 1)]}, "answerKey": "1"}  # fmt: skip
    (question,) = load("arc", [row])
    for view in (question.question, " ".join(question.question.split("\n"))):
        assert choices(view).options == tuple(zip(LETTERS, texts, strict=False))
        assert choices(view).stem == stem
    assert question.golden_answers[0] == "A"


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

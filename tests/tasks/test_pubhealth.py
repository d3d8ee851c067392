"""PubHealth: the published table and Self-RAG's part of it, which labels count, and how a reply is read."""

from __future__ import annotations

import csv
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from blendfilter.errors import BadData
from blendfilter.tasks import load

CLAIM = "Sea plums keep brine fever from ships."


def claim(**changed: Any) -> dict[str, Any]:
    return {"claim_id": 417, "claim": CLAIM, "date_published": "May 3, 1822", "explanation": "It was tried.",
            "main_text": "A surgeon\ntried it.", "label": "true", "subjects": "Nutrition", **changed}  # fmt: skip


def table(path: Path, *claims: dict[str, Any]) -> Path:
    """As the test part is published: a column without a name first."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter="\t")
        writer.writerow(["", *claims[0]])
        writer.writerows([at, *one.values()] for at, one in enumerate(claims))
    return path


def test_true_and_false_are_kept_and_the_others_counted(tmp_path: Path) -> None:
    labels = ["true", "mixture", "false", "unproven", "", "mixture", "TRUE "]
    path = table(tmp_path / "test.tsv", *(claim(claim_id=at, label=label) for at, label in enumerate(labels)))
    with pytest.warns(UserWarning, match="left out 4 of 7 claims") as problem:
        questions = load("pubhealth", path)
    assert len(problem) == 1
    assert str(problem[0].message).endswith(
        "which are neither true nor false (2 mixture, 1 unproven, 1 without a label)"
    )
    assert [(one.id, one.golden_answers) for one in questions] == [
        ("0", ("true",)),
        ("2", ("false",)),
        ("6", ("true",)),
    ]
    one = questions[0]
    assert (one.question, one.type, one.gold_titles) == (CLAIM, "true", ())
    assert (one.metadata["explanation"], one.metadata["main_text"]) == ("It was tried.", "A surgeon\ntried it.")


def test_a_limit_counts_what_is_kept_and_the_count_is_of_the_whole_file(tmp_path: Path) -> None:
    path = table(tmp_path / "t.tsv", *(claim(claim_id=at, label=("mixture", "false")[at % 2]) for at in range(8)))
    with pytest.warns(UserWarning, match="left out 4 of 8 claims"):
        assert [one.id for one in load("pubhealth", path, limit=2)] == ["1", "3"]


def test_a_file_of_two_labels_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "health.jsonl"
    path.write_text("\n".join(json.dumps(claim(claim_id=at, label=("true", "false")[at])) for at in (0, 1)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(load("pubhealth", path)) == 2


@pytest.mark.parametrize(
    ("label", "answer"),
    [("true", "true"), (True, "true"), ("SUPPORTS", "true"), (2, "true"), (["true"], "true"),
     ("False", "false"), (False, "false"), ("REFUTES", "false"), (0, "false")],
)  # fmt: skip
@pytest.mark.parametrize("field", ["label", "answer", "answers"])
def test_self_rags_part_and_other_spellings(label: Any, answer: str, field: str) -> None:
    passage = {"id": "9", "title": "Sea plum", "text": "Its juice was given to sailors."}
    (question,) = load("pubhealth", [{"claim": CLAIM, field: label, "ctxs": [passage]}])
    assert (question.id, question.question, question.golden_answers) == ("row-0", CLAIM, (answer,))
    assert [one.title for one in question.context] == ["Sea plum"]


@pytest.mark.parametrize(
    "row",
    [
        {"question": CLAIM, "answer": True},
        {"question": CLAIM, "answer": "true", "gold_titles": []},
        {"id": "n", "question": CLAIM, "golden_answers": ["True"], "metadata": {}},
    ],
)
def test_rows_of_ones_own_and_of_this_package(row: dict[str, Any]) -> None:
    assert load("pubhealth", [row])[0].golden_answers == ("true",)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (claim(label="mixture"), "a claim of pubhealth is true or false, found 'mixture'"),
        (claim(label=3), "found 'unproven'"),
        (claim(label="maybe"), "found 'maybe'"),
        (claim(label=""), "has no answer|found ''"),
        ({"claim": CLAIM}, "field 'label' is missing"),
        ({"claim": " ", "label": "true"}, "question 'row-0' is empty"),
        ({"question": CLAIM, "answers": ["true", "false"]}, "found 'true', 'false'"),
    ],
)
def test_among_rows_in_memory_another_label_is_an_error(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadData, match=f"the given rows, item 1: .*(?:{problem})"):
        load("pubhealth", [row])


def test_another_word_for_a_label_in_a_file_is_no_part_of_the_set_and_named(tmp_path: Path) -> None:
    """The published training part has rows whose columns slipped; a misspelt label would be seen in the same line."""
    path = table(tmp_path / "t.tsv", claim(), claim(claim_id=2, label="snopes"), claim(claim_id=3, label=""))
    with pytest.warns(UserWarning, match=r"left out 2 of 3 claims, .* \(1 'snopes', 1 without a label\)"):
        assert [one.id for one in load("pubhealth", path)] == ["417"]


def test_the_hubs_numbers_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "hub.jsonl"
    path.write_text("\n".join(json.dumps(claim(claim_id=at, label=label)) for at, label in enumerate((-1, 0, 1, 2, 3))))
    with pytest.warns(UserWarning, match=r"left out 3 of 5 claims, .* \(1 mixture, 1 unproven, 1 without a label\)"):
        assert [one.golden_answers for one in load("pubhealth", path)] == [("false",), ("true",)]


def test_evidence_in_words_is_no_passage() -> None:
    assert load("pubhealth", [{"claim": CLAIM, "label": "true", "evidence": "A surgeon tried it."}])[0].context == ()


@pytest.mark.parametrize(
    ("reply", "right"),
    [("true", 1.0), ("True.", 1.0), ("The claim is true.", 1.0), ("Yes, it is.", 1.0), ("false", 0.0),
     ("not true", 0.0), ("true or false", 0.0), ("unproven", 0.0), ("SUPPORTS", 0.0), ("", 0.0)],
)  # fmt: skip
def test_a_reply_is_read_strictly(reply: str, right: float) -> None:
    questions = load("pubhealth", [claim()])
    assert questions.task.score(reply, questions[0]) == {"accuracy": right}

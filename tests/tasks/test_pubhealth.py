"""PubHealth: the published table and Self-RAG's part of it, which labels count, and how a reply is read."""

from __future__ import annotations

import csv
import json
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


def test_the_hubs_numbers_with_a_gap_are_labels(tmp_path: Path) -> None:
    """A frame writes them with decimals, and its gap as NaN."""
    rows = [claim(claim_id=at, label=label) for at, label in enumerate([2.0, float("nan"), 0.0])]
    (path := tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.warns(UserWarning, match=r"left out 1 of 3 claims.*1 without a label"):
        questions = load("pubhealth", path)
    assert [one.golden_answers for one in questions] == [("true",), ("false",)]


@pytest.mark.parametrize(
    ("label", "answer"),
    [("true", "true"), (True, "true"), ("SUPPORTS", "true"), (2, "true"), (["true"], "true"), ("REFUTES", "false")],
)
def test_self_rags_part_and_other_spellings(label: Any, answer: str) -> None:
    passage = {"id": "9", "title": "Sea plum", "text": "Its juice was given to sailors."}
    (question,) = load("pubhealth", [{"claim": CLAIM, "answers": label, "ctxs": [passage]}])
    assert (question.id, question.question, question.golden_answers) == ("row-0", CLAIM, (answer,))
    assert [one.title for one in question.context] == ["Sea plum"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (claim(label="mixture"), "a claim of pubhealth is true or false .*, found 'mixture'"),
        ({"claim": CLAIM}, "field 'answer' is missing"),
        (claim(label="true", answers=["false"]), "found 'true', 'false'"),
        ({"question": CLAIM, "answers": ["true", "false"]}, "found 'true', 'false'"),
    ],
)
def test_among_rows_in_memory_another_label_is_an_error(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadData, match=f"the given rows, item 1: .*(?:{problem})"):
        load("pubhealth", [row])

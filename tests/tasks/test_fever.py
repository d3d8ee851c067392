"""FEVER: labels and evidence, in the official layout and the others, and what the labels do to the prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import BadData
from blendfilter.tasks import load
from blendfilter.tasks.fever import facts_of

LIGHT = "Skerry_Light_-LRB-lighthouse-RRB-"


def claim(**changed: Any) -> dict[str, Any]:
    return {
        "id": 90417, "verifiable": "VERIFIABLE", "label": "REFUTES", "claim": "Skerry Light was built of slate.",
        "evidence": [[[101, 201, LIGHT, 1]], [[102, 202, LIGHT, 4], [102, 202, "Quillmere", 0]],
                     [[103, 203, LIGHT, 1]]], **changed,
    }  # fmt: skip


def test_sets_of_evidence_decide_each_by_itself() -> None:
    (question,) = load("fever", [claim()])
    assert (question.id, question.question, question.golden_answers) == ("90417", claim()["claim"], ("REFUTES",))
    assert question.evidence == (("Skerry Light (lighthouse)",), ("Skerry Light (lighthouse)", "Quillmere"))
    assert question.gold_titles == ("Skerry Light (lighthouse)", "Quillmere")
    facts = [("Skerry Light (lighthouse)", 1), ("Skerry Light (lighthouse)", 4), ("Quillmere", 0)]
    assert list(question.supporting_facts) == facts
    assert question.type == "REFUTES"


def test_a_claim_that_nothing_decides_has_no_evidence() -> None:
    row = claim(label="NOT ENOUGH INFO", verifiable="NOT VERIFIABLE", evidence=[[[191656, None, None, None]]])
    (question,) = load("fever", [row])
    assert (question.golden_answers, question.gold_titles, question.evidence) == (("NOT ENOUGH INFO",), (), ())


def test_the_third_label_is_offered_where_a_question_has_it() -> None:
    third = claim(id=2, label="NOT ENOUGH INFO", evidence=[])
    assert load("fever", [claim()]).task.wording == "fever"
    both = load("fever", [claim(), third])
    assert (both.task.wording, both.task.name, both.task.metrics) == ("fever-nei", "fever", ("accuracy",))
    assert load("fever", [claim(), third], limit=1).task.wording == "fever"


def test_kilts_and_the_normalised_layout() -> None:
    kilt = {"id": "k", "input": "Skerry Light was built of slate.", "output": [
        {"answer": "REFUTES", "provenance": [{"title": "Skerry Light (lighthouse)"}]},
        {"answer": "REFUTES", "provenance": [{"title": "Skerry Light (lighthouse)"}, {"title": "Quillmere"}]},
    ]}  # fmt: skip
    own = {"id": "n", "question": "Skerry Light was built of slate.", "golden_answers": ["REFUTES"],
           "metadata": {"gold_titles": ["x"], "evidence": [[[LIGHT, 1]], [[LIGHT, 4], ["Quillmere", 0]]]}}  # fmt: skip
    one, other = load("fever", [kilt, own])
    (official,) = load("fever", [claim()])
    assert one.evidence == other.evidence == official.evidence
    assert one.gold_titles == other.gold_titles == official.gold_titles
    assert other.supporting_facts == official.supporting_facts
    assert one.golden_answers == other.golden_answers == ("REFUTES",)
    del own["metadata"]["evidence"]
    assert load("fever", [own])[0].evidence == (("x",),)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (claim(label="SUPPORTED"), "one label, SUPPORTS, REFUTES or NOT ENOUGH INFO, found 'SUPPORTED'; try task 'qa'"),
        ({"id": 1, "claim": "x"}, "field 'answer' is missing"),
        (claim(label="SUPPORTS", answer="REFUTES"), "found 'SUPPORTS', 'REFUTES'"),
        (claim(evidence=[[101, LIGHT]]), "'evidence' is wrong: expected sets of entries that end in title and line"),
        (claim(evidence=[[[1, 2, LIGHT, "first"]]]), "field 'evidence' is wrong"),
        ({"id": "k", "input": "x", "output": [{"answer": "SUPPORTS"}, {"answer": "REFUTES"}]},
         "found 'SUPPORTS', 'REFUTES'"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(row: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadData, match=f"the given rows, item 1: .*{problem}"):
        load("fever", [row])


entries = st.tuples(st.none() | st.text(max_size=5), st.none() | st.integers() | st.text(max_size=2)).map(list)
anything = st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=4))


@given(anything | st.lists(st.lists(entries, max_size=3), max_size=3))
def test_evidence_of_any_shape_is_facts_or_one_error(evidence: object) -> None:
    try:
        sets = facts_of(evidence, "here")
    except BadData as error:
        problem, sets = str(error), []
    else:
        problem = ""
    shapes = {(type(title), type(line)) for one in sets for title, line in one}
    assert shapes <= {(str, int)}
    assert problem.startswith("here: field 'evidence'") or not problem


def test_a_set_of_evidence_names_pages_as_people_do() -> None:
    evidence = [[[7, "Quay", 2], ["Mill_-LRB-tide-RRB-", 0]], [[None, None]], []]
    assert facts_of(evidence, "here") == [(("Quay", 2), ("Mill (tide)", 0))]


def test_both_copies_of_the_real_file_say_the_same(shared_data: Path) -> None:
    own = load("fever", shared_data / "fever" / "paper_dev.jsonl.gz")
    official = {f"fever_{one.id}": one for one in load("fever", shared_data / "raw" / "fever" / "paper_dev.jsonl.gz")}
    assert len(own) == len(official) == 9_999
    assert own.task.wording == "fever-nei"
    for one in own:
        other = official[one.id]
        assert (one.question, one.golden_answers, one.gold_titles, one.evidence) == (
            other.question, other.golden_answers, other.gold_titles, other.evidence,
        )  # fmt: skip
        assert bool(one.gold_titles) is (one.golden_answers != ("NOT ENOUGH INFO",))
    assert not any("-LRB-" in title or "_" in title for one in own for title in one.gold_titles)

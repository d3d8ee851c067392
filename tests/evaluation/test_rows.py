"""Rows from predictions of every shape, each figure worked out by hand; and where a question is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import dspy
import pytest

from blendfilter.context import CallNote
from blendfilter.errors import ModelError
from blendfilter.evaluation.provenance import Provenance
from blendfilter.evaluation.rows import answered, failed, loss
from blendfilter.modules.base import FLAGS, Branch
from blendfilter.records import Excerpt, Passage, Question, WrittenText
from blendfilter.tasks import TASKS

HOTPOT, STRATEGY = TASKS["hotpotqa"], TASKS["strategyqa"]
PIER, HARROW, FAIR = (Passage(name[0], name, f"About {name}.") for name in ("pier", "harrow", "fair"))
QUESTION = Question("q1", "Where was its designer born?", ("Ormskerry",), ("pier", "harrow"), (("pier", "harrow"),))
NO_FLAGS = dict.fromkeys(FLAGS, 0)
NOTES = [CallNote("external", "a" * 32), CallNote("ids", "b" * 32, "cut_reply")]


def blended(answer: str = "Ormskerry", **fields: Any) -> dspy.Prediction:
    """q brings the pier and the fair and keeps the pier; q_ex brings harrow, kept; together the gold and no more."""
    branches = {"q": Branch([PIER, FAIR], [PIER], "ids", "why"), "q_ex": Branch([HARROW], [HARROW], "unparseable")}
    given = {"queries": {"q": "Where?", "q_ex": "Harrow. Where?"}, "branches": branches, "knowledge": [PIER, HARROW]}
    return dspy.Prediction(answer=answer, **{**given, **fields})


def row(prediction: Any, question: Question = QUESTION, notes: list[CallNote] = NOTES) -> dict[str, Any]:
    return answered(HOTPOT, question, prediction, notes)


def test_a_whole_row() -> None:
    assert row(blended()) == {
        "id": "q1",
        "question": "Where was its designer born?",
        "golden_answers": ["Ormskerry"],
        "gold_titles": ["pier", "harrow"],
        "answer": "Ormskerry",
        "em": 1.0,
        "f1": 1.0,
        "correct": True,
        "queries": {"q": "Where?", "q_ex": "Harrow. Where?"},
        "branches": {
            "q": {"retrieved": ["p", "f"], "kept": ["p"], "ids_read": "ids"},
            "q_ex": {"retrieved": ["h"], "kept": ["h"], "ids_read": "unparseable"},
        },
        "knowledge": ["p", "h"],
        "retrieval": {
            "q": {"recall": 0.5, "precision": 0.5, "s_precision": 0.0, "ndcg": 0.613147, "mrr": 1.0},
            "q_ex": {"recall": 0.5, "precision": 1.0, "s_precision": 0.0, "ndcg": 0.613147, "mrr": 1.0},
            "union": {"recall": 1.0, "precision": 0.666667, "s_precision": 0.0, "ndcg": 0.919721, "mrr": 1.0},
            "kept": {"recall": 1.0, "precision": 1.0, "s_precision": 1.0, "ndcg": 1.0, "mrr": 1.0},
        },
        "loss": "right",
        "calls": [["external", "a" * 32], ["ids", "b" * 32]],
        "flags": NO_FLAGS | {"cut_reply": 1},
        "error": None,
    }


def test_scores_are_kept_to_six_decimals() -> None:
    """One word of two in three: precision 1/2, recall 1/3, F1 = 2 * 1/2 * 1/3 / (5/6) = 0.4."""
    question = Question("q", "?", ("red stone bridge",))
    result = row(dspy.Prediction(answer="red house"), question)
    assert (result["em"], result["f1"], result["correct"]) == (0.0, 0.4, False)
    third = row(dspy.Prediction(answer="red"), Question("q", "?", ("red a b c d e",)))
    assert third["f1"] == 0.333333, "'a' is an article: one of five words, 2 * 1 * 1/5 / (6/5)"


def test_flags_of_the_method_win_over_those_counted_here() -> None:
    result = row(blended(flags={"unparseable_ids": 2, "cut_reply": 1}))
    assert result["flags"] == NO_FLAGS | {"unparseable_ids": 2, "cut_reply": 1}
    noted = [CallNote("a", "0" * 32, "empty_reply"), CallNote("a", "1" * 32, "empty_reply"), CallNote("b", "2" * 32)]
    assert row(dspy.Prediction(answer="x"), notes=noted)["flags"] == NO_FLAGS | {"empty_reply": 2}


@pytest.mark.parametrize(
    "prediction",
    [
        dspy.Prediction(answer="Ormskerry"),
        dspy.Example(answer="Ormskerry"),
        {"answer": "Ormskerry"},
        SimpleNamespace(answer="Ormskerry"),
        "Ormskerry",
    ],
)
def test_the_least_a_module_may_give(prediction: Any) -> None:
    result = row(prediction)
    assert (result["answer"], result["em"]) == ("Ormskerry", 1.0)
    assert result["queries"] == result["branches"] == result["retrieval"] == {}
    assert result["knowledge"] == []
    assert result["loss"] == "right_without_gold"


@pytest.mark.parametrize(
    "knowledge",
    [
        [PIER, HARROW],
        ["pier | About pier.", "harrow | About harrow."],
        [{"title": "pier", "text": "About pier."}, {"title": "harrow", "text": "About harrow."}],
        [SimpleNamespace(long_text="pier | About pier."), {"contents": '"harrow"\nAbout harrow.'}],
    ],
)
def test_knowledge_of_any_shape_is_measured_by_its_titles(knowledge: list[Any]) -> None:
    result = row(dspy.Prediction(answer="x", knowledge=knowledge))
    whole = {"recall": 1.0, "precision": 1.0, "s_precision": 1.0, "ndcg": 1.0, "mrr": 1.0}
    assert result["retrieval"] == {"union": whole, "kept": whole}
    assert len(result["knowledge"]) == 2
    assert result["loss"] == "answered_wrong"


@pytest.mark.parametrize(
    "own",
    [
        {"queries": ["Who?", "Where?"]},
        {"queries": "Who?"},
        {"branches": ["one", "two"]},
        {"branches": 3},
        {"flags": ["sure"]},
        {"flags": True},
        {"knowledge": "pier and harrow"},
    ],
    ids=str,
)
def test_a_programs_own_fields_may_have_our_names(own: dict[str, Any]) -> None:
    """Such outputs are common in signatures: the run goes by what it saw, and neither fails nor reads letters."""
    seen = Provenance({"q": "Who?"}, {"q": Branch([PIER], [PIER])}, [PIER], [PIER])
    with_own, without = (
        answered(HOTPOT, QUESTION, dspy.Prediction(answer="x", **fields), [], observed=lambda: seen)
        for fields in (own, {})
    )
    assert with_own == without
    assert with_own["knowledge"] == [PIER.id]


@pytest.mark.parametrize(
    ("answer", "branches", "where"),
    [
        ("Ormskerry", ("q", "q_ex"), "right"),
        ("x", ("q", "q_ex"), "answered_wrong"),
        ("Ormskerry", ("q",), "right_without_gold"),
        ("x", ("q",), "not_retrieved"),
    ],
)
def test_written_text_may_stand_on_whatever_was_retrieved(answer: str, branches: tuple[str, ...], where: str) -> None:
    """A summary is in no passage: whether gold was kept is unknown, and is said to be neither lost nor there."""
    found = {name: Branch(branch.retrieved, ()) for name, branch in blended().branches.items() if name in branches}
    only = row(blended(answer, branches=found, knowledge=[WrittenText("A pier.")]))
    assert (only["loss"], only["knowledge"], only["written"]) == (where, [], ["A pier."])
    assert list(only["retrieval"]) == [*branches, "union"]
    beside = row(blended(answer, branches=found, knowledge=[WrittenText("A pier."), Excerpt.of(PIER, [(0, 5)])]))
    assert beside["loss"] == where
    assert beside["retrieval"]["kept"]["recall"] == 0.5, "what is known to be kept counts"
    nothing = row(blended(answer, branches=found, knowledge=[]))
    assert nothing["retrieval"]["kept"]["recall"] == 0.0, "nothing kept is known, too"


def test_the_row_of_an_error() -> None:
    error = ModelError("9 tokens too many", kind="context_too_long", stage="check")
    notes = [
        CallNote("external", "a" * 32),
        CallNote("check", "c" * 32, "error"),
        CallNote("t", "d" * 32, "empty_reply"),
    ]
    result = failed(HOTPOT, QUESTION, error, notes)
    assert list(result) == list(row(blended())), "the same fields in the same order"
    assert result["error"] == {"kind": "context_too_long", "stage": "check", "message": "9 tokens too many"}
    assert (result["answer"], result["em"], result["f1"], result["correct"]) == (None, 0.0, 0.0, False)
    assert result["calls"] == [["external", "a" * 32], ["t", "d" * 32]], "what was paid for, not what failed"
    assert result["flags"] == NO_FLAGS | {"empty_reply": 1}
    assert result["loss"] == "error", "what it would have retrieved is unknown"


def test_an_errors_message_holds_no_place_in_memory() -> None:
    """It differs from sitting to sitting, and the row must not."""
    error = RuntimeError(f"cannot read {object()!r} and {object()!r} at 0xzone")
    assert failed(HOTPOT, QUESTION, error, [])["error"]["message"] == (
        "cannot read <object object> and <object object> at 0xzone"
    )


# --- losses ----------------------------------------------------------------------------------------------------------


GOLD = [("Ormskerry", "Tavenby")]
BOTH = ["Ormskerry", "Tavenby"]


@pytest.mark.parametrize(
    ("correct", "retrieved", "knowledge", "expected"),
    [
        (True, [*BOTH, "Other"], BOTH, "right"),
        (True, BOTH, ["Tavenby"], "right_without_gold"),
        (True, ["Other"], ["Other"], "right_without_gold"),
        (False, BOTH, BOTH, "answered_wrong"),
        (False, BOTH, ["Ormskerry"], "filtered_away"),
        (False, BOTH, [], "filtered_away"),
        (False, ["Tavenby"], ["Ormskerry"], "filtered_away"),  # a method that does not report all its searches
        (False, ["Ormskerry"], ["Ormskerry"], "not_retrieved"),  # one of two hops is not enough
        (True, [], [], "right_without_gold"),  # a method that retrieves nothing
        (False, [], [], "not_retrieved"),
        (False, [], BOTH, "answered_wrong"),  # a method that reports only its knowledge
    ],
)
def test_every_cell(correct: bool, retrieved: list[str], knowledge: list[str], expected: str) -> None:
    assert loss(correct, retrieved, knowledge, GOLD) == expected


def test_one_annotator_in_full_is_enough_but_halves_of_two_are_not() -> None:
    evidence = [("A", "B"), ("C",)]
    assert loss(False, ["C"], ["C"], evidence) == "answered_wrong"
    assert loss(False, ["A", "C"], ["A"], evidence) == "filtered_away"
    assert loss(False, ["A"], ["A"], [("A", "B"), ("C", "D")]) == "not_retrieved"
    assert loss(False, [], [], [(), ("A",)]) == "not_retrieved", "one without titles does not satisfy for the others"


@pytest.mark.parametrize("evidence", [[], [()], [(), ()]])
def test_unknown_gold_cannot_be_missing(evidence: list[tuple[str, ...]]) -> None:
    assert loss(True, [], [], evidence) == "right"
    assert loss(False, ["A"], [], evidence) == "answered_wrong"


def test_titles_are_compared_after_unicode_and_white_space_folding() -> None:
    composed, decomposed = "Caf\u00e9 Merrow", "Cafe\u0301  Merrow "
    assert loss(True, [], [decomposed], [(composed,)]) == "right"

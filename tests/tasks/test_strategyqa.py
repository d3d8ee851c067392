"""StrategyQA: evidence of several annotators at title level, worked out by hand and on the authors' file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import BadData
from blendfilter.metrics import recall
from blendfilter.tasks import load
from blendfilter.tasks.strategyqa import evidence_of, paragraph_ids

ROW = {
    "qid": "c91e", "term": "Ulla", "question": "Could a ferry reach Bremsund?", "answer": False,
    "facts": ["The crossing is long."], "decomposition": ["How far is it?"],
    "evidence": [[[["Ulla-3", "Ulla-4", "Bremsund, Old Town-1"]], ["operation"]],
                 [[["Ferry-Boat-2"], "no_evidence"], ["operation"]], [["no_evidence"], ["operation"]]],
}  # fmt: skip


def test_evidence_is_per_annotator_by_title_each_once() -> None:
    (question,) = load("strategyqa", [ROW])
    assert question.golden_answers == ("no",)
    assert question.evidence == (("Ulla", "Bremsund, Old Town"), ("Ferry-Boat",))
    assert question.gold_titles == ("Ulla", "Bremsund, Old Town", "Ferry-Boat")
    assert recall(["Ferry-Boat"], question) == 1.0
    assert question.metadata["facts"] == ["The crossing is long."]
    assert question.metadata["evidence"] == ROW["evidence"]


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)))
def test_evidence_of_any_shape_is_titles_or_one_error(entry: object) -> None:
    assert all(isinstance(name, str) for name in paragraph_ids(entry))
    message = "here: field 'evidence'"
    try:
        assert all(titles for titles in evidence_of(entry, "here"))
    except BadData as error:
        message = str(error)
    assert message.startswith("here: field 'evidence'")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**ROW, "answer": "Bremsund"}, "is yes or no, found 'Bremsund'"),
        ({**ROW, "answer": True, "answers": ["no"]}, "is yes or no, found 'yes', 'no'"),
        ({**ROW, "evidence": {"a": 1}}, "field 'evidence' is wrong: expected one list per annotator"),
    ],
)
def test_what_is_no_yes_no_question_is_refused(row: dict[str, object], message: str) -> None:
    with pytest.raises(BadData, match=message):
        load("strategyqa", [row])


def test_of_the_sample_world_it_takes_the_yes_no_questions() -> None:
    every = load("qa", "sample")
    some = load("strategyqa", "sample")
    assert [one.id for one in some] == [one.id for one in every if one.golden_answers[0].lower() in ("yes", "no")]
    assert 10 < len(some) < len(every)
    assert (some.source, some.task.name, len(load("strategyqa", "sample", limit=3))) == ("sample", "strategyqa", 3)


def test_the_authors_file_and_the_normalised_one_agree(shared_data: Path) -> None:
    official = load("strategyqa", shared_data / "raw" / "strategyqa" / "dev.json")
    normal = load("strategyqa", shared_data / "strategyqa" / "dev.jsonl.gz")
    assert len(official) == 229
    assert official.fingerprint == normal.fingerprint
    assert official.task.metrics == ("accuracy",)
    assert max(len(question.evidence) for question in official) >= 3
    for one, other in zip(official, normal, strict=True):
        assert set(one.gold_titles) == set(other.gold_titles)
        assert {key: one.metadata[key] for key in ("facts", "decomposition")} == {
            key: other.metadata[key] for key in ("facts", "decomposition")
        }
    assert all(one.context for one in normal)

"""Tasks score, question sets slice and carry a fingerprint."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from blendfilter.errors import UnknownName
from blendfilter.records import Question
from blendfilter.tasks import TASKS, Hub, Questions, Task, load
from blendfilter.tasks.generic import parse

MILL = Question("1", "Who runs the mill?", ("Ane Lindqvist", "Lindqvist"), ("Tide Mill",), (("Tide Mill",),))
QUAY = Question("2", "Is the quay old?", ("yes",))


def test_a_task_scores_by_its_metrics_over_the_aliases() -> None:
    assert TASKS["twowiki"].score("lindqvist", MILL) == {"em": 1.0, "f1": 1.0}
    assert TASKS["hotpotqa"].score("Old Lindqvist", MILL) == {"em": 0.0, "f1": pytest.approx(2 / 3)}
    assert TASKS["strategyqa"].score("Yes, it is.", QUAY) == {"accuracy": 1.0}


def test_the_registry_knows_its_tasks_by_name() -> None:
    assert list(TASKS) == ["hotpotqa", "twowiki", "strategyqa", "nq", "triviaqa", "fever", "eli5", "wow", "popqa",
                           "arc", "pubhealth", "qa"]  # fmt: skip
    assert all(task.name == name for name, task in TASKS.items())
    # anyone's own questions are asked in HotPotQA's words: short answers, yes/no among them
    assert {name: task.wording for name, task in TASKS.items()} == {
        "hotpotqa": "hotpotqa",
        "twowiki": "twowiki",
        "strategyqa": "strategyqa",
        "nq": "nq",
        "triviaqa": "triviaqa",
        "fever": "fever",
        "eli5": "eli5",
        "wow": "wow",
        "popqa": "popqa",
        "arc": "arc",
        "pubhealth": "pubhealth",
        "qa": "hotpotqa",
    }


def test_every_task_has_its_metrics_the_leading_one_first() -> None:
    assert {name: task.metrics for name, task in TASKS.items()} == {
        **dict.fromkeys(("hotpotqa", "twowiki", "nq", "qa"), ("em", "f1")),
        **dict.fromkeys(("strategyqa", "fever", "pubhealth"), ("accuracy",)),
        "triviaqa": ("em", "f1", "inclusion", "inclusion_raw"),
        "popqa": ("inclusion", "inclusion_raw", "em", "f1"),
        "arc": ("accuracy", "inclusion"),
        **dict.fromkeys(("eli5", "wow"), ("f1",)),
    }


@pytest.mark.parametrize("name", [name for name in TASKS if name != "strategyqa"])
def test_every_task_has_questions_in_the_sample_world(name: str) -> None:
    """StrategyQA takes its yes/no questions out of the others' file, where it is asked for."""
    questions = load(name, "sample")
    assert len(questions) >= 10
    assert all(one.gold_titles for one in questions)
    assert questions.task.wording == TASKS[name].wording


def test_a_task_of_ones_own_needs_metrics_that_exist() -> None:
    assert Task("mine", ("f1",), "qa", parse).score("mill", MILL) == {"f1": 0.0}
    with pytest.raises(UnknownName, match=r"no metric 'em1'.*Did you mean 'em'"):
        Task("mine", ("em1",), "qa", parse)


def test_a_slice_is_a_question_set_too() -> None:
    both = Questions((MILL, QUAY), TASKS["qa"], "mine.jsonl")
    assert isinstance(both[:1], Questions)
    assert (both[:1].task, both[:1].source, list(both[:1])) == (TASKS["qa"], "mine.jsonl", [MILL])
    assert both[-1] is QUAY
    assert (len(both), both.index(QUAY), MILL in both) == (2, 1, True)
    assert both == Questions((MILL, QUAY), TASKS["qa"], "mine.jsonl")
    assert repr(both) == "<2 questions of qa from mine.jsonl>"


@pytest.mark.parametrize(
    "change", [{"id": "9"}, {"question": "Who?"}, {"golden_answers": ("x",)}, {"evidence": (("Quay",),)}]
)
def test_the_fingerprint_is_of_what_asks_and_what_scores(change: dict[str, object]) -> None:
    task = TASKS["qa"]
    print_ = Questions((MILL, QUAY), task).fingerprint
    assert len(print_) == 16
    assert int(print_, 16) >= 0
    assert print_ == Questions((dataclasses.replace(MILL, metadata={"x": 1}), QUAY), task, "elsewhere").fingerprint
    assert print_ != Questions((dataclasses.replace(MILL, **change), QUAY), task).fingerprint
    assert print_ != Questions((QUAY, MILL), task).fingerprint


def test_a_place_on_the_hub_has_a_label() -> None:
    assert Hub("some/set", None, "dev").label() == "some/set:dev"
    assert Hub("some/set", "small", "dev").label("test") == "some/set:small:test"


def test_questions_serve_dspys_own_tools() -> None:
    """`examples` and `metric` are what `dspy.Evaluate` and the optimisers ask for."""
    questions = load("qa", [{"id": "1", "question": "Who?", "answers": ["Ada Orm", "Orm"]}])
    (example,) = questions.examples()
    assert (example.id, example.question, example.answer) == ("1", "Who?", "Ada Orm")
    assert example.golden_answers == ["Ada Orm", "Orm"]
    assert example.inputs().toDict() == {"question": "Who?"}
    right, wrong = SimpleNamespace(answer="the orm"), SimpleNamespace(answer="Bea")
    assert (questions.metric(example, right), questions.metric(example, wrong)) == (1.0, 0.0)
    assert (questions.metric(example, right, trace=[]), questions.metric(example, wrong, trace=[])) == (True, False)

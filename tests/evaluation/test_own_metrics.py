"""Metrics of the user's own, as DSPy's are written: scored, recorded, compared, resumed; what is none of them."""

from __future__ import annotations

import functools
import json
import threading
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.evaluate import CompleteAndGrounded, SemanticF1
from dspy.utils import DummyLM
from scripted import ScriptedLM

import blendfilter as bf
from blendfilter.errors import BadArgument, RunFailed, RunMismatch, UnknownName
from blendfilter.metrics import exact_match

QUESTIONS = [
    {"id": "a", "question": "Who built Oddle Mill?", "answer": "Jon Brask", "difficulty": 1},
    {"id": "b", "question": "Where was Jon Brask born?", "answer": "Vell", "difficulty": 2},
]


class Mine(dspy.Module):
    def forward(self, question: str) -> dspy.Prediction:
        return dspy.Prediction(answer="Jon Brask", knowledge=["Oddle Mill | Built by Jon Brask."])


def short_and_right(example: Any, prediction: Any, trace: Any = None) -> bool:
    return len(prediction.answer) < 10 and prediction.answer in example.golden_answers


def eased(example: Any, pred: Any, trace: Any = None) -> float:
    return 1 / (1 + example.difficulty)


def evaluate(run: Path | None = None, metrics: Any = ("em", short_and_right, eased), **more: Any) -> bf.Run:
    return bf.evaluate(Mine(), bf.load(QUESTIONS), lm="offline", run=run, metrics=metrics, progress=False, **more)


def test_functions_score_beside_names(tmp_path: Path) -> None:
    run = evaluate(tmp_path / "run")
    assert run.scores == {"em": 0.5, "short_and_right": 0.5, "eased": pytest.approx((1 / 2 + 1 / 3) / 2, abs=1e-6)}
    assert [(row["short_and_right"], row["eased"]) for row in run.rows] == [(1.0, 0.5), (0.0, 0.333333)]
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["metrics"]["eased"]["high"] == 0.5
    assert "EASED" in evaluate(metrics=[eased]).report()
    assert bf.compare(run, evaluate()).n == 2
    before = (tmp_path / "run" / "metrics.json").read_bytes()
    assert evaluate(tmp_path / "run", replay=True).rows == run.rows
    assert (tmp_path / "run" / "metrics.json").read_bytes() == before


def test_another_function_of_that_name_is_another_run(tmp_path: Path) -> None:
    evaluate(tmp_path / "run", ["em", eased])

    def same_name(example: Any, prediction: Any, trace: Any = None) -> float:
        return 1.0

    same_name.__name__ = "eased"
    with pytest.raises(RunMismatch, match=r"the code of the metric .*, or what it holds, was changed"):
        evaluate(tmp_path / "run", ["em", same_name])


def longer_than(limit: int) -> Any:
    def longer(example: Any, prediction: Any, trace: Any = None) -> bool:
        return len(prediction.answer) > limit

    return longer


def longer_by_default(limit: int) -> Any:
    def longer(example: Any, prediction: Any, trace: Any = None, limit: int = limit) -> bool:
        return len(prediction.answer) > limit

    return longer


def longer_by_argument(limit: int) -> Any:
    def longer(example: Any, prediction: Any, trace: Any = None, *, limits: dict[str, int]) -> bool:
        return len(prediction.answer) > limits["answer"]

    made = functools.partial(longer, limits={"answer": limit})
    return functools.update_wrapper(made, longer)


class Longer:
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def __call__(self, example: Any, prediction: Any, trace: Any = None) -> bool:
        return len(prediction.answer) > self.limit

    @classmethod
    def method(cls, limit: int) -> Any:
        return cls(limit).__call__

    @classmethod
    def held(cls, limit: int) -> Any:
        inner = cls(limit)

        def longer(example: Any, prediction: Any, trace: Any = None) -> bool:
            return inner(example, prediction)

        return longer


@pytest.mark.parametrize(
    "make", [longer_than, longer_by_default, longer_by_argument, Longer, Longer.method, Longer.held]
)
def test_the_values_that_it_holds_are_part_of_it(make: Any, tmp_path: Path) -> None:
    assert set(evaluate(tmp_path / "run", [make(1)]).scores.values()) == {1.0}
    assert set(evaluate(tmp_path / "run", [make(1)]).scores.values()) == {1.0}
    with pytest.raises(RunMismatch, match=r"the code of the metric .*, or what it holds, was changed"):
        evaluate(tmp_path / "run", [make(1000)])


def test_what_has_no_plain_value_counts_by_its_class(tmp_path: Path) -> None:
    """A lock, a function that calls itself and a model whose key was changed make no other metric of it."""

    def make(key: str, model: str = "openai/judge") -> Any:
        lock, lm = threading.Lock(), dspy.LM(model, api_key=key)

        def guarded(example: Any, prediction: Any, trace: Any = None) -> float:
            with lock:
                return 1.0 if trace is None else guarded(example, prediction) if lm else late

        if model:
            return guarded
        late = 0.0  # a name of the closure that has no value yet
        return guarded

    evaluate(tmp_path / "run", [make("one")])
    assert evaluate(tmp_path / "run", [make("two")]).scores == {"guarded": 1.0}
    with pytest.raises(RunMismatch, match=r"the code of the metric .*, or what it holds, was changed"):
        evaluate(tmp_path / "run", [make("two", "openai/another")])


def test_the_leading_one_leads_dspys_optimisers_too() -> None:
    questions = bf.load(QUESTIONS, metrics=[eased, "em"])
    assert questions.metric(dspy.Example(difficulty=3), dspy.Prediction(answer="")) == 0.25


@pytest.mark.parametrize("metric", [SemanticF1(), CompleteAndGrounded()])
def test_dspys_own_that_compare_responses_are_refused_before_anything_is_asked(metric: Any) -> None:
    class Unasked(dspy.Module):
        def forward(self, question: str) -> dspy.Prediction:
            raise AssertionError

    with pytest.raises(BadArgument, match=f"^{type(metric).__name__} compares the field 'response'"):
        bf.evaluate(Unasked(), QUESTIONS, lm="offline", metrics=["em", metric], progress=False)


def test_dspys_semantic_f1_takes_the_answers_as_responses() -> None:
    judge = DummyLM([{"reasoning": "The same.", "recall": "1", "precision": "0.5"}] * 2)

    def semantic_f1(example: Any, prediction: Any, trace: Any = None) -> Any:
        gold = dspy.Example(question=example.question, response=example.answer)
        with dspy.context(lm=judge, adapter=dspy.ChatAdapter()):
            return SemanticF1()(gold, dspy.Prediction(response=prediction.answer))

    assert evaluate(metrics=[semantic_f1]).scores == {"semantic_f1": pytest.approx(2 / 3, abs=1e-6)}


def judged(example: Any, prediction: Any, trace: Any = None) -> bool:
    return bool(dspy.Predict("answer -> verdict")(answer=prediction.answer).verdict == "yes")


def test_one_that_asks_a_model_asks_the_configured_one_outside_of_the_run(tmp_path: Path) -> None:
    student = ScriptedLM(lambda _stage, _prompt: "Jon Brask")
    judge = DummyLM([{"verdict": "yes"}, {"verdict": "no"}])
    questions, rest = bf.load(QUESTIONS), {"lm": student, "progress": False}
    bare = bf.evaluate(bf.Direct(), questions, run=tmp_path / "bare", **rest)
    with dspy.context(lm=judge, adapter=dspy.ChatAdapter()):
        run = bf.evaluate(bf.Direct(), questions, run=tmp_path / "run", metrics=["em", judged], **rest)
    assert run.scores == {"em": 0.5, "judged": 0.5}
    assert len(judge.history) == 2
    assert run.metrics["ledger"]["total"]["calls"] == bare.metrics["ledger"]["total"]["calls"] == 2
    assert [row["calls"] for row in run.rows] == [row["calls"] for row in bare.rows]


def raising(example: Any, prediction: Any, trace: Any = None) -> float:
    return float(example.no_such_field)


def of_ten(example: Any, prediction: Any, trace: Any = None) -> float:
    return 7.0


def wordy(example: Any, prediction: Any, trace: Any = None) -> Any:
    return "good"


def answer(example: Any, prediction: Any, trace: Any = None) -> float:
    return 1.0


async def later(example: Any, prediction: Any, trace: Any = None) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("metrics", "kind", "words"),
    [
        (["cover_em"], UnknownName, r"no metric 'cover_em'. Did you mean 'cover-em'\?"),
        ("em", BadArgument, r"metrics is a list of names and functions, such as"),
        ([], BadArgument, "metrics is a list"),
        ([lambda example, prediction: 1.0], BadArgument, "is no metric: .*written with def"),
        ([eased, eased], BadArgument, "two metrics are called 'eased'"),
        ([answer], BadArgument, "a row of a run has a field 'answer'"),
        ([later], BadArgument, "is no metric: give a name, or a plain function"),
        ([7], BadArgument, "7 is no metric"),
        ([of_ten], BadArgument, "the metric of_ten returned 7.0 for question '[ab]': a score is 0 to 1"),
        ([wordy], BadArgument, "the metric wordy returned 'good' for question '[ab]'"),
        ([raising], RunFailed, "the metric raising raised AttributeError"),
    ],
)
def test_what_is_no_metric(metrics: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        evaluate(metrics=metrics)


def test_a_name_of_ours_is_taken() -> None:
    def em(example: Any, prediction: Any, trace: Any = None) -> float:
        return exact_match(prediction.answer, example.golden_answers)

    with pytest.raises(BadArgument, match="'em' is a metric of ours"):
        evaluate(metrics=[em])

"""A plain metric as DSPy's optimisers call it: a number, yes or no, or a score with words."""

from __future__ import annotations

from typing import Any

import dspy
import pytest

from blendfilter.compiling.measuring import AcceptingMetric, CompilationStopped, CompilationWatch, CountedMetric
from blendfilter.errors import BadArgument, ModelError
from blendfilter.tasks.loading import load

EXAMPLE = dspy.Example(question="Who?", golden_answers=["Ada", "A. B."]).with_inputs("question")
SAID = dspy.Prediction(answer="Ada Brennock")


def measured(metric: Any) -> CountedMetric:
    made = CountedMetric(metric, CompilationWatch(dspy.Module), lambda *_: None)
    made.begin("here", None)
    return made


def test_a_tasks_metric_is_read_in_three_ways() -> None:
    metric = measured(load("wow", "sample", limit=1).metric)
    assert metric(EXAMPLE, SAID) == pytest.approx(2 / 3)
    assert metric(EXAMPLE, SAID, []) is False
    said = metric(EXAMPLE, SAID, [], "answer", [])
    assert said.score == pytest.approx(2 / 3)
    assert said.feedback == (
        "The score is 0.67 of 1. The answer given was 'Ada Brennock', the right one is: Ada; A. B."
    )
    assert metric.done == 3


def test_a_metric_of_five_arguments_speaks_for_itself() -> None:
    def own(example: Any, prediction: Any, trace: Any = None, name: Any = None, part: Any = None) -> Any:
        return dspy.Prediction(score=0.5, feedback=f"about {name}")

    assert measured(own)(EXAMPLE, SAID, [], "answer", []).feedback == "about answer"


def test_what_a_metric_raises_ends_the_work() -> None:
    def broken(example: Any, prediction: Any, trace: Any = None) -> float:
        raise ZeroDivisionError("no")

    metric = measured(broken)
    with pytest.raises(CompilationStopped) as told:
        metric(EXAMPLE, SAID)
    assert isinstance(told.value.error, BadArgument)
    with pytest.raises(CompilationStopped):  # nobody goes on paying in another thread
        metric(EXAMPLE, SAID)


@pytest.mark.parametrize("value", [None, "0.5", float("nan"), [1], {"score": 1.0}])
def test_what_is_no_number_is_told(value: Any) -> None:
    metric = measured(lambda example, prediction, trace=None: value)
    with pytest.raises(CompilationStopped) as told:
        metric(EXAMPLE, SAID)
    assert "for a score: have it return a number" in str(told.value.error)


def test_yes_or_no_has_any_shape() -> None:
    assert (
        measured(lambda example, prediction, trace=None: None if trace is not None else 0.5)(EXAMPLE, SAID, []) is None
    )


def test_a_threshold_says_what_is_accepted() -> None:
    metric = measured(AcceptingMetric(load("wow", "sample", limit=1).metric, 0.6))
    assert metric(EXAMPLE, SAID) == pytest.approx(2 / 3)
    assert metric(EXAMPLE, SAID, []) is True
    assert measured(AcceptingMetric(metric.metric.metric, 0.7))(EXAMPLE, SAID, []) is False


def test_an_answerer_whose_prompt_is_too_long_scores_nothing() -> None:
    def asking(example: Any, prediction: Any, trace: Any = None) -> float:
        raise ModelError("too long", kind="context_too_long")

    assert measured(asking)(EXAMPLE, SAID) == 0.0

"""A metric as every optimiser of DSPy wants to call it, and the score of a program on questions held back.

In: anybody's metric, of (example, prediction, trace=None) or of GEPA's five arguments. Out: one that takes all five,
tells GEPA what was wrong in words, and counts. DSPy reads a metric in three ways: a number where it evaluates, yes or
no where it collects demonstrations (a trace is given), a score with feedback where GEPA reflects (a predictor is
named).
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dspy

from blendfilter.compiling.stopping import Stopped, Watch, for_good
from blendfilter.errors import BadArgument, BlendFilterError, words_of
from blendfilter.retrieval.base import ProgressCallback


@dataclass(frozen=True)
class Score:
    """A mean of `n` questions' scores; `failed` of them got no answer and count as 0."""

    value: float
    n: int
    failed: int = 0


@dataclass(frozen=True)
class Accepting:
    """`metric`, with the score from which an answer may become a demonstration.

    A task's own metric takes right answers alone; where answers are sentences, scored by F1, none ever is.
    """

    metric: Callable[..., Any]
    threshold: float

    def __call__(self, example: Any, prediction: Any, trace: Any = None) -> float | bool:
        score = float(self.metric(example, prediction))
        return score if trace is None else score >= self.threshold

    def weights(self) -> dict[str, float]:
        """Its threshold, for a recipe."""
        return {"threshold": self.threshold}


class Measured:
    """`metric`, counted, its own errors told as what they are.

    Args:
        metric: the metric.
        watch: what ends the work.
        progress: told how often it was asked.
    """

    def __init__(self, metric: Callable[..., Any], watch: Watch, progress: ProgressCallback) -> None:
        self.metric, self.watch, self.progress = metric, watch, progress
        self.phase, self.total, self.done = "", 0, 0
        self._five = _takes_five(metric)
        self._lock = threading.Lock()

    def begin(self, phase: str, total: int | None) -> None:
        """What is counted from now on."""
        self.phase, self.total, self.done = phase, total or 0, 0
        self.progress(phase, 0, total)

    def __call__(
        self, example: Any, prediction: Any, trace: Any = None, pred_name: Any = None, pred_trace: Any = None
    ) -> Any:
        self.watch.check()
        try:
            said = self._said(example, prediction, trace, pred_name, pred_trace)
        except (Stopped, KeyboardInterrupt):
            raise
        except BaseException as error:  # whatever a user's own code raises
            if not for_good(error):
                raise self.watch.stop(_told(error)) from error
            said = 0.0
        with self._lock:
            self.done += 1
            self.progress(self.phase, self.done, self.total or None)
        return said

    def _said(self, example: Any, prediction: Any, trace: Any, pred_name: Any, pred_trace: Any) -> Any:
        if self._five or pred_name is None:
            more = (pred_name, pred_trace) if self._five else ()
            said = self.metric(example, prediction, trace, *more)
            if pred_name is None and trace is not None:
                return said  # yes or no, in whatever shape
            return _scored(said, dspy.Prediction if pred_name is None else dspy.Prediction | Mapping)
        score = float(_scored(self.metric(example, prediction), dspy.Prediction))
        return dspy.Prediction(score=score, feedback=_feedback(score, example, prediction))


def _scored(said: Any, holding: Any) -> Any:
    """What a metric said, a number or what holds one (`holding` of these kinds may). Raises: BadArgument."""
    value: Any = said.get("score") if isinstance(said, holding) else said
    if isinstance(value, str) or not hasattr(value, "__float__") or not math.isfinite(float(value)):
        raise BadArgument(f"the metric gave {said!r:.60} for a score: have it return a number, best of 0 to 1")
    return said


def _takes_five(metric: Callable[..., Any]) -> bool:
    try:
        inspect.signature(metric).bind(None, None, None, None, None)
    except TypeError:
        return False
    return True


def _told(error: BaseException) -> Exception:
    if isinstance(error, BlendFilterError):
        return error
    what = f"{type(error).__name__}: {words_of(error)}"
    return BadArgument(f"the metric failed ({what}): mend it, what was asked so far is kept")


def _feedback(score: float, example: Any, prediction: Any) -> str:
    """What GEPA is told of an answer, where the metric gives no words of its own."""
    golden = example.get("golden_answers") or example.get("answer")
    listed = "; ".join(map(str, golden)) if isinstance(golden, list | tuple) else golden
    wanted = f", the right one is: {listed}" if listed else ""
    said = prediction.get("answer") if isinstance(prediction, dspy.Prediction) else prediction
    return f"The score is {score:.2f} of 1. The answer given was '{said}'{wanted}"


def score(program: dspy.Module, examples: Sequence[dspy.Example], metric: Measured, threads: int) -> Score:
    """The mean score of `program` on `examples`, each question's once.

    Raises: BadArgument: it fails on every one of them.
    """
    metric.watch.failed.clear()
    result = dspy.Evaluate(
        devset=list(examples), metric=metric, num_threads=threads, max_errors=len(examples) + 1, failure_score=0.0
    )(program)
    metric.watch.check()
    failed = sum(not prediction for _, prediction, _ in result.results)  # what DSPy puts where there is none
    if failed == len(examples) and metric.watch.failed:
        first = metric.watch.failed[0]
        why = f"{type(first).__name__}: {words_of(first)}"
        raise BadArgument(f"{type(program).__name__} fails on every question ({why}): mend it first")
    values = [float(said.score if isinstance(said, dspy.Prediction) else said) for *_, said in result.results]
    return Score(round(sum(values) / len(values), 6), len(values), failed)

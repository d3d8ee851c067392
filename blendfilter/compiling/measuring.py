"""A metric as every optimiser of DSPy calls it, the score of a program on held-back questions, and what ends the work.

DSPy reads a metric in three ways: a number where it evaluates, yes or no where it collects demonstrations (a trace is
given), a score with feedback where GEPA reflects (a predictor is named). `CountedMetric` makes one of any metric.

Optimisers swallow every exception and call it a score of 0. A server that is gone, a spent budget, a full disk and a
fault that may pass next time must not become a part of the program, because the next session would make another one:
they are raised as `CompilationStopped`, which is no `Exception`. What a model refuses for good (a prompt too long for
it) scores 0: it will be refused again.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import dspy

from blendfilter.compiling.programs import HeldOutScore
from blendfilter.dspy_surface import BaseCallback
from blendfilter.errors import (
    BadArgument,
    BlendFilterError,
    CompilationStopped,
    WorkFailed,
    for_good,
    words_of,
)
from blendfilter.lm.model import ConnectedLM
from blendfilter.retrieval.base import ProgressCallback

# --- what ends the work -----------------------------------------------------------------------------------------------


class CompilationWatch(BaseCallback):
    """Remembers the first error that ends the work, and the errors of `kind` of module that count as failed answers.

    A DSPy callback: an index that is gone is an error inside a module, which no model of ours sees.
    """

    def __init__(self, kind: type[dspy.Module]) -> None:
        self.kind = kind
        self.error: Exception | None = None
        self.failed: list[Exception] = []
        self._open: set[str] = set()
        self.calls: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None]] = []
        """Tasks that wait for a model, which are cancelled where the user stops the work."""
        self._lock = threading.Lock()

    def check(self) -> None:
        """Raise `CompilationStopped` once something ended the work: no thread goes on paying."""
        if self.error is not None:
            raise CompilationStopped(self.error)

    def stop(self, error: Exception) -> CompilationStopped:
        """`error` ends the work, unless an earlier one did."""
        with self._lock:
            self.error = self.error or error
            return CompilationStopped(self.error)

    def interrupt(self) -> None:
        """The user stops the work: threads that wait for a model, which nothing else can stop, wait no longer."""
        self.stop(WorkFailed("stopped by the user"))
        for loop, task in [*self.calls]:
            if task is not None:
                loop.call_soon_threadsafe(task.cancel)

    def on_module_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        """Note which calls are the whole module's: what a part raises, the whole may have an answer to."""
        if type(instance) is self.kind:
            self._open.add(call_id)

    def on_module_end(
        self, call_id: str, outputs: Any, exception: BaseException | None = None
    ) -> None:
        """Sort what a module raised: the end of the work, or a failed answer."""
        if call_id in self._open and isinstance(exception, Exception):
            if isinstance(exception, BlendFilterError | OSError) and not for_good(exception):
                # of the system: a connection of the module's own, a file that is gone
                self.stop(exception)
            self.failed.append(exception)


class GuardedLM(ConnectedLM):
    """A model whose faults end the work, unless they are for good."""

    watch: CompilationWatch

    async def samples(
        self, n: int, rollout_id: int | None, ask: Callable[[], Awaitable[Any]]
    ) -> Any:
        """As `ConnectedLM.samples`. Raises: CompilationStopped, ModelError."""
        self.watch.check()
        call = asyncio.get_running_loop(), asyncio.current_task()
        self.watch.calls.append(call)
        try:
            return await super().samples(n, rollout_id, ask)
        except asyncio.CancelledError:
            self.watch.check()  # which DSPy passes on, where it would log a cancellation as a failed question
            raise
        except CompilationStopped as stopped:
            raise self.watch.stop(stopped.error) from stopped.error
        except BlendFilterError as error:
            if for_good(error):
                raise
            raise self.watch.stop(error) from error
        finally:
            self.watch.calls.remove(call)


def guarded(lm: ConnectedLM, watch: CompilationWatch) -> GuardedLM:
    """The same model under `watch`, its journal and its limits kept."""
    kept: Any = lm.with_journal(lm.journal, lm.traffic)
    kept.__class__, kept.watch = GuardedLM, watch
    return kept  # type: ignore[no-any-return]


# --- metrics and scores -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AcceptingMetric:
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


class CountedMetric:
    """`metric` with all five arguments of DSPy's, counted for `progress`; its own errors end the work."""

    def __init__(
        self, metric: Callable[..., Any], watch: CompilationWatch, progress: ProgressCallback
    ) -> None:
        self.metric, self.watch, self.progress = metric, watch, progress
        self.phase, self.total, self.done = "", 0, 0
        try:
            inspect.signature(metric).bind(*[None] * 5)
            self._takes_five = True
        except TypeError:
            self._takes_five = False
        self._lock = threading.Lock()

    def begin(self, phase: str, total: int | None) -> None:
        """Count for another phase from now on."""
        self.phase, self.total, self.done = phase, total or 0, 0
        self.progress(phase, 0, total)

    def __call__(
        self,
        example: Any,
        prediction: Any,
        trace: Any = None,
        pred_name: Any = None,
        pred_trace: Any = None,
    ) -> Any:
        self.watch.check()
        try:
            value = self._value(example, prediction, trace, pred_name, pred_trace)
        except (CompilationStopped, KeyboardInterrupt):
            raise
        except BaseException as error:  # whatever a user's own code raises
            if isinstance(error, BlendFilterError):
                failed: Exception = error
            else:
                what = f"{type(error).__name__}: {words_of(error)}"
                words = f"the metric failed ({what}): mend it, what was asked so far is kept"
                failed = BadArgument(words).quoting(what)
            if not for_good(failed):
                raise self.watch.stop(failed) from error
            value = 0.0
        with self._lock:
            self.done += 1
            self.progress(self.phase, self.done, self.total or None)
        return value

    def _value(
        self, example: Any, prediction: Any, trace: Any, pred_name: Any, pred_trace: Any
    ) -> Any:
        if self._takes_five or pred_name is None:
            more = (pred_name, pred_trace) if self._takes_five else ()
            value = self.metric(example, prediction, trace, *more)
            if pred_name is not None or trace is None:  # else yes or no, in whatever shape
                _number(value)
            return value
        score = _number(self.metric(example, prediction))
        golden = example.get("golden_answers") or example.get("answer") or ()
        listed = "; ".join(map(str, golden)) if isinstance(golden, list | tuple) else golden
        answer = (
            prediction.get("answer") if isinstance(prediction, dspy.Prediction) else prediction
        )
        wanted = f", the right one is: {listed}" if listed else ""
        return dspy.Prediction(
            score=score,
            feedback=f"The score is {score:.2f} of 1. The answer given was '{answer}'{wanted}",
        )


def _number(value: Any) -> float:
    """A score, or that of what a metric gave with feedback. Raises: BadArgument."""
    number: Any = value.get("score") if isinstance(value, dspy.Prediction | Mapping) else value
    if (
        isinstance(number, str)
        or not hasattr(number, "__float__")
        or not math.isfinite(float(number))
    ):
        raise BadArgument(
            f"the metric gave {value!r:.60} for a score: have it return a number, best of 0 to 1"
        )
    return float(number)


class Scored(NamedTuple):
    """A mean score, each question's, and each prediction (empty where there is none)."""

    mean: HeldOutScore
    values: list[float]
    predictions: list[dspy.Prediction]


def score(
    program: dspy.Module, examples: Sequence[dspy.Example], metric: CountedMetric, threads: int
) -> Scored:
    """`program` on `examples`. Raises `BadArgument` where it fails on all of them."""
    metric.watch.failed.clear()
    result = dspy.Evaluate(
        devset=list(examples),
        metric=metric,
        num_threads=threads,
        max_errors=len(examples) + 1,
        failure_score=0.0,
    )(program)
    metric.watch.check()
    # what DSPy puts where there is none
    failed = sum(not prediction for _, prediction, _ in result.results)
    if failed == len(examples) and metric.watch.failed:
        first = metric.watch.failed[0]
        why = f"{type(first).__name__}: {words_of(first)}"
        quoted = words_of(first) if not isinstance(first, BlendFilterError) else first.quoted
        raise BadArgument(
            f"{type(program).__name__} fails on every question ({why}): mend it first"
        ).quoting(quoted)
    values = [_number(value) for *_, value in result.results]
    mean = HeldOutScore(round(sum(values) / len(values), 6), len(values), failed)
    return Scored(mean, values, [prediction for _, prediction, _ in result.results])

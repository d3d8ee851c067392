"""The ledger where much happens at once: many calls in flight, threads of DSPy's, two runs in one process, reuse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dspy
import pytest
from small_world import CountingEngine, done_by, slowly, stable

from blendfilter import BM25, BlendFilter, Run
from blendfilter.evaluation.run_status import RunStatus
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.prices import Price
from blendfilter.lm.profiles import Profile
from blendfilter.lm.terms import Terms
from blendfilter.resources import sample
from blendfilter.tasks import Questions


@pytest.fixture(scope="module")
def world() -> BM25:
    return BM25.build(sample("corpus.jsonl"))


def total(run: Run) -> dict[str, Any]:
    stored: dict[str, Any] = run.metrics["ledger"]["total"]
    return stored


class Parallel(dspy.Module):
    """Asks three times side by side, in threads of DSPy's, and once more for the first."""

    def __init__(self) -> None:
        super().__init__()
        self.guess = dspy.Predict("question, number -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        asked = [(self.guess, dspy.Example(question=question, number=str(n)).with_inputs("question", "number"))
                 for n in (1, 2, 3, 1)]  # fmt: skip
        with dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
            found = dspy.Parallel(num_threads=4, disable_progress_bar=True)(asked)
        return dspy.Prediction(answer=found[0].answer)


def numbered(prompt: str) -> str:
    return f"[[ ## answer ## ]]\n{prompt.count('1')} words\n[[ ## completed ## ]]"


def test_calls_in_threads_of_dspy_parallel_are_counted_each_once(questions: Questions, tmp_path: Path) -> None:
    run, engine = done_by(
        Parallel(), questions, tmp_path / "run", engine=CountingEngine(slowly(), reply=numbered), concurrency=32
    )
    assert run.errors == 0
    assert total(run)["calls"] == engine.calls == 3 * len(questions)
    assert total(run)["tokens_in"] == sum(len(prompt.split()) for prompt in engine.prompts)
    assert list(run.metrics["ledger"]) == ["guess", "total"]
    assert RunStatus(run).entries["guess"].hits == len(questions), "the fourth use of each is the first call again"


class Priced(CountingEngine):
    """The counting reader at a price."""

    def lm(self, name: str = "priced", **defaults: Any) -> ConnectedLM:
        terms = Terms(price=Price(10, 30, 1))
        return ConnectedLM(name, self, profile=Profile(), terms=terms, **{"temperature": 0.0, **defaults})


def test_calls_of_another_run_are_hits_and_metrics_do_not_change(
    world: BM25, questions: Questions, tmp_path: Path
) -> None:  # fmt: skip
    first, _ = done_by(BlendFilter(world), questions, tmp_path / "one", engine=Priced())
    second, engine = done_by(BlendFilter(world), questions, tmp_path / "two", engine=Priced(), reuse=[first.folder])
    assert engine.calls == 0
    assert stable(first.folder) == stable(second.folder)
    assert RunStatus(first).entries["total"].hits < RunStatus(second).entries["total"].hits
    calls = total(first)["calls"]
    assert RunStatus(second).entries["total"].hits == RunStatus(first).entries["total"].hits + calls
    cost = (10 * total(first)["tokens_in"] + 30 * total(first)["tokens_out"]) / 1e6
    assert total(second)["cost"] == pytest.approx(cost, abs=1e-6)

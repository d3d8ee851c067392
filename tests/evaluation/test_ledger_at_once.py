"""The ledger where much happens at once: many calls in flight, threads of DSPy's, two runs in one process, reuse."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import dspy
import pytest
from model_server import serve
from small_world import CountingEngine, Watching, done_by, journaled, slowly, stable

from blendfilter import BM25, BlendFilter, Direct, Run, connect, evaluate, load
from blendfilter.errors import CannotWrite
from blendfilter.evaluation.known import Known
from blendfilter.lm.call_policy import CallPolicy
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.prices import Price
from blendfilter.lm.profiles import Profile
from blendfilter.resources import sample
from blendfilter.tasks import Questions


@pytest.fixture(scope="module")
def world() -> BM25:
    return BM25.build(sample("corpus.jsonl"))


def total(run: Run) -> dict[str, Any]:
    stored: dict[str, Any] = run.metrics["ledger"]["total"]
    return stored


@pytest.mark.slow
def test_with_32_in_flight_it_is_the_servers_own_count(world: BM25, tmp_path: Path) -> None:
    with serve(reply="offline", delay=0.002, behave="flaky", share=0.1) as server:
        lm = connect("m", api_base=server.url)
        run = evaluate(
            BlendFilter(world), load("hotpotqa", "sample", limit=30), lm=lm, run=tmp_path, concurrency=32,
            progress=False,
        )  # fmt: skip
        counted = server.stats()
    assert counted["max_in_flight"] > 1  # how many really met depends on the machine's load
    assert (
        total(run)["calls"] == counted["statuses"]["200"] - counted["faults"]["html"] - counted["faults"]["truncated"]
    )
    assert (total(run)["tokens_in"], total(run)["tokens_out"]) == (counted["tokens_in"], counted["tokens_out"])
    entry = Known(run).entries["total"]
    assert entry.attempts == counted["requests"]
    assert entry.retries == sum(counted["faults"].values()) > 0
    stages = [values for stage, values in run.metrics["ledger"].items() if stage != "total"]
    for name in ("calls", "tokens_in", "tokens_out"):
        assert sum(stage[name] for stage in stages) == total(run)[name]


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
    assert Known(run).entries["guess"].hits == len(questions), "the fourth use of each is the first call again"


def test_two_runs_at_once_in_one_process_keep_apart(world: BM25, questions: Questions, tmp_path: Path) -> None:
    engine = CountingEngine(slowly())
    lm, runs = engine.lm(), {}
    methods = {"blend": BlendFilter(world), "direct": Direct(world)}

    def work(name: str) -> None:
        runs[name] = evaluate(methods[name], questions, lm=lm, run=tmp_path / name, progress=False)

    threads = [threading.Thread(target=work, args=(name,)) for name in methods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert engine.calls == sum(total(run)["calls"] for run in runs.values())
    for name, run in runs.items():
        alone, _ = done_by(methods[name], questions, tmp_path / f"{name}-alone")
        assert run.metrics["ledger"] == alone.metrics["ledger"]


class Priced(CountingEngine):
    """The counting reader at a price."""

    def lm(self, name: str = "priced", **defaults: Any) -> ConnectedLM:
        terms = CallPolicy(price=Price(10, 30, 1))
        return ConnectedLM(name, self, profile=Profile(), terms=terms, **{"temperature": 0.0, **defaults})


def test_calls_of_another_run_are_hits_and_metrics_do_not_change(
    world: BM25, questions: Questions, tmp_path: Path
) -> None:  # fmt: skip
    first, _ = done_by(BlendFilter(world), questions, tmp_path / "one", engine=Priced())
    second, engine = done_by(BlendFilter(world), questions, tmp_path / "two", engine=Priced(), reuse=[first.folder])
    assert engine.calls == 0
    assert stable(first.folder) == stable(second.folder)
    assert Known(first).entries["total"].hits < Known(second).entries["total"].hits
    calls = total(first)["calls"]
    assert Known(second).entries["total"].hits == Known(first).entries["total"].hits + calls
    cost = (10 * total(first)["tokens_in"] + 30 * total(first)["tokens_out"]) / 1e6
    assert total(second)["cost"] == pytest.approx(cost, abs=1e-6)


def test_what_is_stored_is_the_same_after_a_stop_and_in_a_replay(
    world: BM25, questions: Questions, tmp_path: Path
) -> None:  # fmt: skip
    whole, _ = done_by(BlendFilter(world), questions, tmp_path / "whole", engine=Priced())

    def stop(count: int) -> None:
        if count == 2:
            raise CannotWrite("no room")

    with pytest.raises(CannotWrite):
        evaluate(
            BlendFilter(world), questions, lm=Priced().lm(), run=tmp_path / "cut", concurrency=2,
            progress=Watching(stop),
        )  # fmt: skip
    rest, _ = done_by(BlendFilter(world), questions, tmp_path / "cut", engine=Priced())
    again, engine = done_by(BlendFilter(world), questions, tmp_path / "cut", engine=Priced(), replay=True)
    assert engine.calls == 0
    assert stable(whole.folder) == stable(rest.folder) == stable(again.folder)
    assert set(json.loads((rest.folder / "metrics.json").read_text())["ledger"]["total"]) == {
        "calls", "tokens_in", "tokens_out", "cost",
    }  # fmt: skip
    assert all(record["cost"] is not None for record in journaled(rest.folder))

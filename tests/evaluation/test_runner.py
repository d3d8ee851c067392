"""Runs of real methods over the sample world: what they leave, who may call, what is in flight, what grows.

The model is made up (it answers by rule, and counts); prompts, index, journal and runner are the package's own.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import time
import tracemalloc
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.clients.base_lm import GLOBAL_HISTORY
from small_world import CountingEngine, Watching, done_by, journaled, slowly, stable

from blendfilter import BM25, BlendFilter, ChainOfThought, Direct, Run, aevaluate, evaluate, load
from blendfilter.errors import BadArgument
from blendfilter.tasks import Questions

STAGES = {"external": 1, "internal": 1, "topic": 1, "check": 3, "ids": 3, "answer": 1, "short_answer": 1}


# what a run leaves


def test_run_json_says_what_was_asked(index: BM25, questions: Questions, tmp_path: Path) -> None:
    method = BlendFilter(index, k=4, without="q_in")
    run, _ = done_by(method, questions, tmp_path / "run", concurrency=3, seed=7)
    record = json.loads((run.folder / "run.json").read_text())
    assert set(record) == {"settings", "notes", "versions"}
    wanted = [question.id for question in questions]
    assert record["notes"] == {"address": "http://127.0.0.1:1/v1", "concurrency": 3, "questions": wanted}
    assert {"blendfilter", "python", "dspy"} <= set(record["versions"])
    settings = record["settings"]
    assert list(settings) == ["task", "metrics", "data", "method", "lm", "retrievers", "searched", "seed"]
    assert settings["data"] == {"source": "sample", "fingerprint": questions.fingerprint, "n": 6}
    assert settings["method"]["name"] == "blendfilter"
    assert settings["method"]["arguments"] == method.arguments()
    assert settings["lm"] == {"name": "counting", "parameters": {"temperature": 0.0}}
    assert settings["retrievers"] == [{"kind": "bm25", "fingerprint": index.fingerprint}]
    assert settings["searched"] == [{"corpus": "sample", "passages": 193}]
    assert settings["seed"] == 7


def test_calls_stand_in_plan_order_and_in_the_journal(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run, _ = done_by(BlendFilter(index), questions, tmp_path / "run", engine=CountingEngine(slowly()))
    records = {record["key"]: record for record in journaled(run.folder)}
    for row in run.rows:
        stages = [stage for stage, _ in row["calls"]]
        assert stages[:3] == ["external", "internal", "topic"]
        assert stages[3:-2] == ["check", "ids"] * (len(stages[3:-2]) // 2)
        assert stages[-2:] == ["answer", "short_answer"]
        assert all(records[key]["stage"] == stage for stage, key in row["calls"])
        assert all(row["question"] in str(records[key]["prompt"]) for _, key in row["calls"])


def test_metrics_json_has_these_fields(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run, engine = done_by(BlendFilter(index), questions, tmp_path / "run")
    metrics = json.loads((run.folder / "metrics.json").read_text())
    before, after = ["task", "method", "n", "metrics"], ["retrieval", "flags", "losses", "ledger", "signature"]
    assert list(metrics) == [*before, "searched", *after]
    assert metrics["searched"] == [{"corpus": "sample", "passages": 193}]
    assert (metrics["task"], metrics["method"], metrics["n"]) == ("hotpotqa", "blendfilter", 6)
    assert list(metrics["metrics"]) == ["em", "f1"]
    for score in metrics["metrics"].values():
        assert list(score) == ["value", "low", "high"]
        assert 0 <= score["low"] <= score["value"] <= score["high"] <= 1
    assert sum(metrics["losses"].values()) == 6
    assert list(metrics["ledger"]) == [*STAGES, "total"]
    for stage, entry in metrics["ledger"].items():
        assert list(entry) == ["calls", "tokens_in", "tokens_out", "cost"]
        assert entry["calls"] == (engine.calls if stage == "total" else engine.stages[stage])
        assert entry["cost"] is None


def test_the_journal_holds_each_passage_once_and_no_search_twice(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    run, _ = done_by(BlendFilter(index), questions, tmp_path / "run")
    passages = [record["id"] for record in journaled(run.folder, "passage")]
    assert len(passages) == len(set(passages)) > 6
    keys = [record["key"] for record in journaled(run.folder, "search")]
    assert len(keys) == len(set(keys)) == 24, "three queries, and the question alone beside their union"
    for line in (run.folder / "journal.jsonl").read_text().splitlines():
        assert re.match(r'\{"key":"[0-9a-f]{32}","kind":"(call|search|passage)",', line)


def test_rows_stand_in_question_order_whoever_finished_first(index: BM25, questions: Questions, tmp_path: Path) -> None:
    async def the_first_is_slow(_: str, prompt: str) -> None:
        await asyncio.sleep(0.2 if questions[0].question in prompt else 0)

    watching = Watching()
    engine = CountingEngine(the_first_is_slow)
    run = evaluate(Direct(index), questions, lm=engine.lm(), run=tmp_path / "run", progress=watching)
    wanted = [question.id for question in questions]
    assert watching.order[-1] == wanted[0], "the first finished last"
    assert sorted(watching.order) == sorted(wanted)
    assert [row["id"] for row in run.rows] == wanted
    assert (watching.started, watching.stopped) == ((6, 0), 1)
    total = run.metrics["ledger"]["total"]
    assert watching.tokens == total["tokens_in"] + total["tokens_out"]


def test_nothing_of_clock_place_address_or_haste_is_stored(index: BM25, questions: Questions, tmp_path: Path) -> None:
    one, _ = done_by(BlendFilter(index), questions, tmp_path / "here", concurrency=1)
    engine = CountingEngine(slowly())
    lm = engine.lm()
    lm.address = "http://127.0.0.1:2/v1"
    other = evaluate(
        BlendFilter(index), questions, lm=lm, run=tmp_path / "quite" / "elsewhere", concurrency=32, progress=False
    )
    assert stable(one.folder) == stable(other.folder)
    stored = b"".join(stable(one.folder).values()).decode()
    for result in (str(tmp_path), "here", "127.0.0.1", "http", "concurrency", "seconds", "address", "attempts", "time"):
        assert not re.search(rf'"[^"]*{re.escape(result)}[^"]*":', stored), result
    assert str(tmp_path) not in stored
    assert "127.0.0.1" not in stored
    assert not re.search(rf"{time.gmtime().tm_year}-\d\d-\d\d|\d\d:\d\d:\d\d", stored)


# callers


def test_evaluate_inside_a_running_loop(index: BM25, questions: Questions, tmp_path: Path) -> None:
    """As in a notebook."""

    async def cell() -> Run:
        return done_by(ChainOfThought(index), questions, tmp_path / "notebook")[0]

    run = asyncio.run(cell())
    awaited = asyncio.run(
        aevaluate(ChainOfThought(index), questions, lm=CountingEngine().lm(), run=tmp_path / "awaited", progress=False)
    )
    plain, _ = done_by(ChainOfThought(index), questions, tmp_path / "plain")
    assert stable(run.folder) == stable(awaited.folder) == stable(plain.folder)


# calls in flight


@pytest.mark.parametrize("concurrency", [1, 4])
def test_no_more_calls_in_flight_than_asked(
    concurrency: int, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    engine = CountingEngine(slowly(0.002))
    done_by(BlendFilter(index), questions, tmp_path / "run", engine=engine, concurrency=concurrency)
    assert engine.most_in_flight == concurrency
    with pytest.raises(BadArgument, match="concurrency is 0"):
        done_by(BlendFilter(index), questions, tmp_path / "none", concurrency=0)
    assert not (tmp_path / "none").exists()


class Chain(dspy.Module):
    """Six calls one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict("question, turn -> answer")

    async def aforward(self, question: str) -> dspy.Prediction:
        for turn in range(6):
            result = await self.ask.acall(question=question, turn=str(turn))
        return result


def test_a_call_carries_its_questions_rank(tmp_path: Path) -> None:
    """The gate serves the lowest rank first: a question's place in the run, and one rank for the last four."""
    questions = load("hotpotqa", "sample", limit=24)
    engine = CountingEngine(slowly(0.001))
    run, _ = done_by(Chain(), questions, tmp_path / "run", engine=engine, concurrency=4)
    asked_by = [next(i for i, q in enumerate(questions) if q.question in prompt) for prompt in engine.prompts]
    assert Counter(asked_by) == dict.fromkeys(range(24), 6)
    assert engine.orders == [min(asker, 20) for asker in asked_by]
    begun = sorted(range(24), key=asked_by.index)
    assert all(abs(place - number) < 8 for place, number in enumerate(begun)), "never more than eight at work"
    assert [row["id"] for row in run.rows] == [question.id for question in questions]


# what grows


def many(count: int) -> Questions:
    """So many questions that differ, made of the sample's."""
    few = load("hotpotqa", "sample", limit=60)
    items = [
        replace(few[at % 60], id=f"q{at}", question=f"{few[at % 60].question} ({at // 60})") for at in range(count)
    ]
    return Questions(tuple(items), few.task)


@pytest.mark.slow
def test_a_run_takes_less_than_a_kilobyte_a_call(index: BM25, tmp_path: Path) -> None:
    """Between the 30th and the 270th of 300 questions, in turn: rows, journal index, notes, traces, histories."""
    method, taken = BlendFilter(index), {}

    def measure(count: int) -> None:
        if count in (30, 270):
            gc.collect()
            taken[count] = tracemalloc.get_traced_memory()[0]

    GLOBAL_HISTORY.clear()  # full, it would not grow whatever was added
    done_by(method, many(60), tmp_path / "first")  # the reader's and the analyser's memos, which are bounded, fill
    engine = CountingEngine()
    engine.prompts, engine.orders = Forgetful(), Forgetful()
    lm = engine.lm()
    tracemalloc.start()
    try:
        run = evaluate(method, many(300), lm=lm, run=tmp_path / "run", progress=Watching(measure), concurrency=1)
    finally:
        tracemalloc.stop()
    calls = run.metrics["ledger"]["total"]["calls"]
    assert calls >= 3000
    grown = (taken[270] - taken[30]) / (calls * 240 / 300)
    assert grown <= 1000, f"{grown:.0f} bytes a call"
    assert not GLOBAL_HISTORY, "DSPy's history does not grow"
    assert not lm.history
    assert not any(predictor.history for predictor in method.predictors())


class Forgetful(list[Any]):
    """A list that keeps nothing, so that only the runner's memory is measured."""

    def append(self, item: Any) -> None:
        """Forget it."""

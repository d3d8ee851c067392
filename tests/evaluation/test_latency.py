"""Busy seconds: the union of a question's calls in flight."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import dspy
import pytest
from dspy import lm15
from hypothesis import given
from hypothesis import strategies as st
from small_world import CountingEngine, done_by, journaled

from blendfilter import BM25, BlendFilter, ChainOfThought, Direct
from blendfilter.evaluation.ledger import busy_seconds, latency
from blendfilter.journal import Journal
from blendfilter.tasks import Questions

calls = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12)


def timed(*pairs: tuple[float, float]) -> list[dict[str, float]]:
    return [{"at": at, "seconds": seconds} for at, seconds in pairs]


def test_worked_by_hand() -> None:
    """[0, 2] and [1, 3] overlap, [1, 1.5] lies inside, [5, 6] stands alone: 3 + 1."""
    assert busy_seconds(timed((1, 2), (5, 1), (0, 2), (1, 0.5))) == 4
    assert busy_seconds([]) == 0
    assert busy_seconds([*timed((0, 2)), {"seconds": 3.0}, {"at": None, "seconds": 1.0}]) == 6


@given(calls)
def test_it_is_the_number_of_seconds_in_which_something_is_in_flight(pairs: list[tuple[int, int]]) -> None:
    busy = {second for at, seconds in pairs for second in range(at, at + seconds)}
    assert busy_seconds(timed(*pairs)) == len(busy)


def test_of_a_run_branches_side_by_side_count_once(index: BM25, questions: Questions, tmp_path: Path) -> None:
    """Calls of 20 ms: five deep, eleven in all. Where calls wait for a place, the wait does not count."""

    async def wait(_stage: str, _prompt: str) -> None:
        await asyncio.sleep(0.02)

    run, _ = done_by(BlendFilter(index), questions[:3], tmp_path / "run", engine=CountingEngine(wait), concurrency=32)
    told = latency(run)
    assert told.n == 3
    assert told.median >= 5 * 0.02
    one_by_one = sum(call["seconds"] for call in journaled(run.folder)) / 3
    assert told.mean < 0.8 * one_by_one, "five deep of eleven is less than half"
    assert told.median <= told.p95
    began = time.perf_counter()
    few, _ = done_by(Direct(index), questions, tmp_path / "few", engine=CountingEngine(wait), concurrency=1)
    whole = time.perf_counter() - began
    assert latency(few.folder).mean >= 0.02
    assert latency(few.folder).mean * len(questions) <= whole, "with their waits they would be longer than all of it"
    starts = sorted(call["at"] for call in journaled(few.folder))
    assert starts[-1] - starts[0] >= 5 * 0.018, "it went out after its wait"


def test_a_journal_of_before_counts_its_seconds(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run, _ = done_by(ChainOfThought(index), questions[:2], tmp_path / "run")
    with Journal(run.folder) as journal:
        for record in [each for each in journal.records() if each["kind"] == "call"]:
            journal.append({name: value for name, value in record.items() if name != "at"} | {"seconds": 2.0})
    assert latency(run).median == 4.0


def test_no_calls_no_latency(questions: Questions, tmp_path: Path) -> None:
    class Yes(dspy.Module):
        def forward(self, question: str) -> dspy.Prediction:
            return dspy.Prediction(answer="yes")

    run, _ = done_by(Yes(), questions, tmp_path / "run")
    assert latency(run) == pytest.approx((0, 0, 0, 6))


def test_an_answer_that_stopped_early_is_left_out(index: BM25, questions: Questions, tmp_path: Path) -> None:
    async def refuse(stage: str, prompt: str) -> None:
        if stage == "short_answer" and questions[0].question in prompt:
            raise lm15.ContextLengthError("too many", status=400)

    run, _ = done_by(ChainOfThought(index), questions, tmp_path / "run", engine=CountingEngine(refuse))
    assert [row["error"] is None for row in run.rows].count(False) == 1
    assert latency(run).n == len(questions) - 1


def test_a_call_that_one_answer_used_twice_took_its_time_once(questions: Questions, tmp_path: Path) -> None:
    class Twice(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ask = dspy.Predict("question -> answer")

        async def aforward(self, question: str) -> dspy.Prediction:
            await self.ask.acall(question=question)
            return await self.ask.acall(question=question)

    run, engine = done_by(Twice(), questions[:2], tmp_path / "run")
    assert (engine.calls, len(run.rows[0]["calls"])) == (2, 2)
    with Journal(run.folder) as journal:  # without the time a call went out, it counts each time it is met
        for record in [each for each in journal.records() if each["kind"] == "call"]:
            journal.append({name: value for name, value in record.items() if name != "at"} | {"seconds": 2.0})
    assert latency(run).median == 2.0

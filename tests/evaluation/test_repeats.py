"""Every question answered several times: what is called, what is kept, and how such runs stop, go on, grow, replay."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15
from small_world import ROW, CountingEngine, Watching, done_by, journaled, slowly, stable

from blendfilter import BM25, BlendFilter, ChainOfThought, Direct, evaluate
from blendfilter.context import asker
from blendfilter.errors import BadArgument, ReplayMiss, RunMismatch
from blendfilter.tasks import Questions


def wavering() -> CountingEngine:
    """A server that varies at temperature 0: it answers by the repeat that asks."""
    return CountingEngine(reply=lambda prompt: f"answer {asker().repeat}")


def test_every_question_is_answered_so_many_times(index: BM25, questions: Questions, tmp_path: Path) -> None:
    watching, engine = Watching(), wavering()
    run = evaluate(
        Direct(index), questions, lm=engine.lm(), run=tmp_path / "run", progress=watching, repeats=3, concurrency=2
    )
    assert engine.calls == 3 * 6
    assert watching.started == (18, 0)
    wanted = [question.id for question in questions]
    assert [(row["repeat"], row["id"]) for row in run.rows] == [(r, id) for r in (1, 2, 3) for id in wanted]
    assert [row["answer"] for row in run.rows] == [f"answer {r}" for r in (1, 2, 3) for _ in wanted]
    assert list(run.rows[0]) == ["id", "repeat", *ROW[1:]]
    assert run.settings["repeats"] == 3
    assert (run.metrics["n"], run.metrics["repeats"]) == (6, 3)
    assert list(run.metrics["metrics"]["em"]) == ["value", "low", "high", "between_repeats"]
    assert run.metrics["ledger"]["total"]["calls"] == 18
    assert sum(run.metrics["losses"].values()) == 18
    assert list(run.frame().index[:1]) == [(wanted[0], 1)]


def test_the_first_answer_is_that_of_a_plain_run(index: BM25, questions: Questions, tmp_path: Path) -> None:
    plain, _ = done_by(BlendFilter(index), questions, tmp_path / "plain")
    run, engine = done_by(BlendFilter(index), questions, tmp_path / "run", repeats=2, reuse=[tmp_path / "plain"])
    assert engine.calls == plain.metrics["ledger"]["total"]["calls"]
    first = [{key: value for key, value in row.items() if key != "repeat"} for row in run.rows[:6]]
    assert first == plain.rows
    keys = [{key for row in run.rows if row["repeat"] == repeat for _, key in row["calls"]} for repeat in (1, 2)]
    assert not keys[0] & keys[1]
    assert {json.dumps(call["sample"]) for call in journaled(run.folder)} == {"[null, 0]", "[null, 0, 2]"}


class Voting(dspy.Module):
    """Three samples a question, the third by its own rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict("question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        two = self.ask(question=question, config={"n": 2, "temperature": 0.7})
        one = self.ask(question=question, config={"rollout_id": 7, "temperature": 0.7})
        return dspy.Prediction(answer=f"{two.answer} {one.answer}")


def test_samples_keep_apart_within_a_repeat(questions: Questions, tmp_path: Path) -> None:
    """A synchronous module in worker threads: the repeat goes along."""
    run, engine = done_by(Voting(), questions[:2], tmp_path / "run", repeats=2)
    assert engine.calls == 2 * 2 * 3
    samples = sorted(call["sample"] for call in journaled(run.folder) if call["sample"][0] is None)
    assert samples == sorted([[None, i] for i in (0, 1)] * 2 + [[None, i, 2] for i in (0, 1)] * 2)
    assert sorted(call["sample"] for call in journaled(run.folder) if call["sample"][0]) == [
        [7, 0],
        [7, 0],
        [7, 0, 2],
        [7, 0, 2],
    ]


class Leaving(Exception):
    """The user goes."""


@pytest.mark.parametrize("after", [2, 7])
def test_stopped_and_taken_up_again_it_is_the_same_run(
    after: int, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    method = ChainOfThought(index)
    whole, undisturbed = done_by(method, questions, tmp_path / "whole", repeats=2)

    def leave(count: int) -> None:
        if count == after:
            raise Leaving

    engine = CountingEngine(slowly())
    with pytest.raises(Leaving):
        evaluate(
            method, questions, lm=engine.lm(), run=tmp_path / "run", progress=Watching(leave), repeats=2, concurrency=2
        )
    watching, second = Watching(), CountingEngine()
    again = evaluate(method, questions, lm=second.lm(), run=tmp_path / "run", progress=watching, repeats=2)
    assert stable(again.folder) == stable(whole.folder)
    assert watching.started is not None
    assert watching.started[0] == 12
    assert watching.started[1] >= after - 1
    assert len({call["key"] for call in journaled(again.folder)}) == undisturbed.calls


def test_a_finished_run_may_be_given_more_repeats(index: BM25, questions: Questions, tmp_path: Path) -> None:
    method = ChainOfThought(index)
    whole, undisturbed = done_by(method, questions, tmp_path / "whole", repeats=3)
    _, first = done_by(method, questions, tmp_path / "run")
    _, second = done_by(method, questions, tmp_path / "run", repeats=2)
    grown, third = done_by(method, questions, tmp_path / "run", repeats=3)
    assert first.calls == second.calls == third.calls == undisturbed.calls / 3
    assert stable(grown.folder) == stable(whole.folder)
    assert grown.settings == whole.settings


def test_fewer_repeats_are_refused_by_name(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run, _ = done_by(Direct(index), questions, tmp_path / "run", repeats=3)
    before = stable(run.folder)
    for repeats in (1, 2):
        with pytest.raises(RunMismatch, match=f"is a run of 3 answers .*, not {repeats}: ask for 3 repeats"):
            done_by(Direct(index), questions, run.folder, repeats=repeats)
    assert stable(run.folder) == before
    with pytest.raises(ReplayMiss, match="not in the journal"):
        done_by(Direct(index), questions, run.folder, repeats=4, replay=True)
    assert stable(run.folder) == before


def test_an_error_of_one_repeat_is_asked_again(index: BM25, questions: Questions, tmp_path: Path) -> None:
    whole, _ = done_by(Direct(index), questions, tmp_path / "whole", repeats=2)

    async def refuse(_stage: str, prompt: str) -> None:
        if asker().repeat == 2 and questions[1].question in prompt:
            raise lm15.ContextLengthError("too many", status=400)

    run, _ = done_by(Direct(index), questions, tmp_path / "run", repeats=2, engine=CountingEngine(refuse))
    assert [(row["id"], row["repeat"]) for row in run.rows if row["error"]] == [(questions[1].id, 2)]
    assert list(run.rows[7]) == ["id", "repeat", *ROW[1:]]
    again, engine = done_by(Direct(index), questions, tmp_path / "run", repeats=2)
    assert engine.calls == 1
    assert stable(again.folder) == stable(whole.folder)


@pytest.mark.parametrize("repeats", [0, 1.5, True])
def test_no_such_number_of_repeats(repeats: Any, index: BM25, questions: Questions, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match=r"repeats is .*give a whole number of 1 or more"):
        done_by(Direct(index), questions, tmp_path / "run", repeats=repeats)
    assert not (tmp_path / "run").exists()

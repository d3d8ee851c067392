"""A user's edited method is another method; predictors with a model of their own take part in the run."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path
from typing import Any

import dspy
import pytest
from small_world import CountingEngine, done_by, journaled, stable

from blendfilter import BM25, BlendFilter, Direct, Run, evaluate
from blendfilter.errors import BudgetSpent, RunMismatch
from blendfilter.journal import Journal
from blendfilter.lm.budget import Budget
from blendfilter.tasks import Questions

# code of one's own

BASE = """
import dspy

class Base(dspy.Module):
    def __init__(self, hops=1):
        super().__init__()
        self.hops = hops

    def said(self):
        return "old base"
"""
MINE = """

class Mine(Base):
    async def aforward(self, question):
        return dspy.Prediction(answer=f"one, {self.hops} hops, {self.said()}")
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes the user's file and imports it anew: (code) -> its class."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def made(code: str) -> type[dspy.Module]:
        (tmp_path / "edited_methods.py").write_text(code, encoding="utf-8")
        sys.modules.pop("edited_methods", None)
        importlib.invalidate_caches()
        kind: type[dspy.Module] = importlib.import_module("edited_methods").Mine
        return kind

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield made
    sys.modules.pop("edited_methods", None)


@pytest.mark.parametrize(
    ("code", "hops"),
    [
        (BASE + MINE.replace("one,", "two,"), 1),
        (BASE + MINE, 7),
        (BASE.replace("old base", "new base") + MINE, 1),
    ],
    ids=["its source", "a constructor value", "a class it builds on"],
)
def test_an_edited_method_is_refused_in_the_old_folder(
    code: str, hops: int, mine: Any, questions: Questions, tmp_path: Path
) -> None:
    run, _ = done_by(mine(BASE + MINE)(), questions, tmp_path / "run")
    assert run.rows[0]["answer"] == "one, 1 hops, old base"
    before = stable(run.folder)
    again, _ = done_by(mine(BASE + MINE)(), questions, tmp_path / "run")
    assert stable(again.folder) == before, "the same code imported anew is the same method"
    with pytest.raises(RunMismatch, match=r"method\.code was '[0-9a-f]{12}', now '[0-9a-f]{12}'"):
        done_by(mine(code)(hops), questions, tmp_path / "run")
    assert stable(run.folder) == before


# models of one's own


def with_own_model(method: dspy.Module, lm: dspy.BaseLM) -> dspy.Module:
    method.set_lm(lm)
    return method


def test_a_predictors_own_model_is_journaled_counted_and_replayed(questions: Questions, tmp_path: Path) -> None:
    runs, own = CountingEngine(), CountingEngine()
    lm = own.lm("own")
    method = with_own_model(Direct(), lm)
    run, _ = done_by(method, questions, tmp_path / "run", engine=runs)
    assert (runs.calls, own.calls) == (0, len(questions))
    assert run.errors == 0
    assert run.metrics["ledger"]["total"]["calls"] == run.metrics["ledger"]["direct"]["calls"] == len(questions)
    assert {record["model"] for record in journaled(run.folder)} == {"own"}
    assert {key for row in run.rows for _, key in row["calls"]} == {r["key"] for r in journaled(run.folder)}
    assert run.settings["lm"]["name"] == "counting"
    assert {name: each["name"] for name, each in run.settings["lm"]["of"].items()} == {"direct": "own"}
    before = stable(run.folder)
    again, _ = done_by(method, questions, tmp_path / "run", replay=True, engine=runs)
    assert (runs.calls, own.calls) == (0, len(questions)), "a replay asks nobody"
    assert stable(again.folder) == before


class AsksAnother(dspy.Module):
    """Asks a model that it holds under a name of its own, by itself and through a predictor."""

    def __init__(self, big: dspy.BaseLM) -> None:
        super().__init__()
        self.direct = Direct()
        self.big = big

    def forward(self, question: str) -> dspy.Prediction:
        self.big(f"Think of it: {question}")
        with dspy.context(lm=self.big):
            return self.direct(question=question)


def test_a_model_under_any_name_is_journaled_counted_and_held_to_the_limits(
    questions: Questions, tmp_path: Path
) -> None:
    runs, own = CountingEngine(), CountingEngine()
    lm = own.lm("own")
    method, n = AsksAnother(lm), len(questions)
    with pytest.raises(BudgetSpent):
        evaluate(method, questions, lm=runs.lm(), run=tmp_path / "run", budget=Budget(calls=2 * n - 1), progress=False)
    assert (runs.calls, own.calls) == (0, 2 * n - 1)
    run = evaluate(method, questions, lm=runs.lm(), run=tmp_path / "run", progress=False)
    assert (runs.calls, own.calls) == (0, 2 * n)
    assert run.metrics["ledger"]["total"]["calls"] == 2 * n
    assert {name: each["name"] for name, each in run.settings["lm"]["of"].items()} == {"big": "own"}
    assert method.big is lm
    assert lm.journal is None


def test_another_own_model_is_another_run(questions: Questions, tmp_path: Path) -> None:
    done_by(with_own_model(Direct(), CountingEngine().lm("own")), questions, tmp_path / "run")
    with pytest.raises(RunMismatch, match=r"lm\.of\.direct\.name was 'own', now 'other'"):
        done_by(with_own_model(Direct(), CountingEngine().lm("other")), questions, tmp_path / "run")
    with pytest.raises(RunMismatch, match=r"lm\.of"):
        done_by(Direct(), questions, tmp_path / "run")


def test_the_gate_counts_the_calls_of_every_model(index: BM25, questions: Questions, tmp_path: Path) -> None:
    async def wait(_stage: str, _prompt: str) -> None:
        await asyncio.sleep(0.002)

    engine = CountingEngine(wait)
    method = BlendFilter(index)
    method.blending.internal.lm = engine.lm("own")
    run = evaluate(method, questions, lm=engine.lm(), run=tmp_path / "run", concurrency=2, progress=False)
    assert engine.most_in_flight == 2
    assert {record["model"] for record in journaled(run.folder)} == {"own", "counting"}


class Plain(dspy.BaseLM):
    """A model in DSPy's older way."""

    asked = 0

    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        from openai.types.chat import ChatCompletion

        type(self).asked += 1
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hathermouth"}}
        usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
        head = {"id": "x", "object": "chat.completion", "created": 0, "model": "plain"}
        return ChatCompletion.model_validate({**head, "choices": [choice], "usage": usage})


def test_a_model_of_dspys_is_connected_for_the_run(questions: Questions, tmp_path: Path) -> None:
    lm = Plain("plain", temperature=0.0)
    method = with_own_model(Direct(), lm)
    run, engine = done_by(method, questions, tmp_path / "run")
    assert (engine.calls, Plain.asked) == (0, len(questions))
    assert run.metrics["ledger"]["total"] == {"calls": 6, "tokens_in": 60, "tokens_out": 6, "cost": None}
    assert method.direct.lm is lm
    again, _ = done_by(method, questions, tmp_path / "run", replay=True)
    assert Plain.asked == len(questions)
    assert again.rows == run.rows == Run(run.folder).rows
    with Journal(run.folder) as journal:
        assert len(list(journal.records())) == len(questions)

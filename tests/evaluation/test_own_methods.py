"""Modules and models of one's own under the runner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest
from small_world import CountingEngine, done_by, journaled, stable

from blendfilter import BM25, Direct, Passage, evaluate
from blendfilter.errors import (
    EmptyData,
)
from blendfilter.evaluation.runner import OFFLINE_NOTE
from blendfilter.resources import sample
from blendfilter.tasks import Questions

# modules of one's own


class Yes(dspy.Module):
    def forward(self, question: str) -> dspy.Prediction:
        return dspy.Prediction(answer="yes")


def answering(knowledge: Any, index: BM25) -> dspy.Module:
    class Own(dspy.Module):
        def forward(self, question: str) -> dspy.Prediction:
            found = index.search([question], 2)[0]
            return dspy.Prediction(answer=found[0].title, knowledge=[knowledge(passage) for passage in found])

    return Own()


@pytest.mark.parametrize(
    "shape",
    [
        lambda passage: passage,
        lambda passage: passage.line,
        lambda passage: {"title": passage.title, "text": passage.text, "id": passage.id},
        lambda passage: {"long_text": passage.line, "pid": passage.id},
    ],
    ids=["Passage", "line", "mapping", "long_text"],
)
def test_knowledge_in_any_shape(
    shape: Callable[[Passage], Any], index: BM25, questions: Questions, tmp_path: Path
) -> None:
    run, engine = done_by(answering(shape, index), questions, tmp_path / "run")
    same, _ = done_by(answering(lambda passage: passage, index), questions, tmp_path / "same")
    assert engine.calls == 0
    for row, other in zip(run.rows, same.rows, strict=True):
        assert row["answer"] == other["answer"] != ""
        assert len(row["knowledge"]) == 2
        assert row["retrieval"] == other["retrieval"]
        assert list(row["retrieval"]) == ["union", "kept"]
        assert row["loss"] == other["loss"]
    assert run.metrics["retrieval"]["kept"]["recall"] > 0


class Sync(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict("question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        return self.ask(question=question)


class Async(Sync):
    async def aforward(self, question: str) -> dspy.Prediction:
        return await self.ask.acall(question=question)


class Bare(Sync):
    async def aforward(self, question: str) -> str:
        return (await self.ask.acall(question=question)).answer


@pytest.mark.parametrize(
    ("method", "stage"),
    [
        (Sync, "ask"),
        (Async, "ask"),
        (Bare, "ask"),
        (lambda: dspy.Predict("question -> answer"), "predict"),
        (lambda: dspy.ChainOfThought("question -> answer"), "predict"),
    ],
    ids=["sync", "async", "a bare string", "Predict", "ChainOfThought"],
)
def test_any_module_of_dspys(
    method: Callable[[], dspy.Module], stage: str, questions: Questions, tmp_path: Path
) -> None:
    run, engine = done_by(method(), questions, tmp_path / "run")
    assert run.errors == 0, run.rows
    assert engine.calls == 6
    assert [row["queries"] for row in run.rows] == [{}] * 6
    for row in run.rows:
        [(told, key)] = row["calls"]
        assert told == stage
        assert isinstance(row["answer"], str)
        assert row["answer"] != "None"
        assert key in {record["key"] for record in journaled(run.folder)}
    replayed, silent = done_by(method(), questions, tmp_path / "run", replay=True)
    assert silent.calls == 0
    assert replayed.rows == run.rows


def test_a_search_in_a_module_of_ones_own_is_journaled(index: BM25, questions: Questions, tmp_path: Path) -> None:
    searched: list[str] = []

    class Spying(BM25):
        def find(self, queries: Any, k: int) -> Any:
            searched.extend(queries)
            return super().find(queries, k)

    class Own(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.index = Spying.build(sample("corpus.jsonl"))

        def forward(self, question: str) -> dspy.Prediction:
            return dspy.Prediction(answer="x", knowledge=self.index(question, k=3))

    method = Own()
    run, _ = done_by(method, questions, tmp_path / "run")
    assert sorted(searched) == sorted(question.question for question in questions)
    assert run.settings["retrievers"] == [{"kind": "bm25", "fingerprint": index.fingerprint}]
    searched.clear()
    again, _ = done_by(method, questions, tmp_path / "run", replay=True)
    assert searched == []
    assert again.rows == run.rows


def test_rows_in_memory_are_questions_of_the_task_qa(tmp_path: Path) -> None:
    rows = [{"question": "Which town?", "answer": "Tavenby"}, {"question": "Who?", "answers": ["yes", "Yes!"]}]
    run = evaluate(Yes(), rows, lm="offline", run=tmp_path / "run", progress=False)
    assert run.settings["task"] == "qa"
    assert [row["em"] for row in run.rows] == [0.0, 1.0]
    with pytest.raises(EmptyData, match="no questions"):
        evaluate(Yes(), [], lm="offline", run=tmp_path / "none", progress=False)
    assert not (tmp_path / "none").exists()


class Own(dspy.BaseLM):
    """A model of the user's own, in DSPy's older way."""

    asked = 0  # of the class: DSPy copies instances

    def __init__(self) -> None:
        super().__init__(model="own", temperature=0.0)

    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        type(self).asked += 1
        from openai.types.chat import ChatCompletion

        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Hathermouth"}}
        usage = {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11}
        head = {"id": "x", "object": "chat.completion", "created": 0, "model": "own"}
        return ChatCompletion.model_validate({**head, "choices": [choice], "usage": usage})


def test_the_model_may_be_anything_dspy_knows(
    index: BM25, questions: Questions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = evaluate(Direct(index), questions, lm=Own(), run=tmp_path / "own", progress=False)
    assert (run.settings["lm"]["name"], Own.asked) == ("own", 6)
    assert {row["answer"] for row in run.rows} == {"Hathermouth"}
    assert run.metrics["ledger"]["total"] == {"calls": 6, "tokens_in": 60, "tokens_out": 6, "cost": None}
    engine = CountingEngine()
    with dspy.context(lm=engine.lm()):
        run = evaluate(Direct(index), questions, run=tmp_path / "configured", progress=False)
    assert (run.settings["lm"]["name"], engine.calls) == ("counting", 6)
    assert not caplog.records
    run = evaluate(Direct(index), questions, run=tmp_path / "none", progress=False)
    assert run.settings["lm"]["name"] == "offline"
    assert [record.getMessage() for record in caplog.records] == [OFFLINE_NOTE]
    named = evaluate(Direct(index), questions, lm="offline", run=tmp_path / "named", progress=False)
    assert len(caplog.records) == 1, "nothing to say where the reader was asked for"
    assert stable(named.folder) == stable(run.folder)

"""A user's own modules, models and code under the runner, and much of it at once."""

from __future__ import annotations

import asyncio
import importlib
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest
from scripted import response
from small_world import CountingEngine, done_by, journaled, slowly, stable

from blendfilter import BM25, BlendFilter, Direct, FullFilter, evaluate, load
from blendfilter.errors import BadArgument, BudgetSpent, RunMismatch
from blendfilter.evaluation.runner import OFFLINE_NOTE
from blendfilter.lm.budget import Budget
from blendfilter.retrieval.callables import as_retriever
from blendfilter.tasks import Questions

# modules of one's own


class Yes(dspy.Module):
    def forward(self, question: str) -> dspy.Prediction:
        return dspy.Prediction(answer="yes")


class Sync(dspy.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ask = dspy.Predict("question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        return self.ask(question=question)


class Async(Sync):
    async def aforward(self, question: str) -> dspy.Prediction:
        return await self.ask.acall(question=question)


@pytest.mark.parametrize(
    ("method", "stage"),
    [
        (Sync, "ask"),
        (Async, "ask"),
        (lambda: dspy.Predict("question -> answer"), "predict"),
    ],
    ids=["sync", "async", "Predict"],
)
def test_any_module_of_dspys(
    method: Callable[[], dspy.Module], stage: str, questions: Questions, tmp_path: Path
) -> None:
    run, engine = done_by(method(), questions, tmp_path / "run")
    assert run.errors == 0, run.rows
    assert engine.calls == 6
    assert [row["queries"] for row in run.rows] == [{}] * 6
    for row in run.rows:
        [(result, key)] = row["calls"]
        assert result == stage
        assert isinstance(row["answer"], str)
        assert row["answer"] != "None"
        assert key in {record["key"] for record in journaled(run.folder)}
    replayed, silent = done_by(method(), questions, tmp_path / "run", replay=True)
    assert silent.calls == 0
    assert replayed.rows == run.rows


class Own:
    """An engine of the user's own, which DSPy's own class makes a model."""

    asked = 0

    def complete(self, request: Any) -> Any:
        self.asked += 1
        return response("Hathermouth", usage=(10, 1))


def test_the_model_may_be_anything_dspy_knows(
    index: BM25, questions: Questions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    own = dspy.LM("own", engine=(engine := Own()), temperature=0.0)
    run = evaluate(Direct(index), questions, lm=own, run=tmp_path / "own", progress=False)
    assert (run.settings["lm"]["name"], engine.asked) == ("own", 6)
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


def test_a_class_is_not_yet_a_method_or_a_filter(index: BM25, questions: Questions) -> None:
    with pytest.raises(BadArgument, match=r"the class Direct: give one of it, Direct\(…\)"):
        evaluate(Direct, questions)
    with pytest.raises(BadArgument, match=r"the class FullFilter: give one of it, FullFilter\(…\)"):
        Direct(index, filter=FullFilter)


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
    [(BASE + MINE.replace("one,", "two,"), 1), (BASE + MINE, 7), (BASE.replace("old base", "new base") + MINE, 1)],
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
    with pytest.raises(RunMismatch, match=r"the code of .*, or what it holds, was changed"):
        done_by(mine(code)(hops), questions, tmp_path / "run")
    assert stable(run.folder) == before


# models of one's own


def test_a_predictors_own_model_is_journaled_counted_and_replayed(questions: Questions, tmp_path: Path) -> None:
    runs, own = CountingEngine(), CountingEngine()
    lm = own.lm("own")
    method = Direct()
    method.set_lm(lm)
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


# --- methods at once -------------------------------------------------------------------------------------------------


def numbered(count: int) -> Questions:
    return load("qa", [{"id": f"n{i}", "question": f"Where is pier number {i}?", "answer": "x"} for i in range(count)])


class Wrapped(dspy.Module):
    """A synchronous method around one of ours."""

    def __init__(self, retriever: Any) -> None:
        super().__init__()
        self.inner = BlendFilter(retriever, k=2)

    def forward(self, question: str) -> dspy.Prediction:
        return self.inner(question=question)


@pytest.mark.timeout(60, method="thread")  # threads that wait for one another would keep the process from ending
def test_synchronous_methods_leave_threads_for_the_searches_inside_them(tmp_path: Path) -> None:
    """More of them wait at once than one pool has threads; each waits for a search, which needs a thread too."""
    method = Wrapped(lambda query, k: ["Orm Pier | A pier.", "Fell | A hill."])
    run, _ = done_by(method, numbered(70), tmp_path / "run", concurrency=32)
    assert run.errors == 0
    assert len(run.rows) == 70


class Twice(dspy.Module):
    """Asks one of our methods twice, side by side, in threads that DSPy starts."""

    # One `dspy.Parallel` at a time: each empties tqdm's list of bars, under the feet of another that is just starting.
    lock = threading.Lock()

    def __init__(self, retriever: Any) -> None:
        super().__init__()
        self.inner = BlendFilter(retriever, k=2)

    def forward(self, question: str) -> dspy.Prediction:
        pairs = [(self.inner, {"question": question}), (self.inner, {"question": f"{question} And why?"})]
        with self.lock:
            first, second = dspy.Parallel(num_threads=2, disable_progress_bar=True)(pairs)
        return dspy.Prediction(answer=first.answer or second.answer, knowledge=first.knowledge)


@pytest.mark.timeout(60)
def test_what_parallel_threads_ask_is_noted_journaled_and_replayed(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    searched: list[str] = []

    def spying(query: str, k: int) -> list[Any]:
        searched.append(query)
        return index.search([query], k)[0]

    method = Twice(as_retriever(spying, fingerprint="f"))
    run, engine = done_by(method, questions, tmp_path / "run", engine=CountingEngine(slowly()))
    assert run.errors == 0
    assert len(journaled(run.folder)) == engine.calls == run.metrics["ledger"]["total"]["calls"]
    noted = {key for row in run.rows for _, key in row["calls"]}
    assert noted == {record["key"] for record in journaled(run.folder)}
    assert all(stage for row in run.rows for stage, _ in row["calls"])
    finds = [record["query"] for record in journaled(run.folder, "search")]
    assert set(finds) == set(searched)
    before = stable(run.folder)
    searched.clear()
    again, silent = done_by(method, questions, tmp_path / "run", replay=True)
    assert (silent.calls, searched) == (0, [])
    assert stable(again.folder) == before


@pytest.mark.timeout(60)
def test_after_ctrl_c_the_same_call_works_at_once(index: BM25, tmp_path: Path) -> None:
    """It returns when the run has let go of its folder, though calls in flight took a while to end."""
    reached = threading.Event()

    async def lingering(_stage: str, _prompt: str) -> None:
        if not reached.is_set():
            reached.set()
            asyncio.get_running_loop().call_later(0.1, _press_ctrl_c)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            await asyncio.sleep(0.3)
            raise

    method, questions = BlendFilter(index), numbered(12)
    with pytest.raises(KeyboardInterrupt):
        done_by(method, questions, tmp_path / "run", engine=CountingEngine(lingering))
    run, engine = done_by(method, questions, tmp_path / "run")
    assert run.errors == 0
    assert engine.calls
    assert evaluate(method, questions, lm=engine.lm(), run=run.folder, replay=True, progress=False).rows == run.rows


def _press_ctrl_c() -> None:
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

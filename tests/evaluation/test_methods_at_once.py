"""Methods of one's own that do much at once: many threads, `dspy.Parallel`, several samples, and Ctrl-C among them."""

from __future__ import annotations

import asyncio
import random
import signal
import threading
from pathlib import Path
from typing import Any

import dspy
import pytest
from small_world import CountingEngine, done_by, journaled, slowly, stable

from blendfilter import BM25, BlendFilter, Direct, evaluate, load
from blendfilter.retrieval.callables import as_retriever
from blendfilter.tasks import Questions


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


class Samples(dspy.Module):
    """Three samples of one prompt, and two prompts side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.ask = Direct().direct

    async def aforward(self, question: str) -> dspy.Prediction:
        several = {"n": 3, "temperature": 1.0}
        asked = [self.ask.acall(question=f"{question} {word}", config=several) for word in ("Why?", "How?")]
        one, other = await asyncio.gather(*asked)
        return dspy.Prediction(answer=" ".join([*one.completions.answer, *other.completions.answer]))


@pytest.mark.parametrize("seed", range(3))
def test_samples_that_arrive_in_any_order_leave_the_same_bytes(seed: int, questions: Questions, tmp_path: Path) -> None:
    rng = random.Random(seed)

    async def wait(_stage: str, _prompt: str) -> None:
        await asyncio.sleep(rng.random() / 50)

    run, engine = done_by(Samples(), questions, tmp_path / "run", engine=CountingEngine(wait))
    assert engine.calls == 6 * len(questions)
    assert [len(row["calls"]) for row in run.rows] == [6] * len(questions)
    before = stable(run.folder)
    again, silent = done_by(Samples(), questions, tmp_path / "run", replay=True)
    assert silent.calls == 0
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

"""Runs that stop and go on, and questions that end in an error."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import dspy
import pytest
from dspy import lm15
from small_world import FILES, ROW, CountingEngine, Watching, done_by, journaled, stable

from blendfilter import BM25, BlendFilter, ChainOfThought, aevaluate, evaluate
from blendfilter.errors import (
    RunLocked,
    ServerRefused,
)
from blendfilter.journal import Journal
from blendfilter.tasks import Questions

# stopping and going on


def until_free(folder: Path) -> None:
    """A cancelled run lets go of its journal a moment later, on its own thread."""
    for _ in range(2_000):
        try:
            Journal(folder).close()
        except RunLocked:
            time.sleep(0.01)
        else:
            return
    raise AssertionError("the run still holds its journal")


def stopped_after(calls: int, method: dspy.Module, questions: Questions, run: Path) -> CountingEngine:
    """A run cancelled when so many calls have gone out, some of them still in flight."""
    reached = threading.Event()

    async def count(_stage: str, _prompt: str) -> None:
        if engine.calls >= calls:
            reached.set()
        await asyncio.sleep(0.005 if engine.calls < calls else 30)

    engine = CountingEngine(count)

    async def sitting() -> None:
        task = asyncio.create_task(aevaluate(method, questions, lm=engine.lm(), run=run, progress=False))
        await asyncio.to_thread(reached.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(sitting())
    until_free(run)
    return engine


@pytest.mark.parametrize("calls", [1, 9, 40])
def test_a_run_stopped_and_taken_up_again_is_the_same_run(
    calls: int, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    method = BlendFilter(index)
    whole, undisturbed = done_by(method, questions, tmp_path / "whole")
    run = tmp_path / "stopped"
    stopped_after(calls, method, questions, run)
    assert not (run / "metrics.json").exists()
    before = {record["prompt"] for record in journaled(run)}
    assert len(before) < undisturbed.calls
    again, second = done_by(method, questions, run)
    assert stable(again.folder) == stable(whole.folder)
    assert not before & set(second.prompts), "a journaled call was made again"
    assert len(before) + second.calls == undisturbed.calls
    assert {path.name for path in run.iterdir()} == FILES


def test_a_finished_run_asks_nothing_again(index: BM25, questions: Questions, tmp_path: Path) -> None:
    first, _ = done_by(BlendFilter(index), questions, tmp_path / "run")
    before = stable(first.folder)
    watching, engine = Watching(), CountingEngine()
    again = evaluate(BlendFilter(index), questions, lm=engine.lm(), run=tmp_path / "run", progress=watching)
    assert engine.calls == 0
    assert watching.started == (6, 6)
    assert stable(again.folder) == before


@pytest.mark.parametrize("name", ["predictions.jsonl", "journal.jsonl"])
def test_a_torn_last_line_is_made_again(name: str, index: BM25, questions: Questions, tmp_path: Path) -> None:
    first, undisturbed = done_by(ChainOfThought(index), questions, tmp_path / "run")
    before = stable(first.folder)
    (first.folder / "metrics.json").unlink()
    torn = (first.folder / name).read_bytes()
    (first.folder / name).write_bytes(torn[: torn.rindex(b"\n", 0, -1) + 40])
    again, engine = done_by(ChainOfThought(index), questions, tmp_path / "run")
    assert stable(again.folder) == before
    assert engine.calls == (0 if name == "predictions.jsonl" else 1)
    assert len({record["key"] for record in journaled(again.folder)}) == undisturbed.calls


def test_rows_whose_calls_the_journal_lost_are_made_again(index: BM25, questions: Questions, tmp_path: Path) -> None:
    first, undisturbed = done_by(ChainOfThought(index), questions, tmp_path / "run")
    before = stable(first.folder)
    (first.folder / "journal.jsonl").unlink()
    again, engine = done_by(ChainOfThought(index), questions, tmp_path / "run")
    assert engine.calls == undisturbed.calls
    assert stable(again.folder) == before


# errors


def failing(question: str, stage: str = "check", error: Exception | None = None) -> CountingEngine:
    """An engine that refuses one question's calls at one stage."""

    async def refuse(asked: str, prompt: str) -> None:
        if asked == stage and question in prompt:
            raise error or lm15.ContextLengthError("4097 tokens are too many", status=400)

    return CountingEngine(refuse)


def test_an_error_is_a_row_and_the_run_goes_on(index: BM25, questions: Questions, tmp_path: Path) -> None:
    method = BlendFilter(index)
    run, _ = done_by(method, questions, tmp_path / "run", engine=failing(questions[2].question))
    assert run.errors == run.metrics["flags"]["errors"] == 1
    assert [row["error"] is not None for row in run.rows] == [False, False, True, False, False, False]
    row = run.rows[2]
    assert list(row) == ROW
    assert (row["error"]["kind"], row["error"]["stage"]) == ("context_too_long", "check")
    assert "4097 tokens" in row["error"]["message"]
    assert (row["answer"], row["em"], row["f1"], row["correct"]) == (None, 0.0, 0.0, False)
    assert {"external", "internal", "topic"} == {stage for stage, _ in row["calls"]}, "what it did cost is counted"
    assert run.metrics["n"] == 6
    healthy, _ = done_by(method, questions, tmp_path / "healthy")
    assert [r for r in run.rows if r["id"] != row["id"]] == [r for r in healthy.rows if r["id"] != row["id"]]


def test_the_next_sitting_asks_a_failed_question_again(index: BM25, questions: Questions, tmp_path: Path) -> None:
    method = BlendFilter(index)
    failed, first = done_by(method, questions, tmp_path / "run", engine=failing(questions[2].question))
    again, second = done_by(method, questions, tmp_path / "run")
    healthy, undisturbed = done_by(method, questions, tmp_path / "healthy")
    assert stable(again.folder) == stable(healthy.folder)
    assert all(questions[2].question in prompt for prompt in second.prompts)
    refused = sum(record["error"] is not None for record in journaled(failed.folder))
    assert refused == 3
    assert first.calls - refused + second.calls == undisturbed.calls


def test_a_replay_fails_as_the_run_did(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run, _ = done_by(BlendFilter(index), questions, tmp_path / "run", engine=failing(questions[2].question))
    before = stable(run.folder)
    again, engine = done_by(BlendFilter(index), questions, tmp_path / "run", replay=True)
    assert engine.calls == 0
    assert stable(again.folder) == before


def test_a_server_that_refuses_everybody_stops_the_run(index: BM25, questions: Questions, tmp_path: Path) -> None:
    """What would fail for every question is no question's error; what was answered before stays."""
    engine = failing(questions[3].question, "short_answer", lm15.AuthError("no", status=401))
    with pytest.raises(ServerRefused, match="refuses the key"):
        done_by(ChainOfThought(index), questions, tmp_path / "run", engine=engine, concurrency=1)
    assert not (tmp_path / "run/metrics.json").exists()
    kept = (tmp_path / "run/predictions.jsonl").read_text().splitlines()
    assert len(kept) >= 2
    again, second = done_by(ChainOfThought(index), questions, tmp_path / "run")
    assert again.errors == 0
    assert second.calls < 12


def test_a_run_refused_before_its_first_call_leaves_no_folder(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    """Else its settings would stand in the way of the next try, with the name or the key put right."""
    with pytest.raises(ServerRefused):
        done_by(ChainOfThought(index), questions, tmp_path / "run", engine=failing("", "answer", lm15.AuthError("no")))
    assert list(tmp_path.iterdir()) == []


def test_an_error_is_the_same_row_at_another_address(index: BM25, questions: Questions, tmp_path: Path) -> None:
    """A server that breaks down is that question's error; where it stood is not in the row."""
    rows = []
    for port in (4711, 4712):
        engine = failing(questions[2].question, error=lm15.ServerError("out of memory", status=500))
        lm = engine.lm()
        lm.address = f"http://127.0.0.1:{port}/v1"
        run = evaluate(BlendFilter(index), questions, lm=lm, run=tmp_path / str(port), progress=False)
        assert run.rows[2]["error"]["kind"] == "server_error"
        rows.append((run.folder / "predictions.jsonl").read_bytes())
        assert b"127.0.0.1" not in rows[-1]
    assert rows[0] == rows[1]

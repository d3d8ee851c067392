"""Runs that stop and go on, servers that fail or refuse, and what one session leaves for the next."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15
from model_server import FAULTS, Server, serve
from small_world import FILES, ROW, CountingEngine, Watching, done_by, journaled, stable, tree

from blendfilter import (
    BM25,
    BlendFilter,
    ChainOfThought,
    Direct,
    Run,
    aevaluate,
    connect,
    evaluate,
    files,
    load,
)
from blendfilter.errors import CannotWrite, MissingFile, RunFailed, RunLocked, ServerRefused
from blendfilter.journal import FILE, Journal
from blendfilter.lm.attempts import Retry
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


def test_a_row_whose_reply_broke_off_is_made_again(index: BM25, questions: Questions, tmp_path: Path) -> None:
    """An earlier version kept it, and the answer that was read from half of it."""
    whole, _ = done_by(BlendFilter(index), questions, tmp_path)
    rows = (tmp_path / "predictions.jsonl").read_bytes()
    key = whole.rows[2]["calls"][-1][1]
    with Journal(tmp_path) as journal:
        journal.append({**(journal.read(key) or {}), "reply": "half an", "finish": "error"})
    again, engine = done_by(BlendFilter(index), questions, tmp_path)
    assert engine.calls == 1
    assert (tmp_path / "predictions.jsonl").read_bytes() == rows
    assert again.metrics == whole.metrics


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


@pytest.mark.parametrize("calls", [1, 40])
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

    class Looking(Watching):
        def start(self, total: int, done: int) -> None:
            assert stable(first.folder) == before, "its metrics stay while its rows are read again"
            super().start(total, done)

    watching, engine = Looking(), CountingEngine()
    again = evaluate(BlendFilter(index), questions, lm=engine.lm(), run=tmp_path / "run", progress=watching)
    assert (engine.calls, watching.order) == (0, [])
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

    async def refuse(requested: str, prompt: str) -> None:
        if requested == stage and question in prompt:
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


# --- sittings --------------------------------------------------------------------------------------------------------


class Moody(dspy.Module):
    """Fails one question by whatever is in `error`; answers the others."""

    def __init__(self, bad: str) -> None:
        super().__init__()
        self.bad = bad
        self.raising: list[Exception] = []  # what it raises, the newest last

    async def aforward(self, question: str) -> dspy.Prediction:
        if question == self.bad and self.raising:
            raise self.raising[-1]
        return dspy.Prediction(answer="yes")


def test_metrics_of_an_earlier_sitting_are_gone_until_the_run_is_finished(questions: Questions, tmp_path: Path) -> None:
    method = Moody(questions[1].question)
    method.raising = [RuntimeError("no luck")]
    run, _ = done_by(method, questions, tmp_path / "run")
    assert (run.finished, run.errors) == (True, 1)
    method.raising = [ServerRefused("the server is gone")]
    with pytest.raises(ServerRefused):
        done_by(method, questions, tmp_path / "run")
    half = Run(run.folder)
    assert not half.finished
    with pytest.raises(MissingFile, match="is not finished: 5 of 6 questions are answered, 1 missing; run the same"):
        _ = half.metrics
    method.raising = []
    again, _ = done_by(method, questions, tmp_path / "run")
    assert (again.finished, again.errors, again.metrics["n"]) == (True, 0, 6)


def test_a_temporary_file_of_a_killed_session_is_removed(questions: Questions, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / FILE).touch()
    (folder / ".run.json.123.tmp").write_text('{"settin')
    run, _ = done_by(Direct(), questions, folder)
    assert run.errors == 0
    assert {path.name for path in folder.iterdir()} == FILES


def test_a_replay_beside_a_writer_is_refused(questions: Questions, tmp_path: Path) -> None:
    """It would put its own files into the place of those that the writer appends to."""
    run, _ = done_by(Direct(), questions, tmp_path / "run")
    before = tree(run.folder)
    with Journal(run.folder), pytest.raises(RunLocked, match="is being written to"):
        done_by(Direct(), questions, tmp_path / "run", replay=True)
    assert tree(run.folder) == before
    again, engine = done_by(Direct(), questions, tmp_path / "run", replay=True)
    assert (engine.calls, again.rows) == (0, run.rows)
    with Journal(run.folder, "replay"), Journal(run.folder):
        pass  # who only reads is in nobody's way


def test_a_full_disk_stops_the_run_before_more_is_paid_for(
    index: BM25, questions: Questions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that cannot be kept is no question's own error: each further one would be paid for in vain."""
    whole, _ = done_by(Direct(index), questions, tmp_path / "whole")
    write, wrote = files.write_all, []

    def full(fd: int, data: bytes) -> None:
        if b'"kind":"call"' in data:
            wrote.append(data)
            if len(wrote) > 2:
                raise OSError(28, "No space left on device")
        write(fd, data)

    engine = CountingEngine()
    with monkeypatch.context() as patch:
        patch.setattr(files, "write_all", full)
        with pytest.raises(CannotWrite, match=r"journal\.jsonl takes no more.*No space"):
            done_by(Direct(index), questions, tmp_path / "run", engine=engine, concurrency=1)
    assert engine.calls < len(questions)
    again, _ = done_by(Direct(index), questions, tmp_path / "run")
    assert stable(again.folder) == stable(whole.folder)


# --- faults in runs --------------------------------------------------------------------------------------------------


def asked_at(server: Server, **terms: Any) -> Any:
    """A model there that is tried again soon."""
    lm = connect("m", api_base=server.url)
    lm.terms = type(lm.terms)(retry=Retry(wait_first=0.02, **terms))
    return lm


def test_a_server_that_fails_a_fifth_changes_nothing_in_a_run(index: BM25, tmp_path: Path) -> None:
    runs = []
    for name, flags in (("clean", {}), ("flaky", {"behave": "flaky", "retry_after": "0.05"})):
        with serve(reply="offline", **flags) as server:
            lm, run = asked_at(server), tmp_path / name
            wanted = load("qa", "sample", limit=24)
            runs.append(evaluate(BlendFilter(index), wanted, lm=lm, run=run, concurrency=32, progress=False))
            stats = server.stats()
    clean, flaky = runs
    assert stable(flaky.folder) == stable(clean.folder)
    assert flaky.errors == 0
    assert set(stats["faults"]) == set(FAULTS)
    # No call is lost, none is journaled twice, and every fault of the server is an attempt in the journal.
    calls = journaled(flaky.folder)
    assert len({record["key"] for record in calls}) == len(calls) == stats["answered"]
    assert sum(record["attempts"] - 1 for record in calls) == sum(stats["faults"].values())
    assert sum(record["attempts"] for record in calls) == stats["requests"]
    assert not any(record["error"] for record in calls)
    assert sum(record["tokens_in"] for record in calls) == stats["tokens_in"]
    assert sum(record["tokens_out"] for record in calls) == stats["tokens_out"]


# ---- a question that fails


@pytest.fixture
def asking() -> Iterator[Server]:
    with serve(behave="asked") as server:
        yield server


def test_a_run_says_once_that_its_retries_are_used_up(asking: Server, index: BM25, tmp_path: Path) -> None:
    questions = load("qa", [{"question": f"[9 x 500] Who is {i}?", "answer": "x"} for i in range(8)])
    used_up = "the 3 retries that this run may make are used up"
    with pytest.warns(UserWarning, match=used_up) as result, pytest.raises(RunFailed, match="all 8 questions failed"):
        evaluate(
            ChainOfThought(index), questions, lm=asked_at(asking), run=tmp_path / "run", max_retries=3, progress=False
        )
    run = Run(tmp_path / "run")
    assert len([each for each in result if "used up" in str(each.message)]) == 1
    assert run.errors == 8
    assert asking.stats()["requests"] == 8 + 3
    assert all("are used up" in row["error"]["message"] for row in run.rows)

"""Runs of real methods over the sample world: what they leave, how they stop and go on, what they refuse.

The model is made up (it answers by rule, and counts); prompts, index, journal and runner are the package's own.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import socket
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15
from dspy.clients.base_lm import GLOBAL_HISTORY
from small_world import FILES, CountingEngine, slowly, stable

from blendfilter import BM25, BlendFilter, ChainOfThought, Direct, Passage, Prompts, Run, aevaluate, evaluate, load
from blendfilter.asking import Wording
from blendfilter.errors import (
    BadArgument,
    EmptyData,
    Leak,
    MissingFile,
    ReplayMiss,
    RunLocked,
    RunMismatch,
    ServerRefused,
)
from blendfilter.evaluation.runner import OFFLINE_NOTE
from blendfilter.journal import Journal
from blendfilter.lm import bridge
from blendfilter.resources import sample
from blendfilter.tasks import Questions

ROW = [
    "id", "question", "golden_answers", "gold_titles", "answer", "em", "f1", "correct", "queries", "branches",
    "knowledge", "retrieval", "loss", "calls", "flags", "error",
]  # fmt: skip
STAGES = {"external": 1, "internal": 1, "topic": 1, "check": 3, "ids": 3, "answer": 1, "short_answer": 1}


@pytest.fixture(scope="module")
def index() -> BM25:
    return BM25.build(sample("corpus.jsonl"))


@pytest.fixture
def questions() -> Questions:
    return load("hotpotqa", "sample", limit=6)


@pytest.fixture(autouse=True)
def _fresh(fresh_dspy: None) -> None:
    """DSPy as on import."""


def done_by(method: dspy.Module, questions: Questions, run: Path, **options: Any) -> tuple[Run, CountingEngine]:
    """A run by an engine of its own, and that engine."""
    engine = options.pop("engine", None) or CountingEngine()
    return evaluate(method, questions, lm=engine.lm(), run=run, progress=False, **options), engine


def journaled(run: Path, kind: str = "call") -> list[dict[str, Any]]:
    with Journal(run, "replay") as journal:
        return [record for record in journal.records() if record["kind"] == kind]


# what a run leaves


def test_a_run_folder_holds_four_files_and_nothing_else(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run, engine = done_by(BlendFilter(index), questions, tmp_path / "runs" / "one")
    assert {path.name for path in run.folder.iterdir()} == FILES
    assert run.finished
    assert engine.calls == len(journaled(run.folder)) > 6 * 9


def test_run_json_says_what_was_asked(index: BM25, questions: Questions, tmp_path: Path) -> None:
    method = BlendFilter(index, k=4, without="q_in")
    run, _ = done_by(method, questions, tmp_path / "run", concurrency=3, seed=7)
    record = json.loads((run.folder / "run.json").read_text())
    assert set(record) == {"settings", "notes", "versions"}
    assert record["notes"] == {"address": "http://127.0.0.1:1/v1", "concurrency": 3}
    assert {"blendfilter", "python", "dspy"} <= set(record["versions"])
    settings = record["settings"]
    assert list(settings) == ["task", "metrics", "data", "method", "lm", "retrievers", "seed"]
    assert settings["data"] == {"source": "sample", "fingerprint": questions.fingerprint, "n": 6}
    assert settings["method"]["name"] == "blendfilter"
    assert settings["method"]["arguments"] == method.arguments()
    assert settings["lm"] == {"name": "counting", "parameters": {"temperature": 0.0}}
    assert settings["retrievers"] == [{"kind": "bm25", "fingerprint": index.fingerprint}]
    assert settings["seed"] == 7


def test_a_prediction_is_a_line_with_these_fields(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run, _ = done_by(BlendFilter(index), questions, tmp_path / "run")
    lines = (run.folder / "predictions.jsonl").read_text().splitlines()
    assert len(lines) == 6
    for question, row in zip(questions, map(json.loads, lines), strict=True):
        assert list(row) == ROW
        assert (row["id"], row["question"]) == (question.id, question.question)
        assert row["golden_answers"] == list(question.golden_answers)
        assert row["gold_titles"] == list(question.gold_titles)
        assert isinstance(row["answer"], str)
        assert row["em"] in (0.0, 1.0)
        assert 0 <= row["f1"] <= 1
        assert row["correct"] is (row["em"] == 1.0)
        assert list(row["queries"]) == list(row["branches"]) == ["q", "q_ex", "q_in"]
        assert row["queries"]["q"] == question.question
        assert row["queries"]["q_ex"].endswith(question.question)
        for branch in row["branches"].values():
            assert list(branch) == ["retrieved", "kept", "ids_read"]
            assert len(branch["retrieved"]) <= 5
            assert set(branch["kept"]) <= set(branch["retrieved"])
            assert branch["ids_read"] in ("ids", "none", "suspect", "unparseable")
        kept = [id for branch in row["branches"].values() for id in branch["kept"]]
        assert row["knowledge"] == list(dict.fromkeys(kept)), "the union of what was kept, in order"
        assert list(row["retrieval"]) == ["q", "q_ex", "q_in", "union", "kept"]
        assert row["error"] is None


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
    assert list(metrics) == ["task", "method", "n", "metrics", "retrieval", "flags", "losses", "ledger", "signature"]
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


def test_eleven_calls_a_question_where_the_lists_differ(index: BM25, questions: Questions, tmp_path: Path) -> None:
    _, engine = done_by(BlendFilter(index), questions[:1], tmp_path / "run")
    assert engine.stages == STAGES
    assert len(set(engine.prompts)) == 11


def test_the_journal_holds_each_passage_once_and_no_search_twice(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    run, _ = done_by(BlendFilter(index), questions, tmp_path / "run")
    passages = [record["id"] for record in journaled(run.folder, "passage")]
    assert len(passages) == len(set(passages)) > 6
    keys = [record["key"] for record in journaled(run.folder, "search")]
    assert len(keys) == len(set(keys)) == 18
    for line in (run.folder / "journal.jsonl").read_text().splitlines():
        assert re.match(r'\{"key":"[0-9a-f]{32}","kind":"(call|search|passage)",', line)


class Watching:
    """A `Progress` that keeps what it was told, and runs `at` after each question."""

    def __init__(self, at: Callable[[int], None] = lambda count: None) -> None:
        self.order: list[str] = []
        self.tokens = 0
        self.started: tuple[int, int] | None = None
        self.stopped = 0
        self.at = at

    def start(self, total: int, done: int) -> None:
        self.started = (total, done)

    def advance(self, row: Mapping[str, Any], tokens: int) -> None:
        self.order.append(row["id"])
        self.tokens += tokens
        self.at(len(self.order))

    def stop(self) -> None:
        self.stopped += 1


def test_rows_stand_in_question_order_whoever_finished_first(index: BM25, questions: Questions, tmp_path: Path) -> None:
    async def the_first_is_slow(_: str, prompt: str) -> None:
        await asyncio.sleep(0.2 if questions[0].question in prompt else 0)

    watching = Watching()
    engine = CountingEngine(the_first_is_slow)
    run = evaluate(Direct(index), questions, lm=engine.lm(), run=tmp_path / "run", progress=watching)
    asked = [question.id for question in questions]
    assert watching.order[-1] == asked[0], "the first finished last"
    assert sorted(watching.order) == sorted(asked)
    assert [row["id"] for row in run.rows] == asked
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
    for told in (str(tmp_path), "here", "127.0.0.1", "http", "concurrency", "seconds", "address", "attempts", "time"):
        assert not re.search(rf'"[^"]*{re.escape(told)}[^"]*":', stored), told
    assert str(tmp_path) not in stored
    assert "127.0.0.1" not in stored
    assert not re.search(rf"{time.gmtime().tm_year}-\d\d-\d\d|\d\d:\d\d:\d\d", stored)


# stopping and going on


def until_free(folder: Path) -> None:
    """A cancelled run lets go of its journal a moment later, on its own thread."""
    for _ in range(200):
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


def test_a_run_taken_up_twice(index: BM25, questions: Questions, tmp_path: Path) -> None:
    method, run = ChainOfThought(index), tmp_path / "run"
    stopped_after(4, method, questions, run)
    stopped_after(3, method, questions, run)
    again, _ = done_by(method, questions, run)
    whole, undisturbed = done_by(method, questions, tmp_path / "whole")
    assert stable(again.folder) == stable(whole.folder)
    assert Counter(record["key"] for record in journaled(run)).most_common(1)[0][1] == 1
    assert len(journaled(run)) == undisturbed.calls


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


class Raising(dspy.Module):
    """A user's module with a mistake for one question."""

    def __init__(self, question: str) -> None:
        super().__init__()
        self.bad = question

    def forward(self, question: str) -> dspy.Prediction:
        if question == self.bad:
            return dspy.Prediction(answer={}["nothing"])
        return dspy.Prediction(answer="yes")


def test_whatever_a_module_raises_is_that_questions_error(questions: Questions, tmp_path: Path) -> None:
    run, _ = done_by(Raising(questions[1].question), questions, tmp_path / "run")
    assert [row["error"] for row in run.rows if row["error"]] == [
        {"kind": "KeyError", "stage": "", "message": "'nothing'"}
    ]
    assert run.errors == 1
    assert run.settings["method"]["name"].endswith(":Raising")


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


# modules of one's own


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
    run = evaluate(Raising(""), rows, lm="offline", run=tmp_path / "run", progress=False)
    assert run.settings["task"] == "qa"
    assert [row["em"] for row in run.rows] == [0.0, 1.0]
    with pytest.raises(EmptyData, match="no questions"):
        evaluate(Raising(""), [], lm="offline", run=tmp_path / "none", progress=False)
    assert not (tmp_path / "none").exists()


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


def test_several_runs_at_once(index: BM25, questions: Questions, tmp_path: Path) -> None:
    async def both() -> list[Run]:
        asked = [
            aevaluate(method, questions, lm=CountingEngine(slowly()).lm(), run=tmp_path / name, progress=False)
            for name, method in (("cot", ChainOfThought(index)), ("blend", BlendFilter(index)))
        ]
        return await asyncio.gather(*asked)

    for run, method in zip(asyncio.run(both()), (ChainOfThought(index), BlendFilter(index)), strict=True):
        alone, _ = done_by(method, questions, tmp_path / f"{run.name}-alone")
        assert stable(run.folder) == stable(alone.folder)


def test_without_a_folder_the_run_lies_in_a_temporary_one(index: BM25, questions: Questions) -> None:
    run = evaluate(Direct(index), questions, lm="offline", progress=False)
    assert {path.name for path in run.folder.iterdir()} == FILES
    assert run.offline


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


# reuse and replay


def test_reuse_copies_calls(index: BM25, questions: Questions, tmp_path: Path) -> None:
    """External is the very prompt of cot-retrieval's answer: what that run asked is not asked again."""
    cot, asked = done_by(ChainOfThought(index), questions, tmp_path / "cot")
    alone, full = done_by(BlendFilter(index), questions, tmp_path / "alone")
    run, engine = done_by(BlendFilter(index), questions, tmp_path / "run", reuse=[cot.folder])
    assert engine.stages["external"] == 0
    assert engine.calls <= full.calls - len(questions)
    assert Counter(engine.prompts) == Counter(full.prompts) - Counter(asked.prompts)
    assert stable(run.folder) == stable(alone.folder), "what was reused counts as this run's own"
    for path in cot.folder.iterdir():
        path.unlink()
    replayed, silent = done_by(BlendFilter(index), questions, tmp_path / "run", replay=True)
    assert silent.calls == 0, "the run is whole by itself"
    assert stable(replayed.folder) == stable(alone.folder)


def test_an_edited_answer_template_costs_two_calls_a_question(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    old, _ = done_by(BlendFilter(index), questions, tmp_path / "old")
    mine = tmp_path / "prompts/blendfilter"
    mine.mkdir(parents=True)
    text = Prompts()["blendfilter/external"].path.read_text()
    (mine / "answer.j2").write_text(text.replace("{{ instructions }}", "{{ instructions }} Be brief."))
    method = BlendFilter(index, prompts=Prompts(tmp_path / "prompts"))
    _, engine = done_by(method, questions, tmp_path / "new", reuse=[old.folder])
    assert engine.stages["answer"] == len(questions)
    assert set(engine.stages) <= {"answer", "short_answer"}


def test_reuse_of_no_run_makes_none(index: BM25, questions: Questions, tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match="gone"):
        done_by(BlendFilter(index), questions, tmp_path / "run", reuse=[tmp_path / "gone"])
    assert list(tmp_path.iterdir()) == []


def test_a_replay_asks_nobody(
    index: BM25, questions: Questions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = done_by(BlendFilter(index), questions, tmp_path / "run")
    before = stable(run.folder)
    attempts: list[Any] = []

    def no_connection(*address: Any) -> None:
        attempts.append(address)
        raise OSError("the network is gone")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, no_connection)
    monkeypatch.setattr(BM25, "find", lambda *_: pytest.fail("the index was searched"))
    for name in ("predictions.jsonl", "metrics.json"):
        (run.folder / name).unlink()
    again, engine = done_by(BlendFilter(index), questions, tmp_path / "run", replay=True)
    assert stable(again.folder) == before
    assert engine.calls == 0
    assert attempts == []


def test_a_replay_miss_names_question_and_stage(index: BM25, questions: Questions, tmp_path: Path) -> None:
    done_by(BlendFilter(index), questions[:5], tmp_path / "run")
    record = json.loads((tmp_path / "run/run.json").read_text())
    record["settings"]["data"] = {"source": "sample", "fingerprint": questions.fingerprint, "n": 6}
    (tmp_path / "run/run.json").write_text(json.dumps(record))
    before = stable(tmp_path / "run")
    with pytest.raises(ReplayMiss, match=rf"question '{questions[5].id}'.*searches index {index.fingerprint}"):
        done_by(BlendFilter(index), questions, tmp_path / "run", replay=True)
    assert stable(tmp_path / "run") == before
    with pytest.raises(BadArgument, match="a replay needs the run's folder"):
        evaluate(BlendFilter(index), questions, lm="offline", replay=True, progress=False)


# what is refused


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda index: BlendFilter(index, k=3), "method.arguments.k was 5, now 3"),
        (lambda index: BlendFilter(index, without=["q"]), "method.arguments.without was '', now 'q'"),
        (lambda index: BlendFilter(index, offer_none=True), "method.arguments.offer_none was False, now True"),
        (lambda index: BlendFilter(index, task="twowiki"), "method.program was "),
        (ChainOfThought, "method.name was 'blendfilter', now 'cot-retrieval'"),
        (lambda index: BlendFilter(BM25.build(sample("corpus.jsonl"), k1=1.2)), "retrievers was "),
    ],
    ids=["k", "without", "none offered", "wording", "method", "index"],
)
def test_a_folder_of_another_run(
    other: Callable[[BM25], dspy.Module], said: str, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    run, _ = done_by(BlendFilter(index), questions, tmp_path / "run")
    before = stable(run.folder)
    with pytest.raises(RunMismatch, match=re.escape(said)):
        done_by(other(index), questions, tmp_path / "run")
    assert stable(run.folder) == before


def test_a_folder_of_other_demonstrations_model_or_questions(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run, engine = done_by(BlendFilter(index), questions, tmp_path / "run")
    changed = BlendFilter(index)
    changed.answering.answer.demos = changed.answering.answer.demos[:1]
    with pytest.raises(RunMismatch, match=r"method\.program"):
        done_by(changed, questions, run.folder)
    with pytest.raises(RunMismatch, match=r"lm.parameters.temperature was 0.0, now 0.5"):
        evaluate(BlendFilter(index), questions, lm=engine.lm(temperature=0.5), run=run.folder, progress=False)
    with pytest.raises(RunMismatch, match=r"data.fingerprint was .*; data.n was 6, now 3"):
        done_by(BlendFilter(index), questions[:3], run.folder)
    moved = engine.lm()
    moved.address = "http://127.0.0.1:77/v1"
    evaluate(BlendFilter(index), questions, lm=moved, run=run.folder, concurrency=2, progress=False)
    notes = json.loads((run.folder / "run.json").read_text())["notes"]
    assert notes == {"address": "http://127.0.0.1:77/v1", "concurrency": 2}, "these may change between sittings"


def test_a_second_writer(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run, _ = done_by(Direct(index), questions, tmp_path / "run")
    with Journal(run.folder), pytest.raises(RunLocked, match="another process is writing"):
        done_by(Direct(index), questions, tmp_path / "run")


def test_a_question_that_is_also_a_demonstration(index: BM25, questions: Questions, tmp_path: Path) -> None:
    method = ChainOfThought(index)
    method.answering.answer.demos = [dspy.Example(question=f" {questions[4].question.upper()}", reasoning="x")]
    with pytest.raises(Leak, match=rf"question '{questions[4].id}'.*also a demonstration of 'answering.answer'"):
        done_by(method, questions, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    shown = {"id": "x", "question": Wording.of("hotpotqa").demos[1].question, "answer": "y"}
    with pytest.raises(Leak, match="'x'"):
        done_by(BlendFilter(index), load("qa", [shown]), tmp_path / "run")


# calls in flight


@pytest.mark.parametrize("concurrency", [1, 4])
def test_no_more_calls_in_flight_than_asked(
    concurrency: int, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    engine = CountingEngine(slowly(0.002))
    done_by(BlendFilter(index), questions, tmp_path / "run", engine=engine, concurrency=concurrency)
    assert engine.most_in_flight == concurrency
    with pytest.raises(BadArgument, match="at least 1"):
        done_by(BlendFilter(index), questions, tmp_path / "none", concurrency=0)
    assert not (tmp_path / "none").exists()


def test_the_oldest_question_goes_first(index: BM25, tmp_path: Path) -> None:
    """With four places and eight questions begun, the first is over before the eighth has made three calls."""
    questions = load("hotpotqa", "sample", limit=24)
    engine = CountingEngine(slowly(0.001))
    run, _ = done_by(BlendFilter(index), questions, tmp_path / "run", engine=engine, concurrency=4)
    asked_by = [next(i for i, q in enumerate(questions) if f"Question: {q.question}" in p) for p in engine.prompts]
    over = max(at for at, asker in enumerate(asked_by) if asker == 0)
    assert asked_by[: over + 1].count(7) < 3
    assert Counter(asked_by)[7] >= 9
    begun = sorted(range(24), key=asked_by.index)
    assert all(abs(place - number) < 8 for place, number in enumerate(begun)), "never more than eight ahead"
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

    history = len(GLOBAL_HISTORY)
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
    assert len(GLOBAL_HISTORY) == history, "DSPy's history does not grow"
    assert not lm.history
    assert not any(predictor.history for predictor in method.predictors())


class Forgetful(list[Any]):
    """A list that keeps nothing, so that only the runner's memory is measured."""

    def append(self, item: Any) -> None:
        """Forget it."""


def test_the_loop_is_shared_and_lives_on(index: BM25, questions: Questions, tmp_path: Path) -> None:
    first = bridge.loop()
    done_by(Direct(index), questions, tmp_path / "a")
    done_by(Direct(index), questions, tmp_path / "b")
    assert bridge.loop() is first
    assert first.is_running()

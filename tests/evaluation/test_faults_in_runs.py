"""Runs over servers that fail, stop or refuse: every call answered once, every failure told as one."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dspy import lm15
from model_server import FAULTS, Server, serve
from small_world import Command, Watching, journaled, stable

from blendfilter import BM25, BlendFilter, ChainOfThought, Run, connect, evaluate, load
from blendfilter.errors import BadArgument
from blendfilter.evaluation.progress import Running, progress_for
from blendfilter.lm.attempts import Retry
from blendfilter.lm.rate_limit import Gate
from blendfilter.resources import sample
from blendfilter.tasks import Questions

FEW = 24
REQUEST = lm15.Request(model="m", messages=(lm15.Message.user("q"),))


def many(count: int) -> Questions:
    """The sample questions, and more about the passages of the sample corpus."""
    asked = [
        {name: row[name] for name in ("id", "question", "golden_answers")}
        for row in map(json.loads, sample("questions.jsonl").read_text().splitlines())
    ]
    for passage in map(json.loads, sample("corpus.jsonl").read_text().splitlines()):
        question = f"What is {passage['title']} known for?"
        asked.append({"id": passage["id"], "question": question, "golden_answers": [passage["title"]]})
    return load("qa", asked[:count], metrics=["em", "f1"])


def asked_at(server: Server, **terms: Any) -> Any:
    """A model there that is tried again soon."""
    lm = connect("m", api_base=server.url)
    lm.terms = type(lm.terms)(retry=Retry(wait_first=0.02, **terms))
    return lm


def on_both(questions: Questions, folder: Path, index: BM25, **flags: Any) -> tuple[Run, Run, dict[str, Any]]:
    """A clean run, the same over a flaky server, and what that server counted."""
    runs = []
    for name, more in (("clean", {}), ("flaky", {"behave": "flaky", **flags})):
        with serve(reply="offline", **more) as server:
            lm = asked_at(server)
            runs.append(
                evaluate(BlendFilter(index), questions, lm=lm, run=folder / name, concurrency=32, progress=False)
            )
            stats = server.stats()
    return runs[0], runs[1], stats


def check_accounts(run: Run, stats: dict[str, Any]) -> None:
    """No call lost, none journaled twice, and every fault of the server is an attempt in the journal."""
    calls = journaled(run.folder)
    keys = Counter(record["key"] for record in calls)
    assert set(keys.values()) == {1}
    assert len(calls) == stats["answered"]
    assert sum(record["attempts"] - 1 for record in calls) == sum(stats["faults"].values())
    assert sum(record["attempts"] for record in calls) == stats["requests"]
    assert not any(record["error"] for record in calls)
    assert sum(record["tokens_in"] for record in calls) == stats["tokens_in"]
    assert sum(record["tokens_out"] for record in calls) == stats["tokens_out"]


def test_a_server_that_fails_a_fifth_changes_nothing_in_a_run(index: BM25, tmp_path: Path) -> None:
    clean, flaky, stats = on_both(many(FEW), tmp_path, index, retry_after="0.05")
    assert stable(flaky.folder) == stable(clean.folder)
    assert flaky.errors == 0
    assert set(stats["faults"]) == set(FAULTS)
    check_accounts(flaky, stats)


@pytest.mark.slow
def test_two_hundred_questions_over_a_server_that_fails_a_fifth(index: BM25, tmp_path: Path) -> None:
    clean, flaky, stats = on_both(many(200), tmp_path, index, retry_after="0.2")
    assert len(flaky.rows) == 200
    assert all(row["answer"] is not None for row in flaky.rows)
    assert stable(flaky.folder) == stable(clean.folder)
    check_accounts(flaky, stats)
    assert sum(stats["faults"].values()) > 0.15 * stats["requests"]
    assert min(stats["faults"][name] for name in FAULTS) > 20


# ---- a question that fails


@pytest.fixture
def mixed() -> Questions:
    """Six questions, of which two get no answer while the server is as it is."""
    texts = [
        "Where is Kesterholm?",
        "[9 x 500] Who was Corvin?",
        "Who built it?",
        "[9 x context] Why?",
        "When?",
        "How?",
    ]
    return load("qa", [{"question": text, "answer": "x", "id": f"q{i}"} for i, text in enumerate(texts)])


@pytest.fixture
def asking() -> Iterator[Server]:
    with serve(behave="asked") as server:
        yield server


def test_a_call_that_fails_is_its_questions_error_and_no_answer(
    mixed: Questions, asking: Server, index: BM25, tmp_path: Path
) -> None:
    lm = asked_at(asking, attempts=2)
    run = evaluate(BlendFilter(index), mixed, lm=lm, run=tmp_path / "run", progress=False)
    assert run.errors == 2
    told = {row["id"]: row["error"] for row in run.rows}
    assert {name for name, error in told.items() if error} == {"q1", "q3"}
    assert (told["q1"]["kind"], told["q3"]["kind"]) == ("server_error", "context_too_long")
    assert all(told[name]["stage"] in ("external", "internal", "topic", "check") for name in ("q1", "q3"))
    for row in run.rows:
        if row["error"]:
            assert row["answer"] is None
            assert (row["branches"], row["knowledge"], row["retrieval"]) == ({}, [], {})
            assert row["flags"]["unparseable_ids"] == row["flags"]["explicit_none"] == 0
            assert row["flags"]["empty_reply"] == row["flags"]["empty_knowledge"] == 0
    assert run.metrics["flags"]["errors"] == 2
    assert "errors 2" in run.report()


def test_the_same_command_asks_it_again_and_nothing_else(
    mixed: Questions, asking: Server, index: BM25, tmp_path: Path
) -> None:
    method = ChainOfThought(index)
    run = evaluate(method, mixed, lm=asked_at(asking, attempts=2), run=tmp_path / "run", progress=False)
    kept = [row for row in run.rows if not row["error"]]
    with serve() as healthy:
        again = evaluate(method, mixed, lm=asked_at(healthy), run=tmp_path / "run", progress=False)
        requests = healthy.stats()["requests"]
        whole = evaluate(method, mixed, lm=asked_at(healthy), run=tmp_path / "whole", progress=False)
    assert (run.errors, again.errors) == (2, 0)
    assert [row for row in again.rows if row["id"] in {row["id"] for row in kept}] == kept
    assert requests == 4, "two questions of two calls each"
    assert stable(again.folder) == stable(whole.folder), "as if nothing had happened"


def test_the_command_line_counts_it_and_ends_with_one(
    asking: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"question": "Where?", "answer": "42"}, {"question": "[9 x 500] Who?", "answer": "42"}]
    Path("q.jsonl").write_text("\n".join(map(json.dumps, rows)))
    words = ("eval", "qa", "--data", "q.jsonl", "--method", "direct", "--lm", "m", "--run", "run")
    told = Command(monkeypatch, capsys)(*words, "--api-base", asking.url, "--max-retries", 0)
    assert told.code == 1
    assert "1 of 2 questions ended in an error; the same command asks them again" in told.err
    assert asking.stats()["requests"] == 2
    assert "used up" not in told.err
    assert Command(monkeypatch, capsys)(*words, "--api-base", asking.url, "--max-retries", -1).code == 2


def test_a_run_says_once_that_its_retries_are_used_up(asking: Server, index: BM25, tmp_path: Path) -> None:
    questions = load("qa", [{"question": f"[9 x 500] Who is {i}?", "answer": "x"} for i in range(8)])
    with pytest.warns(UserWarning, match="the 3 retries that this run may make are used up") as told:
        run = evaluate(
            ChainOfThought(index), questions, lm=asked_at(asking), run=tmp_path / "run", max_retries=3, progress=False
        )
    assert len([each for each in told if "used up" in str(each.message)]) == 1
    assert run.errors == 8
    assert asking.stats()["requests"] == 8 + 3
    assert all("are used up" in row["error"]["message"] for row in run.rows)


def test_a_run_may_try_again_before_anything_succeeded(asking: Server, index: BM25, tmp_path: Path) -> None:
    """A server that comes up late: a hundred retries, and four for each call in flight."""
    questions = load("qa", [{"question": f"[3 x 500] Who is {i}?", "answer": "x"} for i in range(40)])
    lm = asked_at(asking, attempts=4)
    run = evaluate(ChainOfThought(index), questions, lm=lm, run=tmp_path / "run", concurrency=40, progress=False)
    assert run.errors == 0
    assert asking.stats()["requests"] == 40 * (3 + 1) + 40 * (3 + 1)


def test_a_number_of_retries_that_is_none_leaves_nothing_behind(index: BM25, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="max_retries"):
        evaluate(ChainOfThought(index), many(2), lm="offline", run=tmp_path / "run", max_retries=-1, progress=False)
    assert not (tmp_path / "run").exists()


# ---- replicas


def test_a_server_killed_in_the_middle_costs_a_run_nothing(index: BM25, tmp_path: Path) -> None:
    questions = many(40)
    with serve(reply="offline", delay=0.005) as one, serve(reply="offline", delay=0.005) as other:
        lm = connect("m", api_base=[one.url, other.url])
        lm.terms = type(lm.terms)(retry=Retry(wait_first=0.02))
        before: list[int] = []

        def kill(answered: int) -> None:
            if answered == 15:
                before.extend(server.stats()["requests"] for server in (one, other))
                threading.Thread(target=one.stop).start()

        run = evaluate(
            BlendFilter(index), questions, lm=lm, run=tmp_path / "run", concurrency=16, progress=Watching(kill)
        )
        alone = evaluate(BlendFilter(index), questions, lm=asked_at(other), run=tmp_path / "alone", progress=False)
    assert run.errors == 0
    assert max(before) - min(before) <= 0.1 * max(before), before
    assert stable(run.folder) == stable(alone.folder)
    calls = journaled(run.folder)
    assert {record["address"] for record in calls} == {one.url, other.url}
    assert set(Counter(record["key"] for record in calls).values()) == {1}
    lost = sum(record["attempts"] - 1 for record in calls)
    assert lost <= 16, "those that were on their way to it, and no others"


def test_a_run_goes_on_at_other_addresses(index: BM25, tmp_path: Path) -> None:
    """Where it is served is noted, and is no setting of a run."""
    questions, method = many(4), ChainOfThought(index)
    with serve(reply="offline") as one, serve(reply="offline") as other:
        evaluate(method, questions, lm=asked_at(one), run=tmp_path / "run", progress=False)
        lm = connect("m", api_base=[one.url, other.url])
        evaluate(method, questions, lm=lm, run=tmp_path / "run", progress=False)
        assert other.stats()["requests"] == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["notes"]["address"] == f"{one.url}, {other.url}"
    assert one.url not in json.dumps(record["settings"])


# ---- what is shown, and pace


def test_the_progress_line_says_where_the_server_wants_fewer_calls() -> None:
    gate = Gate(16)
    running = Running(["em"], gate)
    assert "in flight" not in running.text()
    gate.after(asyncio.run(gate.before(REQUEST)), None, lm15.RateLimitError("slow down", status=429))
    assert running.text().endswith("8 of 16 in flight")
    assert progress_for(["em"], True, gate).running.gate is gate  # type: ignore[attr-defined]


def test_runs_side_by_side_share_a_models_pace(index: BM25, tmp_path: Path) -> None:
    """Two runs, one model: together they keep to what its server allows."""
    with serve() as server:
        lm = connect("m", api_base=server.url, requests_per_minute=5)
        pace = lm.terms.pace
        assert pace is not None
        assert pace._requests is not None
        pace._requests.seconds = window = 0.8
        threads = [
            threading.Thread(
                target=evaluate,
                args=(ChainOfThought(index), many(4)),
                kwargs={"lm": lm, "run": tmp_path / name, "progress": False},
            )
            for name in ("a", "b")
        ]
        began = time.monotonic()
        for each in threads:
            each.start()
        for each in threads:
            each.join(60)
        whole = time.monotonic() - began
        assert server.stats()["requests"] == 16
    assert whole >= 3 * window, "five, five, five and one; each run by itself would be done after one window"

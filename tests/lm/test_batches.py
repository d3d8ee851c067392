"""Calls in batches, at a provider and through files: the same run as live calls give, each call paid for once."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import dspy
import pytest
from batch_server import BatchServer, batching
from small_world import Command, CountingEngine, journaled, stable

from blendfilter import BM25, Batch, BlendFilter, Budget, ChainOfThought, Direct, aio, connect, evaluate, load, plan
from blendfilter.errors import BadData, BatchWritten, BudgetSpent, CannotWrite, RunFailed, ServerRefused
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_folder import read_rows
from blendfilter.journal import Journal
from blendfilter.lm.batches import INPUT, OUTPUT, Gatherer
from blendfilter.lm.prices import Price, Prices
from blendfilter.resources import sample
from blendfilter.tasks import Questions

QUICK = Batch(poll=0.02, fewest=1)
PRICES = Prices(Path("prices.toml"), "", {"m": Price(10.0, 100.0)})


@pytest.fixture(scope="module")
def index() -> BM25:
    return BM25.build(sample("corpus.jsonl"))


@pytest.fixture
def questions() -> Questions:
    return load("hotpotqa", "sample", limit=12)


@pytest.fixture(autouse=True)
def _fresh(fresh_dspy: None) -> None:
    """Nothing configured."""


def model(url: str = "http://batch.invalid/v1", **more: Any) -> Any:
    return connect("m", api_base=url, **more)


class Bench(NamedTuple):
    """Twelve questions, an index to answer them from, and a folder for runs."""

    index: BM25
    questions: Questions
    folder: Path

    def batched(self, server: BatchServer, method: Any = Direct, **more: Any) -> Run:
        return in_batches(method(self.index), self.questions, self.folder / "run", server, **more)

    def direct(self, lm: Any, run: str = "run", **more: Any) -> Run:
        return evaluate(Direct(self.index), self.questions, lm=lm, run=self.folder / run, progress=False, **more)

    def into_files(self) -> Run:
        return self.direct(model(), batch=Batch(self.folder / "f"))


@pytest.fixture
def bench(index: BM25, questions: Questions, tmp_path: Path) -> Bench:
    return Bench(index, questions, tmp_path)


def live(method: dspy.Module, questions: Questions, folder: Path) -> Run:
    """The run by calls that go out one by one; its model's name is the batches'."""
    return evaluate(method, questions, lm=CountingEngine().lm("m"), run=folder, progress=False)


def in_batches(method: dspy.Module, questions: Questions, folder: Path, server: BatchServer, **more: Any) -> Run:
    batch = more.pop("batch", QUICK)
    return evaluate(method, questions, lm=model(server.url), run=folder, batch=batch, progress=False, **more)


def answers(folder: Path) -> list[dict[str, Any]]:
    return [{name: row[name] for name in ("id", "answer", "knowledge", "queries")} for row in Run(folder).rows]


def answer_files(folder: Path, server: BatchServer, turn: int = 1) -> int:
    """What a queue does with a folder of batch files; returns how many it answered."""
    left = [path for path in folder.glob(f"*{INPUT}") if not path.with_name(_output(path)).exists()]
    for path in left:
        rows = []
        for line in map(json.loads, path.read_text().splitlines()):
            status, body = server.answered(line, turn)
            rows.append({"id": "r", "custom_id": line["custom_id"], "error": None,
                         "response": {"status_code": status, "request_id": "q", "body": body}})  # fmt: skip
        path.with_name(_output(path)).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return len(left)


def _output(path: Path) -> str:
    return path.name.replace(INPUT, OUTPUT)


def by_files(method: dspy.Module, questions: Questions, folder: Path, **more: Any) -> tuple[Run, int]:
    """The run by files, each answered as soon as it stops, and how often it stopped."""
    server, stops = BatchServer(behave=more.pop("behave", "plain")), 0
    while True:
        try:
            batch = Batch(folder.parent / "files")
            return evaluate(method, questions, lm=model(), run=folder, batch=batch, progress=False, **more), stops
        except BatchWritten:
            stops += 1
            assert answer_files(folder.parent / "files", server, stops), "it stopped, and had written nothing"


# --- what comes of it


def test_a_run_in_batches_is_the_run_of_live_calls(bench: Bench) -> None:
    live(BlendFilter(bench.index), bench.questions, bench.folder / "live")
    with batching() as server:
        done = in_batches(BlendFilter(bench.index), bench.questions, bench.folder / "batches", server)
    assert answers(done.folder) == answers(bench.folder / "live")
    assert len(server.created) == 5  # the depth of a question: external, check, ids, answer, short answer
    assert set(server.paid.values()) == {1}
    assert sum(server.created) == done.metrics["ledger"]["total"]["calls"]
    assert {record["batch"] for record in journaled(done.folder)} == {
        record["name"] for record in journaled(done.folder, "batch")
    }


def test_a_run_by_files_stops_until_they_are_answered(bench: Bench) -> None:
    with batching() as server:
        whole = in_batches(BlendFilter(bench.index), bench.questions, bench.folder / "batches", server)
    done, stops = by_files(BlendFilter(bench.index), bench.questions, bench.folder / "run")
    assert stops == 5
    assert stable(done.folder) == stable(whole.folder)
    replayed = evaluate(
        BlendFilter(bench.index), bench.questions, lm=model(), run=done.folder, replay=True, progress=False
    )
    assert stable(replayed.folder) == stable(whole.folder)


def test_what_it_says_when_it_stops(bench: Bench) -> None:
    with pytest.raises(BatchWritten, match=r"12 calls were written: .*-0001\.input\.jsonl; .*vllm run-batch") as stop:
        bench.into_files()
    assert "0 of 12 questions are answered, and the same command goes on once they are answered" in str(stop.value)
    with pytest.raises(BatchWritten, match=r"calls are still to be answered: .*-0001\.input\.jsonl"):
        bench.into_files()
    assert len([*(bench.folder / "f").iterdir()]) == 1


def test_a_line_of_a_file_is_one_call_in_openais_format(bench: Bench) -> None:
    with pytest.raises(BatchWritten):
        bench.into_files()
    line = json.loads(next((bench.folder / "f").iterdir()).read_text().splitlines()[0])
    assert (line["method"], line["url"], line["body"]["model"]) == ("POST", "/v1/chat/completions", "m")
    assert len(line["custom_id"]) == 32 + len("-12345678")  # the call's key, and a digest of what it asks
    assert line["body"]["messages"][0]["role"] == "user"


def test_a_run_may_begin_in_batches_and_go_on_without(bench: Bench) -> None:
    with pytest.raises(BatchWritten):
        bench.into_files()
    with batching() as server:
        done = bench.direct(model(server.url))
    assert server.singly == 12
    assert done.metrics["n"] == 12


# --- faults


def test_lines_that_fail_are_asked_again(bench: Bench) -> None:
    with batching(share=0.2) as server:
        done = bench.batched(server, BlendFilter)
    assert done.errors == 0
    assert set(server.paid.values()) == {1}
    assert max(server.came.values()) > 1
    assert max(record["attempts"] for record in journaled(done.folder)) > 1


def test_a_batch_that_expires_is_asked_again_where_it_had_no_answer(bench: Bench) -> None:
    with batching(expire=True) as server:
        done = bench.batched(server, ChainOfThought)
    assert done.errors == 0
    assert server.created[0] == 12
    assert set(server.paid.values()) == {1}


def test_a_provider_that_takes_fewer_calls_at_a_time_gets_fewer(bench: Bench) -> None:
    with batching(limit=4) as server:
        done = bench.batched(server)
    assert done.errors == 0
    assert server.created[:3] == [12, 6, 3]
    assert sum(size for size in server.created if size <= 4) == 12


def test_a_server_that_is_away_for_a_while_is_waited_for(bench: Bench) -> None:
    with batching(faults=[503, 429, 500]) as server:
        done = bench.batched(server)
    assert (done.errors, server.created) == (0, [12])


def test_a_batch_that_was_made_though_the_server_said_otherwise_is_not_made_twice(bench: Bench) -> None:
    with batching(twice=True) as server:
        done = bench.batched(server)
    assert (done.errors, server.created) == (0, [12])


def test_what_a_model_refuses_is_learned_from_the_first_batch(bench: Bench) -> None:
    with batching(behave="reasoning") as server:
        done = bench.batched(server)
    assert done.errors == 0
    assert sum(server.paid.values()) == 12
    assert len(server.created) < 5  # each refusal was learned once, for all


def test_a_batch_that_is_cancelled_ends_the_session_and_only_the_next_one_sends_it_again(bench: Bench) -> None:
    with batching(cancel=True) as server:
        with pytest.raises(ServerRefused, match="batch batch_1 was cancelled at"):
            bench.batched(server)
        assert server.created == [12]
        done = bench.batched(server)
    assert (done.errors, server.created) == (0, [12, 6])
    assert set(server.paid.values()) == {1}


def test_files_that_cannot_be_written_end_the_run(bench: Bench) -> None:
    (bench.folder / "f").write_text("a file, no folder")
    with pytest.raises(CannotWrite, match=str(bench.folder / "f")):
        bench.into_files()


@pytest.mark.parametrize("silent", ["/v1/files", "/v1/batches"])
def test_a_provider_without_batches_is_refused(silent: str, bench: Bench) -> None:
    with batching(silent=silent) as server, pytest.raises(ServerRefused, match=r"has no batches \(HTTP 404\)"):
        bench.batched(server)


def test_a_key_that_is_refused_is_in_no_message(bench: Bench) -> None:
    with batching(faults=[401] * 9) as server:
        lm = model(server.url, api_key="sk-secret-12345678")
        with pytest.raises(ServerRefused, match="refuses the key") as refused:
            bench.direct(lm, batch=QUICK)
    assert "sk-secret" not in str(refused.value)
    for path in (bench.folder / "run").rglob("*"):
        assert path.is_dir() or b"sk-secret" not in path.read_bytes()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"custom_id": "x", "response": {"status_code": 200, "body": {}}}', "'x' is no line of this batch"),
        ('{"custom_id": "x"}', "no answer to a line of a batch"),
        ("no JSON", "line 1"),
    ],
)
def test_answers_that_are_none_name_their_line(content: str, words: str, bench: Bench) -> None:
    with pytest.raises(BatchWritten):
        bench.into_files()
    written = next((bench.folder / "f").iterdir())
    written.with_name(_output(written)).write_text(content + "\n")
    with pytest.raises(BadData, match=words):
        bench.into_files()


def test_a_file_of_another_run_is_refused(bench: Bench) -> None:
    (bench.folder / "f").mkdir()
    (bench.folder / "f" / f"abc-0001{OUTPUT}").write_text("{}\n")
    with pytest.raises(BadData, match="answers no batch of this run"):
        bench.into_files()


def test_lines_that_a_file_of_answers_lacks_are_written_again(bench: Bench) -> None:
    with pytest.raises(BatchWritten):
        bench.into_files()
    answer_files(bench.folder / "f", BatchServer())
    output = next((bench.folder / "f").glob(f"*{OUTPUT}"))
    output.write_text("".join(output.read_text().splitlines(keepends=True)[:9]))
    with pytest.raises(BatchWritten, match=r"3 calls were written: .*-0002\.input\.jsonl.*; 9 of 12 questions"):
        bench.into_files()


# --- answers that are no replies, and what the next session does

GOOD: dict[str, Any] = {"choices": [{"message": {"content": "Tolm"}, "finish_reason": "stop"}]}


def row(id: str, status: int = 200, body: Any = GOOD, **more: Any) -> dict[str, Any]:
    return {"custom_id": id, "response": {"status_code": status, "body": body}, **more}


def session(folder: Path, **more: Any) -> str:
    """What comes of one session by files: its errors, or the class of its error."""
    questions = load("hotpotqa", "sample", limit=3)
    try:
        lm = model(api_key="k", **more)
        return str(evaluate(Direct(), questions, lm=lm, run=folder / "run", batch=Batch(folder / "files"),
                            progress=False).errors)  # fmt: skip
    except (BatchWritten, ServerRefused) as error:
        return type(error).__name__


def written(folder: Path) -> list[Path]:
    return sorted((folder / "files").glob(f"*{INPUT}"))


def answer(path: Path, *rows: dict[str, Any] | None) -> None:
    """Write a file of answers: these rows for the first lines (None: as a good one), and good ones for the rest."""
    ids = [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]
    given = [*rows, *[None] * len(ids)][: len(ids)]
    lines = [json.dumps({**(made or row(id)), "custom_id": id}) for id, made in zip(ids, given, strict=True)]
    path.with_name(_output(path)).write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("refusal", "comes"),
    [
        pytest.param(row("", 400, {"error": {"message": "bad"}}), "1", id="a request that is refused"),
        pytest.param(row("", 400, None, error={"message": "bad"}), "1", id="as vLLM writes it"),
        pytest.param(row("", 404, {"error": {"message": "The model `m` does not exist"}}), "ServerRefused", id="model"),
        pytest.param(row("", 401, {"error": {"message": "Incorrect key"}}), "ServerRefused", id="key"),
    ],
)
def test_a_line_that_is_refused_fails_in_one_session_and_is_asked_anew_by_the_next(
    refusal: dict[str, Any], comes: str, tmp_path: Path
) -> None:
    """Also where the second batch is refused again, and where the third is out while the run is repeated."""
    assert session(tmp_path) == "BatchWritten"
    for turn in (1, 2):
        answer(written(tmp_path)[-1], refusal)
        assert session(tmp_path) == comes
        failed = [call["error"]["message"] for call in journaled(tmp_path / "run") if call["error"]]
        assert failed == ["bad (HTTP 400)"] * turn * (comes == "1")
        assert session(tmp_path) == "BatchWritten"
        assert session(tmp_path) == "BatchWritten"
        assert [len(path.read_text().splitlines()) for path in written(tmp_path)] == [3, *[1] * turn]
    answer(written(tmp_path)[-1])
    assert session(tmp_path) == "0"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_log_probabilities_that_are_no_json_are_read_as_those_of_plain_calls(number: str, tmp_path: Path) -> None:
    session(tmp_path)
    scores = {"content": [{"token": "Tolm", "logprob": float(number), "top_logprobs": []}]}
    answer(written(tmp_path)[0], row("", body={"choices": [{**GOOD["choices"][0], "logprobs": scores}]}))
    assert session(tmp_path) == "0"
    kept = [call["logprobs"] for call in journaled(tmp_path / "run") if "logprobs" in call]
    assert str(kept) == str([[["Tolm", float(number)]]])


def test_what_a_file_of_answers_says_twice_or_not_to_its_end(tmp_path: Path) -> None:
    """A good answer counts, whatever stands beside it; a line that is cut off is missing."""
    session(tmp_path)
    first, second, third = [json.loads(line)["custom_id"] for line in written(tmp_path)[0].read_text().splitlines()]
    lines = [row(third, 500, {}), row(second), row(third), row(second, 500, {}), row(first)]
    cut = "\n\n".join(map(json.dumps, lines))[:-9]
    written(tmp_path)[0].with_name(_output(written(tmp_path)[0])).write_text(cut)
    assert session(tmp_path) == "BatchWritten"
    (again,) = written(tmp_path)[1].read_text().splitlines()
    assert json.loads(again)["custom_id"] == first
    answer(written(tmp_path)[1])
    assert session(tmp_path) == "0"


def test_a_line_that_failed_waits_for_the_batch_that_asks_for_it_again(tmp_path: Path) -> None:
    """Killed while the second batch is out, the run knows the first one's failure, and sends no third batch."""
    session(tmp_path)
    answer(written(tmp_path)[0], row("", 500, {}), row("", error={"message": "half a reply"}))
    for _ in range(3):
        assert session(tmp_path) == "BatchWritten"
    assert len(written(tmp_path)) == 2
    answer(written(tmp_path)[1])
    assert session(tmp_path) == "0"


def test_calls_that_failed_are_answered_by_the_batch_that_was_out_when_the_run_was_killed(
    questions: Questions, tmp_path: Path
) -> None:
    """With a limit four questions go first: the other lines of the batch wait for nothing when it is read."""
    run = tmp_path / "run"
    with batching() as server:
        plain, turns = server.replied, iter(range(12))
        server.replied = lambda path, body: (  # type: ignore[method-assign]
            (400, {"error": {"message": "bad"}}) if next(turns, None) is not None else plain(path, body)
        )
        with pytest.raises(RunFailed):
            in_batches(Direct(), questions, run, server)
        done = in_batches(Direct(), questions, run, server)
        assert (done.errors, server.created) == (0, [12, 12])
        first, *_ = batches = journaled(run, "batch")
        failed = [call for call in journaled(run) if call["error"]]
        for name in ("journal.jsonl", "predictions.jsonl", "metrics.json"):
            (run / name).unlink()
        (run / "batches" / f"{batches[-1]['name']}{OUTPUT}").unlink()
        with Journal(run) as journal:  # as it was when the second batch was out
            journal.append(first, *failed, batches[-1])
        done = in_batches(Direct(), questions, run, server, budget=Budget(calls=100))
    assert (done.errors, server.created) == (0, [12, 12])


def test_a_batch_that_is_refused_ends_the_session_and_the_next_one_sends_its_calls_again(bench: Bench) -> None:
    with batching(limit=0) as server:
        few = load("hotpotqa", "sample", limit=1)
        with pytest.raises(ServerRefused, match=r"batch batch_1 was refused: Enqueued .*; the same command sends its"):
            in_batches(Direct(bench.index), few, bench.folder / "run", server)
        server.limit = None
        done = in_batches(Direct(bench.index), few, bench.folder / "run", server)
    assert (done.errors, server.created) == (0, [1, 1])


def test_answers_that_break_off_are_fetched_again(bench: Bench) -> None:
    with batching(broken=2) as server:
        done = bench.batched(server)
    assert (done.errors, server.created, server.broken) == (0, [12], 0)


def test_a_provider_s_lines_that_are_no_answers_are_asked_again(bench: Bench) -> None:
    with batching() as server:
        keep = server.keep

        def garbled(content: bytes) -> dict[str, Any]:
            if server.created == [12] and len(server.files) == 1:  # the first answers
                content = b'{"custom_id": 7}\n[]\n' + content[:-40] + b"\n"
            return keep(content)

        server.keep = garbled  # type: ignore[method-assign]
        done = bench.batched(server)
    assert (done.errors, server.created) == (0, [12, 1])


@pytest.mark.parametrize("name", ["../../elsewhere", "/tmp/elsewhere", ""])
def test_a_journal_of_somebody_else_names_no_file_outside_the_run(name: str, tmp_path: Path) -> None:
    session(tmp_path)
    with Journal(tmp_path / "run") as journal:
        record = {**journal.records("batch").__next__(), "key": "0" * 32, "name": name}
        journal.append(record)
    with pytest.raises(BadData, match="is not the name of a batch"):
        session(tmp_path)


# --- killed


def killable(folder: Path, url: str) -> subprocess.Popen[bytes]:
    words = ["eval", "hotpotqa", "--data", "sample", "--limit", "30", "--lm", "m", "--api-base", url, "--batch",
             "--run", str(folder), "--no-html", "--max-bad-replies", "1"]  # fmt: skip
    code = "from blendfilter.cli import main, options; options.BatchOptions.poll = 0.05; main()"
    return subprocess.Popen([sys.executable, "-c", code, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.slow
def test_killed_five_times_it_pays_once_and_is_the_same_run(tmp_path: Path) -> None:
    with batching() as server:
        assert killable(tmp_path / "whole", server.url).wait() == 0
    with batching(delay=2.0, share=0.02) as server:
        for kill in range(1, 6):
            process = killable(tmp_path / "run", server.url)
            while len(server.created) < kill and process.poll() is None:
                time.sleep(0.01)
            time.sleep(0.3 * kill)  # before its id is noted, while it is out, when it is answered
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert killable(tmp_path / "run", server.url).wait() == 0
    assert stable(tmp_path / "run") == stable(tmp_path / "whole")
    assert set(server.paid.values()) == {1}
    assert len(server.created) <= 7


def as_killed(folder: Path, index: BM25, questions: Questions, server: BatchServer, **changed: Any) -> Path:
    """A run whose one batch was sent, and whose process was killed before it read anything of it."""
    in_batches(Direct(index), questions, folder / "whole", server)
    killed = folder / "killed"
    (folder / "whole").rename(killed)
    record = {**journaled(killed, "batch")[0], **changed}
    for name in ("journal.jsonl", "predictions.jsonl", "metrics.json"):
        (killed / name).unlink()
    next((killed / "batches").glob(f"*{OUTPUT}")).unlink()
    with Journal(killed) as journal:
        journal.append(record)
    return killed


@pytest.mark.parametrize("known", [{}, {"id": None}])
def test_a_run_that_was_killed_finds_its_batch_by_its_id_or_its_name(known: dict[str, Any], bench: Bench) -> None:
    with batching() as server:
        killed = as_killed(bench.folder, bench.index, bench.questions, server, **known)
        done = in_batches(Direct(bench.index), bench.questions, killed, server)
    assert (done.errors, server.created, server.singly) == (0, [12], 0)


def test_a_call_that_asks_twice_is_answered_as_it_asked_once_it_goes_on(bench: Bench) -> None:
    whole, _ = by_files(Direct(bench.index), bench.questions, bench.folder / "a" / "run", behave="reasoning")
    killed = bench.folder / "b" / "run"
    by_files(Direct(bench.index), bench.questions, killed, behave="reasoning")
    batches = journaled(killed, "batch")
    for name in ("journal.jsonl", "predictions.jsonl", "metrics.json"):
        (killed / name).unlink()
    with Journal(killed) as journal:  # every batch was answered, and nothing of that was noted
        journal.append(*batches)
    batch = Batch(bench.folder / "b" / "files")
    done = evaluate(Direct(bench.index), bench.questions, lm=model(), run=killed, batch=batch, progress=False)
    assert len(batches) > 1  # parameters that the model refuses
    assert stable(done.folder) == stable(whole.folder)


def test_a_batch_that_the_server_has_no_more_is_asked_anew(bench: Bench) -> None:
    with batching() as server:
        killed = as_killed(bench.folder, bench.index, bench.questions, server, id="batch_99")
        done = in_batches(Direct(bench.index), bench.questions, killed, server)
    assert (done.errors, server.created) == (0, [12, 12])


# --- what is paid


def test_a_call_in_a_batch_costs_half_and_a_single_one_its_price(bench: Bench) -> None:
    few = load("hotpotqa", "sample", limit=3)
    with batching() as server:
        lm = model(server.url, prices=PRICES)
        whole = bench.direct(lm, batch=QUICK)
        single = evaluate(Direct(bench.index), few, lm=lm, run=bench.folder / "few", batch=Batch(), progress=False)
    for run, rate in ((whole, 0.5), (single, 1.0)):
        total = run.metrics["ledger"]["total"]
        assert total["cost"] == pytest.approx(rate * PRICES.listed["m"].of(total["tokens_in"], total["tokens_out"]))
    assert server.singly == 3


def test_a_budget_holds_in_batches_and_what_was_spent_is_counted_at_the_batchs_price(bench: Bench) -> None:
    with batching() as server:
        lm = model(server.url, prices=PRICES, max_tokens=64)
        with pytest.raises(BudgetSpent, match="the budget is spent"):
            bench.direct(lm, batch=QUICK, budget=Budget(calls=8))
        assert sum(server.created) <= 8
        done = bench.direct(lm, batch=QUICK, budget=Budget(dollars=1.0))
    assert done.errors == 0
    assert set(server.paid.values()) == {1}


def test_with_a_limit_four_questions_go_first_unless_the_run_has_answers(bench: Bench) -> None:
    with batching() as server:
        in_batches(Direct(bench.index), bench.questions, bench.folder / "new", server, budget=Budget(calls=100))
        assert server.created[0] == 4
        server.created.clear()
        with pytest.raises(BudgetSpent):
            bench.direct(model(server.url), "begun", budget=Budget(calls=5), concurrency=1)
        begun = len(read_rows(bench.folder / "begun" / "predictions.jsonl"))
        in_batches(Direct(bench.index), bench.questions, bench.folder / "begun", server, budget=Budget(calls=100))
    assert begun > 0
    assert server.created[0] > 4


def test_a_plan_says_how_many_batches_there_will_be(index: BM25, questions: Questions) -> None:
    lm = model(prices=PRICES)
    usual = plan(BlendFilter(index), questions, lm)
    gathered = plan(BlendFilter(index), questions, lm, batch=Batch())
    assert len(gathered.rounds) == 5
    assert sum(gathered.rounds) == gathered.total.calls == usual.total.calls
    assert gathered.total.cost is not None
    assert usual.total.cost is not None
    assert gathered.total.cost == pytest.approx(usual.total.cost / 2)
    assert "batches: about 5, of " in gathered.text()


# --- on the command line


def test_the_command_writes_files_and_goes_on_once_they_are_answered(blendfilter: Command, here: Path) -> None:
    words = ("eval", "qa", "--data", "sample", "--limit", 12, "--method", "direct-retrieval", "--lm", "Qwen/Qwen3-8B",
             "--batch-dir", "files", "--run", "run", "--no-html")  # fmt: skip
    first, second = blendfilter(*words), blendfilter(*words)  # unanswered, it says so again
    assert (first.code, second.code) == (3, 3)
    assert "12 calls were written: files/" in first.err
    answer_files(here / "files", BatchServer())
    done = blendfilter(*words)
    assert done.code == 0, done.err
    body = json.loads(next((here / "files").glob(f"*{INPUT}")).read_text().splitlines()[0])["body"]
    assert body["model"] == "Qwen/Qwen3-8B"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--lm", "m", "--batch", "--batch-dir", "f"], "--batch asks the provider, --batch-dir writes files"),
        (["--lm", "m", "--batch-dir", "f", "--batch-window", "48h"], "--batch-window goes with --batch: add that"),
        (["--lm", "m", "--api-base", "http://a.invalid/v1", "--batch", "--batch-window", " "], "a batch window of ' '"),
        (["--batch"], "offline cannot be asked in batches"),
        (["--lm", "m", "--api-base", "http://a.invalid/v1", "--api-base", "http://b.invalid/v1", "--batch"],
         "m cannot be asked in batches: that takes one OpenAI-compatible server"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_one_line(
    options: list[str], words: str, blendfilter: Command, here: Path
) -> None:
    refused = blendfilter("eval", "qa", "--data", "sample", "--limit", 2, *options)
    assert refused.code == 2
    assert words in refused.err
    assert not (here / "runs").exists()


# --- what is gathered


class Sequential(dspy.Module):
    """A user's own method: synchronous, two calls one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = dspy.Predict("question -> hint"), dspy.Predict("question, hint -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        return self.second(question=question, hint=self.first(question=question).hint)  # type: ignore[no-any-return]


def test_a_synchronous_method_of_a_users_own_is_gathered_too(questions: Questions, tmp_path: Path) -> None:
    with batching() as server:
        in_batches(Sequential(), questions, tmp_path / "run", server)
    assert server.created[0] == 12  # every question's first call, though each blocks a thread


def test_a_filters_own_model_in_this_process_is_asked_as_ever(bench: Bench) -> None:
    with batching() as server:
        done = bench.batched(server, BlendFilter, filter_lm="offline",
                          batch=QUICK)  # fmt: skip
    stages = done.metrics["ledger"]
    assert sum(server.created) == sum(
        stages[name]["calls"] for name in ("external", "internal", "answer", "short_answer")
    )
    assert len(server.created) <= 4


async def gathered(script: list[int]) -> list[int]:
    """The sizes of what is sent where so many come to wait, all at once, and again so many after each answer."""
    sizes: list[int] = []

    def quiet() -> None:
        waiting, gatherer.waiting = gatherer.waiting, []
        sizes.append(len(waiting))
        for _, future in waiting:
            future.set_result(None)

    async def worker(number: int) -> None:
        for wanted in script:
            if number < wanted:
                await gatherer.join(None)

    gatherer: Gatherer[None, None] = Gatherer(quiet)
    running = asyncio.ensure_future(gatherer.run())
    await asyncio.gather(*map(worker, range(max(script))))
    running.cancel()
    return sizes


def test_what_waits_goes_together() -> None:
    assert aio.run(gathered([5, 3, 5])) == [5, 5, 3]

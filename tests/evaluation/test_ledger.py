"""The ledger and the seconds of a run: by hand, against a server's own count, over kills, without usage."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15
from hypothesis import given
from hypothesis import strategies as st
from model_server import Server, serve
from small_world import CountingEngine, done_by, journaled, slowly, stable

from blendfilter import BM25, BlendFilter, ChainOfThought, Direct, Run, connect, evaluate, load
from blendfilter.evaluation.ledger import LedgerEntry, busy_seconds, latency, ledger, tokens_of
from blendfilter.evaluation.run_status import RunStatus
from blendfilter.journal import Journal
from blendfilter.lm.attempts import CallPolicy, Retry
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.prices import Price, read_prices
from blendfilter.lm.profiles import Profile
from blendfilter.report.page_head import head_of
from blendfilter.report.plots import headline, point_of
from blendfilter.report.run_text import cost, ledger_notes, share, tokens
from blendfilter.reproduce.results import a_question
from blendfilter.tasks import Questions

A, B, C, D, E = (letter * 32 for letter in "abcde")
JOURNAL: dict[str, dict[str, Any]] = {
    A: {"tokens_in": 100, "tokens_out": 10, "tokens_cached": 60, "seconds": 0.5, "attempts": 1, "cost": 0.001},
    B: {"tokens_in": 50, "tokens_out": 5, "tokens_cached": None, "seconds": 0.25, "attempts": 3, "cost": 0.002},
    C: {"tokens_in": 7, "tokens_out": 1, "tokens_cached": 0, "seconds": 0.1, "attempts": 1, "cost": None},
    D: {"error": {"kind": "timeout", "message": "…"}, "seconds": 9.0, "attempts": 6},
}
ROWS: list[dict[str, Any]] = [
    {"id": "one", "calls": [["external", A], ["topic", C]]},
    {"id": "two", "calls": [["answer", A], ["external", B]]},  # A again, under another name: it was asked once
    {"id": "three", "calls": [["answer", D], ["answer", E]]},  # one failed, one the journal does not hold
]


def test_a_call_counts_once_under_the_stage_that_asked_first() -> None:
    entries = ledger(ROWS, JOURNAL.get)
    assert list(entries) == ["external", "topic", "total"]
    assert entries["external"] == LedgerEntry(
        2, 150, 15, 0.003, tokens_cached=60, seconds=0.75, attempts=4, cached_of=100, hits=1
    )
    assert entries["topic"] == LedgerEntry(
        1, 7, 1, None, tokens_cached=0, seconds=0.1, attempts=1, unpriced=1, cached_of=7
    )
    assert (entries["total"].calls, entries["total"].tokens_in, entries["total"].attempts) == (3, 157, 5)


def test_what_metrics_json_keeps() -> None:
    """One call without a price leaves the sum unknown; seconds and attempts are not stored."""
    entries = ledger(ROWS, JOURNAL.get)
    assert entries["external"].stored() == {"calls": 2, "tokens_in": 150, "tokens_out": 15, "cost": 0.003}
    assert entries["topic"].stored() == {"calls": 1, "tokens_in": 7, "tokens_out": 1, "cost": None}
    assert entries["total"].stored() == {"calls": 3, "tokens_in": 157, "tokens_out": 16, "cost": None}


def test_a_call_outside_any_stage_has_a_name_too() -> None:
    assert list(ledger([{"calls": [["", A]]}], JOURNAL.get)) == ["call", "total"]


def test_a_stage_called_total_does_not_hide_the_total() -> None:
    entries = ledger([{"calls": [["total", A], ["ids", B]]}], JOURNAL.get)
    assert list(entries) == ["total (stage)", "ids", "total"]
    assert [entry.calls for entry in entries.values()] == [1, 1, 2]


def test_hits_are_uses_beyond_the_first_and_calls_of_other_runs() -> None:
    """A is used three times, B was copied from another run and used twice, D failed and counts nowhere."""
    journal = {**JOURNAL, B: {**JOURNAL[B], "reused": True}}
    rows = [{"calls": [["external", A], ["topic", A]]}, {"calls": [["ids", A], ["ids", B], ["ids", B], ["ids", D]]}]
    rows.append({"calls": [["ids", D], ["ids", E]]})
    entries = ledger(rows, journal.get)
    assert {stage: entry.hits for stage, entry in entries.items()} == {"external": 2, "ids": 2, "total": 4}
    assert entries["total"].stored()["calls"] == 2, "what is stored knows nothing of hits"
    assert entries["ids"].retries == 2


def test_tokens_that_no_server_stated_are_unknown_and_not_0() -> None:
    silent = {A: {"tokens_in": None, "tokens_out": None, "cost": None}, B: {"tokens_in": 5, "tokens_out": None}}
    entries = ledger([{"calls": [["one", A], ["two", B], ["three", C]]}], {**JOURNAL, **silent}.get)
    assert entries["one"].stored() == {"calls": 1, "tokens_in": None, "tokens_out": None, "cost": None}
    assert entries["total"].stored()["tokens_in"] is None
    assert tokens_of(entries["total"].stored()) is entries["total"].tokens is None
    assert tokens_of(entries["three"].stored()) == entries["three"].tokens == 8
    one, total = entries["one"], entries["total"]
    assert (tokens(one.tokens_in, one), cost(one), share(one)) == ("-", "-", "-")
    assert tokens(total.tokens_in, total) == "≥ 12"
    assert "no tokens told: 2 of 3 calls" in list(ledger_notes(total))


def test_the_cached_share_is_over_the_calls_that_told() -> None:
    entries = ledger(ROWS, JOURNAL.get)
    assert entries["external"].cached_share == pytest.approx(0.6), "B told nothing, and counts in neither part"
    turned = ledger([{"calls": [["external", B], ["external", A]]}], JOURNAL.get)
    assert turned["external"].cached_share == pytest.approx(0.6)
    assert entries["topic"].cached_share == 0.0
    assert share(entries["external"]) == "60 %"
    assert LedgerEntry().cached_share is None


def test_prices_fill_in_what_a_record_does_not_hold(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[models]\n"m" = { input = 1000, output = 2000, cached = 500 }\n', encoding="utf-8")
    journal = {key: {**record, "model": "m", "parameters": {}} for key, record in JOURNAL.items()}
    entries = ledger(ROWS, journal.get, read_prices(own))
    assert entries["external"].whole_cost == 0.003, "what is recorded stays"
    assert entries["topic"].whole_cost == pytest.approx(0.009)
    assert entries["total"].stored()["cost"] == pytest.approx(0.012)
    assert ledger(ROWS, journal.get)["total"].whole_cost is None


# --- latency ---------------------------------------------------------------------------------------------------------


calls = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 20)), max_size=12)


def timed(*pairs: tuple[float, float]) -> list[dict[str, float]]:
    return [{"at": at, "seconds": seconds} for at, seconds in pairs]


def test_worked_by_hand() -> None:
    """[0, 2] and [1, 3] overlap, [1, 1.5] lies inside, [5, 6] stands alone: 3 + 1."""
    assert busy_seconds(timed((1, 2), (5, 1), (0, 2), (1, 0.5))) == 4
    assert busy_seconds([]) == 0
    assert busy_seconds([*timed((0, 2)), {"seconds": 3.0}, {"at": None, "seconds": 1.0}]) == 6


@given(calls)
def test_it_is_the_number_of_seconds_in_which_something_is_in_flight(pairs: list[tuple[int, int]]) -> None:
    busy = {second for at, seconds in pairs for second in range(at, at + seconds)}
    assert busy_seconds(timed(*pairs)) == len(busy)


def test_of_a_run_branches_side_by_side_count_once(index: BM25, questions: Questions, tmp_path: Path) -> None:
    """Calls of 20 ms: five deep, eleven in all. Where calls wait for a place, the wait does not count."""

    async def wait(_stage: str, _prompt: str) -> None:
        await asyncio.sleep(0.02)

    run, _ = done_by(BlendFilter(index), questions[:3], tmp_path / "run", engine=CountingEngine(wait), concurrency=32)
    result = latency(run)
    assert result.n == 3
    assert result.median >= 5 * 0.02
    one_by_one = sum(call["seconds"] for call in journaled(run.folder)) / 3
    assert result.mean < 0.8 * one_by_one, "five deep of eleven is less than half"
    assert result.median <= result.p95
    began = time.perf_counter()
    few, _ = done_by(Direct(index), questions, tmp_path / "few", engine=CountingEngine(wait), concurrency=1)
    whole = time.perf_counter() - began
    assert latency(few.folder).mean >= 0.02
    assert latency(few.folder).mean * len(questions) <= whole, "with their waits they would be longer than all of it"
    starts = sorted(call["at"] for call in journaled(few.folder))
    assert starts[-1] - starts[0] >= 5 * 0.018, "it went out after its wait"


def test_a_journal_of_before_counts_its_seconds(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run, _ = done_by(ChainOfThought(index), questions[:2], tmp_path / "run")
    with Journal(run.folder) as journal:
        for record in [each for each in journal.records() if each["kind"] == "call"]:
            journal.append({name: value for name, value in record.items() if name != "at"} | {"seconds": 2.0})
    assert latency(run).median == 4.0


def test_no_calls_no_latency(questions: Questions, tmp_path: Path) -> None:
    class Yes(dspy.Module):
        def forward(self, question: str) -> dspy.Prediction:
            return dspy.Prediction(answer="yes")

    run, _ = done_by(Yes(), questions, tmp_path / "run")
    assert latency(run) == pytest.approx((0, 0, 0, 6))


def test_an_answer_that_stopped_early_is_left_out(index: BM25, questions: Questions, tmp_path: Path) -> None:
    async def refuse(stage: str, prompt: str) -> None:
        if stage == "short_answer" and questions[0].question in prompt:
            raise lm15.ContextLengthError("too many", status=400)

    run, _ = done_by(ChainOfThought(index), questions, tmp_path / "run", engine=CountingEngine(refuse))
    assert [row["error"] is None for row in run.rows].count(False) == 1
    assert latency(run).n == len(questions) - 1


def test_a_call_that_one_answer_used_twice_took_its_time_once(questions: Questions, tmp_path: Path) -> None:
    class Twice(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ask = dspy.Predict("question -> answer")

        async def aforward(self, question: str) -> dspy.Prediction:
            await self.ask.acall(question=question)
            return await self.ask.acall(question=question)

    run, engine = done_by(Twice(), questions[:2], tmp_path / "run")
    assert (engine.calls, len(run.rows[0]["calls"])) == (2, 2)
    with Journal(run.folder) as journal:  # without the time a call went out, it counts each time it is met
        for record in [each for each in journal.records() if each["kind"] == "call"]:
            journal.append({name: value for name, value in record.items() if name != "at"} | {"seconds": 2.0})
    assert latency(run).median == 2.0


# --- ledger at once --------------------------------------------------------------------------------------------------


def total(run: Run) -> dict[str, Any]:
    stored: dict[str, Any] = run.metrics["ledger"]["total"]
    return stored


class Parallel(dspy.Module):
    """Asks three times side by side, in threads of DSPy's, and once more for the first."""

    def __init__(self) -> None:
        super().__init__()
        self.guess = dspy.Predict("question, number -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        wanted = [(self.guess, dspy.Example(question=question, number=str(n)).with_inputs("question", "number"))
                 for n in (1, 2, 3, 1)]  # fmt: skip
        with dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
            found = dspy.Parallel(num_threads=4, disable_progress_bar=True)(wanted)
        return dspy.Prediction(answer=found[0].answer)


def numbered(prompt: str) -> str:
    return f"[[ ## answer ## ]]\n{prompt.count('1')} words\n[[ ## completed ## ]]"


def test_calls_in_threads_of_dspy_parallel_are_counted_each_once(questions: Questions, tmp_path: Path) -> None:
    run, engine = done_by(
        Parallel(), questions, tmp_path / "run", engine=CountingEngine(slowly(), reply=numbered), concurrency=32
    )
    assert run.errors == 0
    assert total(run)["calls"] == engine.calls == 3 * len(questions)
    assert total(run)["tokens_in"] == sum(len(prompt.split()) for prompt in engine.prompts)
    assert list(run.metrics["ledger"]) == ["guess", "total"]
    assert RunStatus(run).entries["guess"].hits == len(questions), "the fourth use of each is the first call again"


class Priced(CountingEngine):
    """The counting reader at a price."""

    def lm(self, name: str = "priced", **defaults: Any) -> ConnectedLM:
        terms = CallPolicy(price=Price(10, 30, 1))
        return ConnectedLM(name, self, profile=Profile(), terms=terms, **{"temperature": 0.0, **defaults})


def test_calls_of_another_run_are_hits_and_metrics_do_not_change(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:  # fmt: skip
    first, _ = done_by(BlendFilter(index), questions, tmp_path / "one", engine=Priced())
    second, engine = done_by(BlendFilter(index), questions, tmp_path / "two", engine=Priced(), reuse=[first.folder])
    assert engine.calls == 0
    assert stable(first.folder) == stable(second.folder)
    assert RunStatus(first).entries["total"].hits < RunStatus(second).entries["total"].hits
    calls = total(first)["calls"]
    assert RunStatus(second).entries["total"].hits == RunStatus(first).entries["total"].hits + calls
    cost = (10 * total(first)["tokens_in"] + 30 * total(first)["tokens_out"]) / 1e6
    assert total(second)["cost"] == pytest.approx(cost, abs=1e-6)


# --- ledger untold ---------------------------------------------------------------------------------------------------


class Silent(CountingEngine):
    """The counting reader behind a server that tells no usage."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        return dataclasses.replace(await super().complete(request), usage=lm15.Usage())


@pytest.fixture
def silent(index: BM25, questions: Questions, tmp_path: Path) -> Run:
    return done_by(Direct(index), questions, tmp_path / "silent", engine=Silent())[0]


def test_it_is_unknown_wherever_tokens_are_shown(
    silent: Run, index: BM25, questions: Questions, tmp_path: Path
) -> None:  # fmt: skip
    result, _ = done_by(Direct(index), questions, tmp_path / "stated")
    total = silent.metrics["ledger"]["total"]
    assert (total["calls"], total["tokens_in"], total["tokens_out"]) == (len(questions), None, None)
    assert f"no tokens told: {len(questions)} of {len(questions)} calls" in " ".join(silent.report().split())
    assert a_question(silent) == (1.0, None)
    head = head_of(RunStatus(silent), [RunStatus(result)])
    assert head["sides"][0]["tokens"] == "-" != head["sides"][1]["tokens"]
    assert head["ledger"][-1][4] == head["ledger"][-1][6] == "-"
    assert "tokens told" in silent.html(result).read_text(encoding="utf-8")


def test_the_headline_plot_leaves_out_what_is_not_known_of_all(
    silent: Run, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    result, _ = done_by(Direct(index), questions, tmp_path / "stated")
    assert point_of("silent", silent).tokens != point_of("silent", silent).tokens, "nan"
    drawn = headline([silent, result], tmp_path / "plot.svg")[0].read_text(encoding="utf-8")
    assert "model calls a question" in drawn
    assert "tokens a question" not in drawn
    assert "tokens a question" in headline([result], tmp_path / "whole.svg")[0].read_text(encoding="utf-8")


# --- accounts --------------------------------------------------------------------------------------------------------


IN_FLIGHT = 32


def answered(server: Server) -> dict[str, int]:
    """The server's own count of the calls that it answered in full, and of their tokens."""
    stats = server.stats()
    calls = stats["requests"] - sum(stats["faults"].values())
    return {"calls": calls, "tokens_in": stats["tokens_in"], "tokens_out": stats["tokens_out"]}


def accounted(run: Run) -> dict[str, int]:
    total = run.metrics["ledger"]["total"]
    return {name: total[name] for name in ("calls", "tokens_in", "tokens_out")}


def quick(url: str, **more: Any) -> ConnectedLM:
    lm = connect("any/model", api_base=url, **more)
    lm.terms = dataclasses.replace(lm.terms, retry=Retry(wait_first=0.005, wait_max=0.02))
    return lm


@pytest.mark.parametrize("behave", ["plain", "flaky", "reasoning"])
def test_the_ledger_is_the_servers_own_count(index: BM25, tmp_path: Path, behave: str) -> None:
    questions = load("qa", "sample", limit=32)
    with serve(reply="offline", behave=behave, jitter=1, jitter_max=0.01) as server:
        run = evaluate(
            BlendFilter(index), questions, lm=quick(server.url), run=tmp_path, concurrency=IN_FLIGHT, progress=False
        )
        counted, stats = answered(server), server.stats()
    refused = stats["statuses"].get("400", 0)  # parameters; each cost an attempt
    counted["calls"] -= refused
    assert run.errors == 0
    assert accounted(run) == counted
    assert 1 < stats["max_in_flight"] <= IN_FLIGHT  # how many really met depends on the machine's load
    records = journaled(tmp_path)
    assert len({record["key"] for record in records}) == len(records) == counted["calls"]
    assert sum(record["attempts"] - 1 for record in records) == sum(stats["faults"].values()) + refused


def test_two_runs_at_once_in_one_process_each_have_their_own(index: BM25, tmp_path: Path) -> None:
    def one(server: Server, name: str, first: int) -> None:
        questions = load("qa", "sample")[first : first + 12]
        runs[name] = evaluate(
            BlendFilter(index), questions, lm=quick(server.url), run=tmp_path / name, progress=False
        )  # fmt: skip

    runs: dict[str, Run] = {}
    with serve(reply="offline", behave="flaky") as here, serve(reply="offline", behave="flaky", seed=1) as there:
        threads = [threading.Thread(target=one, args=each) for each in ((here, "a", 0), (there, "b", 12))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert accounted(runs["a"]) == answered(here)
        assert accounted(runs["b"]) == answered(there)

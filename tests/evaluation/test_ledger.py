"""The ledger and the seconds of a run: by hand, against a server's own count, over kills, without usage."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from dspy import lm15
from model_server import Server, serve
from small_world import CountingEngine, done_by, journaled

from blendfilter import BM25, BlendFilter, ChainOfThought, Run, connect, evaluate, load
from blendfilter.evaluation.ledger import LedgerEntry, busy_seconds, latency, ledger, money, taken, tokens_of
from blendfilter.lm.attempts import Retry
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.prices import read_prices
from blendfilter.report.run_text import ledger_notes, share, tokens
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
    assert (tokens(one.tokens_in, one), money(one.whole_cost), share(one)) == ("-", "-", "-")
    assert tokens(total.tokens_in, total) == "≥ 12"
    assert "no tokens told: 2 of 3 calls" in list(ledger_notes(total))


def test_prices_fill_in_what_a_record_does_not_hold(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('[models]\n"m" = { input = 1000, output = 2000, cached = 500 }\n', encoding="utf-8")
    journal = {key: {**record, "model": "m", "parameters": {}} for key, record in JOURNAL.items()}
    entries = ledger(ROWS, journal.get, read_prices(own))
    assert entries["external"].whole_cost == 0.003, "what is recorded stays"
    assert entries["topic"].whole_cost == pytest.approx(0.009)
    assert entries["total"].stored()["cost"] == pytest.approx(0.012)
    assert ledger(ROWS, journal.get)["total"].whole_cost is None


def test_a_reply_that_was_asked_for_once_more_was_paid_for_too(tmp_path: Path) -> None:
    """Its tokens have a price; what attempts without a reply may have cost depends on the server's day, and has none.

    A: 100 in and 10 out, after a first reply of 100 and 32: 200 * $1 + 42 * $10 a million. B: its `tokens_lost` are all
    of attempts that nobody heard of.
    """
    own = tmp_path / "own.toml"
    own.write_text('[models]\n"m" = { input = 1, output = 10 }\n', encoding="utf-8")
    thought = {"tokens_in": 100, "tokens_out": 32, "tokens_cached": None}
    called = {"model": "m", "parameters": {}, "tokens_in": 100, "tokens_out": 10, "attempts": 2, "cost": None}
    journal = {A: {**called, "first": thought, "tokens_lost": 132}, B: {**called, "tokens_lost": 132}}
    rows = [{"calls": [["ids", A], ["answer", B]]}]
    entries = ledger(rows, journal.get, read_prices(own))
    assert entries["ids"].whole_cost == pytest.approx(620e-6)
    assert entries["answer"].whole_cost == pytest.approx(200e-6)
    assert entries["ids"].stored()["tokens_out"] == 10, "tokens are those of the reply that is used"


# --- latency ---------------------------------------------------------------------------------------------------------


def timed(*pairs: tuple[float, float]) -> list[dict[str, float]]:
    return [{"at": at, "seconds": seconds} for at, seconds in pairs]


def test_worked_by_hand() -> None:
    """[0, 2] and [1, 3] overlap, [1, 1.5] lies inside, [5, 6] stands alone: 3 + 1."""
    assert busy_seconds(timed((1, 2), (5, 1), (0, 2), (1, 0.5))) == 4
    assert busy_seconds([]) == 0


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


def test_an_answer_that_stopped_early_is_left_out(index: BM25, questions: Questions, tmp_path: Path) -> None:
    async def refuse(stage: str, prompt: str) -> None:
        if stage == "short_answer" and questions[0].question in prompt:
            raise lm15.ContextLengthError("too many", status=400)

    run, _ = done_by(ChainOfThought(index), questions, tmp_path / "run", engine=CountingEngine(refuse))
    assert [row["error"] is None for row in run.rows].count(False) == 1
    assert latency(run).n == len(questions) - 1


# --- ledger at once --------------------------------------------------------------------------------------------------


# --- ledger untold ---------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("behave", ["plain", "reasoning"])
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


@pytest.mark.parametrize(("cost", "dollars"), [(1e308, 0.00015), (1e12, 0.00015), (0.5, 0.5)])
def test_an_absurd_cost_that_an_earlier_version_kept_counts_at_our_price(cost: float, dollars: float) -> None:
    options = {"options": {"provider": "openai"}}
    record = {"model": "gpt-4o-mini", "parameters": options, "tokens_in": 1000, "tokens_out": 0, "cost": cost}
    assert taken(record).dollars == pytest.approx(dollars)

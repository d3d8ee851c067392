"""The ledger over a journal made by hand: three stages, one call that two questions share, one that failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from blendfilter.evaluation.ledger import LedgerEntry, ledger, tokens_of
from blendfilter.lm.prices import read_prices
from blendfilter.report.run_text import cost, ledger_notes, share, tokens

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


def test_tokens_that_nobody_told_are_unknown_and_not_0() -> None:
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

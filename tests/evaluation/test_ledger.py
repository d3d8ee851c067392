"""The ledger over a journal made by hand: three stages, one call that two questions share, one that failed."""

from __future__ import annotations

from typing import Any

import pytest

from blendfilter.evaluation.ledger import Entry, ledger

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
    assert entries["external"] == Entry(2, 150, 15, 0.003, tokens_cached=60, seconds=0.75, attempts=4)
    assert entries["topic"] == Entry(1, 7, 1, None, tokens_cached=0, seconds=0.1, attempts=1, unpriced=1)
    assert (entries["total"].calls, entries["total"].tokens_in, entries["total"].attempts) == (3, 157, 5)


def test_what_metrics_json_keeps() -> None:
    """One call without a price leaves the sum unknown; seconds and attempts are not stored."""
    entries = ledger(ROWS, JOURNAL.get)
    assert entries["external"].stored() == {"calls": 2, "tokens_in": 150, "tokens_out": 15, "cost": 0.003}
    assert entries["topic"].stored() == {"calls": 1, "tokens_in": 7, "tokens_out": 1, "cost": None}
    assert entries["total"].stored() == {"calls": 3, "tokens_in": 157, "tokens_out": 16, "cost": None}


def test_each_record_is_read_once() -> None:
    read: list[str] = []

    def reader(key: str) -> dict[str, Any] | None:
        read.append(key)
        return JOURNAL.get(key)

    ledger(ROWS, reader)
    assert sorted(read) == sorted([A, B, C, D, E])


def test_no_calls() -> None:
    assert ledger([{"calls": []}], JOURNAL.get) == {"total": Entry()}
    assert Entry().stored() == {"calls": 0, "tokens_in": 0, "tokens_out": 0, "cost": None}


def test_a_call_outside_any_stage_has_a_name_too() -> None:
    assert list(ledger([{"calls": [["", A]]}], JOURNAL.get)) == ["call", "total"]


def test_costs_are_rounded_to_a_millionth() -> None:
    entry = Entry()
    for _ in range(3):
        entry.add({"cost": 0.1, "tokens_in": None, "tokens_out": None})
    assert entry.cost == pytest.approx(0.3)
    assert entry.stored()["cost"] == 0.3
    assert entry.attempts == 3


def test_a_stage_called_total_does_not_hide_the_total() -> None:
    entries = ledger([{"calls": [["total", A], ["ids", B]]}], JOURNAL.get)
    assert list(entries) == ["total (stage)", "ids", "total"]
    assert [entry.calls for entry in entries.values()] == [1, 1, 2]

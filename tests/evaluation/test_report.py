"""The report of a run made by hand, word for word; nothing in it is cut, coloured or read as markup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_world import done_by, journaled
from stored import ROW, SETTINGS, write_rows

from blendfilter import BM25, BlendFilter, Direct, Run
from blendfilter.errors import BudgetSpent
from blendfilter.evaluation.ledger import LedgerEntry
from blendfilter.evaluation.rows import LOSSES
from blendfilter.evaluation.run_folder import METRICS, PREDICTIONS, RUN, write_json
from blendfilter.journal import Journal
from blendfilter.lm.budget import Budget
from blendfilter.modules.base import FLAGS
from blendfilter.report.run_text import OFFLINE, ledger_table, report_text
from blendfilter.tasks import Questions

A, B, C = (letter * 32 for letter in "abc")
SIGNATURE = "hotpotqa EM 50.0 ± 50.0 | n:2|data:dev[1].jsonl/0123|method:blendfilter|lm:m|retriever:bm25/feed|k:5|v0"
REFUSED = "the key [key] and the tag [/red] stand as they are"


def call(key: str, stage: str, **more: Any) -> dict[str, Any]:
    counts: dict[str, Any] = {
        "tokens_in": 1200,
        "tokens_out": 30,
        "tokens_cached": 600,
        "seconds": 0.5,
        "attempts": 1,
        "cost": 0.01,
    }
    counts |= {"reply": "r", "reasoning": "", "finish": "stop"}
    return {"key": key, "kind": "call", "stage": stage, **counts, **more}


def made(folder: Path, *, lm: str = "m", errors: int = 1, retrieval: bool = True) -> Run:
    """A run of two questions: one right, one (or more) that ended in an error."""
    folder.mkdir()
    measures = {"recall": 0.75, "precision": 0.3, "s_precision": 0.0}
    write_json(
        folder / METRICS,
        {
            "task": "hotpotqa",
            "method": "blendfilter",
            "n": 2,
            "metrics": {"em": {"value": 0.5, "low": 0.0, "high": 1.0}},
            "retrieval": {"q": measures, "kept": {**measures, "recall": 0.5}} if retrieval else {},
            "flags": {**dict.fromkeys([*FLAGS, "errors"], 0), "explicit_none": 3, "errors": errors},
            "losses": dict.fromkeys(LOSSES, 0) | {"right": 1, "error": errors},
            "ledger": {},
            "signature": SIGNATURE,
        },
    )
    write_json(folder / RUN, {"settings": SETTINGS | {"lm": {"name": lm}}})
    known = ROW | {
        "gold_titles": ["Orm Pier"],
        "retrieval": {"q": measures, "kept": {**measures, "recall": 0.5}} if retrieval else {},
    }
    error = {"kind": "timeout", "stage": "check", "message": REFUSED}
    failed = known | {"answer": None, "em": 0.0, "loss": "error", "error": error, "calls": [["external", C]]}
    right = known | {"id": "q-0", "answer": "Ormskerry", "em": 1.0, "loss": "right", "flags": {"explicit_none": 3}}
    right |= {"calls": [["external", A], ["ids", B]]}
    write_rows(folder / PREDICTIONS, [right, *(failed | {"id": f"q-{n}"} for n in range(1, errors + 1))])
    with Journal(folder) as journal:
        journal.append(call(A, "external"), call(B, "ids", cost=None, attempts=3, seconds=0.25), call(C, "external"))
    return Run(folder)


def test_a_report_word_for_word(tmp_path: Path) -> None:
    assert report_text(made(tmp_path / "run"), width=90).splitlines() == GOLDEN.splitlines()


FAILURE = (
    "FAILED: 1 of 2 questions ended in an error and counts as 0: 1 timeout (first 'q-1', at check: the key [key] and "
    "the tag [/red] stand as they are); the same command asks again."
)
GOLDEN = f"""\
hotpotqa EM 50.0 ± 50.0 | n:2|data:dev[1].jsonl/0123|method:blendfilter|lm:m|retriever:bm25/feed|k:5|v0
{FAILURE}

Scores over 2 questions, in %

metric  value  95 % interval
----------------------------
em       50.0   0.0 to 100.0

Gold titles, in %

query                recall  precision  S-precision
---------------------------------------------------
q                      75.0       30.0          0.0
kept for the answer    50.0       30.0          0.0

without 1 of 2 questions, which ended in an error

Where questions are lost

                             questions     %
--------------------------------------------
gold not retrieved                   0   0.0
retrieved and filtered away          0   0.0
kept and answered wrong              0   0.0
right                                1  50.0
right without gold                   0   0.0
ended in an error                    1  50.0

Events: explicit_none 3, errors 1

Ledger

stage     calls  a question  tokens in  cached  tokens out  retries  s a call     cost
--------------------------------------------------------------------------------------
external      2        1.00      2,400    50 %          60        0     0.500  $0.0200
ids           1        0.50      1,200    50 %          30        2     0.250        -
--------------------------------------------------------------------------------------
total         3        1.50      3,600    50 %          90        2     0.417        -

what the run used, reused calls included; equal calls count once
no price: 1 of 3 calls

Errors (1); the same command again asks these questions again

question  stage
----------------------------------------------------------------------------
q-1       check  timeout: the key [key] and the tag [/red] stand as they are
"""


def test_the_offline_reader_is_named_for_what_it_is(tmp_path: Path) -> None:
    assert OFFLINE in report_text(made(tmp_path / "offline", lm="offline"))
    assert OFFLINE not in report_text(made(tmp_path / "model"))


def test_what_no_stage_has_is_no_column_and_repeats_are_answers(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    run, _ = done_by(Direct(index), questions, tmp_path / "run", repeats=2)
    head = next(line for line in report_text(run).splitlines() if line.split()[:2] == ["stage", "calls"])
    assert head.split() == ["stage", "calls", "an", "answer", "tokens", "in", "tokens", "out", "s", "a", "call"]


def test_without_gold_titles_no_losses_are_told(tmp_path: Path) -> None:
    run = made(tmp_path / "run")
    for row in run.rows:
        row["gold_titles"] = []
    result = report_text(run)
    assert "No gold titles are known" in result
    assert "gold not retrieved" not in result
    run.rows[0]["gold_titles"] = ["Orm Pier"]
    assert "gold titles are known for 1 of 2" in report_text(run)


def test_a_full_ledger_fits_80_columns() -> None:
    """Every column there is, as a large run at a provider fills them: no figure is cut, none is broken."""
    entry = LedgerEntry(
        calls=21_346, tokens_in=113_512_345, tokens_out=2_999_412, cost=323.18, tokens_cached=5, cached_of=10,
        seconds=22_222, attempts=23_692, hits=21_351,
    )  # fmt: skip
    table = ledger_table({"short_answer": entry, "total": entry}, 2000, "a question")
    for width in (80, 110):
        lines = table.text(width).splitlines()
        assert max(map(len, lines[:-3])) <= width
        (row,) = (line for line in lines if line.startswith("total"))
        figures = ["total", "21,346", "10.67", "21,351", "113.5M", "50", "%", "3.00M", "2,346", "1.041", "$323.18"]
        assert row.split() == figures
        assert any(line.startswith("hits: uses of a call beyond its first") for line in lines)


def test_what_is_gone_of_a_runs_limits_is_told_finished_or_not(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    with pytest.raises(BudgetSpent):
        done_by(Direct(index), questions, run, budget=Budget(calls=4))
    assert "\nLimits: 4 of 4 calls are gone\n" in Run(run).report()
    done_by(Direct(index), questions, run, budget=Budget(calls=1_000, tokens=2_000_000))
    gone = sum(record["tokens_in"] + record["tokens_out"] for record in journaled(run))
    result = f"Limits: {len(journaled(run))} of 1,000 calls, {gone:,} of 2,000,000 tokens are gone"
    assert result in Run(run).report().splitlines()
    done_by(Direct(index), questions, run)
    assert "Limits" not in Run(run).report()


def test_what_unfinished_questions_took_is_told_below_the_ledger(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    for limit in (3, 45):
        with pytest.raises(BudgetSpent):
            done_by(BlendFilter(index), questions, run, budget=Budget(calls=limit))
        tokens = sum(record["tokens_in"] + record["tokens_out"] for record in journaled(run))
        paid = f"unfinished questions and failed attempts included: {limit} calls, {tokens:,} tokens"
        assert paid in " ".join(Run(run).report().split())
        assert paid in Run(run).html().read_text()
    assert 0 < len(Run(run).folder.joinpath("predictions.jsonl").read_text().splitlines()) < len(questions)
    done_by(BlendFilter(index), questions, run)
    assert "paid in all" not in Run(run).report()

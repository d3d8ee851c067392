"""What is shown while a run is under way: running means, a line each tenth, a bar on a terminal, or nothing."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from rich.console import Console

from blendfilter.evaluation import run_progress
from blendfilter.evaluation.run_progress import ProgressBar, ProgressLines, RunningScores, progress_for


def row(em: float, error: Any = None) -> dict[str, Any]:
    return {"em": em, "f1": em / 2, "error": error}


def test_running_means_are_over_what_was_seen() -> None:
    running = RunningScores(["em", "f1"])
    assert running.text() == "EM 0.0  F1 0.0  0 tokens"
    running.advance(row(1.0), 4000)
    running.advance(row(0.0), 5999)
    running.advance(row(0.0, {"kind": "timeout"}), 1)
    assert running.text() == "EM 33.3  F1 16.7  10k tokens  1 error"
    running.advance(row(0.0, {"kind": "timeout"}), 9_990_000)
    assert running.text() == "EM 25.0  F1 12.5  10.0M tokens  2 errors"


def test_lines_come_each_tenth_and_at_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ProgressLines(["em"])
    lines.start(total=43, done=0)
    for _ in range(43):
        lines.advance(row(1.0), 10)
    lines.stop()
    result = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in result] == [f"{n}/43" for n in [*range(4, 43, 4), 43]]
    assert result[0].endswith("EM 100.0  40 tokens")
    assert all(" questions  " in line and "/s  " in line for line in result)


def test_lines_count_what_earlier_sessions_did(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ProgressLines(["em"])
    lines.start(total=10, done=7)
    lines.advance(row(0.0), 1)
    before, now = capsys.readouterr().err.splitlines()
    assert before == "7/10 questions were answered in an earlier session"
    assert now.startswith("8/10 questions  ")
    assert "this session: EM 0.0" in now


@pytest.mark.parametrize(("answers", "seconds", "rate"), [(3, 2.0, "1.5/s"), (1, 30.0, "2.0/min")])
def test_a_slow_pace_is_counted_by_the_minute(
    answers: int, seconds: float, rate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 0.0, seconds])
    monkeypatch.setattr(run_progress.time, "monotonic", lambda: next(clock))
    running = RunningScores(["em"])
    running.start(9, 0)
    for _ in range(answers):
        running.advance(row(1.0), 312_400)
    assert running.rate == rate


def test_a_bar_moves_and_leaves_its_last_state(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    bar = ProgressBar(["em"])
    monkeypatch.setattr(bar.bar.live, "console", Console(file=out, width=120, force_terminal=True, color_system=None))
    bar.start(total=4, done=1)
    for em in (1.0, 0.0, 0.0):
        bar.advance(row(em), 500)
    bar.stop()
    assert "4/4" in out.getvalue()
    assert "EM 33.3  1500 tokens" in out.getvalue()
    assert "/s" in out.getvalue()


def test_which_one_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    assert type(progress_for(["em"], show=False)) is RunningScores
    assert isinstance(progress_for(["em"]), ProgressLines), "a test's output is no terminal"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert isinstance(progress_for(["em"]), ProgressBar)

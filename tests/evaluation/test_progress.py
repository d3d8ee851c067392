"""What is running while a run is under way: running means, a line now and then, a bar on a terminal, or nothing."""

from __future__ import annotations

import asyncio
import io
import sys
from typing import Any

import pytest
from dspy import lm15
from rich.console import Console

from blendfilter.evaluation.run_loop import RunProgress
from blendfilter.lm.attempts import Gate


def row(em: float, error: Any = None) -> dict[str, Any]:
    return {"em": em, "f1": em / 2, "error": error}


def test_running_means_are_over_what_this_session_saw(capsys: pytest.CaptureFixture[str]) -> None:
    running = RunProgress(["em", "f1"], show=False)
    assert running.text() == "EM 0.0  F1 0.0  0 tokens"
    running.start(total=9, done=2)
    running.advance(row(1.0), 4000)
    running.advance(row(0.0), 5999)
    running.advance(row(0.0, {"kind": "timeout"}), 2001)
    assert running.text() == "this session: EM 33.3  F1 16.7  12k tokens  1 failed"
    assert capsys.readouterr().err == ""


def test_no_score_is_shown_while_every_question_fails() -> None:
    running = RunProgress(["em", "f1"], show=False)
    running.start(total=3, done=0)
    running.advance(row(0.0, {"kind": "timeout"}), 0)
    assert running.text() == "0 tokens  1 failed"
    running.advance(row(0.0, {"kind": "timeout"}), 0)
    assert running.text() == "0 tokens  all 2 failed"
    running.advance(row(1.0), 100)
    assert running.text() == "EM 33.3  F1 16.7  100 tokens  2 failed"


def lines_of(seconds: float, capsys: pytest.CaptureFixture[str], *, done: int = 3, until: int = 43) -> list[str]:
    """The lines of a run of 43 questions, `done` of them earlier, which answers one each so many `seconds`."""
    now = [0.0]
    running = RunProgress(["em"], clock=lambda: now[0])
    running.start(total=43, done=done)
    for _ in range(done, until):
        now[0] += seconds
        running.advance(row(1.0), 10)
    running.stop()
    return capsys.readouterr().err.splitlines()


def test_a_run_of_seconds_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert lines_of(0.5, capsys, done=0, until=30) == ["30/43 questions  2.0/s  EM 100.0  300 tokens"], "stopped"
    before, line = lines_of(0.25, capsys)
    assert before == "3/43 questions were answered in an earlier session"
    assert line == "43/43 questions  4.0/s  this session: EM 100.0  400 tokens"


def test_a_long_run_tells_at_most_each_tenth_and_each_twenty_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    def told(seconds: float) -> list[int]:
        return [int(line.partition("/")[0]) for line in lines_of(seconds, capsys, done=0)]

    assert told(60) == told(5) == [*range(4, 43, 4), 43]
    assert told(2) == [12, 24, 36, 43]
    assert told(2.5) == [8, 16, 24, 32, 40, 43]


def test_a_bar_on_a_terminal_moves_and_leaves_its_last_state(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    running = RunProgress(["em"])
    assert running.bar is not None
    monkeypatch.setattr(
        running.bar.live, "console", Console(file=out, width=120, force_terminal=True, color_system=None)
    )
    running.start(total=4, done=1)
    for em in (1.0, 0.0, 0.0):
        running.advance(row(em), 500)
    running.stop()
    assert "4/4" in out.getvalue()
    assert "EM 33.3  1500 tokens" in out.getvalue()
    assert "/s" in out.getvalue()


def test_it_says_where_the_server_wants_fewer_calls() -> None:
    gate = Gate(16)
    running = RunProgress(["em"], gate, show=False)
    assert "in flight" not in running.text()
    request = lm15.Request(model="m", messages=(lm15.Message.user("q"),))
    gate.after(asyncio.run(gate.before(request)), None, lm15.RateLimitError("slow down", status=429))
    assert running.text().endswith("8 of 16 in flight")

"""A run stopped by Ctrl-C or killed, through the shell and against a real server: the same command goes on."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from model_server import serve
from small_world import Command, shell, small_eval, stable

from blendfilter.cli import console
from blendfilter.journal import Journal


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on(here: Path) -> None:
    with serve(delay=0.05, reply="offline", keep=True) as server:
        words = [*small_eval("blendfilter", "run"), "--lm", "m", "--api-base", server.url, "--concurrency", "2"]
        process = subprocess.Popen(
            [sys.executable, "-m", "blendfilter.cli", *map(str, words)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        wait_for(lambda: server.stats()["requests"] >= 8)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=600)
        assert (process.returncode, out) == (130, "")
        assert err.splitlines()[-1] == "blendfilter: stopped; the same command goes on where it was"
        assert "Traceback" not in err
        with Journal(here / "run", "replay") as journal:
            before = {record["prompt"] for record in journal.records() if record["kind"] == "call"}
        server.reset()
        found = shell(*words)
        assert found.code == 0
        assert before
        assert not before & set(server.stats()["prompts"])


def test_an_evaluation_stopped_while_it_still_loads_goes_on_too(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Loading:
        def __getattr__(self, _: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "blendfilter.evaluation.run_status", Loading())
    command = Command(monkeypatch, capsys)
    found = command(*small_eval("direct", "run"))
    assert (found.code, found.error) == (130, "blendfilter: stopped; the same command goes on where it was")
    assert command(*small_eval("direct", "run"), "--plan").error == "blendfilter: stopped; nothing of it was kept"


def test_long_work_without_a_terminal_tells_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(console, "EVERY", 0.0)
    with console.Bars() as bars:
        bars("encoding passages", 3000, 19000)
        bars("reading passages", 10)
    assert capsys.readouterr().err.splitlines() == [
        "blendfilter: encoding passages: 3,000 of 19,000",
        "blendfilter: reading passages: 10",
    ]
    monkeypatch.setattr(console, "EVERY", 60.0)
    with console.Bars() as bars:
        bars("encoding passages", 3000, 19000)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_killed_run_goes_on_at_another_port(here: Path) -> None:
    """kill -9 with calls in flight, the server gone and back elsewhere: the same bytes, no journaled call twice."""
    words = [*small_eval("blendfilter", "run"), "--lm", "m", "--concurrency", "3", "--api-base"]
    # Both at once: of two servers one after the other, the second may be given the first one's port.
    with serve(reply="offline", keep=True) as elsewhere, serve(delay=0.03, reply="offline") as server:
        assert elsewhere.url != server.url
        whole = shell(*[word if word != "run" else "whole" for word in words], server.url)
        assert whole.code == 0
        server.reset()
        process = subprocess.Popen(
            [sys.executable, "-m", "blendfilter.cli", *map(str, words), server.url],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        wait_for(lambda: server.stats()["requests"] >= 15)
        process.kill()
        process.wait()
        server.stop()
        with Journal(here / "run", "replay") as journal:
            before = [record["prompt"] for record in journal.records() if record["kind"] == "call"]
        assert shell(*words, elsewhere.url).code == 0
        sent = elsewhere.stats()["prompts"]
    assert stable(here / "run") == stable(here / "whole")
    assert 0 < len(before) < 44
    assert not set(before) & set(sent)
    with Journal(here / "whole", "replay") as journal:
        assert len(before) + len(sent) == sum(record["kind"] == "call" for record in journal.records())


def wait_for(what: object) -> None:
    deadline = time.monotonic() + 600
    while not what():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.02)

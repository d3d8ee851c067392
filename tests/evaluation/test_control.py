"""Runs in progress: listed, held, let go, given more or less at once, while they run."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from small_world import FILES, Command, CountingEngine, done_by, small_eval, stable

from blendfilter import BM25, BlendFilter, Budget, Run
from blendfilter.errors import BadArgument, BadData
from blendfilter.evaluation import control
from blendfilter.evaluation.control import Control, in_progress, running, tune
from blendfilter.evaluation.run_folder import write_text
from blendfilter.lm.attempts import Gate
from blendfilter.tasks import Questions


class Waiting:
    """An engine whose calls wait until they are let go, and a run by it in a thread."""

    def __init__(self, index: BM25, questions: Questions, folder: Path, **options: Any) -> None:
        self.folder, self.free, self.engine = folder, threading.Event(), CountingEngine(self._wait)
        self._run = (BlendFilter(index), questions, folder)
        self._options: dict[str, Any] = {"engine": self.engine, "concurrency": 2, **options}

    async def _wait(self, _stage: str, _prompt: str) -> None:
        while not self.free.is_set():
            await asyncio.sleep(0.002)

    @contextmanager
    def under_way(self) -> Iterator[Future[Any]]:
        """A run whose first calls wait."""
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(done_by, *self._run, **self._options)
            try:
                until(lambda: self.engine.in_flight == 2 or done.done())
                yield done
            finally:
                self.free.set()


def until(true: Any) -> None:
    """Wait for something that will come; a test's own time limit is what ends it otherwise."""
    while not true():
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "EVERY", 0.01)


def test_a_run_in_progress_is_listed_until_it_ends(index: BM25, questions: Questions, tmp_path: Path) -> None:
    waiting = Waiting(index, questions, tmp_path / "run")
    assert not in_progress(tmp_path / "run")
    with waiting.under_way() as done:
        (state,) = running([tmp_path / "run"])
        assert (state.answered, state.answers, state.errors, state.control) == (0, 6, 0, Control())
        if control._LOCKS.exists():
            assert [(each.run.folder, each.pid) for each in running() if each.run.folder == tmp_path / "run"] == [
                (tmp_path / "run", os.getpid())
            ]
    done.result()
    assert running([tmp_path / "run"]) == []


def test_calls_in_flight_follow_what_is_asked(index: BM25, questions: Questions, tmp_path: Path) -> None:
    waiting = Waiting(index, questions, tmp_path / "run")
    with waiting.under_way() as done:
        tune(tmp_path / "run", concurrency=4)
        until(lambda: waiting.engine.in_flight == 4)
    done.result()
    assert {path.name for path in (tmp_path / "run").iterdir()} == FILES, "what was asked is the session's own"
    plain, _ = done_by(BlendFilter(index), questions, tmp_path / "plain")
    assert stable(tmp_path / "run") == stable(plain.folder)


def test_a_pause_lets_no_call_out_until_it_ends(index: BM25, questions: Questions, tmp_path: Path) -> None:
    waiting = Waiting(index, questions, tmp_path / "run")
    with waiting.under_way() as done:
        tune(tmp_path / "run", paused=True)
        until(lambda: waiting.engine.in_flight == 2 and _seen(tmp_path / "run"))
        waiting.free.set()
        until(lambda: waiting.engine.in_flight == 0)
        calls = waiting.engine.calls
        time.sleep(0.1)
        assert (waiting.engine.calls, done.done()) == (calls, False)
        tune(tmp_path / "run", paused=False)
        done.result()
    assert waiting.engine.calls > calls


def _seen(folder: Path) -> bool:
    """Whether the run has had the time to look a few times."""
    time.sleep(0.1)
    return (folder / control.CONTROL).exists()


def test_a_limit_may_be_raised_and_lowered(index: BM25, questions: Questions, tmp_path: Path) -> None:
    waiting = Waiting(index, questions, tmp_path / "run", budget=Budget(calls=3))
    with waiting.under_way() as done:
        tune(tmp_path / "run", calls=10_000)
        _seen(tmp_path / "run")
    done.result()
    assert Run(tmp_path / "run").finished
    with pytest.raises(BadArgument, match="is not in progress: its next session takes the options of eval"):
        tune(tmp_path / "run", calls=5)


def test_the_calls_of_the_last_minute_are_all_counted(
    index: BM25, questions: Questions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, engine = done_by(BlendFilter(index), questions, tmp_path / "run")
    monkeypatch.setattr(control, "_TAIL", 400)  # less than a record
    assert control._last_minute(run.folder) == engine.calls
    monkeypatch.setattr(control.time, "time", lambda: time.monotonic() + 1e10)
    assert control._last_minute(run.folder) == 0


@contextmanager
def holding(journal: Path, lock: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has locked `journal`, and is gone at the end."""
    code = (
        f"import fcntl, sys, time; file = open(sys.argv[1], 'r+'); {lock}; print('locked', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(journal)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "locked\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    "lock",
    [
        "fcntl.flock(file, fcntl.LOCK_EX)",
        "fcntl.lockf(file, fcntl.LOCK_EX)",  # as NFS shows another machine's lock
    ],
    ids=["flock", "nfs"],
)
def test_a_run_is_in_progress_until_its_process_ends_even_by_a_kill(lock: str, tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    with holding(tmp_path / "journal.jsonl", lock) as process:
        assert in_progress(tmp_path)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not in_progress(tmp_path)


def test_a_lock_is_known_by_the_open_file_where_the_system_names_another_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "journal.jsonl").touch()
    status = (tmp_path / "journal.jsonl").stat()
    with holding(tmp_path / "journal.jsonl", "pass") as process:
        monkeypatch.setattr(control, "_locked", lambda: iter([(process.pid, 0, status.st_ino)]))  # as of btrfs
        assert in_progress(tmp_path)
        process.kill()
        process.wait()
        assert not in_progress(tmp_path)


def test_to_look_at_a_run_takes_no_lock(
    index: BM25, questions: Questions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, _ = done_by(BlendFilter(index), questions, tmp_path / "run")
    taken = list[Any]()
    monkeypatch.setattr(fcntl, "flock", lambda *given: taken.append(given))
    monkeypatch.setattr(fcntl, "lockf", lambda *given: taken.append(given))
    assert not in_progress(run.folder)
    assert running([run.folder]) == []
    with pytest.raises(BadArgument, match="is not in progress"):
        tune(run.folder, paused=True)
    assert taken == []


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


@pytest.mark.parametrize(
    "place", [_pipe, _zeros, _link_to_a_pipe, Path.mkdir], ids=["pipe", "device", "link", "folder"]
)
def test_what_is_no_file_is_warned_of_once_and_stops_no_run(
    place: Any, index: BM25, questions: Questions, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    waiting = Waiting(index, questions, tmp_path / "run")
    with waiting.under_way() as done, caplog.at_level(logging.WARNING, control.__name__):
        place(tmp_path / "run" / control.CONTROL)
        until(lambda: caplog.records)
        until(lambda looks=_looks(): next(looks) > 5)
    done.result()
    (warning,) = caplog.messages
    assert control.CONTROL in warning
    assert Run(tmp_path / "run").finished


def _looks() -> Iterator[int]:
    """How often a run has had the time to look."""
    for number in range(1000):
        time.sleep(2 * control.EVERY)
        yield number


@pytest.mark.parametrize("name", ["journal.jsonl", "predictions.jsonl"])
def test_ps_waits_for_no_pipe(name: str, index: BM25, questions: Questions, tmp_path: Path) -> None:
    run, _ = done_by(BlendFilter(index), questions, tmp_path / "run")
    (run.folder / name).unlink()
    os.mkfifo(run.folder / name)
    with pytest.raises(BadData, match="is a named pipe or a device"):
        in_progress(run.folder) or control._state(run.folder, 0)


def test_what_cannot_be_changed_is_said(index: BM25, questions: Questions, tmp_path: Path) -> None:
    waiting = Waiting(index, questions, tmp_path / "run")
    with waiting.under_way():
        for changes, words in [
            ({"concurrency": 0}, "concurrency is 0"),
            ({"tokens": 500}, "was started without a limit of tokens"),
        ]:
            with pytest.raises(BadArgument, match=words):
                tune(tmp_path / "run", **changes)
        assert not (tmp_path / "run" / control.CONTROL).exists()
        write_text(tmp_path / "run" / control.CONTROL, '{"concurency": 3}')
        with pytest.raises(BadData, match=r"control\.json: concurency"):
            Control.read(tmp_path / "run")


def test_a_gate_keeps_what_a_server_asked_for() -> None:
    gate = Gate(8)
    gate.limit_to(12)
    assert gate.allowed == 12
    gate._share, gate._too_many = 3.0, 6  # a server has asked for fewer
    gate.limit_to(20)
    assert (gate.allowed, gate.limit) == (3, 20)
    gate.limit_to(2)
    assert gate.allowed == 2
    gate.hold(True)
    assert gate.allowed == 0
    gate.hold(False)
    assert gate.allowed == 2


def test_the_commands(blendfilter: Command, here: Path) -> None:
    assert blendfilter(*small_eval("direct-retrieval", "run")).code == 0
    outcome = blendfilter("tune", "run", "--concurrency", 4)
    assert (outcome.code, outcome.error) == (
        2,
        "blendfilter: run is not in progress: its next session takes the options of eval",
    )
    assert (
        blendfilter("tune", "run", "--pause", "--resume").error
        == "blendfilter: --pause and --resume exclude each other"
    )
    assert blendfilter("tune", "nowhere", "--pause").code == 2
    assert blendfilter("tune", "run").error.startswith("blendfilter: change what? --concurrency N, --pause")
    listed = blendfilter("ps", "run")
    assert (listed.code, listed.err) == (0, "blendfilter: no run is in progress\n")

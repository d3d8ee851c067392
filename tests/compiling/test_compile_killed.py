"""A compilation killed with SIGKILL against a server that counts, and begun again: no call twice, the same bytes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from compiled import compile_small, saved
from model_server import serve
from small_world import journaled
from tqdm import tqdm

from blendfilter.lm.model import connect

pytestmark = pytest.mark.slow


def compile_to(optimizer: str, url: str, run: Path, out: Path) -> None:
    """One call at a time, so that at most one is in flight when the process dies."""
    lm = connect("test-model", api_base=url)
    saved(compile_small("filco", optimizer, lm, run, concurrency=1), out)


def recorded(run: Path) -> int:
    path = run / "journal.jsonl"
    return path.read_bytes().count(b'"kind":"call"') if path.is_file() else 0


def killed(run: Path, wanted: int, *arguments: object) -> int:
    """How many calls were on file when a process at work was killed; it is a fork, so that it is at work at once."""
    tqdm.set_lock(threading.RLock())  # its own is shared between processes: one that is killed would keep it for ever
    process = multiprocessing.get_context("fork").Process(target=compile_to, args=arguments)
    process.start()
    deadline = time.monotonic() + 600
    while recorded(run) < wanted and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.002)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(20)
    assert process.exitcode == -signal.SIGKILL
    return recorded(run)


@pytest.mark.parametrize("optimizer", ["bootstrap", "mipro", "gepa"])
def test_killed_twice_and_begun_again(optimizer: str, tmp_path: Path) -> None:
    with serve(reply="offline", delay=0.02) as server:
        compile_to(optimizer, server.url, tmp_path / "whole", tmp_path / "whole.json")
        total = server.stats()["requests"]
        server.reset()
        run, out = tmp_path / "run", tmp_path / "run.json"
        again = (optimizer, server.url, run, out)
        kept = [killed(run, wanted, *again) for wanted in (total // 4, 2 * total // 3)]
        assert 0 < kept[0] < kept[1] < total
        assert not out.exists()
        compile_to(*again)
        requests = server.stats()["requests"]
    # Only what was in flight at a kill is called again.
    assert total <= requests <= total + 2
    assert out.read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert len(journaled(run)) == total

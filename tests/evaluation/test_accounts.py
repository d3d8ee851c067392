"""What the ledger says against what a server counted itself: with faults, over kills, and side by side."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from model_server import Server, serve
from small_world import journaled

from blendfilter import BM25, BlendFilter, connect, evaluate, load
from blendfilter.evaluation.run import Run
from blendfilter.lm.attempts import Retry
from blendfilter.lm.model import ConnectedLM

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


@pytest.mark.slow
def test_a_kill_loses_no_more_than_was_in_flight(tmp_path: Path) -> None:
    """Two kills; what the server answered and no record tells of is at most what was on its way."""
    at_once, kills = 8, (40, 110)
    words = ["eval", "qa", "--data", "sample", "--limit", "24", "--lm", "any/model", "--run", str(tmp_path / "run")]
    with serve(reply="offline", delay=0.02, jitter=1, jitter_max=0.03) as server:
        command = [
            sys.executable, "-m", "blendfilter.cli", *words, "--api-base", server.url, "--concurrency", str(at_once),
            "--no-html",
        ]  # fmt: skip
        for stop in (*kills, None):
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
            )  # fmt: skip
            end = time.monotonic() + 60
            while stop is not None and server.stats()["requests"] < stop:
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(0.005)
            if stop is not None:
                os.killpg(process.pid, signal.SIGKILL)
            said = process.communicate(timeout=60)[1].decode()
        assert process.returncode == 0, said
        time.sleep(0.1)  # a killed client's last calls are still being answered
        lost = answered(server)["calls"] - accounted(Run(tmp_path / "run"))["calls"]
    assert 0 <= lost <= len(kills) * at_once

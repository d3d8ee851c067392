"""Shards as Ray tasks, on a real cluster of this machine with two workers: the same bytes, whoever is killed."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from model_server import Server, serve
from small_world import Command, shell, stable

from blendfilter import BM25, BlendFilter, Budget, Direct, connect, evaluate, load
from blendfilter.errors import BadArgument, BudgetSpent, RunMismatch, ServerRefused
from blendfilter.evaluation.control import running
from blendfilter.evaluation.on_ray import dealt, evaluate_on_ray
from blendfilter.resources import sample
from blendfilter.tasks import Questions

ray = pytest.importorskip("ray", reason="the extra ray is not installed")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="locks are read in /proc")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Two workers at most."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(reply="offline", keep=True) as server:
        yield server


@pytest.fixture
def questions() -> Questions:
    return load("hotpotqa", "sample", limit=12)


def by_ray(method: Any, questions: Questions, run: Path, url: str, **options: Any) -> Any:
    return evaluate_on_ray(method, questions, lm=connect("m", api_base=url), run=run, progress=False, **options)


def test_shards_by_ray_are_the_run_of_one_process(
    cluster: None, index: BM25, questions: Questions, server: Server, tmp_path: Path
) -> None:
    lm = connect("m", api_base=server.url)
    whole = evaluate(BlendFilter(index), questions, lm=lm, run=tmp_path / "whole", progress=False)
    done = by_ray(BlendFilter(index), questions, tmp_path / "run", server.url, shards=5)
    assert stable(done.folder) == stable(whole.folder)
    again = by_ray(BlendFilter(index), questions, tmp_path / "run", server.url, shards=5)
    assert stable(again.folder) == stable(whole.folder)


def test_an_index_in_a_folder_is_opened_by_the_workers(
    cluster: None, questions: Questions, server: Server, tmp_path: Path
) -> None:
    kept = BM25.build(sample("corpus.jsonl"), tmp_path / "index")
    lm = connect("m", api_base=server.url)
    whole = evaluate(Direct(kept), questions, lm=lm, run=tmp_path / "whole", progress=False)
    assert stable(by_ray(Direct(kept), questions, tmp_path / "run", server.url, shards=2).folder) == stable(
        whole.folder
    )


def test_a_worker_that_is_killed_is_replaced_and_no_journaled_call_asked_again(
    cluster: None, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    with serve(reply="offline", keep=True) as server:
        lm = connect("m", api_base=server.url)
        whole = evaluate(BlendFilter(index), questions, lm=lm, run=tmp_path / "whole", progress=False)
    with serve(reply="offline", keep=True, delay=0.5) as server:
        killed = list[int]()
        killing = threading.Thread(target=_kill_one, args=(tmp_path / "run.shards", killed))
        killing.start()
        done = by_ray(BlendFilter(index), questions, tmp_path / "run", server.url, shards=2, concurrency=4)
        killing.join()
        asked = server.stats()["requests"]
    assert len(killed) == 1
    assert stable(done.folder) == stable(whole.folder)
    assert asked <= whole.metrics["ledger"]["total"]["calls"] + 4  # those that were in flight at the kill


def _kill_one(shards: Path, killed: list[int]) -> None:
    """Kill the worker of a shard that has journaled some calls."""
    for _ in range(1200):
        time.sleep(0.05)
        for folder in shards.glob("*of*"):
            if (folder / "journal.jsonl").exists() and (folder / "journal.jsonl").read_bytes().count(
                b'"kind":"call"'
            ) > 9:
                for state in running():
                    if state.run.folder.resolve() == folder.resolve():
                        os.kill(state.pid, signal.SIGKILL)
                        killed.append(state.pid)
                        return


def test_one_budget_stops_all_shards_and_what_one_leaves_is_the_others(
    cluster: None, index: BM25, questions: Questions, server: Server, tmp_path: Path
) -> None:
    with pytest.raises(BudgetSpent, match=r"the budget of all shards is spent \(\d+ calls") as stopped:
        by_ray(Direct(index), questions, tmp_path / "run", server.url, shards=3, budget=Budget(calls=9))
    assert server.stats()["requests"] == 9
    assert " of 12 questions are answered, and the same command with a higher limit goes on in" in str(stopped.value)
    done = by_ray(Direct(index), questions, tmp_path / "run", server.url, shards=3, budget=Budget(calls=12))
    assert (done.errors, server.stats()["requests"]) == (0, 12)


def test_what_is_wrong_in_a_shard_is_the_runs_error(
    cluster: None, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    with serve(behave="unauthorized") as server, pytest.raises(ServerRefused, match="refuses the key"):
        by_ray(Direct(index), questions, tmp_path / "run", server.url, shards=2)


def test_shards_of_another_number_are_refused(
    cluster: None, index: BM25, questions: Questions, server: Server, tmp_path: Path
) -> None:
    (tmp_path / "run.shards" / "1of4").mkdir(parents=True)
    with pytest.raises(RunMismatch, match="holds shards of 4: go on with shards=4, or name another run"):
        by_ray(Direct(index), questions, tmp_path / "run", server.url, shards=3)


def test_a_folder_that_holds_no_run_is_refused_before_anything_is_paid(
    index: BM25, questions: Questions, server: Server, tmp_path: Path
) -> None:
    with pytest.raises(BadArgument, match="is there already and holds no run"):
        by_ray(Direct(index), questions, tmp_path, server.url, shards=2)
    assert server.stats()["requests"] == 0


def test_a_budget_that_cannot_be_dealt_out_is_refused() -> None:
    assert dealt(Budget(calls=9, dollars=3.0), 3)[2] == Budget(calls=3, dollars=1.0)
    assert dealt(None, 2) == {1: None, 2: None}
    with pytest.raises(BadArgument, match="a budget of 2 calls cannot be dealt out to 3 shards"):
        dealt(Budget(calls=2), 3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--shards", 2], "--shards goes with --ray ADDRESS"),
        (["--ray", "local"], "say in how many, --shards 8"),
        (["--ray", "local", "--shards", 2, "--shard", "1/2"], "leave out --shard"),
        (["--ray", "local", "--shards", 2, "--replay"], "leave out --replay"),
        (["--ray", "local", "--shards", 9], "4 questions make 4 shards at most, not 9"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_with_ray_are_one_line(options: list[object], words: str, blendfilter: Command) -> None:
    refused = blendfilter("eval", "qa", "--data", "sample", "--limit", 4, *options)
    assert (refused.code, words in refused.err) == (2, True), refused.err


def test_an_address_that_does_not_answer_is_one_line(here: Path) -> None:
    options = ("--ray", "127.0.0.1:9", "--shards", 2, "--lm", "offline")
    refused = shell("eval", "qa", "--data", "sample", "--limit", 4, *options, timeout=300)
    assert refused.code == 2
    assert "no Ray cluster answers at '127.0.0.1:9'" in refused.error

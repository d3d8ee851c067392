"""Shards as Ray tasks, on a real cluster of this machine with two workers: the same bytes, whoever is killed.

How limits are dealt out, and what travels to the workers, is tried without a cluster.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_server import Server, serve
from provider_server import playing
from small_world import Command, shell, stable

from blendfilter import BM25, BlendFilter, Budget, Direct, connect, evaluate, load
from blendfilter.errors import BadArgument, BudgetSpent, MissingFile, RunLocked, RunMismatch, ServerRefused
from blendfilter.evaluation import on_ray
from blendfilter.evaluation.control import in_progress, running
from blendfilter.evaluation.on_ray import dealt, evaluate_on_ray, packed, parts_of
from blendfilter.journal import Journal
from blendfilter.lm.budget import NOTHING, Amount
from blendfilter.resources import sample
from blendfilter.tasks import Questions

KEY, LOGIN = "sk-of-the-driver-0123456789", "pass-word-of-the-login"


def slow(test: Any) -> Any:
    """A test on a cluster."""
    marks = pytest.mark.skipif(sys.platform != "linux", reason="locks are read in /proc")
    return pytest.mark.slow(marks(test))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """Two workers at most; the folder of their logs."""
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    with tempfile.TemporaryDirectory(prefix="ray") as logs:  # sockets lie there, whose paths must be short
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _temp_dir=logs)
        yield Path(logs)
        ray.shutdown()


@pytest.fixture
def server() -> Iterator[Server]:
    with serve(reply="offline", keep=True) as server:
        yield server


@pytest.fixture
def questions() -> Questions:
    return load("hotpotqa", "sample", limit=12)


def until(true: Any) -> None:
    """Wait for something that will come; a test's own time limit is what ends it otherwise."""
    while not true():
        time.sleep(0.02)


def by_ray(method: Any, questions: Questions, run: Path, url: str, **options: Any) -> Any:
    return evaluate_on_ray(method, questions, lm=connect("m", api_base=url), run=run, progress=False, **options)


@slow
def test_shards_by_ray_are_the_run_of_one_process(
    cluster: None, index: BM25, questions: Questions, server: Server, tmp_path: Path
) -> None:
    lm = connect("m", api_base=server.url)
    whole = evaluate(BlendFilter(index), questions, lm=lm, run=tmp_path / "whole", progress=False)
    done = by_ray(BlendFilter(index), questions, tmp_path / "run", server.url, shards=5)
    assert stable(done.folder) == stable(whole.folder)
    again = by_ray(BlendFilter(index), questions, tmp_path / "run", server.url, shards=5)
    assert stable(again.folder) == stable(whole.folder)


@slow
def test_an_index_in_a_folder_is_opened_by_the_workers(
    cluster: None, questions: Questions, server: Server, tmp_path: Path
) -> None:
    kept = BM25.build(sample("corpus.jsonl"), tmp_path / "index")
    lm = connect("m", api_base=server.url)
    whole = evaluate(Direct(kept), questions, lm=lm, run=tmp_path / "whole", progress=False)
    assert stable(by_ray(Direct(kept), questions, tmp_path / "run", server.url, shards=2).folder) == stable(
        whole.folder
    )


@slow
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


@slow
def test_one_budget_stops_all_shards_and_what_one_leaves_is_the_others(
    cluster: None, index: BM25, questions: Questions, server: Server, tmp_path: Path
) -> None:
    with pytest.raises(BudgetSpent, match=r"the budget of all shards is spent \(\d+ calls") as stopped:
        by_ray(Direct(index), questions, tmp_path / "run", server.url, shards=3, budget=Budget(calls=9))
    assert server.stats()["requests"] == 9
    assert " of 12 questions are answered, and the same command with a higher limit goes on in" in str(stopped.value)
    done = by_ray(Direct(index), questions, tmp_path / "run", server.url, shards=3, budget=Budget(calls=12))
    assert (done.errors, server.stats()["requests"]) == (0, 12)


@slow
def test_what_is_wrong_in_a_shard_is_the_runs_error(
    cluster: None, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    with serve(behave="unauthorized") as server, pytest.raises(ServerRefused, match="refuses the key"):
        by_ray(Direct(index), questions, tmp_path / "run", server.url, shards=2)


@slow
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


@slow
def test_a_session_deals_out_what_the_sessions_before_left(
    cluster: None, index: BM25, questions: Questions, server: Server, tmp_path: Path
) -> None:
    for session in (1, 2, 3):
        with pytest.raises(BudgetSpent, match=r"the budget of all shards is spent \(7 calls"):
            by_ray(Direct(index), questions, tmp_path / "run", server.url, shards=3, budget=Budget(calls=7))
        assert server.stats()["requests"] == 7, session


DRIVER = """
import sys
from blendfilter import Budget, Direct, connect, load
from blendfilter.errors import BudgetSpent
from blendfilter.evaluation.on_ray import evaluate_on_ray
run, url, tokens, rpm = sys.argv[1:]
rows = [{"id": str(n), "question": f"Who is number {n}?", "answer": "Tolm"} for n in range(150)]
lm = connect("m", api_base=url, cache=False, requests_per_minute=int(rpm) or None)
budget = Budget(tokens=int(tokens))
try:
    evaluate_on_ray(Direct(), load("qa", rows), lm=lm, run=run, shards=3, concurrency=2, budget=budget, progress=False)
except BudgetSpent:
    pass
"""


@contextmanager
def session(run: Path, url: str, *, tokens: int, rpm: int = 0) -> Iterator[subprocess.Popen[bytes]]:
    """A driver in a process of its own, with a cluster of its own; both are gone at the end."""
    pytest.importorskip("ray", reason="the extra ray is not installed")
    command = [sys.executable, "-c", DRIVER, str(run), url, str(tokens), str(rpm)]
    with tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as logs:
        driver = subprocess.Popen(command, env={**os.environ, "RAY_TMPDIR": logs}, stderr=subprocess.DEVNULL)
        try:
            yield driver
        finally:
            driver.kill()
            driver.wait()
            # Ray ends the workers of a driver that is gone.
            until(lambda: not any(map(in_progress, run.with_name(f"{run.name}.shards").glob("*of*"))))


@slow
def test_a_limit_a_minute_is_of_all_shards_together(tmp_path: Path) -> None:
    with serve() as server, session(tmp_path / "run", server.url, tokens=90_000, rpm=5):
        until(lambda: server.stats()["requests"] >= 5)
        time.sleep(3)  # the others wait for most of a minute, however loaded this machine is
        assert server.stats()["requests"] == 5


@slow
def test_a_key_and_a_login_reach_the_workers_and_no_file(
    cluster: Path, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    with playing("Tolm") as server:
        place = server.url.replace("://", f"://me:{LOGIN}@") + "/v1"
        judge = connect("judge", api_base=server.url + "/v1", api_key=KEY, cache=False)
        lm = connect("m", api_base=place, cache=False)
        evaluate_on_ray(
            BlendFilter(index), questions, shards=2, lm=lm, filter_lm=judge, run=tmp_path / "run", progress=False
        )
        sent = {seen.headers[name] for seen in server.seen for name in seen.headers if name.lower() == "authorization"}
    assert {header.partition(" ")[0] for header in sent} == {"Basic", "Bearer"}
    assert f"Bearer {KEY}" in sent
    assert files_with((KEY, LOGIN), cluster, tmp_path) == []


def files_with(secrets: tuple[str, ...], *folders: Path) -> list[Path]:
    """The files below `folders` that hold one of `secrets`."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files
    return [path for path in files if any(secret.encode() in path.read_bytes() for secret in secrets)]


@slow
def test_sessions_that_are_killed_anywhere_never_pass_the_budget(tmp_path: Path) -> None:
    """Four sessions that lose a worker or two, and then their driver, after random numbers of calls; one that ends."""
    chance, limit, run = random.Random(32), 30_000, tmp_path / "run"
    with serve(delay=0.02, lie='{"prompt_tokens": 300}') as server:

        def asked() -> int:
            return int(server.stats()["requests"])

        for _ in range(4):
            with session(run, server.url, tokens=limit) as driver:
                for _ in range(chance.randint(1, 3)):
                    more = asked() + chance.randint(1, 8)
                    until(lambda more=more: asked() >= more or driver.poll() is not None)
                    _kill_a_worker(tmp_path / "run.shards", chance)
            assert _tokens(asked()) <= limit
        with session(run, server.url, tokens=limit) as driver:
            assert driver.wait() == 0
        assert asked() >= 20
        assert _tokens(asked()) <= limit


def _tokens(requests: int) -> int:
    """What so many calls took, those included that were in flight at a kill: replies have five words."""
    return requests * (300 + 5)


def _kill_a_worker(shards: Path, chance: random.Random) -> None:
    """Kill one of the shards' workers, if one is at work."""
    if workers := [each.pid for each in running() if each.run.folder.parent.resolve() == shards.resolve()]:
        os.kill(chance.choice(workers), signal.SIGKILL)


# --- dealing out, without a cluster


@pytest.mark.parametrize(
    ("budget", "spent", "among", "limits"),
    [
        (Budget(calls=10, dollars=3.0), {1: NOTHING, 2: NOTHING, 3: NOTHING}, [1, 2, 3],
         {1: Budget(4, None, 1.0), 2: Budget(3, None, 1.0), 3: Budget(3, None, 1.0)}),
        (Budget(calls=10), {1: Amount(6), 2: NOTHING}, [1, 2], {1: Budget(8), 2: Budget(2)}),
        (Budget(tokens=100), {1: Amount(2, 60), 2: Amount(1, 10)}, [2], {2: Budget(None, 40)}),
        (Budget(calls=3), {1: Amount(3), 2: Amount(1), 3: NOTHING}, [1, 2, 3], {1: Budget(3), 2: Budget(1)}),
        (None, {1: Amount(5), 2: NOTHING}, [2], {2: None}),
    ],
    ids=["the first get what is over", "beside what was spent", "to those left", "nothing is left", "no budget"],
)  # fmt: skip
def test_what_is_left_is_dealt_out(budget: Any, spent: Any, among: list[int], limits: Any) -> None:
    assert dealt(budget, spent, among) == limits


@given(st.data())
def test_what_is_spent_and_may_be_spent_never_passes_the_budget(data: st.DataObject) -> None:
    """Rounds and sessions in any order, shards that spend any part of what they may, or are not started."""
    given = {
        "calls": data.draw(st.none() | st.integers(1, 50)),
        "tokens": data.draw(st.none() | st.integers(1, 9000)),
        "dollars": data.draw(st.none() | st.floats(0.01, 9.0)),
    }
    budget, spent = Budget(**given), dict.fromkeys(range(1, data.draw(st.integers(1, 6)) + 1), NOTHING)
    for _ in range(data.draw(st.integers(1, 6))):
        among = sorted(data.draw(st.sets(st.sampled_from([*spent]), min_size=1)))
        limits = dealt(budget, spent, among)
        for name, limit in budget.given().items():
            allowed = [getattr(limits.get(number) or amount, name) for number, amount in spent.items()]
            assert sum(allowed) <= limit * (1 + 1e-9)
        for number, limited in limits.items():
            share = data.draw(st.floats(0, 1))
            more = {name: share * max(0, most - getattr(spent[number], name)) for name, most in limited.given().items()}  # type: ignore[union-attr]
            spent[number] += Amount(int(more.get("calls", 0)), int(more.get("tokens", 0)), more.get("dollars", 0.0))


def test_parts_are_the_whole() -> None:
    assert (parts_of(7, 3), parts_of(2, 3), parts_of(0, 2)) == ([3, 2, 2], [1, 1, 0], [0, 0])


def test_a_budget_that_cannot_be_dealt_out_is_refused(index: BM25, questions: Questions, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="a budget of 2 calls cannot be dealt out to 3 shards"):
        evaluate_on_ray(Direct(index), questions, shards=3, run=tmp_path / "run", lm="offline", budget=Budget(calls=2))
    assert not [*tmp_path.iterdir()]


def test_one_session_at_a_time_deals_out_a_budget(tmp_path: Path) -> None:
    with on_ray._alone(tmp_path / "run.shards") as session:
        with pytest.raises(RunLocked, match="wait for it, or name another run"), on_ray._alone(tmp_path / "run.shards"):
            pass
        on_ray._check_session(tmp_path / "run.shards", session)
    with on_ray._alone(tmp_path / "run.shards"), pytest.raises(RunLocked, match="by a later session"):
        on_ray._check_session(tmp_path / "run.shards", session)  # a worker of the one before, which starts late
    with pytest.raises(MissingFile, match=r"name a folder \(run=\) that all machines share"):
        on_ray._check_session(tmp_path / "elsewhere", session)


def test_a_shard_at_work_has_no_account_yet(index: BM25, tmp_path: Path) -> None:
    with Journal(tmp_path / "1of2"), pytest.raises(RunLocked):
        on_ray._spent(tmp_path / "1of2", {}, Budget(calls=5))
    assert on_ray._spent(tmp_path / "2of2", {}, Budget(calls=5)) == NOTHING


# --- what travels, without a cluster


def travelled(value: Any, paces: Any = None) -> Any:
    """`value` as a worker has it."""
    sent = packed(value, SimpleNamespace(cloudpickle=cloudpickle))
    assert KEY.encode() not in sent.payload
    assert LOGIN.encode() not in sent.payload
    return on_ray.unpacked(sent.payload, sent.models, paces)


def test_models_travel_with_what_they_were_connected_with() -> None:
    place = f"http://me:{LOGIN}@127.0.0.1:9/v1"
    method = Direct()
    method.direct.lm = connect("served", api_base=place, api_key=KEY, cache=False, timeout=3, label="mine")
    method.other = connect(dspy.LM("openai/own", api_key=KEY, api_base=place), cache=False, attempts=2)
    again = travelled(method)
    assert again.direct.lm.settings == method.direct.lm.settings
    assert again.direct.lm.terms.retry == method.direct.lm.terms.retry
    assert (again.other.inner.lm.kwargs, again.other.terms.retry.attempts) == (method.other.inner.lm.kwargs, 2)


class Paces:
    """What a worker has of the actor."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.turn = SimpleNamespace(remote=self._turn)
        self.settle = SimpleNamespace(remote=lambda *given: self.calls.append(("settle", *given)))

    async def _turn(self, *given: Any) -> int:
        self.calls.append(("turn", *given))
        return len(self.calls)


def test_models_that_share_a_pace_share_it_in_all_shards(index: BM25, server: Server) -> None:
    lm = connect("m", api_base=server.url, cache=False, requests_per_minute=7, tokens_per_minute=9000)
    paces, ours = Paces(), (lm, lm.copy(temperature=0.5), connect("offline"))
    one, two, free = travelled(ours, paces)
    assert packed(ours, SimpleNamespace(cloudpickle=cloudpickle)).paces == [(7, 9000)]
    assert free.terms.pace is None
    for model in (one, two):
        with dspy.context(lm=model.with_journal(None)):
            Direct(index)(question="Who?")
    turns = [call for call in paces.calls if call[0] == "turn"]
    assert [call[:2] for call in turns] == [("turn", 0), ("turn", 0)]
    assert [call[:3] for call in paces.calls if call[0] == "settle"] == [("settle", 0, 1), ("settle", 0, 3)]


def test_the_actor_counts_what_calls_of_all_shards_took() -> None:
    async def two() -> list[float]:
        paces = on_ray._Paces([(None, 1000)])
        number = await paces.turn(0, 900, 0)
        waits = [paces._paces[0]._wait(900)]
        await paces.settle(0, number, 90, True)
        waits.append(paces._paces[0]._wait(900))
        await paces.settle(0, number, 950, True)  # it was counted
        return [*waits, paces._paces[0]._wait(900)]

    before, *after = asyncio.run(two())
    assert before > 0
    assert after == [0, 0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--shards", 2], "--shards goes with --ray: add that"),
        (["--ray", "local"], "say in how many, --shards 8"),
        (["--ray", "local", "--shards", 2, "--shard", "1/2"], "leave out --shard"),
        (["--ray", "local", "--shards", 2, "--replay"], "leave out --replay"),
        (["--ray", "local", "--shards", 9], "4 questions make 4 shards at most"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_with_ray_are_one_line(options: list[object], words: str, blendfilter: Command) -> None:
    refused = blendfilter("eval", "qa", "--data", "sample", "--limit", 4, *options)
    assert (refused.code, words in refused.err) == (2, True), refused.err


@slow
def test_an_address_that_does_not_answer_is_one_line(here: Path) -> None:
    options = ("--ray", "127.0.0.1:9", "--shards", 2, "--lm", "offline")
    refused = shell("eval", "qa", "--data", "sample", "--limit", 4, *options, timeout=300)
    assert refused.code == 2
    assert "no Ray cluster answers at '127.0.0.1:9'" in refused.error

"""A run's limits against a server's own count: never passed, whatever happens between sessions."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest
from model_server import Server, serve
from small_world import CountingEngine, done_by, journaled, stable

from blendfilter import BM25, BlendFilter, ChainOfThought, Direct, Run, connect, evaluate, load
from blendfilter.errors import BadArgument, BudgetSpent, ServerRefused
from blendfilter.evaluation.run_folder import read_json
from blendfilter.evaluation.run_loop import Admission
from blendfilter.journal import Journal
from blendfilter.lm.attempts import Retry
from blendfilter.lm.budget import MARK, Amount, Budget, BudgetAccount
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.prices import Price
from blendfilter.tasks import Questions

IN_FLIGHT = 32
QUESTIONS = 24


def quick(url: str, **more: Any) -> ConnectedLM:
    """A model at `url` that tries again at once."""
    lm = connect("any/model", api_base=url, **more)
    lm.terms = dataclasses.replace(lm.terms, retry=Retry(wait_first=0.005, wait_max=0.02))
    return lm


def sitting(index: BM25, url: str, run: Path, budget: Budget | None, **more: Any) -> BudgetSpent | None:
    """One sitting of a run; how it ended, where the budget ended it."""
    questions = load("qa", "sample", limit=QUESTIONS)
    try:
        evaluate(
            BlendFilter(index), questions, lm=quick(url), run=run, budget=budget, concurrency=IN_FLIGHT, progress=False,
            **more,
        )  # fmt: skip
    except BudgetSpent as spent:
        return spent
    return None


def limited(method: dspy.Module, questions: Questions, lm: ConnectedLM, run: Path, **limits: Any) -> Run:
    return evaluate(method, questions, lm=lm, run=run, budget=Budget(**limits), progress=False)


def tokens_of(server: Server) -> int:
    stats = server.stats()
    return int(stats["tokens_in"] + stats["tokens_out"])


def test_a_budget_of_calls_is_never_passed_over_three_sittings(index: BM25, tmp_path: Path) -> None:
    # a delay that leaves even a busy machine the time to send many calls before the first reply
    with serve(reply="offline", delay=0.15, jitter=1, jitter_max=0.01) as server:
        for limit in (50, 51, 120):
            spent = sitting(index, server.url, tmp_path / "run", Budget(calls=limit))
            assert spent is not None
            assert f"{limit} of {limit} calls are gone" in str(spent)
            assert server.stats()["requests"] == limit
            assert not (tmp_path / "run" / "metrics.json").exists()
        answered = len((tmp_path / "run" / "predictions.jsonl").read_text().splitlines())
        assert f"{answered} of {QUESTIONS} questions are answered, and the same command" in str(spent)
        assert sitting(index, server.url, tmp_path / "run", Budget(calls=2_000)) is None
        assert server.stats()["max_in_flight"] > IN_FLIGHT / 2  # a limit far away has no effect
        needed = server.stats()["requests"]
        assert sitting(index, server.url, tmp_path / "calm", None) is None
        assert server.stats()["requests"] == 2 * needed  # nothing was asked twice
    assert stable(tmp_path / "run") == stable(tmp_path / "calm")
    assert read_json(tmp_path / "run" / "run.json")["notes"]["budget"] == {"calls": 2_000}


@pytest.mark.parametrize("limits", [{"calls": 200}, {"tokens": 110_000}])
def test_a_budget_holds_where_a_fifth_of_the_calls_fails(index: BM25, tmp_path: Path, limits: dict[str, int]) -> None:
    ((name, limit),) = limits.items()
    with serve(reply="offline", behave="flaky", jitter=1, jitter_max=0.01) as server:
        for share in (0.5, 0.8, 1.0):
            allowed = int(limit * share)
            assert sitting(index, server.url, tmp_path / "run", Budget(**{name: allowed})) is not None
            used = server.stats()["requests"] if name == "calls" else tokens_of(server)
            assert used <= allowed
            assert name == "tokens" or used == allowed
        assert server.stats()["faults"]
        lost = [record.get("tokens_lost", 0) for record in journaled(tmp_path / "run")]
    assert any(lost)


@pytest.mark.slow
@pytest.mark.parametrize("limits", [{"calls": 160}, {"tokens": 250_000}])
def test_a_budget_holds_over_kills(tmp_path: Path, limits: dict[str, int]) -> None:
    """Killed twice with calls in flight, which no record tells of, then left alone until the limit is reached."""
    ((name, limit),) = limits.items()
    with serve(reply="offline", delay=0.02, jitter=1, jitter_max=0.03) as server:
        for stop in (30, 70, None):
            process = command(server.url, tmp_path / "run", f"--max-{name}", str(limit))
            if stop is None:
                result = process.communicate()[1].decode()
                assert process.returncode == 3, result
            else:
                killed_at(process, lambda stop=stop: server.stats()["requests"] >= stop)
        used = server.stats()["requests"] if name == "calls" else tokens_of(server)
    assert 0.3 * limit < used <= limit
    assert "blendfilter: the budget is spent: " in result


def command(url: str, run: Path, *more: str) -> subprocess.Popen[bytes]:
    words = ["eval", "qa", "--data", "sample", "--lm", "any/model", "--api-base", url, "--run", str(run)]
    return subprocess.Popen(
        [sys.executable, "-m", "blendfilter.cli", *words, "--concurrency", "16", "--no-html", *more],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def killed_at(process: subprocess.Popen[bytes], reached: Callable[[], bool]) -> None:
    while not reached():  # however long a busy machine takes
        assert process.poll() is None, process.communicate()[1].decode()
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


# ---- a server that lies

LIES = {
    "free": '{"cost": 0}',
    "less than our price": '{"cost": 1e-7}',
    "more than any call costs": '{"cost": 1e12}',
    "negative": '{"cost": -5}',
    "no number": '{"cost": NaN}',
    "no tokens": '{"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}',
    "negative tokens": '{"prompt_tokens": -500, "completion_tokens": -500}',
    "tokens in words": '{"prompt_tokens": "few", "completion_tokens": [1]}',
    "tokens that no call has": f'{{"prompt_tokens": {10**400}, "completion_tokens": {10**30}}}',
    "all of it cached elsewhere": '{"prompt_tokens": 0, "prompt_tokens_details": {"cached_tokens": 1000000000000}}',
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("limits", [{"dollars": 0.03}, {"tokens": 15_000}], ids=["dollars", "tokens"])
def test_no_server_voids_a_limit_by_what_it_says_of_itself(
    index: BM25, tmp_path: Path, lie: str, limits: dict[str, Any]
) -> None:
    """The server counts words; at our price of what it truly read and wrote, no limit is passed over two sittings."""
    price = Price(input=2.0, output=8.0)
    with serve(reply="offline", lie=LIES[lie], jitter=1, jitter_max=0.003) as server:
        for share in (0.5, 1.0):
            lm = quick(server.url)
            lm.terms = dataclasses.replace(lm.terms, price=price)
            budget = Budget(**{name: type(limit)(limit * share) for name, limit in limits.items()})
            with pytest.raises(BudgetSpent):
                evaluate(
                    BlendFilter(index), load("qa", "sample", limit=QUESTIONS), lm=lm, run=tmp_path, budget=budget,
                    concurrency=IN_FLIGHT, progress=False,
                )  # fmt: skip
            stats = server.stats()
            used = {"tokens": stats["tokens_in"] + stats["tokens_out"],
                    "dollars": price.of(stats["tokens_in"], stats["tokens_out"])}  # fmt: skip
            ((name, limit),) = budget.given().items()
            assert 0 < used[name] <= limit


@pytest.mark.parametrize(
    ("cost", "by", "stated", "disbelieved"),
    [
        ("0", {"price": 4}, 0.0, None),
        ("5.0", {"server": 4}, None, None),
        ("-5", None, None, {"cost": "-5"}),
        ("true", None, None, {"cost": "True"}),
        ("1e-7", {"price": 4}, 1e-7, None),
        ("1e308", None, None, {"cost": "1e+308"}),
        ("900.0", None, None, {"cost": "900.0"}),
    ],
)
def test_the_ledger_says_whose_figure_counts_live_and_in_a_replay(
    tmp_path: Path, cost: str, by: dict[str, int] | None, stated: float | None, disbelieved: dict[str, str] | None
) -> None:
    price, wanted = Price(input=2.0, output=8.0), load("qa", "sample", limit=2)
    with serve(lie=f'{{"cost": {cost}}}') as server:
        lm = quick(server.url)
        lm.terms = dataclasses.replace(lm.terms, price=price)
        run = evaluate(ChainOfThought(), wanted, lm=lm, run=tmp_path, progress=False)
    records = journaled(tmp_path)
    ours = sum(price.of(each["tokens_in"], each["tokens_out"]) for each in records)
    total = run.metrics["ledger"]["total"]
    assert total.get("cost_by") == by
    assert total["cost"] == pytest.approx(20.0 if by == {"server": 4} else ours, abs=1e-5)
    assert {(each.get("cost_stated"), str(each.get("disbelieved"))) for each in records} == {(stated, str(disbelieved))}
    again = evaluate(ChainOfThought(), wanted, lm=lm, run=tmp_path, progress=False, replay=True)
    assert again.metrics == run.metrics


@pytest.mark.parametrize("dollars", [1e308, float("inf")])
def test_a_run_that_an_absurd_cost_ended_goes_on_and_mends_its_files(tmp_path: Path, dollars: float) -> None:
    """An earlier version charged what the server stated: its records and its mark are damaged."""
    price, wanted = Price(input=2.0, output=8.0), load("qa", "sample", limit=2)
    with serve() as server:
        lm = quick(server.url)
        lm.terms = dataclasses.replace(lm.terms, price=price)
        limited(ChainOfThought(), wanted, lm, tmp_path, dollars=0.1)
        with Journal(tmp_path) as journal:
            for record in [*journal.records("call")]:
                journal.append({**record, "cost": dollars, "cost_by": "server"})
            journal.append({**(journal.read(MARK) or {}), "dollars": dollars})
        run = evaluate(
            ChainOfThought(), wanted, lm=lm, run=tmp_path, budget=Budget(dollars=0.1), repeats=2, progress=False
        )
        asked = server.stats()["requests"]
    assert (run.finished, asked) == (True, 8)
    assert run.metrics["ledger"]["total"]["cost"] is None, "unknown of those calls, and never 0"
    spent = price.of(server_tokens(tmp_path, "tokens_in"), server_tokens(tmp_path, "tokens_out"))
    assert spent <= journaled(tmp_path, "budget")[-1]["dollars"] < 0.1


def server_tokens(run: Path, name: str) -> int:
    return sum(record[name] for record in {each["key"]: each for each in journaled(run)}.values())


@pytest.mark.parametrize(
    ("lie", "cut"), [('{"prompt_tokens": 40}', True), ("{}", False), ('{"prompt_tokens": 0}', False)]
)
def test_a_run_says_that_its_server_cut_prompts_live_and_in_a_replay(
    index: BM25, tmp_path: Path, lie: str, cut: bool
) -> None:
    wanted = load("qa", "sample", limit=2)
    with serve(lie=lie) as server:
        run = evaluate(Direct(index), wanted, lm=quick(server.url), run=tmp_path, progress=False)
    assert run.metrics["flags"].get("prompt_cut") == (2 if cut else None)
    assert [row["flags"].get("prompt_cut") for row in run.rows] == ([1, 1] if cut else [None, None])
    assert [warning.partition(" of prompts")[0] for warning in run.warnings] == (["100.0 % (2 of 2)"] if cut else [])
    if cut:
        assert run.metrics["ledger"]["total"]["tokens_in"] == 80, "as stated"
    again = evaluate(Direct(index), wanted, lm=quick(server.url), run=tmp_path, progress=False, replay=True)
    assert again.metrics == run.metrics


def test_a_cut_prompt_is_flagged_of_a_module_that_has_no_flags(tmp_path: Path) -> None:
    reply = "[[ ## answer ## ]]\n42\n\n[[ ## completed ## ]]"
    with serve(reply=reply, lie='{"prompt_tokens": 20}') as server, dspy.context(adapter=dspy.ChatAdapter()):
        run = evaluate(Bare(), load("qa", "sample", limit=2), lm=quick(server.url), run=tmp_path, progress=False)
    assert run.metrics["flags"]["prompt_cut"] == 2


# ---- what counts


def test_calls_of_another_run_cost_nothing(index: BM25, questions: Questions, tmp_path: Path) -> None:
    done_by(BlendFilter(index), questions, tmp_path / "old")
    run, engine = done_by(
        BlendFilter(index), questions, tmp_path / "new", reuse=[tmp_path / "old"], budget=Budget(calls=1, tokens=1)
    )
    assert run.finished
    assert engine.calls == 0
    assert all(record["reused"] for record in journaled(tmp_path / "new"))
    assert not any("reused" in record for record in journaled(tmp_path / "old"))
    later = CountingEngine()
    with pytest.raises(BudgetSpent):
        done_by(BlendFilter(index), questions, tmp_path / "new", engine=later, repeats=2, budget=Budget(calls=5))
    assert later.calls == 5


def test_a_replay_needs_no_budget_and_leaves_the_account_alone(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    run, engine = done_by(BlendFilter(index), questions, tmp_path, budget=Budget(calls=500))
    before = (tmp_path / "journal.jsonl").read_bytes()
    again, _ = done_by(BlendFilter(index), questions, tmp_path, replay=True, budget=Budget(calls=1))
    assert again.metrics == run.metrics
    assert (tmp_path / "journal.jsonl").read_bytes() == before
    assert journaled(tmp_path, "budget")[-1]["calls"] == engine.calls


# ---- what has no bound


class Bare(dspy.Module):  # type: ignore[misc]
    """A module of a user's own, which caps no reply."""

    def __init__(self) -> None:
        super().__init__()
        self.predict = dspy.Predict("question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        return self.predict(question=question)


def test_a_call_that_has_no_cap_cannot_be_held_by_tokens(questions: Questions, tmp_path: Path) -> None:
    with serve(reply="[[ ## answer ## ]]\n42\n\n[[ ## completed ## ]]") as server:
        with pytest.raises(BadArgument, match=r"a call without max_tokens has no bound.*connect\(…, max_tokens=…\)"):
            limited(Bare(), questions, quick(server.url), tmp_path / "run", tokens=9_000)
        assert not server.stats()["requests"]
        assert not (tmp_path / "run").exists()
        capped = quick(server.url, max_tokens=50)
        with dspy.context(adapter=dspy.ChatAdapter()):
            assert limited(Bare(), questions, capped, tmp_path / "run", tokens=9_000).finished


class Deaf(Bare):
    """Takes whatever goes wrong for an answer."""

    def forward(self, question: str) -> dspy.Prediction:
        try:
            return super().forward(question)
        except Exception:
            return dspy.Prediction(answer="unknown")


@pytest.mark.parametrize("module", [Bare, Deaf])
def test_a_method_that_does_not_pass_it_on_still_stops(
    module: type[Bare], questions: Questions, tmp_path: Path
) -> None:
    with serve(reply="[[ ## answer ## ]]\n42\n\n[[ ## completed ## ]]") as server:
        with pytest.raises(BudgetSpent, match=r"4 of 4 calls are gone; \d of 6 questions"):
            limited(module(), questions, quick(server.url), tmp_path, calls=4)
        assert server.stats()["requests"] == 4
    assert "unknown" not in (tmp_path / "predictions.jsonl").read_text()


def test_every_request_stands_in_a_record_so_that_a_limit_given_later_counts_it(index: BM25, tmp_path: Path) -> None:
    with serve(reply="offline", behave="reasoning") as server:
        assert sitting(index, server.url, tmp_path, None) is None
        wanted = server.stats()["requests"]
        assert sum(record["attempts"] for record in journaled(tmp_path)) == wanted > len(journaled(tmp_path))
        assert sitting(index, server.url, tmp_path, Budget(calls=wanted + 3), repeats=2) is not None
        assert server.stats()["requests"] == wanted + 3


def test_what_was_refused_in_a_first_sitting_counts_in_the_next(index: BM25, tmp_path: Path) -> None:
    """Nothing was answered, so nothing of it is kept but the account."""
    run, wanted = tmp_path / "run", load("qa", "sample", limit=1)
    with serve(behave="unauthorized") as server:
        for raised in (ServerRefused, ServerRefused, BudgetSpent, BudgetSpent):
            with pytest.raises(raised):
                limited(ChainOfThought(index), wanted, quick(server.url), run, calls=2)
            assert raised is BudgetSpent or [each.name for each in run.iterdir()] == ["journal.jsonl"]
        assert server.stats()["requests"] == 2


# ---- how many questions begin

CALLS: dict[str, dict[str, Any]] = {
    "a": {"attempts": 3, "tokens_in": 60, "tokens_out": 30, "tokens_lost": 10, "cost": 0.5},
    "b": {"attempts": 1, "tokens_in": 90, "tokens_out": 10, "cost": 0.5},
    "copied": {"attempts": 9, "tokens_in": 900, "tokens_out": 0, "cost": 9.0, "reused": True},
}
ROW = {"calls": [["x", "a"], ["y", "b"], ["z", "a"], ["w", "copied"], ["v", "gone"]]}
"""Four attempts, 200 tokens, a dollar: a call of another run and the second use of one cost nothing."""


def begun(one: Admission) -> int:
    """How many begin now."""
    before = one.under_work
    while one.under_work < 99 and one.may_begin():
        one.under_work += 1
    return one.under_work - before


@pytest.mark.parametrize(
    ("limits", "at_first", "later"),
    [({}, 99, 0), ({"calls": 40}, 4, 4), ({"tokens": 2_000}, 4, 4), ({"dollars": 10.0}, 4, 4), ({"tokens": 100}, 4, 0)],
)
def test_as_many_begin_as_the_rest_is_likely_to_finish(limits: dict[str, Any], at_first: int, later: int) -> None:
    """A question takes a tenth of a limit, two tenths are gone: eight at a time; four while nothing is known."""
    purse = BudgetAccount(Budget(**limits), None, Amount(8, 400, 2.0))
    one = Admission(purse, CALLS.get)
    assert begun(one) == at_first
    one.answered({"calls": [["w", "copied"]]})
    assert begun(one) == 0, "another run's calls tell nothing"
    one.answered(ROW)
    purse.reserved = Amount(8, 400, 2.0)  # belongs to those under work, and counts once
    assert begun(one) == later
    one.under_work = 0
    assert one.may_begin(), "one at a time always begins: the budget itself says that it is spent"

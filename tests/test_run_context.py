"""A run's models share one journal, one rate limit, one retry budget and one budget account."""

from __future__ import annotations

from pathlib import Path

import dspy
import pytest
from model_server import serve

from blendfilter import connect
from blendfilter.errors import BadArgument, BudgetSpent
from blendfilter.journal import Journal
from blendfilter.lm.budget import Budget
from blendfilter.run_context import RunContext


class TwoModels(dspy.Module):
    """A predictor that takes the run's model, and one with a model of its own."""

    def __init__(self, own: dspy.BaseLM) -> None:
        super().__init__()
        self.first, self.second = dspy.Predict("question -> answer"), dspy.Predict("question -> answer")
        self.second.lm = own


def test_all_models_of_a_run_are_journaled_and_share_its_limits(tmp_path: Path) -> None:
    with serve(reply="offline") as server:
        run_lm, own, teacher = (connect(name, api_base=server.url) for name in ("run/one", "own/two", "teacher/three"))
        work = RunContext(run_lm, TwoModels(own), others=[teacher], budget=Budget(calls=3), concurrency=2)
        assert work.module is not None
        with Journal(tmp_path) as journal, work.opened(journal):
            work.lm("a question")
            work.module.second.lm("a question")
            work.journaled(work.others[0])("a question")
            with pytest.raises(BudgetSpent, match="3 of 3 calls"):
                work.lm("another question")
            assert [record["model"] for record in journal.records("call")] == ["run/one", "own/two", "teacher/three"]
        assert server.stats()["requests"] == 3


def test_a_budget_counts_over_all_sessions_of_a_run(tmp_path: Path) -> None:
    with serve(reply="offline") as server:
        for question in ("first", "second"):
            work = RunContext(connect("any/model", api_base=server.url), budget=Budget(calls=2))
            with Journal(tmp_path) as journal, work.opened(journal):
                work.lm(question)
        work = RunContext(connect("any/model", api_base=server.url))  # no limit named: the account goes on all the same
        with Journal(tmp_path) as journal, work.opened(journal):
            work.lm("third")
            assert work.purse is not None
            assert work.purse.spent.calls == 3


def test_the_callers_module_keeps_its_own_models(tmp_path: Path) -> None:
    own = dspy.LM("openai/own")
    method = TwoModels(own)
    work = RunContext("offline", method)
    with Journal(tmp_path) as journal, work.opened(journal):
        assert method.second.lm is own
        assert work.module is not method


def test_what_cannot_be_limited_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(BadArgument, match="no price is known for the model"):
        RunContext(connect("any/model", api_base="http://127.0.0.1:9/v1"), budget=Budget(dollars=1))
    with pytest.raises(BadArgument, match="max_retries"):
        RunContext("offline", max_retries=-1)


def test_a_replay_needs_no_price_and_spends_nothing(tmp_path: Path) -> None:
    lm = connect("any/model", api_base="http://127.0.0.1:9/v1")
    work = RunContext(lm, budget=Budget(dollars=1), replay=True)
    with Journal(tmp_path) as journal, work.opened(journal):
        assert work.purse is None

"""A run of two models: one answers, the other answers the calls of the method's filter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dspy
import pytest
from small_world import CountingEngine, journaled, stable

from blendfilter import BM25, BlendFilter, Direct, Filter, Judge, KnowledgeFilter, Passage, Run, compare, evaluate
from blendfilter.errors import BadArgument, BudgetSpent, RunMismatch
from blendfilter.evaluation.plan import plan
from blendfilter.filters.base import filter_predictors, with_filter_lm
from blendfilter.filters.registry import make_filter
from blendfilter.lm.attempts import CallPolicy, Pace
from blendfilter.lm.budget import Budget
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.prices import Price
from blendfilter.run_context import prices_by_name
from blendfilter.tasks import Questions

DEAR, CHEAP = Price(10, 30), Price(1, 3)


class Two:
    """An answerer and a judge, and what reaches each."""

    def __init__(self, answers: Price | None = None, judges: Price | None = None, **judge: Any) -> None:
        self.answerer, self.judge = CountingEngine(), CountingEngine()
        self.lm = self.answerer.lm("answerer", terms=CallPolicy(price=answers))
        self.filter_lm = self.judge.lm("judge", **{"terms": CallPolicy(price=judges), **judge})

    def evaluate(self, method: dspy.Module, questions: Questions, run: Path, **options: Any) -> Run:
        models = {"lm": self.lm, "filter_lm": self.filter_lm}
        return evaluate(method, questions, **{**models, "run": run, "progress": False, **options})

    @property
    def calls(self) -> tuple[int, int]:
        return self.answerer.calls, self.judge.calls


# --- who is asked what ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("knowledge", {"topic", "check", "ids"}),
        ("one-call", {"judge"}),
        ("pointwise", {"relevant"}),
        ("filco", {"helpful"}),
        ("cdit", {"consistent"}),
    ],
)
def test_the_filters_calls_go_to_its_own_model_and_no_others(
    name: str, stages: set[str], index: BM25, questions: Questions, tmp_path: Path
) -> None:
    two = Two()
    run = two.evaluate(Direct(index, k=2, filter=make_filter(name)), questions[:2], tmp_path / "run")
    assert run.errors == 0
    assert {*two.answerer.stages} == {"direct"}
    assert {stage.removesuffix("_again") for stage in two.judge.stages} == stages


def test_blendfilters_topic_checks_and_ids_are_the_filters(index: BM25, questions: Questions, tmp_path: Path) -> None:
    two = Two()
    method = BlendFilter(index)
    run = two.evaluate(method, questions, tmp_path / "run")
    assert {*two.judge.stages} == {"topic", "check", "ids"}
    assert {*two.answerer.stages} == {"external", "internal", "answer", "short_answer"}
    for record in journaled(run.folder):
        assert record["model"] == ("judge" if record["stage"] in two.judge.stages else "answerer")
    assert [predictor.lm for predictor in filter_predictors(method).values()] == [None] * 4, "it is a copy that has it"


class Hidden(dspy.Module):
    """A user's filter that is no `Filter`, within a method of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.pick = dspy.Predict("question -> passages")

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        await self.pick.acall(question=question)
        return dspy.Prediction(kept=passages[:1])


class Mine(dspy.Module):
    def __init__(self, retriever: Any) -> None:
        super().__init__()
        self.steps = [KnowledgeFilter(ask_topic=False)]
        self.inner = Direct(retriever, k=2, filter=Hidden())  # type: ignore[arg-type]

    async def aforward(self, question: str) -> dspy.Prediction:
        await self.steps[0].acall(question=question, passages=[Passage("1", "T", "x")])
        return await self.inner.acall(question=question)


def test_filters_are_found_wherever_a_method_of_ones_own_has_them(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    two = Two()
    run = two.evaluate(Mine(index), questions[:1], tmp_path / "run")
    assert run.errors == 0
    assert {*filter_predictors(Mine(index))} == {
        "steps[0].topic", "steps[0].check", "steps[0].ids", "steps[0].ids_again", "inner.select.pick"
    }  # fmt: skip
    assert len(two.judge.stages) == 3
    assert two.answerer.calls == 1


def test_a_judge_without_a_filter_around_it_is_found_too() -> None:
    method = dspy.Module()
    method.judge, method.answer = Judge(), dspy.Predict("question -> answer")
    assert {*filter_predictors(method)} == {"judge.consistent"}


class AsksNothing(Filter):
    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        return dspy.Prediction(kept=[*passages])


@pytest.mark.parametrize("select", [None, AsksNothing(), make_filter("sentence")], ids=["none", "own", "sentence"])
def test_a_method_whose_filter_asks_no_model_takes_none(select: Any, index: BM25, questions: Questions) -> None:
    with pytest.raises(BadArgument, match="no filter of Direct asks a model: leave it out"):
        evaluate(Direct(index, filter=select), questions, lm="offline", filter_lm="offline", progress=False)


def test_a_filter_that_has_a_model_already_is_given_no_other(index: BM25) -> None:
    method = BlendFilter(index)
    method.select.set_lm(CountingEngine().lm("own"))
    with pytest.raises(BadArgument, match=r"select\.topic has a model of its own, blendfilter/own"):
        with_filter_lm(method, CountingEngine().lm())


# --- the record -----------------------------------------------------------------------------------------------------


def test_run_json_and_the_headline_name_both(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run = Two().evaluate(BlendFilter(index), questions, tmp_path / "run")
    assert run.settings["lm"]["name"] == "answerer"
    assert run.settings["lm"]["filter"]["name"] == "judge"
    assert "of" not in run.settings["lm"]
    assert "|lm:answerer|filter-lm:judge|" in run.metrics["signature"]
    assert run.models == "answerer, filter judge"
    assert run.record["notes"]["filter_address"] == "http://127.0.0.1:1/v1"


def test_a_run_of_one_model_is_what_it_was(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run = evaluate(BlendFilter(index), questions, lm="offline", run=tmp_path / "run", progress=False)
    assert "filter" not in run.settings["lm"]
    assert "filter-lm" not in run.metrics["signature"]
    assert {*run.metrics["ledger"]["total"]} == {"calls", "tokens_in", "tokens_out", "cost"}
    assert " of " not in re.sub(r".*Ledger", "", run.report(), flags=re.DOTALL)


def test_the_ledger_counts_and_prices_each_model(index: BM25, questions: Questions, tmp_path: Path) -> None:
    two = Two(DEAR, CHEAP)
    run = two.evaluate(BlendFilter(index), questions, tmp_path / "run")
    total = run.metrics["ledger"]["total"]
    assert [total["models"][name]["calls"] for name in ("answerer", "judge")] == [*two.calls]
    for name, price, engine in (("answerer", DEAR, two.answerer), ("judge", CHEAP, two.judge)):
        one = total["models"][name]
        assert one["tokens_in"] == sum(len(prompt.split()) for prompt in engine.prompts)
        assert one["cost"] == pytest.approx(price.of(one["tokens_in"], one["tokens_out"]), abs=1e-6)
    assert total["cost"] == pytest.approx(sum(one["cost"] for one in total["models"].values()), abs=1e-5)
    assert {*run.metrics["ledger"]["check"]["models"]} == {"judge"}
    ledger = run.report().partition("Ledger")[2]
    assert re.search(r"check +judge +\d", ledger)
    assert re.search(r"answer +answerer +\d", ledger)
    assert re.search(rf"of judge +{two.judge.calls} ", ledger)
    page = run.html().read_text(encoding="utf-8")
    assert "<td>check</td><td>judge</td>" in page
    assert "answerer, filter judge" in run._repr_html_()


def test_the_total_is_unknown_where_one_models_price_is(index: BM25, questions: Questions, tmp_path: Path) -> None:
    run = Two(DEAR, None).evaluate(BlendFilter(index), questions, tmp_path / "run")
    ledger = run.metrics["ledger"]
    assert ledger["total"]["cost"] is None
    assert ledger["total"]["models"]["judge"]["cost"] is None
    assert ledger["total"]["models"]["answerer"]["cost"] == pytest.approx(
        sum(ledger[stage]["cost"] for stage in ("external", "internal", "answer", "short_answer")), abs=1e-5
    )


# --- going on, replaying, comparing ---------------------------------------------------------------------------------


def test_it_goes_on_and_replays_without_a_call(index: BM25, questions: Questions, tmp_path: Path) -> None:
    two, run = Two(), tmp_path / "run"
    with pytest.raises(BudgetSpent):
        two.evaluate(BlendFilter(index), questions, run, budget=Budget(calls=30))
    assert sum(two.calls) == 30, "one limit over both"
    assert min(two.calls) > 0
    two.evaluate(BlendFilter(index), questions, run)
    before, calls = stable(run), two.calls
    for replay in (True, False):
        two.evaluate(BlendFilter(index), questions, run, replay=replay)
        assert (stable(run), two.calls) == (before, calls)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"filter_lm": CountingEngine().lm("another")}, "the filter's model (filter_lm=) was judge, now another. Give"),
        ({"filter_lm": None}, "the filter's model (filter_lm=) was judge, now none of its own. Give"),
        ({"filter_lm": CountingEngine().lm("judge", temperature=0.5)}, "lm.filter.parameters.temperature was 0.0"),
    ],
    ids=["another", "none", "warmer"],
)
def test_another_filter_model_is_refused_in_one_line(
    other: dict[str, Any], said: str, index: BM25, questions: Questions, tmp_path: Path
) -> None:
    two = Two()
    two.evaluate(BlendFilter(index), questions[:1], tmp_path / "run")
    with pytest.raises(RunMismatch, match=re.escape(said)):
        two.evaluate(BlendFilter(index), questions[:1], tmp_path / "run", **other)


def test_a_comparison_says_whose_filter_it_was(index: BM25, questions: Questions, tmp_path: Path) -> None:
    two = Two(temperature=0.5)
    both = two.evaluate(BlendFilter(index), questions, tmp_path / "both")
    alone = two.evaluate(BlendFilter(index), questions, tmp_path / "alone", filter_lm=None)
    plain = two.evaluate(Direct(index), questions, tmp_path / "plain", filter_lm=None)
    notes = " ".join(compare(alone, both, plain).notes)
    assert "filter-lm answerer (alone) / judge (both)" in notes
    assert "filter-lm temperature 0.0 (alone) / 0.5 (both)" in notes
    assert "filter-lm" not in " ".join(compare(alone, plain).notes)


# --- plans and limits -----------------------------------------------------------------------------------------------


def test_a_plan_has_the_calls_tokens_and_dollars_of_both_and_asks_neither(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    two = Two(DEAR, CHEAP)
    made = plan(BlendFilter(index), questions, two.lm, filter_lm=two.filter_lm, budget=Budget(calls=20))
    assert two.calls == (0, 0)
    two.evaluate(BlendFilter(index), questions, tmp_path / "run")
    assert [made.by_model[name].calls for name in ("answerer", "judge")] == [*two.calls]
    assert {stage.stage: stage.models for stage in made.stages if stage.stage in ("check", "answer")} == {
        "check": ("judge",), "answer": ("answerer",)
    }  # fmt: skip
    assert made.total.calls == sum(two.calls)
    assert made.total.cost == pytest.approx(sum(one.cost or 0 for one in made.by_model.values()))
    for name, price in (("answerer", DEAR), ("judge", CHEAP)):
        one = made.by_model[name]
        assert one.cost == pytest.approx(price.of(one.tokens_in, one.tokens_out), abs=1e-4)
    lines = made.text().splitlines()
    assert lines[0].endswith("  model")
    assert any(re.fullmatch(r"check .* judge", line) for line in lines)
    assert any(line.startswith("of judge ") for line in lines)
    assert "cost of judge: $1 in and $3 out a million tokens; cached prompt tokens may cost less" in lines
    half = plan(BlendFilter(index), questions, two.lm, filter_lm=Two().filter_lm)
    assert half.total.cost is None


def test_a_plan_of_what_is_left_counts_what_both_have_spent(index: BM25, questions: Questions, tmp_path: Path) -> None:
    two, run = Two(DEAR, CHEAP), tmp_path / "run"
    budget = Budget(dollars=0.08)
    with pytest.raises(BudgetSpent, match="the budget is spent"):
        two.evaluate(BlendFilter(index), questions, run, budget=budget)
    made = plan(BlendFilter(index), questions, two.lm, filter_lm=two.filter_lm, run=run, budget=budget)
    assert 0 < made.spent.dollars <= 0.08
    assert two.evaluate(BlendFilter(index), questions, run).errors == 0


def test_a_limit_of_dollars_wants_the_price_of_both(index: BM25, questions: Questions, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="no price is known for the model 'judge'"):
        Two(DEAR, None).evaluate(BlendFilter(index), questions, tmp_path / "run", budget=Budget(dollars=1))
    assert not (tmp_path / "run").exists()


def test_of_two_models_of_one_name_the_dearer_price_counts_and_an_unknown_one_is_unknown() -> None:
    def priced(*prices: Price | None) -> dict[str, Price | None]:
        return prices_by_name(CountingEngine().lm("m", terms=CallPolicy(price=price)) for price in prices)

    assert priced(Price(1, 5), Price(2, 3)) == {"m": Price(2, 5)}
    assert priced(Price(1, 5, 0.5), Price(1, 5, 0.5)) == {"m": Price(1, 5, 0.5)}
    assert priced(None, Price(1, 5)) == priced(Price(1, 5), None) == {"m": None}


def test_each_model_has_its_own_pace(index: BM25, questions: Questions) -> None:
    lm: ConnectedLM = CountingEngine().lm("answerer")
    slow = CountingEngine().lm("judge", terms=CallPolicy(pace=Pace(requests_per_minute=2)))
    made = plan(BlendFilter(index), questions, lm, filter_lm=slow)
    assert made.paced == pytest.approx(60 * (made.by_model["judge"].calls / 2 - 1))

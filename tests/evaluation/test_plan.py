"""The plan of a run: against the run itself, what counts as made, what its notes say, and that it calls no model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from model_server import serve
from small_world import Command, CountingEngine, done_by, tree

from blendfilter import BM25, BlendFilter, ChainOfThought, Direct, connect, evaluate, load
from blendfilter.errors import Leak
from blendfilter.evaluation.plan import RunPlan, duration, plan, spread
from blendfilter.lm.attempts import CallPolicy, Pace
from blendfilter.lm.budget import Amount, Budget
from blendfilter.lm.checkpoints import Checkpoint, write_questions
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.prices import Price
from blendfilter.lm.profiles import profile_for
from blendfilter.tasks import Questions


@pytest.fixture(scope="module")
def wanted() -> Questions:
    return load("hotpotqa", "sample")


def lines(made: RunPlan) -> list[str]:
    return made.text().splitlines()


def note(made: RunPlan, name: str) -> str:
    """The note that begins so."""
    (line,) = (line for line in lines(made) if line.startswith(f"{name}:"))
    return line


# --- against the run ------------------------------------------------------------------------------------------------


def test_a_plan_of_every_question_is_what_the_server_then_counts(
    index: BM25, wanted: Questions, tmp_path: Path
) -> None:
    """Words are this server's tokens, and its replies the offline reader's: calls are equal, tokens within 1 %."""
    some = wanted[:24]
    with serve(reply="offline", tokenize="vllm") as server:
        lm = connect("m", api_base=server.url)
        made = plan(BlendFilter(index), some, lm, sample=24, ask_server=True)
        assert server.stats()["requests"] == 0
        run = evaluate(BlendFilter(index), some, lm=lm, run=tmp_path, progress=False)
        counted = server.stats()
    stored = run.metrics["ledger"]
    assert made.total.calls == stored["total"]["calls"] == counted["requests"]
    assert {stage.stage: stage.calls for stage in made.stages} == {
        stage: entry["calls"] for stage, entry in stored.items() if stage != "total"
    }
    assert made.total.tokens_in == pytest.approx(counted["tokens_in"], rel=0.01)
    assert made.total.tokens_out == pytest.approx(counted["tokens_out"], rel=0.01)
    numbers = [len(row["calls"]) for row in run.rows]
    assert (made.total.fewest, made.total.most) == (min(numbers), max(numbers))
    assert note(made, "tokens") == f"tokens: the tokeniser of {server.url}"


def test_twenty_questions_tell_of_all(index: BM25, wanted: Questions, tmp_path: Path) -> None:
    made = plan(BlendFilter(index), wanted, CountingEngine().lm())
    run, engine = done_by(BlendFilter(index), wanted, tmp_path / "run")
    assert made.sampled == 20
    assert made.total.calls == pytest.approx(engine.calls, rel=0.05)
    words = sum(len(prompt.split()) for prompt in engine.prompts)
    assert made.total.tokens_in == pytest.approx(1.4 * words, rel=0.05)
    assert run.errors == 0


@pytest.mark.parametrize(("length", "planned"), [(10, 10), (300, 32)])
def test_replies_are_as_long_as_earlier_ones_and_never_longer_than_their_cap(
    length: int, planned: int, index: BM25, wanted: Questions, tmp_path: Path
) -> None:
    engine = CountingEngine(reply=lambda prompt: "word " * length)
    run, _ = done_by(Direct(index), wanted[:2], tmp_path / "run", engine=engine)
    made = plan(Direct(index), wanted[2:6], engine.lm(), reuse=[run.folder])
    assert (made.total.tokens_out, made.total.tokens_out_most) == (4 * planned, 4 * 32)
    assert "replies: as long as earlier ones (direct)" in lines(made)


# --- what counts as made --------------------------------------------------------------------------------------------


def test_of_a_finished_run_nothing_is_left(index: BM25, questions: Questions, tmp_path: Path) -> None:
    engine = CountingEngine()
    run, _ = done_by(Direct(index), questions, tmp_path / "run", engine=engine)
    made = plan(Direct(index), questions, engine.lm(), run=run.folder)
    assert (made.total.calls, made.stages, made.done) == (0, (), len(questions))
    nothing = f"all {len(questions)} answers are there: nothing is left to ask"
    assert repr(made) == made.text() == f"{nothing}\n"
    assert made._repr_html_() == f"<p>{nothing}</p>"
    twice = plan(Direct(index), questions, engine.lm(), run=run.folder, repeats=2)
    assert (twice.total.calls, twice.done) == (len(questions), len(questions))


def test_a_model_that_was_trained_on_the_questions_is_named_by_the_plan(
    index: BM25, questions: Questions, tmp_path: Path
) -> None:
    write_questions(tmp_path, [questions[0].question])
    engine = CountingEngine()
    engine.checkpoint = Checkpoint(tmp_path)  # type: ignore[attr-defined]  # as that of `hf/…`
    with pytest.raises(Leak, match="was trained on"):
        plan(Direct(index), questions, engine.lm())


def test_calls_of_other_runs_are_not_counted(index: BM25, questions: Questions, tmp_path: Path) -> None:
    engine = CountingEngine()
    lm = ConnectedLM("m", engine, profile=profile_for("m"), identity={"label": "the second", "endpoint": "chat"})
    options: dict[str, Any] = {"lm": lm, "progress": False}
    other = evaluate(ChainOfThought(index), questions, run=tmp_path / "cot", **options)
    made = plan(BlendFilter(index), questions, lm, reuse=[other.folder])
    alone = plan(BlendFilter(index), questions, lm)
    before = engine.calls
    evaluate(BlendFilter(index), questions, run=tmp_path / "blend", reuse=[other.folder], **options)
    assert made.total.calls == engine.calls - before < alone.total.calls
    assert "external" not in {stage.stage for stage in made.stages}, "CoT asked all of these"


# --- nothing is asked, nothing is written ---------------------------------------------------------------------------


def test_no_model_is_asked_and_nothing_written(
    index: BM25, questions: Questions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = CountingEngine()
    run, _ = done_by(Direct(index), questions[:3], tmp_path / "run", engine=engine)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    before, calls = tree(tmp_path), engine.calls
    method = BlendFilter(index)
    predictor = dict(method.named_predictors())["answering.answer"]
    predictor.lm = own = engine.lm("another")
    made = plan(method, questions, engine.lm(), run=run.folder, reuse=[run.folder])
    assert engine.calls == calls
    assert tree(tmp_path) == before
    assert predictor.lm is own
    assert set(made.tokenisers) == {"counting", "another"}, "a predictor's own model is planned as that"


# --- prices, caps, limits -------------------------------------------------------------------------------------------


def priced(price: Price | None, **terms: Any) -> ConnectedLM:
    engine, result = CountingEngine(), CallPolicy(price=price, **terms)
    return ConnectedLM("m", engine, profile=profile_for("m"), terms=result, temperature=0.0)


def test_cost_and_at_most(index: BM25, questions: Questions) -> None:
    made = plan(ChainOfThought(index), questions, priced(Price(10, 30)))
    for stage in (*made.stages, made.total):
        assert stage.tokens_in_most is not None
        assert stage.tokens_out_most is not None
        assert stage.cost == pytest.approx((10 * stage.tokens_in + 30 * stage.tokens_out) / 1e6, abs=1e-4)
        assert stage.cost_most == pytest.approx(
            (10 * stage.tokens_in_most + 30 * stage.tokens_out_most) / 1e6, abs=1e-4
        )
    assert repr(made) == str(made) == made.text(), "a notebook shows the table"
    cells = [
        f'<td class="number">{figure}</td>' for figure in ("2", f"{made.total.calls:,}", f"{made.total.tokens_in:,}")
    ]
    assert "<td>total</td>" + "".join(cells) in made._repr_html_()
    half = plan(ChainOfThought(index), questions, priced(Price(10, 30)), sample=len(questions) // 2)
    assert half.total.cost == pytest.approx(made.total.cost, rel=0.2)
    answer, short = made.stages
    assert answer.tokens_out_most == 256 * answer.calls
    assert answer.tokens_in_most == answer.tokens_in, "nothing of a model's stands in it"
    grown = (answer.tokens_out_most or 0) - answer.tokens_out
    assert (short.tokens_in_most or 0) - short.tokens_in == pytest.approx(grown, abs=len(questions))
    assert note(made, "cost") == "cost: $10 in and $30 out a million tokens; cached prompt tokens may cost less"


def test_time_is_that_of_earlier_calls_and_of_the_pace(index: BM25, questions: Questions, tmp_path: Path) -> None:
    engine = CountingEngine()
    run, _ = done_by(Direct(index), questions[:2], tmp_path / "run", engine=engine)
    assert plan(Direct(index), questions, engine.lm()).seconds is None
    known = plan(Direct(index), questions, engine.lm(), reuse=[run.folder], concurrency=2)
    assert known.seconds is not None
    assert "with 2 calls in flight, as fast as earlier ones" in note(known, "time")
    paced = plan(Direct(index), questions, priced(None, pace=Pace(requests_per_minute=2)))
    assert paced.paced == pytest.approx(60 * (len(questions) / 2 - 1))
    assert note(paced, "pace").startswith(f"pace: no sooner than in {duration(paced.paced or 0)}")


def test_whether_limits_are_enough(index: BM25, questions: Questions, tmp_path: Path) -> None:
    made = plan(ChainOfThought(index), questions, priced(Price(10, 30)))
    total, cost = made.total, made.total.cost or 0.0
    tokens = total.tokens_in + total.tokens_out

    def verdicts(**limits: Any) -> list[str]:
        return [line for line in replace(made, budget=Budget(**limits)).text().splitlines() if line.startswith("--max")]

    assert verdicts(calls=total.calls) == [f"--max-calls {total.calls}: enough"]
    assert "not enough, the run will stop at about 50 %" in verdicts(calls=total.calls // 2)[0]
    assert verdicts(tokens=10**9, dollars=cost)[0] == "--max-tokens 1,000,000,000: enough"
    assert verdicts(tokens=tokens)[0].endswith(": enough as expected, not at most")
    assert verdicts(dollars=2 * cost)[0].startswith(f"--max-cost ${2 * cost:,.10g}: enough")
    unpriced = plan(Direct(index), questions, priced(None), budget=Budget(dollars=1.0))
    assert lines(unpriced)[-1] == "--max-cost $1: it is not known whether that is enough"
    spent = replace(made, budget=Budget(calls=total.calls), spent=Amount(calls=1))
    assert ", 1 of it spent: not enough" in lines(spent)[-1]
    paid = replace(made, budget=Budget(dollars=1.0), spent=Amount(dollars=0.0606731234))
    assert "--max-cost $1, $0.06067 of it spent: " in lines(paid)[-1]
    run, engine = done_by(Direct(index), questions[:2], tmp_path / "run")
    assert plan(Direct(index), questions, engine.lm(), run=run.folder, budget=Budget(calls=9)).spent.calls == 2


# --- which questions, and what is asked wrongly ---------------------------------------------------------------------


def test_questions_are_spread_over_the_whole_set(wanted: Questions) -> None:
    assert [each.id for each in spread(wanted, 4)] == [wanted[place].id for place in (10, 31, 52, 73)]
    assert spread(wanted[:3], 20) == [*wanted[:3]]


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command_plans_without_a_key_and_makes_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    blendfilter = Command(monkeypatch, capsys)
    words = ("eval", "hotpotqa", "--data", "sample", "--limit", 12, "--lm", "openai/gpt-4o-mini")
    done = blendfilter(*words, "--plan", "--plan-questions", 4, "--max-calls", 50)
    assert (done.code, done.notices) == (0, [])
    assert done.out.splitlines()[0].split()[:3] == ["stage", "a", "question"]
    assert "planned from 4 of them, evenly spread" in done.out
    assert "cost: $0.15 in and $0.6 out a million tokens" in done.out
    assert "--max-calls 50: not enough" in done.out
    assert not (tmp_path / "runs").exists()
    refused = blendfilter(*words)
    assert refused.code == 2
    assert "wants a key" in refused.error


def test_a_plan_wants_no_key(wanted: Questions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    made = plan(Direct(None), wanted[:3], "openai/gpt-4o-mini")
    assert (made.total.calls, made.total.cost is not None) == (3, True)

"""The plan of a run: against the run itself, what counts as made, what its notes say, and that it calls no model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import dspy
import pytest
from model_server import serve
from small_world import Command, CountingEngine, Watching, done_by, tree

from blendfilter import BM25, BlendFilter, ChainOfThought, Direct, Run, SelfAsk, connect, evaluate, load
from blendfilter.errors import CannotWrite
from blendfilter.evaluation.plan import RunPlan, duration, plan, spread
from blendfilter.lm.attempts import CallPolicy, Pace
from blendfilter.lm.budget import Amount, Budget
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.offline import read
from blendfilter.lm.prices import Price
from blendfilter.lm.profiles import profile_for
from blendfilter.tasks import Questions


@pytest.fixture(scope="module")
def asked() -> Questions:
    return load("hotpotqa", "sample")


def lines(made: RunPlan) -> list[str]:
    return made.text().splitlines()


def note(made: RunPlan, name: str) -> str:
    """The note that begins so."""
    (line,) = (line for line in lines(made) if line.startswith(f"{name}:"))
    return line


# --- against the run ------------------------------------------------------------------------------------------------


def test_a_plan_of_every_question_is_what_the_server_then_counts(index: BM25, asked: Questions, tmp_path: Path) -> None:
    """Words are this server's tokens, and its replies the offline reader's: calls are equal, tokens within 1 %."""
    some = asked[:24]
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


def test_a_reply_is_never_longer_than_its_cap(index: BM25, asked: Questions, tmp_path: Path) -> None:
    """Earlier replies of 300 tokens, of a sitting that let them be so long."""
    engine = CountingEngine(reply=lambda prompt: "word " * 300)
    run, _ = done_by(Direct(index), asked[:2], tmp_path / "run", engine=engine)
    made = plan(Direct(index), asked[2:6], engine.lm(), reuse=[run.folder])
    assert made.stages[0].measured
    assert made.total.tokens_out == made.total.tokens_out_most == 4 * 32


def test_only_prompts_that_hold_a_reply_grow_with_it(index: BM25, asked: Questions) -> None:
    stages = {stage.stage: stage for stage in plan(BlendFilter(index), asked[:4], CountingEngine().lm()).stages}
    grows = {name for name, stage in stages.items() if (stage.tokens_in_most or 0) > stage.tokens_in}
    assert {"ids", "short_answer"} <= grows
    assert not grows & {"external", "internal", "topic"}


def test_a_reply_without_a_cap_may_pass_any_limit(index: BM25, questions: Questions) -> None:
    made = plan(Direct(index), questions, CountingEngine().lm(), budget=Budget(tokens=10**9))
    assert note(made, "--max-tokens 1,000,000,000") == "--max-tokens 1,000,000,000: enough"
    unbounded = replace(made, total=replace(made.total, tokens_out_most=None))
    assert note(unbounded, "--max-tokens 1,000,000,000").endswith(": enough as expected, not at most")


def test_twenty_questions_tell_of_all(index: BM25, asked: Questions, tmp_path: Path) -> None:
    made = plan(BlendFilter(index), asked, CountingEngine().lm())
    run, engine = done_by(BlendFilter(index), asked, tmp_path / "run")
    assert made.sampled == 20
    assert made.total.calls == pytest.approx(engine.calls, rel=0.05)
    words = sum(len(prompt.split()) for prompt in engine.prompts)
    assert made.total.tokens_in == pytest.approx(1.4 * words, rel=0.05)
    assert run.errors == 0


def wordy(prompt: str) -> str:
    """The offline reader at three times its length, which it puts in front: what is read off a reply stays."""
    result = read(prompt)
    return f"{' '.join(['hm'] * 2 * len(result.split()))} {result}" if len(result.split()) > 8 else result


def test_once_calls_are_journaled_replies_are_as_long_as_they_were(
    index: BM25, asked: Questions, tmp_path: Path
) -> None:
    """A model three times as wordy: the rest of a stopped run is planned by its own calls."""
    some, engine = asked[:30], CountingEngine(reply=wordy)

    def leave(count: int) -> None:
        if count == 10:
            raise CannotWrite("no room")

    method = ChainOfThought(index)
    with pytest.raises(CannotWrite):
        evaluate(method, some, lm=engine.lm(), run=tmp_path, concurrency=1, progress=Watching(leave))
    blind = plan(method, some, engine.lm())
    made = plan(method, some, engine.lm(), run=tmp_path, sample=99)
    before = engine.calls
    run = evaluate(method, some, lm=engine.lm(), run=tmp_path, concurrency=1, progress=False)
    assert (made.done, made.answers, run.errors) == (10, 30, 0)
    assert made.total.calls == pytest.approx(engine.calls - before, abs=2), "what was in flight is journaled too"
    total = run.metrics["ledger"]["total"]
    words_out = sum(len(wordy(prompt).split()) for prompt in engine.prompts[before:])
    assert made.total.tokens_out == pytest.approx(words_out, rel=0.15)
    words_in = sum(len(prompt.split()) for prompt in engine.prompts[before:])
    assert made.total.tokens_in == pytest.approx(words_in, rel=0.1)
    prompts = [prompt for prompt in engine.prompts[before:] if prompt.endswith("Answer:")]
    planned = next(stage for stage in made.stages if stage.stage == "short_answer")
    taken = sum(len(prompt.split()) for prompt in prompts) / len(prompts)
    assert planned.tokens_in / planned.calls == pytest.approx(taken, rel=0.1), "the replies of ten tell it"
    assert all(stage.measured for stage in made.stages)
    assert blind.total.tokens_out < 0.6 * total["tokens_out"], "the reader alone knows nothing of that"
    assert "replies: as long as earlier ones (answer, short_answer)" in lines(made)


# --- what counts as made --------------------------------------------------------------------------------------------


def test_of_a_finished_run_nothing_is_left(index: BM25, questions: Questions, tmp_path: Path) -> None:
    engine = CountingEngine()
    run, _ = done_by(Direct(index), questions, tmp_path / "run", engine=engine)
    made = plan(Direct(index), questions, engine.lm(), run=run.folder)
    assert (made.total.calls, made.stages, made.done) == (0, (), len(questions))
    assert made.text() == f"all {len(questions)} answers are there: nothing is left to ask\n"
    twice = plan(Direct(index), questions, engine.lm(), run=run.folder, repeats=2)
    assert (twice.total.calls, twice.done) == (len(questions), len(questions))


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
    assert note(made, "earlier runs") == (
        f"earlier runs: {100 * (1 - made.total.calls / alone.total.calls):.0f} % of the calls are journaled there, and "
        "not counted here"
    )


def test_a_question_that_failed_is_to_be_asked_again(index: BM25, questions: Questions, tmp_path: Path) -> None:
    async def before(stage: str, prompt: str) -> None:
        if questions[0].question in prompt:
            raise RuntimeError("out of luck")

    run, _ = done_by(Direct(index), questions, tmp_path / "run", engine=CountingEngine(before))
    assert run.errors == 1
    made = plan(Direct(index), questions, CountingEngine().lm(), run=run.folder)
    assert (made.total.calls, made.answers - made.done) == (1, 1)


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


class Own(dspy.Module):
    """A module of a user's own, which stops at every second question."""

    def __init__(self) -> None:
        super().__init__()
        self.guess = dspy.Predict("question -> answer")
        self.seen = 0

    async def aforward(self, question: str) -> dspy.Prediction:
        self.seen += 1
        if self.seen % 2:
            raise ValueError("no")
        with dspy.context(adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
            return await self.guess.acall(question=question)


class WithAnother(dspy.Module):
    """One that asks a model which it holds under a name of its own."""

    def __init__(self, big: dspy.BaseLM) -> None:
        super().__init__()
        self.guess = dspy.Predict("question -> answer")
        self.big = big

    async def aforward(self, question: str) -> dspy.Prediction:
        with dspy.context(lm=self.big, adapter=dspy.ChatAdapter(use_json_adapter_fallback=False)):
            return await self.guess.acall(question=question)


def test_a_model_that_a_method_holds_is_not_asked_either(questions: Questions) -> None:
    engine = CountingEngine()
    big = engine.lm("big")
    method = WithAnother(big)
    made = plan(method, questions, engine.lm())
    assert engine.calls == 0
    assert method.big is big
    assert (made.total.calls, set(made.tokenisers)) == (len(questions), {"big"})


def test_a_rehearsal_that_fails_says_so(questions: Questions) -> None:
    made = plan(Own(), questions, CountingEngine().lm())
    assert made.failed == len(questions) // 2
    assert note(made, "errors").startswith(f"errors: {made.failed} of these ended in an error")
    assert made.total.calls == len(questions) // 2


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
    half = plan(ChainOfThought(index), questions, priced(Price(10, 30)), sample=len(questions) // 2)
    assert half.total.cost == pytest.approx(made.total.cost, rel=0.2)
    answer, short = made.stages
    assert answer.tokens_out_most == 256 * answer.calls
    assert answer.tokens_in_most == answer.tokens_in, "nothing of a model's stands in it"
    grown = (answer.tokens_out_most or 0) - answer.tokens_out
    assert (short.tokens_in_most or 0) - short.tokens_in == pytest.approx(grown, abs=len(questions))
    assert note(made, "cost") == "cost: $10 in and $30 out a million tokens; cached prompt tokens may cost less"


def test_a_model_that_thinks_may_write_more_at_most(index: BM25, questions: Questions) -> None:
    plain = plan(Direct(index), questions, connect("vllm/Qwen/Qwen2.5-7B-Instruct"))
    thinks = plan(Direct(index), questions, connect("vllm/Qwen/Qwen3-8B"))
    calls = len(questions)
    assert (thinks.total.tokens_out_most or 0) - (plain.total.tokens_out_most or 0) == 4096 * calls


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
    assert lines(unpriced)[-1] == "--max-cost $1: nobody knows whether that is enough"
    spent = replace(made, budget=Budget(calls=total.calls), spent=Amount(calls=1))
    assert ", 1 of it spent: not enough" in lines(spent)[-1]
    paid = replace(made, budget=Budget(dollars=1.0), spent=Amount(dollars=0.0606731234))
    assert "--max-cost $1, $0.06067 of it spent: " in lines(paid)[-1]
    run, engine = done_by(Direct(index), questions[:2], tmp_path / "run")
    assert plan(Direct(index), questions, engine.lm(), run=run.folder, budget=Budget(calls=9)).spent.calls == 2


# --- which questions, and what is asked wrongly ---------------------------------------------------------------------


def test_questions_are_spread_over_the_whole_set(asked: Questions) -> None:
    assert [each.id for each in spread(asked, 4)] == [asked[place].id for place in (10, 31, 52, 73)]
    assert spread(asked[:3], 20) == [*asked[:3]]


def test_calls_that_vary_are_given_as_a_range(index: BM25, asked: Questions) -> None:
    made = plan(SelfAsk(index), asked, CountingEngine().lm())
    assert made.total.fewest < made.total.most
    row = next(line for line in lines(made) if line.startswith("total"))
    assert f"{made.total.fewest} to {made.total.most}" in row
    assert any(line.startswith("calls vary from question to question") for line in lines(made))


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


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--ask-server",), "--ask-server shapes a plan: add --plan"),
        (("--plan-questions", 4), "--plan-questions shapes a plan: add --plan"),
        (("--plan", "--plan-questions", 0), "a plan from 0 questions: give 1 or more"),
        (("--plan", "--replay", "--run", "gone"), "a replay asks no model, so there is nothing to plan"),
    ],
)
def test_options_of_a_plan_that_has_none(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[object, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    command = Command(monkeypatch, capsys)
    result = command("eval", "qa", "--data", "sample", "--method", "cot", "--lm", "offline", *options)
    assert result.code == 2
    assert said in result.error
    assert not list(tmp_path.iterdir())


def test_the_command_goes_by_the_runs_own_folder_and_a_users_prices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path / "cache"))
    blendfilter = Command(monkeypatch, capsys)
    Path("own.toml").write_text('[models]\n"m" = { input = 100, output = 100 }\n', encoding="utf-8")
    with serve(reply="offline") as server:
        words = ("eval", "hotpotqa", "--data", "sample", "--lm", "m", "--api-base", server.url, "--method", "direct")
        assert blendfilter(*words, "--limit", 2, "--run", "two", "--no-html").code == 0
        bare = blendfilter("report", "two", "--no-html")
        assert "cost" not in bare.out
        result = blendfilter("report", "two", "--no-html", "--prices", "own.toml")
        assert "$0.0" in result.out
        assert Run("two").metrics["ledger"]["total"]["cost"] is None, "it is shown, not stored"
        again = blendfilter(*words, "--limit", 2, "--run", "two", "--no-html", "--prices", "own.toml")
        assert again.code == 0
        total = Run("two").metrics["ledger"]["total"]
        assert total["cost"] == pytest.approx((total["tokens_in"] + total["tokens_out"]) / 1e4)
        asked = server.stats()["requests"]
        left = blendfilter(*words, "--limit", 2, "--run", "two", "--plan")
        assert left.out == "all 2 answers are there: nothing is left to ask\n"
        assert server.stats()["requests"] == asked == 2

"""Each optimiser to its end over a filter and over a method; stopped at any call and begun again, the same program."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import dspy
import pytest
from compiled import (
    CAN,
    PROPOSED,
    anything,
    compile_small,
    exact,
    sample_questions,
    saved,
    silver_rows,
    student,
    written,
)
from scripted import ScriptedLM
from small_world import CountingEngine, journaled

from blendfilter.compiling.compile import compile_program
from blendfilter.compiling.optimisers import Effort
from blendfilter.compiling.silver import silver_examples, silver_metric
from blendfilter.errors import BadArgument, BadData, EmptyData, Leak, MissingExtra, UnknownName
from blendfilter.filters.filco.filter import FilCoFilter
from blendfilter.lm.model import connect
from blendfilter.modules.direct import Direct
from blendfilter.prompting import Prompts

pytestmark = pytest.mark.slow


class Killed(KeyboardInterrupt):
    """What no optimiser catches, and ends the work whoever raises it."""


@pytest.mark.parametrize(("kind", "optimizer"), CAN)
class TestToTheEnd:
    def test_with_a_scripted_model(self, kind: str, optimizer: str, tmp_path: Path) -> None:
        lm = ScriptedLM(written)
        done = compile_small(kind, optimizer, lm, tmp_path / "run")
        records = journaled(tmp_path / "run")
        # Whoever asks (student, teacher, answerer, proposer) is in the one journal, once.
        assert len({record["key"] for record in records}) == len(records) == lm.calls == done.spent.calls
        assert done.recipe.optimizer == optimizer
        assert (done.recipe.before.n, done.recipe.after.n) == (2, 2)
        if optimizer in ("mipro", "gepa"):
            assert any(PROPOSED in prompt for _, prompt in lm.prompts)
        else:
            assert any(predictor.demos for _, predictor in done.program.named_predictors())

    def test_with_the_offline_reader_and_again_without_a_call(self, kind: str, optimizer: str, tmp_path: Path) -> None:
        first = CountingEngine()
        once = saved(compile_small(kind, optimizer, first.lm(), tmp_path / "run"), tmp_path / "once.json")
        assert first.calls > 0
        silent = CountingEngine(reply=lambda prompt: pytest.fail("everything is journaled"))
        again = saved(compile_small(kind, optimizer, silent.lm(), tmp_path / "run"), tmp_path / "again.json")
        assert once == again
        assert str(tmp_path).encode() not in once

    @pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
    def test_stopped_and_begun_again_it_repeats_nothing(
        self, kind: str, optimizer: str, share: float, tmp_path: Path
    ) -> None:
        whole = CountingEngine()
        expected = saved(compile_small(kind, optimizer, whole.lm(), tmp_path / "whole"), tmp_path / "whole.json")
        at, engine = max(1, int(share * whole.calls)), CountingEngine()

        async def kill(_stage: str, _prompt: str) -> None:
            if engine.calls == at:
                raise Killed

        engine.before = kill
        with pytest.raises(Killed):
            compile_small(kind, optimizer, engine.lm(), tmp_path / "run", concurrency=1)
        kept = len(journaled(tmp_path / "run"))
        assert 0 < kept < whole.calls or at == 1
        rest = CountingEngine()
        done = compile_small(kind, optimizer, rest.lm(), tmp_path / "run", concurrency=3)
        assert rest.calls == whole.calls - kept
        assert saved(done, tmp_path / "run.json") == expected


def test_a_users_own_module_and_its_own_model_go_through_the_journal(tmp_path: Path) -> None:
    engine, own = CountingEngine(), CountingEngine()

    class Mine(dspy.Module):
        def __init__(self) -> None:
            super().__init__()
            self.reply = dspy.Predict("question -> answer")
            self.big = own.lm("big")

        def forward(self, question: str) -> dspy.Prediction:
            with dspy.context(lm=self.big):
                hint = dspy.Predict("question -> hint")(question=question).hint
            return dspy.Prediction(answer=self.reply(question=f"{question} {hint}").answer)

    rows = sample_questions()
    mine, how = Mine(), {"metric": exact, "optimizer": "labeled", "max_demos": 2}
    done = compile_program(mine, rows[:4], valset=rows[4:], lm=engine.lm(), run=tmp_path, **how)
    models = {record["model"] for record in journaled(tmp_path)}
    assert models == {"counting", "big"}
    assert len(journaled(tmp_path)) == engine.calls + own.calls
    assert [set(demo.keys()) for demo in done.program.reply.demos] == [{"question", "answer"}] * 2
    assert done.program.big.journal is None
    assert mine.reply.demos == []


@pytest.mark.parametrize(("optimizer", "kind"), [("mipro", "MIPROv2"), ("gepa", "GEPA")])
def test_searches_are_seeded_and_choose_by_what_they_do_not_learn_from(
    optimizer: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DSPy's own optimisers, whose arguments are looked at on the way."""
    made: list[dict[str, Any]] = []
    given: list[dict[str, Any]] = []

    class Looked(getattr(dspy, kind)):  # type: ignore[misc]
        def __init__(self, **how: Any) -> None:
            made.append(how)
            super().__init__(**how)

        def compile(self, student: dspy.Module, **sets: Any) -> dspy.Module:
            given.append(sets)
            return super().compile(student, **sets)

    monkeypatch.setattr(dspy, kind, Looked)
    compile_small("filco", optimizer, "offline", tmp_path, seed=7)
    assert made[0]["seed"] == 7
    if optimizer == "gepa":  # greedy, the same failures would bring the same instructions
        assert made[0]["reflection_lm"].kwargs["temperature"] == 1.0
    asked = [[each.question for each in given[0][name]] for name in ("trainset", "valset")]
    assert [len(each) for each in asked] == [2, 2]
    assert not set(asked[0]) & set(asked[1])


class TestTeacher:
    def test_it_fills_demonstrations_and_the_student_is_scored(self, tmp_path: Path) -> None:
        pupil, teacher = CountingEngine(), CountingEngine()
        compile_small("filco", "bootstrap", pupil.lm(), tmp_path, teacher=teacher.lm("teacher"))
        assert teacher.stages["helpful"] > 0
        assert teacher.stages["direct"] == 0  # whoever teaches, the metric's answers are the student's model's
        assert pupil.stages["helpful"] > 0

    def test_gepa_reflects_with_it(self, tmp_path: Path) -> None:
        pupil, teacher = ScriptedLM(written), ScriptedLM(written)
        compile_small("filco", "gepa", pupil, tmp_path, teacher=teacher)
        assert teacher.calls > 0
        assert "Missed:" in teacher.prompts[0][1] or "Superfluous" in teacher.prompts[0][1]
        assert not any(PROPOSED in prompt for _, prompt in pupil.prompts if "JSON object" in prompt)


class TestLabeled:
    def test_each_predictor_shows_its_own_fields(self, tmp_path: Path) -> None:
        lm = ScriptedLM(written)
        done = compile_small("filco", "labeled", lm, tmp_path, max_demos=2)
        demos = done.program.helpful.demos
        assert [set(demo.keys()) for demo in demos] == [{"knowledge", "question", "ids"}] * 2
        last = lm.asked("helpful")[-1]
        assert all(f"Question: {demo['question']}\nIds:\n{demo['ids']}\n" in last for demo in demos)

    def test_rows_that_fill_no_predictor_take_no_place(self, tmp_path: Path) -> None:
        rows = sample_questions()
        bare = [dspy.Example(question=f"{at}?").with_inputs("question") for at in range(12)]
        how: dict[str, Any] = {"metric": anything, "lm": "offline", "optimizer": "labeled", "max_demos": 2}
        done = compile_program(Direct(), [*bare, *rows[:2]], valset=rows[3:4], run=tmp_path, **how)
        assert {demo["question"] for demo in done.program.direct.demos} == {each.question for each in rows[:2]}

    def test_the_seed_draws_them(self, tmp_path: Path) -> None:
        done = [compile_small("filco", "labeled", "offline", tmp_path / str(seed), seed=seed) for seed in range(4)]
        shown = {tuple(demo["question"] for demo in each.program.helpful.demos) for each in done}
        assert len(shown) > 1


class TestDemoTokens:
    def test_the_limit_holds_for_each_predictor(self, tmp_path: Path) -> None:
        free = compile_small("filco", "labeled", "offline", tmp_path, max_demos=3)
        sizes = [words(demo) for demo in free.program.helpful.demos]
        limit = sum(sizes) - 1
        held = compile_small("filco", "labeled", "offline", tmp_path / "held", max_demos=3, max_demo_tokens=limit)
        kept = [words(demo) for demo in held.program.helpful.demos]
        assert sorted(kept) == sorted(sizes)[:2]
        assert held.recipe.settings["demos_dropped"] == 2  # one of either predictor
        assert held.recipe.settings["tokeniser"].startswith("words")

    def test_zero_leaves_none(self, tmp_path: Path) -> None:
        done = compile_small("filco", "labeled", "offline", tmp_path, max_demo_tokens=0)
        assert not any(each.demos for _, each in done.program.named_predictors())


def words(demo: Any) -> int:
    return sum(len(str(text).split()) for name in ("knowledge", "question", "ids")
               for text in (demo[name] if isinstance(demo[name], list) else [demo[name]]))  # fmt: skip


class TestRefused:
    """Before any call, and before anything is written."""

    @pytest.fixture(autouse=True)
    def _nothing_happened(self, tmp_path: Path) -> Any:
        self.engine = CountingEngine(reply=lambda prompt: pytest.fail("nobody is asked"))
        yield
        assert not (tmp_path / "run").exists()

    def refused(self, tmp_path: Path, kind: str = "filco", optimizer: str = "bootstrap", **how: Any) -> None:
        compile_small(kind, optimizer, self.engine.lm(), tmp_path / "run", **how)

    def test_an_optimiser_that_does_not_exist(self, tmp_path: Path) -> None:
        with pytest.raises(UnknownName, match=r"no optimiser 'bootstrp'\. Did you mean 'bootstrap'"):
            self.refused(tmp_path, optimizer="bootstrp")

    def test_one_that_can_do_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(BadArgument, match=r"labeled can do nothing for BlendFilter.*use bootstrap"):
            self.refused(tmp_path, "blendfilter", "labeled")

    def test_one_whose_package_is_missing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "optuna", None)
        with pytest.raises(MissingExtra, match=r"the optimiser mipro needs 'optuna': pip install '.\[compile\]'"):
            self.refused(tmp_path, optimizer="mipro")

    def test_a_question_in_both_sets(self, tmp_path: Path) -> None:
        rows = sample_questions()
        twin = dspy.Example(question=f"  {rows[0].question.upper()}", answer="x").with_inputs("question")
        with pytest.raises(Leak, match=r"question '  [A-Z ]+.* is in the training set and in the set held back"):
            compile_program(Direct(), rows[:3], valset=[twin], metric=exact, lm=self.engine.lm(), run=tmp_path / "run")

    @pytest.mark.parametrize(
        ("how", "said"),
        [
            ({"max_demos": -1}, "max_demos is -1"),
            ({"trials": 0}, "trials is 0"),
            ({"candidates": 1}, "candidates is 1"),
            ({"metric_calls": 0}, "metric_calls is 0"),
            ({"concurrency": 0}, "concurrency is 0"),
            ({"max_demo_tokens": -1}, "max_demo_tokens is -1"),
            ({"seed": -1}, "seed is -1"),
        ],
    )
    def test_numbers_out_of_range(self, how: dict[str, Any], said: str, tmp_path: Path) -> None:
        with pytest.raises(BadArgument, match=said):
            self.refused(tmp_path, **how)

    def test_no_examples_or_no_inputs(self, tmp_path: Path) -> None:
        rows, how = sample_questions(), {"metric": exact, "lm": self.engine.lm(), "run": tmp_path / "run"}
        with pytest.raises(EmptyData, match="training set is empty"):
            compile_program(Direct(), [], valset=rows, **how)
        with pytest.raises(BadArgument, match=r"example 0 of the set held back is no dspy.Example with its inputs"):
            compile_program(Direct(), rows, valset=[dspy.Example(question="x")], **how)

    def test_what_is_no_module_or_asks_nobody(self, tmp_path: Path) -> None:
        rows, how = sample_questions(), {"metric": exact, "lm": self.engine.lm(), "run": tmp_path / "run"}
        with pytest.raises(BadArgument, match=r"is no dspy.Module"):
            compile_program("direct", rows[:3], valset=rows[3:], **how)  # type: ignore[arg-type]
        with pytest.raises(BadArgument, match="has no predictor"):
            compile_program(dspy.Module(), rows[:3], valset=rows[3:], **how)

    def test_an_override_without_instructions(self, tmp_path: Path) -> None:
        (tmp_path / "own" / "filco").mkdir(parents=True)
        (tmp_path / "own" / "filco" / "sentences.j2").write_text("{{ knowledge }} {{ question }}\nIds:")
        deaf = FilCoFilter(prompts=Prompts(tmp_path / "own"))
        rows = silver_examples(silver_rows())
        with pytest.raises(BadData, match=r"sentences.j2 does not render \{\{ instructions \}\}.*'helpful'"):
            compile_program(
                deaf, rows[:4], valset=rows[4:], metric=silver_metric(), lm=self.engine.lm(), run=tmp_path / "run"
            )


def test_efforts_default_is_small_enough_to_be_run_by_mistake() -> None:
    assert Effort() == Effort(demos=4, candidates=4, trials=8, metric_calls=None, threads=4)


def test_the_recipe_says_how_it_was_reached(tmp_path: Path) -> None:
    done = compile_small("filco", "mipro", "offline", tmp_path, task="nq", measure="strinc", note="made up")
    told = json.loads(saved(done, tmp_path / "p.json"))["metadata"]["recipe"]
    assert told["module"] == "FilCoFilter"
    names = ("task", "measure", "optimizer", "lm", "seed")
    assert [told[name] for name in names] == ["nq", "strinc", "mipro", "offline", 1]
    assert told["settings"]["metric"] == {"agreement": 1.0, "answer": 0.5, "tokens": 0.1, "threshold": 0.55}
    assert told["settings"] | {"candidates": 2, "trials": 2, "max_demos": 1} == told["settings"]
    assert (told["data"]["n_train"], told["data"]["n_valid"], len(told["trained_on"])) == (4, 2, 6)
    assert told["fields"]["helpful"] == ["offer_none", "knowledge", "question", "ids"]
    assert told["templates"]["helpful"].startswith("filco/sentences ")
    assert set(told["versions"]) == {"blendfilter", "dspy"}
    assert told["note"] == "made up"


def test_the_student_is_left_as_it_was(tmp_path: Path) -> None:
    whole = student("blendfilter")
    before = whole.dump_state()
    rows = sample_questions()
    compile_program(whole, rows[:3], valset=rows[3:], metric=exact, lm=connect("offline"), run=tmp_path, max_demos=1)
    assert whole.dump_state() == before

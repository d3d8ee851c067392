"""The pipeline's stages by gold: methods that what knows the answer runs, and what their prompts should bring."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import dspy
import pytest
import scoring_models
from small_world import Command

from blendfilter import BM25, Passage, evaluate, load
from blendfilter.asking import TaskWording
from blendfilter.errors import BadArgument, EmptyData
from blendfilter.filters.registry import make_filter
from blendfilter.lm.checkpoints import trained_on
from blendfilter.modules.methods import make_method
from blendfilter.records import Question
from blendfilter.resources import sample
from blendfilter.tasks.base import Questions
from blendfilter.text import question_digest
from blendfilter.training.recipes import read_recipe
from blendfilter.training.stages import (
    SHARES,
    GoldTeacher,
    StageExample,
    TaughtMethod,
    apart,
    drawn,
    facts_of,
    gold_passages,
    stage_examples,
)

PIER = Passage("pier", "Orm Pier", "Orm Pier stands in Tolm. It was built by Ada Brennock. It opened in 1871.")
ADA = Passage("ada", "Ada Brennock (builder)", "Ada Brennock was a builder of piers. She was born in Oddle.")
OTHERS = (
    Passage("tolm", "Tolm", "Tolm is a town with a pier, by which ships lie."),
    Passage("honey", "Honey", "Honey is sold where the builder of a hive was born."),
)
QUESTION = Question(
    "q1", "Where was the builder of Orm Pier born?", ("Oddle",), ("Ada Brennock (builder)", "Orm Pier"),
    (("Ada Brennock (builder)", "Orm Pier"),), (("Ada Brennock (builder)", 1), ("Orm Pier", 1)),
)  # fmt: skip
REASONING = "Orm Pier: It was built by Ada Brennock. Ada Brennock: She was born in Oddle.\nSo the answer is Oddle."


def index(*passages: Passage) -> BM25:
    return BM25.build(list(passages))


def questions(*items: Question, task: str = "hotpotqa") -> Questions:
    return Questions(items, load(task, "sample", limit=1).task)


def targets(made: list[StageExample]) -> dict[str, set[str]]:
    return {stage: {each.target for each in made if each.stage == stage} for stage in {each.stage for each in made}}


class TestTargets:
    def test_of_every_stage(self) -> None:
        """Both gold passages are found: the one that the question names comes first in the reasoning."""
        made = targets(stage_examples(questions(QUESTION), index(OTHERS[0], PIER, ADA), k=3))
        assert made.keys() == SHARES.keys()
        assert made["external"] == {REASONING}
        assert made["answer"] == {REASONING}
        assert made["direct"] == made["short_answer"] == {"Oddle"}
        assert made["internal"] == {PIER.text}
        assert made["topic"] == {"Orm Pier"}
        assert made["relevant"] == {"Yes", "No"}
        (lines,) = {frozenset(line[3:] for line in target.split("\n")) for target in made["check"]}
        assert lines == {"relevant - It was built by Ada Brennock.", "relevant - She was born in Oddle.", "irrelevant"}

    def test_ids_are_the_numbers_of_the_gold_passages_as_the_prompt_has_them(self) -> None:
        made = stage_examples(questions(QUESTION), index(OTHERS[0], PIER, ADA), k=3)
        for example in made:
            if example.stage not in ("ids", "judge"):
                continue
            lines = [line for line in example.prompt.split("\n") if line.startswith("knowledge ")]
            gold = [line[10] for line in lines if "| Ada" in line or "| Orm" in line]
            assert len(gold) == 2
            assert example.target.split("\n")[-1].removeprefix("Ids: ") == ", ".join(gold)

    def test_a_fact_is_the_supporting_sentence_else_the_one_with_the_answer_else_the_first(self) -> None:
        unmarked = Question("q", "Where was the builder of Orm Pier born?", ("Oddle",), QUESTION.gold_titles)
        assert facts_of(unmarked, [PIER, ADA]) == ["Orm Pier stands in Tolm.", "Ada Brennock: She was born in Oddle."]
        cut = Passage("ada", ADA.title, "Ada Brennock was a builder of piers.")  # the supporting sentence is not in it
        assert facts_of(QUESTION, [cut]) == ["Ada Brennock was a builder of piers."]

    def test_a_reasoning_names_what_its_prompt_shows(self) -> None:
        made = stage_examples(questions(QUESTION), index(PIER, *OTHERS), k=3, add_gold=0.0)
        assert {each.target for each in made if each.stage == "external"} == {
            "Orm Pier: It was built by Ada Brennock.\nSo the answer is Oddle."
        }

    def test_strategyqa_has_its_facts_and_says_none(self) -> None:
        question = Question(
            "s", "Could a pier be sold?", ("no",), ("Elsewhere",), metadata={"facts": ["Piers are public.", "A sale …"]}
        )
        made = targets(stage_examples(questions(question, task="strategyqa"), index(PIER, *OTHERS), k=2))
        assert made["external"] == {"Piers are public. A sale …\nSo the answer is No."}
        assert made["direct"] == {"No"}
        assert made["ids"] == {"none"}
        assert made["judge"] == {"0: irrelevant\n1: irrelevant\nIds: none"}

    def test_where_no_none_is_offered_a_list_without_gold_has_no_ids(self) -> None:
        question = Question("x", "Where was the builder of the pier born?", ("Oddle",), ("Elsewhere",))
        made = targets(stage_examples(questions(question), index(PIER, *OTHERS), k=2))
        assert not {"ids", "judge"} & made.keys()
        assert made["check"] == {"0: irrelevant\n1: irrelevant"}


class TestPrompts:
    @pytest.mark.parametrize("name", [None, "one-call", "pointwise"])
    def test_a_method_that_is_run_by_gold_answers_right_by_what_it_kept(self, name: str | None, tmp_path: Path) -> None:
        """So the package's own readers read each target as it is meant."""
        asked = load("hotpotqa", "sample", limit=4)
        wording = TaskWording.of("hotpotqa").with_demos("none")
        found, teacher = BM25.build(sample("corpus.jsonl")), GoldTeacher(wording)
        for question in asked:
            teacher.learn(question, gold_passages(question, found))
        select = None if name is None else make_filter(name, wording=wording)
        method = make_method("blendfilter", found, k=5, task=wording, filter=select)
        run = evaluate(method, asked, lm=teacher.lm, run=tmp_path / "run")
        assert run.scores["em"] == 1.0
        assert not any(value for flag, value in run.metrics["flags"].items())
        assert run.metrics["retrieval"]["kept"]["precision"] == 1.0

    def test_they_are_those_that_a_run_sends(self) -> None:
        """The same method, asked by another model, sends the prompt that the example has."""
        from scripted import ScriptedLM

        made = stage_examples(questions(QUESTION), index(PIER, ADA, *OTHERS), k=4, add_gold=0.0)
        wording = TaskWording.of("hotpotqa").with_demos("none")
        method = make_method("direct-retrieval", index(PIER, ADA, *OTHERS), k=4, task=wording)
        lm = ScriptedLM(["Oddle"])
        with dspy.context(lm=lm):
            method(question=QUESTION.question)
        assert lm.prompts[0] in [(each.stage, each.prompt) for each in made]

    def test_they_come_in_the_same_order_each_time(self) -> None:
        found, asked = BM25.build(sample("corpus.jsonl")), load("hotpotqa", "sample", limit=3)
        assert stage_examples(asked, found, seed=1) == stage_examples(asked, found, seed=1)

    def test_gold_that_is_not_found_is_put_among_the_hits_of_a_share_of_the_questions(self) -> None:
        found = index(PIER, ADA, *OTHERS)
        taught = [TaughtMethod("direct-retrieval", "pointwise")]
        asked = Question("q2", "Which ships lie by the town of Tolm?", ("none",), ("Ada Brennock (builder)",))

        def seen(share: float) -> dict[str, str]:
            made = stage_examples(questions(asked), found, k=1, methods=taught, add_gold=share)
            return {each.prompt.split("\n")[-3]: each.target for each in made if each.stage == "relevant"}

        assert seen(0.0) == {f"Passage: {OTHERS[0].line}": "No"}
        assert seen(1.0) == {f"Passage: {ADA.line}": "Yes"}

    def test_a_stage_that_gold_knows_nothing_of_is_one_line(self) -> None:
        with pytest.raises(BadArgument, match="gold says nothing of what the stage 'step' should write"):
            stage_examples(questions(QUESTION), index(PIER, ADA), methods=[TaughtMethod("self-ask")])

    def test_questions_without_gold_teach_nothing(self) -> None:
        with pytest.raises(EmptyData, match="names its gold passages"):
            stage_examples(questions(Question("q", "Who?", ("Ada",))), index(PIER))


def made_up(stage: str, n: int, target: str = "x") -> list[StageExample]:
    return [StageExample(stage, f"{stage} {target} {i}", target, "?") for i in range(n)]


class TestDrawing:
    def test_each_stage_has_its_share_and_relevant_is_balanced(self) -> None:
        made = [*made_up("relevant", 50, "Yes"), *made_up("relevant", 200, "No"), *made_up("check", 100)]
        chosen = drawn(made, 40, shares={"relevant": 3, "check": 1})
        assert Counter((each.stage, each.target) for each in chosen) == {
            ("relevant", "Yes"): 15, ("relevant", "No"): 15, ("check", "x"): 10,
        }  # fmt: skip
        assert chosen == drawn(made, 40, shares={"relevant": 3, "check": 1})
        assert chosen != drawn(made, 40, shares={"relevant": 3, "check": 1}, seed=1)

    def test_a_stage_gives_no_more_than_it_has(self) -> None:
        assert len(drawn([*made_up("check", 3), *made_up("ids", 30)], 20, shares={"check": 1, "ids": 1})) == 13


def test_training_questions_share_no_gold_passage_with_others() -> None:
    other = Question("q9", "What is honey?", ("food",), ("Honey",))
    near = Question("q8", "Who built Orm Pier?", ("Ada",), ("Orm Pier",))
    again = Question("q7", "where was the builder of Orm Pier born", ("Oddle",), ("Quite Another",))
    assert apart(questions(other, near, again), [QUESTION]).items == (other,)
    with pytest.raises(EmptyData, match="shares its gold passages"):
        apart(questions(near), [QUESTION])


class TestCommand:
    """`blendfilter train stages`, a tiny model on the sample world."""

    WORDS = ("train", "stages", "--task", "hotpotqa", "--data", "sample", "--limit", 4, "--examples", 12)

    @pytest.mark.slow
    def test_trains_on_every_stage_and_says_of_what(self, blendfilter: Command, here: Path) -> None:
        pytest.importorskip("peft", reason="training needs the extra [train]")
        base = scoring_models.llama(positions=2048)
        words = (*self.WORDS, "--base", base, "--epochs", 1, "--batch-size", 4, "--max-input-tokens", 2048)
        done = blendfilter(*words, "--out", "model", "--device", "cpu")
        assert done.code == 0, done.err
        assert "examples: relevant 4, check 2, judge 1" in done.err
        assert "model: model (hf/model)" in done.out
        recipe = read_recipe(here / "model")
        assert (recipe["part"], recipe["task"], recipe["demos"]) == ("stages", "hotpotqa", "none")
        assert sum(recipe["stages"].values()) == recipe["examples"]["n"]
        assert trained_on(here / "model") <= {question_digest(each.question) for each in load("hotpotqa", "sample")}

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (("--base", "gone"), "no model 'gone'"),
            (("--base", "BASE", "--prompts", "paper"), "leave --prompts out"),
            (("--base", "BASE", "--stage", "relevants"), "no stage 'relevants'"),
            (("--base", "BASE", "--add-gold", 2), "give a share of the questions"),
            (("--base", "BASE", "--schedule", "lines"), "Invalid value for '--schedule': 'lines' is not one of"),
        ],
    )
    def test_what_is_wrong_is_one_line(self, blendfilter: Command, more: tuple[object, ...], message: str) -> None:
        pytest.importorskip("peft", reason="training needs the extra [train]")
        more = tuple(scoring_models.llama() if word == "BASE" else word for word in more)
        refused = blendfilter(*self.WORDS, *more, "--out", "model")
        assert refused.code == 2
        assert message in refused.err
        assert len(refused.notices) == 1

    def test_questions_to_evaluate_on_are_left_out(self, blendfilter: Command, here: Path) -> None:
        pytest.importorskip("peft", reason="training needs the extra [train]")
        (here / "held.jsonl").write_text(sample("questions.jsonl").read_text(encoding="utf-8"), encoding="utf-8")
        refused = blendfilter(
            *self.WORDS, "--base", scoring_models.llama(), "--exclude", "held.jsonl", "--out", "model"
        )
        assert refused.code == 2
        assert "is one to evaluate on, or shares its gold passages" in refused.err

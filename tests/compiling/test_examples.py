"""Training sets: splits by a seed; CDIT's pairs, their metric, and a judge compiled on them."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import dspy
import pytest
from scripted import ScriptedLM

from blendfilter.compiling.compile import Compiled, compile_program
from blendfilter.compiling.examples import consistency, consistency_examples, drawn
from blendfilter.compiling.programs import (
    load_program,
    save_program,
    state_of,
)
from blendfilter.errors import BadData, EmptyData
from blendfilter.filters.cdit import PHI1, CDITFilter, Rule
from blendfilter.lm.offline import read
from blendfilter.modules.direct import Direct
from blendfilter.records import Passage, Question
from blendfilter.retrieval.callables import as_retriever
from blendfilter.tasks.base import Questions
from blendfilter.tasks.loading import TASKS


def rows_of(*questions: str) -> list[dspy.Example]:
    return [dspy.Example(question=each, answer=str(at)).with_inputs("question") for at, each in enumerate(questions)]


def test_a_question_that_comes_twice_is_taken_once_and_the_seed_decides() -> None:
    rows = rows_of("Who kept it?", "who kept  IT", "Where?", "When?")
    assert {each.answer for each in drawn(rows, 3, seed=5)} == {"0", "2", "3"}, "the first spelling stays"
    with pytest.raises(EmptyData, match="there are 3 different questions, fewer than 4"):
        drawn(rows, 4, seed=5)
    many = rows_of(*(f"Question {at}?" for at in range(20)))
    assert drawn(many, 5, seed=1) == drawn(many, 5, seed=1) != drawn(many, 5, seed=2)


def passage(name: str, at: int = 0) -> Passage:
    return Passage(f"{name}{at}", name, f"{name} is told of here, {at}.", 0.5)


def question(number: int, *gold: str, context: tuple[Passage, ...] = ()) -> Question:
    return Question(str(number), f"Who kept the light of rock {number}?", ("Ada",), gold, (gold,), context=context)


def questions(*items: Question) -> Questions:
    return Questions(items, TASKS["hotpotqa"])


OWN = tuple(passage(name, at) for at in range(2) for name in ("Gold", "Lead", "Tin"))
"""Two passages each of one gold title and two others."""
TEN = questions(*(question(number, "Gold", context=OWN) for number in range(10)))


def pairs_in(examples: list[dspy.Example]) -> list[tuple[str, bool]]:
    return [(pair.passages[0].id, pair.consistent) for each in examples for pair in each.pairs]


class TestPairs:
    def test_gold_is_consistent_and_what_else_is_found_is_not(self) -> None:
        (made,) = consistency_examples(TEN[:1])
        assert {title for title, consistent in pairs_in([made]) if consistent} <= {"Gold0", "Gold1"}
        assert Counter(consistent for _, consistent in pairs_in([made])) == {True: 1, False: 1}
        for pair in made.pairs:
            assert pair.consistent is pair.passages[0].title.startswith("Gold")
            assert (pair.verdict, pair.passage) == (str(pair.consistent), pair.passages[0].line)
            assert pair.rules == [PHI1.line]
            assert set(pair.inputs().keys()) == {"question", "passages"}
            assert pair.passages[0].score is None  # which index found it says nothing

    def test_as_many_of_either(self) -> None:
        """Four others are there, and two of gold: more than two of either would not be balanced."""
        for example in consistency_examples(TEN, negatives=4):
            assert Counter(consistent for _, consistent in pairs_in([example])) == {True: 2, False: 2}
            assert len({pair.passage for pair in example.pairs}) == 4

    def test_the_seed_chooses_whatever_else_is_asked(self) -> None:
        whole = consistency_examples(TEN)
        assert pairs_in(consistency_examples(TEN)) == pairs_in(whole)
        assert pairs_in(consistency_examples(TEN[3:])) == pairs_in(whole[3:])
        assert pairs_in(consistency_examples(TEN, seed=1)) != pairs_in(whole)
        first = [each.pairs[0].consistent for each in whole]
        assert {True, False} == set(first)  # neither kind always comes first
        assert len({pair for pair, _ in pairs_in(whole)}) > 3

    def test_questions_that_give_no_pair_are_left_out(self) -> None:
        some = questions(
            question(1, "Gold", context=OWN), question(2, "Gold", context=(OWN[0],)), question(3, context=OWN)
        )
        assert [each.id for each in consistency_examples(some)] == ["1"]


def judged(verdict: bool | None, reason: str = "") -> dspy.Prediction:
    return dspy.Prediction(kept=[], verdicts=[verdict], reason=reason)


class TestMetric:
    PAIR = dspy.Example(consistent=False, passage="Lead | Lead is told of here.")

    def test_right_and_wrong(self) -> None:
        verdicts, gold = [judged(result) for result in (False, True, None)], dspy.Example(consistent=True, passage="")
        assert [consistency(self.PAIR, each) for each in verdicts] == [1.0, 0.0, 0.0]
        assert [consistency(gold, each) for each in verdicts] == [0.0, 1.0, 0.0]
        assert [consistency(self.PAIR, each, trace=[]) for each in verdicts] == [True, False, False]

    def test_a_verdict_of_the_second_request_shows_no_first_reply(self) -> None:
        """It is right, and what was replied at first is no demonstration."""
        second = dspy.Prediction(kept=[], verdicts=[False], reason="", flags={"unread_verdict": 1})
        assert consistency(self.PAIR, second) == 1.0
        assert consistency(self.PAIR, second, trace=[]) is False


def by_title(stage: str, prompt: str) -> str:
    """A model that always says True, and False where a demonstration shows it a rejected passage."""
    if stage != "consistent":
        return read(prompt)
    asked_now = re.findall(r"Passage: (\w+) \|", prompt)[-1]
    rejected = re.findall(r"Passage: (\w+) \|[^\n]*\n[^\n]*\nVerdict \(True or False\):\s+False", prompt)
    return "False" if asked_now in rejected else "True"


def compiled(folder: Path, lm: Any, optimizer: str = "labeled", **options: Any) -> Compiled:
    drawn_ten = drawn(consistency_examples(TEN), 10, seed=0)
    train, valid = ([pair for each in half for pair in each.pairs] for half in (drawn_ten[:6], drawn_ten[6:]))
    select = options.pop("select", None) or CDITFilter()
    return compile_program(
        select, train, valset=valid, metric=consistency, run=folder, optimizer=optimizer, lm=lm,
        task="hotpotqa", measure="consistency phi1", max_demos=12, candidates=2, trials=2, **options,
    )  # fmt: skip


class TestCompiled:
    def test_a_model_that_learns_is_better_afterwards(self, tmp_path: Path) -> None:
        """Twelve labelled rows: what they reject is rejected in questions that no prompt showed."""
        lm = ScriptedLM(by_title)
        done = compiled(tmp_path / "run", lm)
        assert done.recipe.before.value == 0.5
        assert done.recipe.after.value == 1.0
        assert (done.recipe.before.n, done.recipe.settings["metric"]) == (8, "consistency")
        # The prompt shows a demonstration as it shows what it asks.
        assert re.search(
            r"Passage: Gold \|[^\n]*\nQuestion: Who kept[^\n]*\nVerdict \(True or False\):\s+True\n", lm.prompts[-1][1]
        )


REWORDED = Rule("own", PHI1.components, "Both say the same.")


class TestLoaded:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        done = compiled(tmp_path / "run", ScriptedLM(by_title))
        return save_program(done.program, tmp_path / "cdit.json", done.recipe)

    def test_into_a_filter_and_a_method_that_has_one(self, path: Path) -> None:
        select = CDITFilter()
        plain = select.judge.identity()["program"]
        recipe = load_program(select, path)
        assert recipe.measure == "consistency phi1"
        assert select.judge.identity()["program"] != plain
        with dspy.context(lm=ScriptedLM(by_title)):
            result = select(question="Who kept the light of rock 99?", passages=OWN[:2])
        assert result.verdicts == [True, False]
        method = Direct(as_retriever(lambda query, k: list(OWN)), filter=CDITFilter())
        load_program(method, path)
        assert method.select.judge.identity() == select.judge.identity()

    @pytest.mark.parametrize(
        ("rules", "have"), [(["phi1", "phi2"], "phi1+phi2"), (["phi2"], "phi2"), ([REWORDED], "own")]
    )
    def test_not_into_a_judge_of_other_rules(self, rules: list[Any], have: str, path: Path) -> None:
        """A verdict is shown under the rules that it was given by: at five and at six are alike under phi1 alone."""
        method = Direct(as_retriever(lambda query, k: list(OWN)), filter=CDITFilter(rules=rules))
        for module in (CDITFilter(rules=rules), method):
            before = state_of(module)
            found = (
                rf"'judge' was compiled with 'the rules phi1 \(\w+\)', and here it has 'the rules {re.escape(have)} "
            )
            with pytest.raises(BadData, match=found):
                load_program(module, path)
            assert state_of(module) == before

    def test_their_order_is_all_the_same(self, tmp_path: Path) -> None:
        done = compiled(tmp_path / "run", ScriptedLM(by_title), select=CDITFilter(rules=["phi1", "phi2"]))
        saved = save_program(done.program, tmp_path / "both.json", done.recipe)
        turned = CDITFilter(rules=["phi2", "phi1"])
        load_program(turned, saved)
        loaded, learned = ([dict(demo) for demo in each.judge.consistent.demos] for each in (turned, done.program))
        assert loaded == learned != []

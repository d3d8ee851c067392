"""The sample world's opposites, and the table of what a judge makes of them.

The pairs are a measuring instrument, so they are tested as one: balanced, labelled in one component, and not to be told
apart by the words that question and passage share.
"""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import dspy
import pytest
from compiled import judge_program
from scripted import ScriptedLM

from blendfilter import resources
from blendfilter.errors import BadData
from blendfilter.filters.cdit import COMPONENTS, PHI1, PHI2
from blendfilter.records import Passage
from blendfilter.retrieval.analyser import Analyser
from eval.opposites import BOTH, Confusion, Opposites, confusion, judging, load_opposites

PAIRS = load_opposites()
LIES_IN = {
    "polarity": "predicate", "agent": "subject", "object": "object", "time": "adverbial", "place": "adverbial",
    "attribute": "attributive",
}  # fmt: skip
ASKED_FOR = {"agent": ("who", "what", "which"), "object": ("whom", "what"), "time": ("when", "in which year"),
             "place": ("where",)}  # fmt: skip
BY_QUESTION: dict[str, list[Opposites]] = {}
for _pair in PAIRS:
    BY_QUESTION.setdefault(_pair.question, []).append(_pair)


def sides(pairs: list[Opposites]) -> tuple[Opposites, Opposites]:
    """The consistent and the inconsistent one of a question."""
    first, second = pairs
    return (first, second) if first.differs is None else (second, first)


class TestPairs:
    def test_each_question_has_a_consistent_passage_and_one_that_differs(self) -> None:
        for question, pairs in BY_QUESTION.items():
            assert len(pairs) == 2, question
            same, other = sides(pairs)
            assert (same.differs, same.component) == (None, None)
            assert other.component == LIES_IN[str(other.differs)]
            assert same.passage.title == other.passage.title  # nothing to go by

    def test_every_kind_weighs_the_same(self) -> None:
        counts = Counter(pair.differs for pair in PAIRS)
        assert counts == {None: 72, **dict.fromkeys(LIES_IN, 12)}
        assert set(LIES_IN.values()) == set(COMPONENTS)

    def test_what_the_rules_want(self) -> None:
        assert sum(not pair.wanted(PHI1.components) for pair in PAIRS) == 36
        assert sum(not pair.wanted((*PHI1.components, *PHI2.components)) for pair in PAIRS) == 72
        assert all(pair.wanted(COMPONENTS) is (pair.differs is None) for pair in PAIRS)

    @pytest.mark.parametrize("pair", [pair for pair in PAIRS if pair.differs in ASKED_FOR], ids=lambda pair: pair.id)
    def test_what_is_asked_for_is_not_what_differs(self, pair: Opposites) -> None:
        """What is asked for is open. A 'what' or 'which' that asks for the doer stands right before the verb."""
        wanted = pair.question.casefold()
        assert not wanted.startswith(ASKED_FOR[str(pair.differs)][0])
        if pair.differs == "agent":
            assert not re.match(r"(?:what|which)\b", wanted) or re.search(r"\b(?:did|do|does)\b", wanted)
        elif pair.differs == "object":
            assert not re.match(r"what (?:did|do|does)\b", wanted)
        else:
            assert not wanted.startswith(ASKED_FOR[str(pair.differs)][-1])

    def test_passages_of_a_question_have_nearly_its_words(self) -> None:
        words = Analyser()
        for question, pairs in BY_QUESTION.items():
            wanted = set(words(question))
            assert all(len(wanted & set(words(pair.passage.text))) >= len(wanted) / 3 for pair in pairs), question
            same, other = ({*words(pair.passage.text)} for pair in sides(pairs))
            assert len(same & other) >= len(same | other) / 6, question


def scripted_by(judge: Callable[[Opposites], str]) -> Callable[[str, str], str]:
    """A model that knows each pair by its prompt, and says what `judge` says of it."""

    def reply(stage: str, prompt: str) -> str:
        assert stage in ("consistent", "consistent_again")
        (pair,) = [each for each in PAIRS if f"Passage: {each.passage.line}\nQuestion: {each.question}\n" in prompt]
        return judge(pair)

    return reply


def table_of(judge: Callable[[Opposites], str], rules: tuple[str, ...] = ("phi1", "phi2")) -> Confusion:
    with dspy.context(lm=ScriptedLM(scripted_by(judge))):
        (table,) = confusion(judging(), PAIRS, [rules])
    return table


class TestConfusion:
    def test_a_judge_that_is_right(self) -> None:
        components = [*PHI1.components, *PHI2.components]
        table = table_of(lambda pair: str(pair.wanted(components)))
        assert table.balanced_accuracy == 1.0
        assert (table.total.n, table.total.accepted, table.total.rejected, table.total.right) == (144, 72, 72, 144)
        assert [row.kind for row in table.rows] == [
            "nothing", "predicate (polarity)", "subject (agent)", "object", "adverbial (place)", "adverbial (time)",
            "attributive (attribute)",
        ]  # fmt: skip
        assert table.rules == ("phi1", "phi2")
        assert table.identity["mode"] == "word"

    def test_a_judge_that_always_says_the_same_is_at_chance(self) -> None:
        for word in ("True", "False"):
            for rules in BOTH:
                assert table_of(lambda pair, word=word: word, rules).balanced_accuracy == 0.5

    def test_no_verdict_is_counted_apart_and_is_never_right(self) -> None:
        table = table_of(lambda pair: "True and False" if pair.differs == "time" else "True")
        (row,) = [row for row in table.rows if row.kind == "adverbial (time)"]
        assert (row.accepted, row.rejected, row.silent, row.right) == (0, 0, 12, 0)
        assert table.total.silent == 12

    def test_both_sets_are_asked_and_each_prompt_has_its_rules(self) -> None:
        lm = ScriptedLM(lambda stage, prompt: "True")
        with dspy.context(lm=lm):
            tables = confusion(judging(), PAIRS[:4], concurrency=2)
        assert [table.rules for table in tables] == list(BOTH)
        assert [PHI2.line in prompt for prompt in lm.prompts_of("consistent")] == [False] * 4 + [True] * 4

    def test_a_program_is_of_one_set_of_rules_and_the_other_asks_nobody(self, tmp_path: Path) -> None:
        lm = ScriptedLM(lambda stage, prompt: "True")
        program = judge_program(tmp_path / "cdit.json")
        with dspy.context(lm=lm):
            with pytest.raises(BadData, match=r"with 'the rules phi1 .*has 'the rules phi1\+phi2 .*rule="):
                confusion(judging(program=program), PAIRS[:2])
            assert lm.calls == 0
            (table,) = confusion(judging(program=program), PAIRS[:2], [("phi1",)])
        assert table.total.n == lm.calls == 2
        assert all(prompt.count("\nVerdict (True or False):\n") == 4 for prompt in lm.prompts_of("consistent"))


ROW: dict[str, object] = {
    "id": "1", "question": "Who lit it?", "title": "Lamp", "text": "Ada put it out.", "differs": "polarity",
    "component": "predicate",
}  # fmt: skip


class TestOwnPairs:
    def test_a_file_of_ones_own(self, tmp_path: Path) -> None:
        (tmp_path / "own.jsonl").write_text(json.dumps(ROW), encoding="utf-8")
        (pair,) = load_opposites(tmp_path / "own.jsonl")
        assert pair == Opposites("1", "Who lit it?", Passage("1", "Lamp", "Ada put it out."), "polarity", "predicate")

    @pytest.mark.parametrize(
        ("changed", "problem"),
        [
            ({"text": ""}, r"own\.jsonl.*'text' should be text"),
            ({"question": None}, "'question' should be text, found None"),
            ({"component": None}, "'differs' and 'component' are both null, or neither is"),
            ({"differs": 3}, "'differs' should be text or null, found 3"),
        ],
    )
    def test_a_row_that_is_not_whole(self, changed: dict[str, object], problem: str, tmp_path: Path) -> None:
        (tmp_path / "own.jsonl").write_text(json.dumps({**ROW, **changed}), encoding="utf-8")
        with pytest.raises(BadData, match=problem):
            load_opposites(tmp_path / "own.jsonl")


class TestRecipe:
    RECIPE = resources.programs().parent / "eval" / "opposites.py"

    def cook(self, *words: str) -> None:
        before, sys.argv = sys.argv, ["eval/opposites.py", *words]
        try:
            runpy.run_path(str(self.RECIPE), run_name="__main__")
        finally:
            sys.argv = before

    def test_it_prints_both_tables_and_replays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.chdir(tmp_path)
        self.cook("--limit", "12", "--run", "run")
        first = capsys.readouterr().out
        assert first.count("balanced accuracy") == 2
        journal = Path("run/journal.jsonl").read_bytes()
        assert len(journal.splitlines()) == 24
        table = Path("run/confusion.json").read_bytes()
        assert json.loads(table)["lm"] == "offline"
        self.cook("--limit", "12", "--run", "run")
        assert capsys.readouterr().out == first
        assert Path("run/journal.jsonl").read_bytes() == journal
        assert Path("run/confusion.json").read_bytes() == table

"""The offline reader on claims, dialogues and questions that want sentences: told apart by the instructions alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.asking import TaskWording
from blendfilter.lm.offline import read
from blendfilter.metrics import label
from blendfilter.modules.direct import ChainOfThought, Direct
from blendfilter.text import sentences

PIER = "Orm Pier | Orm Pier is an iron pier in Ormskerry, designed by Hanna Vell. It opened in 1890."
LAMP = "Orm Light | Orm Light flashes twice. It flashes so that ships know it."


def nothing(query: str, k: int) -> list[str]:
    return []


def direct(task: str, question: str, *lines: str) -> str:
    return Direct(nothing, task=task).direct.render(knowledge=list(lines), question=question)


def thinking(task: str, question: str, *lines: str) -> str:
    return ChainOfThought(nothing, task=task).answering.answer.render(knowledge=list(lines), question=question)


def concluding(task: str, question: str, reasoning: str) -> str:
    return ChainOfThought(nothing, task=task).answering.short_answer.render(context=reasoning, question=question)


class TestClaims:
    @pytest.mark.parametrize(
        ("claim", "said"),
        [
            ("Orm Pier was designed by Hanna Vell.", "SUPPORTS"),
            ("Orm Pier opened in 1890.", "SUPPORTS"),
            ("Orm Pier opened in 1871.", "REFUTES"),
            ("Orm Pier was designed by Ivo Stern.", "REFUTES"),
        ],
    )
    def test_overlap_decides_and_names_and_numbers_must_be_there(self, claim: str, said: str) -> None:
        assert read(direct("fever", claim, PIER, LAMP)) == said
        reasoning = read(thinking("fever", claim, PIER, LAMP))
        assert reasoning.endswith(f"\nSo the answer is {said}.")
        assert read(concluding("fever", claim, reasoning)) == said

    def test_the_third_label_is_given_only_where_it_is_offered(self) -> None:
        claim = "Bees dance at noon."
        assert read(direct("fever", claim, PIER)) == "REFUTES"
        assert read(direct("fever-nei", claim, PIER)) == "NOT ENOUGH INFO"
        assert read(direct("fever-nei", "Orm Pier opened in 1890.", PIER)) == "SUPPORTS"

    def test_multi_hop_prompts_end_in_a_label(self) -> None:
        told = TaskWording.of("fever").instructions["self_ask/step"]
        assert label(read(f"{told}\n\nQuestion: Orm Pier opened in 1890.\nSo the final answer is:")) == "REFUTES"

    @given(st.text(max_size=60), st.lists(st.text(max_size=60), max_size=3))
    def test_any_claim_gets_a_label_that_is_offered(self, claim: str, lines: list[str]) -> None:
        assert read(direct("fever", claim, *lines)) in ("SUPPORTS", "REFUTES")


class TestSentences:
    @pytest.mark.parametrize("task", ["eli5", "wow"])
    def test_the_best_sentence_is_the_answer(self, task: str) -> None:
        asked = "Why does Orm Light flash?"
        told = read(direct(task, asked, PIER, LAMP))
        assert "Orm Light" in told
        assert "Pier" not in told
        assert len(sentences(told)) <= 3
        reasoning = read(thinking(task, asked, PIER, LAMP))
        assert reasoning.splitlines()[-1] == f"So the answer is {told}"
        assert read(concluding(task, asked, reasoning)) == told

    def test_a_dialogue_is_read_from_its_one_line(self) -> None:
        assert "1890" in read(direct("wow", "I like iron piers. // Me too! // When did Orm Pier open?", LAMP, PIER))

    def test_it_says_where_it_knows_nothing(self) -> None:
        assert read(direct("eli5", "Why does it flash?")) == "Nothing given here tells about this."


def test_other_tasks_are_answered_as_ever() -> None:
    assert read(direct("nq", "when did orm pier open", PIER)) == "1890"
    assert read(direct("hotpotqa", "When did Orm Pier open?", PIER)) == "1890"
    assert read(direct("strategyqa", "Did Orm Pier open in 1890?", PIER)) == "Yes"

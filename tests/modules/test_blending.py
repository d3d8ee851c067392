"""Query generation blending: three queries, in order, from what the model was really asked."""

from __future__ import annotations

import asyncio
from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isle import EXTERNAL, LINES, Q_EX, Q_IN, QUESTION, replies, three_lists
from scripted import ScriptedLM

from blendfilter.errors import BadArgument
from blendfilter.modules.blendfilter import Blending, blend, used_queries, without_conclusion


def blended(shelf: Any, question: str = QUESTION, **settings: Any) -> tuple[dspy.Prediction, ScriptedLM]:
    lm = ScriptedLM(replies())
    with dspy.context(lm=lm):
        result = asyncio.run(Blending(shelf, **settings).acall(question=question))
    return result, lm


class TestBlend:
    @given(st.text(), st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1))
    def test_the_question_is_never_lost_and_all_is_one_line(self, augmentation: str, question: str) -> None:
        query = blend(augmentation, question)
        assert query.endswith(question)
        assert len(query.splitlines()) == 1

    @pytest.mark.parametrize(
        ("reasoning", "left"),
        [
            ("A b.\nSo the answer is C.", "A b."),
            ("A b. So the answer is C.", "A b."),
            ("A b.\nso the final answer is: C. D. E.\n", "A b."),
            ("A b.\nSo, the answer is C", "A b."),
            ("A b.\n**Therefore, the final answer is: C**", "A b."),
            ("A b. Thus the correct answer is **C**.", "A b."),
            ("So the answer is C.", ""),
            ("A b.", "A b."),
            ("So the answer is C.\nBut wait, A b.", "So the answer is C.\nBut wait, A b."),
            ("", ""),
        ],
    )
    def test_without_conclusion(self, reasoning: str, left: str) -> None:
        assert without_conclusion(reasoning) == left


class TestUsedQueries:
    @pytest.mark.parametrize(
        ("without", "left"),
        [
            ((), ("q", "q_ex", "q_in")),
            ("", ("q", "q_ex", "q_in")),
            ("q", ("q_ex", "q_in")),
            (["q_in"], ("q", "q_ex")),
            ("q,q_ex", ("q_in",)),
            (("q_in", "q"), ("q_ex",)),
        ],
    )
    def test_what_stays(self, without: Any, left: tuple[str, ...]) -> None:
        assert used_queries(without) == left


class TestBlending:
    def test_three_queries_and_what_each_finds(self) -> None:
        shelf = three_lists()
        result, lm = blended(shelf)
        assert result.queries == {"q": QUESTION, "q_ex": Q_EX, "q_in": Q_IN}
        assert list(result.queries) == ["q", "q_ex", "q_in"]
        assert result.retrieved == {name: list(found) for name, found in shelf.lists.items()}
        assert sorted(stage for stage, _ in lm.prompts) == ["external", "internal"]

    def test_k_ex_is_k_q_and_fetched_once(self) -> None:
        shelf = three_lists()
        _, lm = blended(shelf)
        assert sorted(query for query, _ in shelf.searches) == sorted([QUESTION, Q_EX, Q_IN])
        own = "\n".join(["Knowledge:", *LINES[:2], f"Question: {QUESTION}", "Let's think step by step."])
        assert lm.prompts_of("external")[0].endswith("\n" + own)
        assert lm.prompts_of("internal")[0].endswith(f"\nQuestion: {QUESTION}\nPassage (a few sentences):")
        assert not any(line in lm.prompts_of("internal")[0] for line in LINES)

    def test_the_conclusion_can_be_dropped(self) -> None:
        result, _ = blended(three_lists(), drop_conclusion=True)
        assert result.queries["q_ex"] == f"{EXTERNAL.splitlines()[0]} {QUESTION}"

    def test_there_is_none_to_drop_where_q_ex_is_left_out(self) -> None:
        with pytest.raises(BadArgument, match="drop_conclusion changes q_ex, which without leaves out"):
            Blending(three_lists(), without="q_ex", drop_conclusion=True)

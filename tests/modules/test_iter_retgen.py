"""ITER-RETGEN: each reasoning is searched with next, and only the newest passages are shown."""

from __future__ import annotations

import dspy
import pytest
from isle import EXTERNAL, LINES, PASSAGES, Q_EX, QUESTION, REASONING, TASKS, nothing, replies, three_lists
from scripted import ScriptedLM, scripted

from blendfilter.filters.extractive import FullFilter
from blendfilter.modules.base import Branch
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import ChainOfThought
from blendfilter.modules.iter_retgen import IterRetGen
from blendfilter.records import Passage


def run(method: dspy.Module, *reasonings: str) -> tuple[dspy.Prediction, ScriptedLM]:
    with scripted({"answer": reasonings, "short_answer": ["Ada Brennock"]}) as lm, dspy.context(lm=lm):
        return method(question=QUESTION), lm


def visible(prompt: str) -> list[str]:
    return [line for line in LINES if line in prompt]


class TestLoop:
    def test_the_second_iteration_searches_with_the_first_reasoning(self) -> None:
        shelf = three_lists()
        result, lm = run(IterRetGen(shelf, k=2), EXTERNAL, REASONING)
        assert shelf.searches == [(QUESTION, 2), (Q_EX, 2)]
        assert [visible(prompt) for prompt in lm.prompts_of("answer")] == [LINES[:2], LINES[1:3]]
        assert result.queries == {"q": QUESTION, "iter_2": Q_EX}
        assert result.branches["iter_2"] == Branch(list(PASSAGES[1:3]), list(PASSAGES[1:3]))
        assert (result.reasoning, result.answer, result.knowledge) == (REASONING, "Ada Brennock", list(PASSAGES[1:3]))
        assert f"\nContext:\n{REASONING}\nQuestion: {QUESTION}\n" in lm.prompts_of("short_answer")[0]
        assert [stage for stage, _ in result.calls] == ["answer", "answer", "short_answer"]

    def test_the_third_searches_with_the_second_alone(self) -> None:
        searches: list[str] = []

        def index(query: str, k: int) -> list[Passage]:
            searches.append(query)
            return [PASSAGES[len(searches) - 1]]

        result, lm = run(IterRetGen(index, iterations=3), "One.", "Two.", "Three.\nSo the answer is Ada.")
        assert searches == [QUESTION, f"One. {QUESTION}", f"Two. {QUESTION}"]
        assert [visible(prompt) for prompt in lm.prompts_of("answer")] == [[LINES[0]], [LINES[1]], [LINES[2]]]
        assert list(result.queries) == ["q", "iter_2", "iter_3"]


class TestShared:
    @pytest.mark.parametrize("task", TASKS)
    def test_one_call_serves_cot_retrieval_blendfilter_and_the_first_iteration(self, task: str) -> None:
        def keys(method: dspy.Module, stage: str) -> list[str]:
            with dspy.context(lm=ScriptedLM(replies(answer=EXTERNAL))):
                return [key for name, key in method(question=QUESTION).calls if name == stage]

        iterated = keys(IterRetGen(three_lists(), task=task), "answer")
        assert iterated[:1] == keys(BlendFilter(three_lists(), task=task), "external")
        assert iterated[:1] == keys(ChainOfThought(three_lists(), task=task), "answer")
        assert iterated[1] != iterated[0]


def test_name_and_arguments() -> None:
    method = IterRetGen(nothing, 3, iterations=4, filter=FullFilter())
    assert method.method_name == "iter-retgen"
    assert method.arguments() == {"k": 3, "iterations": 4, "filter": "FullFilter"}
    assert IterRetGen(nothing).arguments() == {"k": 5, "iterations": 2}

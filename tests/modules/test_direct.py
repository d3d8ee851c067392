"""The first baselines, and the prompts they share with BlendFilter."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from isle import LINES, PASSAGES, QUESTION, nothing, one_list, replies
from scripted import ScriptedLM

from blendfilter.errors import BadArgument
from blendfilter.filters.extractive import FullFilter
from blendfilter.modules.base import Branch
from blendfilter.modules.direct import ChainOfThought, Direct


def run(method: dspy.Module, **changed: Any) -> tuple[dspy.Prediction, ScriptedLM]:
    lm = ScriptedLM(replies(**changed))
    with dspy.context(lm=lm):
        return method(question=QUESTION), lm


class TestDirect:
    def test_alone_it_makes_one_call_over_the_question(self) -> None:
        result, lm = run(Direct())
        assert [stage for stage, _ in lm.prompts] == ["direct"]
        assert "Knowledge:" not in lm.prompts[0][1]
        assert lm.prompts[0][1].endswith(f"\n\nQuestion: {QUESTION}\nAnswer:")
        assert (result.answer, result.reasoning, result.knowledge, result.queries, result.branches) == (
            "Ada Brennock", "", [], {}, {},
        )  # fmt: skip

    def test_over_an_index_it_shows_what_the_question_retrieves(self) -> None:
        shelf = one_list()
        result, lm = run(Direct(shelf, k=4))
        assert shelf.searches == [(QUESTION, 4)]
        own = "\n".join(["Knowledge:", *LINES[:4], f"Question: {QUESTION}", "Answer:"])
        assert lm.prompts[0][1].endswith("\n" + own)
        assert result.knowledge == list(PASSAGES[:4])
        assert result.queries == {"q": QUESTION}
        assert result.branches == {"q": Branch(result.knowledge, result.knowledge)}


@pytest.mark.parametrize(
    ("method", "name", "arguments"),
    [
        (Direct(), "direct", {}),
        (Direct(nothing, k=7), "direct-retrieval", {"k": 7}),
        (ChainOfThought(), "cot", {}),
        (ChainOfThought(nothing), "cot-retrieval", {"k": 5}),
    ],
)
def test_names_and_arguments(method: Any, name: str, arguments: dict[str, Any]) -> None:
    assert (method.method_name, method.arguments()) == (name, arguments)


@pytest.mark.parametrize("kind", [Direct, ChainOfThought])
def test_without_an_index_there_is_nothing_to_filter(kind: type[Direct] | type[ChainOfThought]) -> None:
    with pytest.raises(BadArgument, match=f"{kind.__name__} without an index has nothing to filter: give it one"):
        kind(filter=FullFilter())

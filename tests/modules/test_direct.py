"""The first baselines, and the prompts they share with BlendFilter."""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from isle import LINES, PASSAGES, QUESTION, nothing, one_list, replies
from scripted import ScriptedLM

from blendfilter.errors import BadArgument
from blendfilter.filters.extractive import FullFilter
from blendfilter.lm.tokenisers import RULE
from blendfilter.modules.base import Branch
from blendfilter.modules.direct import ChainOfThought, Direct
from blendfilter.prompting import TemplateAdapter


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


# --- FilCo's cap of the prompt ---


def room(prompt: str) -> float:
    """Tokens by the rule of thumb, for a model whose tokeniser nobody knows."""
    return RULE.count(prompt)


def test_a_prompt_over_its_cap_loses_the_end_of_its_passages_and_no_demonstration() -> None:
    whole = Direct(nothing).direct
    bare = TemplateAdapter("direct").render(whole.signature, [], {"knowledge": LINES, "question": QUESTION})
    cap = int(room(bare)) - 20
    prompts = []
    for most in (None, cap):
        lm = ScriptedLM({"direct": ["Ada"]})
        with dspy.context(lm=lm):
            result = Direct(one_list(), k=5, max_input_tokens=most)(question=QUESTION)
        assert result.flags.get("input_cut", 0) == (most is not None)
        prompts.append(lm.prompts[-1][1])
    full, cut = (prompt.rpartition("Knowledge:\n") for prompt in prompts)
    assert full[0] == cut[0], "demonstrations are not counted: the paper has none"
    assert full[2].startswith(cut[2].partition("\nQuestion:")[0])
    assert cut[2].endswith(f"\nQuestion: {QUESTION}\nAnswer:")
    assert 18 < room(full[2]) - room(cut[2]) < 30


def test_a_cap_is_a_setting_of_direct_prompting_over_passages() -> None:
    assert Direct(nothing, max_input_tokens=1024).arguments() == {"k": 5, "max_input_tokens": 1024}
    for cap in (0, -1, 2.5):
        with pytest.raises(BadArgument, match="max_input_tokens"):
            Direct(nothing, max_input_tokens=cap)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="Direct without an index has none: leave it out"):
        Direct(max_input_tokens=9)

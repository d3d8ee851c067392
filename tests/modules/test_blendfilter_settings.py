"""BlendFilter as one sets it up: its arguments, filters and prompts of one's own, state that is saved and loaded."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import dspy
import pytest
from isle import (
    LINES,
    QUESTION,
    TASKS,
    nothing,
    replies,
    three_lists,
)  # fmt: skip
from scripted import ScriptedLM

from blendfilter.asking import TaskWording
from blendfilter.errors import BadArgument, BadData, UnknownName
from blendfilter.filters.base import Filter
from blendfilter.modules.blendfilter import BlendFilter


def ask(method: BlendFilter, question: str = QUESTION, **changed: Any) -> tuple[dspy.Prediction, ScriptedLM]:
    lm = ScriptedLM(replies(**changed))
    with dspy.context(lm=lm):
        return asyncio.run(method.acall(question=question)), lm


class TestSettings:
    def test_none_and_topic_follow_the_task_unless_one_says_otherwise(self) -> None:
        _, lm = ask(BlendFilter(three_lists(), task="strategyqa"))
        assert all("write: none" in prompt for prompt in lm.asked("ids"))
        _, lm = ask(BlendFilter(three_lists(), task="hotpotqa", offer_none=True, ask_topic=False))
        assert all("write: none" in prompt for prompt in lm.asked("ids"))
        assert lm.calls == 10
        _, lm = ask(BlendFilter(three_lists(), task="strategyqa", offer_none=False, ask_topic=True))
        assert not any("write: none" in prompt for prompt in lm.asked("ids"))
        assert lm.calls == 11

    def test_a_filter_of_ones_own(self) -> None:
        class Second(Filter):
            """Keeps every branch's second passage, and asks nobody."""

            async def aforward(self, question: str, passages: Any) -> dspy.Prediction:
                assert question == QUESTION
                return dspy.Prediction(kept=list(passages[1:2]), status="ids", reason="by rule", flags={"mine": 1})

        said, _ = ask(BlendFilter(three_lists(), filter=Second()))
        assert [stage for stage, _ in said.calls] == ["external", "internal", "answer", "short_answer"]
        assert [passage.id for passage in said.knowledge] == ["p1", "p2", "p4"]
        assert said.branches["q"].reason == "by rule"
        assert said.flags["mine"] == 3
        assert "select" not in {name for name, _ in BlendFilter(nothing, filter=Second()).named_predictors()}

    @pytest.mark.parametrize("without", [(), ("q",), ("q", "q_ex"), ("q_ex", "q_in")])
    def test_the_fallback_is_what_the_question_finds_whichever_queries_are_used(self, without: Any) -> None:
        """K_q, searched for even where no other step needs it."""
        method = BlendFilter(three_lists(), without=without, fallback=True, offer_none=True)
        said, lm = ask(method, ids="none")
        assert [passage.id for passage in said.knowledge] == ["p0", "p1"]
        assert said.flags["empty_knowledge"] == 1
        assert f"Knowledge:\n{LINES[0]}\n{LINES[1]}\nQuestion: {QUESTION}" in lm.asked("answer")[0]
        assert "q" not in said.queries or "q" not in without

    def test_bad_settings(self) -> None:
        with pytest.raises(BadArgument, match="k must be at least 1, got 0"):
            BlendFilter(nothing, k=0)
        with pytest.raises(UnknownName, match=r"no program 'hotpotq'\. Did you mean 'hotpotqa'"):
            BlendFilter(nothing, task="hotpotq")
        with pytest.raises(UnknownName, match="no query 'qin'"):
            BlendFilter(nothing, without="qin")


class TestState:
    def prompts_of(self, method: BlendFilter) -> list[tuple[str, str]]:
        return sorted(ask(method)[1].prompts)

    @pytest.mark.parametrize("task", TASKS)
    def test_a_saved_program_renders_the_same_prompts(self, tmp_path: Path, task: str) -> None:
        method = BlendFilter(three_lists(), task=task)
        method.blending.internal.signature = method.blending.internal.signature.with_instructions("Optimised: é\n“x”.")
        method.select.check.demos = [
            dspy.Example(question="q?", knowledge=["T | x"], relevance="0 is relevant.", augmented=True)
        ]
        method.save(tmp_path / "program.json")
        again = BlendFilter(three_lists(), task="hotpotqa", offer_none=TaskWording.of(task).offer_none)
        again.select.ask_topic = method.select.ask_topic
        again.load(tmp_path / "program.json")
        assert self.prompts_of(again) == self.prompts_of(method)
        again.save(tmp_path / "again.json")
        assert (tmp_path / "again.json").read_bytes() == (tmp_path / "program.json").read_bytes()

    def test_it_is_plain_json_without_the_model(self, tmp_path: Path) -> None:
        path = tmp_path / "program.json"
        with dspy.context(lm=ScriptedLM(replies())):
            method = BlendFilter(three_lists())
            method(question=QUESTION)
            method.save(path)
        state = json.loads(path.read_text(encoding="utf-8"))
        assert all(each["lm"] is None for name, each in state.items() if name != "metadata")
        demo = state["blending.external"]["demos"][0]
        assert set(demo) == {"knowledge", "question", "reasoning"}
        assert all(isinstance(line, str) for line in demo["knowledge"])

    def test_a_renamed_predictor_does_not_load(self) -> None:
        state = BlendFilter(nothing).dump_state()
        state["blending.outside"] = state.pop("blending.external")
        with pytest.raises(KeyError, match=r"blending\.external"):
            BlendFilter(nothing).load_state(state)

    def test_nor_a_renamed_field_and_nothing_is_half_loaded(self) -> None:
        method = BlendFilter(nothing)
        before = json.dumps(method.dump_state())
        state = json.loads(before.replace('"Context:"', '"Reasoning So Far:"'))
        state["blending.external"]["signature"]["instructions"] = "Changed."
        with pytest.raises(BadData, match=r"'ids' has the fields Reasoning So Far: "):
            method.load_state(state)
        assert json.dumps(method.dump_state()) == before

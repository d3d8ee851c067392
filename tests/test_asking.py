"""`Ask`: a `dspy.Predict` that speaks through a template under its own stage; and a task's wording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dspy
import pydantic
import pytest
from isle import inputs, predictors
from scripted import ScriptedLM, scripted

from blendfilter import resources
from blendfilter.asking import (
    FEW_SHOT,
    REPLY_TOKENS,
    SHORT_TOKENS,
    STOP,
    Ask,
    Demonstration,
    TaskWording,
)
from blendfilter.context import STAGE
from blendfilter.errors import BadData
from blendfilter.modules.base import ShortAnswer
from blendfilter.prompting import TemplateAdapter

HOP = {"thought": "t.", "follow_up": "f?", "knowledge": [0], "answer": "a."}
DEMO = {"question": "q?", "knowledge": ["T | x"], "reasoning": "So the answer is x.", "hops": [HOP], "answer": "x"}


def short_answer(**config: Any) -> Ask:
    return Ask("short_answer", ShortAnswer, "blendfilter/short_answer", **config)


class TestAsk:
    def test_neither_adapter_nor_stage_outlive_the_call(self) -> None:
        with scripted(["Tolm"]) as lm, dspy.context(lm=lm, adapter=None):
            short_answer()(context="c", question="q?")
            assert dspy.settings.adapter is None
            assert STAGE.get() == ""

    def test_an_adapter_configured_outside_does_not_reach_it(self) -> None:
        with scripted(["Tolm"]) as lm, dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
            assert short_answer()(context="c", question="q?").answer == "Tolm"

    def test_caps_are_the_papers(self) -> None:
        caps = {name: each.config["max_tokens"] for name, each in predictors("hotpotqa").items()}
        short = {"topic", "ids", "ids_again", "short_answer", "direct", "direct_retrieval"}
        short |= {name for name in caps if name.startswith("helpful_")}  # ours: the ids of FilCo's filter
        short |= {"consistent_word"}  # CDIT's one word
        assert caps.pop("judge") == REPLY_TOKENS + 128  # ours: a judgement with its ids, which may be JSON
        assert caps == {name: SHORT_TOKENS if name in short else REPLY_TOKENS for name in caps}
        before = {"self_ask": ["\nIntermediate answer:"], "react": ["\nIntermediate answer:"]}
        before["react_thought_action"] = ["\nObservation"]
        behind = {name: [f"\n\n{unit} 0:"] for unit in ("sentence", "passage") for name in caps if f"l_{unit}" in name}
        assert len(behind) == 4
        behind |= {name: ["\nPassage:"] for name in caps if name.startswith("consistent_")}
        for name, each in predictors("hotpotqa").items():
            assert each.config["stop"] == [*before.get(name, []), *STOP, *behind.get(name, [])]

    @pytest.mark.parametrize("task", ["eli5", "wow"])
    def test_a_long_answer_has_room_and_is_read_whole(self, task: str) -> None:
        text = "**Answer:** Tolm is a port.\nIt has a light.\n\nSo has Oddle."
        for name in ("direct", "direct_retrieval", "short_answer"):
            wanted = predictors(task)[name]
            assert wanted.config["max_tokens"] == 128
            with dspy.context(lm=ScriptedLM([text])):
                assert wanted(**inputs(wanted)).answer == "Tolm is a port.\nIt has a light.\n\nSo has Oddle."
        short = predictors("nq")["short_answer"]
        assert short.config["max_tokens"] == SHORT_TOKENS
        with dspy.context(lm=ScriptedLM([text])):
            assert short(**inputs(short)).answer == "Tolm is a port."

    def test_an_adapter_of_ones_own_is_left_alone(self) -> None:
        mine, shared = dspy.ChatAdapter(), TemplateAdapter()
        assert predictors("eli5", adapter=mine)["direct"].adapter is mine
        wanted = predictors("eli5", adapter=shared)["direct"]
        with dspy.context(lm=ScriptedLM(["One.\nTwo.", "One.\nTwo."])):
            assert wanted(question="q?").answer == "One.\nTwo."
            other = predictors("hotpotqa", adapter=shared)["direct"]  # the same adapter, in a task of short answers
            assert other(question="q?").answer == "One."


class TestWording:
    def test_few_shot_templates_get_the_demonstrations_and_others_none(self) -> None:
        for name, predictor in predictors("hotpotqa").items():
            assert (len(predictor.demos) == 3) == (predictor.template.name in FEW_SHOT), name

    @pytest.mark.parametrize("slot", DEMO)
    def test_an_unfilled_slot_is_an_error(self, slot: str) -> None:
        empty: Any = [] if slot in ("knowledge", "hops") else ""
        with pytest.raises(pydantic.ValidationError, match=slot):
            Demonstration(**{**DEMO, slot: empty})
        with pytest.raises(pydantic.ValidationError, match=slot):
            Demonstration(**{name: value for name, value in DEMO.items() if name != slot})

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (json.dumps({"demos": [{**DEMO, "answer": ""}]}), r"demos\.0\.answer"),
            ("{", "JSON"),
        ],
    )
    def test_a_bad_program_is_named_with_its_place(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
    ) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "default.json").write_text(text)
        monkeypatch.setattr(resources, "programs", lambda: tmp_path)
        with pytest.raises(BadData, match=rf"mine/default\.json: .*{expected}"):
            TaskWording.of("mine")

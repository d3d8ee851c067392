"""`Ask`: a `dspy.Predict` that speaks through a template under its own stage; and a task's wording."""

from __future__ import annotations

import warnings
from typing import Any

import dspy
import pydantic
import pytest
from isle import inputs, predictors
from scripted import ScriptedLM, scripted

from blendfilter.asking import (
    FEW_SHOT,
    JUDGEMENT_TOKENS,
    REPLY_TOKENS,
    SHORT_TOKENS,
    STOP,
    Ask,
    Demonstration,
    TaskWording,
    reply_tokens_of,
)
from blendfilter.context import asker
from blendfilter.errors import BadArgument
from blendfilter.filters.written import CHOICE_TOKENS, CONTEXT_TOKENS
from blendfilter.modules.base import ShortAnswer
from blendfilter.modules.blendfilter import BlendFilter
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
            assert asker().stage == ""

    def test_an_adapter_configured_outside_does_not_reach_it(self) -> None:
        """It is refused aloud, and the same adapter given to the predictor is used."""
        with scripted(["Tolm", '{"answer": "Tolm"}']) as lm, dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
            with pytest.warns(UserWarning, match=r"JSONAdapter is configured and not used: .*\(adapter=…\)"):
                assert short_answer()(context="c", question="q?").answer == "Tolm"
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                assert short_answer(adapter=dspy.JSONAdapter())(context="c", question="q?").answer == "Tolm"

    def test_without_a_model_it_says_how_to_configure_one(self, fresh_dspy: None) -> None:
        with pytest.raises(BadArgument, match=r"no model is configured: dspy\.configure\(lm=bf\.connect\("):
            short_answer()(context="c", question="q?")
        with pytest.raises(BadArgument, match="no model is configured"):
            BlendFilter(lambda query, k: ["Tolm | A town."], k=1)(question="Which town?")

    def test_caps_are_the_papers(self) -> None:
        caps = {name: each.config["max_tokens"] for name, each in predictors("hotpotqa").items()}
        short = {"topic", "ids", "ids_again", "short_answer", "direct", "direct_retrieval", "relevant"}
        short |= {name for name in caps if name.startswith("helpful_")}  # ours: the ids of FilCo's filter
        short |= {"consistent_word", "consistent_word_again"}  # CDIT's one word
        assert caps.pop("check") == JUDGEMENT_TOKENS  # which the paper leaves open
        written = {name: caps.pop(name) for name in list(caps) if name.startswith("written_")}
        choosing = {"written_passages": CHOICE_TOKENS}
        assert written == dict.fromkeys(written, CONTEXT_TOKENS) | choosing
        assert caps.pop("judge") == JUDGEMENT_TOKENS + 128  # ours: a judgement with its ids, which may be JSON
        assert caps == {name: SHORT_TOKENS if name in short else REPLY_TOKENS for name in caps}
        before = {"self_ask": ["\nIntermediate answer:"], "react": ["\nIntermediate answer:"]}
        before["react_thought_action"] = ["\nObservation"]
        behind = {
            name: ["\n\nTitle:", f"\n\n{unit} 0:"]
            for unit in ("sentence", "passage")
            for name in caps
            if f"l_{unit}" in name
        }
        assert len(behind) == 4
        behind |= {name: ["\nPassage:"] for name in caps if name.startswith("consistent_") or name == "relevant"}
        behind |= {name: ["\nContext:"] for name in written}
        for name, each in predictors("hotpotqa").items():
            assert each.config["stop"] == [*before.get(name, []), *STOP, *behind.get(name, [])]

    def test_another_cap_is_that_of_long_replies_alone(self) -> None:
        """64 leaves short replies their own cap; judgements keep what they have more than reasonings."""
        usual = predictors("hotpotqa")
        for name, each in predictors(TaskWording.of("hotpotqa").with_reply_tokens(64)).items():
            before, cap = usual[name].config["max_tokens"], each.config["max_tokens"]
            if name.startswith("written_"):  # a context that a model was trained to write
                assert cap == before
                continue
            assert cap == (before if before < REPLY_TOKENS else before - REPLY_TOKENS + 64), name

    def test_another_cap_is_a_setting_of_the_run(self) -> None:
        assert reply_tokens_of(BlendFilter(lambda query, k: [])) == {}
        wording = TaskWording.of("hotpotqa").with_reply_tokens(512)
        assert reply_tokens_of(BlendFilter(lambda query, k: [], task=wording)) == {"reply_tokens": 512}
        assert wording.with_reply_tokens(None) is wording

    @pytest.mark.parametrize("wrong", [31, 65_537, 0, -1, True, 100.5, "512"])
    def test_a_cap_out_of_range_is_refused(self, wrong: Any) -> None:
        with pytest.raises(BadArgument, match=r"reply_tokens is .*: give a whole number"):
            TaskWording().with_reply_tokens(wrong)

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


JUDGED = {**DEMO, "topic": "towns", "relevance": ["relevant - names the town"]}
TWO = {
    **DEMO, "question": "r?", "knowledge": ["A | a", "B | b"], "topic": "bridges",
    "relevance": ["irrelevant - about another bridge", "relevant - gives the year"],
}  # fmt: skip


def raw_lm(replies: Any) -> ScriptedLM:
    lm = ScriptedLM(replies)
    lm.identity = {"endpoint": "completions"}
    return lm


class TestRawPrompts:
    """A base model learns the form of a judging step from two demonstrations; a chat model is told it."""

    wording: Any = TaskWording(demos=[Demonstration(**each) for each in (DEMO, JUDGED, TWO, JUDGED)])

    def sent(self, name: str, lm: ScriptedLM, **config: Any) -> tuple[str, list[str]]:
        wanted = predictors(self.wording)[name]
        with dspy.context(lm=lm):
            wanted(**inputs(wanted), config=config)
        return lm.prompts[0][1], list(lm.inner.requests[0].config.stop)

    @pytest.mark.parametrize(
        ("name", "shown"),
        [
            ("check", "0: irrelevant - about another bridge\n1: relevant - gives the year\n"),
            ("ids", "0: irrelevant - about another bridge\n1: relevant - gives the year\n"),
            ("ids", ":\n1\n"),
            ("ids_again", ":\n1\n"),
            ("topic", ":\nbridges\n"),
            ("judge", "1: relevant - gives the year\n2: irrelevant - about something else\nIds: 1\n"),
        ],
    )
    def test_the_first_two_that_are_judged_stand_in_a_raw_prompt_alone(self, name: str, shown: str) -> None:
        raw, stop = self.sent(name, raw_lm(["0"]))
        chat, usual = self.sent(name, ScriptedLM(["0"]))
        assert shown in raw
        assert raw.count("Question: q?") == raw.count("Question: r?") == 1  # the first has no relevance
        assert "Question: q?" not in chat
        assert raw.endswith(chat[chat.rindex("Question:") :])
        assert usual == STOP
        numbers_on = ["\n5:"] if name in ("check", "judge") else []  # past the last passage
        assert stop == [*STOP, "\nContext:", *numbers_on]

    def test_the_papers_shape_has_none(self) -> None:
        """There these steps are zero-shot, with a base model too."""
        for name in ("topic", "check", "ids"):
            wanted, lm = predictors(self.wording, prompts="paper")[name], raw_lm(["0"])
            with dspy.context(lm=lm):
                wanted(**inputs(wanted))
            assert lm.prompts[0][1] == wanted.render(**inputs(wanted))

    def test_no_stage_has_more_than_four_stops(self) -> None:
        """OpenAI takes no more."""
        for name in predictors("hotpotqa"):
            assert len(self.sent(name, raw_lm(["0"]))[1]) <= 4, name

    def test_held_to_a_schema_they_reply_in_json(self) -> None:
        for name in ("ids", "judge"):
            raw, _ = self.sent(name, raw_lm(["0"]), response_format={"type": "json_object"})
            assert '"ids": [1]}\n' in raw
        assert '{"id": 1, "reason": "gives the year", "relevant": true}' in raw

    def test_those_of_an_optimiser_go_before_them(self) -> None:
        wanted, lm = predictors(self.wording)["topic"], raw_lm(["0"])
        wanted.demos = [dspy.Example(question="mine?", topic="mine")]
        with dspy.context(lm=lm):
            wanted(question="why?")
        assert "Question: mine?" in lm.prompts[0][1]
        assert "bridges" not in lm.prompts[0][1]

    def test_none_is_shown_only_where_it_is_offered(self) -> None:
        nothing = Demonstration(**{**JUDGED, "relevance": ["irrelevant - about another town"]})
        for offered, shown in ((False, 0), (True, 1)):
            wording: Any = TaskWording(demos=[nothing], offer_none=offered)
            assert len(predictors(wording)["ids"].raw.demos) == shown

    @pytest.mark.parametrize(
        ("relevance", "error"),
        [
            (["relevant - a", "irrelevant - b"], "relevance has 2 lines, and knowledge 1: give one for each"),
            ([], "relevance has 0 lines"),
            (["names the town"], "does not begin with 'relevant' or 'irrelevant', then ' - ' and why"),
            (["names the town - relevant"], "does not begin with"),
            (["relevant - "], "does not begin with"),
            ([""], "relevance"),
        ],
    )
    def test_a_line_for_each_passage_says_what_it_is(self, relevance: list[str], error: str) -> None:
        with pytest.raises(pydantic.ValidationError, match=error):
            Demonstration(**{**JUDGED, "relevance": relevance})


class TestWording:
    def test_few_shot_templates_get_the_demonstrations_and_others_none(self) -> None:
        for name, predictor in predictors("hotpotqa").items():
            shown = TaskWording.of("hotpotqa").demos if predictor.template.name in FEW_SHOT else []
            assert [demo.question for demo in predictor.demos] == [demo.question for demo in shown], name

    def test_a_reasoning_that_concludes_nothing_is_an_error(self) -> None:
        with pytest.raises(pydantic.ValidationError, match="reasoning does not end with"):
            Demonstration(**{**DEMO, "reasoning": "It is x, I think."})

    @pytest.mark.parametrize("slot", DEMO)
    def test_an_unfilled_slot_is_an_error(self, slot: str) -> None:
        empty: Any = [] if slot in ("knowledge", "hops") else ""
        with pytest.raises(pydantic.ValidationError, match=slot):
            Demonstration(**{**DEMO, slot: empty})
        with pytest.raises(pydantic.ValidationError, match=slot):
            Demonstration(**{name: value for name, value in DEMO.items() if name != slot})

"""BlendFilter's knowledge filter: which calls it makes, what each is sent, what is kept after every kind of reply."""

from __future__ import annotations

import asyncio
from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isle import CHECK, LINES, PASSAGES, QUESTION, REPLIES, replies
from scripted import ScriptedLM, scripted

from blendfilter import aio
from blendfilter.asking import Wording
from blendfilter.errors import ModelError, UseAcall
from blendfilter.filters.base import Filter
from blendfilter.filters.knowledge import KnowledgeFilter
from blendfilter.lm.profiles import Profile

FIVE = list(PASSAGES)


def filtered(
    answers: dict[str, list[Any]], passages: Any = FIVE, topic: str | None = "lighthouses", **settings: Any
) -> tuple[dspy.Prediction, ScriptedLM]:
    """The filter's result, and the model it asked; every written answer must have been used."""
    with scripted(answers) as lm, dspy.context(lm=lm):
        said = asyncio.run(KnowledgeFilter(**settings).acall(question=QUESTION, passages=passages, topic=topic))
    return said, lm


class TestCalls:
    def test_check_then_ids_over_the_same_knowledge(self) -> None:
        """K^f = M(K | Prompt(q, K)): the check's reply is the context of the ids step; the knowledge is repeated."""
        said, lm = filtered({"check": [CHECK], "ids": ["0, 3"]})
        assert [stage for stage, _ in lm.prompts] == ["check", "ids"]
        numbered = "\n".join(f"knowledge {i}: {line}" for i, line in enumerate(LINES))
        (check,), (ids,) = lm.asked("check"), lm.asked("ids")
        assert check.endswith(f"\n{numbered}\nQuestion: {QUESTION}\nRelevance:")
        assert ids.endswith(f"\n{numbered}\nQuestion: {QUESTION}\nIds:")
        assert ids.index(f"\nContext:\n{CHECK}\n") < ids.index(numbered)
        assert "Set aside what you remember about lighthouses;" in check
        assert said.kept == [PASSAGES[0], PASSAGES[3]]
        assert (said.status, said.reason, said.flags) == ("ids", CHECK, {})

    def test_the_topic_is_asked_where_it_is_not_given(self) -> None:
        said, lm = filtered({"topic": ["The harbours\nof isles"], "check": [CHECK], "ids": ["0"]}, topic=None)
        assert [stage for stage, _ in lm.prompts] == ["topic", "check", "ids"]
        assert QUESTION in lm.asked("topic")[0]
        assert "remember about The harbours;" in lm.asked("check")[0]
        assert said.kept == [PASSAGES[0]]

    def test_and_never_where_the_task_has_none(self) -> None:
        _, lm = filtered({"check": [CHECK], "ids": ["0"]}, topic=None, ask_topic=False)
        assert "Set aside" not in lm.asked("check")[0]

    def test_an_empty_topic_is_no_topic(self) -> None:
        _, lm = filtered({"topic": [""], "check": [CHECK], "ids": ["0"]}, topic=None)
        assert "Set aside" not in lm.asked("check")[0]

    def test_nothing_to_filter_asks_nothing(self) -> None:
        said, lm = filtered({}, passages=[], topic=None)
        assert (said.kept, said.status, said.flags) == ([], "empty", {})
        assert lm.calls == 0

    def test_one_passage_is_filtered_like_any(self) -> None:
        said, lm = filtered({"check": [CHECK], "ids": ["0"]}, passages=FIVE[:1])
        assert said.kept == FIVE[:1]
        assert "numbered from" not in lm.asked("ids")[0]

    def test_none_is_offered_only_where_the_task_says_so(self) -> None:
        _, plain = filtered({"check": [CHECK], "ids": ["0"]})
        _, offered = filtered({"check": [CHECK], "ids": ["0"]}, offer_none=True)
        assert "none" not in plain.asked("ids")[0]
        assert "write: none" in offered.asked("ids")[0]
        assert "none of them is relevant" in offered.asked("check")[0]

    def test_decoding_is_the_papers(self) -> None:
        _, lm = filtered({"topic": ["t"], "check": [CHECK], "ids": ["?"], "ids_again": ["0"]}, topic=None)
        assert [request.config.max_tokens for request in lm.inner.requests] == [32, 256, 32, 32]
        assert all(list(request.config.stop) == ["\nKnowledge:", "\nQuestion:"] for request in lm.inner.requests)

    @pytest.mark.parametrize(("k", "caps"), [(1, [256, 32, 32]), (6, [304, 36, 36]), (15, [736, 72, 72])])
    def test_above_five_passages_the_caps_grow(self, k: int, caps: list[int]) -> None:
        """Fifteen numbers with commas do not fit 32 tokens, nor as many judgements 256."""
        passages = [FIVE[i % 5] for i in range(k)]
        _, lm = filtered({"check": [CHECK], "ids": ["?"], "ids_again": ["0"]}, passages=passages)
        assert [request.config.max_tokens for request in lm.inner.requests] == caps

    def test_a_tasks_words_are_used(self) -> None:
        wording = Wording(instructions={"blendfilter/check": "Judge in verse."})
        _, lm = filtered({"check": [CHECK], "ids": ["0"]}, wording=wording)
        assert lm.asked("check")[0].startswith("Judge in verse.\n")


class TestReplies:
    @pytest.mark.parametrize("reply", ["3, 0", "0, 3", "3\n0"])
    def test_kept_in_rank_order_whatever_the_reply_says(self, reply: str) -> None:
        said, _ = filtered({"check": [CHECK], "ids": [reply]})
        assert said.kept == [PASSAGES[0], PASSAGES[3]]

    @pytest.mark.parametrize("offer_none", [True, False])
    def test_an_explicit_none_keeps_nothing_and_is_not_asked_again(self, offer_none: bool) -> None:
        said, _ = filtered({"check": [CHECK], "ids": ["none"]}, offer_none=offer_none)
        assert (said.kept, said.status, said.flags) == ([], "none", {"explicit_none": 1})

    @pytest.mark.parametrize(
        ("first", "flag"),
        [
            ("I cannot say.", "unparseable_ids"),
            ("9", "unparseable_ids"),
            ("1 and 2 are irrelevant", "suspect_ids"),
        ],
    )
    def test_a_reply_without_ids_is_asked_for_once_more(self, first: str, flag: str) -> None:
        said, lm = filtered({"check": [CHECK], "ids": [first], "ids_again": ["0, 3"]})
        (ids,), (again,) = lm.asked("ids"), lm.asked("ids_again")
        *before, added, cue = again.split("\n")
        assert "\n".join([*before, cue]) == ids
        assert added.startswith("Write only the relevant numbers from 0 to 4")
        assert said.kept == [PASSAGES[0], PASSAGES[3]]
        assert (said.status, said.flags) == ("ids", {flag: 1})

    @pytest.mark.parametrize("first", ["", " \n"])
    def test_an_empty_reply_is_asked_again_and_not_called_unparseable(self, first: str) -> None:
        said, _ = filtered({"check": [CHECK], "ids": [first], "ids_again": ["0, 3"]})
        assert (said.kept, said.status, said.flags) == ([PASSAGES[0], PASSAGES[3]], "ids", {})
        said, _ = filtered({"check": [CHECK], "ids": [first], "ids_again": ["?"]})
        assert (said.kept, said.status, said.flags) == (FIVE, "unparseable", {})

    @pytest.mark.parametrize("second", ["Still nothing to say.", "", "1 is irrelevant", "17"])
    @pytest.mark.parametrize(
        ("first", "status", "flag"),
        [("Who knows?", "unparseable", "unparseable_ids"), ("not 1", "suspect", "suspect_ids")],
    )
    def test_after_the_second_try_the_whole_branch_is_kept(
        self, first: str, status: str, flag: str, second: str
    ) -> None:
        said, lm = filtered({"check": [CHECK], "ids": [first], "ids_again": [second]})
        assert said.kept == FIVE
        assert (said.status, said.flags) == (status, {flag: 1})
        assert lm.calls == 3

    def test_none_at_the_second_try_keeps_nothing_and_counts_both(self) -> None:
        said, _ = filtered({"check": [CHECK], "ids": ["Hm."], "ids_again": ["none"]}, offer_none=True)
        assert (said.kept, said.status) == ([], "none")
        assert said.flags == {"unparseable_ids": 1, "explicit_none": 1}

    def test_an_empty_check_still_leads_to_ids(self) -> None:
        said, lm = filtered({"check": [""], "ids": ["1"]})
        assert "\nContext:\n\n" in lm.asked("ids")[0]
        assert (said.kept, said.reason) == ([PASSAGES[1]], "")

    def test_a_failing_call_is_an_error_and_no_empty_answer(self) -> None:
        from dspy import lm15

        lm = ScriptedLM({"check": [lm15.ContextLengthError("too long")]})
        with dspy.context(lm=lm), pytest.raises(ModelError) as raised:
            asyncio.run(KnowledgeFilter().acall(question=QUESTION, passages=FIVE, topic=""))
        assert (raised.value.kind, raised.value.stage) == ("context_too_long", "check")

    @given(ids=st.text(max_size=40), again=st.text(max_size=40))
    def test_whatever_is_replied_kept_is_a_part_of_the_branch_in_order(self, ids: str, again: str) -> None:
        lm = ScriptedLM(replies(ids=ids, ids_again=again))
        with dspy.context(lm=lm):
            said = asyncio.run(KnowledgeFilter().acall(question=QUESTION, passages=FIVE, topic=""))
        assert [p for p in FIVE if p in said.kept] == said.kept
        assert bool(said.kept) == (said.status != "none")


class TestJsonSchema:
    def formats(self, lm: ScriptedLM) -> dict[str, Any]:
        return {
            stage: request.config.response_format
            for (stage, _), request in zip(lm.prompts, lm.inner.requests, strict=True)
        }

    def test_the_ids_are_held_to_a_schema_over_the_passages_shown(self) -> None:
        answers = {"check": [CHECK], "ids": ["?"], "ids_again": ['{"ids": [2]}']}
        said, lm = filtered(answers, passages=FIVE[:3], json_schema=True)
        formats = self.formats(lm)
        assert formats["check"] is None
        assert formats["ids"] == formats["ids_again"]
        schema = formats["ids"]["schema"]
        assert schema["properties"]["ids"]["items"] == {"type": "integer", "enum": [0, 1, 2]}
        assert schema["required"] == ["ids"]
        assert said.kept == [PASSAGES[2]]

    def test_an_empty_array_is_an_explicit_none(self) -> None:
        said, _ = filtered({"check": [CHECK], "ids": ['{"ids": []}']}, json_schema=True)
        assert (said.kept, said.status) == ([], "none")

    @pytest.mark.parametrize(("setting", "asks"), [(None, True), (False, False), (True, True)])
    def test_by_default_the_models_profile_decides(self, setting: bool | None, asks: bool) -> None:
        with scripted({"check": [CHECK], "ids": ["0"]}) as lm, dspy.context(lm=lm):
            lm.profile = Profile(json_schema=True)
            chosen = KnowledgeFilter(json_schema=setting)
            asyncio.run(chosen.acall(question=QUESTION, passages=FIVE, topic=""))
        assert (self.formats(lm)["ids"] is not None) is asks

    def test_a_model_without_a_profile_is_not_asked_for_one(self) -> None:
        _, lm = filtered({"check": [CHECK], "ids": ["0"]})
        assert self.formats(lm)["ids"] is None


class TestAlone:
    def test_the_synchronous_call(self) -> None:
        with scripted({"topic": ["t"], "check": [CHECK], "ids": ["0"]}) as lm, dspy.context(lm=lm):
            assert KnowledgeFilter()(question=QUESTION, passages=FIVE).kept == [PASSAGES[0]]

    def test_it_works_inside_a_running_loop(self) -> None:
        async def notebook() -> dspy.Prediction:
            return KnowledgeFilter()(question=QUESTION, passages=FIVE)

        with scripted({"topic": ["t"], "check": [CHECK], "ids": ["0"]}) as lm, dspy.context(lm=lm):
            assert asyncio.run(notebook()).kept == [PASSAGES[0]]

    def test_on_the_loop_thread_it_says_to_await(self) -> None:
        async def inside() -> None:
            KnowledgeFilter()(question=QUESTION, passages=FIVE)

        with pytest.raises(UseAcall, match=r"await KnowledgeFilter\.acall"):
            aio.run(inside())

    def test_a_filter_of_ones_own_needs_aforward_only(self) -> None:
        class First(Filter):
            async def aforward(self, question: str, passages: Any) -> dspy.Prediction:
                return dspy.Prediction(kept=passages[:1], status="ids", reason="")

        assert First()(question=QUESTION, passages=FIVE).kept == FIVE[:1]

    def test_one_that_forgets_it_says_so(self) -> None:
        with pytest.raises(NotImplementedError):
            Filter()(question=QUESTION, passages=FIVE)

    def test_stages_are_named_as_the_replies_of_the_isle(self) -> None:
        assert {each.name for each in KnowledgeFilter().predictors()} <= set(REPLIES)

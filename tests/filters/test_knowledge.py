"""Filters by the model's own judgement, in three calls and in one: what is sent, and what is kept after every reply."""

from __future__ import annotations

import asyncio
from typing import Any

import dspy
import pytest
from isle import CHECK, LINES, PASSAGES, QUESTION
from scripted import ScriptedLM, scripted

from blendfilter.filters.knowledge import KnowledgeFilter, OneCallFilter, ids_schema, read_judgement
from blendfilter.lm.profiles import Profile
from blendfilter.records import Passage

FIVE = list(PASSAGES)


def filtered(
    answers: dict[str, list[Any]], passages: Any = FIVE, topic: str | None = "lighthouses", **settings: Any
) -> tuple[dspy.Prediction, ScriptedLM]:
    """The filter's result, and the model it asked; every written answer must have been used."""
    with scripted(answers) as lm, dspy.context(lm=lm):
        result = asyncio.run(KnowledgeFilter(**settings).acall(question=QUESTION, passages=passages, topic=topic))
    return result, lm


class TestCalls:
    def test_check_then_ids_over_the_same_knowledge(self) -> None:
        """K^f = M(K | Prompt(q, K)): the check's reply is the context of the ids step; the knowledge is repeated."""
        result, lm = filtered({"check": [CHECK], "ids": ["0, 3"]})
        assert [stage for stage, _ in lm.prompts] == ["check", "ids"]
        numbered = "\n".join(f"knowledge {i}: {line}" for i, line in enumerate(LINES))
        (check,), (ids,) = lm.prompts_of("check"), lm.prompts_of("ids")
        assert check.endswith(f"\n{numbered}\nQuestion: {QUESTION}\nRelevance:")
        assert ids.endswith(f"\n{numbered}\nQuestion: {QUESTION}\nIds:")
        assert ids.index(f"\nContext:\n{CHECK}\n") < ids.index(numbered)
        assert "Set aside what you remember about lighthouses;" in check
        assert result.kept == [PASSAGES[0], PASSAGES[3]]
        assert (result.status, result.reason, result.flags) == ("ids", CHECK, {})

    def test_the_topic_is_asked_where_it_is_not_given(self) -> None:
        result, lm = filtered({"topic": ["The harbours\nof isles"], "check": [CHECK], "ids": ["0"]}, topic=None)
        assert [stage for stage, _ in lm.prompts] == ["topic", "check", "ids"]
        assert QUESTION in lm.prompts_of("topic")[0]
        assert "remember about The harbours;" in lm.prompts_of("check")[0]
        assert result.kept == [PASSAGES[0]]

    @pytest.mark.parametrize(("k", "caps"), [(1, [256, 32, 32]), (6, [304, 36, 36]), (15, [736, 72, 72])])
    def test_above_five_passages_the_caps_grow(self, k: int, caps: list[int]) -> None:
        """Fifteen numbers with commas do not fit 32 tokens, nor as many judgements 256."""
        passages = [FIVE[i % 5] for i in range(k)]
        _, lm = filtered({"check": [CHECK], "ids": ["?"], "ids_again": ["0"]}, passages=passages)
        assert [request.config.max_tokens for request in lm.inner.requests] == caps


class TestReplies:
    @pytest.mark.parametrize("offer_none", [True, False])
    def test_an_explicit_none_keeps_nothing_and_is_not_asked_again(self, offer_none: bool) -> None:
        result, _ = filtered({"check": [CHECK], "ids": ["none"]}, offer_none=offer_none)
        assert (result.kept, result.status, result.flags) == ([], "none", {"explicit_none": 1})

    @pytest.mark.parametrize(
        ("first", "flag"),
        [
            ("I cannot say.", "unparseable_ids"),
            ("9", "unparseable_ids"),
            ("1 and 2 are irrelevant", "suspect_ids"),
        ],
    )
    def test_a_reply_without_ids_is_asked_for_once_more(self, first: str, flag: str) -> None:
        result, lm = filtered({"check": [CHECK], "ids": [first], "ids_again": ["0, 3"]})
        (ids,), (again,) = lm.prompts_of("ids"), lm.prompts_of("ids_again")
        *before, added, cue = again.split("\n")
        assert "\n".join([*before, cue]) == ids
        assert added.startswith("Write only the relevant numbers from 0 to 4")
        assert result.kept == [PASSAGES[0], PASSAGES[3]]
        assert (result.status, result.flags) == ("ids", {flag: 1})

    @pytest.mark.parametrize("second", ["Still nothing to say.", "", "1 is irrelevant", "17"])
    @pytest.mark.parametrize(
        ("first", "status", "flag"),
        [("Who knows?", "unparseable", "unparseable_ids"), ("not 1", "suspect", "suspect_ids")],
    )
    def test_after_the_second_try_the_whole_branch_is_kept(
        self, first: str, status: str, flag: str, second: str
    ) -> None:
        result, lm = filtered({"check": [CHECK], "ids": [first], "ids_again": [second]})
        assert result.kept == FIVE
        assert (result.status, result.flags) == (status, {flag: 1})
        assert lm.calls == 3

    def test_none_at_the_second_try_keeps_nothing_and_counts_both(self) -> None:
        result, _ = filtered({"check": [CHECK], "ids": ["Hm."], "ids_again": ["none"]}, offer_none=True)
        assert (result.kept, result.status) == ([], "none")
        assert result.flags == {"unparseable_ids": 1, "explicit_none": 1}


class TestJsonSchema:
    def formats(self, lm: ScriptedLM) -> dict[str, Any]:
        return {
            stage: request.config.response_format
            for (stage, _), request in zip(lm.prompts, lm.inner.requests, strict=True)
        }

    def test_the_ids_are_held_to_a_schema_over_the_passages_shown(self) -> None:
        answers = {"check": [CHECK], "ids": ["?"], "ids_again": ['{"ids": [2]}']}
        result, lm = filtered(answers, passages=FIVE[:3], json_schema=True)
        formats = self.formats(lm)
        assert formats["check"] is None
        assert formats["ids"] == formats["ids_again"]
        schema = formats["ids"]["schema"]
        assert schema["properties"]["ids"]["items"] == {"type": "integer", "enum": [0, 1, 2]}
        assert schema["required"] == ["ids"]
        assert result.kept == [PASSAGES[2]]

    def test_of_more_ids_than_a_schema_may_list_it_has_the_range(self) -> None:
        assert ids_schema(500)["items"]["enum"] == list(range(500))
        assert ids_schema(501)["items"] == {"type": "integer", "minimum": 0, "maximum": 500}

    @pytest.mark.parametrize(("setting", "asks"), [(None, True), (False, False), (True, True)])
    def test_by_default_the_models_profile_decides(self, setting: bool | None, asks: bool) -> None:
        with scripted({"check": [CHECK], "ids": ["0"]}) as lm, dspy.context(lm=lm):
            lm.profile = Profile(json_schema=True)
            chosen = KnowledgeFilter(json_schema=setting)
            asyncio.run(chosen.acall(question=QUESTION, passages=FIVE, topic=""))
        assert (self.formats(lm)["ids"] is not None) is asks


def once(answers: dict[str, list[Any]], passages: Any = FIVE) -> tuple[dspy.Prediction, ScriptedLM]:
    with scripted(answers) as lm, dspy.context(lm=lm):
        return asyncio.run(OneCallFilter().acall(question=QUESTION, passages=passages)), lm


class TestOneCall:
    def test_one_call_over_the_numbered_knowledge(self) -> None:
        result, lm = once({"judge": ["0 is relevant.\n3: relevant too.\nIds: 3, 0"]})
        assert [stage for stage, _ in lm.prompts] == ["judge"]
        numbered = "\n".join(f"knowledge {i}: {line}" for i, line in enumerate(LINES))
        assert lm.prompts[0][1].endswith(f"\n{numbered}\nQuestion: {QUESTION}\nJudgement:")
        assert result.kept == [PASSAGES[0], PASSAGES[3]]
        assert (result.status, result.flags) == ("ids", {})
        assert result.reason == "0 is relevant.\n3: relevant too.\nIds: 3, 0"

    @pytest.mark.parametrize(("k", "judge", "again"), [(1, 384, 32), (5, 384, 32), (15, 1024, 72)])
    def test_the_caps_grow_with_the_passages_above_five(self, k: int, judge: int, again: int) -> None:
        passages = [Passage(str(i), "", f"Lamp {i}.") for i in range(k)]
        _, lm = once({"judge": ["?"], "ids_again": ["0"]}, passages=passages)
        assert [request.config.max_tokens for request in lm.inner.requests] == [judge, again]
        assert all(list(request.config.stop) == ["\nKnowledge:", "\nQuestion:"] for request in lm.inner.requests)


class TestOneCallReplies:
    @pytest.mark.parametrize("reply", ["I cannot say.", "", "0: relevant.\n1: irrelevant.", "Ids:", "Ids: 9"])
    def test_an_unreadable_one_is_asked_for_its_ids_with_itself_as_context(self, reply: str) -> None:
        result, lm = once({"judge": [reply], "ids_again": ["0, 3"]})
        assert [stage for stage, _ in lm.prompts] == ["judge", "ids_again"]
        (again,) = lm.prompts_of("ids_again")
        bar = "| " if reply.startswith("Ids:") else ""  # it must not pass for the cue
        assert f"\nContext:\n{bar}{reply}\n" in again
        assert again.endswith("No sentence, no explanation.\nIds:")
        assert result.kept == [PASSAGES[0], PASSAGES[3]]
        event = {"unparseable_ids": 1} if reply else {}  # nothing at all is counted as that
        assert (result.status, result.reason, result.flags) == ("ids", reply, event)


class TestReading:
    @pytest.mark.parametrize(
        ("reply", "ids"),
        [
            ("0: relevant.\n1: irrelevant.\nIds: 0", (0,)),
            ("0 and 1 are irrelevant.\n**Ids:** 2, 4", (2, 4)),
            ("0: irrelevant.\nIds:\n2, 4", (2, 4)),
            ("0: irrelevant. 2: relevant. Ids: 2", (2,)),
            ("The ids: 1\nThat was too quick. Ids: 3", (3,)),
            ("Ids: 0\nOn second thoughts, 3 speaks of it too.\nIds: 0, 3", (0, 3)),
            ("ids: 0-2", (0, 1, 2)),
            ("0: relevant.\n## Ids\n0, 2", (0, 2)),
            ("0: relevant.\nThe relevant ids: 0, 2", (0, 2)),
            ('Here it is:\n```json\n{"judgements": [], "ids": [0, 2]}\n```', (0, 2)),
            ("0, 3", (0, 3)),
            ("0\n3", (0, 3)),
            ('{"judgements": [{"id": 1, "reason": "ids: 4", "relevant": true}], "ids": [1, 2]}', (1, 2)),
            ('```json\n{"ids": [4]}\n```', (4,)),
        ],
    )
    def test_ids(self, reply: str, ids: tuple[int, ...]) -> None:
        assert read_judgement(reply, 5) == (ids, "ids")

    @pytest.mark.parametrize(
        "reply",
        [
            "Knowledge 0: it is about the",  # cut off in the first line
            "0: relevant.\n1: irrelevant.\n2: relev",
            "0: lists the ids: 1 and 2 of two lights, relevant.\n1: rel",  # of a passage, not of the knowledge
            "0: tells of grids\n1: of its ids and",
            '{"judgements": [{"id": 0, "reason": "", "relevant": true}',
            '{"judgements": [], "ids": [0,',
            '{"judgements": [{"id": 0}], "relevant": [0]}',
            '{"ids": "0, 3"}',
            '{"judgements": 3}',
            "{" * 5000,
            "…",
        ],
    )
    def test_what_ends_without_ids_is_unreadable(self, reply: str) -> None:
        assert read_judgement(reply, 5).status == "unparseable"

    @pytest.mark.parametrize(
        ("reply", "status"),
        [
            ("Ids: none", "none"),
            ("none", "none"),
            ('{"judgements": [], "ids": []}', "none"),
            ('{"judgements": 3, "ids": []}', "none"),
            ('{"judgements": [{"id": 0, "reason": "", "relevant": false}, 3], "ids": []}', "none"),
            ('{"judgements": [{"id": 0, "reason": "", "relevant": true}], "ids": []}', "suspect"),
            ("Ids: 1, 3 are irrelevant", "suspect"),
            ("Ids: 0\nKnowledge 3 may be relevant, too.", "suspect"),
        ],
    )
    def test_status(self, reply: str, status: str) -> None:
        assert read_judgement(reply, 5).status == status

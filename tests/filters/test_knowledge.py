"""Filters by the model's own judgement, in three calls and in one: what is sent, and what is kept after every reply."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import dspy
import pytest
from isle import CHECK, LINES, PASSAGES, QUESTION, REPLIES
from scripted import ScriptedLM, response, scripted

from blendfilter.asking import TaskWording
from blendfilter.filters.judgements import read_judgement, unreached
from blendfilter.filters.knowledge import KnowledgeFilter, OneCallFilter, PointwiseFilter
from blendfilter.filters.requests import ids_schema
from blendfilter.lm.profiles import Profile
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.prompting import Prompts
from blendfilter.records import Passage

FIVE = list(PASSAGES)


def filtered(
    answers: dict[str, list[Any]], passages: Any = FIVE, topic: str | None = "lighthouses", **settings: Any
) -> tuple[dspy.Prediction, ScriptedLM]:
    """The filter's result, and the model it asked; every written answer must have been used."""
    with scripted(answers) as lm, dspy.context(lm=lm):
        result = asyncio.run(KnowledgeFilter(**settings).acall(question=QUESTION, passages=passages, topic=topic))
    return result, lm


_IRRELEVANT_2_TO_4 = "2: irrelevant - a town\n3: irrelevant - a port\n4: irrelevant - a ship"


class TestCalls:
    def test_check_then_ids_over_the_same_knowledge(self) -> None:
        """K^f = M(K | Prompt(q, K)): the check's reply is the context of the ids step; the knowledge is repeated."""
        result, lm = filtered({"check": [CHECK], "ids": ["0, 3"]})
        assert [stage for stage, _ in lm.prompts] == ["check", "ids"]
        numbered = "\n".join(f"knowledge {i}: {line}" for i, line in enumerate(LINES))
        (check,), (ids,) = lm.prompts_of("check"), lm.prompts_of("ids")
        assert check.endswith(f"\nQuestion: {QUESTION}\n{numbered}\nRelevance (one line per passage, from 0):")
        assert ids.endswith(
            f"\nQuestion: {QUESTION}\nThe passages, numbered from 0 to 4:\n{numbered}\nIds (numbers only):"
        )
        assert ids.index(f"\nContext:\n{CHECK}\n") < ids.index(numbered)
        assert "not by what you remember about lighthouses." in check
        assert result.kept == [PASSAGES[0], PASSAGES[3]]
        assert (result.status, result.reason, result.flags) == ("ids", CHECK, {})

    def test_the_topic_is_asked_where_it_is_not_given(self) -> None:
        result, lm = filtered({"topic": ["The harbours\nof isles"], "check": [CHECK], "ids": ["0"]}, topic=None)
        assert [stage for stage, _ in lm.prompts] == ["topic", "check", "ids"]
        assert QUESTION in lm.prompts_of("topic")[0]
        assert "remember about The harbours." in lm.prompts_of("check")[0]
        assert result.kept == [PASSAGES[0]]

    @pytest.mark.parametrize(("k", "caps"), [(1, [448, 32, 32]), (6, [496, 36, 36]), (15, [928, 72, 72])])
    def test_above_five_passages_the_caps_grow(self, k: int, caps: list[int]) -> None:
        """Fifteen numbers with commas do not fit 32 tokens; chat models judge a passage in some 60."""
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


ONE_BY_ONE = [f"{i}: {words}" for i, words in enumerate(("names the light - relevant", "keeps it - irrelevant"))]
CUT = "\n".join([*ONE_BY_ONE, "2: tells of"])


def cut(text: str) -> Any:
    return response(text, finish="length")


class TestCutJudgements:
    """A model that writes more than its cap must not lose passages that it never came to."""

    def test_the_check_is_asked_once_more_with_twice_the_room(self) -> None:
        result, lm = filtered({"check": [cut(CUT), CHECK], "ids": ["0"]})
        assert [stage for stage, _ in lm.prompts] == ["check", "check", "ids"]
        first, second = lm.prompts_of("check")
        assert first == second
        assert [request.config.max_tokens for request in lm.inner.requests] == [448, 896, 32]
        assert f"\nContext:\n{CHECK}\n" in lm.prompts_of("ids")[0]
        assert (result.kept, result.status, result.flags) == ([PASSAGES[0]], "ids", {})

    def test_a_judgement_that_repeats_itself_is_not_asked_for_with_more_room(self) -> None:
        """More room would bring more of the same; what it did not reach is kept."""
        loop = "\n".join([*ONE_BY_ONE, *["2: it tells of the light that was lit on the quay of the town"] * 20])
        result, lm = filtered({"check": [cut(loop)], "ids": ["0"]})
        assert [stage for stage, _ in lm.prompts] == ["check", "ids"]
        assert (result.kept, result.flags) == ([PASSAGES[i] for i in (0, 3, 4)], {"cut_judgement": 1})

    def test_cut_again_what_it_did_not_reach_is_kept_and_the_branch_is_suspect(self) -> None:
        """It judged 0 and 1, was cut in 2, and the ids name 0: 2, 3 and 4 were never judged."""
        result, lm = filtered({"check": [cut("0: na"), cut(CUT)], "ids": ["0"]})
        assert result.kept == [PASSAGES[i] for i in (0, 2, 3, 4)]
        assert (result.status, result.reason, result.flags) == ("suspect", CUT, {"cut_judgement": 1})
        assert lm.calls == 3

    def test_none_of_a_judgement_that_was_cut_drops_only_what_it_judged(self) -> None:
        result, _ = filtered({"check": [cut(CUT), cut(CUT)], "ids": ["none"]}, offer_none=True)
        assert result.kept == [PASSAGES[i] for i in (2, 3, 4)]
        assert (result.status, result.flags) == ("suspect", {"explicit_none": 1, "cut_judgement": 1})

    def test_the_judge_is_not_asked_twice_but_drops_no_more(self) -> None:
        result, lm = once({"judge": [cut(CUT)], "ids_again": ["1"]})
        assert [stage for stage, _ in lm.prompts] == ["judge", "ids_again"]
        assert result.kept == [PASSAGES[i] for i in (1, 2, 3, 4)]
        assert (result.status, result.flags) == ("suspect", {"cut_judgement": 1})

    @pytest.mark.parametrize(
        ("judgement", "left"),
        [
            ("", [0, 1, 2]),
            ("All of them speak of lights, and 0 is", [0, 1, 2]),  # it goes through them in no order
            ("0: a light - relevant\n1: a", [1, 2]),
            ("**Knowledge 0:** a light.\n\n**Knowledge 1:** a hill.\n\n**Knowledge 2", [2]),
            ("- knowledge 1) a hill\n- knowledge 2) a light\n- knowledge 0) a", [0]),
            ("Knowledge 0 is relevant: a light.\nKnowledge 1 is not: a hill.\nKnowledge 2 is", [2]),
            ("0. a light of\n1884 miles\n1. a hill\n2. a", [2]),
            ('{"judgements": [{"id": 0, "reason": "a light"}, {"id": 2, "rea', [1, 2]),
            ("0: a light\n17: a hill\n1: a", [1, 2]),
        ],
    )
    def test_what_was_judged_is_followed_by_another_judgement(self, judgement: str, left: list[int]) -> None:
        assert unreached(judgement, 3) == left

    def test_a_method_counts_it(self) -> None:
        replies = {**REPLIES, "check": cut(CUT)}
        with dspy.context(lm=ScriptedLM(lambda stage, prompt: replies[stage])):
            result = BlendFilter(lambda query, k: FIVE)(question=QUESTION)
        assert result.flags["cut_judgement"] == 1  # the three queries bring the same list, which is filtered once
        assert result.flags["cut_reply"] == 2
        assert {branch.ids_read for branch in result.branches.values()} == {"suspect"}


class TestReplyTokens:
    def test_the_caps_of_judgements_move_with_those_of_reasonings(self) -> None:
        wording = TaskWording().with_reply_tokens(1024)
        _, lm = filtered({"check": [CHECK], "ids": ["0"]}, wording=wording)
        assert [request.config.max_tokens for request in lm.inner.requests] == [1024 + 192, 32]
        _, lm = once({"judge": ["Ids: 0"]}, wording=wording)
        assert [request.config.max_tokens for request in lm.inner.requests] == [1024 + 320]


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
        assert ids_schema(500, offer_none=True)["items"]["enum"] == list(range(500))
        assert ids_schema(501, offer_none=True)["items"] == {"type": "integer", "minimum": 0, "maximum": 500}

    @pytest.mark.parametrize(("offer_none", "least"), [(False, 1), (True, 0)])
    def test_an_empty_list_is_permitted_only_where_none_is_offered(self, offer_none: bool, least: int) -> None:
        settings = {"offer_none": offer_none, "json_schema": True}
        _, lm = filtered({"check": [CHECK], "ids": ['{"ids": [0]}']}, **settings)
        assert self.formats(lm)["ids"]["schema"]["properties"]["ids"]["minItems"] == least
        _, lm = once({"judge": ['{"judgements": [], "ids": [0]}']}, **settings)
        assert self.formats(lm)["judge"]["schema"]["properties"]["ids"]["minItems"] == least

    def test_an_empty_list_against_the_schema_is_asked_again_and_drops_nothing(self) -> None:
        """Some servers follow a schema but for its least number of items; the answer must not come from nothing."""
        empty = '{"ids": []}'
        result, _ = filtered({"check": [CHECK], "ids": [empty], "ids_again": [empty]}, json_schema=True)
        assert (result.kept, result.status, result.flags) == (FIVE, "suspect", {"suspect_ids": 1})
        result, _ = once({"judge": ['{"judgements": [], "ids": []}'], "ids_again": ['{"ids": [3]}']}, json_schema=True)
        assert (result.kept, result.status, result.flags) == ([PASSAGES[3]], "ids", {"suspect_ids": 1})
        result, _ = filtered({"check": [CHECK], "ids": [empty]}, json_schema=True, offer_none=True)
        assert (result.kept, result.status) == ([], "none")

    @pytest.mark.parametrize("held", [True, False])
    def test_templates_read_whether_the_reply_is_held_to_json(self, held: bool, tmp_path: Path) -> None:
        text = "{{ instructions }} {{ question }}{% block again %}{% endblock %} {{ 'as JSON' if json else 'as text' }}"
        (tmp_path / "blendfilter").mkdir()
        for name in ("check", "ids", "judge"):
            (tmp_path / f"blendfilter/{name}.j2").write_text(text)
        settings = {"prompts": Prompts(tmp_path), "json_schema": held}
        _, lm = filtered({"check": [CHECK], "ids": ["?"], "ids_again": ["0"]}, **settings)
        _, judged = once({"judge": ["Ids: 0"]}, **settings)
        prompts = dict([*lm.prompts, *judged.prompts])
        assert prompts["check"].endswith("as text")  # only the ids follow a schema
        for stage in ("ids", "ids_again", "judge"):
            assert prompts[stage].endswith("as JSON" if held else "as text")

    @pytest.mark.parametrize(("setting", "asks"), [(None, True), (False, False), (True, True)])
    def test_by_default_the_models_profile_decides(self, setting: bool | None, asks: bool) -> None:
        with scripted({"check": [CHECK], "ids": ["0"]}) as lm, dspy.context(lm=lm):
            lm.profile = Profile(json_schema=True)
            chosen = KnowledgeFilter(json_schema=setting)
            asyncio.run(chosen.acall(question=QUESTION, passages=FIVE, topic=""))
        assert (self.formats(lm)["ids"] is not None) is asks


def once(answers: dict[str, list[Any]], passages: Any = FIVE, **settings: Any) -> tuple[dspy.Prediction, ScriptedLM]:
    with scripted(answers) as lm, dspy.context(lm=lm):
        return asyncio.run(OneCallFilter(**settings).acall(question=QUESTION, passages=passages)), lm


class TestOneCall:
    def test_one_call_over_the_numbered_knowledge(self) -> None:
        result, lm = once({"judge": ["0 is relevant.\n3: relevant too.\nIds: 3, 0"]})
        assert [stage for stage, _ in lm.prompts] == ["judge"]
        numbered = "\n".join(f"knowledge {i}: {line}" for i, line in enumerate(LINES))
        assert lm.prompts[0][1].endswith(
            f"\nQuestion: {QUESTION}\n{numbered}\nJudgement (one line per passage, then the ids):"
        )
        assert result.kept == [PASSAGES[0], PASSAGES[3]]
        assert (result.status, result.flags) == ("ids", {})
        assert result.reason == "0 is relevant.\n3: relevant too.\nIds: 3, 0"

    @pytest.mark.parametrize(("k", "judge", "again"), [(1, 576, 32), (5, 576, 32), (15, 1216, 72)])
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
        assert again.endswith("No sentence, no explanation.\nIds (numbers only):")
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
            ('{"judgements": [{"id": true, "relevant": false}], "ids": [1, 2]}', (1, 2)),
            ('```json\n{"ids": [4]}\n```', (4,)),
            # Other openings of the last line.
            ("\nRelevant: 0", (0,)),
            ("Final ids: 0", (0,)),
            ("So the relevant ids: 0", (0,)),
            ("So, the final relevant ids: 0, 2", (0, 2)),
            ("**Relevant passages:** 0, 2", (0, 2)),
            ("The relevant ids are: 0, 2", (0, 2)),
            ("The relevant ids are 0 and 2.", (0, 2)),
            ("Ids = 0", (0,)),
            ("Ids - 0, 2", (0, 2)),
            ("Relevant: 0\nIrrelevant: 1, 2", (0,)),
            # The next example, invented.
            ("0: gives the year - relevant\nIds: 0\nQuestion: Who?\nIds: 0, 1", (0,)),
            (
                "Ids: 0\n\nknowledge 0: Tolm | A town.\nQuestion: Who?\nJudgement (one line):\n0: a - relevant\nIds: 1",
                (0,),
            ),
            ("Here is what I think.\n\nJudgement:\n0: a light - relevant\nIds: 0", (0,)),
            # Ids in a title, quoted in a judgement.
            ("0: the year - relevant\n2: port. Ids: 1, 2 - irrelevant\nIds: 0", (0,)),
            ("2: port. Ids: 1, 2 - relevant\nIds: 2", (2,)),
            # Judgements that agree with the ids, or do not say plainly what they think.
            ("0: gives the year - relevant\n1: may be relevant\nIds: 0", (0,)),
            ("0: gives the year - relevant\n1: may be relevant\nIds: 0, 1", (0, 1)),
            ("0: relevant - gives the year\n1: irrelevant - a hill\nIds: 0", (0,)),
            ("0: relevant - gives the year\n1: irrelevant - says nothing that is relevant\nIds: 0", (0,)),
            ("0: irrelevant - does not say who\n1: relevant - not the first, but gives the year\nIds: 1", (1,)),
            ("0: relevant - a light. 1: irrelevant - a hill. Ids: 0", (0,)),
            ("- **0**: year - **relevant**\n- **1**: hill - **not relevant**\nIds: 0", (0,)),
            ("0: a hill - irrelevant\n0: on second thoughts - relevant\nIds: 0", (0,)),
            ("0: the year - relevant\n2 passages are relevant\nIds: 0", (0,)),
            ("0: Passage 1 names it - relevant\n1: a hill - irrelevant\nIds: 0", (0,)),
            ("0: not about the year - relevant\n1: no relevant fact\nIds: 0", (0,)),
            ("0: a light, somewhat relevant\n1: the year - relevant\nIds: 1", (1,)),
            # A plain verdict on every passage, and no ids behind them.
            ("0: relevant - the year\n1: irrelevant - a hill\n2: relevant\n3: irrelevant\n4: not relevant", (0, 2)),
            ("0: the year - relevant\n1: a hill - irrelevant\n\n" + _IRRELEVANT_2_TO_4, (0,)),
            ("0: relevant\n1: irrelevant\n" + _IRRELEVANT_2_TO_4 + "\nThe relevant passage is 0.", (0,)),
            ("0: relevant\n1: relevant\n" + _IRRELEVANT_2_TO_4 + "\n\nThe relevant passages are 0 and 1.", (0, 1)),
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
            "0: the year - relevant\n1: a hill - irrelevant\n2: port. Ids: 1, 2",  # of its title
            "2: port. Ids: 1, 2",
            # Verdicts, but not a plain one on each passage and nothing else.
            "0: relevant\n1: may be relevant\n" + _IRRELEVANT_2_TO_4,
            "0: relevant\n0: irrelevant\n1: irrelevant\n" + _IRRELEVANT_2_TO_4,
            "0: relevant\n1: irrelevant\n" + _IRRELEVANT_2_TO_4 + "\nNone of them says it, though.",
            "0: relevant\n1: irrelevant\n" + _IRRELEVANT_2_TO_4 + "\nThe relevant passage is 1.",
            "0: irrelevant\n1: irrelevant\n" + _IRRELEVANT_2_TO_4,  # nothing is kept only where "none" is said
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
            # Ids that go against the judgements.
            ('{"judgements": [{"id": 0, "reason": "", "relevant": true}], "ids": [1]}', "suspect"),
            ('{"judgements": [{"id": 0, "reason": "", "relevant": false}], "ids": [0]}', "suspect"),
            ('So:\n```json\n{"judgements": [{"id": 0, "relevant": true}], "ids": [1]}\n```', "suspect"),
            ("0: gives the year - relevant\n1: a hill - irrelevant\nIds: none", "suspect"),
            ("0: relevant - gives the year\n1: irrelevant - a hill\nIds: 1", "suspect"),
            ("0: a - irrelevant\n1: b - irrelevant\n2: c - irrelevant\nIds: 0, 1, 2", "suspect"),
            ("0: gives the year - relevant\n1: gives the keeper - relevant\nIds: 0", "suspect"),
            ("0: a light - relevant\n1: a hill - not relevant to the question\nIds: 0, 1", "suspect"),
            ("Knowledge 0 is relevant.\nKnowledge 1 isn't relevant.\nIds: 1", "suspect"),
            ("1. gives the year - relevant\n2. a hill - irrelevant\nIds: 0", "suspect"),  # counted from 1
            ("0: relevant. 1: irrelevant. Ids: 1", "suspect"),
            ("1: relevant\n" + _IRRELEVANT_2_TO_4 + "\n5: relevant\nIds: 1, 5", "suspect"),  # counted from 1
            ("0: irrelevant\n1: irrelevant\n" + _IRRELEVANT_2_TO_4 + "\nNone of them is relevant.", "none"),
            ("Relevant: none", "none"),
            ("0: a hill - irrelevant\n1: a town - irrelevant\nIds: none", "none"),
            ("Ids: 0\nKnowledge 3 may be relevant, too.", "suspect"),
        ],
    )
    def test_status(self, reply: str, status: str) -> None:
        assert read_judgement(reply, 5).status == status


class TestPointwise:
    """One call a passage: yes keeps it, no drops it, and what is neither is kept and counted."""

    def filtered(self, replies: dict[str, str], passages: Any = FIVE[:3], **settings: Any) -> Any:
        """The result where a passage is judged as `replies` says by its title."""

        def reply(stage: str, prompt: str) -> str:
            assert stage == "relevant"
            passage, question, cue = prompt.split("\n")[-3:]
            assert (question, cue) == (f"Question: {QUESTION}", "Relevant (Yes or No):")
            return replies[passage.removeprefix("Passage: ").partition(" | ")[0]]

        lm = ScriptedLM(reply)
        with dspy.context(lm=lm):
            return asyncio.run(PointwiseFilter(**settings).acall(question=QUESTION, passages=passages)), lm

    def test_each_passage_is_asked_for_alone(self) -> None:
        result, lm = self.filtered({"Tolm Harbour": "Yes", "Skerry Light": "Yes.", "Quillmere": "No"})
        assert result.kept == FIVE[:2]
        assert (result.status, result.verdicts, result.flags) == ("ids", [True, True, False], {})
        assert result.reason == "0: relevant\n1: relevant\n2: irrelevant"
        assert all(sum(line in prompt for line in LINES) == 1 for _, prompt in lm.prompts)

    def test_a_reply_that_is_no_verdict_keeps_its_passage_and_is_counted(self) -> None:
        result, _ = self.filtered({"Tolm Harbour": "No", "Skerry Light": "It is a lighthouse.", "Quillmere": "No"})
        assert result.kept == [FIVE[1]]
        assert result.flags == {"no_verdict": 1}

    @pytest.mark.parametrize(
        ("offer_none", "kept", "status", "flags"),
        [(False, FIVE[:2], "suspect", {"suspect_ids": 1}), (True, [], "none", {"explicit_none": 1})],
    )
    def test_nothing_relevant_keeps_nothing_only_where_the_task_offers_that(
        self, offer_none: bool, kept: list[Passage], status: str, flags: dict[str, int]
    ) -> None:
        no = {"Tolm Harbour": "No", "Skerry Light": "No"}
        result, _ = self.filtered(no, FIVE[:2], offer_none=offer_none)
        assert (result.kept, result.status, result.flags) == (kept, status, flags)

    def test_passages_that_read_the_same_are_judged_once(self) -> None:
        twice = [FIVE[0], Passage("other", FIVE[0].title, FIVE[0].text)]
        result, lm = self.filtered({"Tolm Harbour": "Yes"}, twice)
        assert len(lm.prompts) == 1
        assert result.kept == twice
        silent, _ = self.filtered({"Tolm Harbour": "Hard to say."}, twice)
        assert (silent.verdicts, silent.flags) == ([None, None], {"no_verdict": 1}), "one reply was no verdict"

    def test_a_very_small_model_is_shown_a_yes_and_a_no(self) -> None:
        ask = PointwiseFilter(wording=TaskWording.of("twowiki")).relevant
        assert {demo["relevant"] for demo in ask.raw.demos} == {"Yes", "No"}

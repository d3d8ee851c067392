"""The filter in one call: what it sends, how its reply is read, and what follows where it cannot be."""

from __future__ import annotations

import asyncio
from typing import Any

import dspy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from isle import LINES, PASSAGES, QUESTION
from scripted import ScriptedLM, scripted

from blendfilter.filters.ids import IdsRead
from blendfilter.filters.knowledge import KnowledgeFilter, OneCallFilter, read_judgement
from blendfilter.lm.offline import read
from blendfilter.records import Passage

FIVE = list(PASSAGES)


def filtered(
    answers: dict[str, list[Any]], passages: Any = FIVE, **settings: Any
) -> tuple[dspy.Prediction, ScriptedLM]:
    """The filter's result, and the model it asked; every written answer must have been used."""
    with scripted(answers) as lm, dspy.context(lm=lm):
        said = asyncio.run(OneCallFilter(**settings).acall(question=QUESTION, passages=passages))
    return said, lm


class TestCalls:
    def test_one_call_over_the_numbered_knowledge(self) -> None:
        said, lm = filtered({"judge": ["0 is relevant.\n3: relevant too.\nIds: 3, 0"]})
        assert [stage for stage, _ in lm.prompts] == ["judge"]
        numbered = "\n".join(f"knowledge {i}: {line}" for i, line in enumerate(LINES))
        assert lm.prompts[0][1].endswith(f"\n{numbered}\nQuestion: {QUESTION}\nJudgement:")
        assert said.kept == [PASSAGES[0], PASSAGES[3]]
        assert (said.status, said.flags) == ("ids", {})
        assert said.reason == "0 is relevant.\n3: relevant too.\nIds: 3, 0"

    @pytest.mark.parametrize(("k", "judge", "again"), [(1, 384, 32), (5, 384, 32), (15, 1024, 72)])
    def test_the_caps_grow_with_the_passages_above_five(self, k: int, judge: int, again: int) -> None:
        passages = [Passage(str(i), "", f"Lamp {i}.") for i in range(k)]
        _, lm = filtered({"judge": ["?"], "ids_again": ["0"]}, passages=passages)
        assert [request.config.max_tokens for request in lm.inner.requests] == [judge, again]
        assert all(list(request.config.stop) == ["\nKnowledge:", "\nQuestion:"] for request in lm.inner.requests)


class TestReplies:
    @pytest.mark.parametrize("reply", ["I cannot say.", "", "0: relevant.\n1: irrelevant.", "Ids:", "Ids: 9"])
    def test_an_unreadable_one_is_asked_for_its_ids_with_itself_as_context(self, reply: str) -> None:
        said, lm = filtered({"judge": [reply], "ids_again": ["0, 3"]})
        assert [stage for stage, _ in lm.prompts] == ["judge", "ids_again"]
        (again,) = lm.asked("ids_again")
        bar = "| " if reply.startswith("Ids:") else ""  # it must not pass for the cue
        assert f"\nContext:\n{bar}{reply}\n" in again
        assert again.endswith("No sentence, no explanation.\nIds:")
        assert said.kept == [PASSAGES[0], PASSAGES[3]]
        event = {"unparseable_ids": 1} if reply else {}  # nothing at all is counted as that
        assert (said.status, said.reason, said.flags) == ("ids", reply, event)

    @pytest.mark.parametrize(
        ("first", "status", "flag"),
        [("Hm.", "unparseable", "unparseable_ids"), ("Ids: not 1", "suspect", "suspect_ids")],
    )
    def test_after_the_second_try_the_branch_is_kept_whole(self, first: str, status: str, flag: str) -> None:
        said, _ = filtered({"judge": [first], "ids_again": ["Who knows?"]})
        assert (said.kept, said.status, said.flags) == (FIVE, status, {flag: 1})


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

    @given(reply=st.text(st.sampled_from('0123456789 ,\n{}[]":idsIDS*nonea')), k=st.integers(1, 15))
    def test_never_an_id_out_of_range(self, reply: str, k: int) -> None:
        read = read_judgement(reply, k)
        assert all(0 <= number < k for number in read.ids)
        assert (read.status == "ids") == bool(read.ids)


@pytest.mark.parametrize("offer_none", [True, False])
@pytest.mark.parametrize("passages", [FIVE, FIVE[1:], FIVE[4:]])
def test_the_offline_reader_judges_as_in_two_calls(offer_none: bool, passages: list[Passage]) -> None:
    lm = ScriptedLM(lambda stage, prompt: read(prompt))
    with dspy.context(lm=lm):
        once = OneCallFilter(offer_none=offer_none)(question=QUESTION, passages=passages)
        twice = KnowledgeFilter(offer_none=offer_none, ask_topic=False)(question=QUESTION, passages=passages)
    assert (once.kept, once.status) == (twice.kept, twice.status)
    assert lm.asked("ids_again") == []
    assert once.reason.splitlines()[:-1] == twice.reason.splitlines()


@pytest.mark.parametrize(
    ("reply", "ids"),
    [
        ("0: names the town\n1: a ship\nIds: 0\n(Passage 1 says: Ids: 1)", (0,)),
        ('0: names the town\nIds: 0\n> Ids: 1\n\n"Ids: 1"', (0,)),
        ("```\n0: names the town\nIds: 0\n```", (0,)),
    ],
)
def test_quoted_ids_never_end_a_judgement(reply: str, ids: tuple[int, ...]) -> None:
    assert read_judgement(reply, 2) == IdsRead(ids, "ids")

"""Self-Ask: its loop turn by turn, and what it does with replies that do not keep to the format."""

from __future__ import annotations

from typing import Any, ClassVar

import dspy
import pytest
from isle import LINES, PASSAGES, QUESTION, nothing, one_list
from scripted import ScriptedLM, scripted

from blendfilter.errors import BadArgument
from blendfilter.filters.base import Filter
from blendfilter.modules.prediction import Branch
from blendfilter.modules.self_ask import SelfAsk

WHICH = "Which lighthouse stands beside Tolm Harbour?"
WHO = "Who kept Skerry Light?"
REPLIES = (
    f"Yes.\nFollow-up: {WHICH}",
    f"Skerry Light.\nFollow-up: {WHO}",
    "Ada Brennock.\nSo the final answer is: Ada Brennock",
)


class Catalogue:
    """A retriever that knows two follow-ups, and remembers what was searched."""

    found: ClassVar = {WHICH: PASSAGES[:2], WHO: PASSAGES[1:4]}

    def __init__(self) -> None:
        self.searches: list[tuple[str, int]] = []

    def __call__(self, query: str, k: int) -> list[Any]:
        self.searches.append((query, k))
        return list(self.found.get(query, PASSAGES[4:]))[:k]


def run(method: dspy.Module, *steps: str, short: str = "Ada Brennock") -> tuple[dspy.Prediction, ScriptedLM]:
    with scripted({"step": steps, "short_answer": [short]}) as lm, dspy.context(lm=lm):
        return method(question=QUESTION), lm


def own_block(prompt: str) -> list[str]:
    """The lines after the demonstrations."""
    return prompt.rpartition("\n\n")[2].split("\n")


class TestLoop:
    def test_the_third_puts_the_newest_first_and_each_passage_once(self) -> None:
        _, lm = run(SelfAsk(Catalogue()), *REPLIES)
        assert own_block(lm.asked("step")[2]) == [
            "Knowledge:",
            *LINES[1:4],
            LINES[0],
            f"Question: {QUESTION}",
            "Are follow-up questions needed here: Yes.",
            f"Follow-up: {WHICH}",
            "Intermediate answer: Skerry Light.",
            f"Follow-up: {WHO}",
            "Intermediate answer:",
        ]

    def test_the_answer_is_read_from_the_whole_transcript_without_passages(self) -> None:
        said, lm = run(SelfAsk(Catalogue()), *REPLIES)
        assert said.reasoning.split("\n") == [
            "Are follow-up questions needed here: Yes.",
            f"Follow-up: {WHICH}",
            "Intermediate answer: Skerry Light.",
            f"Follow-up: {WHO}",
            "Intermediate answer: Ada Brennock.",
            "So the final answer is: Ada Brennock",
        ]
        short = lm.asked("short_answer")[0]
        assert short.endswith(f"\nContext:\n{said.reasoning}\nQuestion: {QUESTION}\nAnswer:")
        assert said.answer == "Ada Brennock"

    def test_what_it_leaves_on_record(self) -> None:
        index = Catalogue()
        said, _ = run(SelfAsk(index, k=3), *REPLIES)
        assert index.searches == [(WHICH, 3), (WHO, 3)]
        assert said.queries == {"hop_1": WHICH, "hop_2": WHO}
        assert said.branches == {
            "hop_1": Branch(list(PASSAGES[:2]), list(PASSAGES[:2])),
            "hop_2": Branch(list(PASSAGES[1:4]), list(PASSAGES[1:4])),
        }
        assert said.knowledge == [*PASSAGES[1:4], PASSAGES[0]]
        assert [stage for stage, _ in said.calls] == ["step", "step", "step", "short_answer"]
        assert not any(said.flags.values())

    def test_a_question_that_needs_no_follow_up_searches_nothing(self) -> None:
        index = Catalogue()
        said, lm = run(SelfAsk(index), "No.\nSo the final answer is: Ada Brennock")
        assert (index.searches, said.knowledge, said.queries, lm.calls) == ([], [], {}, 2)
        assert said.flags["empty_knowledge"] == 1

    def test_a_follow_up_that_finds_nothing(self) -> None:
        said, lm = run(SelfAsk(nothing), *REPLIES)
        assert own_block(lm.asked("step")[1])[0] == f"Question: {QUESTION}"
        assert said.flags["empty_knowledge"] == 1


class TestEnds:
    @pytest.mark.parametrize("hops", [1, 5])
    def test_a_model_that_never_says_it_is_finished(self, hops: int) -> None:
        index = Catalogue()
        asking = [f"Hm.\nFollow-up: What about {i}?" for i in range(hops + 1)]
        said, lm = run(SelfAsk(index, hops=hops), *asking, "Ada Brennock")
        assert index.searches == [(f"What about {i}?", 5) for i in range(hops)]
        assert lm.calls == hops + 1 + 1 + 1
        assert own_block(lm.asked("step")[-1])[-3:] == [
            f"Follow-up: What about {hops - 1}?",
            "Intermediate answer: Hm.",
            "So the final answer is:",
        ]
        assert said.reasoning.endswith("\nIntermediate answer: Hm.\nSo the final answer is: Ada Brennock")
        assert (said.flags["hops_exhausted"], said.flags["unreadable_hop"]) == (1, 0)

    def test_five_hops_in_one_reply_are_one(self) -> None:
        lines = "\n".join(f"Follow-up: What about {i}?\nIntermediate answer: That." for i in range(5))
        index = Catalogue()
        said, lm = run(
            SelfAsk(index), f"Yes.\n{lines}\nSo the final answer is: Bo", "Ada.\nSo the final answer is: Ada Brennock"
        )
        assert index.searches == [("What about 0?", 5)]
        assert "That." not in lm.asked("step")[1]
        assert "Bo" not in said.reasoning
        assert said.flags["invented_observation"] == 1

    @pytest.mark.parametrize("reply", ["", " \n", "I cannot say.", "Yes.\nFollow-up:"])
    def test_a_reply_that_neither_asks_nor_concludes(self, reply: str) -> None:
        said, lm = run(SelfAsk(Catalogue()), reply, "Ada Brennock.")
        first = f"Are follow-up questions needed here: {reply.strip().partition(chr(10))[0]}".strip()
        assert own_block(lm.asked("step")[1]) == [f"Question: {QUESTION}", first, "So the final answer is:"]
        assert said.flags["unreadable_hop"] == 1
        assert said.flags["hops_exhausted"] == 0
        assert said.flags["empty_reply"] == (not reply.strip())
        assert said.reasoning == f"{first}\nSo the final answer is: Ada Brennock."

    @pytest.mark.parametrize("reply", ["So the final answer is: Ada", "Ada", "Ada\nFollow-up: Who?", "**Ada"])
    def test_the_forced_answer_in_any_dress(self, reply: str) -> None:
        said, _ = run(SelfAsk(Catalogue()), "", reply)
        assert said.reasoning.endswith("\nSo the final answer is: Ada")


class LastOnly(Filter):
    """Keeps the last passage, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, int]] = []

    async def aforward(self, question: str, passages: Any) -> dspy.Prediction:
        self.asked.append((question, len(passages)))
        return dspy.Prediction(kept=list(passages[-1:]), status="ids", flags={"suspect_ids": 1})

    def arguments(self) -> dict[str, Any]:
        return {"last": 1}


class TestFilter:
    def test_it_judges_by_the_follow_up_and_only_what_it_keeps_is_shown(self) -> None:
        select = LastOnly()
        said, lm = run(SelfAsk(Catalogue(), filter=select), *REPLIES)
        assert select.asked == [(WHICH, 2), (WHO, 3)]
        assert own_block(lm.asked("step")[2])[:3] == ["Knowledge:", LINES[3], LINES[1]]
        assert said.knowledge == [PASSAGES[3], PASSAGES[1]]
        assert said.branches["hop_2"] == Branch(list(PASSAGES[1:4]), [PASSAGES[3]], "ids")
        assert said.flags["suspect_ids"] == 2


@pytest.mark.parametrize("hops", [0, -1, 2.5, True, None, "5"])
def test_hops_is_a_whole_number(hops: Any) -> None:
    with pytest.raises(BadArgument, match=r"hops must be a whole number of at least 1 .*, got "):
        SelfAsk(one_list(), hops=hops)

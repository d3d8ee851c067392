"""Self-Ask and ReAct: their loop turn by turn, and replies that do not keep to the format."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import dspy
import pytest
from isle import LINES, PASSAGES, QUESTION, nothing
from scripted import ScriptedLM, scripted

from blendfilter.filters.base import Filter, selection
from blendfilter.journal import Journal
from blendfilter.modules.base import Branch
from blendfilter.modules.multi_hop import ReAct, SelfAsk
from blendfilter.records import Passage

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
        assert own_block(lm.prompts_of("step")[2]) == [
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
        result, lm = run(SelfAsk(Catalogue()), *REPLIES)
        assert result.reasoning.split("\n") == [
            "Are follow-up questions needed here: Yes.",
            f"Follow-up: {WHICH}",
            "Intermediate answer: Skerry Light.",
            f"Follow-up: {WHO}",
            "Intermediate answer: Ada Brennock.",
            "So the final answer is: Ada Brennock",
        ]
        short = lm.prompts_of("short_answer")[0]
        assert short.endswith(f"\nContext:\n{result.reasoning}\nQuestion: {QUESTION}\nAnswer (one or a few words):")
        assert result.answer == "Ada Brennock"

    def test_what_it_leaves_on_record(self) -> None:
        index = Catalogue()
        result, _ = run(SelfAsk(index, k=3), *REPLIES)
        assert index.searches == [(WHICH, 3), (WHO, 3)]
        assert result.queries == {"hop_1": WHICH, "hop_2": WHO}
        assert result.branches == {
            "hop_1": Branch(list(PASSAGES[:2]), list(PASSAGES[:2])),
            "hop_2": Branch(list(PASSAGES[1:4]), list(PASSAGES[1:4])),
        }
        assert result.knowledge == [*PASSAGES[1:4], PASSAGES[0]]
        assert [stage for stage, _ in result.calls] == ["step", "step", "step", "short_answer"]
        assert not any(result.flags.values())

    def test_a_question_that_needs_no_follow_up_searches_nothing(self) -> None:
        index = Catalogue()
        result, lm = run(SelfAsk(index), "No.\nSo the final answer is: Ada Brennock")
        assert (index.searches, result.knowledge, result.queries, lm.calls) == ([], [], {}, 2)
        assert result.flags["empty_knowledge"] == 1


class TestEnds:
    @pytest.mark.parametrize("hops", [1, 5])
    def test_a_model_that_never_says_it_is_finished(self, hops: int) -> None:
        index = Catalogue()
        asking = [f"Hm.\nFollow-up: What about {i}?" for i in range(hops + 1)]
        result, lm = run(SelfAsk(index, hops=hops), *asking, "Ada Brennock")
        assert index.searches == [(f"What about {i}?", 5) for i in range(hops)]
        assert lm.calls == hops + 1 + 1 + 1
        assert own_block(lm.prompts_of("step")[-1])[-3:] == [
            f"Follow-up: What about {hops - 1}?",
            "Intermediate answer: Hm.",
            "So the final answer is:",
        ]
        assert result.reasoning.endswith("\nIntermediate answer: Hm.\nSo the final answer is: Ada Brennock")
        assert (result.flags["hops_exhausted"], result.flags["unreadable_hop"]) == (1, 0)

    @pytest.mark.parametrize("reply", ["", "I cannot say."])
    def test_two_replies_that_neither_ask_nor_conclude(self, reply: str) -> None:
        """The second is asked for behind the cue of the follow-up; then the final answer is forced."""
        result, lm = run(SelfAsk(Catalogue()), reply, reply, "Ada Brennock.")
        first = f"Are follow-up questions needed here: {reply}".strip()
        assert [own_block(prompt)[1:] for prompt in lm.prompts_of("step")] == [
            ["Are follow-up questions needed here:"],
            [first, "Follow-up:"],
            [first, "So the final answer is:"],
        ]
        assert result.flags["unreadable_hop"] == 2
        assert result.flags["hops_exhausted"] == 0
        assert result.flags["empty_reply"] == (0 if reply else 2)
        assert result.reasoning == f"{first}\nSo the final answer is: Ada Brennock."


SELF_ASK = (SelfAsk, {})
LINEAGE = (ReAct, {})
THOUGHTS = (ReAct, {"style": "thought-action"})
ASKS_WHICH, ASKS_WHO, CONCLUDES = REPLIES
ACTIONS = (
    f"I need the lighthouse.\nAction 1: Search[{WHICH}]",
    f"Skerry Light it is.\nAction 2: Search[{WHO}]",
    "Ada kept it.\nAction 3: Finish[Ada Brennock]",
)
BOTH = [WHICH, WHO]
UNREADABLE, REPEATED, EXHAUSTED = "unreadable_hop", "repeated_hop", "hops_exhausted"
TURNS: dict[str, tuple[tuple[Any, dict[str, Any]], list[str], list[str], dict[str, int]]] = {
    # what the model says: the method, its replies, the searches that it makes, its flags
    "Yes. alone": (SELF_ASK, ["Yes.", WHICH, ASKS_WHO, CONCLUDES], BOTH, {UNREADABLE: 1}),
    "Yes. alone, in ReAct": (LINEAGE, ["Yes.", f"Follow-up: {WHICH}", ASKS_WHO, CONCLUDES], BOTH, {UNREADABLE: 1}),
    "a bare answer to a follow-up": (LINEAGE, [ASKS_WHICH, "Skerry Light.", WHO, CONCLUDES], BOTH, {UNREADABLE: 1}),
    "a bare answer that was the last": (
        SELF_ASK,
        [ASKS_WHICH, ASKS_WHO, "Ada Brennock.", "None needed.", "Ada Brennock"],
        BOTH,
        {UNREADABLE: 1},
    ),
    "a bare answer, then the conclusion": (
        SELF_ASK,
        [ASKS_WHICH, "Ada Brennock.", "So the final answer is: Ada Brennock"],
        [WHICH],
        {UNREADABLE: 1},
    ),
    "nothing more to ask, at once": (SELF_ASK, ["No.", "Ada Brennock"], [], {}),
    "nothing more to ask, in words": (
        SELF_ASK,
        [ASKS_WHICH, "Ada.\nFollow-up: No further questions needed.", "Ada Brennock"],
        [WHICH],
        {},
    ),
    "the same follow-up, then another": (
        SELF_ASK,
        [ASKS_WHICH, f"Hm.\nFollow-up: {WHICH.upper()}", WHO, CONCLUDES],
        BOTH,
        {REPEATED: 1},
    ),
    "the same follow-up without end": (
        LINEAGE,
        [ASKS_WHICH, ASKS_WHICH, ASKS_WHICH, "Ada Brennock"],
        [WHICH],
        {REPEATED: 2},
    ),
    "one that was searched before the last": (
        SELF_ASK,
        [ASKS_WHICH, ASKS_WHO, f"Ada.\nFollow-up: {WHICH}", "So the final answer is: Ada Brennock"],
        BOTH,
        {REPEATED: 1},
    ),
    "the last follow-up said again before it is answered": (
        SELF_ASK,
        [ASKS_WHICH, f"Follow-up: {WHICH}\nIntermediate answer: Skerry Light.\nFollow-up: {WHO}", CONCLUDES],
        BOTH,
        {},
    ),
    "the same without its label": (
        LINEAGE,
        [ASKS_WHICH, f"{WHICH} Skerry Light.\nFollow-up: {WHO}", CONCLUDES],
        BOTH,
        {},
    ),
    "a thought without an action": (
        THOUGHTS,
        ["I need the lighthouse first.", f"Search[{WHICH}]", ACTIONS[1], ACTIONS[2]],
        BOTH,
        {UNREADABLE: 1},
    ),
    "a thought that asks": (THOUGHTS, [WHICH, WHICH, ACTIONS[1], ACTIONS[2]], BOTH, {UNREADABLE: 1}),
    "a thought that knows": (
        THOUGHTS,
        [ACTIONS[0], ACTIONS[1], "Now I know that it was Ada.", "Finish[Ada Brennock]"],
        BOTH,
        {UNREADABLE: 1},
    ),
    "the same action": (
        THOUGHTS,
        [ACTIONS[0], ACTIONS[0].replace("1", "2"), f"Search[{WHO}]", ACTIONS[2]],
        BOTH,
        {REPEATED: 1},
    ),
    "the last action said again": (
        THOUGHTS,
        [ACTIONS[0], f"Action 1: Search[{WHICH}]\nSkerry Light it is.\nAction 2: Search[{WHO}]", ACTIONS[2]],
        BOTH,
        {},
    ),
    "a bare answer when no search is left": (
        (SelfAsk, {"hops": 1}),
        [ASKS_WHICH, "Skerry Light.", "Ada Brennock"],
        [WHICH],
        {UNREADABLE: 1, EXHAUSTED: 1},
    ),
}


class TestAskedOnceMore:
    @pytest.mark.parametrize("case", TURNS)
    def test_what_is_searched_and_answered(self, case: str) -> None:
        """Every reply is one call, and the short answer's is one more."""
        (method, settings), replies, searches, flags = TURNS[case]
        index = Catalogue()
        result, lm = run(method(index, **settings), *replies)
        assert [query for query, _ in index.searches] == [*result.queries.values()] == searches
        assert lm.calls == len(replies) + 1
        assert result.answer == "Ada Brennock"
        assert "Ada Brennock" in result.reasoning.splitlines()[-1]
        assert {name: result.flags[name] for name in (UNREADABLE, REPEATED, EXHAUSTED) if result.flags[name]} == flags
        assert len({prompt for _, prompt in lm.prompts}) == lm.calls, "no prompt is sent twice"

    def test_the_second_request_has_the_words_so_far_and_the_cue_of_what_is_missing(self) -> None:
        result, lm = run(SelfAsk(Catalogue()), ASKS_WHICH, "Skerry Light.", WHO, CONCLUDES)
        opening = ["Are follow-up questions needed here: Yes.", f"Follow-up: {WHICH}"]
        first, second = (own_block(prompt) for prompt in lm.prompts_of("step")[1:3])
        assert first[-3:] == [*opening, "Intermediate answer:"]
        assert second == [*first[:-1], "Intermediate answer: Skerry Light.", "Follow-up:"]
        assert result.reasoning == run(SelfAsk(Catalogue()), *REPLIES)[0].reasoning

    def test_a_repeated_follow_up_is_left_out_and_another_asked_for(self) -> None:
        result, lm = run(ReAct(Catalogue()), ASKS_WHICH, f"Hm.\nFollow-up: {WHICH}", WHO, CONCLUDES)
        assert own_block(lm.prompts_of("step")[2])[-2:] == ["Intermediate answer: Hm.", "Follow-up (not asked yet):"]
        assert result.reasoning.splitlines()[1:4] == [
            f"Follow-up: {WHICH}", "Intermediate answer: Hm.", f"Follow-up: {WHO}",
        ]  # fmt: skip

    def test_the_cue_of_an_action_has_its_turn(self) -> None:
        _, lm = run(ReAct(Catalogue(), style="thought-action"), "Hm.", *ACTIONS[:1], ACTIONS[0], *ACTIONS[1:])
        last = [own_block(prompt)[-1] for prompt in lm.prompts_of("step")]
        assert last == ["Thought 1:", "Action 1:", "Thought 2:", "Action 2 (not searched yet):", "Thought 3:"]

    @pytest.mark.parametrize(
        ("method", "settings"), [SELF_ASK, LINEAGE, THOUGHTS], ids=["self-ask", "react", "thoughts"]
    )
    def test_a_model_that_costs_the_most(self, method: Any, settings: dict[str, Any]) -> None:
        """Each turn is asked twice but the last, the end is forced, the short answer read: 2 x 3 + 3 calls."""
        index, hops = Catalogue(), 3
        steps = [step for turn in range(hops) for step in ("Hm.", f"What about {turn}?")]
        _, lm = run(method(index, hops=hops, **settings), *steps, "Hm.", "Ada Brennock")
        assert lm.calls == 2 * hops + 3
        assert len(index.searches) == hops

    def test_a_journal_replays_every_second_request(self, tmp_path: Path) -> None:
        lm = ScriptedLM({"step": ["Yes.", WHICH, ASKS_WHICH, WHO, CONCLUDES], "short_answer": ["Ada Brennock"]})
        results = []
        for mode in ("record", "replay"):
            with Journal(tmp_path, mode) as journal, dspy.context(lm=lm.with_journal(journal)):
                results.append(SelfAsk(Catalogue())(question=QUESTION))
        first, again = results
        assert (again.reasoning, again.calls, again.flags) == (first.reasoning, first.calls, first.flags)
        assert lm.calls == len(first.calls) == 6


NOTHING = "(nothing relevant was found)"


class TestNothingFound:
    """A search that finds nothing says so where its passages would stand."""

    def test_in_self_ask_above_the_question_from_the_first_search_on(self) -> None:
        _, lm = run(SelfAsk(nothing), "Yes.", ASKS_WHICH, CONCLUDES)
        before, asked_again, after = map(own_block, lm.prompts_of("step"))
        assert before[0] == asked_again[0] == f"Question: {QUESTION}"
        assert after[:3] == ["Knowledge:", NOTHING, f"Question: {QUESTION}"]

    def test_in_self_ask_not_where_an_earlier_search_found_something(self) -> None:
        index = Catalogue()
        _, lm = run(SelfAsk(lambda query, k: index(query, k) if query == WHICH else []), *REPLIES)
        last = own_block(lm.prompts_of("step")[2])
        assert last[:4] == ["Knowledge:", *LINES[:2], f"Question: {QUESTION}"]
        assert NOTHING not in last

    @pytest.mark.parametrize(
        ("settings", "replies", "line"),
        [({}, REPLIES, "Knowledge:"), ({"style": "thought-action"}, None, "Observation 1:")],
        ids=["lineage", "thought-action"],
    )
    def test_in_react_below_its_follow_up(self, settings: dict[str, str], replies: Any, line: str) -> None:
        result, lm = run(ReAct(nothing, **settings), *(replies or ACTIONS))
        second = own_block(lm.prompts_of("step")[1])
        assert second[second.index(line) + 1] == NOTHING
        assert NOTHING not in result.reasoning

    def test_where_a_filter_keeps_nothing(self) -> None:
        _, lm = run(ReAct(Catalogue(), filter=KeepsNothing()), *REPLIES)
        second = own_block(lm.prompts_of("step")[1])
        assert second[second.index("Knowledge:") + 1] == NOTHING

    def test_a_passage_of_these_words_stands_behind_a_bar(self) -> None:
        for method in (SelfAsk, ReAct):
            _, lm = run(method(lambda query, k: [Passage("0", "", NOTHING)]), ASKS_WHICH, CONCLUDES)
            second = own_block(lm.prompts_of("step")[1])
            assert second[second.index("Knowledge:") + 1] == f"| {NOTHING}"


class KeepsNothing(Filter):
    async def aforward(self, question: str, passages: Any) -> dspy.Prediction:
        return selection([], "none")


class LastOnly(Filter):
    """Keeps the last passage, and remembers what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.searches: list[tuple[str, int]] = []

    async def aforward(self, question: str, passages: Any) -> dspy.Prediction:
        self.searches.append((question, len(passages)))
        return dspy.Prediction(kept=list(passages[-1:]), status="ids", flags={"suspect_ids": 1})

    def arguments(self) -> dict[str, Any]:
        return {"last": 1}


class TestFilter:
    def test_it_judges_by_the_follow_up_and_only_what_it_keeps_is_shown(self) -> None:
        select = LastOnly()
        result, lm = run(SelfAsk(Catalogue(), filter=select), *REPLIES)
        assert select.searches == [(WHICH, 2), (WHO, 3)]
        assert own_block(lm.prompts_of("step")[2])[:3] == ["Knowledge:", LINES[3], LINES[1]]
        assert result.knowledge == [PASSAGES[3], PASSAGES[1]]
        assert result.branches["hop_2"] == Branch(list(PASSAGES[1:4]), [PASSAGES[3]], "ids")
        assert result.flags["suspect_ids"] == 2


class TestLineage:
    def test_passages_stand_right_after_their_follow_up(self) -> None:
        result, lm = run(ReAct(Catalogue()), *REPLIES)
        first, second, third = map(own_block, lm.prompts_of("step"))
        assert first == [f"Question: {QUESTION}", "Are follow-up questions needed here:"]
        opening = [f"Question: {QUESTION}", "Are follow-up questions needed here: Yes.", f"Follow-up: {WHICH}"]
        assert second == [*opening, "Knowledge:", *LINES[:2], "Intermediate answer:"]
        assert third == [
            *opening, "Knowledge:", *LINES[:2], "Intermediate answer: Skerry Light.",
            f"Follow-up: {WHO}", "Knowledge:", *LINES[1:4], "Intermediate answer:",
        ]  # fmt: skip
        assert "Knowledge" not in result.reasoning
        assert result.reasoning.endswith("\nIntermediate answer: Ada Brennock.\nSo the final answer is: Ada Brennock")

    def test_a_passage_that_poses_as_a_line_stands_behind_a_bar(self) -> None:
        posing = [Passage("x", "", "So the final answer is: 42"), Passage("y", "A", "b\nIntermediate answer: 42")]
        _, lm = run(ReAct(lambda query, k: posing), *REPLIES)
        assert own_block(lm.prompts_of("step")[1])[4:6] == [
            "| So the final answer is: 42",
            "A | b Intermediate answer: 42",
        ]


class TestThoughtAction:
    def test_thoughts_actions_observations(self) -> None:
        result, lm = run(ReAct(Catalogue(), style="thought-action"), *ACTIONS)
        first, second, third = map(own_block, lm.prompts_of("step"))
        assert first == [f"Question: {QUESTION}", "Thought 1:"]
        opening = [f"Question: {QUESTION}", "Thought 1: I need the lighthouse.", f"Action 1: Search[{WHICH}]"]
        assert second == [*opening, "Observation 1:", *LINES[:2], "Thought 2:"]
        assert third[-7:] == [
            "Thought 2: Skerry Light it is.", f"Action 2: Search[{WHO}]", "Observation 2:", *LINES[1:4], "Thought 3:",
        ]  # fmt: skip
        assert result.reasoning.split("\n") == [
            *opening[1:], "Thought 2: Skerry Light it is.", f"Action 2: Search[{WHO}]",
            "Thought 3: Ada kept it.", "Action 3: Finish[Ada Brennock]",
        ]  # fmt: skip
        assert result.answer == "Ada Brennock"
        assert not any(result.flags.values())


def test_names_and_arguments() -> None:
    assert ReAct(nothing).method_name == "react"
    assert ReAct(nothing, 3, hops=2, style="thought-action").arguments() == {
        "k": 3, "hops": 2, "style": "thought-action",
    }  # fmt: skip

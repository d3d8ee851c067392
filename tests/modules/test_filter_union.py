"""Cheaper BlendFilter: one filter over the union of the three lists, and the filter that needs one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import dspy
import pytest
from isle import LINES, PASSAGES, QUESTION, replies, three_lists
from scripted import ScriptedLM

from blendfilter.filters.extractive import SentenceFilter
from blendfilter.filters.knowledge import OneCallFilter
from blendfilter.journal import Journal
from blendfilter.modules.blendfilter import BlendFilter, survivors
from blendfilter.records import Excerpt, Passage

VARIANTS: dict[str, tuple[Callable[[Any], BlendFilter], list[str]]] = {
    "exact": (BlendFilter, ["external", "internal", "topic", *["check", "ids"] * 3, "answer", "short_answer"]),
    "one call a branch": (
        lambda index: BlendFilter(index, filter=OneCallFilter()),
        ["external", "internal", *["judge"] * 3, "answer", "short_answer"],
    ),
    "the union": (
        lambda index: BlendFilter(index, filter_union=True),
        ["external", "internal", "topic", "check", "ids", "answer", "short_answer"],
    ),
    "one call for the union": (
        lambda index: BlendFilter(index, filter=OneCallFilter(), filter_union=True),
        ["external", "internal", "judge", "answer", "short_answer"],
    ),
}
"""What each variant is, and the stages it calls in plan order where the three lists differ: 11, 7, 7 and 5 calls."""
CALLS = {"exact": 11, "one call a branch": 7, "the union": 7, "one call for the union": 5}


def ask(method: BlendFilter, **changed: Any) -> tuple[dspy.Prediction, ScriptedLM]:
    lm = ScriptedLM(replies(**changed))
    with dspy.context(lm=lm):
        return asyncio.run(method.acall(question=QUESTION)), lm


@pytest.mark.parametrize("name", VARIANTS)
def test_calls_in_plan_order(name: str) -> None:
    make, plan = VARIANTS[name]
    said, lm = ask(make(three_lists()))
    assert [stage for stage, _ in said.calls] == plan
    assert lm.calls == len({prompt for _, prompt in lm.prompts}) == len(plan) == CALLS[name]


class TestUnion:
    def test_the_filter_sees_each_passage_once_in_order(self) -> None:
        _, lm = ask(BlendFilter(three_lists(), filter_union=True))
        numbered = "\n".join(f"knowledge {i}: {line}" for i, line in enumerate(LINES))
        assert f"from 0 to 4.\n{numbered}\nQuestion: {QUESTION}\nRelevance:" in lm.asked("check")[0]

    def test_each_branch_keeps_what_survives_of_it(self) -> None:
        """The lists are 0 1, 1 2 and 3 4; of their union 1 and 3 stay."""
        said, lm = ask(BlendFilter(three_lists(), filter_union=True), ids="1, 3")
        assert {name: [p.id for p in branch.kept] for name, branch in said.branches.items()} == {
            "q": ["p1"], "q_ex": ["p1"], "q_in": ["p3"],
        }  # fmt: skip
        assert [branch.ids_read for branch in said.branches.values()] == ["ids"] * 3
        assert said.knowledge == [PASSAGES[1], PASSAGES[3]]
        assert f"Knowledge:\n{LINES[1]}\n{LINES[3]}\nQuestion:" in lm.asked("answer")[0]

    def test_an_event_is_counted_once(self) -> None:
        said, _ = ask(BlendFilter(three_lists(), filter_union=True), ids="?", ids_again="?")
        assert said.flags["unparseable_ids"] == 1
        assert said.knowledge == list(PASSAGES)
        assert [len(branch.kept) for branch in said.branches.values()] == [2, 2, 2]

    def test_nothing_kept(self) -> None:
        said, lm = ask(BlendFilter(three_lists(), filter_union=True, task="strategyqa"), ids="none")
        assert (said.knowledge, said.flags["empty_knowledge"], said.flags["explicit_none"]) == ([], 1, 1)
        assert f"Knowledge:\nQuestion: {QUESTION}" in lm.asked("answer")[0]
        said, _ = ask(BlendFilter(three_lists(), filter_union=True, fallback=True, task="strategyqa"), ids="none")
        assert said.knowledge == list(PASSAGES[:2])

    def test_some_queries_left_out(self) -> None:
        said, lm = ask(BlendFilter(three_lists(), filter_union=True, without="q_ex"), ids="0, 2")
        assert list(said.branches) == ["q", "q_in"]
        assert [p.id for p in said.knowledge] == ["p0", "p3"]
        assert lm.asked("external") == []

    @pytest.mark.parametrize("name", VARIANTS)
    def test_a_journal_replays_it(self, name: str, tmp_path: Any) -> None:
        make, plan = VARIANTS[name]
        lm = ScriptedLM(replies())
        with Journal(tmp_path, "auto") as journal, dspy.context(lm=lm.with_journal(journal)):
            live = make(three_lists())(question=QUESTION)
        with Journal(tmp_path, "replay") as journal, dspy.context(lm=ScriptedLM([]).with_journal(journal)):
            replayed = make(three_lists())(question=QUESTION)
        assert lm.calls == len(plan)
        assert replayed.toDict() == live.toDict()


class TestExcerpts:
    """Sentences kept by three branches of one passage are one excerpt of it."""

    def by_branch(self, question: str, texts: list[str]) -> list[float]:
        return [float("Ada" in text or "beside" in text) for text in texts]

    def test_over_the_union_a_branch_keeps_the_same_pieces(self) -> None:
        said, _ = ask(BlendFilter(three_lists(), filter=SentenceFilter(n=2, by=self.by_branch), filter_union=True))
        assert {name: [(p.id, p.text) for p in branch.kept] for name, branch in said.branches.items()} == {
            "q": [("p0", "Skerry Light stands beside it."), ("p1", "Ada Brennock kept it for thirty years.")],
            "q_ex": [("p1", "Ada Brennock kept it for thirty years.")],
            "q_in": [],
        }


class TestSurvivors:
    A = Passage("1", "T", "One. Two.", 3.0)

    def test_the_branchs_own_passage_with_its_own_score(self) -> None:
        (kept,) = survivors([self.A.scored(1.0)], [self.A])
        assert kept.score == 1.0

    def test_the_same_text_under_another_id(self) -> None:
        twin = Passage("2", "T", "One. Two.")
        assert survivors([twin], [self.A]) == [twin]
        (piece,) = survivors([twin], [Excerpt.of(self.A, [(0, 4)])])
        assert (piece.id, piece.text) == ("2", "One.")

    def test_others_do_not_survive(self) -> None:
        assert survivors([Passage("2", "T", "Three.")], [self.A]) == []
        assert survivors([], [self.A]) == survivors([self.A], []) == []

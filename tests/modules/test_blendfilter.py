"""BlendFilter, whole: a worked example by hand, how many calls it makes and how deep, and what it tells of itself."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15
from isle import (
    INTERNAL,
    LINES,
    PASSAGES,
    Q_EX,
    Q_IN,
    QUESTION,
    REASONING,
    REPLIES,
    Shelf,
    nothing,
    one_list,
    replies,
    slowed,
    three_lists,
)  # fmt: skip
from scripted import ScriptedLM, response, scripted

from blendfilter import aio
from blendfilter.context import STAGE
from blendfilter.errors import BadArgument, ModelError, UseAcall
from blendfilter.journal import Journal
from blendfilter.modules.base import FLAGS
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.records import Passage

PLAN = ["external", "internal", "topic", *["check", "ids"] * 3, "answer", "short_answer"]
"""The stages of Algorithm 1 in plan order: 11 calls."""


def ask(method: BlendFilter, question: str = QUESTION, **changed: Any) -> tuple[dspy.Prediction, ScriptedLM]:
    lm = ScriptedLM(replies(**changed))
    with dspy.context(lm=lm):
        return asyncio.run(method.acall(question=question)), lm


class TestWorkedExample:
    """The shape of the paper's case study (Figure 6), with a series and an actress that do not exist.

    Traced by hand. The question joins a series to its actress and her to another series; K = 3.

    =======  ===========================================  ==============================  ====================
    query    retrieves                                    the model finds relevant        kept
    =======  ===========================================  ==============================  ====================
    q        s1 Lantern Row, n1 Lantern, n2 Rowing        0                               s1
    q_ex     n1 Lantern, s1 Lantern Row, n3 Ferry         1                               s1 (again)
    q_in     s2 Mora Telling, n3 Ferry, n2 Rowing         0                               s2
    =======  ===========================================  ==============================  ====================

    The union is s1, s2: q and q_ex bring the series only, q_in the actress. Answered from both.
    """

    QUESTION = "Lantern Row starred the actress who had a recurring role as whom on Night Ferry?"
    S1 = Passage("s1", "Lantern Row", "Lantern Row is a puppet series with Mora Telling in the main role.")
    S2 = Passage("s2", "Mora Telling", "Mora Telling is an actress. On Night Ferry she was often seen as Purser Quill.")
    N1 = Passage("n1", "Lantern", "A lantern is a lamp that is carried.")
    N2 = Passage("n2", "Rowing", "Rowing is moving a boat by oars.")
    N3 = Passage("n3", "Ferry", "A ferry takes passengers over water.")

    EXTERNAL = "Lantern Row starred Mora Telling. Her role is not told.\nSo the answer is unknown."
    INTERNAL = "Mora Telling is an actress known for Lantern Row and Night Ferry."
    REASONING = "Lantern Row starred Mora Telling. On Night Ferry she was Purser Quill.\nSo the answer is Purser Quill."

    def shelf(self, query: str, k: int) -> list[Passage]:
        assert k == 3
        return {
            self.QUESTION: [self.S1, self.N1, self.N2],
            f"Lantern Row starred Mora Telling. Her role is not told. So the answer is unknown. {self.QUESTION}": [
                self.N1, self.S1, self.N3,
            ],
            f"{self.INTERNAL} {self.QUESTION}": [self.S2, self.N3, self.N2],
        }[query]  # fmt: skip

    def judge(self, prompt: str) -> str:
        numbered = [line for line in prompt.splitlines() if line.startswith("knowledge ")]
        return "\n".join(
            f"{line.split(':')[0]} is {'relevant' if 'Mora Telling' in line else 'irrelevant'}." for line in numbered
        )

    def ids(self, prompt: str) -> str:
        context = prompt.split("Context:\n")[1].splitlines()[:3]
        return ", ".join(line.split()[1] for line in context if line.endswith(" is relevant."))

    def test_it_runs_as_traced(self) -> None:
        told = {
            "external": [self.EXTERNAL],
            "internal": [self.INTERNAL],
            "topic": ["television"],
            "check": [self.judge] * 3,
            "ids": [self.ids] * 3,
            "answer": [self.REASONING],
            "short_answer": ["Purser Quill"],
        }
        with scripted(told) as lm, dspy.context(lm=lm):
            said = BlendFilter(self.shelf, k=3)(question=self.QUESTION)
        assert said.answer == "Purser Quill"
        assert {name: [p.id for p in b.retrieved] for name, b in said.branches.items()} == {
            "q": ["s1", "n1", "n2"],
            "q_ex": ["n1", "s1", "n3"],
            "q_in": ["s2", "n3", "n2"],
        }
        assert {name: [p.id for p in b.kept] for name, b in said.branches.items()} == {
            "q": ["s1"],
            "q_ex": ["s1"],
            "q_in": ["s2"],
        }
        assert said.knowledge == [self.S1, self.S2]
        own = f"\n\nKnowledge:\n{self.S1.line}\n{self.S2.line}\nQuestion: {self.QUESTION}\nLet's think step by step."
        assert lm.asked("answer")[0].endswith(own)
        assert f"Context:\n{self.REASONING}\nQuestion: {self.QUESTION}\n" in lm.asked("short_answer")[0]


class TestCalls:
    @pytest.mark.parametrize(("task", "calls"), [("hotpotqa", 11), ("twowiki", 11), ("strategyqa", 10)])
    def test_three_lists_that_differ(self, task: str, calls: int) -> None:
        said, lm = ask(BlendFilter(three_lists(), task=task))
        assert lm.calls == calls
        assert len({prompt for _, prompt in lm.prompts}) == calls
        plan = [stage for stage in PLAN if stage != "topic" or task != "strategyqa"]
        assert [stage for stage, _ in said.calls] == plan
        assert len({key for _, key in said.calls}) == calls

    @pytest.mark.parametrize(
        ("shelf", "calls"),
        [
            (Shelf(PASSAGES, PASSAGES, PASSAGES), 7),
            (Shelf(PASSAGES, PASSAGES, PASSAGES[:3]), 9),
            (Shelf(PASSAGES[:3], PASSAGES, PASSAGES[:3]), 9),
            (Shelf(PASSAGES[:3], PASSAGES, PASSAGES), 9),
            # the same passages in another order make another prompt
            (Shelf(PASSAGES, PASSAGES[::-1], PASSAGES), 9),
            (Shelf(PASSAGES, PASSAGES[::-1], (*PASSAGES[1:], PASSAGES[0])), 11),
            # nothing found, nothing to filter
            (Shelf((), (), ()), 5),
            (Shelf(PASSAGES, (), ()), 7),
        ],
    )
    def test_branches_with_the_same_list_share_their_filter(self, shelf: Shelf, calls: int) -> None:
        said, lm = ask(BlendFilter(shelf))
        assert lm.calls == calls
        assert len(said.calls) == calls
        if said.knowledge:  # over nothing at all, external and answer are the same prompt
            assert len({prompt for _, prompt in lm.prompts}) == calls
        assert set(said.branches) == {"q", "q_ex", "q_in"}

    def test_the_topic_is_asked_once(self) -> None:
        _, lm = ask(BlendFilter(three_lists()))
        assert len(lm.asked("topic")) == 1
        assert all("remember about lighthouses;" in prompt for prompt in lm.asked("check"))

    @pytest.mark.parametrize(
        ("without", "plan"),
        [
            ("q", ["external", "internal", "topic", *["check", "ids"] * 2, "answer", "short_answer"]),
            ("q_ex", ["internal", "topic", *["check", "ids"] * 2, "answer", "short_answer"]),
            ("q_in", ["external", "topic", *["check", "ids"] * 2, "answer", "short_answer"]),
            ("q_ex,q_in", ["topic", "check", "ids", "answer", "short_answer"]),
            (("q", "q_ex"), ["internal", "topic", "check", "ids", "answer", "short_answer"]),
        ],
    )
    def test_without_a_query_its_calls_are_not_made(self, without: Any, plan: list[str]) -> None:
        said, lm = ask(BlendFilter(three_lists(), without=without))
        assert [stage for stage, _ in said.calls] == plan
        assert lm.calls == len(plan)
        assert not set(said.branches) & set(without.split(",") if isinstance(without, str) else without)
        assert set(said.branches) == set(said.queries)

    def test_equal_prompts_of_two_stages_are_one_call_under_a_journal(self, tmp_path: Path) -> None:
        """Everything kept from one list: the answer's prompt is the external's, letter for letter."""
        with Journal(tmp_path) as journal:
            lm = ScriptedLM(replies(ids="0-4"))
            with dspy.context(lm=lm.with_journal(journal)):
                said = BlendFilter(one_list())(question=QUESTION)
        assert lm.calls == 6
        keys = dict(said.calls)
        assert len(said.calls) == 7
        assert keys["answer"] == keys["external"]

    @pytest.mark.parametrize("seed", range(4))
    def test_calls_are_told_in_plan_order_whatever_the_speed(self, seed: int) -> None:
        plain, _ = ask(BlendFilter(three_lists()))
        rng = random.Random(seed)
        lm = slowed(ScriptedLM(replies()), lambda: rng.random() / 100)
        with dspy.context(lm=lm):
            said = BlendFilter(three_lists())(question=QUESTION)
        assert said.calls == plain.calls
        assert [stage for stage, _ in said.calls] == PLAN

    @pytest.mark.parametrize("seed", range(2))
    def test_the_trace_too(self, seed: int) -> None:
        rng = random.Random(seed)
        lm = slowed(ScriptedLM(replies()), lambda: rng.random() / 100)
        method = BlendFilter(three_lists())
        with dspy.context(lm=lm, trace=[]):
            method(question=QUESTION)
            trace = dspy.settings.trace
        assert [predictor.name for predictor, _, _ in trace] == PLAN
        checked = [values["knowledge"] for predictor, values, _ in trace if predictor.name == "check"]
        assert checked == [LINES[:2], LINES[1:3], LINES[3:5]]
        assert all(predictor in method.predictors() for predictor, _, _ in trace)

    def test_depth_is_five(self) -> None:
        """external -> check -> ids -> answer -> short answer; everything else runs beside it.

        No call of a wave is answered before all of it are asked, so a call that waits for one beside it never comes.
        """
        left = [["external", "internal", "topic"], ["check"] * 3, ["ids"] * 3, ["answer"], ["short_answer"]]
        lm = ScriptedLM(replies())
        quick, asked, together = lm.inner.complete, list[str](), asyncio.Event()

        async def complete(request: Any) -> Any:
            nonlocal asked, together
            mine = together
            asked.append(STAGE.get())
            if sorted(asked) == left[0]:
                asked, together = [], asyncio.Event()
                del left[0]
                mine.set()
            await asyncio.wait_for(mine.wait(), 20)
            return await quick(request)

        lm.inner.complete = complete  # type: ignore[method-assign]
        with dspy.context(lm=lm):
            BlendFilter(three_lists())(question=QUESTION)
        assert not left
        assert lm.calls == 11


class TestKnowledge:
    def test_the_union_is_in_the_order_of_q_then_q_ex_then_q_in(self) -> None:
        a, b, c, d, _ = PASSAGES
        said, lm = ask(BlendFilter(Shelf([b, a], [c, b], [d, a]), k=2), ids="0-1")
        assert said.knowledge == [b, a, c, d]
        shown = lm.asked("answer")[0].split("\nKnowledge:\n")[-1].splitlines()
        assert shown[:4] == [b.line, a.line, c.line, d.line]

    def test_the_same_text_under_two_ids_is_shown_once(self) -> None:
        twin = Passage("twin", PASSAGES[0].title, PASSAGES[0].text + " ")
        said, lm = ask(BlendFilter(Shelf(PASSAGES[:1], [twin], PASSAGES[1:2])))
        assert [passage.id for passage in said.knowledge] == ["p0", "p1"]
        assert lm.asked("answer")[0].count(PASSAGES[0].line) == 1

    def test_everything_filtered_away_is_an_empty_block_and_flagged(self) -> None:
        said, lm = ask(BlendFilter(three_lists(), task="strategyqa"), ids="none")
        assert said.knowledge == []
        assert f"\nKnowledge:\nQuestion: {QUESTION}\n" in lm.asked("answer")[0]
        assert said.flags == {**dict.fromkeys(FLAGS, 0), "explicit_none": 3, "empty_knowledge": 1}
        assert {branch.ids_read for branch in said.branches.values()} == {"none"}

    def test_or_k_q_where_one_falls_back(self) -> None:
        said, lm = ask(BlendFilter(three_lists(), fallback=True), ids="none")
        assert said.knowledge == list(PASSAGES[:2])
        assert all(line in lm.asked("answer")[0] for line in LINES[:2])
        assert said.flags["empty_knowledge"] == 1
        assert all(not branch.kept for branch in said.branches.values())

    def test_falling_back_changes_nothing_where_something_is_kept(self) -> None:
        plain, _ = ask(BlendFilter(three_lists()))
        said, _ = ask(BlendFilter(three_lists(), fallback=True))
        assert said.knowledge == plain.knowledge
        assert said.flags["empty_knowledge"] == 0

    def test_nothing_retrieved_at_all(self) -> None:
        said, lm = ask(BlendFilter(nothing))
        assert said.answer == "Ada Brennock"
        assert said.flags["empty_knowledge"] == 1
        assert {branch.ids_read for branch in said.branches.values()} == {"empty"}
        assert not lm.asked("check")

    def test_an_unreadable_reply_keeps_the_branch_and_is_counted_once_where_branches_share(self) -> None:
        said, lm = ask(BlendFilter(one_list()), ids="?", ids_again="?")
        assert said.knowledge == list(PASSAGES)
        assert said.flags["unparseable_ids"] == 1
        assert lm.calls == 8
        apart, _ = ask(BlendFilter(three_lists()), ids="not 0", ids_again="?")
        assert apart.flags["suspect_ids"] == 3
        assert apart.flags["unparseable_ids"] == 0

    def test_queries_and_branches_are_told(self) -> None:
        shelf = three_lists()
        said, _ = ask(BlendFilter(shelf))
        assert said.queries == {"q": QUESTION, "q_ex": Q_EX, "q_in": Q_IN}
        assert list(said.branches) == list(said.queries) == ["q", "q_ex", "q_in"]
        for name, branch in said.branches.items():
            assert list(branch.retrieved) == list(shelf.lists[name])
            assert list(branch.kept) == list(shelf.lists[name])[:1]
            assert branch.ids_read == "ids"
            assert branch.reason.startswith("0 names the lighthouse")
        assert (said.answer, said.reasoning) == ("Ada Brennock", REASONING)
        assert said.flags == dict.fromkeys(FLAGS, 0)

    def test_empty_and_cut_replies_are_flagged(self) -> None:
        told = {**{name: [text] * 3 for name, text in REPLIES.items()}, "internal": [""]}
        told["answer"] = [response(REASONING, finish="length")]
        lm = ScriptedLM(told)
        with dspy.context(lm=lm):
            said = BlendFilter(three_lists())(question=QUESTION)
        assert (said.flags["empty_reply"], said.flags["cut_reply"]) == (1, 1)


class TestRunning:
    def test_an_empty_question_is_refused_before_anything_is_asked(self) -> None:
        for question in ("", "  \n", None):
            lm = ScriptedLM([])
            with dspy.context(lm=lm), pytest.raises(BadArgument, match="BlendFilter needs a question"):
                BlendFilter(nothing)(question=question)
            assert lm.calls == 0

    def test_synchronous_awaited_and_in_a_notebook_give_the_same(self) -> None:
        lm = ScriptedLM(replies())
        method = BlendFilter(three_lists())

        async def notebook() -> dspy.Prediction:
            return method(question=QUESTION)

        async def awaited() -> dspy.Prediction:
            return await method.acall(question=QUESTION)

        with dspy.context(lm=lm):
            said = [method(question=QUESTION), asyncio.run(notebook()), asyncio.run(awaited())]
        assert lm.calls == 33
        assert said[0].toDict() == said[1].toDict() == said[2].toDict()

    def test_on_the_loop_thread_it_says_to_await(self) -> None:
        async def inside() -> None:
            BlendFilter(nothing)(question=QUESTION)

        with pytest.raises(UseAcall, match=r"write `await BlendFilter\.acall\(…\)` there"):
            aio.run(inside())

    def test_many_questions_at_once_do_not_mix(self) -> None:
        def shelf(query: str, k: int) -> list[Passage]:
            number = query.rstrip("?").rsplit(" ", 1)[1]
            return [Passage(f"{number}-{i}", f"Isle {number}", f"Fact {i}.") for i in range(k)]

        rng = random.Random(5)
        short = {"short_answer": lambda prompt: prompt.split("Question: ")[-1].split("?")[0]}
        lm = slowed(ScriptedLM(replies(**short)), lambda: rng.random() / 200)
        method = BlendFilter(shelf, k=2)

        async def all_of_them() -> list[dspy.Prediction]:
            return list(await asyncio.gather(*(method.acall(question=f"What of {i}?") for i in range(20))))

        with dspy.context(lm=lm):
            said = asyncio.run(all_of_them())
        assert [each.answer for each in said] == [f"What of {i}" for i in range(20)]
        assert all(p.id.startswith(f"{i}-") for i, each in enumerate(said) for p in each.knowledge)
        assert {len(each.calls) for each in said} == {7}

    def test_a_failing_call_fails_the_question_with_its_stage_after_the_others_are_over(self) -> None:
        def reply(stage: str, prompt: str) -> Any:
            return lm15.ContextLengthError("too long") if stage == "internal" else REPLIES[stage]

        lm = ScriptedLM(reply)
        with dspy.context(lm=lm), pytest.raises(ModelError) as raised:
            BlendFilter(three_lists())(question=QUESTION)
        assert (raised.value.stage, raised.value.kind) == ("internal", "context_too_long")
        # q and q_ex were filtered to the end: a replay asks for exactly these calls
        assert len(lm.asked("ids")) == 2
        assert not lm.asked("answer")

    def test_a_failing_retriever_comes_through_as_it_is(self) -> None:
        def broken(query: str, k: int) -> list[Passage]:
            if query.startswith(INTERNAL):
                raise ConnectionError("the index is gone")
            return list(PASSAGES)

        with dspy.context(lm=ScriptedLM(replies())), pytest.raises(ConnectionError, match="the index is gone"):
            BlendFilter(broken)(question=QUESTION)

    def test_cancelled_it_stops_asking(self) -> None:
        lm = ScriptedLM(replies())
        quick, asked, told = lm.inner.complete, asyncio.Event(), asyncio.Event()

        async def complete(request: Any) -> Any:
            asked.set()
            await told.wait()
            return await quick(request)

        lm.inner.complete = complete  # type: ignore[method-assign]

        async def body() -> None:
            task = asyncio.ensure_future(BlendFilter(three_lists()).acall(question=QUESTION))
            await asked.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            told.set()
            await asyncio.sleep(0.1)

        with dspy.context(lm=lm):
            asyncio.run(body())
        assert lm.calls == 0

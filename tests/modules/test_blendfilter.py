"""BlendFilter, whole: a worked example, its calls and their depth, its settings and state, its cheaper variants."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15
from isle import (
    LINES,
    PASSAGES,
    QUESTION,
    REPLIES,
    TASKS,
    Shelf,
    nothing,
    replies,
    slowed,
    three_lists,
)
from scripted import ScriptedLM, scripted

from blendfilter.asking import TaskWording
from blendfilter.context import asker
from blendfilter.errors import BadData, ModelError
from blendfilter.filters.base import Filter
from blendfilter.filters.knowledge import OneCallFilter
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
        result = {
            "external": [self.EXTERNAL], "internal": [self.INTERNAL], "topic": ["television"],
            "check": [self.judge] * 3, "ids": [self.ids] * 3, "answer": [self.REASONING],
            "short_answer": ["Purser Quill"],
        }  # fmt: skip
        with scripted(result) as lm, dspy.context(lm=lm):
            prediction = BlendFilter(self.shelf, k=3)(question=self.QUESTION)
        assert prediction.answer == "Purser Quill"
        assert {
            name: ([p.id for p in b.retrieved], [p.id for p in b.kept]) for name, b in prediction.branches.items()
        } == {
            "q": (["s1", "n1", "n2"], ["s1"]),
            "q_ex": (["n1", "s1", "n3"], ["s1"]),
            "q_in": (["s2", "n3", "n2"], ["s2"]),
        }
        assert prediction.knowledge == [self.S1, self.S2]
        own = f"\n\nKnowledge:\n{self.S1.line}\n{self.S2.line}\nQuestion: {self.QUESTION}\nLet's think step by step."
        assert lm.prompts_of("answer")[0].endswith(own)
        assert f"Context:\n{self.REASONING}\nQuestion: {self.QUESTION}\n" in lm.prompts_of("short_answer")[0]


class TestCalls:
    @pytest.mark.parametrize(
        ("shelf", "calls"),
        [
            (Shelf(PASSAGES, PASSAGES, PASSAGES), 7),
            (Shelf(PASSAGES, PASSAGES, PASSAGES[:3]), 9),
            (Shelf(PASSAGES[:3], PASSAGES, PASSAGES), 9),
            # the same passages in another order make another prompt
            (Shelf(PASSAGES, PASSAGES[::-1], PASSAGES), 9),
            (Shelf(PASSAGES, PASSAGES[::-1], (*PASSAGES[1:], PASSAGES[0])), 11),
            (Shelf((), (), ()), 5),  # nothing found, nothing to filter
        ],
    )
    def test_branches_with_the_same_list_share_their_filter(self, shelf: Shelf, calls: int) -> None:
        result, lm = ask(BlendFilter(shelf))
        assert lm.calls == calls
        assert len(result.calls) == calls
        if result.knowledge:  # over nothing at all, external and answer are the same prompt
            assert len({prompt for _, prompt in lm.prompts}) == calls
        assert set(result.branches) == {"q", "q_ex", "q_in"}

    @pytest.mark.parametrize(
        ("without", "plan"),
        [
            ("q_ex", ["internal", "topic", *["check", "ids"] * 2, "answer", "short_answer"]),
            ("q_in", ["external", "topic", *["check", "ids"] * 2, "answer", "short_answer"]),
            ("q_ex,q_in", ["topic", "check", "ids", "answer", "short_answer"]),
            (("q", "q_ex"), ["internal", "topic", "check", "ids", "answer", "short_answer"]),
        ],
    )
    def test_without_a_query_its_calls_are_not_made(self, without: Any, plan: list[str]) -> None:
        result, lm = ask(BlendFilter(three_lists(), without=without))
        assert [stage for stage, _ in result.calls] == plan
        assert lm.calls == len(plan)
        assert not set(result.branches) & set(without.split(",") if isinstance(without, str) else without)
        assert set(result.branches) == set(result.queries)

    @pytest.mark.parametrize("seed", range(3))
    def test_calls_and_trace_are_in_plan_order_whatever_the_speed(self, seed: int) -> None:
        plain, _ = ask(BlendFilter(three_lists()))
        rng = random.Random(seed)
        lm = slowed(ScriptedLM(replies()), lambda: rng.random() / 100)
        method = BlendFilter(three_lists())
        with dspy.context(lm=lm, trace=[]):
            calls, trace = method(question=QUESTION).calls, dspy.settings.trace
        assert calls == plain.calls
        assert [stage for stage, _ in calls] == PLAN
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
        quick, requested, together = lm.inner.complete, list[str](), asyncio.Event()

        async def complete(request: Any) -> Any:
            nonlocal requested, together
            mine = together
            requested.append(asker().stage)
            if sorted(requested) == left[0]:
                requested, together = [], asyncio.Event()
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
    def test_everything_filtered_away_is_an_empty_block_and_flagged(self) -> None:
        result, lm = ask(BlendFilter(three_lists(), task="strategyqa"), ids="none")
        assert result.knowledge == []
        assert f"\nKnowledge:\n(nothing relevant was found)\nQuestion: {QUESTION}\n" in lm.prompts_of("answer")[0]
        assert result.flags == {**dict.fromkeys(FLAGS, 0), "explicit_none": 3, "empty_knowledge": 1}
        assert {branch.ids_read for branch in result.branches.values()} == {"none"}


class TestRunning:
    def test_a_failing_call_fails_the_question_with_its_stage_after_the_others_are_over(self) -> None:
        def reply(stage: str, prompt: str) -> Any:
            return lm15.ContextLengthError("too long") if stage == "internal" else REPLIES[stage]

        lm = ScriptedLM(reply)
        with dspy.context(lm=lm), pytest.raises(ModelError) as raised:
            BlendFilter(three_lists())(question=QUESTION)
        assert (raised.value.stage, raised.value.kind) == ("internal", "context_too_long")
        # q and q_ex were filtered to the end: a replay asks for exactly these calls
        assert len(lm.prompts_of("ids")) == 2
        assert not lm.prompts_of("answer")

    def test_cancelled_it_stops_asking(self) -> None:
        lm = ScriptedLM(replies())
        quick, wanted, result = lm.inner.complete, asyncio.Event(), asyncio.Event()

        async def complete(request: Any) -> Any:
            wanted.set()
            await result.wait()
            return await quick(request)

        lm.inner.complete = complete  # type: ignore[method-assign]

        async def body() -> None:
            task = asyncio.ensure_future(BlendFilter(three_lists()).acall(question=QUESTION))
            await wanted.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            result.set()
            await asyncio.sleep(0.1)

        with dspy.context(lm=lm):
            asyncio.run(body())
        assert lm.calls == 0


class TestSettings:
    def test_none_and_topic_follow_the_task_unless_one_says_otherwise(self) -> None:
        _, lm = ask(BlendFilter(three_lists(), task="strategyqa"))
        assert all("write: none" in prompt for prompt in lm.prompts_of("ids"))
        assert lm.calls == 10
        _, lm = ask(BlendFilter(three_lists(), task="hotpotqa", offer_none=True, ask_topic=False))
        assert all("write: none" in prompt for prompt in lm.prompts_of("ids"))
        assert lm.calls == 10
        _, lm = ask(BlendFilter(three_lists(), task="strategyqa", offer_none=False, ask_topic=True))
        assert not any("write: none" in prompt for prompt in lm.prompts_of("ids"))
        assert lm.calls == 11

    def test_a_filter_of_ones_own(self) -> None:
        class Second(Filter):
            """Keeps every branch's second passage, and asks nobody."""

            async def aforward(self, question: str, passages: Any) -> dspy.Prediction:
                assert question == QUESTION
                return dspy.Prediction(kept=list(passages[1:2]), status="ids", reason="by rule", flags={"mine": 1})

        result, _ = ask(BlendFilter(three_lists(), filter=Second()))
        assert [stage for stage, _ in result.calls] == ["external", "internal", "answer", "short_answer"]
        assert [passage.id for passage in result.knowledge] == ["p1", "p2", "p4"]
        assert result.branches["q"].reason == "by rule"
        assert result.flags["mine"] == 3
        assert "select" not in {name for name, _ in BlendFilter(nothing, filter=Second()).named_predictors()}

    @pytest.mark.parametrize("without", [(), ("q",), ("q", "q_ex"), ("q_ex", "q_in")])
    def test_the_fallback_is_what_the_question_finds_whichever_queries_are_used(self, without: Any) -> None:
        """K_q, searched for even where no other step needs it."""
        method = BlendFilter(three_lists(), without=without, fallback=True, offer_none=True)
        result, lm = ask(method, ids="none")
        assert [passage.id for passage in result.knowledge] == ["p0", "p1"]
        assert result.flags["empty_knowledge"] == 1
        assert f"Knowledge:\n{LINES[0]}\n{LINES[1]}\nQuestion: {QUESTION}" in lm.prompts_of("answer")[0]
        assert "q" not in result.queries or "q" not in without


class TestState:
    def prompts_of(self, method: BlendFilter) -> list[tuple[str, str]]:
        return sorted(ask(method)[1].prompts)

    @pytest.mark.parametrize("task", TASKS)
    def test_a_saved_program_renders_the_same_prompts(self, tmp_path: Path, task: str) -> None:
        method = BlendFilter(three_lists(), task=task)
        method.blending.internal.signature = method.blending.internal.signature.with_instructions("Optimised: é\n“x”.")
        method.select.check.demos = [
            dspy.Example(question="q?", knowledge=["T | x"], relevance="0 is relevant.", augmented=True)
        ]
        method.save(tmp_path / "program.json")
        again = BlendFilter(three_lists(), task="hotpotqa", offer_none=TaskWording.of(task).offer_none)
        again.select.ask_topic = method.select.ask_topic
        again.load(tmp_path / "program.json")
        assert self.prompts_of(again) == self.prompts_of(method)
        again.save(tmp_path / "again.json")
        assert (tmp_path / "again.json").read_bytes() == (tmp_path / "program.json").read_bytes()

    def test_a_renamed_field_does_not_load_and_nothing_is_half_loaded(self) -> None:
        method = BlendFilter(nothing)
        before = json.dumps(method.dump_state())
        state = json.loads(before.replace('"Context:"', '"Reasoning So Far:"'))
        state["blending.external"]["signature"]["instructions"] = "Changed."
        with pytest.raises(BadData, match=r"'select.ids' has the fields Reasoning So Far: "):
            method.load_state(state)
        assert json.dumps(method.dump_state()) == before


VARIANTS: dict[str, tuple[Callable[[Any], BlendFilter], list[str]]] = {
    "exact": (BlendFilter, PLAN),
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


@pytest.mark.parametrize("name", VARIANTS)
def test_calls_in_plan_order(name: str) -> None:
    make, plan = VARIANTS[name]
    result, lm = ask(make(three_lists()))
    assert [stage for stage, _ in result.calls] == plan
    assert lm.calls == len({prompt for _, prompt in lm.prompts}) == len(plan)


class TestUnion:
    def test_each_branch_keeps_what_survives_of_it(self) -> None:
        """The lists are 0 1, 1 2 and 3 4; of their union 1 and 3 stay."""
        result, lm = ask(BlendFilter(three_lists(), filter_union=True), ids="1, 3")
        assert {name: [p.id for p in branch.kept] for name, branch in result.branches.items()} == {
            "q": ["p1"], "q_ex": ["p1"], "q_in": ["p3"],
        }  # fmt: skip
        assert [branch.ids_read for branch in result.branches.values()] == ["ids"] * 3
        assert result.knowledge == [PASSAGES[1], PASSAGES[3]]
        assert f"Knowledge:\n{LINES[1]}\n{LINES[3]}\nQuestion:" in lm.prompts_of("answer")[0]

    def test_nothing_kept(self) -> None:
        result, lm = ask(BlendFilter(three_lists(), filter_union=True, task="strategyqa"), ids="none")
        assert (result.knowledge, result.flags["empty_knowledge"], result.flags["explicit_none"]) == ([], 1, 1)
        assert f"Knowledge:\n(nothing relevant was found)\nQuestion: {QUESTION}" in lm.prompts_of("answer")[0]
        result, _ = ask(BlendFilter(three_lists(), filter_union=True, fallback=True, task="strategyqa"), ids="none")
        assert result.knowledge == list(PASSAGES[:2])

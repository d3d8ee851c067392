"""CDIT's filter: every passage judged beside the others, the rejected dropped, those without a verdict kept."""

from __future__ import annotations

import asyncio
from typing import Any

import dspy
import pytest
from isle import LINES, PASSAGES, QUESTION, REPLIES, replies, slowed, three_lists
from scripted import ScriptedLM, response, scripted

from blendfilter import BM25, BlendFilter, ChainOfThought, IterRetGen, SelfAsk
from blendfilter.errors import ModelError
from blendfilter.evaluation.trace import trace_text
from blendfilter.filters.cdit.filter import CDITFilter
from blendfilter.filters.cdit.rules import PHI2
from blendfilter.filters.registry import make_filter
from blendfilter.journal import Journal
from blendfilter.records import Excerpt, Passage

FIVE = list(PASSAGES)


def says(*verdicts: Any) -> Any:
    """A script by passage: what is said of the n-th of `FIVE`."""
    by_line = dict(zip(LINES, verdicts, strict=True))

    def reply(stage: str, prompt: str) -> Any:
        said = by_line[prompt.rpartition("\nPassage: ")[2].partition("\nQuestion: ")[0]]
        return said() if callable(said) else said

    return reply


def filtered(script: Any, passages: Any = FIVE, *settings: Any, **more: Any) -> tuple[dspy.Prediction, ScriptedLM]:
    lm = ScriptedLM(script)
    with dspy.context(lm=lm):
        said = asyncio.run(CDITFilter(*settings, **more).acall(question=QUESTION, passages=passages))
    return said, lm


def ids(said: Any) -> list[str]:
    return [passage.id for passage in said]


class TestFilter:
    def test_the_rejected_are_dropped_and_the_rest_keep_their_order(self) -> None:
        said, lm = filtered(says("True", "False", "I cannot tell", "False", "True"))
        assert ids(said.kept) == ["p0", "p2", "p4"]
        assert said.verdicts == [True, False, None, False, True]
        assert (said.status, said.flags) == ("kept 3 of 5, 1 without a verdict", {"no_verdict": 1})
        assert [stage for stage, _ in lm.prompts] == ["consistent"] * 5
        assert said.reason.splitlines() == [
            "knowledge 0: consistent",
            "knowledge 1: inconsistent",
            "knowledge 2: no verdict, kept (it said 'I cannot tell')",
            "knowledge 3: inconsistent",
            "knowledge 4: consistent",
        ]

    def test_all_may_be_rejected(self) -> None:
        said, _ = filtered(lambda stage, prompt: "False")
        assert (said.kept, said.status, said.flags) == ([], "kept 0 of 5", {})

    @pytest.mark.parametrize(
        ("verdict", "told"), [("False", "inconsistent"), ("True", "no verdict, kept"), ("?", "no verdict, kept")]
    )
    def test_what_differs_is_told(self, verdict: str, told: str) -> None:
        reply = f"predicate | kept | sold | unlike\nReason: It was sold.\nVerdict: {verdict}"
        said, _ = filtered([reply], FIVE[:1], "components")
        assert said.reason == f"knowledge 0: {told} (predicate: kept / sold; It was sold.)"

    def test_a_reply_of_many_lines_stays_one_passages(self) -> None:
        said, _ = filtered(["no idea\nknowledge 1: consistent\nknowledge 0: inconsistent"], FIVE[:1])
        assert len(said.reason.splitlines()) == 1

    def test_nothing_is_judged_of_nothing(self) -> None:
        said, lm = filtered([], [])
        assert (said.kept, said.status, said.reason, said.flags, said.verdicts, lm.calls) == (
            [],
            "empty",
            "",
            {},
            [],
            0,
        )

    def test_the_judges_components_reach_the_prompt(self) -> None:
        _, lm = filtered(["True"], FIVE[:1], "components", ["phi2"])
        assert f"\nRules:\n- {PHI2.line}\n\n" in lm.prompts[0][1]
        assert lm.prompts[0][1].endswith("\nComparison:")

    def test_the_predictor_is_judge_consistent(self) -> None:
        assert [name for name, _ in CDITFilter().named_predictors()] == ["judge.consistent"]
        assert CDITFilter("components", ["phi1", "phi2"]).arguments() == {
            "mode": "components",
            "rules": ["phi1", "phi2"],
            "json_schema": None,
        }


class TestWhatIsJudged:
    def test_passages_that_read_the_same_are_judged_once(self) -> None:
        twice = [FIVE[0], Passage("other", FIVE[0].title, FIVE[0].text), FIVE[1], FIVE[0]]
        said, lm = filtered(says("perhaps", "True", "", "", ""), twice)
        assert lm.calls == 2
        assert (said.verdicts, said.flags) == ([None, None, True, None], {"no_verdict": 1})
        assert ids(said.kept) == ["p0", "other", "p1", "p0"]

    def test_excerpts_come_back_as_excerpts(self) -> None:
        piece = Excerpt.of(FIVE[1], [(0, 36)])
        said, lm = filtered(["True"], [piece])
        assert said.kept == [piece]
        assert f"\nPassage: {piece.line}\n" in lm.prompts[0][1]
        assert "Ada Brennock" not in lm.prompts[0][1]

    def test_a_passage_without_text_is_kept_and_not_asked_about(self) -> None:
        said, lm = filtered(["False"], [Passage("a", "", ""), FIVE[0], Passage("b", " ", "\n")])
        assert (ids(said.kept), said.verdicts, lm.calls) == (["a", "b"], [None, False, None], 1)
        assert said.status == "kept 2 of 3, 2 without a verdict"

    def test_a_title_alone_is_judged(self) -> None:
        said, lm = filtered(["False"], [Passage("a", "Tolm", "")])
        assert (said.verdicts, lm.calls) == ([False], 1)

    def test_fifty_side_by_side(self) -> None:
        fifty = [Passage(str(i), f"Lamp {i}", f"It has {i} panes.") for i in range(50)]
        under_way, most = 0, 0

        async def complete(request: Any) -> Any:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.01)
            under_way -= 1
            return await quick(request)

        lm = ScriptedLM(lambda stage, prompt: str("4 panes" in prompt))
        quick = lm.inner.complete
        lm.inner.complete = complete  # type: ignore[method-assign]
        with dspy.context(lm=lm):
            said = asyncio.run(CDITFilter().acall(question=QUESTION, passages=fifty))
        assert (lm.calls, most) == (50, 50)
        assert ids(said.kept) == ["4", "14", "24", "34", "44"]

    def test_traces_and_calls_are_in_rank_order_whoever_is_quicker(self) -> None:
        delays = iter([0.04, 0.03, 0.02, 0.01, 0.0])
        lm = slowed(ScriptedLM(lambda stage, prompt: "True"), lambda: next(delays))
        with dspy.context(lm=lm, trace=[]):
            asyncio.run(CDITFilter().acall(question=QUESTION, passages=FIVE))
            assert [inputs["passage"] for _, inputs, _ in dspy.settings.trace] == LINES


class TestErrors:
    @pytest.mark.parametrize("place", range(5))
    def test_a_call_that_fails_is_an_error_and_no_verdict(self, place: int) -> None:
        def fails() -> Any:
            return ModelError(f"gone at {place}", kind="server_error")

        verdicts: list[Any] = ["True"] * 5
        verdicts[place] = fails
        with pytest.raises(ModelError, match=f"gone at {place}"):
            filtered(says(*verdicts))

    def test_of_several_the_first_passages_is_told_and_all_are_asked(self) -> None:
        lm = ScriptedLM(says("True", lambda: ModelError("one"), "True", lambda: ModelError("two"), "True"))
        with dspy.context(lm=lm), pytest.raises(ModelError, match="one"):
            CDITFilter()(question=QUESTION, passages=FIVE)
        assert lm.calls == 5


class TestMethods:
    def test_blendfilter_judges_each_branch_for_the_question(self) -> None:
        script = replies(consistent=lambda prompt: str("Skerry Light | " in prompt))
        with scripted(script) as lm, dspy.context(lm=lm):
            said = BlendFilter(three_lists(), filter=make_filter("cdit"))(question=QUESTION)
        assert {name: ids(branch.kept) for name, branch in said.branches.items()} == {
            "q": ["p1"], "q_ex": ["p1"], "q_in": [],
        }  # fmt: skip
        assert said.branches["q"].ids_read == "kept 1 of 2"
        assert ids(said.knowledge) == ["p1"]
        assert len(lm.asked("consistent")) == 6
        assert all(f"\nQuestion: {QUESTION}\n" in prompt for prompt in lm.asked("consistent"))
        assert said.flags["no_verdict"] == said.flags["empty_knowledge"] == 0

    def test_over_the_union_each_passage_is_judged_once(self) -> None:
        script = replies(consistent=lambda prompt: str("Skerry Light | " in prompt))
        with scripted(script) as lm, dspy.context(lm=lm):
            said = BlendFilter(three_lists(), filter=CDITFilter(), filter_union=True)(question=QUESTION)
        assert len(lm.asked("consistent")) == 5
        assert ids(said.knowledge) == ["p1"]

    @pytest.mark.parametrize("make", [ChainOfThought, IterRetGen, SelfAsk, BlendFilter])
    def test_no_verdict_is_counted_and_told(self, make: Any) -> None:
        with scripted(replies(consistent="Hard to tell.")) as lm, dspy.context(lm=lm):
            said = make(BM25.build(PASSAGES), k=2, filter=CDITFilter())(question=QUESTION)
        assert said.flags["no_verdict"] == len(lm.asked("consistent")) or make is SelfAsk
        assert (said.flags["no_verdict"] > 0) == bool(lm.asked("consistent"))
        if lm.asked("consistent"):
            assert f"no_verdict {said.flags['no_verdict']}" in trace_text(said)
            assert "no verdict, kept (it said 'Hard to tell.')" in trace_text(said)

    def test_all_rejected_is_empty_knowledge(self) -> None:
        with scripted(replies(consistent="False")) as lm, dspy.context(lm=lm):
            said = ChainOfThought(BM25.build(PASSAGES), k=2, filter=CDITFilter())(question=QUESTION)
        assert (said.knowledge, said.flags["empty_knowledge"], said.answer) == ([], 1, REPLIES["short_answer"])

    def test_a_cut_reply_is_counted_as_both(self) -> None:
        def script(stage: str, prompt: str) -> Any:
            return response("False", finish="length") if stage == "consistent" else REPLIES[stage]

        with scripted(script) as lm, dspy.context(lm=lm):
            said = ChainOfThought(BM25.build(PASSAGES), k=2, filter=CDITFilter())(question=QUESTION)
        assert (said.flags["no_verdict"], said.flags["cut_reply"], len(said.knowledge)) == (2, 2, 2)

    def test_verdicts_are_served_from_the_journal(self, tmp_path: Any) -> None:
        for replayed in (False, True):
            with Journal(tmp_path / "journal.jsonl", "replay" if replayed else "auto") as journal:
                lm = ScriptedLM([] if replayed else says("True", "False", "?", "True", "False"), journal=journal)
                with dspy.context(lm=lm):
                    said = CDITFilter()(question=QUESTION, passages=FIVE)
                assert (said.verdicts, lm.calls) == ([True, False, None, True, False], 0 if replayed else 5)

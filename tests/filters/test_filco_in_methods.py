"""FilCo's filter inside every method that retrieves, and as the offline reader answers it.

The passages of `isle` have these sentences: two of 0 (Tolm Harbour) and of 1 (Skerry Light), one of each of the others.
"""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from isle import LINES, PASSAGES, QUESTION, nothing, replies, three_lists
from scripted import ScriptedLM

from blendfilter.filters.filco import FilCoFilter
from blendfilter.lm.offline import read
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import ChainOfThought, Direct
from blendfilter.modules.iter_retgen import IterRetGen
from blendfilter.modules.react import ReAct
from blendfilter.modules.self_ask import SelfAsk
from blendfilter.oracles.candidates import sentences_of
from blendfilter.records import Excerpt

FIVE = list(PASSAGES)
SENTENCES = [each.line for each in sentences_of(FIVE)]

METHODS = {
    "direct-retrieval": Direct,
    "cot-retrieval": ChainOfThought,
    "blendfilter": BlendFilter,
    "filter-union": lambda index, **settings: BlendFilter(index, filter_union=True, **settings),
    "iter-retgen": IterRetGen,
    "react": ReAct,
    "self-ask": SelfAsk,
}


class TestInMethods:
    @pytest.mark.parametrize("method", METHODS)
    def test_nothing_kept_leaves_an_empty_block_and_is_counted(self, method: str) -> None:
        lm = ScriptedLM(replies(helpful="none", step="Follow-up: Which lighthouse stands beside Tolm Harbour?"))
        with dspy.context(lm=lm):
            said = METHODS[method](three_lists(), filter=FilCoFilter())(question=QUESTION)
        assert said.knowledge == []
        assert said.flags["empty_knowledge"] == 1
        assert said.flags["explicit_none"] == len(lm.asked("helpful")) > 0
        answering = "direct" if method == "direct-retrieval" else "answer"
        for prompt in lm.asked(answering):
            assert prompt.endswith(f"\n\nKnowledge:\nQuestion: {QUESTION}\n" + prompt.rsplit("\n", 1)[1])
        assert bool(lm.asked(answering)) == (method not in ("react", "self-ask"))

    def test_nothing_retrieved_asks_nothing(self) -> None:
        lm = ScriptedLM(replies())
        with dspy.context(lm=lm):
            said = Direct(nothing, filter=FilCoFilter())(question=QUESTION)
        assert lm.asked("helpful") == []
        assert (said.branches["q"].ids_read, said.flags["empty_knowledge"]) == ("empty", 1)

    def test_blendfilter_may_fall_back_on_the_questions_passages(self) -> None:
        lm = ScriptedLM(replies(helpful="none"))
        with dspy.context(lm=lm):
            said = BlendFilter(three_lists(), filter=FilCoFilter(), fallback=True)(question=QUESTION)
        assert said.knowledge == list(PASSAGES[:2])
        assert said.flags["empty_knowledge"] == 1

    def test_sentences_of_one_passage_from_three_branches_are_one_excerpt(self) -> None:
        """Branch q (0 1) keeps the light's second sentence, q_ex (1 2) its first: together the whole passage's text."""

        def choose(prompt: str) -> str:
            last = prompt.rsplit("\n\n", 1)[1]
            return "3" if "Tolm Harbour |" in last else "0" if "Skerry Light |" in last else "none"

        lm = ScriptedLM(replies(helpful=choose))
        with dspy.context(lm=lm):
            said = BlendFilter(three_lists(), filter=FilCoFilter())(question=QUESTION)
        assert len(lm.asked("helpful")) == 3
        (light,) = said.knowledge
        assert isinstance(light, Excerpt)
        assert [span.text for span in light.spans] == [
            "Skerry Light is a lighthouse of 1884.", "Ada Brennock kept it for thirty years.",
        ]  # fmt: skip
        assert f"Knowledge:\n{LINES[1]}\nQuestion: {QUESTION}" in lm.asked("answer")[0]
        assert {name: [p.text for p in branch.kept] for name, branch in said.branches.items()} == {
            "q": ["Ada Brennock kept it for thirty years."],
            "q_ex": ["Skerry Light is a lighthouse of 1884."],
            "q_in": [],
        }

    def test_over_the_union_each_branch_keeps_its_own(self) -> None:
        lm = ScriptedLM(replies(helpful="1, 3"))
        with dspy.context(lm=lm):
            said = BlendFilter(three_lists(), filter=FilCoFilter(), filter_union=True)(question=QUESTION)
        assert len(lm.asked("helpful")) == 1
        kept = {name: [p.line for p in branch.kept] for name, branch in said.branches.items()}
        assert kept == {"q": [SENTENCES[1], SENTENCES[3]], "q_ex": [SENTENCES[3]], "q_in": []}


class TestOffline:
    @pytest.mark.parametrize("unit", ["sentence", "passage"])
    def test_it_keeps_what_leads_to_the_answer(self, unit: Any) -> None:
        lm = ScriptedLM(lambda stage, prompt: read(prompt))
        with dspy.context(lm=lm):
            said = FilCoFilter(unit)(question=QUESTION, passages=FIVE)
        assert lm.asked("ids_again") == []
        assert {"p0", "p1"} <= {passage.id for passage in said.kept}
        assert "p4" not in {passage.id for passage in said.kept}
        if unit == "sentence":
            assert SENTENCES[3].partition(" | ")[2] in next(p for p in said.kept if p.id == "p1").text

    @pytest.mark.parametrize(("offer_none", "status"), [(True, "none"), (False, "ids")])
    def test_it_says_none_where_nothing_bears_on_the_question(self, offer_none: bool, status: str) -> None:
        lm = ScriptedLM(lambda stage, prompt: read(prompt))
        with dspy.context(lm=lm):
            said = FilCoFilter(offer_none=offer_none)(question="Which chemist isolated radium?", passages=FIVE)
        assert said.status == status

    def test_the_reader_is_not_led_by_demonstrations(self) -> None:
        select = FilCoFilter()
        plain = select.helpful.render(offer_none=True, knowledge=SENTENCES, question=QUESTION)
        select.helpful.demos = [dspy.Example(knowledge=SENTENCES[::-1], question="Who sold honey?", ids="0")]
        assert read(select.helpful.render(offer_none=True, knowledge=SENTENCES, question=QUESTION)) == read(plain)

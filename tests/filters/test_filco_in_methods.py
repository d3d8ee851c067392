"""FilCo's filter inside every method that retrieves, and as the offline reader answers it.

The passages of `isle` have these sentences: two of 0 (Tolm Harbour) and of 1 (Skerry Light), one of each of the others.
"""

from __future__ import annotations

from typing import Any

import dspy
import pytest
from isle import PASSAGES, QUESTION, replies, three_lists
from scripted import ScriptedLM

from blendfilter.filters.filco import FilCoFilter
from blendfilter.lm.offline import read
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import ChainOfThought, Direct
from blendfilter.modules.iter_retgen import IterRetGen
from blendfilter.modules.react import ReAct
from blendfilter.modules.self_ask import SelfAsk
from blendfilter.oracles.candidates import sentences_of

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

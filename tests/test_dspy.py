"""DSPy stays DSPy: its callbacks, threads, evaluation, usage and retrieval over our modules and models."""

from __future__ import annotations

import asyncio
import copy
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import dspy
import pytest
from compiled import exact, sample_index
from dspy.utils.callback import BaseCallback
from isle import QUESTION, REPLIES, Echo, one_list, replies, three_lists
from scripted import ScriptedLM, response

from blendfilter.journal import Journal
from blendfilter.lm.model import connect
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import ChainOfThought, Direct
from blendfilter.retrieval.bm25 import BM25

ELEVEN = 11


@pytest.fixture(scope="module")
def index() -> BM25:
    return sample_index()


class Watch(BaseCallback):
    """Counts what starts and ends."""

    def __init__(self) -> None:
        self.started: dict[str, str] = {}
        self.ended: Counter[str] = Counter()
        self.names: Counter[str] = Counter()
        self.failed: list[str] = []

    def _start(self, kind: str, call_id: str, name: str) -> None:
        assert call_id not in self.started
        self.started[call_id] = kind
        self.names[name] += 1

    def _end(self, kind: str, call_id: str, exception: Exception | None) -> None:
        assert self.started.pop(call_id) == kind
        self.ended[kind] += 1
        if exception:
            self.failed.append(kind)

    def on_module_start(self, call_id: str, instance: Any, inputs: Any) -> None:
        self._start("module", call_id, getattr(instance, "name", type(instance).__name__))

    def on_module_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        self._end("module", call_id, exception)

    def on_lm_start(self, call_id: str, instance: Any, inputs: Any) -> None:
        self._start("lm", call_id, "lm")

    def on_lm_end(self, call_id: str, outputs: Any, exception: Exception | None = None) -> None:
        self._end("lm", call_id, exception)


class TestCallbacks:
    @pytest.mark.parametrize("awaited", [True, False])
    def test_every_start_has_its_end(self, awaited: bool) -> None:
        watch, method = Watch(), BlendFilter(three_lists())
        with dspy.context(lm=ScriptedLM(replies()), callbacks=[watch]):
            if awaited:
                asyncio.run(method.acall(question=QUESTION))
            else:
                method(question=QUESTION)
        assert not watch.started
        assert watch.ended["lm"] == ELEVEN
        # BlendFilter, three filters, answering, and eleven predictors
        assert watch.ended["module"] == 1 + 3 + 1 + ELEVEN
        assert watch.names["check"] == 3
        assert watch.names["KnowledgeFilter"] == 3
        assert not watch.failed

    def test_a_failing_call_ends_with_its_exception(self) -> None:
        watch = Watch()
        with (
            dspy.context(lm=ScriptedLM([RuntimeError("gone")]), callbacks=[watch]),
            pytest.raises(Exception, match="gone"),
        ):
            Direct()(question=QUESTION)
        assert not watch.started
        assert watch.failed == ["lm", "module", "module"]


class TestMany:
    questions = tuple(f"What of {i}?" for i in range(8))

    def lm(self) -> ScriptedLM:
        return ScriptedLM(replies(short_answer=lambda prompt: prompt.split("Question: ")[-1].split("?")[0]))

    def test_evaluate(self) -> None:
        examples = [
            dspy.Example(question=question, answer=question[:-1] if i % 2 else "no").with_inputs("question")
            for i, question in enumerate(self.questions)
        ]
        with dspy.context(lm=self.lm()):
            result = dspy.Evaluate(devset=examples, metric=exact, num_threads=4)(BlendFilter(one_list()))
        assert result.score == 50.0
        assert [bool(score) for _, _, score in result.results] == [False, True] * 4


class TestUsage:
    def test_usage_is_tracked_over_all_stages(self) -> None:
        lm = ScriptedLM(lambda stage, prompt: response(REPLIES[stage], usage=(100, 7)))
        with dspy.context(lm=lm), dspy.track_usage() as tracker:
            BlendFilter(three_lists())(question=QUESTION)
        total = tracker.get_total_tokens()
        (model,) = total
        assert model == "blendfilter/scripted"
        assert (total[model]["prompt_tokens"], total[model]["completion_tokens"]) == (1100, 77)


class TestRetrievalModel:
    def test_our_index_is_dspys_retrieval_model(self, index: BM25) -> None:
        with dspy.context(rm=index):
            found = dspy.Retrieve(k=2)("Which isle has a harbour?")
        assert found.passages == [passage.line for passage in index("Which isle has a harbour?", k=2)]
        assert len(found.passages) == 2

    def test_dspys_retrieve_is_a_retriever_of_ours(self, index: BM25) -> None:
        lm = ScriptedLM(replies())
        with dspy.context(rm=index, lm=lm):
            prediction = BlendFilter(dspy.Retrieve(), k=2)(question="Which isle has a harbour?")
        assert [p.line for p in prediction.branches["q"].retrieved] == [
            p.line for p in index("Which isle has a harbour?", k=2)
        ]


class TestModelsOfOnesOwn:
    def test_and_is_journaled_when_connected(self, tmp_path: Path) -> None:
        with Journal(tmp_path) as journal, dspy.context(lm=connect(Echo("echo"), journal=journal)):
            prediction = BlendFilter(three_lists())(question=QUESTION)
            assert [stage for stage, _ in prediction.calls][-1] == "short_answer"
            records = [record for record in journal.records() if record["kind"] == "call"]
        assert {record["stage"] for record in records} >= {"external", "check", "ids", "short_answer"}
        assert {key for _, key in prediction.calls} == {record["key"] for record in records}


class TestCopies:
    @pytest.mark.parametrize("make", [BlendFilter, Direct, ChainOfThought])
    def test_modules_are_copied_silently(self, make: Any, index: BM25, caplog: pytest.LogCaptureFixture) -> None:
        method = make(index)
        with warnings.catch_warnings(), caplog.at_level("WARNING"):
            warnings.simplefilter("error")
            copies = [copy.copy(method), copy.deepcopy(method), method.deepcopy(), method.reset_copy()]
        assert not caplog.records
        lm = ScriptedLM(replies())
        with dspy.context(lm=lm):
            result = [each(question=QUESTION).answer for each in copies]
        assert result == ["Ada Brennock"] * 4

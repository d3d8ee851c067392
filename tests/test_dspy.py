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
from compiled import sample_index
from dspy.utils.callback import BaseCallback
from isle import QUESTION, REPLIES, one_list, replies, three_lists
from scripted import ScriptedLM, response

from blendfilter.journal import Journal
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


# --- dspy.Parallel: right answers, one record a call, each prediction's own usage ---

QUESTIONS = tuple(f"What of {i}?" for i in range(6))


def script(prompt: str) -> str:
    return prompt.rsplit("Question: ", maxsplit=1)[-1].split("?", maxsplit=1)[0]


def answers(journal: Journal | None = None, **how: Any) -> tuple[list[dspy.Prediction], ScriptedLM]:
    """The predictions of `QUESTIONS`, three at a time, and the model that was asked."""
    method, lm = BlendFilter(one_list()), ScriptedLM(replies(short_answer=script), journal=journal)
    with dspy.context(lm=lm, **how):
        pairs = [(method, {"question": question}) for question in QUESTIONS]
        return dspy.Parallel(num_threads=3, disable_progress_bar=True)(pairs), lm


def test_each_prediction_knows_its_usage() -> None:
    result, lm = answers(track_usage=True)
    usages = [each.get_lm_usage()["blendfilter/scripted"] for each in result]
    assert sum(usage["prompt_tokens"] for usage in usages) == sum(len(prompt.split()) for _, prompt in lm.prompts)
    assert all(usage["prompt_tokens"] > 0 for usage in usages)


def test_every_call_is_one_record(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        result, lm = answers(journal)
        records = [record for record in journal.records() if record["kind"] == "call"]
    assert len(records) == lm.calls
    assert {key for each in result for _, key in each.calls} == {record["key"] for record in records}

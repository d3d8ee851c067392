"""DSPy stays DSPy: its callbacks, threads, evaluation, usage and retrieval over our modules and models."""

from __future__ import annotations

import asyncio
import copy
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import compiled
import dspy
import pytest
from dspy.utils.callback import BaseCallback
from isle import Q_EX, Q_IN, QUESTION, REPLIES, one_list, replies, three_lists
from scripted import ScriptedLM, response

from blendfilter.context import setting
from blendfilter.errors import BadData
from blendfilter.journal import Journal
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import ChainOfThought, Direct
from blendfilter.retrieval.bm25 import BM25

ELEVEN = 11


@pytest.fixture(scope="module")
def index() -> BM25:
    return compiled.sample_index()


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

    @pytest.mark.parametrize("awaited", [True, False])
    def test_predictors_are_called_by_their_stages_and_searches_are_tools(self, awaited: bool, tmp_path: Path) -> None:
        """The second time both calls and searches come out of the journal, and are seen all the same."""

        class Seen(BaseCallback):  # type: ignore[misc]
            def __init__(self) -> None:
                self.classes: Counter[str] = Counter()
                self.queries: dict[str, str] = {}
                self.found: dict[str, list[str]] = {}

            def on_module_start(self, call_id: str, instance: Any, inputs: Any) -> None:
                self.classes[type(instance).__name__] += isinstance(instance, dspy.Predict)

            def on_tool_start(self, call_id: str, instance: Any, inputs: Any) -> None:
                assert instance.name == "search"
                self.queries[call_id] = inputs["kwargs"]["query"]

            def on_tool_end(self, call_id: str, outputs: Any, exception: Any = None) -> None:
                self.found[self.queries[call_id]] = [passage.id for passage in outputs]

        method = copy.deepcopy(BlendFilter(three_lists()))
        with Journal(tmp_path) as journal:
            for _ in range(2):
                watch = Seen()
                lm = ScriptedLM(replies(), journal=journal)
                with dspy.context(lm=lm, callbacks=[watch]), setting(journal=journal):
                    if awaited:
                        asyncio.run(method.acall(question=QUESTION))
                    else:
                        method(question=QUESTION)
                stages = {"external": 1, "internal": 1, "topic": 1, "check": 3, "ids": 3, "answer": 1}
                assert +watch.classes == {**stages, "short_answer": 1}
                assert watch.found == {QUESTION: ["p0", "p1"], Q_EX: ["p1", "p2"], Q_IN: ["p3", "p4"]}
        assert lm.calls == 0

    def test_without_callbacks_a_search_is_no_tool(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(dspy, "Tool", None)
        with dspy.context(lm=ScriptedLM(replies())):
            assert BlendFilter(three_lists())(question=QUESTION).answer == "Ada Brennock"


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


# --- DSPy's own reducers and metrics take our predictions ---


class TestPredictions:
    def predict(self, answer: str) -> dspy.Prediction:
        with dspy.context(lm=ScriptedLM(replies(short_answer=answer))):
            return BlendFilter(three_lists())(question=QUESTION)

    def test_the_majority_of_several_answers(self) -> None:
        voted = dspy.majority([self.predict("Tolm"), self.predict("Ada Brennock"), self.predict("ada brennock.")])
        assert voted.answer == "Ada Brennock"
        assert voted.knowledge

    def test_one_prediction_is_one_completion(self) -> None:
        prediction = self.predict("Tolm")
        assert prediction.completions.answer == ["Tolm"]
        assert dspy.majority(prediction).answer == "Tolm"

    def test_an_ensemble_answers_by_majority(self) -> None:
        programs = [BlendFilter(three_lists()), Direct(three_lists()), ChainOfThought(three_lists())]
        with dspy.context(lm=ScriptedLM(replies())):
            voted = dspy.Ensemble(reduce_fn=dspy.majority).compile(programs)(question=QUESTION)
        assert voted.answer == "Ada Brennock"

    def test_dspys_metrics_read_the_answer_and_the_kept_passages(self) -> None:
        prediction = self.predict("Ada Brennock")
        assert prediction.context == [passage.line for passage in prediction.knowledge]
        right, wrong = dspy.Example(answer="ada brennock"), dspy.Example(answer="Nobody")
        for metric in (dspy.evaluate.answer_exact_match, dspy.evaluate.answer_passage_match):
            assert metric(right, prediction)
            assert not metric(wrong, prediction)

    def test_an_answer_from_memory_has_no_context(self) -> None:
        with dspy.context(lm=ScriptedLM(replies())):
            assert Direct()(question=QUESTION).context == []


# --- optimisers of DSPy alone, and states of another module ---


class TestOptimisers:
    """At their defaults they hand over bare training rows (question, answer), which fill few of our predictors."""

    @pytest.mark.parametrize("optimiser", [dspy.LabeledFewShot(), dspy.BootstrapFewShot(metric=lambda *_: False)])
    def test_rows_that_lack_fields_leave_the_tasks_demonstrations(self, optimiser: Any) -> None:
        method = BlendFilter(three_lists())
        shown = method.answering.answer.render(question=QUESTION, knowledge=["T | x"])
        with dspy.context(lm=ScriptedLM(replies())):
            program = optimiser.compile(method, trainset=compiled.sample_questions())
            with pytest.warns(UserWarning, match="question, answer lack others that predictors here have") as said:
                program(question=QUESTION)
        assert len(program.answering.answer.demos) == len(compiled.sample_questions())
        assert program.answering.answer.render(question=QUESTION, knowledge=["T | x"]) == shown
        assert len(said) > 1, "one line all the same: it is the same words from the same place"
        assert len({str(each.message) for each in said}) == 1

    def test_bootstrapped_ones_are_shown_in_their_place(self) -> None:
        with dspy.context(lm=ScriptedLM(replies())):
            optimiser = dspy.BootstrapFewShot(metric=lambda *_: True, max_labeled_demos=0)
            program = optimiser.compile(BlendFilter(three_lists()), trainset=compiled.sample_questions(2))
        prompt = program.answering.answer.render(question=QUESTION, knowledge=["T | x"])
        assert [question in prompt for question in (q.question for q in compiled.sample_questions(2))] == [True, True]
        assert prompt.count("Question: ") == 3

    def test_a_row_that_fills_the_fields_is_shown(self) -> None:
        with dspy.context(lm=ScriptedLM(replies())):
            program = dspy.LabeledFewShot(k=1).compile(Direct(), trainset=compiled.sample_questions(1))
        assert program.direct.render(question=QUESTION).count("Question: ") == 2

    def test_nothing_to_learn_from_changes_nothing(self) -> None:
        method = Direct()
        program = dspy.LabeledFewShot().compile(method, trainset=[])
        assert program.direct.render(question=QUESTION) == method.direct.render(question=QUESTION)


class TestStates:
    def test_one_of_another_method_is_refused_with_the_predictors(self, tmp_path: Path) -> None:
        ChainOfThought().save(tmp_path / "cot.json")
        with pytest.raises(BadData) as error:
            Direct().load(tmp_path / "cot.json")
        assert str(error.value) == (
            "the saved state is not one of Direct as it is here: it has answering.answer, answering.short_answer; it "
            "lacks direct. Load it into the module that it was saved from, or compile again"
        )

    def test_one_with_other_fields_is_refused_with_the_fields(self, tmp_path: Path, index: BM25) -> None:
        Direct().save(tmp_path / "direct.json")
        expected = "'direct' has the fields Question: Answer: and this one Knowledge: Question: Answer:"
        with pytest.raises(BadData, match=expected):
            Direct(index).load(tmp_path / "direct.json")

    def test_one_of_another_filter_is_refused(self, tmp_path: Path) -> None:
        Direct().save(tmp_path / "direct.json")
        with pytest.raises(BadData, match=r"not one of KnowledgeFilter .* it has direct; it lacks check, ids"):
            BlendFilter(three_lists()).select.load(tmp_path / "direct.json")

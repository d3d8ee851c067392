"""DSPy stays DSPy: its streaming, callbacks, threads, evaluation, usage and optimisers over our modules and models."""

from __future__ import annotations

import asyncio
import copy
import json
import random
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy.utils.callback import BaseCallback
from isle import PASSAGES, QUESTION, REPLIES, one_list, replies, three_lists
from openai.types.chat import ChatCompletion
from scripted import ScriptedLM, response

from blendfilter import resources
from blendfilter.errors import ReplayMiss
from blendfilter.journal import Journal
from blendfilter.lm.connect import connect
from blendfilter.lm.model import ConnectedLM
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.modules.direct import ChainOfThought, Direct
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.tasks.loading import load

ELEVEN = 11


@pytest.fixture(scope="module")
def index() -> BM25:
    """The sample world's passages."""
    return BM25.build(read_corpus(resources.sample("corpus.jsonl")))


@pytest.fixture(scope="module")
def trainset() -> list[dspy.Example]:
    """A few of its questions, as DSPy examples."""
    questions = load("hotpotqa", "sample", limit=6)
    return [dspy.Example(question=q.question, answer=q.golden_answers[0]).with_inputs("question") for q in questions]


def exact(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> bool:
    return str(example.answer).lower() == str(prediction.answer).lower()


def anything(example: dspy.Example, prediction: dspy.Prediction, trace: Any = None) -> bool:
    return bool(prediction.answer)


class Mine(dspy.Module):
    """A user's own method: a plain DSPy predictor over our index, asked twice."""

    def __init__(self, index: Any) -> None:
        super().__init__()
        self.index = index
        self.search = dspy.Predict("question -> query")
        self.reply = dspy.ChainOfThought("passages: list[str], question -> answer")

    async def aforward(self, question: str) -> dspy.Prediction:
        query = (await self.search.acall(question=question)).query
        found = self.index(query or question, k=3)
        said = await self.reply.acall(passages=[passage.line for passage in found], question=question)
        return dspy.Prediction(answer=said.answer, knowledge=found)

    def forward(self, question: str) -> dspy.Prediction:
        query = self.search(question=question).query
        found = self.index(query or question, k=3)
        said = self.reply(passages=[passage.line for passage in found], question=question)
        return dspy.Prediction(answer=said.answer, knowledge=found)


def statuses(told: list[Any]) -> Counter[str]:
    """How often each status message came (between them come the replies, each in one piece)."""
    return Counter(each.message for each in told if isinstance(each, dspy.streaming.StatusMessage))


class TestStreaming:
    def test_status_messages_and_the_prediction(self) -> None:
        class Told(dspy.streaming.StatusMessageProvider):
            def module_start_status_message(self, instance: Any, inputs: Any) -> str:
                return f"module {type(instance).__name__} {getattr(instance, 'name', '')}".strip()

            def lm_start_status_message(self, instance: Any, inputs: Any) -> str:
                return f"lm {instance.name}"

        async def follow() -> list[Any]:
            stream = dspy.streamify(BlendFilter(three_lists()), status_message_provider=Told(), is_async_program=True)
            return [each async for each in stream(question=QUESTION)]

        lm = ScriptedLM(replies())
        with dspy.context(lm=lm):
            told = asyncio.run(follow())
        said = statuses(told)
        assert said["lm scripted"] == ELEVEN
        assert said["module KnowledgeFilter"] == 3
        assert {f"module Ask {stage}" for stage in REPLIES if stage not in ("ids_again", "direct")} <= set(said)
        assert isinstance(told[-1], dspy.Prediction)
        assert told[-1].answer == "Ada Brennock"

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize("wrapped", [True, False])
    def test_the_synchronous_program_streams_too(self, wrapped: bool) -> None:
        """It runs on another thread, over the bridge; and sends more messages than DSPy's stream holds at once."""

        class Wrapped(dspy.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = BlendFilter(three_lists())

            def forward(self, question: str) -> dspy.Prediction:
                return self.inner(question=question)

        class Told(dspy.streaming.StatusMessageProvider):
            def module_start_status_message(self, instance: Any, inputs: Any) -> str:
                return type(instance).__name__

            def module_end_status_message(self, outputs: Any) -> str:
                return "over"

        async def follow() -> list[Any]:
            program = Wrapped() if wrapped else BlendFilter(three_lists())
            return [each async for each in dspy.streamify(program, Told())(question=QUESTION)]

        with dspy.context(lm=ScriptedLM(replies())):
            *told, last = asyncio.run(follow())
        assert last.answer == "Ada Brennock"
        said = statuses(told)
        assert said["Ask"] == ELEVEN
        assert said["over"] == sum(said.values()) / 2

    @pytest.mark.timeout(60)
    def test_many_steps_at_once_do_not_fill_the_stream(self) -> None:
        class Many(dspy.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = BlendFilter(three_lists())

            async def aforward(self, question: str) -> dspy.Prediction:
                return (await asyncio.gather(*(self.inner.acall(question=question) for _ in range(20))))[0]

        class Told(dspy.streaming.StatusMessageProvider):
            def lm_start_status_message(self, instance: Any, inputs: Any) -> str:
                return "asked"

            def lm_end_status_message(self, outputs: Any) -> str:
                return "answered"

        async def follow() -> list[Any]:
            return [each async for each in dspy.streamify(Many(), Told(), is_async_program=True)(question=QUESTION)]

        with dspy.context(lm=ScriptedLM(replies())):
            told = asyncio.run(follow())
        assert statuses(told) == {"asked": 20 * ELEVEN, "answered": 20 * ELEVEN}

    @pytest.mark.timeout(60)
    @pytest.mark.parametrize("is_async_program", [True, False])
    def test_whoever_stops_reading_stops_the_work(self, is_async_program: bool) -> None:
        async def follow() -> Any:
            stream = dspy.streamify(BlendFilter(three_lists()), is_async_program=is_async_program)(question=QUESTION)
            first = await anext(stream)
            await stream.aclose()
            return first

        lm = ScriptedLM(replies())
        with dspy.context(lm=lm):
            assert asyncio.run(asyncio.wait_for(follow(), 20)) is not None

    def test_an_error_reaches_whoever_streams(self) -> None:
        async def follow() -> None:
            async for _ in dspy.streamify(Direct())(question=QUESTION):
                pass

        with dspy.context(lm=ScriptedLM([RuntimeError("gone")])), pytest.raises(Exception, match="gone"):
            asyncio.run(follow())

    @pytest.mark.parametrize("connected", [True, False])
    @pytest.mark.parametrize("is_async_program", [True, False])
    def test_over_a_users_synchronous_model(
        self, connected: bool, is_async_program: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        class Told(dspy.streaming.StatusMessageProvider):
            def lm_start_status_message(self, instance: Any, inputs: Any) -> str:
                return "asked"

        async def follow() -> list[Any]:
            method = BlendFilter(three_lists())
            stream = dspy.streamify(method, status_message_provider=Told(), is_async_program=is_async_program)
            return [each async for each in stream(question=QUESTION)]

        with dspy.context(lm=connect(Echo("echo")) if connected else Echo("echo")):
            told = asyncio.run(follow())
        assert statuses(told) == {"asked": 9}  # q_ex and q_in bring the same list here: they share a filter
        assert isinstance(told[-1], dspy.Prediction)
        assert "Error when calling callback" not in caplog.text

    def test_a_listener_hears_the_answer(self) -> None:
        """An engine of ours gives the whole reply in one piece; a listener still finds its field."""

        async def follow() -> list[Any]:
            program = dspy.Predict("question -> answer")
            listener = dspy.streaming.StreamListener(signature_field_name="answer")
            stream = dspy.streamify(program, stream_listeners=[listener])
            return [each async for each in stream(question=QUESTION)]

        reply = "[[ ## answer ## ]]\nAda Brennock\n\n[[ ## completed ## ]]"
        with dspy.context(lm=ScriptedLM([reply]), adapter=dspy.ChatAdapter()):
            told = asyncio.run(follow())
        assert told[-1].answer == "Ada Brennock"


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

    def test_parallel(self) -> None:
        method = BlendFilter(one_list())
        pairs = [(method, {"question": question}) for question in self.questions]
        with dspy.context(lm=self.lm()):
            said = dspy.Parallel(num_threads=4, disable_progress_bar=True)(pairs)
        assert [each.answer for each in said] == [question[:-1] for question in self.questions]
        assert {len(each.calls) for each in said} == {7}

    def test_batch(self) -> None:
        examples = [dspy.Example(question=question).with_inputs("question") for question in self.questions]
        with dspy.context(lm=self.lm()):
            said = BlendFilter(one_list()).batch(examples, num_threads=4, disable_progress_bar=True)
        assert [each.answer for each in said] == [question[:-1] for question in self.questions]

    def test_evaluate(self) -> None:
        examples = [
            dspy.Example(question=question, answer=question[:-1] if i % 2 else "no").with_inputs("question")
            for i, question in enumerate(self.questions)
        ]
        with dspy.context(lm=self.lm()):
            result = dspy.Evaluate(devset=examples, metric=exact, num_threads=4)(BlendFilter(one_list()))
        assert result.score == 50.0
        assert [bool(score) for _, _, score in result.results] == [False, True] * 4

    def test_evaluate_scores_a_failing_question_zero(self) -> None:
        def reply(stage: str, prompt: str) -> Any:
            return RuntimeError("gone") if "What of 3?" in prompt else "x"

        examples = [dspy.Example(question=q, answer="x").with_inputs("question") for q in self.questions]
        with dspy.context(lm=ScriptedLM(reply)):
            result = dspy.Evaluate(devset=examples, metric=exact, num_threads=2, max_errors=5)(Direct())
        assert result.score == 87.5

    def test_offline_over_the_sample_world(self, index: BM25, trainset: list[dspy.Example]) -> None:
        with dspy.context(lm=connect("offline")):
            result = dspy.Evaluate(devset=trainset, metric=anything, num_threads=2)(BlendFilter(index))
        assert result.score == 100.0


def delayed(lm: ConnectedLM, seed: int) -> ConnectedLM:
    """`lm`, each of whose calls takes a moment of its own."""
    rng, inner = random.Random(seed), lm.inner

    class Slow:
        async def complete(self, request: Any) -> Any:
            await asyncio.sleep(rng.random() / 200)
            return await inner.complete(request)

    slow = lm.with_journal(lm.journal)
    return type(lm)(slow.name, Slow(), profile=lm.profile, identity=lm.identity, journal=lm.journal, temperature=0.0)


class TestCompiling:
    """Compiled live with shuffled delays, and from the journal: the same program, byte for byte."""

    def compiled(
        self, student: dspy.Module, lm: dspy.LM, trainset: list[dspy.Example], path: Path, **how: Any
    ) -> bytes:
        optimiser = dspy.BootstrapFewShot(
            **{"metric": anything, "max_bootstrapped_demos": 3, "max_labeled_demos": 1, **how}
        )
        with dspy.context(lm=lm):
            optimiser.compile(student, trainset=trainset).save(path)
        return path.read_bytes()

    @pytest.mark.parametrize("kind", ["blendfilter", "mine"])
    @pytest.mark.parametrize("rounds", [1, 2])
    def test_live_and_replayed_give_the_same_file(
        self, kind: str, rounds: int, index: BM25, trainset: list[dspy.Example], tmp_path: Path
    ) -> None:
        def student() -> dspy.Module:
            return BlendFilter(index, k=3) if kind == "blendfilter" else Mine(index)

        # Rounds after the first sample anew, with a rollout_id: only a metric that refuses something reaches them.
        metric = anything if rounds == 1 else exact
        how = {"max_rounds": rounds, "metric": metric}
        programs = []
        for seed in (1, 2):
            with Journal(tmp_path / f"live{seed}") as journal:
                lm = delayed(connect("offline", journal=journal), seed)
                programs.append(self.compiled(student(), lm, trainset, tmp_path / f"{seed}.json", **how))
        with Journal(tmp_path / "live1", "replay") as journal:
            lm = connect("offline", journal=journal)
            programs.append(self.compiled(student(), lm, trainset, tmp_path / "replayed.json", **how))
        assert programs[0] == programs[1] == programs[2]
        found = json.loads(programs[0])
        name = "select.check" if kind == "blendfilter" else "search"
        if rounds == 1:
            assert any(demo.get("augmented") for demo in found[name]["demos"])

    def test_a_compiled_program_shows_its_demonstrations(
        self, index: BM25, trainset: list[dspy.Example], tmp_path: Path
    ) -> None:
        path = tmp_path / "program.json"
        self.compiled(BlendFilter(index, k=3), connect("offline"), trainset, path)
        again = BlendFilter(index, k=3)
        again.load(path)
        demos = [demo for demo in again.select.ids.demos if demo.get("augmented")]
        assert demos
        prompt = again.select.ids.render(context="c", knowledge=["T | x"], question=QUESTION, offer_none=False)
        assert all(f"Question: {demo['question']}\nIds:\n{demo['ids']}\n" in prompt for demo in demos)

    def test_labelled_rows_that_lack_fields_do_not_reach_a_prompt(
        self, index: BM25, trainset: list[dspy.Example], tmp_path: Path
    ) -> None:
        path = tmp_path / "program.json"
        self.compiled(BlendFilter(index, k=3), connect("offline"), trainset, path, max_bootstrapped_demos=1)
        again = BlendFilter(index, k=3)
        again.load(path)
        bare = [demo for demo in again.blending.internal.demos if "passage" not in demo]
        prompt = again.blending.internal.render(question=QUESTION)
        assert not any(demo["question"] in prompt for demo in bare)

    def test_a_replay_that_needs_another_call_says_so(
        self, index: BM25, trainset: list[dspy.Example], tmp_path: Path
    ) -> None:
        with Journal(tmp_path) as journal, dspy.context(lm=connect("offline", journal=journal)):
            BlendFilter(index)(question=trainset[0].question)
        with Journal(tmp_path, "replay") as journal, dspy.context(lm=connect("offline", journal=journal)):
            BlendFilter(index)(question=trainset[0].question)
            with pytest.raises(ReplayMiss, match=r"stage '(external|internal)'"):
                BlendFilter(index)(question="Something else?")

    def test_labeled_few_shot_too(self, trainset: list[dspy.Example]) -> None:
        compiled = dspy.LabeledFewShot(k=2).compile(Direct(), trainset=trainset)
        lm = ScriptedLM(["x"])
        with dspy.context(lm=lm):
            compiled(question=QUESTION)
        assert sum(f"Question: {row.question}\nAnswer:\n{row.answer}\n" in lm.prompts[0][1] for row in trainset) == 2


class TestUsage:
    def test_usage_is_tracked_over_all_stages(self) -> None:
        lm = ScriptedLM(lambda stage, prompt: response(REPLIES[stage], usage=(100, 7)))
        with dspy.context(lm=lm), dspy.track_usage() as tracker:
            BlendFilter(three_lists())(question=QUESTION)
        total = tracker.get_total_tokens()
        (model,) = total
        assert model == "blendfilter/scripted"
        assert (total[model]["prompt_tokens"], total[model]["completion_tokens"]) == (1100, 77)

    @pytest.mark.parametrize("awaited", [True, False])
    def test_or_with_each_prediction(self, awaited: bool) -> None:
        lm = ScriptedLM(lambda stage, prompt: response(REPLIES[stage], usage=(100, 7)))
        method = BlendFilter(three_lists())
        with dspy.context(lm=lm, track_usage=True):
            said = asyncio.run(method.acall(question=QUESTION)) if awaited else method(question=QUESTION)
        assert said.get_lm_usage()["blendfilter/scripted"]["prompt_tokens"] == 1100


class TestRetrievalModel:
    def test_our_index_is_dspys_retrieval_model(self, index: BM25) -> None:
        with dspy.context(rm=index):
            found = dspy.Retrieve(k=2)("Which isle has a harbour?")
        assert found.passages == [passage.line for passage in index("Which isle has a harbour?", k=2)]
        assert len(found.passages) == 2

    def test_dspys_retrieve_is_a_retriever_of_ours(self, index: BM25) -> None:
        lm = ScriptedLM(replies())
        with dspy.context(rm=index, lm=lm):
            said = BlendFilter(dspy.Retrieve(), k=2)(question="Which isle has a harbour?")
        assert [p.line for p in said.branches["q"].retrieved] == [
            p.line for p in index("Which isle has a harbour?", k=2)
        ]


class Echo(dspy.BaseLM):
    """A user's own model: synchronous only, in OpenAI's shape."""

    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        text = messages[-1]["content"] if messages else prompt
        said = "0" if text.endswith("Ids:") else "So the answer is Tolm."
        message = {"role": "assistant", "content": said}
        return ChatCompletion.model_validate(
            {
                "id": "1",
                "created": 0,
                "object": "chat.completion",
                "model": "echo",
                "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12},
            }
        )


class TestModelsOfOnesOwn:
    def test_a_synchronous_one_answers_as_it_is(self) -> None:
        with dspy.context(lm=Echo("echo")):
            said = BlendFilter(three_lists())(question=QUESTION)
        assert said.answer == "So the answer is Tolm."
        assert said.knowledge == [PASSAGES[0], PASSAGES[1]]

    def test_a_connected_one_is_counted_once(self) -> None:
        watch = Watch()
        with dspy.context(lm=connect(Echo("echo")), callbacks=[watch]), dspy.track_usage() as tracker:
            BlendFilter(three_lists())(question=QUESTION)
        ((model, usage),) = tracker.get_total_tokens().items()
        assert model == "blendfilter/echo"
        assert usage["prompt_tokens"] == 10 * watch.ended["lm"]
        assert watch.ended["lm"] == 9

    def test_and_is_journaled_when_connected(self, tmp_path: Path) -> None:
        with Journal(tmp_path) as journal, dspy.context(lm=connect(Echo("echo"), journal=journal)):
            said = BlendFilter(three_lists())(question=QUESTION)
            assert [stage for stage, _ in said.calls][-1] == "short_answer"
            records = [record for record in journal.records() if record["kind"] == "call"]
        assert {record["stage"] for record in records} >= {"external", "check", "ids", "short_answer"}
        assert {key for _, key in said.calls} == {record["key"] for record in records}


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
            said = [each(question=QUESTION).answer for each in copies]
        assert said == ["Ada Brennock"] * 4

    def test_a_copy_has_demonstrations_of_its_own_and_the_same_index(self, index: BM25) -> None:
        method = BlendFilter(index)
        other = method.deepcopy()
        other.blending.external.demos.clear()
        assert len(method.blending.external.demos) == 3
        assert other.blending.retriever is method.blending.retriever

    def test_a_module_with_a_model_of_its_own_is_copied_too(self, index: BM25) -> None:
        method = BlendFilter(index)
        method.set_lm(ScriptedLM(replies()))
        with dspy.context(lm=None):
            assert method.deepcopy()(question=QUESTION).answer == "Ada Brennock"

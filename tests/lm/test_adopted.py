"""A user's own model, journaled and counted like ours."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
from pathlib import Path
from typing import Any

import dspy
import pytest
from dspy import lm15
from dspy.clients.base_lm import GLOBAL_HISTORY
from dspy.utils import DummyLM
from model_server import serve
from openai.types.chat import ChatCompletion
from scripted import response

from blendfilter.errors import ModelError, ReplayMiss, ServerRefused
from blendfilter.journal import Journal
from blendfilter.lm.adopted import AdoptedEngine, is_asynchronous
from blendfilter.lm.connect import connect
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.retrying import Retry
from blendfilter.prompting import TemplateAdapter

pytestmark = pytest.mark.filterwarnings("ignore:Implementing custom LMs:DeprecationWarning")


class Shout:
    """A synchronous engine of a user's own: says the prompt in capitals."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, lm15.Config]] = []
        self.threads: set[str] = set()

    def complete(self, request: lm15.Request) -> lm15.Response:
        prompt = request.messages[-1].parts[0].text
        self.calls.append((prompt, request.config))
        self.threads.add(threading.current_thread().name)
        return response(prompt.upper(), usage=(3, 1))


class AsyncShout(Shout):
    """The same, awaited."""

    async def complete(self, request: lm15.Request) -> lm15.Response:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().complete(request)


def body(text: str) -> dict[str, Any]:
    message = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [message], "usage": usage}


class Legacy(dspy.BaseLM):  # type: ignore[misc]
    """A `BaseLM` as DSPy had them before engines: synchronous, OpenAI-shaped."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[dict[str, Any]] = []

    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        self.seen.append({"messages": messages, **kwargs})
        return ChatCompletion.model_validate(body(f"{messages[-1]['content']}!"))


class AsyncLegacy(Legacy):
    async def aforward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        return self.forward(prompt, messages, **kwargs)


def test_a_synchronous_engine_is_called_in_a_worker_thread_and_journaled(tmp_path: Path) -> None:
    engine = Shout()
    own = dspy.LM("own/shout", engine=engine, temperature=0.4, cache=True)
    with Journal(tmp_path) as journal:
        lm = connect(own, journal=journal, label="mine")
        assert isinstance(lm, ConnectedLM)
        assert (lm.name, lm.kwargs) == ("own/shout", {"temperature": 0.4})
        assert [lm("hello"), lm("hello")] == [["HELLO"], ["HELLO"]]
        (record,) = journal.records()
    assert (record["model"], record["label"], record["prompt"], record["reply"]) == (
        "own/shout", "mine", "hello", "HELLO",
    )  # fmt: skip
    assert (record["tokens_in"], record["tokens_out"]) == (3, 1)
    assert [(prompt, config.temperature) for prompt, config in engine.calls] == [("hello", 0.4)]
    assert all(name.startswith("blendfilter-worker") for name in engine.threads)
    with Journal(tmp_path, "replay") as journal:
        lm = connect(own, journal=journal, label="mine")
        assert lm("hello") == ["HELLO"]
        with pytest.raises(ReplayMiss):
            lm("hello there")
    assert len(engine.calls) == 1


def test_an_asynchronous_engine_is_awaited_on_the_loop() -> None:
    engine = AsyncShout()
    lm = connect(dspy.LM("own/shout", engine=Shout(), async_engine=engine))
    assert lm("hello") == ["HELLO"]
    assert asyncio.run(lm.acall("there")) == ["THERE"]
    assert [prompt for prompt, _ in engine.calls] == ["hello", "there"]
    assert engine.threads == {"blendfilter-loop", threading.main_thread().name}


def test_slow_synchronous_models_run_side_by_side() -> None:
    together = threading.Barrier(4, timeout=10)

    class Slow(Shout):
        def complete(self, request: lm15.Request) -> lm15.Response:
            together.wait()  # passes only where four calls are inside at once
            return super().complete(request)

    lm = connect(dspy.LM("own/slow", engine=Slow()))
    replies = asyncio.run(_all(lm, ["a", "b", "c", "d"]))
    assert replies == [["A"], ["B"], ["C"], ["D"]]


async def _all(lm: Any, prompts: list[str]) -> list[Any]:
    return await asyncio.gather(*(lm.acall(prompt) for prompt in prompts))


@pytest.mark.parametrize("kind", [Legacy, AsyncLegacy])
def test_a_base_lm_from_before_engines_works(tmp_path: Path, kind: type[Legacy]) -> None:
    own = kind("old/model", temperature=0.2)
    with Journal(tmp_path) as journal:
        lm = connect(own, journal=journal)
        assert [lm("hello"), lm("hello")] == [["hello!"], ["hello!"]]
        assert lm("hello", temperature=0.9) == ["hello!"]
        assert [record["parameters"] for record in journal.records()] == [{"temperature": 0.2}, {"temperature": 0.9}]
    inner = lm.inner.lm  # type: ignore[attr-defined]
    assert [(seen["messages"][-1]["content"], seen["temperature"]) for seen in inner.seen] == [
        ("hello", 0.2), ("hello", 0.9),
    ]  # fmt: skip


def test_dspys_own_dummy_answers_predictors(tmp_path: Path) -> None:
    predict = dspy.Predict("question -> answer")
    with Journal(tmp_path) as journal:
        lm = connect(DummyLM([{"answer": "red"}, {"answer": "blue"}]), journal=journal)
        with dspy.context(lm=lm):
            assert [predict(question=question).answer for question in ("a", "b", "a")] == ["red", "blue", "red"]
        assert [record["stage"] for record in journal.records()] == ["predict", "predict"]


def test_three_samples_of_an_adopted_model_are_three_records(tmp_path: Path) -> None:
    engine = Shout()
    with Journal(tmp_path) as journal:
        lm = connect(dspy.LM("own/shout", engine=engine, temperature=1.0), journal=journal)
        assert lm("hello", n=3) == ["HELLO"] * 3
        # They come from worker threads, in any order.
        assert sorted(record["sample"][1] for record in journal.records()) == [0, 1, 2]
    assert len(engine.calls) == 3


def test_a_dspy_lm_reaches_its_own_server_with_its_own_settings_and_no_secret_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = "sk-verysecret0123456789"
    with serve(keep=True) as server, Journal(tmp_path) as journal:
        own = dspy.LM("openai/test-model", api_base=server.url, api_key=key, temperature=0.3, presence_penalty=0.5,
                      max_tokens=3, num_retries=0, cache=False, aws_secret_access_key="aws-verysecret")  # fmt: skip
        with caplog.at_level(logging.WARNING, "blendfilter"):
            lm = connect(own, journal=journal)
        assert lm("hello") == ["So the answer"]
        (sent,) = server.stats()["bodies"]
        assert (sent["model"], sent["temperature"], sent["presence_penalty"]) == ("test-model", 0.3, 0.5)
        assert 3 in (sent.get("max_tokens"), sent.get("max_completion_tokens"))
        (record,) = journal.records()
        assert record["parameters"] == {"temperature": 0.3, "max_tokens": 3, "presence_penalty": 0.5}
    assert "openai/test-model that are not passed on: aws_secret_access_key" in caplog.text
    for text in ((tmp_path / "journal.jsonl").read_text(), caplog.text, str(lm.__dict__), str(lm.history)):
        assert "verysecret" not in text


@pytest.mark.parametrize(
    ("behave", "error", "kind"),
    [("unauthorized", ServerRefused, ""), ("context", ModelError, "context_too_long"), ("no-model", ServerRefused, "")],
)
def test_the_faults_of_a_dspy_lm_are_told_like_ours(behave: str, error: type[Exception], kind: str) -> None:
    with serve(behave=behave) as server:
        lm = connect(dspy.LM("openai/test-model", api_base=server.url, api_key="sk-verysecret0123", num_retries=0))
        with pytest.raises(error) as told:
            lm("hello CONTEXT-TOO-LONG")
    assert getattr(told.value, "kind", "") == kind
    assert "verysecret" not in str(told.value)


def test_an_error_inside_a_users_model_is_that_calls_error(tmp_path: Path) -> None:
    class Broken(Legacy):
        def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
            raise RuntimeError("out of memory")

    with Journal(tmp_path) as journal:
        lm = connect(Broken("own/broken"), journal=journal)
        with pytest.raises(ModelError, match="out of memory"):
            lm("hello")
        assert [record["error"]["kind"] for record in journal.records()] == ["unexpected"]


def test_a_users_model_is_saved_as_itself() -> None:
    own = dspy.LM("openai/test-model", api_key="sk-verysecret0123", temperature=0.3)
    state = connect(own).dump_state()
    again = dspy.BaseLM.load_state(state)
    assert (type(again), again.model, again.kwargs["temperature"]) == (dspy.LM, "openai/test-model", 0.3)
    assert "verysecret" not in str(state)


def test_which_models_can_be_awaited() -> None:
    assert not is_asynchronous(Legacy("old/model"))
    assert is_asynchronous(AsyncLegacy("old/model"))
    assert not is_asynchronous(dspy.LM("own/shout", engine=Shout()))
    assert is_asynchronous(dspy.LM("own/shout", engine=Shout(), async_engine=AsyncShout()))
    assert is_asynchronous(dspy.LM("openai/gpt-4o-mini"))
    assert is_asynchronous(DummyLM([]))
    assert is_asynchronous(connect("offline"))


ABILITIES = ("supports_function_calling", "supports_response_schema", "supports_reasoning", "supported_params")


@pytest.mark.parametrize("name", ["openai/gpt-4o", "openai/o3-mini", "own/unknown"])
def test_what_a_users_model_can_do_is_still_known(name: str) -> None:
    own = dspy.LM(name, api_key="sk-verysecret0123")
    lm = connect(own)
    assert [getattr(lm, each) for each in ABILITIES] == [getattr(own, each) for each in ABILITIES]
    assert [getattr(lm.copy(temperature=0.9), each) for each in ABILITIES] == [getattr(own, each) for each in ABILITIES]
    if name == "openai/gpt-4o":
        assert lm.supports_function_calling is True


def test_of_our_own_models_nothing_is_claimed() -> None:
    assert [getattr(connect("offline"), each) for each in ABILITIES] == [False, False, False, set()]


# ---- attempts, costs and what a call leaves behind


def hasty(lm: ConnectedLM) -> ConnectedLM:
    """The same, whose retries do not wait."""
    lm.terms = dataclasses.replace(lm.terms, retry=Retry(wait_first=0.001, wait_max=0.002))
    return lm.with_journal(lm.journal)


def own_at(url: str, name: str = "openai/gpt-4o-mini", **more: Any) -> dspy.LM:
    return dspy.LM(name, api_base=url, api_key="sk-verysecret0123", **more)


def test_attempts_are_counted_by_us_and_dspys_own_retries_are_off(tmp_path: Path) -> None:
    with serve(behave="flaky", share=0.6, keep=True) as server, Journal(tmp_path) as journal:
        lm = hasty(connect(own_at(server.url, num_retries=7), journal=journal))
        assert [lm(f"hello {i}") for i in range(8)] == [["So the answer is 42."]] * 8
        records = list(journal.records())
        assert sum(record["attempts"] for record in records) == server.stats()["requests"] > 8
        assert sum(record["tokens_out"] for record in records) == server.stats()["tokens_out"]
    assert not any(record["error"] for record in records)


def test_dspys_prices_are_those_of_providers_and_say_nothing_of_a_server_of_ones_own(tmp_path: Path) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text('[models]\n"openai/gpt-4o-mini" = { input = 1000000, output = 0 }\n', encoding="utf-8")
    request = lm15.Request(model="m", messages=(lm15.Message.user("hello there"),))
    with serve() as server, Journal(tmp_path) as journal:
        reckoned = asyncio.run(AdoptedEngine(own_at(server.url), estimate=True).complete(request))
        unknown = asyncio.run(AdoptedEngine(own_at(server.url, "openai/test-model"), estimate=True).complete(request))
        connect(own_at(server.url), journal=journal)("hello there")
        connect(own_at(server.url), journal=journal, prices=prices)("hello")
        costs = [record["cost"] for record in journal.records()]
    assert 0 < reckoned.provider_data["cost"] < 1e-4
    assert "cost" not in (unknown.provider_data or {})
    assert costs == [None, 1.0]


def test_what_a_provider_says_that_a_call_cost_goes_before_what_dspy_reckons() -> None:
    class Dear:
        def complete(self, request: lm15.Request) -> lm15.Response:
            return dataclasses.replace(response("yes"), provider_data={"cost": 3.0})

    engine = AdoptedEngine(dspy.LM("openai/gpt-4o-mini", engine=Dear()), estimate=True)
    said = asyncio.run(engine.complete(lm15.Request(model="m", messages=(lm15.Message.user("hello"),))))
    assert said.provider_data["cost"] == 3.0


def test_cached_tokens_are_recorded(tmp_path: Path) -> None:
    class Cached(Legacy):
        def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
            said = body("yes")
            said["usage"]["prompt_tokens_details"] = {"cached_tokens": 2}
            return ChatCompletion.model_validate(said)

    with Journal(tmp_path) as journal:
        connect(Cached("old/model"), journal=journal)("hello")
        (record,) = journal.records()
    assert (record["tokens_in"], record["tokens_cached"], record["tokens_out"]) == (3, 2, 2)


@pytest.mark.parametrize("make", [lambda: dspy.LM("own/shout", engine=Shout()), lambda: AsyncLegacy("old/model")])
def test_a_call_stands_in_each_history_once(make: Any) -> None:
    own = make()
    lm = connect(own)
    predict = dspy.Predict("question -> answer")
    GLOBAL_HISTORY.clear()  # full, it holds 10,000 however many are added: the tests before this one may have made them
    with dspy.context(lm=lm, adapter=TemplateAdapter("direct")), dspy.track_usage() as tracker:
        predict(question="Which?")
    assert (len(predict.history), len(lm.history), len(GLOBAL_HISTORY), len(own.history)) == (1, 1, 1, 0)
    assert predict.history[0]["outputs"] == lm.history[0]["outputs"]
    assert list(tracker.get_total_tokens()) == [lm.model]


def test_the_users_own_model_stays_as_it_was() -> None:
    own = dspy.LM("own/shout", engine=Shout(), num_retries=5, cache=True)
    connect(own)("hello")
    assert (own.num_retries, own.cache, own.history) == (5, True, [])
    assert "update_history" not in vars(own)
    state = connect(dspy.LM("openai/test-model", num_retries=5)).dump_state()
    assert (state["num_retries"], state["cache"]) == (5, True)


def test_a_cache_of_dspys_is_not_read(tmp_path: Path) -> None:
    engine, asked = Shout(), str(tmp_path)  # which no earlier session asked: the cache is on disk
    own = dspy.LM("own/cached", engine=engine, cache=True)
    own(asked)
    with Journal(tmp_path) as journal:
        assert connect(own, journal=journal)(asked) == [asked.upper()]
        assert next(journal.records())["tokens_in"] == 3
    assert len(engine.calls) == 2


@pytest.mark.parametrize(
    ("own", "held"),
    [
        (dspy.LM("openai/gpt-4o-mini"), True),
        (dspy.LM("openai/gpt-3.5-turbo"), None),
        (dspy.LM("mistral/mistral-small-latest"), True),
        (dspy.LM("openai/gpt-4o-mini", api_base="http://127.0.0.1:9/v1"), None),
        (dspy.LM("openai/gpt-4o-mini", model_type="responses"), None),
        (dspy.LM("ollama/llama3.2"), None),
        (dspy.LM("openai/gpt-4o-mini", engine=Shout()), None),
        (Legacy("openai/gpt-4o-mini"), None),
    ],
)
def test_ids_of_a_users_model_are_held_to_a_schema_where_that_is_known(own: dspy.BaseLM, held: bool | None) -> None:
    assert connect(own).profile.json_schema is held


def test_a_schema_reaches_the_server_of_a_users_model() -> None:
    schema = {"type": "object", "properties": {"ids": {"type": "array", "items": {"type": "integer"}}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "ids", "schema": schema, "strict": True}}
    with serve(keep=True) as server:
        connect(own_at(server.url))("hello", response_format=wanted)
        (sent,) = server.stats()["bodies"]
    assert sent["response_format"]["json_schema"]["schema"] == schema


def test_a_stream_is_the_reply_once_and_listeners_hear_its_field() -> None:
    class Marked(AsyncShout):
        async def complete(self, request: lm15.Request) -> lm15.Response:  # type: ignore[override]
            await super().complete(request)
            return response("[[ ## answer ## ]]\ndark red\n\n[[ ## completed ## ]]")

    engine = Marked()
    program = dspy.streamify(
        dspy.Predict("question -> answer"),
        stream_listeners=[dspy.streaming.StreamListener(signature_field_name="answer")],
        async_streaming=False,
    )
    with dspy.context(
        lm=connect(dspy.LM("own/marked", engine=Shout(), async_engine=engine)), adapter=dspy.ChatAdapter()
    ):
        *pieces, last = program(question="Which?")
    assert "".join(piece.chunk for piece in pieces) == last.answer == "dark red"
    assert len(engine.calls) == 1

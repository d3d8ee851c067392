"""A user's own model, journaled and counted like ours."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import threading
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import dspy
import httpx
import openai
import pytest
from dspy import lm15
from dspy.clients.base_lm import GLOBAL_HISTORY
from dspy.utils import exceptions
from dspy35 import OF_34
from model_server import serve
from openai.types.chat import ChatCompletion
from scripted import response

from blendfilter.errors import BadArgument, ModelError, ReplayMiss, ServerRefused
from blendfilter.journal import Journal
from blendfilter.lm.adopted import AdoptedEngine
from blendfilter.lm.attempts import Retry
from blendfilter.lm.model import ConnectedLM, connect
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


class Warm(Shout):
    """Refuses a temperature of 0 by its value."""

    def complete(self, request: lm15.Request) -> lm15.Response:
        said = super().complete(request)
        if request.config.temperature == 0:
            raise lm15.InvalidRequestError("`temperature` must be strictly positive", status=422)
        return said


def test_a_temperature_of_0_that_a_users_model_refuses_is_nearly_0_from_then_on() -> None:
    lm = connect(dspy.LM("own/warm", engine=(engine := Warm()), temperature=0.0), cache=False)
    assert [lm("hello"), lm("there")] == [["HELLO"], ["THERE"]]
    assert [config.temperature for _, config in engine.calls] == [0, 0.01, 0.01]


class Wordy(Shout):
    """Refuses a cap below 64."""

    def complete(self, request: lm15.Request) -> lm15.Response:
        said = super().complete(request)
        if (request.config.max_tokens or 0) < 64:
            raise lm15.InvalidRequestError(self.refusal, status=400)
        return said

    refusal = "max_tokens is too small: minimum is 64"


def test_a_cap_below_the_least_of_a_users_model_is_raised_and_never_left_out() -> None:
    lm = connect(dspy.LM("own/wordy", engine=(engine := Wordy()), max_tokens=32), cache=False)
    assert [lm("hello"), lm("there")] == [["HELLO"], ["THERE"]]
    assert [config.max_tokens for _, config in engine.calls] == [32, 64, 64]
    engine.refusal = "max_tokens is not supported"
    lm = connect(dspy.LM("own/wordy", engine=engine, max_tokens=32), cache=False)
    with pytest.raises(ModelError, match="not supported"):
        lm("hello")
    assert [config.max_tokens for _, config in engine.calls][3:] == [32]


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


@OF_34
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


class Attributes(Legacy):
    """A `BaseLM` whose replies are objects with as much as DSPy wants."""

    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        message = SimpleNamespace(content=f"{prompt or messages[-1]['content']}!")
        return SimpleNamespace(choices=[SimpleNamespace(message=message)], usage={}, model="m")


class AsyncAttributes(Attributes):
    async def aforward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        return self.forward(prompt, messages, **kwargs)


@OF_34
@pytest.mark.parametrize("kind", [Attributes, AsyncAttributes])
def test_a_base_lm_may_answer_with_objects_as_it_may_in_dspy(kind: type[Legacy]) -> None:
    own = kind("old/model")
    assert own("hello") == connect(own)("hello") == ["hello!"]


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


def test_a_users_model_is_saved_as_itself() -> None:
    own = dspy.LM("openai/test-model", api_key="sk-verysecret0123", temperature=0.3, num_retries=5)
    state = connect(own).dump_state()
    again = dspy.BaseLM.load_state(state)
    assert (type(again), again.model, again.kwargs["temperature"]) == (dspy.LM, "openai/test-model", 0.3)
    assert (again.num_retries, again.cache) == (5, True)
    assert "verysecret" not in str(state)


def test_what_a_users_model_can_do_is_still_known() -> None:
    own = dspy.LM("openai/gpt-4o", api_key="sk-verysecret0123")
    for name in ("supports_function_calling", "supports_response_schema", "supports_reasoning", "supported_params"):
        assert getattr(connect(own).copy(temperature=0.9), name) == getattr(own, name)
    assert own.supports_function_calling


def own_at(url: str, name: str = "openai/gpt-4o-mini", **more: Any) -> dspy.LM:
    return dspy.LM(name, api_base=url, api_key="sk-verysecret0123", **more)


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


@pytest.mark.parametrize(
    "make", [lambda: dspy.LM("own/shout", engine=Shout()), pytest.param(lambda: AsyncLegacy("old/model"), marks=OF_34)]
)
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


@pytest.mark.parametrize(
    ("own", "kept"),
    [
        (dspy.LM("openai/gpt-4o-mini"), True),
        (dspy.LM("openai/gpt-3.5-turbo"), None),
        (dspy.LM("mistral/mistral-small-latest"), True),
        (dspy.LM("openai/gpt-4o-mini", api_base="http://127.0.0.1:9/v1"), None),
        (dspy.LM("openai/gpt-4o-mini", engine=Shout()), None),
        (Legacy("openai/gpt-4o-mini"), None),
    ],
)
def test_ids_of_a_users_model_are_held_to_a_schema_where_that_is_known(own: dspy.BaseLM, kept: bool | None) -> None:
    assert connect(own).profile.json_schema is kept


def hasty(lm: ConnectedLM) -> ConnectedLM:
    """The same, whose retries do not wait."""
    lm.terms = dataclasses.replace(lm.terms, retry=Retry(wait_first=0.001, wait_max=0.002))
    return lm.with_journal(lm.journal)


REQUEST = httpx.Request("POST", "http://127.0.0.1/v1", headers={"Authorization": "Bearer sk-verysecret0123"})


def of_openai(status: int, message: str, **more: Any) -> openai.APIStatusError:
    kind = openai.RateLimitError if status == 429 else openai.BadRequestError
    response = httpx.Response(status, request=REQUEST, headers={"retry-after": "0"})
    return kind(message, response=response, body={"message": message, **more})


FAULTS = [  # the fault; our kind, or that the server refuses; whether it is tried again
    (exceptions.LMTransportError("gone"), "server_error", True),
    (exceptions.LMLockTimeoutError("held"), "server_error", True),
    (exceptions.LMTimeoutError("slow"), "timeout", True),
    (exceptions.LMRateLimitError("busy", status=429, retry_after=0.0), "rate_limited", True),
    (exceptions.ContextWindowExceededError(message="long"), "context_too_long", False),
    (exceptions.LMAuthError("no", status=401), "refused", False),
    (exceptions.LMNotConfiguredError("no key"), "refused", False),
    (exceptions.LMError("odd"), "unexpected", False),
    (lm15.RateLimitError("busy", status=429), "rate_limited", True),
    (lm15.ProviderError("a page", status=200), "server_error", True),
    (lm15.ProviderError("died, in a stream", provider_code="502"), "server_error", True),
    (lm15.ProviderError("busy, in a stream", provider_code="429"), "rate_limited", True),
    (lm15.StreamAssemblyError("a stream without an end"), "server_error", True),
    (json.JSONDecodeError("an event that is none", "", 0), "server_error", True),
    (of_openai(429, "busy"), "rate_limited", True),
    (httpx.ReadTimeout("slow", request=REQUEST), "timeout", True),
    (httpx.ConnectError("refused", request=REQUEST), "refused", True),
    (TimeoutError(), "timeout", True),
    (ConnectionResetError("reset"), "server_error", True),
    (ValueError("a bug"), "unexpected", False),
]


@pytest.mark.parametrize("kind", ["engine", *(pytest.param(kind, marks=OF_34) for kind in ("forward", "aforward"))])
@pytest.mark.parametrize(("fault", "expected", "again"), FAULTS, ids=lambda value: type(value).__name__)
def test_whatever_a_model_raises_is_one_of_our_faults(
    fault: Exception, expected: str, again: bool, kind: str, tmp_path: Path
) -> None:
    tried = 0

    class Failing(AsyncLegacy if kind == "aforward" else dspy.BaseLM):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal tried
            tried += 1
            raise fault

        def complete(self, request: lm15.Request) -> lm15.Response:
            return self.forward()  # type: ignore[no-any-return]

    own = dspy.LM("own/failing", engine=Failing("x")) if kind == "engine" else Failing("own/failing")
    with Journal(tmp_path) as journal:
        lm = hasty(connect(own, journal=journal))
        with pytest.raises(ServerRefused if expected == "refused" else ModelError) as raised:
            lm("hello")
        records = list(journal.records())
    assert (tried > 1) is again
    if expected == "refused":
        assert records == []
    else:
        assert [(record["error"]["kind"], record["attempts"]) for record in records] == [(expected, tried)]
        assert raised.value.kind == expected  # type: ignore[attr-defined]
    assert "verysecret" not in "".join(traceback.format_exception(raised.value)) + repr(raised.value.__dict__)


@pytest.mark.parametrize("variable", ["OPENAI_API_BASE", "OPENAI_BASE_URL"])
def test_a_server_that_the_environment_names_is_no_provider(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    home = connect(dspy.LM("openai/gpt-4o-mini"))
    monkeypatch.setenv(variable, "http://127.0.0.1:9/v1")
    away = connect(dspy.LM("openai/gpt-4o-mini"))
    assert (home.address, home.profile.json_schema, home.terms.price is None) == ("", True, False)
    assert (away.address, away.profile.json_schema, away.terms.price) == ("http://127.0.0.1:9/v1", None, None)
    assert connect(dspy.LM("openai/x", engine=Shout())).address == ""


@pytest.mark.parametrize("engine", ["auto", "litellm"])
def test_fields_of_its_own_are_sent_and_tell_its_calls_apart(engine: str, tmp_path: Path) -> None:
    extra = {"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}}
    with serve(keep=True) as server, Journal(tmp_path) as journal:
        for given in ({"extra_body": extra}, {}):
            lm = connect(dspy.LM("openai/m", api_base=server.url, api_key="k", engine=engine, **given), journal=journal)
            lm("hello")
        sent, plain = server.stats()["bodies"]
        keys = [record["key"] for record in journal.records()]
    assert {name: sent.get(name) for name in extra} == extra
    assert not extra.keys() & plain.keys()
    assert len(set(keys)) == 2


def test_a_key_among_these_fields_is_refused() -> None:
    own = dspy.LM("openai/m", api_key="k", extra_body={"plugins": [{"api_key": "sk-test-0123456789"}]})
    with pytest.raises(BadArgument, match="extra_body must hold no key, and 'api_key' looks like one"):
        connect(own)


class Saying(Legacy):
    """Replies a server's body as it stands, which DSPy reads."""

    def __init__(self, **said: Any) -> None:
        super().__init__("own/saying")
        self.said = said

    def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        return {**body("Jon"), **self.said}


def ended_by(reason: str | None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": "Jon"}, "finish_reason": reason, **more}]}


@OF_34
@pytest.mark.parametrize(
    ("said", "ending"),
    [
        (ended_by(None), "stop"),
        (ended_by("eos_token"), "stop"),
        (ended_by("model_length"), "length"),
        (ended_by("abort"), lm15.TransportError),
        (ended_by("error", error={"code": 502, "message": "died"}), lm15.ServerError),
        (ended_by("stop", provider_specific_fields={"native_finish_reason": "error"}), lm15.TransportError),
        (ended_by("content_filter"), lm15.InvalidRequestError),
        ({"choices": []}, lm15.TransportError),
        ({"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}, "stop"),
    ],
)
def test_a_reply_through_dspy_ends_as_one_of_the_built_in_client_does(said: dict[str, Any], ending: Any) -> None:
    engine = AdoptedEngine(Saying(**said))
    wanted = lm15.Request(model="m", messages=(lm15.Message.user("Who?"),))
    if isinstance(ending, str):
        assert asyncio.run(engine.complete(wanted)).finish_reason == ending
    else:
        with pytest.raises(ending):
            asyncio.run(engine.complete(wanted))


def test_a_body_without_choices_is_no_silent_reply_but_the_last_event_of_a_stream_is(tmp_path: Path) -> None:
    own, silent = dspy.LM("openai/m", api_key="sk-verysecret0123"), response("")
    read = AdoptedEngine(own)._read
    wanted = lm15.Request(model="m", messages=(lm15.Message.user("Who?"),))
    last = {"object": "chat.completion.chunk", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    never = {**last, "usage": {"prompt_tokens": 3, "completion_tokens": 0}}
    for data in ({"id": "x", "detail": "overloaded"}, {"candidates": [], "usageMetadata": {}}, never):
        with pytest.raises(lm15.LM15Error, match=r"overloaded|the reply holds no choices"):
            read(wanted, dataclasses.replace(silent, provider_data=data), {})
    for data in (last, {"stop_reason": "end_turn", "content": []}, None):
        assert read(wanted, dataclasses.replace(silent, provider_data=data), {}).text == ""


@OF_34
def test_a_server_through_dspy_sets_no_share_of_the_price(tmp_path: Path) -> None:
    """What stands in its body is its own: `rate` is what a batch of ours costs."""
    prices = tmp_path / "prices.toml"
    prices.write_text('[models]\n"own/saying" = { input = 1000000, output = 1000000 }\n', encoding="utf-8")
    with Journal(tmp_path) as journal:
        connect(Saying(rate=1e-9, cost=1e-7), journal=journal, prices=prices)("Who?")
        (record,) = journal.records()
    assert (record["cost"], record["cost_stated"], "rate" in record) == (5.0, 1e-7, False)

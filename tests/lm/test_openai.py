"""The engine against a local server that behaves as real ones do."""

from __future__ import annotations

import asyncio
import gc
import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx
import openai
import pytest
from dspy import lm15
from model_server import MARKER, THOUGHT, Server, serve

from blendfilter.lm.openai import MAX_ADAPTATIONS, OpenAIEngine
from blendfilter.lm.profiles import Profile, profile_for
from blendfilter.lm.retrying import Retry, RetryingEngine

KEY = "sk-proj-abcdef0123456789"
REPLY = "So the answer is 42."


@pytest.fixture(scope="module")
def served() -> Iterator[Callable[..., Server]]:
    """Servers by their settings, one process for each, reset for each test that asks."""
    running: dict[str, Server] = {}

    def get(**settings: Any) -> Server:
        name = json.dumps(settings, sort_keys=True)
        if name not in running:
            running[name] = serve(keep=True, **settings)
        running[name].reset()
        return running[name]

    yield get
    for server in running.values():
        server.stop()


def ask(text: str = "How many?", system: str | None = None, **config: Any) -> lm15.Request:
    return lm15.Request(model="m", messages=(lm15.Message.user(text),), system=system, config=lm15.Config(**config))


def call(engine: Any, request: lm15.Request) -> lm15.Response:
    return asyncio.run(engine.complete(request))


def engine_at(server: Server, model: str = "m", **settings: Any) -> OpenAIEngine:
    settings.setdefault("profile", profile_for(model))
    return OpenAIEngine(server.url, KEY, model=model, **settings)


def reading(data: Any, **settings: Any) -> OpenAIEngine:
    """An engine whose server replies `data`."""
    engine = OpenAIEngine("http://127.0.0.1:9/v1", KEY, model="m", **settings)
    content = data if isinstance(data, bytes) else json.dumps(data).encode()

    async def post(path: str, body: dict[str, Any]) -> httpx.Response:
        return httpx.Response(200, content=content)

    engine._clients.post = post  # type: ignore[method-assign]
    return engine


def choice(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"finish_reason": "stop", **fields}]}


def test_a_chat_call_sends_what_was_asked_and_reads_what_came(served: Callable[..., Server]) -> None:
    server, schema = served(), {"type": "object"}
    request = ask(
        "How many?", system="Be brief.", temperature=0.0, top_p=0.9, max_tokens=64, seed=7, stop=("\n\n",), logprobs=2,
        response_format={"type": "json_schema", "schema": schema}, extensions={"min_p": 0.1},
    )  # fmt: skip
    response = call(engine_at(server, extra_body={"top_k": 5}), request)
    assert server.stats()["bodies"] == [
        {
            "model": "m", "temperature": 0.0, "top_p": 0.9, "max_tokens": 64, "seed": 7, "stop": ["\n\n"],
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "How many?"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "response", "schema": schema}},
            "logprobs": True, "top_logprobs": 2, "min_p": 0.1, "top_k": 5,
        }
    ]  # fmt: skip
    assert response.text == REPLY
    assert response.finish_reason == "stop"
    assert (response.usage.input_tokens, response.usage.output_tokens) == (4, 5)
    assert [token.logprob for token in response.logprobs] == [-0.5] * 5
    assert "".join(token.token for token in response.logprobs) == REPLY
    assert response.provider_data == {"address": server.url}
    assert response.adaptations == ()


def test_a_completion_sends_the_prompt_as_it_stands(served: Callable[..., Server]) -> None:
    server = served()
    prompt = "  Question: how many?\nAnswer:"
    engine = engine_at(server, model="o3", endpoint="completions")
    response = call(engine, ask(prompt, max_tokens=3, stop=("x",), logprobs=0))
    # A raw prompt passes no chat template: the family's refusals do not apply.
    assert server.stats()["bodies"] == [
        {"model": "o3", "prompt": prompt, "max_tokens": 3, "stop": ["x"], "logprobs": 0}
    ]
    assert (response.text, response.finish_reason) == ("So the answer", "length")
    assert len(response.logprobs) == 3


def test_a_known_reasoning_model_costs_one_request(served: Callable[..., Server]) -> None:
    server = served(behave="reasoning")
    response = call(
        engine_at(server, model="o3-mini", reasoning="low"), ask(temperature=0.0, max_tokens=10, stop=("is",))
    )
    (body,) = server.stats()["bodies"]
    assert body.keys() == {"model", "messages", "max_completion_tokens", "reasoning_effort"}
    assert body["max_completion_tokens"] == 10 + profile_for("o3-mini").thinking_tokens
    assert (response.text, response.finish_reason) == ("So the answer ", "stop")
    assert response.message.first(lm15.ThinkingPart).text == THOUGHT
    assert (response.usage.reasoning_tokens, response.usage.cache_read_tokens) == (7, 1)
    assert {(a.field, a.action) for a in response.adaptations} == {
        ("config.temperature", "dropped"),
        ("config.stop", "client_side"),
    }


def test_an_unknown_reasoning_model_teaches_the_engine_once(served: Callable[..., Server]) -> None:
    server = served(behave="reasoning")
    engine = engine_at(server)
    request = ask(temperature=0.0, max_tokens=10, stop=("\n",))
    assert call(engine, request).text == REPLY
    assert server.stats()["requests"] == 1 + 3
    assert call(engine, request).text == REPLY
    assert server.stats()["requests"] == 2 + 3
    assert server.stats()["bodies"][-1].keys() == {"model", "messages", "max_completion_tokens"}
    assert engine.learned.refused == {"temperature", "max_tokens", "stop"}


def test_a_server_that_refuses_whatever_it_is_sent_is_not_asked_for_ever() -> None:
    engine, sent = OpenAIEngine("http://127.0.0.1:9/v1", KEY, model="m"), []

    async def post(path: str, body: dict[str, Any]) -> httpx.Response:
        sent.append(dict(body))
        name = next(name for name in body if name not in ("model", "messages"))
        said = {"message": f"Unsupported parameter: '{name}'", "param": name, "code": "unsupported_parameter"}
        reply = httpx.Response(400, json={"error": said}, request=httpx.Request("POST", f"http://127.0.0.1:9{path}"))
        raise openai.BadRequestError("no", response=reply, body=said)

    engine._clients.post = post  # type: ignore[method-assign]
    asked = {"temperature": 0.5, "top_p": 0.5, "top_k": 5, "frequency_penalty": 0.5, "presence_penalty": 0.5, "seed": 1}
    with pytest.raises(lm15.InvalidRequestError, match="Unsupported parameter"):
        call(engine, ask(**asked, max_tokens=9))
    assert len(sent) == MAX_ADAPTATIONS + 1


@pytest.mark.parametrize(("held", "sent"), [(None, True), (True, True), (False, False)])
def test_a_format_is_sent_unless_the_server_is_known_to_take_none(
    served: Callable[..., Server], held: bool | None, sent: bool
) -> None:
    server = served()
    asked = ask(response_format={"type": "json_schema", "name": "ids", "schema": {"type": "object"}})
    told = call(engine_at(server, profile=Profile(json_schema=held)), asked).adaptations
    assert ("response_format" in server.stats()["bodies"][0]) is sent
    assert [each.field for each in told] == ([] if sent else ["config.response_format"])


def test_calls_side_by_side_may_learn_the_same_thing(served: Callable[..., Server]) -> None:
    server = served(behave="reasoning")
    engine = engine_at(server)

    async def main() -> list[lm15.Response]:
        return await asyncio.gather(*[engine.complete(ask(f"{i}", max_tokens=9, stop=("\n",))) for i in range(8)])

    assert {response.text for response in asyncio.run(main())} == {REPLY}


def test_thinking_in_the_text_is_taken_apart(served: Callable[..., Server]) -> None:
    for behave in ("think-tags", "think-no-open-tag"):
        # A stop string that stands in the thinking, too: it may cut the reply only.
        server = served(behave=behave)
        response = call(engine_at(server, model="deepseek-r1"), ask(max_tokens=100, stop=("42", "think"), logprobs=0))
        assert "stop" not in server.stats()["bodies"][0]
        assert response.text == "So the answer is "
        assert response.message.first(lm15.ThinkingPart).text == THOUGHT
        # "\n\nSo " is one token of this server: it lies only half in the reply, so the scores do not cover all of it.
        assert [token.token for token in response.logprobs] == ["the ", "answer ", "is "]
        assert not response.logprobs_complete


def test_thinking_switched_off(served: Callable[..., Server]) -> None:
    server = served()
    engine = engine_at(server, model="qwen3-8b", thinking=False, extra_body={"chat_template_kwargs": {"x": 1}})
    call(engine, ask(max_tokens=10, stop=("\n",)))
    call(engine, ask(max_tokens=10, stop=("\n",), reasoning=lm15.Reasoning(effort="high")))
    off, high = server.stats()["bodies"]
    assert off["chat_template_kwargs"] == {"enable_thinking": False, "x": 1}
    assert (off["max_tokens"], off["stop"]) == (10, ["\n"])
    assert high["chat_template_kwargs"] == {"enable_thinking": True, "x": 1}
    assert high["max_tokens"] > 10
    assert "stop" not in high


def test_an_empty_reply_is_a_response(served: Callable[..., Server]) -> None:
    response = call(engine_at(served(behave="empty-at-cap")), ask())
    assert (response.text, response.finish_reason) == ("", "length")
    assert response.message.parts == (lm15.TextPart(""),)


def test_a_cut_reply_says_so_and_a_stop_string_wins(served: Callable[..., Server]) -> None:
    server = served()
    assert call(engine_at(server), ask(max_tokens=2)).finish_reason == "length"
    held_back = replace(Profile(), accepts_stop=False)
    response = call(engine_at(server, profile=held_back), ask(max_tokens=4, stop=("is", "the")))
    assert (response.text, response.finish_reason) == ("So ", "stop")
    call(engine_at(server), ask(stop=tuple("abcdef")))
    assert server.stats()["bodies"][-1]["stop"] == list("abcd")


@pytest.mark.parametrize(
    ("message", "text", "thought"),
    [
        ({"content": None, "reasoning": "hm"}, "", "hm"),
        ({"content": None, "refusal": "I won't."}, "I won't.", None),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                    {"type": "text", "text": "a"},
                ]
            },
            "a",
            "hm",
        ),
        ({}, "", None),
        (None, "", None),
    ],
)
def test_odd_messages_are_read(message: Any, text: str, thought: str | None) -> None:
    response = call(reading(choice(message=message)), ask())
    part = response.message.first(lm15.ThinkingPart)
    assert response.text == text
    assert (part.text if part else None) == thought


def test_what_a_server_leaves_out_or_gets_wrong_is_unknown_not_zero() -> None:
    response = call(reading({**choice(message={"content": "a"}), "usage": {"prompt_tokens": -1, "cost": 0.25}}), ask())
    assert response.usage == lm15.Usage()
    assert response.model == "m"
    assert response.provider_data["cost"] == 0.25
    assert call(reading(choice(message={"content": "a"}, finish_reason=None)), ask()).finish_reason == "stop"


@pytest.mark.parametrize(
    ("told", "cached"),
    [
        ({"prompt_cache_hit_tokens": 6, "prompt_cache_miss_tokens": 2}, 6),  # DeepSeek's names
        ({"prompt_tokens_details": {"cached_tokens": 5}, "prompt_cache_hit_tokens": 6}, 5),
        ({"prompt_tokens_details": {"cached_tokens": 0}, "prompt_cache_hit_tokens": 6}, 0),
        ({"prompt_tokens_details": None, "prompt_cache_hit_tokens": "6"}, None),
        ({}, None),
    ],
)
def test_cached_tokens_are_read_by_either_name(told: dict[str, Any], cached: int | None) -> None:
    usage = {"prompt_tokens": 8, "completion_tokens": 1, **told}
    response = call(reading({**choice(message={"content": "a"}), "usage": usage}), ask())
    assert (response.usage.input_tokens, response.usage.cache_read_tokens) == (8, cached)


def test_scores_of_the_completions_endpoint_keep_their_alternatives() -> None:
    scores = {"tokens": ["a", "b"], "token_logprobs": [None, -1.0], "top_logprobs": [None, {"b": -1.0, "c": -2}]}
    response = call(reading(choice(text="ab", logprobs=scores), endpoint="completions"), ask(logprobs=2))
    (token,) = response.logprobs
    assert (token.token, [top.token for top in token.top]) == ("b", ["b", "c"])


@pytest.mark.parametrize("data", [b"<html>502</html>", b'{"choices": [{"mess', b"[]", b"\xff\xfe", {"choices": []}])
def test_a_body_that_is_no_reply_is_a_transport_fault(data: Any) -> None:
    with pytest.raises(lm15.TransportError):
        call(reading(data), ask())


def test_an_error_inside_a_200_is_that_error() -> None:
    with pytest.raises(lm15.RateLimitError):
        call(reading({"error": {"message": "slow down", "code": 429}}), ask())


def test_text_is_all_that_goes_out() -> None:
    picture = lm15.Message.user([lm15.ImagePart(url="http://127.0.0.1/x.png")])
    with pytest.raises(lm15.UnsupportedFeatureError, match="image"):
        call(reading({}), lm15.Request(model="m", messages=(picture,)))


@pytest.mark.parametrize(
    ("behave", "kind"),
    [("unauthorized", lm15.AuthError), ("no-model", lm15.UnsupportedModelError), ("context", lm15.ContextLengthError)],
)
def test_refusals_are_final_and_hold_no_key(served: Callable[..., Server], behave: str, kind: type[Exception]) -> None:
    server = served(behave=behave)
    engine = engine_at(server)
    with pytest.raises(kind) as caught:
        call(RetryingEngine(engine), ask(f"{MARKER} How many?"))
    assert server.stats()["requests"] == 1
    told = "".join(traceback.format_exception(caught.value)) + repr(engine) + repr(caught.value.__context__)
    assert KEY not in told
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_a_server_that_hangs_times_out(served: Callable[..., Server]) -> None:
    with pytest.raises(lm15.TimeoutError):
        call(engine_at(served(behave="hang"), timeout=0.2), ask())


def test_a_server_that_is_not_there() -> None:
    engine = OpenAIEngine("http://user:secret@127.0.0.1:9/v1/", KEY, model="m")
    assert engine.address == "http://127.0.0.1:9/v1"
    with pytest.raises(lm15.TransportError, match="no connection"):
        call(engine, ask())


def test_every_fault_that_passes_is_waited_out(served: Callable[..., Server]) -> None:
    server = served(behave="flaky", share=0.6, seed=1)
    engine = Retry(wait_first=0.001).around(engine_at(server))

    async def main() -> list[lm15.Response]:
        return await asyncio.gather(*[engine.complete(ask(f"question {i}")) for i in range(60)])

    responses = asyncio.run(main())
    stats = server.stats()
    assert {response.text for response in responses} == {REPLY}
    assert sum(response.provider_data["attempts"] for response in responses) == stats["requests"]
    assert stats["faults"].keys() == {"rate-limit", "error", "drop", "html", "truncated"}
    assert stats["statuses"]["200"] - stats["faults"]["html"] - stats["faults"]["truncated"] == 60


def test_each_loop_has_its_own_connections_and_dead_loops_are_dropped(served: Callable[..., Server]) -> None:
    engine = engine_at(served())
    for _ in range(3):
        assert call(engine, ask()).text == REPLY
    gc.collect()
    assert len(engine._clients._idle) <= 1

    async def main() -> None:
        await asyncio.gather(*[engine.complete(ask(str(i))) for i in range(64)])
        assert len(engine._clients._idle[asyncio.get_running_loop()]) <= 64
        await engine.aclose()
        assert asyncio.get_running_loop() not in engine._clients._idle

    asyncio.run(main())


def test_64_calls_are_in_flight_together(served: Callable[..., Server]) -> None:
    server = served(delay=0.3)

    async def main() -> None:
        engine = engine_at(server)
        await asyncio.gather(*[engine.complete(ask(str(i))) for i in range(64)])

    asyncio.run(main())
    assert server.stats()["max_in_flight"] == 64


def test_the_environment_lends_no_key(served: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with serve(behave="unauthorized") as server, pytest.raises(lm15.AuthError) as caught:
        call(OpenAIEngine(server.url, "", model="m"), ask())
    assert "provided: none" in caught.value.message


@contextmanager
def raw(server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.root) as client:
        yield client


def test_the_server_itself(served: Callable[..., Server]) -> None:
    server = served(context_limit=20)
    with raw(server) as client:
        assert client.get("/v1/models").json()["data"][0]["id"] == "test-model"
        assert client.get("/nothing").status_code == 404
        body = {"model": "m", "prompt": "x" * 21}
        assert client.post("/v1/completions", json=body).json()["error"]["code"] == "context_length_exceeded"
        reply = client.post("/v1/completions", json={"model": "m", "prompt": "two words", "n": 3}).json()
        assert [c["text"] for c in reply["choices"]] == [REPLY]
        assert reply["usage"] == {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}
    stats = server.stats()
    assert (stats["requests"], stats["max_in_flight"], stats["statuses"]) == (2, 1, {"400": 1, "200": 1})
    assert stats["prompts"] == ["x" * 21, "two words"]

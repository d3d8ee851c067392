"""The engine against a local server that behaves as real ones do, and what it knows of model families."""

from __future__ import annotations

import asyncio
import gc
import json
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from dspy import lm15
from hypothesis import given
from hypothesis import strategies as st
from model_server import MARKER, THOUGHT, Server, serve

from blendfilter.dspy_surface import TransportRequest
from blendfilter.errors import BadArgument
from blendfilter.lm import faults
from blendfilter.lm.attempts import AttemptingEngine, Retry
from blendfilter.lm.clients import ServerReply, _moved
from blendfilter.lm.openai import OpenAIEngine
from blendfilter.lm.profiles import (
    Profile,
    cut_at_stop,
    effort_of,
    holds_schema,
    profile_for,
    reply_so_far,
    split_thinking,
)
from blendfilter.lm.refusals import MAX_ADAPTATIONS

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


def engine_at(server: Server, model: str = "m", effort: str | None = None, **settings: Any) -> OpenAIEngine:
    settings.setdefault("profile", replace(profile_for(model), effort=effort))
    return OpenAIEngine(server.url, KEY, model=model, **settings)


def reading(data: Any, **settings: Any) -> OpenAIEngine:
    """An engine whose server replies `data`."""
    engine = OpenAIEngine("http://127.0.0.1:9/v1", KEY, model="m", **settings)
    content = data if isinstance(data, bytes) else json.dumps(data).encode()

    async def send(*_: Any) -> ServerReply:
        return ServerReply(content)

    engine._send = send
    return engine


TEXT_BLOCK = {"type": "text", "text": "a"}


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
    assert (response.text, response.finish_reason) == (REPLY, "stop")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (4, 5)
    assert [token.logprob for token in response.logprobs] == [-0.5] * 5
    assert "".join(token.token for token in response.logprobs) == REPLY
    assert response.provider_data == {"address": server.url}


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


@pytest.mark.parametrize("cost", ["NaN", "Infinity", "1e999"])
def test_a_cost_that_is_no_number_of_json_leaves_a_good_reply_as_it_is(cost: str) -> None:
    body = (
        f'{{"choices": [{{"message": {{"content": "Tolm"}}, "finish_reason": "stop"}}], "usage": {{"cost": {cost}}}}}'
    )
    engine = OpenAIEngine("http://localhost:9/v1", "", model="m")
    wanted = lm15.Request(model="m", messages=(lm15.Message.user("Who?"),))
    read = engine._answer(wanted, ServerReply(body.encode()))
    assert (read.text, list((read.provider_data or {})["disbelieved"])) == ("Tolm", ["cost"])


def test_a_known_reasoning_model_costs_one_request(served: Callable[..., Server]) -> None:
    server = served(behave="reasoning")
    engine = engine_at(server, model="o3-mini", effort="low")
    response = call(engine, ask(temperature=0.0, max_tokens=10, stop=("is",)))
    (body,) = server.stats()["bodies"]
    assert body.keys() == {"model", "messages", "max_completion_tokens", "reasoning_effort"}
    assert body["max_completion_tokens"] == 10 + profile_for("o3-mini").thinking_tokens
    assert (response.text, response.finish_reason) == ("So the answer ", "stop")
    assert response.message.first(lm15.ThinkingPart).text == THOUGHT
    assert (response.usage.reasoning_tokens, response.usage.cache_read_tokens) == (7, 1)


def test_an_unknown_reasoning_model_teaches_the_engine_once(served: Callable[..., Server]) -> None:
    server = served(behave="reasoning")
    engine = engine_at(server)
    request = ask(temperature=0.0, max_tokens=10, stop=("\n",))
    for requests in (1 + 3, 2 + 3):
        assert call(engine, request).text == REPLY
        assert server.stats()["requests"] == requests
    assert server.stats()["bodies"][-1].keys() == {"model", "messages", "max_completion_tokens"}
    assert engine.refused == dict.fromkeys(("temperature", "max_tokens", "stop"))


def test_a_server_that_refuses_whatever_it_is_sent_is_not_asked_for_ever() -> None:
    engine, sent = OpenAIEngine("http://127.0.0.1:9/v1", KEY, model="m"), []

    async def send(method: str, path: str, body: dict[str, Any]) -> ServerReply:
        sent.append(dict(body))
        name = next(name for name in body if name not in ("model", "messages"))
        result = {"message": f"Unsupported parameter: '{name}'", "param": name, "code": "unsupported_parameter"}
        raise faults.of_reply(400, json.dumps({"error": result}).encode())

    engine._send = send
    with pytest.raises(lm15.InvalidRequestError, match="Unsupported parameter"):
        call(engine, ask(temperature=0.5, top_p=0.5, top_k=5, seed=1, stop=("x",), logprobs=1, max_tokens=9))
    assert len(sent) == MAX_ADAPTATIONS + 1
    assert engine.refused == {}, "nothing was answered, so nothing is known"


@pytest.mark.parametrize(("kept", "sent"), [(None, True), (True, True), (False, False)])
def test_a_format_is_sent_unless_the_server_is_known_to_take_none(
    served: Callable[..., Server], kept: bool | None, sent: bool
) -> None:
    server = served()
    wanted = ask(response_format={"type": "json_schema", "name": "ids", "schema": {"type": "object"}})
    call(engine_at(server, profile=Profile(json_schema=kept)), wanted)
    assert ("response_format" in server.stats()["bodies"][0]) is sent


def refusing(least: dict[str, float], message: str) -> tuple[OpenAIEngine, list[dict[str, Any]]]:
    """An engine whose server refuses values below `least`, and the bodies that it was sent."""
    engine, bodies = reading({}), list[dict[str, Any]]()

    async def send(method: str, path: str, body: dict[str, Any]) -> ServerReply:
        bodies.append(dict(body))
        if any(body.get(name, value) < value for name, value in least.items()):
            raise faults.of_reply(422, json.dumps({"message": message}).encode())
        return ServerReply(json.dumps(choice(message={"content": "a"})).encode())

    engine._send = send
    return engine, bodies


def test_a_temperature_of_0_that_is_refused_is_sent_as_nearly_0_and_left_out_only_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Left out at once, the server would sample at its default, and replies would vary."""
    for least, sent in ((0.01, [0, 0.01, 0.01]), (0.5, [0, 0.01, None, None])):
        engine, bodies = refusing({"temperature": least}, "temperature must be in range (0, +inf)")
        for _ in range(2):
            assert call(engine, ask(temperature=0.0)).text == "a"
        assert [body.get("temperature") for body in bodies] == sent
    assert [record.getMessage() for record in caplog.records] == [
        "m refuses its temperature: 0.01 is sent",
        "m refuses its temperature: its own is used, so replies may differ",
    ]


def test_a_temperature_that_its_user_chose_is_not_replaced() -> None:
    engine, bodies = refusing({"temperature": 0.5}, "temperature must be in range (0.5, 1)")
    with pytest.raises(lm15.InvalidRequestError, match="must be in range"):
        call(engine, ask(temperature=0.3))
    assert len(bodies) == 1


def test_a_cap_below_the_least_that_a_server_takes_is_raised_to_it() -> None:
    engine, bodies = refusing({"max_tokens": 16}, "max_tokens must be at least 16")
    for _ in range(2):
        assert call(engine, ask(max_tokens=8)).text == "a"
    assert [body["max_tokens"] for body in bodies] == [8, 16, 16]
    assert engine.reply_cap(ask(max_tokens=8)) == 16


def test_a_refused_cap_is_renamed_once_and_log_probabilities_go_with_their_alternatives() -> None:
    engine, wanted = reading({}, profile=profile_for("plain")), ask(max_tokens=5, logprobs=3)
    for refused, left in (
        ("", {"max_tokens": 5, "logprobs": True, "top_logprobs": 3}),
        ("max_tokens", {"max_completion_tokens": 5, "logprobs": True, "top_logprobs": 3}),
        ("max_completion_tokens", {"logprobs": True, "top_logprobs": 3}),
    ):
        engine.refused[refused] = None
        assert {name: value for name, value in engine.body_of(wanted).items() if name in left or "max" in name} == left


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
    engine = engine_at(server, model="qwen3-8b", effort="off", extra_body={"chat_template_kwargs": {"x": 1}})
    call(engine, ask(max_tokens=10, stop=("\n",)))
    call(engine, ask(max_tokens=10, stop=("\n",), reasoning=lm15.Reasoning(effort="high")))
    off, high = server.stats()["bodies"]
    assert off["chat_template_kwargs"] == {"enable_thinking": False, "x": 1}
    assert (off["max_tokens"], off["stop"]) == (10, ["\n"])
    assert high["chat_template_kwargs"] == {"enable_thinking": True, "x": 1}
    assert high["max_tokens"] > 10
    assert "stop" not in high


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
        ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, TEXT_BLOCK]}, "a", "hm"),
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
    ("reported", "cached"),
    [
        ({"prompt_cache_hit_tokens": 6, "prompt_cache_miss_tokens": 2}, 6),  # DeepSeek's names
        ({"prompt_tokens_details": {"cached_tokens": 5}, "prompt_cache_hit_tokens": 6}, 5),
        ({"prompt_tokens_details": {"cached_tokens": 0}, "prompt_cache_hit_tokens": 6}, 0),
        ({"prompt_tokens_details": None, "prompt_cache_hit_tokens": "6"}, None),
        ({}, None),
    ],
)
def test_cached_tokens_are_read_by_either_name(reported: dict[str, Any], cached: int | None) -> None:
    usage = {"prompt_tokens": 8, "completion_tokens": 1, **reported}
    response = call(reading({**choice(message={"content": "a"}), "usage": usage}), ask())
    assert (response.usage.input_tokens, response.usage.cache_read_tokens) == (8, cached)


@pytest.mark.parametrize(
    ("ended", "kind"),
    [
        ({"finish_reason": "abort"}, lm15.TransportError),
        ({"finish_reason": "error", "error": {"code": 502, "message": "provider died"}}, lm15.ServerError),
        ({"finish_reason": "content_filter"}, lm15.InvalidRequestError),
    ],
)
@pytest.mark.parametrize("text", ["Jon", ""])
def test_half_a_reply_is_a_fault_and_no_answer(ended: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind):
        call(reading(choice(message={"content": text}, **ended)), ask())


@pytest.mark.parametrize("data", [b"<html>502</html>", b'{"choices": [{"mess', b"[]", b"\xff\xfe", {"choices": []}])
def test_a_body_that_is_no_reply_is_a_transport_fault(data: Any) -> None:
    with pytest.raises(lm15.TransportError):
        call(reading(data), ask())


@pytest.mark.parametrize(
    ("behave", "kind"),
    [("unauthorized", lm15.AuthError), ("no-model", lm15.UnsupportedModelError), ("context", lm15.ContextLengthError)],
)
def test_refusals_are_final_and_hold_no_key(served: Callable[..., Server], behave: str, kind: type[Exception]) -> None:
    server = served(behave=behave)
    engine = engine_at(server)
    with pytest.raises(kind) as caught:
        call(AttemptingEngine(engine, retry=Retry()), ask(f"{MARKER} How many?"))
    assert server.stats()["requests"] == 1
    result = "".join(traceback.format_exception(caught.value)) + repr(engine) + repr(caught.value.__context__)
    assert KEY not in result
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_each_loop_has_its_own_connections_and_dead_loops_are_dropped(served: Callable[..., Server]) -> None:
    engine = engine_at(served())
    for _ in range(3):
        assert call(engine, ask()).text == REPLY
    gc.collect()
    assert len(engine.server._transports) <= 1

    async def main() -> None:
        await asyncio.gather(*[engine.complete(ask(str(i))) for i in range(64)])
        assert engine.server._transport().pool_stats()["total_opened"] <= 64

    asyncio.run(main())


TAGS = (
    *("<think>", "</think>", "<THINK>", "</Think>", "[THINK]", "[/THINK]", "<|channel>", "<channel|>"),
    *("<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|end|>"),
)
SOUP = st.lists(st.sampled_from([*TAGS, "word", " ", "\n"]))


@pytest.mark.parametrize(
    "name",
    ["gpt-4o-mini", "llama3.2", "Qwen/Qwen2.5-7B-Instruct", "Qwen3-30B-A3B-Instruct-2507", "qwen3-coder", "gemma-o3x"],
)
def test_ordinary_models_accept_everything(name: str) -> None:
    assert profile_for(name) == Profile()


@pytest.mark.parametrize("name", ["o1", "openai/o3-mini", "o4-mini-2025-04-16", "gpt-5", "gpt-5-nano", "gpt-5.1"])
def test_openai_reasoning_models_refuse_stop_temperature_and_max_tokens(name: str) -> None:
    profile = profile_for(name)
    assert (profile.accepts_stop, profile.accepts_temperature) == (False, False)
    assert profile.max_tokens_param == "max_completion_tokens"
    assert profile.thinks
    assert profile.thinking_tokens > 0


def test_the_dial_is_spelled_as_each_family_wants_it() -> None:
    assert profile_for("qwen3:8b").steering("off") == {"chat_template_kwargs": {"enable_thinking": False}}
    assert profile_for("Qwen/Qwen3-8B").steering("high") == {"chat_template_kwargs": {"enable_thinking": True}}
    assert profile_for("deepseek-ai/DeepSeek-V3.1").steering("low") == {"chat_template_kwargs": {"thinking": True}}
    assert [profile_for(n).steering("off")["reasoning_effort"] for n in ("o3", "gpt-5", "gpt-5.2", "gpt-oss-20b")] == [
        "low", "minimal", "none", "low",
    ]  # fmt: skip
    assert profile_for("gpt-4o").steering("low") == {}


def test_thinking_and_reasoning_are_one_dial() -> None:
    given = [(None, None), (False, None), (True, "low"), (False, "off")]
    assert [effort_of(*each) for each in given] == [None, "off", "low", "off"]
    for thinking, reasoning in ((None, "hard"), (False, "high"), (True, "off")):
        with pytest.raises(BadArgument, match=r"known: off, minimal|contradict"):
            effort_of(thinking, reasoning)


@pytest.mark.parametrize(
    ("text", "reasoning", "reply"),
    [
        ("<think>\na\n</think>\n\nb", "a", "b"),
        ("a</think>b", "a", "b"),
        ("<think>a, never done", "a, never done", ""),
        ("<THINK>a</Think> b <think>c</think> d", "a\nc", "b  d"),
        ("<think>a <think> b</think>c", "a <think> b", "c"),
        ("[THINK]a[/THINK]b", "a", "b"),
        ("<think></think>b", "", "b"),
        ("<think>", "", ""),
        ("  b  ", "", "  b  "),
    ],
)
def test_thinking_is_split_from_the_reply(text: str, reasoning: str, reply: str) -> None:
    assert split_thinking(text) == (reasoning, reply)


FINAL = "<|start|>assistant<|channel|>final<|message|>Jon Brask"
TOOL = "<|start|>assistant<|channel|>commentary to=functions.find <|constrain|>json<|message|>{}<|call|>"
FAMILIES = {
    "harmony": f"<|channel|>analysis<|message|>Who?<|end|>{FINAL}<|return|>",
    "harmony, with a tool": f"<|channel|>analysis<|message|>Who?<|end|>{TOOL}{FINAL}<|end|>",
    "harmony, its last header left out": "<|channel|>analysis<|message|>Who?<|end|>Jon Brask",
    "harmony without special tokens": "analysisWho?assistantfinalJon Brask",
    "that, with a tool": "analysisWho?assistantcommentary to=functions.find json{}assistantfinalJon Brask",
    "that, several times": "commentaryI look.assistantanalysisWho?assistantanalysisHm.assistantfinalJon Brask",
    "that, with a line feed": "analysis\nWho?assistantfinalJon Brask",
    "that, without thoughts": "finalJon Brask",
    "Gemma 4": "<|channel>thought\nWho?<channel|>Jon Brask<turn|>",
    "Gemma 4 without special tokens": "thought\nJon Brask",
    "Cohere": "<|START_THINKING|>Who?<|END_THINKING|><|START_RESPONSE|>Jon Brask<|END_RESPONSE|>",
    "OpenThinker": "<|begin_of_thought|>\nWho?<|end_of_thought|><|begin_of_solution|>\nJon Brask\n<|end_of_solution|>",
    "Kimi": "◁think▷Who?◁/think▷Jon Brask",
    "Kimi K3": "<|open|>think<|sep|>Who?<|close|>think<|sep|><|open|>response<|sep|>Jon Brask<|close|>response<|sep|>",
    "Seed-OSS": "<seed:think>Who?</seed:think>Jon Brask",
    "LongCat": "<longcat_think>Who?</longcat_think>Jon Brask",
    "EXAONE Deep": "<thought>\nWho?\n</thought>\n\nJon Brask",
    "Apertus": "<|inner_prefix|>Who?<|inner_suffix|>Jon Brask",
    "Solar": "<|think|>Who?<|end|><|begin|>assistant<|content|>Jon Brask<|end|>",
    "Granite": "Here is my thought process: Who?\n\nHere is my response: Jon Brask",
    "Apriel": "Here are my reasoning steps:\nWho?\n[BEGIN FINAL RESPONSE]\nJon Brask\n[END FINAL RESPONSE]",
    "reasoning": "<reasoning>Who?</reasoning>Jon Brask",
}
"""A reply as families write it that think, where their server leaves it as it is."""


@pytest.mark.parametrize("family", FAMILIES)
def test_thoughts_are_no_part_of_a_reply_whole_or_while_it_is_written(family: str) -> None:
    text = FAMILIES[family]
    assert split_thinking(text)[1] == "Jon Brask"
    written = [reply_so_far(text[:length]) for length in range(len(text) + 1)]
    assert all("Jon Brask".startswith(reply) for reply in written)
    assert written[-1] == "Jon Brask"


@pytest.mark.parametrize(
    "text",
    [
        "analysisThe user asks who built it",
        "<|channel|>analysis<|message|>Who",
        "<|channel>thought\nWho",
        "<|START_THINKING|>Who",
        "Here's my thought process: Who",
        "<reasoning>Who",
        "<|begin_of_thought|>Who",
        "<|channel|>analysis",
    ],
)
def test_thoughts_that_were_cut_off_leave_no_reply(text: str) -> None:
    assert split_thinking(text)[1] == reply_so_far(text) == ""


@pytest.mark.parametrize(
    "text",
    [
        "Analysis of the poem: a channel called assistantfinal.",
        "analysis of the poem",
        "final answer: Jon Brask",
        "finals of 1990",
        "thoughtful",
        "Jon Brask<|end|>",
        "Here is my response: Jon Brask",
        "<reasoning>Who?</reasoning>\n<answer>Jon Brask</answer>",
        "<answer>Jon</answer><reasoning>Who?</reasoning>",
    ],
)
def test_words_that_only_look_like_a_mark_of_thoughts_stay(text: str) -> None:
    """`<reasoning>` beside other fields is the form that DSPy's XMLAdapter asks for."""
    assert split_thinking(text) == ("", text)


@given(SOUP)
def test_no_tag_reaches_the_reply_and_no_word_is_lost(pieces: list[str]) -> None:
    text = "".join(pieces)
    reasoning, reply = split_thinking(text)
    assert split_thinking(reply) == ("", reply)
    assert (reasoning + reply).count("word") == text.count("word")


@given(st.text("ab\n. "), st.lists(st.text("ab\n. ", max_size=3), max_size=3))
def test_cutting_at_stop_strings_is_idempotent(text: str, stop: list[str]) -> None:
    cut = cut_at_stop(text, stop)
    assert text.startswith(cut)
    assert cut_at_stop(cut, stop) == cut
    assert not any(string in cut for string in stop if string)


def test_who_holds_a_reply_to_a_schema() -> None:
    for model in ("gpt-4o", "gpt-4o-mini-2024-07-18", "gpt-4.1-nano-2025-04-14", "gpt-5.2", "o1-2024-12-17", "o3-mini"):
        assert holds_schema("openai", model) is holds_schema("openrouter", f"openai/{model}") is True
    assert [holds_schema("openai", each) for each in ("gpt-4o-2024-05-13", "gpt-4-turbo", "o1-mini")] == [None] * 3
    assert [holds_schema(each, "any/model") for each in ("vllm", "llamacpp", "ollama")] == [True] * 3
    assert [holds_schema(each, "any") for each in ("together", "groq", "deepseek", "", "m")] == [None] * 5
    assert holds_schema("mistral", "open-codestral-mamba") is None


@pytest.mark.parametrize(
    ("place", "kept"),
    [("/v2/chat", {"Accept", "Authorization", "X-Api-Key"}), ("https://elsewhere.example/chat", {"Accept"})],
)
def test_a_redirect_to_another_server_takes_no_login_along(place: str, kept: set[str]) -> None:
    names = {"Accept": "*/*", "Authorization": "Bearer secret", "X-Api-Key": "secret"}
    request = TransportRequest("POST", "https://here.example/v1/chat", [*names.items()], b"{}")
    assert {name for name, _ in _moved(request, 307, place).headers} == kept

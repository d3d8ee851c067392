"""What a server supports, asked of servers that support everything, nothing, or only claim to."""

from __future__ import annotations

import json
import random
from typing import Any

import model_server
import pytest
import unruly
from model_server import Reply, refusal, serve
from scripted import ScriptedLM

from blendfilter.errors import ServerRefused
from blendfilter.lm.model import connect
from blendfilter.lm.probing import probe


class Able(model_server.Model):
    """A server that supports what it is told to, and takes no notice of the rest."""

    supports: frozenset[str] = frozenset()
    refuses: frozenset[str] = frozenset()
    thinks = False
    asked: list[dict[str, Any]]

    async def answer(self, path: str, body: dict[str, Any], key: str) -> Reply:
        self.asked = [*getattr(self, "asked", []), body]
        refused = next((name for name in sorted(self.refuses) if name in body), None)
        if refused is not None:
            return refusal(400, f"Unsupported parameter: '{refused}' is not supported.", param=refused)
        chat = path.endswith("/chat/completions")
        if not chat and "echo" not in self.supports:
            return refusal(404, "Not Found")
        prompt = body["messages"][-1]["content"] if chat else body["prompt"]
        count = int(body.get("n", 1)) if "n" in self.supports else 1
        choices = [self.choice(prompt, body, chat=chat) for _ in range(count)]
        data: dict[str, Any] = {"choices": choices}
        if "usage" in self.supports:
            data["usage"] = {"prompt_tokens": 9, "completion_tokens": 3}
            data["usage"] |= {"prompt_tokens_details": {"cached_tokens": 0}} if "cached" in self.supports else {}
        return Reply(body=json.dumps(data).encode())

    def choice(self, prompt: str, body: dict[str, Any], *, chat: bool) -> dict[str, Any]:
        text = self.text(prompt, body)
        if not chat:
            words = [*prompt.split(), text]
            return {"text": prompt + " x", "logprobs": {"token_logprobs": [None, *[-1.0] * len(words[1:])]}}
        content = f"<think>so</think>{text}" if self.thinks else text
        scores = {"content": [{"token": text, "logprob": -1.0}]} if body.get("logprobs") else None
        return {"message": {"content": content}, "logprobs": scores if "logprobs" in self.supports else None}

    def text(self, prompt: str, body: dict[str, Any]) -> str:
        if "response_format" in body and "schema" in self.supports:
            return '{"ids": [3]}'
        if "random number" in prompt:
            seed = body.get("seed") if "seed" in self.supports else None
            return str(random.Random(seed).randrange(10**8))
        text = prompt.partition(": ")[2] or "The sea is wide."
        stops = body.get("stop") or [] if "stop" in self.supports else []
        for stop in stops:
            text = text.split(stop)[0]
        return text


ALL = frozenset({"schema", "logprobs", "echo", "n", "seed", "stop", "usage", "cached"})


def able(*supports: str, **more: Any) -> Able:
    made = Able(model_server.options().parse_args([]), lambda prompt: "")
    made.supports = frozenset(supports)
    for name, value in more.items():
        setattr(made, name, value)
    return made


def answers_of(model: model_server.Model, name: str = "test-model", **options: Any) -> dict[str, tuple[str, str]]:
    with unruly.serving(model) as address:
        return {each.name: (each.answer, each.why) for each in probe(connect(name, api_base=address, **options))}


def test_a_server_that_supports_everything_thinking_before_its_replies_or_not() -> None:
    for thinks in (False, True):
        model = able(*ALL, thinks=thinks)
        answers = answers_of(model)
        assert {answer for answer, _ in answers.values()} == {"yes"}
        assert {name for name, (_, why) in answers.items() if why} == {"echo"}
        assert len(model.asked) == 9
        assert all(body["max_tokens"] <= 48 for body in model.asked)


def test_a_server_that_takes_every_field_and_heeds_none_is_seen_through() -> None:
    answers = answers_of(able())
    assert {name for name, (answer, _) in answers.items() if answer != "no"} == {"models listed"}
    assert all(why for name, (answer, why) in answers.items() if answer == "no")
    assert "The sea is wide." in answers["JSON schema"][1]


@pytest.mark.parametrize("missing", sorted(ALL - {"usage"}))
def test_each_is_told_apart_from_the_others(missing: str) -> None:
    names = {"schema": "JSON schema", "logprobs": "log-probabilities", "cached": "cached tokens"}
    answers = answers_of(able(*ALL - {missing}))
    assert {name for name, (answer, _) in answers.items() if answer != "yes"} == {names.get(missing, missing)}


def test_faults_that_pass_settle_nothing_and_no_answer_holds_a_key() -> None:
    model = able(*ALL)
    plain = model.answer

    async def answer(path: str, body: dict[str, Any], key: str) -> Reply:
        if "response_format" in body:
            return refusal(400, f"no schema for {key}")
        return refusal(500, "The server had an error.") if "logprobs" in body else await plain(path, body, key)

    model.answer = answer  # type: ignore[method-assign]
    answers = answers_of(model, api_key="hidden-key-of-mine")
    assert answers["log-probabilities"] == ("cannot tell", "it says: The server had an error (HTTP 500)")
    assert "[key]" in answers["JSON schema"][1]


@pytest.mark.parametrize("behave", ["unauthorized", "no-model"])
def test_a_refused_key_or_model_stops_at_once(behave: str) -> None:
    with serve(behave=behave) as server:
        with pytest.raises(ServerRefused):
            probe(connect("test-model", api_base=server.url, api_key="hidden-key-of-mine"))
        assert server.stats()["requests"] == 1


def test_no_server_stops_at_once_and_a_model_in_this_process_has_none() -> None:
    with pytest.raises(ServerRefused, match=r"no model server answers at http://127\.0\.0\.1:9/v1"):
        probe(connect("test-model", api_base="http://127.0.0.1:9/v1"))
    assert probe(connect("offline")) == probe(ScriptedLM([])) == []

"""What a journaled call's record holds, and what it never holds."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest
from calls import Live, ask, journaled, request
from dspy import lm15
from model_server import serve
from scripted import ScriptedEngine, response

from blendfilter.context import NOTES, SAMPLE, STAGE, CallNote, Sample, setting
from blendfilter.errors import ModelError, ServerRefused
from blendfilter.journal import Journal
from blendfilter.lm.connect import connect
from blendfilter.lm.gate import Gate
from blendfilter.lm.journaled import JournaledEngine
from blendfilter.lm.metered import MeteredEngine
from blendfilter.lm.retrying import RetryingEngine


def test_a_record_says_what_was_asked_and_what_came_back(tmp_path: Path) -> None:
    answer = response(
        "Orm Pier",
        reasoning="it is a pier",
        usage=(12, 3),
        logprobs=(lm15.TokenLogprob("Orm", -0.25), lm15.TokenLogprob(" Pier", -1.5)),
        provider_data={"attempts": 4, "cost": 0.25},
    )
    answer = replace(answer, usage=replace(answer.usage, cache_read_tokens=8))
    asked = request("Question: q\nTopic:", stop=("\n",), top_p=0.9)
    with Journal(tmp_path) as journal:
        engine = journaled(ScriptedEngine([answer]), journal, label="b", address="http://127.0.0.1:9/v1",
                           options={"thinking": False, "extra_body": None})  # fmt: skip
        with setting(STAGE, "topic"), setting(SAMPLE, Sample(3, 1)):
            live = asyncio.run(engine.complete(asked))
            served = asyncio.run(engine.complete(asked))
        (record,) = journal.records()
    assert record.pop("seconds") >= 0
    assert abs(time.time() - record.pop("at")) < 60
    assert len(record.pop("key")) == 32
    assert record == {
        "kind": "call", "stage": "topic", "model": "m", "label": "b", "endpoint": "chat",
        "prompt": "Question: q\nTopic:",
        "parameters": {"temperature": 0.0, "top_p": 0.9, "max_tokens": 32, "stop": ["\n"],
                       "options": {"thinking": False}},
        "sample": [3, 1], "address": "http://127.0.0.1:9/v1",
        "reply": "Orm Pier", "reasoning": "it is a pier", "finish": "stop",
        "logprobs": [["Orm", -0.25], [" Pier", -1.5]],
        "tokens_in": 12, "tokens_out": 3, "tokens_cached": 8, "cost": 0.25, "cost_by": "server",
        "attempts": 4, "error": None,
    }  # fmt: skip
    # Live and served are the same response, so that a resumed run reads what the first one read.
    assert live == served
    assert [type(part) for part in served.message.parts] == [lm15.ThinkingPart, lm15.TextPart]
    assert served.logprobs == answer.logprobs
    assert served.finish_reason == "stop"
    assert (served.usage.input_tokens, served.usage.output_tokens, served.usage.cache_read_tokens) == (12, 3, 8)


@pytest.mark.parametrize(
    ("reply", "finish", "event"),
    [
        ("fine", "stop", ""),
        ("", "stop", "empty_reply"),
        (" \n", "length", "empty_reply"),
        ("cut o", "length", "cut_reply"),
    ],
)
def test_empty_and_cut_replies_are_noted_live_and_served(tmp_path: Path, reply: str, finish: str, event: str) -> None:
    live = ScriptedEngine([response(reply, finish=finish)])
    with Journal(tmp_path) as journal, setting(STAGE, "ids"), setting(NOTES, []) as notes:
        assert [ask(journaled(live, journal)) for _ in range(2)] == [reply, reply]
        (record,) = journal.records()
    assert notes == [CallNote("ids", record["key"], event)] * 2


def test_attempts_and_seconds_are_those_of_the_call_without_its_wait_at_the_gate(tmp_path: Path) -> None:
    async def slow(_: lm15.Request, number: int) -> lm15.Response:
        await asyncio.sleep(0.05)
        if number == 1:
            raise lm15.ServerError("busy", status=503)
        return response("done")

    async def no_wait(_: float) -> None:
        return None

    async def main(engine: JournaledEngine) -> None:
        await asyncio.gather(*(engine.complete(request(f"prompt {i}")) for i in range(4)))

    with Journal(tmp_path) as journal:
        engine = journaled(RetryingEngine(MeteredEngine(Live(slow), [Gate(1)]), sleep=no_wait), journal)
        began = time.perf_counter()
        asyncio.run(main(engine))
        whole = time.perf_counter() - began
        *others, first = journal.records()
    # The first call's second attempt waits for its turn like the others: it holds no place while it waits.
    assert [record["attempts"] for record in others] == [1, 1, 1]
    assert (first["prompt"], first["attempts"]) == ("prompt 0", 2)
    assert first["seconds"] >= 0.1
    assert min(record["seconds"] for record in others) >= 0.05
    # One place, so none overlap: with a wait in any of them, together they would be longer than all of it took.
    assert sum(record["seconds"] for record in (*others, first)) <= whole
    went = [record["at"] for record in (*others, first)]
    assert max(went) - min(went) >= 0.1, "when each went out, not when it was asked for"


def test_the_gate_bounds_calls_and_lets_hits_past(tmp_path: Path) -> None:
    inside = most = 0

    async def counted(_: lm15.Request, number: int) -> lm15.Response:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.002)
        inside -= 1
        return response(f"reply {number}")

    async def main(engine: JournaledEngine, gate: Gate) -> None:
        await asyncio.gather(*(engine.complete(request(f"prompt {i}")) for i in range(20)))
        async with gate, gate, gate:  # all places are taken: a hit needs none
            await asyncio.wait_for(engine.complete(request("prompt 0")), 1)

    gate = Gate(3)
    with Journal(tmp_path) as journal:
        asyncio.run(main(journaled(MeteredEngine(Live(counted), [gate]), journal), gate))
    assert most == 3


SECRET = "sk-verysecret0123456789abcdef"


@pytest.mark.parametrize("behave", ["plain", "unauthorized", "context", "reasoning"])
def test_no_byte_of_a_key_reaches_journal_state_or_message(
    tmp_path: Path, behave: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("BLENDFILTER_API_KEY", SECRET)
    told: list[str] = []
    with serve(behave=behave) as server, Journal(tmp_path) as journal:
        login = server.url.replace("http://", "http://user:hunter2hunter2@")
        models = [
            connect("openai/test-model", api_base=server.url, journal=journal, label="provider's variable"),
            connect("test-model", api_base=server.url, journal=journal, label="own server's variable"),
            connect("test-model", api_base=server.url, api_key=SECRET, journal=journal, label="argument"),
            connect("test-model", api_base=login, journal=journal, label="login"),
        ]
        for lm in models:
            try:
                told += lm("prompt CONTEXT-TOO-LONG")
            except (ServerRefused, ModelError) as error:
                told.append(f"{error!r} {error.__cause__!r} {error.__context__!r}")
            told.append(f"{lm.dump_state()} {lm.inner!r} {lm.address} {lm.__dict__} {lm.history}")
        assert server.stats()["requests"] >= len(models)
    written = (tmp_path / "journal.jsonl").read_bytes().decode()
    assert written.count("\n") == (0 if behave == "unauthorized" else len(models))
    for text in (written, *told):
        for secret in (SECRET, "hunter2", "Authorization", "Bearer"):
            assert secret not in text

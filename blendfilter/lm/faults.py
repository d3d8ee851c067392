"""Faults of a model server: translated, judged, worded and journaled.

`translate` turns what HTTP clients raise into DSPy's lm15 errors, the language that engines speak; `retryable`
says whether trying again can help; `final` is the user's error once it cannot. `describe` and `restore` carry it
through the journal. No key passes: `translate` takes it out of whatever the server echoes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from blendfilter import http, secrets
from blendfilter.dspy_surface import lm15, transports
from blendfilter.errors import ModelError, ServerRefused, words_of

NO_CONNECTION = "no_connection"
"""`provider_code` of a `TransportError` where no connection came about: refused, unknown host, no route."""

NOT_SET_UP = "not_set_up"
"""`provider_code` of an `AuthError` where a client lacks a key, an address or the like: nothing was asked."""

_REFUSED = frozenset(
    {NO_CONNECTION, NOT_SET_UP, "unauthorized", "no_model", "not_found", "no_credit", "refused"}
)
"""Kinds of faults that end a run."""
_CONTEXT_CODES = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_CONTEXT = re.compile(
    # OpenAI, vLLM, llama-cpp-python
    r"context (?:length|size|window)[^.]{0,60}(?:is|of|exceed|\d)|maximum model length|must be at least 1, got -"
    # llama.cpp, SGLang, LM Studio
    r"|exceeds? the (?:available )?context|(?:longer|greater) than the (?:model's )?context"
    # Anthropic and vLLM, Gemini, TGI
    r"|(?:prompt|input) (?:\([^)]*\) )?is too long|input token count .{0,40}exceeds|max_new_tokens` must be",
    re.IGNORECASE,
)
_NO_MODEL = re.compile(
    r"\bmodel\b.{0,200}(?:not exist|not found|no such|unknown)|not a valid model",
    re.IGNORECASE | re.DOTALL,
)
_CAP_NAME = r"max_(?:completion_|output_|new_)?tokens"
_CAP_TOO_LARGE = re.compile(
    rf"{_CAP_NAME}\W{{0,2}} (?:or \W?{_CAP_NAME}\W? )?is too (?:large|high|big)(?:: (\d{{1,9}}))?"
    # vLLM names its context as well
    r"(?:.{0,200}?(\d{1,9}) input tokens)?",
    re.IGNORECASE | re.DOTALL,
)
_KEYS = re.compile(r"\b(?:sk|gsk|pk|xai|hf)[-_][\w*.-]{8,}|\bbearer\s+\S{8,}", re.IGNORECASE)
_MODERATED = r"(?i)moderat|flagged|content.?(?:policy|filter)|safety"
_CLASSES: Mapping[int, type[Any]] = {
    401: lm15.AuthError,
    402: lm15.BillingError,
    403: lm15.AuthError,
    408: lm15.TimeoutError,
    409: lm15.ServerError,  # a conflict that passes
    425: lm15.ServerError,
    429: lm15.RateLimitError,
    504: lm15.TimeoutError,
}
_LONGEST = 400  # characters of a server's message that are passed on


OF_A_TRANSPORT = (transports.TransportError, http.TooLarge, OSError, RuntimeError, ValueError)
"""What sending a request through lm15's transport may raise."""


def _named(module: str, *names: str) -> tuple[type[Any], ...]:
    """Exception classes of a package that takes long to import: where it was not, it raised nothing."""
    found = sys.modules.get(module)
    return tuple(getattr(found, name) for name in names) if found else ()


def is_of_a_client(error: object) -> bool:
    """Whether an HTTP client raised this, inside a model of the user's own making."""
    foreign = (*_named("openai", "OpenAIError"), *_named("httpx", "HTTPError", "InvalidURL"))
    return isinstance(error, (*foreign, TimeoutError, ConnectionError))


def is_unreached(error: object) -> bool:
    """Whether an error, a client's or ours, says that no connection came about: no model was called."""
    if getattr(error, "provider_code", None) == NO_CONNECTION:
        return True
    kinds = _named("httpx", "ConnectError", "ConnectTimeout", "UnsupportedProtocol")
    return isinstance(error, (*kinds, transports.ConnectError, ConnectionRefusedError))


def translate(error: Any, *, key: str = "") -> lm15.LM15Error:
    """The lm15 error for what lm15's transport, `openai` or `httpx` raised, with `key` taken out of its message.

    Raise it outside the `except` block: the cause still holds the request and its headers.
    """
    if isinstance(error, lm15.LM15Error):
        return error
    if isinstance(error, _named("openai", "APIStatusError")):
        return _of_status(error.status_code, _object(error.body), error.response.headers, key)
    lost = _named("openai", "APIConnectionError")
    late = (*_named("openai", "APITimeoutError"), *_named("httpx", "TimeoutException"))
    cause = error.__cause__ if isinstance(error, lost) and error.__cause__ else error
    message = str(cause) or type(cause).__name__
    if isinstance(cause, http.TooLarge):  # it would be as large again
        fault: lm15.LM15Error = lm15.ProviderError(message)
    elif isinstance(cause, _named("httpx", "TooManyRedirects")):
        fault = lm15.InvalidRequestError(cleaned(f"{message}: check the address", key))
    elif isinstance(cause, (*_named("httpx", "InvalidURL"), ValueError)):
        fault = lm15.InvalidRequestError(cleaned(f"HTTP cannot carry it ({message})", key))
    elif is_unreached(cause):
        message = cleaned(f"no connection ({message})", key)
        fault = lm15.TransportError(message, provider_code=NO_CONNECTION)
    elif isinstance(error, (*late, transports.ReadTimeout, TimeoutError)):
        fault = lm15.TimeoutError("no reply within the time allowed for one attempt")
    elif isinstance(
        error, (*lost, *_named("httpx", "HTTPError"), transports.TransportError, OSError)
    ):
        fault = lm15.TransportError(cleaned(f"the connection broke off ({message})", key))
    else:
        fault = unforeseen(error, key=key)
    return fault


def of_reply(
    status: int, content: bytes, headers: Mapping[str, str] = {}, *, key: str = ""
) -> lm15.LM15Error:
    """The error for a reply whose HTTP `status` is one."""
    try:
        body = http.json_of(content)
    except ValueError:
        body = content.decode(errors="replace").strip()
    stated = body.get("error", body) if isinstance(body, Mapping) else body
    return _of_status(status, _object(stated), headers, key)


def unforeseen(error: Exception, *, key: str = "") -> lm15.LM15Error:
    """The lm15 error for what no client, parser or engine should have raised: a fault of that call like others."""
    return lm15.LM15Error(
        cleaned(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__, key)
    )


def in_reply(data: Mapping[str, Any], *, key: str = "") -> lm15.LM15Error:
    """The error for a body without choices: some servers send their errors with status 200."""
    body = data.get("error") or data.get("detail")
    if not body:
        return lm15.TransportError("the reply holds no choices")
    code = _object(body).get("code")
    status = code if isinstance(code, int) and 400 <= code < 600 else 502
    return _of_status(status, _object(body), {}, key)


def _of_status(
    status: int, body: Mapping[str, Any], headers: Mapping[str, str], key: str
) -> lm15.LM15Error:
    named = _text(body.get("type"))
    code = named if named in _CONTEXT_CODES else _text(body.get("code"))
    texts = (_text(body.get(name)) for name in ("message", "detail", "error"))
    message = cleaned(next(filter(None, texts), f"HTTP {status}"), key)
    facts: dict[str, Any] = {"status": status, "provider_code": code or None}
    if large := _CAP_TOO_LARGE.search(message):
        # unless it is the prompt that takes the context up
        too_long = int(large[2] or 0) > int(large[1] or 0)
    else:
        may_be = status in (400, 413, 422, 500)
        too_long = code in _CONTEXT_CODES or bool(may_be and _CONTEXT.search(message))
    if too_long:
        kind = lm15.ContextLengthError
    elif status == 403 and re.search(_MODERATED, f"{code} {message}"):
        kind = lm15.InvalidRequestError  # this prompt is refused, not the key
    elif code == "insufficient_quota":
        kind = lm15.BillingError
    elif code == "model_not_found" or (status in (400, 404) and _NO_MODEL.search(message)):
        kind = lm15.UnsupportedModelError
    else:
        kind = _CLASSES.get(
            status, lm15.ServerError if status >= 500 else lm15.InvalidRequestError
        )
    if issubclass(kind, lm15.RateLimitError | lm15.ServerError):
        facts["retry_after"] = http.seconds_to_wait(headers)
    fault: lm15.LM15Error = kind(message, **facts)
    fault.param = _text(body.get("param")).split(".")[0]
    return fault


def _object(body: Any) -> Mapping[str, Any]:
    """A server's error, whatever its layout: OpenAI's `error` object, a bare string, a page."""
    return body if isinstance(body, Mapping) else {"message": _text(body)}


def _text(value: Any) -> str:
    """A field of a server's error, whatever it holds; nothing where it is empty or nested without bound."""
    try:
        return str(value or "")
    except RecursionError:
        return ""


def cleaned(text: str, key: str = "") -> str:
    """`text` on one line, not too long, without anything that looks like a key."""
    text = " ".join(_KEYS.sub("[key]", secrets.hidden(text, key)).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def retryable(error: BaseException) -> bool:
    """Whether the same call may succeed later: timeouts, lost connections, unreadable bodies, 408, 409, 429 and 5xx."""
    return isinstance(
        error, lm15.RateLimitError | lm15.TimeoutError | lm15.ServerError | lm15.TransportError
    )


def throttled(error: BaseException | None) -> bool:
    """Whether the server has too much to do just now: a 429, or a 503 that says when to come back."""
    busy = (
        isinstance(error, lm15.ServerError)
        and error.status == 503
        and error.retry_after is not None
    )
    return busy or isinstance(error, lm15.RateLimitError)


def final(error: BaseException, *, address: str, stage: str = "") -> ServerRefused | ModelError:
    """The user's error: `ServerRefused` where nothing can be done on this end, else `ModelError` of `stage`."""
    return restore(describe(error, address=address), stage=stage)


def describe(error: BaseException, *, address: str = "") -> dict[str, Any]:
    """The final form of `error` for the journal: ``{"kind", "message", "status"}`` (`status` is HTTP's, or None).

    One that ends the run stands in no journal; it has the server's words apart (``quoted``).
    """
    if isinstance(error, ModelError | ServerRefused):
        record = {"kind": getattr(error, "kind", "refused"), "message": words_of(error)}
        text, status = error.quoted, None
    else:
        # lm15 puts advice of its own after a blank line; the server's message stands before it.
        text = str(getattr(error, "message", "") or error).split("\n\n")[0].strip().rstrip(".")
        # an engine that is not ours may pass on a key that its server echoed
        text = cleaned(text or type(error).__name__)
        kind, status = _kind(error), getattr(error, "status", None)
        # What becomes a question's error names no address: it is stored, and a resumed run may have another.
        line = _WORDS.get(kind, "{why}{http}").format(
            where=address or "the model server",
            why=text,
            http=f" (HTTP {status})" if status else "",
            hint=getattr(error, "key_hint", "") or "check the key in the environment",
        )
        record = {"kind": kind, "message": "; ".join([line, *getattr(error, "__notes__", ())])}
    quoted = {"quoted": text} if record["kind"] in _REFUSED else {}
    return {**record, "status": status, **quoted}


def restore(record: Mapping[str, Any], *, stage: str = "") -> ServerRefused | ModelError:
    """The error that `describe` described."""
    kind, message = str(record["kind"]), str(record.get("message", ""))
    if kind in _REFUSED:
        return ServerRefused(message).quoting(record.get("quoted", ""))
    return ModelError(message, kind=kind, stage=stage)


def _kind(error: BaseException) -> str:
    if isinstance(error, lm15.TransportError):
        return NO_CONNECTION if error.provider_code == NO_CONNECTION else "server_error"
    if isinstance(error, lm15.AuthError) and error.provider_code == NOT_SET_UP:
        return NOT_SET_UP
    if isinstance(error, lm15.InvalidRequestError) and error.status == 404:
        return "no_model" if isinstance(error, lm15.UnsupportedModelError) else "not_found"
    return next((kind for known, kind in _KINDS if isinstance(error, known)), "unexpected")


_KINDS = (
    (lm15.AuthError, "unauthorized"),
    (lm15.BillingError, "no_credit"),
    (lm15.UnsupportedModelError, "no_model"),
    (lm15.ContextLengthError, "context_too_long"),
    (lm15.InvalidRequestError, "bad_request"),
    (lm15.RateLimitError, "rate_limited"),
    (lm15.TimeoutError, "timeout"),
    (lm15.ServerError, "server_error"),
)
_WORDS: Mapping[str, str] = {
    NO_CONNECTION: "no model server answers at {where}: {why}; start it, or give its address (api_base=URL)",
    NOT_SET_UP: "{where} cannot be asked: {why}",
    "unauthorized": "{where} refuses the key{http}: {why}; {hint}",
    "no_credit": "{where} refuses to go on without credit{http}: {why}; check the account's plan and limits",
    "no_model": "{where} does not serve this model{http}: {why}; check the model's name (lm=)",
    "not_found": "{where} has nothing at this path{http}: {why}; check that the address ends in /v1, and endpoint=",
    "context_too_long": "the prompt is longer than the model's context: {why}",
}

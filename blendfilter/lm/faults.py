"""Faults of a model server: translated, judged, worded and journaled.

`translate` turns what the `openai` client raises into DSPy's lm15 errors, the language that engines speak; `retryable`
says whether trying again can help; `final` is the user's error once it cannot. `describe` and `restore` carry it
through the journal. No key passes: `translate` takes it out of whatever the server echoes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from blendfilter import http, secrets
from blendfilter.dspy_surface import lm15
from blendfilter.errors import ModelError, ServerRefused, words_of

if TYPE_CHECKING:
    import openai

logger = logging.getLogger(__name__)

NO_CONNECTION = "no_connection"
"""`provider_code` of a `TransportError` where no connection came about: refused, unknown host, no route."""

NOT_SET_UP = "not_set_up"
"""`provider_code` of an `AuthError` where a client lacks a key, an address or the like: nothing was asked."""

OF_A_REPLY = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading a reply may raise, whatever stands in it."""

_REFUSED = frozenset(
    {NO_CONNECTION, NOT_SET_UP, "unauthorized", "no_model", "not_found", "no_credit"}
)
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
_REFUSES = re.compile(
    r"unsupported|not supported|(?:does not|doesn't) support|unrecogni[sz]ed|unknown|unexpected|not permitted"
    r"|not allowed|only \S+ (?:is|are) (?:allowed|supported)|extra inputs|extra fields|deprecated|may only be set"
    r"|cannot both be",
    re.IGNORECASE,
)
_BETWEEN = r"(?:\W|\d++|\b(?:value|parameter|the|is|of|for|it|input|msg)\b|参数){0,16}"
_OUT_OF_RANGE = (
    # `temperature` (=0.0) has to be a strictly positive float; temperature must be in range (0, 1); temperature参数非法
    rf"(?<!\w)NAME(?![a-z_]){_BETWEEN}(?:must|has to|have to|should|needs? to|out of|not in|in [\[(]|range|invalid"
    r"|below|ensure|cannot be|too (?:low|small|high|large|long|many)|unavailable|not available"
    r"|取值|范围|非法|无效|不能)"
    # Invalid 'temperature': decimal below minimum value; 0 is less than the minimum of 0.01 - 'temperature'
    rf"|(?:invalid|illegal|out of range|range of|minimum(?: of)?|up to|at most|too many){_BETWEEN}NAME(?!\w)"
    # Expected temperature > 0
    r"|expected NAME\W{1,3}>"
)
_LEAST = re.compile(
    r"(?:>=|at least|greater than or equal to|minimum(?: value)?(?: of| is)|between|\[(?=[\d.]{1,13},)) ?"
    r"(\d{1,6}(?:\.\d{1,6})?)",
    re.IGNORECASE,
)
_ABOVE = re.compile(r"(?:>|greater than|more than) ?(\d{1,6}(?:\.\d{1,6})?)", re.IGNORECASE)
_CAP_NAME = r"max_(?:completion_|output_|new_)?tokens"
_CAP_TOO_LARGE = re.compile(
    rf"{_CAP_NAME}\W{{0,2}} (?:or \W?{_CAP_NAME}\W? )?is too (?:large|high|big)(?:: (\d{{1,9}}))?"
    # vLLM names its context as well
    r"(?:.{0,200}?(\d{1,9}) input tokens)?",
    re.IGNORECASE | re.DOTALL,
)
_OF_A_CAP = re.compile(rf"{_CAP_NAME}|(?:completion|output|new) tokens", re.IGNORECASE)
_NO_ROOM = re.compile(r"(?:max_tokens|output limit) (?:or [a-z ]{1,30})?was reached", re.IGNORECASE)
_KEYS = re.compile(r"\b(?:sk|gsk|pk|xai|hf)[-_][\w*.-]{8,}|\bbearer\s+\S{8,}", re.IGNORECASE)
_MODERATED = re.compile(r"moderat|flagged|content.?(?:policy|filter)|safety", re.IGNORECASE)
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

Ending = Literal["stop", "length", "tool_call", "content_filter"]
_ENDINGS: Mapping[Ending, str] = {
    "stop": "stop eos eos_token end_turn end_of_text endoftext stop_sequence stop_string stop_token stop_criteria_met "
    "word complete completed finish finished normal",
    "length": "length limit max_tokens model_length token_limit max_output max_output_tokens max_length context "
    "model_context_window_exceeded compaction repetition",
    "tool_call": "tool_call tool_calls tool_use function_call pause_turn",
    "content_filter": "content_filter content_filtered guardrail_intervened sensitive blacklist refusal error_toxic "
    "safety recitation language blocklist prohibited_content spii",
}
_ENDS_BY: Mapping[str, Ending] = {
    word: ending for ending, words in _ENDINGS.items() for word in words.split()
}
"""What servers call the endings of a reply, in lower case.

By any other word (`error`, `abort`, `cancelled`, `insufficient_system_resource`, Ollama's `load`) it broke off.
"""
WHOLE = frozenset({"stop", "length", "tool_call"})
"""The endings of a reply that is one."""


def of_a_client() -> tuple[type[Exception], ...]:
    """What the `openai` client and `httpx` raise; they are imported when a call has failed, because that takes long."""
    import httpx
    import openai

    return openai.OpenAIError, httpx.HTTPError, httpx.InvalidURL


def of_a_call() -> tuple[type[Exception], ...]:
    """What may be raised over a request, and over a reply of any kind: all of it is a fault of that call."""
    return *of_a_client(), OSError, RuntimeError, *OF_A_REPLY


def translate(error: Exception, *, key: str = "") -> lm15.LM15Error:
    """The lm15 error for what the `openai` client or `httpx` raised, with `key` taken out of its message.

    Raise it outside the `except` block: the cause still holds the request and its headers.
    """
    import httpx
    import openai

    if isinstance(error, openai.APIStatusError):
        return _of_status(error.status_code, _body(error), error.response.headers, key)
    cause = (
        error.__cause__
        if isinstance(error, openai.APIConnectionError) and error.__cause__
        else error
    )
    message = str(cause) or type(cause).__name__
    if isinstance(cause, http.TooLarge):  # it would be as large again
        fault: lm15.LM15Error = lm15.ProviderError(message)
    elif isinstance(cause, httpx.TooManyRedirects):
        fault = lm15.InvalidRequestError(cleaned(f"{message}: check the address", key))
    elif isinstance(cause, UnicodeError | httpx.InvalidURL):
        fault = lm15.InvalidRequestError(cleaned(f"HTTP cannot carry it ({message})", key))
    elif isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.UnsupportedProtocol):
        fault = lm15.TransportError(
            cleaned(f"no connection ({message})", key), provider_code=NO_CONNECTION
        )
    elif isinstance(error, openai.APITimeoutError | httpx.TimeoutException):
        fault = lm15.TimeoutError("no reply within the time allowed for one attempt")
    elif isinstance(error, openai.APIConnectionError | httpx.HTTPError):
        fault = lm15.TransportError(cleaned(f"the connection broke off ({message})", key))
    else:
        fault = unforeseen(error, key=key)
    return fault


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
    body = body if isinstance(body, Mapping) else {"message": _text(body)}
    code = body.get("code")
    return _of_status(code if isinstance(code, int) and 400 <= code < 600 else 502, body, {}, key)


def ending(body: Mapping[str, Any], known: str | None = None, *, key: str = "") -> Ending:
    """How the reply in a server's `body` ended; `known`: what a client made of that, where the body does not say.

    A server that says nothing has ended well: old ones leave it out.

    Raises: an lm15 error where the reply broke off, and trying again may help; where a content filter stopped it,
        which is no answer either, whatever text there is.
    """
    choices = body.get("choices") or body.get("candidates")  # Gemini's
    choice = choices[0] if isinstance(choices, list) and isinstance(choices[0], Mapping) else {}
    kept = choice.get("provider_specific_fields")  # litellm's place for what it does not know
    kept = kept if isinstance(kept, Mapping) else {}
    for place in (body, choice, kept):
        if place.get("error"):
            raise in_reply(place, key=key)
    last = body.get("delta")  # the last event of an Anthropic stream
    beside = last if isinstance(last, Mapping) else body
    words = (
        kept.get("native_finish_reason"),
        choice.get("finish_reason"),
        choice.get("finishReason"),
    )
    word = next(filter(None, (*words, beside.get("stop_reason"), known)), "stop")
    ended = _ENDS_BY.get(str(word).lower())
    if ended is None:
        raise lm15.TransportError(
            f"the reply broke off: its server ended it by '{cleaned(str(word), key)}'"
        )
    if ended == "content_filter":
        # A status, because it was written and is paid for, other than what is refused unread.
        why = "the server's content filter stopped the reply"
        raise lm15.InvalidRequestError(why, status=200, provider_code=ended)
    return ended


def _of_status(
    status: int, body: Mapping[str, Any], headers: Mapping[str, str], key: str
) -> lm15.LM15Error:
    code, message = _code(body), cleaned(_message(body, status), key)
    facts: dict[str, Any] = {"status": status, "provider_code": code or None}
    if _too_long(status, code, message):
        kind = lm15.ContextLengthError
    elif status == 403 and _MODERATED.search(f"{code} {message}"):
        kind = lm15.InvalidRequestError  # this prompt is refused, not the key
    elif code == "insufficient_quota":
        kind = lm15.BillingError
    elif code == "model_not_found" or (status in (400, 404) and _NO_MODEL.search(message)):
        kind = lm15.UnsupportedModelError
    else:
        kind = _CLASSES.get(status, lm15.ServerError if status >= 500 else lm15.InvalidRequestError)
    if issubclass(kind, lm15.RateLimitError | lm15.ServerError):
        facts["retry_after"] = http.seconds_to_wait(headers)
    return kind(message, **facts)


def _too_long(status: int, code: str, message: str) -> bool:
    if large := _CAP_TOO_LARGE.search(message):  # unless it is the prompt that takes the context up
        return int(large[2] or 0) > int(large[1] or 0)
    return code in _CONTEXT_CODES or (
        status in (400, 413, 422, 500) and _CONTEXT.search(message) is not None
    )


def _body(error: openai.APIStatusError) -> Mapping[str, Any]:
    """The server's error, whatever its layout: OpenAI's `error` object (already unwrapped), a bare string, a page."""
    return error.body if isinstance(error.body, Mapping) else {"message": _text(error.body)}


def _code(body: Mapping[str, Any]) -> str:
    kind = _text(body.get("type"))
    return kind if kind in _CONTEXT_CODES else _text(body.get("code"))


def _message(body: Mapping[str, Any], status: int) -> str:
    texts = (_text(body.get(name)) for name in ("message", "detail", "error"))
    return next((text for text in texts if text), f"HTTP {status}")


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


NEARLY_ZERO = 0.01
"""The temperature in place of a 0 that a server refuses. Left out, its default would sample; this draws the likeliest
token as good as always. vLLM raises what is smaller to it, and no known server asks for more."""
_CAPS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
_LARGEST_LEAST = 1024
"""Tokens to which a cap is raised at the most, whatever its server asks for."""
_NEUTRAL: Mapping[str, float] = {"top_p": 1, "frequency_penalty": 0, "presence_penalty": 0}
"""Values that change nothing, so that the parameter can be left out as well."""
_DISPENSABLE = frozenset(
    {"stop", "stop_sequences", "stopSequences", "response_format", "top_logprobs"}
)
"""What is left out whatever its value: a reply is cut at its stop strings, and read in any form, on this end anyway."""
_SPELLED: Mapping[str, str] = {
    "stop": r"stop(?:[ _]?(?:sequence|string|word)s?)?",
    "response_format": r"response[ _]format(?:[. ]type)?",
}
"""How a message may spell a parameter otherwise."""


class Refusal(NamedTuple):
    """A parameter that a server refuses.

    Attributes:
        name: the parameter.
        least: the smallest value that it may have; None: it is left out.
    """

    name: str
    least: float | None = None


def refused_parameter(error: Exception, sent: Mapping[str, Any]) -> Refusal | None:
    """The parameter among `sent` that a 400 or 422 refuses, as such or for its value; None where it is something else.

    A value that its user chose is not replaced: only temperature 0, a cap below the server's least, values that change
    nothing, and what a call can do without.
    """
    import openai

    if not isinstance(error, openai.APIStatusError):
        return None
    body = _body(error)
    param = _text(body.get("param")).split(".")[0]
    return _refused(error.status_code, _code(body), _message(body, error.status_code), sent, param)


def refused_setting(fault: lm15.LM15Error, sent: Mapping[str, tuple[str, Any]]) -> Refusal | None:
    """The setting that a fault of DSPy's client refuses, as `refused_parameter`.

    `sent` has what a message may call it, the setting that this is, and its value.
    """
    if isinstance(fault, lm15.UnsupportedFeatureError):
        named = str(getattr(fault, "feature", "") or "").removeprefix("config.")
        if named in sent:
            return Refusal(sent[named][0])
    elif not isinstance(fault, lm15.InvalidRequestError | lm15.ServerError) or isinstance(
        fault, lm15.ContextLengthError | lm15.UnsupportedModelError
    ):
        return None
    status = getattr(fault, "status", None) or (500 if isinstance(fault, lm15.ServerError) else 400)
    code, message = (
        str(getattr(fault, "provider_code", "") or ""),
        str(getattr(fault, "message", "") or fault),
    )
    refusal = _refused(status, code, message, {name: value for name, (_, value) in sent.items()})
    return None if refusal is None else refusal._replace(name=sent[refusal.name][0])


def _refused(
    status: int, code: str, message: str, sent: Mapping[str, Any], param: str = ""
) -> Refusal | None:
    # 500: transformers' own error, behind servers that do not look at what they are sent.
    if (
        status not in (400, 422, 500)
        or _too_long(status, code, message)
        or _CAP_TOO_LARGE.search(message)
    ):
        return None
    if code.startswith(("unsupported_", "unknown_parameter")) or _REFUSES.search(message):
        name = param if param in sent else _first_named(message, sent)
        return Refusal(name) if name and status != 500 else None
    for name, value in sent.items():
        spellings = _CAPS if name in _CAPS else (name,)
        named = "|".join(map(_spelled, spellings))
        pattern = _OUT_OF_RANGE.replace("NAME", f"(?:{named})")
        if param in spellings or re.search(pattern, message, re.IGNORECASE):
            return _instead(name, value, message)
    return None


def _instead(name: str, value: Any, message: str) -> Refusal | None:
    """What to do about a value that is refused; None: nothing, it is its user's."""
    if name in _DISPENSABLE:
        return Refusal(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    least = 0.0
    if stated := _LEAST.search(message):
        least = float(stated[1])
    elif stated := _ABOVE.search(message):
        least = float(stated[1]) + (1 if name in _CAPS else NEARLY_ZERO)
    if name in _CAPS:
        return Refusal(name, int(least)) if value < least <= _LARGEST_LEAST else None
    if name == "temperature" and value <= NEARLY_ZERO:
        least = max(least, NEARLY_ZERO)
        return Refusal(name, least if value < least <= 1 else None)
    return Refusal(name) if value == _NEUTRAL.get(name) else None


def learn(refused: dict[str, float | None], refusal: Refusal, model: str) -> None:
    """Add a refusal to those of a model's server, and warn of one of the temperature, on which replies depend."""
    name, least = refusal
    if name in refused and refused[name] in (None, least):  # another call was quicker
        return
    refused[name] = least
    if name == "temperature":
        instead = (
            "its own is used, so replies may differ" if least is None else f"{least:g} is sent"
        )
        logger.warning("%s refuses its temperature: %s", model, instead)


def left_no_room(fault: lm15.LM15Error) -> bool:
    """Whether a request is refused because its cap was used up before the reply had begun: OpenAI says so as a 400."""
    return isinstance(fault, lm15.InvalidRequestError) and _NO_ROOM.search(str(fault)) is not None


def cap_too_large(fault: lm15.LM15Error) -> bool:
    """Whether a request is refused for its cap, given that the same one with a smaller cap was answered."""
    if isinstance(fault, lm15.ContextLengthError):
        return True
    status = getattr(fault, "status", None)
    refused = isinstance(fault, lm15.InvalidRequestError) and status in (None, 400, 413, 422)
    return refused and _OF_A_CAP.search(str(fault)) is not None


def _first_named(message: str, names: Iterable[str]) -> str | None:
    matches = (
        (re.search(rf"(?<!\w){_spelled(name)}(?!\w)", message, re.IGNORECASE), name)
        for name in names
    )
    return min(((match.start(), name) for match, name in matches if match), default=(0, None))[1]


def _spelled(name: str) -> str:
    return _SPELLED.get(name) or re.escape(name)


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
    """The final form of `error` for the journal: ``{"kind", "message", "status"}`` (`status` is HTTP's, or None)."""
    if isinstance(error, ModelError | ServerRefused):
        return {
            "kind": getattr(error, "kind", "refused"),
            "message": words_of(error),
            "status": None,
        }
    kind = _kind(error)
    return {
        "kind": kind,
        "message": _worded(kind, error, address),
        "status": getattr(error, "status", None),
    }


def restore(record: Mapping[str, Any], *, stage: str = "") -> ServerRefused | ModelError:
    """The error that `describe` described."""
    kind, message = str(record["kind"]), str(record.get("message", ""))
    if kind == "refused" or kind in _REFUSED:
        return ServerRefused(message).quoting(_quoted_in(message))
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
    NO_CONNECTION: "no model server answers at {where}: {why}; start it, or give its address (--api-base URL)",
    NOT_SET_UP: "{where} cannot be asked: {why}",
    "unauthorized": "{where} refuses the key{http}: {why}; {hint}",
    "no_credit": "{where} refuses to go on without credit{http}: {why}; check the account's plan and limits",
    "no_model": "{where} does not serve this model{http}: {why}; check the model's name (--lm)",
    "not_found": "{where} has nothing at this path{http}: {why}; check that the address ends in /v1, and --endpoint",
    "context_too_long": "the prompt is longer than the model's context: {why}",
}


def _quoted_in(message: str) -> str:
    """What the server wrote in a refusal's message; nothing where that cannot be found."""
    for template in _WORDS.values():
        wanted = re.escape(template).replace(r"\{why\}", "(?P<why>.*)")
        if found := re.match(re.sub(r"\\\{\w+\\\}", ".*?", wanted), message, re.DOTALL):
            return found["why"]
    return ""


def _worded(kind: str, error: BaseException, address: str) -> str:
    # lm15 puts advice of its own after a blank line; the server's message stands before it.
    text = (
        str(getattr(error, "message", "") or error).split("\n\n")[0].strip().rstrip(".")
        or type(error).__name__
    )
    text = cleaned(text)  # an engine that is not ours may pass on a key that its server echoed
    status = getattr(error, "status", None)
    http = f" (HTTP {status})" if status else ""
    hint = getattr(error, "key_hint", "") or "check the key in the environment"
    # What becomes a question's error names no address: it is stored, and a resumed run may have another.
    line = _WORDS.get(kind, "{why}{http}").format(
        where=address or "the model server", why=text, http=http, hint=hint
    )
    return "; ".join([line, *getattr(error, "__notes__", ())])

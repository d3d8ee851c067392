"""Bounds on the tokens of a call, without a tokeniser; and which of a server's own counts can be true.

`at_most` is safe to reserve, not an estimate: three to five times what English text really is. A token of a byte-level
vocabulary covers a byte or more, so a text has no more tokens than its UTF-8 has bytes. Around the texts a chat
template puts tokens of its own, some with a system message that was never sent (Mistral's has about 400 tokens,
gpt-oss' about 80), so a request and each message are allowed some more. What is not text (an image) counts as more
than any model we know makes of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from blendfilter import secrets
from blendfilter.dspy_surface import lm15
from blendfilter.lm.prices import Price, rated, stated

A_REQUEST = 512
"""Tokens that a chat template may add to a request."""
A_MESSAGE = 16
"""Tokens that it may add around a message: its role, its beginning and end."""
A_PICTURE = 16_384
"""Tokens of a part that is not text."""
_INDENTED = 2
"""How much longer a schema or a tool becomes where a template writes it out with its own spaces."""

UNSEEN = 200_000
"""Tokens of a prompt, or of a reply, that this end may not see: a gateway's own prompt, long thoughts."""
_FREE, _A_TOKEN = 64, 8
"""Characters of a text that may be a single token, and characters a token beyond them: more than any tokeniser's mean
over text of any language, which is four or five for English."""


def at_most(request: lm15.Request) -> int:
    """Tokens that the prompt of `request` cannot exceed; its reply is not counted.

    >>> request = lm15.Request(model="m", messages=(lm15.Message.user("Who? Élodie."),), config=lm15.Config())
    >>> at_most(request) - A_REQUEST - A_MESSAGE  # 12 characters
    13
    """
    system = _of_parts(request.system) + A_MESSAGE if request.system else 0
    messages = sum(_of_parts(message.parts) + A_MESSAGE for message in request.messages)
    config = request.config
    written = [*request.tools, config.response_format, config.extensions]
    more = sum(
        _INDENTED * bytes_of(repr(part)) + A_MESSAGE for part in written if part is not None
    )
    return A_REQUEST + system + messages + more


def at_least(parts: Iterable[Any]) -> int:
    """Tokens that the text among these parts must have: a server that states fewer is not charged less for.

    A run of spaces may be one token.

    >>> at_least([]), at_least([lm15.TextPart("42")]), at_least([lm15.TextPart("word " * 1000)])
    (0, 1, 616)
    """
    texts = (text for part in parts if isinstance(text := getattr(part, "text", None), str))
    characters = sum(len(" ".join(text.split())) for text in texts)
    return max(1, (characters - _FREE) // _A_TOKEN) if characters else 0


def believed(
    request: lm15.Request, response: lm15.Response, price: Price | None = None
) -> lm15.Response:
    """`response` without the figures that cannot be true.

    A count that is none (negative, 0 for a text, more than any call has) becomes unknown, and so does a cost that is
    none, or absurd beside our `price`. What was dropped is kept as ``provider_data["disbelieved"]``. Where a provider
    counts cached tokens apart (Anthropic), they are added to those of the prompt. Fewer tokens than the prompt's text
    has mean that the server read a part of it: ``provider_data["prompt_cut"]``.
    """
    usage, data = response.usage, dict(response.provider_data or {})
    wrong: dict[str, Any] = dict(data.get("disbelieved") or {})
    tokens_in, cached = usage.input_tokens, usage.cache_read_tokens
    least = at_least(part for message in request.messages for part in message.parts)
    if cached and tokens_in is not None and tokens_in < least:
        whole = tokens_in + cached + (usage.cache_write_tokens or 0)
        tokens_in = whole if whole >= least else tokens_in
    most_in = 10 * at_most(request) + UNSEEN
    most_out = 10 * (request.config.max_tokens or 0) + UNSEEN
    stated_counts = {
        "tokens_in": (tokens_in, min(1, least), most_in),
        "tokens_out": (usage.output_tokens, min(1, at_least(response.message.parts)), most_out),
        "tokens_cached": (cached, 0, most_in),
    }
    counts = dict[str, int | None]()
    for name, (count, fewest, most) in stated_counts.items():
        counts[name] = count
        if count is not None and not fewest <= count <= most:
            wrong[name], counts[name] = noted(count), None
    read, written, before = counts.values()
    cost, paid = data.get("cost"), rated(price, data)
    sizes = read or at_most(request), written or request.config.max_tokens or 0
    ours = None if paid is None else paid.of(*sizes)
    if cost is not None and stated(cost, ours) is None:
        wrong["cost"] = noted(data.pop("cost"))
    if (read or least) < least:
        data["prompt_cut"] = True
    if wrong or tokens_in != usage.input_tokens:
        usage = replace(
            usage,
            input_tokens=read,
            output_tokens=written,
            total_tokens=None,
            cache_read_tokens=before,
        )
    if wrong:
        data["disbelieved"] = wrong
    if usage is response.usage and data == (response.provider_data or {}):
        return response
    return replace(response, usage=usage, provider_data=data)


def tokens_of(response: lm15.Response) -> int:
    """Tokens of prompt and reply that a response states."""
    return (response.usage.input_tokens or 0) + (response.usage.output_tokens or 0)


def noted(value: Any) -> str:
    """A figure that is none, for a record: short, whatever it is.

    >>> noted(-1), noted(True), noted(10**400), noted({"dollars": 1})
    ('-1', 'True', '1000000000000000000000000…', 'dict')
    """
    plain = (
        secrets.hidden(str(value))
        if isinstance(value, int | float | str)
        else type(value).__name__
    )
    return plain if len(plain) <= 25 else f"{plain[:25]}…"


def bytes_of(text: str) -> int:
    """Bytes of `text` in UTF-8; a lone surrogate counts as the three bytes it would take."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _of_parts(parts: str | Iterable[Any]) -> int:
    if isinstance(parts, str):
        return bytes_of(parts)
    total = -1  # parts are joined by a line break
    for part in parts:
        text = (
            repr(part) if isinstance(part, lm15.ToolCallPart) else getattr(part, "text", None)
        )
        total += 1 + (bytes_of(text) if isinstance(text, str) else A_PICTURE)
    return total

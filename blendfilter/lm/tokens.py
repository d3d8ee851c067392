"""How many tokens a prompt can be at most, with no tokeniser at hand.

In: a request. Out: a bound that is safe to reserve, not an estimate: three to five times what English text really is.

A token of a byte-level vocabulary covers a byte or more, so a text has no more tokens than its UTF-8 has bytes. Around
the texts a chat template puts tokens of its own, some with a system message that nobody sent (Mistral's has about 400
tokens, gpt-oss' about 80), so a request and each message are allowed some more. What is not text (an image) has no
bound that can be read off its bytes; it counts as more than any model we know makes of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from dspy import lm15

A_REQUEST = 512
"""Tokens that a chat template may add to a request."""
A_MESSAGE = 16
"""Tokens that it may add around a message: its role, its beginning and end."""
A_PICTURE = 16_384
"""Tokens of a part that is not text."""
_INDENTED = 2
"""How much longer a schema or a tool becomes where a template writes it out with its own spaces."""


def at_most(request: lm15.Request) -> int:
    """Tokens that the prompt of `request` cannot exceed; those of the reply are another matter.

    >>> asked = lm15.Request(model="m", messages=(lm15.Message.user("Who? Élodie."),), config=lm15.Config())
    >>> at_most(asked) - A_REQUEST - A_MESSAGE  # 12 characters
    13
    """
    system = _of_parts(request.system) + A_MESSAGE if request.system else 0
    messages = sum(_of_parts(message.parts) + A_MESSAGE for message in request.messages)
    config = request.config
    written = [*request.tools, *(each for each in (config.response_format, config.extensions) if each is not None)]
    return A_REQUEST + system + messages + sum(_INDENTED * bytes_of(repr(each)) + A_MESSAGE for each in written)


def bytes_of(text: str) -> int:
    """Bytes of `text` in UTF-8; a lone surrogate counts as the three bytes it would take."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _of_parts(parts: str | Iterable[Any]) -> int:
    if isinstance(parts, str):
        return bytes_of(parts)
    return sum(_of_part(part) + 1 for part in parts) - 1  # parts are joined by a line break


def _of_part(part: Any) -> int:
    text = getattr(part, "text", None)
    if isinstance(text, str):
        return bytes_of(text)
    return bytes_of(repr(part)) if isinstance(part, lm15.ToolCallPart) else A_PICTURE

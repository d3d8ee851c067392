"""From a server's reply to an outcome, however it came: whole, in pieces, out of a batch's file, or through DSPy.

`concluded` is the one place where a reply becomes an answer: it has ended by a known word or by none, thoughts stand
apart from it, and nothing follows its first stop string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from blendfilter.dspy_surface import lm15
from blendfilter.lm import faults
from blendfilter.lm.profiles import cut_at_stop, split_thinking

OF_A_REPLY = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What reading a reply may raise, whatever stands in it."""

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


def concluded(
    request: lm15.Request, response: lm15.Response, body: Mapping[str, Any], *, key: str = ""
) -> lm15.Response:
    """The response to `request` that was read from a server's `body`, as an answer.

    A reply with parts beside text and thoughts (a tool's call) keeps them as they are.

    Raises: an lm15 error where it is none (`ending`).
    """
    ended = ending(body, response.finish_reason, key=key)
    parts = response.message.parts
    if not all(isinstance(part, lm15.TextPart | lm15.ThinkingPart) for part in parts):
        return replace(response, finish_reason=ended)
    raw, thoughts = texts_of(response)
    hidden, reply = split_thinking(raw)
    thoughts = thoughts or hidden
    text = cut_at_stop(reply, request.config.stop)
    logprobs, complete = within(response.logprobs, raw, text)
    data = response.provider_data
    if text != reply:  # what comes behind a stop string was paid for, and is not read
        ended, data = "stop", {**(data or {}), "ran_on": True}
    return replace(
        response,
        message=replace(response.message, parts=parts_of(text, thoughts)),
        finish_reason=ended,
        logprobs=logprobs,
        logprobs_complete=complete,
        provider_data=data,
    )


def parts_of(text: str, thoughts: str) -> tuple[Any, ...]:
    """The parts of a message: its thoughts, where there are some, and its text."""
    return (*([lm15.ThinkingPart(thoughts)] if thoughts else []), lm15.TextPart(text))


def texts_of(response: lm15.Response) -> tuple[str, str]:
    """The text of a response, and its thoughts apart."""
    texts, thoughts = map(response.message.parts_of, (lm15.TextPart, lm15.ThinkingPart))
    return "".join(part.text for part in texts), "".join(part.text for part in thoughts)


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
            raise faults.in_reply(place, key=key)
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
            f"the reply broke off: its server ended it by '{faults.cleaned(str(word), key)}'"
        )
    if ended == "content_filter":
        # A status, because it was written and is paid for, other than what is refused unread.
        why = "the server's content filter stopped the reply"
        raise lm15.InvalidRequestError(why, status=200, provider_code=ended)
    return ended


def text_and_thoughts(message: Mapping[str, Any]) -> tuple[str, str]:
    """The text and the thoughts of a message, or of a piece of one; its content may come in blocks of both.

    >>> text_and_thoughts({"content": [{"type": "thinking", "thinking": "a?"}, {"type": "text", "text": "b"}]})
    ('b', 'a?')
    """
    content = message.get("content")
    thoughts = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(content, list):
        blocks = [{"text": block} if isinstance(block, str) else block for block in content]
        if not all(isinstance(block, Mapping) for block in blocks):
            raise TypeError("a block of the content is neither a text nor an object")
        thoughts = thoughts or "".join(_flat(block.get("thinking")) for block in blocks)
        content = "".join(
            _flat(block.get("text")) for block in blocks if block.get("type", "text") in _TEXTS
        )
    return str(content or message.get("refusal") or ""), str(thoughts or "")


_TEXTS = ("text", "output_text")
"""Types of blocks that are the reply; thoughts come in blocks of other types."""


def _flat(content: Any) -> str:
    """The text of content that may come in blocks, and in blocks of blocks."""
    if isinstance(content, list):
        return "".join(map(_flat, content))
    if isinstance(content, Mapping):
        return _flat(content.get("text") or content.get("value"))
    return str(content or "")


def within(
    tokens: Sequence[lm15.TokenLogprob] | None, raw: str, text: str
) -> tuple[tuple[lm15.TokenLogprob, ...] | None, bool]:
    """The log-probabilities of the tokens of `raw` that lie wholly in `text`, and whether they cover all of it."""
    if not tokens:
        return None, True
    if text == raw or "".join(token.token for token in tokens) != raw:
        return tuple(tokens), text == raw
    start, at, kept = raw.rfind(text), 0, []
    for token in tokens:
        if start <= at and at + len(token.token) <= start + len(text):
            kept.append(token)
        at += len(token.token)
    return tuple(kept), "".join(token.token for token in kept) == text

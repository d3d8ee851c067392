"""OpenAI's wire format: what a request is written with, and what a reply is read by. Pure functions.

In: parts of a `dspy.lm15.Request`, or the JSON of a reply. Out: fields of a body, or parts of a `dspy.lm15.Response`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx
from dspy import lm15

from blendfilter import http
from blendfilter.lm.tokens import noted

SAMPLING = ("temperature", "top_p", "top_k", "frequency_penalty", "presence_penalty")
SETTINGS = (*SAMPLING, "seed", "service_tier", "store")
"""What a request's config and the wire call by the same name."""


def text_of(content: Any) -> str:
    """The text of a message's parts. Raises: UnsupportedFeatureError for an image, a tool's result and the like."""
    if isinstance(content, str):
        return content
    for part in content:
        if not isinstance(part, lm15.TextPart | lm15.ThinkingPart):
            raise lm15.UnsupportedFeatureError(f"this engine sends text only: no {part.type}", feature="messages")
    return "\n".join(part.text for part in content if isinstance(part, lm15.TextPart))


def json_of(reply: httpx.Response) -> dict[str, Any]:
    """The object that a reply's body is. Raises: `TransportError` where it is none."""
    try:
        data = http.json_of(reply.content)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise lm15.TransportError(f"the reply is not JSON, or is cut off ({len(reply.content)} bytes)")
    return data


def flat(content: Any) -> str:
    """The text of content that may come in blocks, and in blocks of blocks."""
    if isinstance(content, list):
        return "".join(flat(block.get("text") if isinstance(block, dict) else block) for block in content)
    return str(content or "")


def response_format(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """lm15's flat response format in the wire's nesting."""
    if wanted.get("type") != "json_schema":
        return dict(wanted)
    inner = {"name": "response", **{name: value for name, value in wanted.items() if name != "type"}}
    return {"type": "json_schema", "json_schema": inner}


def merged(body: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """`body` with `more` over it; objects (`chat_template_kwargs`) are joined, not replaced."""
    for name, value in more.items():
        old = body.get(name)
        body[name] = {**old, **value} if isinstance(old, dict) and isinstance(value, dict) else value
    return body


def scores(raw: Any, text: str, reply: str) -> tuple[tuple[lm15.TokenLogprob, ...] | None, bool]:
    """The log-probabilities of the tokens that lie wholly in `reply`, and whether they cover all of it."""
    tokens = _tokens(raw) if isinstance(raw, dict) else []
    if not tokens:
        return None, True
    if reply == text or "".join(token.token for token in tokens) != text:
        return tuple(tokens), reply == text
    start, at, kept = text.rfind(reply), 0, []
    for token in tokens:
        if start <= at and at + len(token.token) <= start + len(reply):
            kept.append(token)
        at += len(token.token)
    return tuple(kept), "".join(token.token for token in kept) == reply


def _tokens(raw: dict[str, Any]) -> list[lm15.TokenLogprob]:
    rows = raw.get("content")
    if rows is None:  # the completions endpoint: parallel lists, alternatives as {token: score}
        tops = raw.get("top_logprobs") or [None] * len(raw.get("tokens") or [])
        rows = [
            {
                "token": token,
                "logprob": score,
                "top_logprobs": [{"token": t, "logprob": s} for t, s in (top or {}).items()],
            }
            for token, score, top in zip(raw.get("tokens") or [], raw.get("token_logprobs") or [], tops, strict=False)
        ]
    return [
        lm15.TokenLogprob(
            token=row["token"],
            logprob=row["logprob"],
            top=tuple(lm15.TopLogprob(t["token"], t["logprob"]) for t in row.get("top_logprobs") or ()),
        )
        for row in rows
        if row.get("logprob") is not None
    ]


def usage_of(usage: Mapping[str, Any]) -> lm15.Usage:
    """Tokens as far as they are told; what is no count is unknown, never 0."""
    cached = object_of(usage.get("prompt_tokens_details")).get("cached_tokens")
    return lm15.Usage(
        input_tokens=_count(usage.get("prompt_tokens")),
        output_tokens=_count(usage.get("completion_tokens")),
        cache_read_tokens=_count(usage.get("prompt_cache_hit_tokens") if cached is None else cached),  # DeepSeek's name
        reasoning_tokens=_count(object_of(usage.get("completion_tokens_details")).get("reasoning_tokens")),
    )


def no_counts(usage: Mapping[str, Any]) -> dict[str, str]:
    """What stands in the place of a count and is none, by the name that records have for it."""
    told = {name: usage.get(field) for name, field in _COUNTS.items()}
    return {name: noted(value) for name, value in told.items() if value is not None and _count(value) is None}


_COUNTS = {"tokens_in": "prompt_tokens", "tokens_out": "completion_tokens"}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def object_of(value: Any) -> Mapping[str, Any]:
    """`value` where it is an object, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def adaptations(config: lm15.Config, body: Mapping[str, Any]) -> tuple[lm15.Adaptation, ...]:
    """What was asked and not sent, for DSPy's history: a temperature that a reasoning model refuses, say."""
    unsent = [name for name in (*SETTINGS, "response_format") if getattr(config, name) is not None and name not in body]
    if config.stop and "stop" not in body:
        unsent.append("stop")
    return tuple(
        lm15.Adaptation(
            field=f"config.{name}",
            action="client_side" if name == "stop" else "dropped",
            reason="the reply is cut on this end" if name == "stop" else "this model or server does not accept it",
        )
        for name in unsent
    )

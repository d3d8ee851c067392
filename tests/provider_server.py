"""A local server that plays the providers which DSPy's own client speaks to, each in its own protocol.

A thread on loopback: ``with playing() as server`` gives its `url`, and `server.seen` has every request.
`refuse` is what a provider refuses: a setting by its name on the wire, in that provider's words.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from http_server import Answer, Request, answering


class Seen(NamedTuple):
    """One request: where to, with which headers, and what it holds."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class ProviderServer:
    """What it says, what it refuses, and what it has seen.

    Args:
        reply: the text of each reply.
        failures: HTTP statuses that the first requests are answered with.
        refuse: the settings that are refused, as they stand in a request.
    """

    def __init__(self, reply: str, failures: Sequence[int], refuse: Sequence[str]) -> None:
        self.reply, self.failures, self.refuse = reply, list(failures), tuple(refuse)
        self.seen: list[Seen] = []
        self.url = ""

    def answer(self, seen: Seen) -> tuple[int, dict[str, Any]]:
        self.seen.append(seen)
        if self.failures:
            return failure(self.failures.pop(0), seen)
        refused = next((name for name in self.refuse if holds(seen.body, name)), None)
        if refused is not None:
            return 400, error_of("invalid_request_error", f"`{refused}` is deprecated for this model.")
        return 200, reply_for(seen, self.reply)


def failure(status: int, seen: Seen) -> tuple[int, dict[str, Any]]:
    """An error; one that refuses the key echoes it."""
    key = seen.headers.get("x-api-key") or seen.headers.get("api-key") or seen.headers.get("x-goog-api-key") or ""
    kinds = {401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error", 404: "not_found_error"}
    message = f"invalid key: {key}" if status == 401 else f"no luck: {status}"
    return status, error_of(kinds.get(status, "api_error"), message)


def error_of(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message, "code": kind}}


def holds(body: Any, name: str) -> bool:
    """Whether a field of that name stands anywhere in a request."""
    return isinstance(body, dict) and (name in body or any(holds(inner, name) for inner in body.values()))


def reply_for(seen: Seen, text: str) -> dict[str, Any]:
    """The reply in the protocol of whoever is spoken to: 1,000 tokens in and 100 out, of which Gemini thought 60."""
    if seen.path.endswith("/messages"):
        usage = {"input_tokens": 400, "cache_read_input_tokens": 600, "output_tokens": 100}
        return {
            "id": "m", "type": "message", "role": "assistant", "model": seen.body["model"],
            "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "usage": usage,
        }  # fmt: skip
    if "generateContent" in seen.path:
        content = {"role": "model", "parts": [{"text": text}]}
        counts = {"promptTokenCount": 1000, "candidatesTokenCount": 40, "thoughtsTokenCount": 60}
        return {
            "candidates": [{"index": 0, "content": content, "finishReason": "STOP"}],
            "usageMetadata": {**counts, "totalTokenCount": 1100},
        }
    if seen.path.endswith("/converse"):
        message = {"role": "assistant", "content": [{"text": text}]}
        usage = {"inputTokens": 1000, "outputTokens": 100, "totalTokens": 1100}
        return {"output": {"message": message}, "stopReason": "end_turn", "usage": usage, "metrics": {"latencyMs": 1}}
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}
    usage = {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100}
    model = str(seen.body.get("model") or "gpt-4o")
    return {
        "id": "c", "object": "chat.completion", "created": 0, "model": model, "choices": [choice], "usage": usage,
    }  # fmt: skip


@contextmanager
def playing(
    reply: str = "So the answer is 42.", *, failures: Sequence[int] = (), refuse: Sequence[str] = ()
) -> Iterator[ProviderServer]:
    """A running server, stopped at the end of the block."""
    provider = ProviderServer(reply, failures, refuse)

    def answer(request: Request) -> Answer:
        status, body = provider.answer(Seen(request.path.partition("?")[0], dict(request.headers), request.body))
        return Answer(status, body, {"retry-after": "0"} if status in (429, 529) else {})

    with answering(answer) as provider.url:
        yield provider

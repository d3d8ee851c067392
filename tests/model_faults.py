"""What a badly behaved model server answers: faults that pass, refusals that do not, replies that never arrive whole.

A prompt may ask for its own: ``[2 x 408]`` in it fails its first two attempts with that status, ``[9 x drop]`` its
first nine by a closed connection.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

FAULTS = ("rate-limit", "error", "drop", "html", "truncated")
"""The five ways in which a flaky server fails."""
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}
_ASKED = re.compile(r"\[(\d+) x ([\w-]+)\]")


@dataclass
class Reply:
    """What goes back; `drop`: nothing, the connection is closed; `torn`: half of it, then the connection is closed."""

    status: int = 200
    body: bytes = b"{}"
    kind: str = "application/json"
    headers: str = ""
    drop: bool = False
    torn: bool = False

    def wire(self) -> bytes:
        head = (
            f"HTTP/1.1 {self.status} {REASONS.get(self.status, 'Error')}\r\nContent-Type: {self.kind}\r\n"
            f"Content-Length: {len(self.body)}\r\n{self.headers}\r\n"
        )
        return head.encode() + (self.body[: len(self.body) // 2] if self.torn else self.body)


def refusal(status: int, message: str, *, param: str | None = None, code: str | None = None) -> Reply:
    """An error as OpenAI words it."""
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return Reply(status, json.dumps({"error": error}).encode())


def fault(name: str, retry_after: str = "") -> Reply:
    """The fault of this name: one of `FAULTS`, `torn`, `busy`, `context`, or a status."""
    if name in ("rate-limit", "429", "busy"):
        slow = refusal(503 if name == "busy" else 429, "Rate limit reached for requests", code="rate_limit_exceeded")
        slow.headers = f"Retry-After: {retry_after}\r\n" if retry_after else ""
        return slow
    if name == "context":
        message = "This model's maximum context length is 1000 tokens. However, your messages are longer."
        return refusal(400, message, param="messages", code="context_length_exceeded")
    pages = {
        "error": refusal(500, "The server had an error while processing your request."),
        "drop": Reply(drop=True),
        "html": Reply(200, b"<html><body>502 Bad Gateway</body></html>", "text/html"),
        "truncated": Reply(200, b'{"id": "cut", "choices": [{"message": {"content": "So the ans'),
        "torn": Reply(200, b'{"id": "cut", "choices": [{"message": {"content": "So the ans', torn=True),
    }
    return pages[name] if name in pages else refusal(int(name), f"The server says {name}.")


def asked_for(prompt: str, turn: int) -> str | None:
    """The fault that a prompt asks for in its `turn`-th attempt, by name."""
    found = _ASKED.search(prompt)
    return found[2] if found and turn <= int(found[1]) else None

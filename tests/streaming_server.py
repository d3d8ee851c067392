"""A model server that streams, and goes on with a streamed reply only once its reader has seen the beginning of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from http_server import Answer, answering

DIED = b'data: {"error": {"message": "the provider died", "code": 502}}\n\n'
PATIENCE = 20.0
"""Seconds that a reader has who has stopped; a reader who is there never needs them."""


class Streaming:
    """The server's address, what it was asked, and `heard`, which its reader sets.

    Args:
        reply: the pieces of a reply, by its prompt.
        wait_after: so many pieces are sent before the reader must have heard something.
        cut: of a first streamed reply, so many pieces are sent before the connection is closed.
        dies: of a first streamed reply, so many pieces are sent before an error, which is `dies_by`.
        plain: `stream` is ignored, as servers do that do not know it. refuses: a field that is refused.
    """

    def __init__(
        self, reply: Callable[[str], Sequence[str]], *, wait_after: int = 0, cut: int = 0, dies: int = 0,
        dies_by: bytes = DIED, plain: bool = False, refuses: str = "",
    ) -> None:  # fmt: skip
        self.reply, self.wait_after, self.cut, self.plain, self.refuses = reply, wait_after, cut, plain, refuses
        self.dies, self.dies_by = dies, dies_by
        self.heard = threading.Event()
        self.late = False
        self.bodies: list[dict[str, Any]] = []
        self.url = ""

    def answer(self, body: dict[str, Any], handler: BaseHTTPRequestHandler) -> Answer | None:
        self.bodies.append(body)
        chat = "messages" in body
        pieces = self.reply(body["messages"][-1]["content"] if chat else body["prompt"])
        usage = {"prompt_tokens": 7, "completion_tokens": len(pieces), "total_tokens": 7 + len(pieces)}
        if self.refuses and self.refuses in body:
            error = {"message": f"Unsupported parameter: '{self.refuses}'", "param": self.refuses}
            return Answer(400, {"error": {**error, "code": "unsupported_parameter"}})
        if self.plain or not body.get("stream"):
            text = "".join(pieces)
            said = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
            choice = {"index": 0, "finish_reason": "stop", **said}
            return Answer(200, {"id": "1", "choices": [choice], "usage": usage})
        handler.send_response(200)
        handler.send_header("Content-Type", "text/event-stream")
        handler.send_header("Connection", "close")
        handler.end_headers()
        for at, piece in enumerate(pieces):
            if self.cut and at == self.cut:
                self.cut = 0
                handler.close_connection = True
                return None
            if self.dies and at == self.dies:
                self.dies = 0
                handler.wfile.write(self.dies_by)
                break
            if at and at == self.wait_after and not self.heard.wait(PATIENCE):
                self.late = True
            said = {"delta": {"content": piece}} if chat else {"text": piece}
            event(handler, {"id": "1", "choices": [{"index": 0, "finish_reason": None, **said}]})
        else:
            last: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
            event(handler, {"id": "1", "choices": [{"index": 0, "finish_reason": "stop", **last}]})
            if body.get("stream_options"):
                event(handler, {"id": "1", "choices": [], "usage": usage})
        handler.wfile.write(b"data: [DONE]\n\n")
        handler.close_connection = True
        return None


def event(handler: BaseHTTPRequestHandler, data: dict[str, Any]) -> None:
    handler.wfile.write(f"data: {json.dumps(data)}\n\n".encode())
    handler.wfile.flush()


@contextmanager
def streaming(reply: Callable[[str], Sequence[str]], **how: Any) -> Iterator[Streaming]:
    """Such a server, on a thread, inside the block."""
    model = Streaming(reply, **how)
    with answering(lambda request: model.answer(request.body, request.handler)) as url:
        model.url = f"{url}/v1"
        yield model

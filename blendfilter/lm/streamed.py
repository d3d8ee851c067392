"""Replies while they are written: what a server sends in pieces, and what of a reply is certain before it is whole.

Where somebody listens (`LISTENER`), an engine asks its server for a stream and says what has come. The response is
assembled and journaled as any other; a listener gets each text once, whatever attempts it takes, and never what is cut
off or thought. A reply that comes whole (out of the journal, from a model in this process) is passed on at once, in
pieces as small as a server's.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any

from blendfilter import http, secrets
from blendfilter.lm.profiles import cut_at_stop, split_thinking

logger = logging.getLogger(__name__)


class ReplyListener:
    """Passes a reply on to `send`, in pieces that are part of it for certain."""

    def __init__(self, send: Callable[[str], Awaitable[Any]]) -> None:
        self._send = send
        self._passed = ""

    async def so_far(self, text: str, stop: Sequence[str]) -> None:
        """An attempt has come to `text`, all that it said from its beginning."""
        await self._pass(certain(text, stop))

    async def whole(self, text: str) -> None:
        """The reply is `text`."""
        if not text.startswith(self._passed):
            logger.warning("a reply came to something else than what was streamed of it: the prediction has it whole")
        await self._pass(text)

    async def _pass(self, text: str) -> None:
        if len(text) > len(self._passed) and text.startswith(self._passed):
            piece, self._passed = text[len(self._passed) :], text
            for token in _TOKEN.findall(piece):
                await self._send(token)


_TOKEN = re.compile(r"\s*(?:\w+|[^\w\s]+)|\s+")
"""About what servers send at once. DSPy's listeners miss a field that ends in the piece in which it begins."""

LISTENER: ContextVar[ReplyListener | None] = ContextVar("blendfilter_listener", default=None)
"""The listener of the call at hand; without one no stream is requested."""


def certain(text: str, stop: Sequence[str]) -> str:
    """What a reply says for certain that has come to `text`: no thoughts, nothing that may be cut at a stop string, and
    no secret.

    >>> certain("<think>a or b?</think>Tolm", ["\\n"]), certain("Tolm\\nQuest", ["\\nQuestion:"]), certain("So <th", [])
    ('Tolm', 'Tolm', 'So ')
    """
    reply = secrets.hidden_so_far(cut_at_stop(split_thinking(text)[1], stop))
    if (opened := _MAY_BE_A_TAG.search(reply)) is not None:
        reply = reply[: opened.start()]
    for length in range(min(len(reply), max(map(len, stop), default=0)), 0, -1):
        if any(string.startswith(reply[-length:]) for string in stop):
            return reply[:-length]
    return reply


_MAY_BE_A_TAG = re.compile(r"[<\[◁][^>\]▷]{0,24}\Z")
"""The beginning of what may come to be a tag around thoughts."""


class ReplyEvents:
    """A reply in server-sent events, as OpenAI's interface sends them; `take` what has come of its body by then."""

    def __init__(self) -> None:
        self.text = ""
        self.data: dict[str, Any] = {}
        """The reply as it would have come in one piece; empty where it is no stream, or had an error."""
        self.over = False
        self._read = 0
        self._thought = ""
        self._logprobs: dict[str, list[Any]] = {}

    def take(self, body: bytes | bytearray) -> None:
        """Read the lines that are new and whole. Raises: ValueError for one that is no event."""
        end = body.rfind(b"\n") + 1
        for line in bytes(body[self._read : end]).splitlines():
            name, _, value = line.partition(b":")
            if name != b"data":
                continue
            if value.strip() == b"[DONE]":
                self.over = True
            elif isinstance(event := http.json_of(value), dict):
                self._event(event)
        self._read = end

    def _event(self, event: dict[str, Any]) -> None:
        if event.get("error") and not self.data.get("choices"):
            self.data = event
            return
        choices = event.pop("choices", None) or []
        self.data |= {name: value for name, value in event.items() if value is not None}
        for choice in choices:
            if choice.get("index"):  # another reply to the same request
                continue
            delta = choice.get("delta") or {}
            self.text += delta.get("content") or choice.get("text") or ""
            self._thought += delta.get("reasoning_content") or delta.get("reasoning") or ""
            for key, values in (choice.get("logprobs") or {}).items():
                if isinstance(values, list):
                    self._logprobs.setdefault(key, []).extend(values)
            finish = choice.get("finish_reason")
            self.over = self.over or finish is not None
            self.data["choices"] = [
                {
                    "message": {"content": self.text, "reasoning_content": self._thought},
                    "text": self.text,
                    "finish_reason": finish,
                    "logprobs": self._logprobs or None,
                }
            ]

    def whole(self) -> bytes:
        """The reply as a body in one piece; cut off where its end never came."""
        return json.dumps(self.data).encode() if self.over or "error" in self.data else b""

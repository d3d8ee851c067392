"""Replies while they are written: what a server sends in pieces, and what of a reply is certain before it is whole.

With a listener (`Asker.listener`), an engine asks its server for a stream and says what has come. The response is
assembled and journaled as any other; a listener gets each text once, whatever attempts it takes, and never what is cut
off or thought. A reply that comes whole (out of the journal, from a model in this process) is passed on at once, in
pieces as small as a server's.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from blendfilter import http, secrets
from blendfilter.lm.outcome import OF_A_REPLY, text_and_thoughts
from blendfilter.lm.profiles import cut_at_stop, reply_so_far

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
            logger.warning(
                "a reply came to something else than what was streamed of it: the prediction has it whole"
            )
        await self._pass(text)

    async def _pass(self, text: str) -> None:
        if len(text) > len(self._passed) and text.startswith(self._passed):
            piece, self._passed = text[len(self._passed) :], text
            for token in _TOKEN.findall(piece):
                await self._send(token)


_TOKEN = re.compile(r"\s*(?:\w+|[^\w\s]+)|\s+")
"""About what servers send at once. DSPy's listeners miss a field that ends in the piece in which it begins."""


def certain(text: str, stop: Sequence[str]) -> str:
    """What a reply says for certain that has come to `text`: no thoughts, nothing that may be cut at a stop string, and
    no secret.

    >>> certain("<think>a or b?</think>Tolm", ["\\n"]), certain("Tolm\\nQuest", ["\\nQuestion:"]), certain("So <th", [])
    ('Tolm', 'Tolm', 'So')
    """
    reply = secrets.hidden_so_far(cut_at_stop(reply_so_far(text), stop))
    for length in range(min(len(reply), max(map(len, stop), default=0)), 0, -1):
        if any(string.startswith(reply[-length:]) for string in stop):
            return reply[:-length]
    return reply


_FIELDS = (b"", b"data", b"event", b"id", b"retry")
"""Of server-sent events; comments, which keep a connection alive, have no name."""


class ReplyEvents:
    """A reply in server-sent events, as OpenAI's interface sends them; `take` what has come of its body by then.

    All that the events state is handed on in one body, for whoever reads replies to judge: an error beside the text
    that came before it, and the last finish reason that was stated.
    """

    def __init__(self) -> None:
        self.text = ""
        self.data: dict[str, Any] = {}
        """The reply as it would have come in one piece; empty where it is no stream."""
        self._done = self._unreadable = self._says_how_it_ends = False
        self._read = 0
        self._kind = b""
        self._thoughts = ""
        self._choice: dict[str, Any] = {}
        self._logprobs: dict[str, list[Any]] = {}

    def take(self, body: bytes | bytearray, *, whole: bool = False) -> None:
        """Read the lines that are new and have ended; of a `whole` body the last one too."""
        end = len(body) if whole else body.rfind(b"\n") + 1
        lines = bytes(body[self._read : end]).splitlines()
        self._read = end
        for line in lines:
            name, _, value = line.partition(b":")
            if not line:
                self._kind = b""
            elif name == b"event":
                self._kind = value.strip()
            elif (
                name == b"data" and value.strip()
            ):  # some servers keep a connection alive with empty ones
                self._take_event(value.strip())
            elif name == b"error":  # llama.cpp's field
                self._kind = name
                self._take_event(value.strip())
            elif name not in _FIELDS:  # an error page in the middle of a stream
                self._unreadable = self._unreadable or not self._is_over()

    def _take_event(self, value: bytes) -> None:
        if value == b"[DONE]":
            self._done = True
            return
        try:
            self._event(http.json_of(value))
        except OF_A_REPLY:  # what it said is missing from the text, unless that had ended
            self._unreadable = self._unreadable or not self._is_over()

    def _is_over(self) -> bool:
        """Whether the reply has ended: by its finish reason or, from a server that states none, by `[DONE]`."""
        return "finish_reason" in self._choice or (self._done and not self._says_how_it_ends)

    def _event(self, event: dict[str, Any]) -> None:
        is_bare = (
            not event.get("choices")
            and not event.get("usage")
            and ("message" in event or "detail" in event)
        )
        if self._kind == b"error" or event.get("object") == "error" or is_bare:
            event = {"error": event.get("error") or event}
        choices = event.pop("choices", None) or []
        self.data |= {name: value for name, value in event.items() if value is not None}
        for choice in choices:
            if choice.get("index"):  # another reply to the same request
                continue
            text, thoughts = text_and_thoughts(choice.pop("delta", None) or {})
            self.text += text or choice.get("text") or ""
            self._thoughts += thoughts
            for key, values in (choice.get("logprobs") or {}).items():
                if isinstance(values, list):
                    self._logprobs.setdefault(key, []).extend(values)
            self._says_how_it_ends |= "finish_reason" in choice
            self._choice |= {
                name: value for name, value in choice.items() if value not in (None, "")
            }
            self.data["choices"] = [
                {
                    **self._choice,
                    "message": {"content": self.text, "reasoning_content": self._thoughts},
                    "text": self.text,
                    "logprobs": self._logprobs or None,
                }
            ]

    def whole(self) -> bytes:
        """The reply as a body in one piece; empty where its end never came, or a part of it could not be read."""
        ended = self._is_over() and not self._unreadable
        return json.dumps(self.data).encode() if ended or self.data.get("error") else b""

"""The HTTP clients of one model server, kept for each event loop.

In: a path and a body. Out: the raw reply, of a bounded size; the errors are the `openai` client's.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
import openai

from blendfilter import http


class Clients:
    """`openai` clients, kept for each event loop: a client's connections belong to the loop that opened them.

    Each client carries one call at a time. A pool looks over all its connections for every call, so one client with 32
    in flight costs about twice the processor time of 32 clients with one connection each.
    """

    def __init__(self, base_url: str, key: str, timeout: float, headers: Mapping[str, str] | None) -> None:
        self._settings: dict[str, Any] = {
            "base_url": base_url,
            "api_key": key or "none",  # never None: the client would look for one in the environment
            "timeout": httpx.Timeout(timeout, connect=min(timeout, 10.0)),
            "max_retries": 0,
            "default_headers": dict(headers or {}),
        }
        self._lock = threading.Lock()  # loops of several threads may come at once
        self._trust: ssl.SSLContext | None = None
        self._idle: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[openai.AsyncOpenAI]] = (
            weakref.WeakKeyDictionary()
        )

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        """The raw reply: nothing of it is parsed but what we read."""
        return await self._through(lambda client: client.post(path, body=body, cast_to=httpx.Response))

    async def get(self, path: str) -> httpx.Response:
        """The same without a body."""
        return await self._through(lambda client: client.get(path, cast_to=httpx.Response))

    async def _through(self, call: Callable[[openai.AsyncOpenAI], Awaitable[httpx.Response]]) -> httpx.Response:
        loop = asyncio.get_running_loop()
        idle = self._idle.get(loop)
        if idle is None:
            with self._lock:
                for dead in [known for known in self._idle if known.is_closed()]:
                    del self._idle[dead]
                idle = self._idle[loop] = []
        client = idle.pop() if idle else self._new()
        try:
            return await call(client)
        finally:
            idle.append(client)

    def _new(self) -> openai.AsyncOpenAI:
        if self._trust is None:
            self._trust = httpx.create_ssl_context()  # some 20 ms: once for all clients
        client = http.AsyncClient(verify=self._trust, timeout=self._settings["timeout"])
        return openai.AsyncOpenAI(http_client=client, **self._settings)

    async def aclose(self) -> None:
        for client in self._idle.pop(asyncio.get_running_loop(), []):
            await client.close()

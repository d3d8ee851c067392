"""The HTTP clients of a model server: `openai`'s over httpx's, their replies bounded.

The two take most of a second to import, so `OpenAIEngine` imports this file when it is made: the offline reader and a
local model do without.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import httpx
import openai

from blendfilter import http

REDIRECTS = 5
"""How often one request follows a redirect."""
_OF_THE_BODY = frozenset({b"content-encoding", b"content-length", b"content-type", b"transfer-encoding"})


class HTTPClients:
    """`openai` clients of one server, kept for each event loop: a connection belongs to the loop that opened it.

    Each client carries one call at a time. A pool looks over all its connections for every call, so one client with 32
    in flight costs about twice the processor time of 32 clients with one connection each.
    """

    def __init__(self, base_url: str, key: str, timeout: float, headers: Mapping[str, str]) -> None:
        self._settings: dict[str, Any] = {
            "base_url": base_url,
            "api_key": key or "none",  # never None: the client would look for one in the environment
            "timeout": httpx.Timeout(timeout, connect=min(timeout, 10.0)),
            "max_retries": 0,
            "default_headers": dict(headers),
        }
        self._lock = threading.Lock()  # loops of several threads may come at once
        self._trust: ssl.SSLContext | None = None
        self._idle = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, list[openai.AsyncOpenAI]]()

    def for_files(self) -> openai.AsyncOpenAI:
        """A client for the server's files and batches, to be closed by the caller; it tries faults again by itself."""
        return openai.AsyncOpenAI(**{**self._settings, "max_retries": 5})

    async def send(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        """The raw reply, of a bounded size. Raises: the `openai` client's errors."""
        loop = asyncio.get_running_loop()
        idle = self._idle.get(loop)
        if idle is None:
            with self._lock:
                for dead in [known for known in self._idle if known.is_closed()]:
                    del self._idle[dead]
                idle = self._idle[loop] = []
        if idle:
            client = idle.pop()
        else:
            self._trust = self._trust or httpx.create_ssl_context()  # some 20 ms: once for all clients
            inner = BoundedClient(verify=self._trust, timeout=self._settings["timeout"])
            client = openai.AsyncOpenAI(http_client=inner, **self._settings)
        try:
            if method == "GET":
                return await client.get(path, cast_to=httpx.Response)
            return await client.post(path, body=body, cast_to=httpx.Response)
        finally:
            idle.append(client)


class BoundedClient(httpx.AsyncClient):
    """An `httpx.AsyncClient` whose replies are bounded: read whole, at most `http.LARGEST` bytes unpacked.

    It follows redirects by itself, without reading what comes with them.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(headers={"Accept-Encoding": http.PACKINGS}, **settings)

    async def send(self, request: httpx.Request, **settings: Any) -> httpx.Response:
        """The reply, whole. Raises: TooLarge, and what httpx raises."""
        settings |= {"stream": True, "follow_redirects": False}
        for _ in range(REDIRECTS + 1):
            reply = await super().send(request, **settings)
            if reply.next_request is None:
                break
            request = reply.next_request
            await reply.aclose()
        else:
            raise httpx.TooManyRedirects(f"more than {REDIRECTS} redirects, one after another", request=request)
        try:
            body, arriving = http.Body(reply.headers), http.ARRIVING.get()
            async for piece in reply.aiter_raw():
                body.add(piece)
                if arriving is not None and reply.status_code == httpx.codes.OK:
                    await arriving(body.content)
        finally:
            await reply.aclose()
        # The body is UTF-8 whatever its header says: it may name any codec.
        headers = [pair for pair in reply.headers.raw if pair[0].lower() not in _OF_THE_BODY]
        return httpx.Response(
            reply.status_code,
            headers=headers,
            content=bytes(body.content),
            request=reply.request,
            extensions=reply.extensions,
        )

"""The HTTP clients of a model server, their replies bounded: aiohttp's, on a user's own loop `openai`'s over httpx's.

aiohttp takes a seventh of the processor time of the other two for a call, and its session has to be closed before its
loop ends: so it is the client on the package's own loop, where all runs and synchronous calls are. On a loop of the
user's, which ends without a word to us, `openai`'s clients are kept, which need no closing. Either gives the same
replies and raises the same errors: `openai`'s where the server refuses, httpx's where there is no reply.

They take most of a second to import, so `OpenAIEngine` imports this file when it is made: the offline reader and a
local model do without.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import ssl
import threading
import weakref
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import httpx
import openai

from blendfilter import aio, http

REDIRECTS = 5
"""How often one request follows a redirect."""
_OF_THE_BODY = frozenset(
    {b"content-encoding", b"content-length", b"content-type", b"transfer-encoding"}
)


class HTTPClients:
    """`openai` clients of one server, kept for each event loop: a connection belongs to the loop that opened it.

    Each client carries one call at a time. A pool looks over all its connections for every call, so one client with 32
    in flight costs about twice the processor time of 32 clients with one connection each.
    """

    def __init__(self, base_url: str, key: str, timeout: float, headers: Mapping[str, str]) -> None:
        self._settings: dict[str, Any] = {
            "base_url": base_url,
            "api_key": key
            or "none",  # never None: the client would look for one in the environment
            "timeout": httpx.Timeout(timeout, connect=min(timeout, 10.0)),
            "max_retries": 0,
            "default_headers": dict(headers),
        }
        self._thin = _ThinClient(base_url, key, timeout, headers)
        self._lock = threading.Lock()  # loops of several threads may come at once
        self._trust: ssl.SSLContext | None = None
        self._idle = weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, list[openai.AsyncOpenAI]
        ]()

    def for_files(self) -> openai.AsyncOpenAI:
        """A client for the server's files and batches, to be closed by the caller; it tries faults again by itself."""
        return openai.AsyncOpenAI(**{**self._settings, "max_retries": 5})

    async def send(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        """The raw reply, of a bounded size. Raises: the `openai` client's errors, and httpx's."""
        loop = asyncio.get_running_loop()
        if aio.on_loop_thread():
            return await self._thin.send(method, path, body)
        idle = self._idle.get(loop)
        if idle is None:
            with self._lock:
                for dead in [known for known in self._idle if known.is_closed()]:
                    del self._idle[dead]
                idle = self._idle[loop] = []
        if idle:
            client = idle.pop()
        else:
            self._trust = (
                self._trust or httpx.create_ssl_context()
            )  # some 20 ms: once for all clients
            inner = BoundedClient(verify=self._trust, timeout=self._settings["timeout"])
            client = openai.AsyncOpenAI(http_client=inner, **self._settings)
        try:
            if method == "GET":
                return await client.get(path, cast_to=httpx.Response)
            return await client.post(path, body=body, cast_to=httpx.Response)
        finally:
            idle.append(client)


class _ThinClient:
    """One aiohttp session for a server, on the package's loop."""

    def __init__(self, base_url: str, key: str, timeout: float, headers: Mapping[str, str]) -> None:
        self._base, self._timeout = base_url.rstrip("/"), timeout
        self._headers = {
            "Accept": "application/json",
            "Accept-Encoding": http.PACKINGS,
            "Authorization": f"Bearer {key or 'none'}",
            "Content-Type": "application/json",
            "User-Agent": "blendfilter",
            **headers,
        }
        self._session: aiohttp.ClientSession | None = None
        self._requests: dict[tuple[str, str], httpx.Request] = {}
        self._proxy: str | None = None
        self._of: asyncio.AbstractEventLoop | None = None

    async def send(self, method: str, path: str, body: dict[str, Any] | None) -> httpx.Response:
        """As `HTTPClients.send`."""
        url = (
            path if "://" in path else self._base + path
        )  # another path of the server's own, beside /v1
        content = (
            None if body is None else json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
        )
        if (
            request := self._requests.get((method, path))
        ) is None:  # what replies and errors name; it carries nothing
            request = self._requests[method, path] = httpx.Request(method, url)
        try:
            session = self._opened()
            async with session.request(
                method,
                url,
                data=content,
                headers=self._headers,
                proxy=self._proxy,
                max_redirects=REDIRECTS,
            ) as reply:
                whole, arriving = http.Body(reply.headers), http.ARRIVING.get()
                async for piece in reply.content.iter_any():
                    whole.add(piece)
                    if arriving is not None and reply.status == httpx.codes.OK:
                        await arriving(whole.content)
            kept = [pair for pair in reply.raw_headers if pair[0].lower() not in _OF_THE_BODY]
            found = httpx.Response(
                reply.status, headers=kept, content=bytes(whole.content), request=request
            )
        except http.TooLarge as error:
            fault: Exception = openai.APIConnectionError(request=request)
            fault.__cause__ = error
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            fault = _fault(error, request)
        else:
            if found.is_success:
                return found
            fault = _refusal(found)
        raise fault  # outside of the block: aiohttp's errors hold the request's headers, and with them the key

    def _opened(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if (
            self._session is None or self._of is not loop
        ):  # the first call, or the first after a fork
            place = urlsplit(self._base)
            through = None if proxy_bypass(place.hostname or "") else getproxies().get(place.scheme)
            self._proxy = through or None
            # Over http too certificates are looked at: it may redirect to https.
            trust = httpx.create_ssl_context() if place.scheme == "https" else True
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=trust, keepalive_timeout=5.0),
                timeout=aiohttp.ClientTimeout(
                    total=None, sock_connect=min(self._timeout, 10.0), sock_read=self._timeout
                ),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
            self._of = loop
            _SESSIONS[self._session] = os.getpid()
            weakref.finalize(self, _close, self._session, loop)
        return self._session


_SESSIONS: dict[aiohttp.ClientSession, int] = {}
"""Those that are open, and the process that opened each: a forked one leaves its parent's alone, and keeps them."""


def _close(session: aiohttp.ClientSession, loop: asyncio.AbstractEventLoop) -> None:
    """Close a session that nobody uses any more, wherever that is noticed."""
    if _SESSIONS.get(session) == os.getpid() and loop.is_running():
        del _SESSIONS[session]
        asyncio.run_coroutine_threadsafe(session.close(), loop)


@atexit.register
def _close_all() -> None:
    for session, process in [*_SESSIONS.items()]:  # other threads may close some meanwhile
        if process == os.getpid() and not session.closed and session.connector is not None:
            session.connector._close()  # at once: nothing runs any more that could wait


def _fault(error: Exception, request: httpx.Request) -> Exception:
    """What httpx would have raised."""
    said = str(error) or type(error).__name__
    kinds: list[tuple[Any, type[httpx.RequestError]]] = [
        (aiohttp.ConnectionTimeoutError, httpx.ConnectTimeout),
        (TimeoutError, httpx.ReadTimeout),
        (aiohttp.ClientConnectorError | aiohttp.ClientProxyConnectionError, httpx.ConnectError),
        (aiohttp.TooManyRedirects, httpx.TooManyRedirects),
    ]
    if isinstance(error, aiohttp.TooManyRedirects):
        said = f"more than {REDIRECTS} redirects, one after another"
    if isinstance(error, aiohttp.InvalidURL):
        return httpx.InvalidURL(said)
    kind = next(
        (kind for known, kind in kinds if isinstance(error, known)), httpx.RemoteProtocolError
    )
    return kind(said, request=request)


def _refusal(reply: httpx.Response) -> openai.APIStatusError:
    """What `openai`'s client would have raised."""
    try:
        body = http.json_of(reply.content)
    except ValueError:
        body = reply.text.strip()
    said = body.get("error", body) if isinstance(body, Mapping) else body
    return openai.APIStatusError(f"HTTP {reply.status_code}", response=reply, body=said)


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
            raise httpx.TooManyRedirects(
                f"more than {REDIRECTS} redirects, one after another", request=request
            )
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

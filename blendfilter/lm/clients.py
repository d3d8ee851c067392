"""The HTTP client of a model server: lm15's asynchronous transport, with replies of a bounded size.

A call takes a third of the processor time of `openai`'s client over aiohttp, and a fifth of the same over httpx.
Connections belong to the event loop that opened them: each loop has a transport of its own, which closes them by itself
once its loop is gone. Redirects are followed here, because the transport leaves them alone.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import certifi

from blendfilter import http
from blendfilter.dspy_surface import AsyncTransport, TransportRequest, lm15
from blendfilter.lm import faults

if TYPE_CHECKING:
    import openai

REDIRECTS = 5
"""How often one request follows a redirect."""
_MOVED = frozenset({301, 302, 303, 307, 308})
_SAME_METHOD = frozenset({307, 308})
_NO_LOGIN = frozenset({"Accept", "Accept-Encoding", "Content-Type", "User-Agent"})
"""Headers that another server may see, to which a redirect leads; any other may hold a key."""

Arriving = Callable[[bytearray], Awaitable[None]]
"""Called with all that has come of a good reply, each time that it has grown."""


class ServerReply(NamedTuple):
    """The body of a good reply, and in which batch and at which share of the price it was given."""

    content: bytes
    batch: Mapping[str, Any] = {}


class ServerClient:
    """Requests to one server.

    Args:
        base_url: up to and including ``/v1``.
        key: sent as a bearer token.
        timeout: seconds until the next piece of a reply.
        headers: sent with every request, in the place of those that are sent otherwise.
    """

    def __init__(
        self, base_url: str, key: str, timeout: float, headers: Mapping[str, str]
    ) -> None:
        self._base = base_url.rstrip("/")
        self._key = key or "none"
        self._timeout = timeout
        self._login = dict(headers)
        self._headers = {
            "Accept": "application/json",
            "Accept-Encoding": http.PACKINGS,
            "Authorization": f"Bearer {self._key}",
            "Content-Type": "application/json",
            "User-Agent": "blendfilter",
            **headers,
        }
        place = urlsplit(self._base)
        by_proxy = not proxy_bypass(place.hostname or "")
        self._proxy = getproxies().get(place.scheme) if by_proxy else None
        self._transports: dict[asyncio.AbstractEventLoop, AsyncTransport] = {}

    async def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        arriving: Arriving | None = None,
    ) -> ServerReply:
        """The reply to a request at `path`, or at another address of the server's. Raises: lm15 errors."""
        url = path if "://" in path else self._base + path
        try:
            content = b""
            if body is not None:
                content = json.dumps(body, ensure_ascii=False, allow_nan=False).encode()
            request = TransportRequest(method, url, list(self._headers.items()), content)
            return ServerReply(await self._received(request, arriving))
        except faults.OF_A_TRANSPORT as error:
            fault = faults.translate(error, key=self._key)
        raise fault  # outside of the block: the error's frames hold the request's headers, and with them the key

    def for_files(self) -> openai.AsyncOpenAI:
        """`openai`'s client for the server's files and batches, to be closed by the caller; it tries faults again."""
        import httpx
        import openai

        return openai.AsyncOpenAI(
            base_url=self._base,
            api_key=self._key,
            timeout=httpx.Timeout(self._timeout, connect=min(self._timeout, 10.0)),
            max_retries=5,
            default_headers=self._login,
        )

    async def _received(self, request: TransportRequest, arriving: Arriving | None) -> bytes:
        for _ in range(REDIRECTS + 1):
            async with self._transport().stream(request) as reply:
                place = reply.header("location")
                if reply.status in _MOVED and place:
                    request = _moved(request, reply.status, place)
                    continue
                if "," in (reply.header("content-encoding") or ""):
                    raise ValueError("the reply is packed more than once")
                content = bytearray()
                async for piece in reply:
                    if len(content) + len(piece) > http.LARGEST:
                        raise http.TooLarge(http.LARGEST)
                    content += piece
                    if arriving is not None and reply.status == 200:
                        await arriving(content)
            if 200 <= reply.status < 300:
                return bytes(content)
            headers = {name.lower(): value for name, value in reply.headers}
            raise faults.of_reply(reply.status, bytes(content), headers, key=self._key)
        raise lm15.InvalidRequestError(
            f"more than {REDIRECTS} redirects, one after another: check the address"
        )

    def _transport(self) -> AsyncTransport:
        """The running loop's transport; those of loops that are over are let go."""
        running = asyncio.get_running_loop()
        if running not in self._transports:
            for loop in [*self._transports]:
                if loop.is_closed():
                    self._transports.pop(loop, None)
            self._transports[running] = AsyncTransport(
                connect_timeout=min(self._timeout, 10.0),
                read_timeout=self._timeout,
                # How many calls are in flight is the gate's business.
                max_connections=100_000,
                pool_timeout=None,
                # The environment is read once: to read it for each request takes longer than to send it.
                trust_env=False,
                proxy=self._proxy,
                ca_bundle=certifi.where(),
            )
        return self._transports[running]


def _moved(request: TransportRequest, status: int, place: str) -> TransportRequest:
    """The request that a redirect asks for; another server gets no login."""
    url = urljoin(request.url, place)
    if status not in _SAME_METHOD and request.method != "GET":
        request = replace(request, method="GET", body=b"")
    if urlsplit(url)[:2] != urlsplit(request.url)[:2]:
        headers = [pair for pair in request.headers if pair[0] in _NO_LOGIN]
        request = replace(request, headers=headers)
    return replace(request, url=url)

"""The application: an index behind five routes.

==========================  ===================================================================
``GET, POST /``             one query, in `dspy.ColBERTv2`'s format (also at ``/api/search``)
``POST /search``            queries in a batch; whole passages and the index's fingerprint
``GET /health``             liveness; needs no token
``GET /info``               the index, its fingerprint, limits and counters
==========================  ===================================================================

Every error is ``{"error": true, "message": one line}``.

When another index takes the place of the served one in its folder, the server opens it and serves it from then on
(`/info` and every batch's reply name its fingerprint). The old index answers the requests in flight.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import logging
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib.metadata import version

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from blendfilter.aio import Threads, in_thread
from blendfilter.errors import BadArgument
from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.remote import SERVER
from blendfilter.server.batching import Batcher
from blendfilter.server.exchange import (
    Json,
    ServerLimits,
    many_queries,
    one_query,
    refusal,
    results,
    topk,
    without_paths,
)

LOOK = 1.0  # seconds between two looks at the index's folder
LOOK_AFTER_FAILURE = 10.0

_LOCAL_HOST = re.compile(r"(?:localhost|127(?:\.\d{1,3}){3}|\[::1\])(?::\d+)?", re.IGNORECASE)

logger = logging.getLogger(__name__)


def application(
    index: Retriever, limits: ServerLimits | None = None, *, token: str | None = None
) -> Starlette:
    """The application that serves `index`. If there is a `token`, every request must carry it."""
    limits = limits or ServerLimits()
    service = Service(index, limits)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(service.watch())
        yield
        watching.cancel()
        service.batcher.close()

    app = Starlette(
        routes=[
            Route("/", service.colbert, methods=["GET", "POST"]),
            Route("/api/search", service.colbert, methods=["GET", "POST"]),
            Route("/search", service.search, methods=["POST"]),
            Route("/health", service.health, methods=["GET"]),
            Route("/info", service.info, methods=["GET"]),
        ],
        middleware=[Middleware(AccessGuard, token=token)],
        exception_handlers={
            HTTPException: lambda _, error: refusal(
                error.status_code, error.detail, error.headers
            ),
            BadArgument: lambda _, error: refusal(400, str(error)),
            asyncio.QueueFull: lambda *_: refusal(
                503, "too many queries are waiting: try again", {"Retry-After": "1"}
            ),
            ClientDisconnect: lambda *_: refusal(400, "the request broke off"),
            # the reasons are for this side's log alone; Starlette raises the error on, and uvicorn logs it
            Exception: lambda *_: refusal(500, "the search failed"),
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


class Service:
    """The routes."""

    def __init__(self, index: Retriever, limits: ServerLimits) -> None:
        self.index, self.limits = index, limits
        self.batcher = Batcher(max_batch=limits.max_batch, max_waiting=limits.max_waiting)

    async def colbert(self, request: Request) -> Json:
        """One query. An address with ``?index=FINGERPRINT`` is good for that index only: DSPy caches passages under
        the server's address, and would not notice another index behind it."""
        index = self.index
        if request.query_params.get("index", index.fingerprint) != index.fingerprint:
            raise HTTPException(
                409, f"this server's index is {index.fingerprint}, not the one in the address"
            )
        found = await self._found(index, request, *await one_query(request, self.limits))
        return Json(topk(found[0]))

    async def search(self, request: Request) -> Json:
        """A batch of queries."""
        index = self.index
        found = await self._found(index, request, *await many_queries(request, self.limits))
        return Json(results(index.fingerprint, found))

    async def health(self, _: Request) -> Json:
        """The server is there."""
        return Json({"status": "ok"})

    async def info(self, _: Request) -> Json:
        """The served index, limits and counters."""
        index = self.index
        about = {
            "server": SERVER,
            "version": version("blendfilter"),
            "fingerprint": index.fingerprint,
            "passages": passages_of(index),
            "index": without_paths(index.info()),
            "limits": asdict(self.limits),
            "served": asdict(self.batcher.counts),
        }
        return Json(about)

    async def watch(self) -> None:
        """Serve the index that lies in the folder, until cancelled; if it cannot be opened, keep the old one."""
        thread, failed = Threads(1, "blendfilter-open"), False
        while True:
            await asyncio.sleep(LOOK_AFTER_FAILURE if failed else LOOK)
            try:
                index = await in_thread(self.index.fresh, executor=thread)
            except Exception as error:  # noqa: BLE001 - an index that cannot be opened must not end the server
                if not failed:
                    logger.warning(
                        "%s is served as it was opened: %s", self.index.fingerprint, error
                    )
                failed = True
                continue
            failed = False
            if index is not self.index:
                self.index = index
                logger.warning(
                    "another index took the old one's place: %s is served now",
                    index.fingerprint,
                )
            del index  # or the old one would stay in memory while the next is opened

    async def _found(
        self, index: Retriever, request: Request, queries: list[str], k: int
    ) -> list[Sequence[Passage]]:
        """Search, unless the client leaves: one that gave up and asks again must not wait behind its first request."""
        searching = asyncio.ensure_future(self.batcher.find(index.search, queries, k))
        # behind the body, only a disconnect can come
        leaving = asyncio.ensure_future(request.receive())
        await asyncio.wait((searching, leaving), return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if not searching.done():
            searching.cancel()
            raise ClientDisconnect
        return searching.result()


def passages_of(index: Retriever) -> int | None:
    """The number of passages; None if the index does not know it."""
    try:
        return len(index)
    except TypeError:
        return None


class AccessGuard:
    """Middleware that refuses requests without the `token`.

    If there is none, only requests under this machine's own names pass: a web page can make a browser call a server on
    the same machine under another name (DNS rebinding), and the Host header shows that.
    """

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self._app
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            if self._token is None:
                if not _LOCAL_HOST.fullmatch(headers.get("host", "")):
                    app = refusal(
                        403,
                        "without a token, this server answers to localhost and 127.0.0.1 only",
                    )
            elif scope["path"] != "/health" and not knows(headers, self._token):
                how = "'Authorization: Bearer TOKEN', or http://any:TOKEN@host:port/"
                app = refusal(
                    401, f"this server wants a token: {how}", {"WWW-Authenticate": "Bearer"}
                )
        await app(scope, receive, send)


def knows(headers: Mapping[str, str], token: str) -> bool:
    """Whether a request carries the token: as a bearer, or as the password of HTTP's basic login, any user.

    >>> knows({"authorization": "Bearer s3cret"}, "s3cret"), knows({}, "s3cret")
    (True, False)
    """
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    given = rest.strip().encode("latin-1", "replace")
    if scheme.lower() == "basic":
        try:
            given = base64.b64decode(given, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif scheme.lower() != "bearer":
        return False
    # in constant time: the time of a comparison must not reveal how much of a guess was right
    return hmac.compare_digest(given, token.encode())

"""The application: an index behind five routes.

==========================  ===================================================================
``GET, POST /``             one query, in `dspy.ColBERTv2`'s format (also at ``/api/search``)
``POST /search``            queries in a batch; whole passages and the index's fingerprint
``GET /health``             whether the server is there; wants no token
``GET /info``               what is served, by which fingerprint, within which limits
==========================  ===================================================================

Every error is ``{"error": true, "message": one line}``.

Where another index takes the place of the one in its folder, that is opened, and serves from then on (`/info` and every
reply name its fingerprint); requests in flight are answered by the old one.

A request is answered where it carries the token, or, without one, where it came by this machine's own name: a page on
the web can make a browser call a server on the same machine under another name (DNS rebinding); the Host header shows.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

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
    head_too_large,
    many_queries,
    one_query,
    refusal,
    results,
    topk,
    without_paths,
)

OPEN = "/health"  # the one route that wants no token
LOOK, LOOK_LONGEST = (
    1.0,
    60.0,
)  # seconds between two looks at the folder; the longer one where it cannot be opened

logger = logging.getLogger(__name__)


def application(
    index: Retriever, limits: ServerLimits | None = None, *, token: str | None = None
) -> Starlette:
    """The application that serves `index`; where there is a `token`, every request must carry it."""
    service = Service(index, limits or ServerLimits())

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
        middleware=[Middleware(RequestGuard, token=token, limits=service.limits)],
        exception_handlers={
            HTTPException: lambda _, error: refusal(error.status_code, error.detail, error.headers),
            BadArgument: _always(400),
            asyncio.QueueFull: _always(
                503, "too many queries are waiting: try again", {"Retry-After": "1"}
            ),
            ClientDisconnect: _always(400, "the request broke off"),  # no one is left to read it
            Exception: _always(500, "the search failed"),  # the framework logs the error itself
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


class Service:
    """The routes."""

    def __init__(self, index: Retriever, limits: ServerLimits) -> None:
        self.index, self.limits = index, limits
        self.batcher = Batcher(
            index.search, max_batch=limits.max_batch, max_waiting=limits.max_waiting
        )

    async def colbert(self, request: Request) -> Json:
        """One query. An address with ``?index=FINGERPRINT`` is good for that index only: clients keep what they found
        under their server's address, and would not notice that its index is another one by now."""
        index = self.index
        if request.query_params.get("index", index.fingerprint) != index.fingerprint:
            raise HTTPException(
                409, f"this server's index is {index.fingerprint}, not the one in the address"
            )
        return Json(
            topk((await self._found(index, request, *await one_query(request, self.limits)))[0])
        )

    async def search(self, request: Request) -> Json:
        """A batch of queries."""
        index = self.index
        found = await self._found(index, request, *await many_queries(request, self.limits))
        return Json(results(index.fingerprint, found))

    async def health(self, _: Request) -> Json:
        """The server is there."""
        return Json({"status": "ok"})

    async def info(self, _: Request) -> Json:
        """What is served."""
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
        """Serve the index that lies in the folder by now, until cancelled; where that cannot be opened, the old one."""
        thread, pause, stated = Threads(1, "blendfilter-open"), LOOK, ""
        try:
            while True:
                await asyncio.sleep(pause)
                try:
                    index = await in_thread(self.index.fresh, executor=thread)
                except Exception as error:  # noqa: BLE001 - the old one serves on, and says why, once
                    if (why := " ".join(str(error).split())) != stated:
                        logger.warning(
                            "%s is served as it was opened: %s", self.index.fingerprint, why
                        )
                    stated, pause = why, min(2 * pause, LOOK_LONGEST)
                    continue
                pause = LOOK
                if index is not self.index:
                    stated = ""
                    self.index, self.batcher.search = index, index.search
                    logger.warning(
                        "another index took the old one's place: %s is served now",
                        index.fingerprint,
                    )
                del index  # or an old one would be kept while the next is opened
        finally:
            thread.shutdown()

    async def _found(
        self, index: Retriever, request: Request, queries: list[str], k: int
    ) -> list[Sequence[Passage]]:
        searching = asyncio.ensure_future(self.batcher.find(queries, k, index.search))

        async def left() -> None:  # returns when the client has gone; its body has been read before
            while (await request.receive())["type"] != "http.disconnect":
                pass

        leaving = asyncio.ensure_future(left())
        try:
            await asyncio.wait((searching, leaving), return_when=asyncio.FIRST_COMPLETED)
            if (
                not searching.done()
            ):  # a client that gave up and asks again must not wait behind its first request
                raise ClientDisconnect
            return searching.result()
        except (BadArgument, asyncio.QueueFull, ClientDisconnect):
            raise
        except Exception:  # noqa: BLE001 - what an engine says is for this side's log alone, where it stands already
            raise HTTPException(500, "the search failed") from None
        finally:
            searching.cancel()
            leaving.cancel()


def passages_of(index: Retriever) -> int | None:
    """How many passages there are, None where the index cannot say."""
    try:
        return len(index)
    except TypeError:
        return None


def _always(status: int, message: str = "", headers: dict[str, str] | None = None) -> Any:
    """A handler that answers every error alike, by default with the error's own message."""

    async def handler(_: Request, error: Exception) -> Json:
        return refusal(status, message or str(error), headers)

    return handler


class RequestGuard:
    """The application, behind its check: `token` is wanted where there is one, a local Host header elsewhere."""

    def __init__(self, app: ASGIApp, token: str | None, limits: ServerLimits) -> None:
        self._app, self._token, self._limits = app, token, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers, refused = Headers(scope=scope), None
            # one that came in a single read was whole before its size was looked at
            size = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
            if size + len(scope["raw_path"]) + len(scope["query_string"]) > self._limits.max_head:
                refused = head_too_large(self._limits)
            elif self._token is None and not is_local(headers.get("host", "")):
                refused = refusal(
                    403, "without a token, this server answers to localhost and 127.0.0.1 only"
                )
            elif (
                self._token is not None
                and scope["path"] != OPEN
                and not knows(headers, self._token)
            ):
                how = "'Authorization: Bearer TOKEN', or http://any:TOKEN@host:port/"
                refused = refusal(
                    401, f"this server wants a token: {how}", {"WWW-Authenticate": "Bearer"}
                )
            if refused:
                return await refused(scope, receive, send)
        return await self._app(scope, receive, send)


def is_local(host: str) -> bool:
    """Whether a Host header names this machine to itself.

    >>> is_local("localhost:8893"), is_local("127.0.0.1"), is_local("[::1]:8893"), is_local("evil.example:8893")
    (True, True, True, False)
    """
    name = host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


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
    # in constant time: the time that a comparison takes must not reveal how much of a guess was right
    return hmac.compare_digest(given, token.encode())

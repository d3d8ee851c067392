"""Who may connect, for how long, and who may ask.

A client needs no token to connect, to send half a request's head, or to leave a reply unread, and all of these take a
file and memory. So there is a cap, under the number of files that this process may open, and every stage in which the
server waits for its client has an end. At the cap the connection that has waited longest makes room for the new one:
a flood of idle connections then closes its own, and a client that sends a request is answered.

A request is answered where it carries the token, or, without one, where it came by this machine's own name: a page on
the web can make a browser call a server on the same machine under another name (DNS rebinding); the Host header shows.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import os
import resource
from collections.abc import Mapping
from typing import Any

import h11
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from blendfilter.server.exchange import Json, ServerLimits, refusal

OPEN = "/health"
"""The one route that wants no token."""
TICK = 0.5
"""Seconds between two looks at what is overdue."""
BLOCK = 64 * 1024
"""Bytes of a reply that a client must take within `ServerLimits.write_seconds` to count as reading it."""
LAST_WAIT = 5
"""Seconds that a stopping server still waits for a client to send its request, or to read its reply."""
_SPARE = 64
"""Files left for the index, the log and whatever else the process opens."""
_BURST = 64
_BURSTS = 4
"""Connections are accepted in bursts, and so many of these can be open before the first one too many is closed."""


def room(wanted: int) -> tuple[int, int]:
    """How many connections there may be, at most `wanted`, and how many to accept at once.

    Both follow from the files that this process may still open (``ulimit -n``).
    """
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return wanted, _BURST
    free = most - len(os.listdir("/dev/fd"))
    burst = max(1, min(_BURST, free // 16))
    return max(1, min(wanted, free - min(_SPARE, free // 4) - _BURSTS * burst)), burst


class Connections(ServerState):
    """Every open connection of a server, the one that has waited for its client longest first.

    Attributes:
        stopping: when the server began to stop, in the loop's time; None while it serves.
    """

    def __init__(self, limits: ServerLimits) -> None:
        super().__init__()
        self.limits = limits
        self.stopping: float | None = None
        self._open: dict[ClientConnection, None] = {}

    def add(self, new: ClientConnection) -> None:
        """Take in a connection. At the cap another one is closed for it, or it is where all are at work."""
        self._open[new] = None
        if len(self._open) > self.limits.max_connections:
            others = [connection for connection in self._open if connection is not new]
            idle = (connection for connection in others if connection.waits and not connection.unread)
            unread = (connection for connection in others if connection.unread)
            self._close(next(idle, None) or next(unread, new))

    def remove(self, gone: ClientConnection) -> None:
        """Forget a connection; one that is forgotten already is no error."""
        self._open.pop(gone, None)

    def answered(self, connection: ClientConnection) -> None:
        """Note that a connection begins to wait for its next request now."""
        if connection in self._open:
            del self._open[connection]
            self._open[connection] = None

    def bound_unread(self, newest: ClientConnection) -> None:
        """Close connections whose replies have been unread longest, until what is left unread is within the limit."""
        sizes = {connection: connection.unread for connection in self._open}
        excess = sum(sizes.values()) - self.limits.max_unread
        for connection, size in sizes.items():
            if excess > 0 and size and connection is not newest:
                self._close(connection)
                excess -= size

    async def watch(self) -> None:
        """Close what is overdue, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TICK)
            now = loop.time()
            over = self.stopping is not None and now - self.stopping > self.limits.stop_seconds
            for connection in [late for late in self._open if over or late.overdue(now)]:
                self._close(connection)

    def _close(self, connection: ClientConnection) -> None:
        self.remove(connection)
        connection.transport.abort()  # `close` would wait until everything is read


class ClientConnection(H11Protocol):
    """One connection: uvicorn's own, with an end to every wait for its client."""

    def __init__(
        self,
        config: Config,
        server_state: Connections,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._all = server_state
        self._refused = False
        self._stage: tuple[object, ...] = ()
        self._since = 0.0

    @property
    def unread(self) -> int:
        """Bytes of replies that the client has not taken."""
        return self.transport.get_write_buffer_size()

    @property
    def waits(self) -> bool:
        """Whether the server waits for this client: for a request, the rest of one, or for a reply to be read."""
        return self.cycle is None or self.cycle.response_complete or self.conn.their_state is h11.SEND_BODY

    def overdue(self, now: float) -> bool:
        """Whether the client has kept the server waiting for too long in the stage that its connection is in.

        Called at every tick; a stage begins when it is first seen.
        """
        answered = self.cycle is None or self.cycle.response_complete
        between = self.timeout_keep_alive_task is not None  # no byte since the last reply: uvicorn's own timer runs
        stage = (self.cycle, answered, between, self.conn.their_state, -(-self.unread // BLOCK))
        if stage != self._stage:
            self._stage, self._since = stage, now
        limits = self._all.limits
        if self.unread:
            allowed = limits.write_seconds
        elif self.conn.their_state is h11.SEND_BODY:
            allowed = limits.body_seconds
        elif answered and not between:
            allowed = limits.head_seconds
        else:
            return False
        return now - self._since > (allowed if self._all.stopping is None else min(allowed, LAST_WAIT))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        """Part of asyncio's protocol."""
        super().connection_made(transport)
        self._all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of asyncio's protocol."""
        self._all.remove(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Part of asyncio's protocol. What follows on a refused head is thrown away."""
        if not self._refused:
            super().data_received(data)

    def pause_writing(self) -> None:
        """Part of asyncio's protocol: the client reads more slowly than we write."""
        super().pause_writing()
        self._all.bound_unread(self)

    def on_response_complete(self) -> None:
        """Called by uvicorn when a reply has been written."""
        super().on_response_complete()
        self._all.answered(self)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP or has too large a head. Called by uvicorn."""
        if not self.waits or self.conn.our_state is not h11.IDLE:  # another reply is under way
            self.transport.abort()
            return
        too_large = len(self.conn.trailing_data[0]) > self._all.limits.max_head
        reply = head_too_large(self._all.limits) if too_large else refusal(400, "this is no HTTP/1.1 request")
        headers = [*reply.raw_headers, (b"connection", b"close")]
        events = (
            h11.Response(status_code=reply.status_code, headers=headers),
            h11.Data(data=bytes(reply.body)),
            h11.EndOfMessage(),
        )
        self.transport.writelines([self.conn.send(event) or b"" for event in events])
        self.transport.write_eof()
        # Closed now, with bytes of the head still on their way, the client would see a reset instead of the reply. So
        # it may finish, within the time for a head; the bytes so far are dropped with the parser that has them.
        self._refused, self.conn = True, h11.Connection(h11.SERVER)


def head_too_large(limits: ServerLimits) -> Json:
    """The refusal of a head (address and headers) above its limit."""
    return refusal(431, f"the head is too large: at most {limits.max_head:,} bytes; send a long query by POST")


# --- the token --------------------------------------------------------------------------------------------------------


class Guard:
    """The application, behind its check: `token` is wanted where there is one, a local Host header elsewhere."""

    def __init__(self, app: ASGIApp, token: str | None, limits: ServerLimits) -> None:
        self._app, self._token, self._limits = app, token, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = Headers(scope=scope)
            # one that came in a single read was whole before its size was looked at
            if size_of_head(scope) > self._limits.max_head:
                return await head_too_large(self._limits)(scope, receive, send)
            if self._token is None and not is_local(headers.get("host", "")):
                refused = refusal(403, "without a token, this server answers to localhost and 127.0.0.1 only")
                return await refused(scope, receive, send)
            if self._token is not None and scope["path"] != OPEN and not knows(headers, self._token):
                refused = refusal(
                    401,
                    "this server wants a token: 'Authorization: Bearer TOKEN', or http://any:TOKEN@host:port/",
                    {"WWW-Authenticate": "Bearer"},
                )
                return await refused(scope, receive, send)
        return await self._app(scope, receive, send)


def size_of_head(scope: Scope) -> int:
    """Bytes of a request's address and headers."""
    fields = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    return len(scope["raw_path"]) + len(scope["query_string"]) + fields


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

"""The server itself: a socket, uvicorn, its log, and its end.

SIGTERM and Ctrl-C stop it: it accepts nothing more, finishes what is in flight within `ServerLimits.stop_seconds`, and
ends well. A second Ctrl-C does not wait.

A client needs no token to connect, to send half a request's head, or to leave a reply unread, and all of these take a
file and memory. So there is a cap, under the number of files that this process may open, and every stage in which the
server waits for its client has an end. At the cap the connection that has waited longest makes room for the new one:
a flood of idle connections then closes its own, and a client that sends a request is answered.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import os
import resource
import signal
import socket
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import h11
import uvicorn
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from blendfilter.errors import BadArgument
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.remote import TOKEN
from blendfilter.secrets import checked
from blendfilter.server.app import application, passages_of
from blendfilter.server.exchange import ServerLimits, head_too_large, refusal

KEEP_ALIVE = (
    75  # seconds; longer than our client keeps a connection, so that none is closed under a request
)
BACKLOG = 1024  # connections that the system keeps until they are accepted
SHORTEST_TOKEN = 16  # characters, where others can reach the server: a shorter one can be guessed
LINES = 5  # of log a minute that one place in the code may cause: clients decide how often some are reached
TICK = 0.5  # seconds between two looks at what is overdue
BLOCK = (
    64 * 1024
)  # bytes of a reply that a client must take within `write_seconds` to count as reading it
LAST_WAIT = 5  # seconds that a stopping server still waits for a client to send its request, or to read its reply
_SPARE = 64  # files left for the index, the log and whatever else the process opens
_BURST, _BURSTS = (
    64,
    4,
)  # connections accepted at once; so many times that are open before the first one is closed


class IndexServer:
    """A server on its socket, which holds its address from now on; `run` answers until `stop`, or a signal.

    Raises:
        BadArgument: the address cannot be had; or others may reach it, and there is no token or a short one.
    """

    def __init__(
        self,
        index: Retriever,
        *,
        host: str = "127.0.0.1",
        port: int = 8893,
        limits: ServerLimits | None = None,
        token: str | None = None,
    ) -> None:
        limits = limits or ServerLimits()
        most, burst = room(limits.max_connections)
        limits = replace(limits, max_connections=most)
        token = checked(token, f"the token ({TOKEN})") if token else None
        count, self._fingerprint = passages_of(index), index.fingerprint
        passages = f"{count:,} passages, " if count else ""
        self._served = f"{index.info()['kind']}, {passages}fingerprint {index.fingerprint}"
        self._login = "any:TOKEN@" if token else ""
        self._socket = listen(host, port, token=token)
        self.port: int = self._socket.getsockname()[1]
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._server = _Server(
            uvicorn.Config(
                application(index, limits, token=token),
                http=ClientConnection,
                ws="none",
                log_config=None,
                access_log=False,  # it would hold every query
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE,
                backlog=burst,
                timeout_graceful_shutdown=limits.stop_seconds
                + 5,  # by then there are no connections to wait for
                h11_max_incomplete_event_size=limits.max_head,
            ),
            limits,
        )

    def line(self, name: str) -> str:
        """One line for the person who started it: the address, what is served, and how to use it from DSPy."""
        address = f"{self.url.replace('://', f'://{self._login}')}/?index={self._fingerprint}"
        return (
            f'{self.url} serves {name}: {self._served}; from DSPy: dspy.ColBERTv2(url="{address}")'
        )

    def run(self, ready: Callable[[], object] = lambda: None) -> None:
        """Answer until stopped. `ready` is called once requests are answered and signals stop it."""
        self._server.ready = ready
        seldom = _Seldom()
        with ExitStack() as undo:
            for name in ("uvicorn.error", "asyncio", "blendfilter.server.batching"):
                logging.getLogger(name).addFilter(seldom)
                undo.callback(logging.getLogger(name).removeFilter, seldom)
            if threading.current_thread() is threading.main_thread():
                # uvicorn handles both while it runs, and raises them once more when it is done: that does nothing here
                for number in (signal.SIGTERM, signal.SIGINT):
                    undo.callback(
                        signal.signal, number, signal.signal(number, lambda *_: self.stop())
                    )
            self._server.run([self._socket])

    def stop(self) -> None:
        """Accept nothing more, finish what is in flight, and return from `run`; may be called from any thread."""
        self._server.should_exit = True


class _Server(uvicorn.Server):
    """uvicorn's server, which watches its connections from its start until its end."""

    ready: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, config: uvicorn.Config, limits: ServerLimits) -> None:
        super().__init__(config)
        self.server_state: Connections = Connections(limits)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or []:
            listening.listen(BACKLOG)  # asyncio has made it as short as its bursts
        self._watching = asyncio.create_task(self.server_state.watch())
        self.ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.server_state.stopping = asyncio.get_running_loop().time()
        await super().shutdown(sockets)
        self._watching.cancel()


class _Seldom(logging.Filter):
    """Lets `LINES` records a minute pass from each place in the code."""

    def __init__(self) -> None:
        super().__init__()
        self._passed: dict[tuple[str, int], deque[float]] = defaultdict(lambda: deque(maxlen=LINES))

    def filter(self, record: logging.LogRecord) -> bool:
        passed, now = self._passed[record.pathname, record.lineno], time.monotonic()
        if len(passed) == LINES and now - passed[0] < 60:
            return False
        passed.append(now)
        return True


def listen(host: str, port: int, *, token: str | None) -> socket.socket:
    """A listening socket; port 0 is any free one. Raises `BadArgument` where it cannot be had or may not be."""
    if not 0 <= port < 65536:
        raise BadArgument(f"the port must lie between 0 (any free one) and 65535, got {port}")
    try:
        if not host:  # it would mean every address there is
            raise OSError
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError):
        raise BadArgument(
            f"'{host}' is no address to listen on: give one of this machine's (--host)"
        ) from None
    others = not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
    if others and len(token or "") < SHORTEST_TOKEN:
        short = (
            f"a token of at least {SHORTEST_TOKEN} characters, not of {len(token)},"
            if token
            else "a token"
        )
        raise BadArgument(
            f"others can reach {host}, so {short} is needed: set {TOKEN}, here and for every client "
            f"(export {TOKEN}=$(openssl rand -hex 24)), or listen on 127.0.0.1"
        )
    # the protocol is named because asyncio switches Nagle's algorithm off only where it reads TCP there
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        why = (
            "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({error.strerror})"
        )
        raise BadArgument(
            f"port {port} on {host} {why}: choose another (--port; 0 is any free one)"
        ) from None
    return listening


# --- connections -----------------------------------------------------------------------------------------------------


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
    """Every open connection of a server, the one that has waited for its client longest first."""

    def __init__(self, limits: ServerLimits) -> None:
        super().__init__()
        self.limits = limits
        self.stopping: float | None = None  # since when, in the loop's time
        self._open: dict[ClientConnection, None] = {}

    def add(self, new: ClientConnection) -> None:
        """Take in a connection. At the cap another one is closed for it, or it is where all are at work."""
        self._open[new] = None
        if len(self._open) > self.limits.max_connections:
            others = [connection for connection in self._open if connection is not new]
            idle = (
                connection for connection in others if connection.waits and not connection.unread
            )
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
        return (
            self.cycle is None
            or self.cycle.response_complete
            or self.conn.their_state is h11.SEND_BODY
        )

    def overdue(self, now: float) -> bool:
        """Whether the client has kept the server waiting for too long in the stage that its connection is in.

        Called at every tick; a stage begins when it is first seen.
        """
        answered = self.cycle is None or self.cycle.response_complete
        between = (
            self.timeout_keep_alive_task is not None
        )  # no byte since the last reply: uvicorn's own timer runs
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
        return now - self._since > (
            allowed if self._all.stopping is None else min(allowed, LAST_WAIT)
        )

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as in uvicorn
        super().connection_made(transport)
        self._all.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
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
        reply = (
            head_too_large(self._all.limits)
            if too_large
            else refusal(400, "this is no HTTP/1.1 request")
        )
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

"""The server itself: a socket, uvicorn, its log, and its end.

SIGTERM and Ctrl-C stop it: it accepts nothing more, finishes what is in flight within `ServerLimits.stop_seconds`, and
ends well. A second Ctrl-C does not wait.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import uvicorn

from blendfilter.errors import BadArgument
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.remote import TOKEN
from blendfilter.secrets import checked
from blendfilter.server.app import application, passages_of
from blendfilter.server.connections import ClientConnection, Connections, room
from blendfilter.server.exchange import ServerLimits

KEEP_ALIVE = 75
"""Seconds that an idle connection is kept: longer than our client keeps it, so that none is closed under a request."""
BACKLOG = 1024
"""Connections that the system keeps until they are accepted."""
SHORTEST_TOKEN = 16
"""Characters of a token where others can reach the server: a shorter one can be guessed."""
LINES = 5
"""Lines of log a minute that one place in the code may cause: clients decide how often some of them are reached."""


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
        self._index, self._login = index, "any:TOKEN@" if token else ""
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
                timeout_graceful_shutdown=limits.stop_seconds + 5,  # by then there are no connections to wait for
                h11_max_incomplete_event_size=limits.max_head,
            ),
            limits,
        )

    def line(self, name: str) -> str:
        """One line for the person who started it: the address, what is served, and how to use it from DSPy."""
        count, fingerprint = passages_of(self._index), self._index.fingerprint
        served = f"{self._index.info()['kind']}, {f'{count:,} passages, ' if count else ''}fingerprint {fingerprint}"
        address = f"{self.url.replace('://', f'://{self._login}')}/?index={fingerprint}"
        return f'{self.url} serves {name}: {served}; from DSPy: dspy.ColBERTv2(url="{address}")'

    def run(self, ready: Callable[[], object] = lambda: None) -> None:
        """Answer until stopped. `ready` is called once requests are answered and signals stop it."""
        self._server.ready = ready
        with _stopped_by_signals(self._server), _quieted():
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
    """Lets `LINES` records a minute pass from each place in the code, and counts the others in the next that passes."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: dict[tuple[str, int], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        place = record.pathname, record.lineno
        began, count = self._counts.get(place, (time.monotonic(), 0))
        if time.monotonic() - began > 60:
            if count > LINES:
                record.msg, record.args = f"{record.getMessage()} ({count - LINES} more like it before)", ()
            began, count = time.monotonic(), 0
        self._counts[place] = began, count + 1
        return count < LINES


@contextmanager
def _quieted() -> Iterator[None]:
    """While a server runs, no client can fill its log."""
    seldom = _Seldom()
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio", "blendfilter.server.batching")]
    for logger in loggers:
        logger.addFilter(seldom)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(seldom)


@contextmanager
def _stopped_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """SIGTERM and SIGINT stop `server`, from before it starts until after it has ended.

    uvicorn handles them while it runs, and raises them once more when it is done; that second time does nothing here,
    and the process ends well.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def listen(host: str, port: int, *, token: str | None) -> socket.socket:
    """A listening socket; port 0 is any free one. Raises `BadArgument` where it cannot be had or may not be."""
    if not 0 <= port < 65536:
        raise BadArgument(f"the port must lie between 0 (any free one) and 65535, got {port}")
    try:
        if not host:  # it would mean every address there is
            raise OSError
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError):
        raise BadArgument(f"'{host}' is no address to listen on: give one of this machine's (--host)") from None
    others = not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback
    if others and len(token or "") < SHORTEST_TOKEN:
        short = f"a token of at least {SHORTEST_TOKEN} characters, not of {len(token)}," if token else "a token"
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
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be had ({error.strerror})"
        raise BadArgument(f"port {port} on {host} {why}: choose another (--port; 0 is any free one)") from None
    return listening

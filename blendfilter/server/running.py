"""The server itself: a socket, uvicorn, and its end.

SIGTERM and Ctrl-C stop it: it accepts no more connections, finishes the requests in flight within
`ServerLimits.stop_seconds`, and ends with exit code 0. A second Ctrl-C does not wait.
"""

from __future__ import annotations

import errno
import ipaddress
import signal
import socket
import threading
from collections.abc import Callable

import uvicorn

from blendfilter.errors import BadArgument
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.remote import TOKEN
from blendfilter.secrets import checked
from blendfilter.server.app import application, passages_of
from blendfilter.server.exchange import ServerLimits

KEEP_ALIVE = 75  # seconds; longer than our client keeps a connection, so that none is closed under a request
LARGEST_HEAD = 64 * 1024  # bytes of a request's address and headers
BACKLOG = 1024  # connections that the system keeps until they are accepted
SHORTEST_TOKEN = 16  # characters; a shorter one can be guessed
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class IndexServer:
    """A server on its socket, whose address is taken from now on; `run` answers until `stop`, or a signal.

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
        token = checked(token, f"the token ({TOKEN})") if token else None
        self._socket = listen(host, port, token=token)
        self.port: int = self._socket.getsockname()[1]
        place = f"{f'[{host}]' if ':' in host else host}:{self.port}"
        self.url = f"http://{place}"
        count = passages_of(index)
        passages = f"{count:,} passages, " if count else ""
        login = "any:TOKEN@" if token else ""
        self._about = (
            f"{index.info()['kind']}, {passages}fingerprint {index.fingerprint}; "
            f'from DSPy: dspy.ColBERTv2(url="http://{login}{place}/?index={index.fingerprint}")'
        )
        self._server = uvicorn.Server(
            uvicorn.Config(
                application(index, limits, token=token),
                http="h11",
                ws="none",
                log_config=None,
                log_level="error",  # clients decide how many warnings there are
                access_log=False,  # it would hold every query
                server_header=False,
                proxy_headers=False,
                backlog=BACKLOG,
                limit_concurrency=limits.max_connections,
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=limits.stop_seconds,
                h11_max_incomplete_event_size=LARGEST_HEAD,
            )
        )

    def line(self, name: str) -> str:
        """One line for the person who started it: the address, the index, and how to use it from DSPy."""
        return f"{self.url} serves {name}: {self._about}"

    def run(self, ready: Callable[[], object] = lambda: None) -> None:
        """Answer until stopped. `ready` is called once connections are taken and signals stop it."""
        # uvicorn handles both signals while it runs, and raises them again at its end: here that does nothing more
        handled = SIGNALS if threading.current_thread() is threading.main_thread() else ()
        before = {number: signal.signal(number, lambda *_: self.stop()) for number in handled}
        try:
            ready()
            self._server.run([self._socket])
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def stop(self) -> None:
        """Accept no more connections, finish the requests in flight, and return from `run`; from any thread."""
        self._server.should_exit = True


def listen(host: str, port: int, *, token: str | None) -> socket.socket:
    """A listening socket; port 0 is any free one. Raises `BadArgument` if it cannot be had or may not be."""
    if not 0 <= port < 65536:
        raise BadArgument(f"the port must lie between 0 (any free one) and 65535, got {port}")
    try:
        # an empty host would mean every address there is
        family, *_, address = socket.getaddrinfo(host or "-", port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        raise BadArgument(
            f"'{host}' is no address to listen on: give one of this machine's (host=)"
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
    # the protocol is named because asyncio switches Nagle's algorithm off only for sockets that say TCP
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        listening.close()
        why = (
            "is in use"
            if error.errno == errno.EADDRINUSE
            else f"cannot be had ({error.strerror})"
        )
        raise BadArgument(
            f"port {port} on {host} {why}: choose another (port=; 0 is any free one)"
        ) from None
    return listening

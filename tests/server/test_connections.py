"""Clients that keep the server waiting: half a request, a reply that is not read, too many running."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import httpx
import pytest
from index_server import Process, served

from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever
from blendfilter.server import running
from blendfilter.server.exchange import ServerLimits
from blendfilter.server.running import LINES, IndexServer

TOKEN = "2f6c91d0a45be873"
HALF_HEAD = b"GET /?query=town HTTP/1.1\r\nHost: localhost\r\nX-Half: "
ENOUGH = 60.0
"""Seconds after which a test gives up; nothing here needs a tenth of it."""


class Long(Retriever):
    """Every passage is some megabytes long, more than the system's own buffers take; a search may wait for `go`."""

    fingerprint = "0123456789abcdef"

    def __init__(self, megabytes: int = 0) -> None:
        self.text, self.go, self.begun = "x" * (megabytes << 20), threading.Event(), threading.Event()
        self.go.set()

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.begun.set()
        assert self.go.wait(ENOUGH)
        return [[Passage("1", "", f"{query} {self.text}")] for query in queries]


@contextmanager
def line_to(server: IndexServer, sent: bytes = b"") -> Iterator[socket.socket]:
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        line.settimeout(ENOUGH)
        line.connect(("127.0.0.1", server.port))
        line.sendall(sent)
        yield line


def read(line: socket.socket) -> bytes:
    """All that comes until the server closes."""
    got = b""
    try:
        while part := line.recv(1 << 20):
            got += part
    except ConnectionResetError:
        pass
    return got


def dripped(line: socket.socket) -> int:
    """Send a byte now and then until the server has closed; how many it took."""
    sent, end = 0, time.monotonic() + ENOUGH
    while time.monotonic() < end:
        try:
            line.sendall(b"x")
        except OSError:
            return sent
        sent += 1
        time.sleep(0.05)
    raise TimeoutError


def request(query: str = "town") -> bytes:
    return f"GET /?query={query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def until(what: object) -> None:
    end = time.monotonic() + ENOUGH
    while not what():  # type: ignore[operator]
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_head_that_comes_byte_by_byte_is_not_waited_for_longer() -> None:
    with served(Long(), limits=ServerLimits(head_seconds=1)) as server, line_to(server, HALF_HEAD) as line:
        assert dripped(line)
        assert httpx.get(f"{server.url}/health").status_code == 200


@pytest.mark.parametrize("pieces", [1, 200], ids=["in one read", "in many"])
def test_a_head_that_is_too_large_is_refused_with_a_line(pieces: int) -> None:
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 2_000 + b"\r\n\r\n"
    with served(Long(), limits=ServerLimits(max_head=1000)) as server, line_to(server) as line:
        for at in range(pieces):
            line.sendall(head[at * len(head) // pieces : (at + 1) * len(head) // pieces])
            time.sleep(0.001)
        result = line.recv(4096)
        while b"\r\n\r\n{" not in result and (more := line.recv(4096)):  # the body may come after the head
            result += more
    assert result.startswith(b"HTTP/1.1 431 ")
    assert b"at most 1,000 bytes; send a long query by POST" in result


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"])
def test_what_is_no_http_is_refused_as_json(sent: bytes) -> None:
    with served(Long(), limits=ServerLimits(head_seconds=1)) as server, line_to(server, sent) as line:
        result = read(line)
    assert result.startswith(b"HTTP/1.1 400 ")
    assert b'{"error": true, "message": ' in result


def test_at_the_cap_the_oldest_that_asks_nothing_makes_room() -> None:
    with served(Long(), limits=ServerLimits(max_connections=3)) as server, ExitStack() as lines:
        first, second, third = [lines.enter_context(line_to(server, HALF_HEAD)) for _ in range(3)]
        with line_to(server, request()) as new:
            assert new.recv(1000).startswith(b"HTTP/1.1 200")
        assert read(first) == b""
        for other in (second, third):
            other.sendall(b"\r\n\r\n")
            assert other.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_reply_that_is_not_read_is_thrown_away() -> None:
    limits = ServerLimits(write_seconds=1)
    with served(Long(32), limits=limits) as server, line_to(server, request()) as line:
        assert line.recv(100).startswith(b"HTTP/1.1 200")
        until(lambda: not server._server.server_state.connections)
        assert len(read(line)) < 32 << 20


def test_unread_replies_are_bounded_together_and_the_oldest_go() -> None:
    """Each is of 16 MB, of which the system takes a few; two are more than the bound."""
    with served(Long(8), limits=ServerLimits(max_unread=16 << 20)) as server, ExitStack() as stack:
        lines = []
        for number in range(3):
            lines.append(stack.enter_context(line_to(server, request(f"q{number}"))))
            assert lines[-1].recv(100).startswith(b"HTTP/1.1 200")
        server.stop()  # or what comes whole would be followed by a wait for another request
        assert [len(read(line)) > 16 << 20 for line in lines] == [False, False, True]


def test_clients_that_do_nothing_do_not_keep_a_server_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of the limits would end these within the time that `served` waits for the end."""
    monkeypatch.setattr(running, "LAST_WAIT", 1)
    forever = ServerLimits(head_seconds=900, body_seconds=900, write_seconds=900, stop_seconds=900)
    half_body = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
    with ExitStack() as lines, served(Long(32), limits=forever) as server:
        for sent in (b"", HALF_HEAD, half_body):
            lines.enter_context(line_to(server, sent))
        assert lines.enter_context(line_to(server, request())).recv(10)


def test_a_search_that_hangs_does_not_keep_the_process_from_ending() -> None:
    code = """
import time
from blendfilter.retrieval.callables import as_retriever
from blendfilter.server import index_server
from blendfilter.server.exchange import ServerLimits

server = index_server(as_retriever(lambda query, k: time.sleep(900)), port=0, limits=ServerLimits(stop_seconds=1))
server.run(ready=lambda: print(server.line("hangs"), flush=True))
"""
    with Process(code=code) as server, ThreadPoolExecutor(1) as pool:
        wanted = pool.submit(httpx.get, server.url, params={"query": "q"}, timeout=ENOUGH)
        while not httpx.get(f"{server.url}/info").json()["served"]["requests"]:
            time.sleep(0.01)
        assert server.end() == (0, "")
        assert isinstance(wanted.exception(), httpx.HTTPError)


def test_clients_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with served(Long(), limits=ServerLimits(head_seconds=1)) as server:
        for _ in range(50):
            with line_to(server, b"nonsense\r\n\r\n") as line:
                assert line.recv(20).startswith(b"HTTP/1.1 400")
    assert 0 < sum("Invalid HTTP request" in record.getMessage() for record in caplog.records) <= LINES

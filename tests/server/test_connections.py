"""Clients that keep the server waiting: half a request, a reply that is not read, too many connections."""

from __future__ import annotations

import json
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from index_server import Process, sample_index, served

from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever
from blendfilter.server import connections
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


def test_half_a_head_is_waited_for_only_so_long() -> None:
    with served(Long(), limits=ServerLimits(head_seconds=1)) as server:
        with line_to(server) as silent, line_to(server, HALF_HEAD) as half:
            assert (read(silent), read(half)) == (b"", b"")
        with line_to(server, request()) as second:
            assert second.recv(1000).startswith(b"HTTP/1.1 200")
            second.sendall(HALF_HEAD)
            assert b"HTTP/1.1" not in read(second)


def test_a_head_that_comes_byte_by_byte_is_not_waited_for_longer() -> None:
    with served(Long(), limits=ServerLimits(head_seconds=1)) as server, line_to(server, HALF_HEAD) as line:
        assert dripped(line)
        assert httpx.get(f"{server.url}/health").status_code == 200


def test_a_refused_body_is_not_read_for_ever() -> None:
    """The refusal comes at once; what the client goes on to send has an end too."""
    limits = ServerLimits(body_seconds=1)
    with served(Long(), limits=limits, token=TOKEN) as server, line_to(server) as line:
        line.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n{")
        assert line.recv(1000).startswith(b"HTTP/1.1 401")
        assert dripped(line)


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


def test_a_client_reads_why_its_head_is_refused_though_it_goes_on_sending() -> None:
    with served(Long()) as server, line_to(server, HALF_HEAD) as line:
        for _ in range(400):
            line.sendall(b"x" * 10_000)
        assert line.recv(100).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"])
def test_what_is_no_http_is_refused_as_json(sent: bytes) -> None:
    with served(Long(), limits=ServerLimits(head_seconds=1)) as server, line_to(server, sent) as line:
        result = read(line)
    assert result.startswith(b"HTTP/1.1 400 ")
    assert b'{"error": true, "message": ' in result


def test_a_broken_chunk_ends_its_connection_and_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with served(Long(), token=TOKEN) as server:
        with line_to(server, head + b"zz\r\n") as line:
            read(line)
        assert httpx.get(f"{server.url}/health").status_code == 200
    assert "Traceback" not in caplog.text


def test_at_the_cap_the_oldest_that_asks_nothing_makes_room() -> None:
    with served(Long(), limits=ServerLimits(max_connections=3)) as server, ExitStack() as lines:
        first, second, third = [lines.enter_context(line_to(server, HALF_HEAD)) for _ in range(3)]
        with line_to(server, request()) as new:
            assert new.recv(1000).startswith(b"HTTP/1.1 200")
        assert read(first) == b""
        for other in (second, third):
            other.sendall(b"\r\n\r\n")
            assert other.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_connection_with_a_search_at_work_does_not_make_room() -> None:
    index = Long()
    index.go.clear()
    with served(index, limits=ServerLimits(max_connections=2)) as server, line_to(server, request("mine")) as line:
        assert index.begun.wait(ENOUGH)
        for _ in range(10):
            assert httpx.get(f"{server.url}/health").status_code == 200
        with line_to(server, request("another")):
            at_work = {b"query=mine", b"query=another"}
            opened = server._server.server_state._open
            until(lambda: {each.scope["query_string"] for each in list(opened) if not each.waits} == at_work)
            with line_to(server, request("refused")) as refused:
                assert read(refused) == b"", "all are at work: the new one goes"
        index.go.set()
        assert line.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_reply_that_is_not_read_is_thrown_away() -> None:
    limits = ServerLimits(write_seconds=1)
    with served(Long(32), limits=limits) as server, line_to(server, request()) as line:
        assert line.recv(100).startswith(b"HTTP/1.1 200")
        until(lambda: not server._server.server_state.connections)
        assert len(read(line)) < 32 << 20


def test_who_reads_a_block_now_and_then_is_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TICK", 900)  # this test alone looks at what is overdue
    with served(Long()) as server, line_to(server), monkeypatch.context() as patch:
        opened = server._server.server_state._open
        until(lambda: opened)
        (connection,) = opened
        allowed = server._server.server_state.limits.write_seconds
        patch.setattr(connections.ClientConnection, "unread", 10 * connections.BLOCK)
        assert not connection.overdue(1000.0)
        assert not connection.overdue(1000.0 + allowed)
        patch.setattr(connections.ClientConnection, "unread", 9 * connections.BLOCK)
        assert not connection.overdue(1001.0 + allowed)
        assert connection.overdue(1002.0 + 2 * allowed)


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
    monkeypatch.setattr(connections, "LAST_WAIT", 1)
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


def test_the_cap_leaves_files_for_the_index_and_for_bursts(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = len(os.listdir("/dev/fd"))
    for files in (64, 256, 1024, 100_000):
        monkeypatch.setattr(resource, "getrlimit", lambda _, files=files: (opened + files, -1))
        most, burst = connections.room(1000)
        assert 1 <= most <= 1000
        assert most + 4 * burst + min(64, files // 4) <= files
    assert most == 1000
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, -1))
    assert connections.room(5000)[0] == 5000


def test_clients_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with served(Long(), limits=ServerLimits(head_seconds=1)) as server:
        for _ in range(50):
            with line_to(server, b"nonsense\r\n\r\n") as line:
                assert line.recv(20).startswith(b"HTTP/1.1 400")
    assert 0 < sum("Invalid HTTP request" in record.getMessage() for record in caplog.records) <= LINES


def memory(pid: int) -> float:
    """Megabytes of memory that a process has now."""
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


class Flood:
    """Half-sent heads on `count` connections; whatever is closed is opened again, `most` times in all."""

    def __init__(self, port: int, count: int, most: int) -> None:
        self.port, self.count, self.most, self.opened = port, count, most, 0
        self.lines: list[socket.socket] = []
        self.full, self.stop = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while not self.stop.is_set():
            gone = [line for line in self.lines if closed(line)]
            for line in gone:
                line.close()
            self.lines = [line for line in self.lines if line not in gone]
            while len(self.lines) < self.count and self.opened < self.most and not self.stop.is_set():
                line = socket.create_connection(("127.0.0.1", self.port), timeout=ENOUGH)
                line.setblocking(False)
                line.send(HALF_HEAD)
                self.lines.append(line)
                self.opened += 1
            self.full.set()
            time.sleep(0.1)

    def __enter__(self) -> Flood:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self.thread.join()
        for line in self.lines:
            line.close()


def closed(line: socket.socket) -> bool:
    try:
        return line.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def flooded_with_heads(port: int, count: int, size: int, stack: ExitStack) -> None:
    """As much of `count` heads of `size` bytes as the server takes, a piece of each in turn."""
    lines = [stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=ENOUGH)) for _ in range(count)]
    piece = b"x" * 65_536
    for line in lines:
        line.send(HALF_HEAD)
        line.setblocking(False)
    for _ in range(size // len(piece)):
        for line in lines:
            with suppress(OSError):
                line.send(piece)


@pytest.mark.slow
def test_a_flood_without_the_token_does_not_lock_clients_out(tmp_path: Path) -> None:
    """1,200 half-sent heads, opened again as they are closed, 100 heads of 4 MB, 100 replies that are not read."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 4096:
        pytest.skip("needs 2,000 files for its clients (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    sample_index(tmp_path / "world")
    login = {"Authorization": f"Bearer {TOKEN}"}
    with Process(tmp_path / "world", "--port", 0, token=TOKEN, files=1024) as server, ExitStack() as stack:
        port = int(server.url.rpartition(":")[2])

        def probes(count: int) -> tuple[float, float]:
            """The slowest of some /health and of some searches, each on a connection of its own, in seconds."""
            slowest = [0.0, 0.0]
            for _ in range(count):
                for number, path in enumerate(("/health", "/?query=town")):
                    began = time.perf_counter()
                    assert httpx.get(server.url + path, headers=login, timeout=ENOUGH).status_code == 200
                    slowest[number] = max(slowest[number], time.perf_counter() - began)
            return slowest[0], slowest[1]

        quiet = probes(20)
        print(f"\nquiet: {figures(quiet)}")
        idle = memory(server.process.pid)
        with Flood(port, 1200, 12_000) as flood:
            assert flood.full.wait(ENOUGH)
            health, search = probes(20)
            heads = memory(server.process.pid)
            flooded_with_heads(port, 100, 4 << 20, stack)
            large = probes(20)
            peak = memory(server.process.pid)
            print(f"1,200 half heads, {flood.opened} opened: {figures((health, search))}, {heads - idle:+.0f} MB")
            print(f"and 100 of 4 MB: {figures(large)}, {peak - idle:+.0f} MB")
            assert max(health, large[0]) < max(1.0, 10 * quiet[0])
            assert max(heads, peak) < idle + 100
            body = json.dumps(
                {"queries": ["the town of the isles and the light on the harbour"] * 250, "k": 100}
            ).encode()
            ask = f"POST /search HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: {len(body)}"
            for _ in range(100):
                line = stack.enter_context(socket.socket())
                line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                line.connect(("127.0.0.1", port))
                line.sendall(f"{ask}\r\n\r\n".encode() + body)
                assert line.recv(12) == b"HTTP/1.1 200"
            unread, kept = probes(20), memory(server.process.pid)
            print(f"and 100 replies unread, of 5 MB each: {figures(unread)}, {kept - idle:+.0f} MB")
            assert kept < idle + 300, "max_unread, and what a reply takes while it is made"
            began = time.monotonic()
            code, result = server.end()
            print(f"SIGTERM to the end: {time.monotonic() - began:.1f} s; log: {len(result)} bytes")
        assert code == 0
        assert time.monotonic() - began < ServerLimits().stop_seconds
        assert len(result) < 1_000_000


def figures(slowest: tuple[float, float]) -> str:
    return f"slowest /health {1000 * slowest[0]:.0f} ms, slowest search {1000 * slowest[1]:.0f} ms"

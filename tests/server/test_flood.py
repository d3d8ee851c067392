"""A server under a flood of clients without its token: it answers, stays small, and ends when it is told to."""

from __future__ import annotations

import json
import resource
import socket
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from index_server import Process, sample_index

from blendfilter.server.exchange import ServerLimits

TOKEN = "2f6c91d0a45be873"
HALF_HEAD = b"GET /?query=town HTTP/1.1\r\nHost: localhost\r\nX-Half: "
ENOUGH = 60.0


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

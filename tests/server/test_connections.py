"""Connections that are no use: no HTTP, too many of them, a search that hangs while the server is to stop."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from index_server import Process, served

from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever
from blendfilter.server.exchange import ServerLimits

ENOUGH = 60.0
"""Seconds after which a test gives up; nothing here needs a tenth of it."""
HALF_HEAD = b"GET /?query=town HTTP/1.1\r\nHost: localhost\r\nX-Half: "
HALF_BODY = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"


class Waiting(Retriever):
    """A search lasts until `go` is set."""

    fingerprint = "0123456789abcdef"

    def __init__(self) -> None:
        self.go, self.begun = threading.Event(), threading.Event()

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.begun.set()
        assert self.go.wait(ENOUGH)
        return [[Passage("1", "", query)] for query in queries]


def test_what_is_no_http_is_refused_and_clients_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with served(Waiting()) as server, caplog.at_level(logging.WARNING):
        for sent in (b"nonsense\r\n\r\n", HALF_HEAD + b"x" * 200_000):
            with socket.create_connection(("127.0.0.1", server.port), timeout=ENOUGH) as line:
                line.sendall(sent)
                assert line.recv(20).startswith(b"HTTP/1.1 400")
        assert httpx.get(f"{server.url}/health").status_code == 200
    assert not [record for record in caplog.records if record.name.startswith("uvicorn")]


def test_beyond_its_connections_a_server_is_busy() -> None:
    index = Waiting()
    limits = ServerLimits(max_connections=2)
    with served(index, limits=limits) as server, ThreadPoolExecutor(1) as pool:
        first = pool.submit(httpx.get, server.url, params={"query": "first"}, timeout=ENOUGH)
        assert index.begun.wait(ENOUGH)
        assert httpx.get(f"{server.url}/health").status_code == 503
        index.go.set()
        assert first.result(ENOUGH).status_code == 200


def test_neither_idle_clients_nor_a_search_that_hangs_keep_the_process_from_ending() -> None:
    code = """
import time
from blendfilter.retrieval.callables import as_retriever
from blendfilter.server import index_server
from blendfilter.server.exchange import ServerLimits

server = index_server(as_retriever(lambda query, k: time.sleep(900)), port=0, limits=ServerLimits(stop_seconds=1))
server.run(ready=lambda: print(server.line("hangs"), flush=True))
"""
    with Process(code=code) as server, ThreadPoolExecutor(1) as pool:
        port = int(server.url.rpartition(":")[2])
        lines = [socket.create_connection(("127.0.0.1", port), timeout=ENOUGH) for _ in range(3)]
        for line, sent in zip(lines, (b"", HALF_HEAD, HALF_BODY), strict=True):
            line.sendall(sent)
        wanted = pool.submit(httpx.get, server.url, params={"query": "q"}, timeout=ENOUGH)
        while not httpx.get(f"{server.url}/info").json()["served"]["requests"]:
            time.sleep(0.01)
        assert server.end()[0] == 0
        assert wanted.result(ENOUGH).status_code == 500
        for line in lines:
            line.close()

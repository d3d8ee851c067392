"""`blendfilter serve` as a process: its line, its end, and what it refuses to start with."""

from __future__ import annotations

import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from index_server import Process, sample_index
from small_world import Command

from blendfilter.retrieval.bm25 import BM25

TOKEN = "2f6c91d0a45be873"
SLOW = """
import sys, time
from blendfilter.cli.app import _quiet_libraries
from blendfilter.records import Passage
from blendfilter.retrieval.callables import as_retriever
from blendfilter.server import index_server

def search(query, k):
    time.sleep(1.0)
    return ["Fell | A hill."]

_quiet_libraries()
server = index_server(as_retriever(search), port=0)
server.run(ready=lambda: print(server.line("slow"), flush=True))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("indexes") / "world"
    sample_index(where)
    return where


@pytest.fixture
def blendfilter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    monkeypatch.delenv("BLENDFILTER_INDEX_TOKEN", raising=False)
    return Command(monkeypatch, capsys)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_is_and_ends_well(folder: Path, how: int) -> None:
    fingerprint = BM25.open(folder).fingerprint
    with Process(folder, "--port", 0, "--max-k", 7) as server:
        found = re.fullmatch(
            rf"(http://127\.0\.0\.1:\d+) serves {folder}: bm25, 193 passages, fingerprint {fingerprint}; "
            rf'from DSPy: dspy\.ColBERTv2\(url="(http://127\.0\.0\.1:\d+/\?index={fingerprint})"\)',
            server.line,
        )
        assert found, server.line
        assert httpx.get(f"{found[2]}&query=town&k=7").status_code == 200
        assert len(httpx.get(found[1], params={"query": "the town", "k": 7}).json()["topk"]) == 7
        assert "at most 7" in httpx.get(found[1], params={"query": "town", "k": 8}).json()["message"]
        assert server.end(how) == (0, "blendfilter: stopped\n")


def test_what_is_in_flight_is_finished() -> None:
    with Process(code=SLOW) as server, ThreadPoolExecutor(4) as pool:
        wanted = [pool.submit(httpx.get, server.url, params={"query": f"q{number}"}) for number in range(3)]
        while httpx.get(f"{server.url}/info").json()["served"]["requests"] < 3:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.4)
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{server.url}/health")
        assert [each.result(timeout=20).status_code for each in wanted] == [200] * 3
        server.process.wait(20)  # a second signal would end it at once
        assert server.end() == (0, "")


def test_with_a_token_others_may_ask(folder: Path) -> None:
    with Process(folder, "--port", 0, "--host", "0.0.0.0", token=TOKEN) as server:
        assert "http://any:TOKEN@0.0.0.0:" in server.line
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        assert httpx.get(f"{url}/info").status_code == 401
        assert httpx.get(f"{url}/info", auth=("any", TOKEN)).status_code == 200
        assert (
            httpx.get(f"{url}/?query=a+private+question", headers={"Authorization": "Bearer guess"}).status_code == 401
        )
        code, result = server.end()
        assert code == 0
        assert TOKEN not in result + server.line
        assert "private" not in result


def test_without_one_they_may_not(folder: Path, blendfilter: Command) -> None:
    for host in ("0.0.0.0", "::"):
        refused = blendfilter("serve", folder, "--host", host, "--port", 0)
        assert (refused.code, refused.out, len(refused.notices)) == (2, "", 1)
        assert f"others can reach {host}, so a token is needed: set BLENDFILTER_INDEX_TOKEN" in refused.error


def test_a_token_that_can_be_guessed_opens_no_public_address(
    folder: Path, blendfilter: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLENDFILTER_INDEX_TOKEN", TOKEN[:15])
    refused = blendfilter("serve", folder, "--host", "0.0.0.0", "--port", 0)
    assert (refused.code, refused.out, len(refused.notices)) == (2, "", 1)
    assert "a token of at least 16 characters, not of 15, is needed: set BLENDFILTER_INDEX_TOKEN" in refused.error
    assert TOKEN[:15] not in refused.error


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "on 127.0.0.1 is in use: choose another (--port"),
        (["--port", 70000], "the port must lie between 0 (any free one) and 65535, got 70000"),
        (["--host", "no such host"], "'no such host' is no address to listen on"),
        (["--max-k", 0], "max_k is 0: give a whole number of 1 or more"),
    ],
)
def test_what_it_does_not_start_with(folder: Path, blendfilter: Command, words: list[object], expected: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused = blendfilter("serve", folder, "--port", port, *words)
    assert (refused.code, refused.out, len(refused.notices)) == (2, "", 1)
    assert expected in refused.error

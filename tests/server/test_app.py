"""The routes over a real connection: answers, limits, refusals, the token, batches, DSPy's own client."""

from __future__ import annotations

import base64
import math
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dspy
import httpx
import pytest
import requests
from dspy.clients.cache import Cache
from index_server import sample_index, served

from blendfilter.records import Passage
from blendfilter.retrieval.base import Hits, Retriever
from blendfilter.retrieval.bm25 import BM25
from blendfilter.server.app import knows
from blendfilter.server.exchange import ServerLimits, topk, without_paths

TOKEN = "2f6c91d0a4"
TOWN = "Which harbour town keeps a watch-house?"


@pytest.fixture(scope="module")
def index() -> BM25:
    return sample_index()


@pytest.fixture(scope="module")
def url(index: BM25) -> Iterator[str]:
    limits = ServerLimits(max_k=20, max_query_chars=500, max_body=20_000, max_queries=8)
    with served(index, limits=limits) as server:
        yield server.url


class Slow(Retriever):
    """Takes a while for each batch, or until it is told to go on, and remembers them."""

    fingerprint = "0123456789abcdef"

    def __init__(self, seconds: float = 0.05, lasts: threading.Event | None = None) -> None:
        self.seconds, self.lasts = seconds, lasts or threading.Event()
        if lasts is None:
            self.lasts.set()
        self.batches: list[tuple[list[str], int]] = []

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.batches.append((list(queries), k))
        time.sleep(self.seconds)
        self.lasts.wait(20)
        if any("broken" in query for query in queries):
            raise RuntimeError("a secret of the engine")
        return [Hits([Passage("1", "", f"{query} {k}")], cut="long" in query) for query in queries]

    def info(self) -> dict[str, Any]:
        return {**super().info(), "path": "somewhere/private"}


def test_the_two_formats_say_the_same(url: str, index: BM25) -> None:
    found = index(TOWN, k=3)
    for path in ("/", "/api/search"):
        got = httpx.get(url + path, params={"query": TOWN, "k": 3}).json()
        assert got == httpx.post(url + path, json={"query": TOWN, "k": 3}).json()
        assert [row["text"] for row in got["topk"]] == [passage.line for passage in found]
        assert [row["score"] for row in got["topk"]] == [passage.score for passage in found]
        assert [row["rank"] for row in got["topk"]] == [1, 2, 3]
        assert sum(row["prob"] for row in got["topk"]) == pytest.approx(1)
    got = httpx.post(f"{url}/search", json={"queries": ["zzz", TOWN], "k": 3}).json()
    assert got["fingerprint"] == index.fingerprint
    assert got["results"][0] == {"query_cut": False, "passages": []}
    assert [row["text"] for row in got["results"][1]["passages"]] == [passage.text for passage in found]


def test_info_and_health(url: str, index: BM25) -> None:
    assert httpx.get(f"{url}/health").json() == {"status": "ok"}
    result = httpx.get(f"{url}/info").json()
    assert (result["server"], result["fingerprint"], result["passages"]) == (
        "blendfilter",
        index.fingerprint,
        len(index),
    )
    assert result["index"]["kind"] == "bm25"
    assert result["limits"]["max_k"] == 20


def test_an_address_may_name_its_index(url: str, index: BM25) -> None:
    good = httpx.get(url, params={"index": index.fingerprint, "query": TOWN})
    assert good.status_code == 200
    for method in ("GET", "POST"):
        other = httpx.request(method, f"{url}/?index=0011223344556677&query=town", json={"query": TOWN, "k": 1})
        assert other.status_code == 409
        assert index.fingerprint in other.json()["message"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "expected"),
    [
        ("GET", "/", None, 400, "there is no query"),
        ("GET", "/?query=a&k=9999999999999999999999", None, 400, "give a whole number of 1 or more"),
        ("GET", "/?query=a&k=21", None, 400, "k=21 is more than this server gives: at most 20"),
        ("GET", "/?query=" + "a" * 501, None, 400, "a query of 501 characters: at most 500"),
        ("POST", "/", b'{"query": "\xff"}', 400, "the body is not JSON"),
        ("POST", "/", b"[" * 19_000, 400, "the body is not JSON"),
        ("POST", "/", b'{"k": ' + b"1" * 6000 + b"}", 400, "the body is not JSON"),
        ("POST", "/", b"[]", 400, "but a list: send an object"),
        ("POST", "/", b'{"query": ["a"]}', 400, "the query must be a string, got list"),
        ("POST", "/", b'{"query": "a", "k": true}', 400, "k is True: give a whole number of 1 or more"),
        ("POST", "/search", b'{"queries": ["a", ""]}', 400, "query 2 of 2 is empty"),
        ("POST", "/search", b'{"queries": [' + b'"a",' * 8 + b'"a"]}', 400, "9 queries in one request: at most 8"),
        ("POST", "/", b"x" * 2_000_000, 413, "at most 20,000 bytes (--max-body)"),
        ("GET", "/nowhere", None, 404, "Not Found"),
        ("GET", "/search", None, 405, "Not Allowed"),
    ],
)
def test_what_is_refused(url: str, method: str, path: str, body: bytes | None, status: int, expected: str) -> None:
    got = httpx.request(method, url + path, content=body)
    assert got.status_code == status, got.text
    assert got.headers["content-type"] == "application/json"
    result = got.json()
    assert result["error"] is True
    assert expected in result["message"]
    assert "\n" not in result["message"]
    assert httpx.get(url, params={"query": "town", "k": 1}).status_code == 200


def test_what_a_client_gave_up_is_not_searched() -> None:
    """One that loses patience tries again: its old queries must not stand before its new ones."""
    slow = Slow(lasts=threading.Event())
    with served(slow, limits=ServerLimits(max_batch=1)) as server, ThreadPoolExecutor(1) as pool:
        for path, body in (("/search", {"queries": ["a", "b", "c", "d"], "k": 1}), ("/", {"query": "e", "k": 1})):
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(server.url + path, json=body, timeout=0.3)
        with pytest.raises(httpx.ReadTimeout):
            httpx.get(server.url, params={"query": "f"}, timeout=0.3)
        stays = pool.submit(httpx.get, server.url, params={"query": "stays"}, timeout=20)
        while httpx.get(f"{server.url}/info").json()["served"]["requests"] < 4:
            time.sleep(0.005)
        time.sleep(0.1)  # the server hears that the others have gone
        slow.lasts.set()
        assert stays.result().status_code == 200
    assert [queries for queries, _ in slow.batches] == [["a"], ["stays"]]


def test_only_local_names_are_answered_without_a_token(url: str) -> None:
    assert httpx.get(f"{url}/health", headers={"Host": "localhost"}).status_code == 200
    for path in ("/health", "/info", "/?query=town"):
        refused = httpx.get(url + path, headers={"Host": "rebound.example:8893"})
        assert (refused.status_code, refused.json()["error"]) == (403, True)


def test_the_token_opens_every_route(index: BM25) -> None:
    with served(index, token=TOKEN) as server:
        assert httpx.get(f"{server.url}/health").json() == {"status": "ok"}
        for path in ("/info", "/?query=town", "/api/search?query=town"):
            for login in ({}, {"Authorization": "Bearer wrong"}):
                refused = httpx.get(server.url + path, headers=login)
                assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
                assert TOKEN not in refused.text
            assert httpx.get(server.url + path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
            assert httpx.get(server.url + path, auth=("any", TOKEN)).status_code == 200
        assert httpx.post(f"{server.url}/search", json={"queries": ["town"]}).status_code == 401
        # who holds the token may come by any name
        by_name = {"Authorization": f"Bearer {TOKEN}", "Host": "index.example"}
        assert httpx.get(f"{server.url}/info", headers=by_name).status_code == 200


def test_a_search_that_fails_is_told_without_its_reasons(caplog: pytest.LogCaptureFixture) -> None:
    with served(Slow(0)) as server:
        failed = httpx.post(f"{server.url}/search", json={"queries": ["good", "broken"]})
        assert httpx.post(f"{server.url}/search", json={"queries": ["good", "long"]}).json()["results"][1]["query_cut"]
    assert (failed.status_code, failed.json()) == (500, {"error": True, "message": "the search failed"})
    assert "a secret of the engine" in caplog.text


def test_a_full_queue_says_when_to_come_back() -> None:
    slow = Slow(lasts=threading.Event())
    with served(slow, limits=ServerLimits(max_queries=2, max_waiting=2)) as server, ThreadPoolExecutor(2) as pool:
        first = pool.submit(httpx.get, server.url, params={"query": "first"})
        while not slow.batches:
            time.sleep(0.005)
        waiting = pool.submit(httpx.post, f"{server.url}/search", json={"queries": ["a", "b"]})
        while httpx.get(f"{server.url}/info").json()["served"]["requests"] < 2:
            time.sleep(0.005)
        busy = httpx.get(server.url, params={"query": "late"})
        slow.lasts.set()
        assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")
        assert first.result().status_code == waiting.result().status_code == 200


def basic(text: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(text.encode()).decode()}


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": TOKEN},
        {"authorization": f"Token {TOKEN}"},
        {"authorization": f"Bearer {TOKEN}0"},
        {"authorization": "Basic %%%"},
        basic(f"{TOKEN}:"),
        basic(f"any:{TOKEN}:more"),
    ],
)
def test_the_token_is_known_in_its_two_forms_alone(headers: dict[str, str]) -> None:
    assert not knows(headers, TOKEN)
    assert knows({"authorization": f"bearer  {TOKEN} "}, TOKEN)
    assert knows(basic(f"any:{TOKEN}"), TOKEN)


def test_topk_is_what_colberts_server_sends() -> None:
    found = topk([Passage("7", "Fell", "A\nhill.", 2.0), Passage("x-1", "", "No title.", 2.0 - math.log(3))])["topk"]
    assert [row.pop("prob") for row in found] == [0.75, 0.25]  # e^0 : e^-ln 3 = 3 : 1
    assert found == [
        {"text": "Fell | A hill.", "long_text": "Fell | A hill.", "pid": 7, "rank": 1, "score": 2.0, "title": "Fell"},
        {"text": "No title.", "long_text": "No title.", "pid": "x-1", "rank": 2, "score": 2.0 - math.log(3)},
    ]
    assert topk([]) == {"topk": []}


def test_no_path_and_no_address_behind_this_machine_is_told() -> None:
    home = "/" + "home/ann/models"
    result = {
        "path": f"{home}/a",
        "of": [{"path": "b", "url": "http://inside:8893", "checkpoint": f"{home}/mini/"}],
        "at": f"file://{home}/c",
        "k1": 1,
    }
    assert without_paths(result) == {"of": [{"checkpoint": "mini"}], "at": "c", "k1": 1}


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """DSPy keeps what it found under address, query and k; each test must really ask."""
    monkeypatch.setattr(dspy, "cache", Cache(False, False, "", 0, 0))


@pytest.mark.parametrize("post", [False, True])
def test_colbertv2(url: str, index: BM25, post: bool) -> None:
    client = dspy.ColBERTv2(url=url, post_requests=post)
    found = client(TOWN, k=3)
    assert [row["long_text"] for row in found] == [row["text"] for row in found]
    assert [row.text for row in found] == [passage.line for passage in index(TOWN, k=3)]
    assert [str(row.pid) for row in found] == [passage.id for passage in index(TOWN, k=3)]
    assert client(TOWN, k=2, simplify=True) == [passage.line for passage in index(TOWN, k=2)]


@pytest.mark.parametrize("post", [False, True])
def test_colbertv2_with_a_token(index: BM25, post: bool) -> None:
    with served(index, token=TOKEN) as server:
        with_token = server.url.replace("://", f"://any:{TOKEN}@")
        assert dspy.ColBERTv2(url=f"{with_token}/", post_requests=post)(TOWN, k=1)[0].text == index(TOWN, k=1)[0].line
        with pytest.raises(requests.HTTPError, match="401"):
            dspy.ColBERTv2(url=server.url, post_requests=post)(TOWN, k=1)

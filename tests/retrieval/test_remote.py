"""An index behind an address: what it finds, its token, its journal, and servers that fail, refuse or lie."""

from __future__ import annotations

import copy
import json
import multiprocessing
import pickle
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from http_server import Answer, Request, answering
from hypothesis import given
from hypothesis import strategies as st
from index_server import sample_index, served

from blendfilter.context import CallNote, noting, setting
from blendfilter.errors import (
    AskedWrong,
    BadArgument,
    BadData,
    BlendFilterError,
    IndexChanged,
    ServerRefused,
)
from blendfilter.journal import Journal
from blendfilter.records import Passage
from blendfilter.retrieval import remote as wire
from blendfilter.retrieval.base import Hits, Retriever, cut_of
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.indexes import open_index
from blendfilter.retrieval.remote import Remote, ServerConnection, address_of, quoted
from blendfilter.server.exchange import ServerLimits

TOKEN = "2f6c91d0a4"
QUERIES = ["Which harbour town keeps a watch-house?", "lighthouse designer", "zzz", "the lens of Fallow Tooth"]


class Odd(Retriever):
    """Passages that are hard to carry; every other query is cut."""

    fingerprint = "0123456789abcdef"
    found = (
        Passage(
            "1", "Tïtle", "half \ud83d, 東京,\n a line and \x00", 0.1 + 0.2, {"start": 3, "of": [None, {"a": 1.5}]}
        ),
        Passage("x y", "", "  spaces kept  ", None),
    )

    def __init__(self) -> None:
        self.searches: list[str] = []

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.searches += queries
        return [Hits(self.found[:k], cut="cut" in query) for query in queries]


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "WAIT_FIRST", 0.01)
    monkeypatch.delenv("BLENDFILTER_INDEX_TOKEN", raising=False)


@pytest.fixture(scope="module")
def local() -> BM25:
    return sample_index()


@pytest.fixture(scope="module")
def url(local: BM25) -> Iterator[str]:
    with served(local, limits=ServerLimits(max_k=50)) as server:
        yield server.url


def test_it_finds_what_the_index_finds(url: str, local: BM25) -> None:
    remote = open_index(url)
    assert isinstance(remote, Remote)
    assert remote.search(QUERIES, 7) == local.search(QUERIES, 7)
    assert remote(QUERIES[0], k=1) == local(QUERIES[0], k=1)
    assert remote.fingerprint == local.fingerprint
    assert len(remote) == len(local)
    assert remote.search([], 3) == []
    assert {"kind": "remote", "of": "bm25", "url": url, "passages": len(local)}.items() <= remote.info().items()
    assert repr(remote) == f"Remote('{url}')"
    assert copy.deepcopy(remote) is remote


def test_odd_passages_and_cut_queries_come_whole() -> None:
    odd = Odd()
    with served(odd) as server:
        remote = open_index(server.url)
        here, there = odd.search(["plain", "cut \ud83d"], 2), remote.search(["plain", "cut \ud83d"], 2)
        assert here == there
        assert [dict(passage.metadata) for passage in there[0]] == [dict(passage.metadata) for passage in here[0]]
        assert [cut_of(hits) for hits in there] == [False, True]
        assert odd.searches[-1] == "cut \ud83d"
        with pytest.raises(TypeError, match="does not know how many"):
            len(remote)
        with noting() as notes:
            remote.search(["cut"], 1)
        assert notes == [CallNote("", "", "query_cut")]


def test_batches_keep_to_both_sides_limits(local: BM25) -> None:
    queries = [f"town number {number}" for number in range(23)]
    limits = ServerLimits(max_queries=10)
    for options, requests in (({}, 3), ({"batch_size": 4}, 6), ({"batch_size": 100}, 3)):
        with served(local, limits=limits) as server:
            remote = Remote(server.url, **options)
            assert remote.search(queries, 3) == local.search(queries, 3)
            assert remote._connection.request("/info")["served"]["requests"] == requests
    # 23 queries of about 600 bytes into bodies of 2,000
    long = [f"{query} {'ü' * 100}" for query in queries]
    with served(local, limits=ServerLimits(max_body=2_000)) as server:
        remote = Remote(server.url)
        assert remote.search(long, 3) == local.search(long, 3)
        assert remote._connection.request("/info")["served"]["requests"] == 8


def _in_a_child(remote: Remote, pipe: Any) -> None:
    pipe.send([passage.id for passage in remote("harbour town", k=2)])


def test_a_fork_goes_on_with_it(url: str, local: BM25) -> None:
    remote = Remote(url)
    expected = [passage.id for passage in remote("harbour town", k=2)]
    ours, theirs = multiprocessing.Pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads: what is tested
        child = multiprocessing.get_context("fork").Process(target=_in_a_child, args=(remote, theirs))
        child.start()
    assert ours.poll(20)
    assert ours.recv() == expected
    child.join(20)
    assert remote("harbour town", k=2) == local("harbour town", k=2)


# --- the token ------------------------------------------------------------------------------------------------------


def test_the_token_comes_from_three_places(local: BM25, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(local, token=TOKEN) as server:
        with pytest.raises(ServerRefused, match=r"wants a token: set BLENDFILTER_INDEX_TOKEN"):
            Remote(server.url)
        with pytest.raises(ServerRefused, match=r"does not know the token it was given"):
            Remote(server.url, token="guess")
        assert Remote(server.url, token=TOKEN)("town")
        by_login = Remote(server.url.replace("://", f"://any:{TOKEN}@") + "/")
        monkeypatch.setenv("BLENDFILTER_INDEX_TOKEN", TOKEN)
        for remote in (by_login, Remote(server.url)):
            assert remote("town", k=2) == local("town", k=2)
            assert remote.url == server.url
            assert TOKEN not in f"{remote!r} {remote} {remote.info()} {pickle.dumps(remote)!r}"
            again = pickle.loads(pickle.dumps(remote))
            assert (again.url, again.fingerprint) == (server.url, local.fingerprint)


# --- an index that changes, servers that are none -------------------------------------------------------------------


def test_a_rebuilt_index_is_noticed(local: BM25) -> None:
    with served(local) as server:
        remote = Remote(server.url)
        port = server.port
    rebuilt = sample_index(k1=1.2)
    with served(rebuilt, port=port):
        with pytest.raises(
            IndexChanged, match=rf"behind {server.url} was changed \({local.fingerprint} → {rebuilt.fingerprint}\)"
        ):
            remote("town")
        assert open_index(server.url)("town") == rebuilt("town")


def info(**other: Any) -> dict[str, Any]:
    return {"server": "blendfilter", "version": "0.1.0", "fingerprint": "00112233445566ff", "passages": 9, **other}


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"fingerprint": "00112233445566ff", "results": [{}]},
        {"fingerprint": "00112233445566ff", "results": [{"passages": []}, {"passages": []}]},
        {"fingerprint": "00112233445566ff", "results": [{"passages": [{"id": 1, "title": "", "text": ""}]}]},
        {"fingerprint": "00112233445566ff", "results": [{"passages": [{"id": "1", "title": "", "text": "t"}] * 6}]},
    ],
)
def test_replies_that_make_no_sense(monkeypatch: pytest.MonkeyPatch, reply: Any) -> None:
    replies = [info(), reply]
    monkeypatch.setattr(wire.ServerConnection, "request", lambda *_args, **_kwargs: replies.pop(0))
    remote = Remote("http://127.0.0.1:1")
    with pytest.raises(BadData, match=r"http://127.0.0.1:1 answered"):
        remote("town", k=5)


# --- the journal and runs -------------------------------------------------------------------------------------------


def searches(folder: Path) -> list[dict[str, Any]]:
    with Journal(folder, "replay") as journal:
        return sorted((dict(each) for each in journal.records()), key=json.dumps)


def test_a_journal_of_the_one_replays_with_the_other(url: str, local: BM25, tmp_path: Path) -> None:
    remote = Remote(url)
    for name, index in (("local", local), ("remote", remote)):
        with Journal(tmp_path / name) as journal, setting(journal=journal):
            index.search(QUERIES, 5)
    assert searches(tmp_path / "local") == searches(tmp_path / "remote")
    monkey = Remote(url)
    monkey._connection.url = "http://127.0.0.1:9"  # nobody is there
    with Journal(tmp_path / "local", "replay") as journal, setting(journal=journal):
        assert monkey.search(QUERIES, 5) == local.search(QUERIES, 5)


OK = (200, '{"fine": 1}', {})
Reply = tuple[int, str, dict[str, str]] | str


class FaultyServer:
    """A server that gives these replies in turn (`drop`: hangs up), then OK, and keeps what it was sent."""

    def __init__(self, *replies: Reply) -> None:
        self.replies = list(replies)
        self.requests: list[tuple[str, str, bytes]] = []
        self.headers: list[dict[str, str]] = []
        self.times: list[float] = []
        self.url = ""


@contextmanager
def faulty_server(*replies: Reply) -> Iterator[FaultyServer]:
    result = FaultyServer(*replies)

    def answer(request: Request) -> Answer | None:
        result.requests.append((request.method, request.path, request.content))
        result.headers.append({**request.headers})
        result.times.append(time.monotonic())
        reply = result.replies.pop(0) if result.replies else OK
        if isinstance(reply, str):
            request.handler.close_connection = True
            return None
        status, text, headers = reply
        return Answer(status, text.encode(), headers)

    with answering(answer) as result.url:
        yield result


def connection(server: FaultyServer, *, token: str | None = None, attempts: int = 4) -> ServerConnection:
    return ServerConnection(server.url, token, 5.0, attempts)


@pytest.mark.parametrize(
    "fault",
    [
        "drop",
        (429, '{"message": "slowly"}', {"Retry-After": "0"}),
        (500, '{"error": true, "message": "the search failed"}', {}),
        (200, "<html>a proxy's page</html>", {}),
        (200, "[" * 100_000, {}),
        (200, '{"fine": 1', {"content-length": "500", "connection": "close"}),
    ],
)
def test_what_passes_is_tried_again(fault: Reply) -> None:
    with faulty_server(fault, fault, fault) as result:
        assert connection(result).request("/search", b"{}") == {"fine": 1}
        assert result.requests == [("POST", "/search", b"{}")] * 4
    with faulty_server(*[fault] * 9) as result:
        with pytest.raises(ServerRefused, match=rf"the index server at {result.url} .*\(attempts: 2\)"):
            connection(result, attempts=2).request("/search", b"{}")
        assert len(result.requests) == 2


@pytest.mark.parametrize(
    ("reply", "error", "stated"),
    [
        ((400, '{"error": true, "message": "k=500 is more"}', {}), BadArgument, "refuses it: k=500 is more"),
        ((401, "{}", {}), ServerRefused, "wants a token: set BLENDFILTER_INDEX_TOKEN"),
        ((403, '{"message": "not\\nyou\\u001b[31m"}', {}), ServerRefused, "refuses with 403: not you [31m"),
        ((301, "", {"Location": "http://elsewhere.example"}), ServerRefused, "refuses with 301: Moved Permanently"),
    ],
)
def test_what_does_not_pass_is_told_at_once(reply: Reply, error: type[AskedWrong], stated: str) -> None:
    with faulty_server(reply) as result:
        with pytest.raises(error) as caught:
            connection(result).request("/search", b"{}")
        assert stated in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(result.requests) == 1


def test_a_servers_wait_is_kept_to() -> None:
    with faulty_server((503, "", {"Retry-After": "0.4"})) as result:
        connection(result).request("/info")
        assert result.times[1] - result.times[0] >= 0.4
    with faulty_server((503, "", {"Retry-After": "3600"})) as result:
        with pytest.raises(ServerRefused, match=r"failed with 503: .*\(attempts: 1\)"):
            connection(result).request("/info")
        assert len(result.requests) == 1, "an hour is not waited for"


@pytest.mark.parametrize("fault", ["drop", (401, "", {}), (500, f'{{"message": "token {TOKEN}?"}}', {})])
def test_the_token_is_sent_and_never_told(fault: Reply) -> None:
    with faulty_server(fault, fault) as result:
        sender = connection(result, token=TOKEN, attempts=2)
        with pytest.raises(BlendFilterError) as caught:
            sender.request("/info")
        assert all(headers["authorization"] == f"Bearer {TOKEN}" for headers in result.headers)
    error: BaseException | None = caught.value
    text = "".join(traceback.format_exception(caught.value))
    while error is not None:
        # a request holds its headers, and the token with them
        assert not hasattr(error, "request")
        error = error.__context__
    assert TOKEN not in text


def test_addresses() -> None:
    assert address_of("HTTP://Index.example") == ("http://index.example", "")
    assert address_of("https://index.example:8893/wiki//") == ("https://index.example:8893/wiki", "")
    assert address_of("http://token@127.0.0.1:1/") == ("http://127.0.0.1:1", "token")
    assert address_of("http://any:a%2Fb%40c@[::1]:1") == ("http://[::1]:1", "a/b@c")


@pytest.mark.parametrize(
    "url",
    [
        "", "index.example", "ftp://h", "http://", "http://:80", "http://h:0", "http://h:99999", "http://h:x",
        "http://[::1", "http://h/?query=secret", "http://h/#x", "http://any:secret/1@h", "http://any:12/secret@h",
        "http://any:secret@h/a@b", "http://any:secret@h:port",
    ],
)  # fmt: skip
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(BadArgument, match="is no index server's address: write it as http://host:port") as caught:
        address_of(url)
    assert "secret" not in "".join(traceback.format_exception(caught.value)).replace(f"{url!r}", "")


@given(st.text())
def test_any_text_is_an_address_or_told_as_none(text: str) -> None:
    for url in (text, f"http://{text}", f"http://any:{text}@h"):
        try:
            found = address_of(url)
        except BadArgument:
            continue
        assert found.url.startswith("http")
        assert "@" not in found.url


def test_what_a_server_says_is_made_harmless() -> None:
    assert quoted("a\n\x1b[2Jb\u2028c") == "a [2Jb c"
    assert len(quoted("x" * 5000)) == 301
    assert quoted(json.dumps({"token": TOKEN}), TOKEN) == '{"token": "[key]"}'

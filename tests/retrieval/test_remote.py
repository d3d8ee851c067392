"""An index behind an address: the same passages, scores and journal keys as in process; a rebuilt one is noticed."""

from __future__ import annotations

import copy
import json
import multiprocessing
import pickle
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dspy
import pytest
from index_server import sample_index, served
from small_world import done_by, stable

from blendfilter import BlendFilter, load
from blendfilter.context import JOURNAL, NOTES, CallNote, setting
from blendfilter.errors import BadArgument, BadData, IndexChanged, RunMismatch, ServerRefused
from blendfilter.journal import Journal
from blendfilter.records import Passage
from blendfilter.retrieval import remote as wire
from blendfilter.retrieval.base import Hits, Retriever, cut_of
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.indexes import open_index
from blendfilter.retrieval.remote import Remote
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
        self.asked: list[str] = []

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.asked += queries
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
    with served(odd) as server, open_index(server.url) as remote:
        here, there = odd.search(["plain", "cut \ud83d"], 2), remote.search(["plain", "cut \ud83d"], 2)
        assert here == there
        assert [dict(passage.metadata) for passage in there[0]] == [dict(passage.metadata) for passage in here[0]]
        assert [cut_of(hits) for hits in there] == [False, True]
        assert odd.asked[-1] == "cut \ud83d"
        with pytest.raises(TypeError, match="does not know how many"):
            len(remote)
        with setting(NOTES, []) as notes:
            remote.search(["cut"], 1)
        assert notes == [CallNote("", "", "query_cut")]


def test_batches_keep_to_both_sides_limits(local: BM25) -> None:
    queries = [f"town number {number}" for number in range(23)]
    limits = ServerLimits(max_queries=10)
    for options, requests in (({}, 3), ({"batch_size": 4}, 6), ({"batch_size": 100}, 3)):
        with served(local, limits=limits) as server, Remote(server.url, **options) as remote:
            assert remote.search(queries, 3) == local.search(queries, 3)
            assert remote._wire.ask("/info")["served"]["requests"] == requests
    # 23 queries of about 600 bytes into bodies of 2,000
    long = [f"{query} {'ü' * 100}" for query in queries]
    with served(local, limits=ServerLimits(max_body=2_000)) as server, Remote(server.url) as remote:
        assert remote.search(long, 3) == local.search(long, 3)
        assert remote._wire.ask("/info")["served"]["requests"] == 8


def test_what_the_server_does_not_allow(url: str) -> None:
    remote = Remote(url)
    with pytest.raises(BadArgument, match=r"k=51 is more than this server gives: at most 50"):
        remote("town", k=51)
    with pytest.raises(BadArgument, match=r"a query of 30,000 characters: at most 20,000"):
        remote("a" * 30_000)
    with pytest.raises(BadArgument, match=r"k must be at least 1"):
        remote("town", k=0)
    assert remote("town")


def test_more_than_the_corpus_holds_is_said_here_too() -> None:
    few = BM25.build([Passage("1", "Fell", "A hill.")])
    with served(few) as server, Remote(server.url) as remote:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert len(remote("hill", k=3)) == len(remote("a hill", k=3)) == 1
        here = [each for each in told if "k=3 is more than the corpus holds" in str(each.message)]
        assert len(here) == 2  # ours and the server's, which runs in this process


def test_threads_share_it(url: str, local: BM25) -> None:
    remote = Remote(url)
    queries = [f"town {number}" for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(remote, queries)) == [local(query) for query in queries]


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
            IndexChanged, match=rf"behind {server.url} was rebuilt \({local.fingerprint} → {rebuilt.fingerprint}\)"
        ):
            remote("town")
        assert open_index(server.url)("town") == rebuilt("town")


def test_a_restart_is_ridden_out(local: BM25) -> None:
    with served(local) as server:
        remote = Remote(server.url)
        remote("town")
    with served(local, port=server.port):
        assert remote("town", k=2) == local("town", k=2)
    with pytest.raises(ServerRefused, match=r"cannot be reached .*\(4 attempts\)"):
        remote("town")


def info(**other: Any) -> dict[str, Any]:
    return {"server": "blendfilter", "version": "0.1.0", "fingerprint": "00112233445566ff", "passages": 9, **other}


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ([], "is not a server of `blendfilter serve`"),
        ({"status": "fine"}, "is not a server of `blendfilter serve`"),
        (info(fingerprint="new"), "cannot be read: fingerprint"),
        (info(passages="many"), "cannot be read: passages"),
        (info(limits={"max_queries": 0}), "cannot be read: limits.max_queries"),
        (info(index=[]), "cannot be read: index"),
    ],
)
def test_who_does_not_speak_our_language(monkeypatch: pytest.MonkeyPatch, about: Any, said: str) -> None:
    monkeypatch.setattr(wire.ServerConnection, "ask", lambda *_args, **_kwargs: about)
    with pytest.raises(BadData, match=said):
        Remote("http://127.0.0.1:1")


@pytest.mark.parametrize(
    "reply",
    [
        None,
        [],
        {},
        {"fingerprint": "00112233445566ff"},
        {"fingerprint": "00112233445566ff", "results": [{}]},
        {"fingerprint": "00112233445566ff", "results": []},
        {"fingerprint": "00112233445566ff", "results": [{"passages": []}, {"passages": []}]},
        {"fingerprint": "00112233445566ff", "results": [{"passages": [{"id": 1, "title": "", "text": ""}]}]},
        {"fingerprint": "00112233445566ff", "results": [{"passages": [{"id": "1", "title": None, "text": ""}]}]},
        {"fingerprint": "00112233445566ff", "results": [{"passages": [{"id": "1", "title": "", "text": "t"}] * 6}]},
    ],
)
def test_replies_that_make_no_sense(monkeypatch: pytest.MonkeyPatch, reply: Any) -> None:
    replies = [info(), reply]
    monkeypatch.setattr(wire.ServerConnection, "ask", lambda *_args, **_kwargs: replies.pop(0))
    remote = Remote("http://127.0.0.1:1")
    with pytest.raises(BadData, match=r"http://127.0.0.1:1 answered"):
        remote("town", k=5)


@pytest.mark.parametrize("options", [{"attempts": 0}, {"batch_size": 0}, {"timeout": 0}, {"timeout": float("inf")}])
def test_settings_out_of_range(options: dict[str, Any]) -> None:
    with pytest.raises(BadArgument, match="must be 1 or more"):
        Remote("http://127.0.0.1:1", **options)


# --- the journal and runs -------------------------------------------------------------------------------------------


def searches(folder: Path) -> list[dict[str, Any]]:
    with Journal(folder, "replay") as journal:
        return sorted((dict(each) for each in journal.records()), key=json.dumps)


def test_a_journal_of_the_one_replays_with_the_other(url: str, local: BM25, tmp_path: Path) -> None:
    remote = Remote(url)
    for name, index in (("local", local), ("remote", remote)):
        with Journal(tmp_path / name) as journal, setting(JOURNAL, journal):
            index.search(QUERIES, 5)
    assert searches(tmp_path / "local") == searches(tmp_path / "remote")
    monkey = Remote(url)
    monkey._wire.url = "http://127.0.0.1:9"  # nobody is there
    with Journal(tmp_path / "local", "replay") as journal, setting(JOURNAL, journal):
        assert monkey.search(QUERIES, 5) == local.search(QUERIES, 5)


def test_a_run_goes_on_wherever_its_index_is(url: str, local: BM25, tmp_path: Path, fresh_dspy: None) -> None:
    questions = load("hotpotqa", "sample", limit=3)
    first, _ = done_by(BlendFilter(local), questions, tmp_path / "run")
    before = stable(first.folder)
    again, engine = done_by(BlendFilter(open_index(url)), questions, tmp_path / "run", replay=True)
    assert stable(again.folder) == before
    assert engine.calls == 0
    with served(sample_index(k1=1.2)) as other, pytest.raises(RunMismatch, match="retrievers"):
        done_by(BlendFilter(open_index(other.url)), questions, tmp_path / "run")


def test_dspy_is_configured_with_it(url: str, local: BM25, fresh_dspy: None) -> None:
    with dspy.context(rm=open_index(url)):
        assert dspy.Retrieve(k=2)(QUERIES[0]).passages == [passage.line for passage in local(QUERIES[0], k=2)]

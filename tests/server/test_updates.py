"""A server whose index is updated: it opens the new one, and no reply mixes the two."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from index_server import served

import blendfilter as bf
from blendfilter.errors import BadData, IndexChanged
from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.indexes import open_index
from blendfilter.server import app

TOWN = Passage("t", "Ormskerry", "A harbour town.")
PIER = Passage("p", "Tane", "A pier by the harbour.")


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "LOOK", 0.01)
    monkeypatch.setattr(app, "LOOK_AFTER_FAILURE", 0.01)


@pytest.fixture
def index(tmp_path: Path) -> BM25:
    return BM25.build([TOWN, Passage("h", "Fell", "A hill.")], tmp_path / "index")


def until(holds: Callable[[], bool]) -> None:
    for _ in range(2000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it never came to hold")


def fingerprint(url: str) -> str:
    return str(httpx.get(f"{url}/info").json()["fingerprint"])


def test_a_server_serves_the_updated_index_without_a_restart(index: BM25) -> None:
    with served(index) as server:
        remote = open_index(server.url)
        assert [hit.id for hit in remote("harbour", k=2)] == ["t"]
        new = index.update([PIER])
        until(lambda: fingerprint(server.url) == new.fingerprint)
        about = httpx.get(f"{server.url}/info").json()
        assert (about["passages"], about["served"]["requests"]) == (3, 1)
        with pytest.raises(
            IndexChanged, match=rf"was changed \({index.fingerprint} → {new.fingerprint}\): open it again"
        ):
            remote("harbour", k=2)
        assert open_index(server.url)("harbour", k=2) == new("harbour", k=2)
        old_address = httpx.get(server.url, params={"query": "harbour", "index": index.fingerprint})
        assert old_address.status_code == 409


class Numbered(Retriever):
    """Answers with its own number; `fresh` is its successor once there is one. The first waits for `go`."""

    def __init__(self, number: int) -> None:
        self.fingerprint = f"{number:016x}"
        self.next: Numbered | None = None
        self.begun, self.go = threading.Event(), threading.Event()

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.begun.set()
        assert self.go.wait(20)
        return [[Passage("1", "", self.fingerprint)] for _ in queries]

    def fresh(self) -> Retriever:
        return self.next or self


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def test_requests_in_flight_are_answered_by_the_index_that_they_came_to(pool: ThreadPoolExecutor) -> None:
    old, new = Numbered(1), Numbered(2)
    new.go.set()
    with served(old) as server:

        def ask(*queries: str) -> Any:
            return httpx.post(f"{server.url}/search", json={"queries": list(queries)}, timeout=30).json()

        first = pool.submit(ask, "a", "b")
        assert old.begun.wait(20)
        old.next = new
        until(lambda: fingerprint(server.url) == new.fingerprint)
        second = pool.submit(ask, "a", "b")  # the same query, of another index
        until(lambda: httpx.get(f"{server.url}/info").json()["served"]["requests"] == 2)
        old.go.set()
        for reply, wanted in ((first.result(30), old), (second.result(30), new)):
            assert reply["fingerprint"] == wanted.fingerprint
            assert {row["passages"][0]["text"] for row in reply["results"]} == {wanted.fingerprint}


def test_one_that_cannot_be_opened_is_said_once_and_the_old_one_serves_on(caplog: pytest.LogCaptureFixture) -> None:
    class Hidden(Numbered):
        """Its folder cannot be read, each time for another reason, until it has a successor."""

        looks = 0

        def fresh(self) -> Retriever:
            self.looks += 1
            if self.next is None:
                raise BadData(f"no index there, look {self.looks}")
            return self.next

    old, new = Hidden(1), Numbered(2)
    old.go.set()
    with served(old) as server, caplog.at_level(logging.WARNING, logger=app.__name__):
        until(lambda: old.looks > 3)
        assert httpx.get(server.url, params={"query": "harbour"}).json()["topk"][0]["text"] == old.fingerprint
        old.next = new
        until(lambda: fingerprint(server.url) == new.fingerprint)
    assert [record.getMessage() for record in caplog.records if record.name == app.__name__] == [
        f"{old.fingerprint} is served as it was opened: no index there, look 1",
        f"another index took the old one's place: {new.fingerprint} is served now",
    ]


def test_a_run_over_a_server_stops_when_its_index_is_updated(index: BM25, tmp_path: Path) -> None:
    """In one line. What it had found before is in its journal, under the old index's fingerprint, and replays."""
    questions = [bf.Question("q", "Which town has a harbour?", ("Ormskerry",))]
    with served(index) as server:
        remote = open_index(server.url)
        run = bf.evaluate(bf.Direct(remote, k=2), questions, lm="offline", run=tmp_path / "run")
        new = index.update([PIER])
        until(lambda: fingerprint(server.url) == new.fingerprint)
        with pytest.raises(IndexChanged, match=r"was changed \(.*\): open it again"):
            bf.evaluate(bf.Direct(remote, k=1), questions, lm="offline", run=tmp_path / "other")
        assert not (tmp_path / "other" / "predictions.jsonl").exists()
        again = bf.evaluate(bf.Direct(remote, k=2), questions, lm="offline", run=tmp_path / "run", replay=True)
        assert again.scores == run.scores

"""Other engines as indexes: the classes that docs/retrieval.md shows, run over stand-ins of the engines' clients.

A stand-in has the calls that a class makes, takes their arguments by the same names, and answers with records of the
same fields as the client that the document names: next-plaid-client 1.8.5, qdrant-client 1.20.0, elasticsearch 9.5.1,
lancedb 0.40.0. None of these is installed for the tests; the real ones gave the same with the same code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_docs import blocks

import blendfilter as bf
from blendfilter.context import setting
from blendfilter.journal import Journal

DOCUMENT = Path(__file__).parents[2] / "docs" / "retrieval.md"
ROWS = [
    {"id": "7", "title": "Fell", "text": "A hill."},
    {"id": "8", "title": "Ormskerry", "text": "A harbour town."},
    {"id": "9", "title": "Tane", "text": "A river by a town."},
]


def vectors(texts: Sequence[str]) -> Any:
    """How often the words of three topics occur: an encoder."""
    return np.array([[text.count(word) + 0.01 for word in ("hill", "town", "river")] for text in texts], np.float32)


def nearest(vector: Sequence[float], k: int) -> list[tuple[dict[str, str], float]]:
    """Rows with their cosine, best first: what an engine does inside."""
    own = vectors([row["text"] for row in ROWS])
    scores = own @ np.array(vector) / np.linalg.norm(own, axis=1) / np.linalg.norm(vector)
    return [(ROWS[at], float(scores[at])) for at in np.argsort(-scores, kind="stable")[:k]]


class NextPlaidClient:
    """`search` of texts posts to `/indices/NAME/search_with_encoding`; a result holds parallel lists."""

    def __init__(self, base_url: str = "http://localhost:8080", timeout: float = 30.0) -> None:
        assert base_url == "http://localhost:8080"

    def get_index(self, name: str) -> Any:
        return SimpleNamespace(name=name, num_documents=len(ROWS), num_embeddings=40, dimension=128, has_metadata=True)

    def search(self, index_name: str, queries: list[str], params: Any = None) -> Any:
        assert isinstance(queries, list)
        found = [nearest(vector, params.top_k) for vector in vectors(queries)]
        results = [
            SimpleNamespace(
                query_id=at,
                document_ids=[ROWS.index(row) for row, _ in one],
                scores=[score for _, score in one],
                metadata=[{"_subset_": ROWS.index(row), **row} for row, _ in one],
            )
            for at, one in enumerate(found)
        ]
        return SimpleNamespace(results=results, num_queries=len(queries))


class QdrantClient:
    """`query_batch_points` answers a `QueryResponse` a request, its points `ScoredPoint`s with whole-number ids."""

    def count(self, collection_name: str) -> Any:
        return SimpleNamespace(count=len(ROWS))

    def query_batch_points(self, collection_name: str, requests: Sequence[Any]) -> list[Any]:
        return [SimpleNamespace(points=self._points(request)) for request in requests]

    @staticmethod
    def _points(request: Any) -> list[Any]:
        assert all(type(number) is float for number in request.query), "pydantic refuses numpy's"
        found = nearest(request.query, request.limit)
        return [
            SimpleNamespace(
                id=int(row["id"]), version=0, score=score, payload={name: row[name] for name in request.with_payload}
            )
            for row, score in found
        ]


class Elasticsearch:
    """`search` answers the body as a mapping; `source` is the client's name for `_source`."""

    def count(self, *, index: str) -> dict[str, Any]:
        return {"count": len(ROWS), "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0}}

    def search(self, *, index: str, query: dict[str, Any], size: int, source: list[str]) -> dict[str, Any]:
        asked = query["multi_match"]
        assert asked["fields"] == ["title", "text"]
        hits = [
            {"_index": index, "_id": row["id"], "_score": score, "_source": {name: row[name] for name in source}}
            for row, score in nearest(vectors([asked["query"]])[0], size)
        ]
        total = {"value": len(hits), "relation": "eq"}
        return {"took": 1, "timed_out": False, "hits": {"total": total, "max_score": hits[0]["_score"], "hits": hits}}


class Table:
    """`search(vector).limit(k).to_list()`: rows with a `_distance`, the nearest first; each edit is a `version`."""

    def __init__(self, version: int = 1) -> None:
        self.version = version

    def search(self, vector: list[float]) -> Any:
        def limit(k: int) -> Any:
            found = nearest(vector, k)
            return SimpleNamespace(to_list=lambda: [{**row, "_distance": 1 - score} for row, score in found])

        return SimpleNamespace(limit=limit)


TABLE = Table()
CLIENTS = {
    "next_plaid_client": {"NextPlaidClient": NextPlaidClient, "SearchParams": SimpleNamespace},
    "qdrant_client": {"QdrantClient": QdrantClient, "models": SimpleNamespace(QueryRequest=SimpleNamespace)},
    "elasticsearch": {"Elasticsearch": Elasticsearch},
    "lancedb": {"connect": lambda folder: SimpleNamespace(open_table=lambda name: TABLE)},
}
MAKERS: dict[str, Callable[[Any], bf.Retriever]] = {
    "NextPlaid": lambda made: made("http://localhost:8080", "isle"),
    "Qdrant": lambda made: made(QdrantClient(), "isle", vectors),
    "Elastic": lambda made: made(Elasticsearch(), "isle"),
    "Lance": lambda made: made("lance", "isle", vectors),
}


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the document's blocks define, run as they stand."""
    for name, contents in CLIENTS.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    lines = DOCUMENT.read_text(encoding="utf-8").splitlines()
    space: dict[str, Any] = {"__name__": "document"}
    for block in blocks("\n".join(lines)):
        if block.language == "python" and "<!-- engine -->" in lines[max(0, block.line - 3) : block.line]:
            exec(compile(block.text, f"{DOCUMENT.name}, line {block.line}", "exec"), space)
    return space


@pytest.mark.parametrize("name", MAKERS)
def test_an_engine_is_an_index(name: str, shown: dict[str, Any], tmp_path: Path) -> None:
    """One search of two queries, best first, through a journal that answers the second time without the engine."""
    index = MAKERS[name](shown[name])
    queries = ["Which town has a harbour?", "Which river in a town?"]
    with Journal(tmp_path) as journal, setting(journal=journal):
        found = index.search(queries, k=2)
    assert [[passage.id for passage in hits] for hits in found] == [["8", "9"], ["9", "8"]]
    assert (found[0][0].title, found[0][0].text) == ("Ormskerry", "A harbour town.")
    assert all(hits[0].score > hits[1].score for hits in found)
    gone = MAKERS[name](shown[name])
    gone.find = None  # type: ignore[method-assign,assignment]
    with Journal(tmp_path, "replay") as journal, setting(journal=journal):
        assert gone.search(queries, k=2) == found


@pytest.mark.parametrize("name", MAKERS)
def test_its_fingerprint_says_when_its_answers_change(
    name: str, shown: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = MAKERS[name](shown[name]).fingerprint
    assert MAKERS[name](shown[name]).fingerprint == made
    monkeypatch.setattr(TABLE, "version", 2)
    monkeypatch.setattr(sys.modules[__name__], "ROWS", ROWS[:2])
    assert MAKERS[name](shown[name]).fingerprint != made


def test_every_class_of_the_document_is_tested(shown: dict[str, Any]) -> None:
    classes = {name for name, made in shown.items() if isinstance(made, type) and made.__module__ == "document"}
    assert {name for name in classes if issubclass(shown[name], bf.Retriever)} == MAKERS.keys()

"""Any callable is a retriever: the shapes its passages may have, how it is called, what stands for its fingerprint."""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import dspy
import numpy as np
import pytest
from dspy.clients.cache import Cache
from dspy.dsp.utils import dotdict
from index_server import sample_index, served

from blendfilter.errors import BadArgument
from blendfilter.records import Passage
from blendfilter.retrieval.callables import as_passage, as_retriever

TOWN = Passage("1", "Ormskerry", "A harbour town.", 2.5)


def towns(query: str, k: int) -> list[Passage]:
    return [TOWN] * 3


def test_an_index_stays_itself() -> None:
    index = as_retriever(towns)
    assert as_retriever(index) is index


@pytest.mark.parametrize(
    ("item", "title", "text", "name", "score"),
    [
        (TOWN, "Ormskerry", "A harbour town.", "1", 2.5),
        ("Ormskerry | A town | by the sea.", "Ormskerry", "A town | by the sea.", None, None),
        ("A town by the sea.", "", "A town by the sea.", None, None),
        ({"title": "Fell", "text": "A | hill.", "_id": 4}, "Fell", "A | hill.", "4", None),
        ({"contents": '"Fell"\nA hill.\nHigh.', "id": "w7"}, "Fell", "A hill.\nHigh.", "w7", None),
        ({"contents": "A hill."}, "", "A hill.", None, None),
        ({"contents": "A hill.", "id": np.float64(7)}, "", "A hill.", "7", None),
        ({"title": 1984, "text": "A year.", "passage_id": "p9"}, "1984", "A year.", "p9", None),
        ({"wikipedia_title": "Fell", "text": ["A hill.", "High."]}, "Fell", "A hill. High.", None, None),
        ({"title": "Fell", "text": None}, "Fell", "Fell", None, None),
        ({"contents": '"Fell"\r\nA hill.'}, "Fell", "A hill.", None, None),
        ({"text": "Fell | A hill.", "pid": 0, "score": 9, "rank": 1}, "Fell", "A hill.", "0", 9.0),
        ({"long_text": "Fell | A hill."}, "Fell", "A hill.", None, None),
        (SimpleNamespace(long_text="Fell | A hill.", score=0.5), "Fell", "A hill.", None, 0.5),
    ],
)  # fmt: skip
def test_every_shape_of_a_passage(item: Any, title: str, text: str, name: str | None, score: float | None) -> None:
    passage = as_passage(item)
    assert (passage.title, passage.text, passage.score) == (title, text, score)
    assert passage.id == name if name else re.fullmatch("[0-9a-f]{16}", passage.id)


class ByKeyword:
    def __call__(self, query: str, *, k: int = 3, simplify: bool = False) -> list[str]:
        assert simplify is False
        return [f"{query} {k}"] * k


def test_how_it_is_called() -> None:
    def renamed(question: str, top: int) -> list[str]:
        return [f"{question} {top}"]

    def only_query(question: str) -> list[str]:
        return [question]

    def simplifying(query: str, simplify: bool = False, k: int = 9) -> list[str]:
        return [f"{simplify} {k}"]

    assert [p.text for p in as_retriever(ByKeyword())("q", k=2)] == ["q 2", "q 2"]
    assert as_retriever(renamed)("q", k=4)[0].text == "q 4"
    assert as_retriever(only_query)("q", k=4)[0].text == "q"
    assert as_retriever(simplifying)("q", k=4)[0].text == "False 4"
    assert as_retriever(partial(renamed, top=7))("q", k=4)[0].text == "q 7"


LINES = ["Fell | A hill.", "Ormskerry | A harbour town.", "Tane | A river."]


def vectors(texts: str | list[str]) -> Any:
    """How often each of three letters occurs: an embedder as DSPy takes one."""
    return np.array([[text.count(letter) for letter in "abl"] for text in texts], dtype=float)


def test_a_prediction_of_dspy() -> None:
    def predicted(query: str, k: int) -> Any:
        return dspy.Prediction(passages=LINES[:k])

    assert [p.title for p in as_retriever(predicted)("q", k=2)] == ["Fell", "Ormskerry"]


def test_dspy_retrieve_over_whatever_is_configured(fresh_dspy: None) -> None:
    with dspy.context(rm=as_retriever(towns)):
        found = as_retriever(dspy.Retrieve(k=9))("q", k=2)
    assert [(passage.title, passage.text) for passage in found] == [("Ormskerry", "A harbour town.")] * 2


@pytest.mark.parametrize("post", [False, True])
def test_dspy_colbertv2_and_its_server(post: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """GET adds `long_text` to each row, POST leaves them as the server gives them; both have ids and scores."""
    monkeypatch.setattr(dspy, "cache", Cache(False, False, "", 0, 0))
    index = sample_index()
    with served(index) as server:
        client = as_retriever(dspy.ColBERTv2(url=server.url, post_requests=post))
        assert client("Which isle has a harbour?", k=3) == index("Which isle has a harbour?", k=3)


def test_dspy_embeddings_which_take_no_k() -> None:
    retriever = as_retriever(dspy.retrievers.Embeddings(LINES, vectors, k=3))
    assert [passage.title for passage in retriever("all", k=2)] == ["Fell", "Tane"], "cut to the k of the search"
    assert len(as_retriever(dspy.retrievers.Embeddings(LINES, vectors, k=1))("all", k=2)) == 1, "it finds no more"


def test_dspy_embeddings_over_other_texts_are_another_index() -> None:
    """Both have one class and no address: a journal must not serve the hits of one for the other."""
    made = dspy.retrievers.Embeddings
    kinds = [made(LINES, vectors), made(LINES[::-1], vectors), made([*LINES[:2], "Tane | A lake."], vectors)]
    kinds.append(made(LINES, vectors, k=2))
    assert len({as_retriever(each).fingerprint for each in kinds}) == 4
    assert as_retriever(kinds[0]).fingerprint == as_retriever(made(LINES, vectors)).fingerprint


class Weaviate(dspy.Retrieve):  # type: ignore[misc]  # dspy ships no types
    """Like DSPy's `WeaviateRM`, which wants a client: `Retrieve` by class, mappings of `long_text` by result."""

    def __init__(self, collection: str) -> None:
        super().__init__(k=3)
        self._weaviate_collection_name = collection

    def forward(self, query_or_queries: str | list[str], k: int | None = None, **_: Any) -> Any:
        assert isinstance(query_or_queries, str)
        return [dotdict({"long_text": line}) for line in LINES[: k or self.k]]


def test_a_client_like_dspys_weaviate() -> None:
    assert [passage.title for passage in as_retriever(Weaviate("Isle"))("q", k=2)] == ["Fell", "Ormskerry"]
    assert as_retriever(Weaviate("Isle")).fingerprint == as_retriever(Weaviate("Isle")).fingerprint
    assert as_retriever(Weaviate("Isle")).fingerprint != as_retriever(Weaviate("Hills")).fingerprint


def test_fingerprints_of_callables() -> None:
    """The name stands for the callable; what it states itself, or what the caller says, goes first."""
    assert as_retriever(towns).fingerprint == as_retriever(towns).fingerprint
    assert as_retriever(towns).fingerprint != as_retriever(ByKeyword()).fingerprint
    assert as_retriever(towns, fingerprint="v2").fingerprint != as_retriever(towns).fingerprint
    assert re.fullmatch("[0-9a-f]{16}", as_retriever(towns, fingerprint="v2").fingerprint)
    stated = ByKeyword()
    stated.fingerprint = "0123456789abcdef"  # type: ignore[attr-defined]
    assert as_retriever(stated).fingerprint == "0123456789abcdef"
    one, other = ByKeyword(), ByKeyword()
    one.url, other.url = "http://a", "http://b"  # type: ignore[attr-defined]
    assert as_retriever(one).fingerprint != as_retriever(other).fingerprint


@pytest.mark.parametrize("thing", [None, "indexes/wiki17", 5, ["a"], ByKeyword])
def test_what_cannot_search(thing: Any) -> None:
    with pytest.raises(BadArgument, match=r"cannot search: a retriever is an index .* or a callable \(query, k\)"):
        as_retriever(thing)


def test_an_async_function_is_refused() -> None:
    async def later(query: str, k: int) -> list[str]:
        return []

    with pytest.raises(BadArgument, match="is async: give a plain function"):
        as_retriever(later)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "returned is a NoneType: give a list of Passage records"),
        ("Fell | A hill.", "returned is a str: give a list of"),
        ({"passages": []}, "returned is a dict: give a list of"),
        ([3], "cannot read a int as a passage"),
        ([{"body": "x", 1: 2}], r"a mapping with the keys \['1', 'body'\] as a passage"),
    ],
)
def test_what_is_no_list_of_passages(returned: Any, message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        as_retriever(lambda query, k: returned)("q")

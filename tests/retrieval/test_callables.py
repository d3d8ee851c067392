"""Any callable is a retriever: the shapes its passages may have, how it is called, what stands for its fingerprint."""

from __future__ import annotations

import re
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

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


def test_a_dspy_retriever_and_its_prediction(fresh_dspy: None) -> None:
    import dspy

    def predicted(query: str, k: int) -> Any:
        return dspy.Prediction(passages=["Fell | A hill.", "Ormskerry | A town."][:k])

    assert [p.title for p in as_retriever(predicted)("q", k=2)] == ["Fell", "Ormskerry"]
    with dspy.context(rm=as_retriever(towns)):
        assert as_retriever(dspy.Retrieve(k=9))("q", k=2)[0].title == "Ormskerry"


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
        (None, "returned NoneType, not a list of passages"),
        ("Fell | A hill.", "returned str, not a list of passages"),
        ({"passages": []}, "returned dict, not a list of passages"),
        ([3], "cannot read a int as a passage"),
        ([{"body": "x", 1: 2}], r"a mapping with the keys \['1', 'body'\] as a passage"),
    ],
)
def test_what_is_no_list_of_passages(returned: Any, message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        as_retriever(lambda query, k: returned)("q")

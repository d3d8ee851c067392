"""The interface of every index: what a search refuses, how an index is copied, and that DSPy can use it."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Sequence

import pytest

from blendfilter.context import NOTES, STAGE, CallNote, setting
from blendfilter.errors import BadArgument
from blendfilter.records import Passage
from blendfilter.retrieval.base import CutQueries, Hits, Retriever, ShortCorpus, check_search, fingerprint_of

TOWN = Passage("1", "Ormskerry", "A harbour town.", 2.0)


class Fixed(Retriever):
    fingerprint = "0123456789abcdef"

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        check_search(queries, k)
        return [[TOWN][:k] for _ in queries]


def test_calling_an_index_searches_for_one_query() -> None:
    assert Fixed()("where?") == [TOWN]
    assert Fixed()("where?", k=1, with_metadata=True) == [TOWN]


def test_an_index_of_unknown_length_is_still_something() -> None:
    assert Fixed()
    with pytest.raises(TypeError, match="does not know how many"):
        len(Fixed())
    assert Fixed().info() == {"kind": "Fixed", "fingerprint": "0123456789abcdef"}


def test_copies_of_an_index_are_the_index() -> None:
    index = Fixed()
    assert copy.deepcopy({"held": index})["held"] is index
    assert copy.copy(index) is index


@pytest.mark.parametrize(
    ("queries", "k", "message"),
    [
        (["a"], 0, "k must be at least 1, got 0"),
        (["a"], -3, "k must be at least 1, got -3"),
        (["a"], True, "k must be a whole number, got True"),
        (["a"], 2.0, "k must be a whole number, got 2.0"),
        ([""], 1, "the query is empty (''): there is nothing to search for"),
        (["a", " \n"], 1, "query 2 of 2 is empty (' \\n'): there is nothing to search for"),
        (["a", None], 1, "query 2 of 2 must be a string, got NoneType"),
        ("one question", 1, "search takes a list of queries, got one string"),
    ],
)
def test_what_no_index_searches(queries: Sequence[str], k: int, message: str) -> None:
    with pytest.raises(BadArgument, match=re.escape(message)):
        Fixed().search(queries, k)


def test_no_queries_no_lists() -> None:
    assert Fixed().search([], 5) == []


def test_a_fingerprint_is_16_hex_digits_and_knows_its_parts_apart() -> None:
    assert re.fullmatch("[0-9a-f]{16}", fingerprint_of("bm25", {"k1": 0.9}))
    assert fingerprint_of("ab", "c") != fingerprint_of("a", "bc")


def test_a_k_above_the_corpus_is_said_once() -> None:
    short = ShortCorpus(3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        short.check(3)
    with pytest.warns(UserWarning, match="k=4 is more than the corpus holds: at most 3 passages"):
        short.check(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        short.check(5)


class Cutting(Fixed):
    """Reads two words of a query."""

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [Hits([TOWN], cut=len(query.split()) > 2) for query in queries]


def test_a_query_that_was_cut_is_noted_for_the_stage_that_searches() -> None:
    notes: list[CallNote] = []
    with setting(NOTES, notes), setting(STAGE, "external"):
        found = Cutting().search(["one", "one two three", "four five six"], 1)
        Fixed().search(["one two three"], 1)
    assert found == [[TOWN]] * 3
    assert notes == [CallNote("external", "", "query_cut")] * 2


def test_outside_a_method_nobody_keeps_notes() -> None:
    assert Cutting()("one two three") == [TOWN]
    assert NOTES.get() is None


def test_cut_queries_are_said_once() -> None:
    cut = CutQueries("the encoder reads 32 tokens")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cut.check("short", False)
    with pytest.warns(
        UserWarning, match=r"a query of 1,200 words was cut: the encoder reads 32 tokens; each one is flag"
    ):
        cut.check("word " * 1200, True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cut.check("another one", True)


def test_dspy_retrieve_reads_an_index(fresh_dspy: None) -> None:
    import dspy

    with dspy.context(rm=Fixed()):
        assert dspy.Retrieve(k=1)("where?").passages == ["Ormskerry | A harbour town."]


def test_a_module_that_holds_an_index_copies_without_it(fresh_dspy: None) -> None:
    import dspy

    class Holder(dspy.Module):  # type: ignore[misc]
        def __init__(self, index: Retriever) -> None:
            super().__init__()
            self.index = index

    holder = Holder(Fixed())
    assert holder.deepcopy().index is holder.index
    assert holder.dump_state() == {}

"""A query's passages are a list like any other, which may say that the query was cut."""

from __future__ import annotations

from blendfilter.records import Passage
from blendfilter.retrieval.base import Hits, cut_of

TOWN = Passage("1", "Ormskerry", "A harbour town.")


def test_hits_are_a_list() -> None:
    hits = Hits(iter([TOWN, TOWN]))
    assert hits == [TOWN, TOWN]
    assert isinstance(hits, list)
    assert Hits() == []


def test_only_hits_can_say_that_the_query_was_cut() -> None:
    assert cut_of(Hits([TOWN], cut=True))
    assert not cut_of(Hits([TOWN]))
    assert not cut_of([TOWN])
    assert not cut_of(Hits([TOWN, TOWN], cut=True)[:1]), "a slice is a plain list: whoever slices says it again"

"""Records: how excerpts keep their places."""

from __future__ import annotations

import itertools
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import BadArgument
from blendfilter.records import Excerpt, Passage, Span, cell, plain

TEXT = "A town. It has a pier. It rains."
TOWN = Passage("1", "Ormskerry", TEXT, score=2.5)


def test_a_text_alone_is_a_passage() -> None:
    passage = Passage("A town.")
    assert (passage.title, passage.text, passage.score, passage.line) == ("", "A town.", None, "A town.")
    assert Passage("A town.").id == passage.id != Passage("A pier.").id
    titled = Passage("A town.", title="Ormskerry")
    assert titled == Passage(text="A town.", title="Ormskerry")
    assert (titled.line, Passage("A town.", id="7").id) == ("Ormskerry | A town.", "7")
    assert Passage("7", title="Ormskerry", text="A town.") == Passage("7", "Ormskerry", "A town.")
    with pytest.raises(TypeError, match=r"a text .*, or an id, a title and a text"):
        Passage("Ormskerry", "A town.")  # type: ignore[call-overload]


@pytest.mark.parametrize("empty", [None, float("nan"), np.float32("nan"), np.datetime64("NaT"), Decimal("NaN")])
def test_an_empty_cell_is_none_however_a_table_writes_it(empty: object) -> None:
    assert plain({"a": [empty], "b": np.array([empty, "x"], dtype=object)}) == {"a": [None], "b": [None, "x"]}
    assert cell(empty) is None


def test_pandas_has_empty_cells_of_its_own() -> None:
    pandas = pytest.importorskip("pandas")
    assert plain([pandas.NA, pandas.NaT, pandas.Series([1.5, None])]) == [None, None, [1.5, None]]


def test_arrays_are_lists_and_numbers_pythons() -> None:
    value = plain({"a": np.array([[1, 2], [3, 4]]), "b": np.int64(3), "c": (np.bool_(True), np.str_("x")), "d": 2.0})
    assert value == {"a": [[1, 2], [3, 4]], "b": 3, "c": (True, "x"), "d": 2.0}
    assert [type(part) for part in (value["b"], *value["c"], value["d"])] == [int, bool, str, float]


def test_the_id_and_title_of_a_passage_are_texts_whatever_a_table_made_of_them() -> None:
    assert Passage(np.int64(7), 1790.0, "A town.") == Passage("7", "1790", "A town.")  # type: ignore[call-overload]
    assert Passage("A town.", id=float("nan"), title=float("nan")) == Passage("A town.")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="takes a text"):
        Passage("7", "Ormskerry", float("nan"))  # type: ignore[call-overload]


def test_pieces_stand_in_the_order_of_the_text_and_are_verbatim() -> None:
    kept = Excerpt.of(TOWN, [(23, 32), (0, 7)])
    assert kept.spans == (Span(0, 7, "A town."), Span(23, 32, "It rains."))
    assert (kept.id, kept.title, kept.score) == ("1", "Ormskerry", 2.5)
    assert kept.line == "Ormskerry | A town. It rains."


def test_two_filters_words_on_one_passage_are_joined() -> None:
    both = Excerpt.of(TOWN, [(0, 7)]).scored(1.5).joined(Excerpt.of(TOWN, [(23, 32)]))
    assert both.text == "A town. It rains."
    assert both.score == 1.5  # the first one's, which may not be its source's


@pytest.mark.parametrize("place", [(-1, 3), (3, 3), (5, 3), (0, 33)])
def test_a_place_outside_the_text_is_refused(place: tuple[int, int]) -> None:
    with pytest.raises(BadArgument, match="passage '1', of 32 characters"):
        Excerpt.of(TOWN, [place])


@given(st.lists(st.tuples(st.integers(0, 31), st.integers(1, 32)).filter(lambda p: p[0] < p[1]), min_size=1))
def test_every_piece_is_verbatim_and_none_overlap(places: list[tuple[int, int]]) -> None:
    spans = Excerpt.of(TOWN, places).spans
    assert all(TEXT[span.start : span.end] == span.text for span in spans)
    assert all(a.end < b.start for a, b in itertools.pairwise(spans))
    assert {i for s, e in places for i in range(s, e)} == {i for s in spans for i in range(s.start, s.end)}

"""Pieces: whatever a text holds, its pieces joined are the text, and what is repeated is stored once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from blendfilter.report.page import inlined, packed
from blendfilter.report.page_traces import Pieces

TEXTS = st.lists(
    st.text() | st.sampled_from(["\n", "knowledge 0: ", " | ", "knowledge 12: A | b | c", "|", "\r\n", "\ud800"])
).map("".join)


@given(st.lists(TEXTS))
def test_the_pieces_of_a_text_joined_are_the_text(texts: list[str]) -> None:
    pieces = Pieces()
    numbers = [pieces.of(text) for text in texts]
    table = pieces.table
    assert ["".join(table[number] for number in each) for each in numbers] == texts
    assert len(set(table)) == len(table)


def test_a_passage_is_stored_once_under_any_number() -> None:
    pieces = Pieces()
    pieces.of("knowledge 0: Ormskerry | A town.\nQuestion: where?")
    before = len(pieces.table)
    pieces.of("knowledge 3: Ormskerry | A town.\nQuestion: where?")
    pieces.of("Ormskerry | A town.")
    assert pieces.table[before:] == ["knowledge 3: "]
    assert pieces.one("A town.") < before


@given(TEXTS)
def test_data_in_a_page_neither_opens_nor_closes_a_tag(text: str) -> None:
    assert not set(inlined([text])) & set("<>&")
    assert inlined([text]).isascii()
    assert packed([text]).isascii()
    assert "<" not in packed([text])

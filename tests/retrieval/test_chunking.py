"""Long texts into passages: word for word, in order, nothing lost, cut where a reader would cut."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import BadArgument
from blendfilter.retrieval.documents import chunk, chunk_size, headings


def cut(text: str, words: int) -> list[str]:
    return [text[start:end] for start, end in chunk(text, words)]


WRITTEN = st.lists(
    st.sampled_from(
        ["mill", "sea.", "Why?", 'said."', "東京", "\n", "\n\n", "\r\n\r\n", " ", "\t", "# Tides\n", "## ", "\n====\n",
         "---\n", "```\n", "\ufeff", "\x0b", "\x85", "*", "~~~"]
    ),
    max_size=60,
).map("".join)  # fmt: skip


@given(st.one_of(WRITTEN, st.text()), st.integers(1, 12))
def test_every_word_is_kept_once_in_order_within_the_limit(text: str, words: int) -> None:
    spans = chunk(text, words)
    pieces = [text[start:end] for start, end in spans]
    assert all(0 <= start < end <= len(text) for start, end in spans)
    assert all(before.end <= after.start for before, after in pairwise(spans))
    assert all(piece == piece.strip() for piece in pieces)
    assert all(len(piece.split()) <= words for piece in pieces)
    assert [word for piece in pieces for word in piece.split()] == text.split()


@given(st.one_of(WRITTEN, st.text()))
def test_headings_are_lines_of_the_text(text: str) -> None:
    found = headings(text)
    assert all(before.end <= after.start for before, after in pairwise(found))
    assert all(each.level >= 1 and each.title and each.title in text[each.start : each.end] for each in found)


def test_paragraphs_are_packed_together() -> None:
    assert cut("one two\n\nthree\n\nfour five\n \t\nsix", 4) == ["one two\n\nthree", "four five\n \t\nsix"]
    assert cut("one two\nthree four\n\nfive", 4) == ["one two\nthree four", "five"], "a line break ends no paragraph"
    assert cut("one\r\n\r\ntwo three\r\n\r\nfour", 3) == ["one\r\n\r\ntwo three", "four"]


def test_a_paragraph_that_fits_is_not_cut_to_fill_the_one_before() -> None:
    assert cut("a b c.\n\nd e. f g", 5) == ["a b c.", "d e. f g"]


def test_a_long_paragraph_ends_at_a_sentence_in_the_last_third() -> None:
    assert cut("a b c d e. f g h i j", 6) == ["a b c d e.", "f g h i j"]
    assert cut('a b c d "Why?" f g h', 6) == ['a b c d "Why?"', "f g h"]
    assert cut("a b c d. e! f g h i j", 6) == ["a b c d. e!", "f g h i j"], "the last of them"
    assert cut("a b c d. e f g h i j", 6) == ["a b c d. e f", "g h i j"], "the fourth word of six is too early"
    assert cut("a b v1.5 d e/f.g f g", 6) == ["a b v1.5 d e/f.g f", "g"], "a full stop inside a word ends nothing"


def test_what_is_left_of_a_long_paragraph_takes_the_next_one_in() -> None:
    assert cut("a b c d e\n\nf g", 4) == ["a b c d", "e\n\nf g"]


def test_a_heading_goes_with_what_follows() -> None:
    assert cut("a b c\n\n# Tides\n\nd e f", 5) == ["a b c", "# Tides\n\nd e f"]
    assert cut("a b c\n# Tides\nd e f", 5) == ["a b c", "# Tides\nd e f"], "blank lines or not"
    assert cut("a b c\n\nTides\n=====\n\nd e f", 5) == ["a b c", "Tides\n=====\n\nd e f"]
    assert cut("a b\n\n# One\n\n## Two\n\nd e f", 7) == ["a b", "# One\n\n## Two\n\nd e f"], "two of them"
    assert cut("a b c\n\n# T\n\nd e f. g h i j k", 6) == ["a b c", "# T\n\nd e f. g", "h i j k"], "and a long paragraph"
    assert cut("# a b c d\n\ne f g", 5) == ["# a b c d", "e f g"], "not one that takes up the room"
    assert cut("# a b c d e f g\nx", 3) == ["# a b", "c d e", "f g\nx"], (
        "longer than a passage, it is text like any other"
    )


def test_words_without_end() -> None:
    assert cut("x" * 9000, 1) == ["x" * 9000]
    assert cut("", 5) == cut(" \n\n ", 5) == []


def test_long_texts_take_time_in_proportion() -> None:
    def seconds(size: int) -> float:
        started = time.process_time()
        assert len(chunk("word " * size, 10)) == size // 10
        assert len(chunk("word\n\n" * size, size)) == 1
        return time.process_time() - started

    assert seconds(60_000) < 3 * 6 * seconds(10_000)  # in squares, it would be 36 times


def test_headings_of_both_kinds() -> None:
    text = (
        "---\ntitle: Front matter\n---\n\n# Guide #\n\n```sh\n# a comment\n```\n## Install it\n####### seven\n#tag\n"
        "Windows\n-------\n\ntext before\na line over two lines\n-----\n\n##  \n"
        "\n~~~\n# fenced\n```\n# still\n~~~\n# End C#\n"
    )
    assert [(each.level, each.title) for each in headings(text)] == [(1, "Guide"), (2, "Install it"), (1, "End C#")]


def test_levels_of_drawn_headings_go_by_first_appearance() -> None:
    text = "=====\nGuide\n=====\n\nA\n---\n\nB\n~~~~\n\nC\n---\n"
    found = headings(text)
    assert [(each.level, each.title) for each in found] == [(1, "Guide"), (2, "A"), (3, "B"), (2, "C")]
    assert text[found[0].start : found[0].end] == "=====\nGuide\n=====\n"


@pytest.mark.parametrize(
    "size", ["100", "0w", "abc", "", "w", "-5w", "1.5w", "100 w", "01w", "100W", "１w", "9" * 40 + "w"]
)
def test_sizes_that_are_none(size: str) -> None:
    with pytest.raises(BadArgument, match=re.escape(f"a number of words with a w, such as 100w; got '{size}'")):
        chunk_size(size)


def test_sizes() -> None:
    assert (chunk_size("1w"), chunk_size(" 250w ")) == (1, 250)
    for words in (0, -1, True, 2.0, "5"):
        with pytest.raises(BadArgument, match="at least one word"):
            chunk("a", words)  # type: ignore[arg-type]

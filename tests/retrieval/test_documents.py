"""Folders of text files, and long texts, as passages: where they are cut, their titles, what is refused."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import BadArgument, BadData, EmptyData, MissingFile
from blendfilter.records import Passage, one_line
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.documents import chunk, chunked, headings, read_documents, sections

GUIDE = (
    "# Guide\n\nRead me first.\n\n## Install\r\n\r\nTake the ferry to Bremsund. Then walk.\n\n"
    "### Windows\n\nBoard them up.\n"
)


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "guide.md").write_bytes(GUIDE.encode())
    (folder / "z.txt").write_text("# not a title here\n\nA quay.")
    (folder / "a.RST").write_text("Preface.\n\nTides\n=====\n\nTwice a day.")
    return folder


def test_files_in_order_with_titles_and_places(docs: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = list(read_documents(docs, words=5))
    assert [(each.id, each.title, each.text) for each in found] == [
        ("a.RST#0", "a", "Preface."),
        ("a.RST#1", "Tides", "Twice a day."),
        ("z.txt#0", "z", "# not a title here"),
        ("z.txt#1", "z", "A quay."),
        ("b/guide.md#0", "Guide", "Read me first."),
        ("b/guide.md#1", "Guide > Install", "Take the ferry to Bremsund."),
        ("b/guide.md#2", "Guide > Install", "Then walk."),
        ("b/guide.md#3", "Guide > Install > Windows", "Board them up."),
    ]
    for each in found:
        source = (docs / each.metadata["source"]).read_bytes().decode()
        assert source[each.metadata["start"] : each.metadata["end"]] == each.text


def test_every_heading_begins_a_passage_that_it_titles(tmp_path: Path) -> None:
    """However much would fit, so that the titles of a file do not depend on the limit."""
    (tmp_path / "x.md").write_text("# Goose\n\nIt flew.\n\n## Nest\nSix eggs.\n\n# Marigold\n\nIt is orange.\n")
    expected = [("Goose", "It flew."), ("Goose > Nest", "Six eggs."), ("Marigold", "It is orange.")]
    for words in (3, 100):
        assert [(each.title, each.text) for each in read_documents(tmp_path, words)] == expected


def test_a_heading_without_text_of_its_own(tmp_path: Path) -> None:
    """It stands in the titles of those below it; where there are none, its words are the text, in their place."""
    text = "# Guide\n\n## Install\n\n### Linux\nUnpack it.\n\n## Buy *more* rope ##\n\n# Index\nLast."
    (tmp_path / "x.md").write_text(text)
    found = list(read_documents(tmp_path))
    assert [(each.title, each.text) for each in found] == [
        ("Guide > Install > Linux", "Unpack it."),
        ("Guide > Buy *more* rope", "Buy *more* rope"),
        ("Index", "Last."),
    ]
    assert [text[each.metadata["start"] : each.metadata["end"]] for each in found] == [each.text for each in found]


def test_what_is_left_out_is_said_once(docs: Path, tmp_path: Path) -> None:
    (docs / ".hidden.txt").write_text("no")
    (docs / ".git").mkdir()
    (docs / ".git" / "notes.txt").write_text("no")
    (docs / "picture.png").write_bytes(b"\xff")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret.txt").write_text("no")
    (docs / "way-out").symlink_to(tmp_path / "outside")
    (docs / "secret.txt").symlink_to(tmp_path / "outside" / "secret.txt")
    (docs / "round").symlink_to(docs)
    with pytest.warns(UserWarning, match="3 text files are read, 3 of other kinds, hidden or links left out"):
        found = list(read_documents(docs))
    assert not [each for each in found if "no" in each.text.split()]
    assert {each.metadata["source"] for each in found} == {"a.RST", "z.txt", "b/guide.md"}


def test_a_file_that_is_not_utf8(docs: Path) -> None:
    (docs / "old.txt").write_bytes(b"caf\xe9")
    with pytest.raises(BadData, match=re.escape("old.txt: not UTF-8 (byte 4): save the file as UTF-8")):
        list(read_documents(docs))


def test_what_is_no_folder_of_documents(docs: Path, tmp_path: Path) -> None:
    """All of it is said at the call, before anybody asks for the first passage."""
    with pytest.raises(MissingFile, match="no folder"):
        read_documents(tmp_path / "gone")
    (tmp_path / "rows.jsonl").write_text("{}")
    with pytest.raises(BadData, match="is a file, not a folder"):
        read_documents(tmp_path / "rows.jsonl")
    with pytest.raises(BadArgument, match="words is 0: give a whole number of 1 or more"):
        read_documents(docs, 0)
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    with pytest.raises(EmptyData, match=re.escape("has no text files (.txt, .md, .markdown, .rst)")):
        read_documents(tmp_path / "empty")
    BM25.build([Passage("1", "Fell", "A hill.")], tmp_path / "index")
    with pytest.raises(BadArgument, match=r"is an index already \(of kind bm25\): search it as it is"):
        read_documents(tmp_path / "index")


def test_long_passages_are_cut_as_they_come() -> None:
    wanted: list[str] = []

    def passages() -> Iterator[Passage]:
        for name in "ab":
            wanted.append(name)
            yield Passage(name, "Mill", " It turns. It stops. ", 3.0, {"year": 1871, "start": "x"})

    found = chunked(passages(), words=2)
    first = next(found)
    assert wanted == ["a"], "one passage at a time"
    assert (first, first.score) == (Passage("a#0", "Mill", "It turns."), None)
    assert first.metadata == {"year": 1871, "source": "a", "start": 1, "end": 10}
    assert [(each.id, each.text) for each in found] == [
        ("a#1", "It stops."),
        ("b#0", "It turns."),
        ("b#1", "It stops."),
    ]


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


@given(st.one_of(WRITTEN, st.text()))
def test_sections_leave_out_nothing_but_headings(text: str) -> None:
    """Where the text of a section is its own heading, that stands in its title too."""
    found = sections(text)
    assert all(before.place.end <= after.place.start for before, after in pairwise(found))
    ends = [0, *(place for each in found for place in each.place), len(text)]
    outside = "".join(text[ends[at] : ends[at + 1]] for at in range(0, len(ends), 2))
    assert len(outside.split()) <= sum(len(text[each.start : each.end].split()) for each in headings(text))
    titles = " > ".join(each.title for each in found)
    assert all(one_line(each.title) in titles for each in headings(text)), "no heading is lost"


def test_paragraphs_are_packed_together() -> None:
    assert cut("one two\n\nthree\n\nfour five\n \t\nsix", 4) == ["one two\n\nthree", "four five\n \t\nsix"]
    assert cut("one two\nthree four\n\nfive", 4) == ["one two\nthree four", "five"], "a line break ends no paragraph"
    assert cut("one\r\n\r\ntwo three\r\n\r\nfour", 3) == ["one\r\n\r\ntwo three", "four"]


def test_a_long_paragraph_ends_at_a_sentence_in_the_last_third() -> None:
    assert cut("a b c d e. f g h i j", 6) == ["a b c d e.", "f g h i j"]
    assert cut('a b c d "Why?" f g h', 6) == ['a b c d "Why?"', "f g h"]
    assert cut("a b c d. e! f g h i j", 6) == ["a b c d. e!", "f g h i j"], "the last of them"
    assert cut("a b c d. e f g h i j", 6) == ["a b c d. e f", "g h i j"], "the fourth word of six is too early"
    assert cut("a b v1.5 d e/f.g f g", 6) == ["a b v1.5 d e/f.g f", "g"], "a full stop inside a word ends nothing"


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

"""A folder of text files, and long passages, as passages: where they come from, their titles, what is refused."""

from __future__ import annotations

import os
import re
import sys
import tracemalloc
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from blendfilter.errors import BadArgument, BadData, EmptyData, MissingFile
from blendfilter.records import Passage
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.documents import chunked, read_documents

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
        ("a.RST#1", "Tides", "Tides\n=====\n\nTwice a day."),
        ("z.txt#0", "z", "# not a title here"),
        ("z.txt#1", "z", "A quay."),
        ("b/guide.md#0", "Guide", "# Guide\n\nRead me first."),
        ("b/guide.md#1", "Guide > Install", "## Install\r\n\r\nTake the ferry"),
        ("b/guide.md#2", "Guide > Install", "to Bremsund. Then walk."),
        ("b/guide.md#3", "Guide > Install > Windows", "### Windows\n\nBoard them up."),
    ]
    for each in found:
        source = (docs / each.metadata["source"]).read_bytes().decode()
        assert source[each.metadata["start"] : each.metadata["end"]] == each.text


def test_the_title_is_that_of_the_first_line_of_text(tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text("# Guide\n\n## Install\n\n### Linux\nUnpack it.\n## Use\nRun it.\n# Index\nLast.")
    assert [each.title for each in read_documents(tmp_path, 5)] == [
        "Guide > Install",
        "Guide > Install > Linux",
        "Guide > Use",
        "Index",
    ]
    assert [each.title for each in read_documents(tmp_path, 100)] == ["Guide > Install > Linux"]


def test_the_order_is_that_of_the_names(tmp_path: Path) -> None:
    names = [f"{name}/{number}.txt" for name in ("b", "a", "C") for number in (3, 10, 1, 2)]
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("A quay.")
    assert [each.metadata["source"] for each in read_documents(tmp_path)] == sorted(names)


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
    with pytest.warns(UserWarning, match="text files are read") as told:
        found = list(read_documents(docs))
    assert [str(each.message) for each in told] == [
        f"{docs}: 3 text files are read; left out: 2 hidden, 3 links, 1 of other kinds"
    ]
    assert not [each for each in found if "no" in each.text.split()]
    assert {each.metadata["source"] for each in found} == {"a.RST", "z.txt", "b/guide.md"}


def test_a_byte_order_mark_is_no_word(tmp_path: Path) -> None:
    (tmp_path / "x.md").write_bytes("\ufeff# Tides\n\nÎle.".encode())
    (found,) = read_documents(tmp_path)
    assert (found.title, found.text, found.metadata["start"]) == ("Tides", "# Tides\n\nÎle.", 1)


def test_a_file_that_is_not_utf8(docs: Path) -> None:
    (docs / "old.txt").write_bytes(b"caf\xe9")
    with pytest.raises(BadData, match=re.escape("old.txt: not UTF-8 (byte 4): save the file as UTF-8")):
        list(read_documents(docs))


@pytest.mark.skipif(sys.platform != "linux", reason="needs a file system that takes any bytes as a name")
def test_a_name_that_is_not_utf8(docs: Path) -> None:
    (docs / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    with pytest.raises(BadData, match=r"the name of b'.*caf\\xe9.txt' is not UTF-8: rename the file"):
        list(read_documents(docs))


def test_what_is_no_folder_of_documents(docs: Path, tmp_path: Path) -> None:
    """All of it is said at the call, before anybody asks for the first passage."""
    with pytest.raises(MissingFile, match="no folder"):
        read_documents(tmp_path / "gone")
    with pytest.raises(BadData, match="is a file, not a folder"):
        read_documents(docs / "z.txt")
    with pytest.raises(BadArgument, match="at least one word"):
        read_documents(docs, 0)
    (tmp_path / "empty" / "deeper").mkdir(parents=True)
    with pytest.raises(EmptyData, match=re.escape("has no text files (.txt, .md, .markdown, .rst)")):
        read_documents(tmp_path / "empty")
    (tmp_path / "empty" / "x.pdf").write_text("x")
    with pytest.raises(EmptyData, match="it has 1 of other kinds"):
        read_documents(tmp_path / "empty")
    BM25.build([Passage("1", "Fell", "A hill.")], tmp_path / "index")
    with pytest.raises(BadArgument, match=r"is an index already \(of kind bm25\): search it as it is"):
        read_documents(tmp_path / "index")


def test_a_manifest_of_something_else_does_not_make_an_index(docs: Path) -> None:
    (docs / "manifest.json").write_text('{"name": "my site"}')
    with pytest.warns(UserWarning, match="1 of other kinds"):
        assert list(read_documents(docs))


def test_files_are_read_one_by_one(tmp_path: Path) -> None:
    def peak(files: int) -> int:
        folder = tmp_path / str(files)
        folder.mkdir()
        for number in range(files):
            (folder / f"{number}.txt").write_text("A paragraph of a few words.\n\n" * 1600)
        tracemalloc.start()
        assert sum(1 for _ in read_documents(folder, 96)) == files * 100
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    assert peak(12) < 1.3 * peak(2)


def test_long_passages_are_cut_as_they_come() -> None:
    asked: list[str] = []

    def passages() -> Iterator[Passage]:
        for name in "ab":
            asked.append(name)
            yield Passage(name, "Mill", " It turns. It stops. ", 3.0, {"year": 1871, "start": "x"})

    found = chunked(passages(), words=2)
    first = next(found)
    assert asked == ["a"], "one passage at a time"
    assert (first, first.score) == (Passage("a#0", "Mill", "It turns."), None)
    assert first.metadata == {"year": 1871, "source": "a", "start": 1, "end": 10}
    assert [(each.id, each.text) for each in found] == [
        ("a#1", "It stops."),
        ("b#0", "It turns."),
        ("b#1", "It stops."),
    ]


def test_they_go_into_an_index(docs: Path) -> None:
    index = BM25.build(read_documents(docs, 5))
    assert index("ferry", k=1)[0].title == "Guide > Install"
    assert index("ferry", k=1)[0].metadata["source"] == "b/guide.md"

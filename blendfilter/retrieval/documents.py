"""One's own documents as passages: a folder of text files, or a corpus whose texts are too long, cut into passages.

Each passage says where it comes from in `metadata`: `source` (the file's path in the folder, or the id of the passage
that was cut), `start` and `end` (characters of that file or text). One file is in memory at a time; its bytes are taken
as they are, line ends too.

How a text is cut (`chunk`); words are what white space separates, so a language without spaces wants its words
separated first:

- Paragraphs (blank lines between them) that fit together share a passage. A longer one is cut into passages of its own,
  after the last sentence end in the last third of the words there is room for, else after the last word.
- A heading goes with what follows it.
- No passage has more words than the limit, none overlap, none is lost.
"""

from __future__ import annotations

import os
import re
import warnings
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from blendfilter.errors import BadArgument, BadData, EmptyData, MissingFile, check_count
from blendfilter.files import LONGEST, opened, too_long
from blendfilter.records import Passage, one_line
from blendfilter.retrieval.manifest import read_manifest, reraise

MARKUP = (".md", ".markdown", ".rst")
SUFFIXES = (".txt", *MARKUP)
"""The files that are read; a file's suffix may be in capitals."""
WORDS = 100
"""The length of a passage in the DPR split of Wikipedia, and in most that came after."""
_BOM = "\ufeff"
_SIZE = re.compile(r"([1-9][0-9]{0,8})w")
_WORD = re.compile(r"\S+")
_CLOSING = "\"'”’»)]"
_LINE = re.compile(r"[^\n]*(?:\n|\Z)")
_FENCE = re.compile(r" {0,3}(```|~~~)")
_HASHES = re.compile(r"(#{1,6})[ \t]+(\S.*)\n?")
_MAY_OPEN = frozenset("=-~^\"'*+#` ")
"""What a heading's mark, the line drawn under one, or a fence begins with."""
_RULE = re.compile(r"([=\-~^\"'*+#])\1{2,}")


class TextRange(NamedTuple):
    """`text[start:end]`, in characters."""

    start: int
    end: int


class Heading(NamedTuple):
    """A heading's lines, how deep it stands (from 1), and its words."""

    start: int
    end: int
    level: int
    title: str


class _Block(NamedTuple):
    """The words of a paragraph, or of a heading, which belongs to what follows it."""

    words: list[TextRange]
    heading: bool


def read_documents(folder: str | os.PathLike[str], words: int = WORDS) -> Iterator[Passage]:
    """The passages of the text files under `folder`, at most `words` words each; files of a folder before its folders.

    Ids are `path#0`, `path#1`, …; the title is the way through the headings to the passage's first line of text
    (`Guide > Install`), or the file's name without its suffix where there are none above it. Hidden files, other
    suffixes and links are left out, and one warning says how many.

    Raises:
        MissingFile, BadData: no such folder, or it is a file. BadArgument: it is an index, or `words` is below 1.
        EmptyData: no text files in it. BadData: a file that is not UTF-8 (which byte), while the passages are read.
    """
    where = Path(folder)
    if not where.exists():
        raise MissingFile(f"no folder '{folder}': check the path")
    if not where.is_dir():
        raise BadData(f"'{folder}' is a file, not a folder of documents: read_corpus reads a file of passages")
    refuse_index(where)
    chunk("", words)  # a wrong number is an error now, not at the first file
    files, left_out = _text_files(where)
    others = ", ".join(f"{count} {what}" for what, count in sorted(left_out.items()))
    if not files:
        raise EmptyData(f"'{folder}' has no text files ({', '.join(SUFFIXES)}){f'; it has {others}' if others else ''}")
    if others:
        warnings.warn(f"{folder}: {len(files)} text files are read; left out: {others}", stacklevel=2)
    return (passage for path in files for passage in _document(where, path, words))


def chunked(passages: Iterable[Passage], words: int = WORDS) -> Iterator[Passage]:
    """`passages`, each cut into passages of at most `words` words under the same title: `id#0`, `id#1`, …

    >>> [(p.id, p.text, p.metadata["start"]) for p in chunked([Passage("m", "Mill", "It turns. It stops.")], words=2)]
    [('m#0', 'It turns.', 0), ('m#1', 'It stops.', 10)]
    """
    for passage in passages:
        for number, span in enumerate(chunk(passage.text, words)):
            metadata = {**passage.metadata, **_place(passage.id, span)}
            yield replace(
                passage,
                id=f"{passage.id}#{number}",
                text=passage.text[span.start : span.end],
                score=None,
                metadata=metadata,
            )


def refuse_index(folder: Path) -> None:
    """Raise `BadArgument` where `folder` is an index, whose files are not meant to be indexed again."""
    try:
        kind = read_manifest(folder).kind
    except (BadData, MissingFile):
        return
    raise BadArgument(
        f"'{folder}' is an index already (of kind {kind}): search it as it is, or name the folder of its texts"
    )


def _text_files(folder: Path) -> tuple[list[Path], Counter[str]]:
    """The text files under `folder`, sorted, and how many others there are, by what they are."""
    files, left_out = list[Path](), Counter[str]()
    for parent, folders, names in os.walk(folder, onerror=reraise):
        here = Path(parent)
        for name in [*sorted(names), *(name for name in folders if _reason(here / name, folder=True))]:
            reason = _reason(here / name, folder=name in folders)
            if reason:
                left_out[reason] += 1
            else:
                files.append(here / name)
        folders[:] = sorted(name for name in folders if not _reason(here / name, folder=True))
    return files, left_out


def _reason(path: Path, *, folder: bool) -> str:
    """Why `path` is left out; empty where it is not."""
    if path.name.startswith("."):
        return "hidden"
    if path.is_symlink():
        return "links"
    return "" if folder or path.suffix.lower() in SUFFIXES else "of other kinds"


def _document(folder: Path, path: Path, words: int) -> Iterator[Passage]:
    name = path.relative_to(folder).as_posix()
    text = _text(path)
    above = headings(text) if path.suffix.lower() in MARKUP else []
    titles = _Titles(path.stem, text, above)
    for number, span in enumerate(chunk(text, words)):
        body = text[span.start : span.end]
        yield Passage(f"{name}#{number}", titles.of(span), body, metadata=_place(name, span))


def _text(path: Path) -> str:
    try:
        path.name.encode("utf-8")
    except UnicodeEncodeError:
        raise BadData(f"the name of {os.fsencode(path)!r} is not UTF-8: rename the file") from None
    with opened(path, unpack=False) as stream:
        data = stream.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise BadData(f"{path}: {too_long('the document')}")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadData(
            f"{path}: not UTF-8 (byte {error.start + 1:,}): save the file as UTF-8, or move it out of the folder"
        ) from None
    # an empty line in place of the byte order mark: it is no part of a word or heading, and every offset stays
    return f"\n{text[1:]}" if text.startswith(_BOM) else text


class _Titles:
    """What the passages of one file are called."""

    def __init__(self, stem: str, text: str, above: list[Heading]) -> None:
        self._stem, self._text, self._above = stem, text, above
        self._starts = [heading.start for heading in above]
        self._ways: list[str] = []
        way: list[Heading] = []
        for heading in above:
            way = [*(outer for outer in way if outer.level < heading.level), heading]
            self._ways.append(" > ".join(one_line(step.title) for step in way))

    def of(self, span: TextRange) -> str:
        """The way through the headings to the first line of the passage that is none."""
        at = bisect_right(self._starts, span.start) - 1
        if at < 0:
            return self._stem
        if span.start < self._above[at].end:  # it begins with headings, and its text stands below the last of them
            while at + 1 < len(self._above) and self._starts[at + 1] < span.end:
                if self._text[self._above[at].end : self._starts[at + 1]].strip():
                    break
                at += 1
        return self._ways[at]


def _place(source: str, span: TextRange) -> dict[str, str | int]:
    return {"source": source, "start": span.start, "end": span.end}


# --- cutting a text -------------------------------------------------------------------------------------------------


def chunk_size(size: str) -> int:
    """How many words a passage may have, of what `--chunk` was given.

    >>> chunk_size("100w")
    100
    """
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise BadArgument(f"--chunk takes a number of words with a w, such as 100w; got '{size}'")
    return int(match[1])


def chunk(text: str, words: int = WORDS) -> list[TextRange]:
    """The passages of `text`, in order, of at most `words` words each. Raises `BadArgument` unless that is 1 or more.

    >>> text = "# Tides\\n\\nTwice a day. The moon.\\n\\nA mill waits for the sea to fall."
    >>> [text[start:end] for start, end in chunk(text, words=8)]
    ['# Tides\\n\\nTwice a day. The moon.', 'A mill waits for the sea to fall.']
    """
    check_count("words", words)
    packer = _Packer(text, words)
    for block in _blocks(text):
        packer.add(block)
    return packer.finished()


def headings(text: str) -> list[Heading]:
    """The headings of a text in Markdown or reStructuredText: ``## Title``, or a title with a line drawn under it.

    A line drawn by another character stands one level deeper than those before it. Code between fences has no headings.

    >>> [(found.level, found.title) for found in headings("Tides\\n=====\\n\\nMills\\n-----\\ntext\\n\\n# Sea #\\n")]
    [(1, 'Tides'), (2, 'Mills'), (1, 'Sea')]
    """
    found: list[Heading] = []
    drawn: list[str] = []
    lines = [TextRange(*match.span()) for match in _LINE.finditer(text)]
    fence = ""
    for number, (start, end) in enumerate(lines):
        line = text[start:end]
        if line[:1] not in _MAY_OPEN:
            continue
        mark = _FENCE.match(line)
        if fence:
            fence = "" if mark and mark[1] == fence else fence
        elif (begin := _drawn(text, lines, number)) >= (found[-1].end if found else 0):
            if line[:1] not in drawn:
                drawn.append(line[:1])
            title = text[slice(*lines[number - 1])].strip()
            found.append(Heading(begin, end, drawn.index(line[:1]) + 1, title))
        elif mark:
            fence = mark[1]
        elif hashes := _HASHES.fullmatch(line):
            found.append(Heading(start, end, len(hashes[1]), _unclosed(hashes[2])))
    return [heading for heading in found if heading.title]


def _unclosed(title: str) -> str:
    """A title without the hashes that may close it."""
    title = title.strip()
    bare = title.rstrip("#")
    return bare.strip() if not bare or bare[-1].isspace() else title


def _drawn(text: str, lines: list[TextRange], number: int) -> int:
    """Where the heading begins that line `number` is drawn under; -1 where it is no such line."""

    def stripped(at: int) -> str:
        return text[slice(*lines[at])].rstrip() if at >= 0 else ""

    rule, title, above = stripped(number), stripped(number - 1), stripped(number - 2)
    if not _RULE.fullmatch(rule) or not title or _RULE.fullmatch(title):
        return -1
    if not above:
        return lines[number - 1].start
    # a line above the title too, as reStructuredText has it; front matter is drawn shorter than what stands in it
    return lines[number - 2].start if above == rule and len(rule) >= len(title) else -1


def _blocks(text: str) -> Iterator[_Block]:
    """Headings and paragraphs in order, each as its words."""
    at = 0
    for heading in headings(text):
        yield from _paragraphs(text, at, heading.start)
        yield _Block(list(_words(text, heading.start, heading.end)), True)
        at = heading.end
    yield from _paragraphs(text, at, len(text))


def _paragraphs(text: str, start: int, end: int) -> Iterator[_Block]:
    words: list[TextRange] = []
    for word in _words(text, start, end):
        if words and text.count("\n", words[-1].end, word.start) > 1:
            yield _Block(words, False)
            words = []
        words.append(word)
    if words:
        yield _Block(words, False)


def _words(text: str, start: int, end: int) -> Iterator[TextRange]:
    return (TextRange(*match.span()) for match in _WORD.finditer(text, start, end))


class _Packer:
    """Takes blocks one by one; the last passage stays open while it may still grow."""

    def __init__(self, text: str, limit: int) -> None:
        self._text, self._limit = text, limit
        self._open: list[_Block] = []
        self._size = 0  # words of the open passage
        self._passages: list[TextRange] = []

    def add(self, block: _Block) -> None:
        """The next block, into the open passage where it fits."""
        if self._size + len(block.words) > self._limit:
            self._close(keep=0 if block.heading else self._headings_at_the_end())
            if self._size + len(block.words) > self._limit:
                block = self._split(block)
        self._take(block)

    def finished(self) -> list[TextRange]:
        """All passages, the open one too."""
        self._close()
        return self._passages

    def _split(self, block: _Block) -> _Block:
        """Passages of what is longer than one; what is left of it."""
        words, at = block.words, 0
        if self._size * 2 > self._limit:  # headings so long that little would stand below them
            self._close()
        while len(words) - at > (room := self._limit - self._size):
            end = self._sentence_end(words, at, at + room)
            self._take(_Block(words[at:end], False))
            self._close()
            at = end
        return _Block(words[at:], block.heading)

    def _sentence_end(self, words: list[TextRange], start: int, end: int) -> int:
        for at in range(end, end - (end - start) // 3, -1):
            if self._text[slice(*words[at - 1])].rstrip(_CLOSING).endswith((".", "!", "?")):
                return at
        return end

    def _headings_at_the_end(self) -> int:
        found = 0
        while found < len(self._open) and self._open[-1 - found].heading:
            found += 1
        return found

    def _take(self, block: _Block) -> None:
        self._open.append(block)
        self._size += len(block.words)

    def _close(self, keep: int = 0) -> None:
        """End the open passage before its last `keep` blocks, which begin the next one."""
        at = len(self._open) - keep
        closed, self._open = self._open[:at], self._open[at:]
        if closed:
            self._passages.append(TextRange(closed[0].words[0].start, closed[-1].words[-1].end))
        self._size = sum(len(block.words) for block in self._open)

"""One's own documents as passages: a folder of text files, or a corpus whose texts are too long, cut into passages.

Each passage says where it comes from in `metadata`: `source` (the file's path in the folder, or the id of the passage
that was cut), `start` and `end` (characters of that file or text). One file is in memory at a time; its bytes are taken
as they are, line ends too.

Each heading of Markdown or reStructuredText begins a new passage, however short, and titles it with the headings above
it (`Guide > Install`); the text starts below it. So a title never depends on what else fits, and gold titles stay what
they are when the limit or another section changes. A heading over nothing but deeper ones has no passage; of one over
nothing at all, the words are the text.

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
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import takewhile, zip_longest
from pathlib import Path
from typing import NamedTuple

from blendfilter.errors import BadArgument, BadData, EmptyData, MissingFile, check_count
from blendfilter.files import (
    LONGEST,
    AnyPath,
    first_character,
    lines,
    opened,
    path_of,
    too_long,
)
from blendfilter.records import Passage, one_line
from blendfilter.retrieval.manifest import read_manifest

MARKUP = (".md", ".markdown", ".rst")
SUFFIXES = (".txt", *MARKUP)
"""The files that are read; a file's suffix may be in capitals."""
WORDS = 100
"""The length of a passage in the DPR split of Wikipedia, and in most that came after."""
_BOM = "\ufeff"
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
    """A heading's lines, its depth from 1, and its words."""

    start: int
    end: int
    level: int
    title: str


class Section(NamedTuple):
    """What stands below a heading up to the next one; the way through the headings to it, empty above the first one."""

    title: str
    place: TextRange


class _Block(NamedTuple):
    """The words of a paragraph, or of a heading, which belongs to what follows it."""

    words: list[TextRange]
    heading: bool


def read_documents(folder: AnyPath, words: int = WORDS) -> Iterator[Passage]:
    """The passages of the text files under `folder`, at most `words` words each; files of a folder before its folders.

    Ids are `path#0`, `path#1`, …; the title is the way through the headings to the passage (`Guide > Install`), or the
    file's name without its suffix where there are none above it. Hidden files, other suffixes and links are left out,
    and one warning says how many. `folder` may be one text file, too.

    Raises:
        MissingFile: no such folder. BadArgument: it is an index, or `words` is below 1. EmptyData: no text files in it.
        BadData: a file of another kind; a text that is not UTF-8 (which byte), while the passages are read.
    """
    where = path_of(folder)
    chunk("", words)  # a wrong number is an error now, not at the first file
    files = text_files(where)
    base = where if where.is_dir() else where.parent
    return (passage for path in files for passage in _document(base, path, words))


def text_files(folder: Path) -> list[Path]:
    """The text files under `folder`, which may be one itself, in the order of `read_documents`; raises as it does."""
    if not folder.exists():
        raise MissingFile(f"no folder '{folder}': check the path")
    if not folder.is_dir():
        if folder.suffix.lower() not in SUFFIXES:
            raise BadData(
                f"'{folder}' is a file, not a folder of documents: read_corpus reads a file of passages"
            )
        return [folder]
    refuse_index(folder)
    files, others = list[Path](), 0
    for parent, folders, names in os.walk(folder, onerror=reraise):
        # links are not followed
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for path in (Path(parent, name) for name in sorted(names)):
            text = (
                path.suffix.lower() in SUFFIXES
                and not path.name.startswith(".")
                and not path.is_symlink()
            )
            files += [path] * text
            others += not text
    if not files:
        found = f"others in it: {others}" if others else "the folder is empty"
        raise EmptyData(f"'{folder}' has no text files ({', '.join(SUFFIXES)}); {found}")
    if others:
        left_out = f"{others} of other kinds, hidden or links left out"
        warnings.warn(f"{folder}: {len(files)} text files are read, {left_out}", stacklevel=3)
    return files


def reraise(error: OSError) -> None:
    """For `os.walk`, which otherwise leaves out what it cannot read."""
    raise error


def is_document(path: Path) -> bool:
    """Whether a file is one text, not a file of passages, which a `.txt` may be too (JSON, or columns behind tabs)."""
    text = path.suffix.lower() in SUFFIXES and first_character(path) not in ("", "[", "{")
    return text and "\t" not in next(lines(path)).text


def chunked(passages: Iterable[Passage], words: int = WORDS) -> Iterator[Passage]:
    """`passages`, each cut into passages of at most `words` words under the same title: `id#0`, `id#1`, …

    >>> [(p.id, p.text, p.metadata["start"]) for p in chunked([Passage("m", "Mill", "It turns. It stops.")], words=2)]
    [('m#0', 'It turns.', 0), ('m#1', 'It stops.', 10)]
    """
    for passage in passages:
        for number, (start, end) in enumerate(chunk(passage.text, words)):
            metadata = {**passage.metadata, "source": passage.id, "start": start, "end": end}
            text = passage.text[start:end]
            yield replace(
                passage, id=f"{passage.id}#{number}", text=text, score=None, metadata=metadata
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


def _document(folder: Path, path: Path, words: int) -> Iterator[Passage]:
    name, text = path.relative_to(folder).as_posix(), _text(path)
    parts = (
        sections(text)
        if path.suffix.lower() in MARKUP
        else [Section("", TextRange(0, len(text)))]
    )
    number = 0
    for title, (begin, stop) in parts:
        for place in chunk(text[begin:stop], words):
            start, end = begin + place.start, begin + place.end
            metadata = {"source": name, "start": start, "end": end}
            yield Passage(
                f"{name}#{number}", title or path.stem, text[start:end], metadata=metadata
            )
            number += 1


def _text(path: Path) -> str:
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


# --- cutting a text -------------------------------------------------------------------------------------------------


def chunk_size(size: str) -> int:
    """How many words a passage may have, of what `--chunk` was given.

    >>> chunk_size("100w")
    100
    """
    match = re.fullmatch(r"([1-9][0-9]{0,8})w", size.strip())
    if match is None:
        raise BadArgument(
            f"chunk= takes a number of words with a w, such as 100w; got '{size}'"
        )
    return int(match[1])


def chunk(text: str, words: int = WORDS) -> list[TextRange]:
    """The passages of `text`, in order, of at most `words` words each. Raises `BadArgument` unless that is 1 or more.

    >>> text = "# Tides\\n\\nTwice a day. The moon.\\n\\nA mill waits for the sea to fall."
    >>> [text[start:end] for start, end in chunk(text, words=8)]
    ['# Tides\\n\\nTwice a day. The moon.', 'A mill waits for the sea to fall.']
    """
    words = check_count("words", words)
    passages, open_ = list[TextRange](), list[_Block]()  # the passage that may still grow

    def close(keep: int = 0) -> int:
        """End the open passage before its last `keep` blocks, which begin the next one; how many words these have."""
        closed = open_[: len(open_) - keep]
        if closed:
            passages.append(TextRange(closed[0].words[0].start, closed[-1].words[-1].end))
        del open_[: len(closed)]
        return sum(len(block.words) for block in open_)

    size = 0

    for block in filter(lambda block: block.words, _blocks(text)):
        rest = block.words
        if size + len(rest) > words:
            headings_at_the_end = sum(
                1 for _ in takewhile(lambda last: last.heading, reversed(open_))
            )
            size = close(keep=0 if block.heading else headings_at_the_end)
            # headings so long that little would stand below them
            if size + len(rest) > words and size * 2 > words:
                size = close()
            while len(rest) > (room := words - size):
                end = _sentence_end(text, rest, room)
                open_.append(_Block(rest[:end], False))
                size = close()
                rest = rest[end:]
        open_.append(_Block(rest, block.heading))
        size += len(rest)
    close()
    return passages


def _sentence_end(text: str, words: list[TextRange], room: int) -> int:
    """How many of `words` to take where there is room for so many: up to a sentence's end in the last third of them."""
    for at in range(room, room - room // 3, -1):
        if text[slice(*words[at - 1])].rstrip(_CLOSING).endswith((".", "!", "?")):
            return at
    return room


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
            title = re.sub(
                r"(^|\s)#+\s*$", "", hashes[2]
            ).strip()  # without the hashes that may close it
            found.append(Heading(start, end, len(hashes[1]), title))
    return [heading for heading in found if heading.title]


def sections(text: str) -> list[Section]:
    """The parts of a text in Markdown or reStructuredText, one a heading, where there is something to read.

    >>> text = "Preface.\\n# Guide\\n## Install\\nUnpack it.\\n## To do\\n"
    >>> [(title, text[start:end].strip()) for title, (start, end) in sections(text)]
    [('', 'Preface.'), ('Guide > Install', 'Unpack it.'), ('Guide > To do', 'To do')]
    """
    found = headings(text)
    parts = [Section("", TextRange(0, found[0].start if found else len(text)))]
    way: list[Heading] = []
    for heading, below in zip_longest(found, found[1:]):
        way = [*(outer for outer in way if outer.level < heading.level), heading]
        place = TextRange(heading.end, len(text) if below is None else below.start)
        if not text[slice(*place)].strip():
            if below is not None and below.level > heading.level:
                continue  # it stands in the titles of those below
            start = text.index(heading.title, heading.start)
            place = TextRange(start, start + len(heading.title))
        parts.append(Section(" > ".join(one_line(step.title) for step in way), place))
    return parts


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
    for heading in [*headings(text), Heading(len(text), len(text), 0, "")]:
        words: list[TextRange] = []
        for word in _words(text, at, heading.start):
            if words and text.count("\n", words[-1].end, word.start) > 1:
                yield _Block(words, False)
                words = []
            words.append(word)
        yield _Block(words, False)
        yield _Block([*_words(text, heading.start, heading.end)], True)
        at = heading.end


def _words(text: str, start: int, end: int) -> Iterator[TextRange]:
    return (TextRange(*match.span()) for match in _WORD.finditer(text, start, end))

"""Long texts into passages: paragraphs packed together up to so many words, and where each passage lies in its source.

In: a text. Out: spans (start, end) in characters; `text[start:end]` is the passage, word for word. Words are what white
space separates: a language written without spaces wants its words separated first.

- Paragraphs (blank lines between them) that fit together share a passage. A longer one is cut into passages of its own,
  after the last sentence end in the last third of the words there is room for, else after the last word.
- A heading goes with what follows it.
- No passage has more words than asked for, none overlap, none is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from blendfilter.errors import BadArgument

WORDS = 100
"""The length of a passage in the DPR split of Wikipedia, and in most that came after."""

_SIZE = re.compile(r"([1-9][0-9]{0,8})w")
_WORD = re.compile(r"\S+")
_CLOSING = "\"'”’»)]"
_LINE = re.compile(r"[^\n]*(?:\n|\Z)")
_FENCE = re.compile(r" {0,3}(```|~~~)")
_HASHES = re.compile(r"(#{1,6})[ \t]+(\S.*)\n?")
_MAY_OPEN = frozenset("=-~^\"'*+#` ")
"""What a heading's mark, the line drawn under one, or a fence begins with."""
_RULE = re.compile(r"([=\-~^\"'*+#])\1{2,}")


class Span(NamedTuple):
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

    words: list[Span]
    heading: bool


def chunk_size(size: str) -> int:
    """How many words a passage may have, of what `--chunk` was given.

    >>> chunk_size("100w")
    100
    """
    match = _SIZE.fullmatch(size.strip())
    if match is None:
        raise BadArgument(f"--chunk takes a number of words with a w, such as 100w; got '{size}'")
    return int(match[1])


def chunk(text: str, words: int = WORDS) -> list[Span]:
    """The passages of `text`, in order, each of at most `words` words. Raises `BadArgument` unless that is 1 or more.

    >>> text = "# Tides\\n\\nTwice a day. The moon.\\n\\nA mill waits for the sea to fall."
    >>> [text[start:end] for start, end in chunk(text, words=8)]
    ['# Tides\\n\\nTwice a day. The moon.', 'A mill waits for the sea to fall.']
    """
    if isinstance(words, bool) or not isinstance(words, int) or words < 1:
        raise BadArgument(f"a passage must have room for at least one word, got words={words!r}")
    packer = _Packer(text, words)
    for block in _blocks(text):
        packer.add(block)
    return packer.finished()


def headings(text: str) -> list[Heading]:
    """The headings of a text in Markdown or reStructuredText: ``## Title``, or a title with a line drawn under it.

    A line drawn by another character stands one level deeper than those before it. Code between fences has no headings.

    >>> [(each.level, each.title) for each in headings("Tides\\n=====\\n\\nMills\\n-----\\ntext\\n\\n# Sea #\\n")]
    [(1, 'Tides'), (2, 'Mills'), (1, 'Sea')]
    """
    found: list[Heading] = []
    drawn: list[str] = []
    lines = [Span(*match.span()) for match in _LINE.finditer(text)]
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
    return [each for each in found if each.title]


def _unclosed(title: str) -> str:
    """A title without the hashes that may close it."""
    title = title.strip()
    bare = title.rstrip("#")
    return bare.strip() if not bare or bare[-1].isspace() else title


def _drawn(text: str, lines: list[Span], number: int) -> int:
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
    words: list[Span] = []
    for word in _words(text, start, end):
        if words and text.count("\n", words[-1].end, word.start) > 1:
            yield _Block(words, False)
            words = []
        words.append(word)
    if words:
        yield _Block(words, False)


def _words(text: str, start: int, end: int) -> Iterator[Span]:
    return (Span(*match.span()) for match in _WORD.finditer(text, start, end))


class _Packer:
    """Takes blocks one by one; holds back the passage that may still grow."""

    def __init__(self, text: str, limit: int) -> None:
        self._text, self._limit = text, limit
        self._open: list[_Block] = []
        self._held = 0  # words of the open passage
        self._passages: list[Span] = []

    def add(self, block: _Block) -> None:
        """The next block, into the open passage where it fits."""
        if self._held + len(block.words) > self._limit:
            self._close(keep=0 if block.heading else self._headings_at_the_end())
            if self._held + len(block.words) > self._limit:
                block = self._split(block)
        self._hold(block)

    def finished(self) -> list[Span]:
        """All passages, the open one too."""
        self._close()
        return self._passages

    def _split(self, block: _Block) -> _Block:
        """Passages of what is longer than one; what is left of it."""
        words, at = block.words, 0
        if self._held * 2 > self._limit:  # headings so long that little would stand below them
            self._close()
        while len(words) - at > (room := self._limit - self._held):
            end = self._sentence_end(words, at, at + room)
            self._hold(_Block(words[at:end], False))
            self._close()
            at = end
        return _Block(words[at:], block.heading)

    def _sentence_end(self, words: list[Span], start: int, end: int) -> int:
        for at in range(end, end - (end - start) // 3, -1):
            if self._text[slice(*words[at - 1])].rstrip(_CLOSING).endswith((".", "!", "?")):
                return at
        return end

    def _headings_at_the_end(self) -> int:
        found = 0
        while found < len(self._open) and self._open[-1 - found].heading:
            found += 1
        return found

    def _hold(self, block: _Block) -> None:
        self._open.append(block)
        self._held += len(block.words)

    def _close(self, keep: int = 0) -> None:
        """End the open passage before its last `keep` blocks, which begin the next one."""
        at = len(self._open) - keep
        closed, self._open = self._open[:at], self._open[at:]
        if closed:
            self._passages.append(Span(closed[0].words[0].start, closed[-1].words[-1].end))
        self._held = sum(len(block.words) for block in self._open)

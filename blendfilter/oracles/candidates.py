"""What an extractive filter or an oracle may choose: the sentences of passages, or the passages, with their places.

In: passages in rank order. Out: `Candidate`s in the order in which they stand; and back again, from those chosen to
`Excerpt`s of their passages, verbatim. A title is shown with its sentence, and is never a candidate itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from blendfilter.records import Excerpt, Passage, Span, one_line
from blendfilter.text import sentences


class Candidate(NamedTuple):
    """What may be kept of the passage at `position`: `text`, verbatim, and where it lies in the passage's text.

    Of an excerpt, places are those in its source's text. `line` is what a scorer or a model reads: ``Title | text`` on
    one line.
    """

    position: int
    start: int
    end: int
    text: str
    line: str


def sentences_of(passages: Sequence[Passage]) -> list[Candidate]:
    """Every sentence of every passage; a passage without any has none here.

    >>> [each.line for each in sentences_of([Passage("1", "Ormskerry", "A town. It has a pier.")])]
    ['Ormskerry | A town.', 'Ormskerry | It has a pier.']
    """
    found: list[Candidate] = []
    for position, passage in enumerate(passages):
        title = f"{one_line(passage.title)} | " if passage.title.strip() else ""
        for piece in _pieces(passage):
            found += (
                Candidate(position, piece.start + start, piece.start + end, text, title + one_line(text))
                for text, start, end in sentences(piece.text)
            )
    return found


def passages_of(passages: Sequence[Passage]) -> list[Candidate]:
    """The passages themselves, one candidate each; of an excerpt, from its first piece to the end of its last."""
    found: list[Candidate] = []
    for position, passage in enumerate(passages):
        pieces = _pieces(passage)
        start, end = (pieces[0].start, pieces[-1].end) if pieces else (0, 0)
        found.append(Candidate(position, start, end, passage.text, passage.line))
    return found


def excerpts(passages: Sequence[Passage], chosen: Sequence[Candidate]) -> list[Passage]:
    """An excerpt of every passage of which something was chosen, in rank order, with that passage's score.

    >>> town = Passage("1", "Ormskerry", "A town. It has a pier. It rains.")
    >>> [each.line for each in excerpts([town], sentences_of([town])[1:])]
    ['Ormskerry | It has a pier. It rains.']
    """
    found: list[Passage] = []
    for position, group in groupby(sorted(chosen), key=lambda each: each.position):
        passage = passages[position]
        source = passage.source if isinstance(passage, Excerpt) else passage
        places = [place for each in group for place in _within(_pieces(passage), each)]
        found.append(Excerpt.of(source, places).scored(passage.score))
    return found


def _pieces(passage: Passage) -> Sequence[Span]:
    """What there is of a passage: its whole text; of an excerpt, its pieces, with their places in its source."""
    return passage.spans if isinstance(passage, Excerpt) else (Span(0, len(passage.text), passage.text),)


def _within(pieces: Sequence[Span], chosen: Candidate) -> Iterator[tuple[int, int]]:
    """The chosen place without what the excerpt left out of it: a whole excerpt may have gaps."""
    for piece in pieces:
        start, end = max(piece.start, chosen.start), min(piece.end, chosen.end)
        if start < end:
            yield start, end

"""What an oracle or a filter may choose: the sentences of passages, or the passages, with their places.

`sentences_of` and `passages_of` list the `Candidate`s of passages in rank order; `excerpts` turns those chosen into
verbatim `Excerpt`s of their passages. A title goes with its sentence, and is never a candidate itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from blendfilter.records import Excerpt, Passage, Span, one_line
from blendfilter.text import sentences


class Candidate(NamedTuple):
    """A part of the passage at `position`: `text`, verbatim, and its place in the passage's text (its source's text,
    where the passage is an excerpt). `line` is what a scorer or a model reads: ``Title | text`` on one line.
    """

    position: int
    start: int
    end: int
    text: str
    line: str


def sentences_of(passages: Sequence[Passage]) -> list[Candidate]:
    """Every sentence of every passage; a passage without any has none here.

    >>> [candidate.line for candidate in sentences_of([Passage("1", "Ormskerry", "A town. It has a pier.")])]
    ['Ormskerry | A town.', 'Ormskerry | It has a pier.']
    """
    found: list[Candidate] = []
    for position, passage in enumerate(passages):
        title = f"{one_line(passage.title)} | " if passage.title.strip() else ""
        for piece in pieces_of(passage):
            found += (
                Candidate(
                    position,
                    piece.start + start,
                    piece.start + end,
                    text,
                    title + one_line(text),
                )
                for text, start, end in sentences(piece.text)
            )
    return found


def passages_of(passages: Sequence[Passage]) -> list[Candidate]:
    """The passages themselves as candidates; of an excerpt, from its first piece to the end of its last."""
    found: list[Candidate] = []
    for position, passage in enumerate(passages):
        pieces = pieces_of(passage)
        start, end = (pieces[0].start, pieces[-1].end) if pieces else (0, 0)
        found.append(Candidate(position, start, end, passage.text, passage.line))
    return found


def excerpts(
    passages: Sequence[Passage], chosen: Sequence[Candidate], *, as_chosen: bool = False
) -> list[Passage]:
    """An excerpt of every passage of which something was chosen, in rank order, with that passage's score.

    With `as_chosen` in the order of `chosen`: only what follows in its passage what was chosen before it joins that
    excerpt, so that a passage may have several.

    >>> town = Passage("1", "Ormskerry", "A town. It has a pier. It rains.")
    >>> [each.line for each in excerpts([town], sentences_of([town])[1:])]
    ['Ormskerry | It has a pier. It rains.']
    """
    runs: list[list[Candidate]] = []
    for each in chosen if as_chosen else sorted(chosen):
        last = runs[-1][-1] if runs else None
        if (
            last
            and last.position == each.position
            and (last.end <= each.start or not as_chosen)
        ):
            runs[-1].append(each)
        else:
            runs.append([each])
    return [_excerpt(passages[run[0].position], run) for run in runs]


def _excerpt(passage: Passage, chosen: Sequence[Candidate]) -> Passage:
    source = passage.source if isinstance(passage, Excerpt) else passage
    places = [place for each in chosen for place in _within(pieces_of(passage), each)]
    return Excerpt.of(source, places).scored(passage.score)


def pieces_of(passage: Passage) -> Sequence[Span]:
    """A passage's whole text; of an excerpt, its pieces, with their places in its source."""
    return (
        passage.spans
        if isinstance(passage, Excerpt)
        else (Span(0, len(passage.text), passage.text),)
    )


def _within(pieces: Sequence[Span], chosen: Candidate) -> Iterator[tuple[int, int]]:
    """The chosen place without an excerpt's gaps."""
    for piece in pieces:
        start, end = max(piece.start, chosen.start), min(piece.end, chosen.end)
        if start < end:
            yield start, end

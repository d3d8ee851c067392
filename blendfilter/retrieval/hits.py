"""One query's passages, and whether the engine read the whole query.

A plain list of passages is as good wherever nothing was cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from blendfilter.records import Passage


class Hits(list[Passage]):
    """Passages, best first. `cut` says that the query was longer than its engine can read, and was not read whole.

    >>> cut_of(Hits([], cut=True)), cut_of([])
    (True, False)
    """

    def __init__(self, passages: Iterable[Passage] = (), *, cut: bool = False) -> None:
        super().__init__(passages)
        self.cut = cut


def cut_of(hits: Sequence[Passage]) -> bool:
    """Whether the query of these hits was cut."""
    return isinstance(hits, Hits) and hits.cut

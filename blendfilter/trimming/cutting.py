"""A ranking without the passages that stand beside one they are separated from. Pure: no index, no witnesses.

In: a ranking, k, and under each accepted passage those that go where it stands. Out: the first k of what is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from blendfilter.records import Passage


class Trim(NamedTuple):
    """What is left of a ranking, and what went: with its place there, from 1, and the one beside which it stood."""

    kept: list[Passage]
    gone: list[tuple[Passage, int, str]]
    full: bool
    """Whether k passages are left; otherwise a longer ranking may have more."""


def trim_ranking(ranking: Sequence[Passage], k: int, dropping: Mapping[str, Sequence[str]]) -> Trim:
    """The shortest head of `ranking` that has `k` passages left when all that its accepted ones drop is dropped.

    A passage found lower down may drop one that stands above it. Where the ranking ends first, all that is left.

    >>> a, b, c = (Passage(name, "", name) for name in "abc")
    >>> [p.id for p in trim_ranking([b, a, c], 2, {"a": ["b"]}).kept]
    ['a', 'c']
    """
    standing: dict[str, int] = {}
    beside: dict[str, str] = {}
    left = read = 0
    for passage in ranking:
        if left == k:
            break
        read += 1
        name = passage.id
        standing[name] = standing.get(name, 0) + 1
        left += name not in beside
        for other in dropping.get(name, ()):
            if other not in beside:
                beside[other] = name
                left -= standing.get(other, 0)
    head = ranking[:read]
    gone = [(each, rank, beside[each.id]) for rank, each in enumerate(head, start=1) if each.id in beside]
    return Trim([each for each in head if each.id not in beside], gone, left == k)

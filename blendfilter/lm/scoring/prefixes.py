"""Which texts are read together: a beginning that several share is read once, and texts of like length make a batch.

In: token sequences. Out: groups that share a prefix, and batches that hold a bounded number of tokens. Pairs of one
question share the beginning of their prompts (instructions, demonstrations, often the question); all continuations of
one prompt share all of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

SETUP = 32
"""Tokens that reading a prefix apart must save before it is worth another pass through the model."""
LARGEST = 64


class Group(NamedTuple):
    """Indices of the sequences that share their first `shared` tokens; 0 for one that stays alone."""

    shared: int
    members: tuple[int, ...]


def groups(sequences: Sequence[Sequence[int]], *, largest: int = LARGEST, setup: int = SETUP) -> list[Group]:
    """A grouping that saves tokens: each group of n reads its shared prefix once in place of n times.

    Sorted, sequences that share most stand side by side. Of all ways to cut that order into groups, this is the one
    that saves the most, found piece by piece from the left.

    >>> groups([[1, 2, 3, 4], [9], [1, 2, 3, 5]], setup=0)
    [Group(shared=3, members=(0, 2)), Group(shared=0, members=(1,))]
    """
    order = sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))
    common = [0, *(common_prefix(sequences[a], sequences[b]) for a, b in pairwise(order))]
    saved, cuts = [0], [0]
    for end in range(1, len(order) + 1):
        best, cut = saved[end - 1], end - 1
        shared = len(sequences[order[end - 1]])
        for start in range(end - 2, max(0, end - largest) - 1, -1):
            shared = min(shared, common[start + 1])
            if shared == 0:
                break
            gain = saved[start] + (end - start - 1) * shared - setup
            if gain > best:
                best, cut = gain, start
        saved.append(best)
        cuts.append(cut)
    found: list[Group] = []
    end = len(order)
    while end:
        members = order[cuts[end] : end]
        shared = min(common[cuts[end] + 1 : end], default=0)
        found.append(Group(shared, tuple(sorted(members))))
        end = cuts[end]
    return found[::-1]


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))


def batches(lengths: Sequence[int], *, tokens: int, rows: int) -> Iterator[list[int]]:
    """Indices in batches of at most `rows`, padded to at most `tokens` (but for one text alone), longest first.

    >>> list(batches([3, 9, 4, 4], tokens=9, rows=64))
    [[1], [2, 3], [0]]
    """
    batch: list[int] = []
    for at in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (len(batch) == rows or (len(batch) + 1) * lengths[batch[0]] > tokens):
            yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch

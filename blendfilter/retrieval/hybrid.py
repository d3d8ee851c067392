"""Several indexes as one, by reciprocal rank fusion (Cormack, Clarke & Büttcher 2009, SIGIR, section 2):
score(p) = sum over the indexes that found p of  1 / (constant + rank of p there),  ranks from 1, constant 60.

A passage that several indexes found is one passage. Over several corpora one id may name two passages, so those of the
second index on get ``@2``, ``@3``, … behind theirs. The indexes' own scores play no part, so they need not be of one
kind. Differs from the paper: an index counts down to a depth, not to its last passage.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from blendfilter.errors import BadArgument, check_count
from blendfilter.files import AnyPath
from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever, fingerprint_of, hits_like
from blendfilter.retrieval.callables import as_retriever
from blendfilter.retrieval.indexes import open_index
from blendfilter.text import folded

Key = Callable[[Passage], Any]


class Hybrid(Retriever):
    """`Hybrid([open_index("indexes/bm25"), open_index("indexes/dense")])`, searched as any index.

    Each index is searched for `depth` passages, or for k where that is more.
    """

    kind = "hybrid"

    def __init__(
        self, indexes: Sequence[Retriever], *, constant: float = 60, depth: int = 100
    ) -> None:
        if len(indexes) < 2:
            raise BadArgument(f"a hybrid joins at least two indexes, got {len(indexes)}")
        depth = check_count("depth", depth)
        self.indexes = [as_retriever(index) for index in indexes]
        if not 0 <= constant < math.inf:
            raise BadArgument(
                f"the constant of rank fusion must be 0 or more, got {constant!r} (usual: 60)"
            )
        self.constant, self.depth = constant, depth
        members = [index.fingerprint for index in self.indexes]
        self.fingerprint = fingerprint_of("hybrid", float(constant), depth, members)
        # over one corpus, which all of them state, ids mean the same
        corpora = [index.info().get("corpus") for index in self.indexes]
        hashes = {
            corpus.get("sha256") if isinstance(corpus, dict) else None for corpus in corpora
        }
        self._corpus = len(hashes) == 1 and None not in hashes
        self._key: Key = (lambda p: p.id) if self._corpus else (_same_words)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages a query; equal sums keep the order of the indexes. Cut where any index cut the query."""
        # `find`, not `search`: a journal keeps one record of a hybrid's query, and its cut is noted once
        depth = max(k, self.depth)
        # an index must not warn about its short corpus: others may have the rest
        answers = [
            index.find(queries, min(depth, index.size or depth)) for index in self.indexes
        ]
        found: list[list[Passage]] = []
        for rankings in zip(*answers, strict=True):
            apart: list[Sequence[Passage]] = list(rankings)
            if not self._corpus:  # an id names one passage
                apart[1:] = [
                    [replace(p, id=f"{p.id}@{at}") for p in hits]
                    for at, hits in enumerate(rankings[1:], 2)
                ]
            found.append(hits_like(fuse(apart, k, self.constant, self._key), *rankings))
        return found

    def parts(self) -> Sequence[Retriever]:
        """The indexes that it joins."""
        return self.indexes

    def over(self, parts: Sequence[Retriever]) -> Hybrid:
        """A hybrid of other indexes, fused in the same way."""
        return Hybrid(parts, constant=self.constant, depth=self.depth)

    def info(self) -> dict[str, Any]:
        """Kind, fingerprint, how ranks are fused, and what each of the indexes says of itself."""
        return {
            **super().info(),
            "settings": {"constant": self.constant, "depth": self.depth},
            "indexes": [index.info() for index in self.indexes],
        }

    def __len__(self) -> int:
        """How many passages there are; a TypeError for indexes over several corpora, which may share some."""
        return len(self.indexes[0]) if self._corpus else super().__len__()


def _same_words(passage: Passage) -> tuple[str, str]:
    return folded(passage.title).casefold(), folded(passage.text).casefold()


def fuse(
    rankings: Sequence[Sequence[Passage]], k: int, constant: float, key: Key
) -> list[Passage]:
    """The `k` best of several rankings by the sum of their reciprocal ranks; `key` says which passages are one.

    >>> a, b, c = (Passage(name, "", name) for name in "abc")
    >>> [(p.id, round(p.score, 5)) for p in fuse([[a, b], [b, c]], 3, 60, lambda p: p.id)]
    [('b', 0.03252), ('a', 0.01639), ('c', 0.01613)]
    """
    first: dict[Any, Passage] = {}
    shares: dict[Any, list[float]] = {}
    for ranking in rankings:
        seen = set()
        for rank, passage in enumerate(ranking, start=1):
            name = key(passage)
            if name in seen:  # one index holds it twice: its better place counts
                continue
            seen.add(name)
            first.setdefault(name, passage)
            shares.setdefault(name, []).append(1 / (constant + rank))
    # summed exactly, so that which index came first decides ties and nothing else
    sums = {name: math.fsum(parts) for name, parts in shares.items()}
    return [
        first[name].scored(sums[name])
        for name in sorted(sums, key=lambda name: -sums[name])[:k]
    ]


def open_indexes(locations: Sequence[AnyPath], **options: Any) -> Retriever:
    """The index at one location, or a `Hybrid` of those at several; `options` go to each `open_index`."""
    if not locations:
        raise BadArgument("no index named: give a folder or an address")
    opened = [open_index(location, **options) for location in locations]
    return opened[0] if len(opened) == 1 else Hybrid(opened)

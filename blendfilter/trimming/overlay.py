"""A trimmed index: what CDIT's witnesses separate is dropped from the results of any index, and can be taken back.

Ma et al. 2024 ("Context-Driven Index Trimming", sections 4.3 and 4.4, Algorithm 1): passages that a judge rejected for
a question are taken away from those it accepted, and a question like one judged before gets the stored verdicts.
Differs from the paper: nothing is cut out of the index, for cut links are walked around; the ranking it gives is
trimmed instead, whatever kind of index it is. A separation counts from a number of witnesses up, applies only where
both passages stand in the ranking, and only to a question whose nearest judged question accepted one of the two. The
paper counts a pair's witnesses whichever side they accepted (Theorem 1); `one_way` counts those alone that accepted
the same one as the nearest question did.

In: an index, witnesses, queries. Out: the index's own ranking less what is dropped, filled up to k from further down.
An index that finds approximately (hnsw, ColBERT) looks further when it is asked for more, and may find better ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from blendfilter.errors import BadArgument
from blendfilter.records import Passage
from blendfilter.retrieval.base import Hits, Retriever, check_search, cut_of, fingerprint_of
from blendfilter.retrieval.callables import as_retriever
from blendfilter.retrieval.dense import Dense
from blendfilter.retrieval.encoders import Encoded, Vectors
from blendfilter.trimming.by_vector import ByVector
from blendfilter.trimming.cutting import Trim, trim_ranking
from blendfilter.trimming.explaining import (
    Dropped,
    Explained,
    Nearest,
    Needed,
    Undecided,
    dropped_by,
    undecided_in,
)
from blendfilter.trimming.folder import THRESHOLD
from blendfilter.trimming.lines import check_threshold
from blendfilter.trimming.similar import Near, Similar, similar_for
from blendfilter.trimming.unlike import unlike
from blendfilter.trimming.witnesses import Judged, Witnesses

__all__ = ["Dropped", "Explained", "Nearest", "Trimmed", "Undecided", "check_similarity"]

Dropping = Mapping[str, Sequence[str]]
Ranked = Callable[[Sequence[int], int], Sequence[list[Passage]]]
"""The rankings of some of the queries, named by their places, to a depth."""


class _Applied(NamedTuple):
    """What one judged question does to a ranking: under each accepted passage what goes where it stands."""

    dropping: Dropping
    most: int
    """How many passages it may drop."""
    likely: int
    """How many of them were found for the judged question, and so will be for one like it."""


_SPARE = 2
_NOTHING = _Applied({}, 0, 0)


class Trimmed(Retriever):
    """`Trimmed(index, Witnesses.read(file))`, searched as any index; `index` itself is never written to.

    The witnesses count as they are now: an index does not change once it is open. Where no pair has `threshold` of them
    it is the index itself, under the index's own fingerprint. `similar` is an empty measure (`similar_for(index)` by
    default), `min_similarity` by default that measure's own; `guard` is `unlike`. `one_way`: only what `threshold`
    witnesses rejected beside the very passage that stays is dropped, and not what they accepted beside it.
    Raises `BadArgument` for a threshold below 1 or a similarity that is none.
    """

    def __init__(
        self,
        index: Retriever,
        witnesses: Witnesses | None = None,
        *,
        threshold: int = THRESHOLD,
        min_similarity: float | None = None,
        similar: Similar | None = None,
        guard: bool = True,
        one_way: bool = False,
    ) -> None:
        if not isinstance(witnesses, Witnesses):
            raise BadArgument(
                "Trimmed(index, witnesses) wants an open index and its Witnesses: "
                "open_index('INDEX.trimmed') opens an overlay by its folder"
            )
        self.index = as_retriever(index)
        self.witnesses = witnesses
        self.threshold = check_threshold(threshold)
        self.similar = similar_for(self.index) if similar is None else similar
        self.min_similarity = check_similarity(
            self.similar.min_similarity if min_similarity is None else min_similarity
        )
        self.guard = guard
        self.one_way = one_way
        self._beside = _beside(witnesses, threshold, one_way)
        self._judged: Sequence[Judged] = tuple(witnesses.judged.values()) if self._beside else ()
        self._applied = [_applied(each, self._beside) for each in self._judged]
        self._short_of = _deepest(self.index)
        self.fingerprint = self.index.fingerprint
        if self._beside:
            self.similar.add([each.question for each in self._judged])
            measured = [self.min_similarity, self.similar.name, self.similar.identity, guard, one_way]
            digest = witnesses.digest(threshold, one_way=one_way)
            self.fingerprint = fingerprint_of("trimmed", self.index.fingerprint, threshold, *measured, digest)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages a query; exactly the index's where nothing applies. Cut where the index cut it."""
        if not self._beside or not queries:
            return self.index.find(queries, k)
        ranked, vectors = self._ranked(queries)
        nearest = self.similar.nearest(queries, vectors=vectors, floor=self.min_similarity)
        applied = [self._applies(query, near) for query, near in zip(queries, nearest, strict=True)]
        if not any(each.most for each in applied):
            return [*ranked(range(len(queries)), k)]
        return [found if trim is None else _hits(trim, found) for trim, found in self._trims(ranked, applied, k)]

    def explain(self, query: str, k: int) -> Explained:
        """One search, with what was dropped, what stayed though some witness separates it, and why."""
        check_search([query], k)
        if not self._beside:
            return Explained(self.index.find([query], k)[0], (), (), Nearest("", 0.0, "nothing is separated"))
        ranked, vectors = self._ranked([query])
        near = self.similar.nearest([query], vectors=vectors)[0]
        nearest = self._told(query, near)
        applied = self._applies(query, near)
        ((trim, found),) = self._trims(ranked, [applied], k)
        passages = found if trim is None else _hits(trim, found)
        judged = self._judged[near.at] if near is not None and not nearest.why else None
        named = self.witnesses.witnesses_for if self.one_way else self.witnesses.witnesses_of
        dropped = () if trim is None or judged is None else dropped_by(trim, judged, nearest, named)
        asked = Needed(self.threshold, self.one_way)
        undecided = undecided_in(passages, self._beside, judged, nearest, self.witnesses, asked)
        names = {name for each in dropped for name in each.witnesses}
        texts = {each.id: each.question for each in self._judged if each.id in names} if names else {}
        return Explained(passages, dropped, undecided, nearest, texts, self.one_way)

    def info(self) -> dict[str, Any]:
        """Kind, fingerprint, the overlay's settings, how much of it counts, and what the index says of itself."""
        own = self.index.info()
        shared: dict[str, Any] = {name: own[name] for name in ("passages", "corpus") if name in own}
        settings = {
            "threshold": self.threshold,
            "min_similarity": self.min_similarity,
            "similarity": self.similar.name,
            "guard": self.guard,
            "one_way": self.one_way,
        }
        pairs = len({frozenset((a, b)) for a, others in self._beside.items() for b in others})
        counted = {"judged": len(self.witnesses.judged), "separations": self.witnesses.separations(), "reached": pairs}
        kept: dict[str, Any] = {"kind": "trimmed", "fingerprint": self.fingerprint, **shared, "settings": settings}
        return {**kept, "witnesses": counted, "index": own}

    def close(self) -> None:
        """Close the index, where it is one that is closed."""
        close = getattr(self.index, "close", None)
        if close is not None:
            close()

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return f"<Trimmed over {self.index!r}, threshold {self.threshold}, fingerprint {self.fingerprint}>"

    def _ranked(self, queries: Sequence[str]) -> tuple[Ranked, Vectors | None]:
        """How rankings are had, and the queries' vectors where one encoding serves the index and the measure."""
        index, similar = self.index, self.similar
        if not (isinstance(index, Dense) and isinstance(similar, ByVector) and similar.encoder is index.encoder):
            return lambda some, depth: index.find([queries[at] for at in some], depth), None
        dense, encoded = index, index.encoded_queries(queries)

        def near(some: Sequence[int], depth: int) -> Sequence[list[Passage]]:
            those = Encoded(encoded.vectors[list(some)], [encoded.cut[at] for at in some])
            return dense.near(those, depth)

        return near, encoded.vectors

    def _applies(self, query: str, near: Near | None) -> _Applied:
        """What the nearest judged question drops, if it is near enough and not another question."""
        if near is None or near.similarity < self.min_similarity:
            return _NOTHING
        applied = self._applied[near.at]
        if not applied.most or (self.guard and unlike(query, self._judged[near.at].question)):
            return _NOTHING
        return applied

    def _told(self, query: str, near: Near | None) -> Nearest:
        """The nearest judged question in words, and why it says nothing on this one."""
        if near is None:
            return Nearest("", 0.0, "no judged question shares anything with it")
        question = self._judged[near.at].question
        if near.similarity < self.min_similarity:
            why = f"the nearest judged question is not near enough ({near.similarity:.2f} of {self.min_similarity:g})"
        else:
            apart = unlike(query, question) if self.guard else ""
            why = f"the nearest judged question is another one: {apart}" if apart else ""
        return Nearest(question, near.similarity, why)

    def _trims(self, ranked: Ranked, applied: Sequence[_Applied], k: int) -> list[tuple[Trim | None, list[Passage]]]:
        """Each query's ranking and its trim, none where nothing applies; those of one depth are searched together."""
        done: dict[int, tuple[Trim | None, list[Passage]]] = {}
        asked = {at: self._depth(k, k + min(k, each.most, 2 * each.likely + _SPARE)) for at, each in enumerate(applied)}
        while asked:
            by_depth: dict[int, list[int]] = defaultdict(list)
            for at, depth in asked.items():
                by_depth[depth].append(at)
            asked = {}
            for depth, some in by_depth.items():
                for at, found in zip(some, ranked(some, depth), strict=True):
                    each = applied[at]
                    trim = trim_ranking(found, k, each.dropping) if each.most else None
                    deeper = self._depth(k, min(2 * depth, k + each.most))
                    if trim is None or trim.full or len(found) < depth or deeper <= depth:
                        done[at] = trim, found
                    else:
                        asked[at] = deeper
        return [done[at] for at in range(len(applied))]

    def _depth(self, k: int, wanted: int) -> int:
        """No deeper than the index goes, for it would warn or refuse; but `k` is the caller's own."""
        return max(k, wanted if self._short_of is None else min(wanted, self._short_of))


def check_similarity(value: float) -> float:
    """`value` itself. Raises `BadArgument` unless it lies between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise BadArgument(f"min_similarity must lie between 0 and 1, got {value!r} (1: the same question only)")
    return float(value)


def _beside(witnesses: Witnesses, threshold: int, one_way: bool) -> dict[str, list[str]]:
    """For each passage those that may go where it is accepted: enough witnesses separate them from it."""
    beside: dict[str, list[str]] = {}
    for separation in witnesses.separated(threshold):
        for_a, for_b = witnesses.sides(separation) if one_way else (threshold, threshold)
        a, b = separation.pair
        if for_a >= threshold:
            beside.setdefault(a, []).append(b)
        if for_b >= threshold:
            beside.setdefault(b, []).append(a)
    return beside


def _applied(judged: Judged, beside: Mapping[str, Sequence[str]]) -> _Applied:
    accepted = set(judged.accepted)
    if not any(a in beside for a in accepted):
        return _NOTHING
    dropping = {a: gone for a in judged.accepted if (gone := [b for b in beside.get(a, ()) if b not in accepted])}
    every = set().union(*dropping.values())
    return _Applied(dropping, len(every), len(every.intersection(judged.rejected + judged.silent)))


def _deepest(index: Retriever) -> int | None:
    """How many passages it can be asked for: as many as there are, or as its server gives; None: nobody knows."""
    limits = _limits(index)
    with suppress(TypeError):
        limits.append(len(index))
    return min(limits, default=None)


def _limits(index: Retriever) -> list[int]:
    """What servers behind it give at most: it may be one, or go through one."""
    behind = [*getattr(index, "indexes", ()), getattr(index, "index", None)]
    own = [] if (most := getattr(index, "max_k", None)) is None else [int(most)]
    return own + [most for each in behind if isinstance(each, Retriever) for most in _limits(each)]


def _hits(trim: Trim, found: Sequence[Passage]) -> Hits:
    return Hits(trim.kept, cut=cut_of(found))

"""A trimmed index: what CDIT's witnesses separate is dropped from the results of any index, and can be taken back.

Ma et al. 2024 ("Context-Driven Index Trimming", sections 4.3 and 4.4, Algorithm 1): passages that a judge rejected for
a question are taken away from those it accepted, and a question like one judged before gets the stored verdicts.

Differs from the paper: nothing is cut out of the index, because searches walk around cut links; its ranking is trimmed
instead, whatever kind of index it is, and filled up to k from further down. A separation counts from a number of
witnesses up, applies only where both passages stand in the ranking, and only to a question whose nearest judged
question accepted one of the two. The paper counts a pair's witnesses whichever side they accepted (Theorem 1);
`one_way` counts only those that accepted the same one as the nearest question did.

An index that finds approximately (hnsw, ColBERT) looks further when it is asked for more, and may find better ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple

from blendfilter.errors import BadArgument, check_count
from blendfilter.records import Passage
from blendfilter.retrieval.base import Hits, Retriever, check_search, cut_of, fingerprint_of
from blendfilter.retrieval.callables import as_retriever
from blendfilter.retrieval.dense import Dense
from blendfilter.retrieval.encoders import Encoded, Vectors
from blendfilter.text import shortened
from blendfilter.trimming.opposites import unlike
from blendfilter.trimming.similar import ByVector, Neighbour, Similar, similar_for
from blendfilter.trimming.witnesses import THRESHOLD, JudgedQuestion, Witnesses

_WIDTH = 100
_MOST_NAMED = 3
Rankings = Callable[[Sequence[int], int], Sequence[list[Passage]]]
"""The rankings of some of the queries, by their places, to a depth."""


# --- what a search gives ----------------------------------------------------------------------------------------------


class NearestQuestion(NamedTuple):
    """The nearest judged question, how near it is, and why it does not apply to this query (empty: it does)."""

    question: str
    similarity: float
    why: str


class DroppedPassage(NamedTuple):
    """A passage that a trimmed search leaves out."""

    passage: Passage
    rank: int
    """Its place in the bare index's ranking, from 1."""
    kept: str
    """The accepted passage beside which it stood."""
    witnesses: tuple[str, ...]
    """The questions that separate the two, by id; counted one way those that accepted the one that is kept."""
    judged: str
    """The judged question that it goes by."""
    similarity: float


class UndecidedPair(NamedTuple):
    """Two separated passages that are both in the results, in their order."""

    pair: tuple[str, str]
    why: str


class Explanation(NamedTuple):
    """A search's passages, and what the overlay did."""

    passages: Sequence[Passage]
    dropped: tuple[DroppedPassage, ...]
    undecided: tuple[UndecidedPair, ...]
    nearest: NearestQuestion
    questions: Mapping[str, str] = MappingProxyType({})
    """The texts of the witnesses named above, by id."""
    one_way: bool = False
    """Whether only those witnesses count that accepted the one that is kept."""

    def lines(self) -> list[str]:
        """For people: three lines for each passage that was dropped, two for each pair that stayed."""
        lines = []
        for each in self.dropped:
            named = [self.questions[name] for name in each.witnesses if name in self.questions]
            listed = ", ".join(f"{shortened(text, _WIDTH)!r}" for text in named[:_MOST_NAMED])
            more = f" and {len(each.witnesses) - _MOST_NAMED:,} more" if len(named) > _MOST_NAMED else ""
            side = f" for {each.kept}" if self.one_way else ""
            judged = shortened(each.judged, _WIDTH)
            lines += [
                f"dropped {each.passage.id} (rank {each.rank}): {shortened(each.passage.line, _WIDTH)}",
                f"  the judged question {judged!r} ({each.similarity:.2f} near) accepted {each.kept}",
                f"  {_witnesses(len(each.witnesses))}{side}: {listed}{more}",
            ]
        for (a, b), why in self.undecided:
            lines += [f"both stay: {a} and {b}", f"  {why}"]
        return lines


class TrimmedRanking(NamedTuple):
    """What is left of a ranking, and what went: with its place there, from 1, and the one beside which it stood."""

    kept: list[Passage]
    gone: list[tuple[Passage, int, str]]
    full: bool
    """Whether k passages are left; otherwise a longer ranking may have more."""


def trim_ranking(ranking: Sequence[Passage], k: int, dropping: Mapping[str, Sequence[str]]) -> TrimmedRanking:
    """The shortest head of `ranking` that has `k` passages left when all that its accepted ones drop is dropped.

    A passage found lower down may drop one that stands above it. `dropping`: under each accepted passage the ids that
    go where it stands.

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
    kept = Hits([each for each in head if each.id not in beside], cut=cut_of(ranking))
    return TrimmedRanking(kept, gone, left == k)


# --- the index --------------------------------------------------------------------------------------------------------


class _Effect(NamedTuple):
    """What one judged question does to a ranking: under each accepted passage what goes where it stands."""

    dropping: Mapping[str, Sequence[str]]
    most: int
    """How many passages it may drop."""


class Trimmed(Retriever):
    """`Trimmed(index, Witnesses.read(file))`, searched as any index; `index` itself is never written to.

    The witnesses count as they are now: an index does not change once it is open. Where no pair has `threshold` of them
    it is the index itself, under the index's own fingerprint.

    Args:
        threshold: witnesses that a separation takes.
        min_similarity: how near the nearest judged question must be; by default the measure's own.
        similar: an empty measure, by default `similar_for(index)`.
        guard: whether `unlike` keeps opposite questions apart.
        one_way: only what `threshold` witnesses rejected beside the very passage that stays is dropped, not what they
            accepted beside it.

    Raises:
        BadArgument: a threshold below 1, or a similarity that is none.
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
        check_count("threshold", threshold)
        self.threshold = threshold
        self.similar = similar_for(self.index) if similar is None else similar
        self.min_similarity = check_similarity(
            self.similar.min_similarity if min_similarity is None else min_similarity
        )
        self.guard = guard
        self.one_way = one_way
        self._beside = _beside(witnesses, threshold, one_way)
        self._judged: Sequence[JudgedQuestion] = tuple(witnesses.judged.values()) if self._beside else ()
        self._effects = [_effect(each, self._beside) for each in self._judged]
        limits = [] if (most := getattr(self.index, "max_k", None)) is None else [int(most)]
        with suppress(TypeError):  # of unknown size
            limits.append(len(self.index))
        self._deepest = min(limits, default=None)
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
        rankings, vectors = self._rankings(queries)
        nearest = self.similar.nearest(queries, vectors=vectors, floor=self.min_similarity)
        effects = [self._effect_on(query, near) for query, near in zip(queries, nearest, strict=True)]
        if not any(effect.most for effect in effects):
            return [*rankings(range(len(queries)), k)]
        return [trim.kept for trim in self._trims(rankings, effects, k)]

    def explain(self, query: str, k: int) -> Explanation:
        """One search, with what was dropped, what stayed though some witness separates it, and why."""
        check_search([query], k)
        if not self._beside:
            nearest = NearestQuestion("", 0.0, "nothing is separated")
            return Explanation(self.index.find([query], k)[0], (), (), nearest)
        rankings, vectors = self._rankings([query])
        near = self.similar.nearest([query], vectors=vectors)[0]
        nearest = self._nearest(query, near)
        (trim,) = self._trims(rankings, [self._effect_on(query, near)], k)
        judged = self._judged[near.at] if near is not None and not nearest.why else None
        dropped = tuple(
            DroppedPassage(passage, rank, kept, self._counting(kept, passage.id), nearest.question, nearest.similarity)
            for passage, rank, kept in trim.gone
        )
        texts = {name: self.witnesses.judged[name].question for each in dropped for name in each.witnesses}
        undecided = tuple(self._undecided(trim.kept, judged, nearest))
        return Explanation(trim.kept, dropped, undecided, nearest, texts, self.one_way)

    def info(self) -> dict[str, Any]:
        """Kind, fingerprint, the overlay's settings, how much of it counts, and the index's own `info()`."""
        own = self.index.info()
        pairs = len({frozenset((a, b)) for a, others in self._beside.items() for b in others})
        return {
            "kind": "trimmed",
            "fingerprint": self.fingerprint,
            **{name: own[name] for name in ("passages", "corpus") if name in own},
            "settings": {
                "threshold": self.threshold,
                "min_similarity": self.min_similarity,
                "similarity": self.similar.name,
                "guard": self.guard,
                "one_way": self.one_way,
            },
            "witnesses": {
                "judged": len(self.witnesses.judged),
                "separations": self.witnesses.separations(),
                "reached": pairs,
            },
            "index": own,
        }

    def close(self) -> None:
        """Close the index, where it is one that is closed."""
        getattr(self.index, "close", lambda: None)()

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return f"<Trimmed over {self.index!r}, threshold {self.threshold}, fingerprint {self.fingerprint}>"

    def _rankings(self, queries: Sequence[str]) -> tuple[Rankings, Vectors | None]:
        """What searches the index, and the queries' vectors where one encoding serves the index and the measure."""
        index, similar = self.index, self.similar
        if not (isinstance(index, Dense) and isinstance(similar, ByVector) and similar.encoder is index.encoder):
            return lambda some, depth: index.find([queries[at] for at in some], depth), None
        dense, encoded = index, index.encoded_queries(queries)

        def near(some: Sequence[int], depth: int) -> Sequence[list[Passage]]:
            return dense.near(Encoded(encoded.vectors[list(some)], [encoded.cut[at] for at in some]), depth)

        return near, encoded.vectors

    def _counting(self, kept: str, other: str) -> tuple[str, ...]:
        """The witnesses that count where `kept` is accepted."""
        return (self.witnesses.witnesses_for if self.one_way else self.witnesses.witnesses_of)(kept, other)

    def _effect_on(self, query: str, near: Neighbour | None) -> _Effect:
        """What the nearest judged question drops, if it is near enough and not another question."""
        if near is None or not self._effects[near.at].most or self._nearest(query, near).why:
            return _Effect({}, 0)
        return self._effects[near.at]

    def _nearest(self, query: str, near: Neighbour | None) -> NearestQuestion:
        if near is None:
            return NearestQuestion("", 0.0, "no judged question shares anything with it")
        question = self._judged[near.at].question
        if near.similarity < self.min_similarity:
            why = f"the nearest judged question is not near enough ({near.similarity:.2f} of {self.min_similarity:g})"
        else:
            apart = unlike(query, question) if self.guard else ""
            why = f"the nearest judged question is another one: {apart}" if apart else ""
        return NearestQuestion(question, near.similarity, why)

    def _trims(self, rankings: Rankings, effects: Sequence[_Effect], k: int) -> list[TrimmedRanking]:
        """Each query's trimmed ranking.

        Queries of one depth are searched together; those that come out short are searched again, deeper.
        """
        done: dict[int, TrimmedRanking] = {}
        depths = {at: self._depth(k, k + min(k, each.most)) for at, each in enumerate(effects)}
        while depths:
            by_depth: dict[int, list[int]] = defaultdict(list)
            for at, depth in depths.items():
                by_depth[depth].append(at)
            depths = {}
            for depth, some in by_depth.items():
                for at, found in zip(some, rankings(some, depth), strict=True):
                    trim = trim_ranking(found, k, effects[at].dropping)
                    deeper = self._depth(k, min(2 * depth, k + effects[at].most))
                    if trim.full or len(found) < depth or deeper <= depth:
                        done[at] = trim
                    else:
                        depths[at] = deeper
        return [done[at] for at in range(len(effects))]

    def _depth(self, k: int, wanted: int) -> int:
        """No deeper than the index goes, because it would warn or refuse; but `k` is the caller's own."""
        return max(k, wanted if self._deepest is None else min(wanted, self._deepest))

    def _undecided(
        self, passages: Sequence[Passage], judged: JudgedQuestion | None, nearest: NearestQuestion
    ) -> Iterator[UndecidedPair]:
        """The pairs among `passages` that some question separates; `judged` where its verdicts apply."""
        for a, b in combinations(dict.fromkeys(passage.id for passage in passages), 2):
            if judged is not None and (a in judged.accepted) != (b in judged.accepted):
                kept, other = (a, b) if a in judged.accepted else (b, a)
                if self.witnesses.witnesses_of(a, b):
                    found = _witnesses(len(self._counting(kept, other))) + (f" for {kept}" if self.one_way else "")
                    yield UndecidedPair((a, b), f"{found}, and {self.threshold} are asked for")
            elif b in self._beside.get(a, ()) or a in self._beside.get(b, ()):
                why = nearest.why
                if judged is not None:
                    both = "both" if a in judged.accepted else "neither of them"
                    why = f"the nearest judged question, {shortened(judged.question, _WIDTH)!r}, accepted {both}"
                yield UndecidedPair((a, b), why)


def check_similarity(value: float) -> float:
    """`value` itself. Raises `BadArgument` unless it lies between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise BadArgument(f"min_similarity lies between 0 and 1, got {value!r} (1: the same question only)")
    return float(value)


def _beside(witnesses: Witnesses, threshold: int, one_way: bool) -> dict[str, list[str]]:
    """For each passage those that may go where it is accepted: enough witnesses separate them from it."""
    beside: dict[str, list[str]] = defaultdict(list)
    for separation in witnesses.separated(threshold):
        a, b = separation.pair
        for_a, for_b = witnesses.sides(separation) if one_way else (threshold, threshold)
        if for_a >= threshold:
            beside[a].append(b)
        if for_b >= threshold:
            beside[b].append(a)
    return beside


def _effect(judged: JudgedQuestion, beside: Mapping[str, Sequence[str]]) -> _Effect:
    dropping = {
        a: gone for a in judged.accepted if (gone := [b for b in beside.get(a, ()) if b not in judged.accepted])
    }
    return _Effect(dropping, len(set().union(*dropping.values())))


def _witnesses(count: int) -> str:
    return "1 witness" if count == 1 else f"{count:,} witnesses"

"""A trimmed index: what CDIT's judge rejected is dropped from the results of any index, and can be taken back.

Ma et al. 2024 ("Context-Driven Index Trimming", sections 4.1 and 4.3, Algorithm 1). For a query:

1. Its *own* verdicts count at once: where the query was judged itself, or the same question in a polite frame
   (`plain_question`), every passage that it rejected is dropped.
2. Else the *near* judged questions are looked up: those that have a verdict on a passage found, are as near as
   `min_similarity`, and are not told apart by `unlike`. They vote on each passage. One that more of them rejected than
   accepted is dropped where an accepted one is found beside it and `threshold` witnesses separate the two. So is one
   that none of them judged, in either case: other questions separated it from what is accepted here.
3. With `refill` the freed places are filled from further down the ranking; without, fewer passages come back, as in the
   paper. `Hits.trim` names what was dropped, what was filled in, and which of that was never judged.

A witness counts for one side (`one_way`): it accepted the passage that stays. Theorem 1 counts a pair's witnesses
whichever side they accepted; then one that errs costs a right passage of another question.

Differs from the paper: nothing is cut out of the index, because searches walk around cut links; its ranking is trimmed
instead, whatever kind of index it is. An index that finds approximately (hnsw, ColBERT) looks further when it is asked
for more, and may find better ones.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from blendfilter.errors import BadArgument, IndexChanged, check_count
from blendfilter.records import Passage, one_line, whole_characters
from blendfilter.retrieval.base import (
    Hits,
    Retriever,
    Trim,
    fingerprint_of,
    hits_like,
)
from blendfilter.retrieval.callables import as_retriever
from blendfilter.retrieval.dense import Dense
from blendfilter.retrieval.encoders import Vectors
from blendfilter.text import counted, shortened
from blendfilter.trimming.guard import Rules, guard_of
from blendfilter.trimming.similar import ByVector, Neighbour, Similar, similar_for
from blendfilter.trimming.witnesses import THRESHOLD, JudgedQuestion, Witnesses

_Search = tuple[Hits, "Verdicts | None", list[tuple[Passage, int, str]]]
"""What comes back for a query, by which verdicts, and what went: see `TrimmedRanking.gone`."""
_WIDTH = 100
_MOST_NAMED = 3


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
    """The accepted passage beside which it stood; empty: the query's own verdict dropped it."""
    witnesses: tuple[str, ...]
    """The questions that rejected it, by id: those that separate the two, or whose own verdict it was."""
    judged: str
    """The judged question that it goes by: the nearest that accepted `kept`, or where that is empty, rejected it."""
    similarity: float


class Explanation(NamedTuple):
    """A search's passages, and what the overlay did."""

    passages: Hits
    dropped: tuple[DroppedPassage, ...]
    nearest: NearestQuestion
    questions: Mapping[str, str] = MappingProxyType({})
    """The texts of the witnesses named above, by id."""

    def lines(self) -> list[str]:
        """For people: what was dropped and why, and what came in its place; or why nothing was dropped."""
        lines = []
        for drop in self.dropped:
            line, judged = (
                shortened(text, _WIDTH) for text in (drop.passage.line, drop.judged)
            )
            lines.append(f"dropped {drop.passage.id} (rank {drop.rank}): {line}")
            if not drop.kept:
                lines.append(
                    f"  rejected for the judged question {judged!r}, which this one is"
                )
                continue
            count = counted(len(drop.witnesses), "witness", "witnesses")
            texts = [self.questions[name] for name in drop.witnesses[:_MOST_NAMED]]
            listed = ", ".join(repr(shortened(text, _WIDTH)) for text in texts)
            if len(drop.witnesses) > _MOST_NAMED:
                listed += " …"
            lines += [
                f"  the judged question {judged!r} ({drop.similarity:.2f} near) accepted {drop.kept}",
                f"  {count}: {listed}",
            ]
        if (trim := self.passages.trim) is not None:
            for name in trim.refilled:
                judged = (
                    "not judged for such a question"
                    if name in trim.unjudged
                    else "not rejected"
                )
                lines.append(f"filled in {name}: {judged}")
        if not lines:
            why = self.nearest.why or "all that was found is accepted"
            lines.append(f"nothing was dropped: {why}")
        return lines


class Verdicts(NamedTuple):
    """The verdicts of judged questions that apply to one query, the nearest question first."""

    near: tuple[Neighbour, ...]
    own: bool
    """Whether it is the query that was judged, and not one near it."""
    votes: Mapping[str, int]
    """For each passage with a verdict how many more accepted it than rejected it."""

    @classmethod
    def of(
        cls,
        near: Sequence[Neighbour],
        voting: Iterable[tuple[Iterable[str], Iterable[str]]],
        own: bool,
    ) -> Verdicts:
        """Of these questions, by what each of them accepted and rejected."""
        votes = Counter[str]()
        for accepted, rejected in voting:
            votes.update(accepted)
            votes.subtract(rejected)
        return cls(tuple(near), own, votes)

    def accept(self, passage: str) -> bool:
        return self.votes.get(passage, 0) > 0

    def may_drop(self, passage: str) -> bool:
        """Whether it goes beside an accepted one from which it is separated."""
        return self.votes.get(passage, -1) < 0


class TrimmedRanking(NamedTuple):
    """What is left of a ranking, and what went: with its place there, from 1, and the one beside which it stood."""

    kept: list[Passage]
    gone: list[tuple[Passage, int, str]]
    full: bool
    """Whether all that was wanted is left; otherwise a longer ranking may have more."""
    refilled: list[str]
    """The ids of those of `kept` that stood below the first k."""

    def hits(
        self,
        ranking: Sequence[Passage],
        judged: str,
        similarity: float,
        votes: Mapping[str, int],
    ) -> Hits:
        """What comes back for a query with this `ranking`, by the verdicts on the question `judged`."""
        trim = Trim(
            judged=judged,
            similarity=similarity,
            dropped={passage.id: kept for passage, _, kept in self.gone},
            refilled=tuple(self.refilled),
            unjudged=tuple(name for name in self.refilled if name not in votes),
        )
        return hits_like(self.kept, ranking, trim=trim if self.gone else None)


def trim_ranking(
    ranking: Sequence[Passage],
    k: int,
    verdicts: Verdicts,
    apart: Mapping[str, Collection[str]],
    *,
    refill: bool = True,
) -> TrimmedRanking:
    """The shortest head of `ranking` that has `k` passages left when all that `verdicts` drop is dropped.

    Without `refill` it is the first `k` of the ranking. A passage found lower down may drop one that stands above it.
    `apart`: under each passage those that enough witnesses separate from it.

    >>> a, b, c = (Passage(name, "", name) for name in "abc")
    >>> verdicts = Verdicts((Neighbour(0, 1.0),), False, {"a": 1, "b": -1})
    >>> [p.id for p in trim_ranking([b, a, c], 2, verdicts, {"a": ["b"]}).kept]
    ['a', 'c']
    """
    # what goes wherever it stands
    beside = {name: "" for name, vote in verdicts.votes.items() if verdicts.own and vote < 0}
    standing = list[str]()
    read = 0
    for name in [passage.id for passage in ranking]:
        if (len(standing) if refill else read) == k:
            break
        read += 1
        if verdicts.accept(name):
            for other in standing:
                if other in apart.get(name, ()) and verdicts.may_drop(other):
                    beside[other] = name
        elif name not in beside and verdicts.may_drop(name):
            accepted = (a for a in standing if verdicts.accept(a) and name in apart.get(a, ()))
            if (kept := next(accepted, None)) is not None:
                beside[name] = kept
        standing = [left for left in [*standing, name] if left not in beside]
    gone = list[tuple[Passage, int, str]]()
    kept_passages, refilled = list[Passage](), list[str]()
    for rank, passage in enumerate(ranking[:read], start=1):
        if passage.id in beside:
            gone.append((passage, rank, beside[passage.id]))
            continue
        kept_passages.append(passage)
        if rank > k:
            refilled.append(passage.id)
    return TrimmedRanking(kept_passages, gone, len(standing) == k or not refill, refilled)


# --- the index --------------------------------------------------------------------------------------------------------


class Trimmed(Retriever):
    """`Trimmed(index, Witnesses.read(file))`, searched as any index; `index` itself is never written to.

    The witnesses count as they are now: an index does not change once it is open. Where no question rejected anything
    it is the index itself, under the index's own fingerprint.

    Args:
        threshold: witnesses that a separation takes, for another question than those that were judged.
        min_similarity: how near a judged question must be; by default the measure's own.
        similar: an empty measure, by default `similar_for(index)`.
        guard: what keeps near questions apart that ask something else: True the rules of `unlike`, False nothing, or a
            `PairModel`.
        one_way: only witnesses count that accepted the very passage that stays, not those that rejected it.
        refill: fill freed places from further down the ranking; without, as in the paper, fewer passages come back.

    Raises:
        BadArgument: a threshold below 1, or a similarity that is none.
    """

    def __init__(
        self,
        index: Retriever,
        witnesses: Witnesses,
        *,
        threshold: int = THRESHOLD,
        min_similarity: float | None = None,
        similar: Similar | None = None,
        guard: bool | Rules | None = True,
        one_way: bool = True,
        refill: bool = True,
    ) -> None:
        self.index = as_retriever(index)
        self.witnesses = witnesses
        self.threshold = check_count("threshold", threshold)
        self.similar = similar_for(self.index) if similar is None else similar
        self.min_similarity = (
            self.similar.min_similarity if min_similarity is None else float(min_similarity)
        )
        if not 0 <= self.min_similarity <= 1:
            raise BadArgument(
                f"min_similarity lies between 0 and 1, got {min_similarity!r} (1: the same question only)"
            )
        self.guard = guard_of(guard)
        self.one_way = one_way
        self.refill = refill
        # the depth to which the index may be searched, where it is known
        limits = (getattr(self.index, "max_k", None), self.index.size)
        self._deepest = min((limit for limit in limits if limit is not None), default=None)
        digest = witnesses.digest(threshold, one_way=one_way)
        self._judged: Sequence[JudgedQuestion] = (
            tuple(witnesses.judged.values()) if digest else ()
        )
        self._rejected = [witnesses.rejected_by(judged.id) for judged in self._judged]
        self._apart: dict[str, set[str]] = defaultdict(set)
        """For each passage those that may go where it is accepted: enough witnesses separate them from it."""
        self._judging: dict[str, list[int]] = defaultdict(list)
        if not digest:
            self.fingerprint = self.index.fingerprint
            return
        for (a, b), names in witnesses.separated(threshold, one_way=one_way):
            for kept, other in ((a, b), (b, a)):
                counting = witnesses.witnesses_for(kept, other) if one_way else names
                if len(counting) >= threshold:
                    self._apart[kept].add(other)
        for at, (judged, rejected) in enumerate(zip(self._judged, self._rejected, strict=True)):
            for passage in (*judged.accepted, *rejected):
                self._judging[passage].append(at)
        self.similar.add([judged.question for judged in self._judged])
        measured = [self.min_similarity, self.similar.name, self.similar.identity]
        measured += [self.guard is not None, one_way]
        if self.guard is not None and self.guard.identity:
            measured.append(self.guard.identity)
        rules = ["own verdicts count", refill, witnesses.pairing]
        self.fingerprint = fingerprint_of(
            "trimmed", self.index.fingerprint, threshold, *measured, digest, *rules
        )

    def outdated(self) -> bool:
        """Whether its index is. Verdicts are about that index's passages, so there is no `fresh` one to open."""
        return self.index.outdated()

    def fresh(self) -> Trimmed:
        """This overlay. Raises `IndexChanged` where it is outdated."""
        if self.outdated():
            raise IndexChanged(
                f"the index {self.index.fingerprint} was changed, and what trims it is about the old one"
            )
        return self

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages a query; exactly the index's where nothing applies. Cut where the index cut it."""
        if not self._judged or not queries:
            return self.index.find(queries, k)
        return [hits for hits, _, _ in self._searches(queries, k)]

    def explain(self, query: str, k: int) -> Explanation:
        """One search, with what was dropped, what stayed though some witness separates it, and why."""
        k = self._checked_search([query], k)
        if not self._judged:
            (bare,) = self.index.find([query], k)
            return Explanation(
                hits_like(bare, bare), (), NearestQuestion("", 0.0, "nothing was rejected")
            )
        ((hits, verdicts, gone),) = self._searches([query], k)
        near = () if verdicts is None else verdicts.near
        dropped = tuple(self._explained(near, *passage) for passage in gone)
        names = {name for drop in dropped for name in drop.witnesses}
        texts = {name: self.witnesses.judged[name].question for name in names}
        return Explanation(hits, dropped, self._nearest(query, near), texts)

    def info(self) -> dict[str, Any]:
        """Kind, fingerprint, the overlay's settings, how much of it counts, and the index's own `info()`."""
        own = self.index.info()
        pairs = {frozenset((a, b)) for a, others in self._apart.items() for b in others}
        return {
            "kind": "trimmed",
            "fingerprint": self.fingerprint,
            **{name: own[name] for name in ("passages", "corpus") if name in own},
            "settings": {
                "threshold": self.threshold,
                "min_similarity": self.min_similarity,
                "similarity": self.similar.name,
                "guard": self.guard is not None,
                **({"similar": self.guard.name} if self.guard and self.guard.name else {}),
                "one_way": self.one_way,
                "refill": self.refill,
                "pairing": self.witnesses.pairing,
            },
            "witnesses": {
                "judged": len(self.witnesses.judged),
                "separations": self.witnesses.separations(),
                "reached": len(pairs),
            },
            "index": own,
        }

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return f"<Trimmed over {self.index!r}, threshold {self.threshold}, fingerprint {self.fingerprint}>"

    def _searches(self, queries: Sequence[str], k: int) -> Iterator[_Search]:
        """Each query's search. They are ranked together; one that comes out short is ranked again, deeper."""
        depth = self._depth(k, self.index.as_cheap(k)) if self.refill else k
        encoded = None
        # one encoding serves the index and the measure
        if (
            isinstance(self.index, Dense)
            and isinstance(self.similar, ByVector)
            and self.similar.encoder is self.index.encoder
        ):
            encoded = self.index.encoded_queries(queries)
            rankings: Sequence[list[Passage]] = self.index.near(encoded, depth)
        else:
            rankings = self.index.find(queries, depth)
        for at, (query, ranking) in enumerate(zip(queries, rankings, strict=True)):
            vector = None if encoded is None else encoded.vectors[at]
            verdicts = self._verdicts(query, ranking[:k], vector)
            if verdicts is None:
                yield hits_like(ranking[:k], ranking), None, []
            else:
                yield self._trimmed(query, k, ranking, verdicts, depth)

    def _trimmed(
        self, query: str, k: int, first: Sequence[Passage], verdicts: Verdicts, depth: int
    ) -> _Search:
        ranking = first
        while True:
            trimmed = trim_ranking(ranking, k, verdicts, self._apart, refill=self.refill)
            deeper = self._depth(k, k + len(trimmed.gone) if depth == k else 2 * depth)
            if trimmed.full or len(ranking) < depth or deeper <= depth:
                break
            depth = deeper
            (ranking,) = self.index.find([query], depth)
        if not trimmed.gone:  # exactly the index's own
            return hits_like(first[:k], first), verdicts, []
        at, similarity = verdicts.near[0]
        hits = trimmed.hits(first, self._judged[at].question, similarity, verdicts.votes)
        return hits, verdicts, trimmed.gone

    def _depth(self, k: int, wanted: int) -> int:
        """No deeper than the index goes, because it would warn or refuse; but `k` is the caller's own."""
        return max(k, wanted if self._deepest is None else min(wanted, self._deepest))

    def _verdicts(
        self, query: str, found: Sequence[Passage], vector: Vectors | None
    ) -> Verdicts | None:
        """The verdicts that apply to a query which found these passages; None where none does."""
        # those that have a verdict on a passage found
        places = sorted({at for passage in found for at in self._judging.get(passage.id, ())})
        own, near = self.similar.like(
            whole_characters(one_line(query)),  # as it is stored
            places=places,
            vector=vector,
            floor=self.min_similarity,
            guard=self.guard,
        )
        if not near:
            return None
        voting = [(self._judged[at].accepted, self._rejected[at]) for at, _ in near]
        return Verdicts.of(near, voting, own=own)

    # --- explaining ---------------------------------------------------------------------------------------------------

    def _explained(
        self, near: Sequence[Neighbour], passage: Passage, rank: int, kept: str
    ) -> DroppedPassage:
        deciding = [
            (self._judged[at], similarity)
            for at, similarity in near
            if (kept in self._judged[at].accepted if kept else passage.id in self._rejected[at])
        ]
        if not kept:
            witnesses = tuple(sorted(judged.id for judged, _ in deciding))
        elif self.one_way:
            witnesses = self.witnesses.witnesses_for(kept, passage.id)
        else:
            witnesses = self.witnesses.witnesses_of(kept, passage.id)
        nearest, similarity = deciding[0]
        return DroppedPassage(passage, rank, kept, witnesses, nearest.question, similarity)

    def _nearest(self, query: str, near: Sequence[Neighbour]) -> NearestQuestion:
        """The nearest judged question, and why none applies, where none does."""
        nearest = (near or self.similar.near(query))[0]
        question = self._judged[nearest.at].question
        if near:
            why = ""
        elif nearest.similarity < self.min_similarity:
            why = (
                f"the nearest judged question is not near enough ({nearest.similarity:.2f} of "
                f"{self.min_similarity:g})"
            )
        elif self.guard is not None and (apart := self.guard.apart(query, [question])[0]):
            why = f"the nearest judged question is another one: {apart}"
        else:
            why = "the nearest judged question has no verdict on what was found"
        return NearestQuestion(question, nearest.similarity, why)

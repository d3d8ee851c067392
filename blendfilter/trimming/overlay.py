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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple

from blendfilter.errors import BadArgument, IndexChanged, check_count
from blendfilter.records import Passage, one_line, whole_characters
from blendfilter.retrieval.base import (
    Hits,
    Retriever,
    Trim,
    check_search,
    cut_of,
    fingerprint_of,
    missing_of,
)
from blendfilter.retrieval.callables import as_retriever
from blendfilter.retrieval.dense import Dense
from blendfilter.retrieval.encoders import Encoded, Vectors
from blendfilter.text import shortened
from blendfilter.trimming.guard import Guard, guard_of
from blendfilter.trimming.opposites import plain_question
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
    """The accepted passage beside which it stood; empty: the query's own verdict dropped it."""
    witnesses: tuple[str, ...]
    """The questions that rejected it, by id: those that separate the two, or whose own verdict it was."""
    judged: str
    """The judged question that it goes by: the nearest that accepted `kept`, or where that is empty, rejected it."""
    similarity: float


class UndecidedPair(NamedTuple):
    """Two separated passages that are both in the results, in their order."""

    pair: tuple[str, str]
    why: str


class Explanation(NamedTuple):
    """A search's passages, and what the overlay did."""

    passages: Hits
    dropped: tuple[DroppedPassage, ...]
    undecided: tuple[UndecidedPair, ...]
    nearest: NearestQuestion
    questions: Mapping[str, str] = MappingProxyType({})
    """The texts of the witnesses named above, by id."""
    one_way: bool = True
    """Whether only those witnesses count that accepted the one that is kept."""

    def lines(self) -> list[str]:
        """For people: what was dropped and why, what came in its place, which separated pairs stayed and why."""
        lines = []
        for each in self.dropped:
            lines.append(
                f"dropped {each.passage.id} (rank {each.rank}): {shortened(each.passage.line, _WIDTH)}"
            )
            judged = shortened(each.judged, _WIDTH)
            if not each.kept:
                lines.append(f"  rejected for the judged question {judged!r}, which this one is")
                continue
            named = [self.questions[name] for name in each.witnesses if name in self.questions]
            listed = ", ".join(f"{shortened(text, _WIDTH)!r}" for text in named[:_MOST_NAMED])
            more = (
                f" and {len(each.witnesses) - _MOST_NAMED:,} more"
                if len(named) > _MOST_NAMED
                else ""
            )
            side = f" for {each.kept}" if self.one_way else ""
            lines += [
                f"  the judged question {judged!r} ({each.similarity:.2f} near) accepted {each.kept}",
                f"  {_witnesses(len(each.witnesses))}{side}: {listed}{more}",
            ]
        if (trim := self.passages.trim) is not None:
            for name in trim.refilled:
                verdict = (
                    "not judged for such a question" if name in trim.unjudged else "not rejected"
                )
                lines.append(f"filled in {name}: {verdict}")
        for (a, b), why in self.undecided:
            lines += [f"both stay: {a} and {b}", f"  {why}"]
        return lines


class Verdicts(NamedTuple):
    """The verdicts of judged questions that apply to one query, the nearest question first."""

    near: tuple[Neighbour, ...]
    own: bool
    """Whether it is the query that was judged, and not one near it."""
    votes: Mapping[str, int]
    """For each passage with a verdict how many more accepted it than rejected it."""

    @property
    def gone(self) -> frozenset[str]:
        """What goes wherever it stands."""
        return (
            frozenset(name for name, vote in self.votes.items() if vote < 0)
            if self.own
            else frozenset()
        )

    def accept(self, passage: str) -> bool:
        return self.votes.get(passage, 0) > 0

    def may_drop(self, passage: str) -> bool:
        """Whether it goes beside an accepted one from which it is separated."""
        return passage not in self.votes or self.votes[passage] < 0


class TrimmedRanking(NamedTuple):
    """What is left of a ranking, and what went: with its place there, from 1, and the one beside which it stood."""

    kept: list[Passage]
    gone: list[tuple[Passage, int, str]]
    full: bool
    """Whether all that was wanted is left; otherwise a longer ranking may have more."""
    refilled: list[str]
    """The ids of those of `kept` that stood below the first k."""


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
    standing = Counter[str]()
    beside = dict.fromkeys(verdicts.gone, "")
    left = read = 0
    for passage in ranking:
        if (left if refill else read) == k:
            break
        read += 1
        name = passage.id
        if name not in standing and name not in beside:
            if verdicts.accept(name):
                for other in standing:
                    if (
                        other not in beside
                        and other in apart.get(name, ())
                        and verdicts.may_drop(other)
                    ):
                        beside[other] = name
                        left -= standing[other]
            elif verdicts.may_drop(name):
                by = next(
                    (a for a in standing if verdicts.accept(a) and name in apart.get(a, ())), None
                )
                if by is not None:
                    beside[name] = by
        standing[name] += 1
        left += name not in beside
    head = ranking[:read]
    gone = [
        (each, rank, beside[each.id])
        for rank, each in enumerate(head, start=1)
        if each.id in beside
    ]
    kept = [each for each in head if each.id not in beside]
    refilled = [each.id for each in head[k:] if each.id not in beside]
    return TrimmedRanking(kept, gone, left == k or not refill, refilled)


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
        witnesses: Witnesses | None = None,
        *,
        threshold: int = THRESHOLD,
        min_similarity: float | None = None,
        similar: Similar | None = None,
        guard: bool | Guard = True,
        one_way: bool = True,
        refill: bool = True,
    ) -> None:
        if not isinstance(witnesses, Witnesses):
            raise BadArgument(
                "Trimmed(index, witnesses) wants an open index and its Witnesses: "
                "open_index('INDEX.trimmed') opens an overlay by its folder"
            )
        self.index = as_retriever(index)
        self.witnesses = witnesses
        threshold = check_count("threshold", threshold)
        self.threshold = threshold
        self.similar = similar_for(self.index) if similar is None else similar
        self.min_similarity = check_similarity(
            self.similar.min_similarity if min_similarity is None else min_similarity
        )
        self.guard = guard
        self._guard = guard_of(guard)
        self.one_way = one_way
        self.refill = refill
        self.fingerprint = self.index.fingerprint
        digest = witnesses.digest(threshold, one_way=one_way)
        self._judged: Sequence[JudgedQuestion] = tuple(witnesses.judged.values()) if digest else ()
        self._rejected = [witnesses.rejected_by(each.id) for each in self._judged]
        self._apart = _apart(witnesses, threshold, one_way) if digest else {}
        self._same: dict[str, list[int]] = defaultdict(list)
        self._judging: dict[str, list[int]] = defaultdict(list)
        for at, (judged, rejected) in enumerate(zip(self._judged, self._rejected, strict=True)):
            self._same[plain_question(judged.question)].append(at)
            for passage in (*judged.accepted, *rejected):
                self._judging[passage].append(at)
        limits = [] if (most := getattr(self.index, "max_k", None)) is None else [int(most)]
        with suppress(TypeError):  # of unknown size
            limits.append(len(self.index))
        self._deepest = min(limits, default=None)
        if digest:
            self.similar.add([each.question for each in self._judged])
            measured = [
                self.min_similarity,
                self.similar.name,
                self.similar.identity,
                self._guard is not None,
                one_way,
            ]
            measured += (
                [self._guard.identity] if self._guard is not None and self._guard.identity else []
            )
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
        return [self._hits(*each) for each in self._trimmed(queries, k)]

    def explain(self, query: str, k: int) -> Explanation:
        """One search, with what was dropped, what stayed though some witness separates it, and why."""
        k = check_search([query], k)
        if not self._judged:
            nearest = NearestQuestion("", 0.0, "nothing was rejected")
            (bare,) = self.index.find([query], k)
            return Explanation(
                Hits(bare, cut=cut_of(bare), missing=missing_of(bare)), (), (), nearest
            )
        ((verdicts, trim, found),) = self._trimmed([query], k)
        nearest = self._nearest(query, verdicts)
        dropped = tuple(
            DroppedPassage(
                passage,
                rank,
                kept,
                self._rejecting(verdicts, kept, passage.id),
                *self._decided(verdicts, kept, passage),
            )
            for passage, rank, kept in ([] if trim is None else trim.gone)
        )
        texts = {
            name: self.witnesses.judged[name].question
            for each in dropped
            for name in each.witnesses
        }
        hits = self._hits(verdicts, trim, found)
        return Explanation(
            hits,
            dropped,
            tuple(self._undecided(hits, verdicts, nearest)),
            nearest,
            texts,
            self.one_way,
        )

    def info(self) -> dict[str, Any]:
        """Kind, fingerprint, the overlay's settings, how much of it counts, and the index's own `info()`."""
        own = self.index.info()
        pairs = len({frozenset((a, b)) for a, others in self._apart.items() for b in others})
        return {
            "kind": "trimmed",
            "fingerprint": self.fingerprint,
            **{name: own[name] for name in ("passages", "corpus") if name in own},
            "settings": {
                "threshold": self.threshold,
                "min_similarity": self.min_similarity,
                "similarity": self.similar.name,
                "guard": self._guard is not None,
                **({"similar": model} if (model := getattr(self.guard, "name", "")) else {}),
                "one_way": self.one_way,
                "refill": self.refill,
                "pairing": self.witnesses.pairing,
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
        if not (
            isinstance(index, Dense)
            and isinstance(similar, ByVector)
            and similar.encoder is index.encoder
        ):
            return lambda some, depth: index.find([queries[at] for at in some], depth), None
        dense, encoded = index, index.encoded_queries(queries)

        def near(some: Sequence[int], depth: int) -> Sequence[list[Passage]]:
            return dense.near(
                Encoded(encoded.vectors[list(some)], [encoded.cut[at] for at in some]), depth
            )

        return near, encoded.vectors

    def _trimmed(
        self, queries: Sequence[str], k: int
    ) -> list[tuple[Verdicts | None, TrimmedRanking | None, Sequence[Passage]]]:
        """For each query the verdicts that apply, the trimmed ranking where any do, and the index's own first `k`.

        Queries of one depth are searched together; those that come out short are searched again, deeper.
        """
        rankings, vectors = self._rankings(queries)
        first = self._depth(k, self.index.as_cheap(k)) if self.refill else k
        ranked: dict[int, Sequence[Passage]] = dict(enumerate(rankings(range(len(queries)), first)))
        found = [
            Hits(ranking[:k], cut=cut_of(ranking), missing=missing_of(ranking))
            for ranking in ranked.values()
        ]
        applying = [
            self._verdicts(query, hits, None if vectors is None else vectors[at])
            for at, (query, hits) in enumerate(zip(queries, found, strict=True))
        ]
        trims: dict[int, TrimmedRanking] = {}
        depths = {at: first for at, verdicts in enumerate(applying) if verdicts is not None}
        while depths:
            deeper: dict[int, list[int]] = defaultdict(list)
            for at, depth in depths.items():
                verdicts = applying[at]
                assert verdicts is not None
                trims[at] = trim = trim_ranking(
                    ranked[at], k, verdicts, self._apart, refill=self.refill
                )
                wanted = self._depth(k, k + len(trim.gone) if depth == k else 2 * depth)
                if not trim.full and len(ranked[at]) == depth < wanted:
                    deeper[wanted].append(at)
            depths = {at: depth for depth, some in deeper.items() for at in some}
            for depth, some in deeper.items():
                ranked |= zip(some, rankings(some, depth), strict=True)
        return [(verdicts, trims.get(at), found[at]) for at, verdicts in enumerate(applying)]

    def _hits(
        self, verdicts: Verdicts | None, trim: TrimmedRanking | None, found: Sequence[Passage]
    ) -> Hits:
        """What comes back: the index's own hits where nothing was dropped."""
        cut, missing = cut_of(found), missing_of(found)
        if verdicts is None or trim is None or not trim.gone:
            return Hits(found, cut=cut, missing=missing)
        near = verdicts.near[0]
        return Hits(
            trim.kept,
            cut=cut,
            missing=missing,
            trim=Trim(
                judged=self._judged[near.at].question,
                similarity=near.similarity,
                dropped={passage.id: kept for passage, _, kept in trim.gone},
                refilled=tuple(trim.refilled),
                unjudged=tuple(name for name in trim.refilled if name not in verdicts.votes),
            ),
        )

    def _verdicts(
        self, query: str, found: Sequence[Passage], vector: Vectors | None
    ) -> Verdicts | None:
        """The verdicts that apply to a query which found these passages; None where none does."""
        near = [Neighbour(at, 1.0) for at in self._itself(query)]
        own = bool(near)
        if not own:
            near = self._near(query, found, vector)
        if not near:
            return None
        votes = Counter[str]()
        for at, _ in near:
            votes.update(self._judged[at].accepted)
            votes.subtract(self._rejected[at])
        return Verdicts(tuple(near), own, votes)

    def _itself(self, query: str) -> list[int]:
        """The judged questions that are the query: in the same words alone, where it was judged in these."""
        text = whole_characters(one_line(query))  # as it is stored
        same = self._same.get(plain_question(text), [])
        return [at for at in same if self._judged[at].question == text] or same

    def _near(
        self, query: str, found: Sequence[Passage], vector: Vectors | None
    ) -> list[Neighbour]:
        """The judged questions near the query that have a verdict on a passage found, the nearest first."""
        places = sorted({at for passage in found for at in self._judging.get(passage.id, ())})
        near = self.similar.among(query, places, vector=vector, floor=self.min_similarity)
        if self._guard is None:
            return near
        apart = self._guard.apart(query, [self._judged[each.at].question for each in near])
        return [each for each, why in zip(near, apart, strict=True) if not why]

    def _decided(self, verdicts: Verdicts | None, kept: str, other: Passage) -> tuple[str, float]:
        """The nearest question that accepted `kept`, or with none kept rejected `other`, and how near."""
        voted = (
            (self._judged[at].question, similarity)
            for at, similarity in (verdicts.near if verdicts is not None else ())
            if (kept in self._judged[at].accepted if kept else other.id in self._rejected[at])
        )
        return next(voted)

    def _rejecting(self, verdicts: Verdicts | None, kept: str, other: str) -> tuple[str, ...]:
        """The questions that count against `other` where `kept` is accepted; with none kept, those that rejected it."""
        if kept or verdicts is None:
            return (self.witnesses.witnesses_for if self.one_way else self.witnesses.witnesses_of)(
                kept, other
            )
        return tuple(
            sorted(self._judged[at].id for at, _ in verdicts.near if other in self._rejected[at])
        )

    def _nearest(self, query: str, verdicts: Verdicts | None) -> NearestQuestion:
        """The nearest judged question, and why none applies, where none does."""
        if verdicts is not None:
            return NearestQuestion(
                self._judged[verdicts.near[0].at].question, verdicts.near[0].similarity, ""
            )
        (near,) = self.similar.nearest([query])
        if near is None:
            return NearestQuestion("", 0.0, "no judged question shares anything with it")
        question = self._judged[near.at].question
        if near.similarity < self.min_similarity:
            why = f"the nearest judged question is not near enough ({near.similarity:.2f} of {self.min_similarity:g})"
        elif apart := "" if self._guard is None else self._guard.apart(query, [question])[0]:
            why = f"the nearest judged question is another one: {apart}"
        else:
            why = "the nearest judged question has no verdict on what was found"
        return NearestQuestion(question, near.similarity, why)

    def _depth(self, k: int, wanted: int) -> int:
        """No deeper than the index goes, because it would warn or refuse; but `k` is the caller's own."""
        return max(k, wanted if self._deepest is None else min(wanted, self._deepest))

    def _undecided(
        self, passages: Sequence[Passage], verdicts: Verdicts | None, nearest: NearestQuestion
    ) -> Iterator[UndecidedPair]:
        """The pairs among `passages` that some question separates, each with why both are still there."""
        for a, b in combinations(dict.fromkeys(passage.id for passage in passages), 2):
            if verdicts is not None and verdicts.accept(a) != verdicts.accept(b):
                kept, other = (a, b) if verdicts.accept(a) else (b, a)
                if not self.witnesses.witnesses_of(a, b):
                    continue
                if verdicts.may_drop(other):
                    side = f" for {kept}" if self.one_way else ""
                    count = _witnesses(len(self._rejecting(verdicts, kept, other)))
                    why = f"{count}{side}, and {self.threshold} are asked for"
                else:
                    why = f"the judged questions like this one do not reject {other}"
                yield UndecidedPair((a, b), why)
            elif b in self._apart.get(a, ()) or a in self._apart.get(b, ()):
                why = nearest.why
                if verdicts is not None:
                    both = "both" if verdicts.accept(a) else "neither of them"
                    who = f"nearest judged question, {shortened(nearest.question, _WIDTH)!r},"
                    why = f"the {who if len(verdicts.near) == 1 else 'judged questions like this one'} accepted {both}"
                yield UndecidedPair((a, b), why)


def check_similarity(value: float) -> float:
    """`value` itself. Raises `BadArgument` unless it lies between 0 and 1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise BadArgument(
            f"min_similarity lies between 0 and 1, got {value!r} (1: the same question only)"
        )
    return float(value)


def _apart(witnesses: Witnesses, threshold: int, one_way: bool) -> dict[str, set[str]]:
    """For each passage those that may go where it is accepted: enough witnesses separate them from it."""
    apart: dict[str, set[str]] = defaultdict(set)
    for separation in witnesses.separated(threshold, one_way=one_way):
        a, b = separation.pair
        for_a, for_b = witnesses.sides(separation) if one_way else (threshold, threshold)
        if for_a >= threshold:
            apart[a].add(b)
        if for_b >= threshold:
            apart[b].add(a)
    return apart


def _witnesses(count: int) -> str:
    return "1 witness" if count == 1 else f"{count:,} witnesses"

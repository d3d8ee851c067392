"""How near two questions are by their words: what BM25 gives q' for the query q, over what it gives q itself.

    similarity(q, q') = score(q, q') / score(q, q),  at most 1

with BM25 as in `blendfilter.retrieval.bm25` and its usual k1 and b. The collection is the judged questions and the
new one besides, so that a word no judged question has weighs most, and one question alone can be compared. Words are
stemmed and none is a stop word: `on`, `off`, `who` and `not` are what such questions differ in.

In: judged questions, then new ones. Out: `Near` for each. The order of words plays no part (`unlike` looks at names).
Lists of who has which word are kept, and with a floor few are read: where common words cannot reach it together, who
does has a rare one; where the words that are held at all cannot, nobody does (the bounds of WAND, Broder et al. 2003,
https://doi.org/10.1145/956863.956944, section 2).
"""

from __future__ import annotations

import math
import re
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from blendfilter.retrieval.analyser import Analyser
from blendfilter.retrieval.base import coarse
from blendfilter.trimming.similar import Near

K1, B = 0.9, 0.4
_PLAIN = K1 * (1 - B)
_GRAIN = 2.0**30
_SHORT = (
    (re.compile(r"\b(who|what|when|where|how|it|that|there)['’]s\b", re.IGNORECASE), r"\1 is"),
    (re.compile(r"(?<=[a-z])n['’]t\b", re.IGNORECASE), " not"),
)
"""`what's` has the words of `what is`, and `didn't` those of `did not`."""
_FEW = 8
"""Up to so many candidates are counted one by one: an array costs more to set up."""
Numbers = NDArray[np.int32]


class _Holders:
    """Who has one word, in the order of adding, and how often."""

    __slots__ = ("counts", "most", "questions", "shortest")

    def __init__(self) -> None:
        self.questions, self.counts, self.most, self.shortest = array("i"), array("i"), 0, 2**31

    def add(self, question: int, count: int, length: int) -> None:
        self.questions.append(question)
        self.counts.append(count)
        self.most, self.shortest = max(self.most, count), min(self.shortest, length)


class _Term(NamedTuple):
    """A word of the new question that somebody has: what it can give at most, its weight there, and who has it."""

    most: float
    weight: float
    holders: _Holders


class ByWords:
    """BM25's ratio over the judged questions.

    >>> near = ByWords()
    >>> near.add(["Who turned on the radio?", "Who built the harbour of Ormskerry?"])
    >>> near.nearest(["Who turned the radio on?", "Was it the radio?"], floor=0.8)
    [Near(at=0, similarity=1.0), None]
    """

    name = "words"
    min_similarity = 0.95
    """Measured: see `eval/bench/similarity.py`."""
    identity = f"k1={K1} b={B}"

    def __init__(self) -> None:
        self._analyse = Analyser(stop_words=())
        self._itself: dict[str, int] = {}
        self._holders: dict[str, _Holders] = {}
        self._lengths = array("i")
        self._total = 0

    def add(self, questions: Sequence[str]) -> None:
        """Append judged questions; their words are counted now, and what they weigh when somebody asks."""
        for question in questions:
            terms = self._terms(question)
            number = len(self._lengths)
            self._itself.setdefault(question, number)
            for term, count in Counter(terms).items():
                self._holders.setdefault(term, _Holders()).add(number, count, len(terms))
            self._lengths.append(len(terms))
            self._total += len(terms)

    def nearest(self, questions: Sequence[str], *, vectors: Any = None, floor: float = 0.0) -> list[Near | None]:
        """For each the nearest judged question; None where there is none, or none as near as `floor`."""
        return [self._nearest(question, floor) for question in questions]

    def _terms(self, question: str) -> list[str]:
        if "'" in question or "’" in question:
            for pattern, written in _SHORT:
                question = pattern.sub(written, question)
        return self._analyse(question)

    def _nearest(self, question: str, floor: float) -> Near | None:
        if (itself := self._itself.get(question)) is not None:  # others may have the same words in another order
            return Near(itself, 1.0)
        counted = Counter(self._terms(question))
        number, length = len(self._lengths), counted.total()
        if not number or not length:
            return None
        per_word = K1 * B * (number + 1) / (self._total + length)  # of what a document's length adds
        terms, whole = list[_Term](), 0.0
        for term, count in counted.items():
            holders = self._holders.get(term)
            held = len(holders.questions) if holders else 0
            # the new question is one of the collection, and has the word
            weight = count * math.log(1 + (number - held + 0.5) / (held + 1.5))
            whole += weight * count / (count + _PLAIN + per_word * length)
            if holders:
                most = weight * holders.most / (holders.most + _PLAIN + per_word * holders.shortest)
                terms.append(_Term(most, weight, holders))
        candidates = self._candidates(terms, floor * whole)
        if not len(candidates):
            return None if floor > 0 else Near(0, 0.0)
        near = self._best(terms, candidates, per_word, whole)
        return near if near.similarity >= floor else None

    def _candidates(self, terms: Sequence[_Term], least: float) -> Sequence[int] | Numbers:
        """All that may reach `least`, in the order of adding."""
        needed = _needed(terms, least)
        if len(needed) == 1:
            return needed[0].questions
        if sum(len(holders.questions) for holders in needed) <= _FEW:
            return sorted({question for holders in needed for question in holders.questions})
        marked = np.zeros(len(self._lengths), dtype=np.bool_)
        for holders in needed:
            marked[_numbers(holders.questions)] = True
        return np.flatnonzero(marked).astype(np.int32)

    def _best(self, terms: Sequence[_Term], candidates: Sequence[int] | Numbers, per_word: float, whole: float) -> Near:
        """The first of those with the highest similarity, cut to what rounding leaves alone."""
        if len(candidates) > _FEW:
            many = np.asarray(candidates, dtype=np.int32)
            similarities = np.minimum(1.0, coarse(self._scores(terms, many, per_word) / whole))
            best = int(np.argmax(similarities))
            return Near(int(candidates[best]), float(similarities[best]))
        nearest = Near(0, -1.0)
        for candidate in candidates:
            similarity = min(1.0, _coarse(self._score(terms, candidate, per_word) / whole))
            if similarity > nearest.similarity:
                nearest = Near(candidate, similarity)
        return nearest

    def _score(self, terms: Sequence[_Term], question: int, per_word: float) -> float:
        """BM25 of one candidate, words added in the order of the new question."""
        score, plain = 0.0, _PLAIN + per_word * self._lengths[question]
        for _, weight, holders in terms:
            questions = holders.questions
            where = bisect_left(questions, question)
            if where < len(questions) and questions[where] == question:
                count = holders.counts[where]
                score += weight * count / (count + plain)
        return score

    def _scores(self, terms: Sequence[_Term], candidates: Numbers, per_word: float) -> NDArray[np.float64]:
        """The same of many at once."""
        scores = np.zeros(len(candidates))
        plain = _PLAIN + per_word * _numbers(self._lengths)[candidates]
        for _, weight, holders in terms:
            questions = _numbers(holders.questions)
            where = np.searchsorted(questions, candidates)
            where[where == len(questions)] = 0
            has = questions[where] == candidates
            counts = _numbers(holders.counts)[where[has]]
            scores[has] += weight * counts / (counts + plain[has])
        return scores


def _needed(terms: Sequence[_Term], least: float) -> list[_Holders]:
    """Who reaches `least` has one of these words: those that are left cannot do it together, or nobody can at all."""
    least *= 1 - 1e-9
    reachable = sum(term.most for term in terms)
    if reachable < least:
        return []
    # a word that everybody there has is enough, and the one that fewest have is best
    alone = [term.holders for term in terms if reachable - term.most < least]
    if alone:
        return [min(alone, key=lambda holders: len(holders.questions))]
    reached = 0.0
    by_most = sorted(terms, key=lambda term: term.most)
    for at, term in enumerate(by_most):
        reached += term.most
        if reached >= least:
            return [each.holders for each in by_most[at:]]
    return [each.holders for each in by_most]


def _coarse(score: float) -> float:
    """One number as `ranking.coarse` cuts many."""
    mantissa, exponent = math.frexp(score)
    return math.ldexp(round(mantissa * _GRAIN) / _GRAIN, exponent)


def _numbers(stored: array[int]) -> Numbers:
    return np.frombuffer(stored, dtype=np.int32)

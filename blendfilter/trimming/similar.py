"""The judged question nearest to a new one, by the words of both (`ByWords`) or by an encoder's vectors (`ByVector`).

By vector, the similarity is the cosine, and verdicts are used again from 0.9 up: a threshold of ours, for the paper
(Ma et al. 2024, "Context-Driven Index Trimming", section 4.1) says "similarity search" and prints none. By words, which
the paper does not have, it is what BM25 gives q' for the query q over what it gives q itself::

    similarity(q, q') = score(q, q') / score(q, q),  at most 1

with BM25 as in `blendfilter.retrieval.bm25`. The collection is the judged questions and the new one besides, so a
word that no judged question has weighs most, and one question alone can be compared. Words are stemmed and none is a
stop word: `on`, `off`, `who` and `not` are what such questions differ in. Their order plays no part.

Both rule most questions out by a bound where there is a floor. By words: where common words cannot reach the floor
together, a candidate has a rare one (WAND, Broder et al. 2003, https://doi.org/10.1145/956863.956944, section 2). By
vector: with P an orthonormal projection onto the directions in which the judged questions differ most, and |r| the
length of what P leaves of a vector, q · m <= Pq · Pm + |r(q)| |r(m)| (Cauchy and Schwarz, on the rest).
"""

from __future__ import annotations

import hashlib
import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from blendfilter.errors import BadData
from blendfilter.files import write_whole
from blendfilter.retrieval.analyser import Analyser
from blendfilter.retrieval.base import Retriever, coarse
from blendfilter.retrieval.encoders import Encoder, Vectors
from blendfilter.trimming.opposites import plain_question

VECTORS_FILE = "vectors.npz"
K1, B = 0.9, 0.4
_PLAIN = K1 * (1 - B)
_CONTRACTIONS = (
    (re.compile(r"\b(who|what|when|where|how|it|that|there)['’]s\b", re.IGNORECASE), r"\1 is"),
    (re.compile(r"(?<=[a-z])n['’]t\b", re.IGNORECASE), " not"),
)
_DIMENSIONS = 48
"""Dimensions of the projection."""
_UNBOUNDED = 256
"""Below so many judged questions the plain product is as quick, and directions mean little."""
_SLACK = 1e-4
"""More than the error of 32-bit sums."""
Numbers = np.typing.NDArray[np.int32]


class Neighbour(NamedTuple):
    """One judged question: its place among those added, and how near it is; 1 is the same."""

    at: int
    similarity: float


class Similar(Protocol):
    """A measure that finds the nearest question. Threads may search it at once, while none adds."""

    name: str
    min_similarity: float
    """From where on verdicts are reused by default."""
    identity: str
    """What else its numbers depend on (an encoder's identity), for a fingerprint."""

    def add(self, questions: Sequence[str]) -> None:
        """Append judged questions."""

    def nearest(
        self, questions: Sequence[str], *, vectors: Vectors | None = None, floor: float = 0.0
    ) -> list[Neighbour | None]:
        """For each question the nearest of those added, itself before any other and else the earliest of several.

        None where none is as near as `floor`. `vectors` are the questions', where they are encoded already; a measure
        without vectors ignores them.
        """

    def among(
        self,
        question: str,
        places: Sequence[int],
        *,
        vector: Vectors | None = None,
        floor: float = 0.0,
    ) -> list[Neighbour]:
        """Those of the added questions with these places that are as near as `floor`; `vector` is the question's."""


def similar_for(index: Retriever, *, kept: Path | None = None) -> Similar:
    """The measure that goes with an index: by vector with a dense index's own encoder, else by words.

    `kept` is a file for the judged questions' vectors, so that they are encoded once.
    """
    encoder = getattr(index, "encoder", None)
    return ByVector(encoder, kept) if isinstance(encoder, Encoder) else ByWords()


def similar_named(name: str, index: Retriever, *, kept: Path | None = None) -> Similar:
    """The measure of that name for an index: `words`, `vectors`, or with no name its own. Raises `BadData`."""
    if name == ByWords.name:
        return ByWords()
    found = similar_for(index, kept=kept)
    if name not in ("", found.name):
        raise BadData(
            f"the similarity '{name}' does not go with this index, which has '{found.name}': name an encoder"
        )
    return found


def _near(places: Any, similarities: Any, floor: float) -> list[Neighbour]:
    """The nearest first, and the earliest of several."""
    near = (
        Neighbour(int(at), float(each))
        for at, each in zip(places, similarities, strict=True)
        if each >= floor
    )
    return sorted(near, key=lambda each: (-each.similarity, each.at))


class _Questions:
    """The places of questions by their texts: by the very text, else by the same question in a polite frame."""

    def __init__(self) -> None:
        self._texts: dict[str, int] = {}
        self._plain: dict[str, int] = {}

    def add(self, question: str, place: int) -> None:
        self._texts.setdefault(question, place)
        self._plain.setdefault(plain_question(question), place)

    def find(self, question: str) -> int | None:
        exact = self._texts.get(question)
        return self._plain.get(plain_question(question)) if exact is None else exact


# --- by words ---------------------------------------------------------------------------------------------------------


class _Postings:
    """The questions that have one word, in the order of adding, and how often."""

    __slots__ = ("counts", "most", "questions", "shortest")

    def __init__(self) -> None:
        self.questions, self.counts, self.most, self.shortest = array("i"), array("i"), 0, 2**31

    def add(self, question: int, count: int, length: int) -> None:
        self.questions.append(question)
        self.counts.append(count)
        self.most, self.shortest = max(self.most, count), min(self.shortest, length)


class _QueryTerm(NamedTuple):
    """A word of the new question that some judged question has."""

    most: float
    """What it can give at most."""
    weight: float
    postings: _Postings


class ByWords:
    """BM25's ratio over the judged questions.

    >>> near = ByWords()
    >>> near.add(["Who turned on the radio?", "Who built the harbour of Ormskerry?"])
    >>> near.nearest(["Who turned the radio on?", "Was it the radio?"], floor=0.8)
    [Neighbour(at=0, similarity=1.0), None]
    """

    name = "words"
    min_similarity = 0.95
    """Measured: see `eval/bench/similarity.py`."""
    identity = f"k1={K1} b={B}"

    def __init__(self) -> None:
        self._analyse = Analyser(stop_words=())
        self._itself = _Questions()
        self._postings: dict[str, _Postings] = {}
        self._lengths = array("i")
        self._total = 0

    def add(self, questions: Sequence[str]) -> None:
        """Append judged questions."""
        for question in questions:
            terms = self._terms(question)
            number = len(self._lengths)
            self._itself.add(question, number)
            for term, count in Counter(terms).items():
                self._postings.setdefault(term, _Postings()).add(number, count, len(terms))
            self._lengths.append(len(terms))
            self._total += len(terms)

    def nearest(
        self, questions: Sequence[str], *, vectors: Any = None, floor: float = 0.0
    ) -> list[Neighbour | None]:
        """For each question the nearest judged one; None where there is none, or none as near as `floor`."""
        return [self._nearest(question, floor) for question in questions]

    def among(
        self, question: str, places: Sequence[int], *, vector: Any = None, floor: float = 0.0
    ) -> list[Neighbour]:
        """Those with these places that are as near as `floor`."""
        if not places:
            return []
        given = np.asarray(places, dtype=np.int32)
        found = self._ratios(
            question, lambda terms, whole: given[self._marked(terms, floor * whole)[given]]
        )
        return [] if found is None else _near(*found, floor)

    def _terms(self, question: str) -> list[str]:
        question = plain_question(question)
        if "'" in question or "’" in question:
            for pattern, written in _CONTRACTIONS:
                question = pattern.sub(written, question)
        return self._analyse(question)

    def _nearest(self, question: str, floor: float) -> Neighbour | None:
        if (
            itself := self._itself.find(question)
        ) is not None:  # others may have the same words in another order
            return Neighbour(itself, 1.0)

        found = self._ratios(
            question,
            lambda terms, whole: np.flatnonzero(self._marked(terms, floor * whole)).astype(
                np.int32
            ),
        )
        if found is None:
            return None
        places, similarities = found
        if not len(places):
            return None if floor > 0 else Neighbour(0, 0.0)
        best = int(np.argmax(similarities))
        near = Neighbour(int(places[best]), float(similarities[best]))
        return near if near.similarity >= floor else None

    def _marked(self, terms: Sequence[_QueryTerm], least: float) -> Any:
        """Which of the judged questions may have a score of `least`."""
        marked = np.zeros(len(self._lengths), dtype=np.bool_)
        for postings in _needed(terms, least):
            marked[_numbers(postings.questions)] = True
        return marked

    def _ratios(
        self, question: str, choose: Callable[[Sequence[_QueryTerm], float], Numbers]
    ) -> tuple[Numbers, np.typing.NDArray[np.float64]] | None:
        """The judged questions that `choose` takes, given the words and the question's own score, and their ratios.

        None where there is nothing to compare.
        """
        counted = Counter(self._terms(question))
        number, length = len(self._lengths), counted.total()
        if not number or not length:
            return None
        per_word = (
            K1 * B * (number + 1) / (self._total + length)
        )  # of what a document's length adds
        terms, whole = list[_QueryTerm](), 0.0
        for term, count in counted.items():
            postings = self._postings.get(term)
            having = len(postings.questions) if postings else 0
            # the new question is one of the collection, and has the word
            weight = count * math.log(1 + (number - having + 0.5) / (having + 1.5))
            whole += weight * count / (count + _PLAIN + per_word * length)
            if postings:
                most = (
                    weight * postings.most / (postings.most + _PLAIN + per_word * postings.shortest)
                )
                terms.append(_QueryTerm(most, weight, postings))
        places = choose(terms, whole)
        if not len(places):
            return places, np.zeros(0)
        return places, np.minimum(1.0, coarse(self._scores(terms, places, per_word) / whole))

    def _scores(
        self, terms: Sequence[_QueryTerm], candidates: Numbers, per_word: float
    ) -> np.typing.NDArray[np.float64]:
        """BM25 of each candidate, words added in the order of the new question."""
        scores = np.zeros(len(candidates))
        plain = _PLAIN + per_word * _numbers(self._lengths)[candidates]
        for _, weight, postings in terms:
            questions = _numbers(postings.questions)
            where = np.searchsorted(questions, candidates)
            where[where == len(questions)] = 0
            has = questions[where] == candidates
            counts = _numbers(postings.counts)[where[has]]
            scores[has] += weight * counts / (counts + plain[has])
        return scores


def _needed(terms: Sequence[_QueryTerm], least: float) -> list[_Postings]:
    """Words of which every question that reaches `least` has one; empty where none can reach it."""
    least *= 1 - 1e-9
    reachable = sum(term.most for term in terms)
    if reachable < least:
        return []
    # a word without which `least` is out of reach is enough, and the one that fewest have is best
    alone = [term.postings for term in terms if reachable - term.most < least]
    if alone:
        return [min(alone, key=lambda postings: len(postings.questions))]
    reached = 0.0
    by_most = sorted(terms, key=lambda term: term.most)
    for at, term in enumerate(by_most):
        reached += term.most
        if reached >= least:
            return [each.postings for each in by_most[at:]]
    return [each.postings for each in by_most]


def _numbers(stored: array[int]) -> Numbers:
    return np.frombuffer(stored, dtype=np.int32)


# --- by vector --------------------------------------------------------------------------------------------------------


class _Rows:
    """Vectors of one length, appended now and then: room for twice as many is made where it runs out."""

    def __init__(self, width: int) -> None:
        self._room: Vectors = np.empty((16, width), dtype=np.float32)
        self._count = 0

    def append(self, rows: Vectors) -> None:
        count = self._count + len(rows)
        if count > len(self._room):
            room = np.empty(
                (max(count, 2 * len(self._room)), self._room.shape[1]), dtype=np.float32
            )
            room[: self._count] = self.all
            self._room = room
        self._room[self._count : count] = rows
        self._count = count

    @property
    def all(self) -> Vectors:
        return self._room[: self._count]


class _Bound:
    """The projection, and of each judged question its projection and what is left of its length."""

    def __init__(self, kept: Vectors) -> None:
        # the directions in which these vary most: any others would be right, and rule out fewer
        centred = (kept - kept.mean(axis=0)).astype(np.float64)
        _, directions = np.linalg.eigh(centred.T @ centred)
        self.projection: Vectors = np.ascontiguousarray(
            directions[:, ::-1][:, :_DIMENSIONS], dtype=np.float32
        )
        self.made_of = len(kept)
        self.rows = _Rows(self.projection.shape[1] + 1)
        self.append(kept)

    def append(self, vectors: Vectors) -> None:
        self.rows.append(self._projected(vectors))

    def highest(self, vector: Vectors) -> Any:
        """Upper bounds of the cosines with `vector`."""
        return self.rows.all @ self._projected(vector[None])[0]

    def _projected(self, vectors: Vectors) -> Vectors:
        inside = vectors @ self.projection
        rest = np.sqrt(np.maximum(0.0, 1.0 - np.einsum("ij,ij->i", inside, inside)))
        return np.concatenate([inside, rest[:, None]], axis=1, dtype=np.float32)


class ByVector:
    """Cosines under `encoder`; `kept` is a file for the judged questions' vectors, made where it is missing."""

    name = "vectors"
    min_similarity = 0.9

    def __init__(self, encoder: Encoder, kept: Path | None = None) -> None:
        self.encoder = encoder
        self._kept = kept
        self.identity = encoder.identity
        self._rows = _Rows(encoder.dimension)
        self._itself = _Questions()
        self._bound: _Bound | None = None
        self._ahead: dict[str, Vectors] = {}

    def encode_ahead(self, questions: Sequence[str]) -> None:
        """Encode in one call what is added and compared one by one."""
        once = list(dict.fromkeys(questions))
        self._ahead = dict(zip(once, self.encoder.encode_queries(once).vectors, strict=True))

    def _encoded(self, questions: Sequence[str]) -> Vectors:
        if self._ahead.keys() >= set(questions):
            return np.stack([self._ahead[question] for question in questions])
        return self.encoder.encode_queries(questions).vectors

    def add(self, questions: Sequence[str]) -> None:
        """Append judged questions."""
        if not questions:
            return
        kept = self._kept
        given = _unit(
            _kept_vectors(questions, self.encoder, kept) if kept else self._encoded(questions)
        )
        for at, question in enumerate(questions, start=len(self._rows.all)):
            self._itself.add(question, at)
        self._rows.append(given)
        count = len(self._rows.all)
        if self._bound is not None and count < 2 * self._bound.made_of:
            self._bound.append(given)
        elif count >= _UNBOUNDED:
            self._bound = _Bound(self._rows.all)

    def nearest(
        self, questions: Sequence[str], *, vectors: Vectors | None = None, floor: float = 0.0
    ) -> list[Neighbour | None]:
        """For each question the nearest judged one; None where there is none, or none as near as `floor`.

        The cosine is exact, summed in 64 bits row by row, so it does not depend on the other questions.
        """
        if not len(self._rows.all) or not questions:
            return [None] * len(questions)
        given = self._encoded(questions) if vectors is None else vectors
        return [
            self._nearest(question, vector, floor)
            for question, vector in zip(questions, _unit(given), strict=True)
        ]

    def among(
        self,
        question: str,
        places: Sequence[int],
        *,
        vector: Vectors | None = None,
        floor: float = 0.0,
    ) -> list[Neighbour]:
        """Those with these places that are as near as `floor`."""
        if not places:
            return []
        given = _unit(self._encoded([question]) if vector is None else vector[None])[0]
        some = np.asarray(places)
        rows = self._rows.all[some]
        close = rows @ given >= floor - _SLACK
        return _near(some[close], _cosines(rows[close], given), floor)

    def _nearest(self, question: str, vector: Vectors, floor: float) -> Neighbour | None:
        if (itself := self._itself.find(question)) is not None:
            return Neighbour(itself, 1.0)
        if floor <= 0 or self._bound is None:
            candidates = np.arange(len(self._rows.all))
        else:
            candidates = np.flatnonzero(self._bound.highest(vector) >= floor - _SLACK)
        if not len(candidates):
            return None
        kept = self._rows.all[candidates]
        cosines = kept @ vector
        close = cosines >= cosines.max() - _SLACK
        candidates, kept = candidates[close], kept[close]
        exact = _cosines(kept, vector)
        best = int(np.argmax(exact))
        similarity = float(exact[best])
        return Neighbour(int(candidates[best]), similarity) if similarity >= floor else None


def _cosines(rows: Vectors, vector: Vectors) -> np.typing.NDArray[np.float64]:
    """Summed in 64 bits row by row: a sum that a matrix product makes depends on how many rows it has."""
    exact = coarse(np.einsum("ij,j->i", rows.astype(np.float64), vector.astype(np.float64)))
    return np.clip(exact, 0.0, 1.0)


def _unit(vectors: Vectors) -> Vectors:
    """Each of length 1; one of length 0 stays, and is near to nothing."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), dtype=np.float32)


def _kept_vectors(questions: Sequence[str], encoder: Encoder, path: Path) -> Vectors:
    """A row a question, from the file where it has them; what it lacks is encoded and added.

    The file is a cache: where it is gone, damaged, another encoder's or cannot be written, everything is encoded.
    """
    known = _read_vectors(path, encoder)
    names = [
        hashlib.sha256(question.encode("utf-8", "replace")).hexdigest()[:24]
        for question in questions
    ]
    missing = {
        name: question for name, question in zip(names, questions, strict=True) if name not in known
    }
    if missing:
        encoded = encoder.encode_queries(list(missing.values())).vectors
        known |= dict(zip(missing, encoded, strict=True))
        content = BytesIO()
        names_known, vectors_known = np.array(list(known)), np.stack(list(known.values()))
        np.savez(
            content, identity=np.array(encoder.identity), names=names_known, vectors=vectors_known
        )
        with suppress(OSError):
            write_whole(path, [content.getvalue()])
    return np.stack([known[name] for name in names])


def _read_vectors(path: Path, encoder: Encoder) -> dict[str, Vectors]:
    try:
        with np.load(path, allow_pickle=False) as kept:
            identity, names, vectors = (
                str(kept["identity"]),
                kept["names"].tolist(),
                kept["vectors"],
            )
    except Exception:  # noqa: BLE001  # a flipped bit says another compression, a password, a size beyond memory
        return {}
    fits = identity == encoder.identity and vectors.shape == (len(names), encoder.dimension)
    if not fits or vectors.dtype != np.float32 or not np.isfinite(vectors).all():
        return {}
    return dict(zip(names, vectors, strict=True))

"""The judged question nearest to a new one, by the words of both (`ByWords`) or by an encoder's vectors (`ByVector`).

By vector, the similarity is the cosine, and verdicts are used again from 0.9 up: a threshold of ours, for the paper
(Ma et al. 2024, "Context-Driven Index Trimming", section 4.1) says "similarity search" and prints none. By words, which
the paper does not have, it is what BM25 gives q' for the query q over what it gives q itself::

    similarity(q, q') = score(q, q') / score(q, q),  at most 1

with BM25 as in `blendfilter.retrieval.bm25`. The collection is the judged questions and the new one besides, so a
word that no judged question has weighs most, and one question alone can be compared. That is also why no index serves:
the weights change with every question, and questions are added one by one. Words are stemmed and none is a stop word:
`on`, `off`, `who` and `not` are what such questions differ in. Their order plays no part.
"""

from __future__ import annotations

import hashlib
import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from blendfilter.errors import BadData
from blendfilter.files import write_whole
from blendfilter.retrieval.analyser import Analyser
from blendfilter.retrieval.base import Retriever, coarse
from blendfilter.retrieval.encoders import Encoder, Vectors
from blendfilter.trimming.guard import Rules
from blendfilter.trimming.opposites import plain_question

VECTORS_FILE = "vectors.npz"
K1, B = 0.9, 0.4
Similarities = np.typing.NDArray[np.float64]


class Neighbour(NamedTuple):
    """One judged question: its place among those added, and how near it is; 1 is the same."""

    at: int
    similarity: float


class Similar:
    """Base class of measures that find near questions. Threads may search at once, while none adds."""

    name: str
    min_similarity: float
    """From where on verdicts are reused by default."""
    identity: str
    """What else its numbers depend on (an encoder's identity), for a fingerprint."""

    def __init__(self) -> None:
        self.questions: list[str] = []
        """The judged questions, by their places."""
        self._alike: dict[str, list[int]] = defaultdict(list)

    def add(self, questions: Sequence[str]) -> None:
        """Append judged questions."""
        for at, question in enumerate(questions, start=len(self.questions)):
            self._alike[plain_question(question)].append(at)
        self.questions += questions

    def same(self, question: str) -> list[int]:
        """The places of the judged questions with this very text, else of those in other polite words."""
        alike = self._alike.get(plain_question(question), [])
        return [at for at in alike if self.questions[at] == question] or alike

    def near(
        self,
        question: str,
        places: Sequence[int] | None = None,
        *,
        vector: Vectors | None = None,
        floor: float = 0.0,
        guard: Rules | None = None,
    ) -> list[Neighbour]:
        """The judged questions (at these places) that are as near as `floor`, the nearest and earliest first.

        Those that `guard` keeps apart are left out. `vector` is the question's, where it is encoded already.
        """
        places = range(len(self.questions)) if places is None else places
        if not places:
            return []
        similarities = self._similarities(question, places, vector)
        found = zip(places, map(float, similarities), strict=True)
        near = [Neighbour(at, similarity) for at, similarity in found if similarity >= floor]
        if guard is not None:
            apart = guard.apart(question, [self.questions[at] for at, _ in near])
            near = [neighbour for neighbour, why in zip(near, apart, strict=True) if not why]
        return sorted(near, key=lambda neighbour: (-neighbour.similarity, neighbour.at))

    def like(self, question: str, **how: Any) -> tuple[bool, list[Neighbour]]:
        """Whether it was judged itself, and the questions whose verdicts apply; `how` as for `near`."""
        if same := self.same(question):
            return True, [Neighbour(at, 1.0) for at in same]
        return False, self.near(question, **how)

    def _similarities(
        self, question: str, places: Sequence[int], vector: Vectors | None
    ) -> Similarities:
        """From 0 to 1 for each of the places."""
        raise NotImplementedError


def similar_for(index: Retriever, name: str = "", *, kept: Path | None = None) -> Similar:
    """The measure for an index: by vector with a dense index's own encoder, else by words; or `words`, by its name.

    `kept` is a file for the judged questions' vectors, so that they are encoded once. Raises `BadData` for a measure
    that does not go with the index.
    """
    encoder = getattr(index, "encoder", None)
    if name == ByWords.name or not isinstance(encoder, Encoder):
        found: Similar = ByWords()
    else:
        found = ByVector(encoder, kept)
    if name not in ("", found.name):
        raise BadData(
            f"the similarity '{name}' does not go with this index, which has '{found.name}': name an encoder"
        )
    return found


class ByWords(Similar):
    """BM25's ratio over the judged questions.

    >>> words = ByWords()
    >>> words.add(["Who turned on the radio?", "Who built the harbour of Ormskerry?"])
    >>> words.near("Who turned the radio on?", floor=0.8), words.near("Was it the radio?", floor=0.8)
    ([Neighbour(at=0, similarity=1.0)], [])
    """

    name = "words"
    min_similarity = 0.95
    """Measured: see `eval/bench/similarity.py`."""
    identity = f"k1={K1} b={B}"

    def __init__(self) -> None:
        super().__init__()
        self._analyse = Analyser(stop_words=())
        self._counted: list[tuple[Counter[str], int]] = []
        """Of each judged question its words and how many these are."""
        self._having = Counter[str]()
        self._total = 0

    def add(self, questions: Sequence[str]) -> None:
        for question in questions:
            counted = Counter(self._terms(question))
            self._counted.append((counted, counted.total()))
            self._having.update(counted.keys())
            self._total += counted.total()
        super().add(questions)

    def _terms(self, question: str) -> list[str]:
        """The words' stems: contractions are two words ("who's", "didn't"), so that `not` is one."""
        plain = plain_question(question).replace("’", "'")
        plain = re.sub(r"\b(who|what|when|where|how|it|that|there)'s\b", r"\1 is", plain)
        return self._analyse(re.sub(r"(?<=[a-z])n't\b", " not", plain))

    def _similarities(
        self, question: str, places: Sequence[int], vector: Vectors | None
    ) -> Similarities:
        counted = Counter(self._terms(question))
        number = len(self.questions) + 1
        average = (self._total + counted.total()) / number
        weights = dict[str, float]()
        for term, count in counted.items():
            having = self._having[term] + 1  # the new question has the word, too
            weights[term] = count * math.log(1 + (number - having + 0.5) / (having + 0.5))

        def score(document: Counter[str], length: int) -> float:
            norm = K1 * (1 - B + B * length / average)
            total = 0.0
            for term, weight in weights.items():
                if count := document.get(term):
                    total += weight * count / (count + norm)
            return total

        scores = np.array([score(*self._counted[at]) for at in places])
        if not counted:
            return scores
        return np.minimum(1.0, coarse(scores / score(counted, counted.total())))


class ByVector(Similar):
    """Cosines under `encoder`; `kept` is a file for the judged questions' vectors, made where it is missing."""

    name = "vectors"
    min_similarity = 0.9

    def __init__(self, encoder: Encoder, kept: Path | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.identity = encoder.identity
        self._kept = kept
        self._known = {} if kept is None else _read_vectors(kept, encoder)
        self._rows = array("d")

    def encode_ahead(self, questions: Sequence[str]) -> None:
        """Encode in one call what is added and compared one by one."""
        missing = {_key(text): text for text in questions if _key(text) not in self._known}
        if not missing:
            return
        vectors = self.encoder.encode_queries(list(missing.values())).vectors
        self._known |= zip(missing, vectors, strict=True)
        if self._kept is not None:
            content = BytesIO()
            np.savez(
                content,
                identity=np.array(self.encoder.identity),
                names=np.array(list(self._known)),
                vectors=np.stack(list(self._known.values())),
            )
            with suppress(OSError):  # it is a cache
                write_whole(self._kept, [content.getvalue()])

    def add(self, questions: Sequence[str]) -> None:
        self.encode_ahead(questions)
        for question in questions:
            self._rows.frombytes(_unit(self._known[_key(question)]).tobytes())
        super().add(questions)

    def _similarities(
        self, question: str, places: Sequence[int], vector: Vectors | None
    ) -> Similarities:
        if vector is None:
            vector = self._known.get(_key(question))
        if vector is None:
            (vector,) = self.encoder.encode_queries([question]).vectors
        rows = np.frombuffer(self._rows).reshape(len(self.questions), -1)[np.asarray(places)]
        # a sum that a matrix product makes may depend on how many rows it has
        return np.clip(coarse(np.einsum("ij,j->i", rows, _unit(vector))), 0.0, 1.0)


def _unit(vector: Vectors) -> Similarities:
    """Of length 1, in 64 bits; one of length 0 stays, and is near to nothing."""
    length = np.linalg.norm(vector)
    return np.asarray(vector / length if length > 0 else vector, dtype=np.float32).astype(
        np.float64
    )


def _key(question: str) -> str:
    return hashlib.sha256(question.encode("utf-8", "replace")).hexdigest()[:24]


def _read_vectors(path: Path, encoder: Encoder) -> dict[str, Vectors]:
    """What the file has of this encoder; nothing where it is gone, damaged or another encoder's."""
    try:
        with np.load(path, allow_pickle=False) as kept:
            identity = str(kept["identity"])
            names = kept["names"]
            vectors = kept["vectors"]
    except Exception:  # noqa: BLE001  # a flipped bit says another compression, a password, a size beyond memory
        return {}
    fits = identity == encoder.identity and vectors.shape == (len(names), encoder.dimension)
    if not fits or not np.isfinite(vectors).all():
        return {}
    return dict(zip(names.tolist(), vectors, strict=True))

"""Which questions are judged, and which one's verdicts answer the others: decided in question order, before any call.

In: questions, the questions judged so far, and what finds the nearest of them. Out: a `Turn` for each question.

Whether a question is answered by another's verdicts depends on the questions ahead of it alone, never on what a model
says of them. So all of it is known before the first call, the calls of different questions may overlap, and a sitting
that goes on after a kill decides as the first one did: a question of the list counts as judged from its own place on,
whether its verdicts are on file already or still to come.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from blendfilter.retrieval.base import ProgressCallback, silent
from blendfilter.trimming.by_vector import ByVector
from blendfilter.trimming.unlike import unlike
from blendfilter.trimming.witnesses import Judged, question_id

if TYPE_CHECKING:
    from blendfilter.retrieval.encoders import Vectors
    from blendfilter.trimming.similar import Similar

PHASE, ENCODING = "comparing questions", "encoding questions"
_AT_ONCE = 256
"""Questions that an encoder is given together."""
Kind = Literal["judge", "known", "reuse"]


class Turn(NamedTuple):
    """One question, and what is to be done with it.

    `known`: it was judged before. `reuse`: the verdicts of the question `source` answer it.
    """

    id: str
    question: str
    kind: Kind
    source: str = ""


def turns_of(
    questions: Iterable[str],
    judged: Mapping[str, Judged],
    similar: Similar | None,
    min_similarity: float | None = None,
    *,
    guard: bool = True,
    progress: ProgressCallback = silent,
) -> list[Turn]:
    """What is to be done with each question, in order.

    Args:
        judged: the questions that are judged, by id.
        similar: finds the nearest judged question, itself still empty; None: only the same words are the same question.
        min_similarity: from where on two questions share verdicts; None: as `similar` has it.
        guard: two near questions that `unlike` tells apart share none.
    """
    texts = [text.strip() for text in questions]
    listed = {question_id(text) for text in texts}
    near = None
    if similar is not None:
        near = _Nearest(similar, min_similarity, guard)
        near.encode(texts, progress)
        near.add([each.question for each in judged.values() if each.id not in listed])
    turns: dict[str, Turn] = {}
    made: list[Turn] = []
    for done, text in enumerate(texts, 1):
        turn = _turn(text, judged, turns, near)
        if turn.id not in turns:
            turns[turn.id] = turn
            if turn.kind != "reuse" and near is not None:
                near.add([text])
        made.append(turn)
        progress(PHASE, done, len(texts))
    return made


def _turn(text: str, judged: Mapping[str, Judged], turns: Mapping[str, Turn], near: _Nearest | None) -> Turn:
    own = question_id(text)
    if (earlier := turns.get(own)) is not None:  # the same question again
        return Turn(own, text, "reuse", earlier.source or own)
    if own in judged:
        return Turn(own, text, "known")
    source = None if near is None else near.of(text)
    return Turn(own, text, "judge") if source is None else Turn(own, text, "reuse", question_id(source))


class _Nearest:
    """The judged questions so far; `of` gives the one whose verdicts hold for another, or None."""

    def __init__(self, similar: Similar, min_similarity: float | None, guard: bool) -> None:
        self.similar, self.guard = similar, guard
        self.by_vector = similar if isinstance(similar, ByVector) else None
        self.least = similar.min_similarity if min_similarity is None else min_similarity
        self.texts: list[str] = []
        self.vectors: dict[str, Vectors] = {}

    def encode(self, texts: Sequence[str], progress: ProgressCallback) -> None:
        """Where the measure is by vector: many at once, and each once, though it is compared and then added."""
        if self.by_vector is None:
            return
        new = list(dict.fromkeys(texts))
        for start in range(0, len(new), _AT_ONCE):
            some = new[start : start + _AT_ONCE]
            rows = self.by_vector.encoder.encode_queries(some).vectors
            self.vectors |= {text: row[None] for text, row in zip(some, rows, strict=True)}
            progress(ENCODING, len(self.vectors), len(new))

    def add(self, texts: list[str]) -> None:
        vectors = [self.vectors[text] for text in texts if text in self.vectors]
        if self.by_vector is not None and vectors and len(vectors) == len(texts):
            self.by_vector.add(texts, vectors=np.concatenate(vectors))
        elif texts:
            self.similar.add(texts)
        self.texts += texts

    def of(self, text: str) -> str | None:
        vectors = self.vectors.get(text)
        (near,) = self.similar.nearest([text], vectors=vectors, floor=self.least) if self.texts else (None,)
        if near is None or near.similarity < self.least:
            return None
        found = self.texts[near.at]
        return None if self.guard and unlike(text, found) else found

"""How near two questions are by an encoder: the cosine of their vectors (Ma et al. 2024, section 4.4).

In: judged questions, then new ones, or their vectors. Out: `Near` for each; the cosine is exact, counted in 64 bits row
by row, so that a question's does not depend on which others are asked along with it.
With a floor, most are ruled out by a bound that costs a tenth of the product: with P an orthonormal projection onto the
directions in which the judged questions differ most, and |r| the length of what P leaves of a vector,
q · m <= Pq · Pm + |r(q)| |r(m)|  (Cauchy and Schwarz, on the rest).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from blendfilter.retrieval.base import coarse
from blendfilter.retrieval.encoders import Encoder, Vectors
from blendfilter.trimming.kept_vectors import vectors_of
from blendfilter.trimming.similar import Near

_KEPT = 48
"""Dimensions of the projection."""
_FEW = 256
"""Below so many judged questions the plain product is as quick, and directions mean little."""
_SLACK = 1e-4
"""What 32 bits may be wrong by, and more."""


class _Rows:
    """Vectors of one length, appended now and then: room for twice as many is made where it runs out."""

    def __init__(self, width: int) -> None:
        self._room: Vectors = np.empty((16, width), dtype=np.float32)
        self._count = 0

    def append(self, rows: Vectors) -> None:
        count = self._count + len(rows)
        if count > len(self._room):
            room = np.empty((max(count, 2 * len(self._room)), self._room.shape[1]), dtype=np.float32)
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
        self.projection: Vectors = np.ascontiguousarray(directions[:, ::-1][:, :_KEPT], dtype=np.float32)
        self.made_of = len(kept)
        self.rows = _Rows(self.projection.shape[1] + 1)
        self.append(kept)

    def append(self, vectors: Vectors) -> None:
        self.rows.append(self._projected(vectors))

    def highest(self, vector: Vectors) -> Vectors:
        """No cosine with `vector` is above these."""
        bounds: Vectors = self.rows.all @ self._projected(vector[None])[0]
        return bounds

    def _projected(self, vectors: Vectors) -> Vectors:
        inside = vectors @ self.projection
        rest = np.sqrt(np.maximum(0.0, 1.0 - np.einsum("ij,ij->i", inside, inside)))
        return np.concatenate([inside, rest[:, None]], axis=1, dtype=np.float32)


class ByVector:
    """Cosines under `encoder`. Judged questions are encoded once, when they are added. From 0.9 on is the paper's."""

    name = "vectors"
    min_similarity = 0.9

    def __init__(self, encoder: Encoder, kept: Path | None = None) -> None:
        """`kept` is a file for their vectors, made where it is not there (`kept_vectors`)."""
        self.encoder = encoder
        self._kept = kept
        self.identity = encoder.identity
        self._rows = _Rows(encoder.dimension)
        self._itself: dict[str, int] = {}
        self._bound: _Bound | None = None

    def add(self, questions: Sequence[str], *, vectors: Vectors | None = None) -> None:
        """Append judged questions; `vectors` where they have been encoded before."""
        if not questions:
            return
        if vectors is None:
            kept, encoder = self._kept, self.encoder
            vectors = vectors_of(questions, encoder, kept) if kept else encoder.encode_queries(questions).vectors
        given = _unit(vectors)
        for at, question in enumerate(questions, start=len(self._rows.all)):
            self._itself.setdefault(question, at)
        self._rows.append(given)
        count = len(self._rows.all)
        if self._bound is not None and count < 2 * self._bound.made_of:
            self._bound.append(given)
        elif count >= _FEW:
            self._bound = _Bound(self._rows.all)

    def nearest(
        self, questions: Sequence[str], *, vectors: Vectors | None = None, floor: float = 0.0
    ) -> list[Near | None]:
        """For each the nearest judged question; None where there is none, or none as near as `floor`."""
        if not len(self._rows.all) or not questions:
            return [None] * len(questions)
        given = self.encoder.encode_queries(questions).vectors if vectors is None else vectors
        return [
            self._nearest(question, vector, floor) for question, vector in zip(questions, _unit(given), strict=True)
        ]

    def _nearest(self, question: str, vector: Vectors, floor: float) -> Near | None:
        if (itself := self._itself.get(question)) is not None:
            return Near(itself, 1.0)
        candidates = self._candidates(vector, floor)
        if not len(candidates):
            return None
        kept = self._rows.all[candidates]
        cosines = kept @ vector
        close = cosines >= cosines.max() - _SLACK
        candidates, kept = candidates[close], kept[close]
        # a sum that a matrix product makes depends on how many rows it has
        exact = np.einsum("ij,j->i", kept.astype(np.float64), vector.astype(np.float64))
        exact = coarse(exact)
        best = int(np.argmax(exact))
        similarity = max(0.0, min(1.0, float(exact[best])))
        return Near(int(candidates[best]), similarity) if similarity >= floor else None

    def _candidates(self, vector: Vectors, floor: float) -> Any:
        """Those that may be as near as `floor`, in the order of adding."""
        if floor <= 0 or self._bound is None:
            return np.arange(len(self._rows.all))
        return np.flatnonzero(self._bound.highest(vector) >= floor - _SLACK)


def _unit(vectors: Vectors) -> Vectors:
    """Each of length 1; one of length 0 stays, and is near to nothing."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), dtype=np.float32)

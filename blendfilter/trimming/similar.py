"""The judged question nearest to a new one: by an encoder's vectors, or by words where there is no encoder.

In: judged questions, then new ones. Out: for each new one which of them is nearest, and how near: 1 is the same.
By vector it is the cosine (Ma et al. 2024, "Context-Driven Index Trimming", section 4.4: reused from 0.9 up). By words
it is what BM25 gives q' for the query q over what it gives q itself; the paper has no such measure.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from blendfilter.errors import BadData
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.encoders import Encoder, Vectors


class Near(NamedTuple):
    """One judged question: its place among those added, and how near it is."""

    at: int
    similarity: float


class Similar(Protocol):
    """What finds the nearest question. Threads may search it at once; nobody adds meanwhile."""

    name: str
    min_similarity: float
    """From where on verdicts are reused, unless somebody says otherwise."""
    identity: str
    """What else its numbers depend on (an encoder's identity), for a fingerprint."""

    def add(self, questions: Sequence[str]) -> None:
        """Append judged questions."""

    def nearest(
        self, questions: Sequence[str], *, vectors: Vectors | None = None, floor: float = 0.0
    ) -> list[Near | None]:
        """For each the nearest of those added, itself before any other and else the earliest of several.

        None where none is as near as `floor`.

        `vectors` are the questions', where somebody has encoded them already; a measure without vectors ignores them.
        """


def similar_for(
    index: Retriever, encoder: Encoder | str | os.PathLike[str] | None = None, *, kept: Path | None = None
) -> Similar:
    """The measure that goes with an index: by vector with `encoder`, or with a dense index's own; else by words.

    `kept` is a file for the judged questions' vectors, so that they are encoded once.
    """
    from blendfilter.trimming.by_vector import ByVector
    from blendfilter.trimming.by_words import ByWords

    own = getattr(index, "encoder", None)
    if encoder is None:
        return ByVector(own, kept) if isinstance(own, Encoder) else ByWords()
    if isinstance(encoder, Encoder):
        return ByVector(encoder, kept)
    from blendfilter.retrieval.encoders import load_encoder

    return ByVector(load_encoder(os.fspath(encoder)), kept)


def similar_named(name: str, index: Retriever, *, kept: Path | None = None) -> Similar:
    """The measure of that name for an index: `words`, `vectors`, or with no name the one that goes with it.

    Raises `BadData` for vectors where the index has no encoder, and for a name nobody knows.
    """
    from blendfilter.trimming.by_words import ByWords

    if name == ByWords.name:
        return ByWords()
    found = similar_for(index, kept=kept)
    if name not in ("", found.name):
        raise BadData(f"the similarity '{name}' does not go with this index, which has '{found.name}': name an encoder")
    return found

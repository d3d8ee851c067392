"""A trimmed index by its folder: what `open_index("INDEX.trimmed")` opens.

In: the folder. Out: a `Trimmed` over the index that it names. Where the overlay is damaged, that index alone, with one
warning: what was trimmed can be gathered again, and a search that is not trimmed is better than none.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from blendfilter.errors import BadData, MissingFile
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.indexes import open_index
from blendfilter.retrieval.manifest import MANIFEST
from blendfilter.trimming.folder import SUFFIX, TrimFolder
from blendfilter.trimming.kept_vectors import FILE as VECTORS
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.similar import similar_named
from blendfilter.trimming.witnesses import Witnesses


def open_trimmed(
    folder: str | os.PathLike[str],
    *,
    threshold: int | None = None,
    min_similarity: float | None = None,
    guard: bool = True,
    one_way: bool | None = None,
    **options: Any,
) -> Retriever:
    """The trimmed index of `folder`, by its own settings unless others are given; `options` are its index's.

    Raises:
        BadData: it was made for another index than lies there now, or names none.
        MissingFile: its index is gone.
        BadArgument: a threshold below 1, a similarity that is none.
    """
    place = Path(folder)
    try:
        at = TrimFolder.read(place)
        witnesses = Witnesses.read(at.witnesses)
    except (BadData, MissingFile, OSError) as error:
        if not place.is_dir():
            raise
        return _bare(place, error, options)
    index = _index(at, options)
    try:
        similar = similar_named(at.similarity, index, kept=place / VECTORS)
    except BadData as error:
        return _untrimmed(index, at.base, error)
    return Trimmed(
        index,
        witnesses,
        threshold=at.threshold if threshold is None else threshold,
        min_similarity=at.min_similarity if min_similarity is None else min_similarity,
        similar=similar,
        guard=guard,
        one_way=at.one_way if one_way is None else one_way,
    )


def _index(at: TrimFolder, options: dict[str, Any]) -> Retriever:
    """The index that was trimmed, and no other."""
    if not at.base:
        raise BadData(
            f"{at.place} was made for an index in memory, which no folder names: "
            "open it as Trimmed(index, Witnesses.read(…))"
        )
    try:
        index = open_index(at.base, **options)
    except MissingFile as error:
        raise MissingFile(f"{at.place} trims an index that is not there: {error}") from None
    if index.fingerprint != at.base_fingerprint:
        raise BadData(
            f"{at.place} was made for another index: it trims {at.base_fingerprint}, and {at.base} is "
            f"{index.fingerprint} by now; open {at.base} itself, or move {at.place} away and trim again"
        )
    return index


def _bare(folder: Path, error: Exception, options: dict[str, Any]) -> Retriever:
    """The index alone: the one that the manifest names, or, where that cannot be read either, the one beside it."""
    try:
        base = TrimFolder.read(folder).base
    except (BadData, MissingFile, OSError):
        base = str(folder).removesuffix(SUFFIX)
        if base == str(folder) or not (Path(base) / MANIFEST).is_file():
            raise error from None
    if not base:
        raise error
    return _untrimmed(open_index(base, **options), base, error)


def _untrimmed(index: Retriever, base: str, error: Exception) -> Retriever:
    warnings.warn(f"nothing is trimmed, and {base} is searched as it is: {error}", stacklevel=4)
    return index

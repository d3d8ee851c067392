"""A trimmed index by its folder: what `open_index("INDEX.trimmed")` opens.

In: the folder. Out: a `Trimmed` over the index that it names. Where the overlay is damaged, that index alone, with one
warning: what was trimmed can be gathered again, and a search that is not trimmed is better than none.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blendfilter.errors import BadData, MissingFile
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.indexes import ADDRESSES, open_index
from blendfilter.retrieval.manifest import MANIFEST
from blendfilter.retrieval.remote import check_host
from blendfilter.trimming.folder import SUFFIX, TrimFolder, is_address, is_trimmed
from blendfilter.trimming.kept_vectors import FILE as VECTORS
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.similar import similar_named
from blendfilter.trimming.witnesses import Witnesses

DEEPEST = 8
"""Trimmed indexes over each other; we make one."""


def open_trimmed(
    folder: str | os.PathLike[str],
    *,
    threshold: int | None = None,
    min_similarity: float | None = None,
    guard: bool = True,
    one_way: bool | None = None,
    allow_hosts: Sequence[str] = (),
    **options: Any,
) -> Retriever:
    """The trimmed index of `folder`, by its own settings unless others are given; `options` are its index's.

    Raises:
        BadData: it was made for another index than lies there now, names none, or lies over itself.
        MissingFile: its index is gone.
        BadArgument: a threshold below 1, a similarity that is none, an address whose host is not in `allow_hosts`.
    """
    place = Path(folder)
    options["allow_hosts"] = allow_hosts
    _check_ends(place)
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
        index = open_base(at.base, at.place, **options)
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
    base = _base_of(folder)
    if not base:
        raise error
    return _untrimmed(open_base(base, folder, **options), base, error)


def open_base(
    base: str, overlay: str | os.PathLike[str], *, allow_hosts: Sequence[str] = (), **options: Any
) -> Retriever:
    """The index that the manifest of `overlay` names. An address there may be anybody's: see `check_host`.

    The token of the environment is for addresses that a user names, and is not sent to this one.
    """
    if not is_address(base):
        return open_index(base, allow_hosts=allow_hosts, **options)
    check_host(base, allow_hosts, str(overlay))
    ours = base.partition("://")[0].lower() in ADDRESSES
    withheld: dict[str, Any] = {"ambient": False} if ours else {}
    return open_index(base, **withheld, **options)


def _base_of(folder: Path) -> str:
    """What the manifest names; where that cannot be read, the index beside the folder. Empty where there is none."""
    try:
        return TrimFolder.read(folder).base
    except (BadData, MissingFile, OSError):
        base = str(folder).removesuffix(SUFFIX)
        return base if base != str(folder) and (Path(base) / MANIFEST).is_file() else ""


def _check_ends(folder: Path) -> None:
    """Raise `BadData` where what lies under a trimmed index is that index again, or comes to no end."""
    seen, place = set[str](), folder
    while is_trimmed(place) or (place.name.endswith(SUFFIX) and place.is_dir()):
        real = os.path.realpath(place)
        if real in seen or len(seen) == DEEPEST:
            what = "over itself" if real in seen else f"over more than {DEEPEST} others"
            raise BadData(f"{folder} is a trimmed index that lies {what}: move it away, and trim the bare index again")
        seen.add(real)
        base = _base_of(place)
        if not base or is_address(base):
            return
        place = Path(base)


def _untrimmed(index: Retriever, base: str, error: Exception) -> Retriever:
    warnings.warn(f"nothing is trimmed, and {base} is searched as it is: {error}", stacklevel=4)
    return index

"""One index a corpus: built the first time somebody asks, found by the corpus' hash ever after.

In: a corpus file, and how its index is built and opened. Out: the index, from the cache folder if it is there. Two
builders at once both end well: each builds beside the other, and the first to finish is kept.
"""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from blendfilter.errors import BadData
from blendfilter.retrieval.base import fingerprint_of
from blendfilter.retrieval.corpus import corpus_hash
from blendfilter.retrieval.manifest import FORMAT, MANIFEST, why_no_index

Index = TypeVar("Index")


def index_cache() -> Path:
    """Where indexes are kept: `$BLENDFILTER_CACHE/indexes`, by default `~/.cache/blendfilter/indexes`."""
    return Path(os.environ.get("BLENDFILTER_CACHE") or Path.home() / ".cache" / "blendfilter") / "indexes"


def cached_folder(
    kind: str,
    corpus: str | os.PathLike[str],
    settings: dict[str, Any],
    cache_dir: str | os.PathLike[str] | None = None,
) -> Path:
    """The folder that an index of `kind` over this corpus' content with these settings has, built or not."""
    key = fingerprint_of(kind, FORMAT, corpus_hash(Path(corpus)), settings)
    return Path(cache_dir or index_cache()) / f"{kind}-{Path(corpus).name.split('.')[0]}-{key}"


def open_or_build(folder: Path, open_: Callable[[Path], Index], build: Callable[[bool], Index]) -> Index:
    """The index in `folder`; where there is none, `build(False)`; a damaged one is replaced by `build(True)`."""
    if not (folder / MANIFEST).exists():
        return build(False)
    try:
        return open_(folder)
    except BadData as error:
        warnings.warn(f"{error} (doing so now)", stacklevel=4)
        if why := why_no_index(folder):  # its manifest is damaged, or somebody's own files are in it: nothing is lost
            aside = folder.rename(folder.with_name(f"{folder.name}.damaged-{uuid.uuid4().hex[:12]}"))
            warnings.warn(f"{folder} is no whole index any more ({why}) and was put aside as {aside}", stacklevel=4)
        return build(True)

"""A trimmed index's folder: which index it lies over, and how it trims it.

In: an index and settings. Out: `INDEX.trimmed/` beside it, with a manifest of its own kind, the witnesses and the
journal of the judge's calls. The index is never written to; its folder and this one may be moved together, since one
knows the other by a relative path.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.journal import FILE as JOURNAL
from blendfilter.journal import Journal
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.indexes import open_index
from blendfilter.retrieval.manifest import MANIFEST, CorpusInfo, Manifest, building, read_manifest, write_manifest
from blendfilter.trimming.lines import check_threshold
from blendfilter.trimming.whole import write_whole
from blendfilter.trimming.witnesses import FILE, Writer

KIND = "trimmed"
SUFFIX = ".trimmed"
THRESHOLD = 2
"""Witnesses that it takes; the authors' released code takes 1."""
DEPTH = 10
"""The paper's k."""


class _Settings(BaseModel):
    """The manifest's `settings`. Null for `min_similarity`: the similarity's own default."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)
    base: str
    base_fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    k: Annotated[int, Field(ge=1)]
    threshold: Annotated[int, Field(ge=1)]
    min_similarity: Annotated[float, Field(ge=0, le=1)] | None
    similarity: str
    one_way: bool = False
    """Missing in a manifest that was written before there was a choice."""


@dataclass(frozen=True, slots=True)
class TrimFolder:
    """An open folder. `base` is what `open_index` opens: a folder, an address, empty for an index that has neither."""

    place: Path
    base: str
    base_fingerprint: str
    k: int
    threshold: int
    min_similarity: float | None
    similarity: str
    one_way: bool = False
    """Whether only witnesses count that accepted the same passage as the nearest judged question."""

    @property
    def witnesses(self) -> Path:
        """The file of witnesses."""
        return self.place / FILE

    @property
    def journal(self) -> Path:
        """The journal of the judge's calls."""
        return self.place / JOURNAL

    @classmethod
    def create(
        cls,
        index: Retriever | str | os.PathLike[str],
        out: str | os.PathLike[str] | None = None,
        *,
        k: int = DEPTH,
        threshold: int = THRESHOLD,
        min_similarity: float | None = None,
        similarity: str = "",
        one_way: bool = False,
    ) -> TrimFolder:
        """A new folder over `index` (open, or its folder or address), beside it or at `out`; it has no witnesses yet.

        Raises:
            BadArgument: a folder that is there already, an index that is trimmed itself, an address without `out`, a
            setting out of range.
        """
        _check(k, threshold, min_similarity, one_way)
        retriever = index if isinstance(index, Retriever) else _bare(index)
        if KIND in (retriever.info().get("kind"), retriever.info().get("of")):
            raise BadArgument(f"{location_of(retriever) or 'the index'} is trimmed itself: trim the one it was made of")
        # an address may hold a login, which the index's own does not: no token goes into the manifest
        base = location_of(retriever) if isinstance(index, Retriever) or is_address(index) else os.fspath(index)
        if not base and out is None:
            raise BadArgument("an index in memory has no place beside it: name a folder for the witnesses (out)")
        place = Path(out) if out is not None else Path(default_place(base))
        _check_place(place, base)
        settings = _Settings(
            base=_relative(base, place), base_fingerprint=retriever.fingerprint, k=k, threshold=threshold,
            min_similarity=None if min_similarity is None else float(min_similarity), similarity=similarity,
            one_way=one_way,
        )  # fmt: skip
        with building(place) as folder:
            write_manifest(folder, _manifest(settings, retriever))
            (folder / FILE).touch()
        return cls.read(place)

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> TrimFolder:
        """The folder as it was left.

        Raises:
            MissingFile: nothing is there. BadData: it is no trimmed index, newer than this version, or damaged.
        """
        place = Path(folder)
        told = _settings(place)
        return cls(
            place, _absolute(told.base, place), told.base_fingerprint, told.k, told.threshold, told.min_similarity,
            told.similarity, told.one_way,
        )  # fmt: skip

    def set(
        self, *, threshold: int | None = None, min_similarity: float | None = None, one_way: bool | None = None
    ) -> TrimFolder:
        """The folder with other settings, written by a temporary file and a rename; what is not named stays."""
        new = replace(
            self,
            threshold=self.threshold if threshold is None else threshold,
            min_similarity=self.min_similarity if min_similarity is None else float(min_similarity),
            one_way=self.one_way if one_way is None else one_way,
        )
        _check(new.k, new.threshold, new.min_similarity, new.one_way)
        raw = json.loads((self.place / MANIFEST).read_bytes())
        settings = {"threshold": new.threshold, "min_similarity": new.min_similarity, "one_way": new.one_way}
        raw["settings"] |= settings
        write_whole(self.place / MANIFEST, [json.dumps(raw, indent=1) + "\n"])
        return new

    def remove_empty(self) -> bool:
        """Remove a folder that holds nothing yet, no verdict and no call that was answered; whether it is gone.

        Raises `RunLocked` where somebody gathers in it.
        """
        with Writer(self.witnesses):
            # the manifest last: killed on the way there, it is a folder that opens
            files = (self.journal, self.witnesses, self.place / MANIFEST)
            if self.witnesses.stat().st_size or _answered(self.journal) or {*self.place.iterdir()}.difference(files):
                return False
            for path in files:
                path.unlink(missing_ok=True)
            self.place.rmdir()
        return True


def _answered(journal: Path) -> bool:
    """Whether a journal holds anything that was paid for."""
    if not journal.is_file():
        return False
    with Journal(journal, "replay", exclusive=True) as opened:
        return any(not record.get("error") for record in opened.records("call"))


def default_place(location: str | os.PathLike[str]) -> str:
    """Where an index's trimming goes by itself: beside it. Raises `BadArgument` for an address.

    >>> default_place("indexes/wiki/")
    'indexes/wiki.trimmed'
    """
    if is_address(location):
        from blendfilter.retrieval.remote import address_of

        plain = address_of(os.fspath(location)).url  # a login in it is shown nowhere
        raise BadArgument(f"there is no place beside {plain}: name a folder for its witnesses (--out DIR)")
    path = Path(location)
    return str(path if path.name and path.name != ".." else path.resolve()) + SUFFIX


def is_address(location: str | os.PathLike[str]) -> bool:
    """Whether an index is named by its address and not by its folder."""
    return "://" in os.fspath(location)


def is_trimmed(location: str | os.PathLike[str]) -> bool:
    """Whether a trimmed index's folder lies there, damaged or not: by its manifest, by its name where that is gone."""
    place = Path(location)
    if is_address(location) or not place.is_dir():
        return False
    try:
        return bool(json.loads((place / MANIFEST).read_bytes())["kind"] == KIND)
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return (place / FILE).exists()


def location_of(index: Retriever) -> str:
    """What `open_index` opens again as this index; empty for one in memory or a callable."""
    told = index.info()
    return str(told.get("path") or told.get("url") or "")


def _bare(location: str | os.PathLike[str]) -> Retriever:
    if is_trimmed(location):
        raise BadArgument(f"{location} is a trimmed index itself: name the index that it was made of, or go on in it")
    return open_index(location)


def _manifest(settings: _Settings, index: Retriever) -> Manifest:
    told = index.info()
    corpus = told.get("corpus") or {}
    try:
        passages = len(index)
    except TypeError:  # a server or a function that does not say
        passages = 1
    return Manifest(
        kind=KIND,
        fingerprint=settings.base_fingerprint,
        passages=max(passages, 1),
        corpus=CorpusInfo(name=str(corpus.get("name", "")), sha256=str(corpus.get("sha256", ""))),
        settings=settings.model_dump(),
        versions={"blendfilter": version("blendfilter")},
    )


def _settings(place: Path) -> _Settings:
    if not place.exists():
        raise MissingFile(f"no trimmed index at {place}: blendfilter trim INDEX --questions FILE makes one")
    try:
        manifest = read_manifest(place)
    except BadData as error:
        if not (place / FILE).exists():
            raise
        raise _damaged(place, "it is missing or damaged") from error
    if manifest.kind != KIND:
        raise BadData(f"{place} is an index of kind '{manifest.kind}', not a trimmed one: trim it first")
    try:
        settings = _Settings.model_validate(manifest.settings)
        if settings.base_fingerprint != manifest.fingerprint:
            raise _damaged(place, f"two fingerprints, {manifest.fingerprint} and {settings.base_fingerprint}")
        return settings
    except ValidationError as error:
        first = error.errors()[0]
        raise _damaged(place, f"{'.'.join(map(str, ('settings', *first['loc'])))}: {first['msg']}") from None


def _damaged(place: Path, what: str) -> BadData:
    return BadData(
        f"{place / MANIFEST} does not say how the index is trimmed ({what}): restore it, or move {place} away and trim "
        "again; the bare index is as it was"
    )


def _check(k: Any, threshold: Any, min_similarity: Any, one_way: Any) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise BadArgument(f"k is a whole number from 1 up, got {k!r}")
    check_threshold(threshold)
    if min_similarity is not None and not (isinstance(min_similarity, int | float) and 0 <= min_similarity <= 1):
        raise BadArgument(f"min_similarity lies between 0 and 1, got {min_similarity!r}")
    if not isinstance(one_way, bool):
        raise BadArgument(f"one_way is True or False, got {one_way!r}")


def _check_place(place: Path, base: str) -> None:
    if is_trimmed(place):
        raise BadArgument(f"{place} holds a trimmed index already: go on in it, or name another folder (--out DIR)")
    if base and not is_address(base) and place.resolve().is_relative_to(Path(base).resolve()):
        raise BadArgument(f"{place} lies inside the index at {base}, which is never written to: name a folder outside")


def _relative(base: str, place: Path) -> str:
    if not base or is_address(base):
        return base
    return Path(os.path.relpath(os.path.realpath(base), os.path.realpath(place))).as_posix()


def _absolute(base: str, place: Path) -> str:
    if not base or is_address(base):
        return base
    return os.path.normpath(os.path.join(os.path.realpath(place), base))

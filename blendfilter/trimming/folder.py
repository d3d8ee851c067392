"""A trimmed index's folder: `INDEX.trimmed/` beside the index, with a manifest, the witnesses and the journal of calls.

The index is never written to. Both folders may be moved together, because the manifest names the index by a relative
path. `open_trimmed` is what `open_index("INDEX.trimmed")` calls; where the overlay is damaged it gives the index alone,
with a warning: what was trimmed can be gathered again, and an untrimmed search is better than none.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blendfilter.errors import BadArgument, BadData, MissingFile, RunMismatch
from blendfilter.files import path_of, write_whole
from blendfilter.journal import FILE as JOURNAL
from blendfilter.retrieval.base import Retriever, first_fault
from blendfilter.retrieval.indexes import open_index
from blendfilter.retrieval.manifest import (
    MANIFEST,
    CorpusInfo,
    Manifest,
    building,
    read_manifest,
    write_manifest,
)
from blendfilter.retrieval.remote import address_of, check_host, is_served
from blendfilter.trimming.guard import PairModel, Rules, guard_of
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.similar import VECTORS_FILE, similar_for
from blendfilter.trimming.witnesses import FILE, THRESHOLD, Pairing, Witnesses

KIND = "trimmed"
SUFFIX = ".trimmed"
DEPTH = 10
"""The paper's k."""
RULES = "rules"
"""What `similar` is named where no model is wanted any more."""


class TrimFolder(BaseModel):
    """An open folder, which but for `place` is its manifest's `settings`.

    `base` is what `open_index` opens: a folder, an address, empty for an index that has neither.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)
    place: Annotated[Path, Field(exclude=True)]
    base: str
    base_fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    k: Annotated[int, Field(ge=1)] = DEPTH
    """Passages judged of each question."""
    threshold: Annotated[int, Field(ge=1)] = THRESHOLD
    """Witnesses that a separation takes."""
    min_similarity: Annotated[float, Field(ge=0, le=1)] | None = None
    """How near a judged question must be; None: the similarity's own default."""
    similarity: str
    one_way: bool = False
    """Whether only witnesses count that accepted the passage that stays; old folders do not say so."""
    refill: bool = True
    """Whether freed places are filled from further down the ranking."""
    pairing: Pairing = "theorem"
    """Which pairs a judged question separates."""
    similar: str = ""
    """The model of pairs that keeps questions apart besides the rules, by folder or name; empty: the rules alone."""
    similar_files: str = ""
    """The hash of its files."""

    @property
    def witnesses(self) -> Path:
        """The file of witnesses."""
        return self.place / FILE

    def state(self) -> Witnesses:
        """What the file of witnesses says. Raises as `Witnesses.read` does."""
        return Witnesses.read(self.witnesses, self.pairing)

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
        similar: str | None = None,
        **settings: Any,
    ) -> TrimFolder:
        """A new folder over `index` (open, or its folder or address), beside it or at `out`, without witnesses.

        `settings` are the fields above, from `k` to `pairing`; `similar` names a model of pairs.

        Raises:
            BadArgument: a folder that is there already, an index that is trimmed itself, an address without `out`, a
            setting out of range. MissingFile, BadData: `similar` is no model of pairs.
        """
        retriever = index if isinstance(index, Retriever) else open_index(index)
        info = retriever.info()
        # an address may hold a login, which the index's own does not: no token goes into the manifest
        base = str(info.get("path") or info.get("url") or "")
        if not isinstance(index, Retriever) and not is_address(index):
            base = str(path_of(index))
        if KIND in (info.get("kind"), info.get("of")):
            raise BadArgument(
                f"{base or 'the index'} is a trimmed index itself: name the index that it was made of, or go on in it"
            )
        if not base and out is None:
            raise BadArgument(
                "an index in memory has no place beside it: name a folder for the witnesses (out)"
            )
        place = path_of(out) if out is not None else Path(default_place(base))
        if is_trimmed(place):
            raise BadArgument(
                f"{place} holds a trimmed index already: go on in it, or name another folder (out=DIR)"
            )
        if base and not is_address(base):
            if place.resolve().is_relative_to(Path(base).resolve()):
                raise BadArgument(
                    f"{place} lies inside the index at {base}, which is never written to: name a folder outside"
                )
            base = Path(
                os.path.relpath(os.path.realpath(base), os.path.realpath(place))
            ).as_posix()
        fields = {
            "place": place,
            "base": base,
            "base_fingerprint": retriever.fingerprint,
            "similarity": similar_for(retriever).name,
            "one_way": True,
        }
        made = _checked({**fields, **settings, **_model(similar)})
        corpus = info.get("corpus") or {}
        with building(place) as folder:
            manifest = Manifest(
                kind=KIND,
                fingerprint=made.base_fingerprint,
                passages=retriever.size or 1,  # 1 for a server or a function of unknown size
                corpus=CorpusInfo(
                    name=str(corpus.get("name", "")), sha256=str(corpus.get("sha256", ""))
                ),
                settings=made.model_dump(),
                versions={"blendfilter": version("blendfilter")},
            )
            write_manifest(folder, manifest)
            (folder / FILE).touch()
        return cls.read(place)

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> TrimFolder:
        """The folder as it was left. Raises `MissingFile`, or `BadData` for what is no trimmed index or damaged."""
        place = path_of(folder)
        if not place.exists():
            raise MissingFile(
                f"no trimmed index at {place}: blendfilter trim INDEX --questions FILE makes one"
            )
        try:
            manifest = read_manifest(place)
        except BadData as error:
            if not (place / FILE).exists():
                raise
            raise _damaged(place, "it is missing or damaged") from error
        if manifest.kind != KIND:
            raise BadData(
                f"{place} is an index of kind '{manifest.kind}', not a trimmed one: trim it first"
            )
        try:
            found = cls.model_validate({**manifest.settings, "place": place})
        except ValidationError as error:
            raise _damaged(place, f"settings.{first_fault(error)}") from None
        if not found.base or is_address(found.base):
            return found
        base = os.path.normpath(os.path.join(os.path.realpath(folder), found.base))
        return found.model_copy(update={"base": base})

    def set(self, *, similar: str | None = None, **settings: Any) -> TrimFolder:
        """The folder with other settings, written by a temporary file and a rename; None leaves one as it is.

        `similar` is a model of pairs, or `rules` for none. Raises as `create` does.
        """
        given = {name: value for name, value in settings.items() if value is not None}
        given |= _model(similar)
        new = _checked({**self.model_dump(), "place": self.place, **given})
        raw = json.loads((self.place / MANIFEST).read_bytes())
        raw["settings"] |= new.model_dump(include=set(given))
        write_whole(self.place / MANIFEST, [(json.dumps(raw, indent=1) + "\n").encode()])
        return new

    def check(self, index: Retriever, k: int | None = None) -> None:
        """Raise where the folder does not go with an index and a depth.

        RunMismatch: another k, because verdicts of two depths do not mix. BadArgument: an index that is trimmed itself.
        BadData: another index.
        """
        if k is not None and k != self.k:
            raise RunMismatch(
                f"{self.place} was made with k={self.k}, not {k}: leave k as it was, or gather in another folder "
                "(out=DIR)"
            )
        if isinstance(index, Trimmed):
            raise BadArgument(
                "this index is trimmed: verdicts are given on the bare one, open that and trim it"
            )
        if index.fingerprint != self.base_fingerprint:
            raise BadData(
                f"{self.place} was made for the index {self.base_fingerprint} ({self.base}), and this one is "
                f"{index.fingerprint}: name that index, or gather for this one in another folder (out=DIR)"
            )

    def over(
        self,
        index: Retriever,
        witnesses: Witnesses | None = None,
        *,
        guard: bool | Rules | None = True,
        **settings: Any,
    ) -> Trimmed:
        """The index, trimmed as the folder says, unless `settings` (of `Trimmed`) are given."""
        own = self.model_dump(include={"threshold", "min_similarity", "one_way", "refill"})
        own |= {name: value for name, value in settings.items() if value is not None}
        return Trimmed(
            index,
            self.state() if witnesses is None else witnesses,
            similar=similar_for(index, self.similarity, kept=self.place / VECTORS_FILE),
            guard=guard_of(guard, self.similar, self.similar_files),
            **own,
        )


def default_place(location: str | os.PathLike[str]) -> str:
    """`wiki.trimmed` for `wiki`: where the trimming goes by default. Raises `BadArgument` for an address."""
    if is_address(location):
        # without a login, which no message may name
        plain = address_of(os.fspath(location)).url
        raise BadArgument(
            f"there is no place beside {plain}: name a folder for its witnesses (out=DIR)"
        )
    path = path_of(location)
    return str(path if path.name and path.name != ".." else path.resolve()) + SUFFIX


def is_address(location: str | os.PathLike[str]) -> bool:
    """Whether an index is named by its address and not by its folder."""
    return "://" in os.fspath(location)


def is_trimmed(location: str | os.PathLike[str]) -> bool:
    """Whether a trimmed index's folder lies there, damaged or not: by its manifest, by its name where that is gone."""
    place = path_of(location)
    if is_address(location) or not place.is_dir():
        return False
    try:
        return bool(json.loads((place / MANIFEST).read_bytes())["kind"] == KIND)
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return (place / FILE).exists()


def _damaged(place: Path, what: str) -> BadData:
    return BadData(
        f"{place / MANIFEST} does not say how the index is trimmed ({what}): restore it, or move {place} away and trim "
        "again; the bare index is as it was"
    )


def _model(similar: str | None) -> dict[str, str]:
    """The settings that keep a model of pairs, after loading it; empty where none is named."""
    if similar is None:
        return {}
    if similar in ("", RULES):
        return {"similar": "", "similar_files": ""}
    model = PairModel(similar)
    model.check()
    return {"similar": model.name, "similar_files": model.files}


def _checked(fields: dict[str, Any]) -> TrimFolder:
    """Raise `BadArgument` for a setting out of range."""
    try:
        return TrimFolder.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadArgument(
            f"{first['loc'][0]}: {first['msg']}, got {first['input']!r}"
        ) from None


# --- opening ----------------------------------------------------------------------------------------------------------


def open_trimmed(
    folder: str | os.PathLike[str],
    *,
    threshold: int | None = None,
    min_similarity: float | None = None,
    guard: bool | Rules | None = True,
    one_way: bool | None = None,
    refill: bool | None = None,
    allow_hosts: Sequence[str] = (),
    **options: Any,
) -> Retriever:
    """The trimmed index of `folder`, by its own settings unless others are given; `options` are its index's.

    Raises:
        BadData: it was made for another index than lies there now, names none, or lies over another overlay.
        MissingFile: its index is gone.
        BadArgument: a threshold below 1, a similarity that is none, an address whose host is not in `allow_hosts`.
    """
    place = path_of(folder)
    options["allow_hosts"] = allow_hosts
    try:
        at = TrimFolder.read(place)
    except (BadData, MissingFile, OSError) as error:
        base = str(place).removesuffix(SUFFIX)
        if base == str(place) or not place.is_dir() or not (Path(base) / MANIFEST).is_file():
            raise
        return _untrimmed(open_base(base, place, **options), base, error)
    if not at.base:
        raise BadData(
            f"{place} was made for an index in memory, which no folder names: "
            "open it as Trimmed(index, Witnesses.read(…))"
        )
    try:
        index = open_base(at.base, place, **options)
    except MissingFile as error:
        raise MissingFile(f"{place} trims an index that is not there: {error}") from None
    if index.fingerprint != at.base_fingerprint:
        raise BadData(
            f"{place} was made for another index: it trims {at.base_fingerprint}, and {at.base} is "
            f"{index.fingerprint} by now; open {at.base} itself, or move {place} away and trim again"
        )
    try:
        return at.over(
            index,
            guard=guard,
            threshold=threshold,
            min_similarity=min_similarity,
            one_way=one_way,
            refill=refill,
        )
    except (BadData, MissingFile) as error:
        return _untrimmed(index, at.base, error)


def open_base(
    base: str,
    overlay: str | os.PathLike[str],
    *,
    allow_hosts: Sequence[str] = (),
    **options: Any,
) -> Retriever:
    """The index that the manifest of `overlay` names. An address there may be anybody's: see `check_host`.

    The token of the environment is for addresses that a user names, and is not sent to this one.
    """
    if is_trimmed(base):
        raise BadData(
            f"{overlay} is a trimmed index that lies over another one, {base}: move it away and trim again"
        )
    if not is_address(base):
        return open_index(base, allow_hosts=allow_hosts, **options)
    check_host(base, allow_hosts, str(overlay))
    withheld: dict[str, Any] = {"ambient": False} if is_served(base) else {}
    return open_index(base, **withheld, **options)


def _untrimmed(index: Retriever, base: str, error: Exception) -> Retriever:
    warnings.warn(f"nothing is trimmed, and {base} is searched as it is: {error}", stacklevel=4)
    return index

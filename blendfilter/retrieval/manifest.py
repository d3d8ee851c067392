"""An index is a folder with a manifest: what it is, what it was made of, and which files belong to it.

In: an index under construction, or a folder. Out: a folder that is whole or not there at all; a checked `Manifest`.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blendfilter.errors import BadArgument, BadData, BlendFilterError, MissingFile
from blendfilter.files import writing

MANIFEST = "manifest.json"
FORMAT = 1
HOW_TO_BUILD = "build one with `blendfilter index CORPUS --out DIR`"


class CorpusInfo(BaseModel):
    """Where the passages came from: a file's name, and a hash over the passages themselves."""

    model_config = ConfigDict(frozen=True)
    name: str
    sha256: str


class Manifest(BaseModel):
    """`manifest.json`. `files` maps each file of the folder to its size in bytes; `versions` are for people."""

    model_config = ConfigDict(frozen=True)
    kind: str
    format: Literal[1] = 1
    fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    passages: Annotated[int, Field(ge=1)]
    corpus: CorpusInfo
    settings: dict[str, Any] = {}
    files: dict[str, Annotated[int, Field(ge=0)]] = {}
    versions: dict[str, str] = {}


def versions_of(*packages: str) -> dict[str, str]:
    """The installed version of each package."""
    return {name: version(name) for name in packages}


def write_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Write `manifest` into `folder`, listing the files that lie there; it comes last, after all of them."""
    files = {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}
    whole = manifest.model_copy(update={"files": files})
    (folder / MANIFEST).write_text(json.dumps(whole.model_dump(), indent=1) + "\n", encoding="utf-8")
    return whole


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """The manifest of an index folder, held against its files.

    Raises `MissingFile` where nothing is there, `BadData` where it is no index, newer than this version, or damaged.
    """
    where = Path(folder)
    if not where.exists():
        raise MissingFile(f"no index at {where}: {HOW_TO_BUILD}")
    if not (where / MANIFEST).is_file():
        what = f"it has no {MANIFEST}" if where.is_dir() else "it is a file, and an index is a folder"
        raise BadData(f"{where} is not an index ({what}): {HOW_TO_BUILD}")
    manifest = _parse(where / MANIFEST)
    for name, size in manifest.files.items():
        found = (where / name).stat().st_size if (where / name).is_file() else None
        if found != size:
            state = "is missing" if found is None else f"has {found} bytes where {size} were written"
            raise BadData(f"the index at {where} is damaged: {name} {state}; build it again")
    return manifest


def _parse(path: Path) -> Manifest:
    try:
        raw = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path} is not JSON ({error}): build the index again") from None
    stated = raw.get("format") if isinstance(raw, dict) else None
    if isinstance(stated, int) and stated > FORMAT:
        raise BadData(
            f"the index at {path.parent} has format {stated}, and this version reads up to {FORMAT}: "
            "upgrade blendfilter or build the index again"
        )
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise BadData(f"{path} is not an index's manifest: {where}: {first['msg']}; build the index again") from None


@contextmanager
def opening(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Inside the block, an index's file or setting that its reader cannot make sense of is a `BadData`."""
    try:
        yield
    except BlendFilterError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, EOFError) as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise BadData(f"the index at {folder} is damaged ({said}); build it again") from error


@contextmanager
def building(out: str | os.PathLike[str], *, overwrite: bool = False, share: bool = False) -> Iterator[Path]:
    """A temporary folder beside `out` that becomes `out` when the block ends well, and vanishes when it does not.

    An index that stands there already is refused before any work is done, or replaced with `overwrite`; with `share`,
    one that appears meanwhile is kept and this one dropped: two builders of one thing then both end well.
    Raises `BadArgument`; never removes a folder that is not an index.
    """
    target = Path(out)
    sweep(target)
    if not share:
        _check_target(target, overwrite)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder, lock = _workshop(target)
    try:
        with writing(target):
            yield folder
            _publish(folder, target, overwrite=overwrite, share=share)
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # nothing is left of it after a rename
        os.close(lock)


def _workshop(target: Path) -> tuple[Path, int]:
    """A new folder beside `target` and the lock on it. Another builder's sweep may be quicker than we are: again."""
    while True:
        folder = _sibling(target, "building")
        folder.mkdir()
        lock = _locked(folder)
        if lock is not None and folder.is_dir():
            return folder, lock
        if lock is not None:
            os.close(lock)


def sweep(target: Path) -> None:
    """Remove what builders of `target` left behind when they were killed; those still at work hold a lock.

    An old index that was put aside, while its successor never came to stand in its place, comes back.
    """
    for what in ("old", "building"):
        for folder in target.parent.glob(_name(target, what, "*")):
            lock = _locked(folder)
            if lock is None:
                continue
            if what == "old" and not target.exists():
                folder.rename(target)
            else:
                shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _locked(folder: Path) -> int | None:
    """A lock on the folder itself, gone with the process that holds it; None where another one does."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:  # gone meanwhile
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _sibling(target: Path, what: str) -> Path:
    """A name beside `target`, on the same file system, so that a rename is one step."""
    return target.with_name(_name(target, what, uuid.uuid4().hex[:12]))


def _name(target: Path, what: str, which: str) -> str:
    """``which`` may be a star: names of folders are no patterns."""
    return f".{escape(target.name) if which == '*' else target.name}.{what}-{which}"


def _check_target(target: Path, overwrite: bool) -> None:
    if target.is_dir() and not any(target.iterdir()):
        return
    if target.exists() and not (target / MANIFEST).is_file():
        raise BadArgument(f"{target} is there already and is not an index: name another folder")
    if target.exists() and not overwrite:
        raise BadArgument(
            f"there is an index at {target} already: name another folder, or overwrite it (--overwrite, overwrite=True)"
        )


def _publish(folder: Path, target: Path, *, overwrite: bool, share: bool) -> None:
    if overwrite and target.exists():
        lock = _locked(target)  # it goes along with the new name, so that nobody sweeps what may have to come back
        old = target.rename(_sibling(target, "old"))
        try:
            folder.rename(target)
        except OSError:
            old.rename(target)
            raise
        finally:
            if lock is not None:
                os.close(lock)
        shutil.rmtree(old, ignore_errors=True)
        return
    try:
        folder.rename(target)
    except OSError as error:
        if not (target / MANIFEST).is_file():
            raise
        if not share:
            raise BadArgument(f"another builder put an index at {target} meanwhile: name another folder") from error

"""An index is a folder with a manifest: what it is, what it was made of, and which files belong to it.

`building` makes such a folder, which is whole or not there at all; `read_manifest` and `check_content` check one.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path, PurePosixPath
from pickle import PickleError
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from blendfilter import resources
from blendfilter.errors import BadArgument, BadData, BlendFilterError, IndexChanged, MissingFile
from blendfilter.files import path_of, writing

MANIFEST = "manifest.json"
FORMAT = 1
_REMOVE = "remove the folder, and build the index again"
HOW_TO_BUILD = "build one with `blendfilter index CORPUS --out DIR`"
WHOLE, SAMPLED = "sha256", "sha256-sampled"
"""How a file was hashed: all of it, or some of its blocks."""
HASHED_WHOLE = 4 * 2**20
"""Bytes up to which files are hashed whole."""
BLOCKS, BLOCK = 16, 16 * 2**10
"""How many blocks of a larger file are hashed, and their bytes."""
UNREADABLE = (
    ValueError, TypeError, LookupError, AttributeError, EOFError, ArithmeticError, AssertionError, RuntimeError,
    MemoryError, PickleError,
)  # fmt: skip
"""What readers raise of files that are not theirs; a size out of a damaged file may be beyond all memory."""


def index_cache() -> Path:
    """Where indexes are kept: `$BLENDFILTER_CACHE/indexes`, by default `~/.cache/blendfilter/indexes`."""
    return resources.cache("indexes")


def _inside(name: str) -> str:
    """`name`, if it is that of a file in the folder: a manifest may come from anywhere."""
    path = PurePosixPath(name)
    if (
        path.is_absolute()
        or not path.name
        or ".." in path.parts
        or str(path) != name
        or {"\0", "\\"} & {*name}
    ):
        raise ValueError(f"{name!r:.80} is not the name of a file in the folder")
    return name


class CorpusInfo(BaseModel):
    """Where the passages came from: a file's name, and a hash over the passages themselves."""

    model_config = ConfigDict(frozen=True)
    name: str
    sha256: str


class Manifest(BaseModel):
    """`manifest.json`. `files` maps each file of the folder to its size in bytes, `hashes` to its hash (`file_hash`).

    Manifests written before there were hashes have none, and are checked by sizes. `versions` are for people.
    `built_passages`: of an index that was updated since it was built, how many passages it was built of.
    """

    model_config = ConfigDict(frozen=True)
    kind: Annotated[str, Field(max_length=100)]
    format: Literal[1] = 1
    fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    passages: Annotated[int, Field(ge=1)]
    built_passages: Annotated[int, Field(ge=1)] | None = None
    corpus: CorpusInfo
    settings: dict[str, Any] = {}
    files: dict[Annotated[str, AfterValidator(_inside)], Annotated[int, Field(ge=0)]] = {}
    hashes: dict[str, Annotated[str, Field(pattern=f"^({WHOLE}|{SAMPLED}):[0-9a-f]{{64}}$")]] = {}
    versions: dict[str, str] = {}

    @model_validator(mode="after")
    def _every_file_is_hashed(self) -> Manifest:
        if self.hashes and self.hashes.keys() != self.files.keys():
            raise ValueError("files and hashes do not list the same files")
        return self


def versions_of(*packages: str) -> dict[str, str]:
    """The installed version of each package."""
    return {name: version(name) for name in packages}


def file_hash(path: Path, how: str = "") -> str:
    """``sha256:`` or ``sha256-sampled:`` and 64 hex digits, over a file's content; `how` by default goes by its size.

    Files of up to 4 MiB are hashed whole. Of a larger one, 16 blocks of 16 KiB are, evenly spread from the first byte
    to the last, and its size: an index may have gigabytes, and opening it must not read them all. That notices another
    file, one that was copied halfway, and holes; not a flipped bit between two blocks.
    """
    size = path.stat().st_size
    how = how or (WHOLE if size <= HASHED_WHOLE else SAMPLED)
    with open(path, "rb") as file:
        if how == WHOLE:
            return f"{WHOLE}:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        digest = hashlib.sha256(str(size).encode())
        for number in range(BLOCKS):
            file.seek(max(0, size - BLOCK) * number // (BLOCKS - 1))
            digest.update(file.read(BLOCK))
    return f"{SAMPLED}:{digest.hexdigest()}"


def write_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Write `manifest` into `folder`, listing the files that lie there; it comes last, after all of them."""
    paths = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    files = {name: path.stat().st_size for name, path in paths.items()}
    whole = manifest.model_copy(
        update={"files": files, "hashes": {name: file_hash(path) for name, path in paths.items()}}
    )
    raw = whole.model_dump(exclude=None if manifest.built_passages else {"built_passages"})
    (folder / MANIFEST).write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    return whole


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """The manifest of an index folder, checked against its files' names and sizes; `check_content` goes on from there.

    Raises `MissingFile` where nothing is there, `BadData` where it is no index, newer than this version, or damaged.
    """
    before = stamp(folder)
    try:
        return _read(path_of(folder))
    except (BadData, MissingFile, OSError):
        if stamp(folder) == before:
            raise
    return read_manifest(
        folder
    )  # another index took its place between the manifest and a look at the files


def _read(where: Path) -> Manifest:
    try:
        os.stat(where)
    except (
        FileNotFoundError,
        NotADirectoryError,
        ValueError,
    ):  # the latter of characters that no name can have
        raise MissingFile(f"no index at {where}: {HOW_TO_BUILD}") from None
    except OSError as error:
        if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP):
            raise
        raise BadData(
            f"'{where!s:.60}' cannot be the folder of an index: {error.strerror}"
        ) from None
    if not (where / MANIFEST).is_file():
        what = (
            f"it has no {MANIFEST}" if where.is_dir() else "it is a file, and an index is a folder"
        )
        raise BadData(f"{where} is not an index ({what}): {HOW_TO_BUILD}")
    manifest = _parse(where / MANIFEST)
    real = os.path.realpath(where)
    for name, size in manifest.files.items():
        found = (where / name).stat().st_size if (where / name).is_file() else None
        if found != size:
            state = (
                "is missing" if found is None else f"has {found} bytes where {size} were written"
            )
            raise BadData(f"the index at {where} is damaged: {name} {state}; build it again")
        if not Path(os.path.realpath(where / name)).is_relative_to(real):
            raise BadData(
                f"the index at {where} is refused: {name} is a link out of it; put the file itself there"
            )
    return manifest


def check_content(
    folder: Path, manifest: Manifest, known: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raise `BadData` where a file's content is not what the manifest says; `known` are hashes that go before its own.

    Files of a manifest without hashes are left unread.
    """
    for name, stated in {**manifest.hashes, **known}.items():
        if file_hash(folder / name, stated.partition(":")[0]) != stated:
            raise BadData(
                f"the index at {folder} is damaged: {name} is not as it was written; build it again"
            )


def _parse(path: Path) -> Manifest:
    try:
        raw = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path} is not JSON ({error}): {_REMOVE}") from None
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
        raise BadData(
            f"{path} is not an index's manifest: {where}: {first['msg']}; {_REMOVE}"
        ) from None


@contextmanager
def opening(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Inside the block, an index's file or setting that its reader cannot make sense of is a `BadData`."""
    try:
        yield
    except UNREADABLE as error:
        if (
            isinstance(error, BlendFilterError) or type(error).__name__ == "OutOfMemoryError"
        ):  # a GPU's, not the file's
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise BadData(f"the index at {folder} is damaged ({why}); build it again") from error


@contextmanager
def building(
    out: str | os.PathLike[str], *, overwrite: bool = False, share: bool = False
) -> Iterator[Path]:
    """A temporary folder beside `out` that becomes `out` when the block ends well, and vanishes when it does not.

    An index that stands there already is refused before any work is done, or replaced with `overwrite`, in one step and
    once the new one is on the disk; with `share`, one that appears meanwhile is kept and this one dropped: two builders
    of one thing then both end well.
    Raises `BadArgument` for anything there that is no index (`why_no_index`), and leaves that as it is; where such a
    thing came while the block ran, the new index stays beside it, and the message says where.
    """
    target = path_of(out)
    if (
        target.name in ("", "..") or target.is_symlink()
    ):  # a link stays one, and leads to the new index
        target = Path(os.path.realpath(target))
    sweep(target)
    if why := _in_the_way(target):
        raise BadArgument(
            f"{target} is there already and is not an index ({why}): name another folder"
        )
    if (target / MANIFEST).exists() and not (overwrite or share):
        raise BadArgument(
            f"there is an index at {target} already: name another folder, or overwrite it (--overwrite)"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = _sibling(target, "building")
    folder.mkdir()
    lock = _locked(folder)
    try:
        with writing(target):
            yield folder
            if why := _in_the_way(target):
                kept = folder.rename(target.with_name(f"{target.name}.new-{uuid.uuid4().hex[:12]}"))
                raise BadArgument(
                    f"{target} is not an index any more ({why}) and stays: the new one is at {kept}"
                )
            if overwrite and target.exists():
                _sync(folder)
                old = _sibling(target, "old")
                if not _exchanged(folder, target):
                    target.rename(old)  # killed here, it comes back with the next `sweep`
                    folder.rename(target)
                    _remove(old)
                    return
                with suppress(FileNotFoundError):  # swept by another builder
                    folder.rename(old)
                    _remove(old)
                return
            try:
                folder.rename(target)
            except OSError as error:
                if not target.exists():
                    raise
                if not share:
                    raise BadArgument(
                        f"another builder put an index at {target} meanwhile: name another folder"
                    ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # nothing is left of it after a rename
        if lock is not None:
            os.close(lock)


@contextmanager
def updating(index: str | os.PathLike[str], fingerprint: str) -> Iterator[Path]:
    """As `building`, for the successor of the index in a folder, whose fingerprint is given; one writer at a time.

    Raises `IndexChanged` where another index lies there, or comes to lie there before the block ends, and
    `BadArgument` where another process is at work on its successor.
    """

    def check() -> None:
        if (found := read_manifest(index).fingerprint) != fingerprint:
            raise IndexChanged(
                f"the index at {index} was changed by someone else ({fingerprint} → {found}), and is as they left it: "
                "open it again"
            )

    lock = _locked(Path(os.path.realpath(path_of(index))))
    if lock is None:
        raise BadArgument(
            f"the index at {index} is being changed by another command: wait until it is done"
        )
    try:
        check()  # whoever had the lock before has put another index here
        with building(index, overwrite=True) as folder:
            yield folder
            check()  # `building` takes no such lock
    finally:
        os.close(lock)


def stamp(folder: str | os.PathLike[str]) -> tuple[int, ...]:
    """Three numbers that change when another index takes a folder's place; none where there is no folder."""
    try:
        there = os.stat(path_of(folder))
    except (OSError, ValueError):  # the latter of characters that no name can have
        return ()
    return there.st_dev, there.st_ino, there.st_ctime_ns


def discard(folder: Path, seen: tuple[int, ...]) -> None:
    """Take away a folder of the cache that is no whole index, whatever is left in it, unless another one has come since
    its `stamp` was `seen`. It is put aside in one step, and removed by the next `building`.
    """
    if stamp(folder) == seen:
        with suppress(FileNotFoundError):  # another process was faster
            folder.rename(_sibling(folder, "building"))


def _exchanged(new: Path, old: Path) -> bool:
    """Exchange two folders in one step; False where this system, or this file system, cannot."""
    try:
        rename = ctypes.CDLL(None).renameat2  # Linux
    except (OSError, AttributeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(new), here, os.fsencode(old), exchange) == 0)


def _sync(folder: Path) -> None:
    """Have the disk take a folder and what is in it: what it replaces is removed."""
    for place, _, names in os.walk(folder, onerror=reraise):
        for path in (place, *(os.path.join(place, name) for name in names)):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _in_the_way(target: Path) -> str:
    """Why an index cannot take this place; empty where nothing is there, or an empty folder, or an index."""
    free = not os.path.lexists(target) or (target.is_dir() and not any(target.iterdir()))
    return "" if free else why_no_index(target)


def why_no_index(folder: Path) -> str:
    """Why `folder` is no index that may be replaced or removed; empty where it is one.

    An index is a folder with a manifest of ours that lists every file in it; a damaged one is an index too. A file, a
    folder or a link that the manifest does not list is the user's own.
    """
    if not (folder / MANIFEST).is_file():
        return f"it has no {MANIFEST}"
    try:
        files = {MANIFEST, *_parse(folder / MANIFEST).files}
    except BadData:
        return f"its {MANIFEST} is not that of an index"
    folders = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    for place, inner, names in os.walk(folder, onerror=reraise):
        for path in (Path(place, name) for name in sorted([*inner, *names])):
            name = path.relative_to(folder).as_posix()
            if path.is_symlink() or name not in (folders if path.is_dir() else files):
                return f"{name} in it is not part of one"
    return ""


def reraise(error: OSError) -> None:
    """For `os.walk`, which otherwise leaves out what it cannot read."""
    raise error


def sweep(target: Path) -> None:
    """Remove what builders of `target` left behind when they were killed; those still at work hold a lock.

    An old index that was put aside comes back where its successor never came to stand in its place.
    """
    names = re.compile(rf"\.{re.escape(target.name)}\.(building|old)-[0-9a-f]{{12}}")
    for folder in sorted(target.parent.glob(".*")) if target.parent.is_dir() else ():
        left = names.fullmatch(folder.name)
        lock = _locked(folder) if left else None
        if left is None or lock is None:
            continue
        try:
            if left[1] == "building":
                shutil.rmtree(folder, ignore_errors=True)
            elif not why_no_index(folder):
                if os.path.lexists(target):
                    _remove(folder)
                else:
                    folder.rename(target)
        finally:
            os.close(lock)


def _remove(index: Path) -> None:
    """Take away an index, file by file as its manifest lists them, so that nothing else can go with them."""
    if not (index / MANIFEST).is_file():  # an empty folder was replaced
        index.rmdir()
        return
    files = [
        *_parse(index / MANIFEST).files,
        MANIFEST,
    ]  # the manifest last: killed on the way, it can still be swept
    folders = {parent for name in files for parent in PurePosixPath(name).parents}
    try:
        for name in files:
            (index / name).unlink(missing_ok=True)
        for inner in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
            (index / inner).rmdir()
    except OSError:
        warnings.warn(
            f"the index that was replaced could not be removed whole: look into {index}",
            stacklevel=3,
        )


def _locked(folder: Path) -> int | None:
    """A lock on the folder itself, gone with the process that holds it; None where another one does, or for a link."""
    descriptor = -1
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    if descriptor >= 0:
        os.close(descriptor)
    return None


def _sibling(target: Path, what: str) -> Path:
    """A name beside `target`, on the same file system, so that a rename is one step."""
    return target.with_name(f".{target.name}.{what}-{uuid.uuid4().hex[:12]}")

"""An index is a folder with a manifest: what it is, what it was made of, and which files belong to it.

`building` makes such a folder, which is whole or not there at all; `read_manifest` and `check_content` check one.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from pickle import PickleError
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from blendfilter.errors import BadArgument, BadData, BlendFilterError, IndexChanged, MissingFile
from blendfilter.files import AnyPath, path_of, sha256_of, writing
from blendfilter.retrieval.base import first_fault

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
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    EOFError,
    ArithmeticError,
    AssertionError,
    RuntimeError,
    MemoryError,
    PickleError,
)
"""What readers raise for files that are not theirs; a size from a damaged file may be beyond all memory."""
_TRIES = 20
T = TypeVar("T")
Settings = dict[str, Any]
"""How an index was made, as its manifest says, or what it says of itself: values of JSON by name."""


def _inside(name: str) -> str:
    """`name`, if it names a file in the folder: a manifest may come from anywhere."""
    path = PurePosixPath(name)
    outside = path.is_absolute() or not path.name or ".." in path.parts or str(path) != name
    if outside or "\0" in name or "\\" in name:
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
    `built_passages`: how many passages an index was built from, if it was updated since.
    """

    model_config = ConfigDict(frozen=True)
    kind: Annotated[str, Field(max_length=100)]
    format: Literal[1] = 1
    fingerprint: Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
    passages: Annotated[int, Field(ge=1)]
    built_passages: Annotated[int, Field(ge=1)] | None = None
    corpus: CorpusInfo
    settings: Settings = {}
    files: dict[Annotated[str, AfterValidator(_inside)], Annotated[int, Field(ge=0)]] = {}
    hashes: dict[
        str, Annotated[str, Field(pattern=f"^({WHOLE}|{SAMPLED}):[0-9a-f]{{64}}$")]
    ] = {}
    versions: dict[str, str] = {}

    @model_validator(mode="after")
    def _every_file_is_hashed(self) -> Manifest:
        if self.hashes and self.hashes.keys() != self.files.keys():
            raise ValueError("files and hashes do not list the same files")
        return self


def file_hash(path: Path, how: str = "") -> str:
    """``sha256:`` or ``sha256-sampled:`` and 64 hex digits, over a file's content; `how` by default goes by its size.

    Files of up to 4 MiB are hashed whole. Of a larger one, its size and 16 blocks of 16 KiB are hashed, evenly spread
    from the first byte to the last: an index may have gigabytes, and opening it must not read them all. That notices
    another file, an incomplete copy, and holes; not a flipped bit between two blocks.
    """
    size = path.stat().st_size
    if (how or (WHOLE if size <= HASHED_WHOLE else SAMPLED)) == WHOLE:
        return f"{WHOLE}:{sha256_of(path)}"
    digest = hashlib.sha256(str(size).encode())
    with open(path, "rb") as file:
        for number in range(BLOCKS):
            file.seek(max(0, size - BLOCK) * number // (BLOCKS - 1))
            digest.update(file.read(BLOCK))
    return f"{SAMPLED}:{digest.hexdigest()}"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `manifest` into `folder`, listing the files that lie there; it comes last, after all of them."""
    paths = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    sizes = {name: path.stat().st_size for name, path in paths.items()}
    hashes = {name: file_hash(path) for name, path in paths.items()}
    whole = manifest.model_copy(update={"files": sizes, "hashes": hashes})
    raw = whole.model_dump(exclude=None if manifest.built_passages else {"built_passages"})
    (folder / MANIFEST).write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")


def settled(folder: AnyPath, read: Callable[[], T]) -> tuple[T, tuple[int, ...]]:
    """What `read` makes of a folder, and the folder's stamp. It reads again if another index took its place meanwhile.

    Raises as `read` does, and `BadData` for a folder that never comes to rest.
    """
    for _ in range(_TRIES):
        before = stamp(folder)
        try:
            found = read()
        except (BlendFilterError, OSError):
            if stamp(folder) == before:
                raise
        else:
            if stamp(folder) == before:
                return found, before
    raise BadData(
        f"the index at {folder} changes faster than it can be opened: try again when it is left alone"
    )


def read_manifest(folder: AnyPath) -> Manifest:
    """The manifest of an index folder, checked against its files' names and sizes; `check_content` goes on from there.

    Raises `MissingFile` where nothing is there, `BadData` where it is no index, newer than this version, or damaged.
    """
    return settled(folder, lambda: _read(path_of(folder)))[0]


def _read(where: Path) -> Manifest:
    try:
        manifest = _parse(where / MANIFEST)
    except (OSError, ValueError):  # a null character, a name that is too long
        if not os.path.exists(where):
            raise MissingFile(f"no index at {where!s:.200}: {HOW_TO_BUILD}") from None
        what = "it is a file, and an index is a folder"
        what = f"it has no {MANIFEST}" if where.is_dir() else what
        raise BadData(f"{where} is not an index ({what}): {HOW_TO_BUILD}") from None
    real = os.path.realpath(where)
    for name, size in manifest.files.items():
        path = where / name
        if not path.is_file():
            raise _damaged(where, f"{name} is missing")
        if (found := path.stat().st_size) != size:
            raise _damaged(where, f"{name} has {found} bytes where {size} were written")
        if not Path(os.path.realpath(path)).is_relative_to(real):
            raise BadData(
                f"the index at {where} is refused: {name} is a link out of it; put the file itself there"
            )
    return manifest


def _damaged(folder: AnyPath, how: str) -> BadData:
    return BadData(f"the index at {folder} is damaged: {how}; build it again")


def check_content(folder: Path, manifest: Manifest) -> None:
    """Raise `BadData` where a file's content is not what the manifest says. Files without a hash are left unread."""
    for name, stated in manifest.hashes.items():
        if file_hash(folder / name, stated.partition(":")[0]) != stated:
            raise _damaged(folder, f"{name} is not as it was written")


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
        why = first_fault(error)
    raise BadData(f"{path} is not an index's manifest: {why}; {_REMOVE}")


@contextmanager
def opening(folder: AnyPath) -> Iterator[None]:
    """Inside the block, an index's file or setting that its reader cannot make sense of is a `BadData`."""
    try:
        yield
    except UNREADABLE as error:
        # a GPU's memory, not a damaged file
        of_gpu = type(error).__name__ == "OutOfMemoryError"
        if isinstance(error, BlendFilterError) or of_gpu:
            raise
        why = " ".join(f"{type(error).__name__}: {error}".split())[:120]
        raise BadData(f"the index at {folder} is damaged ({why}); build it again") from error


@contextmanager
def building(out: AnyPath, *, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder beside `out` that becomes `out` when the block ends well, and vanishes when it does not.

    An index that stands there already is refused before any work is done, or replaced with `overwrite`, in one step and
    once the new one is on the disk.
    Raises `BadArgument` for anything there that is no index (`why_no_index`), and leaves that as it is; where such a
    thing came while the block ran, the new index stays beside it, and the message says where.
    """
    target = path_of(out)
    if target.name in ("", "..") or target.is_symlink():
        target = Path(os.path.realpath(target))  # a link stays one, and leads to the new index
    sweep(target)
    if why := _in_the_way(target):
        raise BadArgument(
            f"{target} is there already and is not an index ({why}): name another folder"
        )
    if (target / MANIFEST).exists() and not overwrite:
        raise BadArgument(
            f"there is an index at {target} already: name another folder, or overwrite it (overwrite=True)"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    folder = _sibling(target, "building")
    folder.mkdir()
    lock = _locked(folder)
    try:
        with writing(target):
            yield folder
            _put(folder, target, overwrite)
    finally:
        # what is left under this name: an unfinished index, or the one that was replaced
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _put(folder: Path, target: Path, overwrite: bool) -> None:
    """Give the new index in `folder` its place."""
    if why := _in_the_way(target):
        kept = folder.rename(target.with_name(f"{target.name}.new-{uuid.uuid4().hex[:12]}"))
        raise BadArgument(
            f"{target} is not an index any more ({why}) and stays: the new one is at {kept}"
        )
    if overwrite and target.exists():
        _sync(folder)
        if not _exchanged(folder, target):
            # a kill here: the next `sweep` restores it
            old = target.rename(_sibling(target, "old"))
            folder.rename(target)
            shutil.rmtree(old, ignore_errors=True)
        return
    try:
        folder.rename(target)
    except OSError as error:
        if not target.exists():
            raise
        raise BadArgument(
            f"another builder put an index at {target} meanwhile: name another folder"
        ) from error


@contextmanager
def updating(index: AnyPath, fingerprint: str) -> Iterator[Path]:
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


def stamp(folder: AnyPath) -> tuple[int, ...]:
    """Three numbers that change when another index takes a folder's place; none where there is no folder."""
    try:
        there = os.stat(path_of(folder))
    except (OSError, ValueError):  # ValueError: a null character in the name
        return ()
    return there.st_dev, there.st_ino, there.st_ctime_ns


def discard(folder: Path, seen: tuple[int, ...]) -> None:
    """Put a damaged folder of the cache aside in one step, for the next `building` to remove, unless another index has
    come since its `stamp` was `seen`.
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
    for path in (folder, *folder.rglob("*")):
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
    try:
        files = {MANIFEST, *_parse(folder / MANIFEST).files}
    except OSError:
        return f"it has no {MANIFEST}"
    except BadData:
        return f"its {MANIFEST} is not that of an index"
    folders = {str(parent) for name in files for parent in PurePosixPath(name).parents}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or name not in (folders if path.is_dir() else files):
            return f"{name} in it is not part of one"
    return ""


def sweep(target: Path) -> None:
    """Remove what builders of `target` left behind when they were killed; those still at work hold a lock.

    An old index that was put aside comes back where its successor never came to stand in its place.
    """
    names = rf"\.{re.escape(target.name)}\.(building|old)-[0-9a-f]{{12}}"
    for folder in sorted(target.parent.glob(".*")) if target.parent.is_dir() else ():
        left = re.fullmatch(names, folder.name)
        lock = _locked(folder) if left else None
        if left is None or lock is None:
            continue
        try:
            if left[1] == "building" or os.path.lexists(target):
                shutil.rmtree(folder, ignore_errors=True)
            elif not why_no_index(folder):
                folder.rename(target)
        finally:
            os.close(lock)


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

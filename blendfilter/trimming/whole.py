"""A file that appears whole or not at all: written beside its place, synced, renamed."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path

from blendfilter.errors import BadArgument
from blendfilter.files import check_free, put
from blendfilter.retrieval.manifest import writing


def write_whole(path: Path, pieces: Iterable[str], *, overwrite: bool = True) -> None:
    """`pieces` one after the other as UTF-8; a half character becomes an escape.

    Raises:
        BadArgument: the place is a folder, or lies in none; a file is there, without `overwrite`. OSError: the system
        refuses (a full disk).
    """
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise BadArgument(f"cannot write {path}: {why}; name a file in a folder that is there")
    check_free(path, overwrite=overwrite)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        with writing(path), open(temporary, "w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        put(temporary, path, overwrite=overwrite)
    finally:
        temporary.unlink(missing_ok=True)

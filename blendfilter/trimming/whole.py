"""A file that appears whole or not at all: written beside its place, synced, renamed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from blendfilter import files
from blendfilter.errors import BadArgument


def write_whole(path: Path, pieces: Iterable[str], *, overwrite: bool = True) -> None:
    """`pieces` one after the other as UTF-8; a half character becomes an escape.

    Raises:
        BadArgument: the place is a folder, or lies in none; a file is there, without `overwrite`. OSError: the system
        refuses (a full disk).
    """
    if path.is_dir() or not path.parent.is_dir():
        why = "it is a folder" if path.is_dir() else f"there is no folder {path.parent}"
        raise BadArgument(f"cannot write {path}: {why}; name a file in a folder that is there")
    data = (piece.encode("utf-8", "backslashreplace") for piece in pieces)
    files.write_whole(path, data, overwrite=overwrite)

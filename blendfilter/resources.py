"""Where files live: the package's own (`prompts/`, `programs/`, the sample world), and the user's cache.

In a checkout the first two lie at the top level, beside the package; in an installed wheel inside it, under `_data`.
"""

from __future__ import annotations

import os
from pathlib import Path

from blendfilter.errors import MissingFile

_PACKAGE = Path(__file__).resolve().parent


def _folder(name: str) -> Path:
    installed = _PACKAGE / "_data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def prompts() -> Path:
    """The folder of prompt templates, `<method>/<name>.j2`."""
    return _folder("prompts")


def programs() -> Path:
    """The folder of saved programs, `<task>/<name>.json`."""
    return _folder("programs")


def sample(name: str) -> Path:
    """A file of the sample world: `corpus.jsonl`, or one of questions: `questions`, `claims`, `dialogues`, `long`."""
    return _PACKAGE / "sample" / name


def cache(*parts: str) -> Path:
    """A place in the folder for what can be had again: `$BLENDFILTER_CACHE`, by default `~/.cache/blendfilter`.

    Raises: MissingFile where neither a variable nor the system says where that is, or the variable depends on the
        working directory.
    """
    try:
        if own := os.environ.get("BLENDFILTER_CACHE"):
            folder = Path(own).expanduser()  # as a shell does, but no notebook and no .env file
            if not folder.is_absolute():
                raise MissingFile(
                    f"BLENDFILTER_CACHE is '{own}': write the whole path, or one that begins with ~/"
                )
            return folder.joinpath(*parts)
        if shared := os.environ.get("XDG_CACHE_HOME"):
            return Path(shared, "blendfilter", *parts)
        return Path.home().joinpath(".cache", "blendfilter", *parts)
    except RuntimeError:
        raise MissingFile(
            "there is no home folder for a cache: name a folder in BLENDFILTER_CACHE"
        ) from None

"""Where the package's own files live: `prompts/`, `programs/` and the sample world.

In a checkout the first two lie at the top level, beside the package; in an installed wheel inside it, under `_data`.
"""

from __future__ import annotations

from pathlib import Path

from blendfilter.errors import MissingFile

_PACKAGE = Path(__file__).resolve().parent


def data_folder(name: str) -> Path:
    """The folder `prompts` or `programs`. Raises `MissingFile`: the installation is incomplete."""
    for folder in (_PACKAGE / "_data" / name, _PACKAGE.parent / name):
        if folder.is_dir():
            return folder
    raise MissingFile(f"the package's own folder '{name}' is not there: install it again")


def prompts() -> Path:
    """The folder of prompt templates, `<method>/<name>.j2`."""
    return data_folder("prompts")


def programs() -> Path:
    """The folder of saved programs, `<task>/<name>.json`."""
    return data_folder("programs")


def sample(name: str) -> Path:
    """A file of the sample world: `corpus.jsonl`, or one of questions: `questions`, `claims`, `dialogues`, `long`.

    >>> sample("corpus.jsonl").name
    'corpus.jsonl'
    """
    path = _PACKAGE / "sample" / name
    if not path.is_file():
        raise MissingFile(f"the sample world has no file '{name}'")
    return path

"""Where the package's own files live: `prompts/`, `programs/` and the sample world.

In a checkout the first two lie at the top level, beside the package; in an installed wheel inside it, under `_data`.
"""

from __future__ import annotations

from pathlib import Path

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

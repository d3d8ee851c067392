"""The package's own files are found in a checkout and in an installed wheel, and their absence is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from blendfilter import resources
from blendfilter.errors import MissingFile

ROOT = Path(__file__).parents[1]


def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package's folder as a wheel lays it out, with nothing in it yet."""
    package = folder / "site-packages" / "blendfilter"
    package.mkdir(parents=True)
    monkeypatch.setattr(resources, "_PACKAGE", package)
    return package


def test_in_a_checkout_they_lie_beside_the_package() -> None:
    assert resources.prompts() == ROOT / "prompts"
    assert resources.programs() == ROOT / "programs"
    assert resources.sample("corpus.jsonl") == ROOT / "blendfilter" / "sample" / "corpus.jsonl"


def test_in_a_wheel_they_lie_inside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = installed(tmp_path, monkeypatch)
    for name in ("prompts", "programs"):
        (package / "_data" / name).mkdir(parents=True)
    (package / "sample").mkdir()
    (package / "sample" / "questions.jsonl").touch()
    assert resources.prompts() == package / "_data" / "prompts"
    assert resources.programs() == package / "_data" / "programs"
    assert resources.sample("questions.jsonl") == package / "sample" / "questions.jsonl"


def test_a_wheels_own_come_before_what_happens_to_lie_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = installed(tmp_path, monkeypatch)
    (package.parent / "prompts").mkdir()  # another distribution's folder in site-packages
    (package / "_data" / "prompts").mkdir(parents=True)
    assert resources.prompts() == package / "_data" / "prompts"


def test_an_incomplete_installation_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(tmp_path, monkeypatch)
    with pytest.raises(MissingFile, match=r"'prompts' is not there.*install it again"):
        resources.prompts()
    with pytest.raises(MissingFile, match=r"no file 'corpus\.jsonl'"):
        resources.sample("corpus.jsonl")

"""The package's own files are found in a checkout and in an installed wheel, and their absence is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from blendfilter import resources

ROOT = Path(__file__).parents[1]


def test_in_a_checkout_they_lie_beside_the_package() -> None:
    assert resources.prompts() == ROOT / "prompts"
    assert resources.programs() == ROOT / "programs"
    assert resources.sample("corpus.jsonl") == ROOT / "blendfilter" / "sample" / "corpus.jsonl"


def test_in_a_wheel_they_lie_inside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And come before what happens to lie beside it."""
    monkeypatch.setattr(resources, "_PACKAGE", tmp_path / "blendfilter")
    for folder in ("prompts", "blendfilter/_data/prompts", "blendfilter/_data/programs"):
        (tmp_path / folder).mkdir(parents=True)
    assert resources.prompts() == tmp_path / "blendfilter" / "_data" / "prompts"
    assert resources.programs() == tmp_path / "blendfilter" / "_data" / "programs"

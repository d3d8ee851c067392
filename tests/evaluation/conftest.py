"""The sample world indexed once, a few of its questions, and DSPy as on import."""

from __future__ import annotations

import pytest

from blendfilter import BM25, load
from blendfilter.resources import sample
from blendfilter.tasks import Questions


@pytest.fixture(scope="session")
def index() -> BM25:
    return BM25.build(sample("corpus.jsonl"))


@pytest.fixture
def questions() -> Questions:
    return load("hotpotqa", "sample", limit=6)


@pytest.fixture(autouse=True)
def _fresh(fresh_dspy: None) -> None:
    """Nothing configured."""

"""What the tests of the ColBERT index share: towns to search, a random checkpoint, and an index of both, made once."""

from __future__ import annotations

from pathlib import Path

import pytest
from checkpoints import tiny_colbert

from blendfilter.records import Passage
from blendfilter.retrieval.colbert import ColBERT
from blendfilter.retrieval.colbert.encoder import ColBERTCheckpoint, TokenEncoder

PLACES = ("river", "town", "king", "island", "harbour", "castle", "sea", "hill")


@pytest.fixture(scope="session")
def towns() -> list[Passage]:
    """150 passages of 6 to 40 tokens, no two alike."""
    return [
        Passage(
            f"t{n}",
            f"Town {n}" if n % 3 else "",
            f"A {PLACES[n % 8]}, the {PLACES[n // 8 % 8]}" + f" of {n}" * (n % 5 + 1),
        )
        for n in range(150)
    ]


@pytest.fixture(scope="session")
def checkpoint() -> Path:
    return tiny_colbert()


@pytest.fixture(scope="session")
def encoder(checkpoint: Path) -> TokenEncoder:
    return TokenEncoder(ColBERTCheckpoint(checkpoint), "cpu")


@pytest.fixture(scope="session")
def index(towns: list[Passage], checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> ColBERT:
    """The towns, indexed once; nobody may write into its folder."""
    return ColBERT.build(towns, tmp_path_factory.mktemp("colbert") / "index", checkpoint=checkpoint)

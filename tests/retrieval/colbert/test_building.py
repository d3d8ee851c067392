"""A build, phase by phase: its plan, its codec, its files; over several processes; killed; on a full disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from colbert_ai import patch_colbert

from blendfilter.errors import BadArgument
from blendfilter.records import Passage
from blendfilter.retrieval.colbert import ColBERT, building
from blendfilter.retrieval.colbert.building import kmeans, trained
from blendfilter.retrieval.colbert.compat import parts
from blendfilter.retrieval.colbert.index import SearchEffort

QUERIES = ["Which river is of 17?", "the king of the island", "castle 88", "hill 5 5 5"]


def tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def small_chunks(monkeypatch: pytest.MonkeyPatch, chunk: int = 40, block: int = 16) -> None:
    monkeypatch.setattr(building, "CHUNK", chunk)
    monkeypatch.setattr(building, "BLOCK", block)


def hits(index: ColBERT, queries: Sequence[str] = QUERIES, k: int = 10) -> list[list[tuple[str, float]]]:
    return [[(hit.id, hit.score or 0.0) for hit in found] for found in index.search(queries, k)]


def test_colbert_ais_own_searcher_finds_the_same(index: ColBERT, towns: list[Passage], checkpoint: Path) -> None:
    patch_colbert()
    from colbert import Searcher
    from colbert.infra import ColBERTConfig

    assert index.path is not None
    effort = SearchEffort(ncells=1, threshold=0.5, ndocs=256)
    theirs = Searcher(
        index=index.path.name, index_root=str(index.path.parent), checkpoint=str(checkpoint),
        collection=[passage.line for passage in towns], verbose=0,
        config=ColBERTConfig(ncells=1, centroid_score_threshold=0.5, ndocs=256),
    )  # fmt: skip
    for query, ours in zip(QUERIES, hits(ColBERT.open(index.path, effort=effort)), strict=True):
        numbers, _, scores = theirs.search(query, k=10)
        assert [towns[number].id for number in numbers] == [name for name, _ in ours]
        assert scores == pytest.approx([score for _, score in ours], abs=1e-4)


def test_two_builds_are_one_index(index: ColBERT, towns: list[Passage], checkpoint: Path, tmp_path: Path) -> None:
    again = ColBERT.build(towns, tmp_path / "again", checkpoint=checkpoint)
    assert again.fingerprint == index.fingerprint
    assert index.path is not None
    assert tree(tmp_path / "again") == tree(index.path)


@pytest.mark.parametrize("change", [{"nbits": 2}, {"partitions": 16}])
def test_settings_make_another_index(
    change: dict[str, int], index: ColBERT, towns: list[Passage], checkpoint: Path
) -> None:
    other = ColBERT.build(towns, checkpoint=checkpoint, **change)  # type: ignore[arg-type]
    assert other.fingerprint != index.fingerprint
    assert other.manifest.settings[next(iter(change))] == next(iter(change.values()))


def test_many_chunks_are_one(
    index: ColBERT, towns: list[Passage], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    other = ColBERT.build(towns, tmp_path / "other", checkpoint=checkpoint)
    folder = tmp_path / "other"
    assert len(list(folder.glob("*.codes.pt"))) == 4
    assert index.path is not None
    whole, parts = tree(index.path), tree(folder)
    for name in ("ivf.pid.pt", "centroids.pt", "buckets.pt"):
        assert parts[name] == whole[name]
    for kind in ("codes", "residuals"):
        joined = torch.cat([torch.load(folder / f"{chunk}.{kind}.pt") for chunk in range(4)])
        assert torch.equal(joined, torch.load(index.path / f"0.{kind}.pt"))
    lengths = [length for chunk in range(4) for length in json.loads(parts[f"doclens.{chunk}.json"])]
    assert lengths == json.loads(whole["doclens.0.json"])
    about = [json.loads(parts[f"{chunk}.metadata.json"]) for chunk in range(4)]
    assert [each["passage_offset"] for each in about] == [0, 40, 80, 120]
    assert about[3]["embedding_offset"] + about[3]["num_embeddings"] == other.manifest.settings["vectors"]
    assert hits(other) == hits(index)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"nbits": 3}, "nbits must be 1, 2, 4 or 8"),
        ({"nbits": 8}, "nbits=8 wants vectors of a multiple of 64, not 32"),
        ({"doc_maxlen": 513}, "doc_maxlen must lie between 4 and the 512 tokens"),
        ({"partitions": 0}, "partitions is 0"),
        ({"gpus": 99}, "gpus must lie between 0 and"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], expected: str, checkpoint: Path, tmp_path: Path) -> None:
    def never() -> Any:
        raise AssertionError("the corpus was read")
        yield

    with pytest.raises(BadArgument, match=expected):
        ColBERT.build(never(), tmp_path / "index", checkpoint=checkpoint, **settings)
    assert not list(tmp_path.iterdir())


CPU = torch.device("cpu")


def unit(rows: int, dim: int = 32, seed: int = 0) -> torch.Tensor:
    """Unit vectors in eight loose clusters."""
    chance = torch.Generator().manual_seed(seed)
    centres = torch.randn(8, dim, generator=chance)
    noise = torch.randn(rows, dim, generator=chance)
    return torch.nn.functional.normalize(centres[torch.arange(rows) % 8] + 0.4 * noise, dim=1)


def test_a_worked_example() -> None:
    """Two bundles, symmetric about (1, 0) and (0, 1): (0.96, 0.28) + (0.96, -0.28) = (1.92, 0), so their centroids are
    the axes. Where both start in the first bundle, the second one draws (0.96, 0.28) along at first:
    (0.96, 0.28) + (0.28, 0.96) + (-0.28, 0.96) = (0.96, 2.2), of length one (0.40, 0.92); at the next round it is
    nearer to (0.96, -0.28), by 0.84 to 0.64, and goes back."""
    vectors = torch.tensor([[0.96, 0.28], [0.96, -0.28], [0.28, 0.96], [-0.28, 0.96]])
    centroids = kmeans(vectors, 2, CPU)
    ordered = centroids[centroids[:, 0].argsort(descending=True)]
    assert torch.allclose(ordered, torch.tensor([[1.0, 0.0], [0.0, 1.0]]), atol=1e-6)


def test_a_centroid_that_lost_its_vectors_gets_one() -> None:
    vectors = torch.cat([torch.tensor([[1.0, 0.0]]).repeat(50, 1), torch.tensor([[0.0, 1.0]])])
    centroids = kmeans(vectors, 5, CPU)  # of equal centroids, one takes all
    assert torch.isfinite(centroids).all()
    assert torch.allclose(centroids.norm(dim=1), torch.ones(5))


def test_more_bits_lose_less() -> None:
    vectors = unit(2_000)
    losses = []
    for nbits in (1, 2, 4):
        made = trained(vectors, 16, parts().config(dim=32, nbits=nbits), CPU)
        small = made.compress(vectors)
        assert small.residuals.shape == (2_000, 32 * nbits // 8)
        losses.append(1 - (made.decompress(small) * vectors).sum(1).mean().item())
    assert losses == sorted(losses, reverse=True)
    assert losses[0] < 0.1
    assert losses[1] < 0.03
    assert losses[2] < 0.003

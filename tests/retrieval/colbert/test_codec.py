"""Centroids and residuals: k-means as it should run, and what compression loses."""

from __future__ import annotations

import pytest
import torch

from blendfilter.retrieval.colbert import building
from blendfilter.retrieval.colbert.building import kmeans, nearest, trained
from blendfilter.retrieval.colbert.compat import parts

CPU = torch.device("cpu")


def unit(rows: int, dim: int = 32, seed: int = 0) -> torch.Tensor:
    """Unit vectors in eight loose clusters."""
    chance = torch.Generator().manual_seed(seed)
    centres = torch.randn(8, dim, generator=chance)
    noise = torch.randn(rows, dim, generator=chance)
    return torch.nn.functional.normalize(centres[torch.arange(rows) % 8] + 0.4 * noise, dim=1)


def objective(vectors: torch.Tensor, centroids: torch.Tensor) -> float:
    """The mean similarity of vectors and their centroids, which spherical k-means raises."""
    return (vectors @ centroids.T).max(1).values.mean().item()


def test_a_worked_example() -> None:
    """Two bundles, symmetric about (1, 0) and (0, 1): (0.96, 0.28) + (0.96, -0.28) = (1.92, 0), so their centroids are
    the axes. Where both start in the first bundle, the second one draws (0.96, 0.28) along at first:
    (0.96, 0.28) + (0.28, 0.96) + (-0.28, 0.96) = (0.96, 2.2), of length one (0.40, 0.92); at the next round it is
    nearer to (0.96, -0.28), by 0.84 to 0.64, and goes back."""
    vectors = torch.tensor([[0.96, 0.28], [0.96, -0.28], [0.28, 0.96], [-0.28, 0.96]])
    centroids = kmeans(vectors, 2, 4, CPU)
    ordered = centroids[centroids[:, 0].argsort(descending=True)]
    assert torch.allclose(ordered, torch.tensor([[1.0, 0.0], [0.0, 1.0]]), atol=1e-6)


def test_rounds_do_not_make_it_worse() -> None:
    vectors = unit(2_000)
    values = [objective(vectors, kmeans(vectors, 16, rounds, CPU)) for rounds in range(6)]
    assert values == sorted(values)
    assert values[-1] > values[0] + 0.02


def test_the_same_every_time_and_each_of_length_one() -> None:
    vectors = unit(500).half()
    one, other = kmeans(vectors, 32, 4, CPU), kmeans(vectors, 32, 4, CPU)
    assert torch.equal(one, other)
    assert one.dtype == torch.float32
    assert torch.allclose(one.norm(dim=1), torch.ones(32), atol=1e-5)


def test_a_centroid_that_lost_its_vectors_gets_one() -> None:
    vectors = torch.cat([torch.tensor([[1.0, 0.0]]).repeat(50, 1), torch.tensor([[0.0, 1.0]])])
    centroids = kmeans(vectors, 5, 3, CPU)  # of equal centroids, one takes all
    assert torch.isfinite(centroids).all()
    assert torch.allclose(centroids.norm(dim=1), torch.ones(5))


def test_progress_of_rounds() -> None:
    told: list[object] = []
    kmeans(unit(50), 4, 3, CPU, lambda *row: told.append(row))
    assert told == [(building.CLUSTERING, done, 3) for done in (1, 2, 3)]


def test_nearest_in_blocks_is_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors, centroids = unit(333), unit(40, seed=1)
    whole = (vectors @ centroids.T).argmax(1)
    monkeypatch.setattr(building, "BLOCK", 7 * 40)
    assert torch.equal(nearest(vectors, centroids), whole)
    monkeypatch.setattr(building, "BLOCK", 1)
    assert torch.equal(nearest(vectors.half(), centroids), (vectors.half().float() @ centroids.T).argmax(1))


def test_more_bits_lose_less() -> None:
    vectors = unit(2_000)
    losses = []
    for nbits in (1, 2, 4):
        made = trained(vectors, count=16, rounds=4, config=parts().config(dim=32, nbits=nbits), device=CPU)
        small = made.compress(vectors)
        assert small.residuals.shape == (2_000, 32 * nbits // 8)
        losses.append(1 - (made.decompress(small) * vectors).sum(1).mean().item())
    assert losses == sorted(losses, reverse=True)
    assert losses[0] < 0.1
    assert losses[1] < 0.03
    assert losses[2] < 0.003


def test_buckets_are_equally_full() -> None:
    vectors = unit(4_000)
    made = trained(vectors, count=16, rounds=4, config=parts().config(dim=32, nbits=2), device=CPU)
    residuals = vectors - made.centroids[nearest(vectors, made.centroids)]
    shares = torch.bucketize(residuals, made.bucket_cutoffs).flatten().bincount(minlength=4) / residuals.numel()
    assert (shares - 0.25).abs().max() < 0.02
    assert made.bucket_weights[0] < made.bucket_cutoffs[0] < made.bucket_weights[1]


def test_more_centroids_than_vectors_and_one_vector() -> None:
    config = parts().config(dim=32, nbits=4)
    assert len(trained(unit(10), count=64, rounds=2, config=config, device=CPU).centroids) == 10
    one = trained(unit(1), count=1, rounds=2, config=config, device=CPU)
    assert torch.allclose(one.decompress(one.compress(unit(1))), unit(1), atol=1e-3)


def test_wide_vectors_do_not_overflow_torchs_quantile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "MOST_QUANTILE", 64)
    asked: list[int] = []
    plain = torch.Tensor.quantile

    def quantile(self: torch.Tensor, *arguments: object) -> torch.Tensor:
        asked.append(self.numel())
        return plain(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(torch.Tensor, "quantile", quantile)
    trained(unit(1_000), count=8, rounds=1, config=parts().config(dim=32, nbits=2), device=CPU)
    assert asked == [64, 64]

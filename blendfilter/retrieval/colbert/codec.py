"""Token vectors as a centroid and a residual of a few bits each (ColBERTv2, section 3.3; PLAID, section 3.1).

In: a sample of vectors. Out: a `Codec` (colbert-ai's, so its files and its scorer go with it), and compressed vectors.

Differs from colbert-ai: centroids are trained in torch, on the device at hand, by spherical k-means (faiss trains on
the CPU wherever `faiss-cpu` is installed); blocks are small, so that compressing takes megabytes and not gigabytes.
"""

from __future__ import annotations

from typing import Any

import torch

from blendfilter.retrieval.colbert.compat import parts
from blendfilter.retrieval.progress import Progress, silent

CLUSTERING = "training centroids"
BLOCK = 1 << 25
"""Scores held at a time while vectors look for their centroid: 128 MB of float32."""
HELD_OUT, MOST_HELD_OUT = 0.05, 50_000
MOST_QUANTILE = 1 << 24
"""Numbers that torch takes a quantile of; vectors of more than 335 dimensions would bring more."""
SEED = 12345


def nearest(vectors: Any, centroids: Any) -> Any:
    """The position of the centroid with the highest inner product, for each of `vectors` (n, dim)."""
    step = max(1, BLOCK // len(centroids))
    return torch.cat([(part.to(centroids.dtype) @ centroids.T).argmax(1) for part in vectors.split(step)])


def kmeans(vectors: Any, count: int, rounds: int, device: Any, progress: Progress = silent) -> Any:
    """`count` unit centroids (count, dim) of unit `vectors` (n, dim), by `rounds` of spherical k-means.

    Starts from vectors drawn at random; a centroid that loses all its vectors gets one drawn anew. `count` must not be
    above n. Float32 on `device`; the same on every run on one machine.
    """
    chance = torch.Generator().manual_seed(SEED)
    centroids = vectors[torch.randperm(len(vectors), generator=chance)[:count]].to(device).float()
    for done in range(rounds):
        sums = torch.zeros_like(centroids)
        counts = torch.zeros(count, device=device)
        for part in vectors.split(1 << 18):
            there = part.to(device).float()
            codes = nearest(there, centroids)
            sums.index_add_(0, codes, there)
            counts.index_add_(0, codes, torch.ones_like(codes, dtype=torch.float32))
        empty = counts == 0
        drawn = torch.randint(len(vectors), (int(empty.sum()),), generator=chance)
        sums[empty] = vectors[drawn].to(device).float()
        centroids = torch.nn.functional.normalize(sums, dim=1)
        progress(CLUSTERING, done + 1, rounds)
    return centroids


def codec_class() -> Any:
    """colbert-ai's `ResidualCodec`, looking for centroids in small blocks."""

    class Codec(parts().codec):  # type: ignore[misc]  # colbert-ai ships no types
        def compress_into_codes(self, embs: Any, out_device: Any) -> Any:
            return nearest(embs.to(self.centroids.device), self.centroids).to(out_device)

    return Codec


def trained(sample: Any, *, count: int, rounds: int, config: Any, device: Any, progress: Progress = silent) -> Any:
    """A codec for vectors like `sample` (n, dim): centroids, and the residuals' buckets as quantiles of held-out ones.

    Every 2^nbits-th part of the residuals falls into one bucket, and is rebuilt as its median (ColBERTv2, 3.3).
    """
    order = torch.randperm(len(sample), generator=torch.Generator().manual_seed(SEED))
    most = min(MOST_HELD_OUT, MOST_QUANTILE // sample.shape[1])
    held = sample[order[: min(max(1, int(HELD_OUT * len(sample))), most)]]
    centroids = kmeans(sample, min(count, len(sample)), rounds, device, progress)
    residuals = (held.to(device).float() - centroids[nearest(held.to(device).float(), centroids)]).cpu()
    buckets = 2**config.nbits
    steps = torch.arange(buckets) / buckets
    cutoffs, weights = residuals.quantile(steps[1:]), residuals.quantile(steps + 0.5 / buckets)
    return codec_class()(
        config=config,
        centroids=centroids,
        avg_residual=residuals.abs().mean(),
        bucket_cutoffs=cutoffs,
        bucket_weights=weights,
    )

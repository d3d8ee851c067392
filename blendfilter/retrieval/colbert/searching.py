"""PLAID's search (Santhanam et al. 2022, section 4): centroids near the query's tokens name candidates, two rounds of
approximate scores thin them out, the rest are rebuilt and scored in full.

In: a query's vectors. Out: passages' positions and scores, best first.

Differs from colbert-ai: candidates are sought for every token of the query, where it takes the first 32; equal scores
keep corpus order; and the effort is set for each search by k and the size of the index, where it keeps what the first
search set.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from blendfilter.errors import BadArgument
from blendfilter.retrieval.colbert.building import on_device, reading
from blendfilter.retrieval.colbert.compat import load_kernels, parts
from blendfilter.retrieval.colbert.plan import SMALL


class Effort(NamedTuple):
    """How hard a search looks; more of each finds more of what exhaustive scoring finds, and takes longer."""

    ncells: int
    """Centroids whose passages are candidates, for each token."""
    threshold: float
    """Centroids scoring below it for every token are left out of the first approximate score."""
    ndocs: int
    """Candidates kept by the first approximate score; a quarter of them is scored in full."""


def effort_for(k: int, passages: int) -> Effort:
    """The default for `k` hits among `passages`: PLAID's own settings, and twice the work where that costs little.

    >>> effort_for(5, 2_000)
    Effort(ncells=2, threshold=0.4, ndocs=1024)
    >>> effort_for(10, 5_000_000)
    Effort(ncells=1, threshold=0.5, ndocs=256)
    """
    if passages <= SMALL:
        own = Effort(2, 0.4, 1024)
    elif k <= 10:
        own = Effort(1, 0.5, 256)
    elif k <= 100:
        own = Effort(2, 0.45, 1024)
    else:
        own = Effort(4, 0.4, 4096)
    return own._replace(ndocs=max(own.ndocs, 4 * k))


def check_effort(effort: Effort) -> Effort:
    """`effort` where it can be searched with. Raises `BadArgument`."""
    if effort.ncells < 1 or effort.ndocs < 4:
        raise BadArgument(f"a search wants ncells of at least 1 and ndocs of at least 4, got {effort}")
    return effort


class Scorer:
    """The index's vectors in memory, and colbert-ai's scorer over them."""

    def __init__(self, folder: Path, device: Any) -> None:
        self.device = device
        gpu = device.type == "cuda"
        if not gpu:
            load_kernels()
        with on_device(device), reading(folder):
            self._scorer = parts().scorer(str(folder), use_gpu=gpu)

    def best(self, vectors: Any, k: int, effort: Effort) -> list[tuple[int, float]]:
        """Positions and scores of the `k` best passages for one query's vectors (tokens, dim), or of fewer."""
        settings = SimpleNamespace(
            query_maxlen=len(vectors),  # of which candidates are sought
            ncells=min(effort.ncells, len(self._scorer.codec.centroids)),
            centroid_score_threshold=effort.threshold,
            ndocs=max(effort.ndocs, 4 * k),
            interaction="colbert",
            total_visible_gpus=int(self.device.type == "cuda"),
        )
        positions, scores = self._scorer.rank(settings, vectors.unsqueeze(0))
        ranked = sorted(zip(positions, scores, strict=True), key=lambda hit: (-hit[1], hit[0]))
        return ranked[:k]

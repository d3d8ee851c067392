"""The best k of many scores, the same on every machine: ties go to the passage that comes first in the corpus.

In: an array of scores, one a passage. Out: positions, best first. Only positive scores count as matches.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Scores = NDArray[np.float64]

_GROUP = 64
_GRAIN = 2.0**30  # scores within one part in 10^9 are one score: two sums of the same terms may differ in the last bits


def best(scores: Scores, k: int) -> list[int]:
    """Positions of the `k` highest positive scores; fewer where fewer are positive. Equal scores: corpus order.

    Partial selection alone would pick any of those tied at the k-th place, so everything level with it is sorted.

    >>> best(np.array([1.0, 3.0, 0.0, 3.0, 1.0]), 3)
    [1, 3, 0]
    """
    matching = np.flatnonzero(scores >= floor) if (floor := _floor(scores, k)) > 0 else np.flatnonzero(scores > 0)
    found = scores[matching]
    if len(found) > k:
        near = found >= _just_below(np.partition(found, -k)[-k])
        matching, found = matching[near], found[near]
    order = np.argsort(-coarse(found), kind="stable")[:k]
    return [int(position) for position in matching[order]]


def _floor(scores: Scores, k: int) -> float:
    """A score that at least `k` passages reach, found without sorting: the k-th highest of many groups' maxima.

    0 where there are too few passages for that to pay.
    """
    groups = len(scores) // _GROUP
    if groups < 2 * k:
        return 0.0
    maxima = scores[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
    return _just_below(np.partition(maxima, -k)[-k])


def _just_below(score: np.float64) -> float:
    return float(score * (1 - 4 / _GRAIN))


def coarse(scores: Scores) -> Scores:
    """Scores cut to nine significant digits (30 bits), so that rounding noise orders nothing."""
    mantissa, exponent = np.frexp(scores)
    coarsened: Any = np.ldexp(np.round(mantissa * _GRAIN) / _GRAIN, exponent)
    return np.asarray(coarsened, dtype=np.float64)

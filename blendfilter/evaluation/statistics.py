"""How sure a number is: bootstrap intervals, paired tests over the same questions, and what a sample could show.

In: one score per question (0/1, or a fraction such as F1), as a sequence. Out: named tuples of plain floats.
In a pair, `a` is the baseline and `b` what is held against it; every difference is **b - a**, a gain where positive.

Sources: Efron, "Bootstrap Methods: Another Look at the Jackknife" (1979), percentile interval; McNemar, "Note on the
Sampling Error of the Difference between Correlated Proportions" (1947), in its exact binomial form; Holm, "A Simple
Sequentially Rejective Multiple Test Procedure" (1979).

The same scores and seed give the same figures in every run: resampled positions are read off the raw words of PCG64,
whose stream NumPy guarantees across versions (that of `Generator.integers` it does not). Only the order in which a
processor adds fractions may move the last bits, so round (6 decimals) wherever a figure is stored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from blendfilter.errors import BadArgument

RESAMPLES = 10_000
_WORDS_AT_ONCE = 1 << 20
"""Positions drawn in one go: bounds the memory (about 25 MB) and never changes a result."""


class Interval(NamedTuple):
    """A mean with the ends of its interval, in the unit of the values."""

    value: float
    low: float
    high: float


class PairedTest(NamedTuple):
    """The mean of b - a, its interval, and the two-sided p of "no difference"."""

    difference: float
    low: float
    high: float
    p: float


class McNemar(NamedTuple):
    """How many questions only one side answers right, and the two-sided p of "either is as likely"."""

    only_a: int
    only_b: int
    p: float


def bootstrap_interval(
    values: Sequence[float], *, seed: int, resamples: int = RESAMPLES, level: float = 0.95
) -> Interval:
    """The mean of `values` and its percentile bootstrap interval.

    Raises `BadArgument` for no values, a value that is not a finite number, `resamples` < 1, `level` outside (0, 1).

    >>> bootstrap_interval([1, 1, 1], seed=0)
    Interval(value=1.0, low=1.0, high=1.0)
    """
    scores = _scores(values)
    means = _resampled_means(scores, seed, resamples)
    return Interval(float(scores.mean()), *_ends(means, level))


def paired_bootstrap(
    a: Sequence[float], b: Sequence[float], *, seed: int, resamples: int = RESAMPLES, level: float = 0.95
) -> PairedTest:
    """The mean of b - a over the same questions, with its percentile interval and a two-sided p.

    p asks how often a bootstrap mean lies as far from the observed difference as that lies from 0:
    ``(1 + count) / (1 + resamples)``, so never 0. A bootstrap of a few questions knows no spread beyond them; as in any
    sign-flip test p is therefore never below ``2 / 2**m`` for m questions on which the two differ.

    Raises `BadArgument` as `bootstrap_interval` does, and for sequences of unequal length.

    >>> paired_bootstrap([0.5, 1, 0, 0], [0.5, 1, 1, 0], seed=0).p  # one question differs: no evidence
    1.0
    """
    differences = _paired(_scores(a), _scores(b))
    means = _resampled_means(differences, seed, resamples)
    observed = float(differences.mean())
    as_far = int(np.count_nonzero(np.abs(means - observed) >= abs(observed) - 1e-12))
    floor = 2.0 ** (1 - int(np.count_nonzero(differences)))
    p = min(1.0, max(floor, (1 + as_far) / (1 + resamples)))
    return PairedTest(observed, *_ends(means, level), p)


def mcnemar_exact(a: Sequence[float], b: Sequence[float]) -> McNemar:
    """The exact McNemar test on two runs' outcomes, each 0 or 1 (or a bool), over the same questions.

    Raises `BadArgument` for outcomes that are neither 0 nor 1, none at all, or sequences of unequal length.

    >>> mcnemar_exact([1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1])  # 2 / 2**6
    McNemar(only_a=0, only_b=6, p=0.03125)
    """
    differences = _paired(_outcomes(a), _outcomes(b))
    only_a, only_b = int(np.count_nonzero(differences < 0)), int(np.count_nonzero(differences > 0))
    return McNemar(only_a, only_b, mcnemar_p(only_a, only_b))


def mcnemar_p(only_a: int, only_b: int) -> float:
    """Two-sided exact p for these counts: ``min(1, 2 P[X <= min(only_a, only_b)])``, X ~ Binomial(their sum, 1/2).

    >>> mcnemar_p(1, 9)  # 2 * (1 + 10) / 2**10
    0.021484375
    """
    pairs, fewer = only_a + only_b, min(only_a, only_b)
    term = tail = 1  # C(pairs, 0) and the sum of C(pairs, 0..k): whole numbers, so nothing is lost at any size
    for k in range(fewer):
        term = term * (pairs - k) // (k + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << pairs))


def smallest_difference(discordant: int, n: int, *, alpha: float = 0.05) -> float | None:
    """The smallest difference in accuracy that exact McNemar calls significant (p < `alpha`), as a fraction of 1.

    `discordant` is the number of the `n` questions that exactly one of two runs answers right. They split into s and
    discordant - s; with s the largest count for which ``mcnemar_p(s, discordant - s) < alpha``, the answer is
    ``(discordant - 2 s) / n``. None where even s = 0 is not enough (at .05: fewer than 6 discordant questions).

    Raises `BadArgument` unless 0 <= discordant <= n and 0 < alpha < 1.

    >>> smallest_difference(10, 500)  # 1 against 9 is p = .021, 2 against 8 is p = .109
    0.016
    """
    if not 0 <= discordant <= n or n < 1:
        raise BadArgument(f"{discordant} discordant questions among {n}: give 0 <= discordant <= n, n at least 1")
    _inside("alpha", alpha)
    significant = bisect_left(range(discordant // 2 + 1), alpha, key=lambda s: mcnemar_p(s, discordant - s))
    return (discordant - 2 * (significant - 1)) / n if significant else None


def holm(p_values: Sequence[float]) -> list[float]:
    """`p_values` adjusted for being several, in their own order: the i-th smallest of m (from 0) times m - i, never
    below the one before it nor above 1.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    adjusted, reached = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        reached = max(reached, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = reached
    return adjusted


def _scores(values: Sequence[float]) -> NDArray[np.float64]:
    scores = np.asarray(values, dtype=np.float64)
    if scores.ndim != 1 or scores.size == 0:
        raise BadArgument("no scores to draw from: give one number per question, for at least one question")
    if not np.isfinite(scores).all():
        place = int(np.flatnonzero(~np.isfinite(scores))[0])
        raise BadArgument(
            f"score {place} is {scores[place]}: every question needs a finite number (an error counts as 0)"
        )
    return scores


def _outcomes(values: Sequence[float]) -> NDArray[np.float64]:
    outcomes = _scores(values)
    other = outcomes[(outcomes != 0) & (outcomes != 1)]
    if other.size:
        raise BadArgument(
            f"McNemar's test takes outcomes of 0 or 1, not {other[0]:g}; use paired_bootstrap for fractions"
        )
    return outcomes


def _paired(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    if a.size != b.size:
        raise BadArgument(f"a paired test needs the same questions on both sides, not {a.size} and {b.size}")
    return b - a


def _inside(name: str, share: float) -> None:
    if not 0 < share < 1:
        raise BadArgument(f"{name} is {share}: give a share between 0 and 1, such as 0.05 or 0.95")


def _ends(means: NDArray[np.float64], level: float) -> tuple[float, float]:
    _inside("level", level)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _resampled_means(scores: NDArray[np.float64], seed: int, resamples: int) -> NDArray[np.float64]:
    """`resamples` means of as many scores, drawn with replacement."""
    if resamples < 1:
        raise BadArgument(f"resamples is {resamples}: give at least 1 ({RESAMPLES} is usual)")
    if seed < 0:
        raise BadArgument(f"seed is {seed}: give 0 or a positive whole number")
    return np.concatenate([scores[places].mean(axis=1) for places in _drawn_places(scores.size, seed, resamples)])


def _drawn_places(n: int, seed: int, resamples: int) -> Iterator[NDArray[np.int64]]:
    """Positions 0..n-1 in blocks of rows, a row a resample: the high 32 bits of a word, scaled to n."""
    bits = np.random.PCG64(seed)
    at_once = max(1, _WORDS_AT_ONCE // n)
    for done in range(0, resamples, at_once):
        rows = min(at_once, resamples - done)
        words = bits.random_raw(rows * n).reshape(rows, n)
        yield ((words >> np.uint64(32)) * np.uint64(n) >> np.uint64(32)).astype(np.int64)

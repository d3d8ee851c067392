"""How sure a number is: intervals, paired tests over the same questions, and what a sample could show.

In: one score per question (0/1, or a fraction such as F1), as a sequence; or, where every question was answered several
times, a sequence of its scores per question. Out: named tuples of plain floats. In a pair, `a` is the baseline and `b`
what is held against it; every difference is **b - a**, a gain where positive.

Sources: Efron, "Bootstrap Methods: Another Look at the Jackknife" (1979), percentile interval; Wilson, "Probable
Inference, the Law of Succession, and Statistical Inference" (1927), the score interval of a share; Davison and Hinkley,
"Bootstrap Methods and their Application" (1997), section 3.8, two levels; McNemar, "Note on the Sampling Error of the
Difference between Correlated Proportions" (1947), in its exact binomial form; Holm, "A Simple Sequentially Rejective
Multiple Test Procedure" (1979). `power.py` has what a sample could show, `resampling.py` the resampling.

Differs from the sources: where all scores are alike a bootstrap sees no spread and its interval would have no width;
the ends then move out as far as Wilson's do at 0 or n of n, ``z^2 / (n + z^2)``, which is about 4 / n, and twice as far
where all differences are 1 or all -1, for those not seen may lie at the other end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from blendfilter.errors import BadArgument
from blendfilter.evaluation.power import inside, mcnemar_p
from blendfilter.evaluation.resampling import RESAMPLES, paired_means, resampled_means

Scores = Sequence[float] | Sequence[Sequence[float]]
"""One number a question, or one list of numbers a question, as many for each: a number an answer."""


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


def interval(values: Scores, *, seed: int, resamples: int = RESAMPLES, level: float = 0.95) -> Interval:
    """The mean and its interval: Wilson's where each score is 0 or 1 (one a question), else the percentile bootstrap.

    A resampled share is too narrow where few questions are right, or few wrong; Wilson's interval is not, at any n, and
    from a few hundred questions on the two are one.

    >>> interval([1, 0, 1, 1], seed=0) == wilson_interval(3, 4)
    True
    """
    scores = _scores(values)
    if scores.ndim == 1 and bool(np.isin(scores, (0, 1)).all()):
        return wilson_interval(int(scores.sum()), scores.size, level=level)
    return bootstrap_interval(values, seed=seed, resamples=resamples, level=level)


def wilson_interval(right: int, n: int, *, level: float = 0.95) -> Interval:
    """Wilson's score interval of `right` of `n`.

    Raises `BadArgument` unless 0 <= right <= n and n is at least 1.

    >>> [round(end, 3) for end in wilson_interval(0, 20)]
    [0.0, 0.0, 0.161]
    """
    if not 0 <= right <= n or n < 1:
        raise BadArgument(f"{right} right of {n}: give 0 <= right <= n, n at least 1")
    z, share = _z(level), right / n
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    # At 0 and at n of n an end is the share itself; rounding must not carry it past.
    return Interval(share, max(0.0, middle - half) if right else 0.0, min(1.0, middle + half) if right < n else 1.0)


def bootstrap_interval(values: Scores, *, seed: int, resamples: int = RESAMPLES, level: float = 0.95) -> Interval:
    """The mean of `values` and its percentile bootstrap interval; of two levels where questions have several scores.

    Two levels: questions are drawn, then for each drawn question as many of its scores as it has. Drawing the scores
    too takes in what another sitting would bring. It counts the spread within questions once more, by 1 - 1/R of it:
    on that account the interval is not too narrow, and it is too wide where most of the spread lies there. With few
    questions, and a mean near 0 or 1, it is too narrow as any percentile interval is.

    Raises `BadArgument` for no values, a value that is not a finite number, questions with unequal numbers of scores,
    `resamples` < 1, `level` outside (0, 1).

    >>> bootstrap_interval([0.5, 0.25, 0.5, 0.75], seed=0)
    Interval(value=0.5, low=0.3125, high=0.6875)
    """
    scores = _scores(values)
    means = resampled_means(scores, seed, resamples)
    return Interval(float(scores.mean()), *_ends(means, scores, level, (0.0, 1.0)))


def paired_bootstrap(a: Scores, b: Scores, *, seed: int, resamples: int = RESAMPLES, level: float = 0.95) -> PairedTest:
    """The mean of b - a over the same questions, with its percentile interval and a two-sided p.

    p asks how often a bootstrap mean lies as far from the observed difference as that lies from 0:
    ``(1 + count) / (1 + resamples)``, so never 0. A bootstrap of a few questions knows no spread beyond them; as in any
    sign-flip test p is therefore never below ``2 / 2**m`` for m questions on which the two differ. Where a side has
    several scores a question, the same questions are drawn for both and each side's scores within them apart.

    Raises `BadArgument` as `bootstrap_interval` does, and for sequences of unequal length.

    >>> paired_bootstrap([0.5, 1, 0, 0], [0.5, 1, 1, 0], seed=0).p  # one question differs: no evidence
    1.0
    """
    before, after = _scores(a), _scores(b)
    differences = _paired(_each(before), _each(after))
    means = paired_means(before, after, seed, resamples)
    observed = float(differences.mean())
    as_far = int(np.count_nonzero(np.abs(means - observed) >= abs(observed) - 1e-12))
    floor = 2.0 ** (1 - int(np.count_nonzero(differences)))
    p = min(1.0, max(floor, (1 + as_far) / (1 + resamples)))
    return PairedTest(observed, *_ends(means, differences, level, (-1.0, 1.0)), p)


def mcnemar_exact(a: Sequence[float], b: Sequence[float]) -> McNemar:
    """The exact McNemar test on two runs' outcomes, each 0 or 1 (or a bool), over the same questions.

    Raises `BadArgument` for outcomes that are neither 0 nor 1, none at all, or sequences of unequal length.

    >>> mcnemar_exact([1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1])  # 2 / 2**6
    McNemar(only_a=0, only_b=6, p=0.03125)
    """
    differences = _paired(_outcomes(a), _outcomes(b))
    only_a, only_b = int(np.count_nonzero(differences < 0)), int(np.count_nonzero(differences > 0))
    return McNemar(only_a, only_b, mcnemar_p(only_a, only_b))


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


def _scores(values: Scores) -> NDArray[np.float64]:
    """Questions, or questions x answers."""
    try:
        scores = np.asarray(values, dtype=np.float64)
    except ValueError as error:
        raise BadArgument("the questions have unequal numbers of scores: give as many for each") from error
    if scores.ndim == 2 and scores.shape[1] == 1:
        scores = scores[:, 0]
    if scores.ndim not in (1, 2) or scores.size == 0:
        raise BadArgument("no scores to draw from: give one number per question, for at least one question")
    if not np.isfinite(scores).all():
        place = int(np.argwhere(~np.isfinite(scores))[0, 0])
        found = scores[place][~np.isfinite(scores[place])][0] if scores.ndim == 2 else scores[place]
        raise BadArgument(f"score {place} is {found}: every question needs a finite number (an error counts as 0)")
    return scores


def _each(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """One number a question: the mean of its answers."""
    return scores if scores.ndim == 1 else scores.mean(axis=1)


def _outcomes(values: Sequence[float]) -> NDArray[np.float64]:
    outcomes = _scores(values)
    other = outcomes[(outcomes != 0) & (outcomes != 1)]
    if other.size or outcomes.ndim != 1:
        what = f"{other[0]:g}" if other.size else "several a question"
        raise BadArgument(f"McNemar's test takes outcomes of 0 or 1, not {what}; use paired_bootstrap for others")
    return outcomes


def _paired(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    if a.size != b.size:
        raise BadArgument(f"a paired test needs the same questions on both sides, not {a.size} and {b.size}")
    return b - a


def _ends(
    means: NDArray[np.float64], scores: NDArray[np.float64], level: float, bounds: tuple[float, float]
) -> tuple[float, float]:
    """The interval's ends, of the resampled means; where `scores` are all alike, as far out as Wilson's would be."""
    inside("level", level)
    low, high = (float(end) for end in np.quantile(means, [(1 - level) / 2, (1 + level) / 2]))
    if np.ptp(scores) > 0:
        return low, high
    z, n, (least, most) = _z(level), len(scores), bounds
    out = z * z / (n + z * z)  # the share of values unlike these that may have gone unseen
    return max(least, low - out * max(1.0, low - least)), min(most, high + out * max(1.0, most - high))


def _z(level: float) -> float:
    inside("level", level)
    return NormalDist().inv_cdf((1 + level) / 2)

"""How sure a number is: intervals, paired tests over the same questions, resampling, and what a sample could show.

Scores are one number a question (0/1, or a fraction such as F1), or, where every question was answered several times, a
sequence of numbers a question. In a pair, `a` is the baseline and `b` the run compared with it; every difference is
**b - a**, a gain where positive. A question is *discordant* where exactly one of two runs answers it right.

Sources: Efron, "Bootstrap Methods: Another Look at the Jackknife" (1979), percentile interval; Wilson, "Probable
Inference, the Law of Succession, and Statistical Inference" (1927), the score interval of a share; Davison and Hinkley,
"Bootstrap Methods and their Application" (1997), section 3.8, two levels; McNemar, "Note on the Sampling Error of the
Difference between Correlated Proportions" (1947), in its exact binomial form; Holm, "A Simple Sequentially Rejective
Multiple Test Procedure" (1979); Connor, "Sample Size for Testing Differences in Proportions for the Paired-Sample
Design" (1987), after Miettinen (1968), solved for the difference; Bonett and Price, "Adjusted Wald Confidence Interval
for a Difference of Binomial Proportions Based on Paired Data" (2012), for a margin; Newcombe, "Interval Estimation for
the Difference between Independent Proportions: Comparison of Eleven Methods" (1998), method 11, and Schuirmann, "A
Comparison of the Two One-Sided Tests Procedure and the Power Approach" (1987), for a published score.

Differs from the sources: where all scores are alike a bootstrap sees no spread and its interval would have no width;
the ends then move out as far as Wilson's do at 0 or n of n, ``z^2 / (n + z^2)``, which is about 4 / n, and twice as far
where all differences are 1 or all -1, for those not seen may lie at the other end. Bonett and Price's bound is used for
fractions too, and so is Newcombe's interval: a mean of scores between 0 and 1 varies no more than such a share.

The same scores and seed give the same figures in every run: positions are read off the raw words of PCG64, whose stream
NumPy guarantees across versions (that of `Generator.integers` it does not). The same seed draws the same questions for
every measure and run of that size; answers are drawn from streams of their own. Only the order in which a processor
adds fractions may move the last bits, so round (6 decimals) wherever a figure is stored.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from blendfilter.errors import BadArgument, check_count

RESAMPLES = 10_000
LEVEL = 0.95
ALPHA = 0.05
"""A p-value below it is significant."""
_Z = NormalDist().inv_cdf((1 + LEVEL) / 2)
_Z_ONE_SIDED = NormalDist().inv_cdf(1 - ALPHA)
"""Two tests at 5 % a side: an interval of 90 %."""
_T_ONE_SIDED = (6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812)
"""Student's t likewise, for 1 to 10 degrees of freedom; the last for more."""
_WORDS_AT_ONCE = 1 << 20
"""Positions drawn in one go: bounds the memory (about 25 MB) and never changes a result."""

Array = np.typing.NDArray[np.float64]
Places = np.typing.NDArray[np.int64]

Scores = Sequence[float] | Sequence[Sequence[float]]
"""One number a question, or one list of numbers a question, as many for each: a number an answer."""


class Interval(NamedTuple):
    """A mean with the ends of its interval."""

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


def interval(values: Scores, *, seed: int) -> Interval:
    """The mean and its interval: Wilson's where each score is 0 or 1 (one a question), else the percentile bootstrap.

    A resampled share is too narrow where few questions are right, or few wrong; Wilson's interval is not, at any n, and
    from a few hundred questions on the two are one.

    >>> interval([1, 0, 1, 1], seed=0) == wilson_interval(3, 4)
    True
    """
    scores = _scores(values)
    if scores.ndim == 1 and bool(np.isin(scores, (0, 1)).all()):
        return wilson_interval(int(scores.sum()), scores.size)
    return bootstrap_interval(values, seed=seed)


def wilson_interval(right: int, n: int) -> Interval:
    """Wilson's score interval of `right` of `n`.

    >>> [round(end, 3) for end in wilson_interval(0, 20)]
    [0.0, 0.0, 0.161]
    """
    if not 0 <= right <= n or n < 1:
        raise BadArgument(f"{right} right of {n}: give 0 <= right <= n, n at least 1")
    share, scale = right / n, 1 + _Z * _Z / n
    middle = (share + _Z * _Z / (2 * n)) / scale
    half = _Z / scale * math.sqrt(share * (1 - share) / n + (_Z / (2 * n)) ** 2)
    # At 0 and at n of n an end is the share itself; rounding must not carry it past.
    return Interval(
        share,
        max(0.0, middle - half) if right else 0.0,
        min(1.0, middle + half) if right < n else 1.0,
    )


def bootstrap_interval(values: Scores, *, seed: int, resamples: int = RESAMPLES) -> Interval:
    """The mean of `values` and its percentile bootstrap interval; of two levels where questions have several scores.

    Two levels: questions are drawn, then for each drawn question as many of its scores as it has. Drawing the scores
    too takes in what another session would bring. It counts the spread within questions once more, by 1 - 1/R of it:
    on that account the interval is not too narrow, and it is too wide where most of the spread lies there. With few
    questions, and a mean near 0 or 1, it is too narrow as any percentile interval is.

    Raises `BadArgument` for no values, a value that is not a finite number, questions with unequal numbers of scores.

    >>> bootstrap_interval([0.5, 0.25, 0.5, 0.75], seed=0)
    Interval(value=0.5, low=0.3125, high=0.6875)
    """
    scores = _scores(values)
    means = paired_means(np.zeros(len(scores)), scores, seed, resamples)
    return Interval(float(scores.mean()), *_ends(means, scores, (0.0, 1.0)))


def paired_bootstrap(
    a: Scores, b: Scores, *, seed: int, resamples: int = RESAMPLES
) -> PairedTest:
    """The mean of b - a over the same questions, with its percentile interval and a two-sided p.

    p asks how often a bootstrap mean lies as far from the observed difference as that lies from 0:
    ``(1 + count) / (1 + resamples)``, so never 0. A bootstrap of a few questions knows no spread beyond them; as in any
    sign-flip test p is therefore never below ``2 / 2**m`` for m questions on which the two differ. Where a side has
    several scores a question, the same questions are drawn for both and each side's scores within them apart.

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
    return PairedTest(observed, *_ends(means, differences, (-1.0, 1.0)), p)


def lower_bound(a: Scores, b: Scores) -> float:
    """What the mean of b - a is above with 97.5 % confidence: the lower end of Bonett and Price's 95 % interval.

    One question more that only a answers right, and one that only b does, are added to those there are: losses that few
    differing questions did not show. The percentile bootstrap, which knows none, passes a run too often that is worse
    by just the margin. Several scores a question count as their mean.

    >>> round(lower_bound([1] * 50 + [0] * 50, [1] * 100), 3)  # 50 of 100 won, none lost
    0.389
    """
    differences = _paired(_each(_scores(a)), _each(_scores(b)))
    seen = np.concatenate([differences, [1.0, -1.0]])
    return float(max(-1.0, seen.mean() - _Z * seen.std() / math.sqrt(seen.size)))


def binomial_n(scores: Scores) -> float:
    """How many questions, each right or wrong, would give the mean of `scores` its variance.

    The number of questions where scores are 0 or 1; more where fractions vary less. Of several scores a question their
    mean counts. Between 0 and 1, a mean of `n` scores has at most the variance ``mean (1 - mean) / n``.

    >>> [round(binomial_n(scores)) for scores in ([1, 0, 1, 1], [0.4, 0.6])]
    [4, 50]
    """
    means = _each(_scores(scores))
    mean = float(means.mean())
    variance = float(means.var()) / means.size
    return mean * (1 - mean) / variance if variance > 0 else float(means.size)


def repeats_variance(wholes: Sequence[float]) -> float:
    """What the spread of whole repeats (models trained by several seeds) adds to the variance of their mean.

    Few repeats tell little of their spread: the variance grows by (t / z)^2, with Student's t of their degrees of
    freedom.

    >>> repeats_variance([0.4])
    0.0
    """
    if len(wholes) < 2:
        return 0.0
    t = _T_ONE_SIDED[min(len(wholes) - 1, len(_T_ONE_SIDED)) - 1]
    return float(np.var(wholes, ddof=1)) / len(wholes) * (t / _Z_ONE_SIDED) ** 2


def independent_difference(
    before: float, before_n: float, after: float, after_n: float
) -> Interval:
    """after - before, two shares of other questions, and its 90 % interval (Newcombe 1998, method 11).

    With l and u the ends of each share's own score interval, continuity corrected, the ends are ::

        d - sqrt((after - l_after)^2 + (u_before - before)^2),  d + sqrt((u_after - after)^2 + (before - l_before)^2)

    An infinite n takes that share as exact. Questions that both share make the interval wider than it need be.

    >>> [round(end, 3) for end in independent_difference(0.351, 1000, 0.332, 1200)]
    [-0.019, -0.053, 0.015]
    """
    low_before, high_before = _corrected_ends(before, before_n)
    low_after, high_after = _corrected_ends(after, after_n)
    difference = after - before
    return Interval(
        difference,
        difference - math.hypot(after - low_after, high_before - before),
        difference + math.hypot(high_after - after, before - low_before),
    )


def _corrected_ends(share: float, n: float) -> tuple[float, float]:
    """Wilson's 90 % interval with the continuity correction."""
    if math.isinf(n):
        return share, share
    z = _Z_ONE_SIDED
    middle, scale = 2 * n * share + z * z, 2 * (n + z * z)
    below, above = (
        1
        + z
        * math.sqrt(max(0.0, z * z - 2 * sign - 1 / n + 4 * share * (n * (1 - share) + sign)))
        for sign in (1, -1)
    )
    low = max(0.0, (middle - below) / scale) if share > 0 else 0.0
    high = min(1.0, (middle + above) / scale) if share < 1 else 1.0
    return low, high


def mcnemar_exact(a: Scores, b: Scores) -> McNemar:
    """The exact McNemar test on two runs' outcomes, each 0 or 1 (or a bool), over the same questions.

    >>> mcnemar_exact([1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1, 1])  # 2 / 2**6
    McNemar(only_a=0, only_b=6, p=0.03125)
    """
    differences = _paired(_outcomes(a), _outcomes(b))
    only_a = int(np.count_nonzero(differences < 0))
    only_b = int(np.count_nonzero(differences > 0))
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


def mcnemar_p(only_a: int, only_b: int) -> float:
    """Two-sided exact p for these counts: ``min(1, 2 P[X <= min(only_a, only_b)])``, X ~ Binomial(their sum, 1/2).

    >>> mcnemar_p(1, 9)  # 2 * (1 + 10) / 2**10
    0.021484375
    """
    pairs, fewer = only_a + only_b, min(only_a, only_b)
    # C(pairs, 0) and the sum of C(pairs, 0..k): whole numbers, so nothing is lost at any size
    term = tail = 1
    for k in range(fewer):
        term = term * (pairs - k) // (k + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << pairs))


def smallest_difference(discordant: int, n: int) -> float | None:
    """The smallest difference in accuracy that exact McNemar calls significant (p < .05), as a fraction of 1.

    `discordant` is the number of the `n` questions that exactly one of two runs answers right. They split into s and
    discordant - s; with s the largest count for which ``mcnemar_p(s, discordant - s) < .05``, the answer is
    ``(discordant - 2 s) / n``. None where even s = 0 is not enough (fewer than 6 discordant questions).

    >>> smallest_difference(10, 500)  # 1 against 9 is p = .021, 2 against 8 is p = .109
    0.016
    """
    if not 0 <= discordant <= n or n < 1:
        raise BadArgument(
            f"{discordant} discordant questions among {n}: give 0 <= discordant <= n, n at least 1"
        )
    significant = bisect_left(
        range(discordant // 2 + 1), ALPHA, key=lambda s: mcnemar_p(s, discordant - s)
    )
    return (discordant - 2 * (significant - 1)) / n if significant else None


def detectable_difference(n: int, discordant: float) -> float | None:
    """The least difference in accuracy that `n` questions show (two-sided p < .05) four times out of five.

    For use before a comparison. `discordant` is the assumed share of questions that exactly one of the two runs answers
    right; two methods over one index differ on .1 to .3 of them. Connor's sample size for a difference d is ::

        n = (z_alpha sqrt(discordant) + z_power sqrt(discordant - d^2))^2 / d^2

    and this is its d. None where d would be larger than `discordant`: the questions are too few to show any.

    >>> round(detectable_difference(500, 0.2), 3)
    0.056
    """
    if n < 1 or not 0 < discordant < 1:
        raise BadArgument(
            f"{n} questions, a share of {discordant}: give 1 or more, and a share between 0 and 1"
        )
    wanted, sure = NormalDist().inv_cdf(1 - ALPHA / 2), NormalDist().inv_cdf(0.8)
    root = n + sure**2 - wanted**2
    if root < 0:
        return None
    least = (
        math.sqrt(discordant) * (wanted * math.sqrt(n) + sure * math.sqrt(root)) / (n + sure**2)
    )
    return least if least <= discordant else None


# --- resampling -----------------------------------------------------------------------------------------------------


def paired_means(a: Array, b: Array, seed: int, resamples: int) -> Array:
    """`resamples` means of b - a over the same drawn questions, each side's answers drawn apart."""
    resamples, seed = check_count("resamples", resamples), check_count("seed", seed, 0)
    if a.ndim == b.ndim == 1:
        differences = b - a
        return np.concatenate(
            [
                differences[places].mean(axis=1)
                for places in drawn_places(b.size, seed, resamples)
            ]
        )
    # one stream each; the same whichever side is drawn
    bits_a, bits_b = (np.random.PCG64(seed).jumped(stream) for stream in (1, a.ndim))
    wide = max(a[0].size, b[0].size)
    blocks = drawn_places(len(b), seed, resamples, wide=wide)
    return np.concatenate(
        [_means(b, places, bits_b) - _means(a, places, bits_a) for places in blocks]
    )


def _means(scores: Array, questions: Places, bits: np.random.PCG64) -> Array:
    """A mean for each row of places, of answers drawn within them."""
    if scores.ndim == 1:
        return np.asarray(scores[questions].mean(axis=1))
    answers = scores.shape[1]
    drawn = _scaled(bits.random_raw(questions.size * answers), answers)
    places = drawn.reshape(*questions.shape, answers)
    return np.asarray(scores[questions[..., None], places].mean(axis=(1, 2)))


def drawn_places(n: int, seed: int, resamples: int, *, wide: int = 1) -> Iterator[Places]:
    """Positions 0..n-1 in blocks of rows, a row a resample; blocks are smaller where a position stands for `wide`."""
    bits = np.random.PCG64(seed)
    at_once = max(1, _WORDS_AT_ONCE // (n * wide))
    for done in range(0, resamples, at_once):
        rows = min(at_once, resamples - done)
        yield _scaled(bits.random_raw(rows * n), n).reshape(rows, n)


def _scaled(words: np.typing.NDArray[np.uint64], n: int) -> Places:
    return ((words >> np.uint64(32)) * np.uint64(n) >> np.uint64(32)).astype(np.int64)


# --- checks ---------------------------------------------------------------------------------------------------------


def _scores(values: Scores) -> Array:
    try:
        scores = np.asarray(values, dtype=np.float64)
    except ValueError as error:
        raise BadArgument(
            "the questions have unequal numbers of scores: give as many for each"
        ) from error
    if scores.ndim == 2 and scores.shape[1] == 1:
        scores = scores[:, 0]
    if scores.ndim not in (1, 2) or scores.size == 0:
        raise BadArgument(
            "no scores to draw from: give one number per question, for at least one question"
        )
    if not np.isfinite(scores).all():
        place = int(np.argwhere(~np.isfinite(scores))[0, 0])
        raise BadArgument(
            f"score {place} is {scores[place]}: give finite numbers (an error counts as 0)"
        )
    return scores


def _each(scores: Array) -> Array:
    return scores if scores.ndim == 1 else scores.mean(axis=1)


def _outcomes(values: Scores) -> Array:
    outcomes = _scores(values)
    if outcomes.ndim != 1 or not np.isin(outcomes, (0, 1)).all():
        raise BadArgument(
            "McNemar's test takes one outcome of 0 or 1 a question; use paired_bootstrap for others"
        )
    return outcomes


def _paired(a: Array, b: Array) -> Array:
    if a.size != b.size:
        raise BadArgument(
            f"a paired test needs the same questions on both sides, not {a.size} and {b.size}"
        )
    return b - a


def _ends(means: Array, scores: Array, bounds: tuple[float, float]) -> tuple[float, float]:
    """The interval's ends, of the resampled means; where `scores` are all alike, as far out as Wilson's would be."""
    low, high = (float(end) for end in np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
    if np.ptp(scores) > 0:
        return low, high
    least, most = bounds
    # the share of values unlike these that may have gone unseen
    out = _Z * _Z / (len(scores) + _Z * _Z)
    below, above = out * max(1.0, low - least), out * max(1.0, most - high)
    return max(least, low - below), min(most, high + above)

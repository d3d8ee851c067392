"""What a sample could show: the exact chance of a split of discordant questions, and the least difference it can tell.

A question is discordant where exactly one of two runs answers it right. In: their number (after the comparison) or an
assumed share of them (before it). Out: differences in accuracy, as fractions of 1.

Sources: McNemar's test in its exact binomial form; Connor, "Sample Size for Testing Differences in Proportions for the
Paired-Sample Design" (1987), after Miettinen (1968), solved for the difference.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from statistics import NormalDist

from blendfilter.errors import BadArgument


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
    inside("alpha", alpha)
    significant = bisect_left(range(discordant // 2 + 1), alpha, key=lambda s: mcnemar_p(s, discordant - s))
    return (discordant - 2 * (significant - 1)) / n if significant else None


def detectable_difference(n: int, discordant: float, *, power: float = 0.8, alpha: float = 0.05) -> float | None:
    """The least difference in accuracy that `n` questions show (two-sided p < `alpha`) with the chance `power`.

    Asked before a comparison. `discordant` is the assumed share of questions that exactly one of the two runs answers
    right; two methods over one index differ on .1 to .3 of them. Connor's sample size for a difference d is ::

        n = (z_alpha sqrt(discordant) + z_power sqrt(discordant - d^2))^2 / d^2

    and this is its d. None where d would be larger than `discordant`: the questions are too few to show any.

    Raises `BadArgument` unless n is at least 1 and the shares lie between 0 and 1.

    >>> round(detectable_difference(500, 0.2), 3)
    0.056
    """
    if n < 1:
        raise BadArgument(f"n is {n}: give at least 1 question")
    for name, share in (("discordant", discordant), ("power", power), ("alpha", alpha)):
        inside(name, share)
    wanted, sure = NormalDist().inv_cdf(1 - alpha / 2), NormalDist().inv_cdf(power)
    root = n + sure**2 - wanted**2
    if root < 0:
        return None
    least = math.sqrt(discordant) * (wanted * math.sqrt(n) + sure * math.sqrt(root)) / (n + sure**2)
    return least if least <= discordant else None


def inside(name: str, share: float) -> None:
    """Raise `BadArgument` unless `share` lies between 0 and 1."""
    if not 0 < share < 1:
        raise BadArgument(f"{name} is {share}: give a share between 0 and 1, such as 0.05 or 0.95")

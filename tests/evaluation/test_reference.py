"""Intervals and p-values on three stored cases (20, 200 and 500 questions), held against SciPy and statsmodels.

What is exact must be equal: McNemar to SciPy's binomial test and statsmodels' `mcnemar`, Holm to `multipletests`,
Wilson's interval to `proportion_confint`. What is resampled draws other questions than SciPy does and may differ by
chance. An end of a 95 % interval from 10,000 resamples has a standard error of about ``sqrt(.025 * .975 / 10000) / f``
with f the density there, .058 / s for a mean of standard error s: .027 s. Two such ends lie within 4 * sqrt(2) times
that of each other, so `ENDS` is .16 s; the same rule gives two p-values ``4 sqrt(2 p (1 - p) / 10000)``.
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from blendfilter.evaluation.statistics import (
    bootstrap_interval,
    holm,
    mcnemar_exact,
    paired_bootstrap,
)

SIZES = (20, 200, 500)
ENDS = 0.16
RESAMPLES = 10_000


@cache
def case(n: int) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((Path(__file__).parent / "cases" / f"scores-{n}.json").read_text())
    assert {len(scores) for kind in ("right", "f1") for scores in stored[kind].values()} == {n}
    return stored


def chance(p: float) -> float:
    """How far two p-values from so many resamples may lie apart."""
    return 4 * math.sqrt(2 * p * (1 - p) / RESAMPLES) + 2 / RESAMPLES


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", ["right", "f1"])
@pytest.mark.parametrize("side", ["a", "b"])
def test_the_bootstrap_interval_is_scipys(n: int, kind: str, side: str) -> None:
    scores = np.array(case(n)[kind][side], float)
    theirs = stats.bootstrap((scores,), np.mean, n_resamples=RESAMPLES, method="percentile", rng=11)
    ours = bootstrap_interval(scores.tolist(), seed=0, resamples=RESAMPLES)
    # Resampled shares of n outcomes lie on a grid: an end may fall on the next step.
    step = 1 / n if kind == "right" else 0.0
    tolerance = ENDS * scores.std(ddof=1) / math.sqrt(n) + step + 1e-9
    assert (ours.low, ours.high) == pytest.approx(
        (theirs.confidence_interval.low, theirs.confidence_interval.high), abs=tolerance
    )


@pytest.mark.parametrize("n", SIZES)
def test_mcnemar_is_scipys_and_statsmodels(n: int) -> None:
    a, b = (np.array(case(n)["right"][side]) for side in "ab")
    ours = mcnemar_exact(a.tolist(), b.tolist())
    only_a, only_b = int(((a == 1) & (b == 0)).sum()), int(((a == 0) & (b == 1)).sum())
    assert (ours.only_a, ours.only_b) == (only_a, only_b)
    assert ours.p == pytest.approx(stats.binomtest(only_a, only_a + only_b).pvalue, abs=1e-12)
    table = [[int(((a == 1) & (b == 1)).sum()), only_a], [only_b, int(((a == 0) & (b == 0)).sum())]]
    assert ours.p == pytest.approx(mcnemar(table, exact=True).pvalue, abs=1e-12)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", ["right", "f1"])
def test_the_paired_interval_is_scipys(n: int, kind: str) -> None:
    a, b = (np.array(case(n)[kind][side], float) for side in "ab")
    theirs = stats.bootstrap(
        (a, b), lambda x, y, axis: np.mean(y - x, axis=axis), paired=True,
        n_resamples=RESAMPLES, method="percentile", vectorized=True, rng=12,
    ).confidence_interval  # fmt: skip
    ours = paired_bootstrap(a.tolist(), b.tolist(), seed=0)
    assert ours.difference == pytest.approx(np.mean(b - a))
    step = 1 / n if kind == "right" else 0.0
    tolerance = ENDS * (b - a).std(ddof=1) / math.sqrt(n) + step + 1e-9
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=tolerance)


@pytest.mark.parametrize("n", SIZES)
def test_the_paired_p_is_near_a_permutation_tests(n: int) -> None:
    """Two tests of one hypothesis: flipped signs put the spread about 0, the bootstrap about the observed difference.

    The variances differ by the difference squared, d^2 / s^2 of them, and by (n - 1) / n: .03 covers both here on top
    of chance.
    """
    a, b = (np.array(case(n)["f1"][side], float) for side in "ab")
    theirs = stats.permutation_test(
        (b, a), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples",
        n_resamples=RESAMPLES, vectorized=True, rng=13,
    ).pvalue  # fmt: skip
    ours = paired_bootstrap(a.tolist(), b.tolist(), seed=0).p
    assert ours == pytest.approx(theirs, abs=0.03 + chance(theirs))


@pytest.mark.parametrize("n", SIZES)
def test_holm_is_statsmodels(n: int) -> None:
    right = case(n)["right"]
    p_values = [
        mcnemar_exact(right["a"], right["b"]).p,
        mcnemar_exact(right["a"], right["other"]).p,
        mcnemar_exact(right["b"], right["other"]).p,
        0.01,
    ]
    assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1], abs=1e-12)

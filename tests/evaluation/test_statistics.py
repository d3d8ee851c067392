"""Intervals and tests, held against SciPy (an oracle for tests only) and against cases worked by hand."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from blendfilter.errors import BadArgument
from blendfilter.evaluation import statistics
from blendfilter.evaluation.statistics import (
    bootstrap_interval,
    holm,
    mcnemar_exact,
    mcnemar_p,
    paired_bootstrap,
    smallest_difference,
)

counts = st.integers(0, 400)


def _sample(n: int, seed: int) -> np.ndarray:
    """F1-like scores: many 0, many 1, the rest between."""
    drawn = np.random.default_rng(seed)
    return np.clip(drawn.normal(0.5, 0.7, n), 0, 1)


# the interval


@pytest.mark.parametrize("level", [0.9, 0.95])
def test_interval_of_fractions_agrees_with_scipy(level: float) -> None:
    """Over 40 seeds either end has a standard deviation of 0.0005: 0.003 is over four of those of a difference."""
    values = _sample(500, 1)
    ours = bootstrap_interval(values.tolist(), seed=0, level=level)
    theirs = stats.bootstrap(
        (values,), np.mean, n_resamples=10_000, confidence_level=level, method="percentile", rng=7
    ).confidence_interval
    assert ours.value == pytest.approx(values.mean())
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.003)


@pytest.mark.parametrize("level", [0.9, 0.95])
@pytest.mark.parametrize("right", [21, 242, 489])
def test_interval_of_outcomes_agrees_with_the_exact_binomial(right: int, level: float) -> None:
    """Resampled 0/1 means of 500 are Binomial(500, share) / 500: the ends are its quantiles, give or take one step."""
    ours = bootstrap_interval([1] * right + [0] * (500 - right), seed=0, level=level)
    low, high = stats.binom.ppf([(1 - level) / 2, (1 + level) / 2], 500, right / 500) / 500
    assert (ours.low, ours.high) == pytest.approx((low, high), abs=1 / 500 + 1e-9)


def test_interval_of_two_values_worked_by_hand() -> None:
    """Two draws of {0, 1} have mean 0, 1/2, 1 with chances 1/4, 1/2, 1/4: the middle 95 % is [0, 1], 40 % only 1/2."""
    assert bootstrap_interval([0, 1], seed=3) == (0.5, 0.0, 1.0)
    assert bootstrap_interval([0, 1], seed=3, level=0.4) == (0.5, 0.5, 0.5)


def test_the_same_seed_gives_the_same_figures_and_another_seed_others() -> None:
    values = _sample(300, 3).tolist()
    assert bootstrap_interval(values, seed=5) == bootstrap_interval(values, seed=5)
    assert bootstrap_interval(values, seed=5) != bootstrap_interval(values, seed=6)


def test_figures_are_pinned() -> None:
    """A stored value: it moves only if the drawing changes, and then stored runs would no longer be the same bytes."""
    values = [0, 1, 0.5, 1, 0.25, 0, 1, 0.75]
    assert bootstrap_interval(values, seed=0) == (0.5625, 0.28125, 0.84375)
    assert paired_bootstrap([0.5] * 8, [0.25, 1, 0.75, 1, 0.5, 0.25, 1, 1], seed=0) == (
        0.21875,
        0.0,
        0.40625,
        0.0634936506349365,
    )


def test_blocks_bound_the_memory_and_never_change_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    values = _sample(700, 4).tolist()
    whole = bootstrap_interval(values, seed=0, resamples=500)
    monkeypatch.setattr(statistics, "_WORDS_AT_ONCE", 1_000)
    assert bootstrap_interval(values, seed=0, resamples=500) == whole


def test_seven_thousand_questions_fit_in_little_memory() -> None:
    values = _sample(7_000, 5).tolist()
    tracemalloc.start()
    bootstrap_interval(values, seed=0, resamples=1_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 50e6


def test_every_place_is_drawn_about_equally_often() -> None:
    places = np.concatenate([block.ravel() for block in statistics._drawn_places(7, 0, 10_000)])
    assert places.min() == 0
    assert places.max() == 6
    assert stats.chisquare(np.bincount(places)).pvalue > 0.001


# the paired bootstrap


@pytest.mark.parametrize(("shift", "seed"), [(0.0, 1), (0.04, 2), (0.08, 3)])
def test_paired_bootstrap_agrees_with_scipy(shift: float, seed: int) -> None:
    """Interval and centred p from SciPy's bootstrap distribution; two p differ by a standard error of at most 0.007."""
    a = _sample(400, seed)
    b = np.clip(a + np.random.default_rng(seed + 50).normal(shift, 0.4, 400), 0, 1)
    ours = paired_bootstrap(a.tolist(), b.tolist(), seed=0)
    theirs = stats.bootstrap((b - a,), np.mean, n_resamples=10_000, method="percentile", rng=seed)
    observed = (b - a).mean()
    p = np.mean(np.abs(theirs.bootstrap_distribution - observed) >= abs(observed))
    assert ours.difference == pytest.approx(observed)
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.003)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.003)
    assert ours.p == pytest.approx(p, abs=0.02)


def test_paired_bootstrap_is_near_the_paired_t_test_at_five_hundred_questions() -> None:
    a, b = _sample(500, 8), _sample(500, 9)
    assert paired_bootstrap(a.tolist(), b.tolist(), seed=0).p == pytest.approx(stats.ttest_rel(b, a).pvalue, abs=0.02)


def test_sides_swap_the_sign_and_keep_p() -> None:
    a, b = _sample(200, 10).tolist(), _sample(200, 11).tolist()
    there, back = paired_bootstrap(a, b, seed=0), paired_bootstrap(b, a, seed=0)
    assert (back.difference, back.p) == (-there.difference, there.p)
    assert (back.low, back.high) == pytest.approx((-there.high, -there.low), abs=1e-4)


def test_p_is_never_zero_and_equal_runs_have_p_one() -> None:
    assert paired_bootstrap([0.0] * 50, [1.0] * 50, seed=0).p == 1 / 10_001
    assert paired_bootstrap([0.3, 0.6], [0.3, 0.6], seed=0) == (0.0, 0.0, 0.0, 1.0)


def test_few_differing_questions_show_no_more_than_a_sign_flip_test_could() -> None:
    """Three gains of three have chance 2/8 under flipped signs; a bare bootstrap sees no spread and says 1/10001."""
    a, b = [0.0] * 3, [1.0] * 3
    flips = stats.permutation_test((np.array(b), np.array(a)), lambda x, y: np.mean(x - y), permutation_type="samples")
    assert paired_bootstrap(a, b, seed=0).p == flips.pvalue == 0.25


# McNemar


@given(counts, counts)
def test_mcnemar_agrees_with_scipys_exact_binomial(only_a: int, only_b: int) -> None:
    theirs = stats.binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
    assert mcnemar_p(only_a, only_b) == pytest.approx(theirs, rel=1e-9)


def test_mcnemar_worked_by_hand() -> None:
    """Five questions only b answers right, one only a, two both or neither: 2 (C(6,0) + C(6,1)) / 2^6 = 14/64."""
    a = [1, 0, 0, 0, 0, 0, 1, 0]
    b = [0, 1, 1, 1, 1, 1, 1, 0]
    assert mcnemar_exact(a, b) == (1, 5, 14 / 64)
    assert mcnemar_exact([bool(x) for x in b], [bool(x) for x in a]) == (5, 1, 14 / 64)
    assert mcnemar_exact([1, 0], [1, 0]) == (0, 0, 1.0)


def test_mcnemar_at_a_size_where_factorials_leave_floats_behind() -> None:
    assert mcnemar_p(3_400, 3_600) == pytest.approx(stats.binomtest(3_400, 7_000).pvalue, rel=1e-9)


# the smallest difference, and several tests at once


def test_smallest_difference_worked_by_hand() -> None:
    """At 108 discordant questions 43 against 65 is p = .0429 and 44 against 64 is p = .0674: 22 of 500 it is."""
    assert mcnemar_p(43, 65) < 0.05 <= mcnemar_p(44, 64)
    assert smallest_difference(108, 500) == 22 / 500
    assert smallest_difference(6, 100) == 0.06  # 0 against 6: p = 2/64
    assert smallest_difference(5, 100) is None  # 0 against 5: p = 2/32
    assert smallest_difference(0, 100) is None


@given(st.integers(6, 300), st.sampled_from([0.05, 0.01]))
def test_smallest_difference_is_where_significance_begins(discordant: int, alpha: float) -> None:
    least = smallest_difference(discordant, 300, alpha=alpha)
    split = [s for s in range(discordant // 2 + 1) if mcnemar_p(s, discordant - s) < alpha]
    assert least == ((discordant - 2 * max(split)) / 300 if split else None)


def test_holm_worked_by_hand() -> None:
    """Sorted .005, .011, .02, .04 times 4, 3, 2, 1 is .02, .033, .04, .04; back in the order given."""
    assert holm([0.011, 0.02, 0.04, 0.005]) == pytest.approx([0.033, 0.04, 0.04, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([0.03]) == [0.03]
    assert holm([]) == []


@given(st.lists(st.floats(1e-6, 1), min_size=1, max_size=12))
def test_holm_never_lowers_keeps_the_order_and_stays_under_bonferroni(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    for p, q in zip(p_values, adjusted, strict=True):
        assert p <= q <= min(1.0, p * len(p_values))
    ranks = sorted(range(len(p_values)), key=p_values.__getitem__)
    assert [adjusted[i] for i in ranks] == sorted(adjusted)


# what is refused


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_interval([], seed=0), "no scores"),
        (lambda: bootstrap_interval([1, math.nan], seed=0), "score 1 is nan"),
        (lambda: bootstrap_interval([1], seed=0, resamples=0), "resamples is 0"),
        (lambda: bootstrap_interval([1], seed=-1), "seed is -1"),
        (lambda: bootstrap_interval([1], seed=0, level=95), "level is 95"),
        (lambda: paired_bootstrap([1], [1, 0], seed=0), "not 1 and 2"),
        (lambda: mcnemar_exact([1], [1, 0]), "not 1 and 2"),
        (lambda: mcnemar_exact([0.5], [1]), "not 0.5"),
        (lambda: smallest_difference(11, 10), "11 discordant questions among 10"),
        (lambda: smallest_difference(0, 0), "among 0"),
        (lambda: smallest_difference(1, 10, alpha=5), "alpha is 5"),
    ],
)
def test_bad_input_gets_one_clear_line(call, message: str) -> None:
    with pytest.raises(BadArgument, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)

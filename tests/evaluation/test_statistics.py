"""Intervals and tests, held against SciPy (an oracle for tests only) and against cases worked by hand."""

from __future__ import annotations

import json
import math
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests

from blendfilter import statistics
from blendfilter.errors import BadArgument
from blendfilter.statistics import (
    bootstrap_interval,
    detectable_difference,
    holm,
    interval,
    lower_bound,
    mcnemar_exact,
    mcnemar_p,
    paired_bootstrap,
    smallest_difference,
    wilson_interval,
)


def _sample(n: int, seed: int) -> np.ndarray:
    """F1-like scores: many 0, many 1, the rest between."""
    drawn = np.random.default_rng(seed)
    return np.clip(drawn.normal(0.5, 0.7, n), 0, 1)


# the interval


def test_figures_are_pinned() -> None:
    """A stored value: it moves only if the drawing changes, and then stored runs would no longer be the same bytes."""
    values = [0, 1, 0.5, 1, 0.25, 0, 1, 0.75]
    assert bootstrap_interval(values, seed=0) == (0.5625, 0.28125, 0.84375)
    paired = paired_bootstrap([0.5] * 8, [0.25, 1, 0.75, 1, 0.5, 0.25, 1, 1], seed=0)
    assert paired == (0.21875, 0.0, 0.40625, 0.0634936506349365)


def test_blocks_bound_the_memory_and_never_change_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    values = _sample(700, 4).tolist()
    a, b = _answers(90, 3, 25).tolist(), _answers(90, 2, 26).tolist()
    whole = bootstrap_interval(values, seed=0, resamples=500), paired_bootstrap(a, b, seed=0, resamples=300)
    monkeypatch.setattr(statistics, "_WORDS_AT_ONCE", 1_000)
    assert (bootstrap_interval(values, seed=0, resamples=500), paired_bootstrap(a, b, seed=0, resamples=300)) == whole


# Wilson's interval, and scores that are all alike


@pytest.mark.parametrize(("right", "n"), [(0, 1), (1, 1), (0, 20), (3, 20), (20, 20), (250, 500), (499, 500)])
def test_wilsons_interval_is_scipys(right: int, n: int) -> None:
    theirs = stats.binomtest(right, n).proportion_ci(0.95, method="wilson")
    assert wilson_interval(right, n) == pytest.approx((right / n, theirs.low, theirs.high), abs=1e-12)


def test_outcomes_get_wilsons_interval_and_fractions_the_bootstraps() -> None:
    assert interval([1, 0, True, 1], seed=0) == wilson_interval(3, 4)
    fractions = [0.0, 0.5, 1.0, 1.0]
    assert interval(fractions, seed=5) == bootstrap_interval(fractions, seed=5)
    twice = [[1, 0], [1, 1], [0, 0]]
    assert interval(twice, seed=5) == bootstrap_interval(twice, seed=5)


def test_scores_all_alike_are_no_certainty() -> None:
    """Wilson's upper end at 0 of 20 is 3.84 / 23.84 = .161: as far out on every side, within what scores can be."""
    out = wilson_interval(0, 20).high
    assert bootstrap_interval([0.0] * 20, seed=0) == pytest.approx((0, 0, out))
    assert bootstrap_interval([1.0] * 20, seed=0) == pytest.approx((1, 1 - out, 1))
    assert bootstrap_interval([[1.0, 1.0]] * 20, seed=0) == pytest.approx((1, 1 - out, 1))
    assert paired_bootstrap([0.3] * 20, [0.3] * 20, seed=0) == pytest.approx((0, -out, out, 1))
    assert paired_bootstrap([0.0] * 20, [1.0] * 20, seed=0)[:3] == pytest.approx((1, 1 - 2 * out, 1))
    assert paired_bootstrap([1.0] * 20, [0.0] * 20, seed=0)[:3] == pytest.approx((-1, -1, 2 * out - 1))


# a margin


def test_the_lower_bound_is_bonett_and_prices() -> None:
    """Six won and one lost of 8: (7 - 2) / 10 - z sqrt((9 / 10 - .5^2) / 10); nothing is below -1."""
    before, after = [0, 0, 0, 0, 0, 0, 1, 1], [1, 1, 1, 1, 1, 1, 1, 0]
    z = stats.norm.ppf(0.975)
    assert lower_bound(before, after) == pytest.approx(0.5 - z * math.sqrt((0.9 - 0.25) / 10), abs=1e-12)
    twice = [[each, each] for each in after]
    assert lower_bound(before, twice) == lower_bound(before, after), "answers to a question count as their mean"
    assert lower_bound([0.5] * 8, [0.5] * 8) == pytest.approx(-z * math.sqrt(0.2 / 10)), "no loss seen is not none"
    assert lower_bound([1, 1], [0, 0]) == -1.0


SIZES_OF_GAINS = {"em": [1.0], "f1": [0.2, 1 / 3, 0.5, 2 / 3, 1.0]}


def _bounds(kind: str, n: int, differing: float, loss: float, pairs: int = 2_000) -> list[float]:
    """Of pairs of runs: on a share `differing` of questions they differ, and the truth is that b loses `loss`."""
    drawn, sizes = np.random.default_rng(11), np.array(SIZES_OF_GAINS[kind])
    lost = (differing + loss / sizes.mean()) / 2
    chances = np.concatenate([np.full(sizes.size, part / sizes.size) for part in (lost, differing - lost)])
    values = np.array([*-sizes, *sizes, 0.0])
    drawn_pairs = drawn.choice(values, (pairs, n), p=[*chances, 1 - differing])
    return [lower_bound(np.zeros(n), differences) for differences in drawn_pairs]


@pytest.mark.parametrize("n", [50, 200, 1000])
@pytest.mark.parametrize("kind", ["em", "f1"])
@pytest.mark.parametrize(("differing", "margin"), [(0.1, 0.01), (0.1, 0.05), (0.3, 0.02), (0.3, 0.1)])
def test_a_loss_of_just_the_margin_is_passed_one_time_in_twenty_at_most(
    kind: str, n: int, differing: float, margin: float
) -> None:
    """The percentile bootstrap passes 4.8 to 7.7 % at 50 questions of which a tenth differ: it is not what is asked."""
    assert np.mean(np.array(_bounds(kind, n, differing, margin)) > -margin) <= 0.05


def test_equal_runs_are_within_a_margin_that_the_questions_can_show() -> None:
    assert np.mean(np.array(_bounds("em", 1000, 0.1, 0.0)) > -0.03) > 0.8
    assert np.mean(np.array(_bounds("f1", 200, 0.3, 0.0)) > -0.1) > 0.8


# two levels


def _answers(n: int, repeats: int, seed: int, spread: float = 1.0) -> np.ndarray:
    """Outcomes of questions that are right with chances of their own, `repeats` times each."""
    drawn = np.random.default_rng(seed)
    chances = np.clip(0.5 + spread * drawn.normal(0, 0.4, n), 0, 1)
    return (drawn.random((n, repeats)) < chances[:, None]).astype(float)


def test_two_levels_agree_with_a_plain_simulation() -> None:
    """The same thing written as a loop over numpy's own generator; two ends of 4,000 draws differ by chance alone."""
    scores = _answers(80, 3, 23)
    ours = bootstrap_interval(scores.tolist(), seed=0)
    drawn, means = np.random.default_rng(1), []
    for _ in range(4_000):
        questions = drawn.integers(0, 80, 80)
        means.append(np.mean([drawn.choice(scores[question], 3) for question in questions]))
    assert ours.value == pytest.approx(scores.mean())
    assert (ours.low, ours.high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.008)


def test_pairs_of_two_levels_take_the_same_questions_for_both() -> None:
    """Questions differ far more than the runs do: apart, the difference would be lost among them."""
    hard = np.repeat([0.0, 1.0], 100)
    better = np.concatenate([np.tile([0.0, 1.0], 50), np.ones(100)])
    twice = [np.repeat(side[:, None], 2, axis=1).tolist() for side in (hard, better)]
    test = paired_bootstrap(*twice, seed=0)
    assert test.difference == 0.25
    assert test == pytest.approx(paired_bootstrap(hard.tolist(), better.tolist(), seed=0))
    mixed = paired_bootstrap(hard.tolist(), twice[1], seed=0)
    assert mixed[:3] == pytest.approx(test[:3])


# the paired bootstrap


def test_p_is_never_zero_and_equal_runs_have_p_one() -> None:
    assert paired_bootstrap([0.0] * 50, [1.0] * 50, seed=0).p == 1 / 10_001
    assert paired_bootstrap([0.3, 0.6], [0.3, 0.6], seed=0).p == 1.0


def test_few_differing_questions_show_no_more_than_a_sign_flip_test_could() -> None:
    """Three gains of three have chance 2/8 under flipped signs; a bare bootstrap sees no spread and says 1/10001."""
    a, b = [0.0] * 3, [1.0] * 3
    flips = stats.permutation_test((np.array(b), np.array(a)), lambda x, y: np.mean(x - y), permutation_type="samples")
    assert paired_bootstrap(a, b, seed=0).p == flips.pvalue == 0.25


# McNemar


# what is refused


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_interval([], seed=0), "no scores"),
        (lambda: bootstrap_interval([1, math.nan], seed=0), "score 1 is nan"),
        (lambda: paired_bootstrap([1], [1, 0], seed=0), "not 1 and 2"),
        (lambda: mcnemar_exact([0.5], [1]), "one outcome of 0 or 1"),
        (lambda: bootstrap_interval([[1, 0], [1]], seed=0), "unequal numbers"),
        (lambda: wilson_interval(3, 2), "3 right of 2"),
        (lambda: smallest_difference(11, 10), "11 discordant questions among 10"),
        (lambda: detectable_difference(10, 2), "a share of 2"),
    ],
)
def test_bad_input_gets_one_clear_line(call, message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        call()


def test_the_two_sides_answers_are_drawn_apart() -> None:
    """50 questions, answered once right and once wrong by either run: a mean of theirs has the variance 1/4 / 2 / 50.

    Drawn alike, the two sides would differ nowhere; drawn apart, the variances add up.
    """
    scores = np.tile([0.0, 1.0], (50, 1))
    means = statistics.paired_means(scores, scores, 0, 4_000)
    assert means.std() == pytest.approx(math.sqrt(2 * 0.25 / 2 / 50), rel=0.05)


# --- power -----------------------------------------------------------------------------------------------------------


counts = st.integers(0, 400)


@given(counts, counts)
def test_mcnemar_agrees_with_scipys_exact_binomial(only_a: int, only_b: int) -> None:
    theirs = stats.binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
    assert mcnemar_p(only_a, only_b) == pytest.approx(theirs, rel=1e-9)


def test_smallest_difference_worked_by_hand() -> None:
    """At 108 discordant questions 43 against 65 is p = .0429 and 44 against 64 is p = .0674: 22 of 500 it is."""
    assert mcnemar_p(43, 65) < 0.05 <= mcnemar_p(44, 64)
    assert smallest_difference(108, 500) == 22 / 500
    assert smallest_difference(6, 100) == 0.06  # 0 against 6: p = 2/64
    assert smallest_difference(5, 100) is None  # 0 against 5: p = 2/32
    assert smallest_difference(0, 100) is None


def test_detectable_difference_is_connors_sample_size_solved() -> None:
    """n = (1.96 sqrt(.2) + .8416 sqrt(.2 - d^2))^2 / d^2 gives 500 at d = .0559."""
    least = detectable_difference(500, 0.2)
    assert least == pytest.approx(0.0559, abs=1e-4)
    wanted, sure = stats.norm.ppf(0.975), stats.norm.ppf(0.8)
    assert (wanted * 0.2**0.5 + sure * (0.2 - least**2) ** 0.5) ** 2 / least**2 == pytest.approx(500)


# --- reference -------------------------------------------------------------------------------------------------------


SIZES = (20, 200, 500)
ENDS = 0.16
RESAMPLES = 10_000


@cache
def case(n: int) -> dict[str, Any]:
    stored: dict[str, Any] = json.loads((Path(__file__).parent / "cases" / f"scores-{n}.json").read_text())
    assert {len(scores) for kind in ("right", "f1") for scores in stored[kind].values()} == {n}
    return stored


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
def test_holm_is_statsmodels(n: int) -> None:
    pairs = combinations(case(n)["right"].values(), 2)
    p_values = [*(mcnemar_exact(one, other).p for one, other in pairs), 0.01]
    assert holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1], abs=1e-12)

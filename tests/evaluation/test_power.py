"""What a sample could show, held against SciPy, against cases worked by hand and against simulation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from blendfilter.errors import BadArgument
from blendfilter.evaluation.statistics import detectable_difference, mcnemar_p, smallest_difference

counts = st.integers(0, 400)


@given(counts, counts)
def test_mcnemar_agrees_with_scipys_exact_binomial(only_a: int, only_b: int) -> None:
    theirs = stats.binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
    assert mcnemar_p(only_a, only_b) == pytest.approx(theirs, rel=1e-9)


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


# before looking


def test_detectable_difference_is_connors_sample_size_solved() -> None:
    """n = (1.96 sqrt(.2) + .8416 sqrt(.2 - d^2))^2 / d^2 gives 500 at d = .0559."""
    least = detectable_difference(500, 0.2)
    assert least == pytest.approx(0.0559, abs=1e-4)
    wanted, sure = stats.norm.ppf(0.975), stats.norm.ppf(0.8)
    assert (wanted * 0.2**0.5 + sure * (0.2 - least**2) ** 0.5) ** 2 / least**2 == pytest.approx(500)


def test_more_questions_show_less_and_too_few_nothing() -> None:
    assert detectable_difference(500, 0.2) < detectable_difference(200, 0.2) < detectable_difference(50, 0.2)
    assert detectable_difference(2, 0.2) is None
    assert detectable_difference(20, 0.05) is None, "it would be more than all discordant questions"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: smallest_difference(11, 10), "11 discordant questions among 10"),
        (lambda: smallest_difference(0, 0), "among 0"),
        (lambda: smallest_difference(1, 10, alpha=5), "alpha is 5"),
        (lambda: detectable_difference(0, 0.2), "n is 0"),
        (lambda: detectable_difference(10, 2), "discordant is 2"),
        (lambda: detectable_difference(10, 0.2, power=80), "power is 80"),
        (lambda: detectable_difference(10, 0.2, alpha=0), "alpha is 0"),
    ],
)
def test_bad_input_gets_one_clear_line(call, message: str) -> None:
    with pytest.raises(BadArgument, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)

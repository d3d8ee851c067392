"""The best k against the plain definition: sort by score downwards, then by position."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.retrieval.base import best, coarse

few_values = st.sampled_from([0.0, 0.1, 0.25, 0.3, 1.0, 7.5, 1e-9])


@given(st.lists(few_values, min_size=1, max_size=60), st.integers(1, 70))
def test_ties_keep_corpus_order_at_the_kth_place_too(scores: list[float], k: int) -> None:
    expected = sorted((at for at, score in enumerate(scores) if score > 0), key=lambda at: (-scores[at], at))[:k]
    assert best(np.array(scores), k) == expected


@given(st.lists(st.floats(0, 100), min_size=1, max_size=60), st.integers(1, 70))
def test_any_scores(scores: list[float], k: int) -> None:
    grains = coarse(np.array(scores))
    expected = sorted((at for at, score in enumerate(scores) if score > 0), key=lambda at: (-grains[at], at))[:k]
    assert best(np.array(scores), k) == expected


@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.sampled_from([0.0, 0.5, 0.999]), st.integers(2_000, 4_000))
def test_long_arrays_as_short_ones(seed: int, k: int, zeros: float, size: int) -> None:
    """Where groups' maxima give a floor: many ties, few matches, sizes that no group divides."""
    chance = np.random.default_rng(seed)
    scores = chance.integers(1, 40, size) / 8.0
    scores[chance.random(size) < zeros] = 0.0
    expected = sorted((at for at, score in enumerate(scores) if score > 0), key=lambda at: (-scores[at], at))[:k]
    assert best(scores, k) == expected


def test_the_last_bits_of_a_sum_order_nothing() -> None:
    """0.1 + 0.2 + 0.3 is 0.6000000000000001 from the left, 0.6 from the right: one score, the first stays first."""
    assert (0.1 + 0.2) + 0.3 > 0.1 + (0.2 + 0.3)
    assert best(np.array([0.1 + (0.2 + 0.3), (0.1 + 0.2) + 0.3]), 1) == [0]
    assert best(np.array([0.6, 0.6 * (1 + 1e-8)]), 1) == [1]


def test_a_thousand_ties() -> None:
    scores = np.ones(1000)
    scores[700] = 2
    assert best(scores, 4) == [700, 0, 1, 2]


def test_nothing_matches() -> None:
    assert best(np.zeros(5), 3) == []

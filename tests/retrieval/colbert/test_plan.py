"""How an index of a size is divided."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import BadArgument
from blendfilter.retrieval.colbert.building import PER_CENTROID, nbits_for, planned
from blendfilter.retrieval.colbert.index import SearchEffort, check_effort, effort_for


@given(st.integers(1, 10**8), st.floats(3, 220), st.sampled_from(["cpu", "cuda"]))
def test_a_plan_holds_together(passages: int, length: float, device: str) -> None:
    plan = planned(passages, length, device)
    assert plan.partitions == 2 ** round(math.log2(plan.partitions))
    assert 1 <= plan.sample <= passages
    rule = {"cpu": 4, "cuda": 16}[device] * math.sqrt(passages * length)
    assert rule / 2 < plan.partitions <= max(rule, 1)
    assert plan.sample == passages or plan.sample * length >= plan.partitions * PER_CENTROID


def test_colbert_ais_rule_on_a_gpu() -> None:
    assert planned(20_000, 70, "cuda").partitions == 2 ** int(math.log2(16 * math.sqrt(20_000 * 70)))


def test_partitions_that_are_asked_for_are_taken() -> None:
    assert planned(1_000, 50, "cpu", 77) == (77, 99)


def test_small_indexes_afford_more() -> None:
    assert [nbits_for(size) for size in (0, 100_000, 100_001)] == [4, 4, 2]
    small, large = effort_for(10, 100_000), effort_for(10, 100_001)
    assert small.ncells > large.ncells
    assert small.ndocs > large.ndocs
    assert small.threshold < large.threshold


@given(st.integers(1, 5_000), st.integers(1, 10**7))
def test_k_passages_can_be_scored_in_full(k: int, passages: int) -> None:
    assert effort_for(k, passages).ndocs // 4 >= k


@pytest.mark.parametrize("effort", [SearchEffort(0, 0.5, 256), SearchEffort(1, 0.5, 3), SearchEffort(-1, 0.5, 0)])
def test_no_effort(effort: SearchEffort) -> None:
    with pytest.raises(BadArgument, match="ncells of at least 1 and ndocs of at least 4"):
        check_effort(effort)

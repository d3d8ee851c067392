"""What holds of all shipped tables, each run once over the sample world with a model that is not the offline reader."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from reproduce_world import Made, consistent_for_odd, made
from small_world import CountingEngine

from blendfilter import compare
from blendfilter.reproduce import tables
from blendfilter.reproduce.tables import format_of


@pytest.fixture(scope="module")
def over_the_sample(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    @cache
    def run(name: str) -> Made:
        lm = CountingEngine(reply=consistent_for_odd).lm(name="counted")
        return made(name, tmp_path_factory.mktemp(name), lm, limit=2)

    return run


@pytest.mark.parametrize("name", tables.names())
def test_every_row_is_tested_against_its_reference(name: str, over_the_sample: Callable[[str], Made]) -> None:
    """Holm counts them all. A reference without its model was not run, and nothing is tested against it."""
    table, found = tables.read(name), over_the_sample(name).result.lines
    rows = {(row.group, row.label): row for row in table.rows}
    measured = {(line.task, line.group, line.label) for line in found if not line.missing}
    for line in found:
        row = rows[line.group, line.label]
        reference = table.reference(row)
        assert reference
        there = (line.task, reference.group, reference.label) in measured and not line.missing
        tested = there and reference is not row and format_of(line.measure).tested
        for cell in (line.gain, line.gain_low, line.gain_high, line.p, line.p_holm):
            assert (cell is not None) == tested, line


def test_a_row_with_a_k_of_its_own_is_tested_as_compare_does(tmp_path: Path) -> None:
    """CoT over the top 15 costs what BlendFilter over the top 5 does: that is the question, and has its p."""
    rows = ["CoT over the top 15", "Self-consistency"]
    lm = CountingEngine(reply=consistent_for_odd).lm(name="counted")
    done = made("fair", tmp_path, lm, limit=12, tasks=["hotpotqa"], rows=rows)
    runs = [done.run(label) for label in ("BlendFilter", rows[0])]
    assert [run.settings["method"]["arguments"]["k"] for run in runs] == [5, 15]
    compared = [row for row in compare(*runs).rows if row.run == runs[1].name]
    assert [row.measure for row in compared] == ["em", "f1"]
    for row in compared:
        line = done.line(rows[0], row.measure)
        assert (line.gain, line.gain_low, line.gain_high, line.p) == (row.difference, row.low, row.high, row.p)
        assert line.gain

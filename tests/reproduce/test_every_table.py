"""What holds of all shipped tables, each run once over the sample world with a model that is not the offline reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from reproduce_world import Made, consistent_for_odd, made
from small_world import CountingEngine

from blendfilter import compare
from blendfilter.errors import BadArgument
from blendfilter.lm.scoring.kept import KeptScorer
from blendfilter.reproduce import printing, tables
from blendfilter.reproduce.results import TableResult
from blendfilter.reproduce.tables import PaperTable, format_of
from blendfilter.tasks import TASKS


def no_scorer(_journal: object) -> KeptScorer:
    raise BadArgument("counted gives no log-probabilities")


@pytest.fixture(scope="module")
def over_the_sample(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    @cache
    def run(name: str) -> Made:
        lm = CountingEngine(reply=consistent_for_odd).lm(name="counted")
        return made(name, tmp_path_factory.mktemp(name), lm, limit=2, make_scorer=no_scorer)

    return run


def cells_of(result: TableResult) -> Counter[tuple[str, ...]]:
    """Task, row, measure and a cell under what is published, as they are printed."""
    found = Counter[tuple[str, ...]]()
    for shown in printing.tables_of(result):
        group = label = point = ""
        for cells in shown.rows:
            named = dict(zip(shown.header, cells, strict=True))
            if not named.get("measure") and not named[""].startswith(" ") and "over" not in named:
                group, label, point = named[""], "", ""
                continue
            label, point = named[""].strip(" *†") or label, named.get("at") or ("" if named[""] else point)
            for head, cell in named.items():
                if "published" in head and head != "vs published" and cell:
                    place = (group if "over" not in named else "", label, point, named.get("measure", ""))
                    found[shown.title.partition(",")[0], *place, cell] += 1
    return found


def stored(table: PaperTable) -> Iterator[tuple[str, ...]]:
    """The same of everything that the file has."""
    for row in table.rows:
        if row.average_gain is not None:
            yield f"average vs {table.against}", "", row.name, "", "", printing.as_printed(row.average_gain, "+")
        figures = [("", row.published), *((f"K={k}", of) for k, of in row.at.items())]
        for point, by_task in figures:
            for task, printed in by_task.items():
                place = (task, row.group, row.label, point)
                if printed.imp is not None:
                    yield *place, format_of(TASKS[task].metrics[0]).words, f"{printed.imp:.1f}"
                for name, gain in (printed.gains or {}).items():
                    yield *place, format_of(name).words, printing.as_printed(gain, "+")
                for name, value in printed.model_dump(exclude={"imp", "gains"}, exclude_none=True).items():
                    form = format_of(name)
                    digits = {None: None, 1: 0}.get(form.digits, form.digits)
                    shown = printing.as_printed(value) if digits is None else f"{value:,.{digits}f}"
                    yield *place, form.words, shown


@pytest.mark.parametrize("name", tables.names())
def test_every_figure_that_is_stored_is_shown(name: str, over_the_sample: Callable[[str], Made]) -> None:
    """Beside its row and its measure, whether that row could be run or not."""
    wanted, result = Counter(stored(tables.read(name))), over_the_sample(name).result
    assert not wanted - cells_of(result)
    assert all(cell in printing.text(result) for *_, cell in wanted)


@pytest.mark.parametrize("name", tables.names())
def test_what_has_no_value_differs_from_nothing(name: str, over_the_sample: Callable[[str], Made]) -> None:
    lines = over_the_sample(name).result.lines
    assert all(line.difference is line.verdict is None for line in lines if line.missing or line.failed)


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

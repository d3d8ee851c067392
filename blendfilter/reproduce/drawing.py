"""The plots of a measured table, as SVG and PNG files beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blendfilter.evaluation.run import Run
from blendfilter.report import canvas, plots
from blendfilter.reproduce.printing import WORDS
from blendfilter.reproduce.results import NUMBERS, ResultLine, TableResult, by_label
from blendfilter.reproduce.runs import TableRun
from blendfilter.reproduce.tables import OF_CONTEXTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(result: TableResult, wanted: Sequence[TableRun], done: Mapping[Path, Run], folder: Path) -> list[Path]:
    """The plots of `result` in `folder`. Raises: MissingExtra (matplotlib)."""
    table, paths = result.table, list[Path]()

    def files(stem: str) -> list[Path]:
        return [folder / f"{stem}.{suffix}" for suffix in ("svg", "png")]

    runs = by_label([(one, done[one.folder]) for one in wanted])
    if table.kind == "frontier":
        for task, named in runs.items():
            found = plots.frontier(named)
            if any(map(found.known, plots.FRONTIER_COSTS)):  # else the server has given too little to draw it
                paths += found.draw(*files(f"{table.name}-{task}"))
    elif table.kind != "scores" and result.lines:
        paths += _panels(result, files(table.name))
    if table.kind in ("scores", "settings"):
        for task, named in runs.items():
            paths += plots.headline(named, *files(f"headline-{task}")) + plots.losses(named, *files(f"losses-{task}"))
    return paths


def _panels(result: TableResult, files: Sequence[Path]) -> list[Path]:
    """A panel a task and measure (and side, and retriever): a bar a row, or over K a line a row, with intervals.

    Rows that read the answer are hatched. Figures that FilCo draws show what the paper measures, or what leads.
    """
    table, lines = result.table, result.lines
    if table.kind in ("settings", *OF_CONTEXTS):
        leading = {line.task: line.measure for line in reversed(lines)}
        leading |= {line.task: line.measure for line in lines if line.published is not None}
        lines = tuple(line for line in lines if line.measure == leading[line.task])
    panels: dict[tuple[str, ...], list[ResultLine]] = {}
    for line in lines:
        side = "" if table.kind == "sweep" else line.point.partition(" (")[0]
        group = line.group if table.kind == "retrieval" else ""
        measure = WORDS.get(line.measure, line.measure) + " (%)" * (line.measure not in NUMBERS)
        panels.setdefault((line.task, group, side, measure), []).append(line)
    rows = list(dict.fromkeys(_label(line, table.kind) for line in lines))
    columns = min(3, len(panels))
    height = math.ceil(len(panels) / columns)
    with canvas.blank(1.2 + 1.9 * columns, 0.8 + 1.7 * height) as figure:
        places = list(figure.subplots(height, columns, squeeze=False).flat)
        for axes, (name, here) in zip(places, panels.items(), strict=False):
            for at, row in enumerate(rows):
                of_row = [line for line in here if _label(line, table.kind) == row]
                (_line if table.kind == "sweep" else _bar)(axes, at, row, of_row)
            axes.set_title(", ".join(filter(None, name)), fontsize=7.5)
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        handles = {
            label: handle for axes in places for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(handles.values(), handles.keys(), loc="outside right center")
        figure.suptitle(f"{table.name}: {lines[0].n} questions", fontsize=9)
        if result.offline:
            canvas.stamp(figure)
        return canvas.save(figure, *files)


def _label(line: ResultLine, kind: str) -> str:
    group = "" if kind == "retrieval" else line.group
    return ", ".join(filter(None, (group, line.label))) + " †" * line.bound


def _bar(axes: Axes, at: int, label: str, lines: Sequence[ResultLine]) -> None:
    for line in lines:
        scale = 1 if line.measure in NUMBERS else 100
        reach = [[scale * (line.value - line.low)], [scale * (line.high - line.value)]]
        axes.bar(
            [at], [scale * line.value], 0.85, yerr=reach, label=label, color=_colour(at), edgecolor="white",
            hatch="//" * line.bound, linewidth=0.5, error_kw={"elinewidth": 0.6, "ecolor": "#444444"},
        )  # fmt: skip
    axes.set_xticks([])
    axes.grid(visible=False, axis="x")


def _line(axes: Axes, at: int, label: str, lines: Sequence[ResultLine]) -> None:
    xs = [int(line.point.removeprefix("K=")) for line in lines]
    low, high = [100 * line.low for line in lines], [100 * line.high for line in lines]
    axes.fill_between(xs, low, high, color=_colour(at), alpha=0.15, linewidth=0)
    axes.plot(
        xs, [100 * line.value for line in lines], label=label, color=_colour(at), markersize=4, linewidth=1.3,
        marker=canvas.MARKERS[at % len(canvas.MARKERS)],
    )  # fmt: skip
    axes.set(xlabel="K, passages a query")


def _colour(at: int) -> str:
    return canvas.SERIES[at % len(canvas.SERIES)]

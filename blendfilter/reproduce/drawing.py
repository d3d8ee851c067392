"""The plots of a measured table, as SVG and PNG files beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blendfilter.evaluation.run import Run
from blendfilter.report import canvas, plots
from blendfilter.reproduce.results import NUMBERS, ResultLine, TableResult, by_label
from blendfilter.reproduce.runs import TableRun
from blendfilter.reproduce.tables import OF_CONTEXTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WORDS = {
    "em": "EM (%)", "f1": "F1 (%)", "accuracy": "accuracy (%)", "recall": "recall", "precision": "precision",
    "s_precision": "S-precision", "output_precision": "precision (%)", "context_tokens": "tokens",
    "inclusion": "inclusion (%)", "inclusion_raw": "inclusion, raw (%)", "seconds_in_all": "seconds in all",
}  # fmt: skip


def draw(result: TableResult, wanted: Sequence[TableRun], done: Mapping[Path, Run], folder: Path) -> list[Path]:
    """The plots of `result` in `folder`. Raises: MissingExtra (matplotlib)."""
    table, paths = result.table, list[Path]()

    def files(stem: str) -> list[Path]:
        return [folder / f"{stem}.{suffix}" for suffix in ("svg", "png")]

    lines_of: dict[str, list[ResultLine]] = {}
    for line in result.lines:
        lines_of.setdefault(line.task, []).append(line)
    if not lines_of:
        return []
    if table.kind == "frontier":
        for task, named in by_label([(one, done[one.folder]) for one in wanted]).items():
            found = plots.frontier(named)
            if any(map(found.known, plots.FRONTIER_COSTS)):  # else the server has given too little to draw it
                paths += found.draw(*files(f"{table.name}-{task}"))
    elif table.kind in OF_CONTEXTS or table.kind == "settings":
        paths += _side_by_side(result, files(table.name))
    for task, lines in lines_of.items():
        if table.kind in ("scores", "settings"):
            named = {}
            for one in (one for one in wanted if one.task == task):
                group = "retrieval" if one.row.group.startswith("With Retrieval") else one.row.group
                named[one.row.label if one.row.label not in named else f"{one.row.label} ({group})"] = done[one.folder]
            paths += plots.headline(named, *files(f"headline-{task}")) + plots.losses(named, *files(f"losses-{task}"))
        if table.kind in ("retrieval", "sweep", "samples"):
            paths += _figure(result, lines, files(table.name if len(lines_of) == 1 else f"{table.name}-{task}"))
    return paths


def _figure(result: TableResult, lines: Sequence[ResultLine], files: Sequence[Path]) -> list[Path]:
    """Figures 2 to 4: a panel a retriever with bars by measure, or a panel a measure with lines over K or bars."""
    of_retrieval = result.table.kind == "retrieval"
    panels: dict[str, list[ResultLine]] = {}
    for line in lines:
        panels.setdefault(line.group if of_retrieval else line.measure, []).append(line)
    with canvas.blank(7.0, 2.7) as figure:
        places = list(figure.subplots(1, len(panels), squeeze=False).flat)
        for axes, (panel, here) in zip(places, panels.items(), strict=True):
            if result.table.kind == "sweep":
                _sweep(axes, here)
            elif of_retrieval:
                _bars(axes, here, "measure", "label")
            else:
                _bars(axes, here, "label", "point")
            axes.set_title(_WORDS.get(panel, panel))
        if of_retrieval:
            places[0].set_ylabel("%")
        title = f"{result.table.title}: {lines[0].task}, {lines[0].n} questions"
        return _saved(figure, places[0], result, title, files)


def _saved(figure: Figure, axes: Axes, result: TableResult, title: str, files: Sequence[Path]) -> list[Path]:
    """A figure in every file, with its title, and one legend for all its panels beside them."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center")
    figure.suptitle(title, fontsize=9)
    if result.offline:
        canvas.stamp(figure)
    return canvas.save(figure, *files)


def _bars(axes: Axes, lines: Sequence[ResultLine], across: str, series: str) -> None:
    """A bar for each line, side by side for each value of the field `across`, a colour for each of `series`."""
    xs, names = (list(dict.fromkeys(getattr(line, field) for line in lines)) for field in (across, series))
    wide = 0.8 / len(names)
    for number, name in enumerate(names):
        here = [line for line in lines if getattr(line, series) == name]
        places = [xs.index(getattr(line, across)) - 0.4 + wide * (number + 0.5) for line in here]
        _bar(axes, places, 0.92 * wide, here, number, label=name)
    turned: dict[str, Any] = {"rotation": 25, "ha": "right"} if across == "label" else {}
    axes.set_xticks(range(len(xs)), [_WORDS.get(x, x) for x in xs], **turned)
    axes.set(ylim=(0, 100 if across == "measure" else None))
    axes.grid(visible=False, axis="x")


def _bar(
    axes: Axes, places: Sequence[float], wide: float, lines: Sequence[ResultLine], colour: int, **more: Any
) -> None:  # fmt: skip
    bars = [[scale * end for end in (line.value, line.value - line.low, line.high - line.value)]
            for line in lines for scale in [1 if line.measure in NUMBERS else 100]]  # fmt: skip
    heights, *reach = zip(*bars, strict=True)
    axes.bar(
        places, heights, wide, yerr=reach, color=canvas.SERIES[colour % len(canvas.SERIES)],
        error_kw={"elinewidth": 0.6, "ecolor": "#444444"}, **more,
    )  # fmt: skip


def _sweep(axes: Axes, lines: Sequence[ResultLine]) -> None:
    """A line a row over K, its interval as a band."""
    for number, name in enumerate(dict.fromkeys((line.group, line.label) for line in lines)):
        here = [line for line in lines if (line.group, line.label) == name]
        xs = [int(line.point.removeprefix("K=")) for line in here]
        colour = canvas.SERIES[number % len(canvas.SERIES)]
        low, high = [100 * line.low for line in here], [100 * line.high for line in here]
        axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(
            xs, [100 * line.value for line in here], label=", ".join(filter(None, name)), color=colour,
            marker=canvas.MARKERS[number % len(canvas.MARKERS)], markersize=4, linewidth=1.3,
        )  # fmt: skip
        axes.set_xticks(xs)
    axes.set(xlabel="K, passages a query")


def _side_by_side(result: TableResult, files: Sequence[Path]) -> list[Path]:
    """A panel a task, or a task's side, a bar a row, of the leading measure: as FilCo's figures are drawn.

    Rows that read the answer are hatched; a row that a task does not have leaves its place empty.
    """
    leading = {line.task: line.measure for line in reversed(result.lines)}
    leading |= {line.task: line.measure for line in result.lines if line.published is not None}  # as the paper measures
    lines = [line for line in result.lines if line.measure == leading[line.task]]
    panels = list(dict.fromkeys((line.task, line.point.partition(" ")[0]) for line in lines))
    rows: dict[tuple[str, str], bool] = {}
    for line in lines:
        rows[line.group, line.label] = rows.get((line.group, line.label), False) or line.bound
    columns = min(4, len(panels))
    height = math.ceil(len(panels) / columns)
    with canvas.blank(1.2 + 1.7 * columns, 0.8 + 1.7 * height) as figure:
        places = list(figure.subplots(height, columns, squeeze=False).flat)
        for axes, (task, side) in zip(places, panels, strict=False):
            here = {(line.group, line.label): line for line in lines
                    if (line.task, line.point.partition(" ")[0]) == (task, side)}  # fmt: skip
            for at, (name, bound) in enumerate(rows.items()):
                look: dict[str, Any] = {"edgecolor": "white", "hatch": "//" * bound, "linewidth": 0.5}
                look["label"] = ", ".join(filter(None, name)) + " †" * bound
                if name in here:
                    _bar(axes, [at], 0.85, [here[name]], at, **look)
                else:
                    axes.bar(at, 0, 0.85, color=canvas.SERIES[at % len(canvas.SERIES)], **look)
            axes.set_xticks([])
            axes.set_ylim(bottom=0)
            axes.grid(visible=False, axis="x")
            parts = (task, side, _WORDS.get(leading[task], leading[task]))
            axes.set_title(", ".join(filter(None, parts)), fontsize=7.5)
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        return _saved(figure, places[0], result, result.table.title, files)

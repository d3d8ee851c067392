"""The plots of a measured table, as SVG and PNG files beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blendfilter.evaluation.run import Run
from blendfilter.report import canvas, plots
from blendfilter.report import plots as frontier
from blendfilter.reproduce.results import NUMBERS, ResultLine, TableResult, by_label
from blendfilter.reproduce.runs import TableRun
from blendfilter.reproduce.tables import OF_CONTEXTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WORDS = {
    "em": "EM (%)", "f1": "F1 (%)", "accuracy": "accuracy (%)", "recall": "recall", "precision": "precision",
    "s_precision": "S-precision", "output_precision": "precision (%)", "context_tokens": "tokens",
    "inclusion": "inclusion (%)", "inclusion_raw": "inclusion, raw (%)", "seconds_in_all": "seconds in all",
}  # fmt: skip
Place = tuple[str, str]


def draw(result: TableResult, wanted: Sequence[TableRun], done: Mapping[Path, Run], folder: Path) -> list[Path]:
    """The plots of `result` in `folder`. Raises: MissingExtra (matplotlib)."""
    table, paths = result.table, list[Path]()
    tasks = list(dict.fromkeys(line.task for line in result.lines))

    def files(stem: str) -> list[Path]:
        return [folder / f"{stem}.{suffix}" for suffix in ("svg", "png")]

    if not tasks:
        return []
    if table.kind == "frontier":
        of_tasks = by_label([(one, done[one.folder]) for one in wanted])
        for task, found in ((task, frontier.frontier(named)) for task, named in of_tasks.items()):
            if any(map(found.known, frontier.FRONTIER_COSTS)):  # else the server has given too little to draw it
                paths += found.draw(*files(f"{table.name}-{task}"))
    elif table.kind in OF_CONTEXTS or table.kind == "settings":
        paths += _side_by_side(result, files(table.name))
    if table.kind in ("scores", "settings"):
        for task in tasks:
            named = _named_runs(task, wanted, done)
            paths += plots.headline(named, *files(f"headline-{task}")) + plots.losses(named, *files(f"losses-{task}"))
    if table.kind in ("retrieval", "sweep", "samples"):
        for task in tasks:
            lines = [line for line in result.lines if line.task == task]
            stem = table.name if len(tasks) == 1 else f"{table.name}-{task}"
            paths += _figure(result, lines, files(stem))
    return paths


def _named_runs(task: str, wanted: Sequence[TableRun], done: Mapping[Path, Run]) -> dict[str, Run]:
    named: dict[str, Run] = {}
    for one in (one for one in wanted if one.task == task):
        group = "retrieval" if one.row.group.startswith("With Retrieval") else one.row.group
        named[one.row.label if one.row.label not in named else f"{one.row.label} ({group})"] = done[one.folder]
    return named


def _drawn(
    result: TableResult, title: str, size: tuple[float, float], shape: tuple[int, int], files: Sequence[Path],
    panels: Callable[[list[Axes]], None],
) -> list[Path]:  # fmt: skip
    """A figure of `shape` panels with one legend beside them, saved into every file."""
    with canvas.blank(*size) as figure:
        places = [axes for row in figure.subplots(*shape, squeeze=False) for axes in row]
        panels(places)
        figure.legend(*places[0].get_legend_handles_labels(), loc="outside right center")
        figure.suptitle(title, fontsize=9)
        if result.offline:
            canvas.stamp(figure)
        return canvas.save(figure, *files)


def _figure(result: TableResult, lines: Sequence[ResultLine], files: Sequence[Path]) -> list[Path]:
    """Figures 2 to 4: a panel a retriever with bars by measure, or a panel a measure with lines over K or bars."""
    of_retrieval = result.table.kind == "retrieval"
    panels = list(dict.fromkeys(line.group if of_retrieval else line.measure for line in lines))

    def fill(places: list[Axes]) -> None:
        for axes, panel in zip(places, panels, strict=True):
            here = [line for line in lines if panel == (line.group if of_retrieval else line.measure)]
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
    return _drawn(result, title, (7.0, 2.7), (1, len(panels)), files, fill)


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
    scales = [1 if line.measure in NUMBERS else 100 for line in lines]
    pairs = list(zip(scales, lines, strict=True))
    reach = [[x * (line.value - line.low) for x, line in pairs], [x * (line.high - line.value) for x, line in pairs]]
    axes.bar(
        places, [x * line.value for x, line in pairs], wide, yerr=reach,
        color=canvas.SERIES[colour % len(canvas.SERIES)], error_kw={"elinewidth": 0.6, "ecolor": "#444444"}, **more,
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
    rows: dict[Place, bool] = {}
    for line in lines:
        rows[line.group, line.label] = rows.get((line.group, line.label), False) or line.bound
    columns = min(4, len(panels))
    height = math.ceil(len(panels) / columns)

    def fill(places: list[Axes]) -> None:
        for axes, (task, side) in zip(places, panels, strict=False):
            here = {(line.group, line.label): line for line in lines
                    if (line.task, line.point.partition(" ")[0]) == (task, side)}  # fmt: skip
            for at, (name, bound) in enumerate(rows.items()):
                look: dict[str, Any] = {
                    "label": ", ".join(filter(None, name)) + " †" * bound,
                    "hatch": "//" * bound,
                    "linewidth": 0.5,
                }
                if name in here:
                    _bar(axes, [at], 0.85, [here[name]], at, edgecolor="white", **look)
                else:
                    axes.bar(at, 0, 0.85, color=canvas.SERIES[at % len(canvas.SERIES)], edgecolor="white", **look)
            axes.set_xticks([])
            axes.set_ylim(bottom=0)
            axes.grid(visible=False, axis="x")
            axes.set_title(
                ", ".join(filter(None, (task, side, _WORDS.get(leading[task], leading[task])))), fontsize=7.5
            )
        for axes in places[len(panels) :]:
            axes.set_axis_off()

    return _drawn(result, result.table.title, (1.2 + 1.7 * columns, 0.8 + 1.7 * height), (height, columns), files, fill)

"""The plots of Figures 2 to 4, and of a table's runs: what they score for what they cost, and where questions are lost.

In: a measured table and its runs. Out: SVG and PNG files beside the table; each has the table's lines behind it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blendfilter.evaluation.reproducing import filtered
from blendfilter.evaluation.reproducing.lines import NUMBERS, Line
from blendfilter.evaluation.reproducing.papers import OF_CONTEXTS
from blendfilter.evaluation.reproducing.results import RETRIEVAL, Result
from blendfilter.evaluation.reproducing.runs import Wanted
from blendfilter.evaluation.run import Run
from blendfilter.report import canvas, plots
from blendfilter.report import plots as frontier

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = ("svg", "png")
_WORDS = {"em": "EM (%)", "f1": "F1 (%)", "accuracy": "accuracy (%)", "recall": "recall", "precision": "precision",
          "s_precision": "S-precision", "output_precision": "precision (%)", "context_tokens": "tokens",
          "inclusion": "inclusion (%)", "inclusion_raw": "inclusion, raw (%)",
          "seconds_in_all": "seconds in all"}  # fmt: skip


def draw(result: Result, wanted: Sequence[Wanted], done: Mapping[Path, Run], folder: Path) -> list[Path]:
    """The plots of `result` in `folder`, each as SVG and PNG. Raises: MissingExtra (matplotlib)."""
    kind = result.table.kind
    if not result.lines:
        return []
    if kind in ("scores", "settings"):
        drawn = [_side_by_side(result, folder)] if kind == "settings" else []
        drawn += [list(_of_runs(task, wanted, done, folder)) for task in _tasks(result)]
        return [path for paths in drawn for path in paths]
    if kind == "frontier":
        return _frontiers(result, wanted, done, folder)
    if kind in OF_CONTEXTS:
        return _side_by_side(result, folder)
    figures = {"retrieval": _retrieval, "sweep": _sweep, "samples": _samples}
    paths: list[Path] = []
    for task in _tasks(result):
        lines = [line for line in result.lines if line.task == task]
        name = result.table.name if len(_tasks(result)) == 1 else f"{result.table.name}-{task}"
        measures = list(dict.fromkeys(line.measure for line in lines))
        with canvas.blank(7.0, 2.7) as figure:
            figures[result.table.kind](figure.subplots(1, _panels(result, lines), squeeze=False)[0], lines, measures)
            figure.suptitle(f"{result.table.title}: {task}, {lines[0].n} questions", fontsize=9)
            if result.offline:
                canvas.stamp(figure)
            paths += canvas.save(figure, *(folder / f"{name}.{suffix}" for suffix in FORMATS))
    return paths


def _frontiers(result: Result, wanted: Sequence[Wanted], done: Mapping[Path, Run], folder: Path) -> list[Path]:
    """One a task, where the server told enough to draw it."""
    by_task = filtered.by_label([(one, done[one.folder]) for one in wanted])
    found = {task: frontier.frontier(named) for task, named in by_task.items()}
    return [
        path
        for task, each in found.items()
        if any(map(each.known, frontier.FRONTIER_COSTS))
        for path in each.draw(*(folder / f"{result.table.name}-{task}.{suffix}" for suffix in FORMATS))
    ]


def _side_by_side(result: Result, folder: Path) -> list[Path]:
    """A panel a task, or a task's side, a bar a row, of the leading measure: how FilCo's figures are drawn."""
    leading = {line.task: line.measure for line in reversed(result.lines)}
    leading |= {line.task: line.measure for line in result.lines if line.published is not None}  # as the paper measures
    shown = [line for line in result.lines if line.measure == leading[line.task]]
    bounds = {(line.group, line.label) for line in shown if line.bound}
    panels = list(dict.fromkeys((line.task, line.point.partition(" ")[0]) for line in shown))
    columns = min(4, len(panels))
    with canvas.blank(1.2 + 1.7 * columns, 0.8 + 1.7 * math.ceil(len(panels) / columns)) as figure:
        grid = figure.subplots(math.ceil(len(panels) / columns), columns, squeeze=False)
        places = [axes for row in grid for axes in row]
        names = list(dict.fromkeys((line.group, line.label) for line in shown))
        for axes, (task, side) in zip(places, panels, strict=False):
            here = [line for line in shown if (line.task, line.point.partition(" ")[0]) == (task, side)]
            _named_bars(axes, here, {name: name in bounds for name in names})
            measure = leading[task]
            axes.set_title(", ".join(filter(None, (task, side, _WORDS.get(measure, measure)))), fontsize=7.5)
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        figure.legend(*places[0].get_legend_handles_labels(), loc="outside right center")
        figure.suptitle(result.table.title, fontsize=9)
        if result.offline:
            canvas.stamp(figure)
        return canvas.save(figure, *(folder / f"{result.table.name}.{suffix}" for suffix in FORMATS))


def _named_bars(axes: Axes, lines: Sequence[Line], names: Mapping[tuple[str, str], bool]) -> None:
    """One bar a row, hatched where it reads the answer; a row that a task does not have leaves its place empty."""
    scale = 1 if lines[0].measure in NUMBERS else 100
    found = {(line.group, line.label): line for line in lines}
    for place, (name, bound) in enumerate(names.items()):
        line, label = found.get(name), ", ".join(filter(None, name))
        value, low, high = (scale * each for each in ((0, 0, 0) if line is None else (line.value, line.low, line.high)))
        axes.bar(
            place, value, 0.85, yerr=[[value - low], [high - value]], label=label + " †" * bound, hatch="//" * bound,
            color=canvas.SERIES[place % len(canvas.SERIES)], edgecolor="white", linewidth=0.5,
            error_kw={"elinewidth": 0.6, "ecolor": "#444444"},
        )  # fmt: skip
    axes.set_xticks([])
    axes.set_ylim(bottom=0)
    axes.grid(visible=False, axis="x")


def _tasks(result: Result) -> list[str]:
    return list(dict.fromkeys(line.task for line in result.lines))


def _panels(result: Result, lines: Sequence[Line]) -> int:
    """One panel a retriever in Figure 2, one a measure elsewhere."""
    return len({line.group if result.table.kind == "retrieval" else line.measure for line in lines})


def _of_runs(task: str, wanted: Sequence[Wanted], done: Mapping[Path, Run], folder: Path) -> Iterator[Path]:
    named: dict[str, Run] = {}
    for each in (one for one in wanted if one.task == task):
        label = each.row.label
        named[label if label not in named else f"{label} ({_aside(each)})"] = done[each.folder]
    for kind, drawn in (("headline", plots.headline), ("losses", plots.losses)):
        yield from drawn(named, *(folder / f"{kind}-{task}.{suffix}" for suffix in FORMATS))


def _aside(each: Wanted) -> str:
    """What tells rows of one label apart."""
    return "retrieval" if each.row.group.startswith("With Retrieval") else each.row.group


def _retrieval(panels: Sequence[Axes], lines: Sequence[Line], measures: Sequence[str]) -> None:
    """Figure 2: a panel a retriever, recall, precision and S-precision, a bar a method."""
    for axes, group in zip(panels, dict.fromkeys(line.group for line in lines), strict=True):
        here = [line for line in lines if line.group == group]
        labels = list(dict.fromkeys(line.label for line in here))
        for place, label in enumerate(labels):
            bars = [next(line for line in here if (line.label, line.measure) == (label, name)) for name in RETRIEVAL]
            _bars(axes, place, len(labels), bars, label)
        axes.set_xticks(range(len(RETRIEVAL)), [_WORDS[name] for name in RETRIEVAL])
        axes.set(title=group, ylim=(0, 100))
        axes.grid(visible=False, axis="x")
    panels[0].set_ylabel("%")
    panels[0].figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")


def _samples(panels: Sequence[Axes], lines: Sequence[Line], measures: Sequence[str]) -> None:
    """Figure 4: a panel a measure, for each method one answer beside the best of several."""
    labels = list(dict.fromkeys(line.label for line in lines))
    points = list(dict.fromkeys(line.point for line in lines))
    for axes, measure in zip(panels, measures, strict=True):
        for place, point in enumerate(points):
            _bars(axes, place, len(points), [x for x in lines if (x.point, x.measure) == (point, measure)], point)
        axes.set_xticks(range(len(labels)), labels, rotation=25, ha="right")
        axes.set(title=_WORDS[measure], ylim=(0, None))
        axes.grid(visible=False, axis="x")
    panels[0].figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")


def _bars(axes: Axes, place: int, of: int, lines: Sequence[Line], label: str) -> None:
    wide = 0.8 / of
    xs = [x - 0.4 + wide * (place + 0.5) for x in range(len(lines))]
    heights = [100 * line.value for line in lines]
    reach = [[100 * (line.value - line.low) for line in lines], [100 * (line.high - line.value) for line in lines]]
    axes.bar(
        xs, heights, 0.92 * wide, yerr=reach, label=label, color=canvas.SERIES[place % len(canvas.SERIES)],
        error_kw={"elinewidth": 0.6, "ecolor": "#444444"},
    )  # fmt: skip


def _sweep(panels: Sequence[Axes], lines: Sequence[Line], measures: Sequence[str]) -> None:
    """Figure 3: a panel a measure, a line a method over K, its interval as a band."""
    for axes, measure in zip(panels, measures, strict=True):
        for number, name in enumerate(dict.fromkeys((line.group, line.label) for line in lines)):
            here = [line for line in lines if (line.group, line.label, line.measure) == (*name, measure)]
            xs = [int(line.point.removeprefix("K=")) for line in here]
            colour = canvas.SERIES[number % len(canvas.SERIES)]
            low, high = [100 * line.low for line in here], [100 * line.high for line in here]
            axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
            axes.plot(
                xs, [100 * line.value for line in here], label=", ".join(filter(None, name)), color=colour,
                marker=canvas.MARKERS[number % len(canvas.MARKERS)], markersize=4, linewidth=1.3,
            )  # fmt: skip
        axes.set(xlabel="K, passages a query", title=_WORDS.get(measure, measure))
        axes.set_xticks(xs)
    panels[0].figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right center")

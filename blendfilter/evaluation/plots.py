"""Two pictures of runs: what accuracy costs (the headline plot), and where questions are lost.

In: finished runs. Out: an SVG or PNG file, the same bytes for the same runs.

The headline plot shows the leading metric with its 95 % interval against calls, tokens and latency a question, a point
a run. Points on the Pareto front (no other run is as good for less) are filled and joined. Latency is the median of the
seconds in which at least one call of a question was in flight; it is the server's as much as the method's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from blendfilter.errors import BadArgument, RunMismatch, UnknownName
from blendfilter.evaluation import canvas
from blendfilter.evaluation.latency import latency
from blendfilter.evaluation.ledger import tokens_of
from blendfilter.evaluation.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Runs = Mapping[str, Run | str | Path] | Iterable[Run | str | Path]
PANELS = ("calls", "tokens", "seconds")
_AXES = {
    "calls": "model calls a question", "tokens": "tokens a question", "seconds": "median seconds a question",
    "milliseconds": "median ms a question", "tokens_in": "input tokens a question, all calls",
    "prompt_tokens": "tokens of the prompt that answers",
}  # fmt: skip
_LOSSES = {
    "right": ("right", canvas.GREEN, ""),
    "right_without_gold": ("right without gold", canvas.SKY, "//"),
    "answered_wrong": ("kept, answered wrong", canvas.PURPLE, ""),
    "filtered_away": ("retrieved, filtered away", canvas.ORANGE, ".."),
    "not_retrieved": ("not retrieved", canvas.VERMILLION, ""),
}


class Dot(NamedTuple):
    """One run in a plot of scores: its score with its interval, and what a question costs (nan: nobody told).

    `bound`: it reads the answer, so that no other run can be held against it; it is never on the front.
    """

    label: str
    value: float
    low: float
    high: float
    calls: float
    tokens: float
    seconds: float
    tokens_in: float = math.nan
    prompt_tokens: float = math.nan
    bound: bool = False


def plot(runs: Runs, path: str | Path, kind: str = "headline") -> Path:
    """Draw `runs` into the file `path` (.svg or .png): `headline`, accuracy against cost, or `losses`.

    `runs` are runs or their folders, or a mapping from the names that the plot shows to them.

    Raises:
        UnknownName: no such kind. RunMismatch: runs over different questions. MissingExtra: no matplotlib here.
    """
    canvas.check(path)
    kinds = {"headline": headline, "losses": losses}
    if kind not in kinds:
        raise UnknownName.of("plot", kind, kinds)
    return kinds[kind](runs, path)[0]


def headline(runs: Runs, *paths: str | Path) -> list[Path]:
    """The leading metric against calls, tokens and latency, a point a run, into every file of `paths`."""
    named = named_runs(runs)
    metric = next(iter(next(iter(named.values())).metrics["metrics"]))
    offline = any(run.offline for run in named.values())
    dots = [dot(label, run) for label, run in named.items()]
    return draw(dots, *paths, metric=metric, title=title_of(named), offline=offline)


def draw(
    dots: Sequence[Dot], *paths: str | Path, metric: str, title: str, offline: bool = False,
    panels: Sequence[str] = PANELS,
) -> list[Path]:  # fmt: skip
    """The headline plot of `dots`: panels that share their scores, one for each cost that all runs know."""
    ranked = sorted(dots, key=lambda each: (-each.value, each.calls))
    numbers = [str(place) for place in range(1, len(ranked) + 1)]
    costs = [cost for cost in panels if not any(math.isnan(getattr(each, cost)) for each in ranked)]
    if not costs:
        raise BadArgument("not every run knows its tokens, for a server told none: there is nothing to draw scores by")
    with canvas.blank(7.4, 3.4) as figure:
        grid = figure.add_gridspec(1, len(costs) + 1, width_ratios=(*(1 for _ in costs), 3.3 / len(PANELS)))
        drawn: list[Axes] = []
        for column, cost in enumerate(costs):
            drawn.append(figure.add_subplot(grid[column], sharey=drawn[0] if drawn else None))
            _scatter(drawn[-1], ranked, cost)
            drawn[-1].tick_params(labelleft=not column)
        drawn[0].set_ylabel(f"{metric.upper() if len(metric) < 3 else metric} (%)")
        _key(figure.add_subplot(grid[len(costs)]), ranked, numbers)
        figure.suptitle(title, fontsize=9)
        if offline:
            canvas.stamp(figure)
        figure.draw_without_rendering()  # the numbers are placed where everything else has come to rest
        for axes, cost in zip(drawn, costs, strict=True):
            heights = [100 * each.value for each in ranked]
            canvas.label_points(axes, list(zip(_scaled(ranked, cost), heights, strict=True)), numbers)
        return canvas.save(figure, *paths)


def _key(axes: Axes, ranked: Sequence[Dot], numbers: Sequence[str]) -> None:
    """The runs by number, the best first, each with its score."""
    axes.set_axis_off()
    bound = any(each.bound for each in ranked)
    last = max(len(ranked) + 2 + bound, 14)
    axes.set(xlim=(0, 1), ylim=(last, -1))
    if bound:
        axes.text(0.11, last - 1.8, "diamond: reads the answer, a bound", va="center", fontsize=6.5, color=canvas.GREY)
    axes.text(0.11, last - 1, "filled: none is as good for less", va="center", fontsize=6.5, color=canvas.GREY)
    axes.text(0.11, last - 0.2, "lines: 95 % intervals", va="center", fontsize=6.5, color=canvas.GREY)
    labels = [_cut(each.label) for each in ranked]
    size = min(7.0, 7 * 38 / max(1, *map(len, labels)))  # a long name has to fit too
    for place, (number, label, each) in enumerate(zip(numbers, labels, ranked, strict=True)):
        axes.text(0.06, place, number, ha="right", va="center", fontsize=7, fontweight="bold")
        axes.text(0.11, place, f"{label}  {100 * each.value:.1f}", va="center", fontsize=size)


def _cut(label: str, most: int = 60) -> str:
    """A label that leaves room for the plot."""
    return label if len(label) <= most else f"{label[: most - 1]}…"


def losses(runs: Runs, *paths: str | Path) -> list[Path]:
    """Where each run's questions are lost, a stacked bar a run, into every file of `paths`."""
    named = named_runs(runs)
    with canvas.blank(7.2, 1.2 + 0.24 * len(named)) as figure:
        axes = figure.subplots()
        places, left = range(len(named)), [0.0] * len(named)
        for name, (words, colour, hatch) in _told(named.values()).items():
            shares = [100 * run.losses()[name] / sum(run.losses().values()) for run in named.values()]
            axes.barh(
                places, shares, left=left, color=colour, hatch=hatch, label=words, height=0.72, edgecolor="white",
                linewidth=0.5,
            )  # fmt: skip
            for place, (start, share) in enumerate(zip(left, shares, strict=True)):
                if share >= 5:
                    dark = colour == canvas.VERMILLION
                    axes.text(
                        start + share / 2, place, f"{share:.0f}", ha="center", va="center", fontsize=7,
                        color="white" if dark else "black",
                        bbox=None if not hatch else {"facecolor": colour, "edgecolor": "none", "pad": 1},
                    )  # fmt: skip
            left = [start + share for start, share in zip(left, shares, strict=True)]
        axes.set(xlim=(0, 100), xlabel="% of the questions")
        axes.set_yticks(places, [_cut(label) for label in named])
        axes.margins(y=0.01)
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.tick_params(axis="y", length=0)
        figure.legend(loc="outside upper center", ncols=len(_LOSSES), handlelength=1.2, columnspacing=1.2)
        if any(run.offline for run in named.values()):
            canvas.stamp(figure)
        return canvas.save(figure, *paths)


def _told(runs: Iterable[Run]) -> Mapping[str, tuple[str, str, str]]:
    """The parts of a bar; where no run's questions name their gold, there is only right and wrong to tell."""
    if any(row.get("gold_titles") for run in runs for row in run.rows):
        return _LOSSES
    return {
        "right": _LOSSES["right"],
        "answered_wrong": ("wrong (no gold titles known)", *_LOSSES["answered_wrong"][1:]),
    }


def dot(label: str, run: Run) -> Dot:
    """A run's place in the headline plot."""
    score = next(iter(run.metrics["metrics"].values()))
    total, asked = run.metrics["ledger"]["total"], len(run.rows)
    tokens = tokens_of(total)
    seconds = latency(run).median
    costs = total["calls"] / asked, math.nan if tokens is None else tokens / asked, seconds
    return Dot(label, score["value"], score["low"], score["high"], *costs, bound=run.reads_gold)


def front(dots: Sequence[Dot], cost: str) -> list[Dot]:
    """The Pareto front, cheapest first: no other run scores as much for less, or more for as much.

    >>> cheap, dear, beaten = (Dot(n, v, 0, 1, c, 0, 0) for n, v, c in [("a", .4, 1), ("b", .5, 11), ("c", .4, 2)])
    >>> [each.label for each in front([dear, beaten, cheap], "calls")]
    ['a', 'b']
    """
    best = float("-inf")
    kept = []
    for each in sorted(dots, key=lambda one: (getattr(one, cost), -one.value)):
        if each.value > best and not each.bound:
            kept.append(each)
            best = each.value
    return kept


def _scatter(axes: Axes, dots: Sequence[Dot], cost: str) -> None:
    ahead, xs = front(dots, cost), _scaled(dots, cost)
    place = dict(zip(dots, xs, strict=True))
    steps = [place[each] for each in ahead]
    axes.step(steps, [100 * each.value for each in ahead], where="post", color=canvas.BLUE, linewidth=0.9, zorder=2.5)
    for each in dots:
        x, y, on_it = place[each], 100 * each.value, each in ahead
        axes.vlines(x, 100 * each.low, 100 * each.high, color="#B8B8B8", linewidth=0.6, zorder=2)
        colour = canvas.BLUE if on_it else canvas.GREY
        filled = colour if on_it else "white"
        mark = "D" if each.bound else "o"
        axes.plot(
            x, y, mark, markersize=4.5, color=colour, markerfacecolor=filled, markeredgewidth=0.9, zorder=3 + on_it
        )
    quick = cost == "seconds" and xs != [each.seconds for each in dots]
    axes.set(xscale="log" if min(xs) > 0 else "linear", xlabel=_AXES["milliseconds" if quick else cost])
    axes.margins(x=0.25, y=0.08)
    ticks = canvas.ticks(*axes.get_xlim())
    axes.set_xticks(ticks, [f"{tick:.6g}" if tick < 1000 else f"{tick / 1000:.6g}k" for tick in ticks])
    axes.set_xticks([], minor=True)


def _scaled(dots: Sequence[Dot], cost: str) -> list[float]:
    """The cost of each run as its axis counts it: milliseconds where all is over in less than a tenth of a second."""
    xs = [getattr(each, cost) for each in dots]
    return [1000 * x for x in xs] if cost == "seconds" and max(xs) < 0.1 else xs


def named_runs(runs: Runs) -> dict[str, Run]:
    """Runs by the labels that a plot shows; all over the same questions, or they could not share an axis."""
    given = runs if isinstance(runs, Mapping) else _labelled(runs)
    named = {label: run if isinstance(run, Run) else Run(run) for label, run in given.items()}
    if not named:
        raise BadArgument("no runs to plot: give at least one")
    tasks = {run.settings["task"]: label for label, run in named.items()}
    if len(tasks) > 1:
        (one, label), (other, second) = list(tasks.items())[:2]
        raise RunMismatch(f"'{label}' is {one}, '{second}' is {other}: plot the runs of one task")
    asked = {run.settings["data"]["fingerprint"]: label for label, run in named.items()}
    if len(asked) > 1:
        label, second = list(asked.values())[:2]
        raise RunMismatch(f"'{label}' and '{second}' are over different questions: plot runs over the same ones")
    return named


def _labelled(runs: Iterable[Run | str | Path]) -> dict[str, Run]:
    labels: dict[str, Run] = {}
    for run in (each if isinstance(each, Run) else Run(each) for each in runs):
        label = short_label(run)
        labels[label if label not in labels else run.name] = run
    return labels


def short_label(run: Run) -> str:
    """A run as a plot names it: its method, and what sets it apart from that method's usual form."""
    method = run.settings["method"]
    arguments: dict[str, Any] = method["arguments"]
    parts = [str(method["name"])]
    if (k := arguments.get("k", 5)) != 5:
        parts.append(f"K={k}")
    if without := arguments.get("without"):
        parts.append(f"without {without}")
    if (chosen := arguments.get("filter")) and (parts[0], chosen) != ("blendfilter", "KnowledgeFilter"):
        parts.append(str(chosen))
    if arguments.get("filter_union"):
        parts.append("union")
    return ", ".join(parts)


def title_of(named: Mapping[str, Run]) -> str:
    """What the runs are over, and who answered."""
    run = next(iter(named.values()))
    return f"{run.settings['task']}, {run.metrics['n']} questions, {run.settings['lm']['name']}"

"""Pictures of finished runs: what accuracy costs (the headline plot, the frontier), and where questions are lost.

A picture is an SVG or PNG file (matplotlib, the extra `[plots]`), the same bytes for the same runs: nothing of the
clock or the machine gets into it. Colours are those of Okabe & Ito, "Color Universal Design" (2008), which a
colour-blind reader tells apart.

The headline plot shows the leading metric with its 95 % interval against calls, tokens and latency a question, a point
a run. Points on the Pareto front (no other run is as good for less) are filled and joined. Latency is the median of the
seconds in which at least one call of a question was in flight; it is the server's as much as the method's.

The frontier is a table that draws itself: how good answers are for how many input tokens. Tokens are counted twice:
those of the one prompt that is read for the answer, which is what a filter shortens, and those of all calls of a
question, a filter's own included, which is what is paid for. A run whose filter reads the answer is an upper bound, and
never on a front.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal, NamedTuple

from blendfilter.errors import BadArgument, MissingExtra, RunMismatch, UnknownName
from blendfilter.evaluation.ledger import latency, per_question
from blendfilter.evaluation.rows import ERROR, UNKNOWN
from blendfilter.evaluation.run import READS_GOLD, Run, Runs, named_runs
from blendfilter.evaluation.run_passages import input_tokens
from blendfilter.extras import needed
from blendfilter.files import AnyPath, path_of, writing
from blendfilter.report.run_text import LOSS_WORDS, heading
from blendfilter.table import Table

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, GREY, ORANGE, SKY = "#000000", "#767676", "#E69F00", "#56B4E9"
GREEN, BLUE, VERMILLION, PURPLE = "#009E73", "#0072B2", "#D55E00", "#CC79A7"
SERIES = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK)
MARKERS = "os^v<>P"
OFFLINE = "offline reader: shows the pipeline, not quality"
LOSS_STYLES = {
    "right": (GREEN, ""),
    "right_without_gold": (SKY, "//"),
    "answered_wrong": (PURPLE, ""),
    "filtered_away": (ORANGE, ".."),
    "not_retrieved": (VERMILLION, ""),
    ERROR: (GREY, "xx"),
    UNKNOWN: ("#C4C4C4", ""),
}
"""Colour and hatch of each loss, in the order of a bar."""
_STYLE = {
    "font.family": "DejaVu Sans", "font.size": 8, "axes.titlesize": 7.5, "axes.labelsize": 8, "axes.linewidth": 0.6,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6, "axes.axisbelow": True, "xtick.labelsize": 7, "ytick.labelsize": 7, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "legend.frameon": False, "legend.fontsize": 7, "legend.title_fontsize": 6.5,
    "svg.hashsalt": "blendfilter", "svg.fonttype": "path", "text.parse_math": False, "figure.titlesize": 9,
}  # fmt: skip
_METADATA: Mapping[str, dict[str, None]] = {
    ".svg": {"Date": None, "Creator": None},
    ".png": {"Software": None},
}
"""What matplotlib would say of the clock and itself, left out."""
PANELS = ("calls", "tokens", "seconds")
FRONTIER_COSTS = ("prompt_tokens", "tokens_in")
_AXES = {
    "calls": "model calls a question", "tokens": "tokens a question", "seconds": "median seconds a question",
    "tokens_in": "input tokens a question, all calls",
    "prompt_tokens": "tokens of the prompt that answers",
}  # fmt: skip


class RunPoint(NamedTuple):
    """One run in a plot of scores: its score with its interval, and what a question costs (nan: unknown).

    `bound`: its filter reads the answer, so that no other run compares with it; it is never on the front. `errors`:
    answers that ended in an error, and count as 0 in its score; where all of them did, it has `failed`.
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
    errors: int = 0
    failed: bool = False

    @property
    def named(self) -> str:
        """Its label, with its errors where there are any."""
        return f"{self.label} (errors: {self.errors})" if self.errors else self.label

    @property
    def percent(self) -> str:
        """Its score in %, to one decimal; in words where it is none."""
        return "failed" if self.failed else f"{100 * self.value:.1f}"


def point_of(label: str, run: Run) -> RunPoint:
    """A run's place in the headline plot."""
    score = next(iter(run.metrics["metrics"].values()))
    calls, tokens = per_question(run)
    return RunPoint(
        label,
        score["value"],
        score["low"],
        score["high"],
        calls=calls,
        tokens=math.nan if tokens is None else tokens,
        seconds=latency(run).median,
        bound=run.reads_gold,
        errors=run.errors,
        failed=run.failed,
    )


def front(points: Sequence[RunPoint], cost: str) -> list[RunPoint]:
    """The Pareto front, cheapest first: no other run scores as much for less, or more for as much.

    >>> cheap, dear, beaten = (RunPoint(n, v, 0, 1, c, 0, 0) for n, v, c in [("a", .4, 1), ("b", .5, 11), ("c", .4, 2)])
    >>> [point.label for point in front([dear, beaten, cheap], "calls")]
    ['a', 'b']
    """
    best = float("-inf")
    kept = []
    for point in sorted(points, key=lambda one: (getattr(one, cost), -one.value)):
        if point.value > best and not (point.bound or point.failed):
            kept.append(point)
            best = point.value
    return kept


def plot(runs: Runs, path: AnyPath, kind: str = "headline") -> Path:
    """Draw `runs` into the file `path` (.svg or .png): `headline`, accuracy against cost, or `losses`.

    `runs` are runs or their folders (or one), or a mapping from the names that the plot shows to them.

    Raises:
        UnknownName: no such kind. RunMismatch: runs over different questions. MissingExtra: no matplotlib here.
    """
    kinds = {"headline": headline, "losses": losses}
    if kind not in kinds:
        raise UnknownName.of("plot", kind, kinds)
    return kinds[kind](runs, path)[0]


def headline(runs: Runs, *paths: AnyPath) -> list[Path]:
    """The leading metric against calls, tokens and latency, a point a run, into every file of `paths`."""
    return _draw_scores(_scored(runs, point_of), PANELS, *paths)


def losses(runs: Runs, *paths: AnyPath) -> list[Path]:
    """Where each run's questions are lost, a stacked bar a run, into every file of `paths`."""
    named = _over_the_same(runs)
    return draw(
        [partial(_loss_bars, named=named)],
        *paths,
        size=(7.2, 1.3 + 0.24 * len(named)),
        legend="outside upper center",
        offline=any(run.offline for run in named.values()),
    )


def _loss_bars(axes: Axes, named: Mapping[str, Run]) -> None:
    places, left = range(len(named)), [0.0] * len(named)
    for name, words in _bar_parts(named.values()).items():
        colour, hatch = LOSS_STYLES[name]
        shares = [
            100 * run.losses().get(name, 0) / sum(run.losses().values())
            for run in named.values()
        ]
        bars = axes.barh(
            places, shares, left=left, color=colour, hatch=hatch, label=words, edgecolor="white"
        )
        written = [f"{share:.0f}" if share >= 5 else "" for share in shares]
        behind = {"facecolor": "#FFFFFFC0", "edgecolor": "none", "pad": 1}
        axes.bar_label(bars, written, label_type="center", fontsize=7, bbox=behind)
        left = [start + share for start, share in zip(left, shares, strict=True)]
    axes.set(xlim=(0, 100), xlabel="% of the questions")
    axes.set_yticks(places, [_cut(label, 60) for label in named])
    axes.invert_yaxis()
    axes.grid(visible=False)


def _bar_parts(runs: Collection[Run]) -> dict[str, str]:
    """The parts of a bar, rare ones if there are any; where no gold is known, only right and wrong."""
    parts = {name: LOSS_WORDS[name] for name in LOSS_STYLES}
    if not any(row["gold_titles"] for run in runs for row in run.rows):
        wrong = "wrong (no gold titles known)"
        parts = {"right": "right", "answered_wrong": wrong, ERROR: LOSS_WORDS[ERROR]}
    counts = [run.losses() for run in runs]
    rare = [name for name in (ERROR, UNKNOWN) if not any(each.get(name) for each in counts)]
    return {name: words for name, words in parts.items() if name not in rare}


def _cut(label: str, most: int) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


def _over_the_same(runs: Runs) -> dict[str, Run]:
    """Runs by the labels that a plot shows; all over the same questions, or they could not share an axis."""
    named = named_runs(runs)
    if not named:
        raise BadArgument("no runs to plot: give at least one")
    over = {
        (run.settings["task"], run.settings["data"]["fingerprint"]): label
        for label, run in named.items()
    }
    if len(over) > 1:
        label, second = list(over.values())[:2]
        raise RunMismatch(
            f"'{label}' and '{second}' are over different questions: plot runs over the same ones"
        )
    return named


# --- scores against costs -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frontier:
    """Runs by their scores, the best first; it prints as a table."""

    dots: tuple[RunPoint, ...]
    metric: str
    title: str
    offline: bool

    def front(self, cost: str = "tokens_in") -> list[RunPoint]:
        """The runs that no other beats for less, cheapest first; empty where not all runs know what they cost."""
        return front(self.dots, cost) if self.known(cost) else []

    def known(self, cost: str) -> bool:
        """Whether all runs that did not fail know what they cost."""
        return not any(
            math.isnan(getattr(point, cost)) for point in self.dots if not point.failed
        )

    def draw(self, *paths: AnyPath) -> list[Path]:
        """Draw it into every file of `paths`, .svg or .png.

        Raises: MissingExtra (matplotlib). BadArgument: no panel has a cost that all runs know.
        """
        return _draw_scores(self, FRONTIER_COSTS, *paths)

    def text(self) -> str:
        """An aligned table, and below it how to read it."""
        return f"{self.table().text()}\n"

    def table(self) -> Table:
        """The figures as a table, which has other forms too: `markdown()`, `latex()`, `csv()`, `html()`."""
        header = ["", "score", "answer's prompt", "front", "all calls", "front"]
        notes = [
            f"score: {self.metric}, percent; ±: half of the 95 % interval; tokens: input tokens a question",
            "*: on the front, no other run is as good for fewer tokens",
        ]
        if any(point.errors for point in self.dots):
            notes.append("errors: answers that ended in an error; they count as 0")
        if any(point.bound for point in self.dots):
            notes.append(f"† {READS_GOLD}, never on the front")
        if self.offline:
            notes.append(
                "the offline reader answered: this shows the pipeline, not its quality"
            )
        return Table(header, list(map(self._cells, self.dots)), self.title, notes)

    def _cells(self, point: RunPoint) -> list[str]:
        half = "" if point.failed else f" ± {50 * (point.high - point.low):.1f}"
        cells = [f"{point.named} †" if point.bound else point.named, point.percent + half]
        for cost in FRONTIER_COSTS:
            tokens = getattr(point, cost)
            cells += [
                "-" if math.isnan(tokens) else f"{tokens:,.0f}",
                "*" if point in self.front(cost) else "",
            ]
        return cells

    def __repr__(self) -> str:
        return self.text()  # what a prompt shows is the table

    def _repr_svg_(self) -> str | None:
        """The drawing for a notebook; None, so that it shows the table, where it cannot be drawn."""
        with (
            suppress(MissingExtra, BadArgument),
            TemporaryDirectory(prefix="blendfilter-") as folder,
        ):
            drawn = self.draw(Path(folder) / "frontier.svg")[0].read_text("utf-8")
            return drawn[drawn.index("<svg") :]  # a page has no place for a file's first lines
        return None


def frontier(runs: Runs) -> Frontier:
    """How good answers are for how many input tokens, a point a run: a table that draws itself.

    `runs` as in `plot`, over the same questions, all finished. Use::

        found = bf.frontier({"everything": "runs/full", "FilCo": "runs/filco"})
        print(found)
        found.draw("frontier.svg")
    """
    return _scored(runs, frontier_point)


def frontier_point(label: str, run: Run) -> RunPoint:
    """A run's place: its leading metric, and its input tokens a question (nan: the server stated none).

    What an answer that failed had cost when it did is no price of an answer: it counts as wrong, and not as cheap.
    """
    read = [
        tokens
        for row, tokens in zip(run.rows, input_tokens(run), strict=True)
        if row["error"] is None
    ]
    prompt, every = ([tokens[at] for tokens in read] for at in (0, 1))
    return point_of(label, run)._replace(tokens_in=_mean(every), prompt_tokens=_mean(prompt))


def _mean(tokens: Sequence[int | None]) -> float:
    known = [number for number in tokens if number is not None]
    return fmean(known) if known and len(known) == len(tokens) else math.nan


def _scored(runs: Runs, point: Callable[[str, Run], RunPoint]) -> Frontier:
    named = _over_the_same(runs)
    points = [point(label, run) for label, run in named.items()]
    points.sort(key=lambda one: (one.failed, -one.value, one.tokens_in, one.calls))
    first = next(iter(named.values()))
    return Frontier(
        dots=tuple(points),
        metric=next(iter(first.metrics["metrics"])),
        title=f"{first.settings['task']}, {first.metrics['n']} questions, {first.settings['lm']['name']}",
        offline=any(run.offline for run in named.values()),
    )


def _draw_scores(found: Frontier, costs: Sequence[str], *paths: AnyPath) -> list[Path]:
    """Panels that share their scores, one for each cost that all runs know; the legend lists the runs, best first."""
    if all(point.failed for point in found.dots):
        raise BadArgument(
            "every question of these runs ended in an error: there are no scores to draw"
        )
    known = [cost for cost in costs if found.known(cost)]
    if not known:
        raise BadArgument(
            "not every run knows its tokens, for a server stated none: there is nothing to draw scores by"
        )
    notes = ["lines: 95 % intervals", "filled: none is as good for less"]
    if any(point.bound for point in found.dots):
        notes.append("diamond: reads the answer, a bound")
    return draw(
        [partial(_scatter, points=found.dots, cost=cost) for cost in known],
        *paths,
        size=(7.4, max(3.4, 1 + 0.14 * len(found.dots))),
        title=found.title,
        label=f"{heading(found.metric)} (%)",
        notes=notes,
        offline=found.offline,
    )


def _scatter(axes: Axes, points: Sequence[RunPoint], cost: str) -> None:
    ahead = front(points, cost)
    axes.step(
        [getattr(point, cost) for point in ahead],
        [100 * point.value for point in ahead],
        where="post",
        color=BLUE,
        linewidth=0.9,
    )
    for at, point in enumerate(points):
        x, y = getattr(point, cost), 100 * point.value
        colour = SERIES[at % len(SERIES)]
        marker = "D" if point.bound else MARKERS[(at + at // len(SERIES)) % len(MARKERS)]
        label = f"{at + 1}. {_cut(point.named, 40)}  {point.percent}"
        axes.plot([], [], marker, color=colour, label=label, markersize=4.5)  # for the legend
        if not point.failed:
            filled = colour if point in ahead else "white"
            axes.vlines(x, 100 * point.low, 100 * point.high, color="#B8B8B8", linewidth=0.6)
            axes.plot(
                x, y, marker, color=colour, markerfacecolor=filled, markersize=4.5, zorder=3
            )
    least = min(getattr(point, cost) for point in points if not point.failed)
    axes.set(xscale="log" if least > 0 else "linear", xlabel=_AXES[cost])
    axes.margins(x=0.25, y=0.08)
    _tick(axes)


def _tick(axes: Axes) -> None:
    """Round numbers on the x axis, in thousands where they are large: powers where it is long, even steps else."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(
        LogLocator(subs=(1, 3)) if 0 < 10 * low < high else MaxNLocator(4)
    )
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: f"{x:.6g}" if x < 1000 else f"{x / 1000:.6g}k")
    )
    axes.xaxis.set_minor_locator(NullLocator())


# --- how every picture is drawn -------------------------------------------------------------------------------------


def draw(
    panels: Sequence[Callable[[Axes], None]],
    *paths: AnyPath,
    size: tuple[float, float],
    title: str = "",
    label: str = "",
    legend: Literal["outside right center", "outside upper center"] = "outside right center",
    notes: Sequence[str] = (),
    offline: bool = False,
) -> list[Path]:
    """Draw a figure of `panels` into every file of `paths`, .svg or .png by its suffix, and return the paths.

    Args:
        panels: each draws on axes of its own; what they label stands in one legend, and `notes` above it.
        size: width and height in inches, for three panels a line.
        label: of the scale that all panels share, where they do. offline: stamp the figure as the offline reader's.

    Raises: BadArgument (another suffix), MissingExtra (matplotlib).
    """
    places = list(map(path_of, paths))
    for place in places:
        if place.suffix.lower() not in _METADATA:
            raise BadArgument(f"'{place}' is no plot's file: end its name in .svg or .png")
    with _figure(*size) as figure:
        columns = min(3, len(panels))
        lines = math.ceil(len(panels) / columns)
        every = list(figure.subplots(lines, columns, squeeze=False, sharey=bool(label)).flat)
        for axes, panel in zip(every, panels, strict=False):
            panel(axes)
        for axes in every[len(panels) :]:
            axes.set_axis_off()
        every[0].set_ylabel(label)
        handles: dict[str, Artist] = {}
        for axes in every:
            drawn, labels = axes.get_legend_handles_labels()
            handles.update(zip(labels, drawn, strict=True))
        figure.legend(
            handles.values(),
            handles.keys(),
            loc=legend,
            title="\n".join(notes) or None,
            ncols=1 if legend == "outside right center" else 3,
            alignment="left",
        )
        figure.suptitle(title)
        if offline:
            figure.supxlabel(OFFLINE, fontsize=8, color=VERMILLION, fontweight="bold")
        for place in places:
            place.parent.mkdir(parents=True, exist_ok=True)
            with writing(place):
                figure.savefig(place, metadata=_METADATA[place.suffix.lower()])
    return places


@contextmanager
def _figure(width: float, height: float) -> Iterator[Figure]:
    """An empty figure of so many inches, in our style."""
    matplotlib = needed("matplotlib", "plots", "a plot")
    agg, figures = (
        needed(f"matplotlib.{name}", "plots", "a plot")
        for name in ("backends.backend_agg", "figure")
    )
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's own settings would give other bytes
        matplotlib.rcParams.update(_STYLE)
        figure = figures.Figure(figsize=(width, height), dpi=200, layout="constrained")
        agg.FigureCanvasAgg(figure)
        yield figure

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from blendfilter.errors import BadArgument, MissingExtra, RunMismatch, UnknownName
from blendfilter.evaluation.ledger import latency, tokens_of
from blendfilter.evaluation.rows import ERROR
from blendfilter.evaluation.run import READS_GOLD, Run, Runs, named_runs
from blendfilter.evaluation.run_passages import input_tokens
from blendfilter.extras import needed
from blendfilter.files import path_of, writing
from blendfilter.text import aligned

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILLION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY = "#767676"
SERIES = (BLUE, VERMILLION, GREEN, ORANGE, PURPLE, SKY, BLACK)
MARKERS = "os^Dv<>"
OFFLINE = "offline reader: shows the pipeline, not quality"
_STYLE = {
    "font.family": "DejaVu Sans", "font.size": 8, "axes.titlesize": 9, "axes.labelsize": 8, "axes.linewidth": 0.6,
    "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.color": "#E4E4E4",
    "grid.linewidth": 0.6, "axes.axisbelow": True, "xtick.labelsize": 7, "ytick.labelsize": 7, "xtick.major.width": 0.6,
    "ytick.major.width": 0.6, "legend.frameon": False, "legend.fontsize": 7.5, "svg.hashsalt": "blendfilter",
    "svg.fonttype": "path", "text.parse_math": False,
}  # fmt: skip

_METADATA: Mapping[str, dict[str, None]] = {
    ".svg": {"Date": None, "Creator": None},
    ".png": {"Software": None},
}
"""What matplotlib would say of the clock and itself, left out."""
PANELS = ("calls", "tokens", "seconds")
FRONTIER_COSTS = ("prompt_tokens", "tokens_in")
_FRONTIER_HEADER = ("", "score", "answer's prompt", "front", "all calls", "front")
_AXES = {
    "calls": "model calls a question", "tokens": "tokens a question", "seconds": "median seconds a question",
    "tokens_in": "input tokens a question, all calls",
    "prompt_tokens": "tokens of the prompt that answers",
}  # fmt: skip
_LOSSES = {
    "right": ("right", GREEN, ""),
    "right_without_gold": ("right without gold", SKY, "//"),
    "answered_wrong": ("kept, answered wrong", PURPLE, ""),
    "filtered_away": ("retrieved, filtered away", ORANGE, ".."),
    "not_retrieved": ("not retrieved", VERMILLION, ""),
    ERROR: ("ended in an error", GREY, "xx"),
}


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


def plot(runs: Runs, path: str | Path, kind: str = "headline") -> Path:
    """Draw `runs` into the file `path` (.svg or .png): `headline`, accuracy against cost, or `losses`.

    `runs` are runs or their folders (or one), or a mapping from the names that the plot shows to them.

    Raises:
        UnknownName: no such kind. RunMismatch: runs over different questions. MissingExtra: no matplotlib here.
    """
    _suffixed(path)
    kinds = {"headline": headline, "losses": losses}
    if kind not in kinds:
        raise UnknownName.of("plot", kind, kinds)
    return kinds[kind](runs, path)[0]


def headline(runs: Runs, *paths: str | Path) -> list[Path]:
    """The leading metric against calls, tokens and latency, a point a run, into every file of `paths`."""
    named = _over_the_same(runs)
    metric = next(iter(next(iter(named.values())).metrics["metrics"]))
    offline = any(run.offline for run in named.values())
    points = [point_of(label, run) for label, run in named.items()]
    return draw(points, *paths, metric=metric, title=title_of(named), offline=offline)


def draw(
    points: Sequence[RunPoint],
    *paths: str | Path,
    metric: str,
    title: str,
    offline: bool = False,
    panels: Sequence[str] = PANELS,
) -> list[Path]:
    """The headline plot of `points`: panels that share their scores, one for each cost that all runs know."""
    ranked = sorted(points, key=lambda point: (point.failed, -point.value, point.calls))
    numbers = [str(place) for place in range(1, len(ranked) + 1)]
    scored = [point for point in ranked if not point.failed]
    if not scored:
        raise BadArgument(
            "every question of these runs ended in an error: there are no scores to draw"
        )
    costs = [
        cost for cost in panels if not any(math.isnan(getattr(point, cost)) for point in scored)
    ]
    if not costs:
        raise BadArgument(
            "not every run knows its tokens, for a server stated none: there is nothing to draw scores by"
        )
    with blank(7.4, 3.4) as figure:
        grid = figure.add_gridspec(
            1, len(costs) + 1, width_ratios=(*(1 for _ in costs), 3.3 / len(PANELS))
        )
        drawn: list[Axes] = []
        for column, cost in enumerate(costs):
            drawn.append(figure.add_subplot(grid[column], sharey=drawn[0] if drawn else None))
            _scatter(drawn[-1], scored, cost)
            drawn[-1].tick_params(labelleft=not column)
        drawn[0].set_ylabel(f"{metric.upper() if len(metric) < 3 else metric} (%)")
        _key(figure.add_subplot(grid[len(costs)]), ranked, numbers)
        figure.suptitle(title, fontsize=9)
        if offline:
            stamp(figure)
        figure.draw_without_rendering()  # the numbers are placed where everything else has come to rest
        for axes, cost in zip(drawn, costs, strict=True):
            places = [(getattr(point, cost), 100 * point.value) for point in scored]
            label_points(axes, places, numbers[: len(scored)])
        return save(figure, *paths)


def _key(axes: Axes, ranked: Sequence[RunPoint], numbers: Sequence[str]) -> None:
    axes.set_axis_off()
    bound = any(point.bound for point in ranked)
    last = max(len(ranked) + 2 + bound, 14)
    axes.set(xlim=(0, 1), ylim=(last, -1))
    if bound:
        axes.text(
            0.11,
            last - 1.8,
            "diamond: reads the answer, a bound",
            va="center",
            fontsize=6.5,
            color=GREY,
        )
    axes.text(
        0.11, last - 1, "filled: none is as good for less", va="center", fontsize=6.5, color=GREY
    )
    axes.text(0.11, last - 0.2, "lines: 95 % intervals", va="center", fontsize=6.5, color=GREY)
    labels = [_cut(point.named) for point in ranked]
    size = min(7.0, 7 * 38 / max(1, *map(len, labels)))  # a long name has to fit too
    for place, (number, label, point) in enumerate(zip(numbers, labels, ranked, strict=True)):
        axes.text(0.06, place, number, ha="right", va="center", fontsize=7, fontweight="bold")
        axes.text(0.11, place, f"{label}  {point.percent}", va="center", fontsize=size)


def _cut(label: str, most: int = 60) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


def losses(runs: Runs, *paths: str | Path) -> list[Path]:
    """Where each run's questions are lost, a stacked bar a run, into every file of `paths`."""
    named = _over_the_same(runs)
    with blank(7.2, 1.2 + 0.24 * len(named)) as figure:
        axes = figure.subplots()
        places, left = range(len(named)), [0.0] * len(named)
        for name, (words, colour, hatch) in _bar_parts(named.values()).items():
            shares = [
                100 * run.losses()[name] / sum(run.losses().values()) for run in named.values()
            ]
            axes.barh(
                places,
                shares,
                left=left,
                color=colour,
                hatch=hatch,
                label=words,
                height=0.72,
                edgecolor="white",
                linewidth=0.5,
            )
            for place, (start, share) in enumerate(zip(left, shares, strict=True)):
                if share >= 5:
                    dark = colour == VERMILLION
                    axes.text(
                        start + share / 2,
                        place,
                        f"{share:.0f}",
                        ha="center",
                        va="center",
                        fontsize=7,
                        color="white" if dark else "black",
                        bbox=None
                        if not hatch
                        else {"facecolor": colour, "edgecolor": "none", "pad": 1},
                    )
            left = [start + share for start, share in zip(left, shares, strict=True)]
        axes.set(xlim=(0, 100), xlabel="% of the questions")
        axes.set_yticks(places, [_cut(label) for label in named])
        axes.margins(y=0.01)
        axes.invert_yaxis()
        axes.grid(visible=False)
        axes.tick_params(axis="y", length=0)
        figure.legend(
            loc="outside upper center", ncols=len(_LOSSES), handlelength=1.2, columnspacing=1.2
        )
        if any(run.offline for run in named.values()):
            stamp(figure)
        return save(figure, *paths)


def _bar_parts(runs: Iterable[Run]) -> Mapping[str, tuple[str, str, str]]:
    """The parts of a bar; where no run's questions name their gold, only right and wrong; errors if there are any."""
    runs = list(runs)
    parts = _LOSSES
    if not any(row.get("gold_titles") for run in runs for row in run.rows):
        wrong = ("wrong (no gold titles known)", *_LOSSES["answered_wrong"][1:])
        parts = {"right": _LOSSES["right"], "answered_wrong": wrong, ERROR: _LOSSES[ERROR]}
    return (
        parts
        if any(run.errors for run in runs)
        else {name: parts[name] for name in parts if name != ERROR}
    )


def point_of(label: str, run: Run) -> RunPoint:
    """A run's place in the headline plot."""
    score = next(iter(run.metrics["metrics"].values()))
    total, n = run.metrics["ledger"]["total"], len(run.rows)
    tokens = tokens_of(total)
    costs = total["calls"] / n, math.nan if tokens is None else tokens / n, latency(run).median
    return RunPoint(
        label,
        score["value"],
        score["low"],
        score["high"],
        *costs,
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


def _scatter(axes: Axes, points: Sequence[RunPoint], cost: str) -> None:
    ahead, xs = front(points, cost), [getattr(point, cost) for point in points]
    place = dict(zip(points, xs, strict=True))
    steps = [place[point] for point in ahead]
    axes.step(
        steps,
        [100 * point.value for point in ahead],
        where="post",
        color=BLUE,
        linewidth=0.9,
        zorder=2.5,
    )
    for point in points:
        x, y, on_it = place[point], 100 * point.value, point in ahead
        axes.vlines(x, 100 * point.low, 100 * point.high, color="#B8B8B8", linewidth=0.6, zorder=2)
        colour = BLUE if on_it else GREY
        filled = colour if on_it else "white"
        mark = "D" if point.bound else "o"
        axes.plot(
            x,
            y,
            mark,
            markersize=4.5,
            color=colour,
            markerfacecolor=filled,
            markeredgewidth=0.9,
            zorder=3 + on_it,
        )
    axes.set(xscale="log" if min(xs) > 0 else "linear", xlabel=_AXES[cost])
    axes.margins(x=0.25, y=0.08)
    tick(axes)


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


def title_of(named: Mapping[str, Run]) -> str:
    """What the runs are over, and who answered."""
    run = next(iter(named.values()))
    return f"{run.settings['task']}, {run.metrics['n']} questions, {run.settings['lm']['name']}"


@dataclass(frozen=True, repr=False)
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
        return not any(math.isnan(getattr(point, cost)) for point in self.dots if not point.failed)

    def draw(self, *paths: str | Path) -> list[Path]:
        """Draw it into every file of `paths`, .svg or .png.

        Raises: MissingExtra (matplotlib). BadArgument: no panel has a cost that all runs know.
        """
        return draw(
            self.dots,
            *paths,
            metric=self.metric,
            title=self.title,
            offline=self.offline,
            panels=FRONTIER_COSTS,
        )

    def text(self) -> str:
        """An aligned table, and below it how to read it."""
        header, *lines = aligned([_FRONTIER_HEADER, *map(self._cells, self.dots)])
        notes = [
            f"score: {self.metric}, percent; ±: half of the 95 % interval; tokens: input tokens a question",
            "*: on the front, no other run is as good for fewer tokens",
            *["errors: answers that ended in an error; they count as 0"]
            * any(point.errors for point in self.dots),
            *[f"† {READS_GOLD}, never on the front"] * any(point.bound for point in self.dots),
            *["the offline reader answered: this shows the pipeline, not its quality"]
            * self.offline,
        ]
        return (
            "\n".join(
                [self.title, "", header, "-" * max(map(len, [header, *lines])), *lines, "", *notes]
            )
            + "\n"
        )

    def _cells(self, point: RunPoint) -> Sequence[str]:
        cells = [f"{point.named} †" if point.bound else point.named]
        cells.append(point.percent + f" ± {50 * (point.high - point.low):.1f}" * (not point.failed))
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
            return drawn[
                drawn.index("<svg") :
            ]  # a page that it stands in has no place for a file's first lines
        return None


def frontier(runs: Runs) -> Frontier:
    """How good answers are for how many input tokens, a point a run: a table that draws itself.

    `runs` as in `plot`, over the same questions, all finished. Use::

        found = bf.frontier({"everything": "runs/full", "FilCo": "runs/filco"})
        print(found)
        found.draw("frontier.svg")
    """
    named = _over_the_same(runs)
    points = [frontier_point(label, run) for label, run in named.items()]
    points.sort(key=lambda point: (point.failed, -point.value, point.tokens_in))
    metric = next(iter(next(iter(named.values())).metrics["metrics"]))
    return Frontier(
        tuple(points), metric, title_of(named), any(run.offline for run in named.values())
    )


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


# --- how every picture is drawn --------------------------------------------------------------------------------------


@contextmanager
def blank(width: float, height: float) -> Iterator[Figure]:
    """An empty figure of so many inches, to be drawn on and saved inside the block.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
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


def save(figure: Figure, *paths: str | Path) -> list[Path]:
    """Write `figure` into each file, as what its suffix says, .svg or .png. Raises: BadArgument (another suffix)."""
    places = list(map(_suffixed, paths))
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        with writing(place):
            figure.savefig(place, metadata=_METADATA[place.suffix.lower()])
    return places


def _suffixed(path: str | Path) -> Path:
    """`path`, where it can be drawn into. Raises: BadArgument."""
    place = path_of(path)
    if place.suffix.lower() not in _METADATA:
        raise BadArgument(f"'{place}' is no plot's file: end its name in .svg or .png")
    return place


def stamp(figure: Figure, words: str = OFFLINE) -> None:
    """`words` across the foot of a figure."""
    figure.supxlabel(words, fontsize=8, color=VERMILLION, fontweight="bold")


def tick(axes: Axes) -> None:
    """Round numbers on the x axis, in thousands where they are large: powers where it is long, even steps else."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)) if 0 < 10 * low < high else MaxNLocator(4))
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: f"{x:.6g}" if x < 1000 else f"{x / 1000:.6g}k")
    )
    axes.xaxis.set_minor_locator(NullLocator())


def label_points(axes: Axes, points: Sequence[tuple[float, float]], labels: Sequence[str]) -> None:
    """Write each label beside its point, clear of other points and labels; the axes must not move any more."""
    from matplotlib.patheffects import withStroke

    sides = ((0, 7), (7, 0), (0, -7), (-7, 0), (6, 6), (6, -6), (-6, -6), (-6, 6))
    offsets = [(dx * far, dy * far) for far in (1, 1.6, 2.2, 2.8) for dx, dy in sides]
    places = [tuple(axes.transData.transform(point) * 72 / axes.figure.dpi) for point in points]
    written: list[tuple[float, float]] = []
    for (x, y), point, label in zip(places, points, labels, strict=True):
        others = [place for place in places if place != (x, y)] + written

        # 9 points are clear: the first place that has them, or the clearest one, is taken.
        def clearance(offset: tuple[float, float], x: float, y: float, others: list[Any]) -> float:
            at = (x + offset[0], y + offset[1])
            return min([9.0, *(math.hypot(at[0] - a, 1.4 * (at[1] - b)) for a, b in others)])

        dx, dy = max(offsets, key=partial(clearance, x=x, y=y, others=others))
        written.append((x + dx, y + dy))
        text = axes.annotate(
            label,
            point,
            xytext=(dx, dy),
            textcoords="offset points",
            fontsize=7,
            ha="center",
            va="center",
        )
        text.set_path_effects([withStroke(linewidth=1.8, foreground="white")])

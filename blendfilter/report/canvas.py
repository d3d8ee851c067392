"""How this package draws: one look, colours that a colour-blind reader tells apart, and files that are the same bytes.

A figure is matplotlib's (the extra `[plots]`), saved as SVG or PNG by the file's suffix.

Colours are those of Okabe & Ito, "Color Universal Design" (2008). Nothing of the clock or the machine gets into a file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from blendfilter.errors import BadArgument
from blendfilter.extras import needed
from blendfilter.files import writing

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

_METADATA: Mapping[str, dict[str, None]] = {".svg": {"Date": None, "Creator": None}, ".png": {"Software": None}}
"""What matplotlib would say of the clock and itself, left out."""


@contextmanager
def blank(width: float, height: float) -> Iterator[Figure]:
    """An empty figure of so many inches, to be drawn on and saved inside the block.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    matplotlib = needed("matplotlib", "plots", "a plot")
    agg, figures = (needed(f"matplotlib.{name}", "plots", "a plot") for name in ("backends.backend_agg", "figure"))
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # a user's own settings would give other bytes
        matplotlib.rcParams.update(_STYLE)
        figure = figures.Figure(figsize=(width, height), dpi=200, layout="constrained")
        agg.FigureCanvasAgg(figure)
        yield figure


def save(figure: Figure, *paths: str | Path) -> list[Path]:
    """Write `figure` into each file, as what its suffix says, .svg or .png. Raises: BadArgument (another suffix)."""
    places = list(map(check, paths))
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        with writing(place):
            figure.savefig(place, metadata=_METADATA[place.suffix.lower()])
    return places


def check(path: str | Path) -> Path:
    """`path`, where it can be drawn into. Raises: BadArgument."""
    place = Path(path)
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
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.6g}" if x < 1000 else f"{x / 1000:.6g}k"))
    axes.xaxis.set_minor_locator(NullLocator())


def label_points(axes: Axes, points: Sequence[tuple[float, float]], labels: Sequence[str]) -> None:
    """Write each label beside its point; neighbours by height stand on other sides of theirs."""
    from matplotlib.patheffects import withStroke

    sides = ((0, 7), (7, 0), (0, -7), (-7, 0), (6, 6), (6, -6), (-6, -6), (-6, 6))
    for at, (point, label) in enumerate(zip(points, labels, strict=True)):
        text = axes.annotate(
            label, point, xytext=sides[at % len(sides)], textcoords="offset points", fontsize=7, ha="center",
            va="center",
        )  # fmt: skip
        text.set_path_effects([withStroke(linewidth=1.8, foreground="white")])

"""How this package draws: one look, colours that a colour-blind reader tells apart, and files that are the same bytes.

A figure is matplotlib's (the extra `[plots]`), saved as SVG or PNG by the file's suffix.

Colours are those of Okabe & Ito, "Color Universal Design" (2008). Nothing of the clock or the machine gets into a file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

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


def ticks(low: float, high: float) -> list[float]:
    """Two to five round numbers between the ends of an axis: powers where it is long, even steps where it is short.

    >>> ticks(0.8, 13.0), ticks(70, 14000), ticks(2930, 4410)
    ([1.0, 2.0, 5.0, 10.0], [100.0, 1000.0, 10000.0], [3000.0, 3500.0, 4000.0])
    """
    for digits in ((1, 2, 5), (1, 3), (1,)) if low > 0 else ():
        steps = [float(f"{digit}e{power}") for power in range(-6, 10) for digit in digits]
        found = [step for step in steps if low <= step <= high]
        if len(found) < 2:
            break
        if len(found) <= 4 or digits == (1,):
            return found[:: 1 + len(found) // 5]
    return _even(low, high)


def _even(low: float, high: float) -> list[float]:
    power = math.floor(math.log10(high - low))
    for step in (float(f"{digit}e{exponent}") for exponent in (power - 1, power) for digit in (1, 2, 5)):
        first, last = math.ceil(low / step), math.floor(high / step)
        if last - first < 5:
            break
    return [float(f"{number * step:.9g}") for number in range(first, last + 1)]


def label_points(axes: Axes, points: Sequence[tuple[float, float]], labels: Sequence[str], size: float = 7) -> None:
    """Write each label beside its point, clear of points and other labels; a thin line leads to one that is far off.

    To be called last: the limits of the axes must not move any more.
    """
    from matplotlib.transforms import Bbox

    figure: Any = axes.figure
    renderer = figure.canvas.get_renderer()
    unit = figure.dpi / 72
    places = [tuple(axes.transData.transform(point)) for point in points]
    taken = [Bbox.from_extents(x - 2.6 * unit, y - 2.6 * unit, x + 2.6 * unit, y + 2.6 * unit) for x, y in places]
    inside = axes.get_window_extent(renderer)
    for number in sorted(range(len(points)), key=lambda i: -places[i][1]):
        text: Any = axes.annotate(labels[number], points[number], fontsize=size, ha="center", va="center")
        text.set_path_effects(_halo())
        shape = text.get_window_extent(renderer)
        wide, high = shape.width + unit, 0.8 * shape.height
        (x, y), best = places[number], None
        for dx, dy in _offsets(wide / 2 / unit, high / 2 / unit):
            at_x, at_y = x + dx * unit, y + dy * unit
            box = Bbox.from_extents(at_x - wide / 2, at_y - high / 2, at_x + wide / 2, at_y + high / 2)
            covered = sum(_overlap(box, other) for other in taken) + 3 * (_area(box) - _overlap(box, inside))
            if best is None or covered < best[0] - 1e-9:
                best = covered, box, (dx, dy)
            if not covered:
                break
        assert best is not None
        taken.append(best[1])
        text.remove()
        _written(axes, labels[number], points[number], best[2], size)


def _written(axes: Axes, label: str, point: tuple[float, float], offset: tuple[float, float], size: float) -> None:
    far = max(map(abs, offset)) > 12
    line = {"arrowstyle": "-", "linewidth": 0.4, "color": GREY, "shrinkA": 0, "shrinkB": 2} if far else None
    text = axes.annotate(
        label, point, xytext=offset, textcoords="offset points", fontsize=size, ha="center", va="center",
        arrowprops=line,
    )  # fmt: skip
    text.set_path_effects(_halo())


def _halo() -> list[Any]:
    from matplotlib.patheffects import withStroke

    return [withStroke(linewidth=1.8, foreground="white")]


def _offsets(wide: float, high: float) -> Iterator[tuple[float, float]]:
    """Where a label of half that size may stand, in points of type from its own point, nearest first."""
    for ring in range(8):
        x, y = 3.5 + wide + 5 * ring, 3.5 + high + 5 * ring
        yield from ((x, 0), (-x, 0), (0, y), (0, -y), (x, y), (-x, y), (x, -y), (-x, -y))


def _overlap(a: Any, b: Any) -> float:
    wide, high = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
    return float(wide * high) if wide > 0 and high > 0 else 0.0


def _area(box: Any) -> float:
    return float(box.width * box.height)

"""Draw the pictures of the documents into docs/images: the method, its losses, what answers cost, a journal record.

    python docs/pictures.py            # write them
    python docs/pictures.py --check    # write nothing; exit 1 and name those that are out of date

Nothing is drawn from memory: `blend.svg` shows a prediction, `losses.svg` runs over the sample, `frontier.svg` a table
of benchmarks.md and `record.svg` the record in runs.md. They are plain SVG and not matplotlib's: a few kilobytes of
real text, the same bytes on every machine, on a panel of their own that is light or dark as the reader's system is.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import dspy

import blendfilter as bf
from blendfilter.report import plots

DOCS = Path(__file__).resolve().parent
IMAGES = DOCS / "images"
QUESTION = "Who founded the school in whose staircase the works of Bram Skarl's daughter hang?"
WIDTH = 1000
PAD = 24
SANS = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace"
COLOURS = {  # name: (on light, on dark)
    "panel": ("#ffffff", "#0d1117"), "edge": ("#d0d7de", "#30363d"), "card": ("#f6f8fa", "#161b22"),
    "ink": ("#1f2328", "#e6edf3"), "soft": ("#59636e", "#9198a1"), "faint": ("#818b98", "#6e7681"),
    "q": ("#0969da", "#58a6ff"), "ex": ("#b35900", "#f0a355"), "in": ("#8250df", "#c297ff"),
    "good": ("#00795a", "#3fb98f"), "tint": ("#e6f6f0", "#10281f"),
}  # fmt: skip


# --- drawing ----------------------------------------------------------------------------------------------------------


class Box(NamedTuple):
    """A rectangle by its left and top, its width and height."""

    x: float
    y: float
    width: float
    height: float

    @property
    def right(self) -> float:
        """Its right edge."""
        return self.x + self.width

    @property
    def bottom(self) -> float:
        """Its lower edge."""
        return self.y + self.height

    @property
    def middle(self) -> float:
        """Half way down."""
        return self.y + self.height / 2

    def meets(self, other: Box) -> bool:
        """Whether the two overlap."""
        return self.x < other.right and other.x < self.right and self.y < other.bottom and other.y < self.bottom


class Sheet:
    """An SVG picture of `WIDTH` by `height` on its own panel.

    A colour is a name of `COLOURS` or `#rrggbb`. Further keywords are SVG's attributes, `_` for `-`.
    """

    def __init__(self, height: int, title: str) -> None:
        self.height, self.title = height, title
        self._parts: list[str] = []
        self.box(Box(0.5, 0.5, WIDTH - 1, height - 1), "panel", stroke="edge", rx=12)

    def _add(self, tag: str, inner: str = "", **attributes: Any) -> None:
        self._parts.append(element(tag, inner, **attributes))

    def box(self, box: Box, fill: str, **attributes: Any) -> None:
        """A rectangle, rounded by `rx`."""
        self._add("rect", x=box.x, y=box.y, width=box.width, height=box.height, fill=fill, **attributes)

    def dot(self, x: float, y: float, r: float, fill: str, **attributes: Any) -> None:
        """A disc."""
        self._add("circle", cx=x, cy=y, r=r, fill=fill, **attributes)

    def line(self, path: str, stroke: str, width: float = 1.5, **attributes: Any) -> None:
        """A path, not filled."""
        self._add("path", d=path, fill="none", stroke=stroke, stroke_width=width, stroke_linecap="round", **attributes)

    def arrow(self, path: str, stroke: str, toward: str, **attributes: Any) -> None:
        """A path with a head at its end that points `right`, `left` or `down`."""
        self.line(path, stroke, **attributes)
        x, y = re.findall(r"-?[\d.]+", path)[-2:]
        head = {"right": "m-6 -4.5l6 4.5l-6 4.5", "left": "m6 -4.5l-6 4.5l6 4.5", "down": "m-4.5 -6l4.5 6l4.5 -6"}
        self.line(f"M{x} {y}{head[toward]}", stroke)

    def text(
        self, x: float, y: float, words: str, size: float = 13, fill: str = "ink", inner: str = "", **attributes: Any
    ) -> None:
        """A line of text, and elements behind it in the same line (`inner`)."""
        self._add("text", escape(words, quote=False) + inner, x=x, y=y, font_size=size, fill=fill, **attributes)

    def texts(self, x: float, y: float, lines: Sequence[str], size: float = 13, fill: str = "ink") -> float:
        """Lines of text, one below the other; where the next would stand."""
        for line in lines:
            self.text(x, y, line, size, fill)
            y += 1.4 * size
        return y

    def svg(self) -> str:
        """The file."""
        body = "\n".join(self._parts)
        dark = "".join(
            f".{prefix}-{name}{{{what}:{COLOURS[name][1]}}}"
            for prefix, what in (("f", "fill"), ("s", "stroke"))
            for name in COLOURS
            if re.search(rf'[" ]{prefix}-{name}[" ]', body)
        )
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" '
            f'height="{self.height}" role="img" font-family="{SANS}">\n<title>{escape(self.title)}</title>\n'
            f"<style>@media (prefers-color-scheme:dark){{{dark}}}</style>\n{body}\n</svg>\n"
        )


def element(tag: str, inner: str = "", **attributes: Any) -> str:
    """An SVG element; a colour by name has a class too, which turns it where the reader's system is dark."""
    painted = [name for name in ("fill", "stroke") if attributes.get(name) in COLOURS]
    classes = " ".join(f"{name[0]}-{attributes[name]}" for name in painted)
    attributes |= {name: COLOURS[str(attributes[name])][0] for name in painted}
    if classes:
        attributes["class"] = classes
    texts = {k: v if isinstance(v, str) else f"{round(v, 1):g}" for k, v in attributes.items()}
    start = "".join([tag, *(f' {name.replace("_", "-")}="{escape(value)}"' for name, value in texts.items())])
    return f"<{start}>{inner}</{tag}>" if inner else f"<{start}/>"


def width_of(text: str, size: float) -> float:
    """About how wide text is in the widest of the usual fonts."""
    ems = (
        0.32 if c in "iljtfrI.,:;'|!()[] " else 0.95 if c in "mwMW%—…" else 0.7 if c.isupper() else 0.6 for c in text
    )
    return size * sum(ems)


def fitted(text: str, width: float, size: float) -> str:
    """Text that fits, shortened with an ellipsis at the end of a word where it must be."""
    words = text.split()
    while words and width_of(" ".join(words), size) > width:
        words.pop()
    short = " ".join(words)
    return short if short == " ".join(text.split()) else f"{short.rstrip('.,:;')} …"


def wrapped(text: str, width: float, size: float, most: int) -> list[str]:
    """Text in at most so many lines, the last shortened."""
    lines: list[str] = []
    words = text.split()
    while words and len(lines) < most - 1:
        taken = 1
        while taken < len(words) and width_of(" ".join(words[: taken + 1]), size) <= width:
            taken += 1
        lines.append(" ".join(words[:taken]))
        words = words[taken:]
    return [*lines, fitted(" ".join(words), width - 1.2 * size, size)] if words else lines


# --- one question through the method ----------------------------------------------------------------------------------

LANES = {
    "q": ("q", "", "the question itself"),
    "q_ex": ("ex", "ex", "external reasoning + question"),
    "q_in": ("in", "in", "internal knowledge + question"),
}
"""Each query's colour, index and origin."""
ASK, FOUND, REST = Box(PAD, 112, 316, 128), Box(376, 112, 240, 128), Box(704, 112, 272, 128)
STEP = 144
CONCLUSION = re.compile(r"\s*(So the answer is .*)", re.DOTALL)


def blend() -> str:
    """The graph of BlendFilter with one question's queries, passages and answer."""
    index = bf.BM25.build(sample("corpus.jsonl"))
    with dspy.context(lm=bf.connect("offline", cache=False)):
        prediction = bf.BlendFilter(index, k=5)(question=QUESTION)
    sheet = Sheet(572, "BlendFilter, from one question to its answer")
    sheet.box(Box(PAD, 20, WIDTH - 2 * PAD, 44), "q", rx=22)
    sheet.text(WIDTH / 2, 48, QUESTION, 17, "panel", text_anchor="middle", font_weight="600")
    for x, number, words in [
        (ASK.x, "1", "Blend three queries"),
        (FOUND.x, "2", "Search, then filter"),
        (REST.x, "3", "Unite what is kept"),
    ]:
        sheet.text(x, 98, number, 15, "faint", font_weight="700")
        sheet.text(x + 16, 98, words, 15, "ink", font_weight="700")
    union = [passage.title for passage in prediction.knowledge]
    rows = {title: REST.y + 24 + 29 * at for at, title in enumerate(union)}
    for place, (name, branch) in enumerate(prediction.branches.items()):
        down = place * STEP
        _query(sheet, ASK._replace(y=ASK.y + down), name, prediction.queries[name])
        sheet.arrow(f"M{ASK.right} {ASK.middle + down}L{FOUND.x - 5} {ASK.middle + down}", LANES[name][0], "right")
        _passages(sheet, FOUND._replace(y=FOUND.y + down), name, branch, rows)
    x, y = FOUND.x + 20, FOUND.bottom  # the external reasoning reads what the question found
    turn = f"M{x} {y}v2q0 6 -6 6H{x - 32}q-8 0 -8 8v16q0 8 -8 8L{ASK.right + 5} {y + 40}"
    sheet.arrow(turn, "ex", "left", stroke_dasharray="4 4")
    _answer(sheet, prediction, rows)
    note = f"A real prediction over the sample's {len(index)} passages (BM25, k = 5). Model: “offline” (rules, no LLM)."
    sheet.text(PAD, 552, note, 12.5, "soft")
    sheet.text(WIDTH - PAD, 552, "+ kept · − dropped", 12.5, "soft", text_anchor="end")
    return sheet.svg()


def _query(sheet: Sheet, box: Box, name: str, query: str) -> None:
    """A query's card: where it comes from, what stands before the question, and the question."""
    colour, sub, origin = LANES[name]
    sheet.box(box, "card", stroke="edge", rx=8)
    sheet.box(Box(box.x, box.y + 10, 4, box.height - 20), colour, rx=2)
    x, room = box.x + 18, box.width - 32
    index = element("tspan", sub, font_size=13, dy=4) if sub else ""
    sheet.text(x, box.y + 24, "q", 17, colour, index, font_weight="700")
    sheet.text(x + 38, box.y + 24, origin, 13, "soft")
    before = query.removesuffix(QUESTION).strip()
    y = box.y + 47
    if before:
        text, *conclusion = CONCLUSION.split(before)
        y = sheet.texts(x, y, wrapped(text, room, 13, 3 - bool(conclusion)), 13, "ink")
        y = sheet.texts(x, y, [fitted(part, room, 13) for part in conclusion if part], 13, "ink")
        sheet.text(x, y, fitted(f"+ {QUESTION}", room, 13), 13, "q")
    else:
        sheet.texts(x, y + 3, wrapped(QUESTION, room, 15, 3), 15, "q")


def _passages(sheet: Sheet, box: Box, name: str, branch: Any, rows: Mapping[str, float]) -> None:
    """What a query retrieved, and a curve from what it kept to the union."""
    colour = LANES[name][0]
    sheet.box(box, "card", stroke="edge", rx=8)
    kept = {passage.title for passage in branch.kept}
    for place, passage in enumerate(branch.retrieved):
        title, y = passage.title, box.y + 24 + 22 * place
        stays = title in kept
        sheet.text(box.x + 14, y, "+" if stays else "−", 15, colour if stays else "faint", font_weight="700")
        shown = fitted(title, box.width - 44, 13.5)
        if stays:
            sheet.text(box.x + 32, y, shown, 13.5, "ink", font_weight="500")
            lane = [*LANES].index(name) - 1  # queries' curves rise and end beside one another
            turn = (box.right + REST.x) / 2 + 13 * lane
            start, end = y - 4.5, rows[title] - 4.5 + 4 * lane
            sheet.line(f"M{box.right} {start}C{turn} {start} {turn} {end} {REST.x} {end}", colour, opacity=0.75)
        else:
            sheet.text(box.x + 32, y, shown, 13.5, "faint", text_decoration="line-through")


def _answer(sheet: Sheet, prediction: Any, rows: Mapping[str, float]) -> None:
    """The union, the chain of thought over it, and the answer."""
    sheet.box(REST, "card", stroke="edge", rx=8)
    for title, y in rows.items():
        sheet.text(REST.x + 16, y, title, 14, "ink", font_weight="600")
        keepers = [name for name, branch in prediction.branches.items() if title in {p.title for p in branch.kept}]
        for place, name in enumerate(reversed(keepers)):
            sheet.dot(REST.right - 18 - 14 * place, y - 4.5, 4.5, LANES[name][0])
    x, middle = REST.x, REST.x + REST.width / 2
    thought = Box(x, REST.bottom + 60, REST.width, 136)
    for y in (REST.bottom, thought.bottom):
        sheet.arrow(f"M{middle} {y + 4}L{middle} {y + 26}", "soft", "down")
    for at, words, y in (("4", "Reason", thought.y - 14), ("5", "Answer", thought.bottom + 40)):
        sheet.text(x, y, at, 15, "faint", font_weight="700")
        sheet.text(x + 16, y, words, 15, "ink", font_weight="700")
    sheet.box(thought, "card", stroke="edge", rx=8)
    text, *conclusion = CONCLUSION.split(prediction.reasoning)
    y = sheet.texts(x + 16, thought.y + 26, wrapped(text, thought.width - 32, 13, 5), 13)
    sheet.texts(x + 16, y, [fitted(part, thought.width - 32, 13) for part in conclusion if part], 13)
    answer = Box(x, thought.bottom + 52, REST.width, 40)
    sheet.box(answer, "tint", stroke="good", rx=8)
    sheet.text(middle, answer.y + 28, prediction.answer, 21, "good", text_anchor="middle", font_weight="700")


def sample(name: str) -> Path:
    """A file of the sample."""
    return Path(bf.__file__).parent / "sample" / name


# --- where questions are lost -----------------------------------------------------------------------------------------

LOSSES = {
    "right": ("right", plots.GREEN),
    "right_without_gold": ("right without gold", plots.SKY),
    "answered_wrong": ("kept and answered wrong", plots.PURPLE),
    "filtered_away": ("retrieved and filtered away", plots.ORANGE),
    "not_retrieved": ("gold not retrieved", plots.VERMILLION),
}
"""The words of report.md, and a colour."""


def losses() -> str:
    """A stacked bar a method: where the questions of the sample are lost, read by the offline rules."""
    questions, index = bf.load("qa", "sample"), bf.BM25.build(sample("corpus.jsonl"))
    methods = [bf.Direct(index, k=5), bf.IterRetGen(index, k=5), bf.SelfAsk(index, k=5), bf.BlendFilter(index, k=5)]
    lm = bf.connect("offline", cache=False)
    runs = [bf.evaluate(method, questions, lm=lm, progress=False) for method in methods]
    counts = {str(run.settings["method"]["name"]): run.losses() for run in runs}
    sheet = Sheet(150 + 48 * len(counts), "Where questions are lost, method by method")
    sheet.text(PAD, 40, f"Where the sample's {len(questions)} questions are lost", 18, font_weight="700")
    x = float(PAD)
    for words, colour in LOSSES.values():
        sheet.box(Box(x, 60, 14, 14), colour, rx=3)
        sheet.text(x + 20, 72, words, 13.5)
        x += 44 + width_of(words, 13.5)
    for place, (label, lost) in enumerate(counts.items()):
        _bar(sheet, Box(170, 94 + 48 * place, WIDTH - PAD - 170, 36), label, lost)
    note = "Percent of the questions. Read by the offline rules: they show the pipeline, not its quality."
    sheet.text(PAD, sheet.height - 22, note, 12.5, "soft")
    return sheet.svg()


def _bar(sheet: Sheet, box: Box, label: str, lost: Mapping[str, int]) -> None:
    """A method's bar, with the percent on every part that has room for it."""
    sheet.text(box.x - 14, box.middle + 5, label, 14, font_weight="600", text_anchor="end")
    x, total = box.x, sum(lost.values())
    for name, (_, colour) in LOSSES.items():
        width = box.width * lost[name] / total
        if lost[name]:
            sheet.box(Box(x, box.y, max(width - 2, 1), box.height), colour, rx=2)
        if width > 30:
            percent = f"{100 * lost[name] / total:.0f}"
            sheet.text(
                x + width / 2 - 1, box.middle + 5, percent, 14, "#1f2328", text_anchor="middle", font_weight="600"
            )
        x += width


# --- what answers cost ------------------------------------------------------------------------------------------------


class Measured(NamedTuple):
    """A table of methods: what stands above it, and a point a row."""

    caption: str
    points: list[plots.RunPoint]


PLOT = Box(64, 104, WIDTH - 64 - PAD, 300)
TICKS = (100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)


def frontier() -> str:
    """Exact match against the input tokens of a question, a point a method, as benchmarks.md has them."""
    table = measured((DOCS / "benchmarks.md").read_text(encoding="utf-8"))
    costs = [point.tokens_in for point in table.points]
    low, high = math.log(min(costs) * 0.85), math.log(max(costs) * 1.45)
    top = 5 * math.ceil(20 * max(point.high for point in table.points) + 0.2)
    sheet = Sheet(474, "Exact match against input tokens, method by method")

    def across(tokens: float) -> float:
        return PLOT.x + PLOT.width * (math.log(tokens) - low) / (high - low)

    def up(share: float) -> float:
        return PLOT.bottom - PLOT.height * 100 * share / top

    sheet.text(PAD, 40, "What answers cost", 18, font_weight="700")
    sheet.text(PAD, 63, f"{table.caption} SmolLM2-135M, taught every stage. Lines: 95 % intervals.", 13.5, "soft")
    words = "frontier: no method answers as well for fewer tokens"
    sheet.text(PLOT.right, 40, words, 13.5, "good", text_anchor="end")
    sheet.text(PAD, 92, "exact match, %", 12.5, "soft")
    for value in range(0, top + 1, 5):
        y = up(value / 100)
        sheet.line(f"M{PLOT.x} {y:.1f}H{PLOT.right}", "edge", 1 if value else 1.5)
        sheet.text(PLOT.x - 10, y + 4.5, str(value), 12.5, "soft", text_anchor="end")
    for tick in TICKS:
        if low < math.log(tick) < high:
            sheet.text(across(tick), PLOT.bottom + 21, f"{tick:,}", 12.5, "soft", text_anchor="middle")
    words = "input tokens a question, all calls (log scale) →"
    sheet.text(PLOT.right, PLOT.bottom + 46, words, 12.5, "soft", text_anchor="end")
    _points(sheet, table.points, across, up)
    return sheet.svg()


def _points(
    sheet: Sheet, points: Sequence[plots.RunPoint], across: Callable[[float], float], up: Callable[[float], float]
) -> None:
    """The points with their intervals and names, and the line of those that no cheaper method equals."""
    front = plots.front(points, "tokens_in")
    steps = [f"M{across(front[0].tokens_in):.1f} {up(front[0].value):.1f}"]
    steps += [f"H{across(point.tokens_in):.1f}V{up(point.value):.1f}" for point in front[1:]]
    sheet.line("".join([*steps, f"H{PLOT.right}"]), "good", 2, stroke_dasharray="6 5")
    places = [(across(point.tokens_in), up(point.value)) for point in points]
    for point, (x, _) in zip(points, places, strict=True):
        colour = "good" if point in front else "faint"
        sheet.line(f"M{x:.1f} {up(point.low):.1f}V{up(point.high):.1f}", colour, 1.5, opacity=0.55)
    ends = [*(across(point.tokens_in) for point in front), PLOT.right]
    taken = [Box(a, up(point.value) - 1, b - a, 2) for point, (a, b) in zip(front, pairwise(ends), strict=True)]
    for point, (x, y) in sorted(zip(points, places, strict=True), key=lambda pair: pair[0] not in front):
        first = point in front
        sheet.dot(x, y, 6.5, "good" if first else "panel", stroke="good" if first else "soft", stroke_width=2)
        box = _free(point.label, x, y, places, taken)
        taken.append(box)
        at, anchor = (box.right - 4, "end") if box.right < x else (box.x + 4, "start")
        sheet.text(
            at, box.bottom - 4.5, point.label, 13, text_anchor=anchor, font_weight="700" if first else "500",
            stroke="panel", stroke_width=4, paint_order="stroke",
        )  # fmt: skip


def _free(label: str, x: float, y: float, places: Iterable[tuple[float, float]], taken: Sequence[Box]) -> Box:
    """The place for a point's name that hides least: right of it, left, above or below."""
    width, height = 1.1 * width_of(label, 13) + 6, 19
    offered = [Box(x + 9, y - 9 + lift, width, height) for lift in (0, -14, 14)]
    offered += [Box(x - 9 - width, y - 9 + lift, width, height) for lift in (0, -14, 14)]
    offered += [Box(x - width / 2, y + lift, width, height) for lift in (-30, 12)]
    marks = [Box(a - 8, b - 8, 16, 16) for a, b in places]
    lines = [Box(a - 1, PLOT.y, 2, PLOT.height) for a, _ in places]

    def hidden(box: Box) -> float:
        outside = box.right > PLOT.right or box.x < PLOT.x
        return 20 * outside + 10 * sum(map(box.meets, [*taken, *marks])) + sum(map(box.meets, lines))

    return min(offered, key=hidden)


def measured(markdown: str) -> Measured:
    """The first table with the columns `method`, `EM` and `tokens in`."""
    lines = markdown.splitlines()
    for at, line in enumerate(lines):
        header = _cells(line)
        if {"method", "EM", "tokens in"} <= {*header}:
            below = takewhile(lambda row: row.startswith("|"), lines[at + 2 :])
            rows = [dict(zip(header, _cells(row), strict=False)) for row in below]
            caption = next(text for text in reversed(lines[:at]) if text.strip())
            return Measured(f"{caption.strip().rstrip(':.')}.", list(map(_point, rows)))
    raise SystemExit("benchmarks.md has no table with the columns method, EM and tokens in")


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")] if line.startswith("|") else []


def _point(row: Mapping[str, str]) -> plots.RunPoint:
    """A method from its row: `20.0 [15.0, 26.1]` and `1,300.1`; without an interval, the score alone."""
    value, *ends = (float(number) / 100 for number in re.findall(r"\d+(?:\.\d+)?", row["EM"]))
    low, high = ends if len(ends) == 2 else (value, value)
    tokens = float(row["tokens in"].replace(",", ""))
    return plots.RunPoint(row["method"].strip("`"), value, low, high, 0, 0, 0, tokens_in=tokens)


# --- a record of the journal ------------------------------------------------------------------------------------------

RECORD: Sequence[tuple[str, str, Sequence[str]]] = (
    ("key", "in", ("a hash of model to sample (purple):", "the same call is not paid for again")),
    ("kind stage", "q", ("a model call, a search or a passage,", "and the step of the method that made it")),
    ("model label endpoint", "in", ("who was asked; --label tells weights", "of the same name apart")),
    ("prompt", "in", ("every word that the model read",)),
    ("parameters", "in", ("temperature, cap, stops, schema, thinking",)),
    ("sample", "in", ("which of several answers this is:", "DSPy's rollout_id and a number")),
    ("address", "soft", ("where; may change, so it is not in the key",)),
    ("reply reasoning finish", "good", ("what came back; finish: stop, or length", "where the reply was cut")),
    ("tokens_in tokens_out tokens_cached cost", "ex", ("tokens by the server's count;", "dollars if a price is known")),
    ("at seconds attempts error", "soft", ("when, how long, how many tries;", "error: why the call failed for good")),
    ("check", "soft", ("a checksum of the line: what was damaged", "or edited is found, and never served")),
)  # fmt: skip
"""Fields of a record that stand on one line, their colour, and what they mean."""


def record() -> str:
    """The record of runs.md, annotated."""
    block = re.search(r'```json\n(\{"key".*?)```', (DOCS / "runs.md").read_text(encoding="utf-8"), re.DOTALL)
    if block is None:
        raise SystemExit("runs.md has no json block with a record")
    fields = json.loads(block[1])
    names = [name for line, _, _ in RECORD for name in line.split()]
    if names != list(fields):
        raise SystemExit(f"the record of runs.md has the fields {list(fields)}, and record.svg explains {names}")
    sheet = Sheet(92 + 42 * len(RECORD), "A record of the journal, explained")
    sheet.text(PAD, 40, "One line of journal.jsonl: one call, written before its answer is used", 18, font_weight="700")
    code = Box(PAD, 60, 588, 42 * len(RECORD) + 8)
    sheet.box(code, "card", stroke="edge", rx=8)
    for place, (line, colour, meaning) in enumerate(RECORD):
        y = code.y + 25 + 42 * place
        sheet.box(Box(code.x + 12, y - 15, 4, 30), colour, rx=2)
        _field(sheet, code.x + 28, y + 5, {name: fields[name] for name in line.split()}, colour)
        sheet.line(f"M{code.right} {y:g}H{code.right + 18}", colour, 1.5)
        sheet.texts(code.right + 28, y + (4 if len(meaning) == 1 else -4), meaning, 12.5)
    return sheet.svg()


def _field(sheet: Sheet, x: float, y: float, fields: Mapping[str, Any], colour: str) -> None:
    """Names and values in a line of code, the names coloured."""
    parts = []
    for place, (name, value) in enumerate(fields.items()):
        parts.append(element("tspan", f'"{name}"', fill=colour, dx=9 if place else 0))
        parts.append(element("tspan", escape(f": {json.dumps(value, ensure_ascii=False)}", quote=False)))
    sheet.text(x, y, "", 13, "ink", "".join(parts), font_family=MONO)


# --- the files --------------------------------------------------------------------------------------------------------

PICTURES: Mapping[str, Callable[[], str]] = {
    "blend.svg": blend,
    "losses.svg": losses,
    "frontier.svg": frontier,
    "record.svg": record,
}


def outdated() -> list[str]:
    """The pictures that are missing, or would be drawn otherwise now."""
    files = {name: IMAGES / name for name in PICTURES}
    return [name for name, file in files.items() if not file.is_file() or file.read_text("utf-8") != PICTURES[name]()]


def main() -> int:
    """Draw, or check; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; name the pictures that are out of date")
    if parser.parse_args().check:
        found = outdated()
        for name in found:
            print(f"docs/images/{name} is out of date: run python docs/pictures.py", file=sys.stderr)
        return 1 if found else 0
    IMAGES.mkdir(exist_ok=True)
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

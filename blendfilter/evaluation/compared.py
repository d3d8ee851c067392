"""What a comparison says: its figures, and the table as text, for a rich console and for a notebook.

In: the rows that `comparison.py` worked out. Out: a `Comparison`. Figures are kept as fractions of 1 and shown in
percent, their differences in percentage points.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any

from blendfilter.evaluation.power import detectable_difference
from blendfilter.evaluation.resampling import RESAMPLES
from blendfilter.text import html_of, visible

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.table import Table
    from rich.text import Text

CORRECT = "correct"
NO_P_VALUE = "no p-value: the offline reader shows the pipeline, not its quality"
_WIDE, _NAME = 100, 20
"""Columns from which there is room for long names, and how long a line of one is where there is none."""
ASSUMED = (0.1, 0.3)
"""Shares of discordant questions for which the notes tell what a sample of this size could show."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run on one measure, in fractions of 1; what compares is None in the baseline's own rows.

    `won` and `lost` count the questions that only this run, or only the baseline, answers right; `smallest` is the
    least difference that McNemar could have shown on them (`power.smallest_difference`). These three stand only where
    the measure is right or wrong and both runs have one answer a question. `errors` are the run's answers that ended in
    an error: each counts as 0.
    """

    run: str
    measure: str
    value: float
    errors: int
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    won: int | None = None
    lost: int | None = None
    smallest: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Runs against one baseline over the same `n` questions; the baseline's rows come first.

    `repeats` says how often each run answered every question, by run; `also` what else differs between them, a line
    each.
    """

    baseline: str
    n: int
    rows: tuple[Row, ...]
    seed: int = 0
    resamples: int = RESAMPLES
    p_values: bool = True
    repeats: Mapping[str, int] = field(default_factory=dict)
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()  # what a prompt shows is the table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        from rich.text import Text

        yield self.table(narrow=options.max_width < _WIDE)
        yield Text("\n".join(self.notes))  # as a caption they would fold at the table's width

    @property
    def title(self) -> str:
        """What is compared with what, in one line."""
        return f"against {visible(self.baseline)}, the same {self.n} questions, in %"

    @property
    def notes(self) -> list[str]:
        """How to read the table, a line each."""
        return list(map(visible, self._notes()))

    def text(self) -> str:
        """The table as plain aligned text, its title above and its notes below."""
        header, body = self._cells()
        first, *others = (max(map(len, column)) for column in zip(header, *body, strict=True))
        lines = [
            "  ".join([name.ljust(first), *map(str.rjust, cells, others)]).rstrip() for name, *cells in [header, *body]
        ]
        return "\n".join([self.title, "", lines[0], "-" * max(map(len, lines)), *lines[1:], "", *self.notes])

    def table(self, narrow: bool = False) -> Table:
        """The figures as a `rich.table.Table`; where room is short, names fold before any number is cut.

        `narrow` folds long names beforehand, at their hyphens, and leaves out a column of errors that all are 0.
        """
        from rich import box
        from rich.table import Table
        from rich.text import Text

        header, body = self._cells()
        if narrow and not any(row.errors for row in self.rows):
            header, body = header[:-1], [line[:-1] for line in body]
        table = Table(title=Text(self.title), title_justify="left", box=box.SIMPLE_HEAD)
        table.pad_edge, table.collapse_padding = False, True
        for name in header:
            table.add_column(name, justify="right" if name else "left", no_wrap=bool(name), overflow="fold")
        for name, *cells in body:
            folded = _folded(name) if narrow else name
            table.add_row(Text(folded), *map(Text, cells))
        return table

    def _repr_html_(self) -> str:
        header, body = self._cells()
        head = "".join(f"<th>{html_of(name)}</th>" for name in header)
        lines = "".join("<tr>" + "".join(f"<td>{html_of(cell)}</td>" for cell in line) + "</tr>" for line in body)
        notes = "<br>".join(map(html_of, self.notes))
        caption = f"<caption>{html_of(self.title)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table><p>{notes}</p>"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: fractions to 6 decimals, p-values to 6 significant digits (so that none becomes 0)."""
        rows = [{name: rounded(name, value) for name, value in asdict(row).items()} for row in self.rows]
        return asdict(self) | {"rows": rows, "notes": self.notes}

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """The header and the lines of cells: each run's name with its errors, then a line a measure."""
        several = len({row.run for row in self.rows}) > 2  # one comparison needs no correction
        header = ["", "value", "diff", "95 % interval", "won/lost", "p", *["Holm"] * several, "errors"]
        body = []
        for run, group in groupby(self.rows, key=lambda row: row.run):
            rows = list(group)
            body.append([visible(run), *[""] * (len(header) - 2), str(rows[0].errors)])
            for row in rows:
                compared = _compared_cells(row, several) if run != self.baseline else [""] * (len(header) - 3)
                body.append([f"  {visible(row.measure)}", percent(row.value), *compared, ""])
        return header, body

    def _notes(self) -> Iterator[str]:
        yield from (f"also differs: {each}" for each in self.also)
        several = [run for run, repeats in self.repeats.items() if repeats > 1]
        if any(row.won is not None for row in self.rows):
            yield f"won, lost: questions that only this run, only {self.baseline} answers right"
        drawn = f"({self.resamples} resamples, seed {self.seed})"
        yield f"diff, interval: in points; paired bootstrap over questions {drawn}"
        if several:
            counted = ", ".join(f"{run} {self.repeats[run]}" for run in several)
            yield f"answers a question: {counted}; the bootstrap draws them too, within each question"
        if any(row.errors for row in self.rows):
            yield "errors: questions that ended in an error; they count as 0"
        yield from self._tests(several) if self.p_values else [NO_P_VALUE]

    def _tests(self, several: list[str]) -> Iterator[str]:
        """What the p-values are, and what the questions could show."""
        if self.baseline in several:
            yield "p: the paired bootstrap (McNemar's test needs one answer a question)"
        else:
            where = f" ({', '.join(several)}: the bootstrap)" if several else ""
            exact = dict.fromkeys(row.measure for row in self.rows if row.won is not None)
            other = dict.fromkeys(row.measure for row in self.rows if row.measure not in exact)
            tests = [f"exact McNemar for {', '.join(exact)}{where}"] * bool(exact)
            yield "p: " + ", ".join([*tests, *[f"the paired bootstrap for {', '.join(other)}"] * bool(other)])
        if any(row.p_holm != row.p for row in self.rows):
            yield "Holm: p corrected for being several runs, each measure by itself"
        tested = [row for row in self.rows if row.won is not None]
        for row in tested:
            name = row.run if len({each.measure for each in tested}) == 1 else f"{row.run}, {row.measure}"
            yield _power(name, (row.won or 0) + (row.lost or 0), row.smallest)
        if not several:
            yield _planned(self.n)


def _power(run: str, discordant: int, smallest: float | None) -> str:
    if smallest is None:
        return f"{run}: with {discordant} questions won or lost, no difference could reach p < .05"
    told = f"{100 * smallest:.1f} points is the least that reaches p < .05"
    return f"{run}: with {discordant} questions won or lost, {told}"


def _planned(n: int) -> str:
    """What so many questions find four times out of five, whatever came out here."""
    cases = [(share, detectable_difference(n, share)) for share in ASSUMED]
    told = [f"{100 * least:.1f} points if {100 * share:.0f} % are won or lost" for share, least in cases if least]
    return f"before looking: {n} questions find {', '.join(told) or 'no difference'} (power .8)"


def rounded(name: str, value: Any) -> Any:
    """A figure as JSON keeps it: 6 decimals, p-values to 6 significant digits (so that none becomes 0)."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if name in ("p", "p_holm") else round(value, 6)


def _folded(name: str) -> str:
    """`name` over as many lines as it needs, folded behind its hyphens.

    >>> _folded("hotpotqa-blendfilter-k5-500").split()
    ['hotpotqa-', 'blendfilter-k5-500']
    """
    lines = [""]
    for piece in re.findall(r"[^-]+-*|-+", name):
        if lines[-1] and len(lines[-1] + piece) > _NAME:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def _compared_cells(row: Row, several: bool) -> list[str]:
    interval = f"[{percent(row.low, '+z')}, {percent(row.high, '+z')}]"
    flips = "" if row.won is None else f"{row.won}/{row.lost}"
    return [percent(row.difference, "+z"), interval, flips, chance(row.p), *[chance(row.p_holm)] * several]


def percent(value: float | None, sign: str = "") -> str:
    """One decimal, as the report prints it: 50.8, +9.6, 100.0."""
    return "" if value is None else f"{100 * value:{sign}.1f}"


def chance(p: float | None, absent: str = "-") -> str:
    """A p-value to four decimals, `absent` where none is given."""
    if p is None:
        return absent
    return "<.0001" if p < 0.0001 else f"{p:.4f}".replace("0.", ".", 1)

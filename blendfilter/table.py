"""One table type: cells of text, laid out as plain text, Markdown, HTML, LaTeX or CSV."""

from __future__ import annotations

import csv
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from itertools import zip_longest
from textwrap import wrap

from blendfilter.text import html_of, visible

_NARROWEST = 12
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What makes a spreadsheet run a cell."""
_LATEX = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"±": r"$\pm$", "≥": r"$\geq$"}
)


@dataclass(frozen=True)
class Table:
    """Rows of cells below a header, with a title above and notes below.

    The first `left` columns are aligned to the left, the others (figures) to the right. A ruler sets the last `totals`
    rows apart.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = ()
    left: int = 1
    totals: int = 0

    def without_empty(self, nothing: Collection[str] = ("",)) -> Table:
        """The table without the columns (but the first) in which no row has anything but `nothing`."""
        columns = enumerate(zip(self.header, *self.rows, strict=True))
        kept = [at for at, (_, *cells) in columns if at == 0 or not {*cells} <= {*nothing}]
        header, *rows = ([row[at] for at in kept] for row in (self.header, *self.rows))
        return replace(self, header=header, rows=rows, left=sum(at < self.left for at in kept))

    def text(self, width: int | None = None) -> str:
        """Aligned columns; where `width` is too short for them, headings fold, then the widest text column.

        >>> print(Table(["", "calls"], [["check", "12"]], "Ledger").text())
        Ledger
        <BLANKLINE>
               calls
        ------------
        check     12
        """
        cells = [list(map(_visible, row)) for row in (self.header, *self.rows)]
        sizes, gap = self._layout(cells, width)
        lines = [self._lines(row, sizes, gap) for row in cells]
        ruler = "-" * max(len(line) for folded in lines for line in folded)
        lines.insert(1, [ruler])
        if self.totals:
            lines.insert(-self.totals, [ruler])
        above = [_visible(self.title), ""] if self.title else []
        below = ["", *map(_visible, self.notes)] if self.notes else []
        return "\n".join([*above, *(line for folded in lines for line in folded), *below])

    def _layout(
        self, cells: Sequence[Sequence[str]], width: int | None
    ) -> tuple[list[int], str]:
        """The width of each column, and the gap between two."""
        sizes = [max(map(len, column)) for column in zip(*cells, strict=True)]
        gaps = len(sizes) - 1
        if width is None or sum(sizes) + 2 * gaps <= width:
            return sizes, "  "
        sizes = [
            max(len(cell) for cell in [*name.split(), *column])
            for name, *column in zip(*cells, strict=True)
        ]
        widest = max(range(self.left), key=sizes.__getitem__)
        room = width - gaps - (sum(sizes) - sizes[widest])
        sizes[widest] = min(sizes[widest], max(room, _NARROWEST))
        return sizes, " "

    def _lines(self, row: Sequence[str], sizes: Sequence[int], gap: str) -> list[str]:
        folded = (wrap(cell, size or 1) for cell, size in zip(row, sizes, strict=True))
        lines = []
        for parts in zip_longest(*folded, fillvalue=""):
            line = [
                part.ljust(size) if place < self.left else part.rjust(size)
                for place, (part, size) in enumerate(zip(parts, sizes, strict=True))
            ]
            lines.append(gap.join(line).rstrip())
        return lines or [""]

    def markdown(self) -> str:
        """A table of GitHub's Markdown, in which no figure is parted from its interval."""
        figures = len(self.header) - self.left
        marks = ["---"] * self.left + ["---:"] * figures
        lines = []
        for cells in (self.header, marks, *self.rows):
            safe = (
                _visible(cell)
                .replace("|", "\\|")
                .replace("  ", "&ensp;")
                .replace(" ± ", "\u00a0±\u00a0")
                for cell in cells
            )
            lines.append(f"| {' | '.join(safe)} |")
        return "\n".join(lines)

    def html(self) -> str:
        """A table as notebooks and pages show it, its notes below; every text escaped."""
        head = self._html_row("th", self.header)
        body = "".join(self._html_row("td", row) for row in self.rows)
        above = f"<caption>{html_of(self.title)}</caption>" if self.title else ""
        below = f"<p>{'<br>'.join(map(html_of, self.notes))}</p>" if self.notes else ""
        # pandas' class, whose tables the themes of notebooks and their sites leave at their own width
        return f'<table class="dataframe">{above}<thead>{head}</thead><tbody>{body}</tbody></table>{below}'

    def _html_row(self, tag: str, row: Sequence[str]) -> str:
        cells = []
        for place, cell in enumerate(row):
            name = "" if place < self.left else ' class="number"'
            cells.append(f"<{tag}{name}>{html_of(cell)}</{tag}>")
        return f"<tr>{''.join(cells)}</tr>"

    def latex(self) -> str:
        """A `tabular` of LaTeX; every character that LaTeX would read is escaped."""
        columns = "l" * self.left + "r" * (len(self.header) - self.left)
        header, *rows = (
            " & ".join(_visible(cell).translate(_LATEX) for cell in row) + r" \\"
            for row in (self.header, *self.rows)
        )
        body = [r"\hline", header, r"\hline", *rows, r"\hline"]
        return "\n".join([rf"\begin{{tabular}}{{{columns}}}", *body, r"\end{tabular}"])

    def csv(self) -> str:
        """CSV (RFC 4180). In a text column, what a spreadsheet would run as a formula has an apostrophe before it."""
        out = StringIO()
        writer = csv.writer(out, lineterminator="\r\n")
        for row in (self.header, *self.rows):
            texts = (
                f"'{cell}" if cell.startswith(_FORMULA) else cell for cell in row[: self.left]
            )
            writer.writerow([*texts, *row[self.left :]])
        return out.getvalue()

    def __repr__(self) -> str:
        return self.text()  # what a prompt shows is the table

    def _repr_html_(self) -> str:
        return self.html()


def _visible(text: str) -> str:
    return visible(text.replace("\n", " "))

"""A measured table as text, Markdown, JSON and plots. Scores are percent, differences points; JSON keeps fractions."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blendfilter.evaluation.comparison import NO_P_VALUE, chance, percent, rounded
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_folder import write_json, write_text
from blendfilter.filters.silver import UPPER_BOUND
from blendfilter.report import plots
from blendfilter.reproduce.results import ResultLine, TableResult, by_label
from blendfilter.reproduce.runs import TableRun
from blendfilter.reproduce.tables import format_of
from blendfilter.reproduce.verdicts import other_settings, rule
from blendfilter.table import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def text(result: TableResult, width: int | None = None) -> str:
    """The table as text; where `width` is too short, headings and labels fold."""
    tables = [f"{table.text(width)}\n" for table in tables_of(result)]
    return "\n".join([f"{title(result)}\n", *tables, *notes(result)])


def markdown(result: TableResult) -> str:
    """The table as Markdown, a table a task."""
    tables = [f"## {table.title}\n\n{table.markdown()}" for table in tables_of(result)]
    listed = "\n".join(f"- {note}" for note in notes(result))
    return "\n\n".join([f"# {title(result)}", *tables, listed]) + "\n"


def plain(result: TableResult) -> dict[str, Any]:
    """The table as plain data for JSON."""
    table, saved = result.table, result.calls_used - result.calls_different
    lines = [
        {key: rounded(key, value) for key, value in asdict(line).items()}
        | {"verdict": line.verdict and line.verdict.as_dict()}
        for line in result.lines
    ]
    return {
        "table": table.name,
        "title": table.title,
        "paper": table.paper,
        "kind": table.kind,
        "reader": result.reader,
        "repeats": result.repeats,
        "offline": result.offline,
        "errors": result.errors,
        "lines": lines,
        "spent": {
            "runs": result.runs,
            "used": result.calls_used,
            "different": result.calls_different,
            "saved": saved,
        },
        "averages": [asdict(one) for one in result.averages],
        "notes": list(notes(result)),
    }


def write(result: TableResult, folder: Path) -> list[Path]:
    """Write `table.md` and `table.json` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    as_markdown, as_json = folder / "table.md", folder / "table.json"
    write_text(as_markdown, markdown(result))
    write_json(as_json, plain(result))
    return [as_markdown, as_json]


def title(result: TableResult) -> str:
    """What the table is, in one line."""
    return f"{result.table.name}: {result.table.title} | {result.table.paper}"


def notes(result: TableResult) -> Iterator[str]:
    """How to read the table, a line each."""
    table, lines = result.table, result.lines
    yield f"{table.about.unit}; ±: half of the 95 % interval"
    if any(line.bound for line in lines):
        yield f"† {UPPER_BOUND}"
    if any(line.difference is not None for line in lines):
        of = table.published_n
        words = f"{table.n:,} questions" if of is None else f"{of:,} questions or more"
        # a half right is the widest; a mean of shares varies no more
        widest = 196 * math.sqrt(0.25 / (of or table.n))
        yield "vs published: measured - published, in points"
        yield f"published: of {words}, so uncertain too (up to ± {widest:.1f} points); the difference by both"
    verdicts = [line.verdict for line in lines if line.verdict]
    if any(not verdict.differs for verdict in verdicts):
        yield rule(verdicts[0].margin)
    yield from other_settings(verdicts)
    what = "a question's"
    test = "exact McNemar for right and wrong, the paired bootstrap for the others"
    if result.repeats > 1:
        what = "one answer's"
        test = f"the paired bootstrap, over {result.repeats} answers a question"
    counted = ", in words, for the offline reader has no tokeniser" * result.offline
    yield f"calls, tokens: {what}, those that another run had made already included{counted}"
    if any(line.gain is not None for line in lines):
        what = f"measured - {table.against}'s measured, in {table.about.gain}"
        yield f"vs {table.against}: {what}, with its paired 95 % interval"
    if result.offline:
        yield NO_P_VALUE
    elif any(line.p is not None for line in lines):
        yield f"p: of that difference, over the same questions ({test}); Holm: corrected for all of this table"
    if any(line.published_imp is not None for line in lines):
        what = f"what {table.against} has more than the row, in percent of the row's"
        yield f"IMP: {what}; undefined where that is 0"
    if result.averages:
        yield f"average vs {table.against}: of what was published; over: how many of the paper's differences"
    used, different = result.calls_used, result.calls_different
    yield f"{used} calls used by {result.runs} runs, {different} different ones: reuse saves {used - different}"
    if result.errors:
        counted = f"ended in an error and {table.about.failed}"
        yield f"{result.errors} questions {counted}; the same command asks them again"
    if any(line.ours for line in lines):
        yield "* ours, not in the paper"
    if table.reader and not table.is_reader(result.reader):
        read_by = "the offline reader's" if result.offline else f"{result.reader}'s"
        yield f"other reader: the published figures are {table.reader}'s, the measured ones {read_by}"
    yield from (*table.notes, *result.notes)


def tables_of(result: TableResult) -> Iterator[Table]:
    """A table a task, with a line before each group of rows."""
    against = result.table.against
    header = ["", "at", "measure", "published", "measured", "vs published", "verdict"]
    header += [f"of {against}", f"vs {against}", f"published vs {against}", "p", "Holm"]
    header += ["published IMP", "measured IMP"]
    header += ["prompt", "front", "input", "front", "calls", "tokens", "errors"]
    for task, of_task in groupby(result.lines, key=lambda line: line.task):
        lines, rows = list(of_task), list[list[str]]()
        for group, of_group in groupby(lines, key=lambda line: line.group):
            if group:
                rows.append([group, *[""] * (len(header) - 1)])
            before = None
            for line in of_group:
                rows.append(_cells(line, before))
                before = line
        yield Table(header, rows, f"{task}, {lines[0].n} questions").without_empty()
    if result.averages:
        rows = [
            [
                one.name,
                as_printed(one.published, "+z"),
                percent(one.measured, "+z"),
                f"{one.over} of {one.of}",
            ]
            for one in result.averages
        ]
        yield Table(["", "published", "measured", "over"], rows, f"average vs {against}")


def _cells(line: ResultLine, before: ResultLine | None) -> list[str]:
    """The cells of a line; what its row and point have in common with the line before stands there alone."""
    new_row = before is None or line.label != before.label
    new = new_row or before is None or line.point != before.point
    counted = new and not line.missing
    digits, printed = format_of(line.measure).digits, as_printed(line.published)
    if line.published is not None and digits is not None:
        printed = f"{line.published:,.{0 if digits == 1 else digits}f}"
    measured = _with_half(line.measure, line.value, line.low, line.high)
    if line.failed:
        measured = "failed"
    elif line.missing:
        measured = "no value" if line.run else "not run"
    undefined = line.published_imp is not None and line.gain is not None
    label = "  " * bool(line.group) + line.label + "*" * line.ours + " †" * line.bound
    return [
        label if new_row else "",
        line.point if new else "",
        format_of(line.measure).words,
        printed,
        measured,
        percent(line.difference, "+z"),
        "" if line.verdict is None else line.verdict.short,
        "" if line.of_reference is None else f"{percent(line.of_reference)} %",
        _with_half(line.measure, line.gain, line.gain_low, line.gain_high, "+z"),
        as_printed(line.published_gain, "+z"),
        chance(line.p, ""),
        chance(line.p_holm, ""),
        "" if line.published_imp is None else f"{line.published_imp:.1f}",
        f"{line.imp:.1f}" if line.imp is not None else "undefined" if undefined else "",
        _count(line.prompt_tokens),
        "*" * ("prompt_tokens" in line.fronts),
        _count(line.tokens_in),
        "*" * ("tokens_in" in line.fronts),
        f"{line.calls:.2f}" if counted else "",
        (_count(line.tokens) or "-") if counted else "",
        str(line.errors or "") if new else "",
    ]


def as_printed(value: float | None, sign: str = "") -> str:
    """In percent, with a second digit behind the point where the paper prints one."""
    if value is None:
        return ""
    digits = 1 if math.isclose(1000 * value, round(1000 * value), abs_tol=1e-6) else 2
    return f"{100 * value:{sign}.{digits}f}"


def _count(tokens: float | None) -> str:
    return "" if tokens is None else f"{tokens:,.0f}"


def _with_half(
    measure: str, value: float | None, low: float | None, high: float | None, sign: str = ""
) -> str:
    if value is None or low is None or high is None:
        return ""
    digits = format_of(measure).digits
    if digits is None:
        return f"{percent(value, sign)} ± {percent((high - low) / 2)}"
    half = f" ± {(high - low) / 2:,.{digits}f}" if high > low else ""
    return f"{value:{sign[:1]},.{digits}f}{half}"


# --- the plots, as SVG and PNG files beside the table ---


def draw(
    result: TableResult, wanted: Sequence[TableRun], done: Mapping[Path, Run], folder: Path
) -> list[Path]:
    """The plots of `result` in `folder`. Raises: MissingExtra (matplotlib)."""
    table, paths = result.table, list[Path]()
    drawn = table.about.drawn
    measured = [line for line in result.lines if not (line.failed or line.missing)]
    if "panels" in drawn and measured:
        paths += _panels(result, measured, _files(folder, table.name))
    for task, named in by_label([(one, done[one.folder]) for one in wanted]).items():
        if all(run.failed for run in named.values()):
            continue
        if "frontier" in drawn:
            found = plots.frontier(named)
            # else the server has given too little
            if any(map(found.known, plots.FRONTIER_COSTS)):
                paths += found.draw(*_files(folder, f"{table.name}-{task}"))
        if "headline" in drawn:
            paths += plots.headline(named, *_files(folder, f"headline-{task}"))
            paths += plots.losses(named, *_files(folder, f"losses-{task}"))
    return paths


def _files(folder: Path, stem: str) -> list[Path]:
    return [folder / f"{stem}.{suffix}" for suffix in ("svg", "png")]


def _panels(
    result: TableResult, lines: Sequence[ResultLine], files: Sequence[Path]
) -> list[Path]:
    """A panel a task and measure (and side, and retriever): a bar a row, or over K a line a row, with intervals.

    Rows that failed, or were not run, have no bar. Figures of contexts show what the paper measures, or what leads.
    """
    table = result.table
    if table.about.leading:
        leading = {line.task: line.measure for line in reversed(lines)}
        leading |= {line.task: line.measure for line in lines if line.published is not None}
        lines = [line for line in lines if line.measure == leading[line.task]]
    curves = table.kind == "sweep"
    panels = defaultdict[str, dict[str, list[ResultLine]]](dict)
    rows: dict[str, int] = {}
    for line in lines:
        side = "" if curves else line.point.partition(" (")[0]
        panel, row = (line.group, "") if table.kind == "retrieval" else ("", line.group)
        form = format_of(line.measure)
        measure = form.words + " (%)" * (form.digits is None)
        title = ", ".join(filter(None, (line.task, panel, side, measure)))
        label = ", ".join(filter(None, (row, line.label))) + " †" * line.bound
        rows.setdefault(label, len(rows))
        panels[title].setdefault(label, []).append(line)

    def draw_panel(title: str, axes: Axes) -> None:
        """A curve or a bar for each row, hatched where it reads the answer."""
        axes.set_title(title)
        for label, of_row in panels[title].items():
            at = rows[label]
            colour = plots.SERIES[at % len(plots.SERIES)]
            scale = 100 if format_of(of_row[0].measure).digits is None else 1
            values, low, high = (
                [scale * getattr(line, name) for line in of_row]
                for name in ("value", "low", "high")
            )
            if curves:
                xs = [int(line.point.removeprefix("K=")) for line in of_row]
                marker = plots.MARKERS[at % len(plots.MARKERS)]
                axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
                axes.plot(xs, values, label=label, color=colour, marker=marker, markersize=4)
            else:
                hatch = "//" * of_row[0].bound
                axes.bar(
                    at, values[0], label=label, color=colour, hatch=hatch, edgecolor="white"
                )
                axes.vlines(at, low[0], high[0], color="#444444", linewidth=0.6)
        if curves:
            axes.set(xlabel="K, passages a query")
        else:
            axes.set_xticks([])
            axes.grid(visible=False, axis="x")

    columns = min(3, len(panels))
    return plots.draw(
        [partial(draw_panel, title) for title in panels],
        *files,
        size=(1.2 + 1.9 * columns, 0.8 + 1.7 * math.ceil(len(panels) / columns)),
        title=f"{table.name}: {lines[0].n} questions",
        offline=result.offline,
    )

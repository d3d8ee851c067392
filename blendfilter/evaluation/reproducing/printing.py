"""A measured table as text, Markdown and JSON.

In: a `Result`. Out: its three forms, and the files `table.md` and `table.json` that hold two of them. Scores are
percent, differences points; the JSON keeps fractions of 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

from blendfilter.evaluation.comparison import NO_P_VALUE
from blendfilter.evaluation.files import write_json
from blendfilter.evaluation.reproducing.results import Line, Result

Cells = list[str]
_TASKS = {"hotpotqa": "HotPotQA", "twowiki": "2WikiMultihopQA", "strategyqa": "StrategyQA"}
_MEASURES = {"em": "EM", "f1": "F1", "s_precision": "S-precision"}


def text(result: Result) -> str:
    """The table as aligned text."""
    parts = [title(result)]
    for task, (header, body) in _by_task(result):
        first, *others = (max(map(len, column)) for column in zip(header, *body, strict=True))
        lines = ["  ".join([name.ljust(first), *map(str.rjust, cells, others)]).rstrip() for name, *cells in body]
        head = "  ".join([header[0].ljust(first), *map(str.rjust, header[1:], others)])
        parts.append("\n".join([task, "", head, "-" * len(head), *lines]))
    return "\n\n".join([*parts, "\n".join(notes(result))]) + "\n"


def markdown(result: Result) -> str:
    """The table as Markdown, a table a task."""
    parts = [f"# {title(result)}"]
    for task, (header, body) in _by_task(result):
        ruler = ["---", *["---:"] * (len(header) - 1)]
        parts.append(f"## {task}\n\n" + "\n".join(_row(cells) for cells in [header, ruler, *body]))
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in notes(result))]) + "\n"


def plain(result: Result) -> dict[str, Any]:
    """The table as plain data for JSON."""
    table = result.table
    lines = [{key: _rounded(key, value) for key, value in asdict(line).items()} for line in result.lines]
    spent = asdict(result.spent) | {"saved": result.spent.saved}
    said = {name: getattr(table, name) for name in ("title", "paper", "kind")}
    measured = {"reader": result.reader, "repeats": result.repeats, "offline": result.offline, "errors": result.errors}
    return {"table": table.name, **said, **measured, "lines": lines, "spent": spent, "notes": notes(result)}


def write(result: Result, folder: Path) -> list[Path]:
    """`table.md` and `table.json` in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    as_markdown, as_json = folder / "table.md", folder / "table.json"
    as_markdown.write_text(markdown(result), encoding="utf-8")
    write_json(as_json, plain(result))
    return [as_markdown, as_json]


def title(result: Result) -> str:
    """What the table is, in one line."""
    return f"{result.table.name}: {result.table.title} | {result.table.paper}"


def notes(result: Result) -> list[str]:
    """How to read the table, a line each."""
    return list(_notes(result))


def _notes(result: Result) -> Iterator[str]:
    table, spent = result.table, result.spent
    yield "percent; ±: half of the 95 % interval; diff: measured - published, in points"
    yield "calls, tokens: a question's, those that another run had made already included"
    if result.offline:
        yield NO_P_VALUE
    elif any(line.p is not None for line in result.lines):
        one = "exact McNemar for EM and accuracy, the paired bootstrap for F1"
        what = one if result.repeats == 1 else f"the paired bootstrap, over {result.repeats} answers a question"
        yield f"p: against {table.against} over the same questions ({what}); Holm: corrected for all of this table"
    yield f"{spent.used} calls used by {spent.runs} runs, {spent.different} different ones: reuse saves {spent.saved}"
    if result.errors:
        yield f"{result.errors} questions ended in an error and count as 0; the same command asks them again"
    if any(line.ours for line in result.lines):
        yield "* ours, not in the paper"
    if result.reader.rpartition("/")[2].casefold() != table.reader.casefold():
        read_by = "the offline reader's" if result.offline else f"{result.reader}'s"
        yield f"other reader: the published figures are {table.reader}'s, the measured ones {read_by}"
    yield from table.notes
    yield from result.notes


def _by_task(result: Result) -> Iterator[tuple[str, tuple[Cells, list[Cells]]]]:
    for task, group in groupby(result.lines, key=lambda line: line.task):
        lines = list(group)
        yield f"{_TASKS.get(task, task)}, {lines[0].n} questions", _cells(result, lines)


def _cells(result: Result, lines: Sequence[Line]) -> tuple[Cells, list[Cells]]:
    """The header and the lines of cells, a line before each group of rows."""
    points, tested = any(line.point for line in lines), any(line.p is not None for line in lines)
    compared, failed = any(line.published is not None for line in lines), any(line.errors for line in lines)
    header = [
        "", *["at"] * points, "measure", *["published"] * compared, "measured", *["diff"] * compared,
        *["p", "Holm"] * tested, "calls", "tokens", *["errors"] * failed,
    ]  # fmt: skip
    body: list[Cells] = []
    for name, group in groupby(lines, key=lambda line: line.group):
        if name:
            body.append([name, *[""] * (len(header) - 1)])
        before: tuple[str, str] | None = None
        for line in group:
            here = (line.label, line.point)
            new, label = here != before, f"{'  ' * bool(name)}{line.label}{'*' * line.ours}"
            body.append([
                label if before is None or before[0] != line.label else "",
                *[line.point if new else ""] * points,
                _MEASURES.get(line.measure, line.measure),
                *[_percent(line.published)] * compared,
                f"{_percent(line.value)} ± {_percent((line.high - line.low) / 2)}",
                *[_percent(line.difference, "+z")] * compared,
                *([_chance(line.p), _chance(line.p_holm)] if tested else []),
                *([f"{line.calls:.2f}", f"{line.tokens:,.0f}"] if new else ["", ""]),
                *[str(line.errors) if new else ""] * failed,
            ])  # fmt: skip
            before = here
    return header, body


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("  ", "&ensp;") for cell in cells) + " |"


def _percent(value: float | None, sign: str = "") -> str:
    return "" if value is None else f"{100 * value:{sign}.1f}"


def _chance(p: float | None) -> str:
    if p is None:
        return ""
    return "<.0001" if p < 0.0001 else f"{p:.4f}".replace("0.", ".", 1)


def _rounded(name: str, value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if name in ("p", "p_holm") else round(value, 6)

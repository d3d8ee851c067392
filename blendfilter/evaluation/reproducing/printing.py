"""A measured table as text, Markdown and JSON.

In: a `Result`. Out: its three forms, and the files `table.md` and `table.json` that hold two of them. Scores are
percent, differences points; the JSON keeps fractions of 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from textwrap import fill, wrap
from typing import Any

from blendfilter.errors import BadArgument
from blendfilter.evaluation.compared import NO_P_VALUE, chance, percent, rounded
from blendfilter.evaluation.files import write_json, write_text
from blendfilter.evaluation.reproducing.lines import IN_TOKENS, NUMBERS, Line
from blendfilter.evaluation.reproducing.results import Result
from blendfilter.filters.silver import UPPER_BOUND

Cells = list[str]
_LABEL, _ENDLESS = 22, 10_000
_GIVEN_UP = ("vs published", "tokens", "p", "calls", "published", "Holm")
"""What is left out where there is no room, in this order."""
FEW = 50
"""Of fewer questions a note says why the intervals are wide."""
_UNMET = 3.84
"""Wilson's z²: of n that are alike, z² / (n + z²) of all may be otherwise."""
_TASKS = {
    "hotpotqa": "HotPotQA", "twowiki": "2WikiMultihopQA", "strategyqa": "StrategyQA", "nq": "NQ",
    "triviaqa": "TriviaQA", "fever": "FEVER", "eli5": "ELI5", "wow": "WoW", "popqa": "PopQA", "arc": "ARC-Challenge",
    "pubhealth": "PubHealth",
}  # fmt: skip
_MEASURES = {
    "em": "EM", "f1": "F1", "s_precision": "S-precision", "output_precision": "precision", "where_kept": "where kept",
    "by_characters": "by characters", "context_tokens": "context", "answer_prompt": "prompt",
    "inclusion_raw": "inclusion, raw", "judging_calls": "calls", "judging_tokens": "tokens",
    "judging_seconds": "seconds", "seconds_in_all": "seconds in all", "dollars_a_thousand": "$ for 1,000",
}  # fmt: skip


def text(result: Result, width: int | None = None) -> str:
    """The table as aligned text; of `width` columns where there are no more: no cell is ever cut or folded."""
    parts, left = [title(result)], dict[str, None]()
    for task, (header, body) in _by_task(result):
        shown, lines = _aligned(header, body, width)
        left |= dict.fromkeys(name for name in header if name not in shown)
        parts.append("\n".join([task, "", *lines]))
    missing = [f"left out for want of room: {', '.join(left)}; table.md has all"] * bool(left)
    folded = [fill(note, width or _ENDLESS, subsequent_indent="  ") for note in [*missing, *notes(result)]]
    return "\n\n".join([*parts, "\n".join(folded)]) + "\n"


def _aligned(header: Cells, body: list[Cells], width: int | None) -> tuple[Cells, list[str]]:
    """The columns for which there is room, and their lines; those go first that the others tell, or the files."""
    table, given_up = [header, *body], iter(_GIVEN_UP)
    if width is not None and _width(table) > width:
        table = [header, *_folded(body)]
    while width is not None and _width(table) > width and (name := next(given_up, None)) is not None:
        table = [[cell for cell, of in zip(line, table[0], strict=True) if of != name] for line in table]
    header, *body = table
    heads = [list(each) for each in zip(*map(_two_lines, header), strict=True)]
    first, *others = _widths([*heads, *body])
    lines = [
        "  ".join([name.ljust(first), *map(str.rjust, cells, others)]).rstrip() for name, *cells in [*heads, *body]
    ]
    return header, [*lines[:2], "-" * max(map(len, lines)), *lines[2:]]


def _folded(body: list[Cells]) -> Iterator[Cells]:
    """`body` with long labels over several lines: those of the same row's other measures, then lines of their own."""
    more: list[str] = []
    width = 0
    for label, *cells in body:
        shown = label
        if label:
            yield from ([each, *[""] * width] for each in more)
            indent, width = " " * (len(label) - len(label.lstrip())), len(cells)
            folded = wrap(label.strip(), _LABEL, initial_indent=indent, subsequent_indent=indent + "  ")
            shown, *more = folded if any(cells) else [label]
        elif more:
            shown = more.pop(0)
        yield [shown, *cells]
    yield from ([each, *[""] * width] for each in more)


def _two_lines(name: str) -> tuple[str, str]:
    """A column's name over two lines, where it holds something against something else."""
    return ("vs", name.removeprefix("vs ")) if name.startswith("vs ") else ("", name)


def _widths(table: Sequence[Cells]) -> list[int]:
    """The columns' widths; a heading, which stands alone in its line, takes no part."""
    header, *body = table
    return [max(map(len, column)) for column in zip(header, *(line for line in body if any(line[1:])), strict=True)]


def _width(table: list[Cells]) -> int:
    header, *body = table
    widths = _widths([[_two_lines(name)[1] for name in header], *body])
    return sum(widths) + 2 * (len(widths) - 1)


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
    lines = [{key: rounded(key, value) for key, value in asdict(line).items()} for line in result.lines]
    spent = asdict(result.spent) | {"saved": result.spent.saved}
    said = {name: getattr(table, name) for name in ("title", "paper", "kind")}
    measured = {"reader": result.reader, "repeats": result.repeats, "offline": result.offline, "errors": result.errors}
    return {"table": table.name, **said, **measured, "lines": lines, "spent": spent, "notes": notes(result)}


def write(result: Result, folder: Path) -> list[Path]:
    """`table.md` and `table.json` in `folder`. Raises `BadArgument` where another `table.md` is there than ours."""
    folder.mkdir(parents=True, exist_ok=True)
    as_markdown, as_json = folder / "table.md", folder / "table.json"
    head = f"# {result.table.name}: ".encode()
    if as_markdown.exists() and not as_markdown.read_bytes().startswith(head):
        raise BadArgument(f"{as_markdown} is there, and is no table of this kind: move it away, or name other --runs")
    write_text(as_markdown, markdown(result))
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
    yield f"{_UNITS.get(table.kind, 'percent')}; ±: half of the 95 % interval"
    if (n := min((line.n for line in result.lines), default=FEW)) < FEW:
        others = f"{100 * _UNMET / (n + _UNMET):.0f} % of all"
        yield (
            f"{n} question{'s' * (n != 1)}: intervals are wide on purpose. Where all are alike, as of two rows that do "
            f"not differ, ± leaves room for others that were not met, up to {others}"
        )
    yield from _READ.get(table.kind, ())
    if any(line.bound for line in result.lines):
        yield f"† {UPPER_BOUND}"
    if any(line.difference is not None for line in result.lines):
        of = table.n if table.published_n is None else table.published_n
        own = 196 * math.sqrt(0.25 / of)  # a half right is the widest; a mean of shares varies no more
        yield "vs published: measured - published, in points; no test belongs to it"
        of_so_many = f"{of} questions" if table.published_n is None else f"{of:,} questions or more"
        yield f"published: of {of_so_many}, so uncertain too (up to ± {own:.1f} points); the difference by both"
    what = "a question's" if result.repeats == 1 else "one answer's"
    yield f"calls, tokens: {what}, those that another run had made already included"
    if any(line.gain is not None for line in result.lines):
        unit = {"tokens": "tokens", "judging": "the measure's own unit"}.get(table.kind, "points")
        yield f"vs {table.against}: measured - {table.against}'s measured, in {unit}, with its paired 95 % interval"
    if result.offline:
        yield NO_P_VALUE
    elif any(line.p is not None for line in result.lines):
        one = "exact McNemar for right and wrong, the paired bootstrap for F1"
        one = "the paired bootstrap" if table.kind in ("precision", "tokens", "judging") else one
        what = one if result.repeats == 1 else f"the paired bootstrap, over {result.repeats} answers a question"
        yield f"p: of that difference, over the same questions ({what}); Holm: corrected for all of this table"
    yield f"{spent.used} calls used by {spent.runs} runs, {spent.different} different ones: reuse saves {spent.saved}"
    if result.errors:
        counted = _FAILED.get(table.kind, "count as 0")
        yield f"{result.errors} questions ended in an error and {counted}; the same command asks them again"
    if any(line.ours for line in result.lines):
        yield "* ours, not in the paper"
    if table.reader and result.reader.rpartition("/")[2].casefold() != table.reader.casefold():
        read_by = "the offline reader's" if result.offline else f"{result.reader}'s"
        yield f"other reader: the published figures are {table.reader}'s, the measured ones {read_by}"
    yield from table.notes
    yield from result.notes


_UNITS = {"tokens": "tokens", "judging": "of the stage that judges, a question's"}
_FAILED = {
    "precision": "are left out",
    "tokens": "are left out",
    "judging": "are left out",
    "frontier": "count as 0, their tokens left out",
}
"""What becomes of a question that ended in an error, where it does not count as 0."""
_READ = {
    "precision": (
        "precision: the share of the context's words that are the output's (an empty context has 0); where kept: over "
        "the questions with something left",
        "by characters: the same over characters, as the paper's code counts; empty: questions with nothing left",
    ),
    "tokens": ("context: the question and what is left; prompt: all that the call that answers is sent",),
    "judging": (
        "seconds: of a question's judging calls, added up; in all: by the clock, while one or more were in flight",
    ),
    "sides": ("positive: the passages support the output; in brackets, how many questions",),
    "frontier": (
        "prompt: tokens of the prompt that is read for the answer; input: of all calls; *: on that front, no other row "
        "is as good for fewer",
    ),
}


def _by_task(result: Result) -> Iterator[tuple[str, tuple[Cells, list[Cells]]]]:
    for task, group in groupby(result.lines, key=lambda line: line.task):
        lines = list(group)
        yield f"{_TASKS.get(task, task)}, {lines[0].n} questions", _cells(result, lines)


def _cells(result: Result, lines: Sequence[Line]) -> tuple[Cells, list[Cells]]:
    """The header and the lines of cells, a line before each group of rows."""
    points, tested = any(line.point for line in lines), any(line.p is not None for line in lines)
    held, shared = any(line.gain is not None for line in lines), any(line.of_reference is not None for line in lines)
    frontier = result.table.kind == "frontier"
    compared, failed = any(line.published is not None for line in lines), any(line.errors for line in lines)
    differs = any(line.difference is not None for line in lines)
    header = [
        "", *["at"] * points, "measure", *["published"] * compared, "measured", *["vs published"] * differs,
        *[f"of {result.table.against}"] * shared, *[f"vs {result.table.against}"] * held, *["p", "Holm"] * tested,
        *["prompt", "front", "input", "front "] * frontier, "calls", "tokens", *["errors"] * failed,
    ]  # fmt: skip
    body: list[Cells] = []
    for name, group in groupby(lines, key=lambda line: line.group):
        if name:
            body.append([name, *[""] * (len(header) - 1)])
        before: tuple[str, str] | None = None
        for line in group:
            here = (line.label, line.point)
            new = here != before
            label = f"{'  ' * bool(name)}{line.label}{'*' * line.ours}{' †' * line.bound}"
            body.append([
                label if before is None or before[0] != line.label else "",
                *[line.point if new else ""] * points,
                _MEASURES.get(line.measure, line.measure),
                *[_printed(line)] * compared,
                _with_half(line.measure, line.value, line.low, line.high),
                *[percent(line.difference, "+z")] * differs,
                *[f"{percent(line.of_reference)} %" if line.of_reference is not None else ""] * shared,
                *[_with_half(line.measure, line.gain, line.gain_low, line.gain_high, "+z")] * held,
                *([chance(line.p, ""), chance(line.p_holm, "")] if tested else []),
                *(_of_front(line) if frontier else []),
                *([f"{line.calls:.2f}", "-" if line.tokens is None else f"{line.tokens:,.0f}"] if new else ["", ""]),
                *[str(line.errors) if new else ""] * failed,
            ])  # fmt: skip
            before = here
    return header, body


def _row(cells: Sequence[str]) -> str:
    """A line of Markdown, in which no figure is parted from its interval."""
    told = (cell.replace("|", "\\|").replace("  ", "&ensp;").replace(" ± ", "\u00a0±\u00a0") for cell in cells)
    return "| " + " | ".join(told) + " |"


def _of_front(line: Line) -> Iterator[str]:
    """Input tokens of the answer's prompt and of all calls, each with a star where the row is on that front."""
    for cost, tokens in (("prompt_tokens", line.prompt_tokens), ("tokens_in", line.tokens_in)):
        yield "-" if tokens is None else f"{tokens:,.0f}"
        yield "*" * (cost in line.fronts)


def _printed(line: Line) -> str:
    if line.published is not None and line.measure in NUMBERS:
        return f"{line.published:,.2f}"
    return percent(line.published)


def _with_half(measure: str, value: float | None, low: float | None, high: float | None, sign: str = "") -> str:
    if value is None or low is None or high is None:
        return ""
    if measure in NUMBERS:
        digits = 1 if measure in IN_TOKENS else 2
        half = f" ± {(high - low) / 2:,.{digits}f}" if high > low or sign or measure in IN_TOKENS else ""
        return f"{value:{sign[:1]},.{digits}f}{half}"
    return f"{percent(value, sign)} ± {percent((high - low) / 2)}"

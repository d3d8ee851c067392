"""A measured table as text, Markdown and JSON. Scores are percent, differences points; JSON keeps fractions of 1."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from textwrap import fill, wrap
from typing import Any

from blendfilter.errors import BadArgument
from blendfilter.evaluation.comparison import NO_P_VALUE, chance, percent, rounded
from blendfilter.evaluation.run_folder import write_json, write_text
from blendfilter.filters.silver import UPPER_BOUND
from blendfilter.reproduce.results import IN_TOKENS, NUMBERS, ResultLine, TableResult

Cells = list[str]
_LABEL, _ENDLESS = 22, 10_000
_GIVEN_UP = ("vs published", "tokens", "p", "calls", "published", "Holm")
"""What is left out where there is no room, in this order."""
_FEW = 50
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
_UNITS = {"tokens": "tokens", "judging": "of the stage that judges, a question's"}
_FAILED = {**dict.fromkeys(("precision", "tokens", "judging"), "are left out"),
           "frontier": "count as 0, their tokens left out"}  # fmt: skip
"""What becomes of a question that ended in an error, where it does not count as 0."""
_HOW_TO_READ = {
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


def text(result: TableResult, width: int | None = None) -> str:
    """The table as aligned text; of `width` columns where there are no more: no cell is ever cut or folded."""
    parts, left = [title(result)], dict[str, None]()
    for task, header, body in _by_task(result):
        kept, lines = _fitted(header, body, width)
        left |= dict.fromkeys(name for name in header if name not in kept)
        parts.append("\n".join([task, "", *lines]))
    missing = [f"left out for want of room: {', '.join(left)}; table.md has all"] * bool(left)
    folded = [fill(note, width or _ENDLESS, subsequent_indent="  ") for note in [*missing, *notes(result)]]
    return "\n\n".join([*parts, "\n".join(folded)]) + "\n"


def aligned(table: Sequence[Cells]) -> list[str]:
    """The lines of a table: the first column to the left, the others to the right.

    A heading, which stands alone in its line, takes no part in the widths.
    """
    first, *others = _widths(table)
    return ["  ".join([name.ljust(first), *map(str.rjust, cells, others)]).rstrip() for name, *cells in table]


def _widths(table: Sequence[Cells]) -> list[int]:
    header, *body = table
    return [max(map(len, column)) for column in zip(header, *(line for line in body if any(line[1:])), strict=True)]


def _fitted(header: Cells, body: list[Cells], width: int | None) -> tuple[Cells, list[str]]:
    """The columns for which there is room, and their lines; first those go that others tell, or the files."""
    if _too_wide(header, body, width):
        body = list(_folded(body))
    for name in _GIVEN_UP:
        if name in header and _too_wide(header, body, width):
            at = header.index(name)
            header, *body = ([*line[:at], *line[at + 1 :]] for line in (header, *body))
    # "vs BlendFilter" over two lines
    above = ["vs" if name.startswith("vs ") else "" for name in header]
    lines = aligned([above, [name.removeprefix("vs ") for name in header], *body])
    return header, [*lines[:2], "-" * max(map(len, lines)), *lines[2:]]


def _too_wide(header: Cells, body: Sequence[Cells], width: int | None) -> bool:
    widths = _widths([[name.removeprefix("vs ") for name in header], *body])
    return width is not None and sum(widths) + 2 * (len(header) - 1) > width


def _folded(body: list[Cells]) -> Iterator[Cells]:
    """`body` with long labels over several lines: those of the same row's other measures, then lines of their own."""
    more: list[str] = []
    empty = [""] * (len(body[0]) - 1)
    for label, *cells in body:
        first = label
        if label:
            yield from ([rest, *empty] for rest in more)
            more = []
            if any(cells):
                indent = " " * (len(label) - len(label.lstrip()))
                first, *more = wrap(label.strip(), _LABEL, initial_indent=indent, subsequent_indent=indent + "  ")
        elif more:
            first = more.pop(0)
        yield [first, *cells]
    yield from ([rest, *empty] for rest in more)


def markdown(result: TableResult) -> str:
    """The table as Markdown, a table a task, in which no figure is parted from its interval."""
    parts = [f"# {title(result)}"]
    for task, header, body in _by_task(result):
        lines = []
        for cells in [header, ["---", *["---:"] * (len(header) - 1)], *body]:
            safe = (cell.replace("|", "\\|").replace("  ", "&ensp;").replace(" ± ", "\u00a0±\u00a0") for cell in cells)
            lines.append("| " + " | ".join(safe) + " |")
        parts.append(f"## {task}\n\n" + "\n".join(lines))
    return "\n\n".join([*parts, "\n".join(f"- {note}" for note in notes(result))]) + "\n"


def plain(result: TableResult) -> dict[str, Any]:
    """The table as plain data for JSON."""
    table, saved = result.table, result.calls_used - result.calls_different
    lines = [{key: rounded(key, value) for key, value in asdict(line).items()} for line in result.lines]
    return {
        "table": table.name, "title": table.title, "paper": table.paper, "kind": table.kind, "reader": result.reader,
        "repeats": result.repeats, "offline": result.offline, "errors": result.errors, "lines": lines,
        "spent": {"runs": result.runs, "used": result.calls_used, "different": result.calls_different, "saved": saved},
        "notes": list(notes(result)),
    }  # fmt: skip


def write(result: TableResult, folder: Path) -> list[Path]:
    """`table.md` and `table.json` in `folder`. Raises `BadArgument` where another `table.md` is there than ours."""
    folder.mkdir(parents=True, exist_ok=True)
    as_markdown, as_json = folder / "table.md", folder / "table.json"
    head = f"# {result.table.name}: ".encode()
    if as_markdown.exists() and not as_markdown.read_bytes().startswith(head):
        raise BadArgument(f"{as_markdown} is there, and is no table of this kind: move it away, or name other --runs")
    write_text(as_markdown, markdown(result))
    write_json(as_json, plain(result))
    return [as_markdown, as_json]


def title(result: TableResult) -> str:
    """What the table is, in one line."""
    return f"{result.table.name}: {result.table.title} | {result.table.paper}"


def notes(result: TableResult) -> Iterator[str]:
    """How to read the table, a line each."""
    table, lines = result.table, result.lines
    yield f"{_UNITS.get(table.kind, 'percent')}; ±: half of the 95 % interval"
    if (n := min((line.n for line in lines), default=_FEW)) < _FEW:
        others = f"{100 * _UNMET / (n + _UNMET):.0f} % of all"
        yield (
            f"{n} question{'s' * (n != 1)}: intervals are wide on purpose. Where all are alike, as of two rows that do "
            f"not differ, ± leaves room for others that were not met, up to {others}"
        )
    yield from _HOW_TO_READ.get(table.kind, ())
    if any(line.bound for line in lines):
        yield f"† {UPPER_BOUND}"
    if any(line.difference is not None for line in lines):
        of = table.n if table.published_n is None else table.published_n
        own = 196 * math.sqrt(0.25 / of)  # a half right is the widest; a mean of shares varies no more
        yield "vs published: measured - published, in points; no test belongs to it"
        of_so_many = f"{of} questions" if table.published_n is None else f"{of:,} questions or more"
        yield f"published: of {of_so_many}, so uncertain too (up to ± {own:.1f} points); the difference by both"
    what = "a question's" if result.repeats == 1 else "one answer's"
    yield f"calls, tokens: {what}, those that another run had made already included"
    if any(line.gain is not None for line in lines):
        unit = {"tokens": "tokens", "judging": "the measure's own unit"}.get(table.kind, "points")
        yield f"vs {table.against}: measured - {table.against}'s measured, in {unit}, with its paired 95 % interval"
    if result.offline:
        yield NO_P_VALUE
    elif any(line.p is not None for line in lines):
        test = "exact McNemar for right and wrong, the paired bootstrap for F1"
        test = "the paired bootstrap" if table.kind in ("precision", "tokens", "judging") else test
        test = test if result.repeats == 1 else f"the paired bootstrap, over {result.repeats} answers a question"
        yield f"p: of that difference, over the same questions ({test}); Holm: corrected for all of this table"
    used, different = result.calls_used, result.calls_different
    yield f"{used} calls used by {result.runs} runs, {different} different ones: reuse saves {used - different}"
    if result.errors:
        counted = _FAILED.get(table.kind, "count as 0")
        yield f"{result.errors} questions ended in an error and {counted}; the same command asks them again"
    if any(line.ours for line in lines):
        yield "* ours, not in the paper"
    if table.reader and result.reader.rpartition("/")[2].casefold() != table.reader.casefold():
        read_by = "the offline reader's" if result.offline else f"{result.reader}'s"
        yield f"other reader: the published figures are {table.reader}'s, the measured ones {read_by}"
    yield from (*table.notes, *result.notes)


def _by_task(result: TableResult) -> Iterator[tuple[str, Cells, list[Cells]]]:
    """The title, the header and the lines of cells of each task."""
    for task, group in groupby(result.lines, key=lambda line: line.task):
        lines = list(group)
        yield f"{_TASKS.get(task, task)}, {lines[0].n} questions", *_cells(result, lines)


def _cells(result: TableResult, lines: Sequence[ResultLine]) -> tuple[Cells, list[Cells]]:
    """The header and the lines of cells, with a line before each group of rows."""
    against = result.table.against
    columns = {
        "at": any(line.point for line in lines),
        "measure": True,
        "published": any(line.published is not None for line in lines),
        "measured": True,
        "vs published": any(line.difference is not None for line in lines),
        f"of {against}": any(line.of_reference is not None for line in lines),
        f"vs {against}": any(line.gain is not None for line in lines),
        **dict.fromkeys(("p", "Holm"), any(line.p is not None for line in lines)),
        **dict.fromkeys(("prompt", "front", "input", "front "), result.table.kind == "frontier"),
        "calls": True,
        "tokens": True,
        "errors": any(line.errors for line in lines),
    }
    header = ["", *(name for name, there in columns.items() if there)]
    body: list[Cells] = []
    for group, of_group in groupby(lines, key=lambda line: line.group):
        if group:
            body.append([group, *[""] * (len(header) - 1)])
        before: tuple[str, str] | None = None
        for line in of_group:
            new = (line.label, line.point) != before
            label = f"{'  ' * bool(group)}{line.label}{'*' * line.ours}{' †' * line.bound}"
            cells = [
                line.point if new else "",
                _MEASURES.get(line.measure, line.measure),
                f"{line.published:,.2f}" if line.published is not None and line.measure in NUMBERS
                else percent(line.published),
                _with_half(line.measure, line.value, line.low, line.high),
                percent(line.difference, "+z"),
                f"{percent(line.of_reference)} %" if line.of_reference is not None else "",
                _with_half(line.measure, line.gain, line.gain_low, line.gain_high, "+z"),
                chance(line.p, ""), chance(line.p_holm, ""),
                _count(line.prompt_tokens), "*" * ("prompt_tokens" in line.fronts),
                _count(line.tokens_in), "*" * ("tokens_in" in line.fronts),
                f"{line.calls:.2f}" if new else "",
                _count(line.tokens) if new else "",
                str(line.errors) if new else "",
            ]  # fmt: skip
            first = label if before is None or before[0] != line.label else ""
            body.append([first, *(cell for cell, there in zip(cells, columns.values(), strict=True) if there)])
            before = (line.label, line.point)
    return header, body


def _count(tokens: float | None) -> str:
    return "-" if tokens is None else f"{tokens:,.0f}"


def _with_half(measure: str, value: float | None, low: float | None, high: float | None, sign: str = "") -> str:
    if value is None or low is None or high is None:
        return ""
    if measure in NUMBERS:
        digits = 1 if measure in IN_TOKENS else 2
        half = f" ± {(high - low) / 2:,.{digits}f}" if high > low or sign or measure in IN_TOKENS else ""
        return f"{value:{sign[:1]},.{digits}f}{half}"
    return f"{percent(value, sign)} ± {percent((high - low) / 2)}"

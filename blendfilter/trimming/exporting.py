"""Separations as rows for people and spreadsheets: a row says which question told which two passages apart, and who
judged it, by which model and when.

In: the state. Out: JSON Lines or CSV, a row for each separation and each of its witnesses, sorted; a file that is there
whole or not at all.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path
from typing import NamedTuple, TextIO

from blendfilter.trimming.lines import check_threshold
from blendfilter.trimming.state import Witnesses
from blendfilter.trimming.whole import write_whole

STDOUT = "-"
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet takes for the beginning of a formula, or reads over to find one."""


class Row(NamedTuple):
    """One witness of one separation: `question` accepted the one passage and rejected the other.

    `witnesses` counts the pair's, `reached` says whether they are as many as the threshold; counted one way, whether
    those are that accepted the same passage as this one.
    """

    accepted: str
    rejected: str
    witnesses: int
    reached: bool
    question_id: str
    question: str
    judge: str
    mode: str
    rules: tuple[str, ...]
    model: str
    program: str
    at: str


def rows(witnesses: Witnesses, threshold: int, *, one_way: bool = False) -> Iterator[Row]:
    """Every separation with any witness, below the threshold too."""
    check_threshold(threshold)
    for separation in witnesses.separated(1):
        a, b = separation.pair
        count = len(separation.witnesses)
        for_a, for_b = witnesses.sides(separation) if one_way else (count, count)
        for name in separation.witnesses:
            judged = witnesses.judged[name]
            won, lost, counting = (a, b, for_a) if a in judged.accepted else (b, a, for_b)
            by = judged.by
            yield Row(
                won, lost, count, counting >= threshold, name, judged.question, by.judge, by.mode, by.rules, by.model,
                by.program, judged.at,
            )  # fmt: skip


def export(
    witnesses: Witnesses,
    target: str | Path,
    *,
    threshold: int,
    one_way: bool = False,
    overwrite: bool = False,
    stdout: TextIO | None = None,
) -> int:
    """Write the rows to `target`: CSV where its name ends in .csv, else JSON Lines; `-` is standard output.

    How many rows that were. Raises `BadArgument` where the file cannot be there, or one is there already and
    `overwrite` is not set, and OSError (a full disk): then what was there before still is.
    """
    told = list(rows(witnesses, threshold, one_way=one_way))
    if str(target) == STDOUT:
        # half a character in a passage's id: no terminal takes it, and a pipe's encoding may not
        lines = (line.encode("utf-8", "backslashreplace").decode() for line in as_jsonl(told))
        (stdout or sys.stdout).writelines(lines)
    else:
        path = Path(target)
        write_whole(path, as_csv(told) if path.suffix.lower() == ".csv" else as_jsonl(told), overwrite=overwrite)
    return len(told)


def as_jsonl(told: Iterable[Row]) -> Iterator[str]:
    """A JSON object a line."""
    for row in told:
        yield json.dumps(row._asdict(), ensure_ascii=False) + "\n"


def as_csv(told: Iterable[Row]) -> Iterator[str]:
    """A header and a record each, as RFC 4180 has it; rules are joined by spaces.

    A text that a spreadsheet would run as a formula (it begins with =, +, -, @, a tab or a carriage return) has an
    apostrophe before it: ids and questions are others' data. JSON Lines has every text as it is.
    """
    yield _record(Row._fields)
    for row in told:
        yield _record(row._replace(rules=" ".join(row.rules)))  # type: ignore[arg-type]  # one cell


def _record(cells: Iterable[object]) -> str:
    line = StringIO()
    csv.writer(line, lineterminator="\r\n").writerow(map(_harmless, cells))
    return line.getvalue()


def _harmless(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) else cell

"""A witnesses file read line by line: what is no line of it is named by its number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from blendfilter.errors import BadData
from blendfilter.trimming.lines import FORMAT, KINDS, first_line, line_of

BEGINS = b'{"kind":"'
FIRST = line_of(first_line())[:-1]
"""How every line of a witnesses file begins, and its first line."""


def replay(lines: Iterable[bytes], path: Path, apply: Callable[[Mapping[str, Any]], None]) -> None:
    """Hand every whole line to `apply`, which says by ValueError, TypeError or LookupError that one cannot be.

    Raises:
        BadData: a line that no torn write explains, or that a newer version wrote.
    """
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line.decode())
            _check_kind(record, number, path)
            if number > 1:
                apply(record)
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise not_a_line(path, number) from error


def _check_kind(record: Any, number: int, path: Path) -> None:
    kind, stated = record["kind"], record.get("format")
    if not isinstance(kind, str):
        raise TypeError("a kind is a word")
    if (number == 1) != (kind == "witnesses"):
        raise ValueError("the first line, and no other, says what the file is")
    if number == 1 and stated != FORMAT:
        raise BadData(
            f"{path} has format {stated!r:.40}, and this version reads format {FORMAT}: upgrade blendfilter, "
            "or open the bare index"
        )
    if kind not in KINDS:
        raise BadData(
            f"{path}, line {number}: a line of the kind {kind!r:.40}, which this version does not know: "
            "upgrade blendfilter, or open the bare index"
        )


def not_a_line(path: Path, number: int) -> BadData:
    return BadData(
        f"{path}, line {number}: not a line of a witnesses file; cut the file before it and trim again "
        "(the journal beside it still has the verdicts; what was undone after it is to be undone again)"
    )

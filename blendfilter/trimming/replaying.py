"""A witnesses file read line by line: a torn last line is left out, anything else that is no line of it is named.

In: the bytes of the file, and what takes each record. Out: the offset at which the next line goes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from blendfilter.errors import BadData
from blendfilter.trimming.lines import FORMAT, KINDS


def replay(lines: Iterable[bytes], path: Path, apply: Callable[[Mapping[str, Any]], None]) -> int:
    """Hand every whole line to `apply`, which says by ValueError, TypeError or LookupError that one cannot be.

    Raises:
        BadData: a line that no torn write explains, or that a newer version wrote.
    """
    end = 0
    for number, line in enumerate(lines, 1):
        if not line.endswith(b"\n"):
            break
        try:
            record = json.loads(line.decode())
            _check_kind(record, number, path)
            if number > 1:
                apply(record)
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise _damaged(path, number) from error
        end += len(line)
    return end


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


def _damaged(path: Path, number: int) -> BadData:
    return BadData(
        f"{path}, line {number}: not a line of a witnesses file; cut the file before it and trim again "
        "(the journal beside it still has the verdicts; what was undone after it is to be undone again)"
    )

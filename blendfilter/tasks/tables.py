"""Data sets that are published as a table: tab-separated, a header first, quoted fields with line breaks in them.

In: a file. Out: a `Row` for each line of the table, its fields by the header's names. A file that begins as JSON does
is read as JSON: the same task's rows come in both.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from blendfilter.errors import BadData
from blendfilter.files import LONGEST as MOST
from blendfilter.files import Row, first_character, json_rows, opened, too_long

LONGEST = 2**24
"""Characters that one field may have: a table may hold whole articles, and Python's own limit is 131,072."""


def rows(path: Path) -> Iterator[Row]:
    """The rows of a table, or of a JSON file of the same data set.

    Fields that a short line lacks are not there; what a long one has beyond the header is left out. Raises `BadData`
    where the file is not UTF-8 or no table.
    """
    if first_character(path) in ("[", "{"):
        yield from json_rows(path)
        return
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST))  # of the whole process: there is no other
    with opened(path) as stream:
        text = io.TextIOWrapper(cast(io.BufferedReader, stream), encoding="utf-8-sig", newline="")
        table = csv.DictReader(_lines(text, path), delimiter="\t", restkey="")
        try:
            for position, fields in enumerate(table):
                named = {name: field for name, field in fields.items() if name and field is not None}
                yield Row(f"{path}, row {position + 1}", position, named)
        except UnicodeDecodeError as error:
            raise BadData(f"{path}: not UTF-8 (after line {table.line_num}): save the file as UTF-8") from error
        except csv.Error as error:
            raise BadData(f"{path}, line {table.line_num}: no row of a table ({error}): fetch the file again") from None


def _lines(text: io.TextIOWrapper, path: Path) -> Iterator[str]:
    """The lines of a table, as `csv` wants them, none longer than a field may be with all that stands beside it."""
    for number, line in enumerate(iter(lambda: text.readline(MOST + 1), ""), start=1):
        if len(line) > MOST:
            raise BadData(f"{path}, line {number}: {too_long('the line')}")
        yield line

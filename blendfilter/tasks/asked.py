"""Questions alone, for work that needs no answer: a judge that trims an index asks what is consistent, no more.

In: a text file with a question a line (``.txt``), or JSON Lines whose rows are questions, or objects with a field
``question`` and whatever else. Out: the questions, in order. ``{"question": "Who kept Skerry Light?"}`` is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from blendfilter.errors import BadArgument, BadData, EmptyData
from blendfilter.files import JsonRow, json_rows, lines
from blendfilter.tasks.reading import has, mapping

_FIELDS = ("question", "question_text", "query", "input")


def read_asked(path: str | Path, *, limit: int | None = None) -> list[str]:
    """The questions of a file, `limit` of them at the most.

    Raises:
        MissingFile: there is no such file. EmptyData: it holds no question. BadArgument: a limit below 1.
        BadData: a row that is no question (where, and what it has).
    """
    if limit is not None and limit < 1:
        raise BadArgument(f"limit is {limit}: give 1 or more, or leave it out for all questions")
    found = list(islice(_plain(path) if Path(path).suffix == ".txt" else map(_question, json_rows(path)), limit))
    if not found:
        raise EmptyData(f"{path} holds no question: put one on a line")
    return found


def _plain(path: str | Path) -> Iterator[str]:
    return (line.text.strip() for line in lines(path) if line.text.strip())


def _question(row: JsonRow) -> str:
    value = row.value if isinstance(row.value, str) else _field(row)
    if not isinstance(value, str) or not value.strip():
        raise BadData(f"{row.where}: the question is {value!r:.60}: fill it in or drop the row")
    return value.strip()


def _field(row: JsonRow) -> object:
    value = mapping(row)
    field = next((field for field in _FIELDS if field in value), None)
    if field is None:
        raise BadData(f"{row.where}: field 'question' is missing ({has(value)})")
    found: object = value[field]
    return found

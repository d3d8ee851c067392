"""Rows of the common corpus layouts as passages; which layout it is, the first row says.

In: rows or lines with their places. Out: passages with theirs. Layouts: see `blendfilter.retrieval.corpus`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from blendfilter.errors import BadData
from blendfilter.files import JsonRow, TextLine
from blendfilter.records import Passage

IDS = ("id", "_id", "pid", "docid")
TEXTS = ("text", "contents", "passage", "paragraph_text")
BAR = " | "


class Placed(NamedTuple):
    """A passage, and the words that say where in its file it stands."""

    where: str
    passage: Passage


class _Fields(NamedTuple):
    """Under which names the first row keeps its id (None: it has none, positions serve) and its text."""

    id: str | None
    text: str


def from_json(rows: Iterable[JsonRow]) -> Iterator[Placed]:
    """Passages of JSON rows: objects with a text under one of several names, or plain ``Title | text`` strings."""
    fields: _Fields | None = None
    for row in rows:
        if isinstance(row.value, str):
            title, text = at_bar(row.value)
            yield _placed(row.where, str(row.position), title, text)
            continue
        if not isinstance(row.value, Mapping):
            raise BadData(f"{row.where}: expected an object with 'id', 'title' and 'text', found {row.value!r:.40}")
        fields = fields or _fields(row)
        yield _passage(row, row.value, fields)


def _fields(row: JsonRow) -> _Fields:
    text = next((name for name in TEXTS if name in row.value), TEXTS[0])
    return _Fields(next((name for name in IDS if name in row.value), None), text)


def _passage(row: JsonRow, value: Mapping[str, Any], fields: _Fields) -> Placed:
    name = str(row.position) if fields.id is None else _field(row, value, fields.id)
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise BadData(f"{row.where}: field '{fields.id}' is wrong: expected a text or a number, found {name!r:.40}")
    text = _field(row, value, fields.text)
    title = value.get("title") or ""
    if isinstance(text, list) and all(isinstance(part, str) for part in text):
        text = " ".join(stripped for part in text if (stripped := part.strip()))
        text = text or (title if isinstance(title, str) else "")  # an abstract may be empty; its title is what it says
    if not isinstance(text, str) or not isinstance(title, str):
        wrong = "title" if isinstance(text, str) else fields.text
        raise BadData(f"{row.where}: field '{wrong}' is wrong: expected a text, found {value[wrong]!r:.40}")
    if fields.text == "contents" and not title:
        title, text = _headed(text)
    extra = value.get("metadata")
    return _placed(row.where, str(name), title, text, extra if isinstance(extra, Mapping) else {})


def _field(row: JsonRow, value: Mapping[str, Any], name: str) -> Any:
    if name not in value:
        has = ", ".join(str(key) for key in list(value)[:12])
        raise BadData(f"{row.where}: field '{name}' is missing (it has: {has or 'nothing'})")
    return value[name]


def _headed(contents: str) -> tuple[str, str]:
    """FlashRAG's contents: the title in quotes, a line feed, the text.

    >>> _headed('"Tide Mill"\\nA mill.')
    ('Tide Mill', 'A mill.')
    """
    head, feed, text = contents.partition("\n")
    if not feed:
        return "", contents
    quoted = len(head) > 1 and head[0] == head[-1] == '"'
    return head[1:-1] if quoted else head, text


def at_bar(passage: str) -> tuple[str, str]:
    """Title and text of one line; a line without a bar is all text.

    >>> at_bar("Tide Mill | A mill."), at_bar("A mill.")
    (('Tide Mill', 'A mill.'), ('', 'A mill.'))
    """
    title, bar, text = passage.partition(BAR)
    return (title, text) if bar else ("", passage)


def from_columns(rows: Iterable[TextLine]) -> Iterator[Placed]:
    """Passages of tab-separated lines: ``pid, passage[, title]``, or as a header line says (DPR quotes its texts)."""
    order: dict[str, int] = {"id": 0, "text": 1, "title": 2}
    headed = False
    for position, line in enumerate(rows):
        cells = line.text.split("\t")
        if position == 0 and cells[0].lower() in IDS:
            names = ["id" if at == 0 else "text" if cell.lower() in TEXTS else cell for at, cell in enumerate(cells)]
            order, headed = {name: at for at, name in enumerate(names)}, True
            if "text" not in order:
                raise BadData(f"{line.where}: the header names no column 'text' (it names: {', '.join(cells)})")
            continue
        yield _columns(line, [_unquoted(cell) for cell in cells] if headed else cells, order)


def _columns(line: TextLine, cells: list[str], order: Mapping[str, int]) -> Placed:
    if len(cells) <= order["text"] or not cells[0].strip():
        raise BadData(f"{line.where}: expected an id, a tab and a passage (or one JSON object a line)")
    title, text = cells[order["title"]] if order.get("title", len(cells)) < len(cells) else "", cells[order["text"]]
    if not title:
        title, text = at_bar(text)
    return _placed(line.where, cells[0].strip(), title, text)


def _unquoted(cell: str) -> str:
    return cell[1:-1].replace('""', '"') if len(cell) > 1 and cell[0] == cell[-1] == '"' else cell


def _placed(where: str, name: str, title: str, text: str, metadata: Mapping[str, Any] | None = None) -> Placed:
    if not text.strip():
        raise BadData(f"{where}: passage '{name}' has no text: fill it in or drop the row")
    return Placed(where, Passage(name, title.strip(), text.strip(), metadata=dict(metadata or {})))

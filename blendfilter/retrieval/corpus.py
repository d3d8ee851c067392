"""Corpora as passages, read as a stream: files in the common layouts, folders of documents, texts and rows in memory,
and the paragraphs that questions bring along. `passages_of` takes any of them.

A file is plain or gzipped. Its first row decides the layout:

========================  ==============================================================================================
this package, BEIR        JSON Lines ``{"id" or "_id", "title", "text"}``; without ids, positions from 0 are the ids
FlashRAG                  JSON Lines ``{"id", "contents": "\\"Title\\"\\ntext"}``
DSPy's wiki abstracts     JSON Lines ``{"title", "text": ["a sentence", ...]}`` (also with an id)
KILT's knowledge source   JSON Lines ``{"_id", "wikipedia_title", "text": ["the title", "a paragraph", ...]}``
HippoRAG                  one JSON list of ``{"title", "text"}``
ColBERT, MS MARCO         tab-separated ``pid, passage[, title]``, taken as they are; also ``Title | text``
DPR, any table            tabs or commas below a line that names the columns; cells may be quoted, as in CSV
========================  ==============================================================================================

The text of a row that has a title alone is its title, so that every index and prompt has something to read. Rows with
neither are left out, and one warning counts them.
"""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from blendfilter.errors import BadArgument, BadData, EmptyData, MissingFile
from blendfilter.files import (
    LONGEST,
    AnyPath,
    JsonRow,
    TextLine,
    first_character,
    json_rows,
    lines,
    opened,
    path_of,
)
from blendfilter.records import Passage, Question, cell, content_id, plain
from blendfilter.retrieval.documents import (
    WORDS,
    chunked,
    is_document,
    read_documents,
    text_files,
)
from blendfilter.text import folded, shortened

IDS = (
    "id",
    "_id",
    "pid",
    "docid",
    "docno",
    "doc_id",
    "passage_id",
    "psg_id",
    "corpus_id",
    "wikipedia_id",
)
TITLES = ("title", "wikipedia_title")
TEXTS = ("text", "contents", "passage", "paragraph_text", "content", "body")
_ID_COLUMNS = """
id pid docid docno psgid passageid documentid wikipediaid chunkid uid no paragraphid corpusid corduid articleid pageid
rowid textid wikiid pmid uuid
"""
_TITLE_COLUMNS = """
title wikipediatitle pagetitle doctitle documenttitle heading passagetitle wikititle articletitle sectiontitle headline
"""
_TEXT_COLUMNS = """
text contents passage paragraphtext passagetext paragraph content body document documenttext doctext abstract chunk
sentence
"""
COLUMNS = {
    "id": _ID_COLUMNS.split(),
    "title": _TITLE_COLUMNS.split(),
    "text": _TEXT_COLUMNS.split(),
}
"""What the columns of tables are called, in small letters without spaces and marks; the first ones go before others."""
DELIMITERS = ("\t", ",", ";")
BAR = " | "
SHAPES = "a text ('Title | text'), a mapping with a 'text', a tuple (title, text) or (id, title, text), or a Passage"
Corpus = AnyPath | Iterable[Passage | str | Mapping[str, Any] | tuple[Any, ...]]
"""What an index is built of: a path, or passages in any of the `SHAPES`."""

_OF_TUPLES = {2: ("title", "text"), 3: ("id", "title", "text")}
_NAME = 80  # characters of a path that messages show
_Placed = tuple[str, Passage]  # the words for its place in the file
_MaybePlaced = tuple[str, Passage | None]  # None: nothing to read


class IdCheck:
    """Finds an id that occurs twice among millions: each is remembered by eight bytes of hash."""

    def __init__(self) -> None:
        self._hashes = array("q")

    def add(self, name: str) -> None:
        """Take note of an id."""
        self._hashes.append(hash(name))

    def repeated(
        self, places: Callable[[], Iterable[tuple[Any, str]]]
    ) -> tuple[Any, Any, str] | None:
        """The first id that occurs twice, after its two places; `places` gives them all again, where hashes agree."""
        values, counts = np.unique(
            np.frombuffer(self._hashes, dtype=np.int64), return_counts=True
        )
        suspects = set(values[counts > 1].tolist())
        first: dict[str, Any] = {}
        for where, name in places() if suspects else ():
            if hash(name) in suspects and first.setdefault(name, where) != where:
                return first[name], where, name
        return None

    def __len__(self) -> int:
        return len(self._hashes)


def passages_of(corpus: Corpus, words: int | None = None) -> Iterator[Passage]:
    """The passages of a corpus, one by one.

    A path is a file in one of the layouts above, one text, or a folder of texts (`read_documents`). In memory, passages
    come in any of the `SHAPES`, mappings with the fields of a file's rows; one without an id has its position for one.
    `words` cuts texts into passages of at most so many words, by default those of documents alone (100).

    Raises as `read_corpus` and `read_documents` do, and `BadArgument` for what is no corpus.

    >>> [(p.id, p.title, p.text) for p in passages_of(["Fell | A hill.", ("Tane", "A river."), {"text": "A pier."}])]
    [('0', 'Fell', 'A hill.'), ('1', 'Tane', 'A river.'), ('2', '', 'A pier.')]
    """
    if not isinstance(corpus, (str, os.PathLike)):
        passages = _in_memory(corpus)
    else:
        path = _existing(corpus)
        if path.is_dir() or is_document(path):
            return read_documents(path, WORDS if words is None else words)
        passages = read_corpus(path)
    return passages if words is None else chunked(passages, words)


def _existing(corpus: AnyPath) -> Path:
    path = path_of(corpus)
    with suppress(OSError, ValueError):  # too long for a name, or characters that none can have
        if path.exists():
            return path
    name = os.fspath(corpus)
    if name == "-":
        raise MissingFile.of(name)
    hint = "a text goes in a list: ['…']" if any(map(str.isspace, name)) else "check the path"
    raise MissingFile(f"no file or folder '{shortened(name, _NAME)}': {hint}")


def _in_memory(corpus: Any) -> Iterator[Passage]:
    if hasattr(corpus, "iterrows"):
        raise BadArgument(
            "a corpus in a frame: pass its rows, frame.to_dict('records'), with the columns title and text"
        )
    if isinstance(corpus, (bytes, Mapping)) or not isinstance(corpus, Iterable):
        raise BadArgument(
            f"a corpus is a path or a list, each item {SHAPES}; got {type(corpus).__name__}"
        )
    # a `dspy.Example`
    plain = (value.toDict() if hasattr(value, "toDict") else value for value in corpus)
    rows = (
        JsonRow(f"passage {at + 1} of the corpus", at, value) for at, value in enumerate(plain)
    )
    return (passage for _, passage in _readable(_from_rows(rows)))


def read_corpus(path: str | Path) -> Iterator[Passage]:
    """The passages of a corpus file in its order, one by one; never the whole file in memory.

    Repeated ids are looked for at the end of the file: a reader who stops early gets no such check.

    Raises:
        MissingFile: no such file.
        EmptyData: no passages in it.
        BadData: a row that does not parse or misses a field (which line), columns that are not known, a quote that is
            not closed, not UTF-8, damaged gzip, or an id that occurs twice (both places).
    """
    ids = IdCheck()
    for _, passage in _placed_passages(path):
        ids.add(passage.id)
        yield passage
    if not len(ids):
        raise EmptyData(f"{path} has no passages: is it the right file?")
    repeated = ids.repeated(
        lambda: ((where, passage.id) for where, passage in _placed_passages(path))
    )
    if repeated:
        first, where, name = repeated
        raise BadData(
            f"{where}: passage id '{name}' was used before, at {first}: ids must differ"
        )


class PooledPassages(list[Passage]):
    """The corpus of `pooled`; its indexes say so."""

    name = "pooled"


def pooled(questions: Iterable[Question]) -> list[Passage]:
    """The paragraphs that came with the questions, each title and text once, in order of first appearance.

    Where two different paragraphs carry one id (StrategyQA's are cut differently per question), the later one's id gets
    ``@`` and its question's id. What a question notes of its own paragraph (gold or not) is left out.

    Raises:
        EmptyData: the questions bring no paragraphs.
    """
    found: dict[tuple[str, str], Passage] = {}
    taken: set[str] = set()
    for question in questions:
        for passage in question.context:
            key = (folded(passage.title), folded(passage.text))
            if key in found or not key[1]:
                continue
            name = passage.id if passage.id not in taken else f"{passage.id}@{question.id}"
            while name in taken:
                name += "+"
            taken.add(name)
            found[key] = replace(passage, id=name, score=None, metadata={})
    if not found:
        raise EmptyData(
            "these questions bring no paragraphs of their own to pool: name a corpus file or an index"
        )
    return PooledPassages(found.values())


def corpus_hash(path: str | Path) -> str:
    """SHA-256 of the file's bytes as they lie on disk, or of a folder's texts and their paths, in hexadecimal.

    Raises `MissingFile` or `BadData`, and as `read_documents` does.
    """
    folder = path_of(path)
    if folder.is_dir():
        texts = [
            f"{file.relative_to(folder).as_posix()}\n{corpus_hash(file)}\n"
            for file in text_files(folder)
        ]
        return hashlib.sha256("".join(texts).encode("utf-8", "surrogateescape")).hexdigest()
    with opened(path, unpack=False) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# --- layouts --------------------------------------------------------------------------------------------------------


def _placed_passages(path: str | Path) -> Iterator[_Placed]:
    is_json = first_character(path) in ("[", "{")
    return _readable(
        _from_rows(json_rows(path)) if is_json else _from_lines(lines(path, blank=True))
    )


def _readable(placed: Iterable[_MaybePlaced]) -> Iterator[_Placed]:
    """Those with something to read; one warning counts the others. Raises `EmptyData` where all are others."""
    empty, found, first = 0, False, ""
    for where, passage in placed:
        if passage is not None:
            found = True
            yield where, passage
            continue
        empty += 1
        first = first or where
    if empty and not found:
        raise EmptyData(
            f"{first}: this row has neither title nor text, nor has any other: is it the right file?"
        )
    if empty:
        rows = "1 row" if empty == 1 else f"{empty:,} rows"
        warnings.warn(
            f"{rows} with neither title nor text left out, the first at {first}", stacklevel=2
        )


def _from_rows(rows: Iterable[JsonRow]) -> Iterator[_MaybePlaced]:
    """Passages of rows: mappings with a text under one of several names, plain ``Title | text``, tuples, passages.

    The first object decides under which names the id (None: there is none, positions serve) and the text stand.
    """
    id_name, text_name = None, ""
    made = Counter[str]()  # ids that nobody gave
    for row in rows:
        if isinstance(row.value, str):
            yield _placed(row.where, str(row.position), *at_bar(row.value))
            continue
        if isinstance(row.value, Passage):  # those of a file are mappings
            passage = row.value
            if passage.id == content_id(passage.title, passage.text):
                made[passage.id] += 1
                if made[passage.id] > 1:
                    passage = replace(passage, id=f"{passage.id}-{made[passage.id]}")
            yield row.where, passage
            continue
        if isinstance(row.value, tuple):
            names = _OF_TUPLES.get(len(row.value))
            if names is None:
                raise BadData(
                    f"{row.where}: expected (title, text) or (id, title, text), found {row.value!r:.60}"
                )
            named = row._replace(value=dict(zip(names, row.value, strict=True)))
            yield _from_object(named, "id" if len(names) == 3 else None, "text")
            continue
        if not isinstance(row.value, Mapping):
            raise BadData(
                f"{row.where}: expected an object with 'id', 'title' and 'text', found {row.value!r:.40}"
            )
        if not text_name:
            id_name = next((name for name in IDS if name in row.value), None)
            text_name = next((name for name in TEXTS if name in row.value), TEXTS[0])
        yield _from_object(row, id_name, text_name)


def _from_object(row: JsonRow, id_name: str | None, text_name: str) -> _MaybePlaced:
    value: Mapping[str, Any] = plain(row.value)
    for field in (id_name, text_name):
        if field is not None and field not in value:
            has = ", ".join(str(key) for key in list(value)[:12])
            raise BadData(
                f"{row.where}: field '{field}' is missing (it has: {has or 'nothing'})"
            )
    name = str(row.position) if id_name is None else cell(value[id_name])
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise BadData(
            f"{row.where}: field '{id_name}' is wrong: expected a text or a number, found {name!r:.40}"
        )
    title_name = next((name for name in TITLES if value.get(name)), TITLES[0])
    text, title = (
        "" if part is None else part for part in (value[text_name], value.get(title_name))
    )
    if isinstance(text, list) and all(isinstance(part, str) for part in text):
        parts = [stripped for part in text if (stripped := part.strip())]
        # KILT's first is it
        text = " ".join(
            parts[1:] if title_name != TITLES[0] and parts[:1] == [title] else parts
        )
    if not isinstance(text, str) or not isinstance(title, str):
        wrong = title_name if isinstance(text, str) else text_name
        raise BadData(
            f"{row.where}: field '{wrong}' is wrong: expected a text, found {value[wrong]!r:.40}"
        )
    if text_name == "contents" and not title:
        title, text = headed(text)
    extra = value.get("metadata")
    return _placed(
        row.where, str(name), title, text, extra if isinstance(extra, Mapping) else {}
    )


def headed(contents: str) -> tuple[str, str]:
    """FlashRAG's contents: the title in quotes, a line feed, the text.

    >>> headed('"Tide Mill"\\nA mill.')
    ('Tide Mill', 'A mill.')
    """
    head, feed, text = contents.partition("\n")
    if not feed:
        return "", contents
    head = head.rstrip("\r")
    quoted = len(head) > 1 and head[0] == head[-1] == '"'
    return head[1:-1] if quoted else head, text


def at_bar(passage: str) -> tuple[str, str]:
    """Title and text of one line; a line without a bar is all text.

    >>> at_bar("Tide Mill | A mill."), at_bar("A mill.")
    (('Tide Mill', 'A mill.'), ('', 'A mill.'))
    """
    title, bar, text = passage.partition(BAR)
    return (title, text) if bar else ("", passage)


def _placed(
    where: str, name: str, title: str, text: str, metadata: Mapping[str, Any] | None = None
) -> _MaybePlaced:
    title, text = title.strip(), text.strip()
    if not (title or text):
        return where, None
    return where, Passage(name, title, text or title, metadata=dict(metadata or {}))


# --- lines of columns -----------------------------------------------------------------------------------------------

# the first one is often empty: row numbers
_NAME_OF_COLUMN = re.compile(r"[^\W\d]\w*(?:[ ./-]\w+){0,3}|")
_BARE_WORD = re.compile(r"[^\W\d]+")
_STILL_OPEN = re.compile(r'[^"]*+(?:""[^"]*+)*+')
"""What a quoted cell may hold, with a quote written as two."""
_QUOTED = {
    delimiter: re.compile(rf'"({_STILL_OPEN.pattern})"(?={delimiter}|\Z)')
    for delimiter in DELIMITERS
}


def _from_lines(rows: Iterator[TextLine]) -> Iterator[_MaybePlaced]:
    """Passages of tab-separated lines, ``pid, passage[, title]``, or of the columns that the first line names."""
    first = next((line for line in rows if line.text.strip()), None)
    if first is None:
        return
    if "\r" in first.text:
        raise BadData(
            f"{first.where}: its lines end in carriage returns alone: save the file with line feeds"
        )
    for delimiter in DELIMITERS:
        if columns := _columns(first, delimiter):
            names = _cells(first.text, delimiter)[0]
            yield from _from_rows(
                _table(_records(rows, delimiter, len(names)), columns, len(names))
            )
            return
    for line in chain([first], rows):
        if not line.text.strip():
            continue
        cells = line.text.rstrip("\t").split("\t")
        if not 2 <= len(cells) <= 3 or not cells[0].strip():
            raise BadData(
                f"{line.where}: expected an id, a tab and a passage, perhaps a tab and a title (or one JSON object a "
                "line, or a table whose first line names its columns: id, title, text)"
            )
        title, text = (cells[2] if len(cells) > 2 else ""), cells[1]
        yield _placed(line.where, cells[0].strip(), *((title, text) if title else at_bar(text)))


def _columns(line: TextLine, delimiter: str) -> dict[str, tuple[int, str]]:
    """Where `id`, `title` and `text` stand in a table, and their names, by its first line; empty where it is no header.

    Raises `BadData` where it names columns, and none that is known to hold the texts.
    """
    cells = [cell.strip() for cell in _cells(line.text, delimiter)[0]]
    names = [re.sub(r"[\W_]+", "", cell).lower() for cell in cells]
    found = {
        role: min((known.index(name), at) for at, name in enumerate(names) if name in known)[1]
        for role, known in COLUMNS.items()
        if not set(known).isdisjoint(names)
    }
    if len(found) < 2 and not all(map(_NAME_OF_COLUMN.fullmatch, cells)):
        return {}
    if "text" in found:
        if "id" not in found and len(cells) > 1:
            named = f"{line.where}: none of the columns is known to hold ids (it names: {', '.join(cells)})"
            warnings.warn(f"{named}: passages are numbered from 0", stacklevel=2)
        return {role: (at, names[at]) for role, at in found.items()}
    unknown = (
        delimiter == DELIMITERS[0] and len(cells) > 1 and all(map(_BARE_WORD.fullmatch, cells))
    )
    if unknown or found.get("id") == 0 or found.keys() == {"id", "title"}:
        raise BadData(
            f"{line.where}: the header names no column 'text' (it names: {', '.join(cells)}): "
            "call the columns id, title and text"
        )
    return {}


def _table(
    records: Iterable[tuple[str, list[str]]], columns: Mapping[str, tuple[int, str]], width: int
) -> Iterator[JsonRow]:
    """The records of a table as rows of JSON."""
    for position, (where, cells) in enumerate(records):
        if len(cells) <= columns["text"][0] or any(map(str.strip, cells[width:])):
            raise BadData(
                f"{where}: {len(cells)} cells, where the header names {width}: quote cells that hold others"
            )
        value = {
            role: cells[at].strip() if at < len(cells) else ""
            for role, (at, _) in columns.items()
        }
        if columns["text"][1] == "contents":
            value["contents"] = value.pop("text")
        elif not value.get("title"):
            value["title"], value["text"] = at_bar(value["text"])
        yield JsonRow(where, position, value)


def _records(
    rows: Iterator[TextLine], delimiter: str, width: int
) -> Iterator[tuple[str, list[str]]]:
    """The records of a table, with the place of each: a line, or several where a quoted cell holds line breaks.

    Not all tables with tabs quote: a text may begin with a quote that is none of CSV's. So a quote that its line does
    not close is a character of the text where this line and the next one are whole records as they stand; elsewhere,
    and between commas, it opens a cell, which has to end. Raises `BadData` where it does not.
    """
    may_be_bare = delimiter == DELIMITERS[0] and width > 1
    escaped = None if may_be_bare else '\\"'  # not CSV's way to write a quote
    ahead = next(rows, None)
    while ahead is not None:
        line, ahead = ahead, next(rows, None)
        if not line.text.strip():
            continue
        if escaped and escaped in line.text:
            raise _unclosed(line)
        cells, opens = _cells(line.text, delimiter)
        if opens and may_be_bare and len(cells) == width:
            opens = ahead is not None and len(_cells(ahead.text, delimiter)[0]) != width
        if opens:
            pieces, size = [line.text], len(line.text)
            while opens:
                if ahead is None or size > LONGEST:
                    raise _unclosed(line)
                pieces.append(ahead.text)
                size += len(ahead.text)
                if not _STILL_OPEN.fullmatch(ahead.text):
                    cells, opens = _cells("\n".join(pieces), delimiter)
                ahead = next(rows, None)
            if len(cells) != width:
                raise _unclosed(line)
        yield line.where, cells


def _unclosed(line: TextLine) -> BadData:
    return BadData(
        f"{line.where}: a cell begins with a quote that does not close it as CSV has it: write quotes in a quoted cell "
        "twice, or use JSON Lines"
    )


def _cells(text: str, delimiter: str) -> tuple[list[str], bool]:
    """The cells of a record, and whether a quoted one is still open at its end; what does not close is taken as it is.

    >>> _cells('1,"A ""tide"" mill, old",5" wide', ",")
    (['1', 'A "tide" mill, old', '5" wide'], False)
    """
    cells, at, opens = list[str](), 0, False
    while at <= len(text):
        if quoted := _QUOTED[delimiter].match(text, at):
            cells.append(quoted[1].replace('""', '"'))
            at = quoted.end() + 1
            continue
        opens = opens or (
            text.startswith('"', at) and _STILL_OPEN.fullmatch(text, at + 1) is not None
        )
        end = text.find(delimiter, at)
        end = len(text) if end < 0 else end
        if not opens and "\n" in text[at:end]:  # only a quoted cell can hold one
            return [], False
        cells.append(text[at:end])
        at = end + 1
    return cells, opens

"""Corpora as passages, read as a stream: files in the common layouts, folders of documents, texts and rows in memory,
and the paragraphs that questions bring along. `passages_of` takes any of them.

A file is plain or gzipped. Its first row decides the layout:

========================  ==============================================================================================
this package, BEIR        JSON Lines ``{"id" or "_id", "title", "text"}``; without ids, positions from 0 are the ids
FlashRAG                  JSON Lines ``{"id", "contents": "\\"Title\\"\\ntext"}``
DSPy's wiki abstracts     JSON Lines ``{"title", "text": ["a sentence", ...]}`` (also with an id)
KILT's knowledge source   JSON Lines ``{"_id", "wikipedia_title", "text": ["the title", "a paragraph", ...]}``
HippoRAG                  one JSON list of ``{"title", "text"}``
ColBERT, DPR              tab-separated ``pid, passage[, title]``, with a header line or none; also ``Title | text``
========================  ==============================================================================================
"""

from __future__ import annotations

import hashlib
import os
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from blendfilter.errors import BadArgument, BadData, EmptyData, MissingFile
from blendfilter.files import JsonRow, TextLine, first_character, json_rows, lines, opened
from blendfilter.records import Passage, Question, content_id
from blendfilter.retrieval.documents import WORDS, chunked, is_document, read_documents, text_files
from blendfilter.text import folded

IDS = ("id", "_id", "pid", "docid")
TITLES = ("title", "wikipedia_title")
TEXTS = ("text", "contents", "passage", "paragraph_text")
BAR = " | "
SHAPES = "a text ('Title | text'), a mapping with a 'text', a tuple (title, text) or (id, title, text), or a Passage"
Corpus = str | os.PathLike[str] | Iterable[Passage | str | Mapping[str, Any] | tuple[Any, ...]]
"""What an index is built of: a path, or passages in any of the `SHAPES`."""

_NAME = 80  # characters of a path that messages show
_Placed = tuple[str, Passage]  # the words for its place in the file


class IdCheck:
    """Finds an id that occurs twice among millions: each is remembered by eight bytes of hash."""

    def __init__(self) -> None:
        self._hashes = array("q")

    def add(self, name: str) -> None:
        """Take note of an id."""
        self._hashes.append(hash(name))

    def repeated(self, places: Callable[[], Iterable[tuple[Any, str]]]) -> tuple[Any, Any, str] | None:
        """The first id that occurs twice, after its two places; `places` gives them all again, where hashes agree."""
        values, counts = np.unique(np.frombuffer(self._hashes, dtype=np.int64), return_counts=True)
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


def _existing(corpus: str | os.PathLike[str]) -> Path:
    path = Path(corpus)
    try:
        there = path.exists()
    except (OSError, ValueError):  # too long for a name, or characters that none can have
        there = False
    if there:
        return path
    name = os.fspath(corpus)
    hint = "a text goes in a list: ['…']" if any(map(str.isspace, name)) else "check the path"
    raise MissingFile(f"no file or folder '{name if len(name) <= _NAME else name[:_NAME] + '…'}': {hint}")


def _in_memory(corpus: Any) -> Iterator[Passage]:
    if hasattr(corpus, "iterrows"):
        raise BadArgument(
            "a corpus in a frame: pass its rows, frame.to_dict('records'), with the columns title and text"
        )
    if isinstance(corpus, (bytes, Mapping)) or not isinstance(corpus, Iterable):
        raise BadArgument(f"a corpus is a path or a list, each item {SHAPES}; got {type(corpus).__name__}")
    plain = (value.toDict() if hasattr(value, "toDict") else value for value in corpus)  # a `dspy.Example`
    rows = (JsonRow(f"passage {at + 1} of the corpus", at, value) for at, value in enumerate(plain))
    return (passage for _, passage in _from_rows(rows))


def read_corpus(path: str | Path) -> Iterator[Passage]:
    """The passages of a corpus file in its order, one by one; never the whole file in memory.

    Repeated ids are looked for at the end of the file: a reader who stops early gets no such check.

    Raises:
        MissingFile: no such file.
        EmptyData: no passages in it.
        BadData: a row that does not parse, misses a field or has no text (which line), not UTF-8, damaged gzip, or an
            id that occurs twice (both places).
    """
    ids = IdCheck()
    for _, passage in _placed_passages(path):
        ids.add(passage.id)
        yield passage
    if not len(ids):
        raise EmptyData(f"{path} has no passages: is it the right file?")
    repeated = ids.repeated(lambda: ((where, passage.id) for where, passage in _placed_passages(path)))
    if repeated:
        first, where, name = repeated
        raise BadData(f"{where}: passage id '{name}' was used before, at {first}: ids must differ")


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
        raise EmptyData("these questions bring no paragraphs of their own to pool: name a corpus file or an index")
    return list(found.values())


def corpus_hash(path: str | Path) -> str:
    """SHA-256 of the file's bytes as they lie on disk, or of a folder's texts and their paths, in hexadecimal.

    Raises `MissingFile` or `BadData`, and as `read_documents` does.
    """
    folder = Path(path)
    if folder.is_dir():
        texts = [f"{file.relative_to(folder).as_posix()}\n{corpus_hash(file)}\n" for file in text_files(folder)]
        return hashlib.sha256("".join(texts).encode("utf-8", "surrogateescape")).hexdigest()
    with opened(path, unpack=False) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# --- layouts --------------------------------------------------------------------------------------------------------


def _placed_passages(path: str | Path) -> Iterator[_Placed]:
    return _from_rows(json_rows(path)) if first_character(path) in ("[", "{") else _from_columns(lines(path))


def _from_rows(rows: Iterable[JsonRow]) -> Iterator[_Placed]:
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
            yield row.where, _told_apart(row.value, made)
            continue
        if isinstance(row.value, tuple):
            yield _from_tuple(row)
            continue
        if not isinstance(row.value, Mapping):
            raise BadData(f"{row.where}: expected an object with 'id', 'title' and 'text', found {row.value!r:.40}")
        if not text_name:
            id_name = next((name for name in IDS if name in row.value), None)
            text_name = next((name for name in TEXTS if name in row.value), TEXTS[0])
        yield _from_object(row, id_name, text_name)


def _told_apart(passage: Passage, made: Counter[str]) -> Passage:
    """`passage`, with its number behind an id that is made of its content, where that comes again."""
    if passage.id != content_id(passage.title, passage.text):
        return passage
    made[passage.id] += 1
    return passage if made[passage.id] == 1 else replace(passage, id=f"{passage.id}-{made[passage.id]}")


def _from_tuple(row: JsonRow) -> _Placed:
    name, title, text = (
        (row.position, *row.value) if len(row.value) == 2 else row.value if len(row.value) == 3 else [0] * 3
    )
    if (
        not (isinstance(title, str) and isinstance(text, str))
        or isinstance(name, bool)
        or not isinstance(name, str | int)
    ):
        raise BadData(f"{row.where}: expected (title, text) or (id, title, text), found {row.value!r:.60}")
    return _placed(row.where, str(name), title, text)


def _from_object(row: JsonRow, id_name: str | None, text_name: str) -> _Placed:
    value: Mapping[str, Any] = row.value
    for field in (id_name, text_name):
        if field is not None and field not in value:
            has = ", ".join(str(key) for key in list(value)[:12])
            raise BadData(f"{row.where}: field '{field}' is missing (it has: {has or 'nothing'})")
    name = str(row.position) if id_name is None else value[id_name]
    if isinstance(name, bool) or not isinstance(name, str | int) or name == "":
        raise BadData(f"{row.where}: field '{id_name}' is wrong: expected a text or a number, found {name!r:.40}")
    title_name = next((name for name in TITLES if value.get(name)), TITLES[0])
    text, title = value[text_name], value.get(title_name) or ""
    if isinstance(text, list) and all(isinstance(part, str) for part in text):
        parts = [stripped for part in text if (stripped := part.strip())]
        text = " ".join(parts[1:] if title_name != TITLES[0] and parts[:1] == [title] else parts)  # KILT's first is it
        text = text or (title if isinstance(title, str) else "")  # an abstract may be empty beside its title
    if not isinstance(text, str) or not isinstance(title, str):
        wrong = title_name if isinstance(text, str) else text_name
        raise BadData(f"{row.where}: field '{wrong}' is wrong: expected a text, found {value[wrong]!r:.40}")
    if text_name == "contents" and not title:
        title, text = headed(text)
    extra = value.get("metadata")
    return _placed(row.where, str(name), title, text, extra if isinstance(extra, Mapping) else {})


def headed(contents: str) -> tuple[str, str]:
    """FlashRAG's contents: the title in quotes, a line feed, the text.

    >>> headed('"Tide Mill"\\nA mill.')
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


def _from_columns(rows: Iterable[TextLine]) -> Iterator[_Placed]:
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
        if headed:
            cells = [re.sub(r'^"(.*)"$', lambda quoted: quoted[1].replace('""', '"'), cell) for cell in cells]
        if len(cells) <= order["text"] or not cells[0].strip():
            raise BadData(f"{line.where}: expected an id, a tab and a passage (or one JSON object a line)")
        title, text = cells[order["title"]] if order.get("title", len(cells)) < len(cells) else "", cells[order["text"]]
        if not title:
            title, text = at_bar(text)
        yield _placed(line.where, cells[0].strip(), title, text)


def _placed(where: str, name: str, title: str, text: str, metadata: Mapping[str, Any] | None = None) -> _Placed:
    if not text.strip():
        raise BadData(f"{where}: passage '{name}' has no text: fill it in or drop the row")
    return where, Passage(name, title.strip(), text.strip(), metadata=dict(metadata or {}))

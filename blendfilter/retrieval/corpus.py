"""Corpora as passages: files in the common layouts, read as a stream, and the paragraphs that questions bring along.

In: a path (plain or gzipped), or questions. Out: `Passage` records. The layout is told from the first row:

========================  ==============================================================================================
this package, BEIR        JSON Lines ``{"id" or "_id", "title", "text"}``; without ids, positions from 0 are the ids
FlashRAG                  JSON Lines ``{"id", "contents": "\\"Title\\"\\ntext"}``
DSPy's wiki abstracts     JSON Lines ``{"title", "text": ["a sentence", ...]}`` (also with an id)
HippoRAG                  one JSON list of ``{"title", "text"}``
ColBERT, DPR              tab-separated ``pid, passage[, title]``, with a header line or none; also ``Title | text``
========================  ==============================================================================================
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from blendfilter.errors import BadData, EmptyData
from blendfilter.files import first_character, json_rows, lines, opened
from blendfilter.records import Passage, Question
from blendfilter.retrieval.layouts import Placed, from_columns, from_json
from blendfilter.text import folded


def read_corpus(path: str | Path) -> Iterator[Passage]:
    """The passages of a corpus file in its order, one by one; never the whole file in memory.

    Ids are remembered as eight bytes each, and looked through for repeats at the end of the file: a reader who stops
    early gets no such check.

    Raises:
        MissingFile: no such file.
        EmptyData: no passages in it.
        BadData: a row that does not parse, misses a field or has no text (which line), not UTF-8, damaged gzip, or an
            id that occurs twice (both places).
    """
    hashes = array("q")
    for placed in _placed(path):
        hashes.append(hash(placed.passage.id))
        yield placed.passage
    if not hashes:
        raise EmptyData(f"{path} has no passages: is it the right file?")
    _check_ids(path, hashes)


def _placed(path: str | Path) -> Iterator[Placed]:
    if first_character(path) in ("[", "{"):
        return from_json(json_rows(path))
    return from_columns(lines(path))


def _check_ids(path: str | Path, hashes: array[int]) -> None:
    """Raise `BadData` for the first id that occurs twice; the file is read again only if two hashes agree."""
    values, counts = np.unique(np.frombuffer(hashes, dtype=np.int64), return_counts=True)
    suspects = set(values[counts > 1].tolist())
    if not suspects:
        return
    first: dict[str, str] = {}
    for where, passage in _placed(path):
        if hash(passage.id) in suspects and first.setdefault(passage.id, where) != where:
            raise BadData(
                f"{where}: passage id '{passage.id}' was used before, at {first[passage.id]}: ids must differ"
            )


def pooled(questions: Iterable[Question]) -> list[Passage]:
    """The paragraphs that came with the questions, each title and text once, in order of first appearance.

    Where two different paragraphs carry one id (StrategyQA's are cut differently per question), the later one's id gets
    ``@`` and its question's id. What a question says of its own paragraph (gold or not) is left out.

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
    """SHA-256 of the file's bytes as they lie on disk, in hexadecimal. Raises `MissingFile` or `BadData`."""
    with opened(path, unpack=False) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

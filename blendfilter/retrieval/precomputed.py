"""Hits that were found before, by any engine anywhere: a file of queries with their passages, as a retriever.

The file is JSON Lines, or one JSON list, plain or gzipped::

    {"question": "Who runs the mill?", "passages": [{"id": "m1", "title": "Tide Mill", "text": "…", "score": 9.1}]}

The query may stand under `query`, or its question's id alone under `id` or `qid`, where the questions are known; the
passages, best first, under `ctxs` (DPR, ALCE), `context`, `retrieved`, `topk` (`dspy.ColBERTv2`), `retrieval_result`
(FlashRAG; also inside `output`, as in its `intermediate_data.json`) or `hits`, in any shape that `as_passage` reads.
FlashRAG's `retrieval_cache.json` does too, one object of queries and their passages. `write_hits` makes a file of an
index.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter.errors import BadArgument, BadData, EmptyData
from blendfilter.files import (
    AnyPath,
    JsonRow,
    first_character,
    json_rows,
    lines,
    list_values,
    opened,
    path_of,
    write_whole,
)
from blendfilter.records import Passage, cell
from blendfilter.retrieval.base import (
    Hits,
    ProgressCallback,
    Retriever,
    cut_of,
    fingerprint_of,
    flags_of,
    hits_like,
    silent,
    with_flags,
)
from blendfilter.retrieval.callables import as_passage
from blendfilter.retrieval.corpus import corpus_hash
from blendfilter.text import folded

QUERIES = ("question", "query")
PASSAGES = ("passages", "ctxs", "context", "retrieved", "topk", "retrieval_result", "hits")
IDS = ("id", "_id", "qid", "question_id")
BATCH = 64


_RowPlace = tuple[str, int, int]
"""Where a row stands: in words, and offset and length in the copy that searches read."""


class HitsWritten(NamedTuple):
    """How many queries a file of hits holds, and how many of them were cut."""

    queries: int
    cut: int


class Precomputed(Retriever):
    """The hits of `file`, looked up by the text of the query, exact but for white space and Unicode's forms of letters.

    Every row is read and checked once, and copied to a temporary file, which searches read: memory holds the queries
    alone. `questions` (id to text) are for rows that hold an id and no query; rows of other questions are left out.

    Raises:
        MissingFile: no such file. EmptyData: no rows in it.
        BadData: a row that is no query with passages, or a query that has two different lists of them (which lines).
    """

    kind = "retrieved"

    def __init__(self, file: AnyPath, questions: Mapping[str, str] | None = None) -> None:
        self.file = path_of(file)
        self._questions = questions
        self.fingerprint = fingerprint_of("retrieved", corpus_hash(self.file))
        self._lines: dict[str, _RowPlace] = {}
        self._rows = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - kept open
        offset = 0
        for row in _rows(self.file):
            query, found = self._query(row.value, row.where), _hits(row.value, row.where)
            if query is None:
                continue
            data = json.dumps(row.value).encode()
            line = (row.where, offset, len(data))
            before = self._lines.setdefault(query, line)
            if before is line:
                self._rows.write(data)
                offset += len(data)
            elif self._read(before) != found:
                raise BadData(
                    f"{row.where}: the query {query[:80]!r} has other passages at {before[0]}: leave one of the two"
                )
        if not self._lines:
            raise EmptyData(f"{self.file} has no queries: is it the right file?")

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The first `k` passages of each query, in the file's order; where it has fewer, all of them, and one warning.

        Raises `BadArgument` for a query that is not in the file.
        """
        found: list[list[Passage]] = []
        for query in queries:
            line = self._lines.get(folded(query))
            if line is None:
                raise BadArgument(
                    f"no hits in {self.file} for the query {query.strip()[:80]!r}: precomputed hits serve methods "
                    "that search for the question alone (direct-retrieval, cot-retrieval, blendfilter --without "
                    "q_ex,q_in) or hold every query that is searched for"
                )
            hits = self._read(line)
            if len(hits) < k:
                least = f"{len(hits)} come back"
                self._warn("few", f"k={k} is more than {self.file} holds for a query: {least}")
            found.append(hits_like(hits[:k], hits, trim=hits.trim))
        return found

    def missing(self, queries: Iterable[str]) -> list[str]:
        """Those of `queries` that the file does not hold."""
        return [query for query in queries if folded(query) not in self._lines]

    def info(self) -> dict[str, Any]:
        """Kind, fingerprint, how many queries there are, and the file."""
        return super().info() | {"queries": len(self._lines), "path": str(self.file)}

    def _read(self, line: _RowPlace) -> Hits:
        where, offset, length = line
        return _hits(json.loads(os.pread(self._rows.fileno(), length, offset)), where)

    def _query(self, value: Any, where: str) -> str | None:
        """The query of a row; None where it names a question that is not among `questions`."""
        if not isinstance(value, Mapping):
            raise BadData(
                f"{where}: expected an object with 'question' and 'passages', found {value!r:.40}"
            )
        ids = [str(cell(value[name])) for name in IDS if name in value]
        if self._questions is not None and ids and not any(name in value for name in QUERIES):
            question = self._questions.get(ids[0])
            return None if question is None else folded(question)
        name = _named(value, QUERIES, where)
        if not isinstance(value[name], str) or not value[name].strip():
            raise BadData(
                f"{where}: field '{name}' is wrong: expected a text, found {value[name]!r:.40}"
            )
        return folded(value[name])


def _rows(file: Path) -> Iterator[JsonRow]:
    """The rows of a file of hits; those of a cache, one object of queries and their passages, look like others."""
    if not _is_cache(file):
        yield from json_rows(file)
        return
    with opened(file) as stream:
        for position, (query, hits) in enumerate(list_values(stream, str(file))):
            yield JsonRow(
                f"{file}, query {position + 1}",
                position,
                {QUERIES[0]: query, PASSAGES[0]: hits},
            )


def _is_cache(file: Path) -> bool:
    """Whether a file is one object whose keys are queries: of several lines, or of one that has no field of a row."""
    if first_character(file) != "{":
        return False
    first = next(lines(file)).text.strip()
    try:
        row = json.loads(first)
    except ValueError:
        return first == "{"
    return (
        bool(row)
        and all(isinstance(value, list) for value in row.values())
        and not {*QUERIES, *PASSAGES} & {*row}
    )


def write_hits(
    index: Retriever,
    queries: Iterable[Mapping[str, Any]],
    out: AnyPath,
    k: int = 10,
    *,
    overwrite: bool = False,
    progress: ProgressCallback = silent,
) -> HitsWritten:
    """Search `index` for `queries` (``{"question": …}``, any other field kept) and write the hits to `out`.

    The file appears whole or not at all. Raises `BadArgument` where there is one already and `overwrite` is not set.
    """
    target = path_of(out)
    rows, cut = list(queries), 0

    def written() -> Iterator[bytes]:
        nonlocal cut
        for at in range(0, len(rows), BATCH):
            batch = rows[at : at + BATCH]
            found = index.search([row["question"] for row in batch], k)
            cut += sum(map(cut_of, found))
            yield "".join(map(_row, batch, found)).encode("utf-8")
            progress("searching", at + len(batch), len(rows))

    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, written(), overwrite=overwrite)
    return HitsWritten(len(rows), cut)


def _row(row: Mapping[str, Any], hits: Sequence[Passage]) -> str:
    passages = [
        {
            "id": passage.id,
            "title": passage.title,
            "text": passage.text,
            "score": None if passage.score is None else float(passage.score),
            **({"metadata": dict(passage.metadata)} if passage.metadata else {}),
        }
        for passage in hits
    ]
    return (
        json.dumps({**row, **flags_of(hits), "passages": passages}, ensure_ascii=False) + "\n"
    )


def _hits(value: Mapping[str, Any], where: str) -> Hits:
    output = value.get("output")
    if isinstance(output, Mapping) and not any(name in value for name in PASSAGES):
        value = output
    name = next((name for name in PASSAGES if isinstance(value.get(name), list)), "") or _named(
        value, PASSAGES, where
    )
    if not isinstance(value[name], list):
        raise BadData(
            f"{where}: field '{name}' is wrong: expected a list of passages, found {value[name]!r:.40}"
        )
    found = [
        _passage(item, f"{where}, passage {rank}")
        for rank, item in enumerate(value[name], start=1)
    ]
    try:
        return with_flags(found, value)
    except ValueError:
        raise BadData(
            f"{where}: field 'trim' is wrong: take it out, or write the hits again"
        ) from None


def _named(value: Mapping[str, Any], names: Sequence[str], where: str) -> str:
    name = next((name for name in names if name in value), None)
    if name is None:
        others = ", ".join(f"'{other}'" for other in names[1:])
        raise BadData(
            f"{where}: field '{names[0]}' (or {others}) is missing (it has: {', '.join(value) or 'nothing'})"
        )
    return name


def _passage(item: Any, where: str) -> Passage:
    try:
        passage = as_passage(item)
    except (
        BadArgument,
        ValueError,
        TypeError,
    ) as error:  # the latter two of a score that is no number
        raise BadData(f"{where}: {error}") from None
    if not passage.line:
        raise BadData(f"{where} has neither title nor text: fill it in or drop it")
    if passage.score is not None and not math.isfinite(passage.score):
        raise BadData(f"{where}: its score is {passage.score}: expected a number")
    metadata = item.get("metadata") if isinstance(item, Mapping) else None
    return replace(passage, metadata=metadata) if isinstance(metadata, Mapping) else passage

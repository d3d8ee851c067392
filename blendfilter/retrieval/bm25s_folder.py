"""Folders that bm25s saved (`retriever.save(folder, corpus=…)`), opened as they are, their arrays memory-mapped.

In: such a folder. Out: a retriever with bm25s' own scores, passages without a term of the query left out.

A folder does not say how its texts were analysed, and a query must be analysed in the same way; its vocabulary shows it
(rules: `blendfilter.retrieval.vocabulary`). Where they are wrong, `stopwords` and `stemmer` say what is right.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import bm25s
import numpy as np
from numpy.typing import NDArray

from blendfilter.errors import BadArgument, BadData, EmptyData, MissingFile
from blendfilter.records import Passage
from blendfilter.retrieval.base import fingerprint_of
from blendfilter.retrieval.bm25 import SparseScorer, loaded
from blendfilter.retrieval.callables import as_passage
from blendfilter.retrieval.layouts import IDS
from blendfilter.retrieval.manifest import UNREADABLE, CorpusInfo, Manifest
from blendfilter.retrieval.passages import Lines
from blendfilter.retrieval.ranking import best
from blendfilter.retrieval.stored import Stored
from blendfilter.retrieval.vocabulary import Found, Vocabulary, found_analyser

KIND = "bm25s"
PARAMS, VOCABULARY, INDPTR = "params.index.json", "vocab.index.json", "indptr.csc.index.npy"
CORPUS, LINES = "corpus.jsonl", "corpus.mmindex.json"
_ARRAYS = ("data.csc.index.npy", "indices.csc.index.npy", INDPTR)


def open_bm25s(
    folder: str | os.PathLike[str], *, stopwords: str | Iterable[str] | None = None, stemmer: str | None = None
) -> Bm25sFolder:
    """The index that bm25s saved in `folder`.

    `stopwords` (a list, or one that bm25s has by name, such as ``"english"``) and `stemmer` (a language of Snowball's)
    are what its texts were analysed with, ``"none"`` for without; what is not said is found from the vocabulary.

    Raises `MissingFile` where nothing is there, `BadData` where files are missing, damaged or without passages, and
    `UnknownName` for stop words or a stemmer nobody knows.
    """
    path = Path(folder)
    if not path.is_dir():
        raise MissingFile(f"no folder of bm25s at {folder}: check the path")
    for name in (PARAMS, VOCABULARY, *_ARRAYS):
        if not (path / name).is_file():
            raise BadData(f"the bm25s folder at {folder} is damaged: {name} is missing; save it again")
    if not (path / CORPUS).is_file():
        raise BadData(f"the bm25s folder at {folder} holds no passages: save it with retriever.save(DIR, corpus=…)")
    engine = _loaded(path)
    passages = FolderPassages(path)
    count = engine.scores["num_docs"] or 0
    if len(passages) != count:
        raise BadData(f"the bm25s folder at {folder} holds {len(passages):,} passages and an index of {count}")
    if not count:
        raise EmptyData(f"the bm25s folder at {folder} holds no passages")
    return Bm25sFolder(path, engine, passages, _analyser(path, engine, stopwords, stemmer))


class Bm25sFolder(Stored):
    """What `open_bm25s` opens. It only reads, so threads share it."""

    def __init__(self, path: Path, engine: bm25s.BM25, passages: FolderPassages, found: Found) -> None:
        self.analyser = found.analyser
        super().__init__(_manifest(path, engine, passages, found), passages, path)
        self._scorer = SparseScorer(engine, path)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages a query, by bm25s' scores; equal scores keep the order of its corpus."""
        self._short.check(k)
        return [self._search(query, k) for query in queries]

    def _search(self, query: str, k: int) -> list[Passage]:
        terms = self.analyser(query)
        if not terms:
            return []
        scores = self._scorer.scores(terms)
        return [self.passages[at].scored(float(scores[at])) for at in best(scores, k)]


class FolderPassages(Lines):
    """The rows of `corpus.jsonl` by position; a row without an id has its position for one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / CORPUS
        super().__init__(self._path, np.zeros(1, np.int64))
        starts, size = _line_starts(folder) if (folder / LINES).is_file() else _scanned(self._bytes), len(self._bytes)
        if len(starts) and not (starts[0] == 0 and np.all(np.diff(starts) > 0) and starts[-1] < size):
            raise BadData(f"{folder / LINES} does not fit {CORPUS}: save the folder again")
        self.offsets = np.append(starts, size)

    def read(self, at: int, line: bytes) -> Passage:
        """A row in any shape that `as_passage` reads."""
        try:
            row = json.loads(line)
            if isinstance(row, dict) and all(row.get(name) is None for name in IDS):
                row["id"] = at
            return as_passage(row)
        except (ValueError, BadArgument) as error:
            raise BadData(f"{self._path}, line {at + 1}: {error}") from None


def _line_starts(folder: Path) -> NDArray[np.int64]:
    try:
        return np.asarray(json.loads((folder / LINES).read_bytes()), dtype=np.int64).reshape(-1)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadData(f"{folder / LINES} is no list of numbers ({error}): save the folder again") from None


def _scanned(data: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Where the lines begin, of a corpus saved by an early bm25s, which left no list of them."""
    after = np.flatnonzero(data == ord("\n")) + 1
    starts = np.concatenate([np.zeros(min(len(data), 1), np.int64), after])
    return starts[starts < len(data)]


def _loaded(path: Path) -> bm25s.BM25:
    try:
        return loaded(path)
    except (OSError, *UNREADABLE) as error:
        raise BadData(f"the bm25s folder at {path} cannot be read ({str(error)[:200]}): save it again") from None


def _analyser(path: Path, engine: bm25s.BM25, stopwords: str | Iterable[str] | None, stemmer: str | None) -> Found:
    vocabulary = Vocabulary(engine.vocab_dict, np.diff(engine.scores["indptr"]), engine.scores["num_docs"])
    if vocabulary.numbers_only:
        raise BadData(
            f"the bm25s folder at {path} was indexed by token numbers and does not hold the words: "
            "index it again from Tokenizer.tokenize(…, return_as='tuple')"
        )
    return found_analyser(vocabulary, path, stopwords=stopwords, stemmer=stemmer)


def _manifest(path: Path, engine: bm25s.BM25, passages: FolderPassages, found: Found) -> Manifest:
    """What the folder would say of itself.

    Its arrays may be many gigabytes, so the fingerprint stands on their sizes, and on the content of what is small: the
    settings, the words, in how many passages each occurs, and where each passage's line begins. A corpus that was
    edited and indexed again changes one of these unless it keeps the length of every text and every count.
    """
    lines = hashlib.sha256(passages.offsets.tobytes()).hexdigest()
    sizes = {name: (path / name).stat().st_size for name in (*_ARRAYS, CORPUS)}
    contents = [hashlib.sha256((path / name).read_bytes()).hexdigest() for name in (PARAMS, VOCABULARY, INDPTR)]
    settings = {name: getattr(engine, name) for name in ("k1", "b", "delta", "method", "idf_method")}
    settings |= {"analyser": found.analyser.settings(), "analyser_found": found.how}
    return Manifest(
        kind=KIND,
        fingerprint=fingerprint_of(KIND, sizes, contents, lines, found.analyser.settings()),
        passages=len(passages),
        corpus=CorpusInfo(name=CORPUS, sha256=lines),
        settings=settings,
    )

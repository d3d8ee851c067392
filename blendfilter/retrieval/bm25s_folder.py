"""Folders that bm25s saved (`retriever.save(folder, corpus=…)`), opened as they are, their arrays memory-mapped.

The scores are bm25s' own; passages without a term of the query are left out. A folder does not record how its texts
were analysed, and a query must be analysed in the same way. So the user names the stemmer and the stop words, in Python
or in a file `analyser.json` in the folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from blendfilter.errors import BadArgument, BadData, EmptyData, UnknownName
from blendfilter.files import AnyPath, path_of, sha256_of
from blendfilter.records import Passage
from blendfilter.retrieval.analyser import BM25S_PATTERN, PATTERNS, Analyser
from blendfilter.retrieval.base import fingerprint_of, first_fault
from blendfilter.retrieval.bm25 import STOP_WORD_LISTS, Lexical, saved_engine
from blendfilter.retrieval.callables import as_passage
from blendfilter.retrieval.corpus import IDS
from blendfilter.retrieval.manifest import UNREADABLE, CorpusInfo, Manifest
from blendfilter.retrieval.stored import text_lines

KIND = "bm25s"
PARAMS = "params.index.json"
VOCABULARY = "vocab.index.json"
INDPTR = "indptr.csc.index.npy"
CORPUS = "corpus.jsonl"
ANALYSER = "analyser.json"
_PARAMETERS = ("k1", "b", "delta", "method", "idf_method")
_ARRAYS = ("data.csc.index.npy", "indices.csc.index.npy", INDPTR)


def open_bm25s(
    folder: AnyPath,
    *,
    stemmer: str | None = None,
    stopwords: str | Iterable[str] | None = None,
    analyser: Analyser | None = None,
) -> Lexical:
    """The index that bm25s saved in `folder`.

    `stemmer` (a language of Snowball's) and `stopwords` (a list, or the name of one of bm25s' lists, such as
    ``"english"``) are what its texts were analysed with; ``"none"`` for without. Words are found by bm25s' own pattern,
    in lower case. An `analyser` replaces all of that. Without a `stemmer`, the folder's `analyser.json` counts:
    ``{"stemmer": "english", "stopwords": "english"}``, and if need be ``"pattern"`` and ``"lower"``.

    Raises:
        BadData, EmptyData: files are missing, damaged or without passages.
        BadArgument: neither given nor recorded is how the texts were analysed. UnknownName: no such stemmer or list.
    """
    path = path_of(folder)
    if not (path / CORPUS).is_file():
        raise BadData(
            f"the bm25s folder at {folder} holds no passages: save it with retriever.save(DIR, corpus=…)"
        )
    try:
        engine = saved_engine(path)
    except (OSError, *UNREADABLE) as error:
        raise BadData(
            f"the bm25s folder at {path} cannot be read ({str(error)[:200]}): save it again"
        ) from None
    passages = text_lines(path / CORPUS, partial(_passage, path / CORPUS))
    count = engine.scores["num_docs"] or 0
    if len(passages) != count:
        raise BadData(
            f"the bm25s folder at {folder} holds {len(passages):,} passages and an index of {count}"
        )
    if not count:
        raise EmptyData(f"the bm25s folder at {folder} holds no passages")
    words = [word for word in engine.vocab_dict if word]
    if words and all(map(str.isdecimal, words)):
        raise BadData(
            f"the bm25s folder at {path} was indexed by token numbers and does not hold the words: "
            "index it again from Tokenizer.tokenize(…, return_as='tuple')"
        )
    if analyser is None:
        given = {} if stopwords is None else {"stopwords": stopwords}
        how = _recorded(path) if stemmer is None else _Analysis(stemmer=stemmer, **given)
        analyser = how.analyser()
    # Its arrays may be many gigabytes, so the fingerprint stands on their sizes, and on the content of what is small:
    # the settings, the words, in how many passages each occurs, and where each passage's line begins. A corpus that
    # was edited and indexed again changes one of these unless it keeps the length of every text and every count.
    lines = hashlib.sha256(passages.offsets.tobytes()).hexdigest()
    sizes = {name: (path / name).stat().st_size for name in (*_ARRAYS, CORPUS)}
    contents = [sha256_of(path / name) for name in (PARAMS, VOCABULARY, INDPTR)]
    analysis = analyser.settings()
    manifest = Manifest(
        kind=KIND,
        fingerprint=fingerprint_of(KIND, sizes, contents, lines, analysis),
        passages=count,
        corpus=CorpusInfo(name=CORPUS, sha256=lines),
        settings={name: getattr(engine, name) for name in _PARAMETERS} | {"analyser": analysis},
    )
    return Lexical(manifest, passages, engine, path, analyser)


def _passage(path: Path, at: int, line: bytes) -> Passage:
    """A row in any shape that `as_passage` reads; without an id, its position is one."""
    try:
        row = json.loads(line)
        if isinstance(row, dict) and all(row.get(name) is None for name in IDS):
            row["id"] = at
        return as_passage(row)
    except (ValueError, BadArgument) as error:
        raise BadData(f"{path}, line {at + 1}: {error}") from None


class _Analysis(BaseModel):
    """How the texts of a folder were analysed; an `analyser.json`."""

    model_config = ConfigDict(extra="forbid")
    stemmer: str
    stopwords: str | tuple[str, ...] = "none"
    pattern: str = BM25S_PATTERN
    lower: bool = True

    def analyser(self) -> Analyser:
        """bm25s takes characters as they come, so a query's must be taken so too."""
        words, stemmer = self.stopwords, None if self.stemmer == "none" else self.stemmer
        if isinstance(words, str):
            if words not in STOP_WORD_LISTS:
                raise UnknownName.of("list of stop words", words, STOP_WORD_LISTS)
            words = tuple(STOP_WORD_LISTS[words])
        return Analyser(self.pattern, words, stemmer, self.lower, form=None)


def _recorded(folder: Path) -> _Analysis:
    path = folder / ANALYSER
    if not path.is_file():
        raise BadArgument(
            f"the bm25s folder at {folder} does not say how its texts were analysed: open_index(DIR, "
            f'stemmer="english", stopwords="english"), "none" for without; or write {{"stemmer": "english", '
            f'"stopwords": "english"}} into its {ANALYSER}'
        )
    try:
        found = _Analysis.model_validate_json(path.read_bytes())
    except ValidationError as error:
        why = first_fault(error)
        raise BadData(f"{path} is no record of an analyser ({why}): correct it") from None
    if found.pattern not in PATTERNS:
        raise BadData(
            f"{path}: its pattern must be one of {', '.join(PATTERNS)}; give another one in Python, analyser=…"
        )
    return found

"""Folders that bm25s saved (`retriever.save(folder, corpus=…)`), opened as they are, their arrays memory-mapped.

The scores are bm25s' own; passages without a term of the query are left out. A folder does not record how its texts
were analysed, and a query must be analysed in the same way. So the user names the stemmer and the stop words, in Python
or in a file `analyser.json` in the folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from blendfilter.errors import BadArgument, BadData, EmptyData, UnknownName
from blendfilter.files import AnyPath, path_of, sha256_of
from blendfilter.records import Passage
from blendfilter.retrieval.analyser import BM25S_PATTERN, PATTERNS, Analyser
from blendfilter.retrieval.base import fingerprint_of, first_fault
from blendfilter.retrieval.bm25 import STOP_WORD_LISTS, LexicalSearch, SparseScorer
from blendfilter.retrieval.callables import as_passage
from blendfilter.retrieval.corpus import IDS
from blendfilter.retrieval.manifest import UNREADABLE, CorpusInfo, Manifest
from blendfilter.retrieval.stored import PassageLines, line_offsets, mapped

KIND = "bm25s"
PARAMS = "params.index.json"
VOCABULARY = "vocab.index.json"
INDPTR = "indptr.csc.index.npy"
CORPUS = "corpus.jsonl"
ANALYSER = "analyser.json"
_ARRAYS = ("data.csc.index.npy", "indices.csc.index.npy", INDPTR)


def open_bm25s(
    folder: AnyPath,
    *,
    stemmer: str | None = None,
    stopwords: str | Iterable[str] | None = None,
    analyser: Analyser | None = None,
) -> LexicalSearch:
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
        scorer = SparseScorer.load(path)
    except (OSError, *UNREADABLE) as error:
        raise BadData(
            f"the bm25s folder at {path} cannot be read ({str(error)[:200]}): save it again"
        ) from None
    passages, count = FolderPassages(path), scorer.passages
    if len(passages) != count:
        raise BadData(
            f"the bm25s folder at {folder} holds {len(passages):,} passages and an index of {count}"
        )
    if not count:
        raise EmptyData(f"the bm25s folder at {folder} holds no passages")
    words = [word for word in scorer.words if word]
    if words and all(map(str.isdecimal, words)):
        raise BadData(
            f"the bm25s folder at {path} was indexed by token numbers and does not hold the words: "
            "index it again from Tokenizer.tokenize(…, return_as='tuple')"
        )
    if analyser is None:
        given = {} if stopwords is None else {"stopwords": stopwords}
        how = _recorded(path) if stemmer is None else _Analysis(stemmer=stemmer, **given)
        analyser = how.analyser()
    manifest = _manifest(path, scorer, passages, analyser)
    return LexicalSearch(manifest, passages, scorer, path, analyser)


class FolderPassages(PassageLines):
    """The rows of `corpus.jsonl` by position; a row without an id has its position for one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / CORPUS
        super().__init__(mapped(self._path), line_offsets(self._path))

    def read(self, at: int, line: bytes) -> Passage:
        """A row in any shape that `as_passage` reads."""
        try:
            row = json.loads(line)
            if isinstance(row, dict) and all(row.get(name) is None for name in IDS):
                row["id"] = at
            return as_passage(row)
        except (ValueError, BadArgument) as error:
            raise BadData(f"{self._path}, line {at + 1}: {error}") from None


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


def _manifest(
    path: Path, scorer: SparseScorer, passages: FolderPassages, analyser: Analyser
) -> Manifest:
    """What the folder would say of itself.

    Its arrays may be many gigabytes, so the fingerprint stands on their sizes, and on the content of what is small: the
    settings, the words, in how many passages each occurs, and where each passage's line begins. A corpus that was
    edited and indexed again changes one of these unless it keeps the length of every text and every count.
    """
    lines = hashlib.sha256(passages.offsets.tobytes()).hexdigest()
    sizes = {name: (path / name).stat().st_size for name in (*_ARRAYS, CORPUS)}
    contents = [sha256_of(path / name) for name in (PARAMS, VOCABULARY, INDPTR)]
    analysis = analyser.settings()
    return Manifest(
        kind=KIND,
        fingerprint=fingerprint_of(KIND, sizes, contents, lines, analysis),
        passages=len(passages),
        corpus=CorpusInfo(name=CORPUS, sha256=lines),
        settings=scorer.settings() | {"analyser": analysis},
    )

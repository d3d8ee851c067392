"""BM25 (Robertson & Zaragoza 2009) with Lucene's idf, over passages as one line, `Title | text`:
score(q, p) = sum over the terms t of q of  ln(1 + (N - df + 0.5) / (df + 0.5)) * tf / (tf + k1 (1 - b + b |p| / avg)).

A query gets the passages that share a term with it, at most k, best first. A term counts as often as the query repeats
it; terms that no passage has count nothing. There are two engines:

- `BM25`, the one to use, over bm25s (Lù 2024, https://arxiv.org/abs/2407.03618): every term's score in every passage is
  computed at building time into a sparse matrix, and a query adds up a few of its columns. Memory-mapped, in 64 bits.
- `RankBM25`, the reference, over rank-bm25's `BM25Okapi`: plain dictionaries, slow, easy to follow, for small corpora.
  Its scores are higher by the constant factor (k1 + 1).
"""

from __future__ import annotations

import math
import shutil
import warnings
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, Self

import bm25s
import numpy as np
from bm25s import stopwords
from rank_bm25 import BM25Okapi

from blendfilter import resources
from blendfilter.errors import BadArgument, BadData, EmptyData, MissingFile
from blendfilter.files import AnyPath, path_of
from blendfilter.records import Passage
from blendfilter.retrieval.analyser import Analyser
from blendfilter.retrieval.base import ProgressCallback, Scores, best, fingerprint_of, silent
from blendfilter.retrieval.corpus import Corpus, corpus_hash
from blendfilter.retrieval.manifest import (
    FORMAT,
    Manifest,
    Settings,
    building,
    discard,
    opening,
    stamp,
)
from blendfilter.retrieval.stored import (
    OFFSETS,
    OFTEN,
    PASSAGES,
    Numbers,
    PassageLines,
    Stored,
    UpdatedPassages,
    gather,
    stored_passages,
)

COUNTING = "counting words"
STOP_WORD_LISTS: dict[str, tuple[str, ...]] = {
    name.removeprefix("STOPWORDS_").lower().replace("en_plus", "english_plus"): words
    for name, words in vars(stopwords).items()
    if name.startswith("STOPWORDS_") and name != "STOPWORDS_EN"
} | {"english": stopwords.STOPWORDS_EN, "none": ()}
"""bm25s' lists of stop words, by the names that it takes."""
FREQUENCIES = "frequencies.npy"
"""How often a term occurs, for each entry of bm25s' matrix. Folders of before 0.3 have no such file."""
SHARED = "statistics"
"""The setting of a shard whose scores count the words of all shards."""
_OLD_ANALYSER = (
    "an index of an earlier version: it answers as before, and takes a word in two Unicode forms for two words, and a "
    "vowel sign for a word's end; build it again to mend that (its fingerprint changes)"
)
_ARRAYS = ("data", "indices", "indptr")
_BLOCK = 2**13  # passages counted at a time

Block = tuple[Numbers, Numbers, Numbers]
"""Columns of terms, rows of passages, and how often each occurs there; ordered by column, then by row."""


class AnalysedPassages:
    """Passages as lists of term numbers, four bytes a term; `words` has the number of each term."""

    def __init__(self, words: dict[str, int] | None = None) -> None:
        self.words = dict(words or {})
        self._terms = array("i")
        self._ends = array("q", [0])

    def add(self, terms: Iterable[str]) -> None:
        """Append one passage."""
        words = self.words
        self._terms.extend(words.setdefault(term, len(words)) for term in terms)
        self._ends.append(len(self._terms))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def terms(self) -> Iterator[list[str]]:
        """Each passage's terms, in order."""
        names = list(self.words)
        for start, end in zip(self._ends, self._ends[1:], strict=False):
            yield [names[number] for number in self._terms[start:end]]

    def blocks(self, first: int = 0) -> Iterator[Block]:
        """How often each term occurs, some thousand passages at a time; `first` is the first passage's row."""
        terms = np.frombuffer(self._terms, dtype=np.int32)
        ends = np.frombuffer(self._ends, dtype=np.int64)
        for start in range(0, len(self), _BLOCK):
            block = ends[start : start + _BLOCK + 1]
            owners = np.repeat(np.arange(len(block) - 1), np.diff(block))
            pairs = terms[block[0] : block[-1]].astype(np.int64) * _BLOCK + owners
            pairs, frequencies = np.unique(pairs, return_counts=True)
            yield pairs // _BLOCK, pairs % _BLOCK + first + start, frequencies

    def postings(self, before: Block | None = None, first: int = 0) -> Postings:
        """All blocks in one matrix, behind one of `first` passages that went before.

        A place for each entry is counted first: sorting them all at once takes far more memory.
        """
        ahead, size = [] if before is None else [before], len(self.words)
        having = np.zeros(size, dtype=np.int64)
        for columns, _, _ in chain(ahead, self.blocks()):
            having += np.bincount(columns, minlength=size)
        starts = np.concatenate([[0], np.cumsum(having)])
        free = starts[:-1].copy()
        rows = np.empty(starts[-1], dtype=np.int32)
        frequencies = np.empty(starts[-1], dtype=np.int32)
        for columns, owners, often in chain(ahead, self.blocks(first)):
            many = np.bincount(columns, minlength=size)
            within = np.arange(len(columns)) - np.repeat(np.cumsum(many) - many, many)
            places = free[columns] + within
            rows[places] = owners
            frequencies[places] = often
            free += many
        return Postings(self.words, starts, rows, frequencies, first + len(self))


def analysed(
    analyse: Analyser,
    passages: Sequence[Passage],
    progress: ProgressCallback = silent,
    words: dict[str, int] | None = None,
) -> AnalysedPassages:
    """The passages, and the numbers of their words behind those in `words`."""
    found = AnalysedPassages(words)
    for at, passage in enumerate(passages):
        found.add(analyse(passage.line))
        if at % OFTEN == 0:
            progress(COUNTING, at, len(passages))
    progress(COUNTING, len(passages), len(passages))
    return found


class Postings(NamedTuple):
    """How often each term occurs in which passage: a sparse matrix with a column for each term."""

    words: dict[str, int]
    """The column of each term."""
    starts: Numbers
    """(terms + 1): where each term's column begins, and the last one ends."""
    rows: Numbers
    frequencies: Numbers
    passages: int

    def kept(self, passages: Numbers) -> Block:
        """Those of some passages (ascending), which are numbered anew."""
        numbers = np.full(self.passages, -1, dtype=np.int64)
        numbers[passages] = np.arange(len(passages))
        rows = numbers[self.rows]
        stays = rows >= 0
        columns = np.repeat(np.arange(len(self.words)), np.diff(self.starts))
        return columns[stays], rows[stays], self.frequencies[stays]

    def engine(self, k1: float, b: float, whole: Statistics | None = None) -> bm25s.BM25:
        """bm25s' object over these scores, as its own `build_index_from_ids` makes it, to the bit.

        With the statistics of a corpus that these passages are a part of, its words and lengths count.
        """
        lengths = np.bincount(self.rows, weights=self.frequencies, minlength=self.passages)
        having, passages, mean = np.diff(self.starts), self.passages, lengths.mean()
        if whole is not None:
            by_column = sorted(self.words, key=self.words.__getitem__)
            having = np.array([whole.having[word] for word in by_column])
            passages, mean = whole.passages, whole.terms / whole.passages
        norms = k1 * ((1 - b) + b * lengths / mean)
        scores = self.frequencies / (norms[self.rows] + self.frequencies)
        # Lucene's idf, as bm25s counts it: by Python's logarithm, which NumPy's differs from in the last bit
        counts, which = np.unique(having, return_inverse=True)
        idf = [math.log(1 + (passages - n + 0.5) / (n + 0.5)) for n in counts.tolist()]
        scores *= np.repeat(np.array(idf)[which], np.diff(self.starts))
        engine = bm25s.BM25(k1=k1, b=b, method="lucene", dtype="float64", backend="numpy")
        engine.scores = {
            "data": scores,
            "indices": self.rows,
            "indptr": self.starts,
            "num_docs": self.passages,
        }
        engine.vocab_dict = self.words
        engine.nonoccurrence_array = None  # Lucene's formula has none
        return engine

    def save(self, folder: Path, k1: float, b: float, whole: Statistics | None = None) -> None:
        """Leave in `folder` what `BM25._read` wants."""
        self.engine(k1, b, whole).save(folder, show_progress=False)
        smallest = np.min_scalar_type(self.frequencies.max(initial=0))
        np.save(folder / FREQUENCIES, self.frequencies.astype(smallest))


class Statistics(NamedTuple):
    """What BM25 counts over a whole corpus: its passages, the terms in them, and how many passages have each term."""

    passages: int
    terms: int
    having: Counter[str]

    @classmethod
    def of(cls, parts: Sequence[Postings]) -> Statistics:
        """Those of several parts together."""
        having = Counter[str]()
        for part in parts:
            counts = np.diff(part.starts).tolist()
            having.update({word: counts[at] for word, at in part.words.items() if counts[at]})
        terms = sum(int(part.frequencies.sum()) for part in parts)
        return cls(sum(part.passages for part in parts), terms, having)

    def settings(self) -> Settings:
        """As a shard's setting, by which shards of one corpus know each other."""
        digest = fingerprint_of(sorted(self.having.items()))
        return {"passages": self.passages, "terms": self.terms, "digest": digest}


class Lexical(Stored):
    """A BM25 index: `build` one, `open` one, or let `for_corpus` do either. It only reads, so threads share it.

    `engine` is the object that counts: bm25s' or rank-bm25's.
    """

    def __init__(
        self,
        manifest: Manifest,
        passages: PassageLines,
        engine: Any,
        path: Path | None,
        analyser: Analyser,
    ) -> None:
        super().__init__(manifest, passages, path)
        self.analyser = analyser
        self._engine = engine

    @classmethod
    def _count(cls, analysed: AnalysedPassages, settings: Settings, folder: Path | None) -> Any:
        """The engine for these passages; with a `folder`, leave there what `_load` wants."""
        raise NotImplementedError

    @classmethod
    def _load(
        cls, folder: Path, passages: Sequence[Passage], settings: Settings, analyse: Analyser
    ) -> Any:
        """The engine of an index folder; by default its passages are counted again."""
        return cls._count(analysed(analyse, passages), settings, None)

    def _scores(self, terms: list[str]) -> Scores:
        scores: Scores = self._engine.get_scores_from_ids(self._engine.get_tokens_ids(terms))
        return scores

    def _level(self, scores: Scores) -> Scores:
        """By the formula alone, so that both engines see the same ties."""
        return scores

    def as_cheap(self, k: int) -> int:
        """Twice as deep: every passage is scored anyway."""
        return 2 * k

    def scores(self, terms: list[str]) -> Scores:
        """Each passage's score for these terms. Raises `BadData` for damaged postings."""
        if not terms:
            return np.zeros(len(self))
        try:
            return self._scores(terms)
        except (IndexError, ValueError, TypeError) as error:  # a passage's number that none has
            why = str(error)[:120]
            raise BadData(
                f"the index at {self.path} is damaged ({why}): build it again"
            ) from error

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages a query; only those that share a term with it, so there may be fewer, or none.

        Equal scores keep corpus order, at the k-th place too.
        """
        found: list[list[Passage]] = []
        for query in queries:
            scores = self.scores(self.analyser(query))
            places = best(self._level(scores), k)
            found.append([self.passages[at].scored(float(scores[at])) for at in places])
        return found

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        out: AnyPath | None = None,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        analyser: Analyser | None = None,
        overwrite: bool = False,
        progress: ProgressCallback = silent,
    ) -> Self:
        """Index `corpus` (whatever `passages_of` takes) into the folder `out`, or in memory without one.

        With `out` the corpus is streamed. The folder appears whole or not at all; one that is there already is
        refused, or replaced (`overwrite`).
        Raises `EmptyData`, `BadData` (two passages with one id), `BadArgument`.
        """
        settings = settings_of(k1, b, analyser)
        analyse = Analyser.from_settings(settings["analyser"])
        counted = AnalysedPassages()
        place = nullcontext() if out is None else building(out, overwrite=overwrite)
        with place as folder:
            passages, about = gather(
                corpus, folder, progress, lambda passage: counted.add(analyse(passage.line))
            )
            if not counted.words:
                count = f"{len(passages)} passages and not one word to index in them"
                raise EmptyData(f"the corpus {about.name or 'given'} has {count}")
            engine = cls._count(counted, settings, folder)
            manifest = cls._described(folder, settings, about, len(passages))
        if out is not None:
            return cls.open(out, analyser=analyser)
        return cls(manifest, passages, engine, None, analyse)

    @classmethod
    def open(cls, folder: AnyPath, *, analyser: Analyser | None = None) -> Self:
        """The index in `folder`, its arrays and passages memory-mapped. Raises as `read_manifest`, and `BadData`.

        `analyser` is the one that it was built with, where that finds words by another pattern than `PATTERNS`.
        """
        return cls._open(folder, analyser=analyser)

    @classmethod
    def _read(cls, folder: Path, manifest: Manifest, **how: Any) -> Self:
        settings = manifest.settings
        with opening(folder):
            analyse = Analyser.of_index(settings["analyser"], folder, how["analyser"])
            passages = stored_passages(folder)
            if analyse.form is None:
                # names no folder, so that it comes once for many shards
                warnings.warn(_OLD_ANALYSER, stacklevel=2)
            engine = cls._load(folder, passages, settings, analyse)
            return cls(manifest, passages, engine, folder, analyse)

    @classmethod
    def _fingerprint(cls, manifest: Manifest, folder: Path | None) -> str:
        return fingerprint_of(cls.kind, manifest.corpus.sha256, manifest.settings)

    @classmethod
    def for_corpus(
        cls,
        path: AnyPath,
        cache_dir: AnyPath | None = None,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        analyser: Analyser | None = None,
        progress: ProgressCallback = silent,
    ) -> Self:
        """The index of a corpus file or a folder of texts, built once and used again while its content is the same.

        It is kept under `cache_dir`, by default `$BLENDFILTER_CACHE/indexes` or `~/.cache/blendfilter/indexes`; a
        damaged one is built again. Two builders at once both end well: the first to finish is kept. Where nothing can
        be kept there, one warning says so, and the index is made in memory.
        """
        settings = settings_of(k1, b, analyser)
        build = partial(cls.build, path, k1=k1, b=b, analyser=analyser, progress=progress)
        key = fingerprint_of(cls.kind, FORMAT, corpus_hash(path_of(path)), settings)
        name = f"{cls.kind}-{Path(path).name.split('.')[0]}-{key}"
        try:
            folder = path_of(cache_dir or resources.cache("indexes")) / name
            if before := stamp(folder):
                try:
                    found = cls.open(folder, analyser=analyser)
                    if found.manifest.built_passages is None:
                        return found
                    raise BadData(
                        f"the index at {folder} was updated and is not that of {path} any more: build it again"
                    )
                except BadData as error:
                    warnings.warn(f"{error} (doing so now)", stacklevel=2)
                    discard(folder, before)
            try:
                return build(folder)
            except BadArgument:  # another builder was faster
                return cls.open(folder, analyser=analyser)
        except (OSError, MissingFile) as error:
            why = str(error)
            if isinstance(error, OSError):
                why = f"{error.filename}: {error.strerror}; name another folder in BLENDFILTER_CACHE"
            warnings.warn(f"the index of {path} is not kept: {why}", stacklevel=2)
        return build()


def settings_of(k1: float, b: float, analyser: Analyser | None) -> Settings:
    """An index's settings, for its manifest. Raises `BadArgument` unless k1 > 0 and 0 <= b <= 1."""
    if not 0 < k1 < float("inf"):
        raise BadArgument(f"BM25's k1 must be above 0, got {k1} (usual: 0.9 to 1.5)")
    if not 0 <= b <= 1:
        raise BadArgument(f"BM25's b must lie between 0 and 1, got {b} (usual: 0.4 to 0.75)")
    return {
        "k1": float(k1),
        "b": float(b),
        "method": "lucene",
        "analyser": (analyser or Analyser()).settings(),
    }


# --- bm25s ----------------------------------------------------------------------------------------------------------


class BM25(Lexical):
    """The BM25 index to use. `BM25.build("corpus.jsonl.gz", "indexes/mine")`, then `open_index("indexes/mine")`.

    >>> index = BM25.build(["Ormskerry | A harbour town.", "Fell | A hill."])
    >>> [passage.title for passage in index("Which town has harbours?", k=2)]
    ['Ormskerry']
    """

    kind = "bm25"
    packages = ("bm25s", "PyStemmer", "numpy")

    @classmethod
    def _count(
        cls, analysed: AnalysedPassages, settings: Settings, folder: Path | None
    ) -> bm25s.BM25:
        postings = analysed.postings()
        if folder:
            postings.save(folder, settings["k1"], settings["b"])
        return postings.engine(settings["k1"], settings["b"])

    @classmethod
    def _load(
        cls, folder: Path, passages: Sequence[Passage], settings: Settings, analyse: Analyser
    ) -> bm25s.BM25:
        return saved_engine(folder)

    def _write_update(
        self, folder: Path, new: UpdatedPassages, progress: ProgressCallback
    ) -> Settings:
        settings = self.manifest.settings
        if SHARED in settings:
            raise BadArgument(
                f"the index at {self.path} is a shard, whose scores count the words of all shards: update the indexes "
                "that were joined, and join them again"
            )
        old = self.postings(progress)
        added = analysed(self.analyser, new.new, progress, old.words)

        postings = added.postings(old.kept(new.kept), len(new.kept))
        if not len(postings.rows):
            raise EmptyData("not one word would be left to index")
        postings.save(folder, settings["k1"], settings["b"])
        return settings

    def postings(self, progress: ProgressCallback = silent) -> Postings:
        """How often each term occurs in which passage; an index of before 0.3 is analysed again for it."""
        known = self._engine.scores
        if "frequencies" in known:
            words, rows, starts = self._engine.vocab_dict, known["indices"], known["indptr"]
            return Postings(words, starts, rows, known["frequencies"], len(self))
        return analysed(self.analyser, self.passages, progress).postings()

    def rescored(self, postings: Postings, whole: Statistics, out: Path) -> BM25:
        """This index, whose postings these are, in the folder `out` as a shard of the corpus with these statistics."""
        settings = {**self.manifest.settings, SHARED: whole.settings()}
        with building(out, overwrite=True) as folder:
            for name in (PASSAGES, OFFSETS):
                shutil.copyfile(Path(self.path or "", name), folder / name)
            postings.save(folder, settings["k1"], settings["b"], whole)
            self._described(folder, settings, self.manifest.corpus, len(self))
        return BM25.open(out, analyser=self.analyser)


def saved_engine(folder: Path) -> bm25s.BM25:
    """What bm25s saved in a folder, memory-mapped, counting with numpy whatever it was saved with.

    Raises `ValueError` where its files do not fit each other, and what bm25s raises for files that are not its own.
    """
    engine = bm25s.BM25.load(
        folder, mmap=True, show_progress=False, override_params={"backend": "numpy"}
    )
    # plain views of mapped files: numpy's memmap class costs microseconds at every slice
    data, indices, indptr = arrays = [np.asarray(engine.scores[name]) for name in _ARRAYS]
    columns = engine.vocab_dict.values()
    sound = all(np.issubdtype(numbers.dtype, np.integer) for numbers in (indices, indptr))
    sound = sound and len(data) == len(indices) == int(indptr[-1])
    if not (sound and min(columns, default=0) >= 0 and max(columns, default=0) < len(indptr)):
        raise ValueError("its arrays and words do not fit each other")
    engine.scores |= zip(_ARRAYS, arrays, strict=True)
    if (path := folder / FREQUENCIES).is_file():  # of no use to bm25s
        engine.scores["frequencies"] = np.asarray(np.load(path, mmap_mode="r"))
    return engine


# --- rank-bm25 ------------------------------------------------------------------------------------------------------


class RankBM25(Lexical):
    """The second BM25 engine, for comparison. Its folder holds the passages alone; opening it counts them again."""

    kind = "rank-bm25"
    packages = ("rank-bm25", "PyStemmer", "numpy")

    @classmethod
    def _count(
        cls, analysed: AnalysedPassages, settings: Settings, folder: Path | None
    ) -> LuceneOkapi:
        return LuceneOkapi(analysed.terms(), k1=settings["k1"], b=settings["b"])

    def _scores(self, terms: list[str]) -> Scores:
        scores: Scores = self._engine.scores(terms)
        return scores

    def _level(self, scores: Scores) -> Scores:
        factor: float = self._engine.k1 + 1
        return scores / factor

    def _write_update(
        self, folder: Path, new: UpdatedPassages, progress: ProgressCallback
    ) -> Settings:
        if not any(self.analyser(passage.line) for passage in new.passages):
            raise EmptyData("not one word would be left to index")
        return self.manifest.settings


class LuceneOkapi(BM25Okapi):
    """`BM25Okapi` with Lucene's idf, which is above 0 for every word; its own is negative for common words."""

    def _calc_idf(self, nd: dict[str, int]) -> None:
        for word, passages in nd.items():
            self.idf[word] = math.log(
                1 + (self.corpus_size - passages + 0.5) / (passages + 0.5)
            )

    def scores(self, terms: list[str]) -> Scores:
        """One score a passage."""
        # b = 1 and a passage without a word: 0 / 0, which means no match
        with np.errstate(invalid="ignore"):
            scores: Scores = np.nan_to_num(self.get_scores(terms))
        return scores

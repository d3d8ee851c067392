"""BM25 (Robertson & Zaragoza 2009) with Lucene's idf, over passages as one line, `Title | text`:
score(q, p) = sum over the terms t of q of  ln(1 + (N - df + 0.5) / (df + 0.5)) * tf / (tf + k1 (1 - b + b |p| / avg)).

A query gets the passages that share a term with it, at most k, best first. A term counts as often as the query repeats
it; terms that no passage has count nothing. Two engines differ in who counts:

- `BM25`, the one to use, over bm25s (Lù 2024, https://arxiv.org/abs/2407.03618): every term's score in every passage is
  counted at building time into a sparse matrix, and a query adds up a few of its columns. Memory-mapped, in 64 bits.
- `RankBM25`, the reference, over rank-bm25's `BM25Okapi`: plain dictionaries, slow, easy to follow, for small corpora.
  Its scores are higher by the constant factor (k1 + 1).
"""

from __future__ import annotations

import math
import os
import shutil
import warnings
from abc import abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import bm25s
import numpy as np
from rank_bm25 import BM25Okapi

from blendfilter.errors import BadArgument, BadData, EmptyData, MissingFile
from blendfilter.files import path_of
from blendfilter.records import Passage
from blendfilter.retrieval.analyser import Analyser
from blendfilter.retrieval.base import ProgressCallback, Scores, best, fingerprint_of, silent
from blendfilter.retrieval.corpus import Corpus, corpus_hash
from blendfilter.retrieval.manifest import (
    FORMAT,
    Manifest,
    building,
    discard,
    index_cache,
    opening,
    stamp,
    versions_of,
    write_manifest,
)
from blendfilter.retrieval.stored import (
    OFFSETS,
    PASSAGES,
    Stored,
    StoredPassages,
    UpdatedPassages,
    corpus_name,
    gather,
    manifest_of,
    opened_whole,
)

Integers = np.typing.NDArray[np.integer[Any]]

COUNTING = "counting words"
SHARED = "statistics"
"""The setting of a shard whose scores count the words of all shards."""
_OLD_ANALYSER = (
    "an index of an earlier version: it answers as before, and takes a word in two Unicode forms for two words, and a "
    "vowel sign for a word's end; build it again to mend that (its fingerprint changes)"
)
_OFTEN = 1000

Numbers = np.typing.NDArray[np.int64]
_BLOCK = 2**13  # documents counted at a time


class Documents:
    """The analysed corpus as flat arrays, four bytes a term: each document a list of term numbers."""

    def __init__(self) -> None:
        self.vocabulary: dict[str, int] = {}
        self._terms = array("i")
        self._ends = array("q", [0])

    def add(self, terms: Iterable[str]) -> None:
        """Append one document."""
        numbers = self.vocabulary
        self._terms.extend(numbers.setdefault(term, len(numbers)) for term in terms)
        self._ends.append(len(self._terms))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[list[int]]:
        for start, end in zip(self._ends, self._ends[1:], strict=False):
            yield self._terms[start:end].tolist()

    def words(self) -> Iterator[list[str]]:
        """Each document as its terms, in order."""
        terms = list(self.vocabulary)
        for numbers in self:
            yield [terms[number] for number in numbers]

    def lengths(self) -> Numbers:
        """How many terms each document has."""
        ends = np.frombuffer(self._ends, dtype=np.int64)
        lengths: Numbers = ends[1:] - ends[:-1]
        return lengths

    def counts(self) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
        """(terms, documents, how often), ordered by term, then by document, for a block of documents at a time."""
        terms, ends = (
            np.frombuffer(self._terms, dtype=np.int32),
            np.frombuffer(self._ends, dtype=np.int64),
        )
        for first in range(0, len(self), _BLOCK):
            block = ends[first : first + _BLOCK + 1]
            owners = np.repeat(np.arange(len(block) - 1), np.diff(block))
            pairs, often = np.unique(
                terms[block[0] : block[-1]].astype(np.int64) * _BLOCK + owners, return_counts=True
            )
            yield pairs // _BLOCK, pairs % _BLOCK + first, often


class LexicalSearch(Stored):
    """An index whose passages get a score for their words. It only reads, so threads share it."""

    def __init__(
        self,
        manifest: Manifest,
        passages: Sequence[Passage],
        scorer: LexicalScorer,
        path: Path | None,
        analyser: Analyser,
    ) -> None:
        super().__init__(manifest, passages, path)
        self.analyser = analyser
        self._scorer = scorer

    def as_cheap(self, k: int) -> int:
        """Twice as deep: every passage is scored anyway."""
        return 2 * k

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages a query; only those that share a term with it, so there may be fewer, or none.

        Equal scores keep corpus order, at the k-th place too.
        """
        self._warnings.check_k(k)
        found: list[list[Passage]] = []
        for query in queries:
            terms = self.analyser(query)
            scores = self._scorer.scores(terms) if terms else np.zeros(0)
            # compared by the formula alone, so that both engines see the same ties
            level = scores if self._scorer.factor == 1 else scores / self._scorer.factor
            found.append([self.passages[at].scored(float(scores[at])) for at in best(level, k)])
        return found


class Lexical(LexicalSearch):
    """A BM25 index: `build` one, `open` one, or let `for_corpus` do either."""

    kind: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]

    @classmethod
    @abstractmethod
    def _score(
        cls, documents: Documents, k1: float, b: float, folder: Path | None
    ) -> LexicalScorer:
        """Count `documents`; with a `folder`, leave there what `_load` wants."""

    @classmethod
    @abstractmethod
    def _load(
        cls, folder: Path, passages: Sequence[Passage], settings: dict[str, Any], analyse: Analyser
    ) -> LexicalScorer:
        """The scorer of an index folder."""

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        out: str | os.PathLike[str] | None = None,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        analyser: Analyser | None = None,
        overwrite: bool = False,
        share: bool = False,
        progress: ProgressCallback = silent,
    ) -> Self:
        """Index `corpus` (whatever `passages_of` takes) into the folder `out`, or in memory without one.

        With `out` the corpus is streamed. The folder appears whole or not at all; one that is there already is
        refused, replaced (`overwrite`), or, where another builder was faster, used instead (`share`).
        Raises `EmptyData`, `BadData` (two passages with one id), `BadArgument`.
        """
        settings = settings_of(k1, b, analyser)
        analyse, documents = Analyser.from_settings(settings["analyser"]), Documents()
        with (
            building(out, overwrite=overwrite, share=share)
            if out is not None
            else nullcontext() as folder
        ):
            gathered = gather(
                corpus, folder, progress, lambda passage: documents.add(analyse(passage.line))
            )
            if not documents.vocabulary:
                name = corpus_name(gathered.corpus.name)
                raise EmptyData(
                    f"{name} has {len(gathered.passages)} passages and not one word to index in them"
                )
            manifest = Manifest(
                kind=cls.kind,
                fingerprint=fingerprint_of(cls.kind, gathered.corpus.sha256, settings),
                passages=len(gathered.passages),
                corpus=gathered.corpus,
                settings=settings,
                versions=versions_of(*cls.packages),
            )
            scorer = cls._score(documents, settings["k1"], settings["b"], folder)
            if folder:
                write_manifest(folder, manifest)
        if out is not None:
            return cls.open(out, analyser=analyser)
        return cls(manifest, gathered.passages, scorer, None, analyse)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, analyser: Analyser | None = None) -> Self:
        """The index in `folder`, its arrays and passages memory-mapped. Raises as `manifest_of` does.

        `analyser` is the one that it was built with, where that finds words by another pattern than `PATTERNS`.
        """
        return opened_whole(folder, lambda: cls._open(path_of(folder), analyser))

    @classmethod
    def _open(cls, path: Path, analyser: Analyser | None) -> Self:
        manifest = manifest_of(path, cls.kind, _fingerprint)
        settings = manifest.settings
        with opening(path):
            analyse, passages = (
                Analyser.of_index(settings["analyser"], path, analyser),
                StoredPassages(path),
            )
            if analyse.form is None:
                warnings.warn(
                    _OLD_ANALYSER, stacklevel=2
                )  # names no folder, so that it comes once for many shards
            return cls(
                manifest, passages, cls._load(path, passages, settings, analyse), path, analyse
            )

    def _open_again(self, path: Path) -> Self:
        return self.open(path, analyser=self.analyser)

    def _fingerprint_of(self, manifest: Manifest, folder: Path) -> str:
        return _fingerprint(manifest)

    def _write_update(
        self, folder: Path, new: UpdatedPassages, progress: ProgressCallback
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        if not self._update_counts(folder, new, progress):
            documents, settings = Documents(), self.manifest.settings
            for at, passage in enumerate(new.passages):
                documents.add(self.analyser(passage.line))
                if at % _OFTEN == 0:
                    progress(COUNTING, at, len(new.passages))
            progress(COUNTING, len(new.passages), len(new.passages))
            if not documents.vocabulary:
                raise EmptyData("not one word would be left to index")
            self._score(documents, settings["k1"], settings["b"], folder)
        return self.manifest.settings, self.packages

    def _update_counts(
        self, folder: Path, new: UpdatedPassages, progress: ProgressCallback
    ) -> bool:
        """Leave in `folder` what `_load` wants, without analysing old passages again; False where that cannot be."""
        return False

    @classmethod
    def for_corpus(
        cls,
        path: str | os.PathLike[str],
        cache_dir: str | os.PathLike[str] | None = None,
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
            return cls._kept(path_of(cache_dir or index_cache()) / name, path, analyser, build)
        except (OSError, MissingFile) as error:
            why = str(error)
            if isinstance(error, OSError):
                why = (
                    f"{error.filename}: {error.strerror}; name another folder in BLENDFILTER_CACHE"
                )
            warnings.warn(f"the index of {path} is not kept: {why}", stacklevel=2)
        return build()

    @classmethod
    def _kept(
        cls,
        folder: Path,
        path: str | os.PathLike[str],
        analyser: Analyser | None,
        build: Callable[..., Self],
    ) -> Self:
        """The index in `folder`, built where it is missing or damaged."""
        if before := stamp(folder):
            try:
                found = cls.open(folder, analyser=analyser)
                if found.manifest.built_passages is None:
                    return found
                raise BadData(
                    f"the index at {folder} was updated and is not that of {path} any more: build it again"
                )
            except BadData as error:
                warnings.warn(f"{error} (doing so now)", stacklevel=3)
                discard(folder, before)
        return build(folder, share=True)


def _fingerprint(manifest: Manifest) -> str:
    return fingerprint_of(manifest.kind, manifest.corpus.sha256, manifest.settings)


def settings_of(k1: float, b: float, analyser: Analyser | None) -> dict[str, Any]:
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

    kind: ClassVar[str] = "bm25"
    packages: ClassVar[tuple[str, ...]] = ("bm25s", "PyStemmer", "numpy")

    @classmethod
    def _score(cls, documents: Documents, k1: float, b: float, folder: Path | None) -> SparseScorer:
        engine = bm25s.BM25(k1=k1, b=b, method="lucene", dtype="float64", backend="numpy")
        engine.scores = columns(documents, k1, b)
        engine.vocab_dict, engine.nonoccurrence_array = (
            documents.vocabulary,
            None,
        )  # which Lucene's formula has not
        if folder:
            engine.save(folder, show_progress=False)
        return SparseScorer(engine, folder)

    @classmethod
    def _load(
        cls, folder: Path, passages: Sequence[Passage], settings: dict[str, Any], analyse: Analyser
    ) -> SparseScorer:
        engine = load_bm25s(folder)
        if engine.scores["num_docs"] != len(passages):
            raise ValueError(f"it counts {engine.scores['num_docs']!r:.40} passages")
        return SparseScorer(engine, folder)

    def _update_counts(
        self, folder: Path, new: UpdatedPassages, progress: ProgressCallback
    ) -> bool:
        if SHARED in self.manifest.settings:
            raise BadArgument(
                f"the index at {self.path} is a shard, whose scores count the words of all shards: update the indexes "
                "that were joined, and join them again"
            )
        if (old := self._postings()) is None:
            return False
        added = Documents()
        added.vocabulary |= self._words
        for at, passage in enumerate(new.new):
            added.add(self.analyser(passage.line))
            if at % _OFTEN == 0:
                progress(COUNTING, at, new.added)
        progress(COUNTING, new.added, new.added)
        postings = old.updated(new.kept, added)
        if not len(postings.rows):
            return False
        alive = np.diff(postings.starts) > 0
        numbers = np.cumsum(alive) - 1  # a term that no passage has any more goes
        starts = np.concatenate([[0], postings.starts[1:][alive]])
        words = {term: int(numbers[at]) for term, at in added.vocabulary.items() if alive[at]}
        self._save(folder, postings._replace(starts=starts), words)
        return True

    def _postings(self) -> Postings | None:
        """How often each term occurs in which passage; None where the scores do not say."""
        if not (
            isinstance(self._scorer, SparseScorer) and isinstance(self.passages, StoredPassages)
        ):
            return None
        longest, settings = int(np.diff(self.passages.offsets).argmax()), self.manifest.settings
        length = len(self.analyser(self.passages[longest].line))
        return Postings.of(self._scorer.engine, settings["k1"], settings["b"], longest, length)

    @property
    def _words(self) -> dict[str, int]:
        """The column of each term."""
        assert isinstance(self._scorer, SparseScorer)
        return dict(self._scorer.engine.vocab_dict)

    def _save(
        self,
        folder: Path,
        postings: Postings,
        words: dict[str, int],
        statistics: Statistics | None = None,
    ) -> None:
        """Leave in `folder` what `_load` wants of these postings, scored by `statistics` of more passages if given."""
        k1, b = self.manifest.settings["k1"], self.manifest.settings["b"]
        engine = bm25s.BM25(k1=k1, b=b, method="lucene", dtype="float64", backend="numpy")
        engine.nonoccurrence_array = None  # what its own building leaves of this method
        if statistics is None:
            scores = postings.scores(k1, b)
        else:
            having = np.fromiter((statistics.having[word] for word in words), np.int64, len(words))
            scores = postings.scores(k1, b, having[np.argsort([*words.values()])], statistics)
        engine.scores = {
            "data": scores,
            "indices": postings.rows,
            "indptr": postings.starts,
            "num_docs": len(postings.lengths),
        }
        engine.vocab_dict = words
        engine.save(folder, show_progress=False)

    def add_scores(self, terms: list[str], scores: Scores) -> None:
        """Each passage's score for these terms, into `scores`, which are 0. Raises: BadData for damaged postings."""
        assert isinstance(self._scorer, SparseScorer)
        self._scorer.add_to(scores, terms)

    def statistics(self) -> Statistics:
        """How many passages have each term, and how many terms there are. Raises: BadArgument where that is unknown."""
        joined = SHARED in self.manifest.settings
        if joined or (postings := self._postings()) is None:
            why = "was joined with others before" if joined else "does not say what it counted"
            raise BadArgument(
                f"{self!r} {why}: name indexes as `blendfilter index` makes them of passages"
            )
        counts = np.diff(postings.starts).tolist()
        having = Counter({word: counts[at] for word, at in self._words.items()})
        return Statistics(len(self), int(postings.lengths.sum()), having)

    def rescored(self, statistics: Statistics, out: Path) -> BM25:
        """This index in the folder `out`, or in its own, as a shard of the corpus whose `statistics` these are."""
        postings, old = self._postings(), self.path
        if postings is None or old is None:
            raise BadArgument(f"{self!r} does not say what it counted: index its passages again")
        with building(out, overwrite=True) as folder:
            for name in (PASSAGES, OFFSETS):
                shutil.copyfile(old / name, folder / name)
            self._save(folder, postings, self._words, statistics)
            settings = {**self.manifest.settings, SHARED: statistics.settings()}
            manifest = self.manifest.model_copy(
                update={"settings": settings, "versions": versions_of(*self.packages)}
            )
            write_manifest(
                folder, manifest.model_copy(update={"fingerprint": _fingerprint(manifest)})
            )
        return BM25.open(out, analyser=self.analyser)


class Statistics(NamedTuple):
    """What BM25 counts over a whole corpus: its passages, the terms in them, and how many passages have each term."""

    passages: int
    terms: int
    having: Counter[str]

    @classmethod
    def of(cls, parts: Iterable[Statistics]) -> Statistics:
        """Those of several parts together."""
        passages, terms, having = 0, 0, Counter[str]()
        for part in parts:
            passages, terms = passages + part.passages, terms + part.terms
            having.update(part.having)
        return cls(passages, terms, having)

    def settings(self) -> dict[str, Any]:
        """As a shard's setting, by which shards of one corpus know each other."""
        return {
            "passages": self.passages,
            "terms": self.terms,
            "digest": fingerprint_of(sorted(self.having.items())),
        }


class Postings(NamedTuple):
    """How often each term occurs in which passage, as columns of a sparse matrix, and how many terms a passage has.

    bm25s keeps scores alone, and every one of them changes with a passage that comes or goes. But a passage's scores,
    by their terms' idf, are tf / (K + tf), with K = k1 (1 - b + b |p| / avg): so tf / K is known for each of its terms,
    their sum is |p| / K, and |p| follows, and with it K and every tf.
    """

    starts: Integers
    """(terms + 1): where each term's column begins, and the last one ends."""
    rows: Integers
    frequencies: Scores
    lengths: Integers

    @classmethod
    def of(
        cls, engine: bm25s.BM25, k1: float, b: float, known: int, length: int
    ) -> Postings | None:
        """Those of a bm25s matrix, by one passage's number and its number of terms; None where they cannot be known.

        What is computed is counted again, and must give the very scores, to the last bit.
        """
        data, rows, starts = (engine.scores[name] for name in ("data", "indices", "indptr"))
        passages = int(engine.scores["num_docs"])
        with np.errstate(
            all="ignore"
        ):  # b = 1 makes all lengths as likely; such scores are not the ones below
            by_idf = data / np.repeat(_idf(np.diff(starts), passages), np.diff(starts))
            by_k = by_idf / (1 - by_idf)
            sums = np.bincount(rows, weights=by_k, minlength=passages)
            total = (
                np.rint(passages * b * length / (length / sums[known] / k1 - (1 - b))) if b else 0.0
            )
            average = total / passages if b else 1.0
            lengths = np.rint(k1 * (1 - b) * sums / (1 - k1 * b * sums / average))
            frequencies = np.rint(by_k * (k1 * ((1 - b) + b * lengths / average))[rows])
            if not (np.isfinite(lengths).all() and np.isfinite(frequencies).all()):
                return None
            found = cls(starts, rows, frequencies, lengths.astype(np.int64))
            return found if np.array_equal(found.scores(k1, b), data) else None

    def scores(
        self,
        k1: float,
        b: float,
        having: Integers | None = None,
        statistics: Statistics | None = None,
    ) -> Scores:
        """BM25's, in the order of the postings, by bm25s' own steps.

        With the `statistics` of a corpus that these passages are a part of, `having` says how many of its passages
        have each term.
        """
        counts, passages, terms = np.diff(self.starts), len(self.lengths), self.lengths.sum()
        if statistics is not None:
            passages, terms = statistics.passages, statistics.terms
        k = k1 * ((1 - b) + b * self.lengths / (terms / passages))
        scores: Scores = self.frequencies / (k[self.rows] + self.frequencies)
        scores *= np.repeat(_idf(counts if having is None else having, passages), counts)
        return scores

    def updated(self, kept: Integers, added: Documents) -> Postings:
        """Those of the passages at `kept`, and behind them of those `added`, whose first terms are these columns."""
        terms, gone = len(added.vocabulary), -1
        numbers = np.full(len(self.lengths), gone, dtype=self.rows.dtype)
        numbers[kept] = np.arange(len(kept))
        rows, columns = (
            numbers[self.rows],
            np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts)),
        )
        stays = rows != gone
        columns, rows, frequencies = columns[stays], rows[stays], self.frequencies[stays]
        counted = [Counter(document) for document in added]
        sizes = np.fromiter(map(len, counted), np.int64, len(counted))
        more = np.fromiter(chain.from_iterable(counted), np.int64, int(sizes.sum()))
        order = np.argsort(more, kind="stable")
        more_frequencies = np.fromiter(
            chain.from_iterable(map(Counter.values, counted)), np.float64, len(more)
        )
        more_rows = np.repeat(np.arange(len(kept), len(kept) + len(counted)), sizes)
        lengths = np.fromiter(map(Counter.total, counted), np.int64, len(counted))
        # a column's old postings, then its new ones, at once where they belong
        olds, news = (np.bincount(numbers, minlength=terms) for numbers in (columns, more))
        starts = np.concatenate([[0], np.cumsum(olds + news)])
        at_old = np.arange(len(columns)) + (np.cumsum(news) - news)[columns]
        at_new = np.arange(len(more)) + np.cumsum(olds)[more[order]]
        merged_rows, merged = np.empty(starts[-1], self.rows.dtype), np.empty(starts[-1])
        merged_rows[at_old], merged_rows[at_new] = rows, more_rows[order]
        merged[at_old], merged[at_new] = frequencies, more_frequencies[order]
        return Postings(starts, merged_rows, merged, np.concatenate([self.lengths[kept], lengths]))


def _idf(counts: Integers, passages: int) -> Scores:
    """Lucene's, as bm25s counts it: by Python's logarithm, which NumPy's differs from in the last bit."""
    different, which = np.unique(counts, return_inverse=True)
    found = [math.log(1 + (passages - count + 0.5) / (count + 0.5)) for count in different.tolist()]
    idf: Scores = np.array(found, dtype=np.float64)[which]
    return idf


def columns(documents: Documents, k1: float, b: float) -> dict[str, Any]:
    """bm25s' matrix, a column a term: what its `build_index_from_ids` makes, to the bit.

    That one sorts all postings of the corpus at once, which takes 2 kB a passage; here they go block by block to where
    they belong, 12 bytes each.
    """
    lengths, size = documents.lengths(), len(documents.vocabulary)
    having = np.zeros(size, dtype=np.int64)  # documents that have a term
    for terms, _, _ in documents.counts():
        having += np.bincount(terms, minlength=size)
    starts = np.concatenate([[0], np.cumsum(having)])
    total, free = len(documents), starts[:-1].copy()
    distinct, which = np.unique(having, return_inverse=True)
    idf = np.array(
        [math.log(1 + (total - many + 0.5) / (many + 0.5)) for many in distinct.tolist()]
    )[which]
    norms = k1 * ((1 - b) + b * lengths / lengths.mean())
    data, indices = np.empty(starts[-1], dtype=np.float64), np.empty(starts[-1], dtype=np.int32)
    for terms, owners, often in documents.counts():
        many = np.bincount(terms, minlength=size)
        within = np.arange(len(terms)) - np.repeat(np.cumsum(many) - many, many)
        places = free[terms] + within
        data[places] = idf[terms] * (often / (norms[owners] + often))
        indices[places] = owners
        free += many
    return {"data": data, "indices": indices, "indptr": starts, "num_docs": total}


class SparseScorer:
    """bm25s' matrix at work."""

    factor = 1.0

    def __init__(self, engine: bm25s.BM25, folder: Path | None = None) -> None:
        # plain views of mapped files: numpy's memmap class costs microseconds at every slice
        engine.scores |= {
            name: np.asarray(engine.scores[name]) for name in ("data", "indices", "indptr")
        }
        self.engine, self._folder = engine, folder

    def scores(self, terms: list[str]) -> Scores:
        """One score a passage. Raises `BadData` for damaged postings."""
        try:
            scores: Scores = self.engine.get_scores_from_ids(self.engine.get_tokens_ids(terms))
        except (IndexError, ValueError, TypeError) as error:  # a passage's number that none has
            raise BadData(
                f"the index at {self._folder} is damaged ({str(error)[:120]}): build it again"
            ) from error
        return scores

    def add_to(self, scores: Scores, terms: list[str]) -> None:
        """The same, added up in `scores`, which are 0 (a part of what several shards share). Raises as `scores`."""
        data, rows, starts = (self.engine.scores[name] for name in ("data", "indices", "indptr"))
        columns = [slice(starts[at], starts[at + 1]) for at in self.engine.get_tokens_ids(terms)]
        try:
            if columns:  # one addition after the other, in the order of the terms, as bm25s adds
                np.add.at(
                    scores,
                    np.concatenate([rows[each] for each in columns]),
                    np.concatenate([data[each] for each in columns]),
                )
        except (IndexError, ValueError, TypeError) as error:
            raise BadData(
                f"the index at {self._folder} is damaged ({str(error)[:120]}): build it again"
            ) from error


def load_bm25s(folder: Path) -> bm25s.BM25:
    """The object that bm25s saved in a folder, memory-mapped, counting with numpy whatever it was saved with.

    Raises `ValueError` where its files do not fit each other, and what bm25s raises of files that are not its own.
    """
    engine = bm25s.BM25.load(
        folder, mmap=True, show_progress=False, override_params={"backend": "numpy"}
    )
    data, indices, indptr = (engine.scores[name] for name in ("data", "indices", "indptr"))
    words = engine.vocab_dict.values()
    sound = all(np.issubdtype(numbers.dtype, np.integer) for numbers in (indices, indptr))
    sound = sound and len(data) == len(indices) == int(indptr[-1])
    if not (sound and min(words, default=0) >= 0 and max(words, default=0) < len(indptr)):
        raise ValueError("its arrays and words do not fit each other")
    return engine


# --- rank-bm25 ------------------------------------------------------------------------------------------------------


class RankBM25(Lexical):
    """The second BM25 engine, for comparison. Its folder holds the passages alone; opening it counts them again."""

    kind: ClassVar[str] = "rank-bm25"
    packages: ClassVar[tuple[str, ...]] = ("rank-bm25", "PyStemmer", "numpy")

    @classmethod
    def _score(cls, documents: Documents, k1: float, b: float, folder: Path | None) -> OkapiScorer:
        return OkapiScorer(LuceneOkapi(documents.words(), k1=k1, b=b))

    @classmethod
    def _load(
        cls, folder: Path, passages: Sequence[Passage], settings: dict[str, Any], analyse: Analyser
    ) -> OkapiScorer:
        lists = (analyse(passage.line) for passage in passages)
        return OkapiScorer(LuceneOkapi(lists, k1=settings["k1"], b=settings["b"]))


class LuceneOkapi(BM25Okapi):
    """`BM25Okapi` with Lucene's idf, which is above 0 for every word; its own is negative for common words."""

    def _calc_idf(self, nd: dict[str, int]) -> None:
        for word, passages in nd.items():
            self.idf[word] = math.log(1 + (self.corpus_size - passages + 0.5) / (passages + 0.5))


class OkapiScorer:
    """rank-bm25's counts at work."""

    def __init__(self, engine: LuceneOkapi) -> None:
        self._engine = engine
        self.factor: float = engine.k1 + 1

    def scores(self, terms: list[str]) -> Scores:
        """One score a passage."""
        with np.errstate(
            invalid="ignore"
        ):  # b = 1 and a passage without a word: 0 / 0, which means no match
            scores: Scores = np.nan_to_num(self._engine.get_scores(terms))
        return scores


LexicalScorer = SparseScorer | OkapiScorer

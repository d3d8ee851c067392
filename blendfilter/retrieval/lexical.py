"""What the two BM25 engines share: how an index is built, kept, opened and searched; they differ in who counts.

BM25 (Robertson & Zaragoza 2009) with Lucene's idf, over passages as one line, `Title | text`:
score(q, p) = sum over the terms t of q of  ln(1 + (N - df + 0.5) / (df + 0.5)) * tf / (tf + k1 (1 - b + b |p| / avg)).

In: passages, then queries. Out: for each query the passages that share a term with it, at most k, best first.
A term counts as often as the query repeats it; terms that no passage has count nothing.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from blendfilter.errors import BadArgument, EmptyData
from blendfilter.records import Passage
from blendfilter.retrieval.analyser import Analyser
from blendfilter.retrieval.base import fingerprint_of
from blendfilter.retrieval.cache import cached_folder, open_or_build
from blendfilter.retrieval.manifest import CorpusInfo, Manifest, building, opening, versions_of, write_manifest
from blendfilter.retrieval.passages import StoredPassages
from blendfilter.retrieval.progress import Progress, silent
from blendfilter.retrieval.ranking import Scores, best
from blendfilter.retrieval.stored import Corpus, Stored, corpus_name, gather, manifest_of


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


class Scorer(Protocol):
    """An engine at work. `factor` is the constant by which its scores exceed the formula's."""

    factor: float

    def scores(self, terms: list[str]) -> Scores:
        """One score a passage, in corpus order."""


class Lexical(Stored):
    """A BM25 index: `build` one, `open` one, or let `for_corpus` do either."""

    kind: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]

    def __init__(
        self, manifest: Manifest, passages: Sequence[Passage], scorer: Scorer, path: Path | None, analyser: Analyser
    ) -> None:
        super().__init__(manifest, passages, path)
        self.analyser = analyser
        self._scorer = scorer

    @classmethod
    @abstractmethod
    def _score(cls, documents: Documents, k1: float, b: float, folder: Path | None) -> Scorer:
        """Count `documents`; with a `folder`, leave there what `_load` wants."""

    @classmethod
    @abstractmethod
    def _load(cls, folder: Path, passages: Sequence[Passage], settings: dict[str, Any], analyse: Analyser) -> Scorer:
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
        progress: Progress = silent,
    ) -> Self:
        """Index `corpus` (a file, or passages) into the folder `out`, or in memory without one.

        With `out` the corpus is streamed: passages go to the folder one by one and are read from there afterwards.
        The folder appears whole or not at all; one that is there already is refused, replaced (`overwrite`), or, where
        another builder was faster, used instead (`share`). `progress` is told what is done so far.
        Raises `EmptyData`, `BadData` (two passages with one id), `BadArgument`.
        """
        settings = settings_of(k1, b, analyser)
        with building(out, overwrite=overwrite, share=share) if out is not None else nullcontext() as folder:
            index = cls._build(corpus, settings, folder, progress)
        return index if out is None else cls.open(out, analyser=analyser)

    @classmethod
    def _build(cls, corpus: Corpus, settings: dict[str, Any], folder: Path | None, progress: Progress) -> Self:
        analyse, documents = Analyser.from_settings(settings["analyser"]), Documents()
        gathered = gather(corpus, folder, progress, lambda passage: documents.add(analyse(passage.line)))
        if not documents.vocabulary:
            raise EmptyData(
                f"{corpus_name(gathered.corpus.name)} has {len(documents)} passages and not one word to index in them"
            )
        manifest = Manifest(
            kind=cls.kind,
            fingerprint=_fingerprint(cls.kind, gathered.corpus, settings),
            passages=len(gathered.passages),
            corpus=gathered.corpus,
            settings=settings,
            versions=versions_of(*cls.packages),
        )
        scorer = cls._score(documents, settings["k1"], settings["b"], folder)
        written = write_manifest(folder, manifest) if folder else manifest
        return cls(written, gathered.passages, scorer, folder, analyse)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, analyser: Analyser | None = None) -> Self:
        """The index in `folder`, its arrays and passages memory-mapped. Raises as `manifest_of` does.

        `analyser` is the one that it was built with, where that finds words by another pattern than `PATTERNS`.
        """
        manifest = manifest_of(folder, cls.kind, lambda made: _fingerprint(made.kind, made.corpus, made.settings))
        settings, path = manifest.settings, Path(folder)
        with opening(path):
            analyse, passages = Analyser.of_index(settings["analyser"], path, analyser), StoredPassages(path)
            return cls(manifest, passages, cls._load(path, passages, settings, analyse), path, analyse)

    @classmethod
    def for_corpus(
        cls,
        path: str | os.PathLike[str],
        cache_dir: str | os.PathLike[str] | None = None,
        *,
        k1: float = 0.9,
        b: float = 0.4,
        analyser: Analyser | None = None,
        progress: Progress = silent,
    ) -> Self:
        """The index of a corpus file, built the first time and used again while the file's content is the same.

        It is kept under `cache_dir`, by default `$BLENDFILTER_CACHE/indexes` or `~/.cache/blendfilter/indexes`.
        """
        folder = cached_folder(cls.kind, path, settings_of(k1, b, analyser), cache_dir)
        return open_or_build(
            folder,
            lambda place: cls.open(place, analyser=analyser),
            lambda overwrite: cls.build(
                path, folder, k1=k1, b=b, analyser=analyser, overwrite=overwrite, share=True, progress=progress
            ),
        )

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages a query; only those that share a term with it, so there may be fewer, or none.

        Equal scores keep corpus order, at the k-th place too. A `k` above the number of passages warns once.
        """
        self._short.check(k)
        return [self._search(query, k) for query in queries]

    def _search(self, query: str, k: int) -> list[Passage]:
        terms = self.analyser(query)
        if not terms:
            return []
        scores = self._scorer.scores(terms)
        return [self.passages[at].scored(float(scores[at])) for at in best(self._level(scores), k)]

    def _level(self, scores: Scores) -> Scores:
        """Scores by the formula alone, so that both engines see the same ties."""
        return scores if self._scorer.factor == 1 else scores / self._scorer.factor


def _fingerprint(kind: str, corpus: CorpusInfo, settings: dict[str, Any]) -> str:
    return fingerprint_of(kind, corpus.sha256, settings)


def settings_of(k1: float, b: float, analyser: Analyser | None) -> dict[str, Any]:
    """An index's settings, for its manifest. Raises `BadArgument` unless k1 > 0 and 0 <= b <= 1."""
    if not 0 < k1 < float("inf"):
        raise BadArgument(f"BM25's k1 must be above 0, got {k1} (usual: 0.9 to 1.5)")
    if not 0 <= b <= 1:
        raise BadArgument(f"BM25's b must lie between 0 and 1, got {b} (usual: 0.4 to 0.75)")
    return {"k1": float(k1), "b": float(b), "method": "lucene", "analyser": (analyser or Analyser()).settings()}

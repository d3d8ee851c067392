"""BM25 over bm25s (Lù 2024, https://arxiv.org/abs/2407.03618): every term's score in every passage is counted once, at
building time, into a sparse matrix; a query adds up a few of its columns. Memory-mapped, for millions of passages.

In: passages, then queries. Out: as `Lexical`. Scores are kept in 64 bits, so that no rounding orders passages.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import bm25s
import numpy as np

from blendfilter.errors import BadData
from blendfilter.records import Passage
from blendfilter.retrieval.analyser import Analyser
from blendfilter.retrieval.lexical import Documents, Lexical
from blendfilter.retrieval.passages import check_array
from blendfilter.retrieval.ranking import Scores


class BM25(Lexical):
    """The BM25 index to use. `BM25.build("corpus.jsonl.gz", "indexes/mine")`, then `open_index("indexes/mine")`.

    >>> index = BM25.build([Passage("1", "Ormskerry", "A harbour town."), Passage("2", "Fell", "A hill.")])
    >>> [passage.title for passage in index("Which town has harbours?", k=2)]
    ['Ormskerry']
    """

    kind: ClassVar[str] = "bm25"
    packages: ClassVar[tuple[str, ...]] = ("bm25s", "PyStemmer", "numpy")

    @classmethod
    def _score(cls, documents: Documents, k1: float, b: float, folder: Path | None) -> SparseScorer:
        engine = bm25s.BM25(k1=k1, b=b, method="lucene", dtype="float64", backend="numpy")
        numbers = range(len(documents.vocabulary))
        # its own index() wants every document as a list of strings at once; this is the public step below it
        engine.scores = engine.build_index_from_ids(numbers, documents, show_progress=False)
        engine.vocab_dict = documents.vocabulary
        if folder:
            engine.save(folder, show_progress=False)
        return SparseScorer(engine, folder)

    @classmethod
    def _load(
        cls, folder: Path, passages: Sequence[Passage], settings: dict[str, Any], analyse: Analyser
    ) -> SparseScorer:
        engine = loaded(folder)
        if engine.scores["num_docs"] != len(passages):
            raise ValueError(f"it counts {engine.scores['num_docs']!r:.40} passages")
        return SparseScorer(engine, folder)


class SparseScorer:
    """bm25s' matrix at work. It only reads, so threads share it."""

    factor = 1.0

    def __init__(self, engine: bm25s.BM25, folder: Path | None = None) -> None:
        # plain views of mapped files: numpy's memmap class costs microseconds at every slice
        engine.scores |= {name: np.asarray(engine.scores[name]) for name in ("data", "indices", "indptr")}
        self._engine, self._folder = engine, folder

    def scores(self, terms: list[str]) -> Scores:
        """One score a passage; terms outside the vocabulary add nothing. Raises `BadData` for damaged postings."""
        try:
            scores: Scores = self._engine.get_scores_from_ids(self._engine.get_tokens_ids(terms))
        except (IndexError, ValueError, TypeError) as error:  # a passage's number that none has
            raise BadData(f"the index at {self._folder} is damaged ({str(error)[:120]}): build it again") from error
        return scores


def loaded(folder: Path) -> bm25s.BM25:
    """The object that bm25s saved in a folder, memory-mapped, counting with numpy whatever it was saved with.

    Raises `ValueError` where its files do not fit each other, and what bm25s raises of files that are not its own.
    """
    for array in folder.glob("*.index.npy"):
        check_array(array)
    engine = bm25s.BM25.load(folder, mmap=True, show_progress=False, override_params={"backend": "numpy"})
    data, indices, indptr = (engine.scores[name] for name in ("data", "indices", "indptr"))
    words = engine.vocab_dict.values()
    sound = all(np.issubdtype(each.dtype, np.integer) for each in (indices, indptr))
    sound = sound and len(data) == len(indices) == int(indptr[-1])
    if not (sound and min(words, default=0) >= 0 and max(words, default=0) < len(indptr)):
        raise ValueError("its arrays and words do not fit each other")
    return engine

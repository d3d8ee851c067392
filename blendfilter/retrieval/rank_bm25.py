"""BM25 over rank-bm25's `BM25Okapi`: plain dictionaries, slow and easy to follow; the reference BM25 is held against.

It differs from `BM25` by nothing but the constant factor (k1 + 1) in its scores: same analyser, same ties, same idf
(Lucene's; the package's own is negative for common words and then floored). A query visits every passage: it is for
small corpora.

In: passages, then queries. Out: as `Lexical`. Its folder holds the passages alone; opening it counts them again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from rank_bm25 import BM25Okapi

from blendfilter.records import Passage
from blendfilter.retrieval.analyser import Analyser
from blendfilter.retrieval.lexical import Documents, Lexical
from blendfilter.retrieval.ranking import Scores


class LuceneOkapi(BM25Okapi):
    """`BM25Okapi` with Lucene's idf, which is above 0 for every word."""

    def _calc_idf(self, nd: dict[str, int]) -> None:
        for word, passages in nd.items():
            self.idf[word] = math.log(1 + (self.corpus_size - passages + 0.5) / (passages + 0.5))


class RankBM25(Lexical):
    """The second BM25 engine, for comparison.

    >>> index = RankBM25.build([Passage("1", "Ormskerry", "A harbour town."), Passage("2", "Fell", "A hill.")])
    >>> [passage.title for passage in index("Which town has harbours?", k=2)]
    ['Ormskerry']
    """

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


class OkapiScorer:
    """rank-bm25's counts at work. It only reads, so threads share it."""

    def __init__(self, engine: LuceneOkapi) -> None:
        self._engine = engine
        self.factor: float = engine.k1 + 1

    def scores(self, terms: list[str]) -> Scores:
        """One score a passage; terms outside the vocabulary add nothing."""
        with np.errstate(invalid="ignore"):  # b = 1 and a passage without a word: 0 / 0, which means no match
            scores: Scores = np.nan_to_num(self._engine.get_scores(terms))
        return scores

"""The two BM25 engines are one formula: scores equal up to the factor (k1 + 1), the same order, the same ties.

bm25s adds up columns that were counted at building time, rank-bm25 counts while it answers: neither knows the other.
Both run in 64 bits here, so 1e-6 is a loose bound; the tests hold them to 1e-9.
"""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from blendfilter.records import Passage
from blendfilter.retrieval.bm25 import BM25, RankBM25

words = st.lists(st.sampled_from(["red", "hen", "fox", "dog", "egg"]), max_size=7).map(" ".join)


def agree(one: list[list[Passage]], other: list[list[Passage]], factor: float) -> None:
    for ours, theirs in zip(one, other, strict=True):
        assert [p.id for p in ours] == [p.id for p in theirs]
        assert [p.score for p in theirs] == pytest.approx([(p.score or 0) * factor for p in ours], rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(words, min_size=1, max_size=12),
    st.lists(words.filter(bool), min_size=1, max_size=3),
    st.integers(1, 6),
    st.sampled_from([0.3, 0.9, 1.5]),
    st.sampled_from([0.0, 0.4, 0.75, 1.0]),
)
def test_tiny_corpora_full_of_ties(texts: list[str], queries: list[str], k: int, k1: float, b: float) -> None:
    assume(any(texts))
    corpus = [Passage(str(n), "", text) for n, text in enumerate(texts)]
    k = min(k, len(corpus))
    one, other = BM25.build(corpus, k1=k1, b=b), RankBM25.build(corpus, k1=k1, b=b)
    agree(one.search(queries, k), other.search(queries, k), k1 + 1)


def test_real_passages_and_questions(shared_data: Path, tmp_path: Path) -> None:
    """2,000 passages, 100 questions, and the questions again with five times their length of text before them."""
    with gzip.open(shared_data / "corpus" / "hotpotqa.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in itertools.islice(lines, 2000)]
    corpus = [Passage(row["id"], row["title"], row["text"]) for row in rows]
    with gzip.open(shared_data / "hotpotqa" / "dev.jsonl.gz", "rt", encoding="utf-8") as lines:
        questions = [json.loads(line)["question"] for line in itertools.islice(lines, 100)]
    blended = [f"{corpus[n].text} {question}" for n, question in enumerate(questions[:10])]
    one, other = BM25.build(corpus, tmp_path / "index"), RankBM25.build(corpus)
    agree(one.search(questions + blended, 10), other.search(questions + blended, 10), 1.9)


def test_its_folder_opens_again(tmp_path: Path) -> None:
    corpus = [Passage("1", "Fell", "A hill."), Passage("2", "Ormskerry", "A harbour town."), Passage("3", "", "")]
    built = RankBM25.build(corpus, tmp_path / "index", b=1)
    opened = RankBM25.open(tmp_path / "index")
    assert opened("a town on a hill", 3) == built("a town on a hill", 3)
    assert [p.id for p in opened("a town on a hill", 3)] == ["1", "2"]
    assert opened.fingerprint == built.fingerprint != BM25.build(corpus, b=1).fingerprint
    assert opened("sea", 3) == []

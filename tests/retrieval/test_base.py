"""What every index shares: hits, refusals, ranking, and searches through a journal."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.context import CallNote, setting
from blendfilter.errors import ReplayMiss
from blendfilter.journal import Journal
from blendfilter.records import Passage
from blendfilter.retrieval.base import Hits, Retriever, best, cut_of


class Three(Retriever):
    fingerprint = "0" * 16

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        return [[Passage("1", "", "a hill")] for _ in queries]

    def __len__(self) -> int:
        return 3


def test_a_short_corpus_is_warned_of_once() -> None:
    index = Three()
    with pytest.warns(UserWarning, match="k=4 is more than the corpus holds: at most 3 passages"):
        index.search(["a"], 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        index.search(["a"], 5)
        Three().search(["a"], 3)


few_values = st.sampled_from([0.0, 0.1, 0.25, 0.3, 1.0, 7.5, 1e-9])


@given(st.lists(few_values, min_size=1, max_size=60), st.integers(1, 70))
def test_ties_keep_corpus_order_at_the_kth_place_too(scores: list[float], k: int) -> None:
    expected = sorted((at for at, score in enumerate(scores) if score > 0), key=lambda at: (-scores[at], at))[:k]
    assert best(np.array(scores), k) == expected


@given(st.integers(0, 2**32 - 1), st.integers(1, 20), st.sampled_from([0.0, 0.5, 0.999]), st.integers(2_000, 4_000))
def test_long_arrays_as_short_ones(seed: int, k: int, zeros: float, size: int) -> None:
    """Where groups' maxima give a floor: many ties, few matches, sizes that no group divides."""
    chance = np.random.default_rng(seed)
    scores = chance.integers(1, 40, size) / 8.0
    scores[chance.random(size) < zeros] = 0.0
    expected = sorted((at for at, score in enumerate(scores) if score > 0), key=lambda at: (-scores[at], at))[:k]
    assert best(scores, k) == expected


def test_the_last_bits_of_a_sum_order_nothing() -> None:
    """0.1 + 0.2 + 0.3 is 0.6000000000000001 from the left, 0.6 from the right: one score, the first stays first."""
    assert (0.1 + 0.2) + 0.3 > 0.1 + (0.2 + 0.3)
    assert best(np.array([0.1 + (0.2 + 0.3), (0.1 + 0.2) + 0.3]), 1) == [0]
    assert best(np.array([0.6, 0.6 * (1 + 1e-8)]), 1) == [1]


PASSAGES = {
    "1": Passage("1", "Orm Pier", "Orm Pier opened in 1871."),
    "2": Passage("2", "Skerry", "A rock\nin the sea — naïve 東京."),
    "3": Passage("3", "", "No title."),
}


class Counting(Retriever):
    """Finds the same passages for every query, scored by k, and counts what it was asked."""

    def __init__(self, fingerprint: str = "f" * 16, ids: Sequence[str] = ("1", "2", "3")) -> None:
        self.fingerprint, self.ids = fingerprint, ids
        self.searches: list[tuple[list[str], int]] = []

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        self.searches.append((list(queries), k))
        return [[PASSAGES[name].scored(k - at + len(query) / 8) for at, name in enumerate(self.ids[:k])]
                for query in queries]  # fmt: skip


def test_a_search_is_made_once_and_served_as_it_was(tmp_path: Path) -> None:
    index = Counting()
    with Journal(tmp_path) as journal, setting(journal=journal):
        live = index.search(["orm"], 2)
        served = index.search(["orm"], 2)
    with Journal(tmp_path, "replay") as journal, setting(journal=journal):
        replayed = index.search(["orm"], 2)
    assert live == served == replayed  # ids, texts and scores
    assert replayed == [[PASSAGES["1"].scored(2.375), PASSAGES["2"].scored(1.375)]]
    assert index.searches == [(["orm"], 2)]


def test_each_passage_is_stored_once_and_a_search_holds_ids_and_scores(tmp_path: Path) -> None:
    index = Counting()
    with Journal(tmp_path) as journal, setting(journal=journal):
        for query in ("a", "b", "c"):
            index.search([query], 3)
        records = list(journal.records())
    passages = [record for record in records if record["kind"] == "passage"]
    searches = [record for record in records if record["kind"] == "search"]
    assert [record["id"] for record in passages] == ["1", "2", "3"]
    assert passages[0] == {"key": searches[0]["passages"][0], "kind": "passage", "fingerprint": "f" * 16, "id": "1",
                           "title": "Orm Pier", "text": "Orm Pier opened in 1871."}  # fmt: skip
    assert [record["query"] for record in searches] == ["a", "b", "c"]
    assert searches[0].keys() == {"key", "kind", "fingerprint", "query", "k", "ids", "scores", "passages"}
    assert (searches[0]["ids"], searches[0]["scores"]) == (["1", "2", "3"], [3.125, 2.125, 1.125])


def test_a_batch_asks_only_for_what_is_missing_each_once_and_keeps_its_order(tmp_path: Path) -> None:
    index = Counting()
    with Journal(tmp_path) as journal, setting(journal=journal):
        first = index.search(["b"], 1)
        found = index.search(["a", "b", "ccc", "a"], 1)
    assert index.searches == [(["b"], 1), (["a", "ccc"], 1)]
    assert found[1] == first[0]
    assert found == [Counting().find([query], 1)[0] for query in ("a", "b", "ccc", "a")]


@pytest.mark.parametrize(
    ("index", "query", "k"),
    [(Counting("0" * 16), "orm", 2), (Counting(), "Orm", 2), (Counting(), "orm ", 2), (Counting(), "orm", 3)],
    ids=["fingerprint", "case", "space", "k"],
)
def test_another_fingerprint_query_or_k_is_another_search(tmp_path: Path, index: Counting, query: str, k: int) -> None:
    with Journal(tmp_path) as journal, setting(journal=journal):
        Counting().search(["orm"], 2)
        index.search([query], k)
    assert len(index.searches) == 1


def test_reuse_copies_the_search_and_its_passages(tmp_path: Path) -> None:
    index = Counting()
    with Journal(tmp_path / "old") as journal, setting(journal=journal):
        index.search(["orm", "never asked again"], 2)
    with Journal(tmp_path / "new", reuse=[tmp_path / "old"]) as journal, setting(journal=journal):
        copied = index.search(["orm"], 2)
    with Journal(tmp_path / "new", "replay") as journal, setting(journal=journal):
        assert index.search(["orm"], 2) == copied
        assert sorted(record["kind"] for record in journal.records()) == ["passage", "passage", "search"]
    assert len(index.searches) == 1


def test_a_replay_miss_names_question_index_and_query(tmp_path: Path) -> None:
    index = Counting()
    Journal(tmp_path).close()
    text = rf"question 'q7', stage 'ids' searches index {'f' * 16} for 'when did it open', k=2.*does not hold"
    with Journal(tmp_path, "replay") as journal, setting(journal=journal):
        with setting(question="q7", stage="ids"), pytest.raises(ReplayMiss, match=text):
            index.search(["when did it open"], 2)
        assert len(journal) == 0
    assert not index.searches


def test_a_search_whose_passages_were_cut_off_is_made_again(tmp_path: Path) -> None:
    """Two journals joined by hand, or one cut in front: ids without their texts are no hit."""
    index = Counting()
    with Journal(tmp_path / "a") as journal, setting(journal=journal):
        index.search(["orm"], 1)
        (search_record,) = [record for record in journal.records() if record["kind"] == "search"]
    with Journal(tmp_path / "b") as journal, setting(journal=journal):
        journal.append(search_record)
        assert index.search(["orm"], 1) == index.search(["orm"], 1)
        assert len(index.searches) == 2


class Excerpts(Retriever):
    """A search service: one document, of which each query is shown another passage."""

    fingerprint = "e" * 16

    def __init__(self, score: Any = 1.0) -> None:
        self.score = score

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        found = [
            Passage("doc1", "Doc", f"What it says of {query}.", self.score, {"url": f"http://x/{query}", "page": 3})
            for query in queries
        ]
        return [[passage][:k] for passage in found]


def test_other_excerpts_under_one_id_are_served_as_they_were_found(tmp_path: Path) -> None:
    """Of the second, found by the same query as before, and of the first, which came before the second."""
    index = Excerpts()
    with Journal(tmp_path) as journal, setting(journal=journal):
        live = [index.search([query], 1) for query in ("piers", "mills")]
        served = [index.search([query], 1) for query in ("piers", "mills")]
    with Journal(tmp_path, "replay") as journal, setting(journal=journal):
        replayed = [index.search([query], 1) for query in ("piers", "mills")]
    assert live == served == replayed
    assert [each[0][0].text for each in replayed] == ["What it says of piers.", "What it says of mills."]


class CutsAtThree(Counting):
    """Reads three words of a query."""

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        found = super().find(queries, k)
        return [Hits(hits, cut=len(query.split()) > 3) for hits, query in zip(found, queries, strict=True)]


def noted(index: Retriever, queries: Sequence[str]) -> tuple[list[bool], list[CallNote]]:
    """Which of the hits say that they are of a cut query, and what the search noted."""
    notes: list[CallNote] = []
    with setting(notes=notes, stage="internal"):
        found = index.search(queries, 1)
    return [cut_of(hits) for hits in found], notes


def test_a_cut_query_is_noted_live_served_and_replayed(tmp_path: Path) -> None:
    index, queries = CutsAtThree(), ["orm", "a blended query of many words", "orm pier"]
    expected = ([False, True, False], [CallNote("internal", "", "query_cut")])
    with Journal(tmp_path) as journal, setting(journal=journal):
        assert noted(index, queries) == expected
        assert noted(index, queries) == expected
        records = [record for record in journal.records() if record["kind"] == "search"]
    assert len(index.searches) == 1
    with Journal(tmp_path, "replay") as journal, setting(journal=journal):
        assert noted(index, queries) == expected
    plain = {"key", "kind", "fingerprint", "query", "k", "ids", "scores", "passages"}
    assert [set(record) - plain for record in records] == [set(), {"query_cut"}, set()]
    assert records[1]["query_cut"] is True

"""Passages on disk come back as they were, whatever is in them."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import BadArgument, BadData
from blendfilter.records import Passage
from blendfilter.retrieval.stored import Ledger, StoredPassages, keep

any_text = st.text(st.characters(exclude_categories=()))  # lone surrogates too
records = st.builds(Passage, any_text, any_text, any_text)


@given(st.lists(records, min_size=1, max_size=8))
def test_round_trip(passages: list[Passage]) -> None:
    with TemporaryDirectory() as folder:
        assert list(keep(passages, Ledger(), Path(folder))) == passages
        stored = StoredPassages(Path(folder))
        assert list(stored) == passages
        assert stored[-1] == passages[-1]
        assert stored[1:] == passages[1:]
        assert len(stored) == len(passages)


def test_metadata_is_kept_and_scores_are_not(tmp_path: Path) -> None:
    list(keep([Passage("1", "T", "x", 3.0, {"url": "u", "n": [1]})], Ledger(), tmp_path))
    stored = StoredPassages(tmp_path)[0]
    assert stored.metadata == {"url": "u", "n": [1]}
    assert stored.score is None


def test_positions_outside(tmp_path: Path) -> None:
    list(keep([Passage("1", "T", "x")], Ledger(), tmp_path))
    with pytest.raises(IndexError):
        StoredPassages(tmp_path)[1]


@pytest.mark.parametrize("offsets", [[1, 43], [0, 42], [[0], [43]]])
def test_offsets_that_do_not_fit(tmp_path: Path, offsets: list[int]) -> None:
    list(keep([Passage("1", "T", "x" * 5)], Ledger(), tmp_path))
    assert (tmp_path / "passages.jsonl").stat().st_size == 43
    np.save(tmp_path / "offsets.npy", np.asarray(offsets))
    with pytest.raises(BadData, match=r"offsets.npy does not fit passages.jsonl: build the index again"):
        StoredPassages(tmp_path)


def test_the_hash_is_over_the_passages_in_order() -> None:
    def sha256(*passages: Passage) -> str:
        ledger = Ledger()
        list(keep(passages, ledger, None))
        return ledger.sha256

    one, two = Passage("1", "T", "x"), Passage("2", "T", "y")
    assert sha256(one, two) == sha256(one.scored(4.0), two)
    assert len({sha256(one, two), sha256(two, one), sha256(one), sha256(Passage("1", "Tx", ""))}) == 4


def test_an_id_that_occurs_twice_is_named_with_both_places() -> None:
    ledger = Ledger()
    passages = [Passage(name, "T", "x") for name in ("a", "b", "c", "b", "a")]
    list(keep(passages, ledger, None))
    with pytest.raises(BadData, match="passage id 'b' occurs twice in the corpus: passages 2 and 4"):
        ledger.check_ids(passages)


def test_what_is_no_passage() -> None:
    with pytest.raises(BadArgument, match="passage 2 of the corpus is a dict, not a Passage"):
        list(keep([Passage("1", "T", "x"), {"id": "2"}], Ledger(), None))  # type: ignore[list-item]
    with pytest.raises(BadData, match="passage '1' has metadata that JSON cannot hold"):
        list(keep([Passage("1", "T", "x", metadata={"a": {1}})], Ledger(), None))

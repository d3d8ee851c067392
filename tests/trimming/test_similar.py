"""The nearest judged question, by words and by vectors, against the plain formula."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from checkpoints import tiny_bert
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from blendfilter.errors import BadData
from blendfilter.records import Passage
from blendfilter.retrieval.analyser import Analyser
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.dense import Dense
from blendfilter.retrieval.encoders import Encoded, Encoder
from blendfilter.trimming.guard import Rules
from blendfilter.trimming.similar import K1, B, ByVector, ByWords, Neighbour, similar_for

WORDS = ["who", "turned", "on", "off", "the", "radio", "pier", "built", "mill", "not", "harbours", "was"]
questions = st.lists(st.sampled_from(WORDS), min_size=1, max_size=8).map(" ".join)
FLOORS = (0.0, 0.3, 0.6, 0.9, 1.0)


def by_formula(judged: Sequence[str], question: str) -> list[float]:
    """Each judged question's BM25 for `question` over what it gives itself: one more in the collection."""
    analyse = Analyser(stop_words=())
    sent, others = analyse(question), [analyse(each) for each in judged]
    collection = [*others, sent]
    average = sum(map(len, collection)) / len(collection)

    def score(document: list[str]) -> float:
        counts, total = Counter(document), 0.0
        for term in sent:
            valid = sum(term in each for each in collection)
            idf = math.log(1 + (len(collection) - valid + 0.5) / (valid + 0.5))
            total += idf * counts[term] / (counts[term] + K1 * (1 - B + B * len(document) / average))
        return total

    return [min(1.0, score(each) / score(sent)) for each in others]


@settings(max_examples=200)
@given(st.lists(questions, min_size=1, max_size=12), st.lists(questions, min_size=1, max_size=3))
def test_words_are_bm25s_ratio(judged: list[str], message: list[str]) -> None:
    near = ByWords()
    near.add(judged[:1])
    near.add(judged[1:])
    for question in message:
        expected = by_formula(judged, question)
        found = near.near(question)
        assert [expected[each.at] for each in found] == pytest.approx(sorted(expected, reverse=True), abs=1e-8)
        assert [each.similarity for each in found] == pytest.approx([expected[each.at] for each in found], abs=1e-8)
        assert found == sorted(found, key=lambda each: (-each.similarity, each.at))
        for floor in FLOORS:
            assert near.near(question, floor=floor) == [each for each in found if each.similarity >= floor]


def test_words_of_no_judged_question() -> None:
    near = ByWords()
    assert near.near("Who?") == []
    near.add(["Who turned on the radio?"])
    assert near.near("Zebra") == near.near("?!") == [Neighbour(0, 0.0)]


def test_stop_words_are_words_and_order_is_none() -> None:
    near = ByWords()
    near.add(["Who turned off the radio?", "Who turned on the radio?", "What's not the radio?"])
    assert near.near("Who turned the radio on?")[0] == Neighbour(1, 1.0)
    assert near.near("Who turned the radio off?")[0] == Neighbour(0, 1.0)
    assert near.near("What isn't the radio?")[0] == Neighbour(2, 1.0)


def test_a_question_is_nearest_to_itself() -> None:
    """Words in another order are the same words; then those that the guard does not keep apart."""
    near = ByWords()
    near.add(["Did Mary push Jack?", "Did Jack push Mary?"])
    for at, question in enumerate(["Did Mary push Jack?", "Please tell me, did Jack push Mary?"]):
        assert near.like(question, floor=0.9) == (True, [Neighbour(at, 1.0)])
    assert near.like("Jack, Mary did push?", floor=0.9, guard=Rules()) == (False, [Neighbour(1, 1.0)])


def encoder_of(vectors: dict[str, Any], dimension: int) -> Encoder:
    """An encoder that knows these texts' vectors."""

    def encode(texts: Sequence[str]) -> Encoded:
        return Encoded(np.array([vectors[text] for text in texts], dtype=np.float32), [False] * len(texts))

    return SimpleNamespace(encode_queries=encode, dimension=dimension, identity="e")  # type: ignore[return-value]


numbers = st.floats(-1, 1, width=32).map(lambda value: round(value, 2))


@settings(max_examples=60)
@given(arrays(np.float32, (9, 3), elements=numbers), arrays(np.float32, (4, 3), elements=numbers))
def test_vectors_are_cosines(kept: Any, message: Any) -> None:
    near = ByVector(encoder_of({f"k{at}": row for at, row in enumerate(kept)}, 3))
    near.add([f"k{at}" for at in range(9)])
    lengths = np.linalg.norm(kept, axis=1), np.linalg.norm(message, axis=1)
    products = message.astype(np.float64) @ kept.T.astype(np.float64)
    cosines = products / np.maximum(np.outer(lengths[1], lengths[0]), 1e-30)
    for row, vector in zip(cosines, message, strict=True):
        found = near.near("…", vector=vector)
        assert [each.similarity for each in found] == pytest.approx(sorted(row.clip(0, 1), reverse=True), abs=1e-5)
        assert row[found[0].at] == pytest.approx(row.max(), abs=1e-5) or row.max() <= 1e-5
        assert near.near("…", [3, 5], vector=vector, floor=0.5) == [e for e in found if e.at in (3, 5) and e[1] >= 0.5]


def test_which_measure_goes_with_an_index(tmp_path: Path) -> None:
    passages = [Passage("1", "Orm", "A pier."), Passage("2", "Tolm", "A mill.")]
    words, dense = BM25.build(passages), Dense.build(passages, encoder=tiny_bert())
    own = similar_for(dense)
    assert isinstance(own, ByVector)
    assert own.encoder is dense.encoder
    assert isinstance(similar_for(words), ByWords)
    assert isinstance(similar_for(dense, "words"), ByWords)
    assert isinstance(similar_for(dense, ""), ByVector)
    assert isinstance(similar_for(dense, "vectors"), ByVector)
    with pytest.raises(BadData, match="the similarity 'vectors' does not go with this index, which has 'words'"):
        similar_for(words, "vectors")


class Counting:
    """An encoder that counts what it encodes."""

    identity, dimension = "e1", 4

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def encode_queries(self, texts: Sequence[str]) -> Encoded:
        self.encoded += texts
        rows = [np.random.default_rng(sum(text.encode())).standard_normal(4) for text in texts]
        return Encoded(np.array(rows, dtype=np.float32), [False] * len(texts))


def test_kept_vectors_are_encoded_once(tmp_path: Path) -> None:
    file, sent = tmp_path / "vectors.npz", ["who?", "when?", "who?"]
    first: Any = Counting()
    ByVector(first, file).add(sent)
    assert first.encoded == ["who?", "when?"]
    second: Any = Counting()
    near = ByVector(second, file)
    near.add(["where?", *sent])
    assert second.encoded == ["where?"]
    assert near.near("when?")[0] == Neighbour(2, 1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["vectors.npz"]


@pytest.mark.parametrize("damage", ["torn", "other", "unwritable"])
def test_kept_vectors_that_cannot_be_used_are_done_without(tmp_path: Path, damage: str) -> None:
    file = tmp_path / "vectors.npz"
    first: Any = Counting()
    ByVector(first, file).add(["who?", "when?"])
    if damage == "torn":
        file.write_bytes(file.read_bytes()[:-40])
    elif damage == "unwritable":
        file = tmp_path / "no such folder" / "vectors.npz"
    again: Any = Counting()
    again.identity = "e2" if damage == "other" else "e1"
    near = ByVector(again, file)
    near.add(["who?", "when?"])
    assert again.encoded == ["who?", "when?"]
    assert near.near("when?")[0] == Neighbour(1, 1.0)

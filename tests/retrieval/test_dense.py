"""Dense indexes as a user meets them: meaning, exactness, ties, folders, swapped encoders."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import minilm, tiny_bert

from blendfilter.errors import BadArgument, BadData, MissingFile, UnknownName
from blendfilter.records import Passage
from blendfilter.retrieval import dense
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.dense import Dense
from blendfilter.retrieval.indexes import open_index

pytest.importorskip("faiss")
pytest.importorskip("sentence_transformers")

SAMPLE = Path(__file__).parents[2] / "blendfilter" / "sample" / "corpus.jsonl"
PLACES = ("river", "town", "king", "island", "harbour", "castle", "sea", "hill")
TOWNS = [Passage(str(n), f"Town {n}", f"A {PLACES[n % 8]} and the {PLACES[n // 8]} of {n}.") for n in range(60)]
KINDS: dict[str, dict[str, Any]] = {
    "flat": {},
    "hnsw": {"m": 8, "ef_construction": 40, "ef_search": 32},
    "ivf": {"nlist": 50, "nprobe": 5},
}


def ids(passages: list[Passage]) -> list[str]:
    return [passage.id for passage in passages]


def tiny(out: Path | None = None, **settings: Any) -> Dense:
    """An index of the towns by the random encoder: plumbing, no meaning."""
    return Dense.build(TOWNS, out, **{"encoder": tiny_bert(), **settings})


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Dense:
    """The sample world by a real encoder."""
    return Dense.build(SAMPLE, tmp_path_factory.mktemp("dense") / "index", encoder=minilm(), similarity="cosine")


@pytest.fixture(scope="module")
def vectors(sample: Dense) -> Any:
    return np.stack([sample.vector(at) for at in range(len(sample))])


@pytest.mark.parametrize(("query", "title"), [("vessel that sank", "Provident (ship)"), ("beer maker", "Hobbin")])
def test_a_paraphrase_is_found_where_no_word_is_shared(sample: Dense, query: str, title: str) -> None:
    assert sample(query, k=1)[0].title == title
    assert title not in [passage.title for passage in BM25.build(SAMPLE)(query, k=10)]


def test_flat_is_exact(sample: Dense, vectors: Any) -> None:
    """Against numpy over all vectors, for 20 queries made of the passages' own sentences."""
    queries = [passage.text.partition(".")[0] for passage in sample.passages[:20]]
    scores = sample.encoder.encode_queries(queries).vectors @ vectors.T
    for row, found in zip(scores, sample.search(queries, 10), strict=True):
        expected = np.argsort(-row, kind="stable")[:10]
        assert ids(found) == [sample.passages[at].id for at in expected]
        assert [p.score for p in found] == pytest.approx(row[expected].tolist(), rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({"index": "hnsw", "m": 32, "ef_construction": 200, "ef_search": 64}, 0.99),
        ({"index": "ivf", "nlist": 4, "nprobe": 2}, 0.80),
    ],
)
def test_the_others_find_nearly_what_flat_finds(
    sample: Dense, vectors: Any, settings: dict[str, Any], least: float
) -> None:
    queries = sample.encoder.encode_queries([passage.title for passage in sample.passages[:40]]).vectors
    exact = dense.nearest(sample.faiss, queries, 10)
    index = dense.build_index(vectors, settings, lambda *_: None)
    found = dense.nearest(index, queries, 10)
    shares = [len({*a[0]} & {*b[0]}) / 10 for a, b in zip(exact, found, strict=True)]
    assert np.mean(shares) >= least


@pytest.mark.parametrize("kind", KINDS)
def test_built_in_a_folder_and_opened_again(kind: str, tmp_path: Path) -> None:
    settings = {"index": kind, **KINDS[kind]}
    built, memory = tiny(tmp_path / "index", **settings), tiny(**settings)
    opened = open_index(tmp_path / "index")
    assert isinstance(opened, Dense)
    queries = ["the river of the town", "a king", "castle 7"]
    assert built.search(queries, 9) == opened.search(queries, 9) == memory.search(queries, 9)
    assert built.fingerprint == opened.fingerprint == memory.fingerprint
    assert len(opened) == 60
    assert opened.info()["settings"]["index"] == kind
    assert opened.info()["settings"]["encoder"] == str(tiny_bert().resolve())
    assert opened.passages[7] == TOWNS[7]
    assert {path.name for path in (tmp_path / "index").iterdir()} == {
        "index.faiss", "manifest.json", "offsets.npy", "passages.jsonl",
    }  # fmt: skip
    np.testing.assert_array_equal(opened.vector(7), memory.vector(7))
    np.testing.assert_array_equal(opened.vector(-1), memory.vector(59))
    with pytest.raises(IndexError):
        opened.vector(60)


def test_vectors_are_those_of_the_line_in_corpus_order(tmp_path: Path) -> None:
    """130 passages of every length: more than one block, and sorted by length inside each."""
    passages = [Passage(str(n), "Hill" if n % 2 else "", "the sea " * (n % 13 + 1) + str(n)) for n in range(130)]
    index = Dense.build(iter(passages), tmp_path / "index", encoder=tiny_bert(), passage_prefix="p: ", batch_size=7)
    for at in (0, 1, 55, 56, 57, 129):
        alone = index.encoder.encode_passages([passages[at].line]).vectors[0]
        np.testing.assert_allclose(index.vector(at), alone, rtol=1e-4, atol=1e-5)


def test_queries_and_passages_get_their_own_prefix() -> None:
    """Equal texts under different prefixes are not one vector; without prefixes they are."""
    plain, prefixed = tiny(similarity="cosine"), tiny(similarity="cosine", query_prefix="q: ", passage_prefix="p: ")
    assert plain(TOWNS[3].line, k=1)[0].score == pytest.approx(1, abs=1e-5)
    assert (prefixed(TOWNS[3].line, k=60)[0].score or 1) < 0.9999
    query = prefixed.encoder.encode_queries(["castle"]).vectors
    np.testing.assert_allclose(query, plain.encoder.encode_queries(["q: castle"]).vectors, rtol=1e-4, atol=1e-5)


def test_ties_keep_corpus_order_at_the_kth_place() -> None:
    passages = [Passage(str(n), "", "castle" if n != 250 else "the castle") for n in range(300)]
    index = Dense.build(passages, encoder=tiny_bert(), similarity="cosine")
    assert ids(index("the castle", k=5)) == ["250", "0", "1", "2", "3"]


def test_the_fingerprint_changes_with_what_changes_results() -> None:
    same = {tiny().fingerprint, tiny(nlist=7, m=9).fingerprint, tiny(batch_size=5).fingerprint}
    others = [
        tiny(encoder=tiny_bert(seed=1)),
        tiny(query_prefix="q"),
        tiny(passage_prefix="q"),
        tiny(similarity="cosine"),
        tiny(max_length=64),
        tiny(index="hnsw"),
        tiny(index="hnsw", m=8),
        tiny(index="hnsw", ef_construction=20),
        tiny(index="hnsw", ef_search=16),
        tiny(index="ivf"),
        tiny(index="ivf", nlist=1),
        Dense.build(TOWNS[:59], encoder=tiny_bert()),
    ]
    assert len(same) == 1
    assert len({index.fingerprint for index in others} | same) == len(others) + 1


def test_another_encoder_is_refused_and_a_moved_one_is_not(tmp_path: Path) -> None:
    encoder = Path(shutil.copytree(tiny_bert(), tmp_path / "encoder"))
    index = tiny(tmp_path / "index", encoder=encoder)
    with pytest.raises(BadData, match=r"was built with another encoder: .*/encoder was [0-9a-f]{12}, and .* is"):
        Dense.open(tmp_path / "index", encoder=tiny_bert(seed=1))
    encoder.rename(tmp_path / "moved")
    with pytest.raises(MissingFile, match=r"the index at .* needs its encoder: no encoder '.*/encoder'"):
        open_index(tmp_path / "index")
    moved = open_index(tmp_path / "index", encoder=tmp_path / "moved")
    assert moved.fingerprint == index.fingerprint
    assert moved("castle", 5) == index("castle", 5)
    (tmp_path / "moved" / "vocab.txt").write_text("")
    with pytest.raises(BadData, match="was built with another encoder"):
        Dense.open(tmp_path / "index", encoder=tmp_path / "moved")


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"index": "hnws"}, UnknownName, "no dense index 'hnws'. Did you mean 'hnsw'?"),
        ({"index": "hnsw", "m": 1}, BadArgument, "m is 1: give a whole number of 2 or more"),
        ({"encoder": "/no/such"}, MissingFile, "no encoder '/no/such'"),
    ],
)
def test_a_build_that_cannot_be_leaves_nothing(
    settings: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message.replace("?", r"\?")):
        tiny(tmp_path / "index", **settings)
    assert list(tmp_path.iterdir()) == []

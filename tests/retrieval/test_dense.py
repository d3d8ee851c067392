"""Dense indexes as a user meets them: meaning, exactness, ties, folders, swapped encoders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import minilm, tiny_bert, tiny_dpr

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


@pytest.mark.parametrize("kind", KINDS)
def test_l2_finds_what_faiss_finds_when_called_directly(kind: str, tmp_path: Path) -> None:
    """The same ids and distances as FAISS's own index of that metric; inner product finds others."""
    import faiss

    made = tiny(tmp_path / "index", index=kind, similarity="l2", **KINDS[kind])
    index = open_index(tmp_path / "index")
    assert isinstance(index, Dense)
    passages = index.encoder.encode_passages([town.line for town in TOWNS]).vectors
    direct = {
        "flat": lambda: faiss.IndexFlatL2(32),
        "hnsw": lambda: faiss.IndexHNSWFlat(32, 8),
        "ivf": lambda: faiss.index_factory(32, "IVF1,Flat"),
    }[kind]()
    if kind == "hnsw":
        direct.hnsw.efConstruction, direct.hnsw.efSearch = 40, 32
    direct.train(passages)
    direct.add(passages)
    queries = ["the river of the town", "a king", "castle 7", *(town.text for town in TOWNS[:30])]
    vectors = index.encoder.encode_queries(queries).vectors
    distances, positions = direct.search(vectors, 9)
    found = index.search(queries, 9)
    assert [ids(hits) for hits in found] == [[TOWNS[at].id for at in row] for row in positions]
    scores = [[hit.score for hit in hits] for hits in found]
    np.testing.assert_allclose(scores, -distances, rtol=1e-3, atol=1e-3)
    assert [index(query, k=9) for query in queries] == found == made.search(queries, 9)
    assert found != tiny(index=kind, **KINDS[kind]).search(queries, 9)


def test_l2_of_a_text_with_itself_is_zero_and_ties_keep_corpus_order() -> None:
    """Also of vectors that are long, which FAISS subtracts with an error that grows with their lengths."""
    passages = [Passage(str(n), "", "castle" if n % 50 else f"the hill {n}") for n in range(300)]
    index = Dense.build(passages, encoder=tiny_bert(), similarity="l2")
    found = index("castle", k=60)
    assert ids(found) == [str(n) for n in range(62) if n % 50][:60]
    assert {hit.score for hit in found} == {0.0}
    import faiss

    rows = np.repeat(np.random.default_rng(0).standard_normal((1, 32), dtype=np.float32) * 1000, 300, axis=0)
    rows[::50] += np.arange(1, 7, dtype=np.float32)[:, None]
    long = faiss.IndexFlatL2(32)
    long.add(rows)
    batch = np.repeat(rows[1:2], 30, axis=0)
    for positions, scores in dense.nearest(long, batch, 5):
        assert (positions, scores) == ([1, 2, 3, 4, 5], [0.0] * 5)


def test_dpr_asks_with_one_encoder_and_answers_with_the_other(tmp_path: Path) -> None:
    """Built, searched as the two encoders' inner product, opened again, and where both were moved."""
    question, context = (tiny_dpr(which, tmp_path / which) for which in ("Question", "Context"))
    built = tiny(tmp_path / "index", encoder=context, query_encoder=question)
    opened = Dense.open(tmp_path / "index")
    query = "the river of the town"
    (asking,) = opened.encoder.encode_queries([query]).vectors
    answering = opened.encoder.encode_passages([opened.encoder.line(town) for town in TOWNS]).vectors
    best = np.argsort(-(answering @ asking), kind="stable")[:9]
    assert opened(query, 9) == built(query, 9)
    assert ids(opened(query, 9)) == [TOWNS[at].id for at in best]
    settings = opened.info()["settings"]
    assert (settings["encoder"], settings["query_encoder"]) == (str(context.resolve()), str(question.resolve()))
    question.rename(tmp_path / "asks")
    context.rename(tmp_path / "answers")
    with pytest.raises(MissingFile, match=r"needs its encoder: .*\(encoder=…, query_encoder=… where they moved\)"):
        open_index(tmp_path / "index")
    places = {"encoder": tmp_path / "answers", "query_encoder": tmp_path / "asks"}
    moved = open_index(tmp_path / "index", **places)
    assert (moved.fingerprint, moved(query, 9)) == (built.fingerprint, built(query, 9))
    other = tiny_dpr("Question", seed=1)
    with pytest.raises(BadData, match=r"was built with another encoder: .*Context \(queries: .*Question\) was"):
        open_index(tmp_path / "index", **places | {"query_encoder": other})


def test_the_fingerprint_changes_with_what_changes_results() -> None:
    same = {tiny().fingerprint, tiny(nlist=7, m=9).fingerprint, tiny(batch_size=5, query_prefix="").fingerprint}
    same |= {tiny(pooling="mean").fingerprint, tiny(query_encoder=tiny_bert()).fingerprint}
    others = [
        tiny(encoder=tiny_bert(seed=1)),
        tiny(query_prefix="q"),
        tiny(passage_prefix="q"),
        tiny(similarity="cosine"),
        tiny(similarity="l2"),
        tiny(similarity="l2", index="hnsw"),
        tiny(pooling="cls"),
        tiny(query_encoder=tiny_bert(seed=1)),
        tiny(query_encoder=tiny_bert(seed=2)),
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
    ("name", "value"), [("encoder", True), ("encoder", 7), ("max_length", "x"), ("max_length", [])]
)
def test_a_setting_of_another_type_is_bad_data(name: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "index" / "manifest.json"
    tiny(path.parent)
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps({**manifest, "settings": {**manifest["settings"], name: value}}))
    with pytest.raises(BadData):
        open_index(path.parent)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"index": "hnws"}, UnknownName, "no dense index 'hnws'. Did you mean 'hnsw'?"),
        ({"index": "hnsw", "m": 1}, BadArgument, "m is 1: give a whole number of 2 or more"),
        ({"encoder": "/no/such"}, MissingFile, "no encoder '/no/such'"),
        ({"query_encoder": "/no/such"}, MissingFile, "no encoder '/no/such'"),
    ],
)
def test_a_build_that_cannot_be_leaves_nothing(
    settings: dict[str, Any], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message.replace("?", r"\?")):
        tiny(tmp_path / "index", **settings)
    assert list(tmp_path.iterdir()) == []

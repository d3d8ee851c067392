"""Several indexes searched as one: the very hits of a single index, in folders and behind servers."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from checkpoints import tiny_bert, tiny_colbert
from index_server import served

from blendfilter import BM25, ColBERT, Dense, Direct, Hybrid, Passage, Retriever, evaluate, load, open_index
from blendfilter.errors import AskedWrong, BadArgument, BadData, MissingFile, ServerRefused
from blendfilter.resources import sample
from blendfilter.retrieval.base import Hits, cut_of, missing_of
from blendfilter.retrieval.colbert.index import SearchEffort
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.retrieval.sharded import Sharded, build_sharded, join, merged

CORPUS = list(read_corpus(sample("corpus.jsonl")))
QUERIES = [passage.title for passage in CORPUS[::9]] + ["the of a", "who was born in the town", "nothing zzz"]


def same(one: Retriever, other: Retriever, k: int, rounding: float = 0.0) -> None:
    """Whether two indexes find the same passages with the same scores, to the last bit or but for `rounding`."""
    for query, first, second in zip(QUERIES, one.search(QUERIES, k), other.search(QUERIES, k), strict=True):
        assert [p.id for p in first] == [p.id for p in second], query
        assert [p.score for p in first] == pytest.approx([p.score for p in second], rel=rounding, abs=0), query


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> BM25:
    return BM25.build(CORPUS, tmp_path_factory.mktemp("whole") / "index")


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """The sample world in three indexes of different sizes."""
    edges = [0, 20, 150, len(CORPUS)]
    places = [tmp_path / f"part-{number}" for number in (1, 2, 3)]
    for place, start, end in zip(places, edges, edges[1:], strict=False):
        BM25.build(CORPUS[start:end], place)
    return places


@pytest.mark.filterwarnings("ignore:k=")
@pytest.mark.parametrize("shards", [1, 4, 193])
def test_bm25_in_shards_finds_what_one_index_finds(shards: int, whole: BM25, tmp_path: Path) -> None:
    index = build_sharded(lambda: CORPUS, tmp_path / "index", shards)
    assert (len(index.shards), len(index)) == (shards, len(CORPUS))
    for k in (1, 5, 60, 400):
        same(whole, index, k)


def test_shards_that_were_built_apart_count_as_one_corpus_once_joined(
    whole: BM25, parts: list[Path], tmp_path: Path
) -> None:
    apart = BM25.open(parts[1]).search(QUERIES, 5)
    index = join(parts, tmp_path / "joined")
    same(whole, index, 10)
    assert index.shards[1].search(QUERIES, 5) != apart
    opened = open_index(tmp_path / "joined")
    assert (opened.fingerprint, opened.info()["passages"]) == (index.fingerprint, len(CORPUS))
    same(whole, opened, 10)
    same(whole, pickle.loads(pickle.dumps(opened)), 10)


def test_other_settings_of_bm25_are_kept(parts: list[Path], tmp_path: Path) -> None:
    settings = {"k1": 1.4, "b": 0.75}
    index = build_sharded(lambda: iter(CORPUS), tmp_path / "index", 5, k1=1.4, b=0.75)
    same(BM25.build(CORPUS, **settings), index, 20)
    with pytest.raises(BadArgument, match="score by different measures"):
        Sharded([index.shards[0], join(parts, tmp_path / "other").shards[0]])


def test_equal_scores_keep_the_order_of_the_corpus(tmp_path: Path) -> None:
    twins = [Passage(f"p{at}", "Fell", "A hill by the sea.") for at in range(12)]
    index = build_sharded(lambda: twins, tmp_path / "index", 5)
    assert [passage.id for passage in index("hill", k=7)] == [f"p{at}" for at in range(7)]


def test_flat_dense_shards_find_what_one_index_finds(tmp_path: Path) -> None:
    index = build_sharded(lambda: CORPUS, tmp_path / "index", 3, engine="dense", encoder=tiny_bert())
    # an encoder's last digits depend on the texts beside one in its batch, on some processors
    same(Dense.build(CORPUS, encoder=tiny_bert()), index, 8, rounding=1e-4)
    assert [shard.info()["kind"] for shard in index.shards] == ["dense"] * 3


def test_late_interaction_shards_with_one_codec_score_as_one_index(tmp_path: Path) -> None:
    how = {"checkpoint": tiny_colbert(), "partitions": 32, "nbits": 4}
    exhaustive = SearchEffort(ncells=32, threshold=-1.0, ndocs=4 * len(CORPUS))
    one = ColBERT.build(CORPUS, tmp_path / "one", **how)
    build_sharded(lambda: CORPUS, tmp_path / "sharded", 3, engine="colbert", **how)
    whole = ColBERT.open(tmp_path / "one", effort=exhaustive)
    places = [tmp_path / "sharded" / str(number) for number in (1, 2, 3)]
    same(Sharded([ColBERT.open(place, effort=exhaustive) for place in places]), whole, 5)
    assert len(open_index(tmp_path / "sharded").search(QUERIES[:1], 5)[0]) == 5
    assert not (tmp_path / "sharded" / "codec").exists()
    apart = ColBERT.build(CORPUS[:40], tmp_path / "apart", codec=tmp_path / "one", **how)
    assert apart.info()["codec"] == one.info()["codec"]
    assert len(join([tmp_path / "apart", tmp_path / "sharded" / "3"], tmp_path / "joined")) > 40
    ColBERT.build(CORPUS[40:80], tmp_path / "own", **how)
    with pytest.raises(BadArgument, match="score by different measures"):
        join([tmp_path / "apart", tmp_path / "own"], tmp_path / "none")


@pytest.mark.parametrize(
    ("changed", "words"), [({"nbits": 2}, "has nbits 4, and this index 2"), ({"codec": "."}, "holds no codec")]
)
def test_a_codec_of_other_vectors_is_refused(changed: dict[str, Any], words: str, tmp_path: Path) -> None:
    how = {"checkpoint": tiny_colbert(), "partitions": 16}
    ColBERT.build(CORPUS[:50], tmp_path / "one", **how)
    with pytest.raises((BadArgument, BadData), match=words):
        ColBERT.build(CORPUS[:50], tmp_path / "other", **{**how, "codec": tmp_path / "one", **changed})


def test_shards_behind_servers_are_searched_where_they_are(whole: BM25, parts: list[Path], tmp_path: Path) -> None:
    local = join(parts, tmp_path / "joined")
    with served(local.shards[0]) as one, served(local.shards[1]) as two:
        urls = [f"http://127.0.0.1:{server.port}" for server in (one, two)]
        index = join([*urls, tmp_path / "joined" / "3"], tmp_path / "remote")
        same(whole, index, 10)
        assert index.fingerprint == local.fingerprint, "what is journaled of the one serves the other"
        with pytest.raises(BadArgument, match=r"called only where its host is named: .*127\.0\.0\.1"):
            open_index(tmp_path / "remote")
        same(whole, open_index(tmp_path / "remote", allow_hosts=["127.0.0.1"]), 3)


def test_a_shard_that_does_not_answer_is_an_error_or_a_flagged_result(parts: list[Path], tmp_path: Path) -> None:
    local, place = join(parts[:2], tmp_path / "joined"), tmp_path / "remote"
    query = QUERIES[0]
    with served(local.shards[0]) as one:
        with served(local.shards[1]) as two:
            gone = f"http://127.0.0.1:{two.port}"
            join([f"http://127.0.0.1:{one.port}", gone], place)
            how: dict[str, Any] = {"allow_hosts": ["127.0.0.1"], "attempts": 1}
            strict, partly = open_index(place, **how), open_index(place, partial=True, **how)
            (whole,) = partly.search([query], 5)
            assert (missing_of(whole), [p.id for p in whole]) == ((), [p.id for p in local(query, k=5)])
        with pytest.raises(ServerRefused, match="cannot be reached"):
            strict.search([query], 5)
        with pytest.raises(ServerRefused, match="cannot be reached"):
            open_index(place, **how)
        for index in (partly, open_index(place, partial=True, **how)):
            (found,) = index.search([query], 5)
            assert missing_of(found) == (gone,)
            assert [(p.id, p.score) for p in found] == [(p.id, p.score) for p in local.shards[0](query, k=5)]
            assert (len(index), index.fingerprint) == (len(local), local.fingerprint)
            assert missing_of(Hybrid([index, local]).search([query], 5)[0]) == (gone,)
        questions = load("qa", [{"id": "q", "question": query, "answer": "?"}])
        run = evaluate(Direct(index), questions, lm="offline", run=tmp_path / "run", progress=False)
        assert run.rows[0]["flags"]["partial_search"] == 1
    with pytest.raises(ServerRefused, match="cannot be reached"):
        partly.search([query], 5)  # all shards are gone: no result, not an empty one
    again = evaluate(Direct(local), questions, lm="offline", run=tmp_path / "run", replay=True, progress=False)
    assert again.rows == run.rows, "what was found then is what the journal has, flag and all"
    with pytest.raises(ServerRefused, match="cannot be reached"):
        open_index(place, partial=True, **how).search([query], 5)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("hnsw", "cannot be a shard: its scores depend on what else it holds"),
        ("hybrid", "cannot be a shard"),
        ("bm25 twice", "passage id 'sw-000' occurs in two shards"),
        ("joined and plain", "how many passages have a word"),
        ("nothing", "needs one shard or more"),
    ],
)
def test_what_cannot_be_one_index_is_refused(kind: str, words: str, parts: list[Path], tmp_path: Path) -> None:
    if kind == "hnsw":
        places = [tmp_path / "hnsw"]
        Dense.build(CORPUS[:9], places[0], encoder=tiny_bert(), index="hnsw")
    elif kind == "bm25 twice":
        places = [parts[0], parts[0]]
    elif kind == "joined and plain":
        join(parts, tmp_path / "joined")
        places = [tmp_path / "joined" / "1", parts[1]]
    else:
        places = []
    with pytest.raises((BadArgument, BadData), match=words):
        Sharded([Hybrid([BM25.open(part) for part in parts])]) if kind == "hybrid" else join(places, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_shard_that_is_gone_or_another_one_is_named(parts: list[Path], tmp_path: Path) -> None:
    join(parts, tmp_path / "joined")
    other = join(parts[:2], tmp_path / "other")
    with pytest.raises(BadArgument, match="is a shard, whose scores count the words of all shards"):
        other.shards[0].update(["One more | passage."])  # type: ignore[attr-defined]
    apart = join([tmp_path / "joined" / str(number) for number in (1, 2, 3)], tmp_path / "apart")
    same(open_index(tmp_path / "joined"), apart, 5)
    (tmp_path / "joined" / "2").rename(tmp_path / "kept")
    with pytest.raises(MissingFile, match="no index at"):
        open_index(tmp_path / "apart")
    (tmp_path / "other" / "2").rename(tmp_path / "joined" / "2")
    with pytest.raises(BadData, match="is another index"):
        open_index(tmp_path / "apart")


@pytest.mark.parametrize("cut", [True, False])
def test_a_query_that_one_shard_cut_is_a_cut_query(cut: bool) -> None:
    rankings = [Hits([CORPUS[0]], cut=cut), Hits([CORPUS[1]])]
    assert cut_of(merged(rankings, 1)) is cut
    assert cut_of(merged(reversed(rankings), 1)) is cut


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (".", "lies over itself"),
        ("../index", "lies over itself"),
        ("1/../../index/.", "lies over itself"),
        ("link/link", "lies over itself"),
        ("../other", "lies over itself"),
        ("..", "is not an index"),
        ("a/" * 5000, "no index at"),
        ("endless", "no index at"),
    ],
)
def test_an_index_that_names_itself_or_an_endless_path_is_refused(at: str, words: str, tmp_path: Path) -> None:
    build_sharded(lambda: CORPUS[:9], tmp_path / "index", 2)
    (tmp_path / "index" / "link").symlink_to(".")
    (tmp_path / "index" / "endless").symlink_to("endless")
    manifest = json.loads((tmp_path / "index" / "manifest.json").read_text())
    (tmp_path / "other").mkdir()
    for folder, shard in (("index", at), ("other", "../index")):
        manifest["settings"]["shards"][0]["at"] = shard
        (tmp_path / folder / "manifest.json").write_text(json.dumps({**manifest, "files": {}, "hashes": {}}))
    with pytest.raises(AskedWrong, match=words) as raised:
        open_index(tmp_path / "index")
    assert len(str(raised.value)) < 500
    assert "\n" not in str(raised.value)


def test_no_index_takes_the_place_of_its_own_shards(parts: list[Path], tmp_path: Path) -> None:
    join(parts, tmp_path / "joined")
    for shard in (tmp_path / "joined" / "1", tmp_path / "joined"):
        with pytest.raises(BadArgument, match="would be replaced by the index over it"):
            join([shard], tmp_path / "joined", overwrite=True)
    assert len(open_index(tmp_path / "joined")) == len(CORPUS)


def test_what_is_built_again_in_its_place_is_the_fresh_one(tmp_path: Path) -> None:
    index = build_sharded(lambda: CORPUS[:90], tmp_path / "index", 3)
    assert index.fresh() is index
    build_sharded(lambda: CORPUS, tmp_path / "index", 3, overwrite=True)
    assert (index.outdated(), len(index), len(index.fresh())) == (True, 90, len(CORPUS))


def test_a_token_in_an_address_goes_into_no_file(parts: list[Path], tmp_path: Path) -> None:
    shard = join(parts[:1], tmp_path / "joined").shards[0]
    with served(shard, token="s3cret-token") as server:
        index = join([f"http://any:s3cret-token@127.0.0.1:{server.port}"], tmp_path / "remote")
        assert index("harbour", k=2)
        manifest = (tmp_path / "remote" / "manifest.json").read_text(encoding="utf-8")
    assert f"http://127.0.0.1:{server.port}" in manifest
    assert "s3cret" not in manifest


@pytest.mark.parametrize("settings", [{"engine": "rank-bm25"}, {"engine": "dense", "index": "ivf"}])
def test_what_cannot_be_in_shards_is_refused_before_a_passage_is_read(settings: dict[str, str], tmp_path: Path) -> None:
    def corpus() -> list[Passage]:
        raise AssertionError("it was read")

    with pytest.raises(BadArgument, match="cannot be a shard"):
        build_sharded(corpus, tmp_path / "index", 2, **settings)


@pytest.mark.parametrize("shards", [0, 4])
def test_there_are_as_many_shards_as_passages_at_most(shards: int, tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match=f"3 passages make 1 to 3 shards, not {shards}"):
        build_sharded(lambda: CORPUS[:3], tmp_path / "index", shards)


def test_any_corpus_in_any_number_of_shards(tmp_path: Path) -> None:
    draw = random.Random(7)
    for trial in range(8):
        words = [f"w{at}" for at in range(draw.randint(2, 40))]
        texts = [" ".join(draw.choices(words, k=draw.randint(1, 30))) for _ in range(draw.randint(2, 60))]
        corpus = [Passage(str(at), "", text) for at, text in enumerate(texts)]
        settings = {"k1": draw.choice([0.9, 2.0]), "b": draw.choice([0.0, 0.4])}
        shards = draw.randint(1, min(5, len(corpus)))
        index = build_sharded(corpus.copy, tmp_path / str(trial), shards, **settings)
        one = BM25.build(corpus, **settings)
        for query in (" ".join(draw.choices(words, k=4)) for _ in range(20)):
            assert [(p.id, p.score) for p in index(query, k=3)] == [(p.id, p.score) for p in one(query, k=3)], settings

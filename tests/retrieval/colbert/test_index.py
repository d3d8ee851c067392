"""The ColBERT index as a user meets it: built, opened, searched; what it refuses; and how its scores come about."""

from __future__ import annotations

import gc
import json
import re
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import tiny_colbert

from blendfilter.errors import BadArgument, BadData, MissingExtra, MissingFile
from blendfilter.records import Passage
from blendfilter.retrieval.colbert import ColBERT
from blendfilter.retrieval.colbert import index as index_module
from blendfilter.retrieval.colbert.encoder import TokenEncoder
from blendfilter.retrieval.colbert.index import SearchEffort
from blendfilter.retrieval.indexes import build, open_index

QUERIES = ["Which river is of 17?", "the king of the island", "castle 88", "hill 5 5 5"]


@pytest.fixture
def copy(index: ColBERT, tmp_path: Path) -> Path:
    assert index.path is not None
    return Path(shutil.copytree(index.path, tmp_path / "copy"))


def brute(vectors: torch.Tensor, lengths: list[int], query: torch.Tensor) -> torch.Tensor:
    """MaxSim of a query and every passage, by the definition: no centroids, no candidates."""
    return torch.stack([(own @ query.T).max(0).values.sum() for own in vectors.split(lengths)])


def test_hits_are_passages_best_first(index: ColBERT, towns: list[Passage]) -> None:
    by_id = {passage.id: passage for passage in towns}
    found = index.search(QUERIES, 7)
    for hits in found:
        assert len(hits) == 7
        scores = [hit.score for hit in hits if hit.score is not None]
        assert scores == sorted(scores, reverse=True)
        for hit in hits:
            assert (hit.title, hit.text) == (by_id[hit.id].title, by_id[hit.id].text)
    assert found[0] != found[1]
    assert index.search(list(reversed(QUERIES)), 7) == list(reversed(found))


def test_scores_are_maxsim_over_the_vectors_that_are_kept(index: ColBERT, encoder: TokenEncoder) -> None:
    scorer = index._scorer._scorer
    lengths = scorer.doclens.tolist()
    small = type(scorer.embeddings)(
        scorer.embeddings.codes[: sum(lengths)], scorer.embeddings.residuals[: sum(lengths)]
    )
    kept = scorer.codec.decompress(small)
    place = {passage.id: at for at, passage in enumerate(index.passages)}
    wide = SearchEffort(ncells=64, threshold=-1.0, ndocs=4 * len(index))
    for query, hits in zip(QUERIES, ColBERT.open(index.path or "", effort=wide).search(QUERIES, 20), strict=True):
        scores = brute(kept, lengths, encoder.queries([query]).vectors[0])
        for hit in hits:
            assert hit.score == pytest.approx(scores[place[hit.id]].item(), abs=1e-3)
        assert [hit.score for hit in hits] == pytest.approx(scores.topk(20).values.tolist(), abs=1e-3)


def test_more_than_there_is(index: ColBERT) -> None:
    fresh = ColBERT.open(index.path or "")
    with pytest.warns(UserWarning, match="k=500 is more than the corpus holds: at most 150 passages come back"):
        found = fresh("the river", k=500)
    assert 50 < len(found) <= 150
    assert len({hit.id for hit in found}) == len(found)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fresh("the river", k=500)


@pytest.mark.parametrize(
    ("queries", "k", "said"),
    [
        (["river"], 0, "k must be at least 1, got 0"),
        (["river"], -1, "k must be at least 1"),
        (["river"], 1.5, "k must be a whole number"),
        (["river", " "], 3, "query 2 of 2 is empty"),
        ("river", 3, "search takes a list of queries"),
    ],
)
def test_searches_that_are_refused(queries: Any, k: Any, said: str, index: ColBERT) -> None:
    with pytest.raises(BadArgument, match=said):
        index.search(queries, k)


def test_no_queries_no_answers(index: ColBERT) -> None:
    assert index.search([], 3) == []


def test_equal_scores_keep_corpus_order(checkpoint: Path, towns: list[Passage]) -> None:
    doubles = [Passage(f"d{n}", "", "the king of the island") for n in range(40)]
    index = ColBERT.build([*towns[:30], *doubles, *towns[30:60]], checkpoint=checkpoint)
    found = index("king of the island", k=12)
    assert [hit.id for hit in found] == [f"d{n}" for n in range(12)]
    assert len({hit.score for hit in found}) == 1


def test_many_queries_are_as_one(index: ColBERT, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    plain = index.encoder.queries
    monkeypatch.setattr(index.encoder, "queries", lambda texts: (asked.append(len(texts)), plain(texts))[1])
    monkeypatch.setattr(index_module, "AT_ONCE", 8)
    many = [f"{QUERIES[n % 4]} {n}" for n in range(20)]
    found = index.search(many, 5)
    assert asked == [8, 8, 4], "vectors of so many queries are held at a time"
    assert [[hit.id for hit in hits] for hits in found] == [[hit.id for hit in index(query, k=5)] for query in many]


def test_threads_search_at_once(index: ColBERT) -> None:
    expected = [index.search([query], 10) for query in QUERIES]
    with ThreadPoolExecutor(8) as pool:
        for at, found in enumerate(pool.map(lambda at: index.search([QUERIES[at % 4]], 10), range(64))):
            assert found == expected[at % 4]


# --- folders --------------------------------------------------------------------------------------------------------


def test_opened_by_its_kind_wherever_it_lies(index: ColBERT, copy: Path) -> None:
    again = open_index(copy)
    assert isinstance(again, ColBERT)
    assert again.fingerprint == index.fingerprint
    assert again.search(QUERIES, 5) == index.search(QUERIES, 5)
    told = again.info()
    assert told["kind"] == "colbert"
    assert told["passages"] == len(again) == 150
    assert told["fingerprint"] == index.fingerprint
    assert told["settings"]["nbits"] == 4
    assert told["path"] == str(copy)
    assert told["device"] in ("cpu", "cuda")


def test_the_checkpoint_may_have_moved(index: ColBERT, copy: Path, checkpoint: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(checkpoint, tmp_path / "moved")
    raw = json.loads((copy / "manifest.json").read_text())
    raw["settings"]["checkpoint"] = str(tmp_path / "gone")
    (copy / "manifest.json").write_text(json.dumps(raw))
    with pytest.raises(MissingFile, match=r"no checkpoint at .*gone"):
        open_index(copy)
    assert open_index(copy, checkpoint=moved).search(QUERIES, 5) == index.search(QUERIES, 5)


def test_a_checkpoint_that_is_gone_is_told_with_its_index(copy: Path) -> None:
    manifest = json.loads((copy / "manifest.json").read_text())
    manifest["settings"]["checkpoint"] = str(copy / "gone")
    (copy / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(
        MissingFile, match=rf"^the index at {copy} needs its checkpoint: no checkpoint at .*checkpoint=…"
    ):
        open_index(copy)


def test_kernels_that_cannot_be_had_are_told_before_the_build(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise MissingExtra("there is no C++ compiler")

    monkeypatch.setattr("blendfilter.retrieval.colbert.index.load_kernels", missing)
    read = []
    corpus = (read.append(n) or Passage(str(n), "", "river") for n in range(3))
    with pytest.raises(MissingExtra, match="no C"):
        ColBERT.build(corpus, tmp_path / "made", checkpoint=checkpoint, gpus=0)
    assert not read
    assert not (tmp_path / "made").exists()


def test_it_shows_what_it_is(index: ColBERT) -> None:
    assert repr(index) == f"<ColBERT: 150 passages, fingerprint {index.fingerprint}>"


def test_another_checkpoint_is_refused(copy: Path) -> None:
    with pytest.raises(BadData, match=r"was built with another checkpoint than the one at .*: name that one"):
        open_index(copy, checkpoint=tiny_colbert(seed=1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format": 2}, "has format 2, and this version reads up to 1"),
        ({"kind": "bm25"}, "is of kind 'bm25', not 'colbert': use open_index"),
        ({"passages": 0}, "is not an index's manifest: passages"),
    ],
)
def test_manifests_that_are_refused(change: dict[str, Any], said: str, copy: Path) -> None:
    raw = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps(raw | change))
    with pytest.raises(BadData, match=said):
        ColBERT.open(copy)


@pytest.mark.parametrize("name", ["0.residuals.pt", "ivf.pid.pt", "doclens.0.json", "passages.jsonl", "metadata.json"])
def test_files_that_do_not_match_the_manifest(name: str, copy: Path) -> None:
    whole = (copy / name).read_bytes()
    (copy / name).write_bytes(whole[:-1])
    with pytest.raises(BadData, match=re.escape(f"{name} has {len(whole) - 1} bytes where {len(whole)} were written")):
        open_index(copy)
    (copy / name).unlink()
    with pytest.raises(BadData, match=f"{name} is missing"):
        open_index(copy)


def test_effort_makes_another_index(index: ColBERT) -> None:
    one, other = (ColBERT.open(index.path or "", effort=SearchEffort(1, 0.5, ndocs)) for ndocs in (256, 16))
    assert len({index.fingerprint, one.fingerprint, other.fingerprint}) == 3
    assert other.info()["fingerprint"] == other.fingerprint
    assert len(other("river", k=4)) == 4
    with pytest.raises(BadArgument, match="ncells of at least 1"):
        ColBERT.open(index.path or "", effort=SearchEffort(0, 0.5, 256))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(index: ColBERT) -> None:
    with pytest.raises(BadArgument, match="torch sees no GPU on this machine"):
        ColBERT.open(index.path or "", gpu=True)


def test_an_index_of_memory_goes_with_its_folder(checkpoint: Path, towns: list[Passage]) -> None:
    index = build("colbert", towns, checkpoint=checkpoint)
    assert isinstance(index, ColBERT)
    folder = index.path
    assert folder is not None
    assert folder.is_dir()
    assert len(index("river", k=3)) == 3
    del index
    gc.collect()
    assert not folder.exists()


def test_a_failed_build_of_memory_leaves_no_folder(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module.tempfile, "tempdir", str(tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BadData):
            ColBERT.build([Passage("a", "", "x"), Passage("a", "", "y")], checkpoint=checkpoint)
        gc.collect()
    assert not list(tmp_path.iterdir())


def test_an_index_is_not_replaced_unasked(copy: Path, checkpoint: Path, towns: list[Passage]) -> None:
    with pytest.raises(BadArgument, match=r"there is an index at .* already"):
        ColBERT.build(towns, copy, checkpoint=checkpoint)
    replaced = ColBERT.build(towns[:20], copy, checkpoint=checkpoint, overwrite=True)
    assert len(replaced) == 20


@pytest.mark.usefixtures("fresh_dspy")
def test_dspy_retrieves_from_it(index: ColBERT) -> None:
    import dspy

    with dspy.context(rm=index):
        found = dspy.Retrieve(k=3)("the king of the island").passages
    assert found == [hit.line for hit in index("the king of the island", k=3)]

"""Checkpoints of sentence-transformers and of PyLate: opened, built, searched, beside the library's own encoder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import minilm_package, tiny_bert, tiny_late

from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.records import Passage
from blendfilter.retrieval.base import cut_of
from blendfilter.retrieval.colbert import ColBERT
from blendfilter.retrieval.colbert.encoder import ColBERTCheckpoint, TokenEncoder
from blendfilter.retrieval.colbert.index import SearchEffort
from blendfilter.retrieval.indexes import open_index

library = pytest.importorskip("sentence_transformers")

QUERIES = ["river", "Which king, born in the town, was on the hill?", "a castle of 17", "the 4 harbours' sea"]
PASSAGES = ["The river.", "Town 7 | A hill, a castle; and the sea!", "...", "king " * 300, "a"]
KINDS = {
    "BERT, sentence-transformers": {},
    "ModernBERT, sentence-transformers": {"modern": True},
    "BERT, PyLate": {"pylate": True},
    "ModernBERT, PyLate, queries as they are": {"modern": True, "pylate": True, "expands": False},
}


@pytest.fixture(scope="session", params=KINDS.values(), ids=KINDS)
def late(request: pytest.FixtureRequest) -> Path:
    return tiny_late(**request.param)


@pytest.fixture(scope="session")
def modern() -> TokenEncoder:
    return TokenEncoder(ColBERTCheckpoint(tiny_late(modern=True)), "cpu")


def own(folder: Path) -> Any:
    """The library's own encoder of that checkpoint."""
    return library.MultiVectorEncoder(str(folder), device="cpu")


def test_vectors_are_the_librarys(late: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING"):
        ours = TokenEncoder(ColBERTCheckpoint(late), "cpu")
    assert not caplog.records, "what is converted, and how, is no news to a user"
    theirs = own(late)
    for one, other in zip(ours.queries(QUERIES).vectors, theirs.encode_query(QUERIES), strict=True):
        assert one.shape == other.shape
        assert torch.allclose(one, other, atol=1e-5)
    vectors, lengths = ours.passages(PASSAGES)
    documents = theirs.encode_document(PASSAGES)
    assert lengths == [len(document) for document in documents]
    assert lengths[3] == 40, "cut at the checkpoint's document length"
    assert torch.allclose(vectors.float(), torch.cat(documents), atol=1e-3)


def test_an_index_finds_what_the_library_ranks_first(late: Path, towns: list[Passage], tmp_path: Path) -> None:
    ColBERT.build(towns, tmp_path / "index", checkpoint=late, nbits=8)
    index = open_index(tmp_path / "index", effort=SearchEffort(ncells=64, threshold=-1.0, ndocs=600))
    theirs = own(late)
    scores = theirs.similarity(theirs.encode_query(QUERIES), theirs.encode_document([town.line for town in towns]))
    for hits, row in zip(index.search(QUERIES, 5), scores, strict=True):
        best = row.topk(5)
        exact = {town.id: score for town, score in zip(towns, row.tolist(), strict=True)}
        assert [hit.score for hit in hits] == pytest.approx([exact[hit.id] for hit in hits], rel=0.01)
        assert [exact[hit.id] for hit in hits] == pytest.approx(best.values.tolist(), rel=0.01), "of 8 bits"
        assert row.median() < 0.97 * best.values[-1], "most are worse by more than that"


def test_the_checkpoint_states_the_lengths(late: Path, towns: list[Passage]) -> None:
    index = ColBERT.build(towns[:9], checkpoint=late)
    assert index.manifest.settings["doc_maxlen"] == 40
    assert max(TokenEncoder(ColBERTCheckpoint(late), "cpu", doc_maxlen=12).passages(PASSAGES)[1]) == 12
    with pytest.raises(BadArgument, match=r"doc_maxlen must lie between 4 and the (512|1024) tokens"):
        ColBERT.build(towns[:9], checkpoint=late, doc_maxlen=1025)


def test_a_long_query_is_read_whole(late: Path, towns: list[Passage]) -> None:
    """The library would read 24 tokens of it, or as many as a passage has."""
    query = "river king " * 150
    index = ColBERT.build(towns[:30], checkpoint=late)
    assert len(index.encoder.queries([query]).vectors[0]) == 303  # [CLS], the marker, [SEP]
    (hits,) = index.search([query], 3)
    assert len(hits) == 3
    assert not cut_of(hits)


def test_above_1024_tokens_a_modernbert_keeps_the_end(modern: TokenEncoder) -> None:
    end = " ".join(["king", "sea", "hill", "castle", "town"] * 204 + ["born"])  # 1,021
    read = modern.queries(["river " + end, "harbour harbour " + end, end, "a river"])
    assert read.cut == [True, True, False, False]
    assert [len(vectors) for vectors in read.vectors] == [1024] * 3 + [24]
    for vectors in read.vectors[:2]:
        assert torch.allclose(vectors, read.vectors[2], atol=1e-5)


def test_what_colbert_ai_reads_is_read_in_its_way(checkpoint: Path, tmp_path: Path) -> None:
    """A checkpoint published in both layouts gives what it gave before it had the second one."""
    both = Path(shutil.copytree(checkpoint, tmp_path / "both"))
    for name in ("modules.json", "config_sentence_transformers.json"):
        shutil.copy(tiny_late(pylate=True) / name, both)
    one, other = ColBERTCheckpoint(checkpoint), ColBERTCheckpoint(both)
    assert one.sha256 == other.sha256
    for mine, its in zip(*(TokenEncoder(each, "cpu").queries(QUERIES).vectors for each in (one, other)), strict=True):
        assert torch.equal(mine, its)


def test_sha256_follows_the_settings(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny_late(pylate=True), tmp_path / "copy"))
    before = ColBERTCheckpoint(copy).sha256
    assert before == ColBERTCheckpoint(tiny_late(pylate=True)).sha256
    settings = copy / "config_sentence_transformers.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"query_length": 16}))
    assert ColBERTCheckpoint(copy).sha256 != before


@pytest.mark.parametrize(
    ("folder", "why"),
    [(minilm_package, "a bi-encoder, with one vector a text"), (tiny_bert, "it has no projection of its tokens")],
)
def test_what_is_no_late_interaction_is_one_line(folder: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(BadData, match=rf"is no late-interaction checkpoint \({why}\): name one that was") as error:
        ColBERT.build(["a river"], tmp_path / "index", checkpoint=folder())
    assert "\n" not in str(error.value)
    assert not (tmp_path / "index").exists()


def test_a_name_that_the_hub_does_not_know_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def refuse(name: str, **_: Any) -> None:
        raise OSError(f"404: no {name}\nmore of it")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(MissingFile, match=r"^no checkpoint 'no-such/model': .* \(404: no no-such/model\): check the"):
        ColBERTCheckpoint("no-such/model")

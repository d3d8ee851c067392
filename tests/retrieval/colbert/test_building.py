"""A build, phase by phase: what lies in the folder, how it comes about, and that colbert-ai reads it as its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from blendfilter.errors import BadArgument, BadData, EmptyData
from blendfilter.records import Passage
from blendfilter.retrieval.colbert import ColBERT, building
from blendfilter.retrieval.colbert import building as plan
from blendfilter.retrieval.colbert import building as worker
from blendfilter.retrieval.colbert.building import BuildSettings, VectorSample, check_settings, compress, train
from blendfilter.retrieval.colbert.compat import patch_colbert
from blendfilter.retrieval.colbert.encoder import ColBERTCheckpoint, TokenEncoder
from blendfilter.retrieval.colbert.index import SearchEffort
from blendfilter.retrieval.stored import StoredPassages

QUERIES = ["Which river is of 17?", "the king of the island", "castle 88", "hill 5 5 5"]


def tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def small_chunks(monkeypatch: pytest.MonkeyPatch, chunk: int = 40, block: int = 16) -> None:
    for module in (building, worker, plan):
        monkeypatch.setattr(module, "CHUNK", chunk)
    monkeypatch.setattr(building, "BLOCK", block)


def hits(index: ColBERT, queries: Sequence[str] = QUERIES, k: int = 10) -> list[list[tuple[str, float]]]:
    return [[(hit.id, hit.score or 0.0) for hit in found] for found in index.search(queries, k)]


def test_colbert_ais_own_searcher_finds_the_same(index: ColBERT, towns: list[Passage], checkpoint: Path) -> None:
    patch_colbert()
    from colbert import Searcher
    from colbert.infra import ColBERTConfig

    assert index.path is not None
    effort = SearchEffort(ncells=1, threshold=0.5, ndocs=256)
    theirs = Searcher(
        index=index.path.name, index_root=str(index.path.parent), checkpoint=str(checkpoint),
        collection=[passage.line for passage in towns], verbose=0,
        config=ColBERTConfig(ncells=1, centroid_score_threshold=0.5, ndocs=256),
    )  # fmt: skip
    for query, ours in zip(QUERIES, hits(ColBERT.open(index.path, effort=effort)), strict=True):
        numbers, _, scores = theirs.search(query, k=10)
        assert [towns[number].id for number in numbers] == [name for name, _ in ours]
        assert scores == pytest.approx([score for _, score in ours], abs=1e-4)


def test_lists_are_colbert_ais(index: ColBERT, tmp_path: Path) -> None:
    from colbert.indexing.utils import optimize_ivf

    assert index.path is not None
    copy = Path(shutil.copytree(index.path, tmp_path / "index"))
    codes = torch.load(copy / "0.codes.pt")
    ordered = codes.sort(stable=True)
    counts = torch.bincount(ordered.values, minlength=index.manifest.settings["partitions"])
    lists, lengths = optimize_ivf(ordered.indices, counts, str(copy), verbose=0)
    ours, our_lengths = torch.load(index.path / "ivf.pid.pt")
    kept = int(lengths.sum())
    assert torch.equal(our_lengths, lengths)
    assert torch.equal(ours[:kept], lists[:kept])
    assert ours.dtype == lists.dtype
    assert len(ours) >= kept + int(lengths.max()), "room behind the last list, at the width of the longest"


def test_metadata_knows_no_path_of_its_own(index: ColBERT, checkpoint: Path) -> None:
    assert index.path is not None
    for name in ("metadata.json", "plan.json", "manifest.json"):
        said = (index.path / name).read_text()
        assert str(index.path.parent) not in said
        assert "building" not in said
    told = json.loads((index.path / "metadata.json").read_text())
    assert told["num_chunks"] == 1
    assert told["num_embeddings"] == index.manifest.settings["vectors"]
    assert told["config"] == {
        "dim": 32, "nbits": 4, "doc_maxlen": 220, "query_maxlen": 32, "checkpoint": str(checkpoint.resolve()),
    }  # fmt: skip


def test_two_builds_are_one_index(index: ColBERT, towns: list[Passage], checkpoint: Path, tmp_path: Path) -> None:
    again = ColBERT.build(towns, tmp_path / "again", checkpoint=checkpoint)
    assert again.fingerprint == index.fingerprint
    assert index.path is not None
    assert tree(tmp_path / "again") == tree(index.path)


def test_the_checkpoints_place_is_no_part_of_an_index(
    index: ColBERT, towns: list[Passage], checkpoint: Path, tmp_path: Path
) -> None:
    shutil.copytree(checkpoint, tmp_path / "moved")
    again = ColBERT.build(towns, tmp_path / "again", checkpoint=tmp_path / "moved")
    assert again.fingerprint == index.fingerprint


@pytest.mark.parametrize("change", [{"nbits": 2}, {"doc_maxlen": 12}, {"partitions": 16}])
def test_settings_make_another_index(
    change: dict[str, int], index: ColBERT, towns: list[Passage], checkpoint: Path
) -> None:
    other = ColBERT.build(towns, checkpoint=checkpoint, **change)  # type: ignore[arg-type]
    assert other.fingerprint != index.fingerprint
    assert other.manifest.settings[next(iter(change))] == next(iter(change.values()))


def test_many_chunks_are_one(
    index: ColBERT, towns: list[Passage], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_chunks(monkeypatch)
    other = ColBERT.build(towns, tmp_path / "other", checkpoint=checkpoint)
    folder = tmp_path / "other"
    assert len(list(folder.glob("*.codes.pt"))) == 4
    assert index.path is not None
    whole, parts = tree(index.path), tree(folder)
    for name in ("ivf.pid.pt", "centroids.pt", "buckets.pt"):
        assert parts[name] == whole[name]
    for kind in ("codes", "residuals"):
        joined = torch.cat([torch.load(folder / f"{chunk}.{kind}.pt") for chunk in range(4)])
        assert torch.equal(joined, torch.load(index.path / f"0.{kind}.pt"))
    lengths = [length for chunk in range(4) for length in json.loads(parts[f"doclens.{chunk}.json"])]
    assert lengths == json.loads(whole["doclens.0.json"])
    about = [json.loads(parts[f"{chunk}.metadata.json"]) for chunk in range(4)]
    assert [each["passage_offset"] for each in about] == [0, 40, 80, 120]
    assert about[3]["embedding_offset"] + about[3]["num_embeddings"] == other.manifest.settings["vectors"]
    assert hits(other) == hits(index)


def test_the_sample_is_what_encoding_anew_gives(towns: list[Passage], encoder: TokenEncoder, tmp_path: Path) -> None:
    for name in ("kept", "anew"):
        (tmp_path / name).mkdir()
    recipe = BuildSettings(4, partitions=8)  # few centroids want few passages: most are encoded later
    _, sample = train(tmp_path / "kept", towns, encoder, recipe)
    train(tmp_path / "anew", towns, encoder, recipe)
    assert sum(compress(tmp_path / "kept", towns, encoder, 64, [0], sample)) == len(towns)
    list(compress(tmp_path / "anew", towns, encoder, 64, [0]))
    one, other = (torch.load(tmp_path / name / "0.codes.pt") for name in ("kept", "anew"))
    assert (one == other).float().mean() > 0.999  # other batches, other rounding
    assert (tmp_path / "kept" / "doclens.0.json").read_text() == (tmp_path / "anew" / "doclens.0.json").read_text()


def test_what_is_sampled_is_not_encoded_twice(
    towns: list[Passage], encoder: TokenEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, sample = train(tmp_path, towns, encoder, BuildSettings(4))
    monkeypatch.setattr(encoder, "passages", lambda *_: pytest.fail("encoded again"))
    assert list(compress(tmp_path, towns, encoder, 64, [0], sample)) == [len(towns)]


def test_a_sample_gives_back_what_was_put_in() -> None:
    sample = VectorSample()
    first, second = torch.arange(10.0).view(5, 2), torch.arange(6.0).view(3, 2)
    sample.add([7, 2], first, [1, 4])
    sample.add([0], second, [3])
    assert torch.equal(sample.of(2), first[1:])
    assert torch.equal(sample.of(7), first[:1])
    assert torch.equal(sample.of(0), second)
    assert sample.of(1) is None
    assert sample.vectors().shape == (8, 2)


def test_a_larger_corpus_is_sampled(encoder: TokenEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "LOOK", 8)
    monkeypatch.setattr(building, "BLOCK", 5)
    many = [Passage(str(n), "", f"river {n} of the sea") for n in range(120)]
    told: list[Any] = []
    made, sample = train(tmp_path, many, encoder, BuildSettings(4, partitions=4), lambda *row: told.append(row))
    expected = plan.planned(120, len(sample.vectors()) / made.sample, "cpu", 4)
    assert 8 < made.sample < 120
    assert abs(made.sample - expected.sample) <= 3  # the length was estimated from the first eight
    positions = [at for at in range(120) if sample.of(at) is not None]
    assert len(positions) == made.sample
    assert max(positions) > 100, "from all over the corpus"
    assert [row for row in told if row[0] == building.SAMPLING][-1][1:] == (made.sample, made.sample)


def test_passages_of_nothing_but_punctuation(checkpoint: Path) -> None:
    passages = [Passage("a", "", "..."), Passage("b", "!", "?"), Passage("c", "", "river")]
    index = ColBERT.build(passages, checkpoint=checkpoint)
    assert index.manifest.settings["vectors"] == 3 + 3 + 4
    assert "c" in {hit.id for hit in index("river", k=3)}
    assert index("!", k=3)


def test_one_passage(checkpoint: Path) -> None:
    assert [hit.id for hit in ColBERT.build([Passage("a", "", "river")], checkpoint=checkpoint)("sea", k=1)] == ["a"]


def test_an_id_twice_in_a_stream(checkpoint: Path, tmp_path: Path) -> None:
    twice = [Passage("a", "", "river"), Passage("b", "", "sea"), Passage("a", "", "hill")]
    with pytest.raises(BadData, match="passage id 'a' occurs twice in the corpus: passages 1 and 3"):
        ColBERT.build(twice, tmp_path / "index", checkpoint=checkpoint)
    assert not list(tmp_path.iterdir())


def test_half_a_character_is_indexed(checkpoint: Path) -> None:
    index = ColBERT.build([Passage("a", "", "river \ud800"), Passage("b", "", "sea")], checkpoint=checkpoint)
    assert len(index("the \udfff river", k=2)) == 2


@pytest.mark.parametrize(
    ("content", "error", "said"),
    [
        (b"", EmptyData, "has no passages"),
        (b'{"id": "1", "text": ""}\n', BadData, "text"),
        (b'{"id": "1", "text": "a"}\n{"id": "1", "text": "b"}\n', BadData, "passage id '1' was used before"),
        (b'{"id": "1", "text": "a \xff"}\n', BadData, "UTF-8"),
    ],
)
def test_a_bad_corpus(content: bytes, error: type[Exception], said: str, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "corpus.jsonl").write_bytes(content)
    with pytest.raises(error, match=said):
        ColBERT.build(tmp_path / "corpus.jsonl", tmp_path / "index", checkpoint=checkpoint)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus.jsonl"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"nbits": 0}, "nbits must be 1, 2, 4 or 8"),
        ({"nbits": 3}, "nbits must be 1, 2, 4 or 8"),
        ({"nbits": 8}, "nbits=8 wants vectors of a multiple of 64, not 32"),
        ({"doc_maxlen": 3}, "doc_maxlen must lie between 4 and the 512 tokens"),
        ({"doc_maxlen": 513}, "doc_maxlen must lie between 4 and the 512 tokens"),
        ({"partitions": 0}, "partitions must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"gpus": -1}, "gpus must lie between 0 and"),
        ({"gpus": 99}, "gpus must lie between 0 and"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], said: str, checkpoint: Path, tmp_path: Path) -> None:
    def never() -> Any:
        raise AssertionError("the corpus was read")
        yield

    with pytest.raises(BadArgument, match=said):
        ColBERT.build(never(), tmp_path / "index", checkpoint=checkpoint, **settings)
    assert not list(tmp_path.iterdir())


def test_the_smallest_settings_build(checkpoint: Path) -> None:
    one = [Passage("a", "", "river of the sea")]
    index = ColBERT.build(one, checkpoint=checkpoint, doc_maxlen=4, partitions=1, nbits=1)
    assert index.manifest.settings["vectors"] == 4
    check_settings(BuildSettings(1, 4, 1, 1), ColBERTCheckpoint(checkpoint))


def test_phases_are_told_in_order(towns: list[Passage], checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch)
    told: list[tuple[str, int, int | None]] = []
    ColBERT.build(towns, checkpoint=checkpoint, progress=lambda *row: told.append(row))  # type: ignore[arg-type]
    assert list(dict.fromkeys(phase for phase, _, _ in told)) == [
        "reading passages", "encoding a sample", "training centroids", "encoding passages",
        "listing passages by centroid",
    ]  # fmt: skip
    for phase in dict.fromkeys(phase for phase, _, _ in told):
        rows = [(done, total) for name, done, total in told if name == phase]
        assert rows == sorted(rows)
        assert rows[-1][0] == rows[-1][1]
    assert [done for phase, done, _ in told if phase == "encoding passages"] == [
        16, 32, 40, 56, 72, 80, 96, 112, 120, 136, 150,
    ]  # fmt: skip


def test_memory_of_passages_is_one_block(
    towns: list[Passage], checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The corpus is read from a stream, and passages are asked for one by one, never as a slice."""
    asked: list[Any] = []
    plain = StoredPassages.__getitem__

    def watched(self: StoredPassages, position: Any) -> Any:
        asked.append(position)
        return plain(self, position)

    monkeypatch.setattr(StoredPassages, "__getitem__", watched)
    ColBERT.build(iter(towns), tmp_path / "index", checkpoint=checkpoint)
    assert all(isinstance(position, int) for position in asked)
    assert len(asked) == len(towns)

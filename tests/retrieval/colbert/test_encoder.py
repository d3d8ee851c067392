"""A checkpoint is what it says, or an error of one line; and texts become the vectors that colbert-ai makes of them."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoints import tiny_colbert
from colbert_ai import patch_colbert
from safetensors.torch import load_file, save_file

from blendfilter.errors import BadData, MissingFile
from blendfilter.retrieval.colbert.compat import parts
from blendfilter.retrieval.colbert.encoder import ColBERTCheckpoint, TokenEncoder

WEIGHTS = "model.safetensors"
CPU = torch.device("cpu")


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(checkpoint, tmp_path / "checkpoint"))


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def reweigh(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    result = str(error.value)
    assert "\n" not in result
    return result


@pytest.mark.parametrize("name", ["no/such/folder", "/nowhere", "./nowhere", "nowhere"])
def test_a_path_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("the hub was asked"))
    with pytest.raises(MissingFile, match=f"no checkpoint '{name}': it is no folder, and names on the hub") as error:
        ColBERTCheckpoint(name)
    one_line(error)


def written(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def edited(name: str, **changes: Any) -> Callable[[Path], object]:
    return lambda folder: edit(folder / name, **changes)


def lacking(name: str) -> Callable[[Path], object]:
    return lambda folder: reweigh(folder, lambda weights: weights.pop(name))


@pytest.mark.parametrize(
    ("damage", "stated"),
    [
        (lambda folder: (folder / "config.json").unlink(), "no checkpoint in .*: a Hugging Face folder has a"),
        (written(WEIGHTS, b"\xff" * 2000), "cannot be loaded"),
        (lacking("bert.encoder.layer.1.output.dense.weight"), r"1 of its weights are missing, encoder.layer.1.o"),
        (lacking("linear.weight"), r"cannot be loaded \('linear.weight'\): is it whole"),
        (written("config.json", b"["), "config.json holds no settings in JSON"),
        (edited("config.json", auto_map={}), "Python code of its own .* is not run"),
        (edited("config.json", architectures=["BertModel"]), r"is no late-interaction .*it has no projection"),
        (edited("artifact.metadata", query_maxlen="many"), r"cannot be loaded \(.*length.*is it whole"),
    ],
)  # fmt: skip
def test_damage_is_told(damage: Callable[[Path], object], stated: str, copy: Path) -> None:
    damage(copy)
    logged: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = logged.append  # type: ignore[method-assign]
    transformers.utils.logging.add_handler(handler)
    try:
        with pytest.raises(BadData, match=stated) as error:
            ColBERTCheckpoint(copy).load(CPU)
    finally:
        transformers.utils.logging.remove_handler(handler)
    one_line(error)
    assert str(copy) in str(error.value)
    assert not logged, "transformers has no report of its own"


def test_code_in_a_checkpoint_is_not_run(copy: Path, checkpoint: Path) -> None:
    (copy / "theirs.py").write_text("raise SystemExit('it was run')")
    edit(copy / "tokenizer_config.json", auto_map={"AutoTokenizer": ["theirs.Tokenizer", None]})
    ours, plain = (ColBERTCheckpoint(folder).load(CPU).state_dict() for folder in (copy, checkpoint))
    assert all(torch.equal(weights, plain[name]) for name, weights in ours.items()), "it is the model that it was"
    assert ours.keys() == plain.keys()


def test_sha256_follows_the_content(copy: Path, checkpoint: Path) -> None:
    here, there = ColBERTCheckpoint(checkpoint), ColBERTCheckpoint(copy)
    assert here.sha256 == there.sha256
    assert here.name != there.name

    def nudge(weights: dict[str, torch.Tensor]) -> None:
        weights["linear.weight"][0, 0] += 1e-4

    reweigh(copy, nudge)
    assert ColBERTCheckpoint(copy).sha256 != here.sha256
    assert ColBERTCheckpoint(tiny_colbert(seed=1)).sha256 != here.sha256


def test_old_weights_load_as_well(copy: Path, checkpoint: Path) -> None:
    torch.save(load_file(copy / WEIGHTS), copy / "pytorch_model.bin")
    (copy / WEIGHTS).unlink()
    found, plain = ColBERTCheckpoint(copy), ColBERTCheckpoint(checkpoint)
    assert torch.equal(found.load(CPU)[1].linear.weight, plain.load(CPU)[1].linear.weight)


QUERIES = ["river", "Which king, born in the town, was on the hill?", "a sea " * 9, "the 4 castles' harbours"]
PASSAGES = ["The river.", "Town 7 | A hill, a castle; and the sea!", "...", "king " * 300, "island " * 30, "a"]


@cache
def colbert_ai(folder: Path) -> Any:
    """colbert-ai's own encoder of that checkpoint."""
    patch_colbert()
    from colbert.modeling.checkpoint import Checkpoint as Theirs

    return Theirs(str(folder), colbert_config=parts().config(), verbose=0)


def test_queries_are_colbert_ais(encoder: TokenEncoder, checkpoint: Path) -> None:
    theirs = colbert_ai(checkpoint).queryFromText(QUERIES)
    ours = encoder.queries(QUERIES, batch_size=3)
    assert [len(vectors) for vectors in ours.vectors] == [32] * 4
    assert torch.allclose(torch.stack(ours.vectors), theirs, atol=1e-5)
    assert ours.cut == [False] * 4


def test_passages_are_colbert_ais(encoder: TokenEncoder, checkpoint: Path) -> None:
    theirs, lengths = colbert_ai(checkpoint).docFromText(PASSAGES, bsize=2, keep_dims="flatten")
    ours, counts = encoder.passages(PASSAGES, batch_size=4)
    assert counts == lengths
    assert counts[2] == 3, "three dots are punctuation, and the three tokens around them stay"
    assert counts[3] == 220, "cut at doc_maxlen"
    assert ours.dtype == torch.float16
    assert torch.allclose(ours.float(), theirs.float(), atol=1e-3)


def test_batches_change_nothing(encoder: TokenEncoder) -> None:
    mixed = [*QUERIES, "river king " * 20, "hill " * 90]
    alone = [encoder.queries([query]).vectors[0] for query in mixed]
    assert [len(vectors) for vectors in alone] == [32, 32, 32, 32, 43, 93]
    for one, other in zip(alone, encoder.queries(mixed).vectors, strict=True):
        assert one.shape == other.shape
        assert torch.allclose(one, other, atol=1e-5)
    whole, counts = encoder.passages(PASSAGES, 2)
    for text, own in zip(PASSAGES, whole.split(counts), strict=True):
        assert torch.allclose(encoder.passages([text])[0].float(), own.float(), atol=1e-3)


def test_a_long_query_is_what_colbert_ai_reads_when_it_is_told_its_length(
    encoder: TokenEncoder, checkpoint: Path
) -> None:
    query = " ".join(["river", "king", "sea", "hill"] * 12)
    theirs = colbert_ai(checkpoint)
    try:
        theirs.query_tokenizer.query_maxlen = 51
        expected = theirs.queryFromText([query])[0]
    finally:
        theirs.query_tokenizer.query_maxlen = 32
    assert torch.allclose(encoder.queries([query]).vectors[0], expected, atol=1e-5)


def test_above_the_models_limit_the_end_is_kept_and_told(encoder: TokenEncoder) -> None:
    end = " ".join(["king", "sea", "hill", "castle", "town"] * 101 + ["born", "in", "the", "island"])  # 509
    read = encoder.queries(["river " + end, "harbour harbour " + end, end])
    assert read.cut == [True, True, False]
    assert [len(vectors) for vectors in read.vectors] == [512] * 3
    for vectors in read.vectors[:2]:
        assert torch.allclose(vectors, read.vectors[2], atol=1e-5)

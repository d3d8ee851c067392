"""A checkpoint is what it says, or an error of one line; and texts become the vectors that colbert-ai makes of them."""

from __future__ import annotations

import json
import logging
import shutil
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoints import tiny_bert, tiny_colbert
from safetensors.torch import load_file, save_file

from blendfilter.errors import BadData, MissingFile
from blendfilter.retrieval.colbert.compat import load_kernels, parts, patch_colbert
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
    with pytest.raises(MissingFile, match=f"no checkpoint at {name}: name its folder, or a model on the hub") as error:
        ColBERTCheckpoint(name)
    one_line(error)


def test_a_hub_name_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted: list[str] = []

    def resolve(host: str, *_: Any, **__: Any) -> Any:
        wanted.append(host)
        raise socket.gaierror("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        MissingFile, match=r"no checkpoint 'nobody/nothing-colbert': .* the hub did not give it"
    ) as error:
        ColBERTCheckpoint("nobody/nothing-colbert")
    assert len(one_line(error)) < 300
    assert {str(host) for host in wanted} <= {"huggingface.co"}


def test_a_plain_bert_is_none() -> None:
    with pytest.raises(BadData, match=r"is no ColBERT checkpoint: it has no projection \(linear.weight\)") as error:
        ColBERTCheckpoint(tiny_bert())
    one_line(error)


def without(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def written(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def edited(name: str, **changes: Any) -> Callable[[Path], object]:
    return lambda folder: edit(folder / name, **changes)


def cut_short(folder: Path) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1000])


def without_a_layer(folder: Path) -> None:
    reweigh(folder, lambda weights: weights.pop("bert.encoder.layer.1.output.dense.weight"))


def garbage_bin(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin").write_bytes(b"garbage")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (without(WEIGHTS), "has no weights"),
        (without("config.json"), "it has no config.json"),
        (written(WEIGHTS, b"xx"), "is damaged"),
        (written(WEIGHTS, b"\xff" * 2000), "is damaged"),
        (written(WEIGHTS, b"\2" + b"\0" * 7 + b"[]"), "is damaged"),
        (garbage_bin, "is damaged, or holds more than weights"),
        (cut_short, "cannot be read"),
        (without_a_layer, r"lacks weights \(bert.encoder.layer.1.output.dense.weight"),
        (written("config.json", b"{"), "config.json is not JSON"),
        (written("config.json", b"[]"), "config.json holds no JSON object"),
        (written("config.json", b"{}"), "cannot be read"),
        (edited("config.json", model_type="nonsense"), "cannot be read"),
        (edited("config.json", hidden_size=64), "config.json and the weights have other sizes"),
        (edited("config.json", auto_map={"AutoModel": "theirs.Model"}), "Python code of its own .* is not run"),
        (edited("config.json", auto_map={}), "Python code of its own"),
        (written("artifact.metadata", b"{"), "artifact.metadata is not JSON"),
        (edited("artifact.metadata", dim="many"), r"artifact.metadata is not what .* leaves \(dim:"),
        (edited("artifact.metadata", dim=64), "projects to 32 numbers, and its artifact.metadata says 64"),
        (written("tokenizer_config.json", b"["), "tokenizer_config.json is not JSON"),
        (written("tokenizer.json", b"["), "cannot be read"),
    ],
)  # fmt: skip
def test_damage_is_told(damage: Callable[[Path], object], said: str, copy: Path) -> None:
    damage(copy)
    logged: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = logged.append  # type: ignore[method-assign]
    transformers.utils.logging.add_handler(handler)
    try:
        with pytest.raises(BadData, match=said) as error:
            ColBERTCheckpoint(copy).load(CPU)
    finally:
        transformers.utils.logging.remove_handler(handler)
    one_line(error)
    assert str(copy) in str(error.value)
    assert not logged, "transformers has no report of its own"


def test_code_in_a_checkpoint_is_not_run(copy: Path) -> None:
    (copy / "theirs.py").write_text("raise SystemExit('it was run')")
    edit(copy / "tokenizer_config.json", auto_map={"AutoTokenizer": ["theirs.Tokenizer", None]})
    ColBERTCheckpoint(copy).load(CPU)


def test_settings_are_colbert_ais_where_nothing_is_said(copy: Path) -> None:
    (copy / "artifact.metadata").unlink()
    found = ColBERTCheckpoint(copy)
    assert found.dim == 32, "from the weights"
    assert (found.settings.query_maxlen, found.settings.doc_maxlen) == (32, 220)
    assert found.settings.mask_punctuation
    assert not found.settings.attend_to_mask_tokens


def test_the_limit_is_the_least_of_what_is_said(copy: Path) -> None:
    assert ColBERTCheckpoint(copy).limit == 512
    edit(copy / "tokenizer_config.json", model_max_length=300)
    assert ColBERTCheckpoint(copy).limit == 300
    edit(copy / "tokenizer_config.json", model_max_length=10**30)
    assert ColBERTCheckpoint(copy).limit == 512


def test_sha256_follows_the_content(copy: Path, checkpoint: Path) -> None:
    here, there = ColBERTCheckpoint(checkpoint), ColBERTCheckpoint(copy)
    assert here.sha256 == there.sha256
    assert here.name != there.name

    def nudge(weights: dict[str, torch.Tensor]) -> None:
        weights["linear.weight"][0, 0] += 1e-4

    reweigh(copy, nudge)
    assert ColBERTCheckpoint(copy).sha256 != here.sha256
    assert ColBERTCheckpoint(tiny_colbert(seed=1)).sha256 != here.sha256


@pytest.mark.parametrize("name", ["artifact.metadata", "tokenizer_config.json"])
def test_sha256_follows_the_settings(name: str, copy: Path, checkpoint: Path) -> None:
    edit(copy / name, query_maxlen=48)
    assert ColBERTCheckpoint(copy).sha256 != ColBERTCheckpoint(checkpoint).sha256


def test_old_weights_load_as_well(copy: Path, checkpoint: Path) -> None:
    torch.save(load_file(copy / WEIGHTS), copy / "pytorch_model.bin")
    (copy / WEIGHTS).unlink()
    found, plain = ColBERTCheckpoint(copy), ColBERTCheckpoint(checkpoint)
    assert found.dim == 32
    assert torch.equal(found.load(CPU)[0].linear.weight, plain.load(CPU)[0].linear.weight)


QUERIES = ["river", "Which king, born in the town, was on the hill?", "a sea " * 9, "the 4 castles' harbours"]
PASSAGES = ["The river.", "Town 7 | A hill, a castle; and the sea!", "...", "king " * 300, "island " * 30, "a"]


@cache
def colbert_ai(folder: Path) -> Any:
    """colbert-ai's own encoder of that checkpoint."""
    patch_colbert()
    load_kernels()  # or its own encoder compiles them anew, behind a lock that outlives whoever is killed
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


@pytest.mark.parametrize("words", [28, 29, 30, 40, 300, 508, 509])
def test_a_long_query_is_read_whole(words: int, encoder: TokenEncoder) -> None:
    beginning = "river " * (words - 1)
    read = encoder.queries([beginning + "king", beginning + "sea"])
    assert [len(vectors) for vectors in read.vectors] == [max(32, words + 3)] * 2
    assert read.cut == [False, False]
    one, other = read.vectors
    assert not torch.allclose(one[words + 1], other[words + 1], atol=1e-2), "the last word is read"
    separator = encoder.queries(["river " * (words - 1) + "king [SEP]"]).vectors[0] if words < 29 else one
    assert torch.isfinite(separator).all()


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


@pytest.mark.parametrize("text", ["\u200b", "\ufeff", "\x00", "\ud800"])
def test_text_that_leaves_no_token_or_no_character(text: str, encoder: TokenEncoder) -> None:
    read = encoder.queries([text])
    assert read.vectors[0].shape == (32, 32)
    assert torch.isfinite(read.vectors[0]).all()
    vectors, counts = encoder.passages([text, "river"])
    assert len(vectors) == sum(counts)
    assert counts[0] >= 3


def test_threads_share_an_encoder(encoder: TokenEncoder) -> None:
    expected = encoder.queries(QUERIES).vectors
    with ThreadPoolExecutor(4) as pool:
        for read in pool.map(lambda _: encoder.queries(QUERIES), range(12)):
            assert all(torch.equal(one, other) for one, other in zip(read.vectors, expected, strict=True))

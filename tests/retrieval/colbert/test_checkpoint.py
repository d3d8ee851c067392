"""A checkpoint is what it says, or an error of one line before anything is built with it."""

from __future__ import annotations

import json
import logging
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from checkpoints import tiny_bert, tiny_colbert
from safetensors.torch import load_file, save_file

from blendfilter.errors import BadData, MissingFile
from blendfilter.retrieval.colbert import ColBERT
from blendfilter.retrieval.colbert.encoder import ColBERTCheckpoint

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
    said = str(error.value)
    assert "\n" not in said
    return said


@pytest.mark.parametrize("name", ["no/such/folder", "/nowhere", "./nowhere", "nowhere"])
def test_a_path_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("the hub was asked"))
    with pytest.raises(MissingFile, match=f"no checkpoint at {name}: name its folder, or a model on the hub") as error:
        ColBERTCheckpoint(name)
    one_line(error)


def test_a_file_is_no_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("org").mkdir()
    Path("org/model").touch()
    with pytest.raises(MissingFile, match="no checkpoint at org/model"):
        ColBERTCheckpoint("org/model")


def test_a_hub_name_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def resolve(host: str, *_: Any, **__: Any) -> Any:
        asked.append(host)
        raise socket.gaierror("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        MissingFile, match=r"no checkpoint 'nobody/nothing-colbert': .* the hub did not give it"
    ) as error:
        ColBERTCheckpoint("nobody/nothing-colbert")
    assert len(one_line(error)) < 300
    assert {str(host) for host in asked} <= {"huggingface.co"}


def test_a_build_without_its_checkpoint_leaves_nothing(tmp_path: Path, towns: Any) -> None:
    with pytest.raises(MissingFile):
        ColBERT.build(towns, tmp_path / "index", checkpoint=tmp_path / "gone")
    assert not list(tmp_path.iterdir())


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

"""Encoders as an index meets them: what is pooled, what is read, what is cut, what is refused, who is who."""

from __future__ import annotations

import json
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import minilm, minilm_package, tiny_bert

from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.retrieval.encoders import Encoder, Vectors, load_encoder

pytest.importorskip("sentence_transformers")

TEXTS = ["who built the castle", "the river", "a king was born in the town of the sea and of the hill", "1574"]


def mean_pooled(folder: Path, texts: list[str]) -> Vectors:
    """Contriever's pooling, text by text, so that nothing is padded: the mean over the last layer's tokens."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = []
    with torch.no_grad():
        for text in texts:
            tokens = tokenizer(text, return_tensors="pt", truncation=True, max_length=512)
            rows.append(model(**tokens).last_hidden_state[0].mean(dim=0).numpy())
    return np.stack(rows)


def changed(folder: Path, tmp_path: Path, name: str = "changed") -> Path:
    """A copy of an encoder to do something to."""
    return Path(shutil.copytree(folder, tmp_path / name))


def drop_weights(folder: Path, *names: str) -> None:
    from safetensors.numpy import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    for name in names:
        del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def vectors(encoder: Encoder, *texts: str) -> Vectors:
    return encoder.encode_queries(texts).vectors


def test_a_plain_folder_is_mean_pooled_and_not_normalised() -> None:
    encoder = load_encoder(str(tiny_bert()))
    expected = mean_pooled(tiny_bert(), TEXTS)
    assert encoder.reading.similarity == "dot"
    found = encoder.encode_passages(TEXTS, batch_size=3).vectors
    assert found.dtype == np.float32
    assert found.shape == (4, encoder.dimension) == (4, 32)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(vectors(encoder, *TEXTS), expected, rtol=1e-4, atol=1e-5)


def test_a_sentence_transformers_folder_says_itself_how_it_is_read() -> None:
    encoder = load_encoder(str(minilm_package()))
    assert encoder.reading == ("", "", "cosine", 256)
    assert np.linalg.norm(vectors(encoder, "who built the castle")) == pytest.approx(1, abs=1e-5)


def test_a_similarity_that_is_none_of_ours_must_be_replaced(tmp_path: Path) -> None:
    folder = changed(minilm_package(), tmp_path)
    (folder / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "euclidean"}')
    with pytest.raises(BadArgument, match="wants the similarity 'euclidean': say similarity='cosine' or 'dot'"):
        load_encoder(str(folder))
    assert load_encoder(str(folder), similarity="dot").reading.similarity == "dot"


def test_what_is_longer_than_the_limit_is_flagged_and_cut() -> None:
    """`the river the river …`: two tokens a pair of words, and the two marks at the ends."""
    encoder = load_encoder(str(tiny_bert()), max_length=12)
    fits, over = "the river " * 5, "the river " * 5 + "castle"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoded = encoder.encode_queries([over, fits, "the"])
    assert encoded.cut == [True, False, False]
    np.testing.assert_allclose(encoded.vectors[0], encoded.vectors[1], rtol=1e-4, atol=1e-5)
    assert encoder.encode_passages([fits, over]).cut == [False, True]


def test_without_a_limit_stated_the_positions_are_the_limit(tmp_path: Path) -> None:
    folder = changed(tiny_bert(), tmp_path)
    stated = folder / "tokenizer_config.json"
    stated.write_text(json.dumps({**json.loads(stated.read_text()), "model_max_length": 10**30}))
    encoder = load_encoder(str(folder))
    assert encoder.reading.max_length == 512
    assert encoder.encode_queries(["the " * 600, "the " * 510]).cut == [True, False]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 513}, "max_length=513 is more than the encoder .* can read: 512 tokens"),
        ({"similarity": "euclid"}, "similarity must be one of cosine, dot, got 'euclid'"),
    ],
)
def test_settings_that_an_encoder_cannot_do(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadArgument, match=message):
        load_encoder(str(tiny_bert()), **settings)


def test_threads_share_an_encoder() -> None:
    """Of long texts, for which the tokenizer is set one way to count them and another to cut them."""
    encoder = load_encoder(str(tiny_bert()))
    expected = vectors(encoder, "the castle " * 400)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: vectors(encoder, "the castle " * 400), range(64)):
            np.testing.assert_array_equal(found, expected)


def test_a_query_is_the_same_vector_whatever_stands_beside_it() -> None:
    encoder = load_encoder(str(minilm()), device="cpu")
    queries = [" ".join(["the castle by the sea was built by king Orm"] * n) for n in range(1, 6)]
    together = vectors(encoder, *queries)
    for row, query in zip(together, queries, strict=True):
        np.testing.assert_array_equal(row, vectors(encoder, query)[0])


def test_a_moved_encoder_is_the_same_and_a_changed_one_is_not(tmp_path: Path) -> None:
    moved, other = changed(tiny_bert(), tmp_path, "moved"), changed(tiny_bert(), tmp_path, "other")
    (moved / "README.md").write_text("words")
    (moved / "onnx").mkdir()
    (moved / "onnx" / "config.json").write_text("{}")
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))

    def identity(folder: Path, **settings: Any) -> str:
        return load_encoder(str(folder), **settings).identity

    same = identity(tiny_bert())
    assert identity(moved) == same
    others = {
        identity(other),
        identity(tiny_bert(seed=1)),
        identity(tiny_bert(), query_prefix="q"),
        identity(tiny_bert(), passage_prefix="q"),
        identity(tiny_bert(), similarity="cosine"),
        identity(tiny_bert(), max_length=64),
    }
    assert len(others) == 6
    assert same not in others


def test_an_encoder_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(MissingFile, match="no encoder '/no/such/folder': it is no folder"):
        load_encoder("/no/such/folder")
    with pytest.raises(
        MissingFile, match="no encoder 'nobody/nothing': no folder here, not in the hub's cache"
    ) as raised:
        load_encoder("nobody/nothing")
    assert "\n" not in str(raised.value)
    with pytest.raises(BadData, match=r"no encoder in .*: a Hugging Face folder has a config\.json or modules\.json"):
        load_encoder(str(tmp_path))


def test_a_half_saved_encoder_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = changed(tiny_bert(), tmp_path)
    drop_weights(folder, "encoder.layer.1.attention.self.query.weight", "pooler.dense.weight")
    with pytest.raises(BadData, match=r"not whole: 1 of its weights are missing, encoder\.layer\.1\.attention"):
        load_encoder(str(folder))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("name", "content"), [("model.safetensors", b"\0" * 40), ("config.json", b"{")])
def test_a_damaged_encoder_is_refused_in_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    folder = changed(tiny_bert(), tmp_path)
    (folder / name).write_bytes(content)
    with pytest.raises(BadData, match="cannot be loaded") as raised:
        load_encoder(str(folder))
    assert "\n" not in str(raised.value)

"""Encoders as an index meets them: what is pooled, what is read, what is cut, what is refused, who is who."""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkpoints import (
    minilm,
    minilm_package,
    tiny_bert,
    tiny_colbert,
    tiny_cross_encoder,
    tiny_dpr,
    tiny_router,
    tiny_sentence_encoder,
)

from blendfilter.errors import BadArgument, BadData, MissingFile, UnknownName
from blendfilter.records import Passage
from blendfilter.retrieval import encoders
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
    assert encoder.reading == ("", "", "cosine", 256, None, None)
    assert np.linalg.norm(vectors(encoder, "who built the castle")) == pytest.approx(1, abs=1e-5)


def test_a_similarity_that_is_none_of_ours_must_be_replaced(tmp_path: Path) -> None:
    folder = changed(minilm_package(), tmp_path)
    (folder / "config_sentence_transformers.json").write_text('{"similarity_fn_name": "manhattan"}')
    with pytest.raises(BadArgument, match=r"wants the similarity 'manhattan': say similarity=cosine, dot or l2"):
        load_encoder(str(folder))
    assert load_encoder(str(folder), similarity="dot").reading.similarity == "dot"


def test_a_euclidean_similarity_is_l2_and_leaves_lengths_alone() -> None:
    encoder = load_encoder(str(tiny_sentence_encoder(similarity_fn_name="euclidean")))
    assert encoder.reading.similarity == "l2"
    np.testing.assert_allclose(vectors(encoder, *TEXTS), mean_pooled(tiny_bert(), TEXTS), rtol=1e-4, atol=1e-5)


def test_cls_pooling_is_the_first_token_of_the_last_layer() -> None:
    """Against transformers, text by text; and a decoder's or a mean's other pooling is another encoder."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(tiny_bert()), AutoModel.from_pretrained(tiny_bert()).eval()
    with torch.no_grad():
        found = [model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 0].numpy() for text in TEXTS]
    encoder = load_encoder(str(tiny_bert()), pooling="cls")
    np.testing.assert_allclose(vectors(encoder, *TEXTS), np.stack(found), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(encoder.encode_passages(TEXTS).vectors, np.stack(found), rtol=1e-4, atol=1e-5)
    plain = load_encoder(str(tiny_bert()))
    assert encoder.identity != plain.identity == load_encoder(str(tiny_bert()), pooling="mean").identity


# two encoders, DPR's and others


@pytest.mark.parametrize("projection", [0, 8])
def test_dpr_is_what_transformers_gives(projection: int) -> None:
    """A question alone; a passage as the pair of its title and its text."""
    import torch
    from transformers import AutoTokenizer, DPRContextEncoder, DPRQuestionEncoder

    question, context = tiny_dpr("Question", projection=projection), tiny_dpr("Context", projection=projection, seed=1)
    encoder = load_encoder(str(context), query_encoder=str(question))
    tokenizer = AutoTokenizer.from_pretrained(context)
    passages = [Passage("1", "The Castle", "A king was born\nin it."), Passage("2", "", "A town of the sea.")]
    lines = [encoder.line(passage) for passage in passages]
    assert lines == ["The Castle [SEP] A king was born in it.", "A town of the sea."]
    read = [tokenizer("The Castle", "A king was born in it.")["input_ids"], tokenizer(passages[1].text)["input_ids"]]
    with torch.no_grad():
        asking, answering = (
            DPRQuestionEncoder.from_pretrained(question).eval(),
            DPRContextEncoder.from_pretrained(context).eval(),
        )
        queries = [asking(**tokenizer(text, return_tensors="pt")).pooler_output[0].numpy() for text in TEXTS]
        expected = [answering(torch.tensor([ids])).pooler_output[0].numpy() for ids in read]
    assert encoder.reading == ("", "", "dot", 512, None, None)
    assert encoder.dimension == (projection or 32)
    np.testing.assert_allclose(vectors(encoder, *TEXTS), np.stack(queries), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(encoder.encode_passages(lines).vectors, np.stack(expected), rtol=1e-4, atol=1e-5)


def test_two_folders_each_read_their_own_way() -> None:
    """Queries by one with a prompt of its own, passages by another: each as alone, each cut at its own length."""
    asking, answering = tiny_sentence_encoder(prompts={"query": "who "}), tiny_bert(seed=1)
    encoder = load_encoder(str(answering), query_encoder=str(asking), similarity="dot", query_max_length=32)
    assert encoder.reading == ("who ", "", "dot", 512, None, 32)
    alone = mean_pooled(tiny_bert(), [f"who {text}" for text in TEXTS])
    np.testing.assert_allclose(vectors(encoder, *TEXTS), alone, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        encoder.encode_passages(TEXTS).vectors, mean_pooled(answering, TEXTS), rtol=1e-4, atol=1e-5
    )
    long = "the river " * 20
    assert (encoder.encode_queries([long]).cut, encoder.encode_passages([long]).cut) == ([True], [False])


def test_a_router_leads_queries_and_passages_to_their_own_models_and_lengths() -> None:
    encoder = load_encoder(str(tiny_router()), similarity="dot")
    assert encoder.reading == ("", "", "dot", 64, None, 16)
    short = TEXTS[:2]
    np.testing.assert_allclose(vectors(encoder, *short), mean_pooled(tiny_bert(), short), rtol=1e-4, atol=1e-5)
    passages = encoder.encode_passages(TEXTS).vectors
    np.testing.assert_allclose(passages, mean_pooled(tiny_bert(seed=1), TEXTS), rtol=1e-4, atol=1e-5)
    over = ["the river " * 10]
    assert (encoder.encode_queries(over).cut, encoder.encode_passages(over).cut) == ([True], [False])
    assert load_encoder(str(tiny_router()), max_length=32).reading[3:] == (32, None, None)


def test_a_router_without_a_route_and_a_half_saved_one_are_refused(tmp_path: Path) -> None:
    folder = changed(tiny_router(), tmp_path)
    router = next(folder.rglob("router_config.json"))
    whole = json.loads(router.read_text())
    identity = load_encoder(str(folder)).identity
    query, document = whole["structure"]["query"], whole["structure"]["document"]
    router.write_text(json.dumps(whole | {"structure": {"query": document, "document": query}}))
    assert load_encoder(str(folder)).identity != identity, "routes that were swapped"
    twice = load_encoder(str(folder), query_encoder=str(tiny_router())).identity
    moved = changed(folder, tmp_path, "a")
    assert load_encoder(str(moved), query_encoder=str(tiny_router())).identity == twice, "a folder that moved"
    named = {"types": whole["types"], "structure": {"query": query, "answer": document}, "parameters": {}}
    router.write_text(json.dumps(named))
    with pytest.raises(BadData, match=r"has no route for passages \(document\), only for: query, answer"):
        load_encoder(str(folder))
    router.write_text(json.dumps(whole))
    drop_weights(next(folder.rglob("document_0_Transformer")), "encoder.layer.1.attention.self.query.weight")
    with pytest.raises(BadData, match=r"is not whole: 1 of its weights are missing"):
        load_encoder(str(folder))


def test_prompts_are_the_checkpoints_own_unless_others_are_named() -> None:
    folder = str(tiny_sentence_encoder(prompts={"query": "q: ", "passage": "p: ", "web": "search: "}))

    def prefixes(**options: Any) -> tuple[str, str]:
        return load_encoder(folder, **options).reading[:2]

    assert prefixes() == ("q: ", "p: ")
    assert prefixes(query_prompt="web", passage_prefix="") == ("search: ", "")
    assert prefixes(query_prefix="ask: ", passage_prompt="query") == ("ask: ", "q: ")
    with pytest.raises(UnknownName, match=r"no prompt 'wbe'\. Did you mean 'web'\? \(known: passage, query, web\) of"):
        prefixes(query_prompt="wbe")
    with pytest.raises(BadArgument, match="passage_prefix= and passage_prompt= both say what stands before passages"):
        prefixes(passage_prefix="p", passage_prompt="web")


CONTEXT, QUESTION = "Context", "Question"
WRONG_KINDS: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "a question encoder for passages": (
        lambda: tiny_dpr(QUESTION), {"query_encoder": lambda: tiny_dpr(QUESTION, seed=1)}, BadArgument,
        r"is a DPRQuestionEncoder, which encodes queries alone: name DPR's context encoder with encoder= and its",
    ),
    "a context encoder for queries": (
        lambda: tiny_dpr(CONTEXT), {"query_encoder": lambda: tiny_dpr(CONTEXT, seed=1)}, BadArgument,
        "is a DPRContextEncoder, which encodes passages alone",
    ),
    "a context encoder alone": (lambda: tiny_dpr(CONTEXT), {}, BadArgument, "encodes passages alone"),
    "a reranker": (tiny_cross_encoder, {}, BadData, "is no encoder but a reranker: it gives scores"),
    "a reranker of sentence-transformers": (
        lambda: tiny_sentence_encoder(model_type="CrossEncoder"), {}, BadData, "is no encoder but a reranker",
    ),
    "a ColBERT checkpoint": (tiny_colbert, {}, BadData, "is no encoder but a checkpoint of late interaction"),
    "a query encoder that is not there": (
        tiny_bert, {"query_encoder": lambda: "/no/such"}, MissingFile, "no encoder '/no/such'",
    ),
    "other numbers": (
        tiny_bert, {"query_encoder": minilm}, BadArgument, "vectors of 32 numbers, and the query encoder .* of 384",
    ),
    "similarities that differ": (
        lambda: tiny_sentence_encoder(similarity_fn_name="dot"),
        {"query_encoder": lambda: tiny_sentence_encoder(similarity_fn_name="cosine")}, BadArgument,
        r"want another similarity each \(.* dot and .* cosine\): say similarity",
    ),
    "a pooling beside the checkpoint's own": (
        tiny_sentence_encoder, {"pooling": "cls"}, BadArgument, "pools mean by its own settings, not cls: leave out",
    ),
    "a pooling beside DPR's": (
        lambda: tiny_dpr(CONTEXT), {"query_encoder": lambda: tiny_dpr(QUESTION), "pooling": "mean"}, BadArgument,
        "pools cls by its own settings, not mean",
    ),
    "a pooling that is none": (tiny_bert, {"pooling": "max"}, BadArgument, "pooling must be one of mean, cls"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WRONG_KINDS)
def test_checkpoints_of_another_kind_are_refused_in_one_line(kind: str, capfd: pytest.CaptureFixture[str]) -> None:
    folder, options, error, message = WRONG_KINDS[kind]
    given = {name: str(value()) if callable(value) else value for name, value in options.items()}
    name = str(folder())
    capfd.readouterr()
    with pytest.raises(error, match=message) as raised:
        load_encoder(name, **given)
    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


def test_an_encoder_keeps_the_identity_that_earlier_versions_gave_it() -> None:
    """sha256 over its files' hash and four options; what came later is added where it is in use."""
    files = encoders.files_hash(tiny_bert())
    old = hashlib.sha256(json.dumps([files, ["q", "", "dot", 512]]).encode()).hexdigest()
    assert load_encoder(str(tiny_bert()), query_prefix="q").identity == old


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
        ({"similarity": "euclid"}, "similarity must be one of cosine, dot, l2, got 'euclid'"),
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
    with pytest.raises(BadData, match=r"cannot be loaded|holds no settings in JSON") as raised:
        load_encoder(str(folder))
    assert "\n" not in str(raised.value)

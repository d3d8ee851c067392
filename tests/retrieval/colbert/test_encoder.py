"""Texts to vectors: as colbert-ai makes them, except that no query is cut where the model can read on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from blendfilter.retrieval.colbert.compat import parts, patch_colbert
from blendfilter.retrieval.colbert.encoder import ColBERTCheckpoint, TokenEncoder

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


def test_vectors_have_length_one(encoder: TokenEncoder) -> None:
    vectors = torch.cat(encoder.queries(QUERIES).vectors)
    assert torch.allclose(vectors.norm(dim=1), torch.ones(len(vectors)), atol=1e-5)


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


def test_a_query_of_ten_thousand_words(encoder: TokenEncoder, recwarn: pytest.WarningsRecorder) -> None:
    read = encoder.queries(["river king " * 5_000])
    assert read.cut == [True]
    assert read.vectors[0].shape == (512, 32)
    assert not list(recwarn)


@pytest.mark.parametrize("text", ["\u200b", "\ufeff", "\x00", "\ud800"])
def test_text_that_leaves_no_token_or_no_character(text: str, encoder: TokenEncoder) -> None:
    read = encoder.queries([text])
    assert read.vectors[0].shape == (32, 32)
    assert torch.isfinite(read.vectors[0]).all()
    vectors, counts = encoder.passages([text, "river"])
    assert len(vectors) == sum(counts)
    assert counts[0] >= 3


def test_a_query_maxlen_above_what_the_model_reads(checkpoint: Path) -> None:
    wide = TokenEncoder(ColBERTCheckpoint(checkpoint), "cpu", query_maxlen=2_000)
    assert wide.queries(["river"]).vectors[0].shape == (512, 32)


def test_threads_share_an_encoder(encoder: TokenEncoder) -> None:
    expected = encoder.queries(QUERIES).vectors
    with ThreadPoolExecutor(4) as pool:
        for read in pool.map(lambda _: encoder.queries(QUERIES), range(12)):
            assert all(torch.equal(one, other) for one, other in zip(read.vectors, expected, strict=True))

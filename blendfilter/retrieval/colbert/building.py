"""The phases of a build: sample, centroids, every passage compressed, and the lists of passages a centroid has.

In: passages that lie in the folder already, a checkpoint. Out: a folder in colbert-ai's PLAID format, which its own
`Searcher` opens too. Memory holds the sample, one chunk of compressed passages at a time, and at the end four bytes for
every (centroid, passage) pair; never the corpus' text.
"""

from __future__ import annotations

import errno
import json
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import PickleError
from typing import Any, NamedTuple

import numpy as np
import torch

from blendfilter.errors import BadArgument, BadData
from blendfilter.records import Passage
from blendfilter.retrieval.colbert.checkpoint import Checkpoint
from blendfilter.retrieval.colbert.codec import SEED, codec_class, trained
from blendfilter.retrieval.colbert.compat import gpus_seen, parts
from blendfilter.retrieval.colbert.encoder import Encoder
from blendfilter.retrieval.colbert.plan import CHUNK, LOOK, Plan, planned
from blendfilter.retrieval.progress import Progress, silent

SAMPLING, ENCODING, INVERTING = "encoding a sample", "encoding passages", "listing passages by centroid"
BLOCK = 1_000
"""Passages encoded and compressed at a time."""
ROUNDS = 4
"""Rounds of k-means, colbert-ai's number."""


class Recipe(NamedTuple):
    """What a build was asked for."""

    nbits: int
    doc_maxlen: int = 220
    partitions: int | None = None
    batch_size: int = 64


def check_recipe(recipe: Recipe, checkpoint: Checkpoint) -> None:
    """Raise `BadArgument` for what no index can be built with."""
    if recipe.nbits not in (1, 2, 4, 8):
        raise BadArgument(f"nbits must be 1, 2, 4 or 8 (bits kept of each dimension), got {recipe.nbits}")
    if checkpoint.dim % (8 * recipe.nbits):
        raise BadArgument(
            f"nbits={recipe.nbits} wants vectors of a multiple of {8 * recipe.nbits}, not {checkpoint.dim}"
        )
    if not 4 <= recipe.doc_maxlen <= checkpoint.limit:
        raise BadArgument(
            f"doc_maxlen must lie between 4 and the {checkpoint.limit} tokens that this checkpoint reads, "
            f"got {recipe.doc_maxlen}"
        )
    if recipe.partitions is not None and recipe.partitions < 1:
        raise BadArgument(f"partitions must be at least 1, got {recipe.partitions}")
    if recipe.batch_size < 1:
        raise BadArgument(f"batch_size must be at least 1, got {recipe.batch_size}")


class Sample:
    """The vectors that the centroids are trained on, and whose passages need not be encoded again."""

    def __init__(self) -> None:
        self._blocks: list[Any] = []
        self._found: dict[int, tuple[int, int, int]] = {}

    def add(self, positions: Sequence[int], vectors: Any, lengths: Sequence[int]) -> None:
        """Keep the vectors of the passages at `positions`."""
        start = 0
        for at, length in zip(positions, lengths, strict=True):
            self._found[at] = (len(self._blocks), start, length)
            start += length
        self._blocks.append(vectors)

    def vectors(self) -> Any:
        """All of them, (n, dim)."""
        flat = torch.cat(self._blocks)
        self._blocks = list(flat.split([len(block) for block in self._blocks]))  # views, so that they are kept once
        return flat

    def of(self, at: int) -> Any | None:
        """The vectors of the passage at that position, where it was sampled."""
        if at not in self._found:
            return None
        block, start, length = self._found[at]
        return self._blocks[block][start : start + length]


def train(
    folder: Path, passages: Sequence[Passage], encoder: Encoder, recipe: Recipe, progress: Progress = silent
) -> tuple[Plan, Sample]:
    """Sample, train and save the codec; returns the plan it follows, and the sample."""
    chosen = np.random.default_rng(SEED).permutation(len(passages))
    sample, lengths = Sample(), list[int]()

    def encode(positions: Sequence[int]) -> None:
        vectors, counts = encoder.passages([passages[at].line for at in positions], recipe.batch_size)
        sample.add(positions, vectors, counts)
        lengths.extend(counts)

    encode(chosen[:LOOK].tolist())
    plan = planned(len(passages), sum(lengths) / len(lengths), encoder.device.type, recipe.partitions)
    while len(lengths) < plan.sample:
        progress(SAMPLING, len(lengths), plan.sample)
        encode(chosen[len(lengths) : min(len(lengths) + BLOCK, plan.sample)].tolist())
    progress(SAMPLING, len(lengths), len(lengths))
    config = config_of(encoder.checkpoint, recipe)
    with on_device(encoder.device):
        codec = trained(sample.vectors(), count=plan.partitions, rounds=ROUNDS, config=config, device=encoder.device,
                        progress=progress)  # fmt: skip
    codec.save(str(folder))
    settings = {"dim": encoder.dim, "nbits": recipe.nbits, "doc_maxlen": recipe.doc_maxlen,
                "query_maxlen": encoder.query_maxlen, "checkpoint": encoder.checkpoint.name}  # fmt: skip
    numbers = {"num_chunks": -(-len(passages) // CHUNK), "num_partitions": len(codec.centroids)}
    (folder / "plan.json").write_text(json.dumps({"config": settings, **numbers}, indent=1) + "\n", encoding="utf-8")
    return Plan(len(codec.centroids), len(lengths)), sample


def compress(
    folder: Path, passages: Sequence[Passage], encoder: Encoder, batch_size: int, chunks: Sequence[int],
    sample: Sample | None = None,
) -> Iterator[int]:  # fmt: skip
    """Encode, compress and write the chunks of those numbers; yields the number of passages of each block done."""
    known = sample or Sample()
    with on_device(encoder.device):
        codec = codec_class().load(str(folder))
    for chunk in chunks:
        codes, residuals, lengths = [], [], list[int]()
        first, last = chunk * CHUNK, min((chunk + 1) * CHUNK, len(passages))
        for start in range(first, last, BLOCK):
            block = range(start, min(start + BLOCK, last))
            vectors = _encoded(passages, block, encoder, batch_size, known)
            small = codec.compress(torch.cat(vectors))
            codes.append(small.codes)
            residuals.append(small.residuals)
            lengths.extend(len(own) for own in vectors)
            yield len(block)
        _write_chunk(folder, chunk, first, torch.cat(codes), torch.cat(residuals), lengths)


def _encoded(
    passages: Sequence[Passage], block: Sequence[int], encoder: Encoder, batch_size: int, sample: Sample
) -> list[Any]:
    """The vectors of each passage of a block, from the sample where it has them."""
    found = {at: vectors for at in block if (vectors := sample.of(at)) is not None}
    new = [at for at in block if at not in found]
    if new:
        vectors, counts = encoder.passages([passages[at].line for at in new], batch_size)
        found |= dict(zip(new, vectors.split(counts), strict=True))
    return [found[at] for at in block]


def _write_chunk(folder: Path, chunk: int, first: int, codes: Any, residuals: Any, lengths: list[int]) -> None:
    parts().codec.Embeddings(codes, residuals).save(str(folder / str(chunk)))
    (folder / f"doclens.{chunk}.json").write_text(json.dumps(lengths), encoding="utf-8")
    told = {"passage_offset": first, "num_passages": len(lengths), "num_embeddings": len(codes)}
    (folder / f"{chunk}.metadata.json").write_text(json.dumps(told), encoding="utf-8")


def finish(folder: Path, passages: int, progress: Progress = silent) -> int:
    """Write which passages each centroid has (`ivf.pid.pt`) and `metadata.json`; returns the number of vectors."""
    plan = json.loads((folder / "plan.json").read_bytes())
    vectors, chunks = 0, plan["num_chunks"]
    lengths = np.zeros(plan["num_partitions"], dtype=np.int64)
    for chunk in range(chunks):
        progress(INVERTING, chunk, 2 * chunks)
        about = json.loads((folder / f"{chunk}.metadata.json").read_bytes())
        told = json.dumps({**about, "embedding_offset": vectors})
        (folder / f"{chunk}.metadata.json").write_text(told, encoding="utf-8")
        vectors += about["num_embeddings"]
        lengths += np.bincount(_pairs(folder, chunk)[0], minlength=len(lengths))
    # colbert-ai reads every list at the width of the longest, so the last ones want something behind them
    lists = np.zeros(lengths.sum() + lengths.max(), dtype=np.int32)
    free = np.cumsum(lengths) - lengths
    for chunk in range(chunks):
        progress(INVERTING, chunks + chunk, 2 * chunks)
        centroids, owners = _pairs(folder, chunk)
        counts = np.bincount(centroids, minlength=len(lengths))
        within = np.arange(len(centroids)) - np.repeat(np.cumsum(counts) - counts, counts)
        lists[free[centroids] + within] = owners
        free += counts
    progress(INVERTING, 2 * chunks, 2 * chunks)
    torch.save((torch.from_numpy(lists), torch.from_numpy(lengths)), folder / "ivf.pid.pt")
    plan |= {"num_embeddings": vectors, "avg_doclen": vectors / passages}
    (folder / "metadata.json").write_text(json.dumps(plan, indent=1) + "\n", encoding="utf-8")
    return vectors


def _pairs(folder: Path, chunk: int) -> tuple[Any, Any]:
    """Which centroids occur in which passages of a chunk, each pair once: ordered by centroid, then by passage."""
    codes = torch.load(folder / f"{chunk}.codes.pt").numpy().astype(np.int64)
    first = json.loads((folder / f"{chunk}.metadata.json").read_bytes())["passage_offset"]
    lengths = json.loads((folder / f"doclens.{chunk}.json").read_bytes())
    pairs = np.unique(codes * len(lengths) + np.repeat(np.arange(len(lengths)), lengths))
    return pairs // len(lengths), pairs % len(lengths) + first


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Inside the block, a file of an index that torch or colbert-ai cannot read is a `BadData`."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, OSError, ValueError, TypeError, KeyError, EOFError, AssertionError, PickleError) as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0][:100]
        raise BadData(f"the index at {folder} is damaged ({said}): build it again") from error


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Inside the block, a full disk is an `OSError` where `torch.save` writes too, which has many words for it."""
    try:
        yield
    except RuntimeError as error:
        if all(frame.f_code is not torch.save.__code__ for frame, _ in traceback.walk_tb(error.__traceback__)):
            raise
        raise OSError(errno.ENOSPC, "torch could not write the index here: is the disk full?", str(folder)) from error


def config_of(checkpoint: Checkpoint, recipe: Recipe) -> Any:
    """The settings in colbert-ai's own form."""
    return parts().config(dim=checkpoint.dim, nbits=recipe.nbits, doc_maxlen=recipe.doc_maxlen)


def on_device(device: Any) -> Any:
    """The block in which colbert-ai's classes take the GPU, or leave it."""
    return gpus_seen(1 if device.type == "cuda" else 0)

"""The phases of a build: sample, centroids, every passage compressed, and the lists of passages a centroid has.

The result is a folder in colbert-ai's PLAID format, which its own `Searcher` opens too. Token vectors become a centroid
and a residual of a few bits for each dimension (ColBERTv2, section 3.3; PLAID, section 3.1). Memory holds the sample,
one chunk of compressed passages at a time, and at the end four bytes for every (centroid, passage) pair; never the
corpus' text. Over several GPUs, chunks are compressed by one process a GPU.

PLAID's rule is 16 sqrt(vectors) centroids, rounded down to a power of two; on a CPU, training them is most of a build,
so there a quarter of that is taken: it costs about two points of overlap with exact search (0.911 for 0.928).

Differs from colbert-ai: centroids are trained in torch, on the device at hand, by spherical k-means (faiss trains on
the CPU wherever `faiss-cpu` is installed); blocks are small, so that compressing takes megabytes and not gigabytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from blendfilter.errors import BadArgument, BadData, check_count
from blendfilter.files import write_whole, writing
from blendfilter.records import Passage
from blendfilter.retrieval.base import ProgressCallback, silent
from blendfilter.retrieval.colbert.compat import gpus_seen, parts, torch
from blendfilter.retrieval.colbert.encoder import ColBERTCheckpoint, TokenEncoder
from blendfilter.retrieval.on_ray import ENCODING, ChunkFolder, OnRay
from blendfilter.retrieval.stored import stored_passages

SAMPLING, CLUSTERING = "encoding a sample", "training centroids"
INVERTING = "listing passages by centroid"
CODEC = ("centroids.pt", "avg_residual.pt", "buckets.pt", "plan.json")
PER_VECTOR = ("codes", "residuals")
SAMPLE, TRAINED = "sample.pt", "trained.json"
"""Beside the chunks that a cluster makes: the sampled passages' vectors, and that the codec is there."""
Compressed = tuple[Any, Any, list[int]]
"""Codes and residuals of the vectors of some passages, and how many vectors each passage has."""
CHUNK = 10_000  # passages in one chunk of an index's files
BLOCK = 1_000  # passages encoded and compressed at a time
LOOK = 256  # passages that are encoded to learn how long passages are
SMALL = 100_000  # passages up to which an index can afford more bits and a wider search
PER_CENTROID = 64  # sampled vectors a centroid is trained on, at the most
FACTOR = {"cuda": 16, "cpu": 4}
ROUNDS = 4  # of k-means, colbert-ai's number
SEED = 12345
SCORES = 1 << 25  # computed at a time while vectors look for their centroid: 128 MB of float32
HELD_OUT, MOST_HELD_OUT = 0.05, 50_000
# numbers that torch takes a quantile of; more than 335 dimensions would bring more
MOST_QUANTILE = 1 << 24


class IndexBuild(NamedTuple):
    """A late-interaction index that is being built: its passages, their encoder, the folder that takes its files.

    `nbits` are kept of each dimension; `partitions` is the number of centroids, None for `planned`'s.
    """

    folder: Path
    passages: Sequence[Passage]
    encoder: TokenEncoder
    nbits: int = 4
    partitions: int | None = None
    batch_size: int = 64
    progress: ProgressCallback = silent

    def check(self) -> None:
        """Raise `BadArgument` for what no index can be built with."""
        encoder, nbits = self.encoder, self.nbits
        if nbits not in (1, 2, 4, 8):
            raise BadArgument(
                f"nbits must be 1, 2, 4 or 8 (bits kept of each dimension), got {nbits}"
            )
        if encoder.dim % (8 * nbits):
            raise BadArgument(
                f"nbits={nbits} wants vectors of a multiple of {8 * nbits}, not {encoder.dim}"
            )
        if not 4 <= encoder.doc_maxlen <= encoder.limit:
            raise BadArgument(
                f"doc_maxlen must lie between 4 and the {encoder.limit} tokens that this checkpoint reads, "
                f"got {encoder.doc_maxlen}"
            )
        check_count("partitions", 1 if self.partitions is None else self.partitions)
        check_count("batch_size", self.batch_size)

    @property
    def shape(self) -> dict[str, int]:
        """What two indexes that share a codec have in common."""
        encoder = self.encoder
        return {"dim": encoder.dim, "nbits": self.nbits, "doc_maxlen": encoder.doc_maxlen}

    def encode(self, codec: Path | None = None) -> IndexPlan:
        """Train the codec, or take that of another index, and write all chunks."""
        plan, sample = self.with_codec(codec, self.folder)
        _write_chunks(
            self.folder, self.compressed(self.folder, range(len(self.passages)), sample)
        )
        return plan

    def encode_on(self, on: OnRay, chunks: ChunkFolder, codec: Path | None = None) -> IndexPlan:
        """As `encode`, by a cluster: the codec is trained here, once; sampled passages are not encoded again."""
        kept = chunks.path
        if (kept / TRAINED).exists():
            plan = IndexPlan(**_json(kept / TRAINED))
        else:
            plan, sample = self.with_codec(codec, kept)
            torch.save(sample, kept / SAMPLE)
            write_whole(kept / TRAINED, [json.dumps(plan._asdict()).encode()])
        encoder = self.encoder
        how = (str(encoder.checkpoint.folder), encoder.doc_maxlen, self.batch_size)
        maker = partial(_ClusterChunks, self.folder, kept, *how)
        chunks.make(on, maker, len(self.passages), CHUNK, self.progress)
        for pattern in (*CODEC, "[0-9]*.*", "doclens.*"):
            for path in kept.glob(pattern):
                shutil.copyfile(path, self.folder / path.name)
        return plan

    def with_codec(self, codec: Path | None, folder: Path) -> tuple[IndexPlan, dict[int, Any]]:
        """`train`, or take the codec of the index in the folder `codec`, which sampled none of these passages.

        Raises: BadArgument where that is of other vectors. BadData: it is not whole.
        """
        if codec is None:
            return self.train(folder)
        try:
            plan = _json(codec / "plan.json")
            theirs = {name: plan["config"][name] for name in self.shape}
            partitions = plan["num_partitions"]
            for name in CODEC:
                shutil.copyfile(codec / name, folder / name)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise BadData(
                f"{codec} holds no codec ({error}): name the folder of a late-interaction index"
            ) from None
        for name, value in self.shape.items():
            if theirs[name] != value:
                raise BadArgument(
                    f"the codec of {codec} has {name} {theirs[name]}, and this index {value}"
                )
        _write_json(
            folder / "plan.json", plan | {"num_chunks": -(-len(self.passages) // CHUNK)}
        )
        return IndexPlan(partitions, 0), {}

    def train(self, folder: Path) -> tuple[IndexPlan, dict[int, Any]]:
        """Sample, train and save the codec; returns the plan it follows, and the sampled vectors by position."""
        passages, encoder = self.passages, self.encoder
        chosen = np.random.default_rng(SEED).permutation(len(passages)).tolist()
        sample: dict[int, Any] = {}

        def encode(positions: Sequence[int]) -> None:
            lines = [passages[at].line for at in positions]
            vectors, counts = encoder.passages(lines, self.batch_size)
            sample.update(zip(positions, vectors.split(counts), strict=True))

        encode(chosen[:LOOK])
        length = sum(map(len, sample.values())) / len(sample)
        plan = planned(len(passages), length, encoder.device.type, self.partitions)
        while len(sample) < plan.sample:
            self.progress(SAMPLING, len(sample), plan.sample)
            encode(chosen[len(sample) : min(len(sample) + BLOCK, plan.sample)])
        self.progress(SAMPLING, len(sample), len(sample))
        lengths = [len(vectors) for vectors in sample.values()]
        flat = torch.cat(list(sample.values()))
        # views of it, so that the vectors are in memory once
        sample = dict(zip(sample, flat.split(lengths), strict=True))
        with on_device(encoder.device):
            config = parts().config(**self.shape)
            codec = trained(flat, plan.partitions, config, encoder.device, self.progress)
        codec.save(str(folder))
        more = {"query_maxlen": encoder.query_maxlen, "checkpoint": encoder.checkpoint.name}
        made = {
            "config": {**self.shape, **more},
            "num_chunks": -(-len(passages) // CHUNK),
            "num_partitions": len(codec.centroids),
        }
        _write_json(folder / "plan.json", made)
        return IndexPlan(len(codec.centroids), len(sample)), sample

    def compressed(
        self, codec: Path, within: range, sample: Mapping[int, Any] = MappingProxyType({})
    ) -> Iterator[Compressed]:
        """The passages at those positions by the codec in a folder, a block at a time.

        Passages in `sample` are not encoded again.
        """
        with on_device(self.encoder.device):
            model = codec_class().load(str(codec))
        for start in range(within.start, within.stop, BLOCK):
            block = range(start, min(start + BLOCK, within.stop))
            found = {at: sample[at] for at in block if at in sample}
            if new := [at for at in block if at not in found]:
                lines = [self.passages[at].line for at in new]
                vectors, counts = self.encoder.passages(lines, self.batch_size)
                found |= dict(zip(new, vectors.split(counts), strict=True))
            small = model.compress(torch.cat([found[at] for at in block]))
            yield small.codes, small.residuals, [len(found[at]) for at in block]
            self.progress(ENCODING, block.stop - within.start, len(within))

    def update(self, source: Path, kept: Any) -> int:
        """Write an index of the passages at `kept` (ascending) of the one in `source`, as they are compressed there,
        and behind them of these, compressed with its centroids. Returns the number of vectors."""
        for name in CODEC:
            shutil.copyfile(source / name, self.folder / name)
        plan = _json(source / "plan.json")
        added = self.compressed(self.folder, range(len(self.passages)))
        old = _kept(source, plan["num_chunks"], kept)
        chunks = _write_chunks(self.folder, chain(old, added))
        _write_json(self.folder / "plan.json", plan | {"num_chunks": chunks})
        return finish(self.folder, len(kept) + len(self.passages), self.progress)


def codec_digest(folder: Path) -> str:
    """16 hex digits of an index's codec: two that share it give a passage the same score."""
    digest = hashlib.sha256()
    for name in CODEC[:3]:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]


# --- chunks of compressed passages ----------------------------------------------------------------------------------


def _write_chunks(folder: Path, blocks: Iterable[Compressed]) -> int:
    """Write blocks of passages as chunks of `CHUNK` passages; returns how many chunks there are."""
    chunks, waiting = 0, list[Compressed]()
    for block in blocks:
        waiting.append(block)
        while sum(len(lengths) for _, _, lengths in waiting) >= CHUNK:
            waiting = [_write_chunk(folder, chunks, waiting)]
            chunks += 1
    if any(lengths for _, _, lengths in waiting):
        _write_chunk(folder, chunks, waiting)
        chunks += 1
    return chunks


def _write_chunk(folder: Path, chunk: int, blocks: Iterable[Compressed]) -> Compressed:
    """Write the first `CHUNK` passages of the blocks, and return the others."""
    some_codes, some_residuals, some_lengths = zip(*blocks, strict=True)
    codes, residuals = torch.cat(some_codes), torch.cat(some_residuals)
    lengths = [*chain.from_iterable(some_lengths)]
    own = lengths[:CHUNK]
    end = sum(own)
    # a view would be saved with all that it is a part of
    embeddings = parts().codec.Embeddings(codes[:end].clone(), residuals[:end].clone())
    embeddings.save(str(folder / str(chunk)))
    _write_json(folder / f"doclens.{chunk}.json", own)
    about = {"passage_offset": chunk * CHUNK, "num_passages": len(own), "num_embeddings": end}
    _write_json(folder / f"{chunk}.metadata.json", about)
    return codes[end:], residuals[end:], lengths[CHUNK:]


def _kept(source: Path, chunks: int, kept: Any) -> Iterator[Compressed]:
    """The passages at `kept`, as they are, chunk by chunk."""
    for chunk in range(chunks):
        lengths = np.array(_json(source / f"doclens.{chunk}.json"), dtype=np.int64)
        first = _json(source / f"{chunk}.metadata.json")["passage_offset"]
        stays = np.isin(np.arange(len(lengths)) + first, kept)
        mask = torch.from_numpy(np.repeat(stays, lengths))
        paths = (source / f"{chunk}.{what}.pt" for what in PER_VECTOR)
        codes, residuals = (torch.load(path, map_location="cpu") for path in paths)
        yield codes[mask], residuals[mask], lengths[stays].tolist()


class _ClusterChunks:
    """In a worker: the files of each chunk, of which `N.metadata.json` comes last."""

    def __init__(
        self, folder: Path, chunks: Path, checkpoint: str, doc_maxlen: int, batch_size: int
    ) -> None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        encoder = TokenEncoder(ColBERTCheckpoint(checkpoint), device, doc_maxlen=doc_maxlen)
        passages = stored_passages(folder)
        self._chunks = chunks
        self._build = IndexBuild(folder, passages, encoder, batch_size=batch_size)
        self._sample = torch.load(chunks / SAMPLE, mmap=True)

    def __call__(self, chunk: int) -> None:
        made, start, last = self._chunks, chunk * CHUNK, f"{chunk}.metadata.json"
        within = range(start, min(start + CHUNK, len(self._build.passages)))
        with (
            tempfile.TemporaryDirectory(prefix=f".{chunk}-", dir=made) as beside,
            writing(made),
        ):
            _write_chunk(
                Path(beside), chunk, self._build.compressed(made, within, self._sample)
            )
            for path in sorted(Path(beside).iterdir(), key=lambda path: path.name == last):
                path.replace(made / path.name)


# --- the lists of passages ------------------------------------------------------------------------------------------


def finish(folder: Path, passages: int, progress: ProgressCallback = silent) -> int:
    """Write which passages each centroid has (`ivf.pid.pt`) and `metadata.json`; returns the number of vectors."""
    plan = _json(folder / "plan.json")
    vectors, chunks = 0, plan["num_chunks"]
    lengths = np.zeros(plan["num_partitions"], dtype=np.int64)
    for chunk in range(chunks):
        progress(INVERTING, chunk, 2 * chunks)
        about = _json(folder / f"{chunk}.metadata.json")
        _write_json(folder / f"{chunk}.metadata.json", {**about, "embedding_offset": vectors})
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
    _write_json(folder / "metadata.json", plan)
    return vectors


def _pairs(folder: Path, chunk: int) -> tuple[Any, Any]:
    """Which centroids occur in which passages of a chunk, each pair once: ordered by centroid, then by passage."""
    codes = torch.load(folder / f"{chunk}.codes.pt").numpy().astype(np.int64)
    first = _json(folder / f"{chunk}.metadata.json")["passage_offset"]
    lengths = _json(folder / f"doclens.{chunk}.json")
    pairs = np.unique(codes * len(lengths) + np.repeat(np.arange(len(lengths)), lengths))
    return pairs // len(lengths), pairs % len(lengths) + first


def on_device(device: Any) -> Any:
    """The block in which colbert-ai's classes take the GPU, or leave it."""
    return gpus_seen(int(device.type == "cuda"))


# --- the division of an index -----------------------------------------------------------------------------------------


class IndexPlan(NamedTuple):
    partitions: int
    sample: int  # passages whose vectors train the centroids


def nbits_for(passages: int) -> int:
    """Bits kept of each dimension: ColBERTv2's two for large collections, four where that costs megabytes at the most.

    >>> nbits_for(2_000), nbits_for(5_233_329)
    (4, 2)
    """
    return 4 if passages <= SMALL else 2


def planned(
    passages: int, length: float, device: str, partitions: int | None = None
) -> IndexPlan:
    """The plan for `passages` of about `length` vectors each; `partitions` are taken as given.

    >>> planned(2_000, 100, "cpu"), planned(2_000, 100, "cuda")
    (IndexPlan(partitions=1024, sample=656), IndexPlan(partitions=4096, sample=2000))
    >>> planned(5_233_329, 80, "cuda")
    IndexPlan(partitions=262144, sample=209716)
    """
    rule = 2 ** math.floor(math.log2(max(1.0, FACTOR[device] * math.sqrt(passages * length))))
    count = rule if partitions is None else partitions
    return IndexPlan(count, min(passages, math.ceil(count * PER_CENTROID / length)))


# --- centroids and residuals ------------------------------------------------------------------------------------------


def closest_centroids(vectors: Any, centroids: Any) -> Any:
    """The position of the centroid with the highest inner product, for each of `vectors` (n, dim)."""
    step = max(1, SCORES // len(centroids))
    return torch.cat(
        [(part.to(centroids.dtype) @ centroids.T).argmax(1) for part in vectors.split(step)]
    )


def kmeans(vectors: Any, count: int, device: Any, progress: ProgressCallback = silent) -> Any:
    """`count` unit centroids (count, dim) of unit `vectors` (n, dim), by `ROUNDS` of spherical k-means.

    Starts from vectors drawn at random; a centroid that loses all its vectors gets one drawn anew. `count` must not be
    above n. Float32 on `device`; the same on every run on one machine.
    """
    chance = torch.Generator().manual_seed(SEED)
    centroids = (
        vectors[torch.randperm(len(vectors), generator=chance)[:count]].to(device).float()
    )
    for done in range(ROUNDS):
        sums, counts = torch.zeros_like(centroids), torch.zeros(count, device=device)
        for part in vectors.split(1 << 18):
            there = part.to(device).float()
            codes = closest_centroids(there, centroids)
            sums.index_add_(0, codes, there)
            counts.index_add_(0, codes, torch.ones_like(codes, dtype=torch.float32))
        empty = counts == 0
        drawn = torch.randint(len(vectors), (int(empty.sum()),), generator=chance)
        sums[empty] = vectors[drawn].to(device).float()
        centroids = torch.nn.functional.normalize(sums, dim=1)
        progress(CLUSTERING, done + 1, ROUNDS)
    return centroids


def codec_class() -> Any:
    """colbert-ai's `ResidualCodec`, looking for centroids in small blocks."""

    class Codec(parts().codec):  # type: ignore[misc]  # colbert-ai ships no types
        def compress_into_codes(self, embs: Any, out_device: Any) -> Any:
            return closest_centroids(embs.to(self.centroids.device), self.centroids).to(
                out_device
            )

    return Codec


def trained(
    sample: Any, count: int, config: Any, device: Any, progress: ProgressCallback = silent
) -> Any:
    """A codec for vectors like `sample` (n, dim): centroids, and the residuals' buckets as quantiles of held-out ones.

    Every 2^nbits-th part of the residuals falls into one bucket, and is rebuilt as its median (ColBERTv2, 3.3).
    """
    order = torch.randperm(len(sample), generator=torch.Generator().manual_seed(SEED))
    most = min(MOST_HELD_OUT, MOST_QUANTILE // sample.shape[1])
    left_out = (
        sample[order[: min(max(1, int(HELD_OUT * len(sample))), most)]].to(device).float()
    )
    centroids = kmeans(sample, min(count, len(sample)), device, progress)
    residuals = (left_out - centroids[closest_centroids(left_out, centroids)]).cpu()
    buckets = 2**config.nbits
    steps = torch.arange(buckets) / buckets
    cutoffs = residuals.quantile(steps[1:])
    weights = residuals.quantile(steps + 0.5 / buckets)
    return codec_class()(
        config=config,
        centroids=centroids,
        avg_residual=residuals.abs().mean(),
        bucket_cutoffs=cutoffs,
        bucket_weights=weights,
    )


def _json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value) + "\n", encoding="utf-8")

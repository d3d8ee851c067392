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

import errno
import hashlib
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from blendfilter.errors import BadArgument, BadData, WorkFailed, check_count
from blendfilter.files import write_whole
from blendfilter.records import Passage
from blendfilter.retrieval.base import ProgressCallback, silent
from blendfilter.retrieval.colbert.compat import gpus_seen, parts, torch
from blendfilter.retrieval.colbert.encoder import ColBERTCheckpoint, TokenEncoder
from blendfilter.retrieval.on_ray import ChunkFolder, OnRay, told
from blendfilter.retrieval.stored import StoredPassages

SAMPLING, ENCODING, INVERTING = (
    "encoding a sample",
    "encoding passages",
    "listing passages by centroid",
)
CLUSTERING = "training centroids"
CODEC = ("centroids.pt", "avg_residual.pt", "buckets.pt", "plan.json")
PER_VECTOR = ("codes", "residuals")
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
MOST_QUANTILE = (
    1 << 24
)  # numbers that torch takes a quantile of; more than 335 dimensions would bring more


class BuildSettings(NamedTuple):
    nbits: int
    partitions: int | None = None
    batch_size: int = 64


def checked_settings(settings: BuildSettings, encoder: TokenEncoder) -> BuildSettings:
    """The settings, with Python's whole numbers. Raises `BadArgument` for what no index can be built with."""
    if settings.nbits not in (1, 2, 4, 8):
        raise BadArgument(
            f"nbits must be 1, 2, 4 or 8 (bits kept of each dimension), got {settings.nbits}"
        )
    if encoder.dim % (8 * settings.nbits):
        raise BadArgument(
            f"nbits={settings.nbits} wants vectors of a multiple of {8 * settings.nbits}, not {encoder.dim}"
        )
    if not 4 <= encoder.doc_maxlen <= encoder.limit:
        raise BadArgument(
            f"doc_maxlen must lie between 4 and the {encoder.limit} tokens that this checkpoint reads, "
            f"got {encoder.doc_maxlen}"
        )
    return BuildSettings(
        check_count("nbits", settings.nbits),
        None if settings.partitions is None else check_count("partitions", settings.partitions),
        check_count("batch_size", settings.batch_size),
    )


def train(
    folder: Path,
    passages: Sequence[Passage],
    encoder: TokenEncoder,
    settings: BuildSettings,
    progress: ProgressCallback = silent,
) -> tuple[IndexPlan, dict[int, Any]]:
    """Sample, train and save the codec; returns the plan it follows, and the sampled passages' vectors by position."""
    chosen = np.random.default_rng(SEED).permutation(len(passages))
    sample: dict[int, Any] = {}

    def encode(positions: Sequence[int]) -> None:
        vectors, counts = encoder.passages(
            [passages[at].line for at in positions], settings.batch_size
        )
        sample.update(zip(positions, vectors.split(counts), strict=True))

    encode(chosen[:LOOK].tolist())
    length = sum(map(len, sample.values())) / len(sample)
    plan = planned(len(passages), length, encoder.device.type, settings.partitions)
    while len(sample) < plan.sample:
        progress(SAMPLING, len(sample), plan.sample)
        encode(chosen[len(sample) : min(len(sample) + BLOCK, plan.sample)].tolist())
    progress(SAMPLING, len(sample), len(sample))
    flat = torch.cat(list(sample.values()))
    # views of it, so that the vectors are in memory once
    sample = dict(
        zip(sample, flat.split([len(vectors) for vectors in sample.values()]), strict=True)
    )
    with on_device(encoder.device):
        codec = trained(
            flat,
            count=plan.partitions,
            rounds=ROUNDS,
            config=parts().config(
                dim=encoder.dim, nbits=settings.nbits, doc_maxlen=encoder.doc_maxlen
            ),
            device=encoder.device,
            progress=progress,
        )
    codec.save(str(folder))
    config: dict[str, Any] = {
        "dim": encoder.dim,
        "nbits": settings.nbits,
        "doc_maxlen": encoder.doc_maxlen,
    }
    config |= {"query_maxlen": encoder.query_maxlen, "checkpoint": encoder.checkpoint.name}
    numbers = {"num_chunks": -(-len(passages) // CHUNK), "num_partitions": len(codec.centroids)}
    (folder / "plan.json").write_text(
        json.dumps({"config": config, **numbers}, indent=1) + "\n", encoding="utf-8"
    )
    return IndexPlan(len(codec.centroids), len(sample)), sample


def codec_for(
    codec: Path | None,
    folder: Path,
    passages: Sequence[Passage],
    encoder: TokenEncoder,
    settings: BuildSettings,
    progress: ProgressCallback = silent,
) -> tuple[IndexPlan, dict[int, Any]]:
    """`train`, or the codec of the index in the folder `codec`, which sampled none of these passages.

    Raises: BadArgument where that is of other vectors. BadData: it is not whole.
    """
    if codec is None:
        return train(folder, passages, encoder, settings, progress)
    try:
        plan = json.loads((codec / "plan.json").read_bytes())
        for name in CODEC:
            shutil.copyfile(codec / name, folder / name)
        theirs = plan["config"]
        ours = {"dim": encoder.dim, "nbits": settings.nbits, "doc_maxlen": encoder.doc_maxlen}
        if differing := [name for name, value in ours.items() if theirs[name] != value]:
            name = differing[0]
            raise BadArgument(
                f"the codec of {codec} has {name} {theirs[name]}, and this index {ours[name]}"
            )
        numbers = {"num_chunks": chunks_of(len(passages))}
    except (OSError, ValueError, LookupError, TypeError) as error:
        if isinstance(error, BadArgument):
            raise
        raise BadData(
            f"{codec} holds no codec ({error}): name the folder of a late-interaction index"
        ) from None
    (folder / "plan.json").write_text(json.dumps(plan | numbers, indent=1) + "\n", encoding="utf-8")
    return IndexPlan(plan["num_partitions"], 0), {}


def codec_digest(folder: Path) -> str:
    """16 hex digits of an index's codec: two that share it give a passage the same score."""
    digest = hashlib.sha256()
    for name in CODEC[:3]:
        digest.update((folder / name).read_bytes())
    return digest.hexdigest()[:16]


def encode_here(
    folder: Path,
    passages: Sequence[Passage],
    encoder: TokenEncoder,
    checkpoint: ColBERTCheckpoint,
    settings: BuildSettings,
    devices: Sequence[str],
    codec: Path | None = None,
    progress: ProgressCallback = silent,
) -> IndexPlan:
    """Train the codec, or take that of another index, and write all chunks: in this process, or one for each GPU."""
    plan, sample = codec_for(codec, folder, passages, encoder, settings, progress)
    total, done = len(passages), 0
    if len(devices) > 1:
        of = min(len(devices), chunks_of(total))
        reading = (str(folder), str(checkpoint.folder)), (encoder.doc_maxlen, settings.batch_size)
        jobs = [
            WorkerJob(*reading[0], devices[at], *reading[1], at, of, os.getpid())
            for at in range(of)
        ]
        compress_beside(jobs, total, progress)
    else:
        for count in compress(
            folder, passages, encoder, settings.batch_size, range(chunks_of(total)), sample
        ):
            done += count
            progress(ENCODING, done, total)
    return plan


def compress(
    folder: Path,
    passages: Sequence[Passage],
    encoder: TokenEncoder,
    batch_size: int,
    chunks: Sequence[int],
    sample: Mapping[int, Any] = MappingProxyType({}),
) -> Iterator[int]:
    """Encode, compress and write the chunks of those numbers; yields the number of passages of each block done.

    Passages in `sample` are not encoded again.
    """
    with on_device(encoder.device):
        codec = codec_class().load(str(folder))
    for chunk in chunks:
        codes, residuals, lengths = [], [], list[int]()
        first, last = chunk * CHUNK, min((chunk + 1) * CHUNK, len(passages))
        for start in range(first, last, BLOCK):
            block = range(start, min(start + BLOCK, last))
            found = {at: sample[at] for at in block if at in sample}
            if new := [at for at in block if at not in found]:
                vectors, counts = encoder.passages([passages[at].line for at in new], batch_size)
                found |= dict(zip(new, vectors.split(counts), strict=True))
            small = codec.compress(torch.cat([found[at] for at in block]))
            codes.append(small.codes)
            residuals.append(small.residuals)
            lengths.extend(len(found[at]) for at in block)
            yield len(block)
        _write_chunk(folder, chunk, first, torch.cat(codes), torch.cat(residuals), lengths)


def _write_chunk(
    folder: Path, chunk: int, first: int, codes: Any, residuals: Any, lengths: list[int]
) -> None:
    parts().codec.Embeddings(codes, residuals).save(str(folder / str(chunk)))
    (folder / f"doclens.{chunk}.json").write_text(json.dumps(lengths), encoding="utf-8")
    about = {"passage_offset": first, "num_passages": len(lengths), "num_embeddings": sum(lengths)}
    (folder / f"{chunk}.metadata.json").write_text(json.dumps(about), encoding="utf-8")


def update(
    folder: Path,
    source: Path,
    kept: Any,
    new: Sequence[Passage],
    encoder: TokenEncoder,
    batch_size: int,
    progress: ProgressCallback = silent,
) -> int:
    """Write an index of the passages at `kept` (ascending) of the one in `source`, compressed as they are there, and
    behind them of `new`, compressed with its centroids. Returns the number of vectors."""
    for name in CODEC:
        shutil.copyfile(source / name, folder / name)
    plan = json.loads((source / "plan.json").read_bytes())
    codes, residuals, lengths = list[Any](), list[Any](), list[int]()
    chunks = 0

    def write(most: int) -> None:
        """The first `most` of the passages that wait, as a chunk."""
        nonlocal codes, residuals, lengths, chunks
        at, ours, theirs = sum(lengths[:most]), torch.cat(codes), torch.cat(residuals)
        # a view would be saved with all that it is a part of
        _write_chunk(
            folder, chunks, chunks * CHUNK, ours[:at].clone(), theirs[:at].clone(), lengths[:most]
        )
        codes, residuals, lengths, chunks = [ours[at:]], [theirs[at:]], lengths[most:], chunks + 1

    for some_codes, some_residuals, counts in chain(
        _kept(source, plan["num_chunks"], kept),
        _compressed(folder, new, encoder, batch_size, progress),
    ):
        codes.append(some_codes)
        residuals.append(some_residuals)
        lengths.extend(counts)
        while len(lengths) >= CHUNK:
            write(CHUNK)
    if lengths:
        write(CHUNK)
    (folder / "plan.json").write_text(
        json.dumps(plan | {"num_chunks": chunks}, indent=1) + "\n", encoding="utf-8"
    )
    return finish(folder, len(kept) + len(new), progress)


def _kept(source: Path, chunks: int, kept: Any) -> Iterator[tuple[Any, Any, list[int]]]:
    """Codes, residuals and lengths of the passages at `kept`, as they are, chunk by chunk."""
    for chunk in range(chunks):
        about = json.loads((source / f"{chunk}.metadata.json").read_bytes())
        lengths = np.array(
            json.loads((source / f"doclens.{chunk}.json").read_bytes()), dtype=np.int64
        )
        stays = np.isin(np.arange(len(lengths)) + about["passage_offset"], kept)
        mask = torch.from_numpy(np.repeat(stays, lengths))
        codes, residuals = (
            torch.load(source / f"{chunk}.{what}.pt", map_location="cpu") for what in PER_VECTOR
        )
        yield codes[mask], residuals[mask], lengths[stays].tolist()


def _compressed(
    folder: Path,
    new: Sequence[Passage],
    encoder: TokenEncoder,
    batch_size: int,
    progress: ProgressCallback,
) -> Iterator[tuple[Any, Any, list[int]]]:
    """Codes, residuals and lengths of `new`, by the codec in `folder`."""
    with on_device(encoder.device):
        codec = codec_class().load(str(folder))
    for start in range(0, len(new), BLOCK):
        block = [passage.line for passage in new[start : start + BLOCK]]
        vectors, counts = encoder.passages(block, batch_size)
        small = codec.compress(vectors)
        yield small.codes, small.residuals, counts
        progress(ENCODING, start + len(block), len(new))


def finish(folder: Path, passages: int, progress: ProgressCallback = silent) -> int:
    """Write which passages each centroid has (`ivf.pid.pt`) and `metadata.json`; returns the number of vectors."""
    plan = json.loads((folder / "plan.json").read_bytes())
    vectors, chunks = 0, plan["num_chunks"]
    lengths = np.zeros(plan["num_partitions"], dtype=np.int64)
    for chunk in range(chunks):
        progress(INVERTING, chunk, 2 * chunks)
        about = json.loads((folder / f"{chunk}.metadata.json").read_bytes())
        whole = json.dumps({**about, "embedding_offset": vectors})
        (folder / f"{chunk}.metadata.json").write_text(whole, encoding="utf-8")
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
def writing(folder: Path) -> Iterator[None]:
    """Inside the block, a full disk is an `OSError` where `torch.save` writes too, which has many words for it."""
    try:
        yield
    except RuntimeError as error:
        if all(
            frame.f_code is not torch.save.__code__
            for frame, _ in traceback.walk_tb(error.__traceback__)
        ):
            raise
        raise OSError(
            errno.ENOSPC, "torch could not write the index here: is the disk full?", str(folder)
        ) from error


def on_device(device: Any) -> Any:
    """The block in which colbert-ai's classes take the GPU, or leave it."""
    return gpus_seen(int(device.type == "cuda"))


# --- by a cluster ---------------------------------------------------------------------------------------------------

SAMPLE, TRAINED = "sample.pt", "trained.json"


class _ClusterJob(NamedTuple):
    """What a worker compresses with: the folder of passages, that of chunks and codec, the checkpoint."""

    folder: str
    chunks: str
    checkpoint: str
    doc_maxlen: int
    batch_size: int


class _ClusterChunks:
    """In a worker: the files of each chunk, of which `N.metadata.json` comes last."""

    def __init__(self, job: _ClusterJob) -> None:
        self._job, self._passages = job, StoredPassages(Path(job.folder))
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._encoder = TokenEncoder(
            ColBERTCheckpoint(job.checkpoint), device, doc_maxlen=job.doc_maxlen
        )
        kept = torch.load(Path(job.chunks) / SAMPLE, mmap=True)
        vectors = kept["vectors"].split(kept["counts"]) if kept["counts"] else []
        self._sample = dict(zip(kept["positions"], vectors, strict=True))

    def make(self, chunk: int) -> dict[str, int]:
        made, passages = Path(self._job.chunks), 0
        with tempfile.TemporaryDirectory(prefix=f".{chunk}-", dir=made) as beside, writing(made):
            for name in CODEC:
                os.symlink(made / name, Path(beside, name))
            for count in compress(
                Path(beside),
                self._passages,
                self._encoder,
                self._job.batch_size,
                [chunk],
                self._sample,
            ):
                passages += count
            files = [path for path in Path(beside).iterdir() if not path.is_symlink()]
            for path in sorted(
                files, key=lambda path: path.suffixes[-2:] == [".metadata", ".json"]
            ):
                path.replace(made / path.name)
        return {"passages": passages}


def encode_on(
    on: OnRay,
    chunks: ChunkFolder,
    folder: Path,
    passages: Sequence[Passage],
    encoder: TokenEncoder,
    checkpoint: ColBERTCheckpoint,
    settings: BuildSettings,
    codec: Path | None = None,
    progress: ProgressCallback = silent,
) -> IndexPlan:
    """As `encode_here`, by a cluster: the codec is trained here, once; sampled passages are not encoded again."""
    kept = chunks.path
    if (kept / TRAINED).exists():
        plan = IndexPlan(**json.loads((kept / TRAINED).read_bytes()))
    else:
        plan, sample = codec_for(codec, folder, passages, encoder, settings, progress)
        for name in CODEC:
            shutil.copyfile(folder / name, kept / name)
        vectors = torch.cat(list(sample.values())) if sample else torch.empty(0)
        counts = [len(each) for each in sample.values()]
        torch.save(
            {"positions": [*map(int, sample)], "counts": counts, "vectors": vectors}, kept / SAMPLE
        )
        write_whole(kept / TRAINED, [json.dumps(plan._asdict()).encode()])
    number = chunks_of(len(passages))
    missing = chunks.missing(number, "{}.metadata.json")
    known = sum(
        min(CHUNK, len(passages) - chunk * CHUNK) for chunk in range(number) if chunk not in missing
    )
    job = _ClusterJob(
        str(folder), str(kept), str(checkpoint.folder), encoder.doc_maxlen, settings.batch_size
    )
    on.make(_ClusterChunks, job, missing, told(progress, ENCODING, known, len(passages)))
    for name in CODEC:
        shutil.copyfile(kept / name, folder / name)
    for path in kept.glob("[0-9]*.*"):
        shutil.copyfile(path, folder / path.name)
    for path in kept.glob("doclens.*"):
        shutil.copyfile(path, folder / path.name)
    return plan


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


def planned(passages: int, length: float, device: str, partitions: int | None = None) -> IndexPlan:
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


def nearest(vectors: Any, centroids: Any) -> Any:
    """The position of the centroid with the highest inner product, for each of `vectors` (n, dim)."""
    step = max(1, SCORES // len(centroids))
    return torch.cat(
        [(part.to(centroids.dtype) @ centroids.T).argmax(1) for part in vectors.split(step)]
    )


def kmeans(
    vectors: Any, count: int, rounds: int, device: Any, progress: ProgressCallback = silent
) -> Any:
    """`count` unit centroids (count, dim) of unit `vectors` (n, dim), by `rounds` of spherical k-means.

    Starts from vectors drawn at random; a centroid that loses all its vectors gets one drawn anew. `count` must not be
    above n. Float32 on `device`; the same on every run on one machine.
    """
    chance = torch.Generator().manual_seed(SEED)
    centroids = vectors[torch.randperm(len(vectors), generator=chance)[:count]].to(device).float()
    for done in range(rounds):
        sums = torch.zeros_like(centroids)
        counts = torch.zeros(count, device=device)
        for part in vectors.split(1 << 18):
            there = part.to(device).float()
            codes = nearest(there, centroids)
            sums.index_add_(0, codes, there)
            counts.index_add_(0, codes, torch.ones_like(codes, dtype=torch.float32))
        empty = counts == 0
        drawn = torch.randint(len(vectors), (int(empty.sum()),), generator=chance)
        sums[empty] = vectors[drawn].to(device).float()
        centroids = torch.nn.functional.normalize(sums, dim=1)
        progress(CLUSTERING, done + 1, rounds)
    return centroids


def codec_class() -> Any:
    """colbert-ai's `ResidualCodec`, looking for centroids in small blocks."""

    class Codec(parts().codec):  # type: ignore[misc]  # colbert-ai ships no types
        def compress_into_codes(self, embs: Any, out_device: Any) -> Any:
            return nearest(embs.to(self.centroids.device), self.centroids).to(out_device)

    return Codec


def trained(
    sample: Any,
    *,
    count: int,
    rounds: int,
    config: Any,
    device: Any,
    progress: ProgressCallback = silent,
) -> Any:
    """A codec for vectors like `sample` (n, dim): centroids, and the residuals' buckets as quantiles of held-out ones.

    Every 2^nbits-th part of the residuals falls into one bucket, and is rebuilt as its median (ColBERTv2, 3.3).
    """
    order = torch.randperm(len(sample), generator=torch.Generator().manual_seed(SEED))
    most = min(MOST_HELD_OUT, MOST_QUANTILE // sample.shape[1])
    left_out = sample[order[: min(max(1, int(HELD_OUT * len(sample))), most)]].to(device).float()
    centroids = kmeans(sample, min(count, len(sample)), rounds, device, progress)
    residuals = (left_out - centroids[nearest(left_out, centroids)]).cpu()
    buckets = 2**config.nbits
    steps = torch.arange(buckets) / buckets
    cutoffs, weights = residuals.quantile(steps[1:]), residuals.quantile(steps + 0.5 / buckets)
    return codec_class()(
        config=config,
        centroids=centroids,
        avg_residual=residuals.abs().mean(),
        bucket_cutoffs=cutoffs,
        bucket_weights=weights,
    )


# --- one process a GPU ------------------------------------------------------------------------------------------------


_WORKER = (
    f"import sys, json; from {__name__} import WorkerJob, run_worker; "
    "run_worker(WorkerJob(*json.loads(sys.argv[1])))"
)


class WorkerJob(NamedTuple):
    """One worker's part: the chunks `rank`, `rank + of`, …; it ends when `parent`, a process id, is gone."""

    folder: str
    checkpoint: str
    device: str
    doc_maxlen: int
    batch_size: int
    rank: int
    of: int
    parent: int


def run_worker(job: WorkerJob) -> None:
    """Encode this worker's chunks."""
    folder = Path(job.folder)
    passages = StoredPassages(folder)
    encoder = TokenEncoder(ColBERTCheckpoint(job.checkpoint), job.device, doc_maxlen=job.doc_maxlen)
    chunks = range(job.rank, chunks_of(len(passages)), job.of)
    with writing(folder):
        for _ in compress(folder, passages, encoder, job.batch_size, chunks):
            if os.getppid() != job.parent:
                return


def chunks_of(passages: int) -> int:
    """How many chunks so many passages make."""
    return -(-passages // CHUNK)


def compress_beside(
    jobs: Sequence[WorkerJob], passages: int, progress: ProgressCallback = silent
) -> None:
    """Run a worker a job and wait for all. Raises `WorkFailed` where one ends badly; it says why on stderr.

    Processes of their own, and no forks: they need no guard in the user's script, and each sees one GPU.
    """
    workers: list[subprocess.Popen[bytes]] = []
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        for job in jobs:
            gpu = seen.split(",")[job.rank] if seen else str(job.rank)
            environment = {
                **os.environ,
                **({"CUDA_VISIBLE_DEVICES": gpu} if job.device == "cuda" else {}),
            }
            command = [sys.executable, "-c", _WORKER, json.dumps(job)]
            workers.append(subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL))
        ended = False
        while not ended:
            states = [worker.poll() for worker in workers]
            for job, state in zip(jobs, states, strict=True):
                if state:
                    raise WorkFailed(
                        f"encoding on {job.device} ({job.rank}) failed: exit status {state}"
                    )
            if not (ended := None not in states):
                done = len(list(Path(jobs[0].folder).glob("[0-9]*.metadata.json")))
                progress(ENCODING, min(done * CHUNK, passages), passages)
                time.sleep(0.2)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    progress(ENCODING, passages, passages)

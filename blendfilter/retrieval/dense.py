"""Dense retrieval (Karpukhin et al. 2020, https://arxiv.org/abs/2004.04906, section 3): each passage is one vector,
each query another, and the passages whose vectors lie nearest to the query's are found.

Passages are encoded as `Title | text` (DPR's: `title [SEP] text`), by the encoder of queries or another. The score is
the inner product (similarity dot), the cosine, or minus the squared Euclidean distance (l2; at most 0, in the square of
the vectors' own unit, as FAISS's METRIC_L2 without the sign). There is no zero: every passage has a score.

FAISS (Douze et al. 2024, https://arxiv.org/abs/2401.08281) keeps the vectors in one of three ways. flat: every vector
is compared, so it is exact. hnsw: a graph is walked (Malkov & Yashunin 2016, https://arxiv.org/abs/1603.09320,
algorithms 1 and 5), `m` links a node, `ef_search` candidates kept. ivf: the vectors are clustered into `nlist` cells,
and the `nprobe` cells nearest to the query are compared.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from io import BytesIO
from itertools import compress
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from blendfilter.errors import BadArgument, BadData, MissingFile, UnknownName, check_count
from blendfilter.extras import needed
from blendfilter.files import AnyPath, write_whole
from blendfilter.records import Passage
from blendfilter.retrieval.base import Hits, ProgressCallback, coarse, fingerprint_of, silent
from blendfilter.retrieval.corpus import Corpus
from blendfilter.retrieval.encoders import (
    WHY,
    Encoded,
    Encoder,
    EncodingOptions,
    Pooling,
    Similarity,
    Vectors,
    lasting,
    load_encoder,
)
from blendfilter.retrieval.manifest import Manifest, Settings, building, opening
from blendfilter.retrieval.on_ray import ENCODING, ChunkFolder, ChunkMaker, OnRay
from blendfilter.retrieval.stored import (
    PassageLines,
    Stored,
    UpdatedPassages,
    gather,
    stored_passages,
)

Kind = Literal["flat", "hnsw", "ivf"]
KINDS = {
    "flat": (),
    "hnsw": ("m", "ef_construction", "ef_search"),
    "ivf": ("nlist", "nprobe"),
}
"""The kinds of index, and the settings of each."""
LINKING, CLUSTERING, ADDING = "linking", "clustering", "adding vectors"
INDEX = "index.faiss"
_VECTORS = "vectors.f32"  # all of them, while an index is being built
_CHUNK = "{}.npz"
_BATCH_SIZE = 64
_BATCHES = 8  # encoded in one go, so that passages of like length stand in one batch
_BLOCK = 8192
_STEPS = 4  # of those in a chunk that a cluster's worker encodes at a time
# vectors that k-means wants for each cell; with fewer FAISS warns that cells mean little
_PER_CELL = 39
# scores closer than that are one: a text encoded beside longer ones differs from itself by less
_GRAIN = 2.0**18
_SPARE = 8
_AT_ONCE = 256
_WIDEST = 4096  # passages level with the k-th that are compared by their place in the corpus


class Dense(Stored):
    """A dense index: `Dense.build("corpus.jsonl.gz", "indexes/dense", encoder="facebook/contriever")`.

    `faiss` is the FAISS index itself and `encoder` what its vectors come from.
    """

    kind = "dense"
    packages = (
        "faiss-cpu",
        "sentence-transformers",
        "torch",
        "transformers",
        "numpy",
    )

    def __init__(
        self,
        manifest: Manifest,
        passages: PassageLines,
        index: Any,
        encoder: Encoder,
        path: Path | None,
    ) -> None:
        most = encoder.reading.query_max_length or encoder.reading.max_length
        limit = f"the encoder {encoder.name} reads {most} tokens"
        super().__init__(manifest, passages, path, limit)
        self.faiss = index
        self.encoder = encoder
        self._mapping = threading.Lock()

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        out: AnyPath | None = None,
        *,
        encoder: AnyPath,
        query_encoder: AnyPath | None = None,
        index: Kind = "flat",
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
        query_prompt: str | None = None,
        passage_prompt: str | None = None,
        similarity: Similarity | None = None,
        pooling: Pooling | None = None,
        m: int = 32,
        ef_construction: int = 200,
        ef_search: int = 64,
        nlist: int = 50,
        nprobe: int = 5,
        batch_size: int = _BATCH_SIZE,
        max_length: int | None = None,
        device: str | None = None,
        overwrite: bool = False,
        on: OnRay | None = None,
        progress: ProgressCallback = silent,
    ) -> Self:
        """Index `corpus` (whatever `passages_of` takes) into the folder `out`, or in memory without one.

        With `on` a cluster encodes, chunk by chunk; a build that was killed then goes on with those that are missing.

        The encoders, prefixes and prompts, `similarity`, `pooling`, `max_length` and `device` are `load_encoder`'s; `m`
        and the two `ef_…` belong to hnsw, `nlist` and `nprobe` to ivf. CDIT's `IndexFlatL2` is flat with l2. On disk
        the vectors lie twice while FAISS takes them in.
        Raises `EmptyData`, `BadData`, `BadArgument`, `UnknownName` and whatever `load_encoder` raises.
        """
        batch_size = check_count("batch_size", batch_size)
        settings = settings_of(
            index,
            m=m,
            ef_construction=ef_construction,
            ef_search=ef_search,
            nlist=nlist,
            nprobe=nprobe,
        )
        faiss()
        if on is not None:
            on.check(out)
        loading: Settings = {
            "query_encoder": query_encoder,
            "query_prefix": query_prefix,
            "passage_prefix": passage_prefix,
            "query_prompt": query_prompt,
            "passage_prompt": passage_prompt,
            "similarity": similarity,
            "pooling": pooling,
            "max_length": max_length,
            "device": device,
        }
        chunks: ChunkFolder | None = None
        place = nullcontext() if out is None else building(out, overwrite=overwrite)
        with place as folder:
            reader = load_encoder(encoder, **loading)
            passages, about = gather(corpus, folder, progress)
            reading, count = reader.reading, len(passages)
            settings = fitted(settings, count)
            if on is None or folder is None or out is None:
                steps = encoded(passages, reader, batch_size, range(count), progress)
            else:
                of = [about.sha256, reader.identity, reading.settings(), batch_size]
                chunks = ChunkFolder(out, of, _CHUNK)
                name, size = lasting(encoder), batch_size * _BATCHES * _STEPS
                maker = partial(_DenseChunks, folder, chunks.path, name, loading, batch_size)
                steps = encoded_on(on, chunks, maker, count, size, progress)
            vectors = joined(steps, count, reader, folder)
            built = build_index(vectors, settings, progress, reading.similarity)
            if settings["index"] == "hnsw":
                settings["graph"] = graph_digest(built)
            settings |= {
                "encoder": lasting(encoder),
                "identity": reader.identity,
                "dimension": reader.dimension,
            }
            if query_encoder is not None:
                settings["query_encoder"] = lasting(query_encoder)
            settings |= reading.settings()
            if folder:
                _write(built, folder)
            manifest = cls._described(folder, settings, about, count)
        if out is None:
            return cls(manifest, passages, built, reader, None)
        if chunks is not None:
            chunks.remove()
        return cls._open(out, loaded=reader)

    @classmethod
    def open(
        cls,
        folder: AnyPath,
        *,
        encoder: AnyPath | None = None,
        query_encoder: AnyPath | None = None,
        device: str | None = None,
    ) -> Self:
        """The index in `folder`, memory-mapped. `encoder` says where its encoder lies now, if it was moved, and
        `query_encoder` where that of its queries does, if it has one.

        Raises as `read_manifest` and `load_encoder` do, and `BadData` where the encoder is another than it was.
        """
        return cls._open(folder, encoder=encoder, query_encoder=query_encoder, device=device)

    @classmethod
    def _read(cls, folder: Path, manifest: Manifest, **how: Any) -> Self:
        reader: Encoder = how.get("loaded") or _encoder_of(folder, manifest.settings, **how)
        with opening(folder):
            settings = manifest.settings
            if reader.identity != settings["identity"]:
                was = settings["encoder"]
                if "query_encoder" in settings:
                    was += f" (queries: {settings['query_encoder']})"
                raise BadData(
                    f"the index at {folder} was built with another encoder: {was} was "
                    f"{settings['identity'][:12]}, and {reader.name} is {reader.identity[:12]}; "
                    "name that encoder, or build the index again"
                )
            index = faiss().read_index(str(folder / INDEX), faiss().IO_FLAG_MMAP_IFC)
            if settings["index"] == "hnsw":
                index.hnsw.efSearch = settings["ef_search"]
            if settings["index"] == "ivf":
                index.nprobe = settings["nprobe"]
            return cls(manifest, stored_passages(folder), index, reader, folder)

    @classmethod
    def _fingerprint(cls, manifest: Manifest, folder: Path | None) -> str:
        settings = manifest.settings
        # the identity says what they say
        beside = ("encoder", "query_encoder", "identity", "dimension", *EncodingOptions._fields)
        counting = {name: value for name, value in settings.items() if name not in beside}
        return fingerprint_of(cls.kind, manifest.corpus.sha256, settings["identity"], counting)

    def _write_update(
        self, folder: Path, new: UpdatedPassages, progress: ProgressCallback
    ) -> Settings:
        """No old passage is encoded again. Without deletions, vectors are added to the index as it is; with them, all
        that stay are added anew: to the cells as they were, or to a new graph."""
        settings = dict(self.manifest.settings)
        kind = settings["index"]
        index = faiss().read_index(os.path.join(self.path or "", INDEX))
        if kind == "hnsw":
            index.hnsw.efConstruction = settings["ef_construction"]
        if new.deleted:
            index.reset()
            phase = LINKING if kind == "hnsw" else ADDING
            for start in range(0, len(new.kept), _BLOCK):
                some = new.kept[start : start + _BLOCK]
                index.add(self.vectors(some.tolist()))
                progress(phase, start + len(some), len(new.kept))
        if count := len(new.new):
            steps = encoded(new.new, self.encoder, _BATCH_SIZE, range(count), progress)
            add_vectors(index, joined(steps, count, self.encoder, folder), kind, progress)
        if kind == "hnsw":
            settings["graph"] = graph_digest(index)
        if kind == "ivf":  # its cells were made for another corpus
            centroids = index.quantizer.reconstruct_n(0, index.nlist)
            settings["cells"] = hashlib.sha256(centroids.tobytes()).hexdigest()[:16]
        _write(index, folder)
        return settings

    def _is_trained(self) -> bool:
        return bool(self.manifest.settings["index"] == "ivf")

    def as_cheap(self, k: int) -> int:
        """Twice as deep; a graph is walked with a list of `ef_search`, and no wider up to there."""
        settings = self.manifest.settings
        return (
            max(k, min(2 * k, settings["ef_search"])) if settings["index"] == "hnsw" else 2 * k
        )

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages a query, equal scores in corpus order; hnsw and ivf may miss some, flat never does."""
        return [*self.near(self.encoded_queries(queries), k)] if queries else []

    def encoded_queries(self, queries: Sequence[str]) -> Encoded:
        """The vectors of `queries`, for `near` and for other comparisons."""
        encoded = self.encoder.encode_queries(queries)
        for query in compress(queries, encoded.cut):
            self._warn_of_cut(query)
        return encoded

    def near(self, queries: Encoded, k: int) -> list[Hits]:
        """What `find` gives for queries that are encoded already."""
        found = nearest(self.faiss, queries.vectors, k)
        return [
            Hits(
                (self.passages[at].scored(score) for at, score in zip(*near, strict=True)),
                cut=was_cut,
            )
            for near, was_cut in zip(found, queries.cut, strict=True)
        ]

    def vector(self, position: int) -> Vectors:
        """The vector of the passage at that place of the corpus."""
        vector: Vectors = self.vectors([range(len(self))[position]])[0]
        return vector

    def vectors(self, positions: Sequence[int]) -> Vectors:
        """The vectors of the passages at those places of the corpus."""
        # an IVF index wants a map for that, made at the first call
        if hasattr(self.faiss, "make_direct_map"):
            with self._mapping:
                if self.faiss.direct_map.no():
                    self.faiss.make_direct_map()
        vectors: Vectors = self.faiss.reconstruct_batch(np.asarray(positions, dtype=np.int64))
        return vectors


def _encoder_of(
    folder: Path,
    settings: Settings,
    encoder: AnyPath | None,
    query_encoder: AnyPath | None,
    device: str | None,
) -> Encoder:
    """The encoder that an index was built with."""
    with opening(folder):
        name = os.fspath(settings["encoder"] if encoder is None else encoder)
        asking = settings.get("query_encoder") if query_encoder is None else query_encoder
        known = {
            field: settings[field] for field in EncodingOptions._fields if field in settings
        }
        reading = EncodingOptions(**known)._asdict()
    try:
        return load_encoder(name, query_encoder=asking, device=device, **reading)
    except (MissingFile, BadArgument, BadData) as error:
        which = "encoder=…, query_encoder=… where they moved"
        which = "encoder=… where it moved" if asking is None else which
        why = f"the index at {folder} needs its encoder: {error} ({which})"
        raise (MissingFile if isinstance(error, MissingFile) else BadData)(why) from None


# --- encoding, here or by a cluster ---------------------------------------------------------------------------------


Step = tuple[Vectors, int]
"""The vectors of some passages, in corpus order, and how many of these were cut."""


def encoded(
    passages: Sequence[Passage],
    encoder: Encoder,
    batch_size: int,
    within: range,
    progress: ProgressCallback = silent,
) -> Iterator[Step]:
    """The passages at those positions, some batches at a time."""
    step = batch_size * _BATCHES
    for start in range(within.start, within.stop, step):
        some = passages[start : min(start + step, within.stop)]
        vectors, cut = encoder.encode_passages([*map(encoder.line, some)], batch_size)
        yield vectors, sum(cut)
        progress(ENCODING, start + len(some) - within.start, len(within))


def joined(
    steps: Iterable[Step], passages: int, encoder: Encoder, folder: Path | None
) -> Vectors:
    """The vectors of all passages, memory-mapped from the folder where there is one.

    Warns once, with their number, about passages that are longer than the encoder reads.
    """
    cut = 0
    # written as a plain file: a full disk is an error here, and a crash in a memory map
    with open(folder / _VECTORS, "w+b") if folder else tempfile.TemporaryFile() as file:
        for vectors, too_long in steps:
            file.write(vectors.tobytes())
            cut += too_long
        file.flush()
        shape = (passages, encoder.dimension)
        found = np.asarray(np.memmap(file, dtype=np.float32, mode="r", shape=shape))
    if cut:
        warnings.warn(
            f"{cut:,} of {passages:,} passages are longer than the encoder {encoder.name} reads "
            f"({encoder.reading.max_length} tokens): what follows is not searched; cut them into shorter ones",
            stacklevel=3,
        )
    return found


class _DenseChunks:
    """In a worker: the vectors of a chunk of the passages in `folder`, and how many of these were cut."""

    def __init__(
        self, folder: Path, chunks: Path, encoder: str, loading: Settings, batch_size: int
    ) -> None:
        self._passages, self._chunks = stored_passages(folder), chunks
        self._encoder, self._batch_size = load_encoder(encoder, **loading), batch_size

    def __call__(self, chunk: int) -> None:
        size = self._batch_size * _BATCHES * _STEPS
        within = range(chunk * size, min((chunk + 1) * size, len(self._passages)))
        steps = encoded(self._passages, self._encoder, self._batch_size, within)
        vectors, cut = zip(*steps, strict=True)
        made = BytesIO()
        np.savez(made, vectors=np.concatenate(vectors), cut=sum(cut))
        write_whole(self._chunks / _CHUNK.format(chunk), [made.getvalue()])


def encoded_on(
    on: OnRay,
    chunks: ChunkFolder,
    maker: Callable[[], ChunkMaker],
    passages: int,
    size: int,
    progress: ProgressCallback,
) -> Iterator[Step]:
    """`encoded`, by a cluster."""
    chunks.make(on, maker, passages, size, progress)
    for chunk in range(-(-passages // size)):
        with np.load(chunks.path / _CHUNK.format(chunk)) as made:
            yield made["vectors"], int(made["cut"])


# --- FAISS ----------------------------------------------------------------------------------------------------------


def faiss() -> Any:
    """The package. Raises `MissingExtra`."""
    return needed("faiss", "dense", WHY)


def settings_of(kind: str, **given: int) -> Settings:
    """The settings of that kind of index, out of all `given`. Raises `UnknownName` or `BadArgument`.

    >>> settings_of("ivf", m=32, nlist=50, nprobe=5)
    {'index': 'ivf', 'nlist': 50, 'nprobe': 5}
    """
    if kind not in KINDS:
        raise UnknownName.of("dense index", str(kind), KINDS)
    counts = {
        name: check_count(name, given[name], 2 if name == "m" else 1) for name in KINDS[kind]
    }
    return {"index": kind, **counts}


def fitted(settings: Settings, passages: int) -> Settings:
    """The same for that many passages: fewer cells where there are too few vectors to cluster, beside what was wanted.

    >>> fitted({"index": "ivf", "nlist": 50, "nprobe": 5}, 193)
    {'index': 'ivf', 'nlist': 4, 'nprobe': 4, 'nlist_requested': 50, 'nprobe_requested': 5}
    """
    if settings["index"] != "ivf":
        return settings
    cells = min(settings["nlist"], max(1, passages // _PER_CELL))
    used = {"nlist": cells, "nprobe": min(settings["nprobe"], cells)}
    return (
        settings
        | used
        | {f"{name}_requested": settings[name] for name in used if used[name] != settings[name]}
    )


def build_index(
    vectors: Vectors,
    settings: Settings,
    progress: ProgressCallback,
    similarity: Similarity = "dot",
) -> Any:
    """A FAISS index over `vectors`, read block by block. The same vectors make the same cells every time."""
    library, dimension, kind = faiss(), vectors.shape[1], settings["index"]
    metric = library.METRIC_L2 if similarity == "l2" else library.METRIC_INNER_PRODUCT
    if kind == "flat":
        index = library.IndexFlat(dimension, metric)
    elif kind == "hnsw":
        index = library.IndexHNSWFlat(dimension, settings["m"], metric)
        index.hnsw.efConstruction = settings["ef_construction"]
        index.hnsw.efSearch = settings["ef_search"]
    else:
        index = library.index_factory(dimension, f"IVF{settings['nlist']},Flat", metric)
        index.nprobe = settings["nprobe"]
        index.cp.min_points_per_centroid = (
            1  # `fitted` has seen to it; FAISS would complain on stderr
        )
        progress(CLUSTERING, 0, 1)
        most = settings["nlist"] * index.cp.max_points_per_centroid
        some = np.random.default_rng(0).permutation(len(vectors))[:most]
        index.train(np.ascontiguousarray(vectors[np.sort(some)]))
        progress(CLUSTERING, 1, 1)
    add_vectors(index, vectors, kind, progress)
    return index


def add_vectors(index: Any, vectors: Vectors, kind: str, progress: ProgressCallback) -> None:
    """Add `vectors` to a FAISS index, read block by block."""
    phase = LINKING if kind == "hnsw" else ADDING
    # flat copies, which takes seconds: all at once, or its memory would be doubled again and again
    block = len(vectors) if kind == "flat" else _BLOCK
    for start in range(0, len(vectors), block):
        index.add(np.ascontiguousarray(vectors[start : start + block]))
        progress(phase, min(start + block, len(vectors)), len(vectors))


def _write(index: Any, folder: Path) -> None:
    """Write a FAISS index into `folder`, without the vectors that it was made of."""
    (folder / _VECTORS).unlink(missing_ok=True)
    faiss().write_index(index, str(folder / INDEX))


def graph_digest(index: Any) -> str:
    """16 hex digits of an HNSW graph's links: threads add nodes as they come, so two builds may differ."""
    links = index.hnsw.neighbors
    # a view: millions of passages have gigabytes of links
    seen = faiss().rev_swig_ptr(links.data(), links.size())
    return hashlib.sha256(seen).hexdigest()[:16]


def nearest(index: Any, queries: Vectors, k: int) -> list[tuple[list[int], list[float]]]:
    """For each query at most `k` positions with the highest scores, and these; equal ones in corpus order.

    The score is the inner product, or minus the squared distance where that is the index's metric. FAISS picks any of
    those tied at the k-th place, so more are fetched until the tie ends. It counts one query in another way than many,
    too: what it found is counted again here, so that a batch is its queries one by one.
    """
    most, l2 = min(k, index.ntotal), index.metric_type == faiss().METRIC_L2
    widest = min(index.ntotal, most + _WIDEST)
    found: list[tuple[list[int], list[float]]] = []
    for start in range(0, len(queries), _AT_ONCE):
        block = queries[start : start + _AT_ONCE]
        batch = index.search_and_reconstruct(block, min(index.ntotal, most + _SPARE))
        for query, scores, positions, vectors in zip(block, *batch, strict=True):
            exact = query.astype(np.float64)
            # a distance's noise goes by the vectors' lengths
            length = float(np.linalg.norm(exact)) if l2 else 0.0
            # FAISS fills up with -1 where it finds fewer
            while (
                len(scores) < widest
                and positions[-1] >= 0
                and np.ptp(coarse(scores[[most - 1, -1]], _GRAIN, length * length)) == 0
            ):
                more = index.search_and_reconstruct(query[None], min(widest, 4 * len(scores)))
                scores, positions, vectors = (row[0] for row in more)  # noqa: PLW2901
            real = positions >= 0
            places, near = positions[real], vectors[real].astype(np.float64)
            if l2:
                level = 0.0 - np.square(
                    coarse(np.linalg.norm(near - exact, axis=1), _GRAIN, length)
                )
            else:
                level = coarse(near @ exact, _GRAIN)
            order = np.lexsort((places, -level))[:most]
            found.append((places[order].tolist(), level[order].tolist()))
    return found

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
import json
import os
import shutil
import threading
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np

from blendfilter.errors import BadArgument, BadData, MissingFile, UnknownName, check_count
from blendfilter.extras import needed
from blendfilter.files import path_of, write_whole
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
    load_encoder,
)
from blendfilter.retrieval.manifest import (
    CorpusInfo,
    Manifest,
    building,
    opening,
    versions_of,
    write_manifest,
)
from blendfilter.retrieval.on_ray import ChunkFolder, OnRay, told
from blendfilter.retrieval.stored import (
    Stored,
    StoredPassages,
    UpdatedPassages,
    gather,
    manifest_of,
    opened_whole,
)

Kind = Literal["flat", "hnsw", "ivf"]
KINDS = {
    "flat": (),
    "hnsw": ("m", "ef_construction", "ef_search"),
    "ivf": ("nlist", "nprobe"),
}  # and their settings
ENCODING, LINKING, CLUSTERING, ADDING = (
    "encoding passages",
    "linking",
    "clustering",
    "adding vectors",
)
INDEX = "index.faiss"
PACKAGES = ("faiss-cpu", "sentence-transformers", "torch", "transformers", "numpy")
_VECTORS = "vectors.f32"  # all of them, while an index is being built
_BATCH_SIZE = 64
_BATCHES = 8  # encoded in one go, so that passages of like length stand in one batch
_BLOCK = 8192
_STEPS = 4  # of those in a chunk that a cluster's worker encodes at a time
_PER_CELL = (
    39  # vectors that k-means wants for each cell; with fewer FAISS warns that cells mean little
)
_GRAIN = (
    2.0**18
)  # scores closer than that are one: a text encoded beside longer ones differs from itself by less
_SPARE = 8
_AT_ONCE = 256
_WIDEST = (
    4096  # of the passages level with the k-th, so many are compared by their place in the corpus
)


class Dense(Stored):
    """A dense index: `Dense.build("corpus.jsonl.gz", "indexes/dense", encoder="facebook/contriever")`.

    `faiss` is the FAISS index itself and `encoder` what its vectors come from.
    """

    kind: ClassVar[str] = "dense"

    def __init__(
        self,
        manifest: Manifest,
        passages: Sequence[Passage],
        index: Any,
        encoder: Encoder,
        path: Path | None,
    ) -> None:
        limit = f"the encoder {encoder.name} reads {encoder.reading.query_limit} tokens"
        super().__init__(manifest, passages, path, limit)
        self.faiss = index
        self.encoder = encoder
        self._mapping = threading.Lock()

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        out: str | os.PathLike[str] | None = None,
        *,
        encoder: str | os.PathLike[str],
        query_encoder: str | os.PathLike[str] | None = None,
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
        share: bool = False,
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
            on.check()
            if out is None:
                raise BadArgument(
                    "an index that a cluster encodes lies in a folder: name one (out)"
                )
        loading: dict[str, Any] = {
            "query_encoder": None if query_encoder is None else os.fspath(query_encoder),
            "query_prefix": query_prefix,
            "passage_prefix": passage_prefix,
            "query_prompt": query_prompt,
            "passage_prompt": passage_prompt,
            "similarity": similarity,
            "pooling": pooling,
            "max_length": max_length,
            "device": device,
        }
        chunks = None
        with (
            building(out, overwrite=overwrite, share=share)
            if out is not None
            else nullcontext() as folder
        ):
            reader = load_encoder(os.fspath(encoder), **loading)
            passages, source = gather(corpus, folder, progress)
            settings = fitted(settings, len(passages))
            metric = reader.reading.similarity
            if on is None or folder is None or out is None:
                vectors = encoded(passages, reader, batch_size, folder, progress)
            else:
                made_of = [source.sha256, reader.identity, reader.reading.settings(), batch_size]
                chunks = ChunkFolder(out, made_of)
                job = _DenseJob(
                    str(folder), str(chunks.path), _lasting(encoder), loading, batch_size
                )
                vectors = encoded_on(on, chunks, job, passages, reader, folder, progress)
            built = build_index(vectors, settings, progress, metric)
            if settings["index"] == "hnsw":
                settings["graph"] = graph_digest(built)
            settings |= {
                "encoder": _lasting(encoder),
                "identity": reader.identity,
                "dimension": reader.dimension,
            }
            settings |= {} if query_encoder is None else {"query_encoder": _lasting(query_encoder)}
            settings |= reader.reading.settings()
            manifest = Manifest(
                kind=cls.kind,
                fingerprint=_fingerprint(source, settings),
                passages=len(passages),
                corpus=source,
                settings=settings,
                versions=versions_of(*PACKAGES),
            )
            if folder:
                _write(built, folder)
                write_manifest(folder, manifest)
        if out is None:
            return cls(manifest, passages, built, reader, None)
        if chunks is not None:
            chunks.remove()
        return opened_whole(out, lambda: cls._opened(out, reader, manifest_of(out, cls.kind)))

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        encoder: str | os.PathLike[str] | None = None,
        query_encoder: str | os.PathLike[str] | None = None,
        device: str | None = None,
    ) -> Self:
        """The index in `folder`, memory-mapped. `encoder` says where its encoder lies now, if it was moved, and
        `query_encoder` where that of its queries does, if it has one.

        Raises as `read_manifest` and `load_encoder` do, and `BadData` where the encoder is another than it was.
        """
        return opened_whole(folder, lambda: cls._open(folder, encoder, query_encoder, device))

    @classmethod
    def _open(
        cls,
        folder: str | os.PathLike[str],
        encoder: str | os.PathLike[str] | None,
        query_encoder: str | os.PathLike[str] | None,
        device: str | None,
    ) -> Self:
        manifest = manifest_of(
            folder, cls.kind, lambda made: _fingerprint(made.corpus, made.settings)
        )
        with opening(folder):
            settings = manifest.settings
            name = os.fspath(settings["encoder"] if encoder is None else encoder)
            asker = (
                settings.get("query_encoder") if query_encoder is None else os.fspath(query_encoder)
            )
            known = {
                field: settings[field] for field in EncodingOptions._fields if field in settings
            }
            reading = EncodingOptions(**known)
        try:
            reader = load_encoder(
                name, query_encoder=asker, **reading._asdict(), device=device, again=True
            )
        except (MissingFile, BadArgument, BadData) as error:
            which = (
                "encoder=… where it moved"
                if asker is None
                else "encoder=…, query_encoder=… where they moved"
            )
            why = f"the index at {folder} needs its encoder: {error} ({which})"
            raise (MissingFile if isinstance(error, MissingFile) else BadData)(why) from None
        return cls._opened(folder, reader, manifest)

    @classmethod
    def _opened(cls, folder: str | os.PathLike[str], encoder: Encoder, manifest: Manifest) -> Self:
        path, settings = path_of(folder), manifest.settings
        with opening(folder):
            if not encoder.is_the_one(settings["identity"]):
                was = settings["encoder"]
                was += (
                    f" (queries: {settings['query_encoder']})"
                    if "query_encoder" in settings
                    else ""
                )
                raise BadData(
                    f"the index at {folder} was built with another encoder: {was} was "
                    f"{settings['identity'][:12]}, and {encoder.name} is {encoder.identity[:12]}; "
                    "name that encoder, or build the index again"
                )
            index = faiss().read_index(str(path / INDEX), faiss().IO_FLAG_MMAP_IFC)
            if (index.ntotal, index.d) != (manifest.passages, encoder.dimension):
                raise BadData(
                    f"the index at {folder} is damaged: {INDEX} has {index.ntotal} vectors of {index.d} numbers "
                    f"where {manifest.passages} of {encoder.dimension} belong; build it again"
                )
            if settings["index"] == "hnsw":
                index.hnsw.efSearch = settings["ef_search"]
            if settings["index"] == "ivf":
                index.nprobe = settings["nprobe"]
            return cls(manifest, StoredPassages(path), index, encoder, path)

    def _open_again(self, path: Path) -> Self:
        return opened_whole(
            path,
            lambda: self._opened(
                path,
                self.encoder,
                manifest_of(path, self.kind, lambda made: _fingerprint(made.corpus, made.settings)),
            ),
        )

    def _fingerprint_of(self, manifest: Manifest, folder: Path) -> str:
        return _fingerprint(manifest.corpus, manifest.settings)

    def _write_update(
        self, folder: Path, new: UpdatedPassages, progress: ProgressCallback
    ) -> tuple[dict[str, Any], tuple[str, ...]]:
        """No old passage is encoded again. Without deletions, vectors are added to the index as it is; with them, all
        that stay are added anew: to the cells as they were, or to a new graph."""
        settings = dict(self.manifest.settings)
        index = faiss().read_index(os.path.join(self.path or "", INDEX))
        if settings["index"] == "hnsw":
            index.hnsw.efConstruction = settings["ef_construction"]
        if new.deleted:
            index.reset()
            phase = LINKING if settings["index"] == "hnsw" else ADDING
            for start in range(0, len(new.kept), _BLOCK):
                index.add(self.vectors(new.kept[start : start + _BLOCK].tolist()))
                progress(phase, min(start + _BLOCK, len(new.kept)), len(new.kept))
        if new.added:
            vectors = encoded(new.new, self.encoder, _BATCH_SIZE, folder, progress)
            add_vectors(index, vectors, settings["index"], progress)
        if settings["index"] == "hnsw":
            settings["graph"] = graph_digest(index)
        if settings["index"] == "ivf":  # of another corpus than this one
            settings["cells"] = cells_digest(index)
        _write(index, folder)
        return settings, PACKAGES

    def _trained(self) -> bool:
        return bool(self.manifest.settings["index"] == "ivf")

    def as_cheap(self, k: int) -> int:
        """Twice as deep; a graph is walked with a list of `ef_search`, and no wider up to there."""
        settings = self.manifest.settings
        return max(k, min(2 * k, settings["ef_search"])) if settings["index"] == "hnsw" else 2 * k

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages a query, equal scores in corpus order; hnsw and ivf may miss some, flat never does."""
        return [*self.near(self.encoded_queries(queries), k)] if queries else []

    def encoded_queries(self, queries: Sequence[str]) -> Encoded:
        """The vectors of `queries`, for `near` and for other comparisons."""
        encoded = self.encoder.encode_queries(queries)
        for query, was_cut in zip(queries, encoded.cut, strict=True):
            self._warnings.check_cut(query, was_cut)
        return encoded

    def near(self, queries: Encoded, k: int) -> list[Hits]:
        """What `find` gives for queries that are encoded already."""
        self._warnings.check_k(k)
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
        if hasattr(
            self.faiss, "make_direct_map"
        ):  # an IVF index wants a map for that, made at the first call
            with self._mapping:
                if self.faiss.direct_map.no():
                    self.faiss.make_direct_map()
        vectors: Vectors = self.faiss.reconstruct_batch(np.asarray(positions, dtype=np.int64))
        return vectors


def _lasting(encoder: str | os.PathLike[str]) -> str:
    """A folder by its whole path, so that the index opens from elsewhere; a name as it is."""
    place = Path(encoder).expanduser()
    return str(place.resolve()) if place.is_dir() else os.fspath(encoder)


def _fingerprint(corpus: CorpusInfo, settings: dict[str, Any]) -> str:
    # the identity says what they say
    beside = ("encoder", "query_encoder", "identity", "dimension", *EncodingOptions._fields)
    counting = {name: value for name, value in settings.items() if name not in beside}
    return fingerprint_of(Dense.kind, corpus.sha256, settings["identity"], counting)


def encoded(
    passages: Sequence[Passage],
    encoder: Encoder,
    batch_size: int,
    folder: Path | None,
    progress: ProgressCallback,
) -> Vectors:
    """The vectors of all passages in corpus order, memory-mapped from the folder where there is one.

    Warns once, with their number, of passages that are longer than the encoder reads.
    """
    step, cut, kept = batch_size * _BATCHES, 0, list[Vectors]()
    # written as a plain file: a full disk is an error here, and a crash in a memory map
    with open(folder / _VECTORS, "wb") if folder else nullcontext() as file:
        for start in range(0, len(passages), step):
            vectors, flags = encoder.encode_passages(
                [*map(encoder.line, passages[start : start + step])], batch_size
            )
            cut += sum(flags)
            if file:
                file.write(vectors.tobytes())
            else:
                kept.append(vectors)
            progress(ENCODING, min(start + step, len(passages)), len(passages))
    _warn_of_cut(cut, len(passages), encoder)
    return _mapped(folder, len(passages), encoder) if folder else np.concatenate(kept)


def _warn_of_cut(cut: int, passages: int, encoder: Encoder) -> None:
    if cut:
        warnings.warn(
            f"{cut:,} of {passages:,} passages are longer than the encoder {encoder.name} reads "
            f"({encoder.reading.max_length} tokens): what follows is not searched; cut them into shorter ones",
            stacklevel=3,
        )


def _mapped(folder: Path, passages: int, encoder: Encoder) -> Vectors:
    return np.asarray(
        np.memmap(
            folder / _VECTORS, dtype=np.float32, mode="r", shape=(passages, encoder.dimension)
        )
    )


# --- by a cluster ---------------------------------------------------------------------------------------------------


class _DenseJob(NamedTuple):
    """What a worker encodes with: the folder of passages, that of chunks, and the encoder's name and settings."""

    folder: str
    chunks: str
    encoder: str
    loading: dict[str, Any]
    batch_size: int


class _DenseChunks:
    """In a worker: the vectors of each chunk in `N.npy`, and how many passages were cut in `N.json`, written last."""

    def __init__(self, job: _DenseJob) -> None:
        self._job, self._passages = job, StoredPassages(Path(job.folder))
        self._encoder = load_encoder(job.encoder, **job.loading)

    def make(self, chunk: int) -> dict[str, int]:
        step, cut, parts = self._job.batch_size * _BATCHES, 0, list[Vectors]()
        last = min((chunk + 1) * step * _STEPS, len(self._passages))
        for start in range(chunk * step * _STEPS, last, step):
            lines = [*map(self._encoder.line, self._passages[start : min(start + step, last)])]
            vectors, flags = self._encoder.encode_passages(lines, self._job.batch_size)
            cut += sum(flags)
            parts.append(vectors)
        counts, made = {"passages": sum(map(len, parts)), "cut": cut}, Path(self._job.chunks)
        write_whole(made / f"{chunk}.vectors", [np.concatenate(parts).tobytes()])
        write_whole(made / f"{chunk}.json", [json.dumps(counts).encode()])
        return counts


def encoded_on(
    on: OnRay,
    chunks: ChunkFolder,
    job: _DenseJob,
    passages: Sequence[Passage],
    encoder: Encoder,
    folder: Path,
    progress: ProgressCallback,
) -> Vectors:
    """`encoded`, by a cluster."""
    number = -(-len(passages) // (job.batch_size * _BATCHES * _STEPS))
    missing = chunks.missing(number, "{}.json")
    known = sum(
        _counts(chunks, chunk)["passages"] for chunk in range(number) if chunk not in missing
    )
    on.make(_DenseChunks, job, missing, told(progress, ENCODING, known, len(passages)))
    with open(folder / _VECTORS, "wb") as file:
        for chunk in range(number):
            with open(chunks.path / f"{chunk}.vectors", "rb") as part:
                shutil.copyfileobj(part, file)
    _warn_of_cut(
        sum(_counts(chunks, chunk)["cut"] for chunk in range(number)), len(passages), encoder
    )
    return _mapped(folder, len(passages), encoder)


def _counts(chunks: ChunkFolder, chunk: int) -> dict[str, int]:
    counts: dict[str, int] = json.loads((chunks.path / f"{chunk}.json").read_bytes())
    return counts


# --- FAISS ----------------------------------------------------------------------------------------------------------


def faiss() -> Any:
    """The package. Raises `MissingExtra`."""
    return needed("faiss", "dense", WHY)


def settings_of(kind: str, **given: int) -> dict[str, Any]:
    """The settings of that kind of index, out of all `given`. Raises `UnknownName` or `BadArgument`.

    >>> settings_of("ivf", m=32, nlist=50, nprobe=5)
    {'index': 'ivf', 'nlist': 50, 'nprobe': 5}
    """
    if kind not in KINDS:
        raise UnknownName.of("dense index", str(kind), KINDS)
    counts = {name: check_count(name, given[name], 2 if name == "m" else 1) for name in KINDS[kind]}
    return {"index": kind, **counts}


def fitted(settings: dict[str, Any], passages: int) -> dict[str, Any]:
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
    settings: dict[str, Any],
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
    try:
        faiss().write_index(index, str(folder / INDEX))
    except RuntimeError as error:
        why = str(error).strip()[:200]
        raise OSError(f"cannot write {folder / INDEX} ({why}): is the disk full?") from None


def cells_digest(index: Any) -> str:
    """16 hex digits of an IVF index's centroids."""
    centroids: Vectors = index.quantizer.reconstruct_n(0, index.nlist)
    return hashlib.sha256(centroids.tobytes()).hexdigest()[:16]


def graph_digest(index: Any) -> str:
    """16 hex digits of an HNSW graph's links: threads add nodes as they come, so two builds may differ."""
    links = index.hnsw.neighbors
    seen = faiss().rev_swig_ptr(
        links.data(), links.size()
    )  # a view: millions of passages have gigabytes of links
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
            length = (
                float(np.linalg.norm(exact)) if l2 else 0.0
            )  # a distance's noise goes by the vectors' lengths
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

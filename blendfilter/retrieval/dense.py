"""Dense retrieval (Karpukhin et al. 2020, https://arxiv.org/abs/2004.04906, section 3): each passage is one vector,
each query another, and the passages whose vectors lie nearest to the query's are found. FAISS keeps the vectors.

In: passages as `Title | text` and an encoder; then queries. Out: for each query the k nearest passages, with the inner
product as score (the cosine, where the encoder's similarity is that). There is no zero: every passage has a score.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.records import Passage
from blendfilter.retrieval import dense_faiss
from blendfilter.retrieval.base import CutQueries, fingerprint_of
from blendfilter.retrieval.dense_faiss import Kind, Reconstructed
from blendfilter.retrieval.encoders import (
    Encoded,
    Encoder,
    Reading,
    Similarity,
    Vectors,
    load_encoder,
    reading_of,
)
from blendfilter.retrieval.hits import Hits
from blendfilter.retrieval.manifest import CorpusInfo, Manifest, building, opening, versions_of, write_manifest
from blendfilter.retrieval.passages import StoredPassages
from blendfilter.retrieval.progress import Progress, silent
from blendfilter.retrieval.stored import Corpus, Stored, gather, manifest_of

ENCODING = "encoding passages"
PACKAGES = ("faiss-cpu", "sentence-transformers", "torch", "transformers", "numpy")
_VECTORS = "vectors.f32"
"""All vectors, while an index is being built from them."""
_BATCHES = 8
"""Batches encoded in one go, so that passages of like length stand in one batch."""


class Dense(Stored):
    """A dense index: `Dense.build("corpus.jsonl.gz", "indexes/dense", encoder="facebook/contriever")`.

    `faiss` is the FAISS index itself and `encoder` what its vectors come from.
    """

    kind: ClassVar[str] = "dense"

    def __init__(
        self, manifest: Manifest, passages: Sequence[Passage], index: Any, encoder: Encoder, path: Path | None
    ) -> None:
        super().__init__(manifest, passages, path)
        self.faiss = index
        self.encoder = encoder
        self._vectors = Reconstructed(index)
        self._cut = CutQueries(f"the encoder {encoder.name} reads {encoder.reading.max_length} tokens")

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        out: str | os.PathLike[str] | None = None,
        *,
        encoder: str | os.PathLike[str],
        index: Kind = "flat",
        query_prefix: str = "",
        passage_prefix: str = "",
        similarity: Similarity | None = None,
        m: int = 32,
        ef_construction: int = 200,
        ef_search: int = 64,
        nlist: int = 50,
        nprobe: int = 5,
        batch_size: int = 64,
        max_length: int | None = None,
        device: str | None = None,
        overwrite: bool = False,
        share: bool = False,
        progress: Progress = silent,
    ) -> Self:
        """Index `corpus` (a file, or passages) into the folder `out`, or in memory without one.

        `encoder` is a folder or a name on the Hugging Face hub; prefixes, `similarity`, `max_length` and `device` are
        `load_encoder`'s. `m` and the two `ef_…` belong to hnsw, `nlist` and `nprobe` to ivf. With `out`, passages and
        vectors go to the folder block by block; on disk that takes the vectors twice while FAISS takes them in.
        Raises `EmptyData`, `BadData`, `BadArgument`, `UnknownName` and whatever `load_encoder` raises.
        """
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise BadArgument(f"batch_size must be a whole number from 1 up, got {batch_size!r}")
        settings = dense_faiss.settings_of(
            index, m=m, ef_construction=ef_construction, ef_search=ef_search, nlist=nlist, nprobe=nprobe
        )
        dense_faiss.faiss()
        with building(out, overwrite=overwrite, share=share) if out is not None else nullcontext() as folder:
            reader = load_encoder(
                os.fspath(encoder),
                query_prefix=query_prefix,
                passage_prefix=passage_prefix,
                similarity=similarity,
                max_length=max_length,
                device=device,
            )
            built = cls._build(corpus, settings, reader, batch_size, folder, progress)
        return built if out is None else cls._opened(out, reader, manifest_of(out, cls.kind))

    @classmethod
    def _build(
        cls,
        corpus: Corpus,
        settings: dict[str, Any],
        encoder: Encoder,
        batch_size: int,
        folder: Path | None,
        progress: Progress,
    ) -> Self:
        passages, source = gather(corpus, folder, progress)
        settings = dense_faiss.fitted(settings, len(passages))
        vectors = encoded(passages, encoder, batch_size, folder, progress)
        index = dense_faiss.build_index(vectors, settings, progress)
        del vectors
        if settings["index"] == "hnsw":
            settings["graph"] = dense_faiss.graph_digest(index)
        if folder:
            (folder / _VECTORS).unlink()
            dense_faiss.write(index, folder)
        manifest = Manifest(
            kind=cls.kind,
            fingerprint=_fingerprint(source, encoder.identity, settings),
            passages=len(passages),
            corpus=source,
            settings={
                **settings,
                "encoder": _address(encoder.name),
                "identity": encoder.identity,
                **encoder.reading._asdict(),
                "dimension": encoder.dimension,
            },
            versions=versions_of(*PACKAGES),
        )
        return cls(write_manifest(folder, manifest) if folder else manifest, passages, index, encoder, folder)

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str], *, encoder: str | os.PathLike[str] | None = None, device: str | None = None
    ) -> Self:
        """The index in `folder`, memory-mapped. `encoder` says where its encoder lies now, if it was moved.

        Raises as `read_manifest` and `load_encoder` do, and `BadData` where the encoder is another than it was.
        """
        manifest = manifest_of(folder, cls.kind, _made_of)
        with opening(folder):
            name = os.fspath(manifest.settings["encoder"] if encoder is None else encoder)
            reading = reading_of(manifest.settings)
        try:
            reader = load_encoder(name, **reading, device=device)
        except (MissingFile, BadArgument, BadData) as error:
            why = f"the index at {folder} needs its encoder: {error} (encoder=… where it moved)"
            raise (MissingFile if isinstance(error, MissingFile) else BadData)(why) from None
        return cls._opened(folder, reader, manifest)

    @classmethod
    def _opened(cls, folder: str | os.PathLike[str], encoder: Encoder, manifest: Manifest) -> Self:
        path, settings = Path(folder), manifest.settings
        with opening(folder):
            if encoder.identity != settings["identity"]:
                raise BadData(
                    f"the index at {folder} was built with another encoder: {settings['encoder']} was "
                    f"{settings['identity'][:12]}, and {encoder.name} is {encoder.identity[:12]}; "
                    "name that encoder, or build the index again"
                )
            index = dense_faiss.read(path, settings, (manifest.passages, encoder.dimension))
            return cls(manifest, StoredPassages(path), index, encoder, path)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages a query, equal scores in corpus order; hnsw and ivf may miss some, flat never does."""
        self._short.check(k)
        return [*self.near(self.encoded_queries(queries), k)] if queries else []

    def encoded_queries(self, queries: Sequence[str]) -> Encoded:
        """The vectors of `queries`, for `near`, and for whoever compares them with something else too."""
        encoded = self.encoder.encode_queries(queries)
        for query, was_cut in zip(queries, encoded.cut, strict=True):
            self._cut.check(query, was_cut)
        return encoded

    def near(self, queries: Encoded, k: int) -> list[Hits]:
        """What `find` gives for queries that are encoded already."""
        self._short.check(k)
        try:
            found = dense_faiss.nearest(self.faiss, queries.vectors, k)
            return [
                Hits((self.passages[at].scored(score) for at, score in zip(*each, strict=True)), cut=was_cut)
                for each, was_cut in zip(found, queries.cut, strict=True)
            ]
        except (RuntimeError, IndexError) as error:  # links and lists that lead to no vector, or to no passage
            why = " ".join(str(error).split())[-120:]
            raise BadData(f"the index at {self.path} is damaged ({why}): build it again") from error

    def vector(self, position: int) -> Vectors:
        """The vector of the passage at that place of the corpus."""
        return self._vectors[position]


_BESIDE = ("encoder", "identity", "dimension", *Reading._fields)
"""Settings that the fingerprint does not count: the encoder's identity says what they say."""


def _fingerprint(corpus: CorpusInfo, identity: str, settings: dict[str, Any]) -> str:
    return fingerprint_of(Dense.kind, corpus.sha256, identity, settings)


def _made_of(manifest: Manifest) -> str:
    settings = manifest.settings
    counting = {name: value for name, value in settings.items() if name not in _BESIDE}
    return _fingerprint(manifest.corpus, settings["identity"], counting)


def encoded(
    passages: Sequence[Passage], encoder: Encoder, batch_size: int, folder: Path | None, progress: Progress
) -> Vectors:
    """The vectors of all passages in corpus order, memory-mapped from the folder where there is one.

    Warns once, with their number, of passages that are longer than the encoder reads.
    """
    step, cut, kept = batch_size * _BATCHES, 0, list[Vectors]()
    # written as a plain file: a full disk is an error here, and a crash in a memory map
    with open(folder / _VECTORS, "wb") if folder else nullcontext() as file:
        for start in range(0, len(passages), step):
            vectors, flags = encoder.encode_passages([p.line for p in passages[start : start + step]], batch_size)
            cut += sum(flags)
            if file:
                file.write(vectors.tobytes())
            else:
                kept.append(vectors)
            progress(ENCODING, min(start + step, len(passages)), len(passages))
    if cut:
        warnings.warn(
            f"{cut:,} of {len(passages):,} passages are longer than the encoder {encoder.name} reads "
            f"({encoder.reading.max_length} tokens): what follows is not searched; cut them into shorter ones",
            stacklevel=2,
        )
    if not folder:
        return np.concatenate(kept)
    shape = (len(passages), encoder.dimension)
    return np.asarray(np.memmap(folder / _VECTORS, dtype=np.float32, mode="r", shape=shape))


def _address(name: str) -> str:
    """A folder by its whole path, so that the index opens from elsewhere; a hub name as it is."""
    folder = Path(name).expanduser()
    return str(folder.resolve()) if folder.is_dir() else name

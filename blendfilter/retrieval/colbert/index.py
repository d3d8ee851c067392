"""A ColBERTv2 index: built from passages, opened from a folder, searched with whole queries.

In: passages and a checkpoint, then queries. Out: an index folder; for each query at most k passages, best first, scored
by MaxSim over compressed vectors. Passages are read as `Title | text`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, Self

import torch

from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.records import Passage
from blendfilter.retrieval.base import CutQueries, fingerprint_of
from blendfilter.retrieval.colbert.building import (
    ENCODING,
    Recipe,
    check_recipe,
    compress,
    finish,
    reading,
    train,
    writing,
)
from blendfilter.retrieval.colbert.checkpoint import Checkpoint
from blendfilter.retrieval.colbert.compat import load_kernels
from blendfilter.retrieval.colbert.encoder import Encoder
from blendfilter.retrieval.colbert.plan import nbits_for
from blendfilter.retrieval.colbert.searching import Effort, Scorer, check_effort, effort_for
from blendfilter.retrieval.colbert.worker import Job, chunks_of, compress_beside
from blendfilter.retrieval.hits import Hits
from blendfilter.retrieval.manifest import CorpusInfo, Manifest, building, opening, versions_of, write_manifest
from blendfilter.retrieval.passages import StoredPassages
from blendfilter.retrieval.progress import Progress, silent
from blendfilter.retrieval.stored import Corpus, Gathered, Stored, check_fingerprint, gather, manifest_of

DEFAULT = "colbert-ir/colbertv2.0"
_CONTENT = ("centroids.pt", "ivf.pid.pt")
"""Files that a fingerprint counts: another machine's rounding makes other ones."""
CHECKED = 64 * 2**20
"""Bytes of them up to which opening an index computes its fingerprint again."""
AT_ONCE = 256
"""Queries whose vectors are held at a time: 64 MB where all of them are as long as can be."""


class ColBERT(Stored):
    """The ColBERTv2 index. `ColBERT.build("corpus.jsonl.gz", "indexes/mine")`, then `open_index("indexes/mine")`."""

    kind: ClassVar[str] = "colbert"

    def __init__(
        self,
        manifest: Manifest,
        passages: Sequence[Passage],
        path: Path,
        encoder: Encoder,
        effort: Effort | None = None,
    ) -> None:
        super().__init__(manifest, passages, path)
        self.encoder = encoder
        self.effort = effort and check_effort(effort)
        if effort:  # it changes what is found
            self.fingerprint = fingerprint_of(manifest.fingerprint, list(effort))
        self._scorer = Scorer(path, encoder.device)
        self._cut = CutQueries(f"this checkpoint reads {encoder.limit} tokens, and the query's end was kept")

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        out: str | os.PathLike[str] | None = None,
        *,
        checkpoint: str | os.PathLike[str] = DEFAULT,
        nbits: int | None = None,
        doc_maxlen: int = 220,
        gpus: int | None = None,
        partitions: int | None = None,
        batch_size: int = 64,
        overwrite: bool = False,
        share: bool = False,
        progress: Progress = silent,
    ) -> Self:
        """Index `corpus` (a file, or passages) into the folder `out`; without one, in a temporary folder.

        `checkpoint` is a folder or a name on the hub; `nbits` (1, 2, 4, 8) is what is kept of each dimension, by
        default 4 for up to 100,000 passages and 2 beyond; `doc_maxlen` is where passages are cut, in tokens. `gpus`:
        how many to use, all there are by default, 0 for the CPU. `partitions` is the number of centroids, by default as
        the size asks (`colbert.plan`). The folder appears whole or not at all. Raises `MissingFile` and `BadData` for a
        checkpoint that is not there or is none, `EmptyData`, `BadData` (two passages with one id), `BadArgument`,
        `MissingExtra`, and `OSError` where the disk is full.
        """
        devices = devices_for(gpus)
        recipe = Recipe(nbits_for(0) if nbits is None else nbits, doc_maxlen, partitions, batch_size)
        found = Checkpoint(checkpoint)
        check_recipe(recipe, found)
        if devices == ["cpu"]:
            load_kernels()  # a search wants them: whoever cannot have them hears of it before the build, not after
        encoder = Encoder(found, devices[0], doc_maxlen=doc_maxlen)
        with ExitStack() as undo:
            kept = tempfile.mkdtemp(prefix="blendfilter-colbert-") if out is None else None
            if kept:
                undo.callback(shutil.rmtree, kept, ignore_errors=True)
            place = out or Path(kept or "", "index")
            with building(place, overwrite=overwrite, share=share) as folder, writing(folder):
                gathered = gather(corpus, folder, progress)
                recipe = recipe._replace(nbits=nbits or nbits_for(len(gathered.passages)))
                cls._build(folder, gathered, encoder, recipe, devices, progress)
            index = cls.open(place, checkpoint=checkpoint, gpu=devices[0] == "cuda")
            undo.pop_all()
        if kept:
            weakref.finalize(index, shutil.rmtree, kept, ignore_errors=True)
        return index

    @classmethod
    def _build(
        cls, folder: Path, corpus: Gathered, encoder: Encoder, recipe: Recipe, devices: list[str], progress: Progress
    ) -> None:  # fmt: skip
        checkpoint = encoder.checkpoint
        plan, sample = train(folder, corpus.passages, encoder, recipe, progress)
        total, done = len(corpus.passages), 0
        if len(devices) > 1:
            of = min(len(devices), chunks_of(total))
            told = (str(folder), str(checkpoint.folder))
            asked = (recipe.doc_maxlen, recipe.batch_size)
            jobs = [Job(*told, devices[at], *asked, at, of, os.getpid()) for at in range(of)]
            compress_beside(jobs, total, progress)
        else:
            chunks = range(chunks_of(total))
            for count in compress(folder, corpus.passages, encoder, recipe.batch_size, chunks, sample):
                done += count
                progress(ENCODING, done, total)
        vectors = finish(folder, total, progress)
        settings = {
            "checkpoint": checkpoint.name, "checkpoint_sha256": checkpoint.sha256, "dim": checkpoint.dim,
            "nbits": recipe.nbits, "doc_maxlen": recipe.doc_maxlen, "query_maxlen": encoder.query_maxlen,
            "partitions": plan.partitions, "sampled_passages": plan.sample, "vectors": vectors,
        }  # fmt: skip
        manifest = Manifest(
            kind=cls.kind,
            fingerprint=_fingerprint(corpus.corpus, settings, folder),
            passages=total,
            corpus=corpus.corpus,
            settings=settings,
            versions=versions_of("colbert-ai", "torch", "transformers"),
        )
        write_manifest(folder, manifest)

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str],
        *,
        checkpoint: str | os.PathLike[str] | None = None,
        gpu: bool | None = None,
        effort: Effort | None = None,
    ) -> Self:
        """The index in `folder`, its vectors in memory, its passages on disk.

        `checkpoint` says where the one it was built with lies now; `gpu` is used where there is one unless False;
        `effort` replaces `effort_for`, the default of each search. Raises as `read_manifest` does, and `BadData` where
        the checkpoint is another one.
        """
        manifest, path = manifest_of(folder, cls.kind), Path(folder)
        with opening(folder):
            settings = manifest.settings
            named, sha256, doc_maxlen = settings["checkpoint"], settings["checkpoint_sha256"], settings["doc_maxlen"]
            if not isinstance(named, str) or type(doc_maxlen) is not int:
                raise TypeError("its settings name no checkpoint")
        if sum(manifest.files.get(name, 0) for name in _CONTENT) <= CHECKED:
            check_fingerprint(path, manifest, _fingerprint(manifest.corpus, manifest.settings, path))
        try:
            found = Checkpoint(checkpoint or named)
        except MissingFile as error:
            raise MissingFile(
                f"the index at {folder} needs its checkpoint: {error} (ColBERT.open(DIR, checkpoint=…) where it moved)"
            ) from None
        if found.sha256 != sha256:
            raise BadData(
                f"the index at {folder} was built with another checkpoint than the one at {found.name}: "
                "name that one (checkpoint=), or build the index again"
            )
        encoder = Encoder(found, device_for(gpu), doc_maxlen=doc_maxlen)
        with opening(folder):
            passages = StoredPassages(path)
        return cls(manifest, passages, path, encoder, effort)

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages a query; equal scores keep corpus order. A query too long for the model is flagged."""
        self._short.check(k)
        effort = self.effort or effort_for(k, len(self.passages))
        found: list[list[Passage]] = []
        for start in range(0, len(queries), AT_ONCE):
            some = queries[start : start + AT_ONCE]
            read = self.encoder.queries(some)
            for query, vectors, cut in zip(some, read.vectors, read.cut, strict=True):
                self._cut.check(query, cut)
                best = self._scorer.best(vectors, k, effort)
                try:
                    found.append(Hits((self.passages[at].scored(score) for at, score in best), cut=cut))
                except IndexError as error:
                    raise BadData(f"the index at {self.path} is damaged ({error}): build it again") from error
        return found

    def info(self) -> dict[str, Any]:
        """As `Stored.info`, and the device it searches on."""
        return {**super().info(), "fingerprint": self.fingerprint, "device": self.encoder.device.type}


def devices_for(gpus: int | None) -> list[str]:
    """The devices to build on, one name each. Raises `BadArgument` where more GPUs are asked for than there are."""
    seen = torch.cuda.device_count()
    if gpus is not None and not 0 <= gpus <= seen:
        raise BadArgument(f"gpus must lie between 0 and {seen}, the number this machine has, got {gpus}")
    count = seen if gpus is None else gpus
    return ["cuda"] * count or ["cpu"]


def device_for(gpu: bool | None) -> str:
    """The device to search on. Raises `BadArgument` where a GPU is asked for and there is none."""
    if gpu and not torch.cuda.is_available():
        raise BadArgument("gpu=True, and torch sees no GPU on this machine: leave it out to search on the CPU")
    return "cuda" if gpu or (gpu is None and torch.cuda.is_available()) else "cpu"


def _fingerprint(corpus: CorpusInfo, settings: dict[str, Any], folder: Path) -> str:
    return fingerprint_of(ColBERT.kind, corpus.sha256, {**settings, "checkpoint": ""}, content_hash(folder))


def content_hash(folder: Path) -> str:
    """Over centroids and lists: another machine's rounding makes other ones, and with them another index."""
    digest = hashlib.sha256()
    with reading(folder):
        centroids, lists = (torch.load(folder / name, map_location="cpu") for name in _CONTENT)
        tensors = [centroids, *lists]
    for tensor in tensors:
        digest.update(tensor.contiguous().numpy())
    return digest.hexdigest()

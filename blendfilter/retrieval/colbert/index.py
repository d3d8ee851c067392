"""A late-interaction index: built of passages, opened from a folder (colbert-ai's too), searched with whole queries.

Passages are read as `Title | text` and scored by MaxSim over compressed vectors. A search is PLAID's (Santhanam et al.
2022, section 4): centroids near the query's tokens name candidates, two rounds of approximate scores thin them out, the
rest are rebuilt and scored in full.

Differs from colbert-ai: candidates are sought for every token of the query, where it takes the first 32; equal scores
keep corpus order; and the effort is set for each search by k and the size of the index, where it keeps what the first
search set.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.extras import needed
from blendfilter.files import AnyPath, path_of, writing
from blendfilter.records import Passage
from blendfilter.retrieval.base import Hits, ProgressCallback, fingerprint_of, silent
from blendfilter.retrieval.colbert.building import (
    SMALL,
    IndexBuild,
    codec_digest,
    finish,
    nbits_for,
    on_device,
)
from blendfilter.retrieval.colbert.compat import load_kernels, parts, torch
from blendfilter.retrieval.colbert.encoder import ColBERTCheckpoint, TokenEncoder
from blendfilter.retrieval.corpus import Corpus, at_bar, corpus_hash
from blendfilter.retrieval.manifest import CorpusInfo, Manifest, Settings, building, opening
from blendfilter.retrieval.on_ray import ChunkFolder, OnRay
from blendfilter.retrieval.stored import (
    PassageLines,
    Stored,
    UpdatedPassages,
    gather,
    stored_passages,
    text_lines,
)

DEFAULT = "colbert-ir/colbertv2.0"
BATCH_SIZE = 64
AT_ONCE = 1 << 17
"""Tokens of queries whose vectors are in memory at a time: 64 MB of 128 dimensions."""
_CONTENT = ("centroids.pt", "ivf.pid.pt")
"""What a fingerprint counts: another machine's rounding makes other ones."""
_PLAID_SETTINGS = ("dim", "nbits", "doc_maxlen", "query_maxlen")


class ColBERT(Stored):
    """A ColBERT index. `ColBERT.build("corpus.jsonl.gz", "indexes/mine")`, then `open_index("indexes/mine")`."""

    kind = "colbert"
    packages = (
        "colbert-ai",
        "sentence-transformers",
        "torch",
        "transformers",
    )

    def __init__(
        self,
        manifest: Manifest,
        passages: PassageLines,
        path: Path,
        encoder: TokenEncoder,
        effort: SearchEffort | None = None,
    ) -> None:
        limit = f"this checkpoint reads {encoder.limit} tokens, and the query's end was kept"
        super().__init__(manifest, passages, path, limit)
        self.encoder = encoder
        self.effort = effort
        if effort:  # it changes what is found
            if effort.ncells < 1 or effort.ndocs < 4:
                raise BadArgument(
                    f"a search wants ncells of at least 1 and ndocs of at least 4, got {effort}"
                )
            self.fingerprint = fingerprint_of(manifest.fingerprint, list(effort))
        gpu = encoder.device.type == "cuda"
        if not gpu:
            load_kernels()
        with on_device(encoder.device), opening(path):
            self._scorer = parts().scorer(str(path), use_gpu=gpu)

    @classmethod
    def build(
        cls,
        corpus: Corpus,
        out: AnyPath | None = None,
        *,
        checkpoint: AnyPath = DEFAULT,
        nbits: int | None = None,
        doc_maxlen: int | None = None,
        gpus: int | None = None,
        partitions: int | None = None,
        codec: AnyPath | None = None,
        batch_size: int = BATCH_SIZE,
        overwrite: bool = False,
        on: OnRay | None = None,
        progress: ProgressCallback = silent,
    ) -> Self:
        """Index `corpus` (whatever `passages_of` takes) into the folder `out`; without one, in a temporary folder.

        `codec` is the folder of another index whose centroids and buckets are taken instead of training own ones: then
        both can be joined (`Sharded`). With `on` a cluster encodes, chunk by chunk, after this process has trained the
        codec on a sample, once; a build that was killed then goes on with the chunks that are missing.

        `checkpoint` is a folder or a name on the hub; `nbits` (1, 2, 4, 8) are kept of each dimension, by default 4
        for up to 100,000 passages and 2 beyond; `doc_maxlen` counts tokens, by default what a checkpoint of PyLate or
        sentence-transformers states, and 220 for colbert-ai's; `gpus` are all there are by default, 0 is the CPU, and
        several want the extra `ray`; `partitions` is the number of centroids, by default as `planned` has it.
        Raises `MissingFile`, `EmptyData`, `BadData`, `BadArgument`, `MissingExtra`, and `OSError` for a full disk.
        """
        seen = torch.cuda.device_count()
        if gpus is not None and not 0 <= gpus <= seen:
            raise BadArgument(
                f"gpus must lie between 0 and {seen}, the number this machine has, got {gpus}"
            )
        gpus = seen if gpus is None else gpus
        device = "cuda" if gpus else "cpu"
        encoder = TokenEncoder(ColBERTCheckpoint(checkpoint), device, doc_maxlen=doc_maxlen)
        bits = nbits_for(0) if nbits is None else nbits
        draft = IndexBuild(Path(), (), encoder, bits, partitions, batch_size, progress)
        draft.check()
        if not gpus:
            load_kernels()  # a search wants them, so that a lack of them is an error before the build
        if on is not None:
            on.check(out)
        elif gpus > 1:
            needed("ray", "ray", f"a build on {gpus} GPUs (gpus=1 takes one)")
            on = OnRay(workers=gpus, gpus=1)
        chunks: ChunkFolder | None = None
        with ExitStack() as undo:
            if (place := out) is None:
                kept = tempfile.TemporaryDirectory(
                    prefix="blendfilter-colbert-", ignore_cleanup_errors=True
                )
                place = Path(undo.enter_context(kept), "index")
            with building(place, overwrite=overwrite) as folder:
                passages, about = gather(corpus, folder, progress)
                bits = nbits or nbits_for(len(passages))
                made = draft._replace(folder=folder, passages=passages, nbits=bits)
                taken = None if codec is None else Path(codec)
                if on is None:
                    plan = made.encode(taken)
                else:
                    made_of = [about.sha256, encoder.checkpoint.sha256, made.shape, partitions]
                    made_of += [batch_size, device]
                    made_of += [] if taken is None else [codec_digest(taken)]
                    chunks = ChunkFolder(place, made_of, "{}.metadata.json")
                    plan = made.encode_on(on, chunks, taken)
                made_with = {
                    "checkpoint": encoder.checkpoint.name,
                    "checkpoint_sha256": encoder.checkpoint.sha256,
                    "dim": encoder.dim,
                    "nbits": bits,
                    "doc_maxlen": encoder.doc_maxlen,
                    "query_maxlen": encoder.query_maxlen,
                    "partitions": plan.partitions,
                    "sampled_passages": plan.sample,
                    "vectors": finish(folder, len(passages), progress),
                }
                cls._described(folder, made_with, about, len(passages))
            if chunks is not None:
                chunks.remove()
            gpu = bool(gpus)
            index = cls._open(
                place, checkpoint=checkpoint, gpu=gpu, effort=None, loaded=encoder
            )
            weakref.finalize(index, undo.pop_all().close)
            return index

    @staticmethod
    def train_codec(
        corpus: Corpus,
        out: AnyPath,
        *,
        checkpoint: AnyPath = DEFAULT,
        nbits: int | None = None,
        doc_maxlen: int | None = None,
        gpus: int | None = None,
        partitions: int | None = None,
        batch_size: int = BATCH_SIZE,
        progress: ProgressCallback = silent,
    ) -> None:
        """Train a codec on a sample of `corpus`, and leave it in the folder `out` for `build(…, codec=out)`.

        The arguments are `build`'s, and so are the errors.
        """
        device = "cuda" if (torch.cuda.device_count() if gpus is None else gpus) else "cpu"
        encoder = TokenEncoder(ColBERTCheckpoint(checkpoint), device, doc_maxlen=doc_maxlen)
        folder = path_of(out)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as beside, writing(folder):
            passages, _ = gather(corpus, Path(beside), progress)
            bits = nbits or nbits_for(len(passages))
            made = IndexBuild(folder, passages, encoder, bits, partitions, batch_size, progress)
            made.check()
            made.train(folder)

    @classmethod
    def open(
        cls,
        folder: AnyPath,
        *,
        checkpoint: AnyPath | None = None,
        gpu: bool | None = None,
        effort: SearchEffort | None = None,
    ) -> Self:
        """The index in `folder`, its vectors in memory, its passages on disk.

        `checkpoint` says where the one it was built with lies now; `gpu` is used where there is one unless False;
        `effort` replaces `effort_for`, the default of each search. Raises as `read_manifest` does, and `BadData` where
        the checkpoint is another one.
        """
        parts()  # what is not installed is an error of its own, before anything of the index is read
        return cls._open(folder, checkpoint=checkpoint, gpu=gpu, effort=effort)

    @classmethod
    def _read(cls, folder: Path, manifest: Manifest, **how: Any) -> Self:
        loaded: TokenEncoder | None = how.get("loaded")
        with opening(folder):
            settings = manifest.settings
            named, sha256 = settings["checkpoint"], settings["checkpoint_sha256"]
            doc_maxlen = settings["doc_maxlen"]
        try:
            found = (
                loaded.checkpoint if loaded else ColBERTCheckpoint(how["checkpoint"] or named)
            )
        except MissingFile as error:
            raise MissingFile(
                f"the index at {folder} needs its checkpoint: {error} (ColBERT.open(DIR, checkpoint=…) where it moved)"
            ) from None
        if found.sha256 != sha256:
            raise BadData(
                f"the index at {folder} was built with another checkpoint than the one at {found.name}: "
                "name that one (checkpoint=), or build the index again"
            )
        if loaded is None or loaded.doc_maxlen != doc_maxlen:
            loaded = TokenEncoder(found, device_for(how["gpu"]), doc_maxlen=doc_maxlen)
        with opening(folder):
            passages = stored_passages(folder)
        return cls(manifest, passages, folder, loaded, how["effort"])

    def _is_trained(self) -> bool:
        return True

    @classmethod
    def _fingerprint(cls, manifest: Manifest, folder: Path | None) -> str:
        settings = {**manifest.settings, "checkpoint": ""}
        content = content_hash(folder or Path())
        return fingerprint_of(cls.kind, manifest.corpus.sha256, settings, content)

    def _write_update(
        self, folder: Path, new: UpdatedPassages, progress: ProgressCallback
    ) -> Settings:
        made = IndexBuild(
            folder, new.new, self.encoder, batch_size=BATCH_SIZE, progress=progress
        )
        vectors = made.update(self.path or folder, new.kept)
        return {**self.manifest.settings, "vectors": vectors}

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages a query; equal scores keep corpus order. A query too long for the model is flagged."""
        effort = self.effort or effort_for(k, len(self.passages))
        found: list[list[Passage]] = []
        step = max(1, AT_ONCE // self.encoder.limit)
        for start in range(0, len(queries), step):
            some = queries[start : start + step]
            read = self.encoder.queries(some)
            for query, vectors, cut in zip(some, read.vectors, read.cut, strict=True):
                if cut:
                    self._warn_of_cut(query)
                ranked = self.ranked(vectors, k, effort)
                found.append(
                    Hits((self.passages[at].scored(score) for at, score in ranked), cut=cut)
                )
        return found

    def ranked(self, vectors: Any, k: int, effort: SearchEffort) -> list[tuple[int, float]]:
        """The best `k` (position, score) for one query's vectors (tokens, dim); equal scores keep corpus order."""
        settings = SimpleNamespace(
            query_maxlen=len(vectors),  # of which candidates are sought
            ncells=min(effort.ncells, len(self._scorer.codec.centroids)),
            centroid_score_threshold=effort.threshold,
            ndocs=max(effort.ndocs, 4 * k),
            interaction="colbert",
            total_visible_gpus=int(self.encoder.device.type == "cuda"),
        )
        positions, scores = self._scorer.rank(settings, vectors.unsqueeze(0))
        return sorted(zip(positions, scores, strict=True), key=lambda hit: (-hit[1], hit[0]))[
            :k
        ]

    def info(self) -> Settings:
        """As `Stored.info`, the device it searches on, and what tells its codec from others."""
        about = {"device": self.encoder.device.type, "codec": self._codec}
        return {**super().info(), "fingerprint": self.fingerprint, **about}

    @cached_property
    def _codec(self) -> str:
        return codec_digest(self.path or Path())


def device_for(gpu: bool | None) -> str:
    """The device to search on. Raises `BadArgument` where a GPU is wanted and there is none."""
    if gpu and not torch.cuda.is_available():
        raise BadArgument(
            "gpu=True, and torch sees no GPU on this machine: leave it out to search on the CPU"
        )
    return "cuda" if gpu or (gpu is None and torch.cuda.is_available()) else "cpu"


def content_hash(folder: Path) -> str:
    """Over centroids and lists: another machine's rounding makes other ones, and with them another index."""
    digest = hashlib.sha256()
    with opening(folder):
        centroids, lists = (torch.load(folder / name, map_location="cpu") for name in _CONTENT)
        tensors = [centroids, *lists]
    for tensor in tensors:
        digest.update(tensor.contiguous().numpy())
    return digest.hexdigest()


# --- searching --------------------------------------------------------------------------------------------------------


class SearchEffort(NamedTuple):
    """How hard a search looks; more finds more of what exhaustive scoring finds, and takes longer."""

    ncells: int  # centroids whose passages are candidates, for each token
    threshold: float  # centroids scoring below it for every token are left out of the first approximate score
    ndocs: int  # candidates kept by the first approximate score; a quarter of them is scored in full


def effort_for(k: int, passages: int) -> SearchEffort:
    """The default for `k` hits among `passages`: PLAID's own settings, and twice the work where that costs little.

    >>> effort_for(5, 2_000)
    SearchEffort(ncells=2, threshold=0.4, ndocs=1024)
    >>> effort_for(10, 5_000_000)
    SearchEffort(ncells=1, threshold=0.5, ndocs=256)
    """
    if passages <= SMALL:
        own = SearchEffort(2, 0.4, 1024)
    elif k <= 10:
        own = SearchEffort(1, 0.5, 256)
    elif k <= 100:
        own = SearchEffort(2, 0.45, 1024)
    else:
        own = SearchEffort(4, 0.4, 4096)
    return own._replace(ndocs=max(own.ndocs, 4 * k))


# --- colbert-ai's own folders -----------------------------------------------------------------------------------------


def open_plaid(
    folder: AnyPath,
    *,
    checkpoint: AnyPath | None = None,
    collection: AnyPath | None = None,
    gpu: bool | None = None,
    effort: SearchEffort | None = None,
) -> ColBERT:
    """The index that colbert-ai left in `folder`, opened as it is; nothing is written into it.

    Its `metadata.json` says which checkpoint and which collection (TSV: number, passage, and a title if there is one)
    it was made of; `checkpoint` and `collection` name where they lie now. Passages stay in the TSV and are read from
    there by line; a passage's id is its line's number, as in colbert-ai.

    Raises:
        BadData: files of it are missing, or the collection has another number of passages.
        BadArgument: it does not say where its collection lies. MissingFile: there is none.
    """
    path = path_of(folder)
    parts()
    with opening(path):
        metadata = json.loads((path / "metadata.json").read_bytes())
        config, chunks = metadata["config"], range(metadata["num_chunks"])
        names = [f"{at}.{what}" for at in chunks for what in ("codes.pt", "residuals.pt")]
        names += [f"doclens.{at}.json" for at in chunks] + [
            *_CONTENT,
            "buckets.pt",
            "avg_residual.pt",
        ]
        gone = [name for name in names if not (path / name).is_file()]
        if gone:
            raise BadData(
                f"the index at {path} is not whole ({', '.join(gone[:3])}): build it again"
            )
        lengths = [
            length
            for at in chunks
            for length in json.loads((path / f"doclens.{at}.json").read_bytes())
        ]
        if sum(lengths) != metadata["num_embeddings"]:
            raise ValueError(
                f"{sum(lengths)} vectors, and metadata.json says {metadata['num_embeddings']}"
            )
        settings = {name: config[name] for name in _PLAID_SETTINGS if name in config}
        partitions = metadata["num_partitions"]
    named = checkpoint or config.get("checkpoint")
    place = collection or config.get("collection")
    if not named or not place:
        lacks = "collection" if named else "checkpoint"
        raise BadArgument(
            f"the index at {path} does not say which {lacks} it was made of: open_index(…, {lacks}=…)"
        )
    if not Path(place).is_file():
        raise MissingFile(
            f"no collection at {place}, which the index at {path} was made of: say where it lies (collection=)"
        )
    place = Path(place)
    passages, sha256 = collection_passages(place), corpus_hash(place)
    found = ColBERTCheckpoint(named)
    if len(lengths) != len(passages):
        raise BadData(
            f"the index at {path} holds {len(lengths):,} passages and its collection {place} "
            f"{len(passages):,}: name the collection it was built from (collection=)"
        )
    settings |= {
        "checkpoint": found.name,
        "checkpoint_sha256": found.sha256,
        "partitions": partitions,
    }
    sizes = [file.stat().st_size for file in sorted(path.glob("*.pt"))]
    made_of = {**settings, "checkpoint": ""}
    manifest = Manifest(
        kind=ColBERT.kind,
        fingerprint=fingerprint_of("colbert-ai", sha256, made_of, content_hash(path), sizes),
        passages=len(passages),
        corpus=CorpusInfo(name=place.name, sha256=sha256),
        settings=settings,
    )
    limits = {name: config.get(name) for name in ("doc_maxlen", "query_maxlen")}
    return ColBERT(
        manifest, passages, path, TokenEncoder(found, device_for(gpu), **limits), effort
    )


def collection_passages(path: Path) -> PassageLines:
    """The passages of colbert-ai's collection file, by line."""
    return text_lines(path, partial(_passage, path))


def _passage(path: Path, at: int, line: bytes) -> Passage:
    """A line of number, passage and, if there is one, title."""
    try:
        _, text, *titles = line.decode("utf-8").strip("\n\r ").split("\t")
    except ValueError as error:  # UnicodeDecodeError is one
        raise BadData(
            f"{path}, line {at + 1}: expected a number, a tab and a passage ({error})"
        ) from None
    title, text = (titles[0], text) if titles else at_bar(text)
    return Passage(str(at), title.strip(), text.strip())

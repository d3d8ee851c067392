"""Index folders that colbert-ai made, opened as they are: its PLAID files, its collection as a TSV, its checkpoint.

In: such a folder. Out: a `ColBERT` over it. Nothing is written into it. Passages stay in the TSV and are read from
there by line; a passage's id is its line's number, as in colbert-ai.
"""

from __future__ import annotations

import hashlib
import json
import os
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from blendfilter.errors import BadArgument, BadData, MissingFile
from blendfilter.records import Passage
from blendfilter.retrieval.base import fingerprint_of
from blendfilter.retrieval.colbert.checkpoint import Checkpoint
from blendfilter.retrieval.colbert.encoder import Encoder
from blendfilter.retrieval.colbert.index import ColBERT, content_hash, device_for
from blendfilter.retrieval.colbert.searching import Effort
from blendfilter.retrieval.layouts import at_bar
from blendfilter.retrieval.manifest import CorpusInfo, Manifest
from blendfilter.retrieval.passages import Lines

SETTINGS = ("dim", "nbits", "doc_maxlen", "query_maxlen")


def open_plaid(
    folder: str | os.PathLike[str],
    *,
    checkpoint: str | os.PathLike[str] | None = None,
    collection: str | os.PathLike[str] | None = None,
    gpu: bool | None = None,
    effort: Effort | None = None,
) -> ColBERT:
    """The index that colbert-ai left in `folder`.

    Its `metadata.json` says which checkpoint and which collection (TSV: number, passage, and a title if there is one)
    it was made of; `checkpoint` and `collection` say where they lie now.

    Raises:
        BadData: files of it are missing, or the collection has another number of passages.
        BadArgument: it does not say where its collection lies. MissingFile: there is none.
    """
    path = Path(folder)
    told = _metadata(path)
    config = told["config"]
    passages = TsvPassages(_collection(path, collection or config.get("collection")))
    lengths = _lengths(path, told["num_chunks"])
    kept = len(lengths)
    if sum(lengths) != told["num_embeddings"]:
        raise BadData(
            f"the index at {path} is damaged: its passages have {sum(lengths):,} vectors, its metadata.json says "
            f"{told['num_embeddings']:,}; build it again"
        )
    if kept != len(passages):
        raise BadData(
            f"the index at {path} holds {kept:,} passages and its collection {passages.path} {len(passages):,}: "
            "name the collection it was built from (collection=)"
        )
    named = checkpoint or config.get("checkpoint")
    if not named:
        raise BadArgument(f"the index at {path} does not say which checkpoint it was built with: name it (checkpoint=)")
    found = Checkpoint(named)
    settings = {name: config[name] for name in SETTINGS if name in config}
    settings |= {"checkpoint": found.name, "checkpoint_sha256": found.sha256, "partitions": told["num_partitions"]}
    manifest = Manifest(
        kind=ColBERT.kind,
        fingerprint=fingerprint_of(
            "colbert-ai", passages.sha256, {**settings, "checkpoint": ""}, content_hash(path), _sizes(path)
        ),
        passages=len(passages),
        corpus=CorpusInfo(name=passages.path.name, sha256=passages.sha256),
        settings=settings,
    )
    limits = {name: config.get(name) for name in ("doc_maxlen", "query_maxlen")}
    return ColBERT(manifest, passages, path, Encoder(found, device_for(gpu), **limits), effort)


class TsvPassages(Lines):
    """The passages of colbert-ai's collection file, by line: read once for where each begins, then on demand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        offsets, digest = array("q", [0]), hashlib.sha256()
        with open(path, "rb") as file:
            for line in file:
                digest.update(line)
                offsets.append(offsets[-1] + len(line))
        self.sha256 = digest.hexdigest()
        super().__init__(path, np.frombuffer(offsets, dtype=np.int64))

    def read(self, at: int, line: bytes) -> Passage:
        """A line of number, passage and, if there is one, title."""
        try:
            cells = line.decode("utf-8").strip("\n\r ").split("\t")
        except UnicodeDecodeError as error:
            raise BadData(f"{self.path}, line {at + 1}: not UTF-8 (byte {error.start + 1} of the line)") from None
        if len(cells) < 2:
            raise BadData(f"{self.path}, line {at + 1}: expected a number, a tab and a passage")
        title, text = (cells[2], cells[1]) if len(cells) > 2 else at_bar(cells[1])
        return Passage(str(at), title.strip(), text.strip())


def _metadata(path: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads((path / "metadata.json").read_bytes())
        needed = [told["config"]["dim"], told["config"]["nbits"], told["num_partitions"], told["num_embeddings"]]
        chunks = range(int(told["num_chunks"]))
    except (ValueError, KeyError, TypeError) as error:
        raise BadData(
            f"{path / 'metadata.json'} is not what colbert-ai writes ({error!r}): build the index again"
        ) from None
    names = [f"{at}.{what}" for at in chunks for what in ("codes.pt", "residuals.pt")]
    names += [f"doclens.{at}.json" for at in chunks] + ["centroids.pt", "buckets.pt", "avg_residual.pt", "ivf.pid.pt"]
    gone = [name for name in names if not (path / name).is_file()]
    if gone or not all(isinstance(each, int) for each in needed):
        raise BadData(f"the index at {path} is not whole ({', '.join(gone[:3]) or 'metadata.json'}): build it again")
    return told


def _collection(path: Path, named: Any) -> Path:
    if not isinstance(named, str | os.PathLike):
        raise BadArgument(
            f"the index at {path} does not say which file its passages are in: open_index(…, collection='passages.tsv')"
        )
    if not Path(named).is_file():
        raise MissingFile(
            f"no collection at {named}, which the index at {path} was made of: say where it lies (collection=)"
        )
    return Path(named)


def _lengths(path: Path, chunks: int) -> array[int]:
    """How many vectors each passage has."""
    lengths = array("q")
    for at in range(chunks):
        try:
            lengths.extend(json.loads((path / f"doclens.{at}.json").read_bytes()))
        except (ValueError, TypeError) as error:
            raise BadData(f"{path / f'doclens.{at}.json'} is damaged ({error}): build the index again") from None
    return lengths


def _sizes(path: Path) -> list[int]:
    return [file.stat().st_size for file in sorted(path.glob("*.pt"))]

"""A late-interaction checkpoint, found on disk or on the hub, and at work: texts as one unit vector a token.

ColBERT (Khattab & Zaharia 2020, https://arxiv.org/abs/2004.12832, section 3.2): `[CLS] [Q] q1 … qn [SEP] [MASK] …`, the
masks filling a query up to 32 tokens; `[CLS] [D] d1 … dn [SEP]`, punctuation left out of the result. Later checkpoints
(PyLate's, sentence-transformers' own) state their markers, lengths, skipped words and whether queries are filled up;
the model is sentence-transformers' `MultiVectorEncoder`, which reads all of them.

Differs from the library: a query longer than the checkpoint's query length is read whole, up to what the model can read
(512 tokens for BERT, 8,192 for ModernBERT), and where even that is too short it loses its beginning, because a blended
query ends with the question. A checkpoint that is not there, or has no projection of its own, is an error, where the
library takes random weights.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter.errors import BadData
from blendfilter.extras import needed, quiet_transformers
from blendfilter.files import AnyPath, sha256_of
from blendfilter.records import whole_characters
from blendfilter.retrieval.colbert.compat import torch
from blendfilter.retrieval.encoders import (
    LATE,
    LAYOUT,
    MARKS,
    cannot_load,
    check_whole,
    encoder_folder,
    files_hash,
    kind_of,
    lasting,
    module_kinds,
    positions_of,
    settings_in,
)

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
SETTINGS = "artifact.metadata"
# what counts
READ = (
    "config.json",
    SETTINGS,
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    *WEIGHTS,
)
DOC_MAXLEN = 220  # tokens read of a passage, unless a checkpoint that colbert-ai does not read states its own
QUERY_MAXLEN = 32
UNLIMITED = 8_192  # tokens that are read by a model which counts no positions
_DOCUMENT_PROMPTS = ("document", "passage", "corpus")
# how a tokenizer is called for queries
_WHOLE = {"text": {"truncation": False, "verbose": False}}
_WHY = "a ColBERT checkpoint"


class ColBERTCheckpoint:
    """A checkpoint by `name`; its files lie in `folder`. `stanford` is True for those that colbert-ai reads.

    Raises:
        MissingFile: neither a folder nor a name that the hub, or its cache on this machine, knows.
        BadData: the folder holds no late-interaction checkpoint.
    """

    def __init__(self, name: AnyPath) -> None:
        self.folder = encoder_folder(os.fspath(name), "checkpoint")
        self.name = lasting(name)
        config = settings_in(self.folder / MARKS[0], {})
        kinds = module_kinds(self.folder)
        if config.get("auto_map") is not None:
            raise BadData(
                f"the checkpoint {self.name} brings Python code of its own (auto_map), which is not run"
            )
        of_colbert_ai = "HF_ColBERT" in (config.get("architectures") or ())
        self.stanford = of_colbert_ai and (not kinds or (self.folder / SETTINGS).is_file())
        if not self.stanford and (not kinds or kind_of(self.folder) != LATE):
            why = "it has no projection of its tokens"
            why = "a bi-encoder, with one vector a text" if "Pooling" in kinds else why
            raise BadData(
                f"{self.name} is no late-interaction checkpoint ({why}): name one that was trained as one, like "
                "colbert-ir/colbertv2.0 or lightonai/GTE-ModernColBERT-v1"
            )

    @cached_property
    def sha256(self) -> str:
        """Over the bytes of every file that decides what it computes: the same wherever it lies."""
        if not self.stanford:
            return files_hash(self.folder)
        paths = [self.folder / name for name in READ if (self.folder / name).is_file()]
        lines = [f"{path.name}:{sha256_of(path)}\n" for path in paths]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def load(self, device: Any) -> Any:
        """Its `MultiVectorEncoder` on `device`, in 32 bits. Raises `BadData` for files that do not go together."""
        library = needed("sentence_transformers", "colbert", _WHY)
        try:
            with quiet_transformers("colbert", _WHY), self._place() as place:
                own = {"device": str(device), "local_files_only": True}
                model = library.MultiVectorEncoder(place, **own).float().eval()
                check_whole(model)
        except (MemoryError, ImportError, BadData):
            raise
        except Exception as error:  # transformers has an exception for each fault
            raise cannot_load(f"the checkpoint {self.name}", error) from error
        return model

    @contextmanager
    def _place(self) -> Iterator[str]:
        """The folder to load from: of a checkpoint in both layouts, what colbert-ai reads."""
        if not self.stanford or not (self.folder / MARKS[1]).is_file():
            yield str(self.folder)
            return
        with tempfile.TemporaryDirectory(prefix="blendfilter-checkpoint-") as folder:
            for path in self.folder.iterdir():
                if path.is_file() and path.name not in (MARKS[1], LAYOUT):
                    Path(folder, path.name).symlink_to(path.resolve())
            yield folder


class EncodedQueries(NamedTuple):
    """One (tokens, dim) tensor of float32 a query, on the CPU, and whether the query was cut."""

    vectors: list[Any]
    cut: list[bool]


class TokenEncoder:
    """A loaded checkpoint on one device. Threads may share it.

    `dim` is the length of its vectors; `limit` the tokens that the model reads, marks included; `doc_maxlen` those of a
    passage and `query_maxlen` those that a query is filled up to, by default the checkpoint's own.
    """

    def __init__(
        self,
        checkpoint: ColBERTCheckpoint,
        device: str,
        *,
        doc_maxlen: int | None = None,
        query_maxlen: int | None = None,
    ) -> None:
        self.checkpoint = checkpoint
        self.device = torch.device(device)
        self.model = checkpoint.load(self.device)
        self.dim: int = self.model.get_embedding_dimension()
        body, expansion = self.model[0], self.model[0].query_expansion
        # PyLate leaves the length of passages in its tokenizers
        limits = (
            positions_of(self.model[0]),
            self.model.tokenizer.model_max_length if checkpoint.stanford else None,
        )
        self.limit: int = min((limit for limit in limits if limit), default=UNLIMITED)
        own = expansion["length"] if expansion else body.query_length
        self.query_maxlen: int = min(query_maxlen or own or QUERY_MAXLEN, self.limit)
        if doc_maxlen is None:
            doc_maxlen = (None if checkpoint.stanford else body.document_length) or DOC_MAXLEN
        self.doc_maxlen = doc_maxlen
        body.query_length, body.document_length = None, min(self.doc_maxlen, self.limit)
        if expansion:
            body.query_expansion = {**expansion, "strategy": "min", "length": self.query_maxlen}
        prompts = self.model.prompts
        passage = next((prompts[name] for name in _DOCUMENT_PROMPTS if prompts.get(name)), None)
        self._prompts = {"query": prompts.get("query"), "document": passage}
        self._lock = threading.Lock()  # two threads must not use a tokenizer at once
        lengths = self.queries(["a"]).vectors[0].norm(dim=1)
        if not torch.allclose(lengths, torch.ones(len(lengths)), atol=1e-3):
            raise BadData(
                f"the checkpoint {checkpoint.name} does not make vectors of length 1, which PLAID compresses"
            )

    def queries(self, texts: Sequence[str], batch_size: int = 32) -> EncodedQueries:
        """Every query whole, unless it is longer than the model can read; then its end, flagged."""
        vectors, cut = [None] * len(texts), [False] * len(texts)
        batches = by_length(texts, batch_size)
        while batches:
            batch = batches.pop()
            features = self._features([texts[at] for at in batch], "query")
            if features["input_ids"].shape[1] > self.limit:
                if len(batch) > 1:
                    batches += [[at] for at in batch]
                    continue
                features, cut[batch[0]] = self._end_of(features), True
            found, scored = self._vectors(features, "query")
            for at, own, there in zip(batch, found.float().cpu(), scored.cpu(), strict=True):
                vectors[at] = own[there]
        return EncodedQueries(vectors, cut)

    def passages(self, texts: Sequence[str], batch_size: int = 64) -> tuple[Any, list[int]]:
        """All tokens' vectors in order, (tokens, dim) of float16 on the CPU, and how many each passage has."""
        vectors: list[Any] = [None] * len(texts)
        for batch in by_length(texts, batch_size):
            found, scored = self._vectors(
                self._features([texts[at] for at in batch], "document"), "document"
            )
            counts = scored.sum(1).tolist()
            for at, own in zip(batch, found[scored].half().cpu().split(counts), strict=True):
                vectors[at] = own
        return torch.cat(vectors), [len(own) for own in vectors]

    def _features(self, texts: list[str], task: str) -> Any:
        # half of a surrogate pair, which JSON can hold, is no text to a tokenizer
        whole = [whole_characters(text) for text in texts]
        asis = _WHOLE if task == "query" else None
        with self._lock:
            return self.model.preprocess(
                whole, prompt=self._prompts[task], task=task, processing_kwargs=asis
            )

    def _end_of(self, features: Any) -> Any:
        """One query's features without what stands between the marks in front and its last tokens, `limit` in all."""
        width = features["input_ids"].shape[1]
        front = features.get("prompt_length") or int(
            features["input_ids"][0, 0] in self.model.tokenizer.all_special_ids
        )
        kept = torch.cat([torch.arange(front), torch.arange(width - self.limit + front, width)])
        return {
            name: value[:, kept] if torch.is_tensor(value) else value
            for name, value in features.items()
        }

    def _vectors(self, features: Any, task: str) -> tuple[Any, Any]:
        """Vectors (texts, tokens, dim), and which of them (texts, tokens) count."""
        there = {
            name: value.to(self.device) if torch.is_tensor(value) else value
            for name, value in features.items()
        }
        with (
            torch.inference_mode(),
            torch.autocast(self.device.type, torch.float16, self.device.type == "cuda"),
        ):
            made = self.model(there, task=task)
        return made["token_embeddings"], made["attention_mask"].bool()


def by_length(texts: Sequence[str], batch_size: int) -> list[list[int]]:
    """Positions of `texts` in batches of like length, shortest first.

    >>> by_length(["abc", "a", "ab"], 2)
    [[1, 2], [0]]
    """
    order = sorted(range(len(texts)), key=lambda at: len(texts[at]))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]

"""A ColBERT checkpoint, found and checked on disk, and at work: queries and passages as one unit vector a token.

ColBERT (Khattab & Zaharia 2020, https://arxiv.org/abs/2004.12832, section 3.2): `[CLS] [Q] q1 … qn [SEP] [MASK] …`, the
masks filling a query up to 32 tokens; `[CLS] [D] d1 … dn [SEP]`, punctuation left out of the result.

Differs from colbert-ai: a query longer than 32 tokens is read whole, up to what the model can read (512 tokens for
BERT), and where even that is too short it loses its beginning, because a blended query ends with the question. Texts
are batched by length, with as little padding as that takes. A checkpoint that is not there, or has no projection of its
own, is an error, where colbert-ai takes `bert-base-uncased`, or random weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import string
import threading
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from blendfilter.errors import BadData, MissingFile
from blendfilter.extras import needed, quiet_transformers
from blendfilter.records import whole_characters
from blendfilter.retrieval.colbert.compat import parts, torch

WEIGHTS = ("model.safetensors", "pytorch_model.bin")
SETTINGS = "artifact.metadata"
READ = ("config.json", SETTINGS, "tokenizer.json", "tokenizer_config.json", "vocab.txt", *WEIGHTS)  # what counts
CLS_MARKER_SEP = 3  # tokens that stand around a text's own
TOGETHER = 32  # passages that are tokenized at a time
_WHY = "a ColBERT checkpoint"


class TrainingSettings(BaseModel):
    """`artifact.metadata`: how the checkpoint was trained, with colbert-ai's defaults."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    dim: int = 128
    query_maxlen: int = 32
    doc_maxlen: int = 220
    mask_punctuation: bool = True
    attend_to_mask_tokens: bool = False
    query_token_id: str = "[unused0]"
    doc_token_id: str = "[unused1]"


class ColBERTCheckpoint:
    """A checkpoint by `name`; its files lie in `folder`, `dim` is the length of its vectors, `limit` of its texts.

    Raises:
        MissingFile: neither a folder nor a name that the hub, or its cache on this machine, knows.
        BadData: the folder holds no ColBERT checkpoint.
    """

    def __init__(self, name: str | os.PathLike[str]) -> None:
        self.folder = _found(os.fspath(name))
        self.name = str(self.folder.resolve()) if Path(name).is_dir() else os.fspath(name)
        config = self._object("config.json")
        if not config:
            raise BadData(f"{self.folder} is no checkpoint: it has no config.json")
        if config.get("auto_map") is not None:
            raise BadData(f"the checkpoint {self.name} brings Python code of its own (auto_map), which is not run")
        stated = {name: value for name, value in self._object(SETTINGS).items() if value is not None}
        try:
            self.settings = TrainingSettings.model_validate(stated)
        except ValidationError as error:
            first = error.errors()[0]
            raise BadData(
                f"{self.folder / SETTINGS} is not what ColBERT's training leaves ({first['loc'][0]}: {first['msg']}): "
                "fetch the checkpoint again"
            ) from None
        self.dim = self.settings.dim
        limits = config.get("max_position_embeddings"), self._object("tokenizer_config.json").get("model_max_length")
        self.limit = min(int(limit) for limit in (*limits, 512) if limit)  # in tokens, markers included

    @cached_property
    def sha256(self) -> str:
        """Over the bytes of every file that decides what it computes: the same wherever it lies."""
        digest = hashlib.sha256()
        for name in READ:
            if (self.folder / name).is_file():
                with open(self.folder / name, "rb") as file:
                    digest.update(f"{name}:{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
        return digest.hexdigest()

    def load(self, device: Any) -> tuple[Any, Any]:
        """Model and tokenizer, on `device`, ready to read. Raises `BadData` for files that do not go together."""
        used, transformers = parts(), needed("transformers", "colbert", _WHY)
        load = transformers.PreTrainedModel.from_pretrained.__func__  # its own override hides what was not found
        try:
            with quiet_transformers("colbert", _WHY):
                made, config = used.class_factory(str(self.folder)), used.config(dim=self.dim)
                model, report = load(made, str(self.folder), colbert_config=config, output_loading_info=True)
                tokenizer = transformers.AutoTokenizer.from_pretrained(str(self.folder), trust_remote_code=False)
        except (MemoryError, ImportError):
            raise
        except Exception as error:  # transformers has an exception for each fault
            why = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
            raise BadData(f"the checkpoint {self.name} cannot be read ({why}): fetch it again") from error
        missing = sorted(name for name in report["missing_keys"] if ".pooler." not in name)
        if "linear.weight" in missing:
            raise BadData(
                f"{self.name} is no ColBERT checkpoint: it has no projection (linear.weight); "
                "name one that was trained as ColBERT, like colbert-ir/colbertv2.0"
            )
        if missing:
            raise BadData(f"the checkpoint {self.name} lacks weights ({', '.join(missing[:3])}, …): fetch it again")
        return model.to(device).eval(), tokenizer

    def _object(self, name: str) -> dict[str, Any]:
        """The JSON object of the file of that name; empty where there is none."""
        path = self.folder / name
        try:
            return dict(json.loads(path.read_bytes())) if path.is_file() else {}
        except (ValueError, TypeError) as error:
            raise BadData(f"{path} holds no JSON object ({error}): fetch the checkpoint again") from None


def _found(name: str) -> Path:
    if Path(name).is_dir():
        return Path(name)
    if name.startswith((".", "/", "~")) or name.count("/") != 1 or Path(name).exists():
        raise MissingFile(f"no checkpoint at {name}: name its folder, or a model on the hub (colbert-ir/colbertv2.0)")
    hub = needed("huggingface_hub", "colbert", "a checkpoint from the hub")
    try:
        return Path(hub.snapshot_download(name, allow_patterns=["*.json", "*.txt", SETTINGS, *WEIGHTS]))
    except Exception as error:
        why = " ".join(str(error).split()).partition(". ")[0]
        raise MissingFile(
            f"no checkpoint '{name}': there is no such folder, and the hub did not give it ({why})"
        ) from error


class EncodedQueries(NamedTuple):
    """One (tokens, dim) tensor of float32 a query, on the CPU, and whether the query was cut."""

    vectors: list[Any]
    cut: list[bool]


class TokenEncoder:
    """A loaded checkpoint on one device. Threads may share it."""

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
        self.model, self.tokenizer = checkpoint.load(self.device)
        self.dim = checkpoint.dim
        self.limit = checkpoint.limit
        self.query_maxlen = min(query_maxlen or checkpoint.settings.query_maxlen, self.limit)
        self.doc_maxlen = doc_maxlen or checkpoint.settings.doc_maxlen
        self._query_marker = self._token(checkpoint.settings.query_token_id)
        self._doc_marker = self._token(checkpoint.settings.doc_token_id)
        self._lock = threading.Lock()  # two threads must not use a tokenizer at once
        skipped = self._ids(string.punctuation) if checkpoint.settings.mask_punctuation else []
        self._skipped = torch.tensor([ids[0] for ids in skipped if ids], dtype=torch.long, device=self.device)

    def queries(self, texts: Sequence[str], batch_size: int = 32) -> EncodedQueries:
        """Every query whole, unless it is longer than the model can read; then its end, flagged."""
        room = self.limit - CLS_MARKER_SEP
        tokens = self._ids(texts)
        rows = [self._around(self._query_marker, ids[-room:]) for ids in tokens]
        rows = [row + [self.tokenizer.mask_token_id] * (self.query_maxlen - len(row)) for row in rows]
        vectors: list[Any] = [None] * len(rows)
        for batch in by_length(rows, batch_size):
            ids = self._padded([rows[at] for at in batch])
            attended = ids != self.tokenizer.pad_token_id
            if not self.checkpoint.settings.attend_to_mask_tokens:
                attended &= ids != self.tokenizer.mask_token_id
            found = self._vectors(ids, attended).float().cpu()
            for row, at in enumerate(batch):
                vectors[at] = found[row, : len(rows[at])]
        return EncodedQueries(vectors, [len(ids) > room for ids in tokens])

    def passages(self, texts: Sequence[str], batch_size: int = 64) -> tuple[Any, list[int]]:
        """All tokens' vectors in order, (tokens, dim) of float16 on the CPU, and how many each passage has."""
        room = min(self.doc_maxlen, self.limit) - CLS_MARKER_SEP
        rows = [
            self._around(self._doc_marker, ids[:room])
            for start in range(0, len(texts), TOGETHER)  # a tokenizer's notes on long texts are many times their size
            for ids in self._ids(texts[start : start + TOGETHER])
        ]
        found: list[Any] = [None] * len(rows)
        for batch in by_length(rows, batch_size):
            ids = self._padded([rows[at] for at in batch])
            there = ids != self.tokenizer.pad_token_id
            vectors = self._vectors(ids, there)
            kept = there & ~torch.isin(ids, self._skipped)
            counts = kept.sum(1).tolist()
            for at, own in zip(batch, vectors[kept].half().cpu().split(counts), strict=True):
                found[at] = own
        return torch.cat(found), [len(own) for own in found]

    def _vectors(self, ids: Any, attended: Any) -> Any:
        with torch.inference_mode(), torch.autocast(self.device.type, torch.float16, self.device.type == "cuda"):
            hidden = self.model.LM(ids, attention_mask=attended.long())[0]
            return torch.nn.functional.normalize(self.model.linear(hidden), p=2, dim=2)

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        # half of a surrogate pair, which JSON can hold, is no text to a tokenizer
        whole = [whole_characters(text) for text in texts]
        with self._lock:
            tokens = self.tokenizer(whole, add_special_tokens=False, verbose=False)["input_ids"]
        return [list(ids) for ids in tokens]

    def _around(self, marker: int, ids: list[int]) -> list[int]:
        return [self.tokenizer.cls_token_id, marker, *ids, self.tokenizer.sep_token_id]

    def _padded(self, rows: Sequence[list[int]]) -> Any:
        width, pad = max(map(len, rows)), self.tokenizer.pad_token_id
        return torch.tensor([row + [pad] * (width - len(row)) for row in rows], dtype=torch.long, device=self.device)

    def _token(self, name: str) -> int:
        number: int = self.tokenizer.convert_tokens_to_ids(name)
        if number == self.tokenizer.unk_token_id:
            raise BadData(f"the checkpoint {self.checkpoint.name} has no token '{name}': is it a ColBERT checkpoint?")
        return number


def by_length(rows: Sequence[Sequence[int]], batch_size: int) -> list[list[int]]:
    """Positions of `rows` in batches of like length, shortest first.

    >>> by_length([[1, 2, 3], [1], [1, 2]], 2)
    [[1, 2], [0]]
    """
    order = sorted(range(len(rows)), key=lambda at: len(rows[at]))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]

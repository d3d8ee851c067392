"""A ColBERT checkpoint at work: queries and passages as one unit vector a token.

ColBERT (Khattab & Zaharia 2020, https://arxiv.org/abs/2004.12832, section 3.2): `[CLS] [Q] q1 … qn [SEP] [MASK] …`, the
masks filling a query up to 32 tokens; `[CLS] [D] d1 … dn [SEP]`, punctuation left out of the result. In: texts. Out: a
tensor a query; all passages' vectors in one tensor, and how many each has.

Differs from colbert-ai: a query longer than 32 tokens is read whole, up to what the model can read (512 tokens for
BERT), and where even that is too short it loses its beginning, for a blended query ends with the question. Texts are
batched by length, with as little padding as that takes.
"""

from __future__ import annotations

import string
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from blendfilter.errors import BadData
from blendfilter.retrieval.colbert.checkpoint import Checkpoint

CLS_MARKER_SEP = 3
"""Tokens that stand around a text's own."""
TOGETHER = 32
"""Passages that are tokenized at a time."""


class Queries(NamedTuple):
    """One (tokens, dim) tensor of float32 a query, on the CPU, and whether the query was cut."""

    vectors: list[Any]
    cut: list[bool]


class Encoder:
    """A loaded checkpoint on one device. Threads may share it."""

    def __init__(
        self, checkpoint: Checkpoint, device: str, *, doc_maxlen: int | None = None, query_maxlen: int | None = None
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
        self._lock = threading.Lock()  # a tokenizer is no two threads' at once
        self._skipped = torch.tensor(self._punctuation(), dtype=torch.long, device=self.device)

    def queries(self, texts: Sequence[str], batch_size: int = 32) -> Queries:
        """Every query whole, unless it is longer than the model can read; then its end, flagged."""
        room = self.limit - CLS_MARKER_SEP
        told = self._ids(texts)
        rows = [self._query_row(ids[-room:]) for ids in told]
        vectors: list[Any] = [None] * len(rows)
        for batch in by_length(rows, batch_size):
            ids, lengths = self._padded([rows[at] for at in batch])
            attended = ids != self.tokenizer.pad_token_id
            if not self.checkpoint.settings.attend_to_mask_tokens:
                attended &= ids != self.tokenizer.mask_token_id
            found = self._vectors(ids, attended).float().cpu()
            for row, at in enumerate(batch):
                vectors[at] = found[row, : lengths[row]]
        return Queries(vectors, [len(ids) > room for ids in told])

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
            ids, _ = self._padded([rows[at] for at in batch])
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
        whole = [text.encode("utf-8", "replace").decode() for text in texts]
        with self._lock:
            told = self.tokenizer(whole, add_special_tokens=False, verbose=False)["input_ids"]
        return [list(ids) for ids in told]

    def _query_row(self, ids: list[int]) -> list[int]:
        row = self._around(self._query_marker, ids)
        return row + [self.tokenizer.mask_token_id] * (self.query_maxlen - len(row))

    def _around(self, marker: int, ids: list[int]) -> list[int]:
        return [self.tokenizer.cls_token_id, marker, *ids, self.tokenizer.sep_token_id]

    def _padded(self, rows: Sequence[list[int]]) -> tuple[Any, list[int]]:
        lengths = [len(row) for row in rows]
        width, pad = max(lengths), self.tokenizer.pad_token_id
        ids = torch.tensor([row + [pad] * (width - len(row)) for row in rows], dtype=torch.long, device=self.device)
        return ids, lengths

    def _token(self, name: str) -> int:
        number: int = self.tokenizer.convert_tokens_to_ids(name)
        if number == self.tokenizer.unk_token_id:
            raise BadData(f"the checkpoint {self.checkpoint.name} has no token '{name}': is it a ColBERT checkpoint?")
        return number

    def _punctuation(self) -> list[int]:
        if not self.checkpoint.settings.mask_punctuation:
            return []
        return [ids[0] for ids in self._ids(string.punctuation) if ids]


def by_length(rows: Sequence[Sequence[int]], batch_size: int) -> list[list[int]]:
    """Positions of `rows` in batches of like length, shortest first.

    >>> by_length([[1, 2, 3], [1], [1, 2]], 2)
    [[1, 2], [0]]
    """
    order = sorted(range(len(rows)), key=lambda at: len(rows[at]))
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]

"""Scores by an encoder-decoder Hugging Face model: each distinct prompt is encoded once, the continuations in batches.

In: prompts and continuations in tokens. Out: index and score, batch by batch. There is no seam: the encoder reads the
prompt, the decoder writes the continuation after its start token (and the marks that its tokeniser puts in front). No
mark that ends a text is scored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from blendfilter.errors import BadData
from blendfilter.extras import needed
from blendfilter.lm.scoring.base import Score
from blendfilter.lm.scoring.checkpoint import EXTRA, WHY
from blendfilter.lm.scoring.heads import Wanted, mask, padded, scores
from blendfilter.lm.scoring.prefixes import LARGEST, batches


class Sides(NamedTuple):
    """A pair as an encoder-decoder reads it."""

    prompt: tuple[int, ...]
    lead: tuple[int, ...]
    continuation: tuple[int, ...]


class Seq2Seq:
    """An encoder-decoder at work; the arguments are those of `causal.Causal`."""

    def __init__(self, model: Any, device: Any, tokens: int, rows: int | None = None) -> None:
        self._model, self._device = model, device
        self._tokens, self._rows = tokens, rows or LARGEST
        self._torch = needed("torch", EXTRA, WHY)
        start = model.generation_config.decoder_start_token_id
        self._start = model.config.decoder_start_token_id if start is None else start
        if self._start is None:
            raise BadData(
                f"{type(model).__name__} does not say which token its decoder starts with: set it in its config"
            )

    def scores(self, items: Sequence[Sides]) -> Iterator[tuple[int, Score]]:
        """Index and score of each item, batch by batch."""
        asking: dict[tuple[int, ...], list[int]] = {}
        for at, item in enumerate(items):
            asking.setdefault(item.prompt, []).append(at)
        prompts = list(asking)
        for batch in batches([len(prompt) for prompt in prompts], tokens=self._tokens, rows=self._rows):
            chosen = [prompts[i] for i in batch]
            yield from self._decoded(items, [asking[prompt] for prompt in chosen], chosen)

    def _decoded(
        self, items: Sequence[Sides], members: Sequence[Sequence[int]], prompts: Sequence[tuple[int, ...]]
    ) -> Iterator[tuple[int, Score]]:
        seen = mask(prompts, self._device)
        with self._torch.inference_mode():
            encoded = self._model.get_encoder()(padded(prompts, self._device), attention_mask=seen)[0]
        pairs = [(at, row) for row, several in enumerate(members) for at in several]
        lengths = [len(items[at].continuation) + encoded.shape[1] for at, _ in pairs]
        for batch in batches(lengths, tokens=self._tokens, rows=self._rows):
            chosen = [pairs[i] for i in batch]
            rows = [row for _, row in chosen]
            found = self._batch([items[at] for at, _ in chosen], encoded[rows], seen[rows])
            yield from zip([at for at, _ in chosen], found, strict=True)

    def _batch(self, items: Sequence[Sides], encoded: Any, seen: Any) -> list[Score]:
        outputs = needed("transformers.modeling_outputs", EXTRA, WHY)
        before = [(self._start, *item.lead) for item in items]
        rows = [(*head, *item.continuation[:-1]) for head, item in zip(before, items, strict=True)]
        wanted = [Wanted(len(head) - 1, item.continuation) for head, item in zip(before, items, strict=True)]
        with self._torch.inference_mode():
            return scores(
                self._model, wanted, encoder_outputs=outputs.BaseModelOutput(last_hidden_state=encoded),
                attention_mask=seen, decoder_input_ids=padded(rows, self._device), use_cache=False,
            )  # fmt: skip

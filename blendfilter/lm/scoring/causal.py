"""Scores by a decoder-only Hugging Face model: a prefix that several pairs share is read once, the rest in batches.

In: tokens of pairs. Out: index and score, batch by batch. Nothing masks the padding: it stands on the right, and a
token sees what is left of it only. So a score does not depend on what else is in the batch, up to rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from blendfilter.errors import BadData
from blendfilter.extras import needed
from blendfilter.lm.scoring.base import Score, Tokens
from blendfilter.lm.scoring.checkpoint import EXTRA, WHY
from blendfilter.lm.scoring.heads import Wanted, padded, scores
from blendfilter.lm.scoring.prefixes import LARGEST, batches, groups

_CACHES = ("DynamicLayer", "DynamicSlidingWindowLayer")
"""Layers whose cache can be repeated for several texts. Recurrent ones read every text from its beginning."""


class Causal:
    """A decoder-only model at work.

    Args:
        model, device: as loaded.
        tokens, rows: what a batch may hold, padding and shared prefix included.

    Raises:
        BadData: a token's logits depend on what comes after it (an encoder such as BERT).
    """

    def __init__(self, model: Any, device: Any, tokens: int, rows: int | None = None) -> None:
        self._model, self._device = model, device
        self._tokens, self._rows = tokens, rows or LARGEST
        self._torch = needed("torch", EXTRA, WHY)
        with self._torch.inference_mode():
            self._check_causal()
            cache = getattr(self._model(padded([[0]], device), use_cache=True), "past_key_values", None)
        self._shares = all(type(layer).__name__ in _CACHES for layer in getattr(cache, "layers", [None]))

    def scores(self, items: Sequence[Tokens]) -> Iterator[tuple[int, Score]]:
        """Index and score of each item, batch by batch."""
        # the position before the continuation gives its first token: it is read with the rest
        shareable = [item.ids[: item.first - 1] if self._shares and self._rows > 1 else () for item in items]
        planned = groups(shareable, largest=self._rows)
        alone = [group.members[0] for group in planned if not group.shared]
        yield from self._read(items, alone)
        for shared, members in planned:
            if shared:
                yield from self._read(items, members, self._prefix(items[members[0]].ids[:shared]), shared)

    def _read(
        self, items: Sequence[Tokens], members: Sequence[int], cache: Any = None, shared: int = 0
    ) -> Iterator[tuple[int, Score]]:
        lengths = [len(items[at].ids) - 1 for at in members]
        for batch in batches(lengths, tokens=self._tokens, rows=self._rows):
            chosen = [members[i] for i in batch]
            yield from zip(chosen, self._batch([items[at] for at in chosen], cache, shared), strict=True)

    def _batch(self, items: Sequence[Tokens], cache: Any, shared: int) -> list[Score]:
        # the last token is predicted and never read
        inputs = padded([item.ids[shared:-1] for item in items], self._device)
        wanted = [Wanted(item.first - 1 - shared, item.ids[item.first :]) for item in items]
        with self._torch.inference_mode():
            own = copy.deepcopy(cache)  # reading on writes into it
            if own is not None and len(items) > 1:
                own.batch_repeat_interleave(len(items))
            return scores(self._model, wanted, input_ids=inputs, past_key_values=own, use_cache=own is not None)

    def _prefix(self, ids: Sequence[int]) -> Any:
        """What the model keeps of a prefix."""
        with self._torch.inference_mode():
            return self._model.base_model(padded([ids], self._device), use_cache=True).past_key_values

    def _check_causal(self) -> None:
        one, other = (self._model(padded([ids], self._device)).logits[0, :2].float() for ids in ([0, 1, 0], [0, 1, 1]))
        if not self._torch.allclose(one, other, rtol=1e-2, atol=1e-2):
            raise BadData(
                f"{type(self._model).__name__} reads a text from both its ends (an encoder): it gives no "
                "log-probability of a continuation; name a model that writes"
            )

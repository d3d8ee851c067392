"""What a model has read already: its key-value cache, and copies of the beginnings that prompts share.

In: a prompt's tokens. Out: how many of them need not be read again. Every prompt of a stage begins with the same
instructions and demonstrations; once two prompts have shown what they share, a copy of the cache at that point is kept,
and the next prompt of that stage begins there, whatever was read between.

Reuse changes no reply. llama.cpp gives a token other last digits where it is read alone or with few others (fewer than
8, for some quantisations on some processors), and the same ones in any larger batch. So prompts are read in batches of
at least `TOGETHER`, and nothing is taken from a reply, whose tokens were read one by one.
"""

from __future__ import annotations

import ctypes
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from blendfilter.lm.local.loading import native

if TYPE_CHECKING:
    from llama_cpp import Llama

CHUNK = 64
"""Tokens read at a time: a call that is cancelled meanwhile stops after these; no slower than more at once."""
KEPT_BYTES = 512 * 2**20
"""Memory for copies; the least recently used go first. SmolLM2-135M takes 23 kB a token, an 8B model some 128 kB."""
TOGETHER = 16
"""Tokens of a prompt that are read together at the least; a shorter prompt is read at once and never used again."""
WORTH_KEEPING = 64
"""Tokens that prompts must share for a copy."""
_REMEMBERED = 64

Tokens = Sequence[int]


class Prefixes:
    """The key-value cache of one model. Not for two threads at once.

    Args:
        llama: the model. keep: bytes for copies of shared beginnings; 0 keeps none.
    """

    def __init__(self, llama: Llama, keep: int = KEPT_BYTES) -> None:
        self._llama = llama
        self._keep = keep
        self.live: list[int] = []
        """The prompt that the cache holds."""
        self._copies: OrderedDict[tuple[int, ...], ctypes.Array[ctypes.c_uint8]] = OrderedDict()
        self._seen: deque[list[int]] = deque(maxlen=_REMEMBERED)

    def saved(self, tokens: Tokens) -> int:
        """How many tokens would be spared by reading this prompt now, over reading it after others."""
        return max(0, shared(self.live, tokens) - self._best(tokens)[0])

    def read(self, tokens: list[int], stopped: Callable[[], bool]) -> int | None:
        """Read a prompt; how many of its tokens were there already, or None where `stopped` said so."""
        reused = self._begin(tokens)
        common = max((shared(seen, tokens) for seen in self._seen), default=0)
        marks = [common] if self._wants_copy(tokens, common) else []
        if reused in marks:
            self._copy(tokens[:reused])
        self._seen.append(tokens)
        for start, end in _chunks(reused, len(tokens), marks):
            if stopped():
                return None
            self._llama.eval(tokens[start:end])
            self.live = tokens[:end] if end >= TOGETHER else []
            if end in marks:
                self._copy(tokens[:end])
        return reused

    def forget(self) -> None:
        """Empty the cache (after llama.cpp failed, its content is not known)."""
        c = native("llama_cpp")
        c.llama_memory_clear(c.llama_get_memory(self._llama.ctx), True)
        self._llama.n_tokens = 0
        self.live = []

    def _begin(self, tokens: list[int]) -> int:
        """Bring the cache to the longest beginning of `tokens` that is to be had; its length."""
        most = len(tokens) - TOGETHER
        here, (there, copy) = shared(self.live, tokens), self._best(tokens)
        if there > here and copy is not None:
            self._restore(copy)
        reused = max(0, min(max(here, there), most))
        c = native("llama_cpp")
        # A model whose cache cannot be cut (a recurrent one) reads the whole prompt again.
        if not c.llama_memory_seq_rm(c.llama_get_memory(self._llama.ctx), 0, reused, -1):
            reused = 0
        if not reused:
            self.forget()
        self._llama.n_tokens = reused
        self.live = tokens[:reused]
        return reused

    def _best(self, tokens: Tokens) -> tuple[int, tuple[int, ...] | None]:
        return max(((shared(copy, tokens), copy) for copy in self._copies), default=(0, None))

    def _wants_copy(self, tokens: Tokens, common: int) -> bool:
        return bool(self._keep) and common >= WORTH_KEEPING and self._best(tokens)[0] < common - WORTH_KEEPING // 4

    def _copy(self, tokens: Tokens) -> None:
        c = native("llama_cpp")
        size = c.llama_state_seq_get_size(self._llama.ctx, 0)
        if size > self._keep:
            return
        state = (ctypes.c_uint8 * size)()
        if c.llama_state_seq_get_data(self._llama.ctx, state, size, 0) != size:
            return
        self._copies[tuple(tokens)] = state
        while sum(map(len, self._copies.values())) > self._keep:
            self._copies.popitem(last=False)

    def _restore(self, copy: tuple[int, ...]) -> None:
        c = native("llama_cpp")
        self.forget()
        state = self._copies[copy]
        self._copies.move_to_end(copy)
        if c.llama_state_seq_set_data(self._llama.ctx, state, len(state), 0) != len(state):
            self.forget()
            del self._copies[copy]
            return
        self._llama.input_ids[: len(copy)] = copy
        self.live = list(copy)


def shared(a: Tokens, b: Tokens) -> int:
    """How many tokens two sequences begin with in common.

    >>> shared([1, 2, 3], [1, 2, 4, 5]), shared([], [1])
    (2, 0)
    """
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if tuple(a[low:middle]) == tuple(b[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low


def _chunks(start: int, end: int, marks: Iterable[int] = ()) -> list[tuple[int, int]]:
    """Stretches of about CHUNK tokens from start to end, that end at the marks; none is shorter than TOGETHER.

    >>> _chunks(0, 140), _chunks(10, 80, [40, 75]), _chunks(0, 1)
    ([(0, 64), (64, 140)], [(10, 40), (40, 80)], [(0, 1)])
    """
    ends = sorted({mark for mark in marks if start + TOGETHER <= mark <= end - TOGETHER} | {end})
    chunks = []
    for stop in ends:
        while start < stop:
            upto = stop if stop - start < CHUNK + TOGETHER else start + CHUNK
            chunks.append((start, upto))
            start = upto
    return chunks

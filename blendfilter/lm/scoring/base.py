"""Scores, the pairs that they are of, and what is common to all models that give them.

A score is the natural logarithm of the probability that a model gives a continuation after a prompt, summed over the
continuation's tokens.

One rule says where a continuation begins, for every decoder-only model, in this process and behind servers: prompt and
continuation are tokenised as one text, and **a token belongs to the continuation if it ends behind the prompt's end**.
A tokeniser may merge across that seam (`Answer: ` and `Paris` become `Answer`, `:`, ` Paris`); this way the model reads
the text as it was trained to, and where a token has the prompt's end in it as well, it is scored whole, once.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple, Protocol

from blendfilter import aio
from blendfilter.errors import BadArgument, ModelError


class Score(NamedTuple):
    """The log-probability of a continuation, in nats, and the number of tokens that it is the sum of.

    Of an entailment model: that of its label for entailment.
    """

    logprob: float
    n_tokens: int

    @property
    def cut(self) -> bool:
        """Whether the model read the prompt (of an entailment model the premise) without its end."""
        return False


class CutScore(Score):
    """The score of a prompt that was too long for the model, and lost its end."""

    @property
    def cut(self) -> bool:
        """See `Score`."""
        return True


class TextPair(NamedTuple):
    """A prompt, and the continuation whose probability after it is wanted."""

    prompt: str
    continuation: str


class PairTokens(NamedTuple):
    """A pair as a decoder reads it, its continuation from index `first` on; and what an encoder reads before."""

    ids: tuple[int, ...]
    first: int
    prompt: tuple[int, ...] = ()


TOO_LONG = "context_too_long"
"""The kind of error of a pair that a model cannot read whole."""

Result = Score | ModelError
Done = Callable[[int, Result], None]
"""Called with the index of a pair and its result, as soon as that is known."""


class Backend(Protocol):
    """A model that gives scores; `kept.KeptScorer` is what a user asks."""

    name: str
    """For people; no part of a score's key."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What tells this model's scores from another's; no address and no path."""

    async def compute(self, pairs: Sequence[TextPair], done: Done) -> None:
        """Score distinct pairs, none with an empty continuation, calling `done` for each."""


class InProcess:
    """A backend that computes in this process: one caller at a time, in a thread of its own.

    Callers that wait hold no thread: in a shared pool they would keep searches and other models waiting. Between two
    of the `results`, a cancelled call stops.
    """

    def __init__(self) -> None:
        self._thread = aio.Threads(1, "blendfilter-scores")

    def results(self, pairs: Sequence[TextPair]) -> Iterator[tuple[int, Result]]:
        """Index and result of each pair, in any order."""
        raise NotImplementedError

    async def compute(self, pairs: Sequence[TextPair], done: Done) -> None:
        """See `Backend`."""
        stop = threading.Event()

        def work() -> None:
            for at, result in self.results(pairs):
                if stop.is_set():
                    return
                done(at, result)

        try:
            await aio.in_thread(work, executor=self._thread)
        except asyncio.CancelledError:
            stop.set()
            raise


# ---- errors of a pair


def too_long(pair: TextPair, tokens: int, limit: int) -> ModelError:
    """The error of a pair that the model cannot read whole; nothing is ever cut off it."""
    return ModelError(
        f"the prompt {_excerpt(pair.prompt)} has {tokens:,} tokens with its continuation "
        f"{_excerpt(pair.continuation)}, more than the model's context of {limit:,}: shorten it",
        kind=TOO_LONG,
    )


def nothing_before(pair: TextPair, name: str) -> BadArgument:
    """The error of a continuation whose first token follows nothing at all."""
    return BadArgument(
        f"nothing stands before the continuation {_excerpt(pair.continuation)}, and {name} has no mark that begins "
        "a text: give it a prompt, if only a line break"
    )


def unusable(pair: TextPair, why: str) -> ModelError:
    """The error of a pair for which the model, or its server, gives no number."""
    return ModelError(
        f"no score for {_excerpt(pair.continuation)} after {_excerpt(pair.prompt)}: {why}"
    )


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    return f"'{line}'" if len(line) <= 40 else f"'{line[:20]}…{line[-19:]}'"


# ---- seam


def first_token(ends: Sequence[int], seam: int) -> int:
    """The index of the first token that ends behind `seam`, in one unit; the number of tokens where none does.

    >>> first_token([6, 7, 13], len("Answer:")), first_token([6, 7, 13], len("Answer: "))
    (2, 2)
    """
    return bisect_right(ends, seam)


# ---- shared beginnings and batches

SETUP = 32
"""Tokens that reading a prefix apart must save before it is worth another pass through the model."""
LARGEST = 64


class PrefixGroup(NamedTuple):
    """Indices of the sequences that share their first `shared` tokens; 0 for one that stays alone."""

    shared: int
    members: tuple[int, ...]


def groups(sequences: Sequence[Sequence[int]], *, setup: int = SETUP) -> list[PrefixGroup]:
    """A grouping that saves tokens: each group of n reads its shared prefix once in place of n times.

    Sorted, sequences that share most stand side by side. Of all ways to cut that order into groups, this is the one
    that saves the most: in a greedy one, a short header that all share breaks up what shares a long passage.

    >>> groups([[1, 2, 3, 4], [9], [1, 2, 3, 5]], setup=0)
    [PrefixGroup(shared=3, members=(0, 2)), PrefixGroup(shared=0, members=(1,))]
    """
    order = sorted(range(len(sequences)), key=lambda i: tuple(sequences[i]))
    common = [0, *(common_prefix(sequences[a], sequences[b]) for a, b in pairwise(order))]
    # of the first 0, 1, 2 … in that order: tokens saved; where the last group starts, what it shares
    best = [(0, 0, 0)]
    for end in range(1, len(order) + 1):
        choices = [(best[end - 1][0], end - 1, 0)]
        shared = len(sequences[order[end - 1]])
        for start in range(end - 2, max(0, end - LARGEST) - 1, -1):
            if (shared := min(shared, common[start + 1])) == 0:
                break
            choices.append((best[start][0] + (end - start - 1) * shared - setup, start, shared))
        best.append(max(choices, key=itemgetter(0)))
    found: list[PrefixGroup] = []
    while order:
        _, start, shared = best[len(order)]
        found.append(PrefixGroup(shared, tuple(sorted(order[start:]))))
        del order[start:]
    return found[::-1]


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with.

    >>> common_prefix([1, 2, 3], [1, 2, 4, 5]), common_prefix([], [1])
    (2, 0)
    """
    shortest = min(len(one), len(other))
    return next((at for at in range(shortest) if one[at] != other[at]), shortest)


def batches(lengths: Sequence[int], *, tokens: int, rows: int) -> Iterator[list[int]]:
    """Indices in batches of at most `rows`, padded to at most `tokens` (but for one text alone), longest first.

    >>> list(batches([3, 9, 4, 4], tokens=9, rows=64))
    [[1], [2, 3], [0]]
    """
    batch: list[int] = []
    for at in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (len(batch) == rows or (len(batch) + 1) * lengths[batch[0]] > tokens):
            yield batch
            batch = []
        batch.append(at)
    if batch:
        yield batch

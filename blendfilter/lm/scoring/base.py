"""What a score is, what is asked for one, and what gives it.

In: pairs of a prompt and a continuation. Out: for each, the natural logarithm of the probability that the model gives
the continuation after the prompt, summed over the continuation's tokens, and how many tokens those are.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol

from blendfilter import aio
from blendfilter.errors import BadArgument, ModelError


class Score(NamedTuple):
    """The log-probability of a continuation, in nats, and the number of tokens that it is the sum of."""

    logprob: float
    n_tokens: int


class Pair(NamedTuple):
    """What is scored: the continuation, given the prompt."""

    prompt: str
    continuation: str


class Tokens(NamedTuple):
    """A pair as a decoder-only model reads it: all its tokens, and the index of the continuation's first one."""

    ids: tuple[int, ...]
    first: int


TOO_LONG = "context_too_long"
"""The kind of error of a pair that a model cannot read whole."""

Result = Score | ModelError
Done = Callable[[int, Result], None]
"""Is told the index of a pair and what became of it, as soon as that is known."""


class Scorer(Protocol):
    """What scores pairs."""

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """A score for each pair, in their order."""

    async def ascore(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """The same, awaited."""


class Backend(Protocol):
    """A model that can be asked; `kept.KeptScorer` makes a `Scorer` of it."""

    name: str
    """For people; no part of a score's key."""

    @property
    def identity(self) -> Mapping[str, Any]:
        """What tells this model's scores from another's; no address and no path."""

    async def compute(self, pairs: Sequence[Pair], done: Done) -> None:
        """Score distinct pairs, none with an empty continuation, and tell `done` of each."""


class InProcess:
    """A backend that computes in this process: one caller at a time, in a thread of its own.

    Those who wait hold no thread: in a pool that is shared, they would keep searches and other models waiting.
    Subclasses write `results`, a generator: between two of its results, a cancelled call stops.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._worker: ThreadPoolExecutor | None = None
        self._process = 0

    def results(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Result]]:
        """Index and result of each pair, in any order."""
        raise NotImplementedError

    async def compute(self, pairs: Sequence[Pair], done: Done) -> None:
        """See `Backend`."""
        stop = threading.Event()

        def work() -> None:
            for at, result in self.results(pairs):
                if stop.is_set():
                    return
                done(at, result)

        try:
            await aio.in_thread(work, executor=self._thread())
        except asyncio.CancelledError:
            stop.set()
            raise

    def _thread(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._worker is None or self._process != os.getpid():  # a forked process has no thread to wait for
                self._worker, self._process = (
                    ThreadPoolExecutor(1, thread_name_prefix="blendfilter-scores"),
                    os.getpid(),
                )
            return self._worker


def too_long(pair: Pair, tokens: int, limit: int) -> ModelError:
    """The error of a pair that the model cannot read whole; nothing is ever cut off it."""
    return ModelError(
        f"the prompt {_shown(pair.prompt)} has {tokens:,} tokens with its continuation {_shown(pair.continuation)}, "
        f"more than the model's context of {limit:,}: shorten it",
        kind=TOO_LONG,
    )


def nothing_before(pair: Pair, name: str) -> BadArgument:
    """The error of a continuation whose first token follows nothing at all."""
    return BadArgument(
        f"nothing stands before the continuation {_shown(pair.continuation)}, and {name} has no mark that begins "
        "a text: give it a prompt, if only a line break"
    )


def unusable(pair: Pair, why: str) -> ModelError:
    """The error of a pair that the model, or its server, gives no number for."""
    return ModelError(f"no score for {_shown(pair.continuation)} after {_shown(pair.prompt)}: {why}")


def _shown(text: str) -> str:
    line = " ".join(text.split())
    return f"'{line}'" if len(line) <= 40 else f"'{line[:20]}…{line[-19:]}'"

"""One reply of a model in this process: its prompt read, then token after token until something ends it.

In: a `Task` (tokens, settings, ends). Out: a `Reply`, with how many of the prompt's tokens were read before. The reply
to a task is a function of the task and the weights, whatever was asked before it.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from blendfilter.extras import needed
from blendfilter.lm.local.decoding import Decoding, sampler
from blendfilter.lm.local.loading import EXTRA, WHY, native
from blendfilter.lm.local.prefixes import Prefixes
from blendfilter.lm.profiles import cut_at_stop, split_thinking

if TYPE_CHECKING:
    from llama_cpp import Llama

    from blendfilter.lm.local.wording import Wording


class Task(NamedTuple):
    """What is asked: the prompt's tokens, how to choose the next, and when to end.

    `alternatives`: log-probabilities of each token and of so many others; None: none. `thinks`: the reply may begin
    with thinking, in which stop strings do not count.
    """

    tokens: list[int]
    how: Decoding
    room: int
    stop: tuple[str, ...] = ()
    alternatives: int | None = None
    thinks: bool = False


class Scored(NamedTuple):
    """A token with its natural log-probability, as the model gave it, and the likeliest others."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...]


class Reply(NamedTuple):
    """What came back; `reused` of the prompt's tokens were not read again."""

    text: str
    finish: Literal["stop", "length"]
    tokens_out: int
    reused: int
    scores: tuple[Scored, ...] = ()


class Stopped(Exception):
    """Nobody waits for the reply any more."""


class Late(Exception):
    """The reply's deadline came first."""


class Model:
    """A model and what it has read. Not for two threads at once."""

    def __init__(self, llama: Llama, wording: Wording, prefixes: Prefixes) -> None:
        self.llama, self.wording, self.prefixes = llama, wording, prefixes

    def reply(self, task: Task, stopped: Callable[[], bool] = lambda: False, deadline: float | None = None) -> Reply:
        """The reply to `task`, looking up between two tokens, and between two batches of the prompt.

        Raises:
            Stopped: `stopped` said so. Late: it took `deadline` seconds. RuntimeError: llama.cpp failed.
        """
        end = math.inf if deadline is None else time.monotonic() + deadline
        try:
            return self._reply(task, lambda: stopped() or time.monotonic() >= end)
        except Stopped:
            if stopped():
                raise
            raise Late from None

    def _reply(self, task: Task, stopped: Callable[[], bool]) -> Reply:
        with sampler(self.llama, task.how) as chain:  # first: a grammar that is refused costs no reading
            try:
                reused = self.prefixes.read(task.tokens, stopped)
                if reused is None:
                    raise Stopped
                return self._generated(task, chain, stopped, reused)
            except RuntimeError:
                self.prefixes.forget()
                raise

    def saving(self, task: Task) -> int:
        """How many tokens would be spared by serving it now, over serving it after others."""
        return self.prefixes.saved(task.tokens)

    def _generated(self, task: Task, chain: Any, stopped: Callable[[], bool], reused: int) -> Reply:
        c = native("llama_cpp")
        vocabulary = c.llama_model_get_vocab(self.llama.model)
        said, scores = b"", []
        finish: Literal["stop", "length"] = "length"
        n = 0
        while n < task.room:
            if stopped():
                raise Stopped
            token = c.llama_sampler_sample(chain, self.llama.ctx, -1)
            if c.llama_vocab_is_eog(vocabulary, token):
                finish = "stop"
                break
            n += 1
            said += piece_of(vocabulary, token)
            if task.alternatives is not None:
                scores.append(self._scored(vocabulary, token, task.alternatives))
            if task.stop and _ended(said.decode("utf-8", "ignore"), task):
                finish = "stop"
                break
            if n < task.room:
                self.llama.eval([token])
        return Reply(said.decode("utf-8", "replace"), finish, n, reused, tuple(scores))

    def _scored(self, vocabulary: Any, token: int, alternatives: int) -> Scored:
        np = needed("numpy", EXTRA, WHY)
        raw = native("llama_cpp").llama_get_logits_ith(self.llama.ctx, -1)
        logits = np.ctypeslib.as_array(raw, shape=(self.llama.n_vocab(),)).astype(np.float64)
        logprobs = logits - logits.max()
        logprobs -= np.log(np.exp(logprobs).sum())
        best = np.argsort(-logprobs, kind="stable")[:alternatives] if alternatives else []
        top = tuple((_text_of(vocabulary, int(other)), float(logprobs[other])) for other in best)
        return Scored(_text_of(vocabulary, token), float(logprobs[token]), top)


def _ended(text: str, task: Task) -> bool:
    said = split_thinking(text)[1] if task.thinks else text
    return len(cut_at_stop(said, task.stop)) < len(said)


def _text_of(vocabulary: Any, token: int) -> str:
    return piece_of(vocabulary, token).decode("utf-8", "replace")


def piece_of(vocabulary: Any, token: int) -> bytes:
    """The bytes that a token stands for; empty for a control token."""
    c = native("llama_cpp")
    buffer = ctypes.create_string_buffer(64)
    length = c.llama_token_to_piece(vocabulary, token, buffer, 64, 0, False)
    if length < 0:
        buffer = ctypes.create_string_buffer(-length)
        length = c.llama_token_to_piece(vocabulary, token, buffer, -length, 0, False)
    return bytes(buffer.raw[:length])

"""A server's self-test, before its first score: which way it tells log-probabilities, and whether they are aligned.

In: a way to ask it. Out: the way, and the mark that must stand before every text; or a refusal that says why.

Some servers are off by one. llama-cpp-python's, unless a text begins with the model's mark (BOS), gives each token the
log-probability of coming *again*, behind itself: plausible numbers, all wrong. What may be generated next is told right
everywhere, so that is the measure: the likeliest next words after a prompt, with their log-probabilities. Each is then
sent as given text behind that prompt, and must come back with the same number; one of them a second time, with a word
behind it, for a server may be right about a text's last token alone. The numbers must be far apart: those of another
token could not follow them. Where they do not agree, the marks that models use are tried in front; a mark that
the server does not know as one changes nothing, and is not taken.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from dspy import lm15

from blendfilter.lm.scoring.echoes import ECHO, GENERATION, WAYS, Way, next_words, told
from blendfilter.lm.scoring.spelling import Told, continuation

MARKS = ("<|im_start|>", "<s>", "<|begin_of_text|>", "<|endoftext|>", "<bos>")
"""What begins a text, in most models of today."""
PROBES = ("The old man walked down to the", "Last year we moved to a small", "One, two, three, four,", "My brother is")
LEAST = 5
"""Words, of all probes together, that must agree."""
APART = 1.0
"""Nats between the likeliest and the least likely word of a probe, at the least: else they prove nothing."""
NEAR, MEAN = 0.3, 0.1
"""Nats by which one word, and all on average, may differ: servers round, and batches differ in their last digits."""

Ask = Callable[[str, Way, int], Awaitable[lm15.Response]]
"""Text, way and tokens to generate -> the response. Raises: lm15 errors."""


class Manner(NamedTuple):
    """How a server is asked for scores: the way, and the mark to put before every text."""

    way: Way
    mark: str = ""


class Refusal(NamedTuple):
    """Why a server cannot be asked."""

    why: str


async def manner_of(ask: Ask) -> Manner | Refusal:
    """The first manner that stands the test.

    Raises:
        lm15 errors that no other manner would change (no connection, no such model, a key that is refused).
    """
    why = ""
    for way in WAYS:
        for mark in ("", *MARKS) if way is ECHO else ("",):
            verdict = await _tried(ask, Manner(way, mark))
            if verdict is None:
                return Manner(way, mark)
            why = why or verdict.why
            if verdict is not _OFF:
                break  # a mark in front would not help
    return Refusal(why)


def span(told: Told, mark: str, prompt: str, text: str) -> range | None:
    """Which of the tokens are the continuation's; see `spelling.continuation`."""
    found = continuation(prompt + text, told, len(prompt))
    if found is None and mark:  # spelled out: this server does not keep its mark to itself
        return continuation(mark + prompt + text, told, len(mark + prompt))
    return found


_OFF = Refusal("the log-probabilities that it gives belong to other tokens (off by one)")
_UNCHECKED = Refusal("the log-probabilities that it gives could not be checked against what it generates")
_NONE = Refusal("it gives none, or not those of the prompt's tokens")


async def _tried(ask: Ask, manner: Manner) -> Refusal | None:
    apart: list[float] = []
    inside: list[float] = []
    for probe in PROBES:
        try:
            words = await _next(ask, manner, probe)
            for word, logprob in words.items():
                found = await _apart(ask, manner, probe, word, logprob)
                if found is None:
                    return _NONE
                apart += found
            if words and not inside:
                word, logprob = list(words.items())[-1]
                for after in list(await _next(ask, manner, probe + word))[:1]:
                    inside += await _apart(ask, manner, probe, word, logprob, after) or []
        except (lm15.InvalidRequestError, lm15.UnsupportedFeatureError, lm15.ServerError) as error:
            if isinstance(error, lm15.UnsupportedModelError):
                raise
            return Refusal(f"it answers: {_first_line(error)}")
        measured = apart + inside
        if not all(each < NEAR for each in measured) or sum(measured) >= MEAN * max(1, len(measured)):
            return _OFF
        if inside and len(measured) >= LEAST:
            return None
    return _UNCHECKED


async def _next(ask: Ask, manner: Manner, text: str) -> dict[str, float]:
    """Words that may follow `text`, the likeliest first."""
    return _chosen(next_words(await ask(manner.mark + text, GENERATION, 1)))


async def _apart(
    ask: Ask, manner: Manner, probe: str, word: str, logprob: float, after: str = ""
) -> list[float] | None:
    """By how much `word` differs from `logprob` as given text with `after` behind it; nothing where it is no token.

    None where the reply does not tell the prompt's tokens.
    """
    reply = told(await ask(manner.mark + probe + word + after, manner.way, 1), manner.way)
    where = span(reply, manner.mark, probe, word + after) if reply else None
    if reply is None or where is None:
        return None
    if len(where) != (2 if after else 1) or reply.words[where[0]] != word:  # it was merged, or cut up
        return []
    given = reply.logprobs[where[0]]
    return [NEAR if given is None else abs(given - logprob)]


def _chosen(words: Mapping[str, float]) -> dict[str, float]:
    """The likeliest word, the least likely and one between, if they are whole and far enough apart."""
    whole = {word: value for word, value in words.items() if word.strip() and "\ufffd" not in word}
    ranked = sorted(whole, key=lambda word: -whole[word])
    if not ranked or whole[ranked[0]] - whole[ranked[-1]] < APART:
        return {}
    return {word: whole[word] for word in dict.fromkeys((ranked[0], ranked[len(ranked) // 2], ranked[-1]))}


def _first_line(error: Exception) -> str:
    return str(getattr(error, "message", "") or error).partition("\n")[0].strip().rstrip(".")[:200]

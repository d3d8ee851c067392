"""How servers tell the log-probabilities of a prompt's tokens: what to ask, and what comes back.

In: a text and one of the ways. Out: a request; then the texts and log-probabilities of the tokens in its reply. Both
ways go to `/completions` with one generated token, which is dropped: with none, llama-cpp-python's server would
generate to the end of its context.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from dspy import lm15

from blendfilter.lm.openai import OpenAIEngine
from blendfilter.lm.scoring.spelling import Told


class Way(NamedTuple):
    """One way of asking: the fields that a request carries beside its prompt."""

    name: str
    fields: Mapping[str, Any]


ECHO = Way("echo", {"echo": True, "logprobs": 1})
"""OpenAI's old completions, vLLM, SGLang, llama-cpp-python's server (started with `--logits_all true`)."""
PROMPT_LOGPROBS = Way("prompt_logprobs", {"prompt_logprobs": 0})
"""vLLM's own: for each token of the prompt an object of token ids, the first one null."""
WAYS = (ECHO, PROMPT_LOGPROBS)
GENERATION = Way("generation", {"logprobs": 5})
"""What may be generated next, with log-probabilities: the measure of the other two."""


class EchoEngine(OpenAIEngine):
    """An `OpenAIEngine` for `/completions` whose responses carry the raw choice in `provider_data`."""

    def _response(self, request: lm15.Request, body: dict[str, Any], data: dict[str, Any]) -> lm15.Response:
        choice = data["choices"][0]
        plain = {**data, "choices": [{**choice, "logprobs": None}]}
        response = super()._response(request, body, plain)
        told = {**(response.provider_data or {}), "choice": _finite(choice)}
        return dataclasses.replace(response, provider_data=told)


def _finite(value: Any) -> Any:
    """`value` with None for each number in it that is none: JSON has no infinity, but servers write it."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return {name: _finite(each) for name, each in value.items()} if isinstance(value, dict) else value


def request(model: str, text: str, way: Way, tokens: int = 1) -> lm15.Request:
    """The request for `text`, with at most `tokens` generated behind it."""
    return lm15.Request(
        model=model,
        messages=(lm15.Message(role="user", parts=(lm15.TextPart(text=text),)),),
        config=lm15.Config(max_tokens=tokens, temperature=0.0, extensions=dict(way.fields)),
    )


def told(response: lm15.Response, way: Way) -> Told | None:
    """The tokens in the reply, or None where it holds none that could be read."""
    choice = (response.provider_data or {})["choice"]
    if way is PROMPT_LOGPROBS:
        return _of_positions(choice.get("prompt_logprobs"))
    scores = choice.get("logprobs")
    if not isinstance(scores, Mapping):
        return None
    words, logprobs = scores.get("tokens"), scores.get("token_logprobs")
    if not isinstance(words, list) or not isinstance(logprobs, list) or len(words) != len(logprobs):
        return None
    offsets = scores.get("text_offset")
    return _checked(Told(words, logprobs, offsets if isinstance(offsets, list) else (), response.usage.output_tokens))


def next_words(response: lm15.Response) -> dict[str, float]:
    """The likeliest next tokens in a reply to `GENERATION`, by their texts; none where it tells none."""
    reply = told(response, GENERATION)
    if reply is None or not reply.words:
        return {}
    tops = (response.provider_data or {})["choice"]["logprobs"].get("top_logprobs")
    first = tops[0] if isinstance(tops, list) and tops and isinstance(tops[0], Mapping) else {}
    each = {**first, reply.words[0]: reply.logprobs[0]}
    return {word: value for word, value in each.items() if isinstance(word, str) and isinstance(value, int | float)}


def _of_positions(positions: Any) -> Told | None:
    """vLLM's list: each position an object of one token, the prompt's, as none of the likeliest was asked for."""
    if not isinstance(positions, list) or not positions:
        return None
    words: list[str | None] = []
    logprobs: list[float | None] = []
    for position in positions:
        if position is None:
            entry: Any = {"decoded_token": None, "logprob": None}
        elif isinstance(position, Mapping) and len(position) == 1:
            (entry,) = position.values()
        else:
            return None
        words.append(entry.get("decoded_token"))
        logprobs.append(entry.get("logprob"))
    return _checked(Told(words, logprobs, tail=0))


def _checked(given: Told) -> Told | None:
    """What came from outside, where it is what it should be."""
    whole = all(isinstance(word, str | None) for word in given.words)
    numbers = all(isinstance(each, int | float | None) for each in given.logprobs)
    return given if whole and numbers and all(isinstance(each, int) for each in given.offsets) else None

"""Scores by a model behind an OpenAI-compatible server that gives the log-probabilities of its prompt's tokens.

Two documented ways, both of `/completions`: `echo` with `logprobs` (OpenAI's old completions, vLLM, SGLang), and vLLM's
own `prompt_logprobs`. One request a pair, with one generated token, which is dropped.

Some servers are off by one: llama-cpp-python's gives each token the log-probability of coming *again*, behind itself,
for models without a mark that begins a text. The numbers look plausible and are all wrong. So a server is tested before
its first score: the likeliest next words after a prompt are generated with their log-probabilities, which are right
everywhere; each is then sent as given text and must come back with the same number, with a word behind it too. A server
that passes in neither way is refused.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from blendfilter import aio
from blendfilter.dspy_surface import lm15
from blendfilter.errors import ServerRefused, check_count
from blendfilter.lm import faults
from blendfilter.lm.attempts import FREE, CallPolicy, Retry, Traffic, on_terms
from blendfilter.lm.openai import OpenAIEngine
from blendfilter.lm.replicas import ReplicatedEngine
from blendfilter.lm.scoring.base import Done, Result, Score, TextPair, nothing_before, unusable

CAN = (
    "what can: vLLM, or another server whose completions echo the prompt with log-probabilities, a Hugging Face "
    "folder, a GGUF file ('local', PATH.gguf)"
)
ECHO: Mapping[str, Any] = {"echo": True, "logprobs": 1}
PROMPT_LOGPROBS: Mapping[str, Any] = {"prompt_logprobs": 0}
GENERATION: Mapping[str, Any] = {"logprobs": 5}
PROBES = (
    "The old man walked down to the",
    "Last year we moved to a small",
    "One, two, three, four,",
    "My brother is",
)
LEAST = 4
"""Numbers that must agree, of all probes together."""
APART = 1.0
"""Nats between the likeliest and the least likely word of a probe, at the least: else they prove nothing."""
NEAR = 0.3
"""Nats by which a word may differ: servers round, and batches differ in their last digits."""


class EchoEngine(OpenAIEngine):
    """An `OpenAIEngine` for `/completions` whose responses carry the raw choice in `provider_data`."""

    def _response(
        self, request: lm15.Request, data: dict[str, Any], more: Mapping[str, Any]
    ) -> lm15.Response:
        choice = data["choices"][0]
        plain = {**data, "choices": [{**choice, "logprobs": None}]}
        response = super()._response(request, plain, more)
        # servers write NaN and infinities, which JSON does not have
        finite = json.loads(json.dumps(choice), parse_constant=lambda _: None)
        kept = {**(response.provider_data or {}), "choice": finite}
        return dataclasses.replace(response, provider_data=kept)


class ScoringServer:
    """A served model that scores pairs.

    Args:
        engine: the server, or several of one model; the first that answers is tested for all.
        label: tells two servers apart that serve different weights under one name.
        concurrency: requests in flight.
        terms, traffic: how faults are tried again and how fast requests go out, and what a run allows.
    """

    def __init__(
        self,
        engine: EchoEngine | ReplicatedEngine,
        *,
        label: str = "",
        concurrency: int = 8,
        terms: CallPolicy | None = None,
        traffic: Traffic = FREE,
    ) -> None:
        self.name, self._label, self._address = engine.model, label, engine.address
        self._concurrency = check_count("concurrency", concurrency)
        terms = terms or CallPolicy(retry=Retry())
        self._called = on_terms(engine, terms, traffic)
        self._tested = on_terms(
            engine, dataclasses.replace(terms, retry=Retry(attempts=2)), traffic
        )
        self._way: Mapping[str, Any] | None = None

    @property
    def identity(self) -> Mapping[str, Any]:
        """The model's name and label, as for its calls; not where it is."""
        return {"kind": "server", "model": self.name, "label": self._label}

    async def compute(self, pairs: Sequence[TextPair], done: Done) -> None:
        """See `Backend`."""
        way = self._way = self._way or await self._passed_way()
        rows = iter(enumerate(pairs))

        async def work() -> None:
            for at, pair in rows:
                done(at, await self._scored(way, pair))

        async with aio.together() as group:
            for _ in pairs[: self._concurrency]:
                group.create_task(work())

    async def _scored(self, way: Mapping[str, Any], pair: TextPair) -> Result:
        try:
            response = await self._called.complete(
                self._request(pair.prompt + pair.continuation, way)
            )
        except lm15.LM15Error as fault:
            final = faults.final(fault, address=self._address)
            if isinstance(final, ServerRefused):
                raise final from None
            return final
        given = given_tokens(response)
        first = continuation(pair, given)
        if first is None:
            return unusable(
                pair,
                "the tokens that the server gives do not spell the text, or not where the continuation begins",
            )
        logprobs = given.logprobs[first:]
        if first == 0 and logprobs[0] is None:
            raise nothing_before(pair, self.name)
        known = [value for value in logprobs if value is not None]
        if len(known) < len(logprobs):
            return unusable(pair, "the server gives no log-probability of one of its tokens")
        return Score(math.fsum(known), len(known))

    def _request(self, text: str, way: Mapping[str, Any]) -> lm15.Request:
        return lm15.Request(
            model=self.name,
            messages=(lm15.Message(role="user", parts=(lm15.TextPart(text=text),)),),
            config=lm15.Config(max_tokens=1, temperature=0.0, extensions=dict(way)),
        )

    # ---- test

    async def _passed_way(self) -> Mapping[str, Any]:
        """The first way that passes the test.

        Raises:
            ServerRefused: none does, or no way would change what is wrong (no connection, no such model).
        """
        why = ""
        for way in (ECHO, PROMPT_LOGPROBS):
            try:
                failure = await self._failure(way)
            except lm15.LM15Error as error:
                cannot = (
                    lm15.InvalidRequestError,
                    lm15.UnsupportedFeatureError,
                    lm15.ServerError,
                )
                if not isinstance(error, cannot) or isinstance(
                    error, lm15.UnsupportedModelError
                ):
                    raise faults.final(error, address=self._address) from None
                first = str(getattr(error, "message", "") or error).partition("\n")[0]
                failure = f"it answers: {first.strip().rstrip('.')[:200]}"
            if not failure:
                return way
            why = why or failure
        raise ServerRefused(
            f"{self._address} gives no log-probabilities of given text for {self.name} ({why}); {CAN}"
        )

    async def _failure(self, way: Mapping[str, Any]) -> str:
        """Why the numbers of this way cannot be trusted, "" where they can."""
        agreed = agreed_inside = 0
        for probe in PROBES:
            words = next_words(await self._tested.complete(self._request(probe, GENERATION)))
            for word, logprob in words.items():
                for after in ("", " and"):
                    text = TextPair(probe, word + after)
                    given = given_tokens(
                        await self._tested.complete(self._request("".join(text), way))
                    )
                    first = continuation(text, given)
                    if first is None:
                        return "it gives none, or not those of the prompt's tokens"
                    if given.words[first] != word:  # it was merged, or cut up
                        continue
                    value = given.logprobs[first]
                    if value is None or not abs(value - logprob) < NEAR:
                        return "the log-probabilities that it gives belong to other tokens (off by one)"
                    agreed, agreed_inside = agreed + 1, agreed_inside + bool(after)
            if agreed >= LEAST and agreed_inside:
                return ""
        return (
            "the log-probabilities that it gives could not be checked against what it generates"
        )


# ---- what a server gives


class GivenTokens(NamedTuple):
    """The tokens of a prompt as a server gives them: texts and log-probabilities, None where there is none."""

    words: list[str | None]
    logprobs: list[float | None]


def given_tokens(response: lm15.Response) -> GivenTokens:
    """The prompt's tokens in a reply to `ECHO` or `PROMPT_LOGPROBS`; none where it has none."""
    choice = (response.provider_data or {})["choice"]
    positions, scores = choice.get("prompt_logprobs"), choice.get("logprobs")
    words, logprobs = [], []
    if isinstance(positions, list) and positions:
        for row in positions:  # an object of one token; the first one is null
            entry: Any = next(iter(row.values()), {}) if isinstance(row, Mapping) else {}
            words.append(entry.get("decoded_token"))
            logprobs.append(entry.get("logprob"))
    elif isinstance(scores, Mapping):
        given, values = scores.get("tokens") or [], scores.get("token_logprobs") or []
        generated = response.usage.output_tokens or 0
        words = given[: len(given) - generated]
        logprobs = values[: len(values) - generated]
    whole = len(words) == len(logprobs) and all(isinstance(word, str | None) for word in words)
    numbers = all(isinstance(value, int | float | None) for value in logprobs)
    return GivenTokens(words, logprobs) if whole and numbers else GivenTokens([], [])


def next_words(response: lm15.Response) -> dict[str, float]:
    """The likeliest next word in a reply to `GENERATION` and the least likely that it gives, if they are far apart."""
    tops = ((response.provider_data or {})["choice"].get("logprobs") or {}).get("top_logprobs")
    first = tops[0] if isinstance(tops, list) and tops and isinstance(tops[0], Mapping) else {}
    words = {
        word: value for word, value in first.items() if word.strip() and "\ufffd" not in word
    }
    ranked = sorted(words, key=lambda word: -words[word])
    if not ranked or words[ranked[0]] - words[ranked[-1]] < APART:
        return {}
    return {word: words[word] for word in (ranked[0], ranked[-1])}


def continuation(pair: TextPair, given: GivenTokens) -> int | None:
    """The index of the first token that ends behind the prompt's end, where the texts say so; never a guess.

    A character that is cut into several tokens comes back as empty texts or as U+FFFD: such a run stands for as many
    characters as fit between its neighbours.

    >>> continuation(TextPair("Answer: ", "Paris"), GivenTokens(["Answer", ":", " Paris"], []))
    2
    """
    text, seam = "".join(pair), len(pair.prompt)
    for skipped in (0, 1):  # a mark that begins the text may be given too
        runs: list[tuple[int, bool]] = []  # where each run begins, and whether it is cut
        pattern = ""
        for at, word in enumerate(given.words[skipped:], skipped):
            cut = not word or "\ufffd" in word or word.startswith("bytes:")
            if cut and runs and runs[-1][1]:
                continue
            pattern += "(.+?)" if cut else f"({re.escape(word or '')})"
            runs.append((at, cut))
        found = re.fullmatch(pattern, text, re.DOTALL) if runs else None
        if found is None:
            continue
        first = next((i for i in range(len(runs)) if found.end(i + 1) > seam), None)
        if first is None:
            return None
        begin, cut = runs[first]
        start, end = found.span(first + 1)
        size = (runs[first + 1][0] if first + 1 < len(runs) else len(given.words)) - begin
        # the token before may have the cut character's first byte, unless each byte has a token here
        return (
            None if cut and (start != seam or size != len(text[start:end].encode())) else begin
        )
    return None

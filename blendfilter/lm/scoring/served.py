"""Scores by a model behind an OpenAI-compatible server that tells the log-probabilities of given text.

In: pairs, one request each. Out: their scores. How the server tells them, and whether they can be trusted, is found out
once (`probing`); a server that cannot is refused, with what can.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dspy import lm15

from blendfilter.errors import BadArgument, ServerRefused
from blendfilter.lm import faults
from blendfilter.lm.attempts import Retry
from blendfilter.lm.call_policy import FREE, CallPolicy, Traffic, on_terms
from blendfilter.lm.replicas import ReplicatedEngine
from blendfilter.lm.scoring.base import Done, Pair, Result, Score, nothing_before, unusable
from blendfilter.lm.scoring.echoes import EchoEngine, Way, request, told
from blendfilter.lm.scoring.probing import Manner, Refusal, manner_of, span
from blendfilter.lm.scoring.spelling import Told

CAN = (
    "what can: vLLM, llama-cpp-python's server (--logits_all true), a GGUF file in this process ('local', PATH.gguf), "
    "a Hugging Face folder"
)
_PROBING = Retry(attempts=2)


class Served:
    """A served model that scores pairs.

    Args:
        engine: the server, or several of one model.
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
        if concurrency < 1:
            raise BadArgument(f"concurrency must be at least 1, got {concurrency}")
        self.name, self._label, self._address = engine.model, label, engine.address
        self._concurrency = concurrency
        terms = terms or CallPolicy(retry=Retry())
        self._called = on_terms(engine, terms, traffic)
        self._probed = on_terms(engine, dataclasses.replace(terms, retry=_PROBING), traffic)
        self._manner: Manner | None = None

    @property
    def identity(self) -> Mapping[str, Any]:
        """The model's name and label, as for its calls; not where it is."""
        return {"kind": "server", "model": self.name, "label": self._label}

    async def compute(self, pairs: Sequence[Pair], done: Done) -> None:
        """See `Backend`."""
        manner = self._manner = self._manner or await self._tested()
        rows = iter(enumerate(pairs))
        workers = [asyncio.ensure_future(self._work(manner, rows, done)) for _ in pairs[: self._concurrency]]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()

    async def _work(self, manner: Manner, rows: Iterator[tuple[int, Pair]], done: Done) -> None:
        for at, pair in rows:
            done(at, await self._scored(manner, pair))

    async def _scored(self, manner: Manner, pair: Pair) -> Result:
        text = manner.mark + pair.prompt + pair.continuation
        try:
            response = await self._called.complete(request(self.name, text, manner.way))
        except lm15.LM15Error as fault:
            final = faults.final(fault, address=self._address)
            if isinstance(final, ServerRefused):
                raise final from None
            return final
        reply = told(response, manner.way)
        where = span(reply, manner.mark, *pair) if reply else None
        if reply is None or where is None:
            return unusable(
                pair, "the tokens that the server tells do not spell the text, or not where the continuation begins"
            )
        return self._sum(pair, reply, where)

    def _sum(self, pair: Pair, reply: Told, where: range) -> Result:
        logprobs = [reply.logprobs[at] for at in where]
        if logprobs[0] is None:
            raise nothing_before(pair, self.name)
        known = [each for each in logprobs if each is not None]
        if len(known) < len(logprobs):
            return unusable(pair, "the server tells no log-probability of one of its tokens")
        return Score(math.fsum(known), len(known))

    async def _tested(self) -> Manner:
        async def ask(text: str, way: Way, tokens: int) -> lm15.Response:
            return await self._probed.complete(request(self.name, text, way, tokens))

        try:
            found = await manner_of(ask)
        except lm15.LM15Error as fault:
            raise faults.final(fault, address=self._address) from None
        if isinstance(found, Refusal):
            raise ServerRefused(
                f"{self._address} gives no log-probabilities of given text for {self.name} ({found.why}); {CAN}"
            )
        return found

    def __repr__(self) -> str:
        return f"Served({self._address!r}, model={self.name!r})"

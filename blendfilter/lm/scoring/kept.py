"""Scores through the journal: what was scored once is not computed again.

Scores come from the journal where it has them, else from the model, journaled before they are used. A record is of kind
`score`; its key is made of the scorer's identity (kind, weights or model name and label, settings), the prompt and the
continuation, never of an address or a path. The same pair is computed once, in one call or several at once. A pair that
has no score (too long for the context) is recorded as that error, and a replay fails the same way.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from blendfilter import aio
from blendfilter.context import STAGE, who
from blendfilter.errors import BadArgument, ModelError, ReplayMiss
from blendfilter.journal import Journal, digest
from blendfilter.lm import faults
from blendfilter.lm.scoring.base import Backend, Result, Score, TextPair, unusable
from blendfilter.records import whole_characters

CERTAIN = Score(0.0, 0)
"""The score of an empty continuation: it is certain."""


class KeptScorer:
    """Scores by one model, kept in `journal` (without one, nothing is kept).

    Raises, from both methods:
        BadArgument: pairs that are none; an empty prompt where the model has no mark that begins a text.
        ModelError: a pair could not be scored; all others were, and are journaled. ServerRefused: the server cannot.
        ReplayMiss: a replay does not hold it.
    """

    def __init__(self, backend: Backend, journal: Journal | None = None) -> None:
        self.backend = backend
        self.journal = journal
        self._flights = aio.SingleFlight[Result]()

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """A score for each (prompt, continuation), in their order."""
        return aio.run(self.ascore(pairs), "scorer", "await scorer.ascore(…)")

    async def ascore(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """The same, awaited."""
        return [_whole(each) for each in await self.aresults(pairs)]

    async def aresults(self, pairs: Sequence[tuple[str, str]]) -> list[Result]:
        """The same, with the error itself in the place of a pair that could not be scored."""
        checked = _checked(pairs)
        identity = self.backend.identity
        keys = [digest("score", identity, *pair) if pair.continuation else "" for pair in checked]
        results = await self._results({key: pair for key, pair in zip(keys, checked, strict=True) if key})
        return [results[key] if key else CERTAIN for key in keys]

    async def _results(self, wanted: Mapping[str, TextPair]) -> dict[str, Result]:
        joined: dict[str, Future[Result]] = {}

        async def computed(key: str) -> Result:
            self._check_may_compute(key)
            leads, result = not joined, Future[Result]()
            joined[key] = result
            if leads:
                await asyncio.sleep(0)  # what is computed nowhere yet, of this call, is one batch
                batch = joined.copy()
                joined.clear()
                await self._compute({key: wanted[key] for key in batch}, batch)
            return await asyncio.wrap_future(result)

        flights = [
            asyncio.ensure_future(self._flights.do(key, partial(self._found, key), partial(computed, key)))
            for key in wanted
        ]
        await asyncio.gather(*flights, return_exceptions=True)
        return {key: flight.result() for key, flight in zip(wanted, flights, strict=True)}

    def _found(self, key: str) -> Result | None:
        if self.journal is None or (record := self.journal.find(key, "score")) is None:
            return None
        if not record.get("error"):
            return Score(record["logprob"], record["n_tokens"])
        error = faults.restore(record["error"], stage=STAGE.get()) if self.journal.mode == "replay" else None
        return error if isinstance(error, ModelError) else None

    def _check_may_compute(self, key: str) -> None:
        if self.journal is None:
            return
        if self.journal.closed:
            raise BadArgument(f"{who()} asks for a score, but its journal ({self.journal.path}) is closed")
        if self.journal.mode == "replay":
            raise ReplayMiss(
                f"not in the journal: {who()} asks for score {key[:12]}, which {self.journal.path} does not hold; "
                "the pairs, the model or its settings changed: score them without replay"
            )

    async def _compute(self, wanted: Mapping[str, TextPair], batch: Mapping[str, Future[Result]]) -> None:
        """Compute `wanted`; each result is journaled, then handed on."""
        keys, pairs = list(wanted), list(wanted.values())
        last = time.perf_counter()

        def done(at: int, result: Result) -> None:
            nonlocal last
            now = time.perf_counter()
            if isinstance(result, Score) and not math.isfinite(result.logprob):
                result = unusable(pairs[at], f"the model gives {result.logprob} in place of a number")
            if self.journal is not None:
                self.journal.append(self._record(keys[at], pairs[at], result, now - last))
            last = now
            if not batch[keys[at]].done():  # where the call was cancelled meanwhile
                batch[keys[at]].set_result(result)

        try:
            await self.backend.compute(pairs, done)
            for at, key in enumerate(keys):
                if not batch[key].done():
                    done(at, unusable(pairs[at], "the model returned nothing for it"))
        except Exception as error:  # noqa: BLE001 - every pair that waits for it fails with it
            for result in batch.values():
                if not result.done():
                    result.set_exception(error)
        finally:
            for result in batch.values():
                result.cancel()

    def _record(self, key: str, pair: TextPair, result: Result, seconds: float) -> dict[str, Any]:
        score, error = (None, result) if isinstance(result, ModelError) else (result, None)
        return {
            "key": key,
            "kind": "score",
            "stage": STAGE.get(),
            "model": self.backend.name,
            "scorer": dict(self.backend.identity),
            "prompt": pair.prompt,
            "continuation": pair.continuation,
            "logprob": score and score.logprob,
            "n_tokens": score and score.n_tokens,
            # pairs of one batch come together: the first has the batch's time, the others next to none
            "seconds": round(seconds, 6),
            "error": error and faults.describe(error),
        }


def _checked(pairs: Iterable[Any]) -> list[TextPair]:
    checked = []
    for number, pair in enumerate(pairs, 1):
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            raise BadArgument(f"pair {number} must be (prompt, continuation), two strings: it is {pair!r:.40}")
        checked.append(TextPair(*map(whole_characters, pair)))
    return checked


def _whole(result: Result) -> Score:
    if isinstance(result, ModelError):
        raise ModelError(str(result), kind=result.kind, stage=STAGE.get())
    return result

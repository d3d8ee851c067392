"""Scores through the journal: what was scored once is not computed again.

Scores come from the journal where it has them, else from the model, journaled before they are used. A record is of kind
`score`; its key is made of the scorer's identity (kind, weights or model name and label, settings), the prompt and the
continuation, never of an address or a path. A pair that has no score (too long for the context) is recorded as that
error, and a replay fails the same way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from blendfilter import aio
from blendfilter.context import asker, who
from blendfilter.errors import BadArgument, ModelError, ReplayMiss, words_of
from blendfilter.journal import Journal, digest
from blendfilter.lm import faults
from blendfilter.lm.scoring.base import Backend, CutScore, Result, Score, TextPair, unusable
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

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """A score for each (prompt, continuation), in their order."""
        return aio.run(self.ascore(pairs), "scorer", "await scorer.ascore(…)")

    async def ascore(self, pairs: Sequence[tuple[str, str]]) -> list[Score]:
        """The same, awaited."""
        results = await self.aresults(pairs)
        if error := next(
            (result for result in results if isinstance(result, ModelError)), None
        ):
            raise ModelError(words_of(error), kind=error.kind, stage=asker().stage)
        return [result for result in results if isinstance(result, Score)]

    async def aresults(self, pairs: Sequence[tuple[str, str]]) -> list[Result]:
        """The same, with the error itself in the place of a pair that could not be scored."""
        identity = self.backend.identity
        found: dict[str, Result] = {"": CERTAIN}
        keys, wanted = [], dict[str, TextPair]()
        for prompt, continuation in pairs:
            pair = TextPair(whole_characters(prompt), whole_characters(continuation))
            key = digest("score", identity, *pair) if continuation else ""
            keys.append(key)
            if key not in found:
                if (known := self._found(key)) is None:
                    wanted[key] = pair
                else:
                    found[key] = known
        if wanted:
            found |= await self._computed(wanted)
        return [found[key] for key in keys]

    def _found(self, key: str) -> Result | None:
        if self.journal is None or (record := self.journal.find(key, "score")) is None:
            return None
        if not record.get("error"):
            kind = CutScore if record.get("cut") else Score
            return kind(record["logprob"], record["n_tokens"])
        if self.journal.mode != "replay":
            return None
        error = faults.restore(record["error"], stage=asker().stage)
        return error if isinstance(error, ModelError) else None

    async def _computed(self, wanted: Mapping[str, TextPair]) -> dict[str, Result]:
        """Compute `wanted`; each result is journaled as soon as it is known."""
        keys, pairs, journal = [*wanted], [*wanted.values()], self.journal
        if journal is not None and journal.closed:
            raise BadArgument(
                f"{who()} asks for a score, but its journal ({journal.path}) is closed"
            )
        if journal is not None and journal.mode == "replay":
            raise ReplayMiss(
                f"not in the journal: {who()} asks for score {keys[0][:12]}, which {journal.path} does not hold; "
                "the pairs, the model or its settings changed: score them without replay"
            )
        results: dict[str, Result] = {}
        last = time.perf_counter()

        def done(at: int, result: Result) -> None:
            nonlocal last
            seconds = time.perf_counter() - last
            last += seconds
            pair = pairs[at]
            if isinstance(result, Score) and not math.isfinite(result.logprob):
                result = unusable(
                    pair, f"the model gives {result.logprob} in place of a number"
                )
            results[keys[at]] = result
            if journal is None:
                return
            score = result if isinstance(result, Score) else None
            journal.append(
                {
                    "key": keys[at],
                    "kind": "score",
                    "stage": asker().stage,
                    "model": self.backend.name,
                    "scorer": dict(self.backend.identity),
                    **pair._asdict(),
                    "logprob": score and score.logprob,
                    "n_tokens": score and score.n_tokens,
                    **({"cut": True} if score and score.cut else {}),
                    # pairs of one batch come together: the first has the batch's time, the others next to none
                    "seconds": round(seconds, 6),
                    "error": None if isinstance(result, Score) else faults.describe(result),
                }
            )

        await self.backend.compute(pairs, done)
        return results

"""Scores through the journal: what was scored once is not computed again.

Scores come from the journal where it has them, else from the model, journaled before they are used. A record is of kind
`score`; its key is made of the scorer's identity (kind, weights or model name and label, settings), the prompt and the
continuation, never of an address or a path. A pair that has no score (too long for the context) is recorded as that
error, and a replay fails the same way.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
        if error := next((each for each in results if isinstance(each, ModelError)), None):
            raise ModelError(words_of(error), kind=error.kind, stage=asker().stage)
        return [each for each in results if isinstance(each, Score)]

    async def aresults(self, pairs: Sequence[tuple[str, str]]) -> list[Result]:
        """The same, with the error itself in the place of a pair that could not be scored."""
        checked = _checked(pairs)
        identity = self.backend.identity
        keys = [
            digest("score", identity, *pair) if pair.continuation else "" for pair in checked
        ]
        found = {key: self._found(key) for key in keys if key}
        wanted = {
            key: pair
            for key, pair in zip(keys, checked, strict=True)
            if key and found[key] is None
        }
        if wanted:
            self._check_may_compute(next(iter(wanted)))
            found |= await self._computed(wanted)
        return [CERTAIN if not key else found[key] for key in keys]  # type: ignore[misc]

    def _found(self, key: str) -> Result | None:
        if self.journal is None or (record := self.journal.find(key, "score")) is None:
            return None
        if not record.get("error"):
            return (CutScore if record.get("cut") else Score)(
                record["logprob"], record["n_tokens"]
            )
        error = (
            faults.restore(record["error"], stage=asker().stage)
            if self.journal.mode == "replay"
            else None
        )
        return error if isinstance(error, ModelError) else None

    def _check_may_compute(self, key: str) -> None:
        if self.journal is None:
            return
        if self.journal.closed:
            raise BadArgument(
                f"{who()} asks for a score, but its journal ({self.journal.path}) is closed"
            )
        if self.journal.mode == "replay":
            raise ReplayMiss(
                f"not in the journal: {who()} asks for score {key[:12]}, which {self.journal.path} does not hold; "
                "the pairs, the model or its settings changed: score them without replay"
            )

    async def _computed(self, wanted: Mapping[str, TextPair]) -> dict[str, Result]:
        """Compute `wanted`; each result is journaled as soon as it is known."""
        keys, pairs = list(wanted), list(wanted.values())
        results: dict[str, Result] = {}
        last = time.perf_counter()

        def done(at: int, result: Result) -> None:
            nonlocal last
            now = time.perf_counter()
            if isinstance(result, Score) and not math.isfinite(result.logprob):
                result = unusable(
                    pairs[at], f"the model gives {result.logprob} in place of a number"
                )
            if self.journal is not None:
                self.journal.append(self._record(keys[at], pairs[at], result, now - last))
            last, results[keys[at]] = now, result

        await self.backend.compute(pairs, done)
        return {key: results[key] for key in keys}

    def _record(
        self, key: str, pair: TextPair, result: Result, seconds: float
    ) -> dict[str, Any]:
        score, error = (None, result) if isinstance(result, ModelError) else (result, None)
        return {
            "key": key,
            "kind": "score",
            "stage": asker().stage,
            "model": self.backend.name,
            "scorer": dict(self.backend.identity),
            "prompt": pair.prompt,
            "continuation": pair.continuation,
            "logprob": score and score.logprob,
            "n_tokens": score and score.n_tokens,
            **({"cut": True} if score and score.cut else {}),
            # pairs of one batch come together: the first has the batch's time, the others next to none
            "seconds": round(seconds, 6),
            "error": error and faults.describe(error),
        }


def _checked(pairs: Iterable[Any]) -> list[TextPair]:
    checked = []
    for number, pair in enumerate(pairs, 1):
        if not (
            isinstance(pair, tuple | list)
            and len(pair) == 2
            and all(isinstance(text, str) for text in pair)
        ):
            raise BadArgument(
                f"pair {number} must be (prompt, continuation), two strings: it is {pair!r:.40}"
            )
        checked.append(TextPair(*map(whole_characters, pair)))
    return checked

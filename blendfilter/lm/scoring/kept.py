"""Scores through the journal: what was scored once is not computed again.

In: pairs. Out: their scores, from the journal where it has them, else from the model, journaled before they are used.
A record is of kind `score`; its key is made of the scorer's identity (kind, weights or model name and label, settings),
the prompt and the continuation, never of an address or a path. The same pair is computed once, in one call or several
at once. A pair that has no score (too long for the context) is recorded as that error, and a replay fails the same way.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from blendfilter import aio
from blendfilter.context import STAGE, who
from blendfilter.errors import BadArgument, ModelError, ReplayMiss, copied
from blendfilter.journal import Journal, digest
from blendfilter.lm import faults
from blendfilter.lm.scoring.base import Backend, Result, Score, TextPair, unusable

_Flight = concurrent.futures.Future[Result]
NOTHING = Score(0.0, 0)
"""The score of an empty continuation: it is certain."""


class KeptScorer:
    """A `TextScorer` over one model, its scores kept in `journal` (without one, nothing is kept).

    Raises, from both methods:
        BadArgument: pairs that are none; an empty prompt where the model has no mark that begins a text.
        ModelError: a pair could not be scored; all others were, and are journaled. ServerRefused: the server cannot.
        ReplayMiss: a replay does not hold it.
    """

    def __init__(self, backend: Backend, journal: Journal | None = None) -> None:
        self.backend = backend
        self.journal = journal
        self._flights: dict[str, _Flight] = {}
        self._lock = threading.Lock()

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
        return [results[key] if key else NOTHING for key in keys]

    async def _results(self, wanted: Mapping[str, TextPair]) -> dict[str, Result]:
        results: dict[str, Result] = {}
        while missing := {key: pair for key, pair in wanted.items() if key not in results}:
            found, mine, theirs = self._boarded(missing)
            results |= found
            if mine:
                await self._lead({key: missing[key] for key in mine}, mine)
            for key, flight in (mine | theirs).items():
                failure: Exception | None = None
                try:
                    results[key] = await asyncio.shield(asyncio.wrap_future(flight))
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if not flight.cancelled() or (task is not None and task.cancelling()):
                        raise
                    # Only the one who computed it for us was cancelled: we take over.
                except Exception as error:  # noqa: BLE001 - whatever the one who computed it for us met
                    failure = copied(error)
                if failure is not None:
                    raise failure
        return results

    def _boarded(
        self, missing: Mapping[str, TextPair]
    ) -> tuple[dict[str, Result], dict[str, _Flight], dict[str, _Flight]]:
        """What the journal has; what is ours to compute; what somebody computes already."""
        found: dict[str, Result] = {}
        mine: dict[str, _Flight] = {}
        theirs: dict[str, _Flight] = {}
        with self._lock:
            for key in missing:
                if (flight := self._flights.get(key)) is not None:
                    theirs[key] = flight
                elif (result := self._found(key)) is not None:
                    found[key] = result
                else:
                    mine[key] = concurrent.futures.Future()
            if mine:
                self._may_compute(next(iter(mine)))
            self._flights |= mine
        return found, mine, theirs

    def _found(self, key: str) -> Result | None:
        record = self.journal.find(key, "score") if self.journal is not None else None
        if record is None:
            return None
        if not record.get("error"):
            return Score(record["logprob"], record["n_tokens"])
        replayed = self.journal is not None and self.journal.mode == "replay"
        error = faults.restore(record["error"], stage=STAGE.get()) if replayed else None
        return error if isinstance(error, ModelError) else None

    def _may_compute(self, key: str) -> None:
        if self.journal is None:
            return
        if self.journal.closed:
            raise BadArgument(f"{who()} asks for a score, but its journal ({self.journal.path}) is closed")
        if self.journal.mode == "replay":
            raise ReplayMiss(
                f"not in the journal: {who()} asks for score {key[:12]}, which {self.journal.path} does not hold; "
                "the pairs, the model or its settings changed: score them without replay"
            )

    async def _lead(self, wanted: Mapping[str, TextPair], flights: Mapping[str, _Flight]) -> None:
        """Compute what is ours; each result is journaled, then handed on."""
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
            if not flights[keys[at]].done():  # where the call was cancelled meanwhile
                flights[keys[at]].set_result(result)

        failure: Exception | None = None
        try:
            await self.backend.compute(pairs, done)
            for at, key in enumerate(keys):
                if not flights[key].done():
                    done(at, unusable(pairs[at], "the model returned nothing for it"))
        except Exception as error:
            failure = error
            raise
        finally:
            with self._lock:
                for key, flight in flights.items():
                    self._flights.pop(key, None)
                    _ended(flight, failure)

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

    def __repr__(self) -> str:
        return f"KeptScorer({self.backend!r})"


def _checked(pairs: Iterable[Any]) -> list[TextPair]:
    checked: list[TextPair] = []
    for number, pair in enumerate(pairs, 1):
        if wrong := _wrong_with(pair):
            raise BadArgument(f"pair {number} must be (prompt, continuation), two strings: {wrong}")
        # half a character has no UTF-8, and tokenisers want UTF-8
        checked.append(TextPair(*(text.encode("utf-8", "replace").decode() for text in pair)))
    return checked


def _wrong_with(pair: Any) -> str:
    if not isinstance(pair, tuple | list):
        return f"it is {pair!r:.40}"
    if len(pair) != 2:
        return f"it holds {len(pair)}"
    named = zip(("prompt", "continuation"), pair, strict=True)
    return next((f"its {name} is {text!r:.40}" for name, text in named if not isinstance(text, str)), "")


def _whole(result: Result) -> Score:
    if isinstance(result, ModelError):
        raise ModelError(str(result), kind=result.kind, stage=STAGE.get())
    return result


def _ended(flight: _Flight, failure: Exception | None) -> None:
    """End a flight without a result: it fails as the whole did, or is cancelled so that a waiting call takes over."""
    if flight.done():
        return
    if failure is None:
        flight.cancel()
    else:
        flight.set_exception(failure)
        flight.exception()  # retrieved: there may be no follower

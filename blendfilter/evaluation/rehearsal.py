"""A rehearsal: a method over a few questions with the offline reader in the model's place, and what its calls take.

The stand-in answers under the model's own name, so calls that a journal holds answer for themselves, with the model's
real replies; the others are noted, each with its prompt as the model would read it, the reader's reply and the cap of
the model's. No model is called (an index behind an address is searched), and what the rehearsal writes lies in its
caller's folder. The `Estimator` reckons tokens, dollars and seconds from those calls and from earlier ones in journals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import dspy
from dspy import lm15

from blendfilter.context import QUESTION, REPEAT, STAGE
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.runner import evaluate
from blendfilter.journal import Journal
from blendfilter.lm.journaled import prompt_of
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.lm.offline import OfflineEngine
from blendfilter.lm.prices import unknown_price
from blendfilter.lm.tokenisers import TokenCounter, text_of, tokeniser_for
from blendfilter.run_context import lms_of, with_lms_connected
from blendfilter.tasks.base import Questions

SHORTEST = 20
"""Characters of an earlier reply from which on a prompt is searched for it; a shorter one weighs nothing."""
FIGURES = ("tokens_in", "tokens_in_most", "tokens_out", "tokens_out_most", "cost", "cost_most")


class RehearsedCall(NamedTuple):
    """A call that would have to be made; `cap`: tokens of its reply at the most, None where nothing bounds it."""

    turn: tuple[int, str]
    stage: str
    prompt: str
    reply: str
    cap: int | None
    lm: ConnectedLM


@dataclass(frozen=True)
class Rehearsal:
    """The rehearsal's run in its folder, and the calls that no journal holds."""

    run: Run
    calls: tuple[RehearsedCall, ...]


class StandInEngine:
    """The offline reader as the engine of another model; its calls go into `made`."""

    def __init__(self, lm: ConnectedLM, made: list[RehearsedCall]) -> None:
        self._lm, self._made = lm, made
        self._reader = OfflineEngine()
        self._cap: Callable[[lm15.Request], int | None] = getattr(lm.inner, "reply_cap", _requested_cap)

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The reader's reply; never fails."""
        response = await self._reader.complete(request)
        reply = "".join(part.text for part in response.message.parts if isinstance(part, lm15.TextPart))
        turn, prompt = (REPEAT.get(), QUESTION.get()), text_of(prompt_of(request))
        self._made.append(RehearsedCall(turn, STAGE.get(), prompt, reply, self._cap(request), self._lm))
        return response


def _requested_cap(request: lm15.Request) -> int | None:
    cap: Any = request.config.max_tokens
    return None if cap is None else int(cap)


def stand_in(lm: ConnectedLM, made: list[RehearsedCall]) -> ConnectedLM:
    """`lm` as far as keys and prompts go; the offline reader answers."""
    settings = {name: value for name, value in lm.kwargs.items() if value is not None}
    return ConnectedLM(lm.name, StandInEngine(lm, made), profile=lm.profile, identity=lm.identity, **settings)


def rehearse(
    method: dspy.Module,
    questions: Questions,
    lm: ConnectedLM,
    folder: Path,
    *,
    reuse: Iterable[str | Path] = (),
    repeats: int = 1,
    name: str | None = None,
) -> Rehearsal:
    """Answer `questions` with stand-ins, in `folder`. Raises: as `evaluate`, but for what only a server says."""
    made: list[RehearsedCall] = []
    copied = with_lms_connected(method)  # a model of the method's own that were called here would be paid for
    for own in lms_of(copied):
        own.put(stand_in(connect(own.lm), made))
    run = evaluate(
        copied, questions, lm=stand_in(lm, made), run=folder, reuse=reuse, repeats=repeats, progress=False, name=name
    )
    return Rehearsal(run, tuple(made))


class CallEstimate(NamedTuple):
    """One call's tokens and dollars; None where unknown, or (at most) where the reply has no cap."""

    call: RehearsedCall
    tokens_in: float
    tokens_in_most: float | None
    tokens_out: float
    tokens_out_most: float | None
    cost: float | None
    cost_most: float | None
    measured: bool


def added(estimates: Iterable[Any], figure: str) -> Any:
    """The sum of one of the `FIGURES`; None where it is None anywhere."""
    values = [getattr(estimate, figure) for estimate in estimates]
    return None if None in values else sum(values)


@dataclass
class _StageHistory:
    """Earlier calls in one stage of one model."""

    calls: int = 0
    replies: int = 0
    tokens_out: int = 0
    seconds: float = 0.0


class _Reply(NamedTuple):
    """A reply that later prompts may contain: tokens of the rehearsed one, of the expected one, and at most."""

    here: float
    expected: float
    most: int | None


class Estimator:
    """Estimates calls by the best tokeniser of each model and by earlier calls in `journals`."""

    def __init__(self, journals: Sequence[Path] = (), *, ask_server: bool = False) -> None:
        self._ask_server, self._journals = ask_server, journals
        self._tokenisers: dict[str, TokenCounter] = {}
        self._models: dict[str, ConnectedLM] = {}
        self._past: dict[tuple[str, str], _StageHistory] = {}
        for record in _successful_calls(journals):
            past = self._past.setdefault((record["model"], record["stage"]), _StageHistory())
            past.calls += 1
            past.seconds += record.get("seconds") or 0.0
            if record.get("tokens_out") is not None:
                past.replies += 1
                past.tokens_out += record["tokens_out"]

    def tokeniser(self, lm: ConnectedLM) -> TokenCounter:
        """The best one at hand for `lm`."""
        if lm.name not in self._tokenisers:
            self._models[lm.name] = lm
            calls = _successful_calls(self._journals)
            self._tokenisers[lm.name] = tokeniser_for(lm, ask_server=self._ask_server, calls=calls)
        return self._tokenisers[lm.name]

    @property
    def tokenisers(self) -> dict[str, str]:
        """Whose tokens were counted, by the model's name."""
        unheard = " (--ask-server: no server that counts tokens, by /tokenize, was found)"
        return {
            name: tokeniser.name + unheard * (self._ask_server and not tokeniser.served)
            for name, tokeniser in self._tokenisers.items()
        }

    @property
    def prices(self) -> dict[str, str]:
        """What tokens cost, by the model's name, in words, or why that is unknown."""
        return {
            name: unknown_price(name, lm.terms.prices)
            if (price := lm.terms.price) is None
            else f"${price.input:g} in and ${price.output:g} out a million tokens"
            for name, lm in self._models.items()
        }

    def estimates(self, calls: Iterable[RehearsedCall]) -> list[CallEstimate]:
        """An estimate a call, in their order."""
        made: dict[tuple[int, str], dict[str, _Reply]] = {}
        found = []
        for call in calls:
            earlier = made.setdefault(call.turn, {})
            reply, estimate = self._estimate(call, earlier)
            found.append(estimate)
            if len(call.reply.strip()) >= SHORTEST:
                earlier[call.reply.strip()] = reply
        return found

    def _estimate(self, call: RehearsedCall, earlier: Mapping[str, _Reply]) -> tuple[_Reply, CallEstimate]:
        tokeniser, price, cap = self.tokeniser(call.lm), call.lm.terms.price, call.cap
        here = tokeniser.count(call.reply)
        past = self._past.get((call.lm.name, call.stage), _StageHistory())
        measured = past.replies > 0
        expected = past.tokens_out / past.replies if measured else here
        if cap is not None:
            expected = min(expected, cap)
        # A prompt that contains an earlier reply grows with it.
        contained = [reply for text, reply in earlier.items() if text in call.prompt]
        counted = tokeniser.count(call.prompt)
        prompt = counted + sum(reply.expected - reply.here for reply in contained)
        most = None
        if all(reply.most is not None for reply in contained):
            most = counted + sum((reply.most or 0) - reply.here for reply in contained)
        cost = None if price is None else price.of(round(prompt), round(expected))
        cost_most = None if price is None or most is None or cap is None else price.of(round(most), cap)
        return _Reply(here, expected, cap), CallEstimate(call, prompt, most, expected, cap, cost, cost_most, measured)

    def seconds(self, estimates: Iterable[CallEstimate]) -> float | None:
        """How long the calls would take one after the other; None where a model was never called before."""
        times = [self._seconds(estimate.call.lm.name, estimate.call.stage) for estimate in estimates]
        return None if None in times or not times else sum(filter(None, times))

    def _seconds(self, model: str, stage: str) -> float | None:
        """Of a call in this stage, or else in any; None where none was made."""
        all_stages = [past for (name, _), past in self._past.items() if name == model]
        past = [self._past[model, stage]] if (model, stage) in self._past else all_stages
        calls = sum(history.calls for history in past)
        return sum(history.seconds for history in past) / calls if calls else None


def _successful_calls(journals: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for path in journals:
        with Journal(path, "replay") as journal:
            yield from (record for record in journal.records("call") if not record.get("error"))

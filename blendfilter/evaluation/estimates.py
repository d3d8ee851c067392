"""How long prompts and replies will be, what they cost and how long they take, call by call.

In: the calls of a rehearsal, and journals with earlier calls of the same models. Out: an `Estimate` a call: what is
expected, and what it is at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter.evaluation.rehearsal import Rehearsed
from blendfilter.journal import Journal
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.prices import unknown_price
from blendfilter.lm.tokenisers import TokenCounter, tokeniser_for

SHOWN = 20
"""Characters of an earlier reply from which on a prompt is looked through for it; a shorter one weighs nothing."""


class Estimate(NamedTuple):
    """One call's tokens and dollars; None where nobody knows, or (at most) where the reply has no cap."""

    call: Rehearsed
    tokens_in: float
    tokens_in_most: float | None
    tokens_out: float
    tokens_out_most: float | None
    cost: float | None
    cost_most: float | None
    measured: bool


FIGURES = ("tokens_in", "tokens_in_most", "tokens_out", "tokens_out_most", "cost", "cost_most")


def added(each: Iterable[Any], figure: str) -> Any:
    """The sum of one of the `FIGURES`; None where it is None anywhere."""
    values = [getattr(one, figure) for one in each]
    return None if None in values else sum(values)


@dataclass
class _Told:
    """What is known of earlier calls in one stage of one model."""

    calls: int = 0
    replies: int = 0
    tokens_out: int = 0
    seconds: float = 0.0

    def add(self, record: Mapping[str, Any]) -> None:
        self.calls += 1
        self.seconds += record.get("seconds") or 0.0
        if record.get("tokens_out") is not None:
            self.replies += 1
            self.tokens_out += record["tokens_out"]


@dataclass
class Past:
    """Earlier calls by model and stage."""

    told: dict[tuple[str, str], _Told] = field(default_factory=dict)

    @classmethod
    def of(cls, journals: Iterable[Path]) -> Past:
        """Read from journals; calls that failed tell nothing."""
        past = cls()
        for record in records(journals):
            past.told.setdefault((record["model"], record["stage"]), _Told()).add(record)
        return past

    def reply(self, model: str, stage: str) -> float | None:
        """Tokens of a reply, on average; None where no call of this stage told any."""
        told = self.told.get((model, stage))
        return told.tokens_out / told.replies if told is not None and told.replies else None

    def seconds(self, model: str, stage: str) -> float | None:
        """Seconds of a call, of this stage or else of any; None where none was made."""
        every = [told for (name, _), told in self.told.items() if name == model]
        told = [self.told[model, stage]] if (model, stage) in self.told else every
        calls = sum(each.calls for each in told)
        return sum(each.seconds for each in told) / calls if calls else None


def records(journals: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """The calls in journals that ended well, one at a time."""
    for path in journals:
        with Journal(path, "replay") as journal:
            yield from (record for record in journal.records("call") if not record.get("error"))


class Estimator:
    """Estimates calls; keeps the tokeniser of each model that it meets."""

    def __init__(self, journals: Sequence[Path] = (), *, ask_server: bool = False) -> None:
        self._past, self._ask_server, self._journals = Past.of(journals), ask_server, journals
        self._tokenisers: dict[str, TokenCounter] = {}
        self._models: dict[str, ConnectedLM] = {}

    def tokeniser(self, lm: ConnectedLM) -> TokenCounter:
        """The best one at hand for `lm`."""
        if lm.name not in self._tokenisers:
            self._models[lm.name] = lm
            self._tokenisers[lm.name] = tokeniser_for(
                lm, ask_server=self._ask_server, calls=records(self._journals)
            )  # fmt: skip
        return self._tokenisers[lm.name]

    @property
    def tokenisers(self) -> dict[str, str]:
        """Whose tokens were counted, by the model's name."""
        unheard = " (--ask-server: no server that counts tokens, by /tokenize, was found)"
        return {
            name: each.name + unheard * (self._ask_server and not each.served)
            for name, each in self._tokenisers.items()
        }

    @property
    def prices(self) -> dict[str, str]:
        """What tokens cost, by the model's name, in words, or why nobody knows."""
        return {name: _words(lm) for name, lm in self._models.items()}

    def estimates(self, calls: Iterable[Rehearsed]) -> list[Estimate]:
        """An estimate a call, in the order of asking."""
        made: dict[tuple[int, str], dict[str, _Reply]] = {}
        found = []
        for call in calls:
            earlier = made.setdefault(call.turn, {})
            reply, estimate = self._estimate(call, earlier)
            found.append(estimate)
            if len(call.reply.strip()) >= SHOWN:
                earlier[call.reply.strip()] = reply
        return found

    def _estimate(self, call: Rehearsed, earlier: Mapping[str, _Reply]) -> tuple[_Reply, Estimate]:
        tokeniser, price = self.tokeniser(call.lm), call.lm.terms.price
        here = tokeniser.count(call.reply)
        told = self._past.reply(call.lm.name, call.stage)
        expected = here if told is None else told
        if call.cap is not None:
            expected = min(expected, call.cap)
        reply = _Reply(here, expected, call.cap)
        shown = [each for text, each in earlier.items() if text in call.prompt]
        prompt = tokeniser.count(call.prompt)
        most = None if any(each.most is None for each in shown) else prompt + sum(each.longer_at_most for each in shown)
        prompt += sum(each.longer for each in shown)
        cost = None if price is None else price.of(round(prompt), round(expected))
        unbounded = most is None or call.cap is None
        cost_most = None if price is None or unbounded else price.of(round(most or 0), call.cap or 0)
        return reply, Estimate(call, prompt, most, expected, call.cap, cost, cost_most, told is not None)

    def seconds(self, each: Iterable[Estimate]) -> float | None:
        """How long the calls would take one after the other; None where a model was never asked before."""
        told = [self._past.seconds(one.call.lm.name, one.call.stage) for one in each]
        return None if None in told or not told else sum(filter(None, told))


class _Reply(NamedTuple):
    """A reply that later prompts may hold: tokens of the rehearsed one, of the expected one, and at most."""

    here: float
    expected: float
    most: int | None

    @property
    def longer(self) -> float:
        return self.expected - self.here

    @property
    def longer_at_most(self) -> float:
        return (self.most or 0) - self.here


def _words(lm: ConnectedLM) -> str:
    price = lm.terms.price
    if price is None:
        return unknown_price(lm.name, lm.terms.prices)
    return f"${price.input:g} in and ${price.output:g} out a million tokens"

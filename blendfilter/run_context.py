"""What a long piece of work needs, opened in one place: models, journal, rate limit, retry budget, budget account.

The models are the run's own, and those set on a method or its predictors: the calls of all of them are journaled,
counted and limited. `evaluate`, `trim`, `compile_program` and `rescore` open one; nothing else opens these.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import dspy

from blendfilter.errors import BadArgument
from blendfilter.journal import Journal
from blendfilter.lm.attempts import FREE_RETRIES, Gate, RetryBudget, Traffic
from blendfilter.lm.batches import Batches
from blendfilter.lm.budget import Budget, BudgetAccount, check_priced, purse_for
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.lm.prices import Price

AnyLM: TypeAlias = dspy.BaseLM | str
"""A model, or its name."""
CONCURRENCY = 16
"""Model calls in flight, by default."""
RETRIES_PER_PLACE = 4
"""Further attempts at the start for each call in flight, beside `FREE_RETRIES`."""


class RunContext:
    """The models of a run, and while it is open the journal and the limits that all their calls share.

    Making one connects the models and checks the limits; it touches no file and calls no model.

    Args:
        lm: a model, or its name; DSPy's configured one by default, else the offline reader.
        module: a method, filter or judge whose own language models belong to the run, too.
        others: further models of the run (a teacher).
        concurrency: model calls in flight, of all models together.
        budget: what the run may take in all its sessions.
        max_retries: further attempts that this session's calls may make together; by default a hundred, four for each
            call in flight, and one for each call that succeeds.
        replay: answer from the journal alone, where no price and no limit counts.

    Attributes:
        model: the connected `lm`, outside the run.
        module: `module`, or a copy whose own models are connected; once the run is open they are journaled.
        others: the connected `others`.
        gate: the rate limit of the run.

    Raises:
        BadArgument: a limit of dollars over a model without a price, a bad number.
    """

    def __init__(
        self,
        lm: AnyLM | None = None,
        module: dspy.Module | None = None,
        *,
        others: Sequence[AnyLM] = (),
        concurrency: int = CONCURRENCY,
        budget: Budget | None = None,
        max_retries: int | None = None,
        replay: bool = False,
    ) -> None:
        if budget is not None and not isinstance(budget, Budget):
            raise BadArgument(
                f"budget is {budget!r:.40}: say what it limits, bf.Budget(calls=…, tokens=…, dollars=…)"
            )
        self.model = connect(lm if lm is not None else dspy.settings.lm or "offline")
        self.others = [connect(other) for other in others]
        self.module = None if module is None else with_lms_connected(module)
        self.budget, self.replay = budget, replay
        own = connected_lms(self.module).values() if self.module is not None else ()
        self.prices = {} if replay else prices_by_name((self.model, *self.others, *own))
        self.gate = Gate(concurrency)
        self._retries = RetryBudget(
            max_retries, free=FREE_RETRIES + RETRIES_PER_PLACE * concurrency
        )
        self._open: tuple[Journal, Traffic] | None = None
        if not replay:
            check_priced(budget, self.prices)

    @contextmanager
    def opened(self, journal: Journal, batches: Batches | None = None) -> Iterator[RunContext]:
        """Everything that is called until the block ends is kept in `journal` and held to the limits.

        `batches`: what gathers the calls, in place of the rate limit.

        Raises:
            BadArgument, BadData: what the journal says was spent cannot be counted.
        """
        purse = None if self.replay else purse_for(journal, self.budget, self.prices)
        try:
            self._open = journal, Traffic(self.gate, purse, self._retries, batches)
            for found in lms_of(self.module) if self.module is not None else ():
                found.put(self.journaled(found.lm))
            yield self
        finally:
            self._open = None
            if purse is not None:
                purse.close()

    @property
    def journal(self) -> Journal:
        """The journal of the open run."""
        return self._opened()[0]

    @property
    def purse(self) -> BudgetAccount | None:
        """The budget account of the open run; None where no limit was ever set."""
        return self._opened()[1].purse

    @property
    def lm(self) -> ConnectedLM:
        """`model`, journaled and limited."""
        return self.journaled(self.model)

    def journaled(self, lm: AnyLM) -> ConnectedLM:
        """`lm`, with its calls in the open run's journal and under its limits."""
        return connect(lm).with_journal(*self._opened())

    def _opened(self) -> tuple[Journal, Traffic]:
        if self._open is None:
            raise RuntimeError("this run is not open: `with context.opened(journal):`")
        return self._open


def check_module(given: object, what: str = "method") -> None:
    """Raise `BadArgument` for what is no `dspy.Module`: a class of one, a function, a name."""
    if isinstance(given, type):
        raise BadArgument(
            f"the {what} is the class {given.__name__}: give one of it, {given.__name__}(…)"
        )
    if not isinstance(given, dspy.Module):
        kind = "a function" if inspect.isroutine(given) else repr(given)[:60]
        raise BadArgument(
            f"the {what} is no dspy.Module but {kind}: write a class of one, with forward(self, question)"
        )


def prices_by_name(models: Iterable[ConnectedLM]) -> dict[str, Price | None]:
    """What the models cost, by their names; of two that share one the dearer counts, and None where either is unknown.

    A limit that counts a little too much holds all the same.
    """
    prices: dict[str, Price | None] = {}
    for model in models:
        price = model.terms.price
        other = prices.get(model.name, price)
        if price is not None and other is not None and price != other:
            price = Price(max(price.input, other.input), max(price.output, other.output))
        prices[model.name] = None if other is None else price
    return prices


class ModuleLM(NamedTuple):
    """A model and its place: ``self.big`` of a method is named `big`, a predictor's own by the predictor."""

    name: str
    holder: Any
    attribute: str
    lm: dspy.BaseLM

    def put(self, lm: dspy.BaseLM) -> None:
        """Set `lm` in its place."""
        setattr(self.holder, self.attribute, lm)


def lms_of(method: dspy.Module) -> list[ModuleLM]:
    """All of them, in the order of the method's parts."""
    found = []
    for path, module in method.named_sub_modules():
        for attribute, lm in vars(module).items():
            if isinstance(lm, dspy.BaseLM):
                parts = path.split(".")[1:]  # the first is "self"
                name = (
                    ".".join(parts if isinstance(module, dspy.Predict) else [*parts, attribute])
                    or attribute
                )
                found.append(ModuleLM(name, module, attribute, lm))
    return found


def with_lms_connected(method: dspy.Module) -> dspy.Module:
    """`method`, or a copy whose models are connected, where it has some."""
    if not lms_of(method):
        return method
    copied: dspy.Module = method.deepcopy()
    for found in lms_of(copied):
        found.put(connect(found.lm))
    return copied


def connected_lms(method: dspy.Module) -> dict[str, ConnectedLM]:
    """Its models that are connected, by name."""
    return {
        found.name: found.lm for found in lms_of(method) if isinstance(found.lm, ConnectedLM)
    }

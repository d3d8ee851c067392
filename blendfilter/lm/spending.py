"""What attempts at a model cost: a meter that reserves each at its bound, and the reading of what a run has spent.

In: a request. Out: a reservation of one call, of the tokens that prompt and reply have at the most, and of their price;
then what the attempt took. Where a response tells its usage, that is what it took, at our price or at what its server
says that it cost, whichever is more. An attempt that may have been
answered without our hearing of it (a dropped connection, a body that cannot be read, a timeout, a 5xx, a cancelled
call) took all that was reserved; its record says so as ``tokens_lost``. Once a later attempt at the same call is
answered, its prompt is known to have had as many tokens as that one's, and the rest of its bound is given back; its
reply stays at the cap. A refusal (429 and other 4xx) took a call and no tokens; where no connection came about, nothing
was taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from dspy import lm15

from blendfilter.errors import BadArgument, BlendFilterError
from blendfilter.journal import Journal
from blendfilter.lm import faults
from blendfilter.lm.budget import MARK, NOTHING, Amount, Budget, Purse
from blendfilter.lm.metered import Engine, Tally, tally
from blendfilter.lm.prices import stated
from blendfilter.lm.tokens import at_least, at_most

TIMED_OUT = 408
"""The one 4xx after which the call may have been made all the same."""


class Priced(Protocol):
    """What tokens of a model cost."""

    def of(self, tokens_in: int, tokens_out: int, cached: int = 0) -> float:
        """Dollars."""


@dataclass(frozen=True, slots=True)
class Bound:
    """What one attempt takes at the most: tokens of the prompt, of the reply (None: unknown), and all of it.

    `learned`, `ran_on` and `dearer` are the parts of the prompt, the reply and the price that were learned from earlier
    calls, which took more than their bound. `unsent` is what the engine left out of the request (None: nobody can
    tell): where it is the same, two attempts at one call have the same prompt. `least` is what the prompt's text takes.
    """

    prompt: int
    reply: int | None
    whole: Amount
    learned: int = 0
    ran_on: int = 0
    dearer: float = 0.0
    unsent: frozenset[str] | None = frozenset()
    least: int = 0


class Spending:
    """A meter: the attempts at one model, paid from a run's purse.

    Args:
        engine: the model's. Where it has a ``reply_cap(request)``, that says how many tokens a reply can have (a model
            that thinks has more than were asked for); else the request's ``max_tokens`` does.
        purse: what the run has; None: no limit, only what is lost is counted.
        price: what the model's tokens cost; None: unknown.
    """

    def __init__(self, engine: Engine, purse: Purse | None = None, price: Priced | None = None) -> None:
        self._cap: Callable[[lm15.Request], int | None] = getattr(engine, "reply_cap", _asked_for)
        self._engine, self._purse, self._price = engine, purse, price
        self._learned = self._ran_on = 0
        self._dearer = 0.0

    async def before(self, request: lm15.Request) -> Bound:
        """Wait until the attempt fits. Raises: BudgetSpent; BadArgument where it has no bound and needs one."""
        bound = self._bound(request)
        if self._purse is not None:
            self._check(bound, self._purse.budget, request.model)
            await self._purse.reserve(bound.whole)
        # Now and not before: while this one waited, another call may have learned what the server refuses.
        return replace(bound, unsent=getattr(self._engine, "unsent", bound.unsent))

    def after(self, bound: Bound, response: lm15.Response | None, error: BaseException | None) -> None:
        """Settle; what is lost is noted in the call's own account."""
        account = tally()
        if response is not None:
            took = self._told(bound, response) - self._regained(account, bound, response)
        elif error is not None and _unreached(error):
            took = NOTHING
            account.attempts -= 1
        elif error is not None and _refused(error):
            took = Amount(calls=1)
        else:
            took = bound.whole
            account.lost += took.tokens
            account.unheard.append(bound)
        if self._purse is not None:
            self._purse.settle(bound.whole, took)

    def _bound(self, request: lm15.Request) -> Bound:
        prompt, cap = at_most(request) + self._learned, self._cap(request)
        least = at_least(part for message in request.messages for part in message.parts)
        reply = None if cap is None else cap + self._ran_on
        whole = Amount(1, prompt + (reply or 0), self._dollars(prompt, reply or 0) + self._dearer)
        return Bound(prompt, reply, whole, self._learned, self._ran_on, self._dearer, least=least)

    def _dollars(self, tokens_in: int, tokens_out: int, cached: int = 0) -> float:
        return self._price.of(tokens_in, tokens_out, cached) if self._price else 0.0

    def _check(self, bound: Bound, budget: Budget, name: str) -> None:
        if budget.dollars is not None and self._price is None:
            raise unpriced(name)
        if bound.reply is None and (budget.tokens is not None or budget.dollars is not None):
            raise BadArgument(
                "a call without max_tokens has no bound, so no limit of tokens or dollars can hold it: "
                "give connect(…, max_tokens=…), or limit the calls"
            )

    def _told(self, bound: Bound, response: lm15.Response) -> Amount:
        """What the response says it took; what it does not say counts as its bound, and as lost."""
        usage = response.usage
        lost_in = 0 if usage.input_tokens is not None else bound.prompt
        lost_out = 0 if usage.output_tokens is not None else bound.reply or 0
        tally().lost += lost_in + lost_out
        tokens_in, tokens_out = lost_in or usage.input_tokens or 0, lost_out or usage.output_tokens or 0
        # A count too small for its text is in the ledger as stated, and voids no limit: it is charged at its bound.
        if 0 < tokens_in < bound.least:
            tokens_in = bound.prompt
        if 0 < tokens_out < (least := at_least(response.message.parts)):
            tokens_out = max(least, bound.reply or 0)
        # The server's figure counts where it is the larger: one that states less than our price voids no limit.
        dollars = self._dollars(tokens_in, tokens_out, usage.cache_read_tokens or 0)
        dollars = max(dollars, stated((response.provider_data or {}).get("cost")) or 0.0)
        # A chat template that adds more than it was allowed, a reply beyond its cap, a dearer price: from now on it is.
        self._learned = max(self._learned, bound.learned + tokens_in - bound.prompt)
        if bound.reply is not None:
            self._ran_on = max(self._ran_on, bound.ran_on + tokens_out - bound.reply)
        self._dearer = max(self._dearer, bound.dearer + dollars - bound.whole.dollars)
        return Amount(1, tokens_in + tokens_out, dollars)

    def _regained(self, account: Tally, bound: Bound, response: lm15.Response) -> Amount:
        """What was set aside beyond the prompt that this reply tells, for the lost attempts at the same call."""
        tokens_in, regained = response.usage.input_tokens, NOTHING
        if tokens_in is None or bound.unsent is None:
            return NOTHING
        for lost in account.unheard:
            if lost.unsent == bound.unsent and tokens_in < lost.prompt:
                dollars = self._dollars(tokens_in, lost.reply or 0) + lost.dearer
                regained += Amount(0, lost.prompt - tokens_in, lost.whole.dollars - dollars)
        account.unheard.clear()
        account.lost -= regained.tokens
        return regained


def purse_for(journal: Journal, budget: Budget | None, prices: Mapping[str, Priced | None]) -> Purse | None:
    """The purse of a run's next sitting; None where no limit was ever asked for.

    A run that once had a budget keeps its account in every sitting, or a later limit would count too little.
    """
    if budget is None and journal.read(MARK) is None:
        return None
    budget = budget or Budget()
    return Purse(budget, journal, spent_in(journal, prices, budget))


def check_priced(budget: Budget | None, prices: Mapping[str, Priced | None]) -> None:
    """Raise `BadArgument` for a limit of dollars over a model without a price, before anything is begun."""
    if budget is not None and budget.dollars is not None:
        for name, price in prices.items():
            if price is None:
                raise unpriced(name)


def spent_in(journal: Journal, prices: Mapping[str, Priced | None], budget: Budget) -> Amount:
    """What a run has spent so far, by its journal's records and its mark.

    Calls copied from another run cost this one nothing. `prices`, by a model's name: a call counts at the larger of
    what was recorded and what they make of it.

    Raises:
        BadArgument: a limit of dollars, and calls whose price nobody knows. BadData: a damaged record.
    """
    for _, damage in journal.damages():
        raise damage
    summed = NOTHING
    for record in journal.records("call"):
        if not record.get("reused"):
            if not _readable(record):
                raise journal.damaged(record["key"])
            summed += _of(record, prices, budget)
    return summed.most(marked(journal))


def marked(journal: Journal) -> Amount:
    """A run's account as its last sitting left it; one that was killed left it a little ahead."""
    record = journal.read(MARK)
    if record is None:
        return NOTHING
    calls, tokens, dollars = (record.get(name) for name in ("calls", "tokens", "dollars"))
    if not (isinstance(calls, int) and isinstance(tokens, int) and isinstance(dollars, int | float)):
        raise journal.damaged(MARK)
    return Amount(calls, tokens, dollars)


def _readable(record: Mapping[str, Any]) -> bool:
    counts = [record.get(name) for name in ("tokens_in", "tokens_out", "tokens_cached", "tokens_lost", "attempts")]
    cost = record.get("cost")
    known = isinstance(record.get("model"), str) and (cost is None or isinstance(cost, int | float))
    return known and all(count is None or isinstance(count, int) for count in counts)


def _of(record: Mapping[str, Any], prices: Mapping[str, Priced | None], budget: Budget) -> Amount:
    tokens_in, tokens_out, lost = (record.get(name) or 0 for name in ("tokens_in", "tokens_out", "tokens_lost"))
    attempts, cost = record.get("attempts") or 1, stated(record.get("cost"))
    price = prices.get(record["model"])
    if price is not None:
        paid = price.of(tokens_in, tokens_out, record.get("tokens_cached") or 0)
        cost = max(paid, cost or 0.0) + max(price.of(lost, 0), price.of(0, lost))
    elif budget.dollars is not None and (cost is None or lost) and tokens_in + tokens_out + lost:
        raise unpriced(record["model"])
    return Amount(attempts, tokens_in + tokens_out + lost, cost or 0.0)


def unpriced(name: str) -> BadArgument:
    """A limit of dollars on a model without a price."""
    return BadArgument(
        f"no price is known for the model '{name}', so no limit of dollars can hold it: give its price "
        "(--prices FILE), or limit the tokens"
    )


def _asked_for(request: lm15.Request) -> int | None:
    cap: int | None = request.config.max_tokens
    return cap


def _refused(error: BaseException) -> bool:
    """Whether the model certainly was not asked."""
    if isinstance(error, BlendFilterError):
        return True  # of this end: it never went out
    if not isinstance(error, lm15.LM15Error):
        return False
    status: int | None = getattr(error, "status", None)
    if status is not None:
        return 400 <= status < 500 and status != TIMED_OUT
    return isinstance(error, _NOT_SENT)


def _unreached(error: BaseException) -> bool:
    """Whether no server was there to be asked."""
    return getattr(error, "provider_code", None) == faults.NO_CONNECTION


_NOT_SENT = (
    lm15.InvalidRequestError,
    lm15.AuthError,
    lm15.BillingError,
    lm15.RateLimitError,
    lm15.UnsupportedFeatureError,
)

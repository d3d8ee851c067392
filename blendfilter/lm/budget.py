"""The budget: limits of calls, tokens and dollars that a run never passes, over all its sittings.

An attempt is reserved at its bound and settled at what it took. What does not fit now waits, oldest question first, as
long as attempts in flight may give something back; what does not fit when none is in flight ends the run.

What an attempt took is its response's usage, at our price or at its server's stated cost, whichever is more. An attempt
that may have been answered without our hearing of it (a dropped connection, a body that cannot be read, a timeout, a
5xx, a cancelled call) took all that was reserved; its record says so as ``tokens_lost``. Once a later attempt at the
same call is answered, its prompt is known to have had as many tokens as that one's, and the rest of its bound is given
back; its reply stays at the cap. A refusal (429 and other 4xx) took a call and no tokens; where no connection came
about, nothing was taken.

What was spent is read from the run's journal. Attempts in flight when a process is killed stand in no record, so the
account keeps a mark there, raised in steps ahead of what is reserved and set to the true figure at a clean end: a kill
may waste a step, and never hides a call.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from blendfilter.aio import WaitingQueue
from blendfilter.context import asker, setting
from blendfilter.dspy_surface import lm15
from blendfilter.errors import BadArgument, BlendFilterError, BudgetSpent, check_count
from blendfilter.journal import Journal, digest
from blendfilter.lm import faults
from blendfilter.lm.prices import MOST, Price, rated, stated
from blendfilter.lm.tokens import at_least, at_most

MARK = digest("budget")
"""The one key of the marks: a later one replaces those before it."""
STEP = 4
"""Attempts by which a mark runs ahead."""


@dataclass
class Tally:
    """One call's account over all its attempts.

    Attributes:
        key: the call's, in the journal.
        waited: seconds spent before the meters, and for a turn at a model in this process.
        went_out: when the first attempt went out, or its turn came (the clock's seconds).
        attempts: how many went out, those that an engine made by itself included.
        lost: tokens that attempts without a reply may have cost, as far as a budget reserved them, and those of a reply
            that was asked for once more.
        first: that reply; None: there is none.
        began: when the first attempt was asked for, by its engine's clock.
        unheard: the bounds of those attempts, until a reply states how long their prompt was.
        failed_at: addresses where an attempt failed: where there are several, the next goes elsewhere first.
        again: what an engine awaits that asks again by itself, with the fault of its last attempt.
    """

    key: str = ""
    waited: float = 0.0
    went_out: float = 0.0
    attempts: int = 0
    lost: int = 0
    first: lm15.Response | None = None
    began: float | None = None
    unheard: list[Any] = field(default_factory=list)
    failed_at: set[str] = field(default_factory=set)
    again: Callable[[BaseException], Awaitable[None]] | None = None

    def waits(self, seconds: float) -> None:
        """Count a wait behind the meters, for a turn at a model in this process."""
        self.waited += seconds
        if self.attempts <= 1:  # it is on its way when its turn comes
            self.went_out += seconds


@contextmanager
def tallied(key: str = "") -> Iterator[Tally]:
    """Inside the block, attempts at the call of that `key` are added to the tally that it gives."""
    tally = Tally(key)
    with setting(tally=tally):
        yield tally


def tally() -> Tally:
    """The account of the call at hand; outside of `tallied`, one that is not kept."""
    return asker().tally or Tally()


@dataclass(frozen=True)
class Budget:
    """What a run may take in all its sittings; None: no limit.

    Attributes:
        calls: attempts at a model, those that failed included.
        tokens: of prompts and replies.
        dollars: at the models' prices.
    """

    calls: int | None = None
    tokens: int | None = None
    dollars: float | None = None

    def __post_init__(self) -> None:
        for name in ("calls", "tokens"):
            if (value := getattr(self, name)) is not None:
                object.__setattr__(
                    self, name, check_count(f"the budget of {name} ({name}=)", value)
                )
        if self.dollars is not None and not 0 < self.dollars < math.inf:
            raise BadArgument(
                f"a budget of {self.dollars!r} dollars (dollars=): give a number above 0"
            )

    def given(self) -> dict[str, float]:
        """The limits that there are, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Amount:
    """So much of everything that is limited."""

    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0

    def __iter__(self) -> Iterator[Any]:
        return iter((self.calls, self.tokens, self.dollars))

    def __add__(self, other: Amount) -> Amount:
        return Amount(*map(operator.add, self, other))

    def __sub__(self, other: Amount) -> Amount:
        return Amount(*map(operator.sub, self, other))

    def times(self, factor: int) -> Amount:
        """This, so many times."""
        return Amount(*(part * factor for part in self))

    def most(self, other: Amount) -> Amount:
        """The larger of the two in everything."""
        return Amount(*map(max, self, other))

    def words(self) -> str:
        """As one reads it; dollars where there are some.

        >>> Amount(1200, 34567, 0.0213).words()
        '1,200 calls, 34,567 tokens, $0.0213'
        """
        dollars = f", ${self.dollars:.4f}" if self.dollars else ""
        return f"{self.calls:,} call{'s' * (self.calls != 1)}, {self.tokens:,} tokens{dollars}"

    def within(self, budget: Budget) -> bool:
        """Whether no limit is passed."""
        return all(getattr(self, name) <= limit for name, limit in budget.given().items())


NOTHING = Amount()


@dataclass(eq=False)
class BudgetAccount:
    """What is left of a run's budget, drawn on by all its models, from whichever loops.

    Args:
        journal: where the marks are kept; None: nowhere (a replay, which calls no model).
        spent: what earlier sittings took.
    """

    budget: Budget
    journal: Journal | None = None
    spent: Amount = NOTHING
    reserved: Amount = field(default=NOTHING, init=False)

    def __post_init__(self) -> None:
        self._mark = self.spent
        self._stopped = ""
        self._lock = threading.Lock()
        self._queue = WaitingQueue(
            self._take, lambda taken: self.settle(taken, NOTHING), self._lock
        )

    async def reserve(self, wanted: Amount) -> None:
        """Set `wanted` aside, waiting for what may come back."""
        await self._queue.turn(wanted)

    def settle(self, reserved: Amount, spent: Amount) -> None:
        """Charge `spent` in place of what was set aside; those who wait are served, oldest question first."""
        with self._lock:
            self.reserved -= reserved
            self.spent += spent
        self._queue.serve()

    def limit_to(self, budget: Budget) -> None:
        """Other limits from now on, for those who wait too; what was spent and set aside stays so."""
        with self._lock:
            self.budget = budget
        self._queue.serve()

    @property
    def touched(self) -> bool:
        """Whether anything was taken out."""
        return self.spent + self.reserved != NOTHING

    def check(self) -> None:
        """Raise `BudgetSpent` where a call was refused, whether or not that error was passed on."""
        if self._stopped:
            raise BudgetSpent(self._stopped)

    def close(self) -> None:
        """The sitting is over: the mark becomes what was spent; what is still out counts as spent."""
        with self._lock:
            self._stopped = self._stopped or "the sitting is over, and makes no more calls"
            if (true := self.spent + self.reserved) != self._mark:
                self._write(true)

    def _take(self, wanted: Amount) -> Amount | None:
        self.check()
        needed = self.spent + self.reserved + wanted
        if needed.within(self.budget):
            if needed.most(self._mark) != self._mark:
                ahead = needed + wanted.times(STEP)
                limited = {
                    name: min(getattr(ahead, name), limit)
                    for name, limit in self.budget.given().items()
                }
                self._write(replace(ahead, **limited).most(self._mark))
            self.reserved += wanted
            return wanted
        if self.reserved.calls == 0:
            # or a smaller call would slip through while the run is being ended
            self._stopped = self._why(wanted)
            raise BudgetSpent(self._stopped)
        return None

    def _write(self, mark: Amount) -> None:
        if self.journal is not None:
            self.journal.append({"key": MARK, "kind": "budget", **asdict(mark)})
        self._mark = mark

    def _why(self, wanted: Amount) -> str:
        reasons = []
        for name, limit in self.budget.given().items():
            spent, more = getattr(self.spent, name), getattr(wanted, name)
            if spent + more <= limit:
                continue
            if name == "dollars":
                reasons.append(
                    f"${spent:.4f} of ${limit:g} are gone, and the next call may cost ${more:.4f}"
                )
            else:
                next_one = f", and the next call may take {more:,}" if name == "tokens" else ""
                reasons.append(f"{spent:,} of {limit:,} {name} are gone{next_one}")
        return f"the budget is spent: {' and '.join(reasons)}"


class Bound(NamedTuple):
    """What one attempt takes at the most: tokens of the prompt, of the reply (None: unknown), and all of it.

    `excess` is the part of `whole` that was learned from earlier calls, which took more than their bound.
    """

    prompt: int
    reply: int | None
    whole: Amount
    excess: Amount
    least: int  # tokens that the prompt's text takes


class BudgetMeter:
    """A meter: the attempts at one model, paid from a run's budget account.

    Args:
        engine: the model's.
        purse: what the run has; None: no limit, only what is lost is counted.
        price: what the model's tokens cost; None: unknown.
    """

    def __init__(
        self, engine: Any, purse: BudgetAccount | None = None, price: Price | None = None
    ) -> None:
        self._engine, self._purse = engine, purse
        self._priced = price is not None
        self._price = price or Price(0, 0)
        self._excess = NOTHING

    async def before(self, request: lm15.Request) -> Bound:
        """Wait until the attempt fits. Raises: BudgetSpent; BadArgument where it has no bound and needs one."""
        prompt, reply = at_most(request), reply_cap(self._engine, request)
        whole = self._of(prompt, reply) + self._excess
        least = at_least(part for message in request.messages for part in message.parts)
        if self._purse is not None:
            limits = self._purse.budget
            if limits.dollars is not None and not self._priced:
                raise unpriced(request.model)
            if reply is None and (limits.tokens is not None or limits.dollars is not None):
                raise BadArgument(
                    "a call without max_tokens has no bound, so no limit of tokens or dollars can hold it: "
                    "give connect(…, max_tokens=…), or limit the calls"
                )
            await self._purse.reserve(whole)
        return Bound(prompt, reply, whole, self._excess, least)

    def after(
        self, bound: Bound, response: lm15.Response | None, error: BaseException | None
    ) -> None:
        """Settle; what is lost is noted in the call's own account."""
        account = tally()
        if response is not None:
            took = self._taken(bound, response) - self._regained(account, bound, response)
        elif faults.is_unreached(error):
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

    def _of(self, prompt: int, reply: int | None) -> Amount:
        """An attempt of so many tokens, at our price."""
        return Amount(1, prompt + (reply or 0), self._price.of(prompt, reply or 0))

    def _taken(self, bound: Bound, response: lm15.Response) -> Amount:
        """What the response states; what it does not state counts as its bound, and as lost."""
        usage = response.usage
        lost_in = 0 if usage.input_tokens is not None else bound.prompt
        lost_out = 0 if usage.output_tokens is not None else bound.reply or 0
        tally().lost += lost_in + lost_out
        tokens_in = lost_in or usage.input_tokens or 0
        tokens_out = lost_out or usage.output_tokens or 0
        # A count too small for its text is in the ledger as stated, and voids no limit: it is charged at its bound.
        if 0 < tokens_in < bound.least:
            tokens_in = bound.prompt
        if 0 < tokens_out < (least := at_least(response.message.parts)):
            tokens_out = max(least, bound.reply or 0)
        # The server's figure counts where it is the larger: one that states less than our price voids no limit.
        price = rated(self._price, response.provider_data or {}) or self._price
        dollars = price.of(tokens_in, tokens_out, usage.cache_read_tokens or 0)
        dollars = max(dollars, stated((response.provider_data or {}).get("cost")) or 0.0)
        took = Amount(1, tokens_in + tokens_out, dollars)
        # A chat template that adds more than it was allowed, a reply beyond its cap, a dearer price: from now on it is.
        self._excess = self._excess.most(took - bound.whole + bound.excess)
        return took

    def _regained(self, account: Tally, bound: Bound, response: lm15.Response) -> Amount:
        """What was set aside for lost attempts at the same call beyond the prompt that this reply states."""
        tokens_in, regained = response.usage.input_tokens, NOTHING
        if tokens_in is None:
            return NOTHING
        for lost in account.unheard:
            left = self._of(tokens_in, lost.reply) + lost.excess
            regained += (lost.whole - left).most(NOTHING)
        account.unheard.clear()
        account.lost -= regained.tokens
        return regained


def reply_cap(engine: Any, request: lm15.Request) -> int | None:
    """Tokens that a reply can have: an engine whose model thinks may send another cap than the request's."""
    of_engine = getattr(engine, "reply_cap", None)
    cap: int | None = request.config.max_tokens if of_engine is None else of_engine(request)
    return cap


def purse_for(
    journal: Journal, budget: Budget | None, prices: Mapping[str, Price | None]
) -> BudgetAccount | None:
    """The account of a run's next sitting; None where the run has never had a limit.

    A run that once had a budget keeps its account, or a later limit would count too little.
    """
    if budget is None and journal.read(MARK) is None:
        return None
    budget = budget or Budget()
    return BudgetAccount(budget, journal, spent_in(journal, prices, budget))


def check_priced(budget: Budget | None, prices: Mapping[str, Price | None]) -> None:
    """Raise `BadArgument` for a limit of dollars over a model without a price, before anything is begun."""
    if budget is not None and budget.dollars is not None:
        for name, price in prices.items():
            if price is None:
                raise unpriced(name)


def spent_in(journal: Journal, prices: Mapping[str, Price | None], budget: Budget) -> Amount:
    """What a run has spent so far, by its journal's records and its mark.

    Calls copied from another run cost this one nothing. `prices`, by a model's name: a call counts at the larger of
    its recorded cost and what they make of it.

    Raises:
        BadArgument: a limit of dollars, and calls whose price is unknown. BadData: a damaged record.
    """
    for _, damage in journal.damages():
        raise damage
    summed = NOTHING
    for record in journal.records("call"):
        if record.get("reused"):
            continue
        tokens_in, tokens_out, lost = (
            record.get(name) or 0 for name in ("tokens_in", "tokens_out", "tokens_lost")
        )
        first = record.get("first") or {}
        first_in, first_out = first.get("tokens_in") or 0, first.get("tokens_out") or 0
        unheard = lost - first_in - first_out  # what the first reply took is in the call's cost
        cost = stated(record.get("cost"))
        price = rated(prices.get(record["model"]), record)
        if price is not None:
            paid = price.of(tokens_in, tokens_out, record.get("tokens_cached") or 0)
            paid += price.of(first_in, first_out, first.get("tokens_cached") or 0)
            lost_dollars = max(price.of(unheard, 0), price.of(0, unheard))
            cost = max(paid, stated(cost, paid + lost_dollars) or 0.0) + lost_dollars
        elif (
            budget.dollars is not None
            and (cost is None or unheard)
            and tokens_in + tokens_out + lost
        ):
            raise unpriced(record["model"])
        summed += Amount(
            record.get("attempts") or 1, tokens_in + tokens_out + lost, cost or 0.0
        )
    return summed.most(marked(journal))


def marked(journal: Journal) -> Amount:
    """A run's account as its last sitting left it; one that was killed left it a little ahead.

    Earlier versions believed a server that stated absurd costs: such dollars count as none, and the records' do.
    """
    record = journal.read(MARK, "budget")
    if record is None:
        return NOTHING
    mark = Amount(*(record.get(n, 0) for n in ("calls", "tokens", "dollars")))
    return mark if mark.dollars <= mark.calls * MOST else replace(mark, dollars=0.0)


def unpriced(name: str) -> BadArgument:
    return BadArgument(
        f"no price is known for the model '{name}', so no limit of dollars can hold it: give its price "
        "(prices=FILE), or limit the tokens"
    )


def _refused(error: BaseException) -> bool:
    """Whether the model certainly was not called."""
    if isinstance(error, BlendFilterError):
        return True  # of this end: it never went out
    if not isinstance(error, lm15.LM15Error):
        return False
    status: int | None = getattr(error, "status", None)
    if status is None:
        return isinstance(error, _NOT_SENT)
    return 400 <= status < 500 and status != 408  # after a 408 the call may have been made


_NOT_SENT = (
    lm15.InvalidRequestError,
    lm15.AuthError,
    lm15.BillingError,
    lm15.RateLimitError,
    lm15.UnsupportedFeatureError,
)

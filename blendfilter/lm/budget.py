"""The budget: limits of calls, tokens and dollars that a run never passes, over all its sittings.

In: the limits, and what an attempt may take at the most. Out: leave to make it, or `BudgetSpent`. An attempt is
reserved at its bound and settled at what it really took. What does not fit now waits, oldest question first, as long as
attempts in flight may give something back; what does not fit when none is in flight ends the run.

What was spent is read from the run's journal. Attempts in flight when a process is killed stand in no record, so the
account keeps a mark there, raised in steps ahead of what is reserved and set to the true figure at a clean end: a kill
may waste a step, and never hides a call.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import threading
from dataclasses import asdict, dataclass

from blendfilter.context import ORDER
from blendfilter.errors import BadArgument, BlendFilterError, BudgetSpent
from blendfilter.journal import Journal, digest

MARK = digest("budget")
"""The one key of the marks: a later one replaces those before it."""
STEP = 4
"""Attempts by which a mark runs ahead."""


@dataclass(frozen=True)
class Budget:
    """What a run may take in all its sittings; None: no limit.

    Attributes:
        calls: attempts at a model, those that failed included.
        tokens: of prompts and replies.
        dollars: at the models' prices.

    Raises:
        BadArgument: a limit of 0 or below, or one that is no number.
    """

    calls: int | None = None
    tokens: int | None = None
    dollars: float | None = None

    def __post_init__(self) -> None:
        for name in ("calls", "tokens"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise BadArgument(f"a budget of {value!r} {name} (--max-{name}): give a whole number of 1 or more")
        value = self.dollars
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not (number and value > 0):
            raise BadArgument(f"a budget of {value!r} dollars (--max-cost): give a number above 0")

    def given(self) -> dict[str, float]:
        """The limits that there are, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Amount:
    """So much of everything that is limited."""

    calls: int = 0
    tokens: int = 0
    dollars: float = 0.0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.calls + other.calls, self.tokens + other.tokens, self.dollars + other.dollars)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.calls - other.calls, self.tokens - other.tokens, self.dollars - other.dollars)

    def times(self, factor: int) -> Amount:
        """This, so many times."""
        return Amount(self.calls * factor, self.tokens * factor, self.dollars * factor)

    def most(self, other: Amount) -> Amount:
        """The larger of the two in everything."""
        return Amount(
            max(self.calls, other.calls), max(self.tokens, other.tokens), max(self.dollars, other.dollars)
        )  # fmt: skip

    def capped(self, budget: Budget) -> Amount:
        """No more than the limits."""
        return Amount(**{
            name: value if (limit := getattr(budget, name)) is None else min(value, limit)
            for name, value in asdict(self).items()
        })  # fmt: skip

    def words(self) -> str:
        """As one reads it; dollars where there are some.

        >>> Amount(1200, 34567, 0.0213).words(), Amount(1).words()
        ('1,200 calls, 34,567 tokens, $0.0213', '1 call, 0 tokens')
        """
        dollars = f", ${self.dollars:.4f}" if self.dollars else ""
        return f"{self.calls:,} call{'s' * (self.calls != 1)}, {self.tokens:,} tokens{dollars}"

    def within(self, budget: Budget) -> bool:
        """Whether no limit is passed."""
        return (
            (budget.calls is None or self.calls <= budget.calls)
            and (budget.tokens is None or self.tokens <= budget.tokens)
            and (budget.dollars is None or self.dollars <= budget.dollars)
        )


NOTHING = Amount()


class Purse:
    """What is left of a run's budget, drawn on by all its models, from whichever loops.

    Args:
        budget: the limits.
        journal: where the marks are kept; None: nowhere (a replay, which asks no model).
        spent: what earlier sittings took.
    """

    def __init__(self, budget: Budget, journal: Journal | None = None, spent: Amount = NOTHING) -> None:
        self.budget, self.spent = budget, spent
        self.reserved = NOTHING
        self._journal = journal
        self._mark = spent
        self._stopped = ""
        self._waiting: list[tuple[int, int, Amount, asyncio.Future[None]]] = []
        self._ticket = itertools.count()
        self._lock = threading.Lock()

    async def reserve(self, wanted: Amount) -> None:
        """Set `wanted` aside, waiting for what may come back. Raises: BudgetSpent."""
        with self._lock:
            if not self._waiting and self._take(wanted):
                return
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (ORDER.get(), next(self._ticket), wanted, turn))
        try:
            await turn
        except asyncio.CancelledError:
            # It may have been set aside in the same instant: give it back.
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.settle(wanted, NOTHING)
            raise

    def settle(self, reserved: Amount, spent: Amount) -> None:
        """What was set aside has become `spent`; who waits is served, oldest question first."""
        with self._lock:
            self.reserved -= reserved
            self.spent += spent
            self._serve()

    @property
    def touched(self) -> bool:
        """Whether anything was taken out."""
        return self.spent + self.reserved != NOTHING

    def check(self) -> None:
        """Raise `BudgetSpent` where somebody was refused, whether or not he passed it on."""
        if self._stopped:
            raise BudgetSpent(self._stopped)

    def close(self) -> None:
        """The sitting is over: the mark becomes what was spent; what is still out counts as spent."""
        with self._lock:
            self._stopped = self._stopped or "the sitting is over, and makes no more calls"
            true = self.spent + self.reserved
            if true != self._mark:
                self._write(true)

    def _take(self, wanted: Amount) -> bool:
        self.check()
        needed = self.spent + self.reserved + wanted
        if needed.within(self.budget):
            if needed.most(self._mark) != self._mark:
                self._write((needed + wanted.times(STEP)).capped(self.budget).most(self._mark))
            self.reserved += wanted
            return True
        if self.reserved.calls == 0:
            self._stopped = self._why(wanted)  # or a smaller call would slip through while the run is being ended
            raise BudgetSpent(self._stopped)
        return False

    def _serve(self) -> None:
        while self._waiting:
            _, _, wanted, turn = self._waiting[0]
            error: Exception | None = None
            if not turn.done():
                try:
                    if not self._take(wanted):
                        return
                except BlendFilterError as raised:  # a spent budget, a full disk: told to whoever waits
                    error = raised
                self._send(turn, wanted, error)
            heapq.heappop(self._waiting)

    def _send(self, turn: asyncio.Future[None], wanted: Amount, error: Exception | None) -> None:
        try:
            turn.get_loop().call_soon_threadsafe(self._tell, turn, wanted, error)
        except RuntimeError:  # its loop is closed: nobody waits there any more
            self.reserved -= NOTHING if error else wanted

    def _tell(self, turn: asyncio.Future[None], wanted: Amount, error: Exception | None) -> None:
        if turn.done():  # cancelled while it was on its way
            if error is None:
                self.settle(wanted, NOTHING)
        elif error is None:
            turn.set_result(None)
        else:
            turn.set_exception(error)

    def _write(self, mark: Amount) -> None:
        if self._journal is not None:
            self._journal.append({"key": MARK, "kind": "budget", **asdict(mark)})
        self._mark = mark

    def _why(self, wanted: Amount) -> str:
        needed = self.spent + wanted
        passed = [name for name, limit in self.budget.given().items() if getattr(needed, name) > limit]
        small = any(getattr(wanted, name) > limit for name, limit in self.budget.given().items())
        what = "the budget is too small for one call: " if small else "the budget is spent: "
        return what + " and ".join(_in_words(name, self, wanted) for name in passed)


def _in_words(name: str, purse: Purse, wanted: Amount) -> str:
    limit, spent, more = (getattr(each, name) for each in (purse.budget, purse.spent, wanted))
    if name == "dollars":
        least = math.ceil(1e4 * (spent + more)) / 1e4
        told = f"${spent:.4f} of ${limit:g} are gone, and the next call may cost ${more:.4f}"
        return told + (f": give ${least:.4f} or more" if more > limit else "")
    takes = f", and the next call may take {more:,}" if name == "tokens" else ""
    takes += f": give {spent + more:,} or more" if more > limit else ""
    return f"{spent:,} of {limit:,} {name} are gone{takes}"

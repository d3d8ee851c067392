"""Under a limit, a question is begun only where the rest of the budget is likely to finish it.

In: what is gone of the limits, and what each finished question took. Out: whether one more may be begun. Questions that
advance side by side spend a small budget together, and none of them is answered. A limit that is far away holds nobody
back. Only when a question is begun depends on this, never its answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from blendfilter.evaluation.ledger import taken
from blendfilter.lm.budget import NOTHING, Amount, BudgetAccount

AT_FIRST = 4
"""Questions under work while nobody knows what one takes."""
EARLIER = 20
"""Questions of earlier sittings whose cost is read back."""


class Frugal:
    """How many questions a purse lets be under work.

    Args:
        purse: what is spent, and of which limits; None: no limit, every question may begin at once.
        read: a call's record by its key.
    """

    def __init__(self, purse: BudgetAccount | None, read: Callable[[str], Mapping[str, Any] | None]) -> None:
        self._purse, self._read = purse, read
        self._limited = purse is not None and bool(purse.budget.given())
        self._under_work = self._known = 0
        self._took = NOTHING

    def may_begin(self) -> bool:
        """Whether one more question is likely to be finished, with those that are under work."""
        if self._purse is None or not self._limited or not self._under_work:
            return True  # with none under work the budget itself says when it is spent
        if not self._known:
            return self._under_work < AT_FIRST
        # What is set aside counts for nothing here: it belongs to questions under work, which count in full.
        return (self._purse.spent + self._mean().times(self._under_work + 1)).within(self._purse.budget)

    def begun(self) -> None:
        """One more is under work."""
        self._under_work += 1

    def over(self) -> None:
        """One less is."""
        self._under_work -= 1

    def learn(self, lines: Iterable[bytes]) -> None:
        """From rows on file, in the lines of an earlier sitting."""
        if self._limited:
            for line in lines:
                self.answered(json.loads(line))

    def answered(self, row: Mapping[str, Any]) -> None:
        """Learn what this question took; one that cost nothing (another run's calls) tells nothing."""
        if not self._limited:
            return
        records = [self._read(key) for key in dict.fromkeys(key for _, key in row["calls"])]
        took = sum((taken(each) for each in records if each and not each.get("reused")), NOTHING)
        if took != NOTHING:
            self._known += 1
            self._took += took

    def _mean(self) -> Amount:
        calls, tokens = (math.ceil(each / self._known) for each in (self._took.calls, self._took.tokens))
        return Amount(calls, tokens, self._took.dollars / self._known)

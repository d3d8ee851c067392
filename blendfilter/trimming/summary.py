"""What a trim came to: questions, verdicts, calls and what they cost, separations, and what is to be done next.

In: what a sitting counted. Out: a `Trimming`, whose `text()` is what the command line prints.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from blendfilter.journal import Journal
from blendfilter.lm.prices import Prices, cost_of, price_in

MOST_SILENT = 0.05
"""The share of no verdicts in a sitting above which it is warned of, and the command ends with exit code 1."""
SHOWN = 5
"""Failed questions and dropped passages that are written out; the others are counted."""


class Spent(NamedTuple):
    """Calls of models in a journal, their tokens, and dollars: None where any call's price is unknown."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost: float | None = 0.0

    def since(self, earlier: Spent) -> Spent:
        """What was added to `earlier`."""
        cost = None if self.cost is None or earlier.cost is None else self.cost - earlier.cost
        if self.calls == earlier.calls:
            cost = 0.0
        return Spent(
            self.calls - earlier.calls, self.tokens_in - earlier.tokens_in, self.tokens_out - earlier.tokens_out, cost
        )

    def words(self) -> str:
        """As one reads it.

        >>> Spent(1200, 345_000, 1200, 0.021).words(), Spent(1, 30, 1, None).words()
        ('1,200 calls, 345,000 tokens in, 1,200 out, $0.0210', '1 call, 30 tokens in, 1 out, price unknown')
        """
        cost = ", price unknown" if self.cost is None else f", ${self.cost:.4f}" if self.cost else ""
        return f"{counted(self.calls, 'call')}, {self.tokens_in:,} tokens in, {self.tokens_out:,} out{cost}"


def spent_in(journal: Journal, prices: Prices | None = None) -> Spent:
    """What a journal's answered calls took; one that was asked again counts again."""
    spent = Spent()
    for record in journal.records("call"):
        if not record.get("error") and not record.get("reused"):
            cost = cost_of(record, price_in(record, prices) if prices is not None else None)
            if cost is None and not record.get("address"):
                cost = 0.0  # it answered in this process
            spent = Spent(
                spent.calls + 1,
                spent.tokens_in + (record.get("tokens_in") or 0),
                spent.tokens_out + (record.get("tokens_out") or 0),
                None if cost is None or spent.cost is None else spent.cost + cost,
            )
    return spent


class Failed(NamedTuple):
    """A question that stays open, and why."""

    question: str
    why: str


class Verdicts(NamedTuple):
    """How often a judge said what; `silent` is no verdict."""

    accepted: int = 0
    rejected: int = 0
    silent: int = 0

    def why_none(self) -> str:
        """Why they separate no pair.

        >>> Verdicts(6, 0, 0).why_none(), Verdicts(0, 0, 0).why_none()
        ('the judge rejected nothing', 'nothing was found to judge')
        """
        if not any(self):
            return "nothing was found to judge"
        if not self.accepted and not self.rejected:
            return "the judge gave no verdict"
        if not self.accepted or not self.rejected:
            return f"the judge {'rejected' if self.accepted else 'accepted'} nothing"
        return "no question has one passage accepted and another rejected"


NO_VERDICTS = Verdicts()


class WouldDrop(NamedTuple):
    """A passage that a search for `question` would no longer give, and the accepted one that it is separated from."""

    question: str
    passage: str
    kept: str
    witnesses: int


@dataclass(frozen=True)
class Trimming:
    """What a trim came to.

    Attributes:
        questions: how many were given. judged: closed by this sitting; known: closed before; reused: answered by
            another's verdicts (`saved`: the passages that were not judged for it); the rest are in `errors`.
        accepted, rejected, silent: verdicts of the questions that this sitting closed; `silent` are no verdicts.
        separations: pairs with a witness, in all. reached: those of them that the threshold is reached for.
        spent, total: calls of this sitting, and of all of them.
        dropped: of a dry run, what would be dropped for these questions; else None.
        on_file: the verdicts of all sittings that were not taken back.
        others: of the `known`, those that another judge closed: who, and how many.
        mode: the judge's. one_way: whether only witnesses that accepted the same passage count together.
    """

    place: str
    questions: int
    judged: int
    known: int
    reused: int
    saved: int
    accepted: int
    rejected: int
    silent: int
    separations: int
    reached: int
    threshold: int
    spent: Spent
    total: Spent
    errors: tuple[Failed, ...] = ()
    dropped: tuple[WouldDrop, ...] | None = None
    mode: str = "word"
    one_way: bool = False
    on_file: Verdicts = NO_VERDICTS
    others: tuple[tuple[str, int], ...] = ()

    @property
    def dry_run(self) -> bool:
        """Whether the witnesses stayed as they were."""
        return self.dropped is not None

    @property
    def calls(self) -> int:
        """Model calls that this sitting made: those that the journal held are not among them."""
        return self.spent.calls

    @property
    def too_silent(self) -> bool:
        """Whether too many of this sitting's verdicts were none for the work to count as done."""
        return self.silent > MOST_SILENT * (self.accepted + self.rejected + self.silent)

    @property
    def advice(self) -> str:
        """What to do where too often the judge said nothing that counts; empty elsewhere."""
        if not self.too_silent:
            return ""
        said = self.accepted + self.rejected
        of = f"{self.silent:,} of " if said else "any of "
        learned = ", which separate nothing" if said else ": nothing was learned"
        undo = "undo those questions (--undo, ALL for all) and " if said and not self.dry_run else ""
        other = "word" if self.mode == "components" else "components"
        return (
            f"the judge answered neither True nor False in {of}{counted(said + self.silent, 'reply', 'replies')}"
            f"{learned}. Read some in the journal, then {undo}judge them with --mode {other} or another model (--lm)"
        )

    def text(self) -> str:
        """The same in lines."""
        told = [
            f"questions: {self.questions:,}; judged {self.judged:,}, judged before {self.known:,}, answered by "
            f"another's verdicts {self.reused:,} ({counted(self.saved, 'call')} saved), failed {len(self.errors):,}",
            *self._others(),
            f"verdicts: {self.accepted:,} accepted, {self.rejected:,} rejected, {self.silent:,} no verdict",
            separations_text(self.separations, self.reached, self.threshold, one_way=self.one_way),
            f"judge: {self.spent.words()}" + self._earlier(),
            *self._would_drop(),
            *self._failures(),
        ]
        if self.advice:
            told.append(self.advice)
        if self.accepted or self.rejected or not self.advice:
            told.append(self._next())
        return "\n".join(told) + "\n"

    def _next(self) -> str:
        bare = f"so {self.place} answers as the bare index does"
        if self.dry_run:
            return "a dry run: the witnesses are as they were; without --dry-run the same calls cost nothing again"
        if self.reached:
            return f'use it: blendfilter search {self.place} "…", or --index {self.place} of eval and ask'
        if self.separations:
            return f"no pair has reached the threshold, {bare}: judge more questions, or lower it (--threshold)"
        return (
            f"no pair is separated, {bare}: {self.on_file.why_none()}; judge other questions, or these anew with "
            "another judge (--lm, --mode, --rule)"
        )

    def _others(self) -> list[str]:
        return [
            f"judged before by {who}: {count:,}; to judge them anew by this judge, undo them (--undo) or name another "
            "folder (--out)"
            for who, count in self.others
        ]

    def _earlier(self) -> str:
        return "" if self.total.calls == self.spent.calls else f" (in all sittings: {self.total.words()})"

    def _would_drop(self) -> list[str]:
        if self.dropped is None:
            return []
        lines = [
            f"  {each.passage} for {each.question!r}: {each.kept} stays "
            f"({counted(each.witnesses, 'witness', 'witnesses')})"
            for each in self.dropped[:SHOWN]
        ]
        return [f"would be dropped for these questions: {len(self.dropped):,}", *lines, *_more(len(self.dropped))]

    def _failures(self) -> list[str]:
        lines = [f"  {each.question!r}: {each.why}" for each in self.errors[:SHOWN]]
        count = counted(len(self.errors), "question")
        head = [f"still open, and asked again by the same command: {count}"] if lines else []
        return [*head, *lines, *_more(len(self.errors))]


def _more(count: int) -> list[str]:
    return [f"  and {count - SHOWN:,} more"] if count > SHOWN else []


def separations_text(separations: int, reached: int, threshold: int, *, one_way: bool = False) -> str:
    """How many pairs have a witness, and how many of them enough.

    >>> separations_text(18, 3, 2, one_way=True)
    'separations: 18 pairs with a witness, 3 of them with 2 or more for one side (one way), which is the threshold'
    """
    side = " for one side (one way)" if one_way else ""
    return (
        f"separations: {counted(separations, 'pair')} with a witness, {reached:,} of them with {threshold} or more"
        f"{side}, which is the threshold"
    )


def counted(n: int, one: str, several: str = "") -> str:
    """`n` of something, in words.

    >>> counted(1, "pair"), counted(1200, "pair"), counted(2, "witness", "witnesses")
    ('1 pair', '1,200 pairs', '2 witnesses')
    """
    return f"{n:,} {one if n == 1 else several or one + 's'}"

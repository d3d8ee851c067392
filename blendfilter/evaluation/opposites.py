"""Opposites: pairs of a question and a passage with nearly its words, and what a judge makes of them.

CDIT ("Context-Driven Index Trimming"), Example 1, is one such pair: "turn on the radio" beside "turn off the radio".
The sample world has 144 of our own (`sample/opposites.jsonl`), two for each question: one says what is asked for, in
other words or another order, and one differs in a single component. What differs by kind: polarity (the predicate),
agent (the subject), object, time and place (the adverbial), attribute (the attributive). A rule that does not name the
component wants the passage accepted, so one file is the test of every set of rules. In: pairs and a judge. Out: how
many of each kind were accepted, rejected or left without a verdict, and how often that was right.

The component is that of the sentence's sense: whoever does it is the subject, in the passive too, and the subject or
the object is its head alone ("the old lighthouse" and "the new lighthouse" have one head; what sets them apart is the
attributive). What a question asks for is open and never what differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter import aio, resources
from blendfilter.aio import Steps
from blendfilter.compiling.programs import load_program
from blendfilter.errors import BadArgument, BadData, EmptyData
from blendfilter.evaluation.statistics import Interval, wilson_interval
from blendfilter.files import json_rows
from blendfilter.filters.cdit.filter import CDITFilter
from blendfilter.filters.cdit.judge import Judge, Mode
from blendfilter.filters.cdit.rules import Rule, components_of, rules_of
from blendfilter.records import Passage

BOTH: tuple[tuple[str, ...], ...] = (("phi1",), ("phi1", "phi2"))
"""The paper's two sets of rules (section 5.3)."""
SAME = "nothing"
"""What differs in a consistent pair."""


@dataclass(frozen=True)
class Pair:
    """A question and a passage; `differs` and the `component` that it lies in are None where they agree."""

    id: str
    question: str
    passage: Passage
    differs: str | None
    component: str | None

    def wanted(self, components: Iterable[str]) -> bool:
        """The verdict that rules over these components want.

        >>> pair = Pair("1", "Who lit it in May?", Passage("1", "Lamp", "Ada lit it in June."), "time", "adverbial")
        >>> pair.wanted(["subject", "predicate", "object"]), pair.wanted(["adverbial"])
        (True, False)
        """
        return self.component not in tuple(components)

    @property
    def kind(self) -> str:
        """What differs, as a table names it: `adverbial (time)`, or `nothing`."""
        return f"{self.component} ({self.differs})" if self.component != self.differs else str(self.differs or SAME)


class Counted(NamedTuple):
    """The verdicts on `n` pairs of one kind; `right` of them are the wanted ones, which no verdict never is."""

    kind: str
    wanted: bool | None
    n: int
    accepted: int
    rejected: int
    silent: int
    right: int

    @property
    def accuracy(self) -> Interval:
        """The share that is right, with Wilson's interval."""
        return wilson_interval(self.right, self.n)


class Confusion(NamedTuple):
    """What a judge makes of the pairs under one set of rules: a row for each kind, and the two sides."""

    rules: tuple[str, ...]
    identity: dict[str, Any]
    rows: tuple[Counted, ...]
    consistent: Counted
    inconsistent: Counted

    @property
    def total(self) -> Counted:
        """All pairs together."""
        return _sum("all", None, [self.consistent, self.inconsistent])

    @property
    def balanced_accuracy(self) -> float:
        """The mean of the shares that are right of either side: 0.5 for a judge that always says the same."""
        sides = [side.right / side.n for side in (self.consistent, self.inconsistent) if side.n]
        return sum(sides) / len(sides)

    def text(self) -> str:
        """The table."""
        heads = ("differs", "wanted", "n", "accepted", "rejected", "no verdict", "right, 95 % interval")
        lines = [heads, *map(_cells, [*self.rows, self.total])]
        widths = [max(len(line[at]) for line in lines) for at in range(len(heads))]
        table = ["  ".join(_aligned(cell, widths[at], at) for at, cell in enumerate(line)).rstrip() for line in lines]
        said = f"rules {'+'.join(self.rules)}: balanced accuracy {self.balanced_accuracy:.3f} over {self.total.n} pairs"
        return "\n".join([said, *table])

    def to_json(self) -> dict[str, Any]:
        """The same as JSON."""
        rows = [{**row._asdict(), "accuracy": row.accuracy._asdict()} for row in (*self.rows, self.total)]
        balanced = self.balanced_accuracy
        return {"rules": list(self.rules), "judge": self.identity, "balanced_accuracy": balanced, "rows": rows}


def load_opposites(path: str | Path | None = None) -> list[Pair]:
    """The sample world's pairs, or those of a file of the same fields.

    Raises:
        MissingFile: no such file. BadData: a row that lacks a field. EmptyData: no pairs.
    """
    file = resources.sample("opposites.jsonl") if path is None else Path(path)
    pairs = [_pair(row.value, row.where) for row in json_rows(file)]
    if not pairs:
        raise EmptyData(f"{file} has no pairs: is it the right file?")
    return pairs


def _pair(row: Any, where: str) -> Pair:
    told = row if isinstance(row, dict) else {}
    for name in ("id", "question", "title", "text"):
        if not isinstance(told.get(name), str) or not told[name]:
            raise BadData(f"{where}: '{name}' should be text, found {told.get(name)!r:.60}: mend the row")
    for name in ("differs", "component"):
        if name not in told or not isinstance(told[name], str | None):
            raise BadData(f"{where}: '{name}' should be text or null, found {told.get(name)!r:.60}: mend the row")
    if (told["differs"] is None) is not (told["component"] is None):
        raise BadData(f"{where}: 'differs' and 'component' are both null, or neither is: mend the row")
    passage = Passage(told["id"], told["title"], told["text"])
    return Pair(told["id"], told["question"], passage, told["differs"], told["component"])


Judging = Callable[[Sequence[str | Rule]], Judge]
"""What makes a judge of rules."""


def judging(mode: Mode = "word", program: str | Path | None = None) -> Judging:
    """What makes judges of that mode, speaking as a compiled program says. Raises, once called: as `load_program`."""

    def made(rules: Sequence[str | Rule]) -> Judge:
        select = CDITFilter(mode, rules)
        if program is not None:
            load_program(select, program)
        return select.judge

    return made


def confusion(
    judge: Judging,
    pairs: Sequence[Pair],
    rules: Sequence[Sequence[str | Rule]] = BOTH,
    *,
    concurrency: int = 4,
) -> list[Confusion]:
    """One table for each set of rules.

    Args:
        judge: what makes a judge of rules, such as `judging("word")`.
        pairs: of `load_opposites`.
        rules: the sets of rules.
        concurrency: calls in flight.

    Raises:
        EmptyData: no pairs. What a call of the model raises.
    """
    return aio.run(aconfusion(judge, pairs, rules, concurrency=concurrency), "confusion", "await aconfusion(…)")


async def aconfusion(
    judge: Judging,
    pairs: Sequence[Pair],
    rules: Sequence[Sequence[str | Rule]] = BOTH,
    *,
    concurrency: int = 4,
) -> list[Confusion]:
    """As `confusion`, for callers on a loop."""
    if not pairs:
        raise EmptyData("there are no pairs to judge: give some, such as load_opposites()")
    if concurrency < 1:
        raise BadArgument(f"concurrency is {concurrency}: give 1 or more")
    chosen = [rules_of(each) for each in rules]
    judges = [judge(each) for each in chosen]  # before any is asked: a program is of one set of rules
    tables = []
    for own, made in zip(chosen, judges, strict=True):
        verdicts = await _verdicts(made, pairs, concurrency)
        tables.append(_table(own, made, list(zip(pairs, verdicts, strict=True))))
    return tables


async def _verdicts(judge: Judge, pairs: Sequence[Pair], concurrency: int) -> list[bool | None]:
    seats = asyncio.Semaphore(concurrency)

    async def ask(pair: Pair) -> bool | None:
        async with seats:
            said = await judge.acall(question=pair.question, passage=pair.passage)
            verdict: bool | None = said.verdict
            return verdict

    async with Steps() as steps:
        asked = [steps.start(ask(pair)) for pair in pairs]
    return [await each for each in asked]


Judged = Sequence[tuple[Pair, bool | None]]


def _table(rules: tuple[Rule, ...], judge: Judge, judged: Judged) -> Confusion:
    components = components_of(rules)
    kinds = dict.fromkeys(pair.kind for pair, _ in sorted(judged, key=lambda each: _place(each[0])))
    rows = [_counted(kind, components, [each for each in judged if each[0].kind == kind]) for kind in kinds]
    sides = {wanted: [row for row in rows if row.wanted is wanted] for wanted in (True, False)}
    return Confusion(
        tuple(rule.name for rule in rules),
        judge.identity(),
        tuple(rows),
        _sum("consistent", True, sides[True]),
        _sum("inconsistent", False, sides[False]),
    )


_ORDER = ("predicate", "subject", "object", "adverbial", "attributive")


def _place(pair: Pair) -> tuple[int, str]:
    """Consistent pairs first, then component by component."""
    if pair.component is None:
        return -1, ""
    return (_ORDER.index(pair.component) if pair.component in _ORDER else len(_ORDER)), pair.kind


def _counted(kind: str, components: Sequence[str], judged: Judged) -> Counted:
    wanted = judged[0][0].wanted(components)
    said = [verdict for _, verdict in judged]
    return Counted(
        kind, wanted, len(said), said.count(True), said.count(False), said.count(None), sum(v is wanted for v in said)
    )


def _sum(kind: str, wanted: bool | None, rows: Sequence[Counted]) -> Counted:
    return Counted(
        kind,
        wanted,
        n=sum(row.n for row in rows),
        accepted=sum(row.accepted for row in rows),
        rejected=sum(row.rejected for row in rows),
        silent=sum(row.silent for row in rows),
        right=sum(row.right for row in rows),
    )


def _cells(row: Counted) -> tuple[str, ...]:
    wanted = "" if row.wanted is None else str(row.wanted)
    said = row.accuracy
    counts = (row.n, row.accepted, row.rejected, row.silent)
    return row.kind, wanted, *map(str, counts), f"{said.value:.3f} [{said.low:.3f}, {said.high:.3f}]"


def _aligned(cell: str, width: int, column: int) -> str:
    return cell.rjust(width) if 2 <= column < 6 else cell.ljust(width)

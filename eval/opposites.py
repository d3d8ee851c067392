"""A judge against the sample world's opposites: pairs of a question and a passage with nearly the same words.

    python eval/opposites.py --lm openai/gpt-4o-mini --mode components --run runs/opposites

CDIT ("Context-Driven Index Trimming"), Example 1, is one such pair: "turn on the radio" beside "turn off the radio".
The sample world has 144 of our own (`sample/opposites.jsonl`), two for each question: one answers it, in other words or
another order, and one differs in a single component. What differs by kind: polarity (the predicate), agent (the
subject), object, time and place (the adverbial), attribute (the attributive). A rule that does not name the component
wants the passage accepted, so one file is the test of every set of rules.

The component is that of the sentence's sense: whoever does it is the subject, in the passive too, and the subject or
the object is its head alone ("the old lighthouse" and "the new lighthouse" have one head; what sets them apart is the
attributive). What a question asks for is open and never what differs.

Each pair is judged once for each set of rules (phi1, phi1+phi2; or that of --rule), 288 calls. The same command goes on
where it was stopped, and once done it replays without a call. Without --lm the offline reader judges by word lists,
which shows the pipeline, not its quality.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import dspy

import blendfilter as bf
from blendfilter import aio, resources
from blendfilter.aio import Steps
from blendfilter.compiling.programs import load_program
from blendfilter.errors import BadArgument, BadData, EmptyData, one_line
from blendfilter.files import json_rows
from blendfilter.filters.cdit import CDITFilter, Judge, Mode, Rule, rules_of
from blendfilter.journal import Journal
from blendfilter.records import Passage
from blendfilter.statistics import Interval, wilson_interval

BOTH: tuple[tuple[str, ...], ...] = (("phi1",), ("phi1", "phi2"))
"""The paper's two sets of rules (section 5.3)."""
_ORDER = ("predicate", "subject", "object", "adverbial", "attributive")


@dataclass(frozen=True)
class Opposites:
    """A question and a passage; `differs` and the `component` that it lies in are None where they agree."""

    id: str
    question: str
    passage: Passage
    differs: str | None
    component: str | None

    def wanted(self, components: Iterable[str]) -> bool:
        """The verdict that rules over these components want."""
        return self.component not in tuple(components)

    @property
    def kind(self) -> str:
        """What differs, as a table names it: `adverbial (time)`, or `nothing`."""
        return f"{self.component} ({self.differs})" if self.component != self.differs else self.differs or "nothing"


class KindCount(NamedTuple):
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
    """A judge's verdicts on the pairs under one set of rules: a row for each kind, and the two sides."""

    rules: tuple[str, ...]
    identity: dict[str, Any]
    rows: tuple[KindCount, ...]
    consistent: KindCount
    inconsistent: KindCount

    @property
    def total(self) -> KindCount:
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
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        table = [
            "  ".join(cell.rjust(width) if 2 <= at < 6 else cell.ljust(width)
                      for at, (cell, width) in enumerate(zip(line, widths, strict=True))).rstrip()
            for line in lines
        ]  # fmt: skip
        head = f"rules {'+'.join(self.rules)}: balanced accuracy {self.balanced_accuracy:.3f} over {self.total.n} pairs"
        return "\n".join([head, *table])

    def to_json(self) -> dict[str, Any]:
        """The same as JSON."""
        rows = [{**row._asdict(), "accuracy": row.accuracy._asdict()} for row in (*self.rows, self.total)]
        balanced = self.balanced_accuracy
        return {"rules": list(self.rules), "judge": self.identity, "balanced_accuracy": balanced, "rows": rows}


def load_opposites(path: str | Path | None = None) -> list[Opposites]:
    """The sample world's pairs, or those of a file of the same fields.

    Raises:
        MissingFile: no such file. BadData: a row that lacks a field. EmptyData: no pairs.
    """
    file = resources.sample("opposites.jsonl") if path is None else Path(path)
    pairs = [_pair(row.value, row.where) for row in json_rows(file)]
    if not pairs:
        raise EmptyData(f"{file} has no pairs: is it the right file?")
    return pairs


def _pair(value: Any, where: str) -> Opposites:
    row = value if isinstance(value, dict) else {}
    for name in ("id", "question", "title", "text"):
        if not isinstance(row.get(name), str) or not row[name]:
            raise BadData(f"{where}: '{name}' should be text, found {row.get(name)!r:.60}: mend the row")
    for name in ("differs", "component"):
        if name not in row or not isinstance(row[name], str | None):
            raise BadData(f"{where}: '{name}' should be text or null, found {row.get(name)!r:.60}: mend the row")
    if (row["differs"] is None) is not (row["component"] is None):
        raise BadData(f"{where}: 'differs' and 'component' are both null, or neither is: mend the row")
    passage = Passage(row["id"], row["title"], row["text"])
    return Opposites(row["id"], row["question"], passage, row["differs"], row["component"])


MakeJudge = Callable[[Sequence[str | Rule]], Judge]
"""What makes a judge of rules."""


def judging(mode: Mode = "word", program: str | Path | None = None) -> MakeJudge:
    """What makes judges of that mode, of a compiled program if given. Raises, once called: as `load_program`."""

    def made(rules: Sequence[str | Rule]) -> Judge:
        select = CDITFilter(mode, rules)
        if program is not None:
            load_program(select, program)
        return select.judge

    return made


def confusion(
    judge: MakeJudge, pairs: Sequence[Opposites], rules: Sequence[Sequence[str | Rule]] = BOTH, *, concurrency: int = 4
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
    judge: MakeJudge, pairs: Sequence[Opposites], rules: Sequence[Sequence[str | Rule]] = BOTH, *, concurrency: int = 4
) -> list[Confusion]:
    """As `confusion`, for callers on a loop."""
    if not pairs:
        raise EmptyData("there are no pairs to judge: give some, such as load_opposites()")
    if concurrency < 1:
        raise BadArgument(f"concurrency is {concurrency}: give 1 or more")
    chosen = [rules_of(names) for names in rules]
    judges = [judge(names) for names in chosen]  # before any call: a program is of one set of rules
    return [
        _table(own, made, list(zip(pairs, await _verdicts(made, pairs, concurrency), strict=True)))
        for own, made in zip(chosen, judges, strict=True)
    ]


async def _verdicts(judge: Judge, pairs: Sequence[Opposites], concurrency: int) -> list[bool | None]:
    places = asyncio.Semaphore(concurrency)

    async def verdict(pair: Opposites) -> bool | None:
        async with places:
            prediction = await judge.acall(question=pair.question, passage=pair.passage)
            found: bool | None = prediction.verdict
            return found

    async with Steps() as steps:
        started = [steps.start(verdict(pair)) for pair in pairs]
    return [await step for step in started]


def _table(rules: tuple[Rule, ...], judge: Judge, judged: Sequence[tuple[Opposites, bool | None]]) -> Confusion:
    components = judge.components

    def place(pair: Opposites) -> tuple[int, str]:
        """Consistent pairs first, then component by component."""
        if pair.component is None:
            return -1, ""
        return (_ORDER.index(pair.component) if pair.component in _ORDER else len(_ORDER)), pair.kind

    rows = []
    for kind in dict.fromkeys(pair.kind for pair in sorted((pair for pair, _ in judged), key=place)):
        wanted = next(pair.wanted(components) for pair, _ in judged if pair.kind == kind)
        found = [verdict for pair, verdict in judged if pair.kind == kind]
        counts = (found.count(True), found.count(False), found.count(None), sum(each is wanted for each in found))
        rows.append(KindCount(kind, wanted, len(found), *counts))
    consistent, inconsistent = ([row for row in rows if row.wanted is wanted] for wanted in (True, False))
    return Confusion(
        tuple(rule.name for rule in rules),
        judge.identity(),
        tuple(rows),
        _sum("consistent", True, consistent),
        _sum("inconsistent", False, inconsistent),
    )


def _sum(kind: str, wanted: bool | None, rows: Sequence[KindCount]) -> KindCount:
    return KindCount(kind, wanted, *(sum(row[at] for row in rows) for at in range(2, 7)))


def _cells(row: KindCount) -> tuple[str, ...]:
    wanted = "" if row.wanted is None else str(row.wanted)
    share = row.accuracy
    counts = (row.n, row.accepted, row.rejected, row.silent)
    return row.kind, wanted, *map(str, counts), f"{share.value:.3f} [{share.low:.3f}, {share.high:.3f}]"


def main() -> None:
    """Judge the pairs, print the tables and keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lm", default="offline", help="provider/model, or any name with --api-base")
    parser.add_argument("--api-base", help="an OpenAI-compatible server that has the model")
    parser.add_argument("--mode", default="word", choices=["word", "components"], help="one word, or with its grounds")
    parser.add_argument("--rule", action="append", help="a rule; all that are given apply (phi1, phi1+phi2 apart)")
    parser.add_argument("--program", help="a compiled program (blendfilter compile cdit); --rule: those it is of")
    parser.add_argument("--limit", type=int, help="the first N pairs")
    parser.add_argument("--run", default="runs/opposites", help="the folder of the journal, and of confusion.json")
    options = parser.parse_args()
    kept = Path(options.run, "confusion.json")
    if kept.exists() and b'"tables"' not in kept.read_bytes():
        parser.error(f"{kept} is there, and is no table of this script: name another folder (--run)")
    with one_line(), Journal(options.run) as journal:
        lm = bf.connect(options.lm, api_base=options.api_base, journal=journal)
        sets = [options.rule] if options.rule else BOTH
        with dspy.context(lm=lm):
            judge = judging(options.mode, options.program)
            tables = confusion(judge, load_opposites()[: options.limit], sets)
    found = {"lm": options.lm, "tables": [table.to_json() for table in tables]}
    kept.write_text(json.dumps(found, indent=2) + "\n")
    print("\n\n".join(table.text() for table in tables))


if __name__ == "__main__":
    main()

"""Figures of silver contexts: how short they are, how much of them is the answer, how often nothing is left.

A `Summary` is over all questions, and apart over those whose passages support the output and those whose do not. It
compares three contexts (Wang et al. 2023, sections 4.2 and 4.5):

FULL     every passage
PSG      whole passages: those that hold a sentence above the oracle's threshold
SILVER   the sentences that the oracle chose

Precision is that of Table 3: of the context's normalised words, the share that are words of the output, each counted as
often as both hold it; the output is the first golden answer. An empty context has precision 0; `not_empty` is the mean
over the others. Titles are no part of it. `characters` is the same over characters in place of words, as the released
code counts; the table's ELI5 and FEVER rows can hardly come about otherwise (a label is no word of any passage).

Tokens are those of Figure 5: the question and the context as an answerer reads it, a line ``Title | text`` a passage.

Differs from the paper: its PSG is a fine-tuned model's choice; this one reads the answer, as SILVER does, and is an
upper bound. Its 44 to 64 % fewer tokens are FILCO's, which a model chose; these here are the oracle's. Means have no
intervals here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from blendfilter.lm.tokenisers import TokenCounter
from blendfilter.oracles.measures import MEASURES
from blendfilter.oracles.silver_rows import SilverRow
from blendfilter.records import Passage
from blendfilter.text import normalize_answer, overlap, tokens

CONTEXTS = ("FULL", "PSG", "SILVER")
MUCH = 0.8
"""Where more than this share of the contexts is empty, `found_little` says so."""


@dataclass(frozen=True)
class Figures:
    """Means over the questions of a group; `empty`, `precision`, `not_empty` and `characters` are fractions of 1."""

    empty: float
    precision: float
    not_empty: float
    characters: float
    tokens: float


@dataclass(frozen=True)
class SilverGroup:
    """Some of the questions, and their figures in each context."""

    n: int
    full: Figures
    psg: Figures
    silver: Figures


@dataclass(frozen=True)
class Summary:
    """What a silver file comes to.

    Attributes:
        n: how many questions. no_passages: how many of them came without any passage.
        empty: the share of questions of which no sentence was chosen.
        positive: the share whose passages support the output, of those where that is known; None: of none.
        unknown: of how many it is not known.
        unscored: sentences that were too long for the model that scores, of all questions.
        tokeniser: whose tokens these are.
        groups: `all`, `positive`, `negative`, those of them that have questions.
    """

    n: int
    no_passages: int
    positive: float | None
    unknown: int
    unscored: int
    tokeniser: str
    groups: dict[str, SilverGroup] = field(repr=False)

    @property
    def empty(self) -> float:
        """The share of questions of which no sentence was chosen."""
        return self.groups["all"].silver.empty

    @property
    def precision(self) -> dict[str, float]:
        """Precision of the output in FULL, PSG and SILVER, over all questions."""
        return {name: getattr(self.groups["all"], name.lower()).precision for name in CONTEXTS}

    @property
    def tokens(self) -> dict[str, float]:
        """Tokens of question and context in FULL, PSG and SILVER, over all questions."""
        return {name: getattr(self.groups["all"], name.lower()).tokens for name in CONTEXTS}

    def found_little(self, measure: str) -> str | None:
        """One line where `measure` found nothing to choose for more than four of five questions."""
        left = round(self.empty * self.n)
        if left <= MUCH * self.n:
            return None
        others = " or ".join(other for other in MEASURES if other != measure)
        how = "gives the answerer nothing to read" if left == self.n else "is mostly nothing to read"
        return (
            f"{measure} chose nothing for {left:,} of {_questions(self.n)}: SILVER {how} and is no upper bound, and a "
            f"filter learns from it to keep nothing. Another measure ({others}), a lower threshold or other "
            "passages may find more"
        )

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    def text(self) -> str:
        """An aligned table, and below it how to read it."""
        groups = {name: group for name, group in self.groups.items() if name == "all" or group.n < self.n}
        rows = [_HEADER, *(cells for name, group in groups.items() for cells in _cells(name, group))]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join([*map(str.ljust, cells[:_LEFT], widths), *map(str.rjust, cells[_LEFT:], widths[_LEFT:])]).rstrip()
            for cells in rows
        ]
        return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:], "", *self._notes()]) + "\n"

    def _notes(self) -> Iterator[str]:
        if self.positive is not None:
            of = self.n - self.unknown
            yield f"positive: {100 * self.positive:.1f} % of {_questions(of)}, where the passages support the output"
        if self.unknown:
            yield f"not known to be positive or negative, for want of gold titles: {_questions(self.unknown)}"
        if self.no_passages:
            yield f"without any passage, their contexts empty: {_questions(self.no_passages)}"
        if self.unscored:
            sentences = f"{self.unscored:,} sentence{'s' * (self.unscored != 1)}"
            yield f"without a score, too long for the model's context, never chosen: {sentences}"
        yield "precision: words of the context that are the output's, in %; an empty context has 0"
        yield "by characters: the same of characters, as the paper's released code counts"
        yield f"tokens: question and context, mean; {self.tokeniser}"
        yield "PSG and SILVER read the answer: upper bounds"


def _questions(count: int) -> str:
    return f"{count:,} question{'s' * (count != 1)}"


def summarise(rows: Iterable[SilverRow], *, threshold: float, tokeniser: TokenCounter) -> Summary:
    """What `rows` come to; a sentence whose score is above `threshold` brings its passage into PSG."""
    sums = {name: np.zeros((len(CONTEXTS), len(_FIGURES))) for name in ("all", "positive", "negative")}
    n: Counter[str] = Counter()
    without = unscored = 0
    for row in rows:
        contexts = contexts_of(row, threshold)
        measured = [astuple(figures_of(context, row.question, row.output, tokeniser)) for context in contexts]
        without += not row.passages
        unscored += sum(each.score is None for each in row.sentences)
        known = [] if row.positive is None else ["positive" if row.positive else "negative"]
        for name in ("all", *known):
            n[name] += 1
            sums[name] += measured
    judged = n["positive"] + n["negative"]
    return Summary(
        n["all"],
        without,
        n["positive"] / judged if judged else None,
        n["all"] - judged,
        unscored,
        tokeniser.name,
        {name: _means(n[name], each) for name, each in sums.items() if n[name] or name == "all"},
    )


def _means(n: int, sums: NDArray[np.float64]) -> SilverGroup:
    """Means; `not_empty` is over the contexts in which something is left."""
    divisors = np.full_like(sums, max(n, 1))
    divisors[:, _FIGURES.index("not_empty")] = np.maximum(n - sums[:, _FIGURES.index("empty")], 1)
    return SilverGroup(n, *(Figures(*means) for means in (sums / divisors).tolist()))


def contexts_of(row: SilverRow, threshold: float) -> tuple[Sequence[Passage], Sequence[Passage], Sequence[Passage]]:
    """What FULL, PSG and SILVER show of a row's passages."""
    above = {each.passage for each in row.sentences if each.score is not None and each.score > threshold}
    return row.passages, [each for at, each in enumerate(row.passages) if at in above], row.excerpts()


_HEADER = ("questions", "context", "empty", "precision", "not empty", "by characters", "tokens", "of FULL")
_LEFT = 2
_FIGURES = tuple(each.name for each in fields(Figures))


def _cells(name: str, group: SilverGroup) -> Iterator[tuple[str, ...]]:
    for context in CONTEXTS:
        figures: Figures = getattr(group, context.lower())
        yield (
            f"{name} ({group.n:,})" if context == "FULL" else "",
            context,
            *(f"{100 * share:.1f}" for share in astuple(figures)[:-1]),
            f"{figures.tokens:,.1f}",
            f"{100 * figures.tokens / group.full.tokens:.0f} %" if group.full.tokens else "-",
        )


def figures_of(context: Sequence[Passage], question: str, output: str, tokeniser: TokenCounter) -> Figures:
    """The figures of one context, by any filter, for one question and its output."""
    text = "\n".join(each.text for each in context)
    precision = overlap(tokens(text), tokens(output)).precision
    by_character = overlap(normalize_answer(text), normalize_answer(output)).precision
    lines = "\n".join([*(each.line for each in context), question])
    return Figures(
        empty=float(not text.strip()),
        precision=precision,
        not_empty=precision,
        characters=by_character,
        tokens=tokeniser.count(lines),
    )

"""One line of a measured table: a measure of a row on a task, with its interval, and what is held against it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from blendfilter.evaluation.ledger import tokens_of
from blendfilter.evaluation.reproducing.papers import IN_ALL
from blendfilter.evaluation.reproducing.runs import Wanted
from blendfilter.evaluation.run import Run

INCLUSION = "inclusion"
RIGHT_OR_WRONG = ("em", "accuracy", INCLUSION)
IN_TOKENS = ("context_tokens", "answer_prompt")
"""Measures that are numbers of tokens, not shares."""
OF_JUDGING = ("judging_calls", "judging_tokens", "judging_seconds", IN_ALL, "dollars_a_thousand")
"""What a judge's verdicts take: numbers too."""
NUMBERS = (*IN_TOKENS, *OF_JUDGING)


@dataclass(frozen=True)
class Line:
    """One measure of one row on one task, in fractions of 1; `point` is a figure's K, or which answers count.

    `calls` and `tokens` are a question's (None: the server told none), `difference` is measured - published. `gain` is
    measured - the reference's measured, with the ends of its paired interval; `p` tests that one. `bound`: the row's
    filter reads the answer. A measure of `NUMBERS` is a number; `of_reference` is its share of the reference's.
    `prompt_tokens`, `tokens_in` and `fronts` are a frontier's.
    """

    task: str
    group: str
    label: str
    ours: bool
    measure: str
    value: float
    low: float
    high: float
    n: int
    errors: int
    calls: float
    tokens: float | None
    run: str
    point: str = ""
    published: float | None = None
    difference: float | None = None
    gain: float | None = None
    gain_low: float | None = None
    gain_high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    bound: bool = False
    of_reference: float | None = None
    prompt_tokens: float | None = None
    tokens_in: float | None = None
    fronts: tuple[str, ...] = ()


def place_of(one: Wanted) -> tuple[str, str, str]:
    """Where in its table a run belongs: task, group and label."""
    return one.task, one.row.group, one.row.label


def line_of(one: Wanted, run: Run, measure: str, ends: Sequence[float], point: str) -> Line:
    """The line of one run: the measure's value and the ends of its interval, beside what was published of it."""
    value, low, high = ends
    figures = one.row.printed(one.task, one.point.k)
    published = figures.score(measure) if figures else None
    calls, tokens = a_question(run)
    return Line(
        *place_of(one), one.row.ours, measure, value, low, high, run.metrics["n"], run.errors, calls, tokens, run.name,
        point, published, None if published is None or measure in NUMBERS else value - published,
        bound=one.row.reads_gold(one.task),
    )  # fmt: skip


def a_question(run: Run) -> tuple[float, float | None]:
    """Calls and tokens that a run used for a question, on average; None where the tokens are unknown."""
    total, n = run.metrics["ledger"]["total"], len(run.rows)
    tokens = tokens_of(total)
    return total["calls"] / n, None if tokens is None else tokens / n

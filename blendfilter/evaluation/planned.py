"""A plan as text: a line a stage, and below it how it was made and what it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blendfilter.evaluation.plan import Plan, Stage

_HEADER = ("stage", "a question", "calls", "tokens in", "at most", "tokens out", "at most", "cost", "at most")
_LIMITS = (("calls", "--max-calls", ""), ("tokens", "--max-tokens", ""), ("dollars", "--max-cost", "$"))


def text_of_plan(plan: Plan) -> str:
    """The plan as aligned text, with how to read it below."""
    if plan.done == plan.answers:
        return f"all {plan.answers} answers are there: nothing is left to ask\n"
    rows = [[*_cells(stage)] for stage in (*plan.stages, plan.total)]
    kept = [place for place in range(len(_HEADER)) if any(row[place] != "-" for row in rows)]
    table = [[row[place] for place in kept] for row in [[*_HEADER], *rows]]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lines = ["  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]).rstrip() for name, *cells in table]
    ruler = "-" * max(map(len, lines))
    return "\n".join([lines[0], ruler, *lines[1:-1], ruler, lines[-1], "", *notes(plan)]) + "\n"


def _cells(stage: Stage) -> Iterator[str]:
    yield stage.stage
    yield f"{stage.fewest}" if stage.fewest == stage.most else f"{stage.fewest} to {stage.most}"
    yield f"{stage.calls:,}"
    for number in (stage.tokens_in, stage.tokens_in_most, stage.tokens_out, stage.tokens_out_most):
        yield "-" if number is None else f"{number:,}"
    for dollars in (stage.cost, stage.cost_most):
        yield money(dollars)


def money(dollars: float | None) -> str:
    """Dollars; fractions of a cent where there is less than one dollar.

    >>> money(12.345), money(0.01234), money(None)
    ('$12.35', '$0.0123', '-')
    """
    return "-" if dollars is None else f"${dollars:,.2f}" if dollars >= 1 else f"${dollars:.4f}"


def notes(plan: Plan) -> Iterator[str]:
    """How the plan was made, a line each."""
    yield "nothing was spent: the offline reader stood in for the model"
    left = plan.answers - plan.done
    there = f", {plan.done:,} are there already" if plan.done else ""
    of = "all of them" if plan.sampled == left else f"{plan.sampled} of them, evenly spread"
    yield f"answers: {left:,} to give{there}; planned from {of}"
    if plan.failed:
        yield f"errors: {plan.failed} of these ended in an error, and may have made fewer calls than the model will"
    if plan.saved:
        yield f"earlier runs: {100 * plan.saved:.0f} % of the calls are journaled there, and not counted here"
    for model, name in plan.tokenisers.items():
        yield f"tokens{_of(model, plan.tokenisers)}: {name}"
    yield from _replies(plan)
    for model, words in plan.prices.items():
        price = f"{words}; cached prompt tokens may cost less" if words.startswith("$") else words
        yield f"cost{_of(model, plan.prices)}: {price}"
    yield _time(plan)
    if plan.paced is not None:
        yield f"pace: no sooner than in {duration(plan.paced)}, for so many requests and tokens a minute are allowed"
    yield from fits(plan)


def _of(model: str, several: object) -> str:
    return f" of {model}" if len(several) > 1 else ""  # type: ignore[arg-type]


def _replies(plan: Plan) -> Iterator[str]:
    guessed = [stage.stage for stage in plan.stages if not stage.measured]
    known = [stage.stage for stage in plan.stages if stage.measured]
    if known:
        yield f"replies: as long as earlier ones ({', '.join(known)})"
    if guessed:
        yield f"replies: as long as the offline reader's, a model's may be longer ({', '.join(guessed)})"
    yield "at most: every reply as long as its cap; second tries and failed attempts come on top"
    if plan.total.fewest != plan.total.most:
        yield "calls vary from question to question, and the model's replies decide how many there are"


def _time(plan: Plan) -> str:
    if plan.seconds is None:
        return "time: not known, for no earlier call of the model is journaled"
    return f"time: about {duration(plan.seconds)} with {plan.concurrency} calls in flight, as fast as earlier ones"


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(8), duration(754), duration(9000)
    ('8 s', '13 min', '2.5 h')
    """
    return (
        f"{seconds:.0f} s"
        if seconds < 90
        else f"{seconds / 60:.0f} min"
        if seconds < 5400
        else f"{seconds / 3600:.1f} h"
    )


def fits(plan: Plan) -> Iterator[str]:
    """A line for each limit: whether the rest of the run fits under it."""
    total = plan.total
    takes = {
        "calls": (total.calls, total.calls),
        "tokens": (_plus(total.tokens_in, total.tokens_out), _plus(total.tokens_in_most, total.tokens_out_most)),
        "dollars": (total.cost, total.cost_most),
    }
    for name, option, sign in _LIMITS:
        limit = None if plan.budget is None else getattr(plan.budget, name)
        if limit is None:
            continue
        expected, most = takes[name]
        spent = getattr(plan.spent, name)
        gone = f"{spent:,}" if not sign else f"${spent:.4g}" if spent < 1 else f"${spent:,.2f}"
        told = f"{sign}{limit:,.10g}" + (f", {gone} of it spent" if spent else "")
        yield f"{option} {told}: {_verdict(limit - spent, expected, most)}"


def _plus(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


def _verdict(left: float, expected: float | None, most: float | None) -> str:
    if expected is None:
        return "nobody knows whether that is enough"
    if expected > left:
        return (
            f"not enough, the run will stop at about {100 * left / expected:.0f} % of what is left"
            if left > 0
            else "spent"
        )
    return "enough" if most is not None and most <= left else "enough as expected, not at most"

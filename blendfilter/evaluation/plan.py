"""What a run will take, before anything is spent: calls, tokens, dollars and time, stage by stage.

No model is called but the offline reader, which answers some of the questions over the real index in the model's place
(`blendfilter.evaluation.rehearsal`); its prompts are counted by the best tokeniser at hand, and the plan says which.

Replies are taken to be as long as earlier calls of the model in the same stage were, else as the reader's, and never
longer than their cap. A prompt that contains an earlier reply grows with it. *At most* is the same with every reply as
long as its cap.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dspy

from blendfilter.errors import BadArgument
from blendfilter.evaluation.ledger import money
from blendfilter.evaluation.rehearsal import FIGURES, CallEstimate, Estimator, RehearsedCall, added, rehearse
from blendfilter.evaluation.rows import repeat_of
from blendfilter.evaluation.run_folder import PREDICTIONS, iterate_rows
from blendfilter.evaluation.run_loop import AnswerKey
from blendfilter.journal import FILE, Journal
from blendfilter.lm.budget import Amount, Budget, spent_in
from blendfilter.lm.local import LocalEngine
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.records import Question
from blendfilter.run_context import CONCURRENCY
from blendfilter.tasks.base import Questions
from blendfilter.text import aligned

SAMPLE = 20
"""Questions that a rehearsal answers."""
_HEADER = ("stage", "a question", "calls", "tokens in", "at most", "tokens out", "at most", "cost", "at most")
_LIMITS = (("calls", "--max-calls", ""), ("tokens", "--max-tokens", ""), ("dollars", "--max-cost", "$"))


@dataclass(frozen=True)
class PlannedStage:
    """One stage's share of what is still to be done; `fewest` to `most` calls an answer.

    `tokens_out` and `cost` are None where they are unknown; the fields ending in `_most` are for replies as long as
    their caps, and are None where a reply has none.
    """

    stage: str
    calls: int
    fewest: int
    most: int
    tokens_in: int
    tokens_in_most: int | None
    tokens_out: int
    tokens_out_most: int | None
    cost: float | None
    cost_most: float | None
    measured: bool = False


@dataclass(frozen=True)
class RunPlan:
    """What a run will still take.

    Attributes:
        stages, total: stage by stage in the order of first use, and added up.
        answers, done, sampled: all that the run is to give, those there already, and those the plan was made from.
        saved: the share of the sampled answers' calls that are in journals.
        failed: answers of the rehearsal that ended in an error.
        tokenisers, prices: by the model's name, whose tokens and whose dollars; a price in words.
        seconds: how long it takes at `concurrency`, as earlier calls took; None: no earlier call is known.
        paced: the seconds that the model's limits a minute take in any case; None: it has none.
        budget, spent: the limits, and what earlier sessions have used of them.
    """

    stages: tuple[PlannedStage, ...]
    total: PlannedStage
    answers: int
    done: int
    sampled: int
    saved: float
    failed: int
    tokenisers: Mapping[str, str]
    prices: Mapping[str, str]
    seconds: float | None
    paced: float | None
    concurrency: int
    budget: Budget | None = None
    spent: Amount = field(default_factory=Amount)

    def text(self) -> str:
        """The plan as aligned text, with how to read it below."""
        if self.done == self.answers:
            return f"all {self.answers} answers are there: nothing is left to ask\n"
        rows = [[*_cells(stage)] for stage in (*self.stages, self.total)]
        kept = [place for place in range(len(_HEADER)) if any(row[place] != "-" for row in rows)]
        header, *stages, total = aligned([[row[place] for place in kept] for row in [_HEADER, *rows]])
        ruler = "-" * max(map(len, [header, *stages, total]))
        return "\n".join([header, ruler, *stages, ruler, total, "", *self.notes()]) + "\n"

    def __str__(self) -> str:
        return self.text()

    def notes(self) -> Iterator[str]:
        """How the plan was made, a line each."""
        yield "nothing was spent: the offline reader stood in for the model"
        left = self.answers - self.done
        there = f", {self.done:,} are there already" if self.done else ""
        of = "all of them" if self.sampled == left else f"{self.sampled} of them, evenly spread"
        yield f"answers: {left:,} to give{there}; planned from {of}"
        if self.failed:
            yield f"errors: {self.failed} of these ended in an error, and may have made fewer calls than the model will"
        if self.saved:
            yield f"earlier runs: {100 * self.saved:.0f} % of the calls are journaled there, and not counted here"
        for model, name in self.tokenisers.items():
            yield f"tokens{f' of {model}' * (len(self.tokenisers) > 1)}: {name}"
        for how, measured in (("earlier ones", True), ("the offline reader's, a model's may be longer", False)):
            if stages := [stage.stage for stage in self.stages if stage.measured is measured]:
                yield f"replies: as long as {how} ({', '.join(stages)})"
        yield "at most: every reply as long as its cap; second tries and failed attempts come on top"
        if self.total.fewest != self.total.most:
            yield "calls vary from question to question, and the model's replies decide how many there are"
        for model, words in self.prices.items():
            cached = "; cached prompt tokens may cost less" if words.startswith("$") else ""
            yield f"cost{f' of {model}' * (len(self.prices) > 1)}: {words}{cached}"
        if self.seconds is None:
            yield "time: not known, for no earlier call of the model is journaled"
        else:
            flight = f"{self.concurrency} calls in flight"
            yield f"time: about {duration(self.seconds)} with {flight}, as fast as earlier ones"
        if self.paced is not None:
            why = "for so many requests and tokens a minute are allowed"
            yield f"pace: no sooner than in {duration(self.paced)}, {why}"
        yield from self._fits()

    def _fits(self) -> Iterator[str]:
        total = self.total
        bounds = total.tokens_in_most, total.tokens_out_most
        most = None if None in bounds else sum(filter(None, bounds))
        takes: dict[str, tuple[float | None, float | None]] = {
            "calls": (total.calls, total.calls),
            "tokens": (total.tokens_in + total.tokens_out, most),
            "dollars": (total.cost, total.cost_most),
        }
        for name, option, sign in _LIMITS:
            if self.budget is None or (limit := getattr(self.budget, name)) is None:
                continue
            spent = getattr(self.spent, name)
            gone = f"{spent:,}" if not sign else f"${spent:.4g}" if spent < 1 else f"${spent:,.2f}"
            already = f", {gone} of it spent" if spent else ""
            yield f"{option} {sign}{limit:,.10g}{already}: {_verdict(limit - spent, *takes[name])}"


def _cells(stage: PlannedStage) -> Iterator[str]:
    yield stage.stage
    yield f"{stage.fewest}" if stage.fewest == stage.most else f"{stage.fewest} to {stage.most}"
    yield f"{stage.calls:,}"
    for number in (stage.tokens_in, stage.tokens_in_most, stage.tokens_out, stage.tokens_out_most):
        yield "-" if number is None else f"{number:,}"
    yield from map(money, (stage.cost, stage.cost_most))


def _verdict(left: float, expected: float | None, most: float | None) -> str:
    if expected is None:
        return "nobody knows whether that is enough"
    if expected > left:
        share = f"{100 * left / expected:.0f} % of what is left"
        return f"not enough, the run will stop at about {share}" if left > 0 else "spent"
    return "enough" if most is not None and most <= left else "enough as expected, not at most"


def duration(seconds: float) -> str:
    """Seconds in words.

    >>> duration(8), duration(754), duration(9000)
    ('8 s', '13 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def plan(
    method: dspy.Module,
    questions: Questions | Sequence[Any],
    lm: dspy.BaseLM | str | None = None,
    *,
    run: str | Path | None = None,
    reuse: Iterable[str | Path] = (),
    repeats: int = 1,
    sample: int = SAMPLE,
    concurrency: int = CONCURRENCY,
    ask_server: bool = False,
    budget: Budget | None = None,
    name: str | None = None,
) -> RunPlan:
    """What `evaluate` with the same arguments will still take.

    Args:
        method, questions, lm, repeats, concurrency, budget, name: as for `evaluate`.
        run: the run's folder, if there is one already: its answers and calls count as made.
        reuse: other runs whose calls may be used.
        sample: how many of the questions still to be answered the plan is made from, evenly spread.
        ask_server: count tokens by the server's own tokeniser, where it has one to ask (vLLM, llama.cpp).

    Raises:
        BadArgument, Leak and the like: as `evaluate`, for the rehearsal is one.
    """
    from blendfilter.tasks import load

    if sample < 1:
        raise BadArgument(f"a plan from {sample} questions: give 1 or more")
    every = questions if isinstance(questions, Questions) else load("qa", list(questions))
    model, folder = connect(lm or dspy.settings.lm or "offline"), None if run is None else Path(run)
    has_journal = folder is not None and (folder / FILE).is_file()
    journals = [*([folder] if folder is not None and has_journal else []), *map(Path, reuse)]
    left = left_of(every, repeats, folder)
    ids = {id for _, id in left}
    chosen = spread([question for question in every if question.id in ids], sample)
    sampled = [key for key in _answer_keys(chosen, repeats) if key in left]
    calls, used, failed = _rehearsed(
        method, Questions(tuple(chosen), every.task, every.source), model, set(sampled), journals, repeats, name
    )
    estimator = Estimator(journals, ask_server=ask_server)
    estimates, factor = estimator.estimates(calls), len(left) / max(1, len(sampled))
    by_stage: dict[str, list[CallEstimate]] = {}
    for estimate in estimates:
        by_stage.setdefault(estimate.call.stage or "call", []).append(estimate)
    stages = tuple(_stage(stage, found, sampled, factor) for stage, found in by_stage.items())
    figures: dict[str, Any] = {figure: added(stages, figure) for figure in FIGURES}
    total = PlannedStage(
        "total", sum(stage.calls for stage in stages), *_calls_an_answer(estimates, sampled), **figures,
        measured=all(stage.measured for stage in stages),
    )  # fmt: skip
    seconds = estimator.seconds(estimates)
    # A model in this process takes its calls one by one.
    at_once = 1 if isinstance(model.inner, LocalEngine) else concurrency
    spent = Amount()
    if budget is not None and folder is not None and has_journal:
        with Journal(folder, "replay") as journal:
            spent = spent_in(journal, {model.name: model.terms.price}, budget)
    return RunPlan(
        stages=stages,
        total=total,
        answers=len(every) * repeats,
        done=len(every) * repeats - len(left),
        sampled=len(sampled),
        saved=1 - len(calls) / used if used > len(calls) else 0.0,
        failed=failed,
        tokenisers=estimator.tokenisers,
        prices=estimator.prices,
        seconds=None if seconds is None else seconds * factor / at_once,
        paced=_paced(model, total),
        concurrency=concurrency,
        budget=budget,
        spent=spent,
    )


def _rehearsed(
    method: dspy.Module,
    questions: Questions,
    model: ConnectedLM,
    sampled: set[AnswerKey],
    journals: Sequence[Path],
    repeats: int,
    name: str | None,
) -> tuple[list[RehearsedCall], int, int]:
    """The calls still to be made for the sampled answers, how many these take in all, and how many failed."""
    if not sampled:
        return [], 0, 0
    with tempfile.TemporaryDirectory(prefix="blendfilter-plan-") as folder:
        done = rehearse(method, questions, model, Path(folder) / "run", reuse=journals, repeats=repeats, name=name)
        rows = [row for row in done.run.rows if (repeat_of(row), row["id"]) in sampled]
    calls = [call for call in done.calls if call.turn in sampled]
    used = len({key for row in rows for _, key in row["calls"]})
    return calls, used, sum(row["error"] is not None for row in rows)


def _answer_keys(questions: Iterable[Question], repeats: int) -> Iterator[AnswerKey]:
    return ((repeat, question.id) for repeat in range(1, repeats + 1) for question in questions)


def left_of(questions: Questions, repeats: int, run: Path | None) -> set[AnswerKey]:
    """The answers that are still to be given; a question that ended in an error is answered again."""
    rows = iterate_rows(run / PREDICTIONS) if run is not None else ()
    return {*_answer_keys(questions, repeats)} - {(repeat_of(row), row["id"]) for row in rows if row["error"] is None}


def spread(questions: Sequence[Question], sample: int) -> list[Question]:
    """So many of them, evenly over the whole set: data sets are often sorted."""
    n = min(sample, len(questions))
    return [questions[int((place + 0.5) * len(questions) / n)] for place in range(n)]


def _stage(name: str, estimates: Sequence[CallEstimate], sampled: Sequence[AnswerKey], factor: float) -> PlannedStage:
    figures: dict[str, Any] = {}
    for figure in FIGURES:
        value = added(estimates, figure)
        scaled = None if value is None else factor * value
        figures[figure] = scaled if scaled is None or figure.startswith("cost") else round(scaled)
    measured = all(estimate.measured for estimate in estimates)
    calls = round(factor * len(estimates))
    return PlannedStage(name, calls, *_calls_an_answer(estimates, sampled), **figures, measured=measured)


def _calls_an_answer(estimates: Sequence[CallEstimate], sampled: Sequence[AnswerKey]) -> tuple[int, int]:
    counted = Counter(estimate.call.turn for estimate in estimates)
    numbers = [counted[key] for key in sampled] or [0]
    return min(numbers), max(numbers)


def _paced(model: ConnectedLM, total: PlannedStage) -> float | None:
    """Seconds that limits a minute take: what fits into the first minute goes out at once."""
    if (pace := model.terms.pace) is None:
        return None
    takes = ((total.calls, pace.requests_per_minute), (total.tokens_in + total.tokens_out, pace.tokens_per_minute))
    return max((60 * max(0.0, amount / limit - 1) for amount, limit in takes if limit), default=None)

"""What a run will take, before anything is spent: calls, tokens, dollars and time, stage by stage.

In: a method, its questions, a model; the run's folder and others, whose calls count as made. Out: a `Plan`. Nothing is
asked but the offline reader, which answers some of the questions over the real index in the model's place
(`blendfilter.evaluation.rehearsal`); its prompts are counted by the best tokeniser at hand, and the plan says which.

Replies are taken to be as long as earlier calls of the model in the same stage were, else as the reader's, and never
longer than their cap. A prompt that holds an earlier reply grows with it. *At most* is the same with every reply as
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
from blendfilter.evaluation.estimates import FIGURES, Estimate, Estimator, added
from blendfilter.evaluation.files import PREDICTIONS, iterate_rows
from blendfilter.evaluation.planned import text_of_plan
from blendfilter.evaluation.rehearsal import Rehearsed, rehearse
from blendfilter.evaluation.repeats import repeat_of
from blendfilter.evaluation.runner import CONCURRENCY
from blendfilter.journal import FILE, Journal
from blendfilter.lm.budget import Amount, Budget, spent_in
from blendfilter.lm.local.engine import LocalEngine
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.records import Question
from blendfilter.tasks.base import Questions

SAMPLE = 20
"""Questions that a rehearsal answers."""
Turn = tuple[int, str]


@dataclass(frozen=True)
class Stage:
    """One stage's share of what is still to be done; `fewest` to `most` calls an answer.

    `tokens_out` and `cost` are None where nobody knows; the fields ending in `_most` hold for replies as long as their
    caps, and are None where a reply has none.
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
class Plan:
    """What a run will still take.

    Attributes:
        stages, total: stage by stage in the order of first use, and added up.
        answers, done, sampled: all that are asked for, those there already, and those the plan was made from.
        saved: the share of the sampled answers' calls that journals held.
        failed: answers of the rehearsal that ended in an error.
        tokenisers, prices: by the model's name, whose tokens and whose dollars; a price in words.
        seconds: how long it takes at `concurrency`, as earlier calls took; None: no earlier call is known.
        paced: the seconds that the model's limits a minute take in any case; None: it has none.
        budget, spent: the limits that were asked for, and what earlier sittings have used of them.
    """

    stages: tuple[Stage, ...]
    total: Stage
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
        return text_of_plan(self)

    def __str__(self) -> str:
        return self.text()


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
) -> Plan:
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
    if sample < 1:
        raise BadArgument(f"a plan from {sample} questions: give 1 or more")
    asked, model = _questions(questions), connect(lm or dspy.settings.lm or "offline")
    journals = [*_folders(run, reuse)]
    left = left_of(asked, repeats, None if run is None else Path(run))
    chosen = spread([each for each in asked if any((n, each.id) in left for n in _numbers(repeats))], sample)
    sampled = [turn for turn in _turns(chosen, repeats) if turn in left]
    some = Questions(tuple(chosen), asked.task, asked.source)
    calls, used, failed = _rehearsed(method, some, model, set(sampled), journals, repeats, name)
    estimator = Estimator(journals, ask_server=ask_server)
    each, factor = estimator.estimates(calls), len(left) / max(1, len(sampled))
    stages = tuple(_stage(stage, found, sampled, factor) for stage, found in _by_stage(each).items())
    total, seconds = _total(stages, each, sampled), estimator.seconds(each)
    return Plan(
        stages=stages,
        total=total,
        answers=len(asked) * repeats,
        done=len(asked) * repeats - len(left),
        sampled=len(sampled),
        saved=1 - len(calls) / used if used > len(calls) else 0.0,
        failed=failed,
        tokenisers=estimator.tokenisers,
        prices=estimator.prices,
        seconds=None if seconds is None else seconds * factor / _at_once(model, concurrency),
        paced=_paced(model, total),
        concurrency=concurrency,
        budget=budget,
        spent=_spent(run, model, budget),
    )


def _at_once(model: ConnectedLM, concurrency: int) -> int:
    """How many calls are worked on at a time: a model in this process takes them one by one."""
    return 1 if isinstance(model.inner, LocalEngine) else concurrency


def _folders(run: str | Path | None, reuse: Iterable[str | Path]) -> Iterator[Path]:
    """The runs whose journals count; one's own need not be there yet."""
    if run is not None and (Path(run) / FILE).is_file():
        yield Path(run)
    yield from map(Path, reuse)


def _rehearsed(
    method: dspy.Module,
    some: Questions,
    model: ConnectedLM,
    turns: set[Turn],
    journals: Sequence[Path],
    repeats: int,
    name: str | None,
) -> tuple[list[Rehearsed], int, int]:
    """The calls of `turns` that are still to be made, how many they take in all, and how many turns failed."""
    if not turns:
        return [], 0, 0
    with tempfile.TemporaryDirectory(prefix="blendfilter-plan-") as folder:
        done = rehearse(method, some, model, Path(folder) / "run", reuse=journals, repeats=repeats, name=name)
        rows = [row for row in done.run.rows if _turn(row) in turns]
    calls = [call for call in done.calls if call.turn in turns]
    used = len({key for row in rows for _, key in row["calls"]})
    return calls, used, sum(row["error"] is not None for row in rows)


def _questions(given: Questions | Sequence[Any]) -> Questions:
    from blendfilter.tasks import load

    return given if isinstance(given, Questions) else load("qa", list(given))


def _numbers(repeats: int) -> range:
    return range(1, repeats + 1)


def _turns(questions: Iterable[Question], repeats: int) -> Iterator[Turn]:
    return ((number, question.id) for number in _numbers(repeats) for question in questions)


def _turn(row: Mapping[str, Any]) -> Turn:
    return repeat_of(row), row["id"]


def left_of(questions: Questions, repeats: int, run: Path | None) -> set[Turn]:
    """The answers that are still to be given; a question that ended in an error is asked again."""
    rows = iterate_rows(run / PREDICTIONS) if run is not None else ()
    return {*_turns(questions, repeats)} - {_turn(row) for row in rows if row["error"] is None}


def spread(questions: Sequence[Question], sample: int) -> list[Question]:
    """So many of them, evenly over the whole set: data sets are often sorted."""
    n = min(sample, len(questions))
    return [questions[int((place + 0.5) * len(questions) / n)] for place in range(n)]


def _by_stage(estimates: Iterable[Estimate]) -> dict[str, list[Estimate]]:
    found: dict[str, list[Estimate]] = {}
    for each in estimates:
        found.setdefault(each.call.stage or "call", []).append(each)
    return found


def _stage(name: str, each: Sequence[Estimate], sampled: Sequence[Turn], factor: float) -> Stage:
    tokens = {field: added(each, field) for field in FIGURES}
    scaled: dict[str, Any] = {
        field: None if value is None else factor * value if field.startswith("cost") else round(factor * value)
        for field, value in tokens.items()
    }
    fewest, most = _a_turn(each, sampled)
    return Stage(name, round(factor * len(each)), fewest, most, **scaled, measured=all(one.measured for one in each))


def _total(stages: Sequence[Stage], each: Sequence[Estimate], sampled: Sequence[Turn]) -> Stage:
    figures: dict[str, Any] = {field: added(stages, field) for field in FIGURES}
    measured = all(stage.measured for stage in stages)
    return Stage("total", sum(stage.calls for stage in stages), *_a_turn(each, sampled), **figures, measured=measured)


def _a_turn(each: Sequence[Estimate], sampled: Sequence[Turn]) -> tuple[int, int]:
    """The fewest and the most calls of an answer."""
    counted = Counter(one.call.turn for one in each)
    numbers = [counted[turn] for turn in sampled] or [0]
    return min(numbers), max(numbers)


def _paced(model: ConnectedLM, total: Stage) -> float | None:
    """Seconds that limits a minute take: what fits into the first minute goes out at once."""
    if (pace := model.terms.pace) is None:
        return None
    takes = ((total.calls, pace.requests_per_minute), (total.tokens_in + total.tokens_out, pace.tokens_per_minute))
    return max((60 * max(0.0, amount / limit - 1) for amount, limit in takes if limit), default=None)


def _spent(run: str | Path | None, model: ConnectedLM, budget: Budget | None) -> Amount:
    """What earlier sittings took of a budget."""
    if budget is None or run is None or not (Path(run) / FILE).is_file():
        return Amount()
    with Journal(run, "replay") as journal:
        return spent_in(journal, {model.name: model.terms.price}, budget)

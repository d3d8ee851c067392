"""What a run will take, before anything is spent: calls, tokens, dollars and time, stage by stage.

The method is rehearsed over some of the questions and the real index, with the offline reader in the model's place. The
stand-in answers under the model's own name, so calls that a journal holds answer for themselves, with the model's real
replies; the others are noted, each with its prompt as the model would read it, and counted by the best tokeniser at
hand. No model is called.

Replies are taken to be as long as earlier calls of the model in the same stage were, else as the reader's, and never
longer than their cap. A prompt that contains an earlier reply grows with it. *At most* is the same with every reply as
long as its cap.
"""

from __future__ import annotations

import asyncio
import functools
import tempfile
from collections import Counter, defaultdict
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any, NamedTuple

import dspy

from blendfilter import aio
from blendfilter.context import asker
from blendfilter.dspy_surface import lm15
from blendfilter.errors import NoKey, check_count
from blendfilter.evaluation.checks import check_leak, check_reader
from blendfilter.evaluation.ledger import money
from blendfilter.evaluation.own_program import ANSWER, Inputs, ProgramCall, as_program
from blendfilter.evaluation.rows import repeat_of
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_folder import PREDICTIONS, iterate_rows
from blendfilter.evaluation.run_loop import AnswerKey
from blendfilter.evaluation.run_settings import without_none
from blendfilter.evaluation.runner import as_questions, evaluated
from blendfilter.files import AnyPath, path_of, paths_of
from blendfilter.journal import FILE, Journal
from blendfilter.lm.batches import MOST_LINES, Batch, Gatherer
from blendfilter.lm.budget import Amount, Budget, reply_cap, spent_in
from blendfilter.lm.journaled import prompt_of, text_of
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.lm.offline import OfflineEngine
from blendfilter.lm.prices import unknown_price
from blendfilter.lm.tokenisers import TokenCounter, tokeniser_for
from blendfilter.records import Question
from blendfilter.run_context import (
    CONCURRENCY,
    AnyLM,
    lms_of,
    prices_by_name,
    with_lms_connected,
)
from blendfilter.table import Table
from blendfilter.tasks.base import Questions
from blendfilter.text import html_of

SAMPLE = 20
"""Questions that a plan is made from."""
SHORTEST = 20
"""Characters of an earlier reply from which on a prompt is searched for it; a shorter one weighs nothing."""
FIGURES = ("tokens_in", "tokens_in_most", "tokens_out", "tokens_out_most", "cost", "cost_most")
_HEADER = (
    "stage",
    "a question",
    "calls",
    "tokens in",
    "at most",
    "tokens out",
    "at most",
    "cost",
    "at most",
)


# --- the rehearsal --------------------------------------------------------------------------------------------------


class RehearsedCall(NamedTuple):
    """A call that would have to be made; `cap`: tokens of its reply at the most, None where nothing bounds it."""

    turn: AnswerKey
    stage: str
    prompt: str
    reply: str
    cap: int | None
    lm: ConnectedLM


class Rehearsal:
    """The offline reader in the place of any model, and the calls that it answered.

    With `batched`, calls are gathered as in a run of batches and answered at once; `rounds` are the batches' sizes.
    """

    def __init__(self, *, batched: bool = False) -> None:
        self.calls: list[RehearsedCall] = []
        self.rounds: list[int] = []
        self.batched = batched
        self._gatherer: Gatherer[None, None] | None = None
        self._reader = OfflineEngine()

    def stand_in(self, lm: ConnectedLM) -> ConnectedLM:
        """`lm` as far as keys and prompts go."""
        engine = SimpleNamespace(complete=functools.partial(self._complete, lm))
        settings = without_none(lm.kwargs)
        return ConnectedLM(
            lm.name, engine, profile=lm.profile, identity=lm.identity, **settings
        )

    async def of(self, work: Awaitable[Run]) -> Run:
        """The result of `work`, whose models are stand-ins."""
        if not self.batched:
            return await work
        self._gatherer = Gatherer(self._answer)
        running = asyncio.get_running_loop().create_task(self._gatherer.run())
        try:
            return await work
        finally:
            running.cancel()

    async def _complete(self, lm: ConnectedLM, request: lm15.Request) -> lm15.Response:
        response = await self._reader.complete(request)
        reply = "".join(part.text for part in response.message.parts_of(lm15.TextPart))
        here, prompt, cap = asker(), text_of(prompt_of(request)), reply_cap(lm.inner, request)
        turn = here.repeat, here.question
        self.calls.append(RehearsedCall(turn, here.stage, prompt, reply, cap, lm))
        if self._gatherer is not None:
            await self._gatherer.join(None)
        return response

    def _answer(self) -> None:
        assert self._gatherer is not None
        waiting, self._gatherer.waiting = self._gatherer.waiting, []
        self.rounds += [len(waiting)] * bool(waiting)
        for _, future in waiting:
            if future.set_running_or_notify_cancel():
                future.set_result(None)


def _connected(lm: AnyLM) -> ConnectedLM:
    try:
        return connect(lm)
    except NoKey:
        return connect(lm, api_key="none")


def rehearse(
    method: dspy.Module,
    questions: Questions,
    lm: ConnectedLM,
    folder: Path,
    *,
    filter_lm: ConnectedLM | None,
    reuse: Iterable[Path],
    repeats: int = 1,
    name: str | None,
    batched: bool = False,
    **call: Any,
) -> tuple[Run, Rehearsal]:
    """Answer `questions` with stand-ins, in `folder`: the run, and the calls that no journal holds.

    Raises: as `evaluate`, but for what only a server says.
    """
    made = Rehearsal(batched=batched)
    # a model of the method's own that were called here would be paid for
    copied = with_lms_connected(method)
    for own in lms_of(copied):
        own.put(made.stand_in(connect(own.lm)))
    work = evaluated(
        copied,
        questions,
        lm=made.stand_in(lm),
        filter_lm=None if filter_lm is None else made.stand_in(filter_lm),
        run=folder,
        reuse=reuse,
        repeats=repeats,
        progress=False,
        name=name,
        concurrency=MOST_LINES if batched else CONCURRENCY,
        **call,
    )
    return aio.run(made.of(work), "plan", "await asyncio.to_thread(plan, …)"), made


# --- the estimate ---------------------------------------------------------------------------------------------------


Growth = dict[str, tuple[float, float | None]]
"""By an earlier reply, how many tokens longer than it the model's is, and is at most."""


class CallEstimate(NamedTuple):
    """One call's tokens and dollars; None where unknown, or (at most) where the reply has no cap."""

    call: RehearsedCall
    tokens_in: float
    tokens_in_most: float | None
    tokens_out: float
    tokens_out_most: float | None
    cost: float | None
    cost_most: float | None
    measured: bool


def known_sum(values: Iterable[Any]) -> Any:
    """The sum of the values; None where any is None."""
    values = list(values)
    return None if None in values else sum(values)


def added(estimates: Iterable[Any], figure: str) -> Any:
    """The sum of one of the `FIGURES`; None where it is None anywhere."""
    return known_sum(getattr(estimate, figure) for estimate in estimates)


class Estimator:
    """Estimates calls by the best tokeniser of each model and by earlier calls in `journals`.

    `rate`: the share of each model's price that they cost.
    """

    def __init__(
        self, journals: Sequence[Path] = (), *, ask_server: bool = False, rate: float = 1.0
    ) -> None:
        self._ask_server, self._journals, self._rate = ask_server, journals, rate
        self._models: dict[str, tuple[ConnectedLM, TokenCounter]] = {}
        # of earlier calls, by model and by its stages too
        self._seconds = defaultdict[tuple[str, ...], list[float]](list)
        self._replies = defaultdict[tuple[str, ...], list[int]](list)
        for record in _successful_calls(journals):
            model, stage = record["model"], record["stage"]
            for key in ((model,), (model, stage)):
                self._seconds[key].append(record.get("seconds") or 0.0)
            if record.get("tokens_out") is not None:
                self._replies[model, stage].append(record["tokens_out"])

    @property
    def tokenisers(self) -> dict[str, str]:
        """Whose tokens were counted, by the model's name."""
        unheard = " (--ask-server: no server that counts tokens, by /tokenize, was found)"
        return {
            name: counter.name + unheard * (self._ask_server and not counter.served)
            for name, (_, counter) in self._models.items()
        }

    @property
    def prices(self) -> dict[str, str]:
        """What tokens cost, by the model's name, in words, or why that is unknown."""
        return {
            name: unknown_price(name, lm.terms.prices)
            if (price := lm.terms.price) is None
            else f"${price.input:g} in and ${price.output:g} out a million tokens"
            for name, (lm, _) in self._models.items()
        }

    def estimates(self, calls: Iterable[RehearsedCall]) -> list[CallEstimate]:
        """An estimate a call, in their order."""
        growth = defaultdict[AnswerKey, Growth](dict)
        return [self._estimate(call, growth[call.turn]) for call in calls]

    def _estimate(self, call: RehearsedCall, earlier: Growth) -> CallEstimate:
        """`earlier`: that of replies that the prompt may contain."""
        lm, cap = call.lm, call.cap
        price = None if (full := lm.terms.price) is None else full.times(self._rate)
        if lm.name not in self._models:
            calls = _successful_calls(self._journals)
            counter = tokeniser_for(lm, ask_server=self._ask_server, calls=calls)
            self._models[lm.name] = lm, counter
        count = self._models[lm.name][1].count
        here, past = count(call.reply), self._replies[lm.name, call.stage]
        expected = fmean(past) if past else float(here)
        if cap is not None:
            expected = min(expected, cap)
        grown = [growth for text, growth in earlier.items() if text in call.prompt]
        counted = count(call.prompt)
        prompt = counted + sum(growth for growth, _ in grown)
        most = known_sum([counted, *(growth for _, growth in grown)])
        if len(text := call.reply.strip()) >= SHORTEST:
            earlier[text] = expected - here, None if cap is None else cap - here
        cost = None if price is None else price.of(round(prompt), round(expected))
        cost_most = (
            None if price is None or most is None or cap is None else price.of(round(most), cap)
        )
        return CallEstimate(call, prompt, most, expected, cap, cost, cost_most, bool(past))

    def seconds(self, estimates: Iterable[CallEstimate], at_once: int = 1) -> float | None:
        """How long the calls would take, so many at once; None where a model was never called before.

        A model in this process takes as many as it writes at a time.
        """
        total = 0.0
        for call in (estimate.call for estimate in estimates):
            name = call.lm.name
            past = self._seconds[name, call.stage] or self._seconds[name,]
            if not past:
                return None
            side_by_side = min(at_once, getattr(call.lm.inner, "batch_size", at_once))
            total += fmean(past) / side_by_side
        return total or None


def _successful_calls(journals: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for path in journals:
        with Journal(path, "replay") as journal:
            yield from (record for record in journal.records("call") if not record.get("error"))


# --- the plan -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedStage:
    """One stage's share of what is still to be done; `fewest` to `most` calls an answer.

    `cost` is None where it is unknown; the fields ending in `_most` are for replies as long as their caps, and are None
    where a reply has none. `models`: the names of those that it asks.
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
    measured: bool
    models: tuple[str, ...]


@dataclass(frozen=True)
class Sample:
    """The answers that a plan is made from, each of which stands for `factor` of those still to be given."""

    answers: Sequence[AnswerKey]
    factor: float

    def figures(
        self, calls: Iterable[RehearsedCall], estimator: Estimator, concurrency: int
    ) -> dict[str, Any]:
        """What the `calls` of the sample say of the whole run, by the fields of its `RunPlan`."""
        sampled = (call for call in calls if call.turn in self.answers)
        estimates = estimator.estimates(sampled)
        seconds = estimator.seconds(estimates, concurrency)
        by_model, paced = dict[str, PlannedStage](), list[float]()
        for lm in {estimate.call.lm.name: estimate.call.lm for estimate in estimates}.values():
            called = [estimate for estimate in estimates if estimate.call.lm.name == lm.name]
            one = by_model[lm.name] = self._total(f"of {lm.name}", called)
            if (pace := lm.terms.pace) is not None:
                tokens = one.tokens_in + one.tokens_out
                takes = (one.calls, pace.requests_per_minute), (tokens, pace.tokens_per_minute)
                # what fits into the first minute goes out at once
                paced += [60 * max(0.0, amount / limit - 1) for amount, limit in takes if limit]
        return {
            "stages": self._stages(estimates),
            "total": self._total("total", estimates),
            "by_model": by_model,
            "seconds": None if seconds is None else seconds * self.factor,
            "paced": max(paced, default=None),
            "tokenisers": estimator.tokenisers,
            "prices": estimator.prices,
        }

    def _stages(self, estimates: Iterable[CallEstimate]) -> tuple[PlannedStage, ...]:
        by_stage = defaultdict[str, list[CallEstimate]](list)
        for estimate in estimates:
            by_stage[estimate.call.stage or "call"].append(estimate)
        return tuple(self._stage(name, calls) for name, calls in by_stage.items())

    def _total(self, name: str, estimates: Sequence[CallEstimate]) -> PlannedStage:
        """All of them under one name, as the sums of their stages' rounded figures."""
        stages = self._stages(estimates)
        sums = {figure: added(stages, figure) for figure in ("calls", *FIGURES)}
        return replace(self._stage(name, estimates), **sums)

    def _stage(self, name: str, estimates: Sequence[CallEstimate]) -> PlannedStage:
        figures = {figure: added(estimates, figure) for figure in FIGURES}
        for figure, value in figures.items():
            if value is not None:
                scaled = self.factor * value
                figures[figure] = scaled if figure.startswith("cost") else round(scaled)
        counted = Counter(estimate.call.turn for estimate in estimates)
        numbers = [counted[answer] for answer in self.answers] or [0]
        return PlannedStage(
            name,
            round(self.factor * len(estimates)),
            min(numbers),
            max(numbers),
            **figures,
            measured=all(estimate.measured for estimate in estimates),
            models=tuple(dict.fromkeys(estimate.call.lm.name for estimate in estimates)),
        )


@dataclass(frozen=True)
class RunPlan:
    """What a run will still take, stage by stage in the order of first use."""

    stages: tuple[PlannedStage, ...]
    total: PlannedStage
    answers: int  # that the run is to give in all
    done: int  # of them, in earlier sessions
    sampled: int  # what the plan was made from
    failed: int  # of the sampled ones
    tokenisers: Mapping[str, str]  # whose tokens, by the model's name
    prices: Mapping[str, str]  # in words, by the model's name
    # at `concurrency`, as earlier calls took; None: no earlier call is known
    seconds: float | None
    paced: float | None  # seconds that the model's limits a minute take in any case
    concurrency: int
    budget: Budget | None
    spent: Amount  # of the budget, in earlier sessions
    by_model: Mapping[str, PlannedStage]  # the total's parts, by the model's name
    batch: Batch | None
    rounds: tuple[int, ...]  # calls of each batch, where there are some

    def text(self) -> str:
        """The plan as aligned text, with how to read it below."""
        return f"{self._nothing_left or self.table().text()}\n"

    def __repr__(self) -> str:
        return self.text()  # what a prompt shows is the table

    def _repr_html_(self) -> str:
        nothing = self._nothing_left
        return f"<p>{html_of(nothing)}</p>" if nothing else self.table().html()

    @property
    def _nothing_left(self) -> str:
        if self.done < self.answers:
            return ""
        return f"all {self.answers} answers are there: nothing is left to ask"

    def table(self) -> Table:
        """The stages, the total, and its parts where there are several models."""
        parts = list(self.by_model.values()) if len(self.by_model) > 1 else []
        rows = [
            [*_cells(stage), ", ".join(stage.models) if parts else "-"] for stage in self.stages
        ]
        rows += [[*_cells(stage), ""] for stage in (self.total, *parts)]
        table = Table(
            [*_HEADER, "model"], rows, notes=list(self.notes()), totals=1 + len(parts)
        )
        return table.without_empty(("-", ""))

    def notes(self) -> Iterator[str]:
        """How the plan was made, a line each."""
        yield "nothing was spent: the offline reader stood in for the model"
        left = self.answers - self.done
        there = f", {self.done:,} are there already" if self.done else ""
        of = "all of them" if self.sampled == left else f"{self.sampled} of them, evenly spread"
        yield f"answers: {left:,} to give{there}; planned from {of}"
        if self.failed:
            yield f"errors: {self.failed} of these ended in an error, and may have made fewer calls than the model will"
        yield from of_models("tokens", self.tokenisers)
        if known := [stage.stage for stage in self.stages if stage.measured]:
            yield f"replies: as long as earlier ones ({', '.join(known)})"
        if others := [stage.stage for stage in self.stages if not stage.measured]:
            yield f"replies: as long as the offline reader's, a model's may be longer ({', '.join(others)})"
        yield "at most: every reply as long as its cap; second tries and failed attempts come on top"
        if self.total.fewest != self.total.most:
            yield "calls vary from question to question, and the model's replies decide how many there are"
        for line in of_models("cost", self.prices):
            yield line + "; cached prompt tokens may cost less" * (": $" in line)
        if (batch := self.batch) is not None:
            sizes = (
                f"{len(self.rounds)}, of {', '.join(f'{size:,}' for size in self.rounds)} calls"
            )
            yield f"batches: about {sizes}; lines that fail are asked again, in more of them"
            if batch.folder is None:
                share = f"{batch.rate:.0%} of the price, as in a provider's batch"
                yield f"cost: {share}; each is done within {batch.window}"
            else:
                yield f"files: in {batch.folder}; after each batch the command stops until it is answered"
        elif self.seconds is None:
            yield "time: not known, for no earlier call of the model is journaled"
        else:
            at_once = f"{self.concurrency} calls in flight"
            yield f"time: about {duration(self.seconds)} with {at_once}, as fast as earlier ones"
        if self.paced is not None:
            yield f"pace: no sooner than in {duration(self.paced)}, for so much a minute is allowed"
        yield from self._fits()

    def _fits(self) -> Iterator[str]:
        """A line for each limit: whether it is enough."""
        total = self.total
        tokens_most = known_sum((total.tokens_in_most, total.tokens_out_most))
        takes = (
            ("calls", "--max-calls ", total.calls, total.calls),
            ("tokens", "--max-tokens ", total.tokens_in + total.tokens_out, tokens_most),
            ("dollars", "--max-cost $", total.cost, total.cost_most),
        )
        for name, option, expected, at_most in takes:
            if self.budget is None or (limit := getattr(self.budget, name)) is None:
                continue
            spent = getattr(self.spent, name)
            left = limit - spent
            if expected is None:
                verdict = "it is not known whether that is enough"
            elif expected > left:
                share = max(0.0, 100 * left / expected)
                verdict = (
                    f"not enough, the run will stop at about {share:.0f} % of what is left"
                )
            elif at_most is not None and at_most <= left:
                verdict = "enough"
            else:
                verdict = "enough as expected, not at most"
            sign = option.rpartition(" ")[2]
            already = f", {sign}{spent:,.4g} of it spent" if spent else ""
            yield f"{option}{limit:,.10g}{already}: {verdict}"


def _cells(stage: PlannedStage) -> Iterator[str]:
    yield stage.stage
    yield f"{stage.fewest}" if stage.fewest == stage.most else f"{stage.fewest} to {stage.most}"
    yield f"{stage.calls:,}"
    for figure in FIGURES[:4]:
        number = getattr(stage, figure)
        yield "-" if number is None else f"{number:,}"
    yield from map(money, (stage.cost, stage.cost_most))


def of_models(what: str, words: Mapping[str, str]) -> Iterator[str]:
    """A line for each of the `words` about models, by their names, which are said where there are several."""
    for name, text in words.items():
        yield f"{what} of {name}: {text}" if len(words) > 1 else f"{what}: {text}"


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
    lm: AnyLM | None = None,
    *,
    filter_lm: AnyLM | None = None,
    run: AnyPath | None = None,
    reuse: AnyPath | Iterable[AnyPath] = (),
    repeats: int = 1,
    sample: int = SAMPLE,
    concurrency: int = CONCURRENCY,
    ask_server: bool = False,
    budget: Budget | None = None,
    name: str | None = None,
    batch: Batch | None = None,
    inputs: Inputs | None = None,
    answer: str = ANSWER,
) -> RunPlan:
    """What `evaluate` with the same arguments will still take.

    Args:
        run: the run's folder, if there is one already: its answers and calls count as made.
        reuse: other runs or their folders (or one) whose calls may be used.
        sample: how many of the questions still to be answered the plan is made from, evenly spread.
        ask_server: count tokens by the server's own tokeniser, where it has one to ask (vLLM, llama.cpp).

    The other arguments and all errors are those of `evaluate`, but for a missing key: no call is made.
    """
    sample = check_count("sample", sample)
    method = as_program(method)
    every = as_questions(questions, ProgramCall.of(inputs, answer, questions))
    model = _connected(lm or dspy.settings.lm or "offline")
    judge = None if filter_lm is None else _connected(filter_lm)
    # the rehearsal is another model's
    models = [model] if judge is None else [model, judge]
    check_leak(method, every, models)
    check_reader(method, model)
    journals, spent = paths_of(reuse), Amount()
    folder = None if run is None else path_of(run)
    if folder is not None and (folder / FILE).is_file():
        journals.insert(0, folder)
        if budget is not None:
            models += [_connected(own.lm) for own in lms_of(method)]
            with Journal(folder, "replay") as journal:
                spent = spent_in(journal, prices_by_name(models), budget)
    left = left_of(every, repeats, folder)
    ids = {id for _, id in left}
    chosen = spread([question for question in every if question.id in ids], sample)
    answers = [key for key in _answer_keys(chosen, repeats) if key in left]
    sampled = Sample(answers, len(left) / max(1, len(answers)))
    made, failed = Rehearsal(), 0
    if answers:
        some = Questions(tuple(chosen), every.task, every.source)
        options: dict[str, Any] = {
            "inputs": inputs,
            "answer": answer,
            "name": name,
            "repeats": repeats,
        }
        options |= {"filter_lm": judge, "reuse": journals, "batched": batch is not None}
        with tempfile.TemporaryDirectory(prefix="blendfilter-plan-") as scratch:
            tried, made = rehearse(method, some, model, Path(scratch, "run"), **options)
            ended = [row for row in tried.rows if row["error"] is not None]
        failed = sum((repeat_of(row), row["id"]) in answers for row in ended)
    rate = 1.0 if batch is None else batch.rate
    estimator = Estimator(journals, ask_server=ask_server, rate=rate)
    return RunPlan(
        **sampled.figures(made.calls, estimator, concurrency),
        answers=len(every) * repeats,
        done=len(every) * repeats - len(left),
        sampled=len(answers),
        failed=failed,
        concurrency=concurrency,
        budget=budget,
        spent=spent,
        batch=batch,
        rounds=tuple(round(size * sampled.factor) for size in made.rounds),
    )


def _answer_keys(questions: Iterable[Question], repeats: int) -> Iterator[AnswerKey]:
    return ((repeat, question.id) for repeat in range(1, repeats + 1) for question in questions)


def left_of(questions: Questions, repeats: int, run: Path | None) -> set[AnswerKey]:
    """The answers that are still to be given; a question that ended in an error is answered again."""
    rows = iterate_rows(run / PREDICTIONS) if run is not None else ()
    return {*_answer_keys(questions, repeats)} - {
        (repeat_of(row), row["id"]) for row in rows if row["error"] is None
    }


def spread(questions: Sequence[Question], sample: int) -> list[Question]:
    """So many of them, evenly over the whole set: data sets are often sorted."""
    n = min(sample, len(questions))
    return [questions[int((place + 0.5) * len(questions) / n)] for place in range(n)]

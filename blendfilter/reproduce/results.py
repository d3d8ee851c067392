"""A table's runs beside what was published: value and interval, difference, a paired test, calls and tokens.

Every measure of a run is a list of values a question, one an answer: a score, recall of what was kept, words of the
context, tokens, a judge's calls. All of them get an interval and, against the table's reference row over the same
questions, a paired difference: exact McNemar for right and wrong, else the paired bootstrap. Holm's correction goes
over all that the table tests on a measure. No p is given where the offline reader answered.

What filters leave is measured as Wang et al. 2023 (FilCo) do, sections 3.2, 4.4 and 4.5; what a judge's verdicts take,
after Ma et al. 2024 (CDIT), section 5.4 and Table 4, which prints seconds alone; what a refiner leaves, after Jin et
al. 2024 (BIDER), Tables 1, 4 and 6.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from blendfilter.evaluation.ledger import busy_seconds, calls_by_answer, per_question
from blendfilter.evaluation.rows import (
    KEPT,
    corpus_words,
    kept_known,
    repeats_in,
    retrieval_known,
    searched_in,
)
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_passages import AnswerContext, contexts
from blendfilter.lm.prices import cost_of
from blendfilter.lm.tokenisers import TokenCounter, tokeniser, tokeniser_for
from blendfilter.oracles.candidates import sentences_of
from blendfilter.oracles.measures import strinc
from blendfilter.oracles.silver_making import supported
from blendfilter.oracles.silver_rows import Figures, figures_of
from blendfilter.records import Passage, Question
from blendfilter.report import plots
from blendfilter.report.run_text import trimmed
from blendfilter.reproduce.inputs import JUDGING_STAGES
from blendfilter.reproduce.runs import LeftOut, TablePlace, TableRun, not_run
from blendfilter.reproduce.sources import grouped
from blendfilter.reproduce.tables import FigureFormat, PaperTable, PrintedFigures, format_of
from blendfilter.reproduce.verdicts import MARGIN, Verdict, beside_published
from blendfilter.statistics import holm, interval, mcnemar_exact, paired_bootstrap
from blendfilter.tasks import TASKS

SECONDS_IN_ALL, RAW = "seconds_in_all", "inclusion_raw"
UNREAD = ("unparseable_ids", "suspect_ids")
"""Events of a filter that may then have kept everything."""
_HAS_NONE = math.nan
"""The value of an answer that a measure has none of, and that counts in no mean."""

Pairs = Sequence[tuple[TableRun, Run]]
Values = dict[str, list[float]]
"""A measure's values by question, one an answer."""
Measures = Mapping[str, float | None]
"""An answer's values by measure; None: unknown."""


class _OfRow:
    group: str
    label: str

    @property
    def name(self) -> str:
        """The group and label of its row."""
        return ", ".join(filter(None, (self.group, self.label)))


@dataclass(frozen=True)
class ResultLine(_OfRow):
    """One measure of one row on one task, in fractions of 1; `point` is a figure's K, or which answers count.

    `calls` and `tokens` are a question's (None: unknown), `difference` is measured - published. `gain` is measured -
    the reference's measured, with the ends of its paired interval; `p` tests that one, and `published_gain` is the one
    printed. `imp` is what the reference has more than the row, in percent of the row's (None: of 0), `published_imp`
    the printed one. `bound`: the row's filter reads the answer; `failed`: every question of its run ended in an error,
    so that its value is none; `missing`: it could not be run here, or no answer of `run` has one, so likewise. A
    measure of `NUMBERS` is a number; `of_reference` is its share of the reference's. `prompt_tokens`, `tokens_in` and
    `fronts` are a frontier's. `reader` and `filter` are the models that answered and filtered.
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
    failed: bool = False
    missing: bool = False
    published_gain: float | None = None
    verdict: Verdict | None = None
    published_imp: float | None = None
    imp: float | None = None
    reader: str = ""
    filter: str = ""


@dataclass(frozen=True)
class AverageGain(_OfRow):
    """A row's difference from the reference, on average over `over` of the `of` places that were printed."""

    group: str
    label: str
    published: float
    measured: float | None
    over: int
    of: int


@dataclass(frozen=True)
class TableResult:
    """A table as measured; `calls_used` by all of its `runs`, of which `calls_different` were really made."""

    table: PaperTable
    lines: tuple[ResultLine, ...]
    notes: tuple[str, ...]
    runs: int
    calls_used: int
    calls_different: int
    reader: str
    repeats: int
    offline: bool
    errors: int
    averages: tuple[AverageGain, ...] = ()


def result(
    table: PaperTable,
    wanted: Sequence[TableRun],
    done: Mapping[Path, Run],
    *,
    notes: Sequence[str] = (),
    left_out: Sequence[LeftOut] = (),
    margin: float = MARGIN,
) -> TableResult:
    """The lines of `table` out of its finished runs, and of the rows that were `left_out`, with the reason of each."""
    pairs = [(one, done[one.folder]) for one in wanted]
    offline = any(run.offline for run in done.values())
    counting = tokeniser() if offline else tokeniser_for(wanted[0].lm)
    points = []
    for one, run in pairs:
        # of a run that failed nothing is known; of several samples another one may be right
        failed = run.failed and not table.samples
        values = {} if failed else values_of(_readings(table, one, run, counting))
        points.append(MeasuredPoint(one, one.point.name, ((one, run),), values))
    if table.samples:
        points = list(_best_of(points))
    points += [MeasuredPoint(one, one.point.name) for one in left_out]
    tasks = [point.one.task for point in points]
    rows = [(row.group, row.label) for row in table.rows]
    points.sort(
        key=lambda point: (tasks.index(point.one.task), rows.index(point.one.place[1:]))
    )
    lines = list(_lines(table, points, offline, margin / 100))
    if table.kind == "frontier":
        lines = _on_the_front(lines, pairs)
    if not offline:
        lines = corrected(lines)
    # Runs of other tasks are not reused: a call that two tasks make alike is made for each.
    calls = set[tuple[str, str]]()
    for run in done.values():
        calls |= {(run.settings["task"], key) for row in run.rows for _, key in row["calls"]}
    return TableResult(
        table=table,
        lines=tuple(lines),
        notes=(
            *notes,
            *not_run(left_out),
            *_sizes(table, pairs),
            *_notes(table, pairs, counting),
        ),
        runs=len(done),
        calls_used=sum(run.metrics["ledger"]["total"]["calls"] for run in done.values()),
        calls_different=len(calls),
        reader=", ".join(dict.fromkeys(one.reader for one in wanted)),
        repeats=max(repeats_in(run.settings) for run in done.values()),
        offline=offline,
        errors=sum(run.errors for run in done.values()),
        averages=tuple(_averages(table, lines)),
    )


def _averages(table: PaperTable, lines: Sequence[ResultLine]) -> Iterator[AverageGain]:
    for row in table.rows:
        if row.average_gain is not None:
            gains = [
                line.gain
                for line in lines
                if line.name == row.name and line.measure != RAW
                if line.gain is not None and line.published is not None
            ]
            measured = fmean(gains) if gains else None
            of = len(row.published) + len(row.at)
            yield AverageGain(row.group, row.label, row.average_gain, measured, len(gains), of)


# --- points ---


class MeasuredPoint(NamedTuple):
    """A point of a row with its values, by measure and side: none where it failed or was not run.

    `pairs` are its run: none where it was not run, several where the best of their answers counts.
    """

    one: TablePlace
    name: str
    pairs: Pairs = ()
    values: Mapping[tuple[str, str], Values] = {}

    @property
    def failed(self) -> bool:
        """Whether every question of its runs ended in an error."""
        return bool(self.pairs) and all(run.failed for _, run in self.pairs)


def _best_of(points: Iterable[MeasuredPoint]) -> Iterator[MeasuredPoint]:
    """Of each row the first answer alone, then by each measure the best of all answers to a question."""
    for _, row in groupby(points, lambda point: point.one.place):
        answers = list(row)
        first = answers[0]
        yield first._replace(name="one answer")
        best = {
            key: {
                # of several repeats, the first
                question: [max(answer.values[key][question][0] for answer in answers)]
                for question in values
            }
            for key, values in first.values.items()
        }
        pairs = [pair for answer in answers for pair in answer.pairs]
        yield MeasuredPoint(first.one, f"best of {len(answers)}", pairs, best)


# --- lines ---


def _lines(
    table: PaperTable, points: Sequence[MeasuredPoint], offline: bool, margin: float
) -> Iterator[ResultLine]:
    """Each point's lines: those with a value, and those that are missing."""
    places = {(*point.one.place, point.name): point for point in points}
    of_task = defaultdict[str, dict[str, None]](dict)
    for point in points:
        of_task[point.one.task].update((measure, None) for measure, _ in point.values)
    # What the offline reader answers is compared with nothing; what its filters leave can be.
    compared = table.about.compared or not offline
    for point in points:
        row, task = point.one.row, point.one.task
        against = table.reference(row) or row
        # a row with a K of its own is tested too; in a sweep, against the reference at the same K
        there = places.get((task, against.group, against.label, point.name), point)
        apart = compared and there is not point and not (there.failed or point.failed)
        for (measure, side), values in point.values.items():
            line = _line(point, measure, values, side)
            before = there.values.get((measure, side))
            if apart and before is not None:
                line = with_gain(line, before, values, p_values=not offline)
            # where the published figure is one of scores, too
            published = None if table.samples else line.published
            if line.difference is not None and published is not None:
                scores = _alike(values.values())
                found = beside_published(table, *point.pairs[0], published, scores, margin)
                line = replace(line, verdict=found)
            yield line
        # no answer has one: what is published stands there all the same
        names: Iterable[str] = row.measures(task, point.one.point.k)
        if point.failed or not point.pairs:
            # so that a row that failed or was left out is not missing: of the measures of the other rows
            names = of_task[task] or names
        known = {measure for measure, _ in point.values}
        for name in names:
            if name not in known:
                yield _line(point, name)


def _line(
    point: MeasuredPoint, measure: str, values: Values | None = None, side: str = ""
) -> ResultLine:
    """The measure's value and the ends of its interval at one point, beside what was published; None: it has none."""
    one = point.one
    made, run = point.pairs[0] if point.pairs else (None, None)
    value, low, high = (0.0, 0.0, 0.0) if values is None else _interval(measure, values)
    printed = one.row.printed(one.task, one.point.k) or PrintedFigures()
    published = None
    if len(point.pairs) < 2:
        # what was published as inclusion says not whether it was normalised: both stand beside it
        published = getattr(printed, "inclusion" if measure == RAW else measure, None)
    known = values is not None and not point.failed and format_of(measure).digits is None
    used = [per_question(each) for _, each in point.pairs]
    return ResultLine(
        task=one.task,
        group=one.row.group,
        label=one.row.label,
        ours=one.row.ours,
        measure=measure,
        value=value,
        low=low,
        high=high,
        n=len(one.questions),
        errors=run.errors if run else 0,
        calls=math.fsum(calls for calls, _ in used),
        tokens=_total(tokens for _, tokens in used) if used else None,
        run=run.name if run else "",
        point=f"{side} ({len(values or ())})" if side else point.name,
        published=published,
        difference=value - published if known and published is not None else None,
        bound=one.row.reads_gold(one.task),
        failed=point.failed,
        missing=values is None and not point.failed,
        published_gain=(printed.gains or {}).get(measure),
        reader=made.reader if made else "",
        filter=made.filter_name if made else "",
        published_imp=printed.imp if measure == TASKS[one.task].metrics[0] else None,
    )


def with_gain(line: ResultLine, before: Values, after: Values, *, p_values: bool) -> ResultLine:
    """`line` with its difference from the reference, over the questions that both have."""
    shared = [name for name in before if name in after]
    form = format_of(line.measure)
    if not shared or not form.tested:
        return line
    one, other = ([values[name] for name in shared] for values in (before, after))
    scale, shares = _shares(form, [*one, *other])
    test = paired_bootstrap(shares[: len(one)], shares[len(one) :], seed=0)
    p = test.p
    if form.yes_no and all(len(each) == 1 for each in (*one, *other)):
        p = mcnemar_exact(one, other).p
    most, less = (fmean(map(fmean, values)) for values in (one, other))
    return replace(
        line,
        gain=scale * test.difference,
        gain_low=scale * test.low,
        gain_high=scale * test.high,
        p=p if p_values else None,
        of_reference=less / most if form.share and most else None,
        imp=None if line.published_imp is None or not less else 100 * (most - less) / less,
    )


def _interval(measure: str, values: Values) -> Sequence[float]:
    answers, form = values.values(), format_of(measure)
    alike = {value for answer in answers for value in answer}
    if form.alike and len(alike) == 1:
        # so many calls by design, or one figure for all of a run: there is nothing to draw from
        return [*alike] * 3
    scale, shares = _shares(form, answers)
    return [scale * end for end in interval(_alike(shares), seed=0)]


def _alike(values: Iterable[list[float]]) -> list[list[float]]:
    """As many values a question for each: their means, where some questions have more of them."""
    every = list(values)
    return every if len(set(map(len, every))) == 1 else [[fmean(each)] for each in every]


def _shares(
    form: FigureFormat, values: Collection[Sequence[float]]
) -> tuple[float, list[list[float]]]:
    """Values as the shares that intervals take: numbers by the greatest of them, which comes first."""
    scale = 1.0 if form.digits is None else max(map(max, values), default=0.0) or 1.0
    return scale, [[value / scale for value in each] for each in values]


def corrected(lines: Sequence[ResultLine]) -> list[ResultLine]:
    """`lines` with Holm's correction over all tasks: one family for what leads and is right or wrong, one for another.

    What leads is the task's first measure, or inclusion where that is what was published. Two rows that are the same
    run (beside the figures of two readers) are one test.
    """
    rough = {
        line.task
        for line in lines
        if line.measure == "inclusion" and line.published is not None
    }

    def family(line: ResultLine) -> str:
        leading = "inclusion" if line.task in rough else TASKS[line.task].metrics[0]
        yes_no = line.measure == leading and format_of(leading).yes_no
        return "right or wrong" if yes_no else line.measure

    test_of = attrgetter("run", "measure", "point", "p")
    holms: dict[tuple[Any, ...], float] = {}
    tested = grouped((family(line), test_of(line)) for line in lines if line.p is not None)
    for tests in tested.values():
        holms.update(zip(tests, holm([p for *_, p in tests]), strict=True))
    return [replace(line, p_holm=holms.get(test_of(line))) for line in lines]


def _on_the_front(lines: Iterable[ResultLine], pairs: Pairs) -> list[ResultLine]:
    """Lines with their input tokens and the fronts that they are on."""
    fronts = {task: plots.frontier(named) for task, named in by_label(pairs).items()}
    changed = []
    for line in lines:
        if line.missing:
            changed.append(line)
            continue
        front = fronts[line.task]
        dot = next(dot for dot in front.dots if dot.label == line.name)
        on = tuple(cost for cost in plots.FRONTIER_COSTS if dot in front.front(cost))
        prompt, paid = (
            None if math.isnan(tokens) else tokens
            for tokens in (dot.prompt_tokens, dot.tokens_in)
        )
        changed.append(replace(line, prompt_tokens=prompt, tokens_in=paid, fronts=on))
    return changed


def by_label(pairs: Pairs) -> dict[str, dict[str, Run]]:
    """Each task's runs, by the group and label of their rows."""
    found = defaultdict[str, dict[str, Run]](dict)
    for one, run in pairs:
        found[one.task][one.row.name] = run
    return found


# --- measures: the values of a run ---


class Reading(NamedTuple):
    """One measure of one answer; None: unknown. `side`: whether the question's passages support the output."""

    measure: str
    question: str
    value: float | None
    side: str = ""


def values_of(readings: Iterable[Reading]) -> dict[tuple[str, str], Values]:
    """The values by measure and side, without measures of which any value is unknown, or of which there is none."""
    found: dict[tuple[str, str], Values] = {}
    unknown = set()
    for measure, question, value, side in readings:
        values = found.setdefault((measure, side), {})
        if value is None:
            unknown.add((measure, side))
        elif not math.isnan(value):
            values.setdefault(question, []).append(float(value))
    return {key: values for key, values in found.items() if values and key not in unknown}


def _readings(
    table: PaperTable, one: TableRun, run: Run, of: TokenCounter
) -> Iterator[Reading]:
    """What a table of its kind measures of a run; `of` counts tokens."""
    kind = table.kind
    if kind == "frontier":
        leading = next(iter(run.metrics["metrics"]))
        yield from (reading for reading in _scores(run) if reading.measure == leading)
    elif table.about.scores:
        yield from _scores(run)
    if kind in _OF_RUNS:
        yield from _OF_RUNS[kind](run)
    elif kind == "sides":
        for each in _contexts(one, run, of):
            yield from _sides(each)
    elif kind in _OF_CONTEXTS:
        for each in _contexts(one, run, of):
            # of one that failed it is not even known that it was empty
            if kind == "support" or not each.context.failed:
                for measure, value in _OF_CONTEXTS[kind](each).items():
                    yield Reading(measure, each.question.id, value)


def _scores(run: Run) -> Iterator[Reading]:
    for metric in run.metrics["metrics"]:
        for row in run.rows:
            yield Reading(metric, row["id"], 0.0 if row["error"] else float(row[metric]))


class ReadContext(NamedTuple):
    """What one answer was given to read; `tokens` counts them."""

    task: str
    context: AnswerContext
    question: Question
    tokens: TokenCounter

    @property
    def supported(self) -> bool | None:
        """Whether what was retrieved supports the output; None: unknown."""
        retrieved = self.context.retrieved
        known = retrieved or not self.context.failed
        return supported(self.task, self.question, retrieved) if known else None

    def figures(self, passages: Sequence[Passage]) -> Figures:
        """How much of `passages` is the output's."""
        question = self.question
        return figures_of(passages, question.question, question.golden_answers[0], self.tokens)


def _contexts(one: TableRun, run: Run, tokens: TokenCounter) -> Iterator[ReadContext]:
    questions = {question.id: question for question in one.questions}
    for context in contexts(run):
        yield ReadContext(one.task, context, questions[context.row["id"]], tokens)


def _retrieval(run: Run) -> Iterator[Reading]:
    for row in run.rows:
        if retrieval_known(row) and kept_known(row):
            figures = row["retrieval"].get(KEPT, {})
            for measure in ("recall", "precision", "s_precision"):
                yield Reading(measure, row["id"], figures.get(measure, 0.0))


def _sides(each: ReadContext) -> Iterator[Reading]:
    """An answer's scores, on the side of its question; on the other one it has none."""
    for side, here in (("positive", True), ("negative", False)):
        for metric in TASKS[each.task].metrics:
            value = each.context.row[metric] if each.supported is here else _HAS_NONE
            yield Reading(metric, each.question.id, value, side)


def _support(each: ReadContext) -> Measures:
    """Whether a question's passages support the output, and the mean precision of those that do (section 3.2)."""
    if not each.supported:
        return {} if each.supported is None else {"supported": 0.0}
    precise = [
        each.figures([passage]).precision
        for passage in each.context.retrieved
        if supported(each.task, each.question, [passage])
    ]
    return {"supported": 1.0, "positive_precision": fmean(precise)}


def _precision(each: ReadContext) -> Measures:
    figures = each.figures(each.context.kept)
    return {
        "output_precision": figures.precision,
        "where_kept": _HAS_NONE if figures.empty else figures.not_empty,
        "by_characters": figures.characters,
        "empty": figures.empty,
    }


def _tokens(each: ReadContext) -> Measures:
    kept, prompt = each.figures(each.context.kept), each.context.tokens.prompt
    return {"context_tokens": kept.tokens, "answer_prompt": prompt}


def _refined(each: ReadContext) -> Measures:
    text = "\n".join(passage.line for passage in each.context.kept)
    return {"refined_tokens": each.tokens.count(text) if text else 0}


def _alignment(each: ReadContext) -> Measures:
    """Whether an answer stands in what is left, and in which sentence."""
    kept, answers = each.context.kept, each.question.golden_answers
    place = first_gold(kept, answers)
    return {
        "gold_in_output": gold_in(kept, answers),
        "gold_position": _HAS_NONE if place is None else place,
    }


def gold_in(kept: Sequence[Passage], answers: Iterable[str]) -> float:
    """1.0 where one of `answers` stands in what is kept, whatever full stops it has; titles do not count.

    >>> gold_in([Passage("1", "Pier", "It went to Yahoo! Inc. in May.")], ["Yahoo! Inc."])
    1.0
    """
    return strinc(" ".join(passage.text for passage in kept), answers)


def first_gold(kept: Sequence[Passage], answers: Iterable[str]) -> int | None:
    """The number of the first sentence with one of `answers` in it, from 1; None where no sentence has one whole.

    >>> first_gold([Passage("1", "Pier", "It is long. Ada built it.")], ["Ada"])
    2
    """
    numbered = enumerate(sentences_of(kept), 1)
    return next((at for at, sentence in numbered if strinc(sentence.text, answers)), None)


def latency(run: Run) -> Iterator[Reading]:
    """Seconds of the call that answers, of those before it, which refined what it reads, and of both.

    What a filter does without a call is no part of them.
    """
    for name, calls in calls_by_answer(run):
        *before, last = [float(call.get("seconds") or 0.0) for call in calls] or [0.0]
        yield Reading("refining_seconds", name, float(sum(before)))
        yield Reading("answering_seconds", name, last)
        yield Reading("total_seconds", name, sum(before) + last)


def judging(run: Run) -> Iterator[Reading]:
    """What the stage that judges took; tokens and dollars are unknown where those of a call are.

    A call that questions share counts in each, with its own figures. `seconds_in_all` has one value, under no question:
    the seconds in which at least one such call was in flight. Dollars are those of a thousand such questions.
    """
    judged = list(calls_by_answer(run, JUDGING_STAGES))
    once = {call["key"]: call for _, calls in judged for call in calls}
    for name, calls in judged:
        tokens = [call.get(side) for call in calls for side in ("tokens_in", "tokens_out")]
        costs = [cost_of(call, None) for call in calls]
        yield Reading("judging_calls", name, len(calls))
        yield Reading("judging_tokens", name, _total(tokens))
        yield Reading(
            "judging_seconds", name, sum(call.get("seconds") or 0.0 for call in calls)
        )
        yield Reading(SECONDS_IN_ALL, "", _HAS_NONE)  # its place in the table
        yield Reading(
            "dollars_a_thousand", name, _total(cost and 1000 * cost for cost in costs)
        )
    if judged:
        yield Reading(SECONDS_IN_ALL, "", busy_seconds(once.values()))


def _total(numbers: Iterable[float | None]) -> float | None:
    known = list(numbers)
    return None if None in known else sum(filter(None, known))


_OF_RUNS = {"retrieval": _retrieval, "judging": judging, "latency": latency}
_OF_CONTEXTS = {
    "support": _support,
    "precision": _precision,
    "tokens": _tokens,
    "refined": _refined,
    "alignment": _alignment,
}
"""What kinds of tables measure of what each answer was given to read."""


# --- notes ---


def _sizes(table: PaperTable, pairs: Pairs) -> Iterator[str]:
    """How many questions the paper's data sets have, beside those of the files."""
    for task, questions in {one.task: one.questions for one, _ in pairs}.items():
        if (size := table.sizes.get(task)) is not None:
            parts = size.model_dump(exclude={"evaluated"}, exclude_none=True)
            paper = ", ".join(f"{part} {count:,}" for part, count in parts.items())
            there = f"of the {questions.rows:,} rows of " if questions.rows else "from "
            here = f"{len(questions):,} were run, {there}{questions.source}"
            yield f"{task}: the paper's data set has {paper} (it reports on {size.evaluated}); here {here}"


def _notes(table: PaperTable, pairs: Pairs, counting: TokenCounter) -> Iterator[str]:
    """Corpora, rows without a score, how contexts were counted and what of them is unknown, bounds that are none."""
    searched = [
        f"{one.task}: searched {index['kind']} over {corpus_words(corpus) or 'an unknown corpus'}"
        for one, run in pairs
        for index, corpus in zip(
            run.settings["retrievers"], searched_in(run.settings), strict=True
        )
    ]
    yield from dict.fromkeys(searched)
    for one, run in pairs:
        unread = sum(run.metrics["flags"].get(event, 0) for event in UNREAD)
        words = f"replies of its filter that could not be read: {unread:,}" * bool(unread)
        words = "failed, every question ended in an error" if run.failed else words
        if words:
            yield f"{one.task}: {one.label}: {words}"
    if table.kind == "tokens":
        yield f"context: a line Title | text a passage, counted by {counting.name}; prompt: as the server counted it"
    if table.kind == "refined":
        yield f"# tok: of what is left of the passages, a line Title | text each, counted by {counting.name}"
    if table.kind == "sides":
        for task, group in groupby(pairs, key=lambda pair: pair[0].task):
            found = [each.supported for each in _contexts(*next(group), counting)]
            if unknown := found.count(None):
                yield f"{task}: of {unknown} answers it is not known whether their passages support the output"
    for one, run in pairs:
        if one.row.reads_gold(one.task):
            answered = [row for row in run.rows if row["error"] is None]
            if empty := sum(not row["knowledge"] for row in answered):
                counts = f"empty for {empty:,} of {len(answered):,} answers"
                yield f"{one.task}: {one.label}: {counts}: no upper bound there, for nothing was read"
    for one, run in pairs:
        if one.trimmed:
            yield from (f"{one.task}: {one.label}: {line}" for line in trimmed(run.rows))

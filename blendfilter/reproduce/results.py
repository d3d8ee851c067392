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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from blendfilter.evaluation.ledger import busy_seconds, tokens_of
from blendfilter.evaluation.rows import KEPT, kept_known, repeats_in, retrieval_known
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_passages import AnswerContext, contexts
from blendfilter.evaluation.statistics import holm, interval, mcnemar_exact, paired_bootstrap
from blendfilter.lm.prices import cost_of
from blendfilter.lm.tokenisers import TokenCounter, tokeniser, tokeniser_for
from blendfilter.oracles.candidates import sentences_of
from blendfilter.oracles.measures import strinc
from blendfilter.oracles.silver_making import supported
from blendfilter.oracles.silver_rows import figures_of
from blendfilter.records import Passage, Question
from blendfilter.report import plots
from blendfilter.reproduce.inputs import JUDGING_STAGES
from blendfilter.reproduce.runs import LeftOut, PlannedPoint, TableRun
from blendfilter.reproduce.tables import OF_CONTEXTS, PaperTable
from blendfilter.tasks import TASKS

RIGHT_OR_WRONG = ("em", "accuracy", "inclusion", "inclusion_raw")
SECONDS_IN_ALL = "seconds_in_all"
OF_JUDGING = (
    "judging_calls",
    "judging_tokens",
    "judging_seconds",
    SECONDS_IN_ALL,
    "dollars_a_thousand",
)
IN_TOKENS = ("context_tokens", "answer_prompt", "refined_tokens")
OF_LATENCY = ("refining_seconds", "answering_seconds", "total_seconds")
POSITION = "gold_position"
NUMBERS = (*IN_TOKENS, *OF_JUDGING, *OF_LATENCY, POSITION)
"""Measures that are numbers (of tokens, calls, seconds, dollars, or a place), not shares."""
_OF_WHAT_IS_LEFT = ("precision", "tokens", "judging", "latency", "support")
"""Kinds of tables whose rows compare under the offline reader too: they measure what is read, not what is answered."""

Pairs = Sequence[tuple[TableRun, Run]]
Values = dict[str, list[float]]
"""A measure's values by question, one an answer."""


@dataclass(frozen=True)
class ResultLine:
    """One measure of one row on one task, in fractions of 1; `point` is a figure's K, or which answers count.

    `calls` and `tokens` are a question's (None: unknown), `difference` is measured - published. `gain` is measured -
    the reference's measured, with the ends of its paired interval; `p` tests that one, and `published_gain` is the one
    printed. `bound`: the row's filter reads the answer; `failed`: every question of its run ended in an error, so that
    its value is none; `missing`: it could not be run here, so likewise. A measure of `NUMBERS` is a number;
    `of_reference` is its share of the reference's. `prompt_tokens`, `tokens_in` and `fronts` are a frontier's.
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


def result(
    table: PaperTable,
    wanted: Sequence[TableRun],
    done: Mapping[Path, Run],
    *,
    notes: Sequence[str] = (),
    left_out: Sequence[LeftOut] = (),
) -> TableResult:
    """The lines of `table` out of its finished runs, and of the rows that were `left_out`, with the reason of each."""
    pairs = [(one, done[one.folder]) for one in wanted]
    offline = any(run.offline for run in done.values())
    counting = tokeniser() if offline else tokeniser_for(wanted[0].lm)
    lines = list(_best_of(pairs) if table.samples else _lines(table, pairs, counting, offline))
    if table.kind == "frontier":
        lines = _on_the_front(lines, pairs)
    # Runs of other tasks are not reused: a call that two tasks make alike is made for each.
    keys = {
        (run.settings["task"], key)
        for run in done.values()
        for row in run.rows
        for _, key in row["calls"]
    }
    lines = lines if offline else corrected(lines)
    return TableResult(
        table,
        tuple(_with_left_out(lines, left_out, table)),
        (
            *notes,
            *dict.fromkeys(one.note for one in left_out),
            *_failures(pairs),
            *_counted(table, pairs, counting),
            *_empty_bounds(pairs),
            *_dropped(table, pairs),
        ),
        len(done),
        sum(run.metrics["ledger"]["total"]["calls"] for run in done.values()),
        len(keys),
        wanted[0].lm.name,
        max(repeats_in(run.settings) for run in done.values()),
        offline,
        sum(run.errors for run in done.values()),
    )


# --- lines ---


def _lines(
    table: PaperTable, pairs: Pairs, counting: TokenCounter, offline: bool
) -> Iterator[ResultLine]:
    measured = {
        (one.place, one.point): (run.name, _measured(table, one, run, counting))
        for one, run in pairs
    }
    failed = {run.name for _, run in pairs if run.failed}
    # What the offline reader answers is compared with nothing; what its filters leave can be.
    compared = table.kind in _OF_WHAT_IS_LEFT or not (
        offline or table.kind in ("retrieval", "frontier")
    )
    for one, run in pairs:
        reference = table.reference(one.row)
        place = (one.task, reference.group, reference.label) if reference else one.place
        name, before = measured.get((place, one.point), ("", {}))
        if run.failed:
            # A row that said nothing of itself would be missing: its measures are those of the other rows.
            others = (
                values
                for (place, _), (_, values) in measured.items()
                if place[0] == one.task and values
            )
            for measure, side in next(others, {}):
                yield line_of(one, run, measure, (0.0, 0.0, 0.0), side or one.point.name)
            continue
        for (measure, side), values in measured[one.place, one.point][1].items():
            point = f"{side} ({len(values)})" if side else one.point.name
            line = line_of(one, run, measure, _interval(measure, values), point)
            apart = compared and name not in {run.name, *failed}
            paired = before.get((measure, side)) if apart else None
            yield line if paired is None else with_gain(line, paired, values, p_values=not offline)


def _with_left_out(
    lines: Sequence[ResultLine], left_out: Sequence[LeftOut], table: PaperTable
) -> list[ResultLine]:
    """`lines`, and at their places those of the rows that were left out: what was published, and no value."""
    found = list(lines)
    for one in left_out:
        printed = one.row.printed(one.task, one.point.k)
        published = (
            {}
            if printed is None
            else printed.model_dump(exclude={"imp", "gains"}, exclude_none=True)
        )
        others = dict.fromkeys(
            line.measure for line in lines if line.task == one.task and not line.missing
        )
        found += (
            ResultLine(
                *one.place,
                one.row.ours,
                measure,
                0.0,
                0.0,
                0.0,
                one.n,
                0,
                0.0,
                None,
                "",
                one.point.name,
                published.get(measure),
                bound=one.row.reads_gold(one.task),
                missing=True,
                published_gain=None if printed is None else (printed.gains or {}).get(measure),
            )
            for measure in others or published
        )
    tasks = list(dict.fromkeys(line.task for line in found))
    rows = [(row.group, row.label) for row in table.rows]
    return sorted(
        found, key=lambda line: (tasks.index(line.task), rows.index((line.group, line.label)))
    )


def line_of(one: TableRun, run: Run, measure: str, ends: Sequence[float], point: str) -> ResultLine:
    """The line of one run: the measure's value and the ends of its interval, beside what was published of it."""
    value, low, high = ends
    printed = one.row.printed(one.task, one.point.k)
    published = getattr(printed, measure, None)
    return ResultLine(
        *one.place,
        one.row.ours,
        measure,
        value,
        low,
        high,
        run.metrics["n"],
        run.errors,
        *a_question(run),
        run.name,
        point,
        published,
        None if published is None or measure in NUMBERS or run.failed else value - published,
        bound=one.row.reads_gold(one.task),
        failed=run.failed,
        published_gain=None if printed is None else (printed.gains or {}).get(measure),
    )


def a_question(run: Run) -> tuple[float, float | None]:
    """Calls and tokens that a run used for a question, on average; None where the tokens are unknown."""
    total, n = run.metrics["ledger"]["total"], len(run.rows)
    tokens = tokens_of(total)
    return total["calls"] / n, None if tokens is None else tokens / n


def with_gain(line: ResultLine, before: Values, after: Values, *, p_values: bool) -> ResultLine:
    """`line` with its difference from the reference, over the questions that both have."""
    shared = [name for name in before if name in after]
    # What is left elsewhere is over other questions; what all of a run took has no question.
    if not shared or line.measure in ("where_kept", SECONDS_IN_ALL):
        return line
    one, other = ([values[name] for name in shared] for values in (before, after))
    scale = _scale(line.measure, (*one, *other))
    test = paired_bootstrap(_over(one, scale), _over(other, scale), seed=0)
    p = test.p
    if line.measure in RIGHT_OR_WRONG and all(len(each) == 1 for each in (*one, *other)):
        p = mcnemar_exact([first for (first,) in one], [first for (first,) in other]).p
    most = fmean(map(fmean, one))
    share = (
        fmean(map(fmean, other)) / most
        if line.measure in NUMBERS and line.measure != POSITION and most
        else None
    )
    gain, low, high = scale * test.difference, scale * test.low, scale * test.high
    return replace(
        line, gain=gain, gain_low=low, gain_high=high, p=p if p_values else None, of_reference=share
    )


def _interval(measure: str, values: Values) -> Sequence[float]:
    answers = values.values()
    if (
        measure in (*OF_JUDGING, "refined_tokens")
        and len(alike := {value for each in answers for value in each}) == 1
    ):
        return (
            [*alike] * 3
        )  # so many calls by design, or one figure for all of a run: there is nothing to draw from
    scale = _scale(measure, answers)
    shares = _over(answers, scale)
    # one number a question where each has one (or they have unequal numbers), else as many numbers for each
    several = len(lengths := set(map(len, shares))) == 1 and lengths != {1}
    return [
        scale * end
        for end in interval(shares if several else [fmean(each) for each in shares], seed=0)
    ]


def _scale(measure: str, values: Iterable[Sequence[float]]) -> float:
    """The divisor that makes shares of numbers, as intervals take them: the greatest of them."""
    return (max(map(max, values), default=0.0) or 1.0) if measure in NUMBERS else 1.0


def _over(values: Iterable[Sequence[float]], scale: float) -> list[list[float]]:
    return [[value / scale for value in each] for each in values]


def _best_of(pairs: Pairs) -> Iterator[ResultLine]:
    """Of each row the first answer alone, then for each measure the best of all answers to a question."""
    for _, row in groupby(pairs, lambda pair: pair[0].place):
        points = list(row)
        first, run = points[0]
        scores = {
            metric: [_scores(each, metric) for _, each in points]
            for metric in run.metrics["metrics"]
        }
        spent = [a_question(each) for _, each in points]
        tokens = [each for _, each in spent if each is not None]
        for metric, (alone, *_) in scores.items():
            yield line_of(first, run, metric, _interval(metric, alone), "one answer")
        for metric, by_run in scores.items():  # of several repeats, the first
            best = [max(values[name][0] for values in by_run) for name in by_run[0]]
            yield replace(
                line_of(first, run, metric, interval(best, seed=0), f"best of {len(points)}"),
                calls=sum(calls for calls, _ in spent),
                tokens=sum(tokens) if len(tokens) == len(points) else None,
                published=None,
                difference=None,
                failed=all(each.failed for _, each in points),
            )


def corrected(lines: Sequence[ResultLine]) -> list[ResultLine]:
    """`lines` with Holm's correction over all tasks: one family for what leads and is right or wrong, one for another.

    What leads is the task's first measure, or inclusion where that is what was published. Two rows that are the same
    run (beside the figures of two readers) are one test.
    """
    changed = list(lines)
    rough = {
        line.task for line in lines if line.measure == "inclusion" and line.published is not None
    }
    families: dict[str, dict[Any, list[int]]] = {}
    for place, line in enumerate(lines):
        if line.p is not None:
            leading = "inclusion" if line.task in rough else TASKS[line.task].metrics[0]
            family = "right or wrong" if line.measure == leading in RIGHT_OR_WRONG else line.measure
            families.setdefault(family, {}).setdefault(
                (line.run, line.measure, line.point, line.p), []
            ).append(place)
    for tests in families.values():
        for places, p in zip(tests.values(), holm([test[-1] for test in tests]), strict=True):
            for place in places:
                changed[place] = replace(changed[place], p_holm=p)
    return changed


def _on_the_front(lines: Sequence[ResultLine], pairs: Pairs) -> list[ResultLine]:
    """The leading metric's lines, each with its input tokens and the fronts it is on."""
    fronts = {task: plots.frontier(named) for task, named in by_label(pairs).items()}
    changed = []
    for line in lines:
        front = fronts[line.task]
        if line.measure == front.metric:
            dot = next(
                dot
                for dot in front.dots
                if dot.label == ", ".join(filter(None, (line.group, line.label)))
            )
            on = tuple(cost for cost in plots.FRONTIER_COSTS if dot in front.front(cost))
            prompt, paid = (
                None if math.isnan(tokens) else tokens
                for tokens in (dot.prompt_tokens, dot.tokens_in)
            )
            changed.append(replace(line, prompt_tokens=prompt, tokens_in=paid, fronts=on))
    return changed


def by_label(pairs: Pairs) -> dict[str, dict[str, Run]]:
    """Each task's runs, by the group and label of their rows."""
    found: dict[str, dict[str, Run]] = {}
    for one, run in pairs:
        found.setdefault(one.task, {})[one.row.name] = run
    return found


# --- measures: the values of a run ---


def _measured(
    table: PaperTable, one: TableRun, run: Run, counting: TokenCounter
) -> dict[tuple[str, str], Values]:
    """The values of a run by measure and side: questions whose passages support the output, or do not; "": all."""
    metrics = list(run.metrics["metrics"])
    if table.kind == "sides":
        sides: dict[bool | None, list[Mapping[str, Any]]] = {}
        for context, question in _contexts(one, run):
            sides.setdefault(_supported(one.task, question, context), []).append(context.row)
        return {
            (metric, name): _values((row["id"], float(row[metric])) for row in sides[side])
            for side, name in ((True, "positive"), (False, "negative"))
            if side in sides
            for metric in metrics
        }
    if table.kind == "judging":
        found = judging_values(run)
    elif table.kind == "retrieval":
        found = {
            measure: _values(
                (row["id"], row["retrieval"].get(KEPT, {}).get(measure, 0.0))
                for row in run.rows
                if retrieval_known(row) and kept_known(row)
            )
            for measure in ("recall", "precision", "s_precision")
        }
    elif table.kind in OF_CONTEXTS:
        found = _of_contexts(table, one, run, counting)
    elif table.kind == "latency":
        found = latency_values(run)
    else:
        found = {metric: _scores(run, metric) for metric in metrics}
        if table.kind in ("refined", "alignment"):
            found |= _of_refined(table, one, run, counting)
    return {(measure, ""): values for measure, values in found.items() if values}


def _of_contexts(
    table: PaperTable, one: TableRun, run: Run, counting: TokenCounter
) -> dict[str, Values]:
    if table.kind == "support":
        return _of_support(one, run, counting)
    # What was to be read when an answer failed is unknown: not even that it was empty.
    read = [
        (
            each.row["id"],
            each.tokens.prompt,
            figures_of(each.kept, item.question, item.golden_answers[0], counting),
        )
        for each, item in _contexts(one, run)
        if not each.failed
    ]
    if table.kind == "tokens":
        known = all(tokens is not None for _, tokens, _ in read)
        return {
            "context_tokens": _values((name, figures.tokens) for name, _, figures in read),
            "answer_prompt": _values(
                (name, float(tokens or 0)) for name, tokens, _ in read if known
            ),
        }
    return {
        "output_precision": _values((name, figures.precision) for name, _, figures in read),
        "where_kept": _values(
            (name, figures.not_empty) for name, _, figures in read if not figures.empty
        ),
        "by_characters": _values((name, figures.characters) for name, _, figures in read),
        "empty": _values((name, figures.empty) for name, _, figures in read),
    }


def _of_support(one: TableRun, run: Run, counting: TokenCounter) -> dict[str, Values]:
    """Whether a question's passages support the output, and the mean precision of those that do (section 3.2)."""
    found: dict[str, list[tuple[str, float]]] = {"supported": [], "positive_precision": []}
    for each, item in _contexts(one, run):
        if (support := _supported(one.task, item, each)) is None:
            continue
        found["supported"].append((each.row["id"], float(support)))
        if support:
            positive = [
                passage for passage in each.retrieved if supported(one.task, item, [passage])
            ]
            figures = [
                figures_of([one], item.question, item.golden_answers[0], counting)
                for one in positive
            ]
            found["positive_precision"].append(
                (each.row["id"], fmean(each.precision for each in figures))
            )
    return {measure: _values(pairs) for measure, pairs in found.items()}


def _of_refined(
    table: PaperTable, one: TableRun, run: Run, counting: TokenCounter
) -> dict[str, Values]:
    """Tokens of what is left, without the question; or whether an answer stands in it, and in which sentence."""
    read = [
        (each.row["id"], each.kept, item.golden_answers)
        for each, item in _contexts(one, run)
        if not each.failed
    ]
    if table.kind == "refined":
        lines = [(name, "\n".join(passage.line for passage in kept)) for name, kept, _ in read]
        return {
            "refined_tokens": _values(
                (name, float(counting.count(text)) if text else 0.0) for name, text in lines
            )
        }
    places = [(name, first_gold(kept, answers)) for name, kept, answers in read]
    return {
        "gold_in_output": _values((name, gold_in(kept, answers)) for name, kept, answers in read),
        POSITION: _values((name, float(place)) for name, place in places if place is not None),
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
    found = (
        at for at, sentence in enumerate(sentences_of(kept), 1) if strinc(sentence.text, answers)
    )
    return next(found, None)


def latency_values(run: Run) -> dict[str, Values]:
    """Seconds of the call that answers, of those before it, which refined what it reads, and of both, by question.

    What a filter does without a call is no part of them. An answer that failed is left out.
    """
    found: dict[str, list[tuple[str, float]]] = {measure: [] for measure in OF_LATENCY}
    with run.journal() as journal:
        for row in run.rows:
            if row["error"] is None:
                calls = [
                    journal.read_call(key) or {}
                    for key in dict.fromkeys(key for _, key in row["calls"])
                ]
                *before, last = [float(call.get("seconds") or 0.0) for call in calls] or [0.0]
                for measure, seconds in zip(
                    OF_LATENCY, (sum(before), last, sum(before) + last), strict=True
                ):
                    found[measure].append((str(row["id"]), seconds))
    return {measure: _values(pairs) for measure, pairs in found.items()}


def _scores(run: Run, metric: str) -> Values:
    return _values((row["id"], 0.0 if row["error"] else float(row[metric])) for row in run.rows)


def _values(pairs: Iterable[tuple[str, float]]) -> Values:
    found: Values = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def _contexts(one: TableRun, run: Run) -> Iterator[tuple[AnswerContext, Question]]:
    questions = {question.id: question for question in one.questions}
    return ((each, questions[each.row["id"]]) for each in contexts(run))


def _supported(task: str, question: Question, each: AnswerContext) -> bool | None:
    """Whether what was retrieved supports the output; None: unknown."""
    return None if each.failed and not each.retrieved else supported(task, question, each.retrieved)


def judging_values(run: Run) -> dict[str, Values]:
    """What the stage that judges took, each measure by question; without tokens or dollars where a call has none.

    An answer that failed is left out, because it stopped early; a call that questions share counts in each, with its
    own figures. `seconds_in_all` has one value, under no question: the seconds in which at least one such call was in
    flight. Dollars are those of a thousand such questions.
    """
    judged: list[tuple[str, list[Mapping[str, Any]]]] = []
    with run.journal() as journal:
        for row in run.rows:
            if row["error"] is None:
                keys = dict.fromkeys(key for stage, key in row["calls"] if stage in JUDGING_STAGES)
                judged.append(
                    (
                        str(row["id"]),
                        [call for key in keys if (call := journal.read_call(key)) is not None],
                    )
                )
    once = {call["key"]: call for _, calls in judged for call in calls}
    figures_by_call: dict[str, Callable[[Mapping[str, Any]], Sequence[float | None]]] = {
        "judging_calls": lambda call: [1],
        "judging_tokens": lambda call: [call.get("tokens_in"), call.get("tokens_out")],
        "judging_seconds": lambda call: [call.get("seconds") or 0.0],
        SECONDS_IN_ALL: lambda call: [],
        "dollars_a_thousand": lambda call: [
            None if (cost := cost_of(call, None)) is None else 1000 * cost
        ],
    }
    found: dict[str, Values] = {}
    for measure, figures_of_call in figures_by_call.items():
        totals = [
            (name, [one for call in calls for one in figures_of_call(call)])
            for name, calls in judged
        ]
        if all(None not in figures for _, figures in totals):
            found[measure] = _values(
                (name, float(sum(filter(None, figures)))) for name, figures in totals
            )
    return found | {SECONDS_IN_ALL: {"": [busy_seconds(once.values())]} if judged else {}}


# --- notes ---


def _failures(pairs: Pairs) -> Iterator[str]:
    """A line a row that has no score."""
    for one, run in pairs:
        if run.failed:
            yield f"{one.task}: {one.label}: failed, every question ended in an error"


def _counted(table: PaperTable, pairs: Pairs, counting: TokenCounter) -> Iterator[str]:
    """How a table of contexts was counted, and what of it is unknown."""
    if table.kind == "tokens":
        yield f"context: a line Title | text a passage, counted by {counting.name}; prompt: as the server counted it"
    if table.kind == "refined":
        yield f"# tok: of what is left of the passages, a line Title | text each, counted by {counting.name}"
    if table.kind == "sides":
        for task, group in groupby(pairs, key=lambda pair: pair[0].task):
            unknown = [
                _supported(task, question, each) for each, question in _contexts(*next(group))
            ].count(None)
            if unknown:
                yield f"{task}: of {unknown} answers it is not known whether their passages support the output"


def _empty_bounds(pairs: Pairs) -> Iterator[str]:
    """A line a row that reads the answer and left nothing to read: there it is no bound."""
    for one, run in pairs:
        answered = (
            [row for row in run.rows if row["error"] is None]
            if one.row.reads_gold(one.task)
            else []
        )
        if empty := sum(not row["knowledge"] for row in answered):
            counts = f"empty for {empty:,} of {len(answered):,} answers"
            yield f"{one.task}: {one.label}: {counts}: no upper bound there, for nothing was read"


def _dropped(table: PaperTable, pairs: Pairs) -> Iterator[str]:
    """A line a trimmed run: how many of the bare index's passages it no longer gives for the question itself.

    There is none where the bare index was not run.
    """
    bare: dict[tuple[str, str, PlannedPoint], Run] = {}
    found: dict[str, str] = {}
    # the runs of bare indexes first
    for one, run in sorted(pairs, key=lambda pair: "trimmed" in pair[0].row.settings(pair[0].task)):
        place = (one.task, table.role(one.row), one.point)
        if "trimmed" not in one.row.settings(one.task):
            if one.row.retrieves:
                bare.setdefault(place, run)
        elif place in bare:
            whole, left = (
                {
                    row["id"]: set(row["branches"]["q"]["retrieved"])
                    for row in each.rows
                    if "q" in row["branches"]
                }
                for each in (bare[place], run)
            )
            if gone := [len(whole[name] - left[name]) for name in whole if name in left]:
                counts = f"{fmean(gone):.2f} ({100 * fmean(map(bool, gone)):.0f} % of the questions lose any)"
                what = "passages of the bare index dropped for a question"
                found.setdefault(run.name, f"{one.task}: {one.label}: {what}: {counts}")
    yield from found.values()

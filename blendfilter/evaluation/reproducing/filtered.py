"""What filters leave of the passages: how much of it is the answer, how long it is, whom it helps.

Wang et al. 2023 (FilCo), sections 3.2, 4.4 and 4.5: Table 3, Figures 5 and 6. In: the runs of a table, whose rows and
journals say what each answer was read from. Out: its lines, each with its interval and a paired test against the
reference row over the same questions. What the figures are is `blendfilter.silver.summary`'s to say: silver files and
runs are measured alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from statistics import fmean
from typing import NamedTuple

from blendfilter.evaluation import frontier
from blendfilter.evaluation.contexts import Context, contexts
from blendfilter.evaluation.repeats import repeats_in
from blendfilter.evaluation.reproducing import judging
from blendfilter.evaluation.reproducing.lines import (
    IN_TOKENS,
    NUMBERS,
    OF_JUDGING,
    RIGHT_OR_WRONG,
    Line,
    line_of,
    place_of,
)
from blendfilter.evaluation.reproducing.papers import IN_ALL, Table
from blendfilter.evaluation.reproducing.runs import Wanted
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.statistics import interval, mcnemar_exact, paired_bootstrap
from blendfilter.lm.tokenisers import TokenCounter, tokeniser, tokeniser_for
from blendfilter.records import Question
from blendfilter.silver.making import supported
from blendfilter.silver.summary import figures_of

CONTEXT_TOKENS, ANSWER_PROMPT = IN_TOKENS
WHERE_KEPT = "where_kept"
POSITIVE, NEGATIVE = "positive", "negative"
Pairs = Sequence[tuple[Wanted, Run]]
Values = dict[str, list[float]]
"""A measure's values by question, one an answer."""


class Measured(NamedTuple):
    """One measure of one run, at one point (positive or negative passages), question by question."""

    measure: str
    point: str
    values: Values


def lines(table: Table, pairs: Pairs, seed: int, *, p_values: bool) -> tuple[list[Line], list[str]]:
    """The lines of a table of contexts, and notes on how they were counted."""
    found: list[Line] = []
    notes: list[str] = []
    if table.kind == "tokens":
        prompt = "words, as the offline reader counts" if pairs[0][1].offline else "as the model's server counted"
        notes.append(
            f"context: a line Title | text a passage, counted by {_counting(pairs).name}; prompt: {prompt}: compare "
            "rows, and not these two columns"
        )
    for _, group in groupby(pairs, key=lambda pair: pair[0].task):
        of_task = list(group)
        measured = {place_of(one): list(_measured(table, one, run, _counting(pairs))) for one, run in of_task}
        # What the offline reader answers is compared with nothing; what its filters leave can be.
        compared = p_values or table.kind != "sides"
        for one, run in of_task:
            reference = table.reference(one.row)
            against = measured.get((one.task, reference.group, reference.label), [])
            for each in measured[place_of(one)]:
                line = line_of(one, run, each.measure, _interval(each, seed), _point(each))
                alike = (held for held in against if held[:2] == each[:2] and compared and reference != one.row)
                paired = next(alike, None)
                found.append(line if paired is None else _held(line, paired.values, each.values, seed, p_values))
        notes += _unknown(table, *of_task[0])
    return found, notes


def _measured(table: Table, one: Wanted, run: Run, counting: TokenCounter) -> Iterator[Measured]:
    if table.kind == "judging":
        yield from (Measured(measure, "", values) for measure, values in judging.values(run).items())
        return
    questions = {question.id: question for question in one.questions}
    rows = [(each, questions[each.row["id"]]) for each in contexts(run)]
    if table.kind == "sides":
        yield from _sides(rows, one.task, list(run.metrics["metrics"]))
        return
    # What was to be read when an answer failed is not known: not even that it was empty.
    read = [(each, question) for each, question in rows if not each.failed]
    if read:
        yield from (_tokens if table.kind == "tokens" else _precision)(read, counting)


def _precision(rows: Sequence[tuple[Context, Question]], counting: TokenCounter) -> Iterator[Measured]:
    figures = [
        (each.row["id"], figures_of(each.kept, question.question, question.golden_answers[0], counting))
        for each, question in rows
    ]
    yield Measured("output_precision", "", _values((name, told.precision) for name, told in figures))
    if kept := _values((name, told.not_empty) for name, told in figures if not told.empty):
        yield Measured(WHERE_KEPT, "", kept)
    yield Measured("by_characters", "", _values((name, told.characters) for name, told in figures))
    yield Measured("empty", "", _values((name, told.empty) for name, told in figures))


def _tokens(rows: Sequence[tuple[Context, Question]], counting: TokenCounter) -> Iterator[Measured]:
    counted = (
        (each.row["id"], figures_of(each.kept, question.question, question.golden_answers[0], counting).tokens)
        for each, question in rows
    )
    yield Measured(CONTEXT_TOKENS, "", _values(counted))
    prompts = [(each.row["id"], each.tokens.prompt) for each, _ in rows]
    if (told := [(name, float(prompt)) for name, prompt in prompts if prompt is not None]) and len(told) == len(rows):
        yield Measured(ANSWER_PROMPT, "", _values(told))


def _sides(rows: Sequence[tuple[Context, Question]], task: str, metrics: Sequence[str]) -> Iterator[Measured]:
    for side in (POSITIVE, NEGATIVE):
        here = [each.row for each, question in rows if _supported(task, question, each) is (side == POSITIVE)]
        for metric in metrics if here else ():
            yield Measured(metric, side, _values((row["id"], float(row[metric])) for row in here))


def _supported(task: str, question: Question, each: Context) -> bool | None:
    """Whether what was retrieved supports the output; None: nobody knows."""
    return None if each.failed and not each.retrieved else supported(task, question, each.retrieved)


def _unknown(table: Table, one: Wanted, run: Run) -> Iterator[str]:
    if table.kind != "sides":
        return
    questions = {question.id: question for question in one.questions}
    told = [_supported(one.task, questions[each.row["id"]], each) for each in contexts(run)]
    if number := told.count(None):
        why = "no gold titles, or an error before any passage"
        yield f"{one.task}: of {number} answers nobody knows whether their passages support the output: {why}"


def _point(each: Measured) -> str:
    return f"{each.point} ({len(each.values)})" if each.point else ""


def _held(line: Line, before: Values, after: Values, seed: int, p_values: bool) -> Line:
    """`line` with what it is from the reference, over the questions that both have."""
    shared = [name for name in before if name in after]
    # What is left elsewhere is over other questions; what all of a run took has no question.
    if not shared or line.measure in (WHERE_KEPT, IN_ALL):
        return line
    one, other = ([values[name] for name in shared] for values in (before, after))
    scale = _scale(line.measure, (*one, *other))
    told = paired_bootstrap(_over(one, scale), _over(other, scale), seed=seed)
    p = told.p
    if line.measure in RIGHT_OR_WRONG and all(len(each) == 1 for each in (*one, *other)):
        p = mcnemar_exact([first for (first,) in one], [first for (first,) in other]).p
    most = fmean(map(fmean, one))
    share = fmean(map(fmean, other)) / most if line.measure in NUMBERS and most else None
    low, high = scale * told.low, scale * told.high
    if (
        line.measure in OF_JUDGING
        and len({round(fmean(b) - fmean(a), 9) for a, b in zip(one, other, strict=True)}) == 1
    ):
        low = high = scale * told.difference
    return replace(
        line, gain=scale * told.difference, gain_low=low, gain_high=high, p=p if p_values else None, of_reference=share
    )


def _interval(each: Measured, seed: int) -> list[float]:
    if each.measure in OF_JUDGING and len(alike := {value for values in each.values.values() for value in values}) == 1:
        return [*alike] * 3  # so many calls by design, or one figure for all of a run: nobody else was to be met
    scale = _scale(each.measure, each.values.values())
    scaled = dict(zip(each.values, _over(list(each.values.values()), scale), strict=True))
    return [scale * end for end in interval(_means(scaled), seed=seed)]


def _scale(measure: str, values: Iterable[Sequence[float]]) -> float:
    """What numbers are divided by to be shares, as intervals take them: the most that was met."""
    return (max(map(max, values), default=0.0) or 1.0) if measure in NUMBERS else 1.0


def _over(values: Sequence[Sequence[float]], scale: float) -> list[list[float]]:
    return [[value / scale for value in each] for each in values]


def _values(pairs: Iterator[tuple[str, float]] | Sequence[tuple[str, float]]) -> Values:
    found: Values = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def _means(values: Values) -> list[list[float]] | list[float]:
    each = list(values.values())
    if {len(scores) for scores in each} == {1}:
        return [score for (score,) in each]
    several = max(map(len, each))
    return each if min(map(len, each)) == several else [fmean(scores) for scores in each]


def _counting(pairs: Pairs) -> TokenCounter:
    """The reader's own tokeniser where it is at hand; the offline reader has none worth counting by."""
    one, run = pairs[0]
    return tokeniser() if run.offline else tokeniser_for(one.lm)


def empty_bounds(pairs: Pairs) -> Iterator[str]:
    """A line a task, where a row that reads the answer left nothing to read: there it is no bound."""
    bounds = [pair for pair in pairs if pair[0].row.reads_gold(pair[0].task)]
    for task, group in groupby(bounds, key=lambda pair: pair[0].task):
        told = []
        for one, run in group:
            answered = [row for row in run.rows if row["error"] is None]
            if empty := sum(not row["knowledge"] for row in answered):
                where = ", ".join(filter(None, (one.row.group, one.point.name)))
                of = "questions" if repeats_in(run.settings) == 1 else "answers"
                where = f" ({where})" if where else ""
                told.append(f"{one.row.label}{where}: empty for {empty:,} of {len(answered):,} {of}")
        if told:
            yield f"{task}: {'; '.join(told)}: no upper bound there, for nothing was read"


# --- the frontier ---


def on_the_front(found: Sequence[Line], pairs: Pairs) -> list[Line]:
    """The leading metric's lines, each with its input tokens and the fronts it is on."""
    leading = {one.task: next(iter(run.metrics["metrics"])) for one, run in pairs}
    fronts = {task: frontier.frontier(named) for task, named in by_label(pairs).items()}
    changed = []
    for line in (each for each in found if each.measure == leading[each.task]):
        told = fronts[line.task]
        dot = next(each for each in told.dots if each.label == f"{line.group}: {line.label}")
        on = tuple(cost for cost in frontier.COSTS if dot in told.front(cost))
        read, paid = (None if math.isnan(tokens) else tokens for tokens in (dot.prompt_tokens, dot.tokens_in))
        changed.append(replace(line, prompt_tokens=read, tokens_in=paid, fronts=on))
    return changed


def by_label(pairs: Pairs) -> dict[str, dict[str, Run]]:
    """Of each task its runs, by the group and label of their rows."""
    found: dict[str, dict[str, Run]] = {}
    for one, run in pairs:
        found.setdefault(one.task, {})[f"{one.row.group}: {one.row.label}"] = run
    return found

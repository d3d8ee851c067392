"""Runs side by side over the same questions: how far each is from a baseline, and whether that is more than chance.

In: the rows of several `predictions.jsonl`, by label. Out: a `Comparison`, which prints itself as text, as a rich table
and in a notebook, and gives plain data with `as_dict()`.

Every difference is run - baseline, with a paired bootstrap interval over questions (and over the answers within them,
where a question has several); the same seed draws the same questions for every measure and run. A measure that is right
or wrong (EM, accuracy, cover-EM, a judge's yes) is tested by exact McNemar where both runs have one answer a question,
everything else by the paired bootstrap. With several runs against one baseline, Holm's correction goes over the runs,
for each measure by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from blendfilter.errors import BadArgument, BadData, EmptyData, RunMismatch, UnknownName
from blendfilter.evaluation.compared import CORRECT, NO_P_VALUE, Comparison, Row
from blendfilter.evaluation.power import smallest_difference
from blendfilter.evaluation.repeats import repeat_of
from blendfilter.evaluation.resampling import RESAMPLES
from blendfilter.evaluation.statistics import holm, mcnemar_exact, paired_bootstrap

__all__ = ["CORRECT", "NO_P_VALUE", "Comparison", "Row", "check_tasks", "compare_predictions"]

Answers = list[Mapping[str, Any]]
"""The rows of one question, in the order of their repeats."""
Predictions = Mapping[str, Answers]
"""One run's rows by question id."""
Scores = list[list[float]]
"""A measure of every question, as many numbers as it has answers."""
FRACTIONS = ("f1",)
"""Measures that may lie between 0 and 1: which test is theirs must not hang on the scores that came out."""


def compare_predictions(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    metrics: Sequence[str],
    seed: int = 0,
    against: str | None = None,
    p_values: bool = True,
    tasks: Mapping[str, str] | None = None,
    resamples: int = RESAMPLES,
    also: Sequence[str] = (),
) -> Comparison:
    """Each run of `runs` (label -> rows of its `predictions.jsonl`) against the first, or the one named `against`.

    `metrics` are keys of the rows ("em", "f1", "accuracy", …); `correct` is compared too where none of them is right or
    wrong. `tasks` (label -> task) lets runs of different tasks be refused by name. `p_values=False` (the offline
    reader) gives no p at all. `also` are lines that say what else differs between the runs.

    Raises `BadArgument` for fewer than two runs, `UnknownName` for `against`, `EmptyData` for a run without rows,
    `BadData` for an answer twice in a run or missing, `RunMismatch` for runs over different questions or golden
    answers, tasks or measures.
    """
    if len(runs) < 2:
        raise BadArgument(
            f"a comparison needs two runs or more, not {len(runs)}: name another run over these questions"
        )
    baseline = next(iter(runs)) if against is None else against
    if baseline not in runs:
        raise UnknownName.of("run", baseline, runs)
    check_tasks({label: tasks[label] for label in runs if label in tasks} if tasks else {})
    tables = {label: _by_id(label, runs[label]) for label in [baseline, *(run for run in runs if run != baseline)]}
    first = tables[baseline]
    for label, table in tables.items():
        _check_questions(baseline, first, label, table)
    errors = {label: sum(bool(row.get("error")) for row in runs[label]) for label in tables}
    shown = {measure: _of_all(tables, measure, list(first)) for measure in dict.fromkeys(metrics)}
    if not any(_right_or_wrong(measure, *scores.values()) for measure, scores in shown.items()):
        shown[CORRECT] = _of_all(tables, CORRECT, list(first))
    rows: list[Row] = []
    for measure, scores in shown.items():
        rows += _compared(measure, scores, errors, seed=seed, resamples=resamples, p_values=p_values)
    by_run = tuple(row for label in tables for row in rows if row.run == label)
    repeats = {label: len(next(iter(table.values()))) for label, table in tables.items()}
    return Comparison(baseline, len(first), by_run, seed, resamples, p_values, repeats, tuple(also))


def _compared(
    measure: str,
    scores: Mapping[str, Scores],
    errors: Mapping[str, int],
    *,
    seed: int,
    resamples: int,
    p_values: bool,
) -> list[Row]:
    """A row for each run on this measure, the baseline's first, Holm's correction over the others."""
    means = {label: fmean(map(fmean, values)) for label, values in scores.items()}
    baseline, *others = (Row(label, measure, means[label], errors[label]) for label in scores)
    tested = [_tested(row, scores[baseline.run], scores[row.run], seed, resamples) for row in others]
    if not p_values:
        return [baseline, *(replace(row, p=None, smallest=None) for row in tested)]
    corrected = holm([row.p for row in tested if row.p is not None])
    return [baseline, *(replace(row, p_holm=p) for row, p in zip(tested, corrected, strict=True))]


def _tested(row: Row, before: Scores, after: Scores, seed: int, resamples: int) -> Row:
    """`row` with what compares its scores (`after`) with the baseline's (`before`)."""
    difference, low, high, p = paired_bootstrap(before, after, seed=seed, resamples=resamples)
    row = replace(row, difference=difference, low=low, high=high, p=p)
    if not _right_or_wrong(row.measure, before, after) or len(before[0]) > 1 or len(after[0]) > 1:
        return row
    lost, won, p = mcnemar_exact([answer for (answer,) in before], [answer for (answer,) in after])
    return replace(row, won=won, lost=lost, p=p, smallest=smallest_difference(won + lost, len(after)))


def _right_or_wrong(measure: str, *runs: Scores) -> bool:
    """Whether the measure is of that kind: every score in these runs 0 or 1."""
    return measure not in FRACTIONS and all(score in (0, 1) for scores in runs for each in scores for score in each)


def _by_id(label: str, rows: Sequence[Mapping[str, Any]]) -> Predictions:
    if not rows:
        raise EmptyData(f"run '{label}' has no predictions; finish it first")
    table: dict[str, dict[int, Mapping[str, Any]]] = {}
    for row in rows:
        answers = table.setdefault(row["id"], {})
        if repeat_of(row) in answers:
            raise BadData(f"run '{label}' holds question '{row['id']}' twice; a comparison needs each question once")
        answers[repeat_of(row)] = row
    most = max(map(len, table.values()))
    for id, answers in table.items():
        if len(answers) < most:
            raise BadData(f"run '{label}' has {len(answers)} of {most} answers to question '{id}'; finish it first")
    return {id: [answers[repeat] for repeat in sorted(answers)] for id, answers in table.items()}


def check_tasks(tasks: Mapping[str, str]) -> None:
    """Raise `RunMismatch` where runs (label -> task) are not of one task."""
    for label, task in tasks.items():
        first = next(iter(tasks))
        if task != tasks[first]:
            what = f"'{first}' is {tasks[first]}, '{label}' is {task}"
            raise RunMismatch(f"runs of different tasks: {what}; compare runs of one task")


def _check_questions(baseline: str, first: Predictions, label: str, other: Predictions) -> None:
    """Refuse unless both hold the same questions, in whatever order."""
    where = f"runs '{baseline}' ({len(first)}) and '{label}' ({len(other)}) are over different questions"
    for owner, mine, theirs in ((baseline, first, other), (label, other, first)):
        alone = [id for id in mine if id not in theirs]
        if alone:
            more = f" and {len(alone) - 1} more" if alone[1:] else ""
            raise RunMismatch(f"{where}: '{alone[0]}'{more} only in '{owner}'; evaluate both on the same questions")
    for id, (row, *_) in first.items():
        told = other[id][0]
        if row.get("question") != told.get("question"):
            raise RunMismatch(f"{where}: '{id}' asks something else in each; evaluate both on the same questions")
        if row.get("golden_answers") != told.get("golden_answers"):
            raise RunMismatch(
                f"runs '{baseline}' and '{label}' know other golden answers to '{id}'; evaluate both on the same data"
            )


def _of_all(tables: Mapping[str, Predictions], measure: str, ids: Sequence[str]) -> dict[str, Scores]:
    return {label: _scores(label, table, measure, ids) for label, table in tables.items()}


def _scores(label: str, table: Predictions, measure: str, ids: Sequence[str]) -> Scores:
    """The measure of every question in the order of `ids`, an answer a number; 0 where it ended in an error."""
    return [[_score(label, row, measure) for row in table[id]] for id in ids]


def _score(label: str, row: Mapping[str, Any], measure: str) -> float:
    value = 0 if row.get("error") else row.get(measure)
    if not isinstance(value, int | float):
        scored = [name for name, score in row.items() if isinstance(score, int | float) and name != "repeat"]
        known = ", ".join(scored) or "none"
        raise RunMismatch(
            f"run '{label}' has no '{measure}' for question '{row['id']}' (it has: {known}); "
            "compare runs of one task, by measures that all of them hold"
        )
    return float(value)

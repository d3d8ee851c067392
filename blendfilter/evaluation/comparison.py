"""Runs side by side over the same questions: how far each is from a baseline, and whether that is more than chance.

Every difference is run - baseline, with a paired bootstrap interval over questions (and over the answers within them,
where a question has several); the same seed draws the same questions for every measure and run. A measure that is right
or wrong (EM, accuracy, cover-EM, a judge's yes) is tested by exact McNemar where both runs have one answer a question,
everything else by the paired bootstrap. With several runs against one baseline, Holm's correction goes over the runs,
for each measure by itself. An answer that ended in an error counts as 0 in a score; figures of retrieval are over the
questions that no run failed on; a run that failed on all of them is compared with nothing. Figures are kept as
fractions of 1 and printed in percent, differences in points.

With a margin, each run is tested for non-inferiority too: by every measure, `statistics.lower_bound` must exclude a
loss of the margin. As all must pass, several runs and measures need no correction. Errors in the baseline, which would
count as 0 and lower the bar, are refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

from blendfilter.errors import BadArgument, BadData, EmptyData, RunMismatch, UnknownName
from blendfilter.evaluation.ledger import model_of
from blendfilter.evaluation.rescoring import rescored
from blendfilter.evaluation.rows import (
    KEPT,
    MEASURES,
    VARIANTS,
    Json,
    PredictionRow,
    Record,
    kept_known,
    key_of,
    of_retrieval,
    repeat_of,
)
from blendfilter.evaluation.run import READS_GOLD, Run, Runs, named_runs
from blendfilter.files import AnyPath
from blendfilter.statistics import (
    RESAMPLES,
    detectable_difference,
    holm,
    lower_bound,
    mcnemar_exact,
    paired_bootstrap,
    smallest_difference,
)
from blendfilter.table import Table
from blendfilter.text import visible

CORRECT = "correct"
NO_P_VALUE = "no p-value: the offline reader shows the pipeline, not its quality"
FRACTIONS = ("f1", "rouge-l")
"""Measures that may lie between 0 and 1: which test is theirs must not hang on the scores that came out."""
ASK_NO_MODEL = ("FullFilter", "PassageFilter", "SentenceFilter", "SilverFilter")
"""Filters that have no use for a model."""
ASSUMED = (0.1, 0.3)
"""Shares of discordant questions for which the notes say what a sample of this size could show."""

Predictions = Mapping[str, list[Record]]
"""One run's rows by question id, those of one question in the order of their repeats."""
Answers = list[list[float]]
"""A measure of every question, as many numbers as it has answers."""


@dataclass(frozen=True)
class ComparisonRow:
    """One run on one measure, in fractions of 1; what compares is None in the baseline's own rows.

    `won` and `lost` count the questions that only this run, or only the baseline, answers right; `smallest` is the
    least difference that McNemar could have found on them. These three stand only where the measure is right or wrong
    and both runs have one answer a question. An answer that ended in an error counts as 0; where all of a run's did,
    it has `failed`, and is compared with nothing. `bound` is what a margin is tested by: with 97.5 % confidence the
    difference is above it.
    """

    run: str
    measure: str
    value: float
    errors: int
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_holm: float | None = None
    won: int | None = None
    lost: int | None = None
    smallest: float | None = None
    failed: bool = False
    bound: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Runs against one baseline over the same `n` questions; the baseline's rows come first.

    `repeats` says how often each run answered every question, by run; `also` what else differs between them, a line
    each; `over` how many questions a figure of retrieval is over, where errors leave some out; `margin` what a run may
    lose, as a fraction of 1.
    """

    baseline: str
    n: int
    rows: tuple[ComparisonRow, ...]
    seed: int
    resamples: int
    p_values: bool
    repeats: Mapping[str, int]
    also: tuple[str, ...]
    over: Mapping[str, int]
    margin: float | None = None

    def __repr__(self) -> str:
        return self.text()  # what a prompt shows is the table

    @property
    def non_inferior(self) -> dict[str, bool]:
        """By run, whether it is shown to lose less than the margin by every measure; empty without a margin."""
        found: dict[str, bool] = {}
        for run, within, _ in self._verdicts():
            found[run] = within and found.get(run, True)
        return found

    @property
    def notes(self) -> list[str]:
        """How to read the table, a line each."""
        return list(map(visible, self._notes()))

    def text(self) -> str:
        """The table as plain aligned text, its title above and its notes below."""
        return self.table().text()

    def table(self) -> Table:
        """The figures as a table, which has other forms too: `markdown()`, `latex()`, `csv()`, `html()`."""
        header, *rows = self._cells()
        title = f"against {visible(self.baseline)}, the same {self.n} questions, in %"
        return Table(header, rows, title, self.notes)

    def _repr_html_(self) -> str:
        return self.table().html()

    def as_dict(self) -> Json:
        """Plain data for JSON: fractions to 6 decimals, p-values to 6 significant digits (so that none becomes 0)."""
        rows = [
            {name: rounded(name, value) for name, value in asdict(row).items()}
            for row in self.rows
        ]
        return asdict(self) | {
            "rows": rows,
            "non_inferior": self.non_inferior,
            "notes": self.notes,
        }

    def _cells(self) -> list[list[str]]:
        several = len({row.run for row in self.rows}) > 2  # one comparison needs no correction
        header = ["", "value", "diff", "95 % interval", "won/lost", "p", *["Holm"] * several]
        lines, blank = [[*header, "errors"]], [""] * (len(header) - 2)
        for run, group in groupby(self.rows, key=lambda row: row.run):
            rows = list(group)
            lines.append([run, "", *blank, str(rows[0].errors)])
            for row in rows:
                compared = blank
                if row.difference is not None:
                    interval = f"[{percent(row.low, '+z')}, {percent(row.high, '+z')}]"
                    flips = "" if row.won is None else f"{row.won}/{row.lost}"
                    tested = [chance(row.p), *[chance(row.p_holm)] * several]
                    compared = [percent(row.difference, "+z"), interval, flips, *tested]
                value = "failed" if row.failed else percent(row.value)
                lines.append([f"  {row.measure}", value, *compared, ""])
        return lines

    def _notes(self) -> Iterator[str]:
        yield from self._failures()
        yield from (f"also differs: {line}" for line in self.also)
        several = [run for run, repeats in self.repeats.items() if repeats > 1]
        if any(row.won is not None for row in self.rows):
            yield f"won, lost: questions that only this run, only {self.baseline} answers right"
        drawn = f"({self.resamples} resamples, seed {self.seed})"
        yield f"diff, interval: in points; paired bootstrap over questions {drawn}"
        if several:
            counts = ", ".join(f"{run} {self.repeats[run]}" for run in several)
            yield f"answers a question: {counts}; the bootstrap draws them too, within each question"
        yield from self._tests(several) if self.p_values else [NO_P_VALUE]
        yield from (line for _, _, line in self._verdicts())

    def _verdicts(self) -> Iterator[tuple[str, bool, str]]:
        """Run, whether it is within the margin, and the line that says so: for each measure."""
        if (margin := self.margin) is None:
            return
        for row in self.rows:
            if row.run == self.baseline:
                continue
            within = False
            if row.bound is None:
                why = "it failed"
            elif row.errors and row.measure in self.over:
                # what its errors leave out may be what it loses
                why = "questions that it failed on have no such figure"
            else:
                within = row.bound > -margin
                why = f"the difference {'is above' if within else 'may be'} {100 * row.bound:+.2f} points"
                why += " (97.5 % confidence, Bonett and Price)"
            verdict = f"{'' if within else 'not shown '}non-inferior (margin {100 * margin:g})"
            yield row.run, within, f"{row.run}, {row.measure}: {verdict}: {why}"

    def _failures(self) -> Iterator[str]:
        for run, row in {row.run: row for row in self.rows if row.errors}.items():
            if row.failed:
                yield f"{run}: failed, every question ended in an error; there is no score to compare"
            else:
                repeats = self.repeats.get(run, 1)
                of = f"{self.n * repeats} {'answers' if repeats > 1 else 'questions'}"
                yield f"{run}: {row.errors} of {of} ended in an error and count as 0, in differences too"
        yield from (
            f"{measure}: over {n} of {self.n} questions, those that no run failed on"
            for measure, n in self.over.items()
        )

    def _tests(self, several: list[str]) -> Iterator[str]:
        if self.baseline in several:
            yield "p: the paired bootstrap (McNemar's test needs one answer a question)"
        else:
            where = f" ({', '.join(several)}: the bootstrap)" if several else ""
            exact = dict.fromkeys(row.measure for row in self.rows if row.won is not None)
            other = dict.fromkeys(row.measure for row in self.rows if row.measure not in exact)
            tests = []
            if exact:
                tests.append(f"exact McNemar for {', '.join(exact)}{where}")
            if other:
                tests.append(f"the paired bootstrap for {', '.join(other)}")
            yield f"p: {', '.join(tests)}"
        if any(row.p_holm != row.p for row in self.rows):
            yield "Holm: p corrected for being several runs, each measure by itself"
        tested = [row for row in self.rows if row.won is not None]
        measures = {row.measure for row in tested}
        for row in tested:
            name = row.run if len(measures) == 1 else f"{row.run}, {row.measure}"
            smallest = "no difference could reach p < .05"
            if row.smallest is not None:
                smallest = f"{percent(row.smallest)} points is the least that reaches p < .05"
            yield f"{name}: with {(row.won or 0) + (row.lost or 0)} questions won or lost, {smallest}"
        # what so many questions find four times out of five, whatever came out here
        if not several:
            found = [
                f"{percent(least)} points if {100 * share:.0f} % are won or lost"
                for share in ASSUMED
                if (least := detectable_difference(self.n, share))
            ]
            yield f"before looking: {self.n} questions find {', '.join(found) or 'no difference'} (power .8)"


def rounded(name: str, value: Any) -> Any:
    """A figure as JSON keeps it: 6 decimals, p-values to 6 significant digits (so that none becomes 0)."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if name in ("p", "p_holm") else round(value, 6)


def percent(value: float | None, sign: str = "") -> str:
    """One decimal, as the report prints it: 50.8, +9.6, 100.0."""
    return "" if value is None else f"{100 * value:{sign}.1f}"


def chance(p: float | None, absent: str = "-") -> str:
    """A p-value to four decimals, `absent` where none is given."""
    if p is None:
        return absent
    return "<.0001" if p < 0.0001 else f"{p:.4f}".replace("0.", ".", 1)


# --- comparing ------------------------------------------------------------------------------------------------------


def compare(
    *runs: Runs,
    metrics: list[str] | str | None = None,
    seed: int = 0,
    against: AnyPath | None = None,
    margin: float | None = None,
) -> Comparison:
    """Runs over the same questions, each against the first or `against` (a run, a name or a folder among them).

    `runs` may also be one list, or a mapping from the names that the table shows. `metrics` may be rescored ones, where
    every run was given them, and figures of retrieval by query and name (`q_ex.recall`, `union.precision`), where gold
    is known. With a `margin`, in points, `non_inferior` says by run whether it is shown to lose less than that.

    Raises:
        RunMismatch: other questions, golden answers or another task; with a margin, another index, or errors in the
        baseline. BadArgument: fewer than two runs, a margin that is none. MissingFile: a
        run that is not finished, or was never rescored. UnknownName: no such metric or run.
    """
    named = named_runs(*runs)
    if len(named) < 2:
        raise BadArgument(f"compare wants at least two runs, got {len(named)}")
    if isinstance(metrics, str):
        metrics = [metrics]
    check_margin(margin)
    if margin is not None:
        recipes = {label: _recipe(run.record)["index"] for label, run in named.items()}
        for line in differing_values("index", recipes):
            raise RunMismatch(
                f"margin={margin:g} wants runs over one index: {line}; evaluate them over the same"
            )
    measures = metrics or list(next(iter(named.values())).settings["metrics"])
    tasks = {run.settings["task"]: label for label, run in named.items()}
    if len(tasks) > 1:
        what = ", ".join(f"'{label}' is {task}" for task, label in tasks.items())
        raise RunMismatch(f"runs of different tasks: {what}; compare runs of one task")
    tables, judges = _with_rescored(named, measures)
    if against is not None and str(against) not in named:
        folders = {run.folder.resolve(): label for label, run in reversed(named.items())}
        against = folders.get(Path(against).resolve(), str(against))
    return compare_predictions(
        tables,
        metrics=measures,
        seed=seed,
        against=None if against is None else str(against),
        margin=margin,
        p_values=not any(run.offline for run in named.values()),
        also=[
            *recipe_differences({label: run.record for label, run in named.items()}),
            *judges,
            *(f"{label}: {line}" for label, run in named.items() for line in run.disagreements),
            *(f"{name}: its filter {READS_GOLD}" for name in named if named[name].reads_gold),
        ],
    )


def _with_rescored(
    runs: Mapping[str, Run], metrics: Sequence[str]
) -> tuple[dict[str, list[PredictionRow]], list[str]]:
    tables = {label: _with_retrieval(label, run.rows, metrics) for label, run in runs.items()}
    lines = []
    for name in metrics:
        judges = {}
        for label, rows in tables.items():
            if not all(name in row for row in rows):
                found = rescored(runs[label], name)
                tables[label] = [row | {name: found.rows[key_of(row)]} for row in rows]
                judge = dict(found.judge or {})
                named = [f"{judge.pop('lm')}/{judge.pop('prompt')}"] if judge else []
                named += [f"{key} {value}" for key, value in judge.items()]
                judges[label] = " ".join(named)
                if found.errors:
                    lines.append(f"{label}: {found.errors} judgements ended in an error")
        lines += differing_values(f"{name} judged by", judges)
    return tables, lines


def _with_retrieval(
    label: str, rows: list[PredictionRow], metrics: Sequence[str]
) -> list[PredictionRow]:
    """The rows with those of `metrics` that are figures of retrieval. Raises: RunMismatch where a run has none."""
    for name in filter(of_retrieval, metrics):
        query, _, measure = name.rpartition(".")
        # As in metrics.json: a question counts as 0 that lacks a query which others of the run have; an error has none.
        fixed = query in VARIANTS and any(query in row["retrieval"] for row in rows)
        fixed = fixed and (query != KEPT or all(map(kept_known, rows)))
        empty = {measure: 0.0} if fixed else {}
        found = [row["retrieval"] and row["retrieval"].get(query, empty) for row in rows]
        if any(
            measure not in figures and not row["error"]
            for row, figures in zip(rows, found, strict=True)
        ):
            raise RunMismatch(
                f"run '{label}' has no '{name}' for every question: no gold is known, there is no such query, a model "
                "wrote what was kept, or the run is older than this figure (evaluate it anew with reuse=: no "
                "call is paid for twice)"
            )
        pairs = zip(rows, found, strict=True)
        rows = [row | {name: figures.get(measure)} for row, figures in pairs]
    return rows


def check_margin(margin: object) -> None:
    """Raise `BadArgument` for what is no margin in points; None is none that is asked for."""
    if margin is not None and not (isinstance(margin, int | float) and 0 < margin < 100):
        number = f"{margin:g}" if isinstance(margin, float) else repr(margin)
        raise BadArgument(f"margin={number} is none: give points, above 0 and below 100")


def compare_predictions(
    runs: Mapping[str, Sequence[Record]],
    *,
    metrics: Sequence[str],
    seed: int = 0,
    against: str | None = None,
    margin: float | None = None,
    p_values: bool = True,
    also: Sequence[str] = (),
) -> Comparison:
    """Each run of `runs` (label -> rows of its `predictions.jsonl`) against the first, or the one named `against`.

    `metrics` are keys of the rows ("em", "f1", "accuracy", …); `correct` is compared too where none of them is right or
    wrong and no `margin` (in points) is given. `p_values=False` (the offline reader) gives no p at all. `also` are
    lines that say what else differs.
    """
    check_margin(margin)
    baseline = next(iter(runs)) if against is None else against
    if baseline not in runs:
        raise UnknownName.of("run", baseline, runs)
    tables = {label: _by_id(label, runs[label]) for label in dict.fromkeys([baseline, *runs])}
    first = tables[baseline]
    for label, table in tables.items():
        _check_questions(baseline, first, label, table)
    errors = {label: sum(bool(row.get("error")) for row in runs[label]) for label in tables}
    if margin is not None and errors[baseline]:
        raise RunMismatch(
            f"margin={margin:g} wants a baseline without errors, and '{baseline}' has {errors[baseline]}, which count "
            "as 0: its command again retries them, or choose against=NAME"
        )
    failed = {label for label in tables if errors[label] == len(runs[label])}
    answered = [
        id
        for id in first
        if not any(row.get("error") for table in tables.values() for row in table[id])
    ]

    def of_all(measure: str) -> dict[str, Answers]:
        ids = answered if of_retrieval(measure) else first
        if not ids:
            raise EmptyData(
                f"no question was answered by every run: there is no '{measure}' to compare"
            )
        return {
            label: [[_score(label, row, measure) for row in table[id]] for id in ids]
            for label, table in tables.items()
        }

    measured = {measure: of_all(measure) for measure in dict.fromkeys(metrics)}
    if margin is None and not any(
        _right_or_wrong(name, *scores.values()) for name, scores in measured.items()
    ):
        measured[CORRECT] = of_all(CORRECT)
    rows: list[ComparisonRow] = []
    for measure, scores in measured.items():
        rows += _compared(measure, scores, errors, failed, seed, p_values)
    by_run = tuple(row for label in tables for row in rows if row.run == label)
    repeats = {label: len(next(iter(table.values()))) for label, table in tables.items()}
    partly = filter(of_retrieval, measured) if len(answered) < len(first) else ()
    over = dict.fromkeys(partly, len(answered))
    return Comparison(
        baseline,
        len(first),
        by_run,
        seed,
        RESAMPLES,
        p_values,
        repeats,
        tuple(also),
        over,
        None if margin is None else margin / 100,
    )


def _compared(
    measure: str,
    scores: Mapping[str, Answers],
    errors: Mapping[str, int],
    failed: Collection[str],
    seed: int,
    p_values: bool,
) -> list[ComparisonRow]:
    baseline, before = next(iter(scores.items()))
    rows = []
    for label, after in scores.items():
        mean, is_failed = fmean(map(fmean, after)), label in failed
        row = ComparisonRow(label, measure, mean, errors[label], failed=is_failed)
        if label != baseline and not is_failed and baseline not in failed:
            row = replace(row, **_tested(measure, before, after, seed))
        rows.append(row if p_values else replace(row, p=None, smallest=None))
    corrected = iter(holm([row.p for row in rows if row.p is not None]))
    return [row if row.p is None else replace(row, p_holm=next(corrected)) for row in rows]


def _tested(measure: str, before: Answers, after: Answers, seed: int) -> Json:
    """What compares a run's scores (`after`) with the baseline's (`before`), by the fields of a row."""
    found: Json = paired_bootstrap(before, after, seed=seed)._asdict()
    found["bound"] = lower_bound(before, after)
    if _right_or_wrong(measure, before, after) and len(before[0]) == len(after[0]) == 1:
        lost, won, p = mcnemar_exact(before, after)
        smallest = smallest_difference(won + lost, len(after))
        found |= {"won": won, "lost": lost, "p": p, "smallest": smallest}
    return found


def _right_or_wrong(measure: str, *runs: Answers) -> bool:
    fraction = measure in FRACTIONS or measure.rpartition(".")[2] in MEASURES
    return not fraction and all(
        score in (0, 1) for run in runs for answers in run for score in answers
    )


def _by_id(label: str, rows: Sequence[Record]) -> Predictions:
    if not rows:
        raise EmptyData(f"run '{label}' has no predictions; finish it first")
    table: dict[str, list[Record]] = {}
    for row in sorted(rows, key=repeat_of):
        table.setdefault(row["id"], []).append(row)
    most = max(map(repeat_of, rows))
    for id, answers in table.items():
        if [*map(repeat_of, answers)] != [*range(1, most + 1)]:
            raise BadData(
                f"run '{label}' has {len(answers)} answers to question '{id}', not one for each of {most} repeats: "
                "the same command again makes its rows anew"
            )
    return table


def _check_questions(baseline: str, first: Predictions, label: str, other: Predictions) -> None:
    where = f"runs '{baseline}' ({len(first)}) and '{label}' ({len(other)}) are over different questions"
    if alone := sorted(first.keys() ^ other.keys()):
        which = f"'{alone[0]}' and {len(alone) - 1} more are in one of them alone"
        raise RunMismatch(f"{where}: {which}; evaluate both on the same questions")
    for id, (row, *_) in first.items():
        for name in ("question", "golden_answers"):
            if row.get(name) != other[id][0].get(name):
                raise RunMismatch(
                    f"{where}: '{id}' has another {name} in each; evaluate both on the same data"
                )


def _score(label: str, row: Record, measure: str) -> float:
    """The measure of one answer; 0 where it ended in an error."""
    value = 0 if row.get("error") else row.get(measure)
    if not isinstance(value, int | float):
        what = f"run '{label}' has no '{measure}' for question '{row['id']}'"
        raise RunMismatch(
            f"{what}; compare runs of one task, by measures that all of them hold"
        )
    return float(value)


# --- what else differs ----------------------------------------------------------------------------------------------


def recipe_differences(records: Mapping[str, Record]) -> list[str]:
    """What besides the method differs between runs (`run.json` by label), so that no table is misread: a line each.

    The program (instructions, demonstrations, templates) and a user's own code are named where runs are of one method
    with the same arguments: nothing else tells those apart. What a run has no use for (an index, where nothing is
    searched) differs from nothing.

    >>> run = {"settings": {"lm": {"name": "a"}, "seed": 0}}
    >>> recipe_differences({"plain": run, "blend": {"settings": {"lm": {"name": "b"}, "seed": 0}}})
    ['lm a (plain) / b (blend)']
    """
    recipes = {label: _recipe(record) for label, record in records.items()}
    lines = []
    for name in next(iter(recipes.values())):
        lines += differing_values(name, {label: made[name] for label, made in recipes.items()})
    for name in ("program", "code"):
        lines += differing_values(name, _of_one_method(records, name))
    lines += _decoding({label: record["settings"]["lm"] for label, record in records.items()})
    if any(record["settings"]["lm"].get("filter") for record in records.values()):
        filters = {label: lm for label, record in records.items() if (lm := _filter_lm(record))}
        for name, read in (("filter-lm", model_of), ("filter-lm endpoint", _endpoint)):
            lines += differing_values(name, {label: read(lm) for label, lm in filters.items()})
        lines += _decoding(filters, "filter-lm ")
    return lines


def _recipe(record: Record) -> dict[str, str]:
    settings = record["settings"]
    lm, indexes = settings["lm"], settings.get("retrievers", [])
    values = {
        "lm": " ".join(str(lm[key]) for key in ("name", "label") if lm.get(key)),
        "endpoint": _endpoint(lm),
        "index": "+".join(f"{index['kind']}/{index['fingerprint']}" for index in indexes),
        "k": _arguments(record).get("k"),
        "data": settings.get("data", {}).get("fingerprint"),
        "resampling seed": settings.get("seed"),
        "version": record.get("versions", {}).get("blendfilter"),
    }
    return {name: "" if value is None else str(value) for name, value in values.items()}


def _arguments(record: Record) -> Record:
    return record["settings"].get("method", {}).get("arguments", {})  # type: ignore[no-any-return]


def _endpoint(lm: Record) -> str:
    options = [f"{key} {value}" for key, value in sorted((lm.get("options") or {}).items())]
    return " ".join([str(lm.get("endpoint") or ""), *options]).strip()


def _decoding(models: Mapping[str, Record], of: str = "") -> list[str]:
    decoding = {label: lm.get("parameters", {}) for label, lm in models.items()}
    lines = []
    for name in dict.fromkeys(name for parameters in decoding.values() for name in parameters):
        values = {
            label: str(parameters.get(name, "as served"))
            for label, parameters in decoding.items()
        }
        lines += differing_values(f"{of}{name}", values)
    return lines


def _filter_lm(record: Record) -> Record:
    """The model of a run's filter: one of its own, else the run's; nothing where no filter asks a model."""
    lm: Record = record["settings"]["lm"]
    silent = _arguments(record).get("filter") in (None, *ASK_NO_MODEL)
    return lm.get("filter") or ({} if silent else lm)


def differing_values(name: str, values: Mapping[str, str]) -> list[str]:
    """One line where the values differ, none where they do not; an empty value is none.

    >>> differing_values("k", {"direct": "5", "cot": "", "blend": "15"})
    ['k 5 (direct) / 15 (blend)']
    """
    groups: dict[str, list[str]] = {}
    for label, value in values.items():
        if value:
            groups.setdefault(value, []).append(label)
    line = " / ".join(f"{value} ({', '.join(labels)})" for value, labels in groups.items())
    return [f"{name} {line}"] if len(groups) > 1 else []


def _of_one_method(records: Mapping[str, Record], name: str) -> dict[str, str]:
    """This digest of every run beside which another is of the same method, called the same way."""
    digests: dict[str, dict[str, str]] = {}
    for label, record in records.items():
        method = record["settings"].get("method", {})
        called = f"{method.get('name')} {sorted(_arguments(record).items())}"
        digests.setdefault(called, {})[label] = str(method.get(name) or "")
    groups = (group for group in digests.values() if len(set(group.values())) > 1)
    found = {label: value for group in groups for label, value in group.items()}
    return {label: found[label] for label in records if label in found}

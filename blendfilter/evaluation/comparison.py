"""Runs side by side over the same questions: how far each is from a baseline, and whether that is more than chance.

In: the rows of several `predictions.jsonl`, by label. Out: a `Comparison`, which prints itself as text, as a rich table
and in a notebook, and gives plain data with `as_dict()`.

Every difference is run - baseline, with a paired bootstrap interval over questions; the same seed draws the same
questions for every measure and run. `correct` is tested by exact McNemar, any other measure by the paired bootstrap.
With several runs against one baseline, Holm's correction goes over the runs, for each measure by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Any

from blendfilter.errors import BadArgument, BadData, EmptyData, RunMismatch, UnknownName
from blendfilter.evaluation.statistics import RESAMPLES, holm, mcnemar_exact, paired_bootstrap, smallest_difference

if TYPE_CHECKING:
    from rich.table import Table

CORRECT = "correct"
NO_P_VALUE = "no p-value: the offline reader shows the pipeline, not its quality"

Predictions = Mapping[str, Mapping[str, Any]]
"""One run's rows by question id."""


@dataclass(frozen=True, slots=True)
class Row:
    """One run on one measure, in fractions of 1; what compares is None in the baseline's own rows.

    `won` and `lost` count the questions that only this run, or only the baseline, answers right; `smallest` is the
    least difference that McNemar could have shown on them (`statistics.smallest_difference`). These three stand in the
    `correct` row alone. `errors` are the run's questions that ended in an error: each counts as 0.
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


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Runs against one baseline over the same `n` questions; the baseline's rows come first."""

    baseline: str
    n: int
    rows: tuple[Row, ...]
    seed: int = 0
    resamples: int = RESAMPLES
    p_values: bool = True

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return self.text()  # what a prompt shows is the table

    def __rich__(self) -> Table:
        return self.table()

    @property
    def title(self) -> str:
        """What is compared with what, in one line."""
        return f"against {self.baseline}, the same {self.n} questions"

    @property
    def notes(self) -> list[str]:
        """How to read the table, a line each."""
        return list(self._notes())

    def text(self) -> str:
        """The table as plain aligned text, its title above and its notes below."""
        header, body = self._cells()
        first, *others = (max(map(len, column)) for column in zip(header, *body, strict=True))
        lines = [
            "  ".join([name.ljust(first), *map(str.rjust, cells, others)]).rstrip() for name, *cells in [header, *body]
        ]
        return "\n".join([self.title, "", lines[0], "-" * max(map(len, lines)), *lines[1:], "", *self.notes])

    def table(self) -> Table:
        """The same as a `rich.table.Table`; where room is short, names fold before any number is cut."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        header, body = self._cells()
        notes = Text("\n".join(self.notes))
        table = Table(title=Text(self.title), caption=notes, caption_justify="left", box=box.SIMPLE_HEAD)
        table.pad_edge, table.collapse_padding = False, True
        for name in header:
            table.add_column(name, justify="right" if name else "left", no_wrap=bool(name), overflow="fold")
        for line in body:
            table.add_row(*map(Text, line))
        return table

    def _repr_html_(self) -> str:
        header, body = self._cells()
        head = "".join(f"<th>{escape(name)}</th>" for name in header)
        lines = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in line) + "</tr>" for line in body)
        notes = "<br>".join(map(escape, self.notes))
        caption = f"<caption>{escape(self.title)}</caption>"
        return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table><p>{notes}</p>"

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON: fractions to 6 decimals, p-values to 6 significant digits (so that none becomes 0)."""
        rows = [{name: _rounded(name, value) for name, value in asdict(row).items()} for row in self.rows]
        return asdict(self) | {"rows": rows, "notes": self.notes}

    def _cells(self) -> tuple[list[str], list[list[str]]]:
        """The header and the lines of cells: each run's name with its errors, then a line a measure."""
        several = len({row.run for row in self.rows}) > 2  # one comparison needs no correction
        header = ["", "value", "diff", "95 % interval", "won/lost", "p", *["Holm"] * several, "errors"]
        body = []
        for run, group in groupby(self.rows, key=lambda row: row.run):
            rows = list(group)
            body.append([run, *[""] * (len(header) - 2), str(rows[0].errors)])
            for row in rows:
                compared = _compared_cells(row, several) if run != self.baseline else [""] * (len(header) - 3)
                body.append([f"  {row.measure}", _fraction(row.value), *compared, ""])
        return header, body

    def _notes(self) -> Iterator[str]:
        yield f"won, lost: questions that only this run, only {self.baseline} answers right"
        yield f"interval: paired bootstrap over questions ({self.resamples} resamples, seed {self.seed})"
        if any(row.errors for row in self.rows):
            yield "errors: questions that ended in an error; they count as 0"
        if not self.p_values:
            yield NO_P_VALUE
            return
        yield f"p: exact McNemar for {CORRECT}, the paired bootstrap for any other measure"
        if any(row.p_holm != row.p for row in self.rows):
            yield "Holm: p corrected for being several runs, each measure by itself"
        for row in self.rows:
            if row.won is not None and row.lost is not None:
                yield _power(row.run, row.won + row.lost, row.smallest)


def compare_predictions(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    metrics: Sequence[str],
    seed: int = 0,
    against: str | None = None,
    p_values: bool = True,
    tasks: Mapping[str, str] | None = None,
    resamples: int = RESAMPLES,
) -> Comparison:
    """Each run of `runs` (label -> rows of its `predictions.jsonl`) against the first, or the one named `against`.

    `metrics` are keys of the rows ("em", "f1", "accuracy", …); `correct` is always compared too. `tasks` (label ->
    task) lets runs of different tasks be refused by name. `p_values=False` (the offline reader) gives no p at all.

    Raises `BadArgument` for fewer than two runs, `UnknownName` for `against`, `EmptyData` for a run without rows,
    `BadData` for a question twice in a run, `RunMismatch` for runs over different questions, tasks or measures.
    """
    if len(runs) < 2:
        raise BadArgument(
            f"a comparison needs two runs or more, not {len(runs)}: name another run over these questions"
        )
    baseline = next(iter(runs)) if against is None else against
    if baseline not in runs:
        raise UnknownName.of("run", baseline, runs)
    _check_tasks({label: tasks[label] for label in runs if label in tasks} if tasks else {})
    tables = {label: _by_id(label, runs[label]) for label in [baseline, *(run for run in runs if run != baseline)]}
    first = tables[baseline]
    for label, table in tables.items():
        _check_questions(baseline, first, label, table)
    errors = {label: sum(bool(row.get("error")) for row in table.values()) for label, table in tables.items()}
    rows: list[Row] = []
    for measure in dict.fromkeys([*metrics, CORRECT]):
        scores = {label: _scores(label, table, measure, list(first)) for label, table in tables.items()}
        rows += _compared(measure, scores, errors, seed=seed, resamples=resamples, p_values=p_values)
    by_run = tuple(row for label in tables for row in rows if row.run == label)
    return Comparison(baseline, len(first), by_run, seed, resamples, p_values)


def _compared(
    measure: str,
    scores: Mapping[str, list[float]],
    errors: Mapping[str, int],
    *,
    seed: int,
    resamples: int,
    p_values: bool,
) -> list[Row]:
    """A row for each run on this measure, the baseline's first, Holm's correction over the others."""
    means = {label: sum(values) / len(values) for label, values in scores.items()}
    baseline, *others = (Row(label, measure, means[label], errors[label]) for label in scores)
    tested = [_tested(row, scores[baseline.run], scores[row.run], seed, resamples) for row in others]
    if not p_values:
        return [baseline, *(replace(row, p=None, smallest=None) for row in tested)]
    corrected = holm([row.p for row in tested if row.p is not None])
    return [baseline, *(replace(row, p_holm=p) for row, p in zip(tested, corrected, strict=True))]


def _tested(row: Row, before: list[float], after: list[float], seed: int, resamples: int) -> Row:
    """`row` with what compares its scores (`after`) with the baseline's (`before`)."""
    difference, low, high, p = paired_bootstrap(before, after, seed=seed, resamples=resamples)
    row = replace(row, difference=difference, low=low, high=high, p=p)
    if row.measure != CORRECT:
        return row
    lost, won, p = mcnemar_exact(before, after)
    return replace(row, won=won, lost=lost, p=p, smallest=smallest_difference(won + lost, len(after)))


def _by_id(label: str, rows: Sequence[Mapping[str, Any]]) -> Predictions:
    if not rows:
        raise EmptyData(f"run '{label}' has no predictions; finish it first")
    table: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if row["id"] in table:
            raise BadData(f"run '{label}' holds question '{row['id']}' twice; a comparison needs each question once")
        table[row["id"]] = row
    return table


def _check_tasks(tasks: Mapping[str, str]) -> None:
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
    for id, row in first.items():
        if row.get("question") != other[id].get("question"):
            raise RunMismatch(f"{where}: '{id}' asks something else in each; evaluate both on the same questions")


def _scores(label: str, table: Predictions, measure: str, ids: Sequence[str]) -> list[float]:
    """The measure of every question in the order of `ids`; 0 where the question ended in an error."""
    scores = []
    for row in (table[id] for id in ids):
        value = 0 if row.get("error") else row.get(measure)
        if not isinstance(value, int | float):
            known = ", ".join(name for name, score in row.items() if isinstance(score, int | float)) or "none"
            raise RunMismatch(
                f"run '{label}' has no '{measure}' for question '{row['id']}' (it has: {known}); "
                "compare runs of one task, by measures that all of them hold"
            )
        scores.append(float(value))
    return scores


def _power(run: str, discordant: int, smallest: float | None) -> str:
    if smallest is None:
        return f"{run}: with {discordant} questions won or lost, no difference could reach p < .05"
    return f"{run}: with {discordant} questions won or lost, {_fraction(smallest)} is the least that reaches p < .05"


def _rounded(name: str, value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return float(f"{value:.6g}") if name in ("p", "p_holm") else round(value, 6)


def _compared_cells(row: Row, several: bool) -> list[str]:
    interval = f"[{_fraction(row.low, '+z')}, {_fraction(row.high, '+z')}]"
    flips = "" if row.won is None else f"{row.won}/{row.lost}"
    return [_fraction(row.difference, "+z"), interval, flips, _chance(row.p), *[_chance(row.p_holm)] * several]


def _fraction(value: float | None, sign: str = "") -> str:
    """Three decimals as papers print them: .508, +.096, 1.000."""
    return "" if value is None else f"{value:{sign}.3f}".replace("0.", ".", 1)


def _chance(p: float | None) -> str:
    """A p-value to four decimals, a dash where none is given."""
    if p is None:
        return "-"
    return "<.0001" if p < 0.0001 else f"{p:.4f}".replace("0.", ".", 1)

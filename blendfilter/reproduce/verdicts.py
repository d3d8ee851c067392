"""Verdicts: whether a measured score reproduces a published one, as an equivalence test with a margin says.

The rule needs a published score, its n, and scores of ours. Take the 90 % interval of the difference, measured -
published (`statistics.independent_difference`: Newcombe 1998), and 0.05 points more at both ends, for published scores
are rounded:

- it lies wholly within ± margin: **reproduced** (two one-sided tests at 5 %, Schuirmann 1987);
- it lies wholly outside: **not reproduced**;
- else **undecidable**.

A difference of just the margin is thus called reproduced in at most 5 of 100 cases, and not reproduced in at most 5.
The spread of repeats or seeds widens the interval, by Student's t where they are few.
Both samples count as independent groups of questions; where they are the same ones, the verdict is cautious. A
published score without an n is taken as exact.

Only one setting is judged: reader, index, corpus, prompts and number of questions, as far as the published table states
them. Any that differs makes the word **another setting**, and so does the offline reader.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, product
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from blendfilter.asking import FEW_SHOT
from blendfilter.errors import (
    BadArgument,
    BadData,
    BlendFilterError,
    RunMismatch,
    UnknownName,
    check_count,
)
from blendfilter.evaluation.comparison import check_margin, percent, rounded
from blendfilter.evaluation.rescoring import NAMES, rescored
from blendfilter.evaluation.rows import Record, corpus_words, filter_lm_of, key_of, searched_in
from blendfilter.evaluation.run import Run, Runs, named_runs
from blendfilter.evaluation.run_settings import asked_by
from blendfilter.files import AnyPath, path_of
from blendfilter.filters.base import own_filter_lm
from blendfilter.filters.written import recipe_of
from blendfilter.prompting import PAPER, Prompts
from blendfilter.reproduce.tables import PaperTable, name_of_model, parsed
from blendfilter.statistics import (
    Scores,
    binomial_n,
    independent_difference,
    repeats_variance,
)
from blendfilter.table import Table
from blendfilter.tasks import TASKS

if TYPE_CHECKING:
    from blendfilter.reproduce.runs import TableRun

MARGIN = 3.0
"""Points."""
REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
UNDECIDABLE, OTHER = "undecidable", "another setting"
ROUNDED = 0.0005
"""How far a score that is printed with one decimal may lie from what it was."""
_MOST = 1_000_000
"""More questions than any such data set has."""


@dataclass(frozen=True)
class Verdict:
    """A measured score beside a published one, in fractions of 1; `low` and `high` are the 90 % interval's ends.

    `n` questions were measured, `published_n` were published (0: unknown, and the score is taken as exact). `needed`
    measured ones would decide a difference like this one (None: no number would, for it lies at the margin);
    `both_needed`: as many published ones too, for those there are would not do; `more_repeats`: no number would, for
    the few repeats or seeds lie apart. `errors`: answers of the runs that ended in one, and count as 0. `differs`: how
    the setting is another.
    """

    kind: str
    published: float
    measured: float
    difference: float
    low: float
    high: float
    n: int
    published_n: int
    margin: float
    needed: int | None = None
    both_needed: bool = False
    more_repeats: bool = False
    errors: int = 0
    differs: tuple[str, ...] = ()

    @property
    def word(self) -> str:
        """What a table ends in."""
        if self.kind == OTHER:
            return f"{OTHER}: {', '.join(each.partition(':')[0] for each in self.differs)}"
        if self.kind == UNDECIDABLE:
            more = "needs more repeats" if self.more_repeats else "no n would do"
            if self.needed is not None:
                more = f"{'both need' if self.both_needed else 'needs'} {self.needed:,}"
            return f"{UNDECIDABLE} with n = {self.n:,} ({more})"
        return self.kind

    @property
    def short(self) -> str:
        """The word alone, where a note says how the setting is another."""
        return OTHER if self.differs else self.word

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        fields = {name: rounded(name, value) for name, value in asdict(self).items()}
        return {"word": self.word, **fields}

    def __str__(self) -> str:
        interval = f"[{percent(self.low, '+z')}, {percent(self.high, '+z')}]"
        return f"{self.word}: {percent(self.difference, '+z')} points {interval}, margin {100 * self.margin:g}"


class StatedSetting(BaseModel):
    """What a published table says of its setting; what it leaves out is not compared.

    `index` is the kind of an index (`bm25`, `colbert`, `dense`, `flat` …), `corpus` its corpus' name, `passages` the
    size: where it is given, a corpus within 5 % of it is the same, whatever its name. `prompts` is a set of ours
    (`ours`, `paper`). `filter_lm` filters or judges, where that is not the reader.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    task: str = ""
    reader: str = ""
    filter_lm: str = ""
    index: str = ""
    corpus: str = ""
    passages: NonNegativeInt = 0
    prompts: str = ""


def verdict(
    published: float,
    measured: float | Sequence[float] | Runs,
    *,
    n: int | None = None,
    published_n: int = 0,
    margin: float = MARGIN,
    measure: str | None = None,
    **setting: Any,
) -> Verdict:
    """Whether `measured` reproduces `published`, both in percent.

    Args:
        published: the score.
        measured: a score and, in `n`, its questions; the scores of several seeds over the same questions; or a run, its
            folder, or several runs, of which `measure` is judged (the first metric by default).
        published_n: the questions of `published`; 0 where unknown.
        margin: the difference, in points, that still counts as the same.
        setting: what is published of the setting, to compare runs with: the fields of `StatedSetting`.

    Raises:
        BadArgument: a margin or a score that is none, numbers without `n`. UnknownName: no such measure or setting.
        RunMismatch: runs over different questions, or of different methods.

    >>> print(verdict(35.1, 33.2, n=1200, published_n=1000))
    undecidable with n = 1,200 (both need 12,000): -1.9 points [-5.4, +1.5], margin 3
    >>> verdict(35.1, 33.2, n=1200, published_n=1000, margin=6).word
    'reproduced'
    """
    check_margin(margin)
    check_count("published_n", published_n, 0)
    for name in setting:
        if name not in StatedSetting.model_fields:
            raise UnknownName.of("setting", name, StatedSetting.model_fields)
    share = fraction("published", published)
    numbers = [measured] if isinstance(measured, int | float) else measured
    if (
        isinstance(numbers, list | tuple)
        and numbers
        and all(isinstance(number, int | float) for number in numbers)
    ):
        if n is None or n < 1:
            raise BadArgument(f"of how many questions is {measured}? Give n=, 1 or more")
        shares = [fraction("measured", number) for number in numbers]
        differs = _too_few(n, published_n)
        return _decided(share, published_n, shares, n, n, margin / 100, differs)
    runs = list(named_runs(measured).values())  # type: ignore[arg-type]
    if not runs:
        raise BadArgument("measured names no score and no run")
    scores = scores_of(runs, measure or runs[0].settings["metrics"][0])
    differs = differences(StatedSetting(**setting), published_n, runs)
    found = judged(share, published_n, scores, margin / 100, differs)
    return replace(found, errors=sum(run.errors for run in runs))


def judged(
    published: float,
    published_n: int,
    scores: Scores,
    margin: float,
    differs: Sequence[str] = (),
) -> Verdict:
    """The verdict on a measure's scores by question, one or several a question; all in fractions of 1."""
    binomial = binomial_n(scores)
    answers = [each if isinstance(each, Sequence) else [each] for each in scores]
    repeats = [fmean(each) for each in zip(*answers, strict=True)]
    return _decided(published, published_n, repeats, binomial, len(answers), margin, differs)


def beside_published(
    table: PaperTable, one: TableRun, run: Run, published: float, values: Scores, margin: float
) -> Verdict:
    """The verdict on a place of a paper's table: `published` beside the values of its `run` by question.

    A measure that some questions have none of is taken to be published of as large a share of the paper's questions.
    Published figures are of the papers' prompts and shots; where that set has no template of a method, ours is its own.
    Where a table has no reader, no model and no prompt is compared.
    """
    row = one.row
    published_n = table.published_n or table.n
    theirs = Prompts.of(PAPER)
    asks = list(asked_by(one.method).values())
    known = any(theirs[ask.template.name].of_set for ask in asks)
    lm, prompts = run.settings["lm"]["name"], PAPER if table.reader and known else ""
    base = recipe_of(one.lm).get("base", {}).get("name", "")
    # of all blocks of a table, one's own is in the row's group
    of_row = (name for name in table.readers if row.group.startswith(f"{name}, "))
    reader = next(of_row, table.reader)
    trained = f"fine-tuned {str(base).rpartition('/')[2]}"
    reader = lm if any(table.is_reader(name, reader) for name in (lm, trained)) else reader
    # a trained filter is what the row wants
    own = getattr(own_filter_lm(one.method), "name", "")
    filter_lm = own or (table.filter_lm if one.filter_name else "")
    setting = StatedSetting(
        reader=reader,
        filter_lm=filter_lm,
        index=table.role(row) if row.retrieves else "",
        corpus=table.corpus if row.retrieves else "",
        passages=table.passages if row.retrieves else 0,
        prompts=prompts,
    )
    differs = differences(setting, published_n, [run], reads=bool(table.reader))
    shots = {len(ask.task_demos) for ask in asks if ask.template.name in FEW_SHOT}
    if table.reader and table.shots is not None:
        differs += [f"demonstrations: {n}, not {table.shots}" for n in shots - {table.shots}]
    share = len(values) / run.metrics["n"]
    return judged(published, max(1, round(share * published_n)), values, margin, differs)


def decide(
    published: float, published_n: float, measured: float, measured_n: float, margin: float
) -> tuple[str, float, float]:
    """The rule: the word of two shares, and the ends of the interval of their difference."""
    _, low, high = independent_difference(
        published, published_n or math.inf, measured, measured_n
    )
    low, high = low - ROUNDED, high + ROUNDED
    if -margin < low and high < margin:
        return REPRODUCED, low, high
    if low > margin or high < -margin:
        return NOT_REPRODUCED, low, high
    return UNDECIDABLE, low, high


def _decided(
    published: float,
    published_n: int,
    repeats: Sequence[float],
    binomial: float,
    n: int,
    margin: float,
    differs: Sequence[str],
) -> Verdict:
    """The verdict by the rule; `repeats` are whole scores, `binomial` is `binomial_n` of the n questions."""
    measured, between = fmean(repeats), repeats_variance(repeats)
    most = measured * (1 - measured)

    def of(number: float, published_n: int, between: float) -> tuple[str, float, float]:
        # more questions would not bring the repeats together
        ours = binomial * number / n
        ours *= most / (most + ours * between) if most else 1
        return decide(published, published_n, measured, ours, margin)

    kind, low, high = of(n, published_n, between)
    found = Verdict(
        OTHER if differs else kind,
        published=published,
        measured=measured,
        difference=measured - published,
        low=low,
        high=high,
        n=n,
        published_n=published_n,
        margin=margin,
        differs=tuple(differs),
    )
    if found.kind != UNDECIDABLE:
        return found
    numbers = [n * 1.05**step for step in range(1, 250) if n * 1.05**step < _MOST]
    for spread, both, number in product(dict.fromkeys((between, 0.0)), (False, True), numbers):
        other_n = max(number, published_n) if both and published_n else published_n
        if of(number, int(other_n), spread)[0] != kind:
            if spread != between:
                return replace(found, more_repeats=True)
            return replace(found, needed=_rounded_up(number), both_needed=both)
    return found


def _rounded_up(number: float) -> int:
    """To two digits.

    >>> _rounded_up(2101.5)
    2200
    """
    unit = int(10 ** max(0, math.floor(math.log10(number)) - 1))
    return math.ceil(number / unit) * unit


def fraction(name: str, value: object) -> float:
    """A score in percent as a fraction. Raises: BadArgument."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise BadArgument(f"{name}={value!r} is no percentage: give a number from 0 to 100")
    if 0 < value < 1:  # what some toolkits print
        raise BadArgument(
            f"{name}={value!r} reads as a fraction: give percent, {100 * value:g}"
        )
    return value / 100


# --- runs -----------------------------------------------------------------------------------------------------------


def scores_of(runs: Sequence[Run], measure: str) -> list[list[float]]:
    """A measure of runs over the same questions (several seeds), the answers of all by question; an error counts as 0.

    Raises: UnknownName, where a run has no such measure. RunMismatch: other questions, or another method.
    """
    answers: dict[str, list[float]] = {}
    first = runs[0]
    for run in runs:
        both = f"runs '{first.name}' and '{run.name}' are"
        if run.settings["method"]["name"] != first.settings["method"]["name"]:
            raise RunMismatch(f"{both} of different methods: their scores are no seeds of one")
        known = None
        if measure not in run.settings["metrics"]:
            known = rescored(run, measure).rows
        if answers and answers.keys() != {row["id"] for row in run.rows}:
            raise RunMismatch(
                f"{both} over different questions: their scores are no seeds of one"
            )
        for row in run.rows:
            score: Any = row.get(measure) if known is None else known[key_of(row)]
            answers.setdefault(row["id"], []).append(0.0 if row["error"] else float(score))
    return list(answers.values())


def differences(
    stated: StatedSetting, published_n: int, runs: Sequence[Run], *, reads: bool = True
) -> list[str]:
    """In what the setting of `runs` is not the published one, a line each: `name: ours, not theirs`.

    `reads`: whether a model reads anything, which the offline reader never is.
    """
    found = []
    for run in runs:
        for name, ours, theirs in _compared(stated, run, reads):
            found.append(f"{name}: {ours}, not {theirs}")
        found += _too_few(len({row["id"] for row in run.rows}), published_n)
    return list(dict.fromkeys(found))


def _too_few(n: int, published_n: int) -> list[str]:
    return [f"{n:,} of {published_n:,} questions"] * (n < published_n)


def _compared(stated: StatedSetting, run: Run, reads: bool) -> Iterator[tuple[str, str, str]]:
    """What is another in the run: its name, the run's value, the published one."""
    settings = run.settings
    reader, filter_lm = settings["lm"]["name"], filter_lm_of(settings)
    if stated.task and settings["task"] != stated.task:
        yield "task", settings["task"], stated.task
    if (reads and run.offline) or (
        stated.reader and name_of_model(reader) != name_of_model(stated.reader)
    ):
        yield "reader", reader, stated.reader or "a model"
    other = stated.filter_lm or stated.reader
    # where the paper filters by a model of its own, a run whose reader filters has another setting
    own = filter_lm or (reader if stated.filter_lm else "")
    if own and other and name_of_model(own) != name_of_model(other):
        yield "filter model", own, other
    indexes = settings["retrievers"]
    if stated.index and not indexes:
        yield "index", "none", stated.index
    for index, searched in zip(indexes, searched_in(settings), strict=True):
        kind = searched.get("type") or index["kind"]
        if stated.index and stated.index not in (kind, index["kind"]):
            yield "index", kind, stated.index
        if not _same_corpus(stated, searched):
            named = {"corpus": stated.corpus, "passages": stated.passages}
            yield "corpus", corpus_words(searched) or "unknown", corpus_words(named)
    prompts = settings["method"].get("prompts", "ours")
    if stated.prompts and prompts != stated.prompts:
        yield "prompts", prompts, stated.prompts


def _same_corpus(stated: StatedSetting, searched: Record) -> bool:
    if stated.passages:
        return abs(int(searched.get("passages") or 0) - stated.passages) <= stated.passages / 20
    name = str(searched.get("corpus", "")).partition(".")[0]
    return not stated.corpus or name.casefold() == stated.corpus.partition(".")[0].casefold()


# --- a published table of anyone's ----------------------------------------------------------------------------------


class PublishedRow(StatedSetting):
    """A published score, in percent, of `n` questions (0: unknown), by the table's measure or one of its own.

    Beside it a run's folder or several, or `measured`, one score or that of several seeds, of `measured_n` questions.
    """

    name: str
    value: float
    measure: str = ""
    n: NonNegativeInt = 0
    run: str | tuple[str, ...] = ()
    measured: float | tuple[float, ...] = ()
    measured_n: NonNegativeInt = 0


class PublishedTable(StatedSetting):
    """A published table; what it says of the setting holds for its rows, which may say otherwise."""

    measure: str = "em"
    title: str = ""
    margin: float = MARGIN
    rows: tuple[PublishedRow, ...] = ()


def verdicts(file: AnyPath, margin: float | None = None) -> VerdictTable:
    """A verdict for each row of a published table, a TOML file.

    Raises: BadData, BadArgument, MissingFile, UnknownName, RunMismatch: something is wrong with the file, a score, a
    run or the measure.
    """
    path = path_of(file)
    table = parsed(path, PublishedTable)
    if not table.rows:
        raise BadData(
            f"{path.name}: no published values: add [[rows]], each with name, value and n"
        )
    margin = table.margin if margin is None else margin
    check_margin(margin)
    found = []
    for row in table.rows:
        try:
            found.append((row, _of_row(table, row, margin)))
        except BlendFilterError as error:
            error.args = (f"{path.name}, {row.name}: {error}",)
            raise
    return VerdictTable(table.title or path.stem, table.measure, margin, tuple(found))


def _of_row(table: PublishedTable, row: PublishedRow, margin: float) -> Verdict | None:
    """Its verdict; None where nothing was measured."""
    fraction("value", row.value)
    setting = {
        name: getattr(row if name in row.model_fields_set else table, name)
        for name in StatedSetting.model_fields
    }
    known = {*NAMES, *(name for task in TASKS.values() for name in task.metrics)}
    measure = row.measure or table.measure
    if row.run and row.measured != ():
        raise BadArgument("a run and a measured score are named: leave one out")
    if not row.run:
        if measure not in known:
            raise UnknownName.of("measure", measure, known)
        if row.measured == ():
            return None
        if not row.measured_n:
            raise BadArgument("of how many questions is the measured score? Give measured_n")
    return verdict(
        row.value,
        row.run or row.measured,
        n=row.measured_n,
        published_n=row.n,
        margin=margin,
        measure=measure,
        **setting,
    )


@dataclass(frozen=True)
class VerdictTable:
    """The rows of a published table with their verdicts; None where a row names no run and no measured score."""

    title: str
    measure: str
    margin: float
    rows: tuple[tuple[PublishedRow, Verdict | None], ...]

    def table(self) -> Table:
        """Published, measured, difference, interval and word, a row each."""
        header = [
            "",
            "measure",
            "published",
            "n",
            "measured",
            "n",
            "diff",
            "90 % interval",
            "verdict",
        ]
        cells = []
        for row, found in self.rows:
            measured = [""] * 4 + ["not run"]
            if found is not None:
                measured = [
                    percent(found.measured),
                    f"{found.n:,}",
                    percent(found.difference, "+z"),
                    f"[{percent(found.low, '+z')}, {percent(found.high, '+z')}]",
                    found.word,
                ]
            cells.append(
                [
                    row.name,
                    row.measure or self.measure,
                    f"{row.value:.1f}",
                    f"{row.n:,}" if row.n else "?",
                    *measured,
                ]
            )
        return Table(header, cells, f"{self.title}, in %", list(self._notes()))

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, in fractions of 1."""
        rows = []
        for row, found in self.rows:
            plain = {"word": "not run"} if found is None else found.as_dict()
            rows.append({"name": row.name, "measure": row.measure or self.measure, **plain})
        return {"title": self.title, "margin": self.margin / 100, "rows": rows}

    def _notes(self) -> Iterator[str]:
        known = [found for _, found in self.rows if found]
        yield rule(self.margin / 100)
        if any(not row.n for row, _ in self.rows):
            yield "n ?: unknown; the published score is taken as exact"
        for row, found in self.rows:
            if found and found.errors:
                yield f"{row.name}: {found.errors:,} answers ended in an error and count as 0"
        yield from other_settings(known)


def rule(margin: float) -> str:
    """How the words come about, in a line."""
    points = f"{100 * margin:g} points"
    return (
        f"verdict: reproduced if the 90 % interval of measured - published lies within ± {points}, not reproduced if "
        "outside, else undecidable (Newcombe 1998, samples as independent; two one-sided tests at 5 %)"
    )


def other_settings(found: Iterable[Verdict]) -> Iterator[str]:
    """How settings differ, in a line."""
    lines = dict.fromkeys(chain(*(one.differs for one in found)))
    if lines:
        yield f"another setting: {'; '.join(lines)}"

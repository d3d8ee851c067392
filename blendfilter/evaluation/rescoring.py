"""Other metrics over a finished run: no question is answered again.

In: a run and a metric's name, any of `metrics.METRICS` or `llm-judge`. Out: a `Rescored`, kept in the run's folder as
`rescore/<metric>.json`; a judge's calls stand in `rescore/journal.jsonl`, so that none is made twice. An answer that
ended in an error counts as 0, and so does one on which the judge gave no verdict; those are counted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, FiniteFloat

from blendfilter.errors import (
    BadArgument,
    BadData,
    BudgetSpent,
    EmptyData,
    MissingFile,
    RunMismatch,
    ServerRefused,
    UnknownName,
)
from blendfilter.evaluation.files import Shape, read_json, write_json
from blendfilter.evaluation.ledger import ledger
from blendfilter.evaluation.recipes import told_apart
from blendfilter.evaluation.repeats import key_of
from blendfilter.evaluation.rows import DIGITS
from blendfilter.evaluation.summary import score_of, signature
from blendfilter.journal import FILE, Journal, digest
from blendfilter.metrics import METRICS, metric

if TYPE_CHECKING:
    import dspy

    from blendfilter.evaluation.run import Run
    from blendfilter.lm.budget import Budget
    from blendfilter.prompting import Prompts

FOLDER = "rescore"
JUDGED = "llm-judge"
UNREADABLE = "unreadable"
_NEAR = 2e-6
"""How far figures may lie apart that were rounded to six decimals."""
NAMES = (*METRICS, JUDGED)
"""Every metric that a finished run can be given."""
Told = Callable[[str, int, int | None], None]


@dataclass(frozen=True)
class Rescored:
    """A run by one more metric, in fractions of 1; `rows` has a score an answer, by id (`id#2`: its second answer).

    `unreadable` and `errors` count the answers without a verdict, and `problems` says which those are. `answers` is a
    digest of what was scored. `between_repeats` is as in `metrics.json`.
    """

    metric: str
    value: float
    low: float
    high: float
    n: int
    unreadable: int
    errors: int
    judge: dict[str, Any] | None
    ledger: dict[str, Any] | None
    answers: str
    signature: str
    rows: dict[str, float]
    problems: dict[str, str] = field(default_factory=dict)
    between_repeats: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """What the file holds."""
        told = asdict(self)
        rows = told.pop("rows")
        return {key: value for key, value in told.items() if key != "between_repeats" or value is not None} | {
            "rows": rows
        }


class _Stored(Shape):
    """The file of a `Rescored`."""

    model_config = ConfigDict(strict=True, extra="forbid")
    metric: str
    value: FiniteFloat
    low: FiniteFloat
    high: FiniteFloat
    n: int
    unreadable: int
    errors: int
    judge: dict[str, Any] | None
    ledger: dict[str, Any] | None
    answers: str
    signature: str
    rows: dict[str, FiniteFloat]
    problems: dict[str, str] = Field(default={})
    between_repeats: FiniteFloat | None = None


def rescore(
    run: Run,
    name: str,
    *,
    lm: dspy.BaseLM | str | None = None,
    concurrency: int = 16,
    prompts: Prompts | None = None,
    budget: Budget | None = None,
    progress: Told = lambda phase, done, total: None,
) -> Rescored:
    """Score `run` by `name` and keep it in the run's folder; the same judge again takes up where it stopped.

    Args:
        run: a finished run.
        name: `cover-em`, `inclusion`, `inclusion_raw`, `em`, `f1`, `accuracy`, or `llm-judge`.
        lm: the judge: a model, or its name. DSPy's configured one by default; the offline reader cannot judge.
        concurrency: the judge's calls in flight.
        prompts: templates of one's own (`judge/answer`).
        budget: what the judge of this run may take, however often this is asked; a limit apart from the run's own.
        progress: told (phase, done, total).

    Raises:
        UnknownName: no such metric. MissingFile: the run is not finished. EmptyData: it knows no golden answers.
        BadArgument: `lm` for a metric that asks no model, or a judge that cannot judge. BudgetSpent, ServerRefused: see
        `errors`; what the judge said so far is kept.
    """
    check_name(name)
    rows = run.rows
    if not any(row["golden_answers"] for row in rows):
        raise EmptyData(
            f"{run.folder} has no golden answers, so nothing can be called right: evaluate on questions that have some"
        )
    judged = name == JUDGED
    told = _judged(run, rows, lm, concurrency, prompts, budget, progress) if judged else _worded(rows, name, lm)
    scores = {key_of(row): score for row, score in zip(rows, told.scores, strict=True)}
    entry = score_of([row | {name: scores[key_of(row)]} for row in rows], name, run.settings["seed"])
    n = len({row["id"] for row in rows})
    unreadable = sum(problem == UNREADABLE for problem in told.problems.values())
    done = Rescored(
        metric=name,
        **entry,
        n=n,
        unreadable=unreadable,
        errors=len(told.problems) - unreadable,
        judge=told.judge,
        ledger=told.ledger,
        answers=answers_of(rows),
        signature=_signature(run, name, entry, n, told.judge),
        rows=scores,
        problems=told.problems,
    )
    path = file_of(run, name)
    path.parent.mkdir(exist_ok=True)
    write_json(path, done.as_dict())
    return done


def check_name(name: str) -> None:
    """Raise `UnknownName`, with a suggestion, for a metric that nobody can be given."""
    if name not in NAMES:
        raise UnknownName.of("metric", name, NAMES)


def rescored(run: Run, name: str) -> Rescored:
    """What an earlier `rescore` kept.

    Raises:
        UnknownName: no such metric. MissingFile: `run` was never given it. RunMismatch: its answers changed since.
        BadData: not such a file.
    """
    if name not in NAMES:
        raise UnknownName.of("metric", name, {*NAMES, *run.settings["metrics"]})
    command = f"blendfilter rescore {run.folder} --metric {name}"
    path = file_of(run, name)
    if not path.is_file():
        raise MissingFile(f"run '{run.name}' has no '{name}' yet: {command}")
    told = Rescored(**read_json(path, _Stored))
    if told.answers != answers_of(run.rows):
        raise RunMismatch(f"run '{run.name}' got other answers since its '{name}' was made: {command}")
    if told.rows.keys() != {key_of(row) for row in run.rows} or _disagrees(told, run.rows):
        raise BadData(f"{path}: the scores in it are not those of the answers; make it again: {command}")
    return told


def _disagrees(told: Rescored, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the mean is not that of the scores, or a score not that of its answer; a judge's are not checked."""
    by_question: dict[str, list[float]] = {}
    for row in rows:
        by_question.setdefault(row["id"], []).append(told.rows[key_of(row)])
    if abs(fmean(map(fmean, by_question.values())) - told.value) > _NEAR:
        return True
    if told.metric not in METRICS:
        return False
    scores = _worded(rows, told.metric, None).scores
    return any(told.rows[key_of(row)] != score for row, score in zip(rows, scores, strict=True))


def with_rescored(runs: Mapping[str, Run], metrics: Sequence[str]) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """Every run's rows with the `metrics` that they lack, as they were rescored; and where the judges differ, a line.

    Raises as `rescored` does.
    """
    tables = {label: run.rows for label, run in runs.items()}
    lines = []
    for name in metrics:
        if all(name in row for rows in tables.values() for row in rows):
            continue
        lacking = [label for label, rows in tables.items() if not all(name in row for row in rows)]
        told = {label: rescored(runs[label], name) for label in lacking}
        tables |= {label: [row | {name: told[label].rows[key_of(row)]} for row in tables[label]] for label in lacking}
        lines += told_apart(f"{name} judged by", {label: _judge_of(each) for label, each in told.items()})
    return tables, lines


def _judge_of(told: Rescored) -> str:
    if told.judge is None:
        return ""
    more = {name: said for name, said in told.judge.items() if name not in ("lm", "prompt")}
    return f"{told.judge['lm']}/{told.judge['prompt']}" + "".join(f" {name} {said}" for name, said in more.items())


def file_of(run: Run, name: str) -> Path:
    """Where a rescored metric is kept."""
    return run.folder / FOLDER / f"{name}.json"


def answers_of(rows: Iterable[Mapping[str, Any]]) -> str:
    """12 hex digits over what is scored."""
    return digest([[key_of(row), row["answer"], row["golden_answers"]] for row in rows])[:12]


@dataclass(frozen=True)
class _Told:
    scores: Sequence[float]
    problems: dict[str, str] = field(default_factory=dict)
    judge: dict[str, Any] | None = None
    ledger: dict[str, Any] | None = None


def _worded(rows: Sequence[Mapping[str, Any]], name: str, lm: Any) -> _Told:
    if lm is not None:
        raise BadArgument(f"{name} compares words and asks no model: leave the model out, or take --metric {JUDGED}")
    score = metric(name)
    # An error has no answer. An empty one would do where nothing is left of a golden answer ("A") after normalising.
    told = (0.0 if row["error"] else score(row["answer"] or "", row["golden_answers"]) for row in rows)
    return _Told([round(each, DIGITS) for each in told])


def _judged(
    run: Run,
    rows: Sequence[Mapping[str, Any]],
    lm: dspy.BaseLM | str | None,
    concurrency: int,
    prompts: Prompts | None,
    budget: Budget | None,
    progress: Told,
) -> _Told:
    from blendfilter import aio
    from blendfilter.evaluation.judging import Judge
    from blendfilter.lm.budget import check_priced, purse_for

    judge = Judge(lm, prompts=prompts)
    prices = {judge.lm.name: judge.lm.terms.price}
    check_priced(budget, prices)
    with Journal(run.folder / FOLDER / FILE) as journal, ExitStack() as stack:
        purse = purse_for(journal, budget, prices)
        if purse is not None:
            stack.callback(purse.close)
        told = judge.verdicts(
            rows, journal, concurrency=concurrency, purse=purse, told=lambda done: progress("judged", done, len(rows))
        )
        try:
            verdicts = aio.run(told, "rescore", "await asyncio.to_thread(run.rescore, …)")
        except ServerRefused:
            if not len(journal):  # nothing was said: nothing is to be left
                journal.path.unlink(missing_ok=True)
                with suppress(OSError):
                    journal.path.parent.rmdir()
            raise
        except BudgetSpent as error:
            raise BudgetSpent(f"{error}; what was judged is kept, and a higher limit goes on there") from error
        calls = ledger(({"calls": each.calls} for each in verdicts), journal.read_call)
    problems = {key_of(row): each.problem for row, each in zip(rows, verdicts, strict=True) if each.problem}
    return _Told([each.score for each in verdicts], problems, judge.settings, calls["total"].stored())


def _signature(run: Run, name: str, entry: Mapping[str, Any], n: int, judge: Mapping[str, Any] | None) -> str:
    told = signature(run.settings, {name: entry}, n)
    return told if judge is None else f"{told}|judge:{judge['lm']}/{judge['prompt']}"

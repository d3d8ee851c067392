"""Other metrics over a finished run: no question is answered again.

A metric is any of `metrics.METRICS`, or `llm-judge`. Scores are kept in the run's folder as `rescore/<metric>.json`; a
judge's calls stand in `rescore/journal.jsonl`, so that none is made twice. An answer that ended in an error, or on
which the judge gave no verdict, counts as 0; those are counted apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, FiniteFloat

from blendfilter import aio
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
from blendfilter.evaluation.answer_judge import UNREADABLE, AnswerJudge, AnswerVerdict
from blendfilter.evaluation.ledger import ledger
from blendfilter.evaluation.rows import DIGITS, NEAR, key_of
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_folder import read_json, write_json
from blendfilter.evaluation.summary import score_of, signature
from blendfilter.journal import FILE, Journal, digest
from blendfilter.metrics import METRICS, metric
from blendfilter.run_context import RunContext

if TYPE_CHECKING:
    import dspy

    from blendfilter.lm.budget import Budget
    from blendfilter.prompting import Prompts

FOLDER = "rescore"
JUDGED = "llm-judge"
NAMES = (*METRICS, JUDGED)
"""Every metric that a finished run can be given."""
PhaseProgress = Callable[[str, int, int | None], None]
"""Called with (phase, done, total)."""


class Rescored(BaseModel):
    """A run by one more metric, in fractions of 1: the content of its file.

    Attributes:
        unreadable, errors: how many answers are without a verdict; `problems` says which those are.
        judge, ledger: who judged, and what that took; None where no model did.
        answers: a digest of what was scored.
        rows: a score an answer, by id (`id#2`: its second answer).
        between_repeats: as in `metrics.json`.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)
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
    problems: dict[str, str] = {}
    between_repeats: FiniteFloat | None = None
    rows: dict[str, FiniteFloat]

    def as_dict(self) -> dict[str, Any]:
        """The content of its file."""
        return self.model_dump(exclude={"between_repeats"} if self.between_repeats is None else None)


def rescore(
    run: Run,
    name: str,
    *,
    lm: dspy.BaseLM | str | None = None,
    concurrency: int = 16,
    prompts: Prompts | None = None,
    budget: Budget | None = None,
    progress: PhaseProgress = lambda phase, done, total: None,
) -> Rescored:
    """Score `run` by `name` and keep it in the run's folder; the same judge again goes on where it stopped.

    Args:
        run: a finished run.
        name: `cover-em`, `inclusion`, `inclusion_raw`, `em`, `f1`, `accuracy`, or `llm-judge`.
        lm: the judge: a model, or its name. DSPy's configured one by default; the offline reader cannot judge.
        concurrency: the judge's calls in flight.
        prompts: templates of your own (`judge/answer`).
        budget: what the judge of this run may take, in all its sessions; a limit apart from the run's own.
        progress: called with (phase, done, total).

    Raises:
        UnknownName: no such metric. MissingFile: the run is not finished. EmptyData: it knows no golden answers.
        BadArgument: `lm` for a metric that needs no model, or a judge that cannot judge. BudgetSpent, ServerRefused:
        see `errors`; what was judged so far is kept.
    """
    check_name(name)
    rows = run.rows
    if not any(row["golden_answers"] for row in rows):
        raise EmptyData(
            f"{run.folder} has no golden answers, so nothing can be called right: evaluate on questions that have some"
        )
    problems: dict[str, str] = {}
    judge = spent = None
    if name == JUDGED:
        context = RunContext(lm, concurrency=concurrency, budget=budget)
        answer_judge = AnswerJudge(context.model, prompts=prompts)
        verdicts, spent = _verdicts(run, rows, answer_judge, context, concurrency, progress)
        scores = [verdict.score for verdict in verdicts]
        problems = {key_of(row): found.problem for row, found in zip(rows, verdicts, strict=True) if found.problem}
        judge = answer_judge.settings
    elif lm is None:
        scores = _word_scores(rows, name)
    else:
        raise BadArgument(f"{name} compares words and asks no model: leave the model out, or take --metric {JUDGED}")
    by_answer = {key_of(row): score for row, score in zip(rows, scores, strict=True)}
    entry = score_of([row | {name: by_answer[key_of(row)]} for row in rows], name, run.settings["seed"])
    n = len({row["id"] for row in rows})
    unreadable = sum(problem == UNREADABLE for problem in problems.values())
    done = Rescored(
        metric=name,
        **entry,
        n=n,
        unreadable=unreadable,
        errors=len(problems) - unreadable,
        judge=judge,
        ledger=spent,
        answers=_answers_digest(rows),
        signature=signature(run.settings, {name: entry}, n)
        + ("" if judge is None else f"|judge:{judge['lm']}/{judge['prompt']}"),
        problems=problems,
        rows=by_answer,
    )
    path = file_of(run, name)
    path.parent.mkdir(exist_ok=True)
    write_json(path, done.as_dict())
    return done


def check_name(name: str) -> None:
    """Raise `UnknownName`, with a suggestion, for a metric that no run can be given."""
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
    found = Rescored(**read_json(path, Rescored))
    if found.answers != _answers_digest(run.rows):
        raise RunMismatch(f"run '{run.name}' got other answers since its '{name}' was made: {command}")
    if found.rows.keys() != {key_of(row) for row in run.rows} or _disagrees(found, run.rows):
        raise BadData(f"{path}: the scores in it are not those of the answers; make it again: {command}")
    return found


def _disagrees(found: Rescored, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the mean is not that of the scores, or a score not that of its answer; a judge's are not checked."""
    by_question: dict[str, list[float]] = {}
    for row in rows:
        by_question.setdefault(row["id"], []).append(found.rows[key_of(row)])
    if abs(fmean(map(fmean, by_question.values())) - found.value) > NEAR:
        return True
    scores = _word_scores(rows, found.metric) if found.metric in METRICS else []
    return any(found.rows[key_of(row)] != score for row, score in zip(rows, scores, strict=False))


def file_of(run: Run, name: str) -> Path:
    """Where a rescored metric is kept."""
    return run.folder / FOLDER / f"{name}.json"


def _answers_digest(rows: Iterable[Mapping[str, Any]]) -> str:
    return digest([[key_of(row), row["answer"], row["golden_answers"]] for row in rows])[:12]


def _word_scores(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    score = metric(name)
    # An error has no answer. An empty one would do where nothing is left of a golden answer ("A") after normalising.
    return [round(0.0 if row["error"] else score(row["answer"] or "", row["golden_answers"]), DIGITS) for row in rows]


def _verdicts(
    run: Run,
    rows: Sequence[Mapping[str, Any]],
    judge: AnswerJudge,
    context: RunContext,
    concurrency: int,
    progress: PhaseProgress,
) -> tuple[list[AnswerVerdict], dict[str, Any]]:
    """A verdict for each row, and the ledger's entry of all their calls."""
    with Journal(run.folder / FOLDER / FILE) as journal, context.opened(journal):
        work = judge.verdicts(
            rows, context.lm, window=2 * concurrency, progress=lambda done: progress("judged", done, len(rows))
        )
        try:
            verdicts = aio.run(work, "rescore", "await asyncio.to_thread(run.rescore, …)")
        except ServerRefused:
            if not len(journal):  # no call came to anything: nothing is left behind
                journal.path.unlink(missing_ok=True)
                with suppress(OSError):
                    journal.path.parent.rmdir()
            raise
        except BudgetSpent as error:
            raise BudgetSpent(f"{error}; what was judged is kept, and a higher limit goes on there") from error
        calls = ledger(({"calls": verdict.calls} for verdict in verdicts), journal.read_call)
    return verdicts, calls["total"].stored()

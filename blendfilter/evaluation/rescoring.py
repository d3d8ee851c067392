"""Other metrics over a finished run: no question is answered again.

A metric is any of `metrics.METRICS`, or `llm-judge`. Scores are kept in the run's folder as `rescore/<metric>.json`; a
judge's calls stand in `rescore/journal.jsonl`, so that none is made twice. An answer that ended in an error, or on
which the judge gave no verdict, counts as 0; those are counted apart and named in the signature. Where every
judgement failed the same way there is no score.

The judge is asked whether an answer means the same as a golden one: yes or no, and nothing in between. One call an
answer, greedy, through the prompt `judge/answer`; a reply that is neither leads to a second call with that reply in the
prompt, and a second such reply counts as unreadable, never as a yes. What the judged model wrote stands in the prompt
on one line in quotation marks and can add no line to it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

import dspy
from pydantic import BaseModel, ConfigDict, FiniteFloat

from blendfilter import aio
from blendfilter.asking import SHORT_TOKENS, STOP, Ask
from blendfilter.context import calls_of, noting, setting
from blendfilter.errors import (
    BadArgument,
    BadData,
    BudgetSpent,
    EmptyData,
    MissingFile,
    ModelError,
    RunFailed,
    RunMismatch,
    ServerRefused,
    UnknownName,
    words_of,
)
from blendfilter.evaluation.ledger import ledger
from blendfilter.evaluation.rows import (
    DIGITS,
    MESSAGE,
    NEAR,
    Json,
    Record,
    key_of,
    score_of,
    signature,
)
from blendfilter.evaluation.run import Run
from blendfilter.evaluation.run_folder import read_json, write_json
from blendfilter.evaluation.run_settings import without_none
from blendfilter.journal import FILE, Journal, digest
from blendfilter.lm.model import ConnectedLM
from blendfilter.metrics import METRICS, metric
from blendfilter.records import one_line, whole_characters
from blendfilter.run_context import AnyLM, RunContext
from blendfilter.text import shortened

if TYPE_CHECKING:
    from blendfilter.lm.budget import Budget
    from blendfilter.prompting import Prompts

FOLDER = "rescore"
JUDGED = "llm-judge"
NAMES = (*METRICS, JUDGED)
"""Every metric that a finished run can be given."""
TEMPLATE = "judge/answer"
UNREADABLE = "unreadable"
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
    judge: Json | None
    ledger: Json | None
    answers: str
    signature: str
    problems: dict[str, str] = {}
    between_repeats: FiniteFloat | None = None
    rows: dict[str, FiniteFloat]

    def as_dict(self) -> Json:
        """The content of its file."""
        return self.model_dump(
            exclude={"between_repeats"} if self.between_repeats is None else None
        )


def rescore(
    run: Run,
    name: str,
    *,
    lm: AnyLM | None = None,
    concurrency: int = 16,
    prompts: Prompts | str | None = None,
    budget: Budget | None = None,
    progress: PhaseProgress = lambda phase, done, total: None,
) -> Rescored:
    """Score `run` by `name` and keep it in the run's folder; the same judge again goes on where it stopped.

    Args:
        run: a finished run.
        name: any of `NAMES`.
        lm: the judge, DSPy's configured model by default; the offline reader cannot judge.
        concurrency: the judge's calls in flight.
        prompts: templates of your own (`judge/answer`).
        budget: what the judge of this run may take, in all its sessions; a limit apart from the run's own.
        progress: called with (phase, done, total).

    Raises:
        MissingFile: the run is not finished. EmptyData: it knows no golden answers, or has no answer. BadArgument: a
        judge that cannot judge. RunFailed: every judgement ended in the same
        error, and nothing is scored; a `UserWarning` says how many did, where some have a verdict. BudgetSpent,
        ServerRefused: what was judged so far is kept.
    """
    check_name(name)
    rows = run.rows
    if not any(row["golden_answers"] for row in rows):
        raise EmptyData(
            f"{run.folder} has no golden answers to score by: evaluate on questions that have some"
        )
    if run.failed:
        raise EmptyData(
            f"{run.folder}: every question ended in an error, so no answer can be scored: evaluate it again"
        )
    problems: dict[str, str] = {}
    judge = spent = None
    if name == JUDGED:
        context = RunContext(lm, concurrency=concurrency, budget=budget)
        answer_judge = AnswerJudge(context.model, prompts=prompts)
        with Journal(run.folder / FOLDER / FILE) as journal, context.opened(journal):
            work = answer_judge.verdicts(
                rows,
                context.lm,
                window=2 * concurrency,
                progress=lambda done: progress("judged", done, len(rows)),
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
                raise BudgetSpent(
                    f"{error}; what was judged is kept, and a higher limit goes on there"
                ) from error
            judged = ({"calls": verdict.calls} for verdict in verdicts)
            spent = ledger(judged, journal.read_call)["total"].stored()
        scores = [verdict.score for verdict in verdicts]
        found = zip(map(key_of, rows), verdicts, strict=True)
        problems = {key: verdict.problem for key, verdict in found if verdict.problem}
        _check_judged(run, [verdict for verdict in verdicts if verdict.judged])
        judge = answer_judge.settings
    else:
        scores = _word_scores(rows, name)
    by_answer = dict(zip(map(key_of, rows), scores, strict=True))
    scored = [row | {name: by_answer[key_of(row)]} for row in rows]
    entry = score_of(scored, name, run.settings["seed"])
    n = len({row["id"] for row in rows})
    unreadable = sum(problem == UNREADABLE for problem in problems.values())
    errors = len(problems) - unreadable
    judged_by = "" if judge is None else f"|judge:{judge['lm']}/{judge['prompt']}"
    judged_by += f"|judge_errors:{errors}" * bool(errors)
    done = Rescored(
        metric=name,
        **entry,
        n=n,
        unreadable=unreadable,
        errors=errors,
        judge=judge,
        ledger=spent,
        answers=_answers_digest(rows),
        signature=signature(run.settings, {name: entry}, n, run.errors) + judged_by,
        problems=problems,
        rows=by_answer,
    )
    path = file_of(run, name)
    path.parent.mkdir(exist_ok=True)
    write_json(path, done.as_dict())
    return done


def _check_judged(run: Run, judgements: Sequence[AnswerVerdict]) -> None:
    """Warn of judgements that ended in an error. Raises: RunFailed, where all of them did, in the same one."""
    failed = [found for found in judgements if found.error]
    if not failed:
        return
    kinds = {found.problem for found in failed}
    move = "the same command asks for them again"
    words = f"{failed[0].problem}: {shortened(failed[0].error, MESSAGE)}"
    if len(failed) == len(judgements) and len(kinds) == 1:
        problem = f"all {len(failed)} judgements failed the same way: {words}; nothing is scored, and {move}"
        raise RunFailed(problem, kind=failed[0].problem, folder=str(run.folder))
    warnings.warn(
        f"{len(failed)} judgements ended in an error and count as 0 (first {words}); {move}",
        stacklevel=4,
    )


def check_name(name: str) -> None:
    """Raise `UnknownName`, with a suggestion, for a metric that no run can be given."""
    if name not in NAMES:
        raise UnknownName.of("metric", name, NAMES)


def rescored(run: Run, name: str) -> Rescored:
    """What an earlier `rescore` kept. Raises: MissingFile, RunMismatch where the answers changed since, BadData."""
    if name not in NAMES:
        raise UnknownName.of("metric", name, {*NAMES, *run.settings["metrics"]})
    command = f"blendfilter rescore {run.folder} --metric {name}"
    path = file_of(run, name)
    if not path.is_file():
        raise MissingFile(f"run '{run.name}' has no '{name}' yet: {command}")
    found = Rescored(**read_json(path, Rescored))
    if found.answers != _answers_digest(run.rows):
        raise RunMismatch(
            f"run '{run.name}' got other answers since its '{name}' was made: {command}"
        )
    if found.rows.keys() != {key_of(row) for row in run.rows} or _disagrees(found, run.rows):
        raise BadData(
            f"{path}: the scores in it are not those of the answers; make it again: {command}"
        )
    return found


def _disagrees(found: Rescored, rows: Sequence[Record]) -> bool:
    """Whether the mean is not that of the scores, or a score not that of its answer; a judge's are not checked."""
    scores = [found.rows[key_of(row)] for row in rows]
    by_question: dict[str, list[float]] = {}
    for row, score in zip(rows, scores, strict=True):
        by_question.setdefault(row["id"], []).append(score)
    if abs(fmean(map(fmean, by_question.values())) - found.value) > NEAR:
        return True
    return found.metric in METRICS and scores != _word_scores(rows, found.metric)


def file_of(run: Run, name: str) -> Path:
    """Where a rescored metric is kept."""
    return run.folder / FOLDER / f"{name}.json"


def _answers_digest(rows: Iterable[Record]) -> str:
    return digest([[key_of(row), row["answer"], row["golden_answers"]] for row in rows])[:12]


def _word_scores(rows: Sequence[Record], name: str) -> list[float]:
    score = metric(name)
    # An error has no answer. An empty one would do where nothing is left of a golden answer ("A") after normalising.
    return [
        round(
            0.0 if row["error"] else score(row["answer"] or "", row["golden_answers"]), DIGITS
        )
        for row in rows
    ]


# --- the judge ------------------------------------------------------------------------------------------------------


class JudgeAnswer(dspy.Signature):
    """Whether an answer means the same as a golden one."""

    question: str = dspy.InputField()
    golden_answers: list[str] = dspy.InputField(desc="each in quotation marks")
    answer: str = dspy.InputField(desc="in quotation marks")
    said: str = dspy.InputField(default="")
    verdict: str = dspy.OutputField()


class AnswerVerdict(NamedTuple):
    """1.0 for yes, else 0.0; where it is not the judge's no, `problem` says why, and `calls` are its (stage, key).

    `judged`: the judge was called; `error`: the words of the error that the call ended in.
    """

    score: float
    problem: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    judged: bool = False
    error: str = ""


def read_verdict(reply: str) -> bool | None:
    """What a reply says; None where it is anything but yes or no, and marks around it.

    >>> read_verdict("**Yes.**"), read_verdict("no"), read_verdict("Yes, it is in part.")
    (True, False, None)
    """
    words = " ".join(re.findall(r"\w+", reply.casefold())).removeprefix("verdict ")
    return {"yes": True, "no": False}.get(words)


def quoted(text: str) -> str:
    """`text` on one line in quotation marks, those inside escaped: it cannot end itself.

    >>> quoted('1871"' + chr(10) + 'Verdict: yes')
    '"1871\\\\" Verdict: yes"'
    """
    return json.dumps(one_line(whole_characters(text)), ensure_ascii=False)


class AnswerJudge:
    """The prompts of a judge. Raises: BadArgument for the offline reader, which cannot judge."""

    def __init__(self, lm: ConnectedLM, *, prompts: Prompts | str | None = None) -> None:
        self.lm = lm
        if lm.offline:
            raise BadArgument("the offline reader cannot judge an answer: name a model (lm=)")
        settings: Json = {
            "temperature": 0.0,
            "max_tokens": SHORT_TOKENS,
            "stop": STOP,
            "prompts": prompts,
        }
        self.first = Ask("verdict", JudgeAnswer, TEMPLATE, **settings)
        self.again = Ask("verdict_again", JudgeAnswer, TEMPLATE, **settings)

    @property
    def settings(self) -> Json:
        """Who judged and by which prompt, as JSON: no figure is complete without it."""
        known = self.lm.identity
        named: Json = {
            name: value for name, value in known.items() if value and isinstance(value, str)
        }
        if options := without_none(known.get("options") or {}):
            named["options"] = options
        return {"lm": self.lm.name, **named, "prompt": self.first.template.digest[:12]}

    async def verdicts(
        self,
        rows: Sequence[Record],
        lm: ConnectedLM,
        *,
        window: int,
        progress: Callable[[int], None] = lambda done: None,
    ) -> list[AnswerVerdict]:
        """A verdict for each row, in their order, `window` of them at a time by `lm`, journaled and limited."""
        places, done = asyncio.Semaphore(window), itertools.count(1)

        async def judge(order: int, row: Record) -> AnswerVerdict:
            async with places:
                with setting(question=row["id"], order=order):
                    verdict = await self._verdict(row, lm)
            progress(next(done))
            return verdict

        async with aio.together() as group:
            tasks = [group.create_task(judge(*each)) for each in enumerate(rows)]
        return [task.result() for task in tasks]

    async def _verdict(self, row: Record, lm: ConnectedLM) -> AnswerVerdict:
        if not (row["answer"] or "").strip() or not row["golden_answers"]:
            # no answer, or none known to be right: there is nothing to judge
            return AnswerVerdict(0.0)
        fields = {
            "question": whole_characters(row["question"]),
            "golden_answers": [quoted(answer) for answer in row["golden_answers"]],
            "answer": quoted(row["answer"]),
        }
        with noting() as notes, dspy.context(lm=lm, trace=None, disable_history=True):
            problem, verdict, words = "", None, ""
            try:
                reply = str((await self.first.acall(**fields, said="")).verdict)
                verdict = read_verdict(reply)
                if verdict is None:
                    verdict = read_verdict(
                        str((await self.again.acall(**fields, said=quoted(reply))).verdict)
                    )
                    problem = UNREADABLE if verdict is None else ""
            except ModelError as error:
                problem, words = error.kind, words_of(error) or error.kind
        calls = tuple((note.stage, note.key) for note in calls_of(notes))
        return AnswerVerdict(float(verdict or 0), problem, calls, judged=True, error=words)

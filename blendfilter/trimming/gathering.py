"""`trim`: judge what an index finds for questions, and gather the witnesses that its overlay drops passages by.

Ma et al. 2024 (CDIT), section 4, Algorithm 1. A question's verdicts are on file once all of its passages have theirs.
One whose call failed stays open, and the same command judges it again: what the journal holds is not paid for again.
The bare index is searched, because a verdict must not depend on earlier ones.

A question that is near enough to an earlier one takes that one's verdicts over, without a call. This depends on the
questions ahead of it alone, so `plan_questions` decides it before the first call: calls of different questions may
overlap, and a session that goes on after a kill decides as the first one did.

Differs from the paper: a reply that is neither true nor false is no verdict and no witness; a question answered by
another's verdicts is no witness of its own; nothing is cut in the index itself (`overlay` drops at search time).
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import dspy

from blendfilter import aio
from blendfilter.context import setting
from blendfilter.errors import (
    AskedWrong,
    BadArgument,
    BudgetSpent,
    CannotWrite,
    EmptyData,
    interruptible,
    words_of,
)
from blendfilter.filters.cdit import Judge
from blendfilter.journal import Journal
from blendfilter.lm.budget import Budget
from blendfilter.lm.model import ConnectedLM
from blendfilter.records import Question, one_line
from blendfilter.retrieval.base import (
    ProgressCallback,
    Retriever,
    check_search,
    fingerprint_of,
    silent,
)
from blendfilter.retrieval.callables import as_retriever
from blendfilter.run_context import CONCURRENCY, RunContext, connected_lms
from blendfilter.text import counted
from blendfilter.trimming.folder import DEPTH, TrimFolder, is_trimmed
from blendfilter.trimming.guard import Rules, guard_of
from blendfilter.trimming.similar import ByVector, Similar, similar_for
from blendfilter.trimming.summary import FailedQuestion, Trimming, WouldDrop, spent_in
from blendfilter.trimming.witnesses import (
    JudgedBy,
    JudgedQuestion,
    Witnesses,
    WitnessWriter,
    question_id,
)

logger = logging.getLogger(__name__)
JUDGING, COMPARING = "judging questions", "comparing questions"
_ENDS_ALL = (AskedWrong, BudgetSpent, CannotWrite, *aio.ENDING)
"""What every question would meet alike."""


@interruptible()
def trim(
    index: Retriever,
    questions: Sequence[Question | str],
    judge: Judge,
    folder: TrimFolder | str | os.PathLike[str],
    *,
    lm: dspy.BaseLM | str | None = None,
    k: int | None = None,
    reuse: bool = True,
    guard: bool | Rules | None = True,
    similar: Similar | str | None = None,
    concurrency: int = CONCURRENCY,
    budget: Budget | None = None,
    max_retries: int | None = None,
    dry_run: bool = False,
    progress: ProgressCallback = silent,
) -> Trimming:
    """Gather witnesses for the overlay in `folder`. Waits for it to be done; inside a notebook too.

    Args:
        index: the bare index, which the overlay was made for.
        questions: what is searched for and judged; what `load` gives, or strings.
        judge: whose verdicts count. Another one than last time judges what is still open, and anew what the first one
            gave no verdict on at all; each verdict names its judge, and so does the summary of the folder.
        folder: `TrimFolder.create(…)`, `.read(…)` of one that is there, or its path: one that is not there is made.
        lm: the model that judges; DSPy's configured one by default, else the offline reader.
        k: passages judged of each question; the folder's by default, and no other (10 for a new one).
        reuse: a question near enough to a judged one takes its verdicts over, without a call.
        guard: not where the two differ in a number, a name or an opposite, nor where the overlay's model of pairs (or a
            `PairModel` given here) says that they do not ask the same.
        similar: what finds the nearest judged question, itself empty; by default what the overlay searches with. Or the
            name or folder of a model of pairs, which the overlay keeps.
        concurrency: model calls in flight.
        budget: what all sessions together may take.
        max_retries: further attempts that this session may make.
        dry_run: judge (the journal keeps the calls), and list what would be dropped; the witnesses stay as they are.
        progress: called with how many questions are done.

    Raises:
        RunLocked: another trim, or an undo, writes there. BadData: the overlay is another index's, or damaged.
        RunMismatch: the folder was made with another k. BudgetSpent: the limit is reached; the same call with a higher
        one goes on. ServerRefused and the like: see `blendfilter.errors`.
    """
    if isinstance(questions, str):
        raise BadArgument("trim wants a list of questions, got one string: put it in a list")
    # On one line, as a method asks the index for it: a question of choice has its options on lines of their own.
    texts = [one_line(each if isinstance(each, str) else each.question) for each in questions]
    if not texts:
        raise EmptyData("no questions to judge for")
    index = as_retriever(index)
    overlay = _overlay_of(folder, index, k)
    if isinstance(similar, str):
        overlay, similar = overlay.set(similar=similar), None
    overlay.check(index, k)
    check_search(texts, overlay.k)
    context = RunContext(
        lm, judge, concurrency=concurrency, budget=budget, max_retries=max_retries
    )
    near = similar or similar_for(index, overlay.similarity) if reuse else None
    rules = guard_of(guard, overlay.similar, overlay.similar_files)
    prices = context.model.terms.prices
    with ExitStack() as stack:
        path = overlay.witnesses
        if dry_run:  # writes to a copy
            path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / path.name
            shutil.copyfile(overlay.witnesses, path)
        writer = stack.enter_context(WitnessWriter(path))
        journal = stack.enter_context(Journal(overlay.journal))
        stack.enter_context(context.opened(journal))
        before, spent = Witnesses.read(path, overlay.pairing), spent_in(journal, prices)
        session = _JudgingSession(index, overlay.k, context, writer)
        known = {
            name: judged
            for name, judged in before.judged.items()
            if _stands(judged, session.by)
        }
        plan = plan_questions(
            texts, known, near, overlay.min_similarity, guard=rules, progress=progress
        )
        work = session.outcomes(
            [planned for planned in plan if planned.kind == "judge"], concurrency, progress
        )
        try:
            done = aio.run(work, "trim", "await asyncio.to_thread(trim, …)")
        except BudgetSpent as error:
            count = sum(writer.witnesses.is_judged(each.source or each.id) for each in plan)
            raise BudgetSpent(
                f"{error}; {count:,} of {counted(len(plan), 'question')} are judged, and the same command with a "
                "higher limit goes on"
            ) from error
        after, total = Witnesses.read(path, overlay.pairing), spent_in(journal, prices)
    reused, waiting = _reused(plan, after)
    errors = [
        FailedQuestion(outcome.planned.question, words_of(outcome.error))
        for outcome in done
        if outcome.error is not None
    ]
    verdicts = Counter(verdict for outcome in done for verdict in outcome.verdicts.values())
    return Trimming(
        place=str(overlay.place),
        questions=len(plan),
        judged=len(done) - len(errors),
        known=sum(planned.kind == "known" for planned in plan),
        reused=len(reused),
        saved=sum(len(question.verdicts) for question in reused),
        accepted=verdicts[True],
        rejected=verdicts[False],
        silent=verdicts[None],
        separations=after.separations(),
        reached=sum(1 for _ in after.separated(overlay.threshold, one_way=overlay.one_way)),
        rejects=after.rejects(),
        threshold=overlay.threshold,
        one_way=overlay.one_way,
        spent=total - spent,
        total=total,
        errors=(*errors, *waiting),
        dropped=_would_drop(index, texts, overlay, rules, before, after) if dry_run else None,
    )


def _overlay_of(
    folder: TrimFolder | str | os.PathLike[str], index: Retriever, k: int | None
) -> TrimFolder:
    """The overlay itself, that of its folder, or a new one."""
    if isinstance(folder, TrimFolder):
        return folder
    if is_trimmed(folder):
        return TrimFolder.read(folder)
    return TrimFolder.create(index, folder, k=DEPTH if k is None else k)


def _stands(judged: JudgedQuestion, judge: JudgedBy) -> bool:
    """Whether its verdicts stay: what another judge closed without one verdict is judged anew."""
    return not judged.silent or len(judged.silent) < len(judged.verdicts) or judged.by == judge


def _reused(
    plan: Sequence[PlannedQuestion], after: Witnesses
) -> tuple[list[JudgedQuestion], list[FailedQuestion]]:
    """The questions whose verdicts others took over, one for each that did; and who waits for one that failed."""
    reused, waiting = list[JudgedQuestion](), list[FailedQuestion]()
    for planned in plan:
        if planned.kind != "reuse":
            continue
        if planned.source in after.judged:
            reused.append(after.judged[planned.source])
        else:
            why = "it waits for the verdicts of a question like it, which failed"
            waiting.append(FailedQuestion(planned.question, why))
    return reused, waiting


def _would_drop(
    index: Retriever,
    texts: Sequence[str],
    folder: TrimFolder,
    guard: Rules | None,
    before: Witnesses,
    after: Witnesses,
) -> tuple[WouldDrop, ...]:
    """What a search for these questions would drop afterwards and does not drop now."""
    now, then = (folder.over(index, witnesses, guard=guard) for witnesses in (before, after))
    made: list[WouldDrop] = []
    for question in dict.fromkeys(texts):
        gone = {dropped.passage.id for dropped in now.explain(question, folder.k).dropped}
        made += [
            WouldDrop(question, dropped.passage.id, dropped.kept, len(dropped.witnesses))
            for dropped in then.explain(question, folder.k).dropped
            if dropped.passage.id not in gone
        ]
    return tuple(made)


# --- planning ---------------------------------------------------------------------------------------------------------


class PlannedQuestion(NamedTuple):
    """One question, and what is to be done with it.

    `known`: it was judged before. `reuse`: the verdicts of the question `source` (an id) answer it.
    """

    id: str
    question: str
    kind: Literal["judge", "known", "reuse"]
    source: str = ""


def plan_questions(
    questions: Iterable[str],
    judged: Mapping[str, JudgedQuestion],
    similar: Similar | None,
    min_similarity: float | None = None,
    *,
    guard: bool | Rules | None = True,
    progress: ProgressCallback = silent,
) -> list[PlannedQuestion]:
    """What is to be done with each question, in order.

    A question of the list counts as judged from its own place on, whether its verdicts are on file already or not.

    Args:
        judged: the questions that are judged, by id.
        similar: finds the nearest judged question, itself still empty; None: only the same words are the same question.
        min_similarity: from where on two questions share verdicts; by default the measure's own.
        guard: two near questions that it keeps apart share none; True: by the rules of `unlike`.
    """
    texts = [text.strip() for text in questions]
    listed = {question_id(text) for text in texts}
    sources = [each.question for each in judged.values() if each.id not in listed]
    if isinstance(similar, ByVector):
        similar.encode_ahead([*sources, *texts])
    if similar is not None:
        similar.add(sources)
        min_similarity = similar.min_similarity if min_similarity is None else min_similarity
    how: dict[str, Any] = {"floor": min_similarity, "guard": guard_of(guard)}
    first: dict[str, PlannedQuestion] = {}
    plan: list[PlannedQuestion] = []
    for done, text in enumerate(texts, 1):
        progress(COMPARING, done, len(texts))
        own = question_id(text)
        if own in first:  # the same question again
            plan.append(PlannedQuestion(own, text, "reuse", first[own].source or own))
            continue
        planned = PlannedQuestion(own, text, "known" if own in judged else "judge")
        if similar is not None and own not in judged and (near := similar.like(text, **how)[1]):
            source = question_id(similar.questions[near[0].at])
            planned = PlannedQuestion(own, text, "reuse", source)
        elif similar is not None:
            similar.add([text])
        first[own] = planned
        plan.append(planned)
    return plan


# --- judging ----------------------------------------------------------------------------------------------------------


class QuestionOutcome(NamedTuple):
    """The verdicts on one question's passages, in rank order, or the error that it ended in."""

    planned: PlannedQuestion
    verdicts: Mapping[str, bool | None]
    error: BaseException | None = None


class _JudgingSession:
    """Searches and judges for many questions at once.

    What every question would meet alike (no server, a spent budget, a full disk) ends the session, with all of it kept.
    """

    def __init__(
        self, index: Retriever, k: int, context: RunContext, writer: WitnessWriter
    ) -> None:
        self.index, self.k, self.context, self.writer = index, k, context, writer
        self.judge, self.lm = cast(Judge, context.module), context.lm
        self.by = judged_by(self.judge, self.lm)

    async def outcomes(
        self, plan: Sequence[PlannedQuestion], concurrency: int, progress: ProgressCallback
    ) -> list[QuestionOutcome]:
        """The outcome of each question, in order."""
        places = asyncio.Semaphore(2 * concurrency)
        done = 0

        async def one(order: int, planned: PlannedQuestion) -> QuestionOutcome:
            nonlocal done
            async with places:
                outcome = await self._outcome(order, planned)
            done += 1
            progress(JUDGING, done, len(plan))
            return outcome

        async with aio.together() as group:
            tasks = [group.create_task(one(*planned)) for planned in enumerate(plan)]
        return [task.result() for task in tasks]

    async def _outcome(self, order: int, planned: PlannedQuestion) -> QuestionOutcome:
        with (
            setting(question=planned.id, order=order, notes=[], journal=self.context.journal),
            dspy.context(lm=self.lm, trace=[], disable_history=True),
        ):
            try:
                verdicts = await self._verdicts(planned.question)
            except _ENDS_ALL:
                raise
            except BaseException as error:
                # whatever a call or an index raises is this question's error
                if self.context.purse is not None:
                    self.context.purse.check()  # it may be what came of a call that was refused
                logger.debug("question %s failed", planned.id, exc_info=True)
                return QuestionOutcome(planned, {}, error)
        if self.writer.witnesses.is_judged(planned.id):  # by another judge, without one verdict
            self.writer.undo_question(planned.id)
        self.writer.judge(planned.question, verdicts, self.by)
        return QuestionOutcome(planned, verdicts)

    async def _verdicts(self, question: str) -> dict[str, bool | None]:
        """Each passage's verdict, in rank order; all are waited for, even after an error: they are paid for."""
        (found,) = await aio.in_thread(self.index.search, [question], self.k)
        passages = {passage.id: passage for passage in found}
        calls = [
            self.judge.acall(question=question, passage=each) for each in passages.values()
        ]
        results: list[Any] = await asyncio.gather(
            *map(aio.awaiting, calls), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:  # what ends the whole session comes before what this question alone met
            raise next((error for error in errors if isinstance(error, _ENDS_ALL)), errors[0])
        return {name: result.verdict for name, result in zip(passages, results, strict=True)}


def judged_by(judge: Judge, lm: ConnectedLM) -> JudgedBy:
    """Who judges: a digest of all that shapes the judge's verdicts, and its parts that people know by name."""
    identity = judge.identity()
    own = next(iter(connected_lms(judge).values()), lm)  # a judge may have a model of its own
    label = own.identity.get("label")
    return JudgedBy(
        judge=fingerprint_of(identity)[:12],
        mode=str(identity["mode"]),
        rules=tuple(str(rule["name"]) for rule in identity["rules"]),
        model=f"{own.name} ({label})" if label else own.name,
        program=str(identity["program"]),
    )

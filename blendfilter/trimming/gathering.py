"""`trim`: judge what an index finds for questions, and gather the witnesses that its overlay drops passages by.

Ma et al. 2024 (CDIT), section 4, Algorithm 1. In: an index, questions, a judge, and the folder of an overlay. Out: a
line in the folder for every verdict, as it comes, one that closes each question, and a `Trimming` that sums it up.

The bare index is searched, whatever was trimmed before: a verdict must not depend on earlier ones. A question that is
near enough to one ahead of it takes that one's verdicts over and asks no model; which ones do is decided before the
first call (`planning`), so the state does not depend on how many calls are in flight. A question one of whose calls
failed stays open; the same call goes on there, and what the journal holds is not asked again.

Differs from the paper: a reply that is neither true nor false is no verdict and no witness; a question answered by
another's verdicts is no witness of its own; nothing is cut in the index itself (`overlay` drops at search time).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import dspy

from blendfilter.errors import BadArgument, BadData, BudgetSpent, EmptyData, RunMismatch, words_of
from blendfilter.filters.cdit.judge import Judge
from blendfilter.journal import Journal
from blendfilter.lm import bridge
from blendfilter.lm.budget import Budget
from blendfilter.lm.connect import connect
from blendfilter.lm.gate import Gate
from blendfilter.lm.held import connected, journal_held, with_held_connected
from blendfilter.lm.retrying import FREE_RETRIES, Allowance
from blendfilter.lm.spending import check_priced, purse_for
from blendfilter.lm.terms import Traffic
from blendfilter.records import Question, one_line
from blendfilter.retrieval.base import ProgressCallback, Retriever, check_search, silent
from blendfilter.retrieval.callables import as_retriever
from blendfilter.trimming.folder import DEPTH, TrimFolder, is_trimmed
from blendfilter.trimming.judging import Outcome, Sitting, taught_nothing
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.planning import Turn, turns_of
from blendfilter.trimming.showing import by_words, verdicts_in
from blendfilter.trimming.similar import Similar, similar_for, similar_named
from blendfilter.trimming.summary import Failed, Spent, Trimming, WouldDrop, counted, spent_in
from blendfilter.trimming.witnesses import By, Judged, Witnesses, Writer

CONCURRENCY = 16


async def _trim(
    index: Retriever,
    questions: Sequence[Question | str],
    judge: Judge,
    folder: TrimFolder | str | os.PathLike[str],
    *,
    lm: dspy.BaseLM | str | None = None,
    k: int | None = None,
    reuse: bool = True,
    guard: bool = True,
    similar: Similar | None = None,
    concurrency: int = CONCURRENCY,
    budget: Budget | None = None,
    max_retries: int | None = None,
    dry_run: bool = False,
    progress: ProgressCallback = silent,
) -> Trimming:
    """Gather witnesses for the overlay in `folder`.

    Args:
        index: the bare index, which the overlay was made for.
        questions: what is searched for and judged; what `load` gives, or strings.
        judge: whose verdicts count. Another one than last time judges what is still open; each verdict says whose it
            is, and the summary of the folder names all of them. Only a question that the other one said nothing of is
            judged anew.
        folder: `TrimFolder.create(…)`, `.read(…)` of one that is there, or its path: one that is not there is made.
        lm: the model that judges; DSPy's configured one by default, else the offline reader.
        k: passages judged of each question; the folder's by default, and no other (10 for a new one).
        reuse: a question near enough to a judged one takes its verdicts over, and no model is asked.
        guard: not where the two differ in a number, a name or an opposite.
        similar: what finds the nearest judged question, itself empty; by default what the overlay searches with.
        concurrency: model calls in flight.
        budget: what all sittings together may take. max_retries: further attempts that this sitting may make.
        dry_run: judge (the journal keeps the calls), and say what would be dropped; the witnesses stay as they are.
        progress: told how many questions are done.

    Raises:
        RunLocked: another trim, or an undo, writes there. BadData: the overlay is another index's, or damaged.
        RunMismatch: the folder was made with another k. BudgetSpent: the limit is reached; the same call with a higher
        one goes on. ServerRefused and the like: see `blendfilter.errors`.
    """
    index, texts = as_retriever(index), _texts(questions)
    folder = _folder_of(folder, index, k)
    asked = _Asked(index, texts, folder, check_k(folder, k), guard)
    check_base(index, folder)
    check_search(asked.texts, asked.k)
    model = connect(lm if lm is not None else dspy.settings.lm or "offline")
    judge = with_held_connected(judge)
    prices = {each.name: each.terms.price for each in [model, *connected(judge).values()]}
    check_priced(budget, prices)
    gate, retries = Gate(concurrency), Allowance(max_retries, free=FREE_RETRIES + 4 * concurrency)
    near = similar or similar_named(folder.similarity, index) if reuse else None
    with ExitStack() as stack:
        path = stack.enter_context(_scratch(folder.witnesses)) if dry_run else folder.witnesses
        writer = stack.enter_context(Writer(path))
        journal = stack.enter_context(Journal(folder.journal))
        purse = purse_for(journal, budget, prices)
        if purse is not None:
            stack.callback(purse.close)
        traffic = Traffic(gate=gate, purse=purse, retries=retries)
        journal_held(judge, journal, traffic)
        before, spent = Witnesses.read(path), spent_in(journal, model.terms.prices)
        sitting = Sitting(index, asked.k, judge, model.with_journal(journal, traffic), journal, writer, before, purse)
        judged = {name: each for name, each in before.judged.items() if not taught_nothing(each, sitting.by)}
        turns = turns_of(asked.texts, judged, near, folder.min_similarity, guard=guard, progress=progress)
        with _saying_how_far(turns, writer):
            done = await sitting.outcomes([each for each in turns if each.kind == "judge"], concurrency, progress)
        after, total = Witnesses.read(path), spent_in(journal, model.terms.prices)
    dropped = _dropped(asked, before, after) if dry_run else None
    return _summed(folder, turns, done, after, total.since(spent), total, dropped, judge.mode, sitting.by)


@contextmanager
def _saying_how_far(turns: Sequence[Turn], writer: Writer) -> Iterator[None]:
    """Where the budget ends the sitting, its error says how many of the questions have their verdicts."""
    try:
        yield
    except BudgetSpent as error:
        done = sum(writer.witnesses.is_judged(turn.source or turn.id) for turn in turns)
        raise BudgetSpent(
            f"{error}; {done:,} of {counted(len(turns), 'question')} are judged, and the same command with a higher "
            "limit goes on"
        ) from error


def _folder_of(folder: TrimFolder | str | os.PathLike[str], index: Retriever, k: int | None) -> TrimFolder:
    """The folder that is meant: open already, the one at a path, or a new one there. Raises: BadArgument."""
    if isinstance(folder, TrimFolder):
        return folder
    if not isinstance(folder, str | os.PathLike) or not os.fspath(folder):
        raise BadArgument(f"trim wants the overlay's folder: a path, or TrimFolder.create(index), got {folder!r}")
    if is_trimmed(folder):
        return TrimFolder.read(folder)
    k = DEPTH if k is None else k
    return TrimFolder.create(index, folder, k=k, similarity=similar_for(index).name)


def check_base(index: Retriever, folder: TrimFolder) -> None:
    """Raise `BadArgument` for an index that is trimmed itself, `BadData` for another one than the overlay's."""
    if isinstance(index, Trimmed):
        raise BadArgument("this index is trimmed: verdicts are given on the bare one, open that and trim it")
    if index.fingerprint != folder.base_fingerprint:
        raise BadData(
            f"{folder.place} was made for the index {folder.base_fingerprint} ({folder.base}), and this one is "
            f"{index.fingerprint}: name that index, or gather for this one in another folder (--out DIR)"
        )


def check_k(folder: TrimFolder, k: int | None) -> int:
    """The folder's k. Raises `RunMismatch` where another one is asked for: verdicts of two depths do not mix."""
    if k is not None and k != folder.k:
        raise RunMismatch(
            f"{folder.place} was made with k={folder.k}, not {k}: leave k as it was, or gather in another folder "
            "(--out DIR)"
        )
    return folder.k


class _Asked(NamedTuple):
    bare: Retriever
    texts: list[str]
    folder: TrimFolder
    k: int
    guard: bool


def _texts(questions: Sequence[Question | str]) -> list[str]:
    if isinstance(questions, str):
        raise BadArgument("trim wants a list of questions, got one string: put it in a list")
    # On one line, as a method asks the index for it: a question of choice has its options on lines of their own.
    texts = [one_line(each if isinstance(each, str) else each.question) for each in questions]
    if not texts:
        raise EmptyData("no questions to judge for")
    return texts


@contextmanager
def _scratch(witnesses: Path) -> Iterator[Path]:
    """A copy of the witnesses that a dry run may write to."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / witnesses.name
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(witnesses, copy)
        yield copy


def _dropped(asked: _Asked, before: Witnesses, after: Witnesses) -> tuple[WouldDrop, ...]:
    """What a search for these questions would drop afterwards and does not drop now."""
    folder = asked.folder
    now, then = (
        Trimmed(
            asked.bare, each, threshold=folder.threshold, min_similarity=folder.min_similarity,
            similar=similar_named(folder.similarity, asked.bare), guard=asked.guard, one_way=folder.one_way,
        )
        for each in (before, after)
    )  # fmt: skip
    made: list[WouldDrop] = []
    for question in dict.fromkeys(text.strip() for text in asked.texts):
        gone = {each.passage.id for each in now.explain(question, asked.k).dropped}
        made += [
            WouldDrop(question, each.passage.id, each.kept, len(each.witnesses))
            for each in then.explain(question, asked.k).dropped
            if each.passage.id not in gone
        ]
    return tuple(made)


def _summed(
    folder: TrimFolder,
    turns: Sequence[Turn],
    done: Sequence[Outcome],
    after: Witnesses,
    spent: Spent,
    total: Spent,
    dropped: tuple[WouldDrop, ...] | None,
    mode: str,
    by: By,
) -> Trimming:
    failed = [Failed(each.turn.question, words_of(each.error)) for each in done if each.error is not None]
    verdicts = Counter(verdict for each in done for verdict in each.verdicts.values())
    known = [after.judged[turn.id].by for turn in turns if turn.kind == "known"]
    others = Counter(by_words(each) for each in known if each.judge and each != by)
    reusing = [turn for turn in turns if turn.kind == "reuse"]
    reused = [after.judged[turn.source] for turn in reusing if turn.source in after.judged]
    left = [
        Failed(turn.question, "it waits for the verdicts of a question like it, which failed")
        for turn in reusing
        if turn.source not in after.judged
    ]
    return Trimming(
        place=str(folder.place),
        questions=len(turns),
        judged=len(done) - len(failed),
        known=len(known),
        reused=len(reused),
        saved=sum(map(_passages, reused)),
        accepted=verdicts[True],
        rejected=verdicts[False],
        silent=verdicts[None],
        separations=after.separations(),
        reached=sum(1 for _ in after.separated(folder.threshold, one_way=folder.one_way)),
        threshold=folder.threshold,
        one_way=folder.one_way,
        spent=spent,
        total=total,
        errors=(*failed, *left),
        dropped=dropped,
        mode=mode,
        on_file=verdicts_in(after),
        others=tuple(others.most_common()),
    )


def _passages(judged: Judged) -> int:
    return len(judged.accepted) + len(judged.rejected) + len(judged.silent)


trim = bridge.waited_for(_trim, "trim", "await atrim(…)", " Waits for it to be done; inside a notebook too.")
atrim = bridge.awaited(_trim, "atrim", " `trim`, to be awaited.")

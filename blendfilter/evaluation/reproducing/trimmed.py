"""The trimmed indexes that a table's rows search: judged and gathered once, beside the runs, whatever rows share them.

In: a row that searches a trimmed index, its questions, the bare index, how many passages a question is judged on. Out:
the bare index behind an overlay, in `<runs>/trimmed/<what it is>/`, whose judge has seen the very questions of the run:
so the paper trims (section 4.3), and so these rows measure what a judged question gains, not what a new one does.

The judge is that of `--filter cdit` and is sent the same prompts: what a row's run had judged, the overlay takes over,
and the runs what the overlay had. A plan asks no model: it opens what is there, and has the offline reader judge a few
questions where nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from blendfilter.asking import Wording
from blendfilter.compiling.programs import recipes_in
from blendfilter.errors import BadArgument
from blendfilter.evaluation.plan import spread
from blendfilter.evaluation.reproducing.papers import Row
from blendfilter.evaluation.reproducing.programs import Programs
from blendfilter.evaluation.reproducing.sources import kind_of
from blendfilter.evaluation.settings import check_leak
from blendfilter.filters.cdit.filter import CDITFilter
from blendfilter.filters.cdit.judge import Judge
from blendfilter.filters.named import make_filter
from blendfilter.journal import FILE, Journal, digest
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.retrieval.base import Retriever
from blendfilter.tasks import Questions
from blendfilter.trimming.folder import TrimFolder
from blendfilter.trimming.gathering import CONCURRENCY, trim
from blendfilter.trimming.overlay import Trimmed
from blendfilter.trimming.witnesses import Witnesses

FOLDER = "trimmed"
JUDGE, STAGE = "cdit", "consistent"
THRESHOLDS = (1, 2)
"""What a note tells the separations at."""
_PILOT = 5
"""Questions that a plan has the offline reader judge."""


class Overlays:
    """Trims indexes in `folder` as rows want them.

    Args:
        lm: the model that judges.
        scratch: a plan's own folder: nothing is judged in `folder`.
        say: told of each overlay that is made.
    """

    def __init__(
        self,
        folder: Path,
        lm: ConnectedLM,
        *,
        programs: Programs | None = None,
        concurrency: int = CONCURRENCY,
        scratch: Path | None = None,
        say: Callable[[str], object] = lambda line: None,
    ) -> None:
        self.folder, self.errors, self.notes = folder, 0, list[str]()
        self._lm, self._programs, self._concurrency = lm, programs, concurrency
        self._scratch, self._say = scratch, say
        self._made: dict[tuple[Any, ...], TrimFolder] = {}

    def of(self, row: Row, questions: Questions, retriever: Retriever, k: int) -> Trimmed:
        """`retriever` as trimmed by `questions`, of each its `k` nearest passages, at the row's threshold.

        Raises: as `trim` does, and what was judged until then stays; Leak: a question that the judge was compiled on.
        """
        settings = row.settings(questions.task.name)
        key = (questions.task.name, retriever.fingerprint, settings.get("rules"), k)
        if key not in self._made:
            self._made[key] = self._gathered(row, questions, retriever, k)
        folder = self._made[key]
        return Trimmed(
            retriever,
            Witnesses.read(folder.witnesses),
            threshold=settings["trimmed"],
            min_similarity=folder.min_similarity,
        )

    def _gathered(self, row: Row, questions: Questions, retriever: Retriever, k: int) -> TrimFolder:
        task, kind = questions.task.name, kind_of(retriever)
        judge = self._judge(row, questions)
        rules = [str(rule["name"]) for rule in judge.identity()["rules"]]
        told = digest(retriever.fingerprint, questions.fingerprint, judge.identity(), self._lm.name, self._lm.identity)
        name = "-".join([task, *rules, f"k{k}", kind, str(len(questions)), told[:8]])
        what = f"{task}: {kind} trimmed by {len(questions)} questions"
        place = self.folder / FOLDER / name
        if self._scratch is not None and not place.exists():
            most = len(questions) * k
            self.notes.append(f"{what}: {most:,} calls of the judge at most; rows that judge share them")
            return self._rehearsed(judge, questions, retriever, k, self._scratch / FOLDER / name)
        fresh = not place.exists()
        folder = TrimFolder.create(retriever, place, k=k, threshold=1) if fresh else TrimFolder.read(place)
        failed = 0
        if self._scratch is None:
            self._say(f"trimming: {FOLDER}/{name}")
            if fresh:
                _take_over(journals_of_runs(self.folder, task), folder.journal)
            asked = questions[:]
            # A question that took another's verdicts over would be one that the judge had not seen.
            found = trim(retriever, asked, judge, folder, lm=self._lm, concurrency=self._concurrency, reuse=False)
            failed = len(found.errors)
        self.errors += failed
        self.notes += _told(what, folder, failed)
        return folder

    def _rehearsed(
        self, judge: Judge, questions: Questions, retriever: Retriever, k: int, place: Path
    ) -> TrimFolder:  # fmt: skip
        folder = TrimFolder.create(retriever, place, k=k, threshold=1)
        trim(retriever, spread(questions, _PILOT), judge, folder, lm=connect("offline"))
        return folder

    def _judge(self, row: Row, questions: Questions) -> Judge:
        """That of `--filter cdit`, by the row's rules; a compiled one speaks as its program says."""
        task = questions.task
        select = make_filter(JUDGE, wording=Wording.of(task.wording), rules=row.settings(task.name).get("rules"))
        if not isinstance(select, CDITFilter):
            raise BadArgument(f"the filter {JUDGE} is a {type(select).__name__}, and has no judge to trim by")
        if self._programs is not None:
            self._programs.into(select, row, task.name, JUDGE)
        if recipes_in(select):
            check_leak(select, questions)  # a row that searches a trimmed index holds no judge that would show it
        return select.judge


def journals_in(runs: Path, task: str) -> list[Path]:
    """The folders of overlays beside the runs of a task, which hold calls of a judge."""
    return [path.parent for path in sorted(runs.glob(f"{FOLDER}/{task}-*/{FILE}"))]


def journals_of_runs(runs: Path, task: str) -> list[Path]:
    """The folders of a task's runs, and of its overlays."""
    return [*(path.parent for path in sorted(runs.glob(f"{task}-*/{FILE}"))), *journals_in(runs, task)]


def _take_over(others: list[Path], journal: Path) -> None:
    """Copy what others had judged: a prompt that was answered once is not paid for again."""
    with Journal(journal) as mine:
        for other in others:
            with Journal(other, "replay") as theirs:
                mine.append(*(record | {"reused": True} for record in _verdicts(theirs)), new_only=True)


def _verdicts(journal: Journal) -> Iterator[dict[str, Any]]:
    return (dict(each) for each in journal.records("call") if each.get("stage") == STAGE and not each.get("error"))


def _told(what: str, folder: TrimFolder, failed: int) -> Iterator[str]:
    """What was judged and what came of it."""
    there = Witnesses.read(folder.witnesses)
    accepted, rejected, silent = (
        sum(len(getattr(each, side)) for each in there.judged.values()) for side in ("accepted", "rejected", "silent")
    )
    pairs = " and ".join(f"{sum(1 for _ in there.separated(each)):,} at {each}" for each in THRESHOLDS)
    yield (
        f"{what}: {len(there.judged):,} judged, {accepted:,} passages accepted, {rejected:,} rejected, {silent:,} "
        f"without a verdict; pairs separated: {pairs}"
    )
    if failed:
        yield f"{what}: {failed} questions are not judged, for a call failed; the same command asks again"

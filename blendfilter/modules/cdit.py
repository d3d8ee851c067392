"""CDIT online: a question like one that was judged before is answered by its verdicts; any other is judged, and kept.

Ma et al., "Context-Driven Index Trimming" (Findings of EMNLP 2024), section 4.1 and Figure 3: retrieve (1), look for a
similar question that was processed before (2); if there is one, the trimmed index answers (3); if not, a model judges
what was found, drops what is inconsistent (4), and the verdicts trim the index for later questions (5).

Which earlier questions decide for a question depends on the questions ahead of it alone: in a run on their order there,
outside of one on their order of arrival. It is decided before any call, journaled (`reuse`), and read from there when
the run is taken up again or replayed. A question that goes by another's verdicts waits for them; where those calls
failed it fails likewise, and both are asked again together.

Differs from the paper: similar questions that are opposites are kept apart (the guard); nothing is cut out of the
index, its ranking is trimmed as `Trimmed` does, without refilling. Verdicts on third questions count only where they
were on file before.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary, ref

import dspy

from blendfilter import aio
from blendfilter.asking import TaskWording
from blendfilter.context import CallNote, asker, setting
from blendfilter.errors import (
    AskedWrong,
    BadArgument,
    BadData,
    BudgetSpent,
    CannotWrite,
    copied,
)
from blendfilter.filters.base import Filter, selection
from blendfilter.filters.cdit import CDITFilter, Judge
from blendfilter.journal import Journal, digest
from blendfilter.lm.model import connect
from blendfilter.modules.base import Branch, branch_of, filtered, search
from blendfilter.modules.ralm import RALM
from blendfilter.prompting import Prompts
from blendfilter.records import one_line
from blendfilter.retrieval.base import Searcher
from blendfilter.retrieval.callables import as_retriever
from blendfilter.trimming.overlay import Trimmed, Verdicts, trim_ranking
from blendfilter.trimming.similar import ByVector, Neighbour, Similar, similar_for
from blendfilter.trimming.witnesses import (
    FILE,
    NO_JUDGE,
    JudgedQuestion,
    Witnesses,
    WitnessWriter,
    question_id,
)

if TYPE_CHECKING:
    from blendfilter.trimming.folder import TrimFolder

_ENDS_ALL = (AskedWrong, BudgetSpent, CannotWrite)
"""What every question of a run would meet alike."""


class CDIT(RALM):
    """Retrieval, judging where no similar question was judged before, and one call for the answer.

    Args:
        retriever: an index, or any callable (query, k). A trimmed index gives its verdicts, threshold, similarity and
            guard; what is searched is the index below it.
        k: passages.
        filter: who judges: `cdit` (one word), `cdit-components`, or a `CDITFilter`.
        witnesses: outside of runs, the folder of an overlay (`INDEX.trimmed`) whose verdicts count, and where new ones
            are kept; a new one is made where none is. Without, they are kept in memory. In a run they go into its
            folder, `witnesses.jsonl`.
        rewrite, task, prompts, adapter: as in `RALM`.

    A question that was answered by another's verdicts has the flag `verdicts_reused`; its branch says by which.

    Raises:
        BadArgument: a filter of another kind; `witnesses` in a run, or over a trimmed index. BadData, RunMismatch: the
        folder is another index's, or was made with another k. RunLocked: another process writes there.
    """

    method_name = "cdit"

    def __init__(
        self,
        retriever: Searcher,
        k: int = 10,
        *,
        filter: Filter | str = "cdit",
        witnesses: str | PathLike[str] | None = None,
        rewrite: bool = False,
        task: TaskWording | str = "hotpotqa",
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__(
            retriever,
            k,
            filter=filter,
            rewrite=rewrite,
            task=task,
            prompts=prompts,
            adapter=adapter,
        )
        if not isinstance(self.select, CDITFilter):
            raise BadArgument(
                f"cdit judges by a CDITFilter (filter='cdit' or cdit-components), got {filter!r:.60}"
            )
        index, folder = as_retriever(retriever), None
        overlay = index if isinstance(index, Trimmed) else Trimmed(index, Witnesses())
        if witnesses is not None:
            if isinstance(index, Trimmed):
                raise BadArgument(
                    "this index is trimmed: give the bare index and witnesses=, or the trimmed one alone"
                )
            # Folders open remote indexes too, whose client takes its time to import.
            from blendfilter.trimming.folder import TrimFolder, is_trimmed

            if not is_trimmed(witnesses):
                TrimFolder.create(index, witnesses, k=k)
            folder = TrimFolder.read(witnesses)
            folder.check(index, k)
            overlay = folder.over(index)
        self.memories = _Memories(overlay, folder)

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), **_settings(self.memories.overlay)}

    async def look_up(
        self, query: str, question: str | None = None, **more: Any
    ) -> tuple[dspy.Prediction, Branch]:
        """What is left of a question's passages, by verdicts on questions like it or on itself, and the branch."""
        memory = self.memories.here()
        decision = await aio.in_thread(memory.decide, query)
        if not decision.near:
            judging = await self._judging(memory, query)
            if memory.belongs_here(query) and (chosen := judging.taken()) is not None:
                return chosen
            decision = _Decision(True, ((query, 1.0),))
        return await self._by_verdicts(memory, query, decision)

    async def _by_verdicts(
        self, memory: _Memory, query: str, decision: _Decision
    ) -> tuple[dspy.Prediction, Branch]:
        overlay = memory.overlay
        prior = list[JudgedQuestion]()
        new = list[JudgedQuestion]()
        for text, _ in decision.near:
            if (known := memory.prior.get(question_id(text))) is not None:
                prior.append(known)
            else:
                new.append((await self._judging(memory, text)).verdicts())
        near = [Neighbour(at, similarity) for at, (_, similarity) in enumerate(decision.near)]
        voting = [(judged.accepted, memory.rejected(judged)) for judged in (*prior, *new)]
        verdicts = Verdicts.of(near, voting, own=decision.own)
        retrieved = await search(overlay.index, query, self.k)
        found = [passage.id for passage in retrieved]
        apart = {
            a: [b for b in found if memory.witnesses(a, b, new) >= overlay.threshold]
            for a in found
            if verdicts.accept(a)
        }
        trimmed = trim_ranking(retrieved, self.k, verdicts, apart, refill=False)
        judged_text, similarity = decision.near[0]
        hits = trimmed.hits(retrieved, judged_text, similarity, verdicts.votes)
        status = f"kept {len(trimmed.kept)} of {len(found)} by the verdicts on {judged_text!r}"
        chosen = selection(trimmed.kept, status, flags={"verdicts_reused": 1})
        return chosen, branch_of(hits, chosen)

    async def _judging(self, memory: _Memory, question: str) -> _Judging:
        """How `question` was judged: under way, done, or done here for whoever wants it first."""
        key = f"{asker().repeat} {question}"
        return await memory.flights.do(
            key, lambda: memory.judgings.get(key), lambda: self._judge(memory, question)
        )

    async def _judge(self, memory: _Memory, question: str) -> _Judging:
        judging, traced = _Judging(), dspy.settings.trace is not None
        with (
            setting(
                notes=judging.notes, question=memory.owners.get(question, asker().question)
            ),
            dspy.context(trace=judging.trace if traced else None),
        ):
            try:
                retrieved = await search(memory.overlay.index, question, self.k)
                chosen = await filtered(self.select, question, retrieved)
            except _ENDS_ALL:
                raise
            except Exception as error:
                # no run is replayed: the next one who asks tries again
                if memory.journal is None:
                    raise
                judging.error = error
            else:
                passages = {
                    passage.id: verdict
                    for passage, verdict in zip(retrieved, chosen.verdicts, strict=True)
                }
                judging.chosen = (chosen, branch_of(retrieved, chosen))
                judging.judged = JudgedQuestion(
                    question_id(question), question, passages, NO_JUDGE, ""
                )
                if asker().repeat == 1:
                    lm = dspy.settings.lm
                    await aio.in_thread(memory.keep, question, passages, self.select.judge, lm)  # type: ignore[union-attr]
        memory.judgings[f"{asker().repeat} {question}"] = judging
        return judging


class _Decision(NamedTuple):
    """The judged questions that a question goes by, the nearest first, with how near they are; none: it is judged."""

    own: bool
    """Whether they are the question itself, in the same words or a polite frame."""
    near: tuple[tuple[str, float], ...] = ()


@dataclass
class _Judging:
    """What came of judging one question: once a session, however many go by it."""

    judged: JudgedQuestion | None = None
    chosen: tuple[dspy.Prediction, Branch] | None = None
    """What is left for the question itself, until it takes it."""
    error: Exception | None = None
    notes: list[CallNote] = field(default_factory=list)
    trace: list[Any] = field(default_factory=list)

    def taken(self) -> tuple[dspy.Prediction, Branch] | None:
        """`chosen`, with the calls and the trace, for the question whose they are; None where it has them already."""
        notes, trace = asker().notes, dspy.settings.trace
        if notes is not None:
            notes.extend(self.notes)
        if trace is not None:
            trace.extend(self.trace)
        self.verdicts()
        chosen, self.chosen, self.notes, self.trace = self.chosen, None, [], []
        return chosen

    def verdicts(self) -> JudgedQuestion:
        """The verdicts. Raises the error in which judging ended."""
        if self.error is not None:
            raise copied(self.error)
        assert self.judged is not None
        return self.judged


class _Memory:
    """The questions of one run, or outside of runs of one method: which were judged, and which go by which."""

    def __init__(
        self, overlay: Trimmed, folder: TrimFolder | None, journal: Journal | None
    ) -> None:
        self.overlay, self.folder = overlay, folder
        # which keeps the memory, not the other way round
        self._journal = None if journal is None else ref(journal)
        self.prior = dict(overlay.witnesses.judged)
        self.owners: dict[str, str] = {}
        """The run's questions, one line each, and the id of the first that has these words."""
        for question in asker().questions if journal is not None else ():
            self.owners.setdefault(one_line(question.question), question.id)
        self.judgings: dict[str, _Judging] = {}
        self.flights = aio.SingleFlight[_Judging]()
        self._lock = threading.Lock()
        self._decisions: dict[str, _Decision] = {}
        # the questions that are judged, or will be, in order
        self._sources = [judged.question for judged in self.prior.values()]
        self._similar: Similar | None = None
        self._writer: WitnessWriter | None = None

    @property
    def journal(self) -> Journal | None:
        """The run's; None outside of runs."""
        return None if self._journal is None else self._journal()

    def belongs_here(self, text: str) -> bool:
        """Whether the question under work is the one of the run that judges `text`, or none of the run does."""
        return self.owners.get(text, asker().question) == asker().question

    def decide(self, text: str) -> _Decision:
        """What `text` goes by, which the questions ahead of it decide."""
        with self._lock:
            if text not in self._decisions:
                ahead = [each for each in (*self.owners, text) if each not in self._decisions]
                records = [
                    record for each in dict.fromkeys(ahead) if (record := self._decide(each))
                ]
                if records and self.journal is not None and self.journal.mode != "replay":
                    self.journal.append(*records)
            return self._decisions[text]

    def _decide(self, text: str) -> dict[str, Any] | None:
        """Decide for one more question; the record of it, where it is new."""
        key = digest("reuse", self.overlay.fingerprint, _settings(self.overlay), text)
        record = self._recorded(key)
        if record is not None:
            decision = _Decision(record["own"], tuple(map(tuple, record["near"])))
        else:
            decision = self._compare(text)
        self._decisions[text] = decision
        if not decision.near:
            self._sources.append(text)
        if record is not None:
            return None
        return {"key": key, "kind": "reuse", "question": text, **decision._asdict()}

    def _recorded(self, key: str) -> dict[str, Any] | None:
        """The decision as this run's own journal has it; another run's questions stood in another order."""
        if self.journal is None:
            return None
        try:
            return self.journal.read(key, "reuse")
        except BadData:
            if self.journal.mode == "replay":
                raise
            return None

    def _compare(self, text: str) -> _Decision:
        """As `Trimmed` finds the verdicts that apply: the question itself, else those near it."""
        overlay = self.overlay
        if self._similar is None:
            self._similar = similar_for(overlay.index, overlay.similar.name)
            if isinstance(self._similar, ByVector):
                self._similar.encode_ahead([*self._sources, *self.owners, text])
        self._similar.add(self._sources[len(self._similar.questions) :])
        own, near = self._similar.like(text, floor=overlay.min_similarity, guard=overlay.guard)
        return _Decision(own, tuple((self._sources[at], similarity) for at, similarity in near))

    def rejected(self, judged: JudgedQuestion) -> Collection[str]:
        """What a question rejected; of one on file, what was not undone since."""
        if judged.id in self.prior:
            return self.overlay.witnesses.rejected_by(judged.id)
        return judged.rejected

    def witnesses(self, kept: str, other: str, new: Sequence[JudgedQuestion]) -> int:
        """How many questions separate `other` from `kept`: of those on file before, and of `new` ones."""
        both, on_file = not self.overlay.one_way, self.overlay.witnesses
        count = len((on_file.witnesses_of if both else on_file.witnesses_for)(kept, other))
        pairs = [(kept, other), (other, kept)] if both else [(kept, other)]
        return count + sum(
            a in judged.accepted and b in judged.rejected for judged in new for a, b in pairs
        )

    def keep(
        self, question: str, verdicts: dict[str, bool | None], judge: Judge, lm: dspy.BaseLM
    ) -> None:
        """Write a question's verdicts to the file, where there is one and they are not there already."""
        from blendfilter.trimming.gathering import judged_by

        with self._lock:
            if self.journal is not None:
                if self.journal.mode == "replay":
                    return
                writer = self.journal.beside(FILE, WitnessWriter, WitnessWriter.close_file)
            elif self.folder is not None:
                writer = self._writer = self._writer or WitnessWriter(self.folder.witnesses)
            else:
                return
            if not writer.witnesses.is_judged(question_id(question)):
                writer.judge(question, verdicts, judged_by(judge, connect(lm)))


class _Memories:
    """A method's memories: one a run, kept as long as its journal, and one outside of runs. A copy has none of them."""

    def __init__(self, overlay: Trimmed, folder: TrimFolder | None) -> None:
        self.overlay, self.folder = overlay, folder
        self._of_runs: WeakKeyDictionary[Journal, _Memory] = WeakKeyDictionary()
        self._own: _Memory | None = None
        self._lock = threading.Lock()

    def here(self) -> _Memory:
        """The memory of the run that asks. Raises `BadArgument` where it is to go into another folder."""
        journal: Journal | None = asker().journal
        if journal is not None and self.folder is not None:
            raise BadArgument(
                "a run keeps its verdicts in its own folder: leave witnesses= out, and start from those of "
                f"{self.folder.place} by opening it as the index"
            )
        with self._lock:
            if journal is None:
                self._own = self._own or _Memory(self.overlay, self.folder, None)
                return self._own
            if journal not in self._of_runs:
                self._of_runs[journal] = _Memory(self.overlay, None, journal)
            return self._of_runs[journal]

    def __deepcopy__(self, memo: dict[int, Any]) -> _Memories:
        return _Memories(self.overlay, self.folder)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Memories, (self.overlay, self.folder)


def _settings(overlay: Trimmed) -> dict[str, Any]:
    """What decides which questions are alike, and what their verdicts drop, as JSON."""
    settings = overlay.info()["settings"]
    return {
        name: value for name, value in settings.items() if name not in ("refill", "pairing")
    }

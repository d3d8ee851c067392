"""The silver contexts that a table's rows want: made on the fly, once, beside the runs; then a filter that keeps them.

In: a row that reads gold, its questions, index and K. Out: a `SilverFilter` over `<runs>/silver/<what it is>.jsonl`;
none where its measure wants log-probabilities and no model here gives them, which a note says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter.errors import BadArgument, ServerRefused, UnknownName
from blendfilter.evaluation.reproducing.papers import ASKING_THE_QUESTION, Row
from blendfilter.filters.filco.oracle import Oracle
from blendfilter.filters.filco.oracles import MEASURES, Measure, measure_for
from blendfilter.journal import Journal, digest
from blendfilter.lm.scoring.kept import KeptScorer
from blendfilter.retrieval.base import ProgressCallback, Retriever
from blendfilter.silver.filter import SilverFilter
from blendfilter.silver.making import WITHOUT_MODEL, make_silver, settings_of
from blendfilter.tasks import TASKS, Questions

FOLDER = "silver"
CXMI: Measure = "cxmi"


class _Reason(NamedTuple):
    """Why silver contexts are left out; `own`: the row wants this very measure."""

    why: str
    own: bool


_NOT_PLANNED = _Reason("not in the plan: it scores every sentence of the passages", False)
Made = Callable[[Journal | Path], KeptScorer]
"""From where its scores are kept to a scorer. Raises `BadArgument`, `ServerRefused`: the model gives none."""


class Silver:
    """Makes silver contexts in `folder`.

    Args:
        scorer: makes what gives CXMI its log-probabilities; None where nothing may be asked (a plan).
        measures: by task, in place of the paper's; under "" for all tasks.
        say: told of each file that is made.
        named: a command named the scorer: one that cannot score is an error, and no reason to leave a row out.
    """

    def __init__(
        self,
        folder: Path,
        scorer: Made | None = None,
        measures: Mapping[str, Measure] | None = None,
        say: Callable[[str], object] = lambda line: None,
        *,
        named: bool = False,
    ) -> None:
        self.folder = folder
        self._notes: list[str] = []
        self._left_out: dict[_Reason, list[str]] = {}
        self._named = named
        self._scorer, self._measures, self._say = scorer, measures or {}, say
        self._made: dict[tuple[Any, ...], Path | None] = {}
        self._oracles: dict[tuple[str, Measure], Oracle | None] = {}

    @property
    def notes(self) -> list[str]:
        """What was made, and what could not be, a line each; tasks of one reason share theirs."""
        return [*self._notes, *(_left_out(tasks, *reason) for reason, tasks in self._left_out.items())]

    @property
    def scores(self) -> bool:
        """Whether a row wanted log-probabilities."""
        return any(measure == CXMI for _, measure in self._oracles)

    def of(self, row: Row, questions: Questions, retriever: Retriever, k: int) -> SilverFilter | None:
        """The filter of `row`; None where it cannot be had."""
        task = questions.task.name
        measure = self._measure(row, task)
        key = (task, retriever.fingerprint, k, measure)
        if key not in self._made:
            own = "measure" in row.settings(task)
            self._made[key] = self._file(questions, retriever, k, measure, own)
        path = self._made[key]
        # Other queries than the question bring passages that its silver context knows nothing of.
        return None if path is None else SilverFilter(path, partly=row.method not in ASKING_THE_QUESTION)

    def _measure(self, row: Row, task: str) -> Measure:
        own = row.settings(task).get("measure")
        if own is not None:
            return own  # type: ignore[no-any-return]
        papers, given = measure_for(task), self._measures.get(task, self._measures.get(""))
        if given is not None and given != papers:
            self._note(f"{task}: SILVER by {given}, as asked; the paper's measure for it is {papers}")
        return given or papers

    def _file(self, questions: Questions, retriever: Retriever, k: int, measure: Measure, own: bool) -> Path | None:
        task = questions.task.name
        if (task, measure) not in self._oracles:
            self._oracles[task, measure] = self._oracle(questions, measure, own)
        if (oracle := self._oracles[task, measure]) is None:
            return None
        name = digest(settings_of(questions[:], oracle, retriever, k) | {"data": questions.fingerprint})[:8]
        path = self.folder / FOLDER / f"{task}-{measure}-k{k}-{len(questions)}-{name}.jsonl"
        if not path.exists():
            self._say(f"silver contexts of {task} by {measure}, K={k}: {path.name}")
        make_silver(questions, oracle, path, retriever=retriever, k=k, progress=self._progress(task, measure))
        return path

    def _progress(self, task: str, measure: Measure) -> ProgressCallback:
        """A line a batch where a model is asked, which takes its time."""

        def told(phase: str, done: int, total: int | None = None, /) -> None:
            if measure == CXMI:
                self._say(f"silver contexts of {task}: {done} of {total} questions")

        return told

    def _oracle(self, questions: Questions, measure: Measure, own: bool) -> Oracle | None:
        """The oracle of a task; `own`: the row wants this very measure."""
        task = questions.task.name
        if measure != CXMI:
            return Oracle(measure, task=task)
        if self._scorer is None:
            self._left_out.setdefault(_NOT_PLANNED, []).append(task)
            return None
        try:
            scorer = self._scorer(self.folder / FOLDER / f"{task}-{CXMI}.journal")
            oracle = Oracle(CXMI, task=task, scorer=scorer).asking(questions.task)
            oracle.check(questions[:1])
        except (BadArgument, ServerRefused) as error:
            if self._named:
                raise
            self._left_out.setdefault(_Reason(str(error), own), []).append(task)
            return None
        self._note(f"{task}: SILVER's cxmi is what {scorer.backend.name} finds likely")
        return oracle

    def _note(self, line: str) -> None:
        if line not in self._notes:
            self._notes.append(line)


def _left_out(tasks: Sequence[str], why: str, own: bool) -> str:
    """The line on the tasks whose SILVER by cxmi is left out for one reason."""
    named = f"{', '.join(tasks)}: SILVER by cxmi is"
    if (why, own) == _NOT_PLANNED:
        return f"{named} {why}"
    others = " ".join(f"--measure {task}={WITHOUT_MODEL[task]}" for task in tasks if task in WITHOUT_MODEL and not own)
    other = f", or another measure ({others})" if others else ""
    return f"{named} left out: {why}. Name a model that does (--scorer){other}"


def measures_of(words: Iterable[str]) -> dict[str, Measure]:
    """What `[TASK=]MEASURE` say, by task; "" for all.

    >>> measures_of(["hotpotqa=strinc", "lexical"])
    {'hotpotqa': 'strinc', '': 'lexical'}

    Raises:
        UnknownName: no such task or measure.
    """
    found: dict[str, Measure] = {}
    for each in words:
        task, _, name = each.rpartition("=")
        if task and task not in TASKS:
            raise UnknownName.of("task", task, TASKS, f"in '{each}'")
        measure = next((known for known in MEASURES if known == name), None)
        if measure is None:
            raise UnknownName.of("measure", name, MEASURES)
        found[task] = measure
    return found

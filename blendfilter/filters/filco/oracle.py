"""An oracle: for questions whose answers are known, the sentences of the retrieved passages that helped most.

Wang et al. 2023 (FilCo), section 2.2: one span over all passages, by one of three measures (`oracles`). In: questions
with golden answers, and the passages of each. Out: for each, all sentences, their scores, and the positions of those
chosen. It reads the answers: what it chooses is what a filter learns from, and an upper bound in an evaluation. CXMI
asks a model (`generation`), the other two measures none.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from blendfilter import aio
from blendfilter.asking import Wording
from blendfilter.errors import BadArgument, BadData, Leak, UnknownName
from blendfilter.filters.candidates import Candidate, sentences_of
from blendfilter.filters.filco.generation import STAGE_NAME, Generation
from blendfilter.filters.filco.oracles import MEASURES, THRESHOLDS, Measure, best, lexical, references_for, strinc
from blendfilter.lm.scoring.kept import KeptScorer
from blendfilter.prompting import Prompts
from blendfilter.records import Passage, Question, one_line
from blendfilter.tasks import TASKS
from blendfilter.tasks.base import Task
from blendfilter.text import folded, normalize_answer

Batch = Sequence[tuple[Question, Sequence[Passage]]]


class Scored(NamedTuple):
    """The sentences of one question's passages, a score for each, and the positions of those chosen, in text order.

    A score is None where CXMI's prompt with that sentence is too long for the model: such a sentence is never chosen.
    """

    candidates: tuple[Candidate, ...]
    scores: tuple[float | None, ...]
    chosen: tuple[int, ...]


class Oracle:
    """Chooses sentences by one measure.

    Args:
        measure: `strinc`, `lexical` or `cxmi`; `oracles.measure_for(task)` is the paper's choice.
        task: a task's name: what LEXICAL compares with, and the words of CXMI's prompt.
        threshold: a sentence is chosen only above it; by default the measure's own.
        num_sentences: how many are chosen at most.
        scorer: what gives CXMI its log-probabilities, from `blendfilter.scorer`.
        wording, prompts: of CXMI's prompt, in place of the task's and the package's.

    Raises:
        UnknownName: no such measure or task. BadArgument: a value outside its range; CXMI without a scorer.
    """

    def __init__(
        self,
        measure: Measure,
        *,
        task: str,
        threshold: float | None = None,
        num_sentences: int = 1,
        scorer: KeptScorer | None = None,
        wording: Wording | None = None,
        prompts: Prompts | None = None,
    ) -> None:
        if measure not in MEASURES:
            raise UnknownName.of("measure", measure, MEASURES)
        if task not in TASKS:
            raise UnknownName.of("task", task, TASKS)
        self.measure: Measure = measure
        self.task = task
        self.threshold = THRESHOLDS[measure] if threshold is None else float(threshold)
        if not math.isfinite(self.threshold):
            raise BadArgument(f"threshold must be a number, got {threshold}")
        if isinstance(num_sentences, bool) or not isinstance(num_sentences, int) or num_sentences < 1:
            raise BadArgument(f"num_sentences must be a whole number of at least 1, got {num_sentences!r}")
        self.num_sentences = num_sentences
        self._words = wording or TASKS[task].wording
        self._ask = Generation(scorer, self._words, prompts) if measure == "cxmi" else None

    def asking(self, task: Task) -> Oracle:
        """This oracle in the words of `task`, as a set of questions has it: claims may want one label more.

        One that was given a wording of its own keeps it, and so does one of another task.
        """
        asked = self._ask
        if asked is None or task.name != self.task or isinstance(self._words, Wording) or self._words == task.wording:
            return self
        other = copy.copy(self)
        other._words = task.wording
        other._ask = Generation(asked.scorer, task.wording, asked.prompts)
        return other

    def check(self, questions: Iterable[Question]) -> None:
        """What would go wrong later, before any work. With CXMI the model is asked for one score, which is kept.

        Raises:
            BadData: a question without an answer that the measure could look for.
            Leak: CXMI's prompt shows the question's own answer among its demonstrations.
            ServerRefused, BadArgument: the model cannot score (what can). ModelError: it failed, or the first
                question's prompt is too long for it.
        """
        first: Question | None = None
        for question in questions:
            self._answerable(question)
            first = first or question
        if self._ask is not None and first is not None:
            aio.run(self._ask.base(first), "Oracle.check", "await oracle.achoose(…)")

    def answerable(self, question: Question) -> bool:
        """Whether it has an answer that can be looked for; `check` says what is wrong with one that has not."""
        try:
            self._answerable(question)
        except BadData:
            return False
        return True

    def choose(self, batch: Batch) -> list[Scored]:
        """The same as `achoose`, waited for."""
        return aio.run(self.achoose(batch), "Oracle.choose", "await oracle.achoose(…)")

    async def achoose(self, batch: Batch) -> list[Scored]:
        """The sentences of each question's passages, scored, and the chosen ones; CXMI scores the batch as one list.

        Raises:
            BadData, Leak: as in `check`. ModelError: the model failed, or a question is too long for it even without
                a sentence (which one); what was scored is journaled.
        """
        for question, _ in batch:
            self._answerable(question)
        candidates = [sentences_of(passages) for _, passages in batch]
        asked = [question for question, _ in batch]
        if self._ask is not None:
            scores = await self._ask(asked, candidates)
        else:
            scores = [[*self._measured(*each)] for each in zip(asked, candidates, strict=True)]
        return [
            Scored(
                tuple(found),
                tuple(values),
                best(values, threshold=self.threshold, num_sentences=self.num_sentences),
            )
            for found, values in zip(candidates, scores, strict=True)
        ]

    def identity(self) -> dict[str, Any]:
        """What tells its choices from another oracle's, as JSON; a silver file is bound to it."""
        return {
            "measure": self.measure,
            "task": self.task,
            "threshold": self.threshold,
            "num_sentences": self.num_sentences,
            "scorer": dict(self._ask.scorer.backend.identity) if self._ask else None,
            "prompt": self._ask.digest if self._ask else None,
        }

    def _measured(self, question: Question, candidates: Sequence[Candidate]) -> list[float]:
        measure = strinc if self.measure == "strinc" else lexical
        references = references_for(self.measure, self.task, question)
        return [measure(each.text, references) for each in candidates]

    def _answerable(self, question: Question) -> None:
        if not question.golden_answers:
            raise BadData(f"question '{question.id}' has no golden answers: an oracle chooses by them, drop the row")
        # CXMI scores the first answer alone
        looked_for = question.golden_answers[:1] if self._ask else references_for(self.measure, self.task, question)
        if not any(map(normalize_answer, looked_for)):
            told = "claim" if looked_for == (question.question,) else "golden answers"
            shown = ", ".join(f"'{one_line(each)}'" for each in looked_for)
            raise BadData(
                f"question '{question.id}': its {told} ({shown:.60}) hold nothing but articles and punctuation, "
                f"which {self.measure} cannot look for: drop the row"
            )
        if self._ask is not None and folded(question.question).casefold() in self._ask.demonstrated:
            raise Leak(
                f"question '{question.id}' is also a demonstration of {STAGE_NAME}'s prompt: leave it out of one"
            )

    def __repr__(self) -> str:
        return f"Oracle({self.measure!r}, task={self.task!r})"

"""FilCo's oracle: for questions with known answers, the sentences of the retrieved passages that helped most.

Wang et al. 2023 (FilCo), section 2.2: one span over all passages, by one of three measures (`measures`). It reads the
answers: its choices are what a filter learns from, and an upper bound in an evaluation. CXMI asks a model how likely
the output is, given one sentence and given none; the other two measures ask none.

CXMI's generator is the model that answers: the prompt is the one of direct prompting as the answerer reads it, with the
task's instructions and demonstrations, the one sentence as its knowledge (``Title | sentence``), the question, and
``Answer:``. The base, M(o | q), is direct prompting without retrieval: no context, nor a word about one. What is scored
is the first golden answer (the paper's one output o; aliases are not), with the demonstrations' capitals where it is
one of their answers (Yes), behind a line break or a space, as they have it, and behind a space where there are none.
Texts go to the model as they are, in no chat's frame.

Differs from the paper: all sentences of a batch of questions are one list, where the beginning that they share is read
once, and the base is scored once a question; the released code asks for both again with every sentence.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import dspy

from blendfilter import aio
from blendfilter.asking import Ask, PromptSettings, TaskWording
from blendfilter.context import setting
from blendfilter.errors import BadArgument, BadData, Leak, ModelError, UnknownName, check_count
from blendfilter.journal import digest
from blendfilter.lm.scoring.base import TOO_LONG, Result, Score, TextPair
from blendfilter.lm.scoring.kept import KeptScorer
from blendfilter.lm.scoring.served import CAN
from blendfilter.oracles.candidates import Candidate, sentences_of
from blendfilter.oracles.measures import (
    MEASURES,
    THRESHOLDS,
    Measure,
    best,
    can_label,
    lexical,
    references_for,
    strinc,
)
from blendfilter.oracles.silver_rows import Stages
from blendfilter.prompting import Prompts
from blendfilter.records import Passage, Question, one_line
from blendfilter.tasks import TASKS
from blendfilter.tasks.base import Task
from blendfilter.text import folded, normalize_answer

STAGE_NAME = "cxmi"
"""The stage under which a journal keeps CXMI's scores."""
INSTEAD = "take the measure lexical (compares with the question) or cxmi (asks a model)"
"""What to do where STRINC cannot label."""
NO_WORDS = (
    "holds nothing but articles and punctuation: drop the row, or choose nothing for it "
    "(allow_empty_answers=True)"
)
NO_QUESTION = Question("", "question", ("answer",))
Batch = Sequence[tuple[Question, Sequence[Passage]]]


class OracleChoice(NamedTuple):
    """The sentences of one question's passages, their scores, and the positions of those chosen, in text order.

    A score is None where CXMI's prompt with that sentence is too long for the model: it is never chosen. What BIDER
    synthesised has its `stages`, and is chosen in the order of selection.
    """

    candidates: tuple[Candidate, ...]
    scores: tuple[float | None, ...]
    chosen: tuple[int, ...]
    stages: Stages | None = None


class Oracle:
    """Chooses sentences of passages for a question whose answer it knows, by one measure.

    Args:
        measure: `strinc`, `lexical` or `cxmi`; `measure_for(task)` is the paper's choice.
        task: a task's name: what LEXICAL compares with, and the words of CXMI's prompt.
        threshold: a sentence is chosen only above it; by default the measure's own.
        num_sentences: how many are chosen at most.
        scorer: what gives CXMI its log-probabilities, from `blendfilter.scorer`.
        wording, prompts: of CXMI's prompt, in place of the task's and the package's.

    Raises:
        UnknownName: no such measure or task. BadArgument: a value outside its range; CXMI without a scorer.
    """

    _ask: CXMIGenerator | None
    _own_wording: bool

    def __init__(
        self,
        measure: Measure,
        *,
        task: str,
        threshold: float | None = None,
        num_sentences: int = 1,
        scorer: KeptScorer | None = None,
        wording: TaskWording | None = None,
        prompts: Prompts | str | None = None,
    ) -> None:
        if measure not in MEASURES:
            raise UnknownName.of("measure", measure, MEASURES)
        if task not in TASKS:
            raise UnknownName.of("task", task, TASKS)
        self.measure: str = measure
        self.task = task
        self.threshold = THRESHOLDS[measure] if threshold is None else float(threshold)
        if not math.isfinite(self.threshold):
            raise BadArgument(f"threshold must be a number, got {threshold}")
        self.num_sentences = check_count("num_sentences", num_sentences)
        self._own_wording = wording is not None
        self._ask = (
            CXMIGenerator(scorer, wording or TASKS[task].wording, prompts)
            if measure == "cxmi"
            else None
        )

    def __repr__(self) -> str:
        return f"Oracle({self.measure!r}, task={self.task!r}, threshold={self.threshold})"

    def asking(self, task: Task) -> Self:
        """This one in the words of `task`, as a set of questions has it: claims may want one label more.

        One with a `wording` of its own keeps it, and so does one of another task.
        """
        if self._ask is None or task.name != self.task or self._own_wording:
            return self
        other = copy.copy(self)
        other._ask = CXMIGenerator(self._ask.scorer, task.wording, self._ask.prompts)
        return other

    def answerable(self, question: Question) -> bool:
        """Whether it has an answer that can be looked for; `check` says what is wrong with one that has none."""
        return bool(question.golden_answers) and not self.fault_of(question)

    def check_each(self, questions: Iterable[Question]) -> None:
        """Raise `BadData` for a question that it cannot choose for, `Leak` for one that the prompt demonstrates."""
        for question in questions:
            if not question.golden_answers:
                raise BadData(
                    f"question '{question.id}' has no golden answers: an oracle chooses by them, drop the row"
                )
            if fault := self.fault_of(question):
                raise BadData(f"question '{question.id}': {fault}")
            if self._ask and folded(question.question).casefold() in self._ask.demonstrated:
                raise Leak(
                    f"question '{question.id}' is also a demonstration of {STAGE_NAME}'s prompt: leave it out"
                )

    def nothing(self, passages: Sequence[Passage]) -> OracleChoice:
        """The choice for a question without an answer to look for."""
        candidates = tuple(sentences_of(passages))
        return OracleChoice(candidates, (0.0,) * len(candidates), ())

    def choose(self, batch: Batch) -> list[OracleChoice]:
        """As `achoose`."""
        return aio.run(
            self.achoose(batch), f"{type(self).__name__}.choose", "await oracle.achoose(…)"
        )

    def check(self, questions: Iterable[Question]) -> None:
        """Raise now what would go wrong later. With CXMI the model gives one score, which is kept.

        Raises:
            BadData: a question without an answer that the measure could look for (a yes or no, for STRINC).
            Leak: CXMI's prompt shows the answer.
            ServerRefused, BadArgument: the model cannot score. ModelError: it failed, or a prompt is too long for it.
        """
        wanted = list(questions)
        self.check_each(wanted)
        if self._ask is not None and wanted:
            who = f"{type(self).__name__}.check"
            aio.run(self._ask.check(wanted[0]), who, "await oracle.achoose(…)")

    async def achoose(self, batch: Batch) -> list[OracleChoice]:
        """The sentences of each question's passages, scored, and the chosen ones; CXMI scores the batch as one list.

        Raises as `check`; what was scored by then is journaled.
        """
        self.check_each(question for question, _ in batch)
        candidates = [sentences_of(passages) for _, passages in batch]
        questions = [question for question, _ in batch]
        if self._ask is not None:
            scores = await self._ask(questions, candidates)
        else:
            measure, scores = strinc if self.measure == "strinc" else lexical, []
            for question, found in zip(questions, candidates, strict=True):
                references = references_for(self.measure, self.task, question)
                scores.append([measure(each.text, references) for each in found])
        chosen = [
            best(values, threshold=self.threshold, num_sentences=self.num_sentences)
            for values in scores
        ]
        return [
            OracleChoice(tuple(found), tuple(values), places)
            for found, values, places in zip(candidates, scores, chosen, strict=True)
        ]

    def identity(self) -> dict[str, Any]:
        """What its choices depend on, as JSON; a silver file is bound to it."""
        return {
            "measure": self.measure,
            "task": self.task,
            "threshold": self.threshold,
            "num_sentences": self.num_sentences,
            **(self._ask.identity() if self._ask else {"scorer": None, "prompt": None}),
        }

    def fault_of(self, question: Question) -> str:
        """Why it cannot choose for a question with answers; "" where it can."""
        if not can_label(self.measure, question.golden_answers):
            return (
                f"{self.measure} cannot look for '{question.golden_answers[0]:.20}', which no passage says: {INSTEAD}, "
                "or drop the row"
            )
        looked_for = references_for(self.measure, self.task, question)
        if self._ask:  # CXMI scores the first answer alone
            looked_for = question.golden_answers[:1]
        if any(map(normalize_answer, looked_for)):
            return ""
        quoted = ", ".join(f"'{one_line(text)}'" for text in looked_for)
        return f"{self.measure} cannot look for {quoted:.60}, which {NO_WORDS}"


# --- CXMI's model ---------------------------------------------------------------------------------------------------


class AnswerAlone(dspy.Signature):
    """The answer at once: the fields of direct prompting without retrieval."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


class AnswerFromSentence(dspy.Signature):
    """The answer at once, from knowledge: the fields of direct prompting."""

    knowledge: list[str] = dspy.InputField(desc="lines of Title | text")
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


class CXMIGenerator:
    """A model that scores, and its prompt. Raises `BadArgument`: no model."""

    def __init__(
        self,
        scorer: KeptScorer | None,
        wording: TaskWording | str,
        prompts: Prompts | str | None,
    ) -> None:
        if scorer is None:
            raise BadArgument(
                "cxmi asks a model for log-probabilities: give the oracle one (scorer=blendfilter.scorer('local')); "
                f"{CAN}"
            )
        self.scorer, self.prompts = scorer, prompts
        worded = PromptSettings.of(wording, prompts, None).wording
        self._answer = worded(Ask(STAGE_NAME, AnswerFromSentence, "direct", prompts=prompts))
        self._alone = worded(Ask(STAGE_NAME, AnswerAlone, "direct", prompts=prompts))
        # what stands between the prompt's last words and an answer
        prompt = self._alone.render(question="?")
        cue = prompt.rpartition("\n")[2]
        beside = any(
            f"{cue} {one_line(demo.answer)}\n" in prompt for demo in self._answer.demos
        )
        self._between = " " if beside or not self._answer.demos else "\n"
        # "Yes" where the demonstrations have it so: that is what the answerer would write, not "yes".
        self._spelled = {demo.answer.casefold(): demo.answer for demo in self._answer.demos}
        self.demonstrated = frozenset(
            folded(demo.question).casefold() for demo in self._answer.demos
        )

    def identity(self) -> dict[str, Any]:
        """What its scores depend on."""
        # 16 hex digits that change with any word of the prompts but the question's own
        pairs = self.pair(NO_QUESTION), self.pair(NO_QUESTION, "knowledge")
        prompt = digest("cxmi", *pairs[0], *pairs[1])[:16]
        return {"scorer": dict(self.scorer.backend.identity), "prompt": prompt}

    def pair(self, question: Question, line: str | None = None) -> TextPair:
        """What is scored: the output behind the prompt of one line of knowledge, or of none."""
        prompt = (
            self._alone.render(question=question.question)
            if line is None
            else self._answer.render(knowledge=[line], question=question.question)
        )
        output = question.golden_answers[0].strip()
        return TextPair(prompt, self._between + self._spelled.get(output.casefold(), output))

    async def __call__(
        self, questions: Sequence[Question], candidates: Sequence[Sequence[Candidate]]
    ) -> list[list[float | None]]:
        """CXMI of each question's candidates: one list for all; the scorer asks for each pair once."""
        bases = [self.pair(question) for question in questions]
        given = [
            [self.pair(one, each.line) for each in found]
            for one, found in zip(questions, candidates, strict=True)
        ]
        # without a sentence there is nothing to compare a base with
        wanted = [
            pair
            for base, pairs in zip(bases, given, strict=True)
            if pairs
            for pair in (base, *pairs)
        ]
        results = await self._results(wanted)
        scores: list[list[float | None]] = []
        for question, base, pairs in zip(questions, bases, given, strict=True):
            nothing = _based(question, results[base]) if pairs else 0.0
            found = [results[pair] for pair in pairs]
            # conditional cross-mutual information: log p(o | t, q) - log p(o | q)
            scores.append(
                [each.logprob - nothing if isinstance(each, Score) else None for each in found]
            )
        return scores

    async def check(self, question: Question) -> None:
        """Score the output given nothing. Raises: ModelError, naming the question where it is too long."""
        pair = self.pair(question)
        _based(question, (await self._results([pair]))[pair])

    async def _results(self, pairs: Sequence[TextPair]) -> dict[TextPair, Result]:
        results = await results_of(self.scorer, pairs, STAGE_NAME)
        return dict(zip(pairs, results, strict=True))


async def results_of(
    scorer: KeptScorer, pairs: Sequence[tuple[str, str]], stage: str
) -> list[Result]:
    """A score, or the error that says that a pair is too long; any other failure may pass, and is raised."""
    with setting(stage=stage):
        results = await scorer.aresults(pairs)
    for result in results:
        if isinstance(result, ModelError) and result.kind != TOO_LONG:
            raise ModelError(str(result), kind=result.kind, stage=stage)
    return results


def _based(question: Question, result: Result) -> float:
    if isinstance(result, Score):
        return result.logprob
    what = f"question '{question.id}' cannot be scored, even without a sentence: {result}"
    raise ModelError(
        f"{what}; drop the row, or take a model with a longer context",
        kind=TOO_LONG,
        stage=STAGE_NAME,
    )

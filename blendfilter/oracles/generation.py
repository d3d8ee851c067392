"""CXMI's log-probabilities: how likely a generator finds the output, given one sentence and given none.

Wang et al. 2023 (FilCo), section 2.2. In: questions and the sentences of each. Out: for each sentence the difference
that it makes to the logarithm of the output's probability, None where the prompt with it is too long for the model.

The generator is whoever answers: the prompt is the one of direct prompting as the answerer reads it, with the task's
instructions and demonstrations, the one sentence as its knowledge (``Title | sentence``), the question, and
``Answer:``. The base is the same prompt with an empty block of knowledge. What is scored is the first golden answer
(the paper's one output o; aliases are not), with the demonstrations' capitals where it is one of their answers (Yes),
behind a line break or a space, as they have it, and behind a space where there are none. Texts go to the model as they
are, in no chat's frame.

Differs from the paper: all sentences of a batch of questions are one list, where the beginning that they share is read
once, and the base is scored once a question; the released code asks for both again with every sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dspy

from blendfilter.asking import Ask, Wording
from blendfilter.context import STAGE, setting
from blendfilter.errors import BadArgument, ModelError
from blendfilter.journal import digest
from blendfilter.lm.scoring.base import TOO_LONG, Pair, Result, Score
from blendfilter.lm.scoring.kept import KeptScorer
from blendfilter.lm.scoring.served import CAN
from blendfilter.oracles.candidates import Candidate
from blendfilter.oracles.measures import cxmi
from blendfilter.prompting import Prompts
from blendfilter.records import Question, one_line
from blendfilter.text import folded

STAGE_NAME = "cxmi"
"""The stage under which a journal keeps the scores."""


class Generator(dspy.Signature):
    """The answer at once, from knowledge: the fields of direct prompting."""

    knowledge: list[str] = dspy.InputField(desc="lines of Title | text")
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


class Generation:
    """A model that scores, and the prompt that it is asked.

    Raises:
        BadArgument: no model.
    """

    def __init__(self, scorer: KeptScorer | None, wording: Wording | str, prompts: Prompts | None) -> None:
        if scorer is None:
            raise BadArgument(
                "cxmi asks a model for log-probabilities: give the oracle one (scorer=blendfilter.scorer('local')); "
                f"{CAN}"
            )
        self.scorer, self.prompts = scorer, prompts
        worded = Wording.of(wording) if isinstance(wording, str) else wording
        self._answer = worded(Ask(STAGE_NAME, Generator, "direct", prompts=prompts))
        self._between = self._seam()
        # "Yes" where the demonstrations have it so, for what is told of "yes" is not what the answerer would write.
        self._spelled = {demo.answer.casefold(): demo.answer for demo in self._answer.demos}
        self.demonstrated = frozenset(folded(demo.question).casefold() for demo in self._answer.demos)

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that change with any word of the prompt but the question's own."""
        return digest("cxmi", *self.pair(Question("", "question", ("answer",)), "knowledge"))[:16]

    def pair(self, question: Question, line: str | None = None) -> Pair:
        """What is scored: the output behind the prompt of one line of knowledge, or of none."""
        prompt = self._answer.render(knowledge=[] if line is None else [line], question=question.question)
        output = question.golden_answers[0].strip()
        return Pair(prompt, self._between + self._spelled.get(output.casefold(), output))

    def _seam(self) -> str:
        """What stands between the prompt's last words and an answer."""
        if not self._answer.demos:
            return " "
        shown = self._answer.render(knowledge=[], question="?")
        cue = shown.rpartition("\n")[2]
        beside = any(f"{cue} {one_line(demo.answer)}\n" in shown for demo in self._answer.demos)
        return " " if beside else "\n"

    async def __call__(
        self, questions: Sequence[Question], candidates: Sequence[Sequence[Candidate]]
    ) -> list[list[float | None]]:
        """CXMI of each question's candidates: one list for all; the scorer asks for each pair once."""
        bases = [self.pair(question) for question in questions]
        given = [
            [self.pair(one, each.line) for each in found] for one, found in zip(questions, candidates, strict=True)
        ]
        # without a sentence there is nothing that a base would be compared with
        asked = [pair for base, pairs in zip(bases, given, strict=True) if pairs for pair in (base, *pairs)]
        with setting(STAGE, STAGE_NAME):
            results = dict(zip(asked, await self.scorer.aresults(asked), strict=True))
        return [
            self._differences(question, results, base, pairs)
            for question, base, pairs in zip(questions, bases, given, strict=True)
        ]

    async def base(self, question: Question) -> Score:
        """The score of the output given nothing. Raises: ModelError, naming the question where it is too long."""
        pair = self.pair(question)
        with setting(STAGE, STAGE_NAME):
            return _based(question, *await self.scorer.aresults([pair]))

    def _differences(
        self, question: Question, results: Mapping[Pair, Result], base: Pair, pairs: Sequence[Pair]
    ) -> list[float | None]:
        """CXMI of one question's sentences, None for one that is too long for the model."""
        if not pairs:
            return []
        nothing = _based(question, results[base])
        given = [_fitting(results[pair]) for pair in pairs]
        return [None if each is None else cxmi(each.logprob, nothing.logprob) for each in given]


def _fitting(result: Result) -> Score | None:
    """A score, or None where the pair was too long for the model; what else went wrong may pass, and is raised."""
    if isinstance(result, Score):
        return result
    if result.kind != TOO_LONG:
        raise ModelError(str(result), kind=result.kind, stage=STAGE_NAME)
    return None


def _based(question: Question, result: Result) -> Score:
    score = _fitting(result)
    if score is None:
        raise ModelError(
            f"question '{question.id}' cannot be scored, even without a sentence: {result}; drop the row, or take a "
            "model with a longer context",
            kind=TOO_LONG,
            stage=STAGE_NAME,
        )
    return score

"""Answer generation: a chain of thought over the knowledge kept, then the short answer that it arrives at.

Wang et al., "BlendFilter" (EMNLP 2024), section 3.4, a = M(a | Prompt_CoT(q, K_r)); prompts after appendix F. Every
method with a chain of thought ends with the same two calls, or a comparison would be one of answer extractors.
"""

from __future__ import annotations

from collections.abc import Sequence

import dspy

from blendfilter.asking import SHORT_TOKENS, Ask, PromptSettings, TaskWording
from blendfilter.modules.base import QuestionModule
from blendfilter.prompting import Prompts
from blendfilter.records import Passage
from blendfilter.retrieval.callables import as_passage


class Reasoning(dspy.Signature):
    """A chain of thought over knowledge, which ends with the answer."""

    knowledge: list[str] = dspy.InputField(desc="lines of Title | text")
    question: str = dspy.InputField()
    reasoning: str = dspy.OutputField()


class UnaidedReasoning(dspy.Signature):
    """A chain of thought from memory, which ends with the answer."""

    question: str = dspy.InputField()
    reasoning: str = dspy.OutputField()


class ShortAnswer(dspy.Signature):
    """The answer that a reasoning arrives at."""

    context: str = dspy.InputField(desc="the whole reasoning")
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


def short_answer(settings: PromptSettings) -> Ask:
    """The last predictor of every method that reasons."""
    return settings.predictor("short_answer", ShortAnswer, "blendfilter/short_answer", SHORT_TOKENS)


class Answering(QuestionModule):
    """From a question and the knowledge kept to an answer.

    Args:
        template: `blendfilter/answer`, or `cot` to reason without knowledge.
        wording, prompts, adapter: as in `Blending`.

    `Answering()(question=…, knowledge=[…])` gives a prediction with `answer` and `reasoning`.
    """

    def __init__(
        self,
        template: str = "blendfilter/answer",
        *,
        wording: TaskWording | str = "hotpotqa",
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        settings = PromptSettings.of(wording, prompts, adapter)
        self.unaided = template == "cot"
        self.answer = settings.predictor("answer", UnaidedReasoning if self.unaided else Reasoning, template)
        self.short_answer = short_answer(settings)

    async def aforward(self, question: str, knowledge: Sequence[Passage] = ()) -> dspy.Prediction:
        """The answer, and the reasoning before it."""
        question = self.cleaned(question)
        reasoning = await self.reasoning(question, [as_passage(passage) for passage in knowledge])
        return dspy.Prediction(answer=await self.conclude(question, reasoning), reasoning=reasoning)

    async def reasoning(self, question: str, knowledge: Sequence[Passage]) -> str:
        """The chain of thought, the first of the two calls."""
        lines = {} if self.unaided else {"knowledge": [passage.line for passage in knowledge]}
        return str((await self.answer.acall(question=question, **lines)).reasoning)

    async def conclude(self, question: str, reasoning: str) -> str:
        """The short answer, the second."""
        return str((await self.short_answer.acall(context=reasoning, question=question)).answer)

"""Answer generation: a chain of thought over the knowledge kept, then the short answer it arrives at.

Wang et al., "BlendFilter" (EMNLP 2024), section 3.4, a = M(a | Prompt_CoT(q, K_r)); prompts after appendix F. Every
method with a chain of thought ends with the same two calls, or a comparison would be one of answer extractors.
"""

from __future__ import annotations

from collections.abc import Sequence

import dspy

from blendfilter import aio
from blendfilter.asking import REPLY_TOKENS, SHORT_TOKENS, STOP, Ask, Wording
from blendfilter.modules.base import cleaned
from blendfilter.modules.blending import Reasoning
from blendfilter.prompting import Prompts
from blendfilter.records import Passage
from blendfilter.retrieval.callables import as_passage


class UnaidedReasoning(dspy.Signature):
    """A chain of thought from memory, which ends with the answer."""

    question: str = dspy.InputField()
    reasoning: str = dspy.OutputField()


class ShortAnswer(dspy.Signature):
    """The answer that a reasoning arrives at."""

    context: str = dspy.InputField(desc="the whole reasoning")
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


class Answering(dspy.Module):
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
        wording: Wording | str = "hotpotqa",
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        worded = Wording.of(wording) if isinstance(wording, str) else wording
        self.unaided = template == "cot"
        reasoned = UnaidedReasoning if self.unaided else Reasoning
        self.answer = worded(
            Ask("answer", reasoned, template, prompts=prompts, adapter=adapter, max_tokens=REPLY_TOKENS, stop=STOP)
        )
        self.short_answer = worded(
            Ask(
                "short_answer", ShortAnswer, "blendfilter/short_answer",
                prompts=prompts, adapter=adapter, max_tokens=SHORT_TOKENS, stop=STOP,
            )
        )  # fmt: skip

    def forward(self, question: str, knowledge: Sequence[Passage] = ()) -> dspy.Prediction:
        return aio.run(self.aforward(question=question, knowledge=knowledge), type(self).__name__)

    async def aforward(self, question: str, knowledge: Sequence[Passage] = ()) -> dspy.Prediction:
        """The answer and the reasoning before it."""
        question = cleaned(question, type(self).__name__)
        shown = {} if self.unaided else {"knowledge": [as_passage(passage).line for passage in knowledge]}
        reasoning = str((await self.answer.acall(question=question, **shown)).reasoning)
        short = await self.short_answer.acall(context=reasoning, question=question)
        return dspy.Prediction(answer=str(short.answer), reasoning=reasoning)

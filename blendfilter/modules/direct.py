"""The first baselines: direct prompting and chain of thought, each with and without retrieval, and with any filter.

Wang et al., "BlendFilter" (EMNLP 2024), appendix C. The chain-of-thought prompt over retrieved knowledge is the very
prompt of BlendFilter's external step, so a run that reuses the other's journal does not pay for it twice.
"""

from __future__ import annotations

from typing import Any

import dspy

from blendfilter.asking import SHORT_TOKENS, PromptSettings, TaskWording
from blendfilter.context import note
from blendfilter.errors import BadArgument, check_count
from blendfilter.filters.base import Filter
from blendfilter.modules.base import Answering, Method, RetrievingMethod, prediction_of
from blendfilter.prompting import Prompts
from blendfilter.records import Passage
from blendfilter.retrieval.base import Searcher, check_search


class DirectAnswer(dspy.Signature):
    """The answer at once."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


class DirectAnswerFromKnowledge(dspy.Signature):
    """The answer at once, from knowledge."""

    knowledge: list[str] = dspy.InputField(desc="lines of Title | text")
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


class _Baseline(RetrievingMethod):
    """A method that searches once, or not at all; subclasses write `speak` and `respond`."""

    def __init__(
        self,
        retriever: Searcher | None = None,
        k: int = 5,
        *,
        filter: Filter | str | None = None,
        task: TaskWording | str = "hotpotqa",
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        settings = PromptSettings.of(task, prompts, adapter)
        if retriever is not None:
            super().__init__(retriever, k, filter, settings)
            self.method_name = f"{self.method_name}-retrieval"
        elif filter is not None:
            raise BadArgument(
                f"{type(self).__name__} without an index has nothing to filter: give it one"
            )
        else:
            Method.__init__(self)
            self.retriever, self.k, self.select = None, check_search([], k), None
        self.speak(settings)

    def speak(self, settings: PromptSettings) -> None:
        """Make the predictors."""
        raise NotImplementedError

    def arguments(self) -> dict[str, Any]:
        return super().arguments() if self.retriever is not None else {}

    async def respond(self, question: str, knowledge: list[Passage] | None) -> tuple[str, str]:
        """The answer and the reasoning before it, from the passages kept (None: from memory)."""
        raise NotImplementedError

    async def answer(self, question: str) -> dspy.Prediction:
        if self.retriever is None:
            return prediction_of(*await self.respond(question, None), [], {}, {}, None)
        chosen, branch = await self.look_up(question)
        answer, reasoning = await self.respond(question, chosen.kept)
        return prediction_of(
            answer, reasoning, chosen.kept, {"q": question}, {"q": branch}, [chosen]
        )


class Direct(_Baseline):
    """Direct prompting: one call. `Direct()` asks the model alone, `Direct(index)` over what the question retrieves.

    Args:
        max_input_tokens: what the prompt without its demonstrations may have: passages are cut from the end, at a word.
            None: what the model takes. Others as for every method.
    """

    method_name = "direct"

    def __init__(
        self,
        retriever: Searcher | None = None,
        k: int = 5,
        *,
        filter: Filter | str | None = None,
        max_input_tokens: int | None = None,
        task: TaskWording | str = "hotpotqa",
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        if max_input_tokens is not None:
            max_input_tokens = check_count("max_input_tokens", max_input_tokens)
            if retriever is None:
                raise BadArgument(
                    "max_input_tokens cuts passages, and Direct without an index has none: leave it out"
                )
        super().__init__(
            retriever, k, filter=filter, task=task, prompts=prompts, adapter=adapter
        )
        self.max_input_tokens = max_input_tokens

    def arguments(self) -> dict[str, Any]:
        own = (
            {} if self.max_input_tokens is None else {"max_input_tokens": self.max_input_tokens}
        )
        return super().arguments() | own

    def speak(self, settings: PromptSettings) -> None:
        signature = DirectAnswer if self.retriever is None else DirectAnswerFromKnowledge
        self.direct = settings.predictor("direct", signature, "direct", SHORT_TOKENS)

    async def respond(self, question: str, knowledge: list[Passage] | None) -> tuple[str, str]:
        if knowledge is None:
            return str((await self.direct.acall(question=question)).answer), ""
        lines = [passage.line for passage in knowledge]
        if self.max_input_tokens is not None:
            whole = lines
            lines = self.direct.fitted(knowledge, self.max_input_tokens, question=question)
            if lines != whole:
                note("", "input_cut")
        return str((await self.direct.acall(question=question, knowledge=lines)).answer), ""


class ChainOfThought(_Baseline):
    """Chain of thought, then the short answer: two calls. Without an index, from the model's memory."""

    method_name = "cot"

    def speak(self, settings: PromptSettings) -> None:
        self.answering = Answering(
            "cot" if self.retriever is None else "blendfilter/external", **settings._asdict()
        )

    async def respond(self, question: str, knowledge: list[Passage] | None) -> tuple[str, str]:
        answered = await self.answering.acall(question=question, knowledge=knowledge or [])
        return answered.answer, answered.reasoning

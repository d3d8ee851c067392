"""The first baselines: direct prompting and chain of thought, each with and without retrieval, and with any filter.

Wang et al., "BlendFilter" (EMNLP 2024), appendix C. The chain-of-thought prompt over retrieved knowledge is the very
prompt of BlendFilter's external step, so a run that reuses the other's journal does not pay for it twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import dspy

from blendfilter.asking import SHORT_TOKENS, STOP, Ask, Wording
from blendfilter.errors import BadArgument
from blendfilter.filters.base import Filter
from blendfilter.modules.answering import Answering
from blendfilter.modules.base import Method, branch_of, check_k, filter_arguments, filtered, flags_of, search
from blendfilter.prompting import Prompts
from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.callables import as_retriever


class DirectAnswer(dspy.Signature):
    """The answer at once."""

    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


class DirectAnswerFromKnowledge(dspy.Signature):
    """The answer at once, from knowledge."""

    knowledge: list[str] = dspy.InputField(desc="lines of Title | text")
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


class Found(NamedTuple):
    """What one query retrieved, and the filter's word on it."""

    retrieved: list[Passage]
    chosen: dspy.Prediction


class _Baseline(Method):
    """A method that searches once, or not at all, and may filter what it finds."""

    def __init__(self, retriever: Retriever | None, k: int, filter: Filter | None) -> None:
        super().__init__()
        if filter is not None and retriever is None:
            raise BadArgument(f"{type(self).__name__} without an index has nothing to filter: give it one")
        self.retriever = as_retriever(retriever) if retriever is not None else None
        self.k = check_k(k)
        self.select = filter

    def arguments(self) -> dict[str, Any]:
        """K and the filter, where something is retrieved."""
        return {"k": self.k, **filter_arguments(self.select)} if self.retriever is not None else {}

    async def _found(self, question: str) -> Found | None:
        """What the question retrieves and what is kept of it; None without an index."""
        if self.retriever is None:
            return None
        retrieved = await search(self.retriever, question, self.k)
        return Found(retrieved, await filtered(self.select, question, retrieved))


class Direct(_Baseline):
    """Direct prompting: one call. `Direct()` asks the model alone, `Direct(index)` over what the question retrieves."""

    def __init__(
        self,
        retriever: Retriever | None = None,
        k: int = 5,
        *,
        filter: Filter | None = None,
        task: Wording | str = "hotpotqa",
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__(retriever, k, filter)
        self.method_name = "direct" if retriever is None else "direct-retrieval"
        wording = Wording.of(task) if isinstance(task, str) else task
        signature = DirectAnswer if retriever is None else DirectAnswerFromKnowledge
        self.direct = wording(
            Ask("direct", signature, "direct", prompts=prompts, adapter=adapter, max_tokens=SHORT_TOKENS, stop=STOP)
        )

    async def answer(self, question: str) -> dspy.Prediction:
        """One call, over what the question retrieves if there is an index."""
        found = await self._found(question)
        shown = {} if found is None else {"knowledge": [passage.line for passage in found.chosen.kept]}
        answered = await self.direct.acall(question=question, **shown)
        return _prediction(question, found, str(answered.answer), "")


class ChainOfThought(_Baseline):
    """Chain of thought, then the short answer: two calls. Without an index, from the model's memory."""

    def __init__(
        self,
        retriever: Retriever | None = None,
        k: int = 5,
        *,
        filter: Filter | None = None,
        task: Wording | str = "hotpotqa",
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__(retriever, k, filter)
        self.method_name = "cot" if retriever is None else "cot-retrieval"
        template = "cot" if retriever is None else "blendfilter/external"
        self.answering = Answering(template, wording=task, prompts=prompts, adapter=adapter)

    async def answer(self, question: str) -> dspy.Prediction:
        """Two calls, over what the question retrieves if there is an index."""
        found = await self._found(question)
        answered = await self.answering.acall(question=question, knowledge=found.chosen.kept if found else [])
        return _prediction(question, found, answered.answer, answered.reasoning)


def _prediction(question: str, found: Found | None, answer: str, reasoning: str) -> dspy.Prediction:
    if found is None:
        return dspy.Prediction(answer=answer, reasoning=reasoning, knowledge=[], queries={}, branches={})
    kept = found.chosen.kept
    return dspy.Prediction(
        answer=answer,
        reasoning=reasoning,
        knowledge=kept,
        queries={"q": question},
        branches={"q": branch_of(found.retrieved, found.chosen)},
        flags=flags_of([found.chosen], empty=not kept),
    )

"""BlendFilter, whole: blend three queries, filter what each retrieves, answer from the union.

Wang et al., "BlendFilter: Advancing Retrieval-Augmented Large Language Models via Query Generation Blending and
Knowledge Filtering" (EMNLP 2024), Algorithm 1. In: a question q, an index, a model. Out: an answer and its trace.

::

    q -> K_q --+--> external -> q_ex -> K_qex -> check -> ids --+
               +--> internal -> q_in -> K_qin -> check -> ids --+--> union -> answer -> short answer
         topic +--> K_q ----------------------> check -> ids ---+

11 calls, 5 deep (10 on StrategyQA, which asks for no topic); two queries that bring the same passages in the same order
share one filter. Differs from the paper: nothing in the steps; K_ex is K_q and fetched once, the topic is asked once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any

import dspy

from blendfilter.asking import Wording
from blendfilter.filters.base import Filter
from blendfilter.filters.knowledge import KnowledgeFilter
from blendfilter.modules.answering import Answering
from blendfilter.modules.base import Method, branch_of, filter_arguments, filtered, flags_of, union
from blendfilter.modules.blending import QUERIES, Blending
from blendfilter.modules.steps import Step, Steps
from blendfilter.prompting import Prompts
from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever

Found = Awaitable[tuple[str, list[Passage]]]


class BlendFilter(Method):
    """Algorithm 1 as one DSPy module.

    Args:
        retriever: an index, or any callable (query, k).
        k: passages per query (K).
        task: whose wording and demonstrations to use (`hotpotqa`, `twowiki`, `strategyqa`), or a `Wording`.
        without: queries left out, any of `q`, `q_ex`, `q_in` (Table 5).
        filter: any filter; BlendFilter's own (`KnowledgeFilter`) by default.
        fallback: answer from K_q where the filter keeps nothing, in place of an empty knowledge block.
        drop_conclusion: leave "So the answer is …" out of the external query.
        offer_none, ask_topic, json_schema: of the filter, where it is BlendFilter's own; the task's wording decides by
            default.
        prompts, adapter: templates of one's own, or another DSPy adapter in their place.

    Example::

        with dspy.context(lm=bf.connect("openai/gpt-4o-mini")):
            bf.BlendFilter(index, k=5)(question="…").answer
    """

    def __init__(
        self,
        retriever: Retriever,
        k: int = 5,
        *,
        task: Wording | str = "hotpotqa",
        without: str | Iterable[str] = (),
        filter: Filter | None = None,
        fallback: bool = False,
        drop_conclusion: bool = False,
        offer_none: bool | None = None,
        ask_topic: bool | None = None,
        json_schema: bool | None = None,
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        wording = Wording.of(task) if isinstance(task, str) else task
        shared: dict[str, Any] = {"prompts": prompts, "adapter": adapter}
        self.fallback = fallback
        self.blending = Blending(
            retriever, k, without=without, drop_conclusion=drop_conclusion, wording=wording, **shared
        )
        self.select = filter or KnowledgeFilter(
            offer_none=wording.offer_none if offer_none is None else offer_none,
            ask_topic=wording.ask_topic if ask_topic is None else ask_topic,
            json_schema=json_schema,
            wording=wording,
            **shared,
        )
        self.answering = Answering(wording=wording, **shared)

    method_name = "blendfilter"

    def arguments(self) -> dict[str, Any]:
        """K, the queries left out, the filter and its switches."""
        return {
            "k": self.blending.k,
            "without": ",".join(name for name in QUERIES if name not in self.blending.use),
            **filter_arguments(self.select),
            "fallback": self.fallback,
            "drop_conclusion": self.blending.drop_conclusion,
        }

    async def answer(self, question: str) -> dspy.Prediction:
        """Algorithm 1, everything that may overlap overlapping."""
        use, blending = self.blending.use, self.blending
        first = await blending.retrieve(question) if self._wants_k_q() else []  # K_q, which is K_ex too
        async with Steps() as steps:
            found: dict[str, Found] = {"q": steps.start(_at_once(question, first))}
            if "q_ex" in use:
                found["q_ex"] = steps.start(blending.externally(question, first))
            if "q_in" in use:
                found["q_in"] = steps.start(blending.internally(question))
            topic = steps.start(self._topic(question))
            shared: dict[tuple[str, ...], Step[dspy.Prediction]] = {}
            filtering = {name: steps.start(self._filtered(question, found[name], topic, shared)) for name in use}
            branches = {name: branch_of((await found[name])[1], await (await filtering[name])) for name in use}
        kept = union(branches[name].kept for name in use)
        knowledge = kept or (first if self.fallback else [])
        answered = await self.answering.acall(question=question, knowledge=knowledge)
        return dspy.Prediction(
            answer=answered.answer,
            reasoning=answered.reasoning,
            knowledge=knowledge,
            queries={name: (await found[name])[0] for name in use},
            branches=branches,
            flags=flags_of([(await (await filtering[name])) for name in use], empty=not kept),
        )

    def _wants_k_q(self) -> bool:
        return self.fallback or bool({"q", "q_ex"} & set(self.blending.use))

    async def _topic(self, question: str) -> str:
        ask = getattr(self.select, "topic_of", None)
        return str(await ask(question)) if ask else ""

    async def _filtered(
        self, question: str, found: Found, topic: Step[str], shared: dict[tuple[str, ...], Step[dspy.Prediction]]
    ) -> Step[dspy.Prediction]:
        """The filter over one branch, started; branches with the same passages in the same order share it."""
        _, passages = await found
        told = tuple(passage.id for passage in passages)
        if told not in shared:
            shared[told] = Step(self._select(question, passages, topic))
        return shared[told]

    async def _select(self, question: str, passages: list[Passage], topic: Step[str]) -> dspy.Prediction:
        # Other filters know no topic: they take the question and the passages alone.
        told = {"topic": await topic} if hasattr(self.select, "topic_of") else {}
        return await filtered(self.select, question, passages, **told)


async def _at_once(query: str, passages: list[Passage]) -> tuple[str, list[Passage]]:
    return query, passages

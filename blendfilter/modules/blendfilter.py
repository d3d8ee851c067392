"""BlendFilter, whole: blend three queries, filter what each retrieves, answer from the union.

Wang et al., "BlendFilter: Advancing Retrieval-Augmented Large Language Models via Query Generation Blending and
Knowledge Filtering" (EMNLP 2024), Algorithm 1. In: a question q, an index, a model. Out: an answer and its trace.

::

    q -> K_q --+--> external -> q_ex -> K_qex -> check -> ids --+
               +--> internal -> q_in -> K_qin -> check -> ids --+--> union -> answer -> short answer
         topic +--> K_q ----------------------> check -> ids ---+

11 calls, 5 deep (10 on StrategyQA, which asks for no topic); two queries that bring the same passages in the same order
share one filter. Differs from the paper: nothing in the steps; K_ex is K_q and fetched once, the topic is asked once.

Two ways to make fewer calls are ours, not the paper's, and must be asked for: a filter that needs one call
(`OneCallFilter`: 7 calls), and `filter_union`, one filter over the union of the three lists (7 calls; 5 with both).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import dspy

from blendfilter.aio import Step, Steps
from blendfilter.asking import Wording
from blendfilter.filters.base import Filter
from blendfilter.filters.knowledge import KnowledgeFilter
from blendfilter.modules.answering import Answering
from blendfilter.modules.base import Branch, Method, branch_of, filter_arguments, filtered, flags_of, union
from blendfilter.modules.blending import QUERIES, Blending
from blendfilter.prompting import Prompts
from blendfilter.records import Excerpt, Passage
from blendfilter.retrieval.base import Retriever

Found = Awaitable[tuple[str, list[Passage]]]


class Filtered(NamedTuple):
    """The branches, the passages kept in all, and the filter's predictions."""

    branches: dict[str, Branch]
    kept: list[Passage]
    chosen: list[dspy.Prediction]


class BlendFilter(Method):
    """Algorithm 1 as one DSPy module.

    Args:
        retriever: an index, or any callable (query, k).
        k: passages per query (K).
        task: whose wording and demonstrations to use (`hotpotqa`, `twowiki`, `strategyqa`), or a `Wording`.
        without: queries left out, any of `q`, `q_ex`, `q_in` (Table 5).
        filter: any filter; BlendFilter's own (`KnowledgeFilter`) by default.
        filter_union: filter the union of the three lists once, in place of each list.
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
        filter_union: bool = False,
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
        self.filter_union = filter_union
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
            "filter_union": self.filter_union,
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
            filtering = self._each if not self.filter_union else self._together
            branches, kept, chosen = await filtering(question, found, topic, steps)
        knowledge = kept or (first if self.fallback else [])
        answered = await self.answering.acall(question=question, knowledge=knowledge)
        return dspy.Prediction(
            answer=answered.answer,
            reasoning=answered.reasoning,
            knowledge=knowledge,
            queries={name: (await found[name])[0] for name in use},
            branches=branches,
            flags=flags_of(chosen, empty=not kept),
        )

    def _wants_k_q(self) -> bool:
        return self.fallback or bool({"q", "q_ex"} & set(self.blending.use))

    async def _topic(self, question: str) -> str:
        ask = getattr(self.select, "topic_of", None)
        return str(await ask(question)) if ask else ""

    async def _each(self, question: str, found: Mapping[str, Found], topic: Step[str], steps: Steps) -> Filtered:
        """A filter over each branch, and the union of what they keep."""
        use = self.blending.use
        shared: dict[tuple[str, ...], Step[dspy.Prediction]] = {}
        started = {name: steps.start(self._filtered(question, found[name], topic, shared)) for name in use}
        chosen = {name: await (await started[name]) for name in use}
        branches = {name: branch_of((await found[name])[1], chosen[name]) for name in use}
        return Filtered(branches, union(branches[name].kept for name in use), list(chosen.values()))

    async def _together(self, question: str, found: Mapping[str, Found], topic: Step[str], steps: Steps) -> Filtered:
        """One filter over the union of the branches; of each, what survives of it."""
        retrieved = {name: (await found[name])[1] for name in self.blending.use}
        chosen = await steps.start(self._select(question, union(retrieved.values()), topic))
        # The reason numbers the union's passages: beside a branch it would speak of others.
        branches = {
            name: Branch(passages, survivors(passages, chosen.kept), chosen.get("status"))
            for name, passages in retrieved.items()
        }
        return Filtered(branches, chosen.kept, [chosen])

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


def survivors(retrieved: Sequence[Passage], kept: Sequence[Passage]) -> list[Passage]:
    """What a filter over a union kept of one of its lists, in the list's order; the same passage is told as by `union`.

    >>> a, b = Passage("1", "T", "x"), Passage("2", "T", "y")
    >>> [p.id for p in survivors([b, a], [a])]
    ['1']
    """
    pairs = ((passage, each) for passage in retrieved for each in kept)
    return [_of(passage, each) for passage, each in pairs if len(union([[passage], [each]])) == 1]


def _of(passage: Passage, kept: Passage) -> Passage:
    """`passage`, or the same pieces of it: by another query it has another score, in another corpus another id."""
    if not isinstance(kept, Excerpt) or isinstance(passage, Excerpt) or passage.text != kept.source.text:
        return kept if isinstance(kept, Excerpt) else passage
    return Excerpt.of(passage, [(span.start, span.end) for span in kept.spans])

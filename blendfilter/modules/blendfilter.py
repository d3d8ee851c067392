"""BlendFilter: blend three queries, filter what each retrieves, answer from the union.

Wang et al., "BlendFilter: Advancing Retrieval-Augmented Large Language Models via Query Generation Blending and
Knowledge Filtering" (EMNLP 2024), Algorithm 1; the queries q, q_ex = a_ex || q and q_in = a_in || q are section 3.2's,
where a_ex is a chain of thought over the knowledge that q retrieves and a_in a passage from the model's own memory.

::

    q -> K_q --+--> external -> q_ex -> K_qex -> check -> ids --+
               +--> internal -> q_in -> K_qin -> check -> ids --+--> union -> answer -> short answer
         topic +--> K_q ----------------------> check -> ids ---+

11 calls, 5 deep (10 on StrategyQA, which asks for no topic); two queries that bring the same passages in the same order
share one filter. Differs from the paper: nothing in the steps; K_ex is K_q and fetched once, the topic is found once.

Two ways to make fewer calls are ours, not the paper's, and off by default: a filter that needs one call
(`OneCallFilter`: 7 calls), and `filter_union`, one filter over the union of the three lists (7 calls; 5 with both).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import dspy

from blendfilter.aio import Step, Steps
from blendfilter.asking import PromptSettings, TaskWording
from blendfilter.errors import BadArgument, UnknownName
from blendfilter.filters.base import Filter
from blendfilter.filters.knowledge import KnowledgeFilter
from blendfilter.filters.registry import filter_of
from blendfilter.modules.base import (
    Answering,
    Branch,
    Method,
    QuestionModule,
    Reasoning,
    branch_of,
    filter_arguments,
    filtered,
    prediction_of,
    search,
    topic_for,
    union,
)
from blendfilter.prompting import Prompts
from blendfilter.quoting import THEREFORE
from blendfilter.records import Passage, one_line
from blendfilter.retrieval.base import Searcher, check_search
from blendfilter.retrieval.callables import as_retriever

QUERIES = ("q", "q_ex", "q_in")
"""The three queries in the order of their union."""

Retrieved: TypeAlias = tuple[str, list[Passage]]  # a query and its passages
# branches, kept, the filter's own
Filtered: TypeAlias = tuple[dict[str, Branch], list[Passage], list[dspy.Prediction]]

_CONCLUSION = re.compile(
    rf"[*_]{{0,3}}\b{THEREFORE}(?:(?:final|correct) )?answer(?: is\b|[*_ ]{{0,4}}:)",
    re.IGNORECASE,
)


class Recall(dspy.Signature):
    """A passage from the model's own memory."""

    question: str = dspy.InputField()
    passage: str = dspy.OutputField()


def blend(augmentation: str, question: str) -> str:
    """The augmentation before the question, on one line.

    >>> blend("Utzon designed it.\\nSo the answer is Copenhagen.", "Where was its architect born?")
    'Utzon designed it. So the answer is Copenhagen. Where was its architect born?'
    """
    return f"{one_line(augmentation)} {question}".strip()


def without_conclusion(reasoning: str) -> str:
    """A reasoning less its closing sentence, where it has one.

    >>> without_conclusion("Utzon was born there.\\nSo the answer is Copenhagen.")
    'Utzon was born there.'
    """
    text = reasoning.rstrip()
    closing = _CONCLUSION.search(text, text.rfind("\n") + 1)
    return text[: closing.start()].rstrip() if closing else reasoning


def used_queries(without: str | Iterable[str]) -> tuple[str, ...]:
    """The queries in use; `without` is one name, several with commas, or a list.

    Raises:
        UnknownName: no such query. BadArgument: none is left.
    """
    names = without.split(",") if isinstance(without, str) else without
    dropped = {name.strip() for name in names if name.strip()}
    for name in dropped - {*QUERIES}:
        raise UnknownName.of("query", name, QUERIES)
    used = tuple(name for name in QUERIES if name not in dropped)
    if not used:
        raise BadArgument("without: at least one of q, q_ex and q_in must stay")
    return used


class Blending(QuestionModule):
    """Makes the three queries and retrieves with each.

    Args:
        retriever: an index, or any callable (query, k).
        k: passages per query.
        without: queries left out.
        drop_conclusion: leave the closing "So the answer is …" out of a_ex (section 3.2 has it in, Figure 6 not).
        wording: the task's instructions and demonstrations (a task's name, or a `TaskWording`).
        prompts, adapter: see `blendfilter.asking.Ask`.

    Alone, `Blending(index)(question=…)` gives a prediction with `queries` and `retrieved`, each by query name, and with
    `passages`, all that was retrieved.
    """

    def __init__(
        self,
        retriever: Searcher,
        k: int = 5,
        *,
        without: str | Iterable[str] = (),
        drop_conclusion: bool = False,
        wording: TaskWording | str = "hotpotqa",
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        self.k = check_search([], k)
        settings = PromptSettings.of(wording, prompts, adapter)
        self.retriever = as_retriever(retriever)
        self.use = used_queries(without)
        self.drop_conclusion = drop_conclusion
        if drop_conclusion and "q_ex" not in self.use:
            raise BadArgument(
                "drop_conclusion changes q_ex, which without leaves out: give one of the two"
            )
        self.external = settings.predictor("external", Reasoning, "blendfilter/external")
        self.internal = settings.predictor("internal", Recall, "blendfilter/internal")

    def arguments(self) -> dict[str, Any]:
        return {
            "k": self.k,
            "without": ",".join(name for name in QUERIES if name not in self.use),
            "drop_conclusion": self.drop_conclusion,
        }

    async def aforward(self, question: str) -> dspy.Prediction:
        question = self.cleaned(question)
        first = await self.first(question)
        async with Steps() as steps:
            started = self.start(question, first, steps)
            done = {name: await started[name] for name in self.use}
        retrieved = {name: passages for name, (_, passages) in done.items()}
        return dspy.Prediction(
            queries={name: query for name, (query, _) in done.items()},
            retrieved=retrieved,
            passages=union(retrieved.values()),
        )

    async def first(self, question: str, *, wanted: bool = False) -> list[Passage]:
        """K_q, which is K_ex too; nothing where no query in use needs it, unless `wanted`."""
        needed = wanted or {"q", "q_ex"} & set(self.use)
        return await search(self.retriever, question, self.k) if needed else []

    def start(
        self, question: str, first: list[Passage], steps: Steps
    ) -> dict[str, Step[Retrieved]]:
        """Every query in use, and q, each with what it retrieves; `first` is K_q."""

        async def at_once() -> Retrieved:
            return question, first

        async def externally() -> Retrieved:
            lines = [passage.line for passage in first]
            reasoning = str(
                (await self.external.acall(knowledge=lines, question=question)).reasoning
            )
            external = blend(
                without_conclusion(reasoning) if self.drop_conclusion else reasoning, question
            )
            return external, await search(self.retriever, external, self.k)  # q_ex = a_ex || q

        async def internally() -> Retrieved:
            internal = blend(
                str((await self.internal.acall(question=question)).passage), question
            )
            return internal, await search(self.retriever, internal, self.k)  # q_in = a_in || q

        makers = {"q": at_once, "q_ex": externally, "q_in": internally}
        return {
            name: steps.start(make())
            for name, make in makers.items()
            if name in ("q", *self.use)
        }


class BlendFilter(Method):
    """Algorithm 1 as one DSPy module.

    Args:
        retriever: an index, or any callable (query, k).
        k: passages per query (K).
        task: whose wording and demonstrations to use (`hotpotqa`, `strategyqa`, `qa`, …), or a `TaskWording`.
        without: queries left out, any of `q`, `q_ex`, `q_in` (Table 5).
        filter: any filter, or the name of one (`filco`); BlendFilter's own (`KnowledgeFilter`) by default.
        filter_union: filter the union of the three lists once, in place of each list.
        fallback: answer from K_q where the filter keeps nothing, in place of an empty knowledge block.
        drop_conclusion: leave "So the answer is …" out of the external query.
        offer_none, ask_topic, json_schema: of the filter, where it is BlendFilter's own; the task's wording decides by
            default.
        prompts, adapter: other templates (`Prompts("my_prompts")`), or another DSPy adapter in their place.
    """

    method_name = "blendfilter"

    def __init__(
        self,
        retriever: Searcher,
        k: int = 5,
        *,
        task: TaskWording | str = "hotpotqa",
        without: str | Iterable[str] = (),
        filter: Filter | str | None = None,
        filter_union: bool = False,
        fallback: bool = False,
        drop_conclusion: bool = False,
        offer_none: bool | None = None,
        ask_topic: bool | None = None,
        json_schema: bool | None = None,
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        settings = PromptSettings.of(task, prompts, adapter)
        shared, wording = settings._asdict(), settings.wording
        self.fallback = fallback
        self.filter_union = filter_union
        self.blending = Blending(
            retriever, k, without=without, drop_conclusion=drop_conclusion, **shared
        )
        self.select = filter_of(filter, settings) or KnowledgeFilter(
            offer_none=wording.offer_none if offer_none is None else offer_none,
            ask_topic=wording.ask_topic if ask_topic is None else ask_topic,
            json_schema=json_schema,
            **shared,
        )
        self.answering = Answering(**shared)

    def arguments(self) -> dict[str, Any]:
        return {
            **self.blending.arguments(),
            **filter_arguments(self.select),
            "filter_union": self.filter_union,
            "fallback": self.fallback,
        }

    async def answer(self, question: str) -> dspy.Prediction:
        """Algorithm 1, everything that may overlap overlapping."""
        use = self.blending.use
        first = await self.blending.first(question, wanted=self.fallback)
        async with Steps() as steps:
            retrieved = self.blending.start(question, first, steps)
            topic = steps.start(topic_for(self.select, question))
            filter_them = self._filter_union if self.filter_union else self._filter_each
            branches, kept, chosen = await filter_them(question, retrieved, topic, steps)
        knowledge = kept or (first if self.fallback else [])
        answered = await self.answering.acall(question=question, knowledge=knowledge)
        queries = {name: (await retrieved[name])[0] for name in use}
        prediction = prediction_of(
            answered.answer, answered.reasoning, knowledge, queries, branches, chosen
        )
        prediction.flags["empty_knowledge"] = int(not kept)
        return prediction

    async def _filter_each(
        self,
        question: str,
        retrieved: Mapping[str, Step[Retrieved]],
        topic: Step[dict[str, str]],
        steps: Steps,
    ) -> Filtered:
        """A filter over each branch, and the union of what they keep; branches with the same list share one."""
        shared: dict[tuple[str, ...], Step[dspy.Prediction]] = {}

        async def start(found: Step[Retrieved]) -> Step[dspy.Prediction]:
            _, passages = await found
            ids = tuple(passage.id for passage in passages)
            if ids not in shared:
                shared[ids] = Step(self._select(question, passages, topic))
            return shared[ids]

        use = self.blending.use
        started = {name: steps.start(start(retrieved[name])) for name in use}
        chosen = {name: await (await started[name]) for name in use}
        branches = {name: branch_of((await retrieved[name])[1], chosen[name]) for name in use}
        return branches, union(branches[name].kept for name in use), list(chosen.values())

    async def _filter_union(
        self,
        question: str,
        retrieved: Mapping[str, Step[Retrieved]],
        topic: Step[dict[str, str]],
        steps: Steps,
    ) -> Filtered:
        """One filter over the union of the branches; each branch keeps what survives of it."""
        lists = {name: (await retrieved[name])[1] for name in self.blending.use}
        chosen = await steps.start(self._select(question, union(lists.values()), topic))
        kept: dict[str, list[Passage]] = {}
        for passage in chosen.kept:
            kept.setdefault(passage.id, []).append(passage)
        # The reason numbers the union's passages: beside a branch it would name others.
        branches = {
            name: Branch(
                passages,
                [piece for one in passages for piece in kept.get(one.id, ())],
                chosen.get("status"),
            )
            for name, passages in lists.items()
        }
        return branches, chosen.kept, [chosen]

    async def _select(
        self, question: str, passages: list[Passage], topic: Step[dict[str, str]]
    ) -> dspy.Prediction:
        return await filtered(self.select, question, passages, **await topic)

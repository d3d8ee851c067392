"""Query generation blending: the question, the question with external reasoning, the question with internal knowledge.

Wang et al., "BlendFilter" (EMNLP 2024), section 3.2. In: a question q. Out: three queries,
q, q_ex = a_ex || q and q_in = a_in || q, where a_ex is a chain of thought over the knowledge that q retrieves
and a_in a passage from the model's own memory. Calls: external, internal.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence

import dspy

from blendfilter import aio
from blendfilter.aio import Steps
from blendfilter.asking import REPLY_TOKENS, STOP, Ask, Wording
from blendfilter.errors import BadArgument, UnknownName
from blendfilter.modules.base import check_k, cleaned, search
from blendfilter.prompting import Prompts
from blendfilter.records import Passage, one_line
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.callables import as_retriever

QUERIES = ("q", "q_ex", "q_in")
"""The three queries in the order of their union."""

_CONCLUSION = re.compile(r"\bso,? the (?:final )?answer is\b", re.IGNORECASE)


class Reasoning(dspy.Signature):
    """A chain of thought over knowledge, which ends with the answer."""

    knowledge: list[str] = dspy.InputField(desc="lines of Title | text")
    question: str = dspy.InputField()
    reasoning: str = dspy.OutputField()


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
    told = reasoning.rstrip()
    closing = _CONCLUSION.search(told, told.rfind("\n") + 1)
    return told[: closing.start()].rstrip() if closing else reasoning


def used_queries(without: str | Iterable[str]) -> tuple[str, ...]:
    """The queries in use; `without` may be one name, several with commas, or a list.

    Raises: UnknownName, BadArgument (none is left).
    """
    names = without.split(",") if isinstance(without, str) else without
    dropped = {name.strip() for name in names if name.strip()}
    for name in dropped:
        if name not in QUERIES:
            raise UnknownName.of("query", name, QUERIES)
    if dropped == set(QUERIES):
        raise BadArgument("without: at least one of q, q_ex and q_in must stay")
    return tuple(name for name in QUERIES if name not in dropped)


class Blending(dspy.Module):
    """Makes the three queries and retrieves with each.

    Args:
        retriever: an index, or any callable (query, k).
        k: passages per query.
        without: queries left out.
        drop_conclusion: leave the closing "So the answer is …" out of a_ex.
        wording: the task's instructions and demonstrations (a task's name, or a `Wording`).
        prompts, adapter: see `blendfilter.asking.Ask`.

    Alone, `Blending(index)(question=…)` gives a prediction with `queries` and `retrieved`, each by query name.
    """

    def __init__(
        self,
        retriever: Retriever,
        k: int = 5,
        *,
        without: str | Iterable[str] = (),
        drop_conclusion: bool = False,
        wording: Wording | str = "hotpotqa",
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        worded = Wording.of(wording) if isinstance(wording, str) else wording
        self.retriever = as_retriever(retriever)
        self.k = check_k(k)
        self.use = used_queries(without)
        self.drop_conclusion = drop_conclusion
        self.external = worded(
            Ask(
                "external", Reasoning, "blendfilter/external",
                prompts=prompts, adapter=adapter, max_tokens=REPLY_TOKENS, stop=STOP,
            )
        )  # fmt: skip
        self.internal = worded(
            Ask(
                "internal", Recall, "blendfilter/internal",
                prompts=prompts, adapter=adapter, max_tokens=REPLY_TOKENS, stop=STOP,
            )
        )  # fmt: skip

    async def retrieve(self, query: str) -> list[Passage]:
        """K passages for one query."""
        return await search(self.retriever, query, self.k)

    async def externally(self, question: str, knowledge: Sequence[Passage]) -> tuple[str, list[Passage]]:
        """q_ex and what it retrieves; `knowledge` is K_q, which stands for K_ex (the same search)."""
        lines = [passage.line for passage in knowledge]
        reasoning = str((await self.external.acall(knowledge=lines, question=question)).reasoning)
        query = blend(without_conclusion(reasoning) if self.drop_conclusion else reasoning, question)
        return query, await self.retrieve(query)

    async def internally(self, question: str) -> tuple[str, list[Passage]]:
        """q_in and what it retrieves."""
        query = blend(str((await self.internal.acall(question=question)).passage), question)
        return query, await self.retrieve(query)

    def forward(self, question: str) -> dspy.Prediction:
        return aio.run(self.aforward(question=question), type(self).__name__)

    async def aforward(self, question: str) -> dspy.Prediction:
        """The queries in use and what each retrieves."""
        question = cleaned(question, type(self).__name__)
        found = await self.retrieve(question) if {"q", "q_ex"} & set(self.use) else []
        async with Steps() as steps:
            work = {
                "q": lambda: asyncio.sleep(0, (question, found)),
                "q_ex": lambda: self.externally(question, found),
                "q_in": lambda: self.internally(question),
            }
            started = {name: steps.start(work[name]()) for name in self.use}
            done = {name: await step for name, step in started.items()}
        return dspy.Prediction(
            queries={name: query for name, (query, _) in done.items()},
            retrieved={name: passages for name, (_, passages) in done.items()},
        )

"""ITER-RETGEN: what was generated last is searched with next.

Shao et al., "Enhancing Retrieval-Augmented Large Language Models with Iterative Retrieval-Generation Synergy" (Findings
of EMNLP 2023), section 3: K_t = R(y_(t-1) || q), y_t = M(y_t | Prompt(K_t, q)), with y_0 empty. In: a question q, an
index, a model. Out: an answer, y_T's, and what each iteration retrieved.

The prompt is that of chain of thought over knowledge, so iteration 1 is `cot-retrieval` and BlendFilter's external step
to the byte, and iteration 2 searches with BlendFilter's q_ex: a run that reuses their journals makes them no more.
Calls: one an iteration, and the short answer. Differs from the paper: the retriever is not trained along, and the
answer is read from y_T by the last step that all methods share.
"""

from __future__ import annotations

from typing import Any

import dspy

from blendfilter.asking import Wording
from blendfilter.errors import BadArgument
from blendfilter.filters.base import Filter
from blendfilter.modules.answering import Answering
from blendfilter.modules.base import (
    Branch,
    Method,
    branch_of,
    check_k,
    filter_arguments,
    filtered,
    flags_of,
    search,
)
from blendfilter.modules.blending import blend
from blendfilter.prompting import Prompts
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.callables import as_retriever


class IterRetGen(Method):
    """ITER-RETGEN.

    Args:
        retriever: an index, or any callable (query, k).
        k: passages per iteration; only the newest ones are shown.
        iterations: T; 1 is chain of thought over what the question retrieves.
        filter: any filter; it judges passages by the question.
        task, prompts, adapter: as in `BlendFilter`.

    The prediction's queries and branches are `q`, `iter_2`, `iter_3` …; its knowledge is the last iteration's.
    """

    def __init__(
        self,
        retriever: Retriever,
        k: int = 5,
        *,
        iterations: int = 2,
        filter: Filter | None = None,
        task: Wording | str = "hotpotqa",
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
            raise BadArgument(f"iterations must be at least 1 (1 is the same as cot-retrieval), got {iterations!r}")
        self.retriever = as_retriever(retriever)
        self.k = check_k(k)
        self.iterations = iterations
        self.select = filter
        self.answering = Answering("blendfilter/external", wording=task, prompts=prompts, adapter=adapter)

    method_name = "iter-retgen"

    def arguments(self) -> dict[str, Any]:
        """K, T and the filter."""
        return {"k": self.k, "iterations": self.iterations, **filter_arguments(self.select)}

    async def answer(self, question: str) -> dspy.Prediction:
        """Retrieve and generate, T times."""
        reasoning, queries, branches, chosen = "", dict[str, str](), dict[str, Branch](), list[dspy.Prediction]()
        topic = getattr(self.select, "topic_of", None)  # a filter that asks for the question's topic does so once
        told = {"topic": await topic(question)} if topic else {}
        for t in range(1, self.iterations + 1):
            name = "q" if t == 1 else f"iter_{t}"
            queries[name] = blend(reasoning, question)  # y_(t-1) || q
            retrieved = await search(self.retriever, queries[name], self.k)
            chosen.append(await filtered(self.select, question, retrieved, **told))
            branches[name] = branch_of(retrieved, chosen[-1])
            lines = [passage.line for passage in chosen[-1].kept]
            reasoning = str((await self.answering.answer.acall(knowledge=lines, question=question)).reasoning)
        short = await self.answering.short_answer.acall(context=reasoning, question=question)
        knowledge = list(chosen[-1].kept)
        return dspy.Prediction(
            answer=str(short.answer),
            reasoning=reasoning,
            knowledge=knowledge,
            queries=queries,
            branches=branches,
            flags=flags_of(chosen, empty=not knowledge),
        )

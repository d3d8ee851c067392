"""ITER-RETGEN: search with the question and the last generation, T times.

Shao et al., "Enhancing Retrieval-Augmented Large Language Models with Iterative Retrieval-Generation Synergy" (Findings
of EMNLP 2023), section 3: K_t = R(y_(t-1) || q), y_t = M(y_t | Prompt(K_t, q)), with y_0 empty; the answer is y_T's.

The prompt is that of chain of thought over knowledge, so iteration 1 is `cot-retrieval` and BlendFilter's external step
to the byte, and iteration 2 searches with BlendFilter's q_ex: a run that reuses their journals makes them no more.
Calls: one an iteration, and the short answer. Differs from the paper: the retriever is not trained along, and the
answer is read from y_T by the last step that all methods share.
"""

from __future__ import annotations

from typing import Any

import dspy

from blendfilter.asking import PromptSettings, TaskWording
from blendfilter.errors import check_count
from blendfilter.filters.base import Filter
from blendfilter.modules.base import (
    Answering,
    Branch,
    RetrievingMethod,
    prediction_of,
    topic_for,
)
from blendfilter.modules.blendfilter import blend
from blendfilter.prompting import Prompts
from blendfilter.retrieval.base import Searcher


class IterRetGen(RetrievingMethod):
    """ITER-RETGEN.

    Args:
        retriever: an index, or any callable (query, k).
        k: passages per iteration; each prompt has the newest ones only.
        iterations: T; 1 is chain of thought over what the question retrieves.
        filter: any filter; it judges passages by the question.
        task, prompts, adapter: as in `BlendFilter`.

    The prediction's queries and branches are `q`, `iter_2`, `iter_3` …; its knowledge is the last iteration's.
    """

    method_name = "iter-retgen"

    def __init__(
        self,
        retriever: Searcher,
        k: int = 5,
        *,
        iterations: int = 2,
        filter: Filter | str | None = None,
        task: TaskWording | str = "hotpotqa",
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        iterations = check_count("iterations", iterations)
        super().__init__(retriever, k, filter, PromptSettings.of(task, prompts, adapter))
        self.iterations = iterations
        self.answering = Answering(
            "blendfilter/external", wording=task, prompts=prompts, adapter=adapter
        )

    def arguments(self) -> dict[str, Any]:
        return {"k": self.k, "iterations": self.iterations, **super().arguments()}

    async def answer(self, question: str) -> dspy.Prediction:
        reasoning = ""
        queries = dict[str, str]()
        branches = dict[str, Branch]()
        chosen = list[dspy.Prediction]()
        more = await topic_for(self.select, question)
        for t in range(1, self.iterations + 1):
            name = "q" if t == 1 else f"iter_{t}"
            queries[name] = blend(reasoning, question)  # y_(t-1) || q
            kept, branches[name] = await self.look_up(queries[name], question, **more)
            chosen.append(kept)
            reasoning = await self.answering.reasoning(question, kept.kept)  # y_t
        answer = await self.answering.conclude(question, reasoning)
        # each prompt has the newest passages only: what an earlier search alone found was not filtered away
        return prediction_of(
            answer,
            reasoning,
            chosen[-1].kept,
            queries,
            branches,
            chosen,
            answered_from=[[*branches][-1]],
        )

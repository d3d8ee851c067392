"""RALM: retrieve, filter if wanted, answer in one call. CDIT's tables measure an index and its filter with it.

Ma et al., "Context-Driven Index Trimming" (Findings of EMNLP 2024), section 5.1 and appendices A and B.2 (Table 7): the
ten best passages as background, the question and the task's instruction, a reply of at most 100 tokens, no
demonstrations.

With `rewrite` the instruction is the question with the best passage beside it (appendix A.2, Table 5): the best of
those kept, so that over a trimmed index, or behind a filter, it is one that was let through. Where none is, the
question stands alone.

Differs from the paper: every task has an instruction of its own, where the paper has one for ARC alone; the words of
the prompt are ours; generation stops where it would go on with another block.
"""

from __future__ import annotations

from typing import Any

import dspy

from blendfilter.asking import PromptSettings, TaskWording
from blendfilter.filters.base import Filter
from blendfilter.modules.base import RetrievingMethod, prediction_of
from blendfilter.prompting import WHOLE_READERS, Prompts, TemplateAdapter
from blendfilter.retrieval.base import Searcher


class Response(dspy.Signature):
    """The answer over a background."""

    knowledge: list[str] = dspy.InputField(desc="lines of Title | text")
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


class ResponseToRewritten(dspy.Signature):
    """The answer over a background, to a question with a passage beside it."""

    knowledge: list[str] = dspy.InputField(desc="lines of Title | text")
    question: str = dspy.InputField()
    passage: str = dspy.InputField(desc="Title | text, empty where nothing was kept")
    answer: str = dspy.OutputField()


class RALM(RetrievingMethod):
    """Retrieval and one call.

    Args:
        retriever: an index, or any callable (query, k).
        k: passages.
        filter: any filter; it judges passages by the question.
        rewrite: put the best passage kept beside the question.
        task, prompts, adapter: as in `BlendFilter`.

    The answer is the whole reply.
    """

    method_name = "ralm"

    def __init__(
        self,
        retriever: Searcher,
        k: int = 10,
        *,
        filter: Filter | str | None = None,
        rewrite: bool = False,
        task: TaskWording | str = "hotpotqa",
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        settings = PromptSettings.of(task, prompts, adapter)
        super().__init__(retriever, k, filter, settings)
        self.rewrite = rewrite
        signature = ResponseToRewritten if rewrite else Response
        self.respond = settings.predictor(
            "respond", signature, "cdit/answer", 100, stop=["\n###"]
        )
        if isinstance(self.respond.adapter, TemplateAdapter):
            # A rough match looks at the whole reply.
            self.respond.adapter = self.respond.adapter.with_readers(WHOLE_READERS)

    def arguments(self) -> dict[str, Any]:
        return {**super().arguments(), "rewrite": self.rewrite}

    async def answer(self, question: str) -> dspy.Prediction:
        chosen, branch = await self.look_up(question)
        lines = [passage.line for passage in chosen.kept]
        beside = {"passage": lines[0] if lines else ""} if self.rewrite else {}
        answered = await self.respond.acall(knowledge=lines, question=question, **beside)
        return prediction_of(
            answered.answer, "", chosen.kept, {"q": question}, {"q": branch}, [chosen]
        )

"""RALM: retrieve, filter if asked to, answer in one call. What CDIT's tables measure an index and its filter with.

Ma et al., "Context-Driven Index Trimming" (Findings of EMNLP 2024), section 5.1 and appendices A and B.2 (Table 7): the
ten best passages as background, the question and what its task tells as instruction, a reply of at most 100 tokens, no
demonstrations. In: a question, an index, a model. Out: an answer, and what was retrieved and kept.

With `rewrite` the instruction is the question with the best passage beside it (appendix A.2, Table 5): the best of
those kept, so that over a trimmed index, or behind a filter, it is one that was let through. Where none is, the
question stands alone.

Differs from the paper: every task has an instruction of its own, where the paper has one for ARC alone; the words of
the prompt are ours; generation stops where it would go on with another block.
"""

from __future__ import annotations

from typing import Any

import dspy

from blendfilter.asking import Ask, Wording
from blendfilter.filters.base import Filter
from blendfilter.modules.base import Method, branch_of, check_k, filter_arguments, filtered, flags_of, search
from blendfilter.prompting import WHOLE_READERS, Prompts, TemplateAdapter
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.callables import as_retriever

TEMPLATE = "cdit/answer"
TOKENS = 100
"""Cap of a reply (appendix A.1)."""
STOP = ["\n###"]
"""Where a model starts to invent the next block."""


class Response(dspy.Signature):
    """The answer over a background."""

    knowledge: list[str] = dspy.InputField(desc="lines of Title | text")
    question: str = dspy.InputField()
    answer: str = dspy.OutputField()


class ResponseToRewritten(dspy.Signature):
    """The answer over a background, to a question that one passage was put beside."""

    knowledge: list[str] = dspy.InputField(desc="lines of Title | text")
    question: str = dspy.InputField()
    passage: str = dspy.InputField(desc="Title | text, empty where nothing was kept")
    answer: str = dspy.OutputField()


class RALM(Method):
    """Retrieval and one call.

    Args:
        retriever: an index, or any callable (query, k).
        k: passages.
        filter: any filter; it judges passages by the question.
        rewrite: put the best passage kept beside the question.
        task, prompts, adapter: as in `BlendFilter`.

    The answer is the whole reply. Example::

        bf.RALM(index, filter=bf.PassageFilter(3))(question="…").answer
    """

    def __init__(
        self,
        retriever: Retriever,
        k: int = 10,
        *,
        filter: Filter | None = None,
        rewrite: bool = False,
        task: Wording | str = "hotpotqa",
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        self.retriever = as_retriever(retriever)
        self.k = check_k(k)
        self.select = filter
        self.rewrite = rewrite
        wording = Wording.of(task) if isinstance(task, str) else task
        signature = ResponseToRewritten if rewrite else Response
        self.respond = wording(
            Ask("respond", signature, TEMPLATE, prompts=prompts, adapter=adapter, max_tokens=TOKENS, stop=STOP)
        )
        if isinstance(self.respond.adapter, TemplateAdapter):
            # A rough match looks at all that is said.
            self.respond.adapter = self.respond.adapter.reading(WHOLE_READERS)

    method_name = "ralm"

    def arguments(self) -> dict[str, Any]:
        """K, the filter, and whether the question is rewritten."""
        return {"k": self.k, **filter_arguments(self.select), "rewrite": self.rewrite}

    async def answer(self, question: str) -> dspy.Prediction:
        """One search, the filter's calls, one call."""
        retrieved = await search(self.retriever, question, self.k)
        chosen = await filtered(self.select, question, retrieved)
        lines = [passage.line for passage in chosen.kept]
        beside = {"passage": lines[0] if lines else ""} if self.rewrite else {}
        answered = await self.respond.acall(knowledge=lines, question=question, **beside)
        return dspy.Prediction(
            answer=str(answered.answer),
            reasoning="",
            knowledge=chosen.kept,
            queries={"q": question},
            branches={"q": branch_of(retrieved, chosen)},
            flags=flags_of([chosen], empty=not chosen.kept),
        )

"""Self-consistency: many chains of thought over the same passages, and the answer that most of them arrive at.

Wang et al., "Self-Consistency Improves Chain of Thought Reasoning in Language Models" (ICLR 2023), section 2.

An equal-budget baseline: 10 samples and the short answer are 11 calls, as many as BlendFilter makes (9 samples for its
10 on StrategyQA). The prompt is that of `cot-retrieval`. Differs from the paper: there are passages in the prompt;
answers are compared normalised; a sample that concludes nothing has no vote; the winner's first reasoning goes through
the short answer that all methods share.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy

from blendfilter.asking import PromptSettings, TaskWording
from blendfilter.errors import BadArgument, check_count
from blendfilter.filters.base import Filter
from blendfilter.modules.base import Answering, RetrievingMethod, prediction_of
from blendfilter.modules.multi_hop import conclusion
from blendfilter.prompting import Prompts
from blendfilter.retrieval.base import Searcher
from blendfilter.text import normalize_answer

COLDEST = 0.15
"""DSPy takes 0.7 in place of a temperature up to this one where several samples are drawn: it must be above."""


def majority(conclusions: Sequence[str]) -> tuple[int, list[tuple[str, int]]]:
    """The position of the first conclusion of the largest group, and every group's answer with its votes.

    Empty conclusions abstain, the earliest group wins a tie, and the first conclusion where all abstain.

    >>> majority(["Rome", "", "The Oslo fjord.", "Oslo", "Oslo fjord"])
    (2, [('The Oslo fjord.', 2), ('Rome', 1), ('Oslo', 1)])
    """
    groups: dict[str, list[int]] = {}
    for number, answer in enumerate(conclusions):
        if answer.strip():
            groups.setdefault(normalize_answer(answer) or answer.strip(), []).append(number)
    ranked = sorted(groups.values(), key=len, reverse=True)
    return ranked[0][0] if ranked else 0, [
        (conclusions[group[0]].strip(), len(group)) for group in ranked
    ]


class SelfConsistency(RetrievingMethod):
    """Self-consistency over retrieved passages.

    Args:
        retriever: an index, or any callable (query, k).
        k: passages.
        samples: chains of thought.
        temperature: of the samples; the short answer has the model's own. A model that takes no temperature (a
            reasoning model) draws as it likes.
        filter: any filter.
        task, prompts, adapter: as in `BlendFilter`.

    The prediction has `votes` too: a list of (answer, count), the most first.
    """

    method_name = "self-consistency"

    def __init__(
        self,
        retriever: Searcher,
        k: int = 5,
        *,
        samples: int = 10,
        temperature: float = 0.7,
        filter: Filter | str | None = None,
        task: TaskWording | str = "hotpotqa",
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        samples = check_count("samples", samples)
        if samples > 1 and not temperature > COLDEST:
            raise BadArgument(
                f"temperature must be above {COLDEST} for samples to differ, got {temperature!r}"
            )
        super().__init__(retriever, k, filter, PromptSettings.of(task, prompts, adapter))
        self.samples = samples
        self.temperature = temperature
        self.answering = Answering(
            "blendfilter/external", wording=task, prompts=prompts, adapter=adapter
        )

    def arguments(self) -> dict[str, Any]:
        return {
            "k": self.k,
            "samples": self.samples,
            "temperature": self.temperature,
            **super().arguments(),
        }

    async def answer(self, question: str) -> dspy.Prediction:
        """All samples at once, a vote, and the short answer of the winner."""
        chosen, branch = await self.look_up(question)
        lines = [passage.line for passage in chosen.kept]
        config = {"n": self.samples, "temperature": self.temperature}
        drawn = await self.answering.answer.acall(
            knowledge=lines, question=question, config=config
        )
        reasonings = [str(reasoning) for reasoning in drawn.completions.reasoning]
        winner, votes = majority([conclusion(reasoning) for reasoning in reasonings])
        answer = await self.answering.conclude(question, reasonings[winner])
        return prediction_of(
            answer,
            reasonings[winner],
            chosen.kept,
            {"q": question},
            {"q": branch},
            [chosen],
            votes=votes,
        )

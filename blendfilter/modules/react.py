"""ReAct: reasoning and searching by turns; what a search brings stands right below it.

Yao et al., "ReAct: Synergizing Reasoning and Acting in Language Models" (2022), section 2 and appendix C; in the form
that BlendFilter's appendix C compares with: Self-Ask's lines, the knowledge in another place. Two styles:

::

    lineage         Follow-up: …           Knowledge: passages       Intermediate answer: … So the final answer is: …
    thought-action  Thought 1, Action 1: Search[…]   Observation 1: passages   Thought 2, Action 2: Finish[…]

Calls: one a turn, at most `hops` + 1, one where the final answer is forced, and the short answer.
Differs from the paper: an observation is the K best passages, not an article's first paragraph, and there is no Lookup;
at most `hops` searches; the answer is read from the whole transcript by the last step that all methods share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import dspy

from blendfilter.asking import DemoFields, PromptSettings, TaskWording
from blendfilter.errors import UnknownName
from blendfilter.filters.base import Filter
from blendfilter.modules.multi_hop import (
    FOLLOW_UPS_INSIDE,
    THOUGHTS_AND_ACTIONS,
    Form,
    HopTrail,
    MultiHop,
    reacted,
    thought_and_acted,
)
from blendfilter.prompting import Prompts
from blendfilter.retrieval.base import Retriever


class ReActStep(dspy.Signature):
    """The next lines of a transcript of follow-up questions, with the knowledge that each found."""

    question: str = dspy.InputField()
    transcript: list[str] = dspy.InputField(desc="the lines so far; the last one is to be continued")
    step: str = dspy.OutputField(desc="what the last line goes on with, up to a follow-up or the final answer")


class ThoughtActionStep(dspy.Signature):
    """The next thought and action."""

    question: str = dspy.InputField()
    trajectory: list[str] = dspy.InputField(desc="thoughts, actions and observations so far; the last is continued")
    step: str = dspy.OutputField(desc="a thought, then Search[query] or Finish[answer]")


class ReActStyle(NamedTuple):
    """One way to write ReAct: its lines, its prompt, how a demonstration is written in it."""

    form: Form
    signature: type[dspy.Signature]
    template: str
    lines: str
    worked: DemoFields


STYLES: Mapping[str, ReActStyle] = {
    "lineage": ReActStyle(FOLLOW_UPS_INSIDE, ReActStep, "react/step", "transcript", reacted),
    "thought-action": ReActStyle(
        THOUGHTS_AND_ACTIONS, ThoughtActionStep, "react/thought_action", "trajectory", thought_and_acted
    ),
}


class ReAct(MultiHop):
    """ReAct over an index.

    Args:
        retriever: an index, or any callable (query, k).
        k: passages per search.
        hops: searches at most; then the final answer is forced.
        style: `lineage` (follow-up questions, as BlendFilter's tables have it) or `thought-action` (the paper's own).
        filter: any filter; it judges passages by the query that found them.
        task, prompts, adapter: as in `BlendFilter`.

    The prediction's queries, branches and flags are those of `SelfAsk`.

    Raises:
        UnknownName: no such style.
    """

    method_name = "react"

    def __init__(
        self,
        retriever: Retriever,
        k: int = 5,
        *,
        hops: int = 5,
        style: str = "lineage",
        filter: Filter | None = None,
        task: TaskWording | str = "hotpotqa",
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        if style not in STYLES:
            raise UnknownName.of("style", style, STYLES)
        settings = PromptSettings.of(task, prompts, adapter)
        super().__init__(retriever, k, hops, filter, settings)
        self.style = style
        self.form, signature, template, _, worked = STYLES[style]
        self.step = settings.predictor("step", signature, template, stop=self.form.stop, worked=worked)

    def arguments(self) -> dict[str, Any]:
        """K, the most hops, the style and the filter."""
        return {**super().arguments(), "style": self.style}

    async def reply(self, question: str, trail: HopTrail, cue: str) -> str:
        """What the model writes next; the passages stand in the transcript."""
        lines = {STYLES[self.style].lines: [*trail.transcript, cue]}
        return str((await self.step.acall(question=question, **lines)).step)

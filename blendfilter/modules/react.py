"""ReAct: reasoning and searching by turns, what a search brings standing where it was asked for.

Yao et al., "ReAct: Synergizing Reasoning and Acting in Language Models" (2022), section 2 and appendix C; in the form
that BlendFilter's appendix C compares with: Self-Ask's lines, the knowledge in another place.
In: a question, an index, a model. Out: an answer and the trail of searches. Two styles:

::

    lineage         Follow-up: …           Knowledge: passages       Intermediate answer: … So the final answer is: …
    thought-action  Thought 1, Action 1: Search[…]   Observation 1: passages   Thought 2, Action 2: Finish[…]

Calls: one a turn, at most `hops` + 1, one where the final answer is forced, and the short answer.
Differs from the paper: an observation is the K best passages, not an article's first paragraph, and there is no Lookup;
at most `hops` searches; the answer is read from the whole transcript by the last step that all methods share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NamedTuple

import dspy

from blendfilter.asking import REPLY_TOKENS, Ask, Demonstration, Wording
from blendfilter.errors import UnknownName
from blendfilter.filters.base import Filter
from blendfilter.modules.forms import FollowUps, Form, ThoughtsAndActions, reacted, thought_and_acted
from blendfilter.modules.hopping import MultiHop, Trail
from blendfilter.modules.multi_hop import ACTION_STOP, HOP_STOP
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


class Style(NamedTuple):
    """One way to write ReAct: its lines, its prompt, where generation stops, how a demonstration is told in it."""

    form: Form
    signature: type[dspy.Signature]
    template: str
    stop: tuple[str, ...]
    worked: Callable[[Demonstration], Mapping[str, Any]]


STYLES: Mapping[str, Style] = {
    "lineage": Style(FollowUps(), ReActStep, "react/step", HOP_STOP, reacted),
    "thought-action": Style(
        ThoughtsAndActions(), ThoughtActionStep, "react/thought_action", ACTION_STOP, thought_and_acted
    ),
}


class ReAct(MultiHop):
    """ReAct over an index.

    Args:
        retriever: an index, or any callable (query, k).
        k: passages per search.
        hops: searches at most; then the final answer is asked for outright.
        style: `lineage` (follow-up questions, as BlendFilter's tables have it) or `thought-action` (the paper's own).
        filter: any filter; it judges passages by the query that found them.
        task, prompts, adapter: as in `BlendFilter`.

    The prediction's queries, branches and flags are those of `SelfAsk`.

    Raises:
        UnknownName: a style that nobody knows.
    """

    def __init__(
        self,
        retriever: Retriever,
        k: int = 5,
        *,
        hops: int = 5,
        style: str = "lineage",
        filter: Filter | None = None,
        task: Wording | str = "hotpotqa",
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        if style not in STYLES:
            raise UnknownName.of("style", style, STYLES)
        wording = Wording.of(task) if isinstance(task, str) else task
        super().__init__(retriever, k, hops, filter, wording, prompts, adapter)
        self.style = style
        self.form, signature, template, stop, worked = STYLES[style]
        self.step = wording(
            Ask(
                "step", signature, template,
                prompts=prompts, adapter=adapter, max_tokens=REPLY_TOKENS, stop=list(stop),
            ),
            worked=worked,
        )  # fmt: skip

    method_name = "react"

    def arguments(self) -> dict[str, Any]:
        """K, the most hops, the style and the filter."""
        return {**super().arguments(), "style": self.style}

    async def answer(self, question: str) -> dspy.Prediction:
        """Search by search, until the model concludes or the hops are used up."""
        trail = Trail()
        for turn in count(1):
            hop = await self.turn(question, trail, self.form.cue(turn))
            if not hop.follow_up or turn > self.hops:
                break
            trail.say(self.form.asked(turn, hop.follow_up))
            trail.show(self.form.found(turn), await self.look_up(trail, hop.follow_up))
        return await self.finish(question, trail, turn, hop)

    async def reply(self, question: str, trail: Trail, cue: str) -> str:
        """What the model writes next; the passages stand in the transcript."""
        lines = "transcript" if self.style == "lineage" else "trajectory"
        return str((await self.step.acall(question=question, **{lines: [*trail.lines, cue]})).step)

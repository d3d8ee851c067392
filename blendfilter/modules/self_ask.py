"""Self-Ask: the model asks itself follow-up questions, each is searched for, and it answers them one by one.

Press et al., "Measuring and Narrowing the Compositionality Gap in Language Models" (2022), section 3; in the form of
Yoran et al. (2023) and Shao et al. (2023), which BlendFilter's appendix C compares with: what a search brings is put
before the question.

::

    question -> follow-up -> K -> intermediate answer -> follow-up -> K -> … -> final answer -> short answer

Calls: one a turn, at most `hops` + 1, one where the final answer is forced, and the short answer.
Differs from the paper: the passages of a search stand in the prompt, in place of one answer from a search engine; at
most `hops` searches; the answer is read from the whole transcript by the last step that all methods share.
"""

from __future__ import annotations

import dspy

from blendfilter.asking import PromptSettings, TaskWording
from blendfilter.filters.base import Filter
from blendfilter.modules.multi_hop import FOLLOW_UPS, HopTrail, MultiHop, self_asked
from blendfilter.prompting import Prompts
from blendfilter.retrieval.base import Retriever


class SelfAskStep(dspy.Signature):
    """The next lines of a transcript of follow-up questions, with the knowledge found so far."""

    knowledge: list[str] = dspy.InputField(desc="lines of Title | text, the newest first")
    question: str = dspy.InputField()
    transcript: list[str] = dspy.InputField(desc="the lines so far; the last one is to be continued")
    step: str = dspy.OutputField(desc="what the last line goes on with, up to a follow-up or the final answer")


class SelfAsk(MultiHop):
    """Self-Ask with retrieval.

    Args:
        retriever: an index, or any callable (query, k).
        k: passages per follow-up.
        hops: searches at most; then the final answer is forced.
        filter: any filter; it judges passages by the follow-up that found them.
        task, prompts, adapter: as in `BlendFilter`.

    The prediction's queries and branches are `hop_1`, `hop_2` …; its flags count `hops_exhausted`, `unreadable_hop` (a
    reply that neither asks nor concludes) and `invented_observation` (a reply that went on after its follow-up).
    """

    method_name = "self-ask"
    form = FOLLOW_UPS

    def __init__(
        self,
        retriever: Retriever,
        k: int = 5,
        *,
        hops: int = 5,
        filter: Filter | None = None,
        task: TaskWording | str = "hotpotqa",
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        settings = PromptSettings.of(task, prompts, adapter)
        super().__init__(retriever, k, hops, filter, settings)
        self.step = settings.predictor("step", SelfAskStep, "self_ask/step", stop=self.form.stop, worked=self_asked)

    async def reply(self, question: str, trail: HopTrail, cue: str) -> str:
        """What the model writes next, with everything kept so far above the question."""
        lines = [passage.line for passage in trail.knowledge]
        replied = await self.step.acall(knowledge=lines, question=question, transcript=[*trail.transcript, cue])
        return str(replied.step)

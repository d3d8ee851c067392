"""Self-Ask: the model asks itself follow-up questions, each is searched for, and it answers them one by one.

Press et al., "Measuring and Narrowing the Compositionality Gap in Language Models" (2022), section 3; in the form of
Yoran et al. (2023) and Shao et al. (2023), which BlendFilter's appendix C compares with: what a search brings is put
before the question. In: a question, an index, a model. Out: an answer and the trail of follow-ups.

::

    question -> follow-up -> K -> intermediate answer -> follow-up -> K -> … -> final answer -> short answer

Calls: one a turn, at most `hops` + 1, one where the final answer is forced, and the short answer.
Differs from the paper: the passages of a search stand in the prompt, in place of one answer from a search engine; at
most `hops` searches; the answer is read from the whole transcript by the last step that all methods share.
"""

from __future__ import annotations

from itertools import count

import dspy

from blendfilter.asking import REPLY_TOKENS, Ask, Wording
from blendfilter.filters.base import Filter
from blendfilter.modules.forms import FollowUps, self_asked
from blendfilter.modules.hopping import MultiHop, Trail
from blendfilter.modules.multi_hop import HOP_STOP
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
        hops: searches at most; then the final answer is asked for outright.
        filter: any filter; it judges passages by the follow-up that found them.
        task, prompts, adapter: as in `BlendFilter`.

    The prediction's queries and branches are `hop_1`, `hop_2` …; its flags count `hops_exhausted`, `unreadable_hop` (a
    reply that neither asks nor concludes) and `invented_observation` (a reply that went on after its follow-up).
    """

    def __init__(
        self,
        retriever: Retriever,
        k: int = 5,
        *,
        hops: int = 5,
        filter: Filter | None = None,
        task: Wording | str = "hotpotqa",
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        wording = Wording.of(task) if isinstance(task, str) else task
        super().__init__(retriever, k, hops, filter, wording, prompts, adapter)
        self.form = FollowUps()
        self.step = wording(
            Ask(
                "step", SelfAskStep, "self_ask/step",
                prompts=prompts, adapter=adapter, max_tokens=REPLY_TOKENS, stop=list(HOP_STOP),
            ),
            worked=self_asked,
        )  # fmt: skip

    method_name = "self-ask"

    async def answer(self, question: str) -> dspy.Prediction:
        """Follow-up by follow-up, until the model concludes or the hops are used up."""
        trail = Trail()
        for turn in count(1):
            hop = await self.turn(question, trail, self.form.cue(turn))
            if not hop.follow_up or turn > self.hops:
                break
            trail.say(self.form.asked(turn, hop.follow_up))
            await self.look_up(trail, hop.follow_up)
        return await self.finish(question, trail, turn, hop)

    async def reply(self, question: str, trail: Trail, cue: str) -> str:
        """What the model writes next, with everything kept so far above the question."""
        lines = [passage.line for passage in trail.knowledge]
        said = await self.step.acall(knowledge=lines, question=question, transcript=[*trail.lines, cue])
        return str(said.step)

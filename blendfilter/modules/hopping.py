"""What Self-Ask and ReAct share: a search for each follow-up, the trail of a question's hops, the forced end.

In: a follow-up that a model asked. Out: the passages kept for it, and in the end a `dspy.Prediction`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import dspy

from blendfilter.asking import SHORT_TOKENS, STOP, Ask, Wording
from blendfilter.errors import BadArgument
from blendfilter.filters.base import Filter
from blendfilter.modules.answering import ShortAnswer
from blendfilter.modules.base import (
    Branch,
    Method,
    branch_of,
    check_k,
    filter_arguments,
    filtered,
    flags_of,
    search,
    union,
)
from blendfilter.modules.forms import Form, forced_answer
from blendfilter.modules.multi_hop import Hop, shown
from blendfilter.prompting import Prompts
from blendfilter.records import Passage, one_line
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.callables import as_retriever


class Trail:
    """One question's hops so far: `lines` is the transcript, `told` the same without the passages in it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.told: list[str] = []
        self.queries: dict[str, str] = {}
        self.branches: dict[str, Branch] = {}
        self.chosen: list[dspy.Prediction] = []
        self.events: Counter[str] = Counter()

    def say(self, line: str) -> None:
        """A line of the model's, or one around it."""
        self.lines.append(one_line(line))
        self.told.append(one_line(line))

    def show(self, head: str, passages: Iterable[Passage]) -> None:
        """Passages inside the transcript."""
        self.lines += [head, *(shown(passage.line) for passage in passages)]

    @property
    def knowledge(self) -> list[Passage]:
        """Everything kept so far, each passage once, the newest search first."""
        return union(branch.kept for branch in reversed(self.branches.values()))


class MultiHop(Method):
    """Base class of the methods that search for follow-up questions. A subclass writes its loop, and what a turn shows.

    Calls: a turn each (at most `hops` + 1), one more where the final answer had to be forced, and the short answer.
    """

    form: Form

    def __init__(
        self,
        retriever: Retriever,
        k: int,
        hops: int,
        filter: Filter | None,
        wording: Wording,
        prompts: Prompts | None,
        adapter: dspy.Adapter | None,
    ) -> None:
        super().__init__()
        if isinstance(hops, bool) or not isinstance(hops, int) or hops < 1:
            raise BadArgument(f"hops must be a whole number of at least 1 (each is one search), got {hops!r}")
        self.retriever = as_retriever(retriever)
        self.k = check_k(k)
        self.hops = hops
        self.select = filter
        self.short_answer = wording(
            Ask(
                "short_answer", ShortAnswer, "blendfilter/short_answer",
                prompts=prompts, adapter=adapter, max_tokens=SHORT_TOKENS, stop=STOP,
            )
        )  # fmt: skip

    def arguments(self) -> dict[str, Any]:
        """K, the most hops, and the filter."""
        return {"k": self.k, "hops": self.hops, **filter_arguments(self.select)}

    async def reply(self, question: str, trail: Trail, cue: str) -> str:
        """What the model writes after the trail and the cue."""
        raise NotImplementedError

    async def turn(self, question: str, trail: Trail, cue: str) -> Hop:
        """One turn of the model's: read, and entered in the trail as far as it was said before anything was asked."""
        hop = self.form.read(await self.reply(question, trail, cue))
        trail.events["invented_observation"] += hop.invented
        trail.say(f"{cue} {hop.said}")
        return hop

    async def look_up(self, trail: Trail, follow_up: str) -> list[Passage]:
        """The passages kept for a follow-up; the filter judges them by it too."""
        name = f"hop_{len(trail.queries) + 1}"
        retrieved = await search(self.retriever, follow_up, self.k)
        chosen = await filtered(self.select, follow_up, retrieved)
        trail.queries[name] = follow_up
        trail.branches[name] = branch_of(retrieved, chosen)
        trail.chosen.append(chosen)
        return list(chosen.kept)

    async def finish(self, question: str, trail: Trail, turn: int, hop: Hop) -> dspy.Prediction:
        """The end of the last turn, its final answer forced where it has none, and the short answer."""
        final = hop.final
        if not final:
            trail.events["hops_exhausted" if hop.follow_up else "unreadable_hop"] += 1
            final = forced_answer(self.form, turn, await self.reply(question, trail, self.form.forced(turn)))
        trail.say(self.form.concluded(turn, final))
        reasoning = "\n".join(trail.told)
        short = await self.short_answer.acall(context=reasoning, question=question)
        knowledge = trail.knowledge
        return dspy.Prediction(
            answer=str(short.answer),
            reasoning=reasoning,
            knowledge=knowledge,
            queries=trail.queries,
            branches=trail.branches,
            flags={**flags_of(trail.chosen, empty=not knowledge), **trail.events},
        )

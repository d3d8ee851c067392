"""BlendFilter's knowledge filter: the model judges its retrieved knowledge, then names what is relevant by number.

Wang et al., "BlendFilter" (EMNLP 2024), section 3.3, K^f = M(K | Prompt(q, K)); prompts after appendix F.
In: a question and K passages. Out: the passages kept, in rank order. Calls: topic (once a question), check, ids.

Differs from the paper: nothing in the steps. What it leaves open is decided so: an unreadable or negated reply is asked
for once more with one added line (`ids_again`), then the whole branch is kept; both events are counted apart; an
explicit "none" keeps nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy

from blendfilter.asking import REPLY_TOKENS, SHORT_TOKENS, STOP, Ask, Wording
from blendfilter.filters.base import Filter
from blendfilter.filters.reading import IdsRead, read_ids
from blendfilter.prompting import Prompts
from blendfilter.records import Passage
from blendfilter.retrieval.callables import as_passage


class Topic(dspy.Signature):
    """The general topic of a question."""

    question: str = dspy.InputField()
    topic: str = dspy.OutputField()


class Check(dspy.Signature):
    """Which pieces of knowledge bear on the question, one by one."""

    topic: str = dspy.InputField(default="")
    offer_none: bool = dspy.InputField(default=False)
    knowledge: list[str] = dspy.InputField(desc="lines of Title | text")
    question: str = dspy.InputField()
    relevance: str = dspy.OutputField()


class Ids(dspy.Signature):
    """The numbers of the relevant knowledge."""

    context: str = dspy.InputField(desc="the judgement of the check step")
    offer_none: bool = dspy.InputField(default=False)
    knowledge: list[str] = dspy.InputField(desc="lines of Title | text")
    question: str = dspy.InputField()
    ids: str = dspy.OutputField()


class KnowledgeFilter(Filter):
    """Keeps the passages that the model itself finds relevant.

    Args:
        offer_none: whether the prompt allows that nothing is relevant (StrategyQA's wording).
        ask_topic: whether the topic is asked for, to be set aside (HotPotQA and 2Wiki; not on StrategyQA).
        json_schema: hold the ids reply to a JSON schema; None: where the model's profile says that its server can.
        wording: a task's instructions for these steps. prompts, adapter: see `blendfilter.asking.Ask`.

    The result's `status` is `ids`, `none`, `suspect` or `unparseable` (the last two: the branch was kept whole), or
    `empty` where there was nothing to filter; `flags` counts the events on the way.
    """

    def __init__(
        self,
        *,
        offer_none: bool = False,
        ask_topic: bool = True,
        json_schema: bool | None = None,
        wording: Wording | None = None,
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        shared: dict[str, Any] = {"prompts": prompts, "adapter": adapter, "stop": STOP}
        self.offer_none = offer_none
        self.ask_topic = ask_topic
        self.json_schema = json_schema
        worded = wording or Wording()
        self.topic = worded(Ask("topic", Topic, "blendfilter/topic", max_tokens=SHORT_TOKENS, **shared))
        self.check = worded(Ask("check", Check, "blendfilter/check", max_tokens=REPLY_TOKENS, **shared))
        self.ids = worded(Ask("ids", Ids, "blendfilter/ids", max_tokens=SHORT_TOKENS, **shared))
        self.ids_again = worded(Ask("ids_again", Ids, "blendfilter/ids_again", max_tokens=SHORT_TOKENS, **shared))

    def arguments(self) -> dict[str, Any]:
        """Its three switches."""
        return {"offer_none": self.offer_none, "ask_topic": self.ask_topic, "json_schema": self.json_schema}

    async def topic_of(self, question: str) -> str:
        """The question's topic; empty where this task asks for none. It depends on the question alone: ask once."""
        if not self.ask_topic:
            return ""
        return str((await self.topic.acall(question=question)).topic)

    async def aforward(self, question: str, passages: Sequence[Passage], topic: str | None = None) -> dspy.Prediction:
        """The passages kept; `topic` where it is known already."""
        passages = [as_passage(passage) for passage in passages]
        if not passages:
            return dspy.Prediction(kept=[], status="empty", reason="", flags={})
        if topic is None:
            topic = await self.topic_of(question)
        shown = {
            "knowledge": [passage.line for passage in passages],
            "question": question,
            "offer_none": self.offer_none,
        }
        checked = await self.check.acall(topic=topic, **shown)
        reason = str(checked.relevance)
        read, flags = await self._ids(reason, shown, len(passages))
        kept = list(passages) if read.status in ("suspect", "unparseable") else [passages[i] for i in sorted(read.ids)]
        return dspy.Prediction(kept=kept, status=read.status, reason=reason, flags=flags)

    def _can_hold_to_schema(self) -> bool:
        if self.json_schema is not None:
            return self.json_schema
        profile = getattr(self.ids.lm or dspy.settings.lm, "profile", None)
        return bool(profile and profile.json_schema)

    async def _ids(self, context: str, shown: dict[str, Any], k: int) -> tuple[IdsRead, dict[str, int]]:
        config = {"response_format": _schema(k)} if self._can_hold_to_schema() else {}
        first = read_ids(str((await self.ids.acall(context=context, **shown, config=config)).ids), k)
        flags = {_EVENTS[first.status]: 1} if first.status in _EVENTS else {}
        if first.status in ("ids", "none"):
            return first, flags
        second = read_ids(str((await self.ids_again.acall(context=context, **shown, config=config)).ids), k)
        if second.status == "none":
            flags["explicit_none"] = 1
        return (second if second.status in ("ids", "none") else first), flags


_EVENTS = {"none": "explicit_none", "suspect": "suspect_ids", "unparseable": "unparseable_ids"}


def _schema(k: int) -> dict[str, Any]:
    """The JSON schema of an ids reply over k passages."""
    numbers = {"type": "array", "items": {"type": "integer", "enum": list(range(k))}, "maxItems": k}
    schema = {"type": "object", "properties": {"ids": numbers}, "required": ["ids"], "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": "ids", "schema": schema, "strict": True}}

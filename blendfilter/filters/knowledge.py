"""BlendFilter's knowledge filter: the model judges its retrieved knowledge, then names what is relevant by number.

Wang et al., "BlendFilter" (EMNLP 2024), section 3.3, K^f = M(K | Prompt(q, K)); prompts after appendix F.
In: a question and K passages. Out: the passages kept, in rank order. Calls: topic (once a question), check, ids.

Differs from the paper: nothing in the steps. What it leaves open is decided so: an unreadable or negated reply is asked
for once more with one added line (`ids_again`), then the whole branch is kept; both events are counted apart, and so
are replies that are empty or cut off, which are not called unparseable; an explicit "none" keeps nothing. Above five
passages the caps of both replies grow with them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

import dspy

from blendfilter.asking import REPLY_TOKENS, SHORT_TOKENS, STOP, Ask, Wording
from blendfilter.context import NOTES, rejoined, setting
from blendfilter.filters.base import Filter
from blendfilter.filters.ids import IdsRead, read_ids
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
        shown = shown_to_judge(question, passages, self.offer_none)
        cap = {"max_tokens": room(REPLY_TOKENS, 48, len(passages))}
        reason = str((await self.check.acall(topic=topic, **shown, config=cap)).relevance)
        choice = await chosen(
            lambda: self._ids(self.ids, reason, shown), lambda: self._ids(self.ids_again, reason, shown)
        )
        return dspy.Prediction(kept=choice.of(passages), status=choice.read.status, reason=reason, flags=choice.flags)

    async def _ids(self, ids: Ask, context: str, shown: dict[str, Any]) -> Reading:
        return await ask_ids(ids, context, shown, self.json_schema)


def shown_to_judge(question: str, passages: Sequence[Passage], offer_none: bool) -> dict[str, Any]:
    """The inputs that every step of a filter by model has."""
    return {"knowledge": [passage.line for passage in passages], "question": question, "offer_none": offer_none}


def room(cap: int, each: int, k: int) -> int:
    """A reply's cap in tokens: `cap` up to five passages (the paper's K), `each` more for every further one.

    >>> room(32, 4, 5), room(32, 4, 15)
    (32, 72)
    """
    return cap + each * max(0, k - 5)


def holds_to_schema(asked: bool | None, predictor: Ask) -> bool:
    """Whether a reply is held to a JSON schema: as asked, else where the model's profile says that its server can."""
    if asked is not None:
        return asked
    profile = getattr(predictor.lm or dspy.settings.lm, "profile", None)
    return bool(profile and profile.json_schema)


class Reply(NamedTuple):
    """What a predictor said; `cut`: it was cut off at its cap."""

    text: str
    cut: bool

    @property
    def whole(self) -> bool:
        """Whether there is something to read, and its end."""
        return bool(self.text.strip()) and not self.cut


class Reading(NamedTuple):
    """How a reply's ids were read, and whether it was a whole reply."""

    read: IdsRead
    whole: bool

    @property
    def event(self) -> str:
        """What is counted; nothing where ids were read. What is empty or cut off is counted as that already."""
        return "" if self.read.status == "unparseable" and not self.whole else _EVENTS.get(self.read.status, "")


async def ask_ids(ids: Ask, context: str, shown: dict[str, Any], json_schema: bool | None) -> Reading:
    """One call for the ids that a judgement (`context`) comes to, read."""
    k = len(shown["knowledge"])
    config: dict[str, Any] = {"max_tokens": room(SHORT_TOKENS, 4, k)}
    if holds_to_schema(json_schema, ids):
        config["response_format"] = schema_of("ids", {"ids": ids_schema(k)})
    reply = await said(ids, context=context, **shown, config=config)
    return Reading(read_ids(reply.text, k, cut=reply.cut), reply.whole)


async def said(predictor: Ask, **inputs: Any) -> Reply:
    """A predictor's reply."""
    (name,) = predictor.signature.output_fields
    with rejoined():
        outer = NOTES.get()
        with setting(NOTES, []) as notes:
            try:
                text = str((await predictor.acall(**inputs))[name])
            finally:
                if outer is not None:
                    outer.extend(notes)
    return Reply(text, any(note.event == "cut_reply" for note in notes))


class Choice(NamedTuple):
    """Which ids were chosen, how that was read, and the events on the way."""

    read: IdsRead
    flags: dict[str, int]

    def of(self, passages: Sequence[Passage]) -> list[Passage]:
        """The passages kept, in rank order: all of them where the reply could not be read."""
        if self.read.status in ("suspect", "unparseable"):
            return list(passages)
        return [passages[i] for i in sorted(self.read.ids)]


async def chosen(first: Callable[[], Awaitable[Reading]], again: Callable[[], Awaitable[Reading]]) -> Choice:
    """The ids of the `first` reply; where it is unreadable or suspect, those that are asked for `again`, once."""
    reading = await first()
    flags = {reading.event: 1} if reading.event else {}
    if reading.read.status in ("ids", "none"):
        return Choice(reading.read, flags)
    second = (await again()).read
    if second.status == "none":
        flags["explicit_none"] = 1
    return Choice(second if second.status in ("ids", "none") else reading.read, flags)


_EVENTS = {"none": "explicit_none", "suspect": "suspect_ids", "unparseable": "unparseable_ids"}


def ids_schema(k: int) -> dict[str, Any]:
    """The JSON schema of a list of ids of k passages."""
    return {"type": "array", "items": {"type": "integer", "enum": list(range(k))}, "maxItems": k}


def schema_of(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    """A reply's format: an object of these properties and no others."""
    schema = {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}
    return {"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": True}}

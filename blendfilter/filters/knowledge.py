"""BlendFilter's knowledge filter: the model judges its retrieved knowledge, then names what is relevant by number.

Wang et al., "BlendFilter" (EMNLP 2024), section 3.3, K^f = M(K | Prompt(q, K)); prompts after appendix F. Two filters:

`KnowledgeFilter`  topic (once a question), check, ids: the paper's. Differs from the paper: nothing in the steps.
`OneCallFilter`    judge: ours and cheaper. The judgement and the ids are one reply, which ends with a line of ids; the
                   topic, whose memorised facts the check sets aside, is dropped.

What the paper leaves open is decided so for both: a reply whose ids are unreadable or negated is requested once more
with one added line (`ids_again`), then the whole branch is kept; both events are counted apart, and so are replies that
are empty or cut off, which are not called unparseable; an explicit "none" keeps nothing. Above five passages the caps
of all replies grow with them. Where the server can, the ids follow a JSON schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import dspy

from blendfilter.asking import REPLY_TOKENS, SHORT_TOKENS, Ask, PromptSettings, TaskWording
from blendfilter.filters.base import Filter, noted, selection
from blendfilter.filters.ids import IdsRead, in_own_words, read_ids, unfenced
from blendfilter.lm.profiles import split_thinking
from blendfilter.prompting import Prompts
from blendfilter.quoting import end_of
from blendfilter.records import Passage
from blendfilter.retrieval.callables import as_passage

_JUDGE_TOKENS = REPLY_TOKENS + 128
"""Cap of a judgement with its ids, which as JSON needs some more."""
_MANY = 500
"""Values that a schema may list (OpenAI's limit)."""
_UNPARSEABLE = IdsRead((), "unparseable")
_EVENTS = {"none": "explicit_none", "suspect": "suspect_ids", "unparseable": "unparseable_ids"}
_NUMBERS_ALONE = re.compile(r"(?:[\W\d_]|\band\b|\bnone\b)+", re.IGNORECASE)
_IDS = re.compile(
    r"(?:^[^\w\n]{0,12}(?:the\s)?(?:relevant\s)?|(?<=[.;]\s)[^\w\n]{0,4}(?:relevant\s)?|(?<=\"))"
    r"\bids?\b(?:[^\w\n]{0,8}:|[^\w\n]{0,8}$)",
    re.IGNORECASE | re.MULTILINE,
)
"""The opening of the last line, or of a sentence; inside one, a judgement may quote it of a passage."""


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


class CheckAndIds(dspy.Signature):
    """Which pieces of knowledge bear on the question, one by one, and their numbers in the last line."""

    offer_none: bool = dspy.InputField(default=False)
    knowledge: list[str] = dspy.InputField(desc="lines of Title | text")
    question: str = dspy.InputField()
    judgement: str = dspy.OutputField()


class KnowledgeFilter(Filter):
    """Keeps the passages that the model itself finds relevant.

    Args:
        offer_none: whether the prompt allows that nothing is relevant (StrategyQA's wording).
        ask_topic: whether to ask for the topic, which the check sets aside (HotPotQA and 2Wiki; not on StrategyQA).
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
        wording: TaskWording | None = None,
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        self.offer_none = offer_none
        self.ask_topic = ask_topic
        self.json_schema = json_schema
        settings = PromptSettings.of(wording, prompts, adapter)
        self.topic = settings.predictor("topic", Topic, "blendfilter/topic", SHORT_TOKENS)
        self.check = settings.predictor("check", Check, "blendfilter/check")
        self.ids = settings.predictor("ids", Ids, "blendfilter/ids", SHORT_TOKENS)
        self.ids_again = settings.predictor("ids_again", Ids, "blendfilter/ids_again", SHORT_TOKENS)

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
            return selection()
        if topic is None:
            topic = await self.topic_of(question)
        inputs = _inputs(question, passages, self.offer_none)
        cap = {"max_tokens": room(REPLY_TOKENS, 48, len(passages))}
        reason = str((await self.check.acall(topic=topic, **inputs, config=cap)).relevance)
        return await select_ids(
            passages,
            reason,
            lambda: ask_ids(self.ids, self.json_schema, context=reason, **inputs),
            lambda: ask_ids(self.ids_again, self.json_schema, context=reason, **inputs),
        )


class OneCallFilter(Filter):
    """Keeps the passages that the model itself finds relevant, in one call.

    Args:
        offer_none: whether the prompt allows that nothing is relevant (StrategyQA's wording).
        json_schema: hold the reply to a JSON schema; None: where the model's profile says that its server can.
        wording, prompts, adapter: as in `KnowledgeFilter`.

    `status`, `reason` and `flags` are those of `KnowledgeFilter`.
    """

    def __init__(
        self,
        *,
        offer_none: bool = False,
        json_schema: bool | None = None,
        wording: TaskWording | None = None,
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        self.offer_none = offer_none
        self.json_schema = json_schema
        settings = PromptSettings.of(wording, prompts, adapter)
        self.judge = settings.predictor("judge", CheckAndIds, "blendfilter/judge", _JUDGE_TOKENS)
        self.ids_again = settings.predictor("ids_again", Ids, "blendfilter/ids_again", SHORT_TOKENS)

    def arguments(self) -> dict[str, Any]:
        """Its two switches."""
        return {"offer_none": self.offer_none, "json_schema": self.json_schema}

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        """The passages kept."""
        passages = [as_passage(passage) for passage in passages]
        if not passages:
            return selection()
        k = len(passages)
        inputs = _inputs(question, passages, self.offer_none)
        config: dict[str, Any] = {"max_tokens": room(_JUDGE_TOKENS, 64, k)}
        if holds_to_schema(self.json_schema, self.judge):
            config["response_format"] = schema_of("judgement", _judgement_schema(k))
        reply = await reply_of(self.judge, **inputs, config=config)

        async def at_its_end() -> IdsReply:
            return _UNPARSEABLE if reply.cut else read_judgement(reply.text, k), reply.whole

        again = lambda: ask_ids(self.ids_again, self.json_schema, context=reply.text, **inputs)  # noqa: E731
        return await select_ids(passages, reply.text, at_its_end, again)


# --- asking for ids ---------------------------------------------------------------------------------------------------


def _inputs(question: str, passages: Sequence[Passage], offer_none: bool) -> dict[str, Any]:
    """The inputs that every step of a filter by model has."""
    return {"knowledge": [each.line for each in passages], "question": question, "offer_none": offer_none}


class PredictorReply(NamedTuple):
    """The text of a predictor's one output field; `cut`: it was cut off at its cap."""

    text: str
    cut: bool

    @property
    def whole(self) -> bool:
        """Whether there is something to read, and its end."""
        return bool(self.text.strip()) and not self.cut


IdsReply: TypeAlias = tuple[IdsRead, bool]
"""How a reply's ids were read, and whether it was a whole reply."""


async def reply_of(predictor: Ask, **inputs: Any) -> PredictorReply:
    """A predictor's reply."""
    (name,) = predictor.signature.output_fields
    with noted() as notes:
        text = str((await predictor.acall(**inputs))[name])
    return PredictorReply(text, any(note.event == "cut_reply" for note in notes))


async def ask_ids(
    predictor: Ask, json_schema: bool | None, *, own: Callable[[str], str] = str, **inputs: Any
) -> IdsReply:
    """One call for ids into `knowledge`, read; `own` leaves of a reply what may name ids."""
    k = len(inputs["knowledge"])
    config: dict[str, Any] = {"max_tokens": room(SHORT_TOKENS, 4, k)}
    if holds_to_schema(json_schema, predictor):
        config["response_format"] = schema_of("ids", {"ids": ids_schema(k)})
    reply = await reply_of(predictor, **inputs, config=config)
    return read_ids(own(reply.text), k, cut=reply.cut), reply.whole


async def choose_ids(
    first: Callable[[], Awaitable[IdsReply]], again: Callable[[], Awaitable[IdsReply]]
) -> tuple[IdsRead, dict[str, int]]:
    """The ids of the `first` reply (unreadable or suspect: of the second request, `again`), and the events by name."""
    read, whole = await first()
    # What is empty or cut off is counted as that already, not as unparseable.
    event = "" if read.status == "unparseable" and not whole else _EVENTS.get(read.status, "")
    flags = {event: 1} if event else {}
    if read.status in ("ids", "none"):
        return read, flags
    second, _ = await again()
    if second.status == "none":
        flags["explicit_none"] = 1
    return second if second.status in ("ids", "none") else read, flags


async def select_ids(
    passages: Sequence[Passage],
    reason: str,
    first: Callable[[], Awaitable[IdsReply]],
    again: Callable[[], Awaitable[IdsReply]],
) -> dspy.Prediction:
    """The passages that `choose_ids` leaves, in rank order: all of them where no reply could be read."""
    read, flags = await choose_ids(first, again)
    unread = read.status in ("suspect", "unparseable")
    kept = list(passages) if unread else [passages[i] for i in sorted(read.ids)]
    return selection(kept, read.status, reason, flags=flags)


def room(cap: int, more: int, k: int) -> int:
    """A reply's cap in tokens: `cap` up to five passages (the paper's K), `more` for every further one."""
    return cap + more * max(0, k - 5)


def holds_to_schema(wanted: bool | None, predictor: Ask) -> bool:
    """Whether a reply must follow a JSON schema; None: where the model's profile says that its server can."""
    if wanted is not None:
        return wanted
    profile = getattr(predictor.lm or dspy.settings.lm, "profile", None)
    return bool(profile and profile.json_schema)


def ids_schema(k: int) -> dict[str, Any]:
    """The JSON schema of a list of ids of k passages; a range where there are too many to list."""
    some = {"enum": list(range(k))} if k <= _MANY else {"minimum": 0, "maximum": k - 1}
    return {"type": "array", "items": {"type": "integer", **some}, "maxItems": k}


def schema_of(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    """A reply's format: an object of these properties and no others."""
    return {"type": "json_schema", "json_schema": {"name": name, "schema": object_schema(properties), "strict": True}}


def object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object that has all of these properties and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


# --- reading a judgement that ends with its ids -----------------------------------------------------------------------


def read_judgement(reply: str, k: int) -> IdsRead:
    """The ids at the end of a judgement of `k` passages: what stands from its last "Ids:" on, or in its JSON.

    A judgement of several lines that ends without them, or in the middle of its JSON, is `unparseable`: what it named
    so far need not be all. JSON that calls some relevant and lists none is `suspect`.

    >>> read_judgement("0 names the town: relevant.\\n1 is about a hill: irrelevant.\\nIds: 0", 2)
    IdsRead(ids=(0,), status='ids')
    """
    own = split_thinking(reply)[1].strip()
    if (json_text := unfenced(own)).startswith("{"):
        return _read_json(json_text, k)
    return in_own_words(end_of(own), lambda text: _read_text(text.strip(), k))


def _read_text(text: str, k: int) -> IdsRead:
    if openings := list(_IDS.finditer(text)):
        return read_ids(text[openings[-1].start() :], k)
    return read_ids(text, k) if _NUMBERS_ALONE.fullmatch(text) else _UNPARSEABLE


def _read_json(text: str, k: int) -> IdsRead:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _UNPARSEABLE
    if not isinstance(value.get("ids"), list):
        return _UNPARSEABLE
    read, judged = read_ids(text, k), value.get("judgements")
    verdicts = [each.get("relevant") for each in judged if isinstance(each, dict)] if isinstance(judged, list) else []
    return IdsRead((), "suspect") if read.status == "none" and True in verdicts else read


def _judgement_schema(k: int) -> dict[str, Any]:
    number = {"type": "integer", "enum": list(range(k))}
    judgement = object_schema({"id": number, "reason": {"type": "string"}, "relevant": {"type": "boolean"}})
    return {"judgements": {"type": "array", "items": judgement, "maxItems": k}, "ids": ids_schema(k)}

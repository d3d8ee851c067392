"""BlendFilter's knowledge filter: the model judges its retrieved knowledge, then names what is relevant by number.

Wang et al., "BlendFilter" (EMNLP 2024), section 3.3, K^f = M(K | Prompt(q, K)); prompts after appendix F. Three filters
of one kind:

`KnowledgeFilter`  topic (once a question), check, ids: the paper's. Differs from the paper: nothing in the steps.
`OneCallFilter`    judge: ours and cheaper. The judgement and the ids are one reply, which ends with a line of ids; the
                   topic, whose memorised facts the check sets aside, is dropped.
`PointwiseFilter`  relevant: ours. Each passage is judged alone, yes or no, in a prompt of its own: a passage that three
                   queries bring is judged once in a run, and a small model learns it from short prompts.

What the paper leaves open is decided so for the first two: a reply whose ids are unreadable or negated is requested
once more with one added line (`ids_again`), then the whole branch is kept; both events are counted apart, and so are
replies that are empty or cut off, which are not called unparseable; an explicit "none" keeps nothing. Above five
passages the caps of all replies grow with them. Where the server can, the ids follow a JSON schema.

A judgement that is cut off at its cap drops nothing that it did not reach. The check is requested once more with twice
the room, unless it repeats itself; where that is cut too, and where a `judge` reply is cut, the ids are read from what
is there, every passage whose judgement is missing or unfinished is kept beside them, the branch is `suspect`, and
`cut_judgement` counts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import dspy

from blendfilter.asking import (
    JUDGEMENT_TOKENS,
    SHORT_TOKENS,
    STOP,
    PromptSettings,
    TaskWording,
)
from blendfilter.context import setting
from blendfilter.filters.base import Filter, judged_apart, selection
from blendfilter.filters.ids import UNPARSEABLE
from blendfilter.filters.judgements import read_judgement, unreached
from blendfilter.filters.requests import (
    ask_ids,
    holds_to_schema,
    ids_schema,
    object_schema,
    permitted,
    reply_of,
    room,
    schema_of,
    select_ids,
)
from blendfilter.prompting import Prompts
from blendfilter.records import Passage
from blendfilter.replies import verdict as yes_or_no
from blendfilter.retrieval.callables import as_passages

_JUDGE_TOKENS = JUDGEMENT_TOKENS + 128
"""Cap of a judgement with its ids, which as JSON needs some more."""


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


class Relevant(dspy.Signature):
    """Whether one passage is relevant to the question."""

    passage: str = dspy.InputField(desc="Title | text")
    question: str = dspy.InputField()
    relevant: str = dspy.OutputField(desc="Yes or No")


class KnowledgeFilter(Filter):
    """Keeps the passages that the model itself finds relevant.

    Args:
        offer_none: whether the prompt allows that nothing is relevant (StrategyQA's wording).
        ask_topic: whether to ask for the topic, which the check sets aside (HotPotQA and 2Wiki; not on StrategyQA).
        json_schema: hold the ids reply to a JSON schema; None: where the model's profile says that its server can.
        wording: a task's instructions for these steps. prompts, adapter: see `blendfilter.asking.Ask`.
        program: the name of a program that ships, or `none`; None: that of the task and the model's kind, where one
            does (`blendfilter.shipped`; without a task, hotpotqa's).

    The result's `status` is `ids`, `none`, `suspect` or `unparseable` (the last two: the branch was kept whole, or with
    all that a judgement that was cut off did not reach), or `empty` where there was nothing to filter; `flags` counts
    the events on the way.
    """

    def __init__(
        self,
        *,
        offer_none: bool = False,
        ask_topic: bool = True,
        json_schema: bool | None = None,
        wording: TaskWording | None = None,
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
        program: str | None = None,
    ) -> None:
        super().__init__()
        self.offer_none = offer_none
        self.ask_topic = ask_topic
        self.json_schema = json_schema
        settings = PromptSettings.of(wording, prompts, adapter)
        self.topic = settings.predictor("topic", Topic, "blendfilter/topic", SHORT_TOKENS)
        self.check = settings.predictor("check", Check, "blendfilter/check", JUDGEMENT_TOKENS)
        self.ids = settings.predictor("ids", Ids, "blendfilter/ids", SHORT_TOKENS)
        self.ids_again = settings.predictor(
            "ids_again", Ids, "blendfilter/ids_again", SHORT_TOKENS
        )
        self.ship("knowledge", settings.wording.task or "hotpotqa", program)

    def arguments(self) -> dict[str, Any]:
        """Its three switches."""
        return {
            "offer_none": self.offer_none,
            "ask_topic": self.ask_topic,
            "json_schema": self.json_schema,
        }

    async def topic_of(self, question: str) -> str:
        """The question's topic; empty where this task asks for none. It depends on the question alone: ask once."""
        if not self.ask_topic:
            return ""
        return str((await self.topic.acall(question=question)).topic)

    async def aforward(
        self, question: str, passages: Sequence[Passage], topic: str | None = None
    ) -> dspy.Prediction:
        """The passages kept; `topic` where it is known already."""
        passages = as_passages(passages)
        if not passages:
            return selection()
        if topic is None:
            topic = await self.topic_of(question)
        inputs = _inputs(question, passages, self.offer_none)
        cap = room(self.check.config["max_tokens"], 48, len(passages))
        check = await reply_of(self.check, topic=topic, **inputs, config={"max_tokens": cap})
        if check.cut and unreached(check.text, len(passages)) and not check.repeats_itself:
            check = await reply_of(
                self.check, topic=topic, **inputs, config={"max_tokens": 2 * cap}
            )
        ask: Any = partial(ask_ids, json_schema=self.json_schema, context=check.text, **inputs)
        first = await ask(self.ids)
        return await select_ids(passages, check, first, partial(ask, self.ids_again))


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
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        self.offer_none = offer_none
        self.json_schema = json_schema
        settings = PromptSettings.of(wording, prompts, adapter)
        self.judge = settings.predictor(
            "judge", CheckAndIds, "blendfilter/judge", _JUDGE_TOKENS
        )
        self.ids_again = settings.predictor(
            "ids_again", Ids, "blendfilter/ids_again", SHORT_TOKENS
        )

    def arguments(self) -> dict[str, Any]:
        """Its two switches."""
        return {"offer_none": self.offer_none, "json_schema": self.json_schema}

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        """The passages kept."""
        passages = as_passages(passages)
        if not passages:
            return selection()
        k = len(passages)
        inputs = _inputs(question, passages, self.offer_none)
        config: dict[str, Any] = {"max_tokens": room(self.judge.config["max_tokens"], 64, k)}
        held = holds_to_schema(self.json_schema, self.judge)
        if held:
            config["response_format"] = schema_of(
                "judgement", _judgement_schema(k, offer_none=self.offer_none)
            )
        reply = await reply_of(self.judge, **inputs, config=config)
        read = UNPARSEABLE if reply.cut else read_judgement(reply.text, k)
        read = permitted(read, held=held, offer_none=self.offer_none)
        again = partial(ask_ids, self.ids_again, self.json_schema, context=reply.text, **inputs)
        return await select_ids(passages, reply, (read, reply.whole), again)


class PointwiseFilter(Filter):
    """Keeps the passages that the model finds relevant, each judged alone, side by side.

    A reply that says neither yes nor no keeps its passage, and counts as `no_verdict`. Where no passage is relevant and
    the task does not offer that, all of them are kept and the branch is `suspect`, as in `KnowledgeFilter`.

    Args:
        offer_none: whether nothing may be relevant (StrategyQA).
        wording, prompts, adapter: as in `KnowledgeFilter`.

    The result has `verdicts` too: True, False or None for each passage. `reason` has a line a passage, as a check's
    reply has.
    """

    def __init__(
        self,
        *,
        offer_none: bool = False,
        wording: TaskWording | None = None,
        prompts: Prompts | str | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        self.offer_none = offer_none
        settings = PromptSettings.of(wording, prompts, adapter)
        stop = [*STOP, "\nPassage:"]  # where a base model goes on with another example
        self.relevant = settings.predictor(
            "relevant", Relevant, "blendfilter/relevant", SHORT_TOKENS, stop=stop
        )

    def arguments(self) -> dict[str, Any]:
        """Its one switch."""
        return {"offer_none": self.offer_none}

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        """The passages kept."""
        passages = as_passages(passages)
        if not passages:
            return selection(verdicts=[])
        verdicts = await judged_apart(passages, partial(self._judged, question))
        reason = "\n".join(f"{at}: {_SPOKEN[verdict]}" for at, verdict in enumerate(verdicts))
        judged = list(zip(passages, verdicts, strict=True))
        silent = {passage.line for passage, verdict in judged if verdict is None}
        flags = {"no_verdict": len(silent)} if silent else {}
        kept, status = [passage for passage, verdict in judged if verdict is not False], "ids"
        if not kept and self.offer_none:
            status, flags["explicit_none"] = "none", 1
        elif not kept:
            kept, status, flags["suspect_ids"] = passages, "suspect", 1
        return selection(kept, status, reason, flags=flags, verdicts=verdicts)

    async def _judged(self, question: str, passage: Passage) -> bool | None:
        with setting(judged=(passage.id,)):
            reply = await reply_of(self.relevant, passage=passage.line, question=question)
        return {"yes": True, "no": False, None: None}[yes_or_no(reply.text)]


_SPOKEN = {True: "relevant", False: "irrelevant", None: "no verdict, kept"}


def _inputs(question: str, passages: Sequence[Passage], offer_none: bool) -> dict[str, Any]:
    """The inputs that every step of a filter by model has."""
    return {
        "knowledge": [passage.line for passage in passages],
        "question": question,
        "offer_none": offer_none,
    }


def _judgement_schema(k: int, *, offer_none: bool) -> dict[str, Any]:
    number = {"type": "integer", "enum": list(range(k))}
    judgement = object_schema(
        {"id": number, "reason": {"type": "string"}, "relevant": {"type": "boolean"}}
    )
    return {
        "judgements": {"type": "array", "items": judgement, "maxItems": k},
        "ids": ids_schema(k, offer_none=offer_none),
    }

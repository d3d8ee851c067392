"""The knowledge filter in one call: the judgement and its numbers in one reply, without a topic.

Ours, a cheaper form of BlendFilter's filter (Wang et al., EMNLP 2024, section 3.3): K^f = M(K | Prompt(q, K)) in one
call instead of check and ids. In: a question and K passages. Out: the passages kept, in rank order. Calls: judge.

Differs from the paper: the judgement and the ids are one reply, which ends with a line of ids; the topic, whose
memorised facts the check is told to set aside, is dropped. Where the server can, the reply is held to a JSON schema.
A reply whose ids cannot be read, or that has none at its end, is asked for its ids once (`ids_again`, with that reply
as context), then the whole branch is kept, as in the exact filter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import dspy

from blendfilter.asking import REPLY_TOKENS, SHORT_TOKENS, STOP, Ask, Wording
from blendfilter.filters.base import Filter
from blendfilter.filters.ids import IdsRead, in_own_words, read_ids
from blendfilter.filters.knowledge import (
    Ids,
    Reading,
    ask_ids,
    chosen,
    holds_to_schema,
    ids_schema,
    room,
    said,
    schema_of,
    shown_to_judge,
)
from blendfilter.lm.profiles import split_thinking
from blendfilter.prompting import Prompts
from blendfilter.quoting import end_of
from blendfilter.records import Passage
from blendfilter.retrieval.callables import as_passage

_JUDGE_TOKENS = REPLY_TOKENS + 128
"""Cap of a judgement with its ids, which as JSON needs some more."""
_UNPARSEABLE = IdsRead((), "unparseable")
_NUMBERS_ALONE = re.compile(r"(?:[\W\d_]|\band\b|\bnone\b)+", re.IGNORECASE)
_IDS = re.compile(
    r"(?:^[^\w\n]{0,12}(?:the\s)?(?:relevant\s)?|(?<=[.;]\s)[^\w\n]{0,4}(?:relevant\s)?|(?<=\"))"
    r"\bids?\b(?:[^\w\n]{0,8}:|[^\w\n]{0,8}$)",
    re.IGNORECASE | re.MULTILINE,
)
"""The opening of the last line, or of a sentence; inside one, a judgement may quote it of a passage."""


class Judge(dspy.Signature):
    """Which pieces of knowledge bear on the question, one by one, and their numbers in the last line."""

    offer_none: bool = dspy.InputField(default=False)
    knowledge: list[str] = dspy.InputField(desc="lines of Title | text")
    question: str = dspy.InputField()
    judgement: str = dspy.OutputField()


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
        wording: Wording | None = None,
        prompts: Prompts | None = None,
        adapter: dspy.Adapter | None = None,
    ) -> None:
        super().__init__()
        shared: dict[str, Any] = {"prompts": prompts, "adapter": adapter, "stop": STOP}
        self.offer_none = offer_none
        self.json_schema = json_schema
        worded = wording or Wording()
        self.judge = worded(Ask("judge", Judge, "blendfilter/judge", max_tokens=_JUDGE_TOKENS, **shared))
        self.ids_again = worded(Ask("ids_again", Ids, "blendfilter/ids_again", max_tokens=SHORT_TOKENS, **shared))

    def arguments(self) -> dict[str, Any]:
        """Its two switches."""
        return {"offer_none": self.offer_none, "json_schema": self.json_schema}

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        """The passages kept."""
        passages = [as_passage(passage) for passage in passages]
        if not passages:
            return dspy.Prediction(kept=[], status="empty", reason="", flags={})
        k, shown = len(passages), shown_to_judge(question, passages, self.offer_none)
        config: dict[str, Any] = {"max_tokens": room(_JUDGE_TOKENS, 64, k)}
        if holds_to_schema(self.json_schema, self.judge):
            config["response_format"] = schema_of("judgement", _judgement_schema(k))
        reply = await said(self.judge, **shown, config=config)

        async def at_its_end() -> Reading:
            return Reading(_UNPARSEABLE if reply.cut else read_judgement(reply.text, k), reply.whole)

        choice = await chosen(at_its_end, lambda: ask_ids(self.ids_again, reply.text, shown, self.json_schema))
        kept, status = choice.of(passages), choice.read.status
        return dspy.Prediction(kept=kept, status=status, reason=reply.text, flags=choice.flags)


def read_judgement(reply: str, k: int) -> IdsRead:
    """The ids at the end of a judgement of `k` passages: what stands from its last "Ids:" on, or in its JSON.

    A judgement of several lines that ends without them, or in the middle of its JSON, is `unparseable`: what it named
    so far need not be all. JSON that calls some relevant and lists none is `suspect`.

    >>> read_judgement("0 names the town: relevant.\\n1 is about a hill: irrelevant.\\nIds: 0", 2)
    IdsRead(ids=(0,), status='ids')
    >>> read_judgement("0 names the town: relevant.\\n1 is about", 2).status
    'unparseable'
    """
    said = split_thinking(reply)[1].strip()
    plain = said.removeprefix("```json").removeprefix("```").removesuffix("```").strip()
    if plain.startswith("{"):
        return _read_json(plain, k)
    return in_own_words(end_of(said), lambda text: _read_text(text.strip(), k))


def _read_text(text: str, k: int) -> IdsRead:
    told = list(_IDS.finditer(text))
    if told:
        return read_ids(text[told[-1].start() :], k)
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
    one = {
        "id": {"type": "integer", "enum": list(range(k))},
        "reason": {"type": "string"},
        "relevant": {"type": "boolean"},
    }
    each = {"type": "object", "properties": one, "required": list(one), "additionalProperties": False}
    return {"judgements": {"type": "array", "items": each, "maxItems": k}, "ids": ids_schema(k)}

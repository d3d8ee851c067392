"""Requests of a filter's predictors: a reply, ids out of it, and once more where it could not be read.

A reply whose ids are unreadable or negated is requested once more, with one added line; both events are counted apart,
and so are replies that are empty or cut off. Where the server can, a reply is held to a JSON schema.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import dspy

from blendfilter.asking import SHORT_TOKENS, Ask
from blendfilter.filters.base import noted, selection
from blendfilter.filters.ids import SUSPECT, IdsRead, read_ids
from blendfilter.filters.judgements import unreached
from blendfilter.records import Passage

_LOOP = 40
"""Letters at the end of a reply that are looked for before it."""
_MANY = 500
"""Values that a schema may list (OpenAI's limit)."""
ID_EVENTS = {
    "none": "explicit_none",
    "suspect": "suspect_ids",
    "unparseable": "unparseable_ids",
}
"""The event that a reply's status is counted as."""


class PredictorReply(NamedTuple):
    """The text of a predictor's one output field; `cut`: it was cut off at its cap."""

    text: str
    cut: bool

    @property
    def whole(self) -> bool:
        """Whether there is something to read, and its end."""
        return bool(self.text.strip()) and not self.cut

    @property
    def repeats_itself(self) -> bool:
        """Whether its end stood in it twice before: more room would bring more of the same."""
        return len(self.text) > _LOOP and self.text.count(self.text[-_LOOP:]) > 2


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
    """One call for ids into `knowledge`, read; `own` leaves of a reply what may name ids.

    Held to a schema, a reply names at least one, unless the prompt offers none.
    """
    k = len(inputs["knowledge"])
    config: dict[str, Any] = {"max_tokens": room(SHORT_TOKENS, 4, k)}
    held, offer_none = holds_to_schema(json_schema, predictor), inputs["offer_none"]
    if held:
        config["response_format"] = schema_of(
            "ids", {"ids": ids_schema(k, offer_none=offer_none)}
        )
    reply = await reply_of(predictor, **inputs, config=config)
    read = read_ids(own(reply.text), k, cut=reply.cut)
    return permitted(read, held=held, offer_none=offer_none), reply.whole


def permitted(read: IdsRead, *, held: bool, offer_none: bool) -> IdsRead:
    """`read`; suspect where it names nothing against the schema that it was held to (not every server heeds it)."""
    return SUSPECT if held and not offer_none and read.status == "none" else read


async def choose_ids(
    first: IdsReply, again: Callable[[], Awaitable[IdsReply]]
) -> tuple[IdsRead, dict[str, int]]:
    """The ids of the `first` reply (unreadable or suspect: of the second request, `again`), and the events by name."""
    read, whole = first
    # What is empty or cut off is counted as that already, not as unparseable.
    event = "" if read.status == "unparseable" and not whole else ID_EVENTS.get(read.status, "")
    flags = {event: 1} if event else {}
    if read.status in ("ids", "none"):
        return read, flags
    second, _ = await again()
    if second.status == "none":
        flags["explicit_none"] = 1
    return second if second.status in ("ids", "none") else read, flags


async def select_ids(
    passages: Sequence[Passage],
    judgement: PredictorReply,
    first: IdsReply,
    again: Callable[[], Awaitable[IdsReply]],
) -> dspy.Prediction:
    """The passages that `choose_ids` leaves, in rank order: all of them where no reply could be read.

    Beside them those that a `judgement` that was cut off did not reach.
    """
    read, flags = await choose_ids(first, again)
    missing = unreached(judgement.text, len(passages)) if judgement.cut else []
    if missing:
        flags["cut_judgement"] = 1
    if read.status in ("suspect", "unparseable"):
        return selection(passages, read.status, judgement.text, flags=flags)
    ids = {*read.ids, *missing}
    status = "suspect" if missing else read.status
    return selection([passages[i] for i in sorted(ids)], status, judgement.text, flags=flags)


def room(cap: int, more: int, k: int) -> int:
    """A reply's cap in tokens: `cap` up to five passages (the paper's K), `more` for every further one."""
    return cap + more * max(0, k - 5)


def holds_to_schema(wanted: bool | None, predictor: Ask) -> bool:
    """Whether a reply must follow a JSON schema; None: where the model's profile says that its server can."""
    if wanted is not None:
        return wanted
    profile = getattr(predictor.lm or dspy.settings.lm, "profile", None)
    return bool(profile and profile.json_schema)


def ids_schema(k: int, *, offer_none: bool) -> dict[str, Any]:
    """The JSON schema of a list of ids of k passages, empty only where that is offered; a range of many numbers."""
    some = {"enum": list(range(k))} if k <= _MANY else {"minimum": 0, "maximum": k - 1}
    return {
        "type": "array",
        "items": {"type": "integer", **some},
        "minItems": 0 if offer_none else 1,
        "maxItems": k,
    }


def schema_of(name: str, properties: dict[str, Any]) -> dict[str, Any]:
    """A reply's format: an object of these properties and no others."""
    return {
        "type": "json_schema",
        "json_schema": {"name": name, "schema": object_schema(properties), "strict": True},
    }


def object_schema(properties: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON schema of an object that has all of these properties and no others."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }

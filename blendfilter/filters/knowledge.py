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

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import dspy

from blendfilter.asking import (
    JUDGEMENT_TOKENS,
    SHORT_TOKENS,
    STOP,
    Ask,
    PromptSettings,
    TaskWording,
)
from blendfilter.context import setting
from blendfilter.filters.base import Filter, judged_apart, noted, selection
from blendfilter.filters.ids import IdsRead, in_own_words, read_ids, read_plain, unfenced
from blendfilter.lm.profiles import split_thinking
from blendfilter.prompting import Prompts
from blendfilter.quoting import end_of
from blendfilter.records import Passage
from blendfilter.replies import verdict as yes_or_no
from blendfilter.retrieval.callables import as_passage

_JUDGE_TOKENS = JUDGEMENT_TOKENS + 128
"""Cap of a judgement with its ids, which as JSON needs some more."""
_LOOP = 40
"""Letters at the end of a reply that are looked for before it."""
_MANY = 500
"""Values that a schema may list (OpenAI's limit)."""
_UNPARSEABLE = IdsRead((), "unparseable")
_EVENTS = {"none": "explicit_none", "suspect": "suspect_ids", "unparseable": "unparseable_ids"}
_NUMBERS_ALONE = re.compile(r"(?:[\W\d_]|\band\b|\bnone\b)+", re.IGNORECASE)
_IDS = re.compile(
    r"(?:^[^\w\n]{0,12}(?:(?:so|thus|therefore|hence|and),?\s)?|(?<=[.;]\s)[^\w\n]{0,4}|(?<=\"))"
    r"(?:(?:the|my|final|relevant)\s){0,3}"
    r"(?:\bids?\b(?:\s(?:is|are)\b(?=\s\d)|(?:\s(?:is|are))?(?:[^\w\n]{0,8}[:=]|\s[-\u2013\u2014]\s|[^\w\n]{0,8}$))"
    r"|(?<!\")\brelevant(?:\s(?:passages?|numbers?|knowledge|ones))?[^\w\n]{0,4}:(?=[^\w\n]{0,4}(?:\d|none\b)))",
    re.IGNORECASE | re.MULTILINE,
)
"""The opening of the last line, or of a sentence; inside one, a judgement may quote it of a passage."""
_NEXT_PROMPT = re.compile(
    r"^(?:Context|Question|Knowledge|Judgement)(?: \([^()\n]{1,60}\))?\s?:|(?<=\n\n)knowledge 0:",
    re.MULTILINE,
)
"""Where a base model goes on with a next example."""
_ITEM = re.compile(
    r"[^\w\n]{0,8}(?:\d{1,3}[.)]\s{1,3}(?=[^\d\s]))?"
    r"(?:(?P<noun>knowledge|passage|sentence)[^\w\n]{0,4})?(?P<id>\d{1,4})(?!\w|[.,/]\d)"
    r"(?!\s?(?:,|and|or|to|&|-|\u2013)\s?#?\d)(?P<mark>[^\w\n]{0,3}?[:.)\]|\u2013\u2014-]|\s(?:is|are)\b)?",
    re.IGNORECASE,
)
"""The number that opens a passage's judgement."""
_ITEMS = re.compile(
    r"\n|(?<=[.;])[^\S\n]{1,3}(?=(?:(?:knowledge|passage|sentence) )?\d{1,4}\s?[:)])", re.IGNORECASE
)
_VERDICT = r"(?P<not>(?:\bnot|n['\u2019]t)\s(?:directly\s|very\s|really\s)?)?\b(?P<ir>ir)?relevant"
_VERDICT_FIRST = re.compile(rf"[^\w\n]{{0,6}}{_VERDICT}\b", re.IGNORECASE)
_VERDICT_APART = re.compile(
    rf"[:,;|\u2013\u2014-][^\w\n]{{0,4}}(?:so\s|thus\s)?(?:it is\s)?{_VERDICT}\b", re.IGNORECASE
)


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
    ) -> None:
        super().__init__()
        self.offer_none = offer_none
        self.ask_topic = ask_topic
        self.json_schema = json_schema
        settings = PromptSettings.of(wording, prompts, adapter)
        self.topic = settings.predictor("topic", Topic, "blendfilter/topic", SHORT_TOKENS)
        self.check = settings.predictor("check", Check, "blendfilter/check", JUDGEMENT_TOKENS)
        self.ids = settings.predictor("ids", Ids, "blendfilter/ids", SHORT_TOKENS)
        self.ids_again = settings.predictor("ids_again", Ids, "blendfilter/ids_again", SHORT_TOKENS)

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
        passages = [as_passage(passage) for passage in passages]
        if not passages:
            return selection()
        if topic is None:
            topic = await self.topic_of(question)
        inputs = _inputs(question, passages, self.offer_none)
        cap = room(self.check.config.get("max_tokens") or JUDGEMENT_TOKENS, 48, len(passages))
        check = await reply_of(self.check, topic=topic, **inputs, config={"max_tokens": cap})
        if check.cut and unreached(check.text, len(passages)) and not check.repeats_itself:
            check = await reply_of(
                self.check, topic=topic, **inputs, config={"max_tokens": 2 * cap}
            )
        return await select_ids(
            passages,
            check,
            lambda: ask_ids(self.ids, self.json_schema, context=check.text, **inputs),
            lambda: ask_ids(self.ids_again, self.json_schema, context=check.text, **inputs),
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
        prompts: Prompts | str | None = None,
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
        config: dict[str, Any] = {
            "max_tokens": room(self.judge.config.get("max_tokens") or _JUDGE_TOKENS, 64, k)
        }
        held = holds_to_schema(self.json_schema, self.judge)
        if held:
            config["response_format"] = schema_of(
                "judgement", _judgement_schema(k, offer_none=self.offer_none)
            )
        reply = await reply_of(self.judge, **inputs, config=config)

        async def at_its_end() -> IdsReply:
            read = _UNPARSEABLE if reply.cut else read_judgement(reply.text, k)
            return _permitted(read, held=held, offer_none=self.offer_none), reply.whole

        again = lambda: ask_ids(self.ids_again, self.json_schema, context=reply.text, **inputs)  # noqa: E731
        return await select_ids(passages, reply, at_its_end, again)


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
        passages = [as_passage(passage) for passage in passages]
        if not passages:
            return selection(verdicts=[])
        verdicts = await judged_apart(passages, partial(self._judged, question))
        reason = "\n".join(f"{at}: {_SPOKEN[verdict]}" for at, verdict in enumerate(verdicts))
        silent = len(
            {passage.line for passage, each in zip(passages, verdicts, strict=True) if each is None}
        )
        flags = {"no_verdict": silent} if silent else {}
        kept = [
            passage
            for passage, verdict in zip(passages, verdicts, strict=True)
            if verdict is not False
        ]
        status = "ids" if kept else "none"
        if not kept:
            event = "explicit_none" if self.offer_none else "suspect_ids"
            flags[event] = 1
            kept, status = ([], status) if self.offer_none else (passages, "suspect")
        return selection(kept, status, reason, flags=flags, verdicts=verdicts)

    async def _judged(self, question: str, passage: Passage) -> bool | None:
        with setting(judged=(passage.id,)):
            reply = await reply_of(self.relevant, passage=passage.line, question=question)
        return {"yes": True, "no": False, None: None}[yes_or_no(reply.text)]


_SPOKEN = {True: "relevant", False: "irrelevant", None: "no verdict, kept"}


# --- asking for ids ---------------------------------------------------------------------------------------------------


def _inputs(question: str, passages: Sequence[Passage], offer_none: bool) -> dict[str, Any]:
    """The inputs that every step of a filter by model has."""
    return {
        "knowledge": [each.line for each in passages],
        "question": question,
        "offer_none": offer_none,
    }


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
        config["response_format"] = schema_of("ids", {"ids": ids_schema(k, offer_none=offer_none)})
    reply = await reply_of(predictor, **inputs, config=config)
    read = read_ids(own(reply.text), k, cut=reply.cut)
    return _permitted(read, held=held, offer_none=offer_none), reply.whole


def _permitted(read: IdsRead, *, held: bool, offer_none: bool) -> IdsRead:
    """`read`; suspect where it names nothing against the schema that it was held to (not every server heeds it)."""
    return IdsRead((), "suspect") if held and not offer_none and read.status == "none" else read


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
    judgement: PredictorReply,
    first: Callable[[], Awaitable[IdsReply]],
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


def unreached(judgement: str, k: int) -> list[int]:
    """The ids, of `k`, that a judgement that was cut off says nothing whole about.

    Judged is what opens a line, or an object of JSON, that another such opening follows: the last is cut itself.

    >>> unreached("0: names the town - relevant\\n1: a hill - irrelevant\\n2: about the", 4)
    [2, 3]
    """
    *judged, _ = [
        int(next(filter(None, match.groups()))) for match in _JUDGED.finditer(judgement)
    ] or [-1]
    return [number for number in range(k) if number not in judged]


_JUDGED = re.compile(
    r"^[^\w\n]{0,8}(?:knowledge|passage|sentence)[^\w\n]{0,4}(\d{1,4})\b"
    r"|^[^\w\n]{0,8}(\d{1,4})[^\w\n]{0,3}?[:.)\]|\u2013\u2014-]"
    r"|\"id\"\s{0,2}:\s{0,2}(\d{1,4})\b",
    re.IGNORECASE | re.MULTILINE,
)
"""What opens the judgement of a passage."""


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


# --- reading a judgement that ends with its ids -----------------------------------------------------------------------


def read_judgement(reply: str, k: int) -> IdsRead:
    """The ids at the end of a judgement of `k` passages: what stands from its last "Ids:" on, or in its JSON.

    Without them it is read where it is a plain verdict on every passage, and nothing else. What ends before, or in the
    middle of its JSON, is `unparseable`: what it named so far need not be all. Where its ids are not those of the
    passages that it calls relevant it is `suspect`.

    >>> read_judgement("0 names the town: relevant.\\n1 is about a hill: irrelevant.\\nIds: 0", 2)
    IdsRead(ids=(0,), status='ids')
    >>> read_judgement("0 names the town: relevant.\\n1 is about a hill: irrelevant.\\nIds: 1", 2).status
    'suspect'
    """
    own = split_thinking(reply)[1].strip()
    if (json_text := unfenced(own)).startswith("{"):
        return _read_json(json_text, k)
    return in_own_words(end_of(own), lambda text: _read_text(text.strip(), k))


def _read_text(text: str, k: int) -> IdsRead:
    openings = [*_IDS.finditer(text)]
    own = lambda found: not _inside_a_judgement(text, found.start())  # noqa: E731
    first = next(filter(own, openings), None)
    if first and (end := _NEXT_PROMPT.search(text, first.end())):
        text = text[: end.start()]
        openings = [found for found in openings if found.end() <= len(text)]
    if first and (last := next(filter(own, reversed(openings)), None)):
        at = last.start()
        if -1 < (begin := text.find("{")) < at and text[at - 1] == '"':
            return _read_json(unfenced(text[begin:]), k)
        numbers = {
            int(item["id"]) for line in _ITEMS.split(text[:at]) if (item := _ITEM.match(line))
        }
        if k in numbers and 0 not in numbers:  # it counts from 1
            return IdsRead((), "suspect")
        return _compared(read_plain(text[at:], k), _verdicts(text[:at], k))
    return read_plain(text, k) if _NUMBERS_ALONE.fullmatch(text) else _by_verdicts(text, k)


def _by_verdicts(text: str, k: int) -> IdsRead:
    """The ids that a judgement without a line of ids calls relevant, where it is one plain verdict on each passage.

    Behind the verdicts may stand a sentence that names the same ids. All of them irrelevant is no "none" yet: that is
    asked for.
    """
    lines = [line for line in _ITEMS.split(text) if line.strip()]
    judged = [
        (int(item["id"]), _verdict(line)) for line in lines[:k] if (item := _ITEM.match(line))
    ]
    if sorted(number for number, _ in judged) != [*range(k)] or any(
        verdict is None for _, verdict in judged
    ):
        return _UNPARSEABLE
    relevant = tuple(number for number, verdict in judged if verdict)
    if not (below := "\n".join(lines[k:])):
        return IdsRead(relevant, "ids") if relevant else _UNPARSEABLE
    read = read_plain(below, k)
    return read if read.status in ("ids", "none") and {*read.ids} == {*relevant} else _UNPARSEABLE


def _inside_a_judgement(text: str, at: int) -> bool:
    """Whether ids that open no line belong to a passage's judgement, whose verdict has yet to come: a title, quoted."""
    line = text[max(text.rfind("\n", 0, at) + 1, at - _LONGEST_JUDGEMENT) : at]
    last = _ITEMS.split(line)[-1]
    return bool(line.strip(' \t*_`#>-"') and _ITEM.match(last)) and _verdict(last) is None


_LONGEST_JUDGEMENT = 1_000
"""Letters of one passage's judgement in which ids may be quoted."""


def _verdicts(text: str, k: int) -> dict[int, bool]:
    """Which of `k` passages a judgement calls relevant or irrelevant in so many words, the last word on each.

    >>> _verdicts("0: gives the year - relevant\\n1: a hill - not relevant\\n2: may be relevant\\n3: irrelevant", 5)
    {0: True, 1: False, 3: False}
    """
    found = dict[int, bool]()
    for line in _ITEMS.split(text):
        if (
            (item := _ITEM.match(line))
            and int(item["id"]) < k
            and (verdict := _verdict(line)) is not None
        ):
            found[int(item["id"])] = verdict
    return found


def _verdict(line: str) -> bool | None:
    """What the judgement of a passage calls it; None where that is not plain."""
    item = _ITEM.match(line)
    if item is None:
        return None
    about = line[item.end() :]
    found = list(_VERDICT_APART.finditer(about))
    if item["mark"] and (first := _VERDICT_FIRST.match(about)):
        found.append(first)
    verdicts = {not (verdict["not"] or verdict["ir"]) for verdict in found}
    return verdicts.pop() if len(verdicts) == 1 else None


def _compared(read: IdsRead, verdicts: Mapping[int, bool]) -> IdsRead:
    """`read`; suspect where its ids are not those that were called relevant."""
    if read.status not in ("ids", "none"):
        return read
    agrees = all((number in read.ids) is relevant for number, relevant in verdicts.items())
    return read if agrees else IdsRead((), "suspect")


def _read_json(text: str, k: int) -> IdsRead:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return _UNPARSEABLE
    if not isinstance(value, dict) or not isinstance(value.get("ids"), list):
        return _UNPARSEABLE
    judged = value.get("judgements")
    judgements = (
        [each for each in judged if isinstance(each, dict)] if isinstance(judged, list) else []
    )
    verdicts = {
        each["id"]: each["relevant"]
        for each in judgements
        if type(each.get("id")) is int
        and 0 <= each["id"] < k
        and isinstance(each.get("relevant"), bool)
    }
    return _compared(read_ids(text, k), verdicts)


def _judgement_schema(k: int, *, offer_none: bool) -> dict[str, Any]:
    number = {"type": "integer", "enum": list(range(k))}
    judgement = object_schema(
        {"id": number, "reason": {"type": "string"}, "relevant": {"type": "boolean"}}
    )
    return {
        "judgements": {"type": "array", "items": judgement, "maxItems": k},
        "ids": ids_schema(k, offer_none=offer_none),
    }

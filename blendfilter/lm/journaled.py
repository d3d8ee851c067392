"""Model calls through the journal: an engine around an engine.

A hit is served from the file; a miss is called, appended, then used. Equal requests in flight share one call. A call
that failed for good is recorded too: a replay fails the same way, `auto` calls again. The server's address is recorded
and not hashed: a job may come back on another port. In a user's cache it is hashed: what answers at another address may
be another model of that name, and no job depends on it.

A response of the cache has no usage, and says `cache_hit`: it was paid for before.

DSPy's optimisers find the same program with a journal however often they are begun again: a fault ends them, equal
texts are one object, live and read, and GEPA merges in the order of names.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from blendfilter import secrets
from blendfilter.aio import SingleFlight
from blendfilter.context import asker, note, who
from blendfilter.dspy_surface import (
    CACHE_HIT,
    lm15,
    optimisers_at_work,
    response_as_dict,
    response_of,
)
from blendfilter.errors import (
    BadArgument,
    BlendFilterError,
    CompilationStopped,
    ModelError,
    ReplayMiss,
    ServerRefused,
    for_good,
)
from blendfilter.extras import order_merges
from blendfilter.journal import CallCache, Journal, digest
from blendfilter.lm import faults
from blendfilter.lm.attempts import ModelEngine
from blendfilter.lm.budget import tallied
from blendfilter.lm.outcome import WHOLE, parts_of, texts_of
from blendfilter.lm.prices import Price, cost_of, rated, stated
from blendfilter.records import whole_characters

_PARAMETERS = (
    "temperature",
    "top_p",
    "top_k",
    "max_tokens",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "response_format",
    "logprobs",
    "extensions",
)


@dataclass(eq=False, repr=False)
class JournaledEngine:
    """`inner`, with every call journaled once; without a journal it only notes calls and translates errors.

    Args:
        inner: the engine that really calls.
        model, label, endpoint, options: what a key names beside the request (`label` is the user's, for two servers
            that serve one name; `options` are settings that change replies: thinking, effort, extra body).
        address: where the calls go; recorded, not hashed.
        journal: where they are kept: a run's journal, or the user's cache.
        price: what a call costs where its server does not say; None: unknown.
    """

    inner: ModelEngine
    _: KW_ONLY
    model: str
    label: str = ""
    endpoint: str = "chat"
    options: Mapping[str, Any] | None = None
    address: str = ""
    journal: Journal | CallCache | None = None
    price: Price | None = None

    def __post_init__(self) -> None:
        # a call's key has the schema that it asks for, if any
        self.options = {
            name: value
            for name, value in (self.options or {}).items()
            if value is not None and name != "json_schema"
        }
        self._flights: SingleFlight[dict[str, Any]] = SingleFlight()
        self._seeds_checked = False
        if isinstance(self.journal, Journal):
            order_merges()

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The response to `request`, from the journal or from the model.

        Raises:
            ReplayMiss: a replay does not hold it. ServerRefused, ModelError: the call failed for good.
            CompilationStopped: one of these within an optimiser of DSPy's, which would call it a score of 0 and find
                another program than it finds when the call is answered; without a journal it may.
        """
        try:
            return await self._answered(request)
        except BlendFilterError as error:
            if for_good(error) or not self._may_serve_optimiser() or not optimisers_at_work():
                raise
            raise CompilationStopped(error) from error

    def _may_serve_optimiser(self) -> bool:
        """Whether a user's own optimiser may be asking: over a journal, and outside of a run."""
        return isinstance(self.journal, Journal) and not asker().question

    def _check_seeds(self) -> None:
        """Raise `BadArgument` where an optimiser draws otherwise in each session; looked at before the first call."""
        if self._seeds_checked or not self._may_serve_optimiser():
            return
        for optimiser in optimisers_at_work():
            if getattr(optimiser, "seed", 0) is None:
                kind = type(optimiser).__name__
                raise BadArgument(
                    f"{kind} has seed=None, and would find another program each time: give it a seed"
                )
        self._seeds_checked = True

    async def _answered(self, request: lm15.Request) -> lm15.Response:
        sample, repeat = asker().sample, asker().repeat
        hashed = {  # what the call's key is made of
            "model": self.model,
            "label": self.label,
            "endpoint": self.endpoint,
            "prompt": prompt_of(request),
            "parameters": _parameters(request)
            | ({"options": self.options} if self.options else {}),
            # The first answer's calls are those of a run without repeats, so that either can be reused for the other.
            "sample": [sample.rollout_id, sample.i, *([repeat] if repeat > 1 else [])],
        }
        is_cache = isinstance(self.journal, CallCache)
        key = digest(hashed, self.address) if is_cache else digest(hashed)
        called = False

        async def call() -> dict[str, Any]:
            nonlocal called
            called = True
            return await self._call(key, hashed, request)

        record = await self._flights.do(key, lambda: self._found(key), call)
        if record.get("error"):
            error = faults.restore(record["error"])
            if isinstance(error, ModelError):
                error.stage, error.attempts = asker().stage, record.get("attempts") or 0
                error.address = self.address
                note(key, "error")
            raise error
        note(key, event_of(record))
        if record.get("prompt_cut"):
            note("", "prompt_cut")
        response = _response(record, self.model)
        # a run that is resumed reads what the first one read
        if called or not is_cache:
            return replace(response, provider_data={"cost": record["cost"]})
        data = {"cost": 0.0, CACHE_HIT: True}
        return replace(response, provider_data=data, usage=lm15.Usage())

    def _found(self, key: str) -> dict[str, Any] | None:
        """The record that the journal's mode may serve; None: the model is to be called."""
        if self.journal is None or (asker().anew and isinstance(self.journal, CallCache)):
            return None
        record = self.journal.find(key, "call")
        if record is not None and (is_answer(record) or self.journal.mode == "replay"):
            return record
        if self.journal.closed:
            raise BadArgument(
                f"{who()} makes a call, but its journal ({self.journal.path}) is closed: the run is over"
            )
        if self.journal.mode == "replay":
            raise ReplayMiss(
                f"not in the journal: {who()} asks for call {key[:12]}, which {self.journal.path} does not hold; "
                "the run changed (prompt, settings, index) or never finished: run it without replay=True"
            )
        return None

    async def _call(
        self, key: str, hashed: dict[str, Any], request: lm15.Request
    ) -> dict[str, Any]:
        self._check_seeds()
        start, began_at = time.perf_counter(), time.time()
        final: ServerRefused | ModelError | None = None
        reply: dict[str, Any] = {}
        with tallied(key) as tally:
            try:
                response = await self.inner.complete(request)
                reply = _recorded(response, tally.first, self.price)
            # the latter of a tool call that is nested without bound
            except (lm15.LM15Error, RecursionError) as fault:
                # Of several servers, the address of the one that refused. No variable keeps the fault: its message may
                # hold the key, and debuggers show the variables of each frame.
                final = faults.final(
                    fault if isinstance(fault, lm15.LM15Error) else faults.unforeseen(fault),
                    address=getattr(fault, "address", self.address),
                    stage=asker().stage,
                )
        # no model was called, so there is nothing to record
        if isinstance(final, ServerRefused):
            raise final  # outside of the block: the server's message may hold the key, and is no part of this error
        record = {
            "key": key,
            "kind": "call",
            "stage": asker().stage,
            **_present(branch=asker().branch, judged=list(asker().judged)),
            **hashed,
            "address": self.address,
            **reply,
            "at": round(tally.went_out or began_at, 3),
            "seconds": round(time.perf_counter() - start - tally.waited, 6),
            "attempts": tally.attempts or 1,
            **_present(tokens_lost=tally.lost),
            "error": final and faults.describe(final),
        }
        if self.journal is not None:
            self.journal.append(record)
        return record


def prompt_of(request: lm15.Request) -> str | list[list[str]]:
    """What a request shows the model: the text of a single user message, else ``[[role, text], …]``."""
    system = [["system", _text(request.system)]] if request.system else []
    messages = system + [[message.role, _text(message.parts)] for message in request.messages]
    return messages[0][1] if len(messages) == 1 and messages[0][0] == "user" else messages


def text_of(prompt: str | Iterable[Sequence[str]]) -> str:
    """A prompt as one text: itself, or the texts of its rows ``[role, text]``."""
    return prompt if isinstance(prompt, str) else "\n\n".join(text for _, text in prompt)


def _text(parts: Any) -> str:
    if isinstance(parts, str):
        return parts
    return "\n".join(part.text if hasattr(part, "text") else repr(part) for part in parts)


def _parameters(request: lm15.Request) -> dict[str, Any]:
    config = request.config
    given = {
        name: value for name in _PARAMETERS if (value := getattr(config, name)) is not None
    }
    if config.stop:
        given["stop"] = list(config.stop)
    if config.reasoning is not None:
        given["reasoning"] = repr(config.reasoning)
    if request.tools:
        given["tools"] = [repr(tool) for tool in request.tools]
        given["tool_choice"] = repr(config.tool_choice)
    return given


def _recorded(
    response: lm15.Response, first: lm15.Response | None, price: Price | None
) -> dict[str, Any]:
    """The part of a record that the model gave, and what it cost then: prices change, a record does not.

    `first` is a reply that was asked for once more, for which `response` is the second: both were paid for.
    """
    data = response.provider_data or {}
    parts = response.message.parts
    reply, thought = map(whole_characters, texts_of(response))
    safe = secrets.hidden(reply)
    # A server that echoes the key it was sent must not write it into our files, in pieces neither.
    spelled = "".join(t.token for t in response.logprobs or ())
    is_safe = (safe, secrets.hidden(spelled)) == (reply, spelled)
    logprobs = [[t.token, t.logprob] for t in response.logprobs or ()] if is_safe else []
    # A response with tool calls and the like is kept whole.
    plain = all(isinstance(part, lm15.TextPart | lm15.ThinkingPart) for part in parts)
    both = [response] if first is None else [first, response]
    wrong: dict[str, str] = {}
    for answer in both:
        wrong |= (answer.provider_data or {}).get("disbelieved", {})
    return {
        **_present(address=data.get("address")),
        "reply": safe,
        "reasoning": secrets.hidden(thought),
        "finish": response.finish_reason,
        **_present(
            # It went on past a stop string, and was cut there: tokens that are not read.
            ran_on=data.get("ran_on"),
            # Its server stated fewer tokens than the prompt's text has.
            prompt_cut=data.get("prompt_cut"),
            # Tokens that it had beside the cap that was asked for, since the model thinks.
            room=data.get("room"),
            # The batch that it was answered in, and the share of the price that is asked there.
            batch=data.get("batch"),
            rate=data.get("rate"),
            logprobs=logprobs,
        ),
        **_tokens(response),
        **_present(
            first=first and _tokens(first),
            response=None if plain else secrets.hidden_in(response_as_dict(response)),
        ),
        **_paid(both, price),
        **_present(disbelieved=wrong),
    }


def _present(**fields: Any) -> dict[str, Any]:
    """The fields of a record that have something to say."""
    return {name: value for name, value in fields.items() if value}


def _tokens(response: lm15.Response) -> dict[str, int | None]:
    usage = response.usage
    return {
        "tokens_in": usage.input_tokens,
        "tokens_out": usage.output_tokens,
        "tokens_cached": usage.cache_read_tokens,
    }


def _paid(responses: Iterable[lm15.Response], price: Price | None) -> dict[str, Any]:
    """What these responses cost together, whose figure that is, and what their server stated where ours is more."""
    total: dict[str, Any] = {"cost": 0.0}
    for response in responses:
        data = response.provider_data or {}
        theirs = stated(data.get("cost"))
        by_us = cost_of(_tokens(response), rated(price, data))
        by_price = by_us is not None and by_us > (theirs or 0.0)
        cost = by_us if theirs is None or by_price else theirs
        if cost is None:
            return {"cost": None}
        if by_price and theirs is not None:
            total |= {
                "cost_by": "price",
                "cost_stated": total.get("cost_stated", total["cost"]) + theirs,
            }
        elif "cost_stated" in total:
            total["cost_stated"] += cost
        elif theirs is not None:
            total["cost_by"] = data.get("cost_by", "server")
        total["cost"] += cost
    return total


def _response(record: Mapping[str, Any], model: str) -> lm15.Response:
    """What a call's record says, the same whether it was just made or read again.

    Equal texts are one object, as they are in no file: BootstrapFewShot draws among a predictor's demonstrations by a
    hash of their pickles, which tells one text that stands twice from two that are equal.
    """
    if "response" in record:
        return response_of(_interned(record["response"]))
    parts = parts_of(*_interned([record["reply"], record["reasoning"]]))
    scores = record.get("logprobs")
    return lm15.Response(
        id=None,
        model=model,
        message=lm15.Message("assistant", parts),
        finish_reason=record["finish"],
        usage=lm15.Usage(
            input_tokens=record["tokens_in"],
            output_tokens=record["tokens_out"],
            cache_read_tokens=record["tokens_cached"],
        ),
        logprobs=tuple(lm15.TokenLogprob(token=token, logprob=value) for token, value in scores)
        if scores
        else None,
    )


def _interned(value: Any) -> Any:
    if type(value) is str:
        return sys.intern(value)
    if type(value) is list:
        return [_interned(item) for item in value]
    if type(value) is dict:
        return {name: _interned(item) for name, item in value.items()}
    return value


def is_answer(record: Mapping[str, Any]) -> bool:
    """Whether the reply in a call's record is one; else it is asked for again.

    Earlier versions kept some that had broken off, or that a content filter had emptied.
    """
    kept = "content_filter" if record.get("reply") else ""  # a text is flagged `refused_reply`
    return not record.get("error") and record.get("finish", "stop") in (*WHOLE, kept)


def event_of(record: Mapping[str, Any]) -> str:
    """How the reply in a call's record ended: `empty_reply`, `refused_reply`, `cut_reply`, or nothing if well."""
    if not record["reply"].strip() and "response" not in record:
        return "empty_reply"
    if record["finish"] == "content_filter" or is_refusal(record["reply"]):
        return "refused_reply"
    return "cut_reply" if record["finish"] == "length" else ""


_CANNOT = r"(?:can(?:no|')t|can not|won't|will not|(?:am|'m) (?:unable|not able|not allowed|not comfortable)(?: to)?)"
_HELP = (
    r"(?:(?:help|assist)(?:ing)?(?: you)?(?: (?:with|in|on)\b|\s*[.,;!]|\s*$)"
    r"|comply\b|(?:fulfil+|complete|process|respond to|continue with|engage (?:with|in)|discuss)(?:ing)? "
    r"(?:this|that|these|those|your|such)\b|(?:provide|share|give)(?:ing)? (?:that|this|such|you with that)\b)"
)
_REFUSAL = re.compile(
    r"\W{0,8}(?:(?:i'?m|i am) (?:very |so |really )?(?:sorry|afraid)\W{1,4}|sorry\W{1,4}|(?:i )?apologi[sz]e\W{1,4}"
    r"|unfortunately\W{1,4}|as an? (?:ai|artificial|large|language)[^.\n]{0,40}?,\s?|but |however,? |that )*"
    rf"i(?: {_CANNOT}|'m (?:unable|not able|not allowed|not comfortable)(?: to)?)"
    rf" (?:really |actually )?{_HELP}",
    re.IGNORECASE,
)


def is_refusal(reply: str) -> bool:
    """Whether a reply opens with declining; one that does not know the answer is an answer.

    >>> is_refusal("I'm sorry, but I can't help with that."), is_refusal("I cannot tell from the knowledge who it was.")
    (True, False)
    >>> is_refusal("I Can't Help Myself is a song of 1965.")
    False
    """
    return _REFUSAL.match(reply[:300].replace("’", "'")) is not None

"""Model calls through the journal: an engine around an engine.

A hit is served from the file; a miss is called, appended, then used. Equal requests in flight share one call. A call
that failed for good is recorded too: a replay fails the same way, `auto` calls again. What the server address was is
recorded and never hashed: a job may come back on another port.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

from dspy import lm15
from dspy._vendor.lm15.serde import response_from_dict, response_to_dict

from blendfilter import secrets
from blendfilter.context import BRANCH, JUDGED, REPEAT, SAMPLE, STAGE, note, who
from blendfilter.errors import BadArgument, ModelError, ReplayMiss, ServerRefused, copied
from blendfilter.journal import Journal, digest
from blendfilter.lm import faults
from blendfilter.lm.metered import Engine, tallied
from blendfilter.lm.prices import Price, cost_of, stated
from blendfilter.lm.refusals import is_refusal


class JournaledEngine:
    """`inner`, with every call journaled once; without a journal it only notes calls and translates errors.

    Args:
        inner: the engine that really calls.
        model, label, endpoint: what a key names beside the request (`label` is the user's, for two servers that serve
            one name).
        options: settings outside the request that change replies (thinking, reasoning effort, extra body).
        address: where the calls go; recorded, not hashed.
        journal: where they are kept.
        price: what a call costs where its server does not say; None: unknown.
    """

    def __init__(
        self,
        inner: Engine,
        *,
        model: str,
        label: str = "",
        endpoint: str = "chat",
        options: Mapping[str, Any] | None = None,
        address: str = "",
        journal: Journal | None = None,
        price: Price | None = None,
    ) -> None:
        self.inner = inner
        self.model, self.label, self.endpoint, self.address = model, label, endpoint, address
        self.options = {name: value for name, value in (options or {}).items() if value is not None}
        self.journal = journal
        self.price = price
        self._flights: dict[str, concurrent.futures.Future[dict[str, Any]]] = {}
        self._lock = threading.Lock()

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The response to `request`, from the journal or from the model.

        Raises:
            ReplayMiss: a replay does not hold it. ServerRefused, ModelError: the call failed for good.
        """
        asked = self._asked(request)
        key = digest(asked)
        record = self._found(key)
        if record is None:
            record = await self._called_once(key, asked, request)
        if record.get("error"):
            raise _replayed(record)
        note(key, event_of(record))
        return _response(record, self.model)

    def _found(self, key: str) -> dict[str, Any] | None:
        if self.journal is None:
            return None
        record = self.journal.find(key, "call")
        failed = record is not None and record.get("error")
        return None if failed and self.journal.mode != "replay" else record

    def _asked(self, request: lm15.Request) -> dict[str, Any]:
        sample, repeat = SAMPLE.get(), REPEAT.get()
        return {
            "model": self.model,
            "label": self.label,
            "endpoint": self.endpoint,
            "prompt": prompt_of(request),
            "parameters": _parameters(request) | ({"options": self.options} if self.options else {}),
            # The first answer's calls are those of a run without repeats, so that either can be reused for the other.
            "sample": [sample.rollout_id, sample.i, *([repeat] if repeat > 1 else [])],
        }

    async def _called_once(self, key: str, asked: dict[str, Any], request: lm15.Request) -> dict[str, Any]:
        if self.journal is not None and self.journal.closed:
            raise BadArgument(
                f"{who()} asks for a call, but its journal ({self.journal.path}) is closed: the run is over"
            )
        if self.journal is not None and self.journal.mode == "replay":
            raise ReplayMiss(
                f"not in the journal: {who()} asks for call {key[:12]}, which {self.journal.path} does not hold; "
                "the run changed (prompt, settings, index) or never finished: run it without --replay"
            )
        while True:
            with self._lock:
                flight = self._flights.get(key)
                if flight is None:
                    mine = self._flights[key] = concurrent.futures.Future()
            if flight is None:
                return await self._lead(key, asked, request, mine)
            try:
                return await asyncio.shield(asyncio.wrap_future(flight))
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if not flight.cancelled() or (task is not None and task.cancelling()):
                    raise
                continue  # Only the one who called for us was cancelled: somebody takes over.
            except Exception as error:  # noqa: BLE001 - whatever the one who called for us met
                failure = copied(error)
            raise failure

    async def _lead(
        self,
        key: str,
        asked: dict[str, Any],
        request: lm15.Request,
        flight: concurrent.futures.Future[dict[str, Any]],
    ) -> dict[str, Any]:
        try:
            # Once more: another loop may have answered since this one looked.
            record = self._found(key) or await self._call(key, asked, request)
        except BaseException as error:
            if isinstance(error, Exception):
                flight.set_exception(error)
                flight.exception()  # retrieved: nobody may be following
            else:
                flight.cancel()
            raise
        else:
            flight.set_result(record)
            return record
        finally:
            with self._lock:
                self._flights.pop(key, None)

    async def _call(self, key: str, asked: dict[str, Any], request: lm15.Request) -> dict[str, Any]:
        start, asked_at = time.perf_counter(), time.time()
        error: dict[str, Any] | None = None
        final: ServerRefused | ModelError | None
        response: lm15.Response | None = None
        said: dict[str, Any] = {}
        with tallied() as tally:
            try:
                response = await self.inner.complete(request)
                said = _said(response, self.price)
            except (lm15.LM15Error, RecursionError) as fault:  # the latter of a tool call that is nested without bound
                tried = getattr(fault, "attempts", 1)
                # Of several servers, the one that refused.
                final = _final(fault, getattr(fault, "address", self.address))
                error = faults.describe(final)
            else:
                final, tried = None, (response.provider_data or {}).get("attempts", 1)
        if isinstance(final, ServerRefused):  # nothing was asked of a model, so there is nothing to record
            raise final  # outside of the block: what the server said may hold the key, and is no part of this error
        record = {
            "key": key,
            "kind": "call",
            "stage": STAGE.get(),
            **({"branch": BRANCH.get()} if BRANCH.get() else {}),
            **({"judged": list(JUDGED.get())} if JUDGED.get() else {}),
            **asked,
            "address": (response.provider_data or {}).get("address", self.address) if response else self.address,
            **said,
            "at": round(tally.went_out or asked_at, 3),
            "seconds": round(time.perf_counter() - start - tally.waited, 6),
            "attempts": tally.attempts or tried,
            **({"tokens_lost": tally.lost} if tally.lost else {}),
            "error": error,
        }
        if self.journal is not None:
            self.journal.append(record)
        return record


def _final(fault: Exception, address: str) -> ServerRefused | ModelError:
    known = fault if isinstance(fault, lm15.LM15Error) else faults.unforeseen(fault)
    return faults.final(known, address=address, stage=STAGE.get())


def prompt_of(request: lm15.Request) -> str | list[list[str]]:
    """What a request shows the model: the text of a single user message, else ``[[role, text], …]``."""
    system = [["system", _text(request.system)]] if request.system else []
    messages = system + [[message.role, _text(message.parts)] for message in request.messages]
    return messages[0][1] if len(messages) == 1 and messages[0][0] == "user" else messages


def _text(parts: Any) -> str:
    if isinstance(parts, str):
        return parts
    return "\n".join(part.text if hasattr(part, "text") else repr(part) for part in parts)


_PARAMETERS = (
    "temperature", "top_p", "top_k", "max_tokens", "seed", "frequency_penalty", "presence_penalty",
    "response_format", "logprobs", "extensions",
)  # fmt: skip


def _parameters(request: lm15.Request) -> dict[str, Any]:
    config = request.config
    set_ones = {name: value for name in _PARAMETERS if (value := getattr(config, name)) is not None}
    if config.stop:
        set_ones["stop"] = list(config.stop)
    if config.reasoning is not None:
        set_ones["reasoning"] = repr(config.reasoning)
    if request.tools:
        set_ones["tools"] = [repr(tool) for tool in request.tools]
        set_ones["tool_choice"] = repr(config.tool_choice)
    return set_ones


def _said(response: lm15.Response, price: Price | None) -> dict[str, Any]:
    """The part of a record that the model gave, and what it cost then: prices change, a record does not."""
    usage, data = response.usage, response.provider_data or {}
    parts = response.message.parts
    reply = _whole(part.text for part in parts if isinstance(part, lm15.TextPart))
    safe = secrets.hidden(reply)
    # A server that echoes the key it was sent must not write it into our files, in pieces neither.
    logprobs = [[t.token, t.logprob] for t in response.logprobs or ()] if safe == reply else []
    said: dict[str, Any] = {
        "reply": safe,
        "reasoning": secrets.hidden(_whole(part.text for part in parts if isinstance(part, lm15.ThinkingPart))),
        "finish": response.finish_reason,
        # It went on past a stop string, and was cut there: tokens that nobody reads.
        **({"ran_on": True} if data.get("ran_on") else {}),
        **({"logprobs": logprobs} if logprobs else {}),
        "tokens_in": usage.input_tokens,
        "tokens_out": usage.output_tokens,
        "tokens_cached": usage.cache_read_tokens,
        # Tool calls and the like have no place above: such a response is kept whole.
        **(
            {}
            if all(isinstance(part, _PLAIN) for part in parts)
            else {"response": secrets.hidden_in(response_to_dict(response))}
        ),
    }
    said |= _cost(data, cost_of(said, price))
    return said


def _cost(data: Mapping[str, Any], reckoned: float | None) -> dict[str, Any]:
    """What a call cost: the larger of what its server states and what our price makes of it, and which that is."""
    said, wrong = stated(data.get("cost")), data.get("disbelieved")
    by_price = reckoned is not None and reckoned > (said or 0.0)
    by = {"cost_by": "price" if by_price else data.get("cost_by", "server")}
    return {
        "cost": reckoned if said is None or by_price else said,
        **(by if said is not None else {}),
        **({"cost_stated": said} if said is not None and by_price else {}),
        **({"disbelieved": wrong} if wrong else {}),
    }


def _whole(texts: Iterable[str]) -> str:
    """`texts` joined; half a character becomes a question mark: the next prompt holds it, and no server takes that."""
    return "".join(texts).encode("utf-8", "replace").decode()


_PLAIN = (lm15.TextPart, lm15.ThinkingPart)


def _response(record: Mapping[str, Any], model: str) -> lm15.Response:
    if "response" in record:
        return response_from_dict(record["response"])
    parts: list[Any] = []
    if record["reasoning"]:
        parts.append(lm15.ThinkingPart(text=record["reasoning"]))
    parts.append(lm15.TextPart(text=record["reply"]))
    scores = record.get("logprobs")
    return lm15.Response(
        id=None,
        model=model,
        message=lm15.Message(role="assistant", parts=tuple(parts)),
        finish_reason=record["finish"],
        usage=lm15.Usage(
            input_tokens=record["tokens_in"],
            output_tokens=record["tokens_out"],
            cache_read_tokens=record["tokens_cached"],
        ),
        logprobs=tuple(lm15.TokenLogprob(token=token, logprob=value) for token, value in scores) if scores else None,
    )


def event_of(record: Mapping[str, Any]) -> str:
    """What the reply of a call's record is counted as; nothing where it ended well."""
    if not record["reply"].strip() and "response" not in record:
        return "empty_reply"
    if record["finish"] == "content_filter" or is_refusal(record["reply"]):
        return "refused_reply"
    return "cut_reply" if record["finish"] == "length" else ""


def _replayed(record: Mapping[str, Any]) -> Exception:
    error = faults.restore(record["error"])
    if isinstance(error, ModelError):
        error.stage, error.attempts = STAGE.get(), record.get("attempts") or 0
        note(record["key"], "error")
    return error

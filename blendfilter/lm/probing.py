"""What a model server supports, found out by asking it: JSON schema, log-probabilities, echo, n, seed, stop, usage.

In: a model that `connect()` made. Out: a `Probe` each, yes, no or cannot tell, and why in words. Each is one tiny call
(the seed takes three), one after the other, for some servers drop a call when the next one comes. Nothing of it is
journaled: it is about the server as it is now. A probe that fails is an answer; only a server that is not there, or
that refuses the key or the model, stops the rest.

A server that ignores a field says so in no way: each probe asks for something that a reply can be seen to obey.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from dspy import lm15

from blendfilter import secrets
from blendfilter.errors import ServerRefused
from blendfilter.lm import bridge, faults
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.openai import OpenAIEngine
from blendfilter.lm.profiles import split_thinking

T = TypeVar("T")
Answer = Literal["yes", "no", "cannot tell"]
ATTEMPTS, WAIT = 3, 0.5
"""How often a fault that passes is tried again, and after how many seconds."""
_TOKENS = 48
_NUMBERS = {"type": "array", "items": {"type": "integer", "enum": [3, 7]}, "minItems": 1, "maxItems": 3}
_SCHEMA = {"type": "object", "properties": {"ids": _NUMBERS}, "required": ["ids"], "additionalProperties": False}
_FORMAT = {"type": "json_schema", "json_schema": {"name": "ids", "strict": True, "schema": _SCHEMA}}
_PROSE = "Write one short sentence about the sea."
_WORDS = "Repeat this line word for word: alpha bravo charlie delta echo foxtrot"
_RANDOM = "Write a random number of eight digits, and nothing else."


class Probe(NamedTuple):
    """One thing that a server may support."""

    name: str
    answer: Answer
    why: str = ""


class Said(NamedTuple):
    """What one probe came to."""

    answer: Answer
    why: str = ""


def probe(lm: ConnectedLM) -> list[Probe]:
    """Everything there is to find out about the server of `lm`; nothing for a model in this process.

    Raises:
        ServerRefused: the server is not there, or refuses the key.
    """
    return bridge.run(aprobe(lm), "probe", "await aprobe(…)")


async def aprobe(lm: ConnectedLM) -> list[Probe]:
    """The same, awaited."""
    engine = served_by(lm)
    if engine is None:
        return []
    asking = _Asking(engine)
    await asking.first()
    told = [await _answered(name, ask, asking) for name, ask in _PROBES.items()]
    # How a call is accounted for shows in the replies that there were.
    return [*told, Probe("usage", *_usage(asking.usages)), Probe("cached tokens", *_cached(asking.usages))]


def served_by(lm: ConnectedLM) -> OpenAIEngine | None:
    """The engine that speaks to a server, the first where there are several; None where there is no server."""
    engines = getattr(lm.inner, "engines", None) or [lm.inner]
    return next((each for each in engines if isinstance(each, OpenAIEngine)), None)


class _Asking:
    """One server under questions; it keeps what the replies say of tokens."""

    def __init__(self, engine: OpenAIEngine) -> None:
        self.engine = engine
        self.usages: list[Mapping[str, Any]] = []

    async def first(self) -> None:
        """A call as any other, which teaches the engine what parameters the server refuses. Raises: ServerRefused."""
        config = lm15.Config(temperature=0.0, max_tokens=_TOKENS)
        request = lm15.Request(model=self.engine.model, messages=(lm15.Message.user(_PROSE),), config=config)
        try:
            await self._patiently(lambda: self.engine.complete(request))
        except lm15.LM15Error as error:
            final = faults.final(error, address=self.engine.address, stage="probe")
            if isinstance(final, ServerRefused):
                raise final from None

    async def choices(self, prompt: str, *, config: Mapping[str, Any] | None = None, **fields: Any) -> list[Any]:
        """The choices of a reply to `prompt`, sent as any call is, with these `fields` over it."""
        settings = {"temperature": 0.0, "max_tokens": _TOKENS, **(config or {})}
        request = lm15.Request(
            model=self.engine.model, messages=(lm15.Message.user(prompt),), config=lm15.Config(**settings)
        )
        return await self.post(self.engine.path, {**self.engine.body_of(request), **fields})

    async def post(self, path: str, body: dict[str, Any]) -> list[Any]:
        """The choices of a reply at `path`. Raises: an lm15 error."""
        data = await self._patiently(lambda: self.engine.raw(path, body))
        found = data.get("choices")
        if not isinstance(found, list) or not found or not all(isinstance(each, dict) for each in found):
            raise faults.in_reply(data)
        if isinstance(data.get("usage"), dict):
            self.usages.append(data["usage"])
        return found

    async def models(self) -> dict[str, Any]:
        return await self._patiently(lambda: self.engine.raw("/models"))

    async def _patiently(self, call: Callable[[], Awaitable[T]]) -> T:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return await call()
            except lm15.LM15Error as error:
                # One that takes a timeout's time to say nothing would take it for each attempt at each probe.
                if attempt == ATTEMPTS or not faults.retryable(error) or isinstance(error, lm15.TimeoutError):
                    raise
            await asyncio.sleep(WAIT * attempt)
        raise AssertionError  # the last attempt returned or raised


async def _answered(name: str, ask: Callable[[_Asking], Awaitable[Said]], asking: _Asking) -> Probe:
    try:
        return Probe(name, *await ask(asking))
    except lm15.LM15Error as error:
        if getattr(error, "provider_code", None) == faults.NO_CONNECTION:
            raise faults.final(error, address=asking.engine.address, stage="probe") from None
        said = str(faults.describe(error)["message"])
        return Probe(name, "cannot tell" if faults.retryable(error) else "no", f"it says: {said}")


async def _json_schema(asking: _Asking) -> Said:
    text = _text((await asking.choices(_PROSE, response_format=_FORMAT))[0])
    if not text:
        return Said("cannot tell", _quoted(text))
    try:
        ids = json.loads(text)["ids"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return Said("no", f"it takes the schema and does not obey it ({_quoted(text)})")
    fits = isinstance(ids, list) and ids and all(each in (3, 7) for each in ids)
    return Said("yes") if fits else Said("no", f"JSON, but not by the schema ({_quoted(text)})")


async def _logprobs(asking: _Asking) -> Said:
    chat = asking.engine.path.startswith("/chat")
    choice = (await asking.choices(_PROSE, logprobs=True if chat else 1))[0]
    told = choice.get("logprobs")
    tokens = (told.get("content") or told.get("token_logprobs")) if isinstance(told, dict) else None
    return Said("yes") if tokens else Said("no", "the reply holds none")


async def _echo(asking: _Asking) -> Said:
    body = {"model": asking.engine.model, "prompt": _WORDS, "max_tokens": 1, "echo": True, "logprobs": 1}
    choice = (await asking.post("/completions", body))[0]
    if not str(choice.get("text") or "").startswith(_WORDS):
        return Said("no", "the completions endpoint does not repeat the prompt")
    told = choice.get("logprobs")
    scores = told.get("token_logprobs") if isinstance(told, dict) else None
    scored = len([each for each in scores if each is not None]) if isinstance(scores, list) else 0
    if scored <= 2:
        return Said("no", "it repeats the prompt without log-probabilities")
    return Said("yes", "whether they are those of its own tokens, the first score finds out")


async def _n(asking: _Asking) -> Said:
    got = len(await asking.choices(_PROSE, config={"temperature": 1.0}, n=2))
    return Said("yes") if got == 2 else Said("no", f"asked for 2 replies, it gave {got} (blendfilter asks one by one)")


async def _seed(asking: _Asking) -> Said:
    first, again, other = [
        _text((await asking.choices(_RANDOM, config={"temperature": 1.0, "seed": seed}))[0]) for seed in (7, 7, 8)
    ]
    if not first.strip():
        return Said("cannot tell", "its replies were empty")
    if first != again:
        return Said("no", "one seed gave two replies at temperature 1")
    return Said("yes") if first != other else Said("cannot tell", "two seeds gave one reply at temperature 1")


async def _stop(asking: _Asking) -> Said:
    text = _text((await asking.choices(_WORDS, stop=["charlie"]))[0]).lower()
    if "charlie" in text:
        return Said("no", "it goes on past the stop string (blendfilter cuts the reply; its tokens are paid for)")
    return Said("yes") if "bravo" in text else Said("cannot tell", f"it did not repeat a line ({_quoted(text)})")


async def _models(asking: _Asking) -> Said:
    rows = (await asking.models()).get("data")
    names = [str(each.get("id")) for each in rows if isinstance(each, dict)] if isinstance(rows, list) else []
    if not names:
        return Said("no", "its list of models is empty")
    if asking.engine.model in names:
        return Said("yes")
    return Said("yes", f"but not under the name {asking.engine.model!r}: it lists {', '.join(names[:3])}")


_PROBES: Mapping[str, Callable[[_Asking], Awaitable[Said]]] = {
    "JSON schema": _json_schema,
    "log-probabilities": _logprobs,
    "echo": _echo,
    "n": _n,
    "seed": _seed,
    "stop": _stop,
    "models listed": _models,
}


def _usage(usages: list[Mapping[str, Any]]) -> Said:
    told = any(isinstance(each.get("prompt_tokens"), int) for each in usages)
    return Said("yes") if told else Said("no", "replies say no token counts: the ledger cannot count, budgets estimate")


def _cached(usages: list[Mapping[str, Any]]) -> Said:
    details = (each.get("prompt_tokens_details") for each in usages)
    told = any(isinstance(each, dict) and each.get("cached_tokens") is not None for each in details)
    return Said("yes") if told else Said("no", "replies do not say how much of a prompt was cached")


def _quoted(text: str) -> str:
    return f"it said {secrets.hidden(text)[:40]!r}" if text else "its reply was empty"


def _text(choice: Mapping[str, Any]) -> str:
    """A choice's text, without the thinking before it."""
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    return split_thinking(text if isinstance(text, str) else "")[1].strip()

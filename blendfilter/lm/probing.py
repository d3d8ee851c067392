"""What a model server supports, found out by calling it: JSON schema, log-probabilities, echo, n, seed, stop, usage.

Each probe is one tiny call (the seed takes three), one after the other, for some servers drop a call when the next one
comes. Nothing of it is journaled: it is about the server as it is now. A server that ignores a field does so silently,
so each probe asks for something that a reply can be seen to obey. A probe that fails is an answer; only a server that
is not there, or that refuses the key or the model, stops the rest.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from blendfilter import aio, secrets
from blendfilter.dspy_surface import lm15
from blendfilter.errors import ServerRefused
from blendfilter.lm import faults
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.openai import OpenAIEngine, object_of, servers_of
from blendfilter.lm.profiles import split_thinking

Answer = Literal["yes", "no", "cannot tell"]
Finding = tuple[Answer, str]
_TOKENS = 48
_NUMBERS = {
    "type": "array",
    "items": {"type": "integer", "enum": [3, 7]},
    "minItems": 1,
    "maxItems": 3,
}
_SCHEMA = {
    "type": "object",
    "properties": {"ids": _NUMBERS},
    "required": ["ids"],
    "additionalProperties": False,
}
_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "ids", "strict": True, "schema": _SCHEMA},
}
_PROSE = "Write one short sentence about the sea."
_WORDS = "Repeat this line word for word: alpha bravo charlie delta echo foxtrot"
_RANDOM = "Write a random number of eight digits, and nothing else."


class Probe(NamedTuple):
    """One thing that a server may support."""

    name: str
    answer: Answer
    why: str = ""


def probe(lm: ConnectedLM) -> list[Probe]:
    """Everything there is to find out about the server of `lm`; nothing for a model in this process.

    Raises:
        ServerRefused: the server is not there, or refuses the key.
    """
    servers = servers_of(lm.inner)
    return (
        aio.run(_Prober(servers[0]).probes(), "probe", "in another thread") if servers else []
    )


@dataclass
class _Prober:
    """Calls one server, and keeps what its replies state of tokens."""

    engine: OpenAIEngine
    usages: list[Mapping[str, Any]] = field(default_factory=list)

    async def probes(self) -> list[Probe]:
        try:  # a call as any other, which teaches the engine what parameters the server refuses
            await self.engine.complete(self._request(_PROSE))
        except lm15.LM15Error as error:
            final = faults.final(error, address=self.engine.address, stage="probe")
            if isinstance(final, ServerRefused):
                raise final from None
        probes = {
            "JSON schema": self.json_schema,
            "log-probabilities": self.logprobs,
            "echo": self.echo,
            "n": self.n,
            "seed": self.seed,
            "stop": self.stop,
            "models listed": self.models,
        }
        found = [await self._answered(name, ask) for name, ask in probes.items()]
        # How a call is accounted for shows in the replies that there were.
        return [*found, Probe("usage", *self.usage()), Probe("cached tokens", *self.cached())]

    async def _answered(self, name: str, ask: Callable[[], Awaitable[Finding]]) -> Probe:
        try:
            return Probe(name, *await ask())
        except lm15.LM15Error as error:
            if faults.is_unreached(error):
                raise faults.final(error, address=self.engine.address, stage="probe") from None
            message = str(faults.describe(error)["message"])
            return Probe(
                name, "cannot tell" if faults.retryable(error) else "no", f"it says: {message}"
            )

    def _request(self, prompt: str, **config: Any) -> lm15.Request:
        settings = lm15.Config(**{"temperature": 0.0, "max_tokens": _TOKENS, **config})
        return lm15.Request(
            model=self.engine.model, messages=(lm15.Message.user(prompt),), config=settings
        )

    async def _choices(
        self, prompt: str, *, config: Mapping[str, Any] | None = None, **fields: Any
    ) -> list[Any]:
        """The choices of a reply to `prompt`, sent as any call is, with these `fields` over it."""
        body = self.engine.body_of(self._request(prompt, **(config or {})))
        return await self._post(self.engine.path, {**body, **fields})

    async def _post(self, path: str, body: dict[str, Any]) -> list[Any]:
        data = await self.engine.raw(path, body)
        choices = _list(data.get("choices"))
        if not choices or not all(isinstance(choice, dict) for choice in choices):
            raise faults.in_reply(data)
        self.usages.append(object_of(data.get("usage")))
        return choices

    async def json_schema(self) -> Finding:
        text = _text((await self._choices(_PROSE, response_format=_FORMAT))[0])
        if not text:
            return "cannot tell", _quoted(text)
        try:
            ids = json.loads(text)["ids"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return "no", f"it takes the schema and does not obey it ({_quoted(text)})"
        fits = isinstance(ids, list) and ids and all(number in (3, 7) for number in ids)
        return _yes_if(fits, f"JSON, but not by the schema ({_quoted(text)})")

    async def logprobs(self) -> Finding:
        chat = self.engine.path.startswith("/chat")
        (choice, *_) = await self._choices(_PROSE, logprobs=True if chat else 1)
        scores = object_of(choice.get("logprobs"))
        return _yes_if(
            scores.get("content") or scores.get("token_logprobs"), "the reply holds none"
        )

    async def echo(self) -> Finding:
        body = {"prompt": _WORDS, "max_tokens": 1, "echo": True, "logprobs": 1}
        (choice, *_) = await self._post("/completions", {"model": self.engine.model, **body})
        if not str(choice.get("text") or "").startswith(_WORDS):
            return "no", "the completions endpoint does not repeat the prompt"
        scores = object_of(choice.get("logprobs")).get("token_logprobs")
        if len([score for score in _list(scores) if score is not None]) <= 2:
            return "no", "it repeats the prompt without log-probabilities"
        return "yes", "whether they are those of its own tokens, the first score finds out"

    async def n(self) -> Finding:
        got = len(await self._choices(_PROSE, config={"temperature": 1.0}, n=2))
        return _yes_if(
            got == 2, f"asked for 2 replies, it gave {got} (blendfilter asks one by one)"
        )

    async def seed(self) -> Finding:
        first, again, other = [
            _text((await self._choices(_RANDOM, config={"temperature": 1.0, "seed": seed}))[0])
            for seed in (7, 7, 8)
        ]
        if not first:
            return "cannot tell", "its replies were empty"
        if first != again:
            return "no", "one seed gave two replies at temperature 1"
        return _yes_if(
            first != other, "two seeds gave one reply at temperature 1", "cannot tell"
        )

    async def stop(self) -> Finding:
        text = _text((await self._choices(_WORDS, stop=["charlie"]))[0]).lower()
        if "charlie" in text:
            why = "it goes on past the stop string (blendfilter cuts the reply; its tokens are paid for)"
            return "no", why
        return _yes_if(
            "bravo" in text, f"it did not repeat a line ({_quoted(text)})", "cannot tell"
        )

    async def models(self) -> Finding:
        rows = _list((await self.engine.raw("/models")).get("data"))
        names = [str(object_of(row).get("id")) for row in rows]
        if not names:
            return "no", "its list of models is empty"
        if self.engine.model in names:
            return "yes", ""
        listed = ", ".join(names[:3])
        return "yes", f"but not under the name {self.engine.model!r}: it lists {listed}"

    def usage(self) -> Finding:
        counts = any(isinstance(usage.get("prompt_tokens"), int) for usage in self.usages)
        why = "replies say no token counts: the ledger cannot count, budgets estimate"
        return _yes_if(counts, why)

    def cached(self) -> Finding:
        details = [object_of(usage.get("prompt_tokens_details")) for usage in self.usages]
        counts = any(detail.get("cached_tokens") is not None for detail in details)
        return _yes_if(counts, "replies do not say how much of a prompt was cached")


def _yes_if(is_so: object, why_not: str, otherwise: Answer = "no") -> Finding:
    return ("yes", "") if is_so else (otherwise, why_not)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _quoted(text: str) -> str:
    return f"it said {secrets.hidden(text)[:40]!r}" if text else "its reply was empty"


def _text(choice: Mapping[str, Any]) -> str:
    """A choice's text, without the thinking before it."""
    text = object_of(choice.get("message")).get("content", choice.get("text"))
    return split_thinking(text if isinstance(text, str) else "")[1].strip()

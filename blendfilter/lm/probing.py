"""What a model server supports, found out by calling it: JSON schema, log-probabilities, echo, n, seed, stop, usage.

Each probe is one tiny call (the seed takes three), one after the other, for some servers drop a call when the next one
comes. Nothing of it is journaled: it is about the server as it is now. A server that ignores a field does so silently,
so each probe asks for something that a reply can be seen to obey. A probe that fails is an answer; only a server that
is not there, or that refuses the key or the model, stops the rest.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, NamedTuple

from blendfilter import aio, secrets
from blendfilter.dspy_surface import lm15
from blendfilter.errors import ServerRefused
from blendfilter.lm import faults
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.openai import OpenAIEngine
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
_FORMAT = {"type": "json_schema", "json_schema": {"name": "ids", "strict": True, "schema": _SCHEMA}}
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
    engines = getattr(lm.inner, "engines", None) or [lm.inner]
    engine = next((each for each in engines if isinstance(each, OpenAIEngine)), None)
    return [] if engine is None else aio.run(_Prober(engine).probes(), "probe", "in another thread")


class _Prober:
    """Calls one server, and keeps what its replies state of tokens."""

    def __init__(self, engine: OpenAIEngine) -> None:
        self.engine = engine
        self.usages: list[Mapping[str, Any]] = []

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
            if getattr(error, "provider_code", None) == faults.NO_CONNECTION:
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
        found = data.get("choices")
        if (
            not isinstance(found, list)
            or not found
            or not all(isinstance(each, dict) for each in found)
        ):
            raise faults.in_reply(data)
        if isinstance(data.get("usage"), dict):
            self.usages.append(data["usage"])
        return found

    async def json_schema(self) -> Finding:
        text = _text((await self._choices(_PROSE, response_format=_FORMAT))[0])
        if not text:
            return "cannot tell", _quoted(text)
        try:
            ids = json.loads(text)["ids"]
        except (ValueError, TypeError, KeyError, RecursionError):
            return "no", f"it takes the schema and does not obey it ({_quoted(text)})"
        fits = isinstance(ids, list) and ids and all(each in (3, 7) for each in ids)
        return ("yes", "") if fits else ("no", f"JSON, but not by the schema ({_quoted(text)})")

    async def logprobs(self) -> Finding:
        chat = self.engine.path.startswith("/chat")
        scores = (await self._choices(_PROSE, logprobs=True if chat else 1))[0].get("logprobs")
        tokens = (
            (scores.get("content") or scores.get("token_logprobs"))
            if isinstance(scores, dict)
            else None
        )
        return ("yes", "") if tokens else ("no", "the reply holds none")

    async def echo(self) -> Finding:
        body = {
            "model": self.engine.model,
            "prompt": _WORDS,
            "max_tokens": 1,
            "echo": True,
            "logprobs": 1,
        }
        choice = (await self._post("/completions", body))[0]
        if not str(choice.get("text") or "").startswith(_WORDS):
            return "no", "the completions endpoint does not repeat the prompt"
        logprobs = choice.get("logprobs")
        scores = logprobs.get("token_logprobs") if isinstance(logprobs, dict) else None
        if not isinstance(scores, list) or len([each for each in scores if each is not None]) <= 2:
            return "no", "it repeats the prompt without log-probabilities"
        return "yes", "whether they are those of its own tokens, the first score finds out"

    async def n(self) -> Finding:
        got = len(await self._choices(_PROSE, config={"temperature": 1.0}, n=2))
        return (
            ("yes", "")
            if got == 2
            else ("no", f"asked for 2 replies, it gave {got} (blendfilter asks one by one)")
        )

    async def seed(self) -> Finding:
        first, again, other = [
            _text((await self._choices(_RANDOM, config={"temperature": 1.0, "seed": seed}))[0])
            for seed in (7, 7, 8)
        ]
        if not first.strip():
            return "cannot tell", "its replies were empty"
        if first != again:
            return "no", "one seed gave two replies at temperature 1"
        return (
            ("yes", "")
            if first != other
            else ("cannot tell", "two seeds gave one reply at temperature 1")
        )

    async def stop(self) -> Finding:
        text = _text((await self._choices(_WORDS, stop=["charlie"]))[0]).lower()
        if "charlie" in text:
            return (
                "no",
                "it goes on past the stop string (blendfilter cuts the reply; its tokens are paid for)",
            )
        return (
            ("yes", "")
            if "bravo" in text
            else ("cannot tell", f"it did not repeat a line ({_quoted(text)})")
        )

    async def models(self) -> Finding:
        rows = (await self.engine.raw("/models")).get("data")
        names = (
            [str(each.get("id")) for each in rows if isinstance(each, dict)]
            if isinstance(rows, list)
            else []
        )
        if not names:
            return "no", "its list of models is empty"
        listed = self.engine.model in names
        return (
            "yes",
            ""
            if listed
            else f"but not under the name {self.engine.model!r}: it lists {', '.join(names[:3])}",
        )

    def usage(self) -> Finding:
        if any(isinstance(each.get("prompt_tokens"), int) for each in self.usages):
            return "yes", ""
        return "no", "replies say no token counts: the ledger cannot count, budgets estimate"

    def cached(self) -> Finding:
        details = (each.get("prompt_tokens_details") for each in self.usages)
        if any(
            isinstance(each, dict) and each.get("cached_tokens") is not None for each in details
        ):
            return "yes", ""
        return "no", "replies do not say how much of a prompt was cached"


def _quoted(text: str) -> str:
    return f"it said {secrets.hidden(text)[:40]!r}" if text else "its reply was empty"


def _text(choice: Mapping[str, Any]) -> str:
    """A choice's text, without the thinking before it."""
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else choice.get("text")
    return split_thinking(text if isinstance(text, str) else "")[1].strip()

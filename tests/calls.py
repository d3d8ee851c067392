"""What tests of single model calls share: an engine written as a coroutine, requests, and a way to ask."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from dspy import lm15
from scripted import response

from blendfilter.journal import Journal
from blendfilter.lm.journaled import JournaledEngine


class Live:
    """An engine that answers with a coroutine of (request, number of the call)."""

    def __init__(self, answer: Callable[[lm15.Request, int], Awaitable[lm15.Response]] | None = None) -> None:
        self.calls = 0
        self._answer = answer

    async def complete(self, request: lm15.Request) -> lm15.Response:
        self.calls += 1
        if self._answer is not None:
            return await self._answer(request, self.calls)
        return response(f"reply {self.calls}")


def request(prompt: str = "Question: q\nAnswer:", system: str | None = None, **config: Any) -> lm15.Request:
    config = {"temperature": 0.0, "max_tokens": 32, **config}
    return lm15.Request(model="m", messages=(lm15.Message.user(prompt),), system=system, config=lm15.Config(**config))


def ask(engine: JournaledEngine, wanted: lm15.Request | None = None) -> str:
    return text_of(asyncio.run(engine.complete(wanted or request())))


def text_of(answer: lm15.Response) -> str:
    return "".join(part.text for part in answer.message.parts if isinstance(part, lm15.TextPart))


def journaled(inner: Any, journal: Journal | None = None, **options: Any) -> JournaledEngine:
    return JournaledEngine(inner, **{"model": "m", "journal": journal, **options})

"""A user's own `dspy.LM` (or `BaseLM`) as an engine, so that its calls are journaled and counted like ours."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import dspy
from dspy import lm15
from dspy.utils.exceptions import LMError

_FAULTS: dict[str, type[lm15.LM15Error]] = {
    "ContextWindowExceededError": lm15.ContextLengthError,
    "LMAuthError": lm15.AuthError,
    "LMRateLimitError": lm15.RateLimitError,
    "LMTimeoutError": lm15.TimeoutError,
    "LMServerError": lm15.ServerError,
    "LMTransportError": lm15.TransportError,
    "LMInvalidRequestError": lm15.InvalidRequestError,
    "LMUnsupportedModelError": lm15.UnsupportedModelError,
}


class AdoptedEngine:
    """Answers a request through `lm`: awaited where it can be, in a worker thread where it is synchronous only."""

    def __init__(self, lm: dspy.BaseLM) -> None:
        self.lm = lm.copy(cache=False)  # the journal is the cache; DSPy's would report no tokens

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The model's response. Raises: lm15 errors, whatever DSPy made of them."""
        own = replace(request, model=self.lm.model)
        # The model around it is the one that DSPy is told of: streams, callbacks and usage count each call once.
        with dspy.context(send_stream=None, callbacks=[], usage_tracker=None):
            return await self._answer(own)

    async def _answer(self, own: lm15.Request) -> lm15.Response:
        try:
            if is_asynchronous(self.lm):
                return await self.lm.acall(request=own)
            return await asyncio.to_thread(self.lm, request=own)
        except LMError as error:
            if isinstance(error.__cause__, lm15.LM15Error):
                raise error.__cause__ from None
            kind = _FAULTS.get(type(error).__name__, lm15.ProviderError)
            raise kind(str(error)) from error


def is_asynchronous(lm: Any) -> bool:
    """Whether `lm.acall` leads somewhere: an engine of its own with an asynchronous half, or an `aforward`."""
    if isinstance(lm, dspy.LM):
        return isinstance(lm.engine, str) or lm._async_engine_spec is not None
    return type(lm).aforward is not dspy.BaseLM.aforward

"""Whatever a user's own model raises is read as one of our faults: tried again, told, recorded, without its key."""

from __future__ import annotations

import dataclasses
import traceback
from pathlib import Path
from typing import Any

import dspy
import httpx
import openai
import pytest
from dspy import lm15
from dspy.utils import exceptions

from blendfilter.errors import MissingExtra, ModelError, ServerRefused
from blendfilter.journal import Journal
from blendfilter.lm.connect import connect
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.retrying import Retry

pytestmark = pytest.mark.filterwarnings("ignore:Implementing custom LMs:DeprecationWarning")


class Awaited(dspy.BaseLM):  # type: ignore[misc]
    """A user's model that is awaited."""

    async def aforward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
        return self.forward(prompt, messages, **kwargs)


def hasty(lm: ConnectedLM) -> ConnectedLM:
    """The same, whose retries do not wait."""
    lm.terms = dataclasses.replace(lm.terms, retry=Retry(wait_first=0.001, wait_max=0.002))
    return lm.with_journal(lm.journal)


REQUEST = httpx.Request("POST", "http://127.0.0.1/v1", headers={"Authorization": "Bearer sk-verysecret0123"})


def of_openai(status: int, message: str, **more: Any) -> openai.APIStatusError:
    kind = openai.RateLimitError if status == 429 else openai.BadRequestError
    response = httpx.Response(status, request=REQUEST, headers={"retry-after": "0"})
    return kind(message, response=response, body={"message": message, **more})


FAULTS = [
    (exceptions.LMTransportError("gone"), "server_error", True),
    (exceptions.LMLockTimeoutError("held"), "server_error", True),
    (exceptions.LMTimeoutError("slow"), "timeout", True),
    (exceptions.LMServerError("down", status=503), "server_error", True),
    (exceptions.LMRateLimitError("busy", status=429, retry_after=0.0), "rate_limited", True),
    (exceptions.LMInvalidRequestError("bad", status=400), "bad_request", False),
    (exceptions.ContextWindowExceededError(message="long"), "context_too_long", False),
    (exceptions.LMAuthError("no", status=401), "refused", False),
    (exceptions.LMNotConfiguredError("no key"), "refused", False),
    (exceptions.LMBillingError("no credit"), "refused", False),
    (exceptions.LMUnsupportedModelError("which?", status=404), "refused", False),
    (exceptions.LMUnsupportedFeatureError("cannot"), "unexpected", False),
    (exceptions.LMConfigurationError("odd"), "unexpected", False),
    (exceptions.LMProviderError("odd"), "unexpected", False),
    (exceptions.LMUnexpectedError("odd"), "unexpected", False),
    (exceptions.LMStreamAssemblyError("half"), "unexpected", False),
    (exceptions.LMCollectionLimitError("much"), "unexpected", False),
    (exceptions.LMError("odd"), "unexpected", False),
    (lm15.RateLimitError("busy", status=429), "rate_limited", True),
    (lm15.ProviderError("a page", status=200), "server_error", True),
    (of_openai(429, "busy"), "rate_limited", True),
    (of_openai(400, "too long", code="context_length_exceeded"), "context_too_long", False),
    (httpx.ReadTimeout("slow", request=REQUEST), "timeout", True),
    (httpx.ConnectError("refused", request=REQUEST), "refused", True),
    (TimeoutError(), "timeout", True),
    (ConnectionResetError("reset"), "server_error", True),
    (ConnectionRefusedError("nobody"), "refused", True),
    (ValueError("a bug"), "unexpected", False),
    (MemoryError(), "unexpected", False),
]


def test_every_error_that_dspy_has_is_known() -> None:
    every = {
        kind for kind in vars(exceptions).values() if isinstance(kind, type) and issubclass(kind, exceptions.LMError)
    }
    assert every - {type(fault) for fault, _, _ in FAULTS} == set()


@pytest.mark.parametrize("kind", ["engine", "forward", "aforward"])
@pytest.mark.parametrize(("fault", "said", "again"), FAULTS, ids=lambda value: type(value).__name__)
def test_whatever_a_model_raises_is_one_of_our_faults(
    fault: Exception, said: str, again: bool, kind: str, tmp_path: Path
) -> None:
    tried = 0

    class Failing(Awaited if kind == "aforward" else dspy.BaseLM):  # type: ignore[misc]
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            nonlocal tried
            tried += 1
            raise fault

        def complete(self, request: lm15.Request) -> lm15.Response:
            return self.forward()  # type: ignore[no-any-return]

    own = dspy.LM("own/failing", engine=Failing("x")) if kind == "engine" else Failing("own/failing")
    with Journal(tmp_path) as journal:
        lm = hasty(connect(own, journal=journal))
        with pytest.raises(ServerRefused if said == "refused" else ModelError) as told:
            lm("hello")
        records = list(journal.records())
    assert (tried > 1) is again
    if said == "refused":
        assert records == []
    else:
        assert [(record["error"]["kind"], record["attempts"]) for record in records] == [(said, tried)]
        assert told.value.kind == said  # type: ignore[attr-defined]
    assert "verysecret" not in "".join(traceback.format_exception(told.value)) + repr(told.value.__dict__)


def test_litellms_raw_errors_are_read_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = pytest.importorskip("litellm")
    tried = 0

    class Raw(dspy.BaseLM):
        def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
            nonlocal tried
            tried += 1
            if tried == 1:
                raise litellm.RateLimitError("busy", llm_provider="openai", model="m")
            raise litellm.ContextWindowExceededError("much too long", model="m", llm_provider="openai")

    with pytest.raises(ModelError, match="much too long") as told:
        hasty(connect(Raw("own/raw")))("hello")
    assert (told.value.kind, tried) == ("context_too_long", 2)


def test_a_missing_package_is_a_missing_extra() -> None:
    class Lacking(dspy.BaseLM):
        def forward(self, prompt: Any = None, messages: Any = None, **kwargs: Any) -> Any:
            raise ImportError("install anthropic-tools")

    with pytest.raises(MissingExtra, match=r"own/lacking cannot be called: install anthropic-tools"):
        connect(Lacking("own/lacking"))("hello")

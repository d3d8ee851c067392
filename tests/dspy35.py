"""DSPy 3.5's contract between adapters and models, put over DSPy 3.4: what our code meets there, without installing it.

Of the change behind 3.5 (stanfordnlp/dspy#10401): a model is called with an `lm15.Request` or a text and never with
messages, adapters render a `Prompt` and ask by `generate` and `agenerate`, replies reach them as `lm15.Response`s, a
model has engines and no `forward`, and `XMLAdapter` is the default. What executes a request (cache, retries, streams,
prices) is that of 3.4. `BLENDFILTER_DSPY=3.5 pytest …` installs it before anything is imported; with DSPy 3.5 itself
there is nothing to install.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import uuid
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import Any

import dspy
import pytest
from dspy import lm15
from dspy._vendor.lm15.providers import openai_chat
from dspy._vendor.lm15.serde import request_to_dict
from dspy.adapters.base import Adapter
from dspy.clients import execution
from dspy.clients.backend_selection import CLIENT_KEYS
from dspy.clients.call_result import legacy_output
from dspy.clients.capabilities import with_capability_planning
from dspy.clients.engines.base import validate_request
from dspy.clients.lm15_boundary import history_messages, snapshot_request
from dspy.predict import predict
from dspy.utils import DummyLM
from dspy.utils.callback import with_callbacks

OF_34 = pytest.mark.skipif(
    "not hasattr(__import__('dspy').BaseLM, 'forward')", reason="a model with a forward is of DSPy 3.4"
)
"""Of a test whose model has one; 3.5 knows engines alone."""
OF_LAYER = {"cache", "rollout_id", "n", "num_generations"}
"""Options of DSPy's own, which no request holds."""
SPELLED = openai_chat._INGEST_CONFIG_KEYS | openai_chat._INGEST_EXTENSIONS_KEYS | openai_chat._INGEST_CALL_MODE_KEYS
"""Options that have a place in a request; others travel as extensions."""
ANY = [{"role": "user", "content": "."}]


@dataclass(frozen=True)
class Prompt:
    """What an adapter renders."""

    messages: tuple[lm15.Message, ...]
    system: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", tuple(self.messages))


@dataclass
class Call(execution.PreparedCall):  # type: ignore[misc]
    """A call as 3.4 executes it, always of a request; `returns` is what its caller wants back."""

    returns: str = "responses"

    def key(self, lm: Any, asynchronous: bool) -> dict[str, Any]:
        key = {"request": request_to_dict(self.request), "rollout_id": self.kwargs.get("rollout_id")}
        return key if self.n == 1 else {**key, "n": self.n}


def build_request(lm: Any, prompt: Any, options: dict[str, Any]) -> lm15.Request:
    """A rendered prompt and options in OpenAI's words, as a request: the model's defaults, and `options` over them."""
    given = {**lm.kwargs, **options}
    given = {name: value for name, value in given.items() if name not in OF_LAYER | CLIENT_KEYS and value is not None}
    body = {name: given[name] for name in given.keys() & {*SPELLED, "prompt_cache"}}
    body |= {"model": lm.model, "messages": ANY}
    read = execution._canonical(execution.PreparedCall(None, None, {}, body, None, False, 1, True))
    config = read.config
    if (thinking := config.reasoning) is not None and thinking.summary is None and not thinking.is_off:
        config = replace(config, reasoning=replace(thinking, summary="auto"))
    if rest := {name: given[name] for name in given.keys() - body.keys()}:
        config = replace(config, extensions={**(config.extensions or {}), **rest})
    rendered = Prompt((lm15.Message.user(prompt),)) if isinstance(prompt, str) else prompt
    return replace(read, messages=rendered.messages, system=rendered.system, config=config)


def prepare(
    lm: Any,
    prompt: Any,
    options: dict[str, Any],
    *,
    cache: Any = None,
    rollout_id: Any = None,
    n: int | None = None,
    candidates: bool = False,
    asynchronous: bool = False,
) -> Call:
    """What one call asks for."""
    options = dict(options)
    if "messages" in options:
        raise TypeError("DSPy 3.5 has no lm(messages=[...]): build a dspy.lm15.Request and call lm(request)")
    if "request" in options:
        if prompt is not None:
            raise TypeError("a Request is passed once, by its place or by its name")
        prompt = options.pop("request")
    text, returns = None, "responses" if candidates else "response"
    if isinstance(prompt, lm15.Request):
        if wrong := options.keys() - OF_LAYER - CLIENT_KEYS:
            raise TypeError(f"generation options belong in Request.config: {sorted(wrong)}")
        if prompt.model != lm.model:
            raise ValueError("Request.model must match LM.model")
        validate_request(prompt)
        count, request = n or 1, prompt
    elif isinstance(prompt, str) and not candidates:
        own = options.pop("n", None) or options.pop("num_generations", None)
        count = own or lm.kwargs.get("n") or lm.kwargs.get("num_generations") or 1
        text, returns, request = prompt, "outputs", build_request(lm, prompt, options)
    else:
        raise TypeError("a model takes a dspy.lm15.Request, or a prompt as a text")
    rollout_id = lm.kwargs.get("rollout_id") if rollout_id is None else rollout_id
    cached = bool((lm.cache if cache is None else cache) and getattr(lm, "_cache_responses", True))
    given = {**options, "rollout_id": rollout_id}
    place = {"model": lm.model, **{name: options[name] for name in options.keys() & CLIENT_KEYS}}
    return Call(text, None, given, place, snapshot_request(request), cached, count, True, returns)


prepare.__module__ = execution.__name__  # it goes there, and is looked up there


def finalize(lm: Any, call: Call, result: Any) -> Any:
    """Usage and history, and what the caller wants back."""
    settings, responses = dspy.settings, result.responses
    if not result.cache_hit and settings.usage_tracker:
        settings.usage_tracker.add_usage(lm.model, result.usage)
    if not settings.disable_history:
        kwargs = {name: value for name, value in call.kwargs.items() if not name.startswith("api_")}
        entry = {"prompt": call.prompt, "messages": history_messages(call.request), "kwargs": kwargs}
        entry |= {"request": call.request, "response": responses[0] if len(responses) == 1 else responses}
        entry |= {name: getattr(result, name) for name in ("outputs", "usage", "cost", "response_model")}
        entry |= {"timestamp": datetime.now().isoformat(), "uuid": str(uuid.uuid4())}
        lm.update_history({**entry, "model": lm.model, "model_type": lm.model_type})
    return {"responses": list(responses), "outputs": result.outputs, "response": responses[0]}[call.returns]


def _call(self: Any, prompt: Any = None, *, cache: Any = None, rollout_id: Any = None, **options: Any) -> Any:
    call = execution.prepare(self, prompt, options, cache=cache, rollout_id=rollout_id)
    return finalize(self, call, execution.execute(self, call))


async def acall(self: Any, prompt: Any = None, *, cache: Any = None, rollout_id: Any = None, **options: Any) -> Any:
    how = {"cache": cache, "rollout_id": rollout_id, "asynchronous": True}
    call = await asyncio.to_thread(execution.prepare, self, prompt, options, **how)
    return finalize(self, call, await execution.aexecute(self, call))


def generate(self: Any, request: Any, *, n: int = 1, cache: Any = None, rollout_id: Any = None, **client: Any) -> Any:
    call = execution.prepare(self, request, client, cache=cache, rollout_id=rollout_id, n=n, candidates=True)
    return finalize(self, call, execution.execute(self, call))


async def agenerate(
    self: Any, request: Any, *, n: int = 1, cache: Any = None, rollout_id: Any = None, **client: Any
) -> Any:
    how = {"cache": cache, "rollout_id": rollout_id, "n": n, "candidates": True, "asynchronous": True}
    call = await asyncio.to_thread(execution.prepare, self, request, client, **how)
    return finalize(self, call, await execution.aexecute(self, call))


def _execution_options(options: dict[str, Any]) -> dict[str, Any]:
    found = {name: options[name] for name in ("cache", "rollout_id", *CLIENT_KEYS) if options.get(name) is not None}
    count = options.get("n", options.get("num_generations"))
    return found if count is None else {"n": count, **found}


@with_capability_planning  # type: ignore[untyped-decorator]
def ask(self: Any, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: Any, inputs: Any) -> Any:
    asked = self._call_preprocess(lm, lm_kwargs, signature, inputs)
    request = build_request(lm, self.format(asked, demos, inputs), lm_kwargs)
    return self._call_postprocess(asked, signature, lm.generate(request, **_execution_options(lm_kwargs)))


@with_capability_planning  # type: ignore[untyped-decorator]
async def aask(self: Any, lm: Any, lm_kwargs: dict[str, Any], signature: Any, demos: Any, inputs: Any) -> Any:
    asked = self._call_preprocess(lm, lm_kwargs, signature, inputs)
    request = build_request(lm, self.format(asked, demos, inputs), lm_kwargs)
    responses = await lm.agenerate(request, **_execution_options(lm_kwargs))
    return self._call_postprocess(asked, signature, responses)


def text_of(prompt: Any) -> str:
    """What an adapter rendered, in either version, as one text."""
    if isinstance(prompt, list):
        return "\n\n".join(turn["content"] for turn in prompt)
    return "\n\n".join(filter(None, [prompt.system, *(message.text for message in prompt.messages)]))


def install() -> None:
    """Put the contract over DSPy 3.4, for the rest of the process; nothing under 3.5."""
    if hasattr(dspy.BaseLM, "agenerate"):
        return
    assert "blendfilter.dspy_surface" not in sys.modules, "it looks at DSPy when it is imported"
    begin, render, read = dspy.BaseLM.__init__, Adapter.format, Adapter._call_postprocess

    def begin_with_engines(self: Any, *args: Any, engine: Any = None, async_engine: Any = None, **kwargs: Any) -> None:
        if not isinstance(self, dspy.LM):
            self._engine_spec, self._async_engine_spec = engine, async_engine
        begin(self, *args, **kwargs)

    def format(self: Any, signature: Any, demos: Any, inputs: Any) -> Prompt:
        turns = render(self, signature, demos, inputs)
        request = lm15.request_from_openai_chat({"model": "any", "messages": turns})
        return Prompt(request.messages, request.system)

    def _call_postprocess(self: Any, asked: Any, signature: Any, responses: Any) -> Any:
        outputs = [legacy_output(response) for response in responses]
        values = read(self, asked, signature, outputs, None, None)
        for value, response in zip(values, responses, strict=True):
            if response.logprobs is not None:
                value["logprobs"] = response.logprobs
        return values

    changed = {"__init__": begin_with_engines, "__call__": with_callbacks(_call), "acall": with_callbacks(acall)}
    changed |= {"generate": with_callbacks(generate), "agenerate": with_callbacks(agenerate)}
    for name, value in changed.items():
        setattr(dspy.BaseLM, name, value)
    dspy.BaseLM.engine = property(lambda self: self._engine_spec)
    dspy.BaseLM.async_engine = property(lambda self: self._async_engine_spec)
    for of in (dspy.BaseLM, dspy.LM, DummyLM):
        del of.forward, of.aforward
    Adapter.__call__, Adapter.acall, Adapter._call_postprocess = ask, aask, _call_postprocess
    dspy.adapters.Prompt, Adapter.format, execution.prepare = Prompt, format, prepare
    kinds = [Adapter]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if inspect.unwrap(kind.format) is render:
            kind.format = with_callbacks(format)
    predict.ChatAdapter = partial(dspy.XMLAdapter, use_native_function_calling=True)  # the default

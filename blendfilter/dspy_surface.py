"""What we use of DSPy that is private, or that DSPy 3.4 and 3.5 have differently: the one file that names it.

Everything else speaks to DSPy through the names here, and through what DSPy documents and keeps (`dspy.Module`,
`Predict`, `Signature`, `Prediction`, `Example`, `LM`, `BaseLM`, `settings`, `context`, `Evaluate`, the optimisers). A
test reads the other files for private names.

Both versions are supported, by one source (stanfordnlp/dspy#10401 is the change between them). Under 3.4 adapters call
`lm(messages=…)` and get texts or dictionaries; under 3.5 they call `lm.generate(request, n=…)` and get a list of
`lm15.Response`s, and `lm(messages=…)` is an error. `lm("hello")` and `lm(request)` are the same in both. What is not
said to differ is the same in both. What touches no name of ours:

- `XMLAdapter` is the default adapter in 3.5. Our predictors bring their own, and what falls through to a chat adapter
  here names `ChatAdapter` (`chat_adapter`), so prompts stay as they are.
- litellm and openai are extras of 3.5. `openai` is a dependency of our own; a provider that DSPy speaks to through
  litellm (docs/models.md) raises DSPy's "pip install", as `MissingExtra`.
- `model_type="auto"` is the default of `dspy.LM` in 3.5: a user's model may speak the Responses interface. Ours say
  "chat", so that they are spoken to as under 3.4.

Goes when 3.4 goes: `_BY_REQUEST` and what it guards, with `_in_json`, `_as_json` and half of `_said`.
"""

from __future__ import annotations

import gc
import gzip
import importlib.util
import json
import logging
import re
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from traceback import walk_stack
from typing import Any, Self, TypeAlias

import dspy
from dspy import lm15
from dspy._vendor.lm15 import transports
from dspy._vendor.lm15.access import has_stored_credential
from dspy._vendor.lm15.registry import PROVIDERS as _NATIVE
from dspy._vendor.lm15.result import response_to_events
from dspy._vendor.lm15.router import LITELLM_PROVIDER_PREFIXES as _PREFIXES
from dspy._vendor.lm15.serde import response_from_dict, response_to_dict
from dspy._vendor.lm15.transports import StdlibAsyncTransport as AsyncTransport
from dspy._vendor.lm15.transports import TransportRequest
from dspy.clients.backend_selection import CLIENT_KEYS
from dspy.clients.call_result import attributes
from dspy.clients.engines.streaming import EngineChunk
from dspy.clients.provider import Provider, TrainingJob
from dspy.utils.callback import BaseCallback
from dspy.utils.exceptions import (
    AdapterParseError,
    ContextWindowExceededError,
    LMError,
    LMLockTimeoutError,
    LMNotConfiguredError,
)
from dspy.utils.saving import get_dependency_versions
from pydantic import BaseModel

__all__ = [
    "AdapterParseError",
    "AsyncTransport",
    "BaseCallback",
    "ContextWindowExceededError",
    "LMError",
    "LMLockTimeoutError",
    "LMNotConfiguredError",
    "Provider",
    "TrainingJob",
    "TransportRequest",
    "lm15",
    "transports",
]
"""What is handed on as it is; all else is defined here."""

_BY_REQUEST = hasattr(dspy.BaseLM, "agenerate")
"""Whether adapters ask a model by requests, as in 3.5."""

# --- models -----------------------------------------------------------------------------------------------------------

CONNECTION_SETTINGS = frozenset(CLIENT_KEYS)
"""Settings of a `dspy.LM` that say how its server is reached, not what it replies."""


CACHE_HIT = "cache_hit"
"""A reply that was not paid for, in a response's `provider_data` and in history's entry. The word is DSPy's."""


class EngineLM(dspy.LM):
    """A `dspy.LM` over engines of ours that asks for each of `n` samples by itself.

    DSPy strips `rollout_id` and `n` before an engine sees a request, so three samples of one prompt would arrive equal.
    Subclasses answer in `samples` and wait in `waited`. DSPy's cache and its retries are off.
    """

    def __init__(self, name: str, engine: Any, async_engine: Any, **defaults: Any) -> None:
        super().__init__(
            name,
            "chat",
            engine=engine,
            async_engine=async_engine,
            cache=False,
            num_retries=0,
            **defaults,
        )

    async def samples(
        self, n: int, rollout_id: int | None, ask: Callable[[], Awaitable[Any]]
    ) -> Any:
        """What `ask` gives for each of `n` samples, together; a single one's as it is. Raises: `LMError`."""
        raise NotImplementedError

    def waited(self, work: Any) -> Any:
        """The result of a coroutine, for a synchronous caller."""
        raise NotImplementedError

    def __call__(self, prompt: Any = None, **kwargs: Any) -> Any:
        return self.waited(self.acall(prompt, **kwargs))

    async def acall(self, prompt: Any = None, **kwargs: Any) -> Any:
        """As `dspy.LM.acall`. Raises: `ServerRefused`, `ModelError`, `ReplayMiss` of this package."""
        single = isinstance(prompt or kwargs.get("request"), lm15.Request)
        return await self.sampled(super().acall, prompt, kwargs, 1 if single else None)

    def generate(self, request: lm15.Request, **kwargs: Any) -> list[lm15.Response]:
        """As `agenerate`, over the bridge."""
        return self.waited(self.agenerate(request, **kwargs))  # type: ignore[no-any-return]

    async def agenerate(self, request: lm15.Request, **kwargs: Any) -> list[lm15.Response]:
        """The `n` responses to a request, by which adapters ask under 3.5. Raises: as `acall`."""
        return await self.sampled(super().agenerate, request, kwargs)  # type: ignore[no-any-return]

    async def sampled(
        self, call: Any, prompt: Any, kwargs: Mapping[str, Any], n: int | None = None
    ) -> Any:
        """What `call` gives for a text or a request, by `samples`; `n` is the call's or the model's, by default."""
        options = {**self.kwargs, **kwargs}
        n = n or int(options.get("n") or options.get("num_generations") or 1)
        once = kwargs if n == 1 else {**kwargs, "n": 1, "num_generations": None}
        return await self.samples(n, options.get("rollout_id"), lambda: call(prompt, **once))

    def update_history(self, entry: dict[str, Any]) -> None:
        """Keep DSPy's entry on a call, with what our record says that it cost, and whether it was paid for before.

        Without it history has no prices, which it did not know, and no `cache_hit`.
        """
        known = getattr(entry.get("response"), "provider_data", None) or {}
        super().update_history(
            entry | {name: known[name] for name in ("cost", CACHE_HIT) if name in known}
        )

    def _get_initial_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        # What a model family refuses is the profile's business; DSPy's own checks would refuse temperature 0 here.
        return {name: value for name, value in kwargs.items() if value is not None}


def answers_asynchronously(lm: Any) -> bool:
    """Whether `lm.acall` leads somewhere: to engines with an asynchronous half, or under 3.4 to an `aforward`."""
    if _BY_REQUEST or isinstance(lm, dspy.LM):
        return isinstance(lm.engine, str) or lm._async_engine_spec is not None
    return type(lm).aforward is not dspy.BaseLM.aforward


_ENTRIES: ContextVar[list[Mapping[str, Any]] | None] = ContextVar(
    "blendfilter_dspy_entries", default=None
)


def unobserved_copy(lm: dspy.BaseLM) -> Any:
    """A copy of a user's model without DSPy's cache and retries, whose history entries go to `unobserved` alone."""
    copied = lm.copy(cache=False, num_retries=0)
    copied.update_history = _keep
    for name in () if _BY_REQUEST else ("forward", "aforward"):
        answer = getattr(copied, name)
        if not str(getattr(answer, "__module__", "")).startswith("dspy."):
            setattr(copied, name, _in_json(answer, name))
    return copied


def _in_json(answer: Callable[..., Any], name: str) -> Callable[..., Any]:
    """A user's `forward` whose reply, given as objects with attributes, is JSON: DSPy reads no other for a request."""

    async def reply(*args: Any, **kwargs: Any) -> Any:
        return _as_json(await answer(*args, **kwargs))

    if name == "aforward":
        return reply
    return lambda *args, **kwargs: _as_json(answer(*args, **kwargs))


def _as_json(reply: Any) -> Any:
    if isinstance(reply, Mapping):
        return {name: _as_json(value) for name, value in reply.items()}
    if isinstance(reply, list | tuple):
        return [_as_json(value) for value in reply]
    if isinstance(reply, lm15.Response | BaseModel) or not hasattr(reply, "__dict__"):
        return reply  # DSPy reads these, and texts and numbers
    return _as_json(vars(reply))


class _Teller:
    """A stream whose pieces go to `tell`, joined."""

    def __init__(self, tell: Callable[[str], Awaitable[None]]) -> None:
        self._tell, self._text = tell, ""

    async def send(self, chunk: Any) -> None:
        self._text += chunk.choices[0].delta.content or "" if chunk.choices else ""
        await self._tell(self._text)


@contextmanager
def unobserved(
    tell: Callable[[str], Awaitable[None]] | None = None,
) -> Iterator[list[Mapping[str, Any]]]:
    """Inside the block a copy's calls reach no callback, stream, tracker or history but the list that this gives.

    With `tell`, DSPy asks for a stream, and `tell` gets the text of the reply each time that it has grown.
    """
    entries: list[Mapping[str, Any]] = []
    token = _ENTRIES.set(entries)
    try:
        stream = None if tell is None else _Teller(tell)
        with dspy.context(
            send_stream=stream, callbacks=[], usage_tracker=None, disable_history=False
        ):
            yield entries
    finally:
        _ENTRIES.reset(token)


def _keep(entry: Mapping[str, Any]) -> None:
    if (entries := _ENTRIES.get()) is not None:
        entries.append(entry)


def as_asked(request: lm15.Request) -> lm15.Request:
    """`request` without the summary of thoughts that 3.5 adds wherever an effort is asked for.

    It is what 3.4 sends, so a call has one key in both versions, and the same reply.
    """
    thinking = request.config.reasoning
    if not _BY_REQUEST or thinking is None or thinking.summary != "auto":
        return request
    config = replace(request.config, reasoning=replace(thinking, summary=None))
    return replace(request, config=config)


def response_as_dict(response: lm15.Response) -> dict[str, Any]:
    """A whole response as JSON."""
    return response_to_dict(response)  # type: ignore[no-any-return]


def response_of(state: Mapping[str, Any]) -> lm15.Response:
    """The response that `response_as_dict` wrote."""
    return response_from_dict(state)


def events_of(response: lm15.Response) -> Any:
    """A whole response as the events of a stream, as an engine's `stream` gives them."""
    return response_to_events(response)


@cache  # once for each `when`
def hide_cut_replies(when: Callable[[], bool]) -> None:
    """Leave out DSPy's line on a reply that was cut, whenever `when()`: it is counted and shown by us."""

    def passes(record: logging.LogRecord) -> bool:
        return not (str(record.msg).startswith("LM response was truncated") and when())

    logging.getLogger("dspy.clients.lm").addFilter(passes)


# --- providers --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def known_providers() -> frozenset[str]:
    """The first parts of models' names that DSPy's client knows: its own, and litellm's where that is installed.

    litellm is found and not imported, which would take seconds: its names are read from the source of the enumeration
    that lists them.
    """
    return frozenset(_PREFIXES) | _names_in_litellm()


def more_providers() -> str:
    """What an error says of the providers that it does not name."""
    if importlib.util.find_spec("litellm"):
        return "others that DSPy knows"
    return "others once litellm is there: pip install 'dspy[litellm]'"


def _names_in_litellm() -> frozenset[str]:
    spec = importlib.util.find_spec("litellm")
    for place in (spec.submodule_search_locations or []) if spec else []:
        source = Path(place) / "types" / "utils.py"
        if source.is_file():
            _, _, names = source.read_text(encoding="utf-8").partition("class LlmProviders(")
            listed = names.partition("\nclass ")[0]
            return frozenset(re.findall(r'^    \w+ = "(.+)"', listed, re.MULTILINE))
    return frozenset()


def key_variables(provider: str) -> tuple[str, ...]:
    """The environment variables of a provider that wants a key and nothing else; none where there are other ways."""
    definition = _NATIVE.get(_PREFIXES.get(provider, ""))
    if definition is None:
        return LITELLM_KEYS.get(provider, ())
    policy = definition.credential_policy
    alone = policy == "key" or (
        policy == "oauth-unless-explicit" and not has_stored_credential(definition.access)
    )
    return tuple(definition.env_keys) if alone else ()


LITELLM_KEYS: Mapping[str, tuple[str, ...]] = {
    "ai21": ("AI21_API_KEY",),
    "cerebras": ("CEREBRAS_API_KEY",),
    "cohere": ("COHERE_API_KEY", "CO_API_KEY"),
    "deepinfra": ("DEEPINFRA_API_KEY",),
    "fireworks_ai": (
        "FIREWORKS_AI_API_KEY",
        "FIREWORKS_API_KEY",
        "FIREWORKSAI_API_KEY",
        "FIREWORKS_AI_TOKEN",
    ),
    "perplexity": ("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"),
    "replicate": ("REPLICATE_API_KEY", "REPLICATE_API_TOKEN"),
    "together_ai": (
        "TOGETHERAI_API_KEY",
        "TOGETHER_API_KEY",
        "TOGETHER_AI_API_KEY",
        "TOGETHER_AI_TOKEN",
    ),
}
"""Where litellm finds the keys of its common providers; any of a provider's variables is enough."""


Rates: TypeAlias = tuple[float, float, float | None]
"""Dollars for one token: of a prompt, of a reply, and of a prompt that the provider had cached, where it differs."""


def listed_rates(provider: str, model: str) -> Rates | None:
    """litellm's list price of `model` at `provider`, from the copy that comes with DSPy: no network, no import of it.

    Standard tier and ordinary context; None where the list names no such model at that provider.
    """
    # litellm has a provider for each interface of these
    split = provider in ("bedrock", "vertex_ai")
    bare = re.sub(r"\A(?:converse|invoke)/", "", model) if provider == "bedrock" else model
    for name in (f"{provider}/{model}", model, bare):
        entry = _listed().get(name, {})
        listed = str(entry.get("litellm_provider"))
        if listed != provider and not (split and listed.startswith(provider)):
            continue
        prompt, reply = entry.get("input_cost_per_token"), entry.get("output_cost_per_token")
        cached = entry.get("cache_read_input_token_cost")
        if prompt is not None and reply is not None:
            return float(prompt), float(reply), None if cached is None else float(cached)
    return None


@lru_cache(maxsize=1)
def _listed() -> Mapping[str, Any]:
    data = files("dspy.clients.model_metadata").joinpath("snapshot.json.gz").read_bytes()
    return json.loads(gzip.decompress(data))  # type: ignore[no-any-return]


# --- prompts ----------------------------------------------------------------------------------------------------------


class TextAdapter(dspy.Adapter):
    """An adapter whose prompts are plain texts and whose replies are read as texts, an empty one too.

    Subclasses write `turns` and `read`; while one `delegates`, DSPy's `ChatAdapter` does both. `_call_postprocess` is
    here because DSPy raises on an empty reply, and a journaled call notes one.
    """

    delegates = False

    def turns(self, signature: Any, demos: Any, inputs: Any) -> Sequence[tuple[str, str]]:
        """The messages as (role, text)."""
        raise NotImplementedError

    def read(self, signature: Any, text: str) -> dict[str, Any]:
        """The output fields that a reply holds."""
        raise NotImplementedError

    def __init_subclass__(cls, **kwargs: Any) -> None:
        # DSPy wraps `format` and `parse` of each subclass for its callbacks; those below are wrapped by then.
        super(dspy.Adapter, cls).__init_subclass__(**kwargs)

    def format(self, signature: Any, demos: Any, inputs: Any) -> Any:
        if self.delegates:
            return chat_adapter().format(signature, demos, inputs)
        turns = [
            {"role": role, "content": text}
            for role, text in self.turns(signature, demos, inputs)
        ]
        if not _BY_REQUEST:
            return turns
        # as 3.4 reads them, so that both versions send the same request
        read = lm15.request_from_openai_chat({"model": "any", "messages": turns})
        return dspy.adapters.Prompt(messages=read.messages, system=read.system)

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        if self.delegates:
            return chat_adapter().parse(signature, completion)  # type: ignore[no-any-return]
        return self.read(signature, completion)

    def _call_postprocess(
        self, processed_signature: Any, original_signature: Any, replies: Any, *context: Any
    ) -> list[dict[str, Any]]:
        if self.delegates:
            return super()._call_postprocess(  # type: ignore[no-any-return]
                processed_signature, original_signature, replies, *context
            )
        values = []
        for text, logprobs in map(_said, replies):
            value = self.parse(original_signature, text)
            if logprobs:
                value["logprobs"] = logprobs
            values.append(value)
        return values


def _said(reply: Any) -> tuple[str, Any]:
    """The text of a reply, and its log-probabilities where there are any."""
    if isinstance(reply, lm15.Response):
        return "".join(
            part.text for part in reply.message.parts_of(lm15.TextPart)
        ), reply.logprobs
    whole = reply if isinstance(reply, dict) else {"text": reply}
    return whole.get("text") or "", whole.get("logprobs")


@lru_cache(maxsize=1)
def chat_adapter() -> dspy.Adapter:
    """DSPy's chat adapter, without its second call in JSON where a reply cannot be read."""
    return dspy.ChatAdapter(use_json_adapter_fallback=False)


# --- programs, streams, retrieval -------------------------------------------------------------------------------------


def calling_modules() -> Sequence[dspy.Module]:
    """The modules whose call this is, from the outermost to the predictor."""
    return dspy.settings.caller_modules or ()


def is_short_step(call: Any) -> bool:
    """Whether `call`, which `asyncio.to_thread` hands over, is a step of DSPy's beside a model's call that never waits.

    Taking a request apart, and looking up its price; a request with pictures or files may read these, and does wait.
    """
    step: Any
    step, *given = getattr(call, "args", ()) or (None,)
    if getattr(step, "__module__", "") != "dspy.clients.execution":
        return False
    if step.__name__ == "prepare":
        _, request, turns = (*given, None, None, None)[:3]
        if isinstance(request, lm15.Request):
            return all(message.text is not None for message in request.messages)
        return _BY_REQUEST or all(
            isinstance(each, Mapping) and isinstance(each.get("content"), str)
            for each in turns or ()
        )
    return bool(step.__name__ == "_price_result")


def open_stream() -> Any:
    """Where DSPy's streaming sends to; None: nobody listens."""
    return dspy.settings.send_stream


def streaming_to(stream: Any) -> AbstractContextManager[None]:
    """Inside the block DSPy streams to `stream`."""
    return dspy.context(send_stream=stream)  # type: ignore[no-any-return]


def chunk_sender(model: str, i: int = 0) -> Callable[[str], Awaitable[None]] | None:
    """What sends a piece of `model`'s `i`th reply into the open stream, as DSPy's own models do; None: it is closed."""
    if (stream := open_stream()) is None:
        return None
    asker = dspy.settings.caller_predict

    async def send(text: str) -> None:
        choice = attributes({"index": i, "delta": {"content": text}, "finish_reason": None})
        await stream.send(
            EngineChunk(
                id=None, model=model, predict_id=id(asker) if asker else None, choices=[choice]
            )
        )

    return send


class _WithoutChunks:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def send(self, message: Any) -> None:
        if not isinstance(message, EngineChunk):
            await self._stream.send(message)


def without_chunks() -> Any:
    """The open stream for all but the pieces that DSPy makes of a reply, status messages above all."""
    return _WithoutChunks(open_stream())


class FieldStream:
    """Stands in the place of DSPy's stream and gives the listeners of `predictor` its one output field.

    `StreamListener` finds a field between the marks of DSPy's own adapters, and none in a plain text: it would stay
    silent. So the pieces that it is to give are made here, from what `read` is certain of in the text so far.
    """

    def __init__(
        self, predictor: Any, listeners: Sequence[Any], read: Callable[[str], str]
    ) -> None:
        (self._field,) = predictor.signature.output_fields
        self._name, self._read = predictor.name, read
        self._inner = open_stream()
        self._text = self._sent = ""
        self._listeners = [
            listener
            for listener in listeners
            if listener.signature_field_name == self._field
            and (listener.allow_reuse or not listener.stream_end)
        ]

    async def send(self, message: Any) -> None:
        """A message on its way: pieces of the reply become pieces of the field, others are passed on."""
        choices = getattr(message, "choices", None)
        if choices is None:
            await self._inner.send(message)
        elif choices and not choices[0].index:
            self._text += choices[0].delta.content or ""
            await self._give(self._read(self._text), last=False)

    async def end(self, prediction: dspy.Prediction) -> None:
        """The field is that of the whole prediction."""
        await self._give(str(prediction[self._field]), last=True)

    async def _give(self, value: str, *, last: bool) -> None:
        piece = value[len(self._sent) :] if value.startswith(self._sent) else ""
        if not piece and not last:
            return
        self._sent += piece
        for listener in self._listeners:
            listener.stream_start, listener.stream_end = True, last
            name = listener.predict_name or self._name
            await self._inner.send(
                dspy.streaming.StreamResponse(name, self._field, piece, is_last_chunk=last)
            )


def listeners_of(predictor: dspy.Predict) -> list[Any]:
    """The listeners that want a field of `predictor`, while a stream is open."""
    if dspy.settings.send_stream is None:
        return []
    return [each for each in dspy.settings.stream_listeners or () if each.predict is predictor]


class Shared:
    """What the copies share that optimisers make of modules, by the dozen: nothing in it changes."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def optimisers_at_work() -> list[Any]:
    """The optimisers that are at work, in whichever thread: their own may wait for those that call."""
    # a collection inside this call may wait for ever for the lock that it holds (python/cpython#106883)
    collects = gc.isenabled()
    gc.disable()
    try:
        tops = [*sys._current_frames().values()]
    finally:
        if collects:
            gc.enable()
    return [
        frame.f_locals.get("self")
        for top in tops
        for frame, _ in walk_stack(top)
        if frame.f_code.co_name == "compile"
        and frame.f_globals.get("__name__", "").startswith("dspy.teleprompt")
    ]


def compiled_no_more(program: dspy.Module) -> dspy.Module:
    """`program` itself, whose parameters DSPy shows and compiles again."""
    program._compiled = False
    return program


def dependency_versions() -> dict[str, str]:
    """The versions that DSPy writes into a saved program."""
    return get_dependency_versions()  # type: ignore[no-any-return]


def configured_index(part: Any) -> Any:
    """What a part of a module searches: the configured retrieval model for a `dspy.Retrieve`, else the part itself."""
    return dspy.settings.rm if isinstance(part, dspy.Retrieve) else part

"""What we use of DSPy that is private, or that DSPy 3.5 changes: the one file that names it.

Everything else speaks to DSPy through the names here, and through what DSPy documents and keeps (`dspy.Module`,
`Predict`, `Signature`, `Prediction`, `Example`, `LM`, `BaseLM`, `settings`, `context`, `Evaluate`, the optimisers). A
test reads the other files for private names. So DSPy 3.5 is a change of this file, and of `dspy<3.5` in pyproject.toml.

Each name says what 3.5 has instead, by its release notes, its upgrade guide (dspy.ai, "Upgrading from DSPy 3.4.1 to
3.5") and the change behind both (stanfordnlp/dspy#10401). "Not announced" means that these do not speak of it. What
touches no name of ours:

- `XMLAdapter` is the default adapter. Our predictors bring their own, and what falls through to a chat adapter here
  names `ChatAdapter` (`chat_adapter`), so prompts stay as they are.
- `ReActV2` becomes `ReAct`, `CodeAct` and `ProgramOfThought` go: not used here.
- litellm and openai are optional. `openai` is a dependency of our own; providers that DSPy speaks to through litellm
  (docs/models.md) will want `pip install "dspy[litellm]"`, which `MissingExtra` says by then (`known_providers` reads
  litellm's list only where it is installed).
- `model_type="auto"` is the default of `dspy.LM`: a model adopted as it is may then speak the Responses interface.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Self, TypeAlias

import dspy
from dspy import lm15  # 3.5: the same, and all that travels between DSPy and a model

# 3.5: documented as `lm15.transports`; not announced
from dspy._vendor.lm15 import transports

# 3.5: not announced; whether a login is stored (xAI's)
from dspy._vendor.lm15.access import has_stored_credential

# 3.5: not announced; the table behind `dspy.lm15`'s router
from dspy._vendor.lm15.registry import PROVIDERS as _NATIVE
from dspy._vendor.lm15.result import response_to_events
from dspy._vendor.lm15.router import LITELLM_PROVIDER_PREFIXES as _PREFIXES
from dspy._vendor.lm15.serde import response_from_dict, response_to_dict
from dspy._vendor.lm15.transports import StdlibAsyncTransport as AsyncTransport
from dspy._vendor.lm15.transports import TransportRequest
from dspy.clients.backend_selection import CLIENT_KEYS
from dspy.clients.call_result import attributes
from dspy.clients.engines.streaming import EngineChunk
from dspy.clients.provider import Provider, TrainingJob  # 3.5: kept; who fine-tunes a model
from dspy.utils.callback import BaseCallback  # 3.5: kept
from dspy.utils.exceptions import (
    AdapterParseError,  # 3.5: kept, these five
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

# --- models -----------------------------------------------------------------------------------------------------------

CONNECTION_SETTINGS = frozenset(CLIENT_KEYS)
"""Settings of a `dspy.LM` that say how its server is reached, not what it replies.

3.5: not announced. They are keyword arguments of `dspy.LM` there too: write the names out here if the set moves.
"""


CACHE_HIT = "cache_hit"
"""A reply that was not paid for, in a response's `provider_data` and in history's entry. 3.5: DSPy's word is kept."""


class EngineLM(dspy.LM):
    """A `dspy.LM` over engines of ours that asks for each of `n` samples by itself.

    DSPy strips `rollout_id` and `n` before an engine sees a request, so three samples of one prompt would arrive equal.
    Subclasses answer in `samples` and wait in `waited`. DSPy's cache and its retries are off.

    3.5: engines stay as they are. Adapters call `lm.generate(request, n=…)` and `await lm.agenerate(…)`, which return
    a list of `lm15.Response`, in place of `lm(messages=…)`, which is an error there; `lm("hello")` stays. So `samples`
    is called from these two as well, and `messages` goes. `BaseLM.forward` goes: it is overridden nowhere here.
    """

    def __init__(self, name: str, engine: Any, async_engine: Any, **defaults: Any) -> None:
        super().__init__(
            name,
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

    def __call__(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        return self.waited(self.acall(prompt, messages=messages, **kwargs))

    async def acall(self, prompt: Any = None, *, messages: Any = None, **kwargs: Any) -> Any:
        """As `dspy.LM.acall`. Raises: `ServerRefused`, `ModelError`, `ReplayMiss` of this package."""
        options = {**self.kwargs, **kwargs}
        n = int(options.get("n") or options.get("num_generations") or 1)
        once = kwargs if n == 1 else {**kwargs, "n": 1, "num_generations": None}
        call = super().acall
        return await self.samples(
            n, options.get("rollout_id"), lambda: call(prompt, messages=messages, **once)
        )

    def update_history(self, entry: dict[str, Any]) -> None:
        """Keep DSPy's entry on a call, with what our record says that it cost, and whether it was paid for before.

        3.5: not announced. Without it history has no prices, which it did not know, and no `cache_hit`.
        """
        known = getattr(entry.get("response"), "provider_data", None) or {}
        super().update_history(
            entry | {name: known[name] for name in ("cost", CACHE_HIT) if name in known}
        )

    def _get_initial_kwargs(self, **kwargs: Any) -> dict[str, Any]:
        # What a model family refuses is the profile's business; DSPy's own checks would refuse temperature 0 here.
        # 3.5: not announced. If it goes, `self.kwargs` is set after `super().__init__`, which is given no defaults.
        return {name: value for name, value in kwargs.items() if value is not None}


def answers_asynchronously(lm: Any) -> bool:
    """Whether `lm.acall` leads somewhere: an engine of its own with an asynchronous half, or an `aforward`.

    3.5: no `aforward`; every model has engines, and the second line goes. `_async_engine_spec` is not announced.
    """
    if isinstance(lm, dspy.LM):
        return isinstance(lm.engine, str) or lm._async_engine_spec is not None
    return type(lm).aforward is not dspy.BaseLM.aforward


_ENTRIES: ContextVar[list[Mapping[str, Any]] | None] = ContextVar(
    "blendfilter_dspy_entries", default=None
)


def unobserved_copy(lm: dspy.BaseLM) -> Any:
    """A copy of a user's model without DSPy's cache and retries, whose history entries go to `unobserved` alone.

    3.5: `copy(cache=False, num_retries=0)` is kept. `update_history` as the hook of an entry is not announced; without
    it, `Response.usage` and our price are what a call is known by. `forward` goes, and with it the loop here.
    """
    copied = lm.copy(cache=False, num_retries=0)
    copied.update_history = _keep
    for name in ("forward", "aforward"):
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

    3.5: the settings' names are not announced (`usage_tracker` and `send_stream` are DSPy's own).
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


def response_as_dict(response: lm15.Response) -> dict[str, Any]:
    """A whole response as JSON. 3.5: the same in `dspy._vendor`; not announced as public."""
    return response_to_dict(response)  # type: ignore[no-any-return]


def response_of(state: Mapping[str, Any]) -> lm15.Response:
    """The response that `response_as_dict` wrote. 3.5: as there."""
    return response_from_dict(state)


def events_of(response: lm15.Response) -> Any:
    """A whole response as the events of a stream, as an engine's `stream` gives them. 3.5: as `response_as_dict`."""
    return response_to_events(response)


@cache  # once for each `when`
def hide_cut_replies(when: Callable[[], bool]) -> None:
    """Leave out DSPy's line on a reply that was cut, whenever `when()`: it is counted and shown by us.

    3.5: the logger's name is not announced; without it the line is there beside ours.
    """

    def passes(record: logging.LogRecord) -> bool:
        return not (str(record.msg).startswith("LM response was truncated") and when())

    logging.getLogger("dspy.clients.lm").addFilter(passes)


# --- providers --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def known_providers() -> frozenset[str]:
    """The first parts of models' names that DSPy's client knows: its own, and litellm's where that is installed.

    3.5: its own come first and litellm is an extra, so the list is shorter without it. litellm is found and not
    imported, which would take seconds: its names are read from the source of the enumeration that lists them.
    """
    return frozenset(_PREFIXES) | _names_in_litellm()


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
    """The environment variables of a provider that wants a key and nothing else; none where there are other ways.

    3.5: `dspy.lm15` has the same table; not announced as public.
    """
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

    3.5: the copy stays (DSPy prices with it); its place, `dspy.clients.model_metadata`, is not announced as public.
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

    Subclasses write `turns` and `read`; while one `delegates`, DSPy's `ChatAdapter` does both.

    3.5: `format` returns `dspy.adapters.Prompt(system=None, messages=…)` of `lm15.Message`s in place of dictionaries,
    and `parse` reads an `lm15.Response`: `_call_postprocess`, which is there because DSPy raises on an empty reply and
    a journaled call notes one, becomes that.
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

    def format(self, signature: Any, demos: Any, inputs: Any) -> list[dict[str, Any]]:
        if self.delegates:
            return chat_adapter().format(signature, demos, inputs)  # type: ignore[no-any-return]
        return [
            {"role": role, "content": text}
            for role, text in self.turns(signature, demos, inputs)
        ]

    def parse(self, signature: Any, completion: str) -> dict[str, Any]:
        if self.delegates:
            return chat_adapter().parse(signature, completion)  # type: ignore[no-any-return]
        return self.read(signature, completion)

    def _call_postprocess(
        self,
        processed_signature: Any,
        original_signature: Any,
        outputs: Any,
        lm: Any,
        lm_kwargs: Any,
    ) -> list[dict[str, Any]]:
        if self.delegates:
            return super()._call_postprocess(  # type: ignore[no-any-return]
                processed_signature, original_signature, outputs, lm, lm_kwargs
            )
        values = []
        for output in outputs:
            whole = output if isinstance(output, dict) else {"text": output}
            value = self.parse(original_signature, whole.get("text") or "")
            if whole.get("logprobs"):
                value["logprobs"] = whole["logprobs"]
            values.append(value)
        return values


@lru_cache(maxsize=1)
def chat_adapter() -> dspy.Adapter:
    """DSPy's chat adapter, without its second call in JSON where a reply cannot be read. 3.5: kept, no default."""
    return dspy.ChatAdapter(use_json_adapter_fallback=False)


# --- programs, streams, retrieval -------------------------------------------------------------------------------------


def calling_modules() -> Sequence[dspy.Module]:
    """The modules whose call this is, from the outermost to the predictor. 3.5: not announced."""
    return dspy.settings.caller_modules or ()


def is_short_step(call: Any) -> bool:
    """Whether `call`, which `asyncio.to_thread` hands over, is a step of DSPy's beside a model's call that never waits.

    Taking a request apart, and looking up its price; a request with pictures or files may read these, and does wait.
    3.5: not announced; where `BaseLM.acall` hands other functions to a thread, they go there as before.
    """
    step: Any
    step, *given = getattr(call, "args", ()) or (None,)
    if getattr(step, "__module__", "") != "dspy.clients.execution":
        return False
    if step.__name__ == "prepare":
        messages = given[2] if len(given) > 2 else ()
        return all(
            isinstance(each, Mapping) and isinstance(each.get("content"), str)
            for each in messages or ()
        )
    return bool(step.__name__ == "_price_result")


def open_stream() -> Any:
    """Where DSPy's streaming sends to; None: nobody listens. 3.5: not announced."""
    return dspy.settings.send_stream


def streaming_to(stream: Any) -> AbstractContextManager[None]:
    """Inside the block DSPy streams to `stream`. 3.5: not announced."""
    return dspy.context(send_stream=stream)  # type: ignore[no-any-return]


def chunk_sender(model: str, i: int = 0) -> Callable[[str], Awaitable[None]] | None:
    """What sends a piece of `model`'s `i`th reply into the open stream, as DSPy's own models do; None: it is closed.

    3.5: not announced; a stream there takes `lm15` events.
    """
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
    """The open stream for all but the pieces that DSPy makes of a reply, status messages above all. 3.5: as above."""
    return _WithoutChunks(open_stream())


class FieldStream:
    """Stands in the place of DSPy's stream and gives the listeners of `predictor` its one output field.

    `StreamListener` finds a field between the marks of DSPy's own adapters, and none in a plain text: it would stay
    silent. So the pieces that it is to give are made here, from what `read` is certain of in the text so far.

    3.5: `StreamListener` and `StreamResponse` are kept; that a stream passes on what it does not know is not announced.
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
    """The listeners that want a field of `predictor`, while a stream is open. 3.5: not announced."""
    if dspy.settings.send_stream is None:
        return []
    return [each for each in dspy.settings.stream_listeners or () if each.predict is predictor]


class Shared:
    """What the copies share that optimisers make of modules, by the dozen: nothing in it changes. 3.5: the same."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


def compiled_no_more(program: dspy.Module) -> dspy.Module:
    """`program` itself, whose parameters DSPy shows and compiles again. 3.5: `_compiled` is not announced."""
    program._compiled = False
    return program


def dependency_versions() -> dict[str, str]:
    """The versions that DSPy writes into a saved program. 3.5: kept."""
    return get_dependency_versions()  # type: ignore[no-any-return]


def configured_index(part: Any) -> Any:
    """What a part of a module searches: the configured retrieval model for a `dspy.Retrieve`, else the part itself.

    3.5: the end of `Retrieve` and of `settings.rm` is not announced; DSPy's own retrievers went in 3.0, and its
    documents show a function or a tool in its place. Where it is gone no part can be one.
    """
    return dspy.settings.rm if isinstance(part, dspy.Retrieve) else part

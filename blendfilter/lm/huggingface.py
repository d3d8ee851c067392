"""A model of Hugging Face in this process, `connect("hf/NAME")`: calls that wait are written together, in one batch.

transformers' `generate` writes a batch of up to `batch_size` replies, the prompts of a decoder-only model padded on the
left. Each call has its own decoding settings and its own generator, so that a reply depends on the other rows of its
batch by no more than rounding. A call is known by the model's name, the fingerprint of its weights (an adapter's with
its base's) and the settings, never by the path.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import os
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from blendfilter import aio
from blendfilter.dspy_surface import lm15
from blendfilter.errors import (
    BadArgument,
    BlendFilterError,
    UnknownName,
    WorkFailed,
    check_count,
)
from blendfilter.extras import quiet_transformers
from blendfilter.lm.budget import tally
from blendfilter.lm.checkpoints import (
    EXTRA,
    HUGGING_FACE,
    RECIPE,
    WHY,
    Checkpoint,
    LanguageModel,
    check_dtype,
    check_files,
    checkpoint_of,
    end_marks,
    fingerprint,
    open_checkpoint,
    open_config,
    open_tokenizer,
    padded_prompts,
    positions_of,
    prompt_ids,
    torch,
    transformers,
)
from blendfilter.lm.in_process import (
    CLOSED,
    FORKED,
    check_context,
    seed_of,
    too_late,
)
from blendfilter.lm.journaled import prompt_of
from blendfilter.lm.outcome import concluded
from blendfilter.lm.profiles import Profile

logger = logging.getLogger(__name__)
BATCH = 8
"""Replies that are written at a time, by default."""
ENDLESS = 1024
"""Tokens of a reply at most where neither the call nor the model, whose positions are relative, names a bound."""
_GATHERING = 0.02
"""Seconds that a batch waits for calls that come at the same time as its first."""
_LONGEST_STOP = 10.0
"""Seconds that closing waits for a step of the model: a thread inside torch would abort a process that ends."""
_OUT_OF_MEMORY = ("out of memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""How a GPU, a processor and cuBLAS say it."""
_SETTINGS = ("device", "dtype", "batch_size")


class HuggingFaceEngine:
    """A checkpoint of Hugging Face. Its weights are opened by the first call, so that a replay opens none.

    Args:
        checkpoint: its files.
        name: what it is called.
        context: tokens that prompt and reply may have together (of an encoder-decoder, each); by default what the
            model was trained on, and no bound where its configuration names none.
        threads: threads of the processor; by default torch's own choice.
        device, dtype: see `open_checkpoint`. batch_size: replies that are written at a time.
        endpoint, profile, deadline: see `LocalEngine`.

    Raises:
        BadArgument, BadData, MissingExtra.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        name: str,
        *,
        context: int | None = None,
        threads: int | None = None,
        device: str | None = None,
        dtype: str | None = None,
        batch_size: int = BATCH,
        endpoint: str = "chat",
        profile: Profile | None = None,
        deadline: float | None = None,
    ) -> None:
        if threads is not None:
            check_count("threads", threads)
        check_files(checkpoint)
        if context is not None:
            base = checkpoint.root
            trained = None if base.is_gguf else positions_of(open_config(base))
            check_context(context, trained, base.name)
        self.model, self.checkpoint, self.context = name, checkpoint, context
        self.batch_size = check_count("batch_size", batch_size)
        self.fingerprint, self.deadline = fingerprint(checkpoint), deadline
        chat = endpoint == "chat"
        self._chat = None if chat else False  # as `prompt_ids` has it
        self._profile = profile or Profile()
        if not chat:
            self._profile = Profile(effort=self._profile.effort)
        self._process = os.getpid()
        open_model = functools.partial(open_checkpoint, checkpoint, device=device, dtype=dtype)
        self._writer = _Writer(open_model, batch_size, threads)
        self.close = weakref.finalize(self, self._writer.close)
        """Ends what is written and frees the memory; called when the engine is collected, and when the process ends."""

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The model's response. Raises the errors of `lm15` that a server would."""
        if os.getpid() != self._process:
            raise BadArgument(FORKED)
        if request.config.response_format is not None:
            raise lm15.UnsupportedFeatureError(
                "a model of Hugging Face in this process holds no reply to a schema",
                feature="format",
            )
        call = _Call(self, request)
        self._writer.waiting.append(call)
        try:
            await aio.in_thread(self._writer.answer, call, executor=self._writer.thread)
        finally:
            call.cancelled = True
            tally().waits(call.waited)  # waiting for its turn is no time of the model's
        if call.error is not None:
            raise call.error
        written = lm15.Response(
            id=None,
            model=self.model,
            message=lm15.Message("assistant", (lm15.TextPart(call.text),)),
            finish_reason=call.finish or "length",
            usage=lm15.Usage(input_tokens=len(call.prompt), output_tokens=len(call.written)),
            logprobs=None if request.config.logprobs is None else tuple(call.scored),
        )
        return concluded(request, written, {})

    def reply_cap(self, request: lm15.Request) -> int | None:
        """How many tokens a reply can have at the most; None: as many as the context leaves."""
        cap: int | None = request.config.max_tokens
        if cap is None or not self.thinks(request):
            return cap
        return cap + self._profile.thinking_tokens

    def count_tokens(self, text: str) -> int:
        """How many tokens a prompt of this text has, the chat template's own among them; opens no weights."""
        return len(prompt_ids(self._tokenizer, text, chat=self._chat))

    def unload(self) -> None:
        """Free the memory, when the batch at hand has been answered; the next call opens the weights again."""
        self._writer.unload()

    def thinks(self, request: lm15.Request) -> bool:
        """Whether thoughts come before the reply."""
        return self._profile.thinks_at(self._profile.effort_in(request.config))

    def read(self, request: lm15.Request, loaded: LanguageModel) -> tuple[list[int], int]:
        """The prompt's tokens, and how many the reply may have. Raises: an error of `lm15`."""
        kinds = {part.type for message in request.messages for part in message.parts}
        if request.tools or (kinds := kinds - {"text", "thinking"}):
            raise lm15.UnsupportedFeatureError(
                f"a local model is sent text only: no {'tools' if request.tools else min(kinds)}",
                feature="messages",
            )
        steering = self._profile.steering(self._profile.effort_in(request.config))
        tokens = prompt_ids(
            loaded.tokenizer,
            prompt_of(request),
            chat=self._chat,
            switches=steering.get("chat_template_kwargs"),
        )
        if not tokens:
            raise lm15.InvalidRequestError(
                "the prompt is empty, and the model's own template adds nothing to it"
            )
        limit = positions_of(loaded.config) if self.context is None else self.context
        cap = self.reply_cap(request)
        if limit is None:
            return tokens, ENDLESS if cap is None else cap
        # the reply of an encoder-decoder has a context of its own
        both = loaded.config.is_encoder_decoder
        if len(tokens) - both >= limit:
            raise lm15.ContextLengthError(
                f"{len(tokens):,} tokens, and {self.model} was opened with a context of {limit:,} (context=)"
            )
        room = limit - (1 if both else len(tokens))
        return tokens, room if cap is None else min(cap, room)

    @functools.cached_property
    def _tokenizer(self) -> Any:
        return open_tokenizer(self.checkpoint)


# ---- writing


class _Call:
    """A request that waits for its turn, then the reply that is being written to it, and in the end its error."""

    def __init__(self, engine: HuggingFaceEngine, request: lm15.Request) -> None:
        self._engine, self._request, self._config = engine, request, request.config
        self._seed = seed_of(self._config.seed or 0, prompt_of(request))
        # in a thought a stop string ends nothing
        self._stops = () if engine.thinks(request) else [*filter(None, self._config.stop)]
        self._came = time.perf_counter()
        self.waited = 0.0
        self.taken = self.cancelled = False
        self.error: BaseException | None = None

    def begin(self, loaded: LanguageModel, ends: Sequence[int]) -> None:
        """Begin the reply, or begin it anew. Raises: an error of `lm15`."""
        self.waited, self._began = time.perf_counter() - self._came, time.monotonic()
        self._tokenizer, self._ends, config = loaded.tokenizer, ends, self._config
        self.prompt, self.cap = self._engine.read(self._request, loaded)
        self.written: list[int] = []
        self.scored: list[lm15.TokenLogprob] = []
        self.finish = "" if self.cap > 0 else "length"
        self._generator = torch.Generator().manual_seed(self._seed)
        # what temperature, top_k and top_p do to logits, in that order
        self._warpers = transformers.LogitsProcessorList()
        if config.temperature not in (None, 0, 1):
            self._warpers.append(
                transformers.TemperatureLogitsWarper(float(config.temperature))
            )
        if config.top_k:
            self._warpers.append(transformers.TopKLogitsWarper(config.top_k))
        if config.top_p is not None and config.top_p < 1:
            self._warpers.append(transformers.TopPLogitsWarper(config.top_p))

    @property
    def text(self) -> str:
        """What is written so far."""
        return self._decoded(self.written)

    def write(self, logits: Any) -> None:
        """Choose the next token by logits of the whole vocabulary, and take it; it may end the reply.

        Raises:
            lm15.InvalidRequestError: NaN. lm15.TimeoutError: the deadline is over.
        """
        deadline = self._engine.deadline
        if deadline is not None and time.monotonic() - self._began > deadline:
            raise too_late(deadline)
        if self.cancelled:
            self.finish = "length"
            return
        token = self._chosen(logits)
        if token in self._ends:
            self.finish = "stop"
            return
        if self._config.logprobs is not None:
            self._note(logits.log_softmax(-1), token)
        self.written.append(token)
        if any(stop in self.text for stop in self._stops):
            self.finish = "stop"
        elif len(self.written) >= self.cap:
            self.finish = "length"

    def _chosen(self, logits: Any) -> int:
        present, frequent = self._config.presence_penalty, self._config.frequency_penalty
        if present or frequent:
            logits = logits.clone()
            for token, count in Counter(self.written).items():
                logits[token] -= (present or 0.0) + count * (frequent or 0.0)
        best = int(logits.argmax())
        if not logits[best].isfinite():  # the greatest is NaN where any is
            raise lm15.InvalidRequestError(
                "the model computes NaN here: its weights are damaged, or its dtype is too small (dtype=float32)"
            )
        if self._config.temperature == 0:
            return best
        chances = self._warpers(None, logits[None])[0].double().softmax(-1)
        # one number between 0 and 1 a token: logits that differ a little draw the same
        sums = chances.cumsum(0)
        drawn = torch.rand((), generator=self._generator, dtype=torch.float64) * sums[-1]
        at = int(torch.searchsorted(sums, drawn, right=True))
        return min(at, int(chances.nonzero()[-1]))

    def _note(self, logprobs: Any, token: int) -> None:
        best = logprobs.topk(self._config.logprobs or 0)
        top: dict[str, float] = {}
        for value, at in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            top.setdefault(self._piece(at), value)  # of tokens that read alike the likeliest
        self.scored.append(
            lm15.TokenLogprob(
                token=self._piece(token),
                logprob=float(logprobs[token]),
                top=tuple(lm15.TopLogprob(*pair) for pair in top.items()),
            )
        )

    def _piece(self, token: int) -> str:
        """What a token adds to the text; many a tokeniser leaves a space out of a token that stands alone."""
        before, after = self.text, self._decoded([*self.written, token])
        return after[len(before) :] if after.startswith(before) else self._decoded([token])

    def _decoded(self, tokens: list[int]) -> str:
        how = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
        return str(self._tokenizer.decode(tokens, **how))


class _Writer:
    """The weights and their thread, which writes replies; no reference to the engine, which may be collected."""

    def __init__(
        self, open_model: Callable[[], LanguageModel], batch_size: int, threads: int | None
    ) -> None:
        self._open, self._wanted, self._threads = open_model, batch_size, threads
        self.size = batch_size
        self.waiting: deque[_Call] = deque()
        self.thread = aio.Threads(1, "blendfilter-hf-model")
        self.loaded: LanguageModel | None = None
        self._closed = False
        # closing may come from a collection in the thread itself
        self._turn = threading.RLock()

    def answer(self, call: _Call) -> None:
        """Answer a call and what else waits, as far as it fits into the batch."""
        with self._turn:
            if call.taken:
                return  # in an earlier call's batch
            try:
                self._check_open()
                loaded = self.loaded = self.loaded or self._opened()
            except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
                self.waiting.remove(call)
                call.error = error
                return
            if len(self.waiting) < self.size:
                time.sleep(_GATHERING)
            self._write(
                loaded,
                [self.waiting.popleft() for _ in range(min(self.size, len(self.waiting)))],
            )

    def close(self) -> None:
        """End what is written after its token, and free the memory."""
        self._closed = True
        if self._turn.acquire(timeout=_LONGEST_STOP):
            self.loaded = None
            self._turn.release()

    def unload(self) -> None:
        """Free the memory once the batch at hand has been written."""
        with self._turn:
            self.loaded = None
            _free_cached()

    def _check_open(self) -> None:
        if self._closed:
            raise WorkFailed(CLOSED)

    def _opened(self) -> LanguageModel:
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        loaded = self._open()
        own, config = loaded.model.generation_config, loaded.config
        self._ends, self._pad = (
            end_marks(loaded.model, loaded.tokenizer),
            loaded.tokenizer.pad_token_id,
        )
        if self._pad is None:
            self._pad = min(self._ends, default=0)
        start = own.decoder_start_token_id
        if start is None:
            start = getattr(config, "decoder_start_token_id", None)
        # what else stands there (penalties, a forced last token) is no part of a request
        loaded.model.generation_config = transformers.GenerationConfig(
            decoder_start_token_id=start,
            forced_bos_token_id=own.forced_bos_token_id,
            bos_token_id=own.bos_token_id,
            pad_token_id=self._pad,
        )
        # where the rotation of positions depends on the longest text of a batch
        turning = getattr(config.get_text_config(), "rope_parameters", None) or {}
        layers = [turning, *(layer for layer in turning.values() if isinstance(layer, Mapping))]
        if any(layer.get("rope_type") in {"longrope", "dynamic"} for layer in layers):
            self.size = self._wanted = 1
        return loaded

    def _write(self, loaded: LanguageModel, calls: Sequence[_Call]) -> None:
        """Write the replies to `calls`; where memory runs out, half as many at a time from then on."""
        begun = []
        for call in calls:
            call.taken = True
            try:
                call.begin(loaded, self._ends)
            except Exception as error:  # noqa: BLE001 - the call's own
                call.error = error
                continue
            if not call.finish and not call.cancelled:
                begun.append(call)
        short = False
        try:
            if begun:
                self._generate(loaded, begun)
        except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
            line = str(error).strip().partition("\n")[0][:300] or type(error).__name__
            short = isinstance(error, MemoryError) or any(
                words in str(error) for words in _OUT_OF_MEMORY
            )
            fault: Exception = lm15.ServerError(f"torch could not compute this reply: {line}")
            if not short or len(begun) == 1:
                for call in begun:
                    call.error = error if isinstance(error, BlendFilterError) else fault
        if short:  # here nothing holds the tensors of what failed
            _free_cached()
            # one that failed alone says nothing about how many fit
            half = self.size = len(begun) // 2 or self._wanted
            if len(begun) > 1:
                logger.warning(
                    "memory is too short for %s replies at a time: %s from here on",
                    len(begun),
                    half,
                )
                for start in range(0, len(begun), half):
                    self._write(loaded, begun[start : start + half])

    def _generate(self, loaded: LanguageModel, calls: Sequence[_Call]) -> None:
        prompts = [call.prompt for call in calls]
        ids, seen = padded_prompts(prompts, loaded.config, loaded.device, self._pad)

        def choose(_: Any, logits: Any) -> Any:
            self._check_open()
            chosen = torch.full_like(logits, -math.inf)
            for at, (call, own) in enumerate(zip(calls, logits.float().cpu(), strict=True)):
                if not call.finish:
                    try:
                        call.write(own)
                    except lm15.LM15Error as error:
                        call.error, call.finish = error, "error"
                chosen[at, self._pad if call.finish else call.written[-1]] = 0.0
            return chosen

        def are_over(given: Any, *_: Any, **__: Any) -> Any:
            return torch.tensor([bool(call.finish) for call in calls], device=given.device)

        with torch.inference_mode(), quiet_transformers(EXTRA, WHY):
            loaded.model.generate(
                ids,
                attention_mask=seen,
                max_new_tokens=max(call.cap for call in calls),
                do_sample=False,
                logits_processor=transformers.LogitsProcessorList([choose]),
                stopping_criteria=transformers.StoppingCriteriaList([are_over]),
            )


def _free_cached() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


# ---- names


def is_hugging_face(name: str, api_base: object = None) -> bool:
    """Whether `name` means a model of Hugging Face in this process.

    >>> is_hugging_face("hf/Qwen/Qwen3-8B"), is_hugging_face("huggingface/x"), is_hugging_face("hf/x", "http://…")
    (True, False, False)
    """
    return api_base is None and name.startswith(HUGGING_FACE)


def settings_in(name: str) -> tuple[str, dict[str, Any]]:
    """The name without its settings, and those: `device`, `dtype`, `batch_size`.

    Raises:
        UnknownName: no such setting. BadArgument: a batch that is no number.

    >>> settings_in("hf/Qwen/Qwen3-8B?dtype=bfloat16&batch_size=16")
    ('hf/Qwen/Qwen3-8B', {'dtype': 'bfloat16', 'batch_size': 16})
    """
    plain, _, given = name.partition("?")
    settings: dict[str, Any] = dict(parse_qsl(given, keep_blank_values=True))
    for setting, value in settings.items():
        if setting not in _SETTINGS:
            raise UnknownName.of("setting of a model of Hugging Face", setting, _SETTINGS)
        if setting == "batch_size":
            if not value.isdecimal():
                raise BadArgument(
                    f"batch_size is '{value}': give a number of replies (hf/NAME?batch_size=16)"
                )
            settings[setting] = int(value)
    return plain, settings


def could_be(name: str, called: str | None) -> bool:
    """Whether a model that is gone and was asked for by `name` may have been called so."""
    plain = settings_in(name)[0].removeprefix(HUGGING_FACE)
    return called in (plain, Path(plain).name, Path(plain).stem)


def name_of(name: str) -> str:
    """What a model that is asked for by `name` is called, wherever it lies.

    >>> name_of("hf/./runs/m_gen?dtype=bfloat16"), name_of("hf/models/tiny.gguf"), name_of("hf/google/flan-t5-xl")
    ('m_gen', 'tiny', 'google/flan-t5-xl')
    """
    plain = settings_in(name)[0].removeprefix(HUGGING_FACE)
    place = Path(plain).expanduser()
    if place.suffix.lower() == ".gguf":
        return place.stem
    if place.is_dir():
        return place.resolve().name
    on_hub = plain.count("/") == 1 and not plain.startswith((".", "~"))
    return plain if on_hub else place.name


def hugging_face_model(settings: Any) -> tuple[HuggingFaceEngine, Profile, dict[str, Any]]:
    """The engine of the model that `settings` (`LMSettings`) name, its profile, and what else replies depend on.

    Raises: as `connect`.
    """
    name = settings.name
    if settings.json_schema:
        raise BadArgument(f"{name} holds no reply to a schema: leave out json_schema=True")
    plain, own = settings_in(name)
    check_dtype(own.get("dtype"))
    checkpoint, called = checkpoint_of(plain), name_of(name)
    names, base = [called], checkpoint.base
    while base is not None:
        names.append(base.name)
        base = base.base
    profile = settings.profile("/".join(names), None)
    if not checkpoint.is_gguf and (checkpoint.path / RECIPE).is_file():
        # what was trained here has learned its forms
        profile = dataclasses.replace(profile, small=False)
    engine = HuggingFaceEngine(
        checkpoint,
        called,
        context=settings.context,
        threads=settings.threads,
        endpoint=settings.endpoint,
        profile=profile,
        deadline=settings.deadline,
        **own,
    )
    # llama.cpp, which computes with a GGUF file's rounded weights, replies otherwise
    shaping = {
        "engine": "hf",
        "weights": engine.fingerprint,
        "dtype": own.get("dtype"),
        "context": settings.context,
    }
    return engine, profile, shaping

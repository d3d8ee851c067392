"""A model of Hugging Face in this process, `connect("hf/NAME")`: what waits is written together, in one batch.

A decoder-only model writes the next token of up to `batch_size` replies at a time, left-padded; a reply that ends makes
room for a call that waits. Every prompt is read by itself, in chunks from its beginning, and chunks that several
prompts share are read once. So what a reply depends on beside its own request is the arithmetic of a step alone, whose
last digits may differ with the number of rows. Encoder-decoders read and write their batches through transformers'
`generate`, and so do models that keep no plain cache (Mamba), one at a time.

Each call has its own decoding settings and its own generator. A call is known by the model's name, the fingerprint of
its weights (an adapter's with its base's) and the settings, never by the path.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import dataclasses
import functools
import logging
import math
import os
import threading
import time
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from blendfilter.dspy_surface import lm15
from blendfilter.errors import BadArgument, UnknownName, WorkFailed, check_count
from blendfilter.extras import needed, quiet_transformers
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
    fingerprint,
    free_cached,
    open_checkpoint,
    open_config,
    open_tokenizer,
    positions_of,
    prompt_ids,
)
from blendfilter.lm.local import (
    KEPT_BYTES,
    ProcessEngine,
    asked_here,
    chunk_keys,
    known_here,
    seed_of,
)
from blendfilter.lm.profiles import Profile, profile_for

logger = logging.getLogger(__name__)
BATCH = 8
"""Replies that are written at a time, by default."""
ENDLESS = 1024
"""Tokens of a reply at most where neither the call nor the model, whose positions are relative, names a bound."""
CHUNK = {"cpu": 128, "cuda": 1024}
"""Tokens of a prompt that are read at once."""
_LIKELIEST = 1024
"""Tokens among which those that make up `top_p` are looked for first."""
_REMEMBERED = 2**14
_ROOM = 64
_WIDER = 1.5
"""How much wider than its longest row a batch may get, before it is laid anew."""
_SETTINGS = ("device", "dtype", "batch_size")
_CLOSED = "this model was closed while it was in use: connect() again"


# ---- calls


class HuggingFaceEngine(ProcessEngine):
    """A checkpoint of Hugging Face. Its weights are opened by the first call, so that a replay opens none.

    Args:
        checkpoint: its files.
        name: what it is called.
        context: tokens that prompt and reply may have together (of an encoder-decoder, each); by default what the
            model was trained on, and no bound where its configuration names none.
        threads: threads of the processor; by default torch's own choice.
        device, dtype: see `open_checkpoint`. batch_size: replies that are written at a time.
        how: see `ProcessEngine`.

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
        **how: Any,
    ) -> None:
        batch_size = check_count("batch_size", batch_size)
        if threads is not None:
            threads = check_count("threads", threads)
        super().__init__(name, **how)
        check_files(checkpoint)
        self.checkpoint, self.batch_size = checkpoint, batch_size
        self.fingerprint = fingerprint(checkpoint)
        self.context = _context_of(checkpoint, context)
        self._worker = _Worker(
            functools.partial(open_checkpoint, checkpoint, device=device, dtype=dtype),
            batch_size,
            threads,
        )
        self.close = weakref.finalize(self, self._worker.close)
        """Ends the thread and frees the memory; called when the engine is collected, and when the process ends."""
        self.close.atexit = False  # `_end_all` waits for the thread, too

    async def complete(self, request: lm15.Request) -> lm15.Response:
        """The model's response. Raises the errors of `lm15` that a server would."""
        self._check_process()
        if request.config.response_format is not None:
            raise lm15.UnsupportedFeatureError(
                "a model of Hugging Face in this process holds no reply to a schema",
                feature="format",
            )
        call = _Call(
            functools.partial(self._begun, request),
            request.config,
            not self._thinks(request),
            self._deadline,
            contextvars.copy_context(),
        )
        self._worker.put(call)
        try:
            reply = await asyncio.wrap_future(call.done)
        finally:
            call.cancelled.set()
            tally().waits(call.waited)  # waiting for its turn is no time of the model's
        if reply.late:
            raise self._too_late()
        return self._response(
            request.config, reply.text, reply.finish, reply.tokens, reply.logprobs
        )

    def count_tokens(self, text: str) -> int:
        """How many tokens a prompt of this text has, the chat template's own among them; opens no weights."""
        return len(prompt_ids(self._words, text, chat=None if self._chat else False))

    @functools.cached_property
    def _words(self) -> Any:
        return open_tokenizer(self.checkpoint)

    def unload(self) -> None:
        """Free the memory, when all calls have been answered; the next call opens the weights again."""
        self._worker.unload()

    def _begun(self, request: lm15.Request, loaded: LanguageModel) -> tuple[list[int], int, int]:
        """The prompt's tokens, how many the reply may have, and the seed of its choices."""
        rows = self._rows(request)
        chat = None if self._chat else False
        tokens = prompt_ids(
            loaded.tokenizer,
            rows,
            chat=chat,
            switches=self._switches(request) if self._chat else None,
        )
        if not tokens:
            raise lm15.InvalidRequestError(
                "the prompt is empty, and the model's own template adds nothing to it"
            )
        both = loaded.config.is_encoder_decoder  # the reply has a context of its own
        limit = self.context if self.context is not None else positions_of(loaded.config)
        self._check_length(len(tokens) - both, limit)
        cap = self.reply_cap(request)
        if limit is None:
            cap = ENDLESS if cap is None else cap
        else:
            room = limit - (1 if both else len(tokens))
            cap = room if cap is None else min(cap, room)
        return tokens, cap, seed_of(request.config.seed or 0, tokens)


class _Reply(NamedTuple):
    text: str
    finish: str
    tokens: tuple[int, int]
    logprobs: Mapping[str, Any] | None
    late: bool


@dataclass(eq=False)
class _Call:
    """A request that waits for its turn."""

    begin: Callable[[LanguageModel], tuple[list[int], int, int]]
    config: lm15.Config
    stops: bool  # inside the thinking, a stop string ends nothing
    deadline: float | None
    context: contextvars.Context
    done: Future[_Reply] = field(default_factory=Future)
    cancelled: threading.Event = field(default_factory=threading.Event)
    came: float = field(default_factory=time.perf_counter)
    waited: float = 0.0


class _Writing:
    """A reply that is being written: its prompt, what is written of it, and how the next token is chosen."""

    def __init__(self, call: _Call, loaded: LanguageModel, ends: frozenset[int]) -> None:
        call.waited = time.perf_counter() - call.came
        self.call, self._loaded, self._ends = call, loaded, ends
        self._began = time.monotonic()
        self.prompt, self.cap, seed = call.context.run(call.begin, loaded)
        self.written: list[int] = []
        self.finish = ""
        self.late = False
        self._config = config = call.config
        self._stop = tuple(string for string in config.stop if string) if call.stops else ()
        self._pieces: list[tuple[str, float, dict[str, float]]] = []
        self._temperature = 1.0 if config.temperature is None else config.temperature
        self.plain = self._temperature == 0 and config.logprobs is None and not self._penalised
        self._seed = seed

    @property
    def _penalised(self) -> bool:
        return bool(self._config.frequency_penalty or self._config.presence_penalty)

    @functools.cached_property
    def _generator(self) -> Any:
        return needed("torch", EXTRA, WHY).Generator().manual_seed(self._seed)

    def choose(self, logits: Any) -> int:
        """The next token, by logits of the whole vocabulary. Raises: `lm15.InvalidRequestError` for NaN."""
        torch = needed("torch", EXTRA, WHY)
        scores = logits.detach().to("cpu", torch.float32)
        if self._penalised:
            counts = Counter(self.written)
            scores = scores.clone()
            for token, count in counts.items():
                scores[token] -= (self._config.presence_penalty or 0.0) + count * (
                    self._config.frequency_penalty or 0.0
                )
        token = int(scores.argmax())
        if not scores[token].isfinite():  # the greatest is NaN where any is
            raise lm15.InvalidRequestError(
                "the model computes NaN here: its weights are damaged, or its dtype is too small (dtype=float32)"
            )
        if self._temperature:
            token = self._drawn(torch, scores / self._temperature)
        if self._config.logprobs is not None:
            self._note(torch.log_softmax(logits.detach().to("cpu", torch.float32), dim=-1), token)
        return token

    def _drawn(self, torch: Any, scores: Any) -> int:
        top_k, top_p = self._config.top_k or 0, self._config.top_p
        scores = scores.double()
        whole, order = scores.logsumexp(-1), None
        if top_k:
            scores, order = scores.topk(min(top_k, len(scores)))
            whole = scores.logsumexp(-1)
        elif top_p is not None and top_p < 1:
            likeliest, order = scores.topk(min(_LIKELIEST, len(scores)))
            if (
                likeliest - whole
            ).exp().sum() < top_p:  # rare: a whole vocabulary takes milliseconds to sort
                likeliest, order = scores.sort(descending=True)
            scores = likeliest
        chances = (scores - whole).exp()
        if top_p is not None and top_p < 1:
            before = chances.cumsum(0) - chances
            chances = torch.where(before < top_p, chances, 0.0)
        # one number between 0 and 1 a token: digits that differ a little draw the same
        drawn = torch.rand((), generator=self._generator, dtype=torch.float64) * chances.sum()
        at = int(torch.searchsorted(chances.cumsum(0), drawn, right=True))
        at = min(at, int(chances.nonzero()[-1]))
        return at if order is None else int(order[at])

    def _note(self, logprobs: Any, token: int) -> None:
        best = logprobs.topk(self._config.logprobs or 0)
        top: dict[str, float] = {}
        for value, i in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            top.setdefault(self._piece(i), value)  # of tokens that read alike the likeliest
        self._pieces.append((self._piece(token), float(logprobs[token]), top))

    def _piece(self, token: int) -> str:
        """What a token adds to the text; many a tokeniser leaves a space out of a token that stands alone."""
        before, after = self._decoded(self.written), self._decoded([*self.written, token])
        return after[len(before) :] if after.startswith(before) else self._decoded([token])

    def add(self, token: int) -> None:
        """Take the next token, which may end the reply."""
        if token in self._ends:
            self.finish = "stop"
            self._pieces = self._pieces[: len(self.written)]
            return
        self.written.append(token)
        if self._stop:
            text = self._decoded(self.written)
            if any(string in text for string in self._stop):
                self.finish = "stop"
                return
        if len(self.written) >= self.cap:
            self.finish = "length"

    @property
    def over(self) -> bool:
        """Whether nothing more is to be written."""
        if not self.finish:
            deadline = self.call.deadline
            self.late = deadline is not None and time.monotonic() - self._began > deadline
            if self.late or self.call.cancelled.is_set():
                self.finish = "length"
        return bool(self.finish)

    def end(self) -> None:
        """Hand the reply over."""
        if self.call.done.done():
            return
        text, scored = self._decoded(self.written), None
        if self._config.logprobs is not None:
            tokens, values, tops = zip(*self._pieces, strict=True) if self._pieces else ((), (), ())
            scored = {
                "tokens": list(tokens),
                "token_logprobs": list(values),
                "top_logprobs": list(tops),
            }
        sizes = len(self.prompt), len(self.written)
        self.call.done.set_result(_Reply(text, self.finish, sizes, scored, self.late))

    def _decoded(self, tokens: list[int]) -> str:
        return str(
            self._loaded.tokenizer.decode(
                tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )


# ---- the thread


_RUNNING: weakref.WeakKeyDictionary[_Worker, tuple[int, threading.Thread]] = (
    weakref.WeakKeyDictionary()
)
_ENOUGH = 10.0
"""Seconds that the end of the process waits for a thread: a step of a large model takes some."""


@atexit.register
def _end_all() -> None:
    """End every thread before the interpreter ends: one that is inside torch then aborts the whole process."""
    mine = [
        (worker, thread)
        for worker, (process, thread) in [*_RUNNING.items()]
        if process == os.getpid()
    ]
    for worker, _ in mine:
        worker.close()
    for _, thread in mine:
        thread.join(_ENOUGH)


class _Worker:
    """The thread that opens the weights and writes replies; no reference to the engine, which may be collected."""

    def __init__(
        self, open_model: Callable[[], LanguageModel], batch_size: int, threads: int | None
    ) -> None:
        self._open, self._size, self._threads = open_model, batch_size, threads
        self._waiting: deque[_Call] = deque()
        self._changed = threading.Condition()
        self._started = self.closed = self._unloading = False
        self.writer: _Batches | _Generating | None = None

    def put(self, call: _Call) -> None:
        """Let a call wait for its turn."""
        with self._changed:
            if self.closed:
                raise WorkFailed(_CLOSED)
            self._waiting.append(call)
            self._changed.notify()
            if not self._started:
                self._started = True
                thread = threading.Thread(
                    target=self._work, name="blendfilter-hf-model", daemon=True
                )
                _RUNNING[self] = os.getpid(), thread
                thread.start()

    def take(self, most: int) -> list[_Call]:
        """Calls that wait now, those that came first before the others."""
        taken: list[_Call] = []
        with self._changed:
            while self._waiting and len(taken) < most and not self.closed:
                call = self._waiting.popleft()
                if call.done.set_running_or_notify_cancel():
                    taken.append(call)
        return taken

    def close(self) -> None:
        """End what runs after its token, and free the memory."""
        with self._changed:
            self.closed = True
            self._changed.notify()
            left = [*self._waiting]
            self._waiting.clear()
        for call in left:
            if call.done.set_running_or_notify_cancel():
                _fail(call, WorkFailed(_CLOSED))

    def unload(self) -> None:
        """Free the memory once nothing waits, and come back when that is done."""
        with self._changed:
            self._unloading = self._started
            self._changed.notify_all()
            while self._unloading and not self.closed:
                self._changed.wait()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self.closed and not self._unloading:
                    self._changed.wait()
                if self._unloading or self.closed:
                    self._unloading, self.writer = False, None
                    free_cached()
                    self._changed.notify_all()
                if self.closed:
                    return
            if calls := self.take(self._size):
                self._write(calls)
            del calls  # nothing of them is kept while the next ones are waited for

    def _write(self, calls: list[_Call]) -> None:
        try:
            if self.writer is None:
                if self._threads is not None:
                    needed("torch", EXTRA, WHY).set_num_threads(self._threads)
                loaded = self._open()
                with quiet_transformers(EXTRA, WHY):
                    self.writer = _writer_of(loaded, self._size)
        except BaseException as error:  # noqa: BLE001 - whoever waits for it gets it
            for call in calls:
                _fail(call, error)
            return
        with needed("torch", EXTRA, WHY).inference_mode():
            self.writer.write(calls, self)


def _fail(call: _Call, error: BaseException) -> None:
    if isinstance(
        error, RuntimeError | MemoryError | OSError | ValueError | IndexError
    ) and not isinstance(error, BadArgument):
        line = str(error).strip().partition("\n")[0][:300]
        error = lm15.ServerError(
            f"torch could not compute this reply: {line or type(error).__name__}"
        )
    if not call.done.done():
        call.done.set_exception(error)


def _out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, of a GPU or not; CUDA, cuBLAS and torch say so in words of their own."""
    words = ("out of memory", "not enough memory", "CUBLAS_STATUS_ALLOC_FAILED")
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(each in str(error) for each in words)
    )


def _unanswered(calls: Iterable[_Call]) -> list[_Call]:
    return [call for call in dict.fromkeys(calls) if not call.done.done()]


def _writer_of(loaded: LanguageModel, size: int) -> _Batches | _Generating:
    _only_last(loaded.model)
    if loaded.config.is_encoder_decoder:
        return _Generating(loaded, size)
    if _turns_by_length(loaded.config):
        return _Generating(loaded, 1)
    with needed("torch", EXTRA, WHY).inference_mode():
        return _Batches(loaded, size) if _pads(loaded) else _Generating(loaded, 1)


def _only_last(model: Any) -> None:
    """Let the output layer read the last position alone: no other logits are wanted."""
    head = model.get_output_embeddings()
    if head is not None:
        head.register_forward_pre_hook(
            lambda _, given: (given[0][:, -1:], *given[1:]) if given[0].dim() == 3 else None
        )


def _ends_of(loaded: LanguageModel) -> frozenset[int]:
    ends = getattr(loaded.model.generation_config, "eos_token_id", None)
    several = ends if isinstance(ends, list | tuple) else [ends]
    return frozenset(
        int(end) for end in (*several, loaded.tokenizer.eos_token_id) if end is not None
    )


def _begun(
    calls: Sequence[_Call], loaded: LanguageModel, ends: frozenset[int]
) -> Iterator[_Writing]:
    for call in calls:
        try:
            row = _Writing(call, loaded, ends)
        except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
            _fail(call, error)
            continue
        if row.cap < 1:
            row.finish = "length"
            row.end()
            continue
        yield row


# ---- decoder-only models, in batches that rows join and leave


@functools.cache
def _roomy_layer() -> Any:
    cache_utils = needed("transformers.cache_utils", EXTRA, WHY)

    class RoomyLayer(cache_utils.DynamicLayer):  # type: ignore[name-defined]
        """Keys and values with room behind them: a step copies nothing of what was read before."""

        def __init__(self, keys: Any, values: Any) -> None:
            super().__init__()
            self.lazy_initialization(keys, values)
            self.keys, self.values = keys, values
            self._whole = (keys, values)

        def update(
            self, key_states: Any, value_states: Any, *args: Any, **kwargs: Any
        ) -> tuple[Any, Any]:
            now, then = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
            if then > self._whole[0].shape[-2]:
                more = (then - now) + _ROOM + now // 8
                self._whole = tuple(_widened(part, more) for part in (self.keys, self.values))
            for whole, part in zip(self._whole, (key_states, value_states), strict=True):
                whole[..., now:then, :] = part
            self.keys, self.values = (whole[..., :then, :] for whole in self._whole)
            return self.keys, self.values

    return RoomyLayer


def _widened(part: Any, more: int) -> Any:
    whole = part.new_empty((*part.shape[:-2], part.shape[-2] + more, part.shape[-1]))
    whole[..., : part.shape[-2], :] = part
    return whole


States = list[tuple[Any, Any] | None]
"""Keys and values of each layer, (rows, heads, tokens, width); None for a layer that has none of its own."""


def _cache_of(states: States) -> Any:
    utils = needed("transformers.cache_utils", EXTRA, WHY)
    cache = utils.DynamicCache()
    cache.layers = [
        utils.DynamicLayer() if state is None else _roomy_layer()(*state) for state in states
    ]
    return cache


def _states_of(cache: Any) -> States:
    return [(layer.keys, layer.values) if layer.is_initialized else None for layer in cache.layers]


class _Batch:
    """The rows that are written together, and what they have read: their ends stand in one column."""

    def __init__(self, device: Any) -> None:
        self.rows: list[_Writing] = []
        self.lengths: list[int] = []
        self._width = 0
        self._device = device
        self._cache: Any = None
        self._mask: Any = None

    def change(self, joining: Sequence[tuple[_Writing, States]]) -> None:
        """Drop rows that are over, and take in others with what they have read.

        One that joins takes the place of one that is over, where it is not longer than what stands there; else, and
        where places are left over, all is laid anew, which copies everything.
        """
        live = [row for row in self.rows if not row.finish]
        if not joining and 2 * len(live) > len(self.rows):
            return
        width = max([*self.lengths, *(len(row.prompt) for row, _ in joining)], default=0)
        fits = len(joining) <= len(self.rows) - len(live) and self._width >= width
        if not (live and joining and fits) or self._width > _WIDER * width:
            self._lay_anew(joining)
            return
        free = (at for at, row in enumerate(self.rows) if row.finish)
        for at, (row, states) in zip(free, joining, strict=False):
            length = len(row.prompt)
            self.rows[at], self.lengths[at] = row, length
            for layer, state in zip(self._cache.layers, states, strict=True):
                if state is not None:
                    layer.keys[at, :, -length:], layer.values[at, :, -length:] = (
                        state[0][0],
                        state[1][0],
                    )
        self._mask = self._mask_of()

    def _lay_anew(self, joining: Sequence[tuple[_Writing, States]]) -> None:
        stay = [i for i, row in enumerate(self.rows) if not row.finish]
        old = _states_of(self._cache) if stay else []
        parts: list[tuple[States, int, int]] = [(old, i, self.lengths[i]) for i in stay]
        parts += [(states, 0, len(row.prompt)) for row, states in joining]
        self.rows = [*(self.rows[i] for i in stay), *(row for row, _ in joining)]
        self.lengths = [length for *_, length in parts]
        self._width = width = max(self.lengths, default=0)
        if not parts:
            self._cache = self._mask = None
            return
        states: States = []
        for layer, known in enumerate(parts[0][0]):
            if known is None:
                states.append(None)
                continue
            wholes = []
            for side in (0, 1):
                like = known[side]
                whole = like.new_zeros((len(parts), like.shape[1], width + _ROOM, like.shape[3]))
                for row, (given, i, length) in enumerate(parts):
                    source = given[layer]
                    assert source is not None
                    whole[row, :, width - length : width] = source[side][
                        i, :, source[side].shape[2] - length :
                    ]
                wholes.append(whole)
            states.append((wholes[0], wholes[1]))
        self._cache = _cache_of(states)
        for known in self._cache.layers:
            if known.is_initialized:
                known.keys, known.values = (whole[..., :width, :] for whole in known._whole)
        self._mask = self._mask_of()

    def _mask_of(self) -> Any:
        """Which columns are of a row's text; None where all are."""
        torch = needed("torch", EXTRA, WHY)
        if min(self.lengths) == self._width:
            return None
        columns = torch.arange(self._width, device=self._device)
        starts = torch.tensor(
            [[self._width - length] for length in self.lengths], device=self._device
        )
        return (columns >= starts).long()

    def logits(self, forward: Callable[..., Any]) -> Any:
        """The logits of each row's next token, by the last that it has written."""
        torch = needed("torch", EXTRA, WHY)
        ids = torch.tensor([[row.written[-1]] for row in self.rows], device=self._device)
        positions = torch.tensor([[length] for length in self.lengths], device=self._device)
        if self._mask is not None:
            self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        made = forward(ids, self._cache, positions, self._mask)
        self._width += 1
        # a row that is over stays behind where it ended: its positions end, too
        self.lengths = [
            length + (not row.finish) for row, length in zip(self.rows, self.lengths, strict=True)
        ]
        return made


class _Batches:
    """Writes the replies of a decoder-only model."""

    def __init__(self, loaded: LanguageModel, size: int) -> None:
        self._loaded, self._ends = loaded, _ends_of(loaded)
        self._size = self._wanted = size
        self.beginnings = _KeptStates(CHUNK["cpu" if loaded.device.type == "cpu" else "cuda"])
        self._forward = _forward_of(loaded.model)

    def write(self, calls: list[_Call], worker: _Worker) -> None:
        """Write the replies to `calls`, and to what comes while there is room, until nothing waits.

        Where memory runs out, those under way begin anew, half as many at a time from then on.
        """
        batch, waiting = _Batch(self._loaded.device), deque(calls)
        while waiting or batch.rows:
            joining = [waiting.popleft() for _ in range(min(self._room(batch), len(waiting)))]
            short = 0
            try:
                self._round(batch, joining, worker)
            except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
                left = _unanswered([*(row.call for row in batch.rows), *joining])
                batch = _Batch(self._loaded.device)
                if _out_of_memory(error) and len(left) > 1:
                    waiting.extendleft(reversed(left))
                    short = len(left)
                else:
                    for call in left:
                        _fail(call, error)
                    if len(left) == 1:
                        self._size = (
                            self._wanted
                        )  # it failed by itself: how many there were was not the reason
            if short:  # here nothing holds the tensors of what failed
                self._make_room(short)
            if not waiting:
                waiting.extend(worker.take(self._room(batch)))

    def _room(self, batch: _Batch) -> int:
        return self._size - sum(not row.finish for row in batch.rows)

    def _make_room(self, count: int) -> None:
        self._size = count // 2
        self.beginnings = _KeptStates(CHUNK["cpu" if self._loaded.device.type == "cpu" else "cuda"])
        free_cached()
        logger.warning(
            "memory is too short for %s replies at a time: %s from here on", count, self._size
        )

    def _round(self, batch: _Batch, joining: Sequence[_Call], worker: _Worker) -> None:
        """Take in those that join, and write the next token of every reply."""
        fresh = []
        for row in _begun(joining, self._loaded, self._ends):
            if (states := self._first(row)) is not None:
                fresh.append((row, states))
        batch.change(fresh)
        del fresh
        if batch.rows:
            self._step(batch, worker)

    def _first(self, row: _Writing) -> States | None:
        """Read a prompt and write the first token; None where that is all."""
        try:
            states, logits = self.beginnings.read(row.prompt, self._read)
            self._add(row, row.choose(logits))
        except Exception as error:
            if _out_of_memory(error):
                raise
            _fail(row.call, error)
            return None
        return None if row.finish else states

    def _read(self, tokens: list[int], states: States) -> tuple[States, Any]:
        torch = needed("torch", EXTRA, WHY)
        device, before = self._loaded.device, _length_of(states)
        cache = _cache_of(states)
        ids = torch.tensor([tokens], device=device)
        positions = torch.arange(before, before + len(tokens), device=device)[None]
        logits = self._forward(ids, cache, positions, None)[0]
        return _states_of(cache), logits

    def _step(self, batch: _Batch, worker: _Worker) -> None:
        logits = batch.logits(self._forward)
        likeliest = logits.argmax(-1, keepdim=True)
        best, sound = (
            likeliest[:, 0].tolist(),
            logits.gather(1, likeliest).isfinite()[:, 0].tolist(),
        )
        for i, row in enumerate(batch.rows):
            if row.finish:
                continue  # its place was not taken yet
            if worker.closed:
                row.finish = "length"
                _fail(row.call, WorkFailed(_CLOSED))
            elif row.over:
                row.end()
            else:
                try:
                    self._add(row, best[i] if row.plain and sound[i] else row.choose(logits[i]))
                except lm15.InvalidRequestError as error:
                    row.finish = "error"
                    _fail(row.call, error)

    def _add(self, row: _Writing, token: int) -> None:
        row.add(token)
        if row.over:
            row.end()


def _length_of(states: States) -> int:
    return next((int(state[0].shape[2]) for state in states if state is not None), 0)


def _forward_of(model: Any) -> Callable[..., Any]:
    """`(ids, cache, positions, mask) -> logits of the last token`, (rows, vocabulary)."""
    import inspect

    takes = inspect.signature(model.forward).parameters

    def forward(ids: Any, cache: Any, positions: Any, mask: Any) -> Any:
        more = {"position_ids": positions} if "position_ids" in takes else {}
        made = model(
            input_ids=ids, past_key_values=cache, attention_mask=mask, use_cache=True, **more
        )
        return made.logits[:, -1]

    return forward


def _turns_by_length(config: Any) -> bool:
    """Whether the rotation of positions depends on the longest text of a batch (Phi-3's `longrope`, `dynamic`)."""
    given = getattr(config.get_text_config(), "rope_parameters", None) or {}
    kinds = [
        each.get("rope_type") for each in (given, *given.values()) if isinstance(each, Mapping)
    ]
    return any(kind in {"longrope", "dynamic"} for kind in kinds)


def _pads(loaded: LanguageModel) -> bool:
    """Whether a text in a batch of the model, its cache put together here, is what it is alone."""
    torch = needed("torch", EXTRA, WHY)
    forward, device = _forward_of(loaded.model), loaded.device
    texts = [[0, 1, 2, 3], [2, 1]]
    try:
        states = []
        for ids in texts:
            cache = _cache_of([])
            forward(
                torch.tensor([ids], device=device),
                cache,
                torch.arange(len(ids), device=device)[None],
                None,
            )
            states.append(_states_of(cache))
        if not states[0] or any(
            state is not None and state[0].shape[2] != 4 for state in states[0]
        ):
            return False
        rows: Any = [_Probe(ids) for ids in texts]
        batch = _Batch(device)
        batch.change([*zip(rows, states, strict=True)])
        found = batch.logits(forward).float()
        alone = [
            loaded.model(torch.tensor([[*ids, 1]], device=device)).logits[0, -1].float()
            for ids in texts
        ]
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, AssertionError):
        return False  # a cache of another kind
    exact = loaded.model.dtype == torch.float32 and not any(
        buffer.dtype == torch.int8 for buffer in loaded.model.buffers()
    )
    near = 1e-3 if exact else 5e-2
    return all(
        bool((one - other).abs().max() <= near * max(1.0, float(other.abs().max())))
        for one, other in zip(found, alone, strict=True)
    )


class _Probe:
    def __init__(self, prompt: list[int]) -> None:
        self.prompt, self.written, self.finish = prompt, [1], ""


class _KeptStates:
    """What was read of the beginnings that prompts share, chunk by chunk; the least recently used go first.

    Every prompt is read in whole chunks from its first token, so that what is kept of one is what reading it again
    would give. A chunk is kept when a second prompt begins with it and all before it.
    """

    def __init__(self, size: int, most: int = KEPT_BYTES) -> None:
        self._size, self._most, self.bytes = size, most, 0
        self._kept: OrderedDict[bytes, States] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()

    def read(
        self, tokens: list[int], read: Callable[[list[int], States], tuple[States, Any]]
    ) -> tuple[States, Any]:
        """What `read` gives for all of `tokens`, some of which it may not have to read."""
        keys = chunk_keys(tokens, self._size)
        states: States = []
        at = 0
        known = []
        for key in keys.values():
            if key not in self._kept:
                break
            self._kept.move_to_end(key)
            known.append(self._kept[key])
            at += self._size
        if known:
            states = _joined(known)
        logits = None
        while at < len(tokens):
            end = min(at + self._size, len(tokens))
            states, logits = read(tokens[at:end], states)
            key = keys.get(end, b"")
            if key in self._seen:
                self._keep(
                    key,
                    [
                        part and (_end(part[0], end - at), _end(part[1], end - at))
                        for part in states
                    ],
                )
            at = end
        self._seen.update(dict.fromkeys(keys.values()))
        while len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)
        return states, logits

    def _keep(self, key: bytes, states: States) -> None:
        size = _bytes_of(states)
        if size > self._most or key in self._kept:
            return
        while self.bytes + size > self._most:
            self.bytes -= _bytes_of(self._kept.popitem(last=False)[1])
        self._kept[key] = states
        self.bytes += size


def _joined(chunks: list[States]) -> States:
    torch = needed("torch", EXTRA, WHY)
    joined: States = []
    for layer in zip(*chunks, strict=True):
        parts = [part for part in layer if part is not None]
        joined.append(
            (torch.cat([k for k, _ in parts], 2), torch.cat([v for _, v in parts], 2))
            if parts
            else None
        )
    return joined


def _end(part: Any, count: int) -> Any:
    return part[:, :, -count:].clone()


def _bytes_of(states: States) -> int:
    return sum(
        side.numel() * side.element_size()
        for state in states
        if state is not None
        for side in state
    )


# ---- the others


class _Generating:
    """Writes replies through transformers' `generate`: those of encoder-decoders, and of caches of another kind."""

    def __init__(self, loaded: LanguageModel, size: int) -> None:
        self._loaded, self._size, self._ends = loaded, size, _ends_of(loaded)
        own, start = loaded.model.generation_config, loaded.model.config
        pad = loaded.tokenizer.pad_token_id
        self._pad = pad if pad is not None else min(self._ends, default=0)
        first = own.decoder_start_token_id
        self._how = {
            "decoder_start_token_id": getattr(start, "decoder_start_token_id", None)
            if first is None
            else first,
            "forced_bos_token_id": own.forced_bos_token_id,
            "bos_token_id": own.bos_token_id,
            "pad_token_id": self._pad,
        }
        # what else stands there (penalties, a forced last token) is no part of the request
        loaded.model.generation_config = needed("transformers", EXTRA, WHY).GenerationConfig(
            **self._how
        )

    def write(self, calls: list[_Call], worker: _Worker) -> None:
        """Write the replies to `calls`; where memory runs out, half as many at a time."""
        at, size = 0, self._size
        while at < len(calls):
            some = _unanswered(calls[at : at + size])
            rows = [*_begun(some, self._loaded, self._ends)]
            short = False
            try:
                if rows:
                    self._generate(rows, worker)
                for row in rows:
                    row.end()
            except Exception as error:  # noqa: BLE001 - whoever waits for it gets it
                short = _out_of_memory(error) and len(rows) > 1
                for row in rows if not short else ():
                    _fail(row.call, error)
            if short:
                del rows
                size = len(some) // 2
                free_cached()
                continue
            at += size

    def _generate(self, rows: list[_Writing], worker: _Worker) -> None:
        torch, transformers = needed("torch", EXTRA, WHY), needed("transformers", EXTRA, WHY)
        device, width = self._loaded.device, max(len(row.prompt) for row in rows)
        ids = [row.prompt + [self._pad] * (width - len(row.prompt)) for row in rows]
        seen = [[1] * len(row.prompt) + [0] * (width - len(row.prompt)) for row in rows]

        def process(_: Any, scores: Any) -> Any:
            chosen = torch.full_like(scores, -math.inf)
            for i, row in enumerate(rows):
                token = self._pad
                if worker.closed and not row.finish:
                    row.finish = "length"
                    _fail(row.call, WorkFailed(_CLOSED))
                if not row.over:
                    try:
                        token = row.choose(scores[i])
                    except lm15.InvalidRequestError as error:
                        row.finish = "error"
                        _fail(row.call, error)
                    else:
                        row.add(token)
                        row.over  # noqa: B018 - looks at the clock
                chosen[i, token] = 0.0
            return chosen

        def stop(given: Any, *_: Any, **__: Any) -> Any:
            return torch.tensor([bool(row.finish) for row in rows], device=given.device)

        with quiet_transformers(EXTRA, WHY):
            self._loaded.model.generate(
                torch.tensor(ids, device=device),
                attention_mask=torch.tensor(seen, device=device),
                generation_config=transformers.GenerationConfig(
                    max_new_tokens=max(row.cap for row in rows),
                    do_sample=False,
                    num_beams=1,
                    use_cache=True,
                    **self._how,
                ),
                logits_processor=transformers.LogitsProcessorList([process]),
                stopping_criteria=transformers.StoppingCriteriaList([stop]),
            )


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
        UnknownName: no such setting. BadArgument: a batch that is no number, a dtype that is unknown.

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
    check_dtype(settings.get("dtype"))
    return plain, settings


def could_be(name: str, called: str | None) -> bool:
    """Whether a model that is gone and was asked for by `name` may have been called so."""
    plain = settings_in(name)[0].removeprefix(HUGGING_FACE)
    return called in (
        plain,
        Path(plain).name,
        Path(plain).stem if plain.lower().endswith(".gguf") else plain,
    )


def name_of(name: str) -> str:
    """What a model that is asked for by `name` is called, wherever it lies.

    >>> name_of("hf/./runs/m_gen?dtype=bfloat16"), name_of("hf/models/tiny.gguf"), name_of("hf/google/flan-t5-xl")
    ('m_gen', 'tiny', 'google/flan-t5-xl')
    """
    plain = settings_in(name)[0].removeprefix(HUGGING_FACE)
    place = Path(plain).expanduser()
    if place.suffix.lower() == ".gguf":
        return place.stem
    is_path = place.is_dir() or plain.count("/") != 1 or plain.startswith((".", "~"))
    return (place.resolve().name if place.is_dir() else place.name) if is_path else plain


def hugging_face_model(
    name: str,
    how: Mapping[str, Any],
    *,
    context: int | None = None,
    threads: int | None = None,
    deadline: float | None = None,
    json_schema: bool | None = None,
    label: str = "",
) -> dict[str, Any]:
    """What `connect` has to know of the model `name`; arguments and errors as there."""
    how = asked_here(how)
    if json_schema:
        raise BadArgument(f"{name} holds no reply to a schema: leave out --json-schema")
    plain, own = settings_in(name)
    checkpoint, called = checkpoint_of(plain), name_of(name)
    profile = _profile_of(checkpoint, called)
    engine = HuggingFaceEngine(
        checkpoint,
        called,
        context=context,
        threads=threads,
        profile=profile,
        deadline=deadline,
        **own,
        **how,
    )
    # llama.cpp, which computes with a GGUF file's rounded weights, replies otherwise
    opened = {
        "engine": "hf",
        "weights": engine.fingerprint,
        "dtype": own.get("dtype"),
        "context": context,
    }
    return known_here(engine, profile, how, opened, label)


def _profile_of(checkpoint: Checkpoint, called: str) -> Profile:
    """Of the family that its name, or its base's, says. What was trained here has learned its forms."""
    names, base = [called], checkpoint.base
    while base is not None:
        names.append(base.name)
        base = base.base
    profile = profile_for("/".join(names))
    trained = not checkpoint.is_gguf and (checkpoint.path / RECIPE).is_file()
    return dataclasses.replace(profile, small=profile.small and not trained)


def _context_of(checkpoint: Checkpoint, context: int | None) -> int | None:
    """The context that was asked for. Raises `BadArgument` for too few tokens, and more than it was trained on."""
    if context is None:
        return None
    while checkpoint.base is not None:
        checkpoint = checkpoint.base
    trained = None if checkpoint.is_gguf else positions_of(open_config(checkpoint))
    if context < 64 or (trained is not None and context > trained):
        most = f", at most {trained:,} (what {checkpoint.name} was trained on)" if trained else ""
        raise BadArgument(f"a context must be at least 64 tokens{most}, got {context:,}")
    return context

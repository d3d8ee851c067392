"""Scores by a Hugging Face model in this process: decoder-only or encoder-decoder, as its configuration says.

What pairs share at the beginning of their prompts is read once, and the rest in batches; each distinct prompt of an
encoder-decoder is encoded once. Only the continuations' logits are made. Nothing masks the padding of a decoder-only
model: it stands on the right, and a token sees what is left of it, so that a score does not depend on what else is in
the batch, up to rounding. Code that comes with a model is never run.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from blendfilter.errors import BadArgument, BadData, MissingFile, WorkFailed, check_count
from blendfilter.extras import needed, quiet_transformers
from blendfilter.lm.scoring.base import (
    LARGEST,
    InProcess,
    PairTokens,
    Result,
    Score,
    TextPair,
    batches,
    first_token,
    groups,
    nothing_before,
    too_long,
    unusable,
)

T = TypeVar("T")
EXTRA = "scoring"
WHY = "scoring with a model of Hugging Face"
CONFIG = "config.json"
DTYPES = ("float32", "bfloat16", "float16", "float64")
BATCH_TOKENS = {"cpu": 4_096, "cuda": 32_768}
"""Tokens of a batch by default: what a processor's caches like, what keeps a GPU busy."""
_ROWS = 256
"""Rows of logits in float32 at a time."""
_CACHES = ("DynamicLayer", "DynamicSlidingWindowLayer")
"""Layers whose cache can be repeated for several texts. Recurrent ones read every text from its beginning."""
_NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")
"""What torch says of a GPU, and of a processor."""
_TRIMS = b'"trim_offsets":true'
_ON_THE_HUB = re.compile(r"[\w.-]+/[\w.-]+")
_UNWANTED = ["onnx/*", "openvino/*", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.gguf", "*.tflite"]
_READ_WHOLE = 2**20
_CHUNK, _CHUNKS = 2**16, 64


class HuggingFace(InProcess):
    """A Hugging Face model that scores pairs.

    Args:
        name: a folder, or `owner/name` on the hub.
        device, dtype: see `load`.
        batch_tokens: how many tokens a batch may hold, padding included (by default 4,096 on a CPU, 32,768 on a GPU);
            it bounds memory and changes no score.
        batch_size: how many pairs, at most.
        bos, control: see `PairTokeniser`.
    """

    def __init__(
        self,
        name: str | Path,
        *,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
        batch_size: int | None = None,
        bos: bool | None = None,
        control: bool = False,
    ) -> None:
        super().__init__()
        if dtype is not None and dtype not in DTYPES:
            raise BadArgument(f"no dtype '{dtype}' (known: {', '.join(DTYPES)})")
        for what, value in (("batch_tokens", batch_tokens), ("batch_size", batch_size)):
            if value is not None:
                check_count(what, value)
        self.folder = folder_of(name)
        self.name = str(name) if not Path(name).expanduser().is_dir() else self.folder.resolve().name
        self._loading = (device, dtype)
        self._batches = (batch_tokens, batch_size)
        self._reading: dict[str, Any] = {"bos": bos, "control": control}

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """The weights' fingerprint, and what else changes a score; not where they compute."""
        settings = {"dtype": self._loading[1], **self._reading, "control": self._reading["control"] or None}
        changed = {name: value for name, value in settings.items() if value is not None}
        return {"kind": "huggingface", "weights": fingerprint(self.folder), **changed}

    def results(self, pairs: Sequence[TextPair]) -> Iterator[tuple[int, Result]]:
        """See `InProcess`. Raises: WorkFailed where a batch does not fit into memory."""
        try:
            yield from self._model.results(pairs)
        except RuntimeError as error:
            if not any(sign in str(error).lower() for sign in _NO_MEMORY):
                raise
            raise WorkFailed(
                f"{self.name} has no memory for a batch of {self._model.tokens:,} tokens on {self._loaded.device}: "
                f"give a smaller batch_tokens; what was scored before is kept"
            ) from None

    @cached_property
    def _loaded(self) -> LanguageModel:
        return load(self.folder, *self._loading)

    @cached_property
    def _model(self) -> Causal | Seq2Seq:
        tokens, rows = self._batches
        tokeniser = PairTokeniser(self._loaded.tokenizer, self.name, **self._reading)
        kind = Seq2Seq if self._loaded.config.is_encoder_decoder else Causal
        default = BATCH_TOKENS.get(self._loaded.device.type, BATCH_TOKENS["cpu"])
        return kind(self._loaded, tokeniser, tokens or default, rows or LARGEST)

    def __repr__(self) -> str:
        return f"HuggingFace({self.name!r})"


# ---- files


class LanguageModel(NamedTuple):
    """A model that is loaded, with its tokeniser, its configuration and where it computes."""

    model: Any
    tokenizer: Any
    config: Any
    device: Any


def folder_of(name: str | Path) -> Path:
    """The folder of a model. A name on the hub is downloaded once, and found in the hub's cache after that.

    Raises:
        MissingFile: there is no such folder, and no such name to be had. BadData: the folder holds no model.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        folder = _from_hub(str(name))
    if not (folder / CONFIG).is_file():
        raise BadData(f"no model in {folder}: a Hugging Face folder has a {CONFIG}")
    return folder


def fingerprint(folder: Path) -> str:
    """16 hex digits that tell models apart, wherever the folder lies.

    Of configuration, tokeniser and the like all that is in the folder and small; of each file of weights its size and
    64 pieces of 64 KiB spread over it. Another training shows in every piece; two files that differ in a few bytes
    alone may look the same.
    """
    whole = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in (".json", ".safetensors", ".bin", ".model", ".txt", ".jinja"):
            size = path.stat().st_size
            whole.update(f"{path.relative_to(folder).as_posix()}\0{size}\n".encode())
            with path.open("rb") as file:
                if size <= _READ_WHOLE or path.suffix not in (".safetensors", ".bin"):
                    whole.update(file.read())
                    continue
                for i in range(_CHUNKS):
                    file.seek((size - _CHUNK) * i // (_CHUNKS - 1))
                    whole.update(file.read(_CHUNK))
    return whole.hexdigest()[:16]


def load(folder: Path, device: str | None, dtype: str | None) -> LanguageModel:
    """The model in `folder`, ready to read.

    Args:
        device: `cpu`, `cuda`, `cuda:1`; by default a GPU where there is one.
        dtype: what it computes in; by default float32 on a CPU, and on a GPU what the weights are stored in.

    Raises:
        BadData: it cannot be loaded, or not whole, or is no model that gives the next token.
        BadArgument: no such device or dtype here.
    """
    torch, transformers = needed("torch", EXTRA, WHY), needed("transformers", EXTRA, WHY)
    place = _device(torch, device)
    with quiet_transformers(EXTRA, WHY):
        try:
            config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
            kind = "AutoModelForSeq2SeqLM" if config.is_encoder_decoder else "AutoModelForCausalLM"
            model, report = getattr(transformers, kind).from_pretrained(
                folder,
                dtype=dtype or ("float32" if place.type == "cpu" else "auto"),
                local_files_only=True,
                output_loading_info=True,
            )
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (ImportError, MemoryError):
            raise
        except Exception as error:  # whatever torch, tokenizers and safetensors raise of a file that is not theirs
            why = str(error).strip().partition("\n")[0][:200] or type(error).__name__
            raise BadData(
                f"the model in {folder} cannot be loaded ({why}): is it a language model, and whole?"
            ) from error
    if missing := sorted(report["missing_keys"]):
        raise BadData(
            f"the model in {folder} is not whole: {len(missing)} of its weights are missing, {missing[0]} first; "
            "is it a language model? Fetch or save it again"
        )
    if not tokenizer.is_fast:
        raise BadData(f"the tokeniser in {folder} does not tell where tokens end: save it as a tokenizer.json")
    return LanguageModel(model.to(place).eval(), tokenizer, config, place)


def _device(torch: Any, name: str | None) -> Any:
    try:
        place = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.empty(0, device=place)
    except (RuntimeError, AssertionError) as error:
        why = str(error).partition("\n")[0]
        raise BadArgument(f"no device '{name}' here ({why}): leave it out, or say 'cpu'") from None
    return place


def _from_hub(name: str) -> Path:
    if not _ON_THE_HUB.fullmatch(name):
        raise MissingFile(f"no model '{name}': it is no folder, and names on the hub read owner/name")
    hub: Any = needed("huggingface_hub", EXTRA, WHY)
    try:
        cached = Path(hub.snapshot_download(name, local_files_only=True))
        if _has_weights(cached):
            return cached
    except OSError:  # not in the cache
        pass
    try:
        return Path(hub.snapshot_download(name, ignore_patterns=_UNWANTED))
    except (OSError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise MissingFile(
            f"no model '{name}': no folder here, not in the hub's cache, and the hub did not give it ({why}): "
            "check the name, or name a folder"
        ) from None


def _has_weights(folder: Path) -> bool:
    """Whether all weights are there: the cache may hold a tokeniser alone, or a download that broke off."""
    if indexes := list(folder.glob("*.index.json")):
        shards = [set(json.loads(index.read_text())["weight_map"].values()) for index in indexes]
        return any(all((folder / name).is_file() for name in each) for each in shards)
    return any(any(folder.glob(pattern)) for pattern in ("*.safetensors", "*.bin"))


# ---- texts as tokens


class PairTokeniser:
    """A fast Hugging Face tokeniser, as scoring uses it.

    Args:
        tokenizer: the library's own.
        name: the model's, for messages.
        bos: whether the mark that begins a text stands before every text (None: where the tokeniser itself puts it).
        control: whether a control token's name in a text is read as that token.

    Raises:
        BadArgument: `bos` of a model that has none.
    """

    def __init__(self, tokenizer: Any, name: str, *, bos: bool | None = None, control: bool = False) -> None:
        self._tokenizer, self.name, self._control = tokenizer, name, control
        self._bos: int | None = tokenizer.bos_token_id
        _keep_white_space(tokenizer)
        own = _in_front(tokenizer)
        if bos and self._bos is None:
            raise BadArgument(f"{name} has no mark that begins a text (BOS): leave bos out")
        put = (self._bos,) if bos and self._bos is not None and self._bos not in own else ()
        self.lead: tuple[int, ...] = () if bos is False else put + own

    def pairs(self, pairs: Sequence[TextPair]) -> Iterator[PairTokens]:
        """Prompt and continuation as one text each.

        Raises:
            BadArgument: nothing stands before a continuation.
        """
        read = self.read([prompt + continuation for prompt, continuation in pairs], return_offsets_mapping=True)
        for pair, ids, offsets in zip(pairs, read["input_ids"], read["offset_mapping"], strict=True):
            lead = self.lead
            first = first_token(list(accumulate((end for _, end in offsets), max)), len(pair.prompt))
            if first == 0 and not lead:
                if self._bos is None:
                    raise nothing_before(pair, self.name)
                lead = (self._bos,)
            yield PairTokens((*lead, *ids), len(lead) + first)

    def read(self, texts: Sequence[str], *, add_special_tokens: bool = False, **more: Any) -> Any:
        """What the tokeniser makes of texts; `add_special_tokens`: with the marks that it puts around each."""
        return self._tokenizer(
            texts, add_special_tokens=add_special_tokens, split_special_tokens=not self._control,
            padding=False, truncation=False, return_attention_mask=False, verbose=False, **more,
        )  # fmt: skip


def _keep_white_space(tokenizer: Any) -> None:
    """Let offsets span whole tokens: some tokenisers leave white space out, and a token would seem to end before it."""
    backend = tokenizer.backend_tokenizer
    processor = backend.post_processor
    state = b"" if processor is None else processor.__getstate__()
    if _TRIMS in state:
        processor.__setstate__(state.replace(_TRIMS, _TRIMS.replace(b"true", b"false")))
        backend.post_processor = processor


def _in_front(tokenizer: Any) -> tuple[int, ...]:
    """The marks that the tokeniser puts in front of a text by itself."""
    marked, plain = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
    starts = (at for at in range(len(marked) - len(plain) + 1) if marked[at : at + len(plain)] == plain)
    return tuple(marked[: next(starts, 0)])


# ---- models


class BothSides(NamedTuple):
    """A pair as an encoder-decoder reads it."""

    prompt: tuple[int, ...]
    lead: tuple[int, ...]
    continuation: tuple[int, ...]


class _Reader(Generic[T]):
    """A model at work.

    Args:
        loaded, tokeniser: the model, and its tokeniser.
        tokens, rows: what a batch may hold, padding and shared prefix included.
    """

    def __init__(self, loaded: LanguageModel, tokeniser: PairTokeniser, tokens: int, rows: int) -> None:
        self._model, self._device = loaded.model, loaded.device
        self._tokeniser, self.tokens, self._rows = tokeniser, tokens, rows
        self._torch = needed("torch", EXTRA, WHY)
        stated = getattr(loaded.config.get_text_config(), "max_position_embeddings", None)
        # None where positions are relative
        self._limit = stated if isinstance(stated, int) and stated > 0 else None

    def results(self, pairs: Sequence[TextPair]) -> Iterator[tuple[int, Result]]:
        """Index and result of each pair; those that cannot be read first, the others batch by batch."""
        readable: list[tuple[int, T]] = []
        for at, (pair, (item, length, written)) in enumerate(zip(pairs, self._items(pairs), strict=True)):
            if not written:
                yield at, Score(0.0, 0)
            elif not length:
                yield at, unusable(pair, f"{self._tokeniser.name} reads nothing of the prompt")
            elif self._limit is not None and length > self._limit:
                yield at, too_long(pair, length, self._limit)
            else:
                readable.append((at, item))
        for i, score in self._scores([item for _, item in readable]):
            yield readable[i][0], score

    def _items(self, pairs: Sequence[TextPair]) -> Iterator[tuple[T, int, int]]:
        """Each pair as tokens, how many positions it takes (0: it cannot be read), and its continuation's tokens."""
        raise NotImplementedError

    def _scores(self, items: Sequence[T]) -> Iterator[tuple[int, Score]]:
        raise NotImplementedError

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        return batches(lengths, tokens=self.tokens, rows=self._rows)


class Causal(_Reader[PairTokens]):
    """A decoder-only model at work.

    Raises:
        BadData: a token's logits depend on what comes after it (an encoder such as BERT).
    """

    def __init__(self, loaded: LanguageModel, tokeniser: PairTokeniser, tokens: int, rows: int) -> None:
        super().__init__(loaded, tokeniser, tokens, rows)
        with self._torch.inference_mode():
            self._check_causal()
            cache = getattr(self._model(padded([[0]], self._device), use_cache=True), "past_key_values", None)
        self._shares = all(type(layer).__name__ in _CACHES for layer in getattr(cache, "layers", [None]))

    def _items(self, pairs: Sequence[TextPair]) -> Iterator[tuple[PairTokens, int, int]]:
        for item in self._tokeniser.pairs(pairs):
            yield item, len(item.ids), len(item.ids) - item.first

    def _scores(self, items: Sequence[PairTokens]) -> Iterator[tuple[int, Score]]:
        # the position before the continuation gives its first token: it is read with the rest
        shareable = [item.ids[: item.first - 1] if self._shares and self._rows > 1 else () for item in items]
        planned = groups(shareable, largest=self._rows)
        yield from self._read(items, [group.members[0] for group in planned if not group.shared])
        for shared, members in planned:
            if shared:
                with self._torch.inference_mode():
                    prefix = padded([items[members[0]].ids[:shared]], self._device)
                    cache = self._model.base_model(prefix, use_cache=True).past_key_values
                yield from self._read(items, members, cache, shared)

    def _read(
        self, items: Sequence[PairTokens], members: Sequence[int], cache: Any = None, shared: int = 0
    ) -> Iterator[tuple[int, Score]]:
        for batch in self._batches([len(items[at].ids) - 1 for at in members]):
            chosen = [members[i] for i in batch]
            yield from zip(chosen, self._batch([items[at] for at in chosen], cache, shared), strict=True)

    def _batch(self, items: Sequence[PairTokens], cache: Any, shared: int) -> list[Score]:
        # the last token is predicted and never read
        inputs = padded([item.ids[shared:-1] for item in items], self._device)
        wanted = [Continuation(item.first - 1 - shared, item.ids[item.first :]) for item in items]
        with self._torch.inference_mode():
            own = copy.deepcopy(cache)  # reading on writes into it
            if own is not None and len(items) > 1:
                own.batch_repeat_interleave(len(items))
            return logit_scores(self._model, wanted, input_ids=inputs, past_key_values=own, use_cache=own is not None)

    def _check_causal(self) -> None:
        one, other = (self._model(padded([ids], self._device)).logits[0, :2].float() for ids in ([0, 1, 0], [0, 1, 1]))
        if not self._torch.allclose(one, other, rtol=1e-2, atol=1e-2):
            raise BadData(
                f"{type(self._model).__name__} reads a text from both its ends (an encoder): it gives no "
                "log-probability of a continuation; name a model that writes"
            )


class Seq2Seq(_Reader[BothSides]):
    """An encoder-decoder at work."""

    def __init__(self, loaded: LanguageModel, tokeniser: PairTokeniser, tokens: int, rows: int) -> None:
        super().__init__(loaded, tokeniser, tokens, rows)
        start = self._model.generation_config.decoder_start_token_id
        self._start = self._model.config.decoder_start_token_id if start is None else start
        if self._start is None:
            raise BadData(
                f"{type(self._model).__name__} does not say which token its decoder starts with: set it in its config"
            )

    def _items(self, pairs: Sequence[TextPair]) -> Iterator[tuple[BothSides, int, int]]:
        prompts = self._tokeniser.read([pair.prompt for pair in pairs], add_special_tokens=True)["input_ids"]
        continuations = self._tokeniser.read([pair.continuation for pair in pairs])["input_ids"]
        lead = self._tokeniser.lead
        for prompt, continuation in zip(map(tuple, prompts), map(tuple, continuations), strict=True):
            length = max(len(prompt), len(continuation) + 1 + len(lead)) if prompt else 0
            yield BothSides(prompt, lead, continuation), length, len(continuation)

    def _scores(self, items: Sequence[BothSides]) -> Iterator[tuple[int, Score]]:
        by_prompt: dict[tuple[int, ...], list[int]] = {}
        for at, item in enumerate(items):
            by_prompt.setdefault(item.prompt, []).append(at)
        prompts = list(by_prompt)
        for batch in self._batches([len(prompt) for prompt in prompts]):
            yield from self._decoded(items, {prompts[i]: by_prompt[prompts[i]] for i in batch})

    def _decoded(
        self, items: Sequence[BothSides], by_prompt: Mapping[tuple[int, ...], Sequence[int]]
    ) -> Iterator[tuple[int, Score]]:
        inputs = padded(list(by_prompt), self._device)
        sizes = self._torch.tensor([[len(prompt)] for prompt in by_prompt], device=self._device)
        seen = (self._torch.arange(inputs.shape[1], device=self._device) < sizes).long()
        with self._torch.inference_mode():
            encoded = self._model.get_encoder()(inputs, attention_mask=seen)[0]
        pairs = [(at, row) for row, members in enumerate(by_prompt.values()) for at in members]
        for batch in self._batches([len(items[at].continuation) + encoded.shape[1] for at, _ in pairs]):
            chosen, rows = zip(*(pairs[i] for i in batch), strict=True)
            found = self._batch([items[at] for at in chosen], encoded[list(rows)], seen[list(rows)])
            yield from zip(chosen, found, strict=True)

    def _batch(self, items: Sequence[BothSides], encoded: Any, seen: Any) -> list[Score]:
        outputs = needed("transformers.modeling_outputs", EXTRA, WHY)
        rows = [(self._start, *item.lead, *item.continuation[:-1]) for item in items]
        wanted = [Continuation(len(item.lead), item.continuation) for item in items]
        with self._torch.inference_mode():
            return logit_scores(
                self._model, wanted, encoder_outputs=outputs.BaseModelOutput(last_hidden_state=encoded),
                attention_mask=seen, decoder_input_ids=padded(rows, self._device), use_cache=False,
            )  # fmt: skip


class Continuation(NamedTuple):
    """One row of a batch: logits are wanted from position `start` on, and `targets` are what they predict."""

    start: int
    targets: tuple[int, ...]


def padded(rows: Sequence[Sequence[int]], device: Any) -> Any:
    """Token ids as one tensor, filled up on the right: what stands there is behind everything that is read."""
    torch = needed("torch", EXTRA, WHY)
    width = max(map(len, rows))
    return torch.tensor([[*row, *[row[-1]] * (width - len(row))] for row in rows], device=device)


def logit_scores(model: Any, wanted: Sequence[Continuation], **inputs: Any) -> list[Score]:
    """One score for each row of the batch in `inputs`."""
    torch = needed("torch", EXTRA, WHY)
    rows = [row for row, each in enumerate(wanted) for _ in each.targets]
    columns = [each.start + at for each in wanted for at in range(len(each.targets))]
    with _only(model, rows, columns):
        made = model(**inputs).logits
    if tuple(made.shape[:2]) != (1, len(rows)):
        raise BadData(
            f"{type(model).__name__} makes its logits in another way than by an output layer of its own: "
            "its log-probabilities cannot be computed here"
        )
    logits = made[0]
    targets = torch.tensor([target for each in wanted for target in each.targets], device=logits.device)
    wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
    # each in 32 bits at least, then summed in 64: neither underflows, however long the text
    parts = [
        torch.log_softmax(part.to(wide), dim=-1).gather(1, target[:, None])[:, 0]
        for part, target in zip(logits.split(_ROWS), targets.split(_ROWS), strict=True)
    ]
    sums = torch.cat(parts).double().cpu().split([len(each.targets) for each in wanted])
    return [Score(float(each.sum()), len(each)) for each in sums]


@contextmanager
def _only(model: Any, rows: list[int], columns: list[int]) -> Iterator[None]:
    """Inside the block, the model's output layer is given these positions alone, as one text of a batch."""
    head = model.get_output_embeddings()
    if head is None:
        raise BadData(f"{type(model).__name__} has no output layer over its vocabulary: it gives no log-probabilities")
    hook = head.register_forward_pre_hook(lambda _, given: (given[0][rows, columns][None],))
    try:
        yield
    finally:
        hook.remove()

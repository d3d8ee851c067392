"""Scores by a Hugging Face model in this process: decoder-only or encoder-decoder, as its configuration says.

What pairs share at the beginning of their prompts a decoder-only model reads once, and the rest in batches. Only the
continuations' logits are made. Nothing masks the padding of what a decoder reads: it stands on the right, and a token
sees what is left of it, so that a score does not depend on what else is in the batch, up to rounding. Code that comes
with a model is never run.
"""

from __future__ import annotations

import copy
import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter.errors import BadArgument, BadData, MissingFile, check_count
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

EXTRA = "scoring"
WHY = "scoring with a model of Hugging Face"
CONFIG = "config.json"
BATCH_TOKENS = {"cpu": 4_096, "cuda": 32_768}
"""Tokens of a batch by default: what a processor's caches like, what keeps a GPU busy."""
_ROWS = 256
"""Rows of logits in float32 at a time."""
_CACHES = ("DynamicLayer", "DynamicSlidingWindowLayer")
"""Layers whose cache can be repeated for several texts. Recurrent ones read every text from its beginning."""
_TRIMS = b'"trim_offsets":true'
_UNWANTED = ["onnx/*", "openvino/*", "*.onnx", "*.h5", "*.msgpack", "*.ot", "*.gguf", "*.tflite"]
_READ_WHOLE = 2**20
_CHUNK, _CHUNKS = 2**16, 64


class HuggingFace(InProcess):
    """A Hugging Face model that scores pairs: a folder, or `owner/name` on the hub.

    Args:
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
        for what, value in (("batch_tokens", batch_tokens), ("batch_size", batch_size)):
            if value is not None:
                check_count(what, value)
        self.folder = folder_of(name)
        self.name = str(name) if not Path(name).expanduser().is_dir() else self.folder.resolve().name
        self._loading = (device, dtype)
        self._tokens, self._rows = batch_tokens, batch_size or LARGEST
        self._reading: dict[str, Any] = {"bos": bos, "control": control}

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """The weights' fingerprint, and what else changes a score; not where they compute."""
        settings = {"dtype": self._loading[1], **self._reading, "control": self._reading["control"] or None}
        changed = {name: value for name, value in settings.items() if value is not None}
        return {"kind": "huggingface", "weights": fingerprint(self.folder), **changed}

    def results(self, pairs: Sequence[TextPair]) -> Iterator[tuple[int, Result]]:
        """See `InProcess`: those that cannot be read first, the others batch by batch."""
        config = self._loaded.config
        stated = getattr(config.get_text_config(), "max_position_embeddings", None)
        limit = stated if isinstance(stated, int) and stated > 0 else math.inf  # without one, positions are relative
        items = list(self._both_sides(pairs) if config.is_encoder_decoder else self._tokeniser.pairs(pairs))
        readable = []
        for at, (pair, item) in enumerate(zip(pairs, items, strict=True)):
            length = max(len(item.ids), len(item.prompt))
            if item.first == len(item.ids):
                yield at, Score(0.0, 0)
            elif config.is_encoder_decoder and not item.prompt:
                yield at, unusable(pair, f"{self.name} reads nothing of the prompt")
            elif length > limit:
                yield at, too_long(pair, length, int(limit))
            else:
                readable.append(at)
        for i, score in self._scores([items[at] for at in readable]):
            yield readable[i], score

    @cached_property
    def _loaded(self) -> LanguageModel:
        return load(self.folder, *self._loading)

    @cached_property
    def _tokeniser(self) -> PairTokeniser:
        return PairTokeniser(self._loaded.tokenizer, self.name, **self._reading)

    @cached_property
    def _shares(self) -> bool:
        """Whether a cache of what several texts begin with can be repeated for each. Raises: BadData for an encoder."""
        loaded, torch = self._loaded, needed("torch", EXTRA, WHY)
        if loaded.config.is_encoder_decoder:
            return False
        with torch.inference_mode():
            texts = (padded([ids], loaded.device) for ids in ([0, 1, 0], [0, 1, 1]))
            one, other = (loaded.model(text).logits[0, :2].float() for text in texts)
            if not torch.allclose(one, other, rtol=1e-2, atol=1e-2):
                raise BadData(
                    f"{type(loaded.model).__name__} reads a text from both its ends (an encoder): it gives no "
                    "log-probability of a continuation; name a model that writes"
                )
            cache = getattr(loaded.model(padded([[0]], loaded.device), use_cache=True), "past_key_values", None)
        return all(type(layer).__name__ in _CACHES for layer in getattr(cache, "layers", [None]))

    def _both_sides(self, pairs: Sequence[TextPair]) -> Iterator[PairTokens]:
        model, lead = self._loaded.model, self._tokeniser.lead
        start = model.generation_config.decoder_start_token_id
        start = model.config.decoder_start_token_id if start is None else start
        prompts = self._tokeniser.read([pair.prompt for pair in pairs], add_special_tokens=True)["input_ids"]
        continuations = self._tokeniser.read([pair.continuation for pair in pairs])["input_ids"]
        for prompt, continuation in zip(prompts, continuations, strict=True):
            yield PairTokens((start, *lead, *continuation), 1 + len(lead), tuple(prompt))

    def _scores(self, items: Sequence[PairTokens]) -> Iterator[tuple[int, Score]]:
        # the position before the continuation gives its first token: it is read with the rest
        shareable = [item.ids[: item.first - 1] if self._shares and self._rows > 1 else () for item in items]
        planned = groups(shareable, largest=self._rows)
        yield from self._read(items, [group.members[0] for group in planned if not group.shared])
        for shared, members in planned:
            if shared:
                with needed("torch", EXTRA, WHY).inference_mode():
                    prefix = padded([items[members[0]].ids[:shared]], self._loaded.device)
                    cache = self._loaded.model.base_model(prefix, use_cache=True).past_key_values
                yield from self._read(items, members, cache, shared)

    def _read(
        self, items: Sequence[PairTokens], members: Sequence[int], cache: Any = None, shared: int = 0
    ) -> Iterator[tuple[int, Score]]:
        tokens = self._tokens or BATCH_TOKENS["cpu" if self._loaded.device.type == "cpu" else "cuda"]
        lengths = [len(items[at].ids) - 1 + len(items[at].prompt) for at in members]
        for batch in batches(lengths, tokens=tokens, rows=self._rows):
            chosen = [members[i] for i in batch]
            yield from zip(chosen, self._batch([items[at] for at in chosen], cache, shared), strict=True)

    def _batch(self, items: Sequence[PairTokens], cache: Any, shared: int) -> list[Score]:
        torch, device = needed("torch", EXTRA, WHY), self._loaded.device
        # the last token is predicted and never read
        inputs = padded([item.ids[shared:-1] for item in items], device)
        wanted = [Continuation(item.first - 1 - shared, item.ids[item.first :]) for item in items]
        with torch.inference_mode():
            if items[0].prompt:
                prompts = padded([item.prompt for item in items], device)
                sizes = torch.tensor([[len(item.prompt)] for item in items], device=device)
                seen = (torch.arange(prompts.shape[1], device=device) < sizes).long()
                how = {"input_ids": prompts, "attention_mask": seen, "decoder_input_ids": inputs, "use_cache": False}
            else:
                own = copy.deepcopy(cache)  # reading on writes into it
                if own is not None and len(items) > 1:
                    own.batch_repeat_interleave(len(items))
                how = {"input_ids": inputs, "past_key_values": own, "use_cache": own is not None}
            return logit_scores(self._loaded.model, wanted, **how)


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
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)):
            raise MissingFile(f"no model '{name}': it is no folder, and names on the hub read owner/name")
        hub: Any = needed("huggingface_hub", EXTRA, WHY)
        try:
            folder = Path(hub.snapshot_download(str(name), ignore_patterns=_UNWANTED))
        except (OSError, ValueError) as error:
            why = str(error).partition("\n")[0]
            raise MissingFile(
                f"no model '{name}': no folder here, not in the hub's cache, and the hub did not give it ({why}): "
                "check the name, or name a folder"
            ) from None
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
    """
    torch, transformers = needed("torch", EXTRA, WHY), needed("transformers", EXTRA, WHY)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
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


# ---- texts as tokens


class PairTokeniser:
    """The fast tokeniser of the model `name`, as scoring uses it.

    Args:
        bos: whether the mark that begins a text stands before every text (None: where the tokeniser itself puts it).
        control: whether a control token's name in a text is read as that token.
    """

    def __init__(self, tokenizer: Any, name: str, *, bos: bool | None = None, control: bool = False) -> None:
        self._tokenizer, self.name, self._control = tokenizer, name, control
        self._bos: int | None = tokenizer.bos_token_id
        backend = tokenizer.backend_tokenizer
        processor = backend.post_processor
        state = b"" if processor is None else processor.__getstate__()
        if _TRIMS in state:  # offsets would leave white space out, and a token would seem to end before it
            processor.__setstate__(state.replace(_TRIMS, _TRIMS.replace(b"true", b"false")))
            backend.post_processor = processor
        marked, plain = tokenizer("a")["input_ids"], tokenizer("a", add_special_tokens=False)["input_ids"]
        starts = (at for at in range(len(marked) - len(plain) + 1) if marked[at : at + len(plain)] == plain)
        own = tuple(marked[: next(starts, 0)])  # the marks that the tokeniser puts in front of a text by itself
        if bos and self._bos is None:
            raise BadArgument(f"{name} has no mark that begins a text (BOS): leave bos out")
        put = (self._bos,) if bos and self._bos is not None and self._bos not in own else ()
        self.lead: tuple[int, ...] = () if bos is False else put + own

    def pairs(self, pairs: Sequence[TextPair]) -> Iterator[PairTokens]:
        """Prompt and continuation as one text each."""
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
        """What the tokeniser makes of texts."""
        return self._tokenizer(
            texts, add_special_tokens=add_special_tokens, split_special_tokens=not self._control,
            padding=False, truncation=False, return_attention_mask=False, verbose=False, **more,
        )  # fmt: skip


# ---- logits


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

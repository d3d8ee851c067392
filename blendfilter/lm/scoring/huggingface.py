"""Scores by a Hugging Face model in this process: decoder-only or encoder-decoder, as its configuration says.

What pairs share at the beginning of their prompts a decoder-only model reads once, and the rest in batches. Only the
continuations' logits are made. Nothing masks the padding of what a decoder reads: it stands on the right, and a token
sees what is left of it, so that a score does not depend on what else is in the batch, up to rounding. Code that comes
with a model is never run.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

from blendfilter.errors import BadArgument, check_count
from blendfilter.lm.checkpoints import (
    Checkpoint,
    LanguageModel,
    checkpoint_of,
    fingerprint,
    logits_at,
    open_checkpoint,
    padded,
    positions_of,
    torch,
)
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

BATCH_TOKENS = {"cpu": 4_096, "cuda": 32_768}
"""Tokens of a batch by default: what a processor's caches like, what keeps a GPU busy."""
_ROWS = 256
"""Rows of logits in float32 at a time."""
_CACHES = ("DynamicLayer", "DynamicSlidingWindowLayer")
"""Layers whose cache can be repeated for several texts. Recurrent ones read every text from its beginning."""
_TRIMS = b'"trim_offsets":true'


def check_given(**counts: int | None) -> None:
    """Raise `BadArgument` for a number that is given and below 1."""
    for name, value in counts.items():
        if value is not None:
            check_count(name, value)


class HuggingFace(InProcess):
    """A Hugging Face model that scores pairs: anything that `checkpoint_of` finds.

    Args:
        device, dtype: see `open_checkpoint`.
        batch_tokens: how many tokens a batch may hold, padding included (by default 4,096 on a CPU, 32,768 on a GPU);
            it bounds memory and changes no score.
        batch_size: how many pairs, at most.
        context: tokens that a prompt may have with its continuation, up to what the model reads.
        threads: threads of the processor; by default torch's own choice.
        bos, control: see `PairTokeniser`.
    """

    def __init__(
        self,
        name: str | Path | Checkpoint,
        *,
        device: str | None = None,
        dtype: str | None = None,
        batch_tokens: int | None = None,
        batch_size: int | None = None,
        context: int | None = None,
        threads: int | None = None,
        bos: bool | None = None,
        control: bool = False,
    ) -> None:
        super().__init__()
        check_given(
            batch_tokens=batch_tokens, batch_size=batch_size, context=context, threads=threads
        )
        self.checkpoint = checkpoint_of(name)
        known = isinstance(name, Checkpoint) or Path(name).expanduser().exists()
        self.name = self.checkpoint.name if known else str(name)
        self._loading = {"device": device, "dtype": dtype}
        self._context, self._threads = context, threads
        self._tokens, self._rows = batch_tokens, batch_size or LARGEST
        self._reading: dict[str, Any] = {"bos": bos, "control": control}

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """The weights' fingerprint, and what else changes a score; not where they compute."""
        control = self._reading["control"] or None
        settings = {"dtype": self._loading["dtype"], **self._reading, "control": control}
        changed = {name: value for name, value in settings.items() if value is not None}
        return {"kind": "huggingface", "weights": fingerprint(self.checkpoint), **changed}

    def results(self, pairs: Sequence[TextPair]) -> Iterator[tuple[int, Result]]:
        """See `InProcess`: those that cannot be read first, the others batch by batch."""
        config = self._loaded.config
        limit = min(positions_of(config) or math.inf, self._context or math.inf)
        read = self._both_sides if config.is_encoder_decoder else self._tokeniser.pairs
        items = [*read(pairs)]
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
        if self._threads is not None:
            torch.set_num_threads(self._threads)
        return open_checkpoint(self.checkpoint, **self._loading)

    @cached_property
    def _tokeniser(self) -> PairTokeniser:
        return PairTokeniser(self._loaded.tokenizer, self.name, **self._reading)

    @cached_property
    def _shares(self) -> bool:
        """Whether a cache of what several texts begin with can be repeated for each."""
        loaded = self._loaded
        if loaded.config.is_encoder_decoder:
            return False
        with torch.inference_mode():
            read = loaded.model(padded([[0]], loaded.device), use_cache=True)
        layers = getattr(getattr(read, "past_key_values", None), "layers", [None])
        return all(type(layer).__name__ in _CACHES for layer in layers)

    def _both_sides(self, pairs: Sequence[TextPair]) -> Iterator[PairTokens]:
        model, lead = self._loaded.model, self._tokeniser.lead
        start = model.generation_config.decoder_start_token_id
        start = model.config.decoder_start_token_id if start is None else start
        prompts = self._tokeniser.read(
            [pair.prompt for pair in pairs], add_special_tokens=True
        )["input_ids"]
        continuations = self._tokeniser.read([pair.continuation for pair in pairs])["input_ids"]
        for prompt, continuation in zip(prompts, continuations, strict=True):
            yield PairTokens((start, *lead, *continuation), 1 + len(lead), tuple(prompt))

    def _scores(self, items: Sequence[PairTokens]) -> Iterator[tuple[int, Score]]:
        # the position before the continuation gives its first token: it is read with the rest
        shareable = [
            item.ids[: item.first - 1] if self._shares and self._rows > 1 else ()
            for item in items
        ]
        planned = groups(shareable)
        alone = tuple(group.members[0] for group in planned if not group.shared)
        model, device = self._loaded.model, self._loaded.device
        tokens = self._tokens or BATCH_TOKENS["cpu" if device.type == "cpu" else "cuda"]
        for shared, members in [(0, alone), *(group for group in planned if group.shared)]:
            cache = None
            if shared:
                with torch.inference_mode():
                    prefix = padded([items[members[0]].ids[:shared]], device)
                    cache = model.base_model(prefix, use_cache=True).past_key_values
            lengths = [len(items[at].ids) - 1 + len(items[at].prompt) for at in members]
            for batch in batches(lengths, tokens=tokens, rows=self._rows):
                chosen = [members[i] for i in batch]
                scores = self._batch([items[at] for at in chosen], cache, shared)
                yield from zip(chosen, scores, strict=True)

    def _batch(self, items: Sequence[PairTokens], cache: Any, shared: int) -> list[Score]:
        model, device = self._loaded.model, self._loaded.device
        # the last token is predicted and never read
        read = [item.ids[shared:-1] for item in items]
        targets = [item.ids[item.first :] for item in items]
        # each continuation is predicted by the last positions that are read before its end
        wanted = [
            [*[0] * (len(ids) - len(own)), *[1] * len(own)]
            for ids, own in zip(read, targets, strict=True)
        ]
        inputs: dict[str, Any] = {"use_cache": cache is not None}
        with torch.inference_mode():
            if items[0].prompt:
                prompts = [item.prompt for item in items]
                inputs["input_ids"] = padded(prompts, device)
                inputs["attention_mask"] = padded([[1] * len(ids) for ids in prompts], device)
                inputs["decoder_input_ids"] = padded(read, device)
            else:
                own = copy.deepcopy(cache)  # reading on writes into it
                if own is not None and len(items) > 1:
                    own.batch_repeat_interleave(len(items))
                inputs |= {"input_ids": padded(read, device), "past_key_values": own}
            places = padded(wanted, device).bool()
            _, logits = logits_at(model, model.get_output_embeddings(), places, **inputs)
            expected = torch.tensor([token for own in targets for token in own], device=device)
            wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
            # each in 32 bits at least, then summed in 64: neither underflows, however long the text
            parts = [
                torch.log_softmax(part.to(wide), dim=-1).gather(1, tokens[:, None])[:, 0]
                for part, tokens in zip(logits.split(_ROWS), expected.split(_ROWS), strict=True)
            ]
            sums = torch.cat(parts).double().cpu().split([*map(len, targets)])
        return [Score(float(each.sum()), len(each)) for each in sums]


# ---- texts as tokens


class PairTokeniser:
    """The fast tokeniser of the model `name`, as scoring uses it.

    Args:
        bos: whether the mark that begins a text stands before every text (None: where the tokeniser itself puts it).
        control: whether a control token's name in a text is read as that token.
    """

    def __init__(
        self, tokenizer: Any, name: str, *, bos: bool | None = None, control: bool = False
    ) -> None:
        self._tokenizer, self.name, self._control = tokenizer, name, control
        self._bos: int | None = tokenizer.bos_token_id
        backend = tokenizer.backend_tokenizer
        processor = backend.post_processor
        state = b"" if processor is None else processor.__getstate__()
        # offsets would leave white space out, and a token would seem to end before it
        if _TRIMS in state:
            processor.__setstate__(state.replace(_TRIMS, _TRIMS.replace(b"true", b"false")))
            backend.post_processor = processor
        marked = tokenizer("a")["input_ids"]
        plain = tokenizer("a", add_special_tokens=False)["input_ids"]
        starts = (
            at
            for at in range(len(marked) - len(plain) + 1)
            if marked[at : at + len(plain)] == plain
        )
        # the marks that the tokeniser puts in front of a text by itself
        own = tuple(marked[: next(starts, 0)])
        if bos and self._bos is None:
            raise BadArgument(f"{name} has no mark that begins a text (BOS): leave bos out")
        put = (self._bos,) if bos and self._bos is not None and self._bos not in own else ()
        self.lead: tuple[int, ...] = () if bos is False else put + own

    def pairs(self, pairs: Sequence[TextPair]) -> Iterator[PairTokens]:
        """Prompt and continuation as one text each."""
        read = self.read(
            [prompt + continuation for prompt, continuation in pairs],
            return_offsets_mapping=True,
        )
        for pair, ids, offsets in zip(
            pairs, read["input_ids"], read["offset_mapping"], strict=True
        ):
            lead = self.lead
            first = first_token(
                list(accumulate((end for _, end in offsets), max)), len(pair.prompt)
            )
            if first == 0 and not lead:
                if self._bos is None:
                    raise nothing_before(pair, self.name)
                lead = (self._bos,)
            yield PairTokens((*lead, *ids), len(lead) + first)

    def read(
        self, texts: Sequence[str], *, add_special_tokens: bool = False, **more: Any
    ) -> Any:
        """What the tokeniser makes of texts."""
        return self._tokenizer(
            texts,
            add_special_tokens=add_special_tokens,
            split_special_tokens=not self._control,
            padding=False,
            truncation=False,
            return_attention_mask=False,
            verbose=False,
            **more,
        )

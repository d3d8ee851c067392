"""Scores by a Hugging Face model in this process: decoder-only or encoder-decoder, as its configuration says.

In: a folder, or a name on the hub. Out: a `Backend`. The weights are loaded when the first pair is computed: a journal
that has all scores needs none of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from blendfilter.errors import BadArgument, WorkFailed
from blendfilter.lm.scoring.base import InProcess, Pair, Result, Score, Tokens, too_long, unusable
from blendfilter.lm.scoring.causal import Causal
from blendfilter.lm.scoring.checkpoint import Checkpoint, checked_dtype, fingerprint, folder_of, load
from blendfilter.lm.scoring.seq2seq import Seq2Seq, Sides
from blendfilter.lm.scoring.tokenised import Tokeniser

BATCH_TOKENS = {"cpu": 4_096, "cuda": 32_768}
"""Tokens of a batch by default: what a processor's caches like, what keeps a GPU busy."""


_NO_MEMORY = ("out of memory", "not enough memory", "can't allocate memory")
"""What torch says of a GPU, and of a processor."""


class HuggingFace(InProcess):
    """A Hugging Face model that scores pairs.

    Args:
        name: a folder, or `owner/name` on the hub.
        device, dtype: see `checkpoint.load`.
        batch_tokens: how many tokens a batch may hold, padding included (by default 4,096 on a CPU, 32,768 on a GPU);
            it bounds memory and changes no score.
        batch_size: how many pairs, at most.
        bos, control: see `tokenised.Tokeniser`.
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
            if value is not None and value < 1:
                raise BadArgument(f"{what} must be at least 1, got {value}")
        self.folder = folder_of(name)
        self.name = str(name) if not Path(name).expanduser().is_dir() else self.folder.resolve().name
        self._wanted = (device, checked_dtype(dtype))
        self._batches = (batch_tokens, batch_size)
        self._reading: dict[str, Any] = {"bos": bos, "control": control}

    @cached_property
    def identity(self) -> Mapping[str, Any]:
        """The weights' fingerprint, and what else changes a score; not where they compute."""
        settings = {"dtype": self._wanted[1], **self._reading, "control": self._reading["control"] or None}
        changed = {name: value for name, value in settings.items() if value is not None}
        return {"kind": "huggingface", "weights": fingerprint(self.folder), **changed}

    def results(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Result]]:
        """See `InProcess`. Raises: WorkFailed where a batch does not fit into memory."""
        try:
            yield from (self._by_sides if self._loaded.config.is_encoder_decoder else self._by_tokens)(pairs)
        except RuntimeError as error:
            if not any(sign in str(error).lower() for sign in _NO_MEMORY):
                raise
            tokens, _ = self._bounds
            raise WorkFailed(
                f"{self.name} has no memory for a batch of {tokens:,} tokens on {self._loaded.device}: "
                f"give a smaller batch_tokens; what was scored before is kept"
            ) from None

    @cached_property
    def _loaded(self) -> Checkpoint:
        device, dtype = self._wanted
        return load(self.folder, device=device, dtype=dtype)

    @cached_property
    def _tokeniser(self) -> Tokeniser:
        return Tokeniser(self._loaded.tokenizer, self.name, **self._reading)

    @property
    def _bounds(self) -> tuple[int, int | None]:
        """Tokens and rows of a batch."""
        tokens, rows = self._batches
        return tokens or BATCH_TOKENS.get(self._loaded.device.type, BATCH_TOKENS["cpu"]), rows

    @cached_property
    def _causal(self) -> Causal:
        return Causal(self._loaded.model, self._loaded.device, *self._bounds)

    @cached_property
    def _seq2seq(self) -> Seq2Seq:
        return Seq2Seq(self._loaded.model, self._loaded.device, *self._bounds)

    @property
    def _limit(self) -> int | None:
        """Tokens that the model has positions for; None where they are relative."""
        stated = getattr(self._loaded.config.get_text_config(), "max_position_embeddings", None)
        return stated if isinstance(stated, int) and stated > 0 else None

    def _by_tokens(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Result]]:
        readable: list[int] = []
        items: list[Tokens] = []
        for at, (pair, item) in enumerate(zip(pairs, self._tokeniser.pairs(pairs), strict=True)):
            if item.first == len(item.ids):
                yield at, Score(0.0, 0)
            elif self._limit is not None and len(item.ids) > self._limit:
                yield at, too_long(pair, len(item.ids), self._limit)
            else:
                readable.append(at)
                items.append(item)
        for at, score in self._causal.scores(items):
            yield readable[at], score

    def _by_sides(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Result]]:
        prompts = self._tokeniser.prompts([pair.prompt for pair in pairs])
        continuations = self._tokeniser.continuations([pair.continuation for pair in pairs])
        readable: list[int] = []
        items: list[Sides] = []
        for at, (pair, prompt, text) in enumerate(zip(pairs, prompts, continuations, strict=True)):
            longest = max(len(prompt), len(text) + 1 + len(self._tokeniser.lead))
            if not text:
                yield at, Score(0.0, 0)
            elif not prompt:
                yield at, unusable(pair, f"{self.name} reads nothing of the prompt")
            elif self._limit is not None and longest > self._limit:
                yield at, too_long(pair, longest, self._limit)
            else:
                readable.append(at)
                items.append(Sides(tuple(prompt), self._tokeniser.lead, tuple(text)))
        for at, score in self._seq2seq.scores(items):
            yield readable[at], score

    def __repr__(self) -> str:
        return f"HuggingFace({self.name!r})"

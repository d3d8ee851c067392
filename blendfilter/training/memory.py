"""What a training will take of memory, before it begins: an estimate from the model's configuration.

Weights, gradients and AdamW's two moments are counted to the byte. Activations are estimated: of each token in each
layer, about 16 numbers for each of the hidden width and 6.5 for each of the feed-forward width (a decoder with gated
feed-forward layers and an adapter on each linear layer, measured; others keep less), or 2 of the hidden width where
they are computed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from blendfilter.errors import BadArgument, WorkFailed
from blendfilter.extras import needed
from blendfilter.lm.checkpoints import free_memory

GB = 1e9
ENOUGH = 0.8
"""The share of the estimate that must be free: an estimate may be wrong by some."""
_OF_HIDDEN, _OF_INNER, _OF_VIEW, _KEPT = 16, 6.5, 3, 2
_LESS = (
    "read fewer tokens at a time (--micro-tokens), compute activations again (--gradient-checkpointing), train an "
    "adapter (--method lora) or a smaller model"
)
_DECODERS = ("num_decoder_layers", "decoder_layers")
_HEAD = 3
"""Copies of the logits that are held at a time: as made, in 32 bits, and their gradient."""


class MemoryNeeded(NamedTuple):
    """Bytes of one process; `training` is gradients and the optimiser's moments."""

    weights: int
    training: int
    activations: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)

    def text(self) -> str:
        """The parts in words.

        >>> MemoryNeeded(2_000_000_000, 500_000_000, 1_500_000_000).text()
        'about 4.0 GB (weights 2.0, gradients and optimiser 0.5, activations 1.5)'
        """
        weights, training, activations = (f"{part / GB:.1f}" for part in self)
        return (
            f"about {self.total / GB:.1f} GB (weights {weights}, gradients and optimiser {training}, activations "
            f"{activations})"
        )


def memory_needed(
    config: Any,
    *,
    lora_rank: int | None,
    bf16: bool,
    tokens: int,
    longest: int,
    targets: int,
    checkpointing: bool,
) -> MemoryNeeded:
    """What a model of that configuration takes.

    Args:
        lora_rank: of an adapter; None: all weights are trained.
        tokens: that are read at a time. longest: of one text. targets: tokens that are predicted.
        checkpointing: whether activations are computed again.
    """
    torch, transformers = (
        needed("torch", "train", "training"),
        needed("transformers", "train", "training"),
    )
    kind = (
        transformers.AutoModelForSeq2SeqLM
        if config.is_encoder_decoder
        else transformers.AutoModelForCausalLM
    )
    with torch.device("meta"):
        model = kind.from_config(config)
    numbers = sum(each.numel() for each in model.parameters())
    head = model.get_output_embeddings()  # which has no adapter
    linear = [
        each for each in model.modules() if isinstance(each, torch.nn.Linear) and each is not head
    ]
    own = config.get_text_config()
    width = 2 if bf16 else 4
    if lora_rank is None:
        trained, weights = (
            numbers,
            numbers * (4 + (2 if bf16 else 0)),
        )  # and its copies in 16 bits, while they are used
    else:
        trained = sum(lora_rank * (each.in_features + each.out_features) for each in linear)
        weights = numbers * width + 4 * trained
    hidden = int(own.hidden_size)
    # of an encoder-decoder, a token passes either the encoder or the decoder
    layers = max(int(getattr(own, name, None) or 0) for name in ("num_hidden_layers", *_DECODERS))
    inner = max((each.out_features for each in linear), default=4 * hidden)
    of_layer = _OF_HIDDEN * hidden + _OF_INNER * inner
    if (
        getattr(model.config, "_attn_implementation", "") == "eager"
    ):  # every token's view of every other one
        of_layer += (
            _OF_VIEW * longest * int(getattr(own, "num_attention_heads", None) or 0)
        )  # none in a recurrent one
    kept = round((_KEPT * hidden * layers + of_layer) if checkpointing else of_layer * layers)
    return MemoryNeeded(
        weights, 12 * trained, tokens * kept * width + _HEAD * 4 * targets * int(own.vocab_size)
    )


def check_free(wanted: MemoryNeeded, place: Any, *, refuse: bool = True, less: str = _LESS) -> str:
    """One line of what is wanted and what is free at a torch device; `less` says what takes less.

    Raises: BadArgument where it is clearly too little, and `refuse`.
    """
    free = free_memory(place)
    where = "of the GPU's memory" if place.type == "cuda" else "of memory"
    if free is None:
        return f"training takes {wanted.text()} {where}"
    line = f"training takes {wanted.text()} {where}, and {free / GB:.1f} GB are free"
    if refuse and free < ENOUGH * wanted.total:
        raise BadArgument(f"{line}: {less}; --ignore-memory tries it all the same")
    return line


@contextmanager
def out_of_memory(less: str) -> Iterator[None]:
    """Inside the block, memory that runs out is one line, which says what takes less. Raises: WorkFailed."""
    torch = needed("torch", "train", "training")
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise WorkFailed(f"memory ran out ({str(error).partition('.')[0]}): {less}") from error
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(
            error
        ):  # torch's, on a processor
            raise
        raise WorkFailed(f"memory ran out (the system gives no more): {less}") from error

"""The settings of a training, each declared and validated once."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt, TypeAdapter, ValidationError

from blendfilter.errors import BadArgument

COMPUTING = ("device", "save_every", "keep", "micro_tokens", "gradient_checkpointing")
"""Settings that may change when a training is resumed."""
MICRO_TOKENS = {"cpu": 512, "cuda": 16_384}
"""Tokens that are read at a time by default: a processor gains nothing by more, and pads less."""
Amount = Annotated[FiniteFloat, Field(ge=0)]


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """What shapes the weights, and (`COMPUTING`) where and how they are computed.

    Attributes:
        method: `lora` (the default of a causal model) or `full` (of an encoder-decoder).
        epochs: passes over the examples.
        batch_size: examples of one step of the optimiser, by accumulation and over all processes.
        max_input_tokens: an example whose prompt has more, or more than the base reads, is left out, and counted.
        max_target_tokens: a target that has more is cut, and has no end mark then.
        schedule, warmup_steps: of the learning rate.
        lora_rank, lora_alpha, lora_dropout: of an adapter on all linear layers but the output's.
        chat: whether a prompt stands in the tokeniser's chat template; None: where it has one.
        precision: float32, or bf16 (autocast; of an adapter, the frozen weights too). None: bf16 on a GPU that has it.
        device: `cpu` or `cuda`; None: a GPU where there is one. Of several, CUDA_VISIBLE_DEVICES says which.
        save_every: steps between two checkpoints. keep: how many of them are kept.
        micro_tokens: tokens that are read at a time, padding included: bounds memory, and changes the weights by
            rounding alone. None: 512 on a CPU and 16,384 on a GPU.
        gradient_checkpointing: compute activations again rather than keep them: a third slower, and far smaller.

    Raises: BadArgument for a value outside its range.
    """

    method: Literal["lora", "full"] | None = None
    epochs: PositiveInt = 3
    learning_rate: Amount = 5e-5
    batch_size: PositiveInt = 32
    max_input_tokens: PositiveInt = 1024
    max_target_tokens: PositiveInt = 512
    schedule: Literal["linear", "constant", "cosine"] = "linear"
    warmup_steps: NonNegativeInt = 0
    weight_decay: Amount = 0.0
    max_grad_norm: Amount = 1.0
    lora_rank: PositiveInt = 16
    lora_alpha: PositiveInt = 32
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    chat: bool | None = None
    precision: Literal["float32", "bf16"] | None = None
    seed: Annotated[NonNegativeInt, Field(lt=2**32)] = 0
    device: Literal["cpu", "cuda"] | None = None
    save_every: PositiveInt = 50
    keep: PositiveInt = 1
    micro_tokens: PositiveInt | None = None
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def shaping(self) -> dict[str, Any]:
        """What shapes the weights: a resumed call must repeat it."""
        return {name: value for name, value in asdict(self).items() if name not in COMPUTING}


def check_fields(record: Any) -> None:
    """Validate each field of a dataclass by its annotation. Raises: BadArgument, naming the first that is wrong."""
    for name, hint in get_type_hints(type(record), include_extras=True).items():
        value = getattr(record, name)
        try:
            object.__setattr__(record, name, TypeAdapter(hint).validate_python(value))
        except ValidationError as error:
            why = error.errors(include_url=False)[0]["msg"]
            raise BadArgument(f"{name} is {value!r:.80}: {why[:1].lower()}{why[1:]}") from None

"""The settings of a training, each declared and validated once."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, FiniteFloat, NonNegativeInt, PositiveInt

from blendfilter.settings import Option, Rare, Settings

COMPUTING = ("device", "save_every", "keep", "micro_tokens", "gradient_checkpointing")
"""Settings that may change when a training is resumed."""
MICRO_TOKENS = {"cpu": 512, "cuda": 16_384}
"""Tokens that are read at a time by default: a processor gains nothing by more, and pads less."""
Amount = Annotated[FiniteFloat, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Above0 = Annotated[FiniteFloat, Field(gt=0)]


class TrainingSettings(Settings, panel="Method"):
    """What shapes the weights, and (`COMPUTING`) where and how they are computed.

    Raises: BadArgument for a value outside its range.
    """

    method: Literal["lora", "full"] | None = None
    """lora (an adapter; the default of a causal model) or full (of an encoder-decoder)."""
    epochs: PositiveInt = 3
    """Passes over the examples (bider --align: 2)."""
    learning_rate: Amount = 5e-5
    """At its highest (bider --align: 1e-5)."""
    batch_size: PositiveInt = 32
    """Examples of one step, over all processes, by accumulation (bider --align: 16)."""
    max_input_tokens: PositiveInt = 1024
    """Tokens of a prompt at most: an example whose prompt has more, or more than the base reads, is left out."""
    max_target_tokens: Rare[PositiveInt] = 512
    """Tokens of a target at most: one that has more is cut, without an end mark (filco's generator and bider --align:
    128)."""
    schedule: Rare[Literal["linear", "constant", "cosine"]] = "linear"
    """Of the learning rate, after the warm-up."""
    warmup_steps: Rare[NonNegativeInt] = 0
    """Steps in which the learning rate rises."""
    weight_decay: Rare[Amount] = 0.0
    """AdamW's."""
    max_grad_norm: Rare[Amount] = 1.0
    """Longer gradients are shortened to it; 0: never."""
    lora_rank: PositiveInt = 16
    """Of the adapter on all linear layers but the output's."""
    lora_alpha: Rare[PositiveInt] = 32
    """Its scale: alpha by rank."""
    lora_dropout: Annotated[float, Option(rare=True), Field(ge=0, lt=1)] = 0.0
    """The adapter's."""
    chat: Rare[bool | None] = None
    """Whether prompts stand in the base's chat template; without it: where it has one."""
    precision: Annotated[
        Literal["float32", "bf16"] | None, Option(panel="Model", rare=True)
    ] = None
    """float32, or bf16 (autocast; of an adapter, the frozen weights too); without it bf16 on a GPU that has it."""
    seed: Annotated[NonNegativeInt, Option(rare=True), Field(lt=2**32)] = 0
    """Of the adapter's first weights, the order and dropout."""
    device: Annotated[Literal["cpu", "cuda"] | None, Option(panel="Model")] = None
    """cpu or cuda; without it a GPU where there is one (of several, CUDA_VISIBLE_DEVICES says which)."""
    save_every: Annotated[PositiveInt, Option(panel="Output", rare=True)] = 50
    """Steps between two checkpoints (bider --align: 10)."""
    keep: Annotated[PositiveInt, Option(panel="Output", rare=True)] = 1
    """Checkpoints that are kept."""
    micro_tokens: Annotated[int | None, Option(panel="Limits")] = Field(None, ge=1)
    """Tokens that are read at a time, padding included: bounds memory, and changes the weights by rounding alone (512
    on a CPU, 16,384 on a GPU)."""
    gradient_checkpointing: Annotated[bool, Option(panel="Limits")] = False
    """Compute activations again rather than keep them: a third slower, and far smaller."""

    def shaping(self) -> dict[str, Any]:
        """What shapes the weights: a resumed call must repeat it."""
        return self.model_dump(exclude={*COMPUTING})


class PPOTerms(Settings, panel="Method", goes_with="align"):
    """How PPO samples, and the weights of its terms; the paper gives `top_k` and `top_p` alone."""

    steps: PositiveInt = 200
    """Batches that are sampled, paid for and learned from."""
    clip: Rare[Above0] = 0.2
    """How far the ratio may move from 1 before a gain no longer counts (epsilon of equation 6)."""
    gamma: Rare[Share] = 1.0
    """Discount of rewards."""
    lam: Rare[Share] = 0.95
    """Lambda of the advantages: the decay of later errors."""
    top_k: Rare[PositiveInt] = 10
    """Likeliest tokens that are sampled from."""
    top_p: Rare[Share] = 0.95
    """Of these the fewest that make this up."""
    value_coefficient: Rare[Amount] = 0.1
    """Weight of the value's error."""
    entropy_coefficient: Rare[Amount] = 0.01
    """Weight of the entropy."""
    kl_coefficient: Rare[Amount] = 0.0
    """Weight of the divergence from the distilled model (not the paper's)."""


class PPOSettings(PPOTerms):
    """How a model is moved by PPO."""

    batch: PositiveInt = 16
    """Prompts of a step."""
    epochs: PositiveInt = 2
    """Passes over them, a step of the optimiser each."""
    learning_rate: Above0 = 1e-5
    """AdamW's; constant."""
    max_norm: Amount = 1.0
    """Gradients are scaled down to this norm; 0: never."""
    max_new_tokens: PositiveInt = 128
    """A text is cut here."""
    micro_tokens: PositiveInt | None = None
    """Tokens that are read at a time, as of any training."""
    every: PositiveInt = 10
    """Steps between two checkpoints."""
    seed: NonNegativeInt = 0
    """Of the order of the prompts and of what is drawn."""

"""`blendfilter train`: FilCo's models, BIDER's refiner and the pipeline's stages, by transformers' trainers."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

from blendfilter.cli.app import State, command, command_group
from blendfilter.cli.console import EVERY, Bars, say, show
from blendfilter.cli.making import DEFAULT_K, connect, prompts_in, retriever
from blendfilter.cli.options import (
    TASKS,
    DemosFile,
    JudgeOptions,
    K,
    Limit,
    PassageOptions,
    PromptsName,
    SpendingOptions,
    declared,
    given,
    given_values,
    option,
)
from blendfilter.errors import BadArgument, UnknownName

if TYPE_CHECKING:
    from blendfilter.training.settings import TrainingSettings
    from blendfilter.training.trainer import Trained

train = command_group(
    "train", "Fine-tune filters and generators; on several GPUs by torchrun or accelerate launch."
)
PARTS = ("context", "generator")
TARGET_TOKENS = 512
"""Of a stage's target, by default."""
HEIGHT, WIDTH = 8, 60
"""Lines and columns of the curve of losses."""
WINDOW, FIRST_STEPS = 20, 3
"""Steps of an alignment that its notices look back on, and after how many the first one comes."""


@dataclass(frozen=True)
class TrainingOptions:
    """What every training takes: the base, what shapes the weights, where it computes, where the weights go."""

    base: str = option(
        "Model",
        "What is trained: a Hugging Face folder or owner/name, a GGUF file, or a LoRA adapter (merged first).",
        default=...,
    )
    out: Path = option(
        "Output",
        "The folder of the weights, their recipe and the losses. It appears when all is done; the same command again "
        "goes on where it stopped (OUT.partial).",
        default=...,
    )
    method: str | None = option(
        "Method",
        "lora (an adapter; the default of a causal model) or full (of an encoder-decoder).",
        metavar="lora|full",
    )
    epochs: int | None = option("Method", "Passes over the examples (3).", min=1)
    learning_rate: float | None = option("Method", "At its highest (5e-5).")
    batch_size: int | None = option(
        "Method", "Examples of one step, over all processes, by accumulation (32).", min=1
    )
    max_input_tokens: int = option("Method", "Tokens of a prompt at most.", default=1024, min=1)
    max_target_tokens: int | None = option(
        "Method",
        "Tokens of a target at most (512; filco's generator and bider --align: 128).",
        min=1,
        rare=True,
    )
    schedule: str = option(
        "Method",
        "Of the learning rate, after the warm-up.",
        default="linear",
        metavar="linear|constant|cosine",
        rare=True,
    )
    warmup_steps: int = option(
        "Method", "Steps in which the learning rate rises.", default=0, min=0, rare=True
    )
    weight_decay: float = option("Method", "AdamW's.", default=0.0, rare=True)
    max_grad_norm: float = option(
        "Method", "Longer gradients are shortened to it; 0: never.", default=1.0, rare=True
    )
    lora_rank: int = option("Method", "Of the adapter on all linear layers.", default=16, min=1)
    lora_alpha: int = option("Method", "Its scale: alpha by rank.", default=32, min=1, rare=True)
    lora_dropout: float = option("Method", "The adapter's.", default=0.0, rare=True)
    chat: bool | None = option(
        "Method",
        "Whether prompts stand in the base's chat template; without it: where it has one.",
        "--chat/--no-chat",
        rare=True,
    )
    prompts: PromptsName = None
    seed: int = option(
        "Method",
        "Of the adapter's first weights, the order and dropout.",
        default=0,
        min=0,
        rare=True,
    )
    device: str | None = option("Model", "cpu or cuda; without it a GPU where there is one.")
    precision: str | None = option(
        "Model",
        "float32 or bf16; without it bf16 on a GPU that has it.",
        metavar="float32|bf16",
        rare=True,
    )
    micro_tokens: int | None = option(
        "Limits",
        "Tokens that are read at a time, which bounds memory (CPU 512; GPU 16,384).",
        min=1,
    )
    gradient_checkpointing: bool = option(
        "Limits",
        "Compute activations again rather than keep them: slower, and far smaller.",
        "--gradient-checkpointing",
        default=False,
    )
    save_every: int | None = option(
        "Output", "Steps between two checkpoints (50; of an alignment 10).", min=1, rare=True
    )
    keep: int = option("Output", "Checkpoints that are kept.", default=1, min=1, rare=True)

    def settings(self, target_tokens: int) -> TrainingSettings:
        """As they are declared there. Raises: BadArgument."""
        from blendfilter.training.settings import TrainingSettings

        named = {field.name: getattr(self, field.name) for field in fields(TrainingSettings)}
        given = {name: value for name, value in named.items() if value is not None}
        return TrainingSettings(**{"max_target_tokens": target_tokens, **given})


@dataclass(frozen=True)
class SilverOptions:
    """The silver file, and what of it is left out."""

    silver: Path = option("Data", "A file that 'blendfilter silver' made.", default=...)
    task: str | None = option("Data", "Its task, where no recipe beside it says so.", rare=True)
    limit: Limit = None
    exclude: list[Path] | None = option(
        "Data",
        "A question file to evaluate on, in the layout of the silver's task: none of its questions may be trained on; "
        "may be given again.",
    )
    leave_out: bool = option(
        "Data",
        "Leave the questions of --exclude out, rather than refuse them.",
        "--leave-out",
        default=False,
    )


@command("filco", group=train)
def train_filco(
    *,
    part: Annotated[
        str,
        declared(
            "Data",
            help="context: the filter, from question and passages to the silver context. generator: the answerer, from "
            "question and silver context to the answer.",
            metavar="context|generator",
        ),
    ],
    sources: SilverOptions,
    reads: Annotated[
        str,
        declared(
            "Data",
            rare=True,
            metavar="silver|psg|full",
            help="generator: the silver context, the passages that hold it, or all of them (the paper's FULL); several "
            "with commas: each question has the next of them.",
        ),
    ] = "silver",
    training: TrainingOptions,
) -> None:
    """Train FilCo's filter (M_ctx) or its generator (M_gen) on silver contexts, by the paper's settings.

    Then: --filter filco --filter-model OUT, and --lm hf/OUT --method direct-retrieval --demos none. Several GPUs:
    torchrun --nproc-per-node 4 -m blendfilter.cli train filco …, or accelerate launch -m blendfilter.cli ….

    Example: blendfilter train filco --part context --base google/flan-t5-xl --silver nq.jsonl --out models/nq-context
    """
    if part not in PARTS:
        raise UnknownName.of("part", part, PARTS)
    _train(part, sources, training, reads)


@dataclass(frozen=True)
class AlignmentOptions:
    """What moves a distilled refiner, and the reader that it is moved by."""

    align: bool = option(
        "Method",
        "Not distil, but align a distilled refiner (--base) with a reader, by PPO. Then --epochs are passes over a "
        "step's texts (2), --batch-size its questions (16), --learning-rate 1e-5, --max-target-tokens 128.",
        "--align",
        default=False,
    )
    reader: str | None = option(
        "Model",
        "The model that answers from what was written, named as --lm is of 'eval' (hf/DIR, a server's).",
    )
    reader_api_base: list[str] | None = option(
        "Model", "Its server.", "--reader-api-base", rare=True
    )
    reader_endpoint: str | None = option(
        "Model",
        "chat (the default), or completions where it is a base model.",
        "--reader-endpoint",
        rare=True,
    )
    demos: DemosFile = None
    unmatched: str | None = option(
        "Method",
        "Text that was written and no passage has: keep (the default), or drop.",
        rare=True,
    )
    steps: int | None = option("Method", "Batches that are sampled and learned from (200).", min=1)
    clip: float | None = option("Method", "How far the ratio may move from 1 (0.2).", rare=True)
    gamma: float | None = option("Method", "Discount of rewards (1).", rare=True)
    lam: float | None = option("Method", "Lambda of the advantages (0.95).", rare=True)
    top_k: int | None = option(
        "Method", "Likeliest tokens that are sampled from (10).", min=1, rare=True
    )
    top_p: float | None = option(
        "Method", "Of these the fewest that make this up (0.95).", rare=True
    )
    value_coefficient: float | None = option(
        "Method", "Weight of the value's error (0.1).", rare=True
    )
    entropy_coefficient: float | None = option("Method", "Weight of the entropy (0.01).", rare=True)
    kl_coefficient: float | None = option(
        "Method",
        "Weight of the divergence from the distilled model (0; not the paper's).",
        rare=True,
    )


@command("bider", group=train)
def train_bider(
    *,
    sources: SilverOptions,
    stage: Annotated[
        str,
        declared(
            "Data",
            rare=True,
            metavar="extracted|refined|cleaned|by_target",
            help="Which step of the synthesis is learned.",
        ),
    ] = "cleaned",
    training: TrainingOptions,
    alignment: AlignmentOptions,
    spending: SpendingOptions,
) -> None:
    """Distil BIDER's refiner: from question and passages to the nuggets of 'blendfilter silver --measure bider'.

    Then: --filter bider --filter-model OUT. Several GPUs: torchrun --nproc-per-node 4 -m blendfilter.cli train bider ….
    With --align and a --reader, a distilled refiner learns by PPO what helps the reader; one process.

    Example: blendfilter train bider --base facebook/bart-large --silver nq-bider.jsonl --out models/nq-bider
    """
    if alignment.align:
        if stage != "cleaned":
            raise BadArgument("--stage is of the distillation: leave it out")
        _align(sources, training, alignment, spending)
        return
    if needless := [*given(alignment), *given(spending)]:
        raise BadArgument(f"{needless[0]} is of the alignment: give --align too, or leave it out")
    _train("bider", sources, training, "silver", stage)


@command("stages", group=train)
def train_stages(
    *,
    task: Annotated[str, declared("Data", help=f"Whose words and gold: {', '.join(TASKS)}.")],
    data: Annotated[
        str,
        declared(
            "Data",
            help="A question file with gold titles; 'hub' (Hugging Face), or 'sample', our own.",
        ),
    ],
    sources: PassageOptions,
    k: K = DEFAULT_K,
    limit: Limit = None,
    examples: Annotated[
        int, declared("Data", help="Prompts to train on, of all stages together.", min=1)
    ] = 1500,
    stage: Annotated[
        list[str] | None,
        declared(
            "Data",
            help="Only this stage (relevant: a filter alone, for --filter-lm); may be given again.",
        ),
    ] = None,
    add_gold: Annotated[
        float,
        declared(
            "Data",
            help="Share of the questions whose gold passages are put among the hits that miss them.",
        ),
    ] = 0.5,
    exclude: Annotated[
        list[Path] | None,
        declared(
            "Data",
            help="A question file of the task to evaluate on: questions that are in it, or share a gold passage with "
            "one of it, are left out; may be given again.",
        ),
    ] = None,
    training: TrainingOptions,
) -> None:
    """Train one model on the stages of BlendFilter, its filters and baselines, with targets made of gold.

    The methods are run over the questions by what knows the answer, and their own prompts are the examples. Then:
    --lm hf/OUT --demos none, with any of these methods. For a base of 135M parameters: --epochs 1 --batch-size 16
    --learning-rate 3e-4.

    Example: blendfilter train stages --task hotpotqa --data train.json --index wiki --base Qwen/Qwen3-0.6B --out stages
    """
    State.goes_on = True
    from blendfilter.lm.checkpoints import checkpoint_of
    from blendfilter.tasks import load
    from blendfilter.training.stages import SHARES, apart, drawn, recipe_of, stage_examples
    from blendfilter.training.trainer import is_first, train_model

    settings = training.settings(TARGET_TOKENS)
    if training.prompts is not None:
        raise BadArgument("train stages learns the package's own prompts: leave --prompts out")
    for name in stage or ():
        if name not in SHARES:
            raise UnknownName.of("stage", name, SHARES)
    checkpoint_of(training.base)  # what is wrong with it is an error now: examples take minutes
    notice = say if is_first() else _nothing
    questions = load(task, data, limit=limit)
    excluded = [question for file in exclude or () for question in load(task, str(file))]
    left = apart(questions, excluded) if excluded else questions
    if len(left) < len(questions):
        notice(
            f"{len(questions) - len(left)} of {len(questions)} questions are left out, as --exclude says"
        )
    index = retriever(sources, left, k=k, sample=data == "sample")
    if index is None:
        raise BadArgument(
            "the stages search: give them passages (--corpus FILE, --corpus pooled or --index DIR)"
        )
    finished = training.out.exists()
    with Bars() as bars:
        progress = bars if is_first() else _no_progress
        made = drawn(
            stage_examples(
                left, index, k=k, add_gold=add_gold, seed=training.seed, progress=progress
            ),
            examples,
            shares={name: SHARES[name] for name in stage or SHARES},
            seed=training.seed,
        )
        recipe = recipe_of(made, left, index, k=k, add_gold=add_gold)
        notice(
            "examples: "
            + ", ".join(f"{stage} {count:,}" for stage, count in recipe["stages"].items())
        )
        done = train_model(
            training.base,
            [each.example for each in made],
            training.out,
            settings,
            recipe=recipe,
            progress=progress,
        )
    if is_first():
        show_trained(done, finished=finished)


_OF_PPO = {
    "epochs": "epochs", "batch_size": "batch", "learning_rate": "learning_rate", "max_grad_norm": "max_norm",
    "max_target_tokens": "max_new_tokens", "micro_tokens": "micro_tokens", "save_every": "every", "seed": "seed",
}  # fmt: skip
"""Options of any training that PPO takes, and what it calls them."""
_OF_ALIGNMENT = ("base", "out", "prompts", "device", *_OF_PPO)


def _align(
    sources: SilverOptions,
    training: TrainingOptions,
    alignment: AlignmentOptions,
    spending: SpendingOptions,
) -> None:
    State.goes_on = True
    others = {name: None for name in given_values(training) if name not in _OF_ALIGNMENT}
    if needless := given(training, *others) if others else []:
        raise BadArgument(
            f"{needless[0]} is of the distillation, whose settings the alignment keeps: leave it out"
        )
    if alignment.reader is None:
        raise BadArgument(
            "--align asks a model what it answers from the refined contexts: name it with --reader"
        )
    from blendfilter.tasks import load
    from blendfilter.training.alignment import (
        align_bider,
        distilled_recipe,
        reward_change,
        reward_lines,
    )
    from blendfilter.training.ppo import PPOSettings, StepFigures
    from blendfilter.training.silver import task_of

    prompts = prompts_in(training.prompts)
    distilled_recipe(training.base)
    own = {
        name: value
        for name, value in given_values(alignment).items()
        if name in PPOSettings.__dataclass_fields__
    }
    settings = PPOSettings(
        **own, **{_OF_PPO[name]: value for name, value in given_values(training, *_OF_PPO).items()}
    )
    task = task_of(sources.silver, "bider", sources.task)
    excluded = [
        question.question for file in sources.exclude or () for question in load(task, str(file))
    ]
    endpoint = alignment.reader_endpoint or "chat"
    reader = connect(
        JudgeOptions(lm=alignment.reader, api_base=alignment.reader_api_base, endpoint=endpoint)
    )
    finished = training.out.exists()
    told = _Remaining(settings.steps)

    def on_step(figures: StepFigures, seconds: float) -> None:
        told(figures.step, figures.reward, seconds)

    done = align_bider(
        training.base,
        sources.silver,
        training.out,
        reader,
        settings,
        task=task,
        demos=alignment.demos,
        prompts=prompts,
        unmatched=cast(Any, alignment.unmatched or "keep"),
        exclude=excluded,
        leave_out=sources.leave_out,
        limit=sources.limit,
        budget=spending.budget(),
        device=training.device,
        on_step=on_step,
    )
    if finished:
        say(f"{done.folder} was finished before: nothing was trained")
    means, result = [each.reward for each in done.steps], done.recipe["result"]
    for line in reward_lines(means):
        show(line)
    show(
        reward_change(means).words,
        f"F1 from the original passages: {result['f1_original']:.3f}, mean of {result['questions']:,} questions",
        f"model: {done.folder} (hf/{done.folder})",
    )


class _Remaining:
    """Says every while how far an alignment is, what a step takes, and how long the rest will."""

    def __init__(self, steps: int) -> None:
        self.steps, self.last = steps, time.monotonic()
        self.seconds: list[float] = []
        self.rewards: list[float] = []

    def __call__(self, step: int, reward: float, seconds: float) -> None:
        self.seconds.append(seconds)
        self.rewards.append(reward)
        if (
            step != self.steps
            and len(self.seconds) != FIRST_STEPS
            and time.monotonic() - self.last < EVERY
        ):
            return
        self.last = time.monotonic()
        recent, rewards = self.seconds[-WINDOW:], self.rewards[-WINDOW:]
        each = sum(recent) / len(recent)
        say(
            f"step {step:,} of {self.steps:,}: mean reward {sum(rewards) / len(rewards):+.3f} (last {len(rewards)}), "
            f"{each:.1f} s a step, {(self.steps - step) * each / 60:.0f} minutes left"
        )


def _train(
    part: Any, sources: SilverOptions, training: TrainingOptions, reads: Any, stage: Any = "cleaned"
) -> None:
    State.goes_on = (
        True  # before the imports: these take a second, in which one may stop the command
    )
    from blendfilter.tasks import load
    from blendfilter.training.silver import TARGET_TOKENS, silver_set, task_of
    from blendfilter.training.trainer import is_first, train_model

    settings = training.settings(TARGET_TOKENS[part])
    task = task_of(sources.silver, part, sources.task)
    excluded = [
        question.question for file in sources.exclude or () for question in load(task, str(file))
    ]
    made = silver_set(
        sources.silver,
        part,
        training.base,
        settings,
        task=task,
        reads=reads,
        prompts=prompts_in(training.prompts),
        exclude=excluded,
        leave_out=sources.leave_out,
        limit=sources.limit,
        stage=stage,
    )
    notice = say if is_first() else _nothing
    if left_out := made.recipe["silver"]["left_out"]:
        notice(
            f"{left_out} questions of {sources.silver} are left out: they are to be evaluated on"
        )
    if cut := made.recipe.get("prompts_cut"):
        notice(
            f"{cut} of {len(made.examples)} prompts were cut to {settings.max_input_tokens} tokens, from the end"
        )
    finished = training.out.exists()
    with Bars() as bars:
        done = train_model(
            training.base,
            made.examples,
            training.out,
            settings,
            recipe=made.recipe,
            progress=bars if is_first() else _no_progress,
        )
    if is_first():
        show_trained(done, finished=finished)


def show_trained(done: Trained, *, finished: bool = False) -> None:
    """What came of a training, with the curve of its losses."""
    import json

    from blendfilter.training.recipes import LOSSES

    if finished:
        say(f"{done.folder} was finished before: nothing was trained")
    result, examples = done.recipe["result"], done.recipe["examples"]["n"]
    losses = [
        json.loads(line)["loss"]
        for line in (done.folder / LOSSES).read_text(encoding="utf-8").splitlines()
    ]
    for line in curve(losses):
        show(line)
    for name, words in (
        ("left_out_too_long", "examples left out, whose prompts are over the cap"),
        ("targets_cut", "targets cut at the cap"),
    ):
        if result[name]:
            show(f"{words}: {result[name]:,}")
    show(
        f"trained ({result['method']}) on {result['trained_on']:,} of {examples:,} examples: {result['steps']:,} "
        f"steps, {result['tokens']:,} tokens, {result['seconds']:,.0f} s",
        f"model: {done.folder} (hf/{done.folder})",
    )


def curve(losses: Sequence[float], *, height: int = HEIGHT, width: int = WIDTH) -> list[str]:
    """The losses as a few lines of blocks, each column the mean of its steps; what is no number is left out.

    >>> print("\\n".join(curve([4, 3, 2, 1], height=2, width=4)))
    loss 4.00 |█▄
         0.00 |███▄
               steps 1 to 4
    """
    size = min(width, len(losses))
    edges = [round(at * len(losses) / size) for at in range(size + 1)]
    columns = [
        list(filter(math.isfinite, losses[start:end]))
        for start, end in pairwise(edges)
        if end > start
    ]
    means = [sum(column) / len(column) if column else 0.0 for column in columns]
    top = max(means)
    eighths = [round(8 * height * mean / top) if top > 0 else 0 for mean in means]
    lines = []
    for row in reversed(range(height)):
        blocks = "".join(" ▁▂▃▄▅▆▇█"[max(0, min(8, value - 8 * row))] for value in eighths)
        label = f"loss {top:.2f}" if row == height - 1 else f"{0:.2f}" if row == 0 else ""
        lines.append(f"{label:>9} |{blocks.rstrip()}")
    return [*lines, f"{'':>9}  steps 1 to {len(losses):,}"]


def _nothing(line: str) -> None:
    """Of the processes that are not the first."""


def _no_progress(phase: str, done: int, total: int | None = None) -> None:
    """Of the processes that are not the first."""

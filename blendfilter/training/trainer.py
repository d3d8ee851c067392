"""Fine-tuning of a language model on prompts and what it should write after them.

Over transformers' `Trainer` and `Seq2SeqTrainer`, so that mixed precision and several GPUs come by accelerate's own
means: `torchrun --nproc-per-node 4 -m blendfilter.cli train …` or `accelerate launch -m blendfilter.cli train …`.

The loss is the mean over the target's tokens, its end mark among them, of the whole accumulated batch. Neither padding
nor, of a causal model, the prompt is in it, and logits are made of the target's positions alone. With `loss_by`
`examples` (ours) it is the mean over the batch's examples of their targets' means: each counts the same, however long
its target is: a verdict of one word beside reasonings.

Defaults are those of Wang et al. 2023 (FilCo), section 4.1: 3 epochs, 5e-5, batches of 32, 1,024 tokens in, 512 out.
The paper says nothing of the schedule, the weight decay and LoRA's rank; here: linear to 0 without warm-up and no
decay (the library's defaults), and rank 16, alpha 32, on all linear layers (ours).

Files while it runs, in `OUT.partial`: `training.json` (the recipe, which a resumed call must repeat), `losses.jsonl`,
and `checkpoint-N`, each whole once `whole.json` is in it, which is written last. The same call resumes at the newest
whole one. `OUT` appears when all is in it.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from blendfilter.dspy_surface import lm15
from blendfilter.errors import (
    BadArgument,
    BadData,
    EmptyData,
    RunLocked,
    UnknownName,
    WorkFailed,
    check_count,
    check_counts,
)
from blendfilter.extras import needed, quiet_transformers
from blendfilter.files import json_line, lock, write_whole, writing
from blendfilter.journal import digest
from blendfilter.lm.checkpoints import (
    HUGGING_FACE,
    Checkpoint,
    LanguageModel,
    checkpoint_of,
    fingerprint,
    free_memory,
    open_checkpoint,
    open_config,
    open_tokenizer,
    positions_of,
    prompt_ids,
    raw_text,
    trained_on,
    write_questions,
)
from blendfilter.retrieval.base import ProgressCallback, silent
from blendfilter.training.memory import ENOUGH, check_free, memory_needed
from blendfilter.training.recipes import (
    LOSSES,
    PICTURE,
    RECIPE,
    check_recipe,
    new_folder,
    read_recipe,
    write_recipe,
)

logger = logging.getLogger(__name__)

EXTRA = "train"
WHY = "training"
GOES_ON = "make room, and the same command goes on"
IGNORED = -100
"""The label of a position without a loss, as torch has it."""
BEGUN = "training.json"
_LIKE_MAMBA = ("falcon_h1", "nemotron_h")
WHOLE = "whole.json"
MICRO_TOKENS = {"cpu": 512, "cuda": 16_384}
"""Tokens that are read at a time by default, padding included: a processor gains nothing by more, and pads less."""

_LOGGED = ("step", "epoch", "loss", "learning_rate", "grad_norm")
"""Of a step in `losses.jsonl`."""

Method = Literal["lora", "full"]
Schedule = Literal["linear", "constant", "cosine"]
Precision = Literal["float32", "bf16"]
LossBy = Literal["tokens", "examples"]


class Example(NamedTuple):
    """What the model reads, and what it should write after it.

    `question` is the question that it is about, for the list of what a model was trained on. A prompt may be a whole
    conversation, as rows (role, text).
    """

    prompt: str | tuple[tuple[str, str], ...]
    target: str
    question: str = ""


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """What shapes the weights.

    Attributes:
        method: `lora` (the default of a causal model) or `full` (of an encoder-decoder).
        epochs: passes over the examples.
        batch_size: examples of one step of the optimiser, by accumulation and over all processes.
        max_input_tokens: an example whose prompt has more, or more than the base reads, is left out, and counted.
        max_target_tokens: a target that has more is cut, and has no end mark then.
        schedule, warmup_steps: of the learning rate.
        lora_rank, lora_alpha, lora_dropout: of an adapter on all linear layers but the output's.
        chat: whether a prompt stands in the tokeniser's chat template; None: where it has one.
        loss_by: `tokens`, each of which counts the same, or `examples`: the mean over a batch's examples of the mean
            over the tokens of each.
        precision: float32, or bf16 (autocast; of an adapter, the frozen weights too). None: bf16 on a GPU that has it.
    """

    method: Method | None = None
    epochs: int = 3
    learning_rate: float = 5e-5
    batch_size: int = 32
    max_input_tokens: int = 1024
    max_target_tokens: int = 512
    schedule: Schedule = "linear"
    warmup_steps: int = 0
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.0
    chat: bool | None = None
    precision: Precision | None = None
    seed: int = 0
    loss_by: LossBy = "tokens"

    def __post_init__(self) -> None:
        """Raises: BadArgument, UnknownName."""
        counts = (
            "epochs",
            "batch_size",
            "max_input_tokens",
            "max_target_tokens",
            "lora_rank",
            "lora_alpha",
        )
        check_counts(self, counts)
        check_counts(self, ("warmup_steps", "seed"), 0)
        for name, known in (
            ("method", Method),
            ("schedule", Schedule),
            ("precision", Precision),
            ("loss_by", LossBy),
        ):
            if (value := getattr(self, name)) is not None and value not in get_args(known):
                raise UnknownName.of(name, value, get_args(known))
        for name in ("learning_rate", "weight_decay", "max_grad_norm"):
            if not 0 <= getattr(self, name) < math.inf:
                raise BadArgument(f"{name} is {getattr(self, name)}: give a number of 0 or more")
        if not 0 <= self.lora_dropout < 1:
            raise BadArgument(
                f"lora_dropout is {self.lora_dropout}: give a number from 0 to below 1"
            )
        if self.seed >= 2**32:
            raise BadArgument(f"seed is {self.seed}: give a number below {2**32}")


class Trained(NamedTuple):
    """A trained model: its folder, and the recipe that lies in it."""

    folder: Path
    recipe: Mapping[str, Any]


class TokenisedExample(NamedTuple):
    """Token ids of an example; `cut`: the target was longer than its cap."""

    prompt: tuple[int, ...]
    target: tuple[int, ...]
    cut: bool


def train_model(
    base: str | Path,
    examples: Sequence[Example],
    out: str | Path,
    settings: TrainingSettings | None = None,
    *,
    recipe: Mapping[str, Any] | None = None,
    device: str | None = None,
    save_every: int = 50,
    keep: int = 1,
    micro_tokens: int | None = None,
    gradient_checkpointing: bool = False,
    ignore_memory: bool = False,
    progress: ProgressCallback = silent,
    notice: Callable[[str], None] = logger.info,
) -> Trained:
    """Train `base` on `examples` into the folder `out`, which appears when all is done.

    The same call goes on where it was stopped, and on one processor (or the same number of them) with a fixed seed
    comes to the same weights. A finished `out` is not made again.

    Args:
        base: a model's folder, or its name on the hub.
        recipe: what else is to stand in `recipe.json` (part, data); a resumed call must repeat it.
        device: `cpu` or `cuda`; by default a GPU where there is one.
        save_every: steps between two checkpoints. keep: how many of them are kept.
        micro_tokens: tokens that are read at a time, padding included: bounds memory. By default about 512 on a CPU
            and 16,384 on a GPU, or as many fewer as fit by the estimate.
        gradient_checkpointing: compute activations again rather than keep them: a third slower, and far smaller.
        ignore_memory: begin also where the estimate says that memory is too little.
        progress: called with a phase, and the steps done. notice: called with the line of what memory it will take.

    Raises:
        EmptyData: no example, or none that fits. BadArgument: too little memory; something else lies at `out`.
        RunMismatch: `out` was made, or begun, otherwise. RunLocked: another process trains there. BadData,
        MissingFile: a base that cannot be trained. WorkFailed: memory ran out, or the loss is not a number.
    """
    settings = settings or TrainingSettings()
    for name, count in (("save_every", save_every), ("keep", keep), ("micro_tokens", micro_tokens)):
        if count is not None:
            check_count(name, count)
    if not examples:
        raise EmptyData("there is no example to train on")
    out = new_folder(out)
    partial_folder = out.with_name(f"{out.name}.partial")
    checkpoint = checkpoint_of(base)
    made: dict[str, Any] = {
        **(recipe or {}),
        "base": {"name": str(base), "fingerprint": fingerprint(checkpoint)},
        "examples": {"n": len(examples), "digest": digest([list(each) for each in examples])},
        "settings": asdict(settings),
    }
    if check_recipe(out, made):
        shutil.rmtree(partial_folder, ignore_errors=True)
        return Trained(out, read_recipe(out))
    if is_first():  # it may be about to write the recipe there
        check_recipe(partial_folder, made, BEGUN)
    with (
        writing(partial_folder, GOES_ON),
        _begun(partial_folder, made, out) if is_first() else _joined(),
    ):
        work = _Work(
            str(base),
            checkpoint,
            examples,
            partial_folder,
            settings,
            device,
            save_every,
            keep,
            micro_tokens,
            gradient_checkpointing,
            ignore_memory,
            progress,
            notice,
        )
        result = work.run()
        if work.trainer.is_world_process_zero():
            final = partial_folder / "final"
            write_questions(final, (each.question for each in examples), trained_on(checkpoint))
            write_recipe(final, {**made, "versions": versions(), "result": result}, RECIPE)
            final.rename(out)
            shutil.rmtree(partial_folder, ignore_errors=True)
        work.trainer.accelerator.wait_for_everyone()
    return Trained(out, read_recipe(out))


# ---- examples as tokens


def tokenised(
    tokenizer: Any, example: Example, settings: TrainingSettings, *, seq2seq: bool = False
) -> TokenisedExample:
    """The ids of prompt and target; the target ends with the end mark, where it was not cut."""
    cap = settings.max_target_tokens
    end = tokenizer.eos_token_id
    prompt = _prompt(tokenizer, example.prompt, settings.chat)
    if seq2seq:
        target = tokenizer(text_target=example.target)["input_ids"]
        target = target[:-1] if target and target[-1] == end else target
    else:
        target = _continuation(tokenizer, example, prompt)
    cut = len(target) >= cap
    return TokenisedExample(tuple(prompt), tuple(target[:cap] if cut else [*target, end]), cut)


def prompt_counter(base: str | Path, settings: TrainingSettings) -> Callable[[str], int]:
    """Counts the tokens of a prompt as `base` reads it. Raises: as `open_checkpoint`."""
    tokenizer = open_tokenizer(base)
    return lambda prompt: len(_prompt(tokenizer, prompt, settings.chat))


def _prompt(tokenizer: Any, prompt: str | Sequence[Sequence[str]], chat: bool | None) -> list[int]:
    if chat and not tokenizer.chat_template:
        raise BadArgument("the base has no chat template: train it with raw prompts (--no-chat)")
    try:
        return prompt_ids(tokenizer, prompt, chat=chat)
    except lm15.InvalidRequestError as error:
        raise BadData(
            f"an example cannot be written out: {error}; train it with raw prompts (--no-chat)"
        ) from None


def _continuation(tokenizer: Any, example: Example, prompt: Sequence[int]) -> list[int]:
    """The target's ids as they follow the prompt: behind a raw cue with a space, as the model itself would go on."""
    own = {"add_special_tokens": False, "split_special_tokens": True, "verbose": False}
    text = raw_text(example.prompt)
    plain = prompt_ids(tokenizer, text, chat=False)
    if list(prompt) == plain and example.target:
        space = "" if text[-1:].isspace() else " "
        whole = prompt_ids(tokenizer, f"{text}{space}{example.target}", chat=False)
        if whole[: len(plain)] == plain:
            return whole[len(plain) : -1 if whole[-1] == tokenizer.eos_token_id else None]
    return list(tokenizer(example.target, **own)["input_ids"])


# ---- the work


class _Work:
    """One session of a training: the model, its tokens, and the library's trainer over them."""

    def __init__(
        self,
        base: str,
        checkpoint: Checkpoint,
        examples: Sequence[Example],
        partial_folder: Path,
        settings: TrainingSettings,
        device: str | None,
        save_every: int,
        keep: int,
        micro_tokens: int | None,
        gradient_checkpointing: bool,
        ignore_memory: bool,
        progress: ProgressCallback,
        notice: Callable[[str], None],
    ) -> None:
        torch, transformers = needed("torch", EXTRA, WHY), needed("transformers", EXTRA, WHY)
        needed("accelerate", EXTRA, WHY)
        on_gpu = _on_gpu(torch, device)
        kind = "cuda" if on_gpu else "cpu"
        self.folder, self.settings, self._keep, self._progress = (
            partial_folder,
            settings,
            keep,
            progress,
        )
        bf16 = settings.precision == "bf16" or (
            settings.precision is None and on_gpu and torch.cuda.is_bf16_supported()
        )
        config = open_config(checkpoint)
        seq2seq = bool(config.is_encoder_decoder)
        self.method = settings.method or ("full" if seq2seq else "lora")
        tokenizer = open_tokenizer(checkpoint)
        progress("reading examples", 0, len(examples))
        self.rows, self.counts = _rows(tokenizer, config, examples, settings)
        lengths = [len(row["input_ids"]) + len(row["labels"]) * seq2seq for row in self.rows]
        targets = max(sum(label != IGNORED for label in row["labels"]) for row in self.rows)
        made = self._arguments(
            seq2seq,
            on_gpu=on_gpu,
            bf16=bf16,
            checkpointing=gradient_checkpointing,
            every=save_every,
        )
        free = _least(free_memory(made.device), made)
        begun = newest_whole(partial_folder)
        if begun is not None:  # the same sums, to the last digit
            micro_tokens = micro_tokens or int(_mark(begun)["micro_tokens"])
        # by default as many as fit; fewer tokens at a time are the same batch
        for tokens in (
            [micro_tokens]
            if micro_tokens
            else [MICRO_TOKENS[kind] >> halved for halved in range(5)]
        ):
            self.micro_tokens = tokens
            accumulation, per_device = _batches(lengths, settings.batch_size, tokens)
            wanted = memory_needed(
                config,
                lora_rank=settings.lora_rank if self.method == "lora" else None,
                bf16=bf16,
                tokens=max(*lengths, round(per_device * sum(lengths) / len(lengths))),
                longest=max(lengths),
                targets=targets * per_device,
                checkpointing=gradient_checkpointing,
            )
            if free is None or wanted.total < ENOUGH * free:
                break
        made.per_device_train_batch_size, made.gradient_accumulation_steps = (
            per_device,
            accumulation,
        )
        notice(check_free(wanted, made.device, refuse=not ignore_memory))
        # what is trained itself is kept in 32 bits, whatever it computes in
        loaded = open_checkpoint(
            checkpoint,
            device="cpu",
            dtype="bfloat16" if bf16 and self.method == "lora" else "float32",
        )
        transformers.set_seed(settings.seed)
        model = loaded.model
        if self.method == "lora":
            with _quiet():
                model = _adapted(model, base.removeprefix(HUGGING_FACE), settings, seq2seq)
        model.config.use_cache = False
        with _quiet():
            self.trainer = _trainer_class(seq2seq)(
                model=model,
                args=made,
                train_dataset=[*self.rows, _blank(loaded.tokenizer)],
                processing_class=loaded.tokenizer,
                data_collator=partial(_collated, loaded=loaded),
            )
        self.trainer.by_examples = settings.loss_by == "examples"
        self.trainer.remove_callback(transformers.PrinterCallback)
        self.trainer.add_callback(_watch_class()(self))
        self.session, self.earlier = time.monotonic(), 0.0

    def _arguments(
        self, seq2seq: bool, *, on_gpu: bool, bf16: bool, checkpointing: bool, every: int
    ) -> Any:
        """The library's settings, but for how a batch is divided. From here on processes know of each other."""
        transformers, settings = needed("transformers", EXTRA, WHY), self.settings
        arguments: dict[str, Any] = {
            "output_dir": str(self.folder),
            "num_train_epochs": settings.epochs,
            "learning_rate": settings.learning_rate,
            "lr_scheduler_type": settings.schedule,
            "warmup_steps": settings.warmup_steps,
            "weight_decay": settings.weight_decay,
            "max_grad_norm": settings.max_grad_norm,
            "seed": settings.seed,
            "bf16": bf16,
            "use_cpu": not on_gpu,
            "activation_checkpointing": checkpointing,
            "optim": "adamw_torch_fused" if on_gpu else "adamw_torch",
            "logging_strategy": "steps",
            "logging_steps": 1,
            "logging_nan_inf_filter": False,
            "save_strategy": "steps",
            "save_steps": every,
            "report_to": "none",
            "disable_tqdm": True,
            "log_level": "error",
            "log_level_replica": "error",
            "remove_unused_columns": False,
            "dataloader_pin_memory": on_gpu,
            "train_sampling_strategy": "batch_rebalance",
        }
        if not on_gpu and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            arguments["ddp_backend"] = "gloo"
        called = "Seq2SeqTrainingArguments" if seq2seq else "TrainingArguments"
        with _quiet():
            made = getattr(transformers, called)(**arguments)
            if made.n_gpu > 1:
                made._n_gpu = 1  # one process trains on one GPU; torchrun starts one for each
        return made

    def run(self) -> dict[str, Any]:
        """Train, or go on, until all steps are done; what came of it."""
        trainer = self.trainer
        checkpoint = newest_whole(self.folder)
        if trainer.is_world_process_zero():
            for each in self.folder.glob("checkpoint-*"):
                if each != checkpoint and (
                    checkpoint is None or _step(each) > _step(checkpoint) or not _whole(each)
                ):
                    shutil.rmtree(each, ignore_errors=True)
        trainer.accelerator.wait_for_everyone()
        if checkpoint is not None:
            self.earlier = float(_mark(checkpoint)["seconds"])
        torch = needed("torch", EXTRA, WHY)
        try:
            with _quiet(), quiet_transformers(EXTRA, WHY):
                trainer.train(
                    resume_from_checkpoint=None if checkpoint is None else str(checkpoint)
                )
        except torch.OutOfMemoryError as error:
            raise WorkFailed(
                f"memory ran out ({str(error).partition('.')[0]}): read fewer tokens at a time (--micro-tokens), "
                "compute activations again (--gradient-checkpointing), or train an adapter (--method lora)"
            ) from error
        losses = [row for row in trainer.state.log_history if "loss" in row]
        final = self.folder / "final"
        if trainer.is_world_process_zero():
            shutil.rmtree(final, ignore_errors=True)
        trainer.accelerator.wait_for_everyone()
        with _quiet(), quiet_transformers(EXTRA, WHY):
            trainer.save_model(str(final))
        if trainer.is_world_process_zero():
            (final / "training_args.bin").unlink(missing_ok=True)
            (final / "README.md").unlink(missing_ok=True)
            write_whole(final / LOSSES, map(_loss_line, losses))
            _draw(losses, final / PICTURE)
        tokens = sum(len(row["input_ids"]) for row in self.rows) * self.settings.epochs
        seconds = self.seconds()
        return {
            "method": self.method,
            **self.counts,
            "steps": trainer.state.global_step,
            "loss_first": losses[0]["loss"],
            "loss_last": losses[-1]["loss"],
            "tokens": tokens,
            "seconds": round(seconds, 1),
            "tokens_per_second": round(tokens / seconds, 1),
        }

    def seconds(self) -> float:
        """Of all sessions so far."""
        return self.earlier + time.monotonic() - self.session


def _rows(
    tokenizer: Any, config: Any, examples: Sequence[Example], settings: TrainingSettings
) -> tuple[list[dict[str, list[int]]], dict[str, int]]:
    """The examples as the trainer takes them, and how many were left out or cut."""
    rows: list[dict[str, list[int]]] = []
    left_out = cut = 0
    seq2seq, context = bool(config.is_encoder_decoder), positions_of(config) or math.inf
    if tokenizer.eos_token_id is None:
        raise BadData(
            "the tokeniser has no mark that ends a text (EOS): a model cannot learn where to stop"
        )
    for example in examples:
        made = tokenised(tokenizer, example, settings, seq2seq=seq2seq)
        longest = (
            max(len(made.prompt), len(made.target))
            if seq2seq
            else len(made.prompt) + len(made.target)
        )
        if len(made.prompt) > settings.max_input_tokens or longest > context:
            left_out += 1
            continue
        cut += made.cut
        if seq2seq:
            rows.append({"input_ids": [*made.prompt], "labels": [*made.target]})
        else:
            labels = [*[IGNORED] * len(made.prompt), *made.target]
            rows.append({"input_ids": [*made.prompt, *made.target], "labels": labels})
    if not rows:
        raise EmptyData(
            f"each of the {len(examples)} prompts is longer than {settings.max_input_tokens} tokens, or than the "
            f"{context} that the base reads: raise the cap (--max-input-tokens), or take another base"
        )
    return rows, {"trained_on": len(rows), "left_out_too_long": left_out, "targets_cut": cut}


def _least(free: int | None, made: Any) -> int | None:
    """The memory of the process that has the least: all have to divide a batch in the same way."""
    if made.world_size == 1:
        return free
    torch = needed("torch", EXTRA, WHY)
    least = torch.tensor(-1 if free is None else free, device=made.device)
    torch.distributed.all_reduce(least, torch.distributed.ReduceOp.MIN)
    return None if least < 0 else int(least)


def _blank(tokenizer: Any) -> dict[str, list[int]]:
    """A row without a loss, for a process that has no example of a batch."""
    return {"input_ids": [tokenizer.eos_token_id], "labels": [IGNORED]}


def _on_gpu(torch: Any, device: str | None) -> bool:
    """Whether it computes on a GPU. Raises `BadArgument` for a device that is not there."""
    if device not in (None, "cpu", "cuda"):
        raise BadArgument(
            f"no device '{device}': cpu or cuda; of several GPUs, CUDA_VISIBLE_DEVICES says which"
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise BadArgument(
            "torch sees no GPU here (--device cuda): install a torch for CUDA, or train on the cpu"
        )
    return bool(device != "cpu" and torch.cuda.is_available())


def _batches(lengths: Sequence[int], batch_size: int, tokens: int) -> tuple[int, int]:
    """Into how many parts a batch is divided, so that each reads about `tokens`; and how many examples one has.

    The sampler gives long examples to small parts and short ones to large parts: they cost about the same.
    """
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if batch_size % processes:
        raise BadArgument(
            f"a batch of {batch_size} cannot be shared by {processes} processes: choose a multiple"
        )
    rows, mean = batch_size // processes, sum(lengths) / len(lengths)
    parts = next(
        each
        for each in range(1, rows + 1)
        if rows % each == 0 and (each == rows or mean * rows / each <= tokens)
    )
    return parts, rows // parts


def _adapted(model: Any, base: str, settings: TrainingSettings, seq2seq: bool) -> Any:
    """The model with a new adapter on it, its own weights frozen."""
    peft = needed("peft", EXTRA, WHY)
    kind = str(getattr(model.config, "model_type", ""))
    config = peft.LoraConfig(
        exclude_modules=["out_proj"]
        if "mamba" in kind or kind in _LIKE_MAMBA
        else None,  # peft refuses to adapt it
        r=settings.lora_rank,
        lora_alpha=settings.lora_alpha,
        lora_dropout=settings.lora_dropout,
        target_modules="all-linear",
        task_type="SEQ_2_SEQ_LM" if seq2seq else "CAUSAL_LM",
        bias="none",
    )
    adapted = peft.get_peft_model(model, config)
    for each in adapted.peft_config.values():
        each.base_model_name_or_path = base
    return adapted


def _collated(
    rows: Sequence[Mapping[str, Sequence[int]]], *, loaded: LanguageModel
) -> dict[str, Any]:
    """A batch, filled up on the right.

    Of a causal model nothing masks the padding: it is behind all that is read. An encoder has its mask, and a decoder
    its inputs, the labels shifted right.
    """
    torch = needed("torch", EXTRA, WHY)

    def filled(name: str, value: int) -> Any:
        width = max(len(row[name]) for row in rows)
        return torch.tensor([[*row[name], *[value] * (width - len(row[name]))] for row in rows])

    pad = loaded.tokenizer.pad_token_id
    pad = loaded.tokenizer.eos_token_id if pad is None else pad
    batch = {"input_ids": filled("input_ids", pad), "labels": filled("labels", IGNORED)}
    if loaded.config.is_encoder_decoder:
        sizes = torch.tensor([[len(row["input_ids"])] for row in rows])
        batch["attention_mask"] = (torch.arange(batch["input_ids"].shape[1]) < sizes).long()
        start = loaded.model.generation_config.decoder_start_token_id
        start = loaded.config.decoder_start_token_id if start is None else start
        labels = batch["labels"]
        shifted = torch.cat([torch.full((len(rows), 1), start), labels[:, :-1]], 1)
        batch["decoder_input_ids"] = shifted.masked_fill(shifted == IGNORED, pad)
    return batch


def _sampler(lengths: Sequence[int], *args: Any, **how: Any) -> Any:
    """The library's sampler by length, that also reads each example of an epoch's last batch once.

    The library fills a last batch with examples from the epoch's beginning, until every part of every process has one.
    Here it has fewer parts, and a process that is left without an example reads the row behind the last, a blank one.
    """
    torch, library = (
        needed("torch", EXTRA, WHY),
        needed("transformers.trainer_pt_utils", EXTRA, WHY),
    )
    by_length: Any = library.BatchRebalanceSampler

    class EachOnce(by_length):
        """What `__iter__` yields are the parts of this process."""

        @property
        def last_parts(self) -> int:
            return int(min(self.grad_accum, math.ceil(self.remainder / self.dp_size)))

        def __len__(self) -> int:
            return int(self.num_full_batches * self.grad_accum + self.last_parts)

        def __iter__(self) -> Iterator[list[int]]:
            chance = torch.Generator().manual_seed(self.seed + self.epoch)
            order = torch.randperm(len(self.lengths), generator=chance).tolist()
            size, processes, parts = self.effective_batch_size, self.dp_size, self.last_parts
            for start in range(0, self.num_full_batches * size, size):
                yield from self._yield_global_batch(order[start : start + size])
            if last := order[self.num_full_batches * size :]:
                last += [len(self.lengths)] * (processes * parts - len(last))
                sizes = [[*self.lengths, 1][at] for at in last]
                divided = by_length(
                    sizes, size, processes, parts, shuffle=False, rank=self.rank, drop_last=False
                )
                yield from ([last[at] for at in part] for part in divided)

    return EachOnce(lengths, *args, **how)


def _trainer_class(seq2seq: bool) -> Any:
    """The library's trainer with our loss and our order of examples."""
    torch, transformers = needed("torch", EXTRA, WHY), needed("transformers", EXTRA, WHY)
    trainer: Any = transformers.Seq2SeqTrainer if seq2seq else transformers.Trainer

    def predicted(labels: Any) -> Any:
        """Where a position predicts a token of a target; a causal model's predicts the next one."""
        return (labels if seq2seq else labels[:, 1:]) != IGNORED

    class TargetTrainer(trainer):
        """Computes logits where there is a target; a batch's examples are read by length."""

        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            self.model_accepts_loss_kwargs = True  # counts what the whole accumulated batch has
            self.loss_is_scaled_for_ga = True
            self.sampler: Any = None
            self.by_examples = False

        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            made = self.args
            self.sampler = _sampler(
                [len(row["input_ids"]) for row in self.train_dataset[:-1]],
                made.train_batch_size * made.gradient_accumulation_steps * made.world_size,
                made.world_size,
                made.gradient_accumulation_steps,
                seed=made.seed,
                rank=made.process_index if made.world_size > 1 else 0,
                drop_last=False,
            )
            return self.sampler

        def _get_num_items_in_batch(
            self, batch_samples: Sequence[Mapping[str, Any]], device: Any
        ) -> Any:
            """Target tokens, or examples, of the accumulated batch, over all processes."""
            if not self.by_examples:
                return super()._get_num_items_in_batch(batch_samples, device)
            examples = sum(int(predicted(batch["labels"]).any(1).sum()) for batch in batch_samples)
            return self.accelerator.gather(torch.tensor(examples, device=device)).sum()

        def compute_loss(
            self,
            model: Any,
            inputs: Any,
            return_outputs: bool = False,
            num_items_in_batch: Any = None,
        ) -> Any:
            given = dict(inputs)
            labels = given.pop("labels")
            wanted = predicted(labels)
            rows, columns = wanted.nonzero(as_tuple=True)
            head = self.accelerator.unwrap_model(model).get_output_embeddings()
            hook = head.register_forward_pre_hook(lambda _, given: (given[0][rows, columns][None],))
            try:
                logits = model(**given, use_cache=False).logits
            finally:
                hook.remove()
            if tuple(logits.shape[:2]) != (1, len(rows)):
                raise BadData(
                    f"{type(model).__name__} makes its logits in another way than by an output layer of its own: it "
                    "cannot be trained here"
                )
            ids = labels[rows, columns if seq2seq else columns + 1]
            loss = torch.nn.functional.cross_entropy(logits[0].float(), ids, reduction="none")
            if self.by_examples:
                loss = loss / wanted.sum(1)[rows]
            # gradients are averaged over processes, and what the loss is divided by was counted over all of them
            return loss.sum() / num_items_in_batch * self.accelerator.num_processes

    return TargetTrainer


def _watch_class() -> Any:
    callback: Any = needed("transformers", EXTRA, WHY).TrainerCallback

    class Watch(callback):
        """Keeps the losses' file, says how far it is, and marks checkpoints that are whole."""

        def __init__(self, work: _Work) -> None:
            self.work = work

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.is_world_process_zero:
                losses = [row for row in state.log_history if "loss" in row]
                write_whole(self.work.folder / LOSSES, map(_loss_line, losses))

        def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            # a resumed epoch skips batches by a sampler around ours, which does not hand the epoch on
            self.work.trainer.sampler.set_epoch(int((state.epoch or 0) + 1e-6))

        def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            row = state.log_history[-1]
            if "loss" in row and not math.isfinite(row["loss"]):
                raise WorkFailed(
                    f"the loss is not a number from step {row['step']} on: lower --learning-rate, and name another "
                    f"folder (--out) or delete {self.work.folder}"
                )
            if state.is_world_process_zero and "loss" in row:
                with (self.work.folder / LOSSES).open("ab") as file:
                    file.write(_loss_line(row))
                self.work._progress("training, steps", state.global_step, state.max_steps)

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.work.trainer.accelerator.wait_for_everyone()  # each process has written its part
            if not state.is_world_process_zero:
                return
            folder = self.work.folder / f"checkpoint-{state.global_step}"
            sizes = {}
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    with path.open("rb") as file:
                        os.fsync(file.fileno())
                    sizes[path.relative_to(folder).as_posix()] = path.stat().st_size
            seconds = round(self.work.seconds(), 1)
            mark = {"files": sizes, "seconds": seconds, "micro_tokens": self.work.micro_tokens}
            write_whole(folder / WHOLE, [json_line(mark)])
            known = sorted(
                (each for each in folder.parent.glob("checkpoint-*") if _whole(each)), key=_step
            )
            for each in known[: -self.work._keep]:
                shutil.rmtree(each, ignore_errors=True)

    return Watch


# ---- files


def newest_whole(folder: Path) -> Path | None:
    """The newest checkpoint in a folder that was written to its end; None where there is none."""
    return max(
        (each for each in folder.glob("checkpoint-*") if _whole(each)), key=_step, default=None
    )


def _step(checkpoint: Path) -> int:
    number = checkpoint.name.rpartition("-")[2]
    return int(number) if number.isdecimal() else -1


def _mark(checkpoint: Path) -> dict[str, Any]:
    return dict(json.loads((checkpoint / WHOLE).read_bytes()))


def _whole(checkpoint: Path) -> bool:
    """Whether its mark is there, and every file that the mark names at its size."""
    try:
        files = _mark(checkpoint)["files"]
        return all((checkpoint / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


@contextmanager
def _begun(folder: Path, recipe: Mapping[str, Any], out: Path) -> Iterator[None]:
    """Inside the block this process alone trains in the folder, by this recipe. Raises: RunLocked, RunMismatch.

    Where the block ends before the first step, the folder goes, so that a corrected command is not refused for it.
    """
    fd = _locked(folder, recipe)
    try:
        check_recipe(folder, recipe, BEGUN)  # another process may have begun it meanwhile
        if check_recipe(out, recipe):
            raise RunLocked(
                f"{out} was finished by another training meanwhile: give the command again"
            )
        try:
            yield
        except BaseException:
            left = [*folder.iterdir()] if folder.is_dir() else []
            if not any(
                item.name != BEGUN and (item.is_dir() or item.stat().st_size) for item in left
            ):
                shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        os.close(fd)


def _locked(folder: Path, recipe: Mapping[str, Any]) -> int:
    """The file that says what was begun, open and locked; it is never replaced. Raises: RunLocked."""
    path = folder / BEGUN
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with suppress(BadArgument):  # there is one
            write_recipe(folder, recipe, BEGUN, overwrite=False)
        with suppress(
            FileNotFoundError
        ):  # another process has finished, and removed it: begin anew
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                lock(fd, folder, "by another training: wait for it, or name another folder (--out)")
                if os.path.samestat(os.fstat(fd), path.stat()):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)


@contextmanager
def _joined() -> Iterator[None]:
    """Of the other processes of one training: the first one has the folder."""
    yield


def is_first() -> bool:
    """Whether this process writes the files; of several (torchrun, accelerate), the first does."""
    return os.environ.get("RANK", "0") == "0"


def versions() -> dict[str, str]:
    """Of the packages that a training rests on; "" of one that is not installed."""
    return {
        name: _version(name)
        for name in ("blendfilter", "torch", "transformers", "peft", "accelerate")
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _loss_line(row: Mapping[str, Any]) -> bytes:
    return json_line({name: row[name] for name in _LOGGED if name in row})


def _draw(losses: Sequence[Mapping[str, Any]], path: Path) -> None:
    """The losses as a picture, where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot([row["step"] for row in losses], [row["loss"] for row in losses], linewidth=1)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    axes.set_ylim(bottom=0)
    figure.savefig(path, dpi=120, metadata={"Software": None})


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the libraries' chatter about what is meant here."""
    loggers = [logging.getLogger(name) for name in ("accelerate", "transformers", "peft")]
    levels = [each.level for each in loggers]
    try:
        for each in loggers:
            each.setLevel(logging.ERROR)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"(transformers|peft|accelerate|torch)(\.|$)")
            yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)

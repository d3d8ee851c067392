"""Fine-tuning of a language model on prompts and what it should write after them.

Over transformers' `Trainer`, so that mixed precision and several GPUs come by accelerate's own means:
`torchrun --nproc-per-node 4 -m blendfilter.cli train …` or `accelerate launch -m blendfilter.cli train …`. With
several processes the last batch of an epoch is filled up with examples of the epoch's beginning.

The loss is the mean over the target's tokens, its end mark among them, of the whole accumulated batch. Neither padding
nor, of a causal model, the prompt is in it.

Defaults are those of Wang et al. 2023 (FilCo), section 4.1: 3 epochs, 5e-5, batches of 32, 1,024 tokens in, 512 out.
The paper says nothing of the schedule, the weight decay and LoRA's rank; here: linear to 0 without warm-up and no
decay (the library's defaults), and rank 16, alpha 32, on all linear layers (ours).

Files while it runs, in `OUT.partial`: `training.json` (the recipe, which a resumed call must repeat), `losses.jsonl`,
and `checkpoint-N`, each whole once `whole.json` is in it. The same call resumes at the newest whole one. `OUT` appears
when all is in it.
"""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from blendfilter.errors import BadArgument, EmptyData, WorkFailed
from blendfilter.extras import LazyModule, needed, quiet_loggers, quiet_transformers
from blendfilter.files import writing
from blendfilter.journal import digest
from blendfilter.lm.checkpoints import (
    HUGGING_FACE,
    Checkpoint,
    checkpoint_of,
    fingerprint,
    open_checkpoint,
    open_config,
    open_tokenizer,
    torch_device,
    trained_on,
    write_questions,
)
from blendfilter.retrieval.base import ProgressCallback, silent
from blendfilter.training.examples import Example, rows_of
from blendfilter.training.recipes import (
    LOSSES,
    PICTURE,
    alone_in,
    check_recipe,
    draw_steps,
    new_folder,
    read_recipe,
    versions,
    write_recipe,
)
from blendfilter.training.settings import MICRO_TOKENS, TrainingSettings

EXTRA = "train"
WHY = "training a model"
torch: Any = LazyModule("torch", EXTRA, WHY)
transformers: Any = LazyModule("transformers", EXTRA, WHY)
peft: Any = LazyModule("peft", EXTRA, WHY)
GOES_ON = "make room, and the same command goes on"
LESS = (
    "read fewer tokens at a time (micro_tokens=), compute activations again (gradient_checkpointing=True), or train an "
    "adapter (method='lora')"
)
"""What takes less memory."""


class Trained(NamedTuple):
    """A trained model: its folder, and the recipe that lies in it."""

    folder: Path
    recipe: Mapping[str, Any]


def train_model(
    base: str | Path,
    examples: Sequence[Example],
    out: str | Path,
    settings: TrainingSettings | None = None,
    *,
    recipe: Mapping[str, Any] | None = None,
    progress: ProgressCallback = silent,
    **changes: Any,
) -> Trained:
    """Train `base` on `examples` into the folder `out`, which appears when all is done.

    The same call goes on where it was stopped, and on one processor (or the same number of them) with a fixed seed
    comes to the same weights. A finished `out` is not made again.

    Args:
        base: a model's folder, or its name on the hub.
        recipe: what else is to stand in `recipe.json` (part, data); a resumed call must repeat it.
        progress: called with a phase, and the steps done.
        changes: fields of `settings` that differ (`device="cpu"`).

    Raises:
        EmptyData: no example, or none that fits. BadArgument: a setting; something else lies at `out`.
        RunMismatch: `out` was made, or begun, otherwise. RunLocked: another process trains there. BadData,
        MissingFile: a base that cannot be trained. WorkFailed: memory ran out, or the loss is not a number.
    """
    settings = (settings or TrainingSettings()).but(**changes)
    if not examples:
        raise EmptyData("there is no example to train on")
    for package in ("accelerate", "peft"):
        needed(package, EXTRA, WHY)
    out = new_folder(out)
    partial = out.with_name(f"{out.name}.partial")
    checkpoint = checkpoint_of(base)
    made: dict[str, Any] = {
        **(recipe or {}),
        "base": {"name": str(base), "fingerprint": fingerprint(checkpoint)},
        "examples": {
            "n": len(examples),
            "digest": digest([list(example) for example in examples]),
        },
        "settings": settings.shaping(),
    }
    if check_recipe(out, made):
        shutil.rmtree(partial, ignore_errors=True)
        return Trained(out, read_recipe(out))
    first, losses = is_first(), partial / LOSSES

    def has_begun() -> bool:
        """Whether a step was made."""
        return losses.exists() and losses.stat().st_size > 0

    with (
        writing(partial, GOES_ON),
        alone_in(partial, made, out, has_begun) if first else nullcontext(),
        out_of_memory(LESS),
        # without the libraries' chatter about what is meant here
        quiet_loggers("accelerate", "transformers", "peft"),
        warnings.catch_warnings(),
        quiet_transformers(EXTRA, WHY),
    ):
        warnings.filterwarnings("ignore", module=r"(transformers|peft|accelerate|torch)(\.|$)")
        trainer, result = _trained(str(base), checkpoint, examples, partial, settings, progress)
        if first:
            final = partial / "final"
            write_questions(
                final, (example.question for example in examples), trained_on(checkpoint)
            )
            write_recipe(final, {**made, "versions": versions(), "result": result})
            final.rename(out)
            shutil.rmtree(partial, ignore_errors=True)
        trainer.accelerator.wait_for_everyone()
    return Trained(out, read_recipe(out))


def is_first() -> bool:
    """Whether this process writes the files; of several (torchrun, accelerate), the first does."""
    return os.environ.get("RANK", "0") == "0"


# ---- the work


def _trained(
    base: str,
    checkpoint: Checkpoint,
    examples: Sequence[Example],
    folder: Path,
    settings: TrainingSettings,
    progress: ProgressCallback,
) -> tuple[Any, dict[str, Any]]:
    """Train, or go on, until all steps are done; the trainer, and what came of it. The weights are in `final`."""
    from blendfilter.training.loop import (
        OneGPU,
        ShuffledRows,
        TargetTrainer,
        Watch,
        newest_whole,
        remove_torn,
        write_losses,
    )

    config, tokenizer = open_config(checkpoint), open_tokenizer(checkpoint)
    progress("reading examples", 0, len(examples))
    rows, counts = rows_of(tokenizer, config, examples, settings)
    place = torch_device(settings.device)
    on_gpu = place.type == "cuda"
    bf16 = settings.precision == "bf16" or (
        settings.precision is None and on_gpu and torch.cuda.is_bf16_supported()
    )
    seq2seq = bool(config.is_encoder_decoder)
    method = settings.method or ("full" if seq2seq else "lora")
    lengths = [len(row["input_ids"]) + len(row["labels"]) * seq2seq for row in rows]
    parts, per_part = _batches(
        lengths, settings.batch_size, settings.micro_tokens or MICRO_TOKENS[place.type]
    )
    # what is trained itself is kept in 32 bits, whatever it computes in
    dtype = "bfloat16" if bf16 and method == "lora" else "float32"
    loaded = open_checkpoint(checkpoint, device="cpu", dtype=dtype)
    transformers.set_seed(settings.seed)
    model = loaded.model
    if method == "lora":
        config_of_adapter = peft.LoraConfig(
            r=settings.lora_rank,
            lora_alpha=settings.lora_alpha,
            lora_dropout=settings.lora_dropout,
            target_modules="all-linear",
            task_type="SEQ_2_SEQ_LM" if seq2seq else "CAUSAL_LM",
            base_model_name_or_path=base.removeprefix(HUGGING_FACE),
        )
        model = peft.get_peft_model(model, config_of_adapter)
    # the tokeniser that is saved stays as it is: many have no token to fill up with
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    tokenizer.padding_side = "right"
    watch = Watch(folder, settings.keep, progress)
    # from here on processes know of each other
    backend = {} if on_gpu or _processes() == 1 else {"ddp_backend": "gloo"}
    arguments = OneGPU(
        output_dir=str(folder),
        num_train_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=settings.warmup_steps,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        seed=settings.seed,
        per_device_train_batch_size=per_part,
        gradient_accumulation_steps=parts,
        bf16=bf16,
        use_cpu=not on_gpu,
        activation_checkpointing=settings.gradient_checkpointing,
        optim="adamw_torch_fused" if on_gpu else "adamw_torch",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_steps=settings.save_every,
        report_to="none",
        disable_tqdm=True,
        log_level="error",
        log_level_replica="error",
        remove_unused_columns=False,
        dataloader_pin_memory=on_gpu,
        train_sampling_strategy="sequential",  # the rows shuffle themselves
        **backend,
    )
    trainer = TargetTrainer(
        model=model,
        args=arguments,
        train_dataset=ShuffledRows(rows, settings.batch_size, settings.seed),
        processing_class=loaded.tokenizer,
        data_collator=transformers.DataCollatorForSeq2Seq(tokenizer, model),
        callbacks=[watch],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    if trainer.is_world_process_zero():
        remove_torn(folder)
    trainer.accelerator.wait_for_everyone()
    begun = newest_whole(folder)
    trainer.train(resume_from_checkpoint=str(begun) if begun else None)
    final = folder / "final"
    if trainer.is_world_process_zero():
        shutil.rmtree(final, ignore_errors=True)
    trainer.accelerator.wait_for_everyone()
    trainer.save_model(str(final))
    losses = [row for row in trainer.state.log_history if "loss" in row]
    if trainer.is_world_process_zero():
        for name in ("training_args.bin", "README.md"):
            (final / name).unlink(missing_ok=True)
        write_losses(final, trainer.state)
        draw_steps([row["loss"] for row in losses], final / PICTURE, "loss")
    tokens = sum(len(row["input_ids"]) for row in rows) * settings.epochs
    return trainer, {
        "method": method,
        **counts,
        "steps": trainer.state.global_step,
        "loss_first": losses[0]["loss"],
        "loss_last": losses[-1]["loss"],
        "tokens": tokens,
        "seconds": round(watch.seconds(), 1),
        "tokens_per_second": round(tokens / watch.seconds(), 1),
    }


def _processes() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _batches(lengths: Sequence[int], batch_size: int, tokens: int) -> tuple[int, int]:
    """Into how many parts a process divides its batch, and how many examples one has: as many as have `tokens`.

    Every part counts as if its examples were the longest ones.
    """
    processes = _processes()
    if batch_size % processes:
        raise BadArgument(
            f"a batch of {batch_size} cannot be shared by {processes} processes: choose a multiple"
        )
    rows = batch_size // processes
    fitting = max(1, tokens // max(lengths))
    per_part = max(size for size in range(1, rows + 1) if rows % size == 0 and size <= fitting)
    return rows // per_part, per_part


@contextmanager
def out_of_memory(less: str) -> Iterator[None]:
    """Inside the block, memory that runs out is one line, which says what takes less. Raises: WorkFailed."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        why = str(error).partition(".")[0] or "the system gives no more"
        raise WorkFailed(f"memory ran out ({why}): {less}") from error

"""The library's trainer as `train_model` uses it: our loss, an order of examples, a log of losses, whole checkpoints.

Imports torch and transformers, so it is imported where a training begins.
"""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import PartialState

from blendfilter.errors import WorkFailed
from blendfilter.files import json_line, write_whole
from blendfilter.lm.checkpoints import logits_at
from blendfilter.retrieval.base import ProgressCallback
from blendfilter.training.examples import IGNORED
from blendfilter.training.recipes import LOSSES

WHOLE = "whole.json"
"""Written last into a checkpoint: one without it was torn by a kill."""
_LOGGED = ("step", "epoch", "loss", "learning_rate", "grad_norm")


class ShuffledRows(torch.utils.data.Dataset):
    """Rows in an order of each epoch's own; those of one batch by length, so that rows read together are alike.

    The order follows from seed and epoch alone, so a resumed training reads what it would have read.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], batch_size: int, seed: int) -> None:
        self.rows, self.batch_size, self.seed = rows, batch_size, seed
        self.set_epoch(0)

    def set_epoch(self, epoch: int) -> None:
        """Shuffle for an epoch; accelerate calls it."""
        places = list(range(len(self.rows)))
        random.Random(f"{self.seed} {epoch}").shuffle(places)
        self.order: list[int] = []
        for start in range(0, len(places), self.batch_size):
            batch = places[start : start + self.batch_size]
            self.order += sorted(batch, key=lambda at: len(self.rows[at]["input_ids"]))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, at: int) -> Mapping[str, Any]:
        return self.rows[self.order[at]]


class OneGPU(transformers.TrainingArguments):
    """Arguments of a process that trains on one GPU, however many it sees: torchrun starts one for each."""

    n_gpu = 1


class TargetTrainer(transformers.Trainer):
    """Trains on the mean loss over the targets' tokens of the whole accumulated batch."""

    loss_is_scaled_for_ga = True

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.model_accepts_loss_kwargs = True  # so that it counts the batch's target tokens

    def compute_loss(
        self,
        model: Any,
        inputs: Mapping[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """The share of a part in the batch's mean; logits are made of the targets' positions alone."""
        given = dict(inputs)
        labels = given.pop("labels")
        own = self.accelerator.unwrap_model(model)
        if not own.config.is_encoder_decoder:  # a position predicts the next one
            labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
        wanted = labels != IGNORED
        head = own.get_output_embeddings()
        _, logits = logits_at(model, head, wanted, **given, use_cache=False)
        loss = torch.nn.functional.cross_entropy(
            logits.float(), labels[wanted], reduction="sum"
        )
        # gradients are averaged over processes, and the tokens were counted over all of them
        return loss / num_items_in_batch * self.accelerator.num_processes


class Watch(transformers.TrainerCallback):
    """Keeps the log of losses, reports the steps done, and marks checkpoints that are whole."""

    def __init__(self, folder: Path, keep: int, progress: ProgressCallback) -> None:
        self.folder, self.keep, self.progress = folder, keep, progress
        checkpoint = newest_whole(folder)
        mark = json.loads((checkpoint / WHOLE).read_bytes()) if checkpoint else {}
        self.began = time.monotonic() - float(mark.get("seconds", 0.0))

    def seconds(self) -> float:
        """Of all sessions so far."""
        return time.monotonic() - self.began

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Cut the log back to the checkpoint."""
        if state.is_world_process_zero:
            write_losses(self.folder, state)

    def on_log(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Append a step to the log. Raises: WorkFailed for a loss that is not a number."""
        row = state.log_history[-1]
        if "loss" not in row:
            return
        if not math.isfinite(row["loss"]):
            raise WorkFailed(
                f"the loss is not a number from step {row['step']} on: lower learning_rate=, and name another "
                f"folder (out=) or delete {self.folder}"
            )
        if state.is_world_process_zero:
            with (self.folder / LOSSES).open("ab") as file:
                file.write(_line(row))
            self.progress("training, steps", state.global_step, state.max_steps)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Mark the checkpoint, and remove older ones."""
        PartialState().wait_for_everyone()  # each process writes a part
        if not state.is_world_process_zero:
            return
        checkpoint = self.folder / f"checkpoint-{state.global_step}"
        for path in checkpoint.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        write_whole(checkpoint / WHOLE, [json_line({"seconds": round(self.seconds(), 1)})])
        for old in _whole_ones(self.folder)[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)


def write_losses(folder: Path, state: Any) -> None:
    """The log of all steps that a trainer's state knows."""
    write_whole(folder / LOSSES, [_line(row) for row in state.log_history if "loss" in row])


def _line(row: Mapping[str, Any]) -> bytes:
    return json_line({name: row[name] for name in _LOGGED if name in row})


def newest_whole(folder: Path) -> Path | None:
    """The newest checkpoint in a folder that was written to its end; None where there is none."""
    return next(reversed(_whole_ones(folder)), None)


def remove_torn(folder: Path) -> None:
    """Remove checkpoints that were not written to their end."""
    for torn in set(folder.glob("checkpoint-*")) - {*_whole_ones(folder)}:
        shutil.rmtree(torn, ignore_errors=True)


def _whole_ones(folder: Path) -> list[Path]:
    """The oldest first."""
    found = [mark.parent for mark in folder.glob(f"checkpoint-*/{WHOLE}")]
    return sorted(found, key=lambda checkpoint: int(checkpoint.name.rpartition("-")[2]))

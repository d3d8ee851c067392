"""The estimate of a training's memory against the numbers of the models themselves."""

from __future__ import annotations

from typing import Any

import pytest
import scoring_models

from blendfilter.errors import BadArgument, WorkFailed
from blendfilter.lm.checkpoints import open_checkpoint, open_config
from blendfilter.training.memory import MemoryNeeded, check_free, memory_needed, out_of_memory

peft = pytest.importorskip("peft", reason="training needs the extra [train]")

READ = {"bf16": False, "tokens": 100, "longest": 50, "targets": 10, "checkpointing": False}


@pytest.mark.parametrize("model", [scoring_models.llama, scoring_models.t5, scoring_models.bart])
def test_weights_gradients_and_moments_are_counted_to_the_byte(model: Any) -> None:
    """4 bytes of each weight; of those that are trained 4 of the gradient, and twice 4 of the moments."""
    loaded = open_checkpoint(model(), device="cpu").model
    config, numbers = open_config(model()), sum(each.numel() for each in loaded.parameters())
    full = memory_needed(config, lora_rank=None, **READ)
    assert (full.weights, full.training) == (4 * numbers, 12 * numbers)
    assert memory_needed(config, lora_rank=None, **{**READ, "bf16": True}).weights == 6 * numbers
    kind = "SEQ_2_SEQ_LM" if config.is_encoder_decoder else "CAUSAL_LM"
    adapted = peft.get_peft_model(loaded, peft.LoraConfig(r=8, target_modules="all-linear", task_type=kind))
    trained = sum(each.numel() for each in adapted.parameters() if each.requires_grad)
    adapter = memory_needed(config, lora_rank=8, **READ)
    assert (adapter.weights, adapter.training) == (4 * (numbers + trained), 12 * trained)


def test_activations_grow_with_the_tokens_and_shrink_where_they_are_computed_again() -> None:
    config = open_config(scoring_models.llama(layers=8))
    few, many, again = (
        memory_needed(config, lora_rank=8, **{**READ, **change}).activations
        for change in ({}, {"tokens": 1000}, {"tokens": 1000, "checkpointing": True})
    )
    assert few < again < many


def test_too_little_is_refused_with_what_it_would_take(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    wanted, place = MemoryNeeded(10**9, 10**9, 2 * 10**9), torch.device("cpu")
    monkeypatch.setattr("blendfilter.training.memory.free_memory", lambda place: 3_900_000_000)
    line = "training takes about 4.0 GB (weights 1.0, gradients and optimiser 1.0, activations 2.0) of memory, and"
    assert check_free(wanted, place) == f"{line} 3.9 GB are free"  # an estimate, after all
    monkeypatch.setattr("blendfilter.training.memory.free_memory", lambda place: 1_000_000_000)
    with pytest.raises(BadArgument, match=r"4.0 GB .* 1.0 GB are free: read fewer tokens at a time"):
        check_free(wanted, place)
    with pytest.raises(BadArgument, match=r"1.0 GB are free: do less; ignore_memory=True tries it"):
        check_free(wanted, place, less="do less")
    assert check_free(wanted, place, refuse=False) == f"{line} 1.0 GB are free"


def test_memory_that_runs_out_is_one_line_and_other_errors_stay_as_they_are() -> None:
    import torch

    with pytest.raises(WorkFailed, match=r"^memory ran out \(CUDA out of memory\): do less$"), out_of_memory("do less"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    with pytest.raises(WorkFailed, match=r"^memory ran out \(the system gives no"), out_of_memory("do less"):
        torch.empty(10**15)
    with pytest.raises(WorkFailed, match="gives no more"), out_of_memory("do less"):
        raise MemoryError
    with pytest.raises(RuntimeError, match="shapes"), out_of_memory("do less"):
        raise RuntimeError("shapes")

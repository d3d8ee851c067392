"""Two processes train one model together, as `torchrun` starts them: what one process would have made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import scoring_models

from blendfilter.training.examples import Example
from blendfilter.training.recipes import read_recipe
from blendfilter.training.settings import TrainingSettings
from blendfilter.training.trainer import train_model

pytest.importorskip("peft", reason="training needs the extra [train]")

SETTINGS = TrainingSettings(batch_size=8, epochs=2, learning_rate=1e-2)
ROWS = [Example(f"Question: which island is number {at}?\nAnswer:", "the sea " * (1 + at % 5)) for at in range(16)]
SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from training.test_trainer_processes import ROWS, SETTINGS
from blendfilter.training.trainer import train_model
train_model({base!r}, ROWS, {out!r}, SETTINGS, device="cpu", save_every=2)
"""


@pytest.mark.slow
def test_two_processes_make_the_steps_of_one(tmp_path: Path) -> None:
    """The loss of a batch is its mean over the targets of both, whose lengths differ; one of them writes the files."""
    import torch
    from safetensors.torch import load_file

    base, out = scoring_models.llama(), tmp_path / "out"
    train_model(base, ROWS, tmp_path / "one", SETTINGS, device="cpu", micro_tokens=100)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parents[1]), base=str(base), out=str(out)))
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(run, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert read_recipe(out)["result"]["steps"] == 4
    assert losses(out) == pytest.approx(losses(tmp_path / "one"), rel=1e-3)
    one, two = (load_file(folder / "adapter_model.safetensors") for folder in (tmp_path / "one", out))
    for name, weights in one.items():
        torch.testing.assert_close(two[name], weights, rtol=1e-2, atol=1e-4)
    assert not (tmp_path / "out.partial").exists()


def losses(out: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (out / "losses.jsonl").read_text().splitlines()]

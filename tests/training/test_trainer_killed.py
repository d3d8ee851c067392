"""A training that is killed at random moments, and given again each time, comes to the same weights."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import scoring_models

from blendfilter.training.examples import Example
from blendfilter.training.settings import TrainingSettings

pytest.importorskip("peft", reason="training needs the extra [train]")

SETTINGS = TrainingSettings(batch_size=2, epochs=5, learning_rate=1e-2, lora_dropout=0.1)
ROWS = [Example(f"Question: which island is number {at}?\nAnswer:", "the sea " * (1 + at % 3)) for at in range(24)]
STEPS = 60
SCRIPT = """
import sys, time
sys.path.insert(0, {tests!r})
from training.test_trainer_killed import ROWS, SETTINGS
from blendfilter.training.trainer import train_model
def wait(phase, done, total=None):
    if phase.startswith("training") and done >= {last}:
        time.sleep(600)
train_model({base!r}, ROWS, {out!r}, SETTINGS, device="cpu", save_every=2, keep=2, progress=wait)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0])
def test_killed_at_random_moments_comes_to_the_same_weights(seed: int, tmp_path: Path) -> None:
    """Five kills, each some steps on from where the last session was, and some milliseconds into what follows: a step,
    a checkpoint half written, an old one half removed. Two steps on it waits to be killed, however late that comes."""
    chance, out, log = random.Random(seed), tmp_path / "out", tmp_path / "out.partial" / "losses.jsonl"
    assert started(tmp_path / "whole").wait() == 0
    wanted = 0
    for kill in range(6):
        wanted = max(wanted, steps_in(log)) + chance.randint(2, 9)
        last = wanted + 2 if kill < 5 else STEPS + 1
        child = started(out, last)
        if kill < 5:
            while child.poll() is None and steps_in(log) < wanted:
                time.sleep(0.005)
            time.sleep(chance.random() * 0.1)
            child.send_signal(signal.SIGKILL)
        assert child.wait() == (-signal.SIGKILL if kill < 5 else 0)
    for name in ("adapter_model.safetensors", "losses.jsonl"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert not (tmp_path / "out.partial").exists()


def started(out: Path, last: int = STEPS + 1) -> subprocess.Popen[bytes]:
    """A training in a process of its own that waits behind step `last`; on one thread, as every one here: another
    number of threads adds up in another order."""
    tests, base = str(Path(__file__).parents[1]), str(scoring_models.llama())
    script = SCRIPT.format(tests=tests, base=base, out=str(out), last=last)
    return subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "OMP_NUM_THREADS": "1"})


def steps_in(log: Path) -> int:
    try:
        return log.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0

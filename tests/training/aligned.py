"""A silver file of made-up towns, a tiny refiner distilled on it, and a reader for its alignment."""

from __future__ import annotations

import atexit
import json
import shutil
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import scoring_models
from scripted import ScriptedLM

from blendfilter.oracles.silver_making import Places, write_recipe
from blendfilter.oracles.silver_rows import SilverRow, SilverSentence, line_of
from blendfilter.records import Passage
from blendfilter.training.ppo import PPOSettings
from blendfilter.training.settings import TrainingSettings
from blendfilter.training.silver import silver_set
from blendfilter.training.trainer import train_model

SETTINGS = PPOSettings(steps=5, batch=4, epochs=2, max_new_tokens=6, learning_rate=1e-2, every=2)


def row(at: int) -> SilverRow:
    """Two passages of two sentences; the second sentence of the first one has the answer."""
    passages = (
        Passage("1", f"Town {at}", f"It rains. King {at} built the castle.", 2.0),
        Passage("2", "River", "It ends in the sea. It is long.", 1.0),
    )
    spans = [(0, 0, 9), (0, 10, len(passages[0].text)), (1, 0, 19), (1, 20, 31)]
    sentences = tuple(SilverSentence(*span, float(i == 1)) for i, span in enumerate(spans))
    answers = (f"King {at}", "the king")
    return SilverRow(f"q{at}", f"Who built castle {at}?", answers, answers[0], passages, sentences, (1,),
                     f"King {at} built the castle.", True)  # fmt: skip


def silver_file(folder: Path, rows: int = 9, *, task: str = "nq", measure: str = "bider") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "silver.jsonl"
    path.write_bytes(b"".join(line_of(row(at)) for at in range(rows)))
    write_recipe(Places.of(path), {"task": task, "oracle": {"measure": measure, "task": task}})
    return path


@cache
def distilled(encoder_decoder: bool = False) -> Path:
    """A model that was trained for one step, which is enough to be one."""
    folder = Path(mkdtemp(prefix="blendfilter-distilled-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    base = scoring_models.t5() if encoder_decoder else scoring_models.llama(positions=512)
    settings = TrainingSettings(batch_size=9, epochs=1, max_input_tokens=400)
    made = silver_set(silver_file(folder), "bider", base, settings)
    return train_model(base, made.examples, folder / "model", settings, recipe=made.recipe, device="cpu").folder


def answer(stage: str, prompt: str) -> str:
    """A reader that is right where it reads an even number of characters, and half right else."""
    return "the king" if len(prompt) % 2 == 0 else "queen or king"


def reader(reply: Any = answer) -> ScriptedLM:
    return ScriptedLM(reply)


def figures(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rewards.jsonl").read_text().splitlines()]

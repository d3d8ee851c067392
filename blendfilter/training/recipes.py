"""What lies beside trained weights: the recipe that made them, and which questions they were trained on.

The files of a trained model, `OUT`::

    recipe.json      base, data, settings, seed, versions, and what came of it
    questions.txt    a digest a line of each question that it, or its base, was trained on (`lm.checkpoints`)
    losses.jsonl     a line a step: {"step", "epoch", "loss", "learning_rate", "grad_norm"}
    loss.png         the same as a picture, where matplotlib is installed

beside the weights as Hugging Face has them: a whole model, or a LoRA adapter, with its tokeniser.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

from blendfilter.errors import BadArgument, RunLocked, RunMismatch
from blendfilter.files import json_line, lock, path_of, write_whole
from blendfilter.oracles.silver_making import read_recipe_file
from blendfilter.settings_diff import different_settings

FORMAT = 1
RECIPE = "recipe.json"
BEGUN = "training.json"
"""The recipe of a training that is not finished."""
LOCK = "training.lock"
LOSSES = "losses.jsonl"
PICTURE = "loss.png"
WINDOW = 20
"""Steps of a moving mean."""
NO_SETTINGS = ("versions", "result", "format")
"""Parts of a recipe that say how it went, not what was asked."""
_LOST = ("settings.loss_by",)
"""Settings of earlier versions: their finished models stay finished."""


def read_recipe(folder: str | Path, name: str = RECIPE) -> dict[str, Any]:
    """The recipe of a trained model; empty where there is none. Raises `BadData` for a file that is none of ours."""
    return read_recipe_file(Path(folder) / name, "trained model", "folder (out=)")


def write_recipe(folder: Path, recipe: Mapping[str, Any], name: str = RECIPE) -> None:
    """The recipe's file, whole or not at all."""
    write_whole(folder / name, [json_line({"format": FORMAT, **recipe}, indent=2)])


def new_folder(out: str | Path) -> Path:
    """Where weights go, `~` and all. Raises: BadArgument for what names no folder that can be made."""
    folder = path_of(out)
    if folder.name in ("", ".."):
        raise BadArgument(
            f"'{out}' names no new folder: give one that is made for the model (out=)"
        )
    return folder


def check_recipe(folder: Path, recipe: Mapping[str, Any], name: str = RECIPE) -> bool:
    """Whether the folder was made, or begun, by this very recipe; False where nothing is there.

    Raises:
        RunMismatch: another recipe, naming what differs. BadArgument: it holds something else.
    """
    known = read_recipe(folder, name)
    if not known:
        # one look at the folder: another process may begin it right now, and makes the lock first
        names = os.listdir(folder) if folder.is_dir() else []
        if (names and LOCK not in names) or folder.is_file():
            raise BadArgument(
                f"{folder} is there, and holds no trained model of ours: name another folder (out=)"
            )
        return False
    made = {part: value for part, value in known.items() if part not in NO_SETTINGS}
    wanted = json.loads(json.dumps(recipe))  # tuples become lists, as in the file
    ignored = _LOST if name == RECIPE else ()
    if differing := different_settings(made, wanted, ignored=ignored):
        raise RunMismatch(
            f"{folder} holds a model that was trained otherwise: {differing}. Name another folder (out=), or delete it"
        )
    return True


@contextmanager
def alone_in(
    folder: Path, recipe: Mapping[str, Any], out: Path, has_begun: Callable[[], bool]
) -> Iterator[None]:
    """Inside the block this process alone trains in the folder, by this recipe, towards the folder `out`.

    If the block ends by an error before `has_begun`, the folder goes: a corrected command is not refused for it.

    Raises:
        RunLocked: another process trains there, or has finished meanwhile. RunMismatch, BadArgument: as `check_recipe`.
    """
    check_recipe(folder, recipe, BEGUN)
    folder.mkdir(parents=True, exist_ok=True)
    fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    try:
        lock(fd, folder, "by another training: wait for it, or name another folder (out=)")
        # a finished training renames its folder, or removes it: the lock is then of a file that is gone
        if check_recipe(out, recipe) or not (folder / LOCK).exists():
            shutil.rmtree(folder, ignore_errors=True)  # made a moment ago
            raise RunLocked(f"{out} was finished by another training: give the command again")
        if not check_recipe(folder, recipe, BEGUN):
            write_recipe(folder, recipe, BEGUN)
        try:
            yield
        except BaseException:
            if not has_begun():
                shutil.rmtree(folder, ignore_errors=True)
            raise
    finally:
        os.close(fd)


def versions() -> dict[str, str]:
    """Of the packages that a training rests on."""
    names = ("blendfilter", "torch", "transformers", "peft", "accelerate")
    return {name: version(name) for name in names}


def draw_steps(values: Sequence[float], path: Path, label: str) -> None:
    """Values, one a step, with their moving mean as a picture; where matplotlib is installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    steps = range(1, len(values) + 1)
    means = [fmean(values[max(0, step - WINDOW) : step]) for step in steps]
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, values, ".", color="#767676", markersize=3, label="a step")
    axes.plot(steps, means, color="#0072B2", linewidth=1.5, label=f"mean of {WINDOW} steps")
    axes.set_xlabel("step")
    axes.set_ylabel(label)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120, metadata={"Software": None})

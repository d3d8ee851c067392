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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from blendfilter.errors import BadArgument, BadData, RunMismatch
from blendfilter.files import json_line, path_of, write_whole
from blendfilter.settings_diff import different_settings

FORMAT = 1
RECIPE = "recipe.json"
LOSSES = "losses.jsonl"
PICTURE = "loss.png"
NO_SETTINGS = ("versions", "result")
"""Parts of a recipe that say how it went, not what was asked."""


def read_recipe(folder: str | Path, name: str = RECIPE) -> dict[str, Any]:
    """The recipe of a trained model; empty where there is none. Raises `BadData` for a file that is none of ours."""
    path = Path(folder) / name
    try:
        recipe = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, OSError):
        recipe = None
    if not isinstance(recipe, dict) or recipe.get("format") != FORMAT:
        raise BadData(
            f"{path} is there, and is no recipe of a trained model: name another folder (--out)"
        )
    return recipe


def write_recipe(
    folder: Path, recipe: Mapping[str, Any], name: str = RECIPE, *, overwrite: bool = True
) -> None:
    """The recipe's file, whole or not at all. Raises `BadArgument` where there is one and `overwrite` is not set."""
    write_whole(
        folder / name, [json_line({"format": FORMAT, **recipe}, indent=2)], overwrite=overwrite
    )


def new_folder(out: str | Path) -> Path:
    """Where weights go, `~` and all. Raises: BadArgument for what names no folder that can be made."""
    folder = path_of(out)
    if folder.name in ("", ".."):
        raise BadArgument(
            f"'{out}' names no new folder: give one that is made for the model (--out)"
        )
    return folder


def check_recipe(folder: Path, recipe: Mapping[str, Any], name: str = RECIPE) -> bool:
    """Whether the folder was made, or begun, by this very recipe; False where nothing is there.

    Raises:
        RunMismatch: another recipe, naming what differs. BadArgument: it holds something else.
    """
    known = read_recipe(folder, name)
    if not known:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadArgument(
                f"{folder} is there, and holds no trained model of ours: name another folder (--out)"
            )
        return False
    made = {name: value for name, value in known.items() if name not in (*NO_SETTINGS, "format")}
    asked = json.loads(json.dumps(recipe))  # tuples become lists, as in the file
    if differing := different_settings(made, asked):
        raise RunMismatch(
            f"{folder} holds a model that was trained otherwise: {differing}. Name another folder (--out), or delete it"
        )
    return True

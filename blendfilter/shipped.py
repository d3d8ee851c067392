"""Compiled programs that ship with the package, `programs/TASK/FILTER.KIND.json`, each for one kind of model.

The kinds of models: `base` (prompts are sent raw), `small` (a chat model that does not follow a form that it is only
told), `chat`. A program ships where it gained on 200 questions or more that its search never saw, with a 95 % interval
above 0; its recipe says so under `gain`. A predictor of that filter shows its demonstrations to models of that kind,
unless it has its own, or another wording or template than the program was compiled for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import dspy

from blendfilter import resources
from blendfilter.errors import UnknownName

BASE, SMALL, CHAT = "base", "small", "chat"
KINDS = (BASE, SMALL, CHAT)
NO_PROGRAM = "none"
"""In place of a program: the prompt as it is."""


class ShippedStep(NamedTuple):
    """What one predictor says under a program: `program` is TASK/FILTER.KIND, `template` its name and digest."""

    program: str
    template: str
    instructions: str
    demos: list[dspy.Example]


class ShippedProgram(NamedTuple):
    """A program that ships: its name, its file, the steps by predictor, and the recipe."""

    name: str
    path: Path
    steps: Mapping[str, ShippedStep]
    recipe: Mapping[str, Any]

    @classmethod
    @lru_cache
    def at(cls, path: Path) -> ShippedProgram:
        """The program of a file in the package."""
        name = f"{path.parent.name}/{path.stem}"
        state = json.loads(path.read_bytes())
        recipe = state.pop("metadata")["recipe"]
        steps = {
            place: ShippedStep(
                name,
                recipe["templates"][place],
                saved["signature"]["instructions"],
                [dspy.Example(demo) for demo in saved["demos"]],
            )
            for place, saved in state.items()
        }
        return cls(name, path, steps, recipe)


def shipped_names() -> list[str]:
    """The names of all programs that ship: TASK/FILTER.KIND."""
    return [
        f"{path.parent.name}/{path.stem}"
        for kind in KINDS
        for path in sorted(resources.programs().glob(f"*/*.{kind}.json"))
    ]


def shipped_path(name: str) -> Path:
    """The file of a program that ships. Raises: UnknownName."""
    if name not in (names := shipped_names()):
        raise UnknownName.of("program", name, [*names, NO_PROGRAM])
    return resources.programs() / f"{name}.json"


def programs_for(filter: str, task: str, program: str | None) -> Mapping[str, ShippedProgram]:
    """The programs of a filter under a task, by kind of model; `program` names one for all kinds, or `none`.

    Raises: UnknownName.
    """
    if program == NO_PROGRAM:
        return {}
    if program is not None:
        return dict.fromkeys(KINDS, ShippedProgram.at(shipped_path(program)))
    folder = resources.programs() / task
    paths = {kind: folder / f"{filter}.{kind}.json" for kind in KINDS}
    return {kind: ShippedProgram.at(path) for kind, path in paths.items() if path.is_file()}

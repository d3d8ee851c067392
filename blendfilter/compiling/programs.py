"""Compiled programs as files: DSPy's state of every predictor, and the recipe, one JSON object.

    {"helpful": {"demos": […], "signature": {…}, …}, "metadata": {"dependency_versions": {…}, "recipe": {…}}}

In: a program and its recipe. Out: a file that is written whole or not at all, and a module that speaks as it says.
DSPy's own `module.load(path)` reads it too; `load_program` also checks that it was saved for this module. A model is
never part of it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dspy
import pydantic
from dspy.utils.saving import get_dependency_versions

from blendfilter.compiling.demos import wrong_demo
from blendfilter.compiling.recipe import FORMAT, Recipe, fields_of, kind_of, ruled_of, templates_of, worded_of
from blendfilter.errors import BadArgument, BadData, BlendFilterError, MissingFile
from blendfilter.files import write_whole

_AGAIN = "compile it again (blendfilter compile)"


def state_of(program: dspy.Module) -> dict[str, Any]:
    """DSPy's state of a program, without models."""
    state = {name: part.dump_state() for name, part in program.named_parameters()}
    for each in state.values():
        if isinstance(each, dict) and "lm" in each:
            each["lm"] = None
    return state


def save_program(program: dspy.Module, path: str | Path, recipe: Recipe) -> Path:
    """Write `program` with its recipe to `path`; the same program and recipe are the same bytes.

    Raises:
        BadArgument: `path` is a folder, or a demonstration holds what JSON cannot.
    """
    path = check_place(path)
    metadata = {"dependency_versions": get_dependency_versions(), "recipe": recipe.to_json()}
    text = json.dumps({**state_of(program), "metadata": metadata}, ensure_ascii=False, indent=2, default=_plain) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, [text.encode("utf-8", "backslashreplace")])
    return path


def check_place(path: str | Path) -> Path:
    """Where a program can be written, as far as one can tell. Raises: BadArgument."""
    path = Path(path)
    if path.is_dir():
        raise BadArgument(f"{path} is a folder: name a file for the program, such as {path / 'program.json'}")
    return path


def _plain(value: Any) -> Any:
    """A record of a demonstration as JSON, as DSPy itself saves it."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise BadArgument(f"a demonstration holds a {type(value).__name__}, which JSON cannot: give it as text")


def load_program(module: dspy.Module, path: str | Path) -> Recipe:
    """Have `module`, or the one part of it that the program was compiled for, speak as the program at `path` does.

    A filter's program goes into the method that holds such a filter.

    Raises:
        MissingFile: there is no such file. BadData: it is no program, or was compiled for another kind of module, for
            other predictors or fields, for other templates, under other rules, or in another task's wording.
    """
    state, recipe = read_program(path)
    part = _part_for(module, recipe, path)
    _check(part, recipe, path)
    _check_state(part, state, path)
    try:
        part.load_state(state)
    except BlendFilterError as error:
        raise BadData(f"{path}: {error}") from error
    except Exception as error:  # whatever DSPy makes of a file that somebody changed
        raise BadData(f"{path}: not a program's state ({type(error).__name__}: {error}): {_AGAIN}") from error
    part.compiled_by = recipe
    return recipe


def read_program(path: str | Path) -> tuple[dict[str, Any], Recipe]:
    """The state and the recipe of a saved program. Raises: MissingFile, BadData."""
    try:
        told = json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise MissingFile(f"no program at {path}: check the path, or make one (blendfilter compile)") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadData(f"{path}: cannot be read as a program ({error}): {_AGAIN}") from None
    metadata = told.pop("metadata", None) if isinstance(told, dict) else None
    recipe = metadata.get("recipe") if isinstance(metadata, dict) else None
    if not isinstance(recipe, Mapping):
        raise BadData(f"{path}: holds no recipe, so nobody knows what it was compiled for: {_AGAIN}")
    if recipe.get("format") != FORMAT:
        raise BadData(f"{path}: a program of format {recipe.get('format')!r}, this version reads {FORMAT}: {_AGAIN}")
    try:
        return told, Recipe.of_json(recipe)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise BadData(f"{path}: its recipe is not whole ('{name}': {first['msg']}): {_AGAIN}") from None


def recipes_in(module: dspy.Module) -> list[Recipe]:
    """The recipes of the programs that were loaded into a module and its parts."""
    loaded = (getattr(part, "compiled_by", None) for _, part in module.named_sub_modules())
    return [recipe for recipe in loaded if isinstance(recipe, Recipe)]


def _part_for(module: dspy.Module, recipe: Recipe, path: str | Path) -> dspy.Module:
    """The module itself, or the one part of it that is of the program's kind."""
    parts = [part for _, part in module.named_sub_modules() if isinstance(part, dspy.Module)]
    found = [part for part in parts if kind_of(part) == recipe.module]
    if found and (len(found) == 1 or found[0] is module):
        return found[0]
    if found:
        raise BadData(
            f"{path}: compiled for one {recipe.module}, and this {kind_of(module)} holds {len(found)}: load it into "
            "each that shall speak as it says (load_program(module.part, …))"
        )
    asking = [part for part in parts if list(part.named_predictors()) and not isinstance(part, dspy.Predict)]
    held = ", ".join(dict.fromkeys(map(kind_of, asking)))
    raise BadData(
        f"{path}: compiled for {recipe.module}, and this is {held or kind_of(module)}: name the method, or the filter "
        "(--filter), that it was compiled for"
    )


def _check(part: dspy.Module, recipe: Recipe, path: str | Path) -> None:
    own = fields_of(part)
    for name in {**recipe.fields, **own}:
        if recipe.fields.get(name) != own.get(name):
            told, have = (" ".join(each.get(name) or ["no such predictor"]) for each in (recipe.fields, own))
            raise BadData(
                f"{path}: '{name}' was compiled for the fields {told}, and this {kind_of(part)} has {have}: {_AGAIN}"
            )
    templates = templates_of(part)
    for name, template in recipe.templates.items():
        told, have = (each.partition(" ")[0] for each in (template, templates.get(name, "")))
        if have and told != have:
            raise BadData(
                f"{path}: '{name}' was compiled for {told.rpartition('/')[2]} (the template {told}), and this "
                f"{kind_of(part)} speaks of {have.rpartition('/')[2]} ({have}): name the filter or the method that it "
                f"was compiled for, or {_AGAIN}"
            )
        if templates.get(name) != template:
            raise BadData(
                f"{path}: '{name}' was compiled for the template {template}, and this {kind_of(part)} speaks through "
                f"{templates.get(name, 'none')}: {_AGAIN}, or leave out what changed it (--prompts, another --filter)"
            )
    _check_wording(part, recipe, path)


def _check_wording(part: dspy.Module, recipe: Recipe, path: str | Path) -> None:
    worded, ruled = worded_of(part), ruled_of(part)
    for name in {**recipe.worded, **worded}:
        if recipe.worded.get(name) != worded.get(name):
            told, have = (each.get(name, "nothing of the kind") for each in (recipe.worded, worded))
            if name in ruled:
                told = recipe.worded.get(name, "rules that it does not tell")
                raise BadData(
                    f"{path}: '{name}' was compiled under {told}, and here it goes by {have}: give the rules that it "
                    f"was compiled under (--rule, --rules; rules= in Python), or {_AGAIN}"
                )
            raise BadData(
                f"{path}: compiled in a wording where '{name}' has {told}, and here it has {have}: take the wording of "
                f"{recipe.task or 'its task'} (eval of that task, ask --wording, task= in Python), or {_AGAIN}"
            )


def _check_state(part: dspy.Module, state: Mapping[str, Any], path: str | Path) -> None:
    """A file may hold what DSPy would take over as it stands, and nothing else."""
    if unknown := set(state) - {name for name, _ in part.named_parameters()}:
        raise BadData(f"{path}: not a program's state ('{min(unknown)}' is no part of {kind_of(part)}): {_AGAIN}")
    for name, predictor in part.named_predictors():
        if wrong := _wrong_in(state.get(name), predictor):
            raise BadData(f"{path}: not a program's state ('{name}' {wrong}): {_AGAIN}")
        for number, demo in enumerate(state[name]["demos"], 1):
            if wrong := wrong_demo(demo, predictor):
                raise BadData(f"{path}: demonstration {number} of '{name}' {wrong}: correct it, or {_AGAIN}")


def _wrong_in(said: Any, predictor: dspy.Predict) -> str:
    if not isinstance(said, Mapping):
        return "is missing"
    own = predictor.dump_state()
    if unknown := [key for key in said if key not in {*own, "fields"}]:  # it would become an attribute
        return f"holds '{unknown[0]}', which no predictor saves"
    if missing := [key for key in own if key not in said]:
        return f"has no '{missing[0]}'"
    if said["lm"]:
        return "names a model, which a program never does"
    demos, signature = said["demos"], said["signature"]
    if not (isinstance(demos, list) and all(isinstance(demo, Mapping) for demo in demos)):
        return "has demonstrations that are no objects"
    told = signature.get("instructions") if isinstance(signature, Mapping) else None
    return "" if isinstance(told, str) else "has no instructions"

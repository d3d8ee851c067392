"""Compiled programs as files: DSPy's state of every predictor, and the recipe, one JSON object.

    {"helpful": {"demos": […], "signature": {…}, …}, "metadata": {"dependency_versions": {…}, "recipe": {…}}}

The recipe is how the program was made, so that a score comes with how it was reached. It has no clock time, path or
address: the same inputs give the same bytes. DSPy's own `module.load(path)` reads the file too; `load_program` also
checks that it was saved for this module. A model is never part of it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dspy
import pydantic
from dspy.utils.saving import get_dependency_versions

from blendfilter.asking import Ask
from blendfilter.compiling.demos import wrong_demo
from blendfilter.errors import BadArgument, BadData, BlendFilterError, MissingFile
from blendfilter.files import json_line, write_whole
from blendfilter.filters.cdit import Judge
from blendfilter.text import normalize_answer

FORMAT = 1
"""Of the saved file; another one is refused."""
_AGAIN = "compile it again (blendfilter compile)"


# --- the recipe -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldOutScore:
    """A mean of `n` questions' scores; `failed` of them got no answer and count as 0."""

    value: float
    n: int
    failed: int = 0


@dataclass(frozen=True)
class ProgramRecipe:
    """How a program was compiled.

    Attributes:
        module: the kind of module; `fields`: its predictors' field names; `templates`: their templates and digests.
        task, measure: what the data and the metric were, as far as it is known.
        optimizer, settings: the optimiser's name, what it was given, the metric's weights and what was dropped.
        lm, teacher: names of the models. seed: of the split and the optimiser.
        before, after: scores on questions that the optimiser never saw.
        data: fingerprints and sizes of the training and the held-back set.
        worded: what the task's wording sets beside the prompts, and a judge's rules, by part (`worded_of`).
        trained_on: digests of all their questions, and of those that the student had been compiled on before; an
            evaluation on one of them is refused.
        versions: of blendfilter and dspy. note: what a reader must know.
    """

    module: str
    task: str
    measure: str
    optimizer: str
    settings: Mapping[str, Any]
    lm: str
    teacher: str
    seed: int
    before: HeldOutScore
    after: HeldOutScore
    data: Mapping[str, Any]
    fields: Mapping[str, list[str]]
    templates: Mapping[str, str]
    worded: Mapping[str, str]
    trained_on: tuple[str, ...]
    versions: Mapping[str, str]
    note: str = ""
    format: int = FORMAT


def kind_of(module: dspy.Module) -> str:
    """A module's kind: its class, with its package where it is not one of ours."""
    kind = type(module)
    ours = kind.__module__.partition(".")[0] == "blendfilter"
    return kind.__qualname__ if ours else f"{kind.__module__}:{kind.__qualname__}"


def fields_of(module: dspy.Module) -> dict[str, list[str]]:
    """Every predictor's field names, inputs first."""
    return {
        name: [*each.signature.input_fields, *each.signature.output_fields] for name, each in module.named_predictors()
    }


def templates_of(module: dspy.Module) -> dict[str, str]:
    """The template of every predictor that speaks through one, and the digest of its text."""
    return {name: f"{each.template.name} {each.template.digest}" for name, each in _asks(module)}


def _asks(module: dspy.Module) -> list[tuple[str, Ask]]:
    return [(name, each) for name, each in module.named_predictors() if isinstance(each, Ask)]


def worded_of(module: dspy.Module) -> dict[str, str]:
    """What DSPy's state leaves out: what is read of an answer, a filter's switches, a judge's rules.

    >>> from blendfilter.filters.filco import FilCoFilter
    >>> worded_of(FilCoFilter())
    {'FilCoFilter': 'may keep nothing'}
    """
    rooms = {name: each.room for name, each in _asks(module) if each.room}
    switched = {name: ", ".join(switches) for name, each in _parts(module) if (switches := _switches(each))}
    return rooms | switched | ruled_of(module)


def ruled_of(module: dspy.Module) -> dict[str, str]:
    """The rules of every judge, and a digest of them: a verdict given under one rule misleads under another.

    >>> from blendfilter.filters.cdit import CDITFilter
    >>> list(ruled_of(CDITFilter(rules=["phi2", "phi1"])))
    ['judge']
    """
    ruled = {}
    for name, part in _parts(module):
        if isinstance(part, Judge):
            rules = sorted(part.rules, key=lambda rule: rule.name)  # all of them must be met, in whatever order
            lines = "\n".join(rule.line for rule in rules)
            digest = hashlib.sha256(lines.encode("utf-8", "surrogatepass")).hexdigest()[:8]
            ruled[name] = f"the rules {'+'.join(rule.name for rule in rules)} ({digest})"
    return ruled


def _parts(module: dspy.Module) -> Iterator[tuple[str, Any]]:
    for path, each in module.named_sub_modules():
        yield path.removeprefix("self").strip(".") or kind_of(each), each


def _switches(part: Any) -> list[str]:
    words = {"offer_none": ("may keep nothing", "keeps something"), "ask_topic": ("asks the topic", "asks no topic")}
    values = {name: getattr(part, name, None) for name in words}
    return [words[name][not value] for name, value in values.items() if isinstance(value, bool)]


def question_digest(question: str) -> str:
    """16 hex digits of a question's words: another spelling of it is the same question.

    >>> question_digest("Who keeps the light?") == question_digest("who keeps THE light")
    True
    """
    return hashlib.sha256(normalize_answer(question).encode()).hexdigest()[:16]


def question_in(example: Mapping[str, Any]) -> str:
    """What distinguishes an example from others: its question; without one, all its fields."""
    question = example.get("question")
    return question if isinstance(question, str) and question else _canonical(example)


def fingerprint(examples: Iterable[dspy.Example]) -> str:
    """16 hex digits over all fields of the examples, in order."""
    digest = hashlib.sha256()
    for each in examples:
        digest.update(_canonical(each).encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()[:16]


def _canonical(example: Mapping[str, Any]) -> str:
    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.asdict(value)
        if isinstance(value, set | frozenset):
            return sorted(map(str, value))
        if isinstance(value, Mapping):
            return dict(value)
        return type(value).__qualname__ if "object at 0x" in repr(value) else str(value)

    return json.dumps(dict(example.items()), sort_keys=True, ensure_ascii=False, default=plain)


# --- saving -----------------------------------------------------------------------------------------------------------


def state_of(program: dspy.Module) -> dict[str, Any]:
    """DSPy's state of a program, without models."""
    state = {name: part.dump_state() for name, part in program.named_parameters()}
    for each in state.values():
        if isinstance(each, dict) and "lm" in each:
            each["lm"] = None
    return state


def save_program(program: dspy.Module, path: str | Path, recipe: ProgramRecipe) -> Path:
    """Write `program` with its recipe to `path`; the same program and recipe are the same bytes.

    Raises:
        BadArgument: `path` is a folder, or a demonstration has a value that JSON cannot express.
    """
    path = check_place(path)
    metadata = {"dependency_versions": get_dependency_versions(), "recipe": dataclasses.asdict(recipe)}
    written = json_line({**state_of(program), "metadata": metadata}, indent=2, default=_plain)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, [written])
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


# --- loading ----------------------------------------------------------------------------------------------------------


def load_program(module: dspy.Module, path: str | Path) -> ProgramRecipe:
    """Load the program at `path` into `module`, or into the one part of it that it was compiled for.

    A filter's program goes into a method with such a filter.

    Raises:
        MissingFile: there is no such file. BadData: it is no program, or was compiled for another kind of module, for
            other predictors or fields, for other templates, under other rules, or in another task's wording.
    """
    state, recipe = read_program(path)
    part = _part_for(module, recipe, path)
    _check_recipe(part, recipe, path)
    _check_state(part, state, path)
    try:
        part.load_state(state)
    except BlendFilterError as error:
        raise BadData(f"{path}: {error}") from error
    except Exception as error:  # whatever DSPy makes of a file that somebody changed
        raise BadData(f"{path}: not a program's state ({type(error).__name__}: {error}): {_AGAIN}") from error
    part.compiled_by = recipe
    return recipe


def read_program(path: str | Path) -> tuple[dict[str, Any], ProgramRecipe]:
    """The state and the recipe of a saved program. Raises: MissingFile, BadData."""
    try:
        content = json.loads(Path(path).read_bytes())
    except FileNotFoundError:
        raise MissingFile(f"no program at {path}: check the path, or make one (blendfilter compile)") from None
    except (OSError, ValueError, RecursionError) as error:
        raise BadData(f"{path}: cannot be read as a program ({error}): {_AGAIN}") from None
    metadata = content.pop("metadata", None) if isinstance(content, dict) else None
    recipe = metadata.get("recipe") if isinstance(metadata, dict) else None
    if not isinstance(recipe, Mapping):
        raise BadData(f"{path}: holds no recipe, so nobody knows what it was compiled for: {_AGAIN}")
    if recipe.get("format") != FORMAT:
        raise BadData(f"{path}: a program of format {recipe.get('format')!r}, this version reads {FORMAT}: {_AGAIN}")
    try:
        return content, pydantic.TypeAdapter(ProgramRecipe).validate_python(recipe)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"]))
        raise BadData(f"{path}: its recipe is not whole ('{name}': {first['msg']}): {_AGAIN}") from None


def recipes_in(module: dspy.Module) -> list[ProgramRecipe]:
    """The recipes of the programs that were loaded into a module and its parts."""
    loaded = (getattr(part, "compiled_by", None) for _, part in module.named_sub_modules())
    return [recipe for recipe in loaded if isinstance(recipe, ProgramRecipe)]


def _part_for(module: dspy.Module, recipe: ProgramRecipe, path: str | Path) -> dspy.Module:
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
    kinds = ", ".join(dict.fromkeys(map(kind_of, asking)))
    raise BadData(
        f"{path}: compiled for {recipe.module}, and this is {kinds or kind_of(module)}: name the method, or the filter "
        "(--filter), that it was compiled for"
    )


def _check_recipe(part: dspy.Module, recipe: ProgramRecipe, path: str | Path) -> None:
    """Raise `BadData` where `part` has other fields, templates, rules or another wording than the recipe."""
    kind, own = kind_of(part), fields_of(part)
    for name in {**recipe.fields, **own}:
        if recipe.fields.get(name) != own.get(name):
            then, now = (" ".join(each.get(name) or ["no such predictor"]) for each in (recipe.fields, own))
            raise BadData(f"{path}: '{name}' was compiled for the fields {then}, and this {kind} has {now}: {_AGAIN}")
    templates = templates_of(part)
    for name, template in recipe.templates.items():
        then, now = (each.partition(" ")[0] for each in (template, templates.get(name, "")))
        if now and then != now:
            raise BadData(
                f"{path}: '{name}' was compiled for {then.rpartition('/')[2]} (the template {then}), and this "
                f"{kind} speaks of {now.rpartition('/')[2]} ({now}): name the filter or the method that it "
                f"was compiled for, or {_AGAIN}"
            )
        if templates.get(name) != template:
            raise BadData(
                f"{path}: '{name}' was compiled for the template {template}, and this {kind} speaks through "
                f"{templates.get(name, 'none')}: {_AGAIN}, or leave out what changed it (--prompts, another --filter)"
            )
    worded, ruled = worded_of(part), ruled_of(part)
    for name in {**recipe.worded, **worded}:
        if recipe.worded.get(name) == worded.get(name):
            continue
        then, now = (each.get(name, "nothing of the kind") for each in (recipe.worded, worded))
        if name in ruled:
            then = recipe.worded.get(name, "rules that it does not tell")
            raise BadData(
                f"{path}: '{name}' was compiled under {then}, and here it goes by {now}: give the rules that it "
                f"was compiled under (--rule, --rules; rules= in Python), or {_AGAIN}"
            )
        raise BadData(
            f"{path}: compiled in a wording where '{name}' has {then}, and here it has {now}: take the wording of "
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


def _wrong_in(saved: Any, predictor: dspy.Predict) -> str:
    if not isinstance(saved, Mapping):
        return "is missing"
    own = predictor.dump_state()
    if unknown := [key for key in saved if key not in {*own, "fields"}]:  # it would become an attribute
        return f"holds '{unknown[0]}', which no predictor saves"
    if missing := [key for key in own if key not in saved]:
        return f"has no '{missing[0]}'"
    if saved["lm"]:
        return "names a model, which a program never does"
    demos, signature = saved["demos"], saved["signature"]
    if not (isinstance(demos, list) and all(isinstance(demo, Mapping) for demo in demos)):
        return "has demonstrations that are no objects"
    instructions = signature.get("instructions") if isinstance(signature, Mapping) else None
    return "" if isinstance(instructions, str) else "has no instructions"

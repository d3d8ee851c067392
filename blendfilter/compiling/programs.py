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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import dspy
import pydantic

from blendfilter.asking import Ask
from blendfilter.dspy_surface import dependency_versions
from blendfilter.errors import BadArgument, BadData, BlendFilterError, MissingFile
from blendfilter.files import json_line, path_of, read_whole, write_whole
from blendfilter.filters.cdit import Judge
from blendfilter.shipped import shipped_names, shipped_path
from blendfilter.statistics import ALPHA, mcnemar_p, paired_bootstrap

FORMAT = 1
SHIPPED_N = 200
"""Questions held back at the least where a program ships with the package."""
_AGAIN = "compile it again (blendfilter compile)"


# --- the recipe -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HeldOutScore:
    """A mean of `n` questions' scores; `failed` of them got no answer and count as 0."""

    value: float
    n: int
    failed: int = 0


@dataclass(frozen=True)
class PairedScores:
    """The same held-back questions before and after: the mean difference, and for how many the score rose or fell."""

    difference: float
    better: int
    worse: int

    @classmethod
    def of(cls, before: Sequence[float], after: Sequence[float]) -> PairedScores:
        """Those of two lists of scores, question by question.

        >>> PairedScores.of([0.0, 1.0, 0.5, 0.0], [1.0, 1.0, 0.25, 0.0])
        PairedScores(difference=0.1875, better=1, worse=1)
        """
        differences = [new - old for old, new in zip(before, after, strict=True)]
        rose = sum(difference > 0 for difference in differences)
        fell = sum(difference < 0 for difference in differences)
        return cls(round(fmean(differences), 6), rose, fell)

    @property
    def p(self) -> float:
        """Two-sided p of the exact sign test: of "a score rises as easily as it falls".

        >>> PairedScores(0.2, better=5, worse=0).p, PairedScores(0.2, better=6, worse=0).p
        (0.0625, 0.03125)
        """
        return mcnemar_p(self.worse, self.better)


@dataclass(frozen=True)
class Gain:
    """A paired difference in `metric` over `n` questions held back, `after` less `before`, with its 95 % interval."""

    metric: str
    n: int
    before: float
    after: float
    low: float
    high: float

    @classmethod
    def of(
        cls, metric: str, before: Sequence[float], after: Sequence[float], seed: int
    ) -> Gain:
        """That of two lists of scores, question by question: percentile bootstrap."""
        test = paired_bootstrap(before, after, seed=seed)
        figures = (fmean(before), fmean(after), test.low, test.high)
        return cls(metric, len(before), *(round(figure, 6) for figure in figures))

    @property
    def ships(self) -> bool:
        """Whether the package would ship a program for it: 200 questions or more, and an interval above 0."""
        return self.n >= SHIPPED_N and self.low > 0


@dataclass(frozen=True)
class ProgramRecipe:
    """How a program was compiled."""

    module: str  # its kind
    task: str
    measure: str
    optimizer: str
    # what the optimiser was given, the metric's weights, and what was dropped
    settings: Mapping[str, Any]
    lm: str
    teacher: str
    seed: int  # of the split and the optimiser
    before: HeldOutScore  # on questions that the optimiser never saw, as `after`
    after: HeldOutScore
    data: Mapping[str, Any]  # fingerprints and sizes of the training and the held-back set
    fields: Mapping[str, list[str]]  # of every predictor
    templates: Mapping[str, str]  # of every predictor, with their digests
    # what the task's wording sets beside the prompts, and a judge's rules, by part
    worded: Mapping[str, str]
    trained_on: tuple[str, ...]
    """Digests of all questions that it was compiled on, also before: an evaluation on one of them is refused."""
    versions: Mapping[str, str]
    note: str = ""
    paired: PairedScores | None = None  # None in programs of earlier versions
    outcome: str = ""  # what `before`, `after` and `paired` come to, in words
    kind: str = ""  # of the model that it was compiled for (`blendfilter.shipped`)
    gain: Gain | None = None
    # the program (`after`) beside a selection without a model (`before`): BM25's first, as many as the program kept
    beside: Gain | None = None
    format: int = FORMAT


def outcome_of(before: HeldOutScore, after: HeldOutScore, paired: PairedScores) -> str:
    """Whether a program gained anything on the questions held back, in one line."""
    scores = f"before {before.value:.3f}, after {after.value:.3f}"
    counted = f"{paired.difference:+.3f} a question; of {after.n}, {paired.better} better, {paired.worse} worse"
    if after.value > before.value and paired.p < ALPHA:
        return f"{scores}: gained {counted}"
    if after.value > before.value:
        return f"{scores}: no sure gain ({counted}; chance may do as much)"
    return f"{scores}: nothing gained; not better than the prompt as it is ({counted})"


def kind_of(module: dspy.Module) -> str:
    """A module's kind: its class, with its package where it is not one of ours."""
    kind = type(module)
    ours = kind.__module__.partition(".")[0] == "blendfilter"
    return kind.__qualname__ if ours else f"{kind.__module__}:{kind.__qualname__}"


def fields_of(module: dspy.Module) -> dict[str, list[str]]:
    """Every predictor's field names, inputs first."""
    return {
        name: [*each.signature.input_fields, *each.signature.output_fields]
        for name, each in module.named_predictors()
    }


def templates_of(module: dspy.Module) -> dict[str, str]:
    """The template of every predictor that speaks through one, and the digest of its text."""
    return {
        name: f"{each.template.name} {each.template.digest}" for name, each in _asks(module)
    }


def _asks(module: dspy.Module) -> list[tuple[str, Ask]]:
    return [(name, each) for name, each in module.named_predictors() if isinstance(each, Ask)]


_SWITCHES = {
    "offer_none": ("may keep nothing", "keeps something"),
    "ask_topic": ("asks the topic", "asks no topic"),
}


def worded_of(module: dspy.Module) -> dict[str, str]:
    """What DSPy's state leaves out: what is read of an answer, a filter's switches, a judge's rules with a digest."""
    worded = {name: each.room for name, each in _asks(module) if each.room}
    for path, part in module.named_sub_modules():
        name = path.removeprefix("self").strip(".") or kind_of(part)
        switches = [(words, getattr(part, switch, None)) for switch, words in _SWITCHES.items()]
        if switched := [
            words[not value] for words, value in switches if isinstance(value, bool)
        ]:
            worded[name] = ", ".join(switched)
        if isinstance(part, Judge):  # a verdict given under one rule misleads under another
            # all of them must be met, in whatever order
            rules = sorted(part.rules, key=lambda rule: rule.name)
            digest = _digest("\n".join(rule.line for rule in rules))[:8]
            worded[name] = f"the rules {'+'.join(rule.name for rule in rules)} ({digest})"
    return worded


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def question_in(example: Mapping[str, Any]) -> str:
    """What distinguishes an example from others: its question; without one, all its fields."""
    question = example.get("question")
    return question if isinstance(question, str) and question else _canonical(example)


def fingerprint(examples: Iterable[dspy.Example]) -> str:
    """16 hex digits over all fields of the examples, in order."""
    return _digest("".join(f"{_canonical(example)}\n" for example in examples))


def _canonical(example: Mapping[str, Any]) -> str:
    def plain(value: Any) -> Any:
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return dataclasses.asdict(value)
        return dict(value) if isinstance(value, Mapping) else str(value)

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
    """Write `program` with its recipe: the same ones, the same bytes. Raises `BadArgument` where `path` is a folder."""
    path = check_place(path)
    metadata = {
        "dependency_versions": dependency_versions(),
        "recipe": dataclasses.asdict(recipe),
    }
    written = json_line(
        {**state_of(program), "metadata": metadata}, indent=2, default=dataclasses.asdict
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, [written])
    return path


def check_place(path: str | Path) -> Path:
    """Raise `BadArgument` where no program can be written."""
    path = path_of(path)
    if path.is_dir():
        raise BadArgument(
            f"{path} is a folder: name a file for the program, such as {path / 'program.json'}"
        )
    return path


# --- loading ----------------------------------------------------------------------------------------------------------


def load_program(module: dspy.Module, path: str | Path) -> ProgramRecipe:
    """Load the program at `path` into `module`, or into the one part of it that it was compiled for.

    A filter's program goes into a method with such a filter. `path` may be the name of a program that ships with the
    package (`nq/filco.small`).

    Raises:
        MissingFile: there is no such file. BadData: it is no program, or was compiled for another kind of module, for
            other predictors or fields, for other templates, under other rules, or in another task's wording.
    """
    if str(path) in shipped_names():
        path = shipped_path(str(path))
    state, recipe = read_program(path)
    part = _part_for(module, recipe, path)
    _check_recipe(part, recipe, path)
    _check_state(part, state, path)
    try:
        part.load_state(state)
    except BlendFilterError as error:
        raise BadData(f"{path}: {error}") from error
    except Exception as error:  # whatever DSPy makes of a file that somebody changed
        raise BadData(
            f"{path}: not a program's state ({type(error).__name__}: {error}): {_AGAIN}"
        ) from error
    part.compiled_by = recipe
    return recipe


def read_program(path: str | Path) -> tuple[dict[str, Any], ProgramRecipe]:
    """The state and the recipe of a saved program. Raises: MissingFile, BadData."""
    try:
        content = json.loads(read_whole(path))
        recipe = content.pop("metadata", {}).get("recipe")
    except MissingFile:
        raise MissingFile(
            f"no program at {path}: check the path, make one (blendfilter compile), or name one that ships "
            f"({', '.join(shipped_names()) or 'there is none'})"
        ) from None
    # another kind of value among the last ones
    except (OSError, ValueError, RecursionError, AttributeError, TypeError) as error:
        raise BadData(f"{path}: cannot be read as a program ({error}): {_AGAIN}") from None
    if not isinstance(recipe, Mapping):
        if isinstance(content.get("demos"), list):
            raise BadData(
                f"{path}: a task's wording, which is used without being named, and no compiled program: leave it out"
            )
        raise BadData(
            f"{path}: holds no recipe, so nobody knows what it was compiled for: {_AGAIN}"
        )
    if recipe.get("format") != FORMAT:
        raise BadData(
            f"{path}: a program of format {recipe.get('format')!r}, this version reads {FORMAT}: {_AGAIN}"
        )
    try:
        return content, pydantic.TypeAdapter(ProgramRecipe).validate_python(recipe)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadData(
            f"{path}: its recipe is not whole ({first['loc']}: {first['msg']}): {_AGAIN}"
        ) from None


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
    raise BadData(
        f"{path}: compiled for {recipe.module}, and this is {kind_of(module)}: name the method, or the filter "
        "(filter=), that it was compiled for"
    )


def _check_recipe(part: dspy.Module, recipe: ProgramRecipe, path: str | Path) -> None:
    """Raise `BadData` where `part` has other fields, templates, rules or another wording than the recipe."""
    wording = (
        f"take the wording of {recipe.task or 'its task'} (eval of that task, ask wording=)"
    )
    saved_fields, own_fields = (
        {name: " ".join(names) for name, names in each.items()}
        for each in (recipe.fields, fields_of(part))
    )
    for kind, saved, own, next_move in (
        (
            "the fields ",
            saved_fields,
            own_fields,
            "name the filter or the method that it was compiled for",
        ),
        (
            "the template ",
            recipe.templates,
            templates_of(part),
            "leave out what changed it (prompts=, another filter=)",
        ),
        (
            "",
            recipe.worded,
            worded_of(part),
            f"{wording} and the rules (rule=, rules=) that it was compiled under",
        ),
    ):
        for name in {**saved, **own}:
            then, now = (
                f"{kind}{each[name]}" if name in each else "none" for each in (saved, own)
            )
            if then != now:
                raise BadData(
                    f"{path}: '{name}' was compiled with '{then}', and here it has '{now}': {next_move}, or {_AGAIN}"
                )


def _check_state(part: dspy.Module, state: Mapping[str, Any], path: str | Path) -> None:
    """A file may hold what DSPy would take over as it stands, and nothing else: it would become an attribute."""
    if unknown := set(state) - {name for name, _ in part.named_parameters()}:
        raise BadData(
            f"{path}: not a program's state ('{min(unknown)}' is no part of {kind_of(part)}): {_AGAIN}"
        )
    for name, predictor in part.named_predictors():
        saved = state.get(name)
        if not isinstance(saved, dict) or saved.keys() ^ predictor.dump_state().keys():
            raise BadData(
                f"{path}: not a program's state ('{name}' is missing, or holds other entries than a predictor saves): "
                f"{_AGAIN}"
            )
        if saved["lm"]:
            raise BadData(
                f"{path}: '{name}' names a model, which a program never does: {_AGAIN}"
            )

"""What a run is made with: the settings that `run.json` has and that every later session must repeat.

For a replay they also stand in for an index or a model that is gone (`RecordedIndex`, `recorded_model`).
"""

from __future__ import annotations

import functools
import inspect
import platform
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from difflib import get_close_matches
from importlib.metadata import version
from itertools import chain
from operator import itemgetter
from pathlib import Path, PurePath
from types import CellType
from typing import Any

import dspy

from blendfilter.asking import SHORT_ROOM, Ask, reply_tokens_of
from blendfilter.compiling.programs import recipes_in
from blendfilter.dspy_surface import configured_index
from blendfilter.errors import AskedWrong, BadArgument, EmptyData, Leak, ReplayMiss
from blendfilter.evaluation.run import Run
from blendfilter.filters.base import filter_predictors, own_filter_lm
from blendfilter.filters.cdit import Judge
from blendfilter.filters.written import WrittenFilter, recipe_of_answerer
from blendfilter.journal import digest
from blendfilter.lm.checkpoints import Checkpoint, trained_on
from blendfilter.lm.huggingface import could_be, is_hugging_face
from blendfilter.lm.in_process import LOCAL, remembered
from blendfilter.lm.model import ConnectedLM
from blendfilter.modules.base import Method
from blendfilter.prompting import TemplateAdapter, questions_of
from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.stored import Stored
from blendfilter.run_context import connected_lms, lms_of
from blendfilter.tasks.base import Questions
from blendfilter.text import folded, normalize_answer, question_digest
from blendfilter.version import VERSION

_NOT_USERS = ("blendfilter", "dspy", "builtins", "abc", "typing")


def settings_of(
    method: dspy.Module,
    questions: Questions,
    lm: ConnectedLM,
    *,
    seed: int,
    filter_lm: ConnectedLM | None = None,
    name: str | None = None,
    repeats: int = 1,
) -> dict[str, Any]:
    """The settings of a run, as JSON; `repeats` are named where there are several."""
    if filter_lm is None and isinstance(own_lm := own_filter_lm(method), ConnectedLM):
        filter_lm = own_lm
    of_filter = filter_predictors(method) if filter_lm is not None else ()
    own = {
        label: _model(model)
        for label, model in connected_lms(method).items()
        if label not in of_filter
    }
    known = (
        getattr(method, "method_name", None)
        or f"{type(method).__module__}:{type(method).__qualname__}"
    )
    code = code_digest(method)
    own_metrics = {
        name: digest(_made_of(each))[:12] for name, each in questions.task.functions.items()
    }
    retrievers = []
    for index in retrievers_of(method):
        info = index.info()  # one behind an address is the same index
        kind = str(info["of"] if info["kind"] == "remote" else info["kind"])
        retrievers.append({"kind": kind, "fingerprint": index.fingerprint})
    return {
        "task": questions.task.name,
        "metrics": list(questions.task.metrics),
        **({"metrics_code": own_metrics} if own_metrics else {}),
        "data": {
            "source": questions.source,
            "fingerprint": questions.fingerprint,
            "n": len(questions),
            **({"shard": questions.part._asdict()} if questions.part else {}),
        },
        "method": {
            "name": name or str(known),
            "arguments": method.arguments() if isinstance(method, Method) else {},
            "program": program_digest(method),
            **reply_tokens_of(method),
            **prompts_of(method),
            **({"code": code} if code else {}),
        },
        "lm": {
            **_model(lm),
            **({} if filter_lm is None else {"filter": _model(filter_lm)}),
            **({"of": own} if own else {}),
        },
        "retrievers": retrievers,
        "seed": seed,
        **({"repeats": repeats} if repeats > 1 else {}),
    }


def versions() -> dict[str, str]:
    """What a run was made with."""
    packages = {package: version(package) for package in ("dspy", "openai", "bm25s")}
    return {"blendfilter": VERSION, "python": platform.python_version(), **packages}


def _model(lm: ConnectedLM) -> dict[str, Any]:
    identity = {
        key: _given(value) if isinstance(value, Mapping) else value
        for key, value in lm.identity.items()
    }
    named = {key: value for key, value in identity.items() if value}
    return {"name": lm.name, **named, "parameters": _given(lm.kwargs)}


def _given(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def code_digest(method: dspy.Module) -> str:
    """12 hex digits over the source and the plain attributes of modules that are not this package's or DSPy's.

    A user edits a method and runs it again: that is another method. Empty where every part is ours or DSPy's.
    """
    parts = [
        (name, source, {key: value for key, value in vars(module).items() if _is_plain(value)})
        for name, module in method.named_sub_modules()
        if isinstance(module, dspy.Module) and (source := _users_source(type(module)))
    ]
    return digest(parts)[:12] if parts else ""


def _users_source(kind: type) -> list[str]:
    """The source of a class and of those it builds on; empty where it is this package's or DSPy's."""
    users = [base for base in kind.__mro__ if base.__module__.split(".")[0] not in _NOT_USERS]
    return [_source(base) for base in users if kind in users]


def _source(made: Any) -> str:
    """The source of a class or a function; of one that was typed into a console its name is all there is."""
    try:
        return inspect.getsource(made)
    except (OSError, TypeError):
        named = made if hasattr(made, "__qualname__") else type(made)
        return f"{named.__module__}.{named.__qualname__}"


def _made_of(made: Any, within: tuple[Any, ...] = (), *, attribute: bool = False) -> Any:
    """What a metric is made of, as JSON: source, and the values in its closure, defaults, arguments and attributes.

    A `dspy.Module` counts as a method does, a model by its name, an `attribute` that is no plain value by its class.
    """
    if made is None or isinstance(made, str | int | float | bytes | re.Pattern | PurePath):
        return repr(made)
    if any(made is outer for outer in within):  # a function that calls itself
        return ""
    part = functools.partial(_made_of, within=(*within, made), attribute=attribute)
    parts: Any
    if isinstance(made, Mapping):
        parts = sorted(([repr(key), part(value)] for key, value in made.items()), key=itemgetter(0))
    elif isinstance(made, list | tuple):
        parts = [*map(part, made)]
    elif isinstance(made, Set):
        parts = sorted(map(repr, made))
    elif isinstance(made, functools.partial):
        parts = [*map(part, (made.func, made.args, made.keywords))]
    elif inspect.ismethod(made):
        parts = [*map(part, (made.__func__, made.__self__))]
    elif inspect.isfunction(made):
        closure = [part(_content(cell)) for cell in made.__closure__ or ()]
        parts = [_source(made), closure, part(made.__defaults__), part(made.__kwdefaults__)]
    elif isinstance(made, dspy.BaseLM):
        parts = made.model
    elif isinstance(made, dspy.Module):
        parts = [
            code_digest(made),
            program_digest(made),
            *(found.lm.model for found in lms_of(made)),
        ]
    elif attribute or inspect.isclass(made) or not (sources := _users_source(type(made))):
        parts = _source(made)
    else:
        parts = [sources, part(getattr(made, "__dict__", {}), attribute=True)]
    return parts


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that has no value yet
        return None


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)


def program_digest(method: dspy.Module) -> str:
    """12 hex digits over what shapes the prompts, and over how replies are read where they are not short."""
    # One by one: `dspy.Retrieve` is a parameter too, and takes no argument that a module's own dump_state hands on.
    parameters = parameters_of(method)
    state = {name: part.dump_state() for name, part in parameters.items()}
    for predictor in state.values():
        if isinstance(predictor, dict):
            predictor.pop("lm", None)
    asking = asked_by(method)
    templates = {name: ask.template.digest for name, ask in asking.items()}
    unusual = {}  # what neither state nor template says: another adapter than the usual, or another room
    for name, ask in asking.items():
        if not isinstance(ask.adapter, TemplateAdapter):
            unusual[name] = type(ask.adapter).__name__
        elif ask.room not in ("", SHORT_ROOM):
            unusual[name] = ask.room
    raw = {
        name: [[*map(dict, demos)] for demos in ask.raw[:2]]
        for name, ask in asking.items()
        if ask.raw.demos
    }
    return digest(state, templates, *([unusual] if unusual else []), *([raw] if raw else []))[:12]


def prompts_of(method: dspy.Module) -> dict[str, str]:
    """The set whose templates the method speaks through, as a run's setting `prompts`; nothing where all are ours."""
    asking = asked_by(method).values()
    names = {ask.template.of_set for ask in asking if isinstance(ask.adapter, TemplateAdapter)} - {
        ""
    }
    return {"prompts": "+".join(sorted(names))} if names else {}


def parameters_of(method: dspy.Module) -> dict[str, Any]:
    """A module's parameters by name, with those of parts that DSPy compiled and would leave out."""
    known = dict(method.named_parameters())
    found = {id(part) for part in known.values()}
    parts = (
        (path.removeprefix("self."), part) for path, part in method.named_sub_modules(dspy.Predict)
    )
    return known | {name: part for name, part in parts if id(part) not in found}


def asked_by(method: dspy.Module) -> dict[str, Ask]:
    """The predictors of a module that speak through a template, by name; those of second requests too.

    A judge's second request is a copy of its first one with a template of its own, and no parameter.
    """
    again = {
        f"{path.removeprefix('self.')}.again": judge.second_request()
        for path, judge in method.named_sub_modules(Judge)
    }
    return {
        name: part for name, part in parameters_of(method).items() if isinstance(part, Ask)
    } | again


def retrievers_of(method: dspy.Module) -> list[Retriever]:
    """The indexes of a module and its parts, each once and in the order of the attributes.

    A `dspy.Retrieve` among its parts searches whatever is configured as DSPy's retrieval model.
    """
    found: dict[int, Retriever] = {}
    for _, module in method.named_sub_modules():
        for value in vars(module).values():
            searched = configured_index(value)
            if isinstance(searched, Retriever):
                found[id(searched)] = searched
    return list(found.values())


# --- questions that must not be among them --------------------------------------------------------------------------


LEAVE_OUT = "leave them out (--leave-out-compiled), or ask others (--data)"
"""The next move of `eval` where questions are known to a program or a model."""


def check_leak(method: dspy.Module, questions: Questions, move: str = LEAVE_OUT) -> None:
    """Raise `Leak` for a question that is a demonstration, or that the method's program was compiled on.

    `move` is what the caller's user can do about the second.
    """
    for recipe in recipes_in(
        method
    ):  # what it was compiled on, and what chose among its candidates
        trained = set(recipe.trained_on)
        for question in questions:
            if question_digest(question.question) in trained:
                raise Leak(
                    f"question '{question.id}' ({question.question!r}) is one of those that the program of "
                    f"{recipe.module} was compiled on: {move}"
                )
    demonstrated = {
        normalize_answer(question): name
        for name, predictor in parameters_of(method).items()
        if isinstance(predictor, dspy.Predict)
        for question in questions_of(predictor.demos)
    }
    for question in questions:
        if (name := demonstrated.get(normalize_answer(question.question))) is not None:
            raise Leak(
                f"question '{question.id}' ({question.question!r}) is also a demonstration of '{name}': "
                "take it out of the questions, or give the program other demonstrations"
            )


def check_trained(
    method: dspy.Module, questions: Questions, models: Iterable[ConnectedLM], move: str = LEAVE_OUT
) -> None:
    """Raise `Leak` for a question that one of `models`, or of the method's own, was trained on; `move` as above."""
    for name, known in learned(method, models):
        for question in questions if known else ():
            if question_digest(question.question) in known:
                raise Leak(
                    f"question '{question.id}' ({question.question!r}) is one of those that {name} was trained on: "
                    f"{move}"
                )


def learned(method: dspy.Module, models: Iterable[ConnectedLM]) -> Iterator[tuple[str, Set[str]]]:
    """Each of `models` and of the method's own by name, with digests of the questions that it was trained on here.

    What an adapter stands on counts, and so does the folder of a filter's model that a server answers for.
    """
    for lm in (*models, *connected_lms(method).values()):
        checkpoint = getattr(lm.inner, "checkpoint", None)
        yield lm.name, trained_on(checkpoint) if isinstance(checkpoint, Checkpoint) else frozenset()
    for _, part in method.named_sub_modules(WrittenFilter):
        if part.folder is not None and part.folder.is_dir():
            yield part.folder.name, trained_on(part.folder)


def check_reader(method: dspy.Module, lm: ConnectedLM) -> None:
    """Refuse a model that was trained to filter as the one that answers; warn of a generator that is asked otherwise.

    Otherwise than it was trained (FilCo's M_gen). A model without a recipe is taken as it is.

    Raises: BadArgument; BadData: its recipe cannot be read.
    """
    if not isinstance(method, Method):
        return
    recipe = recipe_of_answerer(lm)
    asks = [ask for ask in asked_by(method).values() if ask.template.name == "direct"]
    asked = [ask.prompt_digest for ask in asks if "knowledge" in ask.signature.input_fields]
    if recipe.get("part") == "generator" and recipe.get("prompt") not in asked:
        warnings.warn(
            f"{lm.name} was trained as FilCo's generator, and is asked with another prompt here: --method "
            "direct-retrieval --demos none asks as it was trained, with its task and templates",
            stacklevel=1,  # from wherever it is called: one line
        )


def not_compiled_on(
    method: dspy.Module, questions: Questions, models: Iterable[ConnectedLM] = ()
) -> Questions:
    """The questions that no program of the method was compiled on, and none of its models and `models` trained on.

    Raises:
        EmptyData: none is left. BadArgument: nothing here was compiled or trained.
    """
    trained = {known for recipe in recipes_in(method) for known in recipe.trained_on}
    trained = trained.union(*(known for _, known in learned(method, models)))
    if not trained:
        raise BadArgument(
            "--leave-out-compiled goes with a compiled program or a trained model: add --program FILE, or leave it out"
        )
    left = tuple(
        question for question in questions if question_digest(question.question) not in trained
    )
    if not left:
        raise EmptyData(
            f"the program or model was made of all {len(questions)} questions of {questions.source}: give others "
            "(--data), or make it of fewer (--train, --valid)"
        )
    return Questions(left, questions.task, questions.source)


def check_prompts(method: dspy.Module) -> None:
    """Render every template once with made-up values. Raises: BadData for one that cannot be rendered."""
    made_up: Mapping[Any, Any] = {list[str]: ["? | ?"], bool: False}
    for predictor in asked_by(method).values():
        fields = predictor.signature.input_fields
        predictor.render(
            **{name: made_up.get(field.annotation, "?") for name, field in fields.items()}
        )


# --- gold titles that no passage has --------------------------------------------------------------------------------


MOST_TITLES = 20_000
"""Passages of the largest indexes whose titles are looked at: a larger one is no collection of one's own."""
_MOST_PAIRS = 50_000
"""Gold titles times other titles, up to which misspelt ones are looked for."""


def check_gold_titles(method: dspy.Module, questions: Questions) -> None:
    """Warn once of gold titles that would count as never retrieved, because no passage of the method's index has them.

    A corpus that is only a part of what the questions were made from may lack some. So it warns where a title of the
    index is nearly the same (in case, spacing, punctuation, a letter), or where the index has none of them. Only a
    local index of `MOST_TITLES` passages at the most is looked at.
    """
    gold = dict.fromkeys(folded(title) for question in questions for title in question.gold_titles)
    retrievers = retrievers_of(method)
    stored = [held for index in retrievers for held in _holding(index)]
    if (
        not gold
        or not stored
        or None in stored
        or sum(map(len, filter(None, stored))) > MOST_TITLES
    ):
        return
    known = dict.fromkeys(
        folded(passage.title) for index in filter(None, stored) for passage in index.passages
    )
    missing = [title for title in gold if title not in known]
    letters = {_letters(title): title for title in known}
    near = [(title, letters[_letters(title)]) for title in missing if _letters(title) in letters]
    if len(missing) * len(known) <= _MOST_PAIRS:
        near += [
            (title, other)
            for title in missing
            for other in get_close_matches(title, known, n=1, cutoff=0.85)
        ]
    if near:
        title, other = near[0]
        example = f"{title!r}: did you mean {other!r}?"
    elif missing and len(missing) == len(gold):
        example = (
            f"{missing[0]!r}, where the index has {next(iter(known))!r}"
            if any(known)
            else "it has no titles"
        )
    else:
        return
    counts = f"{len(missing)} of {len(gold)} gold titles are the title of no passage"
    warnings.warn(
        f"{counts}, so they count as never retrieved; {example}", stacklevel=1
    )  # wherever it is called


def _letters(title: str) -> str:
    """A title without case, spacing and punctuation."""
    return "".join(letter for letter in title.casefold() if letter.isalnum())


def _holding(index: Retriever) -> Iterator[Stored | None]:
    """What holds the passages of an index, its parts included; None for a part that is elsewhere."""
    if isinstance(index, Stored):
        yield index
        return
    values = [
        each
        for value in vars(index).values()
        for each in (value if isinstance(value, list) else [value])
    ]
    parts = [value for value in values if isinstance(value, Retriever)]
    yield from chain.from_iterable(map(_holding, parts)) if parts else [None]


# --- for a replay without the index or the model --------------------------------------------------------------------


class RecordedIndex(Retriever):
    """An index that is gone, for the reason `gone`: what a replay searches is in the run's journal, no more."""

    def __init__(self, kind: str, fingerprint: str, gone: AskedWrong) -> None:
        self.kind = kind
        self.fingerprint = fingerprint
        self.gone = gone

    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        raise ReplayMiss(f"{queries[0][:80]!r} would have to be searched for, and {self.gone}")

    def info(self) -> dict[str, Any]:
        return {"kind": self.kind, "fingerprint": self.fingerprint}


def recorded_index(run: Path, gone: AskedWrong) -> RecordedIndex | None:
    """The index that the run in that folder used; None where it used none, or several. Raises as `Run` does."""
    known = Run(run).settings.get("retrievers") or []
    return (
        RecordedIndex(known[0]["kind"], known[0]["fingerprint"], gone) if len(known) == 1 else None
    )


def recorded_model(
    run: Path, file: str, gone: AskedWrong, *, of_filter: bool = False, **decoding: Any
) -> ConnectedLM | None:
    """The model in a process that the run in that folder called; None where it was another than `file` names."""
    known = Run(run).settings.get("lm") or {}
    known = known.get("filter") or {} if of_filter else known
    weights = (known.get("options") or {}).get("weights")
    same = file == LOCAL or Path(file).stem == known.get("name")
    same = could_be(file, known.get("name")) if is_hugging_face(file) else same
    return ConnectedLM(**remembered(known, gone), **decoding) if weights and same else None

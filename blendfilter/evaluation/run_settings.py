"""What a run is made with: the settings that `run.json` has and that every later session must repeat."""

from __future__ import annotations

import functools
import inspect
import platform
import re
from collections.abc import Mapping, Sequence, Set
from importlib.metadata import version
from operator import itemgetter
from pathlib import PurePath
from types import CellType
from typing import Any

import dspy

from blendfilter.asking import SHORT_ROOM, Ask, reply_tokens_of
from blendfilter.compiling.programs import recipes_in
from blendfilter.dspy_surface import configured_index
from blendfilter.evaluation.own_program import FunctionProgram
from blendfilter.filters.base import filter_predictors, own_filter_lm
from blendfilter.filters.cdit import Judge
from blendfilter.filters.written import recipe_of
from blendfilter.journal import digest
from blendfilter.lm.model import ConnectedLM
from blendfilter.modules.base import Method
from blendfilter.prompting import TemplateAdapter
from blendfilter.retrieval.base import Retriever
from blendfilter.run_context import connected_lms, lms_of
from blendfilter.tasks.base import Questions
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
    shipped = shipped_in(method, [lm, filter_lm or lm])
    retrievers, searched = [], []
    for index in retrievers_of(method):
        info = index.info()  # one behind an address is the same index
        kind = str(info["of"] if info["kind"] == "remote" else info["kind"])
        retrievers.append({"kind": kind, "fingerprint": index.fingerprint})
        searched.append(searched_of(info))
    settings = {
        "task": questions.task.name,
        "metrics": list(questions.task.metrics),
        "metrics_code": own_metrics or None,
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
            **({"shipped": shipped} if shipped else {}),
            **({"code": code} if code else {}),
        },
        "lm": _model(lm)
        | without_none({"filter": filter_lm and _model(filter_lm), "of": own or None}),
        "retrievers": retrievers,
        "searched": searched if any(searched) else None,
        "seeds": seeds_of(method, lm, filter_lm) or None,
        "seed": seed,
        "repeats": repeats if repeats > 1 else None,
    }
    return without_none(settings)


def seeds_of(
    method: dspy.Module, lm: dspy.BaseLM, filter_lm: dspy.BaseLM | None = None
) -> dict[str, Any]:
    """The seeds that models were trained with, and a program compiled with, as far as their recipes say."""
    trained = {"lm": lm, "filter": filter_lm}
    seeds = {
        name: recipe_of(model).get("settings", {}).get("seed")
        for name, model in trained.items()
        if model is not None
    }
    compiled = [str(recipe.seed) for recipe in recipes_in(method)]
    return without_none({**seeds, "program": "+".join(compiled) or None})


def searched_of(info: Mapping[str, Any]) -> dict[str, Any]:
    """Of what corpus an index is, of how many passages, and of which type a dense one is, as far as `info` says.

    An index over several says what they agree on; their corpora are joined by `+`.

    >>> shards = [{"corpus": {"name": "wiki.jsonl"}, "passages": 2}] * 2
    >>> searched_of({"kind": "sharded", "passages": 4, "shards": shards})
    {'corpus': 'wiki.jsonl', 'passages': 4}
    """
    parts = [*info.get("indexes", ()), *info.get("shards", ())]
    corpora = [(about.get("corpus") or {}).get("name") for about in parts or [info]]
    if any(corpora):
        corpora = [name or "unnamed" for name in corpora]
    sizes = {about.get("passages") for about in info.get("indexes", ())}
    if info.get("kind") == "trimmed":
        return {"type": info["index"]["kind"], **searched_of(info["index"])}
    return without_none(
        {
            "corpus": "+".join(dict.fromkeys(filter(None, corpora))) or None,
            "passages": info.get("passages") or (sizes.pop() if len(sizes) == 1 else None),
            "type": (info.get("settings") or {}).get("index"),
        }
    )


def versions() -> dict[str, str]:
    """What a run was made with."""
    packages = {package: version(package) for package in ("dspy", "openai", "bm25s")}
    return {"blendfilter": VERSION, "python": platform.python_version(), **packages}


def _model(lm: ConnectedLM) -> dict[str, Any]:
    named = dict[str, Any]()
    for key, value in lm.identity.items():
        known = without_none(value) if isinstance(value, Mapping) else value
        named |= {key: known} if known else {}
    return {"name": lm.name, **named, "parameters": without_none(lm.kwargs)}


def without_none(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are given."""
    return {name: value for name, value in options.items() if value is not None}


def code_digest(method: dspy.Module) -> str:
    """12 hex digits over the source and the plain attributes of modules that are not this package's or DSPy's.

    A user edits a method and runs it again: that is another method. Empty where every part is ours or DSPy's.
    """
    parts = list[Any]()
    for name, module in method.named_sub_modules():
        if isinstance(module, FunctionProgram):
            parts.append((name, _made_of(module.function), {}))
        elif isinstance(module, dspy.Module) and (source := _users_source(type(module))):
            plain = {key: value for key, value in vars(module).items() if _is_plain(value)}
            parts.append((name, source, plain))
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
        parts = sorted(
            ([repr(key), part(value)] for key, value in made.items()), key=itemgetter(0)
        )
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
    return digest(state, templates, *([unusual] if unusual else []), *([raw] if raw else []))[
        :12
    ]


def shipped_in(method: dspy.Module, models: Sequence[dspy.BaseLM]) -> dict[str, str]:
    """The programs that ship with the package and that a run asks by, each with a digest of what it shows.

    `models` are that of the run, and the last one answers the calls of filters.
    """
    used: dict[str, dict[str, Any]] = {}
    for place, ask in asked_by(method).items():
        if (step := ask.shipped_for(ask.lm or models[-1])) is not None:
            shows = [step.instructions, *map(dict, step.demos)]
            used.setdefault(step.program, {})[place.removesuffix(".again")] = shows
    return {name: digest(used[name])[:12] for name in sorted(used)}


def prompts_of(method: dspy.Module) -> dict[str, str]:
    """The set whose templates the method speaks through, as a run's setting `prompts`; nothing where all are ours."""
    asking = asked_by(method).values()
    sets = {ask.template.of_set for ask in asking if isinstance(ask.adapter, TemplateAdapter)}
    names = "+".join(sorted(sets - {""}))
    return {"prompts": names} if names else {}


def parameters_of(method: dspy.Module) -> dict[str, Any]:
    """A module's parameters by name, with those of parts that DSPy compiled and would leave out."""
    known = dict(method.named_parameters())
    found = {id(part) for part in known.values()}
    for path, part in method.named_sub_modules(dspy.Predict):
        if id(part) not in found:
            known[path.removeprefix("self.")] = part
    return known


def asked_by(method: dspy.Module) -> dict[str, Ask]:
    """The predictors of a module that speak through a template, by name; those of second requests too.

    A judge's second request is a copy of its first one with a template of its own, and no parameter.
    """
    parts = parameters_of(method)
    for path, judge in method.named_sub_modules(Judge):
        parts[f"{path.removeprefix('self.')}.again"] = judge.second_request()
    return {name: part for name, part in parts.items() if isinstance(part, Ask)}


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

"""What a run was asked to be: the settings that `run.json` holds and that a later sitting must repeat.

Address and concurrency are noted beside them and may change between sittings; so may the place of a file.
"""

from __future__ import annotations

import inspect
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from typing import Any

import dspy

import blendfilter
from blendfilter.asking import SHORT_ROOM, Ask
from blendfilter.compiling.programs import recipes_in
from blendfilter.compiling.recipe import question_digest
from blendfilter.errors import EmptyData, Leak, RunMismatch
from blendfilter.evaluation.repeats import repeats_in
from blendfilter.journal import digest
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.module_lms import connected_lms
from blendfilter.modules.base import Method
from blendfilter.prompting import TemplateAdapter, questions_of
from blendfilter.retrieval.base import Retriever
from blendfilter.tasks.base import Questions
from blendfilter.text import normalize_answer

_NOT_USERS = ("blendfilter", "dspy", "builtins", "abc", "typing")


def settings_of(
    method: dspy.Module, questions: Questions, lm: ConnectedLM, *, seed: int, name: str | None = None, repeats: int = 1
) -> dict[str, Any]:
    """The settings of a run, as JSON; `repeats` are named where there are several."""
    return {
        "task": questions.task.name,
        "metrics": list(questions.task.metrics),
        "data": {"source": questions.source, "fingerprint": questions.fingerprint, "n": len(questions)},
        "method": {
            "name": name or _name_of(method),
            "arguments": method.arguments() if isinstance(method, Method) else {},
            "program": program_digest(method),
            **({"code": code} if (code := code_digest(method)) else {}),
        },
        "lm": _model(lm) | {"of": own} if (own := own_models(method)) else _model(lm),
        "retrievers": [{"kind": _kind_of(each), "fingerprint": each.fingerprint} for each in retrievers_of(method)],
        "seed": seed,
        **({"repeats": repeats} if repeats > 1 else {}),
    }


def _kind_of(retriever: Retriever) -> str:
    """An index's kind, wherever it is searched: one behind an address is the same index."""
    info = retriever.info()
    return str(info["of"] if info["kind"] == "remote" else info["kind"])


def _model(lm: ConnectedLM) -> dict[str, Any]:
    return {
        "name": lm.name,
        **{key: said for key, value in lm.identity.items() if (said := _said(value))},
        "parameters": {key: value for key, value in lm.kwargs.items() if value is not None},
    }


def own_models(method: dspy.Module) -> dict[str, Any]:
    """The models that it holds itself, by where they stand: a predictor's name, or an attribute's."""
    return {name: _model(lm) for name, lm in connected_lms(method).items()}


def code_digest(method: dspy.Module) -> str:
    """12 hex digits over the source and the plain attributes of modules that are not this package's or DSPy's.

    A user edits a method and runs it again: that is another method. Empty where every part is ours or DSPy's.
    """
    parts = [
        (name, written, {key: value for key, value in vars(module).items() if _is_plain(value)})
        for name, module in method.named_sub_modules()
        if isinstance(module, dspy.Module) and (written := _written(type(module)))
    ]
    return digest(parts)[:12] if parts else ""


def _written(kind: type) -> list[str]:
    """The source of a class and of those it builds on; empty where it is this package's or DSPy's."""
    own = [each for each in kind.__mro__ if each.__module__.split(".")[0] not in _NOT_USERS]
    return [_source(each) for each in own] if kind in own else []


def _source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # typed into a console: its name is all there is
        return f"{kind.__module__}.{kind.__qualname__}"


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return bool(value) and all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)


def versions() -> dict[str, str]:
    """What a run was made with."""
    return {
        "blendfilter": blendfilter.__version__,
        "python": platform.python_version(),
        **{package: version(package) for package in ("dspy", "openai", "bm25s")},
    }


def program_digest(method: dspy.Module) -> str:
    """12 hex digits over what shapes the prompts, and what is read of answers, where these are not short."""
    # One by one: `dspy.Retrieve` is a parameter too, and takes no argument that a module's own dump_state hands on.
    state = {name: part.dump_state() for name, part in parameters_of(method).items()}
    for predictor in state.values():
        if isinstance(predictor, dict):
            predictor.pop("lm", None)
    asking = {name: each for name, each in parameters_of(method).items() if isinstance(each, Ask)}
    templates = {name: each.template.digest for name, each in asking.items()}
    beside = {name: said for name, each in asking.items() if (said := _beside(each))}
    return digest(state, templates, *([beside] if beside else []))[:12]


def parameters_of(method: dspy.Module) -> dict[str, Any]:
    """A module's parameters by name, those of parts that DSPy compiled and would not show included."""
    known = dict(method.named_parameters())
    shown = {id(part) for part in known.values()}
    parts = ((path.removeprefix("self."), part) for path, part in method.named_sub_modules(dspy.Predict))
    return known | {name: part for name, part in parts if id(part) not in shown}


def _beside(predictor: Ask) -> str:
    """What neither state nor template of a predictor says; nothing where it is as it always was."""
    if not isinstance(predictor.adapter, TemplateAdapter):
        return type(predictor.adapter).__name__
    return "" if predictor.room in ("", SHORT_ROOM) else predictor.room


def retrievers_of(method: dspy.Module) -> list[Retriever]:
    """The indexes that a module holds, its parts' included, each once and in the order it holds them.

    A `dspy.Retrieve` among its parts holds whatever is configured as DSPy's retrieval model.
    """
    found: dict[int, Retriever] = {}
    for _, module in method.named_sub_modules():
        for value in vars(module).values():
            searched = dspy.settings.rm if isinstance(value, dspy.Retrieve) else value
            if isinstance(searched, Retriever):
                found[id(searched)] = searched
    return list(found.values())


def check_leak(method: dspy.Module, questions: Questions) -> None:
    """Refuse to evaluate on a question that a demonstration shows, or that the method's program was compiled on.

    Raises:
        Leak: naming the question and the predictor.
    """
    _check_compiled(method, questions)
    shown = {
        normalize_answer(question): name
        for name, predictor in parameters_of(method).items()
        if isinstance(predictor, dspy.Predict)
        for question in questions_of(predictor.demos)
    }
    for question in questions:
        if (name := shown.get(normalize_answer(question.question))) is not None:
            raise Leak(
                f"question '{question.id}' ({question.question!r}) is also a demonstration of '{name}': "
                "take it out of the questions, or give the program other demonstrations"
            )


def _check_compiled(method: dspy.Module, questions: Questions) -> None:
    """What a program was compiled on, and what chose among its candidates, are no questions to score it by."""
    for recipe in recipes_in(method):
        trained = set(recipe.trained_on)
        for question in questions:
            if question_digest(question.question) in trained:
                raise Leak(
                    f"question '{question.id}' ({question.question!r}) is one of those that the program of "
                    f"{recipe.module} was compiled on: leave them out (--leave-out-compiled), or ask others (--data)"
                )


def not_compiled_on(method: dspy.Module, questions: Questions) -> Questions:
    """The questions that no program of the method was compiled on. Raises: EmptyData where none is left."""
    trained = {each for recipe in recipes_in(method) for each in recipe.trained_on}
    left = tuple(each for each in questions if question_digest(each.question) not in trained)
    if not left:
        raise EmptyData(
            f"the program was compiled on all {len(questions)} questions of {questions.source}: give others (--data), "
            "or compile on fewer (--train, --valid)"
        )
    return Questions(left, questions.task, questions.source)


def check_prompts(method: dspy.Module) -> None:
    """Render every template once with values made up, so that one that cannot be rendered is said before any call.

    Raises:
        BadData: naming the template, and what it may read.
    """
    for _, predictor in method.named_predictors():
        if isinstance(predictor, Ask):
            fields = predictor.signature.input_fields
            predictor.render(**{name: _MADE_UP.get(field.annotation, "?") for name, field in fields.items()})


_MADE_UP: Mapping[Any, Any] = {list[str]: ["? | ?"], bool: False}


def check_same(stored: Mapping[str, Any], asked: Mapping[str, Any], folder: str, *, repeats: int | None = None) -> None:
    """Refuse a run folder that other settings made; more repeats than it has (`repeats`) are welcome, fewer are not.

    Raises:
        RunMismatch: naming what differs.
    """
    # The same questions under another file name are the same questions: their fingerprint says so.
    differing = [
        each
        for each in _differences(stored, _as_known(stored, asked))
        if not each.startswith(("data.source ", "repeats was "))
    ]
    known = repeats_in(stored) if repeats is None else repeats
    if not differing and repeats_in(asked) < known:
        raise RunMismatch(
            f"{folder} is a run of {known} answers to every question, not {repeats_in(asked)}: "
            f"ask for {known} repeats or more, or give this run another folder"
        )
    if differing:
        shown = "; ".join(differing[:3]) + (f"; and {len(differing) - 3} more" if len(differing) > 3 else "")
        raise RunMismatch(
            f"{folder} holds a run with other settings: {shown}. "
            "Give this run another folder (and --reuse that one, to pay only for what is new)"
        )


def _as_known(stored: Mapping[str, Any], asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """`asked` without the method's arguments that came after `stored` was made and are off: it ran without them."""
    method = asked.get("method") or {}
    known = (stored.get("method") or {}).get("arguments") or {}
    arguments = {name: value for name, value in (method.get("arguments") or {}).items() if value or name in known}
    return {**asked, "method": {**method, "arguments": arguments}} if "arguments" in method else asked


def _differences(stored: Any, asked: Any, path: str = "") -> Iterator[str]:
    if isinstance(stored, Mapping) and isinstance(asked, Mapping):
        for key in dict.fromkeys([*stored, *asked]):
            yield from _differences(stored.get(key), asked.get(key), f"{path}.{key}" if path else str(key))
    elif stored != asked:
        yield f"{path} was {stored!r}, now {asked!r}"


def _said(value: Any) -> Any:
    """`value` without what was left open in it."""
    return {key: each for key, each in value.items() if each is not None} if isinstance(value, Mapping) else value


def _name_of(method: dspy.Module) -> str:
    known = getattr(method, "method_name", None)
    return str(known) if known else f"{type(method).__module__}:{type(method).__qualname__}"

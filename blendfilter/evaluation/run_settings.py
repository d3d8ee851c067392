"""What a run is made with: the settings that `run.json` has and that every later session must repeat.

For a replay they also stand in for an index or a model that is gone (`RecordedIndex`, `recorded_model`).
"""

from __future__ import annotations

import inspect
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import dspy

import blendfilter
from blendfilter.asking import SHORT_ROOM, Ask
from blendfilter.compiling.programs import question_digest, recipes_in
from blendfilter.errors import AskedWrong, EmptyData, Leak, ReplayMiss
from blendfilter.evaluation.run import Run
from blendfilter.journal import digest
from blendfilter.lm.local import LOCAL, remembered
from blendfilter.lm.model import ConnectedLM
from blendfilter.modules.base import Method
from blendfilter.prompting import TemplateAdapter, questions_of
from blendfilter.records import Passage
from blendfilter.retrieval.base import Retriever
from blendfilter.run_context import connected_lms
from blendfilter.tasks.base import Questions
from blendfilter.text import normalize_answer

_NOT_USERS = ("blendfilter", "dspy", "builtins", "abc", "typing")


def settings_of(
    method: dspy.Module, questions: Questions, lm: ConnectedLM, *, seed: int, name: str | None = None, repeats: int = 1
) -> dict[str, Any]:
    """The settings of a run, as JSON; `repeats` are named where there are several."""
    own = {label: _model(model) for label, model in connected_lms(method).items()}
    known = getattr(method, "method_name", None) or f"{type(method).__module__}:{type(method).__qualname__}"
    code = code_digest(method)
    retrievers = []
    for index in retrievers_of(method):
        info = index.info()  # one behind an address is the same index
        kind = str(info["of"] if info["kind"] == "remote" else info["kind"])
        retrievers.append({"kind": kind, "fingerprint": index.fingerprint})
    return {
        "task": questions.task.name,
        "metrics": list(questions.task.metrics),
        "data": {"source": questions.source, "fingerprint": questions.fingerprint, "n": len(questions)},
        "method": {
            "name": name or str(known),
            "arguments": method.arguments() if isinstance(method, Method) else {},
            "program": program_digest(method),
            **({"code": code} if code else {}),
        },
        "lm": _model(lm) | ({"of": own} if own else {}),
        "retrievers": retrievers,
        "seed": seed,
        **({"repeats": repeats} if repeats > 1 else {}),
    }


def versions() -> dict[str, str]:
    """What a run was made with."""
    packages = {package: version(package) for package in ("dspy", "openai", "bm25s")}
    return {"blendfilter": blendfilter.__version__, "python": platform.python_version(), **packages}


def _model(lm: ConnectedLM) -> dict[str, Any]:
    identity = {key: _given(value) if isinstance(value, Mapping) else value for key, value in lm.identity.items()}
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
    sources = []
    for base in users if kind in users else ():
        try:
            sources.append(inspect.getsource(base))
        except (OSError, TypeError):  # typed into a console: its name is all there is
            sources.append(f"{base.__module__}.{base.__qualname__}")
    return sources


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
    asking = {name: part for name, part in parameters.items() if isinstance(part, Ask)}
    templates = {name: ask.template.digest for name, ask in asking.items()}
    unusual = {}  # what neither state nor template says: another adapter than the usual, or another room
    for name, ask in asking.items():
        if not isinstance(ask.adapter, TemplateAdapter):
            unusual[name] = type(ask.adapter).__name__
        elif ask.room not in ("", SHORT_ROOM):
            unusual[name] = ask.room
    return digest(state, templates, *([unusual] if unusual else []))[:12]


def parameters_of(method: dspy.Module) -> dict[str, Any]:
    """A module's parameters by name, with those of parts that DSPy compiled and would leave out."""
    known = dict(method.named_parameters())
    found = {id(part) for part in known.values()}
    parts = ((path.removeprefix("self."), part) for path, part in method.named_sub_modules(dspy.Predict))
    return known | {name: part for name, part in parts if id(part) not in found}


def retrievers_of(method: dspy.Module) -> list[Retriever]:
    """The indexes of a module and its parts, each once and in the order of the attributes.

    A `dspy.Retrieve` among its parts searches whatever is configured as DSPy's retrieval model.
    """
    found: dict[int, Retriever] = {}
    for _, module in method.named_sub_modules():
        for value in vars(module).values():
            searched = dspy.settings.rm if isinstance(value, dspy.Retrieve) else value
            if isinstance(searched, Retriever):
                found[id(searched)] = searched
    return list(found.values())


# --- questions that must not be among them --------------------------------------------------------------------------


def check_leak(method: dspy.Module, questions: Questions) -> None:
    """Raise `Leak` for a question that is a demonstration, or that the method's program was compiled on."""
    for recipe in recipes_in(method):  # what it was compiled on, and what chose among its candidates
        trained = set(recipe.trained_on)
        for question in questions:
            if question_digest(question.question) in trained:
                raise Leak(
                    f"question '{question.id}' ({question.question!r}) is one of those that the program of "
                    f"{recipe.module} was compiled on: leave them out (--leave-out-compiled), or ask others (--data)"
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


def not_compiled_on(method: dspy.Module, questions: Questions) -> Questions:
    """The questions that no program of the method was compiled on. Raises: EmptyData where none is left."""
    trained = {known for recipe in recipes_in(method) for known in recipe.trained_on}
    left = tuple(question for question in questions if question_digest(question.question) not in trained)
    if not left:
        raise EmptyData(
            f"the program was compiled on all {len(questions)} questions of {questions.source}: give others (--data), "
            "or compile on fewer (--train, --valid)"
        )
    return Questions(left, questions.task, questions.source)


def check_prompts(method: dspy.Module) -> None:
    """Render every template once with made-up values. Raises: BadData for one that cannot be rendered."""
    made_up: Mapping[Any, Any] = {list[str]: ["? | ?"], bool: False}
    for _, predictor in method.named_predictors():
        if isinstance(predictor, Ask):
            fields = predictor.signature.input_fields
            predictor.render(**{name: made_up.get(field.annotation, "?") for name, field in fields.items()})


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
    return RecordedIndex(known[0]["kind"], known[0]["fingerprint"], gone) if len(known) == 1 else None


def recorded_model(run: Path, file: str, gone: AskedWrong, **decoding: Any) -> ConnectedLM | None:
    """The model in a process that the run in that folder called; None where it was another than `file` names."""
    known = Run(run).settings.get("lm") or {}
    weights = (known.get("options") or {}).get("weights")
    same = file == LOCAL or Path(file).stem == known.get("name")
    return ConnectedLM(**remembered(known, gone), **decoding) if weights and same else None

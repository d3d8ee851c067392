"""What a compiled program was made of: its recipe, saved with it, so that a score comes with how it was reached.

In: a module and the examples it was compiled on. Out: names, digests, scores; no clock time, no path, no address, so
that the same inputs give the same bytes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import dspy
from pydantic import TypeAdapter

from blendfilter.asking import Ask
from blendfilter.compiling.measuring import Score
from blendfilter.filters.cdit.judge import Judge
from blendfilter.text import normalize_answer

FORMAT = 1
"""Of the saved file; another one is refused."""


@dataclass(frozen=True)
class Recipe:
    """How a program was compiled.

    Attributes:
        module: the kind of module; `fields`: its predictors' field names; `templates`: their templates and digests.
        task, measure: what the data and the metric were, as far as it was said.
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
    before: Score
    after: Score
    data: Mapping[str, Any]
    fields: Mapping[str, list[str]]
    templates: Mapping[str, str]
    worded: Mapping[str, str]
    trained_on: tuple[str, ...]
    versions: Mapping[str, str]
    note: str = ""
    format: int = FORMAT

    def to_json(self) -> dict[str, Any]:
        """As it is saved."""
        return dataclasses.asdict(self)

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Recipe:
        """The recipe again. Raises: `pydantic.ValidationError` where something is missing or of another kind."""
        return TypeAdapter(cls).validate_python(told)


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
    predictors = ((name, each) for name, each in module.named_predictors() if isinstance(each, Ask))
    return {name: f"{each.template.name} {each.template.digest}" for name, each in predictors}


def worded_of(module: dspy.Module) -> dict[str, str]:
    """What DSPy's state leaves out: what is read of an answer, a filter's switches, the rules that a judge goes by.

    >>> from blendfilter.filters.filco import FilCoFilter
    >>> worded_of(FilCoFilter())
    {'FilCoFilter': 'may keep nothing'}
    """
    predictors = ((name, each) for name, each in module.named_predictors() if isinstance(each, Ask))
    rooms = {name: each.room for name, each in predictors if each.room}
    switched = {name: ", ".join(said) for name, each in _parts(module) if (said := _switches(each))}
    return rooms | switched | ruled_of(module)


def ruled_of(module: dspy.Module) -> dict[str, str]:
    """The rules of every judge, and a digest of what they say: a verdict shown under one rule misleads under another.

    >>> from blendfilter.filters.cdit.filter import CDITFilter
    >>> list(ruled_of(CDITFilter(rules=["phi2", "phi1"])))
    ['judge']
    """
    return {name: _rules(each) for name, each in _parts(module) if isinstance(each, Judge)}


def _rules(judge: Judge) -> str:
    rules = sorted(judge.rules, key=lambda rule: rule.name)  # all of them hold, in whatever order
    told = hashlib.sha256("\n".join(rule.line for rule in rules).encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"the rules {'+'.join(rule.name for rule in rules)} ({told})"


def _parts(module: dspy.Module) -> Iterator[tuple[str, Any]]:
    for path, each in module.named_sub_modules():
        yield path.removeprefix("self").strip(".") or kind_of(each), each


def _switches(part: Any) -> list[str]:
    told = {"offer_none": ("may keep nothing", "keeps something"), "ask_topic": ("asks the topic", "asks no topic")}
    values = {name: getattr(part, name, None) for name in told}
    return [told[name][not value] for name, value in values.items() if isinstance(value, bool)]


def question_digest(question: str) -> str:
    """16 hex digits of a question's words: another spelling of it is the same question.

    >>> question_digest("Who keeps the light?") == question_digest("who keeps THE light")
    True
    """
    return hashlib.sha256(normalize_answer(question).encode()).hexdigest()[:16]


def asked_in(example: Mapping[str, Any]) -> str:
    """What tells an example from others: its question; without one, all that it holds."""
    question = example.get("question")
    return question if isinstance(question, str) and question else _plain(example)


def fingerprint(examples: Iterable[dspy.Example]) -> str:
    """16 hex digits over everything the examples hold, in order."""
    told = hashlib.sha256()
    for each in examples:
        told.update(_plain(each).encode("utf-8", "surrogatepass") + b"\n")
    return told.hexdigest()[:16]


def _plain(example: Mapping[str, Any]) -> str:
    return json.dumps(dict(example.items()), sort_keys=True, ensure_ascii=False, default=_told)


def _told(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    if isinstance(value, Mapping):
        return dict(value)
    return type(value).__qualname__ if "object at 0x" in repr(value) else str(value)

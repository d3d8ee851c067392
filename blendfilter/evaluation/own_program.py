"""A user's own program as a method: which of a question's fields it is called with, and which of its own is the answer.

DSPy's programs are called by the names of their signatures, `claim -> titles` as well as `question -> answer`. A plain
function from a question to an answer is a program, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import dspy

from blendfilter.errors import BadArgument
from blendfilter.records import Question
from blendfilter.run_context import check_module
from blendfilter.tasks.base import Questions, example_of
from blendfilter.tasks.layouts import RIGHT, folded_name

QUESTION = "question"
ANSWER = "answer"
Inputs = Mapping[str, str] | Sequence[str]
"""Names of a program's inputs, each with the field of a question for it; a list: the fields of these names."""


class ProgramCall(NamedTuple):
    """How a program is called: `inputs`, the field of a question for each, and the `answer` among its outputs."""

    inputs: Mapping[str, str] = {QUESTION: QUESTION}
    answer: str = ANSWER

    @classmethod
    def of(cls, inputs: Inputs | None, answer: str, rows: object) -> ProgramCall:
        """As they are given; else the inputs of `rows`, where they are `dspy.Example`s that name theirs.

        Raises: BadArgument for what names nothing.
        """
        if inputs is None:
            first = next(iter(rows), None) if isinstance(rows, list | tuple) else None
            inputs = [QUESTION]
            if isinstance(first, dspy.Example):
                with suppress(ValueError):  # it does not name them
                    inputs = [*first.inputs().keys()]  # in the order of its fields
        if isinstance(inputs, str) or not inputs or not answer:
            raise BadArgument(
                "inputs names the program's inputs and the fields for them, {'claim': 'question'}; answer the output "
                "that is scored"
            )
        known = (
            inputs if isinstance(inputs, Mapping) else dict(zip(inputs, inputs, strict=True))
        )
        return cls(dict(known), answer)

    def rows(self, rows: Iterable[Any]) -> list[Any]:
        """Rows with a `question` and an `answer`, where they have these under the names of this call alone.

        Raises: BadArgument for a field that no row has.
        """
        rows = [dict(row) if isinstance(row, Mapping) else row for row in rows]
        fields = [row for row in rows if isinstance(row, dict)]
        there = dict.fromkeys(name for row in fields for name in row)
        for name, field in self.inputs.items():
            if field != QUESTION and fields and field not in there:
                raise BadArgument(
                    f"no row has a field '{field}' for the input '{name}' (they have: {', '.join(there)}): name "
                    f"another, inputs={{'{name}': …}}"
                )
        for row in fields:
            texts = (
                row[field] for field in self.inputs.values() if isinstance(row.get(field), str)
            )
            if QUESTION not in row and (question := next(texts, None)) is not None:
                row[QUESTION] = question
            right = row.get(self.answer)
            if isinstance(right, str) and not any(folded_name(name) in RIGHT for name in row):
                row[ANSWER] = right
        return rows

    def settings(self) -> dict[str, Any]:
        """What a run's record says of it; nothing where it is the usual call."""
        return {} if self == ProgramCall() else {"call": self._asdict()}

    def arguments(self, question: Question) -> dict[str, Any]:
        """What the program is called with. Raises: BadArgument for a field that the question does not have."""
        if self.inputs == ProgramCall().inputs:
            return {QUESTION: question.question}
        fields = dict(example_of(question))
        if question.context:
            fields["context"] = [passage.line for passage in question.context]
        for name, field in self.inputs.items():
            if field not in fields:
                raise BadArgument(
                    f"question '{question.id}' has no field '{field}' for the input '{name}' (it has: "
                    f"{', '.join(fields)}): name another, inputs={{'{name}': …}}"
                )
        return {name: fields[field] for name, field in self.inputs.items()}

    def check(self, method: dspy.Module, questions: Questions) -> None:
        """Raise `BadArgument` for a field that some question lacks, and for a call that `method` does not take.

        An `async def forward` is refused, too: DSPy awaits `aforward` alone.
        """
        if inspect.iscoroutinefunction(getattr(type(method), "forward", None)):
            raise BadArgument(
                f"{type(method).__name__}'s forward is async, and nothing awaits it: name it aforward"
            )
        for question in questions:
            self.arguments(question)
        if (taken := _taken_by(method)) is None:
            return
        try:
            if not isinstance(method, FunctionProgram) or not _binds(taken, *self.inputs):
                taken.bind(**dict.fromkeys(self.inputs))
        except TypeError as error:
            takes, given = ", ".join(taken.parameters), ", ".join(self.inputs)
            raise BadArgument(
                f"{type(method).__name__} takes ({takes}) and is called with {given} ({error}): say what its inputs "
                "are given, inputs={'…': 'question'}"
            ) from None


def _taken_by(method: dspy.Module) -> inspect.Signature | None:
    """What a program is called with; None where it does not say."""
    if isinstance(method, FunctionProgram):
        return inspect.signature(method.function)
    part = method if hasattr(method, "signature") else getattr(method, "predict", None)
    signature: Any = getattr(part, "signature", None)
    fields = getattr(signature, "input_fields", None)
    if isinstance(fields, Mapping):
        keyword, required = inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.empty
        return inspect.Signature(
            [
                inspect.Parameter(
                    name, keyword, default=required if field.is_required() else None
                )
                for name, field in fields.items()
            ]
        )
    kind = type(method)  # DSPy warns of a `forward` that is taken from a module
    call = getattr(kind, "aforward", None) or getattr(kind, "forward", None)
    if call is None:
        return None
    whole = inspect.signature(call)
    return whole.replace(parameters=[*whole.parameters.values()][1:])


def _binds(taken: inspect.Signature, *values: Any, **named: Any) -> bool:
    try:
        taken.bind(*values, **named)
    except TypeError:
        return False
    return True


class FunctionProgram(dspy.Module):
    """A plain function as a program: called by name, or by position where its parameters have other names."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        named = function
        while isinstance(named, partial):
            named = named.func
        self.method_name = f"{named.__module__}:{named.__qualname__}"

    def forward(self, **inputs: Any) -> Any:
        return self._called(inputs)

    def _called(self, inputs: Mapping[str, Any]) -> Any:
        if _binds(inspect.signature(self.function), **inputs):
            return self.function(**inputs)
        return self.function(*inputs.values())


class CoroutineProgram(FunctionProgram):
    """A coroutine function as a program."""

    async def aforward(self, **inputs: Any) -> Any:
        return await self._called(inputs)


def as_program(given: Any) -> dspy.Module:
    """`given` as a module. Raises: BadArgument for what is neither a module nor a function."""
    if inspect.iscoroutinefunction(given):
        return CoroutineProgram(given)
    if inspect.isfunction(given) or inspect.ismethod(given) or isinstance(given, partial):
        return FunctionProgram(given)
    check_module(given)
    return given

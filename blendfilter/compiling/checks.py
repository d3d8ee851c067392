"""What cannot be compiled, said before any model is asked.

In: a module and two sets of examples. Out: nothing, or one line that says what, where and the next move.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import dspy

from blendfilter.asking import Ask
from blendfilter.compiling.recipe import asked_in, question_digest
from blendfilter.errors import BadArgument, BadData, EmptyData, Leak
from blendfilter.prompting import TemplateAdapter


def check_module(student: Any) -> None:
    """Raise `BadArgument` for what is no module, or has nothing to compile; `BadData` for a template that is deaf."""
    if not isinstance(student, dspy.Module):
        raise BadArgument(f"{student!r:.60} is no dspy.Module: give a method, a filter, or a module of your own")
    predictors = list(student.named_predictors())
    if not predictors:
        raise BadArgument(f"{type(student).__name__} has no predictor: it asks no model, so nothing can be compiled")
    for name, predictor in predictors:
        speaks = isinstance(predictor, Ask) and isinstance(predictor.adapter, TemplateAdapter)
        if speaks and not predictor.template.takes_instructions:
            raise BadData(
                f"{predictor.template.path} does not render {{{{ instructions }}}}: what is compiled for '{name}' "
                "would be lost; add it to the template, or compile without this override"
            )


def check_examples(trainset: Sequence[Any], valset: Sequence[Any]) -> None:
    """Raise for sets that are empty, or rows that are no examples with inputs."""
    for called, examples in (("training set", trainset), ("set held back", valset)):
        if not examples:
            raise EmptyData(f"the {called} is empty: give it examples")
        for at, each in enumerate(examples):
            if not isinstance(each, dspy.Example) or each._input_keys is None:
                raise BadArgument(
                    f"example {at} of the {called} is no dspy.Example with its inputs named: "
                    "dspy.Example(…).with_inputs('question')"
                )


def check_unused(valset: Sequence[dspy.Example], trained_on: Collection[str]) -> None:
    """Raise `Leak` where a question held back is one that the student was compiled on before, naming it."""
    for each in valset:
        if question_digest(asked_in(each)) in trained_on:
            raise Leak(
                f"the question {asked_in(each)[:100]!r} is held back, and the program that the module speaks as was "
                "compiled on it: hold others back"
            )


def check_overlap(trainset: Sequence[dspy.Example], valset: Sequence[dspy.Example]) -> None:
    """Raise `Leak` where a question of the training set is held back too, naming it."""
    trained = {question_digest(asked_in(each)) for each in trainset}
    for each in valset:
        if question_digest(asked_in(each)) in trained:
            raise Leak(
                f"the question {asked_in(each)[:100]!r} is in the training set and in the set held back: "
                "take it out of one of them"
            )

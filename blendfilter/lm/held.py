"""The models that a method holds itself, in its predictors or under any name, beside the one that a run gives it.

In: a method. Out: where each of them stands, so that a run can journal, count and limit its calls like all others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import dspy

from blendfilter.journal import Journal
from blendfilter.lm.connect import connect
from blendfilter.lm.model import ConnectedLM
from blendfilter.lm.terms import Traffic


class Held(NamedTuple):
    """A model, and where it stands: ``self.big`` of a method is `big`, a predictor's own is known by the predictor."""

    name: str
    holder: Any
    attribute: str
    lm: dspy.BaseLM

    def put(self, lm: dspy.BaseLM) -> None:
        """Have `lm` stand there."""
        setattr(self.holder, self.attribute, lm)


def held_by(method: dspy.Module) -> list[Held]:
    """All of them, in the order of the method's parts."""
    return [
        Held(_named(path, attribute, module), module, attribute, lm)
        for path, module in method.named_sub_modules()
        for attribute, lm in vars(module).items()
        if isinstance(lm, dspy.BaseLM)
    ]


def _named(path: str, attribute: str, module: Any) -> str:
    parts = path.split(".")[1:]  # the first is "self"
    return ".".join(parts if isinstance(module, dspy.Predict) else [*parts, attribute]) or attribute


def with_held_connected(method: dspy.Module) -> dspy.Module:
    """`method`, or a copy whose own models are connected, where it holds some."""
    if not held_by(method):
        return method
    copied: dspy.Module = method.deepcopy()
    for held in held_by(copied):
        held.put(connect(held.lm))
    return copied


def connected(method: dspy.Module) -> dict[str, ConnectedLM]:
    """Its own models, once they are connected, by name."""
    return {held.name: held.lm for held in held_by(method) if isinstance(held.lm, ConnectedLM)}


def journal_held(method: dspy.Module, journal: Journal, traffic: Traffic) -> None:
    """Have their calls kept in `journal` and held to what `traffic` allows."""
    for held in held_by(method):
        held.put(connect(held.lm).with_journal(journal, traffic))

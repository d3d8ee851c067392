"""Language models set on a method or its predictors, beside the one that a run gives it.

A run finds them here, so that their calls are journaled, counted and limited like all others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import dspy

from blendfilter.journal import Journal
from blendfilter.lm.call_policy import Traffic
from blendfilter.lm.model import ConnectedLM, connect


class ModuleLM(NamedTuple):
    """A model and its place: ``self.big`` of a method is named `big`, a predictor's own by the predictor."""

    name: str
    holder: Any
    attribute: str
    lm: dspy.BaseLM

    def put(self, lm: dspy.BaseLM) -> None:
        """Set `lm` in its place."""
        setattr(self.holder, self.attribute, lm)


def lms_of(method: dspy.Module) -> list[ModuleLM]:
    """All of them, in the order of the method's parts."""
    found = []
    for path, module in method.named_sub_modules():
        for attribute, lm in vars(module).items():
            if isinstance(lm, dspy.BaseLM):
                parts = path.split(".")[1:]  # the first is "self"
                name = ".".join(parts if isinstance(module, dspy.Predict) else [*parts, attribute]) or attribute
                found.append(ModuleLM(name, module, attribute, lm))
    return found


def with_lms_connected(method: dspy.Module) -> dspy.Module:
    """`method`, or a copy whose models are connected, where it has some."""
    if not lms_of(method):
        return method
    copied: dspy.Module = method.deepcopy()
    for found in lms_of(copied):
        found.put(connect(found.lm))
    return copied


def connected_lms(method: dspy.Module) -> dict[str, ConnectedLM]:
    """Its models that are connected, by name."""
    return {found.name: found.lm for found in lms_of(method) if isinstance(found.lm, ConnectedLM)}


def journal_lms(method: dspy.Module, journal: Journal, traffic: Traffic) -> None:
    """Keep their calls in `journal`, within what `traffic` allows."""
    for found in lms_of(method):
        found.put(connect(found.lm).with_journal(journal, traffic))

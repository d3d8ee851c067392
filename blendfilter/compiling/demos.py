"""Demonstrations of a compiled program: each predictor's own fields and no others, and no more tokens than allowed.

DSPy hands predictors whole training rows, gold answers and passages included; what a predictor has no field for would
only be carried along, and what lacks one of its fields would be left out of every prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import dspy

from blendfilter.filters.filco import unquoted
from blendfilter.filters.ids import read_ids
from blendfilter.lm.tokenisers import TokenCounter
from blendfilter.prompting import OPTIONAL_FIELDS


class DemoCount(NamedTuple):
    """Demonstrations: too many for `max_demo_tokens`, and left."""

    dropped: int
    left: int


def complete(row: Mapping[str, Any], predictor: dspy.Predict) -> bool:
    """Whether a row fills a predictor's fields; an empty list fills none."""
    inputs = [name for name in predictor.signature.input_fields if name not in OPTIONAL_FIELDS]
    return all(
        row.get(name) not in (None, []) for name in [*inputs, *predictor.signature.output_fields]
    )


def fits_any(rows: Iterable[Mapping[str, Any]], module: dspy.Module) -> bool:
    """Whether some row fills some predictor's fields."""
    predictors = [each for _, each in module.named_predictors()]
    return any(complete(row, each) for row in rows for each in predictors)


def reduced(row: Mapping[str, Any], predictor: dspy.Predict) -> dspy.Example:
    """A row's fields that `predictor` has, in its order; `augmented` (a model filled them) is kept."""
    inputs = list(predictor.signature.input_fields)
    names = [*inputs, *predictor.signature.output_fields]
    marked = {"augmented": True} if row.get("augmented") else {}
    return dspy.Example(**marked, **{name: row[name] for name in names if name in row}).with_inputs(
        *inputs
    )


def keep_own_fields(module: dspy.Module) -> None:
    """Reduce every predictor's demonstrations, and leave out those that do not fill its fields, or show no ids."""
    for _, predictor in module.named_predictors():
        own = (reduced(demo, predictor) for demo in predictor.demos if complete(demo, predictor))
        predictor.demos = [demo for demo in own if _with_plain_ids(demo)]


def _with_plain_ids(demo: dspy.Example) -> bool:
    """Write a reply of ids (a model's, in JSON or among words) as the prompt asks for it: ``0, 3``, or ``none``.

    False where it cannot be read: it demonstrates what had to be asked for again.
    """
    if not ("ids" in demo and "knowledge" in demo):
        return True
    read = read_ids(unquoted(demo.ids, demo.knowledge), len(demo.knowledge))
    demo.ids = ", ".join(map(str, sorted(read.ids))) or "none"
    return read.status in ("ids", "none")


def hold_to(module: dspy.Module, limit: int | None, tokeniser: TokenCounter) -> DemoCount:
    """Drop demonstrations until each predictor's fit in `limit` tokens: the longest first, of equals the last added.

    Counted is the text of their fields; a template adds its cues, some words each.
    """

    def tokens_of(demo: Mapping[str, Any]) -> float:
        values = [value for name, value in demo.items() if name != "augmented"]
        lines = (
            item
            for value in values
            for item in (value if isinstance(value, list | tuple) else [value])
        )
        return tokeniser.count("\n".join(map(str, lines)))

    dropped = left = 0
    for _, predictor in module.named_predictors():
        sized = [(tokens_of(demo), place, demo) for place, demo in enumerate(predictor.demos)]
        while limit is not None and sized and sum(size for size, *_ in sized) > limit:
            sized.remove(max(sized, key=lambda each: each[:2]))
            dropped += 1
        predictor.demos = [demo for *_, demo in sized]
        left += len(sized)
    return DemoCount(dropped, left)

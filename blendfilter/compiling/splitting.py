"""Training and held-back examples out of one set, by a seed.

In: examples. Out: two lists without a question in common. A question that comes twice is taken once, or the set held
back would know the answer.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import dspy

from blendfilter.compiling.recipe import asked_in, question_digest
from blendfilter.errors import BadArgument, EmptyData


class Split(NamedTuple):
    """What is compiled on, and what is held back for the scores."""

    train: list[dspy.Example]
    valid: list[dspy.Example]


def split(examples: Sequence[dspy.Example], train: int, valid: int, seed: int) -> Split:
    """`train` and `valid` examples, drawn by `seed`.

    >>> rows = [dspy.Example(question=f"{n}?").with_inputs("question") for n in range(5)]
    >>> [len(part) for part in split(rows, 3, 2, seed=0)]
    [3, 2]

    Raises:
        EmptyData: there are not so many different questions. BadArgument: a size below 1.
    """
    for name, size in (("train", train), ("valid", valid)):
        if size < 1:
            raise BadArgument(f"--{name} is {size}: give 1 or more")
    once = list({question_digest(asked_in(each)): each for each in reversed(examples)}.values())[::-1]
    if len(once) < train + valid:
        raise EmptyData(
            f"there are {len(once)} different questions, too few to train on {train} and hold {valid} back: "
            "give more data, or ask for fewer (--train, --valid)"
        )
    drawn = random.Random(seed).sample(once, train + valid)
    return Split(drawn[:train], drawn[train:])


def drawn(examples: Sequence[dspy.Example], size: int, seed: int, name: str) -> list[dspy.Example]:
    """`size` of the examples of one file, drawn by `seed`. Raises as `split`."""
    if size < 1:
        raise BadArgument(f"--{name} is {size}: give 1 or more")
    if len(examples) < size:
        raise EmptyData(f"there are {len(examples)} questions, fewer than --{name} {size}: give more, or ask for fewer")
    return random.Random(seed).sample(list(examples), size)

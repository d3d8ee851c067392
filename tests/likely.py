"""A model that scores without being one: an answer is likelier after a prompt that holds it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from blendfilter.lm.scoring import Score
from blendfilter.lm.scoring.base import Done, TextPair

BASE, GAIN = -10.0, 3.0


class Likely:
    """Keeps what it was asked, list by list; raises `fault` after so many scores."""

    name = "likely"
    identity: Mapping[str, Any] = {"kind": "likely"}

    def __init__(self, fault: Exception | None = None, *, after: int = 0) -> None:
        self.fault, self.after = fault, after
        self.lists: list[list[TextPair]] = []
        self.scored: list[TextPair] = []

    async def compute(self, pairs: Sequence[TextPair], done: Done) -> None:
        self.lists.append(list(pairs))
        for at, pair in enumerate(pairs):
            if self.fault is not None and len(self.scored) >= self.after:
                raise self.fault
            self.scored.append(pair)
            done(at, Score(BASE + GAIN * (pair.continuation.strip() in pair.prompt), 1))

"""What every filter is: a DSPy module from a question and passages to the passages kept, and why.

Any filter fits any method. `await filter.acall(question=…, passages=[…])` gives a `dspy.Prediction` with `kept` (a list
of `Passage`, or of `Excerpt` where only pieces of them are kept, with their places in the source), `status` (how the
decision was read), `reason` (the model's own words, where it gave some) and `flags` (events by name).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dspy

from blendfilter.lm import bridge
from blendfilter.records import Passage


class Filter(dspy.Module):
    """Base class of filters; subclasses write `aforward`, and the synchronous call comes over the bridge."""

    def forward(self, question: str, passages: Sequence[Passage], **more: Any) -> dspy.Prediction:
        return bridge.run(self.aforward(question=question, passages=passages, **more), type(self).__name__)

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        """The passages kept, in their order."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Load what it needs beforehand; what is missing is an error here, before anything is asked or paid for."""

    def arguments(self) -> dict[str, Any]:
        """The settings that change what it keeps, as JSON, for a run's record."""
        return {}

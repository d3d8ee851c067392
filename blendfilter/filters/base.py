"""What every filter is: a DSPy module from a question and passages to the passages kept, and why.

Any filter fits any method. `await filter.acall(question=…, passages=[…])` gives a `dspy.Prediction` with `kept` (a list
of `Passage`, or of `Excerpt` where only pieces of them are kept, with their places in the source), `status` (how the
decision was read), `reason` (the model's own words, where it gave some) and `flags` (events by name).

Methods ask through `ask_filter`, which takes anybody's `dspy.Module` too: one that is only synchronous, or that returns
the passages kept as a plain list.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import dspy

from blendfilter import aio
from blendfilter.errors import BadArgument
from blendfilter.records import Passage
from blendfilter.retrieval.callables import as_passage


class Signed:
    """A class' `__signature__`: what its `__init__` takes, for `help()` and editors.

    DSPy's metaclass would show (*args, **kwargs). An instance has none of its own: there its call is looked at.
    """

    def __get__(self, instance: object | None, owner: type) -> inspect.Signature | None:
        if instance is not None:
            return None
        whole = inspect.signature(owner.__init__)  # type: ignore[misc]
        return whole.replace(parameters=list(whole.parameters.values())[1:], return_annotation=whole.empty)


class Filter(dspy.Module):
    """Base class of filters; subclasses write `aforward` or `forward`. The synchronous call of the first comes over
    the bridge; the second alone runs in a thread.
    """

    __signature__ = Signed()

    def forward(self, question: str, passages: Sequence[Passage], **more: Any) -> dspy.Prediction:
        return aio.run(self.aforward(question=question, passages=passages, **more), type(self).__name__)

    async def aforward(self, question: str, passages: Sequence[Passage]) -> dspy.Prediction:
        """The passages kept, in their order."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Load what it needs beforehand; what is missing is an error here, before anything is asked or paid for."""

    def arguments(self) -> dict[str, Any]:
        """The settings that change what it keeps, as JSON, for a run's record."""
        return {}


async def ask_filter(select: dspy.Module, question: str, passages: Sequence[Passage], **more: Any) -> dspy.Prediction:
    """What `select` says of `passages`, `kept` being a list of passages; a synchronous one runs in a thread.

    Raises:
        BadArgument: it returns nothing that says what is kept, or what it was not given. What it raises itself comes
            through as it is.
    """
    if getattr(type(select), "aforward", Filter.aforward) is not Filter.aforward:
        said = await aio.awaiting(select.acall(question=question, passages=passages, **more))
        return _checked(select, said, passages)
    if getattr(type(select), "forward", Filter.forward) is Filter.forward:
        raise BadArgument(f"the filter {type(select).__name__} says nothing: write its aforward, or its forward")
    call = aio.carried(partial(select, question=question, passages=passages, **more))
    # A thread of its own: shared ones could all be taken by filters that wait for a synchronous model.
    return _checked(select, await anyio.to_thread.run_sync(call, limiter=anyio.CapacityLimiter(1)), passages)


def _checked(select: dspy.Module, said: Any, given: Sequence[Passage]) -> dspy.Prediction:
    told = said if isinstance(said, dspy.Prediction) else dspy.Prediction(kept=said)
    kept, flags = told.get("kept"), told.get("flags") or {}
    if isinstance(kept, str | bytes | Mapping) or not isinstance(kept, Iterable):
        gave = f"kept={kept!r:.60}" if said is told else type(said).__name__
        raise BadArgument(
            f"the filter {type(select).__name__} must return a dspy.Prediction whose kept is a list of passages, or "
            f"such a list; it gave {gave}"
        )
    if not isinstance(flags, Mapping):
        raise BadArgument(f"the filter {type(select).__name__} gave flags that are no counts by name: {flags!r:.80}")
    told["kept"] = [_given(select, each, given) for each in kept]
    return told


def _given(select: dspy.Module, item: Any, given: Sequence[Passage]) -> Passage:
    """What a filter kept as one of the passages it was given: by id, or as the line or text that a prompt shows."""
    if isinstance(item, int) and not isinstance(item, bool):
        raise BadArgument(
            f"the filter {type(select).__name__} kept the number {item}: return the passages themselves, "
            "[passages[i] for i in …]"
        )
    passage = as_passage(item)
    if any(each.id == passage.id for each in given):
        return passage
    for each in given:
        if passage.line == each.line or (not passage.title and passage.text == each.text):
            return each
    raise BadArgument(
        f"the filter {type(select).__name__} kept a passage that it was not given ({passage.line!r:.60}): return some "
        "of its passages, or Excerpts of them"
    )

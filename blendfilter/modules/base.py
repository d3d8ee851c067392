"""What every method shares: the bridge under its synchronous call, its search, its record of what it did."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy

from blendfilter.context import NOTES, CallNote, calls_of, rejoined, setting
from blendfilter.errors import BadArgument
from blendfilter.lm import bridge
from blendfilter.lm.relay import relayed
from blendfilter.records import Passage, one_line
from blendfilter.retrieval.base import Retriever

FLAGS = (
    "unparseable_ids", "explicit_none", "suspect_ids", "empty_knowledge", "empty_reply", "cut_reply", "query_cut",
)  # fmt: skip
"""The events a method counts per question."""


@dataclass(frozen=True)
class Branch:
    """What one query brought: the passages retrieved, those kept, and how the filter's decision was read."""

    retrieved: Sequence[Passage]
    kept: Sequence[Passage]
    ids_read: str | None = None
    reason: str = field(default="", repr=False)


class Method(dspy.Module):
    """Base class of methods: from a question to a `dspy.Prediction`.

    Subclasses write `answer`, a coroutine; `forward` and `aforward` clean the question, keep the notes of every call
    and count the flags. The prediction has `answer`, `reasoning`, `knowledge` (passages kept), `queries`, `branches`,
    `flags` and `calls` (stage, key) in plan order.

    Raises:
        BadArgument: an empty question. UseAcall: the synchronous call on the loop thread.
    """

    def forward(self, question: str) -> dspy.Prediction:
        return bridge.run(self.aforward(question=question), type(self).__name__)

    async def aforward(self, question: str) -> dspy.Prediction:
        asked = cleaned(question, type(self).__name__)
        with rejoined():
            outer = NOTES.get()
            with setting(NOTES, []) as notes:
                try:
                    async with relayed():
                        prediction = await self.answer(asked)
                finally:
                    if outer is not None:
                        outer.extend(notes)
        prediction["flags"] = _flags(prediction, notes)
        prediction["calls"] = [(note.stage, note.key) for note in calls_of(notes)]
        return prediction

    method_name: str = ""
    """What the command line calls it."""

    async def answer(self, question: str) -> dspy.Prediction:
        """The method itself."""
        raise NotImplementedError

    def arguments(self) -> dict[str, Any]:
        """The settings that change what it does, as JSON, for a run's record."""
        return {}


def check_k(k: object) -> int:
    """`k` where it is a whole number of at least 1. Raises: BadArgument."""
    if isinstance(k, bool) or not isinstance(k, int):
        raise BadArgument(f"k must be a whole number, got {k!r}")
    if k < 1:
        raise BadArgument(f"k must be at least 1, got {k}")
    return k


def cleaned(question: object, who: str) -> str:
    """A question on one line. Raises: BadArgument where there is none."""
    line = one_line(question) if isinstance(question, str) else ""
    if not line:
        raise BadArgument(f"{who} needs a question, got {question!r}")
    return line


async def search(retriever: Retriever, query: str, k: int) -> list[Passage]:
    """The k best passages for one query, searched in a worker thread."""
    return (await asyncio.to_thread(retriever.search, [query], k))[0]


def union(lists: Iterable[Sequence[Passage]]) -> list[Passage]:
    """The passages of all lists in order, each once: by id, else by title and text.

    >>> a, b = Passage("1", "T", "x"), Passage("2", "T", "X ")
    >>> [p.id for p in union([[a], [b, a]])]
    ['1']
    """
    seen: set[Any] = set()
    merged: list[Passage] = []
    for passage in (passage for each in lists for passage in each):
        told = ("text", " ".join(passage.line.casefold().split()))
        if ("id", passage.id) not in seen and told not in seen:
            merged.append(passage)
        seen.update((("id", passage.id), told))
    return merged


def _flags(prediction: dspy.Prediction, notes: Sequence[CallNote]) -> dict[str, int]:
    counted = Counter(dict.fromkeys(FLAGS, 0))
    counted.update(prediction.get("flags") or {})
    counted.update(note.event for note in notes if note.event in FLAGS)
    return dict(counted)

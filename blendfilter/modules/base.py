"""What every method shares: the bridge under its synchronous call, its search, its record of what it did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import dspy

from blendfilter import aio
from blendfilter.aio import relayed
from blendfilter.context import NOTES, CallNote, calls_of, rejoined, setting
from blendfilter.errors import BadArgument
from blendfilter.filters.base import Filter, Signed, ask_filter
from blendfilter.modules.shown import Answered
from blendfilter.records import Excerpt, Passage, one_line
from blendfilter.retrieval.base import Retriever

FLAGS = (
    "unparseable_ids", "explicit_none", "suspect_ids", "empty_knowledge", "empty_reply", "cut_reply", "query_cut",
    "invented_observation", "hops_exhausted", "unreadable_hop", "refused_reply", "no_verdict", "contradicted_verdict",
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

    __signature__ = Signed()

    def forward(self, question: str) -> dspy.Prediction:
        return aio.run(self.aforward(question=question), type(self).__name__)

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
        return Answered.of(prediction)

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
    return (await aio.in_thread(retriever.search, [query], k))[0]


def union(lists: Iterable[Sequence[Passage]]) -> list[Passage]:
    """The passages of all lists in order, each once: by id, else by title and text.

    Where several lists hold excerpts of one passage, the pieces are joined; a whole passage stands for its excerpts.

    >>> a, b = Passage("1", "T", "x"), Passage("2", "T", "X ")
    >>> [p.id for p in union([[a], [b, a]])]
    ['1']
    """
    places: dict[Any, int] = {}
    merged: list[Passage] = []
    for passage in (passage for each in lists for passage in each):
        whole = passage.source if isinstance(passage, Excerpt) else passage
        names = (("id", passage.id), ("text", " ".join(whole.line.casefold().split())))
        place = next((places[name] for name in names if name in places), len(merged))
        if place == len(merged):
            merged.append(passage)
        else:
            merged[place] = _joined(merged[place], passage)
        places.update((name, place) for name in names if name not in places)
    return merged


def _joined(first: Passage, second: Passage) -> Passage:
    if isinstance(first, Excerpt) and isinstance(second, Excerpt):
        return first.joined(second) if first.source.text == second.source.text else first
    return first if isinstance(second, Excerpt) or not isinstance(first, Excerpt) else second


async def filtered(select: Filter | None, question: str, passages: Sequence[Passage], **more: Any) -> dspy.Prediction:
    """What `select` keeps of `passages` for `question`; all of them where there is no filter.

    The prediction has `kept`; `status`, `reason` and `flags` where the filter gives them. `more` goes to the filter.
    """
    if select is None:
        return dspy.Prediction(kept=list(passages))
    return await ask_filter(select, question, passages, **more)


def branch_of(retrieved: Sequence[Passage], chosen: dspy.Prediction) -> Branch:
    """One query's branch. Of a filter of somebody's own, `kept` is all that is needed."""
    reason = str(chosen.get("reason") or "")
    return Branch(retrieved=retrieved, kept=chosen.kept, ids_read=chosen.get("status"), reason=reason)


def flags_of(chosen: Iterable[dspy.Prediction], *, empty: bool) -> dict[str, int]:
    """The events of distinct filter calls (a shared one counts once), and whether nothing was kept."""
    flags = {"empty_knowledge": int(empty)}
    for prediction in {id(each): each for each in chosen}.values():
        for name, count in (prediction.get("flags") or {}).items():
            flags[name] = flags.get(name, 0) + count
    return flags


def filter_arguments(select: Filter | None) -> dict[str, Any]:
    """A filter's class and settings, for a run's record; nothing where there is none."""
    if select is None:
        return {}
    own = select.arguments() if isinstance(select, Filter) else {}
    return {"filter": type(select).__name__, **own}


def _flags(prediction: dspy.Prediction, notes: Sequence[CallNote]) -> dict[str, int]:
    counted = Counter(dict.fromkeys(FLAGS, 0))
    counted.update(prediction.get("flags") or {})
    counted.update(note.event for note in notes if note.event in FLAGS)
    return dict(counted)

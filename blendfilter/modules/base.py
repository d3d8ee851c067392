"""What methods share: the synchronous call, the search and its filter, the union, the record of calls and flags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dspy

from blendfilter import aio
from blendfilter.aio import relayed
from blendfilter.context import JUDGED, calls_of, setting
from blendfilter.errors import BadArgument
from blendfilter.filters.base import Filter, Signed, ask_filter, noted
from blendfilter.modules.prediction import Branch, MethodPrediction
from blendfilter.records import Excerpt, Passage, one_line
from blendfilter.retrieval.base import Retriever, check_search
from blendfilter.retrieval.callables import as_retriever

FLAGS = (
    "unparseable_ids", "explicit_none", "suspect_ids", "empty_knowledge", "empty_reply", "cut_reply", "query_cut",
    "invented_observation", "hops_exhausted", "unreadable_hop", "refused_reply", "no_verdict", "contradicted_verdict",
)  # fmt: skip
"""The events that a method counts per question."""


class QuestionModule(dspy.Module):
    """A module that answers `question`: subclasses write `aforward`, and the synchronous call comes over the bridge."""

    __signature__ = Signed()

    def forward(self, question: str, *args: Any, **more: Any) -> dspy.Prediction:
        return aio.run(self.aforward(question, *args, **more), type(self).__name__)

    async def aforward(self, question: str) -> dspy.Prediction:
        raise NotImplementedError

    def cleaned(self, question: object) -> str:
        """A question on one line. Raises: BadArgument where there is none."""
        line = one_line(question) if isinstance(question, str) else ""
        if not line:
            raise BadArgument(f"{type(self).__name__} needs a question, got {question!r}")
        return line


class Method(QuestionModule):
    """Base class of methods: from a question to a `dspy.Prediction`.

    Subclasses write `answer`, a coroutine. Around it the question is cleaned, the notes of every call are kept and the
    flags counted. The prediction has `answer`, `reasoning`, `knowledge` (passages kept), `queries`, `branches`, `flags`
    and `calls` (stage, key) in plan order.

    Raises:
        BadArgument: an empty question. UseAcall: the synchronous call on the loop thread.
    """

    method_name: str = ""
    """Its name on the command line."""

    async def aforward(self, question: str) -> dspy.Prediction:
        question = self.cleaned(question)
        with noted() as notes:
            async with relayed():
                prediction = await self.answer(question)
        flags = Counter(dict.fromkeys(FLAGS, 0))
        flags.update(prediction.get("flags") or {})
        flags.update(note.event for note in notes if note.event in FLAGS)
        prediction["flags"] = dict(flags)
        prediction["calls"] = [(note.stage, note.key) for note in calls_of(notes)]
        return MethodPrediction.of(prediction)

    async def answer(self, question: str) -> dspy.Prediction:
        """The method itself."""
        raise NotImplementedError

    def arguments(self) -> dict[str, Any]:
        """The settings that change what it does, as JSON, for a run's record."""
        return {}


class RetrievingMethod(Method):
    """A method that searches and may filter what it finds.

    Args:
        retriever: an index, or any callable (query, k).
        k: passages per search.
        filter: any filter.
    """

    def __init__(self, retriever: Retriever, k: int, filter: Filter | None) -> None:
        super().__init__()
        self.retriever: Retriever | None = as_retriever(retriever)
        check_search([], k)
        self.k = k
        self.select = filter

    def arguments(self) -> dict[str, Any]:
        """K, and the filter with its settings."""
        return {"k": self.k, **filter_arguments(self.select)}

    async def look_up(self, query: str, question: str | None = None, **more: Any) -> tuple[dspy.Prediction, Branch]:
        """What the filter keeps of a query's passages, judged by `question` (the query by default), and the branch."""
        assert self.retriever is not None
        retrieved = await search(self.retriever, query, self.k)
        chosen = await filtered(self.select, query if question is None else question, retrieved, **more)
        return chosen, branch_of(retrieved, chosen)


async def search(retriever: Retriever, query: str, k: int) -> list[Passage]:
    """The k best passages for one query, searched in a worker thread."""
    return (await aio.in_thread(retriever.search, [query], k))[0]


async def filtered(select: Filter | None, question: str, passages: Sequence[Passage], **more: Any) -> dspy.Prediction:
    """What `select` keeps of `passages`, all of them without a filter: `kept`, and `status`, `reason` and `flags`."""
    if select is None:
        return dspy.Prediction(kept=list(passages))
    with setting(JUDGED, tuple(passage.id for passage in passages)):
        return await ask_filter(select, question, passages, **more)


def branch_of(retrieved: Sequence[Passage], chosen: dspy.Prediction) -> Branch:
    """One query's branch; of a user's own filter, `kept` is all that is needed."""
    return Branch(retrieved, chosen.kept, chosen.get("status"), str(chosen.get("reason") or ""))


def prediction_of(
    answer: object,
    reasoning: str,
    knowledge: Sequence[Passage],
    queries: Mapping[str, str],
    branches: Mapping[str, Branch],
    chosen: Iterable[dspy.Prediction] | None,
    **more: Any,
) -> dspy.Prediction:
    """A method's prediction; `chosen` are its filter's, whose events are counted (None: nothing is retrieved)."""
    return dspy.Prediction(
        answer=str(answer),
        reasoning=reasoning,
        knowledge=list(knowledge),
        queries=queries,
        branches=branches,
        flags={} if chosen is None else flags_of(chosen, empty=not knowledge),
        **more,
    )


def flags_of(chosen: Iterable[dspy.Prediction], *, empty: bool) -> dict[str, int]:
    """The events of distinct filter calls (a shared one counts once), and whether nothing was kept."""
    flags = Counter({"empty_knowledge": int(empty)})
    for prediction in {id(each): each for each in chosen}.values():
        flags.update(prediction.get("flags") or {})
    return dict(flags)


def filter_arguments(select: Filter | None) -> dict[str, Any]:
    """A filter's class and settings, for a run's record; nothing where there is none."""
    if select is None:
        return {}
    own = select.arguments() if isinstance(select, Filter) else {}
    return {"filter": type(select).__name__, **own}


def union(lists: Iterable[Sequence[Passage]]) -> list[Passage]:
    """The passages of all lists in order, each once: by id, else by title and text.

    Where several lists hold excerpts of one passage, the pieces are joined; a whole passage stands for its excerpts.

    >>> a, b = Passage("1", "T", "x"), Passage("2", "T", "X ")
    >>> [p.id for p in union([[a], [b, a]])]
    ['1']
    """
    places: dict[Any, int] = {}
    merged: list[Passage] = []
    for passage in (passage for passages in lists for passage in passages):
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

"""The question alone, with as many passages as all queries of a method retrieved: what blending queries must beat.

For a prediction that has several queries, one of them the question itself (`q`), there is one more search, for the
question alone, under the name `q@15` where three queries brought five each. It is journaled and replayed like any other
and calls no model.

No question fails where the index does: its row names the search that is missing (`unsearched`), a warning counts them,
and the next session, or a replay, makes them up with an index that answers.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import dspy

from blendfilter import aio
from blendfilter.context import JOURNAL, NOTES, setting
from blendfilter.errors import BudgetSpent, CannotWrite, ReplayMiss, words_of
from blendfilter.evaluation.rows import UNION, PredictionRow, retrieval_figures
from blendfilter.evaluation.run_settings import retrievers_of
from blendfilter.evaluation.summary import QUESTION_ALONE
from blendfilter.modules.base import Method
from blendfilter.records import Passage, Question, one_line
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.precomputed import Precomputed

logger = logging.getLogger(__name__)
QUERY = "q"
"""What methods call the question itself among their queries."""
Found = Mapping[str, Sequence[Passage] | None]
"""``{"q@15": passages}``, None in their place where the index fails; empty where there is nothing to compare."""


class _AloneSearch(NamedTuple):
    query: str
    k: int

    @property
    def name(self) -> str:
        return f"{QUESTION_ALONE}{self.k}"


class QuestionAlone:
    """The one more search of a run's method; none where the method has no index, or several."""

    def __init__(self, method: dspy.Module) -> None:
        indexes = retrievers_of(method)
        self.retriever = indexes[0] if len(indexes) == 1 else None
        k = method.arguments().get("k") if isinstance(method, Method) else None
        self.k = k if isinstance(k, int) else 0
        self.failed = 0
        """Searches of this session that the index failed in."""
        self._why = ""

    async def added(self, row: PredictionRow, question: Question, prediction: Any) -> PredictionRow:
        """The row of `prediction` with the figures of the search. Raises: BudgetSpent, CannotWrite."""
        retrieved = {name: branch.retrieved for name, branch in _mapping(prediction, "branches").items()}
        search = self._search_for(question, _mapping(prediction, "queries"), retrieved)
        return row if search is None else _with_figures(row, question, await self._found(search))

    def lacks(self, row: Mapping[str, Any], question: Question) -> bool:
        """Whether a row on file goes without its search, though it is one that can be compared."""
        search = self._of_row(row, question)
        return search is not None and UNION in row["retrieval"] and search.name not in row["retrieval"]

    async def made_up(self, row: PredictionRow, question: Question) -> PredictionRow:
        """A row on file with the search that it lacks; not tried any more once the index failed in this session."""
        search = self._of_row(row, question)
        if search is None:
            return row
        if self.failed:
            self.failed += 1
            return _with_figures(row, question, {search.name: None})
        return _with_figures(row, question, await self._found(search))

    def warn(self) -> None:
        """Say how often the index failed in this session."""
        if self.failed:
            searches = "1 search" if self.failed == 1 else f"{self.failed} searches"
            warnings.warn(
                f"{searches} for a question alone could not be made ({self._why}), so the figure is over fewer "
                "questions: run the same command again once the index answers",
                stacklevel=2,
            )

    def _of_row(self, row: Mapping[str, Any], question: Question) -> _AloneSearch | None:
        retrieved = {name: branch["retrieved"] for name, branch in row["branches"].items()}
        return self._search_for(question, row["queries"], retrieved)

    def _search_for(
        self, question: Question, queries: Mapping[str, Any], retrieved: Mapping[str, Sequence[Any]]
    ) -> _AloneSearch | None:
        query = one_line(question.question)
        if self.retriever is None or len(retrieved) < 2 or QUERY not in retrieved or queries.get(QUERY) != query:
            return None
        return _AloneSearch(query, len(retrieved) * (self.k or len(retrieved[QUERY])))

    async def _found(self, search: _AloneSearch) -> Found:
        try:
            with setting(NOTES, []):  # a query that is cut here says nothing of what the method did
                passages = await aio.in_thread(self._searched, search)
        except (BudgetSpent, CannotWrite, *aio.ENDING):
            raise
        except BaseException as error:  # whatever an index raises: counted, and reported by `warn`
            logger.debug("no search for %r alone with k=%d", search.query, search.k, exc_info=True)
            self.failed += 1
            self._why = self._why or f"{type(error).__name__}: {words_of(error)}"
            return {search.name: None}
        return {} if passages is None else {search.name: passages}

    def _searched(self, search: _AloneSearch) -> list[Passage] | None:
        """Its passages; None where the index has too few for it."""
        assert self.retriever is not None
        if not has_enough(self.retriever, search.query, search.k):
            return None
        try:
            return self.retriever.search([search.query], search.k)[0]
        except ReplayMiss:
            # Its index failed when the run was made, or the run is older than this search: search the index itself.
            with setting(JOURNAL, None):
                return self.retriever.search([search.query], search.k)[0]


def has_enough(retriever: Retriever, query: str, k: int) -> bool:
    """Whether `retriever` has k passages to give, as far as it knows: fewer would be no fair comparison."""
    if k < 1:
        return False
    if isinstance(retriever, Precomputed):
        return retriever.held(query) >= k
    try:
        return len(retriever) >= k
    except TypeError:  # a function, a server
        return True


def _with_figures(row: PredictionRow, question: Question, found: Found) -> PredictionRow:
    """`row` with the figures of passages that its method never saw, beside the union, by the search's name.

    None in the place of passages is a search that failed: the row names it (`unsearched`).
    """
    figures = row["retrieval"]
    if UNION not in figures:  # its gold is unknown
        return row
    for name, passages in found.items():
        new = {} if passages is None else retrieval_figures({name: passages}, question)
        order = list(figures)
        after = order.index(UNION) + 1
        order[after:after] = [variant for variant in new if variant not in figures]
        figures = {variant: (figures | new)[variant] for variant in order}
    rest = {key: value for key, value in row.items() if key != "unsearched"} | {"retrieval": figures}
    missing = [name for name, passages in found.items() if passages is None]
    return rest | ({"unsearched": missing} if missing else {})


def _mapping(prediction: Any, name: str) -> Mapping[str, Any]:
    value = prediction.get(name) if isinstance(prediction, Mapping) else getattr(prediction, name, None)
    return value if isinstance(value, Mapping) else {}

"""The question alone, with as many passages as all queries of a method were given: what blending queries must beat.

In: a question and a method's prediction that has several queries, one of them the question itself (`q`). Out: the
passages of one more search, for the question alone, under the name `q@15` where three queries brought five each. The
search is journaled and replayed like any other and asks no model.

No question fails where the index does: its row names the search that is missing (`unsearched`), a warning counts them,
and the next sitting, or a replay, makes them up with an index that answers.
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
from blendfilter.evaluation.rows import UNION
from blendfilter.evaluation.settings import retrievers_of
from blendfilter.modules.base import Method
from blendfilter.records import Passage, one_line
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.precomputed import Precomputed

logger = logging.getLogger(__name__)
QUERY = "q"
"""What methods call the question itself among their queries."""


class Wanted(NamedTuple):
    """One more search."""

    query: str
    k: int

    @property
    def name(self) -> str:
        """What its figures are called: `q@15`."""
        return f"{QUERY}@{self.k}"


class Beside:
    """The one more search of a run's method; none where the method holds no index, or several."""

    def __init__(self, method: dspy.Module) -> None:
        held = retrievers_of(method)
        self.retriever = held[0] if len(held) == 1 else None
        told = method.arguments().get("k") if isinstance(method, Method) else None
        self.k = told if isinstance(told, int) else 0
        self.failed = 0
        """Searches of this sitting that the index failed in."""
        self._why = ""

    async def found(self, question: str, prediction: Any) -> dict[str, list[Passage] | None]:
        """``{"q@15": passages}``, None in their place where the index fails; nothing where there is nothing to compare.

        Raises: BudgetSpent, CannotWrite.
        """
        retrieved = {name: branch.retrieved for name, branch in _mapping(prediction, "branches").items()}
        wanted = self._wanted(question, _mapping(prediction, "queries"), retrieved)
        return await self._searched(wanted) if wanted is not None else {}

    def lacks(self, question: str, row: Mapping[str, Any]) -> bool:
        """Whether a row on file goes without its search, though it is one that can be compared."""
        retrieved = {name: branch["retrieved"] for name, branch in row["branches"].items()}
        wanted = self._wanted(question, row["queries"], retrieved)
        return wanted is not None and UNION in row["retrieval"] and wanted.name not in row["retrieval"]

    async def made_up(self, question: str, row: Mapping[str, Any]) -> dict[str, list[Passage] | None]:
        """The search that a row on file lacks; not tried any more once the index failed in this sitting."""
        retrieved = {name: branch["retrieved"] for name, branch in row["branches"].items()}
        wanted = self._wanted(question, row["queries"], retrieved)
        if wanted is not None and self.failed:
            self.failed += 1
            return {wanted.name: None}
        return await self._searched(wanted) if wanted is not None else {}

    def warn(self) -> None:
        """Say how often the index failed in this sitting."""
        if self.failed:
            searches = "1 search" if self.failed == 1 else f"{self.failed} searches"
            warnings.warn(
                f"{searches} for a question alone could not be made ({self._why}), so the figure is over fewer "
                "questions: run the same command again once the index answers",
                stacklevel=2,
            )

    def _wanted(
        self, question: str, queries: Mapping[str, Any], retrieved: Mapping[str, Sequence[Any]]
    ) -> Wanted | None:
        query = one_line(question)
        if self.retriever is None or len(retrieved) < 2 or QUERY not in retrieved or queries.get(QUERY) != query:
            return None
        return Wanted(query, len(retrieved) * (self.k or len(retrieved[QUERY])))

    async def _searched(self, wanted: Wanted) -> dict[str, list[Passage] | None]:
        try:
            with setting(NOTES, []):  # a query that is cut here says nothing of what the method did
                passages = await aio.in_thread(self._search, wanted)
        except (BudgetSpent, CannotWrite, *aio.ENDING):
            raise
        except BaseException as error:  # whatever an index raises: counted, and told by `warn`
            logger.debug("no search for %r alone with k=%d", wanted.query, wanted.k, exc_info=True)
            self.failed += 1
            self._why = self._why or f"{type(error).__name__}: {words_of(error)}"
            return {wanted.name: None}
        return {} if passages is None else {wanted.name: passages}

    def _search(self, wanted: Wanted) -> list[Passage] | None:
        """Its passages; None where the index holds too few for it."""
        assert self.retriever is not None
        if not holds(self.retriever, wanted.query, wanted.k):
            return None
        try:
            return self.retriever.search([wanted.query], wanted.k)[0]
        except ReplayMiss:
            # Its index failed when the run was made, or the run is of before this search: an index may be asked now.
            with setting(JOURNAL, None):
                return self.retriever.search([wanted.query], wanted.k)[0]


def holds(retriever: Retriever, query: str, k: int) -> bool:
    """Whether `retriever` has k passages to give, as far as it knows: fewer would be no fair comparison."""
    if k < 1:
        return False
    if isinstance(retriever, Precomputed):
        return retriever.held(query) >= k
    try:
        return len(retriever) >= k
    except TypeError:  # a function, a server
        return True


def _mapping(prediction: Any, name: str) -> Mapping[str, Any]:
    value = prediction.get(name) if isinstance(prediction, Mapping) else getattr(prediction, name, None)
    return value if isinstance(value, Mapping) else {}

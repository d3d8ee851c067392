"""The question alone, with as many passages as all queries of a method were given: what blending queries must beat.

In: a question and a method's prediction that has several queries, one of them the question itself (`q`). Out: the
passages of one more search, for the question alone, under the name `q@15` where three queries brought five each. The
search is journaled and replayed like any other and asks no model. Where it cannot be made it is left out: no question
fails for it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import dspy

from blendfilter.context import NOTES, setting
from blendfilter.errors import CannotWrite
from blendfilter.evaluation.settings import retrievers_of
from blendfilter.lm import bridge
from blendfilter.modules.base import Method
from blendfilter.records import Passage, one_line
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.precomputed import Precomputed

logger = logging.getLogger(__name__)
QUERY = "q"
"""What methods call the question itself among their queries."""


class Beside:
    """The one more search of a run's method; none where the method holds no index, or several."""

    def __init__(self, method: dspy.Module) -> None:
        held = retrievers_of(method)
        self.retriever = held[0] if len(held) == 1 else None
        told = method.arguments().get("k") if isinstance(method, Method) else None
        self.k = told if isinstance(told, int) else 0

    async def found(self, question: str, prediction: Any) -> dict[str, list[Passage]]:
        """``{"q@15": passages}``, or nothing where there is nothing to hold it against."""
        branches = _mapping(prediction, "branches")
        if self.retriever is None or len(branches) < 2 or QUERY not in branches:
            return {}
        query = one_line(question)
        if _mapping(prediction, "queries").get(QUERY) != query:
            return {}
        k = len(branches) * (self.k or len(branches[QUERY].retrieved))
        if not holds(self.retriever, query, k):
            return {}
        try:
            with setting(NOTES, []):  # a query that is cut here says nothing of what the method did
                passages = (await bridge.in_thread(self.retriever.search, [query], k))[0]
        except CannotWrite:
            raise
        except Exception:  # a run recorded before this search was made, a server that is gone
            logger.debug("no search for %r alone with k=%d", query, k, exc_info=True)
            return {}
        return {f"{QUERY}@{k}": passages}


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

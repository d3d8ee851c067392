"""What every index answers: `search(queries, k)`, and a fingerprint that changes whenever its results may.

In: questions as strings. Out: a list of passages for each, best first, with scores where the engine has any.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

from blendfilter.context import JOURNAL, note, rejoined
from blendfilter.errors import BadArgument
from blendfilter.records import Passage
from blendfilter.retrieval import journaled
from blendfilter.retrieval.hits import cut_of


class Retriever(ABC):
    """An index, wherever it lies. It never changes once open, so threads share it and copies are the index itself.

    Subclasses set `fingerprint` (16 hex digits; it is part of every journaled search's key) and write `find`.
    """

    fingerprint: str

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages for each of `queries`, best first, in the order of `queries`.

        Under a run, searches go through its journal. Raises `BadArgument` where `k` is below 1 or a query is empty.
        """
        check_search(queries, k)
        with rejoined():
            journal = JOURNAL.get()
            if journal is None:
                found = self.find(queries, k)
            else:
                found = journaled.search(journal, self.fingerprint, self.find, queries, k)
            for hits in found:
                if cut_of(hits):
                    note("", "query_cut")
            return found

    @abstractmethod
    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The search itself, of arguments already checked. A query that was cut is answered by `Hits(…, cut=True)`."""

    def __call__(self, query: str, k: int = 5, **_: Any) -> list[Passage]:
        """One query's passages. This makes any index a retrieval model for `dspy.configure(rm=index)`."""
        return self.search([query], k)[0]

    def info(self) -> dict[str, Any]:
        """What this index is, for people and for a run's record: its kind, its fingerprint, and what else it knows."""
        return {"kind": type(self).__name__, "fingerprint": self.fingerprint}

    def __len__(self) -> int:
        """How many passages there are; a TypeError where that is not known (a function, a server)."""
        raise TypeError(f"a {type(self).__name__} does not know how many passages it searches")

    def __bool__(self) -> bool:
        """True: an index is something even where its length is not known."""
        return True

    # DSPy copies modules, and with them what they hold; nobody wants a second copy of five million passages.
    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class CutQueries:
    """Says once that an engine cannot read queries as long as these, and how long the longest it reads is."""

    def __init__(self, limit: str) -> None:
        self.limit = limit
        self.said = False

    def check(self, query: str, cut: bool) -> None:
        """Warn on the first query that was cut; every one of them is flagged besides (`Hits.cut`)."""
        if cut and not self.said:
            self.said = True
            warnings.warn(
                f"a query of {len(query.split()):,} words was cut: {self.limit}; each one is flagged (query_cut)",
                stacklevel=4,
            )


def fingerprint_of(*parts: Any) -> str:
    """16 hex digits that change when any of `parts` (JSON values) does.

    >>> fingerprint_of("bm25", {"k1": 0.9, "b": 0.4}) == fingerprint_of("bm25", {"b": 0.4, "k1": 0.9})
    True
    >>> fingerprint_of("bm25", {"k1": 0.9}) == fingerprint_of("bm25", {"k1": 1.2})
    False
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def check_search(queries: Sequence[str], k: int) -> None:
    """Raise `BadArgument` unless `k` is a whole number from 1 up and every query has something in it."""
    if isinstance(k, bool) or not isinstance(k, int):
        raise BadArgument(f"k must be a whole number, got {k!r}")
    if k < 1:
        raise BadArgument(f"k must be at least 1, got {k}")
    if isinstance(queries, str):
        raise BadArgument("search takes a list of queries, got one string: put it in a list, or call the index with it")
    for position, query in enumerate(queries):
        which = f"query {position + 1} of {len(queries)}" if len(queries) > 1 else "the query"
        if not isinstance(query, str):
            raise BadArgument(f"{which} must be a string, got {type(query).__name__}")
        if not query.strip():
            raise BadArgument(f"{which} is empty ({query!r}): there is nothing to search for")


class ShortCorpus:
    """Says once that `k` asks for more passages than there are."""

    def __init__(self, passages: int) -> None:
        self.passages = passages
        self.said = False

    def check(self, k: int) -> None:
        """Warn on the first `k` above the number of passages; the search goes on with what there is."""
        if k > self.passages and not self.said:
            self.said = True
            warnings.warn(
                f"k={k} is more than the corpus holds: at most {self.passages} passages come back", stacklevel=4
            )

"""What every index answers, `search(queries, k)`, and what all of them need for it: hits, ranking, journaled searches.

An index has a fingerprint, which changes whenever its results may. It is part of the key of each journaled search, so a
run serves no stale hits.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from blendfilter.context import asker, note, rejoined, setting, who
from blendfilter.errors import BadArgument, ReplayMiss, check_count
from blendfilter.journal import Journal, digest
from blendfilter.records import Passage

Scores = np.typing.NDArray[np.float64]

_GROUP = 64
_GRAIN = 2.0**30
"""Scores within one part in 10^9 are one score: two sums of the same terms may differ in the last bits."""
_JUST_BELOW = 1 - 4 / _GRAIN


class Trim(BaseModel):
    """What a trimmed index did to one search's ranking, and by which judged question (see `blendfilter.trimming`)."""

    model_config = ConfigDict(frozen=True, extra="ignore")
    judged: str
    """The judged question, or the nearest of several, whose verdicts applied."""
    similarity: float
    """How near it is to the query; 1 is the same."""
    dropped: Mapping[str, str]
    """The ids that went, each with the id of the accepted passage beside which it stood; empty: by its own verdict."""
    refilled: tuple[str, ...] = ()
    """The ids that came from below the first k in their place."""
    unjudged: tuple[str, ...] = ()
    """Those of `refilled` on which no verdict is known for such a question."""

    @property
    def line(self) -> str:
        """For people: what went, what came, and by the verdicts on which question."""
        dropped, unjudged = self.dropped.items(), self.unjudged
        went = ", ".join(f"{name} (beside {kept})" if kept else name for name, kept in dropped)
        came = ", ".join(
            f"{name} (not judged)" if name in unjudged else name for name in self.refilled
        )
        filled = f"; filled in {came}" if came else ""
        return f"trimmed: dropped {went}{filled} (verdicts on {self.judged!r})"


class Hits(list[Passage]):
    """Passages, best first. `cut`: the engine could not read the whole query. `trim`: what a trimmed index changed.
    `missing`: shards that did not answer, so that these are the best of the others.

    A plain list of passages does where nothing was cut or trimmed.

    >>> cut_of(Hits([], cut=True)), cut_of([])
    (True, False)
    """

    def __init__(
        self,
        passages: Iterable[Passage] = (),
        *,
        cut: bool = False,
        trim: Trim | None = None,
        missing: Iterable[str] = (),
    ) -> None:
        super().__init__(passages)
        self.cut = cut
        self.trim = trim
        self.missing = tuple(missing)


def cut_of(hits: Sequence[Passage]) -> bool:
    """Whether the query of these hits was cut."""
    return isinstance(hits, Hits) and hits.cut


def trim_of(hits: Sequence[Passage]) -> Trim | None:
    """What a trimmed index changed in these hits; None: nothing."""
    return hits.trim if isinstance(hits, Hits) else None


def missing_of(hits: Sequence[Passage]) -> tuple[str, ...]:
    """The shards that did not answer for these hits."""
    return hits.missing if isinstance(hits, Hits) else ()


def hits_like(passages: Iterable[Passage], *rankings: Sequence[Passage], **flags: Any) -> Hits:
    """`passages` with the flags of the rankings that they come from, and with those given."""
    missing = dict.fromkeys(chain.from_iterable(map(missing_of, rankings)))
    return Hits(passages, **{"cut": any(map(cut_of, rankings)), "missing": missing, **flags})


def flags_of(hits: Sequence[Passage]) -> dict[str, Any]:
    """What is to be kept of hits beside their passages, as JSON; empty for a plain list."""
    trim = trim_of(hits)
    flags = {
        "query_cut": cut_of(hits),
        "trim": trim and trim.model_dump(mode="json"),
        "missing_shards": [*missing_of(hits)],
    }
    return {name: flag for name, flag in flags.items() if flag}


def with_flags(passages: Iterable[Passage], flags: Mapping[str, Any]) -> Hits:
    """Hits as `flags_of` kept them. Raises `ValueError` for a `trim` that is none."""
    trim, missing = flags.get("trim"), flags.get("missing_shards")
    # a user's own column may have the name
    known = Trim.model_validate(trim) if isinstance(trim, Mapping) else None
    gone = map(str, missing) if isinstance(missing, list) else ()
    return Hits(passages, cut=bool(flags.get("query_cut")), trim=known, missing=gone)


class Searcher(Protocol):
    """What finds passages for a method: an index, or any callable (query, k), whatever shape its passages come in."""

    def __call__(self, query: str, k: int, /) -> Any: ...


class Retriever(ABC):
    """An index, wherever it lies. It never changes once open, so threads share it and copies are the index itself.

    Subclasses set `fingerprint` (16 hex digits) and write `find`.
    """

    fingerprint: str
    kind: str = ""
    _warned: frozenset[str] = frozenset()

    def search(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """At most `k` passages for each of `queries`, best first, in the order of `queries`.

        Under a run, searches go through its journal. Raises `BadArgument` where `k` is below 1 or a query is empty.
        """
        k = self._checked_search(queries, k)
        with rejoined():
            journal, known = asker().journal, asker().found
            with setting(found=None):  # the searches of its parts are steps of this one
                found = (
                    self.find(queries, k)
                    if journal is None
                    else self._journaled(journal, queries, k)
                )
            if known is not None:
                known |= {
                    (query, k, self.fingerprint): hits
                    for query, hits in zip(queries, found, strict=True)
                }
            for hits in found:
                if cut_of(hits):
                    note("", "query_cut")
                if missing_of(hits):
                    note("", "partial_search")
            return found

    def _checked_search(self, queries: Sequence[str], k: int) -> int:
        """As `check_search`, and a warning where `k` is above the number of passages."""
        k, size = check_search(queries, k), self.size
        if size is not None and k > size:
            least = f"at most {size} passages come back"
            self._warn("k", f"k={k} is more than the corpus holds: {least}")
        return k

    def _warn(self, kind: str, message: str) -> None:
        """Warn once of that kind."""
        if kind not in self._warned:
            self._warned |= {kind}
            warnings.warn(message, stacklevel=4)

    def _journaled(
        self, journal: Journal, queries: Sequence[str], k: int
    ) -> list[list[Passage]]:
        """`find`, with what the journal holds served from it, so that a replay needs no index.

        A search's record holds ids and scores, and the keys under which the journal keeps each passage's text once.
        """
        keys = {query: digest("search", self.fingerprint, query, k) for query in queries}
        recorded = {query: _recorded(journal, key) for query, key in keys.items()}
        served = {query: found for query, found in recorded.items() if found is not None}
        missing = [query for query in keys if query not in served]
        if missing and journal.mode == "replay":
            raise ReplayMiss(
                f"not in the journal: {who() or 'a search'} searches index {self.fingerprint} for {missing[0][:80]!r}, "
                f"k={k}, which {journal.path} does not hold; run it without replay=True"
            )
        answers = self.find(missing, k) if missing else []
        for query, found in zip(missing, answers, strict=True):
            passages = [_passage_record(self.fingerprint, passage) for passage in found]
            journal.append(*passages, new_only=True)
            record = {
                "key": keys[query],
                "kind": "search",
                "fingerprint": self.fingerprint,
                "query": query,
                "k": k,
                "ids": [passage.id for passage in found],
                "scores": [None if p.score is None else float(p.score) for p in found],
                "passages": [passage["key"] for passage in passages],
                **flags_of(found),
            }
            # a search made twice at once is kept once; `record` mode replaces what an earlier run found
            journal.append(record, new_only=journal.mode != "record")
            served[query] = found
        return [served[query] for query in queries]

    def as_cheap(self, k: int) -> int:
        """The largest depth at which a search takes no longer than for `k`, and finds the same first `k`."""
        return k

    @abstractmethod
    def find(self, queries: Sequence[str], k: int) -> list[list[Passage]]:
        """The search itself, of arguments already checked. A query that was cut is answered by `Hits(…, cut=True)`."""

    def __call__(self, query: str, k: int = 5, **_: Any) -> list[Passage]:
        """One query's passages. This makes any index a retrieval model for `dspy.configure(rm=index)`."""
        return self.search([query], k)[0]

    def as_tool(self, name: str = "search", description: str = "", k: int = 5) -> Any:
        """A `dspy.Tool` that searches here: `dspy.ReAct("question -> answer", tools=[index.as_tool()])`.

        A model reads its name and `description` (what there is to find, and how to ask); optimisers may rewrite both.
        """
        import dspy

        k = check_count("k", k)
        return dspy.Tool(SearchTool(self, k), name=name, desc=description or _TOOL.format(k=k))

    def info(self) -> dict[str, Any]:
        """What this index is, for people and for a run's record: its kind, its fingerprint, and what else it knows."""
        return {"kind": self.kind or type(self).__name__, "fingerprint": self.fingerprint}

    def outdated(self) -> bool:
        """Whether another index took its place, or that of one of its parts, since it was opened."""
        return any(part.outdated() for part in self.parts())

    def fresh(self) -> Retriever:
        """This index or, where it is outdated, the one that took its place, opened as this one was.

        This one answers as before. Raises as opening does.
        """
        return self.over([part.fresh() for part in self.parts()]) if self.outdated() else self

    def parts(self) -> Sequence[Retriever]:
        """The indexes that this one lies over."""
        return ()

    def over(self, parts: Sequence[Retriever]) -> Retriever:
        """The same over other parts."""
        return self

    @property
    def size(self) -> int | None:
        """How many passages there are, where that is known."""
        try:
            return len(self)
        except TypeError:
            return None

    def __len__(self) -> int:
        """How many passages there are; a TypeError where that is not known (a function, a server)."""
        raise TypeError(f"a {type(self).__name__} does not know how many passages it searches")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, fingerprint {self.fingerprint}>"

    def __bool__(self) -> bool:
        return True  # even where the length is not known

    # DSPy copies modules with what they hold; a second copy of five million passages is of no use
    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


_TOOL = (
    "Find the {k} passages that best match a query, each as a line 'Title | text'. "
    "Ask for one fact at a time, in a few words that its passage would contain."
)


class SearchTool:
    """An index as a model calls it: from a query to lines."""

    def __init__(self, index: Retriever, k: int) -> None:
        self.index = index
        self.k = k

    def __call__(self, query: str) -> list[str]:
        lines = [passage.line for passage in self.index.search([query], self.k)[0]]
        return lines or ["No passage matches this query: try other words."]


class ProgressCallback(Protocol):
    """Called now and then during long work, in order: `done` of `total` things of `phase` are done.

    A `total` of None is not known yet. The command line draws a bar a phase; a notebook may pass `print`.
    """

    def __call__(self, phase: str, done: int, total: int | None = None, /) -> object: ...


def silent(phase: str, done: int, total: int | None = None, /) -> None:
    """A `ProgressCallback` that does nothing."""


def fingerprint_of(*parts: Any) -> str:
    """16 hex digits that change when any of `parts` (JSON values) does.

    >>> fingerprint_of("bm25", {"k1": 0.9, "b": 0.4}) == fingerprint_of("bm25", {"b": 0.4, "k1": 0.9})
    True
    >>> fingerprint_of("bm25", {"k1": 0.9}) == fingerprint_of("bm25", {"k1": 1.2})
    False
    """
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]


def check_search(queries: Sequence[str], k: int) -> int:
    """`k` as `check_count` gives it. Raises `BadArgument` unless every query has something in it."""
    k = check_count("k", k)
    if isinstance(queries, str):
        raise BadArgument(
            "search takes a list of queries, got one string: put it in a list, or call the index with it"
        )
    for position, query in enumerate(queries):
        which = f"query {position + 1} of {len(queries)}" if len(queries) > 1 else "the query"
        if not isinstance(query, str):
            raise BadArgument(f"{which} must be a string, got {type(query).__name__}")
        if not query.strip():
            raise BadArgument(f"{which} is empty ({query!r}): there is nothing to search for")
    return k


def first_fault(error: ValidationError) -> str:
    """The first thing that a model refuses in a value: where, and why."""
    fault = error.errors()[0]
    return f"{'.'.join(map(str, fault['loc'])) or 'the whole of it'}: {fault['msg']}"


# --- records of a journal --------------------------------------------------------------------------------------------


def _passage_record(fingerprint: str, passage: Passage) -> dict[str, object]:
    """The text is part of the key, because a search service may give different excerpts under one id."""
    content: dict[str, object] = {
        "id": passage.id,
        "title": passage.title,
        "text": passage.text,
    }
    if passage.metadata:
        content["metadata"] = json.loads(json.dumps(dict(passage.metadata), default=str))
    return {
        "key": digest("passage", fingerprint, content),
        "kind": "passage",
        "fingerprint": fingerprint,
        **content,
    }


def _recorded(journal: Journal, key: str) -> list[Passage] | None:
    record = journal.find(key, "search")
    if record is None:
        return None
    kept = [journal.find(name, "passage") for name in record["passages"]]
    passages = [
        Passage(row["id"], row["title"], row["text"], score, row.get("metadata", {}))
        for row, score in zip(kept, record["scores"], strict=True)
        if row is not None
    ]
    return with_flags(passages, record) if len(passages) == len(kept) else None


# --- the best k of many scores --------------------------------------------------------------------------------------


def best(scores: Scores, k: int) -> list[int]:
    """Positions of the `k` highest positive scores; fewer where fewer are positive. Equal scores: corpus order.

    The same on every machine: partial selection alone would pick any of those tied at the k-th place, so everything
    level with it is sorted.

    >>> best(np.array([1.0, 3.0, 0.0, 3.0, 1.0]), 3)
    [1, 3, 0]
    """
    floor, groups = 0.0, len(scores) // _GROUP
    # without sorting: k passages reach the k-th highest of the groups' maxima
    if groups >= 2 * k:
        maxima = scores[: groups * _GROUP].reshape(_GROUP, groups).max(axis=0)
        floor = float(np.partition(maxima, -k)[-k]) * _JUST_BELOW
    matching = np.flatnonzero(scores >= floor if floor > 0 else scores > 0)
    found = scores[matching]
    if len(found) > k:
        near = found >= float(np.partition(found, -k)[-k]) * _JUST_BELOW
        matching, found = matching[near], found[near]
    order = np.argsort(-coarse(found), kind="stable")[:k]
    return [int(position) for position in matching[order]]


def coarse(scores: Any, grain: float = _GRAIN, least: float = 0.0) -> Scores:
    """Scores with so many steps between a power of two and the next, so that rounding noise orders nothing.

    Below `least` the steps are those at `least`: there the noise is no smaller.
    """
    given = np.asarray(scores, dtype=np.float64)
    _, exponent = np.frexp(np.maximum(np.abs(given), least))
    coarsened: Scores = np.ldexp(np.round(np.ldexp(given, -exponent) * grain) / grain, exponent)
    return coarsened

"""Searches through the journal: found once, served from the file afterwards, replayed with the index gone.

The key of a search is the index's fingerprint, the query and k. A record holds ids and scores; each passage's text is
stored once, under the fingerprint and its id. Which journal is the runner's to say, by a context variable, so that any
index searched anywhere under it takes part, in a user's own module too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar

from blendfilter.context import who
from blendfilter.errors import ReplayMiss
from blendfilter.journal import Journal, digest
from blendfilter.records import Passage

JOURNAL: ContextVar[Journal | None] = ContextVar("blendfilter_search_journal", default=None)
"""The journal of the run under way, or None."""

Find = Callable[[Sequence[str], int], list[list[Passage]]]


def search(journal: Journal, fingerprint: str, find: Find, queries: Sequence[str], k: int) -> list[list[Passage]]:
    """`find(queries, k)`, with those already in the journal served from it.

    Raises:
        ReplayMiss: a replay whose journal does not hold one of them.
    """
    keys = [digest("search", fingerprint, query, k) for query in queries]
    served = {key: found for key in dict.fromkeys(keys) if (found := _served(journal, fingerprint, key)) is not None}
    missing = {key: query for key, query in zip(keys, queries, strict=True) if key not in served}
    if missing and journal.mode == "replay":
        query = next(iter(missing.values()))
        raise ReplayMiss(
            f"not in the journal: {who() or 'a search'} searches index {fingerprint} for {query[:80]!r}, k={k}, "
            f"which {journal.path} does not hold; run it without --replay"
        )
    if missing:
        for (key, query), found in zip(missing.items(), find(list(missing.values()), k), strict=True):
            journal.append(*(_stored(fingerprint, passage) for passage in found), new_only=True)
            # A search made twice at once is kept once; `record` mode replaces what an earlier sitting found.
            journal.append(_record(key, fingerprint, query, k, found), new_only=journal.mode != "record")
            served[key] = found
    return [served[key] for key in keys]


def passage_key(fingerprint: str, name: str) -> str:
    """The key under which a passage's text is stored."""
    return digest("passage", fingerprint, name)


def _record(key: str, fingerprint: str, query: str, k: int, found: Sequence[Passage]) -> dict[str, object]:
    return {
        "key": key,
        "kind": "search",
        "fingerprint": fingerprint,
        "query": query,
        "k": k,
        "ids": [passage.id for passage in found],
        "scores": [passage.score for passage in found],
    }


def _stored(fingerprint: str, passage: Passage) -> dict[str, object]:
    return {
        "key": passage_key(fingerprint, passage.id),
        "kind": "passage",
        "fingerprint": fingerprint,
        "id": passage.id,
        "title": passage.title,
        "text": passage.text,
        **({"metadata": dict(passage.metadata)} if passage.metadata else {}),
    }


def _served(journal: Journal, fingerprint: str, key: str) -> list[Passage] | None:
    record = journal.find(key)
    if record is None:
        return None
    passages = []
    for name, score in zip(record["ids"], record["scores"], strict=True):
        kept = journal.find(passage_key(fingerprint, name))
        if kept is None:
            return None
        passages.append(Passage(kept["id"], kept["title"], kept["text"], score, kept.get("metadata", {})))
    return passages

"""Searches through the journal: found once, served from the file afterwards, replayed with the index gone.

The key of a search is the index's fingerprint, the query and k. A record holds ids and scores; each passage's text is
stored once, and the record says under which keys. Which journal is the runner's to say (`context.JOURNAL`), so that any
index searched anywhere under it takes part, in a user's own module too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from blendfilter.context import who
from blendfilter.errors import ReplayMiss
from blendfilter.journal import Journal, digest
from blendfilter.records import Passage
from blendfilter.retrieval.hits import Hits, cut_of

Find = Callable[[Sequence[str], int], list[list[Passage]]]


def search(journal: Journal, fingerprint: str, find: Find, queries: Sequence[str], k: int) -> list[list[Passage]]:
    """`find(queries, k)`, with those already in the journal served from it.

    Raises:
        ReplayMiss: a replay whose journal does not hold one of them.
    """
    keys = [digest("search", fingerprint, query, k) for query in queries]
    served = {key: found for key in dict.fromkeys(keys) if (found := _served(journal, key)) is not None}
    missing = {key: query for key, query in zip(keys, queries, strict=True) if key not in served}
    if missing and journal.mode == "replay":
        query = next(iter(missing.values()))
        raise ReplayMiss(
            f"not in the journal: {who() or 'a search'} searches index {fingerprint} for {query[:80]!r}, k={k}, "
            f"which {journal.path} does not hold; run it without --replay"
        )
    if missing:
        for (key, query), found in zip(missing.items(), find(list(missing.values()), k), strict=True):
            stored = [_stored(fingerprint, passage) for passage in found]
            journal.append(*stored, new_only=True)
            # A search made twice at once is kept once; `record` mode replaces what an earlier sitting found.
            record = _record(key, fingerprint, query, k, found, [str(each["key"]) for each in stored])
            journal.append(record, new_only=journal.mode != "record")
            served[key] = found
    return [served[key] for key in keys]


def _record(
    key: str, fingerprint: str, query: str, k: int, found: Sequence[Passage], passages: Sequence[str]
) -> dict[str, object]:
    return {
        "key": key,
        "kind": "search",
        "fingerprint": fingerprint,
        "query": query,
        "k": k,
        "ids": [passage.id for passage in found],
        "scores": [None if passage.score is None else float(passage.score) for passage in found],
        "passages": list(passages),
        **({"query_cut": True} if cut_of(found) else {}),
    }


def _stored(fingerprint: str, passage: Passage) -> dict[str, object]:
    """A passage's record; its text is part of the key, for a search service may show other excerpts under one id."""
    content = {"id": passage.id, "title": passage.title, "text": passage.text}
    metadata = json.loads(json.dumps(dict(passage.metadata), default=str))
    told = {**content, **({"metadata": metadata} if metadata else {})}
    return {"key": digest("passage", fingerprint, told), "kind": "passage", "fingerprint": fingerprint, **told}


def _served(journal: Journal, key: str) -> list[Passage] | None:
    record = journal.find(key, "search")
    if record is None:
        return None
    passages = []
    for name, score in zip(record["passages"], record["scores"], strict=True):
        kept = journal.find(name, "passage")
        if kept is None:
            return None
        passages.append(Passage(kept["id"], kept["title"], kept["text"], score, kept.get("metadata", {})))
    return Hits(passages, cut=True) if record.get("query_cut") else passages

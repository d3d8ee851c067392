"""The passages that a run retrieved, found again in its journal.

Only keys are kept in memory (about 150 bytes a search and a passage), never texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from blendfilter.errors import BadData
from blendfilter.journal import Journal


class Passages:
    """The passages of `journal`, by the query that retrieved them.

    One id may stand for several texts (two indexes, or a service that shows other excerpts for other queries): the
    search that found it decides.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._by_id: dict[str, bytes] = {}
        self._by_query: dict[bytes, bytes] = {}
        for record in journal.records("passage", "search"):
            key = bytes.fromhex(record["key"])
            if record["kind"] == "passage":
                self._by_id.setdefault(record["id"], key)
            else:
                name = _digest(record["query"])
                self._by_query[name] = self._by_query.get(name, b"") + key

    def of(self, query: str | None) -> dict[str, str]:
        """The journal's key of each passage that was found for `query`, by the passage's id."""
        found: dict[str, str] = {}
        keys = self._by_query.get(_digest(query), b"") if query is not None else b""
        for start in range(0, len(keys), 16):
            search = self._journal.read(keys[start : start + 16].hex(), "search") or {"ids": [], "passages": []}
            for name, key in zip(search["ids"], search["passages"], strict=True):
                found.setdefault(name, key)
        return found

    def key(self, name: str, found: Mapping[str, str]) -> str | None:
        """The key of the passage with that id: as `found` has it, else the first one anywhere in the journal."""
        if name in found:
            return found[name]
        key = self._by_id.get(name)
        return key.hex() if key is not None else None

    def read(self, key: str) -> dict[str, Any] | None:
        """A passage's record; None where it is damaged, which `Passages` has warned of."""
        try:
            return self._journal.read(key, "passage")
        except BadData:
            return None


def _digest(query: str) -> bytes:
    return blake2b(query.encode("utf-8", "surrogatepass"), digest_size=16).digest()
